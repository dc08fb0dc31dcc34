//! Bursting as one part of an agent: its caches, its two drivers, and its ends of the contract.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tributary_api::burst::{Burst, BurstRefusal};
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::MiniCluster;
use tributary_api::node_group::NodeGroup;
use tributary_api::peer::ClusterPeer;
use tributary_clock::{Mono, Now, SharedClock};
use tributary_cluster::caches::{Cache, Subscription};
use tributary_cluster::client::Clients;
use tributary_cluster::engine;
use tributary_cluster::error::chain;
use tributary_cluster::events::Events;
use tributary_cluster::leadership::Handover;
use tributary_cluster::work::Worked;
use tributary_contract::ports::{CredentialSource, Incoming, Outgoing, PeerRequests};
use tributary_contract::tunnel::{Ends, TunnelKey};
use tributary_contract::{PeerName, PeerReport, PeerSpec};
use tributary_render::nodes::Gang;
use tributary_telemetry::Traces;

use super::lost_pods::LostPods;
use super::nodes::{self, NodeChoice};
use super::peer_status::PeerStatuses;
use super::peers;
use super::preflight::lead::Dial;
use super::provider::controller::Provider;
use super::provider::grants::Grants;
use super::root::controller::Root;
use super::root::demand::hear::Connect;
use super::root::place::{self, NoCandidate, Wish};
use super::shared::{Shared, no_contacts};
use super::steps::StepTimes;
use super::sync_store::SyncStore;
use super::timing::{RESOLVE_AGAIN, Times};
use super::tunnels::Tunnels;
use super::turns::Pace;
use super::usage::Records;
use super::watch::{Caches, WatchedNode};

/// Who has room, or why nobody has.
type Room = Result<PeerName, NoCandidate>;

/// How often peers are told of our capacity at most, and how soon a change of nodes is looked at.
const CAPACITY_EVERY: Duration = Duration::from_secs(2);

/// After so many of these rounds offers that wait are looked at, though nothing says that they need not wait any more: a
/// namespace may be there now.
const WAITING_AGAIN: u64 = 5;

/// After so many, everything is: nothing depends on it, and what no change told of is mended.
const ALL_AGAIN: u64 = 30;

/// What bursting is made of.
pub struct BurstingConfig {
    /// Clients of this cluster.
    pub clients: Clients,
    /// MiniClusters.
    pub mini_clusters: Cache<MiniCluster>,
    /// Bursts.
    pub bursts: Cache<Burst>,
    /// HostedBursts.
    pub hosted: Cache<HostedBurst>,
    /// ClusterPeers of the agent's namespace.
    pub peers: Cache<ClusterPeer>,
    /// Says what happens to objects.
    pub events: Events,
    /// Name of this cluster.
    pub cluster: PeerName,
    /// What rendering needs to know of this cluster.
    pub settings: tributary_render::Context,
    /// Time.
    pub clock: SharedClock,
    /// Where spans go.
    pub traces: Traces,
    /// How long steps take.
    pub steps: StepTimes,
    /// How long bursts outlive the contact between root and provider.
    pub times: Times,
    /// The agent's namespace, where records of what was used are.
    pub namespace: String,
    /// How many days they are kept.
    pub usage_days: u32,
    /// Address of this agent in its cluster's network; without it nothing is carried for bursts of peers.
    pub address: Option<IpAddr>,
    /// What FluxSetups leave for bursts of peers.
    pub grants: Arc<dyn Grants>,
    /// How lead brokers of peers are dialled.
    pub leads: Arc<dyn Dial>,
    /// How the programs beside our lead brokers are reached that tell of queues.
    pub queues: Arc<dyn Connect>,
}

/// Both sides of bursting in one agent.
pub struct Bursting {
    shared: Arc<Shared>,
    root: Arc<Root>,
    provider: Arc<Provider>,
    lost_pods: Arc<LostPods>,
    peer_status: Arc<PeerStatuses>,
    records: Arc<Records>,
    specs: watch::Sender<BTreeMap<PeerName, PeerSpec>>,
    _subscriptions: Vec<Subscription>,
}

