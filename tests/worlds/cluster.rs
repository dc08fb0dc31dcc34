//! One cluster: an API server, and what stands for Kubernetes beside it: the Job controller, kubelets, the garbage collector
//! and the ports of Services, in steps.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels::kubernetes::{COMPLETION_INDEX, JOB_NAME};
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::api::provisioning_request::ProvisioningRequest;
use tributary::clock::{Mono, Rng as _, SeededRng, SharedClock};
use tributary_api_server::ApiServer;
use tributary_cluster::apply::Appliable;

use crate::agent::Settings;
use crate::autoscaler::{Autoscaler, Place, is_unschedulable};
use crate::invariants::{FOREIGN, Invariants};

/// The namespace of the agents.
pub const SYSTEM: &str = "tributary-system";
/// The namespace of the users.
pub const USERS: &str = "default";

/// From the creation of a pod until it runs.
const STARTS: Duration = Duration::from_millis(500);
/// From then until its broker has joined.
const JOINS: Duration = Duration::from_millis(750);

/// The objects of a kind as they were at a version: reading them takes most of the time of a world.
struct Read<K>(RefCell<AsOf<K>>);

/// What there was, and when: how often the server was started again by then, and the version.
type AsOf<K> = ((u64, u64), Rc<[K]>);

impl<K> Default for Read<K> {
    fn default() -> Self {
        Self(RefCell::new(((0, 0), Rc::from([]))))
    }
}

impl<K: Appliable> Read<K> {
    fn of(&self, server: &ApiServer) -> Rc<[K]> {
        let (version, mut read) = (server.changed::<K>(), self.0.borrow_mut());
        if read.0 != version {
            *read = (version, server.list().into());
        }
        read.1.clone()
    }
}

pub struct Cluster {
    pub name: String,
    pub server: ApiServer,
    pub clock: SharedClock,
    pub number: u8,
    /// From the deletion of a pod until it is gone.
    ends: Duration,
    /// Each pod takes its own time.
    varied: bool,
    /// By UID of a pod: since when it is as it is.
    since: BTreeMap<String, (&'static str, Mono)>,
    /// Pods made so far.
    made: u64,
    /// The version after the last step.
    seen: u64,
    /// Something happens by itself.
    waits: bool,
    /// Adds nodes for pods that are too large for those there are.
    pub autoscaler: Option<Autoscaler>,
    /// Others have taken all room: no pod gets a node any more.
    pub crowded: bool,
    pods: Read<Pod>,
    jobs: Read<Job>,
    hosted: Read<HostedBurst>,
    mini_clusters: Read<MiniCluster>,
    requests: Read<ProvisioningRequest>,
}

impl Cluster {
    /// A cluster of two nodes. `number` makes its addresses differ from those of others.
    /// Its agents go by `agents`.
    pub fn new(
        (number, name): (u8, &str),
        settings: &Settings,
        clock: SharedClock,
        agents: SharedClock,
        invariants: &Invariants,
    ) -> Self {
        let server = ApiServer::new(name, clock.clone());
        serve(&server);
        let (mut ports, mut seen) = (ports(number), invariants.writes_of(name));
        server.on_write(move |info, object| {
            if info.resource == "leases" {
                // The library of the Lease asks the machine for the time.
                object["spec"]["renewTime"] = json!(MicroTime(agents.wall()));
            }
            seen(info, object);
            ports(info, object)
        });
        for namespace in ["kube-system", "default", SYSTEM] {
            let metadata = json!({"name": namespace, "labels": {"kubernetes.io/metadata.name": namespace}});
            put::<Namespace>(&server, json!({"metadata": metadata, "status": {"phase": "Active"}}));
        }
        for node in 1..=2 {
            put::<Node>(&server, node_object(number, node, clock.wall()));
        }
        let Settings { ends, varied, .. } = *settings;
        Self {
            name: name.to_owned(),
            server,
            clock,
            number,
            ends,
            varied,
            since: BTreeMap::new(),
            made: 0,
            seen: 0,
            waits: false,
            autoscaler: None,
            crowded: false,
            pods: Read::default(),
            jobs: Read::default(),
            hosted: Read::default(),
            mini_clusters: Read::default(),
            requests: Read::default(),
        }
    }

