//! Where a burst goes: a pure choice among the peers.
//!
//! The user's order wins; else labels. A peer that has room now comes before one that would have to add nodes; then what the
//! user prefers counts, then what it costs, then room.
//! Capacity is a hint, since only the provider's admission knows: a peer that was named is asked even if it seems full, as
//! its refusal tells more than our guess.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use tributary_api::burst::BurstRefusal;
use tributary_api::selector::{PeerPreference, PeerSelector};
use tributary_contract::{Capacity, Money, NamespaceRoom, PeerName, PossibleCapacity};

use crate::peers::PeerView;

/// What a burst needs, and where its user wants it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wish {
    /// Namespace of the root.
    pub namespace: String,
    /// Brokers wanted now.
    pub size: u32,
    /// Brokers that quotas must have room for.
    pub max_size: u32,
    /// Cores per broker, as quotas count them.
    pub cores: u32,
    /// Thousandths of a core per broker, as nodes count them.
    pub milli_cores: u32,
    /// GPUs per broker, as quotas and prices count them.
    pub gpus: u32,
    /// The same, as nodes count them.
    pub node_gpus: u32,
    /// Memory per broker, in MiB, as far as it is known.
    pub memory_mib: u64,
    /// Peers by name, best first.
    pub peers: Vec<PeerName>,
    /// By labels of the ClusterPeers; counts if no peer is named.
    pub selector: PeerSelector,
    /// Which of them are better.
    pub prefer: Vec<PeerPreference>,
    /// It is all of an instance: only for peers that say they know such bursts.
    pub whole: bool,
}

impl Wish {
    /// Whole cores that all brokers take of nodes.
    fn cores_of_all(&self) -> u32 {
        self.size.saturating_mul(self.milli_cores).div_ceil(1000)
    }
}

/// What was placed on a peer and is not yet in the capacity it reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// Bursts.
    pub bursts: u32,
    /// Their brokers, by `maxSize`.
    pub brokers: u32,
    /// Their cores, by `size`.
    pub cores: u32,
    /// Their GPUs, by `size`.
    pub gpus: u32,
    /// Cores and GPUs, by `maxSize`, of those that it has not taken yet: FluxSetups over there do not count them.
    pub untaken: (u32, u32),
}

impl Claimed {
    /// Adds a burst.
    pub fn add(&mut self, wish: &Wish) {
        self.bursts += 1;
        self.brokers = self.brokers.saturating_add(wish.max_size);
        let of_all = |each: u32| wish.max_size.saturating_mul(each);
        let (cores, gpus) = self.untaken;
        self.untaken = (cores.saturating_add(of_all(wish.cores)), gpus.saturating_add(of_all(wish.gpus)));
        self.add_pods(wish);
    }

    /// Adds a burst that was accepted: the peer counts it as promised, but its pods are on no node yet.
    pub(crate) fn add_pods(&mut self, wish: &Wish) {
        self.cores = self.cores.saturating_add(wish.cores_of_all());
        self.gpus = self.gpus.saturating_add(wish.size.saturating_mul(wish.node_gpus));
    }
}

/// What other Bursts claim of peers. It is added up only when a Burst is placed.
pub(crate) trait Claims: fmt::Debug {
    /// Peer by peer.
    fn claimed(&self) -> BTreeMap<PeerName, Claimed>;
}

impl Claims for BTreeMap<PeerName, Claimed> {
    fn claimed(&self) -> BTreeMap<PeerName, Claimed> {
        self.clone()
    }
}

/// No peer can take a burst at the moment, and why not, peer by peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoCandidate {
    /// Why each peer that came into question was passed over.
    pub reasons: BTreeMap<PeerName, String>,
    /// The peers that there are.
    known: Vec<PeerName>,
}

impl NoCandidate {
    fn among(peers: &BTreeMap<PeerName, PeerView>) -> Self {
        Self { reasons: BTreeMap::new(), known: peers.keys().cloned().collect() }
    }
}

impl fmt::Display for NoCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known.as_slice() {
            _ if !self.reasons.is_empty() => {}
            [] => return f.write_str("there is no ClusterPeer in this cluster: `agentctl link --help`"),
            known => {
                let known: Vec<&str> = known.iter().map(PeerName::as_str).collect();
                return write!(
                    f,
                    "no ClusterPeer has the labels that the selector asks for (flux.bursting.clusters[].selector; of a FluxJob: \
                     overflow.selector of the FluxSetup); there are: {}",
                    known.join(", ")
                );
            }
        }
        for (position, (peer, reason)) in self.reasons.iter().enumerate() {
            if position > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{peer}: {reason}")?;
        }
        Ok(())
    }
}

