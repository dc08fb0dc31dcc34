//! What the user's command says reaches the Job and the MiniCluster's conditions, and gives the bursts back.

use kube::api::ListParams;
use serde_json::json;
use tributary::api::labels::condition;

use crate::ground::{ends, enter};

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_of_the_command_is_the_jobs() {
    let Some(ground) = enter().await else { return };
    let places = ground.namespace("e2e-exit").await;
    let [root, provider] = &places;
    // A launcher is run as it is: within a job of its own it would wait for its own node.
    let mut good = ground.batch(2, "flux run -N2 hostname");
    good["containers"][0]["launcher"] = json!(true);
    good["flux"]["bursting"] = json!({"clusters": [{"size": 1, "peer": ground.provider()}]});
    root.create("good", good).await;
    root.create("bad", ground.batch(2, "bash -c 'exit 3'")).await;

    ends(root, "good", 0).await;
    ends(root, "bad", 3).await;

    let message = root.condition("bad", condition::FINISHED, "True", "CommandFailed").await;
    assert!(message.contains("exit code 3"), "{message}");
    let leads = ListParams::default().labels("job-name=bad,batch.kubernetes.io/job-completion-index=0");
    assert_eq!(root.pods().list(&leads).await.unwrap().items.len(), 1, "a command that failed is not run again");

    root.condition("good", condition::FINISHED, "True", "Succeeded").await;
    let good = root.jobs().get("good").await.unwrap().status.unwrap();
    // Where Flux runs, followers complete as well, before the Job is declared done.
    let completed = good.completed_indexes.unwrap_or_default();
    assert!(["0", "0,1"].contains(&completed.as_str()), "{completed}");
    provider.empty("good-burst-0").await;
    ground.leave(&places).await;
}
