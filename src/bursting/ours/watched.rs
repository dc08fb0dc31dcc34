//! The objects that tell what is ours, as far as they are read, and how [`Ours`] follows them.

use std::net::IpAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResource, Resource};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::watch;
use tributary_clock::SystemRng;
use tributary_cluster::caches::{self, Cache, Selection, Subscription, Watched};
use tributary_cluster::client::Clients;

use super::{Held, Ours};
use crate::addresses::Range;
use crate::watch::{WatchedNode, WatchedPod};

/// Namespace and name of the EndpointSlice of the API servers, which they write themselves.
/// Source: <https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/> (`--endpoint-reconciler-type`).
const API_SERVERS: (&str, &str) = ("default", "kubernetes");

/// A `ServiceCIDR`: a range from which Services get their cluster IPs.
/// Source: <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-cidr-v1/> (since Kubernetes 1.33).
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
#[kube(
    group = "networking.k8s.io",
    version = "v1",
    kind = "ServiceCIDR",
    plural = "servicecidrs",
    root = "ServiceRange",
    schema = "disabled"
)]
#[serde(default)]
pub(crate) struct ServiceRangeSpec {
    cidrs: Vec<String>,
}

/// A Service, as far as it is read.
#[derive(Resource, Clone, Debug)]
#[resource(inherit = Service)]
pub(crate) struct WatchedService {
    /// Its name.
    pub metadata: ObjectMeta,
    /// Of load balancers, and external ones. Its cluster IPs are in a [`ServiceRange`].
    addresses: Vec<IpAddr>,
}

impl<'de> Deserialize<'de> for WatchedService {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Service { metadata, spec, status } = Service::deserialize(deserializer)?;
        let balancers = status.and_then(|status| status.load_balancer?.ingress).unwrap_or_default();
        let external = spec.and_then(|spec| spec.external_ips).unwrap_or_default();
        let texts = balancers.into_iter().filter_map(|one| one.ip).chain(external);
        let ObjectMeta { namespace, name, uid, resource_version, .. } = metadata;
        let metadata = ObjectMeta { namespace, name, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self { metadata, addresses: parsed(texts) })
    }
}

/// What is watched for this alone.
#[derive(Clone)]
pub(crate) struct OwnCaches {
    service_ranges: Cache<ServiceRange>,
    services: Cache<WatchedService>,
    api_servers: Cache<EndpointSlice>,
}

impl OwnCaches {
    /// The caches, and the watches to spawn.
    pub(crate) fn new(clients: &Clients) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let (reader, everything) = (&clients.reader, Selection::default());
        let (service_ranges, watch_ranges) = caches::all(reader.clone(), &everything, SystemRng);
        let (services, watch_services) = caches::watched(clients, &everything, SystemRng);
        let (namespace, name) = API_SERVERS;
        let one = Selection::named(name);
        let (api_servers, watch_api_servers) = caches::in_namespace(reader.clone(), namespace, &one, SystemRng);
        let watches = vec![watch_ranges.boxed(), watch_services.boxed(), watch_api_servers.boxed()];
        (Self { service_ranges, services, api_servers }, watches)
    }

    /// Waits until every first list is complete: before that, something of ours may look like anybody's.
    pub(crate) async fn listed(&self) {
        let Self { service_ranges, services, api_servers } = self;
        service_ranges.listed().await;
        services.listed().await;
        api_servers.listed().await;
    }

    /// Follows these and the others for as long as the subscriptions live.
    pub(crate) fn follow(
        &self,
        nodes: &Cache<WatchedNode>,
        pods: &Cache<WatchedPod>,
    ) -> (watch::Sender<Ours>, Vec<Subscription>) {
        let ours = watch::Sender::new(Ours::default());
        let of_node = |node: &WatchedNode| parsed(node.view.addresses.iter().map(|(_, text)| text.clone()));
        // What has ended has its address no more, and another pod may have it.
        let of_pod = |pod: &WatchedPod| match pod.view.finished {
            true => Vec::new(),
            false => pod.view.addresses.clone(),
        };
        let of_range = |range: &ServiceRange| -> Vec<Range> {
            range.spec.cidrs.iter().filter_map(|text| text.parse().ok()).collect()
        };
        let of_slice = |slice: &EndpointSlice| {
            parsed(slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.iter().cloned()))
        };
        let subscriptions = vec![
            keep(nodes, &ours, of_node, |ours| &mut ours.nodes),
            keep(nodes, &ours, |node| node.view.pod_ranges.clone(), |ours| &mut ours.pod_ranges),
            keep(pods, &ours, of_pod, |ours| &mut ours.pods),
            keep(&self.service_ranges, &ours, of_range, |ours| &mut ours.service_ranges),
            keep(&self.services, &ours, |service| service.addresses.clone(), |ours| &mut ours.services),
            keep(&self.api_servers, &ours, of_slice, |ours| &mut ours.api_servers),
        ];
        (ours, subscriptions)
    }
}

fn keep<K: Watched, T: Ord + 'static>(
    cache: &Cache<K>,
    ours: &watch::Sender<Ours>,
    of: fn(&K) -> Vec<T>,
    held: fn(&mut Ours) -> &mut Held<T>,
) -> Subscription {
    let ours = ours.clone();
    cache.subscribe(move |change| {
        let items = |object: &Option<Arc<K>>| object.as_deref().map(of).unwrap_or_default();
        let (before, after) = (items(&change.old), items(&change.new));
        if before != after {
            ours.send_modify(|ours| held(ours).change(&change.key, before, after));
        }
    })
}

fn parsed(texts: impl IntoIterator<Item = String>) -> Vec<IpAddr> {
    texts.into_iter().filter_map(|text| text.parse::<IpAddr>().ok()).map(|address| address.to_canonical()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_read_of_services_and_their_ranges() {
        let service: WatchedService = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "n", "labels": {"a": "b"}},
            "spec": {"clusterIP": "10.96.0.7", "externalIPs": ["198.51.100.7"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.4"}, {"hostname": "lb.example.org"}]}},
        }))
        .unwrap();
        assert_eq!(service.addresses, ["198.51.100.4", "198.51.100.7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        let range: ServiceRange = serde_json::from_value(json!({
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12", "fd00:10:96::/112"]}}))
        .unwrap();
        assert_eq!(range.spec.cidrs.len(), 2);
        assert_eq!(ServiceRange::url_path(&(), None), "/apis/networking.k8s.io/v1/servicecidrs");
    }
}
