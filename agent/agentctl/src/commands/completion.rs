//! `agentctl completion SHELL`: what a shell needs to complete this command line. And what kubectl needs to complete
//! `kubectl tributary`: it asks the program `kubectl_complete-tributary`, which is this one under another name.

use std::collections::BTreeSet;

use clap::{Arg, Command, CommandFactory};

use crate::cli::{Cli, Completion};
use crate::error::Result;
use crate::output;

/// Name of this program under which kubectl asks it what could come next.
pub(crate) const OF_PLUGIN: &str = "kubectl_complete-tributary";

/// What follows the answers to kubectl: that the shell shall not offer file names instead, and that it may. These are cobra's
/// words, which completion of kubectl is written with:
/// <https://pkg.go.dev/github.com/spf13/cobra#ShellCompDirective>.
const NO_FILES: &str = ":4";
const FILES: &str = ":0";

/// Runs `agentctl completion`.
pub(crate) fn run(completion: &Completion) -> Result<()> {
    output::print(&script(completion.shell))
}

/// Answers kubectl, which says all words behind `kubectl tributary`; the last one is what is being written, and may be empty.
pub(crate) fn run_of_plugin(words: &[String]) -> Result<()> {
    output::print(&answer(words))
}

fn script(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "agentctl", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn answer(words: &[String]) -> String {
    let mut root = Cli::command();
    root.build();
    let (written, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut command = &root;
    // The option whose value comes next.
    let mut open = None;
    for word in before {
        if word == "--" {
            // Of somebody else's program.
            return format!("{FILES}\n");
        }
        open = match open {
            Some(_) => None,
            None if word.starts_with('-') => option(command, word),
            None => {
                command = command.find_subcommand(word).unwrap_or(command);
                None
            }
        };
    }
    let mut offers = BTreeSet::new();
    if let Some(option) = open {
        offers.extend(values(option));
    } else if written.starts_with('-') {
        let shown = command.get_opts().chain(command.get_arguments().filter(|one| takes_no_value(one)));
        offers.extend(shown.filter(|one| !one.is_hide_set()).filter_map(|one| Some(format!("--{}", one.get_long()?))));
    } else {
        let below = command.get_subcommands().filter(|one| !one.is_hide_set());
        offers.extend(below.map(|one| one.get_name().to_owned()));
        offers.extend(command.get_positionals().flat_map(values));
    }
    // What has no list of values is often a file.
    let end = if offers.is_empty() { FILES } else { NO_FILES };
    let fitting = offers.into_iter().filter(|offer| offer.starts_with(written)).map(|offer| offer + "\n");
    fitting.chain([format!("{end}\n")]).collect()
}

/// The option that `word` names, if its value is the next word.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let named = |one: &&Arg| match word.strip_prefix("--") {
        Some(long) => one.get_long() == Some(long),
        None => one.get_short().is_some_and(|short| word == format!("-{short}")),
    };
    command.get_opts().find(named)
}

fn takes_no_value(argument: &Arg) -> bool {
    !argument.is_positional() && !argument.get_action().takes_values()
}

fn values(argument: &Arg) -> Vec<String> {
    let shown = argument.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
    shown.map(|value| value.get_name().to_owned()).collect()
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

    #[test]
    fn kubectl_is_told_what_could_come_next() {
        let answer = |line: &str| answer(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(answer("pe"), "peer\npeers\n:4\n");
        assert_eq!(answer("peer re"), "remove\nresume\n:4\n");
        assert_eq!(answer("--context west peer d"), "drain\n:4\n", "a value is no command");
        assert_eq!(answer("status -o "), "json\ntable\nwide\nyaml\n:4\n");
        assert_eq!(answer("link east west --on"), "--one-way\n--only-egress-to\n:4\n");
        assert_eq!(answer("completion z"), "zsh\n:4\n");
        assert_eq!(answer("crds --con"), ":4\n", "what has no effect is not offered");
        assert_eq!(answer("plan -f "), ":0\n", "a file");
        assert_eq!(answer("shell lake -- fl"), ":0\n", "a program there");
        assert!(super::answer(&[]).starts_with("bursts\n") || super::answer(&[]).contains("\nstatus\n"));
    }
}
