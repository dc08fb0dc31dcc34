//! The ConfigMap `NAME-entrypoint`, made of boot files alone, and `NAME-ends`, a program.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tributary_api::minicluster::MiniCluster;
use tributary_api::{labels, names};

use super::boot::Boot;
use super::context::Ends;
use super::metadata;

/// Key of the program of the ends of the tunnel, and its name where it is mounted.
pub(super) const ENDS_KEY: &str = "tributary-ends";

/// Key of the host list of all brokers, one line in RFC 29 form.
pub const HOSTLIST_KEY: &str = "hostlist";

/// The ConfigMap that holds `boot`: of a new incarnation, or to restore that of a running one from its Job's annotation.
pub fn config_map(mini_cluster: &MiniCluster, boot: &Boot) -> ConfigMap {
    ConfigMap {
        data: Some(boot.files.clone()),
        ..config_map_of(mini_cluster, names::entrypoint, labels::role::ENTRYPOINT)
    }
}

/// The ConfigMap with the program of the ends of the tunnel.
///
/// Nothing is made anew from it, so agents do not list it: it has no label of what they manage.
pub fn ends(mini_cluster: &MiniCluster, program: &Ends) -> ConfigMap {
    let mut map = config_map_of(mini_cluster, names::ends, labels::role::ENDS);
    map.metadata.labels.get_or_insert_default().remove(labels::kubernetes::MANAGED_BY);
    map.binary_data = Some(BTreeMap::from([(ENDS_KEY.to_owned(), ByteString(program.bytes().to_vec()))]));
    map
}

fn config_map_of(mini_cluster: &MiniCluster, name_of: fn(&str) -> String, role: &str) -> ConfigMap {
    let ObjectMeta { name, namespace, uid, .. } = mini_cluster.metadata.clone();
    let (name, namespace, uid) = (name.unwrap_or_default(), namespace.unwrap_or_default(), uid.unwrap_or_default());
    let mut labels = metadata::labels_for(mini_cluster);
    labels.insert(labels::ROLE.to_owned(), role.to_owned());
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name_of(&name)),
            labels: Some(labels),
            owner_references: Some(vec![metadata::owner(&name, &uid)]),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}
