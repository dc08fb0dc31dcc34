//! What a provider makes a hosted MiniCluster of: an allow-list, not a MiniCluster.
//!
//! A field that is not here does not travel. Left out on purpose: labels and annotations of Jobs and pods (they would
//! match Services, network policies and queues of the provider), container ports (they would make Services), names of
//! Services, the certificate's text, whole broker configurations, and everything that only the lead broker's pod uses.
//! Sizes, names, the certificate and the way to the lead come from the offer itself.
//!
//! A provider reads it strictly: what it does not know it refuses, so that an older provider never drops what a newer
//! root relies on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSecurityContext, Toleration};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tributary_api::budget::Usage;
use tributary_api::minicluster::{
    BurstCluster, Container, ContainerVolume, FluxContainer, FluxScheduler, FluxSpec, LoggingSpec, MiniClusterSpec,
    PodSpec, ResourceList, ResourceRequirements,
};
use tributary_api::schema::is_default;
use tributary_contract::Price;
use tributary_render::nodes::Amounts;
use tributary_render::quantity::milli;
use tributary_render::{gpus as accelerators, rank_map};

/// Most bytes of a template as JSON: a Burst, a HostedBurst and a control frame have to hold it.
pub(crate) const TEMPLATE_LIMIT: usize = 256 * 1024;

/// Most sections of a template, such as a container or a volume. Two bytes of JSON are an empty one, which takes two kilobytes
/// once it is read; what a pod can have is far less.
const MOST_SECTIONS: usize = 4_096;

/// What one broker counts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    /// Cores, as quotas count them.
    pub cores: u32,
    /// Thousandths of a core, as nodes count them.
    pub milli_cores: u32,
    /// GPUs, as quotas and prices count them: slices, shared ones and other accelerators are some as well.
    pub gpus: u32,
    /// GPUs, as nodes count them: of the names that Flux gives away.
    pub node_gpus: u32,
    /// Bytes of memory.
    pub memory: Bytes,
    /// Bytes of ephemeral storage.
    pub ephemeral_storage: Bytes,
}

/// What the containers of a broker request of something that its slot says nothing of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bytes {
    /// So many.
    pub requested: u64,
    /// A container beside that requests none, and may take any.
    pub open: bool,
}

impl Charge {
    /// By the cores and GPUs of its slot, which Flux counts on, and by what the containers of its template ask Kubernetes
    /// for: whichever is more. A slot that says less than its pods take gets nothing for less.
    ///
    /// A rank map has no parts of a core: a broker has one at least. If its containers ask for CPU, and for less than that
    /// one core together, they have said what they take of a node, and Kubernetes counts no more either.
    pub fn of(cores: u32, gpus: u32, template: &Value) -> Self {
        let containers = template.get("containers").and_then(Value::as_array).into_iter().flatten();
        let resources = |container: &Value| container.get("resources").map(read_resources).unwrap_or_default();
        let asked = containers.map(|container| Asked::of(&resources(container))).reduce(Asked::and);
        let asked = asked.unwrap_or_else(|| Asked::of(&ResourceRequirements::default()));
        // The container that brings Flux is done before the others begin: what it asks for stands in place of theirs
        // (<https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers>).
        let first = template.pointer("/flux/container/resources").map(read_resources).unwrap_or_default();
        let Asked { milli_cores, gpus: dear, node_gpus, memory, ephemeral_storage } = asked.or(Asked::of(&first));
        let asked = u32::try_from(milli_cores).unwrap_or(u32::MAX);
        let declared = cores.saturating_mul(1000);
        Self {
            cores: cores.max(asked.div_ceil(1000)),
            milli_cores: if cores == 1 && (1..1000).contains(&asked) { asked } else { declared.max(asked) },
            gpus: gpus.max(dear),
            node_gpus: gpus.max(node_gpus),
            memory,
            ephemeral_storage,
        }
    }

