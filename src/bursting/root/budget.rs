//! How a budget stands: what is left of it, when it ends, and what is said of that. Pure.
//!
//! Three kinds of object have a budget: a burst, a root for all its bursts, and a peer for all that is placed there. A burst
//! goes by the tightest of those that apply to it.

use std::time::Duration;

use jiff::Timestamp;
use tributary_api::budget::{BurstBudget, Spent};
use tributary_api::duration;
use tributary_api::labels::condition::BUDGET;
use tributary_cluster::conditions::Statement;
use tributary_contract::Money;
use tributary_render::quantity::milli;

use crate::timing::{elapsed, later};

/// Reason of the condition where a budget of money never ends.
pub(super) const NO_PRICE: &str = "NoPrice";

/// The longest that a budget is warned of before its end, if its user says nothing else.
const WARN_BEFORE: Duration = Duration::from_secs(15 * 60);

/// A budget, whose it is, and what is spent of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account<'a> {
    /// `the budget of …`
    pub name: &'static str,
    pub budget: &'a BurstBudget,
    pub spent: &'a Spent,
    /// A ClusterPeer that says no price, if brokers are used there.
    pub unpriced: Option<&'a str>,
}

/// How a budget stands at a moment. The most urgent one is the greatest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Standing {
    /// Nothing of it is being used.
    Idle(String),
    /// What is used of it costs nothing: it never ends.
    Free(Free),
    /// It is being used.
    Within(Reckoning),
    /// It ends soon.
    Ending(Reckoning),
    /// It cannot be read, and why. Nothing new is placed; what runs goes on, since nobody said that it should end.
    Unreadable(String),
    /// Nothing is left, and why.
    Spent(String),
}

/// A budget of money that never ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Free {
    limit: String,
    brokers: u32,
    /// The ClusterPeer whose price nobody wrote.
    unpriced: Option<String>,
}

/// When a budget ends, if the number of brokers stays as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reckoning {
    /// When nothing is left.
    pub ends: Timestamp,
    /// When that is warned of.
    warns: Timestamp,
    limit: String,
}

/// The sooner the end, the greater.
impl Ord for Reckoning {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.ends.cmp(&self.ends).then_with(|| self.limit.cmp(&other.limit))
    }
}

impl PartialOrd for Reckoning {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Account<'_> {
    /// How it stands; `None` if it limits nothing.
    pub(crate) fn standing(&self, now: Timestamp) -> Option<Standing> {
        let limits = self.limits().map_err(Standing::Unreadable);
        match limits {
            Ok(limits) => limits.into_iter().map(|limit| limit.standing(self, now)).max(),
            Err(unreadable) => Some(unreadable),
        }
    }

    /// What limits it, or why it cannot be read: the schema refuses nearly all of that.
    fn limits(&self) -> Result<Vec<Limit>, String> {
        let BurstBudget { max_duration, broker_hours, cost, warn_before, renewal: _ } = self.budget;
        let read = |text: &String| {
            duration::parse(text).map_err(|error| format!("the budget of {} cannot be read: {error}", self.name))
        };
        let warn = warn_before.as_ref().map(read).transpose()?;
        let mut limits = Vec::new();
        if let Some(text) = max_duration {
            let text_of = format!("maxDuration {text} of {}", self.name);
            limits.push(Limit { total: whole(read(text)?), of: Measure::Seconds, text: text_of, warn });
        }
        if let Some(amount) = broker_hours {
            let hours = milli(&amount.to_string()).filter(|hours| *hours >= 0).ok_or_else(|| {
                format!("the budget of {} cannot be read: brokerHours {amount} is no number from 0 up", self.name)
            })?;
            let seconds = hours.saturating_mul(3600).div_euclid(1000);
            let text = format!("brokerHours {amount} of {}", self.name);
            let total = i64::try_from(seconds).unwrap_or(i64::MAX);
            limits.push(Limit { total, of: Measure::BrokerSeconds, text, warn });
        }
        if let Some(cost) = cost {
            let text = format!("cost {cost} of {}", self.name);
            let total = i64::try_from(cost.millionths()).unwrap_or(i64::MAX);
            limits.push(Limit { total, of: Measure::Cost, text, warn });
        }
        Ok(limits)
    }
}

/// What a budget counts.
enum Measure {
    Seconds,
    BrokerSeconds,
    /// Money, in millionths.
    Cost,
}

/// One of the numbers of a budget.
struct Limit {
    total: i64,
    of: Measure,
    text: String,
    warn: Option<Duration>,
}

