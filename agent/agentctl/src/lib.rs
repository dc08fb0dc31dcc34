//! Command line of a Tributary federation.
//!
//! `agentctl` changes things only by writing Kubernetes objects, so that RBAC decides, and reads through the agents'
//! admin API. Data goes to standard output, everything else to standard error; the exit code is 0 (done), 1 (failed) or
//! 2 (misused).
//!
//! One file per command in [`commands`]; [`connect`] reaches an agent; [`output`] prints.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod commands;
pub mod connect;
pub mod error;
pub mod kubernetes;
pub mod output;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::error::Failure;

/// Runs one command line (the program's name first) and returns its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The demo re-executes this program as the agents it starts.
    #[cfg(feature = "demo")]
    if let Some(code) = commands::demo::run_if_asked(&arguments) {
        return code;
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe while printing help is the reader's choice.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    // Only fails when a provider is installed already: any provider is ring here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::new("failed to start the asynchronous runtime").because(error)),
    };
    match runtime.block_on(commands::dispatch(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn report(failure: &Failure) -> ExitCode {
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    // Nothing is left to tell anyone when standard error is closed too.
    let _ = writeln!(std::io::stderr(), "{failure}");
    ExitCode::FAILURE
}
