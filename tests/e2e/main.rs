//! Tests on clusters with real pods and real Flux: of kind, of a lab, or anyone's.
//!
//! Where nobody names such clusters they run on control planes of this machine whose nodes are simulated: what agents and
//! controllers do is as real there, and what brokers say is left out.
//!
//! | variable | meaning |
//! |---|---|
//! | `TRIBUTARY_E2E` | `kind`: two clusters are made by kind with Docker or podman, the agent's image is built and loaded, and all of it goes at the end; `auto`: the same, or `sandbox` where kind or an engine is missing: what fails otherwise, fails; `sandbox`: control planes with simulated nodes, as without any of this; `off`: nothing |
//! | `TRIBUTARY_E2E_CONTEXTS` | instead of that, two contexts of `$KUBECONFIG`, the root's first |
//! | `TRIBUTARY_E2E_IMAGE` | image of the brokers (default `ubuntu:24.04`) |
//! | `TRIBUTARY_E2E_VIEW_IMAGE` | image that brings Flux (default: MiniCluster's own) |
//! | `TRIBUTARY_E2E_AGENT_IMAGE` | image of the agent. For given contexts, what is installed by helm is skipped without it |
//! | `TRIBUTARY_E2E_ARCHIVES` | image archives to be loaded, separated by commas, where no registry has these images |
//! | `TRIBUTARY_E2E_LOAD` | for given contexts, the shell command that loads `$ARCHIVE` |
//! | `TRIBUTARY_E2E_NODE_IMAGE` | image of kind's nodes (default: kind's own) |
//! | `TRIBUTARY_E2E_CUT`, `TRIBUTARY_E2E_HEAL` | for given contexts, shell commands that cut the clusters' nodes from each other, and undo it |
//! | `TRIBUTARY_E2E_ON_NODE` | for given contexts, a shell command that runs the line of bash `$LINE` as root on node `$NODE` of the cluster of `$CONTEXT` |
//!
//! In `installed`, `unbroken` and `chaos`, agents run in pods, as helm installs them; elsewhere they are processes of this machine, which need
//! no more of it than to reach both API servers. Each test has a namespace of its own, which it deletes again.
#![allow(missing_docs, clippy::unwrap_used)]

mod bursting;
mod chaos;
mod clusters;
mod demo;
mod exit_codes;
mod ground;
mod installed;
mod network;
mod release;
mod sdk;
mod sent;
mod unbroken;

/// Not a test: see `tributary_tests::agentctl`.
#[test]
fn agentctl_process() {
    if let Some(code) = tributary_tests::agentctl::become_agentctl_if_asked() {
        let success = format!("{:?}", std::process::ExitCode::SUCCESS);
        assert_eq!(format!("{code:?}"), success, "agentctl failed; see above");
    }
}

/// Not a test: see `tributary_tests::agent`.
#[test]
fn agent_process() {
    if let Some(code) = tributary_tests::agent::become_agent_if_asked() {
        let success = format!("{:?}", std::process::ExitCode::SUCCESS);
        assert_eq!(format!("{code:?}"), success, "the agent failed; see above");
    }
}
