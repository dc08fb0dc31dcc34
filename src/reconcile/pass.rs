//! One pass over a MiniCluster: from the caches to what is done and what is told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels;
use tributary_clock::SystemRng;
use tributary_cluster::ObjectKey;
use tributary_cluster::conditions;
use tributary_cluster::error::{Cause, Taken};
use tributary_cluster::events::Notice;
use tributary_cluster::traced;
use tributary_cluster::worker::Outcome;
use tributary_flux::RankMap;
use tributary_render::{self, Boot, Context};
use tributary_telemetry::Span;

use super::SETTLING;
use super::apply::Creation;
use super::certificate::{self, Source};
use super::controller::{Controller, Error};
use super::decide::{Action, Decision, LEFT_OVER, NAME_TAKEN, Rendering, decide, needs_frozen};
use super::definition::OUTDATED;
use super::dereference::Known;
use super::notices::notices;
use super::refusal::{Refusal, Refused};
use super::restful;
use super::spans;
use super::status::{Facts, JobFacts, compute};

/// How often a certificate in a Secret of somebody else's is looked for: Secrets are never watched.
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);

/// Why an instance waits whose volumes of before are still there.
const VOLUME_GOES: &str = "VolumeIsDeleted";

/// How often a name that is taken is tried again: objects of others are not watched.
const TAKEN_RETRY: Duration = Duration::from_secs(15);

/// The same, of an object that Kubernetes is about to delete with an earlier MiniCluster.
const LEFT_OVER_RETRY: Duration = Duration::from_secs(1);

/// Until a deadline that was not allowed is looked at again: nobody tells when more is.
const DEADLINE_RETRY: Duration = Duration::from_secs(60);

/// How often a pod that holds up the next instance is looked at, besides its own changes.
const LINGERING_RETRY: Duration = Duration::from_secs(5);

/// How often it is asked whether a FluxJob has taken over how its MiniCluster ended.
const TOLD_RETRY: Duration = Duration::from_secs(1);

/// What came of carrying a decision out.
struct Carried {
    /// When the key is looked at again.
    outcome: Outcome,
    /// The Job that was made.
    created: Option<JobFacts>,
    /// The status is written now.
    tells: bool,
}

impl Carried {
    fn then(outcome: Outcome) -> Self {
        Self { outcome, created: None, tells: true }
    }

    /// The status is written by the next pass, or was already.
    fn untold(outcome: Outcome) -> Self {
        Self { tells: false, ..Self::then(outcome) }
    }
}

/// How far a creation came.
enum Step {
    Made(JobFacts, Vec<Taken>),
    Waits(String, String, Duration),
    CacheIsBehind,
}