    /// What so many brokers use, at a price.
    pub(crate) fn usage(&self, brokers: u32, price: Price) -> Usage {
        let all = |amount: u32| u64::from(brokers) * u64::from(amount);
        let hourly = price.hourly(brokers, self.milli_cores, self.gpus);
        Usage { brokers, milli_cores: all(self.milli_cores), gpus: all(self.gpus), hourly }
    }

    /// What each broker takes of a node.
    pub(crate) fn of_node(&self) -> Amounts {
        let memory = i64::try_from(self.memory.requested).unwrap_or(i64::MAX);
        Amounts { memory, ..Amounts::part(self.milli_cores, self.node_gpus) }
    }
}

/// What cannot be read asks for nothing: a template is read strictly before anything is made of it.
fn read_resources(json: &Value) -> ResourceRequirements {
    serde_json::from_value(json.clone()).unwrap_or_default()
}

/// What containers ask Kubernetes for.
#[derive(Clone, Copy)]
struct Asked {
    milli_cores: i128,
    gpus: u32,
    node_gpus: u32,
    memory: Bytes,
    ephemeral_storage: Bytes,
}

impl Asked {
    fn of(resources: &ResourceRequirements) -> Self {
        // What is less than nothing, which no API server takes, is no discount for the container beside.
        let amount = |name: &str| {
            let asked = resources.effective_request(name).and_then(|amount| milli(&amount.to_string()));
            asked.unwrap_or(0).max(0)
        };
        let bytes = |name: &str| {
            let requested = u64::try_from(amount(name).saturating_add(999) / 1000).unwrap_or(u64::MAX);
            Bytes { requested, open: requested == 0 }
        };
        Self {
            milli_cores: amount("cpu"),
            gpus: u32::try_from(accelerators::requested(resources, None)).unwrap_or(u32::MAX),
            node_gpus: rank_map::gpus(resources),
            memory: bytes("memory"),
            ephemeral_storage: bytes("ephemeral-storage"),
        }
    }

    /// Of both at once.
    fn and(self, other: Self) -> Self {
        let both =
            |a: Bytes, b: Bytes| Bytes { requested: a.requested.saturating_add(b.requested), open: a.open || b.open };
        Self {
            milli_cores: self.milli_cores.saturating_add(other.milli_cores),
            gpus: self.gpus.saturating_add(other.gpus),
            node_gpus: self.node_gpus.saturating_add(other.node_gpus),
            memory: both(self.memory, other.memory),
            ephemeral_storage: both(self.ephemeral_storage, other.ephemeral_storage),
        }
    }

    /// Of these, and of one before them, which is soon done: that one need not say everything.
    fn or(self, first: Self) -> Self {
        let more = |own: Bytes, first: Bytes| Bytes { requested: own.requested.max(first.requested), ..own };
        Self {
            milli_cores: self.milli_cores.max(first.milli_cores),
            gpus: self.gpus.max(first.gpus),
            node_gpus: self.node_gpus.max(first.node_gpus),
            memory: more(self.memory, first.memory),
            ephemeral_storage: more(self.ephemeral_storage, first.ephemeral_storage),
        }
    }
}

/// The parts of the root's spec that its bursts are made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct BurstTemplate {
    /// Containers of every pod, as in the root.
    pub containers: Vec<Container>,
    /// Options of Flux that every broker needs.
    #[serde(skip_serializing_if = "is_default")]
    pub flux: FluxTemplate,
    /// What is printed.
    #[serde(skip_serializing_if = "is_default")]
    pub logging: LoggingSpec,
    /// Properties of the pods.
    #[serde(skip_serializing_if = "is_default")]
    pub pod: PodTemplate,
    /// Leave out the preference for one zone and one pod per node.
    #[serde(skip_serializing_if = "is_default")]
    pub disable_affinity: bool,
    /// Containers of a pod see each other's processes.
    #[serde(skip_serializing_if = "is_default")]
    pub share_process_namespace: bool,
    /// What only the lead broker's pod uses: of whole instances.
    #[serde(skip_serializing_if = "is_default")]
    pub lead: Option<LeadTemplate>,
}

