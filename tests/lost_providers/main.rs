//! Providers that are lost, on real control planes: six clusters with an agent process each. A binary of its own: two cores have
//! no room for these clusters beside those of `cluster`.
#![allow(missing_docs, clippy::unwrap_used)]

mod two_providers;

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
