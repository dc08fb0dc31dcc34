//! What a round sees beyond the quota: nodes, and peers. Behind it are the ports to whoever watches them.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;
use tributary_api::burst::{Burst, BurstRefusal};
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::{CheckNodes, FluxSetupSpec, Overflow, OverflowPolicy};
use tributary_render::nodes::Gang;

use super::claims::Claims;
use super::evictions;
use super::job::{self, Stage};
use super::limits;
use super::line::Wanted;
use super::nodes::{NodeRules, gang_of};
use super::overflow::{self, Part, PeersNow, Start};
use super::round::{Candidate, View, Who};
use super::schedule::Outside;

/// While somebody waits for nodes: nobody tells when they have room.
const LOOK_AT_NODES_AGAIN: Duration = Duration::from_secs(2);
/// While the nodes that are there could not hold somebody whatever ends: others may come.
const LOOK_FOR_NODES_AGAIN: Duration = Duration::from_secs(15);
/// While somebody waits for peers: what is told of their room is coarse.
const LOOK_AT_PEERS_AGAIN: Duration = Duration::from_secs(5);

/// Gangs of one shape fit the same nodes.
type Shape = (Gang, NodeRules);

/// Nodes and peers, with all that is on its way to them.
pub(super) struct PlacementContext<'a> {
    view: &'a View<'a>,
    setup: &'a FluxSetupSpec,
    wanted: &'a BTreeMap<Who, (Wanted<'a>, Gang)>,
    pub(super) gangs: Vec<Gang>,
    away: Vec<(String, Part)>,
    claims: &'a mut Claims,
    /// What the nodes lack for such brokers beside all that starts. Thousands of them may wait.
    lacking: Vec<(Shape, u32)>,
    /// Why the nodes could not hold such brokers whatever ends.
    short: Vec<(Shape, Option<String>)>,
    /// What is known of peers, once anybody asks.
    peers: Option<PeersNow>,
    /// What no peer has room for: nor for anything that asks for more.
    refused: Vec<Part>,
    /// Where parts of those that start go, or all of them.
    pub(super) chosen: BTreeMap<Who, String>,
    /// Why those that could go elsewhere, all of them or in part, cannot. Of those for which only room is missing, the first.
    pub(super) bound: BTreeMap<Who, String>,
    /// When to look again, since somebody waits for what is not told.
    pub(super) again: Option<Duration>,
}

impl<'a> PlacementContext<'a> {
    /// `gangs` run on these nodes or are about to, `away` are parts on their way to peers.
    pub(super) fn new(
        view: &'a View<'a>,
        setup: &'a FluxSetupSpec,
        wanted: &'a BTreeMap<Who, (Wanted<'a>, Gang)>,
        gangs: Vec<Gang>,
        away: Vec<(String, Part)>,
        claims: &'a mut Claims,
    ) -> Self {
        Self {
            view,
            setup,
            wanted,
            gangs,
            away,
            claims,
            lacking: Vec::new(),
            short: Vec::new(),
            peers: None,
            refused: Vec::new(),
            chosen: BTreeMap::new(),
            bound: BTreeMap::new(),
            again: None,
        }
    }

    /// How many brokers a gang has already.
    fn has(&self, gang: &Gang) -> u32 {
        self.gangs
            .iter()
            .filter(|one| (&one.namespace, &one.name) == (&gang.namespace, &gang.name))
            .map(|one| one.brokers)
            .max()
            .unwrap_or(0)
    }

    fn shape(&mut self, wanted: &Wanted<'_>, gang: Gang) -> Option<Shape> {
        let rules = match wanted {
            Wanted::MiniCluster(found) => NodeRules::of(&found.spec),
            Wanted::Job(job) => self.claims.of(job).ok()?.rules.clone(),
        };
        Some((Gang { name: String::new(), ..gang }, rules))
    }

    fn is_refused(&self, part: &Part) -> bool {
        self.refused.iter().any(|refused| part.is_no_less_than(refused))
    }

    /// Who threw out before what would be sent of a FluxJob, all of it or so many brokers; or why nothing of it can be.
    fn evictions(&mut self, job: &FluxJob, brokers: u32) -> Result<Vec<BurstRefusal>, String> {
        let (view, overflow) = (self.view, &self.setup.overflow);
        match overflow.policy {
            OverflowPolicy::Whole => {
                let longest = limits::longest(self.setup);
                let burst = self.claims.burst(job, || {
                    let made = job::mini_cluster(job, longest)?;
                    (view.ports.sender.0)(job, &made, overflow)
                })?;
                Ok(burst.spec.evictions.clone())
            }
            _ => {
                let least = self.claims.splits(job, overflow, || overflow::splits(job, overflow))?;
                if brokers < least {
                    return Err(format!(
                        "in parts, its command would wait for ever: {brokers} brokers would be elsewhere, of the {least} that it \
                         waits for (spec.miniCluster.flux.bursting.wait.for)"
                    ));
                }
                Ok(evictions::standing(job))
            }
        }
    }

    fn again_in(&mut self, delay: Duration) {
        self.again = Some(self.again.map_or(delay, |again| again.min(delay)));
    }
}

