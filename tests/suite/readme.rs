//! The README: every command in it can be run, every file it names exists, and its examples are what we accept.

use std::fs;
use std::path::PathBuf;

use clap::Parser;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::config::Config;
use tributary::federation::identity::SpiffeId;
use tributary::render::{Context, render};
use tributary_agentctl::cli::Cli;
use tributary_tests::chart;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// Contents of the fenced blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let (text, opening) = (readme(), format!("```{language}\n"));
    let opened = text.split(&opening).skip(1);
    opened.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// The command lines of the README: those of the `console` blocks, of the table of commands, and the test command.
fn commands() -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for block in blocks("console") {
        commands.extend(block.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned));
    }
    let text = readme();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `agentctl "));
    commands.extend(cells.map(|cell| format!("agentctl {}", cell.split('`').next().unwrap())));
    commands.push(test_command());
    commands
}

/// The command that `.ci/run` reads from the README, by the same mark.
fn test_command() -> String {
    let text = readme();
    let line = text.lines().find_map(|line| line.strip_prefix("<!-- tests -->`")?.strip_suffix('`'));
    line.expect("README.md has the line <!-- tests -->`…`").to_owned()
}

#[test]
fn every_command_is_one_that_can_be_run() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:#?}");
    for line in commands {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "agentctl" => accepts::<Cli>(&words, &line),
            "tributary-agent" => {
                accepts::<tributary_agent::cli::Cli>(&words, &line);
                configuration(after(&words, "--config"));
            }
            "cargo" => cargo(&words, &line),
            "kubectl" => kubectl(&words, &line),
            "helm" => helm(&words, &line),
            _ => panic!("nobody knows whether this can be run: {line}"),
        }
    }
}

fn accepts<C: Parser>(words: &[&str], line: &str) {
    if let Err(error) = C::try_parse_from(words) {
        panic!("{line}\n{error}");
    }
}

fn cargo(words: &[&str], line: &str) {
    assert!(words.contains(&"--locked"), "the lock file holds the dependencies together: {line}");
    match words[1] {
        "run" => {
            let arguments = words.split(|word| *word == "--").nth(1).unwrap_or_default();
            match after(words, "-p") {
                "tributary-agentctl" => accepts::<Cli>(&[&["agentctl"], arguments].concat(), line),
                "tributary-bench" => {
                    assert!(arguments.is_empty(), "{line}");
                    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
                    assert!(manifest.contains(&format!("[profile.{}]", after(words, "--profile"))), "{line}");
                }
                package => panic!("nobody knows whether {package} can be run: {line}"),
            }
        }
        "install" => {
            let manifest = root().join(after(words, "--path")).join("Cargo.toml");
            assert!(fs::read_to_string(&manifest).is_ok_and(|text| text.contains("[package]")), "{line}");
        }
        "test" => assert_eq!(line, test_command()),
        _ => panic!("nobody knows whether this can be run: {line}"),
    }
}

fn kubectl(words: &[&str], line: &str) {
    let kinds: Vec<String> =
        tributary::api::crds().into_iter().map(|definition| definition.spec.names.plural).collect();
    let verb =
        words.iter().position(|word| ["apply", "create", "get"].contains(word)).unwrap_or_else(|| panic!("{line}"));
    match words[verb] {
        "apply" => assert!(root().join(after(words, "-f")).exists(), "{line}"),
        "create" => assert_eq!(words[verb + 1..], ["namespace", "tributary-system"], "{line}"),
        _ => {
            let named: Vec<&str> = words[verb + 1].split(',').collect();
            assert!(named.iter().all(|name| kinds.iter().any(|kind| kind == name)), "{line}: {kinds:?}");
        }
    }
}

/// The chart is there and takes the values. `cluster/chart.rs` installs it with this very line.
fn helm(words: &[&str], line: &str) {
    let ["helm", "install", name, chart, options @ ..] = words else { panic!("{line}") };
    let mut arguments = vec!["template", name, chart, "--kube-version", chart::KUBERNETES];
    for (at, option) in options.iter().enumerate().filter(|(_, option)| **option == "--set") {
        arguments.extend([*option, options[at + 1]]);
    }
    let output = chart::helm(&root(), None, &arguments).unwrap();
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn after<'a>(words: &[&'a str], option: &str) -> &'a str {
    let at = words.iter().position(|word| *word == option).unwrap_or_else(|| panic!("no {option} in {words:?}"));
    words[at + 1]
}

fn configuration(path: &str) {
    let text = fs::read_to_string(root().join(path)).unwrap();
    if let Err(error) = Config::from_toml(&text) {
        panic!("{path}: {error}");
    }
}

#[test]
fn the_reference_configuration_has_every_key() {
    let blocks = blocks("toml");
    let [block] = blocks.as_slice() else { panic!("one block of TOML is expected") };
    let mut written = serde_json::to_value(Config::from_toml(block).unwrap()).unwrap();
    for (section, keys) in serde_json::to_value(Config::default()).unwrap().as_object().unwrap() {
        for key in keys.as_object().unwrap().keys() {
            assert!(block.contains(&format!("\n{key} = ")), "{section}.{key} is not in the README");
        }
        written.as_object_mut().unwrap().remove(section);
    }
    assert_eq!(written, Value::Object(serde_json::Map::new()), "no section is missing");
}

#[test]
fn every_file_that_is_linked_exists() {
    let text = readme();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for target in targets.filter(|target| !target.starts_with("https://")) {
        assert!(root().join(target).exists(), "{target}");
    }
}

/// What cert-manager is asked for has the shape of an identity.
fn certificate(spec: &Value) {
    assert_eq!(spec["secretName"], tributary::config::IDENTITY_SECRET);
    let uris: Vec<&str> = spec["uris"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let [uri] = uris.as_slice() else { panic!("exactly one URI counts: {uris:?}") };
    uri.parse::<SpiffeId>().unwrap();
    for usage in ["server auth", "client auth"] {
        assert!(spec["usages"].as_array().unwrap().contains(&usage.into()), "{usage}: an agent dials and listens");
    }
}

#[test]
fn every_example_is_accepted_whole_and_can_be_carried_out() {
    let mut seen = 0;
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        if name.ends_with(".toml") {
            configuration(&format!("examples/{name}"));
        } else {
            let value: Value = serde_saphyr::from_str(&text).unwrap();
            match value["kind"].as_str() {
                Some("MiniCluster") => {
                    let mini_cluster: MiniCluster = whole(&name, &value);
                    let rendered = render(&mini_cluster, &Context::default());
                    let rendered = rendered.unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
                    assert!(rendered.unsupported.is_empty(), "{name}: {:?} do nothing", rendered.unsupported);
                }
                Some("ClusterPeer") => drop(whole::<ClusterPeer>(&name, &value)),
                Some("Certificate") => certificate(&value["spec"]),
                kind => panic!("{name}: {kind:?}"),
            }
        }
        assert!(readme().contains(&format!("examples/{name}")), "the README does not mention {name}");
        seen += 1;
    }
    assert!(seen >= 5);
}

/// Reads an object, and sees that nothing of it was ignored.
fn whole<T: DeserializeOwned + serde::Serialize>(name: &str, value: &Value) -> T {
    let object: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let written = serde_json::to_value(&object).unwrap();
    let mut lost = Vec::new();
    super::corpus::missing(value, &written, "", &mut lost);
    assert!(lost.is_empty(), "{name}: ignored: {lost:?}");
    object
}
