//! This cluster, as the admin API shows it: from the caches, with no request.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tributary::admin::{
    API_VERSION, BurstRow, ClusterStatus, HostedRow, IdentityRow, MiniClusterRow, PeerRow, SpentRow,
};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels::{condition, reason};
use tributary::api::minicluster::{BurstStatus, MiniCluster};
use tributary::api::peer::ClusterPeer;
use tributary::clock::SharedClock;
use tributary::cluster::caches::{Cache, controller_of};
use tributary::cluster::conditions;
use tributary::contract::ports::PeerRequests;
use tributary::contract::{Finding, PeerName, PeerReport, PeerState, PhaseTimes};
use tributary::federation::identity::Identity;

use crate::admin_http::LocalStatus;
use crate::figures::IdentityInUse;

/// Phase of a MiniCluster that the agent makes nothing of.
const LEFT_ALONE: &str = "LeftAlone";

/// The caches the documents are made of.
pub(crate) struct Local {
    /// Name of this cluster.
    pub cluster: String,
    /// UID of its namespace kube-system.
    pub cluster_uid: String,
    /// Labels from the configuration.
    pub labels: BTreeMap<String, String>,
    /// MiniClusters.
    pub mini_clusters: Cache<MiniCluster>,
    /// Bursts.
    pub bursts: Cache<Burst>,
    /// HostedBursts.
    pub hosted: Cache<HostedBurst>,
    /// ClusterPeers of the agent's namespace.
    pub peers: Cache<ClusterPeer>,
    /// The identity in use, once this agent has led.
    pub identity: Arc<IdentityInUse>,
    /// Time.
    pub clock: SharedClock,
    /// The mesh, while this agent leads.
    pub mesh: watch::Receiver<Option<Arc<dyn PeerRequests>>>,
}

impl LocalStatus for Local {
    fn status(&self) -> ClusterStatus {
        let mesh = self.mesh.borrow().clone();
        let reports = mesh.as_ref().map(|mesh| mesh.reports()).unwrap_or_default();
        ClusterStatus {
            api_version: API_VERSION.to_owned(),
            cluster: self.cluster.clone(),
            cluster_uid: Some(self.cluster_uid.clone()),
            version: crate::VERSION.to_owned(),
            leader: mesh.is_some(),
            labels: self.labels.clone(),
            now: Some(self.clock.wall()),
            identity: self.identity.current().map(|current| identity(&current)),
            mini_clusters: self.mini_cluster_rows(),
            bursts: self.burst_rows(),
            hosted: self.hosted.objects().iter().map(|object| hosted(object)).collect(),
            peers: self.peers.objects().iter().map(|object| peer(object, &reports)).collect(),
        }
    }
}

fn identity(current: &Identity) -> IdentityRow {
    IdentityRow { id: current.id().to_string(), not_before: current.not_before(), not_after: current.not_after() }
}

impl Local {
    fn mini_cluster_rows(&self) -> Vec<MiniClusterRow> {
        let mut rows: Vec<_> = self.mini_clusters.objects().iter().map(|object| self.mini_cluster(object)).collect();
        rows.extend(self.mini_clusters.left_alone().iter().map(|object| left_alone(object)));
        for unreadable in self.mini_clusters.unreadable() {
            let namespace = unreadable.key.namespace.clone().unwrap_or_default();
            let is_it = |row: &&mut MiniClusterRow| row.namespace == namespace && row.name == unreadable.key.name;
            let message = Some(unreadable.sentence());
            match rows.iter_mut().find(is_it) {
                Some(row) => row.message = message,
                None => rows.push(MiniClusterRow {
                    namespace,
                    name: unreadable.key.name,
                    phase: reason::UNREADABLE.to_owned(),
                    message,
                    ..MiniClusterRow::default()
                }),
            }
        }
        rows
    }

    fn mini_cluster(&self, object: &MiniCluster) -> MiniClusterRow {
        let status = object.status.clone().unwrap_or_default();
        let owner = controller_of::<HostedBurst>(object).and_then(|key| self.hosted.of(&key));
        let ready = conditions::find(&status.conditions, "Ready");
        let worth = |one: &&Condition| !["Starting", "Pending", "Running"].contains(&one.reason.as_str());
        let bursts = conditions::find(&status.conditions, "BurstsReady");
        let failing = bursts.filter(|one| one.status == "False" && one.reason != reason::NOT_ALL_READY);
        // A hosted one runs on when what let it in is taken away.
        let admitted = owner.as_ref().and_then(|owner| owner.status.as_ref());
        let admitted = admitted.and_then(|status| conditions::find(&status.conditions, condition::ADMITTED));
        let unwanted = admitted.filter(|one| one.status == "False");
        let said = ready.filter(worth).or(unwanted).or(failing);
        MiniClusterRow {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            size: count(object.spec.size()),
            ready: count(status.ready.unwrap_or(0)),
            phase: status.phase.map_or_else(|| "Pending".to_owned(), |phase| phase.to_string()),
            message: said.map(|one| one.message.clone()).filter(|message| !message.is_empty()),
            hosted_for: owner.map(|owner| owner.spec.peer.clone()),
            bursts: u32::try_from(object.spec.flux.bursting.clusters.len()).unwrap_or(u32::MAX),
            bursts_ready: u32::try_from(status.bursts.iter().filter(|burst| is_ready(burst)).count())
                .unwrap_or(u32::MAX),
            created: created(object),
        }
    }

