//! The decision over queues that real brokers had: `look.py` asked the lead of Flux 0.88 every five seconds for some minutes,
//! while jobs came and went, and a line was kept whenever its answer changed. Two brokers of two cores are the root's; `pond`
//! (three of four cores) and `sea` (two of eight) were started when jobs asked for them, and drained and stopped after 45 s in
//! which none did.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;
use tributary_api::burst::{BurstDemand, OnDemandSpec};
use tributary_flux::{RankMap, Slot as Declared, Topology};

use super::ask::{self, Asked, Slot};
use super::decide::{Seen, decide};
use super::look::Look;

/// Waves of jobs that need `pond`, some that visit it for seconds, silence, one job that needs everybody.
const VISITS: &str = include_str!("traces/visits.jsonl");

/// Short jobs of the root's own size all the time, burstable ones in between; the queue is stopped for a while, one job is
/// held, one needs `pond`, and at the end three that need a whole broker of `sea` keep all others waiting.
const CHURN: &str = include_str!("traces/churn.jsonl");

#[derive(Deserialize)]
struct Line {
    second: i64,
    #[serde(default)]
    look: serde_json::Value,
}

fn read(trace: &str) -> (Vec<(i64, Look)>, i64) {
    let lines: Vec<Line> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = lines.last().unwrap().second;
    let looks = lines.iter().filter(|line| line.look.is_object());
    (looks.map(|line| (line.second, Look::parse(&line.look.to_string()).unwrap())).collect(), end)
}

fn map() -> RankMap {
    let parent = || Topology::Gateway.parent_of_bursts("vm");
    let burst = |name: &str, size, cores| Declared::burst(name, size, parent()).with_resources(cores, 0);
    let root = Declared::root("vm", 2).with_resources(2, 0);
    RankMap::new(vec![root, burst("pond", 3, 4), burst("sea", 2, 8)]).unwrap()
}

/// When each slot woke and fell asleep, if the queue is looked at every `every` seconds from `first` on.
fn play(trace: &str, first: i64, every: usize, max_idle: u32) -> BTreeMap<&'static str, Vec<i64>> {
    let ((looks, end), map) = (read(trace), map());
    let policy = OnDemandSpec { max_idle: max_idle.into(), min_pending: 1 };
    let mut demands = BTreeMap::from([("pond", BurstDemand::default()), ("sea", BurstDemand::default())]);
    let mut turns: BTreeMap<&str, Vec<i64>> = demands.keys().map(|name| (*name, Vec::new())).collect();
    for second in (first..end).step_by(every) {
        let Some((_, look)) = looks.iter().rev().find(|(at, _)| *at <= second) else { continue };
        let slot = |(name, demand): (&&str, &BurstDemand)| Slot {
            name: (*name).to_owned(),
            size: if *name == "pond" { 3 } else { 2 },
            awake: demand.awake,
            stuck: false,
        };
        let slots: Vec<Slot> = demands.iter().map(slot).collect();
        let asked = ask::ask(&map, look, &slots, &BTreeSet::new());
        for (name, demand) in &mut demands {
            let at = Timestamp::from_second(1_700_000_000 + second).unwrap();
            // What was recorded was closed by nobody.
            let found = Asked { closed: true, ..asked[*name] };
            let next = decide(demand, &policy, Some(&Seen { at, found: Ok(found) }));
            if next.awake != demand.awake {
                assert!(next.awake || found.pending == 0 && !found.busy, "{name} sleeps in use at {second} s");
                turns.get_mut(name).unwrap().push(second);
            }
            *demand = next;
        }
    }
    turns
}

#[test]
fn what_woke_real_brokers_wakes_them_and_no_more_often() {
    for first in 0..5 {
        let turns = play(VISITS, first, 5, 45);
        let [pond, sea] = ["pond", "sea"].map(|name| turns[name].as_slice());
        let &[woke, slept, again, at_last] = pond else { panic!("{first}: {turns:?}") };
        assert!((21..=31).contains(&woke) && (263..=275).contains(&again), "{first}: {turns:?}");
        // Visits of three seconds, eleven apart, keep it awake; then it stays for 45 s.
        assert!((221..=235).contains(&slept) && at_last > 355, "{first}: {turns:?}");
        assert!(sea.len() == 2 && sea[0] == again, "one job needs both: {turns:?}");
    }
}

#[test]
fn no_real_queue_makes_them_flap_however_seldom_it_is_looked_at() {
    for (trace, most) in [(VISITS, [2, 1]), (CHURN, [1, 2])] {
        for (first, every, idle) in [(0, 5, 30), (3, 5, 45), (0, 15, 30), (4, 15, 45), (11, 15, 60), (0, 15, 600)] {
            let turns = play(trace, first, every, idle);
            for (name, most) in ["pond", "sea"].into_iter().zip(most) {
                let starts: Vec<_> = turns[name].iter().step_by(2).copied().collect();
                assert!(starts.len() <= most, "{name}, {first}, {every}, {idle}: {turns:?}");
                assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= i64::from(idle)), "{name}: {turns:?}");
            }
        }
    }
}
