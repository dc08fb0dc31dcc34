//! `agentctl demo` on clusters that exist.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::ground::{clusters, enter, real};

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_wired_on_real_clusters() {
    let Some((clusters, images)) = clusters() else { return };
    // On simulated nodes it runs as the README says it, in the tests of agentctl.
    if !real("the demo on clusters that exist") {
        return;
    }
    let contexts: Vec<&str> = clusters.access().iter().map(|cluster| cluster.context.as_str()).collect();
    // It refuses clusters in which an agent runs already.
    let Some(ground) = enter().await else { return };
    ground.stop_agents().await;
    ground.part().await.unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "tributary-agentctl", "--bin", "agentctl", "--", "demo"]).args([
        "--contexts",
        &contexts.join(","),
        "--exit",
        "--output",
        "json",
        "--image",
        &images.brokers,
    ]);
    if let Some(view) = &images.view {
        command.args(["--view-image", view]);
    }
    // Each cluster may have a file of its own.
    let files = clusters.access().iter().map(|cluster| &cluster.kubeconfig);
    command.env("KUBECONFIG", std::env::join_paths(files).unwrap());
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    ground.introduce().await.unwrap();
    ground.start_agents().await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["wired"], true, "{report:#}");
    assert_eq!(report["pods"], "real");
    assert!(output.status.success());
}
