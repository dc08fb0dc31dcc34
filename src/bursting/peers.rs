//! ClusterPeers: what the federation needs of them, what is known of the peer, and what is written back.
//!
//! A ClusterPeer's status changes on transitions only. A connection that ended with a word and is away for less than
//! [`LOST_AFTER`] is no transition: agents restart, and a restart must write nothing. Silence is one at once: a dead peer
//! is marked within 5 s. A connection that keeps breaking counts as lost until it has held for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::budget::{BurstBudget, Spent, Usage};
use tributary_api::burst::BurstRefusal;
use tributary_api::flux_setup::Quota;
use tributary_api::labels::condition::{BUDGET, CONNECTED, SCALE_UP};
use tributary_api::minicluster::Amount;
use tributary_api::node_group::LimitedNodeGroup;
use tributary_api::peer::{ClusterPeer, ClusterPeerStatus, ImportPolicy, PeerCapacity, PeerRoom};
use tributary_clock::Now;
use tributary_cluster::conditions::{self, Statement};
use tributary_contract::{
    Capacity, ClusterUid, NamespaceRoom, PeerName, PeerReport, PeerSpec, PeerState, Price, Refusal,
};
use tributary_render::quantity::milli;

use super::root::budget::{Account, Standing};
use super::timing::LOST_AFTER;

/// Reason of a ClusterPeer's condition `ScaleUp`: nobody can be asked for nodes.
const NOT_SERVED: &str = "NotServed";

/// A peer as decisions see it: its ClusterPeer, and what the federation reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerView {
    /// Labels of the ClusterPeer.
    pub labels: BTreeMap<String, String>,
    /// `metadata.uid` of the ClusterPeer.
    pub uid: Option<String>,
    /// `metadata.generation` of the ClusterPeer.
    pub generation: Option<i64>,
    /// No connection is wanted.
    pub suspended: bool,
    /// Nothing is placed there or taken from there any more.
    pub draining: bool,
    /// How much our bursts may use it.
    pub budget: BurstBudget,
    /// How much they have.
    pub spent: Spent,
    /// What bursts cost there; `None`: nobody wrote that.
    pub price: Option<Price>,
    /// Why nothing stays there: its budget is spent.
    pub exhausted: Option<String>,
    /// Why nothing new is placed there: its budget cannot be read.
    pub unreadable_budget: Option<String>,
    /// Where the connection stands.
    pub state: PeerState,
    /// The connection keeps breaking: nothing new is placed there.
    pub flapping: bool,
    /// The peer's last word on its capacity.
    pub capacity: Option<Capacity>,
    /// UID of the peer's cluster: as it shows it, else as it is pinned.
    pub cluster_uid: Option<ClusterUid>,
    /// When it was last heard of.
    pub last_seen: Option<Timestamp>,
    /// What it may place here.
    pub import: Option<ImportPolicy>,
    /// Its bursts bring no nodes: this cluster does not serve what these are to be asked for by.
    pub unserved: bool,
    /// Whether it may see our capacity.
    pub sees_capacity: bool,
}

impl PeerView {
    /// The view of one peer at a moment.
    pub fn of(peer: &ClusterPeer, report: Option<&PeerReport>, now: Timestamp) -> Self {
        let pinned = peer.pinned_uid().map(ClusterUid::from);
        let shown = report.and_then(|report| report.cluster_uid.clone());
        let spent = peer.status.as_ref().map(|status| status.spent.clone()).unwrap_or_default();
        let said = peer.status.as_ref().and_then(|status| conditions::find(&status.conditions, SCALE_UP));
        let (exhausted, unreadable_budget) = match account(peer, &spent).standing(now) {
            Some(Standing::Spent(why)) => (Some(why), None),
            Some(Standing::Unreadable(why)) => (None, Some(why)),
            _ => (None, None),
        };
        Self {
            labels: peer.metadata.labels.clone().unwrap_or_default(),
            uid: peer.metadata.uid.clone(),
            generation: peer.metadata.generation,
            suspended: peer.spec.suspend,
            draining: peer.spec.drain,
            budget: peer.spec.budget.clone(),
            spent,
            price: peer.spec.price,
            exhausted,
            unreadable_budget,
            state: report.map(|report| report.state).unwrap_or_default(),
            flapping: report.is_some_and(|report| report.flapping),
            capacity: report.and_then(|report| report.capacity.clone()),
            cluster_uid: pinned.or(shown),
            last_seen: report.and_then(|report| report.last_seen),
            import: peer.spec.import.clone(),
            unserved: said.is_some_and(|said| said.reason == NOT_SERVED),
            sees_capacity: peer.spec.export.clone().unwrap_or_default().capacity,
        }
    }

