//! What cannot be carried out, and why: in sentences for the person who wrote it.
//!
//! Upstream refuses silently; here every refusal is a [`Problem`] that ends in a condition and an event. What upstream accepts
//! and Kubernetes would refuse is refused here as well, before anything is made.

mod bursting;
mod containers;
mod contents;
pub(super) mod names;
mod pod;
mod resources;
mod restful;
mod values;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use tributary_api::hosted_burst::is_hosted;
use tributary_api::minicluster::{MiniCluster, MiniClusterSpec, RunnerError};
use tributary_api::names as objects;

use super::boot::Boot;
use super::containers as rendered;
use super::context::Context;
use super::model::Model;
use super::problem::{Problem, Problems, reason};
use super::scripts::Program;
use super::{persistent_volumes, rank_map, volumes};

/// Most pods of an indexed Job at a time (kubernetes `pkg/apis/batch/validation`).
const LARGEST_JOB: i32 = 100_000;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// Checks the whole spec, so that the user sees everything at once.
///
/// # Errors
/// All problems that were found, in the order of the spec's sections.
pub(super) fn check<'a>(mini_cluster: &'a MiniCluster, context: &'a Context) -> Result<Model<'a>, Problems> {
    let metadata = &mini_cluster.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let spec = &mini_cluster.spec;
    let mut problems = name_problems(name, spec);
    problems.extend(size_problems(spec));
    let bursting = bursting::problems(name, spec);
    // The ranks follow from names and sizes: what is wrong with these is not said again.
    let ranks = problems.is_empty() && bursting.is_empty();
    problems.extend(containers::problems(name, spec));
    problems.extend(contents::problems(spec));
    problems.extend(pod::problems(spec));
    problems.extend(values::problems(spec));
    problems.extend(restful::problems(spec));
    problems.extend(persistent_volumes::problems(metadata.namespace.as_deref().unwrap_or_default(), spec, context));
    problems.extend(bursting);

    let volumes = volumes_of(name, spec).map_err(|found| problems.extend(found)).ok();
    let program = program_of(spec).map_err(|found| problems.extend(found)).ok();
    let topology = rank_map::topology(spec).map_err(|found| problems.push(found)).ok();
    let hostlist = bursting::hostlist(name, spec).map_err(|found| problems.push(found)).ok();
    let instance = || bursting::instance(mini_cluster, context).map_err(|found| problems.extend(found)).ok();
    let instance = ranks.then(instance).flatten();
    let wait = bursting::wait(spec).map_err(|found| problems.push(found)).ok();
    deduplicate(&mut problems);
    Problems::check(problems)?;

    let parts = (volumes, program, topology, hostlist, instance, wait, spec.runner().ok());
    let (Some(volumes), Some(program), Some(topology), Some(hostlist), Some(instance), Some(wait), Some(runner)) =
        parts
    else {
        unreachable!("whatever is missing has left a problem behind");
    };
    Ok(Model {
        name,
        namespace: metadata.namespace.as_deref().unwrap_or_default(),
        uid: metadata.uid.as_deref().unwrap_or_default(),
        is_hosted: is_hosted(mini_cluster),
        labels: metadata.labels.as_ref().unwrap_or(&NO_LABELS),
        annotations: metadata.annotations.as_ref().unwrap_or(&NO_LABELS),
        spec,
        context,
        runner,
        role: instance.role,
        rank_map: instance.rank_map,
        topology,
        hostlist,
        program,
        volumes: volumes.0,
        service_volumes: volumes.1,
        wait,
    })
}

/// Checks that the rendered files have keys of their own and fit into the objects that carry them.
pub(super) fn check_files(files: &[super::scripts::File], boot: &Boot, canonical: usize) -> Result<(), Problems> {
    if boot.files.len() < files.len() {
        let message = "another file of the MiniCluster has this name: choose another one for the container";
        return Err(Problem::new("spec.flux.container.name", reason::INVALID_NAME, message).into());
    }
    boot.check_size(canonical).map_err(Problems::from)
}

/// The same sentence from two rules is said once.
fn deduplicate(problems: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    problems.retain(|problem| seen.insert(problem.clone()));
}

fn name_problems(name: &str, spec: &MiniClusterSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut check = |field: &str, what, name: &str| {
        if let Err(error) = objects::validate(what, name) {
            problems.push(Problem::new(field, reason::INVALID_NAME, error.to_string()));
        }
    };
    check("metadata.name", "MiniCluster", name);
    if let Some(headless) = &spec.network.headless_name {
        check("spec.network.headlessName", "headless service", headless);
    }
    problems
}

