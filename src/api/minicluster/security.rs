//! The security context of a container.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{Embedded, is_default};

/// Kubernetes' container security context, and the short form for capabilities that upstream's examples use.
///
/// <https://kubernetes.io/docs/tasks/configure-pod-container/security-context/>
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerSecurity {
    /// Everything Kubernetes knows about.
    #[serde(flatten)]
    #[schemars(with = "Embedded<core::SecurityContext>")]
    pub kubernetes: core::SecurityContext,

    /// Linux capabilities to add: the same as `capabilities.add`. Documented upstream, where it had no effect.
    #[serde(skip_serializing_if = "is_default")]
    pub add_capabilities: Vec<String>,

    /// Group of the pod's volumes, as upstream's documentation shows it here: the same as
    /// `pod.securityContext.fsGroup`, which is for all containers.
    #[serde(skip_serializing_if = "is_default")]
    pub fs_group: Option<i64>,

    /// Groups of the pod's processes, as upstream's documentation shows them here: added to
    /// `pod.securityContext.supplementalGroups`.
    #[serde(skip_serializing_if = "is_default")]
    pub supplemental_groups: Vec<i64>,
}

impl ContainerSecurity {
    /// What is the container's own in Kubernetes' type, `addCapabilities` merged in; `None` if there is nothing.
    pub fn to_kubernetes(&self) -> Option<core::SecurityContext> {
        if is_default(&self.kubernetes) && self.add_capabilities.is_empty() {
            return None;
        }
        let mut context = self.kubernetes.clone();
        if !self.add_capabilities.is_empty() {
            let added = context.capabilities.get_or_insert_default().add.get_or_insert_default();
            let mut known: BTreeSet<String> = added.iter().cloned().collect();
            added.extend(self.add_capabilities.iter().filter(|name| known.insert((*name).clone())).cloned());
        }
        Some(context)
    }
}
