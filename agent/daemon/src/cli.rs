//! The command line of the agent.

use std::path::PathBuf;

use clap::Parser;

/// The Tributary agent of one Kubernetes cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "tributary-agent", version)]
pub struct Cli {
    /// Configuration file (TOML); every key can also be set as TRIBUTARY__SECTION__KEY
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
