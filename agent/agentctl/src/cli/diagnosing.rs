//! Options of the commands that find out what is so, and what would be.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::joining::time;
use super::{Format, Output, target};

/// `agentctl why`.
#[derive(Debug, Args)]
#[command(arg = target::namespace("Namespace to look in (default: the context's, then all)"))]
#[command(after_help = "\
Examples:
  agentctl why lake                    whatever is called lake: in the context's namespace, else in any
  agentctl why -n flux lake-burst-0    a burst of one, or what is hosted here under that name
  agentctl why burst/lake.gpu -o json  of several things of one name, the Burst
  agentctl why fluxjob/lake-42         a FluxJob, and what it became

The conditions are listed in the order in which they come about; those that are not met come last, the worst of them
first: that is what to look at. Bursts do not wait for each other: each that fails is named. The exit code is 0
whatever the answer is: agentctl check is for scripts that want to know whether all is well.")]
pub(crate) struct Why {
    /// Name of an object, or KIND/NAME: of a minicluster (mc), burst, hostedburst (hb), fluxjob, clusterpeer or fluxsetup
    #[arg(value_name = "NAME|KIND/NAME")]
    pub name: String,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// `agentctl plan`.
#[derive(Debug, Args)]
#[command(arg = target::namespace("Namespace of objects that name none (default: the context's)"))]
#[command(after_help = "\
Examples:
  agentctl plan -f lake.yaml                           what applying it makes on which cluster
  helm template . | agentctl plan -f -                 of standard input, with several documents
  agentctl plan -f lake.yaml --peer-context west=WEST  as west's agent would judge it, by your rights there
  agentctl plan -f lake.yaml --offline                 without asking anybody

Nothing is written, and nothing is tried: objects, ranks and placement come from the functions that the agents use. What
was not looked at is said. The exit code is 1 if something stands against it.")]
pub(crate) struct Plan {
    /// File with MiniClusters and FluxJobs, a directory of such files, or - for standard input (repeatable)
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Look at a peer's cluster too, by a context of the kubeconfig: its import policy, quotas and nodes (repeatable)
    #[arg(long = "peer-context", value_name = "PEER=CONTEXT", value_parser = peer_context, conflicts_with = "offline")]
    pub peer_contexts: Vec<PeerContext>,
    /// Ask no cluster
    #[arg(long)]
    pub offline: bool,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// A peer, and the context that leads to its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerContext {
    /// Name of the peer.
    pub peer: String,
    /// Name of the context.
    pub context: String,
}

pub(super) fn peer_context(text: &str) -> Result<PeerContext, String> {
    match text.split_once('=') {
        Some((peer, context)) if !peer.is_empty() && !context.is_empty() => {
            Ok(PeerContext { peer: peer.to_owned(), context: context.to_owned() })
        }
        _ => Err("write PEER=CONTEXT".to_owned()),
    }
}

/// `agentctl check`.
#[derive(Debug, Args)]
#[command(arg = target::lists())]
#[command(after_help = "\
Examples:
  agentctl check                      of the context's cluster, its agent, peers and bursts
  agentctl check --wait 5m && deploy  wait until all is well, at most five minutes
  agentctl check -o json | jq .ok

The exit code is 1 if something fails. Warnings (‼), and what may not be read (?), do not count.")]
pub(crate) struct Check {
    /// Look again until nothing fails, at most so long, e.g. 90s or 5m
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s", hide_default_value = true)]
    pub wait: Duration,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// `agentctl shell`.
#[derive(Debug, Args)]
#[command(arg = target::mini_cluster())]
#[command(after_help = "\
Examples:
  agentctl shell lake                         a shell beside the lead broker
  agentctl shell lake -- flux resource list   one command; its exit code is agentctl's
  agentctl shell lake -- flux run -N5 hostname
  agentctl shell lake --index 2               beside another broker of this cluster

It runs in the container of Flux, as the user that Flux runs as, with PATH and FLUX_URI set. It needs the right to create
pods/exec in the namespace: yours, not the agent's.")]
pub(crate) struct Shell {
    /// Name of the MiniCluster
    #[arg(value_name = "MINICLUSTER")]
    pub name: String,
    /// Index of the pod: 0 is the lead
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub index: u32,
    /// Command and its arguments (default: bash)
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `agentctl rekey`.
#[derive(Debug, Args)]
#[command(arg = target::mini_cluster())]
#[command(after_help = "\
Examples:
  agentctl rekey lake        says what is lost, and asks
  agentctl rekey lake --yes  for scripts

A certificate belongs to one instance, and everybody who had it can join that instance: after a peer was removed
(condition CertificateExposed) only a new instance keeps it out. It sets the annotation tributary.dev/restart.")]
pub(crate) struct Rekey {
    /// Name of the MiniCluster
    #[arg(value_name = "MINICLUSTER")]
    pub name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// What `agentctl restart` and `agentctl suspend` act on.
#[derive(Debug, Args)]
#[command(arg = target::instance())]
#[command(after_help = "\
Examples:
  agentctl restart mc/lake            says what is lost, and asks
  agentctl suspend fluxjob/one --yes  for scripts
  agentctl resume lake                a bare name will do where only one thing has it

restart makes a new instance by today's spec (annotation tributary.dev/restart). suspend ends all pods and keeps the object,
its settings and its place (spec.suspend); resume starts a new instance of it, and the command from its beginning. In a
queue, a suspended MiniCluster keeps its room, and a suspended FluxJob gives it to others.")]
pub(crate) struct Instance {
    /// minicluster/NAME (mc/NAME), fluxjob/NAME, or NAME
    #[arg(value_name = "KIND/NAME")]
    pub name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// What `agentctl resume` acts on.
#[derive(Debug, Args)]
#[command(arg = target::instance())]
pub(crate) struct Resume {
    /// minicluster/NAME (mc/NAME), fluxjob/NAME, or NAME
    #[arg(value_name = "KIND/NAME")]
    pub name: String,
}

/// `agentctl minicluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum MiniCluster {
    /// List the MiniClusters of this cluster
    #[command(arg = target::lists())]
    List(Output),
    /// Show one MiniCluster with its ranks, bursts and conditions
    Describe(MiniClusterDescribe),
}

/// `agentctl minicluster describe`.
#[derive(Debug, Args)]
#[command(arg = target::mini_cluster())]
pub(crate) struct MiniClusterDescribe {
    /// Name of the MiniCluster
    #[arg(value_name = "MINICLUSTER")]
    pub name: String,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// `agentctl support-bundle`.
#[derive(Debug, Args)]
#[command(arg = target::lists())]
#[command(after_help = "\
Examples:
  agentctl support-bundle                        tributary-support.tar.gz in this directory
  agentctl support-bundle -n flux --out a.tar.gz  with the objects of one namespace only
  tar tzf tributary-support.tar.gz               what is in it, before it is sent to anybody

Secrets are not read. Of other objects, values of environment variables, annotations, arguments and scripts are left
out; names of objects, images, nodes and addresses are in it.")]
pub(crate) struct SupportBundle {
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "tributary-support.tar.gz")]
    pub out: PathBuf,
    /// Lines of each agent's log
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    pub lines: u32,
}

/// `agentctl top`.
#[derive(Debug, Args)]
#[command(arg = target::lists())]
#[command(after_help = "\
Examples:
  agentctl top                clusters, and the bursts of their MiniClusters
  agentctl top -n flux        of one namespace
  agentctl top --interval 5s  over a slow connection

Keys: q quits, tab and 1 to 3 choose the list, the arrows scroll.")]
pub(crate) struct Top {
    /// How often it is looked, e.g. 500ms or 5s
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub interval: Duration,
}
