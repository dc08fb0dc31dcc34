//! New authorities: ours are offered to the peers, and those of peers are taken where their ClusterPeer lets them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels::manager;
use tributary::api::peer::{ClusterPeer, TrustUpdates};
use tributary::clock::SharedClock;
use tributary::cluster::caches::Cache;
use tributary::cluster::client::Clients;
use tributary::contract::ports::{TrustAnswer, TrustOffer, TrustSink};
use tributary::contract::{PeerName, PeerReport, PeerSpec, PeerState};
use tributary::federation::identity::{TrustBundle, succession};
use tributary::federation::mesh::MeshHandle;

/// How soon a peer that could not take an offer is asked again.
const RETRY: Duration = Duration::from_secs(10);

/// How soon one that did not take it is asked again: its owner may have changed its ClusterPeer, and nothing tells.
const REFUSED_RETRY: Duration = Duration::from_secs(300);

/// Reaches peers.
pub(crate) trait Reach: Send + Sync {
    /// How the connections are.
    fn reports(&self) -> watch::Receiver<BTreeMap<PeerName, PeerReport>>;
    /// Offers a peer a trust bundle of ours.
    fn offer<'a>(&'a self, peer: &'a PeerName, offer: &'a TrustOffer) -> BoxFuture<'a, io::Result<TrustAnswer>>;
}

impl Reach for MeshHandle {
    fn reports(&self) -> watch::Receiver<BTreeMap<PeerName, PeerReport>> {
        self.watch_reports()
    }

    fn offer<'a>(&'a self, peer: &'a PeerName, offer: &'a TrustOffer) -> BoxFuture<'a, io::Result<TrustAnswer>> {
        self.offer_trust(peer, offer).boxed()
    }
}

/// Our side: tells the peers.
pub(crate) struct TrustPublisher {
    /// Reaches them.
    pub mesh: Arc<dyn Reach>,
    /// Whom there is. This term tells it once all objects are listed, and then each change.
    pub peers: watch::Receiver<BTreeMap<PeerName, PeerSpec>>,
    /// What they shall know; `None`: our authority is not ours to replace.
    pub offer: watch::Receiver<Option<Arc<TrustOffer>>>,
    /// Bursts and HostedBursts. Who has some here, or has some of ours, is a peer again once there is its ClusterPeer.
    pub bound: (Cache<Burst>, Cache<HostedBurst>),
    /// Shown: the bundle that every peer has taken.
    pub known: watch::Sender<Option<String>>,
}

impl TrustPublisher {
    /// Offers the newest bundle to every peer that has not taken it, whenever one connects and now and then, until dropped.
    pub(crate) async fn run(mut self) {
        // Who is not known yet would not be waited for: the next authority would sign before anybody has heard of it.
        if self.peers.changed().await.is_err() {
            return;
        }
        self.bound.0.listed().await;
        self.bound.1.listed().await;
        let mut reports = self.mesh.reports();
        let mut taken: BTreeMap<PeerName, Answered> = BTreeMap::new();
        let mut patience = tokio::time::interval(REFUSED_RETRY);
        loop {
            let offer = self.offer.borrow_and_update().clone();
            let connected: BTreeSet<PeerName> = {
                let reports = reports.borrow_and_update();
                let up = reports.iter().filter(|(_, report)| report.state == PeerState::Connected);
                up.map(|(name, _)| name.clone()).collect()
            };
            let specs = self.peers.borrow_and_update().clone();
            // Asked again after every cut: its ClusterPeer may have been restored from a backup meanwhile.
            taken.retain(|name, _| connected.contains(name));
            let mut again = false;
            if let Some(offer) = &offer {
                let has_answered = |name: &PeerName| taken.get(name).is_some_and(|one| one.bundle == offer.bundle);
                // All at the same time: it takes as long as the slowest answer, whatever their number.
                let asked = connected.iter().filter(|name| !has_answered(name));
                for (name, answer) in join_all(asked.map(async |name| (name, self.tell(name, offer).await))).await {
                    match answer {
                        Some(answer) => {
                            let answered =
                                Answered { bundle: offer.bundle.clone(), taken: answer == TrustAnswer::Taken };
                            taken.insert(name.clone(), answered);
                        }
                        None => again = true,
                    }
                }
                let bound = self.bound();
                // Nothing tells when the bursts of a peer that was removed are gone.
                again |= bound.iter().any(|name| !specs.contains_key(name));
                let all = known_to_all(&specs, &bound, |name| {
                    taken.get(name).is_some_and(|answered| answered.taken && answered.bundle == offer.bundle)
                });
                self.known.send_if_modified(|known| {
                    let new = all.then(|| offer.bundle.clone());
                    std::mem::replace(known, new.clone()) != new
                });
            }
            tokio::select! {
                Ok(()) = self.offer.changed() => {}
                Ok(()) = reports.changed() => {}
                Ok(()) = self.peers.changed() => {}
                () = tokio::time::sleep(RETRY), if again => {}
                _ = patience.tick() => taken.retain(|_, answered| answered.taken),
            }
        }
    }

