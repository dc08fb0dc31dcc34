//! What a MiniCluster says of the budgets of its bursts, and of those that run on demand: the most urgent word of all of
//! them. Pure.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tributary_api::burst::Burst;
use tributary_api::labels::condition::{BUDGET, DEMAND};
use tributary_cluster::conditions::{self, Statement};

/// `Budget` and `Demand`, where any of the bursts has one.
pub(super) fn statements(bursts: &[Arc<Burst>]) -> Vec<Statement> {
    budget(bursts).into_iter().chain(demand(bursts)).collect()
}

fn of<'a>(bursts: &'a [Arc<Burst>], type_: &str) -> Vec<(&'a str, &'a Condition)> {
    let said = |burst: &'a Arc<Burst>| {
        let found = conditions::find(&burst.status.as_ref()?.conditions, type_)?;
        Some((burst.spec.slot.as_str(), found))
    };
    bursts.iter().filter_map(said).collect()
}

/// Nothing is left of one, or it ends soon: of which, and when.
fn budget(bursts: &[Arc<Burst>]) -> Option<Statement> {
    let all = of(bursts, BUDGET);
    let urgent = |reason: &str| {
        let those = all.iter().filter(|(_, said)| said.reason == reason);
        let each: Vec<String> = those.map(|(slot, said)| format!("{slot}: {}", said.message)).collect();
        Some(each.join("; ")).filter(|text| !text.is_empty())
    };
    for reason in ["Spent", "Unreadable"] {
        if let Some(text) = urgent(reason) {
            return Some(Statement::fails(BUDGET, reason, text));
        }
    }
    match (urgent("Ending"), urgent("NoPrice")) {
        (Some(text), _) => Some(Statement::holds(BUDGET, "Ending", text)),
        (None, Some(text)) => Some(Statement::unknown(BUDGET, "NoPrice", text)),
        (None, None) if all.is_empty() => None,
        (None, None) => Some(Statement::holds(BUDGET, "Within", "no budget of a burst ends soon")),
    }
}

/// Whether any of them is awake; which one is what. How many jobs ask changes all the time, and is left to the Bursts.
fn demand(bursts: &[Arc<Burst>]) -> Option<Statement> {
    let all = of(bursts, DEMAND);
    if let Some((slot, said)) = all.iter().find(|(_, said)| said.status == "Unknown") {
        return Some(Statement::unknown(DEMAND, said.reason.clone(), format!("{slot}: {}", said.message)));
    }
    let words: Vec<String> = all.iter().map(|(slot, said)| format!("{slot}: {}", said.reason)).collect();
    let words = words.join(", ");
    match all.iter().any(|(_, said)| said.status == "True") {
        _ if all.is_empty() => None,
        true => Some(Statement::holds(DEMAND, "Awake", words)),
        false => Some(Statement::fails(DEMAND, "Asleep", words)),
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::burst::{BurstSpec, BurstStatus};

    use super::*;

    fn burst(slot: &str, said: &[(&str, &str, &str)]) -> Arc<Burst> {
        let condition = |&(type_, status, reason): &(&str, &str, &str)| Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: format!("{reason} it is"),
            last_transition_time: serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap(),
            observed_generation: None,
        };
        let conditions = said.iter().map(condition).collect();
        let status = BurstStatus { conditions, ..BurstStatus::default() };
        let spec = BurstSpec { slot: slot.into(), ..BurstSpec::default() };
        Arc::new(Burst { status: Some(status), ..Burst::new(slot, spec) })
    }

    #[test]
    fn the_most_urgent_word_of_all_bursts_is_that_of_the_root() {
        let (within, ending, spent) =
            (("Budget", "True", "Within"), ("Budget", "True", "Ending"), ("Budget", "False", "Spent"));
        // The danger: no budget ends soon, says the root, of one that never ends.
        let no_price = ("Budget", "Unknown", "NoPrice");
        let (asleep, in_use, unknown) =
            (("Demand", "False", "Asleep"), ("Demand", "True", "InUse"), ("Demand", "Unknown", "Forbidden"));
        let said = |bursts: &[Arc<Burst>]| {
            let each = statements(bursts).into_iter();
            each.map(|one| format!("{} {:?} {}: {}", one.type_, one.status, one.reason, one.message))
                .collect::<Vec<_>>()
        };
        insta::assert_debug_snapshot!([
            said(&[burst("always", &[])]),
            said(&[burst("a", &[within, asleep]), burst("b", &[asleep])]),
            said(&[burst("a", &[within, asleep]), burst("b", &[ending, in_use])]),
            said(&[burst("a", &[spent, unknown]), burst("b", &[ending, in_use]), burst("c", &[spent, asleep])]),
            said(&[burst("a", &[("Budget", "False", "Unreadable")]), burst("b", &[ending])]),
            said(&[burst("a", &[no_price]), burst("b", &[within])]),
            said(&[burst("a", &[no_price]), burst("b", &[ending])]),
        ]);
    }
}
