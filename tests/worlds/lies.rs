//! Lead brokers that lie: what is asked in their pods is not answered, or wrongly. Its own burst says so, and nothing else
//! waits for it.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::labels::condition::DEMAND;
use tributary_cluster::testing::Fault;

use crate::dangers::{SHORT, in_world};
use crate::world::World;

/// More than are asked at a time.
const SILENT: usize = 9;

/// What the Bursts of roots with this name say of their demand: reason and sentence.
fn said(world: &World, root: &str) -> Vec<(String, String)> {
    let bursts = world.clusters[0].server.list::<Burst>();
    let own = bursts.into_iter().filter(|burst| burst.name_any().starts_with(root));
    let conditions = own.flat_map(|burst| burst.status.into_iter().flat_map(|status| status.conditions));
    let demand = conditions.filter(|one| one.type_ == DEMAND);
    demand.map(|one| (one.reason, one.message)).collect()
}

/// The danger: lead brokers that do not answer keep others waiting, or nobody says that they do not.
#[test]
fn a_look_that_is_not_answered_has_its_sentence_and_stops_nobody() {
    in_world(2, SHORT, async |world| {
        world.run(Duration::from_secs(4)).await?;
        world.sites[0].queue.close();
        world.clusters[0].server.on_request(|info| match (&*info.subresource, info.name.split('-').next()) {
            ("exec", Some("silent")) => Some(Fault::Silence),
            ("exec", Some("broken")) => Some(Fault::Break),
            ("exec", Some("failing")) => Some(Fault::Answer(500)),
            ("exec", Some("forbidden")) => Some(Fault::Answer(403)),
            _ => None,
        });
        let asleep = json!([{"size": 1, "peer": "west", "mode": "OnDemand"}]);
        let silent: Vec<String> = (0..SILENT).map(|number| format!("silent-{number}")).collect();
        let odd = ["broken", "failing", "forbidden", "other"].map(str::to_owned);
        for name in silent.iter().chain(&odd) {
            world.apply(0, name, 1, asleep.clone(), "NodePort");
        }
        world.run(Duration::from_secs(10)).await?;
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        let ready = |world: &World| world.bursts_ready(0, "lake");
        world.until("another burst is ready", Duration::from_secs(15), ready).await?;
        let told = |root: &'static str, reason: &'static str, words: &'static str, count: usize| {
            move |world: &World| {
                let is = |(why, sentence): &&(String, String)| why == reason && sentence.contains(words);
                said(world, root).iter().filter(is).count() == count
            }
        };
        let all = [
            told("silent-", "Unreadable", "the lead broker did not answer within 20s", SILENT),
            told("broken", "Unreadable", "failed to run a command in pod default/broken-0-", 1),
            told("failing", "Unreadable", "failed to run a command in pod default/failing-0-", 1),
            told("forbidden", "Forbidden", "may not run commands in pods of namespace default", 1),
            // What answers does not speak as an API server does.
            told("other", "Unreadable", "failed to run a command in pod default/other-0-", 1),
        ];
        let all = |world: &World| all.iter().all(|told| told(world));
        // Four at a time, each as long as a look may take.
        world.until("each says what came", Duration::from_secs(75), all).await
    });
}
