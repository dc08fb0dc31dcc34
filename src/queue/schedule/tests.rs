use proptest::prelude::*;

use super::*;
use crate::api::minicluster::DEFAULT_DEADLINE_SECONDS;

/// Without a look at nodes.
fn schedule<K: Ord + Clone>(rules: &Rules, running: &[Running], waiting: &[Waiting<K>], now: Timestamp) -> Schedule<K> {
    super::schedule(rules, running, waiting, &mut NodesWithoutEnd, now)
}

/// Nodes with no room for one of the keys, and a peer with so many brokers left.
struct World {
    full_for: u32,
    peer: i64,
}

impl Outside<u32> for World {
    fn lacking(&mut self, key: &u32, _brokers: i64) -> i64 {
        i64::from(*key == self.full_for)
    }

    fn short(&mut self, _key: &u32) -> Option<String> {
        None
    }

    fn takes(&mut self, _key: &u32, brokers: i64) -> bool {
        let takes = brokers <= self.peer;
        self.peer -= if takes { brokers } else { 0 };
        takes
    }

    fn starts(&mut self, _key: &u32, _brokers: i64) {}
}

fn beside(rules: &Rules, running: &[Running], waiting: &[Waiting<u32>], mut world: World) -> Schedule<u32> {
    super::schedule(rules, running, waiting, &mut world, at(9))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn brokers(brokers: i64) -> Room {
    Room { mini_clusters: 1, brokers, ..Room::default() }
}

fn rules(brokers: i64) -> Rules {
    let quota = Room { mini_clusters: 1000, brokers, ..Room::UNLIMITED };
    Rules { quota, order: Order::Priority, backfill: true, longest: None }
}

fn waits(key: u32, size: i64, since: i64, limit: Option<i64>) -> Waiting<u32> {
    Waiting { key, room: brokers(size), priority: 0, since: at(since), limit, away: Away::Nowhere, grows: None }
}

fn runs(size: i64, since: i64, until: Option<i64>) -> Running {
    Running { room: brokers(size), since: at(since), until: until.map(at) }
}

#[test]
fn whoever_came_first_starts_first_and_priority_goes_before() {
    let line = [waits(1, 4, 1, None), waits(2, 4, 2, None), waits(3, 4, 3, None)];
    assert_eq!(schedule(&rules(8), &[], &line, at(9)).start, [1, 2]);
    let mut line = line;
    line[2].priority = 1;
    assert_eq!(schedule(&rules(8), &[], &line, at(9)).start, [3, 1]);
    assert_eq!(schedule(&Rules { order: Order::Fifo, ..rules(8) }, &[], &line, at(9)).start, [1, 2]);
    let seen = schedule(&rules(8), &[runs(6, 0, None)], &line, at(9));
    assert_eq!(seen.head, Some((3, "4 brokers are needed, 2 are free".into())));
}

#[test]
fn what_never_fits_holds_nobody_up() {
    let line = [waits(1, 9, 1, None), waits(2, 4, 2, None), waits(3, 1, 3, Some(600))];
    let seen = schedule(&rules(8), &[], &line, at(9));
    assert_eq!(seen.start, [2, 3]);
    assert_eq!(seen.never, [(1, "it can never start here: 9 brokers are needed, 8 is the whole quota".into())]);
    let seen = schedule(&Rules { longest: Some(300), ..rules(8) }, &[], &line[1..], at(9));
    assert!(seen.start.is_empty());
    assert_eq!(seen.never[0].1, "runs here must have a time limit of at most 300 s");
    assert_eq!(seen.never[1].1, "its time limit is 600 s; at most 300 s are allowed here");
}

#[test]
fn others_pass_the_head_only_where_that_does_not_delay_it() {
    // 6 of 8 run until 100; the head needs 7.
    let running = [runs(6, 0, Some(100))];
    let head = waits(1, 7, 1, None);
    let pass = |other: Waiting<u32>| schedule(&rules(8), &running, &[head.clone(), other], at(10)).start;
    assert_eq!(pass(waits(2, 2, 2, Some(90))), [2], "it is over when the head starts");
    assert_eq!(pass(waits(2, 2, 2, Some(91))), [0; 0], "it would run on");
    assert_eq!(pass(waits(2, 1, 2, None)), [2], "beside the head there is room for one");
    assert_eq!(pass(waits(2, 2, 2, None)), [0; 0]);
    let strict = Rules { backfill: false, ..rules(8) };
    assert_eq!(schedule(&strict, &running, &[head.clone(), waits(2, 1, 2, Some(5))], at(10)).start, [0; 0]);
}

#[test]
fn what_passed_the_head_is_not_counted_on_to_end() {
    // The head of 6 came at 1; 2 without a limit ran before it, 2 started past it.
    let running = [runs(2, 0, None), runs(2, 5, None)];
    let line = [waits(1, 6, 1, None), waits(2, 2, 2, None), waits(3, 2, 2, None)];
    let seen = schedule(&rules(8), &running, &line, at(10));
    assert!(seen.start.is_empty(), "with another one the head would not fit when the first ends: {seen:?}");
    let seen = schedule(&rules(11), &running, &[waits(1, 8, 1, None), waits(2, 1, 2, None)], at(10));
    assert_eq!(seen.start, [2], "there is room for it beside the head, with what started past that as well");
}

#[test]
fn what_ends_some_day_does_not_pass_a_head_that_may_start_sooner() {
    // The head of 8 starts when the one without a limit ends: nobody knows when.
    let running = [runs(2, 0, None)];
    for limit in [50, DEFAULT_DEADLINE_SECONDS] {
        let line = [waits(1, 8, 1, None), waits(2, 2, 2, Some(limit))];
        assert_eq!(schedule(&rules(8), &running, &line, at(10)).start, [0; 0], "{limit} s");
        let line = [waits(1, 8, 1, None), waits(2, 1, 2, Some(limit))];
        assert_eq!(schedule(&rules(9), &running, &line, at(10)).start, [2], "{limit} s, beside it");
    }
    // It waits for one that ends at 100 as well, so it does not start before.
    let running = [runs(2, 0, None), runs(2, 0, Some(100))];
    let passes =
        |limit: i64| schedule(&rules(8), &running, &[waits(1, 8, 1, None), waits(2, 2, 2, Some(limit))], at(10));
    assert_eq!((passes(90).start, passes(91).start), (vec![2], vec![]));
    // It need not wait for the one with a limit, if one of those without ends before.
    let running = [runs(1, 0, None), runs(1, 0, Some(100))];
    let line = [waits(1, 7, 1, None), waits(2, 1, 2, Some(9))];
    assert_eq!(schedule(&rules(8), &running, &line, at(10)).start, [0; 0]);
    // Whoever fits beside the head only once that one has ended as well does not pass: the other may end before.
    let line = [waits(1, 6, 1, None), waits(2, 2, 2, None)];
    assert_eq!(schedule(&rules(8), &[runs(4, 0, None), runs(2, 0, Some(100))], &line, at(10)).start, [0; 0]);
}

#[test]
fn the_deadline_that_nobody_wrote_is_no_end_to_plan_on() {
    // The first to start would end in a year, and a day is less: but the head of 7 may start any time before.
    let line = [waits(1, 6, 0, Some(DEFAULT_DEADLINE_SECONDS)), waits(2, 7, 1, None), waits(3, 2, 2, Some(86_400))];
    assert_eq!(schedule(&rules(8), &[], &line, at(10)).start, [1]);
}

#[test]
fn nothing_passes_whoever_waits_for_nodes() {
    let line = [waits(1, 2, 1, None), waits(2, 4, 2, None), waits(3, 1, 3, Some(1))];
    let seen = beside(&rules(8), &[], &line, World { full_for: 2, peer: 0 });
    let lack = "the nodes have no room for 1 of its 4 brokers".to_owned();
    assert_eq!((seen.start, seen.head, seen.open), (vec![1], Some((2, lack)), Room::default()));
    // Behind a head that waits for the quota, who lacks nodes is passed over.
    let line = [waits(1, 9, 1, None), waits(2, 1, 2, Some(1)), waits(3, 1, 3, Some(1))];
    let running = [runs(5, 0, Some(100))];
    let seen = beside(&rules(10), &running, &line, World { full_for: 2, peer: 0 });
    assert_eq!(seen.start, [3]);
}

/// Nodes that hold so many brokers in all, and a log of what was asked.
struct Nodes {
    all: i64,
    free: i64,
    sizes: BTreeMap<u32, i64>,
}

impl Outside<u32> for Nodes {
    fn lacking(&mut self, _key: &u32, brokers: i64) -> i64 {
        (brokers - self.free).max(0)
    }

    fn short(&mut self, key: &u32) -> Option<String> {
        (self.sizes[key] > self.all).then(|| "too small".to_owned())
    }

    fn takes(&mut self, _key: &u32, _brokers: i64) -> bool {
        false
    }

    fn starts(&mut self, _key: &u32, brokers: i64) {
        self.free -= brokers;
    }
}

#[test]
fn what_the_nodes_could_never_hold_is_not_the_head() {
    let on = |free: i64, running: &[Running], line: &[Waiting<u32>]| {
        let sizes = line.iter().map(|one| (one.key, one.room.brokers)).collect();
        super::schedule(&rules(10), running, line, &mut Nodes { all: 6, free, sizes }, at(9))
    };
    let line = [waits(1, 7, 1, None), waits(2, 6, 2, None), waits(3, 2, 3, Some(1))];
    let seen = on(6, &[], &line);
    let head = seen.head.map(|(head, _)| head);
    assert_eq!((seen.start, seen.unfit, head), (vec![2], vec![(1, "too small".into())], Some(3)));
    // One that the empty nodes could hold keeps its place before all others.
    let seen = on(5, &[], &line);
    assert_eq!((seen.start, seen.head.unwrap().0), (vec![], 2));
    // Nor does it make the others wait until the quota has room for it.
    let seen = on(6, &[runs(4, 0, None)], &line);
    assert_eq!((seen.start, seen.unfit.len()), (vec![2], 1));
}

#[test]
fn what_does_not_start_past_the_head_takes_nothing_of_what_it_leaves_over() {
    // The head of 7 starts at 100; then one broker is left over.
    let running = [runs(6, 0, Some(100))];
    let line = [waits(1, 7, 1, None), waits(2, 1, 2, None), waits(3, 1, 3, None)];
    let seen = beside(&rules(8), &running, &line, World { full_for: 2, peer: 0 });
    assert_eq!(seen.start, [3], "the nodes have no room for the other");
    assert_eq!(schedule(&rules(8), &running, &line, at(9)).start, [2]);
    let mut line = line;
    line[1].away = Away::Whole;
    let seen = beside(&rules(8), &running, &line, World { full_for: 2, peer: 1 });
    assert_eq!((seen.start, seen.sent), (vec![2, 3], [2].into()), "it takes nothing here");
}

/// Nodes without end, and how often they and peers were asked.
#[derive(Default)]
struct Counted(u32);

impl Outside<u32> for Counted {
    fn lacking(&mut self, _key: &u32, _brokers: i64) -> i64 {
        self.0 += 1;
        0
    }

    fn short(&mut self, _key: &u32) -> Option<String> {
        self.0 += 1;
        None
    }

    fn takes(&mut self, _key: &u32, _brokers: i64) -> bool {
        self.0 += 1;
        false
    }

    fn starts(&mut self, _key: &u32, _brokers: i64) {}
}

/// To ask is what takes long: each look goes over all nodes and pods.
#[test]
fn nodes_are_asked_about_those_alone_that_could_start() {
    let line: Vec<_> = (0..10_000).map(|key| waits(key, 1 + i64::from(key % 4), i64::from(key), None)).collect();
    let mut asked = Counted::default();
    let seen = super::schedule(&rules(64), &[runs(8, 0, None)], &line, &mut asked, at(20_000));
    assert_eq!(seen.used.brokers, 64);
    assert_eq!(usize::try_from(asked.0), Ok(seen.start.len() + 1), "and once about the head");
}

fn parted(key: u32, size: i64, since: i64) -> Waiting<u32> {
    Waiting { away: Away::Parts, ..waits(key, size, since, None) }
}

#[test]
fn the_first_in_line_starts_in_part_where_a_peer_has_room_for_the_others() {
    let line = [parted(1, 6, 1), parted(2, 4, 2)];
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 2 });
    assert_eq!((seen.start, seen.parts, seen.used.brokers), (vec![1, 2], [(2, 2)].into(), 8));
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 1 });
    assert_eq!((seen.start, seen.parts.len()), (vec![1], 0), "the peer has too little");
    assert_eq!(seen.head.unwrap().1, "4 brokers are needed, 2 are free");
    // Its lead stays here; and who may not be parted waits.
    let full = [runs(8, 0, None)];
    assert!(beside(&rules(8), &full, &line, World { full_for: 0, peer: 99 }).start.is_empty());
    let whole = [waits(1, 9, 1, None), waits(2, 6, 2, None), parted(3, 4, 3)];
    let seen = beside(&rules(8), &[], &whole, World { full_for: 0, peer: 99 });
    assert_eq!((seen.start, seen.parts), (vec![2, 3], [(3, 2)].into()));
    // Nodes have room for less than the quota.
    let seen = beside(&rules(8), &[], &[parted(1, 6, 1)], World { full_for: 1, peer: 3 });
    assert_eq!((seen.start, seen.parts), (vec![1], [(1, 5)].into()));
}

