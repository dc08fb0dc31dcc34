//! `tributary-agent --config FILE`: the agent of one cluster.

use std::process::ExitCode;

fn main() -> ExitCode {
    tributary_agent::main_with(std::env::args_os())
}
