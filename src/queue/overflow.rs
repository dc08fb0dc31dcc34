//! FluxJobs that do not fit here: a part of their brokers starts, the others are a burst onto a peer; or all of them are.
//! Pure, but for the ports to whoever knows the peers, and how a Burst is made.
//!
//! The decision is in the FluxJob's status before anything is made of it. What becomes of the burst from then on goes by the
//! rules of any burst, as long as some peer takes it; if none does, the FluxJob is taken back, and stands in line again.
//! Whatever was made of it is gone by then, here and elsewhere: it never runs in two places.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use tributary_api::burst::{Burst, BurstRefusal};
use tributary_api::duration::Lasting;
use tributary_api::flux_job::{FluxJob, FluxJobStatus, JobReturn, JobSent, JobSplit};
use tributary_api::flux_setup::{FluxSetupSpec, Overflow, OverflowPolicy};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::{BurstCluster, MiniCluster, MiniClusterSpec, Phase, WaitFor};
use tributary_api::selector::{PeerPreference, PeerSelector};
use tributary_api::{labels, names};
use tributary_contract::RejectionReason;
use tributary_render::nodes::Amounts;

use super::job;
use super::requests::Requests;
use super::schedule::Away;

/// Brokers that a peer shall take.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Namespace of their FluxJob.
    pub namespace: String,
    /// How many.
    pub brokers: u32,
    /// What each takes.
    pub each: Amounts,
    /// Peers that come into question, best first.
    pub peers: Vec<String>,
    /// By labels of the ClusterPeers; counts if none is named.
    pub selector: PeerSelector,
    /// Which of these are better.
    pub prefer: Vec<PeerPreference>,
    /// They are all of an instance.
    pub whole: bool,
    /// Who threw them out before, and when that stands.
    pub evictions: Vec<BurstRefusal>,
}

impl Part {
    /// Whether whoever has no room for the other has none for this.
    pub(super) fn is_no_less_than(&self, other: &Self) -> bool {
        let Self { namespace, brokers, each, peers, selector, prefer, whole, evictions } = other;
        self.brokers >= *brokers
            && self.each.holds(*each) > 0
            && self.whole == *whole
            && self.namespace == *namespace
            && self.peers == *peers
            && self.selector == *selector
            && self.prefer == *prefer
            && self.evictions == *evictions
    }
}

/// Which peer has room for a part, besides the parts that are on their way there; else why none has, as far as is known.
pub(crate) type PeersNow = Box<dyn Fn(&Part, &[(String, Part)]) -> Result<String, String>>;

/// What is known of the peers at this moment.
pub type Peers = Arc<dyn Fn() -> PeersNow + Send + Sync>;

/// Makes the Burst of a FluxJob that is sent as a whole, given its MiniCluster; or says why it cannot be sent.
#[derive(Clone)]
pub struct Sender(pub Arc<Makes>);

/// How such a Burst is made.
pub(crate) type Makes = dyn Fn(&FluxJob, &MiniCluster, &Overflow) -> Result<Burst, String> + Send + Sync;

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// Where a FluxJob that was let in starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Start {
    /// All of it here.
    #[default]
    Here,
    /// Some of it here, the others elsewhere.
    Split(JobSplit),
    /// All of it elsewhere.
    Sent(JobSent),
}

impl Start {
    /// What is on record; `None`: nothing of it is anywhere else.
    pub(crate) fn recorded(status: &FluxJobStatus) -> Option<Self> {
        let split = status.split.clone().map(Self::Split);
        status.sent.clone().map(Self::Sent).or(split)
    }

    /// What of the whole is here.
    pub(crate) fn local(&self, whole: &Requests) -> Requests {
        match self {
            Self::Here => *whole,
            Self::Split(split) => whole.of_brokers(split.local.into()),
            Self::Sent(_) => Requests::default(),
        }
    }
}

/// Before a FluxJob that came back is offered to peers again; twice as long each time after, and up to a half more.
const FIRST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(1800);
/// How long the logs of a FluxJob that was sent stay where it ran, if it does not say itself how long it is kept.
const LOGS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long the part here of a split FluxJob waits for a peer that takes the other.
const ALONE: Duration = Duration::from_secs(60);
/// How long it waits for brokers there whose pods run. While they do not, it is the peer who knows when to give them back.
const TO_JOIN: Duration = Duration::from_secs(10 * 60);

