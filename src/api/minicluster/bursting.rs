//! Brokers in other clusters: which slots a root declares, and where a burst finds its root.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_contract::word::Word;

use super::quantity::{ResourceList, ResourceRequirements};
use super::wait::BurstWait;
use crate::budget::BurstBudget;
use crate::duration;
use crate::schema::{absent_if_zero, is_default};
use crate::selector::{PeerPreference, PeerSelector};

/// Port of a lead broker that none is written for.
pub const DEFAULT_BROKER_PORT: i32 = 8050;

/// One Flux instance over several clusters. A root declares `clusters`; a burst that is written by hand names its
/// `leadBroker` and repeats the root's `clusters`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Bursting {
    /// The lead broker of the root, on the side of a burst. Not written in a root.
    #[serde(skip_serializing_if = "is_default")]
    pub lead_broker: LeadBroker,

    /// A host list of your own for all brokers, in RFC 29 form, where names follow no rule. Excludes `clusters`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub hostlist: Option<String>,

    /// The bursts, in the order of their ranks.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = 256, "x-kubernetes-validations" = [{
        "rule": "self.all(one, !has(one.name) || one.name == '' \
                 || self.exists_one(other, has(other.name) && other.name == one.name))",
        "message": "two bursts have one name: each needs a name of its own",
    }]))]
    pub clusters: Vec<BurstCluster>,

    /// Flux properties of the root's own brokers, for `flux run --requires=…`. Where there are bursts, these brokers have
    /// `root-<name of the MiniCluster>` besides.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub properties: Vec<String>,

    /// Submit the command for the brokers of the bursts too, by their declared sizes. Otherwise it takes as many nodes as the
    /// root has brokers of its own, wherever Flux puts them.
    #[serde(skip_serializing_if = "is_default")]
    pub span: bool,

    /// How bursts reach the lead broker.
    #[serde(skip_serializing_if = "is_default")]
    pub network: BurstNetwork,

    /// Whether the command waits for brokers of the bursts.
    #[serde(skip_serializing_if = "is_default")]
    pub wait: BurstWait,

    /// How much all bursts of this root together may be used.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: BurstBudget,
}

/// The lead broker of an instance in another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LeadBroker {
    /// IP address or host name at which the lead broker is reached from here.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub address: Option<String>,

    /// Name of the root MiniCluster: its brokers' host names begin with it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub name: Option<String>,

    /// Number of the root's own brokers.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub size: Option<i32>,

    /// Port at which the lead broker is reached from here, for example a NodePort.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_BROKER_PORT))]
    pub port: Option<i32>,

    /// The same as `bursting.hostlist`, in the place where upstream's documentation shows it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub hostlist: Option<String>,
}

impl LeadBroker {
    /// Port at which the lead broker is reached.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(DEFAULT_BROKER_PORT)
    }
}

/// One declared burst: a range of ranks, and the wish where its brokers shall run.
///
/// Without `peer`, `peers` and `selector`, any connected peer with room is taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!has(self.size) || self.size >= 0", "message": "size: a burst has at least one broker" },
    {
        "rule": "!has(self.size) || !has(self.maxSize) || self.maxSize == 0 || self.maxSize >= self.size",
        "message": "maxSize is less than size: raise maxSize, or lower size",
    },
    {
        "rule": "!has(self.selector) || (!has(self.peer) || self.peer == '') && (!has(self.peers) || size(self.peers) == 0)",
        "message": "peers are named and selected by labels: write one or the other",
    },
]))]
pub struct BurstCluster {
    /// Name of the burst's MiniCluster; host names and DNS names follow from it. `<root>-burst-<position>`, if not
    /// written. A written name is used as it is and must be free on the peer.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,

    /// Number of brokers. The root's own size when the instance started, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub size: Option<i32>,

    /// The most brokers this burst may ever have: their ranks are reserved from the start. `size`, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(range(min = 0))]
    pub max_size: Option<i32>,

