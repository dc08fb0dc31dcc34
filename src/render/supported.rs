//! Fields that are accepted and have no effect yet: the user hears of them by the condition `SpecSupported`.

use super::model::Model;
use super::scripts;
use crate::api::minicluster::{BurstNetworkType, Commands, Container};

/// Paths of written fields without effect, in the order of the spec.
pub(super) fn unsupported(model: &Model<'_>) -> Vec<String> {
    let mut found = Found::default();
    let spec = model.spec;
    let runner = model.runner.container;
    let path = format!("spec.containers[{}]", model.runner.index);
    found.on(runner.diagnostics, &path, "diagnostics");
    found.on(runner.flux_user.name.is_some() || runner.flux_user.uid.is_some(), &path, "fluxUser");
    found.on(runner.no_wrap_entrypoint, &path, "noWrapEntrypoint");
    found.on(runner.batch_raw && !runner.batch, &path, "batchRaw");
    found.on(runner.commands.service_pre.is_some(), &path, "commands.servicePre");
    for (index, container) in model.sidecars() {
        let path = format!("spec.containers[{index}]");
        found.on(container.diagnostics, &path, "diagnostics");
        found.beside_flux(container, &path);
        if container.no_wrap_entrypoint {
            found.on(container.command.is_some(), &path, "command");
            found.shell(&container.commands, &path);
            found.on(container.pre_command.is_some(), &path, "preCommand");
        }
    }
    for (index, container) in spec.services.iter().enumerate() {
        let path = format!("spec.services[{index}]");
        found.beside_flux(container, &path);
        found.on(container.run_flux, &path, "runFlux");
        found.on(container.pre_command.is_some(), &path, "preCommand");
        if !scripts::is_wrapped_service(container) {
            found.shell(&container.commands, &path);
        }
    }
    let bursting = &spec.flux.bursting;
    let path = "spec.flux.bursting";
    found.on(model.has_bursts() && bursting.network.kind != BurstNetworkType::NodePort, path, "network.type");
    found.on(!model.has_bursts() && bursting.wait != Default::default(), path, "wait");
    found.0
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn on(&mut self, written: bool, path: &str, field: &str) {
        if written {
            self.0.push(format!("{path}.{field}"));
        }
    }

    /// What only the container that runs Flux has a use for.
    fn beside_flux(&mut self, container: &Container, path: &str) {
        self.on(container.launcher, path, "launcher");
        self.on(container.batch, path, "batch");
        self.on(container.batch_raw, path, "batchRaw");
        self.on(container.commands.prefix.is_some(), path, "commands.prefix");
        self.on(container.commands.run_flux_as_root, path, "commands.runFluxAsRoot");
        self.on(container.commands.broker_pre().is_some(), path, "commands.brokerPre");
        self.on(container.commands.worker_pre().is_some(), path, "commands.workerPre");
    }

    /// Shell around a command that is the image's own.
    fn shell(&mut self, commands: &Commands, path: &str) {
        self.on(commands.script.is_some(), path, "commands.script");
        self.on(commands.init.is_some(), path, "commands.init");
        self.on(commands.pre.is_some(), path, "commands.pre");
        self.on(commands.service_pre.is_some(), path, "commands.servicePre");
        self.on(commands.post.is_some(), path, "commands.post");
    }
}
