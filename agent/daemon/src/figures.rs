//! What is counted when somebody asks for the metrics: objects by phase, brokers, who leads, until when the identity holds.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::Phase;
use tributary::cluster::fence::Fence;
use tributary::federation::identity::{Identity, IdentityStore};
use tributary::metrics::{Described, gauge, gauges};
use tributary::reconcile::watches::Watches;

/// The identity in use, once there is one.
#[derive(Default)]
pub struct IdentityInUse(Mutex<Option<IdentityStore>>);

impl IdentityInUse {
    /// From now on it is this one.
    pub fn is(&self, store: IdentityStore) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    }

    /// The newest one; `None`: there was none yet.
    pub fn current(&self) -> Option<Arc<Identity>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(IdentityStore::current)
    }
}

/// Looks at everything that is shown.
pub struct Figures {
    /// The objects.
    pub watches: Watches,
    /// Who leads.
    pub fence: Fence,
    /// The identity of this cluster in its federation.
    pub identity: Arc<IdentityInUse>,
}

impl std::fmt::Debug for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Figures")
    }
}

const BUILD: Described = Described::gauge("build", &[("version", &[])], "1, with the version of the agent");
const LEADER: Described =
    Described::gauge("leader", &[], "1 on the agent that leads its cluster, 0 on those that stand by");
const MINI_CLUSTERS: Described =
    Described::gauge("miniclusters", &[("phase", &PHASE_WORDS)], "MiniClusters of this cluster, hosted ones included");
const BROKERS: Described =
    Described::gauge("brokers", &[("state", &["wanted", "ready"])], "Brokers of the MiniClusters of this cluster");
const BURSTS: Described =
    Described::gauge("bursts", &[("phase", &BURST_PHASE_WORDS)], "Bursts of roots of this cluster, wherever they run");
const HOSTED: Described =
    Described::gauge("hosted_bursts", &[("phase", &BURST_PHASE_WORDS)], "Bursts that run here for peers");
const EXPIRES: Described = Described::gauge(
    "identity_expires_seconds",
    &[],
    "When the identity in the federation ends, in seconds since 1970; on the agent that leads",
);
const RENEWS: Described = Described::gauge(
    "identity_renews_seconds",
    &[],
    "When the identity in the federation is due for renewal, in seconds since 1970; on the agent that leads",
);

impl Figures {
    /// What there is.
    pub const DESCRIBED: [Described; 8] = [BUILD, LEADER, MINI_CLUSTERS, BROKERS, BURSTS, HOSTED, EXPIRES, RENEWS];
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let Watches { mini_clusters, bursts, hosted, .. } = &self.watches;
        gauges(&mut encoder, &BUILD, [(crate::VERSION, 1)])?;
        let leads = self.fence.leading().is_some();
        gauge(&mut encoder, &LEADER, i64::from(leads))?;
        // Caches of standbys hold the same objects: a sum over the agents counts each once.
        if !leads {
            return Ok(());
        }

        let objects = mini_clusters.objects();
        let statuses = || objects.iter().map(|object| object.status.as_ref());
        let phases = counted(&PHASES, &PHASE_WORDS, statuses().map(|status| status.and_then(|status| status.phase)));
        gauges(&mut encoder, &MINI_CLUSTERS, phases)?;
        let wanted = statuses().flatten().map(|status| i64::from(status.size)).sum();
        let ready = statuses().flatten().map(|status| i64::from(status.ready.unwrap_or(0))).sum();
        gauges(&mut encoder, &BROKERS, [("wanted", wanted), ("ready", ready)])?;

        let phase = |burst: &Burst| burst.status.as_ref().map(|status| status.phase);
        gauges(
            &mut encoder,
            &BURSTS,
            counted(&BURST_PHASES, &BURST_PHASE_WORDS, bursts.objects().iter().map(|burst| phase(burst))),
        )?;
        let phase = |burst: &HostedBurst| burst.status.as_ref().map(|status| status.phase);
        gauges(
            &mut encoder,
            &HOSTED,
            counted(&BURST_PHASES, &BURST_PHASE_WORDS, hosted.objects().iter().map(|burst| phase(burst))),
        )?;

        let Some(identity) = self.identity.current() else { return Ok(()) };
        gauge(&mut encoder, &EXPIRES, identity.not_after().as_second())?;
        gauge(&mut encoder, &RENEWS, identity.renew_at().as_second())
    }
}

/// In the order of their lives, as `kubectl get` prints them.
const PHASES: [Phase; 8] = [
    Phase::Pending,
    Phase::Starting,
    Phase::Running,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Refused,
    Phase::Succeeded,
    Phase::Failed,
];
const PHASE_WORDS: [&str; 8] =
    ["Pending", "Starting", "Running", "Restarting", "Suspended", "Refused", "Succeeded", "Failed"];

const BURST_PHASES: [BurstPhase; 14] = [
    BurstPhase::Pending,
    BurstPhase::Offered,
    BurstPhase::Accepted,
    BurstPhase::Provisioning,
    BurstPhase::Joining,
    BurstPhase::Ready,
    BurstPhase::Draining,
    BurstPhase::Released,
    BurstPhase::Rejected,
    BurstPhase::Evicted,
    BurstPhase::Lost,
    BurstPhase::Spent,
    BurstPhase::Asleep,
    BurstPhase::Finished,
];
const BURST_PHASE_WORDS: [&str; 14] = [
    "Pending",
    "Offered",
    "Accepted",
    "Provisioning",
    "Joining",
    "Ready",
    "Draining",
    "Released",
    "Rejected",
    "Evicted",
    "Lost",
    "Spent",
    "Asleep",
    "Finished",
];

/// Every phase with its count, also those of none: an alert cannot tell a series that is missing from one that is zero.
/// What has no status yet is pending.
fn counted<P: PartialEq, const N: usize>(
    phases: &[P; N],
    words: &[&'static str; N],
    seen: impl Iterator<Item = Option<P>>,
) -> Vec<(&'static str, i64)> {
    let mut counts = words.map(|word| (word, 0));
    for phase in seen {
        let index = phase.map_or(Some(0), |phase| phases.iter().position(|known| *known == phase));
        if let Some(index) = index {
            counts[index].1 += 1;
        }
    }
    counts.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_shown_and_what_has_none_is_pending() {
        let counts = counted(
            &PHASES,
            &PHASE_WORDS,
            [None, Some(Phase::Running), Some(Phase::Running), Some(Phase::Unknown)].into_iter(),
        );
        assert_eq!(counts.len(), PHASES.len());
        let of = |word| counts.iter().find(|(phase, _)| *phase == word).unwrap().1;
        assert_eq!([of("Pending"), of("Running"), of("Failed")], [1, 2, 0]);
    }

    #[test]
    fn words_are_those_of_the_api() {
        let word = |phase: serde_json::Value| phase.as_str().unwrap().to_owned();
        assert_eq!(PHASES.map(|phase| word(serde_json::to_value(phase).unwrap())), PHASE_WORDS);
        assert_eq!(BURST_PHASES.map(|phase| word(serde_json::to_value(phase).unwrap())), BURST_PHASE_WORDS);
    }
}
