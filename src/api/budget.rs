//! How much brokers in other clusters may be used, and how much they have been.
//!
//! What is spent is counted in the status of the object whose budget it is, as sums and the moment since when nothing was
//! added: it is written when the number of brokers or their price changes, and never in between, and whoever reads it, an agent that has
//! just started or a new leader, counts on from the same moment. Nothing is counted twice, and nothing begins anew.

use std::iter::Sum;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_contract::Money;

use super::duration;
use super::minicluster::Amount;
use super::schema::is_default;

/// How much brokers in other clusters may be used. When it is spent they are drained and released, and do not come back
/// until the budget is raised or renewed. Counted from the moment a peer accepts a burst until nothing of it is left there:
/// pods that still start and brokers that drain count as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstBudget {
    /// The longest that there may be brokers, all times they were there taken together, for example `8h` or `1h30m`.
    /// Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub max_duration: Option<String>,

    /// Number of brokers times hours, all times taken together: `100`, or `"0.5"`. Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_hours: Option<Amount>,

    /// What brokers may cost, by the `price` of the ClusterPeers they are on, all times taken together: `500`, or `"49.90"`.
    /// Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,

    /// How long before its end it is warned of, for example `30m`: with an event, and in the condition `Budget`. A tenth of
    /// what the whole budget lasts, but 15 minutes at most, if not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub warn_before: Option<String>,

    /// Any new value, for example a month, renews the budget: what was spent before counts no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal: Option<String>,
}

impl BurstBudget {
    /// Whether anything is limited.
    pub fn limits(&self) -> bool {
        self.max_duration.is_some() || self.broker_hours.is_some() || self.cost.is_some()
    }
}

/// How much brokers in other clusters were used. Sums, to which what was used since `since` is to be added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spent {
    /// Seconds in which there were any, until `since`.
    pub seconds: i64,
    /// Brokers times seconds, until `since`.
    pub broker_seconds: i64,
    /// Thousandths of their cores times seconds, until `since`.
    #[serde(skip_serializing_if = "is_default")]
    pub milli_core_seconds: i64,
    /// Their GPUs times seconds, until `since`.
    #[serde(skip_serializing_if = "is_default")]
    pub gpu_seconds: i64,
    /// What they cost, until `since`.
    #[serde(skip_serializing_if = "is_default")]
    pub cost: Money,
    /// How many there are since then.
    pub brokers: u32,
    /// Thousandths of the cores of all of them, as they are requested.
    #[serde(skip_serializing_if = "is_default")]
    pub milli_cores: u64,
    /// The GPUs of all of them.
    #[serde(skip_serializing_if = "is_default")]
    pub gpus: u64,
    /// What they cost in an hour.
    #[serde(skip_serializing_if = "is_default")]
    pub hourly: Money,
    /// When one of these last changed. Unset: there never were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The value of `budget.renewal` that these sums are of.
    #[serde(skip_serializing_if = "is_default")]
    pub renewal: Option<String>,
}

/// What is used at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many brokers there are.
    pub brokers: u32,
    /// Thousandths of the cores of all of them.
    pub milli_cores: u64,
    /// The GPUs of all of them.
    pub gpus: u64,
    /// What they cost in an hour.
    pub hourly: Money,
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            brokers: sum.brokers.saturating_add(one.brokers),
            milli_cores: sum.milli_cores.saturating_add(one.milli_cores),
            gpus: sum.gpus.saturating_add(one.gpus),
            hourly: sum.hourly.plus(one.hourly),
        })
    }
}

impl Spent {
    /// What is used since `since`.
    pub fn usage(&self) -> Usage {
        Usage { brokers: self.brokers, milli_cores: self.milli_cores, gpus: self.gpus, hourly: self.hourly }
    }

    /// The record from now on: as it is, unless what is used changed or the budget was renewed.
    ///
    /// Whole seconds are counted, from one whole second to the next: however often it is written, none is lost or counted
    /// twice. A clock that was set back adds nothing.
    #[must_use]
    pub fn on(&self, usage: Usage, renewal: Option<&str>, now: Timestamp) -> Self {
        let renewed = self.renewal.as_deref() != renewal;
        if self.usage() == usage && !renewed {
            return self.clone();
        }
        let sums = if renewed { Self::default() } else { self.until(now) };
        let since = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let Usage { brokers, milli_cores, gpus, hourly } = usage;
        Self {
            brokers,
            milli_cores,
            gpus,
            hourly,
            since: Some(Time(since)),
            renewal: renewal.map(str::to_owned),
            ..sums
        }
    }

