//! Volumes that users mount: which source stands behind a name, and where each container sees it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tributary_api::minicluster::{ClusterVolume, Container, ContainerVolume, MiniClusterSpec};
use tributary_api::names as objects;

use super::problem::{Problem, reason};
use super::quantity;
use super::validate::names;

/// Where an empty directory is mounted that names no path; upstream's choice.
const SHARED_MEMORY: &str = "/dev/shm";

/// Volumes of one pod.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct UserVolumes {
    /// By name, each once.
    pub(super) volumes: Vec<Volume>,
    /// Mounts of each container, in its own order.
    pub(super) mounts: Vec<Vec<VolumeMount>>,
}

/// Resolves the volumes of `containers` of a MiniCluster, which stand at `path` in its spec. `taken` are mount paths of our own.
///
/// # Errors
/// Volumes without place, places or sources that exclude each other, and values nobody understands.
pub(super) fn resolve(
    mini_cluster: (&str, &MiniClusterSpec),
    containers: &[Container],
    path: &str,
    taken: &[&str],
) -> Result<UserVolumes, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut sources: BTreeMap<&str, Volume> = BTreeMap::new();
    let mut resolved = UserVolumes::default();
    for (index, container) in containers.iter().enumerate() {
        let mut paths: BTreeSet<&str> = taken.iter().map(|path| path.trim_end_matches('/')).collect();
        let mut mounts = Vec::new();
        for (name, volume) in container.volumes() {
            let field = format!("{path}[{index}].volumes.{name}");
            match mount(name, volume, &mut paths) {
                Ok(mount) => mounts.push(mount),
                Err(message) => problems.push(Problem::new(&field, reason::INVALID_VOLUME, message)),
            }
            problems.extend(reference_problems(&field, volume));
            match source(name, volume).map(|source| remember(&mut sources, name, source)) {
                Ok(Ok(())) => {}
                Ok(Err(message)) => problems.push(Problem::new(&field, reason::CONFLICTING_FIELDS, message)),
                Err(message) => problems.push(Problem::new(&field, reason::INVALID_VALUE, message)),
            }
        }
        resolved.mounts.push(mounts);
    }
    let names: BTreeSet<&str> = containers.iter().flat_map(|container| container.volumes().into_keys()).collect();
    resolved.volumes = names
        .into_iter()
        .map(|name| sources.remove(name).unwrap_or_else(|| without_source(mini_cluster, name)))
        .collect();
    if problems.is_empty() { Ok(resolved) } else { Err(problems) }
}

/// What the volume is made of, by name.
fn reference_problems(field: &str, volume: &ContainerVolume) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, name) in [
        ("secretName", &volume.secret_name),
        ("configMapName", &volume.config_map_name),
        ("claimName", &volume.claim_name),
    ] {
        problems.extend(names::object(&format!("{field}.{key}"), name.as_deref()));
    }
    for (key, path) in &volume.items {
        problems.extend(names::data_key(&format!("{field}.items"), key));
        if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
            let message =
                format!("{path:?} is no path within the volume: write it without '/' in front and without '..'");
            problems.push(Problem::new(format!("{field}.items.{key}"), reason::INVALID_VALUE, message));
        }
    }
    if let Some(path) = volume.host_path.as_deref()
        && (!path.starts_with('/') || path.split('/').any(|part| part == ".."))
    {
        let message = format!("{path:?} is no absolute path of a directory of the node, without '..'");
        problems.push(Problem::new(format!("{field}.hostPath"), reason::INVALID_VALUE, message));
    }
    problems
}

/// A source from one container serves all that name the volume.
fn remember<'a>(sources: &mut BTreeMap<&'a str, Volume>, name: &'a str, source: Option<Volume>) -> Result<(), String> {
    let Some(mut source) = source else { return Ok(()) };
    let Some(known) = sources.get_mut(name) else {
        sources.insert(name, source);
        return Ok(());
    };
    // A driver gives the pod one volume: only to be read if nobody writes to it.
    if let (Some(csi), Some(known)) = (&mut source.csi, &mut known.csi) {
        known.read_only = known.read_only.and(csi.read_only);
        csi.read_only = known.read_only;
    }
    // A container that names no medium and no size of a directory takes those that another one names.
    let bare = Some(EmptyDirVolumeSource::default());
    match (&source.empty_dir, &known.empty_dir) {
        (Some(_), said) if *said == bare => known.empty_dir = source.empty_dir.clone(),
        (said, Some(_)) if *said == bare => source.empty_dir = known.empty_dir.clone(),
        _ => {}
    }
    if source == *known {
        return Ok(());
    }
    Err(format!("another container has a volume {name} of another source: give one of them another name"))
}

