//! What of a Job follows the spec while it runs: size, `suspend`, deadline, backoff limit, labels. Pure.
//!
//! Kubernetes fixes the rest when a Job is made ("Mutable Scheduling Directives", "Elastic Indexed Jobs" in
//! <https://kubernetes.io/docs/concepts/workloads/controllers/job/>).

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobSpec;
use serde_json::{Value, json};
use tributary_api::labels::{self, KUEUE_QUEUE};
use tributary_api::minicluster::MiniClusterSpec;
use tributary_api::workload::PRIORITY_CLASS;

/// What a Job says of the fields that may follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSettings {
    /// Value of `suspend` that we applied last. Kueue and people suspend Jobs too.
    pub applied_suspend: bool,
    /// `spec.activeDeadlineSeconds`.
    pub deadline: Option<i64>,
    /// `spec.backoffLimit`.
    pub backoff_limit: Option<i32>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Keys of the labels that are there because of `spec.jobLabels`.
    pub applied_labels: Vec<String>,
    /// The value of the annotation [`labels::RESTART`] that it was made with.
    pub restart: Option<String>,
    /// Kueue may have admitted fewer of its pods than are wanted: see [`labels::KUEUE_MIN_PARALLELISM`].
    pub may_be_fewer: bool,
}

/// A change of a running Job; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobChange {
    /// Parallelism and completions.
    pub scale: Option<i32>,
    /// `suspend`.
    pub suspend: Option<bool>,
    /// Deadline; `Some(None)` takes it away.
    pub deadline: Option<Option<i64>>,
    /// Backoff limit.
    pub backoff_limit: Option<i32>,
    /// Labels; `None` takes one away.
    pub labels: BTreeMap<String, Option<String>>,
    /// Keys of `spec.jobLabels` from now on, where labels change.
    pub label_keys: Vec<String>,
}

impl JobChange {
    /// What brings the Job's other settings to what `rendered` asks for.
    pub(crate) fn settings(spec: &MiniClusterSpec, rendered: &JobSpec, job: &JobSettings) -> Self {
        let deadline = rendered.active_deadline_seconds;
        let held = spec.suspend || job.applied_suspend;
        let mut labels = BTreeMap::new();
        for (key, value) in &spec.job_labels {
            // Kueue would start what is held back here.
            let starts = held && key == KUEUE_QUEUE && !job.labels.contains_key(key);
            if is_users(key) && !starts && job.labels.get(key) != Some(value) {
                labels.insert(key.clone(), Some(value.clone()));
            }
        }
        for key in &job.applied_labels {
            // Kueue starts no Job that it no longer knows, and refuses to take a class away.
            let stays = [KUEUE_QUEUE, PRIORITY_CLASS].contains(&key.as_str());
            if is_users(key) && !stays && !spec.job_labels.contains_key(key) && job.labels.contains_key(key) {
                labels.insert(key.clone(), None);
            }
        }
        Self {
            deadline: (deadline != job.deadline).then_some(deadline),
            backoff_limit: rendered.backoff_limit.filter(|limit| Some(*limit) != job.backoff_limit),
            label_keys: if labels.is_empty() { Vec::new() } else { spec.job_labels.keys().cloned().collect() },
            labels,
            ..Self::default()
        }
    }

    /// Keeps only changes of fields that the user's spec has, or had when the instance started. The others are defaults, and an
    /// agent of another version may have had other defaults.
    #[must_use]
    pub(crate) fn of_written_fields(self, before: &Value, now: &Value) -> Self {
        let is_written =
            |field: &str| [before, now].iter().any(|spec| spec.get(field).is_some_and(|value| !value.is_null()));
        Self {
            deadline: self.deadline.filter(|_| is_written("deadlineSeconds")),
            backoff_limit: self.backoff_limit.filter(|_| is_written("backoffLimit")),
            ..self
        }
    }

