//! All that the decision about one MiniCluster looks at.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::ResourceExt;
use tributary_api::minicluster::MiniCluster;
use tributary_clock::{Mono, Now, SystemRng};
use tributary_cluster::ObjectKey;
use tributary_cluster::engine::{Observed, nothing};
use tributary_cluster::events::Notice;
use tributary_cluster::worker::Outcome;
use tributary_render::{Boot, Context, Rendered};

use super::SETTLING;
use super::certificate::{self, Source};
use super::controller::{Error, MiniClusterController};
use super::decide::{Rendering, asks_for_restart, needs_frozen};
use super::definition::OUTDATED;
use super::dereference::Known;
use super::memory::Memory;
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
    pub rendering: Result<Arc<Rendering>, (&'static str, String)>,
    /// The boot files of the running incarnation, where the spec renders to others.
    pub frozen: Option<Arc<Boot>>,
    /// Why these cannot be read.
    pub failed: Option<Error>,
    /// What the spec of those files renders to, with the part of the present spec that a running instance follows.
    pub followed: Option<Arc<Rendered>>,
    /// The pod of an earlier lead that has not ended yet.
    pub lingering: Option<String>,
    /// What kept the last pass over this spec from being finished, and how long it is not tried again.
    pub refused: Option<(Refusal, Duration)>,
    /// Since when bursts are awaited, so that the instance can be started anew.
    pub releasing: Option<Mono>,
    /// Why the instance that is asked for in place of this one could not be made.
    pub unmakable: Option<String>,
}

#[cfg(test)]
impl View {
    /// Nothing else is there, 1000 s after the start of the agent.
    pub(crate) fn alone(known: Known, rendering: Rendering) -> Self {
        let now = Now {
            mono: Mono::from_start(Duration::from_secs(1000)),
            wall: "2026-01-01T01:00:00Z".parse().expect("a time"),
        };
        Self {
            known,
            now,
            settling: false,
            awaits_exit: false,
            rendering: Ok(Arc::new(rendering)),
            frozen: None,
            failed: None,
            followed: None,
            lingering: None,
            refused: None,
            releasing: None,
            unmakable: None,
        }
    }
}

impl View {
    /// What the objects of a running instance should be. Without other frozen files, it runs with what the spec says now.
    pub fn running(&self) -> Option<&Rendered> {
        if self.frozen.is_some() { self.followed.as_deref() } else { self.rendered() }
    }

    /// What the spec renders to, if it is valid.
    pub(crate) fn rendered(&self) -> Option<&Rendered> {
        self.rendering.as_deref().ok()?.as_ref().ok()
    }

    /// Whether the spec cannot be carried out.
    pub(crate) fn is_invalid(&self) -> bool {
        self.rendering.as_deref().is_ok_and(Result::is_err)
    }
}

impl MiniClusterController {
    pub(super) async fn view(&self, key: &ObjectKey) -> Result<Observed<View>, Error> {
        let Some(known) = self.caches.dereference(key) else {
            self.memory().forget(key);
            return Ok(nothing());
        };
        // What the cache shows of one that cannot be read is what it was before: a status that follows from that is the status
        // of another generation. Why it cannot be read is said elsewhere.
        let is_unreadable = self.caches.mini_clusters.unreadable_of(key).is_some();
        if is_unreadable || known.mini_cluster.metadata.deletion_timestamp.is_some() {
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
        let context = known.context(&self.settings).map_err(|sentence| (RANK_MAP_UNREADABLE, sentence));
        let rendering = context.as_ref().map_err(Clone::clone).map(|context| self.render(&object, context, now.mono));
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
            (Some(frozen), Ok(rendering), Ok(context)) => self.follow(frozen, &object, rendering, context, now.mono),
            _ => None,
        };
        let (unmakable, failed) = match &rendering {
            Ok(rendering) if !awaits_exit && !settling && failed.is_none() => {
                match self.unmakable(&known, rendering, frozen.as_deref(), followed.as_deref()).await {
                    Ok(unmakable) => (unmakable, None),
                    Err(error) => (None, Some(error)),
                }
            }
            _ => (None, failed),
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
            unmakable,
        }))
    }

    /// Why the instance that is asked for in place of the one that runs could not be made, as far as that can be told while this
    /// one has its names. A burst's is made anew when its root says so.
    async fn unmakable(
        &self,
        known: &Known,
        rendering: &Rendering,
        frozen: Option<&Boot>,
        running: Option<&Rendered>,
    ) -> Result<Option<String>, Error> {
        let asked = asks_for_restart(known, rendering, frozen, running).filter(|_| known.hosted.is_none());
        let (Some(_), Ok(rendered)) = (asked, rendering) else { return Ok(None) };
        if let Err(sentence) = self.gate.fits(&known.mini_cluster) {
            return Ok(Some(sentence));
        }
        let certificate = certificate::obtain(&self.clients.reader, known, &*self.clock, &mut SystemRng).await?;
        if let Source::Missing(_, sentence) = certificate {
            return Ok(Some(sentence));
        }
        match self.writes.try_job(known, rendered).await {
            Ok(()) => Ok(None),
            Err(error) => {
                let refusal = Refusal::of(&error, known);
                if refusal.lasts { Ok(Some(refusal.sentence)) } else { Err(error) }
            }
        }
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

    /// What the spec renders to.
    fn render(&self, object: &Arc<MiniCluster>, context: &Context, now: Mono) -> Arc<Rendering> {
        if let Some(kept) = self.memory().renderings.of(object, context, now) {
            return kept.rendering.clone();
        }
        let rendering = Arc::new(tributary_render::render(object, context));
        self.memory().renderings.keep(object.clone(), context.clone(), rendering.clone(), now);
        rendering
    }

    /// What the spec of these boot files renders to, with the part of the present spec that a running instance follows.
    fn follow(
        &self,
        frozen: &Arc<Boot>,
        object: &Arc<MiniCluster>,
        rendering: &Rendering,
        context: &Context,
        now: Mono,
    ) -> Option<Arc<Rendered>> {
        let kept = |memory: &mut Memory| memory.renderings.of(object, context, now)?.followed(frozen);
        if let Some(followed) = kept(&mut self.memory()) {
            return followed;
        }
        let new = rendering.as_ref().ok().map(|rendered| &rendered.boot);
        let followed = tributary_render::running(frozen, object, new, context).map(Arc::new);
        if let Some(kept) = self.memory().renderings.of(object, context, now) {
            kept.follows(frozen.clone(), followed.clone());
        }
        followed
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
