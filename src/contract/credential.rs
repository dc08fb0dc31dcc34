//! The curve certificate on its way from root to provider: asked for after acceptance, sent after it was recorded.

use std::fmt;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::BurstUid;

/// A provider that accepted a burst asks for its certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialRequest {
    /// UID of the Burst.
    pub burst: BurstUid,
    /// Incarnation the provider accepted.
    pub incarnation: String,
    /// Digest that was offered.
    pub digest: String,
}

/// The text of a `curve.cert` file. Never printed: its Debug shows the length only; wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(Zeroizing<String>);

impl Credential {
    /// Takes the text of a certificate.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, for the Secret and for the wire.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} bytes)", self.0.len())
    }
}

/// The leave to start a whole instance. It travels as a certificate does, after it was recorded who gets it, so that what is
/// known of whoever has a certificate holds for it too: only who was given it can run the instance. It is no secret; the
/// certificate of such an instance is made where it runs, and stays there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leave(String);

impl Leave {
    /// The leave for one incarnation.
    pub fn of(incarnation: &str) -> Self {
        Self(format!("tributary-leave/1 {incarnation}\n"))
    }

    /// Its digest, as an offer announces it.
    pub fn digest(&self) -> String {
        format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(self.0.as_bytes())))
    }
}

impl From<Leave> for Credential {
    fn from(leave: Leave) -> Self {
        Self::new(leave.0)
    }
}

/// Why a certificate was not handed out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum CredentialRefusal {
    /// The burst is not placed on the asking peer, or is of another incarnation.
    #[error("the burst is not placed on this peer in this incarnation")]
    NotForYou,
    /// The Secret does not exist yet, or could not be read, or the peer asks too often: ask again.
    #[error("it cannot now; if that stays, the events of the Burst and the log of the agent there say why")]
    NotReady,
    /// The connection broke, or no answer came in time: ask again.
    #[error("the peer did not answer")]
    Unreachable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_certificate() {
        let shown = format!("{:?}", Credential::new("secret-key = \"abc\"".into()));
        assert_eq!(shown, "Credential(18 bytes)");
    }

    #[test]
    fn a_leave_is_for_one_incarnation() {
        let leave = Leave::of("job-1");
        assert_ne!(leave.digest(), Leave::of("job-2").digest());
        assert_eq!((leave.digest().len(), &leave.digest()[..7]), (71, "sha256:"));
        assert_eq!(Credential::from(leave).expose(), "tributary-leave/1 job-1\n");
    }
}
