//! Every field of the spec does something: each is rendered without and with a value (`tests/fields.yaml`), and what it
//! changes is written down. A field that is new and has no row, or that changes nothing, fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};
use tributary::api::labels;
use tributary::render::{Rendered, render};
use tributary_tests::fields::{Case, Role, base, cases, context, lake, leaves, merge};

use crate::generated::repository;

/// A case, what it changes, and what its user hears.
struct Tried {
    case: Case,
    /// Where the objects and files differ, with the new value (of files only that they do).
    changes: Vec<(String, Value)>,
    /// Fields without effect, or the refusal.
    said: Result<Vec<String>, String>,
}

/// All cases, tried once for all tests.
static TRIED: LazyLock<Vec<Tried>> = LazyLock::new(|| {
    let mut known = BTreeMap::new();
    cases().unwrap().into_iter().map(|case| tried(case, &mut known)).collect()
});

type Outcome = (BTreeMap<String, Value>, Result<Vec<String>, String>);

fn tried(case: Case, known: &mut BTreeMap<String, Outcome>) -> Tried {
    let (before, _) = known.entry(case.before.to_string()).or_insert_with(|| outcome(&case.before));
    let (after, said) = outcome(&case.after);
    let changes = changes(before, &after);
    Tried { case, changes, said }
}

/// What comes of a spec: objects and files by name, or the refusal.
fn outcome(spec: &Value) -> Outcome {
    match render(&lake(spec).unwrap(), &context()) {
        Ok(rendered) => (parts(&rendered), Ok(rendered.unsupported)),
        Err(problems) => ([("refused".to_owned(), json!(problems.to_string()))].into(), Err(problems.to_string())),
    }
}

fn parts(rendered: &Rendered) -> BTreeMap<String, Value> {
    let mut job = json!(rendered.job);
    let annotations = job["metadata"]["annotations"].as_object_mut().unwrap();
    // The files, packed: they are compared one by one.
    annotations.retain(|name, _| !name.starts_with("tributary.dev/boot"));
    let mut parts: BTreeMap<String, Value> = [("Job".to_owned(), job)].into();
    let made = rendered.claims.iter().map(|claim| json!(claim));
    for mut object in made.chain(rendered.persistent_volumes.iter().map(|volume| json!(volume))) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
        // A digest of the rest.
        object["metadata"]["annotations"].as_object_mut().unwrap().remove(labels::REVISION);
        parts.insert(name, object);
    }
    for service in &rendered.services {
        parts.insert(format!("Service {}", service.metadata.name.as_deref().unwrap()), json!(service));
    }
    parts.extend(rendered.service_pod.iter().map(|pod| ("Pod lake-services".to_owned(), json!(pod))));
    parts.extend(rendered.boot.files.iter().map(|(key, text)| (format!("file {key}"), json!(text))));
    parts
}

fn changes(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (before.get(name).unwrap_or(&Value::Null), after.get(name).unwrap_or(&Value::Null));
        if name.starts_with("file ") {
            found.extend((old != new).then(|| (name.clone(), json!(if new.is_null() { "gone" } else { "changed" }))));
        } else {
            differences(&format!("{name} "), old, new, &mut found);
        }
    }
    found
}

fn differences(path: &str, old: &Value, new: &Value, found: &mut Vec<(String, Value)>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let dot = if path.ends_with(' ') { "" } else { "." };
                let (old, new) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
                differences(&format!("{path}{dot}{key}"), old, new, found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                differences(&format!("{path}[{index}]"), old, new, found);
            }
        }
        // What was added to a list, and not the list.
        (Value::Array(old), Value::Array(new)) if old.iter().all(|item| new.contains(item)) => {
            let added = new.iter().filter(|item| !old.contains(item));
            found.extend(added.map(|item| (format!("{path}[]"), item.clone())));
        }
        _ if old != new => found.push((path.to_owned(), new.clone())),
        _ => {}
    }
}

#[test]
fn every_field_has_a_value_to_be_tried_with() {
    let tried: BTreeSet<String> = cases().unwrap().into_iter().map(|case| case.field).collect();
    let missing: Vec<String> = leaves().into_keys().filter(|field| !tried.contains(field)).collect();
    assert!(missing.is_empty(), "add rows to tests/fields.yaml for {missing:#?}");
}

