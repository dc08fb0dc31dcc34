//! The records of what was used: both sides agree, and nothing counts twice, whoever restarts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::budget::Spent;
use tributary::api::burst::Burst;
use tributary::api::labels::{self, condition};
use tributary::api::minicluster::MiniCluster;
use tributary::api::usage::{Consumer, DayOfUse, Side};
use tributary::clock::Mono;

use crate::budgets::{pods, ready_on};
use crate::cluster::{Cluster, SYSTEM, USERS};
use crate::dangers::{SHORT, burst, hosted, in_world, secs};
use crate::world::{STEP, World};

/// How far the records of both sides may be apart for one burst, in seconds for each of its brokers: the agents restart at its
/// beginning and its end.
const APART: i64 = 20;

/// All that is on record in a cluster by `now`.
fn recorded(cluster: &Cluster, now: Timestamp) -> BTreeMap<Consumer, Spent> {
    let mut sums: BTreeMap<Consumer, Spent> = BTreeMap::new();
    let is_own = |map: &ConfigMap| map.metadata.namespace.as_deref() == Some(SYSTEM);
    let maps = cluster.server.list::<ConfigMap>().into_iter().filter(is_own);
    let days: Vec<_> = maps.filter_map(|map| DayOfUse::of_config_map(&map).ok()).collect();
    let newest = days.iter().map(|day| day.day).max();
    for day in &days {
        for (consumer, spent) in day.until(now) {
            let sum = sums.entry(consumer).or_default();
            sum.add(&spent);
            sum.brokers += if Some(day.day) == newest { spent.brokers } else { 0 };
        }
    }
    sums
}

/// Broker seconds of one side, and brokers that are in use.
fn side(cluster: &Cluster, side: Side, now: Timestamp) -> (i64, u32) {
    let rows = recorded(cluster, now);
    let rows = rows.iter().filter(|(consumer, _)| consumer.side == side);
    rows.fold((0, 0), |(seconds, brokers), (_, row)| (seconds + row.broker_seconds, brokers + row.brokers))
}

/// Nothing is in use any more, by both sides' records.
fn is_closed(world: &World) -> bool {
    let open = |number: usize, of| side(&world.clusters[number], of, Timestamp::MAX).1;
    hosted(world, 1).is_none() && open(0, Side::Root) == 0 && open(1, Side::Provider) == 0
}

/// What each side has on record of everything, once nothing is in use.
fn figures(world: &World) -> (i64, i64) {
    let of = |number: usize, of| side(&world.clusters[number], of, Timestamp::MAX).0;
    (of(0, Side::Root), of(1, Side::Provider))
}

#[test]
fn both_sides_agree_though_agents_restart_all_the_time() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        let (mut seen, mut kills) = (0.0, 0_i64);
        for step in 1..2_000 {
            if step % 164 == 0 {
                kills += 1;
                world.kill(step / 164 % 2, 0);
                world.start(step / 164 % 2, 0);
            }
            world.step().await?;
            seen += if pods(world, 1) > 0 { 2.0 * STEP.as_secs_f64() } else { 0.0 };
        }
        world.delete(0, "lake");
        world.until("nothing is left", secs(120), is_closed).await?;
        let (root, provider) = figures(world);
        assert!(kills > 10 && seen > 900.0, "{kills} {seen}");
        assert!((root - provider).abs() <= 2 * APART, "{root} {provider} of {seen}");
        for figure in [root, provider] {
            assert!((figure as f64 - seen).abs() <= 120.0, "{root} {provider} of {seen}");
        }
        // One accounting: the ClusterPeer counts the same.
        let counts_none = |world: &World| world.peer(0, 1).unwrap().status.unwrap().spent.brokers == 0;
        world.until("its peer counts the end", secs(10), counts_none).await?;
        let spent = world.peer(0, 1).unwrap().status.unwrap().spent;
        assert!((spent.broker_seconds - root).abs() <= 2 * APART, "{spent:?} and {root}");
        Ok(())
    });
}

