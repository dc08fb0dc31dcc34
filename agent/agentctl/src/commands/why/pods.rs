//! What keeps pods from running, by their statuses and the events about them. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::{Resource, ResourceExt};
use tributary::api::labels::kubernetes::COMPLETION_INDEX;
use tributary::api::names;
use tributary::api::node_group::ScaleUp;

use crate::explain::Verdict;
use crate::hints::{self, Object};
use crate::output::{counted, foreign};

/// The pods that count: not ended, not leaving; by their index, the lead first.
pub(super) fn living(pods: &[Pod]) -> Vec<&Pod> {
    let ended = |pod: &Pod| matches!(phase(pod), "Succeeded" | "Failed");
    let mut living: Vec<&Pod> =
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && !ended(pod)).collect();
    living.sort_by_key(|pod| (index(pod), pod.name_any()));
    living
}

/// Whether every pod is on a node.
pub(super) fn scheduled(pods: &[&Pod]) -> Verdict {
    for pod in pods {
        let condition = condition(pod, "PodScheduled").filter(|(status, ..)| *status == "False");
        if let Some((_, reason, message)) = condition {
            let cause = format!("pod {} is on no node: {message}", pod.name_any());
            if reason == "SchedulingGated" {
                let hint = "something holds the pod back by a scheduling gate (Kueue, for example): its queue says why";
                return Verdict::unmet(reason, cause, hint);
            }
            return Verdict::unmet(
                reason,
                cause,
                hints::scheduling(message, Object { namespace: &namespace(pod), name: &pod.name_any() }),
            );
        }
        if pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_none() {
            let cause = format!("no scheduler has looked at pod {} yet", pod.name_any());
            let wanted =
                pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or("default-scheduler");
            return Verdict::unmet("NoScheduler", cause, format!("does scheduler {wanted} run?"));
        }
    }
    Verdict::Met(format!("{} on nodes", counted(pods.len() as u64, "pod")))
}

/// Whether every pod of a burst that brings nodes is on one; what is `said` of that, and what each pod that is not waits for.
pub(super) fn scaling_up(pods: &[&Pod], said: &str, brings: &ScaleUp) -> Verdict {
    let waiting = pods.iter().filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_none());
    let waiting: Vec<&&Pod> = waiting.collect();
    let mut by_message: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in &waiting {
        let message = condition(pod, "PodScheduled").map_or("", |(_, _, message)| message);
        let message = if message.is_empty() { "no scheduler has looked at it yet" } else { message };
        by_message.entry(message).or_default().push(pod.name_any());
    }
    let each = by_message.iter().map(|(message, names)| format!("; {}: {message}", names.join(", ")));
    let cause = format!("{said}{}", each.collect::<String>());
    let expected = expected(brings);
    let hint = match waiting.first() {
        Some(pod) => format!(
            "{expected}. Does the autoscaler see the pods? Its events are shown by `kubectl describe pod {} --namespace {}`",
            pod.name_any(),
            namespace(pod)
        ),
        None => expected,
    };
    Verdict::unmet("ScalingUp", cause, hint)
}

/// Which nodes a burst may bring.
pub(super) fn expected(brings: &ScaleUp) -> String {
    let groups: Vec<_> = brings.nodes.iter().map(|nodes| format!("{} of {}", nodes.count, nodes.group)).collect();
    format!("nodes that may come: {}", groups.join(", "))
}

/// Whether the images are there.
pub(super) fn images(pods: &[&Pod], events: &[Event]) -> Verdict {
    for pod in pods {
        for (container, reason, message) in waiting(pod) {
            let pulling = matches!(
                reason,
                "ErrImagePull"
                    | "ImagePullBackOff"
                    | "InvalidImageName"
                    | "ErrImageNeverPull"
                    | "RegistryUnavailable"
                    | "ImageInspectError"
            );
            if !pulling {
                continue;
            }
            // "Back-off pulling image" says less than the event about the attempt before.
            let said = last_event(events, *pod, &["Failed"])
                .filter(|text| text.contains("image") && !text.starts_with("Error: "));
            let image = &container.image;
            let said = said.filter(|_| message.len() <= image.len() + 40);
            let text = said.as_deref().unwrap_or(message);
            let cause = format!("pod {} does not get image {image}: {text}", pod.name_any());
            let hint = match reason {
                "InvalidImageName" => "correct the image's name",
                "ErrImageNeverPull" => {
                    "the image is not on the node, and imagePullPolicy is Never: load it, or allow the pull"
                }
                _ if denied(text) => {
                    "the registry wants a login: write containers[].imagePullSecret with a Secret of type kubernetes.io/dockerconfigjson"
                }
                _ if text.contains("not found") || text.contains("manifest unknown") => {
                    "is the name right, and is there an image for this tag and the nodes' architecture?"
                }
                _ => "can the nodes reach the registry?",
            };
            return Verdict::unmet(reason, cause, hint);
        }
    }
    Verdict::Met("no image fails to be pulled".to_owned())
}