    /// The merge patch that brings size and `suspend` to the Job with this UID; `None` if nothing changes.
    pub(crate) fn patch(&self, uid: &str) -> Option<Value> {
        // Taken apart, so that a change that nobody sends does not compile.
        let Self { scale, suspend, deadline: _, backoff_limit: _, labels: _, label_keys: _ } = self;
        // What is suspended or resumed gets the deadline that goes with it at the same moment.
        let limits = suspend.and_then(|_| self.limits()).unwrap_or_else(|| json!({}));
        let (mut spec, mut annotations) = (limits, json!({}));
        if let Some(size) = scale {
            // An indexed Job is elastic as long as both change together.
            spec["parallelism"] = json!(size);
            spec["completions"] = json!(size);
        }
        if let Some(suspend) = suspend {
            spec["suspend"] = json!(suspend);
            annotations[labels::APPLIED_SUSPEND] = json!(suspend.to_string());
        }
        let nothing = spec.as_object().is_some_and(serde_json::Map::is_empty);
        (!nothing).then(|| json!({"metadata": {"uid": uid, "annotations": annotations}, "spec": spec}))
    }

    /// The same of its deadline and its backoff limit, if [`Self::patch`] does not bring them.
    pub(crate) fn limits_patch(&self, uid: &str) -> Option<Value> {
        let limits = self.limits().filter(|_| self.suspend.is_none())?;
        Some(json!({"metadata": {"uid": uid}, "spec": limits}))
    }

    fn limits(&self) -> Option<Value> {
        let Self { deadline, backoff_limit, .. } = self;
        let mut spec = serde_json::Map::new();
        if let Some(deadline) = deadline {
            spec.insert("activeDeadlineSeconds".to_owned(), json!(deadline));
        }
        if let Some(limit) = backoff_limit {
            spec.insert("backoffLimit".to_owned(), json!(limit));
        }
        (!spec.is_empty()).then_some(Value::Object(spec))
    }

    /// The same of its labels.
    pub(crate) fn labels_patch(&self, uid: &str) -> Option<Value> {
        let Self { labels, label_keys, .. } = self;
        // With the last of them, its annotation goes.
        let keys = (!label_keys.is_empty()).then(|| keys_text(label_keys));
        let annotations = json!({labels::APPLIED_JOB_LABELS: keys});
        let metadata = json!({"uid": uid, "labels": labels, "annotations": annotations});
        (!labels.is_empty()).then(|| json!({"metadata": metadata}))
    }
}

