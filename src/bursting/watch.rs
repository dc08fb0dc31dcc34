//! What bursting watches besides its own kinds: nodes, pods, namespaces and lead Services, only with what is read.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodIP, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels::{self, kubernetes};
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ClusterPeer;
use tributary_api::provisioning_request::CONSUME;
use tributary_clock::SystemRng;
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::{self, Cache, Indexed, Selection, Subscription, controller_of};
use tributary_cluster::client::Clients;
use tributary_render::nodes::Amounts;
use tributary_render::quantity::milli;

use super::nodes::{NodeView, PodView, Pods, Taint, keeps_pods_away};
use super::ours::watched::OwnCaches;

/// A node, as far as it is read.
#[derive(Resource, Clone, Debug)]
#[resource(inherit = Node)]
pub struct WatchedNode {
    /// Its metadata, without annotations and managed fields.
    pub metadata: ObjectMeta,
    /// What placing needs.
    pub view: NodeView,
}

/// A pod, as far as it is read.
#[derive(Resource, Clone, Debug)]
#[resource(inherit = Pod)]
pub struct WatchedPod {
    /// Its metadata, without annotations and managed fields.
    pub metadata: ObjectMeta,
    /// What placing needs.
    pub view: Arc<PodView>,
}

/// A namespace: that it is there.
#[derive(Resource, Clone, Debug, Deserialize)]
#[resource(inherit = Namespace)]
pub(crate) struct WatchedNamespace {
    /// Its metadata.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
}

/// Every cache of bursting.
#[derive(Clone)]
pub(crate) struct Caches {
    /// MiniClusters.
    pub mini_clusters: Cache<MiniCluster>,
    pub bursts: Cache<Burst>,
    /// HostedBursts.
    pub hosted: Cache<HostedBurst>,
    /// ClusterPeers.
    pub peers: Cache<ClusterPeer>,
    pub nodes: Cache<WatchedNode>,
    /// All pods: what they ask for is not free.
    pub pods: Cache<WatchedPod>,
    pub namespaces: Cache<WatchedNamespace>,
    /// Services that stand for lead brokers.
    pub services: Cache<Service>,
    /// Their EndpointSlices.
    pub slices: Cache<EndpointSlice>,
    /// NetworkPolicies of hosted bursts.
    pub network_policies: Cache<NetworkPolicy>,
    /// What else tells which addresses are ours.
    pub own: OwnCaches,
    /// The namespaces this agent works in; none: all.
    pub works_in: Arc<[String]>,
    /// Pods by namespace and Job ([`job_key`]).
    pods_by_job: Indexed<WatchedPod>,
    pub bursts_by_uid: Indexed<Burst>,
    nodes_seen: Arc<NodesSeen>,
}

/// The nodes as they were last asked for, until one changes.
#[derive(Default)]
struct NodesSeen {
    views: Mutex<Option<Arc<BTreeMap<String, NodeView>>>>,
    follows: Mutex<Option<Subscription>>,
}

impl NodesSeen {
    fn following(nodes: &Cache<WatchedNode>) -> Arc<Self> {
        let seen = Arc::new(Self::default());
        let ours = Arc::downgrade(&seen);
        let follows = nodes.subscribe(move |_| {
            if let Some(seen) = ours.upgrade() {
                *seen.views.lock() = None;
            }
        });
        *seen.follows.lock() = Some(follows);
        seen
    }
}

fn job_key(namespace: &str, job: &str) -> String {
    format!("{namespace}/{job}")
}

/// Whether a pod with the label of a Job is of that Job. Anybody can write that label; of a pod whose Job was deleted without
/// it, only what our template gave it is left.
pub(crate) fn is_of_job(pod: &impl Resource, job: &str) -> bool {
    controller_of::<Job>(pod).map_or_else(|| is_broker(pod, job), |owner| owner.name == job)
}

/// Whether our template made a pod.
fn is_broker(pod: &impl Resource, job: &str) -> bool {
    pod.meta().labels.as_ref().and_then(|all| all.get(labels::MINICLUSTER)).is_some_and(|of| of == job)
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caches").finish_non_exhaustive()
    }
}

