//! FluxSetup and FluxJobs: who starts, by the quota of a namespace.

use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary::api::flux_job::{FluxJob, FluxJobStatus, JobPhase, JobResult};
use tributary::api::flux_setup::FluxSetup;
use tributary::api::labels::{self, condition, reason};
use tributary::api::minicluster::MiniCluster;
use tributary::api::minicluster::Phase;
use tributary_sandbox::annotations;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::scenario::{Place, interactive};

use crate::shared::{alone, places, together};

pub(crate) fn jobs(place: &Place) -> Api<FluxJob> {
    Api::namespaced(place.client.clone(), &place.namespace)
}

pub(crate) fn setups(place: &Place) -> Api<FluxSetup> {
    Api::namespaced(place.client.clone(), &place.namespace)
}

pub(crate) async fn apply<K>(api: Api<K>, kind: &str, name: &str, spec: Value)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let object =
        json!({"apiVersion": "tributary.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let params = PatchParams::apply("tests").force().validation_strict();
    api.patch(name, &params, &Patch::Apply(&object)).await.expect("it is accepted");
}

pub(crate) async fn submit(place: &Place, name: &str, spec: Value) {
    let mut whole = json!({"image": "rockylinux:9", "command": "hostname"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    apply(jobs(place), "FluxJob", name, whole).await;
}

async fn quota(place: &Place, quota: Value) {
    apply(setups(place), "FluxSetup", "default", json!({"quota": quota})).await;
}

pub(crate) async fn until(place: &Place, name: &str, phase: JobPhase) -> FluxJobStatus {
    eventually(format!("FluxJob {name} is {phase:?}"), async || {
        let status = jobs(place).get(name).await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if status.phase == phase { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

/// Until it is in that phase and says so: what it said at first may be overtaken.
pub(crate) async fn told(place: &Place, name: &str, phase: JobPhase, text: &str) -> FluxJobStatus {
    eventually(format!("FluxJob {name} is {phase:?} and says: {text}"), async || {
        let status = jobs(place).get(name).await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if status.phase == phase && status.message.contains(text) { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

pub(crate) async fn taken(place: &Place, running: u32, waiting: u32) {
    eventually(format!("{running} run and {waiting} wait"), async || {
        let setup = setups(place).get("default").await.map_err(|error| error.to_string())?;
        let status = setup.status.unwrap_or_default();
        if (status.running, status.waiting) == (running, waiting) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

/// A FluxJob waits for a FluxSetup, gets its MiniCluster, ends when that is taken away, and goes by its time to live.
pub(crate) async fn a_job_ends_and_goes(place: &Place) {
    submit(place, "brief", json!({"ttlAfterFinished": "0s"})).await;
    told(place, "brief", JobPhase::Waiting, "no FluxSetup yet").await;
    quota(place, json!({})).await;
    until(place, "brief", JobPhase::Running).await;
    place.delete("brief").await;
    gone(&jobs(place), "brief").await;
    setups(place).delete("default", &Default::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_mini_clusters_start_as_the_quota_has_room_and_keep_it_through_a_change_of_leaders() {
    let federation = alone().await;
    let [east, ..] = places(&federation, "queue").await;
    quota(&east, json!({"brokers": 3})).await;
    submit(&east, "first", json!({"size": 2, "cleanup": "MiniCluster"})).await;
    until(&east, "first", JobPhase::Running).await;
    // One that was made directly stands in the same line.
    let mut second = interactive(2);
    second["deadlineSeconds"] = json!(7200);
    east.create("second", second).await;
    let why = east.condition("second", condition::READY, "False", reason::QUEUED).await;
    assert!(why.contains("it is next in line") || why.contains("it waits for its turn"), "{why}");
    submit(&east, "third", json!({"size": 4})).await;
    submit(&east, "small", json!({"size": 1, "timeLimit": "24h"})).await;
    until(&east, "small", JobPhase::Running).await;
    let never = "it can never start here: 4 brokers are needed, 3 is the whole quota";
    told(&east, "third", JobPhase::Waiting, never).await;
    // So does one that says it belongs to a FluxJob which was not let through.
    let third = jobs(&east).get("third").await.unwrap();
    let mut forged = MiniCluster::new("forged", serde_json::from_value(interactive(2)).unwrap());
    forged.metadata.owner_references = third.controller_owner_ref(&()).map(|owner| vec![owner]);
    east.mini_clusters().create(&Default::default(), &forged).await.unwrap();
    east.condition("forged", condition::READY, "False", reason::QUEUED).await;
    taken(&east, 2, 3).await;
    east.delete("forged").await;
    taken(&east, 2, 2).await;

    // Another agent does not know who was let through; it asks the objects.
    federation.agent(0).kill().unwrap();
    federation.agent(0).start(&federation.group).unwrap();
    federation.connected().await;
    taken(&east, 2, 2).await;
    assert!(east.jobs().get_opt("second").await.unwrap().is_none(), "nobody jumps the queue");

    // Room is made by whoever ends, and what it leaves is tidied up.
    east.annotate_pod("first", 0, annotations::EXIT, "0").await;
    let status = until(&east, "first", JobPhase::Finished).await;
    assert_eq!((status.result, status.exit_code), (Some(JobResult::Succeeded), Some(0)));
    east.running("second").await;
    gone(&east.mini_clusters(), "first").await;
    its_time_counts_through_a_restart(&east, "second", 7200).await;
    // More room is used at once; less ends nobody.
    quota(&east, json!({"brokers": 8})).await;
    until(&east, "third", JobPhase::Running).await;
    // What the API server does not take holds no room.
    submit(&east, "refused", json!({"miniCluster": {"ttlSecondsAfterFinished": -1}})).await;
    let status = until(&east, "refused", JobPhase::Finished).await;
    assert_eq!(status.result, Some(JobResult::Failed));
    assert!(status.message.starts_with("its MiniCluster cannot be made: "), "{}", status.message);
    taken(&east, 3, 0).await;
    quota(&east, json!({"brokers": 1})).await;
    submit(&east, "late", json!({})).await;
    until(&east, "late", JobPhase::Waiting).await;
    taken(&east, 3, 1).await;
    // Nodes that have no room are no room.
    apply(setups(&east), "FluxSetup", "default", json!({"checkNodes": "Now"})).await;
    until(&east, "late", JobPhase::Running).await;
    submit(&east, "huge", json!({"resources": {"cpu": 50_000}})).await;
    told(&east, "huge", JobPhase::Waiting, "can hold a broker, which takes 50000 cores").await;
    // An autoscaler would add a node for it, and sees the pod of whoever is let through.
    let group = |cpu: u32| {
        let group = json!({"name": "huge", "cpu": cpu, "memory": "1Ti"});
        json!({"checkNodes": "Autoscaled", "nodeGroups": [group]})
    };
    apply(setups(&east), "FluxSetup", "default", group(40_000)).await;
    let short = "nodes and node groups that it may run on can hold a broker, which takes 50000 cores";
    told(&east, "huge", JobPhase::Waiting, short).await;
    apply(setups(&east), "FluxSetup", "default", group(60_000)).await;
    eventually("its pod waits for a node", async || {
        let of_job = ListParams::default().labels("job-name=huge");
        let pods = east.pods().list(&of_job).await.map_err(|error| error.to_string())?.items;
        let phases: Vec<_> = pods.into_iter().filter_map(|pod| pod.status?.phase).collect();
        let job = jobs(&east).get("huge").await.map_err(|error| error.to_string())?;
        if phases == ["Pending"] { Ok(()) } else { Err(format!("{phases:?}, {:?}", job.status)) }
    })
    .await;
    jobs(&east).delete("huge", &Default::default()).await.unwrap();
    for name in ["small", "third", "late", "refused"] {
        jobs(&east).delete(name, &Default::default()).await.unwrap();
    }
    setups(&east).delete("default", &Default::default()).await.unwrap();
    east.delete("second").await;
}

/// What it is let in with, and when, stays from one Job to the next.
async fn its_time_counts_through_a_restart(place: &Place, name: &str, deadline: i64) {
    let before = eventually("its time began", async || {
        let status = place.status(name).await?;
        if status.began.is_some() && status.holds.is_some() { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await;
    assert_eq!(before.admitted_seconds, Some(deadline));
    let again = Patch::Merge(json!({"metadata": {"annotations": {labels::RESTART: "1"}}}));
    place.mini_clusters().patch(name, &PatchParams::default(), &again).await.unwrap();
    eventually("it runs once more", async || {
        let now = place.status(name).await?;
        let again = now.phase == Some(Phase::Running) && now.incarnation != before.incarnation;
        if again && (&now.began, &now.holds) == (&before.began, &before.holds) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    let left = place.jobs().get(name).await.unwrap().spec.unwrap().active_deadline_seconds.unwrap();
    assert!((1..=deadline).contains(&left), "{left} of {deadline} s");
}

/// The nodes hold one of them: the other waits, whatever the quota has, and runs when the first has ended.
#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_that_each_fill_the_nodes_run_one_after_the_other() {
    let federation = alone().await;
    let [east, ..] = places(&federation, "full-nodes").await;
    apply(setups(&east), "FluxSetup", "default", json!({"checkNodes": "Now"})).await;
    // Four nodes of 16 cores: no two of these brokers go together.
    let fills = || json!({"size": 4, "resources": {"cpu": 10}, "cleanup": "MiniCluster"});
    submit(&east, "first", fills()).await;
    until(&east, "first", JobPhase::Running).await;
    submit(&east, "second", fills()).await;
    let full = "it is next in line: the nodes have no room for 4 of its 4 brokers";
    let waits = told(&east, "second", JobPhase::Waiting, full).await;
    assert_eq!(waits.mini_cluster, None);
    taken(&east, 1, 1).await;
    eventually("the FluxSetup says what the next one waits for", async || {
        let setup = setups(&east).get("default").await.map_err(|error| error.to_string())?;
        let next = setup.status.unwrap_or_default().next;
        if next == "FluxJob second: the nodes have no room for 4 of its 4 brokers" { Ok(()) } else { Err(next) }
    })
    .await;
    // Nor does anything pass it.
    submit(&east, "small", json!({"timeLimit": "1s"})).await;
    until(&east, "small", JobPhase::Waiting).await;
    taken(&east, 1, 2).await;

    east.annotate_pod("first", 0, annotations::EXIT, "0").await;
    let first = until(&east, "first", JobPhase::Finished).await;
    assert_eq!(first.result, Some(JobResult::Succeeded));
    let second = until(&east, "second", JobPhase::Running).await;
    assert!(second.admitted >= first.finished, "{second:?}, {first:?}");
    for name in ["first", "second", "small"] {
        jobs(&east).delete(name, &Default::default()).await.unwrap();
    }
    setups(&east).delete("default", &Default::default()).await.unwrap();
}

/// Kueue admits Jobs by their `suspend`: here the test does. The agent leaves that to whoever does it.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_suspends_a_labelled_job_decides_when_it_runs() {
    const LABEL: &str = "kueue.x-k8s.io/queue-name";
    let federation = together().await;
    let [east, ..] = places(&federation, "admitted").await;
    let mut spec = interactive(2);
    spec["jobLabels"] = json!({LABEL: "team"});
    east.create("lake", spec).await;
    let job = eventually("its Job is there", async || {
        east.jobs().get_opt("lake").await.map_err(|error| error.to_string())?.ok_or_else(|| "there is none".to_owned())
    })
    .await;
    assert_eq!(job.labels().get(LABEL).map(String::as_str), Some("team"));
    let suspend = async |suspend: bool| {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        east.jobs().patch("lake", &PatchParams::default(), &patch).await.expect("it is accepted");
    };
    suspend(true).await;
    eventually("it waits to be admitted", async || {
        let seen = east.status("lake").await?;
        if seen.phase == Some(Phase::Suspended) { Ok(()) } else { Err(format!("{:?}", seen.phase)) }
    })
    .await;
    // The agent looks at it anew, and writes what is its own.
    east.change("lake", json!({"jobLabels": {"again": "1"}})).await;
    let seen = eventually("the Job has the other label", async || {
        let job = east.jobs().get("lake").await.map_err(|error| error.to_string())?;
        if job.labels().contains_key("again") { Ok(job) } else { Err(format!("{:?}", job.labels())) }
    })
    .await;
    assert_eq!((seen.spec.and_then(|spec| spec.suspend), &seen.metadata.uid), (Some(true), &job.metadata.uid));
    suspend(false).await;
    east.running("lake").await;
    let seen = east.jobs().get("lake").await.unwrap();
    assert_eq!((seen.spec.and_then(|spec| spec.suspend), &seen.metadata.uid), (Some(false), &job.metadata.uid));
    east.delete("lake").await;
}
