//! What of a spec would change a running incarnation, and therefore waits for the next one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tributary_api::minicluster::{BurstCluster, Commands, Container, MiniCluster, MiniClusterSpec};
use tributary_flux::{FluxVersion, RankMap, Slot};

use super::Rendered;
use super::boot::{Boot, digest_of};
use super::context::Context;
use super::quantity::milli;
use super::scripts::{QUORUM_KEY, RESTFUL_FILE, is_wrapped_service};

/// Fields that never need a restart: the controller follows them at once.
const FOLLOWED: [&str; 9] = [
    "spec.suspend",
    "spec.cleanup",
    "spec.cleanupVolumes",
    "spec.updates",
    "spec.ttlSecondsAfterFinished",
    "spec.deadlineSeconds",
    "spec.jobLabels",
    // Whoever makes an instance is its manager.
    "spec.managedBy",
    // Brokers know a Service of their own cluster, which is led elsewhere.
    "spec.flux.bursting.network",
];

/// Fields that need none as long as the frozen rank map has room for what they declare.
const WITHIN_RANKS: [&str; 3] = ["spec.size", "spec.maxSize", CLUSTERS];

const CLUSTERS: &str = "spec.flux.bursting.clusters";

/// The paths of spec fields whose new value only a new Job can bring, as the condition `RestartRequired` names them;
/// empty if the running incarnation is what the spec asks for.
///
/// It names fields of the spec, so an agent of a newer version, which renders the same spec differently, finds nothing.
/// Sizes count only where the frozen rank map has no room for them; a default that is written out does not count. `running` is
/// what the spec of the running incarnation comes to now: see [`running`].
pub fn differences(frozen: &Boot, running: Option<&Boot>, new: &Boot) -> Vec<String> {
    // What only the Secret of the RESTful server holds is in no file.
    let in_secret = |boot: &Boot| {
        let fields = ["/fluxRestful/username", "/fluxRestful/token", "/fluxRestful/secretKey", "/users"];
        boot.files.contains_key(RESTFUL_FILE).then(|| fields.map(|field| boot.spec.pointer(field).cloned()))
    };
    // Nor is the certificate, nor what kind of Service gives pods their names.
    let elsewhere =
        |boot: &Boot| ["/flux/curveCert", "/flux/minimalService"].map(|field| boot.spec.pointer(field).cloned());
    let version_stays = version_of_bursts(frozen) == version_of_bursts(new);
    let comes_to_the_same =
        |old: &Boot| files(old).eq(files(new)) && old.template == new.template && old.rank_map == new.rank_map;
    // An agent of another version renders the same spec in another way. Defaults that are written out change nothing of it.
    if [Some(frozen), running].into_iter().flatten().any(comes_to_the_same)
        && in_secret(frozen) == in_secret(new)
        && elsewhere(frozen) == elsewhere(new)
        && version_stays
        && made_volumes(&frozen.spec) == made_volumes(&new.spec)
        && slot_resources(frozen, new).is_empty()
        && (services_follow(frozen, new) || frozen.spec["services"] == new.spec["services"])
    {
        return Vec::new();
    }
    let mut paths = Vec::new();
    collect("spec", &frozen.spec, &new.spec, &mut paths);
    let is_below = |path: &str, fields: &[&str]| fields.iter().any(|field| is_at_or_below(path, field));
    keep_what_has_no_room(&mut paths, frozen, new);
    let services_follow = services_follow(frozen, new);
    let retries_stay = is_written(&frozen.spec, "backoffLimit") == is_written(&new.spec, "backoffLimit");
    let quorum_follows = quorum_follows(frozen, new);
    paths.retain(|path| {
        !(is_below(path, &FOLLOWED)
            || (quorum_follows && path == "spec.minSize")
            || (version_stays && path == "spec.flux.version")
            || (services_follow && is_at_or_below(path, "spec.services"))
            // Whether a failed command runs again is fixed with the Job; only how often is not.
            || (retries_stay && path == "spec.backoffLimit")
            // What becomes of a volume in the end.
            || (path.starts_with("spec.volumes.") && path.ends_with(".delete"))
            || is_port(path))
    });
    for path in slot_resources(frozen, new) {
        if !paths.iter().any(|known| is_at_or_below(known, &path)) {
            paths.push(path);
        }
    }
    paths
}

/// Of the paths below [`WITHIN_RANKS`], leaves those that the frozen rank map has no room for, and adds bursts that it has none
/// for though nothing is written of them (their size may be the root's).
fn keep_what_has_no_room(paths: &mut Vec<String>, frozen: &Boot, new: &Boot) {
    let within = |path: &String| WITHIN_RANKS.iter().any(|field| is_at_or_below(path, field));
    if has_room(frozen, new) {
        return paths.retain(|path| !within(path));
    }
    let Some((frozen, wanted)) = slots(frozen, new) else { return };
    let Some(own) = wanted.first() else { return };
    let root = &own.name;
    let slot = |name: &str| wanted.iter().find(|slot| slot.name == name);
    let slots: Vec<_> = spec_of(new).bursts(root).map(|(name, _)| (slot(&name), frozen.slot(&name))).collect();
    let reordered = paths.iter().any(|path| path == CLUSTERS);
    paths.retain(|path| match (cluster_field(path), frozen.slot(root)) {
        _ if !within(path) => true,
        (Some((position, field)), _) => match (slots.get(position), field) {
            (Some((Some(wanted), Some(declared))), "size" | "maxSize") => wanted.max_size > declared.max_size,
            (Some((Some(_), Some(_))), "budget" | "mode" | "onDemand" | "peers" | "selector" | "warm") => false,
            (Some((Some(wanted), Some(declared))), _) => {
                Slot { max_size: declared.max_size, ..(*wanted).clone() } != **declared
            }
            _ => true,
        },
        (None, Some(declared)) => path != CLUSTERS && own.max_size > declared.max_size,
        (None, None) => true,
    });
    for (position, slot) in slots.iter().enumerate() {
        let path = format!("{CLUSTERS}[{position}]");
        let lacks = match slot {
            (Some(wanted), Some(declared)) if reordered => !holds(declared, wanted),
            (Some(wanted), Some(declared)) => wanted.max_size > declared.max_size,
            _ => true,
        };
        if lacks && !paths.iter().any(|known| is_at_or_below(known, &path)) {
            paths.push(path);
        }
    }
}