/// For those who count what is free.
impl Pods for Caches {
    fn views(&self) -> Vec<Arc<PodView>> {
        self.pod_views()
    }
}

impl Caches {
    /// The caches that nobody else has, beside the shared ones, and the watches to spawn.
    pub(crate) fn new(
        clients: &Clients,
        mini_clusters: Cache<MiniCluster>,
        bursts: Cache<Burst>,
        hosted: Cache<HostedBurst>,
        peers: Cache<ClusterPeer>,
    ) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let (reader, everything) = (&clients.reader, Selection::default());
        let proxies = Selection::labels(format!("{}={}", labels::ROLE, labels::role::LEAD_PROXY));
        let (nodes, watch_nodes) = caches::all(reader.clone(), &everything, SystemRng);
        let (pods, watch_pods) = caches::all(reader.clone(), &everything, SystemRng);
        let (namespaces, watch_namespaces) = caches::all(reader.clone(), &everything, SystemRng);
        let (services, watch_services) = caches::watched(clients, &proxies, SystemRng);
        let (slices, watch_slices) = caches::watched(clients, &proxies, SystemRng);
        let guards = Selection::labels(format!("{}={}", labels::ROLE, labels::role::EGRESS));
        let (network_policies, watch_network_policies) = caches::watched(clients, &guards, SystemRng);
        let (own, watch_own) = OwnCaches::new(clients);
        let mut watches = vec![
            watch_nodes.boxed(),
            watch_pods.boxed(),
            watch_namespaces.boxed(),
            watch_services.boxed(),
            watch_slices.boxed(),
            watch_network_policies.boxed(),
        ];
        watches.extend(watch_own);
        let works_in = clients.namespaces.clone();
        let of_job = |pod: &WatchedPod| {
            let job = pod.view.job.as_deref().filter(|job| is_of_job(pod, job))?;
            Some(job_key(&pod.view.namespace, job))
        };
        let pods_by_job = Cache::<WatchedPod>::indexed(&pods, of_job);
        let bursts_by_uid = bursts.indexed(|burst| burst.metadata.uid.clone());
        let nodes_seen = NodesSeen::following(&nodes);
        let caches = Self {
            mini_clusters,
            bursts,
            hosted,
            peers,
            nodes,
            pods,
            namespaces,
            services,
            slices,
            network_policies,
            own,
            works_in,
            pods_by_job,
            bursts_by_uid,
            nodes_seen,
        };
        (caches, watches)
    }

    /// Waits until every first list is complete.
    pub(crate) async fn listed(&self) {
        // Taken apart, so that a cache that nobody waits for does not compile.
        let Self {
            mini_clusters,
            bursts,
            hosted,
            peers,
            nodes,
            pods,
            namespaces,
            services,
            slices,
            network_policies,
            own,
            works_in: _,
            pods_by_job: _,
            bursts_by_uid: _,
            nodes_seen: _,
        } = self;
        mini_clusters.listed().await;
        bursts.listed().await;
        hosted.listed().await;
        peers.listed().await;
        nodes.listed().await;
        pods.listed().await;
        namespaces.listed().await;
        services.listed().await;
        slices.listed().await;
        network_policies.listed().await;
        own.listed().await;
    }

    /// Lists anew what a term decides about: a watch may have stood still while another agent led, and what it did not
    /// show is neither gone nor free.
    pub(crate) async fn listed_now(&self) {
        let Self { mini_clusters, bursts, hosted, peers, .. } = self;
        tokio::join!(mini_clusters.list_again(), bursts.list_again(), hosted.list_again(), peers.list_again());
    }

    /// The UIDs of Bursts that exist and cannot be read. `None`: it is not known of all which exist.
    pub(crate) fn unreadable_bursts(&self) -> Option<Vec<String>> {
        let unreadable = self.bursts.unreadable().into_iter().map(|burst| burst.uid);
        let uids: Option<Vec<String>> = unreadable.collect();
        uids.filter(|_| self.bursts.condition().listed)
    }

    /// The nodes, by name.
    pub(crate) fn node_views(&self) -> Arc<BTreeMap<String, NodeView>> {
        let name = |node: &WatchedNode| node.metadata.name.clone().unwrap_or_default();
        let mut seen = self.nodes_seen.views.lock();
        let look = || self.nodes.objects().iter().map(|node| (name(node), node.view.clone())).collect();
        seen.get_or_insert_with(|| Arc::new(look())).clone()
    }

    /// The pods of a Job.
    pub(crate) fn pods_of(&self, namespace: &str, job: &str) -> Vec<PodView> {
        self.pods_by_job.of(&job_key(namespace, job)).iter().map(|pod| PodView::clone(&pod.view)).collect()
    }

    /// The pods of a Job that a MiniCluster made: a user's Job may have the name.
    pub(crate) fn brokers_of(&self, namespace: &str, job: &str) -> Vec<PodView> {
        let pods = self.pods_by_job.of(&job_key(namespace, job));
        pods.iter().filter(|pod| is_broker(&***pod, job)).map(|pod| PodView::clone(&pod.view)).collect()
    }

    /// All pods.
    pub(crate) fn pod_views(&self) -> Vec<Arc<PodView>> {
        self.pods.objects().iter().map(|pod| pod.view.clone()).collect()
    }

    pub(crate) fn works_in(&self, namespace: &str) -> bool {
        self.works_in.is_empty() || self.works_in.iter().any(|one| one == namespace)
    }

    /// Whether this agent works in a namespace that exists and stays.
    pub(crate) fn has_namespace(&self, name: &str) -> bool {
        let found = self.namespaces.of(&ObjectKey::cluster_scoped(name));
        self.works_in(name) && found.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none())
    }

    /// Whether the namespace that an object was made in is being deleted. What is younger is in another one of the same name,
    /// which the cache does not show yet.
    pub(crate) fn goes_with_namespace(&self, object: &ObjectMeta) -> bool {
        let name = object.namespace.as_deref().unwrap_or_default();
        let namespace = self.namespaces.of(&ObjectKey::cluster_scoped(name));
        let goes = namespace.and_then(|namespace| namespace.metadata.deletion_timestamp.clone());
        goes.zip(object.creation_timestamp.as_ref()).is_some_and(|(goes, made)| made.0 <= goes.0)
    }
}

