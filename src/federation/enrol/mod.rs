//! Joining with a token: two clusters that know nothing of each other exchange their trust bundles.
//!
//! The token names the authorities of the cluster that made it, so whoever joins verifies the listener before it says
//! anything; the listener knows whoever joins by the token's secret, and keeps its hash only. The listener has a port and
//! an application protocol of its own and is open only while there are tokens: on the listener for peers, client
//! authentication is never optional.
//!
//! | danger | what stops it |
//! |---|---|
//! | somebody else answers at the endpoint | the token names the authority by its SHA-256; the secret is sent only after |
//! | a token is read from the API server | it is not there: only the SHA-256 of 256 random bits is |
//! | a token is used twice | its uses are counted in its Secret, with the resource version as precondition |
//! | a token is used, or made, to become a cluster that is known already | on both sides a known name keeps its UID and its authorities ([`message::Known`]); others are refused |
//! | garbage, slow or many clients | one small frame, a time limit, few connections at a time, and fewer of one address |
//! | somebody tries secrets without end | the [`Registrar`] makes one request a second for all of them; they are logged once a minute per address |
//!
//! | part | what it does |
//! |---|---|
//! | [`token`] | the token, as text |
//! | [`message`] | what is said, and why somebody is refused |
//! | [`client`] | the side that joins |
//! | [`listener`] | the side that made the token |

pub mod client;
pub(crate) mod listener;
pub mod message;
pub(crate) mod proto;
mod tls;
pub mod token;

#[cfg(test)]
mod tests;

pub use client::{JoinError, join};
pub use listener::{EnrolListener, Registrar};
pub use message::{Introduction, Known, Refusal, Refused, Request, endpoints};
pub use token::{JoinToken, TokenError, TokenSecret};
