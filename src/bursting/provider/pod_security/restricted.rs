//! Level `restricted`, on top of `baseline`: hardened pods only.

use k8s_openapi::api::core::v1::{PodSpec, SeccompProfile, Volume};

use super::{Violation, containers};

/// The one capability that may be added.
const NET_BIND_SERVICE: &str = "NET_BIND_SERVICE";

pub(super) fn judge(spec: &PodSpec, violations: &mut Vec<Violation>) {
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        // Host paths are baseline's to refuse.
        if !is_core_volume(volume) && volume.host_path.is_none() {
            let message = format!("volume {:?} has a source that is not allowed", volume.name);
            violations.push(Violation::new(format!("volumes[{index}]"), message));
        }
    }
    let pod = spec.security_context.as_ref();
    if pod.and_then(|pod| pod.run_as_user) == Some(0) {
        violations.push(Violation::new("securityContext.runAsUser", "must not be 0"));
    }
    let pod_non_root = pod.and_then(|pod| pod.run_as_non_root);
    if pod_non_root == Some(false) {
        // Also if every container says otherwise: so the API server has it.
        violations.push(Violation::new("securityContext.runAsNonRoot", "must not be false"));
    }
    let pod_confined = pod.and_then(|pod| pod.seccomp_profile.as_ref());
    for checked in containers(spec) {
        let security = checked.security;
        let mut say = |field: &str, message: &str| {
            violations.push(Violation::new(format!("{}.securityContext.{field}", checked.path), message));
        };
        if security.and_then(|security| security.allow_privilege_escalation) != Some(false) {
            say("allowPrivilegeEscalation", "must be false");
        }
        if security.and_then(|security| security.run_as_non_root).or(pod_non_root) != Some(true) {
            say("runAsNonRoot", "must be true, here or for the pod");
        }
        if security.and_then(|security| security.run_as_user) == Some(0) {
            say("runAsUser", "must not be 0");
        }
        if !confined(security.and_then(|security| security.seccomp_profile.as_ref()).or(pod_confined)) {
            say("seccompProfile.type", "must be RuntimeDefault or Localhost, here or for the pod");
        }
        let capabilities = security.and_then(|security| security.capabilities.as_ref());
        if !capabilities.is_some_and(|all| all.drop.iter().flatten().any(|dropped| dropped == "ALL")) {
            say("capabilities.drop", "must contain ALL");
        }
        if capabilities.is_some_and(|all| all.add.iter().flatten().any(|added| added != NET_BIND_SERVICE)) {
            say("capabilities.add", "must contain nothing but NET_BIND_SERVICE");
        }
    }
}

fn is_core_volume(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some()
}

fn confined(profile: Option<&SeccompProfile>) -> bool {
    profile.is_some_and(|profile| matches!(profile.type_.as_str(), "RuntimeDefault" | "Localhost"))
}