impl<'de> Deserialize<'de> for WatchedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut node = Node::deserialize(deserializer)?;
        let (spec, status) = (node.spec.take().unwrap_or_default(), node.status.take().unwrap_or_default());
        let is = |word: &str| status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == word);
        // A kubelet that says no says something.
        let (ready, lost) = (is("True"), is("Unknown"));
        let cordoned = spec.unschedulable.unwrap_or(false);
        let since = status.conditions.iter().flatten().find(|one| one.type_ == "Ready");
        let since = since.and_then(|one| one.last_transition_time.as_ref()).map(|time| time.0);
        let taints = spec.taints.unwrap_or_default().into_iter().filter(|taint| keeps_pods_away(&taint.effect));
        let (allocatable, info) = (status.allocatable.unwrap_or_default(), status.node_info.unwrap_or_default());
        let view = NodeView {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            schedulable: ready && !cordoned,
            away_since: since.filter(|_| !ready && !cordoned),
            taints: taints
                .map(|taint| Taint { key: taint.key, value: taint.value.unwrap_or_default(), effect: taint.effect })
                .collect(),
            addresses: status.addresses.unwrap_or_default().into_iter().map(|one| (one.type_, one.address)).collect(),
            pod_ranges: spec.pod_cidrs.unwrap_or_default().iter().filter_map(|range| range.parse().ok()).collect(),
            lost,
            architecture: Some(info.architecture.clone()).filter(|name| !name.is_empty()),
            simulated: [&info.kubelet_version, &info.container_runtime_version].iter().any(|by| by.starts_with("kwok"))
                || node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key("kwok.x-k8s.io/node")),
            allocatable: amounts(allocatable.iter().map(|(key, quantity)| (key.as_str(), quantity.0.as_str()))),
        };
        Ok(Self { metadata: slimmed(node.metadata), view })
    }
}

