//! The containers of a pod, and what is mounted into each.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container as PodContainer, ContainerPort, EnvVar, EnvVarSource, ExecAction, Lifecycle, LifecycleHandler, Probe,
    SecretKeySelector, SecurityContext, VolumeMount,
};
use tributary_api::minicluster::Container;
use tributary_api::names;

use super::model::Model;
use super::restful;
use super::scripts::{self, CURVE_DIR, ENDS_DIR, OPERATOR_DIR};
use super::volumes::UserVolumes;

/// Volume with the home directory of users who have none.
pub(super) const HOME_VOLUME: &str = "flux-operator-home";
/// Where it is mounted.
pub(super) const HOME: &str = "/home/flux-operator";
/// Volume over the place that Flux was built for.
pub(super) const SOFTWARE_VOLUME: &str = "spack-software";
/// Where it is mounted.
pub(super) const SOFTWARE: &str = "/opt/software";
/// Volume with the certificate.
pub(super) const CURVE_VOLUME: &str = "flux-curve";
/// Volume with the munge key.
pub(super) const MUNGE_VOLUME: &str = "flux-munge";
/// Where it is mounted.
pub(super) const MUNGE: &str = "/etc/munge";

/// Volume with the ends of the tunnel.
pub(super) const ENDS_VOLUME: &str = "flux-ends";

/// The init container, which brings Flux and its configuration.
pub(super) fn view(model: &Model<'_>) -> PodContainer {
    let view = &model.spec.flux.container;
    PodContainer {
        name: model.spec.flux.view_name().to_owned(),
        image: Some(model.spec.flux.view_image().to_owned()),
        image_pull_policy: Some(view.pull_policy().to_owned()),
        command: Some(script("flux-init")),
        working_dir: view.working_dir.clone(),
        resources: view.resources.to_kubernetes(),
        security_context: view.security_context.to_kubernetes(),
        stdin: Some(true),
        tty: Some(true),
        volume_mounts: Some(shared_mounts(model)),
        ..PodContainer::default()
    }
}

/// All other containers of the Job's pods, as sidecars in the sense of Kubernetes: the pod ends as the container that runs Flux
/// does, also if one of them fails, is killed or serves for ever. They start in the order of the spec, those with something to
/// do afterwards last: sidecars end one after the other, the last one first.
///
/// Source: <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/>
pub(super) fn beside(model: &Model<'_>) -> Vec<PodContainer> {
    let mut all: Vec<_> = model.sidecars().collect();
    all.sort_by_key(|(_, container)| scripts::has_last_words(container));
    let render = |(index, container)| PodContainer {
        restart_policy: Some("Always".to_owned()),
        ..sidecar(model, index, container)
    };
    all.into_iter().map(render).collect()
}

/// The container that runs Flux.
pub(super) fn runner(model: &Model<'_>) -> PodContainer {
    let (index, container) = (model.runner.index, model.runner.container);
    let mut rendered = common(container, model.name, mounts(model, index));
    rendered.command = Some(script(&format!("wait-{index}")));
    rendered.startup_probe = Some(joined());
    rendered.readiness_probe = Some(stays());
    let own = restful::environment(model).into_iter().filter(|own| !container.environment.contains_key(&own.name));
    rendered.env = non_empty(own.chain(rendered.env.take().unwrap_or_default()).collect());
    if container.commands.run_flux_as_root {
        let context = rendered.security_context.get_or_insert_with(SecurityContext::default);
        context.run_as_user.get_or_insert(0);
    }
    let mounts = rendered.volume_mounts.get_or_insert_default();
    mounts.push(read_only(CURVE_VOLUME, CURVE_DIR));
    if model.has_ends() {
        mounts.push(read_only(ENDS_VOLUME, ENDS_DIR));
    }
    if model.spec.flux.munge_secret.is_some() {
        mounts.push(read_only(MUNGE_VOLUME, MUNGE));
    }
    rendered
}

fn sidecar(model: &Model<'_>, index: usize, container: &Container) -> PodContainer {
    let name = container.name.as_deref().unwrap_or_default();
    let mut rendered = common(container, name, mounts(model, index));
    rendered.command = (!container.no_wrap_entrypoint).then(|| script(&format!("start-{index}")));
    rendered
}

