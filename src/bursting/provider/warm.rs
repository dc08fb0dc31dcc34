//! Images are pulled ahead: a Job of the provider with the images of a hosted burst, none of which is run. Pure.
//!
//! Its pods go where the burst's pods may go, one per node. A kubelet pulls an image before it looks at what shall be run of
//! it, and the command of these containers is a file in an empty volume: no image can bring it, so that nothing of an image
//! ever runs, and images without any program can be pulled like others. The containers end at once with `StartError`. The Job
//! is owned by the HostedBurst, takes no room, and goes when the images are there, when the burst's own pods run, or when
//! its time is up.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, EmptyDirVolumeSource, PodAffinityTerm, PodAntiAffinity, PodSecurityContext,
    PodSpec, PodTemplateSpec, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, MicroTime, ObjectMeta};
use tributary_api::hosted_burst::{HostedBurst, HostedBurstStatus, WarmUp};
use tributary_api::labels::condition::WARM;
use tributary_api::labels::kubernetes::JOB_NAME;
use tributary_api::names;
use tributary_api::peer::ImportPolicy;
use tributary_cluster::conditions::Statement;

use super::materialize;
use super::slot::{Change, SlotStep, SlotView};
use super::teardown::wake;
use crate::nodes::NodeChoice;
use crate::note::Note;
use crate::template::BurstTemplate;
use crate::timing::elapsed;

/// Most nodes that images are pulled on ahead.
const MOST_NODES: u32 = 32;

/// The longest that pulling may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Between two looks whether its name is free.
const MAKE_AGAIN: Duration = Duration::from_secs(2);

/// Seconds after its end in which the Job is deleted by Kubernetes, if no agent did.
const LEFT_FOR_SECONDS: i32 = 120;

/// Where the empty volume is: there is nothing in it, whatever the image has there.
const EMPTY: &str = "/tributary-warm-up";

/// Somebody who is not root, of no image.
const NOBODY: i64 = 65_534;

/// What is remembered of the Job in one leader's scope.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Made {
    /// It was not made yet.
    #[default]
    No,
    /// It was made, and has this UID.
    Yes(String),
    /// The API server refused it.
    Refused(String),
    /// Somebody else's Job has its name.
    NameTaken(String),
}

/// What a Job means for a burst that has the name of the Job which pulls its images ahead. One of an earlier burst of this name
/// is on its way out.
pub(super) fn found(job: &ObjectMeta, name: &str, hosted: Option<&str>) -> Made {
    let owner = job.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    match owner.filter(|owner| owner.kind == "HostedBurst" && owner.api_version.starts_with("tributary.dev/")) {
        Some(owner) if Some(owner.uid.as_str()) == hosted && job.deletion_timestamp.is_none() => {
            Made::Yes(job.uid.clone().unwrap_or_default())
        }
        Some(_) => Made::No,
        None => Made::NameTaken(format!("Job {name} exists here and is another's")),
    }
}

/// How far pulling ahead is, and what has to be done for it.
pub(super) fn attend(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    import: Option<&ImportPolicy>,
    step: &mut SlotStep,
) -> Option<WarmUp> {
    let known = hosted.status.as_ref().and_then(|status| status.warm.clone());
    let now = MicroTime(view.now.wall);
    match known {
        None if !hosted.spec.warm => None,
        None => Some(begin(view, hosted, import, now, step)),
        Some(known) if known.ended.is_some() => {
            if !view.warmers.is_empty() {
                step.changes.push(Change::EndWarmUp);
            }
            Some(known)
        }
        Some(known) => Some(go_on(view, hosted, known, step)),
    }
}

fn begin(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    import: Option<&ImportPolicy>,
    now: MicroTime,
    step: &mut SlotStep,
) -> WarmUp {
    let over = |outcome: &str, message: &str| WarmUp {
        since: Some(now.clone()),
        ended: Some(now.clone()),
        outcome: outcome.to_owned(),
        message: message.to_owned(),
        ..WarmUp::default()
    };
    if import.is_some_and(|import| import.warm == Some(false)) {
        return over("NotAllowed", "import.warm of the peer's ClusterPeer is false");
    }
    if all_run(view, hosted) {
        return over("Overtaken", "its brokers run already");
    }
    // One pod per node, of those there are: none of them must make a cluster grow.
    let nodes = u32::try_from(open_nodes(view, hosted)).unwrap_or(u32::MAX);
    if nodes == 0 {
        return over("NoNode", "none of the nodes there are takes its pods");
    }
    let wanted = hosted.spec.size.min(MOST_NODES).min(nodes);
    step.changes.push(Change::WarmUp { nodes: wanted });
    wake(step, MAKE_AGAIN);
    let message = format!("images are pulled on {wanted} nodes");
    WarmUp { since: Some(now), wanted, outcome: "Pulling".into(), message, ..WarmUp::default() }
}

