//! Two clusters with an agent each: how long a burst takes.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::json;
use tributary_sandbox::{Options, Sandbox};
use tributary_tests::federation::Federation;
use tributary_tests::scenario::{Place, bursting};

use crate::figures::{figure, percentiles};

/// Root applied until the HostedBurst is on the peer, and until all pods of both are ready.
pub(crate) async fn burst() -> anyhow::Result<()> {
    const TIMES: usize = 10;
    // The federation holds on to its clusters as long as the process lives.
    let sandbox: &'static Sandbox = Box::leak(Box::new(Sandbox::start(Options::named(["east", "west"])).await?));
    let federation = Federation::start(sandbox).await?;
    federation.namespace("bench").await?;
    let place = |client| Place { client, namespace: "bench".to_owned() };
    let (east, west) = (place(federation.client(0).await), place(federation.client(1).await));
    let (mut hosted, mut ready) = (Vec::new(), Vec::new());
    for index in 0..TIMES {
        let (root, slot) = (format!("river-{index}"), format!("river-{index}-burst-0"));
        let started = now();
        east.create(&root, bursting(4, json!([{"size": 3, "peer": "west"}]))).await;
        until(|| async { Ok(west.hosted().get_opt(&slot).await?.is_some()) }).await?;
        hosted.push(started.elapsed());
        until(|| async { Ok(ready_pods(&west, &slot).await? == 3 && ready_pods(&east, &root).await? == 4) }).await?;
        ready.push(started.elapsed());
        east.delete(&root).await;
        west.empty(&slot).await;
    }
    figure("root applied → HostedBurst on the peer, loopback", &percentiles(&mut hosted), "-", "250 ms");
    figure("root of 4 applied → all pods of a burst of 3 ready", &percentiles(&mut ready), "-", "3 s");
    for agent in &federation.agents {
        if let Some(process) = agent.pid() {
            let resident = crate::operator::resident(process)?;
            figure("RSS of a federated agent, idle", &format!("{resident:.0} MiB"), "-", "-");
        }
    }
    Ok(())
}

async fn ready_pods(place: &Place, job: &str) -> kube::Result<usize> {
    let pods: Api<Pod> = place.pods();
    let list = pods.list(&ListParams::default().labels(&format!("job-name={job}"))).await?;
    let ready = |pod: &&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    Ok(list.items.iter().filter(ready).count())
}

async fn until<F: Future<Output = kube::Result<bool>>>(look: impl Fn() -> F) -> anyhow::Result<()> {
    let started = now();
    while !look().await? {
        anyhow::ensure!(started.elapsed() < Duration::from_secs(120), "a burst is not ready after 2 minutes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