/// A peer that comes into question for a burst.
#[derive(Debug)]
pub struct Candidate {
    /// Its name.
    pub peer: PeerName,
    /// How well it fits; else why it is not asked.
    pub fit: Result<Fit, String>,
    /// The sum of weights of what the user prefers.
    pub weight: u64,
    /// What the burst would cost there in an hour.
    pub hourly: Money,
}

impl Candidate {
    /// The smaller, the better. Where the user named peers, their order decides among those that fit as well.
    fn rank(&self, named: bool) -> (u8, Reverse<u64>, Money, Reverse<u32>) {
        let (class, spare) = match &self.fit {
            Ok(Fit::Roomy(spare)) => (0, *spare),
            Ok(Fit::Unknown) => (u8::from(!named), 0),
            Ok(Fit::Growing(spare)) => (2, *spare),
            Ok(Fit::Short(_)) => (3, 0),
            Err(_) => (4, 0),
        };
        if named {
            return (class, Reverse(0), Money::default(), Reverse(0));
        }
        (class, Reverse(self.weight), self.hourly, Reverse(spare))
    }
}

/// The peers in question, best first.
///
/// `excluded` are peers that must not be asked, with the reason: they refused it, or have not yet confirmed that they hold
/// nothing of it.
pub fn candidates(
    wish: &Wish,
    peers: &BTreeMap<PeerName, PeerView>,
    claimed: &BTreeMap<PeerName, Claimed>,
    excluded: &BTreeMap<PeerName, String>,
) -> Vec<Candidate> {
    let candidate = |peer: PeerName| {
        let fit = able(&peer, wish, peers, claimed, excluded);
        let view = peers.get(&peer);
        let price = view.and_then(|view| view.price(matches!(fit, Ok(Fit::Growing(_))))).unwrap_or_default();
        let fitting = wish.prefer.iter().filter(|one| view.is_some_and(|view| one.peers.matches(&view.labels)));
        let weight = fitting.map(|one| u64::from(one.weight.unsigned_abs())).sum();
        Candidate { fit, weight, hourly: price.hourly(wish.size, wish.milli_cores, wish.gpus), peer }
    };
    let mut candidates: Vec<Candidate> = asked(wish, peers).into_iter().map(candidate).collect();
    // Of equals, the first one by name, or as the user named them.
    candidates.sort_by_key(|candidate| candidate.rank(!wish.peers.is_empty()));
    candidates
}

/// Chooses a peer for `wish`. `excluded`: as for [`candidates`].
///
/// # Errors
/// Nobody can take it now.
pub fn place(
    wish: &Wish,
    peers: &BTreeMap<PeerName, PeerView>,
    claimed: &BTreeMap<PeerName, Claimed>,
    excluded: &BTreeMap<PeerName, String>,
) -> Result<PeerName, NoCandidate> {
    let mut none = NoCandidate::among(peers);
    for Candidate { peer, fit, .. } in candidates(wish, peers, claimed, excluded) {
        match fit {
            Err(reason) => drop(none.reasons.insert(peer, reason)),
            Ok(Fit::Short(reason)) if wish.peers.is_empty() => drop(none.reasons.insert(peer, reason)),
            Ok(_) => return Ok(peer),
        }
    }
    Err(none)
}

/// The peer that seems to have room for `wish`, or could have it: nobody is asked in the hope that it has.
///
/// # Errors
/// There is none.
pub(crate) fn roomy(
    wish: &Wish,
    peers: &BTreeMap<PeerName, PeerView>,
    claimed: &BTreeMap<PeerName, Claimed>,
    excluded: &BTreeMap<PeerName, String>,
) -> Result<PeerName, NoCandidate> {
    let mut none = NoCandidate::among(peers);
    for Candidate { peer, fit, .. } in candidates(wish, peers, claimed, excluded) {
        let reason = match fit {
            Ok(Fit::Roomy(_) | Fit::Growing(_)) => return Ok(peer),
            Ok(Fit::Unknown) => {
                "it does not tell what room it has (export.capacity of this cluster's ClusterPeer there)".to_owned()
            }
            Ok(Fit::Short(reason)) | Err(reason) => reason,
        };
        none.reasons.insert(peer, reason);
    }
    Err(none)
}

