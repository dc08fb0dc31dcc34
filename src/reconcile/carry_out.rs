//! Carries a decision about a MiniCluster out, and writes what is so then: the only place where its status is written, and
//! where an error becomes a condition.

use std::borrow::Cow;
use std::time::Duration;

use tributary_clock::SystemRng;
use tributary_cluster::ObjectKey;
use tributary_cluster::error::Cause;
use tributary_cluster::traced;
use tributary_cluster::worker::Outcome;
use tributary_flux::RankMap;
use tributary_render::Rendered;
use tributary_telemetry::Span;

use super::SETTLING;
use super::apply::{Creation, Incarnation};
use super::beside::Without;
use super::certificate::{self, Source};
use super::controller::{Error, MiniClusterController};
use super::decide::{Action, Decision, LEFT_OVER, NAME_TAKEN};
use super::notices::notices;
use super::observe::View;
use super::refusal::{Refusal, Refused};
use super::restful;
use super::spans;
use super::status::{Facts, JobFacts, compute, differ_by_progress};
use super::step::{LINGERING_RETRY, RESTARTING, lingering};

/// How often a certificate in a Secret of somebody else's is looked for: Secrets are never watched.
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);

/// Why an instance waits whose volumes of before are still there.
const VOLUME_GOES: &str = "VolumeIsDeleted";

/// How often a name that is taken is tried again: objects of others are not watched. So is what an instance runs without.
const TAKEN_RETRY: Duration = Duration::from_secs(15);

/// The same, of an object that Kubernetes is about to delete with an earlier MiniCluster.
const LEFT_OVER_RETRY: Duration = Duration::from_secs(1);

/// How often it is asked whether a FluxJob has taken over how its MiniCluster ended.
const TOLD_RETRY: Duration = Duration::from_secs(1);

/// The least time before a status that only adds progress ([`differ_by_progress`]). Each status wakes all that watch
/// MiniClusters, and a burst passes five phases in a second.
const PACE: Duration = Duration::from_secs(1);

/// What came of carrying a decision out.
#[derive(Default)]
struct Carried {
    /// When the key is looked at again.
    again: Option<Duration>,
    /// The Job that was made.
    created: Option<JobFacts>,
    /// What it runs without; `None` if nothing new is known of that.
    without: Option<Vec<Without>>,
    /// What it waits for that only the attempt has shown: reason and sentence.
    waiting: Option<(String, String)>,
    /// What could not be done beside that.
    failed: Option<Error>,
    /// The status is written by the next pass, or was already.
    untold: bool,
}

impl Carried {
    fn untold(again: Option<Duration>) -> Self {
        Self { again, untold: true, ..Self::default() }
    }

    fn waits(reason: &str, sentence: String, again: Duration) -> Self {
        Self { again: Some(again), waiting: Some((reason.to_owned(), sentence)), ..Self::default() }
    }

    /// The same, without these Services.
    fn without(self, without: Option<Vec<Without>>) -> Self {
        let again = without.as_ref().filter(|without| !without.is_empty()).map(|_| TAKEN_RETRY);
        Self { again: self.again.or(again), without, ..self }
    }

    /// Nothing, because of this.
    fn nothing(failed: Error) -> Self {
        Self { failed: Some(failed), ..Self::default() }
    }
}