/// What is read of the text of a pod: most of it is about volumes, environments and probes, and every pod of the cluster is
/// read each time that it changes.
#[derive(Deserialize)]
struct PodText {
    #[serde(default)]
    metadata: ObjectMeta,
    spec: Option<SpecText>,
    status: Option<StatusText>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecText {
    node_name: Option<String>,
    containers: Option<Vec<ContainerText>>,
    init_containers: Option<Vec<ContainerText>>,
    overhead: Option<BTreeMap<String, Quantity>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerText {
    restart_policy: Option<String>,
    resources: Option<ResourcesText>,
}

#[derive(Deserialize)]
struct ResourcesText {
    requests: Option<BTreeMap<String, Quantity>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusText {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIP>>,
    conditions: Option<Vec<ConditionText>>,
    init_container_statuses: Option<Vec<ContainerStatusText>>,
    container_statuses: Option<Vec<ContainerStatusText>>,
}

#[derive(Deserialize)]
struct ConditionText {
    #[serde(rename = "type", default)]
    type_: String,
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Deserialize)]
struct ContainerStatusText {
    #[serde(default)]
    name: String,
    #[serde(default)]
    image: String,
    #[serde(rename = "imageID")]
    image_id: Option<String>,
    state: Option<StateText>,
    #[serde(rename = "lastState")]
    last_state: Option<StateText>,
}

#[derive(Deserialize)]
struct StateText {
    waiting: Option<WaitingText>,
    running: Option<IgnoredAny>,
    terminated: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct WaitingText {
    reason: Option<String>,
    message: Option<String>,
}

impl<'de> Deserialize<'de> for WatchedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let PodText { metadata, spec, status } = PodText::deserialize(deserializer)?;
        let consumes = metadata.annotations.as_ref().is_some_and(|all| all.contains_key(CONSUME));
        let metadata = slimmed(metadata);
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let addresses = status.pod_ip.iter().chain(status.pod_ips.iter().flatten().map(|one| &one.ip));
        let mut addresses: Vec<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
        addresses.dedup();
        let phase = status.phase;
        let conditions = status.conditions.unwrap_or_default();
        let unscheduled =
            conditions.iter().find(|one| one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable"));
        let bad_claim = unscheduled.and_then(|one| bad_claim(one.message.as_deref()?));
        let statuses = status.container_statuses.unwrap_or_default();
        let containers = spec.containers.unwrap_or_default();
        let pulled = !statuses.is_empty() && statuses.len() == containers.len() && statuses.iter().all(has_image);
        let mut total = requests(&containers, spec.init_containers.as_deref().unwrap_or_default());
        let overhead = spec.overhead.unwrap_or_default();
        total += amounts(overhead.iter().map(|(key, quantity)| (key.as_str(), quantity.0.as_str())));
        let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
        let view = PodView {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            job: label(kubernetes::JOB_NAME),
            index: label(kubernetes::COMPLETION_INDEX).and_then(|index| index.parse().ok()),
            owner: controller(&metadata),
            node: spec.node_name,
            addresses,
            running: phase.as_deref() == Some("Running"),
            // More nodes help nobody whose claim is not there.
            unschedulable: unscheduled.is_some() && bad_claim.is_none(),
            start_failure: bad_claim
                .or_else(|| start_failure(status.init_container_statuses.as_deref().unwrap_or_default(), &statuses)),
            pulled,
            finished: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
            terminating: metadata.deletion_timestamp.is_some(),
            consumes,
            daemon: metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet"),
            requests: total,
        };
        Ok(Self { metadata, view: Arc::new(view) })
    }
}

fn controller(metadata: &ObjectMeta) -> Option<String> {
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    owner.map(|owner| owner.uid.clone())
}

/// What containers request together, as the scheduler counts: an init container runs alone but for the restartable ones before
/// it, which run on beside the others.
/// <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>
fn requests(containers: &[ContainerText], init: &[ContainerText]) -> Amounts {
    let of = |one: &ContainerText| {
        let all = one.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        amounts(all.into_iter().flatten().map(|(key, quantity)| (key.as_str(), quantity.0.as_str())))
    };
    let (mut beside, mut most) = (Amounts::default(), Amounts::default());
    for one in init {
        let mut at_once = beside;
        at_once += of(one);
        if one.restart_policy.as_deref() == Some("Always") {
            beside = at_once;
        }
        most = most.max(at_once);
    }
    containers.iter().for_each(|one| beside += of(one));
    beside.max(most)
}

/// Whether a kubelet has pulled the image of a container: it does that before it looks at anything else of it.
fn has_image(status: &ContainerStatusText) -> bool {
    const AFTER: [&str; 4] =
        ["CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"];
    let waits = |state: &StateText| {
        let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
        waiting.is_some_and(|reason| AFTER.contains(&reason))
    };
    let was_started = |state: &StateText| state.running.is_some() || state.terminated.is_some() || waits(state);
    status.image_id.as_ref().is_some_and(|id| !id.is_empty()) || status.state.as_ref().is_some_and(was_started)
}

/// Most characters of a sentence of Kubernetes that is passed on.
const LONGEST_SENTENCE: usize = 200;

/// What the scheduler says of a claim that keeps a pod from every node: `0/3 nodes are available: persistentvolumeclaim
/// "genomes" not found. preemption: …`, and nothing else of nodes.
fn bad_claim(message: &str) -> Option<String> {
    let sentence = &message[message.find("persistentvolumeclaim \"")?..];
    let sentence = sentence.split_once(". ").map_or(sentence, |(first, _)| first).trim_end_matches('.');
    // One that Kubernetes is about to make is waited for.
    let lacks = ["\" not found", "\" is being deleted", "\" bound to non-existent"]
        .iter()
        .any(|words| sentence.contains(words));
    lacks.then(|| short(sentence))
}

fn short(sentence: &str) -> String {
    sentence.chars().take(LONGEST_SENTENCE).collect()
}

/// Why a kubelet does not start a pod. A container waits in its turn until the images are pulled and the init containers have
/// ended; every other word means that something failed and is tried again. Brokers may run beside a container that has run
/// before.
fn start_failure(init: &[ContainerStatusText], containers: &[ContainerStatusText]) -> Option<String> {
    const IN_TURN: [&str; 2] = ["ContainerCreating", "PodInitializing"];
    let has_run = |one: &ContainerStatusText| one.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    init.iter().chain(containers).filter(|one| !has_run(one)).find_map(|one| {
        let WaitingText { reason, message } = one.state.as_ref()?.waiting.as_ref()?;
        let reason = reason.as_deref()?;
        // It names the Secret or the ConfigMap. Those of other reasons change at each try.
        let message = message.as_deref().filter(|_| reason == "CreateContainerConfigError");
        let message = message.map(|message| format!(": {}", short(message))).unwrap_or_default();
        // These two take turns while one image is not pulled.
        let reason = if reason == "ErrImagePull" { "ImagePullBackOff" } else { reason };
        let failed = !reason.is_empty() && !IN_TURN.contains(&reason);
        failed.then(|| format!("{reason}: container {}, image {}{message}", one.name, one.image))
    })
}

fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    Ok(slimmed(ObjectMeta::deserialize(deserializer)?))
}

fn slimmed(mut metadata: ObjectMeta) -> ObjectMeta {
    metadata.managed_fields = None;
    metadata.annotations = None;
    metadata.finalizers = None;
    if let Some(kept) = &mut metadata.labels {
        let ours = [labels::MINICLUSTER, labels::ROOT_CLUSTER, labels::BURST_UID];
        let read = [kubernetes::JOB_NAME, kubernetes::COMPLETION_INDEX];
        kept.retain(|key, _| ours.iter().chain(&read).any(|one| one == key));
    }
    metadata
}

/// Cores, memory and GPUs of a resource list.
fn amounts<'a>(list: impl Iterator<Item = (&'a str, &'a str)>) -> Amounts {
    let mut amounts = Amounts::default();
    for (resource, text) in list {
        let thousandths = i64::try_from(milli(text).unwrap_or(0)).unwrap_or(i64::MAX);
        match resource {
            "cpu" => amounts.milli_cores = thousandths,
            "memory" => amounts.memory = thousandths / 1000,
            gpu if tributary_render::rank_map::is_gpu(gpu) => amounts.gpus += thousandths / 1000,
            _ => {}
        }
    }
    amounts
}

