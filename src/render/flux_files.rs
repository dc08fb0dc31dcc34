//! The files that Flux itself reads: host list, R and broker.toml.

use tributary_flux::{BrokerConfig, BrokerNetwork, BrokerPaths, ResourceSet, Side};

use super::model::{Model, Role};
use super::rank_map::Resources;

/// TCP port of every broker.
pub(super) const BROKER_PORT: u16 = 8050;

/// The hosts in rank order, one line.
pub(super) fn hostlist(model: &Model<'_>) -> String {
    let hosts = model.hostlist.clone().unwrap_or_else(|| model.rank_map.hostlist());
    format!("{hosts}\n")
}

/// R, one line.
pub(super) fn resource_set(model: &Model<'_>) -> String {
    let own = Resources::of(model.spec);
    let set = match &model.hostlist {
        Some(hosts) => ResourceSet::of_hosts(hosts, own.cores, own.gpus),
        None => ResourceSet::new(&model.rank_map),
    };
    set.to_json() + "\n"
}

/// The user's own broker.toml, or ours.
pub(super) fn broker_toml(model: &Model<'_>) -> String {
    if let Some(own) = &model.spec.flux.broker_config {
        return own.clone();
    }
    let config = model.config_root();
    let broker = BrokerConfig {
        side: match &model.role {
            Role::Root => Side::Root,
            Role::Burst { host, port } => Side::burst(host, *port),
        },
        paths: BrokerPaths {
            resource: format!("{config}/etc/flux/system/R"),
            curve_cert: format!("{config}/curve/curve.cert"),
        },
        network: BrokerNetwork {
            // Nobody knows what the nodes' interfaces are called.
            interface: if model.spec.pod.host_network { "*".to_owned() } else { model.context.interface.clone() },
            port: BROKER_PORT,
            headless: model.spec.headless_name(model.name).to_owned(),
            namespace: model.namespace.to_owned(),
            cluster_domain: model.context.cluster_domain.clone(),
        },
        topology: model.topology.clone(),
        queue_policy: model.spec.flux.scheduler.queue_policy().to_owned(),
        silence: model.spans_clusters().then(|| model.longest_silence()),
    };
    match &model.hostlist {
        Some(hosts) => broker.to_toml_of_hostlist(hosts),
        None => broker.to_toml(&model.rank_map),
    }
}
