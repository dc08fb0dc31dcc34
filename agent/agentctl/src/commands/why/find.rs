//! Which object a name stands for: of which kind, in which namespace.

use kube::api::ListParams;
use kube::{Client, Resource, ResourceExt};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use crate::cli::Target;
use crate::error::{Failure, Result};
use crate::kubernetes::{self, list};

/// What can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    FluxJob,
    MiniCluster,
    HostedBurst,
    Burst,
    ClusterPeer,
    FluxSetup,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::FluxJob, Self::MiniCluster, Self::HostedBurst, Self::Burst, Self::ClusterPeer, Self::FluxSetup];

    /// As users write it before a name.
    const fn word(self) -> &'static str {
        match self {
            Self::FluxJob => "fluxjob",
            Self::MiniCluster => "minicluster",
            Self::HostedBurst => "hostedburst",
            Self::Burst => "burst",
            Self::ClusterPeer => "clusterpeer",
            Self::FluxSetup => "fluxsetup",
        }
    }

    /// Singular, plural and short names, with or without the API group, as kubectl takes them.
    fn of(text: &str) -> Option<Self> {
        let text = text.to_lowercase();
        let word = text.split('.').next().unwrap_or_default();
        let is = |kind: &Self| word == kind.word() || word.strip_suffix('s') == Some(kind.word());
        Self::ALL.into_iter().find(is).or(match word {
            "mc" => Some(Self::MiniCluster),
            "hb" => Some(Self::HostedBurst),
            "fj" => Some(Self::FluxJob),
            "fs" => Some(Self::FluxSetup),
            "cpeer" | "peer" | "peers" => Some(Self::ClusterPeer),
            _ => None,
        })
    }
}

/// An object that has the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Match {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The MiniCluster that this FluxJob became: it says more of it.
    became: Option<String>,
}

impl Match {
    pub(super) fn new(kind: Kind, namespace: &str, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.into(), became: None }
    }

    /// The command that explains it and nothing else.
    fn command(&self) -> String {
        let Self { kind, namespace, name, .. } = self;
        format!("`agentctl why {}/{name} --namespace {namespace}`", kind.word())
    }
}

/// Splits `NAME` or `KIND/NAME`.
fn asked(text: &str) -> Result<(Vec<Kind>, &str)> {
    let Some((word, name)) = text.split_once('/') else { return Ok((Kind::ALL.to_vec(), text)) };
    match Kind::of(word) {
        Some(kind) => Ok((vec![kind], name)),
        None => Err(Failure::new(format!("failed to explain {text}: {word} is no kind that can be explained")).hint(
            format!("write a name alone, or with its kind: {}", Kind::ALL.map(Kind::word).join("/NAME, ") + "/NAME"),
        )),
    }
}

/// The object that the user means.
///
/// # Errors
/// There is none, or there are several: then the commands that name each.
pub(super) async fn find(target: &Target, client: &Client, text: &str) -> Result<Match> {
    let (kinds, name) = asked(text)?;
    let home = kubernetes::namespace(target, client);
    let mut seen = fetch(target, client, &kinds, Some(&home), name).await;
    if seen.found.is_empty() && target.namespace.is_none() {
        let all = fetch(target, client, &kinds, None, name).await;
        seen.found = all.found;
        seen.failures.extend(all.failures);
    }
    match choose(seen.found).as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(missing(text, target.namespace.as_deref(), seen.failures.into_iter().next())),
        several => {
            let commands: Vec<_> = several.iter().map(|one| format!("  {}", one.command())).collect();
            Err(Failure::new(format!("several objects are called {name}"))
                .hint(format!("name one of them:\n{}", commands.join("\n"))))
        }
    }
}

fn missing(text: &str, namespace: Option<&str>, failure: Option<Failure>) -> Failure {
    let place = namespace.map_or_else(|| "any namespace".to_owned(), |namespace| format!("namespace {namespace}"));
    match failure {
        // Who may not look everywhere is told so, since it may be there.
        Some(failure) => failure.hint(format!(
            "nothing called {text} was seen in {place}, but not all could be read: -n NAMESPACE names one that you may read"
        )),
        None => Failure::new(format!("there is nothing called {text} in {place}"))
            .hint("what there is: `agentctl status`; FluxJobs: `kubectl get fluxjobs --all-namespaces`"),
    }
}

/// Each object once: one that another one says more of is left out.
fn choose(mut found: Vec<Match>) -> Vec<Match> {
    found.sort();
    found.dedup();
    let all = found.clone();
    let is_there = |kind: Kind, of: &Match| {
        all.iter().any(|one| one.kind == kind && (&one.namespace, &one.name) == (&of.namespace, &of.name))
    };
    found.retain(|one| match one.kind {
        Kind::MiniCluster => {
            !all.iter().any(|job| job.namespace == one.namespace && job.became.as_ref() == Some(&one.name))
        }
        // A hosted burst has the name of the MiniCluster that is made for it.
        Kind::HostedBurst => !is_there(Kind::MiniCluster, one),
        _ => true,
    });
    found
}

