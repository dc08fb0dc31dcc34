//! The pages: every command in them can be run, every file they name exists, and their examples are what we accept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::config::Config;
use tributary::contract::RejectionReason;
use tributary::federation::identity::SpiffeId;
use tributary::federation::wire::registry::CloseCode;
use tributary::render::problem::reason;
use tributary::render::{Context, render};
use tributary_agentctl::cli::Cli;
use tributary_tests::chart;
use tributary_tests::corpus::example_files;
use tributary_tests::pages::{OF_A_RELEASE, ON_THEIR_OWN};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// The pages for people: the front page, the guide, one for each example and each chart, the protocol, and those for
/// contributors.
pub(crate) fn pages() -> BTreeMap<PathBuf, String> {
    let files = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let pages = files("src/guide")
        .chain(files(".github"))
        .chain(example_files().unwrap())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let others = [
        "README.md",
        "charts/tributary/README.md",
        "charts/tributary/charts/tributary-crds/README.md",
        "src/federation/protocol.md",
    ];
    let pages = pages.chain(others.map(|page| root().join(page)));
    pages.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Contents of the fenced blocks of a language.
fn blocks_of(text: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    let opened = text.split(&opening).skip(1);
    opened.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// The command lines of all pages: those of the `console` blocks, and the test command.
fn commands() -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for page in pages().values() {
        commands.extend(lines_of(page, "console"));
        commands.extend(lines_of(page, "console external"));
        commands.extend(lines_of(page, "console helm"));
    }
    commands.push(test_command());
    commands
}

/// The command lines of fenced blocks.
fn lines_of(text: &str, language: &str) -> Vec<String> {
    let blocks = blocks_of(text, language);
    let lines = blocks.iter().flat_map(|block| block.lines()).filter_map(|line| line.strip_prefix("$ "));
    // What stands behind a command is for the reader.
    lines.map(|line| line.split(" # ").next().unwrap().trim_end().to_owned()).collect()
}

/// Every command is carried out by a walk, or its fence says that it is not: those are listed, with their number.
#[test]
fn every_command_is_carried_out_or_marked() {
    let list = fs::read_to_string(root().join("tests/walks.txt")).unwrap();
    let walks: Vec<Vec<&str>> =
        list.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(" | ").collect()).collect();
    let names = ["demo", "clusters", "helm", "migration", "tunnel", "gpus", "providers"];
    assert!(walks.iter().all(|walk| walk.len() == 3 && names.contains(&walk[2])), "{walks:?}");
    let (mut carried_out, mut external) = (0, Vec::new());
    for (path, text) in pages() {
        let path = path.canonicalize().unwrap();
        let page = path.strip_prefix(root().canonicalize().unwrap()).unwrap().display().to_string();
        let of_page: Vec<_> = walks.iter().filter(|walk| walk[0] == page).collect();
        let whole = of_page.iter().any(|walk| walk[1] == "-");
        for section in text.split("\n## ") {
            let heading = format!("## {}", section.lines().next().unwrap_or_default());
            let lines = lines_of(section, "console");
            let walked = whole || of_page.iter().any(|walk| walk[1] == heading);
            assert!(walked || lines.is_empty(), "{page}, {heading}: no walk of tests/walks.txt carries out {lines:#?}");
            carried_out += lines.len();
        }
        let lines = lines_of(&text, "console helm");
        let walked = OF_A_RELEASE.iter().chain(&ON_THEIR_OWN).any(|of_helm| *of_helm == page);
        assert!(walked || lines.is_empty(), "{page}: tests/cluster/release.rs does not carry out {lines:#?}");
        carried_out += lines.len();
        for line in lines_of(&text, "console external") {
            assert!(needs_what_is_not_here(&line), "{page}: a walk can carry this out: {line}");
            external.push(format!("{page}: {line}"));
        }
    }
    let head = format!("{carried_out} carried out, {} external", external.len());
    insta::assert_snapshot!(format!("{head}\n\n{}", external.join("\n")));
}

/// Whether a command needs more than control planes: containers that run, a registry, a forge, a machine to install to, or
/// hours; or runs tests, such as this one.
fn needs_what_is_not_here(line: &str) -> bool {
    let runs_in_pods = line.contains(" shell ") || line.contains(" logs ");
    let released =
        line.contains(" oci://") || ["tar ", "ln ", "sha256sum "].iter().any(|program| line.starts_with(program));
    let installs = ["cargo install ", "docker ", "pip ", "flux-restful-cli "];
    let installs = installs.iter().any(|program| line.starts_with(program));
    let tests = line == ".ci/run" || line.contains("cargo test ") || line.starts_with("cargo deny ");
    runs_in_pods || released || installs || tests
}

