//! What users read when they ask for help, and when they misuse a command.

use clap::CommandFactory;

use super::*;

/// Every command's path (`agentctl`, `agentctl peer`, `agentctl peer add` …) with its help page.
fn pages(command: &mut clap::Command, path: &str, pages: &mut Vec<(String, String)>) {
    pages.push((path.to_owned(), command.render_long_help().to_string()));
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let path = format!("{path} {}", below.get_name());
        self::pages(below, &path, pages);
    }
}

#[test]
fn help() {
    let mut command = Cli::command();
    command.build();
    let mut all = Vec::new();
    pages(&mut command, "agentctl", &mut all);
    for (path, text) in all {
        // Trailing blanks are clap's; editors remove them from the snapshots.
        let text: Vec<_> = text.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(format!("help of {path}").replace(' ', "_"), text.join("\n"));
    }
}

#[test]
fn misuse() {
    let lines = [
        "agentctl",
        "agentctl stats",
        "agentctl status -o xml",
        "agentctl federation init --name river",
        "agentctl federation issue --ca ca --cluster east --out east --days 0",
        "agentctl peer add west --max-bursts 3",
        "agentctl demo --clusters 1",
        "agentctl demo --clusters 2 --contexts a,b",
    ];
    let texts = lines.map(|line| {
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        let text: Vec<_> = error.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
        format!("$ {line}\n{}", text.join("\n"))
    });
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}
