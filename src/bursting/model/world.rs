//! Clusters, the ways between them, and what must hold, as `stateright` explores it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use stateright::Property;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstNetworkType;
use tributary_contract::CredentialRequest;

use super::events::{Event, is_direct, is_fenced};
use super::provider::{Instance, Provider};
use super::root::Root;
use super::{Kept, MARGIN, NAMES, Rule, Said};

/// The properties.
pub(super) const NEVER_TWICE: &str = "never twice";
pub(super) const FREE_IS_FREE: &str = "free is free";
pub(super) const ENDS_WELL: &str = "it ends well without faults";

/// Within so many rounds without a fault, a burst is where it belongs.
const ROUNDS: usize = 40;

/// A state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct World {
    pub(super) root: Kept<Root>,
    pub(super) providers: [Kept<Provider>; 2],
    /// The cluster that was west before another one was.
    pub(super) stranger: Option<Kept<Provider>>,
    pub(super) ways: [Way; 2],
    /// Whose brokers a person took upon themselves.
    pub(super) excused: [bool; 2],
    pub(super) faults: u8,
}

/// Between the root and a provider.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Way {
    pub(super) cut: bool,
    pub(super) session: bool,
    /// What was said and has not arrived yet: by the root, and by the provider.
    pub(super) late: [Option<Kept<Said>>; 2],
    pub(super) asked: Asked,
}

/// Where a request for the certificate is.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Asked {
    #[default]
    Nothing,
    /// The root has recorded who asked.
    Recorded(Kept<CredentialRequest>),
    /// It is on its way.
    Sent(Kept<CredentialRequest>),
}

