//! `agentctl`: the command line of a Tributary federation.

use std::process::ExitCode;

fn main() -> ExitCode {
    tributary_agentctl::run(std::env::args_os())
}
