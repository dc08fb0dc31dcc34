//! What peers cost each other: three that claim 10,000 names and change one of them every millisecond, beside one that is
//! honest; and what each of many bursts costs the agents of its root and its provider.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt as _, ready};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, ListParams};
use serde_json::json;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::clock::{Rng as _, SeededRng, SharedClock, SystemClock};
use tributary::contract::ports::{CredentialSource, Incoming, Outgoing, State, StateKey};
use tributary::contract::{
    Capacity, Credential, CredentialRefusal, CredentialRequest, DesiredBurst, DirtySet, Epoch, PeerName, PeerReport,
    RootIdentity,
};
use tributary::federation::tunnel::TunnelPorts;
use tributary::flux::{RankMap, Slot, Topology};
use tributary_sandbox::{ClusterOptions, NodeGroup, Options, Sandbox};
use tributary_tests::agent::AGENT_USER;
use tributary_tests::federation::{Federation, apply_peer, cluster_peer};
use tributary_tests::mesh::{MeshAgent, Words, peer};
use tributary_tests::scenario::{Place, bursting};

use crate::figures::{figure, percentiles};
use crate::local::{of_each, settled};
use crate::operator::cpu;
use crate::wire::now;

const NAMESPACE: &str = "bench";

/// Peers that claim names, and how many all of them claim: more than [`KEYS_PER_PEER`] is none's.
///
/// [`KEYS_PER_PEER`]: tributary::federation::wire::limits::KEYS_PER_PEER
const CROWD: usize = 3;
const CLAIMS: usize = 10_000;

/// Between two changes of a claim.
const EVERY: Duration = Duration::from_millis(1);

/// How long anything is waited for that should take a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lease in these measurements.
const LEASE: Duration = Duration::from_secs(15);

/// What one peer says, and when it was answered last.
#[derive(Default)]
struct Peer {
    dirty: DirtySet<(PeerName, StateKey)>,
    claims: Mutex<BTreeMap<StateKey, DesiredBurst>>,
    answered: Mutex<BTreeMap<StateKey, Instant>>,
}

impl Peer {
    fn claim(&self, desired: DesiredBurst) {
        let key = StateKey::Desired(desired.uid.clone());
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), desired);
        self.dirty.mark(("west".into(), key));
    }

    fn answered(&self, uid: &str) -> Option<Instant> {
        let key = StateKey::Observed(uid.into());
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }
}

impl Outgoing for Peer {
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)> {
        &self.dirty
    }
    fn keys(&self, _peer: &PeerName) -> Vec<StateKey> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
    fn state(&self, _peer: &PeerName, key: &StateKey) -> Option<State> {
        let desired = self.claims.lock().unwrap_or_else(PoisonError::into_inner).get(key)?.clone();
        Some(State::Desired(desired.into()))
    }
    fn complete(&self) -> bool {
        true
    }
    fn capacity(&self, _peer: &PeerName) -> Option<Capacity> {
        None
    }
}

impl Incoming for Peer {
    fn put(&self, _peer: &PeerName, _epoch: Epoch, key: StateKey, _state: State) {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).insert(key, now());
    }
    fn complete_snapshot(&self, _peer: &PeerName, _epoch: Epoch, _keys: &[StateKey]) {}
    fn peer_report(&self, _peer: &PeerName, _report: PeerReport) {}
}

impl CredentialSource for Peer {
    fn credential<'a>(
        &'a self,
        _peer: &'a PeerName,
        _request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>> {
        ready(Err(CredentialRefusal::NotReady)).boxed()
    }
}

/// A provider's agent with its cluster, and peers that are nothing but their end of the wire.
struct Provider {
    federation: Federation,
    clock: SharedClock,
}

impl Provider {
    async fn start() -> anyhow::Result<Self> {
        let sandbox = Sandbox::start(Options::named(["west"])).await?;
        let federation = Federation::start(sandbox, "").await?;
        federation.namespace(NAMESPACE).await?;
        Ok(Self { federation, clock: SystemClock::shared() })
    }

    async fn introduce(&self, name: &str, may_burst: bool) -> anyhow::Result<(MeshAgent, Arc<Peer>)> {
        let said = Arc::new(Peer::default());
        let words = Words { outgoing: said.clone(), incoming: said.clone(), credentials: said.clone() };
        let (authority, none) = (&self.federation.authority, TunnelPorts::none());
        let agent = MeshAgent::saying(name, Ipv4Addr::LOCALHOST, authority, &self.clock, none, words)?;
        agent.peers.send_replace(peer("west", self.federation.agent(0).listen));
        let mut known = cluster_peer(name, &agent.address.to_string());
        known.spec.import = known.spec.import.filter(|_| may_burst);
        apply_peer(&self.federation.client(0).await, &known).await?;
        Ok((agent, said))
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        cpu(self.federation.agent(0).pid().context("the agent has ended")?)
    }
}

