//! The clients to one API server: one that reads, one that writes while this agent leads.

use std::env;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderValue, Uri, header};
use http_body_util::BodyExt;
use hyper_rustls::HttpsConnector;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt, DynBody};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::buffer::{Buffer, BufferLayer};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tributary_clock::SharedClock;

use super::caches::WATCH_SECONDS;
use super::fence::Fence;
use super::guard::{GuardLayer, Pass};
use super::requests::RequestMetrics;

/// What one write may take, answer included. Shorter than leadership lasts between two renewals (the relation is
/// asserted beside the timers of the Lease), so that a healthy leader is never refused.
pub(crate) const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// What the head of an answer to a read may take. A watch sends its head at once; its silence afterwards is bounded by
/// the watcher.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// How long a connection that is waited at may be silent, in the middle of an answer too. A watch is silent for as long as
/// nothing changes.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);

const _: () = assert!(SILENCE_LIMIT.as_secs() > WATCH_SECONDS as u64 + 5);

/// What a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Where the API server is and who we are to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// A kubeconfig file. Without it: `KUBECONFIG`, `~/.kube/config`, then the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; its current context if not given.
    pub context: Option<String>,
}

/// Why no client could be made. Nothing was sent yet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The named kubeconfig cannot be read.
    #[error("failed to read the kubeconfig {path:?}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The context is not in the kubeconfig, or names a cluster or user that is not.
    #[error("failed to use the context {context:?} of the kubeconfig")]
    Context {
        /// The context asked for; `None` is the current one.
        context: Option<String>,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// Neither a kubeconfig nor a service account.
    #[error("failed to find an API server: name a kubeconfig, or run in a pod with a service account")]
    Nowhere(#[source] Box<InferConfigError>),
    /// The kubeconfig or the environment names a proxy.
    #[error(
        "failed to reach the API server through the proxy {0}: name the API server in NO_PROXY, or remove HTTPS_PROXY from \
             the environment, and proxy-url from the kubeconfig"
    )]
    Proxy(String),
    /// The client's certificates or its credentials are unusable.
    #[error("failed to set up the connection to the API server")]
    Client(#[source] Box<kube::Error>),
}

/// The clients of an agent. Cloning shares connections. They end with the runtime they were made in.
#[derive(Clone)]
pub struct Clients {
    /// `GET` only; kube's retries of 429, 503 and 504 are on.
    pub reader: Client,
    /// Everything, while this agent leads: outside of that a write fails with
    /// [`FenceError`](super::fence::FenceError). Each request is tried once and takes at most [`WRITE_LIMIT`]: who
    /// retries is the worker, which looks at the world again first.
    pub writer: Client,
    /// The namespaces that this agent works in; none named: all.
    pub namespaces: Arc<[String]>,
    /// The host at which the API server is reached: a name, or an address.
    pub host: Arc<str>,
    /// For the leader's Lease alone, over a connection of its own: neither fenced nor retried.
    pub(super) lease: Client,
}

impl Clients {
    /// Makes the clients. `fence` follows the state that the elector publishes; `requests` counts.
    ///
    /// # Errors
    /// [`ConnectError`]. The API server is not asked anything yet.
    pub async fn connect(
        options: &ConnectOptions,
        fence: Fence,
        requests: &RequestMetrics,
        clock: &SharedClock,
    ) -> Result<Self, ConnectError> {
        let mut config = load(options).await?;
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.read_timeout = Some(SILENCE_LIMIT);
        // As a URL has it, an IPv6 address is in brackets.
        let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).into();
        let shared = connections(&config)?;
        let [reader, writer] = [stack(&config, &shared, true)?, stack(&config, &shared, false)?];
        // Of connections that died without a word, each request takes another one and waits for nothing. A leader that has
        // to try as many as others left would be none by then.
        let lease = stack(&config, &connections(&config)?, false)?;
        Ok(Self::guarded([reader, writer, lease], host, fence, requests, clock))
    }

    /// Clients of an API server in memory, with the fence and the limits of [`Clients::connect`]. Reads are tried once: how
    /// long kube waits before it tries again is left to chance. The host is an address that nothing has.
    pub fn over<S>(server: &S, fence: Fence, requests: &RequestMetrics, clock: &SharedClock) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Box<DynBody>>, Error = BoxError>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let builders = std::array::from_fn(|_| ClientBuilder::new(server.clone(), "default"));
        Self::guarded(builders, "240.0.0.1".into(), fence, requests, clock)
    }

    /// The reader, the writer and the client of the Lease, in this order.
    fn guarded<S>(
        [reader, writer, lease]: [ClientBuilder<S>; 3],
        host: Arc<str>,
        fence: Fence,
        requests: &RequestMetrics,
        clock: &SharedClock,
    ) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Box<DynBody>>, Error = BoxError>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let layer = |pass, limit| GuardLayer { pass, limit, requests: requests.clone(), clock: clock.clone() };
        let reads = layer(Pass::Reads, READ_LIMIT);
        let writes = layer(Pass::WritesWhileLeading(fence), WRITE_LIMIT);
        Self {
            reader: reader.with_layer(&reads).build(),
            writer: writer.with_layer(&writes).build(),
            namespaces: Arc::default(),
            host,
            lease: lease.build(),
        }
    }

    /// The same clients for an agent that works in these namespaces alone; none: in all.
    #[must_use]
    pub fn in_namespaces(self, namespaces: &[String]) -> Self {
        Self { namespaces: namespaces.into(), ..self }
    }
}

