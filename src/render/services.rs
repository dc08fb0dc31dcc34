//! Services of a MiniCluster.
//!
//! All publish pods that are not ready: brokers find each other before they have joined, and readiness means joined.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tributary_api::labels::{kubernetes, role, upstream};
use tributary_api::minicluster::{BurstNetworkType, Container};
use tributary_api::names;

use super::containers::tcp;
use super::flux_files::BROKER_PORT;
use super::metadata;
use super::model::Model;
use super::restful;

/// All Services, in the order they are applied.
pub(super) fn services(model: &Model<'_>) -> Vec<Service> {
    let with_ports = |(_, container): &(usize, &Container)| !container.ports.is_empty();
    let sidecars = model.sidecars().filter(with_ports).map(|(_, container)| sidecar(model, container));
    std::iter::once(hosts(model))
        .chain(sidecars)
        .chain(lead(model))
        .chain(restful::service(model, lead_pod(model)))
        .collect()
}

/// The Service that gives pods their names: headless, or for the lead alone.
fn hosts(model: &Model<'_>) -> Service {
    let metadata = metadata::child(model, model.spec.headless_name(model.name).to_owned(), Some(role::HEADLESS));
    let spec = if model.spec.flux.minimal_service {
        ServiceSpec { ports: Some(vec![broker_port()]), ..selecting(lead_pod(model)) }
    } else {
        ServiceSpec { cluster_ip: Some("None".to_owned()), ..selecting(own_pods(model)) }
    };
    Service { metadata, spec: Some(spec), status: None }
}

/// The ports of a container beside Flux, under its name.
fn sidecar(model: &Model<'_>, container: &Container) -> Service {
    let name = container.name.clone().unwrap_or_default();
    let port = |port: &i32| ServicePort {
        name: Some(format!("port-{port}")),
        port: *port,
        target_port: Some(IntOrString::Int(*port)),
        protocol: tcp(),
        ..ServicePort::default()
    };
    let selector = BTreeMap::from([(upstream::HPA_SELECTOR.to_owned(), model.name.to_owned())]);
    let spec = ServiceSpec { ports: Some(container.ports.iter().map(port).collect()), ..selecting(selector) };
    Service { metadata: metadata::child(model, name, Some(role::PORTS)), spec: Some(spec), status: None }
}

/// Where bursts in other clusters reach rank 0: a port on every node, or an address of a load balancer. Through a tunnel, the
/// agent connects to the pod.
fn lead(model: &Model<'_>) -> Option<Service> {
    let kind = match model.spec.flux.bursting.network.kind {
        _ if !model.has_bursts() => return None,
        BurstNetworkType::NodePort => "NodePort",
        BurstNetworkType::LoadBalancer => "LoadBalancer",
        // Nobody gets here with an unknown one: validation refuses it.
        BurstNetworkType::Tunnel | BurstNetworkType::Unknown(_) => return None,
    };
    let spec = ServiceSpec {
        type_: Some(kind.to_owned()),
        ports: Some(vec![broker_port()]),
        // Other clusters may reach the nodes by the other family.
        ip_family_policy: (kind == "NodePort").then(|| "PreferDualStack".to_owned()),
        ..selecting(lead_pod(model))
    };
    let metadata = metadata::child(model, names::lead(model.name), Some(role::LEAD));
    Some(Service { metadata, spec: Some(spec), status: None })
}

fn broker_port() -> ServicePort {
    let port = i32::from(BROKER_PORT);
    ServicePort {
        name: Some("broker".to_owned()),
        port,
        target_port: Some(IntOrString::Int(port)),
        protocol: tcp(),
        ..ServicePort::default()
    }
}

fn own_pods(model: &Model<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([(upstream::JOB_NAME.to_owned(), model.name.to_owned())])
}

/// Exactly the pod of index 0: Kubernetes sets the index itself, upstream's `job-index` is patched on later.
fn lead_pod(model: &Model<'_>) -> BTreeMap<String, String> {
    let mut selector = own_pods(model);
    selector.insert(kubernetes::COMPLETION_INDEX.to_owned(), "0".to_owned());
    selector
}

fn selecting(selector: BTreeMap<String, String>) -> ServiceSpec {
    ServiceSpec { selector: Some(selector), publish_not_ready_addresses: Some(true), ..ServiceSpec::default() }
}
