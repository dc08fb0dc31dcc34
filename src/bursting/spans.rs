//! The spans of a burst, on both of its sides: pure. Each is recorded with the status that says it is over.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::{BurstPhase, HostedBurst, PhaseTimestamps};
use tributary_api::labels::condition::READY;
use tributary_cluster::traced;
use tributary_contract::PhaseTimes;
use tributary_telemetry::{Span, TraceContext};

/// The span of a Burst: from its planning until every broker is ready. What its provider does is a part of it.
pub(super) fn of_burst(burst: &Burst) -> Option<TraceContext> {
    let parent = traced::annotated(burst)?;
    Some(parent.child(&["burst", burst.metadata.uid.as_deref()?]))
}

/// The span of a HostedBurst: from its admission until every broker is ready. The hosted MiniCluster is a part of it.
pub(super) fn of_hosted(hosted: &HostedBurst) -> Option<TraceContext> {
    let parent = traced::annotated(hosted)?;
    Some(parent.child(&["hosted", hosted.metadata.uid.as_deref()?]))
}

/// What is over with the status of a Burst that follows `old`.
pub(super) fn burst_spans(old: &Burst, new: &Burst, now: Timestamp) -> Vec<Span> {
    let Some(own) = of_burst(new) else { return Vec::new() };
    let side = |burst: &Burst| {
        let status = burst.status.clone().unwrap_or_default();
        Side { phase: status.phase, times: times(status.times), conditions: status.conditions }
    };
    let peer = new.status.as_ref().and_then(|status| status.peer.clone()).unwrap_or_default();
    let names = ["burst", "burst offered", "burst admitted", "burst created", "burst started", "burst online"];
    let spans = spans((own, traced::annotated(new)), names, &side(old), &side(new), now);
    spans.into_iter().map(|span| about(span, new, &new.spec.slot).with("tributary.peer", peer.clone())).collect()
}

/// What is over with the status of a HostedBurst that follows `old`.
pub(super) fn hosted_spans(old: &HostedBurst, new: &HostedBurst, now: Timestamp) -> Vec<Span> {
    let Some(own) = of_hosted(new) else { return Vec::new() };
    let side = |hosted: &HostedBurst| {
        let status = hosted.status.clone().unwrap_or_default();
        Side { phase: status.phase, times: times(status.times), conditions: status.conditions }
    };
    let names = ["hosted burst", "", "", "hosted burst created", "hosted burst started", "hosted burst online"];
    let spans = spans((own, traced::annotated(new)), names, &side(old), &side(new), now);
    let peer = &new.spec.peer;
    spans.into_iter().map(|span| about(span, new, &new.spec.slot).with("tributary.peer", peer.clone())).collect()
}

/// The same span, said of which object.
pub(super) fn about(span: Span, object: &impl Resource<DynamicType = ()>, slot: &str) -> Span {
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    span.with("k8s.namespace.name", namespace).with("tributary.burst", slot)
}

/// What is compared.
struct Side {
    phase: BurstPhase,
    times: PhaseTimes,
    conditions: Vec<Condition>,
}

fn times(times: Option<PhaseTimestamps>) -> PhaseTimes {
    times.map(PhaseTimes::from).unwrap_or_default()
}

/// A span for each step that was reached, and the whole one when all is ready. `names`: of the whole, then of the steps.
fn spans(
    (own, parent): (TraceContext, Option<TraceContext>),
    names: [&'static str; 6],
    old: &Side,
    new: &Side,
    now: Timestamp,
) -> Vec<Span> {
    const STEPS: [&str; 5] = ["offered", "admitted", "created", "started", "online"];
    let known: Vec<&str> = old.times.steps().iter().map(|step| step.name).collect();
    let all = new.times.steps();
    let reached = all.windows(2).filter(|pair| !known.contains(&pair[1].name));
    let mut spans: Vec<Span> = reached
        .filter_map(|pair| {
            let at = STEPS.iter().position(|step| *step == pair[1].name)?;
            Some(Span::part(&own, names[at + 1], pair[0].at, pair[1].at))
        })
        .collect();
    let is_ready = new.phase == BurstPhase::Ready && old.phase != BurstPhase::Ready;
    if let (true, Some(first)) = (is_ready, all.first()) {
        // One that was ready before takes from its change on, not from its beginning. The date of a condition is in
        // whole seconds.
        let start = traced::unmet_since(&old.conditions, READY).map_or(first.at, |since| since.max(first.at));
        let start = start.min(now);
        spans.push(Span { name: names[0], context: own, parent, start, end: now, attributes: Vec::new() });
    }
    spans
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use tributary_api::burst::{BurstSpec, BurstStatus};
    use tributary_api::labels::TRACEPARENT;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    fn burst(phase: BurstPhase, times: &[i64]) -> Burst {
        let time = |index: usize| times.get(index).map(|millis| MicroTime(at(*millis)));
        let times = PhaseTimestamps {
            planned: time(0),
            offered: time(1),
            accepted: time(2),
            provisioned: time(3),
            started: time(4),
            ready: time(5),
            ..PhaseTimestamps::default()
        };
        let mut burst = Burst::new("lake.gpu", BurstSpec { slot: "gpu".into(), ..BurstSpec::default() });
        burst.metadata.uid = Some("uid".into());
        burst.metadata.namespace = Some("flux".into());
        let context = TraceContext::about(&["change"]).to_string();
        burst.metadata.annotations = Some([(TRACEPARENT.to_owned(), context)].into());
        let status = BurstStatus { phase, times: Some(times), peer: Some("west".into()), ..BurstStatus::default() };
        burst.status = Some(status);
        burst
    }

    #[test]
    fn each_step_is_a_part_of_its_burst_once() {
        let stages = [
            burst(BurstPhase::Offered, &[0, 10]),
            burst(BurstPhase::Accepted, &[0, 10, 40]),
            burst(BurstPhase::Accepted, &[0, 10, 40]),
            burst(BurstPhase::Joining, &[0, 10, 40, 60, 900]),
            burst(BurstPhase::Ready, &[0, 10, 40, 60, 900, 1_200]),
        ];
        let mut old = Burst { status: None, ..stages[0].clone() };
        let mut found = Vec::new();
        for new in stages {
            found.extend(burst_spans(&old, &new, at(1_300)));
            old = new;
        }
        let whole = of_burst(&old).unwrap();
        let said: Vec<_> = found
            .iter()
            .map(|span| (span.name, span.start.as_millisecond(), span.end.as_millisecond(), span.parent == Some(whole)))
            .collect();
        let expected = [
            ("burst offered", 0, 10, true),
            ("burst admitted", 10, 40, true),
            ("burst created", 40, 60, true),
            ("burst started", 60, 900, true),
            ("burst online", 900, 1_200, true),
            ("burst", 0, 1_300, false),
        ];
        assert_eq!(said, expected);
        assert_eq!(found[5].parent, traced::annotated(&old));
        assert_eq!(found[0].attributes[1], ("tributary.burst", "gpu".to_owned()));
    }

    #[test]
    fn without_a_context_there_are_no_spans() {
        let mut new = burst(BurstPhase::Ready, &[0, 10]);
        new.metadata.annotations = None;
        assert_eq!(burst_spans(&burst(BurstPhase::Offered, &[0]), &new, at(20)), []);
    }
}
