//! MiniClusters that `managedBy` leaves to another controller, as MultiKueue's external frameworks ask for.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::flux_job::JobPhase;
use tributary::api::labels::KUEUE_QUEUE;
use tributary::api::minicluster::{MANAGER, is_manager};
use tributary::api::names;
use tributary::api::workload::{MULTIKUEUE, PRIORITY_CLASS, Workload, WorkloadSpec};
use tributary::cluster::caches::controller_uid;
use tributary_sandbox::ADMIN;
use tributary_tests::agentctl::document;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::{Place, bursting, interactive};

use crate::queue::{apply, jobs, setups, submit, told};
use crate::shared::{places, together};

fn managed(by: &str, mut spec: Value) -> Value {
    spec["managedBy"] = by.into();
    spec
}

/// What there is of a MiniCluster besides itself.
async fn made(place: &Place, name: &str) -> Vec<String> {
    let mut made = place.left(name).await.unwrap();
    made.retain(|what| !what.starts_with("MiniCluster"));
    let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
    let about = ListParams::default().fields(&format!("involvedObject.kind=MiniCluster,involvedObject.name={name}"));
    made.extend(events.list(&about).await.unwrap().items.into_iter().map(|event| format!("Event {:?}", event.message)));
    let bursts = place.bursts().list(&ListParams::default()).await.unwrap().items;
    made.extend(
        bursts.iter().filter(|burst| burst.spec.root == name).map(|burst| format!("Burst {}", burst.name_any())),
    );
    made
}

