//! The clusters of a demo: local control planes, or contexts of a kubeconfig.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use kube::{Client, ResourceExt};
use tributary::cluster::client::heed_no_proxy;
use tributary_sandbox::{Access, Binaries, ClusterOptions, Options, Report, Sandbox, existing};

use super::progress::Progress;
use crate::cli::{Demo, Target};
use crate::error::{Failure, Result, failed};

/// Names of local clusters; the first is the root's.
const NAMES: [&str; 9] =
    ["east", "west", "north", "south", "northeast", "northwest", "southeast", "southwest", "center"];

/// User of the agents' requests in a sandbox: audit logs tell them from people's.
const AGENT_USER: &str = "tributary-agent";

/// The clusters of a demo.
pub(super) struct Clusters {
    /// Local control planes, which end with this value.
    sandbox: Option<Sandbox>,
    /// The root's first.
    pub(super) all: Vec<DemoCluster>,
}

/// One cluster of a demo.
#[derive(Clone)]
pub(super) struct DemoCluster {
    /// Name in the federation: a DNS label.
    pub(super) name: String,
    /// How people reach it.
    pub(super) access: Access,
    /// How its agent reaches it.
    pub(super) agent_access: Access,
    /// UID of its kube-system namespace.
    pub(super) uid: String,
    /// A client as people have it.
    pub(super) client: Client,
}

impl Clusters {
    /// Starts the wanted number of local control planes, or finds the contexts.
    pub(super) async fn find(target: &Target, demo: &Demo, progress: &Progress) -> Result<Self> {
        let (sandbox, people, agents) = if demo.contexts.is_empty() {
            let sandbox = start_sandbox(usize::from(demo.clusters), progress).await?;
            let access = |user: &str| -> Result<Vec<Access>> {
                let access =
                    sandbox.clusters().iter().map(|cluster| cluster.access(user)).collect::<anyhow::Result<_>>();
                access.map_err(failed("failed to reach the clusters", "agents and people need contexts that work"))
            };
            let (people, agents) = (access(tributary_sandbox::ADMIN)?, access(AGENT_USER)?);
            (Some(sandbox), people, agents)
        } else {
            let found = existing(target.kubeconfig.as_deref(), &demo.contexts).map_err(failed(
                "failed to find the clusters of --contexts",
                "--context names one of `kubectl config get-contexts`; --kubeconfig names another file",
            ))?;
            (None, found.clone(), found)
        };
        let names = names(people.iter().map(|access| access.name.as_str()));
        let all = people.into_iter().zip(agents).zip(names).map(|((access, agent), name)| open(name, access, agent));
        let all = try_join_all(all).await?;
        distinct(&all)?;
        Ok(Self { sandbox, all })
    }

    pub(super) fn root(&self) -> &DemoCluster {
        &self.all[0]
    }

    /// All but the root's.
    pub(super) fn peers(&self) -> &[DemoCluster] {
        &self.all[1..]
    }

    pub(super) fn named(&self, name: &str) -> Option<&DemoCluster> {
        self.all.iter().find(|cluster| cluster.name == name)
    }

    /// Whether pods only pretend to run, and the clusters end with the demo.
    pub(super) fn simulated(&self) -> bool {
        self.sandbox.is_some()
    }
}

async fn start_sandbox(count: usize, progress: &Progress) -> Result<Sandbox> {
    let failed =
        failed("failed to start local control planes", "or run the demo on clusters you have: --contexts EAST,WEST");
    let teller = progress.clone();
    let report = Report::new(move |line| teller.note(line));
    // Apart from the start: a build shows a progress bar of its own, and takes minutes.
    let began = progress.clock().mono();
    Binaries::ensure(&report).await.map_err(&failed)?;
    progress.record("programs", progress.clock().mono().saturating_since(began));

    let step = progress.step("clusters", &format!("starting {count} control planes"));
    let clusters = NAMES[..count].iter().copied().map(ClusterOptions::named).collect();
    let sandbox = Sandbox::start(Options { clusters, report, ..Options::default() }).await.map_err(&failed)?;
    step.done(&format!("{} run, pods: simulated (kwok)", NAMES[..count].join(", ")));
    Ok(sandbox)
}

async fn open(name: String, access: Access, agent_access: Access) -> Result<DemoCluster> {
    let failed = || {
        let context = &access.context;
        Failure::new(format!("failed to reach the cluster {name} ({context})"))
            .hint(format!("`kubectl --context {context} get namespace kube-system` asks it the same"))
    };
    let mut config = access.config().await.map_err(|error| failed().because(error))?;
    heed_no_proxy(&mut config);
    let client = Client::try_from(config).map_err(|error| failed().because(error))?;
    let system = Api::<Namespace>::all(client.clone()).get("kube-system").await;
    let uid = system.map_err(|error| failed().because(error))?.uid().unwrap_or_default();
    Ok(DemoCluster { name, access, agent_access, uid, client })
}

/// Two contexts of one cluster would be two agents in one cluster.
fn distinct(clusters: &[DemoCluster]) -> Result<()> {
    if clusters.len() < 2 {
        return Err(Failure::new("a federation needs two clusters at least").hint("--contexts EAST,WEST"));
    }
    for (position, cluster) in clusters.iter().enumerate() {
        if let Some(other) = clusters[..position].iter().find(|other| other.uid == cluster.uid) {
            let (one, two) = (&other.access.context, &cluster.access.context);
            return Err(Failure::new(format!("the contexts {one} and {two} are the same cluster"))
                .hint("name contexts of different clusters"));
        }
    }
    Ok(())
}

/// Names for the federation, made of the contexts' names: DNS labels, all different.
fn names<'a>(contexts: impl Iterator<Item = &'a str>) -> Vec<String> {
    const LONGEST: usize = 40;
    let mut taken = BTreeSet::new();
    let label = |context: &str| {
        let label: String =
            context.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let label: String = label.trim_matches('-').chars().take(LONGEST).collect();
        let label = label.trim_end_matches('-');
        if label.is_empty() { "cluster".to_owned() } else { label.to_owned() }
    };
    contexts
        .map(|context| {
            let wanted = label(context);
            let numbered = (2..).map(|number| format!("{wanted}-{number}"));
            let name = std::iter::once(wanted.clone())
                .chain(numbered)
                .find(|name| !taken.contains(name))
                .expect("numbers do not end");
            taken.insert(name.clone());
            name
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_become_labels_that_differ() {
        let contexts =
            ["kind-east", "admin@West.example", "admin@west.example", "@@", "arn:aws:eks:eu-1:1234:cluster/a"];
        let names = names(contexts.into_iter());
        let expected =
            ["kind-east", "admin-west-example", "admin-west-example-2", "cluster", "arn-aws-eks-eu-1-1234-cluster-a"];
        assert_eq!(names, expected);
    }
}
