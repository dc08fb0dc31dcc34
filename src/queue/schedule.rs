//! Who starts: one pure function over quota, what runs and what waits.
//!
//! Whole MiniClusters start or wait: half an instance computes nothing. The first in line that could ever run is the
//! **head**; nothing that starts past it may delay it (EASY backfilling: Lifka, "The ANL/IBM SP Scheduling System", 1995).
//! That is judged by the time limits of what runs: the head's start is when enough of them are over. What has no limit
//! ends at some time nobody knows, which may be now, or after all limits; of that, only what was there before the head is
//! counted on to end. What passes the head delays it in neither case. So it starts at the latest when all is over that ran
//! before it came, and no stream of small runs, with limits or without, can starve a large one.
//!
//! Who could not run whatever else ends, since it is larger than the quota or than all nodes, is never the head: it would hold
//! up everybody for ever. It keeps its place in line, and is looked at again in each round.
//!
//! What is sent to a peer as a whole takes nothing here, so it delays nobody here: it may pass the head as well.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tributary_api::flux_setup::Order;

use super::limits::{foreseen, too_long};
use super::requests::Requests;

/// Something that runs, or was told to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// What it takes.
    pub room: Requests,
    /// When it started.
    pub since: Timestamp,
    /// When it ends at the latest, if others may plan on that.
    pub until: Option<Timestamp>,
}

/// Something that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting<K> {
    /// Which.
    pub key: K,
    /// What it takes.
    pub room: Requests,
    /// The higher goes first.
    pub priority: i32,
    /// When it came, as Kubernetes tells it: to the second.
    pub since: Timestamp,
    /// Of those that came in the same second, the lesser goes first.
    pub turn: String,
    /// Seconds it takes at most; others plan on it only if it was [`foreseen`].
    pub limit: Option<i64>,
    /// Where else it may start when it does not fit here.
    pub away: Away,
    /// It runs and wants more: its place among those that run. `requests` is what it wants besides what it has.
    pub grows: Option<usize>,
}

/// Where something may start that does not fit here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Away {
    /// Nowhere: it waits.
    #[default]
    Nowhere,
    /// A part of its brokers on a peer, the others here.
    Parts,
    /// All of it on a peer.
    Whole,
}

/// How a namespace is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// All there is.
    pub quota: Requests,
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
    /// Of these that start, only so many brokers do so here.
    pub parts: BTreeMap<K, i64>,
    /// Of these that start, nothing does so here.
    pub sent: BTreeSet<K>,
    /// These never can, and why.
    pub never: Vec<(K, String)>,
    /// These fit the quota, but the nodes could not hold them whatever else ends, and why.
    pub unfit: Vec<(K, String)>,
    /// Who is next, and what it waits for.
    pub head: Option<(K, String)>,
    /// What is taken, with those that start.
    pub used: Requests,
    /// What anybody who does not stand in line may take: it delays nobody who does.
    pub open: Requests,
}

/// What the schedule has to know beyond the quota. It is asked last, and only about whoever could start otherwise.
pub trait Outside<K> {
    /// How many of so many brokers of it the nodes have no room for, beside all that starts.
    fn lacking(&mut self, key: &K, brokers: i64) -> i64;
    /// Why the nodes that are there could not hold all of it whatever else ends; `None`: they could.
    fn short(&mut self, key: &K) -> Option<String>;
    /// Whether a peer has room for so many of its brokers. It is asked once for each that starts in part, or elsewhere.
    fn takes(&mut self, key: &K, brokers: i64) -> bool;
    /// Whether it is told elsewhere why it does not start on a peer.
    fn says_why(&self, _key: &K) -> bool {
        false
    }
    /// It starts, with so many brokers here.
    fn starts(&mut self, key: &K, brokers: i64);
}

/// Nodes without end, and no peer.
#[derive(Clone, Copy, Debug)]
pub struct NodesWithoutEnd;

impl<K> Outside<K> for NodesWithoutEnd {
    fn lacking(&mut self, _key: &K, _brokers: i64) -> i64 {
        0
    }

    fn short(&mut self, _key: &K) -> Option<String> {
        None
    }

    fn takes(&mut self, _key: &K, _brokers: i64) -> bool {
        false
    }

    fn starts(&mut self, _key: &K, _brokers: i64) {}
}