/// What a reader would copy stands in a fence that is counted above.
#[test]
fn commands_are_in_fences_for_commands() {
    let programs = ["agentctl", "cargo", "docker", "flux", "helm", "kubectl", "pip", "tributary-agent", "export"];
    for (path, text) in pages() {
        for (fence, block) in text.split("\n```").enumerate().filter(|(at, _)| at % 2 == 1) {
            let (language, lines) = block.split_once('\n').unwrap_or((block, ""));
            for line in lines.lines().filter(|_| !language.starts_with("console")) {
                let first = line
                    .trim_start_matches("$ ")
                    .split_whitespace()
                    .find(|word| !word.contains('='))
                    .unwrap_or_default();
                let shown = line.starts_with("$ ") || programs.contains(&first) && !line.starts_with(' ');
                assert!(!shown, "{}, fence {fence} ({language}): {line}", path.display());
            }
        }
    }
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
        let assigns = |word: &&str| {
            word.split_once('=')
                .is_some_and(|(name, _)| name.chars().all(|one| one.is_ascii_uppercase() || "_2".contains(one)))
        };
        let words: Vec<&str> = line.split_whitespace().skip_while(assigns).collect();
        match words[0] {
            // A client of somebody else; `suite/scripts` runs it.
            "pip" | "export" | "flux-restful-cli" => {}
            // What a release has, and whether the workflow makes it, is in `suite/releases.rs`.
            "tar" | "ln" | "sha256sum" => {}
            "docker" => docker(&words, &line),
            "agentctl" => accepts::<Cli>(&words, &line),
            "tributary-agent" => {
                accepts::<tributary_agent::cli::Cli>(&words, &line);
                let file = after(&words, "--config");
                // Or one of the reader's own.
                if file.contains('/') {
                    configuration(file);
                }
            }
            "cargo" => cargo(&words, &line),
            ".ci/run" => assert!(root().join(&line).is_file(), "{line}"),
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
        // It finds its configuration by this name.
        "deny" => assert!(root().join(".cargo/deny.toml").is_file(), "{line}"),
        "test" => assert!(line == test_command() || has_tests(&words[3..]), "{line}"),
        _ => panic!("nobody knows whether this can be run: {line}"),
    }
}

/// Whether a package has these tests: `-p PACKAGE --lib FILTER`, or `-p tributary-tests --test TARGET FILTER`.
fn has_tests(words: &[&str]) -> bool {
    let (folder, filter) = match words {
        ["-p", "tributary-tests", "--test", target, filter @ ..] => {
            (format!("tests/{target}"), filter.first().copied().unwrap_or("main"))
        }
        ["-p", room, filter, ..] => (format!("src/{}", room.trim_start_matches("tributary-")), *filter),
        _ => return false,
    };
    let module = root().join(folder).join(filter.trim_end_matches("::").replace("::", "/"));
    module.is_dir() || module.with_extension("rs").is_file()
}

fn docker(words: &[&str], line: &str) {
    let image = format!("REGISTRY/tributary-agent:{}", env!("CARGO_PKG_VERSION"));
    match &words[1..] {
        ["build", "--file", file, "--tag", tag, "."] => assert!(root().join(file).is_file() && *tag == image, "{line}"),
        ["push", tag] | ["buildx", "imagetools", "inspect", tag, ..] => assert_eq!(*tag, image, "{line}"),
        _ => panic!("nobody knows whether this can be run: {line}"),
    }
}

