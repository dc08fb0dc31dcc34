//! What must never happen, by the rows of the table of dangers in the design (section 2). Looked at after every step, and at
//! every write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{HostedBurst, HostedBurstSpec};
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::api::provisioning_request::CONSUME;
use tributary::api::{labels, names};
use tributary::clock::Mono;
use tributary::flux::Certificate;
use tributary_api_server::RequestInfo;

use crate::cluster::{Cluster, USERS, index_of, is_over, job_of, put};

/// The name whose objects are others' in every cluster.
pub const FOREIGN: &str = "sea";

/// What brokers run as, from their first second to their last.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Instance {
    root: String,
    incarnation: String,
    slot: String,
    digest: String,
    burst: String,
    tunnel: bool,
}

/// What the world knows of a pair of clusters that no agent can know: root, provider.
pub type Contacts = BTreeMap<(String, String), Contact>;

#[derive(Clone, Copy, Debug)]
pub struct Contact {
    /// Since when the two cannot hear of each other.
    pub lost: Mono,
    /// When something was wrong with one of them or between them.
    pub ill: Mono,
    /// When nothing of that was left.
    pub well: Mono,
    /// Since when nothing is wrong with the provider.
    pub healthy: Mono,
    /// Since when its wall clock is right.
    pub right: Mono,
}

/// Who passes the ends of tunnels at their roots: peer, UID of the Burst, incarnation.
pub type LetIn = BTreeSet<(String, String, String)>;

/// How long a healthy provider may take to end brokers whose lease is over.
const SLACK: Duration = Duration::from_secs(45);

/// How much later than it happened a provider may date a loss.
const DATED: Duration = Duration::from_secs(10);

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
    /// Boot files by UID of their Job.
    boot_files: BTreeMap<String, Option<BTreeMap<String, String>>>,
    /// HostedBursts that began to end, by UID.
    ending: BTreeSet<String>,
    /// HostedBursts that had a MiniCluster, by UID.
    made: BTreeSet<String>,
    /// HostedBursts whose lease was over, by UID.
    lapsed: BTreeSet<String>,
    /// Who has no ClusterPeer of whom.
    unknown: BTreeSet<(String, String)>,
    /// HostedBursts that may be taken for such, by UID.
    may_lapse: BTreeSet<String>,
    /// When roots did not want anything of a provider last, by both: they may have said so, and changed their mind.
    left: BTreeMap<(String, String), Mono>,
    /// HostedBursts that bring nodes, by UID.
    scaling: BTreeMap<String, Scaling>,
    /// HostedBursts whose nodes were provisioned, by UID.
    provisioned: BTreeSet<String>,
    /// HostedBursts that their owner deleted, by UID.
    thrown_out: BTreeSet<String>,
    seen: Vec<u64>,
    writes: Writes,
}

/// A burst that brings nodes.
struct Scaling {
    /// Since when its pods can wait for them.
    since: Mono,
    /// Since when all have one, or had one.
    complete: Option<Mono>,
    /// It was given back: not all came.
    is_given_back: bool,
}

impl Invariants {
    /// What looks at every write of a cluster.
    pub fn writes_of(&self, cluster: &str) -> impl FnMut(&RequestInfo, &Value) + Send + use<> {
        let (writes, cluster, mut leader) = (self.writes.clone(), cluster.to_owned(), String::new());
        move |info, object| writes.look(&cluster, &mut leader, info, object)
    }

    /// How many certificates were seen.
    pub fn certificates(&self) -> usize {
        self.writes.0.lock().unwrap().keys.len()
    }

    /// An owner is about to delete it.
    pub fn thrown_out(&mut self, hosted: &HostedBurst) {
        self.thrown_out.extend(hosted.uid());
    }

