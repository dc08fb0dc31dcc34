//! Where the admin API of an agent is that runs outside of its cluster: as it is typed, else as a file says it of the context.
//!
//! ```toml
//! [contexts.east]
//! endpoint = "http://127.0.0.1:8080"
//! ```
//!
//! Whoever reads both a cluster and an endpoint believes that they belong together, so that is looked at before anything is
//! said.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Format, Toml};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde::Deserialize;
use tributary::admin::{self, ClusterStatus};
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::cluster::discovery::cluster_uid;

use crate::cli::Target;
use crate::connect::Agent;
use crate::error::{Failure, Result, failed};
use crate::kubernetes;

/// The file, below the directory of the user's settings.
const FILE: &str = "tributary/agentctl.toml";
/// How long a cluster may take to say who it is.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// What the file has.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    contexts: BTreeMap<String, ContextSettings>,
}

/// What it has of a context of the kubeconfig.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextSettings {
    endpoint: Option<String>,
}

/// The endpoint that is meant, if any.
pub(crate) fn of(target: &Target) -> Result<Option<String>> {
    if target.endpoint.is_some() {
        return Ok(target.endpoint.clone());
    }
    match file(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME")).filter(|file| file.exists()) {
        Some(file) => configured(&file, context(target).as_deref()),
        None => Ok(None),
    }
}

fn file(settings: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let settings = settings.filter(|directory| Path::new(directory).is_absolute()).map(PathBuf::from);
    Some(settings.or_else(|| Some(PathBuf::from(home?).join(".config")))?.join(FILE))
}

/// The context that is asked.
fn context(target: &Target) -> Option<String> {
    let read = || match &target.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    target.context.clone().or_else(|| read().ok()?.current_context)
}

fn configured(file: &Path, context: Option<&str>) -> Result<Option<String>> {
    let settings: Settings = Figment::from(Toml::file_exact(file)).extract().map_err(failed(
        format!("failed to read {}", file.display()),
        "it has [contexts.NAME] with endpoint = \"http://127.0.0.1:8080\" for each context whose agent is no pod",
    ))?;
    Ok(context.and_then(|name| settings.contexts.get(name)?.endpoint.clone()))
}

/// What a cluster, or an agent, says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Identity {
    uid: Option<String>,
    name: Option<String>,
}

/// Whether the agent at an endpoint is that of the cluster which is asked.
///
/// # Errors
/// It is another one's. Where the cluster cannot be asked, nothing can be told.
pub(crate) async fn of_this_cluster(target: &Target, agent: &Agent) -> Result<()> {
    let client = match kubernetes::client(target).await {
        Ok(client) => client,
        Err(failure) if target.context.is_some() => return Err(failure),
        // There is no cluster that could be another one.
        Err(_) => return Ok(()),
    };
    let looking = cluster(&client, &target.agent_namespace);
    let Ok(asked) = tokio::time::timeout(TIME_LIMIT, looking).await else { return Ok(()) };
    if asked == Identity::default() {
        return Ok(());
    }
    let said: ClusterStatus = agent.read(admin::LOCAL).await?;
    let answers = Identity { uid: said.cluster_uid, name: Some(said.cluster).filter(|name| !name.is_empty()) };
    match differ(&asked, &answers) {
        None => Ok(()),
        Some(difference) => {
            let which = context(target).map_or_else(|| "the kubeconfig".to_owned(), |name| format!("context {name}"));
            let whose = answers.name.as_deref().unwrap_or("another cluster");
            let failure = Failure::new(format!("the agent at {} is not of the cluster of {which}", agent.name()));
            Err(failure.because(difference).hint(format!(
                "--context has to name the cluster that it is the agent of ({whose}), or --endpoint another agent"
            )))
        }
    }
}

/// What the API server of a context says, as far as its user may look.
async fn cluster(client: &Client, agents: &str) -> Identity {
    let uid = cluster_uid(client).await.ok();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), agents);
    let card = maps.get_opt(cluster_card::NAME).await.ok().flatten();
    let card = card.and_then(|card| ClusterCard::read(&card).ok());
    Identity {
        uid: uid.or_else(|| card.as_ref().map(|card| card.cluster_uid.clone())),
        name: card.map(|card| card.cluster),
    }
}

