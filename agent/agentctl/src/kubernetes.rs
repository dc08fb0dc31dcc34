//! Clients from `--kubeconfig` and `--context`, and what commands read and write with them.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;
use tributary::api::labels::manager;
use tributary::api::minicluster::MiniCluster;
use tributary::cluster::client::heed_no_proxy;

use crate::cli::Target;
use crate::error::{Failure, Result, failed};

/// Where kubectl keeps what it has applied: an annotation.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Name of the definition of MiniClusters.
pub(crate) const DEFINITION: &str = "miniclusters.flux-framework.org";

/// How long a connection to the API server may take to be made: without a limit, a command would wait for ever. For a first name
/// server that is gone, glibc alone waits 5 s.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// How long the API server may be silent: a little longer than the 60 s after which it gives up a request by itself.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(65);

/// The client configuration a user means.
async fn config(target: &Target) -> Result<Config> {
    let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    let loaded = match &target.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed(
                format!("failed to read the kubeconfig {}", path.display()),
                "name another one with --kubeconfig FILE",
            ))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        }
        None => Config::from_kubeconfig(&options).await,
    };
    let mut config = loaded.map_err(failed(
        "failed to use the kubeconfig",
        "name one with --kubeconfig FILE or $KUBECONFIG, and a context with --context NAME",
    ))?;
    heed_no_proxy(&mut config);
    config.connect_timeout = Some(CONNECT_LIMIT);
    config.read_timeout = Some(SILENCE_LIMIT);
    Ok(config)
}

/// A client for that configuration.
pub(crate) async fn client(target: &Target) -> Result<Client> {
    client_of(config(target).await?)
}

/// A client without a limit to silence: a command in a pod may say nothing for hours.
pub(crate) async fn exec_client(target: &Target) -> Result<Client> {
    let mut config = config(target).await?;
    config.read_timeout = None;
    client_of(config)
}

fn client_of(config: Config) -> Result<Client> {
    Client::try_from(config).map_err(failed(
        "failed to make a client for the cluster",
        "its certificates, or its plugin, may be wrong: `kubectl get namespaces` tries the same kubeconfig",
    ))
}

/// Whether the API server answers at all. A command that goes on after a failed question asks this first: otherwise it would
/// wait for every answer of a silent API server.
pub(crate) async fn answers(client: &Client) -> Result<()> {
    match client.apiserver_version().await {
        // That it refuses is an answer, too.
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(no_answer(error)),
    }
}

/// Asks `questions` of an [`exec_client`] within [`SILENCE_LIMIT`].
pub(crate) async fn in_time<T>(questions: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(SILENCE_LIMIT, questions).await.unwrap_or_else(|elapsed| Err(no_answer(elapsed)))
}

fn no_answer(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
    Failure::new("the API server does not answer")
        .because(error)
        .hint("`kubectl get namespaces` tries the same kubeconfig")
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
    Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await.map_err(failed(
        format!("failed to read {kind} {namespace}/{name}"),
        format!("are the CRDs installed (`agentctl check`), and may you read {kind}s there?"),
    ))
}

/// Objects of a namespace; `None`: of all.
pub(crate) fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

/// These objects of a namespace; `None`: of all.
pub(crate) async fn list<K>(client: &Client, namespace: Option<&str>, which: &ListParams) -> Result<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    scoped(client, namespace).list(which).await.map(|list| list.items).map_err(|error| {
        let kind = K::kind(&());
        let place = namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"));
        Failure::new(format!("failed to list {kind}s of {place}"))
            .because(error)
            .hint(format!("are the CRDs installed (`agentctl check`), and may you list {kind}s there?"))
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

/// Changes fields of an object; `verb`: what a failure calls that.
pub(crate) async fn merge<K>(objects: &Api<K>, verb: &str, name: &str, patch: Value) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    objects.patch_metadata(name, &patch_params(), &Patch::Merge(patch)).await.map(drop).map_err(|error| {
        let (kind, plural, namespace) = (K::kind(&()), K::plural(&()), objects.namespace().unwrap_or_default());
        Failure::new(format!("failed to {verb} {kind} {namespace}/{name}"))
            .because(error)
            .hint(format!("may you write {kind}s there? `kubectl auth can-i patch {plural} --namespace {namespace}`"))
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::endpoint::tests::{server, target};

    /// The danger: an API server takes a connection and never answers, and every command waits for ever.
    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_silent_is_an_error_except_to_who_is_patient() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("west", &silent.local_addr().unwrap().to_string())]);
        let ask = async |client: Result<Client>| timeout(2 * SILENCE_LIMIT, answers(&client.unwrap())).await;
        let told = ask(client(&target).await).await.unwrap().unwrap_err().to_string();
        assert!(told.contains("does not answer") && told.contains("timed out"), "{told}");
        crate::paste::check::pastes(&told);
        assert!(ask(exec_client(&target).await).await.is_err());
    }

    /// The danger: whose proxy, or whose rights, hide the version is told nothing of all that she may read.
    #[tokio::test]
    async fn an_api_server_that_refuses_answers() {
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("west", &server([]).await)]);
        answers(&client(&target).await.unwrap()).await.unwrap();
    }
}
