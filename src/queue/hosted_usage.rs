//! HostedUsage: bursts of peers in namespaces with a FluxSetup. Whether there is room for one more, and how much is left.
//!
//! A guest never stands in line: while there is no room its offer is refused, and it is looked at again whenever that may
//! have changed. So a burst that a root believes admitted has its room, and its Job waits for nobody. Whoever waits in the
//! namespace goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use kube::ResourceExt;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tributary_api::flux_setup::{FluxSetup, PeerUsage};
use tributary_api::hosted_burst::{HostedBurst, HostedBurstSpec};
use tributary_api::minicluster::{Container, FluxContainer, MiniClusterSpec, ResourceList};
use tributary_cluster::worker::Queue;
use tributary_contract::NamespaceRoom;

use super::requests::Requests;

/// Stands for each peer that is not named.
const ANYBODY: &str = "*";

/// Namespace and name of a hosted burst.
type SlotKey = (String, String);

/// The MiniCluster that a hosted burst makes, as far as it takes room: with all the brokers it may grow to, since nobody
/// asks when it grows.
pub(crate) fn wanted(guest: &HostedBurstSpec) -> MiniClusterSpec {
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let mut containers: Vec<Container> = part(guest, "/containers");
    // What Flux gives away there is said by the slot.
    match containers.iter_mut().max_by_key(|one| one.cores) {
        Some(first) => first.cores = first.cores.max(Some(count(guest.cores))),
        None => containers.push(Container { cores: Some(count(guest.cores)), ..Container::default() }),
    }
    let mut spec = MiniClusterSpec { size: Some(count(guest.max_size)), containers, ..MiniClusterSpec::default() };
    spec.flux.container = part::<FluxContainer>(guest, "/flux/container");
    spec.pod.resources = part::<ResourceList>(guest, "/pod/resources");
    spec
}

/// A part of its template.
fn part<T: DeserializeOwned + Default>(guest: &HostedBurstSpec, path: &str) -> T {
    guest.template.pointer(path).and_then(|part| T::deserialize(part).ok()).unwrap_or_default()
}

/// What a round reads of a guest: which one it is, the generation of its spec, and whether it has ended.
pub(crate) fn read(guest: &HostedBurst) -> (Option<String>, Option<i64>, bool) {
    (guest.metadata.uid.clone(), guest.metadata.generation, guest.has_ended())
}

/// What a guest takes.
pub(crate) fn room_of(guest: &HostedBurstSpec) -> Requests {
    room_for(guest, &wanted(guest))
}

/// What a guest takes that makes this MiniCluster.
pub(crate) fn room_for(guest: &HostedBurstSpec, wanted: &MiniClusterSpec) -> Requests {
    let all = Requests::of_mini_cluster(wanted);
    Requests { gpus: all.gpus.max(i64::from(guest.gpus) * i64::from(guest.max_size)), ..all }
}

/// What the FluxSetup of a namespace grants to whom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grants(BTreeMap<String, Requests>);

impl Grants {
    /// Those of a FluxSetup.
    ///
    /// # Errors
    /// The field that is no amount.
    pub(crate) fn of(setup: &FluxSetup) -> Result<Self, String> {
        let grants = setup.spec.peers.iter();
        let grants = grants.map(|grant| {
            let room = Requests::of_quota(&format!("spec.peers[{}].quota", grant.name), &grant.quota)?;
            Ok((grant.name.clone(), room))
        });
        grants.collect::<Result<_, String>>().map(Self)
    }

    /// What bursts of a peer may take together; `None`: nothing.
    fn of_peer(&self, peer: &str) -> Option<Requests> {
        if self.0.is_empty() {
            return Some(Requests::UNLIMITED);
        }
        self.0.get(peer).or_else(|| self.0.get(ANYBODY)).copied()
    }
}

/// What a round of a namespace left over for guests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Name of the FluxSetup that counts.
    pub setup: String,
    /// What may be taken without delaying anybody who waits.
    pub open: Requests,
    /// Who may take how much.
    pub grants: Grants,
    /// What guests take already, by peer.
    pub taken: BTreeMap<String, Requests>,
}