/// Which of the clusters a path is about, and which of its fields.
fn cluster_field(path: &str) -> Option<(usize, &str)> {
    let (position, field) = path.strip_prefix(CLUSTERS)?.strip_prefix('[')?.split_once(']')?;
    Some((position.parse().ok()?, field.split(['.', '[']).nth(1).unwrap_or_default()))
}

/// Slots whose brokers would have other resources: their peers got a template with the incarnation. A slot that came or went
/// is another matter.
fn slot_resources(frozen: &Boot, new: &Boot) -> Vec<String> {
    let (frozen, new) = (spec_of(frozen), spec_of(new));
    // Names that are not written follow from the root's, which both have, and the position.
    let before: BTreeMap<_, _> = frozen.bursts("").map(|(name, cluster)| (name, &cluster.resources)).collect();
    let changed = |(position, (name, cluster)): (usize, (String, &BurstCluster))| {
        let differs = before.get(&name).is_some_and(|resources| **resources != cluster.resources);
        differs.then(|| format!("spec.flux.bursting.clusters[{position}].resources"))
    };
    new.bursts("").enumerate().filter_map(changed).collect()
}

/// All but what is wanted by now, which is followed.
fn files(boot: &Boot) -> impl Iterator<Item = (&String, &String)> {
    boot.files.iter().filter(|(key, _)| *key != QUORUM_KEY)
}

/// The version of Flux that peers are told with the bursts.
fn version_of_bursts(boot: &Boot) -> Option<FluxVersion> {
    let spec = spec_of(boot);
    if spec.flux.bursting.clusters.is_empty() { None } else { flux_version(&spec) }
}

/// Flux of the instance: as the user declares it, else as the tag of the image that brings it says.
pub fn flux_version(spec: &MiniClusterSpec) -> Option<FluxVersion> {
    let declared = spec.flux.version.as_deref().and_then(|text| text.parse().ok());
    let image = match spec.flux.container.disable {
        true => spec.runner().ok().and_then(|runner| runner.container.image.as_deref()).unwrap_or_default(),
        false => spec.flux.view_image(),
    };
    declared.or_else(|| FluxVersion::of_image(image))
}

fn spec_of(boot: &Boot) -> MiniClusterSpec {
    serde_json::from_value(boot.spec.clone()).unwrap_or_default()
}

/// What the objects beside the Job of a running instance should be: those of the spec that it was started with, and of the
/// present one what needs no new Job. `None` if that cannot be rendered. `new` is what the present spec renders to, if it can
/// be carried out.
pub fn running(frozen: &Boot, mini_cluster: &MiniCluster, new: Option<&Boot>, context: &Context) -> Option<Rendered> {
    let mut running = super::render(&followed(frozen, mini_cluster, new)?, context).ok()?;
    // A script of an older agent reads no further.
    if let (Some(told), Some(wanted)) = (frozen.files.get(QUORUM_KEY), running.boot.files.get_mut(QUORUM_KEY)) {
        *wanted = wanted.split_inclusive('\n').take(told.lines().count()).collect();
    }
    Some(running)
}

fn followed(frozen: &Boot, mini_cluster: &MiniCluster, new: Option<&Boot>) -> Option<MiniCluster> {
    let mut spec = frozen.spec.clone();
    let present = serde_json::to_value(&mini_cluster.spec).ok()?;
    if let Some(new) = new {
        let mut fields = FOLLOWED.to_vec();
        if has_room(frozen, new) {
            fields.extend(WITHIN_RANKS);
        }
        if services_follow(frozen, new) {
            fields.push("spec.services");
        }
        if quorum_follows(frozen, new) {
            fields.push("spec.minSize");
        }
        if is_written(&frozen.spec, "backoffLimit") == is_written(&new.spec, "backoffLimit") {
            fields.push("spec.backoffLimit");
        }
        for field in fields {
            let pointer = field.trim_start_matches("spec").replace('.', "/");
            put(&mut spec, &pointer, present.pointer(&pointer));
        }
        for index in 0..spec["containers"].as_array().map_or(0, Vec::len) {
            if present["containers"].get(index).is_some() {
                let pointer = format!("/containers/{index}/ports");
                put(&mut spec, &pointer, present.pointer(&pointer));
            }
        }
    }
    // Only its digest was recorded; nothing that follows reads it.
    put(&mut spec, "/flux/curveCert", present.pointer("/flux/curveCert"));
    let mut spec = serde_json::from_value(spec).ok()?;
    fix_unwritten_sizes(&mut spec, frozen);
    Some(MiniCluster { spec, ..mini_cluster.clone() })
}

