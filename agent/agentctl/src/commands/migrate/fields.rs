//! What the fields of one spec mean to upstream, and to us: pure. Source of what upstream does: its code, measured.

use tributary::api::minicluster::{Container, MiniClusterSpec, Runner};

use super::report::{Finding, Severity};
use super::shell;

/// Everything in a spec that behaves differently, in the order of the spec: without the object.
pub(super) fn differences(spec: &MiniClusterSpec) -> Vec<Finding> {
    let mut found = Differences::default();
    if let Ok(runner) = spec.runner() {
        found.runner(spec, &runner);
        let beside = spec.containers.iter().enumerate().filter(|(index, _)| *index != runner.index);
        beside.for_each(|(index, container)| found.sidecar(container, &format!("spec.containers[{index}]")));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        found.container(container, &format!("spec.containers[{index}]"));
    }
    found.shared_volumes(&spec.containers);
    for (index, service) in spec.services.iter().enumerate() {
        found.service(service, &format!("spec.services[{index}]"));
    }
    found.sizes_and_limits(spec);
    found.pod(spec);
    found.flux(spec);
    found.0
}

#[derive(Default)]
struct Differences(Vec<Finding>);

impl Differences {
    fn changes(&mut self, rule: &'static str, field: impl Into<String>, what: &str, hint: &str) {
        self.0.push(Finding { field: field.into(), ..Finding::of(Severity::Changes, rule, what, hint) });
    }

    fn constructs(&mut self, field: &str, constructs: impl IntoIterator<Item = Finding>) {
        self.0.extend(constructs.into_iter().map(|found| Finding { field: field.to_owned(), ..found }));
    }

    fn runner(&mut self, spec: &MiniClusterSpec, runner: &Runner<'_>) {
        let (container, path) = (runner.container, format!("spec.containers[{}]", runner.index));
        let script = container.commands.script.as_deref();
        let command = container.command.as_deref();
        if let Some(script) = script {
            self.constructs(&format!("{path}.commands.script"), shell::in_script(script));
        }
        match command {
            Some(lines) if container.batch => self.constructs(&format!("{path}.command"), shell::in_batch(lines)),
            Some(command) => {
                self.constructs(&format!("{path}.command"), shell::in_command(command, &container.environment));
            }
            None => {}
        }
        let pasted = [
            (format!("{path}.commands.prefix"), container.commands.prefix.as_ref()),
            ("spec.flux.submitCommand".to_owned(), spec.flux.submit_command.as_ref()),
            ("spec.flux.optionFlags".to_owned(), spec.flux.option_flags.as_ref()),
            ("spec.archive.path".to_owned(), spec.archive.path.as_ref()),
        ];
        for (field, text) in pasted {
            self.constructs(&field, text.into_iter().flat_map(|text| shell::in_words(text)));
        }
        if (script.is_some() || command.is_some()) && spec.backoff_limit.is_none_or(|limit| limit == 0) {
            let (what, hint) = if spec.logging.strict {
                (
                    "a failed command was run again, up to 100 times; now it fails the Job at once",
                    "set backoffLimit and pod.restartPolicy to ask for retries",
                )
            } else {
                (
                    "a failed command left the Job Complete; now it fails the Job, and the MiniCluster says Failed",
                    "if something relies on Complete, end commands.script with `|| true`",
                )
            };
            self.changes(
                "CommandResult",
                format!("{path}.{}", if script.is_some() { "commands.script" } else { "command" }),
                what,
                hint,
            );
        }
        if !container.run_flux && !container.ports.is_empty() {
            let name = container.name.as_deref().unwrap_or("(unnamed)");
            let what = format!("the ports of the container that runs Flux made a Service {name}; now there is none");
            let hint = "reach its pods by their host names, or write a Service that selects hpa-selector=NAME";
            self.changes("RunnerService", format!("{path}.ports"), &what, hint);
        }
        let requests = container.resources.effective_request("cpu").is_some();
        if requests && container.cores.is_none() && !spec.flux.bursting.clusters.is_empty() {
            let what =
                "Flux counted the cores that it found on the lead's node; with bursts it counts what is requested";
            self.changes("Cores", format!("{path}.resources"), what, "write containers[].cores to say how many");
        }
        if container.commands.post.is_some() && spec.max_size() > 1 {
            let what = "followers ran it without a limit; now their pods are told to go when the lead has ended, and are killed \
                        20 s and drainSeconds later, or after 10 s if that is 0";
            self.changes("FollowersPost", format!("{path}.commands.post"), what, "let the lead do what takes longer");
        }
        if container.commands.prefix.is_some() && command.is_none() && script.is_none() {
            let what = "it had no effect without a command; now it stands in front of the broker";
            self.changes(
                "BrokerPrefix",
                format!("{path}.commands.prefix"),
                what,
                "remove it, or see that the image has it",
            );
        }
        if container.batch_raw && !container.batch {
            self.changes("BatchRaw", format!("{path}.batchRaw"), "it has no effect without batch, as before", "");
        }
    }

