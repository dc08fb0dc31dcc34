//! A standby whose caches stand still becomes the leader.

use std::path::{Path, PathBuf};

use kube::ResourceExt;
use kube::config::Kubeconfig;
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary_tests::agent::AGENT_USER;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::Federation;
use tributary_tests::metrics::asked;
use tributary_tests::scenario::bursting;
use tributary_tests::tcp_way::{Way, way};

use crate::availability::{leads, second_replica};
use crate::shared::{alone, places};

const ROOT: &str = "kept";
const SLOT: &str = "kept-burst-0";

/// A kubeconfig of west's agents whose connections can be forgotten.
async fn kubeconfig(federation: &Federation) -> (Way, PathBuf) {
    let direct = federation.clusters()[1].kubeconfig_in(AGENT_USER, None).unwrap();
    let server = server(&direct);
    let host = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let way = way(host.parse().unwrap()).await.unwrap();
    let path = federation.directory().join("kubeconfig-west-standby");
    let text = std::fs::read_to_string(direct).unwrap().replace(&host, &way.address.to_string());
    std::fs::write(&path, text).unwrap();
    (way, path)
}

fn server(kubeconfig: &Path) -> String {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    config.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone()).unwrap()
}

/// The leader of before has hosted a burst that the standby's watches do not show. If the standby took it for evicted,
/// the root would let go of it and give its ranks to north, while west runs them.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_whose_watches_stand_still_takes_no_running_burst_for_evicted() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "takeover").await;
    let (way, kubeconfig) = kubeconfig(&federation).await;
    let standby = second_replica(&federation, &kubeconfig);
    standby.start(&federation.group).unwrap();
    eventually("the standby has listed everything", async || {
        let answer = asked(standby.health, "/readyz").await.map_err(|error| error.to_string())?;
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
    })
    .await;
    way.forget();

    east.create(ROOT, bursting(1, json!([{"size": 2, "peers": ["west", "north"]}]))).await;
    east.burst(ROOT, SLOT, BurstPhase::Ready).await;
    let before = west.hosted().get(SLOT).await.unwrap();
    federation.agent(1).kill().unwrap();
    leads(&standby, 1).await;
    federation.connected().await;

    // What the root wants next reaches the same burst.
    east.change(
        ROOT,
        json!({"flux": {"bursting": {"clusters": [{"size": 1, "maxSize": 2, "peers": ["west", "north"]}]}}}),
    )
    .await;
    eventually("the standby follows the root", async || {
        let burst = east.burst_now(ROOT, SLOT).await?.status.unwrap_or_default();
        let hosted = west.hosted().get(SLOT).await.map_err(|error| error.to_string())?;
        assert!(burst.refusals.is_empty() && burst.peer.as_deref() == Some("west"), "{burst:?}");
        if hosted.spec.size == 1 { Ok(()) } else { Err(format!("{:?}", hosted.status)) }
    })
    .await;
    let burst = east.burst(ROOT, SLOT, BurstPhase::Ready).await;
    assert_eq!(west.hosted().get(SLOT).await.unwrap().uid(), before.uid(), "{:?}", burst.status);

    standby.kill().unwrap();
    federation.agent(1).start(&federation.group).unwrap();
    federation.connected().await;
    east.delete(ROOT).await;
    west.empty(SLOT).await;
}
