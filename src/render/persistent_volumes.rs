//! PersistentVolumes and their claims, for volumes of the spec with a capacity; and which of them may be made.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeSpec, SecretReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use tributary_api::minicluster::{ClusterVolume, HOSTPATH, MiniClusterSpec};
use tributary_api::{labels, names};
use tributary_config::{VolumesConfig, is_plain};

use super::boot::digest_of;
use super::context::Context;
use super::metadata;
use super::model::Model;
use super::problem::{Problem, reason};
use super::quantity;
use super::validate::names as grammar;
use super::volumes::is_dns_label;

/// All pods of all nodes mount it.
const ACCESS: &str = "ReadWriteMany";

/// Keys that Kubernetes or we go by, and nobody else says: `pv.kubernetes.io/…` would make others delete the data.
const RESERVED: [&str; 3] = ["kubernetes.io", "k8s.io", "tributary.dev"];

/// The claims, which go with the MiniCluster.
pub(super) fn claims(model: &Model<'_>) -> Vec<PersistentVolumeClaim> {
    pairs(model).map(|(claim, _)| claim).collect()
}

/// The volumes. Nothing of a namespace can own them: they bear the UID of their MiniCluster in a label.
pub(super) fn volumes(model: &Model<'_>) -> Vec<PersistentVolume> {
    pairs(model).map(|(_, volume)| volume).collect()
}

/// Both bear what is wanted of them, since neither can be changed: by this the next incarnation tells that it needs others.
/// They go together: a volume that a claim is bound to never goes, however often it is deleted.
fn pairs(model: &Model<'_>) -> impl Iterator<Item = (PersistentVolumeClaim, PersistentVolume)> {
    model.spec.made_volumes().map(|(name, declared)| {
        let (mut claim, mut volume) = (claim(model, name, declared), persistent_volume(model, name, declared));
        let text = serde_json::to_vec(&(&claim, &volume)).expect("Kubernetes objects have a JSON form");
        let revision = digest_of(&text);
        for annotations in [claim.annotations_mut(), volume.annotations_mut()] {
            annotations.insert(labels::REVISION.to_owned(), revision.clone());
        }
        (claim, volume)
    })
}

fn claim(model: &Model<'_>, name: &str, volume: &ClusterVolume) -> PersistentVolumeClaim {
    let mut metadata = metadata::child(model, names::claim(model.name, name), Some(labels::role::VOLUME));
    metadata.annotations = Some(volume.claim_annotations.clone());
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![ACCESS.to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(storage(volume)),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: Some(volume.storage_class().to_owned()),
            volume_name: Some(names::persistent_volume(model.namespace, model.name, name)),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}

fn persistent_volume(model: &Model<'_>, name: &str, volume: &ClusterVolume) -> PersistentVolume {
    let mut all = volume.labels.clone();
    all.extend(metadata::labels_of(model));
    all.insert(labels::ROLE.to_owned(), labels::role::VOLUME.to_owned());
    all.insert(labels::MINICLUSTER_UID.to_owned(), model.uid.to_owned());
    let (host_path, csi) = match volume.storage_class() {
        HOSTPATH => {
            let path = volume.path.clone().unwrap_or_default();
            (Some(HostPathVolumeSource { path, type_: Some("DirectoryOrCreate".to_owned()) }), None)
        }
        class => (None, Some(csi(model, volume, class))),
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(names::persistent_volume(model.namespace, model.name, name)),
            labels: Some(all),
            annotations: Some(volume.annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(vec![ACCESS.to_owned()]),
            capacity: Some(storage(volume)),
            // For this claim and no other.
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(model.namespace.to_owned()),
                name: Some(names::claim(model.name, name)),
                ..ObjectReference::default()
            }),
            // Without the volume the data stay where they are: a user's word deletes none.
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            storage_class_name: Some(volume.storage_class().to_owned()),
            host_path,
            csi,
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    }
}

