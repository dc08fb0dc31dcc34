//! Which cluster is meant: options that every command takes, and their help where they mean something of its own, or nothing.

use std::path::PathBuf;

use clap::{Arg, Args, Command};

/// Namespace of the agents, unless another one is named.
pub(crate) const AGENT_NAMESPACE: &str = "tributary-system";
/// Variable that names the agent's admin API.
const ENDPOINT: &str = "TRIBUTARY_ENDPOINT";

/// How to reach a cluster and its agent.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Target {
    /// Kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster", display_order = 1)]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig (default: its current one)
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster", display_order = 2)]
    pub context: Option<String>,
    /// Namespace: lists show it alone (default: all), names are looked up in it (default: the context's)
    #[arg(short, long, global = true, value_name = "NAME", help_heading = "Cluster", display_order = 3)]
    pub namespace: Option<String>,
    /// Namespace of the agent and its ClusterPeers
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        default_value = AGENT_NAMESPACE,
        help_heading = "Cluster",
        display_order = 4
    )]
    pub agent_namespace: String,
    /// Reach the agent's admin API here instead of by a port-forward, e.g. http://127.0.0.1:8080
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = ENDPOINT,
        hide_env_values = true,
        help_heading = "Cluster",
        display_order = 5
    )]
    pub endpoint: Option<String>,
}

impl Target {
    /// The endpoint, if it was typed: one of the environment is there the next time, too.
    pub(crate) fn typed_endpoint(&self) -> Option<String> {
        self.endpoint.clone().filter(|endpoint| std::env::var(ENDPOINT).as_ref() != Ok(endpoint))
    }
}

// A command that has an option of a global one's name keeps its own; what is written there is read as the global one.

/// `--namespace` of a command, with other help.
pub(super) fn namespace(help: &'static str) -> Arg {
    let namespace = options().find(|option| option.get_id() == "namespace");
    namespace.expect("Target has a namespace").help(help)
}

/// `--namespace` of a command that lists.
pub(super) fn lists() -> Arg {
    namespace("Show only MiniClusters and bursts of this namespace (default: all)")
}

/// `--namespace` of a command that is told the name of a MiniCluster.
pub(super) fn mini_cluster() -> Arg {
    namespace("Namespace of the MiniCluster (default: the context's)")
}

/// `--namespace` of a command that is told the name of a MiniCluster or FluxJob.
pub(super) fn instance() -> Arg {
    namespace("Namespace of the MiniCluster or FluxJob (default: the context's)")
}

/// Options that have no effect on a command. They are taken, since scripts have them in variables, and not shown.
pub(super) fn hidden(names: &'static [&'static str]) -> impl Iterator<Item = Arg> {
    options().filter(|option| names.contains(&option.get_id().as_str())).map(|option| option.hide(true))
}

/// The same for a command that asks no cluster.
pub(super) fn offline() -> impl Iterator<Item = Arg> {
    options().map(|option| option.hide(true))
}

fn options() -> impl Iterator<Item = Arg> {
    let command = Target::augment_args(Command::new("target"));
    command.get_arguments().cloned().collect::<Vec<_>>().into_iter()
}