    /// Takes in the sums of another record, which is over.
    pub fn add(&mut self, other: &Self) {
        self.seconds = self.seconds.saturating_add(other.seconds);
        self.broker_seconds = self.broker_seconds.saturating_add(other.broker_seconds);
        self.milli_core_seconds = self.milli_core_seconds.saturating_add(other.milli_core_seconds);
        self.gpu_seconds = self.gpu_seconds.saturating_add(other.gpu_seconds);
        self.cost = self.cost.plus(other.cost);
    }

    /// With what was used until `now`.
    #[must_use]
    pub fn until(&self, now: Timestamp) -> Self {
        let Some(Time(since)) = self.since.clone().filter(|_| self.brokers > 0) else { return self.clone() };
        let seconds = (now.as_second() - since.as_second()).max(0);
        let times = |amount: u64| seconds.saturating_mul(i64::try_from(amount).unwrap_or(i64::MAX));
        Self {
            seconds: self.seconds.saturating_add(seconds),
            broker_seconds: self.broker_seconds.saturating_add(times(self.brokers.into())),
            milli_core_seconds: self.milli_core_seconds.saturating_add(times(self.milli_cores)),
            gpu_seconds: self.gpu_seconds.saturating_add(times(self.gpus)),
            cost: self.cost.plus(self.hourly.for_seconds(seconds.unsigned_abs())),
            since: Some(Time(now.max(since))),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(brokers: u32) -> Usage {
        let all = u64::from(brokers);
        Usage { brokers, milli_cores: all * 1_500, gpus: all * 2, hourly: Money::of_millionths(all * 3_600_000) }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    #[test]
    fn what_is_spent_is_written_when_the_number_of_brokers_changes_and_read_at_any_time() {
        let never = Spent::default().on(of(0), None, at(0));
        assert_eq!(never, Spent::default(), "nothing is written of what never was");
        let three = never.on(of(3), None, at(1_900));
        assert_eq!(three.on(of(3), None, at(99_000)), three, "nothing is written while nothing changes");
        assert_eq!((three.until(at(11_000)).seconds, three.until(at(11_000)).broker_seconds), (10, 30));
        let five = three.on(of(5), None, at(11_000));
        let gone = five.on(of(0), None, at(21_000));
        assert_eq!((gone.seconds, gone.broker_seconds, gone.brokers), (20, 80, 0));
        assert_eq!((gone.milli_core_seconds, gone.gpu_seconds, gone.milli_cores, gone.gpus), (120_000, 160, 0, 0));
        assert_eq!((gone.cost.to_string(), gone.hourly), ("0.08".into(), Money::default()));
        let dearer = Usage { hourly: Money::of_millionths(7_200_000_000), ..of(5) };
        assert_eq!(five.on(dearer, None, at(16_000)).until(at(17_000)).cost.to_string(), "2.055");
        assert_eq!(gone.until(at(1_000_000)), gone, "where there is nobody nothing is spent");
        let back = gone.on(of(1), None, at(0));
        assert_eq!((back.seconds, back.broker_seconds), (20, 80), "a clock that was set back takes nothing away");
        assert_eq!(back.until(at(-5_000)).seconds, 20);
    }

    #[test]
    fn a_new_value_renews_the_budget_though_brokers_stay() {
        let old = Spent::default().on(of(2), None, at(0));
        let new = old.on(of(2), Some("2026-12"), at(100_000));
        assert_eq!((new.seconds, new.broker_seconds, new.brokers), (0, 0, 2));
        assert_eq!(new.until(at(101_000)).broker_seconds, 2);
        assert_eq!(new.on(of(2), Some("2026-12"), at(200_000)), new);
    }

    proptest! {
        /// However often it is written in between, by whomever, through the API server's whole seconds.
        #[test]
        fn the_sum_does_not_depend_on_who_writes_when(steps in proptest::collection::vec((0..5_u32, 0..5_000_i64), 1..40)) {
            let (mut spent, mut now, mut exact) = (Spent::default(), 0, 0);
            for (brokers, wait) in steps {
                let stored = serde_json::to_string(&spent.on(of(brokers), None, at(now))).unwrap();
                spent = serde_json::from_str(&stored).unwrap();
                exact += i64::from(brokers) * ((now + wait).div_euclid(1_000) - now.div_euclid(1_000));
                now += wait;
            }
            prop_assert_eq!(spent.until(at(now)).broker_seconds, exact);
        }
    }
}
