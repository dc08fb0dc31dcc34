//! Events of `events.k8s.io/v1`: what a person sees in `kubectl describe`.
//!
//! Published through kube's `Recorder`, with three things it does not do: the same thing about the same object is not said
//! again within [`REPEAT`] (an object that fails for hours costs a request every few minutes, not one per attempt), an event
//! whose text is new is a new event (the recorder goes on counting the first text), and of one object and reason there are
//! [`MOST`] in that time (whoever writes the object decides on the text, and as often as they like).

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

/// Events of one reason about one object within [`REPEAT`]; what is more is not said. Its other reasons, and other objects, are.
/// A root may have that many bursts, and says something of each.
const MOST: usize = 256;

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
        let about_what = (about.meta().uid.clone().unwrap_or_default(), notice.reason.clone());
        let (note, now) = (cut(notice.note, NOTE_LIMIT), self.clock.mono());
        let fresh = || Recorder::new(self.writer.clone(), self.reporter.clone());
        let recorder = self.said.lock().again(about_what, note.clone(), now, fresh);
        let Some(recorder) = recorder else { return };
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason,
            note: Some(note),
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

/// UID of an object, and a reason.
type AboutWhat = (String, String);

/// What was said, when last, and by which recorder: each remembers one series.
#[derive(Debug)]
struct Said<R> {
    last: BTreeMap<AboutWhat, BTreeMap<String, (Mono, R)>>,
    /// When what is too old was removed.
    swept: Mono,
}

impl<R> Default for Said<R> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), swept: Mono::ZERO }
    }
}

impl<R: Clone> Said<R> {
    /// Who is to say it now; `None` if it was said just before, or too much else was.
    fn again(&mut self, about: AboutWhat, note: String, now: Mono, fresh: impl FnOnce() -> R) -> Option<R> {
        let age = |at: Mono| now.saturating_since(at);
        if age(self.swept) >= REPEAT {
            self.last.retain(|_, notes| {
                notes.retain(|_, (at, _)| age(*at) < REPEAT * 2);
                !notes.is_empty()
            });
            self.swept = now;
        }
        let notes = self.last.entry(about).or_default();
        let said_now = |(at, _): &&(Mono, R)| age(*at) < REPEAT;
        if notes.get(&note).as_ref().is_some_and(said_now) || notes.values().filter(said_now).count() >= MOST {
            return None;
        }
        let (at, recorder) = notes.entry(note).or_insert_with(|| (now, fresh()));
        *at = now;
        Some(recorder.clone())
    }
}

/// The text, or as much of it as fits into so many bytes.
pub(crate) fn cut(text: String, most: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= most {
        return text;
    }
    // A new one: the old one keeps the memory of all its text.
    format!("{}{MARK}", &text[..text.floor_char_boundary(most - MARK.len())])
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
        assert_eq!(cut("short".into(), NOTE_LIMIT), "short");
        for text in ["x".repeat(2000), "é".repeat(1000), format!("x{}", "é".repeat(1000))] {
            let cut = cut(text, NOTE_LIMIT);
            assert!(cut.len() <= NOTE_LIMIT && cut.len() > NOTE_LIMIT - 3 && cut.ends_with('…'), "{}", cut.len());
        }
    }

    /// The danger: whoever writes an object again and again, each time with another value that is not valid, fills the memory.
    #[test]
    fn of_one_object_and_reason_a_few_notes_are_said_and_kept() {
        let about = |uid: &str, reason: &str| (uid.to_owned(), reason.to_owned());
        let (mut said, at) = (Said::<()>::default(), |secs| Mono::from_start(Duration::from_secs(secs)));
        let mut say = |about, number: usize, at| said.again(about, number.to_string(), at, || ()).is_some();
        let lake = || about("lake", "InvalidValue");
        assert_eq!((0..100_000).filter(|number| say(lake(), *number, at(0))).count(), MOST);
        assert!(say(about("lake", "Created"), 0, at(0)) && say(about("sea", "InvalidValue"), 0, at(0)));
        assert!(!say(lake(), 100_000, at(299)) && say(lake(), 100_000, at(300)) && say(lake(), 0, at(300)));
        assert_eq!(said.last[&lake()].len(), MOST + 1);
        assert!(said.again(about("sea", "Created"), String::new(), at(900), || ()).is_some());
        assert_eq!(said.last.len(), 1);
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
        for end in ["a", "b"] {
            events.publish(&pod, Notice::warning("Apply", "Long", "x".repeat(NOTE_LIMIT) + end)).await;
        }
        tokio::time::sleep(REPEAT).await;
        events.publish(&pod, failure.clone()).await;

        let seen = seen.lock();
        let said: Vec<_> =
            seen.iter().map(|(method, event)| (method.as_str(), event["note"].as_str().unwrap())).collect();
        let long = cut("x".repeat(2 * NOTE_LIMIT), NOTE_LIMIT);
        assert_eq!(said, [("POST", "first"), ("POST", "second"), ("POST", &long), ("PATCH", "first")]);
        assert_eq!((&seen[0].1["type"], &seen[0].1["reportingInstance"]), (&json!("Warning"), &json!("pod-0")));
        assert_eq!(seen[0].1["regarding"]["uid"], "u");
    }
}