    /// The peer that may run this burst, by its ClusterPeer's name. If it is the only one, the brokers also have the Flux
    /// property `cluster-<peer>`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub peer: Option<String>,

    /// Peers that may run this burst, best first. If `peer` is written too, it comes before them.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub peers: Vec<String>,

    /// Which peers may run this burst, by the labels of their ClusterPeers; instead of `peer` and `peers`.
    #[serde(skip_serializing_if = "is_default")]
    pub selector: Option<PeerSelector>,

    /// Which of the peers that may run it are better, where no peer is named: those with room come before those that would
    /// have to add nodes; then the greater sum of weights counts; then what it costs (`price` of the ClusterPeers); then room.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = 16))]
    pub prefer: Vec<PeerPreference>,

    /// Cores per broker that Flux may count on there. From the container's requests, if not written, else 1.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(range(min = 0))]
    pub cores: Option<i32>,

    /// GPUs per broker that Flux may count on there. From the container's requests, if not written, else 0.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0))]
    pub gpus: Option<i32>,

    /// Resources of the container that runs Flux, where this burst's differ from the root's: GPUs, more memory. A resource
    /// that is named here, in `requests` or in `limits`, is as it is written here and not at all as the root has it; with 0
    /// there is none of it. What Flux counts on follows, unless `cores` and `gpus` say something else.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: SlotResources,

    /// Flux properties of these brokers, for `flux run --requires=…`, besides `burst-<name>`, which they always have.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub properties: Vec<String>,

    /// How much this burst may be used, wherever it runs.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: BurstBudget,

    /// `Always` (the default): brokers are asked for as long as the root runs. `OnDemand`: the ranks are declared, but
    /// brokers run only while jobs in the queue of this Flux instance ask for them, as `onDemand` says.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: BurstMode,

    /// When brokers start and stop, with `mode: OnDemand`. It is a field beside `mode` and not a form of it, so that
    /// switching between the modes is a change of one word, and every value has a default.
    #[serde(skip_serializing_if = "is_default")]
    pub on_demand: OnDemand,

    /// Let the peer pull the images as soon as it accepts the burst, beside everything else that has to happen first, on as
    /// many nodes as there are brokers. Nothing of the images is run for that. The peer's policy may decline.
    #[serde(skip_serializing_if = "is_default")]
    pub warm: bool,
}

/// What brokers of one burst have otherwise than the root's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct SlotResources {
    /// The most the container may use, by resource name.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: ResourceList,

    /// What the scheduler must set aside for it, by resource name.
    #[serde(skip_serializing_if = "is_default")]
    pub requests: ResourceList,
}

impl SlotResources {
    /// Whether it says anything of a resource.
    pub fn names(&self, resource: &str) -> bool {
        self.limits.contains_key(resource) || self.requests.contains_key(resource)
    }

    /// These resources in place of the root's.
    pub fn over(&self, root: &ResourceRequirements) -> ResourceRequirements {
        let merge = |theirs: &ResourceList, ours: &ResourceList| {
            let kept = theirs.iter().filter(|(name, _)| !self.names(name));
            let written = ours.iter().filter(|(_, amount)| !amount.is_zero());
            kept.chain(written).map(|(name, amount)| (name.clone(), amount.clone())).collect()
        };
        ResourceRequirements {
            claims: root.claims.clone(),
            limits: merge(&root.limits, &self.limits),
            requests: merge(&root.requests, &self.requests),
        }
    }
}

/// Whether brokers of a burst run all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BurstMode {
    /// As long as the root runs.
    #[default]
    Always,
    /// While jobs ask for them.
    OnDemand,
    /// A word of a newer version: no instance is made, and a burst that is there stays as it is.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// When brokers on demand start and stop. A job asks for a burst if it has the attribute `burstable`
