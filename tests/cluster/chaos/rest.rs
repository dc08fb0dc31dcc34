//! What is not as it should be, once faults are over.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::flux_job::{FluxJob, JobPhase};
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels::condition::CONNECTED;
use tributary::api::labels::{self, manager};
use tributary::api::minicluster::{MiniCluster, Phase};
use tributary_sandbox::annotations;

use super::driver::{Wanted, name_of};
use super::eyes::{Eyes, Story, everything};
use super::ground::{Ground, is_job, pairs};
use super::oracle::{is_left, lost_of};
use super::{CLUSTERS, JOBS, NAMESPACE, QUEUE, ROOTS};

/// What one cluster has.
struct Had {
    /// With their specs as they are stored.
    roots: Vec<(MiniCluster, Value)>,
    jobs: Vec<(FluxJob, Value)>,
    bursts: Vec<Burst>,
    hosted: Vec<HostedBurst>,
}

/// An object as users know it, and its spec as it is stored.
fn read<K: kube::Resource + DeserializeOwned>(object: DynamicObject) -> Option<(K, Value)> {
    let spec = object.data["spec"].clone();
    Some((object.try_parse().ok()?, spec))
}

/// What differs from what users want.
pub(super) async fn troubles(ground: &Ground, wanted: &BTreeMap<(usize, &'static str), Wanted>) -> Vec<String> {
    let mut all = Vec::new();
    for site in &ground.sites {
        let everything = ListParams::default();
        let (roots, jobs) = (site.of_users(ROOTS[0]), site.of_users(JOBS[0]));
        let (bursts, hosted) = (Api::all(site.client().clone()), Api::all(site.client().clone()));
        let lists = tokio::try_join!(
            roots.list(&everything),
            jobs.list(&everything),
            bursts.list(&everything),
            hosted.list(&everything),
        );
        match lists {
            Ok((roots, jobs, bursts, hosted)) => all.push(Had {
                roots: roots.items.into_iter().filter_map(read).collect(),
                jobs: jobs.items.into_iter().filter_map(read).collect(),
                bursts: bursts.items,
                hosted: hosted.items,
            }),
            Err(error) => return vec![error.to_string()],
        }
    }
    let mut troubles = ground.apart().await;
    for ((cluster, root), wanted) in wanted {
        let name = name_of(*cluster, root);
        if is_job(root) {
            let found = all[*cluster].jobs.iter().find(|(object, _)| object.name_any() == name);
            let told = found.map_or(Some("it is not there".to_owned()), |(job, spec)| of_job(job, spec, wanted));
            troubles.extend(told.into_iter().map(|told| format!("{}/{name}: {told}", CLUSTERS[*cluster])));
            continue;
        }
        let found = all[*cluster].roots.iter().find(|(object, _)| object.name_any() == name);
        let told = found.map_or(vec!["it is not there".to_owned()], |found| of_root(&all, *cluster, found, wanted));
        troubles.extend(told.into_iter().map(|told| format!("{}/{name}: {told}", CLUSTERS[*cluster])));
    }
    let uids: BTreeSet<&String> =
        all.iter().flat_map(|had| &had.bursts).filter_map(|burst| burst.metadata.uid.as_ref()).collect();
    for (cluster, had) in all.iter().enumerate() {
        let orphans = had.hosted.iter().filter(|hosted| !uids.contains(&hosted.spec.burst_uid));
        troubles.extend(orphans.map(|hosted| format!("{}: nobody has {}", CLUSTERS[cluster], hosted.name_any())));
    }
    troubles
}

fn of_job(job: &FluxJob, spec: &Value, wanted: &Wanted) -> Option<String> {
    let status = job.status.clone().unwrap_or_default();
    let ended = status.phase == JobPhase::Finished;
    lost_of(&wanted.spec, spec, "spec").or_else(|| (!ended).then(|| format!("it has not ended: {status:?}")))
}

/// The commands of all FluxJobs that run come to their end.
pub(super) async fn end_jobs(ground: &Ground) {
    for site in &ground.sites {
        let pods: Api<Pod> = Api::namespaced(site.client().clone(), QUEUE);
        let leads = ListParams::default().labels(&format!("{}=0", labels::kubernetes::COMPLETION_INDEX));
        for pod in pods.list(&leads).await.into_iter().flatten() {
            let job = pod.labels().get(labels::kubernetes::JOB_NAME).map(String::as_str).unwrap_or_default();
            // A broker of a burst does not end by itself.
            if job.contains("-burst-") || pod.annotations().contains_key(annotations::EXIT) {
                continue;
            }
            let patch = Patch::Merge(json!({"metadata": {"annotations": {annotations::EXIT: "0"}}}));
            drop(pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await);
        }
    }
}

fn of_root(all: &[Had], cluster: usize, (object, spec): &(MiniCluster, Value), wanted: &Wanted) -> Vec<String> {
    let (name, status) = (object.name_any(), object.status.clone().unwrap_or_default());
    let mut told: Vec<String> = lost_of(&wanted.spec, spec, "spec").into_iter().collect();
    let of_root = |hosted: &&HostedBurst| Some(&hosted.spec.root.uid) == object.metadata.uid.as_ref();
    let is_over = wanted.may_be_over && status.phase == Some(Phase::Succeeded);
    if is_over || object.spec.suspend {
        let hosted = all.iter().flat_map(|had| &had.hosted).filter(of_root);
        told.extend(hosted.map(|hosted| format!("{} is still hosted", hosted.name_any())));
        return told;
    }
    if status.ready != object.spec.size {
        told.push(format!("{:?} of {:?} brokers are ready: {:?}", status.ready, object.spec.size, status.conditions));
    }
    let bursts = all[cluster].bursts.iter();
    let own: Vec<_> = bursts.filter(|burst| burst.owner_references().iter().any(|owner| owner.name == name)).collect();
    let slots = object.spec.flux.bursting.clusters.len();
    if own.len() != slots {
        told.push(format!("{} of {slots} bursts are there", own.len()));
    }
    for burst in own {
        let status = burst.status.clone().unwrap_or_default();
        let hosted: Vec<_> = all.iter().flat_map(|had| &had.hosted).filter(of_root).collect();
        let of_slot = hosted.iter().filter(|hosted| hosted.spec.slot == burst.spec.slot).count();
        let ready = status.phase == BurstPhase::Ready && status.ready_brokers == burst.spec.size;
        if !ready || of_slot != 1 {
            told.push(format!("{} is hosted {of_slot} times, {status:?}", burst.name_any()));
        }
    }
    told
}

/// Users ask again for what owners have thrown out.
pub(super) async fn retry(ground: &Ground, word: u64) {
    for site in &ground.sites {
        let all: Api<Burst> = Api::all(site.client().clone());
        for burst in all.list(&ListParams::default()).await.into_iter().flatten() {
            let status = burst.status.clone().unwrap_or_default();
            let thrown_out = status.refusals.iter().any(|refusal| refusal.reason == "EvictedByProvider");
            if !thrown_out || status.peer.is_some() {
                continue;
            }
            let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::RETRY: word.to_string()}}}));
            let params = PatchParams { field_manager: Some(manager::AGENTCTL.into()), ..PatchParams::default() };
            let bursts: Api<Burst> = Api::namespaced(site.client().clone(), &burst.namespace().unwrap_or_default());
            drop(bursts.patch(&burst.name_any(), &params, &patch).await);
        }
    }
}

