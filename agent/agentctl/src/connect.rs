//! Reaches an agent's admin API: at `--endpoint`, or by the API server's port-forward to the leading agent's pod.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::cli::Target;
use crate::error::{Failure, Result};
use crate::kubernetes;

/// Port of the admin API in the agent's pod.
const ADMIN_PORT: u16 = 8080;
/// Name of the agents' leader Lease.
pub(crate) const LEASE: &str = "tributary-agent";
/// Label of the agents' pods.
const POD_SELECTOR: &str = "app.kubernetes.io/name=tributary";
/// How long an agent may take to answer; its fan-out to peers is limited to less.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Where an agent is.
#[derive(Debug)]
pub enum Agent {
    /// At `host:port`.
    Endpoint(String),
    /// In a pod.
    Pod(Api<Pod>, String),
}

impl Agent {
    /// Finds the agent a user means.
    pub async fn find(target: &Target) -> Result<Self> {
        if let Some(endpoint) = &target.endpoint {
            let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
            if address.starts_with("https://") || !address.contains(':') {
                return Err(Failure::new(format!("failed to use --endpoint {endpoint}"))
                    .hint("the admin API is plain HTTP on loopback: --endpoint http://127.0.0.1:8080"));
            }
            return Ok(Self::Endpoint(address.to_owned()));
        }
        let client = kubernetes::client(target).await?;
        let namespace = &target.agent_namespace;
        let failed = |error: kube::Error| {
            Failure::new(format!("failed to look for the agent in namespace {namespace}")).because(error)
        };
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let lease = Api::<Lease>::namespaced(client, namespace).get_opt(LEASE).await.map_err(failed)?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity).unwrap_or_default();
        let agents = pods.list(&ListParams::default().labels(POD_SELECTOR)).await.map_err(failed)?;
        let names: Vec<String> = agents.items.into_iter().filter_map(|pod| pod.metadata.name).collect();
        // Only the leader has sessions with peers; its holder id begins with the pod's name.
        let leader = names.iter().find(|name| holder.starts_with(name.as_str())).or_else(|| names.first());
        match leader {
            Some(name) => Ok(Self::Pod(pods, name.clone())),
            None => Err(Failure::new(format!("no agent runs in namespace {namespace}")).hint(
                "name its namespace with --agent-namespace, or reach an agent that runs elsewhere by --endpoint",
            )),
        }
    }

    /// Reads one document of the admin API.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let failed = || Failure::new(format!("failed to read {path} from the agent at {}", self.name()));
        let answer = tokio::time::timeout(TIME_LIMIT, self.fetch(path)).await;
        let body = match answer {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => {
                return Err(failed().because(error).hint("is the agent running, and ready? See its log."));
            }
            Err(_) => {
                return Err(failed()
                    .because(format!("no answer within {} s", TIME_LIMIT.as_secs()))
                    .hint("is the agent running, and ready? See its log."));
            }
        };
        serde_json::from_slice(&body).map_err(|error| {
            failed().because(error).hint("are agentctl and the agent of the same version? Compare: agentctl --version")
        })
    }

    fn name(&self) -> &str {
        match self {
            Self::Endpoint(name) | Self::Pod(_, name) => name,
        }
    }

    async fn fetch(&self, path: &str) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        match self {
            Self::Endpoint(address) => get(address, path).await,
            Self::Pod(pods, name) => {
                let mut forward = pods.portforward(name, &[ADMIN_PORT]).await?;
                let stream = forward.take_stream(ADMIN_PORT).ok_or("the port-forward carries no stream")?;
                request(stream, path).await
            }
        }
    }
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
