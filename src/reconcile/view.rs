//! The slim kinds that are watched: only the fields that are read are kept.
//!
//! Thousands of MiniClusters make thousands of Jobs and ConfigMaps; what they carry (scripts, pod templates, the frozen
//! boot files) stays in the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use tributary_api::labels;
use tributary_render::{QUORUM_KEY, files_digest};

/// A Job, without its pod template and its frozen boot files.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Job)]
pub(crate) struct JobView {
    /// Without the annotation [`labels::BOOT`], which holds the boot files.
    #[serde(deserialize_with = "without_boot")]
    pub metadata: ObjectMeta,
    /// What is read of the spec.
    #[serde(default)]
    pub spec: JobSpecView,
    /// What is read of the status.
    #[serde(default)]
    pub status: JobStatusView,
}

/// What is read of a Job's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct JobSpecView {
    /// Pods wanted.
    pub parallelism: Option<i32>,
    /// Held back.
    pub suspend: Option<bool>,
    /// Longest run time.
    pub active_deadline_seconds: Option<i64>,
    /// How often pods may fail.
    pub backoff_limit: Option<i32>,
    /// Who makes its pods; `None`: Kubernetes.
    pub managed_by: Option<String>,
}

/// What is read of a Job's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct JobStatusView {
    /// Pods that exist and have not ended.
    pub active: Option<i32>,
    /// Pods that are ready.
    pub ready: Option<i32>,
    /// Pods that have completed.
    pub succeeded: Option<i32>,
    /// Pods that have failed: the next ones are made later each time.
    pub failed: Option<i32>,
    /// Pods that have not ended yet, and whose place is taken then.
    pub terminating: Option<i32>,
    /// When it was made, or resumed; `None`: it is suspended, or was not seen yet.
    pub start_time: Option<Time>,
    /// How it ended.
    pub conditions: Vec<JobCondition>,
}

fn without_boot<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = ObjectMeta::deserialize(deserializer)?;
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(labels::BOOT);
    }
    Ok(metadata)
}

/// A ConfigMap, of whose content little is kept.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = ConfigMap)]
pub(crate) struct ConfigMapView {
    pub metadata: ObjectMeta,
    /// What its data says.
    #[serde(rename = "data", default, deserialize_with = "files")]
    pub files: FilesView,
}

/// What is read of boot files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesView {
    /// Their digest: see [`files_digest`].
    pub digest: String,
    /// How many brokers the lead waits for: see [`QUORUM_KEY`].
    pub quorum: Option<String>,
}

fn files<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FilesView, D::Error> {
    let mut data = Option::<BTreeMap<String, String>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(FilesView { digest: files_digest(&data), quorum: data.remove(QUORUM_KEY) })
}

/// A pod of which only matters whether it is there: that of `spec.services`, or one that lacks a label.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Pod)]
pub struct PodView {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Whether it is still one.
    #[serde(default)]
    pub status: PodEndView,
}

/// What is read of the status of such a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodEndView {
    /// `Failed`, among others.
    phase: Option<String>,
    /// Why it has failed, if no container of it has: `Evicted`, `NodeShutdown` …
    reason: Option<String>,
}

impl PodView {
    /// Whether it was taken from its node, and is only on record. One whose own command has failed is not.
    pub(crate) fn is_lost(&self) -> bool {
        self.status.phase.as_deref() == Some("Failed") && self.status.reason.is_some()
    }
}

/// A pod of index 0, whose broker leads: which one it is, and how its containers fare.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Pod)]
pub(crate) struct LeadPodView {
    /// Without annotations.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// What is read of the status.
    #[serde(default)]
    pub status: PodStatusView,
}

/// What is read of a pod's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatusView {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: Option<String>,
    pub container_statuses: Vec<ContainerView>,
}

/// What is read of a container's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerView {
    pub name: String,
    /// How often it was started again in this pod.
    pub restart_count: i32,
    pub state: ContainerStateView,
    /// How it was before it was started again.
    pub last_state: ContainerStateView,
}

/// What is read of a container's state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStateView {
    /// It has ended.
    pub terminated: Option<TerminatedView>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct TerminatedView {
    /// Exit code; 128 + signal, if a signal ended it.
    pub exit_code: i32,
    /// One word of the kubelet: `Completed`, `Error`, `OOMKilled`, …
    pub reason: Option<String>,
    /// When.
    pub finished_at: Option<Time>,
}

fn without_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = ObjectMeta::deserialize(deserializer)?;
    Ok(ObjectMeta { managed_fields: None, annotations: None, ..metadata })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_was_taken_from_its_node_is_lost_and_one_that_failed_by_itself_is_not() {
        let lost = |status: serde_json::Value| {
            let pod: PodView = serde_json::from_value(serde_json::json!({"metadata": {}, "status": status})).unwrap();
            pod.is_lost()
        };
        assert!(lost(serde_json::json!({"phase": "Failed", "reason": "Evicted"})));
        assert!(!lost(serde_json::json!({"phase": "Failed", "containerStatuses": []})));
        assert!(
            !lost(serde_json::json!({"phase": "Pending", "reason": "Unschedulable"})) && !lost(serde_json::json!({}))
        );
    }

    #[test]
    fn boot_files_and_templates_are_not_kept() {
        let job: JobView = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "annotations": {labels::BOOT: "files", "other": "kept"}},
            "spec": {"parallelism": 3, "template": {"spec": {"containers": []}}},
            "status": {"ready": 2},
        }))
        .unwrap();
        assert_eq!(job.metadata.annotations.unwrap().into_keys().collect::<Vec<_>>(), ["other"]);
        assert_eq!((job.spec.parallelism, job.status.ready), (Some(3), Some(2)));
    }

    #[test]
    fn a_config_map_is_its_digest_and_its_quorum() {
        let of = |data| {
            let value = serde_json::json!({"metadata": {"name": "a"}, "data": data});
            serde_json::from_value::<ConfigMapView>(value).unwrap().files
        };
        let digest = files_digest(&BTreeMap::from([("k".into(), "v".into())]));
        assert_eq!(of(serde_json::json!({"k": "v"})), FilesView { digest, quorum: None });
        assert_eq!(of(serde_json::json!({QUORUM_KEY: "3\n"})).quorum.as_deref(), Some("3\n"));
        assert_ne!(of(serde_json::json!({"k": "v"})), of(serde_json::json!({"k": "w"})));
    }
}