    /// Peers that bursts are of, or on.
    fn bound(&self) -> BTreeSet<PeerName> {
        let (bursts, hosted) = &self.bound;
        let on =
            bursts.objects().into_iter().filter_map(|burst| burst.status.as_ref()?.peer.as_deref().map(Into::into));
        let of = hosted.objects().into_iter().map(|hosted| hosted.spec.peer.as_str().into());
        on.chain(of).collect()
    }

    /// `None`: ask again.
    async fn tell(&self, peer: &PeerName, offer: &TrustOffer) -> Option<TrustAnswer> {
        match self.mesh.offer(peer, offer).await {
            Ok(TrustAnswer::Unavailable) => None,
            Ok(TrustAnswer::Taken) => Some(TrustAnswer::Taken),
            Ok(answer) => {
                tracing::warn!(%peer, ?answer, "the peer does not take our trust bundle: its owner has to change it there");
                Some(answer)
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "failed to offer our trust bundle");
                None
            }
        }
    }
}

/// Whether all have taken a bundle: the peers, and each one that was one and may be again, since there are bursts of it, or
/// on it.
fn known_to_all(
    specs: &BTreeMap<PeerName, PeerSpec>,
    bound: &BTreeSet<PeerName>,
    has_taken: impl Fn(&PeerName) -> bool,
) -> bool {
    let peers = specs.values().filter(|spec| !spec.suspend).map(|spec| &spec.name);
    peers.chain(bound.iter().filter(|name| !specs.contains_key(*name))).all(has_taken)
}

struct Answered {
    bundle: String,
    taken: bool,
}

/// The other side: takes what peers offer.
pub(crate) struct TrustReceiver {
    /// Clients of this cluster.
    pub clients: Clients,
    /// The agent's namespace.
    pub namespace: String,
    /// ClusterPeers.
    pub peers: Cache<ClusterPeer>,
    /// Time.
    pub clock: SharedClock,
}

impl TrustReceiver {
    async fn take(&self, name: &PeerName, offer: &TrustOffer) -> TrustAnswer {
        let found = self.peers.objects().into_iter().find(|peer| peer.name_any() == name.as_str());
        let current = found.and_then(|peer| {
            let pem = peer.spec.trust_bundle.clone()?;
            Some((TrustBundle::from_pem(pem.as_bytes()).ok()?, peer))
        });
        let Some((current, peer)) = current else { return TrustAnswer::Manual };
        let offered = TrustBundle::from_pem(offer.bundle.as_bytes());
        if offered.is_ok_and(|offered| offered.fingerprints() == current.fingerprints()) {
            return TrustAnswer::Taken;
        }
        if peer.spec.trust_updates != TrustUpdates::FromPeer {
            tracing::warn!(peer = %name, "the peer replaces its authority; set spec.trustBundle of its ClusterPeer, or spec.trustUpdates");
            return TrustAnswer::Manual;
        }
        let new = match succession::accept(&current, name, offer, self.clock.wall()) {
            Ok(new) => new,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(peer = %name, error, "an offer of a new trust bundle is refused");
                return TrustAnswer::Refused;
            }
        };
        match self.write(&peer, &new.to_pem()).await {
            Ok(()) => {
                tracing::info!(peer = %name, authorities = ?new.fingerprints(), "the peer's trust bundle is replaced");
                TrustAnswer::Taken
            }
            Err(error) => {
                tracing::warn!(peer = %name, %error, "failed to write the peer's new trust bundle");
                TrustAnswer::Unavailable
            }
        }
    }

    async fn write(&self, peer: &ClusterPeer, bundle: &str) -> kube::Result<()> {
        let peers: Api<ClusterPeer> = Api::namespaced(self.clients.writer.clone(), &self.namespace);
        // As it was read: consent that was taken back meanwhile is a conflict.
        let version = peer.resource_version();
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"trustBundle": bundle}});
        let parameters = PatchParams { field_manager: Some(manager::TRUST.to_owned()), ..PatchParams::default() };
        peers.patch(&peer.name_any(), &parameters, &Patch::Merge(patch)).await.map(drop)
    }
}

impl TrustSink for TrustReceiver {
    fn offered<'a>(&'a self, peer: &'a PeerName, offer: TrustOffer) -> BoxFuture<'a, TrustAnswer> {
        async move { self.take(peer, &offer).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use tokio::task::JoinHandle;
    use tributary::cluster::caches::Watched;

    use super::*;

    /// Reports, and what peers answer.
    struct Answering(watch::Receiver<BTreeMap<PeerName, PeerReport>>, watch::Receiver<TrustAnswer>);

    impl Reach for Answering {
        fn reports(&self) -> watch::Receiver<BTreeMap<PeerName, PeerReport>> {
            self.0.clone()
        }

        fn offer<'a>(&'a self, _: &'a PeerName, _: &'a TrustOffer) -> BoxFuture<'a, io::Result<TrustAnswer>> {
            let answer = *self.1.borrow();
            async move { Ok(answer) }.boxed()
        }
    }