/// Owners do what the ClusterPeer says: a cluster that has replaced its authority while its own ClusterPeer of another one
/// was away has not told that one.
pub(super) async fn link_again(ground: &Ground, story: &Story) {
    for (from, to) in pairs() {
        let Ok(peer) = ground.sites[from].peers().get(CLUSTERS[to]).await else { continue };
        let conditions = peer.status.unwrap_or_default().conditions;
        if !conditions.iter().any(|one| one.type_ == CONNECTED && one.reason == "UntrustedCertificate") {
            continue;
        }
        for (from, to) in [(from, to), (to, from)] {
            if ground.befriend(from, to).await.is_ok() {
                story.say(format!("{}: {} is linked again", CLUSTERS[from], CLUSTERS[to]));
            }
        }
    }
}

/// What is left of anything, in any cluster.
pub(super) async fn left(ground: &Ground) -> Vec<String> {
    let mut left = Vec::new();
    for (cluster, site) in ground.sites.iter().enumerate() {
        match everything(site.client()).await {
            Ok(all) => {
                let all = all.iter().filter_map(|object| is_left(&[NAMESPACE, QUEUE], object));
                left.extend(all.map(|object| format!("{}: {object}", CLUSTERS[cluster])));
            }
            Err(error) => left.push(format!("{}: {error}", CLUSTERS[cluster])),
        }
    }
    left
}

/// No object that is there at the end, and no line that an agent wrote, has a secret key.
pub(super) async fn nothing_leaked(ground: &Ground, eyes: &Eyes) -> Result<(), String> {
    for (cluster, site) in ground.sites.iter().enumerate() {
        let all: Vec<Value> = everything(site.client()).await.map_err(|error| error.to_string())?;
        if let Some(found) = all.iter().find_map(|object| Some((eyes.look_again(object)?, object))) {
            return Err(format!("{}: {} is in {}", CLUSTERS[cluster], found.0, found.1));
        }
        for agent in &site.agents {
            let log = agent.log_text();
            if let Some(whose) = eyes.key_in(&log) {
                return Err(format!("{whose} is in the log of an agent of {}", CLUSTERS[cluster]));
            }
            // The test that stands for an agent's program fails if the agent ends with an error: Kubernetes starts it
            // again.
            let panics = |line: &&str| line.contains("panicked at") && !line.contains("panicked at tests/");
            if let Some(line) = log.lines().find(panics) {
                return Err(format!("an agent of {}: {line}", CLUSTERS[cluster]));
            }
        }
    }
    Ok(())
}
