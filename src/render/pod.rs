//! The pods of the Job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, KeyToPath, LocalObjectReference, PodDNSConfig, PodSecurityContext,
    PodSpec, PodTemplateSpec, SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tributary_api::labels::{self, upstream};
use tributary_api::minicluster::{Container, ContainerSecurity};
use tributary_api::names;

use super::config_maps::ENDS_KEY;
use super::containers::{self, CURVE_VOLUME, ENDS_VOLUME, HOME_VOLUME, MUNGE_VOLUME, SOFTWARE_VOLUME};
use super::model::Model;
use super::scripts::{self, Access, File};
use super::secret::CURVE_CERT;
use super::{affinity, metadata};

/// Time between SIGTERM and SIGKILL, in seconds: enough for a broker to leave its instance, and short enough that pods
/// which no longer count do not linger.
const GRACE_SECONDS: u32 = 10;

/// Karpenter moves no pod that bears it, so that a node can be given up: a broker lives as long as its instance.
const STAYS: &str = "karpenter.sh/do-not-disrupt";

/// What Kubernetes gives by itself.
const KUBERNETES_GRACE_SECONDS: u32 = 30;

/// The same, if Flux writes its state to `archive.path` on its way down.
const ARCHIVE_SECONDS: u32 = 60;

/// What Kubernetes needs at most beside the pods' own time: the garbage collector finds the Job, then the pods; the kubelet
/// hears of it, kills what is left after SIGTERM, and removes the containers.
const REMOVAL_SECONDS: u32 = 15;

/// The longest time from the deletion of a burst's MiniCluster to the end of its last pod.
pub fn longest_end(drain: Duration) -> Duration {
    let own = drain + Duration::from_secs((2 * GRACE_SECONDS).into());
    own.max(Duration::from_secs(KUBERNETES_GRACE_SECONDS.into())) + Duration::from_secs(REMOVAL_SECONDS.into())
}

/// The template of the Job's pods. `files` is the content of the ConfigMap.
pub(super) fn template(model: &Model<'_>, files: &[File]) -> PodTemplateSpec {
    let pod = &model.spec.pod;
    let mut all = pod.labels.clone();
    all.extend(metadata::labels_of(model));
    if !model.is_hosted {
        all.insert(upstream::HPA_SELECTOR.to_owned(), model.name.to_owned());
    }
    // What is left of a burst without its MiniCluster is found by it.
    all.extend(model.labels.get_key_value(labels::BURST_UID).map(|(key, uid)| (key.clone(), uid.clone())));
    let mut annotations = pod.annotations.clone();
    annotations.entry(STAYS.to_owned()).or_insert_with(|| "true".to_owned());
    let metadata = ObjectMeta { labels: Some(all), annotations: Some(annotations), ..ObjectMeta::default() };
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec(model, files)) }
}

fn spec(model: &Model<'_>, files: &[File]) -> PodSpec {
    let pod = &model.spec.pod;
    let security = security(model);
    let (spread, claims) = (&pod.topology_spread_constraints, &pod.resource_claims);
    let overhead =
        |(name, amount): (&String, &tributary_api::minicluster::Amount)| (name.clone(), Quantity::from(amount));
    let overhead: BTreeMap<_, _> = pod.resources.iter().map(overhead).collect();
    PodSpec {
        init_containers: Some(std::iter::once(containers::view(model)).chain(containers::beside(model)).collect()),
        containers: vec![containers::runner(model)],
        volumes: Some(volumes(model, files, &security)),
        security_context: Some(security),
        affinity: affinity::affinity(model),
        subdomain: Some(model.spec.headless_name(model.name).to_owned()),
        set_hostname_as_fqdn: Some(false),
        restart_policy: Some(restart_policy(model).to_owned()),
        termination_grace_period_seconds: Some(grace_seconds(model)),
        service_account_name: pod.service_account_name.clone(),
        automount_service_account_token: Some(pod.automount_service_account_token),
        image_pull_secrets: pull_secrets(model),
        node_selector: map(&pod.node_selector),
        scheduler_name: pod.scheduler_name.clone(),
        priority_class_name: pod.priority_class_name.clone(),
        topology_spread_constraints: (!spread.is_empty()).then(|| spread.clone()),
        resource_claims: (!claims.is_empty()).then(|| claims.clone()),
        host_network: pod.host_network.then_some(true),
        host_pid: pod.host_pid.then_some(true),
        host_ipc: pod.host_ipc.then_some(true),
        dns_policy: dns_policy(model),
        dns_config: dns_config(model),
        runtime_class_name: pod.runtime_class_name.clone(),
        share_process_namespace: Some(model.spec.share_process_namespace),
        tolerations: (!pod.tolerations.is_empty()).then(|| pod.tolerations.clone()),
        overhead: (!overhead.is_empty()).then_some(overhead),
        ..PodSpec::default()
    }
}