fn desired(peer: &str, number: usize) -> DesiredBurst {
    let (root, slot) = (format!("{peer}-{number}"), format!("{peer}-{number}-burst-0"));
    let parent = Topology::Gateway.parent_of_bursts(&root);
    let slots = vec![Slot::root(&root, 4), Slot::burst(&slot, 1, parent).with_resources(1, 0)];
    let map = RankMap::new(slots).expect("a map of two slots is one");
    let environment: BTreeMap<_, _> = (0..20).map(|index| (format!("VARIABLE_{index}"), "x".repeat(60))).collect();
    DesiredBurst {
        uid: format!("{peer}-{number}").as_str().into(),
        generation: 1,
        root: RootIdentity {
            namespace: NAMESPACE.to_owned(),
            name: root.clone(),
            uid: format!("{peer}-root-{number}"),
            incarnation: format!("{peer}-job-{number}"),
        },
        slot,
        size: 1,
        max_size: 1,
        cores: 1,
        gpus: 0,
        rank_map: map.to_canonical(),
        rank_map_digest: map.digest().to_string(),
        credential_digest: "sha256:00".to_owned(),
        lead: None,
        whole: false,
        tunnel: false,
        flux_version: None,
        arch: None,
        template: json!({"containers": [{"image": "rockylinux:9", "environment": environment}]}),
        lease_seconds: u32::try_from(LEASE.as_secs()).unwrap_or(u32::MAX),
        drain_seconds: 10,
        warm: false,
        hosted_uid: None,
        offer: String::new(),
        trace: None,
        user: None,
    }
}

/// A crowd of peers that claims names here though it may place nothing.
struct Crowd(Vec<(MeshAgent, Arc<Peer>)>);

impl Crowd {
    async fn of(provider: &Provider, claims: usize) -> anyhow::Result<Self> {
        let mut crowd = Vec::new();
        for member in 0..CROWD {
            crowd.push(provider.introduce(&format!("crowd-{member}"), false).await?);
        }
        let crowd = Self(crowd);
        for number in 0..claims {
            let (name, member) = crowd.member(number);
            member.claim(desired(&name, number));
        }
        Ok(crowd)
    }

    fn member(&self, number: usize) -> (String, &Arc<Peer>) {
        (format!("crowd-{}", number % CROWD), &self.0[number % CROWD].1)
    }

    /// Until each claim was answered, or time is up.
    async fn settle(&self, claims: usize) {
        let started = now();
        let last = || {
            let mut asked = (claims.saturating_sub(CROWD)..claims).map(|number| (number, self.member(number)));
            asked.all(|(number, (name, member))| member.answered(&format!("{name}-{number}")).is_some())
        };
        while !last() && started.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Changes one of so many claims each time.
    async fn change(&self, claims: usize, every: Duration, times: u64) {
        let mut rng = SeededRng::new(7);
        let mut tick = tokio::time::interval(every);
        for generation in 2..times.saturating_add(2) {
            tick.tick().await;
            let number = usize::try_from(rng.next_u64() % claims as u64).unwrap_or(0);
            let (name, member) = self.member(number);
            member.claim(DesiredBurst { generation, ..desired(&name, number) });
        }
    }
}

/// Prints what a crowd costs others and itself.
pub(crate) async fn peers() -> anyhow::Result<()> {
    beside_a_crowd().await?;
    for claims in [CLAIMS / 100, CLAIMS] {
        let provider = Provider::start().await?;
        let crowd = Crowd::of(&provider, claims).await?;
        crowd.settle(claims).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = provider.cpu()?;
        crowd.change(claims, 5 * EVERY, 2_000).await;
        let each = (provider.cpu()? - before) / 2_000;
        figure(&format!("CPU of one change among {claims} claims"), &format!("{each:.2?}"), "-", "-");
    }
    Ok(())
}

/// How soon offers are answered and leases end beside a crowd.
async fn beside_a_crowd() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let place = Place { client: provider.federation.client(0).await, namespace: NAMESPACE.to_owned() };
    measure(&provider, &place, "honest-alone", "alone").await?;
    let crowd = Crowd::of(&provider, CLAIMS).await?;
    let settling = now();
    crowd.settle(CLAIMS).await;
    figure(&format!("{CLAIMS} claims, until all are answered"), &within(Some(settling.elapsed())), "-", "-");
    let what = format!("beside {CLAIMS} claims, one changed every {EVERY:?}");
    tokio::select! {
        measured = measure(&provider, &place, "honest-beside", &what) => measured,
        () = crowd.change(CLAIMS, EVERY, u64::MAX) => Ok(()),
    }
}

