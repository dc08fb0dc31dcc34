//! Digests of states.

use std::fmt;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Digest of one state, made by its sender over the bytes it sends, and only ever compared by the receiver: a receiver
/// that decoded and encoded again could come to another one, when its version knows fewer fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; Digest::LEN]);

impl Digest {
    /// Bytes of a digest: the first half of a SHA-256. Peers are authenticated; it tells changes, not forgeries.
    pub(crate) const LEN: usize = 16;

    /// The digest of a tombstone, which has no bytes of its own.
    pub const TOMBSTONE: Self = Self([0; Self::LEN]);

    /// The digest of a state's bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let full = Sha256::digest(bytes);
        let mut half = [0; Self::LEN];
        half.copy_from_slice(&full[..Self::LEN]);
        Self(half)
    }

    /// Takes a received digest; `None` if it has another length.
    pub(crate) fn received(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}