    /// What Kubernetes does by now.
    pub fn step(&mut self) {
        if self.server.version() == self.seen && !self.waits {
            return;
        }
        self.waits = false;
        self.server.collect_garbage();
        let pods = self.pods();
        for job in self.jobs().iter() {
            self.control(job, &pods);
        }
        for pod in self.pods().iter() {
            self.keep(pod);
        }
        if let Some(mut autoscaler) = self.autoscaler.take() {
            self.waits |= autoscaler.step(self);
            self.autoscaler = Some(autoscaler);
        }
        self.seen = self.server.version();
        let there: BTreeSet<String> = self.pods().iter().filter_map(|pod| pod.uid()).collect();
        self.since.retain(|uid, _| there.contains(uid));
    }

    /// All pods.
    pub fn pods(&self) -> Rc<[Pod]> {
        self.pods.of(&self.server)
    }

    /// All Jobs.
    pub fn jobs(&self) -> Rc<[Job]> {
        self.jobs.of(&self.server)
    }

    /// All bursts of others.
    pub fn hosted(&self) -> Rc<[HostedBurst]> {
        self.hosted.of(&self.server)
    }

    /// All MiniClusters.
    pub fn mini_clusters(&self) -> Rc<[MiniCluster]> {
        self.mini_clusters.of(&self.server)
    }

    /// All that asks for nodes.
    pub fn requests(&self) -> Rc<[ProvisioningRequest]> {
        self.requests.of(&self.server)
    }

    /// Ends the lead broker of a MiniCluster: its command is done.
    pub fn finish(&self, name: &str, code: i32) -> bool {
        let leads = |pod: &&Pod| job_of(pod) == Some(name) && index_of(pod) == Some(0) && lives(pod);
        let Some(pod) = self.pods().iter().find(leads).cloned() else { return false };
        if !is_ready(&pod) {
            return false;
        }
        self.ended(&pod, code);
        true
    }

