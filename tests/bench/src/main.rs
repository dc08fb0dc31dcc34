//! Benchmarks of an operator for MiniClusters against real control planes: prints figures, judges nothing.
//!
//!     cargo run --profile measure -p tributary-bench
//!     cargo run --profile measure -p tributary-bench -- --operator 'flux-operator --kubeconfig {kubeconfig}' --user agent
//!
//! Each section starts from a fresh control plane with a fresh operator process. Pods are simulated (kwok), so what is
//! measured is the operator and the API server, not container runtimes.

mod burst;
mod figures;
mod local;
mod operator;
mod peers;
mod queue;
mod restart;
mod tunnel;
mod ways;
mod webhook;
mod wire;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::operator::Operator;

/// Benchmarks of an operator for MiniClusters.
#[derive(Parser)]
struct Arguments {
    /// Command line of the operator under test; {kubeconfig} is replaced. Default: the Tributary agent of this build
    #[arg(long)]
    operator: Option<String>,
    /// The program tributary-agent, as it comes in the image (default: this program is the agent)
    #[arg(long, value_name = "PROGRAM", conflicts_with = "operator")]
    agent: Option<PathBuf>,
    /// Sections to run (default: all)
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Section>,
    /// MiniClusters of the memory section's last step, and of the restart section
    #[arg(long, default_value_t = 1000)]
    many: u32,
    /// Two addresses of this machine between which packets take a long, lossy way (of netem, or of a TUN device), for the
    /// tunnel section, e.g. 10.9.0.1,10.9.0.2
    #[arg(long, value_name = "ROOT,PROVIDER", value_parser = two_addresses)]
    long_way: Option<[Ipv4Addr; 2]>,
    /// The program tributary-ends for the tunnel section, as it comes to pods (default: a part of this program)
    #[arg(long, value_name = "PROGRAM")]
    ends: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    /// One MiniCluster a second: created until its Job exists
    Latency,
    /// 200 MiniClusters at once: until all Jobs exist
    Flood,
    /// Requests per MiniCluster, and per idle minute with 100
    Requests,
    /// Resident memory with 0, 100 and many MiniClusters
    Memory,
    /// A restart of the agent beside many MiniClusters
    Restart,
    /// Bytes a second between two peers that have nothing to say
    Wire,
    /// Broker traffic through the agents: throughput and round trips, on loopback and over a long, lossy way
    Tunnel,
    /// The queue: one decision over 10,000 waiting jobs, and what backfilling is worth
    Queue,
    /// The most memory that strangers can take of an agent by its webhook, and what it answers meanwhile
    Webhook,
    /// What 10,000 claims of some peers cost another one
    Peers,
    /// What each of 350 bursts costs the agents
    Bursts,
    /// Root applied until HostedBurst and until all pods are ready, over two clusters
    Burst,
}

fn two_addresses(text: &str) -> Result<[Ipv4Addr; 2], String> {
    let two = text.split_once(',').and_then(|(root, provider)| Some([root.parse().ok()?, provider.parse().ok()?]));
    two.ok_or_else(|| "two IPv4 addresses with a comma between them are expected".to_owned())
}

fn main() -> ExitCode {
    // The operator under test, and parts of a tunnel, may be this program itself.
    if let Some(code) = operator::become_agent_if_asked() {
        return code;
    }
    let arguments = Arguments::parse();
    // Only fails when a provider is installed already: any provider is ring here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let run = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Runtime::new().context("failed to start the asynchronous runtime")?;
        runtime.block_on(run(&arguments))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            figures::line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let operator = Operator::new(arguments.operator.clone(), arguments.agent.clone());
    let wanted = |section| arguments.only.is_empty() || arguments.only.contains(&section);
    figures::line(&format!("operator: {}", operator.describe()));
    figures::header();
    if wanted(Section::Latency) {
        local::latency(&operator).await?;
    }
    if wanted(Section::Flood) {
        local::flood(&operator).await?;
    }
    if wanted(Section::Requests) {
        local::requests(&operator).await?;
    }
    if wanted(Section::Memory) {
        local::memory(&operator, arguments.many).await?;
    }
    if wanted(Section::Restart) {
        restart::restart(&operator, arguments.many).await?;
    }
    if wanted(Section::Wire) {
        wire::idle().await?;
    }
    if wanted(Section::Tunnel) {
        tunnel::tunnel(arguments.long_way, arguments.ends.as_deref()).await?;
    }
    if wanted(Section::Queue) {
        queue::queue();
    }
    if wanted(Section::Webhook) {
        if operator.is_tributary() {
            webhook::webhook(&operator).await?;
        } else {
            figures::line("webhook: only Tributary's is known; skipped");
        }
    }
    if wanted(Section::Peers) {
        if operator.is_tributary() {
            peers::peers().await?;
        } else {
            figures::line("peers: only Tributary has peers; skipped");
        }
    }
    if wanted(Section::Bursts) {
        if operator.is_tributary() {
            peers::many().await?;
        } else {
            figures::line("bursts: only Tributary bursts by itself; skipped");
        }
    }
    if wanted(Section::Burst) {
        if operator.is_tributary() {
            burst::burst().await?;
        } else {
            figures::line("burst: only Tributary bursts by itself; skipped");
        }
    }
    Ok(())
}
