//! Who used what: the records that outlast the bursts they are of.
//!
//! One ConfigMap for each day in which brokers of bursts were in use, in the agent's namespace. It has one row for each side,
//! peer, namespace, user and job, and a row is a [`Spent`]: sums, and since when how much is in use. So it is written only
//! when a number changes, whoever reads it counts on from the same moment, and another agent that goes on with it counts
//! nothing twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{Spent, Usage};
use super::labels;

/// Most rows of a day that are somebody's own. The ConfigMap holds at most a mebibyte, and a row at most half a kibibyte.
pub const MOST_ROWS: usize = 500;

/// Stands for the namespace, the user and the job of what has no row of its own. No object can be called so.
pub const OTHERS: &str = "(others)";

/// Key of the ConfigMap: name of the cluster whose agent writes it.
const CLUSTER: &str = "cluster";

/// Key of the ConfigMap: a row in each line, as JSON.
const ROWS: &str = "rows";

/// Name of the ConfigMap of a day begins so; the day follows, as in `2026-11-25`.
const NAME: &str = "tributary-usage-";

/// Which side of bursts an agent speaks of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// MiniClusters and FluxJobs of this cluster, at a peer.
    #[default]
    Root,
    /// Those of a peer, in this cluster.
    Provider,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Provider => "provider",
        })
    }
}

/// Who uses something where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    /// Which side this agent's cluster is.
    pub side: Side,
    /// The other cluster.
    pub peer: String,
    /// Namespace of the root, here as there.
    pub namespace: String,
    /// The value of the label `tributary.dev/user` of the root; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Name of the root: a MiniCluster, or a FluxJob.
    pub job: String,
}

impl Consumer {
    /// All those that have no row of their own.
    fn others(&self) -> Self {
        let others = || OTHERS.to_owned();
        Self { side: self.side, peer: self.peer.clone(), namespace: others(), user: others(), job: others() }
    }

    /// The same job, whoever its user is.
    fn of_nobody(&self) -> Self {
        Self { user: String::new(), ..self.clone() }
    }

    /// Whether it stands for those that have no row of their own.
    pub(crate) fn is_others(&self) -> bool {
        self.job == OTHERS
    }
}

/// What somebody uses at a moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Use {
    /// Who.
    pub consumer: Consumer,
    /// How much.
    pub usage: Usage,
    /// Since when it is so much, if that is on record.
    pub since: Option<Timestamp>,
}

/// A row as it is written.
#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(flatten)]
    consumer: Consumer,
    #[serde(flatten)]
    spent: Spent,
}

/// What was used within one day (UTC).
#[derive(Clone, PartialEq, Debug)]
pub struct DayOfUse {
    /// The day.
    pub day: Date,
    /// Who used how much of it. What is in use when the day ends counts until then.
    pub rows: BTreeMap<Consumer, Spent>,
}

/// When a day (UTC) begins.
pub fn start_of(day: Date) -> Timestamp {
    day.to_zoned(TimeZone::UTC).map_or(Timestamp::MAX, |zoned| zoned.timestamp())
}

/// The day (UTC) of a moment.
pub fn day_of(moment: Timestamp) -> Date {
    moment.to_zoned(TimeZone::UTC).date()
}

/// The day after one.
pub fn after(day: Date) -> Date {
    day.checked_add(1.day()).unwrap_or(Date::MAX)
}

impl DayOfUse {
    /// A day in which nothing was used yet.
    pub const fn empty(day: Date) -> Self {
        Self { day, rows: BTreeMap::new() }
    }

    /// The day after it: what was in use when this one ended goes on.
    #[must_use]
    pub fn next(&self) -> Self {
        let day = after(self.day);
        let since = Some(Time(start_of(day)));
        let goes_on = self.rows.iter().filter(|(_, row)| row.brokers > 0).map(|(consumer, row)| {
            let Usage { brokers, milli_cores, gpus, hourly } = row.usage();
            (consumer.clone(), Spent { brokers, milli_cores, gpus, hourly, since: since.clone(), ..Spent::default() })
        });
        Self { day, rows: goes_on.collect() }
    }

