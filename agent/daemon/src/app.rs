//! Runs an agent: what begins and ends in which order is all there is to see here. [`crate::assembly`] joins its parts.

use std::sync::Arc;

use anyhow::Context;
use futures::future;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tributary::clock::{SystemClock, SystemRng};
use tributary::cluster::client::{Clients, ConnectOptions};
use tributary::cluster::discovery::cluster_uid;
use tributary::cluster::fence::Fence;
use tributary::cluster::leadership::{Candidacy, Elector, holder};
use tributary::cluster::readiness::Readiness;
use tributary::cluster::requests::RequestMetrics;
use tributary::cluster::scope::{LINGER, lead};
use tributary::config::Config;
use tributary::metrics::Metrics;

use crate::admin_http::Admin;
use crate::assembly::{Assembly, Surroundings};
use crate::network::Internet;
use crate::ready::{await_definitions, say_at_stop};
use crate::{health, rivals, traces};

/// Name of the agents' Lease.
pub const LEASE: &str = "tributary-agent";

/// Runs an agent until `stop` is cancelled. The order of shutdown is the crate's documentation.
pub(crate) async fn run(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let stop = stop.child_token();
    let clock = SystemClock::shared();
    let (metrics, readiness) = (Arc::new(Metrics::default()), Readiness::default());
    let health_listener = bind("health", config.health.listen).await?;
    let admin_listener = bind("admin", config.admin.listen).await?;
    let (closing, closed) = (CancellationToken::new(), CancellationToken::new());
    readiness.waits("start", "the agent is starting");
    let router = health::router(readiness.clone(), metrics.clone());
    let health = tokio::spawn(health::serve(health_listener, router, closed.clone()));

    let (state, fence) = Fence::closed(clock.clone());
    let options =
        ConnectOptions { kubeconfig: config.kubernetes.kubeconfig.clone(), context: config.kubernetes.context.clone() };
    let clients = Clients::connect(&options, fence.clone(), &RequestMetrics::register(&metrics), &clock).await?;
    let clients = clients.in_namespaces(&config.kubernetes.watch_namespaces);
    let looks = async {
        await_definitions(&clients.reader, &readiness).await?;
        rivals::check(&clients.reader, &config.kubernetes, clock.wall()).await.context("failed to start")?;
        anyhow::Ok(cluster_uid(&clients.reader).await?)
    };
    let uid = tokio::select! {
        uid = looks => uid?,
        () = stop.cancelled() => return Ok(()),
    };

    let (traces, sending) = traces::start(&config, &metrics, closed.clone())?;
    let surroundings = Surroundings {
        clients: clients.clone(),
        fence: fence.clone(),
        clock: clock.clone(),
        traces,
        metrics,
        network: Arc::new(Internet),
        cluster_uid: uid,
        instance: instance(&config),
    };
    let Assembly { watches, webhook, local, mesh, leader, filling } = Assembly::new(&config, surroundings);
    let conversions = webhook.listen().await?;
    let webhook = tokio::spawn(webhook.serve(conversions, readiness.clone(), closed.clone()));
    let filling = tokio::spawn(future::join_all(filling));
    let admin = tokio::spawn(health::serve(admin_listener, Admin::new(local, mesh).router(), closing.clone()));

    let started = readiness.clone();
    let ready = tokio::spawn(async move {
        watches.listed().await;
        started.done("start")
    });
    let candidacy = Candidacy {
        namespace: config.kubernetes.namespace.clone(),
        lease: LEASE.to_owned(),
        holder: holder(&instance(&config), &mut SystemRng),
        watches: config.kubernetes.watch_namespaces.clone(),
    };
    let resigned = CancellationToken::new();
    let elector = Elector::new(&clients, candidacy, state, fence.clone(), clock.clone());
    let elector = tokio::spawn({
        let (stop, resigned) = (stop.clone(), resigned.clone());
        async move { elector.run(resigned).await.inspect_err(|_| stop.cancel()) }
    });
    tracing::info!(cluster = config.cluster.name, version = crate::VERSION, "the agent runs");

    let leading = lead(&fence, &clock, &stop, LINGER, |term| leader.begin(term));
    let ended = say_at_stop(leading, &stop, &readiness, &closing).await;

    resigned.cancel();
    let elected = elector.await.context("the election panicked")?;
    ready.abort();
    filling.abort();
    admin.await.context("the admin API panicked")??;
    closed.cancel();
    webhook.await.context("the webhook panicked")??;
    sending.await.context("the sender of traces panicked")?;
    health.await.context("the probes panicked")??;
    tracing::info!("the agent has stopped");
    elected.context("the agent must end")?;
    ended.context("the agent must end")
}

async fn bind(what: &str, address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    health::listen(address)
        .await
        .with_context(|| format!("failed to listen on {what}.listen = {address}; is another agent running here?"))
}

/// What the Lease and events call this process: the pod's name, else the cluster's.
fn instance(config: &Config) -> String {
    crate::pod_name().or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| config.cluster.name.clone())
}
