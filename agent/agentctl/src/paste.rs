//! Commands in what is printed, so that they can be pasted.
//!
//! Whoever writes a hint writes each command in backquotes, with the names and the namespace that it is about:
//! `` `agentctl why lake --namespace flux` ``. Which cluster was asked is not known there, nor to an agent that writes a
//! message. [`whole`] adds it where the text is printed. A command for another cluster names that itself, by a context of the
//! cluster's name: `` `agentctl --context west peer resume east` ``.

#[cfg(test)]
pub(crate) mod check;

use clap::{Command, CommandFactory};

use crate::cli::{AGENT_NAMESPACE, Cli, Target};

/// The text with its commands leading to the cluster of `target`.
pub(crate) fn whole(text: &str, target: &Target) -> String {
    let called = crate::called(&std::env::args_os().collect::<Vec<_>>());
    let parts: Vec<&str> = text.split('`').collect();
    // Before the first backquote, and after the last one, no command is enclosed.
    let enclosed = 1..parts.len().saturating_sub(1);
    let complete = |(at, part): (usize, &&str)| match enclosed.contains(&at) {
        true => part.split(" | ").map(|command| completed(command, target, called)).collect::<Vec<_>>().join(" | "),
        false => (*part).to_owned(),
    };
    parts.iter().enumerate().map(complete).collect::<Vec<_>>().join("`")
}

/// One command, with the options of the cluster that it has not yet. `called`: the name of this program for its user.
fn completed(command: &str, target: &Target, called: &str) -> String {
    let Some((program, rest)) = command.split_once(' ') else { return command.to_owned() };
    let (context, offline) = match program {
        "agentctl" => ("context", without_effect(rest)),
        "kubectl" => ("context", Vec::new()),
        "helm" => ("kube-context", Vec::new()),
        _ => return command.to_owned(),
    };
    let mut options = vec![
        ("kubeconfig", target.kubeconfig.as_ref().map(|file| file.display().to_string())),
        (context, target.context.clone()),
    ];
    // Another cluster's agent is reached elsewhere.
    if program == "agentctl" && !has(rest, "context") {
        let namespace = Some(target.agent_namespace.clone()).filter(|one| !one.is_empty() && one != AGENT_NAMESPACE);
        options.extend([("agent-namespace", namespace), ("endpoint", target.typed_endpoint())]);
    }
    let mut text = if program == "agentctl" { called } else { program }.to_owned();
    for (name, value) in options {
        if let Some(value) = value.filter(|_| !has(rest, name) && !offline.iter().any(|one| one == name)) {
            text += &format!(" --{name} {}", quoted(&value));
        }
    }
    format!("{text} {rest}")
}

fn has(arguments: &str, option: &str) -> bool {
    arguments.split_whitespace().any(|word| {
        word.strip_prefix("--").is_some_and(|word| word == option || word.starts_with(&format!("{option}=")))
    })
}

/// Options of the cluster that a command of agentctl hides, since they have no effect on it.
fn without_effect(arguments: &str) -> Vec<String> {
    let hidden = |command: &Command| -> Vec<String> {
        let hidden = command.get_arguments().filter(|argument| argument.is_hide_set());
        hidden.filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
    };
    let mut command = &Cli::command();
    let mut found = Vec::new();
    for word in arguments.split_whitespace() {
        let Some(below) = command.find_subcommand(word) else { break };
        found.extend(hidden(below));
        command = below;
    }
    found
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |one: char| one.is_ascii_alphanumeric() || "_@%+=:,./-".contains(one);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_east() -> Target {
        Target { context: Some("east".into()), agent_namespace: AGENT_NAMESPACE.into(), ..Target::default() }
    }

    #[test]
    fn a_command_that_is_printed_leads_to_the_cluster_that_was_asked() {
        for (written, printed) in [
            ("`agentctl check` says more", "`agentctl --context east check` says more"),
            ("agentctl and `check`", "agentctl and `check`"),
            ("`kubectl logs --namespace flux job/lake`", "`kubectl --context east logs --namespace flux job/lake`"),
            (
                "`agentctl crds | kubectl apply --server-side -f -`",
                "`agentctl crds | kubectl --context east apply --server-side -f -`",
            ),
            ("`helm upgrade x y`", "`helm --kube-context east upgrade x y`"),
            (
                "in west: `agentctl --context west peer resume east`",
                "in west: `agentctl --context west peer resume east`",
            ),
            ("`agentctl link east west`", "`agentctl link east west`"),
            ("one ` is nothing: agentctl check", "one ` is nothing: agentctl check"),
            ("field `spec` of `kubectl explain job`", "field `spec` of `kubectl --context east explain job`"),
        ] {
            assert_eq!(whole(written, &of_east()), printed);
        }
        assert_eq!(whole("`agentctl check`", &Target::default()), "`agentctl check`");
    }

    #[test]
    fn what_was_said_besides_the_context_is_said_again() {
        let target = Target {
            kubeconfig: Some("/home/a b/config".into()),
            context: Some("arn:aws:eks:x:1:cluster/east".into()),
            agent_namespace: "agents".into(),
            ..Target::default()
        };
        assert_eq!(
            whole(
                "`agentctl peers`, `kubectl get nodes`, `agentctl --context west peers`, `agentctl link a b`",
                &target
            ),
            "`agentctl --kubeconfig '/home/a b/config' --context arn:aws:eks:x:1:cluster/east --agent-namespace agents peers`, \
             `kubectl --kubeconfig '/home/a b/config' --context arn:aws:eks:x:1:cluster/east get nodes`, \
             `agentctl --kubeconfig '/home/a b/config' --context west peers`, \
             `agentctl --kubeconfig '/home/a b/config' --agent-namespace agents link a b`"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    /// The danger: a plugin's user is told a command that is not there.
    #[test]
    fn a_plugin_writes_its_own_commands_as_it_was_started() {
        let written = |command| completed(command, &of_east(), "kubectl tributary");
        assert_eq!(written("agentctl check"), "kubectl tributary --context east check");
        assert_eq!(written("kubectl get nodes"), "kubectl --context east get nodes");
    }

    #[test]
    fn an_endpoint_is_repeated_only_if_it_was_typed() {
        let target = Target { endpoint: Some("http://127.0.0.1:1".into()), ..of_east() };
        let text = whole("`agentctl peers`, `agentctl --context west peers`", &target);
        assert_eq!(
            text,
            "`agentctl --context east --endpoint http://127.0.0.1:1 peers`, `agentctl --context west peers`"
        );
    }
}
