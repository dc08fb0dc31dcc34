//! A provider's cluster, and its agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tributary_api::budget::Usage;
use tributary_api::hosted_burst::{HostedBurst, HostedBurstStatus};
use tributary_api::labels;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary_api::peer::{ClusterPeer, ClusterPeerSpec, ImportPolicy};
use tributary_clock::Mono;
use tributary_cluster::election::{claimed, term_before};
use tributary_contract::ports::Incoming as _;
use tributary_contract::tunnel::TunnelKey;
use tributary_contract::{CredentialRequest, ObservedBurst, PeerName, PeerReport};
use tributary_render::nodes::Amounts;

use super::root::{TIMES, hear, list, quiet, said, state};
use super::{ENDS, Kept, LEASE, MARGIN, OLDEST, Pen, Rule, Said, TICK, now, older, secs};
use crate::contact::Contacts;
use crate::nodes::{NodeView, PodView};
use crate::ours::Ours;
use crate::peers::{self, PeerView};
use crate::provider::admission::Facts;
use crate::provider::claims;
use crate::provider::grants::Few;
use crate::provider::lease::Before;
use crate::provider::ledger::{Ledger, SlotKey};
use crate::provider::materialize::Materials;
use crate::provider::memory::{Memory, SecretState};
use crate::provider::rate::Rates;
use crate::provider::slot::{self, Change, SlotView};
use crate::sync_store::{Answer, SyncStore};

/// What brokers run as, from their first second to their last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Instance {
    pub(super) incarnation: String,
    /// Of the certificate.
    pub(super) digest: String,
    pub(super) burst: TunnelKey,
    pub(super) tunnel: bool,
}

/// The cluster, as far as it is about the slot.
#[derive(Clone, Debug)]
pub(super) struct Provider {
    /// Its ClusterPeer of the root.
    peer: ClusterPeer,
    pub(super) hosted: Option<HostedBurst>,
    mini_cluster: Option<MiniCluster>,
    /// The certificate: UID of its HostedBurst, and digest.
    secret: Option<(String, String)>,
    /// The Job: UID of its MiniCluster, and what its pods run as.
    job: Option<(String, Instance)>,
    /// Pods that were told to end.
    leaving: Option<Instance>,
    /// Ticks since the MiniCluster of pods is gone.
    orphaned: u8,
    lease: Lease,
    made: u8,
    pub(super) agent: Option<ProviderAgent>,
    pub(super) epoch: u64,
    /// Ticks in which nobody looked after the burst, or which its clocks did not see.
    pub(super) late: u8,
}

#[derive(Debug)]
pub(super) struct ProviderAgent {
    exchange: SyncStore,
    contacts: Contacts,
    memory: Memory,
    before: Before,
    /// Ticks since the root was heard: 0 in contact, 1 suspect, 2 lost.
    pub(super) silence: u8,
    /// The same, as far as this agent knows.
    heard: Option<u8>,
    /// A certificate that is to be asked for.
    pub(super) asks: Option<CredentialRequest>,
}

impl Clone for ProviderAgent {
    fn clone(&self) -> Self {
        Self {
            exchange: self.exchange.copy(),
            contacts: self.contacts.clone(),
            memory: self.memory.clone(),
            before: self.before.clone(),
            silence: self.silence,
            heard: self.heard,
            asks: self.asks.clone(),
        }
    }
}

fn root() -> PeerName {
    "east".into()
}

impl Provider {
    pub(super) fn new() -> Self {
        let import = ImportPolicy { namespaces: vec!["*".into()], ..ImportPolicy::default() };
        let mut peer = ClusterPeer::new("east", ClusterPeerSpec { import: Some(import), ..Default::default() });
        peer.metadata.generation = Some(1);
        peer.spec.cluster_uid = Some("east-cluster".into());
        Self {
            peer,
            hosted: None,
            mini_cluster: None,
            secret: None,
            job: None,
            leaving: None,
            orphaned: 0,
            lease: Lease::default(),
            made: 0,
            agent: None,
            epoch: 0,
            late: 0,
        }
    }

    /// What brokers run as here.
    pub(super) fn running(&self) -> impl Iterator<Item = &Instance> {
        self.job.iter().map(|(_, instance)| instance).chain(&self.leaving)
    }

