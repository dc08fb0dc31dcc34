//! The MiniCluster of a FluxJob. Pure.

use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use tributary_api::SPECS;
use tributary_api::flux_job::FluxJob;
use tributary_api::minicluster::{MiniCluster, MiniClusterSpec};
use tributary_api::schema::unknown_fields;
use tributary_api::{labels, names};

use super::super::{gpus, limits};

/// Name of a GPU's resource where the FluxJob names none.
const GPU: &str = "nvidia.com/gpu";

/// The MiniCluster that a FluxJob asks for.
///
/// # Errors
/// The field that is wrong, and why.
pub fn mini_cluster(job: &FluxJob, longest: Option<i64>) -> Result<MiniCluster, String> {
    let wanted = &job.spec;
    names::validate("FluxJob", &job.name_any()).map_err(|error| error.to_string())?;
    let mut spec = wanted.mini_cluster.clone();
    let unknown = unknown_fields(&Value::Object(spec.clone()), &SPECS.v1alpha2, "spec.miniCluster");
    if let Some(field) = unknown.first() {
        return Err(format!("{field}: a MiniCluster has no such field"));
    }
    drop_nulls(&mut spec);
    let mut containers = match spec.remove("containers") {
        None => Vec::new(),
        Some(Value::Array(containers)) => containers,
        Some(_) => return Err("spec.miniCluster.containers is no list".into()),
    };
    let runs_flux = |one: &Value| one.get("runFlux").and_then(Value::as_bool).unwrap_or(false);
    let at = containers.iter().position(runs_flux).unwrap_or(0);
    if containers.is_empty() {
        containers.push(json!({}));
    }
    let Some(container) = containers[at].as_object_mut() else {
        return Err(format!("spec.miniCluster.containers[{at}] is no object"));
    };
    fill(container, job);
    let is_text = |text: Option<&Value>| text.and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty());
    let has_script = is_text(container.get("commands").and_then(|commands| commands.get("script")));
    for field in ["image", "command"] {
        let is_there = is_text(container.get(field)) || field == "command" && has_script;
        if !is_there {
            return Err(format!("spec.{field} is empty, and spec.miniCluster.containers[{at}] has none either"));
        }
    }
    spec.insert("containers".into(), Value::Array(containers));
    spec.insert("size".into(), wanted.size.into());
    if let Some(tasks) = wanted.tasks {
        spec.insert("tasks".into(), tasks.into());
    } else if !spec.contains_key("tasks") {
        // One would run on one broker only.
        spec.insert("tasks".into(), 0.into());
    }
    // What is no number is for whoever reads it to refuse.
    let is_readable = spec.get("deadlineSeconds").is_none_or(Value::is_i64);
    if let Some(limit) = limits::of_job(job, longest).filter(|_| is_readable) {
        spec.insert("deadlineSeconds".into(), limit.into());
    }
    let mut spec: MiniClusterSpec = serde_path_to_error::deserialize(&Value::Object(spec))
        .map_err(|error| format!("spec.miniCluster.{}: {}", error.path(), error.inner()))?;
    if let Some(manager) = spec.left_to() {
        return Err(format!(
            "spec.miniCluster.managedBy: nothing of a FluxJob can be left to {manager}: take the field away"
        ));
    }
    if wanted.priority_class_name.is_some() {
        spec.pod.priority_class_name.clone_from(&wanted.priority_class_name);
    }
    // So they count for as long as there are pods, whatever becomes of this FluxJob's spec.
    if let Some(resource) = gpu_resource(job).filter(|resource| !gpus::is_gpu(resource)) {
        spec.pod.annotations.insert(labels::GPU_RESOURCE.to_owned(), resource.to_owned());
    }
    let mut made = MiniCluster::new(&job.name_any(), spec);
    made.metadata.namespace = job.namespace();
    let user = job.labels().get_key_value(labels::USER).map(|(key, user)| (key.clone(), user.clone()));
    made.metadata.labels = Some([(labels::FLUX_JOB.to_owned(), job.name_any())].into_iter().chain(user).collect());
    made.metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
    Ok(made)
}

/// Writes what the FluxJob says itself into the container that runs Flux.
fn fill(container: &mut Map<String, Value>, job: &FluxJob) {
    let wanted = &job.spec;
    container.insert("runFlux".into(), true.into());
    for (field, text) in [("image", &wanted.image), ("command", &wanted.command)] {
        if !text.is_empty() {
            container.insert(field.into(), text.as_str().into());
        }
    }
    if let Some(directory) = &wanted.working_dir {
        container.insert("workingDir".into(), directory.as_str().into());
    }
    extend(
        container,
        "environment",
        wanted.environment.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect(),
    );
    let resources = &wanted.resources;
    let amount = |name: &str, amount: &Option<tributary_api::minicluster::Amount>| {
        amount.as_ref().map(|amount| (name.to_owned(), Value::from(amount.to_string())))
    };
    let mut amounts: Vec<(String, Value)> =
        amount("cpu", &resources.cpu).into_iter().chain(amount("memory", &resources.memory)).collect();
    amounts.extend(gpu_resource(job).map(|resource| (resource.to_owned(), resources.gpus.into())));
    if !amounts.is_empty() {
        // Others that the container brings stay.
        let resources = section(container, "resources");
        extend(resources, "requests", amounts.clone());
        extend(resources, "limits", amounts);
    }
}