#[test]
fn what_is_larger_than_the_quota_starts_in_part_or_holds_nobody_up() {
    let line = [parted(1, 12, 1), waits(2, 4, 2, None)];
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 4 });
    assert_eq!((seen.start, seen.parts), (vec![1], [(1, 8)].into()));
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 3 });
    assert_eq!(seen.start, [2]);
    let told = "it can never start here: 12 brokers are needed, 8 is the whole quota; and no peer has room for the rest of it now";
    assert_eq!(seen.never, [(1, told.to_owned())]);
}

fn whole(key: u32, size: i64, since: i64) -> Waiting<u32> {
    Waiting { away: Away::Whole, ..waits(key, size, since, None) }
}

#[test]
fn what_does_not_fit_is_sent_where_a_peer_has_room_for_all_of_it() {
    let sent = |seen: &Schedule<u32>| seen.sent.iter().copied().collect::<Vec<_>>();
    // The first fits here, and stays; the others do not.
    let line = [whole(1, 6, 1), whole(2, 4, 2), whole(3, 3, 3)];
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 7 });
    assert_eq!((sent(&seen), seen.used.brokers, seen.head.clone()), (vec![2, 3], 6, None));
    assert_eq!(seen.start, [1, 2, 3]);
    // Too little there: it waits here, and who is behind it and could not start here now either goes elsewhere.
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 3 });
    assert_eq!((seen.start.clone(), sent(&seen)), (vec![1, 3], vec![3]));
    assert_eq!(seen.head.unwrap(), (2, "4 brokers are needed, 2 are free".into()));
    let strict = Rules { backfill: false, ..rules(8) };
    assert_eq!(beside(&strict, &[], &line, World { full_for: 0, peer: 3 }).start, [1], "nobody passes anybody");
    // Nodes that are full are no reason to stay.
    let seen = beside(&rules(8), &[], &[whole(1, 6, 1)], World { full_for: 1, peer: 6 });
    assert_eq!((sent(&seen), seen.used.brokers), (vec![1], 0));
    // Nobody who may not be sent is.
    let full = [runs(8, 0, None)];
    let seen = beside(&rules(8), &full, &[waits(1, 2, 1, None), whole(2, 2, 2)], World { full_for: 0, peer: 9 });
    assert_eq!((seen.start.clone(), sent(&seen), seen.head.unwrap().0), (vec![2], vec![2], 1));
}

