//! An identity in a Secret. One that somebody else made (cert-manager, an offline authority) is followed as it changes;
//! one that is the agent's own is made, renewed at two thirds of its life, and its authority replaced when asked.
//!
//! Only one Secret of each name is watched, and a change is answered by reading it: an idle agent asks for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::sync::{Notify, watch};
use tributary::api::peer::ClusterPeer;
use tributary::api::{labels, names};
use tributary::clock::{SharedClock, SystemRng};
use tributary::cluster::caches::{self, Selection};
use tributary::cluster::client::Clients;
use tributary::config::Config;
use tributary::contract::PeerName;
use tributary::contract::ports::TrustOffer;
use tributary::federation::identity::rotation::{Situation, Turn};
use tributary::federation::identity::trust::Usage;
use tributary::federation::identity::{
    Authorities, Authority, Identity, IdentityStore, IssuedIdentity, Origin, TRUST_BUNDLE, TrustBundle, succession,
};

use super::shape;
use crate::wait;

/// How soon a failure is looked at again.
const RETRY: Duration = Duration::from_secs(10);

pub(crate) struct SecretIdentity {
    secrets: Secrets,
    store: IdentityStore,
    offers: watch::Sender<Option<Arc<TrustOffer>>>,
}

/// The two Secrets and what is needed to write them.
struct Secrets {
    read: Api<Secret>,
    write: Api<Secret>,
    reader: Client,
    namespace: String,
    name: String,
    cluster: String,
    trust_domain: String,
    validity: Duration,
    clock: SharedClock,
    /// The Secret of the authority is missing, and that was said.
    missing: AtomicBool,
}

/// What was found or made.
struct Found {
    identity: Identity,
    /// What peers shall know, if the authority is our own.
    offer: Option<TrustOffer>,
    /// When to look again without a change.
    again: Timestamp,
}

impl SecretIdentity {
    /// Reads the Secret `name`, or makes it.
    pub(crate) async fn open(
        config: &Config,
        name: &str,
        clients: &Clients,
        clock: SharedClock,
    ) -> anyhow::Result<Self> {
        let namespace = config.kubernetes.namespace.clone();
        let cluster = config.cluster.name.clone();
        let secrets = Secrets {
            read: Api::namespaced(clients.reader.clone(), &namespace),
            write: Api::namespaced(clients.writer.clone(), &namespace),
            reader: clients.reader.clone(),
            namespace,
            name: name.to_owned(),
            trust_domain: config.federation.trust_domain.clone().unwrap_or_else(|| cluster.clone()),
            cluster,
            validity: config.federation.validity,
            clock,
            missing: AtomicBool::new(false),
        };
        let found = secrets.look(None).await?;
        let offers = watch::Sender::new(found.offer.map(Arc::new));
        Ok(Self { secrets, store: IdentityStore::new(found.identity), offers })
    }

    /// What peers shall know of our authority, as it changes.
    pub(crate) fn offers(&self) -> watch::Receiver<Option<Arc<TrustOffer>>> {
        self.offers.subscribe()
    }

    /// The identity in use.
    pub(crate) fn store(&self) -> &IdentityStore {
        &self.store
    }

    /// Follows the Secrets until dropped. `known`: the trust bundle that every peer has taken.
    pub(crate) async fn follow(self, mut known: watch::Receiver<Option<String>>) {
        let Self { secrets, store, offers } = self;
        let changed = Arc::new(Notify::new());
        let mut watches = Vec::new();
        let mut subscriptions = Vec::new();
        for name in [secrets.name.clone(), names::authority(&secrets.name)] {
            let one = Selection::named(&name);
            let reader = secrets.reader.clone();
            let (cache, filling) = caches::in_namespace::<Secret, _>(reader, &secrets.namespace, &one, SystemRng);
            subscriptions.push(cache.wakes(&changed));
            watches.push(filling);
        }
        let follow = async {
            loop {
                let agreed = known.borrow_and_update().clone();
                let found = match secrets.look(agreed.as_deref()).await {
                    Ok(Found { identity, offer, again }) => {
                        let valid_from = identity.not_before();
                        store.replace(identity);
                        tell(&offers, offer);
                        Some((again, valid_from))
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::warn!(error, "failed to renew the identity; the one before stays in use");
                        None
                    }
                };
                let wait = async {
                    match found {
                        Some((again, valid_from)) => wait::for_renewal(again, valid_from, &secrets.clock).await,
                        None => tokio::time::sleep(RETRY).await,
                    }
                };
                tokio::select! {
                    () = changed.notified() => {}
                    Ok(()) = known.changed() => {}
                    () = wait => {}
                }
            }
        };
        tokio::join!(follow, futures::future::join_all(watches));
    }
}