/// The danger: two controllers make something of one object, and each takes back what the other says of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_controller_manages_is_left_alone() {
    let federation = together().await;
    let [east, ..] = places(&federation, "managed").await;
    let clusters = json!([{"size": 1, "peer": "west"}]);
    east.create("sent", managed(MULTIKUEUE, bursting(2, clusters.clone()))).await;
    // Whoever is ours is carried out, by name or without one: what was made before has had its turn by then.
    east.create("plain", interactive(1)).await;
    east.create("named", managed(MANAGER, interactive(1))).await;
    for name in ["plain", "named"] {
        east.running(name).await;
    }
    assert_eq!(made(&east, "sent").await, [""; 0]);
    assert_eq!(east.mini_clusters().get("sent").await.unwrap().status, None);

    // Its controller copies the status of the one that runs in another cluster: an instance with a rank map, and bursts.
    east.create("twin", bursting(2, clusters)).await;
    let twin = eventually("the other one has an instance", async || {
        let status = east.status("twin").await?;
        if status.rank_map.is_some() { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await;
    let patch = Patch::Merge(json!({"status": twin}));
    east.mini_clusters().patch_status("sent", &PatchParams::default(), &patch).await.unwrap();
    let change =
        Patch::Merge(json!({"spec": {"size": 3}, "metadata": {"annotations": {"tributary.dev/restart": "now"}}}));
    east.mini_clusters().patch("sent", &PatchParams::default(), &change).await.unwrap();
    let written = east.mini_clusters().get("sent").await.unwrap().metadata.resource_version;
    east.create("after", interactive(1)).await;
    east.running("after").await;
    assert_eq!(made(&east, "sent").await, [""; 0]);
    assert_eq!(
        east.mini_clusters().get("sent").await.unwrap().metadata.resource_version,
        written,
        "nobody writes to it"
    );

    let kubeconfig = federation.clusters()[0].kubeconfig(ADMIN).unwrap();
    let endpoint = format!("http://{}", federation.agent(0).admin);
    let why = document(&kubeconfig, &["why", "-n", "managed", "mc/sent"]).await.unwrap();
    let said = format!("{why:#}");
    assert!(said.contains("it is left to kueue.x-k8s.io/multikueue (spec.managedBy)"), "{said}");
    let status = document(&kubeconfig, &["status", "-n", "managed", "--endpoint", &endpoint]).await.unwrap();
    let rows: Vec<&Value> = status["clusters"].as_array().unwrap().iter().collect();
    let row = rows.iter().filter_map(|row| row["status"]["miniClusters"].as_array()).flatten();
    let row = row.clone().find(|row| row["name"] == "sent").unwrap_or_else(|| panic!("{status:#}"));
    assert_eq!(row["phase"], "LeftAlone", "{row}");

    for name in ["twin", "plain", "named", "after", "sent"] {
        east.delete(name).await;
    }
}

/// Its name is taken all the same, and it takes no room.
#[tokio::test(flavor = "multi_thread")]
async fn it_stands_in_no_line_and_keeps_its_name() {
    let federation = together().await;
    let [east, ..] = places(&federation, "managed-line").await;
    apply(setups(&east), "FluxSetup", "default", json!({"quota": {"miniClusters": 1}})).await;
    east.create("other", managed(MULTIKUEUE, interactive(1))).await;
    submit(&east, "other", json!({})).await;
    told(&east, "other", JobPhase::Waiting, "MiniCluster other exists and is another's").await;
    submit(&east, "left", json!({"miniCluster": {"managedBy": MULTIKUEUE}})).await;
    told(&east, "left", JobPhase::Waiting, "spec.miniCluster.managedBy: nothing of a FluxJob can be left to").await;
    east.create("ours", interactive(1)).await;
    east.running("ours").await;
    // One that comes while a FluxJob of its name waits, and goes again.
    submit(&east, "late", json!({})).await;
    told(&east, "late", JobPhase::Waiting, "it is next in line").await;
    east.create("late", managed(MULTIKUEUE, interactive(1))).await;
    told(&east, "late", JobPhase::Waiting, "MiniCluster late exists and is another's").await;
    east.delete("late").await;
    told(&east, "late", JobPhase::Waiting, "it is next in line").await;
    for name in ["other", "left", "late"] {
        jobs(&east).delete(name, &Default::default()).await.unwrap();
    }
    setups(&east).delete("default", &Default::default()).await.unwrap();
    for name in ["ours", "other"] {
        east.delete(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_is_a_name_as_in_jobs_and_stays() {
    let federation = together().await;
    let [east, ..] = places(&federation, "managers").await;
    let long = format!("a.org/{}", "x".repeat(57));
    let longer = format!("{long}x");
    for name in [
        MULTIKUEUE,
        MANAGER,
        "a/b",
        "a-b.c1/x_y.z~",
        "a.org/b/c",
        &long,
        &longer,
        "",
        "multikueue",
        "a.org/",
        "/b",
        "A.org/b",
        "a..org/b",
        "-a.org/b",
        "a.org/b c",
        "a.org/b\"",
        "a_b.org/c",
    ] {
        let spec = managed(name, interactive(1));
        let object = json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": {"name": "m", "namespace": "managers"}, "spec": spec});
        let dry = PatchParams { dry_run: true, ..PatchParams::apply("tests") };
        let said = east.mini_clusters().patch("m", &dry, &Patch::Apply(&object)).await.map(drop);
        assert_eq!(said.is_ok(), is_manager(name), "{name:?}: {said:?}");
        if let Err(error) = said {
            assert!(error.to_string().contains("managedBy"), "{name:?}: {error}");
        }
    }
    east.create("none", interactive(1)).await;
    east.create("some", managed(MULTIKUEUE, interactive(1))).await;
    for (name, to) in [("none", json!(MULTIKUEUE)), ("some", json!(MANAGER)), ("some", Value::Null)] {
        let patch = Patch::Merge(json!({"spec": {"managedBy": to}}));
        let said = east.mini_clusters().patch(name, &PatchParams::default(), &patch).await.unwrap_err().to_string();
        assert!(
            said.contains("managedBy") && said.contains("delete the MiniCluster and make another one"),
            "{name} {to}: {said}"
        );
    }
    // Whatever else changes.
    east.change("some", json!({"size": 2})).await;
    for name in ["none", "some"] {
        east.delete(name).await;
    }
}

/// As much of a kind of Kueue as an API server has to know for an agent to write it.
fn kueue(kind: &str, scope: &str, schema: Value) -> Value {
    let plural =
        if kind.ends_with('s') { format!("{}es", kind.to_lowercase()) } else { format!("{}s", kind.to_lowercase()) };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.kueue.x-k8s.io"),
            // Groups of `k8s.io` ask for it.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": schema}}}],
        },
    })
}

/// A MiniCluster that MultiKueue has to run, of a class of priority.
fn dispatched() -> Value {
    let mut spec = managed(MULTIKUEUE, interactive(3));
    spec["jobLabels"] = json!({KUEUE_QUEUE: "team", PRIORITY_CLASS: "high"});
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": 1}});
    spec
}

/// Lets an API server serve Workloads and their classes of priority, and makes one of these.
async fn serve(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for definition in [
        kueue("Workload", "Namespaced", json!({"spec": any, "status": any})),
        kueue("WorkloadPriorityClass", "Cluster", json!({"value": {"type": "integer"}})),
    ] {
        definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    }
    let class = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "WorkloadPriorityClass"),
        "workloadpriorityclasses",
    );
    let classes: Api<DynamicObject> = Api::all_with(client.clone(), &class);
    eventually("the class is made, and Workloads are served", async || {
        let high = DynamicObject::new("high", &class).data(json!({"value": 7}));
        classes.create(&PostParams::default(), &high).await.map(drop).map_err(|error| error.to_string())?;
        Api::<Workload>::all(client.clone())
            .list(&ListParams::default())
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
}

/// The Workload of a MiniCluster, once it has so many pods.
async fn workload(place: &Place, name: &str, count: i32) -> Workload {
    let workloads: Api<Workload> = Api::namespaced(place.client.clone(), &place.namespace);
    eventually(format!("there is a Workload of {name} for {count} pods"), async || {
        let found = workloads.get_opt(&names::workload(name)).await.map_err(|error| error.to_string())?;
        found.filter(|found| found.spec.pod_sets[0].count == count).ok_or_else(|| "there is none".to_owned())
    })
    .await
}

/// A MiniCluster for MultiKueue gets a Workload, which follows its spec and is given back when it is evicted.
pub(crate) async fn a_workload_is_made_and_given_back(place: &Place) {
    serve(&place.client).await;
    place.create("lake", dispatched()).await;
    let first = workload(place, "lake", 3).await;
    assert_eq!((first.spec.queue_name.as_str(), first.spec.priority), ("team", Some(7)));
    assert_eq!(first.spec.priority_class_ref.as_ref().map(|class| class.name.as_str()), Some("high"));
    assert_eq!(controller_uid(&first), place.mini_clusters().get("lake").await.unwrap().uid().as_deref());
    let pod = first.spec.pod_sets[0].template.spec.as_ref().unwrap();
    let filled_in = pod.containers[0].termination_message_policy.as_deref();
    assert_eq!(filled_in, Some("File"), "with what the API server fills in");
    assert_eq!(made(place, "lake").await.iter().filter(|what| !what.starts_with("Event")).count(), 0, "nothing else");

    // What does not fit the spec any more is made anew.
    place.change("lake", json!({"size": 4})).await;
    let second = workload(place, "lake", 4).await;
    assert_ne!(first.uid(), second.uid());

    // Kueue evicts it: nothing runs here, so its room is given back at once.
    let said = |type_: &str, message: &str| {
        json!({"type": type_, "status": "True", "reason": "Preempted", "message": message,
            "lastTransitionTime": "2026-01-02T03:04:05Z"})
    };
    let conditions = [said("Admitted", ""), said("Evicted", "somebody goes first"), said("QuotaReserved", "")];
    let status = json!({"admission": {"clusterQueue": "all"}, "own": "kept", "conditions": conditions});
    let kind = ApiResource::erase::<Workload>(&());
    let raw: Api<DynamicObject> = Api::namespaced_with(place.client.clone(), &place.namespace, &kind);
    let patch = Patch::Merge(json!({"status": status}));
    raw.patch_status("minicluster-lake", &PatchParams::default(), &patch).await.unwrap();
    eventually("it waits again", async || {
        let status = raw.get("minicluster-lake").await.map_err(|error| error.to_string())?.data["status"].clone();
        let holds = |type_: &str| {
            status["conditions"].as_array().unwrap().iter().any(|one| one["type"] == type_ && one["status"] == "True")
        };
        let waits = !holds("QuotaReserved") && !holds("Admitted") && holds("Requeued");
        match waits && status["admission"].is_null() && status["own"] == "kept" {
            true => Ok(()),
            false => Err(format!("{status:#}")),
        }
    })
    .await;

    // Without a class of Kueue's, that of its pods counts.
    let mut spec = dispatched();
    spec["jobLabels"] = json!({KUEUE_QUEUE: "team"});
    spec["pod"] = json!({"priorityClassName": "system-node-critical"});
    place.create("pond", spec).await;
    let of_pods = workload(place, "pond", 3).await.spec;
    assert_eq!(of_pods.priority_class_ref.map(|class| class.kind).as_deref(), Some("PriorityClass"));
    assert!(of_pods.priority > Some(1_000_000_000), "{:?}", of_pods.priority);
    place.delete("pond").await;
}

/// The danger: MultiKueue is asked for something that nobody makes, or two Workloads run one MiniCluster twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_mini_cluster_for_multikueue_gets_the_workload_that_is_dispatched() {
    let federation = together().await;
    let [_, _, north] = places(&federation, "dispatch").await;
    let kubeconfig = federation.clusters()[2].kubeconfig(ADMIN).unwrap();
    let why = async |expected: &str| {
        eventually(format!("why says {expected:?}"), async || {
            let arguments = ["why", "-n", "dispatch", "mc/lake"];
            let why = document(&kubeconfig, &arguments).await.map_err(|error| error.to_string())?;
            let cause = why["unmet"]["cause"].as_str().unwrap_or_default();
            if cause.contains(expected) { Ok(()) } else { Err(cause.to_owned()) }
        })
        .await;
    };
    north.create("lake", dispatched()).await;
    why("this cluster does not serve Workloads (kueue.x-k8s.io/v1beta2); install Kueue").await;
    north.delete("lake").await;

    a_workload_is_made_and_given_back(&north).await;
    why("its Workload minicluster-lake: evicted: somebody goes first").await;

    // One that somebody else makes is enough.
    let workloads: Api<Workload> = Api::namespaced(north.client.clone(), "dispatch");
    let mut theirs = Workload::new("theirs", WorkloadSpec::default());
    let ours = workloads.get("minicluster-lake").await.unwrap();
    theirs.metadata.owner_references.clone_from(&ours.metadata.owner_references);
    workloads.create(&PostParams::default(), &theirs).await.unwrap();
    workloads.delete("minicluster-lake", &DeleteParams::default()).await.unwrap();
    north.change("lake", json!({"size": 2})).await;
    north.create("after", dispatched()).await;
    workload(&north, "after", 3).await;
    assert_eq!(workloads.get_opt("minicluster-lake").await.unwrap(), None);

    north.delete("lake").await;
    north.delete("after").await;
    eventually("their Workloads go with them", async || {
        let left = workloads.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    let definitions: Api<CustomResourceDefinition> = Api::all(north.client.clone());
    for plural in ["workloads", "workloadpriorityclasses"] {
        definitions.delete(&format!("{plural}.kueue.x-k8s.io"), &DeleteParams::default()).await.unwrap();
    }
}