#[test]
fn what_is_larger_than_the_quota_is_sent_or_holds_nobody_up() {
    let line = [whole(1, 12, 1), waits(2, 4, 2, None)];
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 12 });
    assert_eq!((seen.start, seen.sent), (vec![1, 2], [1].into()));
    let seen = beside(&rules(8), &[], &line, World { full_for: 0, peer: 11 });
    assert_eq!((seen.start, seen.head), (vec![2], None));
    let told =
        "it can never start here: 12 brokers are needed, 8 is the whole quota; and no peer has room for all of it now";
    assert_eq!(seen.never, [(1, told.to_owned())]);
    let limited = Rules { longest: Some(60), ..rules(8) };
    let seen = beside(&limited, &[], &line[..1], World { full_for: 0, peer: 12 });
    assert!(seen.sent.is_empty(), "how long it may run is decided here");
}

/// `has` of what runs wants `more`.
fn grows(key: u32, more: i64, since: i64, index: usize) -> Waiting<u32> {
    let room = Room { mini_clusters: 0, ..brokers(more) };
    Waiting { room, grows: Some(index), ..waits(key, more, since, None) }
}

#[test]
fn who_grows_stands_in_line_for_the_difference() {
    let running = [runs(3, 0, None), runs(2, 0, Some(100))];
    let seen = schedule(&rules(8), &running, &[grows(1, 3, 1, 0)], at(10));
    assert_eq!((seen.start, seen.used.brokers, seen.used.mini_clusters), (vec![1], 8, 2));
    // It is the head like any other: what it has itself is not counted on to end.
    let line = [grows(1, 5, 1, 0), waits(2, 2, 2, Some(90)), waits(3, 1, 3, None)];
    let seen = schedule(&rules(8), &running, &line, at(10));
    assert_eq!(seen.head, Some((1, "5 brokers are needed, 3 are free".into())));
    assert_eq!((seen.start, seen.open.brokers), (vec![2], 0), "the third would be in its way at 100");
    // Who came before it goes first.
    let line = [grows(1, 3, 5, 0), waits(2, 3, 2, None)];
    assert_eq!(schedule(&rules(8), &running, &line, at(10)).start, [2]);
    let seen = schedule(&rules(8), &running, &[grows(1, 6, 1, 0), waits(2, 3, 2, None)], at(10));
    let told = "it can never be so large here: 9 brokers are needed, 8 is the whole quota";
    assert_eq!((seen.start, seen.never), (vec![2], vec![(1, told.to_owned())]));
    // How long it may run was asked when it started.
    let limited = Rules { longest: Some(60), ..rules(8) };
    assert_eq!(schedule(&limited, &running, &[grows(1, 3, 1, 0)], at(10)).start, [1]);
}

