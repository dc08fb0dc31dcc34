//! Why a connection ended, or did not come about, in our terms.

use std::sync::Arc;

use quinn::{ConnectionClose, ConnectionError, TransportErrorCode};
use tributary_contract::Refusal;

use crate::identity::Identity;
use crate::identity::tls::reason_of_alert;
use crate::transport::CloseReason;
use crate::wire::limits::{REASON, plain};
use crate::wire::registry::{CloseCode, RefusalReason};
use crate::wire::version::WireVersions;

/// The other side, and who we were to it.
pub(super) struct Side {
    /// How messages call it.
    pub who: String,
    /// The identity we showed.
    pub own: Arc<Identity>,
}

impl Side {
    /// Why a link ended. `closed_with`: the code we closed it with, if we did.
    pub(super) fn close_reason(&self, error: &ConnectionError, closed_with: Option<CloseCode>) -> CloseReason {
        match error {
            ConnectionError::LocallyClosed => CloseReason::Local(closed_with.unwrap_or(CloseCode::Done)),
            ConnectionError::ApplicationClosed(close) => {
                CloseReason::Peer { code: close_code(close.error_code), reason: sentence(&close.reason) }
            }
            ConnectionError::ConnectionClosed(close) => match self.refused(error) {
                Some(refusal) => CloseReason::Refused(refusal),
                None => CloseReason::Lost(format!("{} gave the connection up: {}", self.who, describe(close))),
            },
            ConnectionError::TimedOut => CloseReason::Lost(format!("nothing is heard of {} any more", self.who)),
            ConnectionError::Reset => CloseReason::Lost(format!("{} has restarted", self.who)),
            error => CloseReason::Lost(format!("the connection to {} broke: {error}", self.who)),
        }
    }

    /// Why a handshake we began failed, where our own verdict is not the reason.
    pub(super) fn not_connected(&self, error: &ConnectionError) -> Refusal {
        if let Some(refusal) = self.refused(error) {
            return refusal;
        }
        let unreachable = |what: String| RefusalReason::Unreachable.because(what);
        match self.close_reason(error, None) {
            CloseReason::Refused(refusal) => refusal,
            CloseReason::Peer { code, reason } => match code.refusal() {
                Some(refused) => refused.because(reason),
                None => unreachable(format!("{} closed the connection: {code} {reason}", self.who)),
            },
            CloseReason::Local(_) => unreachable("the agent stops".to_owned()),
            CloseReason::Lost(what) => unreachable(what),
        }
    }

    /// The refusal behind the end of a handshake, by either side; `None` if it ended for another reason.
    pub(super) fn refused(&self, error: &ConnectionError) -> Option<Refusal> {
        match error {
            ConnectionError::ConnectionClosed(close) => self.refused_by_them(close),
            ConnectionError::TransportError(error) => self.refused_by_us(error.code, &error.reason),
            ConnectionError::VersionMismatch => {
                let what = format!("{} speaks no version of QUIC that we know", self.who);
                Some(RefusalReason::IncompatibleVersion.because(what))
            }
            _ => None,
        }
    }

    fn refused_by_them(&self, close: &ConnectionClose) -> Option<Refusal> {
        if close.error_code == TransportErrorCode::CONNECTION_REFUSED {
            let what = format!("{} takes no more connections at the moment", self.who);
            return Some(RefusalReason::Unreachable.because(what));
        }
        let reason = reason_of_alert(alert(close.error_code)?)?;
        let (who, id) = (&self.who, self.own.id());
        let us = id.cluster();
        let sentence = match reason {
            RefusalReason::CertificateExpired => format!(
                "{who} finds our certificate expired or not yet valid; it is valid from {} to {}: renew it, or correct \
                 the clock of one of the two clusters",
                self.own.not_before(),
                self.own.not_after()
            ),
            RefusalReason::WrongIdentity => {
                format!("{who} expects another cluster than `{us}` here: correct spec.endpoints of its ClusterPeer")
            }
            RefusalReason::WrongTrustDomain => format!(
                "{who} does not take trust domain `{}` from our authority: correct spec.trustBundle of its ClusterPeer \
                 `{us}`",
                id.trust_domain()
            ),
            RefusalReason::IncompatibleVersion => format!("{}: {}", nothing_in_common(who), describe(close)),
            // Whoever has an authority of its own is told so as well where it is no peer any more: TLS comes first.
            _ => format!(
                "{who} does not trust our certificate: it has no ClusterPeer `{us}` (was it removed?), or neither its own ca.crt nor \
                 spec.trustBundle of its ClusterPeer `{us}` holds the authority that signed it ({})",
                describe(close)
            ),
        };
        Some(reason.because(sentence))
    }

    /// What our TLS refuses by itself, without a verdict of ours.
    fn refused_by_us(&self, code: TransportErrorCode, detail: &str) -> Option<Refusal> {
        let reason = reason_of_alert(alert(code)?)?;
        let sentence = match reason {
            RefusalReason::IncompatibleVersion => format!("{}: {detail}", nothing_in_common(&self.who)),
            _ => format!("{} showed no certificate, or none it has the key of: {detail}", self.who),
        };
        Some(reason.because(sentence))
    }
}

/// What to do about somebody who speaks QUIC and TLS, and none of our protocols.
fn nothing_in_common(who: &str) -> String {
    let ours = WireVersions::OURS.alpns();
    let ours: Vec<_> = ours.iter().map(|alpn| String::from_utf8_lossy(alpn)).collect();
    format!("{who} speaks none of {}: it is no agent, or much older or newer; upgrade the older one", ours.join(", "))
}

/// The TLS alert in a QUIC error code (RFC 9001, 4.8: codes 0x100 to 0x1ff).
fn alert(code: TransportErrorCode) -> Option<u8> {
    u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

/// The code of an application close.
fn close_code(code: quinn::VarInt) -> CloseCode {
    CloseCode::from_number(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
}

fn describe(close: &ConnectionClose) -> String {
    let said = sentence(&close.reason);
    if said.is_empty() { close.error_code.to_string() } else { said }
}

/// A sentence of somebody else, fit for a line of a log or a condition.
fn sentence(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes), REASON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_sentence_stays_on_its_line() {
        assert_eq!(sentence(b" no\r\nERROR forged\x1b[31m "), "no  ERROR forged [31m");
        assert_eq!(sentence(&[0xff; 300]).len(), 255, "cut between characters");
        assert_eq!(sentence(b""), "");
    }

    #[test]
    fn codes_beyond_ours_stay_unknown() {
        assert_eq!(close_code(19_u32.into()), CloseCode::Suspended);
        assert_eq!(close_code(quinn::VarInt::MAX), CloseCode::Unknown(u32::MAX));
    }
}