fn kubectl(words: &[&str], line: &str) {
    let kinds: Vec<String> =
        tributary::api::crds().into_iter().map(|definition| definition.spec.names.plural).collect();
    let verbs = ["apply", "create", "get", "label", "logs", "delete", "describe", "scale", "patch", "wait"];
    let verb = words.iter().position(|word| verbs.contains(word)).unwrap_or_else(|| panic!("{line}"));
    match words[verb] {
        what @ ("apply" | "delete") if what == "apply" || words.contains(&"-f") => {
            assert!(root().join(after(words, "-f")).exists(), "{line}");
        }
        "create" => assert_eq!(words[verb + 1..], ["namespace", "tributary-system"], "{line}"),
        "wait" => {
            let (kind, _) = words.last().and_then(|last| last.split_once('/')).unwrap_or_else(|| panic!("{line}"));
            assert!(kinds.iter().any(|known| known.strip_suffix('s') == Some(kind)), "{line}: {kinds:?}");
        }
        "logs" if words[verb + 1].starts_with("job/") => {}
        // Of a MiniCluster's brokers, or of the agents.
        "logs" => {
            let selected = after(words, "-l");
            assert!(selected.starts_with("job-name=") || selected == "app.kubernetes.io/name=tributary", "{line}");
        }
        // What Kubernetes has; the walks see whether it is there.
        "get" if ["secret", "pods", "service", "lease"].contains(&words[verb + 1]) => {}
        // The other operator's.
        "scale" | "delete" if words[verb + 1] == "deployment" => {
            assert!(words[..verb].ends_with(&["--namespace", "operator-system"]), "{line}");
        }
        "patch" => assert!(
            [["crd", "miniclusters.flux-framework.org"], ["minicluster", "first"]]
                .iter()
                .any(|named| words[verb + 1..verb + 3] == *named),
            "{line}"
        ),
        // The guard that the chart of the kinds brings.
        "delete" if words[verb + 1].starts_with("validatingadmissionpolicy") => {
            let guard = tributary::api::v1alpha1::guard().0.metadata.name;
            assert_eq!(Some(words[verb + 2]), guard.as_deref(), "{line}");
        }
        "delete" if words[verb + 1] == "crd" => {
            let named: Vec<&str> = words[verb + 2..].iter().map(|name| name.split('.').next().unwrap()).collect();
            assert!(named.iter().all(|plural| kinds.iter().any(|kind| kind == plural)), "{line}: {kinds:?}");
            // Whoever takes them away takes all of ours: what stays is upstream's, and is named by itself.
            let ours = kinds.iter().filter(|kind| *kind != "miniclusters");
            assert!(
                named == ["miniclusters"] || ours.clone().all(|kind| named.contains(&kind.as_str())),
                "{line}: {kinds:?}"
            );
        }
        _ => {
            let named: Vec<&str> = words[verb + 1].split(',').collect();
            // One, or all of a kind.
            let known = |name: &&str| kinds.iter().any(|kind| kind == name || kind.strip_suffix('s') == Some(*name));
            assert!(named.iter().all(known), "{line}: {kinds:?}");
        }
    }
}

/// The reference names every field of a spec that upstream's MiniCluster does not have. Containers of all three kinds have
/// the same.
#[test]
fn every_added_field_is_named() {
    let definition = tributary::api::crds().into_iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap();
    let definition = serde_json::to_value(definition).unwrap();
    let upstream = tributary_tests::upstream::definition().unwrap();
    let spec = |one: &Value| one.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap().to_owned();
    let mut added = BTreeMap::<String, BTreeSet<String>>::new();
    add(&spec(&definition), &spec(&upstream), "spec", &mut added);
    let text = include_str!("fields_head.md");
    for (place, fields) in added {
        let fields = fields.into_iter().collect::<Vec<_>>().join(", ");
        let wanted =
            if fields.contains(", ") { format!("`{place}.{{{fields}}}`") } else { format!("`{place}.{fields}`") };
        assert!(text.contains(&format!("\n- {wanted}\n")), "tests/suite/fields_head.md lacks {wanted}");
    }
}

/// Fields of `ours` that `theirs` has not, by where they are; what is below such a field is not listed.
fn add(ours: &Value, theirs: &Value, place: &str, into: &mut BTreeMap<String, BTreeSet<String>>) {
    for (name, field) in ours["properties"].as_object().into_iter().flatten() {
        match theirs["properties"].get(name) {
            Some(known) => add(field, known, &format!("{place}.{name}"), into),
            None => {
                let place = place.strip_prefix("spec.").unwrap_or(place).replace("services[]", "containers[]");
                let place = place.replace("flux.container.", "containers[].");
                into.entry(place).or_default().insert(name.clone());
            }
        }
    }
    if ours["items"].is_object() {
        add(&ours["items"], &theirs["items"], &format!("{place}[]"), into);
    }
}

