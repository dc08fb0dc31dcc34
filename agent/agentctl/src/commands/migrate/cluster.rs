//! What is about the cluster as a whole: the operator, the definition, quotas.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::ResourceExt;
use tributary::render::quantity;

use super::fetch::Found;
use super::report::{DefinitionRow, Finding, OperatorRow, Severity};
use crate::kubernetes::DEFINITION;

/// The oldest Kubernetes whose Jobs can do what instances need.
const OLDEST_MINOR: u32 = 33;

/// The Flux Operator's Deployments: by their image, whatever they are called.
pub(super) fn operators(found: &Found) -> Vec<OperatorRow> {
    found.deployments.iter().filter_map(operator).collect()
}

fn operator(deployment: &Deployment) -> Option<OperatorRow> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let runs = |image: &str| {
        let path = image.split(['@']).next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        ["flux-operator", "flux-operator-arm"].contains(&last.split(':').next().unwrap_or_default())
            // Another operator of this name, for another Flux.
            && !path.contains("controlplaneio")
    };
    let container = pod.containers.iter().find(|container| container.image.as_deref().is_some_and(runs))?;
    let arguments = container.command.iter().chain(&container.args).flatten();
    Some(OperatorRow {
        namespace: deployment.namespace().unwrap_or_default(),
        name: deployment.name_any(),
        image: container.image.clone().unwrap_or_default(),
        replicas: deployment.spec.as_ref()?.replicas.unwrap_or(1),
        leader_election: arguments
            .map(|word| word.trim_start_matches('-'))
            .any(|word| word == "leader-elect" || word == "leader-elect=true"),
        helm_release: deployment.annotations().get("meta.helm.sh/release-name").cloned(),
    })
}

/// The definition of MiniClusters.
pub(super) fn definition(found: &Found) -> Option<DefinitionRow> {
    let definition = found.definition.as_ref()?;
    let status = definition.status.as_ref();
    let version = definition.spec.versions.iter().find(|version| version.name == "v1alpha2");
    let spec = version.and_then(|version| {
        let root = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
        root.properties.as_ref()?.get("spec")?.properties.clone()
    });
    Some(DefinitionRow {
        served: definition.spec.versions.iter().filter(|one| one.served).map(|one| one.name.clone()).collect(),
        stored: status.and_then(|status| status.stored_versions.clone()).unwrap_or_default(),
        tributarys: spec.is_some_and(|spec| spec.contains_key("suspend")),
    })
}

/// What is to be said of the cluster.
pub(super) fn findings(found: &Found, operators: &[OperatorRow], definition: Option<&DefinitionRow>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(kubernetes(&found.kubernetes));
    findings.extend(definition.into_iter().flat_map(|row| versions(found, row)));
    for operator in operators.iter().filter(|operator| !operator.leader_election && operator.replicas > 0) {
        let what = "it runs without leader election: an agent cannot see that it runs, and would work beside it";
        let hint = "scale it to 0 before an agent starts";
        findings.push(Finding {
            object: format!("Deployment {}/{}", operator.namespace, operator.name),
            ..Finding::of(Severity::Changes, "NoLeaderElection", what, hint)
        });
    }
    if operators.is_empty()
        && let Some(holder) = &found.lease_holder
    {
        let what = "a Flux Operator runs that is in no Deployment you can see; no agent starts while it does";
        let hint = "find the pod that the holder is named after, and stop it";
        findings.push(Finding {
            object: format!("Lease of {holder}"),
            ..Finding::of(Severity::Breaks, "OperatorElsewhere", what, hint)
        });
    }
    findings
}