    /// Hello exchanged, heartbeats arrive.
    pub(crate) fn connected(&self) -> bool {
        self.state == PeerState::Connected
    }

    /// What a burst costs there at most; `grows`: it brings nodes, of which the peer says what they cost at most.
    pub fn price(&self, grows: bool) -> Option<Price> {
        let of_nodes = self.capacity.as_ref().filter(|_| grows).and_then(|capacity| capacity.possible?.price);
        dearest(self.price.into_iter().chain(of_nodes))
    }

    /// None of our bursts stays there.
    pub(crate) fn is_leaving(&self) -> bool {
        self.draining || self.exhausted.is_some()
    }

    /// Its budget, and what is spent of it. `name`: its own.
    pub(crate) fn account<'a>(&'a self, name: &'a str) -> Account<'a> {
        let unpriced = Some(name).filter(|_| self.price.is_none());
        Account { name: "the peer", budget: &self.budget, spent: &self.spent, unpriced }
    }

    /// Whether this is the ClusterPeer that a refusal was of, as it was then.
    pub(crate) fn is_unchanged_since(&self, refusal: &BurstRefusal) -> bool {
        let same = refusal.peer_uid.is_none() || refusal.peer_uid == self.uid;
        same && refusal.peer_generation == self.generation
    }

    /// A session exists: the peer may still hear us, even if we do not hear it.
    pub(crate) fn in_session(&self) -> bool {
        matches!(self.state, PeerState::Connected | PeerState::Suspect)
    }
}

fn account<'a>(peer: &'a ClusterPeer, spent: &'a Spent) -> Account<'a> {
    let unpriced = peer.metadata.name.as_deref().filter(|_| peer.spec.price.is_none());
    Account { name: "the peer", budget: &peer.spec.budget, spent, unpriced }
}

/// The highest price of cores and of GPUs, if there is any.
pub(crate) fn dearest(prices: impl IntoIterator<Item = Price>) -> Option<Price> {
    let highest =
        |a: Price, b: Price| Price { core_hour: a.core_hour.max(b.core_hour), gpu_hour: a.gpu_hour.max(b.gpu_hour) };
    prices.into_iter().reduce(highest)
}

/// What a peer may place here; `None`: nothing.
pub(crate) fn import<'a>(peers: &'a BTreeMap<PeerName, PeerView>, peer: &PeerName) -> Option<&'a ImportPolicy> {
    peers.get(peer)?.import.as_ref()
}

pub(crate) fn name_of(peer: &ClusterPeer) -> PeerName {
    peer.metadata.name.as_deref().unwrap_or_default().into()
}

/// What the federation needs of all ClusterPeers. One with our own name is left out: nobody dials himself.
pub(crate) fn specs<'a>(
    peers: impl IntoIterator<Item = &'a ClusterPeer>,
    own: &PeerName,
) -> BTreeMap<PeerName, PeerSpec> {
    let others = peers.into_iter().filter(|peer| name_of(peer) != *own && peer.metadata.deletion_timestamp.is_none());
    others
        .map(|peer| {
            let spec = PeerSpec {
                name: name_of(peer),
                endpoints: peer.spec.endpoints.clone(),
                trust_bundle: peer.spec.trust_bundle.clone().filter(|pem| !pem.trim().is_empty()),
                cluster_uid: peer.pinned_uid().map(ClusterUid::from),
                suspend: peer.spec.suspend,
            };
            (spec.name.clone(), spec)
        })
        .collect()
}