impl MiniClusterController {
    /// Does what was decided, and writes what is so then.
    ///
    /// # Errors
    /// What could not be done: it is in the status by then, unless that is what could not be written.
    pub(super) async fn carry_out(&self, mut view: View, decision: Decision) -> Result<Outcome, Error> {
        let object = view.known.mini_cluster.clone();
        let key = ObjectKey::of(&*object);
        let generation = object.metadata.generation;
        // A pass that only waits for caches begins nothing anew.
        if decision.action != Action::Later {
            self.memory().of(&object).releasing = decision.releasing;
        }
        let carried = match view.failed.take() {
            None => self.attempt(&view, &decision).await,
            Some(error) => Err(error),
        };
        let mut carried = carried.unwrap_or_else(Carried::nothing);
        if carried.untold {
            return Ok(outcome(carried.again));
        }
        let (decision, failed) = match carried.failed.take() {
            None => {
                let waiting = carried.waiting.clone().or(decision.waiting.clone());
                (Decision { waiting, ..decision }, None)
            }
            // Somebody was faster, and the caches are about to show it.
            Some(error)
                if is_conflict(&error) && view.known.job.facts().is_some() && self.queue.failures(&key) == 0 =>
            {
                return Err(error);
            }
            Some(error) => {
                let refusal = Refusal::of(&error, &view.known);
                if refusal.quota {
                    self.quotas.wait(key.namespace.as_deref().unwrap_or_default(), key.clone());
                }
                let refusal =
                    Refused::again(&mut self.memory().of(&object).refused, refusal, generation, self.clock.mono());
                (decision.fails(refusal), Some(error))
            }
        };
        if failed.is_none() && decision.waiting.is_none() {
            self.memory().of(&object).refused = None;
        }
        let is_refused = view.is_invalid() || failed.is_some() && decision.refused;
        if is_refused && view.known.job.facts().is_none() {
            self.gate.give_back(&object);
        }
        let again = carried.again.into_iter().chain(decision.again).min();
        let told = self.tell(&view, &decision, carried).await;
        match failed {
            Some(error) => Err(error),
            None => told.map(|later| outcome(again.into_iter().chain(later).min())),
        }
    }

    async fn attempt(&self, view: &View, decision: &Decision) -> Result<Carried, Error> {
        let known = &view.known;
        match &decision.action {
            Action::Nothing => {}
            Action::Later => return Ok(Carried::untold(decision.again)),
            Action::Restart => self.writes.delete_job(known).await?,
            Action::RemoveVolumes => self.writes.remove_volumes(known).await?,
            Action::RemoveLead => self.writes.remove_lead(known).await?,
            Action::CleanUp => {
                // How it ended comes first, also in whatever follows it.
                self.tell(view, decision, Carried::default()).await?;
                if !self.gate.is_told(&known.mini_cluster) {
                    return Ok(Carried::untold(Some(TOLD_RETRY)));
                }
                self.writes.clean_up(&known.mini_cluster).await?;
                return Ok(Carried::untold(None));
            }
            Action::Create => {
                let Some(rendered) = view.rendered() else { return Ok(Carried::default()) };
                return self.create(view, rendered, decision.deadline.seconds).await;
            }
            Action::Maintain(maintenance) => {
                let (without, done) = self.writes.maintain(known, view.running(), maintenance).await;
                let carried = match done.map_err(|error| error.taken().ok_or(error)) {
                    Ok(()) => Carried::default(),
                    Err(Ok(taken)) => Carried::waits(NAME_TAKEN, taken.sentence(), TAKEN_RETRY),
                    Err(Err(error)) => Carried::nothing(error.into()),
                };
                return Ok(carried.without(without));
            }
        }
        Ok(Carried::default())
    }