/// Gives a burst without a written size the size that it started with. If only `maxSize` was written, its Burst took the root's
/// size when it was made, which we do not know here. So the smaller of the root's two sizes counts: the lead must not wait for
/// more brokers than the burst has.
fn fix_unwritten_sizes(spec: &mut MiniClusterSpec, frozen: &Boot) {
    let Ok(map) = RankMap::parse_canonical(&frozen.rank_map) else { return };
    let (root, started) = (&map.root().name, spec_of(frozen));
    let before: BTreeMap<_, _> = started.bursts(root).collect();
    let names: Vec<_> = spec.bursts(root).map(|(name, _)| name).collect();
    let least = spec.size().min(started.size());
    let began = |name: &String| {
        let cluster = before.get(name)?;
        match (cluster.size, cluster.max_size) {
            (None, None) => map.slot(name).and_then(|slot| i32::try_from(slot.max_size).ok()),
            _ => Some(cluster.size(least)),
        }
    };
    for (name, cluster) in names.iter().zip(&mut spec.flux.bursting.clusters) {
        cluster.size = cluster.size.or_else(|| began(name));
    }
}

/// Whether `spec.services` can follow without a restart: the inputs of its scripts are the same (scripts are frozen files), and
/// it asks for no more than at the start, which a queue has counted.
fn services_follow(frozen: &Boot, new: &Boot) -> bool {
    let (before, now) = (service_requests(frozen), service_requests(new));
    if now.iter().any(|(resource, amount)| *amount > before.get(resource).copied().unwrap_or(0)) {
        return false;
    }
    // An agent of another version makes other scripts of the same.
    let shell = |boot: &Boot| -> Vec<_> {
        let services = spec_of(boot).services.into_iter().enumerate();
        let wrapped = services.filter(|(_, service)| is_wrapped_service(service));
        let shell = |service: &Container| {
            let Commands { init, service_pre, script, post, .. } = &service.commands;
            [&service.command, init, service_pre, script, post].map(Clone::clone)
        };
        wrapped.map(|(index, service)| (index, shell(&service))).collect()
    };
    shell(frozen) == shell(new)
}

/// Whether a lead reads how many brokers it waits for, so that another `minSize` needs no new Job.
fn quorum_follows(frozen: &Boot, new: &Boot) -> bool {
    [frozen, new].iter().all(|boot| boot.files.contains_key(QUORUM_KEY))
}

/// What the pod of `spec.services` requests of each resource, in thousandths.
fn service_requests(boot: &Boot) -> BTreeMap<String, i128> {
    let spec = spec_of(boot);
    let mut sums = BTreeMap::new();
    for resources in spec.services.iter().map(|service| &service.resources) {
        let named: BTreeSet<&String> = resources.requests.keys().chain(resources.limits.keys()).collect();
        for resource in named {
            let amount = resources.effective_request(resource).and_then(|amount| milli(&amount.to_string()));
            *sums.entry(resource.clone()).or_default() += amount.unwrap_or(0);
        }
    }
    sums
}

/// Makes the field at `pointer` what it is there: absent, if it is `None`. Sections that are missing are made. Nothing is done
/// where something else stands in the place of a section.
fn put(value: &mut Value, pointer: &str, field: Option<&Value>) {
    let (parent, name) = pointer.rsplit_once('/').expect("pointers begin with a slash");
    let mut section = value;
    for step in parent.split('/').skip(1) {
        let below = match section {
            Value::Array(elements) => step.parse::<usize>().ok().and_then(|index| elements.get_mut(index)),
            other => fields(other, field.is_some()).and_then(|fields| match field {
                Some(_) => Some(fields.entry(step).or_insert(Value::Null)),
                None => fields.get_mut(step),
            }),
        };
        let Some(below) = below else { return };
        section = below;
    }
    match (fields(section, field.is_some()), field) {
        (Some(section), Some(field)) => drop(section.insert(name.to_owned(), field.clone())),
        (Some(section), None) => drop(section.remove(name)),
        (None, _) => {}
    }
}

/// The fields of a section. One that is not there is begun, if it is wanted.
fn fields(section: &mut Value, wanted: bool) -> Option<&mut Map<String, Value>> {
    if wanted && section.is_null() {
        *section = Value::Object(Map::new());
    }
    section.as_object_mut()
}

/// The volumes that are made before the Job, which knows them by their claims only, without what becomes of them in the end.
fn made_volumes(spec: &Value) -> Vec<(&String, Value)> {
    let declared = spec["volumes"].as_object().into_iter().flatten();
    let mut made: Vec<_> = declared.map(|(name, volume)| (name, volume.clone())).collect();
    made.retain(|(_, volume)| is_written(volume, "capacity"));
    for (_, volume) in &mut made {
        volume.as_object_mut().map(|fields| fields.remove("delete"));
    }
    made
}

fn is_written(spec: &Value, field: &str) -> bool {
    spec.get(field).is_some_and(|value| !value.is_null())
}

/// Ports of containers are for their Services, which follow; in a pod they are a note to its readers.
fn is_port(path: &str) -> bool {
    path.strip_prefix("spec.containers[")
        .and_then(|rest| rest.split_once("]."))
        .is_some_and(|(_, rest)| is_at_or_below(rest, "ports"))
}

