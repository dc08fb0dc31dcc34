//! The Pod Security Standards, judged on a rendered pod.
//!
//! Our own judgement and not the namespace's: the namespace may be labelled `privileged` for its owner's pods, and a
//! peer's pods are still held to the level of the import policy.
//!
//! Source: <https://kubernetes.io/docs/concepts/security/pod-security-standards/> (controls as of v1.35).

mod baseline;
mod restricted;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, SecurityContext};
use tributary_api::peer::PodSecurityLevel;

/// What keeps a pod from passing a level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Where, as a path in the pod's spec.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl Violation {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Everything that keeps `pod` from passing `level`; empty if it passes.
pub fn judge(level: PodSecurityLevel, pod: &PodTemplateSpec) -> Vec<Violation> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let annotations = pod.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    let mut violations = Vec::new();
    if level >= PodSecurityLevel::Baseline {
        baseline::judge(spec, annotations, &mut violations);
    }
    if level >= PodSecurityLevel::Restricted {
        restricted::judge(spec, &mut violations);
    }
    violations
}

/// What the controls read of a container, whichever of the three lists it is in.
struct Checked<'a> {
    path: String,
    security: Option<&'a SecurityContext>,
    container: Option<&'a Container>,
}

fn containers(spec: &PodSpec) -> Vec<Checked<'_>> {
    let mut all = Vec::new();
    let lists = [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())];
    for (list, containers) in lists {
        for (index, container) in containers.into_iter().flatten().enumerate() {
            let path = format!("{list}[{index}]");
            all.push(Checked { path, security: container.security_context.as_ref(), container: Some(container) });
        }
    }
    for (index, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = format!("ephemeralContainers[{index}]");
        all.push(Checked { path, security: container.security_context.as_ref(), container: None });
    }
    all
}

#[cfg(test)]
mod tests;