/// How two differ; `None`: not, as far as can be told.
fn differ(asked: &Identity, answers: &Identity) -> Option<String> {
    match (&asked.uid, &answers.uid, &asked.name, &answers.name) {
        (Some(asked), Some(answers), _, name) if asked != answers => {
            let name = name.as_ref().map(|name| format!("cluster {name}, ")).unwrap_or_default();
            Some(format!("it is of {name}whose UID is {answers}; the UID there is {asked}"))
        }
        (Some(_), Some(_), ..) => None,
        // Of an agent that tells no UID.
        (.., Some(asked), Some(answers)) if asked != answers => {
            Some(format!("it is of cluster {answers}; that one is called {asked}"))
        }
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::cli::AGENT_NAMESPACE;

    #[test]
    fn a_context_has_the_endpoint_that_its_file_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(Some(directory.path().into()), None).unwrap();
        assert!(path.ends_with(FILE));
        let home = file(Some("relative".into()), Some("/home/ada".into())).unwrap();
        assert_eq!(home, Path::new("/home/ada/.config/tributary/agentctl.toml"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "[contexts.east]\nendpoint = \"http://127.0.0.1:8080\"\n[contexts.west]\n").unwrap();
        let of = |context| configured(&path, context).unwrap();
        assert_eq!(of(Some("east")).as_deref(), Some("http://127.0.0.1:8080"));
        assert_eq!([of(Some("west")), of(Some("north")), of(None)], [None, None, None]);
        std::fs::write(&path, "[contexts.east]\nendpont = \"http://127.0.0.1:8080\"\n").unwrap();
        let refused = configured(&path, Some("east")).unwrap_err().to_string();
        assert!(refused.contains("endpont") && refused.contains("agentctl.toml"), "{refused}");
    }

    #[test]
    fn only_what_is_known_of_both_can_differ() {
        let is = |uid: Option<&str>, name: Option<&str>| Identity {
            uid: uid.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        for (asked, answers, differs) in [
            (is(Some("1"), Some("east")), is(Some("1"), Some("east")), false),
            (is(Some("1"), None), is(Some("2"), Some("west")), true),
            // One that was made anew under its old name.
            (is(Some("1"), Some("east")), is(Some("2"), Some("east")), true),
            (is(Some("1"), Some("east")), is(None, Some("west")), true),
            (is(Some("1"), Some("east")), is(None, Some("east")), false),
            (is(Some("1"), None), is(None, Some("east")), false),
            (is(None, None), is(Some("1"), Some("east")), false),
        ] {
            assert_eq!(differ(&asked, &answers).is_some(), differs, "{asked:?} {answers:?}");
        }
    }

    /// Answers every request for a path that ends like one of these: status line and body. Returns where.
    pub(crate) async fn server<const N: usize>(answers: [(&'static str, &'static str, String); N]) -> String {
        const NOT_FOUND: &str =
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":""}"#;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let read = stream.read(&mut request).await.unwrap();
                let line = String::from_utf8_lossy(&request[..read]).lines().next().unwrap_or_default().to_owned();
                let path = line.split(' ').nth(1).unwrap_or_default();
                let found = answers.iter().find(|(end, ..)| path.ends_with(end));
                let (status, body) = found.map_or(("404 Not Found", NOT_FOUND), |(_, status, body)| (*status, body));
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        address
    }

    /// A target whose kubeconfig has these contexts (name, address of the API server): it asks the first one.
    pub(crate) fn target(directory: &Path, contexts: &[(&str, &str)]) -> Target {
        let all = |item: fn(&str, &str) -> String| {
            contexts.iter().map(|(name, address)| item(name, address)).collect::<Vec<_>>().join(", ")
        };
        let clusters = all(|name, address| format!("{{name: {name}, cluster: {{server: 'http://{address}'}}}}"));
        let contexts_of = all(|name, _| format!("{{name: {name}, context: {{cluster: {name}, user: u}}}}"));
        let kubeconfig = directory.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{clusters}]\ncontexts: [{contexts_of}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        Target {
            kubeconfig: Some(kubeconfig),
            context: Some(contexts[0].0.to_owned()),
            agent_namespace: AGENT_NAMESPACE.to_owned(),
            ..Target::default()
        }
    }

    /// Otherwise one cluster's peers are shown as those of the other one.
    #[tokio::test]
    async fn an_agent_of_another_cluster_is_not_believed() {
        let cluster = server([(
            "/kube-system",
            "200 OK",
            r#"{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"uid-of-west"}}"#.into(),
        )])
        .await;
        let local = r#"{"apiVersion":"a","cluster":"CLUSTER","clusterUID":"uid-of-CLUSTER","version":"1","leader":true,
            "miniClusters":[],"bursts":[],"hosted":[],"peers":[]}"#;
        let directory = tempfile::tempdir().unwrap();
        let west = target(directory.path(), &[("west", &cluster)]);
        let find = async |of: &str| {
            let endpoint = server([("/v1/local", "200 OK", local.replace("CLUSTER", of))]).await;
            let target = Target { endpoint: Some(format!("http://{endpoint}")), ..west.clone() };
            (Agent::find(&target).await.map(drop), endpoint)
        };
        assert!(find("west").await.0.is_ok());
        let (refused, endpoint) = find("east").await;
        insta::assert_snapshot!(refused.unwrap_err().to_string().replace(&endpoint, "ADDRESS"));
    }
}
