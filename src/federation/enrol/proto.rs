//! The messages of joining as protobuf sees them. Field numbers are the wire: never changed, never used twice.

use prost::Message;

/// What a token holds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Token {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) secret: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) cluster: String,
    #[prost(string, optional, tag = "4")]
    pub(crate) trust_domain: Option<String>,
    #[prost(string, repeated, tag = "5")]
    pub(crate) endpoints: Vec<String>,
    /// SHA-256 each.
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub(crate) authorities: Vec<Vec<u8>>,
    /// Seconds since 1970.
    #[prost(int64, tag = "7")]
    pub(crate) expires: i64,
}

/// Who a cluster is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Introduction {
    #[prost(string, tag = "1")]
    pub(crate) cluster: String,
    #[prost(string, tag = "2")]
    pub(crate) cluster_uid: String,
    #[prost(string, optional, tag = "3")]
    pub(crate) trust_domain: Option<String>,
    #[prost(string, tag = "4")]
    pub(crate) trust_bundle: String,
    #[prost(string, repeated, tag = "5")]
    pub(crate) endpoints: Vec<String>,
}

/// A request to join.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) token: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) secret: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub(crate) who: Option<Introduction>,
    /// Milliseconds since 1970, by the clock of whoever asks.
    #[prost(int64, tag = "4")]
    pub(crate) clock: i64,
}

/// The answer: who we are, or why not.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    #[prost(message, optional, tag = "1")]
    pub(crate) who: Option<Introduction>,
    #[prost(uint32, tag = "2")]
    pub(crate) refusal: u32,
    #[prost(string, tag = "3")]
    pub(crate) message: String,
}
