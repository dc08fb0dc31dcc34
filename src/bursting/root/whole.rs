//! A FluxJob that is sent to a peer as a whole: its Burst. Pure.
//!
//! From there on it is a burst like any other, with a rank map of its own in which it is slot 0: placed, offered, admitted,
//! leased and released by the same rules. Its owner is the FluxJob, so it ends with that.

use kube::ResourceExt;
use serde_json::{Value, json};
use tributary_api::burst::{Burst, BurstSpec};
use tributary_api::duration::Lasting;
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::Overflow;
use tributary_api::minicluster::MiniCluster;
use tributary_api::{labels, names};
use tributary_contract::Leave;
use tributary_render::rank_map::rank_map_of;

use super::offer;
use crate::provider::materialize::whole_spec;
use crate::template::{self, BurstTemplate};
use crate::timing::Times;

/// The Burst of a FluxJob that asks for `wanted`.
///
/// # Errors
/// It cannot be sent: something of it would not arrive, or cannot be made anywhere.
pub fn burst(job: &FluxJob, wanted: &MiniCluster, overflow: &Overflow, times: &Times) -> Result<Burst, String> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let slot = names::sent(name, uid);
    names::validate("MiniCluster", &slot).map_err(|error| error.to_string())?;
    let mut there = wanted.clone();
    there.metadata.name = Some(slot.clone());
    let map = rank_map_of(&there).map_err(|problems| problems.to_string())?;
    let template = BurstTemplate::of_whole(&wanted.spec);
    if let Some(field) = left_behind(wanted, &template, times.drain.into()) {
        return Err(format!("{field} does not travel to a peer"));
    }
    let template = template.to_json();
    // What a peer refuses anyway might not fit the Burst either, and then nobody could say so.
    BurstTemplate::parse(&template).map_err(|error| error.to_string())?;
    let own = map.root();
    let spec = BurstSpec {
        root: name.to_owned(),
        slot: slot.clone(),
        size: own.max_size,
        max_size: own.max_size,
        cores: own.cores,
        gpus: own.gpus,
        peers: overflow.peers.clone(),
        selector: overflow.selector.clone().unwrap_or_default(),
        prefer: overflow.prefer(),
        incarnation: uid.to_owned(),
        rank_map: map.to_canonical(),
        rank_map_digest: map.digest().to_string(),
        credential_digest: Leave::of(uid).digest(),
        whole: true,
        template,
        lease: times.lease.into(),
        drain: times.drain.into(),
        ..BurstSpec::default()
    };
    let returned = job.status.as_ref().and_then(|status| status.returned.clone()).unwrap_or_default();
    // Whoever asked its last Burst to be offered again has had that; what was refused since then was refused.
    let retry = job.annotations().get(labels::RETRY).cloned().or(returned.retry);
    let annotations = retry.map(|retry| (labels::RETRY.to_owned(), retry)).into_iter().collect();
    let metadata = offer::metadata(job, labels::FLUX_JOB, names::sent_burst(name), &slot, annotations);
    let mut burst = Burst { metadata, spec, status: None };
    let offered = burst.offered();
    burst.spec.evictions = returned.evictions.into_iter().filter(|eviction| eviction.offer == offered).collect();
    Ok(burst)
}

/// The first field of a MiniCluster's spec that is not in what a peer would make of the template.
fn left_behind(wanted: &MiniCluster, template: &BurstTemplate, drain: Lasting) -> Option<String> {
    let json_of = |spec: &tributary_api::minicluster::MiniClusterSpec| {
        serde_json::to_value(spec).expect("a spec is plain data with text keys")
    };
    let size = u32::try_from(wanted.spec.size()).unwrap_or(0);
    let mut own = wanted.spec.clone();
    // They are for the queue here: peers count GPUs by the names that they know, and say themselves how urgent pods are.
    own.pod.annotations.remove(labels::GPU_RESOURCE);
    own.pod.priority_class_name = None;
    let (mut given, mut made) = (json_of(&own), json_of(&whole_spec(template.clone(), size, drain)));
    if let Some(flux) = given.get_mut("flux").and_then(Value::as_object_mut) {
        // Whoever is alone has no other version to agree with; and the older word for a time-out is read as the newer.
        flux.remove("version");
        flux.remove("connextTimeout");
    }
    // A peer is told when it lets go by the Burst, not by the template.
    if wanted.spec.flux.drain_seconds.is_some_and(|own| i64::from(own) != drain.seconds) {
        return Some("spec.miniCluster.flux.drainSeconds".to_owned());
    }
    // What nothing of is left is named by its first field.
    for group in ["flux", "network", "pod"] {
        if given.get(group).is_some() && made.get(group).is_none() {
            made[group] = json!({});
        }
    }
    template::unknown(&given, &made, "spec.miniCluster".to_owned())
}

#[cfg(test)]
mod tests {
    use tributary_api::burst::BurstRefusal;
    use tributary_api::flux_job::JobReturn;
    use tributary_flux::RankMap;

    use super::*;