#[derive(Default)]
struct Seen {
    found: Vec<Match>,
    failures: Vec<Failure>,
}

impl Seen {
    fn take<K: Resource>(&mut self, kind: Kind, listed: Result<Vec<K>>, mut to_match: impl FnMut(&K, Match) -> Match) {
        match listed {
            Ok(objects) => self.found.extend(objects.iter().map(|object| {
                let one = Match::new(kind, &object.namespace().unwrap_or_default(), object.name_any());
                to_match(object, one)
            })),
            Err(failure) => self.failures.push(failure),
        }
    }
}

/// All objects of these kinds and of this name, in a namespace or in all.
async fn fetch(target: &Target, client: &Client, kinds: &[Kind], namespace: Option<&str>, name: &str) -> Seen {
    let mut seen = Seen::default();
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    for kind in kinds {
        match kind {
            Kind::FluxJob => {
                let jobs = list::<FluxJob>(client, namespace, &named).await;
                seen.take(*kind, jobs, |job, one| Match {
                    became: job.status.as_ref().and_then(|status| status.mini_cluster.clone()),
                    ..one
                });
            }
            Kind::MiniCluster => {
                seen.take(*kind, list::<MiniCluster>(client, namespace, &named).await, |_, one| one);
            }
            Kind::HostedBurst => {
                seen.take(*kind, list::<HostedBurst>(client, namespace, &named).await, |_, one| one);
            }
            Kind::Burst => {
                // Users know the name of the slot, which the object need not have.
                let bursts = list::<Burst>(client, namespace, &ListParams::default()).await.map(|all| {
                    let is_named = |burst: &Burst| burst.name_any() == name || burst.spec.slot == name;
                    all.into_iter().filter(is_named).collect::<Vec<_>>()
                });
                seen.take(*kind, bursts, |_, one| one);
            }
            Kind::ClusterPeer => {
                let place = Some(target.agent_namespace.as_str());
                seen.take(*kind, list::<ClusterPeer>(client, place, &named).await, |_, one| one);
            }
            Kind::FluxSetup => {
                seen.take(*kind, list::<FluxSetup>(client, namespace, &named).await, |_, one| one);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_kubectl_takes_them() {
        for (text, kinds, name) in [
            ("river", Kind::ALL.as_slice(), "river"),
            ("mc/river", &[Kind::MiniCluster], "river"),
            ("MiniClusters.flux-framework.org/river", &[Kind::MiniCluster], "river"),
            ("fluxjob/one", &[Kind::FluxJob], "one"),
            ("hb/river-burst-0", &[Kind::HostedBurst], "river-burst-0"),
            ("peer/west", &[Kind::ClusterPeer], "west"),
            ("fluxsetups/default", &[Kind::FluxSetup], "default"),
        ] {
            assert_eq!(asked(text).unwrap(), (kinds.to_vec(), name), "{text}");
        }
        let refused = asked("pod/river").unwrap_err().to_string();
        assert!(refused.contains("pod is no kind") && refused.contains("minicluster/NAME"), "{refused}");
    }

    #[test]
    fn an_object_that_another_one_says_more_of_is_left_out() {
        let of = |kind, namespace: &str| Match::new(kind, namespace, "one");
        let job = Match { became: Some("one".into()), ..of(Kind::FluxJob, "hpc") };
        assert_eq!(choose(vec![of(Kind::MiniCluster, "hpc"), job.clone()]), std::slice::from_ref(&job));
        let elsewhere = of(Kind::MiniCluster, "lab");
        assert_eq!(choose(vec![elsewhere.clone(), job.clone()]), [job, elsewhere.clone()]);
        assert_eq!(choose(vec![of(Kind::HostedBurst, "lab"), elsewhere.clone()]), [elsewhere]);
        let unmade = of(Kind::HostedBurst, "lab");
        assert_eq!(choose(vec![unmade.clone(), unmade.clone()]), [unmade]);
    }

    /// The danger: a name that several objects have, and the user has to guess how to name one.
    #[test]
    fn each_object_has_a_command_that_can_be_pasted() {
        for kind in Kind::ALL {
            crate::paste::check::pastes(&Match::new(kind, "hpc", "one").command());
        }
        let of = |kind| Match::new(kind, "hpc", "one").command();
        assert_eq!(of(Kind::MiniCluster), "`agentctl why minicluster/one --namespace hpc`");
    }
}
