//! Nodes as plain objects: kwok makes them Ready and keeps their Leases.

use std::net::Ipv4Addr;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::{
    networks::{Networks, offset},
    options::NodeGroup,
};

/// The Nodes of `group`; `first` is how many the cluster has already. Names are `<cluster>-<number>`.
/// All of them are reached where kwok listens, on this machine.
pub(crate) fn nodes(
    cluster: &str,
    reached: (Networks, u16),
    first: u32,
    group: &NodeGroup,
) -> anyhow::Result<Vec<Node>> {
    (0..group.count).map(|number| node(cluster, reached, first + number, number, group)).collect()
}

/// Creates `nodes`, a few at a time.
pub(crate) async fn create(client: &Client, nodes: Vec<Node>) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    stream::iter(nodes.into_iter().map(|node| {
        let api = api.clone();
        async move {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            api.create(&PostParams::default(), &node)
                .await
                .with_context(|| format!("failed to create node {name}"))
                .map(drop)
        }
    }))
    .buffer_unordered(8)
    .try_collect()
    .await
}

/// Whether pods can be scheduled on `node` and will run there.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let tainted = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        && !tainted.into_iter().any(|taint| taint.key.starts_with("node.kubernetes.io/"))
}

fn node(
    cluster: &str,
    (networks, kwok): (Networks, u16),
    index: u32,
    in_group: u32,
    group: &NodeGroup,
) -> anyhow::Result<Node> {
    let name = format!("{cluster}-{index}");
    let pods = networks.pods_of(index)?;
    let mut labels = group.labels.clone();
    for (key, value) in [("hostname", name.as_str()), ("os", "linux"), ("arch", "amd64")] {
        labels.entry(format!("kubernetes.io/{key}")).or_insert_with(|| value.to_owned());
    }
    let mut capacity = json!({
        "cpu": group.cpu.to_string(),
        "memory": group.memory,
        "pods": group.pods.to_string(),
        "ephemeral-storage": "1Ti",
    });
    if group.gpus > 0 {
        capacity["nvidia.com/gpu"] = group.gpus.to_string().into();
    }
    let address = |kind: &str, address: String| json!({"type": kind, "address": address});
    let internal = group.address.map_or_else(|| networks.node(index), |first| offset(first, in_group));
    let external = group.external_address.map(|first: Ipv4Addr| offset(first, in_group));
    let mut addresses = vec![address("InternalIP", internal.to_string())];
    addresses.extend(external.map(|external| address("ExternalIP", external.to_string())));
    addresses.push(address("Hostname", name.clone()));
    addresses.push(address("InternalDNS", "localhost".to_owned()));
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": pods, "podCIDRs": [pods]},
        "status": {
            "addresses": addresses,
            "allocatable": capacity,
            "capacity": capacity,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kwok}},
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "kwok",
                "containerRuntimeVersion": "kwok://",
                "kubeletVersion": "kwok",
                "kernelVersion": "kwok",
            },
        },
    }))?)
}