fn mount<'a>(name: &str, volume: &'a ContainerVolume, taken: &mut BTreeSet<&'a str>) -> Result<VolumeMount, String> {
    if !is_dns_label(name) {
        return Err("the name of a volume has lower case letters, digits and '-' only, at most 63".to_owned());
    }
    let path = match (volume.path.as_deref(), volume.empty_dir) {
        (Some(path), _) => path,
        (None, true) => SHARED_MEMORY,
        (None, false) => return Err("path is missing: say where the container sees the volume".to_owned()),
    };
    if !path.starts_with('/') || path.contains(':') {
        return Err(format!("path {path:?} is not an absolute path without ':'"));
    }
    if path == "/" {
        return Err("path is the root of the container's file system: choose a directory in it".to_owned());
    }
    if !taken.insert(path.trim_end_matches('/')) {
        return Err(format!("something else is mounted at {path} already: choose another path"));
    }
    let mount = VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() };
    Ok(VolumeMount { read_only: volume.read_only.then_some(true), ..mount })
}

/// The first source that is written, in upstream's order.
fn source(name: &str, from: &ContainerVolume) -> Result<Option<Volume>, String> {
    let volume = Volume { name: name.to_owned(), ..Volume::default() };
    let items = || {
        let item = |(key, path): (&String, &String)| KeyToPath { key: key.clone(), path: path.clone(), mode: None };
        (!from.items.is_empty()).then(|| from.items.iter().map(item).collect())
    };
    Ok(Some(if let Some(driver) = &from.csi_driver {
        let attributes = &from.csi_driver_attributes;
        let csi = CSIVolumeSource {
            driver: driver.clone(),
            read_only: from.read_only.then_some(true),
            volume_attributes: (!attributes.is_empty()).then(|| attributes.clone()),
            ..CSIVolumeSource::default()
        };
        Volume { csi: Some(csi), ..volume }
    } else if let Some(secret) = &from.secret_name {
        let secret =
            SecretVolumeSource { secret_name: Some(secret.clone()), items: items(), ..SecretVolumeSource::default() };
        Volume { secret: Some(secret), ..volume }
    } else if from.empty_dir {
        Volume { empty_dir: Some(empty_dir(from)?), ..volume }
    } else if let Some(path) = &from.host_path {
        Volume { host_path: Some(host_path(path)), ..volume }
    } else if let Some(map) = &from.config_map_name {
        let map = ConfigMapVolumeSource { name: map.clone(), items: items(), ..ConfigMapVolumeSource::default() };
        Volume { config_map: Some(map), ..volume }
    } else if let Some(claim) = &from.claim_name {
        let claim = PersistentVolumeClaimVolumeSource { claim_name: claim.clone(), read_only: None };
        Volume { persistent_volume_claim: Some(claim), ..volume }
    } else {
        return Ok(None);
    }))
}

/// A name that says nowhere what it is: what `spec.volumes` says, else a directory of the pod.
fn without_source((owner, spec): (&str, &MiniClusterSpec), name: &str) -> Volume {
    let volume = Volume { name: name.to_owned(), ..Volume::default() };
    if spec.volumes.get(name).is_some_and(ClusterVolume::is_made) {
        let claim = PersistentVolumeClaimVolumeSource { claim_name: objects::claim(owner, name), read_only: None };
        return Volume { persistent_volume_claim: Some(claim), ..volume };
    }
    match spec.declared_host_path(name) {
        Some(path) => Volume { host_path: Some(host_path(path)), ..volume },
        None => Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..volume },
    }
}

fn host_path(path: &str) -> HostPathVolumeSource {
    HostPathVolumeSource { path: path.to_owned(), type_: Some("Directory".to_owned()) }
}

fn empty_dir(from: &ContainerVolume) -> Result<EmptyDirVolumeSource, String> {
    let medium = match from.empty_dir_medium.as_deref() {
        Some(medium) if medium.eq_ignore_ascii_case("memory") => Some("Memory".to_owned()),
        Some(medium) if medium.starts_with("HugePages") => Some(medium.to_owned()),
        Some(medium) => {
            return Err(format!(
                "emptyDirMedium {medium:?} is unknown: write Memory, or leave it out for the node's disk"
            ));
        }
        None => None,
    };
    let limit = from.empty_dir_size_limit.as_deref();
    if let Some(limit) = limit.filter(|limit| quantity::milli(limit).is_none_or(|limit| limit < 0)) {
        return Err(format!("emptyDirSizeLimit {limit:?} is no amount: write it like 64Gi"));
    }
    Ok(EmptyDirVolumeSource { medium, size_limit: limit.map(|limit| Quantity(limit.to_owned())) })
}

/// RFC 1123 as Kubernetes reads it for names of volumes and containers.
pub(super) fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}
