//! What is known of the lead broker's pod, that of index 0: pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::view::{ContainerView, LeadPodView, TerminatedView};

/// The lead broker's pod, and how its container that runs Flux ended last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeadFacts {
    /// Name of the pod that holds rank 0 now: it has not ended and is not being deleted.
    pub pod: Option<String>,
    /// How often the container was started again in that pod.
    pub restarts: i32,
    /// How the container ended, in whichever pod of index 0 it ended last.
    pub exit: Option<Exit>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Name of its pod.
    pub pod: String,
    /// Exit code: of the user's command, since the runner's script ends with it.
    pub code: i32,
    /// One word of the kubelet, such as `OOMKilled`.
    pub reason: Option<String>,
}

impl LeadFacts {
    /// What `pods`, the pods of index 0 of one Job, say of their container called `runner`.
    pub(crate) fn of<'a>(pods: impl IntoIterator<Item = &'a LeadPodView>, runner: &str) -> Self {
        let mut facts = Self::default();
        let (mut newest, mut latest): (Option<Time>, Option<Time>) = (None, None);
        for pod in pods {
            let container = pod.status.container_statuses.iter().find(|container| container.name == runner);
            let created = pod.metadata.creation_timestamp.clone();
            if lives(pod) && (facts.pod.is_none() || created > newest) {
                facts.pod = Some(pod.name_any());
                facts.restarts = container.map_or(0, |container| container.restart_count);
                newest = created;
            }
            if let Some(ended) = container.and_then(end)
                && (facts.exit.is_none() || ended.finished_at > latest)
            {
                facts.exit = Some(Exit { pod: pod.name_any(), code: ended.exit_code, reason: ended.reason.clone() });
                latest = ended.finished_at.clone();
            }
        }
        facts
    }
}

/// Whether the pod has not ended and may run on.
pub(crate) fn lives(pod: &LeadPodView) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

/// Whether all containers of the pod have ended for good.
pub(crate) fn has_ended(pod: &LeadPodView) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn end(container: &ContainerView) -> Option<&TerminatedView> {
    container.state.terminated.as_ref().or(container.last_state.terminated.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, created: &str, more: Value) -> LeadPodView {
        let mut value = json!({"metadata": {"name": name, "creationTimestamp": created}});
        for (key, part) in more.as_object().unwrap() {
            match key.as_str() {
                "deletionTimestamp" => value["metadata"][key] = part.clone(),
                _ => value["status"][key] = part.clone(),
            }
        }
        serde_json::from_value(value).unwrap()
    }

    fn ended(code: i32, at: &str) -> Value {
        json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}})
    }

    #[test]
    fn the_newest_living_pod_leads_and_the_last_end_counts() {
        let lost = pod(
            "lake-0-a",
            "2026-01-01T00:00:00Z",
            json!({"phase": "Failed", "containerStatuses": [{"name": "lake", "state": ended(143, "2026-01-01T00:05:00Z")}]}),
        );
        let leaving = pod(
            "lake-0-b",
            "2026-01-01T00:06:00Z",
            json!({"phase": "Running", "deletionTimestamp": "2026-01-01T00:07:00Z"}),
        );
        let leads = pod(
            "lake-0-c",
            "2026-01-01T00:05:00Z",
            json!({"phase": "Running", "containerStatuses": [
                {"name": "other", "restartCount": 9},
                {"name": "lake", "restartCount": 2, "lastState": ended(3, "2026-01-01T00:09:00Z")},
            ]}),
        );
        let facts = LeadFacts::of([&lost, &leaving, &leads], "lake");
        assert_eq!((facts.pod.as_deref(), facts.restarts), (Some("lake-0-c"), 2));
        let exit = Exit { pod: "lake-0-c".into(), code: 3, reason: Some("Error".into()) };
        assert_eq!(facts.exit, Some(exit));
        let facts = LeadFacts::of([&lost, &leaving], "lake");
        assert_eq!((facts.pod, facts.exit.unwrap().code), (None, 143));
        assert_eq!(LeadFacts::of([], "lake"), LeadFacts::default());
    }
}
