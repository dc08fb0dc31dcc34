//! Command line of a Tributary federation.
//!
//! `agentctl` changes things only by writing Kubernetes objects, so that RBAC decides, and reads through the agents'
//! admin API. Data goes to standard output, everything else to standard error; the exit code is 0 (done), 1 (failed) or
//! 2 (misused).
//!
//! One file per command in [`commands`]; [`connect`] reaches an agent; [`output`] prints, [`document`] what programs read,
//! [`paste`] makes commands of hints whole.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod commands;
pub(crate) mod connect;
pub mod document;
mod endpoint;
pub(crate) mod error;
pub(crate) mod explain;
pub(crate) mod hints;
pub(crate) mod kubernetes;
pub(crate) mod output;
pub(crate) mod paste;
#[cfg(test)]
mod pictures;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::cli::{Cli, Target};
use crate::error::Failure;

/// Runs one command line (the program's name first) and returns its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The demo re-executes this program as the agents it starts.
    #[cfg(feature = "demo")]
    if let Some(code) = commands::demo::run_if_asked(&arguments) {
        return code;
    }
    if program(&arguments) == commands::completion::OF_PLUGIN {
        let words: Vec<_> = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        let answered = commands::completion::run_of_plugin(&words);
        return answered.map_or_else(|failure| report(&failure, &Target::default()), |()| ExitCode::SUCCESS);
    }
    let cli = match parse(&arguments) {
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
        Err(error) => {
            let failure = Failure::new("failed to start the asynchronous runtime").because(error);
            return report(&failure, &Target::default());
        }
    };
    let target = cli.target.clone();
    let outcome = runtime.block_on(commands::dispatch(cli));
    // A read of standard input that nobody answers any more must not hold up the end.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|failure| report(&failure, &target))
}

/// Reads the command line. As `kubectl-tributary` on the PATH this program is the plugin `kubectl tributary`, and says so.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    command = command.bin_name(called(arguments));
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The name under which this program was started.
fn program(arguments: &[OsString]) -> &OsStr {
    arguments.first().map(Path::new).and_then(Path::file_stem).unwrap_or_default()
}

/// How a user calls it.
pub(crate) fn called(arguments: &[OsString]) -> &'static str {
    if program(arguments) == "kubectl-tributary" { "kubectl tributary" } else { "agentctl" }
}

fn report(failure: &Failure, target: &Target) -> ExitCode {
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    // Nothing is left to tell anyone when standard error is closed too.
    let _ = writeln!(std::io::stderr(), "{}", paste::whole(&failure.to_string(), target));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_plugin_it_goes_by_the_plugins_name() {
        let usage = |program: &str| {
            let arguments = [program, "peer", "add", "--help"].map(OsString::from);
            parse(&arguments).unwrap_err().to_string()
        };
        assert!(usage("/usr/local/bin/kubectl-tributary").contains("Usage: kubectl tributary peer add "));
        assert!(usage("agentctl").contains("Usage: agentctl peer add "));
        let arguments = ["kubectl-tributary", "version", "--client"].map(OsString::from);
        assert!(matches!(parse(&arguments).unwrap().command, cli::Command::Version(version) if version.client));
    }
}
