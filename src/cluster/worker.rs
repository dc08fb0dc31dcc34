//! The worker: runs a handler for each key that changed.
//!
//! Every controller is one [`Queue`] that caches mark, and one worker in the leader's scope. When what runs is decided
//! by [`Schedule`]; here are only the tasks.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tributary_clock::{Backoff, Mono, Rng, SharedClock};

use super::error::Cause;
use super::key::ObjectKey;
use super::schedule::{Ended, Schedule};
use super::work::Work;

/// What a handler asks for when it succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing until something changes.
    Done,
    /// Run again after this time, or earlier if something changes.
    After(Duration),
}

/// A failed run: reported, so that nothing fails silently.
#[derive(Debug)]
pub(crate) struct Failure<'a, E> {
    /// What the handler said.
    pub error: &'a E,
    /// Failures in a row, this one included.
    pub failures: u32,
    /// When it is tried again.
    pub retry_in: Duration,
}

/// Keys to be handled, in lines that take turns. Cloning shares the queue; marking never blocks.
pub struct Queue<K, L = ()> {
    shared: Arc<Shared<K, L>>,
}

struct Shared<K, L> {
    schedule: Mutex<Schedule<K, (L, Option<String>)>>,
    /// The line of a key that nothing else is said of.
    line: Box<dyn Fn(&K) -> L + Send + Sync>,
    /// Divides each line into one for each namespace. `None`: it stays one.
    namespace: fn(&K) -> Option<String>,
    changed: Notify,
    work: Work,
    clock: SharedClock,
}

impl<K, L> Clone for Queue<K, L> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// An empty queue of one line.
    pub fn new(clock: SharedClock) -> Self {
        Self::in_lines(clock, |_| ())
    }
}

impl Queue<ObjectKey> {
    /// An empty queue of a line for each namespace, so that thousands of keys of one delay a key of another by one run.
    pub fn by_namespace(clock: SharedClock) -> Self {
        Self::divided(clock, |_| (), |key| key.namespace.clone())
    }
}

impl<K: Ord + Clone, L: Ord + Clone> Queue<K, L> {
    /// An empty queue. `line`: where a key waits that is marked without a word about that, that asked for a time, or that
    /// failed. It may lock what nobody holds who marks.
    pub fn in_lines(clock: SharedClock, line: impl Fn(&K) -> L + Send + Sync + 'static) -> Self {
        Self::divided(clock, line, |_| None)
    }

    fn divided(
        clock: SharedClock,
        line: impl Fn(&K) -> L + Send + Sync + 'static,
        namespace: fn(&K) -> Option<String>,
    ) -> Self {
        let (schedule, line) = (Mutex::default(), Box::new(line));
        let shared = Shared { schedule, line, namespace, changed: Notify::new(), work: Work::default(), clock };
        Self { shared: Arc::new(shared) }
    }

    /// The key changed and must be handled.
    pub fn mark(&self, key: K) {
        let line = (self.shared.line)(&key);
        self.mark_in(line, key, self.shared.clock.mono());
    }

    /// The same in a line, and not before `at`.
    pub fn mark_in(&self, line: L, key: K, at: Mono) {
        let line = (line, (self.shared.namespace)(&key));
        self.shared.schedule.lock().mark(key, line, at);
        self.shared.changed.notify_one();
    }

    fn line(&self, key: &K) -> (L, Option<String>) {
        ((self.shared.line)(key), (self.shared.namespace)(key))
    }

    /// Keys that wait for their run.
    pub fn depth(&self) -> usize {
        self.shared.schedule.lock().waiting()
    }

    /// Failures of a key since its last success.
    pub fn failures(&self, key: &K) -> u32 {
        self.shared.schedule.lock().failures(key)
    }

    /// What was done with the keys.
    pub(crate) fn figures(&self) -> &Work {
        &self.shared.work
    }
}