/// That the FluxJob with this UID came back into the line at `now`, after what is known of earlier times.
pub(crate) fn returned(before: Option<&JobReturn>, uid: &str, why: &str, now: Timestamp) -> JobReturn {
    let times = before.map_or(0, |before| before.times).saturating_add(1);
    let wait = FIRST_WAIT.saturating_mul(1 << times.saturating_sub(1).min(8)).min(LONGEST_WAIT);
    // Two that wait for the room of each other, in two clusters, must not come back at the same moment again and again.
    let digest = Sha256::digest(format!("{uid} {times}"));
    let wait = wait + Duration::from_secs(wait.as_secs() / 2 * u64::from(digest[0]) / 255);
    let again = Some(Time(now.checked_add(wait).unwrap_or(Timestamp::MAX)));
    JobReturn { times, again, why: why.to_owned(), ..before.cloned().unwrap_or_default() }
}

/// What is to be remembered of a Burst that is taken back, besides what is known of earlier ones: who threw it out. Nothing, if
/// nobody did: it has not come back yet.
pub(crate) fn thrown_out(before: Option<&JobReturn>, burst: &Burst) -> Option<JobReturn> {
    let refusals = burst.status.iter().flat_map(|status| &status.refusals);
    let evictions = refusals.filter(|one| one.reason == RejectionReason::EvictedByProvider.as_str()).cloned().collect();
    let retry = burst.metadata.annotations.as_ref().and_then(|all| all.get(labels::RETRY).cloned());
    let known = JobReturn { evictions, retry, ..before.cloned().unwrap_or_default() };
    Some(known).filter(|known| *known != JobReturn::default())
}

/// How long a FluxJob is not offered to peers, since it came back. Somebody may ask for it sooner.
pub(crate) fn resting(job: &FluxJob, now: Timestamp) -> Option<Duration> {
    let returned = job.status.as_ref()?.returned.as_ref()?;
    let retry = job.metadata.annotations.as_ref().and_then(|annotations| annotations.get(labels::RETRY));
    if retry.is_some() && retry != returned.retry.as_ref() {
        return None;
    }
    let Time(again) = returned.again.clone()?;
    // A clock that was ahead when it came back keeps it here no longer than others.
    Duration::try_from(again.duration_since(now))
        .ok()
        .map(|left| left.min(LONGEST_WAIT * 3 / 2))
        .filter(|left| !left.is_zero())
}

/// Where else a FluxJob may start under these rules. One that says itself which brokers are where is left as it is.
pub(crate) fn away(setup: &FluxSetupSpec, job: &FluxJob, now: Timestamp) -> Away {
    let away = match setup.overflow.policy {
        OverflowPolicy::Never | OverflowPolicy::Unknown(_) => Away::Nowhere,
        OverflowPolicy::Split if job.spec.size > 1 => Away::Parts,
        OverflowPolicy::Split => Away::Nowhere,
        OverflowPolicy::Whole => Away::Whole,
    };
    let may = job.spec.allow_burst && !says_where(job) && resting(job, now).is_none();
    if may { away } else { Away::Nowhere }
}

fn says_where(job: &FluxJob) -> bool {
    says(job, &["flux", "bursting", "clusters"])
        || says(job, &["flux", "bursting", "leadBroker"])
        || says(job, &["flux", "bursting", "hostlist"])
        || says(job, &["minSize"])
        || says(job, &["maxSize"])
}

/// Whether this field of its MiniCluster is written.
fn says(job: &FluxJob, path: &[&str]) -> bool {
    let mut at = job.spec.mini_cluster.get(path[0]);
    for key in &path[1..] {
        at = at.and_then(|value| value.get(key));
    }
    at.is_some_and(|value| !value.is_null())
}

/// The part of `brokers` of a FluxJob, each of which takes `each`.
pub(crate) fn part(overflow: &Overflow, namespace: &str, brokers: u32, each: Amounts) -> Part {
    Part {
        namespace: namespace.to_owned(),
        brokers,
        each,
        peers: overflow.peers.clone(),
        selector: overflow.selector.clone().unwrap_or_default(),
        prefer: overflow.prefer(),
        whole: overflow.policy == OverflowPolicy::Whole,
        evictions: Vec::new(),
    }
}