    /// All its brokers are online.
    pub(super) fn is_ready(&self) -> bool {
        self.job.is_some() && self.mini_cluster.as_ref().is_some_and(|found| found.status.is_some())
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { hosted, mini_cluster, secret, job, leaving, .. } = self;
        hosted.is_none() && mini_cluster.is_none() && secret.is_none() && job.is_none() && leaving.is_none()
    }

    /// A new leader.
    pub(super) fn start(&mut self, out: Option<Rule>) {
        self.epoch += 1;
        self.lease = claimed(std::mem::take(&mut self.lease), "agent", Duration::from_secs(6), now().wall);
        let spec = self.lease.spec.get_or_insert_default();
        (spec.acquire_time, spec.lease_transitions) = (None, None);
        let mut before = Before::of(term_before(&self.lease), [&self.peer], self.hosted.as_ref(), now().wall);
        if out == Some(Rule::LossIsStored) {
            before = Before::default();
            let status = self.hosted.as_mut().and_then(|hosted| hosted.status.as_mut());
            status.into_iter().for_each(|status| status.suspect_since = None);
        }
        let mut agent = ProviderAgent {
            exchange: SyncStore::default(),
            contacts: Contacts::begin(now().mono),
            memory: Memory::default(),
            before,
            silence: 2,
            heard: None,
            asks: None,
        };
        agent.look();
        self.agent = Some(agent);
    }

    /// A session with the root, or the end of one.
    pub(super) fn meets(&mut self, silence: u8) {
        if let Some(agent) = &mut self.agent {
            if silence == 0 {
                agent.heard = Some(0);
            }
            agent.silence = silence;
            agent.look();
        }
    }

    /// A pass over the slot.
    pub(super) fn pass(&self, dies_after: Option<u8>) -> (Kept<Self>, u8) {
        let mut next = self.clone();
        let mut pen = Pen { writes: 0, dies_after };
        if let Some(mut agent) = next.agent.take() {
            next.agent = next.rounds(&mut agent, &mut pen).map(|()| agent);
        }
        (next.kept(), pen.writes)
    }

    fn rounds(&mut self, agent: &mut ProviderAgent, pen: &mut Pen) -> Option<()> {
        for _ in 0..8 {
            let (writes, memory) = (pen.writes, agent.memory.clone());
            self.count(agent);
            self.round(agent, pen)?;
            if (pen.writes, &agent.memory) == (writes, &memory) {
                break;
            }
        }
        agent.exchange.set_complete(true);
        self.renew(agent);
        Some(())
    }

    /// The controller of ClusterPeers: whoever leads next dates losses from what it writes.
    fn count(&mut self, agent: &ProviderAgent) {
        let away = agent.contacts.away(&root(), now().mono);
        if let Some(mut status) =
            peers::status(&self.peer, Some(&agent.report()), away, (Usage::default(), now().wall, false), now())
        {
            status.conditions.clear();
            self.peer.status = Some(status);
        }
    }

    /// As the leader does, which lets go of what was before once every loss is dated.
    fn renew(&mut self, agent: &ProviderAgent) {
        let dated = self.hosted.as_ref().is_none_or(|hosted| {
            let status = hosted.status.as_ref();
            let dated = status.is_some_and(|is| is.suspect_since.is_some() || is.draining_since.is_some());
            dated || agent.contacts.has_heard(&root())
        });
        if dated && let Some(annotations) = &mut self.lease.metadata.annotations {
            annotations.remove(labels::TERM_BEFORE);
        }
        self.lease.spec.get_or_insert_default().renew_time = Some(MicroTime(now().wall));
    }