/// Decides who starts. Where the first in line does not fit, and a part of it may run elsewhere, as many of its brokers as fit
/// start here, if a peer takes the others. What may run elsewhere as a whole does so when it cannot start here now, if a peer
/// takes it.
pub fn schedule<K: Ord + Clone>(
    rules: &Rules,
    running: &[Running],
    waiting: &[Waiting<K>],
    outside: &mut dyn Outside<K>,
    now: Timestamp,
) -> Schedule<K> {
    let mut used = Requests::default();
    running.iter().for_each(|one| used += one.room);
    let mut free = rules.quota;
    free -= used;
    let mut schedule = Schedule {
        start: Vec::new(),
        parts: BTreeMap::new(),
        sent: BTreeSet::new(),
        never: Vec::new(),
        unfit: Vec::new(),
        head: None,
        used,
        open: Requests::default(),
    };
    let mut line: Vec<(&Waiting<K>, Option<String>)> = Vec::with_capacity(waiting.len());
    for one in waiting {
        match never(rules, running, one) {
            Some(why) if !may_ever_start_otherwise(rules, one) => schedule.never.push((one.key.clone(), why)),
            // What is too large for here starts in part, elsewhere or not at all: it is never the head.
            too_large => line.push((one, too_large)),
        }
    }
    line.sort_by(|(a, _), (b, _)| rank(rules, a).cmp(&rank(rules, b)));
    let mut started: Vec<Running> = Vec::new();
    let mut behind: Option<Gap> = None;
    // Whether it is known what the head leaves over, and so who else may start here.
    let mut surveyed = true;
    for (one, too_large) in line {
        let fits = too_large.is_none() && free.holds(&one.room);
        let may = surveyed && behind.as_ref().is_none_or(|gap| fits && gap.admits(one, now));
        let all = one.room.brokers;
        let lacking = if fits && may { outside.lacking(&one.key, all) } else { 0 };
        if one.away == Away::Whole && (!fits || !may || lacking > 0) && outside.takes(&one.key, all) {
            schedule.start.push(one.key.clone());
            schedule.sent.insert(one.key.clone());
            continue;
        }
        let here = match (fits, lacking) {
            _ if !may => continue,
            (true, 0) => all,
            _ if behind.is_some() => continue,
            _ => part(one, &free, fits.then_some(all - lacking), outside),
        };
        if here == 0 {
            if let Some(why) = too_large {
                let what = if one.away == Away::Whole { "all" } else { "the rest" };
                let why = match outside.says_why(&one.key) {
                    true => why,
                    false => format!("{why}; and no peer has room for {what} of it now"),
                };
                schedule.never.push((one.key.clone(), why));
                continue;
            }
            if let Some(why) = outside.short(&one.key) {
                schedule.unfit.push((one.key.clone(), why));
                continue;
            }
            let lack = match fits {
                true => format!("the nodes have no room for {lacking} of its {all} brokers"),
                false => free.first_lack(&one.room).unwrap_or_default(),
            };
            schedule.head = Some((one.key.clone(), lack));
            // Nobody knows which nodes come free when: one that starts here before it could delay it.
            surveyed = rules.backfill && !fits;
            if !rules.backfill {
                break;
            }
            if surveyed {
                behind = Some(Gap::before(one, rules, running.iter().chain(&started)));
            }
            continue;
        }
        let room = one.room.of_brokers(here);
        if let Some(gap) = &mut behind {
            gap.passed(one, now);
        }
        free -= room;
        schedule.used += room;
        let until = foreseen(one.limit).map(|limit| later(now, limit));
        started.push(Running { room, since: now, until });
        outside.starts(&one.key, here);
        if here < all {
            schedule.parts.insert(one.key.clone(), here);
        }
        schedule.start.push(one.key.clone());
    }
    schedule.open = match behind {
        _ if !surveyed => Requests::default(),
        Some(gap) => gap.spare(free),
        None => free.least(&free),
    };
    schedule
}

/// How many brokers of one that does not start as a whole start here; 0: none, since it may not be parted, its lead has no
/// room here, or nobody takes the others. `most`: what the nodes have room for, if that is known.
fn part<K>(one: &Waiting<K>, free: &Requests, most: Option<i64>, outside: &mut dyn Outside<K>) -> i64 {
    if one.away != Away::Parts {
        return 0;
    }
    let all = one.room.brokers;
    let here = free.brokers_of(&one.room).min(all - 1).min(most.unwrap_or(all));
    let here = if most.is_none() && here > 0 { here - outside.lacking(&one.key, here) } else { here };
    if here > 0 && outside.takes(&one.key, all - here) { here } else { 0 }
}