/// Nodes that its pods may run on.
fn open_nodes(view: &SlotView<'_>, hosted: &HostedBurst) -> usize {
    let pod = BurstTemplate::parse(&hosted.spec.template).map(|template| template.pod).unwrap_or_default();
    let choice =
        NodeChoice { selector: &pod.node_selector, affinity: &pod.node_affinity, tolerations: &pod.tolerations };
    view.facts.nodes.values().filter(|node| node.schedulable && choice.takes(node)).count()
}

fn go_on(view: &SlotView<'_>, hosted: &HostedBurst, known: WarmUp, step: &mut SlotStep) -> WarmUp {
    let live = || view.warmers.iter().filter(|pod| !pod.terminating);
    let pulled = u32::try_from(live().filter(|pod| pod.pulled).count()).unwrap_or(u32::MAX);
    let settled = live().filter(|pod| pod.pulled || pod.unschedulable).count();
    let all_settled = u32::try_from(settled).is_ok_and(|settled| settled >= known.wanted);
    let since = known.since.as_ref().map_or(view.now.wall, |MicroTime(since)| *since);
    let took = elapsed(since, view.now.wall);
    let count = format!("{pulled} of {} nodes have the images", known.wanted);
    let (outcome, message) = match &step.memory.warm_up {
        Made::Refused(why) => ("Refused", why.clone()),
        Made::NameTaken(why) => ("NameTaken", why.clone()),
        _ if all_settled && pulled > 0 => ("Pulled", format!("{count}, after {:.1} s", took.as_secs_f64())),
        _ if all_run(view, hosted) => ("Overtaken", format!("its brokers run: {count}")),
        _ if all_settled => ("NoNode", "no node takes its pods".to_owned()),
        _ if took >= LIMIT => ("TimedOut", format!("{count} after {} s; see events of Job and pods", LIMIT.as_secs())),
        made => {
            if *made == Made::No {
                step.changes.push(Change::WarmUp { nodes: known.wanted });
                wake(step, MAKE_AGAIN);
            }
            wake(step, LIMIT.saturating_sub(took));
            return WarmUp { pulled, ..known };
        }
    };
    step.changes.push(Change::EndWarmUp);
    step.notes.push(match outcome {
        "Pulled" | "Overtaken" => Note::normal(format!("Warm{outcome}"), message.clone()),
        _ => Note::warning(format!("Warm{outcome}"), message.clone()),
    });
    WarmUp { pulled, ended: Some(MicroTime(view.now.wall)), outcome: outcome.to_owned(), message, ..known }
}

/// Whether the burst's own pods have pulled what they need.
fn all_run(view: &SlotView<'_>, hosted: &HostedBurst) -> bool {
    let running = view.pods.iter().filter(|pod| pod.running && !pod.terminating).count();
    running >= hosted.spec.size as usize && running > 0
}

/// When the images were there.
pub(super) fn warmed(status: &HostedBurstStatus) -> Option<MicroTime> {
    status.warm.as_ref().filter(|warm| warm.outcome == "Pulled").and_then(|warm| warm.ended.clone())
}

/// What people are told.
pub(super) fn statement(status: &HostedBurstStatus) -> Option<Statement> {
    let WarmUp { outcome, message, .. } = status.warm.as_ref()?;
    Some(match outcome.as_str() {
        "Pulled" => Statement::holds(WARM, "Pulled", message),
        "Pulling" => Statement::unknown(WARM, "Pulling", message),
        outcome => Statement::fails(WARM, outcome, message),
    })
}

/// The Job, for a burst whose pods are `pod`.
pub(crate) fn job(hosted: &HostedBurst, pod: &PodSpec, nodes: u32) -> Job {
    let name = names::warm_up(&hosted.spec.slot);
    let count = i32::try_from(nodes).unwrap_or(i32::MAX);
    let metadata = materialize::metadata(hosted, name.clone(), None);
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: metadata.labels.clone(), ..ObjectMeta::default() }),
        spec: Some(pod_spec(pod, &name)),
    };
    let spec = JobSpec {
        completion_mode: Some("Indexed".into()),
        completions: Some(count),
        parallelism: Some(count),
        // Each is tried once: that it ends is its purpose, and it can end in no other way.
        backoff_limit_per_index: Some(0),
        active_deadline_seconds: i64::try_from(LIMIT.as_secs()).ok(),
        ttl_seconds_after_finished: Some(LEFT_FOR_SECONDS),
        template,
        ..JobSpec::default()
    };
    Job { metadata, spec: Some(spec), status: None }
}

