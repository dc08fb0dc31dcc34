//! Every number that has a meaning on the wire: application protocols, stream kinds, close codes.
//!
//! A number is never used twice. A retired one stays in its table with a word on why, so that an old peer that still
//! sends it is understood as old and not as something else.

use std::fmt;

use tributary_contract::Refusal;

/// Application protocol (ALPN, RFC 7301) of connections that carry broker traffic: a connection of its own, so that bulk cannot starve
/// heartbeats. Those of control connections are [`super::version`]'s.
pub(crate) const ALPN_TUNNEL: &[u8] = b"tributary-tunnel/1";

/// Application protocol of joining, on a listener of its own that is open only while there are tokens.
pub(crate) const ALPN_ENROL: &[u8] = b"tributary-enrol/1";

macro_rules! stream_kinds {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// What a stream is for: its opener sends this as a big-endian `u16` before anything else.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum StreamKind { $($(#[$doc])* $name = $id,)* }

        impl StreamKind {
            /// All kinds in use.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The number on the wire.
            pub const fn id(self) -> u16 {
                self as u16
            }

            /// The kind of a number; `None` for kinds of a newer version and for retired ones: such a stream is reset
            /// and the connection lives on.
            pub(crate) const fn from_id(id: u16) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

stream_kinds! {
    /// The one control stream of a connection, opened by the side that dialled: hello, heartbeats, states.
    Control = 1,
    /// One read-only query and its answer.
    Query = 2,
    /// One request for a curve certificate and its answer.
    Credential = 3,
    /// One request to join the federation (on the joining listener only).
    Enrol = 4,
    /// Broker traffic of one burst.
    Tunnel = 5,
    /// One offer of a new trust bundle and its answer.
    Trust = 6,
}

/// Retired stream kinds, with what they were. None yet.
#[cfg(test)]
pub(crate) const RETIRED_STREAM_KINDS: &[(u16, &str)] = &[];

/// Reasons with numbers on the wire.
macro_rules! numbered {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $number:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $type {
            $($(#[$doc])* $name,)*
            /// One of a newer version.
            Unknown(u32),
        }

        impl $type {
            /// All in use.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The number on the wire.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Unknown(number) => number,
                }
            }

            /// The meaning of a number.
            pub(crate) const fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    _ => Self::Unknown(number),
                }
            }
        }
    };
}
pub(crate) use numbered;

macro_rules! close_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal => $refusal:expr,)*) => {
        numbered! {
            /// Why a connection was closed: the application error code of QUIC's CONNECTION_CLOSE (RFC 9000, 19.19).
            CloseCode { $($(#[$doc])* $name = $code,)* }
        }

        impl CloseCode {
            /// Its name; of all codes of newer versions the same.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    Self::Unknown(_) => "Unknown",
                }
            }

            /// The reason of a [`Refusal`] this code carries; `None` if the connection ended without one being refused.
            pub const fn refusal(self) -> Option<RefusalReason> {
                match self {
                    $(Self::$name => $refusal,)*
                    Self::Unknown(_) => None,
                }
            }
        }
    };
}

close_codes! {
    /// The agent stops, or lost its leadership: another replica may answer soon.
    Done = 0 => None,
    /// Another connection of the same pair stays.
    Replaced = 1 => None,
    /// The peer broke the protocol: a frame that cannot be decoded, out of order, or beyond a limit.
    Protocol = 2 => None,
    /// Nothing was heard for too long.
    Silent = 3 => None,
    /// The certificate of this connection ends; a new connection takes over.
    CertificateEnding = 4 => None,
    /// The configuration of the peer (its ClusterPeer) changed: connect again.
    Reconfigured = 5 => None,
    /// No ClusterPeer of that name.
    UnknownPeer = 16 => Some(RefusalReason::UnknownPeer),
    /// The name in the hello, the name in the certificate and the expected name differ.
    WrongIdentity = 17 => Some(RefusalReason::WrongIdentity),
    /// The cluster UID is not the pinned one.
    WrongClusterUid = 18 => Some(RefusalReason::WrongClusterUid),
    /// The ClusterPeer is suspended.
    Suspended = 19 => Some(RefusalReason::Suspended),
    /// No common version.
    IncompatibleVersion = 20 => Some(RefusalReason::IncompatibleVersion),
    /// The certificate is expired or not yet valid.
    CertificateExpired = 21 => Some(RefusalReason::CertificateExpired),
    /// The certificate is not signed by an authority of the trust bundle.
    UntrustedCertificate = 22 => Some(RefusalReason::UntrustedCertificate),
    /// The certificate's trust domain is not one its trust bundle stands for.
    WrongTrustDomain = 23 => Some(RefusalReason::WrongTrustDomain),
    /// The hello speaks for an older leadership than one we have already talked to.
    StaleEpoch = 24 => Some(RefusalReason::StaleEpoch),
}

