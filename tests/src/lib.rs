//! Harness of the test suites.
#![allow(clippy::unwrap_used, reason = "a harness panics like the tests it serves")]

pub mod agent;
pub mod agentctl;
pub mod chart;
pub mod collector;
pub mod corpus;
pub mod curve_server;
pub mod documents;
pub mod eventually;
pub mod federation;
pub mod fields;
pub mod mesh;
pub mod metrics;
pub mod pages;
pub mod python;
pub mod queue;
pub mod scenario;
pub mod tcp_way;
pub mod udp_way;
pub mod upstream;
