//! The engine: every controller is an observation, a decision and its application.
//!
//! ```text
//! caches ─ mark ─▶ queue ─▶ observe ─▶ step (pure) ─▶ apply ─▶ again, when, or after what delay
//! ```
//!
//! A decision that is wrong can be looked for in one place: [`Controller::step`] sees all that was observed, and nobody
//! changes what it decided.

use std::error::Error;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tributary_clock::SystemRng;

use super::error::chain;
use super::work::Worked;
use super::worker::{self, Failure, Options, Outcome, Queue};

/// What a key is handled by.
pub trait Controller: Send + Sync + 'static {
    /// Whatever is handled: most often the key of an object.
    type Key: Ord + Clone + Debug + Send + Sync + 'static;
    /// The line in which a key waits; `()` where there is one, or one for each namespace.
    type Line: Ord + Clone + Send + Sync + 'static;
    /// All that the decision looks at.
    type View: Send;
    /// What is decided.
    type Step: Send;
    /// Why a key could not be handled: it is tried again with a growing delay.
    type Error: Error + Send + 'static;

    /// Its name in logs and metrics: what it handles.
    const NAME: &'static str;

    /// How many keys are handled at the same time.
    const CONCURRENCY: usize = 16;

    /// The keys that are to be handled.
    fn queue(&self) -> &Queue<Self::Key, Self::Line>;

    /// Reads from caches, from what this process wrote last, and, where a cache proves nothing, from the API server. It breaks
    /// off where there is nothing to decide.
    fn observe(&self, key: &Self::Key) -> impl Future<Output = Result<Observed<Self::View>, Self::Error>> + Send;

    /// Decides: no request, no clock.
    fn step(&self, key: &Self::Key, view: &Self::View) -> Self::Step;

    /// Carries it out, and says when the key is looked at again if nothing changes.
    fn apply(
        &self,
        key: &Self::Key,
        view: Self::View,
        step: Self::Step,
    ) -> impl Future<Output = Result<Outcome, Self::Error>> + Send;
}

/// What was observed, or when the key is looked at again.
pub type Observed<V> = ControlFlow<Outcome, V>;

/// There is nothing to decide until something changes.
pub fn nothing<V>() -> Observed<V> {
    Observed::Break(Outcome::Done)
}

/// Handles keys until `stop`: in the leader's scope. A failure is logged, and counted with everything else.
pub async fn run<C: Controller>(controller: Arc<C>, stop: CancellationToken) {
    let queue = controller.queue().clone();
    let options = Options { concurrency: C::CONCURRENCY, ..Options::default() };
    let handler = move |key: C::Key| {
        let controller = controller.clone();
        async move { pass(&*controller, &key).await }
    };
    worker::run(queue, options, SystemRng, handler, report::<C>, stop).await;
}

/// What its queue does, for the metrics.
pub fn worked<C: Controller>(controller: &C) -> (&'static str, Box<dyn Worked>) {
    (C::NAME, Box::new(controller.queue().clone()))
}

async fn pass<C: Controller>(controller: &C, key: &C::Key) -> Result<Outcome, C::Error> {
    let view = match controller.observe(key).await? {
        Observed::Continue(view) => view,
        Observed::Break(outcome) => return Ok(outcome),
    };
    let step = controller.step(key, &view);
    controller.apply(key, view, step).await
}

