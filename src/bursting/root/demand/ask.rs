//! Who asks for which slot. Pure.
//!
//! A job asks for a burst if it is `burstable`, or if the ranks that are there could not run it even if nothing else ran on
//! them. One that only waits for its turn does not, nor does one that all declared ranks together could not run.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use tributary_flux::RankMap;

use super::look::{Constraint, Job, Look, Request};

/// Most tests of a rank against a part of a constraint in one look: seconds. Nobody waits longer for what a user's pod says of
/// thousands of ranks; jobs that come after these ask for nothing.
const MOST_TESTS: u64 = 50_000_000;

/// A burst that runs on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// Brokers it has when it runs: of its ranks, the first ones.
    pub size: u32,
    /// It runs, or comes.
    pub awake: bool,
    /// Its brokers would not come: no peer takes it, its peer is lost, or its budget is spent.
    pub stuck: bool,
}

/// What a look says of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Jobs that ask for it.
    pub pending: u32,
    /// The same if all brokers were there that do not come on demand.
    pub lasting: u32,
    /// Jobs run on it, or did a moment ago.
    pub busy: bool,
    /// No job starts on it: none of its ranks is there, or all are drained.
    pub closed: bool,
}

struct Rank<'a> {
    id: u32,
    host: String,
    cores: u64,
    gpus: u64,
    properties: &'a [String],
}

/// How many jobs ask for each of the `slots` on demand, in the order of their ranks. `coming` are slots of other bursts whose
/// brokers are on their way: they count as if they were there.
pub fn ask(map: &RankMap, look: &Look, slots: &[Slot], coming: &BTreeSet<String>) -> BTreeMap<String, Asked> {
    let mut asked = ask_with(map, look, slots, |slot, id| coming.contains(slot) || look.up.contains(id));
    for (name, lasting) in ask_with(map, look, slots, |_, _| true) {
        asked.entry(name).or_default().lasting = lasting.pending;
    }
    asked
}

fn ask_with(
    map: &RankMap,
    look: &Look,
    slots: &[Slot],
    is_there: impl Fn(&str, u32) -> bool,
) -> BTreeMap<String, Asked> {
    let mut there: Vec<Rank<'_>> = Vec::new();
    let mut away: BTreeMap<&str, Vec<Rank<'_>>> = BTreeMap::new();
    for (slot, ranks) in map.slots_with_ranks() {
        let on_demand = slots.iter().find(|one| one.name == slot.name);
        for (index, id) in ranks.enumerate() {
            let (cores, gpus) = (slot.cores.into(), slot.gpus.into());
            let rank = Rank { id, host: format!("{}-{index}", slot.name), cores, gpus, properties: &slot.properties };
            match on_demand {
                Some(one) if u32::try_from(index).is_ok_and(|index| index < one.size) => {
                    away.entry(&one.name).or_default().push(rank);
                }
                None if is_there(&slot.name, id) => there.push(rank),
                _ => {}
            }
        }
    }
    // Those that run are asked first, then the others in the order of their ranks, and last those that would not come.
    let mut order: Vec<&Slot> = slots.iter().collect();
    order.sort_by_key(|slot| (slot.stuck, !slot.awake));
    let mut asked: BTreeMap<String, Asked> = slots.iter().map(|slot| (slot.name.clone(), Asked::default())).collect();
    // Cores of each that jobs have, or that jobs ask for.
    let mut claimed: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, ranks) in &away {
        let slot = asked.entry((*name).to_owned()).or_default();
        slot.busy = ranks.iter().any(|rank| look.busy.contains(rank.id));
        slot.closed = !ranks.iter().any(|rank| look.up.contains(rank.id));
        let of_rank =
            |rank: &Rank<'_>| look.used.iter().find(|(ids, _)| ids.contains(rank.id)).map_or(0, |used| used.1);
        claimed.insert(name, ranks.iter().map(of_rank).fold(0, u64::saturating_add));
    }
    let tests = Tests(Cell::new(MOST_TESTS));
    for job in &look.pending {
        let choice = Choice::of(job, &there, &away, &order, &tests);
        for _ in 0..job.count {
            for name in choice.of_next(&claimed) {
                asked.entry(name.to_owned()).or_default().pending += 1;
                let sum = claimed.entry(name).or_default();
                *sum = sum.saturating_add(job.request.map_or(1, cores));
            }
        }
    }
    asked
}