    fn round(&mut self, agent: &mut ProviderAgent, pen: &mut Pen) -> Option<()> {
        let view = PeerView::of(&self.peer, Some(&agent.report()), now().wall);
        let views: BTreeMap<PeerName, PeerView> = [(root(), view)].into();
        let key: SlotKey = ("flux".into(), "lake-burst-0".into());
        let memories: BTreeMap<SlotKey, Memory> = [(key.clone(), agent.memory.clone())].into();
        let mut sorted = claims::sort(agent.exchange.claims(), self.hosted.as_ref(), &memories, &views);
        for claim in sorted.nothing {
            agent.exchange.answer(&claim, Answer::Nothing);
        }
        let claims = sorted.slots.remove(&key).unwrap_or_default();
        let mut ledger = Ledger::default();
        ledger.rebuild(self.hosted.as_ref());
        let (nodes, pods) = (nodes(), self.pods());
        let facts = Facts {
            import: None,
            draining: false,
            slot: &key,
            namespace_exists: true,
            own_namespace: "",
            ledger: &ledger,
            nodes: &nodes,
            pods: &pods,
        };
        let step = slot::step(&SlotView {
            now: now(),
            grace: TIMES.grace,
            key: &key,
            claims: &claims,
            listed: &agent.exchange,
            peers: &views,
            contacts: &agent.contacts,
            before: &agent.before,
            hosted: self.hosted.as_ref(),
            mini_cluster: self.mini_cluster.as_ref(),
            pods: &pods,
            warmers: &[],
            facts: &facts,
            grants: &Few::default(),
            ours: &Ours::default(),
            inlet: &Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 7_000)),
            surplus: false,
            memory: &agent.memory,
            rates: &Rates::default(),
        });
        // What a peer offers within a minute is not limited here.
        agent.memory = Memory { turns: BTreeMap::new(), ..step.memory };
        for change in step.changes {
            self.carry_out(agent, change, pen)?;
        }
        for (claim, answer) in step.answers {
            agent.exchange.answer(&claim, plain_answer(answer));
        }
        Some(())
    }

    fn carry_out(&mut self, agent: &mut ProviderAgent, change: Change, pen: &mut Pen) -> Option<()> {
        match change {
            Change::Admit { hosted, .. } => {
                let mut hosted = *hosted;
                hosted.metadata.uid = Some(self.uid());
                hosted.metadata.generation = Some(1);
                assert_eq!(self.hosted.replace(hosted), None, "created over another one");
                pen.wrote()
            }
            Change::Update(wanted) => {
                let stored = self.hosted.as_mut().unwrap();
                if stored.spec == wanted.spec {
                    return Some(());
                }
                stored.spec = wanted.spec;
                pen.wrote()
            }
            Change::Status(status) => {
                let stored = self.hosted.as_mut().unwrap();
                let status = plain(*status);
                if stored.status.as_ref() == Some(&status) {
                    return Some(());
                }
                stored.status = Some(status);
                pen.wrote()
            }
            Change::LookSecret => {
                agent.memory.secret = match &self.secret {
                    Some((_, digest)) => SecretState::Held {
                        digest: digest.clone(),
                        public_key: String::new(),
                        looked: Some(now().mono),
                    },
                    None => SecretState::Missing { again: Mono::ZERO, message: String::new() },
                };
                Some(())
            }
            Change::RequestCredential { request, .. } => {
                agent.asks = Some(request);
                Some(())
            }
            Change::Materialize(materials) => self.materialize(*materials, pen),
            Change::DeleteMiniCluster { uid } => {
                if self.mini_cluster.as_ref().and_then(|found| found.metadata.uid.as_ref()) != Some(&uid) {
                    return Some(());
                }
                self.mini_cluster = None;
                pen.wrote()
            }
            Change::LookLeft => {
                agent.memory.looked_empty = self.mini_cluster.is_none() && self.job.is_none() && self.leaving.is_none();
                Some(())
            }
            Change::DeleteHosted { uid } => {
                if self.hosted.as_ref().and_then(|found| found.metadata.uid.as_ref()) != Some(&uid) {
                    return Some(());
                }
                self.hosted = None;
                pen.wrote()
            }
            // The garbage collector takes Jobs itself.
            Change::ClearLeft => Some(()),
            Change::Dial(_)
            | Change::Resolve(_)
            | Change::WarmUp { .. }
            | Change::EndWarmUp
            | Change::DeletePod(_)
            | Change::LookRequest
            | Change::MakeRequest
            | Change::EndRequest
            | Change::Unbook { .. } => {
                unreachable!("nodes are simulated, leads have addresses, and no node is lost")
            }
        }
    }

    fn materialize(&mut self, materials: Materials, pen: &mut Pen) -> Option<()> {
        let Some(wanted) = materials.mini_cluster else { return Some(()) };
        let uid = self.uid();
        match &mut self.mini_cluster {
            Some(stored) if stored.spec == wanted.spec => {
                self.made -= 1;
                Some(())
            }
            Some(stored) => {
                stored.spec = wanted.spec;
                self.made -= 1;
                pen.wrote()
            }
            none => {
                let mut new = wanted;
                new.metadata.uid = Some(uid);
                *none = Some(new);
                pen.wrote()
            }
        }
    }

    fn uid(&mut self) -> String {
        self.made += 1;
        format!("uid-{}", self.made)
    }

    fn pods(&self) -> Vec<PodView> {
        let pod = |terminating| PodView {
            namespace: "flux".into(),
            name: "lake-burst-0-0".into(),
            job: Some("lake-burst-0".into()),
            index: Some(0),
            node: Some("n1".into()),
            running: true,
            terminating,
            ..PodView::default()
        };
        let kept = self.job.iter().map(|_| pod(false));
        kept.chain(self.leaving.iter().map(|_| pod(true))).collect()
    }

    /// The answer to a request for the certificate: its digest, or that there is none.
    pub(super) fn is_given(&mut self, digest: Option<String>) {
        let Some(agent) = &mut self.agent else { return };
        agent.memory.secret = SecretState::Missing { again: Mono::ZERO, message: String::new() };
        agent.asks = None;
        let owner = self.hosted.as_ref().and_then(|hosted| hosted.metadata.uid.clone());
        if let (Some(digest), Some(owner)) = (digest, owner) {
            agent.memory.secret = SecretState::Unknown;
            self.secret = Some((owner, digest));
        }
    }

    /// The next thing that the garbage collector, the kubelet, or the controller of MiniClusters does here; whether there is
    /// any.
    pub(super) fn runs(&mut self) -> bool {
        let live = self.hosted.as_ref().and_then(|hosted| hosted.metadata.uid.clone());
        let owner = |found: &MiniCluster| found.metadata.owner_references.as_ref().unwrap()[0].uid.clone();
        if self.secret.as_ref().is_some_and(|(owner, _)| Some(owner) != live.as_ref()) {
            self.secret = None;
            return true;
        }
        if self.mini_cluster.as_ref().is_some_and(|found| Some(owner(found)) != live) {
            self.mini_cluster = None;
            return true;
        }
        let uid = self.mini_cluster.as_ref().and_then(|found| found.metadata.uid.clone());
        if self.job.as_ref().is_some_and(|(owner, _)| Some(owner) != uid.as_ref()) && self.leaving.is_none() {
            self.leaving = self.job.take().map(|(_, instance)| instance);
            return true;
        }
        if self.leaving.take().is_some() {
            self.orphaned = 0;
            return true;
        }
        let (Some(mini_cluster), Some(hosted), Some(_)) = (&mut self.mini_cluster, &self.hosted, &self.agent) else {
            return false;
        };
        // No Job without the certificate.
        let Some((_, digest)) = &self.secret else { return false };
        if self.job.is_some() {
            return false;
        }
        let instance = Instance {
            incarnation: hosted.spec.root.incarnation.clone(),
            digest: digest.clone(),
            burst: (hosted.spec.peer.as_str().into(), hosted.spec.burst_uid.as_str().into()),
            tunnel: hosted.spec.tunnel,
        };
        self.job = Some((mini_cluster.metadata.uid.clone().unwrap(), instance));
        let ready = mini_cluster.spec.size;
        mini_cluster.status = Some(MiniClusterStatus { ready, ..MiniClusterStatus::default() });
        true
    }

    pub(super) fn says(&self) -> Said {
        said(&self.agent.as_ref().unwrap().exchange, &root(), self.epoch)
    }

    /// `new`: also what is new in it.
    pub(super) fn hears(&mut self, said: &Said, new: bool) {
        if let Some(agent) = &self.agent {
            let take = if new { hear } else { list };
            take(&agent.exchange, &root(), said);
        }
    }

    /// The wall clock is set on, or back.
    pub(super) fn jump(&mut self, secs: i64) {
        self.move_dates(secs);
        // A lease may end early, or late by as much, after a restart.
        self.late = MARGIN + 1;
    }

    fn move_dates(&mut self, secs: i64) {
        let moved = |Time(at): &mut Time| *at = older(*at, secs);
        if let Some(since) = self.peer.status.as_mut().and_then(|status| status.suspect_since.as_mut()) {
            moved(since);
        }
        if let Some(since) = self.hosted.as_mut().and_then(|found| found.status.as_mut()?.suspect_since.as_mut()) {
            moved(since);
        }
        if let Some(MicroTime(at)) = self.lease.spec.as_mut().and_then(|spec| spec.renew_time.as_mut()) {
            *at = older(*at, secs);
        }
        if let Some(text) = self.lease.metadata.annotations.as_mut().and_then(|all| all.get_mut(labels::TERM_BEFORE)) {
            *text = older(text.parse().unwrap(), secs).to_string();
        }
        if let Some(agent) = &mut self.agent {
            agent.before.move_dates(|at| older(at, secs), OLDEST);
        }
    }

    /// A tick passes. `session`: the root is in contact.
    pub(super) fn age(&mut self, session: bool) {
        self.move_dates(secs());
        let gone = self.mini_cluster.is_none() && self.running().next().is_some();
        self.orphaned = if gone { (self.orphaned + 1).min(ENDS) } else { 0 };
        if let Some(agent) = &mut self.agent {
            agent.contacts.age(TICK, now().mono - OLDEST, &[root()]);
            agent.silence = if session { 0 } else { (agent.silence + 1).min(2) };
            agent.heard = if session { Some(0) } else { agent.heard.map(|heard| (heard + 1).min(8)) };
            let memory = &mut agent.memory;
            memory.absent_since = memory.absent_since.map(|since| (since - TICK).max(now().mono - LEASE));
            if let SecretState::Held { looked, .. } = &mut memory.secret {
                *looked = Some(now().mono - OLDEST);
            }
            agent.look();
        }
        if self.orphaned == ENDS {
            while self.mini_cluster.is_none() && self.running().next().is_some() && self.runs() {}
        }
    }

    /// A tick was lost on it.
    pub(super) fn is_late(&mut self) {
        self.late = (self.late + 1).min(MARGIN + 1);
    }

    /// As it is told from others. Of what is gone, nothing is late.
    pub(super) fn kept(mut self) -> Kept<Self> {
        if self.hosted.is_none() && self.running().next().is_none() {
            self.late = 0;
        }
        if let Some(agent) = &mut self.agent {
            quiet(&agent.exchange);
        }
        Kept::new(self)
    }
}

