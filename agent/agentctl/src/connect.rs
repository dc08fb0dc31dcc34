//! Reaches an agent's admin API: at `--endpoint`, or by the API server's port-forward to the leading agent's pod.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::cli::Target;
use crate::error::{Failure, Result, failed};
use crate::{endpoint, kubernetes};

/// Name of the admin API's port in the agent's pod, and its number where the pod names none.
const ADMIN_PORT: (&str, u16) = ("admin", 8080);
/// The same of probes and metrics.
const HEALTH_PORT: (&str, u16) = ("health", 8081);
/// Name of the agents' leader Lease.
pub(crate) const LEASE: &str = "tributary-agent";
/// Label of the agents' pods.
pub(crate) const POD_SELECTOR: &str = "app.kubernetes.io/name=tributary";
/// How far the clocks of this machine and of the agents may differ before a Lease seems to have run out.
const CLOCKS: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);
/// How long an agent may take to answer; its fan-out to peers is limited to less.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// How long an agent is asked before it is found again: a leader that becomes a standby answers on, without peers.
const KEPT_FOR: Duration = Duration::from_secs(15);
/// For users who may not reach the agent.
const WITHOUT_AGENT: &str = "`agentctl minicluster list`, and agentctl's command \"why\", need no agent: with -n NAMESPACE \
                             your own rights may be enough";

/// Where an agent is.
#[derive(Debug)]
pub(crate) enum Agent {
    /// At `host:port`.
    Endpoint(String),
    /// In a pod, at a port of it.
    Pod(Api<Pod>, String, u16),
}

impl Agent {
    /// Finds the agent a user means.
    pub(crate) async fn find(target: &Target) -> Result<Self> {
        if let Some(endpoint) = endpoint::of(target)? {
            let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
            // Another scheme, or no port.
            if address.contains("://") || !address.contains(':') {
                return Err(Failure::new(format!("failed to use --endpoint {endpoint}"))
                    .hint("the admin API is plain HTTP on loopback: --endpoint http://127.0.0.1:8080"));
            }
            let agent = Self::Endpoint(address.to_owned());
            endpoint::of_this_cluster(target, &agent).await?;
            return Ok(agent);
        }
        let client = kubernetes::client(target).await?;
        let namespace = &target.agent_namespace;
        let failed = failed(
            format!("failed to look for the agent in namespace {namespace}"),
            format!("may you read Leases and list pods there? Else name it by --endpoint; {WITHOUT_AGENT}"),
        );
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let lease = Api::<Lease>::namespaced(client, namespace).get_opt(LEASE).await.map_err(&failed)?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity).unwrap_or_default();
        let agents = pods.list(&ListParams::default().labels(POD_SELECTOR)).await.map_err(&failed)?;
        // Only the leader has sessions with peers; its holder id begins with the pod's name.
        let leads = |pod: &&Pod| pod.metadata.name.as_ref().is_some_and(|name| holder.starts_with(name.as_str()));
        match agents.items.iter().find(leads).or_else(|| agents.items.first()) {
            Some(pod) => Ok(Self::Pod(pods, pod.name_any(), port(pod, ADMIN_PORT))),
            None => Err(Failure::new(format!("no agent runs in namespace {namespace}")).hint(
                "name its namespace with --agent-namespace; an agent that runs elsewhere is reached by --endpoint, or by the \
                 endpoint that ~/.config/tributary/agentctl.toml has for the context",
            )),
        }
    }

    /// Reads one document of the admin API.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let failed = || Failure::new(format!("failed to read {path} from the agent at {}", self.name()));
        let answer = tokio::time::timeout(TIME_LIMIT, self.fetch(path)).await;
        let body = match answer {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => {
                let failure = failed().because(error);
                return Err(match self {
                    Self::Pod(pods, ..) if failure.is_denied() => failure.hint(format!(
                        "it takes the right to create pods/portforward in {}, or --endpoint; {WITHOUT_AGENT}",
                        pods.namespace().unwrap_or_default()
                    )),
                    _ => failure.hint("is the agent running, and ready? See its log."),
                });
            }
            Err(_) => {
                return Err(failed()
                    .because(format!("no answer within {} s", TIME_LIMIT.as_secs()))
                    .hint("is the agent running, and ready? See its log."));
            }
        };
        serde_json::from_slice(&body).map_err(|error| {
            failed().because(error).hint("are agentctl and the agent of the same version? Compare: `agentctl version`")
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Endpoint(name) | Self::Pod(_, name, ..) => name,
        }
    }

    async fn fetch(&self, path: &str) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        match self {
            Self::Endpoint(address) => get(address, path).await,
            Self::Pod(pods, name, port) => forwarded(pods, name, *port, path).await,
        }
    }
}

/// The agent that a command reads again and again, cached for [`KEPT_FOR`] while it answers: to find one may run plugins of the
/// kubeconfig.
pub(crate) struct CachedAgent<'a> {
    target: &'a Target,
    /// And when it was found.
    agent: Option<(Agent, Instant)>,
}

