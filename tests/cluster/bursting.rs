//! Bursts onto real clusters: placed, wired, resized, released.

use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::{labels, names};
use tributary::contract::LeadAddress;
use tributary_sandbox::annotations;
use tributary_tests::collector::Received;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::scenario::{Place, bursting};

use crate::asking;
use crate::shared::{places, spans, together};

/// Both sides hold the same certificate, host list and rank-map digest, and the lead Service leads to the root.
async fn assert_wired(root: &Place, name: &str, provider: &Place, slot: &str) {
    let certificate =
        async |place: &Place, name: &str| -> Secret { place.secrets().get(&names::curve(name)).await.unwrap() };
    let ours = certificate(root, name).await.data.unwrap()["curve.cert"].clone();
    let theirs = certificate(provider, slot).await.data.unwrap()["curve.cert"].clone();
    assert!(ours == theirs, "the certificates differ");
    let hostlist = async |place: &Place, name: &str| {
        let config = place.config_maps().get(&names::entrypoint(name)).await.unwrap();
        config.data.unwrap()[tributary::render::HOSTLIST_KEY].trim().to_owned()
    };
    assert_eq!(hostlist(root, name).await, hostlist(provider, slot).await);
    let digest = root.status(name).await.unwrap().rank_map_digest;
    assert!(digest.is_some());
    assert_eq!(digest, provider.status(slot).await.unwrap().rank_map_digest);
    // Simulated brokers are ready without their lead, whose node may be chosen after that.
    root.running(name).await;
    let lead = lead_of(root, name).await;
    eventually(format!("the lead Service of {slot} leads to its root"), async || {
        let found = provider.lead_endpoint(slot).await?;
        if found == lead { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// Node address of the index-0 pod, and the NodePort of the lead Service.
async fn lead_of(root: &Place, name: &str) -> LeadAddress {
    let selector = format!("job-name={name},{}=0", labels::kubernetes::COMPLETION_INDEX);
    let pods = root.pods().list(&ListParams::default().labels(&selector)).await.unwrap();
    let node = pods.items.iter().find_map(|pod: &Pod| pod.spec.as_ref()?.node_name.clone()).unwrap();
    let node: Node = Api::all(root.client.clone()).get(&node).await.unwrap();
    let addresses = node.status.unwrap().addresses.unwrap();
    let address = addresses.iter().find(|address| address.type_ == "InternalIP").unwrap().address.clone();
    let service = root.services().get(&names::lead(name)).await.unwrap();
    let port = service.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    LeadAddress { address, port: u16::try_from(port).unwrap() }
}

/// GPUs that each pod of a Job asks for.
async fn devices(place: &Place, job: &str) -> Vec<u32> {
    let pods = place.pods().list(&ListParams::default().labels(&format!("job-name={job}"))).await.unwrap();
    let asked = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
        limits.filter_map(|limits| limits.get("nvidia.com/gpu")?.0.parse::<u32>().ok()).sum()
    };
    pods.items.iter().map(asked).collect()
}

/// The Job for that was taken, and is gone with its pods.
async fn images_were_pulled_ahead(provider: &Place, slot: &str) {
    eventually(format!("images of {slot} were pulled ahead"), async || {
        let hosted = provider.hosted().get(slot).await.map_err(|error| error.to_string())?;
        let status = hosted.status.unwrap_or_default();
        let warm = status.warm.ok_or("nothing is said of it")?;
        let job = names::warm_up(slot);
        let pods = provider.pods().list(&ListParams::default().labels(&format!("job-name={job}"))).await;
        let left = pods.map_err(|error| error.to_string())?.items.len();
        let there = provider.jobs().get_opt(&job).await.map_err(|error| error.to_string())?.is_some();
        // The pods of the burst start as fast here.
        let done = ["Pulled", "Overtaken"].contains(&warm.outcome.as_str()) && warm.ended.is_some();
        let said =
            status.conditions.iter().any(|one| one.type_ == labels::condition::WARM && one.reason == warm.outcome);
        if done && said && left == 0 && !there { Ok(()) } else { Err(format!("{warm:?}, {left} pods, Job: {there}")) }
    })
    .await;
}

/// Everything from the change of the root to ready pods on both providers is one trace, in which every span is a part of
/// another.
async fn one_trace(root: &Place) {
    let expected = [
        ("east", "MiniCluster changed", 1),
        ("east", "create Job", 1),
        ("east", "brokers ready", 1),
        ("east", "burst offered", 2),
        ("east", "burst admitted", 2),
        ("east", "burst created", 2),
        ("east", "burst", 2),
        ("west", "admit", 1),
        ("west", "fetch certificate", 1),
        ("west", "hosted burst created", 1),
        ("west", "hosted burst", 1),
        ("west", "MiniCluster changed", 1),
        ("west", "create Job", 1),
        ("west", "brokers ready", 1),
        ("north", "brokers ready", 1),
    ];
    eventually("every span has arrived", async || {
        let all = spans();
        let is_first = |span: &&Received| {
            span.name == "MiniCluster changed"
                && span.cluster == "east"
                && span.attribute("k8s.namespace.name") == root.namespace
        };
        let first = all.iter().find(is_first).ok_or("the root has no span yet")?;
        assert_eq!(first.parent, "", "it begins the trace");
        let trace: Vec<&Received> = all.iter().filter(|span| span.trace == first.trace).collect();
        for (cluster, name, count) in expected {
            let found = trace.iter().filter(|span| span.cluster == cluster && span.name == name).count();
            if found < count {
                return Err(format!("{found} of {count} spans {name:?} of {cluster}: {trace:#?}"));
            }
        }
        for span in &trace {
            let known = trace.iter().any(|other| other.id == span.parent) || span.id == first.id;
            if !known {
                return Err(format!("{span:?} is a part of nothing: {trace:#?}"));
            }
            assert!(span.start <= span.end, "{span:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bursts_on_named_peers_are_one_instance() {
    let federation = together().await;
    let [east, west, north] = places(&federation, "by-name").await;
    let clusters = json!([
        {"size": 3, "peer": "west", "resources": {"limits": {"cpu": 4, "nvidia.com/gpu": 1}}, "warm": true},
        {"size": 2, "peer": "north", "cores": 16},
    ]);
    let plan = asking::plan(&federation, "by-name", "river", &bursting(4, clusters.clone())).await;
    east.create("river", bursting(4, clusters)).await;
    east.burst("river", "river-burst-0", BurstPhase::Ready).await;
    east.burst("river", "river-burst-1", BurstPhase::Ready).await;
    assert_wired(&east, "river", &west, "river-burst-0").await;
    assert_wired(&east, "river", &north, "river-burst-1").await;
    assert!(west.left("river-burst-1").await.unwrap().is_empty());
    images_were_pulled_ahead(&west, "river-burst-0").await;
    assert_eq!(devices(&west, "river-burst-0").await, [1; 3], "the slot has resources of its own");
    assert_eq!((devices(&east, "river").await, devices(&north, "river-burst-1").await), (vec![0; 4], vec![0; 2]));
    eventually("the root's status shows both", async || {
        let status = east.status("river").await?;
        let ranks: Vec<&str> = status.bursts.iter().map(|burst| burst.ranks.as_str()).collect();
        let both = status.bursts_ready.as_deref() == Some("2/2") && ranks == ["4-6", "7-8"];
        if both { Ok(()) } else { Err(format!("{:?}", status.bursts)) }
    })
    .await;
    assert_eq!(plan["rankMapDigest"].as_str(), east.status("river").await.unwrap().rank_map_digest.as_deref());
    asking::as_planned(&plan, &[("east", &east), ("west", &west), ("north", &north)]).await;
    asking::why_of_a_ready_one(&federation, "by-name", "river").await;
    one_trace(&east).await;
    asking::every_document(&federation, "by-name", "river").await;
    east.delete("river").await;
    west.empty("river-burst-0").await;
    north.empty("river-burst-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_and_capacity_choose_the_peer() {
    let federation = together().await;
    let [east, west, north] = places(&federation, "chosen").await;
    // Only north has nodes with 20 cores; the second one says by a label where it wants to be.
    let clusters = json!([{"size": 2, "cores": 20}, {"size": 1, "selector": {"matchLabels": {"name": "west"}}}]);
    east.create("chosen", bursting(1, clusters)).await;
    let by_capacity = east.burst("chosen", "chosen-burst-0", BurstPhase::Ready).await;
    let by_selector = east.burst("chosen", "chosen-burst-1", BurstPhase::Ready).await;
    assert_eq!(by_capacity.status.unwrap().peer.as_deref(), Some("north"));
    assert_eq!(by_selector.status.unwrap().peer.as_deref(), Some("west"));
    east.delete("chosen").await;
    west.empty("chosen-burst-1").await;
    north.empty("chosen-burst-0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_finishes_releases_its_bursts() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "finished").await;
    let mut spec = bursting(2, json!([{"size": 2, "peer": "west"}]));
    spec["interactive"] = json!(false);
    spec["containers"][0]["command"] = json!("hostname");
    east.create("brief", spec).await;
    east.burst("brief", "brief-burst-0", BurstPhase::Ready).await;
    east.running("brief").await;
    east.annotate_pod("brief", 0, annotations::EXIT, "0").await;
    east.condition("brief", labels::condition::FINISHED, "True", "Succeeded").await;
    west.empty("brief-burst-0").await;
    // The port of its lead broker is for others.
    gone(&east.services(), &names::lead("brief")).await;
    assert!(east.services().get_opt("brief").await.unwrap().is_some(), "only this one goes");
    east.delete("brief").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosted_objects_come_back_and_a_deleted_hosted_burst_is_an_eviction() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "evicted").await;
    east.create("guest", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    east.burst("guest", "guest-burst-0", BurstPhase::Ready).await;
    east.running("guest").await;
    let slot = "guest-burst-0";
    what_is_edited_is_reverted(&west, slot).await;
    let job = west.jobs().get(slot).await.unwrap().uid();
    west.jobs().delete(slot, &DeleteParams::background()).await.unwrap();
    eventually("the hosted Job is back and its brokers join", async || {
        let now = west.jobs().get_opt(slot).await.map_err(|error| error.to_string())?;
        let ready = west.status(slot).await?.ready;
        match now {
            Some(now) if now.uid() != job && ready == Some(1) => Ok(()),
            other => Err(format!("{:?}, {ready:?} ready", other.map(|job| job.uid()))),
        }
    })
    .await;
    east.burst("guest", slot, BurstPhase::Ready).await;
    west.secrets().delete(&names::curve(slot), &DeleteParams::default()).await.unwrap();
    // Nobody watches Secrets; what changes the HostedBurst or its MiniCluster makes somebody look.
    let before = west.mini_clusters().get(slot).await.unwrap().uid();
    west.mini_clusters().delete(slot, &DeleteParams::default()).await.unwrap();
    eventually("the certificate was asked for again, and the hosted MiniCluster is another", async || {
        let secret = west.secrets().get_opt(&names::curve(slot)).await.map_err(|error| error.to_string())?;
        let now = west.mini_clusters().get_opt(slot).await.map_err(|error| error.to_string())?.map(|now| now.uid());
        match (secret, now) {
            (Some(_), Some(now)) if now != before => Ok(()),
            (secret, now) => Err(format!("Secret: {}, MiniCluster {now:?}", secret.is_some())),
        }
    })
    .await;
    west.hosted().delete(slot, &DeleteParams::default()).await.unwrap();
    let evicted = east.burst("guest", slot, BurstPhase::Evicted).await;
    assert_eq!(evicted.status.unwrap().refusals[0].reason, "EvictedByProvider");
    west.empty(slot).await;
    east.running("guest").await;
    assert_eq!(asking::why_not(&federation, "evicted", "guest", slot).await, "EvictedByProvider");
    east.delete("guest").await;
}

/// Boot files, the Services and the lead's address of a hosted burst are its root's word.
async fn what_is_edited_is_reverted(provider: &Place, slot: &str) {
    let params = PatchParams::default();
    let files = provider.config_maps().get(&names::entrypoint(slot)).await.unwrap().data.unwrap();
    let first = files.keys().next().unwrap();
    let patch = Patch::Merge(json!({"data": {first: "echo hijacked"}}));
    provider.config_maps().patch(&names::entrypoint(slot), &params, &patch).await.unwrap();
    let lead = eventually("the lead Service leads to the root", async || provider.lead_endpoint(slot).await).await;
    let port = async || {
        let service = provider.services().get(&names::lead(slot)).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(service.spec.unwrap().ports.unwrap()[0].port)
    };
    let own_port = port().await.unwrap();
    let patch = Patch::Json::<()>(
        serde_json::from_value(json!([{"op": "replace", "path": "/spec/ports/0/port", "value": 9}])).unwrap(),
    );
    provider.services().patch(&names::lead(slot), &params, &patch).await.unwrap();
    let slices: Api<EndpointSlice> = Api::namespaced(provider.client.clone(), &provider.namespace);
    let selector = format!("{}={}", labels::kubernetes::SERVICE_NAME, names::lead(slot));
    let slice = slices.list(&ListParams::default().labels(&selector)).await.unwrap().items.remove(0).name_any();
    let patch = Patch::Json::<()>(
        serde_json::from_value(json!([{"op": "replace", "path": "/endpoints/0/addresses/0", "value": "192.0.2.66"}]))
            .unwrap(),
    );
    slices.patch(&slice, &params, &patch).await.unwrap();
    eventually("edits of hosted objects are reverted", async || {
        let now = provider.config_maps().get(&names::entrypoint(slot)).await.map_err(|error| error.to_string())?;
        let (endpoint, port) = (provider.lead_endpoint(slot).await?, port().await?);
        if now.data.as_ref() != Some(&files) {
            return Err("the ConfigMap differs".to_owned());
        }
        if endpoint == lead && port == own_port { Ok(()) } else { Err(format!("{endpoint:?}, port {port}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_roots_burst_onto_one_peer() {
    let federation = together().await;
    let [east, west, north] = places(&federation, "two-roots").await;
    east.create("left", bursting(1, json!([{"size": 2, "peer": "north"}]))).await;
    west.create("right", bursting(1, json!([{"size": 1, "peer": "north"}]))).await;
    east.burst("left", "left-burst-0", BurstPhase::Ready).await;
    west.burst("right", "right-burst-0", BurstPhase::Ready).await;
    assert_wired(&east, "left", &north, "left-burst-0").await;
    assert_wired(&west, "right", &north, "right-burst-0").await;
    east.delete("left").await;
    north.empty("left-burst-0").await;
    assert_wired(&west, "right", &north, "right-burst-0").await;
    west.delete("right").await;
    north.empty("right-burst-0").await;
}
