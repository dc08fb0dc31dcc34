//! The root's cluster, and its agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::LazyLock;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::burst::{Burst, BurstStatus, CredentialRecipient, SlotRelease};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels;
use tributary_api::minicluster::{BurstNetworkType, BurstStatus as Row, MiniCluster};
use tributary_api::peer::ClusterPeer;
use tributary_contract::ports::{Incoming as _, Outgoing as _, State, StateKey};
use tributary_contract::tunnel::Ends;
use tributary_contract::{BurstUid, CredentialRequest, Epoch, LeadAddress, PeerName, PeerReport, PeerState};

use super::{DRAIN, Kept, LEASE, NAMES, OLDEST, Pen, Rule, Said, TICK, name, now, older, secs};
use crate::contact::Contacts;
use crate::nodes::PodView;
use crate::peers::PeerView;
use crate::root::burst_status::{self, BurstView};
use crate::root::plan::{Given, PlanChange, plan};
use crate::root::{credential, hold, offer};
use crate::sync_store::{Answer, SyncStore};
use crate::timing::Times;
use crate::tunnels;

pub(super) const TIMES: Times = Times { lease: LEASE, drain: DRAIN, grace: LEASE };

static ROOT: LazyLock<MiniCluster> = LazyLock::new(|| {
    let mut root = crate::root::plan::tests::root();
    root.spec.flux.bursting.clusters.truncate(1);
    let burst = &mut root.spec.flux.bursting.clusters[0];
    (burst.peer, burst.peers) = (None, NAMES.map(str::to_owned).into());
    let status = root.status.as_mut().unwrap();
    let map = tributary_flux::RankMap::parse_canonical(status.rank_map.as_deref().unwrap()).unwrap();
    let map = tributary_flux::RankMap::new(map.slots()[..2].to_vec()).unwrap();
    status.rank_map = Some(map.to_canonical());
    status.rank_map_digest = Some(map.digest().to_string());
    root
});

/// The cluster: its MiniCluster by what matters of it, and its Burst.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) network: BurstNetworkType,
    /// Which object of its name the MiniCluster is, which Job, and which certificate it runs with.
    pub(super) life: u8,
    pub(super) job: u8,
    pub(super) certificate: u8,
    /// It is suspended.
    pub(super) over: bool,
    /// What its status says of who holds the slot.
    pub(super) row: Option<CredentialRecipient>,
    pub(super) burst: Option<Burst>,
    made: u8,
    /// Which cluster each ClusterPeer stands for.
    pub(super) peers: [Option<u8>; 2],
    pub(super) agent: Option<RootAgent>,
    pub(super) epoch: u64,
}

#[derive(Debug)]
pub(super) struct RootAgent {
    exchange: SyncStore,
    contacts: Contacts,
    /// Ticks since each peer was heard: 0 in contact, 1 suspect, 2 lost.
    pub(super) silence: [u8; 2],
    /// Whose brokers the root's end of the tunnel lets in, and of which incarnation.
    pub(super) outlet: Option<(PeerName, String)>,
}

impl Clone for RootAgent {
    fn clone(&self) -> Self {
        let Self { exchange, contacts, silence, outlet } = self;
        Self { exchange: exchange.copy(), contacts: contacts.clone(), silence: *silence, outlet: outlet.clone() }
    }
}

/// What a pass leads to.
#[derive(Clone)]
pub(super) struct Passed {
    pub(super) next: Kept<Root>,
    pub(super) writes: u8,
    /// Slots that a person let go.
    pub(super) released: [bool; 2],
}

impl Root {
    pub(super) fn new(network: BurstNetworkType) -> Self {
        Self {
            network,
            life: 1,
            job: 1,
            certificate: 1,
            over: false,
            row: None,
            burst: None,
            made: 0,
            peers: [Some(0); 2],
            agent: None,
            epoch: 0,
        }
    }