/// Runs a line to its end: `jobs` are size, seconds, and the limit that is said; returns when each started.
fn simulate(rules: &Rules, jobs: &[(i64, i64, Option<i64>)], apart: i64) -> Vec<i64> {
    let mut started = vec![None; jobs.len()];
    let mut running: Vec<(i64, Running)> = Vec::new();
    let mut now = 0;
    while started.iter().any(Option::is_none) {
        running.retain(|(end, _)| *end > now);
        let come = |index: usize| i64::try_from(index).unwrap() * apart;
        let line: Vec<_> = (0..jobs.len())
            .filter(|index| started[*index].is_none() && come(*index) <= now)
            .map(|index| {
                let (size, _, limit) = jobs[index];
                waits(u32::try_from(index).unwrap(), size, come(index), limit)
            })
            .collect();
        let seen: Vec<Running> = running.iter().map(|(_, one)| one.clone()).collect();
        let decided = schedule(rules, &seen, &line, at(now));
        assert!(rules.quota.holds(&decided.used), "over quota at {now}: {decided:?}");
        assert_eq!(decided, schedule(rules, &seen, &line, at(now)), "the same again");
        for key in decided.start {
            let (size, lasts, limit) = jobs[key as usize];
            started[key as usize] = Some(now);
            running.push((now + lasts, runs(size, now, foreseen(limit).map(|limit| now + limit))));
        }
        now += 1;
        assert!(now < 100_000, "somebody starves: {started:?}");
    }
    started.into_iter().flatten().collect()
}