    pub fn check(
        &mut self,
        clusters: &[Cluster],
        now: Mono,
        contacts: &Contacts,
        let_in: impl Fn() -> LetIn,
    ) -> Result<(), String> {
        clusters.iter().try_for_each(|cluster| self.a_lease_ends(cluster, now, contacts))?;
        clusters.iter().try_for_each(|cluster| self.all_of_its_nodes_come_or_none(cluster, now, contacts))?;
        let versions: Vec<u64> = clusters.iter().map(|cluster| cluster.server.version()).collect();
        if versions == self.seen {
            return Ok(());
        }
        self.seen = versions;
        let (let_in, mut running) = (let_in(), BTreeMap::new());
        for root in clusters {
            let peers = root.server.list::<ClusterPeer>();
            let stays = |name: &String| {
                peers.iter().any(|peer| peer.name_any() == *name && !peer.spec.drain && !is_spent(peer))
            };
            let names = || clusters.iter().map(|cluster| &cluster.name);
            let pair = |name: &String| (root.name.clone(), name.clone());
            self.unknown.retain(|(one, _)| *one != root.name);
            self.unknown.extend(names().filter(|name| !peers.iter().any(|peer| peer.name_any() == **name)).map(pair));
            let left = names().filter(|name| !stays(name));
            self.left.extend(left.map(|name| (pair(name), now)));
        }
        for cluster in clusters {
            self.learn(cluster)?;
            self.the_name_of_others_is_left_alone(cluster)?;
            self.two_peers_never_run_the_same_ranks(cluster, &let_in, &mut running)?;
            self.boot_files_never_change(cluster)?;
            capacity_is_promised_once(cluster)?;
            a_lead_is_never_inside(cluster)?;
            pods_of_peers_have_what_was_allowed(cluster)?;
            self.why_a_burst_ends_is_on_record(cluster)?;
            self.what_is_given_back_leaves_nothing(cluster)?;
            self.no_pods_before_their_nodes_are_provisioned(cluster)?;
            for hosted in cluster.hosted().iter() {
                let Some(root) = clusters.iter().find(|root| root.name == hosted.spec.peer) else { continue };
                let left = self.left.get(&(root.name.clone(), cluster.name.clone()));
                let left = left.is_some_and(|left| now.saturating_since(*left) < DATED);
                self.nothing_ends_without_a_cause((cluster, root), hosted, left)?;
                who_has_the_certificate_is_on_record(cluster, root, hosted)?;
            }
        }
        self.writes.told()
    }

    /// "A restarted provider forgets that a root is gone".
    fn a_lease_ends(&mut self, cluster: &Cluster, now: Mono, contacts: &Contacts) -> Result<(), String> {
        for hosted in cluster.hosted().iter() {
            let Some(contact) = contacts.get(&(hosted.spec.peer.clone(), cluster.name.clone())) else { continue };
            let lease = hosted.spec.lease.duration();
            if contact.right <= contact.lost && now.saturating_since(contact.lost) > lease + DATED {
                self.lapsed.extend(hosted.uid());
            }
            let ways = [(&hosted.spec.peer, &cluster.name), (&cluster.name, &hosted.spec.peer)];
            let unknown = ways.iter().any(|(one, other)| self.unknown.contains(&((*one).clone(), (*other).clone())));
            if unknown || contact.right == now || now.saturating_since(contact.well) + DATED > lease {
                self.may_lapse.extend(hosted.uid());
            }
            let limit = lease + SLACK;
            let over = now.saturating_since(contact.lost) > limit && now.saturating_since(contact.healthy) > SLACK;
            if over && cluster.pods().iter().any(|pod| job_of(pod) == Some(&hosted.spec.slot) && !is_over(pod)) {
                let name = hosted.name_any();
                return Err(format!("{}: {name} runs on {limit:?} after its root was lost", cluster.name));
            }
        }
        Ok(())
    }

    /// "A restarted provider forgets that a root is gone": a burst that ends goes on ending, whatever its agent forgets.
    fn why_a_burst_ends_is_on_record(&mut self, cluster: &Cluster) -> Result<(), String> {
        let objects = cluster.mini_clusters();
        let stays = |object: &&MiniCluster| object.metadata.deletion_timestamp.is_none();
        let owners: BTreeSet<&str> = objects.iter().filter(stays).flat_map(owner_uids).collect();
        for hosted in cluster.hosted().iter() {
            let (uid, name) = (hosted.uid().unwrap_or_default(), hosted.name_any());
            let ends = hosted.metadata.deletion_timestamp.is_some()
                || hosted.status.as_ref().is_some_and(|status| status.draining_since.is_some());
            if owners.contains(&*uid) {
                self.made.insert(uid);
            } else if !ends && self.made.contains(&uid) {
                return Err(format!("{}: {name} ends, and does not say why", cluster.name));
            }
        }
        Ok(())
    }

