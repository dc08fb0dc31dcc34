//! How many results of whole instances are kept for a peer: what has ended takes no room, but objects it has. Pure.
//!
//! The oldest go first, and only of peers that are in contact: these have heard of them. One that is away starts nothing
//! more, so that what ends meanwhile is bounded by what ran; and of as many as may run at a time none goes unheard.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::hosted_burst::HostedBurst;
use tributary_clock::Mono;
use tributary_contract::PeerName;

use super::ledger::SlotKey;
use crate::contact::Contacts;
use crate::peers::PeerView;

/// Results that are kept for a peer; as many as `import.maxBursts`, if that is more.
pub(crate) const KEPT: u32 = 64;

/// When a whole instance ended that nothing takes away yet.
pub(crate) fn ended(hosted: &HostedBurst) -> Option<Timestamp> {
    let status = hosted.status.as_ref();
    let goes =
        hosted.metadata.deletion_timestamp.is_some() || status.is_some_and(|status| status.draining_since.is_some());
    let ended = status.and_then(|status| status.run.as_ref()?.ended.clone());
    (hosted.has_ended() && !goes).then(|| ended.map_or(Timestamp::MIN, |Time(ended)| ended))
}

/// Results of a peer that newer ones take the place of.
pub(crate) fn surplus(
    results: &BTreeSet<(Timestamp, SlotKey)>,
    peer: &PeerName,
    view: Option<&PeerView>,
    contacts: &Contacts,
    now: Mono,
) -> BTreeSet<SlotKey> {
    let Some(view) = view.filter(|_| contacts.away(peer, now).is_none()) else { return BTreeSet::new() };
    let most = view.import.as_ref().and_then(|import| u32::try_from(import.max_bursts?).ok()).unwrap_or(0);
    let over = results.len().saturating_sub(most.max(KEPT) as usize);
    results.iter().take(over).map(|(_, key)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tributary_api::hosted_burst::{BurstRun, HostedBurstSpec, HostedBurstStatus};
    use tributary_api::peer::ImportPolicy;

    use super::*;

    fn hosted(peer: &str, name: &str, ended: Option<i64>) -> HostedBurst {
        let mut hosted = HostedBurst::new(name, HostedBurstSpec { peer: peer.into(), ..HostedBurstSpec::default() });
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let run = BurstRun { succeeded: ended.map(|_| true), ended: ended.map(at), ..BurstRun::default() };
        hosted.status = Some(HostedBurstStatus { run: Some(run), ..HostedBurstStatus::default() });
        hosted
    }

    #[test]
    fn the_oldest_results_of_a_peer_go_and_nothing_that_runs() {
        let most = i64::from(KEPT);
        let mut all: Vec<HostedBurst> =
            (0..most + 3).map(|index| hosted("east", &format!("r-{index}"), Some(1000 - index))).collect();
        all.extend((0..most).map(|index| hosted("south", &format!("s-{index}"), Some(index))));
        all.extend((0..9).map(|index| hosted("east", &format!("runs-{index}"), None)));
        let mut peers: BTreeMap<PeerName, PeerView> =
            ["east", "south"].map(|name| (name.into(), PeerView::default())).into();
        let mut contacts = Contacts::begin(Mono::ZERO);
        let go = |all: &[HostedBurst], peers: &BTreeMap<PeerName, PeerView>, contacts: &Contacts| -> Vec<String> {
            let name = |hosted: &HostedBurst| hosted.metadata.name.clone().unwrap();
            let go = peers.iter().flat_map(|(peer, view)| {
                let mine = all.iter().filter(|hosted| hosted.spec.peer == peer.as_str());
                let results =
                    mine.filter_map(|hosted| Some((ended(hosted)?, ("flux".to_owned(), name(hosted))))).collect();
                surplus(&results, peer, Some(view), contacts, Mono::ZERO)
            });
            go.map(|(_, name)| name).collect()
        };
        assert!(go(&all, &peers, &contacts).is_empty(), "a peer that is away has perhaps not heard of them");
        contacts.observe(peers.keys(), Mono::ZERO);
        assert_eq!(go(&all, &peers, &contacts), ["r-64", "r-65", "r-66"]);
        all[66].status.as_mut().unwrap().draining_since = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(go(&all, &peers, &contacts), ["r-64", "r-65"], "one of them goes already");
        let import = |bursts| Some(ImportPolicy { max_bursts: Some(bursts), ..ImportPolicy::default() });
        peers.get_mut("east").unwrap().import = import(65);
        assert_eq!(go(&all, &peers, &contacts), ["r-65"]);
        peers.get_mut("east").unwrap().import = import(2);
        assert_eq!(go(&all, &peers, &contacts).len(), 2, "few at a time may still be many a day");
    }
}