    fn sidecar(&mut self, container: &Container, path: &str) {
        if container.no_wrap_entrypoint {
            let what = "it was started again only if it failed; now it is started again whenever it ends, until Flux has ended";
            let hint = "write its command without noWrapEntrypoint, if it ends by itself";
            self.changes("NoWrapEntrypoint", format!("{path}.noWrapEntrypoint"), what, hint);
        } else if container.commands.pre.is_some() {
            let what = "it had no effect beside the container that runs Flux; now it runs before the command";
            self.changes("SidecarPre", format!("{path}.commands.pre"), what, "");
        }
    }

    fn container(&mut self, container: &Container, path: &str) {
        for (name, volume) in container.volumes() {
            let field = format!("{path}.volumes.{name}");
            if volume.empty_dir && volume.path.as_deref().is_some_and(|path| path != "/dev/shm") {
                let what = "an emptyDir was mounted at /dev/shm, whatever path says; now it is mounted at path";
                self.changes("EmptyDirPath", field.clone(), what, "write path: /dev/shm to keep it there");
            }
            if volume.secret_name.is_some() && !volume.items.is_empty() {
                let what = "all keys of the Secret were there; now only those of items are";
                self.changes("SecretItems", format!("{field}.items"), what, "remove items to have all keys");
            }
            let medium = volume.empty_dir_medium.as_deref().unwrap_or_default();
            if medium != "memory" && medium.eq_ignore_ascii_case("memory") {
                let what = "the medium counted in lower case only; the volume is in memory now";
                self.changes("EmptyDirMedium", field, what, "");
            }
        }
        let hooks = &container.life_cycle;
        for (text, field) in [(&hooks.post_start_exec, "postStartExec"), (&hooks.pre_stop_exec, "preStopExec")] {
            if text.as_deref().is_some_and(|text| text.trim().contains(' ')) {
                let what = "the whole line was looked up as one program; now /bin/sh runs it";
                self.changes("LifeCycle", format!("{path}.lifeCycle.{field}"), what, "");
            }
        }
    }

    /// Upstream's list of mounts grew from container to container.
    fn shared_volumes(&mut self, containers: &[Container]) {
        let mut before = 0;
        for (index, container) in containers.iter().enumerate() {
            if before > 0 {
                let what = "it also had the volumes of the containers before it; now it has its own only";
                let field = format!("spec.containers[{index}].volumes");
                self.changes("LeakedVolumes", field, what, "write here the volumes that this container needs");
            }
            before += container.volumes().len();
        }
    }

    fn service(&mut self, service: &Container, path: &str) {
        self.container(service, path);
        let commands = &service.commands;
        let commanded = [&service.command, &commands.script, &commands.init, &commands.service_pre, &commands.post];
        if commanded.iter().any(|text| text.is_some()) {
            let what = "command and commands had no effect, and the image's own entrypoint ran; now they run";
            self.changes(
                "ServiceCommand",
                format!("{path}.command"),
                what,
                "remove them to keep the image's entrypoint",
            );
        }
        if service.image_pull_secret.is_some() {
            let what = "it had no effect; now images are pulled with it";
            self.changes("PullSecret", format!("{path}.imagePullSecret"), what, "");
        }
    }

