//! `start-i.sh`, the script of containers beside Flux, and `services-i.sh`, that of containers of the service pod.

use tributary_api::minicluster::Container;

use super::hooks::{Hook, Hooks};
use super::template::{Parts, settings};
use super::{Access, ENVIRONMENT, File, SIGNALS, STRICT, environment};
use crate::model::Model;

const SIDECAR: &str = include_str!("sidecar.sh");
const SERVICE: &str = include_str!("service.sh");

/// The scripts of all containers that have one, and the files they read.
pub(super) fn files(model: &Model<'_>) -> Vec<File> {
    let mut files = Vec::new();
    for (index, container) in model.sidecars().filter(|(_, container)| !container.no_wrap_entrypoint) {
        let hooks = Hooks { prefix: "", index, container, quiet: model.spec.logging.quiet };
        files.push(File::upstream(format!("start-{index}"), sidecar(model, &hooks), Access::Execute));
        files.extend(hooks.files(&[Hook::Init, Hook::ServicePre, Hook::Pre, Hook::Command, Hook::Post]));
    }
    for (index, container) in model.spec.services.iter().enumerate().filter(|(_, service)| is_wrapped_service(service))
    {
        let hooks = Hooks { prefix: "services-", index, container, quiet: model.spec.logging.quiet };
        files.push(File::new(format!("services-{index}.sh"), service(model, &hooks), Access::Execute));
        files.extend(hooks.files(&[Hook::Init, Hook::ServicePre, Hook::Command, Hook::Post]));
    }
    files
}

/// Whether a container of the service pod runs a command of the user's instead of its image's own.
pub(crate) fn is_wrapped_service(container: &Container) -> bool {
    container.command.is_some() || container.commands.script.is_some()
}

fn sidecar(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    let (spec, index) = (model.spec, hooks.index.to_string());
    let complete = format!("{}/flux-operator-complete.txt", spec.flux.mount_path());
    let name = hooks.container.name.as_deref().unwrap_or(&index);
    let values =
        [("viewbase", spec.flux.mount_path()), ("_container", &index), ("_name", name), ("_complete", &complete)];
    let there = if spec.flux.disable_socket {
        "compgen -G \"$configroot/run/flux/local*\" >/dev/null"
    } else {
        "[[ -S $configroot/run/flux/local ]]"
    };
    let socket = format!("until {there} || [[ -n $_terminating || -e $_complete ]]; do _pause 1; done");
    Parts::default()
        .with("settings", settings(values))
        .when(spec.logging.strict, "strict", STRICT)
        .with("signals", SIGNALS)
        .with("init", hooks.line(Hook::Init))
        .with("environment", environment(model).fill(ENVIRONMENT))
        .with("servicePre", hooks.line(Hook::ServicePre))
        .with("pre", hooks.line(Hook::Pre))
        .when(!spec.flux.no_wait_socket, "socket", socket)
        .with("script", hooks.script_line())
        .with("command", if hooks.container.diagnostics { diagnose() } else { hooks.line(Hook::Command) })
        .with("post", hooks.line(Hook::Post))
        .fill(SIDECAR)
}

/// Diagnostics through the socket of this pod's broker.
fn diagnose() -> String {
    format!("FLUX_URI=$fluxsocket /bin/bash {}", super::program::DIAGNOSE)
}

fn service(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    Parts::default()
        .when(model.spec.logging.strict, "strict", "set -eu")
        .with("init", hooks.line(Hook::Init))
        .with("servicePre", hooks.line(Hook::ServicePre))
        .with("script", hooks.script_line())
        .with("command", hooks.line(Hook::Command))
        .with("post", hooks.line(Hook::Post))
        .fill(SERVICE)
}
