//! Which peers, by the labels of their ClusterPeers: Kubernetes' LabelSelector, on labels of ours.
//!
//! Source: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::is_default;
use tributary_contract::word::Word;

/// Which peers may be chosen, by the labels of their ClusterPeers (not by those that the peer states of itself). All that
/// is written must hold; an empty selector takes any peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PeerSelector {
    /// Labels with exactly these values.
    #[serde(skip_serializing_if = "is_default")]
    pub match_labels: BTreeMap<String, String>,

    /// Rules on single labels.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<PeerSelectorRequirement>,
}

/// A rule on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerSelectorRequirement {
    /// Key of the label.
    pub key: String,

    /// `In` and `NotIn` compare with `values`; `Exists` and `DoesNotExist` take none. A peer without the label satisfies
    /// `NotIn` and `DoesNotExist`.
    pub operator: PeerSelectorOperator,

    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// A wish that is less than a condition: peers that it fits come before others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerPreference {
    /// How much it counts beside other wishes, from 1 to 100: those of all that a peer fits are added up. 1, if not written.
    #[schemars(range(min = 1, max = 100), extend("default" = 1))]
    pub weight: i32,

    /// Which peers it fits.
    #[serde(flatten)]
    pub peers: PeerSelector,
}

impl Default for PeerPreference {
    fn default() -> Self {
        Self { weight: 1, peers: PeerSelector::default() }
    }
}

/// How a label is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PeerSelectorOperator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is not there.
    NotIn,
    /// The label is there.
    #[default]
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// A word of a newer version: it takes no peer.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

impl PeerSelector {
    /// Whether a peer with these labels may be chosen.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let exact = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        exact && self.match_expressions.iter().all(|rule| rule.matches(labels.get(&rule.key)))
    }

    /// What makes no sense in it, one sentence: Kubernetes refuses the same.
    pub fn problem(&self) -> Option<String> {
        self.match_expressions.iter().find_map(|PeerSelectorRequirement { key, operator, values }| {
            let compares = matches!(operator, PeerSelectorOperator::In | PeerSelectorOperator::NotIn);
            if let PeerSelectorOperator::Unknown(word) = operator {
                return Some(format!("{key:?}: \"{word}\" is none of In, NotIn, Exists, DoesNotExist"));
            }
            match (key.is_empty(), compares, values.is_empty()) {
                (true, ..) => Some("a rule of matchExpressions has no key".to_owned()),
                (_, true, true) => Some(format!("{key:?} is compared with no values: write values for {operator:?}")),
                (_, false, false) => Some(format!("{key:?} has values, and {operator:?} takes none: leave them out")),
                _ => None,
            }
        })
    }
}

impl PeerSelectorRequirement {
    fn matches(&self, value: Option<&String>) -> bool {
        let named = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            PeerSelectorOperator::In => named,
            PeerSelectorOperator::NotIn => !named,
            PeerSelectorOperator::Exists => value.is_some(),
            PeerSelectorOperator::DoesNotExist => value.is_none(),
            PeerSelectorOperator::Unknown(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(value: serde_json::Value) -> PeerSelector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn everything_that_is_written_must_hold() {
        let labels: BTreeMap<String, String> =
            [("region", "eu"), ("tier", "1")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let rule =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let table = [
            (json!({}), true),
            (json!({"matchLabels": {"region": "eu"}}), true),
            (json!({"matchLabels": {"region": "eu", "gpu": "yes"}}), false),
            (json!({"matchExpressions": [rule("region", "In", &["us", "eu"])]}), true),
            (json!({"matchExpressions": [rule("gpu", "In", &["yes"])]}), false),
            (json!({"matchExpressions": [rule("region", "NotIn", &["eu"])]}), false),
            (json!({"matchExpressions": [rule("gpu", "NotIn", &["yes"])]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}), true),
            (json!({"matchLabels": {"region": "eu"}, "matchExpressions": [rule("tier", "In", &["2"])]}), false),
        ];
        for (written, expected) in table {
            assert_eq!(selector(written.clone()).matches(&labels), expected, "{written}");
            assert_eq!(selector(written).problem(), None);
        }
    }

    #[test]
    fn rules_that_say_nothing_are_named() {
        let table = [
            (json!({"key": "", "operator": "Exists"}), "no key"),
            (json!({"key": "region", "operator": "In"}), "write values for In"),
            (json!({"key": "region", "operator": "Exists", "values": ["eu"]}), "Exists takes none"),
        ];
        for (rule, expected) in table {
            let problem = selector(json!({"matchExpressions": [rule]})).problem().unwrap();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