/// The chart is there and takes the values. `cluster/chart.rs` installs it with this very line.
fn helm(words: &[&str], line: &str) {
    let (name, chart, options) = match words {
        ["helm", "install" | "upgrade", name, chart, options @ ..] => (name, *chart, options),
        // Its name is the release's.
        ["helm", "uninstall", "tributary" | "tributary-crds", "--kube-context", _, "--namespace", _] => return,
        _ => panic!("{line}"),
    };
    // Of a release: the same chart, as it is packed from here.
    let chart = match chart.strip_prefix("oci://REGISTRY/") {
        Some(chart) => {
            assert_eq!(after(words, "--version"), env!("CARGO_PKG_VERSION"), "{line}");
            chart
        }
        None => chart,
    };
    let mut arguments = vec!["template", name, chart, "--kube-version", chart::KUBERNETES];
    if words[1] == "upgrade" {
        // With --reuse-values, whatever is new in a chart has no value at all.
        assert!(options.contains(&"--reset-then-reuse-values"), "{line}");
        if chart == "charts/tributary" {
            arguments.extend(["--set", "cluster.name=east"]);
        }
    }
    for (at, option) in options.iter().enumerate().filter(|(_, option)| ["--set", "--values"].contains(*option)) {
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
    let page = fs::read_to_string(root().join("src/guide/configuration.md")).unwrap();
    let blocks = blocks_of(&page, "toml");
    let [block] = blocks.as_slice() else { panic!("one block of TOML is expected") };
    let mut written = serde_json::to_value(Config::from_toml(block).unwrap()).unwrap();
    for (section, keys) in serde_json::to_value(Config::default()).unwrap().as_object().unwrap() {
        for key in keys.as_object().unwrap().keys() {
            assert!(block.contains(&format!("\n{key} = ")), "{section}.{key} is not on the page");
        }
        written.as_object_mut().unwrap().remove(section);
    }
    assert_eq!(written, Value::Object(serde_json::Map::new()), "no section is missing");
}

#[test]
fn every_file_that_is_linked_exists() {
    for (page, text) in pages() {
        let prose: String = text.split("```").step_by(2).collect();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("https://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            // `super::` and `crate::` are for rustdoc, which has the same pages.
            let for_rustdoc = file.contains("::");
            assert!(for_rustdoc || linked.exists(), "{}: {target}", page.display());
            assert!(anchor.is_empty() || has_heading(&linked, anchor), "{}: {target}", page.display());
        }
    }
}

#[test]
fn the_front_page_is_short_and_the_start_page_leads_to_every_page() {
    let words = readme().split_whitespace().count();
    assert!(words <= 1200, "README.md has {words} words: move what is more than a first look into the guide");
    let start = fs::read_to_string(root().join("src/guide/README.md")).unwrap();
    for page in pages().into_keys().filter(|page| page.parent().unwrap().ends_with("src/guide")) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || start.contains(&format!("({name})")), "src/guide/README.md lacks {name}");
    }
}

/// Whoever sees a reason finds it on the page of symptoms.
#[test]
fn every_reason_is_explained() {
    let page = fs::read_to_string(root().join("src/guide/troubleshooting.md")).unwrap();
    let rejections = RejectionReason::KNOWN.iter().map(|reason| reason.as_str().to_owned());
    let refusals = CloseCode::ALL.iter().filter_map(|code| code.refusal()).map(|reason| reason.as_str().to_owned());
    let problems = reason::ALL.map(str::to_owned);
    let queues = labels::reason::ALL.map(str::to_owned);
    // Of runs that wait for what is not the agent's to give.
    let waits = ["JobSuspended", "Asleep", "Spent", "NotReached", "Unreadable", "NotCheckable"].map(str::to_owned);
    let all = rejections.chain(refusals).chain(problems).chain(queues).chain(waits);
    let missing: Vec<String> = all.filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "not explained: {missing:?}");
}

/// Whether a page has the heading that the anchor stands for.
fn has_heading(page: &Path, anchor: &str) -> bool {
    let text = fs::read_to_string(page).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let word = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|one| one.is_alphanumeric() || "-_".contains(*one)).collect::<String>()
    };
    headings.map(word).any(|heading| heading == anchor)
}

