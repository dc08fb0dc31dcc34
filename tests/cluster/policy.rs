//! What a provider lets in.

use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{alone, places, together};

/// The reason of a refusal, and that the root is unaffected.
async fn refused(root: &Place, provider: &Place, name: &str) -> (String, String) {
    let slot = format!("{name}-burst-0");
    let burst = root.burst(name, &slot, BurstPhase::Rejected).await;
    let refusal = burst.status.unwrap().refusals.remove(0);
    root.running(name).await;
    assert!(provider.left(&slot).await.unwrap().is_empty(), "something was made of a burst that was refused");
    (refusal.reason, refusal.message)
}

#[tokio::test(flavor = "multi_thread")]
async fn references_to_objects_of_the_provider_are_refused_unless_named() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "policy").await;
    let volume = |volume: Value| {
        let mut spec = bursting(1, json!([{"size": 1, "peer": "west"}]));
        spec["containers"][0]["volumes"] = json!({"data": volume});
        spec
    };
    let mut account = bursting(1, json!([{"size": 1, "peer": "west"}]));
    account["pod"] = json!({"serviceAccountName": "cluster-admin"});
    let cases = [
        ("secret", volume(json!({"path": "/stolen", "secretName": "database"})), "secretName"),
        ("hostpath", volume(json!({"path": "/host", "hostPath": "/etc"})), "hostPath"),
        ("account", account, "serviceAccountName"),
    ];
    for (name, spec, field) in cases {
        // The root's own pods are its own cluster's matter; there they would wait for the Secret.
        let root = format!("bad-{name}");
        east.create(&root, spec).await;
        let slot = format!("{root}-burst-0");
        let burst = east.burst(&root, &slot, BurstPhase::Rejected).await;
        let refusal = burst.status.unwrap().refusals.remove(0);
        assert!(
            ["PolicyForbids", "PodSecurity"].contains(&refusal.reason.as_str()),
            "{root}: {} {}",
            refusal.reason,
            refusal.message
        );
        assert!(refusal.message.contains(field), "{root}: {}", refusal.message);
        assert!(west.left(&slot).await.unwrap().is_empty());
        east.delete(&root).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_forbids_is_a_reason_and_a_changed_policy_is_another_chance() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "limits").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    let import = async |import: Value| {
        let patch = Patch::Merge(json!({"spec": {"import": import}}));
        peers.patch("east", &PatchParams::default(), &patch).await.unwrap();
    };
    import(json!({"maxBrokers": 1})).await;
    east.create("greedy", bursting(1, json!([{"size": 2, "peer": "west"}]))).await;
    let (reason, message) = refused(&east, &west, "greedy").await;
    assert_eq!(reason, "TooManyBrokers", "{message}");
    import(Value::Null).await;
    east.create("hopeful", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    assert_eq!(refused(&east, &west, "hopeful").await.0, "ImportNotAllowed");
    import(json!({"namespaces": ["*"], "maxBrokers": null})).await;
    east.create("welcome", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    east.burst("welcome", "welcome-burst-0", BurstPhase::Ready).await;
    for root in ["greedy", "hopeful", "welcome"] {
        east.delete(root).await;
        west.empty(&format!("{root}-burst-0")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_cores_than_any_node_has_are_refused() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "cores").await;
    east.create("broad", bursting(1, json!([{"size": 1, "peer": "west", "cores": 500}]))).await;
    assert_eq!(refused(&east, &west, "broad").await.0, "NotEnoughCores");
    east.delete("broad").await;
}