/// The spec as [`Boot::spec`] keeps it: JSON with the certificate, if one is written into it, replaced by its digest, and
/// passwords by so little of theirs that they are not found by trying, but a change is seen.
pub(super) fn recorded_spec(spec: &MiniClusterSpec) -> Value {
    let mut value = serde_json::to_value(spec).expect("strings, numbers and string keys have a JSON form");
    if let Some(certificate) = value.pointer_mut("/flux/curveCert") {
        *certificate = Value::String(digest_of(certificate.as_str().unwrap_or_default().as_bytes()));
    }
    let mut secrets = vec!["/fluxRestful/token".to_owned(), "/fluxRestful/secretKey".to_owned()];
    secrets.extend((0..spec.users.len()).map(|index| format!("/users/{index}/password")));
    for pointer in secrets {
        if let Some(secret) = value.pointer_mut(&pointer) {
            let digest = digest_of(secret.as_str().unwrap_or_default().as_bytes());
            *secret = Value::String(digest.chars().rev().take(3).collect());
        }
    }
    value
}

/// Whether the frozen slots can hold all that the new spec declares. Slots that went away or shrank leave room behind.
fn has_room(frozen: &Boot, new: &Boot) -> bool {
    if frozen.rank_map == new.rank_map {
        return true;
    }
    let Some((frozen, wanted)) = slots(frozen, new) else { return false };
    wanted.iter().all(|slot| frozen.slot(&slot.name).is_some_and(|declared| holds(declared, slot)))
}

/// The frozen slots, and those that the new spec declares. A burst that no size is written for has the root's size when the
/// instance started, in both.
fn slots(frozen: &Boot, new: &Boot) -> Option<(RankMap, Vec<Slot>)> {
    let maps = [frozen, new].map(|boot| RankMap::parse_canonical(&boot.rank_map).ok());
    let [Some(declared), Some(map)] = maps else { return None };
    let [before, now] = [frozen, new].map(|boot| {
        let spec = spec_of(boot);
        let unwritten =
            spec.bursts(&map.root().name).filter(|(_, cluster)| cluster.size.or(cluster.max_size).is_none());
        unwritten.map(|(name, _)| name).collect::<BTreeSet<_>>()
    });
    let dropped_all = map.bursts().is_empty();
    let fixed = |mut slot: Slot| {
        // The property by which jobs stay with the root's own brokers is there for as long as the instance is.
        if let Some(declared) = declared.slot(&slot.name).filter(|_| dropped_all) {
            slot.properties.clone_from(&declared.properties);
        }
        let both = before.contains(&slot.name) && now.contains(&slot.name);
        slot.max_size = declared.slot(&slot.name).filter(|_| both).map_or(slot.max_size, |declared| declared.max_size);
        slot
    };
    let wanted = map.slots().iter().cloned().map(fixed).collect();
    Some((declared, wanted))
}

fn holds(declared: &Slot, wanted: &Slot) -> bool {
    wanted.max_size <= declared.max_size && Slot { max_size: declared.max_size, ..wanted.clone() } == *declared
}

fn is_at_or_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The deepest paths at which two JSON values differ.
fn collect(path: &str, old: &Value, new: &Value, paths: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => collect_objects(path, old, new, paths),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                collect(&format!("{path}[{index}]"), old, new, paths);
            }
        }
        _ if old != new => paths.push(path.to_owned()),
        _ => {}
    }
}