impl Limit {
    fn standing(self, account: &Account<'_>, now: Timestamp) -> Standing {
        let spent = account.spent;
        let whole = |money: Money| i64::try_from(money.millionths()).unwrap_or(i64::MAX);
        // What is used in so many seconds.
        let (sum, rate, per) = match self.of {
            Measure::Seconds => (spent.seconds, i64::from(spent.brokers > 0), 1),
            Measure::BrokerSeconds => (spent.broker_seconds, i64::from(spent.brokers), 1),
            Measure::Cost => (whole(spent.cost), whole(spent.hourly), 3600),
        };
        let left = self.total.saturating_sub(sum).max(0);
        let since = spent.since.as_ref().filter(|_| rate > 0).map(|since| since.0);
        let Some(since) = since else {
            return match spent.brokers {
                _ if left == 0 => Standing::Spent(self.spent()),
                0 => Standing::Idle(self.text),
                brokers => {
                    Standing::Free(Free { limit: self.text, brokers, unpriced: account.unpriced.map(str::to_owned) })
                }
            };
        };
        let lasts = |amount: i64| {
            let seconds = (i128::from(amount) * per + i128::from(rate) - 1) / i128::from(rate);
            Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
        };
        let ends = later(since, lasts(left));
        if now >= ends {
            return Standing::Spent(self.spent());
        }
        let before = self.warn.unwrap_or_else(|| (lasts(self.total) / 10).min(WARN_BEFORE));
        let warns = ends.checked_sub(before).unwrap_or(since);
        let reckoning = Reckoning { ends, warns, limit: self.text };
        if now >= warns { Standing::Ending(reckoning) } else { Standing::Within(reckoning) }
    }

    fn spent(&self) -> String {
        format!("{} is spent", self.text)
    }
}

