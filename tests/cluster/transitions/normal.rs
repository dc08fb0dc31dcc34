//! Objects without what differs from one making to the next: two that are made alike are equal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::eyes::Key;

/// What there is of a namespace, by cluster, kind and name.
pub(super) type Picture = BTreeMap<String, Value>;

/// Annotations that say when or by which making.
const ANNOTATIONS: [&str; 6] = [
    "tributary.dev/boot",
    "tributary.dev/restart",
    "tributary.dev/incarnation",
    "tributary.dev/traceparent",
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.daemonset.template.generation",
];

/// Fields whose values are of one making.
const FIELDS: [&str; 33] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "lastTransitionTime",
    "observedGeneration",
    "nodePort",
    "clusterIP",
    "clusterIPs",
    "nodeName",
    "incarnation",
    "instanceRestarts",
    "restartHandled",
    "startTime",
    "startedAt",
    "finishedAt",
    "lastHeartbeatTime",
    "lastProbeTime",
    "credentialRecipients",
    "began",
    "admitted",
    "since",
    "offered",
    "placedAt",
    "times",
    "spent",
    "used",
    "bursts_spent",
    "burstsSpent",
    "acknowledgedGeneration",
    "podIPs",
    "peerCount",
];

/// What `flux.container` is where nothing is written: the spec of a burst has it as its root's user wrote it.
const FLUX_CONTAINER: [(&str, &str); 3] = [
    ("image", "ghcr.io/converged-computing/flux-view-ubuntu:tag-noble"),
    ("mountPath", "/mnt/flux"),
    ("name", "flux-view"),
];