impl Controller {
    /// Looks at one MiniCluster, does what has to be done, and writes what is so then.
    ///
    /// # Errors
    /// What could not be done: it is in the status by then, unless that is what could not be written.
    pub(super) async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        let Some(known) = self.caches.dereference(key) else {
            self.memory().forget(key);
            return Ok(Outcome::Done);
        };
        if known.mini_cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        if let Some(outcome) = self.distrusted(&known, key).await? {
            return Ok(outcome);
        }
        let object = known.mini_cluster.clone();
        self.memory().of(&object).began(object.metadata.generation, self.clock.wall());
        let (known, settling) = self.memory().of(&object).complete(known, self.clock.mono(), SETTLING);
        if self.memory().of(&object).awaits_exit(&known, self.clock.mono(), SETTLING) {
            return Ok(Outcome::After(SETTLING));
        }
        let context = match known.context(&self.settings) {
            Ok(context) => context,
            Err(sentence) => {
                let decision = Decision::waits("RankMapUnreadable", sentence);
                self.write_status(&known, None, &decision, None).await?;
                return Ok(Outcome::Done);
            }
        };
        let rendering = tributary_render::render(&known.mini_cluster, &context);
        let mut decision = Decision::of(Action::Nothing);
        let carried = self.carry_out(&known, settling, &rendering, context, &mut decision).await;
        let carried = match carried {
            Ok(Carried { tells: false, outcome, .. }) => return Ok(outcome),
            Ok(carried) => Ok(carried),
            // Somebody was faster, and the caches are about to show it.
            Err(error) if is_conflict(&error) && known.job.facts().is_some() && self.queue.failures(key) == 0 => {
                return Err(error);
            }
            Err(error) => {
                let (refusal, now) = (Refusal::of(&error, &known), self.clock.mono());
                let mut memory = self.memory();
                let last = &mut memory.of(&object).refused;
                decision.fails(Refused::again(last, refusal, object.metadata.generation, now));
                Err(error)
            }
        };
        if carried.is_ok() && decision.waiting.is_none() {
            self.memory().of(&object).refused = None;
        }
        let is_refused = rendering.is_err() || carried.is_err() && decision.refused;
        if is_refused && known.job.facts().is_none() {
            (self.gate.gives_back)(&known.mini_cluster);
        }
        let created = carried.as_ref().ok().and_then(|carried| carried.created.clone());
        let told = self.write_status(&known, Some(&rendering), &decision, created).await;
        let carried = carried?;
        told?;
        Ok(carried.outcome)
    }

    /// Decides, and does it. `decision` is what came of that, also where a part of it failed.
    async fn carry_out(
        &self,
        known: &Known,
        settling: bool,
        rendering: &Rendering,
        context: Context,
        decision: &mut Decision,
    ) -> Result<Carried, Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let frozen = if !settling && needs_frozen(known, rendering) { self.frozen(known, &key).await? } else { None };
        let followed = frozen.as_ref().and_then(|frozen| {
            let new = rendering.as_ref().ok().map(|rendered| &rendered.boot);
            let mini_cluster = tributary_render::followed(frozen, &known.mini_cluster, new)?;
            tributary_render::render(&mini_cluster, &context).ok()
        });
        // Without other frozen files, the instance runs with what the spec says now.
        let running = if frozen.is_some() { followed.as_ref() } else { rendering.as_ref().ok() };
        *decision = decide(known, rendering, frozen.as_deref(), running);
        if let (Action::Create, Some(pod)) = (&decision.action, self.caches.lingering(&key, self.clock.wall())) {
            let sentence =
                format!("pod {pod} of the last instance has not ended yet; it has the host name of the next one");
            *decision = Decision::waits("Restarting", sentence);
            return Ok(Carried::then(Outcome::After(LINGERING_RETRY)));
        }
        let refused = self.memory().of(&known.mini_cluster).stands(known, self.clock.mono());
        if decision.action == Action::Create
            && let Some((refusal, left)) = refused.clone()
            && !left.is_zero()
        {
            decision.fails(refusal);
            return Ok(Carried::then(Outcome::After(left)));
        }
        if decision.action == Action::Create
            && let Some((waits, outcome)) = self.gate.holds_back(known, self.clock.wall())
        {
            *decision = waits;
            // It gave its room back when it was refused, and waits to be tried again.
            if let Some((refusal, _)) = refused {
                decision.fails(refusal);
            }
            return Ok(Carried::then(outcome));
        }
        if known.hosted.is_none() && !settling && decision.growth(known).is_some() {
            let has = known.job.facts().map(|facts| facts.parallelism);
            // The rest of the change need not wait with it. Its key is marked when there is room.
            if let Err(sentence) = (self.gate.asks)(&known.mini_cluster, has, self.clock.wall()) {
                decision.does_not_grow(sentence);
            }
        }
        self.gate.limit(known, decision, self.clock.wall());
        let expiry = self.expiry(known);
        if expiry == Some(Duration::ZERO) {
            decision.action = Action::CleanUp;
        }
        let later = decision.deadline.told.is_some().then_some(DEADLINE_RETRY);
        let mut carried = Carried::then(expiry.into_iter().chain(later).min().map_or(Outcome::Done, Outcome::After));
        match &decision.action {
            Action::Nothing => {}
            Action::Restart if settling => return Ok(Carried::untold(Outcome::After(SETTLING))),
            Action::Restart => match self.release(known) {
                Some(left) => carried.outcome = Outcome::After(left),
                None => self.writes.delete_job(known).await?,
            },
            Action::RemoveVolumes => self.writes.remove_volumes(known).await?,
            Action::CleanUp => {
                // How it ended comes first, also in whatever follows it.
                self.write_status(known, Some(rendering), decision, None).await?;
                if !(self.gate.is_told)(&known.mini_cluster) {
                    return Ok(Carried::untold(Outcome::After(TOLD_RETRY)));
                }
                self.writes.clean_up(&known.mini_cluster).await?;
                return Ok(Carried::untold(Outcome::Done));
            }
            Action::Create => match self.create(known, context, decision.deadline.seconds).await? {
                // Jobs first: the status follows when all that wait for theirs have had their turn.
                Step::Made(_, taken) if taken.is_empty() => {
                    return Ok(Carried::untold(Outcome::After(Duration::ZERO)));
                }
                Step::Made(facts, taken) => {
                    carried.created = Some(facts);
                    decision.taken = Some(taken);
                }
                Step::Waits(reason, sentence, retry) => {
                    decision.waiting = Some((reason, sentence));
                    carried.outcome = Outcome::After(retry);
                }
                Step::CacheIsBehind => return Ok(Carried::untold(Outcome::After(SETTLING))),
            },
            Action::Maintain(_) if settling => carried.outcome = Outcome::After(SETTLING),
            Action::Maintain(maintenance) => match self.writes.maintain(known, running, maintenance).await {
                Ok(taken) => decision.taken = Some(taken),
                Err(error) => {
                    let taken = error.taken().ok_or(error)?;
                    decision.waiting = Some((NAME_TAKEN.to_owned(), taken.sentence()));
                    carried.outcome = Outcome::After(TAKEN_RETRY);
                }
            },
        }
        if decision.taken.as_ref().is_some_and(|taken| !taken.is_empty()) {
            carried.outcome = Outcome::After(TAKEN_RETRY);
        }
        Ok(carried)
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

    /// How long a MiniCluster that has ended is kept, from now on.
    fn expiry(&self, known: &Known) -> Option<Duration> {
        let ttl = known.mini_cluster.spec.ttl_seconds_after_finished?;
        let finished = conditions::find(&known.mini_cluster.status.as_ref()?.conditions, labels::condition::FINISHED)?;
        if finished.status != "True" || known.hosted.is_some() {
            return None;
        }
        let due = finished.last_transition_time.0 + jiff::SignedDuration::from_secs(ttl.into());
        Some(Duration::try_from(due.duration_since(self.clock.wall())).unwrap_or_default())
    }

    /// How long bursts are still awaited before the instance is started anew; `None` if there is nothing to wait for. They
    /// are told by the phase of the status.
    fn release(&self, known: &Known) -> Option<Duration> {
        let now = self.clock.mono();
        let mut memory = self.memory();
        let releasing = &mut memory.of(&known.mini_cluster).releasing;
        let held = |burst: &&Burst| {
            let status = burst.status.as_ref();
            status.is_some_and(|status| status.peer.is_some() && status.phase != BurstPhase::Released)
        };
        let drain = known.bursts.iter().filter(held).map(|burst| u64::from(burst.spec.drain.unsigned())).max();
        let Some(drain) = drain else {
            *releasing = None;
            return None;
        };
        let since = *releasing.get_or_insert(now);
        let limit = tributary_render::longest_end(Duration::from_secs(drain));
        let left = limit.saturating_sub(now.saturating_since(since));
        if left.is_zero() {
            *releasing = None;
            return None;
        }
        Some(left)
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

    async fn create(&self, known: &Known, mut context: Context, deadline: Option<i64>) -> Result<Step, Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let began = self.clock.wall();
        let source = certificate::obtain(&self.clients.reader, known, &*self.clock, &mut SystemRng).await?;
        let (certificate, ours) = match source {
            Source::New(certificate) => (certificate, true),
            Source::Existing(certificate) => (certificate, false),
            Source::Missing(reason, sentence) => {
                return Ok(Step::Waits(reason.to_owned(), sentence, CERTIFICATE_RETRY));
            }
        };
        context.credential_digest = Some(certificate.digest());
        // The same spec was rendered a moment ago, without the digest: it cannot fail now.
        let Ok(mut rendered) = tributary_render::render(&known.mini_cluster, &context) else {
            return Ok(Step::CacheIsBehind);
        };
        rendered.job.spec.get_or_insert_default().active_deadline_seconds = deadline;
        let restful = match &rendered.restful_secret {
            Some(name) => {
                let secret = restful::obtain(&self.clients.reader, &known.mini_cluster, name, &mut SystemRng).await;
                Some(secret.map_err(super::apply::Error::from)?)
            }
            None => None,
        };
        match self.writes.create(known, &rendered, ours.then_some(&certificate), restful.as_ref()).await {
            Err(error) => {
                let taken = error.taken().ok_or(error)?;
                let goes = taken.is_left_over(&key.name);
                let (reason, retry) = if goes { (LEFT_OVER, LEFT_OVER_RETRY) } else { (NAME_TAKEN, TAKEN_RETRY) };
                Ok(Step::Waits(reason.to_owned(), taken.sentence(), retry))
            }
            Ok((Creation::Exists, _)) => Ok(Step::CacheIsBehind),
            Ok((Creation::Goes(object), _)) => {
                let sentence = format!(
                    "{object} of the last instance is being deleted, and another is made when it is gone: it waits for pods \
                     that use it"
                );
                Ok(Step::Waits(VOLUME_GOES.to_owned(), sentence, SETTLING))
            }
            Ok((Creation::Created(facts), taken)) => {
                tracing::info!(mini_cluster = %key, incarnation = facts.uid, "created the Job");
                let change = traced::change(&self.traces, &*known.mini_cluster);
                self.traces.record(change.map(|(own, _)| {
                    spans::about(Span::part(&own, "create Job", began, self.clock.wall()), &known.mini_cluster)
                }));
                self.memory().of(&known.mini_cluster).created(facts.clone(), self.clock.mono());
                Ok(Step::Made(facts, taken))
            }
        }
    }

    async fn write_status(
        &self,
        known: &Known,
        rendering: Option<&Rendering>,
        decision: &Decision,
        created: Option<JobFacts>,
    ) -> Result<(), Error> {
        let current = &*known.mini_cluster;
        let job = created.or_else(|| known.job.facts().cloned());
        let frozen_map = job.is_some().then(|| current.status.as_ref()?.rank_map.clone()).flatten();
        let same_job =
            job.as_ref().map(|job| &job.uid) == current.status.as_ref().and_then(|status| status.incarnation.as_ref());
        let rank_map = match frozen_map {
            Some(text) if same_job => RankMap::parse_canonical(&text).ok(),
            _ => rendering.and_then(|rendering| rendering.as_ref().ok()).map(|rendered| rendered.rank_map.clone()),
        };
        let problems = match rendering {
            Some(Err(problems)) => {
                problems.iter().map(|problem| (problem.reason.to_owned(), problem.to_string())).collect()
            }
            _ => Vec::new(),
        };
        let mut unsupported = match rendering {
            Some(Ok(rendered)) => rendered.unsupported.clone(),
            _ => Vec::new(),
        };
        unsupported.extend(decision.deadline.told.clone());
        let has = job.as_ref().map(|job| (job.uid.as_str(), job.parallelism));
        // Bursts of peers are counted with their HostedBurst.
        let holds = if known.hosted.is_none() { (self.gate.holds)(current, has) } else { None };
        let facts = Facts {
            mini_cluster: current,
            holds,
            job,
            lead: known.lead.clone(),
            problems,
            waiting: decision.waiting.clone(),
            refused: decision.refused,
            unsupported,
            restart_required: decision.restart_required.clone(),
            restarting: decision.restarting,
            over: decision.over,
            taken: decision.taken.as_ref().map(|taken| taken.iter().map(Taken::sentence).collect()),
            stays: decision.stays.clone(),
            bursts: &known.bursts,
            rank_map: rank_map.as_ref(),
            peers: &self.caches.peer_uids(),
            credential_secret: Some(certificate::secret_name(known)),
            node_port: known.node_port(),
            load_balancer: known.load_balancer(),
        };
        let status = compute(&facts, self.clock.wall());
        let version = self.writes.status(current, &status).await?;
        if current.status.as_ref() != Some(&status) {
            let now = self.clock.wall();
            let began = self.memory().of(current).began(current.metadata.generation, now);
            if let Some(change) = traced::change(&self.traces, current) {
                self.traces.record(spans::spans(current, &status, change, (began, now)));
            }
            self.memory().of(current).written(version, status.clone());
            for notice in notices(&known.status(), &status) {
                self.events.publish(current, notice).await;
            }
        }
        Ok(())
    }
}

fn is_conflict(error: &Error) -> bool {
    Cause::of(error).is_some_and(Cause::is_conflict)
}
