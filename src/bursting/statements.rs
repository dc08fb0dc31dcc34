//! What both sides say of a burst in the same words.

use tributary_api::hosted_burst::{BurstPhase, PreflightFinding};
use tributary_api::labels::condition::{BROKERS_ONLINE, PREFLIGHT};
use tributary_cluster::conditions::Statement;
use tributary_contract::preflight::{Outcome, verdict};

/// Why nobody knows whether brokers have joined.
pub(super) const NOT_CHECKABLE: &str = "every wanted pod is ready; brokers are not checkable (kwok)";

/// Whether every wanted broker has joined. Only a readiness probe knows that.
pub(super) fn online_statement(simulated: bool, phase: BurstPhase, ready: u32, size: u32) -> Statement {
    let message = format!("{ready} of {size} brokers are online");
    match phase {
        _ if simulated => Statement::unknown(BROKERS_ONLINE, "NotCheckable", NOT_CHECKABLE),
        BurstPhase::Lost => {
            let before = if ready > 0 { format!("; {ready} of {size} were online before") } else { String::new() };
            Statement::unknown(BROKERS_ONLINE, "Lost", format!("not known: the peer is out of contact{before}"))
        }
        BurstPhase::Ready if ready >= size => Statement::holds(BROKERS_ONLINE, "Joined", message),
        phase => Statement::fails(BROKERS_ONLINE, phase.to_string(), message),
    }
}

/// Whether brokers will be able to join, as far as was found out; `None` before anything was looked at.
pub(super) fn preflight_statement(findings: &[PreflightFinding]) -> Option<Statement> {
    let findings: Vec<_> = findings.iter().cloned().map(Into::into).collect();
    let said = verdict(&findings)?;
    let status = match said.outcome {
        Outcome::Pass => Some(true),
        Outcome::Fail => Some(false),
        Outcome::Unknown => None,
    };
    Some(Statement { type_: PREFLIGHT, status, reason: said.reason, message: said.message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_of_a_newer_version_is_a_reason_by_its_word() {
        let thawing = serde_json::from_value(serde_json::json!("Thawing")).unwrap();
        assert_eq!(online_statement(false, thawing, 0, 1).reason, "Thawing");
    }
}
