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
use tributary::api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary::api::peer::ClusterPeer;
use tributary::clock::SharedClock;
use tributary::cluster::caches::{Cache, controller_of};
use tributary::cluster::conditions;
use tributary::cluster::fence::Fence;
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
    /// Who leads.
    pub fence: Fence,
    /// The mesh, while the federation is open.
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
            leader: self.fence.leading().is_some(),
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
        let (bursts_ready, bursts) =
            bursts_ready(&status).unwrap_or_else(|| (0, count(object.spec.flux.bursting.clusters.len())));
        MiniClusterRow {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            size: count(object.spec.size()),
            ready: count(status.ready.unwrap_or(0)),
            phase: status.phase.map_or_else(|| "Pending".to_owned(), |phase| phase.to_string()),
            message: said.map(|one| one.message.clone()).filter(|message| !message.is_empty()),
            hosted_for: owner.map(|owner| owner.spec.peer.clone()),
            bursts,
            bursts_ready,
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

/// How many of the bursts that are wanted are ready, as `kubectl get` shows it; `None`: there are no Bursts yet.
fn bursts_ready(status: &MiniClusterStatus) -> Option<(u32, u32)> {
    let (ready, wanted) = status.bursts_ready.as_deref()?.split(' ').next()?.split_once('/')?;
    Some((ready.parse().ok()?, wanted.parse().ok()?))
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

fn count(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tributary::clock::{Now, SystemClock};
    use tributary::cluster::fence::{Epoch, LeaderState, Leadership};

    use super::*;

    fn local(leads: bool) -> Local {
        let clock = SystemClock::shared();
        let (state, fence) = Fence::closed(clock.clone());
        let valid_until = Now::of(&*clock).plus(Duration::from_secs(60));
        let epoch = Epoch { transitions: 1, holder: "me".into() };
        state.send_replace(match leads {
            true => LeaderState::Leading(Leadership { epoch, before: None, valid_until }),
            false => LeaderState::default(),
        });
        Local {
            cluster: "east".into(),
            cluster_uid: String::new(),
            labels: BTreeMap::new(),
            mini_clusters: Cache::empty(),
            bursts: Cache::empty(),
            hosted: Cache::empty(),
            peers: Cache::empty(),
            identity: Arc::default(),
            clock,
            fence,
            mesh: watch::channel(None).1,
        }
    }

    /// The danger: its identity has expired, and `agentctl check` says that it does not lead.
    #[test]
    fn who_leads_says_so_without_a_federation() {
        assert_eq!([true, false].map(|leads| local(leads).status().leader), [true, false]);
    }

    /// The danger: `1/2`, and the second burst sleeps since nobody asks for it.
    #[test]
    fn bursts_are_counted_as_the_status_of_their_root_counts_them() {
        let counted = |said: Option<&str>| {
            let bursts = json!({"clusters": [{"size": 1}, {"size": 1, "name": "pond"}]});
            let mut root: MiniCluster = serde_json::from_value(json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {"name": "lake"},
                "spec": {"containers": [], "flux": {"bursting": bursts}},
            }))
            .unwrap();
            let row = |name: &str, phase: &str| json!({"name": name, "phase": phase, "size": 1, "ready": 1});
            root.status = serde_json::from_value(json!({
                "size": 1, "selector": "", "jobid": "", "maximumSize": 1, "burstsReady": said, "bursts": [row("lake-burst-0", "Ready"), row("pond", "Asleep")],
            }))
            .unwrap();
            let row = local(true).mini_cluster(&root);
            (row.bursts_ready, row.bursts)
        };
        assert_eq!(counted(Some("1/1")), (1, 1));
        assert_eq!(counted(Some("0/1 NamespaceNotFound")), (0, 1));
        assert_eq!(counted(None), (0, 2));
    }

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
