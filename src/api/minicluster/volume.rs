//! Volumes: things that exist already and are mounted into containers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{absent_if_zero, is_default};

/// One mount of a container and what stands behind it.
///
/// The source is the first of `csiDriver`, `secretName`, `emptyDir`, `hostPath`, `configMapName`, `claimName` that is
/// written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerVolume {
    /// Where the volume appears in the container.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub path: Option<String>,

    /// A directory of the node.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub host_path: Option<String>,

    /// A ConfigMap of the namespace.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub config_map_name: Option<String>,

    /// Which keys of the ConfigMap become which files: key to path. All keys, if nothing is written.
    #[serde(skip_serializing_if = "is_default")]
    pub items: BTreeMap<String, String>,

    /// A PersistentVolumeClaim of the namespace.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub claim_name: Option<String>,

    /// A Secret of the namespace.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub secret_name: Option<String>,

    /// Mount without the right to write.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub read_only: bool,

    /// Medium of an empty directory: `Memory` for a RAM disk.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub empty_dir_medium: Option<String>,

    /// The most an empty directory may hold, as a quantity.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub empty_dir_size_limit: Option<String>,

    /// A CSI driver that makes an inline volume.
    #[serde(rename = "csiDriver", skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub csi_driver: Option<String>,

    /// Attributes handed to the CSI driver.
    #[serde(rename = "csiDriverAttributes", skip_serializing_if = "is_default")]
    pub csi_driver_attributes: BTreeMap<String, String>,

    /// A fresh directory that lives as long as the pod, mounted at /dev/shm.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub empty_dir: bool,
}

/// Storage class of volumes that are directories of nodes.
pub const HOSTPATH: &str = "hostpath";

/// A volume declared for the whole MiniCluster; containers refer to it by name.
///
/// Without `capacity` it is the directory `path` of each node, as old examples write it. With it, a PersistentVolume
/// `NAMESPACE.NAME.VOLUME` and a claim `NAME.VOLUME` bound to it are made, if the administrator of the cluster allows that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterVolume {
    /// The directory of the node that stands behind the volume.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub path: Option<String>,

    /// Storage class; `hostpath`, a directory of the node, if not written. Others are for volumes with `capacity`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub storage_class: Option<String>,

    /// Make a PersistentVolume of this size, as a quantity.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub capacity: Option<String>,

    /// Labels of the PersistentVolume.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the PersistentVolume.
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,

    /// Annotations of the claim.
    #[serde(skip_serializing_if = "is_default")]
    pub claim_annotations: BTreeMap<String, String>,

    /// The CSI driver that mounts the PersistentVolume. Not for `hostpath`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub driver: Option<String>,

    /// What the driver calls the volume; the storage class, if not written. Not for `hostpath`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub volume_handle: Option<String>,

    /// Attributes handed to the driver. Not for `hostpath`.
    #[serde(skip_serializing_if = "is_default")]
    pub attributes: BTreeMap<String, String>,

    /// Name of a Secret for the driver. Not for `hostpath`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub secret: Option<String>,

    /// Namespace of that Secret: the MiniCluster's own, and no other.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub secret_namespace: Option<String>,

    /// Remove the PersistentVolume with the claim, where `cleanupVolumes` removes that; so it is, if not written. With the
    /// MiniCluster it goes in any case. What is stored in it stays.
    #[serde(skip_serializing_if = "is_default")]
    pub delete: Option<bool>,
}

impl ClusterVolume {
    /// The storage class.
    pub fn storage_class(&self) -> &str {
        self.storage_class.as_deref().unwrap_or(HOSTPATH)
    }

    /// Whether a PersistentVolume is made for it.
    pub fn is_made(&self) -> bool {
        self.capacity.is_some()
    }

    /// Whether the PersistentVolume goes with the claim.
    pub fn delete(&self) -> bool {
        self.delete.unwrap_or(true)
    }
}
