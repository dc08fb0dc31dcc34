//! The configuration of a cluster's agents, as the chart wrote it for them.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use tributary::cluster::error::chain;
use tributary::config::Config;

use crate::connect::POD_SELECTOR;

/// Where the chart writes it.
const FILE: &str = "tributary.toml";

/// What the agents of a namespace are told.
///
/// # Errors
/// Why it is not known, in one line: no agents, other agents than the chart's, or no right to read.
pub(super) async fn look(client: &Client, namespace: &str) -> Result<Config, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let agents = pods.list(&ListParams::default().labels(POD_SELECTOR)).await.map_err(|error| chain(&error))?;
    of(client, namespace, &agents.items).await
}

/// What these agents are told, by the ConfigMap that their pods mount.
///
/// # Errors
/// As [`look`].
pub(super) async fn of(client: &Client, namespace: &str, agents: &[Pod]) -> Result<Config, String> {
    let volumes = agents.iter().filter_map(|pod| pod.spec.as_ref()?.volumes.as_ref()).flatten();
    let Some(name) = volumes.filter_map(|volume| Some(volume.config_map.as_ref()?.name.clone())).next() else {
        return Err("the agents' pods mount no ConfigMap".to_owned());
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = api.get(&name).await.map_err(|error| chain(&error))?;
    let text = map.data.unwrap_or_default().remove(FILE);
    let text = text.ok_or_else(|| format!("ConfigMap {name} has no {FILE}"))?;
    Config::as_written(&text).map_err(|error| chain(&error))
}
