//! A FluxJob that was split: what its part here waits for, and for how long. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::minicluster::MiniCluster;

use super::{Draft, Terms};
use crate::{evictions, overflow};

impl Draft<'_> {
    /// Whether it was split, and no peer takes the other part, or its brokers at the one that did never joined: then it is taken
    /// back, unless that may still change.
    pub(super) fn is_alone(&mut self, mini_cluster: &MiniCluster, part: Option<&Burst>, terms: Terms<'_>) -> bool {
        let Some(split) = &mut self.status.split else { return false };
        let since = split.joining_since.take().unwrap_or(Time(self.now));
        split.joining_since = overflow::may_join(split, mini_cluster, part).then_some(since);
        let nobody = || overflow::patience(split, terms.began, self.now).map(|left| (left, None));
        let with_peer = || {
            let left = overflow::patience_with_peer(split, terms.began, self.now)?;
            Some((left, Some(split.peer.clone()?)))
        };
        let Some((left, absent)) = nobody().or_else(with_peer) else { return false };
        if !left.is_zero() {
            self.wake = Some(left);
            return false;
        }
        let before = self.status.returned.as_ref();
        let (returned, why) = match absent {
            None => {
                let returned = part.and_then(|part| evictions::of_split(self.job, before, part));
                (returned, "no peer takes its other part".to_owned())
            }
            Some(peer) => {
                let why = overflow::never_joined();
                let known = terms.cluster_peers.iter().find(|one| one.name_any() == peer);
                let known = known.map(|known| &**known);
                (evictions::of_absent(self.job, before, (&peer, known), &why), format!("{peer}: {why}"))
            }
        };
        if returned.is_some() {
            self.status.returned = returned;
        }
        self.recall(why);
        true
    }

    /// That its command has yet to begin, though its instance is up: not all its brokers are there.
    pub(super) fn waits_for_brokers(&self, mini_cluster: &MiniCluster) -> Option<String> {
        let split = self.status.split.as_ref().filter(|split| !split.joined)?;
        let waits = overflow::waits_for_all(mini_cluster);
        waits.then(|| format!("it waits until all its brokers are there: {}", overflow::whereabouts(split)))
    }
}