/// Whether the volumes are there. Told by events only: a pod that waits for them says no more than `ContainerCreating`.
/// `made_for`: the instance, if an agent made its certificate.
pub(super) fn volumes(pods: &[&Pod], events: &[Event], made_for: Option<&str>) -> Verdict {
    for pod in pods {
        let creating = waiting(pod).any(|(_, reason, _)| matches!(reason, "ContainerCreating" | "PodInitializing"));
        let known = last_event(events, *pod, &["FailedMount", "FailedAttachVolume", "FailedMapVolume"]);
        if let (true, Some(text)) = (creating, known) {
            let hint = match &text {
                _ if made_for.is_some_and(|name| text.contains(&format!("\"{}\" not found", names::curve(name)))) => {
                    format!(
                        "no broker can join without the certificate that the instance was started with: start it anew, with another \
                     one: `agentctl rekey {} --namespace {}`",
                        made_for.unwrap_or_default(),
                        namespace(pod)
                    )
                }
                _ if text.contains("secret") && text.contains("not found") => "create the Secret".to_owned(),
                _ if text.contains("configmap") && text.contains("not found") => "create the ConfigMap".to_owned(),
                _ => {
                    let (name, namespace) = (pod.name_any(), namespace(pod));
                    format!("more is said by `kubectl describe pod {name} --namespace {namespace}`")
                }
            };
            return Verdict::unmet("FailedMount", format!("pod {}: {text}", pod.name_any()), hint);
        }
        let sandbox = last_event(events, *pod, &["FailedCreatePodSandBox"]);
        if let (true, Some(text)) = (creating, sandbox) {
            let hint = "the node's network plugin or container runtime has a problem: see its log";
            return Verdict::unmet("FailedCreatePodSandBox", format!("pod {}: {text}", pod.name_any()), hint);
        }
    }
    Verdict::Skip
}

/// Whether all containers run.
pub(super) fn started(pods: &[&Pod]) -> Verdict {
    for pod in pods {
        let name = pod.name_any();
        for (container, reason, message) in waiting(pod) {
            let of = &container.name;
            let hint = match reason {
                "CreateContainerConfigError" => {
                    "create what it refers to (Secret, ConfigMap, key), or correct the reference".to_owned()
                }
                "CreateContainerError" | "RunContainerError" | "StartError" => {
                    "correct the container's command, workingDir, or securityContext; where its image has no /bin/bash, take another \
                     one, or set noWrapEntrypoint for a container beside Flux"
                        .to_owned()
                }
                "CrashLoopBackOff" => format!("its last words: {}", logs(pod, Some(of), " --previous")),
                _ => continue,
            };
            let ended = last_end(container).map(|end| format!(" ({end})")).unwrap_or_default();
            return Verdict::unmet(
                reason,
                format!("container {of} of pod {name} does not start{ended}: {message}"),
                hint,
            );
        }
        let statuses = pod.status.as_ref();
        let init = statuses.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
        for container in init {
            let running = container.state.as_ref().is_some_and(|state| state.running.is_some());
            // Sidecars are init containers that stay.
            if running && container.started != Some(true) || container.restart_count > 0 && !container.ready {
                let cause = format!("init container {} of pod {name} has not ended yet", container.name);
                let hint = format!("what it does: {}", logs(pod, Some(&container.name), ""));
                return Verdict::unmet("Initializing", cause, hint);
            }
        }
        if phase(pod) == "Pending" {
            let cause = format!("pod {name} is being prepared by its node");
            return Verdict::unmet("ContainerCreating", cause, "images are pulled and volumes mounted: wait a little");
        }
    }
    Verdict::Met("all containers run".to_owned())
}