/// The containers of the service pod. One without a command keeps its image's own.
pub(super) fn services(model: &Model<'_>) -> Vec<PodContainer> {
    let render = |(index, container): (usize, &Container)| {
        let name = container.name.as_deref().unwrap_or_default();
        let mut rendered = common(container, name, user_mounts(&model.service_volumes, index));
        if scripts::is_wrapped_service(container) {
            let path = format!("{OPERATOR_DIR}/services-{index}.sh");
            rendered.command = Some(vec!["/bin/sh".to_owned(), path]);
            rendered.volume_mounts.get_or_insert_default().push(entrypoint(model));
        }
        rendered
    };
    model.spec.services.iter().enumerate().map(render).collect()
}

fn common(container: &Container, name: &str, mounts: Vec<VolumeMount>) -> PodContainer {
    let port = |port: &i32| ContainerPort { container_port: *port, protocol: tcp(), ..ContainerPort::default() };
    PodContainer {
        name: name.to_owned(),
        image: Some(container.image().to_owned()),
        image_pull_policy: Some(container.pull_policy().to_owned()),
        working_dir: container.working_dir.clone(),
        env: non_empty(environment(container)),
        ports: non_empty(container.ports.iter().map(port).collect()),
        resources: container.resources.to_kubernetes(),
        security_context: container.security_context.to_kubernetes(),
        lifecycle: lifecycle(container),
        stdin: Some(true),
        tty: Some(true),
        volume_mounts: non_empty(mounts),
        ..PodContainer::default()
    }
}