fn csi(model: &Model<'_>, volume: &ClusterVolume, class: &str) -> CSIPersistentVolumeSource {
    let secret = volume
        .secret
        .as_ref()
        .map(|secret| SecretReference { name: Some(secret.clone()), namespace: Some(model.namespace.to_owned()) });
    CSIPersistentVolumeSource {
        driver: volume.driver.clone().unwrap_or_default(),
        volume_handle: volume.volume_handle.clone().unwrap_or_else(|| class.to_owned()),
        volume_attributes: (!volume.attributes.is_empty()).then(|| volume.attributes.clone()),
        node_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        controller_publish_secret_ref: secret,
        ..CSIPersistentVolumeSource::default()
    }
}

fn storage(volume: &ClusterVolume) -> BTreeMap<String, Quantity> {
    [("storage".to_owned(), Quantity(volume.capacity.clone().unwrap_or_default()))].into()
}

/// What of these volumes is wrong, or not allowed here.
pub(super) fn problems(namespace: &str, spec: &MiniClusterSpec, context: &Context) -> Vec<Problem> {
    let refused = |(name, volume): (&str, &ClusterVolume)| {
        let mut gate = Gate { field: format!("spec.volumes.{name}"), problems: Vec::new() };
        if context.hosted.is_some() {
            gate.refuse("capacity", reason::VOLUME_NOT_ALLOWED, "a hosted burst has no volumes of its own");
        } else if !context.volumes.is_on() {
            let message = "no PersistentVolumes are made in this cluster: its administrator allows none ([volumes] of the \
                           agent's configuration, volumes of the chart)";
            gate.refuse("capacity", reason::VOLUME_NOT_ALLOWED, message);
        } else {
            gate.shape(name, volume);
            gate.allowed(namespace, volume, &context.volumes);
        }
        gate.problems
    };
    spec.made_volumes().flat_map(refused).collect()
}

struct Gate {
    field: String,
    problems: Vec<Problem>,
}

impl Gate {
    fn refuse(&mut self, field: &str, reason: &'static str, message: impl Into<String>) {
        self.problems.push(Problem::new(format!("{}.{field}", self.field), reason, message));
    }

    /// What the API server would not take.
    fn shape(&mut self, name: &str, volume: &ClusterVolume) {
        if !is_dns_label(name) {
            let message = "the name of a volume has lower case letters, digits and '-' only, at most 63";
            self.problems.push(Problem::new(self.field.clone(), reason::INVALID_NAME, message));
        }
        let capacity = volume.capacity.as_deref().unwrap_or_default();
        if quantity::milli(capacity).is_none_or(|capacity| capacity <= 0) {
            self.refuse("capacity", reason::INVALID_VALUE, format!("{capacity:?} is no size: write it like 5Gi"));
        }
        let field = |name: &str| format!("{}.{name}", self.field);
        let mut found = grammar::labels(&field("labels"), &volume.labels);
        found.extend(volume.annotations.keys().filter_map(|key| grammar::key(&field("annotations"), key)));
        found.extend(volume.claim_annotations.keys().filter_map(|key| grammar::key(&field("claimAnnotations"), key)));
        found.extend(grammar::object(&field("storageClass"), Some(volume.storage_class())));
        found.extend(grammar::object(&field("secret"), volume.secret.as_deref()));
        self.problems.extend(found);
        for (field, keys) in [("annotations", &volume.annotations), ("claimAnnotations", &volume.claim_annotations)] {
            if let Some(key) = keys.keys().find(|key| is_reserved(key)) {
                let message = format!("{key:?} is for Kubernetes or the agent to write: leave it out");
                self.refuse(field, reason::VOLUME_NOT_ALLOWED, message);
            }
        }
    }