    pub(super) fn mini_cluster(&self) -> MiniCluster {
        let mut root = ROOT.clone();
        root.metadata.uid = Some(format!("root-{}", self.life));
        root.spec.flux.bursting.network.kind = self.network;
        root.spec.suspend = self.over;
        let status = root.status.as_mut().unwrap();
        status.incarnation = Some(self.incarnation());
        status.credential_digest = Some(self.digest());
        status.bursts =
            vec![Row { name: root.spec.bursts("lake").next().unwrap().0, holder: self.row.clone(), ..Row::default() }];
        root
    }

    pub(super) fn incarnation(&self) -> String {
        format!("job-{}", self.job)
    }

    pub(super) fn digest(&self) -> String {
        format!("certificate-{}", self.certificate)
    }

    pub(super) fn status(&self) -> BurstStatus {
        self.burst.as_ref().and_then(|burst| burst.status.clone()).unwrap_or_default()
    }

    /// The ClusterPeers.
    fn views(&self, agent: &RootAgent) -> BTreeMap<PeerName, PeerView> {
        let view = |index: usize| {
            let cluster = self.peers[index]?;
            let mut peer = ClusterPeer::new(NAMES[index], Default::default());
            peer.metadata.uid = Some(format!("{}-{cluster}", NAMES[index]));
            peer.metadata.generation = Some(1 + i64::from(cluster));
            peer.spec.cluster_uid = Some(format!("{}-cluster-{cluster}", NAMES[index]));
            Some((name(index), PeerView::of(&peer, Some(&agent.report(index)), now().wall)))
        };
        (0..2).filter_map(view).collect()
    }

    /// A new leader.
    pub(super) fn start(&mut self) {
        self.epoch += 1;
        let (exchange, contacts) = (SyncStore::default(), Contacts::begin(now().mono));
        self.agent = Some(RootAgent { exchange, contacts, silence: [2; 2], outlet: None });
        self.look();
    }

    /// Takes in what is known of connections.
    pub(super) fn look(&mut self) {
        let known = self.peers;
        let Some(agent) = &mut self.agent else { return };
        let peers: BTreeSet<PeerName> = (0..2).filter(|index| known[*index].is_some()).map(name).collect();
        agent.exchange.retain_peers(&peers);
        for index in (0..2).filter(|index| known[*index].is_some()) {
            let cluster = known[index].unwrap();
            let uid = format!("{}-cluster-{cluster}", NAMES[index]).into();
            let cluster_uid = Some(uid).filter(|_| agent.silence[index] < 2);
            agent.exchange.peer_report(&name(index), PeerReport { cluster_uid, ..agent.report(index) });
        }
        let present: Vec<_> = (0..2).filter(|index| known[*index].is_some() && agent.silence[*index] < 2).collect();
        agent.contacts.observe(&present.into_iter().map(name).collect::<Vec<_>>(), now().mono);
    }

    /// A session with a peer, or the end of one.
    pub(super) fn meets(&mut self, provider: usize, silence: u8) {
        if let Some(agent) = &mut self.agent {
            agent.silence[provider] = silence;
            self.look();
        }
    }

    /// A pass over everything.
    pub(super) fn pass(&self, out: Option<Rule>, dies_after: Option<u8>) -> Passed {
        let mut next = self.clone();
        let mut pen = Pen { writes: 0, dies_after };
        let mut released = [false; 2];
        if let Some(mut agent) = next.agent.take() {
            next.agent = next.rounds(&mut agent, &mut pen, &mut released, out).map(|()| agent);
        }
        Passed { next: next.kept(), writes: pen.writes, released }
    }

    fn rounds(
        &mut self,
        agent: &mut RootAgent,
        pen: &mut Pen,
        released: &mut [bool; 2],
        out: Option<Rule>,
    ) -> Option<()> {
        for _ in 0..8 {
            let before = pen.writes;
            self.plan(pen)?;
            self.place(agent, pen, released, out)?;
            if pen.writes == before {
                break;
            }
        }
        agent.exchange.set_complete(true);
        Some(())
    }

