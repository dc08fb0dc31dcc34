//! What must never happen, by the rows of the table of dangers in the design (section 2). Looked at after every step, and at
//! every write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::{labels, names};
use tributary::flux::Certificate;
use tributary_cluster::testing::RequestInfo;

use crate::cluster::{Cluster, USERS, index_of, is_over, put};

/// The name whose objects are others' in every cluster.
pub const FOREIGN: &str = "sea";

/// What brokers run as, from their first second to their last.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Instance {
    root: String,
    incarnation: String,
    slot: String,
    digest: String,
}

#[derive(Default)]
pub struct Invariants {
    /// By UID of a HostedBurst.
    hosted: BTreeMap<String, Instance>,
    /// UIDs of MiniClusters by their HostedBurst.
    mini_clusters: BTreeMap<String, String>,
    /// By UID of a Job: its MiniCluster, and the digest of its certificate.
    jobs: BTreeMap<String, (String, Option<String>)>,
    /// Jobs that ended, by UID of their MiniCluster.
    ended: BTreeMap<String, String>,
    /// Foreign objects, as they are.
    foreign: BTreeMap<String, Vec<Option<String>>>,
    seen: Vec<u64>,
    secrets: Secrets,
}

impl Invariants {
    /// Notes the certificates that are written, for [`Self::check`]. It looks at every write of a cluster.
    pub fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }

    pub fn check(&mut self, clusters: &[Cluster]) -> Result<(), String> {
        let versions: Vec<u64> = clusters.iter().map(|cluster| cluster.server.version()).collect();
        if versions == self.seen {
            return Ok(());
        }
        self.seen = versions;
        let mut running: BTreeMap<(String, String, String), String> = BTreeMap::new();
        for cluster in clusters {
            self.learn(cluster)?;
            self.the_name_of_others_is_left_alone(cluster)?;
            self.two_peers_never_run_the_same_ranks(cluster, &mut running)?;
        }
        self.secrets.told()
    }

    fn learn(&mut self, cluster: &Cluster) -> Result<(), String> {
        for hosted in cluster.server.list::<HostedBurst>() {
            let (uid, spec) = (hosted.uid().unwrap_or_default(), hosted.spec);
            let instance = Instance {
                root: spec.root.uid,
                incarnation: spec.root.incarnation,
                slot: spec.slot,
                digest: spec.credential_digest,
            };
            self.hosted.insert(uid, instance);
        }
        for object in cluster.server.list::<MiniCluster>() {
            for owner in object.owner_references() {
                self.mini_clusters.insert(object.uid().unwrap_or_default(), owner.uid.clone());
            }
        }
        for job in cluster.jobs().iter() {
            let (uid, name) = (job.uid().unwrap_or_default(), job.name_any());
            let Some(owner) = job.owner_references().iter().find(|owner| owner.kind == "MiniCluster") else { continue };
            let digest = job.annotations().get(labels::CREDENTIAL_DIGEST).cloned();
            self.jobs.insert(uid.clone(), (owner.uid.clone(), digest));
            let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let mut over = conditions.filter(|one| ["Complete", "Failed"].contains(&&*one.type_));
            // "Succeeded pods lose ranks for good": a run that ended is not repeated.
            match self.ended.get(&owner.uid) {
                Some(ended) if *ended != uid => {
                    return Err(format!("{}: {name} ran to its end, and is run again", cluster.name));
                }
                None if over.any(|one| one.status == "True") => drop(self.ended.insert(owner.uid.clone(), uid)),
                _ => {}
            }
        }
        Ok(())
    }

    /// "Two peers run the same ranks", and "boot files change under running brokers": their certificate.
    fn two_peers_never_run_the_same_ranks(
        &self,
        cluster: &Cluster,
        running: &mut BTreeMap<(String, String, String), String>,
    ) -> Result<(), String> {
        let mut ranks = BTreeSet::new();
        for pod in cluster.pods().iter().filter(|pod| !is_over(pod)) {
            let Some(owner) = pod.owner_references().iter().find(|owner| owner.kind == "Job") else { continue };
            let Some((mini_cluster, digest)) = self.jobs.get(&owner.uid) else { continue };
            if !ranks.insert((owner.name.clone(), index_of(pod))) {
                return Err(format!("{}: {} and another pod have one rank", cluster.name, pod.name_any()));
            }
            let held = cluster.server.get::<Secret>(USERS, &names::curve(&owner.name));
            let held = held.as_ref().and_then(digest_of);
            let instance = self.mini_clusters.get(mini_cluster).and_then(|hosted| self.hosted.get(hosted));
            let wanted = instance.map(|instance| instance.digest.clone()).or_else(|| digest.clone());
            if let (Some(wanted), Some(held)) = (&wanted, &held)
                && wanted != held
                && pod.metadata.deletion_timestamp.is_none()
            {
                return Err(format!("{}: brokers of {} run with another certificate", cluster.name, owner.name));
            }
            let Some(Instance { root, incarnation, slot, .. }) = instance.cloned() else { continue };
            let other = running.insert((root, incarnation, slot.clone()), cluster.name.clone());
            if let Some(other) = other.filter(|other| *other != cluster.name) {
                return Err(format!("{slot} runs in {other} and in {}", cluster.name));
            }
        }
        Ok(())
    }

    /// "Something of others is overwritten or deleted".
    fn the_name_of_others_is_left_alone(&mut self, cluster: &Cluster) -> Result<(), String> {
        let server = &cluster.server;
        let map = server.get::<ConfigMap>(USERS, &names::entrypoint(FOREIGN)).and_then(|map| map.resource_version());
        let secret = server.get::<Secret>(USERS, &names::curve(FOREIGN)).and_then(|secret| secret.resource_version());
        let found = vec![map, secret];
        let known = self.foreign.entry(cluster.name.clone()).or_insert_with(|| found.clone());
        if *known == found && found.iter().all(Option::is_some) {
            return Ok(());
        }
        Err(format!("{}: an object of others was changed: {known:?} is {found:?}", cluster.name))
    }
}

