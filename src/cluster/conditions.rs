//! Merging of `metav1` conditions.
//!
//! A condition's `lastTransitionTime` moves when its `status` changes and never otherwise; its `observedGeneration` is
//! the generation of the object it was computed from. (Kubernetes API conventions, "Typical status properties".)

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::events::cut;

/// A message is at most this long, in bytes. Kubernetes allows 32,768 characters, but etcd takes 1.5 MB of an object, its spec and
/// its dozen conditions together, and all who watch it keep them in memory.
const MESSAGE_LIMIT: usize = 4096;

/// What a controller says now about one condition type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The condition's type.
    pub type_: &'static str,
    /// Whether it holds; `None` is `Unknown`.
    pub status: Option<bool>,
    /// One CamelCase word; not empty.
    pub reason: String,
    /// For people; [`merged`] cuts it to 4 kB.
    pub message: String,
}

impl Statement {
    /// The condition holds.
    pub fn holds(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { type_, status: Some(true), reason: reason.into(), message: message.into() }
    }

    /// The condition does not hold.
    pub fn fails(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: Some(false), ..Self::holds(type_, reason, message) }
    }

    /// It is not known whether the condition holds.
    pub fn unknown(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: None, ..Self::holds(type_, reason, message) }
    }
}

/// The new list of conditions of an object of `generation`: each statement replaces the condition of its type, other
/// types stay as they are. Sorted by type, so that an equal state is an equal list.
pub fn merged(
    old: &[Condition],
    statements: impl IntoIterator<Item = Statement>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = old.to_vec();
    for statement in statements {
        let status = match statement.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let before = find(old, statement.type_).filter(|before| before.status == status);
        let last_transition_time = before.map_or(Time(now), |before| before.last_transition_time.clone());
        conditions.retain(|condition| condition.type_ != statement.type_);
        conditions.push(Condition {
            type_: statement.type_.into(),
            status: status.into(),
            reason: statement.reason,
            message: cut(statement.message, MESSAGE_LIMIT),
            observed_generation: generation,
            last_transition_time,
        });
    }
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    conditions
}

/// The list without some types: conditions that no longer apply.
pub fn without(mut conditions: Vec<Condition>, types: &[&str]) -> Vec<Condition> {
    conditions.retain(|condition| !types.contains(&condition.type_.as_str()));
    conditions
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of a type is there and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(secs).unwrap()
    }

    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let first = merged(&[], [Statement::fails("Ready", "Starting", "0 of 4")], Some(1), at(10));
        let second = merged(&first, [Statement::fails("Ready", "Starting", "3 of 4")], Some(2), at(20));
        let third = merged(&second, [Statement::holds("Ready", "AllOnline", "4 of 4")], Some(2), at(30));

        assert_eq!(second[0].last_transition_time, Time(at(10)));
        assert_eq!((second[0].message.as_str(), second[0].observed_generation), ("3 of 4", Some(2)));
        assert_eq!(third[0].last_transition_time, Time(at(30)));
        assert!(is_true(&third, "Ready") && !is_true(&second, "Ready") && !is_true(&third, "Other"));
    }

    /// The danger: the status is larger than etcd takes, and the object never says what is wrong with it.
    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = || [Statement::fails("Valid", "InvalidValue", format!("x{}", "é".repeat(1_000_000)))];
        let first = merged(&[], long(), None, at(1));
        let message = &first[0].message;
        assert!(message.len() <= MESSAGE_LIMIT && message.len() > MESSAGE_LIMIT - 3 && message.ends_with("é…"));
        assert_eq!(merged(&first, long(), None, at(2)), first);
    }

    #[test]
    fn other_types_stay_and_the_order_is_stable() {
        let old = merged(&[], [Statement::holds("Zebra", "A", ""), Statement::unknown("Ready", "B", "")], None, at(1));
        let new = merged(&old, [Statement::holds("Ready", "C", "")], None, at(2));
        assert_eq!(new.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Ready", "Zebra"]);
        assert_eq!(without(new, &["Ready"]).len(), 1);
    }
}
