//! Whether the definition of MiniClusters that is installed knows all of our fields.
//!
//! If an older one is put back (upstream's, by its installer), the API server goes on storing what it does not know, but
//! takes it away from every object it shows: wishes such as `suspend` or a burst's peer seem to be withdrawn, and the status
//! forgets the running incarnation. Nothing may follow from such an object, and nothing may be written to it: the first write
//! would lose for good what is only hidden. The definition is watched, so that this costs no request.
//!
//! When the right one is back, the watch goes on where it was, for a while even with the gaps: a watch is served to its end by
//! what served its beginning. So nothing follows from any object until the API server has shown that it knows our fields
//! (by a dry run) and all MiniClusters were listed again.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResourceExt, Resource};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::caches::Selection;

/// The installed definition: what it lacks of ours.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = CustomResourceDefinition)]
pub(crate) struct DefinitionView {
    pub metadata: ObjectMeta,
    /// Paths of fields that it does not know.
    #[serde(rename = "spec", default, deserialize_with = "lacking")]
    pub lacks: Vec<String>,
}

/// Why nothing is done: the reason of the event.
pub(crate) const OUTDATED: &str = "CRDOutdated";

/// Most fields that the event names.
const NAMED: usize = 3;

impl DefinitionView {
    /// The definition of MiniClusters alone.
    pub(crate) fn selection() -> Selection {
        Selection { fields: format!("metadata.name={}", MiniCluster::crd_name()), ..Selection::default() }
    }

    /// What to tell, if it lacks something.
    pub(crate) fn outdated(&self) -> Option<String> {
        let named = self.lacks.get(..self.lacks.len().min(NAMED)).filter(|named| !named.is_empty())?;
        let more = self.lacks.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "the installed CustomResourceDefinition {} is older than this agent and hides {}{more}; nothing is changed, \
             released or written until the agent's own definition is applied again",
            MiniCluster::crd_name(),
            named.join(", "),
        ))
    }
}

fn lacking<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    // Not kept: definitions hardly ever change, and ours is large.
    let definitions = tributary_api::crds();
    let ours = definitions.iter().find(|crd| crd.metadata.name.as_deref() == Some(MiniCluster::crd_name()));
    let ours = serde_json::to_value(ours.map(|crd| &crd.spec)).expect("a definition is JSON");
    let mut lacks = Vec::new();
    if let (Some(ours), Some(theirs)) = (schema(&ours), schema(&spec)) {
        collect("", ours, theirs, &mut lacks);
    }
    Ok(lacks)
}

/// The schema of our version; `None` if that is not there: then there are no objects to misread either.
fn schema(spec: &Value) -> Option<&Value> {
    let version = MiniCluster::version(&());
    let mut versions = spec["versions"].as_array()?.iter();
    versions.find(|one| one["name"] == version.as_ref())?.pointer("/schema/openAPIV3Schema")
}

/// The shallowest properties of `ours` that `theirs` prunes.
fn collect(path: &str, ours: &Value, theirs: &Value, lacks: &mut Vec<String>) {
    if theirs["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for part in ["items", "additionalProperties"] {
        if ours[part].is_object() && theirs[part].is_object() {
            collect(path, &ours[part], &theirs[part], lacks);
        }
    }
    for (name, property) in ours["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match theirs["properties"].get(name) {
            Some(theirs) => collect(&path, property, theirs, lacks),
            None => lacks.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ours() -> Value {
        let definitions = tributary_api::crds();
        let crd = definitions.iter().find(|crd| crd.metadata.name.as_deref() == Some(MiniCluster::crd_name()));
        serde_json::to_value(crd.unwrap()).unwrap()
    }

    fn read(definition: Value) -> DefinitionView {
        serde_json::from_value(definition).unwrap()
    }

    #[test]
    fn our_own_definition_lacks_nothing_and_an_older_one_is_told_by_what_it_hides() {
        assert_eq!(read(ours()).outdated(), None);
        let mut older = ours();
        let schema = older.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties").unwrap();
        schema["spec"]["properties"].as_object_mut().unwrap().remove("suspend");
        let containers = &mut schema["spec"]["properties"]["containers"]["items"]["properties"];
        containers.as_object_mut().unwrap().remove("cores");
        schema["status"]["properties"].as_object_mut().unwrap().remove("incarnation");
        schema["status"]["properties"].as_object_mut().unwrap().remove("phase");
        let view = read(older);
        assert_eq!(view.lacks, ["spec.containers.cores", "spec.suspend", "status.incarnation", "status.phase"]);
        let told = view.outdated().unwrap();
        assert!(told.contains("hides spec.containers.cores, spec.suspend, status.incarnation and 1 more"), "{told}");
    }

    #[test]
    fn a_newer_definition_and_one_that_hides_nothing_are_fine() {
        let mut newer = ours();
        newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] =
            json!({"type": "string"});
        assert_eq!(read(newer).outdated(), None);
        let mut open = ours();
        open["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(read(open).outdated(), None);
    }
}