/// Where and as whom the burst's pods run, with their images, and nothing else of theirs.
fn pod_spec(pod: &PodSpec, job: &str) -> PodSpec {
    let all = pod.init_containers.iter().flatten().chain(&pod.containers);
    let images: BTreeMap<&str, Option<&str>> =
        all.filter_map(|one| Some((one.image.as_deref()?, one.image_pull_policy.as_deref()))).collect();
    let containers = images.into_iter().enumerate().map(|(index, (image, policy))| container(index, image, policy));
    // Each goes to another node.
    let labels = [(JOB_NAME.to_owned(), job.to_owned())].into();
    let apart = PodAffinityTerm {
        label_selector: Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }),
        topology_key: "kubernetes.io/hostname".into(),
        ..PodAffinityTerm::default()
    };
    let anti_affinity = PodAntiAffinity {
        required_during_scheduling_ignored_during_execution: Some(vec![apart]),
        ..PodAntiAffinity::default()
    };
    PodSpec {
        containers: containers.collect(),
        affinity: Some(Affinity {
            node_affinity: pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone()),
            pod_anti_affinity: Some(anti_affinity),
            pod_affinity: None,
        }),
        node_selector: pod.node_selector.clone(),
        tolerations: pod.tolerations.clone(),
        scheduler_name: pod.scheduler_name.clone(),
        runtime_class_name: pod.runtime_class_name.clone(),
        service_account_name: pod.service_account_name.clone(),
        image_pull_secrets: pod.image_pull_secrets.clone(),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        restart_policy: Some("Never".into()),
        termination_grace_period_seconds: Some(0),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(NOBODY),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        volumes: Some(vec![Volume {
            name: "empty".into(),
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: Some(Quantity("1Mi".into())),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        }]),
        ..PodSpec::default()
    }
}

fn container(index: usize, image: &str, policy: Option<&str>) -> Container {
    // Nothing: written out, for namespaces whose quotas or limits ask for an amount.
    let nothing: BTreeMap<String, Quantity> =
        ["cpu", "memory"].map(|resource| (resource.to_owned(), Quantity("0".into()))).into();
    Container {
        name: format!("image-{index}"),
        image: Some(image.to_owned()),
        image_pull_policy: policy.map(str::to_owned),
        command: Some(vec![format!("{EMPTY}/nothing")]),
        resources: Some(ResourceRequirements {
            requests: Some(nothing.clone()),
            limits: Some(nothing),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: "empty".into(),
            mount_path: EMPTY.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::hosted_burst::HostedBurstSpec;
    use tributary_api::peer::PodSecurityLevel;

    use super::*;
    use crate::provider::pod_security::judge;

    fn hosted() -> HostedBurst {
        let spec = HostedBurstSpec { slot: "lake-burst-0".into(), size: 3, warm: true, ..HostedBurstSpec::default() };
        let mut hosted = HostedBurst::new("lake-burst-0", spec);
        (hosted.metadata.uid, hosted.metadata.namespace) = (Some("hosted-uid".into()), Some("flux".into()));
        hosted
    }

    /// What is rendered for a burst that does all it may not do here.
    fn pod() -> PodSpec {
        let yaml = "
initContainers:
- {name: view, image: 'ghcr.io/converged-computing/flux-view-rocky:tag-9', command: [bash, copy.sh]}
containers:
- name: lake
  image: app:1
  imagePullPolicy: Always
  command: [bash, worker.sh]
  env: [{name: TOKEN, value: secret}]
  resources: {requests: {cpu: '8', nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 1}}
  securityContext: {privileged: true, runAsUser: 0}
  volumeMounts: [{name: host, mountPath: /host}]
- {name: side, image: app:1, imagePullPolicy: Always}
volumes: [{name: host, hostPath: {path: /}}]
hostPID: true
nodeSelector: {pool: gpu}
tolerations: [{key: gpu, operator: Exists}]
serviceAccountName: guests
priorityClassName: high
imagePullSecrets: [{name: registry}]
affinity:
  nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}
  podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}
";
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn a_job_of_its_name_is_ours_only_if_this_very_burst_owns_it() {
        let owned = |kind: &str, group: &str, uid: &str| -> ObjectMeta {
            let owner =
                serde_json::json!({"apiVersion": group, "kind": kind, "name": "x", "uid": uid, "controller": true});
            serde_json::from_value(serde_json::json!({"uid": "job-uid", "ownerReferences": [owner]})).unwrap()
        };
        let of = |job: &ObjectMeta| found(job, "flux/x-warm-up", Some("hosted-uid"));
        let ours = owned("HostedBurst", "tributary.dev/v1alpha1", "hosted-uid");
        assert_eq!(of(&ours), Made::Yes("job-uid".into()));
        let deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(of(&ObjectMeta { deletion_timestamp, ..ours }), Made::No);
        assert_eq!(of(&owned("HostedBurst", "tributary.dev/v1alpha1", "the-one-before")), Made::No, "it goes");
        for foreign in [owned("MiniCluster", "flux-framework.org/v1alpha2", "m"), ObjectMeta::default()] {
            assert_eq!(of(&foreign), Made::NameTaken("Job flux/x-warm-up exists here and is another's".into()));
        }
    }

    #[test]
    fn its_pods_have_the_images_and_nothing_that_runs() {
        let job = job(&hosted(), &pod(), 3);
        assert_eq!(judge(PodSecurityLevel::Restricted, &job.spec.as_ref().unwrap().template), []);
        insta::assert_json_snapshot!(job);
    }
}