/// Whether the brokers have joined: the readiness of their pods. `hosted`: the first of them is the gateway of a burst, and
/// leads nothing.
pub(super) fn joined(pods: &[&Pod], lead: &str, hosted: bool, simulated: bool) -> Verdict {
    let missing: Vec<&&Pod> =
        pods.iter().filter(|pod| condition(pod, "Ready").is_none_or(|(status, ..)| status != "True")).collect();
    let Some(first) = missing.first() else {
        if simulated {
            return Verdict::Unknown(
                "the nodes are simulated (kwok): whether brokers are online cannot be told there".to_owned(),
            );
        }
        return Verdict::Met(format!("{} joined", counted(pods.len() as u64, "broker")));
    };
    let name = first.name_any();
    let runs = first.status.as_ref().and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    if let Some(dead) = runs.into_iter().find_map(|one| one.state.as_ref()?.terminated.as_ref().map(|end| (one, end))) {
        let (container, end) = dead;
        let cause = format!(
            "container {} of pod {name} ended with {}",
            container.name,
            end_of(end.exit_code, end.reason.as_deref())
        );
        return Verdict::unmet(
            "ContainerEnded",
            cause,
            format!("its last words: {}", logs(first, Some(&container.name), "")),
        );
    }
    let others = if missing.len() > 1 { format!(", nor has {} more", missing.len() - 1) } else { String::new() };
    if hosted && index(first) == Some(0) {
        let since = since(first, "Ready").map(|since| format!(" since {since}")).unwrap_or_default();
        let cause = format!("the gateway's broker, pod {name}, has no connection to {lead}{since}{others}");
        let hint = format!(
            "it connects again by itself; the condition Preflight of the HostedBurst says whether the lead answers; what Flux \
             says: {}",
            logs(first, None, "")
        );
        return Verdict::unmet("NotConnected", cause, hint);
    }
    let cause = format!("the broker of pod {name} runs and has not joined the instance{others}");
    let hint = if index(first) == Some(0) {
        format!(
            "it leads, and waits for a quorum of its own cluster (minSize); what Flux says: {}",
            logs(first, None, "")
        )
    } else {
        format!("can it reach {lead}? What Flux says: {}", logs(first, None, ""))
    };
    Verdict::unmet("NotJoined", cause, hint)
}

/// The command that shows what a container of a pod wrote.
fn logs(pod: &Pod, container: Option<&str>, options: &str) -> String {
    let container = container.map(|name| format!(" --container {name}")).unwrap_or_default();
    format!("`kubectl logs {} --namespace {}{container}{options}`", pod.name_any(), namespace(pod))
}

/// The text of the newest warning about an object, for any of these reasons. Events of an earlier object of its name stay for
/// an hour.
pub(super) fn last_event<K>(events: &[Event], object: &K, reasons: &[&str]) -> Option<String>
where
    K: Resource<DynamicType = ()>,
{
    let meta = object.meta();
    let about = |event: &&Event| {
        let of = &event.involved_object;
        of.kind.as_deref() == Some(&*K::kind(&()))
            && of.name == meta.name
            && (of.uid.is_none() || of.uid == meta.uid)
            && event.reason.as_deref().is_some_and(|reason| reasons.is_empty() || reasons.contains(&reason))
    };
    let newest = events.iter().filter(about).max_by_key(|event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        last.or_else(|| event.event_time.as_ref().map(|time| time.0)).or(event
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0))
    });
    newest.and_then(|event| event.message.as_deref()).map(foreign)
}

fn denied(text: &str) -> bool {
    ["unauthorized", "Unauthorized", "denied", "authentication required", "403 Forbidden"]
        .iter()
        .any(|word| text.contains(word))
}

fn namespace(pod: &Pod) -> String {
    pod.namespace().unwrap_or_default()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

fn index(pod: &Pod) -> Option<u32> {
    pod.annotations().get(COMPLETION_INDEX).or_else(|| pod.labels().get(COMPLETION_INDEX))?.parse().ok()
}

/// Status, reason and message of a condition.
fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|one| one.type_ == type_)?;
    Some((&found.status, found.reason.as_deref().unwrap_or("Unknown"), found.message.as_deref().unwrap_or_default()))
}

/// When a condition became what it is.
fn since(pod: &Pod, type_: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|one| one.type_ == type_)?;
    found.last_transition_time.as_ref().map(|time| time.0.to_string())
}

/// Containers that wait, init containers first, with reason and message.
fn waiting(pod: &Pod) -> impl Iterator<Item = (&ContainerStatus, &str, &str)> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    let others = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    init.chain(others).filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some((container, waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or("no more is said")))
    })
}

fn last_end(container: &ContainerStatus) -> Option<String> {
    let end = container.last_state.as_ref()?.terminated.as_ref()?;
    Some(format!("it ended with {}", end_of(end.exit_code, end.reason.as_deref())))
}

fn end_of(code: i32, reason: Option<&str>) -> String {
    match reason {
        Some("OOMKilled") => format!("exit code {code}: it took more memory than its limit"),
        Some(reason) if reason != "Error" && reason != "Completed" => format!("exit code {code} ({reason})"),
        _ => format!("exit code {code}"),
    }
}