    /// The danger: it does what it is told to do, nobody asks again, and it is cut off when the next authority signs.
    #[tokio::test(start_paused = true)]
    async fn a_peer_whose_owner_allows_it_later_is_asked_again() {
        for first in [TrustAnswer::Manual, TrustAnswer::Refused] {
            let west = PeerSpec { name: "west".into(), ..PeerSpec::default() };
            let report = PeerReport { state: PeerState::Connected, ..PeerReport::default() };
            let (_reports, connected) = watch::channel(BTreeMap::from([("west".into(), report)]));
            let (answers, answered) = watch::channel(first);
            let specs = watch::Sender::<BTreeMap<PeerName, PeerSpec>>::default();
            let (told, running) = publish(Answering(connected, answered), &specs);
            tokio::time::sleep(Duration::from_secs(1)).await;
            specs.send_replace(BTreeMap::from([("west".into(), west)]));
            tokio::time::sleep(Duration::from_secs(900)).await;
            assert_eq!(*told.borrow(), None);
            answers.send_replace(TrustAnswer::Taken);
            tokio::time::sleep(REFUSED_RETRY + Duration::from_secs(1)).await;
            assert_eq!(told.borrow().as_deref(), Some("next"), "after {first:?}");
            running.abort();
        }
    }

    /// Offers the bundle `next`; returns the one that all have taken.
    fn publish(
        mesh: Answering,
        specs: &watch::Sender<BTreeMap<PeerName, PeerSpec>>,
    ) -> (watch::Receiver<Option<String>>, JoinHandle<()>) {
        let offer = TrustOffer { bundle: "next".into(), ..TrustOffer::default() };
        let (known, told) = watch::channel(None);
        let publisher = TrustPublisher {
            mesh: Arc::new(mesh),
            peers: specs.subscribe(),
            offer: watch::channel(Some(Arc::new(offer))).1,
            bound: (listed(), listed()),
            known,
        };
        (told, tokio::spawn(publisher.run()))
    }

    fn listed<K: Watched>() -> Cache<K> {
        let cache = Cache::empty();
        cache.take(Event::Init);
        cache.take(Event::InitDone);
        cache
    }

    /// The danger: another authority signs before anybody has heard of it.
    #[tokio::test(start_paused = true)]
    async fn a_leader_that_knows_no_peers_yet_has_not_told_all_of_them() {
        let (reports, connected) = watch::channel(BTreeMap::new());
        let specs = watch::Sender::<BTreeMap<PeerName, PeerSpec>>::default();
        let (told, running) = publish(Answering(connected, watch::channel(TrustAnswer::Taken).1), &specs);
        let settle = || tokio::time::sleep(Duration::from_secs(60));
        settle().await;
        assert_eq!(*told.borrow(), None, "this term has listed nobody");
        specs.send_replace(BTreeMap::new());
        settle().await;
        assert_eq!(told.borrow().as_deref(), Some("next"), "there is nobody to be told");
        let west = PeerSpec { name: "west".into(), ..PeerSpec::default() };
        specs.send_replace(BTreeMap::from([("west".into(), west)]));
        settle().await;
        assert_eq!(*told.borrow(), None, "west is away");
        let report = PeerReport { state: PeerState::Connected, ..PeerReport::default() };
        reports.send_replace(BTreeMap::from([("west".into(), report)]));
        settle().await;
        assert_eq!(told.borrow().as_deref(), Some("next"));
        running.abort();
    }

    #[test]
    fn a_peer_that_is_removed_while_it_has_bursts_has_to_be_told_too() {
        let spec = |name: &str, suspend| PeerSpec { name: name.into(), suspend, ..PeerSpec::default() };
        let specs = |names: &[(&str, bool)]| -> BTreeMap<PeerName, PeerSpec> {
            names.iter().map(|(name, suspend)| ((*name).into(), spec(name, *suspend))).collect()
        };
        let names = |names: &[&str]| -> BTreeSet<PeerName> { names.iter().copied().map(Into::into).collect() };
        for (peers, bound, taken, all) in [
            (&[][..], &[][..], &[][..], true),
            (&[("west", false), ("north", true)], &[], &["west"], true),
            (&[("west", false), ("north", false)], &[], &["west"], false),
            (&[("west", false)], &["west"], &["west"], true),
            (&[("west", false)], &["north"], &["west"], false),
            // An owner who suspends a peer knows that it hears nothing.
            (&[("west", false), ("north", true)], &["north"], &["west"], true),
        ] {
            let taken = names(taken);
            let known = known_to_all(&specs(peers), &names(bound), |name| taken.contains(name));
            assert_eq!(known, all, "{peers:?}, {bound:?}, {taken:?}");
        }
    }
}
