//! Rules of single values: ranges, words that are known, texts that can be read.

use tributary_api::minicluster::{HOSTPATH, MiniClusterSpec, UpdatePolicy};
use tributary_flux::{Certificate, FluxVersion};

use super::{Problem, reason};
use crate::scripts::is_identifier;

/// Fluxion's (flux-sched, flux-config-sched-fluxion-qmanager(5)).
const QUEUE_POLICIES: [&str; 4] = ["fcfs", "easy", "hybrid", "conservative"];

pub(super) fn problems(spec: &MiniClusterSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let UpdatePolicy::Unknown(word) = spec.updates {
        problems.push(Problem::unknown_word("spec.updates", word, &["OnDelete", "Recreate"]));
    }
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
    if let Some(Err(error)) = flux.version.as_ref().map(|text| text.parse::<FluxVersion>()) {
        refuse("spec.flux.version", reason::INVALID_VALUE, error.to_string());
    }
    let policy = flux.scheduler.queue_policy();
    if !QUEUE_POLICIES.contains(&policy) {
        let message = format!("{policy:?} is no queue policy: write {} or simple", QUEUE_POLICIES.join(", "));
        refuse("spec.flux.scheduler.queuePolicy", reason::INVALID_VALUE, message);
    }
    if let Some(timeout) = flux.connect_timeout().filter(|timeout| !is_flux_duration(timeout)) {
        let message =
            format!("{timeout:?} is no duration of Flux: write it like 500ms, 5s or 1m, or an empty text for none");
        refuse("spec.flux.connectTimeout", reason::INVALID_VALUE, message);
    }
    if let Some(Err(error)) = flux.broker_config.as_ref().map(|text| text.parse::<toml::Table>()) {
        let reason_given = error.message().lines().next().unwrap_or_default().to_owned();
        let line = error
            .span()
            .zip(flux.broker_config.as_ref())
            .map_or(1, |(span, text)| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
        let message = format!("line {line} is no TOML ({reason_given}): no broker would start with it");
        refuse("spec.flux.brokerConfig", reason::INVALID_VALUE, message);
    }
    for (name, volume) in spec.volumes.iter().filter(|(_, volume)| !volume.is_made()) {
        if let Some(class) = volume.storage_class.as_deref().filter(|class| *class != HOSTPATH) {
            let message = format!(
                "the storage class {class:?} needs a capacity: write it, or make a claim, and name it in claimName"
            );
            refuse(&format!("spec.volumes.{name}.storageClass"), reason::INVALID_VOLUME, message);
        }
    }
    if let Some(seconds) = flux.drain_seconds.filter(|seconds| *seconds < 0) {
        let message = format!("drainSeconds is {seconds}: write 0 for no wait, or more");
        refuse("spec.flux.drainSeconds", reason::INVALID_VALUE, message);
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

/// A Flux Standard Duration (RFC 23): a number with an optional unit.
fn is_flux_duration(text: &str) -> bool {
    let number = ["ms", "s", "m", "h", "d"].iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text);
    let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    matches!(text, "inf" | "infinity") || (digits && number.parse::<f64>().is_ok())
}
