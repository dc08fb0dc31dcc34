//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::diagnosing::{
    Check, Instance, MiniCluster, PeerContext, Plan, Rekey, Resume, Shell, SupportBundle, Top, Why,
};
pub(crate) use self::joining::{
    Identity, IdentityRotate, ImportFlags, Join, Link, PeerDrain, PeerName, PeerRemove, PeerSuspend, Token, TokenCreate,
};
pub(crate) use self::target::{AGENT_NAMESPACE, Target};
pub(crate) use self::using::{Part, Usage, UsageFormat};

mod diagnosing;
mod joining;
mod target;
mod using;

/// One Flux instance over many Kubernetes clusters.
#[derive(Debug, Parser)]
#[command(name = "agentctl", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How to reach a cluster.
    #[command(flatten)]
    pub(crate) target: Target,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show all federated clusters with their MiniClusters and bursts
    #[command(arg = target::lists())]
    Status(List),
    /// Show the peers of this cluster
    #[command(args = target::hidden(&["namespace"]))]
    Peers(List),
    /// Show the bursts of this cluster's MiniClusters
    #[command(arg = target::lists())]
    Bursts(List),
    /// Show who used how much of which cluster: broker-, core- and GPU-hours of bursts, and what they cost
    Usage(Usage),
    /// Say why a MiniCluster, burst, FluxJob, peer or queue is not ready: what is not met, worst first, and what to do
    Why(Why),
    /// Show clusters, bursts and phases as they change
    Top(Top),
    /// Show this cluster's MiniClusters
    #[command(subcommand, name = "minicluster", visible_alias = "mc")]
    MiniCluster(MiniCluster),
    /// Open a shell beside the lead broker of a MiniCluster, or run a command there
    Shell(Shell),
    /// Start a MiniCluster or a FluxJob that runs anew, by today's spec
    Restart(Instance),
    /// End the pods of a MiniCluster or FluxJob, and keep the object
    Suspend(Instance),
    /// Start a suspended MiniCluster or FluxJob again
    Resume(Resume),
    /// Start a MiniCluster anew with a new certificate
    Rekey(Rekey),
    /// Check every prerequisite: API server, definitions, agent, rights, identity, peers, policy and bursts
    Check(Check),
    /// Show what applying a manifest would make on which cluster, without applying it
    Plan(Plan),
    /// Change the peers of this cluster
    #[command(subcommand, args = target::hidden(&["namespace"]))]
    Peer(Peer),
    /// Take bursts of this cluster's MiniClusters back, offer them again, or free the slots of lost peers
    #[command(subcommand, arg = target::namespace("Namespace of the burst (default: the context's)"))]
    Burst(Burst),
    /// Make, show and delete tokens by which another cluster can join
    #[command(subcommand, args = target::hidden(&["namespace"]))]
    Token(Token),
    /// Join the cluster that made a token: both become peers of each other
    Join(Join),
    /// Make the clusters of two contexts peers of each other, for whoever may write in both
    Link(Link),
    /// Look after this cluster's identity
    #[command(subcommand, args = target::hidden(&["namespace"]))]
    Identity(Identity),
    /// Make identities offline: a federation CA, and certificates signed by it
    #[command(subcommand, args = target::offline())]
    Federation(Federation),
    /// Move from the Flux Operator to Tributary
    #[command(subcommand, arg = target::lists())]
    Migrate(Migrate),
    /// Pack what somebody who helps has to see, without secrets
    SupportBundle(SupportBundle),
    /// Print the definitions of Tributary's kinds, for kubectl apply --server-side --force-conflicts -f -
    Crds(Crds),
    /// Print the versions of this program and of the agents of all federated clusters
    Version(Version),
    /// Print the completion of this command line for a shell
    Completion(Completion),
    /// Print the manual page, or write those of all commands
    Man(Man),
    /// Run a whole federation on this machine: control planes, agents, and a MiniCluster that bursts
    #[cfg(feature = "demo")]
    Demo(Demo),
}

/// Options of the commands that list.
#[derive(Clone, Debug, Args)]
pub(crate) struct List {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Show again whenever something changed, until interrupted
    #[arg(short, long)]
    pub watch: bool,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For people with a wide terminal
    Wide,
    /// One document, as its JSON Schema says
    Json,
    /// The same as YAML
    Yaml,
}

/// `agentctl peer`.
#[derive(Debug, Subcommand)]
pub(crate) enum Peer {
    /// Add a peer, or change one: writes its ClusterPeer
    Add(Box<PeerAdd>),
    /// Show the peers of this cluster (agentctl peers)
    List(List),
    /// Remove a peer: the connection ends at once
    Remove(PeerRemove),
    /// Empty a peer: place nothing more there, take nothing more from it, and release what is there and here
    Drain(PeerDrain),
    /// Close the connection to a peer and make none; its bursts here end with their lease
    Suspend(PeerSuspend),
    /// Connect to a suspended peer again; else use a drained one again
    Resume(PeerName),
}

