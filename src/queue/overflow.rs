//! FluxJobs that do not fit here: a part of their brokers starts, the others are a burst onto a peer. Pure, but for the port
//! to whoever knows the peers.
//!
//! The decision is in the FluxJob's status before anything is made of it, and stays: what becomes of the burst from then on,
//! a peer that refuses or vanishes included, goes by the rules of any burst.

use std::sync::Arc;

use crate::api::flux_job::{FluxJob, JobSplit};
use crate::api::flux_setup::{FluxSetupSpec, Overflow, OverflowPolicy};
use crate::api::minicluster::{BurstCluster, MiniCluster, MiniClusterSpec};
use crate::api::selector::PeerSelector;

use super::room::Room;

/// Brokers that a peer shall take.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Namespace of their FluxJob.
    pub namespace: String,
    /// How many.
    pub brokers: u32,
    /// What each takes.
    pub each: Room,
    /// Peers that come into question, best first.
    pub peers: Vec<String>,
    /// By labels of the ClusterPeers; counts if none is named.
    pub selector: PeerSelector,
}

/// Which peer has room for a part, besides the parts that are on their way there; `None`: nobody, as far as is known.
pub type Peers = Arc<dyn Fn(&Part, &[(String, Part)]) -> Option<String> + Send + Sync>;

/// Whether a FluxJob may be split under these rules. One that says itself which brokers are where is left as it is.
pub fn may_split(setup: &FluxSetupSpec, job: &FluxJob) -> bool {
    let own = |path: &[&str]| {
        let mut at = job.spec.mini_cluster.get(path[0]);
        for key in &path[1..] {
            at = at.and_then(|value| value.get(key));
        }
        at.is_some_and(|value| !value.is_null())
    };
    let says_where = own(&["flux", "bursting", "clusters"])
        || own(&["flux", "bursting", "leadBroker"])
        || own(&["flux", "bursting", "hostlist"])
        || own(&["minSize"])
        || own(&["maxSize"]);
    setup.overflow.policy == OverflowPolicy::Split && job.spec.allow_burst && job.spec.size > 1 && !says_where
}

/// The part of `brokers` of a FluxJob, each of which takes `each`.
pub fn part(overflow: &Overflow, namespace: &str, brokers: u32, each: Room) -> Part {
    Part {
        namespace: namespace.to_owned(),
        brokers,
        each,
        peers: overflow.peers.clone(),
        selector: overflow.selector.clone().unwrap_or_default(),
    }
}

/// Makes the MiniCluster of a split FluxJob of its MiniCluster: its command spans both parts.
pub fn apply(split: &JobSplit, overflow: &Overflow, whole: MiniCluster) -> MiniCluster {
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let cluster = BurstCluster {
        size: Some(count(split.away)),
        peers: overflow.peers.clone(),
        selector: overflow.selector.clone(),
        ..BurstCluster::default()
    };
    let mut made = whole;
    made.spec = MiniClusterSpec { size: Some(count(split.local)), ..made.spec };
    made.spec.flux.bursting.clusters = vec![cluster];
    made.spec.flux.bursting.span = true;
    made
}

/// How the part elsewhere stands, by the status of its MiniCluster.
pub fn seen(split: &JobSplit, mini_cluster: &MiniCluster) -> JobSplit {
    let bursts = mini_cluster.status.iter().flat_map(|status| &status.bursts);
    match bursts.into_iter().next() {
        Some(burst) => {
            let peer = burst.peer.clone().or_else(|| split.peer.clone());
            JobSplit { peer, phase: burst.phase.clone(), ..split.clone() }
        }
        None => split.clone(),
    }
}

/// Where the brokers of a split FluxJob are, for people.
pub fn whereabouts(split: &JobSplit) -> String {
    let JobSplit { local, away, peer, phase } = split;
    let peer = peer.as_deref().unwrap_or("no peer yet");
    let phase = if phase.is_empty() { String::new() } else { format!(" ({phase})") };
    format!("{local} brokers here, {away} on {peer}{phase}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(spec: serde_json::Value) -> FluxJob {
        FluxJob::new("lammps", serde_json::from_value(spec).unwrap())
    }

    fn setup(policy: &str) -> FluxSetupSpec {
        serde_json::from_value(json!({"overflow": {"policy": policy, "peers": ["west"]}})).unwrap()
    }

    #[test]
    fn only_who_may_burst_and_says_nothing_of_places_is_split() {
        let may = |policy, spec| may_split(&setup(policy), &job(spec));
        assert!(may("Split", json!({"size": 4, "allowBurst": true})));
        assert!(!may("Never", json!({"size": 4, "allowBurst": true})));
        assert!(!may("Split", json!({"size": 4})));
        assert!(!may("Split", json!({"size": 1, "allowBurst": true})), "there is nothing to split");
        for own in [json!({"flux": {"bursting": {"clusters": [{"size": 1}]}}}), json!({"maxSize": 8})] {
            assert!(!may("Split", json!({"size": 4, "allowBurst": true, "miniCluster": own})));
        }
        let unknown = serde_json::from_value::<FluxSetupSpec>(json!({"overflow": {"policy": "Whole"}}));
        assert!(unknown.unwrap_err().to_string().contains("expected `Never` or `Split`"));
    }

    #[test]
    fn a_split_mini_cluster_has_its_lead_here_and_its_command_everywhere() {
        let whole: MiniCluster = serde_json::from_value(json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {"name": "lammps"},
            "spec": {"size": 8, "containers": [{"cores": 2}]},
        }))
        .unwrap();
        let split = JobSplit { local: 3, away: 5, ..JobSplit::default() };
        let made = apply(&split, &setup("Split").overflow, whole);
        let flux = serde_json::to_value(&made.spec.flux).unwrap();
        assert_eq!(made.spec.size(), 3);
        assert_eq!(flux, json!({"bursting": {"clusters": [{"size": 5, "peers": ["west"]}], "span": true}}));
        assert_eq!(whereabouts(&split), "3 brokers here, 5 on no peer yet");
        let on_west = JobSplit { peer: Some("west".into()), phase: "Ready".into(), ..split };
        assert_eq!(whereabouts(&on_west), "3 brokers here, 5 on west (Ready)");
    }
}
