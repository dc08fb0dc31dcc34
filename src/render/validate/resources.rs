//! Rules of requests and limits.
//!
//! Source: <https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/>, kubernetes
//! `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use tributary_api::minicluster::{Amount, PodSpec, ResourceList, ResourceRequirements};

use super::{Problem, reason};
use crate::quantity;

/// What containers can have that is no extension.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const HUGE_PAGES: &str = "hugepages-";

/// Names of the claims that a pod has.
pub(super) struct Claims<'a>(BTreeSet<&'a str>);

impl<'a> Claims<'a> {
    pub(super) fn of(pod: &'a PodSpec) -> Self {
        Self(pod.resource_claims.iter().map(|claim| claim.name.as_str()).collect())
    }
}

/// Requests, limits and claims of a container.
pub(super) fn problems(path: &str, resources: &ResourceRequirements, claims: &Claims<'_>) -> Vec<Problem> {
    let mut problems = amounts(&format!("{path}.resources.limits"), &resources.limits);
    problems.extend(amounts(&format!("{path}.resources.requests"), &resources.requests));
    let names: BTreeSet<&String> = resources.requests.keys().chain(resources.limits.keys()).collect();
    if problems.is_empty() {
        problems.extend(names.iter().filter_map(|name| pair(path, name, resources)));
    }
    for (index, claim) in resources.claims.iter().enumerate() {
        if !claims.0.contains(claim.name.as_str()) {
            let field = format!("{path}.resources.claims[{index}].name");
            let message = format!("pod.resourceClaims has no claim {}: declare it there", claim.name);
            problems.push(Problem::new(field, reason::MISSING_FIELD, message));
        }
    }
    problems
}

/// Names and amounts, each for itself.
pub(super) fn amounts(path: &str, list: &ResourceList) -> Vec<Problem> {
    list.iter().filter_map(|(name, amount)| alone(&format!("{path}.{name}"), name, amount)).collect()
}

fn alone(field: &str, name: &str, amount: &Amount) -> Option<Problem> {
    if !STANDARD.contains(&name) && !name.starts_with(HUGE_PAGES) && !name.contains('/') {
        let message = format!(
            "{name} is no resource of a container: write cpu, memory, ephemeral-storage, hugepages-<size>, or a device with \
             its domain, like nvidia.com/gpu"
        );
        return Some(Problem::new(field, reason::INVALID_NAME, message));
    }
    let text = amount.to_string();
    let message = match quantity::milli(&text) {
        None => format!("{text:?} is no amount: write it like 2, 500m or 8Gi"),
        Some(milli) if milli < 0 => format!("{text} is less than nothing"),
        Some(milli) if name.contains('/') && milli % 1000 != 0 => {
            format!("{text} is no whole number, and a device cannot be divided")
        }
        Some(_) => return None,
    };
    Some(Problem::new(field, reason::INVALID_VALUE, message))
}

/// A request and a limit of one resource.
fn pair(path: &str, name: &str, resources: &ResourceRequirements) -> Option<Problem> {
    let (request, limit) = (resources.requests.get(name), resources.limits.get(name));
    let is_device = name.contains('/') || name.starts_with(HUGE_PAGES);
    let field = format!("{path}.resources.requests.{name}");
    let milli = |amount: &Amount| quantity::milli(&amount.to_string());
    match (request, limit) {
        (Some(request), None) if is_device => {
            let message =
                format!("a request for {name} needs a limit that is the same: write limits.{name}: {request}");
            Some(Problem::new(field, reason::MISSING_FIELD, message))
        }
        (Some(request), Some(limit)) if is_device && milli(request) != milli(limit) => {
            let message = format!("the request {request} and the limit {limit} of {name} must be the same");
            Some(Problem::new(field, reason::CONFLICTING_FIELDS, message))
        }
        (Some(request), Some(limit)) if milli(request) > milli(limit) => {
            let message = format!("the request {request} is more than the limit {limit}: lower it, or raise the limit");
            Some(Problem::new(field, reason::CONFLICTING_FIELDS, message))
        }
        _ => None,
    }
}
