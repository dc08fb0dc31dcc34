//! Objects without what their users have written into them. Pure.
//!
//! What is kept is listed, not what is left out: a field that nobody has thought of stays out.

use serde_json::{Map, Value};

/// What stands in the place of a text that is left out.
const LEFT_OUT: &str = "(left out)";

/// Texts below `spec` (and beside it) that are kept: names of objects and images, and words of Kubernetes and Flux.
const TEXTS: &str = "\
    access address addressType addresses apiGroup apiGroups apiVersion arch burstUID claimName clusterDomain \
    clusterIP clusterIPs clusterUID completionMode configMapName containerID credentialDigest credentialSecret \
    csiDriver effect endpoints externalTrafficPolicy headlessName hostname image imagePullPolicy incarnation ip \
    ipFamilies ipFamilyPolicy key kind lastTimestamp firstTimestamp eventTime message name namespace namespaces \
    nodeName operator peer peers phase podReplacementPolicy podSecurity preferredAddressTypes protocol rankMap \
    rankMapDigest reason restartPolicy root rootClusterUID schedulerName serviceAccountName slot targetNamespace \
    topology type uid";

/// Whole subtrees that are kept: amounts, labels, and what controllers report.
const SUBTREES: &str =
    "allocatable capacity hard involvedObject limits matchLabels nodeSelector ports requests resources status used";

/// Maps whose keys are the user's own, and could be any of the words above.
const OWN_KEYS: [&str; 6] =
    ["environment", "exports", "attributes", "csiDriverAttributes", "claimAnnotations", "annotations"];

/// Metadata that is kept.
const METADATA: [&str; 8] =
    ["creationTimestamp", "deletionTimestamp", "finalizers", "generation", "labels", "name", "namespace", "uid"];

/// The same, of maps whose values are objects: what is in those is judged by its own keys.
const OWN_NAMES: [&str; 2] = ["volumes", "secrets"];

/// An object as it may be shown to somebody who helps.
pub(super) fn object(object: &Value) -> Value {
    let Value::Object(fields) = object else { return Value::Null };
    let keep = |(key, value): (&String, &Value)| {
        let value = match key.as_str() {
            "metadata" => metadata(value),
            // Nothing in it is for others.
            "data" | "stringData" | "binaryData" => keys_only(value),
            // Nodes are what an administrator has made, not a user.
            "spec" if is(fields, "Node") => value.clone(),
            "status" if is(fields, "Pod") => pod_status(value),
            "status" if is(fields, "Burst") => burst_status(value),
            // Nodes quote commands, and what probes have said.
            "message" if is_of_kubelet(fields) => LEFT_OUT.into(),
            _ => below(key, value),
        };
        (key.clone(), value)
    };
    Value::Object(fields.iter().map(keep).collect())
}

fn is(fields: &Map<String, Value>, kind: &str) -> bool {
    fields.get("kind").and_then(Value::as_str) == Some(kind)
}

/// Whether an event tells how a container started or ran.
fn is_of_kubelet(event: &Map<String, Value>) -> bool {
    const TELLS: [&str; 6] =
        ["BackOff", "Failed", "FailedPostStartHook", "FailedPreStopHook", "ProbeWarning", "Unhealthy"];
    is(event, "Event") && event.get("reason").and_then(Value::as_str).is_some_and(|reason| TELLS.contains(&reason))
}

/// Without what containers wrote at their end (`terminationMessagePath`), and commands that their nodes quote.
fn pod_status(status: &Value) -> Value {
    let mut status = status.clone();
    for of in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        let containers = status.get_mut(of).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for state in ["/state/terminated", "/state/waiting", "/lastState/terminated", "/lastState/waiting"] {
                if let Some(message) = container.pointer_mut(&format!("{state}/message")) {
                    *message = LEFT_OUT.into();
                }
            }
        }
    }
    status
}

/// Without the user's part of the spec that it repeats.
fn burst_status(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(frozen) = status.get_mut("frozen") {
        *frozen = below("spec", frozen);
    }
    status
}

fn metadata(value: &Value) -> Value {
    let Value::Object(fields) = value else { return Value::Null };
    let kept = fields.iter().filter(|(key, _)| METADATA.contains(&key.as_str()));
    let mut kept: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    if let Some(annotations) = fields.get("annotations") {
        kept.insert("annotations".to_owned(), keys_only(annotations));
    }
    if let Some(owners) = fields.get("ownerReferences") {
        kept.insert("ownerReferences".to_owned(), below("ownerReferences", owners));
    }
    Value::Object(kept)
}

