//! The reference of `agentctl`, generated from its help pages.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tributary_agentctl::cli::Cli;
use tributary_agentctl::document::{Schema, schemas};

use crate::generated::{current, repository};
use crate::readme;

const HEAD: &str = "# agentctl\n
Every command with its options, generated from the help pages (`agentctl help COMMAND`). Data goes to standard output,
everything else to standard error. The exit code is 0 (done), 1 (failed) or 2 (misused). Under the name
`kubectl-tributary` on the `PATH`, the program is the plugin `kubectl tributary`
([the command line](installing.md#the-command-line)).

`--kubeconfig` and `--context` mean what they mean to kubectl. So does `-n` of commands that take a name, such as `why`
and `shell`: without it, they look in the context's namespace. Lists show all namespaces, or the one of `-n`. Most
commands that print data take `-o table|wide|json|yaml`; `status`, `peers` and `bursts` take `--watch`.

If an agent runs as a pod, commands reach it by the API server's port-forward. Any other agent needs `--endpoint` or
`TRIBUTARY_ENDPOINT`, or an entry in [`agentctl.toml`](installing.md#the-command-line).

| command | what it does |
|---|---|
";

const DOCUMENTS: &str = "
## Documents

`-o json` and `-o yaml` print one document with `apiVersion: agentctl.tributary.dev/v1`, of the kind that the table
says. Its JSON Schema (2020-12) is in this repository. Within one `apiVersion`, fields are only added: none goes, or
changes its type or its meaning. Read what you need, and ignore what you do not know. A change that would break a reader
gets another `apiVersion`, and [the releases](releases.md) name it. If a command fails after it has printed its document
(`check`, `plan`, `migrate check`), the document says why.\n
| command | kind and schema | what it is |
|---|---|---|
";

/// A row for each command that does something, with a link to its help page.
fn rows(command: &clap::Command, path: &str, text: &mut String) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        let path = format!("{path} {}", below.get_name());
        if !below.is_subcommand_required_set() {
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            *text += &format!("| [`{path}`](#{}) | {about} |\n", path.replace(' ', "-"));
        }
        rows(below, &path, text);
    }
}

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
    rows(&command, "agentctl", &mut text);
    text += DOCUMENTS;
    for Schema { kind, commands, schema } in schemas() {
        let commands: Vec<_> = commands.split(", ").map(|command| format!("`{command}`")).collect();
        let what = schema["description"].as_str().unwrap();
        text += &format!("| {} | [{kind}](schemas/{kind}.json) | {what} |\n", commands.join(", "));
    }
    pages(&mut command, "agentctl", &mut text);
    current("src/guide/agentctl.md", &text);
}

#[test]
fn the_schemas_of_all_documents_are_current() {
    let mut wanted = Vec::new();
    for Schema { kind, schema, .. } in schemas() {
        let file = format!("src/guide/schemas/{kind}.json");
        current(&file, &(serde_json::to_string_pretty(&schema).unwrap() + "\n"));
        jsonschema::meta::validate(&schema).unwrap();
        described(&schema, kind);
        wanted.push(repository().join(file));
    }
    let found = std::fs::read_dir(repository().join("src/guide/schemas")).unwrap().map(|entry| entry.unwrap().path());
    let strangers: Vec<_> = found.filter(|path| !wanted.contains(path)).collect();
    assert!(strangers.is_empty(), "no document stands behind {strangers:?}: delete them");
}

/// What pages say of a command in passing is a command line, too. Words in capitals stand for something.
#[test]
fn every_command_that_is_mentioned_is_one() {
    let mut mentioned = 0;
    for (page, text) in readme::pages() {
        let prose: Vec<&str> = text.split("```").step_by(2).flat_map(|part| part.split("\n\n")).collect();
        for span in prose.iter().flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2)) {
            let line = span.strip_prefix("agentctl ").or_else(|| span.strip_prefix("kubectl tributary "));
            let Some(line) = line.and_then(|line| line.split(" | ").next()) else { continue };
            mentioned += 1;
            let instead = |word| match word {
                "COMMAND" => "status",
                "N" => "1",
                "TIME" => "1m",
                word => word,
            };
            let words: Vec<&str> = line.split_whitespace().map(instead).collect();
            let Err(error) = Cli::try_parse_from([&["agentctl"], &words[..]].concat()) else { continue };
            let fine = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
                // Its name alone, or that of a group.
                ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => is_command(&words),
                _ => false,
            };
            assert!(fine, "{}: `{span}`\n{error}", page.display());
        }
    }
    assert!(mentioned > 100, "{mentioned}: the pages are not read as they are written");
}

/// Whether these words name a command, and say nothing more.
fn is_command(words: &[&str]) -> bool {
    let root = Cli::command();
    let mut command = &root;
    words.iter().all(|word| match command.find_subcommand(word) {
        Some(below) => {
            command = below;
            true
        }
        None => false,
    })
}

/// Every field of ours says what it is.
fn described(schema: &serde_json::Value, path: &str) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        assert!(field["description"].is_string(), "{path}.{name} has no description");
        described(field, &format!("{path}.{name}"));
    }
    for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
        described(definition, name);
    }
}
