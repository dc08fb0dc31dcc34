//! Events of `events.k8s.io/v1`: what a person sees in `kubectl describe`.
//!
//! Published through kube's `Recorder`, with two things it does not do: the same thing about the same object is not said
//! again within [`REPEAT`] (an object that fails for hours costs a request every few minutes, not one per attempt), and an
//! event whose text is new is a new event (the recorder goes on counting the first text).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use parking_lot::Mutex;
use tributary_clock::{Mono, SharedClock};

use super::error::{Cause, chain};

/// How long the same event is not repeated. Shorter than the recorder's memory (6 min), so that a repetition counts the
/// series on instead of beginning a new one.
pub(crate) const REPEAT: Duration = Duration::from_secs(5 * 60);

/// `note` is at most this long, in bytes (Kubernetes validates it).
const NOTE_LIMIT: usize = 1024;

/// What is said about an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Whether a person should look at it.
    pub warning: bool,
    /// One CamelCase word, at most 128 bytes: why.
    pub reason: String,
    /// One CamelCase word, at most 128 bytes: what was done or tried.
    pub action: String,
    /// For people; cut to 1 kB.
    pub note: String,
}

impl Notice {
    /// Something went as it should.
    pub fn normal(action: &str, reason: &str, note: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.into(), action: action.into(), note: note.into() }
    }

    /// Something a person should look at.
    pub fn warning(action: &str, reason: &str, note: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(action, reason, note) }
    }
}

/// Publishes events for one controller. Cloning shares what was said.
#[derive(Clone)]
pub struct Events {
    writer: Client,
    reporter: Reporter,
    clock: SharedClock,
    said: Arc<Mutex<Said<Recorder>>>,
}

impl Events {
    /// Events of `controller` (a name such as `tributary.dev/agent`), reported by `instance` (this pod).
    pub fn new(writer: Client, controller: impl Into<String>, instance: impl Into<String>, clock: SharedClock) -> Self {
        let reporter = Reporter { controller: controller.into(), instance: Some(instance.into()) };
        Self { writer, reporter, clock, said: Arc::default() }
    }

    /// Says something about an object. What goes wrong is logged: nothing depends on an event.
    pub async fn publish(&self, about: &impl Resource<DynamicType = ()>, notice: Notice) {
        let key = (about.meta().uid.clone().unwrap_or_default(), notice.reason.clone(), notice.note.clone());
        let now = self.clock.mono();
        let fresh = || Recorder::new(self.writer.clone(), self.reporter.clone());
        let recorder = self.said.lock().again(key, now, fresh);
        let Some(recorder) = recorder else { return };
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason,
            note: Some(cut(notice.note)),
            action: notice.action,
            secondary: None,
        };
        let object = about.object_ref(&());
        match recorder.publish(&event, &object).await.map_err(Cause::from) {
            // Who leads now says it.
            Ok(()) | Err(Cause::Fenced(_)) => {}
            Err(cause) => {
                let (kind, name, reason) = (object.kind, object.name, event.reason);
                tracing::warn!(kind, name, reason, error = chain(&cause), "an event could not be published");
            }
        }
    }
}

/// What was said, about which object, and by which recorder: each remembers one series.
#[derive(Debug)]
struct Said<R> {
    last: BTreeMap<(String, String, String), (Mono, R)>,
    /// When what is too old was removed.
    swept: Mono,
}

impl<R> Default for Said<R> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), swept: Mono::ZERO }
    }
}

impl<R: Clone> Said<R> {
    /// Who is to say it now; `None` if it was said just before.
    fn again(&mut self, key: (String, String, String), now: Mono, fresh: impl FnOnce() -> R) -> Option<R> {
        if now.saturating_since(self.swept) >= REPEAT {
            self.last.retain(|_, (at, _)| now.saturating_since(*at) < REPEAT * 2);
            self.swept = now;
        }
        match self.last.get_mut(&key) {
            Some((at, _)) if now.saturating_since(*at) < REPEAT => None,
            Some((at, recorder)) => {
                *at = now;
                Some(recorder.clone())
            }
            None => {
                let recorder = fresh();
                self.last.insert(key, (now, recorder.clone()));
                Some(recorder)
            }
        }
    }
}

fn cut(mut note: String) -> String {
    const MARK: &str = "…";
    if note.len() > NOTE_LIMIT {
        note.truncate(note.floor_char_boundary(NOTE_LIMIT - MARK.len()));
        note.push_str(MARK);
    }
    note
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tributary_clock::SystemClock;

    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("short".into()), "short");
        for text in ["x".repeat(2000), "é".repeat(1000), format!("x{}", "é".repeat(1000))] {
            let cut = cut(text);
            assert!(cut.len() <= NOTE_LIMIT && cut.len() > NOTE_LIMIT - 3 && cut.ends_with('…'), "{}", cut.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_not_said_again_soon_and_other_words_are_another_event() {
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let server = {
            let seen = seen.clone();
            tower::service_fn(move |request: Request<Body>| {
                let seen = seen.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect_bytes().await?;
                    let event: Value = serde_json::from_slice(&body).unwrap();
                    seen.lock().push((head.method.to_string(), event));
                    Ok::<_, tower::BoxError>(Response::new(Body::from(body)))
                }
            })
        };
        let events = Events::new(Client::new(server, "n"), "tributary.dev/agent", "pod-0", SystemClock::shared());
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"}})).unwrap();
        let failure = Notice::warning("Apply", "Conflict", "first");
        for _ in 0..10 {
            events.publish(&pod, failure.clone()).await;
        }
        events.publish(&pod, Notice::warning("Apply", "Conflict", "second")).await;
        tokio::time::sleep(REPEAT).await;
        events.publish(&pod, failure.clone()).await;

        let seen = seen.lock();
        let said: Vec<_> =
            seen.iter().map(|(method, event)| (method.as_str(), event["note"].as_str().unwrap())).collect();
        assert_eq!(said, [("POST", "first"), ("POST", "second"), ("PATCH", "first")]);
        assert_eq!((&seen[0].1["type"], &seen[0].1["reportingInstance"]), (&json!("Warning"), &json!("pod-0")));
        assert_eq!(seen[0].1["regarding"]["uid"], "u");
    }
}