    fn ended(&self, pod: &Pod, code: i32) {
        let at = self.clock.wall().to_string();
        let terminated =
            json!({"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }, "finishedAt": at});
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let statuses: Vec<Value> = containers
            .map(|one| {
                json!({"name": one.name, "image": "", "imageID": "i", "ready": false, "restartCount": 0,
                              "state": {"terminated": terminated}})
            })
            .collect();
        let status = json!({
            "phase": if code == 0 { "Succeeded" } else { "Failed" },
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": statuses,
        });
        drop(self.server.patch_status::<Pod>(&pod.namespace().unwrap_or_default(), &pod.name_any(), status));
    }

    /// The Job controller. Source: <https://kubernetes.io/docs/concepts/workloads/controllers/job/>.
    fn control(&mut self, job: &Job, pods: &[Pod]) {
        if job.metadata.deletion_timestamp.is_some() {
            return;
        }
        let (namespace, name, uid) =
            (job.namespace().unwrap_or_default(), job.name_any(), job.uid().unwrap_or_default());
        let (spec, old) = (job.spec.clone().unwrap_or_default(), job.status.clone().unwrap_or_default());
        let of_job = |pod: &&Pod| pod.owner_references().iter().any(|owner| owner.uid == uid);
        let own: Vec<&Pod> = pods.iter().filter(of_job).collect();
        let conditions = old.conditions.clone().unwrap_or_default();
        let over =
            conditions.iter().any(|one| matches!(one.type_.as_str(), "Complete" | "Failed") && one.status == "True");
        let suspended = spec.suspend == Some(true);
        let size = if suspended || over { 0 } else { spec.completions.or(spec.parallelism).unwrap_or(1) };
        let parallelism = spec.parallelism.unwrap_or(1);
        let done = |index: i32| own.iter().any(|pod| index_of(pod) == Some(index) && phase(pod) == "Succeeded");
        let now = self.clock.wall();
        let mut status = json!({});
        let start = old.start_time.as_ref().map(|time| time.0);
        let mut end = None;
        if !over && !suspended {
            let lead_done = spec.success_policy.is_some() && done(0);
            let all_done = (0..size).all(done);
            let late = spec.active_deadline_seconds.zip(start).is_some_and(|(deadline, start)| {
                self.waits = true;
                now.duration_since(start).as_secs() >= deadline
            });
            let failed = own.iter().any(|pod| phase(pod) == "Failed" && exit_code(pod).is_some_and(|code| code != 143));
            end = match () {
                () if lead_done || (size > 0 && all_done) => Some(("Complete", "CompletionsReached")),
                () if late => Some(("Failed", "DeadlineExceeded")),
                () if failed => Some(("Failed", "PodFailurePolicy")),
                () => None,
            };
        }
        let told = |kind: &str, state: bool, reason: &str| {
            json!({"type": kind, "status": if state { "True" } else { "False" }, "reason": reason, "message": "",
                   "lastProbeTime": now.to_string(), "lastTransitionTime": now.to_string()})
        };
        if let Some((kind, reason)) = end {
            status["conditions"] = json!([told(kind, true, reason)]);
            if kind == "Complete" {
                status["completionTime"] = now.to_string().into();
            }
        } else if !over {
            let was = conditions.iter().any(|one| one.type_ == "Suspended" && one.status == "True");
            if suspended != was {
                status["conditions"] =
                    json!([told("Suspended", suspended, if suspended { "JobSuspended" } else { "JobResumed" })]);
            }
            if suspended && start.is_some() {
                status["startTime"] = Value::Null;
            }
            if !suspended && start.is_none() {
                status["startTime"] = now.to_string().into();
            }
        }
        let wanted = if end.is_some() { 0 } else { size.min(parallelism) };
        let mut active = 0;
        let mut terminating = 0;
        let mut ready = 0;
        for pod in &own {
            let index = index_of(pod).unwrap_or(i32::MAX);
            if pod.metadata.deletion_timestamp.is_some() {
                terminating += i32::from(!is_over(pod));
            } else if !is_over(pod) && index >= wanted {
                drop(self.server.delete::<Pod>(&namespace, &pod.name_any(), &DeleteParams::default()));
                terminating += 1;
            } else if !is_over(pod) {
                active += 1;
                ready += i32::from(is_ready(pod));
            }
        }
        for index in 0..wanted {
            // A pod that ends is replaced once it has ended.
            let there = own.iter().any(|pod| index_of(pod) == Some(index) && phase(pod) != "Failed");
            if !there {
                self.make_pod(job, index);
                active += 1;
            }
        }
        let succeeded = own.iter().filter(|pod| phase(pod) == "Succeeded").count();
        let failed = own.iter().filter(|pod| phase(pod) == "Failed").count();
        status["active"] = active.into();
        status["ready"] = ready.into();
        status["terminating"] = terminating.into();
        status["succeeded"] = succeeded.into();
        status["failed"] = failed.into();
        let known = serde_json::to_value(&old).unwrap();
        let same = |(field, value): (&String, &Value)| known[field] == *value || known[field].is_null() && *value == 0;
        if !status.as_object().unwrap().iter().all(same) {
            drop(self.server.patch_status::<Job>(&namespace, &name, status));
        }
    }

    fn make_pod(&mut self, job: &Job, index: i32) {
        self.made += 1;
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let uid = job.uid().unwrap_or_default();
        let template = serde_json::to_value(&job.spec.as_ref().unwrap().template).unwrap();
        let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
        if !pod["metadata"].is_object() {
            pod["metadata"] = json!({});
        }
        pod["metadata"]["name"] = format!("{name}-{index}-{:05}", self.made).into();
        pod["metadata"]["namespace"] = namespace.into();
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": true}]);
        let labels = [
            (COMPLETION_INDEX, index.to_string()),
            (JOB_NAME, name.clone()),
            ("job-name", name.clone()),
            ("batch.kubernetes.io/controller-uid", uid.clone()),
            ("controller-uid", uid),
        ];
        for (key, value) in labels {
            pod["metadata"]["labels"][key] = value.into();
        }
        pod["metadata"]["annotations"][COMPLETION_INDEX] = index.to_string().into();
        pod["spec"]["hostname"] = format!("{name}-{index}").into();
        pod["status"] = json!({"phase": "Pending"});
        put::<Pod>(&self.server, pod);
    }

    /// How long a pod takes to start, then to join, and to end: always the same, or drawn by its UID.
    fn takes(&self, uid: &str) -> [Duration; 3] {
        if !self.varied {
            return [STARTS, JOINS, self.ends];
        }
        let hash = uid.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let mut rng = SeededRng::new(hash);
        // Many are quick, some are not.
        [8000, 12_000, 20_000].map(|most| {
            let most = if rng.next_u64().is_multiple_of(3) { most } else { most / 10 };
            Duration::from_millis(250 + rng.next_u64() % most)
        })
    }

    /// Scheduler and kubelet.
    fn keep(&mut self, pod: &Pod) {
        let (namespace, name, uid) =
            (pod.namespace().unwrap_or_default(), pod.name_any(), pod.uid().unwrap_or_default());
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let state = match phase(pod) {
            _ if deleted => "ends",
            "Succeeded" | "Failed" => return,
            "Running" if is_ready(pod) => return,
            "Running" => "runs",
            _ => "new",
        };
        self.waits = true;
        let now = self.clock.mono();
        let [starts, joins, ends] = self.takes(&uid);
        let (known, since) = *self.since.entry(uid.clone()).or_insert((state, now));
        if known != state {
            self.since.insert(uid, (state, now));
            return;
        }
        let lasts = now.saturating_since(since);
        if state == "ends" && lasts >= ends {
            if !is_over(pod) {
                self.ended(pod, 143);
            }
            let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            drop(self.server.delete::<Pod>(&namespace, &name, &at_once));
            return;
        }
        let node = self.made % 2 + 1;
        let place = match &self.autoscaler {
            _ if self.crowded => Place::Nowhere { known: is_unschedulable(pod) },
            None => Place::Anywhere,
            Some(autoscaler) => autoscaler.place(pod, &self.pods()),
        };
        if state == "new" && matches!(place, Place::Nowhere { known: false }) {
            let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient cpu."}]});
            drop(self.server.patch_status::<Pod>(&namespace, &name, status));
        }
        if state == "new" && lasts >= starts && !matches!(place, Place::Nowhere { .. }) {
            let node = match place {
                Place::On(node) => node,
                _ => format!("{}-n{node}", self.number),
            };
            drop(self.server.patch::<Pod>(&namespace, &name, json!({"spec": {"nodeName": node}})));
            let at = self.clock.wall().to_string();
            let address = format!("11.{}.{}.{}", self.number, self.made / 250, self.since.len() % 250 + 1);
            let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": at,
                "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]});
            drop(self.server.patch_status::<Pod>(&namespace, &name, status));
        }
        if state == "runs" && lasts >= joins {
            let at = self.clock.wall().to_string();
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let statuses: Vec<Value> = containers
                .map(|one| {
                    json!({"name": one.name, "image": "", "imageID": "i", "ready": true, "restartCount": 0,
                                  "state": {"running": {"startedAt": at}}})
                })
                .collect();
            let status = json!({"conditions": [{"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True", "lastTransitionTime": at}], "containerStatuses": statuses});
            drop(self.server.patch_status::<Pod>(&namespace, &name, status));
        }
    }

    /// Whether an address is of a node, a pod or a Service of this cluster.
    pub fn has(&self, address: &str) -> bool {
        let number = self.number;
        [format!("192.168.{number}."), format!("11.{number}."), format!("10.{number}.")]
            .iter()
            .any(|range| address.starts_with(range))
    }

    /// Deletes a MiniCluster as kubectl does.
    pub fn delete(&self, name: &str) {
        let background = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..Default::default() };
        drop(self.server.delete::<MiniCluster>(USERS, name, &background));
    }
}

fn serve(server: &ApiServer) {
    server.serve::<MiniCluster>();
    server.serve::<ClusterPeer>();
    server.serve::<Burst>();
    server.serve::<HostedBurst>();
    server.serve::<FluxSetup>();
    server.serve::<FluxJob>();
    server.serve::<ProvisioningRequest>();
}

/// Creates an object of JSON, or replaces it.
pub fn put<K: Appliable>(server: &ApiServer, object: Value) {
    let object: K = serde_json::from_value(object).expect("it is of this kind");
    server.put(&object).expect("it is accepted");
}

pub fn node_object(cluster: u8, node: u8, now: Timestamp) -> Value {
    let name = format!("{cluster}-n{node}");
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"}},
        "spec": {"podCIDR": format!("11.{cluster}.{node}.0/24"), "podCIDRs": [format!("11.{cluster}.{node}.0/24")]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": format!("192.168.{cluster}.{node}")}],
            "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now.to_string(),
                            "lastHeartbeatTime": now.to_string()}],
            "nodeInfo": {"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "containerd://2", "kernelVersion": "6",
                "kubeProxyVersion": "", "kubeletVersion": "v1.33.0", "machineID": "", "operatingSystem": "linux",
                "osImage": "", "systemUUID": ""},
        },
    })
}

