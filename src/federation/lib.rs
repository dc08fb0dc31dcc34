//! Peering with the agents of other clusters. No Kubernetes in here.
//!
//! | part | what it does |
//! |---|---|
//! | [`identity`] | who we are, whom we trust, what a certificate has to show |
//! | [`enrol`] | joining with a token: the token, who asks, who listens |
//! | [`wire`] | ids, limits, versions and messages: what travels, byte for byte |
//! | [`mesh`] | connections to all configured peers |
//! | [`session`] | everything said over one connection, without input, output or clock |
//! | [`protocol`] | the page about all of it: every frame, timer, limit and code, and what each check stops |
//! | [`timers`] | every interval, with the relations between them |
//! | [`tunnel`] | broker traffic inside the peering, held over cuts |
//! | [`transport`] | authenticated connections ([`transport::Link`]): an in-process network, QUIC |
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod enrol;
pub mod identity;
pub mod mesh;
pub(crate) mod protocol;
#[cfg(test)]
mod released;
pub mod session;
#[cfg(test)]
pub(crate) mod testing;
pub mod timers;
pub mod transport;
pub mod tunnel;
pub mod wire;