/// A limit only: every script ends as soon as its broker has.
pub(super) fn grace_seconds(model: &Model<'_>) -> i64 {
    // Twice: for the questions that a draining broker asks, and for its end.
    let drain = if model.drains() { i64::from(model.spec.flux.drain_seconds()) + i64::from(GRACE_SECONDS) } else { 0 };
    let archive = if model.spec.archive.path.is_some() { ARCHIVE_SECONDS.into() } else { 0 };
    // What is not ours to tell when to end has Kubernetes' own time.
    let is_its_own =
        |container: &Container| container.no_wrap_entrypoint || container.life_cycle.pre_stop_exec.is_some();
    let least = if model.spec.containers.iter().any(is_its_own) { KUBERNETES_GRACE_SECONDS.into() } else { 0 };
    // What hosted pods have is promised to their root: see `longest_end`.
    let sidecars = model.sidecars().filter(|_| !model.is_hosted);
    let last: i64 = sidecars.map(|(_, container)| scripts::last_seconds(container)).sum();
    (i64::from(GRACE_SECONDS) + drain.max(archive)).max(least) + last
}

/// `Never` unless the user asks for another: each restart is a new pod, which the Job counts and judges.
pub(super) fn restart_policy<'a>(model: &Model<'a>) -> &'a str {
    model.spec.pod.restart_policy.as_deref().unwrap_or("Never")
}

/// On the node's network `ClusterFirst` would ask the node's name servers, which know no brokers.
fn dns_policy(model: &Model<'_>) -> Option<String> {
    let pod = &model.spec.pod;
    let default = || pod.host_network.then(|| "ClusterFirstWithHostNet".to_owned());
    pod.dns_policy.clone().or_else(default)
}

pub(super) fn dns_config(model: &Model<'_>) -> Option<PodDNSConfig> {
    let config = &model.spec.pod.dns_config;
    (*config != PodDNSConfig::default()).then(|| config.clone())
}

pub(super) fn map(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then(|| map.clone())
}

/// No group but those that the user asks for: Kubernetes would change the group of every file in claims, and OpenShift admits
/// only groups of its own choice.
fn security(model: &Model<'_>) -> PodSecurityContext {
    let containers = model.spec.containers.iter().map(|container| &container.security_context);
    with_groups(
        model.spec.pod.security_context.clone(),
        containers.chain([&model.spec.flux.container.security_context]),
    )
}

/// Groups are the pod's, also where a container's security context names them: see [`ContainerSecurity`].
pub(super) fn with_groups<'a>(
    mut pod: PodSecurityContext,
    containers: impl Iterator<Item = &'a ContainerSecurity>,
) -> PodSecurityContext {
    let mut known: BTreeSet<i64> = pod.supplemental_groups.iter().flatten().copied().collect();
    for container in containers {
        pod.fs_group = pod.fs_group.or(container.fs_group);
        for group in container.supplemental_groups.iter().filter(|group| known.insert(**group)) {
            pod.supplemental_groups.get_or_insert_default().push(*group);
        }
    }
    pod
}

fn pull_secrets(model: &Model<'_>) -> Option<Vec<LocalObjectReference>> {
    let written = model.spec.containers.iter().filter_map(|container| container.image_pull_secret.as_ref());
    references(written.chain(&model.spec.flux.container.image_pull_secret))
}

/// References by name, each once, in order.
pub(super) fn references<'a>(names: impl Iterator<Item = &'a String>) -> Option<Vec<LocalObjectReference>> {
    let mut known = BTreeSet::new();
    let names = names.filter(|name| known.insert(*name));
    let references: Vec<_> = names.map(|name| LocalObjectReference { name: name.clone() }).collect();
    (!references.is_empty()).then_some(references)
}

fn volumes(model: &Model<'_>, files: &[File], security: &PodSecurityContext) -> Vec<Volume> {
    let empty = |name: &str| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    let software = (!model.spec.flux.container.disable).then(|| empty(SOFTWARE_VOLUME));
    let mut volumes: Vec<_> = software.into_iter().collect();
    volumes.extend([empty(HOME_VOLUME), empty(model.spec.flux.view_name())]);
    volumes.push(entrypoint_volume(model, files.iter().filter(|file| !file.is_of_services())));
    // An image may run as any user. Only the container that runs Flux sees these files.
    let mode = if security.fs_group.is_some() { 0o440 } else { 0o444 };
    volumes.push(secret_volume(CURVE_VOLUME, &model.certificate_secret(), CURVE_CERT, mode));
    if model.has_ends() {
        volumes.push(ends_volume(model));
    }
    volumes.extend(
        model.spec.flux.munge_secret.iter().map(|secret| secret_volume(MUNGE_VOLUME, secret, "munge.key", mode)),
    );
    volumes.extend(model.volumes.volumes.iter().cloned());
    volumes
}