/// The picture of what is there, without another MiniCluster and what is its.
pub(super) fn picture(objects: &BTreeMap<Key, Value>, namespace: &str, but: &str) -> Picture {
    let mut picture = Picture::new();
    let mut pods: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((cluster, _, kind, name), object) in objects {
        if name == but || name.starts_with(&format!("{but}-")) || object["metadata"]["deletionTimestamp"].is_string() {
            continue;
        }
        let mut object = object.clone();
        let labels = object["metadata"]["labels"].clone();
        match *kind {
            // Kubernetes' own follow the Services.
            "EndpointSlice" if labels["endpointslice.kubernetes.io/managed-by"] != "tributary" => continue,
            "Pod" => {
                let phase = object["status"]["phase"].as_str().unwrap_or_default().to_owned();
                if ["Failed", "Succeeded"].contains(&phase.as_str()) {
                    continue;
                }
                object["status"] = json!({ "phase": phase });
                if let Some(job) =
                    labels["job-name"].as_str().filter(|_| labels["batch.kubernetes.io/controller-uid"].is_string())
                {
                    pods.entry(format!("{cluster} Pods of {job}")).or_default().push(phase);
                    continue;
                }
            }
            "Job" => {
                let status = &object["status"];
                object["status"] = json!({ "active": status["active"], "ready": status["ready"] });
            }
            "Secret" => {
                let keys: Vec<String> =
                    object["data"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
                object["data"] = json!(keys);
            }
            "Service" | "PersistentVolumeClaim" | "PersistentVolume" => object["status"] = Value::Null,
            _ => {}
        }
        clean(&mut object, namespace);
        let text = text(name, namespace);
        picture.insert(format!("{cluster} {kind} {text}"), object);
    }
    for (job, mut phases) in pods {
        phases.sort();
        picture.insert(job, json!(phases));
    }
    picture
}

fn clean(value: &mut Value, namespace: &str) {
    match value {
        Value::Object(map) => {
            map.retain(|key, below| !FIELDS.contains(&key.as_str()) && !below.is_null());
            if let Some(Value::Object(annotations)) = map.get_mut("annotations") {
                annotations.retain(|key, _| !ANNOTATIONS.contains(&key.as_str()));
            }
            if let Some(Value::String(message)) = map.get_mut("message") {
                *message = message.split(' ').map(duration).collect::<Vec<_>>().join(" ");
            }
            if let Some(Value::Object(flux)) = map.get_mut("flux")
                && let Some(Value::Object(container)) = flux.get_mut("container")
            {
                container.retain(|key, below| {
                    *below != false && !FLUX_CONTAINER.contains(&(key, below.as_str().unwrap_or_default()))
                });
            }
            if let Some(Value::Object(lead)) = map.get_mut("lead") {
                lead.remove("pod");
            }
            if let Some(Value::Array(conditions)) = map.get_mut("conditions") {
                // What is said once something was wrong, and is not any more, and whose count of usage lags behind.
                let is_of_one_making = |one: &Value| match one["type"].as_str().unwrap_or_default() {
                    "InstanceRestarted" | "UsageAgrees" => true,
                    "Delivered" | "LeadAddress" => one["status"] == "True",
                    _ => false,
                };
                conditions.retain(|one| !is_of_one_making(one));
                conditions.sort_by_key(|one| one["type"].to_string());
            }
            let cleaned: Map<String, Value> = std::mem::take(map)
                .into_iter()
                .map(|(key, mut below)| {
                    clean(&mut below, namespace);
                    (text(&key, namespace), below)
                })
                .filter(|(_, below)| *below != json!({}))
                .collect();
            *map = cleaned;
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clean(item, namespace)),
        Value::String(words) => *words = text(words, namespace),
        Value::Number(number) if number.as_u64().is_some_and(|number| (30000..32768).contains(&number)) => {
            *value = json!("PORT");
        }
        _ => {}
    }
}

/// A text with words for what is of one making: namespaces, UIDs, digests, times, addresses, ports of nodes.
fn text(words: &str, namespace: &str) -> String {
    let words = words.replace(namespace, "NAMESPACE");
    let (mut text, mut word) = (String::new(), String::new());
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-:.".contains(letter);
    for letter in words.chars().chain(['\0']) {
        if is_part(letter) {
            word.push(letter);
            continue;
        }
        text += &one_word(&std::mem::take(&mut word));
        text.push(letter);
    }
    text.pop();
    text
}

/// How long something took, and when it is tried again, is of one making, too.
fn duration(word: &str) -> &str {
    let is_time = word.split(':').count() == 3 && word.split(':').all(|part| part.parse::<u8>().is_ok());
    if is_time || word.contains('.') && word.parse::<f64>().is_ok() { "NUMBER" } else { word }
}

fn one_word(word: &str) -> String {
    let hex = |part: &str| part.chars().all(|letter| letter.is_ascii_hexdigit());
    let trimmed = word.trim_end_matches(['.', ':', '-']);
    let rest = &word[trimmed.len()..];
    let is_uid =
        trimmed.len() == 36 && trimmed.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && trimmed.split('-').all(hex);
    let is_time =
        trimmed.len() >= 20 && trimmed.ends_with('Z') && trimmed.as_bytes()[4] == b'-' && trimmed.contains(":");
    let last = trimmed.rsplit(':').next().unwrap_or_default();
    if trimmed.starts_with("kube-api-access-") {
        return format!("kube-api-access{rest}");
    }
    if is_uid {
        return format!("UID{rest}");
    }
    if is_time {
        return format!("TIME{rest}");
    }
    if last.len() >= 16 && hex(last) {
        return format!("DIGEST{rest}");
    }
    if last.len() == 5 && last.parse::<u32>().is_ok_and(|port| (30000..32768).contains(&port)) {
        return format!("PORT{rest}");
    }
    let address = trimmed.split(':').next().unwrap_or_default();
    if address
        .parse::<std::net::Ipv4Addr>()
        .is_ok_and(|address| address.octets()[..2] == [10, 0] || address.is_private())
    {
        return format!("ADDRESS{rest}");
    }
    word.to_owned()
}

/// Where two pictures differ, with both values.
pub(super) fn differences(old: &Picture, new: &Picture) -> Vec<(String, Value, Value)> {
    let mut found = Vec::new();
    for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        below(name.clone(), old.get(name).unwrap_or(&Value::Null), new.get(name).unwrap_or(&Value::Null), &mut found);
    }
    found
}

fn below(path: String, old: &Value, new: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let (old, new) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
                below(format!("{path}.{key}"), old, new, found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                below(format!("{path}[{index}]"), old, new, found);
            }
        }
        _ if old != new => found.push((path, old.clone(), new.clone())),
        _ => {}
    }
}

/// Differences as one line each, the first few.
pub(super) fn told(differences: &[(String, Value, Value)]) -> String {
    let short = |value: &Value| -> String {
        let text = value.to_string();
        if text.chars().count() > 220 { text.chars().take(220).chain(['…']).collect() } else { text }
    };
    let lines: Vec<String> = differences
        .iter()
        .take(5)
        .map(|(path, old, new)| format!("{path}: {} -> {}", short(old), short(new)))
        .collect();
    format!(
        "{}{}",
        lines.join("\n      "),
        if differences.len() > 5 { format!(" (+{})", differences.len() - 5) } else { String::new() }
    )
}
