//! The reference of `agentctl`, generated from its help pages.

use clap::CommandFactory;
use tributary_agentctl::cli::Cli;

use crate::generated::current;

const HEAD: &str = "# agentctl\n
Every command with its options, generated from the help pages. Data goes to standard output, everything else to standard
error; the exit code is 0 (done), 1 (failed) or 2 (misused). Documents (`-o json`) are those of the admin API, whose
`apiVersion` changes when a field changes its meaning or goes; new fields may come at any time. Under the name
`kubectl-tributary` on the `PATH` the program is the plugin `kubectl tributary`.\n";

/// Every command's help page below its path (`agentctl`, `agentctl peer`, `agentctl peer add` …).
fn pages(command: &mut clap::Command, path: &str, text: &mut String) {
    let page = command.render_long_help().to_string();
    let lines: Vec<_> = page.lines().map(str::trim_end).collect();
    *text += &format!("\n## {path}\n\n```text\n{}\n```\n", lines.join("\n"));
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let path = format!("{path} {}", below.get_name());
        pages(below, &path, text);
    }
}

#[test]
fn the_reference_of_agentctl_is_current() {
    let mut command = Cli::command();
    command.build();
    let mut text = HEAD.to_owned();
    pages(&mut command, "agentctl", &mut text);
    current("src/guide/agentctl.md", &text);
}
