//! The spans of a MiniCluster: pure. Each is recorded with the status that says it is over.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::labels::condition::READY;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary_cluster::{conditions, traced};
use tributary_telemetry::{Span, TraceContext};

/// What is over with a status: the change was looked at, the brokers are ready. `began`: when this generation was first
/// seen here.
pub(super) fn spans(
    object: &MiniCluster,
    status: &MiniClusterStatus,
    (own, parent): (TraceContext, Option<TraceContext>),
    (began, now): (Timestamp, Timestamp),
) -> Vec<Span> {
    let old = object.status.clone().unwrap_or_default();
    let mut spans = Vec::new();
    if old.observed_generation != status.observed_generation {
        let name = "MiniCluster changed";
        spans.push(Span { name, context: own, parent, start: began, end: now.max(began), attributes: Vec::new() });
    }
    let ready = |conditions| conditions::is_true(conditions, READY);
    if ready(&status.conditions) && !ready(&old.conditions) {
        let created = object.metadata.creation_timestamp.as_ref().map(|Time(at)| *at);
        // Dates in objects are in whole seconds: what began a moment ago began no earlier than it was seen.
        let start = traced::unmet_since(&old.conditions, READY).or(created).unwrap_or(began);
        let just_before = start < began && began.duration_since(start).as_secs() < 1;
        let start = if just_before { began } else { start };
        spans.push(Span::part(&own, "brokers ready", start, now));
    }
    spans.into_iter().map(|span| about(span, object)).collect()
}

/// The same span, said of which MiniCluster.
pub(super) fn about(span: Span, object: &MiniCluster) -> Span {
    let meta = &object.metadata;
    span.with("k8s.namespace.name", meta.namespace.clone().unwrap_or_default())
        .with("tributary.minicluster", meta.name.clone().unwrap_or_default())
        .with("tributary.generation", meta.generation.unwrap_or(0).to_string())
}

#[cfg(test)]
mod tests {
    use tributary_api::minicluster::MiniClusterSpec;
    use tributary_cluster::conditions::{Statement, merged};

    use super::*;

    fn status(generation: i64, ready: bool, second: i64) -> MiniClusterStatus {
        let statement = match ready {
            true => Statement::holds(READY, "Running", ""),
            false => Statement::fails(READY, "Starting", ""),
        };
        MiniClusterStatus {
            observed_generation: Some(generation),
            conditions: merged(&[], [statement], Some(generation), Timestamp::from_second(second).unwrap()),
            ..MiniClusterStatus::default()
        }
    }

    #[test]
    fn a_change_and_what_it_led_to_are_recorded_once() {
        let mut object = MiniCluster::new("lake", MiniClusterSpec::default());
        let at = |second| Timestamp::from_second(second).unwrap();
        let change = TraceContext::about(&["uid", "1"]);
        let mut said = Vec::new();
        for (next, now) in [(status(1, false, 10), 10), (status(1, false, 10), 12), (status(1, true, 15), 15)] {
            let spans = spans(&object, &next, (change, None), (at(9), at(now)));
            said.extend(
                spans.iter().map(|span| (span.name, span.start.as_second(), span.end.as_second(), span.parent)),
            );
            object.status = Some(next);
        }
        let expected = [("MiniCluster changed", 9, 10, None), ("brokers ready", 10, 15, Some(change))];
        assert_eq!(said, expected);
    }
}
