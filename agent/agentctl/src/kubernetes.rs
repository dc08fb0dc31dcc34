//! Clients from `--kubeconfig` and `--context`.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
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

/// The MiniCluster that a user names.
pub(crate) async fn mini_cluster(objects: &Api<MiniCluster>, namespace: &str, name: &str) -> Result<MiniCluster> {
    let found = objects.get_opt(name).await.map_err(|error| {
        Failure::new(format!("failed to read MiniCluster {namespace}/{name}"))
            .because(error)
            .hint("are the CRDs installed (`agentctl check`), and may you read MiniClusters there?")
    })?;
    found.ok_or_else(|| {
        Failure::new(format!("there is no MiniCluster {namespace}/{name}"))
            .hint("-n names another namespace; what there is: `agentctl minicluster list`")
    })
}

/// A client for that configuration.
pub(crate) async fn client(target: &Target) -> Result<Client> {
    Client::try_from(config(target).await?).map_err(|error| {
        Failure::new("failed to make a client for the cluster")
            .because(error)
            .hint("its certificates, or its plugin, may be wrong: `kubectl get namespaces` tries the same kubeconfig")
    })
}