    fn plan(&mut self, pen: &mut Pen) -> Option<()> {
        let lead = LeadAddress { address: "192.0.2.1".into(), port: 30050 };
        let given =
            Given { lead: Some(&lead), arch: None, times: &TIMES, trace: None, refused: false, namespace_goes: false };
        let existing: Vec<Burst> = self.burst.iter().cloned().collect();
        for change in plan(&self.mini_cluster(), &existing.iter().collect::<Vec<_>>(), given) {
            match (change, &mut self.burst) {
                (PlanChange::Apply(planned), None) => {
                    self.made += 1;
                    let mut burst = *planned;
                    burst.metadata.uid = Some(format!("burst-{}", self.made));
                    burst.metadata.generation = Some(1);
                    self.burst = Some(burst);
                    pen.wrote()?;
                }
                (PlanChange::Apply(planned), Some(stored)) if stored.spec != planned.spec => {
                    stored.spec = planned.spec;
                    stored.metadata.generation = stored.metadata.generation.map(|generation| generation + 1);
                    pen.wrote()?;
                }
                (PlanChange::Apply(_), _) => {}
                (PlanChange::Delete { .. }, _) => {
                    self.burst = None;
                    pen.wrote()?;
                }
            }
        }
        Some(())
    }

    fn place(
        &mut self,
        agent: &mut RootAgent,
        pen: &mut Pen,
        released: &mut [bool; 2],
        out: Option<Rule>,
    ) -> Option<()> {
        let views = self.views(agent);
        let uid: Option<BurstUid> = self.burst.as_ref().map(|burst| offer::uid(burst).into());
        for gone in agent.exchange.offered(|one| Some(one) != uid.as_ref()) {
            agent.exchange.offer(&gone, BTreeMap::new());
        }
        let (Some(uid), Some(stored)) = (uid, self.burst.clone()) else {
            agent.outlet = None;
            return Some(());
        };
        let burst = blind(&stored, out);
        let mut answers = agent.exchange.answers(&uid);
        if out == Some(Rule::HolderConfirms) {
            let leaves = |said: &Answer| matches!(said, Answer::Observed(said) if said.phase == BurstPhase::Draining);
            answers.values_mut().filter(|said| leaves(said)).for_each(|said| *said = Answer::Nothing);
        }
        let view = BurstView {
            now: now(),
            counted: now().wall,
            grace: TIMES.grace,
            burst: burst.into(),
            own: "east".into(),
            peers: views.clone(),
            contacts: agent.contacts.clone(),
            answers,
            withdrawing: agent.exchange.withdrawing(&uid),
            undeliverable: BTreeMap::new(),
            no_lead: None,
            ends: Ends::default(),
            root: Some(self.mini_cluster().into()),
            seen: None,
        };
        let step = burst_status::step(&view, &BTreeMap::new());
        let mut status = plain(step.status);
        for word in std::mem::take(&mut status.releases) {
            released[NAMES.iter().position(|name| *name == word.peer).unwrap()] = true;
        }
        let stored = self.burst.insert(stored);
        if stored.status.as_ref() != Some(&status) {
            stored.status = Some(status);
            // A word about another loss is none, also if that is as long ago as the one it was about.
            if hold::word(stored, stored.status.as_ref().unwrap()).is_none() {
                stored.metadata.annotations = None;
            }
            pen.wrote()?;
        }
        let outlet = tunnels::outlet(stored, &[lead_pod()]);
        agent.outlet = outlet.map(|((peer, _), outlet)| (peer, outlet.incarnation));
        offer::say(&agent.exchange, stored, &views);
        Some(())
    }

    /// The controller of MiniClusters says who holds the slot: as `reconcile::bursts::rows` has it.
    pub(super) fn count(&mut self, out: Option<Rule>) {
        let digest = self.digest();
        self.row = match &self.burst {
            Some(burst) if burst.status.is_none() && out == Some(Rule::HolderIsCarried) => None,
            Some(burst) => burst.holder().cloned(),
            None => self.row.take().filter(|row| row.credential_digest == digest),
        };
    }