/// Parses a pod from JSON; for tests of what is kept.
#[cfg(test)]
fn pod(value: serde_json::Value) -> PodView {
    PodView::clone(&serde_json::from_value::<WatchedPod>(value).expect("a pod").view)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_asks_for_its_containers_or_its_largest_init_container() {
        let seen = pod(json!({
            "metadata": {"name": "a-0", "namespace": "n", "labels": {
                "batch.kubernetes.io/job-name": "a", "batch.kubernetes.io/job-completion-index": "0", "x": "y"}},
            "spec": {"nodeName": "node-1", "overhead": {"cpu": "100m"},
                "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "4"}}}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}},
                    {"name": "d", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}]},
            "status": {"phase": "Running", "podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}, {"ip": "fd00::7"}],
                "conditions": [{"type": "PodScheduled", "status": "True"}]},
        }));
        assert_eq!(seen.addresses, ["10.1.0.7", "fd00::7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(seen.requests, Amounts { milli_cores: 4100, memory: 1 << 30, gpus: 2 });
        assert_eq!((seen.job.as_deref(), seen.index, seen.node.as_deref()), (Some("a"), Some(0), Some("node-1")));
        assert!(seen.running && !seen.finished && !seen.terminating && !seen.unschedulable);
        let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        let waits = pod(json!({"metadata": {"name": "a-1"}, "status": {"phase": "Pending", "conditions": refused}}));
        assert!(waits.unschedulable && !waits.running);
    }

    /// The danger: people look for room, and what is missing is a claim or a Secret.
    #[test]
    fn what_a_pod_waits_for_is_named_if_it_is_no_room() {
        let waits = |message: &str| {
            let refused =
                json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]);
            let seen = pod(json!({"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": refused}}));
            (seen.unschedulable, seen.start_failure)
        };
        let claim = r#"persistentvolumeclaim "genomes" not found"#;
        let nodes = format!("0/3 nodes are available: {claim}. preemption: 0/3 nodes are available.");
        assert_eq!(waits(&nodes), (false, Some(claim.to_owned())));
        assert_eq!(waits(claim), (false, Some(claim.to_owned())));
        assert_eq!(waits("0/3 nodes are available: 3 Insufficient cpu."), (true, None));
        let long = waits(&format!("{claim} {}", "é".repeat(9_000))).1.unwrap();
        assert_eq!(long.chars().count(), LONGEST_SENTENCE);
        let secret = |reason: &str| {
            let state = json!({"waiting": {"reason": reason, "message": "secret \"token\" not found"}});
            let status = json!({"containerStatuses": [{"name": "lake", "image": "r/i:1", "state": state}]});
            pod(json!({"metadata": {"name": "a"}, "status": status})).start_failure.unwrap()
        };
        let why = "CreateContainerConfigError: container lake, image r/i:1: secret \"token\" not found";
        assert_eq!(secret("CreateContainerConfigError"), why);
        assert_eq!(secret("ImagePullBackOff"), "ImagePullBackOff: container lake, image r/i:1");
    }

    /// The dangers: a label holds up the end of a burst for ever; or brokers that run on are not counted.
    #[test]
    fn a_pod_is_of_a_job_by_its_controller_or_by_what_the_template_left_on_it() {
        let of = |labels: serde_json::Value, kind: Option<(&str, &str, &str)>| {
            let owner = kind.map(|(api, kind, name)| {
                json!({"apiVersion": api, "kind": kind, "name": name, "uid": "u", "controller": true})
            });
            let owners: Vec<_> = owner.into_iter().collect();
            let metadata = json!({"name": "lake-0-x", "labels": labels, "ownerReferences": owners});
            is_of_job(&serde_json::from_value::<WatchedPod>(json!({"metadata": metadata})).unwrap(), "lake")
        };
        let (label, ours) = (json!({kubernetes::JOB_NAME: "lake"}), json!({labels::MINICLUSTER: "lake"}));
        let (job, other) = (Some(("batch/v1", "Job", "lake")), Some(("batch/v1", "Job", "sea")));
        let set = Some(("apps/v1", "ReplicaSet", "lake"));
        assert!(of(label.clone(), job), "the Flux Operator's, too");
        assert!(of(ours.clone(), None), "its Job was deleted with --cascade=orphan");
        assert!(of(ours.clone(), set), "and a ReplicaSet has adopted it");
        assert!(!of(label.clone(), None) && !of(label.clone(), set) && !of(label, other) && !of(ours, other));
    }

    /// The danger: an offer waits for ever until the pods of a user's own Job of that name have left.
    #[test]
    fn pods_that_no_mini_cluster_made_are_no_brokers() {
        let of = |labels: serde_json::Value| {
            let owner =
                json!({"apiVersion": "batch/v1", "kind": "Job", "name": "lake", "uid": "u", "controller": true});
            let metadata = json!({"name": "lake-0-x", "labels": labels, "ownerReferences": [owner]});
            is_broker(&serde_json::from_value::<WatchedPod>(json!({"metadata": metadata})).unwrap(), "lake")
        };
        let job = (kubernetes::JOB_NAME, "lake");
        assert!(!of(json!({job.0: job.1})) && !of(json!({job.0: job.1, labels::MINICLUSTER: "sea"})));
        assert!(of(json!({job.0: job.1, labels::MINICLUSTER: "lake"})));
    }

    #[test]
    fn a_container_that_runs_on_beside_the_others_is_counted_with_them() {
        let cores = |init: serde_json::Value| {
            let spec =
                json!({"initContainers": init, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]});
            pod(json!({"metadata": {"name": "a"}, "spec": spec})).requests.milli_cores
        };
        let one = |cpu: &str, stays: bool| {
            let policy = if stays { json!("Always") } else { serde_json::Value::Null };
            json!({"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}})
        };
        assert_eq!(cores(json!([one("1", true), one("1", true)])), 4000, "both run on beside it");
        assert_eq!(cores(json!([one("1", true), one("5", false)])), 6000, "it runs beside the one before it");
        assert_eq!(cores(json!([one("5", false), one("1", true)])), 5000, "it is done before the other begins");
        assert_eq!(cores(json!([one("1", false), one("2", false)])), 2000);
    }

    #[test]
    fn a_node_is_away_since_it_was_last_ready() {
        let seen = |ready: &str, cordoned: bool| {
            let since = json!({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-02T03:04:05Z"});
            let node = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": cordoned},
                "status": {"conditions": [since]}});
            let view = serde_json::from_value::<WatchedNode>(node).expect("a node").view;
            (view.schedulable, view.away_since.map(|since| since.to_string()), view.lost)
        };
        let since = || Some("2026-01-02T03:04:05Z".to_owned());
        assert_eq!(seen("True", false), (true, None, false));
        assert_eq!(seen("False", false), (false, since(), false));
        assert_eq!(seen("Unknown", false), (false, since(), true));
        assert_eq!(seen("True", true), (false, None, false));
        assert_eq!(seen("Unknown", true), (false, None, true));
    }

    #[test]
    fn a_container_that_could_not_start_has_its_image() {
        let pulled = |states: &[serde_json::Value]| {
            let statuses: Vec<_> = states
                .iter()
                .map(|state| {
                    json!({"name": "c", "image": "i", "imageID": "",
                "ready": false, "restartCount": 0, "state": state})
                })
                .collect();
            let spec = json!({"containers": [{"name": "c"}, {"name": "d"}]});
            pod(json!({"metadata": {"name": "a"}, "spec": spec, "status": {"containerStatuses": statuses}})).pulled
        };
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let cannot_start = json!({"terminated": {"exitCode": 128, "reason": "StartError"}});
        assert!(pulled(&[cannot_start.clone(), waits("RunContainerError")]));
        assert!(pulled(&[cannot_start.clone(), waits("CreateContainerError")]));
        for reason in ["ContainerCreating", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"] {
            assert!(!pulled(&[cannot_start.clone(), waits(reason)]), "{reason}");
        }
        assert!(!pulled(&[cannot_start]) && !pulled(&[]), "of two");
    }

    #[test]
    fn a_pod_is_stuck_in_the_words_of_its_kubelet_unless_it_waits_in_its_turn() {
        let status = |name: &str, state: serde_json::Value| json!({"name": name, "image": "r/i:1", "state": state});
        let waits = |name: &str, reason: &str| status(name, json!({"waiting": {"reason": reason}}));
        let runs = |name: &str| status(name, json!({"running": {}}));
        let stuck = |init: &[serde_json::Value], main: &[serde_json::Value]| {
            let statuses = json!({"initContainerStatuses": init, "containerStatuses": main});
            pod(json!({"metadata": {"name": "a"}, "spec": {"containers": []}, "status": statuses})).start_failure
        };
        let turn = waits("lake", "PodInitializing");
        let pulls = Some("ImagePullBackOff: container flux-view, image r/i:1".to_owned());
        assert_eq!(stuck(&[waits("flux-view", "ImagePullBackOff")], std::slice::from_ref(&turn)), pulls);
        let no_secret = Some("CreateContainerConfigError: container lake, image r/i:1".to_owned());
        assert_eq!(&stuck(&[], &[waits("lake", "CreateContainerConfigError")]), &no_secret);
        assert_eq!(stuck(&[runs("flux-view")], &[turn]), None);
        assert_eq!(stuck(&[waits("flux-view", "ErrImagePull")], &[]), pulls, "no other word at each try");
        assert_eq!(stuck(&[], &[runs("proxy"), waits("lake", "CreateContainerConfigError")]), no_secret);
        assert_eq!(stuck(&[], &[waits("lake", "ContainerCreating")]), None);
        let mut again = waits("log", "ImagePullBackOff");
        again["lastState"] = json!({"terminated": {"exitCode": 1}});
        assert_eq!(stuck(&[again], &[runs("lake")]), None, "a sidecar that has run: its broker runs on");
        assert_eq!(stuck(&[], &[]), None);
    }

    #[test]
    fn a_node_is_schedulable_if_it_is_ready_and_not_cordoned() {
        let node = |unschedulable: bool, ready: &str| -> NodeView {
            let value: serde_json::Value = json!({
                "metadata": {"name": "n"},
                "spec": {"unschedulable": unschedulable, "podCIDRs": ["10.1.0.0/24"],
                    "taints": [{"key": "k", "effect": "NoSchedule"}, {"key": "p", "effect": "PreferNoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}],
                    "allocatable": {"cpu": "8", "memory": "16Gi", "gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "1000"},
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]},
            });
            serde_json::from_value::<WatchedNode>(value).unwrap().view
        };
        assert!(node(false, "True").schedulable);
        assert!(!node(true, "True").schedulable && !node(false, "Unknown").schedulable);
        assert_eq!(["True", "False", "Unknown"].map(|ready| node(false, ready).lost), [false, false, true]);
        let view = node(false, "True");
        assert_eq!(view.allocatable, Amounts { milli_cores: 8000, memory: 16 << 30, gpus: 1 });
        assert_eq!((view.taints.len(), view.pod_ranges.len(), view.addresses.len()), (1, 1, 1));
    }
}
