//! The queue's decision: how long it takes, and what backfilling is worth, over made-up days of a namespace.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use jiff::Timestamp;
use tributary::api::flux_setup::Order;
use tributary::clock::{Rng as _, SeededRng};
use tributary::queue::requests::Requests;
use tributary::queue::schedule::{Away, NodesWithoutEnd, Rules, Running, Waiting, schedule};

use crate::figures::{figure, line};
use crate::wire::now;

/// Jobs of a run.
const JOBS: usize = 10_000;

/// Brokers of the namespace.
const BROKERS: i64 = 1024;

/// One job of a made-up day.
struct Job {
    brokers: i64,
    comes: i64,
    lasts: i64,
    limit: i64,
}

/// Prints how long one decision takes, and utilisation and waits with and without backfilling.
pub(crate) fn queue() {
    decision();
    let jobs = day(&mut SeededRng::new(8));
    line(&format!(
        "queue: {JOBS} jobs on {BROKERS} brokers, 9 of 10 with a time limit of one to three times what they take"
    ));
    for (name, backfill) in [("first come, first served", false), ("backfilling", true)] {
        let (used, mut waits) = simulate(&jobs, backfill);
        waits.sort_unstable();
        let at = |percent: usize| Duration::from_secs(waits[(waits.len() - 1) * percent / 100].unsigned_abs());
        figure(&format!("{name}: brokers in use"), &format!("{:.1} %", used * 100.0), "-", "-");
        let text = format!("{:.0?} / {:.0?} / {:.0?}", at(50), at(95), at(100));
        figure(&format!("{name}: wait P50 / P95 / longest"), &text, "-", "-");
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a made-up day is a time")
}

fn room(brokers: i64) -> Requests {
    Requests { mini_clusters: 1, brokers, milli_cores: brokers * 4000, memory: brokers << 30, ..Requests::default() }
}

fn rules(backfill: bool) -> Rules {
    let quota = Requests { mini_clusters: 1 << 20, gpus: 1 << 20, ..room(BROKERS) };
    Rules { quota, order: Order::Priority, backfill, longest: None }
}

/// Sizes and lengths are spread over orders of magnitude, as those of real machines are.
fn day(rng: &mut SeededRng) -> Vec<Job> {
    let mut comes = 0.0;
    let mut jobs = Vec::with_capacity(JOBS);
    for _ in 0..JOBS {
        let brokers = (8.5 * rng.unit()).exp2();
        let lasts = 30.0 * (7.0 * rng.unit()).exp2();
        // What comes is nine tenths of what the namespace can do.
        comes += brokers * lasts / (BROKERS as f64 * 0.9);
        let limit = if rng.unit() < 0.1 { i64::MAX } else { (lasts * (1.0 + 2.0 * rng.unit())) as i64 + 1 };
        jobs.push(Job { brokers: brokers as i64, comes: comes as i64, lasts: lasts as i64, limit });
    }
    jobs
}

fn waits(index: usize, job: &Job) -> Waiting<usize> {
    let limit = (job.limit != i64::MAX).then_some(job.limit);
    Waiting {
        key: index,
        room: room(job.brokers),
        priority: 0,
        since: at(job.comes),
        turn: String::new(),
        limit,
        away: Away::Nowhere,
        grows: None,
    }
}

fn decision() {
    let jobs = day(&mut SeededRng::new(1));
    let line: Vec<_> = jobs.iter().enumerate().map(|(index, job)| waits(index, job)).collect();
    let running: Vec<_> = jobs
        .iter()
        .take(200)
        .map(|job| Running { room: room(4), since: at(job.comes), until: Some(at(1_000_000 + job.lasts)) })
        .collect();
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..50 {
        let started = now();
        let decided = schedule(&rules(true), &running, &line, &mut NodesWithoutEnd, at(1_000_000));
        took.push(started.elapsed());
        assert!(decided.head.is_some() && !decided.start.is_empty(), "there is something to decide");
    }
    took.sort_unstable();
    let text = format!("{:.1?} / {:.1?}", took[25], took[49]);
    figure(&format!("queue: one decision over {JOBS} waiting, P50 / longest"), &text, "-", "100 ms");
}

/// The share of brokers in use while jobs came, and how long each waited.
fn simulate(jobs: &[Job], backfill: bool) -> (f64, Vec<i64>) {
    let rules = rules(backfill);
    let mut waiting: Vec<Waiting<usize>> = Vec::new();
    let mut running: Vec<(usize, Running)> = Vec::new();
    let mut ends: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    let (mut next, mut used, mut before, mut delays) = (0, 0.0, 0, Vec::new());
    let last = jobs.last().map_or(0, |job| job.comes);
    while delays.len() < jobs.len() {
        let ending = ends.peek().map_or(i64::MAX, |Reverse((at, _))| *at);
        let coming = jobs.get(next).map_or(i64::MAX, |job| job.comes);
        let moment = ending.min(coming);
        let busy: i64 = running.iter().map(|(_, one)| one.room.brokers).sum();
        used += busy as f64 * (moment.min(last) - before).max(0) as f64;
        before = moment.min(last);
        while ends.peek().is_some_and(|Reverse((at, _))| *at <= moment) {
            let Some(Reverse((_, index))) = ends.pop() else { break };
            running.retain(|(of, _)| *of != index);
        }
        while jobs.get(next).is_some_and(|job| job.comes <= moment) {
            waiting.push(waits(next, &jobs[next]));
            next += 1;
        }
        let seen: Vec<Running> = running.iter().map(|(_, one)| one.clone()).collect();
        let start = schedule(&rules, &seen, &waiting, &mut NodesWithoutEnd, at(moment)).start;
        for index in &start {
            let job = &jobs[*index];
            delays.push(moment - job.comes);
            ends.push(Reverse((moment + job.lasts, *index)));
            let until = (job.limit != i64::MAX).then(|| at(moment + job.limit));
            running.push((*index, Running { room: room(job.brokers), since: at(moment), until }));
        }
        let started: std::collections::BTreeSet<usize> = start.into_iter().collect();
        waiting.retain(|one| !started.contains(&one.key));
    }
    (used / (BROKERS as f64 * last as f64), delays)
}