/// The ConfigMap with these of its files.
pub(super) fn entrypoint_volume<'a>(model: &Model<'_>, files: impl Iterator<Item = &'a File>) -> Volume {
    let item = |file: &File| {
        let mode = if file.access == Access::Execute { 0o555 } else { 0o444 };
        KeyToPath { key: file.key.clone(), path: file.name.clone(), mode: Some(mode) }
    };
    let name = names::entrypoint(model.name);
    let items = Some(files.map(item).collect());
    let source = ConfigMapVolumeSource { name: name.clone(), items, ..ConfigMapVolumeSource::default() };
    Volume { name, config_map: Some(source), ..Volume::default() }
}

/// The ends of the tunnel. A pod starts without them, too.
fn ends_volume(model: &Model<'_>) -> Volume {
    let item = KeyToPath { key: ENDS_KEY.to_owned(), path: ENDS_KEY.to_owned(), mode: Some(0o555) };
    let source = ConfigMapVolumeSource {
        name: names::ends(model.name),
        items: Some(vec![item]),
        optional: Some(true),
        ..ConfigMapVolumeSource::default()
    };
    Volume { name: ENDS_VOLUME.to_owned(), config_map: Some(source), ..Volume::default() }
}

fn secret_volume(name: &str, secret: &str, key: &str, mode: i32) -> Volume {
    let source = SecretVolumeSource {
        secret_name: Some(secret.to_owned()),
        items: Some(vec![KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: Some(mode) }]),
        ..SecretVolumeSource::default()
    };
    Volume { name: name.to_owned(), secret: Some(source), ..Volume::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tributary_api::minicluster::MiniCluster;

    use super::*;
    use crate::context::Context;
    use crate::render;
    use crate::tests::lake;

    fn made(object: &MiniCluster) -> Value {
        serde_json::to_value(render(object, &Context::default()).unwrap().job.spec.unwrap().template).unwrap()
    }

    fn hosted(spec: &str) -> MiniCluster {
        let mut hosted = lake(spec);
        let owner = json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst", "name": "lake", "uid": "u",
            "controller": true}]);
        hosted.metadata.owner_references = serde_json::from_value(owner).unwrap();
        hosted
    }

    /// The danger: Karpenter moves a broker to a smaller node, and with it ends the job that runs there.
    #[test]
    fn nobody_but_the_user_lets_brokers_be_moved() {
        let of = |annotations: &str| {
            let pod = made(&lake(&format!("  containers: [{{}}]\n  pod: {{annotations: {{{annotations}}}}}\n")));
            pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"].clone()
        };
        assert_eq!([of(""), of("a: b"), of("karpenter.sh/do-not-disrupt: 30m")], ["true", "true", "30m"]);
    }

    /// The danger: an agent that has just started finds brokers whose MiniCluster is gone, and does not know of which burst.
    #[test]
    fn brokers_of_a_burst_name_it() {
        let mut hosted = hosted("  containers: [{}]\n");
        hosted.metadata.labels = Some([(labels::BURST_UID.to_owned(), "b".to_owned())].into());
        assert_eq!(made(&hosted)["metadata"]["labels"][labels::BURST_UID], "b");
    }

    /// The danger: a sidecar that takes no signal leaves the one before it two seconds to save what it has.
    #[test]
    fn sidecars_have_time_one_after_the_other_but_for_hosted_ones() {
        let pod = |object: &MiniCluster| made(object)["spec"].clone();
        let spec = "  containers:\n  - {runFlux: true, cores: 1}\n  - {name: saves, command: a, commands: {post: b}}\n  - \
                    {name: own, noWrapEntrypoint: true}\n  - {name: serves, command: c}\n  - {name: web, commands: {post: e}}\n";
        let root = pod(&lake(spec));
        let names = root["initContainers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["flux-view", "own", "serves", "web", "saves"],
            "the last one ends first"
        );
        assert_eq!(root["terminationGracePeriodSeconds"], 30 + 70 + 5 + 5);
        let mut hosted = hosted(&spec.replace("noWrapEntrypoint: true", "command: d"));
        hosted.spec.flux.drain_seconds = Some(10);
        let grace = pod(&hosted)["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(Duration::from_secs(grace) <= longest_end(Duration::from_secs(10)), "{grace} s");
    }
}
