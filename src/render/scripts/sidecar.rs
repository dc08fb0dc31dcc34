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
    let name = hooks.container.name.as_deref().unwrap_or(&index);
    let values = [("viewbase", spec.flux.mount_path()), ("_container", &index), ("_name", name)];
    let there = if spec.flux.disable_socket {
        "compgen -G \"$configroot/run/flux/local*\" >/dev/null"
    } else {
        "[[ -S $configroot/run/flux/local ]]"
    };
    let waits = !spec.flux.no_wait_socket && asks_flux(hooks.container);
    let socket = format!("until {there}; do _pause 1; done");
    let has_post = has_last_words(hooks.container);
    Parts::default()
        .with("settings", settings(values))
        .when(spec.logging.strict, "strict", STRICT)
        .with("signals", SIGNALS)
        .with("init", hooks.line(Hook::Init))
        .with("environment", environment(model).fill(ENVIRONMENT))
        .with("servicePre", hooks.line(Hook::ServicePre))
        .with("pre", hooks.line(Hook::Pre))
        .when(waits, "socket", socket)
        .with("script", hooks.script_line())
        .when(has_post, "open", OPEN)
        .when(has_post, "keep", KEEP)
        .when(has_post, "kept", KEPT)
        .with("command", if hooks.container.diagnostics { diagnose() } else { hooks.line(main(hooks.container)) })
        .when(has_post, "post", hooks.line(Hook::Post))
        .fill(SIDECAR)
}

/// The user's shell that a sidecar is there for: if there is no other, `commands.post`, where examples of the Flux Operator start
/// their servers.
fn main(container: &Container) -> Hook {
    let commands = &container.commands;
    let has_command = container.command.as_deref().is_some_and(|command| !command.trim().is_empty());
    let has_shell = [&commands.script, &commands.pre, &commands.service_pre].iter().any(|shell| shell.is_some());
    if has_command || has_shell { Hook::Command } else { Hook::Post }
}

/// Whether a sidecar has something to do once it has ended.
pub(crate) fn has_last_words(container: &Container) -> bool {
    container.commands.post.is_some() && (container.diagnostics || main(container) == Hook::Command)
}

/// Whether a container speaks with Flux. Any other, such as a server that the command of Flux asks (InfluxDB, too), starts at
/// once.
fn asks_flux(container: &Container) -> bool {
    let names_flux = |text: &String| text.to_ascii_lowercase().replace("influx", "").contains("flux");
    let Container { command, commands, environment, .. } = container;
    let shell = [command, &commands.script, &commands.init, &commands.service_pre, &commands.pre, &commands.post];
    let variables = environment.iter().flat_map(|(name, value)| [name, value]);
    container.diagnostics || shell.into_iter().flatten().chain(variables).any(names_flux)
}

/// How long a sidecar goes on at most once it is told to end: 5 s until its command is killed, and with `commands.post` after it
/// 60 s for that, and 5 s until that is killed. One with its image's own entrypoint is not ours to tell.
pub(crate) fn last_seconds(container: &Container) -> i64 {
    match (container.no_wrap_entrypoint, has_last_words(container)) {
        (true, _) => 0,
        (false, true) => 5 + 60 + 5,
        (false, false) => 5,
    }
}

/// What the command begins with (exported variables, the paths of Flux, the directory) is there for `commands.post` too,
/// which comes after any number of attempts. It may be secret, so it is in a file without a name.
const OPEN: &str = "exec {_kept}<>\"$viewbase/.kept.$_container\" && rm -f \"$viewbase/.kept.$_container\"";
const KEEP: &str = "{ export -p; declare -p viewroot configroot fluxsocket software viewbin fluxpath foundroot pythonversion; \
                    printf 'cd %q\\n' \"$PWD\"; } >\"/proc/self/fd/$_kept\"";
const KEPT: &str = ". \"/proc/self/fd/$_kept\" || true";

/// Diagnostics through the socket of this pod's broker.
fn diagnose() -> String {
    format!("FLUX_URI=$fluxsocket /bin/bash {}", super::program::DIAGNOSE)
}

fn service(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    let strict = model.spec.logging.strict;
    // The kubelet starts a service again by the code of its command. A strict one ends before `post`.
    let kept = !strict && hooks.container.commands.post.is_some();
    Parts::default()
        .when(strict, "strict", "set -eu")
        .with("init", hooks.line(Hook::Init))
        .with("servicePre", hooks.line(Hook::ServicePre))
        .with("script", hooks.script_line())
        .with("command", hooks.line(Hook::Command))
        .when(kept, "kept", "_code=$?; (exit \"$_code\")")
        .with("post", hooks.line(Hook::Post))
        .when(kept, "ended", "_post=$?; if [ \"$_code\" = 0 ]; then _code=$_post; fi; exit \"$_code\"")
        .fill(SERVICE)
}