/// What only a root needs: how its command is run, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct LeadTemplate {
    /// Tasks of the command; 0: all that fit.
    #[serde(skip_serializing_if = "is_default")]
    pub tasks: Option<i32>,
    /// The command submits by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub launcher: bool,
    /// Seconds it may run.
    #[serde(skip_serializing_if = "is_default")]
    pub deadline_seconds: Option<i64>,
    /// How often a command that fails is run again.
    #[serde(skip_serializing_if = "is_default")]
    pub backoff_limit: Option<i32>,
    /// The words that submit the command.
    #[serde(skip_serializing_if = "is_default")]
    pub submit_command: Option<String>,
    /// More options of these.
    #[serde(skip_serializing_if = "is_default")]
    pub option_flags: Option<String>,
    /// Workers end well with the lead broker.
    #[serde(skip_serializing_if = "is_default")]
    pub complete_workers: bool,
}

/// Options of Flux that every broker needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FluxTemplate {
    /// The container that brings Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub container: FluxContainer,
    /// Architecture of helper programs.
    #[serde(skip_serializing_if = "is_default")]
    pub arch: Option<String>,
    /// Words for `flux start --wrap`.
    #[serde(skip_serializing_if = "is_default")]
    pub wrap: Option<String>,
    /// `tbon.connect_timeout`; an empty text leaves it to Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub connect_timeout: Option<String>,
    /// Do not tell the brokers where to put their socket.
    #[serde(skip_serializing_if = "is_default")]
    pub disable_socket: bool,
    /// Topology of the brokers: the same in the whole instance.
    #[serde(skip_serializing_if = "is_default")]
    pub topology: Option<String>,
    /// Containers beside Flux do not wait for the socket.
    #[serde(skip_serializing_if = "is_default")]
    pub no_wait_socket: bool,
    /// Log level of the brokers.
    #[serde(skip_serializing_if = "is_default")]
    pub log_level: Option<i32>,
    /// Options of the scheduler.
    #[serde(skip_serializing_if = "is_default")]
    pub scheduler: FluxScheduler,
    /// An existing Secret with a munge key.
    #[serde(skip_serializing_if = "is_default")]
    pub munge_secret: Option<String>,
    /// Environment of shells that connect to Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub environment: BTreeMap<String, String>,
}

/// Properties of the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct PodTemplate {
    /// Service account asked for.
    #[serde(skip_serializing_if = "is_default")]
    pub service_account_name: Option<String>,
    /// Runtime class.
    #[serde(skip_serializing_if = "is_default")]
    pub runtime_class_name: Option<String>,
    /// Priority class. Never the root's: a provider imposes it, or there is none.
    #[serde(skip_serializing_if = "is_default")]
    pub priority_class_name: Option<String>,
    /// Scheduler.
    #[serde(skip_serializing_if = "is_default")]
    pub scheduler_name: Option<String>,
    /// Labels a node must have.
    #[serde(skip_serializing_if = "is_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Values of labels a node must have one of.
    #[serde(skip_serializing_if = "is_default")]
    pub node_affinity: BTreeMap<String, Vec<String>>,
    /// Taints that are tolerated.
    #[serde(skip_serializing_if = "is_default")]
    pub tolerations: Vec<Toleration>,
    /// DNS policy.
    #[serde(skip_serializing_if = "is_default")]
    pub dns_policy: Option<String>,
    /// Share the node's IPC namespace.
    #[serde(rename = "hostIPC", skip_serializing_if = "is_default")]
    pub host_ipc: bool,
    /// Share the node's process namespace.
    #[serde(rename = "hostPID", skip_serializing_if = "is_default")]
    pub host_pid: bool,
    /// Overhead of the pod.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: ResourceList,
    /// Security context of the pod.
    #[serde(skip_serializing_if = "is_default")]
    pub security_context: PodSecurityContext,
}