/// `agentctl peer add`.
#[derive(Debug, Args)]
pub(crate) struct PeerAdd {
    /// Name of the peer's cluster
    pub name: String,
    /// Where its agent listens: host:port, or srv:NAME (repeatable; none: the peer dials us)
    #[arg(long = "peer-endpoint", value_name = "ADDRESS")]
    pub endpoints: Vec<String>,
    /// PEM file with the certificates that sign the peer's identity (default: our own ca.crt)
    #[arg(long, value_name = "FILE")]
    pub trust_bundle: Option<PathBuf>,
    /// UID of the peer's kube-system namespace (default: pinned on first contact)
    #[arg(long, value_name = "UID")]
    pub cluster_uid: Option<String>,
    /// Labels that selectors of bursts match, key=value (repeatable)
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// What the peer may place here.
    #[command(flatten)]
    pub import: ImportFlags,
    /// Let the peer replace its trust bundle when it replaces its authority
    #[arg(long, requires = "trust_bundle")]
    pub trust_updates: bool,
    /// Read the cluster, and print the object instead of writing it
    #[arg(long)]
    pub dry_run: bool,
}

/// `agentctl burst`.
#[derive(Debug, Subcommand)]
pub(crate) enum Burst {
    /// Release a burst and place it nowhere, until it is retried; its MiniCluster runs on without it
    Cancel(BurstCancel),
    /// Offer a burst again, also to peers that refused or evicted it, and also if it was cancelled
    Retry(BurstName),
    /// Free the slot of a lost peer that has not confirmed that nothing is left: says what that risks, and asks
    Release(BurstRelease),
}

/// `agentctl burst release`.
#[derive(Debug, Args)]
pub(crate) struct BurstRelease {
    /// Its name, as agentctl bursts shows it
    pub name: String,
    /// Who says so, for the record (default: your name, as the API server knows it)
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `agentctl burst cancel`.
#[derive(Debug, Args)]
pub(crate) struct BurstCancel {
    /// Its name, as agentctl bursts shows it
    pub name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// A burst of one of this cluster's MiniClusters.
#[derive(Debug, Args)]
pub(crate) struct BurstName {
    /// Its name, as agentctl bursts shows it
    pub name: String,
}

/// `agentctl federation`.
#[derive(Debug, Subcommand)]
pub(crate) enum Federation {
    /// Make a federation's certificate authority: DIR/ca.crt and DIR/ca.key
    Init(FederationInit),
    /// Issue a cluster's identity: DIR/tls.crt, DIR/tls.key and DIR/ca.crt
    Issue(FederationIssue),
}

/// `agentctl federation init`.
#[derive(Debug, Args)]
pub(crate) struct FederationInit {
    /// Name of the federation: the trust domain of all its identities
    #[arg(long)]
    pub name: String,
    /// Directory to write to
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace what is there: every identity issued before becomes worthless
    #[arg(long)]
    pub force: bool,
}

/// `agentctl federation issue`.
#[derive(Debug, Args)]
pub(crate) struct FederationIssue {
    /// Directory of the certificate authority
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// Name of the cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: String,
    /// Directory to write to
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Days the identity is valid
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
    /// Replace what is there
    #[arg(long)]
    pub force: bool,
}

/// `agentctl migrate`.
#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Say what the move would change, without changing anything: exit code 1 if it would break something
    Check(Output),
}

/// A command with no other option.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// `agentctl crds`.
#[derive(Debug, Args)]
#[command(args = target::offline())]
pub(crate) struct Crds {
    /// Only the definitions of these kinds, e.g. miniclusters (default: all)
    #[arg(value_name = "PLURAL")]
    pub plurals: Vec<String>,
}

/// `agentctl version`.
#[derive(Debug, Args)]
#[command(args = target::hidden(&["namespace"]))]
pub(crate) struct Version {
    /// Only this program's: no cluster is asked
    #[arg(long)]
    pub client: bool,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// `agentctl completion`.
#[derive(Debug, Args)]
#[command(args = target::offline())]
pub(crate) struct Completion {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `agentctl man`.
#[derive(Debug, Args)]
#[command(
    args = target::offline(),
    after_help = "\
Examples:
  agentctl man | man -l -                        the page of agentctl
  agentctl man --out ~/.local/share/man/man1     one for each command; then: man agentctl-peer-add"
)]
pub(crate) struct Man {
    /// Write one page for each command to this directory, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// The distribution that the default view is built for: Flux runs with the C library of the brokers' image.
#[cfg(feature = "demo")]
const DEMO_IMAGE: &str = "ubuntu:24.04";

/// `agentctl demo`.
#[cfg(feature = "demo")]
#[derive(Debug, Args)]
#[command(args = target::hidden(&["context", "namespace", "endpoint"]))]
pub(crate) struct Demo {
    /// Number of clusters to start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9), conflicts_with = "contexts")]
    pub clusters: u8,
    /// Use these existing clusters of the kubeconfig instead (the first is the root's)
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub contexts: Vec<String>,
    /// Image of the brokers in existing clusters; it needs bash and the C library of the view's image
    #[arg(long, value_name = "IMAGE", default_value = DEMO_IMAGE, requires = "contexts")]
    pub image: String,
    /// Image that brings Flux to the brokers (default: the MiniCluster's own default)
    #[arg(long, value_name = "IMAGE", requires = "contexts")]
    pub view_image: Option<String>,
    /// End when everything is wired (or is not in time): exit code 1 if anything is not wired
    #[arg(long)]
    pub exit: bool,
    /// How long the wiring may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub timeout: u32,
    /// Form of the result: table, or one JSON document
    #[arg(short, long, value_enum, default_value_t)]
    pub output: DemoFormat,
}

/// Form of the demo's result.
#[cfg(feature = "demo")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoFormat {
    /// For people
    #[default]
    Table,
    /// One document
    Json,
}

// With the demo, as it is built by default: its command is part of the pages.
#[cfg(all(test, feature = "demo"))]
mod tests;