/// A client without a fence, for programs that are no agents: what they may do is decided by RBAC alone.
///
/// # Errors
/// [`ConnectError`]. The API server is not asked anything yet.
pub async fn unfenced(options: &ConnectOptions) -> Result<Client, ConnectError> {
    let config = load(options).await?;
    Ok(stack(&config, &connections(&config)?, true)?.build())
}

type Answer = BoxFuture<'static, Result<http::Response<Box<DynBody>>, BoxError>>;

type Stack = ClientBuilder<Buffer<http::Request<Body>, Answer>>;

/// What may wait for the connections to take it.
const BUFFERED: usize = 1024;

type Connections = legacy::Client<TimeoutConnector<HttpsConnector<HttpConnector>>, Body>;

/// Connections to the API server, which reader and writer of an agent share.
///
/// kube's own leave Nagle's algorithm on: the end of a request then waits for an acknowledgement that the API server delays
/// by 40 ms, most often on a connection that is new.
fn connections(config: &Config) -> Result<Connections, ConnectError> {
    if let Some(proxy) = &config.proxy_url {
        return Err(ConnectError::Proxy(proxy.host().unwrap_or_default().to_owned()));
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp).map_err(unusable)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    Ok(legacy::Client::builder(TokioExecutor::new()).build(connector))
}

fn stack(config: &Config, connections: &Connections, retries: bool) -> Result<Stack, ConnectError> {
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retries.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer().map_err(unusable)?)
        .layer(config.extra_headers_layer().map_err(unusable)?)
        .map_err(BoxError::from)
        .service(connections.clone());
    let service =
        service.map_response(|answer| answer.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>));
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace.clone()).with_layer(&BufferLayer::new(BUFFERED)))
}

fn unusable(source: kube::Error) -> ConnectError {
    ConnectError::Client(Box::new(source))
}

/// How audit logs name us.
const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("tributary/", env!("CARGO_PKG_VERSION")));

async fn load(options: &ConnectOptions) -> Result<Config, ConnectError> {
    let mut config = found(options).await?;
    config.headers.push((header::USER_AGENT, USER_AGENT));
    Ok(config)
}

/// Takes away the proxy of the environment if the API server is on this machine, or if `NO_PROXY` names it. kube reads
/// `HTTPS_PROXY` alone; kubectl heeds both.
pub fn heed_no_proxy(config: &mut Config) {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let asked = set("HTTPS_PROXY").or_else(|| set("https_proxy"));
    let asked: Option<Uri> = asked.and_then(|proxy| proxy.parse().ok());
    let except = set("NO_PROXY").or_else(|| set("no_proxy")).unwrap_or_default();
    if config.proxy_url == asked && is_excepted(&config.cluster_url, &except) {
        config.proxy_url = None;
    }
}

/// Whether this server is reached without a proxy, though there is one.
fn is_excepted(server: &Uri, except: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    // What kubectl knows, and the matcher does not: all, a name with its port, and a domain with a star.
    let names = except.split(',').map(|name| {
        let name = name.trim().trim_start_matches('*');
        let port = name.rsplit_once(':').filter(|(host, port)| !host.contains(':') && port.parse::<u16>().is_ok());
        port.map_or(name, |(host, _)| host)
    });
    let (names, all) = (names.collect::<Vec<_>>().join(","), except.split(',').any(|name| name.trim() == "*"));
    is_here || all || Matcher::builder().all("http://proxy.invalid").no(names).build().intercept(server).is_none()
}

async fn found(options: &ConnectOptions) -> Result<Config, ConnectError> {
    let mut config = unchecked(options).await?;
    heed_no_proxy(&mut config);
    Ok(config)
}