impl Outside<Who> for PlacementContext<'_> {
    fn lacking(&mut self, key: &Who, brokers: i64) -> i64 {
        let check = self.setup.check_nodes;
        let Some((wanted, gang)) = self.wanted.get(key).filter(|_| check != CheckNodes::Never) else { return 0 };
        if check == CheckNodes::Autoscaled {
            return if self.short(key).is_some() { brokers } else { 0 };
        }
        // Who grows has its services already.
        let services = gang.services.filter(|_| !matches!(key, Who::Growth(_)));
        let gang = Gang { brokers: count(brokers), services, ..gang.clone() };
        let Some(shape) = self.shape(wanted, gang) else { return 0 };
        let lacking = match self.lacking.iter().find(|(known, _)| *known == shape) {
            Some((_, lacking)) => *lacking,
            None => {
                let lacking = (self.view.ports.nodes.lacking)(&shape.1, &shape.0, &self.gangs);
                self.lacking.push((shape, lacking));
                lacking
            }
        };
        if lacking > 0 && self.short(key).is_none() {
            self.again_in(LOOK_AT_NODES_AGAIN);
        }
        lacking.into()
    }

    fn short(&mut self, key: &Who) -> Option<String> {
        let check = self.setup.check_nodes;
        let (wanted, gang) = self.wanted.get(key).filter(|_| check != CheckNodes::Never)?;
        // Who grows needs room for what it has as well.
        let brokers = gang.brokers.saturating_add(if matches!(key, Who::Growth(_)) { self.has(gang) } else { 0 });
        let (gang, groups) = match check {
            // There will be more of these nodes, one for each pod if need be.
            CheckNodes::Autoscaled => {
                (Gang { brokers: 1, services: None, ..gang.clone() }, self.setup.node_groups.as_slice())
            }
            _ => (Gang { brokers, ..gang.clone() }, [].as_slice()),
        };
        let shape = self.shape(wanted, gang)?;
        if let Some((_, short)) = self.short.iter().find(|(known, _)| *known == shape) {
            return short.clone();
        }
        let short = (self.view.ports.nodes.short)(&shape.1, &shape.0, groups);
        if short.is_some() {
            self.again_in(LOOK_FOR_NODES_AGAIN);
        }
        self.short.push((shape, short.clone()));
        short
    }

    fn takes(&mut self, key: &Who, brokers: i64) -> bool {
        let Some((wanted, gang)) = self.wanted.get(key) else { return false };
        let Wanted::Job(job) = wanted else { return false };
        let mut part = overflow::part(&self.setup.overflow, &gang.namespace, count(brokers), gang.each);
        let came_back = job.status.as_ref().is_some_and(|status| status.returned.is_some());
        // First what costs nothing: thousands may wait. Nobody threw out one that never came back.
        if !came_back && self.is_refused(&part) {
            self.again_in(LOOK_AT_PEERS_AGAIN);
            return false;
        }
        match self.evictions(job, part.brokers) {
            Ok(evictions) => part.evictions = evictions,
            Err(why) => {
                self.bound.insert(key.clone(), why);
                return false;
            }
        }
        if came_back && self.is_refused(&part) {
            self.again_in(LOOK_AT_PEERS_AGAIN);
            return false;
        }
        let view = self.view;
        let peers = self.peers.get_or_insert_with(|| (view.ports.peers)());
        match peers(&part, &self.away) {
            Ok(peer) => {
                self.away.push((peer.clone(), part));
                self.chosen.insert(key.clone(), peer);
                return true;
            }
            // Figures of room change often, and each sentence is written: only the first that waits for room has them, and those
            // that were thrown out.
            Err(why) if self.refused.is_empty() || !part.evictions.is_empty() => {
                self.bound.insert(key.clone(), cut(why));
            }
            Err(_) => {}
        }
        self.again_in(LOOK_AT_PEERS_AGAIN);
        self.refused.push(part);
        false
    }

    fn says_why(&self, key: &Who) -> bool {
        self.bound.contains_key(key)
    }

    fn starts(&mut self, key: &Who, brokers: i64) {
        self.lacking.clear();
        if let Some((_, gang)) = self.wanted.get(key) {
            // Pods that are bound count for those that one has already.
            let brokers = count(brokers).saturating_add(self.has(gang));
            self.gangs.push(Gang { brokers, ..gang.clone() });
        }
    }
}

/// Parts of FluxJobs, and whole ones, that were promised to a peer and are no Bursts yet.
pub(super) fn on_their_way(view: &View<'_>, candidates: &[Candidate<'_>], overflow: &Overflow) -> Vec<(String, Part)> {
    let namespace = view.seen.setup.as_ref().and_then(|setup| setup.namespace()).unwrap_or_default();
    let part = |candidate: &Candidate<'_>| {
        let (peer, away) = match &candidate.start {
            Start::Here => return None,
            Start::Split(split) => (split.peer.clone()?, split.away),
            Start::Sent(sent) => (sent.peer.clone()?, candidate.job.spec.size),
        };
        let each = match &candidate.stage {
            Stage::LinesUp(Ok(claim)) => claim.gang.each,
            Stage::Sent(burst, Some(claim)) if burst.is_none_or(is_new) => claim.gang.each,
            Stage::Follows(found, _) if found.status.as_ref().is_none_or(|status| status.bursts.is_empty()) => {
                gang_of(&namespace, &found.name_any(), &found.spec).each
            }
            _ => return None,
        };
        Some((peer, overflow::part(overflow, &namespace, away, each)))
    };
    candidates.iter().filter_map(part).collect()
}

/// Nobody has looked at it yet: it is not among what Bursts claim of peers.
fn is_new(burst: &Burst) -> bool {
    burst.status.as_ref().is_none_or(|status| status.observed_generation.is_none())
}

/// One sentence for each of many peers is more than people read.
fn cut(mut why: String) -> String {
    const MOST: usize = 300;
    if why.len() > MOST {
        why.truncate(why.floor_char_boundary(MOST));
        why.push('…');
    }
    why
}

fn count(brokers: i64) -> u32 {
    u32::try_from(brokers).unwrap_or(0)
}