fn whole(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

impl Standing {
    /// The most urgent of several accounts.
    pub(crate) fn tightest<'a>(accounts: impl IntoIterator<Item = Account<'a>>, now: Timestamp) -> Option<Self> {
        accounts.into_iter().filter_map(|account| account.standing(now)).max()
    }

    /// How long until it stands otherwise, if nothing else changes.
    pub(crate) fn wake(&self, now: Timestamp) -> Option<Duration> {
        match self {
            Self::Within(reckoning) => Some(elapsed(now, reckoning.warns)),
            Self::Ending(reckoning) => Some(elapsed(now, reckoning.ends)),
            Self::Idle(_) | Self::Free(_) | Self::Unreadable(_) | Self::Spent(_) => None,
        }
    }

    /// What people are told. The sentence stays the same as long as the number of brokers does.
    pub(crate) fn statement(&self) -> Statement {
        match self {
            Self::Idle(limit) => Statement::holds(BUDGET, "Within", format!("{limit}: nothing is used at the moment")),
            Self::Free(Free { limit, brokers, unpriced: Some(peer) }) => {
                let why = format!("{limit}: {brokers} brokers are used, and ClusterPeer {peer} has no price");
                Statement::unknown(BUDGET, NO_PRICE, format!("{why}: this budget never ends; write spec.price"))
            }
            Self::Free(Free { limit, brokers, unpriced: None }) => {
                Statement::holds(BUDGET, "Within", format!("{limit}: {brokers} brokers are used, and cost nothing"))
            }
            Self::Within(Reckoning { ends, limit, .. }) => {
                Statement::holds(BUDGET, "Within", format!("{limit} lasts until {ends:.0} with as many brokers as now"))
            }
            Self::Ending(Reckoning { ends, limit, .. }) => {
                Statement::holds(BUDGET, "Ending", format!("{limit} is spent at {ends:.0}: brokers are drained then"))
            }
            Self::Unreadable(why) => Statement::fails(BUDGET, "Unreadable", format!("{why}: correct it")),
            Self::Spent(why) => {
                Statement::fails(BUDGET, "Spent", format!("{why}: raise it, or renew it with another value of renewal"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::budget::Usage;

    use super::*;

    fn of(brokers: u32) -> Usage {
        Usage { brokers, hourly: Money::of_millionths(u64::from(brokers) * 500_000), ..Usage::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn budget(yaml: &str) -> BurstBudget {
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn is_spent(standing: Option<Standing>) -> bool {
        matches!(standing, Some(Standing::Spent(_)))
    }

    fn standing(budget: &BurstBudget, spent: &Spent, now: i64) -> Option<Standing> {
        Account { name: "the burst", budget, spent, unpriced: Some("west") }.standing(at(now))
    }

    #[test]
    fn the_sooner_of_two_limits_counts_and_is_warned_of() {
        let spent = Spent::default().on(of(4), None, at(0));
        let both = budget("{maxDuration: 2h, brokerHours: \"6\"}");
        let said = |second| standing(&both, &spent, second).unwrap();
        let Standing::Within(reckoning) = said(0) else { panic!("{:?}", said(0)) };
        assert_eq!((reckoning.ends, reckoning.limit.as_str()), (at(5_400), "brokerHours 6 of the burst"));
        assert_eq!(said(0).wake(at(0)), Some(Duration::from_secs(4_860)), "a tenth before");
        assert!(matches!(said(4_860), Standing::Ending(_)) && said(4_860).wake(at(4_860)).unwrap().as_secs() == 540);
        assert_eq!(said(5_400), Standing::Spent("brokerHours 6 of the burst is spent".into()));
        let fewer = spent.on(of(1), None, at(3_600));
        let Standing::Within(reckoning) = standing(&both, &fewer, 3_600).unwrap() else { panic!() };
        assert_eq!(reckoning.ends, at(7_200), "with fewer brokers the hours last longer than the time");
        let cost = budget("{cost: \"2.5\", brokerHours: 6}");
        let Some(Standing::Within(reckoning)) = standing(&cost, &spent, 0) else { panic!() };
        assert_eq!((reckoning.ends, reckoning.limit.as_str()), (at(4_500), "cost 2.5 of the burst"));
        let free = Spent::default().on(Usage { brokers: 4, ..Usage::default() }, None, at(0));
        let free = standing(&budget("{cost: 1}"), &free, 99_999);
        assert!(matches!(free, Some(Standing::Free(_))), "what costs nothing lasts: {free:?}");
        insta::assert_debug_snapshot!([said(0), said(5_000), said(9_999)].map(|one| one.statement().message));
    }

    #[test]
    fn money_without_a_price_never_ends_and_nobody_says_that_nothing_is_used() {
        let free = Spent::default().on(Usage { brokers: 4, ..Usage::default() }, None, at(0));
        let said = |yaml: &str, unpriced, spent: &Spent| {
            let said = Account { name: "the root", budget: &budget(yaml), spent, unpriced }.standing(at(99)).unwrap();
            let said = said.statement();
            (said.status, said.reason, said.message)
        };
        let (status, reason, message) = said("{cost: 250}", Some("west"), &free);
        assert_eq!((status, reason.as_str()), (None, "NoPrice"));
        let expected = "cost 250 of the root: 4 brokers are used, and ClusterPeer west has no price: this budget never ends; \
                        write spec.price";
        assert_eq!(message, expected);
        let (status, reason, message) = said("{cost: 250}", None, &free);
        assert_eq!((status, reason.as_str()), (Some(true), "Within"), "a price of 0 is a price");
        assert_eq!(message, "cost 250 of the root: 4 brokers are used, and cost nothing");
        let idle = said("{cost: 250}", Some("west"), &Spent::default()).2;
        assert_eq!(idle, "cost 250 of the root: nothing is used at the moment");
        let both = said("{cost: 250, brokerHours: 9}", Some("west"), &free);
        assert_eq!((both.0, both.1.as_str()), (Some(true), "Within"), "it ends by its other limit");
        assert_eq!(said("{cost: 0}", Some("west"), &free).1, "Spent");
    }

    #[test]
    fn what_is_not_used_does_not_end_and_what_limits_nothing_says_nothing() {
        let never = Spent::default();
        assert_eq!(standing(&BurstBudget::default(), &never, 0), None);
        let hour = budget("{maxDuration: 1h, warnBefore: 30m}");
        assert_eq!(standing(&hour, &never, 0).unwrap().wake(at(0)), None);
        let used = never.on(of(3), None, at(0)).on(of(0), None, at(3_599));
        assert!(matches!(standing(&hour, &used, 99_999), Some(Standing::Idle(_))), "a second is left");
        let again = used.on(of(1), None, at(5_000));
        assert!(!is_spent(standing(&hour, &again, 5_000)));
        assert!(is_spent(standing(&hour, &again, 5_001)));
        assert!(is_spent(standing(&hour, &again.on(of(0), None, at(5_001)), 9_999)), "and stays spent");
        let renewed = again.on(of(0), Some("2"), at(6_000));
        assert!(!is_spent(standing(&hour, &renewed, 6_000)));
        let soon = standing(&hour, &never.on(of(1), None, at(0)), 1_800);
        assert!(matches!(soon, Some(Standing::Ending(_))), "its user wants to know half an hour before");
    }

    #[test]
    fn nothing_is_spent_at_once_and_what_cannot_be_read_is_not_spent() {
        let said = |text| standing(&budget(text), &Spent::default(), 0).unwrap();
        for text in ["{brokerHours: 0}", "{maxDuration: 0s}"] {
            assert!(is_spent(Some(said(text))), "{text}: {:?}", said(text));
        }
        for text in ["{maxDuration: soon}", "{brokerHours: many}", "{brokerHours: -1}"] {
            assert!(matches!(said(text), Standing::Unreadable(_)), "{text}: {:?}", said(text));
        }
        assert!(said("{brokerHours: 0}") > said("{brokerHours: many}"), "what is spent ends a burst all the same");
    }
}
