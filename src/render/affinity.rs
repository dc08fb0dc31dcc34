//! Where the pods would like to run.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity, PodAffinityTerm,
    PodAntiAffinity, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::model::Model;
use crate::api::labels::{kubernetes, upstream};

/// One zone and one pod per node are preferred, never required; `pod.nodeAffinity` is required.
pub(super) fn affinity(model: &Model<'_>) -> Option<Affinity> {
    let node_affinity = node_affinity(model);
    if model.spec.network.disable_affinity {
        return node_affinity.map(|node| Affinity { node_affinity: Some(node), ..Affinity::default() });
    }
    let near = |topology| Some(vec![WeightedPodAffinityTerm { weight: 100, pod_affinity_term: term(model, topology) }]);
    Some(Affinity {
        node_affinity,
        pod_affinity: Some(PodAffinity {
            preferred_during_scheduling_ignored_during_execution: near(kubernetes::ZONE),
            ..PodAffinity::default()
        }),
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: near(kubernetes::HOSTNAME),
            ..PodAntiAffinity::default()
        }),
    })
}

fn term(model: &Model<'_>, topology: &str) -> PodAffinityTerm {
    let own = LabelSelectorRequirement {
        key: upstream::NAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![model.name.to_owned()]),
    };
    PodAffinityTerm {
        label_selector: Some(LabelSelector { match_expressions: Some(vec![own]), match_labels: None }),
        topology_key: topology.to_owned(),
        ..PodAffinityTerm::default()
    }
}

fn node_affinity(model: &Model<'_>) -> Option<NodeAffinity> {
    let wanted = &model.spec.pod.node_affinity;
    if wanted.is_empty() {
        return None;
    }
    let requirement = |(key, values): (&String, &Vec<String>)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(values.clone()),
    };
    let term =
        NodeSelectorTerm { match_expressions: Some(wanted.iter().map(requirement).collect()), match_fields: None };
    Some(NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
        ..NodeAffinity::default()
    })
}
