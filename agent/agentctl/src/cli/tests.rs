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
        "agentctl peer add west --import hpc --import-only lab",
        "agentctl link east west --max-bursts 3 --one-way",
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

/// A command with help of its own for an option reads it like all others, wherever it stands.
#[test]
fn options_of_all_commands_are_read_before_and_after_the_command() {
    for command in [
        "status",
        "shell lake",
        "burst cancel lake-burst-0",
        "migrate check",
        "peers",
        "crds",
        "federation init --name a --out b",
    ] {
        let options = "--namespace flux --context west --kubeconfig file --agent-namespace agents";
        for line in [format!("agentctl {options} {command}"), format!("agentctl {command} {options}")] {
            let Target { kubeconfig, context, namespace, agent_namespace, .. } =
                Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}")).target;
            let read = (kubeconfig, context.as_deref(), namespace.as_deref(), agent_namespace.as_str());
            assert_eq!(read, (Some("file".into()), Some("west"), Some("flux"), "agents"), "{line}");
        }
    }
    let alone = Cli::try_parse_from(["agentctl", "crds"]).unwrap().target;
    assert_eq!((alone.namespace, alone.agent_namespace.as_str()), (None, "tributary-system"));
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}
