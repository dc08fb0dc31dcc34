//! Names, labels and owners of what is made for a MiniCluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;
use tributary_api::hosted_burst::is_hosted;
use tributary_api::labels::{self, kubernetes, upstream};
use tributary_api::minicluster::MiniCluster;

use super::model::Model;

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

/// Who manages the object, and for which MiniCluster; with upstream's labels, unless it is hosted.
pub(super) fn labels_of(model: &Model<'_>) -> BTreeMap<String, String> {
    labels(model.name, model.namespace, model.is_hosted)
}

/// The same, of what is made without rendering.
pub(super) fn labels_for(mini_cluster: &MiniCluster) -> BTreeMap<String, String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (name, namespace) = (text(&mini_cluster.metadata.name), text(&mini_cluster.metadata.namespace));
    labels(&name, &namespace, is_hosted(mini_cluster))
}

/// Users select by upstream's labels: a hosted MiniCluster, whose name a peer has chosen, bears none of them.
fn labels(name: &str, namespace: &str, is_hosted: bool) -> BTreeMap<String, String> {
    let ours = [(kubernetes::MANAGED_BY, labels::TRIBUTARY), (labels::MINICLUSTER, name)];
    let upstreams = [(upstream::APP, upstream::APP_VALUE), (upstream::NAME, name), (upstream::NAMESPACE, namespace)];
    let hosts = [(labels::SLOT, name)];
    let more = if is_hosted { &hosts[..] } else { &upstreams[..] };
    ours.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The label, with its value, by which the pods of a MiniCluster's Job are found.
pub(super) fn of_pods<'a>(model: &Model<'a>) -> (&'static str, &'a str) {
    (if model.is_hosted { labels::MINICLUSTER } else { upstream::NAME }, model.name)
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
