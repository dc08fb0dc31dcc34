//! Volumes that are made for a MiniCluster of v1alpha1, and its RESTful server.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::schema::is_default;

/// A volume to make, for containers to mount by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    /// The directory of the node.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<String>,

    /// Labels of the volume.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the volume.
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,

    /// Annotations of the claim.
    #[serde(skip_serializing_if = "is_default")]
    pub claim_annotations: BTreeMap<String, String>,

    /// Attributes handed to the storage driver.
    #[serde(skip_serializing_if = "is_default")]
    pub attributes: BTreeMap<String, String>,

    /// What the storage driver calls the volume; the storage class, if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub volume_handle: Option<String>,

    /// Storage class; `hostpath`, a directory of the node, if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub storage_class: Option<String>,

    /// The older form of `storageClass`, which wins over it.
    #[serde(skip_serializing_if = "is_default")]
    pub class: Option<String>,

    /// The storage driver (CSI). Not for `hostpath`.
    #[serde(skip_serializing_if = "is_default")]
    pub driver: Option<String>,

    /// Remove the volume with the claim, on `cleanup`.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = true))]
    pub delete: Option<bool>,

    /// Name of a Secret for the storage driver.
    #[serde(skip_serializing_if = "is_default")]
    pub secret: Option<String>,

    /// Namespace of that Secret: the MiniCluster's own, and no other.
    #[serde(skip_serializing_if = "is_default")]
    pub secret_namespace: Option<String>,

    /// Size of the volume, as a quantity.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = "5Gi"))]
    pub capacity: Option<String>,
}

/// The Flux RESTful API, which a MiniCluster without a command runs.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxRestful {
    /// Branch of the server to run.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = "main"))]
    pub branch: Option<String>,

    /// Port the server listens on.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = 5000))]
    pub port: Option<i32>,

    /// Key that server and client share. Whoever may read the MiniCluster can read it.
    #[serde(skip_serializing_if = "is_default")]
    pub secret_key: Option<String>,

    /// Name of the user of the server.
    #[serde(skip_serializing_if = "is_default")]
    pub username: Option<String>,

    /// The user's token. Whoever may read the MiniCluster can read it.
    #[serde(skip_serializing_if = "is_default")]
    pub token: Option<String>,
}

impl fmt::Debug for FluxRestful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { branch, port, username, .. } = self;
        let mut shown = f.debug_struct("FluxRestful");
        shown.field("branch", branch).field("port", port).field("username", username).finish_non_exhaustive()
    }
}