impl Secrets {
    /// The identity as it should be now: read, made or renewed.
    async fn look(&self, known: Option<&str>) -> anyhow::Result<Found> {
        let now = self.clock.wall();
        let secret = self.get(&self.name).await?;
        match secret {
            Some(secret) if !shape::is_ours(&secret) => {
                // Whoever issues it renews it; the watch tells.
                Ok(Found { identity: self.identity(&secret, now)?, offer: None, again: Timestamp::MAX })
            }
            secret => self.own(secret, known, now).await,
        }
    }

    /// An identity of our own authority.
    async fn own(&self, secret: Option<Secret>, known: Option<&str>, now: Timestamp) -> anyhow::Result<Found> {
        let mut current = secret.as_ref().and_then(|secret| match self.identity(secret, now) {
            Ok(identity) => Some(identity),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the agent's own identity cannot be used; it is made anew"
                );
                None
            }
        });
        let authorities = match self.authorities(known, now).await? {
            Some(authorities) => authorities,
            // Its authority was deleted: what it signed is good until it has to be renewed.
            None => {
                if let Some(identity) = current.take_if(|identity| now < identity.renew_at()) {
                    let again = identity.renew_at();
                    if let Some(warning) = self.is_missing(again) {
                        tracing::warn!("{warning}");
                    }
                    return Ok(Found { identity, offer: None, again });
                }
                let lost = self.lost(secret.is_some()).await;
                self.found(lost, now).await?
            }
        };
        self.missing.store(false, Ordering::Relaxed);
        let authorities = if now < authorities.active.not_before() {
            self.instead_of_early(authorities, now).await?
        } else {
            authorities
        };
        let bundle = authorities.trust_bundle();
        let own = PeerName::from(self.cluster.as_str());
        let offer = succession::offer(&own, &bundle, &authorities.active).context("failed to sign the trust bundle")?;
        let offer = Some(offer);
        if let Some(identity) = current
            && now < identity.renew_at()
            && signs(&authorities.active, &identity, now)
            && secret.as_ref().is_some_and(|secret| shape::text(secret, TRUST_BUNDLE) == Some(bundle.as_str()))
        {
            let again = next_look(&authorities, &identity, self.validity);
            return Ok(Found { identity, offer, again });
        }
        let issued =
            authorities.active.issue(&self.cluster, now, self.validity).context("failed to issue the identity")?;
        let identity = self.write_identity(secret, &issued, &bundle, now).await?;
        let again = next_look(&authorities, &identity, self.validity);
        Ok(Found { identity, offer, again })
    }

    /// Our authorities, one step further if one is due; `None`: there are none.
    async fn authorities(&self, known: Option<&str>, now: Timestamp) -> anyhow::Result<Option<Authorities>> {
        let name = names::authority(&self.name);
        let Some(mut secret) = self.get(&name).await? else { return Ok(None) };
        let authorities = shape::authorities(&secret)?;
        if !shape::is_ours(&secret) {
            return Ok(Some(authorities));
        }
        let order = shape::order(&secret).cloned();
        let known_to_all = known == Some(authorities.trust_bundle().as_str());
        let situation = Situation { now, asked: order.is_some(), known_to_all, validity: self.validity };
        let Some(turn) = authorities.due(situation) else { return Ok(Some(authorities)) };
        let authorities = authorities.take(turn, now, self.validity).context("failed to replace the authority")?;
        shape::put_authorities(&mut secret, &authorities);
        if let Some(order) = order.filter(|_| turn == Turn::Announce) {
            secret.metadata.annotations.get_or_insert_default().insert(labels::ROTATED.to_owned(), order);
        }
        shape::write(&self.write, &secret).await?;
        tracing::info!(
            ?turn,
            authority = authorities.active.fingerprint(),
            "the cluster's authority is being replaced"
        );
        Ok(Some(authorities))
    }

    /// What to say of the Secret of our authority, which is missing; `None`: that was said already.
    fn is_missing(&self, renew_at: Timestamp) -> Option<String> {
        let (namespace, name) = (&self.namespace, names::authority(&self.name));
        (!self.missing.swap(true, Ordering::Relaxed)).then(|| {
            format!(
                "Secret {namespace}/{name}, the cluster's authority, is missing: put the Secret back before {renew_at}, or \
                 every peer has to be linked again"
            )
        })
    }

    async fn peers(&self) -> anyhow::Result<Vec<ClusterPeer>> {
        let peers: Api<ClusterPeer> = Api::namespaced(self.reader.clone(), &self.namespace);
        Ok(peers.list(&ListParams::default()).await.context("failed to list ClusterPeers")?.items)
    }

    /// What to say of an authority that is made now; `None`: nobody has met another one of ours, as at the first start, before which
    /// ClusterPeers may have been applied. `signed`: there is an identity that another one has signed.
    async fn lost(&self, signed: bool) -> Option<String> {
        let (namespace, name) = (&self.namespace, names::authority(&self.name));
        let was_met = |peer: &ClusterPeer| peer.status.as_ref().is_some_and(|status| status.cluster_uid.is_some());
        // Who cannot list them goes on all the same: nothing is made better by having no identity.
        (signed || self.peers().await.unwrap_or_default().iter().any(was_met)).then(|| {
            format!(
                "there is no Secret {namespace}/{name}, so the cluster's authority is made anew: put the Secret of before back, \
                 or link every peer again that knows it"
            )
        })
    }

    /// Makes our authority. `lost`: what to say of the one before.
    async fn found(&self, lost: Option<String>, now: Timestamp) -> anyhow::Result<Authorities> {
        let name = names::authority(&self.name);
        let authority = Authority::create(&self.trust_domain, now).context("failed to make the cluster's authority")?;
        let authorities = Authorities::new(authority);
        let mut secret = shape::new(&self.namespace, &name);
        shape::put_authorities(&mut secret, &authorities);
        shape::write(&self.write, &secret).await?;
        let (domain, fingerprint) = (authorities.active.trust_domain(), authorities.active.fingerprint());
        match lost {
            Some(lost) => tracing::warn!(domain, fingerprint, "{lost}"),
            None => tracing::info!(domain, fingerprint, "the cluster is its own authority now"),
        }
        Ok(authorities)
    }

    /// Our authority anew, as it was made while the clock was ahead, and nobody takes what it signs. Only if there are no
    /// peers, which would know the one before.
    async fn instead_of_early(&self, early: Authorities, now: Timestamp) -> anyhow::Result<Authorities> {
        let (namespace, name) = (&self.namespace, names::authority(&self.name));
        let not_before = early.active.not_before();
        let has_peers = !self.peers().await?.is_empty();
        let ours = self.get(&name).await?.filter(shape::is_ours);
        let clocks = format!(
            "the authority in Secret {namespace}/{name} is valid from {not_before}, and our clock says {now}: check this \
             node's clock"
        );
        let Some(mut secret) = ours else { bail!("{clocks}, or ask who has made the Secret for another authority") };
        if has_peers {
            bail!(
                "{clocks}. If the clock was ahead when the authority was made, wait until {not_before}, or delete the Secrets \
                 {} and {name} and link all peers again",
                self.name
            );
        }
        let authority = Authority::create(&self.trust_domain, now).context("failed to make the cluster's authority")?;
        let authorities = Authorities::new(authority);
        shape::put_authorities(&mut secret, &authorities);
        shape::write(&self.write, &secret).await?;
        let fingerprint = authorities.active.fingerprint();
        tracing::warn!(
            %not_before,
            fingerprint,
            "the cluster's authority was made while the clock was ahead, and no peer knows it: it is made anew"
        );
        Ok(authorities)
    }

    async fn write_identity(
        &self,
        secret: Option<Secret>,
        issued: &IssuedIdentity,
        bundle: &str,
        now: Timestamp,
    ) -> anyhow::Result<Identity> {
        let mut secret = secret.unwrap_or_else(|| shape::new(&self.namespace, &self.name));
        shape::put_identity(&mut secret, issued, bundle);
        // What cannot be used is not written.
        let identity = self.identity(&secret, now)?;
        shape::write(&self.write, &secret).await?;
        Ok(identity)
    }

    fn identity(&self, secret: &Secret, now: Timestamp) -> anyhow::Result<Identity> {
        let origin = Origin::Secret(format!("{}/{}", self.namespace, self.name));
        let identity = Identity::from_material(&shape::material(secret), &origin, &self.cluster, now)?;
        Ok(identity.renewed_here(shape::is_ours(secret)))
    }

    async fn get(&self, name: &str) -> anyhow::Result<Option<Secret>> {
        self.read.get_opt(name).await.with_context(|| format!("failed to read Secret {}/{name}", self.namespace))
    }
}