/// Retired close codes, with what they were. None yet.
#[cfg(test)]
pub(crate) const RETIRED_CLOSE_CODES: &[(u32, &str)] = &[];

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "code {code}"),
            known => write!(f, "{known:?}"),
        }
    }
}

/// Why two agents do not connect: the reasons a [`Refusal`] may have, and conditions show.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefusalReason {
    /// No ClusterPeer of that name.
    UnknownPeer,
    /// The certificate is expired or not yet valid.
    CertificateExpired,
    /// The certificate is not signed by an authority of the trust bundle.
    UntrustedCertificate,
    /// The certificate or the hello names another cluster than expected.
    WrongIdentity,
    /// The certificate's trust domain is not one its trust bundle stands for.
    WrongTrustDomain,
    /// The cluster UID is not the pinned one.
    WrongClusterUid,
    /// The ClusterPeer is suspended.
    Suspended,
    /// No common version.
    IncompatibleVersion,
    /// The agent speaks for an older leadership of its cluster than one already heard.
    StaleEpoch,
    /// No answer: the name does not resolve, nobody listens, or packets are lost.
    Unreachable,
}

impl RefusalReason {
    /// The word conditions show.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownPeer => "UnknownPeer",
            Self::CertificateExpired => "CertificateExpired",
            Self::UntrustedCertificate => "UntrustedCertificate",
            Self::WrongIdentity => "WrongIdentity",
            Self::WrongTrustDomain => "WrongTrustDomain",
            Self::WrongClusterUid => "WrongClusterUID",
            Self::Suspended => "Suspended",
            Self::IncompatibleVersion => "IncompatibleVersion",
            Self::StaleEpoch => "StaleEpoch",
            Self::Unreachable => "Unreachable",
        }
    }

    /// The close code that tells the other side; `None` for [`RefusalReason::Unreachable`], which nobody is told.
    pub(crate) fn close_code(self) -> Option<CloseCode> {
        CloseCode::ALL.iter().copied().find(|code| code.refusal() == Some(self))
    }

    /// A refusal for this reason. `message`: what was expected, what was shown, what to do.
    pub(crate) fn because(self, message: impl Into<String>) -> Refusal {
        Refusal { reason: self.as_str().to_owned(), message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_change_and_retired_ones_never_come_back() {
        let streams: Vec<String> = StreamKind::ALL.iter().map(|kind| format!("{} {kind:?}", kind.id())).collect();
        assert_eq!(streams, ["1 Control", "2 Query", "3 Credential", "4 Enrol", "5 Tunnel", "6 Trust"]);
        for kind in StreamKind::ALL {
            assert_eq!(StreamKind::from_id(kind.id()), Some(*kind));
            assert!(RETIRED_STREAM_KINDS.iter().all(|(retired, _)| *retired != kind.id()));
        }
        let codes: Vec<String> = CloseCode::ALL.iter().map(|code| format!("{} {code}", code.number())).collect();
        assert_eq!(
            codes.join(", "),
            "0 Done, 1 Replaced, 2 Protocol, 3 Silent, 4 CertificateEnding, 5 Reconfigured, 16 UnknownPeer, \
             17 WrongIdentity, 18 WrongClusterUid, 19 Suspended, 20 IncompatibleVersion, 21 CertificateExpired, \
             22 UntrustedCertificate, 23 WrongTrustDomain, 24 StaleEpoch"
        );
        for code in CloseCode::ALL {
            assert_eq!(CloseCode::from_number(code.number()), *code);
            assert!(RETIRED_CLOSE_CODES.iter().all(|(retired, _)| *retired != code.number()));
        }
        assert_eq!(CloseCode::from_number(9999).number(), 9999, "a newer code survives");
    }
}
