//! Who threw out the part of a split FluxJob that was elsewhere: remembered while it stands in line, and written on the next
//! MiniCluster that is made of it. Pure.
//!
//! Its Bursts are another MiniCluster's each time, with another rank map and another certificate. So what was thrown out is
//! told by what the FluxJob asks for, and not, as with one that is sent as a whole, by what its Burst offered.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use tributary_api::burst::{Burst, BurstRefusal};
use tributary_api::flux_job::{FluxJob, JobReturn};
use tributary_api::labels::{self, reason};
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ClusterPeer;
use tributary_contract::RejectionReason;

use super::job;

/// What is to be remembered of a split FluxJob that is taken back: who threw out what its Burst offers, besides what is known of
/// earlier times. A Burst that was made anew may say nothing of those: it has to be told first. What is known of something else
/// than it asks for now is forgotten. Nothing, if nobody threw out anything.
pub(super) fn of_split(job: &FluxJob, before: Option<&JobReturn>, burst: &Burst) -> Option<JobReturn> {
    let offered = burst.offered();
    let refusals = burst.status.iter().flat_map(|status| &status.refusals);
    // What was offered before somebody asked to offer it again was heard.
    let stand =
        refusals.filter(|one| one.reason == RejectionReason::EvictedByProvider.as_str() && one.offer == offered);
    merged(job, before, stand.cloned())
}

/// The same of one whose other part a peer had, and never had all there: `peer` is its name, and its ClusterPeer.
pub(super) fn of_absent(
    job: &FluxJob,
    before: Option<&JobReturn>,
    (peer, known): (&str, Option<&ClusterPeer>),
    why: &str,
) -> Option<JobReturn> {
    let (peer, reason, message) = (peer.to_owned(), reason::NEVER_JOINED.to_owned(), why.to_owned());
    let peer_generation = known.and_then(|known| known.metadata.generation);
    let peer_uid = known.and_then(ResourceExt::uid);
    let absent = BurstRefusal { peer, reason, message, generation: 0, offer: String::new(), peer_generation, peer_uid };
    merged(job, before, [absent])
}

/// What is known of earlier times, and what happened now.
fn merged(job: &FluxJob, before: Option<&JobReturn>, now: impl IntoIterator<Item = BurstRefusal>) -> Option<JobReturn> {
    let asks = asks(job)?;
    let earlier = before.iter().flat_map(|before| &before.evictions).filter(|one| one.offer == asks).cloned();
    let now = now.into_iter().map(|one| BurstRefusal { offer: asks.clone(), ..one });
    let evictions: BTreeMap<String, BurstRefusal> = earlier.chain(now).map(|one| (one.peer.clone(), one)).collect();
    let evictions = evictions.into_values().collect();
    let known = JobReturn { evictions, ..before.cloned().unwrap_or_default() };
    Some(known).filter(|known| *known != JobReturn::default())
}

/// Who threw a part of it out, as long as it asks for the same.
pub(super) fn standing(job: &FluxJob) -> Vec<BurstRefusal> {
    let known =
        job.status.iter().filter_map(|status| status.returned.as_ref()).flat_map(|returned| &returned.evictions);
    let mut known = known.peekable();
    if known.peek().is_none() {
        return Vec::new();
    }
    let asks = asks(job);
    known.filter(|one| Some(&one.offer) == asks.as_ref()).cloned().collect()
}

/// Writes them on the MiniCluster that is made of it: those who make its Bursts read it there.
pub(super) fn write(on: &mut MiniCluster, evictions: &[BurstRefusal]) {
    if !evictions.is_empty() {
        let text = serde_json::to_string(evictions).expect("refusals are plain data with text keys");
        on.annotations_mut().insert(labels::EVICTIONS.to_owned(), text);
    }
}