/// Writes entries into a section, begun if it is not there.
fn extend(parent: &mut Map<String, Value>, key: &str, entries: Vec<(String, Value)>) {
    if !entries.is_empty() {
        section(parent, key).extend(entries);
    }
}

/// A section of an object; what else stands in its place gives way.
fn section<'a>(parent: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let section = parent.entry(key).or_insert(Value::Null);
    if !section.is_object() {
        *section = Value::Object(Map::new());
    }
    section.as_object_mut().expect("it is one")
}

/// A field that is null is one that is not written.
fn drop_nulls(fields: &mut Map<String, Value>) {
    fn below(value: &mut Value) {
        match value {
            Value::Object(fields) => drop_nulls(fields),
            Value::Array(items) => items.iter_mut().for_each(below),
            _ => {}
        }
    }
    fields.retain(|_, field| !field.is_null());
    fields.values_mut().for_each(below);
}

/// The resource that its GPUs are, if it wants any.
fn gpu_resource(job: &FluxJob) -> Option<&str> {
    let resources = &job.spec.resources;
    (resources.gpus > 0).then(|| resources.gpu_resource.as_deref().unwrap_or(GPU))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(spec: Value) -> Result<Value, String> {
        let mut whole = json!({"image": "lammps:1"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = FluxJob::new("lammps", serde_json::from_value(whole).unwrap());
        mini_cluster(&job, None).map(|made| serde_json::to_value(made.spec).unwrap())
    }

    fn resources(own: Value, brought: Value) -> Value {
        let containers = json!([{"resources": brought}]);
        let spec = json!({"command": "lmp", "resources": own, "miniCluster": {"containers": containers}});
        made(spec).unwrap()["containers"][0]["resources"].clone()
    }

    #[test]
    fn its_resources_go_beside_those_that_its_container_brings() {
        let brought =
            json!({"limits": {"memory": "64Gi", "nvidia.com/gpu": 1, "cpu": 8}, "requests": {"memory": "1Gi"}});
        assert_eq!(
            resources(json!({"cpu": 4}), brought.clone()),
            json!({"limits": {"memory": "64Gi", "nvidia.com/gpu": 1, "cpu": "4"}, "requests": {"memory": "1Gi", "cpu": "4"}})
        );
        assert_eq!(
            resources(json!({"memory": "2Gi", "gpus": 2}), brought.clone()),
            json!({"limits": {"memory": "2Gi", "nvidia.com/gpu": 2, "cpu": 8},
                "requests": {"memory": "2Gi", "nvidia.com/gpu": 2}})
        );
        assert_eq!(resources(json!({}), brought.clone()), brought);
        let both = json!({"limits": {"cpu": "4"}, "requests": {"cpu": "4"}});
        assert_eq!(resources(json!({"cpu": 4}), json!({"limits": null, "requests": {}})), both);
    }

    #[test]
    fn a_script_is_a_command() {
        let script = json!({"containers": [{"commands": {"script": "#!/bin/sh\nlmp\n"}}]});
        let spec = made(json!({"miniCluster": script})).unwrap();
        assert_eq!(
            (&spec["containers"][0]["command"], &spec["containers"][0]["runFlux"]),
            (&Value::Null, &json!(true))
        );
        for script in [json!(" "), json!(null), json!(1)] {
            let told = made(json!({"miniCluster": {"containers": [{"commands": {"script": script}}]}})).unwrap_err();
            assert!(told.starts_with("spec.command is empty, and "), "{told}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_path_and_what_is_null_is_not_there() {
        for (brought, told) in [
            (
                json!({"containers": [{"resources": {"limits": {"cpu": {}}}}]}),
                "containers[0].resources.limits.cpu: data did",
            ),
            (json!({"flux": 7}), "flux: invalid type"),
            (
                json!({"flux": {"bursting": {"clusters": [{"size": "x"}]}}}),
                "flux.bursting.clusters[0].size: invalid type",
            ),
        ] {
            let error = made(json!({"command": "lmp", "miniCluster": brought})).unwrap_err();
            assert!(error.starts_with(&format!("spec.miniCluster.{told}")), "{error}");
        }
        let nothing = json!({"flux": null, "pod": {"labels": null}, "containers": null, "tasks": null, "users": null});
        assert_eq!(
            made(json!({"command": "lmp", "miniCluster": nothing})),
            made(json!({"command": "lmp", "miniCluster": {}}))
        );
    }
}
