//! Bursts whose nodes are asked for before there are pods.

use super::*;

/// In the provider's cluster, with the status of the HostedBurst.
fn hosted(status: Value) -> Found {
    let asks = json!({"nodes": [{"group": "large", "count": 2}], "wait": "15m",
        "provisioningRequest": {"provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}});
    let hosted = json!({
        "metadata": {"name": "lake-burst-0", "namespace": "flux", "uid": "h"},
        "spec": {"peer": "east", "root": {"name": "lake", "namespace": "flux"}, "slot": "lake-burst-0", "lease": "300s",
            "scaleUp": asks},
        "status": status,
    });
    Found { hosted: Some(of(hosted)), ..Found::default() }
}

#[test]
fn nodes_are_asked_for_or_refused() {
    let asked = "nodes for 3 pods are asked for before these are made (ProvisioningRequest flux/lake-burst-0-scale-up is \
                 Requested: an autoscaler has accepted it); if not all have one by 2026-01-01T00:15:00Z, it is given back";
    let refused = "ProvisioningRequest flux/lake-burst-0-scale-up is Failed: CA could not find requested capacity \
                   (CapacityIsNotFound)";
    let here = [
        (
            "asked for, in the provider's cluster",
            hosted(json!({"phase": "ScalingUp", "credentialReady": true, "message": asked,
                "provisioning": {"outcome": "Requested", "message": "an autoscaler has accepted it"}})),
        ),
        (
            "refused, in the provider's cluster",
            hosted(json!({"phase": "Draining", "credentialReady": true, "drainingReason": "ScaleUpFailed",
                "message": format!("leaving: {refused}: it is given back")})),
        ),
    ];
    let message = format!("no nodes are provisioned for it; {refused}: it was given back");
    let root = [
        (
            "asked for, in the root's cluster",
            bursting(
                json!({}),
                json!({"phase": "ScalingUp", "peer": "west", "message": format!("west: {asked}"),
                "conditions": [said("Admitted", "True", "Admitted", "west takes it")]}),
            ),
        ),
        (
            "refused, in the root's cluster",
            bursting(
                json!({}),
                json!({"phase": "Rejected", "message": format!("west refused (ScaleUpFailed): {message}"),
                "refusals": [{"peer": "west", "reason": "ScaleUpFailed", "message": message, "generation": 2}]}),
            ),
        ),
    ];
    let mut texts: Vec<_> = here.iter().map(|(case, found)| shown(case, &mini_cluster::explain(found))).collect();
    texts.extend(root.iter().map(|(case, found)| shown(case, &burst::explain(found, "lake-burst-0"))));
    insta::assert_snapshot!(texts.join("\n\n"));
}