/// How a worker runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// Runs at the same time, each of another key. While the API server has too much to do it is halved with each run that
    /// finds that out, down to one, and grows by one with each that succeeds.
    pub concurrency: usize,
    /// How long failing keys wait.
    pub backoff: Backoff,
    /// A change of the object shortens the wait to this: who repairs an object sees it soon, and an object that changes
    /// because we fail does not make us spin.
    pub after_change: Duration,
}

impl Default for Options {
    /// Sixteen at a time: enough to keep an API server busy that answers in 10 ms, too few to be throttled by it.
    fn default() -> Self {
        Self { concurrency: 16, backoff: Backoff::default(), after_change: Duration::from_millis(500) }
    }
}

/// The longest wait after a failure that is no fault of the key: the API server was slow or away, and nobody tells when it
/// is back.
const TRANSIENT: Duration = Duration::from_secs(5);

/// Failures in a row after which an error of the API server is taken for one that lasts.
const LASTS: u32 = 10;

/// The longest wait then. Such an error may also be the last word of an outage that is over.
const LASTING: Duration = Duration::from_secs(30);

/// Handles the keys of `queue` until `stop` is cancelled; running handlers are then dropped at their next await, as if
/// the process had ended there. One worker per queue.
///
/// `report` hears of every failure. A panic of the handler is passed on.
pub(super) async fn run<K, L, E, F>(
    queue: Queue<K, L>,
    options: Options,
    mut rng: impl Rng,
    handler: impl Fn(K) -> F,
    report: impl Fn(&K, Failure<'_, E>),
    stop: CancellationToken,
) where
    K: Ord + Clone + Send + 'static,
    L: Ord + Clone,
    E: Error + Send + 'static,
    F: Future<Output = Result<Outcome, E>> + Send + 'static,
{
    let clock = queue.shared.clock.clone();
    // The worker of the term before was stopped in the middle of some: nobody else ends their runs.
    queue.shared.schedule.lock().resume(|key| queue.line(key), clock.mono());
    let mut running = JoinSet::new();
    let mut most = options.concurrency;
    loop {
        while running.len() < most {
            let started = clock.mono();
            let Some(key) = queue.shared.schedule.lock().start(started) else { break };
            let work = handler(key.clone());
            running.spawn(async move { (key, started, work.await) });
        }
        let idle = running.len() < most;
        let next = queue.shared.schedule.lock().next_due().filter(|_| idle);
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = running.join_next() => match ended {
                Ok((key, started, result)) => {
                    let took = clock.mono().saturating_since(started);
                    most = match result.as_ref().map_err(|error| Cause::of(error)) {
                        Ok(_) => (most + 1).min(options.concurrency),
                        Err(Some(cause)) if cause.is_overload() => (most / 2).max(1),
                        Err(_) => most,
                    };
                    ended_run(&queue, &options, &mut rng, &key, took, &result, &report);
                }
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // Only shutdown below aborts.
                Err(_) => {}
            },
            () = queue.shared.changed.notified() => {}
            () = until(next.map(|at| at.saturating_since(clock.mono()))) => {}
        }
    }
    running.shutdown().await;
}

fn ended_run<K: Ord + Clone, L: Ord + Clone, E: Error + 'static>(
    queue: &Queue<K, L>,
    Options { backoff, after_change, .. }: &Options,
    rng: &mut impl Rng,
    key: &K,
    took: Duration,
    result: &Result<Outcome, E>,
    report: &impl Fn(&K, Failure<'_, E>),
) {
    let now = queue.shared.clock.mono();
    let work = queue.figures();
    work.seconds.observe(took.as_secs_f64());
    if result.is_ok() { &work.done } else { &work.failed }.inc();
    let ended = match result {
        Ok(Outcome::Done) => Ended::Done,
        Ok(Outcome::After(delay)) => Ended::After(*delay),
        Err(error) => {
            let failures = queue.shared.schedule.lock().failures(key).saturating_add(1);
            let most = longest_wait(Cause::of(error), failures, backoff.most);
            let retry_in = Backoff { most, ..*backoff }.delay(failures, rng.unit());
            report(key, Failure { error, failures, retry_in });
            Ended::Failed { retry: retry_in, after_change: *after_change }
        }
    };
    let line = queue.line(key);
    queue.shared.schedule.lock().end(key.clone(), ended, line, now);
}

