//! Rules of `pod` and of labels: what Kubernetes would refuse once the objects are made.

use k8s_openapi::api::core::v1::Toleration;
use tributary_api::minicluster::{MiniClusterSpec, PodSpec};

use super::{Problem, names, reason, resources};

/// <https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy>
const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];

/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn problems(spec: &MiniClusterSpec) -> Vec<Problem> {
    let pod = &spec.pod;
    let mut problems = Vec::new();
    for (path, labels) in [
        ("spec.jobLabels", &spec.job_labels),
        ("spec.pod.labels", &pod.labels),
        ("spec.pod.nodeSelector", &pod.node_selector),
    ] {
        problems.extend(names::labels(path, labels));
    }
    problems.extend(pod.annotations.keys().filter_map(|key| names::key("spec.pod.annotations", key)));
    for (key, values) in &pod.node_affinity {
        problems.extend(names::key("spec.pod.nodeAffinity", key));
        if values.is_empty() {
            let message = "no value is written: list the values of the label that nodes may have";
            problems.push(Problem::new(format!("spec.pod.nodeAffinity.{key}"), reason::MISSING_FIELD, message));
        }
    }
    for (field, name) in [
        ("serviceAccountName", &pod.service_account_name),
        ("runtimeClassName", &pod.runtime_class_name),
        ("priorityClassName", &pod.priority_class_name),
        ("schedulerName", &pod.scheduler_name),
    ] {
        problems.extend(names::object(&format!("spec.pod.{field}"), name.as_deref()));
    }
    for (index, toleration) in pod.tolerations.iter().enumerate() {
        problems.extend(toleration_problem(toleration, &format!("spec.pod.tolerations[{index}]")));
    }
    problems.extend(dns_problem(pod));
    problems.extend(overhead_problems(pod));
    problems.extend(claim_problems(pod));
    if pod.host_pid && spec.share_process_namespace {
        let message =
            "hostPID and shareProcessNamespace exclude each other: with hostPID all processes of the node are seen";
        problems.push(Problem::new("spec.shareProcessNamespace", reason::CONFLICTING_FIELDS, message));
    }
    problems
}

fn toleration_problem(toleration: &Toleration, path: &str) -> Option<Problem> {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let refuse = |field: &str, reason, message: String| Some(Problem::new(format!("{path}.{field}"), reason, message));
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let operator = operator.as_deref().filter(|operator| !operator.is_empty()).unwrap_or("Equal");
    match operator {
        "Exists" if is_set(value) => {
            let message = "a value is compared with the operator Equal only: remove it, or write Equal".to_owned();
            return refuse("value", reason::CONFLICTING_FIELDS, message);
        }
        "Equal" if !is_set(key) => {
            let message = "key is missing: write it, or the operator Exists to tolerate every taint".to_owned();
            return refuse("key", reason::MISSING_FIELD, message);
        }
        "Equal" | "Exists" | "Lt" | "Gt" => {}
        other => {
            return refuse(
                "operator",
                reason::INVALID_VALUE,
                format!("{other:?} is no operator: write Equal or Exists"),
            );
        }
    }
    let effect = effect.as_deref().filter(|effect| !effect.is_empty());
    if let Some(effect) = effect.filter(|effect| !EFFECTS.contains(effect)) {
        let message = format!("{effect:?} is no effect of a taint: write {}, or nothing for all", EFFECTS.join(", "));
        return refuse("effect", reason::INVALID_VALUE, message);
    }
    if toleration_seconds.is_some() && effect != Some("NoExecute") {
        let message = "tolerationSeconds counts from the eviction by a taint: write the effect NoExecute".to_owned();
        return refuse("tolerationSeconds", reason::CONFLICTING_FIELDS, message);
    }
    None
}

fn dns_problem(pod: &PodSpec) -> Option<Problem> {
    let policy = pod.dns_policy.as_deref()?;
    if !DNS_POLICIES.contains(&policy) {
        let message = format!("{policy:?} is no DNS policy: write {}", DNS_POLICIES.join(", "));
        return Some(Problem::new("spec.pod.dnsPolicy", reason::INVALID_VALUE, message));
    }
    let servers = pod.dns_config.nameservers.as_ref().is_some_and(|servers| !servers.is_empty());
    (policy == "None" && !servers).then(|| {
        let message = "with the DNS policy None the pods know no name server: write pod.dnsConfig.nameservers";
        Problem::new("spec.pod.dnsConfig", reason::MISSING_FIELD, message)
    })
}

/// Admission refuses every pod with an overhead that no runtime class declares: the Job would wait for ever.
fn overhead_problems(pod: &PodSpec) -> Vec<Problem> {
    let mut problems = resources::amounts("spec.pod.resources", &pod.resources);
    if !pod.resources.is_empty() && pod.runtime_class_name.is_none() {
        let message = "an overhead of pods needs a runtime class that declares the same: write pod.runtimeClassName, or put \
                       what a container needs into its own resources";
        problems.push(Problem::new("spec.pod.resources", reason::MISSING_FIELD, message));
    }
    problems
}

fn claim_problems(pod: &PodSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, claim) in pod.resource_claims.iter().enumerate() {
        if claim.resource_claim_name.is_some() == claim.resource_claim_template_name.is_some() {
            let message = "write either resourceClaimName or resourceClaimTemplateName";
            let field = format!("spec.pod.resourceClaims[{index}]");
            problems.push(Problem::new(field, reason::CONFLICTING_FIELDS, message));
        }
    }
    problems
}