/// The slots that could run a job.
#[derive(Default)]
struct Choice<'s> {
    /// Each of these by itself, and its cores.
    one_of: Vec<(&'s str, u64)>,
    /// If there is none: these together.
    together: Vec<&'s str>,
}

impl<'s> Choice<'s> {
    fn of(
        job: &Job,
        there: &[Rank<'_>],
        away: &BTreeMap<&'s str, Vec<Rank<'_>>>,
        order: &[&'s Slot],
        tests: &Tests,
    ) -> Self {
        let none = Vec::new();
        let of = |slot: &Slot| away.get(slot.name.as_str()).unwrap_or(&none);
        if !job.burstable && fits(job, there.iter(), tests) {
            return Self::default();
        }
        let useful = |slot: &&&'s Slot| of(slot).iter().any(|rank| tests.holds(&job.constraint, rank));
        let with = |slots: &[&Slot]| fits(job, there.iter().chain(slots.iter().flat_map(|slot| of(slot))), tests);
        let useful: Vec<&'s Slot> = order.iter().filter(useful).copied().collect();
        let alone = useful.iter().filter(|slot| with(&[**slot]));
        let one_of: Vec<_> =
            alone.map(|slot| (slot.name.as_str(), of(slot).iter().map(|rank| rank.cores).sum())).collect();
        if !one_of.is_empty() {
            return Self { one_of, together: Vec::new() };
        }
        let mut together: Vec<&'s Slot> = Vec::new();
        for slot in useful {
            together.push(slot);
            if with(&together) {
                drop_what_is_not_needed(&mut together, with);
                return Self { one_of, together: together.into_iter().map(|slot| slot.name.as_str()).collect() };
            }
        }
        Self::default()
    }

    /// One slot that will do and has cores that nobody has or asks for already; else one that will do; else several.
    fn of_next(&self, claimed: &BTreeMap<&str, u64>) -> Vec<&'s str> {
        let free = |(name, cores): &&(&str, u64)| claimed.get(name).copied().unwrap_or(0) < *cores;
        match self.one_of.iter().find(free).or(self.one_of.first()) {
            Some((name, _)) => vec![name],
            None => self.together.clone(),
        }
    }
}

/// Takes away what does as well without, the last ones of the order first.
fn drop_what_is_not_needed(slots: &mut Vec<&Slot>, will_do: impl Fn(&[&Slot]) -> bool) {
    for index in (0..slots.len()).rev() {
        let slot = slots.remove(index);
        if !will_do(slots) {
            slots.insert(index, slot);
        }
    }
}

fn cores(request: Request) -> u64 {
    request.nodes.unwrap_or(1).saturating_mul(request.slots).saturating_mul(request.cores)
}

/// Whether ranks could run a job if nothing else ran there.
fn fits<'r, 'a: 'r>(job: &Job, ranks: impl Iterator<Item = &'r Rank<'a>>, tests: &Tests) -> bool {
    let Some(Request { nodes, slots, cores, gpus }) = job.request else { return false };
    let room = |rank: &Rank<'_>| {
        let by_cores = rank.cores.checked_div(cores).unwrap_or(u64::MAX);
        by_cores.min(rank.gpus.checked_div(gpus).unwrap_or(u64::MAX))
    };
    let mut rooms = ranks.filter(|rank| tests.holds(&job.constraint, rank)).map(room);
    match nodes {
        Some(nodes) => u64::try_from(rooms.filter(|room| *room >= slots).count()).unwrap_or(u64::MAX) >= nodes,
        None => rooms.try_fold(0_u64, |sum, room| Some(sum.saturating_add(room)).filter(|sum| *sum < slots)).is_none(),
    }
}

