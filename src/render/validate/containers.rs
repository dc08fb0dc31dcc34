//! Rules of `containers` and `services`.

use std::collections::{BTreeMap, BTreeSet};

use tributary_api::minicluster::{BurstNetworkType, Container, MiniClusterSpec};
use tributary_api::names as objects;

use super::{Problem, program_of, reason, runner_problem};
use crate::volumes::is_dns_label;

pub(super) fn problems(name: &str, spec: &MiniClusterSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let runner = match spec.runner() {
        Ok(runner) => Some(runner.index),
        Err(error) => {
            problems.push(runner_problem(&error));
            None
        }
    };
    let mut names = Names::default();
    names.claim(name, "the container that runs Flux");
    names.claim(spec.flux.view_name(), "flux.container");
    if !is_dns_label(spec.flux.view_name()) {
        problems.push(label("spec.flux.container.name"));
    }
    if spec.flux.view_name() == name {
        let message = "the container that runs Flux has the MiniCluster's name: choose another one for flux.container";
        problems.push(Problem::new("spec.flux.container.name", reason::CONFLICTING_FIELDS, message));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let path = format!("spec.containers[{index}]");
        problems.extend(common(container, &path));
        if runner != Some(index) && runner.is_some() {
            problems.extend(names.of_sidecar(container, &path));
        } else if container.commands.script.is_some() && container.command.is_some() {
            let message = "command and commands.script are both written: a container that runs Flux runs one of them";
            problems.push(Problem::new(format!("{path}.commands.script"), reason::CONFLICTING_FIELDS, message));
        }
    }
    problems.extend(service_problems(&spec.services));
    problems.extend(services_of_one_name(name, spec));
    problems.extend(names.of_bursts(name, spec));
    problems
}

/// Ports make a Service of the container's name, beside the MiniCluster's own, one of which the user names.
fn services_of_one_name(name: &str, spec: &MiniClusterSpec) -> Vec<Problem> {
    let runner = spec.runner().map_or(usize::MAX, |runner| runner.index);
    let bursting = &spec.flux.bursting;
    let has_lead = !bursting.clusters.is_empty() && bursting.network.kind != BurstNetworkType::Tunnel;
    let lead = has_lead.then(|| objects::lead(name));
    let serves = || program_of(spec).is_ok_and(|program| program.serves());
    let restful = (spec.flux_restful.is_some() && serves()).then(|| objects::restful(name));
    let headless = spec.headless_name(name);
    let ours = [Some(headless), lead.as_deref(), restful.as_deref()];
    let taken = |name: &str| format!("a service {name} is made for the MiniCluster already: choose another name");
    let twice = ours[1..].contains(&Some(headless));
    let twice = twice.then(|| Problem::new("spec.network.headlessName", reason::CONFLICTING_FIELDS, taken(headless)));
    let beside =
        spec.containers.iter().enumerate().filter(|(index, container)| *index != runner && !container.ports.is_empty());
    let named = beside.filter_map(|(index, container)| Some((index, container.name.as_deref()?)));
    let problem = |(index, name): (usize, &str)| {
        let message = format!("{} for the container", taken(name));
        Problem::new(format!("spec.containers[{index}].name"), reason::CONFLICTING_FIELDS, message)
    };
    twice.into_iter().chain(named.filter(|(_, name)| ours.contains(&Some(*name))).map(problem)).collect()
}

fn service_problems(services: &[Container]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut names = Names::default();
    for (index, container) in services.iter().enumerate() {
        let path = format!("spec.services[{index}]");
        problems.extend(names.of_sidecar(container, &path));
        problems.extend(common(container, &path));
        let commands = &container.commands;
        for (written, field) in [
            (commands.pre.is_some(), "pre"),
            (commands.broker_pre.is_some(), "brokerPre"),
            (commands.pre_broker.is_some(), "preBroker"),
            (commands.worker_pre.is_some(), "workerPre"),
            (commands.pre_worker.is_some(), "preWorker"),
        ] {
            if written {
                let message = format!("{field} runs beside brokers, and a service has none: use servicePre");
                problems.push(Problem::new(format!("{path}.commands.{field}"), reason::CONFLICTING_FIELDS, message));
            }
        }
    }
    problems
}

