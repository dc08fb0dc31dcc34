//! A FluxJob that does not fit at home runs as a whole on the other cluster, with brokers of its own, and its end is known
//! at home.

use kube::api::{Api, DeleteParams, ListParams, LogParams};
use serde_json::{Value, json};
use tributary::api::flux_job::{FluxJob, FluxJobStatus, JobPhase, JobResult};
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::Place;

use crate::ground::{ends, enter, real};

async fn apply(place: &Place, kind: &str, name: &str, spec: Value) {
    let object = json!({"apiVersion": "tributary.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": place.namespace}, "spec": spec});
    tributary_tests::chart::apply(&place.client, &object).await.unwrap();
}

/// Waits until this is so of a FluxJob's status.
async fn until(what: &str, place: &Place, name: &str, so: fn(&FluxJobStatus) -> bool) -> FluxJobStatus {
    let jobs: Api<FluxJob> = Api::namespaced(place.client.clone(), &place.namespace);
    eventually(format!("FluxJob {name} {what}"), async || {
        let status = jobs.get(name).await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if so(&status) { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flux_job_runs_whole_on_the_other_cluster() {
    let Some(ground) = enter().await else { return };
    let places = ground.namespace("e2e-sent").await;
    let [home, away] = &places;
    let overflow = json!({"policy": "Whole", "peers": [ground.provider()]});
    apply(home, "FluxSetup", "default", json!({"quota": {"brokers": 1}, "overflow": overflow})).await;
    let batch = ground.batch(2, "bash -c 'echo ran on $(hostname); exit 4'");
    let (container, flux) = (&batch["containers"][0], batch.get("flux").cloned().unwrap_or(json!({})));
    let job = json!({"image": container["image"], "command": container["command"], "size": 2, "allowBurst": true,
        "resources": {"cpu": "50m"}, "miniCluster": {"flux": flux}});
    apply(home, "FluxJob", "far", job).await;

    let sent =
        until("is sent", home, "far", |status| status.sent.as_ref().is_some_and(|sent| !sent.mini_cluster.is_empty()))
            .await;
    ends(away, &sent.sent.expect("it is sent").mini_cluster, 4).await;
    let status = until("has finished", home, "far", |status| status.phase == JobPhase::Finished).await;
    assert_eq!((status.result, status.exit_code), (Some(JobResult::Failed), Some(4)), "{}", status.message);
    let sent = status.sent.expect("it is sent");
    assert_eq!((status.peer.as_deref(), sent.namespace.as_str()), (Some(ground.provider()), "e2e-sent"));
    assert!(home.jobs().get_opt("far").await.unwrap().is_none(), "nothing of it is here");

    assert!(status.logs.contains(&sent.mini_cluster), "{}", status.logs);
    if real("what the command wrote") {
        its_log_is_there(away, &sent.mini_cluster).await;
    }

    // With the FluxJob all of it goes.
    let jobs: Api<FluxJob> = Api::namespaced(home.client.clone(), &home.namespace);
    jobs.delete("far", &DeleteParams::default()).await.unwrap();
    away.empty(&sent.mini_cluster).await;
    ground.leave(&places).await;
}

/// What it wrote is in the lead's pod there, as `status.logs` says.
async fn its_log_is_there(away: &Place, name: &str) {
    let lead = format!("job-name={name},batch.kubernetes.io/job-completion-index=0");
    let lead = away.pods().list(&ListParams::default().labels(&lead)).await.unwrap().items.remove(0);
    let log = away.pods().logs(lead.metadata.name.as_deref().unwrap(), &LogParams::default()).await.unwrap();
    assert!(log.contains(&format!("ran on {name}-")), "{log}");
}
