//! Which field of one version becomes which of the other, where it is not the one of the same name.
//!
//! Fields of the same name are the same. A rule may lose something: what it loses is found by going back, and kept.

use serde_json::{Map, Value, json};

use super::shape::{settle, unwritten};
use crate::SPECS;

/// Who runs Flux in v1alpha1 where nothing is written.
const FLUX_USER: &str = "flux";

/// A spec of v1alpha1 as v1alpha2.
pub(super) fn forward(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Value::Object(spec) = &mut spec {
        if spec.remove("cleanup") != Some(json!(true)) {
            spec.insert("cleanupVolumes".to_owned(), json!(false));
        }
        if let Some(Value::Object(older)) = spec.remove("podLabels")
            && !older.is_empty()
        {
            merge_missing(section(section(Some(spec), "pod"), "labels"), older);
        }
        for (_, volume) in spec.get_mut("volumes").and_then(Value::as_object_mut).into_iter().flatten() {
            if let Some(class) = written(volume, "class") {
                volume["storageClass"] = class;
            }
        }
        for list in ["containers", "services"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            containers.filter_map(Value::as_object_mut).for_each(container);
        }
        choose_runner(spec);
        runner_forward(spec);
        if serves(spec) {
            section(Some(spec), "fluxRestful");
        }
        // Its images have Flux themselves.
        insert(section(section(Some(spec), "flux"), "container"), "disable", json!(true));
    }
    settle(&mut spec, &SPECS.v1alpha2);
    spec
}

/// A spec of v1alpha2 as v1alpha1.
pub(super) fn back(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Value::Object(spec) = &mut spec {
        // It means another thing there: what it meant has another name now.
        let stay = spec.remove("cleanupVolumes") == Some(json!(false));
        spec.insert("cleanup".to_owned(), json!(!stay));
        if let Some(runner) = runner(spec)
            && runner.get("fluxUser") == Some(&json!({ "name": FLUX_USER }))
        {
            runner.remove("fluxUser");
        }
    }
    let schema = &SPECS.v1alpha1;
    settle(&mut spec, schema);
    if let Value::Object(spec) = &mut spec {
        for section in ["flux", "fluxRestful"] {
            if spec.get(section) == Some(&unwritten(&schema["properties"][section])) {
                spec.remove(section);
            }
        }
    }
    spec
}

fn container(container: &mut Map<String, Value>) {
    if let Some(Value::Object(exports)) = container.remove("exports")
        && !exports.is_empty()
        && let Some(environment) = section(Some(container), "environment")
    {
        environment.extend(exports);
    }
    if let Some(hook) = container.remove("postStartExec").filter(is_written) {
        let mut older = Map::new();
        older.insert("postStartExec".to_owned(), hook);
        merge_missing(section(Some(container), "lifeCycle"), older);
    }
    for (_, mount) in container.get_mut("volumes").and_then(Value::as_object_mut).into_iter().flatten() {
        if mount["readonly"] == true {
            mount["readOnly"] = json!(true);
        }
    }
}

/// In the first versions every container ran Flux that did not say otherwise.
fn choose_runner(spec: &mut Map<String, Value>) {
    let containers = spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
    let mut containers: Vec<_> = containers.filter_map(Value::as_object_mut).collect();
    if containers.len() < 2 || containers.iter().any(|one| one.get("runFlux") == Some(&json!(true))) {
        return;
    }
    let mut silent = containers.iter_mut().filter(|one| !one.contains_key("runFlux"));
    if let (Some(runner), None) = (silent.next(), silent.next()) {
        insert(Some(runner), "runFlux", json!(true));
    }
}

/// Whether the RESTful server runs: nobody says what else shall.
fn serves(spec: &mut Map<String, Value>) -> bool {
    let interactive = spec.get("interactive") == Some(&json!(true));
    !interactive
        && runner(spec).is_some_and(|runner| {
            runner.get("diagnostics") != Some(&json!(true)) && !runner.get("command").is_some_and(is_written)
        })
}

/// Older examples write options of Flux at the container that runs it.
fn runner_forward(spec: &mut Map<String, Value>) {
    let Some(runner) = runner(spec) else { return };
    let (flags, level) = (runner.remove("fluxOptionFlags"), runner.remove("fluxLogLevel"));
    let as_root = runner.get("commands").is_some_and(|commands| commands["runFluxAsRoot"] == true);
    if !as_root && !runner.get("fluxUser").is_some_and(|user| is_written(&user["name"])) {
        insert(section(Some(runner), "fluxUser"), "name", json!(FLUX_USER));
    }
    let mut older = Map::new();
    older.extend(flags.filter(is_written).map(|flags| ("optionFlags".to_owned(), flags)));
    if let Some(level) = level.filter(is_written) {
        let default = &SPECS.v1alpha1["properties"]["flux"]["properties"]["logLevel"]["default"];
        let flux = spec.get_mut("flux").and_then(Value::as_object_mut);
        if let Some(flux) = flux.filter(|flux| flux.get("logLevel") == Some(default)) {
            flux.remove("logLevel");
        }
        older.insert("logLevel".to_owned(), level);
    }
    if !older.is_empty() {
        merge_missing(section(Some(spec), "flux"), older);
    }
}

/// The container that runs Flux: the sole one, or the one that says so.
fn runner(spec: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    let containers = spec.get_mut("containers")?.as_array_mut()?;
    let position = if containers.len() == 1 { 0 } else { containers.iter().position(|one| one["runFlux"] == true)? };
    containers[position].as_object_mut()
}

/// A section of an object, begun if it is not there.
fn section<'a>(object: Option<&'a mut Map<String, Value>>, key: &str) -> Option<&'a mut Map<String, Value>> {
    object?.entry(key).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

fn insert(section: Option<&mut Map<String, Value>>, key: &str, value: Value) {
    if let Some(section) = section {
        section.insert(key.to_owned(), value);
    }
}

/// Older forms give way to what is written in the newer one.
fn merge_missing(section: Option<&mut Map<String, Value>>, older: Map<String, Value>) {
    let Some(section) = section else { return };
    for (key, value) in older {
        let entry = section.entry(key).or_insert(Value::Null);
        if !is_written(entry) {
            *entry = value;
        }
    }
}

fn written(object: &Value, key: &str) -> Option<Value> {
    object.get(key).filter(|value| is_written(value)).cloned()
}

/// A zero value means the same as none.
fn is_written(value: &Value) -> bool {
    !(value.is_null() || value == "" || value == 0)
}
