//! One cluster: latency, flood, requests, memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary::api::minicluster::MiniCluster;
use tributary::cluster::client::{ConnectOptions, unfenced};
use tributary_sandbox::{ADMIN, Event};
use tributary_tests::agent::AGENT_USER;
use tributary_tests::federation::make_namespace;

use crate::figures::{figure, percentiles};
use crate::operator::{Bed, Operator};

const NAMESPACE: &str = "bench";

/// Created one a second, until the Job exists.
pub(crate) async fn latency(operator: &Operator) -> anyhow::Result<()> {
    let bed = operator.bed().await?;
    let client = prepared(&bed).await?;
    let jobs = watch_jobs(&client);
    // An operator that has just begun to lead looks twice.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut created = BTreeMap::new();
    for index in 0..60 {
        let name = format!("one-{index}");
        created.insert(name.clone(), now());
        create(&client, &name, 2).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let seen = jobs.until(created.len(), Duration::from_secs(60)).await?;
    let mut latencies: Vec<Duration> = seen
        .iter()
        .filter_map(|(name, at)| created.get(name).map(|from| at.saturating_duration_since(*from)))
        .collect();
    figure("MiniCluster created → Job, one a second (P50/P99)", &percentiles(&mut latencies), "12/40 ms", "12/25 ms");
    Ok(())
}

/// 200 at once.
pub(crate) async fn flood(operator: &Operator) -> anyhow::Result<()> {
    const COUNT: usize = 200;
    let bed = operator.bed().await?;
    let client = prepared(&bed).await?;
    let jobs = watch_jobs(&client);
    let before = bed.cpu()?;
    let started = now();
    create_many(&client, "many", COUNT, 2).await?;
    let accepted = started.elapsed();
    let seen = jobs.until(COUNT, Duration::from_secs(300)).await?;
    let last = seen.values().max().map(|at| at.saturating_duration_since(started)).unwrap_or_default();
    let measured = format!("{:.1} s (created in {:.1} s)", last.as_secs_f64(), accepted.as_secs_f64());
    figure("200 MiniClusters at once → all Jobs", &measured, "18.5 s", "1.5 s");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let spent = bed.cpu()?.saturating_sub(before);
    figure("CPU of the operator for these, 30 s later", &format!("{:.1} s", spent.as_secs_f64()), "2.2 s", "0.8 s");
    Ok(())
}

/// Requests per MiniCluster, and per idle minute.
pub(crate) async fn requests(operator: &Operator) -> anyhow::Result<()> {
    const COUNT: usize = 100;
    let bed = operator.bed().await?;
    let client = prepared(&bed).await?;
    let audit = bed.cluster().audit();
    let jobs = watch_jobs(&client);
    create(&client, "first", 2).await?;
    jobs.until(1, Duration::from_secs(60)).await?;
    // As for the latency.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let marker = audit.marker()?;
    for index in 0..10 {
        create(&client, &format!("counted-{index}"), 2).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(Duration::from_secs(15)).await;
    let own = settled(&audit.requests(AGENT_USER, marker)?);
    of_each("API requests per MiniCluster of 2, until settled", &own, 10.0, "8 to 19", "7");
    create_many(&client, "idle", COUNT - 11, 2).await?;
    tokio::time::sleep(Duration::from_secs(45)).await;
    let marker = audit.marker()?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let idle = settled(&audit.requests(AGENT_USER, marker)?).len();
    figure("requests per idle minute with 100 MiniClusters", &idle.to_string(), "392 falling to 87", "0");
    Ok(())
}

/// What each of them does; watches and the Lease excepted.
pub(crate) fn settled(requests: &[Event]) -> Vec<String> {
    let own = requests.iter().filter(|event| !event.is_lease() && !event.is_long_running());
    own.map(|event| {
        let outcome = if event.code < 400 { String::new() } else { format!(" → {}", event.code) };
        let of = if event.subresource.is_empty() { String::new() } else { format!("/{}", event.subresource) };
        format!("{} {}{of}{outcome}", event.verb, event.resource)
    })
    .collect()
}

/// Prints how many requests each of so many objects took, and of which kind.
pub(crate) fn of_each(what: &str, requests: &[String], objects: f64, theirs: &str, goal: &str) {
    figure(what, &format!("{:.1}", requests.len() as f64 / objects), theirs, goal);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in requests {
        *kinds.entry(kind).or_default() += 1;
    }
    for (kind, count) in kinds {
        crate::figures::line(&format!("    {kind}: {:.1}", count as f64 / objects));
    }
}

/// Resident memory.
pub(crate) async fn memory(operator: &Operator, many: u32) -> anyhow::Result<()> {
    let bed = operator.bed().await?;
    let client = prepared(&bed).await?;
    figure("RSS with 0 MiniClusters", &format!("{:.0} MiB", bed.resident()?), "39 MiB", "15 MiB");
    let jobs = watch_jobs(&client);
    create_many(&client, "some", 100, 1).await?;
    jobs.until(100, Duration::from_secs(300)).await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    figure("RSS with 100 MiniClusters", &format!("{:.0} MiB", bed.resident()?), "58 MiB", "18 MiB");
    let more = usize::try_from(many.saturating_sub(100))?;
    create_many(&client, "more", more, 1).await?;
    jobs.until(100 + more, Duration::from_secs(900)).await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    figure(&format!("RSS with {many} MiniClusters"), &format!("{:.0} MiB", bed.resident()?), "163 MiB", "40 MiB");
    Ok(())
}

pub(crate) async fn prepared(bed: &Bed) -> anyhow::Result<Client> {
    // The client of this build: kube's own may wait 40 ms before the API server has its whole request.
    let kubeconfig = Some(bed.cluster().kubeconfig(ADMIN)?);
    let client = unfenced(&ConnectOptions { kubeconfig, context: None }).await?;
    make_namespace(&client, NAMESPACE).await?;
    Ok(client)
}

pub(crate) async fn create(client: &Client, name: &str, size: i32) -> anyhow::Result<()> {
    let object: MiniCluster = serde_json::from_value(json!({
        "apiVersion": "flux-framework.org/v1alpha2",
        "kind": "MiniCluster",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"size": size, "interactive": true, "containers": [{"image": "rockylinux:9"}]},
    }))?;
    Api::<MiniCluster>::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &object).await?;
    Ok(())
}