/// What the API server gives Services: an address, and the ports of nodes.
fn ports(
    cluster: u8,
) -> impl FnMut(&tributary_api_server::RequestInfo, &mut Value) -> Result<(), Box<kube::core::Status>> + Send {
    let (mut next_port, mut next_address) = (30_000_u64, 1_u64);
    move |info, object| {
        if info.resource != "services" {
            return Ok(());
        }
        let spec = &mut object["spec"];
        if spec["type"].is_null() {
            spec["type"] = "ClusterIP".into();
        }
        if spec["clusterIP"].is_null() {
            next_address += 1;
            spec["clusterIP"] = format!("10.{cluster}.0.{next_address}").into();
        }
        if spec["type"] == "NodePort" {
            for port in spec["ports"].as_array_mut().into_iter().flatten() {
                if port["nodePort"].is_null() {
                    next_port += 1;
                    port["nodePort"] = next_port.into();
                }
            }
        }
        Ok(())
    }
}

pub fn job_of(pod: &Pod) -> Option<&str> {
    pod.labels().get(JOB_NAME).map(String::as_str)
}

pub fn index_of(pod: &Pod) -> Option<i32> {
    pod.labels().get(COMPLETION_INDEX)?.parse().ok()
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub fn lives(pod: &Pod) -> bool {
    !is_over(pod) && pod.metadata.deletion_timestamp.is_none()
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

fn exit_code(pod: &Pod) -> Option<i32> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.into_iter().find_map(|one| Some(one.state.as_ref()?.terminated.as_ref()?.exit_code))
}

/// What is left of what users and agents made.
pub fn left(server: &ApiServer) -> Vec<String> {
    fn of<K: Appliable>(server: &ApiServer, left: &mut Vec<String>) {
        for object in server.list::<K>() {
            let others = object.name_any().starts_with(&format!("{FOREIGN}-")) && object.owner_references().is_empty();
            if object.namespace().as_deref() == Some(USERS) && !others {
                left.push(format!("{} {}", K::kind(&()), object.name_any()));
            }
        }
    }
    use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate, Secret};
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    let mut left = Vec::new();
    of::<MiniCluster>(server, &mut left);
    of::<Burst>(server, &mut left);
    of::<HostedBurst>(server, &mut left);
    of::<Job>(server, &mut left);
    of::<Pod>(server, &mut left);
    of::<Secret>(server, &mut left);
    of::<ConfigMap>(server, &mut left);
    of::<Service>(server, &mut left);
    of::<EndpointSlice>(server, &mut left);
    of::<NetworkPolicy>(server, &mut left);
    of::<ProvisioningRequest>(server, &mut left);
    of::<PodTemplate>(server, &mut left);
    left
}