impl ProviderAgent {
    /// Whether it waits for a certificate.
    pub(super) fn asked(&self) -> bool {
        self.asks.is_some() || self.memory.secret == SecretState::Asked
    }

    fn report(&self) -> PeerReport {
        let last_seen = self.heard.map(|heard| older(now().wall, secs() * i64::from(heard)));
        PeerReport { state: state(self.silence), last_seen, ..PeerReport::default() }
    }

    fn look(&mut self) {
        self.exchange.retain_peers(&BTreeSet::from([root()]));
        let cluster_uid = Some("east-cluster".into()).filter(|_| self.silence < 2);
        self.exchange.peer_report(&root(), PeerReport { cluster_uid, last_seen: None, ..self.report() });
        self.contacts.observe(Some(&root()).filter(|_| self.silence == 0), now().mono);
    }
}

fn nodes() -> BTreeMap<String, NodeView> {
    let node = NodeView {
        schedulable: true,
        allocatable: Amounts { milli_cores: 64_000, memory: 1 << 36, gpus: 0 },
        simulated: true,
        ..NodeView::default()
    };
    [("n1".to_owned(), node)].into()
}

/// A status without what no decision reads.
fn plain(status: HostedBurstStatus) -> HostedBurstStatus {
    HostedBurstStatus {
        message: String::new(),
        conditions: Vec::new(),
        times: None,
        preflight: Vec::new(),
        spent: Default::default(),
        draining_since: status.draining_since.map(|_| Time(now().wall)),
        ..status
    }
}

fn plain_answer(answer: Answer) -> Answer {
    match answer {
        Answer::Nothing => Answer::Nothing,
        Answer::Observed(said) => Answer::from(ObservedBurst {
            message: String::new(),
            times: Default::default(),
            preflight: Vec::new(),
            used: None,
            ..*said
        }),
    }
}