/// The table of all changes: read what is new in it before it is accepted.
#[test]
fn every_field_changes_what_is_rendered() {
    let (mut table, mut wrong) = (String::new(), Vec::new());
    for tried in TRIED.iter() {
        let Tried { case, changes, .. } = tried;
        wrong.extend(complaint(tried).map(|complaint| format!("{} {complaint}", case.at)));
        if case.generated.is_some() {
            continue;
        }
        writeln!(table, "{}", case.at).unwrap();
        if let Some(reason) = case.idle.as_ref().or(case.needless.as_ref()) {
            writeln!(table, "    no effect: {reason}").unwrap();
        }
        if let Some(elsewhere) = &case.elsewhere {
            writeln!(table, "    carried out by {}: {}", elsewhere.room, elsewhere.test).unwrap();
        }
        for (path, value) in changes {
            let value = value.to_string();
            // Whole objects are in the snapshots of the corpus.
            writeln!(table, "    {path}: {}", if value.len() > 300 { "…" } else { &value }).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    insta::assert_snapshot!(table);
}

/// What is wrong with a case: it must change something, or say why it does not.
fn complaint(tried: &Tried) -> Option<String> {
    let Tried { case, changes, said } = tried;
    let unsupported = match (said, &case.refused) {
        (Ok(unsupported), None) => unsupported,
        (Err(refusal), Some(expected)) if refusal == expected => return None,
        (Err(refusal), _) => return Some(format!("is refused: {refusal}")),
        (Ok(_), Some(_)) => return Some("is not refused".to_owned()),
    };
    let said = unsupported.iter().any(|line| line.split(' ').next() == Some(case.at.as_str()));
    let excused = case.needless.is_some() || case.elsewhere.is_some();
    if case.unfinished {
        return (!said).then(|| format!("is not carried out, and nobody hears of it: {unsupported:?}"));
    }
    match (&case.idle, &case.generated) {
        (Some(_), _) if !changes.is_empty() => Some("has an effect although it is said to have none".to_owned()),
        (Some(_), _) if !said => Some(format!("has no effect, and nobody hears of it: {unsupported:?}")),
        (None, _) if said => Some("is reported as without effect".to_owned()),
        (None, _) if changes.is_empty() && !excused => Some("changes nothing".to_owned()),
        (None, Some(Value::Bool(_))) => {
            let key = case.field.rsplit('.').next().unwrap();
            let there = changes.iter().any(|(path, value)| path.ends_with(key) || value.to_string().contains(key));
            (!there).then(|| format!("is not in {changes:?}"))
        }
        (None, Some(value)) => {
            let value = value.to_string();
            let there = changes.iter().any(|(_, new)| new.to_string().contains(&value));
            (!there).then(|| format!("{value} is not in {changes:?}"))
        }
        _ => None,
    }
}

#[test]
fn tests_of_other_rooms_exist() {
    for elsewhere in cases().unwrap().into_iter().filter_map(|case| case.elsewhere) {
        let (file, function) = elsewhere.test.split_once("::").unwrap();
        let text = std::fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(&format!("fn {function}(")), "{}", elsewhere.test);
    }
}

/// Rows that go together, with their places and values.
static COMBINABLE: LazyLock<Vec<Case>> =
    LazyLock::new(|| cases().unwrap().into_iter().filter(Case::is_combinable).collect());

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Fields go together: any choice of rows is a spec that is rendered, always to the same, and to objects that make
    /// sense.
    #[test]
    fn any_valid_spec_is_rendered(chosen in subsequence((0..COMBINABLE.len()).collect::<Vec<_>>(), 0..60)) {
        let mut spec = base();
        for row in chosen {
            merge(&mut spec, &COMBINABLE[row].before);
            merge(&mut spec, &COMBINABLE[row].after);
        }
        let mini_cluster = lake(&spec).unwrap();
        let rendered = render(&mini_cluster, &context());
        let rendered = rendered.map_err(|problems| TestCaseError::fail(format!("{problems}\n{spec}")))?;
        let again = render(&serde_json::from_value(json!(mini_cluster)).unwrap(), &context()).unwrap();
        prop_assert_eq!(&again, &rendered);
        prop_assert_eq!(again.boot.encode(), rendered.boot.encode());
        for complaint in nonsense(&rendered) {
            prop_assert!(false, "{}\n{}", complaint, spec);
        }
    }
}

/// What no API server would take, or no kubelet would start.
fn nonsense(rendered: &Rendered) -> Vec<String> {
    let mut found = Vec::new();
    let job = rendered.job.spec.as_ref().and_then(|job| job.template.spec.as_ref());
    for pod in job.into_iter().chain(rendered.service_pod.iter().filter_map(|pod| pod.spec.as_ref())) {
        let volumes: Vec<_> = pod.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
        let mut names = BTreeSet::new();
        for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
            if !names.insert(&container.name) {
                found.push(format!("two containers {}", container.name));
            }
            let mut paths = BTreeSet::new();
            for mount in container.volume_mounts.iter().flatten() {
                if !paths.insert(&mount.mount_path) {
                    found.push(format!("{}: two mounts at {}", container.name, mount.mount_path));
                }
                if !volumes.contains(&mount.name.as_str()) {
                    found.push(format!("{}: no volume {}", container.name, mount.name));
                }
            }
        }
        if volumes.iter().collect::<BTreeSet<_>>().len() != volumes.len() {
            found.push(format!("two volumes of one name in {volumes:?}"));
        }
        let maps = pod.volumes.iter().flatten().filter(|volume| volume.name == "lake-entrypoint");
        let items = maps.filter_map(|volume| volume.config_map.as_ref()).flat_map(|map| map.items.iter().flatten());
        found.extend(items.filter(|item| !rendered.boot.files.contains_key(&item.key)).map(|item| item.key.clone()));
    }
    let services: BTreeSet<_> = rendered.services.iter().map(|service| service.metadata.name.as_ref()).collect();
    if services.len() != rendered.services.len() {
        found.push(format!("two services of one name in {services:?}"));
    }
    found
}

