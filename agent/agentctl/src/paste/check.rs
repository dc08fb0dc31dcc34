//! What of a text cannot be pasted, and why: for the tests of whoever prints.

use clap::Parser;

use super::*;
use crate::cli::{Burst, Command, MiniCluster};

/// Commands of kubectl that hints use.
const VERBS: [&str; 14] = [
    "annotate", "apply", "auth", "create", "delete", "describe", "exec", "explain", "get", "logs", "patch", "replace",
    "scale", "wait",
];
/// Kinds without a namespace.
const CLUSTER_WIDE: [&str; 8] =
    ["namespace", "namespaces", "nodes", "node", "crd", "crds", "persistentvolumes", "priorityclasses"];

/// Panics unless every command of `text` can be pasted once it is printed.
#[track_caller]
pub(crate) fn pastes(text: &str) {
    let target = Target { context: Some("east".into()), ..Target::default() };
    let text = whole(text, &target);
    let parts: Vec<&str> = text.split('`').collect();
    for (at, part) in parts.iter().enumerate() {
        if at % 2 == 1 && at + 1 < parts.len() {
            for command in part.split(" | ").filter(|command| is_command(command)) {
                assert_eq!(problem(command), None, "{command}\nin: {text}");
            }
        } else {
            assert_eq!(bare(part), None, "a command without backquotes in: {text}");
        }
    }
}

fn is_command(text: &str) -> bool {
    ["agentctl ", "kubectl ", "helm "].iter().any(|program| text.starts_with(program))
}

/// A command in the middle of prose: nobody can tell where it ends.
fn bare(prose: &str) -> Option<String> {
    let words: Vec<&str> = prose.split_whitespace().collect();
    let cli = Cli::command();
    let is_verb = |program: &str, word: &str| match program {
        "agentctl" => word.starts_with("--") || cli.find_subcommand(word).is_some(),
        "kubectl" => word.starts_with('-') || VERBS.contains(&word),
        "helm" => word.starts_with('-') || ["install", "upgrade"].contains(&word),
        _ => false,
    };
    let program = |word: &str| word.trim_start_matches(['(', '"']).to_owned();
    let found =
        words.windows(2).find(|pair| is_verb(&program(pair[0]), pair[1].trim_end_matches([',', '.', ';', ')'])));
    found.map(|pair| pair.join(" "))
}

/// Why a command cannot be pasted.
fn problem(command: &str) -> Option<String> {
    let words = words(command);
    if let Some(word) = words.iter().find(|word| is_placeholder(word)) {
        return Some(format!("{word} is not filled in"));
    }
    match words[0].as_str() {
        "agentctl" => of_agentctl(&words),
        "kubectl" => of_kubectl(&words),
        _ => None,
    }
}

fn is_placeholder(word: &str) -> bool {
    let value = word.rsplit_once('=').map_or(word, |(_, value)| value);
    value.len() > 1 && value.chars().all(|one| one.is_ascii_uppercase() || one == '_') || word.starts_with('<')
}

fn of_agentctl(words: &[String]) -> Option<String> {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return error.use_stderr().then(|| error.to_string()),
    };
    // A name means nothing without its namespace.
    let names = matches!(
        cli.command,
        Command::Why(_)
            | Command::Shell(_)
            | Command::Rekey(_)
            | Command::Restart(_)
            | Command::Suspend(_)
            | Command::Resume(_)
            | Command::MiniCluster(MiniCluster::Describe(_))
            | Command::Burst(Burst::Cancel(_) | Burst::Retry(_) | Burst::Release(_))
    );
    if names && cli.target.namespace.is_none() {
        return Some("no namespace".into());
    }
    let takes_context = !without_effect(&words[1..].join(" ")).iter().any(|one| one == "context");
    (cli.target.context.is_none() && takes_context).then(|| "no context".into())
}

fn of_kubectl(words: &[String]) -> Option<String> {
    if !words.iter().any(|word| word == "--context") {
        return Some("no context".into());
    }
    let mut rest = words[1..].iter().map(String::as_str);
    let mut plain = Vec::new();
    let mut everywhere = false;
    while let Some(word) = rest.next() {
        match word {
            "--context" | "--kubeconfig" => drop(rest.next()),
            "-n" | "--namespace" => {
                everywhere = rest.next().is_some_and(|namespace| !namespace.is_empty());
            }
            "-A" | "--all-namespaces" => everywhere = true,
            "--" => break,
            word if word.starts_with('-') => {}
            word => plain.push(word),
        }
    }
    let verb = plain.first()?;
    if !VERBS.contains(verb) {
        return Some(format!("kubectl has no {verb}"));
    }
    let kind = plain.get(1).map(|kind| kind.split(['/', '.']).next().unwrap_or_default()).unwrap_or_default();
    let none = CLUSTER_WIDE.contains(&kind) || matches!(*verb, "apply" | "explain" | "replace");
    (!none && !everywhere).then(|| "no namespace".into())
}

/// As a shell splits it; of quotes only single ones.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for one in command.chars() {
        match one {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            one => words.last_mut().unwrap().push(one),
        }
    }
    words
}

#[test]
fn what_cannot_be_pasted_is_found() {
    for text in [
        "`agentctl burst retry NAME --namespace flux`",
        "`agentctl why lake`",
        "`agentctl rewhy lake --namespace flux`",
        "`kubectl describe pod lake-0`",
        "`kubectl logs lake-0 --namespace  --container lake`",
        "`kubectl decsribe pod lake-0 --namespace flux`",
        "agentctl check says more",
        "more: kubectl get pods -A",
        "see (agentctl bursts)",
    ] {
        assert!(std::panic::catch_unwind(|| pastes(text)).is_err(), "{text}");
    }
    pastes("agentctl and the agent of east: `agentctl check` says more, `agentctl crds | kubectl apply -f -` too");
}

/// A page has no context to add.
#[test]
fn every_command_of_the_page_on_symptoms_can_be_pasted() {
    let page = include_str!("../../../../src/guide/troubleshooting.md");
    pastes(page);
    let elsewhere = Target { context: Some("elsewhere".into()), ..Target::default() };
    assert_eq!(whole(page, &elsewhere), page, "a command of that page names no context");
}