/// Makes the MiniCluster of a split FluxJob of its MiniCluster: its command spans both parts, and waits for both unless its user
/// says for what it waits, or it is there for people.
pub(crate) fn apply(job: &FluxJob, split: &JobSplit, overflow: &Overflow, whole: MiniCluster) -> MiniCluster {
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let cluster = BurstCluster {
        // Those of other clusters may be called the same at the peer.
        name: Some(names::sent(&job.name_any(), job.metadata.uid.as_deref().unwrap_or_default())),
        size: Some(count(split.away)),
        peers: overflow.peers.clone(),
        selector: overflow.selector.clone().filter(|_| overflow.peers.is_empty()),
        prefer: overflow.prefer(),
        ..BurstCluster::default()
    };
    let mut made = whole;
    made.spec = MiniClusterSpec { size: Some(count(split.local)), ..made.spec };
    let bursting = &mut made.spec.flux.bursting;
    bursting.clusters = vec![cluster];
    bursting.span = true;
    if !says(job, &["flux", "bursting", "wait", "for"]) && !is_for_people(&made.spec) {
        made.spec.flux.bursting.wait.target = WaitFor::All;
    }
    made
}

/// Whether an instance runs no command of its own: nothing in it waits for brokers.
fn is_for_people(spec: &MiniClusterSpec) -> bool {
    spec.interactive || spec.runner().is_ok_and(|runner| runner.container.diagnostics)
}

/// Whether a FluxJob can be split, and how many brokers have to be elsewhere then; else why not. A
/// MiniCluster that is good as a whole can be refused in parts, and that would end the FluxJob.
///
/// # Errors
/// It cannot, and why.
pub(crate) fn splits(job: &FluxJob, overflow: &Overflow) -> Result<u32, String> {
    let whole = job::mini_cluster(job, None)?;
    if let Some((volume, _)) = whole.spec.made_volumes().next() {
        return Err(format!(
            "spec.miniCluster.volumes.{volume} is made in this cluster: brokers elsewhere would see an empty directory in its place"
        ));
    }
    // As many elsewhere as may be.
    let split = JobSplit { local: 1, away: job.spec.size.saturating_sub(1), ..JobSplit::default() };
    let made = apply(job, &split, overflow, whole);
    tributary_render::render(&made, &tributary_render::Context::default())
        .map_err(|problems| format!("in parts, its MiniCluster would be refused: {problems}"))?;
    if tributary_render::nests(&made.spec) {
        return Err("in parts, its command would start a Flux instance whose brokers do not reach each other: add --requires to \
                    flux.optionFlags"
            .to_owned());
    }
    let wait = &made.spec.flux.bursting.wait;
    Ok(match wait.target {
        WaitFor::Brokers(brokers) if wait.timeout.is_none() => brokers,
        _ => 0,
    })
}

/// How the part elsewhere stands, by the status of its MiniCluster.
pub(crate) fn seen(split: &JobSplit, mini_cluster: &MiniCluster, now: Timestamp) -> JobSplit {
    let bursts = mini_cluster.status.iter().flat_map(|status| &status.bursts);
    let Some(burst) = bursts.into_iter().next() else { return split.clone() };
    let nowhere = burst.peer.is_none() && ["Pending", "Rejected", "Evicted"].contains(&burst.phase.as_str());
    let alone_since = if nowhere { split.alone_since.clone().or(Some(Time(now))) } else { None };
    // While nobody has it, whom it was meant for is no news.
    let peer = burst.peer.clone().or_else(|| split.peer.clone().filter(|_| !nowhere));
    let joined = split.joined || burst.phase == "Ready";
    JobSplit { peer, phase: burst.phase.clone(), joined, alone_since, ..split.clone() }
}

/// How long the part here still waits for a peer that takes the other; zero: no longer. `None`: it need not. No peer is heard of
/// yet when this leader's term begins, at `began`.
pub(crate) fn patience(split: &JobSplit, began: Timestamp, now: Timestamp) -> Option<Duration> {
    let Time(since) = split.alone_since.clone().filter(|_| !split.joined)?;
    Some(left(ALONE, since.max(began), now))
}

/// Whether the command of a split FluxJob waits until all its brokers are there, however long that takes.
pub(crate) fn waits_for_all(mini_cluster: &MiniCluster) -> bool {
    let (spec, wait) = (&mini_cluster.spec, &mini_cluster.spec.flux.bursting.wait);
    wait.target == WaitFor::All && wait.timeout.is_none() && !is_for_people(spec)
}

