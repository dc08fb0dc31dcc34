//! Tests on clusters that exist, with real pods and real Flux: kind, a lab, or anyone's.
//!
//! | variable | meaning |
//! |---|---|
//! | `TRIBUTARY_E2E_CONTEXTS` | two contexts of `$KUBECONFIG`, the root's first; without it everything here is skipped, and says so |
//! | `TRIBUTARY_E2E_IMAGE` | image of the brokers (default `ubuntu:24.04`) |
//! | `TRIBUTARY_E2E_VIEW_IMAGE` | image that brings Flux (default: MiniCluster's own) |
//! | `TRIBUTARY_E2E_CUT`, `TRIBUTARY_E2E_HEAL` | shell commands that cut the clusters' nodes from each other, and undo it |
//!
//! The agents are processes of this machine; what they need of it is to reach both API servers. Each test has a namespace
//! of its own, which it deletes again.
#![allow(missing_docs, clippy::unwrap_used)]

mod bursting;
mod demo;
mod exit_codes;
mod ground;
mod network;

/// Not a test: see `tributary_tests::agent`.
#[test]
fn agent_process() {
    if let Some(code) = tributary_tests::agent::become_agent_if_asked() {
        let success = format!("{:?}", std::process::ExitCode::SUCCESS);
        assert_eq!(format!("{code:?}"), success, "the agent failed; see above");
    }
}