impl<'a> CachedAgent<'a> {
    pub(crate) fn new(target: &'a Target) -> Self {
        Self { target, agent: None }
    }

    /// As [`Agent::read`].
    pub(crate) async fn read<T: DeserializeOwned>(&mut self, path: &str) -> Result<T> {
        loop {
            let kept = self.agent.take().filter(|(_, found)| found.elapsed() < KEPT_FOR);
            let is_new = kept.is_none();
            let (agent, found) = match kept {
                Some(kept) => kept,
                None => (Agent::find(self.target).await?, Instant::now()),
            };
            match agent.read(path).await {
                // Its credentials may have run out: the kubeconfig may have others by now.
                Err(failure) if failure.is_denied() && !is_new => {}
                read => {
                    self.agent = read.is_ok().then_some((agent, found));
                    return read;
                }
            }
        }
    }
}

/// The port that the agent's container in a pod calls so: whoever installs may choose its number.
fn port(pod: &Pod, (name, default): (&str, u16)) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_deref() == Some(name));
    found.and_then(|port| u16::try_from(port.container_port).ok()).unwrap_or(default)
}

/// Reads `path` from the port of probes and metrics of an agent's pod, as text.
pub(crate) async fn pod_text(pods: &Api<Pod>, pod: &Pod, path: &str) -> Result<String> {
    let (name, port) = (pod.name_any(), port(pod, HEALTH_PORT));
    let failed = || {
        Failure::new(format!("failed to read {path} from port {port} of pod {name}"))
            .hint("is the pod ready, and may you forward ports to it (pods/portforward)?")
    };
    match tokio::time::timeout(TIME_LIMIT, forwarded(pods, &name, port, path)).await {
        Ok(Ok(body)) => Ok(String::from_utf8_lossy(&body).into_owned()),
        Ok(Err(error)) => Err(failed().because(error)),
        Err(_) => Err(failed().because(format!("no answer within {} s", TIME_LIMIT.as_secs()))),
    }
}

async fn forwarded(
    pods: &Api<Pod>,
    name: &str,
    port: u16,
    path: &str,
) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let mut forward = pods.portforward(name, &[port]).await?;
    let stream = forward.take_stream(port).ok_or("the port-forward carries no stream")?;
    request(stream, path).await
}

/// Which agent leads in `namespace`; `Err`: why none does, as a sentence.
pub(crate) async fn leader(
    client: &Client,
    namespace: &str,
    now: Timestamp,
) -> Result<std::result::Result<String, String>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases
        .get_opt(LEASE)
        .await
        .map_err(failed(format!("failed to read Lease {namespace}/{LEASE}"), "may you read Leases there?"))?;
    Ok(holder(lease.as_ref(), namespace, now))
}

/// Who holds the agents' Lease.
fn holder(lease: Option<&Lease>, namespace: &str, now: Timestamp) -> std::result::Result<String, String> {
    let spec = lease.and_then(|lease| lease.spec.clone());
    let Some(spec) = spec else { return Err(format!("no agent has ever led in namespace {namespace}")) };
    let Some(holder) = spec.holder_identity.filter(|holder| !holder.is_empty()) else {
        return Err(format!("no agent leads in namespace {namespace}: the last one has resigned"));
    };
    let length = jiff::SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
    let renewed = spec.renew_time.map(|time| time.0).unwrap_or(Timestamp::UNIX_EPOCH);
    if now.duration_since(renewed) > length + CLOCKS {
        return Err(format!("no agent leads in namespace {namespace}: the last word of {holder} is of {renewed:.0}"));
    }
    Ok(holder)
}

/// Reads `path` from an agent that listens at `address` (`host:port`). An answer other than success is an error with
/// its body.
pub(crate) async fn get(address: &str, path: &str) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    request(TcpStream::connect(address).await?, path).await
}

