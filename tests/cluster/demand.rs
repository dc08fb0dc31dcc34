//! Bursts on demand. In the place of the program beside the lead broker, which tells the agent of the queue, something on this
//! machine does: the pod's address leads there.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tributary::api::burst::BurstStatus;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels;
use tributary::render::QUEUE_PORT;
use tributary_tests::eventually::eventually;
use tributary_tests::queue::tell;
use tributary_tests::scenario::{Place, bursting};

use crate::asking;
use crate::shared::{places, together};

const NAMESPACE: &str = "on-demand";

/// What the queue says.
fn picture(busy: &str, pending: Value) -> String {
    json!({"up": "0-2", "busy": busy, "used": [], "pending": pending}).to_string()
}

/// Gives the pod of a root's lead this address, where that is told to everybody who knows the instance's certificate.
async fn tells(place: &Place, root: &str, address: Ipv4Addr, pictures: watch::Receiver<String>) {
    let listener = TcpListener::bind((address, QUEUE_PORT)).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(place.client.clone(), &place.namespace);
    let pods: Api<Pod> = Api::namespaced(place.client.clone(), &place.namespace);
    let (pod, certificate) = eventually(format!("a pod and a certificate of {root}"), async || {
        let secret = secrets.get(&format!("{root}-curve")).await.map_err(|error| error.to_string())?;
        let bytes = secret.data.and_then(|mut data| data.remove("curve.cert")).ok_or("no certificate")?;
        let all = pods.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let runs = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        let lead = all.items.iter().filter(runs).find(|pod| pod.name_any().starts_with(&format!("{root}-0-")));
        let name = lead.ok_or_else(|| "it does not run".to_owned())?.name_any();
        Ok::<_, String>((name, String::from_utf8(bytes.0).unwrap()))
    })
    .await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (certificate, pictures) = (certificate.clone(), pictures.clone());
            tokio::spawn(async move { tell(stream, &certificate, pictures, |_| ()).await });
        }
    });
    let status = json!({"status": {"podIP": address.to_string(), "podIPs": [{"ip": address.to_string()}]}});
    pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Waits until the condition `Demand` of a Burst has this status and reason; its sentence, and the whole status.
async fn demand(place: &Place, root: &str, (status, reason): (&str, &str)) -> (String, BurstStatus) {
    eventually(format!("{root}: Demand={status} ({reason})"), async || {
        let burst = place.burst_now(root, &format!("{root}-burst-0")).await?;
        let seen = burst.status.unwrap_or_default();
        match seen.conditions.iter().find(|one| one.type_ == labels::condition::DEMAND) {
            Some(one) if one.status == status && one.reason == reason => Ok((one.message.clone(), seen.clone())),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_wake_a_burst_and_idleness_ends_it() {
    let federation = together().await;
    let [east, west, _] = places(&federation, NAMESPACE).await;
    let (queue, pictures) = watch::channel(picture("", json!([])));
    let clusters = json!([{"size": 2, "peer": "west", "mode": "OnDemand", "onDemand": {"maxIdle": "30s"},
        "budget": {"brokerHours": 100}}]);
    east.create("heron", bursting(1, clusters)).await;
    tells(&east, "heron", Ipv4Addr::new(127, 52, 0, 1), pictures).await;
    let (said, asleep) = demand(&east, "heron", ("False", "Asleep")).await;
    assert_eq!((said.as_str(), asleep.phase), ("it is asleep: no pending job asks for it", BurstPhase::Asleep));
    east.running("heron").await;
    assert_eq!(asking::why_not(&federation, NAMESPACE, "heron", "heron-burst-0").await, "Asleep");

    let slot = json!([{"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}]);
    let job = json!({"count": 3, "burstable": true, "resources": slot, "constraints": null});
    queue.send_replace(picture("0", json!([job])));
    let awake = east.burst("heron", "heron-burst-0", BurstPhase::Ready).await.status.unwrap();
    assert_eq!(awake.demand.map(|demand| (demand.awake, demand.starts, demand.pending)), Some((true, 1, 3)));
    assert_eq!(west.status("heron-burst-0").await.unwrap().ready, Some(2));

    queue.send_replace(picture("1-2", json!([])));
    demand(&east, "heron", ("True", "InUse")).await;
    queue.send_replace(picture("0", json!([])));
    let (said, _) = demand(&east, "heron", ("True", "Idle")).await;
    assert!(said.contains("it is drained at"), "{said}");
    // Half a minute, and until the look after it; then its brokers drain.
    demand(&east, "heron", ("False", "Asleep")).await;
    let asleep = east.burst("heron", "heron-burst-0", BurstPhase::Asleep).await.status.unwrap();
    // Asleep, it holds nothing there.
    west.empty("heron-burst-0").await;
    assert!(asleep.spent.broker_seconds > 0 && asleep.spent.brokers == 0, "{:?}", asleep.spent);
    assert_eq!(asleep.demand.map(|demand| demand.starts), Some(1));
    east.delete("heron").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_nobody_tells_of_leaves_a_burst_as_it_is_and_says_why() {
    let federation = together().await;
    let [east, _, _] = places(&federation, "not-on-demand").await;
    let clusters = json!([{"size": 1, "peer": "west", "mode": "OnDemand"}]);
    east.create("swan", bursting(1, clusters)).await;
    let (said, swan) = demand(&east, "swan", ("Unknown", "NotCheckable")).await;
    assert!(said.contains("is simulated (kwok)"), "{said}");
    assert_eq!((swan.phase, swan.demand.unwrap().awake), (BurstPhase::Asleep, false));
    assert_eq!(asking::why_not(&federation, "not-on-demand", "swan", "swan-burst-0").await, "NotCheckable");
    east.running("swan").await;
    east.delete("swan").await;
}