/// How many tests are left.
struct Tests(Cell<u64>);

impl Tests {
    /// Whether a job may run on a rank.
    fn holds(&self, constraint: &Constraint, rank: &Rank<'_>) -> bool {
        self.judged(constraint, rank) == Some(true)
    }

    /// Whether a constraint holds on a rank; `None` if that cannot be judged. What cannot be judged stays so when it is
    /// negated.
    fn judged(&self, constraint: &Constraint, rank: &Rank<'_>) -> Option<bool> {
        let all = |constraints: &[Constraint]| {
            constraints.iter().try_fold(true, |holds, one| Some(self.judged(one, rank)? && holds))
        };
        let tests = match constraint {
            Constraint::Properties(names) => (names.len() * rank.properties.len()) as u64,
            _ => 0,
        };
        self.0.set(self.0.get().checked_sub(tests + 1)?);
        match constraint {
            Constraint::Properties(names) => Some(names.iter().all(|property| match property.strip_prefix('^') {
                Some(absent) => rank.properties.iter().all(|one| one != absent),
                None => rank.properties.contains(property),
            })),
            Constraint::Hosts(hosts) => Some(hosts.contains(&rank.host)),
            Constraint::Ranks(ranks) => Some(ranks.contains(rank.id)),
            Constraint::And(constraints) => all(constraints),
            Constraint::Or(any) => Some(any.iter().any(|one| self.holds(one, rank))),
            Constraint::Not(constraints) => all(constraints).map(|holds| !holds),
            Constraint::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tributary_flux::{Slot as Declared, Topology};

    use super::super::look::tests::RECORDED;
    use super::*;

    fn map() -> RankMap {
        let parent = || Topology::Gateway.parent_of_bursts("vm");
        let pond = Declared::burst("pond", 3, parent()).with_resources(4, 0);
        let slots = vec![
            Declared::root("vm", 1).with_resources(2, 0),
            pond.with_property("gpu"),
            Declared::burst("sea", 2, parent()).with_resources(8, 2),
        ];
        RankMap::new(slots).unwrap()
    }

    fn slots(awake: [bool; 2]) -> [Slot; 2] {
        let slot = |name: &str, size, awake| Slot { name: name.into(), size, awake, stuck: false };
        [slot("pond", 3, awake[0]), slot("sea", 2, awake[1])]
    }

    fn look(jobs: &[&str]) -> Look {
        let pending = jobs.join(",");
        Look::parse(&format!(r#"{{"up":"0","busy":"1","pending":[{pending}]}}"#)).unwrap()
    }

    fn pending(look: &Look, awake: [bool; 2]) -> [u32; 2] {
        let asked = ask(&map(), look, &slots(awake), &BTreeSet::new());
        ["pond", "sea"].map(|name| asked[name].pending)
    }

    /// `nodes` (0: any), `slots`, `cores` each.
    fn job(burstable: bool, (nodes, slots, cores, gpus): (u32, u32, u32, u32), constraints: &str) -> String {
        let inner = format!(
            r#"{{"type":"slot","count":{slots},"with":[{{"type":"core","count":{cores}}},{{"type":"gpu","count":{gpus}}}]}}"#
        );
        let whole = format!(r#"{{"type":"node","count":{nodes},"with":[{inner}]}}"#);
        let resources = if nodes == 0 { inner } else { whole };
        format!(r#"{{"burstable":{burstable},"resources":[{resources}],"constraints":{constraints}}}"#)
    }

    #[test]
    fn of_the_recorded_jobs_those_ask_that_one_broker_cannot_run() {
        let recorded = Look::parse(RECORDED).unwrap();
        let one = |index: usize| {
            pending(&Look { pending: vec![recorded.pending[index].clone()], ..recorded.clone() }, [false; 2])
        };
        // In the order they were submitted; the property burst-pond is one of the rank map's.
        let asks: Vec<[u32; 2]> = (0..recorded.pending.len()).map(one).collect();
        insta::assert_debug_snapshot!(asks.iter().map(|[pond, sea]| format!("{pond} {sea}")).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_waits_for_its_turn_asks_for_nothing_unless_it_says_so() {
        assert_eq!(pending(&look(&[&job(false, (0, 1, 1, 0), "null")]), [false; 2]), [0, 0]);
        assert_eq!(pending(&look(&[&job(true, (0, 1, 1, 0), "null")]), [false; 2]), [1, 0]);
        assert_eq!(
            pending(&look(&[&job(true, (0, 1, 1, 0), "null")]), [false, true]),
            [0, 1],
            "who runs is asked first"
        );
        let here = r#"{"properties":["^gpu"],"not":[{"hostlist":["sea-[0-1]"]}]}"#;
        assert_eq!(pending(&look(&[&job(true, (0, 1, 1, 0), here)]), [false; 2]), [0, 0], "it may not run there");
    }

    #[test]
    fn the_slots_that_can_run_it_are_asked_and_no_more() {
        let table = [
            ("more cores than here", job(false, (0, 3, 1, 0), "null"), [1, 0]),
            ("a GPU", job(false, (0, 1, 1, 1), "null"), [0, 1]),
            ("a slot of 8 cores", job(false, (0, 1, 8, 0), "null"), [0, 1]),
            ("five nodes", job(false, (5, 1, 1, 0), "null"), [1, 1]),
            ("seven nodes", job(false, (7, 1, 1, 0), "null"), [0, 0]),
            ("by a property", job(false, (0, 1, 1, 0), r#"{"properties":["burst-sea"]}"#), [0, 1]),
            ("by a host", job(false, (0, 1, 1, 0), r#"{"hostlist":["pond-2"]}"#), [1, 0]),
            ("not on rank 0", job(false, (0, 1, 1, 0), r#"{"not":[{"ranks":["0"]}]}"#), [1, 0]),
            ("nobody knows where", job(false, (0, 1, 1, 0), r#"{"switch":["a"]}"#), [0, 0]),
            ("nor where not", job(true, (0, 1, 1, 0), r#"{"not":[{"switch":["a"]}]}"#), [0, 0]),
        ];
        for (case, job, expected) in table {
            assert_eq!(pending(&look(&[&job]), [false; 2]), expected, "{case}");
        }
    }

    #[test]
    fn a_slot_that_enough_jobs_ask_for_leaves_others_to_the_next() {
        let jobs: Vec<String> = (0..20).map(|_| job(true, (0, 1, 1, 0), "null")).collect();
        let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        assert_eq!(pending(&look(&jobs), [false; 2]), [12, 8], "pond has twelve cores");
    }

    #[test]
    fn a_slot_whose_cores_jobs_have_leaves_others_to_the_next_and_is_not_asked_for_what_runs() {
        let burstable = format!(r#"{{"count":3,{}"#, &job(true, (0, 1, 1, 0), "null")[1..]);
        let asks = |used: &str| {
            let text = format!(r#"{{"up":"0-3","busy":"1-3","used":[{used}],"pending":[{burstable}]}}"#);
            pending(&Look::parse(&text).unwrap(), [true, false])
        };
        assert_eq!(asks(""), [3, 0]);
        assert_eq!(asks(r#"["1-2",4],["3",2]"#), [2, 1], "two cores are left");
        assert_eq!(asks(r#"["0-3",4]"#), [0, 3]);
        let gpu = look(&[&job(false, (0, 1, 1, 1), "null")]);
        let full = Look { used: vec![("4-5".parse().unwrap(), 8)], ..gpu };
        assert_eq!(pending(&full, [true, true]), [0, 1], "there is no other that could run it");
    }

    #[test]
    fn one_that_would_not_come_is_asked_if_no_other_can() {
        let asks = |job: &str| {
            let [pond, sea] = slots([true, false]);
            let slots = [Slot { stuck: true, ..pond }, sea];
            let asked = ask(&map(), &look(&[job]), &slots, &BTreeSet::new());
            ["pond", "sea"].map(|name| asked[name].pending)
        };
        assert_eq!(asks(&job(true, (0, 1, 1, 0), "null")), [0, 1], "though it is awake and comes first");
        assert_eq!(asks(&job(false, (0, 1, 1, 0), r#"{"properties":["gpu"]}"#)), [1, 0]);
        assert_eq!(asks(&job(false, (5, 1, 1, 0), "null")), [1, 1]);
    }

    #[test]
    fn of_several_that_are_needed_together_none_is_asked_that_is_not() {
        let parent = || Topology::Gateway.parent_of_bursts("vm");
        let burst = |name: &str, size| Declared::burst(name, size, parent()).with_resources(1, 0);
        let map = RankMap::new(vec![Declared::root("vm", 1), burst("a", 1), burst("b", 3), burst("c", 3)]).unwrap();
        let slot = |name: &str, size| Slot { name: name.into(), size, awake: false, stuck: false };
        let slots = [slot("a", 1), slot("b", 3), slot("c", 3)];
        let asks = |nodes| {
            let asked = ask(&map, &look(&[&job(false, (nodes, 1, 1, 0), "null")]), &slots, &BTreeSet::new());
            ["a", "b", "c"].map(|name| asked[name].pending)
        };
        assert_eq!([2, 4, 5, 7, 8, 9].map(asks), [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0]]);
    }

    #[test]
    fn where_jobs_run_is_told_and_bursts_on_their_way_count_as_there() {
        let asked = ask(&map(), &look(&[]), &slots([true; 2]), &BTreeSet::new());
        assert_eq!((asked["pond"].busy, asked["sea"].busy), (true, false));
        let wide = look(&[&job(false, (3, 1, 1, 0), "null")]);
        let only_pond = &slots([false; 2])[..1];
        assert_eq!(ask(&map(), &wide, only_pond, &BTreeSet::new())["pond"].pending, 1);
        assert_eq!(ask(&map(), &wide, only_pond, &["sea".to_owned()].into())["pond"].pending, 0);
    }

    #[test]
    fn what_a_broker_could_run_that_is_away_does_not_last() {
        let lasting = |job: &str, up: &str| {
            let text = format!(r#"{{"up":"{up}","busy":"","pending":[{job}]}}"#);
            let asked = ask(&map(), &Look::parse(&text).unwrap(), &slots([false; 2]), &BTreeSet::new());
            (asked["pond"].pending, asked["pond"].lasting)
        };
        let two_cores = job(false, (0, 2, 1, 0), "null");
        assert_eq!([lasting(&two_cores, "0"), lasting(&two_cores, "")], [(0, 0), (1, 0)]);
        assert_eq!(lasting(&job(false, (0, 3, 1, 0), "null"), ""), (1, 1), "it has two");
        assert_eq!(lasting(&job(true, (0, 1, 1, 0), "null"), "0"), (1, 1));
    }

    /// The danger: one answer of a user's pod takes a processor for hours.
    #[test]
    fn an_answer_that_is_made_to_be_judged_for_hours_is_judged_in_seconds() {
        let parent = || Topology::Gateway.parent_of_bursts("vm");
        let burst = |number| Declared::burst(format!("b{number}"), 63, parent()).with_property("gpu");
        let all = (0..255).map(burst);
        let map = RankMap::new([Declared::root("vm", 1)].into_iter().chain(all).collect()).unwrap();
        let slot = |number| Slot { name: format!("b{number}"), size: 63, awake: false, stuck: false };
        let slots: Vec<Slot> = (0..255).map(slot).collect();
        let none = (0..30_000).map(|number| format!("^{number}")).collect();
        let request = Some(Request { nodes: Some(16_000), slots: 1, cores: 1, gpus: 0 });
        let job = |constraint| Job { count: 1, burstable: false, request, constraint };
        let look = Look { pending: vec![job(Constraint::Properties(none))], ..look(&[]) };
        let began = tokio::time::Instant::now();
        let asked = ask(&map, &look, &slots, &BTreeSet::new());
        assert!(asked.values().all(|asked| asked.pending == 0));
        // It is some ten hours without a limit.
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
