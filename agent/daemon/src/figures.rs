//! What is counted when somebody asks for the metrics: objects by phase, brokers, who leads, until when the identity holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use tributary::api::budget::Usage;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels::condition::{ADMITTED, BUDGET, DEMAND, READY};
use tributary::api::minicluster::Phase;
use tributary::api::usage::{OTHERS, Side};
use tributary::clock::SharedClock;
use tributary::cluster::conditions;
use tributary::cluster::fence::Fence;
use tributary::federation::identity::{Identity, IdentityError, IdentityStore};
use tributary::metrics::{Described, gauge, gauges};
use tributary::reconcile::watches::Watches;

/// The identity in use, once there is one, and whether peers are spoken with.
#[derive(Debug, Default)]
pub(crate) struct IdentityInUse(Mutex<InUse>);

#[derive(Debug, Default)]
enum InUse {
    /// There is no federation.
    #[default]
    Off,
    /// No peer is spoken with.
    Closed {
        /// When the identity ended, if that is why.
        ended: Option<Timestamp>,
    },
    Open(IdentityStore),
}

impl IdentityInUse {
    /// From now on it is this one, and peers are spoken with.
    pub(crate) fn is(&self, store: IdentityStore) {
        *self.0.lock() = InUse::Open(store);
    }

    /// No peer is spoken with: not yet, or for this reason.
    pub(crate) fn closed(&self, why: Option<&anyhow::Error>) {
        let ended = match why.and_then(|error| error.downcast_ref()) {
            Some(IdentityError::Expired { not_after, .. }) => Some(*not_after),
            _ => None,
        };
        *self.0.lock() = InUse::Closed { ended };
    }

    /// The newest one; `None`: none is in use.
    pub(crate) fn current(&self) -> Option<Arc<Identity>> {
        match &*self.0.lock() {
            InUse::Open(store) => Some(store.current()),
            InUse::Off | InUse::Closed { .. } => None,
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, now: Timestamp) -> std::fmt::Result {
        let (current, ended) = match &*self.0.lock() {
            InUse::Off => return Ok(()),
            InUse::Closed { ended } => (None, *ended),
            InUse::Open(store) => (Some(store.current()), None),
        };
        let end = current.as_ref().map_or(ended, |current| Some(current.not_after()));
        // One that has ended is refused by each peer, also while this agent leads on.
        let open = current.is_some() && end.is_some_and(|end| now < end);
        gauge(encoder, &OPEN, i64::from(open))?;
        end.map_or(Ok(()), |end| gauge(encoder, &EXPIRES, end.as_second()))?;
        current.map_or(Ok(()), |identity| gauge(encoder, &RENEWS, identity.due_at().as_second()))
    }
}

/// Looks at everything that is shown.
pub struct Figures {
    /// The objects.
    pub(crate) watches: Watches,
    /// Who leads.
    pub(crate) fence: Fence,
    /// The identity of this cluster in its federation.
    pub(crate) identity: Arc<IdentityInUse>,
    /// What time it is.
    pub(crate) clock: SharedClock,
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
    Described::gauge("miniclusters", &[("phase", PHASE_WORDS)], "MiniClusters of this cluster, hosted ones included");
const BROKERS: Described =
    Described::gauge("brokers", &[("state", &["wanted", "ready"])], "Brokers of the MiniClusters of this cluster");
const BURSTS: Described =
    Described::gauge("bursts", &[("phase", BURST_PHASE_WORDS)], "Bursts of roots of this cluster, wherever they run");
const BURSTS_LONGEST: Described = Described::gauge(
    "bursts_longest_seconds",
    &[("state", &["nowhere", "queued", "joining"])],
    "Longest wait in seconds among the bursts of roots of this cluster, by state: placed nowhere; in a queue of Kueue at its peer; \
     taken by a peer, with brokers missing. 0 if there is none",
);
const HOSTED: Described =
    Described::gauge("hosted_bursts", &[("phase", BURST_PHASE_WORDS)], "Bursts that run here for peers");
const USAGE_BROKERS: Described = Described::gauge(
    "usage_brokers",
    &USAGE_LABELS,
    "Brokers of bursts that are in use: of roots here at a peer, or of a peer's roots here",
);
const USAGE_CORES: Described = Described::gauge("usage_cores", &USAGE_LABELS, "Cores that these brokers request");
const USAGE_GPUS: Described = Described::gauge("usage_gpus", &USAGE_LABELS, "GPUs that these brokers request");
const USAGE_COST: Described = Described::gauge(
    "usage_hourly_cost",
    &[("peer", &[])],
    "What brokers of roots here cost at a peer in an hour, by the price at which they were placed",
);

/// A peer is one that has a ClusterPeer here; all others are `(others)` together.
const USAGE_LABELS: [(&str, &[&str]); 2] = [("side", &["root", "provider"]), ("peer", &[])];

const OPEN: Described = Described::gauge(
    "federation_open",
    &[],
    "1 if this cluster can speak with peers, 0 if not, since its identity or its UDP port cannot be used; on the agent that leads, \
     unless federation is off",
);
const EXPIRES: Described = Described::gauge(
    "identity_expires_seconds",
    &[],
    "When the identity in the federation ends, in seconds since 1970; on the agent that leads",
);
const RENEWS: Described = Described::gauge(
    "identity_renews_seconds",
    &[],
    "When the identity in the federation is due for renewal, in seconds since 1970: at two thirds of its life, or, where not the \
     agent renews it, when a tenth of its life is left; on the agent that leads",
);

impl Figures {
    /// Of the agent with these parts.
    pub(crate) fn of(watches: &Watches, fence: &Fence, identity: &Arc<IdentityInUse>, clock: &SharedClock) -> Self {
        Self { watches: watches.clone(), fence: fence.clone(), identity: identity.clone(), clock: clock.clone() }
    }