/// What cert-manager is asked for has the shape of an identity, and is what the agent expects by the values beside it; and
/// whoever signs it is there.
fn certificate(documents: &[Value]) {
    let of = |kind: &str, name: &Value| {
        let found = documents.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == *name);
        found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    };
    let spec = &of("Certificate", &"tributary-identity".into())["spec"];
    assert_eq!(spec["secretName"], tributary::config::IDENTITY_SECRET);
    let uris: Vec<&str> = spec["uris"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let [uri] = uris.as_slice() else { panic!("exactly one URI counts: {uris:?}") };
    let id: SpiffeId = uri.parse().unwrap();
    for usage in ["server auth", "client auth"] {
        assert!(spec["usages"].as_array().unwrap().contains(&usage.into()), "{usage}: an agent dials and listens");
    }
    let values = fs::read_to_string(root().join("examples/cert-manager/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let identity = &values["federation"]["identity"];
    let wanted = format!("spiffe://{}/cluster/{}", text(&identity["trustDomain"]), text(&values["cluster"]["name"]));
    assert_eq!((id.to_string(), &identity["secret"]), (wanted, &spec["secretName"]));

    let issuer = &of("Issuer", &spec["issuerRef"]["name"])["spec"];
    let authority = documents.iter().find(|one| one["spec"]["secretName"] == issuer["ca"]["secretName"]).unwrap();
    assert_eq!(authority["spec"]["isCA"], true);
    of("Issuer", &authority["spec"]["issuerRef"]["name"])["spec"]["selfSigned"].as_object().unwrap();
    // An Issuer finds the authority in its own namespace, and whoever may use a ClusterIssuer can have any identity signed.
    let namespaces = documents.iter().filter(|one| one["kind"] != "Namespace").map(|one| &one["metadata"]["namespace"]);
    assert!(namespaces.into_iter().all(|namespace| namespace == "tributary-system"));
}

/// A release has its namespace and its source from the same file.
fn helm_release(name: &str, documents: &[Value], release: &Value) {
    let has = |kind: &str, metadata: Value| {
        let found = documents.iter().any(|one| {
            one["kind"] == kind
                && metadata.as_object().unwrap().iter().all(|(key, value)| one["metadata"][key] == *value)
        });
        assert!(found, "{name} has no {kind} {metadata}");
    };
    has("Namespace", serde_json::json!({"name": release["metadata"]["namespace"]}));
    let source = &release["spec"]["chart"]["spec"]["sourceRef"];
    has("GitRepository", serde_json::json!({"name": source["name"], "namespace": source["namespace"]}));
}

#[test]
fn every_example_is_accepted_whole_and_can_be_carried_out() {
    let mut kinds = BTreeMap::<String, usize>::new();
    for path in example_files().unwrap() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("md") => continue,
            Some("toml") => {
                configuration(&name);
                "toml".to_owned()
            }
            _ => {
                let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
                for document in &documents {
                    match document["kind"].as_str() {
                        Some("Certificate") => certificate(&documents),
                        Some("HelmRelease") => helm_release(&name, &documents, document),
                        _ => {}
                    }
                }
                // All of them: the last one's kind is the file's.
                let kinds: Vec<_> = documents.iter().map(|document| manifest(&name, document)).collect();
                kinds.into_iter().next_back().unwrap()
            }
        };
        *kinds.entry(kind).or_default() += 1;
        let page = fs::read_to_string(path.with_file_name("README.md")).unwrap_or_default();
        let file = path.file_name().unwrap().to_string_lossy();
        let folder = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let above = fs::read_to_string(path.parent().unwrap().with_file_name("README.md")).unwrap_or_default();
        let mentioned = page.contains(&*file) || above.contains(&format!("({folder})")) || above.contains(&*file);
        assert!(mentioned, "no README mentions {name}");
    }
    for kind in ["MiniCluster", "ClusterPeer", "Certificate", "Application", "HelmRelease", "values", "toml"] {
        assert!(kinds.contains_key(kind), "{kinds:?}");
    }
}

/// Checks a manifest, or values of the chart; returns its kind.
fn manifest(name: &str, value: &Value) -> String {
    let kind = value["kind"].as_str().unwrap_or("values");
    match kind {
        "MiniCluster" => {
            let mini_cluster: MiniCluster = whole(name, value);
            let rendered = render(&mini_cluster, &Context::default());
            let rendered = rendered.unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
            assert!(rendered.unsupported.is_empty(), "{name}: {:?} do nothing", rendered.unsupported);
        }
        "ClusterPeer" => drop(whole::<ClusterPeer>(name, value)),
        "FluxSetup" => drop(whole::<FluxSetup>(name, value)),
        "FluxJob" => drop(whole::<FluxJob>(name, value)),
        // Of others: `cluster/corpus.rs` has an API server read them.
        "Certificate" | "Issuer" | "GitRepository" | "Namespace" | "PriorityClass" => {}
        "Application" => {
            let source = &value["spec"]["source"];
            assert!(root().join(source["path"].as_str().unwrap()).exists(), "{name}");
            values(name, &source["helm"]["valuesObject"]);
        }
        "HelmRelease" => {
            let spec = &value["spec"];
            assert!(root().join(spec["chart"]["spec"]["chart"].as_str().unwrap()).exists(), "{name}");
            values(name, &spec["values"]);
        }
        "values" => values(name, value),
        kind => panic!("{name}: {kind}"),
    }
    kind.to_owned()
}

/// The chart takes these values.
fn values(name: &str, values: &Value) {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    fs::write(file.path(), values.to_string()).unwrap();
    let file = file.path().to_str().unwrap();
    let arguments =
        ["template", "tributary", "charts/tributary", "--values", file, "--kube-version", chart::KUBERNETES];
    let output = chart::helm(&root(), None, &arguments).unwrap();
    assert!(output.status.success(), "{name}\n{}", String::from_utf8_lossy(&output.stderr));
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