impl Bursting {
    /// Bursting, and the watches to spawn; they run on standbys too.
    pub fn new(config: BurstingConfig) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let (caches, watches) =
            Caches::new(&config.clients, config.mini_clusters, config.bursts, config.hosted, config.peers);
        let (ours, mut subscriptions) = caches.own.follow(&caches.nodes, &caches.pods);
        let now = Now::of(&*config.clock);
        let shared = Arc::new(Shared {
            caches,
            clients: config.clients,
            events: config.events,
            exchange: SyncStore::default(),
            clock: config.clock,
            traces: config.traces,
            steps: config.steps,
            times: config.times,
            own: config.cluster,
            settings: config.settings,
            tunnels: Arc::new(Tunnels::new(config.address)),
            ours,
            grants: config.grants,
            leads: config.leads,
            queues: config.queues,
            root_contacts: no_contacts(now.mono),
            provider_contacts: no_contacts(now.mono),
            began: Mutex::new(now),
        });
        let (root, provider) = (Arc::new(Root::new(shared.clone())), Provider::new(shared.clone()));
        let lost_pods = Arc::new(LostPods::new(shared.clone()));
        let specs = watch::Sender::default();
        subscriptions.extend(root.feed());
        subscriptions.extend(lost_pods.feed());
        subscriptions.extend(root.looker.feed());
        subscriptions.extend(provider.feed());
        let records = Arc::new(Records::new(shared.clone(), root.clone(), config.namespace, config.usage_days));
        subscriptions.extend(records.feed());
        let peer_status = Arc::new(PeerStatuses::new(shared.clone(), root.clone(), records.clone()));
        subscriptions.extend(peer_status.feed());
        let (known, sender, own) = (shared.caches.peers.clone(), specs.clone(), shared.own.clone());
        subscriptions.push(shared.caches.peers.subscribe(move |_| publish(&known, &own, &sender)));
        let _subscriptions = subscriptions;
        let bursting = Self { shared, root, provider, lost_pods, peer_status, records, specs, _subscriptions };
        (Arc::new(bursting), watches)
    }

    /// The nodes of this cluster: who needs them besides need not watch them again.
    pub fn nodes(&self) -> Cache<WatchedNode> {
        self.shared.caches.nodes.clone()
    }

    /// How many brokers of a gang the nodes have no room for, now: see [`nodes::lacking`].
    pub fn lacking(&self, choice: NodeChoice<'_>, wanted: &Gang, coming: &[Gang]) -> u32 {
        let caches = &self.shared.caches;
        nodes::lacking(&caches.node_views(), &caches.pod_views(), choice, wanted, coming)
    }

    /// Why the nodes, and one more of each of these groups, could not hold a gang whatever else ends: see [`nodes::short`].
    pub fn short(&self, choice: NodeChoice<'_>, wanted: &Gang, groups: &[NodeGroup]) -> Option<String> {
        let (caches, now) = (&self.shared.caches, self.shared.clock.wall());
        nodes::short(&caches.node_views(), &caches.pod_views(), choice, wanted, groups, now)
    }

    /// Says which peer has room for a wish besides all that is coming, as far as is known at this moment, or why none has: see
    /// [`place::roomy`]. None of those that threw it out, unless their ClusterPeer is another since.
    pub fn rooms(&self) -> impl Fn(&Wish, &[BurstRefusal], &[(PeerName, Wish)]) -> Room + 'static {
        let (claimed, peers, own) = (self.root.claimed(None), self.shared.peers(), self.shared.own.clone());
        move |wish, evictions, coming| {
            let mut claimed = claimed.clone();
            for (peer, wish) in coming {
                claimed.entry(peer.clone()).or_default().add(wish);
            }
            let mut excluded = place::evicting(evictions, &peers);
            excluded.insert(own.clone(), "is this cluster itself".to_owned());
            place::roomy(wish, &peers, &claimed, &excluded)
        }
    }

    /// What its workers do, for the metrics.
    pub fn queues(&self) -> Vec<(&'static str, Box<dyn Worked>)> {
        vec![
            engine::worked(&*self.root),
            engine::worked(&*self.provider),
            engine::worked(&*self.peer_status),
            engine::worked(&*self.records),
            engine::worked(&*self.root.looker),
            engine::worked(&*self.lost_pods),
        ]
    }

    /// The configured peers, for the federation.
    pub fn peers(&self) -> watch::Receiver<BTreeMap<PeerName, PeerSpec>> {
        self.specs.subscribe()
    }

    /// What this cluster says to its peers.
    pub fn outgoing(&self) -> Arc<dyn Outgoing> {
        Arc::new(self.shared.exchange.clone())
    }

    /// Where what peers say goes.
    pub fn incoming(&self) -> Arc<dyn Incoming> {
        Arc::new(self.shared.exchange.clone())
    }

    /// What is carried for bursts.
    pub fn tunnels(&self) -> Arc<Tunnels> {
        self.shared.tunnels.clone()
    }

    /// Who hands out certificates.
    pub fn credentials(&self) -> Arc<dyn CredentialSource> {
        self.root.clone()
    }

    /// Forgets the term before, whose leader renewed the Lease at `renewed` for the last time. Call it before the
    /// sessions of a term begin, then [`Bursting::run`].
    pub(crate) fn begin(&self, requests: Option<Arc<dyn PeerRequests>>, renewed: Option<Timestamp>) {
        self.provider.begin(requests, renewed);
        self.root.begin();
    }

    /// Empties what a term before has said, heard and decided.
    pub fn forget(&self) {
        self.shared.begin(self.shared.now());
        self.provider.forget();
    }

    /// Whether brokers of a HostedBurst may be started: this term has looked at it, and does not end it.
    pub fn keeps(&self, hosted: &HostedBurst) -> bool {
        self.provider.keeps(hosted)
    }

    /// Runs both sides until `stop`: in the leader's scope. `requests` reaches the peers; without it nobody is reached.
    pub async fn run(
        self: Arc<Self>,
        requests: Option<Arc<dyn PeerRequests>>,
        handover: Handover,
        stop: CancellationToken,
    ) {
        tokio::select! {
            ((), ()) = async { tokio::join!(self.shared.caches.listed(), self.shared.caches.listed_now()) } => {}
            () = stop.cancelled() => return,
        }
        // Who waits for the list of this term is told, also if it is as the last one.
        self.specs.send_replace(configured(&self.shared.caches.peers, &self.shared.own));
        self.begin(requests, handover.before());
        self.peer_status.mark_all();
        self.records.begin();
        self.lost_pods.begin();
        let pumps = async {
            tokio::select! {
                () = self.pump() => {}
                () = self.provider.watch_quotas() => {}
                () = self.settle(&handover) => {}
                () = stop.cancelled() => {}
            }
        };
        tokio::join!(
            engine::run(self.root.clone(), stop.clone()),
            engine::run(self.provider.clone(), stop.clone()),
            engine::run(self.peer_status.clone(), stop.clone()),
            engine::run(self.records.clone(), stop.clone()),
            engine::run(self.root.looker.clone(), stop.clone()),
            engine::run(self.lost_pods.clone(), stop.clone()),
            pumps,
        );
        self.root.looker.end();
        self.shared.exchange.set_complete(false);
    }

    /// From the exchange to the queues, and capacity on its way out.
    async fn pump(&self) {
        let exchange = &self.shared.exchange;
        let answers = async {
            loop {
                exchange.answers_changed().changed().await.iter().for_each(|answer| self.root.answered(answer));
            }
        };
        let claims = async {
            loop {
                self.provider.claims_changed(&exchange.claims_changed().changed().await);
            }
        };
        let listed = async {
            loop {
                self.provider.listed(&exchange.first_listed().changed().await);
            }
        };
        let tunnels = &self.shared.tunnels;
        let ports = each_change(tunnels.listening().subscribe(), Clone::clone, |key| self.provider.mark_holder(key));
        // Where connections end is said, and not how many there are.
        let places = |ends: &Ends| (ends.in_pods > 0, ends.in_agents > 0);
        let ends = each_change(tunnels.ends().subscribe(), places, |key| self.root.answered(key));
        let grants = async {
            let mut changes = self.shared.grants.changes();
            // The sender lives as long as the agent.
            while changes.changed().await.is_ok() {
                self.provider.tell_capacity();
                self.provider.mark_waiting();
            }
        };
        let reports = async {
            let (mut pace, mut connections) = (Pace::default(), BTreeMap::new());
            loop {
                for peer in exchange.reports_changed().changed().await {
                    let at = pace.turn(&peer, self.shared.clock.mono());
                    let connection = exchange.report(&peer).map(|report| PeerReport {
                        capacity: None,
                        control: None,
                        tunnel: None,
                        ..report
                    });
                    let room_alone = connections.get(&peer) == Some(&connection);
                    connections.insert(peer.clone(), connection);
                    self.peer_changed(&peer, room_alone, at);
                }
            }
        };
        let capacity = async {
            let (mut nodes, mut policies, mut rounds) = (Arc::default(), BTreeMap::new(), 0_u64);
            loop {
                self.provider.tell_capacity();
                let seen = self.shared.caches.node_views();
                if seen != nodes {
                    nodes = seen;
                    self.root.mark_roots();
                    self.provider.mark_all();
                }
                let seen: BTreeMap<_, _> = self
                    .shared
                    .caches
                    .peers
                    .objects()
                    .iter()
                    .map(|peer| (peers::name_of(peer), (peer.metadata.generation, peer.metadata.labels.clone())))
                    .collect();
                if seen != policies {
                    exchange.retain_peers(&seen.keys().cloned().collect());
                    let known = seen.keys().chain(policies.keys()).collect::<BTreeSet<_>>();
                    for peer in known.into_iter().filter(|peer| seen.get(*peer) != policies.get(*peer)) {
                        self.provider.policy_changed(peer);
                    }
                    policies = seen;
                    self.root.mark_bursts();
                    self.peer_status.mark_all();
                }
                self.conclude();
                self.root.drop_answers_about_nothing();
                rounds += 1;
                if rounds.is_multiple_of(ALL_AGAIN) {
                    self.root.mark_roots();
                    self.root.mark_bursts();
                    self.provider.mark_all();
                } else if rounds.is_multiple_of(WAITING_AGAIN) {
                    self.provider.mark_waiting();
                }
                tokio::time::sleep(CAPACITY_EVERY).await;
            }
        };
        let api_host = async {
            let host = &*self.shared.clients.host;
            loop {
                // One that cannot be resolved now is where it was.
                if let Ok(found) = tokio::net::lookup_host((host, 0)).await {
                    let found = found.map(|address| address.ip().to_canonical()).collect();
                    self.shared.ours.send_modify(|ours| ours.api_host = found);
                }
                tokio::time::sleep(RESOLVE_AGAIN).await;
            }
        };
        let complete = async {
            // Until the first round is over nothing may be concluded from what we do not say.
            loop {
                self.conclude();
                tokio::time::sleep(Duration::from_millis(50)).await;
                if Outgoing::complete(exchange) {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::join!(answers, claims, listed, ports, ends, grants, reports, capacity, api_host, complete);
    }

    /// Says once that every loss of contact is dated.
    async fn settle(&self, handover: &Handover) {
        loop {
            tokio::time::sleep(CAPACITY_EVERY).await;
            if !self.provider.has_dated() {
                continue;
            }
            match handover.settle().await {
                Ok(()) => break,
                Err(error) => tracing::warn!(error = chain(&error), "losses of contact count from the term before"),
            }
        }
        std::future::pending().await
    }

    /// Something else is known of the connection to a peer, which is looked at at `at`.
    fn peer_changed(&self, peer: &PeerName, room_alone: bool, at: Mono) {
        self.root.mark_bursts_for(peer, room_alone, at);
        if !room_alone {
            self.provider.mark_peer(peer, at);
        }
        self.peer_status.mark(peer, at);
    }

    /// Whether what we say is all there is to say, but for the bursts that withhold themselves.
    fn conclude(&self) {
        let withheld = self.root.withheld();
        let complete = withheld.is_some();
        self.shared.exchange.withhold(withheld.unwrap_or_default());
        self.shared.exchange.set_complete(complete);
    }
}

/// Tells of each tunnel of which something else is `said`, for as long as the sender lives.
async fn each_change<T, S: PartialEq>(
    mut all: watch::Receiver<BTreeMap<TunnelKey, T>>,
    said: impl Fn(&T) -> S,
    tell: impl Fn(&TunnelKey),
) {
    let mut before = BTreeMap::new();
    while all.changed().await.is_ok() {
        let now: BTreeMap<_, _> = all.borrow_and_update().iter().map(|(key, of)| (key.clone(), said(of))).collect();
        let changed = now.keys().chain(before.keys()).filter(|key| now.get(*key) != before.get(*key));
        changed.for_each(&tell);
        before = now;
    }
}

fn configured(known: &Cache<ClusterPeer>, own: &PeerName) -> BTreeMap<PeerName, PeerSpec> {
    peers::specs(known.objects().iter().map(|peer| &**peer), own)
}

fn publish(known: &Cache<ClusterPeer>, own: &PeerName, specs: &watch::Sender<BTreeMap<PeerName, PeerSpec>>) {
    if !known.condition().listed {
        return;
    }
    let newest = configured(known, own);
    specs.send_if_modified(|current| {
        let differs = *current != newest;
        if differs {
            *current = newest;
        }
        differs
    });
}