impl Standing {
    /// What is left for a peer; `None`: it is granted nothing.
    fn left(&self, peer: &str) -> Option<Requests> {
        let mut granted = self.grants.of_peer(peer)?;
        granted -= self.taken.get(peer).copied().unwrap_or_default();
        Some(granted.least(&self.open))
    }

    /// Why there is no room for a guest of `peer`.
    fn lack(&self, namespace: &str, peer: &str, room: &Requests) -> Option<String> {
        let about = format!("FluxSetup {} of namespace {namespace}", self.setup);
        let Some(mut granted) = self.grants.of_peer(peer) else {
            return Some(format!("{about} grants nothing to {peer}: its spec.peers names others only"));
        };
        if let Some(lack) = granted.first_lack(room) {
            let lack = lack.replace(" are free", " are granted");
            return Some(format!("{about} grants too little to {peer}: {lack}"));
        }
        granted -= self.taken.get(peer).copied().unwrap_or_default();
        if let Some(lack) = granted.first_lack(room) {
            return Some(format!("what {about} grants to {peer} is taken: {lack}"));
        }
        let lack = self.open.first_lack(room)?;
        Some(format!("{about} has no room for it now, beside what runs and waits there: {lack}"))
    }

    fn take(&mut self, peer: &str, room: Requests) {
        self.open -= room;
        *self.taken.entry(peer.to_owned()).or_default() += room;
    }

    /// As the status of the FluxSetup says it.
    pub(crate) fn usage(&self) -> Vec<PeerUsage> {
        let taken = self.taken.iter();
        taken.map(|(peer, room)| PeerUsage { name: peer.clone(), used: room.usage() }).collect()
    }
}

/// Somebody who was let in a moment ago: no cache shows the HostedBurst yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reserved {
    /// Whose it is.
    pub peer: String,
    /// What it takes, spelled out.
    pub wanted: MiniClusterSpec,
    /// What it takes.
    pub room: Requests,
}

/// The table of guests. Cloning shares it. What is in it lives as long as one leader's scope.
#[derive(Clone, Default)]
pub struct HostedUsage {
    state: Arc<Mutex<State>>,
    changes: Arc<watch::Sender<u64>>,
    /// Namespaces whose round is due.
    rounds: Arc<OnceLock<Queue<String>>>,
}

#[derive(Default)]
struct State {
    /// Namespaces with a FluxSetup whose round has yet to come; `None`: nobody knows which these are.
    due: Option<BTreeSet<String>>,
    standings: BTreeMap<String, Standing>,
    reserved: BTreeMap<SlotKey, Reserved>,
}

impl fmt::Debug for HostedUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedUsage").finish_non_exhaustive()
    }
}

impl HostedUsage {
    /// The queue of rounds; to be called once.
    pub(super) fn leads_to(&self, rounds: Queue<String>) {
        let _ = self.rounds.set(rounds);
    }

    /// Nothing is known at the beginning of a leader's scope.
    pub(super) fn begin(&self) {
        *self.state.lock() = State::default();
    }

    /// These namespaces have a FluxSetup; the others have none.
    pub(super) fn listed(&self, ruled: BTreeSet<String>) {
        self.state.lock().due = Some(ruled);
        self.changed();
    }

    /// Takes a round of a namespace while nobody is let in, with the guests that no cache shows yet, and keeps what is left
    /// for others. `hosted` are the names of those that a cache shows.
    pub(super) fn around<R>(
        &self,
        namespace: &str,
        hosted: &BTreeSet<String>,
        round: impl FnOnce(&BTreeMap<String, Reserved>) -> (Option<Standing>, R),
    ) -> R {
        let mut state = self.state.lock();
        state.reserved.retain(|(within, name), _| within != namespace || !hosted.contains(name));
        let reserved = state.reserved.iter().filter(|((within, _), _)| within == namespace);
        let reserved = reserved.map(|((_, name), guest)| (name.clone(), guest.clone())).collect();
        let (standing, rounded) = round(&reserved);
        let was_due = state.due.as_mut().is_some_and(|due| due.remove(namespace));
        let before = match &standing {
            Some(standing) => state.standings.insert(namespace.to_owned(), standing.clone()),
            None => state.standings.remove(namespace),
        };
        drop(state);
        if was_due || before != standing {
            self.changed();
        }
        rounded
    }

