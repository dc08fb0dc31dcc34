//! Volumes that are made for a MiniCluster of v1alpha1.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::is_default;

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