    fn sizes_and_limits(&mut self, spec: &MiniClusterSpec) {
        if spec.backoff_limit == Some(0) {
            self.changes(
                "BackoffLimit",
                "spec.backoffLimit",
                "0 meant 100; now it means that nothing is tried again",
                "",
            );
        }
        if spec.deadline_seconds == Some(0) {
            let what = "0 ended the Job at once; now it means that there is no limit";
            self.changes("Deadline", "spec.deadlineSeconds", what, "");
        }
        if spec.archive.path.is_some() {
            let what = "the archive was read and never written; now it is written when the instance ends";
            self.changes("Archive", "spec.archive.path", what, "the path must be on a volume that outlives the pod");
        }
    }

    fn pod(&mut self, spec: &MiniClusterSpec) {
        let pod = &spec.pod;
        let mut rest = pod.security_context.clone();
        rest.fs_group = None;
        if rest != Default::default() {
            let what = "all of it but fsGroup was dropped; now it takes effect";
            self.changes("PodSecurityContext", "spec.pod.securityContext", what, "see that the images run under it");
        }
        if spec.network.disable_affinity && !pod.node_affinity.is_empty() {
            let what = "network.disableAffinity removed it as well; now it takes effect";
            self.changes("NodeAffinity", "spec.pod.nodeAffinity", what, "");
        }
    }

