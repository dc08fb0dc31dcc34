//! What a round sees beyond the quota: nodes, and peers. Behind it are the ports to whoever watches them.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;

use super::job::Stage;
use super::line::Wanted;
use super::nodes::Gang;
use super::overflow::{self, Part};
use super::round::{Candidate, View, Who};
use super::schedule::Outside;
use crate::api::flux_setup::{FluxSetupSpec, Overflow};

/// While somebody waits for nodes: nobody tells when they have room.
const LOOK_AT_NODES_AGAIN: Duration = Duration::from_secs(2);
/// While somebody waits for peers: what is told of their room is coarse.
const LOOK_AT_PEERS_AGAIN: Duration = Duration::from_secs(5);

/// Nodes and peers, with all that is on its way to them.
pub(super) struct Outlook<'a> {
    view: &'a View<'a>,
    setup: &'a FluxSetupSpec,
    wanted: &'a BTreeMap<Who, (Wanted<'a>, Gang)>,
    gangs: Vec<Gang>,
    away: Vec<(String, Part)>,
    /// Where parts of those that start go.
    pub(super) chosen: BTreeMap<Who, String>,
    /// When to look again, since somebody waits for what is not told.
    pub(super) again: Option<Duration>,
}

impl<'a> Outlook<'a> {
    /// `gangs` run here or are about to, `away` are parts on their way to peers.
    pub(super) fn new(
        view: &'a View<'a>,
        setup: &'a FluxSetupSpec,
        wanted: &'a BTreeMap<Who, (Wanted<'a>, Gang)>,
        gangs: Vec<Gang>,
        away: Vec<(String, Part)>,
    ) -> Self {
        Self { view, setup, wanted, gangs, away, chosen: BTreeMap::new(), again: None }
    }

    fn again_in(&mut self, delay: Duration) {
        self.again = Some(self.again.map_or(delay, |again| again.min(delay)));
    }
}

impl Outside<Who> for Outlook<'_> {
    fn lacking(&mut self, key: &Who, brokers: i64) -> i64 {
        let Some((wanted, gang)) = self.wanted.get(key).filter(|_| self.setup.check_nodes) else { return 0 };
        let Some(spec) = wanted.spec() else { return 0 };
        let gang = Gang { brokers: count(brokers), ..gang.clone() };
        let lacking = (self.view.nodes)(&spec, &gang, &self.gangs);
        if lacking > 0 {
            self.again_in(LOOK_AT_NODES_AGAIN);
        }
        lacking.into()
    }

    fn takes(&mut self, key: &Who, brokers: i64) -> bool {
        let Some((_, gang)) = self.wanted.get(key) else { return false };
        let part = overflow::part(&self.setup.overflow, &gang.namespace, count(brokers), gang.each);
        let Some(peer) = (self.view.peers)(&part, &self.away) else {
            self.again_in(LOOK_AT_PEERS_AGAIN);
            return false;
        };
        self.away.push((peer.clone(), part));
        self.chosen.insert(key.clone(), peer);
        true
    }

    fn starts(&mut self, key: &Who, brokers: i64) {
        if let Some((_, gang)) = self.wanted.get(key).filter(|_| self.setup.check_nodes) {
            self.gangs.push(Gang { brokers: count(brokers), ..gang.clone() });
        }
    }
}

/// Parts of FluxJobs that were promised to a peer and are no Bursts yet.
pub(super) fn on_their_way(view: &View<'_>, candidates: &[Candidate<'_>], overflow: &Overflow) -> Vec<(String, Part)> {
    let namespace = view.setups.first().and_then(|setup| setup.namespace()).unwrap_or_default();
    let part = |candidate: &Candidate<'_>| {
        let split = candidate.split.as_ref()?;
        let each = match &candidate.stage {
            Stage::LinesUp(Ok(claim)) => claim.gang.each,
            Stage::Follows(found) if found.status.as_ref().is_none_or(|status| status.bursts.is_empty()) => {
                Gang::of(&namespace, &found.name_any(), &found.spec).each
            }
            _ => return None,
        };
        Some((split.peer.clone()?, overflow::part(overflow, &namespace, split.away, each)))
    };
    candidates.iter().filter_map(part).collect()
}

fn count(brokers: i64) -> u32 {
    u32::try_from(brokers).unwrap_or(0)
}