/// The longest wait after this many failures in a row.
fn longest_wait(cause: Option<&Cause>, failures: u32, most: Duration) -> Duration {
    let wait = match cause {
        Some(cause) if cause.is_passing() || cause.is_transient() && failures <= LASTS => TRANSIENT,
        Some(cause) if cause.is_transient() => LASTING,
        _ => most,
    };
    wait.min(most)
}

async fn until(delay: Option<Duration>) {
    match delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::core::Status;
    use tributary_clock::{SeededRng, SystemClock};

    use super::*;
    use crate::error::RequestError;
    use crate::fence::FenceError;

    fn refused(code: u16) -> Cause {
        Status { code, ..Status::default() }.into()
    }

    /// A worker whose handler takes a second and notes when it started; keys named `bad` and `away` fail.
    struct Bench {
        queue: Queue<&'static str>,
        runs: Arc<Mutex<Vec<(&'static str, u128)>>>,
        most_at_once: Arc<AtomicUsize>,
        failures: Arc<Mutex<BTreeMap<&'static str, u32>>>,
        stop: CancellationToken,
        worker: tokio::task::JoinHandle<()>,
    }

    impl Bench {
        fn start(concurrency: usize) -> Self {
            Self::of(Queue::new(SystemClock::shared()), concurrency)
        }

        fn of(queue: Queue<&'static str>, concurrency: usize) -> Self {
            let clock = queue.shared.clock.clone();
            let (runs, failures) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<BTreeMap<_, _>>>::default());
            let (at_once, most_at_once) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let stop = CancellationToken::new();
            let handler = {
                let (runs, most_at_once) = (runs.clone(), most_at_once.clone());
                move |key: &'static str| {
                    runs.lock().push((key, clock.mono().since_start().as_millis()));
                    let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
                    most_at_once.fetch_max(now, Ordering::SeqCst);
                    let at_once = at_once.clone();
                    async move {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        match key {
                            "bad" => Err(RequestError::new("apply", key, refused(422))),
                            key if key.starts_with("away") => Err(RequestError::new("apply", key, refused(503))),
                            "later" => Ok(Outcome::After(Duration::from_secs(30))),
                            _ => Ok(Outcome::Done),
                        }
                    }
                }
            };
            let report = {
                let failures = failures.clone();
                move |key: &&'static str, failure: Failure<'_, RequestError>| {
                    failures.lock().insert(*key, failure.failures);
                }
            };
            let backoff = Backoff { first: Duration::from_secs(4), ..Backoff::default() };
            let options = Options { concurrency, backoff, ..Options::default() };
            let worker = tokio::spawn(run(queue.clone(), options, SeededRng::new(1), handler, report, stop.clone()));
            Self { queue, runs, most_at_once, failures, stop, worker }
        }

        async fn after(&self, secs: u64) -> Vec<(&'static str, u128)> {
            tokio::time::sleep(Duration::from_secs(secs)).await;
            self.runs.lock().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrency_is_bounded_and_a_key_never_runs_twice_at_once() {
        let bench = Bench::start(2);
        for key in ["a", "b", "c", "a", "a"] {
            bench.queue.mark(key);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.queue.mark("a");
        let runs = bench.after(10).await;
        assert_eq!(runs, [("a", 0), ("b", 0), ("c", 1000), ("a", 1000)]);
        assert_eq!(bench.most_at_once.load(Ordering::SeqCst), 2);
        assert_eq!(bench.queue.depth(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_delays_are_kept() {
        let bench = Bench::start(4);
        bench.queue.mark("bad");
        bench.queue.mark("later");
        let runs = bench.after(40).await;
        let starts = |wanted| runs.iter().filter(|(key, _)| *key == wanted).map(|(_, at)| *at).collect::<Vec<_>>();
        assert_eq!(starts("later"), [0, 31_000]);
        let gaps: Vec<_> = starts("bad").windows(2).map(|pair| pair[1] - pair[0] - 1000).collect();
        for (gap, full) in gaps.iter().zip([4000, 8000, 16_000]) {
            assert!((full / 2..=full).contains(gap), "{gaps:?}");
        }
        assert_eq!(bench.failures.lock()["bad"], u32::try_from(gaps.len()).unwrap() + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_failed_while_the_api_server_was_away_has_its_turn_soon_after() {
        let bench = Bench::start(4);
        bench.queue.mark("away");
        let runs = bench.after(600).await;
        let longest = runs.windows(2).map(|pair| pair[1].1 - pair[0].1 - 1000).max();
        assert!(longest.is_some_and(|longest| longest <= TRANSIENT.as_millis()), "{runs:?}");
    }

    /// The danger: a webhook that is broken for days makes the agent ask, and log, every few seconds for each object.
    #[test]
    fn an_error_of_the_api_server_that_lasts_is_asked_for_less_and_less() {
        let away = Cause::from(kube::Error::LinesCodecMaxLineLengthExceeded);
        let (fenced, slow) = (FenceError::NotLeading, FenceError::TimedOut { limit: Duration::from_secs(2) });
        let (short, longer, long) = (TRANSIENT, LASTING, Backoff::default().most);
        for (cause, first, tenth, eleventh) in [
            (away, short, short, short),
            (Cause::Fenced(fenced), short, short, short),
            (Cause::Fenced(slow), short, short, short),
            (refused(409), short, short, short),
            (refused(429), short, short, short),
            (refused(503), short, short, short),
            (refused(504), short, short, short),
            (refused(500), short, short, longer),
            (refused(502), short, short, short),
            (refused(422), long, long, long),
        ] {
            let waits = [1, 10, 11].map(|failures| longest_wait(Some(&cause), failures, long));
            assert_eq!(waits, [first, tenth, eleventh], "{cause:?}");
        }
        assert_eq!(longest_wait(None, 1, long), long);
        assert_eq!(longest_wait(Some(&refused(503)), 1, Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_with_too_much_to_do_is_asked_less_and_then_more_again() {
        let bench = Bench::start(4);
        for key in ["away1", "away2", "away3", "away4", "a", "b", "c", "d", "e", "f", "g"] {
            bench.queue.mark(key);
        }
        let runs = bench.after(10).await;
        let well = runs.iter().filter(|(key, _)| !key.starts_with("away"));
        let mut at = BTreeMap::<u128, usize>::new();
        well.for_each(|(_, started)| *at.entry(*started).or_default() += 1);
        assert_eq!(at[&1000], 1, "four ran, and all found out: {runs:?}");
        assert!(at.values().any(|together| *together > 1), "it grows with what succeeds: {runs:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_drops_what_runs() {
        let bench = Bench::start(4);
        bench.queue.mark("a");
        tokio::time::sleep(Duration::from_millis(100)).await;
        bench.stop.cancel();
        bench.worker.await.unwrap();
        assert_eq!(bench.queue.shared.clock.mono().since_start(), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_worker_runs_what_the_last_one_was_stopped_in() {
        let bench = Bench::start(4);
        bench.queue.mark("a");
        tokio::time::sleep(Duration::from_millis(100)).await;
        bench.stop.cancel();
        bench.worker.await.unwrap();
        let next = Bench::of(bench.queue, 4);
        assert_eq!(next.after(5).await.len(), 1, "nobody marked it again");
        next.queue.mark("a");
        assert_eq!(next.after(5).await.len(), 2);
    }
}
