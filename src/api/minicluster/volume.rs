//! Volumes: things that exist already and are mounted into containers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::schema::{absent_if_zero, is_default};

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

/// A volume declared for the whole MiniCluster, as old examples write it; containers refer to it by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterVolume {
    /// The directory of the node that stands behind the volume.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub path: Option<String>,

    /// Storage class; only `hostpath`, a directory of the node, is known.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub storage_class: Option<String>,
}
