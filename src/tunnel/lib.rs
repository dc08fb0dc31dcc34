//! Connections of brokers that outlive the streams which carry them, and the ends of them that live where the brokers live.
//! No QUIC and no Kubernetes in here: the agents use it, and so does the small program that runs beside brokers.
//!
//! | part | what it does |
//! |---|---|
//! | [`resumable_stream`] | one end of a carried connection: positions, acknowledgements, replay; without input, output or clock |
//! | [`segment`] | what travels on a stream |
//! | `backlog` | the bytes of one direction, joined |
//! | [`flow_control`] | one budget of memory for all, and what each may take of it |
//! | [`pump`] | carries one connection between its socket and whatever stream there is |
//! | [`sockets`], [`unanswered`] | whether who is connected is still there |
//! | [`ends`] | both ends in pods: the burst's, which opens, and the lead's, which answers |
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backlog;
pub mod ends;
pub mod flow_control;
pub mod limits;
pub mod pump;
pub mod resumable_stream;
pub mod segment;
pub mod sockets;
#[cfg(test)]
mod tests;
pub mod unanswered;