/// Whether a peer that may be asked has room for `wish` only with nodes that it would add.
pub fn grows(
    name: &PeerName,
    wish: &Wish,
    peers: &BTreeMap<PeerName, PeerView>,
    claimed: &BTreeMap<PeerName, Claimed>,
) -> bool {
    matches!(able(name, wish, peers, claimed, &BTreeMap::new()), Ok(Fit::Growing(_)))
}

/// Peers that threw a burst out and whose ClusterPeer is still the one of then, with the reason.
pub(crate) fn evicting(evictions: &[BurstRefusal], peers: &BTreeMap<PeerName, PeerView>) -> BTreeMap<PeerName, String> {
    let stands = |one: &&BurstRefusal| peers.get(one.peer.as_str()).is_some_and(|peer| peer.is_unchanged_since(one));
    let reason = |one: &BurstRefusal| (one.peer.as_str().into(), format!("refused ({}): {}", one.reason, one.message));
    evictions.iter().filter(stands).map(reason).collect()
}

/// Whether the wish lets this peer be asked at all.
pub(crate) fn eligible(wish: &Wish, name: &PeerName, peer: &PeerView) -> bool {
    if wish.peers.is_empty() { wish.selector.matches(&peer.labels) } else { wish.peers.contains(name) }
}

/// How well a peer that may be asked fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It has room, and this many cores to spare afterwards.
    Roomy(u32),
    /// It tells no capacity.
    Unknown,
    /// It lacks room, and would have it with nodes that it could add; this many cores to spare then.
    Growing(u32),
    /// It seems to lack room.
    Short(String),
}

/// The peers in question, in the order they are asked.
fn asked(wish: &Wish, peers: &BTreeMap<PeerName, PeerView>) -> Vec<PeerName> {
    if wish.peers.is_empty() {
        peers.iter().filter(|(name, peer)| eligible(wish, name, peer)).map(|(name, _)| name.clone()).collect()
    } else {
        wish.peers.clone()
    }
}

fn able(
    name: &PeerName,
    wish: &Wish,
    peers: &BTreeMap<PeerName, PeerView>,
    claimed: &BTreeMap<PeerName, Claimed>,
    excluded: &BTreeMap<PeerName, String>,
) -> Result<Fit, String> {
    if let Some(reason) = excluded.get(name) {
        return Err(reason.clone());
    }
    let peer = peers.get(name).ok_or_else(|| unknown(peers))?;
    if peer.suspended {
        return Err(format!("suspended by this cluster: `agentctl peer resume {name}`"));
    }
    if peer.draining {
        return Err(format!("drained by this cluster: `agentctl peer resume {name}`"));
    }
    if let Some(why) = peer.exhausted.as_ref().or(peer.unreadable_budget.as_ref()) {
        return Err(why.clone());
    }
    if !peer.connected() {
        return Err("not connected (why: `agentctl peers`)".into());
    }
    if peer.flapping {
        return Err("its connection keeps breaking".into());
    }
    if wish.whole && !peer.capacity.as_ref().is_some_and(|capacity| capacity.whole) {
        return Err("its agent does not say that it takes whole FluxJobs: it is older, or exports no capacity".into());
    }
    let Some(capacity) = &peer.capacity else { return Ok(Fit::Unknown) };
    let claimed = claimed.get(name).copied().unwrap_or_default();
    if let Err(reason) = quotas(wish, capacity, claimed) {
        return Ok(Fit::Short(reason));
    }
    let none = PossibleCapacity::default();
    let possible = capacity.possible.as_ref().filter(|possible| possible.nodes > 0);
    Ok(match (room(wish, capacity, &none, claimed), possible) {
        (Ok(spare), _) => Fit::Roomy(spare),
        (Err(reason), None) => Fit::Short(reason),
        (Err(_), Some(possible)) => match room(wish, capacity, possible, claimed) {
            Ok(spare) => Fit::Growing(spare),
            Err(reason) => Fit::Short(format!("{reason}, with the nodes that it could add")),
        },
    })
}

/// The name is nobody's: whose there are.
fn unknown(peers: &BTreeMap<PeerName, PeerView>) -> String {
    let names: Vec<&str> = peers.keys().map(PeerName::as_str).collect();
    match names.as_slice() {
        [] => "there is no ClusterPeer of this name, nor any other".to_owned(),
        names => format!("there is no ClusterPeer of this name; there are {}", names.join(", ")),
    }
}

