use tributary_api::minicluster::DEFAULT_DEADLINE_SECONDS;

use super::*;
use crate::testing::at;

mod simulated;

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

fn brokers(brokers: i64) -> Requests {
    Requests { mini_clusters: 1, brokers, ..Requests::default() }
}

fn rules(brokers: i64) -> Rules {
    let quota = Requests { mini_clusters: 1000, brokers, ..Requests::UNLIMITED };
    Rules { quota, order: Order::Priority, backfill: true, longest: None }
}

fn waits(key: u32, size: i64, since: i64, limit: Option<i64>) -> Waiting<u32> {
    let (room, since, turn) = (brokers(size), at(since), String::new());
    Waiting { key, room, priority: 0, since, turn, limit, away: Away::Nowhere, grows: None }
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
    let named = |key: u32, turn: &str| Waiting { turn: turn.into(), ..waits(key, 8, 1, None) };
    assert_eq!(schedule(&rules(8), &[], &[named(1, "b"), named(2, "a")], at(9)).start, [2], "they came at once");
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
    assert_eq!(seen.never[0].1, "runs here must have a time limit of at most 5m");
    assert_eq!(seen.never[1].1, "its time limit is 10m; at most 5m is allowed here");
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
    assert_eq!((seen.start, seen.head, seen.open), (vec![1], Some((2, lack)), Requests::default()));
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
    // Behind one that waits for them, nobody starts here; who is sent takes nothing of them.
    let line = [whole(1, 6, 1), whole(2, 3, 2), waits(3, 1, 3, Some(1))];
    let seen = beside(&rules(8), &[], &line, World { full_for: 1, peer: 3 });
    assert_eq!((seen.start.clone(), sent(&seen), seen.head.unwrap().0), (vec![2], vec![2], 1));
    assert_eq!(seen.open, Requests::default());
    assert!(beside(&strict, &[], &line, World { full_for: 1, peer: 3 }).start.is_empty(), "nobody passes anybody");
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
    let room = Requests { mini_clusters: 0, ..brokers(more) };
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