/// The danger: it ends while its root's agent is away, and counts for ever, or from the beginning.
#[test]
fn what_changes_while_an_agent_is_away_is_counted_when_it_is_back() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        world.run(secs(60)).await?;
        world.kill(0, 0);
        world.delete(0, "lake");
        world.run(secs(10)).await?;
        world.start(0, 0);
        world.until("nothing is left", secs(180), is_closed).await?;
        let (root, provider) = figures(world);
        // A new leader of the root knows nothing of a Burst that is gone. The provider hears that by its absence: after the grace
        // period, and then it drains.
        let longer = 2 * (20 + 10 + APART);
        assert!(root > 120 && (0..=longer).contains(&(provider - root)), "{root} {provider}");
        world.kill(0, 0);
        world.kill(1, 0);
        world.start(0, 0);
        world.start(1, 0);
        world.run(secs(60)).await?;
        assert_eq!(figures(world), (root, provider), "what is closed stays closed");
        Ok(())
    });
}

/// The danger: a cleaner deletes today's record, and all that was used today is forgotten, or counts from the day before.
#[test]
fn a_record_that_somebody_deletes_is_written_anew() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        world.run(secs(60)).await?;
        world.delete(0, "lake");
        world.until("nothing is left", secs(120), is_closed).await?;
        let ended = figures(world);
        for number in [0, 1] {
            let server = &world.clusters[number].server;
            let records = server.list::<ConfigMap>();
            let record = records.iter().find(|map| DayOfUse::of_config_map(map).is_ok()).unwrap();
            server.delete::<ConfigMap>(SYSTEM, &record.name_any(), &DeleteParams::default()).unwrap();
        }
        // The next one that is used is written beside what was.
        world.apply(0, "pond", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is on record", secs(120), |world| figures(world).1 > 0).await?;
        world.delete(0, "pond");
        world.until("nothing is left again", secs(120), is_closed).await?;
        let (root, provider) = figures(world);
        assert!(root > ended.0 && provider > ended.1, "{root} {provider} after {ended:?}");
        Ok(())
    });
}

/// The danger: a root is deleted, its brokers drain, and nobody counts them against the budget of the peer.
#[test]
fn what_is_left_of_a_root_that_is_gone_counts_at_its_peer() {
    in_world(2, SHORT, async |world| {
        let spent = |world: &World| world.peer(0, 1).unwrap().status.unwrap().spent;
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        world.cut(0, 1, true);
        world.run(secs(5)).await?;
        world.delete(0, "lake");
        world.run(secs(20)).await?;
        assert!(burst(world).is_none() && spent(world).brokers == 2, "{:?}", spent(world));
        world.heal(0, 1);
        world.until("nothing is left", secs(120), is_closed).await?;
        world.run(secs(10)).await?;
        let (root, _) = figures(world);
        assert!(
            spent(world).brokers == 0 && (spent(world).broker_seconds - root).abs() <= 20,
            "{:?} {root}",
            spent(world)
        );
        Ok(())
    });
}

/// Each day has its own share, also one in which nobody looked.
#[test]
fn a_burst_that_lasts_over_midnight_has_a_share_of_each_day() {
    in_world(2, SHORT, async |world| {
        let set = |world: &World, seconds| world.sites.iter().for_each(|site| site.clock.set_wrong(seconds));
        // Worlds begin at 8 in the morning.
        let evening = 16 * 3_600 - 90;
        set(world, evening);
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        world.run(secs(120)).await?;
        set(world, evening + 86_400);
        world.run(secs(60)).await?;
        world.delete(0, "lake");
        world.until("nothing is left", secs(120), is_closed).await?;
        for number in [0, 1] {
            let maps = world.clusters[number].server.list::<ConfigMap>();
            let days: Vec<_> = maps.iter().filter_map(|map| DayOfUse::of_config_map(map).ok()).collect();
            assert_eq!(days.len(), 3, "{days:?}");
            let whole = days[1].until(Timestamp::MAX).into_values().next().unwrap();
            assert_eq!((whole.seconds, whole.broker_seconds), (86_400, 2 * 86_400));
        }
        let (root, provider) = figures(world);
        assert!((root - provider).abs() <= 2 * APART, "{root} {provider}");
        Ok(())
    });
}

