//! The rights that an agent needs: those of the chart, word for word.

use serde::Deserialize;
use tributary::config::{Config, IdentityConfig};

/// What the chart gives agents in the whole cluster.
const CLUSTER: &str = include_str!("../../../../../charts/tributary/files/cluster-rules.yaml");
/// What it gives them where they work: everywhere, unless in some namespaces only.
const WATCHED: &str = include_str!("../../../../../charts/tributary/files/watched-rules.yaml");
/// What it gives them besides, where MiniClusters may have volumes made.
const VOLUMES: &str = include_str!("../../../../../charts/tributary/files/volumes-rules.yaml");
/// What it gives them besides, where they convert MiniClusters.
const WEBHOOK: &str = include_str!("../../../../../charts/tributary/files/webhook-rules.yaml");
/// What it gives them in their own namespace.
const NAMESPACE: &str = include_str!("../../../../../charts/tributary/files/namespace-rules.yaml");

/// One right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub verb: String,
    /// The group of the API, empty for the core.
    pub group: String,
    /// The resource, without its subresource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The object, or empty for all.
    pub name: String,
    /// The namespace in which it is needed, or empty: in the whole cluster.
    pub namespace: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, group, resource, subresource, name, namespace: _ } = self;
        write!(f, "{verb} {resource}")?;
        for (separator, part) in [(".", group), ("/", subresource), (" ", name)] {
            if !part.is_empty() {
                write!(f, "{separator}{part}")?;
            }
        }
        Ok(())
    }
}

/// Where an agent works, and what it does besides: of its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The namespaces, its own among them; none: the whole cluster.
    pub namespaces: Vec<String>,
    /// It makes volumes.
    pub volumes: bool,
    /// It converts MiniClusters for the API server.
    pub converts: bool,
    /// It peers with nobody.
    pub alone: bool,
}

impl Scope {
    /// Of the agent of this namespace.
    pub(crate) fn of(config: &Config, namespace: &str) -> Self {
        let mut namespaces = config.kubernetes.watch_namespaces.clone();
        if !namespaces.is_empty() {
            namespaces.push(namespace.to_owned());
            namespaces.sort();
            namespaces.dedup();
        }
        Self {
            namespaces,
            volumes: config.volumes.is_on(),
            converts: config.webhook.listen.is_some(),
            alone: config.federation.identity == IdentityConfig::Off,
        }
    }
}

/// Every right that the chart gives an agent that works so, in this namespace of its own.
pub(super) fn needed(scope: &Scope, own: &str) -> Vec<Right> {
    let mut rights = of(CLUSTER, "");
    let everywhere = [String::new()];
    let places = if scope.namespaces.is_empty() { &everywhere[..] } else { &scope.namespaces };
    places.iter().for_each(|place| rights.extend(of(WATCHED, place)));
    if scope.volumes {
        rights.extend(of(VOLUMES, ""));
    }
    if scope.converts {
        rights.extend(of(WEBHOOK, ""));
    }
    rights.extend(of(NAMESPACE, own));
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

fn of(rules: &str, namespace: &str) -> Vec<Right> {
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
                            namespace: namespace.to_owned(),
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

    fn texts(scope: &Scope) -> Vec<String> {
        let text = |right: &Right| format!("{}: {right}", right.namespace);
        needed(scope, "tributary-system").iter().map(text).collect()
    }

    #[test]
    fn the_charts_rules_are_read() {
        let rights = texts(&Scope::default());
        for known in [
            ": watch miniclusters.flux-framework.org",
            ": patch miniclusters.flux-framework.org/status",
            ": watch resourcequotas",
            "tributary-system: watch secrets",
        ] {
            assert!(rights.iter().any(|right| right == known), "{known}: {rights:?}");
        }
        let secrets = of(CLUSTER, "").into_iter().find(|right| right.resource == "secrets");
        assert_eq!(secrets, None);
    }

    /// Each file of rules is somebody's: a new one has to be asked for here, too.
    #[test]
    fn every_file_of_rules_of_the_chart_is_asked_for() {
        let files = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/tributary/files");
        let names = std::fs::read_dir(files).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut named: Vec<_> = names.filter(|name| name.ends_with("-rules.yaml")).collect();
        named.sort();
        let known = ["cluster", "namespace", "volumes", "watched", "webhook"].map(|name| format!("{name}-rules.yaml"));
        assert_eq!(named, known);
    }

    #[test]
    fn what_is_needed_follows_where_the_agent_works_and_what_it_does() {
        let text = "[cluster]\nname = \"east\"\n[kubernetes]\nwatch_namespaces = [\"research\"]\n";
        let some = Scope::of(&Config::from_toml(text).unwrap(), "tributary-system");
        assert_eq!(some.namespaces, ["research", "tributary-system"]);
        let rights = texts(&some);
        let has = |rights: &[String], text: &str| rights.iter().any(|right| right == text);
        assert!(has(&rights, "research: create jobs.batch") && has(&rights, "tributary-system: create jobs.batch"));
        assert!(!has(&rights, ": create jobs.batch") && has(&rights, ": list nodes"));

        let (patch, create) = (
            ": patch customresourcedefinitions.apiextensions.k8s.io miniclusters.flux-framework.org",
            ": create persistentvolumes",
        );
        let plain = texts(&Scope::default());
        assert!(!has(&plain, patch) && !has(&plain, create));
        let more = texts(&Scope { volumes: true, converts: true, ..Scope::default() });
        assert!(has(&more, patch) && has(&more, create), "{more:?}");
    }
}