/// The annotation [`labels::APPLIED_JOB_LABELS`] for these keys. Label keys have no comma.
pub(crate) fn keys_text<'a>(keys: impl IntoIterator<Item = &'a String>) -> String {
    keys.into_iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Labels that every child bears are not the user's to change.
fn is_users(key: &str) -> bool {
    use labels::{MINICLUSTER, SLOT, kubernetes, upstream};
    ![upstream::APP, upstream::NAME, upstream::NAMESPACE, kubernetes::MANAGED_BY, MINICLUSTER, SLOT].contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_may_follow_follows_and_what_is_equal_is_not_sent() {
        let rendered = JobSpec { active_deadline_seconds: Some(60), backoff_limit: Some(3), ..JobSpec::default() };
        let spec = MiniClusterSpec {
            job_labels: map(&[("queue", "b"), ("new", "1"), ("app", "mine")]),
            ..MiniClusterSpec::default()
        };
        let job = JobSettings {
            deadline: Some(31_500_000),
            backoff_limit: Some(3),
            labels: map(&[("queue", "a"), ("old", "1"), ("theirs", "1"), ("app", "flux-operator")]),
            applied_labels: vec!["old".into(), "queue".into()],
            ..JobSettings::default()
        };
        let change = JobChange::settings(&spec, &rendered, &job);
        let expected = json!({"metadata": {"uid": "u"}, "spec": {"activeDeadlineSeconds": 60}});
        assert_eq!((change.limits_patch("u"), change.patch("u")), (Some(expected), None));
        // The danger: one label that a webhook refuses keeps back all the rest.
        let expected = json!({
            "metadata": {
                "uid": "u",
                "labels": {"queue": "b", "new": "1", "old": null},
                "annotations": {labels::APPLIED_JOB_LABELS: "app,new,queue"},
            },
        });
        assert_eq!(change.labels_patch("u").unwrap(), expected);
        let settled = JobSettings {
            deadline: Some(60),
            labels: map(&[("queue", "b"), ("new", "1"), ("app", "flux-operator"), ("theirs", "1")]),
            applied_labels: vec!["app".into(), "new".into(), "queue".into()],
            ..job
        };
        assert_eq!(JobChange::settings(&spec, &rendered, &settled), JobChange::default());
        let none =
            JobChange::settings(&MiniClusterSpec::default(), &JobSpec::default(), &settled).labels_patch("u").unwrap();
        assert_eq!(none["metadata"]["annotations"], json!({labels::APPLIED_JOB_LABELS: null}));
        let nothing = JobChange::default();
        assert_eq!((nothing.patch("u"), nothing.limits_patch("u"), nothing.labels_patch("u")), (None, None, None));
    }

    /// The danger: Kueue starts what is held back here, forgets what it held back itself, or refuses the change for ever.
    #[test]
    fn a_queue_of_kueue_is_neither_entered_while_suspended_nor_left() {
        let change = |suspend: bool, wanted: &[(&str, &str)], applied_suspend: bool, has: &[(&str, &str)]| {
            let spec = MiniClusterSpec { suspend, job_labels: map(wanted), ..MiniClusterSpec::default() };
            let job = JobSettings {
                applied_suspend,
                labels: map(has),
                applied_labels: has.iter().map(|(key, _)| (*key).to_owned()).collect(),
                ..JobSettings::default()
            };
            JobChange::settings(&spec, &JobSpec::default(), &job).labels
        };
        let to = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), Some(value.to_owned()))]);
        let (nothing, team) = (BTreeMap::new(), [(KUEUE_QUEUE, "team")]);
        assert_eq!(change(false, &team, false, &[]), to(KUEUE_QUEUE, "team"), "somebody else may have suspended it");
        assert_eq!(change(true, &team, true, &[]), nothing);
        assert_eq!(change(true, &team, false, &[]), nothing, "it is about to be suspended");
        assert_eq!(change(false, &team, true, &[]), nothing, "it is about to go on");
        assert_eq!(change(true, &team, true, &[(KUEUE_QUEUE, "other")]), to(KUEUE_QUEUE, "team"));
        assert_eq!(change(false, &[], false, &[(KUEUE_QUEUE, "team"), (PRIORITY_CLASS, "high")]), nothing);
        assert_eq!(
            change(false, &[(PRIORITY_CLASS, "low")], false, &[(PRIORITY_CLASS, "high")]),
            to(PRIORITY_CLASS, "low")
        );
    }

    /// The danger: it is resumed with the deadline of before; or a policy refuses a deadline, and it cannot grow.
    #[test]
    fn size_and_suspend_bring_what_goes_with_them() {
        let change = JobChange { scale: Some(3), suspend: Some(true), deadline: Some(None), ..JobChange::default() };
        let patch = change.patch("u").unwrap();
        let expected = json!({"parallelism": 3, "completions": 3, "suspend": true, "activeDeadlineSeconds": null});
        assert_eq!((&patch["spec"], change.limits_patch("u")), (&expected, None));
        let grows = JobChange { suspend: None, ..change };
        assert_eq!(grows.patch("u").unwrap()["spec"], json!({"parallelism": 3, "completions": 3}));
        assert_eq!(grows.limits_patch("u").unwrap()["spec"], json!({"activeDeadlineSeconds": null}));
        assert_eq!(patch["metadata"]["annotations"], json!({labels::APPLIED_SUSPEND: "true"}));
    }
}