/// A part of a state: what of it is computed, and from what.
type Part = (&'static str, u64, u64);

/// What became of parts of states: each is computed once.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Part, Box<dyn Any + Send>>>);

impl Known {
    pub(super) fn once<T: Clone + Send + 'static>(&self, key: Part, make: impl FnOnce() -> T) -> T {
        if let Some(known) = self.0.lock().unwrap().get(&key) {
            return known.downcast_ref::<T>().unwrap().clone();
        }
        let made = make();
        self.0.lock().unwrap().insert(key, Box::new(made.clone()));
        made
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// What is explored.
pub(super) struct Model {
    pub(super) network: BurstNetworkType,
    /// The rule that is taken out.
    pub(super) out: Option<Rule>,
    /// At most so many faults, of these.
    pub(super) faults: u8,
    pub(super) of: Vec<Event>,
    /// Where it begins.
    pub(super) begin: Vec<World>,
    /// The properties that are checked.
    pub(super) must: Vec<&'static str>,
    pub(super) known: Known,
    /// How many states were checked.
    pub(super) checked: AtomicUsize,
}

impl Model {
    pub(super) fn new(network: BurstNetworkType, faults: u8) -> Self {
        let must = vec![NEVER_TWICE, FREE_IS_FREE, ENDS_WELL];
        let (known, checked) = (Known::default(), AtomicUsize::new(0));
        Self { network, out: None, faults, of: Event::all_faults(), begin: Vec::new(), must, known, checked }
    }

    /// Nothing was planned yet.
    pub(super) fn fresh(&self) -> World {
        let mut root = Root::new(self.network);
        root.start();
        let provider = || {
            let mut provider = Provider::new();
            provider.start(None);
            provider.kept()
        };
        let mut world = World {
            root: root.kept(),
            providers: [provider(), provider()],
            stranger: None,
            ways: [Way::default(), Way::default()],
            excused: [false; 2],
            faults: 0,
        };
        for provider in 0..2 {
            world = self.follows(&world, Event::Meet(provider)).unwrap();
        }
        world
    }

    /// Where a world without further faults comes to rest.
    pub(super) fn settled(&self, world: &World) -> Option<World> {
        self.rests_within(world, ROUNDS)
    }

    fn rests_within(&self, world: &World, rounds: usize) -> Option<World> {
        let world = World { faults: 0, ..world.clone() };
        self.known.once(("rests", Kept::new(world.clone()).1, 0), || match self.round(&world).pop() {
            Some(next) if next != world => self.rests_within(&next, rounds.checked_sub(1)?),
            _ => Some(world),
        })
    }

    /// Everything happens once that can without a fault.
    fn round(&self, world: &World) -> Vec<World> {
        let mut round = Vec::new();
        for event in Event::all_good() {
            round.extend(self.follows(round.last().unwrap_or(world), event));
        }
        round
    }

    /// From the first moment to rest.
    pub(super) fn life(&self) -> Vec<World> {
        let mut life = vec![self.fresh()];
        let end = self.settled(&life[0]);
        while life.last() != end.as_ref() {
            life.extend(self.round(life.last().unwrap()));
        }
        life
    }

    /// Whether a world without faults ends as its user wants it.
    fn ends_well(&self, world: &World) -> bool {
        let Some(end) = self.settled(world) else { return false };
        let status = end.root.status();
        let gone = |provider: &Kept<Provider>| provider.running().next().is_none();
        if let Some(peer) = &status.peer {
            let index = NAMES.iter().position(|name| name == peer).unwrap();
            let held = end.stranger.is_some() && index == 0 && status.phase == BurstPhase::Lost;
            let runs = status.phase == BurstPhase::Ready && end.providers[index].is_ready();
            return (runs && gone(&end.providers[1 - index])) || held && is_direct(self.network);
        }
        // Both owners threw it out.
        status.phase == BurstPhase::Evicted && end.providers.iter().all(|provider| provider.is_empty())
    }

    /// Whether brokers of an instance can join the one that runs.
    fn joins(&self, world: &World, instance: &Instance, provider: Option<usize>) -> bool {
        if world.root.over || instance.digest != world.root.digest() {
            return false;
        }
        if !instance.tunnel || !is_fenced(self.out) {
            return true;
        }
        let outlet = world.root.agent.as_ref().and_then(|agent| agent.outlet.as_ref());
        let let_in = |(peer, incarnation): &(tributary_contract::PeerName, String)| {
            provider.is_some_and(|provider| peer.as_str() == NAMES[provider]) && *incarnation == instance.incarnation
        };
        outlet.is_some_and(let_in)
    }

    /// Clusters with brokers that can join, but for those that a person took upon themselves.
    fn clusters(&self, world: &World) -> usize {
        let joins = |provider: &Kept<Provider>, index: Option<usize>| {
            provider.running().any(|instance| self.joins(world, instance, index))
        };
        let here = (0..2).filter(|index| !world.excused[*index] && joins(&world.providers[*index], Some(*index)));
        let stranger = world.stranger.iter().filter(|stranger| !world.excused[0] && joins(stranger, None));
        here.count() + stranger.count()
    }

    /// Whether nothing runs where the burst is not placed any more, of its instance or with the certificate of the instance.
    /// By a tunnel, this holds only while the provider's agent works.
    fn is_free_where_it_is_let_go(&self, world: &World) -> bool {
        let status = world.root.status();
        let Some(burst) = world.root.burst.as_ref().filter(|_| status.incarnation.is_some()) else { return true };
        let late = |provider: &Provider| !is_direct(self.network) && provider.late > MARGIN;
        let left = |provider: &Kept<Provider>| {
            !late(provider)
                && provider.running().any(|instance| {
                    let own = Some(instance.burst.1.as_str()) == burst.metadata.uid.as_deref();
                    let joins = !world.root.over && instance.digest == world.root.digest();
                    joins || own && Some(&instance.incarnation) == status.incarnation.as_ref()
                })
        };
        let placed = |index: usize| status.peer.as_deref() == Some(NAMES[index]);
        let here = (0..2).any(|index| !placed(index) && !world.excused[index] && left(&world.providers[index]));
        let stranger =
            world.stranger.as_ref().is_some_and(|stranger| left(stranger) && !placed(0) && !world.excused[0]);
        !here && !stranger
    }
}

impl stateright::Model for Model {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        self.begin.clone()
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        self.checked.fetch_add(1, Ordering::Relaxed);
        events.extend(Event::all_good());
        if world.faults < self.faults {
            events.extend(self.of.iter().copied());
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        self.follows(world, event)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            Property::always(NEVER_TWICE, |model: &Self, world: &World| model.clusters(world) <= 1),
            Property::always(FREE_IS_FREE, Self::is_free_where_it_is_let_go),
            Property::always(ENDS_WELL, Self::ends_well),
        ];
        all.into_iter().filter(|property| self.must.contains(&property.name)).collect()
    }
}
