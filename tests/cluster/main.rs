//! Tests on real control planes: three clusters with an agent process each.
//!
//! Tests share the clusters and the agents; each has a namespace of its own. A test that disturbs an agent takes the
//! federation for itself ([`shared::alone`]), and one that measures time has clusters that no other test works on
//! ([`shared::quiet`]).
#![allow(missing_docs, clippy::unwrap_used)]

mod addresses;
mod api;
mod asking;
mod availability;
mod bursting;
mod certificates;
mod chaos;
mod chart;
mod conversion;
mod corpus;
mod definitions;
mod demand;
mod ends;
mod faults;
mod identity;
mod idle;
mod in_memory;
mod join;
mod kueue;
mod leases;
mod lifecycle;
mod lost_node;
mod managed;
mod migration;
mod mini_cluster;
mod network;
mod overflow;
mod pod_security;
mod policy;
mod provisioning;
mod queue;
mod refusals;
mod refused_upgrades;
mod release;
mod rendered;
mod scale_up;
mod sdk;
mod shared;
mod takeover;
mod transitions;
mod two_versions;
mod usage;
mod user_of_the_root;
mod volumes;

/// Not a test: see `tributary_tests::agent`.
#[test]
fn agent_process() {
    if let Some(code) = tributary_tests::agent::become_agent_if_asked() {
        assert_eq!(
            format!("{code:?}"),
            format!("{:?}", std::process::ExitCode::SUCCESS),
            "the agent failed; see above"
        );
    }
}

/// Not a test: see `tributary_tests::agentctl`.
#[test]
fn agentctl_process() {
    if let Some(code) = tributary_tests::agentctl::become_agentctl_if_asked() {
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS), "agentctl failed; see above");
    }
}
