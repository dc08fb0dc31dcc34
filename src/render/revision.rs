//! What of a spec would change a running incarnation, and therefore waits for the next one.

use serde_json::{Map, Value};

use super::boot::{Boot, digest_of};
use crate::api::minicluster::MiniClusterSpec;
use crate::flux::{RankMap, Slot};

/// Fields that need no restart by themselves: the controller follows them at once, or the rank map tells whether its frozen
/// slots have room for them.
const FOLLOWED: [&str; 5] =
    ["spec.size", "spec.maxSize", "spec.suspend", "spec.cleanup", "spec.flux.bursting.clusters"];

/// The paths of spec fields whose new value only a new Job can bring, as the condition `RestartRequired` names them;
/// empty if the running incarnation is what the spec asks for.
///
/// It names fields of the spec, so an agent of a newer version, which renders the same spec differently, finds nothing.
/// Sizes count only where the frozen rank map has no room for them; a default that is written out does not count.
pub fn differences(frozen: &Boot, new: &Boot) -> Vec<String> {
    if frozen.files == new.files && frozen.template == new.template && frozen.rank_map == new.rank_map {
        return Vec::new();
    }
    let mut paths = Vec::new();
    collect("spec", &frozen.spec, &new.spec, &mut paths);
    if has_room(frozen, new) {
        paths.retain(|path| !FOLLOWED.iter().any(|followed| is_at_or_below(path, followed)));
    } else {
        paths.retain(|path| !["spec.suspend", "spec.cleanup"].contains(&path.as_str()));
    }
    paths
}

/// The spec as [`Boot::spec`] keeps it: JSON with the certificate, if one is written into it, replaced by its digest.
pub(super) fn recorded_spec(spec: &MiniClusterSpec) -> Value {
    let mut value = serde_json::to_value(spec).expect("strings, numbers and string keys have a JSON form");
    if let Some(certificate) = value.pointer_mut("/flux/curveCert") {
        *certificate = Value::String(digest_of(certificate.as_str().unwrap_or_default().as_bytes()));
    }
    value
}

/// Whether the frozen slots can hold all that the new spec declares. Slots that went away or shrank leave room behind.
fn has_room(frozen: &Boot, new: &Boot) -> bool {
    if frozen.rank_map == new.rank_map {
        return true;
    }
    let (Ok(frozen), Ok(new)) = (RankMap::parse_canonical(&frozen.rank_map), RankMap::parse_canonical(&new.rank_map))
    else {
        return false;
    };
    new.slots().iter().all(|slot| frozen.slot(&slot.name).is_some_and(|declared| holds(declared, slot)))
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
    use crate::api::minicluster::MiniCluster;
    use crate::render::rank_map_of;

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
        differences(&boot(SPEC), &boot(&SPEC.replace(change.0, change.1)))
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
        ] {
            assert_eq!(after(change), Vec::<String>::new(), "{change:?}");
        }
    }

    #[test]
    fn what_only_a_new_job_can_bring_is_named() {
        for (change, expected) in [
            (("command: hostname", "command: date"), "spec.containers[0].command"),
            (("image: ubuntu", "image: debian"), "spec.containers[0].image"),
            (("size: 2\n", "size: 2\n  tasks: 4\n"), "spec.tasks"),
            (("size: 2\n", "size: 2\n  pod: {labels: {a: b}}\n"), "spec.pod.labels.a"),
            (("maxSize: 4", "maxSize: 5"), "spec.maxSize"),
            (("size: 1}", "size: 2}"), "spec.flux.bursting.clusters[1].size"),
            (("size: 1}", "size: 1, cores: 2}"), "spec.flux.bursting.clusters[1].cores"),
            (("size: 1}", "size: 1, peer: west}"), "spec.flux.bursting.clusters[1].peer"),
            (("size: 1}]", "size: 1}, {name: d}]"), "spec.flux.bursting.clusters"),
        ] {
            assert_eq!(after(change), [expected], "{change:?}");
        }
    }

    #[test]
    fn growing_beyond_the_declared_ranks_names_the_size() {
        let spec = "\n  size: 2\n  containers: [{}]\n";
        let grown = differences(&boot(spec), &boot(&spec.replace("size: 2", "size: 3")));
        assert_eq!(grown, ["spec.size"]);
        let shrunk = differences(&boot(spec), &boot(&spec.replace("size: 2", "size: 1")));
        assert_eq!(shrunk, Vec::<String>::new());
    }

    #[test]
    fn a_default_that_is_written_out_is_no_difference() {
        let old = boot(SPEC);
        let new = Boot { template: old.template.clone(), ..boot(&SPEC.replace("size: 2\n", "size: 2\n  tasks: 1\n")) };
        assert_ne!(old.spec, new.spec);
        assert_eq!(differences(&old, &new), Vec::<String>::new());
    }

    #[test]
    fn another_version_of_the_agent_is_no_difference() {
        let (old, mut new) = (boot(SPEC), boot(SPEC));
        new.revision += 1;
        new.files.insert("wait-0".to_owned(), "other".to_owned());
        assert_eq!(differences(&old, &new), Vec::<String>::new());
    }

    #[test]
    fn a_certificate_in_the_spec_is_recorded_as_its_digest() {
        let boot = boot("\n  containers: [{}]\n  flux: {curveCert: top-secret}\n");
        let json = serde_json::to_string(&boot).unwrap();
        assert!(!json.contains("top-secret") && json.contains("sha256:"), "{json}");
    }
}