/// Objects with names that a MiniCluster [`FOREIGN`] would need.
pub fn plant(cluster: &Cluster) {
    let named = |name: String| json!({"name": name, "namespace": USERS});
    put::<ConfigMap>(&cluster.server, json!({"metadata": named(names::entrypoint(FOREIGN)), "data": {"a": "b"}}));
    put::<Secret>(&cluster.server, json!({"metadata": named(names::curve(FOREIGN)), "data": {"a": "Yg=="}}));
}

fn digest_of(secret: &Secret) -> Option<String> {
    let text = String::from_utf8(secret.data.as_ref()?.get("curve.cert")?.0.clone()).ok()?;
    Certificate::parse(&text).ok().map(|certificate| certificate.digest().to_string())
}

/// "Secrets leak": the secret keys of certificates that were written, and where else they were found.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Mutex<(BTreeSet<String>, Option<String>)>>);

impl Secrets {
    /// Looks at an object that is about to be stored.
    pub fn look(&self, cluster: &str, info: &RequestInfo, object: &Value) {
        let (keys, found) = &mut *self.0.lock().unwrap();
        if info.resource == "secrets" {
            let secret: Option<Secret> = serde_json::from_value(object.clone()).ok();
            let data = secret.and_then(|secret| secret.data?.get("curve.cert").map(|value| value.0.clone()));
            let text = data.and_then(|data| String::from_utf8(data).ok()).unwrap_or_default();
            let line = text.lines().find_map(|line| line.trim().strip_prefix("secret-key = "));
            keys.extend(line.map(|key| key.trim_matches('"').to_owned()));
            return;
        }
        let strings = |key: &String| holds(object, key);
        if keys.iter().any(strings) {
            *found = Some(format!("{cluster}: a secret key is in {} {}", info.resource, info.name));
        }
    }

    fn told(&self) -> Result<(), String> {
        self.0.lock().unwrap().1.clone().map_or(Ok(()), Err)
    }

    /// How many certificates were seen.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().0.len()
    }
}

fn holds(value: &Value, key: &str) -> bool {
    match value {
        Value::String(text) => text.contains(key),
        Value::Array(items) => items.iter().any(|item| holds(item, key)),
        Value::Object(fields) => fields.values().any(|field| holds(field, key)),
        _ => false,
    }
}
