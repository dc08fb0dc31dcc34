//! The rights that an agent needs: those of the chart, word for word.

use serde::Deserialize;

/// What the chart gives agents in the whole cluster.
const CLUSTER: &str = include_str!("../../../../../charts/tributary/files/cluster-rules.yaml");
/// What it gives them where they work: everywhere, unless in some namespaces only.
const WATCHED: &str = include_str!("../../../../../charts/tributary/files/watched-rules.yaml");
/// What it gives them in their own namespace.
const NAMESPACE: &str = include_str!("../../../../../charts/tributary/files/namespace-rules.yaml");

/// One right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The verb.
    pub verb: String,
    /// The group of the API, empty for the core.
    pub group: String,
    /// The resource, without its subresource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The object, or empty for all.
    pub name: String,
    /// Only in the agent's own namespace.
    pub own_namespace: bool,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, group, resource, subresource, name, own_namespace: _ } = self;
        write!(f, "{verb} {resource}")?;
        for (separator, part) in [(".", group), ("/", subresource), (" ", name)] {
            if !part.is_empty() {
                write!(f, "{separator}{part}")?;
            }
        }
        Ok(())
    }
}

/// Every right that the chart gives.
pub(super) fn needed() -> Vec<Right> {
    let mut rights = of(CLUSTER, false);
    rights.extend(of(WATCHED, false));
    rights.extend(of(NAMESPACE, true));
    rights.sort();
    rights.dedup();
    rights
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

fn of(rules: &str, own_namespace: bool) -> Vec<Right> {
    // Names are put in by helm; without them the rule is for all.
    let plain: String = rules.lines().filter(|line| !line.contains("{{")).map(|line| format!("{line}\n")).collect();
    let rules: Vec<Rule> = serde_saphyr::from_str(&plain).expect("the chart's rules are rules");
    let mut rights = Vec::new();
    for Rule { api_groups, resources, verbs, resource_names } in rules {
        let names = if resource_names.is_empty() { vec![String::new()] } else { resource_names };
        for group in &api_groups {
            for resource in &resources {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                for verb in &verbs {
                    for name in &names {
                        rights.push(Right {
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.to_owned(),
                            subresource: subresource.to_owned(),
                            name: name.clone(),
                            own_namespace,
                        });
                    }
                }
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_rules_are_read() {
        let rights: Vec<_> = needed().iter().map(ToString::to_string).collect();
        for known in [
            "watch miniclusters.flux-framework.org",
            "patch miniclusters.flux-framework.org/status",
            "list resourcequotas",
        ] {
            assert!(rights.iter().any(|right| right == known), "{known}: {rights:?}");
        }
        let everywhere = of(CLUSTER, false);
        assert!(
            !everywhere
                .iter()
                .any(|right| right.resource == "secrets" && ["list", "watch"].contains(&right.verb.as_str()))
        );
    }
}