pub(crate) async fn create_many(client: &Client, prefix: &str, count: usize, size: i32) -> anyhow::Result<()> {
    stream::iter(0..count)
        .map(Ok::<_, anyhow::Error>)
        .try_for_each_concurrent(32, async |index| create(client, &format!("{prefix}-{index}"), size).await)
        .await
}

/// When each Job was first seen.
pub(crate) struct Seen(tokio::sync::watch::Receiver<BTreeMap<String, Instant>>);

impl Seen {
    pub(crate) async fn until(&self, count: usize, limit: Duration) -> anyhow::Result<BTreeMap<String, Instant>> {
        let mut receiver = self.0.clone();
        let seen = tokio::time::timeout(limit, receiver.wait_for(|seen| seen.len() >= count)).await;
        match seen {
            Ok(seen) => Ok(seen?.clone()),
            Err(_) => anyhow::bail!("{} of {count} Jobs after {limit:?}", self.0.borrow().len()),
        }
    }
}

pub(crate) fn watch_jobs(client: &Client) -> Seen {
    let (sender, receiver) = tokio::sync::watch::channel(BTreeMap::new());
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    tokio::spawn(async move {
        let known: BTreeSet<String> = match jobs.list(&ListParams::default()).await {
            Ok(list) => list.items.iter().map(ResourceExt::name_any).collect(),
            Err(_) => return,
        };
        let mut version = "0".to_owned();
        // A watch that ends is begun again where it was.
        while !sender.is_closed() {
            let Ok(events) = jobs.watch(&WatchParams::default(), &version).await else { continue };
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                if let WatchEvent::Added(job) | WatchEvent::Modified(job) = event {
                    version = job.resource_version().unwrap_or_default();
                    let name = job.name_any();
                    if !known.contains(&name) {
                        sender.send_modify(|seen| {
                            seen.entry(name).or_insert_with(now);
                        });
                    }
                }
            }
        }
    });
    Seen(receiver)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
