//! Which events a change of status is worth: pure.

use tributary_api::labels::{condition, reason};
use tributary_api::minicluster::{MiniClusterStatus, Phase};
use tributary_cluster::conditions::find;
use tributary_cluster::events::Notice;

/// The events between two statuses of a MiniCluster. Few: each is a request.
pub(crate) fn notices(old: &MiniClusterStatus, new: &MiniClusterStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    if new.incarnation.is_some() && old.incarnation.is_none() {
        notices.push(Notice::normal("Create", "Created", format!("made the Job with {} brokers", new.size)));
    }
    if new.instance_restarts > old.instance_restarts {
        let why = find(&new.conditions, condition::INSTANCE_RESTARTED);
        let note = format!("{} (restart {})", why.map_or("", |one| &one.message), new.instance_restarts);
        // A new Job is what somebody asked for; a lead that was lost is not.
        let asked = why.is_some_and(|one| one.reason == "JobReplaced");
        let say = if asked { Notice::normal } else { Notice::warning };
        notices.push(say("Restart", "InstanceRestarted", note));
    }
    // Why it waits, is refused or has ended is what Ready says.
    if let Some(ready) = find(&new.conditions, condition::READY) {
        let before = find(&old.conditions, condition::READY).map(|one| (&one.reason, &one.message));
        let worth =
            ready.status != "True" && !["Pending", "Starting", reason::NOT_ALL_READY].contains(&ready.reason.as_str());
        if worth && before != Some((&ready.reason, &ready.message)) {
            let bad = !matches!(new.phase, Some(Phase::Succeeded | Phase::Suspended | Phase::Restarting));
            let say = if bad { Notice::warning } else { Notice::normal };
            notices.push(say("Reconcile", &ready.reason, ready.message.clone()));
        }
    }
    for type_ in [condition::VALID, condition::RESTART_REQUIRED, condition::SERVICES_READY] {
        let Some(now) = find(&new.conditions, type_) else { continue };
        let bad = if type_ == condition::RESTART_REQUIRED { "True" } else { "False" };
        let before = find(&old.conditions, type_).map(|one| (&one.status, &one.message));
        // A refused MiniCluster said so above; a running one that turned invalid did not.
        let said = type_ == condition::VALID && new.phase == Some(Phase::Refused);
        if now.status == bad && !said && before != Some((&now.status, &now.message)) {
            notices.push(Notice::warning("Reconcile", &now.reason, now.message.clone()));
        }
    }
    let restart = find(&new.conditions, condition::RESTART_REQUIRED).is_some_and(|one| one.status == "True");
    for burst in &new.bursts {
        let Some(reason) = &burst.reason else { continue };
        let before = old.bursts.iter().find(|known| known.name == burst.name).and_then(|known| known.reason.as_ref());
        // That a restart is needed is said once for all of it.
        if before != Some(reason) && !(restart && reason == condition::RESTART_REQUIRED) {
            notices.push(Notice::warning("Burst", reason, format!("burst {}: {}", burst.name, burst.message)));
        }
    }
    if let Some(exposed) = find(&new.conditions, condition::CERTIFICATE_EXPOSED) {
        let before = find(&old.conditions, condition::CERTIFICATE_EXPOSED).map(|one| (&one.status, &one.message));
        if exposed.status == "True" && before != Some((&exposed.status, &exposed.message)) {
            notices.push(Notice::warning("Reconcile", condition::CERTIFICATE_EXPOSED, exposed.message.clone()));
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tributary_api::minicluster::BurstStatus;
    use tributary_cluster::conditions::{Statement, merged};

    use super::*;

    fn status(phase: Phase, incarnation: Option<&str>, statements: Vec<Statement>) -> MiniClusterStatus {
        MiniClusterStatus {
            phase: Some(phase),
            size: 4,
            incarnation: incarnation.map(str::to_owned),
            conditions: merged(&[], statements, Some(1), Timestamp::UNIX_EPOCH),
            ..MiniClusterStatus::default()
        }
    }

    fn reasons(old: &MiniClusterStatus, new: &MiniClusterStatus) -> Vec<String> {
        notices(old, new).into_iter().map(|notice| notice.reason).collect()
    }

    #[test]
    fn a_good_life_has_two_events_and_a_bad_spec_one() {
        let ready = |reason: &str| vec![Statement::fails(condition::READY, reason, reason)];
        let none = MiniClusterStatus::default();
        let starting = status(Phase::Starting, Some("job"), ready("Starting"));
        let running = status(Phase::Running, Some("job"), vec![Statement::holds(condition::READY, "Running", "")]);
        let ended = status(Phase::Succeeded, Some("job"), ready("Succeeded"));
        assert_eq!(reasons(&none, &starting), ["Created"]);
        assert!(reasons(&starting, &running).is_empty());
        assert_eq!(reasons(&running, &ended), ["Succeeded"]);
        let invalid = || vec![Statement::fails(condition::VALID, "InvalidSize", "size is 0")];
        let refused = status(Phase::Refused, None, [ready("InvalidSize"), invalid()].concat());
        assert_eq!(reasons(&none, &refused), ["InvalidSize"]);
        assert!(reasons(&refused, &refused).is_empty(), "said once");
        let turned = status(Phase::Running, Some("job"), invalid());
        assert_eq!(reasons(&running, &turned), ["InvalidSize"]);
    }

    /// The danger: a misspelt peer, and the MiniCluster has no event.
    #[test]
    fn a_burst_that_fails_is_an_event_each_time_it_fails_for_another_reason() {
        let with = |bursts: &[(&str, Option<&str>)], statements: Vec<Statement>| {
            let row = |&(name, reason): &(&str, Option<&str>)| BurstStatus {
                name: name.to_owned(),
                reason: reason.map(str::to_owned),
                message: "wset: there is no ClusterPeer of this name".into(),
                ..BurstStatus::default()
            };
            let bursts = bursts.iter().map(row).collect();
            MiniClusterStatus { bursts, ..status(Phase::Running, Some("job"), statements) }
        };
        let none = with(&[("a", None), ("b", None)], Vec::new());
        let one = with(&[("a", None), ("b", Some("NoCandidate"))], Vec::new());
        let all = notices(&none, &one);
        assert_eq!((all.len(), all[0].note.as_str()), (1, "burst b: wset: there is no ClusterPeer of this name"));
        assert!(reasons(&one, &one).is_empty() && reasons(&one, &none).is_empty());
        let both = with(&[("a", Some("PodSecurity")), ("b", Some("QuotaExceeded"))], Vec::new());
        assert_eq!(reasons(&one, &both), ["PodSecurity", "QuotaExceeded"]);
        let restart = vec![Statement::holds(condition::RESTART_REQUIRED, "FrozenPerIncarnation", "size")];
        let short = with(&[("a", Some("RestartRequired")), ("b", None)], restart);
        assert_eq!(reasons(&none, &short), ["FrozenPerIncarnation"], "said once");
    }
}
