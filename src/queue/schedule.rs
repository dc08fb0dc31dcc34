//! Who starts: one pure function over quota, what runs and what waits.
//!
//! Whole MiniClusters start or wait: half an instance computes nothing. The first in line that could ever run is the
//! **head**; nothing that starts past it may delay it (EASY backfilling: Lifka, "The ANL/IBM SP Scheduling System", 1995).
//! That is judged by the time limits of what runs: the head's start is when enough of them are over. What has no limit
//! ends at some time nobody knows; of that, only what was there before the head is counted on to end. So no stream of
//! small runs, with limits or without, can starve a large one.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::room::Room;
use crate::api::flux_setup::Order;

/// Something that runs, or was told to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// What it takes.
    pub room: Room,
    /// When it started.
    pub since: Timestamp,
    /// When it ends at the latest.
    pub until: Option<Timestamp>,
}

/// Something that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting<K> {
    /// Which.
    pub key: K,
    /// What it takes.
    pub room: Room,
    /// The higher goes first.
    pub priority: i32,
    /// When it came.
    pub since: Timestamp,
    /// Seconds it takes at most.
    pub limit: Option<i64>,
}

/// How a namespace is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// All there is.
    pub quota: Room,
    /// Who goes first.
    pub order: Order,
    /// Whether others may pass the head.
    pub backfill: bool,
    /// Seconds anything may take at most.
    pub longest: Option<i64>,
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule<K> {
    /// These start now.
    pub start: Vec<K>,
    /// These never can, and why.
    pub never: Vec<(K, String)>,
    /// Who is next, and what it waits for.
    pub head: Option<(K, String)>,
    /// What is taken, with those that start.
    pub used: Room,
    /// What anybody who does not stand in line may take: it delays nobody who does.
    pub open: Room,
}

/// Decides who starts. `nodes` is asked last: what the nodes lack for it, `None` if it starts.
pub fn schedule<K: Ord + Clone>(
    rules: &Rules,
    running: &[Running],
    waiting: &[Waiting<K>],
    nodes: &mut dyn FnMut(&K) -> Option<String>,
    now: Timestamp,
) -> Schedule<K> {
    let mut used = Room::default();
    running.iter().for_each(|one| used += one.room);
    let mut free = rules.quota;
    free -= used;
    let mut schedule = Schedule { start: Vec::new(), never: Vec::new(), head: None, used, open: Room::default() };
    let mut line: Vec<&Waiting<K>> = Vec::with_capacity(waiting.len());
    for one in waiting {
        match never(rules, one) {
            Some(why) => schedule.never.push((one.key.clone(), why)),
            None => line.push(one),
        }
    }
    line.sort_by(|a, b| rank(rules, a).cmp(&rank(rules, b)));
    let mut started: Vec<Running> = Vec::new();
    let mut behind: Option<Gap> = None;
    // Whether it is known what the head leaves over.
    let mut surveyed = true;
    for one in line {
        let fits = free.holds(&one.room);
        match &mut behind {
            None if fits => {}
            None => {
                let lack = free.first_lack(&one.room).unwrap_or_default();
                schedule.head = Some((one.key.clone(), lack));
                if !rules.backfill {
                    surveyed = false;
                    break;
                }
                behind = Some(Gap::before(one, rules, running.iter().chain(&started)));
                continue;
            }
            Some(gap) => {
                if !fits || !gap.admits(one, now) {
                    continue;
                }
            }
        }
        if let Some(lack) = nodes(&one.key) {
            if schedule.head.is_some() {
                continue;
            }
            // Which nodes come free when is nobody's to know: whatever passed it could delay it.
            schedule.head = Some((one.key.clone(), lack));
            surveyed = false;
            break;
        }
        free -= one.room;
        schedule.used += one.room;
        let until = one.limit.map(|limit| later(now, limit));
        started.push(Running { room: one.room, since: now, until });
        schedule.start.push(one.key.clone());
    }
    schedule.open = match behind {
        _ if !surveyed => Room::default(),
        Some(gap) => gap.spare.least(&free),
        None => free.least(&free),
    };
    schedule
}

/// Why something can never start under these rules.
fn never<K>(rules: &Rules, one: &Waiting<K>) -> Option<String> {
    if let Some(lack) = rules.quota.first_lack(&one.room) {
        return Some(format!("it can never start here: {}", lack.replace(" are free", " is the whole quota")));
    }
    match (rules.longest, one.limit) {
        (Some(longest), None) => Some(format!("runs here must have a time limit of at most {longest} s")),
        (Some(longest), Some(limit)) if limit > longest => {
            Some(format!("its time limit is {limit} s; at most {longest} s are allowed here"))
        }
        _ => None,
    }
}

fn rank<'a, K>(rules: &Rules, one: &'a Waiting<K>) -> (Reverse<i32>, Timestamp, &'a K) {
    let priority = if rules.order == Order::Fifo { 0 } else { one.priority };
    (Reverse(priority), one.since, &one.key)
}

fn later(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Where others may pass the head.
struct Gap {
    /// When the head starts at the latest; `None`: when something ends whose end nobody knows.
    shadow: Option<Timestamp>,
    /// What the head leaves over then.
    spare: Room,
}

impl Gap {
    fn before<'a, K>(head: &Waiting<K>, rules: &Rules, running: impl Iterator<Item = &'a Running>) -> Self {
        let mut free = rules.quota;
        let mut ends: Vec<(Timestamp, Room)> = Vec::new();
        let mut unknown: Vec<&Running> = Vec::new();
        for one in running {
            free -= one.room;
            match one.until {
                Some(until) => ends.push((until, one.room)),
                None => unknown.push(one),
            }
        }
        ends.sort_by_key(|(until, _)| *until);
        for (until, room) in ends {
            free += room;
            if free.holds(&head.room) {
                free -= head.room;
                return Self { shadow: Some(until), spare: free };
            }
        }
        // Whatever started past this head is not counted on to end.
        for one in unknown.into_iter().filter(|one| one.since <= head.since) {
            free += one.room;
        }
        free -= head.room;
        Self { shadow: None, spare: free }
    }

    /// Whether `one` may pass; what it keeps of the spare room is then gone.
    fn admits<K>(&mut self, one: &Waiting<K>, now: Timestamp) -> bool {
        let over = match (self.shadow, one.limit) {
            (Some(shadow), Some(limit)) => later(now, limit) <= shadow,
            // It ends at a known time, so the head's start will be known when that is all it waits for.
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if over {
            return true;
        }
        let fits = self.spare.holds(&one.room);
        if fits {
            self.spare -= one.room;
        }
        fits
    }
}

#[cfg(test)]
mod tests;
