//! Clients from `--kubeconfig` and `--context`.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cli::Target;
use crate::error::{Failure, Result};

/// The client configuration a user means.
pub async fn config(target: &Target) -> Result<Config> {
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
    loaded.map_err(|error| {
        Failure::new("failed to use the kubeconfig")
            .because(error)
            .hint("name one with --kubeconfig FILE or $KUBECONFIG, and a context with --context NAME")
    })
}

/// A client for that configuration.
pub async fn client(target: &Target) -> Result<Client> {
    Client::try_from(config(target).await?).map_err(|error| {
        Failure::new("failed to make a client for the cluster")
            .because(error)
            .hint("its certificates, or its plugin, may be wrong: `kubectl get namespaces` tries the same kubeconfig")
    })
}
