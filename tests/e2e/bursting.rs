//! A burst, on real pods where there are any: one instance, jobs across both clusters, pods that die, sizes that change, an end.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::Place;

use crate::ground::{enter, in_lead, pod, ranks_up, real, until_up};

#[tokio::test(flavor = "multi_thread")]
async fn brokers_of_two_clusters_are_one_instance() {
    let Some(ground) = enter().await else { return };
    let places = ground.namespace("e2e-burst").await;
    let [root, provider] = &places;
    let clusters = |size: i32| json!([{"size": size, "maxSize": 4, "peer": ground.provider()}]);
    root.create("river", ground.bursting(2, clusters(3))).await;
    root.burst("river", "river-burst-0", BurstPhase::Ready).await;
    until_up(root, "river", "0-4").await;

    if real("jobs across both clusters") {
        jobs_run_across(root).await;
    }

    // A pod that dies: its successor takes its rank. The gateway of the burst is the hardest.
    for index in [2, 0] {
        let before = pod(provider, "river-burst-0", index).await.unwrap();
        provider.pods().delete(&before.name_any(), &DeleteParams::default()).await.unwrap();
        eventually(format!("index {index} runs again"), async || {
            let now = pod(provider, "river-burst-0", index).await?;
            if now.uid() == before.uid() { Err("the old pod is there".to_owned()) } else { Ok(()) }
        })
        .await;
        until_up(root, "river", "0-4").await;
    }

    // Smaller and larger again, under a running instance.
    root.change("river", json!({"flux": {"bursting": {"clusters": clusters(1)}}})).await;
    until_up(root, "river", "0-2").await;
    eventually("the pods are gone", async || match pod(provider, "river-burst-0", 2).await {
        Ok(_) => Err("index 2 has a pod".to_owned()),
        Err(_) => Ok(()),
    })
    .await;
    root.change("river", json!({"flux": {"bursting": {"clusters": clusters(4)}}})).await;
    until_up(root, "river", "0-5").await;
    root.burst("river", "river-burst-0", BurstPhase::Ready).await;
    assert_eq!(ranks_up(root, "river").await.unwrap(), "0-5");

    root.delete("river").await;
    provider.empty("river-burst-0").await;
    ground.leave(&places).await;
}

async fn jobs_run_across(root: &Place) {
    let hosts = in_lead(root, "river", "flux run -N5 hostname").await.unwrap();
    let mut hosts: Vec<&str> = hosts.split_whitespace().collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["river-0", "river-1", "river-burst-0-0", "river-burst-0-1", "river-burst-0-2"]);
    let hosts = in_lead(root, "river", "flux run -N3 --requires=burst-river-burst-0 hostname").await.unwrap();
    assert!(hosts.split_whitespace().all(|host| host.starts_with("river-burst-0-")), "{hosts}");
}