    fn job() -> FluxJob {
        serde_json::from_value(json!({
            "apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob",
            "metadata": {"name": "lammps", "namespace": "hpc", "uid": "0f1e2d3c-4b5a"}, "spec": {},
        }))
        .unwrap()
    }

    fn wanted(more: Value) -> MiniCluster {
        let mut spec = json!({"size": 4, "tasks": 8, "deadlineSeconds": 600,
            "containers": [{"runFlux": true, "image": "lammps:1", "command": "lmp -in in.reaxff", "cores": 2}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": {"name": "lammps", "namespace": "hpc"}, "spec": spec,
        }))
        .unwrap()
    }

    fn sent(more: Value) -> Result<Burst, String> {
        let overflow = Overflow { peers: vec!["west".into()], ..Overflow::default() };
        burst(&job(), &wanted(more), &overflow, &Times::default())
    }

    #[test]
    fn the_burst_of_a_job_is_all_of_an_instance() {
        let burst = sent(json!({"flux": {"optionFlags": "-v", "version": "0.75.0"}})).unwrap();
        insta::assert_json_snapshot!(burst);
        let map = RankMap::parse_canonical(&burst.spec.rank_map).unwrap();
        assert_eq!((map.root().name.as_str(), map.bursts().len()), (burst.spec.slot.as_str(), 0));
    }

    #[test]
    fn who_threw_it_out_is_not_asked_again_before_something_changes() {
        let overflow = Overflow { peers: vec!["west".into()], ..Overflow::default() };
        let sent = |job: &FluxJob, spec: Value| burst(job, &wanted(spec), &overflow, &Times::default()).unwrap();
        let (mut job, same) = (job(), || json!({}));
        let first = sent(&job, same());
        assert_eq!((first.spec.evictions.len(), &first.metadata.annotations), (0, &None));
        let eviction = |burst: &Burst| BurstRefusal {
            peer: "west".into(),
            reason: "EvictedByProvider".into(),
            message: "its HostedBurst was deleted".into(),
            generation: 1,
            offer: burst.offered(),
            peer_generation: Some(4),
            peer_uid: None,
        };
        let returned = JobReturn { times: 1, evictions: vec![eviction(&first)], ..JobReturn::default() };
        job.status.get_or_insert_default().returned = Some(returned.clone());
        let again = sent(&job, same());
        assert_eq!(again.spec.evictions, [eviction(&first)]);
        assert_eq!(again.offered(), first.offered(), "that it was thrown out is no other offer");
        assert!(sent(&job, json!({"deadlineSeconds": 60})).spec.evictions.is_empty(), "another job");
        job.metadata.annotations = Some([(labels::RETRY.to_owned(), "now".to_owned())].into());
        let retried = sent(&job, same());
        assert_eq!((retried.spec.evictions.len(), retried.annotations()[labels::RETRY].as_str()), (0, "now"));
        // Thrown out after somebody had asked its Burst to be offered again: that was heard, and is not heard twice.
        job.metadata.annotations = None;
        let (evictions, retry) = (vec![eviction(&retried)], Some("now".to_owned()));
        job.status.get_or_insert_default().returned = Some(JobReturn { evictions, retry, ..returned });
        assert_eq!(sent(&job, same()).spec.evictions.len(), 1);
    }

    #[test]
    fn what_would_not_arrive_keeps_a_job_at_home() {
        for (more, field) in [
            (json!({"services": [{"name": "db", "image": "postgres"}]}), "spec.miniCluster.services"),
            (json!({"pod": {"labels": {"team": "a"}}}), "spec.miniCluster.pod.labels"),
            (json!({"pod": {"annotations": {"team": "a"}}}), "spec.miniCluster.pod.annotations"),
            (json!({"volumes": {"data": {"path": "/mnt/data"}}}), "spec.miniCluster.volumes"),
            (json!({"interactive": true}), "spec.miniCluster.interactive"),
            (json!({"flux": {"brokerConfig": "[x]"}}), "spec.miniCluster.flux.brokerConfig"),
        ] {
            assert_eq!(sent(more).unwrap_err(), format!("{field} does not travel to a peer"));
        }
        let large = json!({"containers": [{"image": "lammps:1", "command": "x".repeat(300 << 10), "cores": 2}]});
        assert!(sent(large).unwrap_err().starts_with("the template has 30"));
        let gpus = json!({"pod": {"annotations": {(labels::GPU_RESOURCE): "example.com/wafer"}}});
        assert!(sent(gpus).is_ok(), "how they are counted here");
        let urgent = sent(json!({"pod": {"priorityClassName": "urgent"}})).unwrap();
        assert!(!urgent.spec.template.to_string().contains("urgent"), "who hosts pods says how urgent they are");
        // What all bursts of this cluster have is no other.
        let drain = |seconds: u64| sent(json!({"flux": {"drainSeconds": seconds}}));
        let own = Times::default().drain.as_secs();
        assert!(drain(own).is_ok());
        assert_eq!(drain(own + 1).unwrap_err(), "spec.miniCluster.flux.drainSeconds does not travel to a peer");
    }
}
