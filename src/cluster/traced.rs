//! Which trace an object's change belongs to.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource;
use tributary_api::labels::TRACEPARENT;
use tributary_telemetry::{TraceContext, Traces};

use super::conditions;

/// The context that somebody wrote onto an object: its user, or we for what is made on behalf of another object.
pub fn annotated(object: &impl Resource<DynamicType = ()>) -> Option<TraceContext> {
    let annotations = object.meta().annotations.as_ref()?;
    TraceContext::parse(annotations.get(TRACEPARENT)?)
}

/// The span of the change that made this generation of an object, and what it is a part of. Without an annotation it
/// begins a trace, unless there are none here; an annotation is handed on even then.
pub fn change(
    traces: &Traces,
    object: &impl Resource<DynamicType = ()>,
) -> Option<(TraceContext, Option<TraceContext>)> {
    let meta = object.meta();
    let generation = meta.generation.unwrap_or(0).to_string();
    let words = [meta.uid.as_deref()?, &generation];
    match annotated(object) {
        Some(parent) if traces.are_on() => Some((parent.child(&words), Some(parent))),
        Some(parent) => Some((parent, None)),
        None if traces.are_on() => Some((TraceContext::about(&words), None)),
        None => None,
    }
}

/// Since when a condition has not held, if it does not.
pub fn unmet_since(conditions: &[Condition], type_: &str) -> Option<jiff::Timestamp> {
    let condition = conditions::find(conditions, type_).filter(|condition| condition.status != "True")?;
    let Time(since) = condition.last_transition_time;
    Some(since)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tributary_api::minicluster::{MiniCluster, MiniClusterSpec};
    use tributary_telemetry::{Span, SpanSink};

    use super::*;

    struct Nowhere;

    impl SpanSink for Nowhere {
        fn record(&self, _: Span) {}
    }

    fn object(annotation: Option<&str>) -> MiniCluster {
        let mut object = MiniCluster::new("lake", MiniClusterSpec::default());
        object.metadata.uid = Some("uid".into());
        object.metadata.generation = Some(2);
        object.metadata.annotations = annotation.map(|text| [(TRACEPARENT.to_owned(), text.to_owned())].into());
        object
    }

    #[test]
    fn a_change_begins_a_trace_or_is_a_part_of_one() {
        let on = Traces::to(Arc::new(Nowhere));
        let (own, parent) = change(&on, &object(None)).unwrap();
        assert_eq!((own, parent), (TraceContext::about(&["uid", "2"]), None));
        let theirs = TraceContext::about(&["pipeline"]);
        let (part, parent) = change(&on, &object(Some(&theirs.to_string()))).unwrap();
        assert_eq!((part, parent), (theirs.child(&["uid", "2"]), Some(theirs)));
        // What cannot be read is not there.
        assert_eq!(change(&on, &object(Some("nonsense"))), change(&on, &object(None)));
    }

    #[test]
    fn without_traces_of_our_own_those_of_others_are_handed_on() {
        let theirs = TraceContext::about(&["pipeline"]);
        assert_eq!(change(&Traces::default(), &object(Some(&theirs.to_string()))), Some((theirs, None)));
        assert_eq!(change(&Traces::default(), &object(None)), None);
    }
}