    /// Whether a guest may come now, or why not; `None`: nobody has looked yet.
    pub fn ask(&self, guest: &HostedBurst) -> Option<Result<(), String>> {
        self.state.lock().ask(guest)
    }

    /// Takes room for a guest, if there is any, until its HostedBurst is seen or it is [given back](Self::give_back).
    pub fn take(&self, guest: &HostedBurst) -> bool {
        let mut state = self.state.lock();
        if state.ask(guest) != Some(Ok(())) {
            return false;
        }
        let (key, peer, room) = (key_of(guest), guest.spec.peer.clone(), room_of(&guest.spec));
        if let Some(standing) = state.standings.get_mut(&key.0) {
            standing.take(&peer, room);
            state.reserved.insert(key, Reserved { peer, wanted: wanted(&guest.spec), room });
        }
        true
    }

    /// A guest that was let in does not come: the next round counts without it.
    pub fn give_back(&self, namespace: &str, name: &str) {
        let given = self.state.lock().reserved.remove(&(namespace.to_owned(), name.to_owned()));
        if let (Some(_), Some(rounds)) = (given, self.rounds.get()) {
            rounds.mark(namespace.to_owned());
        }
    }

    /// What is left for bursts of a peer, by namespaces of this cluster.
    pub fn left(&self, peer: &str) -> Vec<NamespaceRoom> {
        let state = self.state.lock();
        let left = state.standings.iter();
        left.map(|(namespace, standing)| standing.left(peer).unwrap_or_default().told(namespace)).collect()
    }

    /// Says that there may be more room, or less.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl State {
    fn ask(&self, guest: &HostedBurst) -> Option<Result<(), String>> {
        let (namespace, _) = key_of(guest);
        let due = self.due.as_ref()?;
        let Some(standing) = self.standings.get(&namespace) else {
            return (!due.contains(&namespace)).then_some(Ok(()));
        };
        Some(standing.lack(&namespace, &guest.spec.peer, &room_of(&guest.spec)).map_or(Ok(()), Err))
    }
}