fn signs(authority: &Authority, identity: &Identity, now: Timestamp) -> bool {
    let chain = identity.chain();
    TrustBundle::from_pem(authority.certificate().as_bytes())
        .is_ok_and(|bundle| bundle.verify(Usage::Server, &chain[0], &chain[1..], now).is_ok())
}

/// Tells only what is new: a signature is another one each time.
fn tell(offers: &watch::Sender<Option<Arc<TrustOffer>>>, offer: Option<TrustOffer>) {
    offers.send_if_modified(|current| {
        let bundle = |offer: &TrustOffer| offer.bundle.clone();
        let differs = current.as_deref().map(bundle) != offer.as_ref().map(bundle);
        if differs {
            *current = offer.map(Arc::new);
        }
        differs
    });
}

/// The next renewal of the certificate, or step of a replacement, that comes with time alone.
fn next_look(authorities: &Authorities, identity: &Identity, validity: Duration) -> Timestamp {
    let life = SignedDuration::try_from(validity).unwrap_or(SignedDuration::MAX);
    let forget = authorities.previous.as_ref().map(|(_, until)| *until);
    let switch = authorities.next.as_ref().and_then(|(_, since)| since.checked_add(life).ok());
    [Some(identity.renew_at()), forget, switch].into_iter().flatten().min().unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