/// Names of the containers of one pod, with who has them.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn claim(&mut self, name: &str, owner: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| owner.to_owned());
    }

    fn of_sidecar(&mut self, container: &Container, path: &str) -> Option<Problem> {
        let field = format!("{path}.name");
        let Some(name) = container.name.as_deref() else {
            let message = "name is missing: every container that does not run Flux needs one";
            return Some(Problem::new(field, reason::MISSING_FIELD, message));
        };
        if !is_dns_label(name) {
            return Some(label(&field));
        }
        if let Some(owner) = self.0.get(name) {
            let message = format!("{owner} has the name {name} already: choose another one");
            return Some(Problem::new(field, reason::CONFLICTING_FIELDS, message));
        }
        self.claim(name, path);
        if !container.ports.is_empty() && !name.starts_with(|c: char| c.is_ascii_lowercase()) {
            let message = format!("{name} becomes the name of a service for its ports, and must begin with a letter");
            return Some(Problem::new(field, reason::INVALID_NAME, message));
        }
        None
    }

    /// In the pods of a burst, the container that runs Flux and the volume of its files have the burst's name, beside what
    /// the root's pods have.
    fn of_bursts(&self, root: &str, spec: &MiniClusterSpec) -> Vec<Problem> {
        let volumes: BTreeSet<_> =
            spec.containers.iter().flat_map(|container| container.volumes().into_keys()).collect();
        let problem = |(index, (slot, _)): (usize, (String, _))| {
            let volume = objects::entrypoint(&slot);
            let message = match self.0.get(&slot) {
                Some(owner) => format!("{owner} has the name {slot} already: choose another one"),
                None if volumes.contains(volume.as_str()) => {
                    format!("a container has a volume {volume}, as is made for this burst: choose another name")
                }
                None => return None,
            };
            let field = format!("spec.flux.bursting.clusters[{index}].name");
            Some(Problem::new(field, reason::CONFLICTING_FIELDS, message))
        };
        // The other half of a burst that is written by hand repeats what its root declares. A burst of the root's own name
        // is refused with the ranks.
        let is_root = spec.flux.lead_broker().is_none();
        let bursts = spec.bursts(root).enumerate().filter(|(_, (slot, _))| is_root && slot != root);
        bursts.filter_map(problem).collect()
    }
}

fn label(field: &str) -> Problem {
    let message = "the name of a container has lower case letters, digits and '-' only, and at most 63 of them";
    Problem::new(field, reason::INVALID_NAME, message)
}

/// Rules for every container.
fn common(container: &Container, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    if container.launcher && container.batch {
        let message = "launcher and batch exclude each other: a launcher submits its jobs itself";
        problems.push(Problem::new(format!("{path}.launcher"), reason::CONFLICTING_FIELDS, message));
    }
    let policy = container.image_pull_policy.as_deref();
    if let Some(policy) = policy.filter(|policy| !["Always", "IfNotPresent", "Never"].contains(policy)) {
        let message = format!("{policy:?} is no pull policy: write Always, IfNotPresent or Never");
        problems.push(Problem::new(format!("{path}.imagePullPolicy"), reason::INVALID_VALUE, message));
    }
    let mut ports = BTreeSet::new();
    for (index, port) in container.ports.iter().enumerate() {
        let field = format!("{path}.ports[{index}]");
        if !(1..=65535).contains(port) {
            let message = format!("{port} is no port: 1 to 65535 are");
            problems.push(Problem::new(field, reason::INVALID_VALUE, message));
        } else if !ports.insert(port) {
            problems.push(Problem::new(field, reason::CONFLICTING_FIELDS, format!("port {port} is written twice")));
        }
    }
    for name in container.secrets.keys().filter(|name| container.environment.contains_key(*name)) {
        let message = format!("the variable {name} is in environment and in secrets: remove it from one of them");
        problems.push(Problem::new(format!("{path}.secrets.{name}"), reason::CONFLICTING_FIELDS, message));
    }
    let user = &container.flux_user;
    if let Some(name) = user.name.as_deref().filter(|name| !is_user_name(name)) {
        let message = format!(
            "{name:?} is no name of a user: use at most 32 lower case letters, digits, '_' and '-', and begin with a letter \
             or '_'"
        );
        problems.push(Problem::new(format!("{path}.fluxUser.name"), reason::INVALID_VALUE, message));
    }
    if let Some(uid) = user.uid.filter(|uid| !(0..=i64::from(i32::MAX)).contains(uid)) {
        let message = format!("{uid} is no id of a user: 0 to {} are", i32::MAX);
        problems.push(Problem::new(format!("{path}.fluxUser.uid"), reason::INVALID_VALUE, message));
    }
    if container.cores.is_some_and(|cores| cores < 1) {
        let message = "cores is less than 1: leave it out to take it from resources";
        problems.push(Problem::new(format!("{path}.cores"), reason::INVALID_VALUE, message));
    }
    problems
}

/// As useradd(8) of shadow-utils takes them.
fn is_user_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && name.chars().all(known) && name.len() <= 32
}