fn keys_only(value: &Value) -> Value {
    let Value::Object(fields) = value else { return LEFT_OUT.into() };
    Value::Object(fields.keys().map(|key| (key.clone(), LEFT_OUT.into())).collect())
}

fn below(key: &str, value: &Value) -> Value {
    if OWN_KEYS.contains(&key) && value.is_object() {
        return keys_only(value);
    }
    if let (true, Value::Object(named)) = (OWN_NAMES.contains(&key), value) {
        return Value::Object(named.iter().map(|(name, value)| (name.clone(), below("", value))).collect());
    }
    if SUBTREES.split(' ').any(|kept| kept == key) {
        return value.clone();
    }
    match value {
        Value::String(_) if TEXTS.split(' ').any(|kept| kept == key) => value.clone(),
        Value::String(_) => LEFT_OUT.into(),
        Value::Array(items) => Value::Array(items.iter().map(|item| below(key, item)).collect()),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), below(key, value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "hunter2";

    /// `SECRET` in every place where users write texts.
    fn planted() -> Vec<Value> {
        let pod = json!({
            "nodeName": "node-1",
            "containers": [{"name": "app", "image": "ghcr.io/lab/app:1", "command": ["sh", "-c", SECRET], "args": [SECRET],
                "env": [{"name": "TOKEN", "value": SECRET}], "resources": {"limits": {"cpu": "2"}},
                "livenessProbe": {"exec": {"command": [SECRET]}, "httpGet": {"httpHeaders": [{"name": "a", "value": SECRET}]}}}],
        });
        let metadata = json!({
            "name": "lake", "namespace": "flux", "labels": {"app": "flux-operator"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "tributary.dev/boot": SECRET},
            "managedFields": [{"manager": SECRET}],
        });
        let spec = json!({
            "size": 4,
            "containers": [{"image": "app", "command": SECRET, "environment": {"TOKEN": SECRET, "key": SECRET, "status": SECRET}, "batch": true,
                "preCommand": SECRET, "commands": {"pre": SECRET, "init": SECRET}, "launcher": false,
                "lifeCycle": {"postStartExec": SECRET}, "volumes": {"a": {"hostPath": SECRET}, "resources": {"csiDriverAttributes": {"password": SECRET}}}}],
            "flux": {"curveCert": SECRET, "brokerConfig": SECRET, "optionFlags": SECRET, "wrap": SECRET,
                "environment": {"TOKEN": SECRET}, "bursting": {"clusters": [{"name": "gpu", "peer": "west"}]}},
            "users": [{"name": "a", "password": SECRET}],
            "fluxRestful": {"port": 5000, "token": SECRET, "secretKey": SECRET},
            "volumes": {"data": {"capacity": "5Gi", "attributes": {"key": SECRET}, "annotations": {"address": SECRET}},
                "used": {"attributes": {"key": SECRET}}, "status": {"path": SECRET}},
        });
        let told = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": SECRET},
            "waiting": {"reason": "CreateContainerError", "message": SECRET}});
        let containers = json!([{"name": "app", "restartCount": 1, "state": told, "lastState": told}]);
        let status = json!({"phase": "Running", "containerStatuses": containers, "initContainerStatuses": containers,
            "ephemeralContainerStatuses": containers});
        vec![
            json!({"kind": "Pod", "metadata": metadata, "spec": pod, "status": status}),
            json!({"kind": "MiniCluster", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}),
            json!({"kind": "Burst", "metadata": metadata, "spec": {"slot": "gpu", "template": spec},
                "status": {"phase": "Ready", "frozen": {"slot": "gpu", "template": spec}}}),
            json!({"kind": "Job", "metadata": metadata, "spec": {"parallelism": 4, "template": {"metadata": metadata, "spec": pod}}}),
            json!({"kind": "Event", "metadata": metadata, "reason": "Failed", "message": format!("exec: {SECRET}: not found"),
                "involvedObject": {"kind": "Pod", "name": "lake-0-x"}}),
            json!({"kind": "ConfigMap", "metadata": metadata, "data": {"script": SECRET}}),
            json!({"kind": "Secret", "metadata": metadata, "data": {"key": SECRET}, "stringData": {"key": SECRET}}),
        ]
    }

    #[test]
    fn no_planted_secret_gets_in_and_what_helps_does() {
        for object in planted() {
            let text = super::object(&object).to_string();
            assert!(object.to_string().contains(SECRET) && !text.contains(SECRET), "{text}");
        }
        insta::assert_json_snapshot!(planted().iter().map(super::object).collect::<Vec<_>>());
    }
}
