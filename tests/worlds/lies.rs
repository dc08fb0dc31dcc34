//! Lead brokers that lie: nobody tells of their queue, or wrongly. Its own burst says so, and nothing else waits for it.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::labels::condition::DEMAND;

use crate::dangers::{SHORT, in_world};
use crate::queue::Answer;
use crate::world::World;

/// More than are judged at a time.
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
fn who_says_nothing_of_its_queue_has_its_sentence_and_stops_nobody() {
    in_world(2, SHORT, async |world| {
        world.run(Duration::from_secs(4)).await?;
        world.sites[0].queue.lies(|lead| match lead.pod.split('-').next() {
            Some("silent") => Some(Answer::Silence),
            Some("nowhere") => Some(Answer::Nowhere),
            Some("nobody") => Some(Answer::Nobody),
            Some("stranger") => Some(Answer::Stranger),
            Some("nonsense") => Some(Answer::Nonsense),
            _ => None,
        });
        let asleep = json!([{"size": 1, "peer": "west", "mode": "OnDemand"}]);
        let silent: Vec<String> = (0..SILENT).map(|number| format!("silent-{number}")).collect();
        let odd = ["nowhere", "nobody", "stranger", "nonsense", "good"].map(str::to_owned);
        for name in silent.iter().chain(&odd) {
            world.apply(0, name, 1, asleep.clone(), "NodePort");
        }
        world.run(Duration::from_secs(10)).await?;
        world.sites[0].queue.says("", 1);
        world
            .until("another one hears of its queue", Duration::from_secs(5), |world| {
                said(world, "good").iter().any(|(reason, _)| reason == "Asked")
            })
            .await?;
        let told = |root: &'static str, reason: &'static str, words: &'static str, count: usize| {
            move |world: &World| {
                let is = |(why, sentence): &&(String, String)| why == reason && sentence.contains(words);
                said(world, root).iter().filter(is).count() == count
            }
        };
        let all = [
            told("silent-", "Unreadable", "is not heard: ", SILENT),
            told("nowhere", "NotReached", "is not reached: ", 1),
            told("nobody", "NotReached", "nobody at 11.0.", 1),
            told("stranger", "Unreadable", "it has another certificate", 1),
            told("nonsense", "Unreadable", "(10 bytes) is no JSON", 1),
        ];
        let all = |world: &World| all.iter().all(|told| told(world));
        world.until("each says what came", Duration::from_secs(30), all).await
    });
}
