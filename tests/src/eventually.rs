//! Waiting for what a real cluster does in its own time.

use std::fmt::{Debug, Display};
use std::sync::OnceLock;
use std::time::Duration;

use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// How long anything may take that is not a test of time itself: machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(50);

/// What lasts is asked for less often: API servers share the machine with what is waited for.
const SLOWEST: Duration = Duration::from_millis(400);

static LONGER: OnceLock<Duration> = OnceLock::new();

/// Makes everything in this process wait so long instead of [`PATIENCE`]: where containers are started for real.
pub fn be_more_patient(patience: Duration) {
    let _ = LONGER.set(patience);
}

/// Looks again and again until `look` returns `Ok`; what it last said instead is the panic's message.
///
/// # Panics
/// After [`PATIENCE`], or what [`be_more_patient`] said.
pub async fn eventually<T, E: Display>(what: impl Display, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let patience = LONGER.get().copied().unwrap_or(PATIENCE);
    let (deadline, mut pause) = (tokio::time::Instant::now() + patience, POLL);
    loop {
        match look().await {
            Ok(value) => return value,
            Err(last) if tokio::time::Instant::now() >= deadline => {
                panic!("waited {patience:?} for: {what}\nlast seen: {last}")
            }
            Err(_) => {
                tokio::time::sleep(pause).await;
                pause = SLOWEST.min(pause * 5 / 4);
            }
        }
    }
}

/// Waits until there is no object of this name.
pub async fn gone<K: Resource + Clone + Debug + DeserializeOwned>(api: &Api<K>, name: &str) {
    eventually(format!("{}/{name} is gone", api.resource_url()), async || match api.get_opt(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// Looks for `time`, and panics as soon as `look` finds something within it.
///
/// # Panics
/// If `look` returns something.
pub async fn never(what: impl Display, time: Duration, mut look: impl AsyncFnMut() -> Option<String>) {
    let deadline = tokio::time::Instant::now() + time;
    loop {
        let seen = look().await;
        // What comes after that is none of its business, also if the look began before.
        if tokio::time::Instant::now() >= deadline {
            return;
        }
        if let Some(seen) = seen {
            panic!("should never happen: {what}\nseen: {seen}");
        }
        tokio::time::sleep(POLL).await;
    }
}
