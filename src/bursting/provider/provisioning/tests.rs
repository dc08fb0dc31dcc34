use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use tributary_api::duration::Lasting;
use tributary_api::node_group::ScaleUp;

use super::*;
use crate::provider::admission::tests::offer;
use crate::template::BurstTemplate;

#[test]
fn what_the_conditions_of_a_request_say() {
    let said = |type_: &str, status: &str, reason: &str, message: &str| -> Condition {
        serde_json::from_value(json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .unwrap()
    };
    let accepted = || said("Accepted", "True", "Accepted", "ProvisioningRequest is accepted by ClusterAutoscaler");
    let provisioned = || said("Provisioned", "True", "CapacityIsFound", "Capacity is found in the cluster");
    let later =
        || said("Provisioned", "False", "CapacityIsNotFound", "Capacity is not found, CA will try to find it later.");
    let found = "Capacity is found in the cluster (CapacityIsFound)".to_owned();
    let table = [
        ("nobody", vec![], Answer::Waits("no autoscaler has answered yet".into())),
        ("accepted", vec![accepted()], Answer::Waits("an autoscaler has accepted it".into())),
        (
            "not yet",
            vec![accepted(), later()],
            Answer::Waits("Capacity is not found, CA will try to find it later. (CapacityIsNotFound)".into()),
        ),
        ("provisioned", vec![accepted(), provisioned()], Answer::Provisioned(found.clone())),
        (
            "not failed",
            vec![provisioned(), said("Failed", "False", "Fine", ""), said("BookingExpired", "False", "Fine", "")],
            Answer::Provisioned(found),
        ),
        (
            "not accepted",
            vec![said("Accepted", "False", "Busy", "")],
            Answer::Waits("no autoscaler has answered yet".into()),
        ),
        (
            "expired",
            vec![provisioned(), said("BookingExpired", "True", "CapacityReservationTimeExpired", "")],
            Answer::Expired("CapacityReservationTimeExpired".into()),
        ),
        (
            "failed, though it was provisioned",
            vec![provisioned(), said("Failed", "True", "FailedToBookCapacity", "Couldn't create pods")],
            Answer::Ended { word: "Failed", message: "Couldn't create pods (FailedToBookCapacity)".into() },
        ),
        (
            "revoked",
            vec![
                provisioned(),
                said("BookingExpired", "True", "Late", ""),
                said("CapacityRevoked", "True", "Taken", ""),
            ],
            Answer::Ended { word: "CapacityRevoked", message: "Taken".into() },
        ),
        ("of a newer version", vec![said("Lovely", "True", "So", "")], Answer::of(&[])),
    ];
    for (case, conditions, expected) in table {
        assert_eq!(Answer::of(&conditions), expected, "{case}");
    }
}

/// The request as cluster-autoscaler reads it, and pods that use its nodes.
#[test]
fn a_request_names_its_class_and_what_its_pods_look_like() {
    let template = BurstTemplate::parse(&offer().template).unwrap();
    let mut hosted = materialize::hosted_burst("flux", &"east".into(), &"uid".into(), &offer(), &template);
    hosted.metadata.uid = Some("hosted-uid".into());
    assert_eq!(annotations(&hosted.spec), BTreeMap::new());
    let class = ProvisioningClass {
        provisioning_class_name: "check-capacity.autoscaling.x-k8s.io".into(),
        parameters: [("noRetry".to_owned(), "true".to_owned())].into(),
    };
    hosted.spec.scale_up =
        Some(ScaleUp { nodes: Vec::new(), wait: Lasting::of_seconds(60), provisioning_request: Some(class.clone()) });
    let request = serde_json::to_value(request(&hosted, &class)).unwrap();
    assert_eq!(
        request["spec"],
        json!({"provisioningClassName": "check-capacity.autoscaling.x-k8s.io", "parameters": {"noRetry": "true"},
            "podSets": [{"podTemplateRef": {"name": "lake-burst-0-scale-up"}, "count": 3}]})
    );
    let owner = json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst", "name": "lake-burst-0",
        "uid": "hosted-uid", "controller": true}]);
    let pod: PodTemplateSpec = serde_json::from_value(json!({"spec": {"containers": [{"name": "app"}]}})).unwrap();
    let template = serde_json::to_value(pod_template(&hosted, pod)).unwrap();
    assert_eq!(template["template"]["spec"]["containers"][0]["name"], "app");
    for object in [&request, &template] {
        let metadata: &Value = &object["metadata"];
        assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("lake-burst-0-scale-up"), &json!("flux")));
        assert_eq!(
            (&metadata["ownerReferences"], &metadata["labels"]["tributary.dev/slot"]),
            (&owner, &json!("lake-burst-0"))
        );
    }
}
