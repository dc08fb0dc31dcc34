//! The import policy, held against a template: every reference to an existing object, and every field that schedules or
//! identifies, is refused unless the policy names it.
//!
//! All types are taken apart field by field, without `..`: a field that is new does not compile until somebody has
//! decided about it here.

use tributary_api::duration::Lasting;
use tributary_api::minicluster::{Container, ContainerVolume, FluxContainer};
use tributary_api::names;
use tributary_api::peer::ImportPolicy;

use crate::template::{BurstTemplate, FluxTemplate, LeadTemplate, PodTemplate};

/// Everything in `template` that `policy` forbids, each with its field and what would allow it; empty if nothing is.
pub(crate) fn forbidden(template: &BurstTemplate, policy: &ImportPolicy) -> Vec<String> {
    let BurstTemplate { containers, flux, logging: _, pod, disable_affinity: _, share_process_namespace: _, lead } =
        template;
    let mut judge = Judge { policy, found: Vec::new() };
    // Nothing of what only a lead broker uses refers to anything.
    if let Some(LeadTemplate {
        tasks: _,
        launcher: _,
        deadline_seconds,
        backoff_limit: _,
        submit_command: _,
        option_flags: _,
        complete_workers: _,
    }) = lead
    {
        // It would be ended before its time, and begin anew elsewhere.
        if let (Some(wanted), Some(limit)) = (deadline_seconds, policy.max_duration)
            && *wanted > limit.seconds
        {
            let wanted = Lasting::of_seconds(*wanted);
            judge.say(format!("a run of {wanted} (its time limit): import.maxDuration is {limit}"));
        }
    }
    for (index, container) in containers.iter().enumerate() {
        judge.container(&format!("containers[{index}]"), container);
    }
    judge.flux(flux);
    judge.pod(pod);
    judge.found
}

/// Whether `text` matches `pattern`: `*` stands for any characters, also `/` and none, and `?` for one.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` was, and up to where it has swallowed.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, swallowed)) => {
                    p = at + 1;
                    t = swallowed + 1;
                    star = Some((at, t));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

struct Judge<'a> {
    policy: &'a ImportPolicy,
    found: Vec<String>,
}

