//! The Flux Operator's Python SDK, from PyPI, against our definition.

use std::path::Path;
use std::process::Command;

use kube::api::ListParams;
use serde_json::{Value, json};
use tributary_sandbox::ADMIN;
use tributary_tests::python;

use crate::shared::{places, together};

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_of_upstream_makes_and_deletes_a_mini_cluster() {
    let Some(packages) = tokio::task::spawn_blocking(|| python::packages(&python::SDK)).await.unwrap() else { return };
    let federation = together().await;
    let [east, ..] = places(&federation, "sdk").await;
    let kubeconfig = federation.clusters()[0].kubeconfig(ADMIN).unwrap();
    let run = move || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/sdk.py");
        let mut python = Command::new("python3");
        python.arg(script).args(["sdk", "python"]).env("PYTHONPATH", packages).env("KUBECONFIG", kubeconfig);
        python.output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));

    let said: Value = text.lines().find_map(|line| serde_json::from_str(line).ok()).expect("one line is JSON");
    let (pods, broker) = (said["pods"].as_array().unwrap(), said["broker"].as_str().unwrap());
    assert_eq!(pods.len(), 3, "{text}");
    assert!(broker.starts_with("python-0"), "{broker}");
    for (path, expected) in [
        ("/size", json!(3)),
        ("/containers/0/environment/OMP_NUM_THREADS", json!("2")),
        ("/containers/0/secrets/TOKEN/key", json!("value")),
        ("/containers/0/volumes/data/configMapName", json!("data")),
        ("/containers/1/ports/0", json!(8080)),
        ("/flux/scheduler/queuePolicy", json!("easy")),
        ("/pod/nodeSelector", json!({"kubernetes.io/os": "linux"})),
    ] {
        assert_eq!(said["spec"].pointer(path), Some(&expected), "{path}");
    }
    let all = ListParams::default();
    assert!(east.mini_clusters().list(&all).await.unwrap().items.is_empty());
    assert!(east.pods().list(&all).await.unwrap().items.is_empty(), "the SDK waits until they are gone");
}