#[test]
fn an_endless_stream_of_small_ones_does_not_starve_a_large_one() {
    for limit in [None, Some(40), Some(DEFAULT_DEADLINE_SECONDS)] {
        let mut jobs = vec![(2, 40, limit); 400];
        jobs[3] = (8, 10, limit);
        let started = simulate(&rules(8), &jobs, 5);
        assert!(started[3] <= 15 + 80, "limit {limit:?}: the large one came at 15 and started at {}", started[3]);
    }
    // The large one waits for one that has no limit; those behind it run for long, and say so.
    for limit in [Some(5_000), Some(DEFAULT_DEADLINE_SECONDS)] {
        let mut jobs = vec![(2, 5_000, limit); 9];
        (jobs[0], jobs[1]) = ((2, 40, None), (8, 10, None));
        assert_eq!(simulate(&rules(8), &jobs, 5)[1], 40, "limit {limit:?}");
    }
}

/// Who comes behind a head: size, when, seconds, limit.
type Comer = (i64, i64, i64, Option<i64>);

/// When the head of `size` starts, which came when `running` ran already: size, seconds, limit. Behind it others come.
fn head_among(running: &[(i64, i64, Option<i64>)], size: i64, others: &[Comer]) -> i64 {
    const HEAD: u32 = 0;
    let until = |since: i64, limit| foreseen(limit).map(|limit| since + limit);
    let mut all: Vec<(i64, Running)> =
        running.iter().map(|(size, lasts, limit)| (*lasts, runs(*size, 0, until(0, *limit)))).collect();
    let mut waiting: Vec<(u32, &Comer)> = (1..).zip(others).collect();
    for now in 1.. {
        all.retain(|(end, _)| *end > now);
        let mut line = vec![waits(HEAD, size, 1, None)];
        let come = waiting.iter().filter(|(_, (_, since, ..))| *since <= now);
        line.extend(come.map(|(key, (size, since, _, limit))| waits(*key, *size, *since, *limit)));
        let seen: Vec<Running> = all.iter().map(|(_, one)| one.clone()).collect();
        let decided = schedule(&rules(8), &seen, &line, at(now));
        if decided.start.contains(&HEAD) {
            return now;
        }
        for (_, (size, _, lasts, limit)) in waiting.iter().filter(|(key, _)| decided.start.contains(key)) {
            all.push((now + lasts, runs(*size, now, until(now, *limit))));
        }
        waiting.retain(|(key, _)| !decided.start.contains(key));
        assert!(now < 10_000, "the head starves");
    }
    unreachable!("everything ends")
}