fn within(took: Option<Duration>) -> String {
    match took {
        Some(took) if took < PATIENCE => format!("{:.0} ms", took.as_secs_f64() * 1000.0),
        _ => format!("> {PATIENCE:?}"),
    }
}

/// One honest peer offers five bursts, one after the other, and goes away.
async fn measure(provider: &Provider, place: &Place, name: &str, what: &str) -> anyhow::Result<()> {
    let (agent, said) = provider.introduce(name, true).await?;
    let mut answers = Vec::new();
    for number in 0..5 {
        let offer = desired(name, number);
        let (uid, started) = (offer.uid.clone(), now());
        // The first one waits for the connection too.
        said.claim(offer);
        while said.answered(uid.as_str()).is_none() && started.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = said.answered(uid.as_str()).map_or(PATIENCE, |at| at.saturating_duration_since(started));
        if number > 0 {
            answers.push(took);
        }
    }
    figure(&format!("an offer is answered, {what}"), &percentiles(&mut answers), "-", "1000 ms");
    let mine = |hosted: &HostedBurst| hosted.spec.peer == name;
    let api: Api<HostedBurst> = place.hosted();
    let made = api.list(&ListParams::default()).await?.items.iter().filter(|hosted| mine(hosted)).count();
    agent.end().await;
    let gone = now();
    let (mut late, mut left) = (Vec::new(), made);
    while left > 0 && gone.elapsed() < LEASE + PATIENCE {
        let all = api.list(&ListParams::default()).await?.items;
        let keeps = |hosted: &&HostedBurst| {
            mine(hosted) && hosted.status.as_ref().is_none_or(|status| status.draining_since.is_none())
        };
        let stay = all.iter().filter(keeps).count();
        late.extend((stay..left).map(|_| gone.elapsed().saturating_sub(LEASE)));
        left = left.min(stay);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    late.extend((0..left).map(|_| PATIENCE));
    figure(&format!("a lease ends late by, {what}"), &percentiles(&mut late), "-", "1000 ms");
    Ok(())
}

/// What each of many bursts costs both agents.
pub(crate) async fn many() -> anyhow::Result<()> {
    let nodes = || vec![NodeGroup { count: 8, cpu: 128, ..NodeGroup::default() }];
    let cluster = |name: &str| ClusterOptions { nodes: nodes(), ..ClusterOptions::named(name) };
    let options = Options { clusters: vec![cluster("east"), cluster("west")], ..Options::default() };
    let federation = Federation::start(Sandbox::start(options).await?, "").await?;
    federation.namespace(NAMESPACE).await?;
    let east = Place { client: federation.client(0).await, namespace: NAMESPACE.to_owned() };
    let west = Place { client: federation.client(1).await, namespace: NAMESPACE.to_owned() };
    let used = || -> anyhow::Result<[Duration; 2]> {
        let of = |index: usize| cpu(federation.agent(index).pid().context("an agent has ended")?);
        Ok([of(0)?, of(1)?])
    };
    let mut all = 0_u32;
    let audits = || federation.clusters().iter().map(|cluster| cluster.audit());
    for more in [50, 100, 200] {
        let markers = audits().map(|audit| audit.marker()).collect::<anyhow::Result<Vec<_>>>()?;
        let before = used()?;
        stream::iter(all..all + more)
            .map(Ok::<_, anyhow::Error>)
            .try_for_each_concurrent(16, async |number| {
                let size = json!([{"size": 1, "peer": "west"}]);
                east.create(&format!("root-{number}"), bursting(1, size)).await;
                Ok(())
            })
            .await?;
        all += more;
        let started = now();
        while ready_bursts(&west).await? < all as usize {
            anyhow::ensure!(started.elapsed() < Duration::from_secs(900), "{all} bursts are not ready");
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let after = used()?;
        let each = |index: usize| {
            let used = after[index].saturating_sub(before[index]);
            format!("{:.0} ms", used.as_secs_f64() * 1000.0 / f64::from(more))
        };
        let text = format!("{} root, {} provider", each(0), each(1));
        figure(&format!("CPU per burst, of {more} that make it {all}"), &text, "-", "5 ms each");
        for ((audit, marker), side) in audits().zip(markers).zip(["root", "provider"]) {
            let own = settled(&audit.requests(AGENT_USER, marker)?);
            of_each(&format!("requests per burst at the {side}, of {more}"), &own, f64::from(more), "-", "-");
        }
    }
    Ok(())
}

async fn ready_bursts(place: &Place) -> anyhow::Result<usize> {
    let all = place.hosted().list(&ListParams::default()).await?.items;
    let ready = |hosted: &&HostedBurst| hosted.status.as_ref().is_some_and(|status| status.phase == BurstPhase::Ready);
    Ok(all.iter().filter(ready).count())
}