    /// Half of a burst holds no nodes for long, and what has its nodes is not given back.
    fn all_of_its_nodes_come_or_none(
        &mut self,
        cluster: &Cluster,
        now: Mono,
        contacts: &Contacts,
    ) -> Result<(), String> {
        for hosted in cluster.hosted().iter() {
            let (Some(scale_up), Some(status)) = (&hosted.spec.scale_up, &hosted.status) else { continue };
            let Some(times) = &status.times else { continue };
            if times.provisioned.is_none() && status.provisioning.is_none() {
                continue;
            }
            let Some(contact) = contacts.get(&(hosted.spec.peer.clone(), cluster.name.clone())) else { continue };
            if status.queue.as_ref().is_some_and(|queue| queue.waits_since.is_some()) {
                // It has no pods that could wait.
                self.scaling.remove(&hosted.uid().unwrap_or_default());
                continue;
            }
            let new = Scaling { since: now, complete: None, is_given_back: false };
            let one = self.scaling.entry(hosted.uid().unwrap_or_default()).or_insert(new);
            let (name, wait) = (hosted.name_any(), scale_up.wait.duration());
            let on_node = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            let pods = cluster.pods();
            let own = pods.iter().filter(|pod| job_of(pod) == Some(&hosted.spec.slot)).filter(on_node);
            let bound: BTreeSet<i32> = own.filter_map(index_of).collect();
            let all = (0..hosted.spec.size).all(|index| bound.contains(&i32::try_from(index).unwrap()));
            if one.complete.is_none() && (all || times.scheduled.is_some()) {
                one.complete = Some(now);
            }
            let (lasts, right) = (now.saturating_since(one.since), contact.right <= one.since);
            let healthy = now.saturating_since(contact.healthy) > SLACK;
            if status.draining_since.is_none() {
                if one.complete.is_none() && right && healthy && lasts > wait + SLACK {
                    return Err(format!("{}: {name} waits for nodes for longer than {wait:?}", cluster.name));
                }
            } else if let Some(reason @ ("ScaleUpTimedOut" | "ScaleUpFailed")) = status.draining_reason.as_deref()
                && !one.is_given_back
            {
                one.is_given_back = true;
                if healthy && one.complete.is_some_and(|since| now.saturating_since(since) > SLACK) {
                    return Err(format!("{}: {name} has its nodes, and is given back", cluster.name));
                }
                if right && lasts + DATED < wait && reason == "ScaleUpTimedOut" {
                    return Err(format!("{}: {name} is given back after {lasts:?}", cluster.name));
                }
            }
        }
        Ok(())
    }

    /// Nor does half of a burst run there when all of it runs elsewhere.
    fn what_is_given_back_leaves_nothing(&self, cluster: &Cluster) -> Result<(), String> {
        let there: BTreeSet<String> = cluster.hosted().iter().filter_map(|one| one.uid()).collect();
        let gone = |uid: &&String| {
            let given_back = self.scaling.get(*uid).is_some_and(|one| one.is_given_back);
            given_back && !there.contains(*uid) && !self.thrown_out.contains(*uid)
        };
        for pod in cluster.pods().iter().filter(|pod| !is_over(pod)) {
            let owner = pod.owner_references().iter().find(|owner| owner.kind == "Job");
            let job = owner.and_then(|owner| self.jobs.get(&owner.uid));
            let hosted = job.and_then(|(mini_cluster, _)| self.mini_clusters.get(mini_cluster));
            if hosted.filter(gone).is_some() {
                return Err(format!("{}: {} runs on, and its burst was given back", cluster.name, pod.name_any()));
            }
        }
        // What asks for nodes brings some as long as it is there.
        let asking = cluster.requests();
        let mut owners = asking.iter().flat_map(|one| one.owner_references().iter().map(|owner| &owner.uid));
        match owners.find(gone) {
            Some(_) => Err(format!("{}: nodes are asked for, and their burst was given back", cluster.name)),
            None => Ok(()),
        }
    }