fn size_problems(spec: &MiniClusterSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |field: &str, message: String| {
        problems.push(Problem::new(field, reason::INVALID_SIZE, message));
    };
    let (size, max_size) = (spec.size(), spec.max_size());
    if size < 1 {
        refuse("spec.size", format!("size is {size}: a MiniCluster has at least one pod; use suspend to run none"));
    }
    if max_size > LARGEST_JOB {
        let message = format!("{max_size} pods are more than the {LARGEST_JOB} that an indexed Job can have");
        refuse(if spec.max_size.is_some() { "spec.maxSize" } else { "spec.size" }, message);
    }
    if spec.max_size.is_some() && max_size < size {
        refuse("spec.maxSize", format!("maxSize {max_size} is less than size {size}: raise maxSize, or lower size"));
    }
    if let Some(min_size) = spec.min_size {
        if min_size < 1 {
            refuse("spec.minSize", format!("minSize is {min_size}: at least one broker must be there to start"));
        } else if spec.max_size.is_some() && min_size > max_size {
            refuse(
                "spec.minSize",
                format!("minSize {min_size} is more than maxSize {max_size}: Flux would never start"),
            );
        } else if min_size > size {
            refuse("spec.minSize", format!("minSize {min_size} is more than size {size}: Flux would never start"));
        }
    }
    problems
}

type Volumes = (volumes::UserVolumes, volumes::UserVolumes);

fn volumes_of(name: &str, spec: &MiniClusterSpec) -> Result<Volumes, Vec<Problem>> {
    use super::scripts::{CURVE_DIR, ENDS_DIR, OPERATOR_DIR};
    let has_view = !spec.flux.container.disable;
    let mut taken = vec![OPERATOR_DIR, CURVE_DIR, ENDS_DIR, rendered::HOME];
    taken.extend(has_view.then_some(rendered::SOFTWARE));
    taken.extend(spec.flux.munge_secret.is_some().then_some(rendered::MUNGE));
    let mut problems = Vec::new();
    let mount_path = spec.flux.mount_path();
    if taken.contains(&mount_path.trim_end_matches('/')) {
        let message = format!("{mount_path} has another directory of Flux in it already: choose another path");
        problems.push(Problem::new("spec.flux.container.mountPath", reason::INVALID_VOLUME, message));
    }
    taken.push(mount_path);
    let pods = volumes::resolve((name, spec), &spec.containers, "spec.containers", &taken);
    let services = volumes::resolve((name, spec), &spec.services, "spec.services", &[OPERATOR_DIR]);
    let entrypoint = objects::entrypoint(name);
    let mut ours =
        vec![rendered::HOME_VOLUME, rendered::CURVE_VOLUME, rendered::ENDS_VOLUME, rendered::MUNGE_VOLUME, &entrypoint];
    ours.extend(has_view.then_some(rendered::SOFTWARE_VOLUME));
    let view = spec.flux.view_name();
    if ours.contains(&view) {
        let message = format!("a volume {view} is made for Flux already: choose another name");
        problems.push(Problem::new("spec.flux.container.name", reason::CONFLICTING_FIELDS, message));
    }
    ours.push(view);
    for (path, containers) in [("spec.containers", &spec.containers), ("spec.services", &spec.services)] {
        for (index, container) in containers.iter().enumerate() {
            for volume in container.volumes().into_keys().filter(|volume| ours.contains(volume)) {
                let message = format!("a volume {volume} is made for Flux already: choose another name");
                let field = format!("{path}[{index}].volumes.{volume}");
                problems.push(Problem::new(field, reason::CONFLICTING_FIELDS, message));
            }
        }
    }
    match (pods, services) {
        (Ok(pods), Ok(services)) if problems.is_empty() => Ok((pods, services)),
        (pods, services) => {
            problems.extend(pods.err().into_iter().chain(services.err()).flatten());
            Err(problems)
        }
    }
}

fn program_of(spec: &MiniClusterSpec) -> Result<Program, Vec<Problem>> {
    let runner = spec.runner().map_err(|error| vec![runner_problem(&error)])?;
    Program::of(spec, runner.container, &format!("spec.containers[{}]", runner.index))
}

fn runner_problem(error: &RunnerError) -> Problem {
    let message = match error {
        RunnerError::NoContainers => "there is no container: at least one is needed, to run Flux".to_owned(),
        RunnerError::NoRunner { containers } => {
            format!("none of the {containers} containers has runFlux: set it on the one that runs Flux")
        }
        RunnerError::SeveralRunners { indices } => {
            let indices: Vec<_> = indices.iter().map(ToString::to_string).collect();
            format!("containers {} all have runFlux: exactly one container runs Flux", indices.join(", "))
        }
    };
    Problem::new("spec.containers", reason::INVALID_CONTAINERS, message)
}
