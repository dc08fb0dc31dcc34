//! What brokers cost. Amounts have no currency: all prices and budgets of a federation are written in the same one.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Millionths of one.
const ONE: u64 = 1_000_000;

/// The most that there is, in whole ones: what a schema takes, and no sum goes beyond.
const MOST: u64 = 9_999_999_999_999;

/// An amount of money, to the millionth. Written as an integer or as text: `12`, `"0.045"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Money(u64);

impl Money {
    /// So many millionths; the most that there is, where they are more.
    pub fn of_millionths(millionths: u64) -> Self {
        Self(millionths.min(MOST * ONE))
    }

    /// In millionths.
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// Whether it is nothing.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::of_millionths(self.0.saturating_add(other.0))
    }

    /// What comes to so much an hour, after so many seconds.
    #[must_use]
    pub fn for_seconds(self, seconds: u64) -> Self {
        Self::of(u128::from(self.0) * u128::from(seconds) / 3600)
    }

    fn of(millionths: u128) -> Self {
        Self::of_millionths(u64::try_from(millionths).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / ONE, self.0 % ONE);
        match rest {
            0 => write!(f, "{whole}"),
            rest => f.write_str(format!("{whole}.{rest:06}").trim_end_matches('0')),
        }
    }
}

impl FromStr for Money {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // Longer numbers would not fit below.
        let is_short = whole.len() <= 13 && rest.len() <= 6;
        let parsed = (digits(whole) && digits(rest) && is_short)
            .then(|| Some(whole.parse::<u64>().ok()? * ONE + format!("{rest:0<6}").parse::<u64>().ok()?));
        parsed.flatten().map(Self).ok_or_else(|| {
            format!("{text:?} is no amount of money: write a number from 0 to {MOST}, with up to six decimal places")
        })
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Integer(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Integer(whole) if whole <= MOST => Ok(Self(whole * ONE)),
            Written::Integer(whole) => whole.to_string().parse().map_err(D::Error::custom),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl JsonSchema for Money {
    fn schema_name() -> Cow<'static, str> {
        "Money".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": r"^[0-9]{1,13}(\.[0-9]{1,6})?$",
            "minimum": 0,
            "maximum": MOST,
        })
    }
}

/// What brokers in a cluster cost. What is not written costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Price {
    /// A core for an hour: `"0.04"`.
    #[serde(skip_serializing_if = "Money::is_zero")]
    pub core_hour: Money,
    /// A GPU for an hour: `"1.20"`.
    #[serde(skip_serializing_if = "Money::is_zero")]
    pub gpu_hour: Money,
}

impl Price {
    /// What so many brokers cost in an hour, each with these thousandths of a core and these GPUs.
    pub fn hourly(self, brokers: u32, milli_cores: u32, gpus: u32) -> Money {
        let times = |price: Money, amount: u32| u128::from(price.0) * u128::from(brokers) * u128::from(amount);
        Money::of(times(self.core_hour, milli_cores) / 1000 + times(self.gpu_hour, gpus))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_exact_to_the_millionth_and_anything_else_is_refused() {
        for (text, millionths, shown) in
            [("0", 0, "0"), ("12", 12_000_000, "12"), ("0.045", 45_000, "0.045"), ("007.10", 7_100_000, "7.1")]
        {
            let money: Money = text.parse().unwrap();
            assert_eq!((money.millionths(), money.to_string().as_str()), (millionths, shown), "{text}");
        }
        for text in [
            "",
            ".5",
            "5.",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "0.0000001",
            "99999999999999",
            "€4",
            "1.2.3",
            "18446744073709551616",
        ] {
            assert!(text.parse::<Money>().unwrap_err().contains("is no amount of money"), "{text}");
        }
        let read = |json: &str| serde_json::from_str::<Money>(json).map(Money::millionths);
        assert_eq!((read("3").unwrap(), read("\"0.5\"").unwrap()), (3_000_000, 500_000));
        assert!(read("-3").is_err() && read("10000000000000").is_err() && read("\"x\"").is_err());
    }

    #[test]
    fn a_price_counts_parts_of_cores_and_whole_gpus() {
        let price = Price { core_hour: "0.04".parse().unwrap(), gpu_hour: "1.5".parse().unwrap() };
        let hourly = |brokers, milli_cores, gpus| price.hourly(brokers, milli_cores, gpus).to_string();
        assert_eq!(
            (hourly(3, 2000, 0), hourly(4, 500, 1), hourly(0, 9, 9)),
            ("0.24".into(), "6.08".into(), "0".into())
        );
        assert_eq!(Price::default().hourly(9, 9, 9), Money::default());
        let much = price.hourly(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(much.for_seconds(u64::MAX), Money(MOST * ONE), "it never wraps, and can be written");
        assert_eq!(price.hourly(1, 1000, 0).for_seconds(900).to_string(), "0.01");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(millionths in 0..=MOST * ONE) {
            let money = Money::of_millionths(millionths);
            prop_assert_eq!(serde_json::from_value::<Money>(serde_json::to_value(money).unwrap()).unwrap(), money);
        }
    }
}
