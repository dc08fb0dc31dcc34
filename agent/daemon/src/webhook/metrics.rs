//! What is counted of the webhook, and until when its certificate is good: on every replica, since each one answers.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tributary::metrics::{Described, Metrics, gauge};

use super::server::Certificates;

const OUTCOMES: [&str; 3] = ["converted", "failed", "refused"];

const REQUESTS: Described = Described::counter(
    "webhook_requests",
    &[("outcome", &OUTCOMES)],
    "Reviews that were posted to the conversion webhook; failed: an object cannot be converted; refused: it was no review, \
     too large, too slow, or too much at one time",
);
const EXPIRES: Described = Described::gauge(
    "webhook_certificate_expires_seconds",
    &[],
    "When the certificate that the webhook of this agent shows ends, in seconds since 1970; on every agent that serves \
     v1alpha1",
);

/// How a review was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answered {
    /// With all its objects in the version that was asked for.
    Converted,
    /// With the reason why one of them is not.
    Failed,
    /// With an error of HTTP.
    Refused,
}

/// What the webhook counts. Cloning shares the counts; the default ones are not registered anywhere.
#[derive(Clone, Debug, Default)]
pub struct WebhookMetrics {
    requests: Family<[(&'static str, &'static str); 1], Counter>,
}

impl WebhookMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 2] = [REQUESTS, EXPIRES];

    /// Registers the counts, and what is read off the certificate in use.
    pub(super) fn register(metrics: &Metrics, certificates: &Arc<Certificates>) -> Self {
        let ours = Self::default();
        metrics.register(&REQUESTS, ours.requests.clone());
        metrics.collect(Expiry(certificates.clone()));
        ours
    }

    pub(super) fn answered(&self, how: Answered) {
        let outcome = match how {
            Answered::Converted => "converted",
            Answered::Failed => "failed",
            Answered::Refused => "refused",
        };
        self.requests.get_or_create(&[("outcome", outcome)]).inc();
    }
}

/// Shown once there is a certificate: an end in 1970 would be an alert.
#[derive(Debug)]
struct Expiry(Arc<Certificates>);

impl Collector for Expiry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        match self.0.ends() {
            Some(ends) => gauge(&mut encoder, &EXPIRES, ends.as_second()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use tributary::webhook::certificate::renewed;

    use super::*;
    use crate::identity::shape;

    #[test]
    fn answers_are_counted_and_the_certificate_in_use_tells_its_end() {
        let (metrics, certificates) = (Metrics::default(), Arc::<Certificates>::default());
        let ours = WebhookMetrics::register(&metrics, &certificates);
        assert!(!metrics.text().contains("\ntributary_webhook_certificate_expires_seconds "), "there is none yet");
        let now: jiff::Timestamp = "2025-06-01T12:00:00Z".parse().unwrap();
        let made = renewed(None, &["hook.agents.svc".to_owned()], now).unwrap().unwrap();
        certificates.take(&Secret { data: Some(shape::data(made.expose())), ..Secret::default() }).unwrap();
        for how in [Answered::Converted, Answered::Failed, Answered::Refused, Answered::Refused] {
            ours.answered(how);
        }
        let ends = certificates.ends().unwrap();
        let days = ends.duration_since(now).as_hours() / 24;
        assert!((30..=400).contains(&days), "{days} days");
        let text = metrics.text();
        for line in [
            format!("tributary_webhook_certificate_expires_seconds {}", ends.as_second()),
            "tributary_webhook_requests_total{outcome=\"converted\"} 1".to_owned(),
            "tributary_webhook_requests_total{outcome=\"refused\"} 2".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(OUTCOMES.iter().all(|word| text.contains(&format!("outcome=\"{word}\""))), "{text}");
    }
}