    fn flux(&mut self, spec: &MiniClusterSpec) {
        let flux = &spec.flux;
        for (name, value) in &flux.environment {
            self.constructs(&format!("spec.flux.environment.{name}"), shell::in_words(value));
        }
        if flux.wrap.is_some() && spec.max_size() > 1 {
            let what = "followers only printed it; now their brokers run under it, too";
            self.changes("FollowersWrap", "spec.flux.wrap", what, "see that the image has its programs");
        }
        if let Some(config) = &flux.broker_config {
            self.constructs("spec.flux.brokerConfig", shell::in_broker_config(config));
        }
        if flux.mount_path() != "/mnt/flux" {
            let what = "the generated configuration was under /mnt/flux all the same, where brokers did not find it; now \
                        it is under mountPath";
            self.changes("MountPath", "spec.flux.container.mountPath", what, "");
        }
        if flux.container.image_pull_secret.is_some() {
            let what = "it had no effect; now the view is pulled with it";
            self.changes("PullSecret", "spec.flux.container.imagePullSecret", what, "");
        }
        if flux.munge_secret.is_some() {
            let what = "it had no effect; now the Secret is mounted, and pods wait until it exists";
            self.changes("MungeSecret", "spec.flux.mungeSecret", what, "it needs a key munge.key");
        }
        let bursting = &flux.bursting;
        if !bursting.clusters.is_empty() {
            let what = "the clusters were only names in the host list; now each becomes a Burst that is placed on a peer, and \
                        waits while there is none";
            self.changes("BurstClusters", "spec.flux.bursting.clusters", what, "stop whatever made the bursts by hand");
        }
        for (index, cluster) in bursting.clusters.iter().enumerate() {
            if cluster.name.is_none() {
                let what = "an unnamed cluster had no name in the host list; now its hosts are NAME-burst-N";
                self.changes("BurstName", format!("spec.flux.bursting.clusters[{index}].name"), what, "");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kube::ResourceExt as _;
    use tributary::render::problem::reason;
    use tributary::render::{Context, render};

    use super::super::everywhere;
    use super::*;

    fn rules(spec: &str) -> Vec<String> {
        let spec: MiniClusterSpec = serde_saphyr::from_str(spec).unwrap();
        differences(&spec).into_iter().map(|found| format!("{} {}", found.rule, found.field)).collect()
    }

    #[test]
    fn an_interactive_cluster_has_nothing_that_changes() {
        assert_eq!(rules("{size: 4, interactive: true, containers: [{image: a}]}"), [""; 0]);
    }

    /// Upstream's side is what each rule says; ours is what is rendered: a text that is there, or after `!` one that is not.
    const RULES: &[(&str, &str, &str)] = &[
        ("containers: [{command: app}]", "CommandResult spec.containers[0].command", "FailJob"),
        (
            "{logging: {strict: true}, containers: [{command: app}]}",
            "CommandResult spec.containers[0].command",
            "FailJob",
        ),
        ("containers: [{name: web, ports: [80]}]", "RunnerService spec.containers[0].ports", "!Service web"),
        (
            "containers: [{commands: {prefix: fusion}}]",
            "BrokerPrefix spec.containers[0].commands.prefix",
            "fusion flux broker",
        ),
        (
            "containers: [{volumes: {v: {secretName: s, path: /v, items: {a: b}}}}]",
            "SecretItems spec.containers[0].volumes.v.items",
            r#""key":"a""#,
        ),
        (
            "{size: 2, flux: {wrap: strace}, containers: [{}]}",
            "FollowersWrap spec.flux.wrap",
            "flux start --wrap=strace -o",
        ),
        ("containers: [{batchRaw: true}]", "BatchRaw spec.containers[0].batchRaw", "!flux-job-0.batch"),
        (
            "containers: [{volumes: {v: {emptyDir: true, path: /scratch}}}]",
            "EmptyDirPath spec.containers[0].volumes.v",
            r#"{"mountPath":"/scratch","name":"v"}"#,
        ),
        (
            "containers: [{volumes: {v: {emptyDir: true, emptyDirMedium: Memory}}}]",
            "EmptyDirMedium spec.containers[0].volumes.v",
            r#"{"medium":"Memory"}"#,
        ),
        (
            "containers: [{lifeCycle: {preStopExec: echo hi}}]",
            "LifeCycle spec.containers[0].lifeCycle.preStopExec",
            r#"["/bin/sh","-c","echo hi"]"#,
        ),
        (
            "containers: [{runFlux: true}, {name: b, volumes: {v: {secretName: s, path: /v}}}, {name: c, command: c}]",
            "LeakedVolumes spec.containers[2].volumes",
            r#""name":"spack-software"}]}]"#,
        ),
        (
            "containers: [{runFlux: true}, {name: b, noWrapEntrypoint: true}]",
            "NoWrapEntrypoint spec.containers[1].noWrapEntrypoint",
            r#""restartPolicy":"Always""#,
        ),
        (
            "containers: [{runFlux: true}, {name: b, command: b, commands: {pre: echo before}}]",
            "SidecarPre spec.containers[1].commands.pre",
            ". /flux_operator/pre-1.sh",
        ),
        (
            "{size: 2, containers: [{commands: {post: echo done}}]}",
            "FollowersPost spec.containers[0].commands.post",
            r#""terminationGracePeriodSeconds":80,"#,
        ),
        (
            "{size: 2, containers: [{commands: {post: echo done}}], flux: {drainSeconds: 0}}",
            "FollowersPost spec.containers[0].commands.post",
            r#""terminationGracePeriodSeconds":10,"#,
        ),
        (
            "{containers: [{}], services: [{name: db, command: serve}]}",
            "ServiceCommand spec.services[0].command",
            "/flux_operator/services-0.sh",
        ),
        (
            "{containers: [{}], services: [{name: db, imagePullSecret: s}]}",
            "PullSecret spec.services[0].imagePullSecret",
            r#""imagePullSecrets":[{"name":"s"}]"#,
        ),
        ("{backoffLimit: 0, containers: [{}]}", "BackoffLimit spec.backoffLimit", r#""backoffLimit":0,"#),
        ("{deadlineSeconds: 0, containers: [{}]}", "Deadline spec.deadlineSeconds", "!activeDeadlineSeconds"),
        ("{archive: {path: /a}, containers: [{}]}", "Archive spec.archive.path", "-Scontent.dump="),
        (
            "{pod: {securityContext: {runAsUser: 7, fsGroup: 7}}, containers: [{}]}",
            "PodSecurityContext spec.pod.securityContext",
            r#""runAsUser":7"#,
        ),
        (
            "{network: {disableAffinity: true}, pod: {nodeAffinity: {a: [b]}}, containers: [{}]}",
            "NodeAffinity spec.pod.nodeAffinity",
            r#"{"key":"a","operator":"In","values":["b"]}"#,
        ),
        ("{flux: {brokerConfig: \"a = '$B'\"}, containers: [{}]}", "EarlyExpansion spec.flux.brokerConfig", "a = '$B'"),
        (
            "{flux: {container: {mountPath: /opt/f}}, containers: [{}]}",
            "MountPath spec.flux.container.mountPath",
            "-Srundir=/opt/f/config/run/flux",
        ),
        (
            "{flux: {container: {imagePullSecret: s}}, containers: [{}]}",
            "PullSecret spec.flux.container.imagePullSecret",
            r#""imagePullSecrets":[{"name":"s"}]"#,
        ),
        ("{flux: {mungeSecret: m}, containers: [{}]}", "MungeSecret spec.flux.mungeSecret", r#""secretName":"m""#),
        (
            "{flux: {bursting: {clusters: [{name: b, size: 2}]}}, containers: [{}]}",
            "BurstClusters spec.flux.bursting.clusters",
            "slot b ",
        ),
    ];

    /// What a MiniCluster of this spec becomes: the Job, other objects, files, ranks.
    fn rendered(spec: &str) -> String {
        let yaml = format!("{{metadata: {{name: lake, namespace: waters, uid: u}}, spec: {}}}", braced(spec));
        let rendered = render(&serde_saphyr::from_str(&yaml).unwrap(), &Context::default()).unwrap();
        let mut text = serde_json::to_string(&(&rendered.job.spec, &rendered.service_pod)).unwrap();
        text.extend(rendered.services.iter().map(|service| format!("Service {}\n", service.name_any())));
        text.extend(rendered.boot.files.iter().map(|(key, file)| format!("{key}\n{file}\n")));
        text + &rendered.boot.rank_map
    }

    fn braced(spec: &str) -> String {
        if spec.starts_with('{') { spec.to_owned() } else { format!("{{{spec}}}") }
    }

    #[test]
    fn each_rule_names_its_field_and_is_true_of_what_is_rendered() {
        for (spec, expected, ours) in RULES {
            assert_eq!(rules(spec), [*expected], "{spec}");
            let (text, is_there) = ours.strip_prefix('!').map_or((*ours, true), |text| (text, false));
            assert_eq!(rendered(spec).contains(text), is_there, "{spec}: {ours}\n{}", rendered(spec));
        }
        assert_eq!(rules("{pod: {securityContext: {fsGroup: 7}}, containers: [{}]}"), [""; 0]);
        assert_eq!(rules("containers: [{resources: {limits: {cpu: 4}}}]"), [""; 0], "Flux counts what it finds");
        let bursts = "{flux: {bursting: {clusters: [{name: b}]}}, containers: [{resources: {limits: {cpu: 4}}}]}";
        assert_eq!(rules(bursts), ["Cores spec.containers[0].resources", "BurstClusters spec.flux.bursting.clusters"]);
    }

    #[test]
    fn the_guide_tells_of_every_rule_and_of_no_other() {
        let guide = include_str!("../../../../../src/guide/migrating.md");
        let (_, section) = guide.split_once("\n## What differs\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let mut told = BTreeSet::new();
        for row in section.split("\n- ").skip(1) {
            let row = row.split_whitespace().collect::<Vec<_>>().join(" ");
            let (_, names) = row.rsplit_once(" (").unwrap_or_else(|| panic!("without a rule: {row}"));
            told.extend(names.trim_end_matches(')').split(", ").map(|name| name.trim_matches('`').to_owned()));
        }
        let mut known: BTreeSet<String> = RULES.iter().map(|(_, rule, _)| first(rule)).collect();
        let bursts = "{flux: {bursting: {clusters: [{}]}}, containers: [{resources: {limits: {cpu: 4}}}]}";
        known.extend(rules(bursts).iter().map(|rule| first(rule)));
        for (command, name) in [("$(date)", ""), ("${X:-y}", ""), ("'*'", ""), ("$A", "environment: {A: b c}")] {
            let spec = format!("containers: [{{command: {command:?}, {name}}}]");
            known.extend(rules(&spec).iter().map(|rule| first(rule)));
        }
        known.extend(rules(r#"containers: [{commands: {script: "echo \\$A $B"}}]"#).iter().map(|rule| first(rule)));
        known.extend([reason::INVALID_NAME, "NameTaken"].map(str::to_owned));
        known.extend(everywhere::tests::rules());
        assert_eq!(told, known);
        let long = format!(
            "{{metadata: {{name: lake, namespace: waters}}, spec: {{containers: [{{}}], network: {{headlessName: {}}}}}}}",
            "a".repeat(53)
        );
        let problems = render(&serde_saphyr::from_str(&long).unwrap(), &Context::default()).unwrap_err();
        assert_eq!(problems.iter().map(|problem| problem.reason).collect::<Vec<_>>(), [reason::INVALID_NAME]);
    }

    fn first(rule: &str) -> String {
        rule.split(' ').next().unwrap().to_owned()
    }
}
