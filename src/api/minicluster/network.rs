//! How the pods of one MiniCluster find each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{absent_if_zero, is_default};

/// Network settings of the MiniCluster inside its own cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Network {
    /// Name of the headless Service that gives the pods their DNS names. The MiniCluster's name, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub headless_name: Option<String>,

    /// Leave out the preference for one zone and one pod per node.
    #[serde(skip_serializing_if = "is_default")]
    pub disable_affinity: bool,
}
