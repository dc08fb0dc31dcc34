//! Who owns which field, and server-side apply.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};
use serde_json::Value;

use super::fields::{self, Path, Place, Step};
use super::request::{Outcome, RequestInfo, details};
use tributary_cluster::drift::is_built_in;

/// Who wrote fields, and how. One manager that applies and updates is two.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Manager {
    name: String,
    applies: bool,
    subresource: String,
}

/// The fields of an object by their managers.
pub(super) type Owners = BTreeMap<Manager, BTreeSet<Path>>;

impl Manager {
    fn of(info: &RequestInfo, applies: bool) -> Self {
        Self { name: info.manager.clone(), applies, subresource: info.subresource.clone() }
    }

    /// As conflicts name it. The version of what a manager updated is told, too.
    fn told(&self, version: &str) -> String {
        let using = if self.applies { String::new() } else { format!(" using {version}") };
        let within = match self.subresource.as_str() {
            "" => String::new(),
            subresource => format!(" with subresource {subresource:?}"),
        };
        format!("{:?}{within}{using}", self.name)
    }
}

/// `live` as the manager wants it: what it applied before and does not any more goes, unless somebody else owns it.
pub(super) fn apply(info: &RequestInfo, live: &Value, owners: &Owners, config: &Value) -> Outcome<(Value, Owners)> {
    let manager = Manager::of(info, true);
    let api_version = config["apiVersion"].as_str().unwrap_or_default();
    let wanted = fields::of(config);
    let mut owners = owners.clone();
    let before = owners.remove(&manager).unwrap_or_default();
    let differs = |path: &Path| is_leaf(config, path) && fields::find(config, path) != fields::find(live, path);
    let taken = |theirs: &BTreeSet<Path>| theirs.intersection(&wanted).filter(|path| differs(path)).cloned().collect();
    let conflicts: Vec<(Manager, Vec<Path>)> =
        owners.iter().map(|(who, theirs)| (who.clone(), taken(theirs))).collect();
    if !info.is("force", "true") && conflicts.iter().any(|(_, paths)| !paths.is_empty()) {
        return Err(refusal(&conflicts, api_version));
    }
    for (who, paths) in &conflicts {
        owners.get_mut(who).into_iter().for_each(|theirs| theirs.retain(|path| !paths.contains(path)));
    }
    let mut object = live.clone();
    fields::merge(Place::root(api_version), &mut object, config);
    for path in before.difference(&wanted) {
        let within = |theirs: &BTreeSet<Path>| theirs.range(path.clone()..).next().is_some_and(|p| p.starts_with(path));
        if !within(&wanted) && !owners.values().any(within) {
            fields::remove(&mut object, path);
            // An object that is applied without fields becomes null when its last field goes, and custom kinds refuse that.
            let around = path[..path.len() - 1].to_vec();
            if wanted.contains(&around) && fields::find(&object, &around).is_none() && !is_built_in(api_version) {
                let field: String = around.iter().map(Step::to_string).collect();
                let field = field.trim_start_matches('.');
                return Err(
                    info.invalid(&format!("{field}: Invalid value: \"null\": {field} in body must be of type object"))
                );
            }
        }
    }
    owners.insert(manager, wanted);
    Ok((object.clone(), remaining(owners, &object)))
}

/// The owners after an update: who changes a field owns it, alone.
pub(super) fn updated(info: &RequestInfo, owners: &Owners, old: &Value, new: &Value) -> Owners {
    let before = fields::of(old);
    let differs = |path: &Path| is_leaf(new, path) && fields::find(old, path) != fields::find(new, path);
    let changed = fields::of(new).into_iter().filter(|path| !before.contains(path) || differs(path));
    let changed: BTreeSet<Path> = changed.collect();
    let mut owners = owners.clone();
    owners.values_mut().for_each(|theirs| theirs.retain(|path| !changed.contains(path)));
    owners.entry(Manager::of(info, false)).or_default().extend(changed);
    remaining(owners, new)
}

fn remaining(mut owners: Owners, object: &Value) -> Owners {
    owners.values_mut().for_each(|paths| paths.retain(|path| fields::find(object, path).is_some()));
    owners.retain(|_, paths| !paths.is_empty());
    owners
}

/// An element of a list that is an object has fields of its own: its value is theirs.
fn is_leaf(object: &Value, path: &Path) -> bool {
    !matches!(path.last(), Some(Step::Item(_))) && fields::find(object, path).is_some()
}

fn refusal(conflicts: &[(Manager, Vec<Path>)], version: &str) -> Box<Status> {
    let (mut causes, mut told) = (Vec::new(), Vec::new());
    for (who, paths) in conflicts.iter().filter(|(_, paths)| !paths.is_empty()) {
        let paths: Vec<String> = paths.iter().map(|path| path.iter().map(Step::to_string).collect()).collect();
        let who = who.told(version);
        told.push(match &*paths {
            [path] => format!("conflict with {who}: {path}"),
            paths => format!("conflicts with {who}:\n- {}", paths.join("\n- ")),
        });
        causes.extend(paths.into_iter().map(|field| StatusCause {
            reason: "FieldManagerConflict".into(),
            message: format!("conflict with {who}"),
            field,
        }));
    }
    let (count, plural) = (causes.len(), if causes.len() == 1 { "" } else { "s" });
    let message = format!("Apply failed with {count} conflict{plural}: {}", told.join("\n"));
    let details = StatusDetails { causes, ..details("") };
    Box::new(Status::failure(&message, "Conflict").with_code(409).with_details(details))
}
