//! Agents of two versions in one federation: each side of a burst is upgraded first, then the other, and back, while bursts run.
//! The program of the other version is built from another commit, and `TRIBUTARY_OTHER_AGENT` names it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition::RESTART_REQUIRED;
use tributary_tests::agent::{OTHER, other_version};
use tributary_tests::eventually::eventually;
use tributary_tests::federation::Federation;
use tributary_tests::scenario::{KINDS, Place, bursting, interactive};

use crate::shared::{alone, places};

/// Roots, by the way on which brokers reach their lead.
const ROOTS: [(&str, &str); 2] = [("ford", "NodePort"), ("weir", "Tunnel")];

/// A MiniCluster that comes and goes: what was to be done before it is done.
const PILOT: &str = "pilot";

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_stays_while_agents_of_two_versions_take_turns() {
    let Some(other) = other_version() else {
        // Not eprintln!, which the test harness hides when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {OTHER} is not set, so nobody knows how agents of two versions get along (set it to a \
             tributary-agent of another commit)"
        );
        return;
    };
    let federation = alone().await;
    for (namespace, order) in [("root-first", [0, 1]), ("provider-first", [1, 0])] {
        let [east, west, _] = places(&federation, namespace).await;
        for index in order {
            starts_as(&federation, index, Some(&other)).await;
        }
        for (root, network) in ROOTS {
            begin(&east, root, network).await;
        }
        let before = [picture(&east).await, picture(&west).await];
        for program in [None, Some(&other)] {
            for index in order {
                starts_as(&federation, index, program).await;
                passed(&east).await;
                passed(&west).await;
                for (place, before) in [&east, &west].into_iter().zip(&before) {
                    let (version, now) = (if program.is_some() { "other" } else { "new" }, picture(place).await);
                    let other: Vec<_> = now.symmetric_difference(before).collect();
                    assert!(other.is_empty(), "agent {index} is the {version} one now, {namespace}: {other:?}");
                }
                for (root, _) in ROOTS {
                    nothing_waits_for_a_restart(&east, root).await;
                    nothing_waits_for_a_restart(&west, &format!("{root}-burst-0")).await;
                }
            }
        }
        // One of each: what is new is made, follows its root, and goes.
        starts_as(&federation, order[0], None).await;
        begin(&east, "bank", "Tunnel").await;
        for root in ["bank", "ford"] {
            let smaller = json!([{"size": 1, "maxSize": 2, "peer": "west"}]);
            east.change(root, json!({"flux": {"bursting": {"clusters": smaller}}})).await;
            let slot = format!("{root}-burst-0");
            eventually(format!("{slot} is of one broker"), async || {
                let hosted = west.hosted().get(&slot).await.map_err(|error| error.to_string())?;
                if hosted.spec.size == 1 { Ok(()) } else { Err(format!("{:?}", hosted.status)) }
            })
            .await;
            east.burst(root, &slot, BurstPhase::Ready).await;
        }
        for root in ["bank", "ford", "weir"] {
            east.delete(root).await;
            west.empty(&format!("{root}-burst-0")).await;
        }
        starts_as(&federation, order[1], None).await;
    }
}

/// The agent of a cluster ends, and another version goes on.
async fn starts_as(federation: &Federation, index: usize, program: Option<&PathBuf>) {
    let agent = federation.agent(index);
    agent.stop(&federation.group).await.unwrap();
    agent.becomes(program.map(|program: &PathBuf| Path::to_owned(program)));
    agent.start(&federation.group).unwrap();
    federation.connected().await;
    federation.forget_losses().await;
    federation.connected().await;
}

async fn begin(root: &Place, name: &str, network: &str) {
    let mut spec = bursting(1, json!([{"size": 2, "peer": "west"}]));
    spec["flux"]["bursting"]["network"] = json!({"type": network});
    root.create(name, spec).await;
    root.burst(name, &format!("{name}-burst-0"), BurstPhase::Ready).await;
}

/// The agent of this cluster has made a MiniCluster and taken it away, and so has seen all that was there before.
async fn passed(place: &Place) {
    place.create(PILOT, interactive(1)).await;
    place.running(PILOT).await;
    place.delete(PILOT).await;
}

async fn nothing_waits_for_a_restart(place: &Place, name: &str) {
    let conditions = place.status(name).await.unwrap().conditions;
    let waits = conditions.iter().find(|one| one.type_ == RESTART_REQUIRED && one.status == "True");
    assert!(waits.is_none(), "{name}: {waits:?}");
}

/// What there is in a namespace, and that it is the same as before: its UID. An agent that ends takes itself out of
/// EndpointSlices.
async fn picture(place: &Place) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for (group, version, kind) in KINDS.into_iter().filter(|(.., kind)| *kind != "EndpointSlice") {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(place.client.clone(), &place.namespace, &resource);
        for object in api.list(&ListParams::default()).await.unwrap().items {
            let name = object.name_any();
            if !name.starts_with(PILOT) {
                found.insert((format!("{kind} {name}"), object.uid().unwrap()));
            }
        }
    }
    found
}
