//! What tests of several modules make.

use jiff::Timestamp;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary_api::flux_job::FluxJob;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// An object that was made at that second, with this `spec`, `status` and metadata.
pub(crate) fn object<K>(name: &str, since: i64, rest: Value) -> K
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let mut object = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": {"name": name, "namespace": "hpc", "uid": format!("{name}-uid"), "creationTimestamp": at(since).to_string()},
    });
    for (key, value) in rest.as_object().unwrap() {
        match key.as_str() {
            "spec" | "status" => object[key] = value.clone(),
            _ => object["metadata"][key] = value.clone(),
        }
    }
    serde_json::from_value(object).unwrap()
}

/// The FluxJob lammps, with this in its spec.
pub(crate) fn flux_job(spec: Value) -> FluxJob {
    let mut whole = json!({"image": "lammps:1", "command": "lmp -in in.reaxff"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object("lammps", 0, json!({"uid": "job-uid", "generation": 1, "spec": whole}))
}