/// Seconds, and a limit: none, the true one, or the one that nobody wrote.
fn lengths(longest: i64) -> impl Strategy<Value = (i64, Option<i64>)> {
    (1..longest, 0..3).prop_map(|(lasts, said)| match said {
        0 => (lasts, None),
        1 => (lasts, Some(lasts)),
        _ => (lasts, Some(DEFAULT_DEADLINE_SECONDS)),
    })
}

/// Runs a line on nodes that hold so many brokers; returns when each started, and that who could never run was never the head.
fn simulate_on_nodes(nodes: i64, jobs: &[(i64, i64)], apart: i64) -> Vec<Option<i64>> {
    let mut started: Vec<Option<i64>> = vec![None; jobs.len()];
    let ever = |index: &usize| jobs[*index].0 <= nodes;
    let mut now = 0;
    while (0..jobs.len()).filter(ever).any(|index| started[index].is_none()) {
        let come = |index: usize| i64::try_from(index).unwrap() * apart;
        let running: Vec<_> = (0..jobs.len())
            .filter_map(|index| Some((jobs[index], started[index]?)))
            .filter(|((_, lasts), since)| since + lasts > now)
            .map(|((size, _), since)| runs(size, since, None))
            .collect();
        let line: Vec<_> = (0..jobs.len())
            .filter(|index| started[*index].is_none() && come(*index) <= now)
            .map(|index| waits(u32::try_from(index).unwrap(), jobs[index].0, come(index), None))
            .collect();
        let taken: i64 = running.iter().map(|one| one.room.brokers).sum();
        let sizes = line.iter().map(|one| (one.key, one.room.brokers)).collect();
        let mut outside = Nodes { all: nodes, free: nodes - taken, sizes };
        let decided = super::schedule(&rules(12), &running, &line, &mut outside, at(now));
        assert!(outside.free >= 0, "more than the nodes hold at {now}: {decided:?}");
        assert!(decided.head.is_none_or(|(head, _)| ever(&(head as usize))), "it holds up everybody");
        for key in decided.start {
            started[key as usize] = Some(now);
        }
        now += 1;
        assert!(now < 10_000, "somebody starves: {started:?}");
    }
    started
}