/// Digest of what a FluxJob asks for, and of the last time that somebody asked to offer it again.
fn asks(job: &FluxJob) -> Option<String> {
    let mut made = job::mini_cluster(job, None).ok()?;
    // It does not travel: who hosts pods says how urgent they are.
    made.spec.pod.priority_class_name = None;
    let text = serde_json::to_vec(&(&made.spec, job.annotations().get(labels::RETRY)));
    let digest = Sha256::digest(text.expect("a spec is plain data with text keys"));
    Some(HEXLOWER.encode(&digest[..8]))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::flux_job;

    fn job(returned: Option<JobReturn>) -> FluxJob {
        let mut job = flux_job(json!({"size": 6}));
        job.status.get_or_insert_default().returned = returned;
        job
    }

    #[test]
    fn a_peer_where_a_part_never_joined_is_remembered_as_one_that_threw_it_out() {
        let mut west = ClusterPeer::new("west", Default::default());
        (west.metadata.generation, west.metadata.uid) = (Some(4), Some("first".to_owned()));
        let returned = of_absent(&job(None), None, ("west", Some(&west)), "too late").unwrap();
        let known = standing(&job(Some(returned)));
        assert_eq!((known.len(), known[0].reason.as_str()), (1, reason::NEVER_JOINED));
        assert_eq!((known[0].peer_generation, known[0].peer_uid.as_deref()), (Some(4), Some("first")));
    }

    /// A Burst with these refusals of what it offers, or of what it offered before.
    fn burst(refusals: &[(&str, &str, bool)]) -> Burst {
        let mut burst = Burst::new("wide-burst-0", tributary_api::burst::BurstSpec { size: 2, ..Default::default() });
        let offered = burst.offered();
        let refusal = |(peer, reason, now): &(&str, &str, bool)| {
            json!({"peer": peer, "reason": reason, "message": "no", "generation": 1, "peerGeneration": 4,
                "offer": if *now { offered.as_str() } else { "before" }})
        };
        let refusals: Vec<Value> = refusals.iter().map(refusal).collect();
        burst.status = serde_json::from_value(json!({"refusals": refusals})).unwrap();
        burst
    }

    #[test]
    fn who_threw_a_part_out_is_remembered_as_long_as_the_job_asks_for_the_same() {
        let refused = [("east", "EvictedByProvider", false), ("north", "TooManyBursts", true)];
        assert_eq!(of_split(&job(None), None, &burst(&refused)), None, "nobody threw out what it offers now");
        let refused = [refused[0], refused[1], ("west", "EvictedByProvider", true)];
        let before = JobReturn { times: 2, ..JobReturn::default() };
        let returned = of_split(&job(None), Some(&before), &burst(&refused)).unwrap();
        let told = |evictions: &[BurstRefusal]| -> Vec<_> {
            evictions.iter().map(|one| (one.peer.clone(), one.peer_generation)).collect()
        };
        assert_eq!((returned.times, told(&returned.evictions)), (2, vec![("west".to_owned(), Some(4))]));

        // Its MiniCluster was made anew, and its Burst says nothing yet, or something newer of one of them.
        let merged = |burst: &Burst| told(&of_split(&job(None), Some(&returned), burst).unwrap().evictions);
        assert_eq!(merged(&burst(&[])), [("west".to_owned(), Some(4))]);
        let mut newer = burst(&[("west", "EvictedByProvider", true), ("south", "EvictedByProvider", true)]);
        newer.status.as_mut().unwrap().refusals[0].peer_generation = Some(5);
        assert_eq!(merged(&newer), [("south".to_owned(), Some(4)), ("west".to_owned(), Some(5))]);

        let known = || job(Some(returned.clone()));
        assert_eq!(told(&standing(&known())), [("west".to_owned(), Some(4))]);
        let mut another = known();
        another.spec.priority_class_name = Some("high".into());
        another.spec.ttl_after_finished = Some(tributary_api::duration::Lasting::of_seconds(60));
        assert_eq!(standing(&another).len(), 1, "what is sent is the same");
        another.spec.size = 7;
        assert_eq!(standing(&another), []);
        let mut retried = known();
        retried.annotations_mut().insert(labels::RETRY.to_owned(), "now".to_owned());
        assert_eq!(standing(&retried), []);
        let again = of_split(&retried, retried.status.as_ref().unwrap().returned.as_ref(), &burst(&refused));
        retried.status.get_or_insert_default().returned = again;
        assert_eq!(standing(&retried).len(), 1, "that was heard");
    }
}
