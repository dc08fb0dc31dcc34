use serde_json::{Value, json};

use super::*;

/// A pod that passes every level, changed in one place.
fn pod(pointer: &str, value: Value) -> PodTemplateSpec {
    let security = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1000,
        "capabilities": {"drop": ["ALL"], "add": []}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = |name: &str| json!({"name": name, "ports": [{"containerPort": 1}], "securityContext": security});
    let mut pod = json!({
        "metadata": {"annotations": {}},
        "spec": {
            "containers": [container("main")], "initContainers": [container("init")],
            "volumes": [{"name": "v", "emptyDir": {}}], "securityContext": {},
        },
    });
    if !pointer.is_empty() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
    }
    serde_json::from_value(pod).unwrap()
}

fn passes(level: PodSecurityLevel, pointer: &str, value: &Value) -> bool {
    judge(level, &pod(pointer, value.clone())).is_empty()
}

use PodSecurityLevel::{Baseline, Privileged, Restricted};

#[test]
fn each_control_of_baseline_is_held() {
    let c = "/spec/containers/0/securityContext";
    let i = "/spec/initContainers/0/securityContext";
    let bad = [
        ("/spec/hostNetwork".to_owned(), json!(true)),
        ("/spec/hostPID".into(), json!(true)),
        ("/spec/hostIPC".into(), json!(true)),
        ("/spec/volumes".into(), json!([{"name": "v", "hostPath": {"path": "/"}}])),
        ("/metadata/annotations".into(), json!({"container.apparmor.security.beta.kubernetes.io/main": "unconfined"})),
        ("/spec/securityContext/sysctls".into(), json!([{"name": "kernel.msgmax", "value": "1"}])),
        ("/spec/securityContext/seLinuxOptions".into(), json!({"type": "spc_t"})),
        ("/spec/securityContext/seLinuxOptions".into(), json!({"user": "u"})),
        ("/spec/securityContext/seccompProfile".into(), json!({"type": "Unconfined"})),
        ("/spec/securityContext/appArmorProfile".into(), json!({"type": "Unconfined"})),
        ("/spec/securityContext/windowsOptions".into(), json!({"hostProcess": true})),
        ("/spec/containers/0/ports".into(), json!([{"containerPort": 1, "hostPort": 80}])),
        ("/spec/containers/0/livenessProbe".into(), json!({"httpGet": {"port": 1, "host": "10.0.0.1"}})),
        ("/spec/containers/0/startupProbe".into(), json!({"tcpSocket": {"port": 1, "host": "example.org"}})),
        ("/spec/containers/0/lifecycle".into(), json!({"preStop": {"httpGet": {"port": 1, "host": "10.0.0.1"}}})),
        (format!("{c}/privileged"), json!(true)),
        (format!("{i}/privileged"), json!(true)),
        (format!("{c}/capabilities"), json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]})),
        (format!("{c}/capabilities"), json!({"drop": ["ALL"], "add": ["ALL"]})),
        (format!("{c}/procMount"), json!("Unmasked")),
        (format!("{c}/seLinuxOptions"), json!({"role": "r"})),
        (format!("{c}/seccompProfile"), json!({"type": "Unconfined"})),
        (format!("{i}/appArmorProfile"), json!({"type": "Unconfined"})),
        (format!("{c}/windowsOptions"), json!({"hostProcess": true})),
    ];
    for (pointer, value) in &bad {
        assert!(!passes(Baseline, pointer, value), "{pointer} {value} passed");
        assert!(passes(Privileged, pointer, value), "{pointer} {value}");
        assert!(!passes(Restricted, pointer, value), "restricted holds what baseline holds: {pointer}");
    }
}

#[test]
fn baseline_allows_what_is_harmless() {
    let c = "/spec/containers/0/securityContext";
    let good = [
        (String::new(), json!(null)),
        ("/spec/hostNetwork".into(), json!(false)),
        ("/spec/containers/0/securityContext".into(), json!(null)),
        ("/spec/containers/0/securityContext".into(), json!({"runAsUser": 0})),
        (
            "/metadata/annotations".into(),
            json!({"container.apparmor.security.beta.kubernetes.io/m": "runtime/default"}),
        ),
        ("/spec/securityContext/sysctls".into(), json!([{"name": "net.ipv4.tcp_syncookies", "value": "1"}])),
        ("/spec/securityContext/seLinuxOptions".into(), json!({"type": "container_t", "level": "s0"})),
        ("/spec/containers/0/livenessProbe".into(), json!({"httpGet": {"port": 1}})),
        ("/spec/containers/0/readinessProbe".into(), json!({"exec": {"command": ["flux", "uptime"]}})),
        ("/spec/volumes".into(), json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}])),
        (format!("{c}/capabilities"), json!({"add": ["CHOWN", "KILL"]})),
        (format!("{c}/procMount"), json!("Default")),
    ];
    for (pointer, value) in &good {
        let pod = pod(pointer, value.clone());
        assert_eq!(judge(Baseline, &pod), [], "{pointer} {value}");
    }
}

#[test]
fn each_control_of_restricted_is_held() {
    let c = "/spec/containers/0/securityContext";
    let i = "/spec/initContainers/0/securityContext";
    assert_eq!(judge(Restricted, &pod("", json!(null))), []);
    let bad = [
        ("/spec/volumes".to_owned(), json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}])),
        ("/spec/securityContext/runAsUser".into(), json!(0)),
        ("/spec/securityContext/runAsNonRoot".into(), json!(false)),
        (c.to_owned(), json!(null)),
        (format!("{c}/allowPrivilegeEscalation"), json!(null)),
        (format!("{c}/allowPrivilegeEscalation"), json!(true)),
        (format!("{i}/runAsNonRoot"), json!(null)),
        (format!("{c}/runAsNonRoot"), json!(false)),
        (format!("{c}/runAsUser"), json!(0)),
        (format!("{c}/seccompProfile"), json!(null)),
        (format!("{c}/capabilities"), json!({"drop": ["NET_RAW"]})),
        (format!("{c}/capabilities"), json!({"drop": ["ALL"], "add": ["CHOWN"]})),
    ];
    for (pointer, value) in &bad {
        assert!(!passes(Restricted, pointer, value), "{pointer} {value} passed");
        assert!(passes(Baseline, pointer, value), "{pointer} {value}");
    }
    assert!(passes(Restricted, &format!("{c}/capabilities"), &json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]})));
}

#[test]
fn the_pod_speaks_for_containers_that_say_nothing() {
    let mut pod = pod("/spec/securityContext", json!({"runAsNonRoot": true, "seccompProfile": {"type": "Localhost"}}));
    let containers = &mut pod.spec.as_mut().unwrap().containers;
    let security = containers[0].security_context.as_mut().unwrap();
    security.run_as_non_root = None;
    security.seccomp_profile = None;
    assert_eq!(judge(Restricted, &pod), []);
}

#[test]
fn violations_name_the_field() {
    let privileged = pod("/spec/initContainers/0/securityContext/privileged", json!(true));
    let violations = judge(Baseline, &privileged);
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].to_string(), "initContainers[0].securityContext.privileged: must not be true");
}