    /// A peer asks for the certificate: whether that goes on.
    pub(super) fn grant(&mut self, provider: usize, request: &CredentialRequest, out: Option<Rule>) -> bool {
        let Some(agent) = &self.agent else { return false };
        let view = self.views(agent).remove(&name(provider));
        let Some(burst) = self.burst.as_mut().filter(|burst| offer::uid(burst) == request.burst.as_str()) else {
            return false;
        };
        let seen = blind(burst, out);
        match credential::grant(&seen, &name(provider), view.as_ref(), request) {
            Ok(credential::Grant::Record(status)) if out != Some(Rule::RecordedFirst) => {
                burst.status = Some(plain(*status));
            }
            Ok(_) => {}
            Err(_) => return false,
        }
        true
    }

    /// Whether the certificate goes out: the root's status names the peer, and the Secret holds what was asked for.
    pub(super) fn hands_out(&self, provider: usize, request: &CredentialRequest, out: Option<Rule>) -> bool {
        let named = |row: &CredentialRecipient| {
            row.peer == NAMES[provider]
                && row.incarnation == request.incarnation
                && row.credential_digest == request.digest
        };
        let unnamed = matches!(out, Some(Rule::HolderIsNamed | Rule::RecordedFirst));
        self.digest() == request.digest && (unnamed || self.row.as_ref().is_some_and(named))
    }

    pub(super) fn says(&self, provider: usize) -> Said {
        let peer = name(provider);
        let exchange = &self.agent.as_ref().unwrap().exchange;
        said(exchange, &peer, self.epoch)
    }

    /// `new`: also what is new in it.
    pub(super) fn hears(&mut self, provider: usize, said: &Said, new: bool) {
        if let Some(agent) = &self.agent {
            let take = if new { hear } else { list };
            take(&agent.exchange, &name(provider), said);
        }
    }

    /// A tick passes; these peers are in session.
    pub(super) fn age(&mut self, sessions: [bool; 2]) {
        let moved = |Time(at): &mut Time| *at = older(*at, secs());
        if let Some(burst) = &mut self.burst {
            let word = burst.status.as_ref().and_then(|status| hold::word(burst, status));
            if let Some(since) = burst.status.as_mut().and_then(|status| status.lost_since.as_mut()) {
                moved(since);
            }
            if let Some(mut word) = word {
                moved(&mut word.lost_since);
                say(burst, &word);
            }
        }
        if let Some(agent) = &mut self.agent {
            agent.contacts.age(TICK, now().mono - OLDEST, &NAMES.map(PeerName::from));
            for (silence, session) in agent.silence.iter_mut().zip(sessions) {
                *silence = if session { 0 } else { (*silence + 1).min(2) };
            }
        }
        self.look();
    }

    /// As it is told from others.
    pub(super) fn kept(mut self) -> Kept<Self> {
        if let Some(agent) = &mut self.agent {
            quiet(&agent.exchange);
        }
        Kept::new(self)
    }

    /// A person writes that the slot is free, of the loss that they see.
    pub(super) fn let_go(&mut self) {
        let (incarnation, status) = (self.incarnation(), self.status());
        let (Some(burst), Some(peer), Some(lost_since)) = (&mut self.burst, status.peer, status.lost_since) else {
            return;
        };
        let burst_uid = offer::uid(burst).to_owned();
        let word = SlotRelease { burst_uid, incarnation, peer, lost_since, by: "person".into(), at: Time(now().wall) };
        say(burst, &word);
    }
}

impl RootAgent {
    fn report(&self, provider: usize) -> PeerReport {
        PeerReport { state: state(self.silence[provider]), ..PeerReport::default() }
    }
}

pub(super) fn state(silence: u8) -> PeerState {
    match silence {
        0 => PeerState::Connected,
        1 => PeerState::Suspect,
        _ => PeerState::Disconnected,
    }
}

