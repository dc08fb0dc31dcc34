//! Tests on clusters that exist, with real pods: kind, a lab, or anyone's. They are named by `TRIBUTARY_E2E_CONTEXTS`
//! (contexts of `$KUBECONFIG`, the root's first); without it these tests are skipped, and say so.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The contexts, or a loud skip.
fn contexts() -> Option<String> {
    let contexts = std::env::var("TRIBUTARY_E2E_CONTEXTS").ok().filter(|contexts| !contexts.is_empty());
    if contexts.is_none() {
        // Past libtest's capture: a skip nobody sees is a test nobody misses.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: e2e needs two or more clusters; name their contexts in TRIBUTARY_E2E_CONTEXTS=a,b"
        );
    }
    contexts
}

#[test]
fn the_demo_is_wired_on_real_clusters() {
    let Some(contexts) = contexts() else { return };
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "tributary-agentctl", "--bin", "agentctl", "--", "demo"])
        .args(["--contexts", &contexts, "--exit", "--output", "json"])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["wired"], true, "{report:#}");
    assert_eq!(report["pods"], "real");
    assert!(output.status.success());
}