    /// All of a burst gets nodes, or nothing of it is made.
    fn no_pods_before_their_nodes_are_provisioned(&mut self, cluster: &Cluster) -> Result<(), String> {
        for request in cluster.requests().iter() {
            let said = request.status.iter().flat_map(|status| &status.conditions);
            if said.into_iter().any(|one| one.type_ == "Provisioned" && one.status == "True") {
                self.provisioned.extend(request.owner_references().iter().map(|owner| owner.uid.clone()));
            }
        }
        let asks = |made: &&MiniCluster| made.spec.pod.annotations.contains_key(CONSUME);
        let made = cluster.mini_clusters();
        let early = made
            .iter()
            .filter(asks)
            .find(|made| !made.owner_references().iter().any(|o| self.provisioned.contains(&o.uid)));
        match early {
            Some(made) => {
                Err(format!("{}: {} is made before its nodes are provisioned", cluster.name, made.name_any()))
            }
            None => Ok(()),
        }
    }

    /// "Boot files change under running brokers".
    fn boot_files_never_change(&mut self, cluster: &Cluster) -> Result<(), String> {
        for job in cluster.jobs().iter().filter(|job| job.metadata.deletion_timestamp.is_none()) {
            let (Some(uid), name) = (job.uid(), job.name_any()) else { continue };
            let Some(map) = cluster.server.get::<ConfigMap>(USERS, &names::entrypoint(&name)) else { continue };
            let known = self.boot_files.entry(uid).or_insert_with(|| map.data.clone());
            if *known != map.data {
                return Err(format!("{}: the boot files of {name} changed under its Job", cluster.name));
            }
        }
        Ok(())
    }

    /// "A cold cache, a cloned cluster or an impostor deletes bursts", "a restarted provider forgets": what ends here was
    /// given up by its root, or its lease was over.
    fn nothing_ends_without_a_cause(
        &mut self,
        (cluster, root): (&Cluster, &Cluster),
        hosted: &HostedBurst,
        left: bool,
    ) -> Result<(), String> {
        let status = hosted.status.clone().unwrap_or_default();
        let Some(reason) = status.draining_reason.filter(|_| status.draining_since.is_some()) else { return Ok(()) };
        if !self.ending.insert(hosted.uid().unwrap_or_default()) {
            return Ok(());
        }
        let HostedBurstSpec { burst_uid, root: of, .. } = &hosted.spec;
        tracing::info!(cluster = cluster.name, hosted = hosted.name_any(), reason, burst_uid, ?of, "a burst ends");
        if reason == "LeaseExpired" && !hosted.uid().is_some_and(|uid| self.may_lapse.contains(&uid)) {
            return Err(format!("{}: {} ends ({reason}), and its root was there", cluster.name, hosted.name_any()));
        }
        if !["Released", "Replaced"].contains(&&*reason) {
            return Ok(());
        }
        let bursts = root.server.list::<Burst>();
        let burst = bursts.iter().find(|burst| burst.uid().as_ref() == Some(&hosted.spec.burst_uid));
        let wanted = burst.filter(|_| !left).is_some_and(|burst| {
            let status = burst.status.clone().unwrap_or_default();
            let here = status.peer.as_ref() == Some(&cluster.name) && status.held.is_none();
            here && !burst.spec.release
                && burst.metadata.deletion_timestamp.is_none()
                && burst.spec.incarnation == hosted.spec.root.incarnation
        });
        match wanted {
            true => Err(format!("{}: {} ends ({reason}), and its root wants it", cluster.name, hosted.name_any())),
            false => Ok(()),
        }
    }