/// What is left of so much that is free; else what is lacking.
fn short(what: &str, wanted: u32, free: u32) -> Result<u32, String> {
    if wanted > free { Err(format!("{wanted} {what} wanted, {free} free")) } else { Ok(free - wanted) }
}

/// Whether policy and quotas over there leave enough.
fn quotas(wish: &Wish, capacity: &Capacity, claimed: Claimed) -> Result<(), String> {
    // Without an import it says 0.
    if capacity.free_bursts.is_some_and(|free| free <= claimed.bursts) {
        return Err("this cluster's ClusterPeer there has no import, or import.maxBursts leaves none".to_owned());
    }
    let free = capacity.free_brokers.map(|free| free.saturating_sub(claimed.brokers));
    if let Some(free) = free.filter(|free| wish.max_size > *free) {
        let wanted = wish.max_size;
        return Err(format!(
            "{wanted} brokers are wanted (maxSize), import.maxBrokers of this cluster's ClusterPeer there leaves {free}"
        ));
    }
    capacity.room(&wish.namespace).map_or(Ok(()), |left| granted(wish, left, claimed))
}

/// Cores left after placing, on the nodes that are there and on `more`.
fn room(wish: &Wish, capacity: &Capacity, more: &PossibleCapacity, claimed: Claimed) -> Result<u32, String> {
    let largest = capacity.largest_free_node_cores.max(more.largest_node_cores);
    short("cores on one node", wish.milli_cores.div_ceil(1000), largest)?;
    let with = |free: u32, more: u32, claimed: u32| free.saturating_add(more).saturating_sub(claimed);
    let gpus = with(capacity.free_gpus, more.gpus, claimed.gpus);
    short("GPUs", wish.size.saturating_mul(wish.node_gpus), gpus)?;
    short("cores", wish.cores_of_all(), with(capacity.free_cores, more.cores, claimed.cores))
}

