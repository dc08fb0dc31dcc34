//! MiniClusters that `managedBy` leaves to another controller, as MultiKueue's external frameworks ask for.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tributary::api::flux_job::JobPhase;
use tributary::api::minicluster::{MANAGER, is_manager};
use tributary_sandbox::ADMIN;
use tributary_tests::agentctl::document;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::{Place, bursting, interactive};

use crate::queue::{apply, jobs, setups, submit, told};
use crate::shared::{places, together};

/// What MultiKueue asks for.
const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

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
    tokio::time::sleep(Duration::from_secs(3)).await;
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

    for name in ["twin", "plain", "named", "sent"] {
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
    for name in ["other", "left"] {
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