/// When a head of `size` starts beside what runs until known times. `guests`: others take whatever is open, for ever.
fn head_starts(running: &[(i64, i64)], size: i64, guests: bool) -> i64 {
    let mut others: Vec<Running> = Vec::new();
    for now in 0.. {
        let mut seen: Vec<Running> = running
            .iter()
            .filter(|(_, until)| *until > now)
            .map(|(size, until)| runs(*size, 0, Some(*until)))
            .collect();
        seen.extend(others.clone());
        let decided = schedule(&rules(8), &seen, &[waits(1, size, 0, None)], at(now));
        if !decided.start.is_empty() {
            return now;
        }
        if guests && decided.open.brokers > 0 {
            others.push(Running { room: decided.open, since: at(now), until: None });
        }
    }
    unreachable!("everything ends")
}

proptest! {
    #[test]
    fn whoever_takes_what_is_open_does_not_delay_the_head(
        running in proptest::collection::vec((1..4_i64, 1..20_i64), 2..4), size in 1..9_i64,
    ) {
        let mut taken = 0;
        let running: Vec<_> = running.into_iter().filter(|(size, _)| { taken += size; taken <= 8 }).collect();
        prop_assert_eq!(head_starts(&running, size, true), head_starts(&running, size, false));
    }

    #[test]
    fn whoever_the_empty_nodes_could_hold_starts_and_nobody_else_is_waited_for(
        jobs in proptest::collection::vec((1_i64..12, 1_i64..20), 1..30),
        apart in 0_i64..4,
    ) {
        let started = simulate_on_nodes(6, &jobs, apart);
        for (start, (size, _)) in started.iter().zip(&jobs) {
            prop_assert_eq!(start.is_some(), *size <= 6);
        }
        // As if those that no node could hold were not there.
        let fitting: Vec<_> = jobs.iter().copied().filter(|(size, _)| *size <= 6).collect();
        if apart == 0 {
            let alone = simulate_on_nodes(6, &fitting, 0);
            prop_assert_eq!(started.into_iter().flatten().collect::<Vec<_>>(), alone.into_iter().flatten().collect::<Vec<_>>());
        }
    }

    #[test]
    fn never_over_quota_and_everybody_starts(
        jobs in proptest::collection::vec((1_i64..9, lengths(30)), 1..40),
        apart in 0_i64..4,
        backfill in any::<bool>(),
    ) {
        let jobs: Vec<_> = jobs.into_iter().map(|(size, (lasts, limit))| (size, lasts, limit)).collect();
        simulate(&Rules { backfill, ..rules(8) }, &jobs, apart);
    }

    #[test]
    fn the_head_starts_when_all_that_ran_before_it_has_ended_whoever_comes_after(
        running in proptest::collection::vec((1..5_i64, lengths(30)), 1..5),
        size in 1..9_i64,
        others in proptest::collection::vec((1..4_i64, 2..30_i64, lengths(400)), 0..12),
    ) {
        let mut taken = 0;
        let running: Vec<_> = (running.into_iter())
            .filter(|(size, _)| { taken += size; taken <= 8 })
            .map(|(size, (lasts, limit))| (size, lasts, limit))
            .collect();
        let others: Vec<_> =
            others.into_iter().map(|(size, since, (lasts, limit))| (size, since, lasts, limit)).collect();
        let last = running.iter().map(|(_, lasts, _)| *lasts).max().unwrap_or(1);
        let start = head_among(&running, size, &others);
        prop_assert!(start <= last, "it started at {start}, and the last before it ended at {last}");
        let known = running.iter().all(|(_, _, limit)| foreseen(*limit).is_some());
        prop_assert!(!known || start == head_among(&running, size, &[]), "it was delayed to {start}");
    }

    #[test]
    fn parts_are_never_over_quota_never_empty_and_only_of_who_is_not_behind_a_head(
        sizes in proptest::collection::vec((1_i64..14, any::<bool>()), 1..12),
        taken in 0_i64..9,
        peer in 0_i64..20,
    ) {
        let line: Vec<_> = (1_u32..).zip(&sizes).map(|(key, (size, parts))| {
            Waiting { away: if *parts { Away::Parts } else { Away::Nowhere }, ..waits(key, *size, i64::from(key), None) }
        }).collect();
        let running = [runs(taken, 0, None)];
        let seen = beside(&rules(8), &running, &line, World { full_for: 0, peer });
        prop_assert_eq!(&seen, &beside(&rules(8), &running, &line, World { full_for: 0, peer }), "the same again");
        let size = |key: &u32| line[*key as usize - 1].room.brokers;
        let here: i64 = seen.start.iter().map(|key| seen.parts.get(key).copied().unwrap_or_else(|| size(key))).sum();
        prop_assert!(here + taken == seen.used.brokers && here + taken <= 8);
        let away: i64 = seen.parts.iter().map(|(key, here)| size(key) - here).sum();
        prop_assert!(away <= peer);
        for (key, here) in &seen.parts {
            prop_assert!(*here > 0 && *here < size(key) && line[*key as usize - 1].away == Away::Parts);
            prop_assert!(seen.head.as_ref().is_none_or(|(head, _)| key < head), "nobody is parted past the head");
        }
    }

    #[test]
    fn whoever_is_sent_takes_nothing_here_and_delays_nobody_here(
        sizes in proptest::collection::vec((1_i64..14, any::<bool>(), proptest::option::of(1_i64..50)), 1..12),
        taken in 0_i64..9,
        until in proptest::option::of(10_i64..60),
        peer in 0_i64..30,
    ) {
        let line = |may: bool| -> Vec<_> {
            (1_u32..).zip(&sizes).map(|(key, (size, sendable, limit))| {
                let away = if may && *sendable { Away::Whole } else { Away::Nowhere };
                Waiting { away, ..waits(key, *size, i64::from(key), *limit) }
            }).collect()
        };
        let running = [runs(taken, 0, until)];
        let world = |peer| World { full_for: 0, peer };
        let seen = beside(&rules(8), &running, &line(true), world(peer));
        prop_assert_eq!(&seen, &beside(&rules(8), &running, &line(true), world(peer)), "the same again");
        let size = |key: &u32| sizes[*key as usize - 1].0;
        let once: std::collections::BTreeSet<_> = seen.start.iter().collect();
        prop_assert_eq!(once.len(), seen.start.len(), "nobody starts twice");
        let here: i64 = seen.start.iter().filter(|key| !seen.sent.contains(*key)).map(size).sum();
        prop_assert!(here + taken == seen.used.brokers && here + taken <= 8);
        prop_assert!(seen.sent.iter().map(size).sum::<i64>() <= peer);
        prop_assert!(seen.sent.iter().all(|key| sizes[*key as usize - 1].1 && seen.start.contains(key)));
        prop_assert!(seen.parts.is_empty() && seen.never.iter().all(|(key, _)| !seen.start.contains(key)));
        // Up to the first that would have to wait without peers, everybody starts here all the same.
        let alone = beside(&rules(8), &running, &line(false), world(0));
        let before = |key: &&u32| alone.head.as_ref().is_none_or(|(head, _)| *key < head);
        let stay = alone.start.iter().filter(before).all(|key| seen.start.contains(key) && !seen.sent.contains(key));
        prop_assert!(stay, "{seen:?} {alone:?}");
    }

    #[test]
    fn no_order_of_the_input_matters(
        sizes in proptest::collection::vec((1_i64..9, 0_i64..5, -2_i32..3), 1..30),
        seed in any::<u64>(),
    ) {
        let line: Vec<_> = (0_u32..).zip(&sizes).map(|(key, (size, since, priority))| Waiting {
            priority: *priority,
            ..waits(key, *size, *since, None)
        }).collect();
        let mut shuffled = line.clone();
        let len = shuffled.len();
        for index in 0..len {
            shuffled.swap(index, usize::try_from(seed.rotate_left(u32::try_from(index).unwrap()) % len as u64).unwrap());
        }
        let (a, b) = (schedule(&rules(8), &[], &line, at(9)), schedule(&rules(8), &[], &shuffled, at(9)));
        prop_assert_eq!((a.start, a.head, a.used), (b.start, b.head, b.used));
    }
}