pub(super) fn tcp() -> Option<String> {
    Some("TCP".to_owned())
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn script(name: &str) -> Vec<String> {
    vec!["/bin/bash".to_owned(), format!("{OPERATOR_DIR}/{name}.sh")]
}

/// A broker that has joined its instance has started: see `scripts/ready.sh`. However long that takes, its container is not
/// killed for it.
fn joined() -> Probe {
    Probe {
        exec: Some(ExecAction { command: Some(script("ready")) }),
        period_seconds: Some(3),
        timeout_seconds: Some(5),
        failure_threshold: Some(i32::MAX),
        ..Probe::default()
    }
}

/// From then on it is asked now and then, and nobody else: every pod asks, and the lead has other things to do.
fn stays() -> Probe {
    let command = [script("ready"), vec!["still".to_owned()]].concat();
    Probe {
        exec: Some(ExecAction { command: Some(command) }),
        period_seconds: Some(10),
        timeout_seconds: Some(10),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

fn environment(container: &Container) -> Vec<EnvVar> {
    let literal = in_order(&container.environment).into_iter().map(|(name, value)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    });
    let secret = container.secrets.iter().map(|(name, secret)| {
        let key = SecretKeySelector { name: secret.name.clone(), key: secret.key.clone(), optional: None };
        let source = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
        EnvVar { name: name.clone(), value: None, value_from: Some(source) }
    });
    secret.chain(literal).collect()
}

/// Kubernetes expands `$(NAME)` in a value to a variable that comes before it: what a value names comes first, so Secrets do,
/// too.
///
/// Source: <https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/>
fn in_order(environment: &BTreeMap<String, String>) -> Vec<(&String, &String)> {
    let names: BTreeMap<&str, usize> = environment.keys().map(String::as_str).zip(0..).collect();
    // Of each variable: those whose values name it, and how many that its own value names still wait.
    let mut named_by = vec![Vec::new(); names.len()];
    let mut waits_for = vec![0_usize; names.len()];
    for (at, value) in environment.values().enumerate() {
        let named: BTreeSet<usize> = references(value).filter_map(|name| names.get(name).copied()).collect();
        for other in named.into_iter().filter(|other| *other != at) {
            named_by[other].push(at);
            waits_for[at] += 1;
        }
    }
    let variables: Vec<_> = environment.iter().collect();
    let mut waiting: BTreeSet<usize> = (0..variables.len()).collect();
    let mut free: BTreeSet<usize> = waiting.iter().copied().filter(|at| waits_for[*at] == 0).collect();
    let mut ordered = Vec::with_capacity(variables.len());
    // Variables that name each other stay in the order of their names.
    while let Some(next) = free.pop_first().or_else(|| waiting.first().copied()) {
        waiting.remove(&next);
        ordered.push(variables[next]);
        for other in &named_by[next] {
            waits_for[*other] -= 1;
            if waits_for[*other] == 0 && waiting.contains(other) {
                free.insert(*other);
            }
        }
    }
    ordered
}

/// Every `NAME` of a `$(NAME)` in a value.
fn references(value: &str) -> impl Iterator<Item = &str> {
    value.split_inclusive(')').filter_map(|part| Some(part.strip_suffix(')')?.rsplit_once("$(")?.1))
}

fn lifecycle(container: &Container) -> Option<Lifecycle> {
    // The path of a program needs no shell, which an image may not have.
    let plain = |one: char| one.is_ascii_alphanumeric() || "/._-".contains(one);
    let is_program = |line: &str| line.starts_with('/') && line.chars().all(plain);
    let handler = |command: &Option<String>| {
        let line = command.as_ref()?;
        let command = match is_program(line) {
            true => vec![line.clone()],
            false => ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
        };
        Some(LifecycleHandler { exec: Some(ExecAction { command: Some(command) }), ..LifecycleHandler::default() })
    };
    let hooks = &container.life_cycle;
    let (post_start, pre_stop) = (handler(&hooks.post_start_exec), handler(&hooks.pre_stop_exec));
    (post_start.is_some() || pre_stop.is_some()).then_some(Lifecycle { post_start, pre_stop })
}

fn mounts(model: &Model<'_>, index: usize) -> Vec<VolumeMount> {
    let mut mounts = shared_mounts(model);
    // An image with Flux of its own may have it there.
    mounts.extend((!model.spec.flux.container.disable).then(|| mount(SOFTWARE_VOLUME, SOFTWARE)));
    mounts.extend(user_mounts(&model.volumes, index));
    mounts
}

fn shared_mounts(model: &Model<'_>) -> Vec<VolumeMount> {
    let flux = &model.spec.flux;
    vec![mount(HOME_VOLUME, HOME), mount(flux.view_name(), flux.mount_path()), entrypoint(model)]
}

fn user_mounts(volumes: &UserVolumes, index: usize) -> Vec<VolumeMount> {
    volumes.mounts.get(index).cloned().unwrap_or_default()
}

fn entrypoint(model: &Model<'_>) -> VolumeMount {
    read_only(&names::entrypoint(model.name), OPERATOR_DIR)
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn read_only(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..mount(volume, path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_comes_before_those_whose_values_name_it_and_values_stay_as_they_are_written() {
        let environment = [
            ("BIN", "$(PREFIX)/bin $$(PREFIX) $HOME ${X}"),
            ("CIRCLE", "$(ROUND)"),
            ("PREFIX", "$(ROOT)/$(PREFIX)/$(UNKNOWN)"),
            ("ROOT", "/data"),
            ("ROUND", "$(CIRCLE)"),
            ("URL", "db://lab:$(WORD)@db"),
        ];
        let container = Container {
            environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            secrets: serde_json::from_str(r#"{"WORD": {"name": "db", "key": "word"}}"#).unwrap(),
            ..Container::default()
        };
        let rendered = super::environment(&container);
        let names: Vec<_> = rendered.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(names, ["WORD", "ROOT", "PREFIX", "BIN", "URL", "CIRCLE", "ROUND"]);
        for variable in &rendered {
            assert_eq!(variable.value.as_ref(), container.environment.get(&variable.name));
        }
    }

    #[test]
    fn a_chain_of_thousands_of_variables_is_put_in_order_without_comparing_each_with_each() {
        const LAST: usize = 7_999;
        let link = |at: usize| (format!("V{at:05}"), format!("$(V{:05})", at + 1));
        let environment = (0..LAST).map(link).chain([(format!("V{LAST:05}"), "end".to_owned())]).collect();
        let rendered = super::environment(&Container { environment, ..Container::default() });
        let names: Vec<_> = rendered.into_iter().map(|variable| variable.name).collect();
        assert_eq!(names, (0..=LAST).rev().map(|at| format!("V{at:05}")).collect::<Vec<_>>());
    }
}
