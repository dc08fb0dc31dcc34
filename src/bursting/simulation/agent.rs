//! An agent: the pure steps of both sides, driven on a [`Cluster`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use jiff::Timestamp;
use tributary_api::burst::Burst;
use tributary_clock::{Mono, Now};
use tributary_contract::{CredentialRequest, LeadAddress, PeerName, PeerReport};

use super::cluster::{Cluster, Secret};
use crate::contact::Contacts;
use crate::nodes::PodView;
use crate::ours::Ours;
use crate::peers::{self, PeerView};
use crate::preflight::lead::Seen;
use crate::provider::admission::Facts;
use crate::provider::claims;
use crate::provider::lease::Before;
use crate::provider::ledger::{Ledger, SlotKey};
use crate::provider::memory::{Memory, SecretState};
use crate::provider::rate::Rates;
use crate::provider::slot::{self, Answered, Change, SlotView};
use crate::root::burst_status::{self, BurstView};
use crate::root::place::Claimed;
use crate::root::plan::Given;
use crate::root::{credential, offer, plan};
use crate::sync_store::SyncStore;
use crate::timing::Times;
use crate::tunnels::{self, Tunnels};

/// Where an agent takes the connections of a hosted burst.
const INLET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 7_000);

pub(super) struct Agent {
    pub(super) exchange: SyncStore,
    root_contacts: Contacts,
    provider_contacts: Contacts,
    pub(super) memories: BTreeMap<SlotKey, Memory>,
    ledger: Ledger,
    rates: Rates,
    /// What its term found when it began.
    before: Option<Before>,
    /// Certificates asked for: whom, what for.
    pub(super) requests: Vec<(PeerName, SlotKey, CredentialRequest)>,
    /// What of its roots' bursts is let in through it.
    pub(super) tunnels: Tunnels,
    now: Mono,
}

impl Agent {
    pub(super) fn start(now: Mono) -> Self {
        Self {
            exchange: SyncStore::default(),
            root_contacts: Contacts::begin(now),
            provider_contacts: Contacts::begin(now),
            memories: BTreeMap::new(),
            ledger: Ledger::default(),
            rates: Rates::default(),
            before: None,
            requests: Vec::new(),
            tunnels: Tunnels::new(None),
            now,
        }
    }

    /// A round of both controllers over everything.
    pub(super) fn run(&mut self, cluster: &mut Cluster, now: Now) {
        self.now = now.mono;
        let reports = self.exchange.reports();
        let views: BTreeMap<PeerName, PeerView> = cluster
            .peers
            .values()
            .map(|peer| (peers::name_of(peer), PeerView::of(peer, reports.get(&peers::name_of(peer)), now.wall)))
            .collect();
        self.exchange.retain_peers(&views.keys().cloned().collect());
        let present = |test: fn(&PeerView) -> bool| views.iter().filter(move |(_, v)| test(v)).map(|(name, _)| name);
        self.root_contacts.observe(present(PeerView::in_session), now.mono);
        self.provider_contacts.observe(present(PeerView::connected), now.mono);
        self.root(cluster, &views, now);
        self.count(cluster, &reports, now);
        let before = self.before.take().unwrap_or_else(|| cluster.begin_term(now.wall));
        self.provider(cluster, &views, &before, now);
        self.before = Some(before);
        cluster.renew(now.wall, &self.provider_contacts);
        self.exchange.set_complete(true);
    }