/// What is so of a peer. The federation, which reports the others, knows nothing of one with our own name: see [`specs`].
pub(crate) fn reported(peer: &PeerName, own: &PeerName, report: Option<PeerReport>) -> Option<PeerReport> {
    if peer != own {
        return report;
    }
    let message = "this is the name of this cluster itself: nothing is dialled; delete it here".to_owned();
    let refusal = Some(Refusal { reason: "OwnName".to_owned(), message });
    Some(PeerReport { state: PeerState::Refused, refusal, ..PeerReport::default() })
}

/// The status a ClusterPeer should have, or `None` if it has it. `away` is how long there is no session, `usage` what ours
/// there are, and `counted` until when that counts; `unserved`: this cluster has no ProvisioningRequests.
pub(crate) fn status(
    peer: &ClusterPeer,
    report: Option<&PeerReport>,
    away: Option<Duration>,
    (usage, counted, unserved): (Usage, Timestamp, bool),
    now: Now,
) -> Option<ClusterPeerStatus> {
    let empty = PeerReport::default();
    let report = report.unwrap_or(&empty);
    let old = peer.status.clone().unwrap_or_default();
    let mut new = old.clone();
    let conclusive = report.refusal.is_some() || peer.spec.suspend;
    let silent = report.state == PeerState::Suspect;
    let blip = away.is_some_and(|away| away < LOST_AFTER) && !conclusive;
    match away {
        None if silent || report.flapping => lost(&mut new, Duration::ZERO, report, now),
        None => connected(&mut new, report),
        Some(_) if blip => {}
        Some(away) => lost(&mut new, away, report, now),
    }
    new.spent = old.spent.on(usage, peer.spec.budget.renewal.as_deref(), counted);
    let connection = (!blip).then(|| statement(peer, report, new.connected));
    let budget = account(peer, &new.spent).standing(counted);
    let scale_up = scale_up(peer, unserved);
    let gone = [(BUDGET, budget.is_none()), (SCALE_UP, scale_up.is_none())];
    let gone: Vec<&str> = gone.into_iter().filter(|(_, gone)| *gone).map(|(type_, _)| type_).collect();
    let statements = connection.into_iter().chain(budget.map(|standing| standing.statement())).chain(scale_up);
    let merged = conditions::merged(&old.conditions, statements, peer.metadata.generation, now.wall);
    new.conditions = conditions::without(merged, &gone);
    if !blip {
        new.observed_generation = peer.metadata.generation;
    }
    (new != old).then_some(new)
}

/// By which class of ProvisioningRequests nodes for bursts of a peer are asked for.
pub(crate) fn provisioning_class(peer: &ClusterPeer) -> Option<&str> {
    let policy = peer.spec.import.as_ref()?.scale_up.as_ref()?;
    Some(policy.provisioning_request.as_ref()?.provisioning_class_name.as_str())
}

/// Which node groups hold no broker at all, since their amounts are none of a node; or that nobody can be asked for nodes.
fn scale_up(peer: &ClusterPeer, unserved: bool) -> Option<Statement> {
    let policies = peer.spec.import.iter().filter_map(|import| import.scale_up.as_ref());
    let wrong = policies.flat_map(|policy| &policy.node_groups).flat_map(|LimitedNodeGroup { group, .. }| {
        let amounts = [("cpu", &group.cpu), ("memory", &group.memory)];
        let none = amounts.into_iter().filter(|(_, amount)| milli(&amount.to_string()).is_none_or(|milli| milli <= 0));
        let of = &group.name;
        none.map(move |(field, amount)| {
            format!("import.scaleUp.nodeGroups[{of}].{field}: {amount} is nothing that a node has")
        })
    });
    let wrong: Vec<String> = wrong.collect();
    if !wrong.is_empty() {
        let message = format!("{}: no burst is taken for nodes of these groups", wrong.join("; "));
        return Some(Statement::fails(SCALE_UP, "Invalid", message));
    }
    let class = provisioning_class(peer).filter(|_| unserved)?;
    let message = format!(
        "import.scaleUp.provisioningRequest: nodes are to be asked for by ProvisioningRequests of class {class}, and this \
         cluster does not serve them (autoscaling.x-k8s.io/v1): no burst is taken that brings nodes. Install their \
         definition with the autoscaler, or leave the field out"
    );
    Some(Statement::fails(SCALE_UP, NOT_SERVED, message))
}

