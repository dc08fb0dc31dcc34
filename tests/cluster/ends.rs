//! The ends of the tunnel: on both sides of a burst that uses it, for as long as its MiniClusters.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::Api;
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::names;
use tributary_tests::agent::ENDS;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{places, together};

fn maps(place: &Place) -> Api<ConfigMap> {
    Api::namespaced(place.client.clone(), &place.namespace)
}

/// Whether the Job's pods mount the program.
async fn mounts(place: &Place, name: &str) -> bool {
    let job = Api::<Job>::namespaced(place.client.clone(), &place.namespace).get(name).await.unwrap();
    let pod = job.spec.unwrap().template.spec.unwrap();
    let map = names::ends(name);
    pod.volumes.iter().flatten().any(|volume| volume.config_map.as_ref().is_some_and(|source| source.name == map))
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_of_a_tunnel_have_its_ends_and_they_go_with_their_mini_clusters() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "ends").await;
    let mut spec = bursting(1, json!([{"size": 1, "peer": "west"}]));
    spec["flux"]["bursting"]["network"] = json!({"type": "Tunnel"});
    east.create("firth", spec).await;
    east.create("tarn", bursting(1, json!([{"size": 1, "peer": "nobody"}]))).await;
    east.burst("firth", "firth-burst-0", BurstPhase::Accepted).await;
    for (place, name) in [(&east, "firth"), (&west, "firth-burst-0")] {
        let map = eventually(format!("{name} has ends"), async || {
            maps(place).get(&names::ends(name)).await.map_err(|error| error.to_string())
        })
        .await;
        let program = &map.binary_data.as_ref().unwrap()["tributary-ends"];
        assert_eq!(program.0, ENDS.as_bytes());
        assert!(!map.labels().contains_key("app.kubernetes.io/managed-by"), "agents do not list it");
        eventually(format!("{name} has a Job"), async || {
            let job = Api::<Job>::namespaced(place.client.clone(), &place.namespace).get_opt(name).await;
            job.ok().flatten().map(drop).ok_or_else(|| "it has none".to_owned())
        })
        .await;
        assert!(mounts(place, name).await);
    }
    east.running("tarn").await;
    assert!(!mounts(&east, "tarn").await, "not by the tunnel");
    assert!(maps(&east).get_opt(&names::ends("tarn")).await.unwrap().is_none());

    east.delete("firth").await;
    for (place, name) in [(&east, "firth"), (&west, "firth-burst-0")] {
        gone(&maps(place), &names::ends(name)).await;
    }
}