impl Judge<'_> {
    fn container(&mut self, path: &str, container: &Container) {
        let Container {
            image_pull_secret,
            image: _,
            working_dir: _,
            name: _,
            command: _,
            pull_always: _,
            image_pull_policy: _,
            ports,
            environment: _,
            secrets,
            launcher: _,
            batch: _,
            batch_raw: _,
            logs: _,
            run_flux: _,
            no_wrap_entrypoint: _,
            volumes,
            existing_volumes,
            life_cycle: _,
            resources,
            commands: _,
            // Judged on the rendered pod.
            security_context: _,
            pre_command: _,
            cores: _,
            flux_user: _,
            diagnostics: _,
        } = container;
        self.image(&format!("{path}.image"), container.image());
        let policy = self.policy;
        self.named(
            &format!("{path}.imagePullSecret"),
            image_pull_secret.as_deref(),
            &policy.allow_image_pull_secrets,
            "allowImagePullSecrets",
        );
        for (variable, key) in secrets {
            let field = format!("{path}.secrets.{variable}");
            self.secret(&field, Some(&key.name));
        }
        for (name, volume) in volumes {
            self.volume(&format!("{path}.volumes.{name}"), volume);
        }
        for (name, volume) in existing_volumes {
            self.volume(&format!("{path}.existingVolumes.{name}"), volume);
        }
        if !ports.is_empty() {
            self.say(format!("{path}.ports: hosted containers get no Services"));
        }
        if !resources.claims.is_empty() {
            self.say(format!("{path}.resources.claims: dynamic resource claims are not taken from peers"));
        }
    }

    /// All sources that are written are judged, not only the one that would win.
    fn volume(&mut self, path: &str, volume: &ContainerVolume) {
        let ContainerVolume {
            path: _,
            host_path,
            config_map_name,
            items: _,
            claim_name,
            secret_name,
            read_only: _,
            empty_dir_medium: _,
            empty_dir_size_limit: _,
            csi_driver,
            csi_driver_attributes,
            empty_dir: _,
        } = volume;
        let policy = self.policy;
        let named = [
            ("configMapName", config_map_name, &policy.allow_config_maps, "allowConfigMaps"),
            ("claimName", claim_name, &policy.allow_claims, "allowClaims"),
            ("csiDriver", csi_driver, &policy.allow_csi_drivers, "allowCsiDrivers"),
        ];
        for (field, name, allowed, list) in named {
            self.named(&format!("{path}.{field}"), name.as_deref(), allowed, list);
        }
        self.secret(&format!("{path}.secretName"), secret_name.as_deref());
        // They name what a driver mounts: a share of any server, a class of secrets.
        for (key, value) in csi_driver_attributes {
            let attribute = format!("{key}={value}");
            let list = "allowCsiDriverAttributes";
            self.named(
                &format!("{path}.csiDriverAttributes"),
                Some(&attribute),
                &policy.allow_csi_driver_attributes,
                list,
            );
        }
        if let Some(host_path) = host_path
            && !policy.allow_host_paths.iter().any(|prefix| is_under(prefix, host_path))
        {
            self.say(format!("{path}.hostPath: {host_path:?} is under no prefix of import.allowHostPaths"));
        }
    }

    fn flux(&mut self, flux: &FluxTemplate) {
        let FluxTemplate {
            container,
            arch: _,
            wrap: _,
            connect_timeout: _,
            disable_socket: _,
            topology: _,
            no_wait_socket: _,
            log_level: _,
            scheduler: _,
            munge_secret,
            environment: _,
        } = flux;
        let policy = self.policy;
        self.secret("flux.mungeSecret", munge_secret.as_deref());
        let FluxContainer {
            disable: _,
            name: _,
            working_dir: _,
            python_path: _,
            resources,
            image_pull_secret,
            image: _,
            pull_always: _,
            // Judged on the rendered pod.
            security_context: _,
            mount_path: _,
        } = container;
        let image = container.image.as_deref().unwrap_or(tributary_api::minicluster::DEFAULT_VIEW_IMAGE);
        self.image("flux.container.image", image);
        self.named(
            "flux.container.imagePullSecret",
            image_pull_secret.as_deref(),
            &policy.allow_image_pull_secrets,
            "allowImagePullSecrets",
        );
        if !resources.claims.is_empty() {
            self.say("flux.container.resources.claims: dynamic resource claims are not taken from peers".into());
        }
    }

    fn pod(&mut self, pod: &PodTemplate) {
        let PodTemplate {
            service_account_name,
            runtime_class_name,
            priority_class_name,
            scheduler_name,
            node_selector,
            node_affinity,
            tolerations,
            dns_policy: _,
            // Judged on the rendered pod.
            host_ipc: _,
            host_pid: _,
            resources,
            security_context: _,
        } = pod;
        let policy = self.policy;
        let account = service_account_name.as_deref().filter(|name| Some(*name) != policy.service_account.as_deref());
        self.named("pod.serviceAccountName", account, &policy.allow_service_accounts, "allowServiceAccounts");
        let class = runtime_class_name.as_deref();
        self.named("pod.runtimeClassName", class, &policy.allow_runtime_classes, "allowRuntimeClasses");
        if priority_class_name.is_some() {
            self.say(
                "pod.priorityClassName: hosted pods have the priority that the owner of their cluster chooses".into(),
            );
        }
        let scheduler = scheduler_name.as_deref().filter(|name| *name != "default-scheduler");
        self.named("pod.schedulerName", scheduler, &policy.allow_schedulers, "allowSchedulers");
        if !policy.allow_scheduling {
            let scheduling = [
                ("nodeSelector", node_selector.is_empty()),
                ("nodeAffinity", node_affinity.is_empty()),
                ("tolerations", tolerations.is_empty()),
            ];
            for (field, _) in scheduling.into_iter().filter(|(_, absent)| !absent) {
                self.say(format!("pod.{field}: import.allowScheduling is not set"));
            }
        }
        if !resources.is_empty() && class.is_none() {
            self.say("pod.resources: an overhead needs a runtime class".into());
        }
    }

    fn image(&mut self, field: &str, image: &str) {
        let allowed = &self.policy.allow_images;
        if !allowed.is_empty() && !allowed.iter().any(|pattern| matches(pattern, image)) {
            self.say(format!("{field}: {image:?} matches nothing in import.allowImages"));
        }
    }

    fn named(&mut self, field: &str, name: Option<&str>, allowed: &[String], list: &str) {
        if let Some(name) = name
            && !allowed.iter().any(|pattern| matches(pattern, name))
        {
            self.say(format!("{field}: {name:?} is not in import.{list}"));
        }
    }

    /// No pattern covers the credentials of an instance: whoever has them joins it, and runs jobs as its users.
    fn secret(&mut self, field: &str, name: Option<&str>) {
        let allowed = &self.policy.allow_secrets;
        match name.filter(|name| names::is_credential(name)) {
            Some(name) if !allowed.iter().any(|exactly| exactly == name) => self.say(format!(
                "{field}: Secret {name:?} is named like the credentials of an instance: import.allowSecrets has to name it in \
                 full, not by a pattern"
            )),
            _ => self.named(field, name, allowed, "allowSecrets"),
        }
    }

    fn say(&mut self, text: String) {
        self.found.push(text);
    }
}