    fn root(&mut self, cluster: &mut Cluster, views: &BTreeMap<PeerName, PeerView>, now: Now) {
        let lead = LeadAddress { address: "192.0.2.1".into(), port: 30050 };
        let given = Given { lead: Some(&lead), arch: None, times: &Times::default(), trace: None };
        for root in cluster.roots.clone().values() {
            let uid = root.metadata.uid.as_deref();
            let existing: Vec<_> =
                cluster.bursts.values().filter(|burst| offer::root_uid(burst) == uid).cloned().collect();
            for change in plan::plan(root, &existing.iter().collect::<Vec<_>>(), given) {
                if cluster.refuses() {
                    break;
                }
                cluster.plan(change);
            }
        }
        // The garbage collector, for roots that are gone.
        let live: BTreeSet<_> = cluster.roots.values().filter_map(|root| root.metadata.uid.clone()).collect();
        cluster.bursts.retain(|_, burst| live.contains(offer::root_uid(burst).unwrap()));

        let own = PeerName::from(cluster.name.as_str());
        for (name, burst) in cluster.bursts.clone() {
            let uid = offer::uid(&burst).into();
            let step = burst_status::step(&BurstView {
                now,
                grace: Times::default().grace,
                burst: &burst,
                own: &own,
                peers: views,
                contacts: &self.root_contacts,
                claimed: &BTreeMap::<PeerName, Claimed>::new(),
                answers: &self.exchange.answers(&uid),
                withdrawing: &self.exchange.withdrawing(&uid),
                undeliverable: &self.exchange.undeliverable_to(&uid),
                no_lead: None,
                seen: cluster.seen.as_ref(),
                root: cluster.roots.values().find(|root| root.metadata.uid.as_deref() == offer::root_uid(&burst)),
            });
            if cluster.refuses() {
                continue;
            }
            cluster.burst_status(&name, step.status);
            let stored = &cluster.bursts[&name];
            self.tunnels.fence(offer::uid(stored), tunnels::outlet(stored, &[lead_pod()]), || {
                let recipients = offer::recipients(stored, views);
                self.exchange.offer(&uid, recipients.into_iter().map(|peer| (peer, offer::desired(stored))).collect());
            });
        }
        let existing: BTreeSet<_> = cluster.bursts.values().map(|burst| offer::uid(burst).into()).collect();
        for uid in self.exchange.offered().difference(&existing) {
            self.exchange.offer(uid, BTreeMap::new());
        }
        self.tunnels.retain_outlets(|(_, uid)| existing.contains(uid));
    }

    /// What the controllers of MiniClusters and of ClusterPeers count, and whom they miss.
    fn count(&self, cluster: &mut Cluster, reports: &BTreeMap<PeerName, PeerReport>, now: Now) {
        let bursts: Vec<_> = cluster.bursts.values().cloned().collect();
        let brokers = |of: &dyn Fn(&Burst) -> bool| {
            let all = bursts.iter().filter(|burst| of(burst)).filter_map(|burst| burst.status.as_ref());
            all.map(|status| status.spent.brokers).sum::<u32>()
        };
        for root in cluster.roots.values_mut() {
            let here = brokers(&|burst| offer::root_uid(burst) == root.metadata.uid.as_deref());
            let status = root.status.as_mut().unwrap();
            let renewal = root.spec.flux.bursting.budget.renewal.as_deref();
            status.bursts_spent = status.bursts_spent.on(here, renewal, now.wall);
        }
        for (name, peer) in &mut cluster.peers {
            let there = brokers(&|burst| burst.status.as_ref().is_some_and(|s| s.peer.as_ref() == Some(name)));
            let of = peers::name_of(peer);
            let status = peers::status(peer, reports.get(&of), self.root_contacts.away(&of, now.mono), there, now);
            if let Some(status) = status {
                let stored = peer.status.get_or_insert_default();
                stored.spent = status.spent;
                // Whoever leads next dates losses from it.
                (stored.connected, stored.suspect_since) = (status.connected, status.suspect_since);
            }
        }
    }

    fn provider(&mut self, cluster: &mut Cluster, views: &BTreeMap<PeerName, PeerView>, before: &Before, now: Now) {
        self.ledger.rebuild(cluster.hosted.values());
        let sorted = claims::sort(self.exchange.claims(), cluster.hosted.values(), &self.memories, views);
        for claim in sorted.nothing {
            self.exchange.answer(&claim, Answered::Nothing);
        }
        for (key, claims) in sorted.slots {
            let memory = self.memories.get(&key).cloned().unwrap_or_default();
            let nodes = cluster.nodes();
            let pods = cluster.pods();
            let facts = Facts {
                import: None,
                draining: false,
                slot: &key,
                namespace_exists: true,
                own_namespace: "",
                ledger: &self.ledger,
                nodes: &nodes,
                pods: &pods,
            };
            let own: Vec<_> =
                pods.iter().filter(|pod| pod.namespace == key.0 && pod.job.as_ref() == Some(&key.1)).cloned().collect();
            let step = slot::step(&SlotView {
                now,
                grace: Times::default().grace,
                key: &key,
                claims: &claims,
                listed: &self.exchange.listed(),
                peers: views,
                contacts: &self.provider_contacts,
                before,
                hosted: cluster.hosted.get(&key),
                mini_cluster: cluster.mini_clusters.get(&key),
                pods: &own,
                warmers: &[],
                facts: &facts,
                grants: &cluster.grants(),
                ours: &Ours::default(),
                inlet: &Ok(INLET),
                surplus: false,
                memory: &memory,
                rates: &self.rates,
            });
            self.rates = step.rates;
            let mut memory = step.memory;
            let mut changes = step.changes.into_iter();
            let mut failed = false;
            while let Some(change) = changes.next() {
                let asks = matches!(change, Change::RequestCredential { .. } | Change::Resolve(_));
                failed = !asks && cluster.refuses();
                if failed {
                    memory.left_undone(changes.as_slice());
                    break;
                }
                self.carry_out(cluster, &key, change, &mut memory);
            }
            for (claim, answer) in step.answers.into_iter().filter(|_| !failed) {
                self.exchange.answer(&claim, answer);
            }
            if memory.is_empty() {
                self.memories.remove(&key);
            } else {
                self.memories.insert(key, memory);
            }
        }
    }

