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

impl DefinitionView {
    /// The definition of MiniClusters alone.
    pub(crate) fn selection() -> Selection {
        Selection::named(MiniCluster::crd_name())
    }

    /// What to tell, if it lacks something.
    pub(crate) fn outdated(&self) -> Option<String> {
        let named = tributary_api::named(&self.lacks)?;
        Some(format!(
            "the installed CustomResourceDefinition {} is older than this agent and hides {named}; nothing is changed, \
             released or written until the agent's own definition is applied again",
            MiniCluster::crd_name(),
        ))
    }
}

fn lacking<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    let version = MiniCluster::version(&());
    let theirs = spec["versions"].as_array().into_iter().flatten().find(|one| one["name"] == version.as_ref());
    // Without our version there are no objects to misread either.
    let theirs = theirs.and_then(|one| one.pointer("/schema/openAPIV3Schema"));
    Ok(theirs.map(|theirs| tributary_api::lacking(&MiniCluster::kind(&()), &version, theirs)).unwrap_or_default())
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
