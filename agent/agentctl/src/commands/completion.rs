//! `agentctl completion SHELL`: what a shell needs to complete this command line.

use clap::CommandFactory;

use crate::cli::{Cli, Completion};
use crate::error::Result;
use crate::output;

/// Runs `agentctl completion`.
pub fn run(completion: &Completion) -> Result<()> {
    output::print(&script(completion.shell))
}

fn script(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "agentctl", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_learns_every_command() {
        for shell in clap_complete::Shell::value_variants() {
            let script = script(*shell);
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
