//! Queues of Kueue, on both sides of a burst: hosted Jobs with the queue of the import policy, and MiniClusters that MultiKueue
//! dispatches. Where no real Kueue is, the test suspends and resumes Jobs as Kueue does.

mod multikueue;
mod real;

use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::KUEUE_QUEUE;
use tributary::api::minicluster::Phase;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::{ADMIN, ClusterOptions, Group, NodeGroup, Options, Sandbox};
use tributary_tests::agentctl::document;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{Federation, SYSTEM};
use tributary_tests::scenario::{Place, bursting};

use self::real::Kueue;
use crate::policy::import;
use crate::shared::{places, quiet};

/// A Job is there, with the queue that it has.
async fn queue_of(place: &Place, job: &str) -> Option<String> {
    let job = eventually(format!("Job {job} is there"), async || {
        place.jobs().get_opt(job).await.map_err(|error| error.to_string())?.ok_or_else(|| "there is none".to_owned())
    })
    .await;
    job.labels().get(KUEUE_QUEUE).cloned()
}

/// What Kueue does to a Job.
async fn suspend(place: &Place, job: &str, suspend: bool) {
    let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
    place.jobs().patch(job, &PatchParams::default(), &patch).await.expect("the Job is there");
}

/// A root of one broker with a burst of three, each with so many cores.
fn root(peers: &[&str], cores: u32) -> Value {
    let mut spec = bursting(1, json!([{"size": 3, "peers": peers}]));
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": cores, "memory": "64Mi"}});
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hosted_job_waits_for_the_queue_of_its_policy() {
    let federation = quiet().await;
    let [east, west, north] = places(&federation, "queued").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    import(&peers, json!({"queueName": "guests"})).await;

    // The root has a queue of its own, here and nowhere else.
    let mut spec = root(&["west"], 1);
    spec["jobLabels"] = json!({KUEUE_QUEUE: "team", "kueue.x-k8s.io/priority-class": "high"});
    east.create("lake", spec).await;
    let slot = "lake-burst-0";
    assert_eq!(queue_of(&west, slot).await.as_deref(), Some("guests"));
    assert_eq!(queue_of(&east, "lake").await.as_deref(), Some("team"));
    let job = west.jobs().get(slot).await.unwrap();
    assert!(!job.labels().contains_key("kueue.x-k8s.io/priority-class"), "{:?}", job.labels());
    suspend(&west, slot, true).await;
    let waits = east.burst("lake", slot, BurstPhase::Queued).await.status.unwrap();
    let told = "west: its Job waits in queue guests of Kueue: 3 brokers start when the ClusterQueue there has room";
    assert_eq!(waits.message, told);
    let status = west.hosted().get(slot).await.unwrap().status.unwrap();
    assert!(status.queue.unwrap().waits_since.is_some());
    let why = async |index: usize, name: &str| {
        let kubeconfig = federation.clusters()[index].kubeconfig(ADMIN).unwrap();
        document(&kubeconfig, &["why", "-n", "queued", name]).await.unwrap()
    };
    let there = why(1, "hostedburst/lake-burst-0").await;
    assert_eq!(there["unmet"]["reason"], "JobQueued", "{there:#}");
    let said = there["unmet"]["cause"].as_str().unwrap();
    assert_eq!(said, "its Job waits in queue guests of Kueue, which has made no Workload of it");
    eventually("the root is ready, but for its burst", async || {
        let here = why(0, "lake").await;
        if here["unmet"]["reason"] == "Queued" { Ok(()) } else { Err(format!("{here:#}")) }
    })
    .await;

    suspend(&west, slot, false).await;
    east.burst("lake", slot, BurstPhase::Ready).await;
    // Something else takes its place, and gives it back.
    suspend(&west, slot, true).await;
    let evicted = east.burst("lake", slot, BurstPhase::Queued).await.status.unwrap();
    assert_eq!((evicted.ready_brokers, evicted.peer.as_deref()), (0, Some("west")));
    suspend(&west, slot, false).await;
    east.burst("lake", slot, BurstPhase::Ready).await;
    east.delete("lake").await;
    west.empty(slot).await;

    // Nobody lets it start in time; north asks no queue.
    import(&peers, json!({"queueName": "guests", "queueWait": "6s"})).await;
    east.create("late", root(&["west", "north"], 1)).await;
    queue_of(&west, "late-burst-0").await;
    suspend(&west, "late-burst-0", true).await;
    let moved = east.burst("late", "late-burst-0", BurstPhase::Ready).await.status.unwrap();
    assert_eq!((moved.peer.as_deref(), moved.refusals[0].reason.as_str()), (Some("north"), "QueueTimedOut"));
    west.empty("late-burst-0").await;
    assert_eq!(queue_of(&north, "late-burst-0").await, None);
    east.delete("late").await;
    north.empty("late-burst-0").await;
    import(&peers, json!({"queueName": null, "queueWait": null})).await;
}

/// Two clusters with an agent each, for tests that install Kueue.
async fn two_clusters() -> Federation {
    let cluster = |name: &str| ClusterOptions {
        nodes: vec![NodeGroup { count: 3, cpu: 16, ..NodeGroup::default() }],
        ..ClusterOptions::named(name)
    };
    let options = Options { clusters: vec![cluster("east"), cluster("west")], ..Options::default() };
    let sandbox = Sandbox::start(options).await.unwrap();
    Federation::start(sandbox, "").await.unwrap()
}

/// The pods there, by their UIDs.
async fn pods(place: &Place) -> Vec<String> {
    place.pods().list(&Default::default()).await.unwrap().items.iter().filter_map(ResourceExt::uid).collect()
}

/// A namespace on both.
async fn both(federation: &Federation, namespace: &str) -> [Place; 2] {
    federation.namespace(namespace).await.unwrap();
    let place = |client| Place { client, namespace: namespace.to_owned() };
    [place(federation.client(0).await), place(federation.client(1).await)]
}

/// The real Kueue admits what a peer placed here, takes its place away, and lets go of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_real_kueue_admits_and_evicts_hosted_bursts() {
    let Some(built) = real::find().await.unwrap() else { return };
    let federation = two_clusters().await;
    let group = Group::start(std::time::Duration::from_secs(2), None).unwrap();
    let [east, west] = both(&federation, "guests").await;
    let directory = federation.directory();
    let kueue = Kueue::start(&built, &federation.clusters()[1], &group, directory, json!({})).await.unwrap();
    kueue.queue("guests", "guests", 4).await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    import(&peers, json!({"queueName": "guests"})).await;

    // 3 brokers of 2 cores are more than 4 cores: it never runs, not for a moment.
    let mut spec = root(&["west"], 2);
    spec["flux"]["bursting"]["clusters"][0]["maxSize"] = 4.into();
    east.create("lake", spec).await;
    let slot = "lake-burst-0";
    east.burst("lake", slot, BurstPhase::Queued).await;
    assert_eq!(west.jobs().get(slot).await.unwrap().spec.unwrap().suspend, Some(true));
    let kubeconfig = federation.clusters()[1].kubeconfig(ADMIN).unwrap();
    let why = eventually("Kueue has said why", async || {
        let why = document(&kubeconfig, &["why", "-n", "guests", "hostedburst/lake-burst-0"]).await;
        let why = why.map_err(|error| error.to_string())?;
        let cause = why["unmet"]["cause"].as_str().unwrap_or_default().to_owned();
        if cause.contains("waits: ") { Ok(cause) } else { Err(format!("{cause}\n{}", kueue.tail())) }
    })
    .await;
    assert!(why.contains("insufficient") && why.contains("cpu"), "{why}");

    kueue.queue("guests", "guests", 8).await;
    east.burst("lake", slot, BurstPhase::Ready).await;
    // Its ClusterQueue is drained.
    let drained = |policy: &str| json!({"stopPolicy": policy});
    kueue.change("ClusterQueue", "guests", drained("HoldAndDrain")).await;
    let evicted = east.burst("lake", slot, BurstPhase::Queued).await.status.unwrap();
    assert_eq!(evicted.ready_brokers, 0);
    eventually("its pods are gone", async || {
        let left = west.pods().list(&Default::default()).await.map_err(|error| error.to_string())?.items;
        if left.is_empty() { Ok(()) } else { Err(format!("{} are there", left.len())) }
    })
    .await;
    kueue.change("ClusterQueue", "guests", drained("None")).await;
    east.burst("lake", slot, BurstPhase::Ready).await;

    // A size that changes makes another workload of it, for Kueue: it starts anew, with its new size.
    let uid = west.jobs().get(slot).await.unwrap().metadata.uid;
    let before = pods(&west).await;
    east.change("lake", json!({"flux": {"bursting": {"clusters": [{"size": 4, "maxSize": 4, "peers": ["west"]}]}}}))
        .await;
    eventually("it has grown", async || {
        let job = west.jobs().get(slot).await.map_err(|error| error.to_string())?;
        let hosted = west.hosted().get(slot).await.map_err(|error| error.to_string())?;
        let ready = hosted.status.unwrap_or_default().ready_brokers;
        if (job.spec.unwrap_or_default().parallelism, ready) == (Some(4), 4) {
            return Ok(());
        }
        Err(format!("{ready} of 4 are ready\n{}", kueue.tail()))
    })
    .await;
    assert_eq!(west.jobs().get(slot).await.unwrap().metadata.uid, uid);
    let stayed: Vec<_> = pods(&west).await.into_iter().filter(|pod| before.contains(pod)).collect();
    assert_eq!((before.len(), stayed.len()), (3, 0), "its brokers end when its size changes");

    east.delete("lake").await;
    west.empty(slot).await;
    eventually("nothing of it is left in Kueue", async || {
        let left = real::workloads(&west.client, "guests").list(&Default::default()).await;
        let left = left.map_err(|error| error.to_string())?.items;
        if left.is_empty() { Ok(()) } else { Err(format!("{} Workloads\n{}", left.len(), kueue.tail())) }
    })
    .await;

    // A MiniCluster of this cluster's users, by its label.
    let mut own = root(&[], 1);
    own["flux"] = json!({});
    own["jobLabels"] = json!({KUEUE_QUEUE: "guests"});
    west.create("own", own.clone()).await;
    west.running("own").await;
    own["containers"][0]["resources"]["requests"]["cpu"] = 9.into();
    west.create("large", own).await;
    eventually("it waits", async || {
        let status = west.status("large").await?;
        if status.phase == Some(Phase::Suspended) { Ok(()) } else { Err(format!("{:?}", status.phase)) }
    })
    .await;
    for name in ["own", "large"] {
        west.delete(name).await;
    }
}