async fn request<S>(stream: S, path: &str) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = Request::get(path).header(header::HOST, "agent").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    driver.abort();
    if status.is_success() {
        return Ok(body);
    }
    Err(format!("the agent answered {status}: {}", String::from_utf8_lossy(&body)).into())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::net::TcpListener;
    use tokio::time;

    use super::*;
    use crate::endpoint::tests::{server, target};

    /// An agent that gives one answer; returns how it is reached.
    async fn agent(status: &'static str, body: &str) -> String {
        server([("", status, body.to_owned())]).await
    }

    async fn read(address: &str) -> Result<Value> {
        let kubeconfig = Some("/nowhere".into());
        let target = Target { endpoint: Some(format!("http://{address}/")), kubeconfig, ..Target::default() };
        Agent::find(&target).await?.read("/v1/status").await
    }

    #[test]
    fn the_port_is_the_one_that_the_pod_names() {
        let pod = |ports: Value| -> Pod {
            let containers = serde_json::json!([{"name": "proxy"}, {"name": "agent", "ports": ports}]);
            serde_json::from_value(serde_json::json!({"metadata": {}, "spec": {"containers": containers}})).unwrap()
        };
        let moved = pod(serde_json::json!([
            {"name": "health", "containerPort": 18081}, {"name": "admin", "containerPort": 18080}
        ]));
        assert_eq!((port(&moved, ADMIN_PORT), port(&moved, HEALTH_PORT)), (18080, 18081));
        // Of a release before its pods named it.
        assert_eq!(port(&pod(serde_json::json!([{"name": "health", "containerPort": 8081}])), ADMIN_PORT), 8080);
    }

    #[tokio::test]
    async fn a_document_is_read() {
        let address = agent("200 OK", r#"{"cluster":1}"#).await;
        assert_eq!(read(&address).await.unwrap()["cluster"], 1);
    }

    /// The danger: a plugin of the kubeconfig runs several times a second; or an agent that is gone, or leads no more, is asked
    /// for ever.
    #[tokio::test]
    async fn an_agent_is_found_again_if_it_failed_and_after_a_while() {
        let address = server([("/v1/status", "200 OK", "{}".to_owned())]).await;
        let directory = tempfile::tempdir().unwrap();
        let west = target(directory.path(), &[("west", &server([]).await)]);
        let west = Target { endpoint: Some(format!("http://{address}")), ..west };
        let mut kept = CachedAgent::new(&west);
        kept.read::<Value>("/v1/status").await.unwrap();
        let (kubeconfig, away) = (west.kubeconfig.as_ref().unwrap(), directory.path().join("away"));
        std::fs::rename(kubeconfig, &away).unwrap();
        kept.read::<Value>("/v1/status").await.unwrap();
        time::pause();
        time::advance(KEPT_FOR).await;
        time::resume();
        assert!(kept.read::<Value>("/v1/status").await.unwrap_err().line().contains("kubeconfig"));
        std::fs::rename(&away, kubeconfig).unwrap();
        kept.read::<Value>("/v1/status").await.unwrap();
        std::fs::remove_file(kubeconfig).unwrap();
        assert!(kept.read::<Value>("/v1/nothing").await.unwrap_err().line().contains("404"));
        assert!(kept.read::<Value>("/v1/status").await.unwrap_err().line().contains("kubeconfig"));
    }

    /// The danger: a user without rights looks for the fault in an agent that is well, and does not know what she may.
    #[tokio::test]
    async fn who_may_not_reach_the_agent_is_told_what_that_takes_and_what_does_without() {
        let forbidden = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,
            "message":"leases is forbidden"}"#;
        let pods =
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"tributary-a"}}]}"#;
        let no_lease = server([("/tributary-agent", "403 Forbidden", forbidden.to_owned())]).await;
        let no_forward = server([
            ("name%3Dtributary", "200 OK", pods.to_owned()),
            ("ports=8080", "403 Forbidden", forbidden.to_owned()),
        ])
        .await;
        let directory = tempfile::tempdir().unwrap();
        for (address, takes) in
            [(no_lease, "may you read Leases"), (no_forward, "right to create pods/portforward in tributary-system")]
        {
            let west = target(directory.path(), &[("west", &address)]);
            let failure = CachedAgent::new(&west).read::<Value>("/v1/status").await.unwrap_err();
            let told = failure.to_string();
            assert!(failure.is_denied() && told.contains(takes) && told.contains("minicluster list"), "{told}");
            crate::paste::check::pastes(&told);
        }
    }

    #[tokio::test]
    async fn every_failure_says_what_to_do() {
        let mut texts = Vec::new();
        let mut keep = |failure: Failure, address: &str| texts.push(failure.to_string().replace(address, "ADDRESS"));
        for endpoint in ["https://127.0.0.1:8080", "ftp://127.0.0.1:8080", "localhost"] {
            let target = Target { endpoint: Some(endpoint.to_owned()), ..Target::default() };
            keep(Agent::find(&target).await.unwrap_err(), "ADDRESS");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nobody = listener.local_addr().unwrap().to_string();
        drop(listener);
        keep(read(&nobody).await.unwrap_err(), &nobody);
        for (status, body) in [("503 Service Unavailable", "this agent is stopping\n"), ("200 OK", "hello")] {
            let address = agent(status, body).await;
            keep(read(&address).await.unwrap_err(), &address);
        }
        let directory = tempfile::tempdir().unwrap();
        let (file, missing) = (directory.path().join("kubeconfig"), directory.path().join("missing"));
        std::fs::write(&file, "apiVersion: v1\nkind: Config\n").unwrap();
        for (kubeconfig, context) in [(missing, None), (file, Some("east".to_owned()))] {
            let target = Target { kubeconfig: Some(kubeconfig), context, ..Target::default() };
            keep(Agent::find(&target).await.unwrap_err(), &directory.path().display().to_string());
        }
        assert!(texts.iter().all(|text| text.contains("\n\nhint: ")), "{texts:#?}");
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }
}
