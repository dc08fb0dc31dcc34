//! Requests to the API server, counted.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tributary_metrics::{Described, Metrics};

const VERBS: [&str; 7] = ["get", "watch", "create", "update", "patch", "delete", "other"];
const OUTCOMES: [&str; 11] = [
    "ok",
    "forbidden",
    "not found",
    "conflict",
    "expired",
    "invalid",
    "throttled",
    "bad request",
    "server error",
    "no answer",
    "refused here",
];

const REQUESTS: Described = Described::counter(
    "kubernetes_requests",
    &[("verb", &VERBS), ("outcome", &OUTCOMES)],
    "Requests to the API server, those for the Lease excepted; a watch counts when it begins",
);
const REQUEST_SECONDS: Described = Described::histogram(
    "kubernetes_request_seconds",
    &[("verb", &VERBS)],
    "Seconds until the API server answered; of reads, until the answer began",
);

/// Seconds to an answer: an API server beside us answers in milliseconds, one that is throttled or far away does not.
const SECONDS: [f64; 10] = [0.005, 0.02, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// Counts of requests. Cloning shares them; the default ones are registered nowhere.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    requests: Family<[(&'static str, &'static str); 2], Counter>,
    seconds: Family<[(&'static str, &'static str); 1], Histogram>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self { requests: Family::default(), seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)) }
    }
}

impl RequestMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 2] = [REQUESTS, REQUEST_SECONDS];

    /// Registers the counts.
    pub fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(&REQUESTS, ours.requests.clone());
        metrics.register(&REQUEST_SECONDS, ours.seconds.clone());
        ours
    }

    /// A request was answered with this status, or not at all, or (no duration) it was not sent.
    pub(super) fn answered(&self, verb: Verb, status: Option<StatusCode>, took: Option<Duration>) {
        let outcome = match (status, took) {
            (Some(status), _) => outcome(status),
            (None, Some(_)) => "no answer",
            (None, None) => "refused here",
        };
        self.requests.get_or_create(&[("verb", verb.0), ("outcome", outcome)]).inc();
        if let Some(took) = took {
            self.seconds.get_or_create(&[("verb", verb.0)]).observe(took.as_secs_f64());
        }
    }
}

/// What a request does, in the words of RBAC; `get` is also a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verb(&'static str);

impl Verb {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let watches = || request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        Self(match *request.method() {
            Method::GET if watches() => "watch",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "other",
        })
    }
}

/// What to do about an answer differs by these.
fn outcome(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200..=399 => "ok",
        401 | 403 => "forbidden",
        404 => "not found",
        409 => "conflict",
        410 => "expired",
        422 => "invalid",
        429 => "throttled",
        400..=499 => "bad request",
        _ => "server error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_those_of_rbac() {
        let verb =
            |method: Method, uri: &str| Verb::of(&Request::builder().method(method).uri(uri).body(()).unwrap()).0;
        assert_eq!(verb(Method::GET, "/api/v1/pods?limit=500"), "get");
        assert_eq!(verb(Method::GET, "/api/v1/pods?limit=500&watch=true"), "watch");
        assert_eq!(verb(Method::PATCH, "/api/v1/namespaces/a/pods/b?fieldManager=c"), "patch");
    }

    #[test]
    fn every_status_has_one_of_the_words() {
        for code in 100..600 {
            assert!(OUTCOMES.contains(&outcome(StatusCode::from_u16(code).unwrap())), "{code}");
        }
    }

    #[test]
    fn requests_are_counted_by_what_came_of_them() {
        let metrics = Metrics::default();
        let ours = RequestMetrics::register(&metrics);
        let took = Some(Duration::from_millis(10));
        ours.answered(Verb("get"), Some(StatusCode::OK), took);
        ours.answered(Verb("patch"), Some(StatusCode::CONFLICT), took);
        ours.answered(Verb("patch"), None, took);
        ours.answered(Verb("patch"), None, None);
        // One that is throttled.
        ours.answered(Verb("create"), Some(StatusCode::CREATED), Some(Duration::from_secs(20)));
        let text = metrics.text();
        for line in [
            "tributary_kubernetes_requests_total{verb=\"get\",outcome=\"ok\"} 1",
            "tributary_kubernetes_requests_total{verb=\"patch\",outcome=\"conflict\"} 1",
            "tributary_kubernetes_requests_total{verb=\"patch\",outcome=\"no answer\"} 1",
            "tributary_kubernetes_requests_total{verb=\"patch\",outcome=\"refused here\"} 1",
            "tributary_kubernetes_request_seconds_bucket{le=\"0.02\",verb=\"patch\"} 2",
            "tributary_kubernetes_request_seconds_bucket{le=\"10.0\",verb=\"create\"} 0",
            "tributary_kubernetes_request_seconds_bucket{le=\"30.0\",verb=\"create\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
