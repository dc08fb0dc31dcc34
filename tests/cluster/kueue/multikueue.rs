//! MultiKueue dispatches a MiniCluster: from the cluster in which it was written to one that runs it.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tributary::api::labels::{KUEUE_QUEUE, condition};
use tributary::api::minicluster::Phase;
use tributary::api::workload::MULTIKUEUE;
use tributary_sandbox::{ADMIN, Group, annotations};
use tributary_tests::agentctl::document;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::interactive;

use super::real::{self, Kueue};
use super::{both, two_clusters};

/// A queue on the manager that hands its workloads on to west.
async fn hand_on(manager: &Kueue, manager_secrets: Api<Secret>, worker: &str) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "west"}, "stringData": {"kubeconfig": worker}});
    manager_secrets.patch("west", &PatchParams::apply("tests"), &Patch::Apply(&secret)).await.unwrap();
    let source = json!({"clusterSource": {"kubeConfig": {"location": "west", "locationType": "Secret"}}});
    manager.apply("MultiKueueCluster", None, "west", source).await;
    manager.apply("MultiKueueConfig", None, "workers", json!({"clusters": ["west"]})).await;
    let parameters = json!({"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "workers"});
    manager
        .apply("AdmissionCheck", None, "workers", json!({"controllerName": MULTIKUEUE, "parameters": parameters}))
        .await;
    let strategy = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "workers"}]}});
    manager.change("ClusterQueue", "team", strategy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn multikueue_runs_a_mini_cluster_in_another_cluster() {
    let Some(built) = real::find().await.unwrap() else { return };
    let federation = two_clusters().await;
    let group = Group::start(std::time::Duration::from_secs(2), None).unwrap();
    let [east, west] = both(&federation, "science").await;
    let clusters = federation.clusters();
    let frameworks =
        json!({"multiKueue": {"externalFrameworks": [{"name": "MiniCluster.v1alpha2.flux-framework.org"}]}});
    let directory = federation.directory();
    let manager = Kueue::start(&built, &clusters[0], &group, directory, frameworks).await.unwrap();
    let worker = Kueue::start(&built, &clusters[1], &group, directory, json!({})).await.unwrap();
    for kueue in [&manager, &worker] {
        kueue.queue("science", "team", 16).await;
    }
    let secrets = Api::namespaced(east.client.clone(), real::SYSTEM);
    hand_on(&manager, secrets, &std::fs::read_to_string(clusters[1].kubeconfig(ADMIN).unwrap()).unwrap()).await;

    let mut spec = interactive(2);
    spec["jobLabels"] = json!({KUEUE_QUEUE: "team"});
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": 1, "memory": "64Mi"}});
    spec["managedBy"] = MULTIKUEUE.into();
    east.create("lake", spec).await;
    let workloads: Api<DynamicObject> = real::workloads(&east.client, "science");

    let logs = || format!("manager:\n{}\nworker:\n{}", manager.tail(), worker.tail());
    let runs = eventually("west runs it, and east says so", async || {
        let status = east.status("lake").await.map_err(|error| format!("{error}\n{}", logs()))?;
        if status.phase == Some(Phase::Running) { Ok(status) } else { Err(format!("{:?}\n{}", status.phase, logs())) }
    })
    .await;
    let there = west.mini_clusters().get("lake").await.unwrap();
    assert_eq!(there.spec.managed_by, None, "the agent there has it");
    assert_eq!(runs.incarnation, west.jobs().get("lake").await.unwrap().uid());
    assert_eq!(east.jobs().get_opt("lake").await.unwrap(), None, "nothing is made of it here");
    let why = document(&clusters[0].kubeconfig(ADMIN).unwrap(), &["why", "-n", "science", "mc/lake"]).await.unwrap();
    assert_eq!(why["ready"], true, "{why:#}");

    // Its queue in east is emptied: it ends in west, and begins there anew when the queue is open again.
    let gone = there.uid();
    let there = async |expected: bool| {
        eventually(format!("west has it: {expected}"), async || {
            let found = west.mini_clusters().get_opt("lake").await.map_err(|error| error.to_string())?;
            let runs = found.filter(|found| found.uid() != gone && found.metadata.deletion_timestamp.is_none());
            let left = west.mini_clusters().get_opt("lake").await.map_err(|error| error.to_string())?;
            let so = if expected { runs.is_some() } else { left.is_none() };
            if so { Ok(()) } else { Err(logs()) }
        })
        .await;
    };
    manager.change("ClusterQueue", "team", json!({"stopPolicy": "HoldAndDrain"})).await;
    there(false).await;
    manager.change("ClusterQueue", "team", json!({"stopPolicy": "None"})).await;
    there(true).await;
    west.running("lake").await;

    // Its lead ends well.
    west.annotate_pod("lake", 0, annotations::EXIT, "0").await;
    eventually("east says that it has ended", async || {
        let status = east.status("lake").await?;
        let finished = status.conditions.iter().any(|one| one.type_ == condition::FINISHED && one.status == "True");
        if status.phase == Some(Phase::Succeeded) && finished {
            Ok(())
        } else {
            Err(format!("{:?}\n{}", status.phase, logs()))
        }
    })
    .await;
    eventually("its Workload has finished, and nothing is left in the worker", async || {
        let workload = workloads.get("minicluster-lake").await.map_err(|error| error.to_string())?;
        let conditions = workload.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let finished = conditions.iter().any(|one| one["type"] == "Finished" && one["status"] == "True");
        let left = west.mini_clusters().get_opt("lake").await.map_err(|error| error.to_string())?;
        if finished && left.is_none() { Ok(()) } else { Err(format!("{conditions:?}, {}\n{}", left.is_some(), logs())) }
    })
    .await;
    assert_eq!(east.status("lake").await.unwrap().phase, Some(Phase::Succeeded), "the result stays");
    east.mini_clusters().delete("lake", &DeleteParams::default()).await.unwrap();
    east.empty("lake").await;
}