    async fn create(&self, view: &View, rendered: &Rendered, deadline: Option<i64>) -> Result<Carried, Error> {
        let known = &view.known;
        let key = ObjectKey::of(&*known.mini_cluster);
        let began = self.clock.wall();
        let source = certificate::obtain(&self.clients.reader, known, &*self.clock, &mut SystemRng).await?;
        let (certificate, ours) = match source {
            Source::New(certificate) => (certificate, true),
            Source::Existing(certificate) => (certificate, false),
            Source::Missing(reason, sentence) => return Ok(Carried::waits(reason, sentence, CERTIFICATE_RETRY)),
        };
        let restful = match &rendered.restful_secret {
            Some(name) => {
                let secret = restful::obtain(&self.clients.reader, &known.mini_cluster, name, &mut SystemRng).await;
                Some(secret.map_err(super::apply::Error::from)?)
            }
            None => None,
        };
        let incarnation = Incarnation { certificate: &certificate, ours, restful: restful.as_ref(), deadline };
        // A watch that does not run is behind.
        let hidden = self.memory().may_hide_a_job(&known.mini_cluster, self.clock.mono())
            || !self.caches.jobs.condition().runs();
        if hidden && self.writes.job(&key).await?.is_some() {
            return Ok(Carried::untold(Some(SETTLING)));
        }
        if known.status().incarnation.is_some()
            && let Some(pod) = self.writes.lingering(&key, self.clock.wall()).await?
        {
            return Ok(Carried::waits(RESTARTING, lingering(&pod), LINGERING_RETRY));
        }
        match self.writes.create(known, rendered, incarnation).await {
            Err(error) => {
                let taken = error.taken().ok_or(error)?;
                let goes = taken.is_left_over(&key.name);
                let (reason, retry) = if goes { (LEFT_OVER, LEFT_OVER_RETRY) } else { (NAME_TAKEN, TAKEN_RETRY) };
                Ok(Carried::waits(reason, taken.sentence(), retry))
            }
            Ok((Creation::Exists, _)) => Ok(Carried::untold(Some(SETTLING))),
            Ok((Creation::Goes(object), _)) => {
                let sentence = format!(
                    "{object} of the last instance is being deleted, and another is made when it is gone: it waits for pods \
                     that use it"
                );
                Ok(Carried::waits(VOLUME_GOES, sentence, SETTLING))
            }
            Ok((Creation::Created(facts), without)) => {
                tracing::info!(mini_cluster = %key, incarnation = facts.uid, "created the Job");
                let change = traced::change(&self.traces, &*known.mini_cluster);
                self.traces.record(change.map(|(own, _)| {
                    spans::about(Span::part(&own, "create Job", began, self.clock.wall()), &known.mini_cluster)
                }));
                self.memory().of(&known.mini_cluster).created((*facts).clone(), self.clock.mono());
                if without.is_empty() {
                    // Jobs first: the status follows when all that wait for theirs have had their turn.
                    return Ok(Carried::untold(Some(Duration::ZERO)));
                }
                Ok(Carried { created: Some(*facts), ..Carried::default() }.without(Some(without)))
            }
        }
    }

    /// Writes the status, if it says something else than the last one, and the events that this is worth. Or says in how
    /// long, if that can wait.
    async fn tell(&self, view: &View, decision: &Decision, carried: Carried) -> Result<Option<Duration>, Error> {
        let known = &view.known;
        let current = &*known.mini_cluster;
        let job = carried.created.or_else(|| known.job.facts().cloned());
        let rank_map = rank_map(view, job.as_ref());
        let runs = job.as_ref().is_some_and(|job| !job.adopted && job.outcome.is_none());
        // The boot files of a Job that was made a moment ago are not read yet.
        if rank_map.is_none() && runs && view.settling {
            return Ok(Some(SETTLING));
        }
        let problems = match view.rendering.as_deref() {
            Ok(Err(problems)) => {
                problems.iter().map(|problem| (problem.reason.to_owned(), problem.to_string())).collect()
            }
            _ => Vec::new(),
        };
        let mut unsupported = view.rendered().map(|rendered| rendered.unsupported.clone()).unwrap_or_default();
        unsupported.extend(decision.deadline.told.clone());
        let has = job.as_ref().map(|job| (job.uid.as_str(), job.parallelism));
        // Bursts of peers are counted with their HostedBurst.
        let holds = if known.hosted.is_none() { self.gate.reservation(current, has) } else { None };
        let facts = Facts {
            mini_cluster: current,
            holds,
            job,
            deadline: known.job.deadline().flatten(),
            lead: known.lead.clone(),
            problems,
            waiting: decision.waiting.clone(),
            refused: decision.refused,
            unsupported,
            restart_required: decision.restart_required.clone(),
            restarting: decision.restarting,
            over: decision.over,
            without: carried.without,
            stays: decision.stays.clone(),
            held: decision.held.clone(),
            bursts: &known.bursts,
            rank_map: rank_map.as_deref(),
            peers: &self.caches.peer_uids(),
            credential_secret: Some(certificate::secret_name(known)),
            node_port: known.node_port(),
            load_balancer: known.load_balancer(),
        };
        let now = self.clock.wall();
        let status = compute(&facts, now);
        let last = known.status();
        if current.status.as_ref() == Some(&status) {
            return Ok(None);
        }
        if differ_by_progress(&current.spec, last, &status)
            && let Some(later) = self.memory().of(current).told_within(PACE, self.clock.mono())
        {
            return Ok(Some(later));
        }
        let version = self.writes.status(current, &status).await?;
        let began = self.memory().of(current).began(current.metadata.generation, now);
        if let Some(change) = traced::change(&self.traces, current) {
            self.traces.record(spans::spans(current, &status, change, (began, self.clock.wall())));
        }
        self.memory().of(current).written(version, status.clone(), self.clock.mono());
        for notice in notices(last, &status) {
            self.events.publish(current, notice).await;
        }
        Ok(None)
    }
}

