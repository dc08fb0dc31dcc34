//! Options of the command that says who used what.

use std::time::Duration;

use clap::{Args, ValueEnum};
use schemars::JsonSchema;
use serde::Serialize;
use tributary::api::duration;

use super::diagnosing::{PeerContext, peer_context};
use super::target;

/// `agentctl usage`.
#[derive(Debug, Args)]
#[command(arg = target::namespace("Only what MiniClusters and FluxJobs of this namespace used (default: all)"))]
#[command(after_help = "\
Examples:
  agentctl usage                                    of the last 30 days
  agentctl usage --since 90d --by peer              what each peer gave and took
  agentctl usage --by day,user -o csv > usage.csv   for a spreadsheet
  agentctl usage --peer-context west=WEST           with west's own records, to compare

A row with the side root is what bursts of this cluster used of the peer; provider is what the peer's used here. Hours count
from the moment a peer accepts a burst until nothing of it is left there. Records are of whole days (UTC). They are
ConfigMaps of the agent's namespace, read with your rights.")]
pub(crate) struct Usage {
    /// How far back, e.g. 30d or 12h: from the beginning of that day (UTC)
    #[arg(long, value_name = "TIME", value_parser = ago, default_value = "30d")]
    pub since: Duration,
    /// What has rows of its own, in the order of the columns
    #[arg(
        long,
        value_name = "WORDS",
        value_enum,
        value_delimiter = ',',
        default_values_t = [Part::Peer, Part::Namespace, Part::User, Part::Job]
    )]
    pub by: Vec<Part>,
    /// Read a peer's records too, by a context of the kubeconfig (repeatable)
    #[arg(long = "peer-context", value_name = "PEER=CONTEXT", value_parser = peer_context)]
    pub peer_contexts: Vec<PeerContext>,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: UsageFormat,
}

/// What uses are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// The other cluster
    Peer,
    /// Namespace of the MiniCluster or FluxJob
    Namespace,
    /// Its label tributary.dev/user
    User,
    /// Its name
    Job,
    /// The day (UTC)
    Day,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum UsageFormat {
    /// For people
    #[default]
    Table,
    /// Comma-separated values (RFC 4180), with a header
    Csv,
    /// One document, as its JSON Schema says
    Json,
    /// The same as YAML
    Yaml,
}

/// A time in the past: days, or what durations are elsewhere.
fn ago(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').map(|days| days.parse::<u32>());
    match days {
        Some(Ok(days)) => Ok(Duration::from_secs(u64::from(days) * 86_400)),
        Some(Err(_)) => Err("write it like 30d or 12h".to_owned()),
        None => duration::parse(text).map_err(|_| "write it like 30d or 12h".to_owned()),
    }
}
