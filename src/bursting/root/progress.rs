//! Which answers of a peer may wait a second: those that only change what people are shown. Pure.

use tributary_api::burst::{Burst, BurstStatus};
use tributary_api::hosted_burst::BurstPhase::{Accepted, Joining, Provisioning};
use tributary_contract::{ObservedBurst, PeerName};

use crate::sync_store::Answer;

/// Whether an answer of `peer` only tells how far the brokers of `burst` are. The peer dates each step, so waiting changes no
/// time.
pub(super) fn is_progress_only(burst: &Burst, peer: &PeerName, answer: Option<&Answer>) -> bool {
    let (Some(status), Some(Answer::Observed(said))) = (&burst.status, answer) else { return false };
    // Each field is named, so that somebody thinks of a new one.
    let ObservedBurst {
        uid: _,
        observed_generation: _,
        incarnation,
        phase,
        rejection,
        hosted_uid,
        ready_brokers,
        simulated,
        preflight: _,
        rank_map_digest: _,
        credential_digest: _,
        lead: _,
        message: _,
        times: _,
        run,
        used,
    } = &**said;
    let BurstStatus { peer: placed, incarnation: current, phase: known, .. } = status;
    placed.as_deref() == Some(peer.as_str())
        && current.as_ref() == Some(incarnation)
        && matches!(known, Accepted | Provisioning | Joining)
        && matches!(phase, Provisioning | Joining)
        && *hosted_uid == status.hosted_uid
        && *ready_brokers == status.ready_brokers
        && *simulated == status.simulated
        && (rejection, run, used) == (&None, &None, &None)
}

#[cfg(test)]
mod tests {
    use tributary_contract::{BurstPhase, Rejection, RejectionReason, RunReport, UseReport};

    use super::*;

    fn stored() -> Burst {
        let status = BurstStatus {
            peer: Some("west".into()),
            incarnation: Some("job-1".into()),
            phase: Accepted,
            hosted_uid: Some("hosted".into()),
            ..BurstStatus::default()
        };
        Burst { status: Some(status), ..Burst::default() }
    }

    fn said() -> ObservedBurst {
        ObservedBurst {
            incarnation: "job-1".into(),
            phase: Provisioning,
            hosted_uid: Some("hosted".into()),
            observed_generation: 2,
            message: "its Job is made".into(),
            ..ObservedBurst::default()
        }
    }

    fn waits(change: impl FnOnce(&mut BurstStatus, &mut ObservedBurst)) -> bool {
        let (mut burst, mut said) = (stored(), said());
        change(burst.status.as_mut().unwrap(), &mut said);
        is_progress_only(&burst, &"west".into(), Some(&said.into()))
    }

    #[test]
    fn how_far_it_is_may_wait() {
        assert!(waits(|_, _| ()));
        assert!(waits(|stored, said| (stored.phase, said.phase) = (Provisioning, Joining)));
        assert!(waits(|stored, said| (stored.phase, said.phase) = (Joining, Joining)));
        assert!(waits(|stored, said| (stored.ready_brokers, said.ready_brokers) = (1, 1)));
    }

    /// The danger: a slot is given away, paid for or taken for lost a second too long.
    #[test]
    fn what_anything_follows_from_is_looked_at_at_once() {
        let words =
            [BurstPhase::Pending, BurstPhase::Offered, BurstPhase::Queued, BurstPhase::ScalingUp, BurstPhase::Ready]
                .into_iter()
                .chain([BurstPhase::Draining, BurstPhase::Released, BurstPhase::Rejected, BurstPhase::Evicted])
                .chain([BurstPhase::Lost, BurstPhase::Spent, BurstPhase::Asleep, BurstPhase::Finished]);
        for phase in words {
            assert!(!waits(|_, said| said.phase = phase), "{phase} is said");
            assert!(!waits(|stored, _| stored.phase = phase), "{phase} is stored");
        }
        assert!(!waits(|_, said| said.phase = Accepted), "accepted");
        type Change = fn(&mut BurstStatus, &mut ObservedBurst);
        let changes: [(&str, Change); 10] = [
            ("placed elsewhere", |stored, _| stored.peer = Some("north".into())),
            ("placed nowhere", |stored, _| stored.peer = None),
            ("another instance", |_, said| said.incarnation = "job-2".into()),
            ("taken", |stored, _| stored.hosted_uid = None),
            ("begun anew", |_, said| said.hosted_uid = Some("another".into())),
            ("a broker joined", |_, said| said.ready_brokers = 1),
            ("simulated", |_, said| said.simulated = true),
            ("rejected", |_, said| said.rejection = Some(Rejection::new(RejectionReason::PolicyForbids, "no"))),
            ("a run", |_, said| said.run = Some(RunReport::default())),
            ("its use ends", |_, said| said.used = Some(UseReport::default())),
        ];
        for (case, change) in changes {
            assert!(!waits(change), "{case}");
        }
        assert!(!is_progress_only(&stored(), &"west".into(), Some(&Answer::Nothing)), "nothing is left");
        assert!(!is_progress_only(&stored(), &"west".into(), None), "what was said before the connection");
        assert!(!is_progress_only(&Burst::default(), &"west".into(), Some(&said().into())), "no status yet");
    }
}