/// The ranks of this Job, or, without one, those that the spec asks for: by the time that something is told of a Job, its spec may
/// ask for others. `None`: nobody knows them yet.
fn rank_map<'a>(view: &'a View, job: Option<&JobFacts>) -> Option<Cow<'a, RankMap>> {
    let parsed = |text: &String| RankMap::parse_canonical(text).ok().map(Cow::Owned);
    let (rendered, status) = (view.rendered().map(|rendered| &rendered.rank_map), view.known.status());
    let digest = job.and_then(|job| job.rank_map_digest.clone());
    let told = status.rank_map.as_ref().filter(|_| status.incarnation.as_ref() == job.map(|job| &job.uid));
    let frozen = view.frozen.as_ref().and_then(|boot| parsed(&boot.rank_map));
    frozen
        .or_else(|| rendered.filter(|map| digest == Some(map.digest().to_string())).map(Cow::Borrowed))
        .or_else(|| told.and_then(parsed))
        // Upstream's Job says nothing of its ranks.
        .or_else(|| rendered.filter(|_| digest.is_none()).map(Cow::Borrowed))
}

fn outcome(again: Option<Duration>) -> Outcome {
    again.map_or(Outcome::Done, Outcome::After)
}

fn is_conflict(error: &Error) -> bool {
    Cause::of(error).is_some_and(Cause::is_conflict)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tributary_api::minicluster::{MiniCluster, MiniClusterSpec, MiniClusterStatus};
    use tributary_render::Context;

    use super::*;
    use crate::dereference::{JobState, Known};

    /// The danger: a size that is written between a Job and its first status counts as one that the instance has ranks for.
    #[test]
    fn ranks_are_those_that_the_job_was_made_with() {
        let lake = |size: i32| {
            let mut lake = MiniCluster::new("lake", MiniClusterSpec { size: Some(size), ..Default::default() });
            lake.metadata.namespace = Some("waters".to_owned());
            lake.spec.containers = vec![Default::default()];
            lake
        };
        let rendered = |size| tributary_render::render(&lake(size), &Context::default());
        let made = rendered(2).unwrap();
        let job = JobFacts {
            uid: "j".to_owned(),
            rank_map_digest: Some(made.rank_map.digest().to_string()),
            ..JobFacts::default()
        };
        let view = |size, read: bool, told: Option<i32>| {
            let mut object = lake(size);
            object.status = told.map(|told| MiniClusterStatus {
                incarnation: Some("j".to_owned()),
                rank_map: Some(rendered(told).unwrap().boot.rank_map),
                ..MiniClusterStatus::default()
            });
            View {
                settling: !read,
                frozen: read.then(|| Arc::new(made.boot.clone())),
                ..View::alone(Known::alone(object, JobState::Absent), rendered(size))
            }
        };
        let ranks = |view: &View, job: Option<&JobFacts>| rank_map(view, job).map(|map| map.size());
        assert_eq!(ranks(&view(2, false, None), Some(&job)), Some(2));
        assert_eq!(ranks(&view(4, false, None), Some(&job)), None, "its boot files are not read yet");
        assert_eq!(ranks(&view(4, true, None), Some(&job)), Some(2));
        assert_eq!(ranks(&view(4, true, Some(4)), Some(&job)), Some(2), "an older agent has told another map");
        assert_eq!(ranks(&view(4, false, Some(2)), Some(&job)), Some(2));
        let next = JobFacts { uid: "k".to_owned(), ..job };
        assert_eq!(ranks(&view(4, false, Some(3)), Some(&next)), None, "that was of another Job");
        assert_eq!(ranks(&view(4, false, None), None), Some(4));
        let upstream = JobFacts { uid: "j".to_owned(), adopted: true, ..JobFacts::default() };
        assert_eq!(ranks(&view(4, false, None), Some(&upstream)), Some(4));
        assert_eq!(ranks(&view(4, false, Some(3)), Some(&upstream)), Some(3));
    }
}
