//! The way in for peers: the Service of the federation.
//!
//! The Service has no selector, because only the leading agent listens: a selector would send peers to standbys, too. The
//! leader writes its own addresses into EndpointSlices, before it listens and again whenever somebody changes them; the
//! next leader writes over them, and one that stops takes itself out. What peers are told to dial comes from the Service
//! as well, as it is at the moment: nobody copies a node port into the configuration.
//!
//! | file | what it does |
//! |---|---|
//! | [`slices`] | the EndpointSlices that should be there, pure |
//! | [`reach`] | where peers reach the Service from outside of the cluster, pure |

pub(crate) mod reach;
pub(crate) mod slices;

use std::future::pending;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource;
use tokio::sync::{Notify, watch};
use tributary::api::labels;
use tributary::bursting::watch::WatchedNode;
use tributary::clock::SystemRng;
use tributary::cluster::apply::Applier;
use tributary::cluster::caches::{self, Cache, Selection};
use tributary::cluster::client::Clients;
use tributary::cluster::error::{RequestError, chain};
use tributary::cluster::key::ObjectKey;
use tributary::config::{Config, FederationConfig};

use self::reach::Reach;
use self::slices::Place;

/// How soon a write that failed is tried again.
const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// The Service of the federation and what is known of it.
pub(crate) struct FederationService {
    federation: FederationConfig,
    /// Name of this agent's pod, if it runs in one.
    pod: Option<String>,
    /// `None`: there is no Service.
    watched: Option<Watched>,
}

struct Watched {
    key: ObjectKey,
    services: Cache<Service>,
    slices: Cache<EndpointSlice>,
    nodes: Cache<WatchedNode>,
    applier: Applier,
}

impl FederationService {
    /// The Service of the federation, and the watches to spawn; they run on standbys too.
    pub(crate) fn new(
        config: &Config,
        clients: &Clients,
        nodes: Cache<WatchedNode>,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let (federation, pod) = (config.federation.clone(), crate::pod_name());
        if federation.service.is_empty() {
            return (Arc::new(Self { federation, pod, watched: None }), Vec::new());
        }
        let (reader, namespace, name) = (&clients.reader, &config.kubernetes.namespace, &federation.service);
        let one = Selection::named(name);
        let (services, watch_services) = caches::in_namespace(reader.clone(), namespace, &one, SystemRng);
        let of_service = Selection::labels(format!("{}={name}", labels::kubernetes::SERVICE_NAME));
        let (slices, watch_slices) = caches::in_namespace(reader.clone(), namespace, &of_service, SystemRng);
        let applier = Applier::new(clients.writer.clone(), labels::manager::ENTRANCE);
        let key = ObjectKey { namespace: Some(namespace.clone()), name: name.clone() };
        let watched = Some(Watched { key, services, slices, nodes, applier });
        (Arc::new(Self { federation, pod, watched }), vec![watch_services.boxed(), watch_slices.boxed()])
    }

    /// Keeps the EndpointSlices and `reaches` as they have to be, until dropped.
    pub(crate) async fn keep(&self, reaches: &watch::Sender<Option<Reach>>) {
        let Some(watched) = &self.watched else {
            reaches.send_replace(Some(Reach::configured(&self.federation)));
            return pending().await;
        };
        let changed = Arc::new(Notify::new());
        let Watched { services, slices, nodes, .. } = watched;
        let _subscriptions = (services.wakes(&changed), slices.wakes(&changed), nodes.wakes(&changed));
        watched.listed().await;
        let mut missing = false;
        loop {
            let service = watched.services.of(&watched.key);
            if service.is_none() && !missing {
                tracing::warn!(
                    service = %watched.key,
                    "the Service of the federation (federation.service) does not exist: peers cannot dial this cluster \
                     until somebody makes it"
                );
            }
            missing = service.is_none();
            let reach = watched.reach(&self.federation, service.as_deref());
            reaches.send_if_modified(|current| {
                let differs = current.as_ref() != Some(&reach);
                if differs {
                    tracing::info!(endpoints = ?reach.endpoints, join = ?reach.join_endpoints, "peers reach this cluster there");
                    *current = Some(reach);
                }
                differs
            });
            let failed = match service {
                Some(service) => watched.write(self, Some(&service), true).await.err(),
                None => None,
            };
            if let Some(error) = &failed {
                tracing::warn!(error = chain(error), "failed to lead peers to this agent");
            }
            tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep(RETRY), if failed.is_some() => {}
            }
        }
    }

    /// Writes the EndpointSlices once, if what is there is known by now: peers that dial find whoever leads.
    pub(crate) async fn open(&self) {
        if let Some(watched) = &self.watched
            && let Some(service) = watched.services.of(&watched.key)
            && let Err(error) = watched.write(self, Some(&service), true).await
        {
            tracing::warn!(error = chain(&error), "failed to lead peers to this agent");
        }
    }

    /// Takes this agent out, unless another one leads already.
    pub(crate) async fn close(&self) {
        if let Some(watched) = &self.watched
            && let Err(error) = watched.write(self, None, false).await
        {
            tracing::debug!(error = chain(&error), "the next leader takes this agent out of the EndpointSlices");
        }
    }
}

impl Watched {
    async fn listed(&self) {
        let Self { services, slices, nodes, .. } = self;
        services.listed().await;
        slices.listed().await;
        nodes.listed().await;
    }

    fn reach(&self, federation: &FederationConfig, service: Option<&Service>) -> Reach {
        let nodes = self.nodes.objects();
        let nodes = nodes.iter().map(|node| (node.metadata.name.clone().unwrap_or_default(), &node.view)).collect();
        Reach::of(federation, service, &nodes)
    }

    /// `open`: this agent is in them, else it is not.
    async fn write(
        &self,
        federation_service: &FederationService,
        service: Option<&Service>,
        open: bool,
    ) -> Result<(), RequestError> {
        let live = self.slices.objects();
        let place = Place {
            namespace: self.key.namespace.as_deref().unwrap_or_default(),
            owner: service.and_then(|service| service.owner_ref(&())),
            pod: federation_service.pod.as_deref(),
            federation: &federation_service.federation,
        };
        let wanted = if open { place.open(&live) } else { place.closed(&live) };
        for slice in wanted {
            let live = self.slices.of(&ObjectKey::of(&slice));
            self.applier.own(&slice, live.as_deref()).await?;
        }
        Ok(())
    }
}
