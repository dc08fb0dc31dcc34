//! Where the pods would like to run.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity, PodAffinityTerm, PodAntiAffinity,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use tributary_api::labels::kubernetes;

use super::metadata;
use super::model::Model;

/// The user's own affinity, the labels of `pod.nodeAffinity` required, and one zone and one pod per node preferred.
pub(super) fn affinity(model: &Model<'_>) -> Option<Affinity> {
    let mut affinity = model.spec.pod.affinity.clone();
    affinity.node_affinity = node_affinity(model, affinity.node_affinity);
    if !model.spec.network.disable_affinity {
        let near = |topology| WeightedPodAffinityTerm { weight: 100, pod_affinity_term: term(model, topology) };
        let pods = affinity.pod_affinity.get_or_insert_with(PodAffinity::default);
        pods.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().push(near(kubernetes::ZONE));
        let apart = affinity.pod_anti_affinity.get_or_insert_with(PodAntiAffinity::default);
        apart
            .preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(near(kubernetes::HOSTNAME));
    }
    (affinity != Affinity::default()).then_some(affinity)
}

fn term(model: &Model<'_>, topology: &str) -> PodAffinityTerm {
    let (key, name) = metadata::of_pods(model);
    let own = LabelSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![name.to_owned()]),
    };
    PodAffinityTerm {
        label_selector: Some(LabelSelector { match_expressions: Some(vec![own]), match_labels: None }),
        topology_key: topology.to_owned(),
        ..PodAffinityTerm::default()
    }
}

/// A node must fit one of the terms; the labels of `pod.nodeAffinity` belong to each.
fn node_affinity(model: &Model<'_>, own: Option<NodeAffinity>) -> Option<NodeAffinity> {
    let wanted = &model.spec.pod.node_affinity;
    if wanted.is_empty() {
        return own;
    }
    let requirement = |(key, values): (&String, &Vec<String>)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(values.clone()),
    };
    let mut affinity = own.unwrap_or_default();
    let required = affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().extend(wanted.iter().map(requirement));
    }
    Some(affinity)
}
