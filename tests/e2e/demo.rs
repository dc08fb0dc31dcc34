//! `agentctl demo` on clusters that exist.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::ground::{enter, settings};

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_wired_on_real_clusters() {
    let Some(settings) = settings() else { return };
    // It refuses clusters in which an agent runs already.
    let Some(ground) = enter().await else { return };
    ground.stop_agents().await;
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "tributary-agentctl", "--bin", "agentctl", "--", "demo"]).args([
        "--contexts",
        &settings.contexts.join(","),
        "--exit",
        "--output",
        "json",
        "--image",
        &settings.image,
    ]);
    if let Some(view) = &settings.view_image {
        command.args(["--view-image", view]);
    }
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    ground.start_agents().await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["wired"], true, "{report:#}");
    assert_eq!(report["pods"], "real");
    assert!(output.status.success());
}
