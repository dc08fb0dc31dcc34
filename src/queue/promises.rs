//! Nodes that one namespace was promised, and that others have to see before there are pods.

use std::time::Duration;

use parking_lot::Mutex;
use tributary_clock::Mono;
use tributary_render::nodes::Gang;

/// How long nodes are kept for brokers that were let in. By then there are pods, which speak for themselves, or something keeps
/// them from being made.
const LASTS: Duration = Duration::from_secs(15);

/// Brokers that were let in lately, and when.
#[derive(Debug, Default)]
pub(super) struct Promises(Mutex<Vec<(Mono, Gang)>>);

impl Promises {
    /// Those of other namespaces.
    pub(super) fn beside(&self, namespace: &str, now: Mono) -> Vec<Gang> {
        let mut all = self.0.lock();
        forget(&mut all, now);
        all.iter().map(|(_, gang)| gang).filter(|gang| gang.namespace != namespace).cloned().collect()
    }

    /// These are let in.
    pub(super) fn add(&self, gangs: Vec<Gang>, now: Mono) {
        let mut all = self.0.lock();
        forget(&mut all, now);
        all.extend(gangs.into_iter().map(|gang| (now, gang)));
    }

    /// Another leader may have promised others.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

fn forget(all: &mut Vec<(Mono, Gang)>, now: Mono) {
    all.retain(|(since, _)| now.saturating_since(*since) < LASTS);
}

#[cfg(test)]
mod tests {
    use tributary_api::minicluster::MiniClusterSpec;

    use super::*;
    use crate::nodes::gang_of;

    /// The danger: brokers whose pods are never made keep the nodes from everybody else.
    #[test]
    fn a_promise_is_for_others_and_ends() {
        let at = |seconds| Mono::from_start(Duration::from_secs(seconds));
        let gang = |namespace: &str| gang_of(namespace, "lake", &MiniClusterSpec::default());
        let promises = Promises::default();
        promises.add(vec![gang("a")], at(0));
        promises.add(vec![gang("b")], at(10));
        assert_eq!(promises.beside("a", at(14)), [gang("b")]);
        assert_eq!(promises.beside("c", at(14)), [gang("a"), gang("b")]);
        assert_eq!(promises.beside("c", at(15)), [gang("b")]);
        promises.clear();
        assert_eq!(promises.beside("c", at(15)), []);
    }
}