    fn burst_rows(&self) -> Vec<BurstRow> {
        let mut objects = self.bursts.objects();
        objects.sort_by_key(|burst| (burst.namespace(), burst.spec.root.clone(), burst.spec.index));
        let root = |object: &Burst| controller_of::<MiniCluster>(object).and_then(|key| self.mini_clusters.of(&key));
        objects.iter().map(|object| burst(object, root(object).as_deref())).collect()
    }
}

/// A MiniCluster that another controller makes something of: its status says what, if anything. Its bursts are not ours.
fn left_alone(object: &MiniCluster) -> MiniClusterRow {
    let status = object.status.clone().unwrap_or_default();
    let manager = object.spec.left_to().unwrap_or_default();
    MiniClusterRow {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        size: count(object.spec.size()),
        ready: count(status.ready.unwrap_or(0)),
        phase: LEFT_ALONE.to_owned(),
        message: Some(match status.phase {
            Some(phase) => format!("left to {manager} (managedBy), which says {phase}"),
            None => format!("left to {manager} (managedBy), which has said nothing"),
        }),
        created: created(object),
        ..MiniClusterRow::default()
    }
}

fn is_ready(burst: &BurstStatus) -> bool {
    burst.phase == "Ready" && burst.reason.is_none()
}

fn burst(object: &Burst, root: Option<&MiniCluster>) -> BurstRow {
    let status = object.status.clone().unwrap_or_default();
    let short = status.phase == BurstPhase::Ready && root.is_some_and(|root| object.shortfall(root).is_some());
    BurstRow {
        namespace: object.namespace().unwrap_or_default(),
        name: object.spec.slot.clone(),
        root: object.spec.root.clone(),
        peer: status.peer,
        whole: object.spec.whole,
        phase: if short { condition::RESTART_REQUIRED.to_owned() } else { status.phase.to_string() },
        size: root.map_or(object.spec.size, |root| object.wanted(root)),
        ready_brokers: status.ready_brokers,
        lead: object.spec.lead.clone(),
        rank_map_digest: object.spec.rank_map_digest.clone(),
        message: Some(status.message).filter(|message| !message.is_empty()),
        times: status.times.clone().map(PhaseTimes::from).unwrap_or_default(),
        preflight: status.preflight.into_iter().map(Finding::from).collect(),
        simulated: status.simulated,
        spent: SpentRow {
            seconds: status.spent.seconds,
            broker_seconds: status.spent.broker_seconds,
            cost: status.spent.cost,
            brokers: status.spent.brokers,
            hourly: status.spent.hourly,
            since: status.spent.since.map(|since| since.0),
        },
        created: created(object),
    }
}

fn hosted(object: &HostedBurst) -> HostedRow {
    let status = object.status.clone().unwrap_or_default();
    HostedRow {
        namespace: object.namespace().unwrap_or_default(),
        name: object.spec.slot.clone(),
        peer: object.spec.peer.clone(),
        root: object.spec.root.name.clone(),
        phase: status.phase.to_string(),
        size: object.spec.size,
        ready_brokers: status.ready_brokers,
        message: Some(status.message).filter(|message| !message.is_empty()),
        suspect_since: status.suspect_since.map(|time| time.0),
        created: created(object),
    }
}

fn peer(object: &ClusterPeer, reports: &BTreeMap<PeerName, PeerReport>) -> PeerRow {
    let name = object.name_any();
    let report = reports.get(name.as_str()).cloned().unwrap_or_default();
    let state = if object.spec.suspend { PeerState::Suspended } else { report.state };
    PeerRow {
        state,
        endpoint: report.endpoint,
        version: report.version,
        drained: object.spec.drain,
        flapping: report.flapping,
        rtt_micros: report.rtt_micros,
        control: report.control,
        tunnel: report.tunnel,
        last_seen: report.last_seen,
        capacity: report.capacity,
        message: report.refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.message)),
        imports: object.spec.import.is_some(),
        created: created(object),
        name,
    }
}

fn created(object: &impl Resource) -> Option<jiff::Timestamp> {
    object.meta().creation_timestamp.as_ref().map(|time| time.0)
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_phase_of_a_newer_version_is_shown_by_its_word() {
        let phase = json!({"phase": "Thawing"});
        let mut object = HostedBurst::new("lake", Default::default());
        object.status = serde_json::from_value(phase.clone()).unwrap();
        assert_eq!(hosted(&object).phase, "Thawing");
        let mut object = Burst::new("lake", Default::default());
        object.status = serde_json::from_value(phase.clone()).unwrap();
        assert_eq!(burst(&object, None).phase, "Thawing");
        let mut object = MiniCluster::new("lake", Default::default());
        object.status = serde_json::from_value(phase).unwrap();
        assert!(left_alone(&object).message.unwrap().ends_with("says Thawing"));
    }
}
