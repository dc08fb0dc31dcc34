//! Rules of single values: ranges, words that are known, texts that can be read.

use super::{Problem, reason};
use crate::api::minicluster::MiniClusterSpec;
use crate::flux::Certificate;
use crate::render::scripts::is_identifier;

pub(super) fn problems(spec: &MiniClusterSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |field: &str, reason, message: String| problems.push(Problem::new(field, reason, message));
    if spec.tasks() < 0 {
        refuse("spec.tasks", reason::INVALID_VALUE, format!("tasks is {}: write 0 or more", spec.tasks()));
    }
    if spec.backoff_limit() < 0 {
        let message = format!("backoffLimit is {}: write 0 for no retry, or more", spec.backoff_limit());
        refuse("spec.backoffLimit", reason::INVALID_VALUE, message);
    }
    if spec.deadline_seconds() < 0 {
        let message = format!("deadlineSeconds is {}: write 0 for no limit, or more", spec.deadline_seconds());
        refuse("spec.deadlineSeconds", reason::INVALID_VALUE, message);
    }
    let policy = spec.pod.restart_policy.as_deref();
    if let Some(policy) = policy.filter(|policy| !["Never", "OnFailure"].contains(policy)) {
        let message = format!("{policy:?} is no restart policy of a Job's pods: write Never or OnFailure");
        refuse("spec.pod.restartPolicy", reason::INVALID_VALUE, message);
    }
    let flux = &spec.flux;
    if !(0..=7).contains(&flux.log_level()) {
        let message = format!("logLevel is {}: 0 (emergencies) to 7 (debug) exist", flux.log_level());
        refuse("spec.flux.logLevel", reason::INVALID_VALUE, message);
    }
    let mount_path = flux.mount_path();
    if !mount_path.starts_with('/') || mount_path.contains([':', '\n']) || mount_path.trim_end_matches('/').is_empty() {
        let message = format!("{mount_path:?} is no absolute path of a directory for Flux");
        refuse("spec.flux.container.mountPath", reason::INVALID_VALUE, message);
    }
    for name in flux.environment.keys().filter(|name| !is_identifier(name)) {
        let message = format!("{name:?} is no name of a shell variable: use letters, digits and '_', no digit first");
        refuse("spec.flux.environment", reason::INVALID_VALUE, message);
    }
    if let Some(Err(error)) = flux.curve_cert.as_ref().map(|text| Certificate::parse(text.expose())) {
        let message = format!("{error}; make one with flux keygen, or leave it out and one is made");
        refuse("spec.flux.curveCert", reason::INVALID_CERTIFICATE, message);
    }
    if flux.curve_cert.is_some() && flux.curve_cert_secret.is_some() {
        let message = "curveCert and curveCertSecret are both written: keep curveCertSecret".to_owned();
        refuse("spec.flux.curveCert", reason::CONFLICTING_FIELDS, message);
    }
    problems
}
