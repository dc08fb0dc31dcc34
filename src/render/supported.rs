//! Fields that are accepted and have no effect where they are written: the user hears of them by the condition
//! `SpecSupported`.

use std::collections::BTreeMap;

use tributary_api::labels::{GPU_RESOURCE, KUEUE, KUEUE_QUEUE};
use tributary_api::minicluster::{
    BurstCluster, BurstNetwork, BurstNetworkType, ClusterVolume, Commands, Container, HOSTPATH, MiniClusterSpec,
    PodSpec,
};
use tributary_api::workload::ORIGIN;

use super::gpus;
use super::job::labels as job_labels;
use super::model::Model;
use super::quantity::milli;
use super::scripts;

const WAITS_FOR_PEOPLE: &str = "an interactive instance waits for people, and runs nothing itself";
const FLUX: &str = "it is for the container that runs Flux";
const OWN_ENTRYPOINT: &str = "the image's own entrypoint runs";

/// `suspend` of a MiniCluster whose Job is in a queue of Kueue.
pub const SUSPEND_IN_QUEUE: &str =
    "spec.suspend (Kueue starts and stops its Job: set spec.active of its Workload to false to hold it back)";

/// Written fields without effect, in the order of the spec: each path, and why in parentheses.
pub(super) fn unsupported(model: &Model<'_>) -> Vec<String> {
    let mut found = Found::default();
    let spec = model.spec;
    let runner = model.runner.container;
    let path = format!("spec.containers[{}]", model.runner.index);
    found.on(runner.no_wrap_entrypoint, &path, "noWrapEntrypoint", "Flux is started by a script of ours");
    found.on(runner.batch_raw && !runner.batch, &path, "batchRaw", "it needs batch");
    for (written, field) in [
        (runner.command.is_some(), "command"),
        (runner.commands.script.is_some(), "commands.script"),
        (runner.batch, "batch"),
        (runner.launcher, "launcher"),
    ] {
        found.on(spec.interactive && written, &path, field, WAITS_FOR_PEOPLE);
    }
    let beside = "it is for containers beside the one that runs Flux";
    found.on(runner.commands.service_pre.is_some(), &path, "commands.servicePre", beside);
    for (index, container) in model.sidecars() {
        let path = format!("spec.containers[{index}]");
        found.beside_flux(container, &path);
        if container.no_wrap_entrypoint {
            found.on(container.diagnostics, &path, "diagnostics", OWN_ENTRYPOINT);
            found.on(container.command.is_some(), &path, "command", OWN_ENTRYPOINT);
            found.shell(&container.commands, &path);
            found.on(container.commands.pre.is_some(), &path, "commands.pre", OWN_ENTRYPOINT);
            found.on(container.pre_command.is_some(), &path, "preCommand", OWN_ENTRYPOINT);
        }
    }
    for (index, container) in spec.services.iter().enumerate() {
        let path = format!("spec.services[{index}]");
        found.beside_flux(container, &path);
        found.on(container.run_flux, &path, "runFlux", "a service runs no Flux");
        let unneeded = "a service without a command keeps its image's entrypoint";
        found.on(container.no_wrap_entrypoint, &path, "noWrapEntrypoint", unneeded);
        found.on(
            container.pre_command.is_some(),
            &path,
            "preCommand",
            "a service has no broker: use commands.servicePre",
        );
        found.on(container.diagnostics, &path, "diagnostics", FLUX);
        if !scripts::is_wrapped_service(container) {
            found.shell(&container.commands, &path);
        }
    }
    if model.restful().is_none() {
        let why = "the RESTful server runs only without a command, and not interactively";
        found.on(spec.flux_restful.is_some(), "spec", "fluxRestful", why);
        found.on(!spec.users.is_empty(), "spec", "users", "they are users of the RESTful server, and there is none");
    }
    if spec.suspend && job_labels(model).contains_key(KUEUE_QUEUE) {
        found.0.push(SUSPEND_IN_QUEUE.to_owned());
    }
    let is_dispatched = model.labels.contains_key(ORIGIN);
    let why = "MultiKueue deletes what it has made here; it is for the MiniCluster in the manager";
    found.on(spec.cleanup && is_dispatched, "spec", "cleanup", why);
    found.on(spec.ttl_seconds_after_finished.is_some() && is_dispatched, "spec", "ttlSecondsAfterFinished", why);
    for (name, volume) in spec.made_volumes() {
        found.volume(volume, &format!("spec.volumes.{name}"));
        let why = "it is of this cluster: brokers of bursts see an empty directory in its place";
        found.on(model.has_bursts(), "spec.volumes", name, why);
    }
    if model.has_bursts() {
        found.stays_here(spec);
        found.slots(spec, runner);
    }
    let bursting = &spec.flux.bursting;
    let path = "spec.flux.bursting";
    let no_bursts = "there are no bursts to wait for";
    found.submission(model);
    found.network(&bursting.network, path);
    found.on(!model.has_bursts() && bursting.wait != Default::default(), path, "wait", no_bursts);
    found.on(!model.has_bursts() && bursting.span, path, "span", "there are no bursts to span");
    found.0
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn on(&mut self, written: bool, path: &str, field: &str, why: &str) {
        if written {
            self.0.push(format!("{path}.{field} ({why})"));
        }
    }

    /// What only the container that runs Flux has a use for.
    fn beside_flux(&mut self, container: &Container, path: &str) {
        let Container { commands, flux_user, .. } = container;
        for (written, field) in [
            (container.launcher, "launcher"),
            (container.batch, "batch"),
            (container.batch_raw, "batchRaw"),
            (container.logs.is_some(), "logs"),
            (container.cores.is_some(), "cores"),
            (flux_user.name.is_some(), "fluxUser.name"),
            (flux_user.uid.is_some(), "fluxUser.uid"),
            (commands.prefix.is_some(), "commands.prefix"),
            (commands.run_flux_as_root, "commands.runFluxAsRoot"),
            (commands.broker_pre.is_some(), "commands.brokerPre"),
            (commands.pre_broker.is_some(), "commands.preBroker"),
            (commands.worker_pre.is_some(), "commands.workerPre"),
            (commands.pre_worker.is_some(), "commands.preWorker"),
        ] {
            self.on(written, path, field, FLUX);
        }
    }

    /// What the template of bursts leaves out, but for what a provider is asked for in another way.
    fn stays_here(&mut self, spec: &MiniClusterSpec) {
        let why = "it is for this cluster: brokers of bursts do not have it";
        for (index, container) in spec.containers.iter().enumerate() {
            self.on(!container.ports.is_empty(), &format!("spec.containers[{index}]"), "ports", why);
        }
        self.on(!spec.services.is_empty(), "spec", "services", why);
        self.on(spec.network.headless_name.is_some(), "spec", "network.headlessName", why);
        self.on(spec.flux.broker_config.is_some(), "spec.flux", "brokerConfig", why);
        // Queues read these here.
        let is_own = |key: &String| key != GPU_RESOURCE && !key.starts_with(KUEUE);
        let has_own = |all: &BTreeMap<String, String>| all.keys().any(is_own);
        let (pod, none) = (&spec.pod, PodSpec::default());
        for (written, field) in [
            (has_own(&pod.annotations), "annotations"),
            (has_own(&pod.labels), "labels"),
            (pod.affinity != none.affinity, "affinity"),
            (pod.topology_spread_constraints != none.topology_spread_constraints, "topologySpreadConstraints"),
            (pod.dns_config != none.dns_config, "dnsConfig"),
            (pod.host_network, "hostNetwork"),
        ] {
            self.on(written, "spec.pod", field, why);
        }
    }

    /// What slots promise to Flux, and their pods do not get.
    fn slots(&mut self, spec: &MiniClusterSpec, runner: &Container) {
        let named = spec.pod.annotations.get(GPU_RESOURCE).map(String::as_str);
        for (index, BurstCluster { cores, gpus, resources, .. }) in spec.flux.bursting.clusters.iter().enumerate() {
            let path = format!("spec.flux.bursting.clusters[{index}]");
            let resources = resources.over(&runner.resources);
            let limit = resources.limits.get("cpu").map(ToString::to_string).unwrap_or_default();
            let few = milli(&limit).zip(*cores).is_some_and(|(limit, cores)| i128::from(cores) * 1000 > limit);
            self.on(few, &path, "cores", &format!("its pods have a limit of {limit}: write resources, too"));
            let requested = gpus::requested(&resources, named);
            let few = gpus.is_some_and(|gpus| i64::from(gpus) > requested);
            self.on(few, &path, "gpus", &format!("its pods request {requested}: write resources, too"));
        }
    }

    /// Directories of nodes have no driver.
    fn volume(&mut self, volume: &ClusterVolume, path: &str) {
        for (written, field) in [
            (volume.driver.is_some(), "driver"),
            (volume.volume_handle.is_some(), "volumeHandle"),
            (!volume.attributes.is_empty(), "attributes"),
            (volume.secret.is_some(), "secret"),
        ] {
            let why = "a volume of the class hostpath has no driver";
            self.on(written && volume.storage_class() == HOSTPATH, path, field, why);
        }
    }

    /// How the command becomes a job, where nothing of ours submits one.
    fn submission(&mut self, model: &Model<'_>) {
        let (spec, runner) = (model.spec, model.runner.container);
        let has_script = runner.commands.script.is_some();
        let is_batch = runner.batch && !has_script;
        let nobody_submits = if spec.interactive {
            Some(WAITS_FOR_PEOPLE)
        } else if spec.is_launcher(runner) && !is_batch {
            Some("a launcher submits its jobs itself")
        } else if runner.command.is_none() && !has_script {
            Some("there is no command to submit")
        } else {
            None
        };
        if let Some(why) = nobody_submits {
            self.on(spec.flux.option_flags.is_some(), "spec.flux", "optionFlags", why);
        }
        let why = nobody_submits.or(is_batch.then_some("the lines of a batch are submitted one by one"));
        if let Some(why) = why {
            self.on(spec.flux.submit_command.is_some(), "spec.flux", "submitCommand", why);
        }
        let why =
            "its instance spans clusters, and its brokers reach none in another one: add --requires to optionFlags";
        self.on(scripts::nests(spec), "spec.flux", "bursting.span", why);
        let beside_script = runner.batch && has_script && !spec.interactive;
        let path = format!("spec.containers[{}]", model.runner.index);
        self.on(beside_script, &path, "batch", "commands.script is the command");
    }

    fn network(&mut self, network: &BurstNetwork, path: &str) {
        let by_node = network.kind == BurstNetworkType::NodePort && network.address.is_none();
        let why = "no address of a node is used";
        self.on(!network.preferred_address_types.is_empty() && !by_node, path, "network.preferredAddressTypes", why);
        let tunnel = network.kind == BurstNetworkType::Tunnel;
        let why = "a tunnel needs no address";
        self.on(!network.ip_families.is_empty() && tunnel, path, "network.ipFamilies", why);
        self.on(network.address.is_some() && tunnel, path, "network.address", why);
        let why = "it goes with address";
        self.on(network.port.is_some() && (tunnel || network.address.is_none()), path, "network.port", why);
    }

    /// Shell around a command that is the image's own.
    fn shell(&mut self, commands: &Commands, path: &str) {
        for (text, field) in [
            (&commands.script, "commands.script"),
            (&commands.init, "commands.init"),
            (&commands.service_pre, "commands.servicePre"),
            (&commands.post, "commands.post"),
        ] {
            self.on(text.is_some(), path, field, OWN_ENTRYPOINT);
        }
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::minicluster::MiniCluster;

    use super::ORIGIN;
    use crate::tests::lake;
    use crate::{Context, render};

    #[test]
    fn fields_without_effect_are_named_with_the_reason() {
        let unsupported = |spec: &str| render(&lake(spec), &Context::default()).unwrap().unsupported;
        assert_eq!(
            unsupported(
                "
      containers:
      - {runFlux: true, batchRaw: true, noWrapEntrypoint: true, commands: {servicePre: a}}
      - {name: a, batch: true, cores: 2, commands: {prefix: a, brokerPre: b}}
      - {name: b, noWrapEntrypoint: true, command: a, commands: {init: b, pre: c}}
      services:
      - {name: a, commands: {init: b}}
      - {name: b, command: a, commands: {init: b, prefix: c}}
      flux: {bursting: {wait: {for: 0, timeout: 1s}}}
    "
            ),
            [
                "spec.containers[0].noWrapEntrypoint (Flux is started by a script of ours)",
                "spec.containers[0].batchRaw (it needs batch)",
                "spec.containers[0].commands.servicePre (it is for containers beside the one that runs Flux)",
                "spec.containers[1].batch (it is for the container that runs Flux)",
                "spec.containers[1].cores (it is for the container that runs Flux)",
                "spec.containers[1].commands.prefix (it is for the container that runs Flux)",
                "spec.containers[1].commands.brokerPre (it is for the container that runs Flux)",
                "spec.containers[2].command (the image's own entrypoint runs)",
                "spec.containers[2].commands.init (the image's own entrypoint runs)",
                "spec.containers[2].commands.pre (the image's own entrypoint runs)",
                "spec.services[0].commands.init (the image's own entrypoint runs)",
                "spec.services[1].commands.prefix (it is for the container that runs Flux)",
                "spec.flux.bursting.wait (there are no bursts to wait for)",
            ]
        );
        let interactive = "an interactive instance waits for people, and runs nothing itself";
        assert_eq!(
            unsupported(
                "  interactive: true\n  containers: [{command: hostname, launcher: true}]\n  flux: {optionFlags: -v}\n"
            ),
            ["containers[0].command", "containers[0].launcher", "flux.optionFlags"]
                .map(|field| format!("spec.{field} ({interactive})"))
        );
        // How a command is submitted, where nothing of ours submits it.
        let options = "  flux: {optionFlags: -v, submitCommand: flux run}\n";
        for (container, fields, why) in [
            ("{command: a}", &[][..], ""),
            (
                "{command: a, launcher: true}",
                &["flux.optionFlags", "flux.submitCommand"],
                "a launcher submits its jobs itself",
            ),
            ("{}", &["flux.optionFlags", "flux.submitCommand"], "there is no command to submit"),
            ("{command: a, batch: true}", &["flux.submitCommand"], "the lines of a batch are submitted one by one"),
            ("{commands: {script: a}, batch: true}", &["containers[0].batch"], "commands.script is the command"),
        ] {
            let expected: Vec<_> = fields.iter().map(|field| format!("spec.{field} ({why})")).collect();
            assert_eq!(unsupported(&format!("  containers: [{container}]\n{options}")), expected, "{container}");
        }
        assert_eq!(
            unsupported(
                "  containers: [{}]\n  flux: {bursting: {network: {type: Tunnel, address: a.example, port: 9, ipFamilies: [IPv6], \
                 preferredAddressTypes: [InternalIP]}, clusters: [{}]}}\n"
            ),
            [
                "spec.flux.bursting.network.preferredAddressTypes (no address of a node is used)",
                "spec.flux.bursting.network.ipFamilies (a tunnel needs no address)",
                "spec.flux.bursting.network.address (a tunnel needs no address)",
                "spec.flux.bursting.network.port (it goes with address)",
            ]
        );
    }

    #[test]
    fn what_bursts_do_not_get_is_named() {
        let spec = |bursts: &str| {
            format!(
                "
  containers: [{{runFlux: true, command: a, ports: [80]}}, {{name: b, image: b, ports: [81]}}]
  services: [{{name: db, image: redis}}]
  network: {{headlessName: sea}}
  jobLabels: {{kueue.x-k8s.io/queue-name: fast}}
  pod:
    annotations: {{a: b}}
    labels: {{a: b}}
    affinity: {{podAffinity: {{}}}}
    topologySpreadConstraints: [{{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}}]
    dnsConfig: {{nameservers: [192.0.2.1]}}
    hostNetwork: true
  flux: {{brokerConfig: '[x]', bursting: {{clusters: [{bursts}]}}}}
"
            )
        };
        let unsupported = |spec: &str| render(&lake(spec), &Context::default()).unwrap().unsupported;
        let why = "it is for this cluster: brokers of bursts do not have it";
        let fields =
            ["containers[0].ports", "containers[1].ports", "services", "network.headlessName", "flux.brokerConfig"];
        let pod = ["annotations", "labels", "affinity", "topologySpreadConstraints", "dnsConfig", "hostNetwork"];
        let fields = fields.map(str::to_owned).into_iter().chain(pod.map(|field| format!("pod.{field}")));
        let expected: Vec<_> = fields.map(|field| format!("spec.{field} ({why})")).collect();
        assert_eq!(unsupported(&spec("{size: 2}")), expected);
        assert_eq!(unsupported(&spec("")), Vec::<String>::new(), "there are no bursts");
        let of_queues = "  containers: [{}]\n  pod: {annotations: {tributary.dev/gpu-resource: a/b}, labels: \
                         {kueue.x-k8s.io/queue-name: fast}}\n  flux: {bursting: {clusters: [{}]}}\n";
        assert_eq!(unsupported(of_queues), Vec::<String>::new());
    }

    /// The danger: jobs start on GPUs that no pod has, or share cores that are fewer than Flux counts.
    #[test]
    fn what_a_slot_promises_beyond_its_pods_is_named() {
        let slot = |slot: &str| {
            let container = "{resources: {limits: {cpu: 2500m, example.com/wafer: 1, nvidia.com/gpu: 1}}}";
            let flux = format!("{{bursting: {{clusters: [{{}}, {{{slot}}}]}}}}");
            let pod = "{annotations: {tributary.dev/gpu-resource: example.com/wafer}}";
            let spec = format!("  containers: [{container}]\n  pod: {pod}\n  flux: {flux}\n");
            render(&lake(&spec), &Context::default()).unwrap().unsupported
        };
        let said = |field: &str, why: &str| {
            vec![format!("spec.flux.bursting.clusters[1].{field} ({why}: write resources, too)")]
        };
        for (written, expected) in [
            ("cores: 2, gpus: 2", vec![]),
            ("cores: 3", said("cores", "its pods have a limit of 2500m")),
            ("cores: 3, resources: {limits: {cpu: 3}}", vec![]),
            ("cores: 3, resources: {requests: {cpu: 3}}", vec![]),
            ("gpus: 3", said("gpus", "its pods request 2")),
            ("gpus: 3, resources: {limits: {nvidia.com/mig-1g.5gb: 1}}", vec![]),
            (
                "gpus: 1, resources: {limits: {nvidia.com/gpu: 0, example.com/wafer: 0}}",
                said("gpus", "its pods request 0"),
            ),
        ] {
            assert_eq!(slot(written), expected, "{written}");
        }
    }

    /// The danger: its owner waits for it to go, and nobody deletes it.
    #[test]
    fn what_multikueue_made_does_not_go_by_itself() {
        let mut made = lake("  containers: [{}]\n  cleanup: true\n  ttlSecondsAfterFinished: 0\n");
        let unsupported = |object: &MiniCluster| render(object, &Context::default()).unwrap().unsupported;
        assert_eq!(unsupported(&made), Vec::<String>::new());
        made.metadata.labels = Some([(ORIGIN.to_owned(), "multikueue".to_owned())].into());
        let why = "MultiKueue deletes what it has made here; it is for the MiniCluster in the manager";
        assert_eq!(
            unsupported(&made),
            ["cleanup", "ttlSecondsAfterFinished"].map(|field| format!("spec.{field} ({why})"))
        );
    }
}
