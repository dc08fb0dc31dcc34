//! Clients from `--kubeconfig` and `--context`, and what commands read and write with them.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::PatchParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tributary::api::labels::manager;
use tributary::api::minicluster::MiniCluster;
use tributary::cluster::client::heed_no_proxy;

use crate::cli::Target;
use crate::error::{Failure, Result};

/// The client configuration a user means.
pub(crate) async fn config(target: &Target) -> Result<Config> {
    let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    let loaded = match &target.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| {
                Failure::new(format!("failed to read the kubeconfig {}", path.display()))
                    .because(error)
                    .hint("name another one with --kubeconfig FILE")
            })?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        }
        None => Config::from_kubeconfig(&options).await,
    };
    let mut config = loaded.map_err(|error| {
        Failure::new("failed to use the kubeconfig")
            .because(error)
            .hint("name one with --kubeconfig FILE or $KUBECONFIG, and a context with --context NAME")
    })?;
    heed_no_proxy(&mut config);
    Ok(config)
}

/// A client for that configuration.
pub(crate) async fn client(target: &Target) -> Result<Client> {
    Client::try_from(config(target).await?).map_err(|error| {
        Failure::new("failed to make a client for the cluster")
            .because(error)
            .hint("its certificates, or its plugin, may be wrong: `kubectl get namespaces` tries the same kubeconfig")
    })
}

/// The namespace of `-n`, else that of the context.
pub(crate) fn namespace(target: &Target, client: &Client) -> String {
    target.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned())
}

/// An object by its name; `None`: there is none.
pub(crate) async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let kind = K::kind(&());
    Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await.map_err(|error| {
        Failure::new(format!("failed to read {kind} {namespace}/{name}"))
            .because(error)
            .hint(format!("are the CRDs installed (`agentctl check`), and may you read {kind}s there?"))
    })
}

/// The MiniCluster that a user names.
pub(crate) async fn mini_cluster(client: &Client, namespace: &str, name: &str) -> Result<MiniCluster> {
    get(client, namespace, name).await?.ok_or_else(|| {
        Failure::new(format!("there is no MiniCluster {namespace}/{name}"))
            .hint("-n names another namespace; what there is: `agentctl minicluster list`")
    })
}

/// How fields are changed: the API server notes that agentctl did it.
pub(crate) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(manager::AGENTCTL.to_owned()), ..PatchParams::default() }
}
