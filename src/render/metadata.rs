//! Names, labels and owners of what is made for a MiniCluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;

use super::model::Model;
use crate::api::labels::{self, kubernetes, upstream};
use crate::api::minicluster::MiniCluster;

/// Metadata of a child: in the MiniCluster's namespace, owned by it, found by its labels.
pub(super) fn child(model: &Model<'_>, name: String, role: Option<&str>) -> ObjectMeta {
    let mut labels = labels_of(model);
    labels.extend(role.map(|role| (labels::ROLE.to_owned(), role.to_owned())));
    ObjectMeta {
        name: Some(name),
        namespace: Some(model.namespace.to_owned()),
        labels: Some(labels),
        owner_references: Some(vec![owner(model.name, model.uid)]),
        ..ObjectMeta::default()
    }
}

/// Upstream's labels, who manages the object, and for which MiniCluster.
pub(super) fn labels_of(model: &Model<'_>) -> BTreeMap<String, String> {
    labels_for(model.name, model.namespace)
}

pub(super) fn labels_for(name: &str, namespace: &str) -> BTreeMap<String, String> {
    [
        (upstream::APP, upstream::APP_VALUE),
        (upstream::NAME, name),
        (upstream::NAMESPACE, namespace),
        (kubernetes::MANAGED_BY, labels::TRIBUTARY),
        (labels::MINICLUSTER, name),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The controller owner reference: with the MiniCluster, Kubernetes deletes the child.
pub(super) fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: MiniCluster::api_version(&()).into_owned(),
        kind: MiniCluster::kind(&()).into_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
