//! The Tributary agent of one Kubernetes cluster, as a library: `agentctl demo` and tests run it too.
//!
//! | file | what it does |
//! |---|---|
//! | [`app`] | begins and ends everything in its order |
//! | [`assembly`] | constructs every part and joins them |
//! | [`leader`] | what runs only while this agent leads |
//! | [`identity`] | where `tls.crt`, `tls.key` and `ca.crt` come from, and who renews them |
//! | [`federation_service`] | leads peers to the agent that leads, and knows where they reach it |
//! | [`enrolment`] | lets clusters join that have a token |
//! | [`trust`] | new authorities: ours told to peers, theirs taken |
//! | [`wait`] | waits for the renewal of a certificate, by a clock that may be set |
//! | [`webhook`] | converts MiniClusters for the API server, on every replica |
//! | [`ready`] | waits for the kinds and all their fields, and is not ready once it is asked to stop |
//! | [`rivals`] | refuses to run beside the Flux Operator, or agents that work on the same namespaces |
//! | [`log_level`] | follows `log.filter` while the agent runs |
//! | [`memory`] | how much of its container's memory tunnels may take |
//! | [`ends`] | the program that holds connections through the tunnel beside brokers |
//! | [`network`] | how peers and their lead brokers are reached |
//! | [`traces`] | sends traces |
//! | [`figures`] | what metrics show of the objects |
//! | [`places`], [`asked`] | who may hold connections to a port, and how long a client may take |
//! | [`health`], [`admin_http`], [`local_status`], [`queries`] | probes, metrics, the read-only admin API, peers' queries |
//!
//! # Shutdown, in this order
//!
//! 1. `/readyz` says so, and the admin API stops answering.
//! 2. The leader's scope ends: peers are told, writes in flight are waited for.
//! 3. The Lease is given up, so that another replica leads at once.
//! 4. Watches end, then conversions, `/livez` and `/metrics`.

pub(crate) mod admin_http;
pub mod app;
pub(crate) mod asked;
pub mod assembly;
pub mod cli;
pub(crate) mod ends;
pub(crate) mod enrolment;
pub(crate) mod federation_service;
pub mod figures;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod leader;
pub(crate) mod local_status;
pub(crate) mod log_level;
pub(crate) mod memory;
pub mod network;
pub(crate) mod places;
pub(crate) mod queries;
pub(crate) mod queue_ports;
pub(crate) mod quota_gate;
pub(crate) mod ready;
pub mod rivals;
pub mod traces;
pub(crate) mod trust;
pub(crate) mod unreadable;
pub(crate) mod wait;
pub mod webhook;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tributary::config::Config;

use crate::cli::Cli;

/// Version of this agent, as peers see it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs an agent with a command line (the program's name first) until SIGTERM or SIGINT.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe while printing help is the reader's choice.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    match start(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to tell anyone when standard error is closed too.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Name of the pod this agent runs in, by the downward API; `None`: it runs in none.
pub(crate) fn pod_name() -> Option<String> {
    std::env::var("POD_NAME").ok().filter(|name| !name.is_empty())
}

fn start(cli: &Cli) -> anyhow::Result<()> {
    // Everything is parsed before anything is bound or dialled.
    let config = Config::load(cli.config.as_deref())?;
    if let Err(error) = tributary::telemetry::install(&config.log) {
        tracing::warn!(%error, filter = config.log.filter, "failed to use log.filter: the default one is in use");
    }
    if let Err(error) = tributary::tunnel::sockets::raise_limit() {
        tracing::warn!(%error, "failed to raise the limit of open files: each connection through a tunnel needs one");
    }
    // Only fails when a provider is installed already: any provider is ring here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().context("failed to start the asynchronous runtime")?;
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let asked = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            asked.cancel();
        });
        let _level = cli.config.clone().map(|file| {
            let following = log_level::follow(file, config.log.filter.clone(), tributary::telemetry::change_filter);
            AbortOnDropHandle::new(tokio::spawn(following))
        });
        app::run(config, stop).await
    });
    // What hangs, a name that is looked up or a task that does not yield, keeps nobody from hearing why the agent ended.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}