/// The same of brokers that a peer has and that might join; see [`may_join`]. What was stored before `began`, when this leader's
/// term did, says nothing of how it stands now.
pub(crate) fn patience_with_peer(split: &JobSplit, began: Timestamp, now: Timestamp) -> Option<Duration> {
    let Time(since) = split.joining_since.clone()?;
    Some(left(TO_JOIN, since.max(began), now))
}

/// Whether nothing but themselves keeps the brokers of the other part from joining, and the command waits for them: their pods
/// run, their peer is in contact, our lead is up, and they were never all there.
pub(crate) fn may_join(split: &JobSplit, mini_cluster: &MiniCluster, part: Option<&Burst>) -> bool {
    let is_up = mini_cluster.status.as_ref().is_some_and(|here| here.phase == Some(Phase::Running));
    let joins = part.and_then(|part| part.status.as_ref()).is_some_and(|there| {
        let were_there = there.times.as_ref().is_some_and(|times| times.ready.is_some());
        there.phase == BurstPhase::Joining && there.lost_since.is_none() && !were_there
    });
    is_up && joins && !split.joined && waits_for_all(mini_cluster)
}

/// Why a part that did not join is taken back.
pub(crate) fn never_joined() -> String {
    format!("after {} not all its brokers there have joined, though their pods run", Lasting::from(TO_JOIN))
}