/// Whether a path of the node is `prefix` or below it, component by component, without any `..`.
fn is_under(prefix: &str, path: &str) -> bool {
    let components = |path: &str| -> Option<Vec<String>> {
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").map(String::from).collect();
        (path.starts_with('/') && !parts.iter().any(|part| part == "..")).then_some(parts)
    };
    match (components(prefix), components(path)) {
        (Some(prefix), Some(path)) => path.starts_with(&prefix),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(pointer: &str, field: &str, value: Value) -> BurstTemplate {
        let mut json = json!({"containers": [{"image": "ghcr.io/org/app:1", "volumes": {"v": {"path": "/v"}}}],
            "flux": {"container": {"image": "ghcr.io/org/view"}}, "pod": {}});
        json.pointer_mut(pointer).unwrap()[field] = value;
        BurstTemplate::parse(&json).unwrap()
    }

    /// Each row: where, what, and the policy that allows it.
    fn rows() -> Vec<(&'static str, &'static str, Value, ImportPolicy)> {
        let policy = ImportPolicy::default;
        let names = || vec!["mine".to_owned()];
        let volume = "/containers/0/volumes/v";
        vec![
            (volume, "secretName", json!("mine"), ImportPolicy { allow_secrets: names(), ..policy() }),
            (volume, "configMapName", json!("mine"), ImportPolicy { allow_config_maps: names(), ..policy() }),
            (volume, "claimName", json!("mine"), ImportPolicy { allow_claims: names(), ..policy() }),
            (volume, "csiDriver", json!("mine"), ImportPolicy { allow_csi_drivers: names(), ..policy() }),
            (
                volume,
                "csiDriverAttributes",
                json!({"server": "nfs.example.org"}),
                ImportPolicy { allow_csi_driver_attributes: vec!["server=nfs.example.*".into()], ..policy() },
            ),
            (volume, "hostPath", json!("/data/a"), ImportPolicy { allow_host_paths: vec!["/data".into()], ..policy() }),
            (
                "/containers/0",
                "secrets",
                json!({"A": {"name": "mine", "key": "k"}}),
                ImportPolicy { allow_secrets: names(), ..policy() },
            ),
            (
                "/containers/0",
                "imagePullSecret",
                json!("mine"),
                ImportPolicy { allow_image_pull_secrets: names(), ..policy() },
            ),
            (
                "/containers/0",
                "existingVolumes",
                json!({"w": {"path": "/w", "secretName": "mine"}}),
                ImportPolicy { allow_secrets: names(), ..policy() },
            ),
            ("/flux", "mungeSecret", json!("mine"), ImportPolicy { allow_secrets: names(), ..policy() }),
            (
                "/flux/container",
                "imagePullSecret",
                json!("mine"),
                ImportPolicy { allow_image_pull_secrets: names(), ..policy() },
            ),
            ("/pod", "serviceAccountName", json!("mine"), ImportPolicy { allow_service_accounts: names(), ..policy() }),
            (
                "/pod",
                "serviceAccountName",
                json!("mine"),
                ImportPolicy { service_account: Some("mine".into()), ..policy() },
            ),
            ("/pod", "runtimeClassName", json!("mine"), ImportPolicy { allow_runtime_classes: names(), ..policy() }),
            ("/pod", "schedulerName", json!("mine"), ImportPolicy { allow_schedulers: names(), ..policy() }),
            ("/pod", "nodeSelector", json!({"a": "b"}), ImportPolicy { allow_scheduling: true, ..policy() }),
            ("/pod", "nodeAffinity", json!({"a": ["b"]}), ImportPolicy { allow_scheduling: true, ..policy() }),
            (
                "/pod",
                "tolerations",
                json!([{"operator": "Exists"}]),
                ImportPolicy { allow_scheduling: true, ..policy() },
            ),
        ]
    }

    #[test]
    fn every_reference_needs_its_own_permission() {
        let rows = rows();
        for (pointer, field, value, allowing) in &rows {
            let template = template(pointer, field, value.clone());
            let refused = forbidden(&template, &ImportPolicy::default());
            assert_eq!(refused.len(), 1, "{pointer}/{field}: {refused:?}");
            assert!(refused[0].contains(field), "{refused:?}");
            assert_eq!(forbidden(&template, allowing), Vec::<String>::new(), "{pointer}/{field}");
            for (.., other) in rows.iter().filter(|(.., other)| other != allowing) {
                let same =
                    |row: &&(&str, &str, Value, ImportPolicy)| (row.0, row.1, &row.2) == (*pointer, *field, value);
                let also_allows = rows.iter().filter(same).any(|row| row.3 == *other);
                assert_eq!(forbidden(&template, other).is_empty(), also_allows, "{pointer}/{field} {other:?}");
            }
        }
    }

    #[test]
    fn no_pattern_covers_the_certificate_of_another_instance() {
        let volume = "/containers/0/volumes/v";
        let refused = |allowed: &str, name: &str| {
            let policy = ImportPolicy { allow_secrets: vec![allowed.into()], ..ImportPolicy::default() };
            let fields = [
                (volume, "secretName", json!(name)),
                ("/containers/0", "secrets", json!({"A": {"name": name, "key": "curve.cert"}})),
                ("/flux", "mungeSecret", json!(name)),
            ];
            let found = fields.map(|(at, field, value)| !forbidden(&template(at, field, value), &policy).is_empty());
            assert!(found.iter().all(|one| *one == found[0]), "{allowed} {name}: {found:?}");
            found[0]
        };
        for name in ["shared-curve", "lake-restful"] {
            assert!(refused("*", name) && refused("shared-*", name) && refused("*-????e", name) && refused("", name));
            assert!(!refused(name, name), "who names it has decided about it");
        }
        assert!(!refused("*", "dataset-key"));
    }

    #[test]
    fn some_things_nobody_can_allow() {
        let table = [
            ("/containers/0", "ports", json!([80])),
            ("/containers/0", "resources", json!({"claims": [{"name": "gpu"}]})),
            ("/flux/container", "resources", json!({"claims": [{"name": "gpu"}]})),
            ("/pod", "resources", json!({"cpu": "1"})),
            ("/pod", "priorityClassName", json!("system-node-critical")),
        ];
        for (pointer, field, value) in table {
            let refused = forbidden(&template(pointer, field, value), &ImportPolicy::default());
            assert_eq!(refused.len(), 1, "{pointer}/{field}: {refused:?}");
        }
        assert_eq!(
            forbidden(&template("/pod", "schedulerName", json!("default-scheduler")), &ImportPolicy::default()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_run_may_not_ask_for_more_time_than_it_is_given() {
        let within = |limit: Option<i64>| ImportPolicy {
            max_duration: limit.map(Lasting::of_seconds),
            ..ImportPolicy::default()
        };
        let lead = |deadline: Value| BurstTemplate::parse(&json!({"lead": {"deadlineSeconds": deadline}})).unwrap();
        let told = "a run of 3h (its time limit): import.maxDuration is 1h";
        assert_eq!(forbidden(&lead(json!(10_800)), &within(Some(3600))), [told]);
        for (deadline, limit) in [(json!(3600), Some(3600)), (json!(10_800), None), (json!(null), Some(3600))] {
            assert_eq!(forbidden(&lead(deadline), &within(limit)), Vec::<String>::new());
        }
    }

    #[test]
    fn images_are_judged_for_every_container() {
        let only = |pattern: &str| ImportPolicy { allow_images: vec![pattern.into()], ..ImportPolicy::default() };
        let template = template("/pod", "dnsPolicy", json!("Default"));
        assert_eq!(forbidden(&template, &only("ghcr.io/org/*")), Vec::<String>::new());
        let refused = forbidden(&template, &only("ghcr.io/org/view*"));
        assert_eq!(refused, ["containers[0].image: \"ghcr.io/org/app:1\" matches nothing in import.allowImages"]);
        assert_eq!(
            forbidden(&BurstTemplate::default(), &only("ghcr.io/org/*")).len(),
            1,
            "the default image counts too"
        );
    }

    #[test]
    fn patterns_and_prefixes_are_matched_whole() {
        let table = [
            ("ghcr.io/org/*", "ghcr.io/org/a/b:1", true),
            ("ghcr.io/org/*", "ghcr.io/organisation/a", false),
            ("*", "", true),
            ("*:1.?", "a:1.2", true),
            ("*:1.?", "a:1.23", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "a", false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        let paths = [
            ("/data", "/data", true),
            ("/data", "/data/a//b", true),
            ("/data", "/database", false),
            ("/data", "/data/../etc", false),
            ("/data", "data", false),
            ("/", "/etc", true),
        ];
        for (prefix, path, expected) in paths {
            assert_eq!(is_under(prefix, path), expected, "{prefix} {path}");
        }
    }
}