/// Whether it could start elsewhere, or at least its lead broker here, and only its size is in the way of the whole.
fn may_ever_start_otherwise<K>(rules: &Rules, one: &Waiting<K>) -> bool {
    let somewhere = match one.away {
        Away::Nowhere => false,
        Away::Parts => rules.quota.brokers_of(&one.room) > 0,
        Away::Whole => true,
    };
    somewhere && too_long(one.limit, rules.longest).is_none()
}

/// Why something can never start, or grow so far, under these rules.
fn never<K>(rules: &Rules, running: &[Running], one: &Waiting<K>) -> Option<String> {
    let mut all = one.room;
    let has = one.grows.and_then(|index| running.get(index));
    if let Some(has) = has {
        all += has.room;
    }
    if let Some(lack) = rules.quota.first_lack(&all) {
        let what = if has.is_some() { "be so large" } else { "start" };
        return Some(never_can(what, &lack));
    }
    // How long it runs was decided when it started.
    if has.is_some() { None } else { too_long(one.limit, rules.longest) }
}

/// Said of what the whole quota is too small for.
pub(crate) fn never_can(what: &str, lack: &str) -> String {
    format!("it can never {what} here: {}", lack.replace(" are free", " is the whole quota"))
}

fn rank<'a, K>(rules: &Rules, one: &'a Waiting<K>) -> (Reverse<i32>, Timestamp, &'a str, &'a K) {
    let priority = if rules.order == Order::Fifo { 0 } else { one.priority };
    (Reverse(priority), one.since, &one.turn, &one.key)
}

fn later(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Where others may pass the head: where none of its starts is delayed.
struct Gap(Vec<Start>);

/// When the head may start.
struct Start {
    /// Not before this moment; `None`: any moment.
    at: Option<Timestamp>,
    /// What the head leaves over then, whatever runs longer.
    spare: Requests,
}

impl Gap {
    fn before<'a, K>(head: &Waiting<K>, rules: &Rules, running: impl Iterator<Item = &'a Running>) -> Self {
        let mut free = rules.quota;
        let mut ends: Vec<(Timestamp, Requests)> = Vec::new();
        let mut unknown = Requests::default();
        for (index, one) in running.enumerate() {
            free -= one.room;
            match one.until {
                // What it has itself does not make room for what it wants besides.
                _ if head.grows == Some(index) => {}
                Some(until) => ends.push((until, one.room)),
                // Whatever started past this head is not counted on to end.
                None if one.since <= head.since => unknown += one.room,
                None => {}
            }
        }
        ends.sort_by_key(|(until, _)| *until);
        // At the latest, if limits alone make room for it; and at the earliest, if all that has none ends at once.
        let latest = Start::of(free, &ends, head.room);
        free += unknown;
        let earliest = Start::of(free, &ends, head.room).unwrap_or_else(|| {
            free -= head.room;
            Start { at: None, spare: free }
        });
        Self(latest.into_iter().chain([earliest]).collect())
    }

    /// Whether `one` may pass.
    fn admits<K>(&self, one: &Waiting<K>, now: Timestamp) -> bool {
        self.0.iter().all(|start| start.comes_after(one, now) || start.spare.holds(&one.room))
    }

    /// `one` starts here, past the head: what it still takes when that starts is no more to spare.
    fn passed<K>(&mut self, one: &Waiting<K>, now: Timestamp) {
        for start in self.0.iter_mut().filter(|start| !start.comes_after(one, now)) {
            start.spare -= one.room;
        }
    }

    /// What anybody may take, for however long.
    fn spare(&self, free: Requests) -> Requests {
        self.0.iter().fold(free, |least, start| least.least(&start.spare))
    }
}

impl Start {
    /// When there is room for the head, beside what is `free` and comes free at these ends; `None`: never.
    fn of(mut free: Requests, ends: &[(Timestamp, Requests)], head: Requests) -> Option<Self> {
        let mut at = None;
        let mut ends = ends.iter();
        while !free.holds(&head) {
            let (end, room) = ends.next()?;
            at = Some(*end);
            free += *room;
        }
        free -= head;
        Some(Self { at, spare: free })
    }

    /// `one` is over by then.
    fn comes_after<K>(&self, one: &Waiting<K>, now: Timestamp) -> bool {
        let ends = foreseen(one.limit).map(|limit| later(now, limit));
        ends.zip(self.at).is_some_and(|(ends, at)| ends <= at)
    }
}

#[cfg(test)]
mod tests;
