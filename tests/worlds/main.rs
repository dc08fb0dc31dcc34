//! Worlds: clusters whose agents run the very same controllers as the daemon, on the real sessions, over API servers in
//! memory and an in-process network, on paused time. All that happens follows from a seed.
//!
//! | file | what it does |
//! |---|---|
//! | [`agent`] | an agent, of the daemon's own parts |
//! | [`chaos`] | users, owners and faults, by chance |
//! | [`cluster`] | an API server, and what stands for Kubernetes beside it |
//! | [`invariants`] | what must never happen |
//! | [`world`] | clusters that know each other, and what happens to them |
//!
//! `WORLDS_SEED=n` runs one seed, and prints its history. `WORLDS=n` says how many seeds are run.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

mod agent;
mod chaos;
mod cluster;
mod invariants;
mod scenarios;
mod world;