fn collect_objects(path: &str, old: &Map<String, Value>, new: &Map<String, Value>, paths: &mut Vec<String>) {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let mut keys: Vec<_> = old.keys().chain(added).collect();
    keys.sort_unstable();
    for key in keys {
        let (old, new) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
        // A section that was not there at all is compared with an empty one: its fields are named, not itself.
        let empty = Value::Object(Map::new());
        let (old, new) = match (old, new) {
            (Value::Null, Value::Object(_)) => (&empty, new),
            (Value::Object(_), Value::Null) => (old, &empty),
            other => other,
        };
        collect(&format!("{path}.{key}"), old, new, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank_map_of;

    const SPEC: &str = "
  size: 2
  maxSize: 4
  containers: [{image: ubuntu, command: hostname}]
  flux: {bursting: {clusters: [{name: b, size: 2, maxSize: 3}, {name: c, size: 1}]}}
";

    fn boot(spec: &str) -> Boot {
        let yaml = format!("metadata: {{name: lake, namespace: default}}\nspec:\n{spec}");
        let mini_cluster: MiniCluster = serde_saphyr::from_str(&yaml).unwrap();
        Boot {
            revision: 1,
            files: std::collections::BTreeMap::new(),
            rank_map: rank_map_of(&mini_cluster).unwrap().to_canonical(),
            template: digest_of(spec.as_bytes()),
            spec: recorded_spec(&mini_cluster.spec),
        }
    }

    fn after(change: (&str, &str)) -> Vec<String> {
        assert!(SPEC.contains(change.0), "{change:?}");
        differences(&boot(SPEC), None, &boot(&SPEC.replace(change.0, change.1)))
    }

    #[test]
    fn what_the_controller_follows_needs_no_restart() {
        for change in [
            ("size: 2\n", "size: 4\n"),
            ("size: 2\n", "size: 1\n"),
            ("size: 2\n", "size: 2\n  suspend: true\n  cleanup: true\n"),
            ("maxSize: 4", "maxSize: 3"),
            ("size: 2, maxSize: 3", "size: 3, maxSize: 3"),
            ("size: 2, maxSize: 3", "size: 1"),
            (", {name: c, size: 1}", ""),
            ("{name: c, size: 1}", "{name: c, size: 1, peers: [west, east]}"),
            ("size: 2\n", "size: 2\n  deadlineSeconds: 60\n  jobLabels: {queue: a}\n"),
            ("size: 2\n", "size: 2\n  updates: Recreate\n  ttlSecondsAfterFinished: 5\n"),
            ("command: hostname", "command: hostname, ports: [80]"),
        ] {
            assert_eq!(after(change), Vec::<String>::new(), "{change:?}");
        }
    }

    #[test]
    fn the_least_size_is_followed_by_instances_that_read_it() {
        let with = |spec: &str, reads: bool| {
            let file = reads.then(|| (QUORUM_KEY.to_owned(), "1\n".to_owned()));
            Boot { files: file.into_iter().collect(), ..boot(spec) }
        };
        let edited = SPEC.replace("size: 2\n", "size: 2\n  minSize: 1\n");
        assert_eq!(differences(&with(SPEC, true), None, &with(&edited, true)), [""; 0]);
        let yaml = format!("metadata: {{name: lake, namespace: default}}\nspec:\n{edited}");
        let present: MiniCluster = serde_saphyr::from_str(&yaml).unwrap();
        let running = |reads| followed(&with(SPEC, reads), &present, Some(&with(&edited, true))).unwrap().spec.min_size;
        assert_eq!([running(true), running(false)], [Some(1), None]);
        assert_eq!(differences(&with(SPEC, false), None, &with(&edited, true)), ["spec.minSize"]);
    }

    #[test]
    fn what_only_a_new_job_can_bring_is_named() {
        for (change, expected) in [
            (("command: hostname", "command: date"), "spec.containers[0].command"),
            (("image: ubuntu", "image: debian"), "spec.containers[0].image"),
            (("size: 2\n", "size: 2\n  tasks: 4\n"), "spec.tasks"),
            (("size: 2\n", "size: 2\n  backoffLimit: 3\n"), "spec.backoffLimit"),
            (("size: 2\n", "size: 2\n  network: {headlessName: sea}\n"), "spec.network.headlessName"),
            (
                ("command: hostname", "command: hostname, environment: {ports: a}"),
                "spec.containers[0].environment.ports",
            ),
            (("size: 2\n", "size: 2\n  pod: {labels: {a: b}}\n"), "spec.pod.labels.a"),
            (("maxSize: 4", "maxSize: 5"), "spec.maxSize"),
            (("size: 1}", "size: 2}"), "spec.flux.bursting.clusters[1].size"),
            (("size: 1}", "size: 1, cores: 2}"), "spec.flux.bursting.clusters[1].cores"),
            // The rank map is the same.
            (("size: 1}", "size: 1, resources: {limits: {memory: 1Gi}}}"), "spec.flux.bursting.clusters[1].resources"),
            (
                ("size: 1}", "size: 1, resources: {limits: {nvidia.com/gpu: 1}}}"),
                "spec.flux.bursting.clusters[1].resources.limits.nvidia.com/gpu",
            ),
            (("size: 1}", "size: 1, peer: west}"), "spec.flux.bursting.clusters[1].peer"),
            (("size: 1}]", "size: 1}, {name: d}]"), "spec.flux.bursting.clusters[2]"),
        ] {
            assert_eq!(after(change), [expected], "{change:?}");
        }
    }

    /// The danger: a field that was applied is called one that waits.
    #[test]
    fn of_several_changes_only_those_without_room_are_named() {
        let clusters = "spec.flux.bursting.clusters";
        let spec = "
  size: 2
  containers: [{image: ubuntu}]
  flux: {bursting: {clusters: [{size: 2, peer: west}, {name: c, size: 1, maxSize: 3}, {}]}}
";
        let after = |changes: &[(&str, &str)]| {
            let edited = changes.iter().fold(spec.to_owned(), |text, (old, new)| {
                assert!(text.contains(old), "{old}");
                text.replacen(old, new, 1)
            });
            differences(&boot(spec), None, &boot(&edited))
        };
        let grown = ("{name: c, size: 1,", "{name: c, size: 2,");
        assert_eq!(after(&[("{size: 2, ", "{size: 5, "), grown]), [format!("{clusters}[0].size")]);
        assert_eq!(after(&[("peer: west", "peer: north, warm: true"), grown]), [format!("{clusters}[0].peer")]);
        assert_eq!(after(&[(", {}]", ", {}, {name: d, size: 1}]"), grown]), [format!("{clusters}[3]")]);
        assert_eq!(after(&[("  size: 2\n", "  size: 3\n")]), ["spec.size"]);
        assert_eq!(after(&[("{}]", "{size: 3}]")]), [format!("{clusters}[2].size")]);
        assert_eq!(after(&[("  size: 2\n", "  size: 1\n"), (", {}]", "]"), grown]), Vec::<String>::new());
    }

    #[test]
    fn growing_beyond_the_declared_ranks_names_the_size() {
        let spec = "\n  size: 2\n  containers: [{}]\n";
        let grown = differences(&boot(spec), None, &boot(&spec.replace("size: 2", "size: 3")));
        assert_eq!(grown, ["spec.size"]);
        let shrunk = differences(&boot(spec), None, &boot(&spec.replace("size: 2", "size: 1")));
        assert_eq!(shrunk, Vec::<String>::new());
    }

    /// The danger: a scaled root ends its instance, or waits for ever for brokers that its burst does not get.
    #[test]
    fn a_burst_without_a_size_keeps_the_one_it_started_with() {
        let of = |size, west: &str| -> MiniCluster {
            let yaml = format!(
                "{{metadata: {{name: lake, namespace: default, uid: u}}, spec: {{size: {size}, maxSize: 8, tasks: 0, containers: \
                 [{{command: a}}], flux: {{bursting: {{clusters: [{west}, {{maxSize: 8}}], wait: {{for: All}}, span: true}}}}}}}}"
            );
            serde_saphyr::from_str(&yaml).unwrap()
        };
        let rendered = |size, west| crate::render(&of(size, west), &Context::default()).unwrap().boot;
        let frozen = rendered(2, "{peer: west}");
        assert_eq!(frozen.files[QUORUM_KEY], "2\n4\n2 4\n");
        let followed = |size, west| {
            let new = rendered(size, west);
            let running = running(&frozen, &of(size, west), Some(&new), &Context::default()).unwrap().boot;
            (differences(&frozen, Some(&running), &new), running.files[QUORUM_KEY].clone())
        };
        let said = |lines: &str| (Vec::new(), lines.to_owned());
        assert_eq!(followed(3, "{peer: west}"), said("3\n4\n3 4\n"));
        assert_eq!(followed(1, "{peer: west}"), said("1\n3\n1 3\n"), "the second is at least of that size");
        assert_eq!(followed(2, "{size: 1, peer: west}"), said("2\n3\n2 3\n"));
        assert_eq!(followed(2, "{peer: west, mode: OnDemand}"), said("2\n2\n2 4\n"));
        let clusters = "spec.flux.bursting.clusters[0]";
        assert_eq!(followed(2, "{size: 3}").0, [format!("{clusters}.peer"), format!("{clusters}.size")]);
        assert_eq!(followed(2, "{peer: west, maxSize: 3}").0, [format!("{clusters}.maxSize")]);
    }

    #[test]
    fn scripts_of_an_older_agent_are_told_the_quorum_alone() {
        let of = |burst| -> MiniCluster {
            let yaml = format!(
                "{{metadata: {{name: lake, namespace: default, uid: u}}, spec: {{size: 2, containers: [{{command: a}}], flux: \
                 {{bursting: {{clusters: [{{size: {burst}, maxSize: 4}}], wait: {{for: All}}}}}}}}}}"
            );
            serde_saphyr::from_str(&yaml).unwrap()
        };
        let context = Context::default();
        let mut frozen = crate::render(&of(4), &context).unwrap().boot;
        let new = crate::render(&of(2), &context).unwrap().boot;
        let told =
            |frozen: &Boot| running(frozen, &of(2), Some(&new), &context).unwrap().boot.files[QUORUM_KEY].clone();
        assert_eq!(told(&frozen), "2\n2\n");
        frozen.files.insert(QUORUM_KEY.to_owned(), "2\n".to_owned());
        assert_eq!(told(&frozen), "2\n");
        // Nor is that a difference, where a default is written out.
        frozen.template = "of another version".to_owned();
        let mut present = of(4);
        present.spec.tasks = Some(1);
        let new = crate::render(&present, &context).unwrap().boot;
        let running = running(&frozen, &present, Some(&new), &context).unwrap().boot;
        assert_eq!(differences(&frozen, Some(&running), &new), [""; 0]);
    }

    /// The danger: the command waits for ever for a burst that nobody declares any more, or that comes when jobs ask for it.
    #[test]
    fn a_root_whose_only_burst_is_dropped_or_on_demand_waits_no_more() {
        let of = |size: u32, clusters: &str| -> MiniCluster {
            let spec = format!("flux: {{bursting: {{clusters: [{clusters}], wait: {{for: All}}}}}}");
            let spec = format!("{{size: {size}, containers: [{{command: a}}], {spec}}}");
            serde_saphyr::from_str(&format!("{{metadata: {{name: lake, namespace: default, uid: u}}, spec: {spec}}}"))
                .unwrap()
        };
        let context = Context::default();
        let rendered = |size, clusters| crate::render(&of(size, clusters), &context).unwrap().boot;
        for size in [1, 2] {
            let frozen = rendered(size, "{size: 4}");
            let lines = |boot: &Boot| boot.files[QUORUM_KEY].lines().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&frozen)[..2], [size.to_string(), "4".to_owned()]);
            for clusters in ["{size: 4, mode: OnDemand}", ""] {
                let new = rendered(size, clusters);
                let running = running(&frozen, &of(size, clusters), Some(&new), &context).unwrap().boot;
                assert_eq!(differences(&frozen, Some(&running), &new), [""; 0], "{size} {clusters}");
                assert_eq!(lines(&running)[..2], [size.to_string(), "0".to_owned()], "{size} {clusters}");
            }
        }
    }

    #[test]
    fn a_default_that_is_written_out_is_no_difference() {
        let old = boot(SPEC);
        let new = Boot { template: old.template.clone(), ..boot(&SPEC.replace("size: 2\n", "size: 2\n  tasks: 1\n")) };
        assert_ne!(old.spec, new.spec);
        assert_eq!(differences(&old, None, &new), Vec::<String>::new());
    }

    /// What stands in the Secret, in a Service and in the Bursts.
    #[test]
    fn what_is_neither_in_the_files_nor_in_the_job_needs_a_new_one_too() {
        let version = "flux: {container: {image: 'view:flux-0.68.0'}, ";
        let alone = SPEC.replace("bursting: {clusters: [{name: b, size: 2, maxSize: 3}, {name: c, size: 1}]}", "");
        for (spec, written, fields) in [
            (SPEC, "curveCert: x, ", &["spec.flux.curveCert"][..]),
            (SPEC, "minimalService: true, ", &["spec.flux.minimalService"]),
            (SPEC, "minimalService: false, ", &[]),
            (SPEC, "version: '0.68', ", &["spec.flux.version"]),
            (&SPEC.replace("flux: {", version), "version: '0.69', ", &["spec.flux.version"]),
            // As the tag of the image says.
            (&SPEC.replace("flux: {", version), "version: '0.68', ", &[]),
            // Nobody is told.
            (&alone, "version: '0.68', ", &[]),
        ] {
            let old = boot(spec);
            let edited = boot(&spec.replace("flux: {", &format!("flux: {{{written}")));
            let new = Boot { template: old.template.clone(), ..edited };
            assert_eq!(differences(&old, None, &new), fields, "{written}");
            let upgraded = Boot { template: "other".to_owned(), ..new.clone() };
            assert_eq!(differences(&old, None, &upgraded), fields, "{written}");
            assert_eq!(differences(&new, None, &upgraded), [""; 0], "{written}");
        }
    }

    /// The danger: an upgrade ends instances whose users wrote a default out, or starts runs that have ended.
    #[test]
    fn another_version_of_the_agent_makes_no_difference_of_what_is_written_out() {
        let of = |spec: &str| -> MiniCluster {
            let yaml = format!("metadata: {{name: lake, namespace: default, uid: u}}\nspec:\n{spec}");
            serde_saphyr::from_str(&yaml).unwrap()
        };
        let context = Context::default();
        let present = of(&SPEC.replace("size: 2\n", "size: 2\n  tasks: 1\n"));
        let new = crate::render(&present, &context).unwrap().boot;
        let mut frozen = crate::render(&of(SPEC), &context).unwrap().boot;
        assert_ne!(frozen.spec, new.spec);
        assert_eq!(differences(&frozen, None, &new), [""; 0]);
        frozen.template = "of another version".to_owned();
        let running = |present: &MiniCluster, new| running(&frozen, present, Some(new), &context).unwrap().boot;
        assert_eq!(differences(&frozen, Some(&running(&present, &new)), &new), [""; 0]);
        let edited = of(&SPEC.replace("image: ubuntu", "image: rocky"));
        let new = crate::render(&edited, &context).unwrap().boot;
        assert_eq!(differences(&frozen, Some(&running(&edited, &new)), &new), ["spec.containers[0].image"]);
    }

    #[test]
    fn another_version_of_the_agent_is_no_difference() {
        let (old, mut new) = (boot(SPEC), boot(SPEC));
        new.revision += 1;
        new.files.insert("wait-0".to_owned(), "other".to_owned());
        new.template = "other".to_owned();
        assert_eq!(differences(&old, None, &new), Vec::<String>::new());
    }

    #[test]
    fn a_certificate_in_the_spec_is_recorded_as_its_digest() {
        let boot = boot("\n  containers: [{}]\n  flux: {curveCert: top-secret}\n");
        let json = serde_json::to_string(&boot).unwrap();
        assert!(!json.contains("top-secret") && json.contains("sha256:"), "{json}");
    }

    #[test]
    fn another_volume_needs_a_new_job_though_that_knows_its_claim_only() {
        let boot = |volume: &str| {
            let volumes = tributary_config::VolumesConfig {
                classes: vec!["hostpath".to_owned()],
                path_prefixes: vec!["/".to_owned()],
                ..Default::default()
            };
            let yaml = format!(
                "{{metadata: {{name: lake, namespace: waters, uid: u}}, spec: {{volumes: {{data: {volume}}}, containers: \
                 [{{command: ls, volumes: {{data: {{path: /mine}}}}}}]}}}}"
            );
            let context = crate::Context { volumes, ..Default::default() };
            crate::render(&serde_saphyr::from_str(&yaml).unwrap(), &context).unwrap().boot
        };
        let first = boot("{path: /data/a, capacity: 5Gi}");
        for (volume, field) in [
            ("{path: /data/b, capacity: 5Gi}", "path"),
            ("{path: /data/a, capacity: 6Gi}", "capacity"),
            ("{path: /data/a, capacity: 5Gi, labels: {a: b}}", "labels.a"),
        ] {
            assert_eq!(differences(&first, None, &boot(volume)), [format!("spec.volumes.data.{field}")], "{volume}");
        }
        let stays = boot("{path: /data/a, capacity: 5Gi, delete: false}");
        assert_eq!(differences(&first, None, &stays), Vec::<String>::new());
    }

    #[test]
    fn other_users_of_the_restful_server_need_a_new_job() {
        let boot = |spec: &str| {
            let yaml = format!("{{metadata: {{name: lake, namespace: default, uid: u}}, spec: {spec}}}");
            crate::render(&serde_saphyr::from_str(&yaml).unwrap(), &crate::Context::default()).unwrap().boot
        };
        let served = |restful: &str| boot(&format!("{{containers: [{{}}], fluxRestful: {restful}}}"));
        let first = served("{token: a}");
        for (restful, field) in [
            ("{token: b}", "spec.fluxRestful.token"),
            ("{token: a, username: ann}", "spec.fluxRestful.username"),
            ("{token: a, port: 5050}", "spec.fluxRestful.port"),
            ("{token: a}, users: [{name: ann}]", "spec.users"),
        ] {
            assert_eq!(differences(&first, None, &served(restful)), [field], "{restful}");
        }
        assert_eq!(differences(&first, None, &served("{token: a, port: 5000}")), Vec::<String>::new());
        let unserved = |users: &str| boot(&format!("{{containers: [{{command: hostname}}], users: {users}}}"));
        assert_eq!(differences(&unserved("[]"), None, &unserved("[{name: ann}]")), Vec::<String>::new());
    }

    #[test]
    fn objects_beside_the_job_follow_what_needs_no_new_job_and_nothing_else() {
        let of = |spec: &str| -> MiniCluster {
            serde_saphyr::from_str(&format!("metadata: {{name: lake, namespace: default}}\nspec:\n{spec}")).unwrap()
        };
        let edited = SPEC
            .replace(
                "size: 2\n",
                "size: 3\n  deadlineSeconds: 60\n  network: {headlessName: sea}\n  services: [{name: db}]\n",
            )
            .replace("image: ubuntu, command: hostname", "image: debian, ports: [80]")
            .replace(", {name: c, size: 1}", "");
        let (frozen, new) = (boot(SPEC), boot(&edited));
        let followed = |new| followed(&frozen, &of(&edited), new).unwrap().spec;
        let with_new = followed(Some(&new));
        let mut expected = of(SPEC).spec;
        expected.size = Some(3);
        expected.deadline_seconds = Some(60);
        expected.containers[0].ports = vec![80];
        expected.services = of(&edited).spec.services;
        expected.flux.bursting.clusters.pop();
        assert_eq!(with_new, expected);
        assert_eq!(followed(None), of(SPEC).spec, "a spec that cannot be carried out is not followed");
        let grown = boot(&edited.replace("maxSize: 4", "maxSize: 9"));
        assert_eq!(followed(Some(&grown)).size, Some(2), "ranks that are not there are not followed");
    }

    #[test]
    fn services_follow_as_long_as_their_scripts_are_the_frozen_ones() {
        let spec = SPEC.replace("size: 2\n", "size: 2\n  services: [{name: db, image: a, command: serve}]\n");
        let (mut old, new) = (boot(&spec), boot(&spec.replace("image: a,", "image: b,")));
        assert_eq!(differences(&old, None, &new), Vec::<String>::new());
        let others = boot(&spec.replace("image: a, command: serve", "image: b, command: wait"));
        assert_eq!(differences(&old, None, &others), ["spec.services[0].command", "spec.services[0].image"]);
        // The danger: an upgrade ends what runs, since its version writes this script otherwise.
        old.revision -= 1;
        old.files.insert("services-0.sh".to_owned(), "other".to_owned());
        assert_eq!(differences(&old, None, &new), Vec::<String>::new());
    }

    #[test]
    fn services_get_no_more_than_they_were_started_with() {
        let services = |resources: &str| {
            boot(&SPEC.replace(
                "size: 2\n",
                &format!("size: 2\n  services: [{{name: db}}, {{name: web, resources: {resources}}}]\n"),
            ))
        };
        let old = services("{requests: {cpu: 2, memory: 1Gi}}");
        for (resources, differs) in [
            ("{requests: {cpu: 1500m}}", false),
            ("{limits: {cpu: 2, memory: 1Gi}}", false),
            ("{requests: {cpu: 3, memory: 1Gi}}", true),
            ("{limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 1}}", true),
            ("{requests: {cpu: 2, memory: 2Gi}}", true),
        ] {
            let paths = differences(&old, None, &services(resources));
            assert_eq!(
                paths.iter().any(|path| path.starts_with("spec.services[1]")),
                differs,
                "{resources}: {paths:?}"
            );
        }
    }

    /// The danger: whoever may edit a Job ends the agent that reads what it was frozen with.
    #[test]
    fn a_frozen_spec_of_any_form_is_followed_or_not_and_ends_nobody() {
        let yaml = format!(
            "metadata: {{name: lake, namespace: default}}\nspec:\n{SPEC}  suspend: true\n  deadlineSeconds: 5\n"
        );
        let yaml = yaml.replace("bursting: {", "curveCert: x, bursting: {network: {type: Tunnel}, ");
        let mini_cluster: MiniCluster = serde_saphyr::from_str(&yaml).unwrap();
        let new = boot(SPEC);
        for (spec, readable) in [
            ("1", false),
            ("\"x\"", false),
            ("[1]", false),
            ("null", true),
            ("{}", true),
            ("{\"flux\": null}", true),
            ("{\"flux\": \"x\"}", false),
            ("{\"flux\": [1]}", false),
            ("{\"flux\": {\"bursting\": 1}}", false),
            ("{\"flux\": {\"bursting\": {\"network\": \"x\"}}}", true),
            ("{\"containers\": [\"x\"]}", false),
            ("{\"containers\": {\"0\": 1}}", false),
        ] {
            let frozen = Boot { spec: serde_json::from_str(spec).unwrap(), ..boot(SPEC) };
            let _ = (differences(&frozen, None, &new), differences(&new, None, &frozen));
            let followed = followed(&frozen, &mini_cluster, Some(&new));
            assert_eq!(followed.is_some(), readable, "{spec}: {followed:?}");
        }
    }
}