async fn unchecked(options: &ConnectOptions) -> Result<Config, ConnectError> {
    let chosen = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let in_context = |source| ConnectError::Context { context: options.context.clone(), source: Box::new(source) };
    if let Some(path) = &options.kubeconfig {
        let file = Kubeconfig::read_from(path)
            .map_err(|source| ConnectError::Kubeconfig { path: path.clone(), source: Box::new(source) })?;
        return Config::from_custom_kubeconfig(file, &chosen).await.map_err(in_context);
    }
    if options.context.is_some() {
        return Config::from_kubeconfig(&chosen).await.map_err(in_context);
    }
    Config::infer().await.map_err(|source| ConnectError::Nowhere(Box::new(source)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::error::chain;

    const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "east",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "east", "context": {"cluster": "c", "user": "u", "namespace": "tributary-system"}}]}"#;

    /// A company's machine: the proxy of the environment is not for servers that it names, nor for those of the machine itself.
    #[test]
    fn a_proxy_is_not_for_every_server() {
        let except = ".corp.example, 10.0.0.0/8,api.lab,one.lab:6443,172.16.0.1:6443,*.star.example";
        for (server, expected) in [
            ("https://127.0.0.1:6443", true),
            ("https://[::1]:6443", true),
            ("https://localhost:6443", true),
            ("https://k8s.corp.example:6443", true),
            ("https://10.9.8.7", true),
            ("https://api.lab:8443", true),
            ("https://one.lab:6443", true),
            ("https://172.16.0.1:6443", true),
            ("https://a.star.example", true),
            ("https://192.0.2.1:6443", false),
            ("https://k8s.other.example", false),
        ] {
            assert_eq!(is_excepted(&server.parse().unwrap(), except), expected, "{server}");
        }
        assert!(is_excepted(&"https://192.0.2.1:6443".parse().unwrap(), "*"));
        assert!(!is_excepted(&"https://k8s.other.example".parse().unwrap(), ""));
    }

    fn written(text: &str, name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tributary-client-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[tokio::test]
    async fn a_context_is_chosen_or_refused_by_name() {
        let path = written(KUBECONFIG, "contexts");
        let options = |context: Option<&str>| ConnectOptions {
            kubeconfig: Some(path.clone()),
            context: context.map(String::from),
        };
        assert_eq!(load(&options(None)).await.unwrap().default_namespace, "tributary-system");
        assert_eq!(load(&options(Some("east"))).await.unwrap().default_namespace, "tributary-system");
        let error = load(&options(Some("nowhere"))).await.unwrap_err();
        assert!(matches!(error, ConnectError::Context { .. }));
        assert!(chain(&error).contains("nowhere"), "{}", chain(&error));
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named() {
        let options = ConnectOptions { kubeconfig: Some("/does/not/exist".into()), context: None };
        let error = load(&options).await.unwrap_err();
        assert!(chain(&error).contains("/does/not/exist"), "{}", chain(&error));
    }

    async fn connected(port: u16, name: &str) -> Clients {
        let path = written(&KUBECONFIG.replace("https://127.0.0.1:6443", &format!("http://127.0.0.1:{port}")), name);
        let clock = tributary_clock::SystemClock::shared();
        let (_state, fence) = Fence::closed(clock.clone());
        let options = ConnectOptions { kubeconfig: Some(path.clone()), context: None };
        let clients = Clients::connect(&options, fence, &RequestMetrics::default(), &clock).await.unwrap();
        std::fs::remove_file(path).unwrap();
        clients
    }

    fn answer(client: &Client) -> impl Future<Output = kube::Result<serde_json::Value>> + use<> {
        let (client, request) = (client.clone(), http::Request::get("/version").body(Vec::new()).unwrap());
        async move { client.request(request).await }
    }

    /// The danger: the end of a list that never comes is waited for for ever, and so is the cache that it fills.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_halfway_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{").await.unwrap();
            std::future::pending::<()>().await;
            drop(stream);
        });
        let clients = connected(port, "halfway").await;
        let answer = tokio::time::timeout(2 * SILENCE_LIMIT, answer(&clients.reader)).await;
        assert!(answer.is_ok_and(|answer| answer.is_err()) && !server.is_finished());
    }

    /// An API server whose connections can all die at once, without a word, as behind a load balancer that forgot them. It
    /// answers the first `together` requests when all of them are there, so that each has a connection of its own.
    async fn forgetful(together: usize) -> (u16, tokio::sync::watch::Sender<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (forgets, forgotten) = tokio::sync::watch::channel(0_u64);
        let (all, mut made) = (Arc::new(tokio::sync::Barrier::new(together)), 0);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (forgotten, all, first) = (forgotten.clone(), all.clone(), made < together);
                made += 1;
                tokio::spawn(async move {
                    let (born, mut waits) = (*forgotten.borrow(), first);
                    let mut read = vec![0; 4096];
                    while let Ok(1..) = stream.read(&mut read).await {
                        if *forgotten.borrow() != born {
                            return std::future::pending().await;
                        }
                        if std::mem::take(&mut waits) {
                            all.wait().await;
                        }
                        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (port, forgets)
    }

    /// The danger: each renewal of the Lease takes another of the connections that writers left, and all of them are dead.
    #[tokio::test]
    async fn dead_connections_of_others_do_not_hold_up_the_lease() {
        const MANY: usize = 8;
        let (port, forgets) = forgetful(MANY).await;
        let clients = connected(port, "lease").await;
        let ask = |client: &Client| {
            let answer = answer(client);
            async { tokio::time::timeout(Duration::from_millis(500), answer).await.is_ok_and(|answer| answer.is_ok()) }
        };
        let all = futures::future::join_all((0..MANY).map(|_| ask(&clients.reader))).await;
        assert!(all.into_iter().all(|answered| answered));
        assert!(ask(&clients.lease).await);
        forgets.send_modify(|count| *count += 1);
        let first = ask(&clients.lease).await;
        assert!(first || ask(&clients.lease).await, "a leader has time for two attempts");
    }
}