    fn learn(&mut self, cluster: &Cluster) -> Result<(), String> {
        for hosted in cluster.hosted().iter() {
            let (uid, spec) = (hosted.uid().unwrap_or_default(), hosted.spec.clone());
            let instance = Instance {
                root: spec.root.uid,
                incarnation: spec.root.incarnation,
                slot: spec.slot,
                digest: spec.credential_digest,
                burst: spec.burst_uid,
                tunnel: spec.tunnel,
            };
            self.hosted.insert(uid, instance);
        }
        for object in cluster.mini_clusters().iter() {
            for owner in object.owner_references() {
                self.mini_clusters.insert(object.uid().unwrap_or_default(), owner.uid.clone());
            }
        }
        for job in cluster.jobs().iter() {
            let (uid, name) = (job.uid().unwrap_or_default(), job.name_any());
            let Some(owner) = job.owner_references().iter().find(|owner| owner.kind == "MiniCluster") else { continue };
            let digest = job.annotations().get(labels::CREDENTIAL_DIGEST).cloned();
            // "A restarted provider forgets that a root is gone".
            let lapsed = self.mini_clusters.get(&owner.uid).is_some_and(|hosted| self.lapsed.contains(hosted));
            if lapsed && !self.jobs.contains_key(&uid) {
                return Err(format!("{}: {name} gets a Job after its lease was over", cluster.name));
            }
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
        let_in: &LetIn,
        running: &mut BTreeMap<(String, String, String), String>,
    ) -> Result<(), String> {
        let mut ranks = BTreeSet::new();
        for pod in cluster.pods().iter().filter(|pod| !is_over(pod)) {
            let Some(owner) = pod.owner_references().iter().find(|owner| owner.kind == "Job") else { continue };
            let Some((mini_cluster, digest)) = self.jobs.get(&owner.uid) else { continue };
            // With another certificate it is another instance.
            if !ranks.insert((owner.name.clone(), digest.clone(), index_of(pod))) {
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
            let Some(Instance { root, incarnation, slot, burst, tunnel, .. }) = instance.cloned() else { continue };
            if tunnel && !let_in.contains(&(cluster.name.clone(), burst, incarnation.clone())) {
                // Its brokers run, and nobody hears them.
                continue;
            }
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

/// Whether the budget of a peer is spent.
fn is_spent(peer: &ClusterPeer) -> bool {
    let conditions = peer.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == labels::condition::BUDGET && one.status == "False")
}

fn owner_uids(object: &MiniCluster) -> impl Iterator<Item = &str> {
    object.owner_references().iter().map(|owner| owner.uid.as_str())
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

/// "A peer points us at our own inside".
fn a_lead_is_never_inside(cluster: &Cluster) -> Result<(), String> {
    let slices = cluster.server.list::<EndpointSlice>();
    for slice in slices.iter().filter(|slice| slice.namespace().as_deref() == Some(USERS)) {
        let mut all = slice.endpoints.iter().flat_map(|end| &end.addresses);
        if let Some(address) = all.find(|address| cluster.has(address)) {
            return Err(format!("{}: {} leads to {address}, which is here", cluster.name, slice.name_any()));
        }
    }
    Ok(())
}

/// "A peer's spec is remote code": no ClusterPeer of a world names any of these.
fn pods_of_peers_have_what_was_allowed(cluster: &Cluster) -> Result<(), String> {
    let hosted: BTreeSet<String> = cluster.hosted().iter().map(|one| one.spec.slot.clone()).collect();
    for pod in cluster.pods().iter().filter(|pod| job_of(pod).is_some_and(|job| hosted.contains(job))) {
        let Some(spec) = &pod.spec else { continue };
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        let contexts = spec.containers.iter().flat_map(|one| &one.security_context);
        if account != "default" || contexts.into_iter().any(|context| context.privileged == Some(true)) {
            return Err(format!("{}: {} has what nobody allowed", cluster.name, pod.name_any()));
        }
    }
    Ok(())
}

/// "Capacity is promised twice".
fn capacity_is_promised_once(cluster: &Cluster) -> Result<(), String> {
    for peer in cluster.server.list::<ClusterPeer>() {
        let Some(import) = peer.spec.import.as_ref() else { continue };
        let all = cluster.hosted();
        let of_peer = all.iter().filter(|hosted| hosted.spec.peer == peer.name_any());
        let (mut bursts, mut brokers, mut nodes) = (0, 0, BTreeMap::<&str, u32>::new());
        for hosted in of_peer {
            for new in hosted.spec.scale_up.iter().flat_map(|scale_up| &scale_up.nodes) {
                *nodes.entry(&new.group).or_default() += new.count;
            }
            bursts += 1;
            brokers += i32::try_from(hosted.spec.max_size).unwrap();
        }
        let over = import.max_bursts.is_some_and(|most| bursts > most);
        if over || import.max_brokers.is_some_and(|most| brokers > most) {
            let name = peer.name_any();
            return Err(format!("{}: {name} has {bursts} bursts of {brokers} brokers, more than it may", cluster.name));
        }
        let Some(policy) = &import.scale_up else { continue };
        let over = policy
            .node_groups
            .iter()
            .any(|group| nodes.get(&*group.group.name).copied() > group.max.or(Some(u32::MAX)));
        if over || nodes.values().sum::<u32>() > policy.max_nodes {
            let name = peer.name_any();
            return Err(format!("{}: bursts of {name} bring {nodes:?}, more than they may", cluster.name));
        }
    }
    Ok(())
}

/// "The certificate reaches a peer that rejects": whoever has it is on record at the root.
fn who_has_the_certificate_is_on_record(cluster: &Cluster, root: &Cluster, hosted: &HostedBurst) -> Result<(), String> {
    let secret = cluster.server.get::<Secret>(USERS, &names::curve(&hosted.spec.slot));
    let digest = secret.as_ref().and_then(digest_of);
    let bursts = root.server.list::<Burst>();
    let burst = bursts.iter().find(|burst| burst.uid().as_ref() == Some(&hosted.spec.burst_uid));
    let (Some(digest), Some(burst)) = (digest, burst) else { return Ok(()) };
    if digest != burst.spec.credential_digest || burst.status.is_none() {
        return Ok(());
    }
    let recipients = burst.status.iter().flat_map(|status| &status.credential_recipients);
    match recipients.into_iter().any(|known| known.peer == cluster.name) {
        true => Ok(()),
        false => Err(format!("{} has the certificate of {}, and is not on record", cluster.name, burst.name_any())),
    }
}

/// What is noticed when something is written.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Noticed>>);

#[derive(Default)]
struct Noticed {
    /// The secret keys of certificates.
    keys: BTreeSet<String>,
    wrong: Option<String>,
}

impl Writes {
    /// Looks at an object that is about to be stored.
    fn look(&self, cluster: &str, leader: &mut String, info: &RequestInfo, object: &Value) {
        let Noticed { keys, wrong } = &mut *self.0.lock().unwrap();
        if info.resource == "leases" {
            *leader = object["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        } else if !info.user_agent.is_empty() && info.user_agent != *leader {
            // "An old leader still writes".
            let (verb, resource, name) = (info.verb, &info.resource, &info.name);
            *wrong = Some(format!("{cluster}: {} asks to {verb} {resource} {name}; {leader:?} leads", info.user_agent));
        }
        if info.resource == "secrets" {
            let secret: Option<Secret> = serde_json::from_value(object.clone()).ok();
            let data = secret.and_then(|secret| secret.data?.get("curve.cert").map(|value| value.0.clone()));
            let text = data.and_then(|data| String::from_utf8(data).ok()).unwrap_or_default();
            let line = text.lines().find_map(|line| line.trim().strip_prefix("secret-key = "));
            keys.extend(line.map(|key| key.trim_matches('"').to_owned()));
        } else if keys.iter().any(|key| holds(object, key)) {
            // "Secrets leak".
            *wrong = Some(format!("{cluster}: a secret key is in {} {}", info.resource, info.name));
        }
    }

    fn told(&self) -> Result<(), String> {
        self.0.lock().unwrap().wrong.clone().map_or(Ok(()), Err)
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