/// Whether the FluxSetup over there leaves enough. It counts what a burst may grow to.
fn granted(wish: &Wish, left: &NamespaceRoom, claimed: Claimed) -> Result<(), String> {
    let NamespaceRoom { namespace: _, mini_clusters, brokers, milli_cores, memory_mib, gpus } = left;
    let of_all = |each: u64| each.saturating_mul(wish.max_size.into());
    let amounts = [
        ("burst", 1, mini_clusters.map(u64::from), claimed.bursts),
        ("brokers", of_all(1), brokers.map(u64::from), claimed.brokers),
        ("cores", of_all(wish.cores.into()), milli_cores.map(|milli| milli / 1000), claimed.untaken.0),
        ("MiB of memory", of_all(wish.memory_mib), *memory_mib, 0),
        ("GPUs", of_all(wish.gpus.into()), gpus.map(u64::from), claimed.untaken.1),
    ];
    for (what, wanted, left, claimed) in amounts {
        let left = left.map(|left| left.saturating_sub(claimed.into()));
        if let Some(left) = left.filter(|left| wanted > *left) {
            return Err(format!("{wanted} {what} wanted, its FluxSetup leaves {left}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tributary_contract::{PeerState, Price};

    use super::*;

    fn peer(free_cores: u32, labels: &[(&str, &str)]) -> PeerView {
        PeerView {
            state: PeerState::Connected,
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            capacity: Some(Capacity {
                nodes: 2,
                free_cores,
                largest_free_node_cores: free_cores / 2,
                free_bursts: Some(2),
                ..Capacity::default()
            }),
            ..PeerView::default()
        }
    }

    fn world() -> BTreeMap<PeerName, PeerView> {
        let away = PeerView { state: PeerState::Disconnected, ..peer(64, &[("gpu", "yes")]) };
        let silent = PeerView { capacity: None, ..peer(0, &[("region", "eu")]) };
        [
            ("west", peer(8, &[("region", "us")])),
            ("north", peer(16, &[("region", "eu")])),
            ("away", away),
            ("silent", silent),
        ]
        .map(|(name, view)| (name.into(), view))
        .into()
    }

    fn wish(size: u32) -> Wish {
        Wish { size, max_size: size, cores: 2, milli_cores: 2000, ..Wish::default() }
    }

    fn named(size: u32, peers: &[&str]) -> Wish {
        Wish { peers: peers.iter().map(|name| (*name).into()).collect(), ..wish(size) }
    }

    fn selected(size: u32, key: &str, value: &str) -> Wish {
        let match_labels = [(key.to_owned(), value.to_owned())].into();
        Wish { selector: PeerSelector { match_labels, ..PeerSelector::default() }, ..wish(size) }
    }

    fn choice(wish: &Wish) -> String {
        match place(wish, &world(), &BTreeMap::new(), &BTreeMap::new()) {
            Ok(name) => name.to_string(),
            Err(none) => none.to_string(),
        }
    }

    fn priced(world: &mut BTreeMap<PeerName, PeerView>, peer: &str, core_hour: &str) {
        let price = Price { core_hour: core_hour.parse().unwrap(), ..Price::default() };
        world.get_mut(peer).unwrap().price = Some(price);
    }

    fn preferring(size: u32, labels: &[(&str, &str, i32)]) -> Wish {
        let preference = |(key, value, weight): &(&str, &str, i32)| {
            let match_labels = [((*key).to_owned(), (*value).to_owned())].into();
            let peers = PeerSelector { match_labels, ..PeerSelector::default() };
            PeerPreference { weight: *weight, peers }
        };
        Wish { prefer: labels.iter().map(preference).collect(), ..wish(size) }
    }

    #[test]
    fn what_is_preferred_comes_first_then_what_costs_least_then_room() {
        let choice = |wish: &Wish, prices: &[(&str, &str)]| {
            let mut world = world();
            prices.iter().for_each(|(peer, price)| priced(&mut world, peer, price));
            place(wish, &world, &BTreeMap::new(), &BTreeMap::new()).unwrap().to_string()
        };
        let dear = [("north", "0.04"), ("west", "0.03")];
        let table = [
            ("no price, so room", wish(3), &[][..], "north"),
            ("what has no price costs nothing", wish(3), &dear[..1], "west"),
            ("the cheaper one, though it has less room", wish(3), &dear, "west"),
            ("no room, no matter how cheap", wish(6), &dear, "north"),
            ("preferred, though it costs more", preferring(3, &[("region", "eu", 1)]), &dear, "north"),
            ("the greater weight", preferring(3, &[("region", "eu", 1), ("region", "us", 2)]), &[], "west"),
            (
                "as much of both, so the price",
                preferring(3, &[("region", "eu", 2), ("region", "us", 2)]),
                &dear,
                "west",
            ),
            ("room before what is preferred", preferring(6, &[("region", "us", 100)]), &[], "north"),
            ("the user's order before all", named(3, &["north", "west"]), &dear, "north"),
        ];
        for (case, wish, prices, expected) in table {
            assert_eq!(choice(&wish, prices), expected, "{case}");
        }
    }

    #[test]
    fn nodes_that_come_have_their_own_price() {
        let mut world = world();
        priced(&mut world, "west", "0.5");
        let more = |price: Option<&str>| {
            let price = price.map(|text| Price { core_hour: text.parse().unwrap(), ..Price::default() });
            Some(PossibleCapacity { nodes: 2, cores: 64, largest_node_cores: 32, price, ..PossibleCapacity::default() })
        };
        for (name, price) in [("west", None), ("north", Some("0.75"))] {
            world.get_mut(name).unwrap().capacity.as_mut().unwrap().possible = more(price);
        }
        world.remove("silent");
        let hourly = |size| {
            let all = candidates(&wish(size), &world, &BTreeMap::new(), &BTreeMap::new());
            let cost = |one: &Candidate| one.fit.is_ok().then(|| (one.peer.to_string(), one.hourly.to_string()));
            all.iter().filter_map(cost).collect::<Vec<_>>()
        };
        let two =
            |a: (&str, &str), b: (&str, &str)| [a, b].map(|(name, cost)| (name.to_owned(), cost.to_owned())).to_vec();
        assert_eq!(hourly(3), two(("north", "0"), ("west", "3")), "six cores that are there");
        assert_eq!(hourly(10), two(("west", "10"), ("north", "15")), "twenty that have to come");
    }

    #[test]
    fn the_users_order_wins_then_labels_then_room() {
        let nobody = "no ClusterPeer has the labels that the selector asks for (flux.bursting.clusters[].selector; of a FluxJob: \
                      overflow.selector of the FluxSetup); there are: away, north, silent, west";
        let table = [
            ("most room", wish(3), "north"),
            ("named", named(3, &["west"]), "west"),
            ("first of two", named(3, &["west", "north"]), "west"),
            ("first that is connected", named(3, &["away", "west"]), "west"),
            ("first that has room", named(6, &["west", "north"]), "north"),
            ("named although full: it will say why", named(60, &["west"]), "west"),
            ("labels", selected(3, "region", "us"), "west"),
            ("labels, and room before silence", selected(3, "region", "eu"), "north"),
            ("labels, and silence when there is no room", selected(60, "region", "eu"), "silent"),
            ("nobody has the label", selected(3, "region", "mars"), nobody),
            ("only the absent has the label", selected(3, "gpu", "yes"), "away: not connected (why: `agentctl peers`)"),
            (
                "unknown name",
                named(3, &["south"]),
                "south: there is no ClusterPeer of this name; there are away, north, silent, west",
            ),
        ];
        for (case, wish, expected) in table {
            assert_eq!(choice(&wish), expected, "{case}");
        }
        let nowhere = place(&wish(3), &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new()).unwrap_err();
        assert_eq!(nowhere.to_string(), "there is no ClusterPeer in this cluster: `agentctl link --help`");
    }

    /// The danger: "suspended", and nobody knows by whom; or "4 brokers wanted, 2 free", and nobody knows whose limit that is.
    #[test]
    fn the_reason_for_passing_over_a_peer_says_what_can_be_done() {
        let told = |change: fn(&mut PeerView)| {
            let mut west = peer(64, &[]);
            change(&mut west);
            let (wish, peers) = (wish(4), [("west".into(), west)].into());
            place(&wish, &peers, &BTreeMap::new(), &BTreeMap::new()).unwrap_err().to_string()
        };
        let resume = "by this cluster: `agentctl peer resume west`";
        assert_eq!(told(|west| west.suspended = true), format!("west: suspended {resume}"));
        assert_eq!(told(|west| west.draining = true), format!("west: drained {resume}"));
        let limited = told(|west| west.capacity.as_mut().unwrap().free_brokers = Some(2));
        assert!(limited.ends_with("import.maxBrokers of this cluster's ClusterPeer there leaves 2"), "{limited}");
    }

    #[test]
    fn what_others_claimed_is_taken_off_and_reasons_name_every_peer() {
        let mut claimed = BTreeMap::new();
        let mut taken = Claimed::default();
        taken.add(&wish(6));
        claimed.insert(PeerName::from("north"), taken);
        let excluded = [("silent".into(), "refused: PolicyForbids".to_owned())].into();
        let chosen = place(&wish(3), &world(), &claimed, &excluded);
        assert_eq!(chosen.unwrap().as_str(), "west");
        let none = place(&wish(5), &world(), &claimed, &excluded).unwrap_err();
        assert_eq!(
            none.to_string(),
            "away: not connected (why: `agentctl peers`); north: 10 cores wanted, 4 free; silent: refused: PolicyForbids; \
             west: 10 cores wanted, 8 free"
        );
    }

    #[test]
    fn what_a_flux_setup_leaves_is_what_there_is() {
        let mut west = peer(64, &[]);
        let room = |namespace: &str, brokers| NamespaceRoom {
            namespace: namespace.into(),
            brokers: Some(brokers),
            ..NamespaceRoom::default()
        };
        west.capacity.as_mut().unwrap().rooms = vec![room("*", 2), room("hpc", 3)];
        let peers = [("west".into(), west)].into();
        let placed = |namespace: &str, size| {
            let wish = Wish { namespace: namespace.into(), ..wish(size) };
            place(&wish, &peers, &BTreeMap::new(), &BTreeMap::new()).map_err(|none| none.to_string())
        };
        assert_eq!(placed("hpc", 3), Ok("west".into()));
        assert_eq!(placed("hpc", 4), Err("west: 4 brokers wanted, its FluxSetup leaves 3".into()));
        assert_eq!(placed("other", 3), Err("west: 3 brokers wanted, its FluxSetup leaves 2".into()));
    }

    #[test]
    fn a_burst_that_was_taken_is_not_taken_off_what_a_flux_setup_leaves_once_more() {
        let mut west = peer(64, &[]);
        let room = NamespaceRoom { namespace: "hpc".into(), milli_cores: Some(6000), ..NamespaceRoom::default() };
        west.capacity.as_mut().unwrap().rooms = vec![room];
        let peers = [("west".into(), west)].into();
        let placed = |claimed: Claimed| {
            let claims = BTreeMap::from([(PeerName::from("west"), claimed)]);
            let wish = Wish { namespace: "hpc".into(), ..wish(3) };
            place(&wish, &peers, &claims, &BTreeMap::new()).map_err(|none| none.to_string())
        };
        let (mut taken, mut offered) = (Claimed::default(), Claimed::default());
        taken.add_pods(&wish(3));
        offered.add(&wish(3));
        assert_eq!(placed(taken), Ok("west".into()));
        assert_eq!(placed(offered), Err("west: 6 cores wanted, its FluxSetup leaves 0".into()));
    }

    #[test]
    fn who_threw_it_out_is_not_asked_until_its_cluster_peer_changes() {
        let (mut peers, wish) = (world(), named(3, &["west", "north"]));
        let eviction = BurstRefusal {
            peer: "west".into(),
            reason: "EvictedByProvider".into(),
            message: "its HostedBurst was deleted".into(),
            generation: 1,
            offer: String::new(),
            peer_generation: Some(4),
            peer_uid: Some("first".into()),
        };
        let west = peers.get_mut("west").unwrap();
        (west.generation, west.uid) = (Some(4), Some("first".into()));
        let chosen = |peers: &BTreeMap<PeerName, PeerView>, wish: &Wish| {
            let excluded = evicting(std::slice::from_ref(&eviction), peers);
            roomy(wish, peers, &BTreeMap::new(), &excluded).map(String::from).ok()
        };
        assert_eq!(chosen(&peers, &wish).as_deref(), Some("north"));
        assert_eq!(chosen(&peers, &named(3, &["west"])), None);
        peers.get_mut("west").unwrap().generation = Some(5);
        assert_eq!(chosen(&peers, &wish).as_deref(), Some("west"), "its policy is another");
        let west = peers.get_mut("west").unwrap();
        (west.generation, west.uid) = (Some(4), Some("second".into()));
        assert_eq!(chosen(&peers, &wish).as_deref(), Some("west"), "another ClusterPeer has its name");
    }

    #[test]
    fn whole_instances_are_only_for_who_says_that_it_knows_them() {
        let mut peers = world();
        let placed = |peers: &BTreeMap<PeerName, PeerView>, wish: Wish| {
            let none = |none: NoCandidate| none.reasons.into_values().next_back().unwrap_or_default();
            place(&wish, peers, &BTreeMap::new(), &BTreeMap::new()).map(String::from).map_err(none)
        };
        let whole = |wish| Wish { whole: true, ..wish };
        let refused = placed(&peers, whole(named(3, &["north", "silent"]))).unwrap_err();
        assert!(refused.starts_with("its agent does not say that it takes whole FluxJobs"), "{refused}");
        assert_eq!(placed(&peers, named(3, &["north"])).as_deref(), Ok("north"), "a burst like any other");
        peers.get_mut("west").unwrap().capacity.as_mut().unwrap().whole = true;
        assert_eq!(placed(&peers, whole(wish(3))).as_deref(), Ok("west"), "though north has more room");
        assert_eq!(roomy(&whole(wish(3)), &peers, &BTreeMap::new(), &BTreeMap::new()), Ok("west".into()));
    }

    /// Peers like those of the world, of which these could add so many cores, on nodes of 8 each.
    fn growing(more: &[(&str, u32)]) -> BTreeMap<PeerName, PeerView> {
        let mut peers = world();
        for (name, cores) in more {
            let possible = PossibleCapacity {
                nodes: cores / 8,
                cores: *cores,
                gpus: 4,
                largest_node_cores: 8,
                ..PossibleCapacity::default()
            };
            peers.get_mut(*name).unwrap().capacity.as_mut().unwrap().possible = Some(possible);
        }
        peers
    }

    #[test]
    fn room_that_is_there_wins_over_room_that_could_be() {
        let (none, excluded) = (BTreeMap::new(), BTreeMap::from([(PeerName::from("silent"), "no".to_owned())]));
        let placed = |peers: &BTreeMap<PeerName, PeerView>, wish: &Wish| {
            let placed = place(wish, peers, &none, &excluded).map_err(|none| none.to_string());
            let roomy = roomy(wish, peers, &none, &excluded).ok();
            assert!(roomy.is_none() || roomy.as_ref() == placed.as_ref().ok(), "{roomy:?} {placed:?}");
            (placed.map(String::from), roomy.is_some())
        };
        let west = growing(&[("west", 80)]);
        let chosen = |name: &str, roomy| (Ok(name.to_owned()), roomy);
        assert_eq!(placed(&west, &wish(3)), chosen("north", true), "16 cores are there");
        assert_eq!(placed(&west, &wish(9)), chosen("west", true), "18 of 88");
        let both = growing(&[("west", 80), ("north", 40)]);
        assert_eq!(placed(&both, &wish(9)), chosen("west", true), "the one with more of them");
        assert_eq!(placed(&both, &wish(45)).0.unwrap_err().matches("with the nodes that it could add").count(), 2);
        // A broker of 8 cores fits on no node that is there in the west.
        let large = |peers: &[&str]| Wish { milli_cores: 8000, ..named(2, peers) };
        assert_eq!(placed(&west, &large(&["west", "north"])), chosen("north", true), "though west is named first");
        assert_eq!(placed(&growing(&[("west", 8)]), &large(&["west"])), chosen("west", true), "one there, one to come");
        let huge = |peers: &[&str]| Wish { milli_cores: 9000, ..named(1, peers) };
        assert_eq!(placed(&both, &huge(&["west", "north"])), chosen("west", false), "asked in vain: it will say why");
        // GPUs, and what policy and quotas leave.
        let gpus = Wish { gpus: 2, node_gpus: 2, ..wish(2) };
        assert_eq!(placed(&west, &gpus), chosen("west", true));
        assert!(placed(&world(), &gpus).0.is_err());
        let mut full = west.clone();
        full.get_mut("west").unwrap().capacity.as_mut().unwrap().free_bursts = Some(0);
        assert_eq!(placed(&full, &gpus).0.unwrap_err().matches("import.maxBursts leaves none").count(), 1);
        // What others claimed is taken off both.
        let mut claimed = Claimed::default();
        claimed.add(&wish(40));
        let claimed = [("west".into(), claimed)].into();
        let none = place(&named(9, &["west"]), &west, &claimed, &excluded);
        assert_eq!(none.unwrap().as_str(), "west", "it may know better");
        assert!(roomy(&named(9, &["west"]), &west, &claimed, &excluded).is_err());
        assert_eq!(roomy(&named(4, &["west"]), &west, &claimed, &excluded), Ok("west".into()));
    }

    #[test]
    fn silence_may_hide_room_that_is_there() {
        let peers = growing(&[("west", 800)]);
        let placed = |wish: &Wish| place(wish, &peers, &BTreeMap::new(), &BTreeMap::new()).map(String::from);
        assert_eq!(placed(&wish(60)).as_deref(), Ok("silent"));
        assert_eq!(placed(&named(60, &["west", "silent"])).as_deref(), Ok("silent"));
        assert_eq!(roomy(&wish(60), &peers, &BTreeMap::new(), &BTreeMap::new()), Ok("west".into()));
    }

    #[test]
    fn who_only_may_have_room_is_not_roomy() {
        let all = |wish: &Wish| roomy(wish, &world(), &BTreeMap::new(), &BTreeMap::new()).map(String::from);
        let found = |wish: &Wish| all(wish).ok();
        assert_eq!(found(&wish(3)).as_deref(), Some("north"), "the most of it");
        assert_eq!(found(&named(3, &["away", "west", "north"])).as_deref(), Some("west"), "the first that has it");
        assert_eq!(found(&named(60, &["west"])), None, "asked in vain otherwise");
        assert_eq!(found(&selected(60, "region", "eu")), None, "silence is no room");
        let why = all(&named(3, &["silent", "wset", "away"])).unwrap_err();
        let why: Vec<&str> = why.reasons.values().map(String::as_str).collect();
        assert_eq!((why[0], why.len()), ("not connected (why: `agentctl peers`)", 3));
        assert!(
            why[1].contains("export.capacity") && why[2].contains("there is no ClusterPeer of this name"),
            "{why:?}"
        );
    }

    proptest! {
        #[test]
        fn never_on_a_peer_that_is_away_refused_or_not_asked_for(
            size in 1..20_u32, cores in 1..5_u32, names in proptest::sample::subsequence(vec!["west", "north", "away"], 0..3),
            refused in proptest::sample::select(vec!["west", "north", "silent"]),
        ) {
            let wish = Wish { cores, milli_cores: cores * 1000, ..named(size, &names) };
            let excluded: BTreeMap<PeerName, String> = [(refused.into(), "no".to_owned())].into();
            if let Ok(chosen) = place(&wish, &world(), &BTreeMap::new(), &excluded) {
                prop_assert!(chosen.as_str() != "away" && chosen.as_str() != refused);
                prop_assert!(names.is_empty() || names.contains(&chosen.as_str()));
            }
        }
    }
}