fn kubernetes(version: &str) -> Option<Finding> {
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map(|number| number.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    let what = "Jobs of this version cannot end with their lead";
    let hint = format!("upgrade the cluster to 1.{OLDEST_MINOR} or newer first");
    (major == 1 && minor < OLDEST_MINOR).then(|| Finding {
        object: format!("Kubernetes {version}"),
        ..Finding::of(Severity::Breaks, "KubernetesTooOld", what, hint)
    })
}

fn versions(found: &Found, row: &DefinitionRow) -> Vec<Finding> {
    let breaks = |rule: &str, field: &str, what: String, hint: String| Finding {
        object: format!("CustomResourceDefinition {DEFINITION}"),
        field: field.into(),
        ..Finding::of(Severity::Breaks, rule, what, hint)
    };
    let mut findings = Vec::new();
    let other = |versions: &[String], known: &[&str]| {
        versions.iter().filter(|one| !known.contains(&one.as_str())).cloned().collect::<Vec<_>>()
    };
    let stored = other(&row.stored, &["v1alpha2"]);
    if !stored.is_empty() {
        findings.push(breaks(
            "StoredVersions",
            "status.storedVersions",
            format!("MiniClusters may be stored as {}, and Tributary stores v1alpha2 only", stored.join(", ")),
            format!(
                "write every MiniCluster once: `kubectl get miniclusters --all-namespaces -o json | kubectl replace -f -`; then \
                 `kubectl patch crd {DEFINITION} --subresource=status --type=merge -p '{{\"status\":{{\"storedVersions\":[\"v1alpha2\"]}}}}'`"
            ),
        ));
    }
    let served = other(&row.served, &["v1alpha1", "v1alpha2"]);
    if !served.is_empty() {
        findings.push(breaks(
            "ServedVersions",
            "spec.versions",
            format!("{} is served, and Tributary serves v1alpha1 and v1alpha2 only", served.join(", ")),
            "change apiVersion in the manifests and programs that use it".to_owned(),
        ));
    }
    let conversion = found.definition.as_ref().and_then(|definition| definition.spec.conversion.as_ref());
    // Tributary's own agent has said so then.
    if !row.tributarys && conversion.is_some_and(|conversion| conversion.strategy == "Webhook") {
        findings.push(breaks(
            "ConversionWebhook",
            "spec.conversion",
            "versions are converted by a webhook, which goes with the operator".to_owned(),
            format!(
                "`kubectl patch crd {DEFINITION} --type=merge -p \
                 '{{\"spec\":{{\"conversion\":{{\"strategy\":\"None\",\"webhook\":null}}}}}}'`"
            ),
        ));
    }
    findings
}

/// Objects that a namespace will hold more of, by the resource names that quotas count them under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub secrets: i128,
    pub services: i128,
    pub node_ports: i128,
}

/// Quotas that would keep the next instances from being made.
pub(super) fn quotas(quotas: &[ResourceQuota], needs: &BTreeMap<String, Needs>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for quota in quotas {
        let namespace = quota.namespace().unwrap_or_default();
        let (Some(needs), Some(status)) = (needs.get(&namespace), &quota.status) else { continue };
        let number = |map: &Option<BTreeMap<String, _>>, key: &str| -> Option<i128> {
            let amount: &k8s_openapi::apimachinery::pkg::api::resource::Quantity = map.as_ref()?.get(key)?;
            Some(quantity::milli(&amount.0)? / 1000)
        };
        for (key, needed) in [
            ("secrets", needs.secrets),
            ("count/secrets", needs.secrets),
            ("services", needs.services),
            ("count/services", needs.services),
            ("services.nodeports", needs.node_ports),
        ] {
            let Some(hard) = number(&status.hard, key) else { continue };
            let used = number(&status.used, key).unwrap_or(0);
            if needed > 0 && used + needed > hard {
                findings.push(Finding {
                    severity: Severity::Breaks,
                    rule: "Quota".into(),
                    object: format!("ResourceQuota {namespace}/{}", quota.name_any()),
                    field: format!("spec.hard[{key}]"),
                    what: format!(
                        "{used} of {hard} are used, and the next instances of this namespace need {needed} more"
                    ),
                    hint: format!("raise it to {} or more", used + needed),
                });
            }
        }
    }
    findings
}