/// When the budget of a peer stands otherwise, if nothing else changes.
pub(crate) fn budget_wake(peer: &ClusterPeer, spent: &Spent, now: Timestamp) -> Option<Duration> {
    account(peer, spent).standing(now)?.wake(now)
}

fn connected(status: &mut ClusterPeerStatus, report: &PeerReport) {
    status.connected = true;
    status.endpoint.clone_from(&report.endpoint);
    status.version.clone_from(&report.version);
    status.labels.clone_from(&report.labels);
    status.suspect_since = None;
    if status.cluster_uid.is_none() {
        status.cluster_uid = report.cluster_uid.clone().map(String::from);
    }
    let capacity = report.capacity.as_ref().map(coarse);
    if moved(status.capacity.as_ref(), capacity.as_ref()) {
        status.capacity = capacity;
    }
    status.rooms = report.capacity.iter().flat_map(|capacity| &capacity.rooms).map(room).collect();
}

fn lost(status: &mut ClusterPeerStatus, away: Duration, report: &PeerReport, now: Now) {
    status.endpoint = None;
    let undated = status.suspect_since.is_none() && status.cluster_uid.is_some();
    if status.connected || undated {
        let since = now.wall.checked_sub(away).unwrap_or(now.wall);
        status.suspect_since = Some(Time(report.last_seen.map_or(since, |seen| seen.min(since))));
    }
    status.connected = false;
}

fn statement(peer: &ClusterPeer, report: &PeerReport, connected: bool) -> Statement {
    if connected {
        return Statement::holds(CONNECTED, "SessionUp", "heartbeats arrive");
    }
    if peer.spec.suspend {
        return Statement::fails(CONNECTED, "Suspended", "spec.suspend is set: no connection is made");
    }
    if report.flapping {
        return Statement::fails(
            CONNECTED,
            "Flapping",
            "the connection keeps breaking: it counts, and bursts are placed there, once it has held for a while; \
             bursts that are there stay",
        );
    }
    if report.state == PeerState::Suspect {
        return Statement::fails(
            CONNECTED,
            "HeartbeatsMissing",
            "nothing is heard of the peer: it is dialled anew; its bursts go on until their lease ends",
        );
    }
    match &report.refusal {
        Some(Refusal { reason, message }) => Statement::fails(CONNECTED, reason.clone(), message.clone()),
        None if peer.spec.endpoints.is_empty() => {
            Statement::fails(CONNECTED, "WaitingForPeer", "spec.endpoints is empty: the peer has to dial us")
        }
        None => Statement::fails(CONNECTED, "Disconnected", "there is no session with the peer"),
    }
}

fn coarse(capacity: &Capacity) -> PeerCapacity {
    PeerCapacity {
        nodes: capacity.nodes,
        free_cores: capacity.free_cores,
        free_memory_mib: capacity.free_memory_mib,
        free_gpus: capacity.free_gpus,
        possible: capacity.possible,
    }
}

fn room(room: &NamespaceRoom) -> PeerRoom {
    let NamespaceRoom { namespace, mini_clusters, brokers, milli_cores, memory_mib, gpus } = room.clone();
    let cores = |milli: u64| match milli % 1000 {
        0 => Amount::Text((milli / 1000).to_string()),
        _ => Amount::Text(format!("{milli}m")),
    };
    let memory = |mib: u64| Amount::Text(format!("{mib}Mi"));
    let left = Quota { mini_clusters, brokers, cpu: milli_cores.map(cores), memory: memory_mib.map(memory), gpus };
    PeerRoom { namespace, left }
}

/// Whether capacity changed by more than a tenth, or appeared, or went.
fn moved(old: Option<&PeerCapacity>, new: Option<&PeerCapacity>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return old != new };
    let differs = |old: u64, new: u64| old.abs_diff(new) * 10 > old.max(new);
    old.nodes != new.nodes
        || old.free_gpus != new.free_gpus
        || old.possible != new.possible
        || differs(old.free_cores.into(), new.free_cores.into())
        || differs(old.free_memory_mib, new.free_memory_mib)
}

#[cfg(test)]
mod tests;