/// Why a JSON document is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A field that this agent does not know.
    #[error("field {0} of the template is not known here")]
    Unknown(String),
    /// A field that cannot be read.
    #[error("field {path} of the template cannot be read: {message}")]
    Unreadable {
        /// Which.
        path: String,
        /// Why.
        message: String,
    },
    /// More than [`TEMPLATE_LIMIT`].
    #[error("the template has {0} bytes, at most {TEMPLATE_LIMIT} are possible")]
    TooLarge(usize),
    /// More than it can mean.
    #[error("the template has {0} sections (containers, volumes …), at most {MOST_SECTIONS} are possible")]
    TooManySections(usize),
}

impl BurstTemplate {
    /// The template of a root's bursts.
    pub(crate) fn of(root: &MiniClusterSpec) -> Self {
        Self {
            containers: root.containers.iter().map(|container| burst_container(container, root)).collect(),
            flux: FluxTemplate::of(&root.flux),
            logging: root.logging.clone(),
            pod: PodTemplate::of(&root.pod),
            disable_affinity: root.network.disable_affinity,
            share_process_namespace: root.share_process_namespace,
            lead: None,
        }
    }

    /// The template of one slot of a root: the root's, with the resources that are the slot's own.
    pub(crate) fn of_slot(root: &MiniClusterSpec, slot: Option<&BurstCluster>) -> Self {
        let mut template = Self::of(root);
        let runner = root.runner().ok().and_then(|runner| template.containers.get_mut(runner.index));
        if let (Some(runner), Some(slot)) = (runner, slot) {
            runner.resources = slot.resources.over(&runner.resources);
        }
        template
    }

    /// The template of a whole instance.
    pub(crate) fn of_whole(root: &MiniClusterSpec) -> Self {
        let lead = LeadTemplate {
            tasks: root.tasks,
            launcher: root.launcher,
            deadline_seconds: root.deadline_seconds,
            backoff_limit: root.backoff_limit,
            submit_command: root.flux.submit_command.clone(),
            option_flags: root.flux.option_flags.clone(),
            complete_workers: root.flux.complete_workers,
        };
        Self { lead: Some(lead), ..Self::of(root) }
    }

    /// The template as it travels.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a template is plain data with text keys")
    }

    /// Reads a template strictly.
    ///
    /// # Errors
    /// [`TemplateError`], with the path of the field.
    pub fn parse(json: &Value) -> Result<Self, TemplateError> {
        let size = json.to_string().len();
        if size > TEMPLATE_LIMIT {
            return Err(TemplateError::TooLarge(size));
        }
        let sections = sections(json);
        if sections > MOST_SECTIONS {
            return Err(TemplateError::TooManySections(sections));
        }
        let template: Self = serde_path_to_error::deserialize(json).map_err(|error| TemplateError::Unreadable {
            path: error.path().to_string(),
            message: error.inner().to_string(),
        })?;
        match unknown(json, &template.to_json(), String::new()) {
            Some(path) => Err(TemplateError::Unknown(path)),
            None => Ok(template),
        }
    }
}

fn sections(json: &Value) -> usize {
    match json {
        Value::Object(fields) => 1 + fields.values().map(sections).sum::<usize>(),
        Value::Array(elements) => elements.iter().map(sections).sum(),
        _ => 0,
    }
}

/// A container without what would reach beyond its pod, and with the sources of its volumes resolved.
fn burst_container(container: &Container, root: &MiniClusterSpec) -> Container {
    let mut container = Container { ports: Vec::new(), ..container.clone() };
    for (name, volume) in container.existing_volumes.iter_mut().chain(&mut container.volumes) {
        if !has_source(volume) {
            volume.host_path = root.declared_host_path(name).map(str::to_owned);
        }
    }
    container
}

