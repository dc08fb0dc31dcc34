//! All that the decision about one MiniCluster looks at.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::ResourceExt;
use tributary_api::labels::reason;
use tributary_clock::{Mono, Now};
use tributary_cluster::ObjectKey;
use tributary_cluster::engine::{Observed, nothing};
use tributary_cluster::events::Notice;
use tributary_cluster::worker::Outcome;
use tributary_render::{Boot, Context, Rendered};

use super::SETTLING;
use super::controller::{Error, MiniClusterController};
use super::decide::{Rendering, needs_frozen};
use super::definition::OUTDATED;
use super::dereference::Known;
use super::refusal::Refusal;

/// Why the MiniCluster of a burst cannot be rendered.
const RANK_MAP_UNREADABLE: &str = "RankMapUnreadable";

/// One MiniCluster, and all that bears on it.
#[derive(Debug)]
pub struct View {
    /// From the caches, with the last writes of this process where the caches are behind them.
    pub known: Known,
    /// When that was so.
    pub now: Now,
    /// The incarnation was made a moment ago: caches of other kinds may not show all of it.
    pub settling: bool,
    /// The Job failed a moment ago, and how its lead's container ended is still to come.
    pub awaits_exit: bool,
    /// What the spec renders to. An error says why that cannot even be tried: reason and sentence.
    pub rendering: Result<Rendering, (&'static str, String)>,
    /// The boot files of the running incarnation, where the spec renders to others.
    pub frozen: Option<Arc<Boot>>,
    /// Why these cannot be read.
    pub failed: Option<Error>,
    /// What the spec of those files renders to, with the part of the present spec that a running instance follows.
    pub followed: Option<Rendered>,
    /// The pod of an earlier lead that has not ended yet.
    pub lingering: Option<String>,
    /// What kept the last pass over this spec from being finished, and how long it is not tried again.
    pub refused: Option<(Refusal, Duration)>,
    /// Since when bursts are awaited, so that the instance can be started anew.
    pub releasing: Option<Mono>,
}

impl View {
    /// What the objects of a running instance should be. Without other frozen files, it runs with what the spec says now.
    pub fn running(&self) -> Option<&Rendered> {
        if self.frozen.is_some() { self.followed.as_ref() } else { self.rendered() }
    }

    /// What the spec renders to, if it is valid.
    pub(crate) fn rendered(&self) -> Option<&Rendered> {
        self.rendering.as_ref().ok()?.as_ref().ok()
    }

    /// Whether the spec cannot be carried out.
    pub(crate) fn is_invalid(&self) -> bool {
        matches!(self.rendering, Ok(Err(_)))
    }
}

impl MiniClusterController {
    pub(super) async fn view(&self, key: &ObjectKey) -> Result<Observed<View>, Error> {
        let Some(known) = self.caches.dereference(key) else {
            self.memory().forget(key);
            return Ok(nothing());
        };
        if known.mini_cluster.metadata.deletion_timestamp.is_some() {
            return Ok(nothing());
        }
        if let Some(outcome) = self.distrusted(&known, key).await? {
            return Ok(ControlFlow::Break(outcome));
        }
        let now = Now::of(&*self.clock);
        let object = known.mini_cluster.clone();
        let (known, settling, awaits_exit, refused, releasing) = {
            let mut memory = self.memory();
            let remembered = memory.of(&object);
            remembered.began(object.metadata.generation, now.wall);
            let (known, settling) = remembered.complete(known, now.mono, SETTLING);
            let awaits_exit = remembered.awaits_exit(&known, now.mono, SETTLING);
            let refused = remembered.stands(&known, now.mono);
            (known, settling, awaits_exit, refused, remembered.releasing)
        };
        let context = match self.caches.mini_clusters.unreadable_of(key) {
            // What the cache shows is what it was before.
            Some(unreadable) => Err((reason::UNREADABLE, unreadable.sentence())),
            None => known.context(&self.settings).map_err(|sentence| (RANK_MAP_UNREADABLE, sentence)),
        };
        let rendering =
            context.as_ref().map_err(Clone::clone).map(|context| tributary_render::render(&object, context));
        let frozen = match &rendering {
            Ok(rendering) if !awaits_exit && !settling && needs_frozen(&known, rendering) => {
                self.frozen(&known, key).await
            }
            _ => Ok(None),
        };
        let (frozen, failed) = match frozen {
            Ok(frozen) => (frozen, None),
            Err(error) => (None, Some(error)),
        };
        let followed = match (&frozen, &rendering, &context) {
            (Some(frozen), Ok(rendering), Ok(context)) => followed(frozen, &known, rendering, context),
            _ => None,
        };
        let lingering = self.caches.lingering(key, now.wall);
        Ok(ControlFlow::Continue(View {
            known,
            now,
            settling,
            awaits_exit,
            rendering,
            frozen,
            failed,
            followed,
            lingering,
            refused,
            releasing,
        }))
    }

    /// What to do instead, if the object cannot be trusted because the definition hides, or hid, a part of it: see
    /// [`super::definition`].
    async fn distrusted(&self, known: &Known, key: &ObjectKey) -> Result<Option<Outcome>, Error> {
        let object = &*known.mini_cluster;
        if let Some(sentence) = self.caches.outdated() {
            self.gaps.store(true, Ordering::SeqCst);
            tracing::warn!(mini_cluster = %key, reason = OUTDATED, "{sentence}");
            self.events.publish(object, Notice::warning("Reconcile", OUTDATED, sentence)).await;
            return Ok(Some(Outcome::Done));
        }
        if !self.gaps.load(Ordering::SeqCst) {
            return Ok(None);
        }
        // One is enough for all; the new list marks every key.
        let Ok(_alone) = self.closing_gaps.try_lock() else { return Ok(Some(Outcome::After(SETTLING))) };
        if !self.writes.knows_our_fields(object).await? {
            return Ok(Some(Outcome::After(SETTLING)));
        }
        self.caches.mini_clusters.list_again().await;
        // Put back once more in the meantime: then this list had gaps too.
        if self.caches.outdated().is_none() {
            self.gaps.store(false, Ordering::SeqCst);
        }
        Ok(Some(Outcome::After(Duration::ZERO)))
    }

    async fn frozen(&self, known: &Known, key: &ObjectKey) -> Result<Option<Arc<Boot>>, Error> {
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        if let Some(boot) = self.memory().frozen.get(&uid) {
            return Ok(Some(boot.clone()));
        }
        let boot = self.writes.frozen(key).await?.map(Arc::new);
        if let Some(boot) = &boot {
            let running: Vec<String> = self.caches.jobs.objects().iter().filter_map(|job| job.uid()).collect();
            let mut memory = self.memory();
            memory.frozen.retain(|uid, _| running.contains(uid));
            memory.frozen.insert(uid, boot.clone());
        }
        Ok(boot)
    }
}

fn followed(frozen: &Boot, known: &Known, rendering: &Rendering, context: &Context) -> Option<Rendered> {
    let new = rendering.as_ref().ok().map(|rendered| &rendered.boot);
    let mini_cluster = tributary_render::followed(frozen, &known.mini_cluster, new)?;
    tributary_render::render(&mini_cluster, context).ok()
}
