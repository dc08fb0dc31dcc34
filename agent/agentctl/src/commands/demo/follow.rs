//! Follows the bursts of the root on both sides until every broker is online.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt, TryStreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::clock::Mono;

use super::KEEP_HINT;
use super::agent::Agent;
use super::clusters::Clusters;
use super::progress::{Progress, Step, millis};
use super::root::{BURSTS, NAMESPACE};
use crate::error::{Failure, Result};

/// How often it is checked that the agents still run.
const CHECK: Duration = Duration::from_millis(500);

/// When each slot reached what: milliseconds from the root's creation, by slot and by what was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Timeline(BTreeMap<String, BTreeMap<String, u64>>);

impl Timeline {
    /// What was seen of a slot.
    pub(super) fn of(&self, slot: &str) -> BTreeMap<String, u64> {
        self.0.get(slot).cloned().unwrap_or_default()
    }

    /// Keeps the first time.
    fn mark(&mut self, slot: &str, what: impl Into<String>, after: Duration) {
        self.0.entry(slot.to_owned()).or_default().entry(what.into()).or_insert(millis(after));
    }
}

/// What is watched.
enum Seen {
    Burst(Box<Burst>),
    Hosted(Box<HostedBurst>),
}

/// Watches Bursts in the root's cluster and HostedBursts in the others until all bursts of the root with this UID are
/// ready. Fails if an agent ends. It has no time limit of its own.
pub(super) async fn follow(
    clusters: &Clusters,
    agents: &[Agent],
    root_uid: &str,
    began: Mono,
    progress: &Progress,
    timeline: &mut Timeline,
) -> Result<()> {
    let mut streams = vec![watch::<Burst>(&clusters.root().client).map_ok(|it| Seen::Burst(Box::new(it))).boxed()];
    for peer in clusters.peers() {
        streams.push(watch::<HostedBurst>(&peer.client).map_ok(|it| Seen::Hosted(Box::new(it))).boxed());
    }
    let mut seen: BoxStream<'_, _> = select_all(streams).boxed();
    let mut rows = Rows::default();
    let mut check = tokio::time::interval(CHECK);
    while !rows.all_ready() {
        let event = tokio::select! {
            event = seen.next() => event,
            _ = check.tick() => {
                agents.iter().try_for_each(Agent::check)?;
                continue;
            }
        };
        let after = progress.clock().mono().saturating_since(began);
        match event {
            Some(Ok(Seen::Burst(burst))) if belongs(&burst, root_uid) => {
                let status = burst.status.clone().unwrap_or_default();
                timeline.mark(&burst.spec.slot, word(status.phase), after);
                rows.show(&burst, progress);
            }
            Some(Ok(Seen::Hosted(hosted))) if hosted.spec.root.uid == root_uid => {
                timeline.mark(&hosted.spec.slot, "hostedBurst", after);
            }
            Some(Ok(_)) => {}
            // The watcher goes on by itself.
            Some(Err(error)) => progress.note(&format!("a watch was interrupted: {error}")),
            None => {
                return Err(Failure::new("failed to follow the bursts").because("all watches ended").hint(KEEP_HINT));
            }
        }
    }
    Ok(())
}

/// Whether the Burst is of this very root, not of an earlier one of the same name.
pub(super) fn belongs(burst: &Burst, root_uid: &str) -> bool {
    burst.owner_references().iter().any(|owner| owner.uid == root_uid)
}

fn watch<K>(client: &Client) -> impl Stream<Item = Result<K, watcher::Error>> + Send + use<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    watcher(Api::<K>::namespaced(client.clone(), NAMESPACE), watcher::Config::default())
        .default_backoff()
        .applied_objects()
}

/// A line for each burst.
#[derive(Default)]
struct Rows(BTreeMap<String, Row>);

enum Row {
    Moving(Step),
    Ready,
}

impl Rows {
    fn all_ready(&self) -> bool {
        self.0.len() == BURSTS.len() && self.0.values().all(|row| matches!(row, Row::Ready))
    }

    fn show(&mut self, burst: &Burst, progress: &Progress) {
        let slot = &burst.spec.slot;
        let phase = burst.status.as_ref().map(|status| status.phase).unwrap_or_default();
        let text = sentence(burst);
        let step = match self.0.remove(slot) {
            Some(Row::Ready) if phase == BurstPhase::Ready => None,
            Some(Row::Moving(step)) => Some(step),
            None | Some(Row::Ready) => Some(progress.step(slot, &text)),
        };
        let row = match step {
            Some(step) if phase != BurstPhase::Ready => {
                step.say(&text);
                Row::Moving(step)
            }
            Some(step) => {
                step.end(&text);
                Row::Ready
            }
            None => Row::Ready,
        };
        self.0.insert(slot.clone(), row);
    }
}

fn sentence(burst: &Burst) -> String {
    let status = burst.status.clone().unwrap_or_default();
    let peer = status.peer.map(|peer| format!(" on {peer}")).unwrap_or_default();
    let mut text = format!("{}{peer}, {} of {} brokers online", status.phase, status.ready_brokers, burst.spec.size);
    if status.phase != BurstPhase::Ready && !status.message.is_empty() {
        text = format!("{text}: {}", status.message);
    }
    text
}

/// The key of a phase among the timings.
fn word(phase: BurstPhase) -> String {
    phase.to_string().to_lowercase()
}

#[cfg(test)]
mod tests {
    use tributary::api::burst::{BurstSpec, BurstStatus};
    use tributary::clock::SystemClock;

    use super::*;

    fn burst(slot: &str, phase: BurstPhase) -> Burst {
        let mut burst = Burst::new(slot, BurstSpec { slot: slot.into(), size: 3, ..BurstSpec::default() });
        burst.status = Some(BurstStatus { phase, message: "because".into(), ..BurstStatus::default() });
        burst
    }

    #[test]
    fn all_are_ready_when_every_declared_burst_is_and_stays() {
        let progress = Progress::new(SystemClock::shared());
        let mut rows = Rows::default();
        rows.show(&burst("a", BurstPhase::Ready), &progress);
        assert!(!rows.all_ready(), "the other one is not there yet");
        rows.show(&burst("b", BurstPhase::Offered), &progress);
        rows.show(&burst("b", BurstPhase::Ready), &progress);
        assert!(rows.all_ready());
        rows.show(&burst("a", BurstPhase::Lost), &progress);
        assert!(!rows.all_ready());
    }

    #[test]
    fn the_first_time_counts() {
        let mut timeline = Timeline::default();
        timeline.mark("a", "offered", Duration::from_millis(7));
        timeline.mark("a", "offered", Duration::from_millis(9));
        assert_eq!(timeline.of("a"), BTreeMap::from([("offered".to_owned(), 7)]));
        assert!(timeline.of("b").is_empty());
    }

    #[test]
    fn a_line_says_why_a_burst_does_not_move() {
        assert_eq!(sentence(&burst("a", BurstPhase::Rejected)), "Rejected, 0 of 3 brokers online: because");
        assert_eq!(sentence(&burst("a", BurstPhase::Ready)), "Ready, 0 of 3 brokers online");
    }
}