    /// From `now` on this is in use, and nothing else. A use that its own object dates counts from then, as far as this day
    /// goes back: what changed while no agent looked is not lost. One that another row has counted until now is not dated.
    pub fn count(&mut self, uses: impl IntoIterator<Item = Use>, now: Timestamp) {
        let mut wanted: BTreeMap<Consumer, (Usage, Option<Timestamp>)> = BTreeMap::new();
        for Use { consumer, usage, since } in uses.into_iter().filter(|one| one.usage.brokers > 0) {
            let sum = wanted.entry(consumer).or_default();
            *sum = ([sum.0, usage].into_iter().sum(), sum.1.max(since));
        }
        let open = Open::of(&self.rows);
        for (consumer, row) in self.rows.iter_mut().filter(|(consumer, _)| !wanted.contains_key(*consumer)) {
            if !consumer.is_others() {
                *row = row.on(Usage::default(), None, now);
            }
        }
        let begins = start_of(self.day);
        let mut others: BTreeMap<Consumer, Usage> =
            self.rows.keys().filter(|one| one.is_others()).map(|one| (one.clone(), Usage::default())).collect();
        let mut has_room = true;
        for (consumer, (usage, since)) in wanted {
            if !self.rows.contains_key(&consumer) {
                has_room = has_room && self.make_room();
                if !has_room {
                    let sum = others.entry(consumer.others()).or_default();
                    *sum = [*sum, usage].into_iter().sum();
                    continue;
                }
            }
            let row = self.rows.entry(consumer.clone()).or_default();
            let counted = row.since.as_ref().map_or(begins, |Time(since)| (*since).max(begins));
            let dated = since.filter(|since| *since > counted || row.since.is_none());
            let dated = dated.filter(|since| !open.counts(&consumer, *since, row.since.is_none()));
            let at = dated.map_or(now, |since| since.max(counted)).min(now.max(counted));
            *row = row.on(usage, None, at);
        }
        for (consumer, usage) in others {
            let row = self.rows.entry(consumer).or_default();
            *row = row.on(usage, None, now);
        }
    }

    /// Makes room for one more row: of those that are over, the smallest is added to the others'. Says whether there is room.
    fn make_room(&mut self) -> bool {
        let own = self.rows.iter().filter(|(consumer, _)| !consumer.is_others());
        if own.clone().count() < MOST_ROWS {
            return true;
        }
        let over = own.filter(|(_, row)| row.brokers == 0);
        let smallest = over.min_by_key(|(_, row)| row.broker_seconds).map(|(consumer, _)| consumer.clone());
        let Some((consumer, row)) = smallest.and_then(|one| self.rows.remove_entry(&one)) else { return false };
        let others = self.rows.entry(consumer.others()).or_default();
        others.add(&row);
        true
    }

    /// What was used of it until `now`.
    pub fn until(&self, now: Timestamp) -> BTreeMap<Consumer, Spent> {
        let end = now.min(start_of(after(self.day)));
        self.rows.iter().map(|(consumer, row)| (consumer.clone(), row.until(end))).collect()
    }

    /// The day of the ConfigMap of this name.
    pub fn of_name(name: &str) -> Option<Date> {
        name.strip_prefix(NAME)?.parse().ok()
    }

    /// Label selector of the ConfigMaps of all days.
    pub fn selector() -> String {
        format!("{}={}", labels::ROLE, labels::role::USAGE)
    }

    /// Name of the ConfigMap of a day.
    pub fn name(day: Date) -> String {
        format!("{NAME}{day}")
    }

    /// The cluster whose agent wrote it.
    pub fn cluster(stored: &ConfigMap) -> Option<&str> {
        stored.data.as_ref()?.get(CLUSTER).map(String::as_str)
    }

    /// As it is stored.
    pub fn to_config_map(&self, namespace: &str, cluster: &str) -> ConfigMap {
        let line = |(consumer, spent): (&Consumer, &Spent)| {
            let row = Row { consumer: consumer.clone(), spent: spent.clone() };
            serde_json::to_string(&row).expect("a row is plain data with text keys") + "\n"
        };
        let labels = [(labels::kubernetes::MANAGED_BY, labels::TRIBUTARY), (labels::ROLE, labels::role::USAGE)];
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(Self::name(self.day)),
                namespace: Some(namespace.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            data: Some(
                [(CLUSTER.to_owned(), cluster.to_owned()), (ROWS.to_owned(), self.rows.iter().map(line).collect())]
                    .into(),
            ),
            ..ConfigMap::default()
        }
    }

    /// As it was stored.
    ///
    /// # Errors
    /// Which line cannot be read, and why.
    pub fn of_config_map(stored: &ConfigMap) -> Result<Self, String> {
        let name = stored.metadata.name.as_deref().unwrap_or_default();
        let day = Self::of_name(name).ok_or_else(|| format!("{name} names no day"))?;
        let text = stored.data.as_ref().and_then(|data| data.get(ROWS)).map(String::as_str).unwrap_or_default();
        let read = |(number, line): (usize, &str)| {
            let row: Row = serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
            Ok((row.consumer, row.spent))
        };
        Ok(Self { day, rows: text.lines().enumerate().map(read).collect::<Result<_, String>>()? })
    }
}