    /// What there is.
    pub const DESCRIBED: [Described; 14] = [
        BUILD,
        LEADER,
        MINI_CLUSTERS,
        BROKERS,
        BURSTS,
        BURSTS_LONGEST,
        HOSTED,
        USAGE_BROKERS,
        USAGE_CORES,
        USAGE_GPUS,
        USAGE_COST,
        OPEN,
        EXPIRES,
        RENEWS,
    ];
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let Watches { mini_clusters, bursts, hosted, peers } = &self.watches;
        gauges(&mut encoder, &BUILD, [(crate::VERSION, 1)])?;
        let leads = self.fence.leading().is_some();
        gauge(&mut encoder, &LEADER, i64::from(leads))?;
        // Caches of standbys hold the same objects: a sum over the agents counts each once.
        if !leads {
            return Ok(());
        }

        let objects = mini_clusters.objects();
        let statuses = || objects.iter().map(|object| object.status.as_ref());
        let phases = counted(PHASES, PHASE_WORDS, statuses().map(|status| status.and_then(|status| status.phase)));
        gauges(&mut encoder, &MINI_CLUSTERS, phases)?;
        // What has ended, or is held back, wants none.
        let over = [Phase::Succeeded, Phase::Failed, Phase::Suspended];
        let wanted = statuses().flatten().filter(|status| status.phase.is_none_or(|phase| !over.contains(&phase)));
        let wanted = wanted.map(|status| i64::from(status.size)).sum();
        let ready = statuses().flatten().map(|status| i64::from(status.ready.unwrap_or(0))).sum();
        gauges(&mut encoder, &BROKERS, [("wanted", wanted), ("ready", ready)])?;

        let phase = |burst: &Burst| burst.status.as_ref().map(|status| status.phase);
        let (bursts, now) = (bursts.objects(), self.clock.wall());
        gauges(&mut encoder, &BURSTS, bursts_counted(bursts.iter().map(|burst| phase(burst))))?;
        let names = peers.objects().iter().map(|peer| peer.metadata.name.clone().unwrap_or_default()).collect();
        used(&mut encoder, &names, &bursts, &hosted.objects())?;
        let longest = |state| {
            let since = bursts.iter().filter_map(|burst| incomplete(burst)).filter(|(of, _)| *of == state);
            let since = since.map(|(_, since)| since).min();
            (state, since.map_or(0, |since| now.duration_since(since).as_secs().max(0)))
        };
        gauges(&mut encoder, &BURSTS_LONGEST, [longest("nowhere"), longest("queued"), longest("joining")])?;
        let phase = |burst: &HostedBurst| burst.status.as_ref().map(|status| status.phase);
        gauges(&mut encoder, &HOSTED, bursts_counted(hosted.objects().iter().map(|burst| phase(burst))))?;