    fn carry_out(&mut self, cluster: &mut Cluster, key: &SlotKey, change: Change, memory: &mut Memory) {
        match change {
            Change::Admit { hosted, .. } => cluster.host(*hosted),
            Change::Update(wanted) => {
                let stored = cluster.hosted.get_mut(key).unwrap();
                if stored.spec != wanted.spec {
                    stored.spec = wanted.spec;
                    cluster.writes += 1;
                }
            }
            Change::Status(status) => {
                let stored = cluster.hosted.get_mut(key).unwrap();
                if stored.status.as_ref() != Some(&status) {
                    stored.status = Some(*status);
                    cluster.writes += 1;
                }
            }
            Change::LookSecret => {
                memory.secret = match cluster.secrets.get(key) {
                    Some(secret) => {
                        let (digest, public_key) = (secret.digest.clone(), String::new());
                        SecretState::Held { digest, public_key, looked: self.now }
                    }
                    None => SecretState::Missing { again: Mono::ZERO, message: String::new() },
                };
            }
            Change::RequestCredential { peer, request } => self.requests.push((peer, key.clone(), request)),
            Change::Dial(target) => memory.attempt.saw(&target, Seen::Welcomed, self.now),
            Change::Resolve(_) => unreachable!("leads have addresses here"),
            Change::Materialize(materials) => cluster.materialize(key, *materials),
            Change::WarmUp { .. } | Change::EndWarmUp => unreachable!("nobody asks for that here"),
            Change::DeletePod(_) => unreachable!("nodes are not lost here, and have room"),
            Change::DeleteMiniCluster { uid } => cluster.delete_mini_cluster(key, &uid),
            Change::LookLeft => {
                memory.looked_empty = !cluster.jobs.contains_key(key) && !cluster.mini_clusters.contains_key(key);
            }
            // The garbage collector of this world takes Jobs itself.
            Change::ClearLeft => {}
            Change::DeleteHosted { uid } => cluster.delete_hosted(key, &uid),
        }
    }

    /// Root side: a peer asks for a certificate.
    pub(super) fn grant(&self, cluster: &mut Cluster, peer: &PeerName, request: &CredentialRequest) -> bool {
        let asked = |burst: &Burst| cluster.away.is_none() && offer::uid(burst) == request.burst.as_str();
        let Some((name, burst)) = cluster.bursts.iter().find(|(_, burst)| asked(burst)) else { return false };
        let name = name.clone();
        let reports = self.exchange.reports();
        let view =
            cluster.peers.get(peer.as_str()).map(|found| PeerView::of(found, reports.get(peer), Timestamp::UNIX_EPOCH));
        match credential::grant(burst, peer, view.as_ref(), request) {
            Ok(credential::Grant::Record(status)) => cluster.burst_status(&name, *status),
            Ok(credential::Grant::Recorded) => {}
            Err(_) => return false,
        }
        self.exchange.forget_release(peer, &request.burst);
        true
    }

    /// Provider side: the answer to such a request.
    pub(super) fn granted(&mut self, cluster: &mut Cluster, key: &SlotKey, digest: Option<String>) {
        let Some(memory) = self.memories.get_mut(key) else { return };
        memory.secret = SecretState::Missing { again: Mono::ZERO, message: "not granted".into() };
        let owner = cluster.hosted.get(key).and_then(|hosted| hosted.metadata.uid.clone());
        if let (Some(digest), Some(owner), None) = (digest, owner, cluster.away) {
            memory.secret = SecretState::Unknown;
            cluster.secrets.insert(key.clone(), Secret { owner, digest });
            cluster.writes += 1;
        }
    }
}

/// Index 0 of a root's Job.
fn lead_pod() -> PodView {
    let address = Ipv4Addr::new(10, 1, 0, 7).into();
    PodView { index: Some(0), node: Some("n1".into()), running: true, addresses: vec![address], ..PodView::default() }
}