fn agreement(world: &World) -> Option<(String, String)> {
    let conditions = burst(world)?.status?.conditions;
    let found = conditions.into_iter().find(|one| one.type_ == condition::USAGE_AGREES)?;
    Some((found.status, found.reason))
}

#[test]
fn both_sides_name_the_user_and_say_that_they_agree() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        let label = json!({"metadata": {"labels": {(labels::USER): "ada"}}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", label).unwrap();
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        let pods = world.clusters[1].pods();
        let whose = |pod: &Pod| [labels::ROOT_CLUSTER, labels::USER].map(|key| pod.labels().get(key).cloned());
        assert!(pods.iter().all(|pod| whose(pod) == [Some("east".to_owned()), Some("ada".to_owned())]), "{pods:?}");
        world.run(secs(90)).await?;
        assert_eq!(agreement(world), None, "nothing has ended");
        world.clusters[0].finish("lake", 0);
        world.until("nothing is left", secs(120), is_closed).await?;
        assert_eq!(agreement(world), Some(("True".into(), "Agrees".into())), "{}", world.summary());
        let status = burst(world).unwrap().status.unwrap();
        let (ours, theirs) = (status.used.broker_seconds, status.peer_count.unwrap().broker_seconds);
        assert!(theirs > 180 && (ours - theirs).abs() <= 2 * APART, "{ours} {theirs}");
        for number in [0, 1] {
            let rows = recorded(&world.clusters[number], Timestamp::MAX);
            assert!(rows.keys().all(|consumer| consumer.user == "ada") && !rows.is_empty(), "{rows:?}");
        }
        Ok(())
    });
}

/// The danger: the root counts for as long as brokers may be there, and nobody learns that this is no count of the peer.
#[test]
fn what_a_lost_peer_counted_is_not_made_up() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "Tunnel");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        world.cut(0, 1, true);
        world.run(secs(300)).await?;
        assert_eq!(agreement(world), Some(("Unknown".into(), "NotTold".into())), "{}", world.summary());
        Ok(())
    });
}

/// What may be on record of a side of a cluster: what its objects said of the moment, added up by the clock of the world.
#[derive(Default)]
pub struct Accounts(BTreeMap<(String, Side), Account>);

#[derive(Default)]
struct Account {
    /// Broker seconds that the objects speak of.
    there: f64,
    /// The most brokers at a time.
    most: u32,
    looked: Option<Mono>,
    checked: Option<Mono>,
}

/// Between two looks at the records.
const LOOK: std::time::Duration = secs(15);

/// How much longer than its object a use may count, or an agent that is away may look away: drain, lease, and what a new leader
/// takes.
const LONGER: f64 = 240.0;

impl Accounts {
    /// Looks at one cluster, whose clock was right all the time.
    pub fn check(&mut self, cluster: &Cluster, now: Mono, wall: Timestamp, away: bool) -> Result<(), String> {
        let bursts = cluster.server.list::<Burst>();
        let root = bursts.iter().filter_map(|burst| burst.status.as_ref()).map(|status| status.spent.brokers).sum();
        let hosted = cluster.hosted();
        let provider = hosted.iter().filter_map(|one| one.status.as_ref()).map(|status| status.spent.brokers).sum();
        for (of, brokers) in [(Side::Root, root), (Side::Provider, provider)] {
            let account = self.0.entry((cluster.name.clone(), of)).or_default();
            let passed = account.looked.replace(now).map_or(0.0, |before| now.saturating_since(before).as_secs_f64());
            account.most = account.most.max(brokers);
            // Nobody ends a use whose agent is away.
            account.there += passed * f64::from(if away { account.most } else { brokers });
            if account.checked.is_some_and(|before| now.saturating_since(before) < LOOK) {
                continue;
            }
            account.checked = Some(now);
            let (recorded, _) = side(cluster, of, wall);
            let most = account.there + LONGER * f64::from(account.most);
            if recorded as f64 > most {
                let there = account.there;
                return Err(format!(
                    "{}: {recorded} broker seconds of side {of} are on record, and {there:.0} were there",
                    cluster.name
                ));
            }
        }
        Ok(())
    }
}