        self.identity.encode(&mut encoder, now)
    }
}

/// What is in use, for each ClusterPeer: also what is none, and the rest together.
fn used(
    encoder: &mut DescriptorEncoder<'_>,
    peers: &BTreeSet<String>,
    bursts: &[Arc<Burst>],
    hosted: &[Arc<HostedBurst>],
) -> std::fmt::Result {
    let mut sums: BTreeMap<(Side, &str), Usage> = BTreeMap::new();
    for side in [Side::Root, Side::Provider] {
        sums.extend(peers.iter().map(|peer| ((side, peer.as_str()), Usage::default())));
    }
    let of_roots = bursts.iter().filter_map(|burst| {
        let status = burst.status.as_ref()?;
        Some((Side::Root, status.peer.as_deref()?, status.spent.usage()))
    });
    let of_peers = hosted
        .iter()
        .filter_map(|hosted| Some((Side::Provider, hosted.spec.peer.as_str(), hosted.status.as_ref()?.spent.usage())));
    for (side, peer, usage) in of_roots.chain(of_peers).filter(|(.., usage)| usage.brokers > 0) {
        let known = if peers.contains(peer) { peer } else { OTHERS };
        let sum = sums.entry((side, known)).or_default();
        *sum = [*sum, usage].into_iter().sum();
    }
    let mut show = |described: &Described, amount: fn(&Usage) -> f64| -> std::fmt::Result {
        let mut family = described.encoder(encoder)?;
        for ((side, peer), usage) in &sums {
            let labels = [("side", side.to_string()), ("peer", (*peer).to_owned())];
            ConstGauge::new(amount(usage)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    };
    show(&USAGE_BROKERS, |usage| usage.brokers.into())?;
    show(&USAGE_CORES, |usage| usage.milli_cores as f64 / 1000.0)?;
    show(&USAGE_GPUS, |usage| usage.gpus as f64)?;
    let mut family = USAGE_COST.encoder(encoder)?;
    for ((_, peer), usage) in sums.iter().filter(|((side, _), _)| *side == Side::Root) {
        let cost = usage.hourly.millionths() as f64 / 1_000_000.0;
        ConstGauge::new(cost).encode(family.encode_family(&[("peer", (*peer).to_owned())])?)?;
    }
    Ok(())
}

macro_rules! phases {
    ($phases:ident, $words:ident: $of:ident { $($name:ident),* }) => {
        const $phases: &[$of] = &[$($of::$name),*];
        const $words: &[&str] = &[$(stringify!($name)),*];
    };
}

// In the order of their lives, as `kubectl get` prints them.
phases!(PHASES, PHASE_WORDS: Phase {
    Pending, Starting, Running, Restarting, Suspended, Refused, Succeeded, Failed
});
phases!(BURST_PHASES, BURST_PHASE_WORDS: BurstPhase {
    Pending, Offered, Accepted, Provisioning, Queued, ScalingUp, Joining, Ready, Draining, Released, Rejected, Evicted,
    Lost, Spent, Asleep, Finished
});

/// Every phase with its count, also those of none: an alert cannot tell a series that is missing from one that is zero.
/// What has no status yet is pending.
fn counted<P: PartialEq>(
    phases: &[P],
    words: &[&'static str],
    seen: impl Iterator<Item = Option<P>>,
) -> Vec<(&'static str, i64)> {
    let mut counts: Vec<_> = words.iter().map(|word| (*word, 0)).collect();
    for phase in seen {
        let index = phase.map_or(Some(0), |phase| phases.iter().position(|known| *known == phase));
        if let Some(index) = index {
            counts[index].1 += 1;
        }
    }
    counts
}

fn bursts_counted(seen: impl Iterator<Item = Option<BurstPhase>>) -> Vec<(&'static str, i64)> {
    counted(BURST_PHASES, BURST_PHASE_WORDS, seen)
}

/// What a burst lacks that its root wants, and since when it does: it is wanted, was complete, was woken, or got a budget. One
/// that is offered and refused again and again lacks it all the time.
fn incomplete(burst: &Burst) -> Option<(&'static str, Timestamp)> {
    let status = burst.status.as_ref();
    let state = match status.map_or(BurstPhase::Pending, |status| status.phase) {
        _ if burst.spec.release => return None,
        BurstPhase::Pending | BurstPhase::Offered | BurstPhase::Rejected | BurstPhase::Evicted | BurstPhase::Lost => {
            "nowhere"
        }
        BurstPhase::Queued => "queued",
        BurstPhase::Accepted | BurstPhase::Provisioning | BurstPhase::ScalingUp | BurstPhase::Joining => "joining",
        _ => return None,
    };
    let changed = |type_: &str, to: &str| {
        let condition = conditions::find(&status?.conditions, type_)?;
        (condition.status == to).then_some(condition.last_transition_time.0)
    };
    let times = status.and_then(|status| status.times.as_ref());
    let planned = times.and_then(|times| Some(times.planned.as_ref()?.0));
    let made = burst.metadata.creation_timestamp.as_ref().map(|at| at.0);
    let began = [made, planned, changed(READY, "False"), changed(DEMAND, "True"), changed(BUDGET, "True")];
    let taken = changed(ADMITTED, "True").filter(|_| state != "nowhere");
    // Its pods may have started long after that, if it waited in a queue.
    let started = times.and_then(|times| Some(times.started.as_ref()?.0)).filter(|_| state == "joining");
    Some((state, began.into_iter().chain([taken, started]).flatten().max()?))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
    use serde_json::json;
    use tributary::api::burst::BurstSpec;
    use tributary::federation::identity::{Authority, Material, Origin};
    use tributary::metrics::Metrics;

    use super::*;

    #[derive(Debug)]
    struct Shown(Arc<IdentityInUse>, Timestamp);

    impl Collector for Shown {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            self.0.encode(&mut encoder, self.1)
        }
    }

    /// An alert on what is not shown resolves.
    #[test]
    fn a_federation_that_cannot_be_opened_is_shown_with_the_end_of_its_identity() {
        let identity = Arc::<IdentityInUse>::default();
        let shows = |second: i64, expected: &[&str]| {
            let metrics = Metrics::default();
            metrics.collect(Shown(identity.clone(), Timestamp::from_second(second).unwrap()));
            let text = metrics.text();
            let shown: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(shown, expected);
        };
        // Federation is off.
        shows(2000, &[]);
        identity.closed(None);
        shows(2000, &["tributary_federation_open 0"]);
        let now = Timestamp::from_second(1_000_000).unwrap();
        let hour = std::time::Duration::from_secs(3600);
        let authority = Authority::create("river", now).unwrap();
        let issued = authority.issue("east", now, hour).unwrap();
        let material = Material::gather(|part| {
            let text = match part {
                "tls.crt" => issued.certificate(),
                "tls.key" => issued.expose_key(),
                _ => authority.certificate(),
            };
            Some(text.into())
        });
        let origin = Origin::Secret("agents/identity".into());
        let own = Identity::from_material(&material, &origin, "east", now).unwrap().renewed_here(true);
        identity.is(IdentityStore::new(own));
        let times = ["tributary_identity_expires_seconds 1003600", "tributary_identity_renews_seconds 1002400"];
        shows(1_003_599, &["tributary_federation_open 1", times[0], times[1]]);
        // Nobody renewed it.
        shows(1_003_600, &["tributary_federation_open 0", times[0], times[1]]);
        // The next term reads the one that has ended.
        let late = Identity::from_material(&material, &origin, "east", now + 2 * hour).unwrap_err();
        identity.closed(Some(&anyhow::Error::new(late).context("failed to start")));
        shows(1_007_200, &["tributary_federation_open 0", times[0]]);
        // In the one after it something else has its port. Another identity may be there by then, which nobody has read.
        identity.closed(Some(&anyhow::anyhow!("the port is taken")));
        shows(1_007_200, &["tributary_federation_open 0"]);
    }

    /// A busy federation has a burst that is new all the time: that is none that waits.
    #[test]
    fn how_long_a_burst_is_incomplete_counts_from_when_it_could_be_complete() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let burst = |phase: &str, release: bool, changed: &[(&str, &str, i64)]| -> Burst {
            let condition = |(type_, status, second): &(&str, &str, i64)| json!({"type": type_, "status": status, "reason": "", "message": "", "lastTransitionTime": at(*second).to_string()});
            let conditions: Vec<_> = changed.iter().map(condition).collect();
            let spec = BurstSpec { release, ..BurstSpec::default() };
            let mut burst = Burst::new("lake-west", spec);
            burst.metadata.creation_timestamp = Some(Time(at(1)));
            let status = json!({"phase": phase, "times": {"planned": at(2).to_string()}, "conditions": conditions});
            burst.status = Some(serde_json::from_value(status).unwrap());
            burst
        };
        for (phase, changed, expected) in [
            ("Pending", &[][..], Some(("nowhere", 2))),
            ("Rejected", &[("Ready", "False", 2), ("Admitted", "False", 9)], Some(("nowhere", 2))),
            // It was complete until then.
            ("Lost", &[("Ready", "False", 70)], Some(("nowhere", 70))),
            ("Pending", &[("Ready", "False", 2), ("Demand", "True", 50)], Some(("nowhere", 50))),
            ("Offered", &[("Ready", "False", 2), ("Budget", "True", 60)], Some(("nowhere", 60))),
            ("Pending", &[("Ready", "False", 2), ("Budget", "False", 60)], Some(("nowhere", 2))),
            ("Joining", &[("Ready", "False", 2), ("Admitted", "True", 40)], Some(("joining", 40))),
            // One of its brokers went.
            ("Joining", &[("Ready", "False", 80), ("Admitted", "True", 40)], Some(("joining", 80))),
            ("Queued", &[("Ready", "False", 2), ("Admitted", "True", 40)], Some(("queued", 40))),
            ("Ready", &[("Ready", "True", 80)], None),
            ("Asleep", &[("Ready", "False", 2)], None),
            ("Spent", &[("Ready", "False", 2)], None),
            ("Released", &[("Ready", "False", 2)], None),
        ] {
            let expected = expected.map(|(state, second)| (state, at(second)));
            assert_eq!(incomplete(&burst(phase, false, changed)), expected, "{phase} {changed:?}");
            assert_eq!(incomplete(&burst(phase, true, changed)), None, "nobody wants it: {phase}");
        }
        let mut left_its_queue = burst("Joining", false, &[("Ready", "False", 2), ("Admitted", "True", 40)]);
        let times = left_its_queue.status.as_mut().unwrap().times.as_mut().unwrap();
        times.started = Some(MicroTime(at(90)));
        assert_eq!(incomplete(&left_its_queue), Some(("joining", at(90))));
        let new = Burst { status: None, ..burst("Pending", false, &[]) };
        assert_eq!(incomplete(&new), Some(("nowhere", at(1))));
    }

    #[test]
    fn every_phase_is_shown_and_what_has_none_is_pending() {
        let counts = counted(
            PHASES,
            PHASE_WORDS,
            [None, Some(Phase::Running), Some(Phase::Running), Some(Phase::Unknown("Novel".into()))].into_iter(),
        );
        assert_eq!(counts.len(), PHASES.len());
        let of = |word| counts.iter().find(|(phase, _)| *phase == word).unwrap().1;
        assert_eq!([of("Pending"), of("Running"), of("Failed")], [1, 2, 0]);
    }

    #[test]
    fn words_are_those_of_the_api() {
        assert_eq!(json!(PHASES), json!(PHASE_WORDS));
        assert_eq!(json!(BURST_PHASES), json!(BURST_PHASE_WORDS));
    }
}