fn has_source(volume: &ContainerVolume) -> bool {
    let named =
        [&volume.host_path, &volume.config_map_name, &volume.claim_name, &volume.secret_name, &volume.csi_driver];
    volume.empty_dir || named.into_iter().any(Option::is_some)
}

impl FluxTemplate {
    fn of(flux: &FluxSpec) -> Self {
        let flux = flux.clone();
        Self {
            container: flux.container,
            arch: flux.arch,
            wrap: flux.wrap,
            connect_timeout: flux.connext_timeout.or(flux.connect_timeout),
            disable_socket: flux.disable_socket,
            topology: flux.topology,
            no_wait_socket: flux.no_wait_socket,
            log_level: flux.log_level,
            scheduler: flux.scheduler,
            munge_secret: flux.munge_secret,
            environment: flux.environment,
        }
    }
}

impl PodTemplate {
    fn of(pod: &PodSpec) -> Self {
        let pod = pod.clone();
        Self {
            service_account_name: pod.service_account_name,
            runtime_class_name: pod.runtime_class_name,
            priority_class_name: None,
            scheduler_name: pod.scheduler_name,
            node_selector: pod.node_selector,
            node_affinity: pod.node_affinity,
            tolerations: pod.tolerations,
            dns_policy: pod.dns_policy,
            host_ipc: pod.host_ipc,
            host_pid: pod.host_pid,
            resources: pod.resources,
            security_context: pod.security_context,
        }
    }
}