pub(super) fn said(exchange: &SyncStore, peer: &PeerName, epoch: u64) -> Said {
    let keys = exchange.keys(peer);
    let states: Vec<(StateKey, State)> =
        keys.into_iter().filter_map(|key| exchange.state(peer, &key).map(|state| (key, state))).collect();
    Said { epoch: Epoch(epoch), states, complete: exchange.complete() }
}

/// What changed lately is no part of a state: passes look at everything.
pub(super) fn quiet(exchange: &SyncStore) {
    exchange.dirty().take();
    exchange.claims_changed().take();
    exchange.answers_changed().take();
    exchange.first_listed().take();
    exchange.reports_changed().take();
}

pub(super) fn hear(exchange: &SyncStore, peer: &PeerName, said: &Said) {
    for (key, state) in &said.states {
        exchange.put(peer, said.epoch, key.clone(), state.clone());
    }
    if said.complete {
        let keys: Vec<StateKey> = said.states.iter().map(|(key, _)| key.clone()).collect();
        exchange.complete_snapshot(peer, said.epoch, &keys);
    }
}

/// What is said is listed, and what is new of it has not arrived yet.
pub(super) fn list(exchange: &SyncStore, peer: &PeerName, said: &Said) {
    let known = |(key, state): &&(StateKey, State)| exchange.heard(peer, key).as_ref() == Some(state);
    let unchanged: Vec<StateKey> = said.states.iter().filter(known).map(|(key, _)| key.clone()).collect();
    exchange.unchanged(peer, said.epoch, &unchanged);
    if said.complete {
        let keys: Vec<StateKey> = said.states.iter().map(|(key, _)| key.clone()).collect();
        exchange.complete_snapshot(peer, said.epoch, &keys);
    }
}

fn say(burst: &mut Burst, word: &SlotRelease) {
    burst.metadata.annotations = Some([(labels::RELEASE.to_owned(), serde_json::to_string(word).unwrap())].into());
}

/// A Burst as it looks without a rule.
fn blind(burst: &Burst, out: Option<Rule>) -> Burst {
    let mut burst = burst.clone();
    match (out, &mut burst.status) {
        (Some(Rule::NoClockFrees), status) => {
            burst.spec.tunnel = true;
            let recipients = status.iter_mut().flat_map(|status| &mut status.credential_recipients);
            recipients.for_each(|known| known.tunnel = true);
        }
        (Some(Rule::HolderIsNamed), _) => burst.spec.holder = None,
        (Some(Rule::StrangersAreNotHeard), Some(status)) => {
            status.credential_recipients.iter_mut().for_each(|known| known.cluster_uid = None);
        }
        _ => {}
    }
    burst
}

/// A status without what no decision reads. How often a burst came back lately is left out as well: who let go of it is
/// asked again at once.
fn plain(status: BurstStatus) -> BurstStatus {
    let free = Time(Timestamp::UNIX_EPOCH);
    let recipients = status.credential_recipients.into_iter();
    BurstStatus {
        message: String::new(),
        conditions: Vec::new(),
        frozen: None,
        times: None,
        reserved_until: None,
        preflight: Vec::new(),
        spent: Default::default(),
        used: Default::default(),
        peer_count: None,
        returns: Vec::new(),
        credential_recipients: recipients
            .map(|known| CredentialRecipient { free_since: known.free_since.map(|_| free.clone()), ..known })
            .collect(),
        refusals: status
            .refusals
            .into_iter()
            .map(|refusal| tributary_api::burst::BurstRefusal { message: String::new(), generation: 0, ..refusal })
            .collect(),
        ..status
    }
}

/// Index 0 of the root's Job.
fn lead_pod() -> PodView {
    let address = Ipv4Addr::new(10, 1, 0, 7).into();
    PodView { index: Some(0), node: Some("n1".into()), running: true, addresses: vec![address], ..PodView::default() }
}