/// (`flux submit --setattr=burstable …`), or if the ranks that are online could not run it even if nothing else ran there:
/// it is too large for them, or `--requires` a property of the burst.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OnDemand {
    /// Brokers are drained and released after nothing asked for them or ran on them for so long. `10m`, if not written;
    /// at least 30 seconds.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(regex(pattern = duration::PATTERN), extend("default" = "10m"))]
    pub max_idle: Option<String>,

    /// Brokers are started when so many jobs ask for them. 1, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub min_pending: Option<i32>,
}

/// How long brokers may be idle, if their user says nothing else.
const DEFAULT_MAX_IDLE: Duration = Duration::from_secs(600);

impl OnDemand {
    /// How long brokers may be idle; a text that is no duration counts as not written.
    pub fn max_idle(&self) -> Duration {
        self.max_idle.as_deref().and_then(|text| duration::parse(text).ok()).unwrap_or(DEFAULT_MAX_IDLE)
    }

    /// How many jobs start brokers.
    pub fn min_pending(&self) -> u32 {
        self.min_pending.and_then(|count| u32::try_from(count).ok()).unwrap_or(1).max(1)
    }
}

impl BurstCluster {
    /// Number of brokers, for a root that starts with `root_size` (upstream documents this default and loses it). A larger root
    /// makes no burst larger than its `maxSize`.
    pub fn size(&self, root_size: i32) -> i32 {
        self.size.unwrap_or_else(|| self.max_size.map_or(root_size, |most| root_size.min(most.max(1))))
    }

    /// Number of ranks reserved, for a root of `root_size`.
    pub fn max_size(&self, root_size: i32) -> i32 {
        self.max_size.unwrap_or_else(|| self.size(root_size))
    }

    /// When it runs, if not all the time.
    pub fn on_demand(&self) -> Option<&OnDemand> {
        (self.mode == BurstMode::OnDemand).then_some(&self.on_demand)
    }

    /// The peers the user named, best first; empty if the choice is left to a selector or to the root's agent.
    pub fn peers(&self) -> Vec<&str> {
        let mut known = BTreeSet::new();
        self.peer.iter().chain(&self.peers).map(String::as_str).filter(|peer| known.insert(*peer)).collect()
    }
}

/// How bursts reach the lead broker of the root. May be changed while an instance runs: the brokers know only the name of
/// a Service in their own cluster, which then points elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BurstNetwork {
    /// `NodePort` (the default): a port on the node of the lead broker. `LoadBalancer`: an address of the root's cloud;
    /// bursts wait until there is one. `Tunnel`: through the agents' own connection, for clusters whose nodes cannot be
    /// reached from others; broker connections are held open while the way between the agents is cut, as long as the lease
    /// lasts (`bursting.lease_seconds`, 5 minutes unless configured), unless another replica of an agent takes over.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: BurstNetworkType,

    /// For `NodePort`: which of the node's addresses to use, best first, of `ExternalIP`, `InternalIP`, `ExternalDNS`,
    /// `InternalDNS` and `Hostname`. Names are resolved by the provider's agent. `ExternalIP`, then `InternalIP`, if not
    /// written.
    #[serde(skip_serializing_if = "is_default")]
    pub preferred_address_types: Vec<String>,

    /// Which family to use where there is a choice, best first: `IPv4` and `IPv6`, or one of them alone. If not written:
    /// those that the lead broker speaks, `IPv4` first.
    #[serde(skip_serializing_if = "is_default")]
    pub ip_families: Vec<String>,

    /// An IP address or host name of your own at which the lead broker is reached, instead of the node's or the load
    /// balancer's: a NAT, a name in DNS. Not for `Tunnel`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub address: Option<String>,

    /// The port there, with `address`, if it is another than the NodePort or, with `LoadBalancer`, 8050.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
}

/// The ways from a burst to its lead broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BurstNetworkType {
    /// A NodePort Service on the root.
    #[default]
    NodePort,
    /// A LoadBalancer Service on the root, at port 8050.
    LoadBalancer,
    /// A QUIC connection between the two agents.
    Tunnel,
    /// A word of a newer version: no instance is made, and a burst that is there keeps its way.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}
