//! Upstream's Python SDK follows MiniClusters to their end.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tributary::api::labels::condition;
use tributary_tests::python;

use crate::ground::{enter, real};

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_sees_all_pods_of_a_run_and_its_output() {
    let Some(ground) = enter().await else { return };
    if !real("what the Python SDK sees of pods that end") {
        return;
    }
    let Some(packages) = tokio::task::spawn_blocking(|| python::packages(&python::SDK)).await.unwrap() else { return };
    let places = ground.namespace("e2e-sdk").await;
    let [root, _] = &places;
    let all = |size: i32, command: &str| {
        let mut spec = ground.batch(size, command);
        spec["tasks"] = json!(size);
        spec
    };
    let specs = json!({
        "short": all(2, "echo over at once"),
        "many": all(8, "echo one of eight"),
        // The SDK takes a pod that failed for one that is not there yet: it has to see it running.
        "failing": all(2, "bash -c 'sleep 20; echo no good; exit 3'"),
    });
    let kubeconfig = ground.kubeconfig();
    let run = move || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/sdk.py");
        let mut python = Command::new("timeout");
        python.args(["300", "python3"]).arg(script).args(["e2e-sdk", &specs.to_string()]);
        python.env("PYTHONPATH", packages).env("KUBECONFIG", kubeconfig).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{error}");

    let said: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for (name, pods, line, times) in
        [("short", 2, "over at once", 2), ("many", 8, "one of eight", 8), ("failing", 2, "no good", 2)]
    {
        let said = said.iter().find(|said| said["name"] == name).unwrap_or_else(|| panic!("{name} is not in {text}"));
        assert_eq!(said["pods"].as_array().unwrap().len(), pods, "{said}");
        let lines = said["output"].as_array().unwrap();
        let found = lines.iter().filter(|one| one.as_str().is_some_and(|one| one.trim() == line)).count();
        assert_eq!(found, times, "{said}");
    }
    root.condition("failing", condition::FINISHED, "True", "CommandFailed").await;
    ground.leave(&places).await;
}
