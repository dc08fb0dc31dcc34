//! `ProvisioningRequest` of cluster-autoscaler, as far as it is written and read here: nodes are asked for, all or none,
//! before there are pods. Its definition is the autoscaler's.
//!
//! Source: <https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/proposals/provisioning-request.md>,
//! and the types in `cluster-autoscaler/apis/provisioningrequest` there.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// What is asked for. It never changes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1",
    kind = "ProvisioningRequest",
    plural = "provisioningrequests",
    namespaced,
    status = "ProvisioningRequestStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningRequestSpec {
    /// How nodes are found: by which autoscaler, and in which manner.
    pub provisioning_class_name: String,
    /// What the class needs to know besides.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// The pods that nodes are for.
    pub pod_sets: Vec<PodSet>,
}

/// Pods that are all alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSet {
    /// What they look like.
    pub pod_template_ref: PodTemplateReference,
    /// How many.
    pub count: u32,
}

/// A PodTemplate of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodTemplateReference {
    /// Its name.
    pub name: String,
}

/// What the autoscaler says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProvisioningRequestStatus {
    /// Those of [`condition`], and others.
    pub conditions: Vec<Condition>,
}

/// Types of conditions of a ProvisioningRequest.
pub mod condition {
    /// An autoscaler looks after it.
    pub const ACCEPTED: &str = "Accepted";
    /// The nodes are there, or ordered. `False`: not yet.
    pub const PROVISIONED: &str = "Provisioned";
    /// There will be none.
    pub const FAILED: &str = "Failed";
    /// The nodes are kept for nobody any more.
    pub const BOOKING_EXPIRED: &str = "BookingExpired";
    /// The nodes are taken back.
    pub const CAPACITY_REVOKED: &str = "CapacityRevoked";
}

/// Annotation of pods: the ProvisioningRequest whose nodes they use. An autoscaler adds no nodes for them.
pub const CONSUME: &str = "autoscaling.x-k8s.io/consume-provisioning-request";
/// Annotation of the same pods: the class of that request.
pub const CLASS: &str = "autoscaling.x-k8s.io/provisioning-class-name";