/// What rows counted until now.
struct Open {
    /// Jobs, without their user, and the users.
    jobs: BTreeSet<(Consumer, String)>,
    /// Since when the rows of others are as they are.
    others: BTreeMap<Consumer, Timestamp>,
}

impl Open {
    fn of(rows: &BTreeMap<Consumer, Spent>) -> Self {
        let open = || rows.iter().filter(|(_, row)| row.brokers > 0);
        let (others, jobs) = (open().filter(|(one, _)| one.is_others()), open().filter(|(one, _)| !one.is_others()));
        Self {
            jobs: jobs.map(|(one, _)| (one.of_nobody(), one.user.clone())).collect(),
            others: others.filter_map(|(one, row)| Some((one.clone(), row.since.as_ref()?.0))).collect(),
        }
    }

    /// Whether what somebody uses since then was counted in another row: of the same job, before its user was written to it or
    /// changed; or of the others, if it `is_new` in a row of its own.
    fn counts(&self, consumer: &Consumer, since: Timestamp, is_new: bool) -> bool {
        let job = consumer.of_nobody();
        let mut users = self.jobs.range((job.clone(), String::new())..).take_while(|(one, _)| *one == job);
        users.any(|(_, user)| *user != consumer.user)
            // What began after they changed last is not among them.
            || is_new && self.others.get(&consumer.others()).is_some_and(|changed| since <= *changed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tributary_contract::Money;

    use super::*;

    const DAY: &str = "2026-11-25";

    fn day() -> DayOfUse {
        DayOfUse::empty(DAY.parse().unwrap())
    }

    /// So many seconds after the day begins.
    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(start_of(DAY.parse().unwrap()).as_second() + second).unwrap()
    }

    fn who(job: &str) -> Consumer {
        let text = |text: &str| text.to_owned();
        Consumer { side: Side::Root, peer: text("west"), namespace: text("flux"), user: String::new(), job: text(job) }
    }

    fn use_of(job: &str, brokers: u32) -> Use {
        let all = u64::from(brokers);
        let usage = Usage { brokers, milli_cores: all * 4_000, gpus: all, hourly: Money::of_millionths(all * 3_600) };
        Use { consumer: who(job), usage, since: None }
    }

    fn broker_seconds(day: &DayOfUse, now: i64) -> i64 {
        day.until(at(now)).values().map(|row| row.broker_seconds).sum()
    }

    #[test]
    fn what_is_stored_is_read_and_counts_on() {
        let mut today = day();
        today.count([use_of("lake", 3), use_of("lake", 1), use_of("pond", 2)], at(100));
        let map = today.to_config_map("tributary-system", "east");
        let row = |job, uses: &str| {
            format!(
                "{{\"side\":\"root\",\"peer\":\"west\",\"namespace\":\"flux\",\"job\":\"{job}\",\"seconds\":0,\
                 \"brokerSeconds\":0,{uses},\"since\":\"2026-11-25T00:01:40Z\"}}\n"
            )
        };
        let lake = row("lake", r#""brokers":4,"milliCores":16000,"gpus":4,"hourly":"0.0144""#);
        let pond = row("pond", r#""brokers":2,"milliCores":8000,"gpus":2,"hourly":"0.0072""#);
        assert_eq!(map.data.as_ref().unwrap()[ROWS], lake + &pond);
        assert_eq!(map.metadata.name.as_deref(), Some("tributary-usage-2026-11-25"));
        let mut read = DayOfUse::of_config_map(&map).unwrap();
        assert_eq!(read, today);
        read.count([use_of("lake", 4), use_of("pond", 2)], at(150));
        assert_eq!(read, today, "nothing changed, so nothing is written");
        read.count([use_of("pond", 2)], at(200));
        let rows = read.until(at(300));
        let (lake, pond) = (&rows[&who("lake")], &rows[&who("pond")]);
        assert_eq!((lake.seconds, lake.broker_seconds, lake.brokers), (100, 400, 0));
        assert_eq!((lake.milli_core_seconds, lake.gpu_seconds), (1_600_000, 400));
        assert_eq!((pond.broker_seconds, pond.brokers), (400, 2));
        let mut wrong = map;
        wrong.data = Some([(ROWS.to_owned(), "{}\n{\"brokers\": -1}\n".to_owned())].into());
        assert!(DayOfUse::of_config_map(&wrong).unwrap_err().starts_with("line 2: "));
    }

    #[test]
    fn a_use_that_goes_on_belongs_to_each_of_its_days() {
        let mut today = day();
        today.count([use_of("lake", 1), use_of("pond", 1)], at(86_000));
        today.count([use_of("lake", 1)], at(86_100));
        let tomorrow = today.next();
        assert_eq!(tomorrow.day.to_string(), "2026-11-26");
        assert_eq!(tomorrow.rows.keys().collect::<Vec<_>>(), [&who("lake")]);
        assert_eq!(broker_seconds(&today, 90_000), 400 + 100, "until the day ends");
        assert_eq!(broker_seconds(&tomorrow, 90_000), 3_600);
    }

    #[test]
    fn what_began_while_nobody_looked_counts_from_its_own_date_and_not_from_before_the_day() {
        let since = |second: i64, brokers| Use { since: Some(at(second)), ..use_of("lake", brokers) };
        let mut today = day();
        today.count([since(50, 2)], at(100));
        assert_eq!(broker_seconds(&today, 100), 100);
        today.count([since(150, 3)], at(200));
        assert_eq!(broker_seconds(&today, 200), 200 + 150);
        today.count([since(10, 1)], at(300));
        assert_eq!(broker_seconds(&today, 300), 350 + 300, "an old date takes nothing away");
        let mut other = day();
        other.count([since(-500, 1)], at(100));
        assert_eq!(broker_seconds(&other, 100), 100);
        let mut early = day();
        early.count([since(500, 1)], at(100));
        assert_eq!(broker_seconds(&early, 200), 100, "nor does a date to come");
    }

    /// The danger: a peer that offers many bursts fills the record, or others' hours are lost.
    #[test]
    fn rows_are_bounded_and_nothing_is_lost() {
        let mut today = day();
        let many = |count: usize| (0..count).map(|number| use_of(&format!("job-{number:04}"), 1));
        today.count(many(MOST_ROWS + 100), at(0));
        assert_eq!(today.rows.len(), MOST_ROWS + 1);
        assert_eq!(today.rows[&who("any").others()].brokers, 100);
        today.count(many(10), at(100));
        today.count([use_of("late", 5)], at(100));
        let rows = today.until(at(200));
        assert_eq!((rows.len(), rows[&who("late")].broker_seconds), (MOST_ROWS + 1, 500), "what is over makes room");
        assert_eq!(broker_seconds(&today, 200), i64::try_from(MOST_ROWS + 100).unwrap() * 100 + 500);
        let size = today.to_config_map("tributary-system", "east").data.unwrap()[ROWS].len();
        assert!(size < 256 * 1024, "{size}");
    }

    /// The dangers: hours count twice, because the label of a user is written later, or because a row was made for what had none.
    #[test]
    fn what_counted_in_another_row_until_now_counts_in_its_own_from_now_on() {
        let of = |user: &str, job: &str, since: i64| Use {
            consumer: Consumer { user: user.into(), ..who(job) },
            since: Some(at(since)),
            ..use_of(job, 2)
        };
        let mut today = day();
        today.count([of("", "lake", 0)], at(0));
        today.count([of("ada", "lake", 0)], at(3_600));
        assert_eq!(broker_seconds(&today, 3_700), 2 * 3_700, "a label that is written later");
        today.count([of("", "lake", 0)], at(7_200));
        assert_eq!(broker_seconds(&today, 7_300), 2 * 7_300, "and taken away again");
        let many = |since| (0..MOST_ROWS).map(move |number| of("", &format!("job-{number:04}"), since));
        let mut today = day();
        today.count(many(0).chain([of("", "late", 0)]), at(0));
        today.count(many(0).skip(1).chain([of("", "late", 0)]), at(1_000));
        let each = 2 * (MOST_ROWS as i64);
        assert_eq!(broker_seconds(&today, 2_000), (each + 2) * 1_000 + each * 1_000, "room for what had none");
        // An agent that was away finds it and another one that began meanwhile: that one was in no row.
        today.count(many(0).skip(2).chain([of("", "late", 0), of("", "new", 2_500)]), at(3_000));
        let before = (each + 2) * 1_000 + each * 2_000;
        assert_eq!(broker_seconds(&today, 3_000), before + 2 * 500);
    }

    proptest! {
        /// Whoever reads and writes it in between, in each of the days, the sum is what was there.
        #[test]
        fn the_sum_does_not_depend_on_who_goes_on_with_it(
            steps in proptest::collection::vec((0..4_u32, 0..4_u32, 0..30_000_i64), 1..40)
        ) {
            let (mut today, mut now, mut exact, mut past) = (day(), 0, 0, 0);
            for (lake, pond, wait) in steps {
                today.count([use_of("lake", lake), use_of("pond", pond)], at(now));
                exact += i64::from(lake + pond) * wait;
                now += wait;
                let stored = today.to_config_map("tributary-system", "east");
                today = DayOfUse::of_config_map(&stored).unwrap();
                while today.day < day_of(at(now)) {
                    past += broker_seconds(&today, now);
                    today = today.next();
                }
            }
            prop_assert_eq!(past + broker_seconds(&today, now), exact);
        }
    }
}