/// What is left of so much time.
pub(crate) fn left(most: Duration, since: Timestamp, now: Timestamp) -> Duration {
    most.saturating_sub(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

/// Why no peer takes a FluxJob that was sent; `None`: one does, or is asked.
pub(crate) fn unplaced(burst: &Burst) -> Option<String> {
    let status = burst.status.as_ref().filter(|status| status.observed_generation.is_some())?;
    let nowhere = matches!(status.phase, BurstPhase::Pending | BurstPhase::Rejected | BurstPhase::Evicted);
    (status.peer.is_none() && nowhere).then(|| format!("no peer takes it: {}", status.message))
}

/// Whether nothing is left of what a FluxJob wrote that was sent and has ended.
pub(crate) fn logs_are_gone(burst: Option<&Burst>) -> bool {
    let run = burst.and_then(|burst| burst.status.as_ref()?.run.as_ref());
    run.is_none_or(|run| run.logs_gone)
}

/// How long the Burst of a FluxJob that finished at `since` is still kept, for its logs; `None`: as long as the FluxJob is.
pub(crate) fn logs_are_kept(job: &FluxJob, since: Timestamp, now: Timestamp) -> Option<Duration> {
    let spent = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    job.spec.ttl_after_finished.is_none().then(|| LOGS_KEPT.saturating_sub(spent))
}

/// Where the brokers of a split FluxJob are, for people.
pub(crate) fn whereabouts(split: &JobSplit) -> String {
    let JobSplit { local, away, peer, phase, .. } = split;
    let peer = peer.as_deref().unwrap_or("no peer yet");
    let phase = if phase.is_empty() { String::new() } else { format!(" ({phase})") };
    let brokers = if *local == 1 { "broker" } else { "brokers" };
    format!("{local} {brokers} here, {away} on {peer}{phase}")
}

/// A sender for tests: the Burst has the size that is asked for, and a MiniCluster with services cannot be sent.
#[cfg(test)]
pub(super) fn sender() -> Sender {
    Sender(Arc::new(|job, wanted, _| {
        if !wanted.spec.services.is_empty() {
            return Err("spec.miniCluster.services does not travel to a peer".into());
        }
        let returned = job.status.as_ref().and_then(|status| status.returned.clone()).unwrap_or_default();
        let evictions = returned.evictions;
        let mut burst = Burst::new(
            &tributary_api::names::sent_burst(job.metadata.name.as_deref().unwrap_or_default()),
            tributary_api::burst::BurstSpec { size: job.spec.size, whole: true, evictions, ..Default::default() },
        );
        burst.metadata.namespace.clone_from(&job.metadata.namespace);
        burst.metadata.owner_references = kube::Resource::controller_owner_ref(job, &()).map(|owner| vec![owner]);
        Ok(burst)
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{at, flux_job};

    fn setup(policy: &str) -> FluxSetupSpec {
        serde_json::from_value(json!({"overflow": {"policy": policy, "peers": ["west"]}})).unwrap()
    }

    #[test]
    fn only_who_may_burst_and_says_nothing_of_places_goes_elsewhere() {
        let may = |policy, spec| away(&setup(policy), &flux_job(spec), at(0));
        assert_eq!(may("Split", json!({"size": 4, "allowBurst": true})), Away::Parts);
        assert_eq!(may("Whole", json!({"size": 4, "allowBurst": true})), Away::Whole);
        assert_eq!(may("Whole", json!({"size": 1, "allowBurst": true})), Away::Whole);
        assert_eq!(may("Never", json!({"size": 4, "allowBurst": true})), Away::Nowhere);
        assert_eq!(may("Split", json!({"size": 1, "allowBurst": true})), Away::Nowhere, "there is nothing to split");
        for policy in ["Split", "Whole"] {
            assert_eq!(may(policy, json!({"size": 4})), Away::Nowhere);
            for own in [json!({"flux": {"bursting": {"clusters": [{"size": 1}]}}}), json!({"maxSize": 8})] {
                assert_eq!(may(policy, json!({"size": 4, "allowBurst": true, "miniCluster": own})), Away::Nowhere);
            }
        }
        assert_eq!(may("Halves", json!({"size": 4, "allowBurst": true})), Away::Nowhere, "a word of a newer version");
    }

    #[test]
    fn what_is_preferred_counts_where_no_peer_is_named() {
        let prefer = json!([{"weight": 10, "matchLabels": {"region": "eu"}}]);
        let split = JobSplit { local: 1, away: 3, ..JobSplit::default() };
        for (peers, expected) in [(json!([]), 1), (json!(["west"]), 0)] {
            let overflow: Overflow =
                serde_json::from_value(json!({"policy": "Split", "peers": peers, "prefer": prefer,
                    "selector": {"matchLabels": {"site": "a"}}}))
                .unwrap();
            let part = part(&overflow, "hpc", 3, Amounts::default());
            let made =
                apply(&flux_job(json!({})), &split, &overflow, MiniCluster::new("lammps", MiniClusterSpec::default()));
            let cluster = &made.spec.flux.bursting.clusters[0];
            assert_eq!((part.prefer.len(), cluster.prefer.len()), (expected, expected), "{peers}");
            assert_eq!(cluster.selector.is_some(), expected == 1, "the API server takes names or a selector");
        }
    }

    #[test]
    fn who_came_back_is_offered_again_at_growing_intervals() {
        let (mut job, mut now) = (flux_job(json!({"size": 4, "allowBurst": true})), 0);
        for least in [60, 120, 240, 480, 960, 1800, 1800] {
            let status = job.status.get_or_insert_default();
            status.returned = Some(returned(status.returned.as_ref(), "u", "nobody takes it", at(now)));
            assert_eq!(away(&setup("Whole"), &job, at(now)), Away::Nowhere);
            let left = i64::try_from(resting(&job, at(now)).unwrap().as_secs()).unwrap();
            assert!((least..=least * 3 / 2).contains(&left), "{left} s");
            now += left;
            assert_eq!(away(&setup("Whole"), &job, at(now)), Away::Whole);
        }
        let status = job.status.as_mut().unwrap();
        status.returned = Some(returned(status.returned.as_ref(), "u", "nobody takes it", at(now)));
        job.metadata.annotations = Some([(labels::RETRY.to_owned(), "now".to_owned())].into());
        assert_eq!(away(&setup("Whole"), &job, at(now)), Away::Whole, "somebody asked for it");
        job.status.as_mut().unwrap().returned.as_mut().unwrap().retry = Some("now".into());
        assert_eq!(away(&setup("Whole"), &job, at(now)), Away::Nowhere, "and was heard");
    }

    /// The danger: two clusters offer each other their FluxJobs at the same moment, and neither has room, for ever.
    #[test]
    fn two_that_come_back_at_the_same_moment_are_not_offered_at_the_same_moment() {
        let again = |uid: &str, before: Option<&JobReturn>| returned(before, uid, "nobody takes it", at(0));
        let (mut one, mut other) = (again("1", None), again("2", None));
        for _ in 0..7 {
            assert_ne!(one.again, other.again, "after {} times", one.times);
            (one, other) = (again("1", Some(&one)), again("2", Some(&other)));
        }
        assert_eq!(again("1", Some(&one)), again("1", Some(&one)));
    }

    #[test]
    fn a_part_that_is_alone_waits_for_a_minute_unless_the_other_was_there_once() {
        let burst = |phase: &str, peer: Option<&str>| {
            let mut found = MiniCluster::new("lammps", MiniClusterSpec::default());
            let status = found.status.get_or_insert_default();
            let (phase, peer) = (phase.to_owned(), peer.map(str::to_owned));
            status.bursts = vec![tributary_api::minicluster::BurstStatus { phase, peer, ..Default::default() }];
            found
        };
        let split = JobSplit { local: 1, away: 3, peer: Some("west".into()), ..JobSplit::default() };
        let offered = seen(&split, &burst("Offered", Some("west")), at(0));
        assert_eq!(patience(&offered, at(0), at(0)), None);
        let alone = seen(&seen(&offered, &burst("Rejected", None), at(1)), &burst("Pending", None), at(9));
        assert_eq!((patience(&alone, at(0), at(21)), alone.peer.clone()), (Some(Duration::from_secs(40)), None));
        assert_eq!(patience(&alone, at(0), at(70)), Some(Duration::ZERO));
        assert_eq!(patience(&alone, at(65), at(70)), Some(Duration::from_secs(55)), "no peer was heard of before");
        assert_eq!(
            patience(&seen(&alone, &burst("Offered", Some("north")), at(70)), at(0), at(70)),
            None,
            "somebody is asked"
        );
        let joined = seen(&split, &burst("Ready", Some("west")), at(0));
        assert_eq!(
            patience(&seen(&joined, &burst("Rejected", None), at(1)), at(0), at(999)),
            None,
            "its command may run"
        );
    }

    #[test]
    fn nothing_waits_for_brokers_in_an_instance_that_is_there_for_people() {
        let split = JobSplit { local: 1, away: 3, ..JobSplit::default() };
        for (own, waits) in [
            (json!({}), true),
            (json!({"interactive": true}), false),
            (json!({"containers": [{"diagnostics": true}]}), false),
        ] {
            for wait in [json!({}), json!({"for": "All"})] {
                let mut brings = own.clone();
                brings["flux"] = json!({"bursting": {"wait": wait}});
                let spec = json!({"image": "a", "command": "true", "size": 4, "miniCluster": brings});
                let job = flux_job(spec);
                let whole = job::mini_cluster(&job, None).unwrap();
                let made = apply(&job, &split, &setup("Split").overflow, whole);
                let all = made.spec.flux.bursting.wait.target == WaitFor::All;
                assert_eq!((waits_for_all(&made), all), (waits, waits || wait != json!({})), "{own}, {wait}");
            }
        }
    }

    #[test]
    fn a_split_mini_cluster_has_its_lead_here_and_its_command_everywhere() {
        let whole: MiniCluster = serde_json::from_value(json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {"name": "lammps"},
            "spec": {"size": 8, "containers": [{"cores": 2}]},
        }))
        .unwrap();
        let split = JobSplit { local: 3, away: 5, ..JobSplit::default() };
        let mut job = flux_job(json!({}));
        job.metadata.uid = Some("0f1e2d3c-4b5a".into());
        let flux = |job: &FluxJob| {
            let made = apply(job, &split, &setup("Split").overflow, whole.clone());
            assert_eq!(made.spec.size(), 3);
            serde_json::to_value(&made.spec.flux).unwrap()
        };
        let clusters = json!([{"name": "lammps-0f1e2d", "size": 5, "peers": ["west"]}]);
        assert_eq!(flux(&job), json!({"bursting": {"clusters": clusters, "span": true, "wait": {"for": "All"}}}));
        for (wait, target) in [(json!({"for": "None"}), json!(null)), (json!({"timeout": "2m"}), json!("All"))] {
            job.spec.mini_cluster = serde_json::from_value(json!({"flux": {"bursting": {"wait": wait}}})).unwrap();
            assert_eq!(flux(&job)["bursting"]["wait"]["for"], target);
        }
        assert_eq!(whereabouts(&split), "3 brokers here, 5 on no peer yet");
        let on_west = JobSplit { peer: Some("west".into()), phase: "Ready".into(), ..split };
        assert_eq!(whereabouts(&on_west), "3 brokers here, 5 on west (Ready)");
    }
}