fn key_of(guest: &HostedBurst) -> SlotKey {
    (guest.namespace().unwrap_or_default(), guest.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::object;

    fn guest(name: &str, peer: &str, brokers: u32) -> HostedBurst {
        let template = json!({"containers": [
            {"name": "beside", "resources": {"requests": {"memory": "1Gi"}}}, {"cores": 1, "runFlux": true}]});
        let spec = json!({"peer": peer, "size": 1, "maxSize": brokers, "cores": 2, "gpus": 1, "template": template});
        object(name, 0, json!({"spec": spec}))
    }

    fn setup(peers: serde_json::Value) -> FluxSetup {
        FluxSetup::new("default", serde_json::from_value(json!({"peers": peers})).unwrap())
    }

    fn brokers(brokers: i64) -> Requests {
        Requests { brokers, ..Requests::UNLIMITED }
    }

    fn standing(open: i64, peers: serde_json::Value) -> Standing {
        let grants = Grants::of(&setup(peers)).unwrap();
        Standing { setup: "default".into(), open: brokers(open), grants, taken: BTreeMap::new() }
    }

    /// A table in which the round of `hpc` came to this.
    fn table(standing: Standing) -> HostedUsage {
        let guests = HostedUsage::default();
        guests.listed(["hpc".to_owned()].into());
        guests.around("hpc", &BTreeSet::new(), |_| (Some(standing), ()));
        guests
    }

    #[test]
    fn a_guest_takes_what_it_may_grow_to() {
        let once = Requests::default().once;
        let expected = Requests { mini_clusters: 1, brokers: 3, milli_cores: 6000, memory: 3 << 30, gpus: 3, once };
        assert_eq!(room_of(&guest("a", "east", 3).spec), expected);
        let mut first = guest("a", "east", 3).spec;
        first.template["flux"] = json!({"container": {"resources": {"requests": {"cpu": 8, "memory": "4Gi"}}}});
        first.template["pod"] = json!({"resources": {"cpu": "500m"}});
        assert_eq!(
            room_of(&first),
            Requests { milli_cores: 25_500, memory: 12 << 30, ..expected },
            "what it brings Flux with"
        );
        let bare = HostedBurstSpec { max_size: 2, cores: 4, ..HostedBurstSpec::default() };
        assert_eq!(room_of(&bare).milli_cores, 8000, "whatever the template is");
    }

    #[test]
    fn who_is_granted_what_is_said() {
        let grants = json!([{"name": "east", "quota": {"brokers": 4}}, {"name": "west", "quota": {}}]);
        let told = |standing: &Standing, guest: HostedBurst| match table(standing.clone()).ask(&guest) {
            Some(Ok(())) => "come".to_owned(),
            Some(Err(why)) => why,
            None => "wait".to_owned(),
        };
        let mut now = standing(8, grants);
        now.taken.insert("east".into(), Requests { brokers: 3, ..Requests::default() });
        for (name, size, expected) in [
            ("east", 1, "come"),
            (
                "east",
                2,
                "what FluxSetup default of namespace hpc grants to east is taken: 2 brokers are needed, 1 are free",
            ),
            (
                "east",
                5,
                "FluxSetup default of namespace hpc grants too little to east: 5 brokers are needed, 4 are granted",
            ),
            ("west", 8, "come"),
            (
                "west",
                9,
                "FluxSetup default of namespace hpc has no room for it now, beside what runs and waits there: 9 brokers are \
                 needed, 8 are free",
            ),
            (
                "north",
                1,
                "FluxSetup default of namespace hpc grants nothing to north: its spec.peers names others only",
            ),
        ] {
            assert_eq!(told(&now, guest("a", name, size)), expected, "{name} {size}");
        }
        assert_eq!(told(&standing(8, json!([])), guest("a", "north", 8)), "come", "nobody is named");
        let anybody = standing(8, json!([{"name": "*", "quota": {"brokers": 2}}]));
        assert_eq!(told(&anybody, guest("a", "north", 2)), "come");
        let wrong = Grants::of(&setup(json!([{"name": "east", "quota": {"memory": "lots"}}])));
        assert_eq!(wrong.unwrap_err(), "spec.peers[east].quota.memory is lots: write an amount such as 256Gi");
    }

    #[test]
    fn room_is_given_once_and_a_round_counts_what_was_given() {
        let guests = table(standing(4, json!([])));
        assert!(guests.take(&guest("a", "east", 3)) && !guests.take(&guest("b", "west", 2)));
        assert_eq!(guests.left("west")[0].brokers, Some(1));
        let seen = guests.around("hpc", &BTreeSet::new(), |reserved| {
            (Some(standing(1, json!([]))), reserved.keys().cloned().collect::<Vec<_>>())
        });
        assert_eq!(seen, ["a"]);
        let hosted = ["a".to_owned()].into();
        guests.around("hpc", &hosted, |reserved| (Some(standing(1, json!([]))), assert!(reserved.is_empty())));
        assert!(guests.take(&guest("c", "east", 1)));
        guests.give_back("hpc", "c");
        guests.around("hpc", &hosted, |reserved| (None, assert!(reserved.is_empty(), "{reserved:?}")));
    }

    #[test]
    fn nobody_comes_before_it_is_known_who_may() {
        let guests = HostedUsage::default();
        assert_eq!(guests.ask(&guest("a", "east", 1)), None);
        guests.listed(["hpc".to_owned()].into());
        assert_eq!(guests.ask(&guest("a", "east", 1)), None, "its round is due");
        let seen = guests.changes();
        guests.around("hpc", &BTreeSet::new(), |_| (None, ()));
        assert!(seen.has_changed().unwrap());
        assert_eq!(guests.ask(&guest("a", "east", 1)), Some(Ok(())), "the FluxSetup went");
        assert!(guests.take(&guest("a", "east", 1)) && guests.left("east").is_empty());
        guests.begin();
        assert_eq!(guests.ask(&guest("a", "east", 1)), None);
    }
}