/// The first field of `given` that `read` does not have, though it says something: embedded types drop what they do not
/// know. A zero value says nothing in this API.
pub(super) fn unknown(given: &Value, read: &Value, path: String) -> Option<String> {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => given.iter().find_map(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match read.get(key) {
                Some(read) => unknown(value, read, path),
                None if is_zero(value) => None,
                None => Some(path),
            }
        }),
        (Value::Array(given), Value::Array(read)) => given.iter().enumerate().find_map(|(index, value)| {
            unknown(value, read.get(index).unwrap_or(&Value::Null), format!("{path}[{index}]"))
        }),
        (given @ (Value::Object(_) | Value::Array(_)), _) if !is_zero(given) => Some(path),
        _ => None,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn root() -> MiniClusterSpec {
        let yaml = "
size: 4
jobLabels: {kueue.x-k8s.io/queue-name: fast}
interactive: true
containers:
- image: ghcr.io/org/app:1
  command: lmp -in in.reaxc
  cores: 4
  ports: [80]
  environment: {A: '1'}
  commands: {pre: echo hi}
  securityContext: {runAsUser: 1000, capabilities: {add: [KILL]}}
  resources: {limits: {cpu: 4, memory: 2Gi}}
  volumes: {data: {path: /data}, tmp: {path: /tmp, emptyDir: true}}
volumes: {data: {path: /mnt/data}}
services: [{name: db, image: postgres}]
pod:
  labels: {app: db}
  annotations: {a: b}
  serviceAccountName: builder
  automountServiceAccountToken: true
  nodeSelector: {gpu: 'yes'}
  tolerations: [{key: k, operator: Exists}]
  securityContext: {fsGroup: 7}
flux:
  curveCert: secret text
  brokerConfig: '[x]'
  topology: kary:2
  container: {image: view, disable: true}
  bursting: {clusters: [{size: 3}]}
archive: {path: /a}
";
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn only_what_is_listed_travels() {
        insta::assert_json_snapshot!(BurstTemplate::of(&root()).to_json());
    }

    #[test]
    fn a_slot_has_resources_of_its_own() {
        let root: MiniClusterSpec = serde_json::from_value(json!({
            "containers": [
                {"image": "beside", "resources": {"limits": {"memory": "1Gi"}}},
                {"image": "app", "runFlux": true,
                    "resources": {"requests": {"cpu": 2, "memory": "4Gi", "amd.com/gpu": 1}, "limits": {"amd.com/gpu": 1}}},
            ],
            "flux": {"bursting": {"clusters": [
                {"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Gi", "amd.com/gpu": "0"}}},
                {},
            ]}},
        }))
        .unwrap();
        let [gpus, plain] = &root.flux.bursting.clusters[..] else { panic!() };
        let template = BurstTemplate::of_slot(&root, Some(gpus)).to_json();
        assert_eq!(template["containers"][0]["resources"], json!({"limits": {"memory": "1Gi"}}), "it runs no Flux");
        assert_eq!(
            template["containers"][1]["resources"],
            json!({"requests": {"cpu": 2}, "limits": {"memory": "64Gi", "nvidia.com/gpu": 4}})
        );
        let memory = Bytes { requested: 65 << 30, open: false };
        let ephemeral_storage = Bytes { requested: 0, open: true };
        assert_eq!(
            Charge::of(2, 4, &template),
            Charge { cores: 2, milli_cores: 2000, gpus: 4, node_gpus: 4, memory, ephemeral_storage }
        );
        let slices = json!({"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.5gb": 2}}}]});
        let charge = Charge::of(2, 0, &slices);
        let price = Price { gpu_hour: "3".parse().unwrap(), ..Price::default() };
        let Usage { gpus, hourly, .. } = charge.usage(4, price);
        assert_eq!((charge.node_gpus, gpus, hourly.to_string()), (0, 8, "24".into()), "slices are used and paid for");
        let same = BurstTemplate::of(&root);
        assert_eq!(
            [BurstTemplate::of_slot(&root, Some(plain)), BurstTemplate::of_slot(&root, None)],
            [same.clone(), same]
        );
    }

    #[test]
    fn a_broker_counts_for_what_its_pods_take() {
        let asking = |cpu: &str| json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}, {"resources": {"limits": {"cpu": "100m"}}}]});
        for (cores, cpu, expected) in [
            (1, "50m", (1, 150)),
            (1, "900m", (1, 1000)),
            (2, "50m", (2, 2000)),
            (1, "3", (4, 3100)),
            (1, "-4", (1, 100)),
            (4, "-4", (4, 4000)),
        ] {
            let charge = Charge::of(cores, 0, &asking(cpu));
            assert_eq!((charge.cores, charge.milli_cores), expected, "{cores} {cpu}");
        }
        let told = |charge: Charge| (charge.cores, charge.milli_cores, charge.gpus);
        assert_eq!(told(Charge::of(1, 0, &json!({"containers": [{}]}))), (1, 1000, 0));
        let first =
            json!({"containers": [{}], "flux": {"container": {"resources": {"limits": {"cpu": 8, "amd.com/gpu": 2}}}}});
        assert_eq!(told(Charge::of(2, 0, &first)), (8, 8000, 2), "it is done before the others");
        assert_eq!(Charge::of(1, 0, &asking("99999999999")).cores, u32::MAX.div_ceil(1000));
    }

    #[test]
    fn a_broker_counts_for_the_memory_and_the_storage_that_its_containers_request() {
        let memory = |containers: Value, first: Value| {
            let template = json!({"containers": containers, "flux": {"container": {"resources": first}}});
            let Charge { memory, ephemeral_storage, .. } = Charge::of(1, 0, &template);
            let stored = template.to_string().replace("\"memory\"", "\"ephemeral-storage\"");
            let stored: Value = serde_json::from_str(&stored).unwrap();
            assert_eq!(Charge::of(1, 0, &stored).ephemeral_storage, memory, "by the same rules");
            assert_eq!(ephemeral_storage, Bytes { requested: 0, open: true });
            (memory.requested, memory.open)
        };
        let asks = |amount: &str| json!({"resources": {"requests": {"memory": amount}}});
        let limited = json!({"resources": {"limits": {"memory": 1024}}});
        assert_eq!(memory(json!([asks("1Ki"), limited]), json!({})), (2048, false), "a limit is a request");
        // Its thousandths are the last ones that there is a number for.
        let most = format!("{}", i128::MAX / 1000);
        assert_eq!(memory(json!([asks(&most)]), json!({})), (u64::MAX, false));
        assert_eq!(memory(json!([asks("1Ki"), {}]), json!({})), (1024, true));
        assert_eq!(memory(json!([asks("0.5")]), json!({})), (1, false));
        for wrong in ["-1Gi", "0", "much"] {
            assert_eq!(memory(json!([asks("1Ki"), asks(wrong)]), json!({})), (1024, true), "{wrong}");
        }
        let first = |amount: &str| json!({"requests": {"memory": amount}});
        assert_eq!(memory(json!([asks("1Ki")]), first("4Ki")), (4096, false), "it is done before the others");
        assert_eq!(memory(json!([asks("1Ki")]), first("1")), (1024, false));
        assert_eq!(memory(json!([{}]), first("4Ki")), (4096, true), "but says nothing of them");
        assert_eq!(memory(json!([]), json!({})), (0, true));
        assert_eq!(memory(json!([asks("99999999999Gi"), asks("99999999999Gi")]), json!({})).0, u64::MAX);
    }

    #[test]
    fn what_travels_is_read_back_as_it_was() {
        let template = BurstTemplate::of(&root());
        assert_eq!(BurstTemplate::parse(&template.to_json()), Ok(template));
    }

    #[test]
    fn unknown_fields_are_refused_with_their_path_wherever_they_are() {
        let table = [
            ("/", "services", json!([{"name": "db"}])),
            ("/pod", "labels", json!({"app": "db"})),
            ("/pod", "automountServiceAccountToken", json!(true)),
            ("/pod/securityContext", "newThing", json!("x")),
            ("/pod/tolerations/0", "newThing", json!(1)),
            ("/flux", "brokerConfig", json!("[x]")),
            ("/flux/container", "newThing", json!(true)),
            ("/containers/0", "newThing", json!({"a": 1})),
            ("/containers/0/securityContext", "newThing", json!(true)),
            ("/containers/0/securityContext/capabilities", "newThing", json!(["A"])),
            ("/containers/0/volumes/data", "iscsi", json!({"target": "t"})),
            ("/containers/0/resources", "newThing", json!({"a": "b"})),
        ];
        for (parent, field, value) in table {
            let mut json = BurstTemplate::of(&root()).to_json();
            json.pointer_mut(parent.trim_end_matches('/')).unwrap()[field] = value;
            let error = BurstTemplate::parse(&json).unwrap_err().to_string();
            assert!(error.contains(field), "{parent}/{field}: {error}");
        }
        let mut json = BurstTemplate::of(&root()).to_json();
        json["containers"][0]["securityContext"]["newThing"] = json!(true);
        let error = BurstTemplate::parse(&json).unwrap_err();
        assert_eq!(error.to_string(), "field containers[0].securityContext.newThing of the template is not known here");
    }

    #[test]
    fn values_of_the_wrong_type_are_named() {
        let mut json = BurstTemplate::of(&root()).to_json();
        json["containers"][0]["volumes"]["data"]["readOnly"] = json!("yes");
        let error = BurstTemplate::parse(&json).unwrap_err();
        assert_eq!(
            error.to_string(),
            "field containers[0].volumes.data.readOnly of the template cannot be read: invalid type: string \"yes\", \
             expected a boolean"
        );
        let large = json!({"containers": [{"command": "x".repeat(TEMPLATE_LIMIT)}]});
        assert!(matches!(BurstTemplate::parse(&large), Err(TemplateError::TooLarge(_))));
        let many = json!({"containers": vec![json!({}); 60_000]});
        assert_eq!(BurstTemplate::parse(&many), Err(TemplateError::TooManySections(60_001)));
    }
}