fn report<C: Controller>(key: &C::Key, failure: Failure<'_, C::Error>) {
    let Failure { error, failures, retry_in } = failure;
    let (controller, error, retry_in) = (C::NAME, chain(error), format!("{retry_in:.1?}"));
    // One that lasts would fill the log; another one in its place is to be seen.
    if failures.is_power_of_two() || failures % 32 == 0 {
        tracing::warn!(controller, ?key, error, failures, retry_in, "a pass failed");
    } else {
        tracing::debug!(controller, ?key, error, failures, retry_in, "a pass failed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use kube::core::Status;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Metadata, Subscriber, span};
    use tributary_clock::SystemClock;

    use super::*;
    use crate::error::{Cause, RequestError};

    /// Notes which parts of a pass it went through. A key says how far its pass goes.
    struct Parts {
        queue: Queue<&'static str>,
        notes: Mutex<Vec<String>>,
    }

    impl Parts {
        fn note(&self, part: &str, key: &str) {
            self.notes.lock().unwrap().push(format!("{part} {key}"));
        }
    }

    fn refused(key: &str) -> RequestError {
        RequestError::new("apply", key, Cause::from(Status { code: 422, ..Status::default() }))
    }

    impl Controller for Parts {
        type Key = &'static str;
        type Line = ();
        type View = usize;
        type Step = String;
        type Error = RequestError;

        const NAME: &'static str = "parts";

        fn queue(&self) -> &Queue<&'static str> {
            &self.queue
        }

        async fn observe(&self, key: &&'static str) -> Result<Observed<usize>, RequestError> {
            self.note("observe", key);
            match *key {
                "gone" => Ok(nothing()),
                "unseen" => Err(refused(key)),
                key => Ok(Observed::Continue(key.len())),
            }
        }

        fn step(&self, key: &&'static str, view: &usize) -> String {
            self.note("step", key);
            "x".repeat(*view)
        }

        async fn apply(&self, key: &&'static str, view: usize, step: String) -> Result<Outcome, RequestError> {
            self.note("apply", key);
            assert_eq!(view, step.len());
            if *key == "bad" { Err(refused(key)) } else { Ok(Outcome::After(Duration::from_secs(60))) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_goes_as_far_as_there_is_something_to_decide_and_again_when_it_says_so() {
        for (key, seconds, parts) in [
            ("good", 1, vec!["observe good", "step good", "apply good"]),
            ("gone", 100, vec!["observe gone"]),
            ("good", 61, ["observe good", "step good", "apply good"].repeat(2)),
        ] {
            let queue = Queue::new(SystemClock::shared());
            let (parts_of, stop) = (Arc::new(Parts { queue, notes: Mutex::default() }), CancellationToken::new());
            parts_of.queue.mark(key);
            let running = tokio::spawn(run(parts_of.clone(), stop.clone()));
            tokio::time::sleep(Duration::from_millis(seconds * 1000 + 500)).await;
            stop.cancel();
            running.await.unwrap();
            assert_eq!(*parts_of.notes.lock().unwrap(), parts, "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_fails_in_any_part_is_repeated_and_counted() {
        for key in ["unseen", "bad"] {
            let queue = Queue::new(SystemClock::shared());
            let (parts, stop) = (Arc::new(Parts { queue, notes: Mutex::default() }), CancellationToken::new());
            parts.queue.mark(key);
            let running = tokio::spawn(run(parts.clone(), stop.clone()));
            tokio::time::sleep(Duration::from_secs(2)).await;
            stop.cancel();
            running.await.unwrap();
            let (name, work) = worked(&*parts);
            assert_eq!((name, work.work().done.get()), ("parts", 0));
            assert!(work.work().failed.get() > 1, "{key}");
        }
    }
    /// Keeps the level of each line, and the count of failures in it.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<(Level, u64)>>>);

    struct Failures(u64);

    impl Visit for Failures {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "failures" {
                self.0 = value;
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut failures = Failures(0);
            event.record(&mut failures);
            self.0.lock().unwrap().push((*event.metadata().level(), failures.0));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_failure_that_lasts_is_warned_of_rarely() {
        let (lines, error) = (Lines::default(), refused("bad"));
        // With one of them alone, a test on another thread decides whether a line is written anywhere at all.
        let _second = tracing::Dispatch::new(Lines::default());
        tracing::subscriber::with_default(lines.clone(), || {
            for failures in 1..=100 {
                report::<Parts>(&"bad", Failure { error: &error, failures, retry_in: Duration::from_secs(1) });
            }
        });
        let lines = lines.0.lock().unwrap();
        let of = |level| lines.iter().filter(move |line| line.0 == level).map(|line| line.1).collect::<Vec<_>>();
        assert_eq!(of(Level::WARN), [1, 2, 4, 8, 16, 32, 64, 96]);
        assert_eq!(of(Level::DEBUG).len(), 92);
    }
}