#[test]
fn the_table_of_the_guide_is_current() {
    crate::generated::current("src/guide/fields.md", &guide());
}

/// The table for readers: one row per field; types of Kubernetes' own are one row each.
fn guide() -> String {
    let leaves = leaves();
    let mut rows: BTreeMap<String, Vec<&Tried>> = BTreeMap::new();
    for tried in TRIED.iter() {
        rows.entry(row_of(&tried.case)).or_default().push(tried);
    }
    let mut text = include_str!("fields_head.md").to_owned();
    for (row, tried) in rows {
        let first = &tried[0].case;
        let generated = first.generated.is_some();
        let (kind, default, meaning) = match leaves.get(&first.field).filter(|_| !generated) {
            Some(schema) => (kind(schema), default(schema), meaning(schema)),
            None => ("Kubernetes' own".to_owned(), String::new(), String::new()),
        };
        let (places, notes) = (places(&tried), notes(&tried));
        let told = [places, notes].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        writeln!(text, "| `{}` | {kind} | {default} | {meaning} | {told} |", row.trim_start_matches("spec.")).unwrap();
    }
    text
}

/// The row that a case belongs to: containers of all kinds share theirs.
fn row_of(case: &Case) -> String {
    let field = case.field.replace("spec.services[]", "spec.containers[]").replace("existingVolumes{}", "volumes{}");
    let prefix = |root: &str| field.find(root).map(|at| field[..at + root.len()].to_owned());
    let roots = ["securityContext", "pod.affinity", "topologySpreadConstraints", "dnsConfig"];
    if case.generated.is_some() { roots.iter().find_map(|root| prefix(root)).unwrap_or(field) } else { field }
}

fn kind(schema: &Value) -> String {
    match schema["type"].as_str() {
        Some("integer") => "integer".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "integer or text".to_owned(),
    }
}

fn default(schema: &Value) -> String {
    schema.get("default").map(|default| format!("`{}`", default.to_string().trim_matches('"'))).unwrap_or_default()
}

/// The first sentence.
fn meaning(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
    match text.find(". ") {
        Some(end) => text[..=end].to_owned(),
        None => text,
    }
}

fn places(tried: &[&Tried]) -> String {
    let mut places = Vec::new();
    let carried_out = tried.iter().filter(|tried| tried.said.is_ok());
    for (path, _) in carried_out.flat_map(|tried| &tried.changes) {
        let place = place(path);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let more = places.len().saturating_sub(SHOWN);
    places.truncate(SHOWN);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    places.join(", ") + &tail
}

/// Most places that one row names.
const SHOWN: usize = 5;

/// A path without positions and names, and no deeper than readers want it.
fn place(path: &str) -> String {
    let (object, path) = path.rsplit_once(' ').unwrap_or((path, ""));
    let mut plain = String::new();
    let mut inside = false;
    for c in path.chars() {
        inside = (inside || c == '[') && c != ']';
        if !inside || c == '[' {
            plain.push(c);
        }
    }
    let plain = plain.trim_start_matches("spec.template.").trim_start_matches("spec.");
    // Keys of users have dots as well.
    let deep = if plain.starts_with("metadata.") {
        2
    } else if plain.starts_with("selector.") {
        1
    } else {
        3
    };
    let plain = plain.split('.').take(deep).collect::<Vec<_>>().join(".");
    let name = object.replace("lake", "NAME");
    match object {
        "file" => format!("`{}`", path.replace(|c: char| c.is_ascii_digit(), "N")),
        _ if plain.is_empty() => name,
        _ => format!("{name} `{plain}`"),
    }
}

fn notes(tried: &[&Tried]) -> String {
    let mut notes = Vec::new();
    for Tried { case, .. } in tried {
        let role = match case.role {
            Role::Spec => "",
            Role::Runner => " in the container that runs Flux",
            Role::Sidecar => " beside it",
            Role::Service => " in `services`",
        };
        let idle = case.idle.iter().chain(&case.needless).map(|reason| format!("no effect{role}: {reason}"));
        let unfinished = case.unfinished.then(|| format!("not carried out yet{role}"));
        let refused = case.refused.iter().map(|_| format!("refused{role}"));
        let elsewhere = case.elsewhere.iter().map(|by| format!("carried out by {} (`{}`)", by.room, by.test));
        for note in idle.chain(unfinished).chain(refused).chain(elsewhere) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes.join("; ")
}