    /// What the administrator does not let users have.
    fn allowed(&mut self, namespace: &str, volume: &ClusterVolume, allowed: &VolumesConfig) {
        let class = volume.storage_class();
        if !allowed.classes.iter().any(|one| one == class) {
            let message = format!("the storage class {class:?} is not allowed here: {}", list(&allowed.classes));
            self.refuse("storageClass", reason::VOLUME_NOT_ALLOWED, message);
        } else if class == HOSTPATH {
            self.path(volume.path.as_deref(), allowed);
        } else {
            self.driver(volume.driver.as_deref(), allowed);
        }
        // Upstream's clients write `default` wherever they know nothing better.
        let counts = volume.secret.is_some() && class != HOSTPATH;
        if let Some(other) = volume.secret_namespace.as_deref().filter(|other| counts && *other != namespace) {
            let message = format!("{other:?} is not the MiniCluster's namespace: Secrets of others cannot be used");
            self.refuse("secretNamespace", reason::VOLUME_NOT_ALLOWED, message);
        }
    }

    fn path(&mut self, path: Option<&str>, allowed: &VolumesConfig) {
        match path {
            None => self.refuse("path", reason::MISSING_FIELD, "say which directory of the node the volume is"),
            Some(path) if !is_plain(path) => {
                let message = format!("{path:?} is no absolute path without empty parts, '.' and '..'");
                self.refuse("path", reason::INVALID_VALUE, message);
            }
            Some(path) if !allowed.allows_path(path) => {
                let message = format!("{path:?} is not allowed here: {}", list(&allowed.path_prefixes));
                self.refuse("path", reason::VOLUME_NOT_ALLOWED, message);
            }
            Some(_) => {}
        }
    }

    fn driver(&mut self, driver: Option<&str>, allowed: &VolumesConfig) {
        match driver {
            None => {
                let message = format!("say which CSI driver mounts it: {}", list(&allowed.drivers));
                self.refuse("driver", reason::MISSING_FIELD, message);
            }
            Some(driver) if !allowed.drivers.iter().any(|one| one == driver) => {
                let message = format!("the CSI driver {driver:?} is not allowed here: {}", list(&allowed.drivers));
                self.refuse("driver", reason::VOLUME_NOT_ALLOWED, message);
            }
            Some(_) => {}
        }
    }
}

fn list(allowed: &[String]) -> String {
    match allowed {
        [] => "the administrator has allowed none".to_owned(),
        _ => format!("the administrator has allowed {}", allowed.join(", ")),
    }
}

fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    RESERVED.iter().any(|one| domain == *one || domain.strip_suffix(one).is_some_and(|rest| rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use tributary_api::minicluster::MiniCluster;

    use super::*;
    use crate::{HostedSide, render};

    fn allowing() -> Context {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let volumes = VolumesConfig {
            classes: words(&[HOSTPATH, "csi-gcs"]),
            path_prefixes: words(&["/data"]),
            drivers: words(&["gcs.csi.ofek.dev"]),
        };
        Context { volumes, ..Context::default() }
    }

    fn lake(volumes: &str) -> MiniCluster {
        let yaml = format!(
            "{{metadata: {{name: lake, namespace: waters, uid: u-1}}, spec: {{size: 2, volumes: {volumes}, containers: [{{command: ls, \
             volumes: {{data: {{path: /mine}}}}}}]}}}}"
        );
        serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"))
    }

    fn refusals(volumes: &str, context: &Context) -> Vec<String> {
        match render(&lake(volumes), context) {
            Ok(_) => Vec::new(),
            Err(problems) => {
                problems.iter().map(|one| format!("{} {}: {}", one.field, one.reason, one.message)).collect()
            }
        }
    }

    #[test]
    fn a_directory_of_the_node_and_a_volume_of_a_driver() {
        let object = lake(
            "{data: {path: /data/a, capacity: 5Gi, labels: {type: local, app: mine}, annotations: {example.org/a: b}}, \
             bucket: {storageClass: csi-gcs, driver: gcs.csi.ofek.dev, capacity: 25Gi, volumeHandle: pond, secret: keys, \
             secretNamespace: waters, attributes: {a: b}, claimAnnotations: {gcs.csi.ofek.dev/bucket: pond}}}",
        );
        let rendered = render(&object, &allowing()).unwrap();
        let pod = rendered.job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        let mounted = pod.volumes.as_ref().unwrap().iter().find(|volume| volume.name == "data");
        let values = [
            serde_json::to_value(&rendered.claims).unwrap(),
            serde_json::to_value(&rendered.persistent_volumes).unwrap(),
            serde_json::to_value(mounted).unwrap(),
        ];
        insta::assert_snapshot!(values.map(|value| serde_saphyr::to_string(&value).unwrap()).join("---\n"));
        assert_eq!(rendered.unsupported, Vec::<String>::new());
    }

    #[test]
    fn a_claim_goes_with_its_volume() {
        let revisions = |volumes: &str| -> Vec<String> {
            let rendered = render(&lake(volumes), &allowing()).unwrap();
            let of = |annotations: &BTreeMap<String, String>| annotations[labels::REVISION].clone();
            let claims = rendered.claims.iter().map(|claim| of(claim.annotations()));
            claims.chain(rendered.persistent_volumes.iter().map(|volume| of(volume.annotations()))).collect()
        };
        let before = revisions("{data: {path: /data/a, capacity: 5Gi}}");
        // Of the volume alone, and of the claim alone.
        for other in ["{path: /data/b, capacity: 5Gi}", "{path: /data/a, capacity: 5Gi, claimAnnotations: {a: b}}"] {
            let after = revisions(&format!("{{data: {other}}}"));
            assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{other}: {before:?} {after:?}");
        }
    }

    #[test]
    fn without_a_capacity_it_is_what_it_always_was() {
        let rendered = render(&lake("{data: {path: /anywhere}}"), &Context::default()).unwrap();
        assert!(rendered.claims.is_empty() && rendered.persistent_volumes.is_empty());
    }

    #[test]
    fn what_nobody_allowed_is_refused_by_name() {
        let (allowing, off) = (allowing(), Context::default());
        let rank_map = crate::rank_map_of(&lake("{}")).unwrap();
        let hosted = HostedSide { rank_map, slot: "root".to_owned(), lead_service: "l".to_owned(), lead_port: 1 };
        let hosted = Context { hosted: Some(hosted), ..allowing.clone() };
        let cases = [
            ("{data: {path: /data/a, capacity: 5Gi}}", &off),
            ("{data: {path: /data/a, capacity: 5Gi}}", &hosted),
            ("{data: {path: /database, capacity: 5Gi}}", &allowing),
            ("{data: {path: /data/../etc, capacity: 5Gi}}", &allowing),
            ("{data: {path: /data//a, capacity: 5Gi}}", &allowing),
            ("{data: {capacity: 5Gi}}", &allowing),
            ("{data: {path: /data/a, capacity: much}}", &allowing),
            ("{data: {path: /data/a, capacity: '0'}}", &allowing),
            ("{data: {path: /data/a, capacity: 5Gi, storageClass: standard}}", &allowing),
            ("{data: {capacity: 5Gi, storageClass: csi-gcs}}", &allowing),
            ("{data: {capacity: 5Gi, storageClass: csi-gcs, driver: hostpath.csi.k8s.io}}", &allowing),
            (
                "{data: {capacity: 5Gi, storageClass: csi-gcs, driver: gcs.csi.ofek.dev, secret: s, secretNamespace: kube-system}}",
                &allowing,
            ),
            ("{data: {path: /data/a, capacity: 5Gi, annotations: {pv.kubernetes.io/provisioned-by: x}}}", &allowing),
            ("{data: {path: /data/a, capacity: 5Gi, claimAnnotations: {tributary.dev/x: y}}}", &allowing),
            ("{data: {path: /data/a, capacity: 5Gi, labels: {'a b': c}}}", &allowing),
            ("{Data: {path: /data/a, capacity: 5Gi}}", &allowing),
            (
                "{data: {path: /etc, capacity: 5Gi}, more: {path: /data/a, capacity: 5Gi, storageClass: other}}",
                &allowing,
            ),
        ];
        let mut shown = String::new();
        for (volumes, context) in cases {
            let refusals = refusals(volumes, context);
            assert!(!refusals.is_empty(), "{volumes}");
            shown += &format!("{volumes}\n  {}\n", refusals.join("\n  "));
        }
        insta::assert_snapshot!(shown);
    }
}
