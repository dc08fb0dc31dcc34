//! Level `baseline`: no known way to become root on the node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, HTTPGetAction, LifecycleHandler, PodSpec, Probe, SELinuxOptions, SeccompProfile,
    TCPSocketAction, WindowsSecurityContextOptions,
};

use super::{Violation, containers};

/// Capabilities that may be added.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// SELinux types that may be asked for.
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Sysctls that are namespaced and safe.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Older form of `appArmorProfile`.
const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn judge(spec: &PodSpec, annotations: Option<&BTreeMap<String, String>>, violations: &mut Vec<Violation>) {
    pod(spec, annotations, violations);
    for checked in containers(spec) {
        if let Some(container) = checked.container {
            hooks_and_ports(&checked.path, container, violations);
        }
        let Some(security) = checked.security else { continue };
        let mut say = |field: &str, message: String| {
            violations.push(Violation::new(format!("{}.securityContext.{field}", checked.path), message));
        };
        if security.privileged == Some(true) {
            say("privileged", "must not be true".into());
        }
        for added in security.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten()) {
            if !CAPABILITIES.contains(&added.as_str()) {
                say("capabilities.add", format!("{added:?} must not be added"));
            }
        }
        if security.proc_mount.as_deref().is_some_and(|mount| mount != "Default") {
            say("procMount", "must be Default".into());
        }
        if let Some(problem) = se_linux(security.se_linux_options.as_ref()) {
            say("seLinuxOptions", problem);
        }
        if unconfined(security.seccomp_profile.as_ref()) {
            say("seccompProfile.type", "must not be Unconfined".into());
        }
        if let Some(problem) = app_armor(security.app_armor_profile.as_ref()) {
            say("appArmorProfile.type", problem);
        }
        if host_process(security.windows_options.as_ref()) {
            say("windowsOptions.hostProcess", "must not be true".into());
        }
    }
}

fn pod(spec: &PodSpec, annotations: Option<&BTreeMap<String, String>>, violations: &mut Vec<Violation>) {
    let mut say = |field: &str, message: String| violations.push(Violation::new(field, message));
    let host = [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    for (field, _) in host.into_iter().filter(|(_, value)| *value == Some(true)) {
        say(field, "must not be true".into());
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        if volume.host_path.is_some() {
            say(&format!("volumes[{index}].hostPath"), format!("volume {:?} must not be a host path", volume.name));
        }
    }
    for (key, value) in annotations.into_iter().flatten() {
        let allowed = value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
        if key.starts_with(APP_ARMOR_PREFIX) && !allowed {
            say(&format!("metadata.annotations[{key:?}]"), format!("{value:?} is no allowed AppArmor profile"));
        }
    }
    let Some(security) = &spec.security_context else { return };
    for sysctl in security.sysctls.iter().flatten().filter(|sysctl| !SYSCTLS.contains(&sysctl.name.as_str())) {
        say("securityContext.sysctls", format!("{:?} must not be set", sysctl.name));
    }
    if let Some(problem) = se_linux(security.se_linux_options.as_ref()) {
        say("securityContext.seLinuxOptions", problem);
    }
    if unconfined(security.seccomp_profile.as_ref()) {
        say("securityContext.seccompProfile.type", "must not be Unconfined".into());
    }
    if let Some(problem) = app_armor(security.app_armor_profile.as_ref()) {
        say("securityContext.appArmorProfile.type", problem);
    }
    if host_process(security.windows_options.as_ref()) {
        say("securityContext.windowsOptions.hostProcess", "must not be true".into());
    }
}

/// Ports on the node, and probes and hooks that make the kubelet talk to another host than the pod (v1.34).
fn hooks_and_ports(path: &str, container: &Container, violations: &mut Vec<Violation>) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        if port.host_port.is_some_and(|port| port != 0) {
            violations.push(Violation::new(format!("{path}.ports[{index}].hostPort"), "must not be set"));
        }
    }
    let probes = [
        ("livenessProbe", container.liveness_probe.as_ref()),
        ("readinessProbe", container.readiness_probe.as_ref()),
        ("startupProbe", container.startup_probe.as_ref()),
    ];
    let lifecycle = container.lifecycle.as_ref();
    let hooks = [
        ("lifecycle.postStart", lifecycle.and_then(|hooks| hooks.post_start.as_ref())),
        ("lifecycle.preStop", lifecycle.and_then(|hooks| hooks.pre_stop.as_ref())),
    ];
    let probes = probes.into_iter().map(|(field, probe)| (field, probe.and_then(probe_host)));
    let hooks = hooks.into_iter().map(|(field, hook)| (field, hook.and_then(hook_host)));
    for (field, host) in probes.chain(hooks) {
        if let Some(host) = host.filter(|host| !host.is_empty()) {
            violations.push(Violation::new(format!("{path}.{field}"), format!("must not name the host {host:?}")));
        }
    }
}

fn probe_host(probe: &Probe) -> Option<&str> {
    host(probe.http_get.as_ref(), probe.tcp_socket.as_ref())
}

fn hook_host(hook: &LifecycleHandler) -> Option<&str> {
    host(hook.http_get.as_ref(), hook.tcp_socket.as_ref())
}

fn host<'a>(http: Option<&'a HTTPGetAction>, tcp: Option<&'a TCPSocketAction>) -> Option<&'a str> {
    http.and_then(|http| http.host.as_deref()).or(tcp.and_then(|tcp| tcp.host.as_deref()))
}

fn se_linux(options: Option<&SELinuxOptions>) -> Option<String> {
    let options = options?;
    let set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if set(&options.user) || set(&options.role) {
        return Some("user and role must not be set".into());
    }
    let type_ = options.type_.as_deref().unwrap_or_default();
    (!SELINUX_TYPES.contains(&type_)).then(|| format!("type {type_:?} must not be set"))
}

fn unconfined(profile: Option<&SeccompProfile>) -> bool {
    profile.is_some_and(|profile| profile.type_ == "Unconfined")
}

fn app_armor(profile: Option<&AppArmorProfile>) -> Option<String> {
    let type_ = profile?.type_.as_str();
    (!matches!(type_, "RuntimeDefault" | "Localhost")).then(|| format!("must not be {type_}"))
}

fn host_process(options: Option<&WindowsSecurityContextOptions>) -> bool {
    options.is_some_and(|options| options.host_process == Some(true))
}
