//! One agent of a cluster leads: the loop around the Lease.
//!
//! `kube-leader-election` speaks to the API server, [`election`](super::election) decides, and what comes out is published
//! to the [`Fence`] and to everybody who runs only while leading.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tributary_api::labels::{TERM_BEFORE, WATCHED_NAMESPACES};
use tributary_clock::{Now, Rng, SharedClock};

use super::client::{Clients, WRITE_LIMIT};
use super::election::{Answer, Call, Election, Timing, claimed, given_up, is_same_term, renewed};
use super::error::{Cause, RequestError, chain};
use super::fence::{Fence, LeaderState};

/// The times of the election.
pub(crate) const TIMING: Timing = Timing {
    lease: Duration::from_secs(8),
    margin: Duration::from_secs(1),
    renew_every: Duration::from_secs(4),
    look_every: Duration::from_millis(1500),
    retry_after: Duration::from_millis(500),
};

/// What one call to the Lease may take.
const CALL_LIMIT: Duration = Duration::from_secs(2);

const VALIDITY_MS: u128 = TIMING.lease.as_millis() - TIMING.margin.as_millis();
const _: () = {
    // A renewal that gets no answer leaves time for another before leadership ends.
    assert!(TIMING.renew_every.as_millis() + CALL_LIMIT.as_millis() < VALIDITY_MS);
    // A write just before a renewal is not refused.
    assert!(TIMING.renew_every.as_millis() + WRITE_LIMIT.as_millis() < VALIDITY_MS);
    // The lock writes whole seconds.
    assert!(TIMING.lease.subsec_nanos() == 0);
};

/// Where the Lease is and under which name we hold it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidacy {
    /// Namespace of the Lease: the agent's own.
    pub namespace: String,
    /// Name of the Lease.
    pub lease: String,
    /// Our name in it, unique per process: see [`holder`].
    pub holder: String,
    /// The namespaces whose objects we work on; none: those of the whole cluster. The Lease says so while we hold it.
    pub watches: Vec<String>,
}

/// A holder's name that no other process has: where it runs, and 64 random bits.
pub fn holder(instance: &str, rng: &mut impl Rng) -> String {
    format!("{instance}_{:016x}", rng.next_u64())
}

/// Takes part in the election until it is stopped.
pub struct Elector {
    leases: Api<Lease>,
    lock: LeaseLock,
    candidacy: Candidacy,
    election: Election,
    state: watch::Sender<LeaderState>,
    fence: Fence,
    clock: SharedClock,
    trouble: Option<String>,
    /// The newest resource version of the Lease.
    newest: u64,
}

/// The API server knows less than it did. What an agent remembers of it, in caches that go on with their watches too, was
/// never so.
#[derive(Debug, thiserror::Error)]
#[error(
    "Lease {lease} has the resource version {now}, and had {before}: the API server was restored from a backup, so this agent \
     ends and starts anew"
)]
pub struct Restored {
    lease: String,
    before: u64,
    now: u64,
}

impl Elector {
    /// A candidate. `state` and `fence` come from [`Fence::closed`]; `clients` were made with that fence.
    pub fn new(
        clients: &Clients,
        candidacy: Candidacy,
        state: watch::Sender<LeaderState>,
        fence: Fence,
        clock: SharedClock,
    ) -> Self {
        let params = LeaseLockParams {
            lease_name: candidacy.lease.clone(),
            holder_id: candidacy.holder.clone(),
            lease_ttl: TIMING.lease,
        };
        Self {
            leases: Api::namespaced(clients.lease.clone(), &candidacy.namespace),
            lock: LeaseLock::new(clients.lease.clone(), &candidacy.namespace, params),
            election: Election::new(candidacy.holder.clone(), TIMING),
            candidacy,
            state,
            fence,
            clock,
            trouble: None,
            newest: 0,
        }
    }

    /// Runs until `stop` is cancelled; then closes the fence, waits for the writes that are in flight, and gives the Lease
    /// up, so that another agent can lead at once. End the leader's scope first.
    ///
    /// # Errors
    /// [`Restored`]: the process must end.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Restored> {
        let mut restored = Ok(());
        while !stop.is_cancelled() {
            let started = Now::of(&*self.clock);
            let call = self.election.next();
            let answer = tokio::select! {
                answer = self.ask(call) => answer,
                () = stop.cancelled() => break,
            };
            restored = self.look(&answer);
            if restored.is_err() {
                break;
            }
            let wait = self.take_in(started, answer);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
        }
        self.step_down().await;
        restored
    }

    /// Resource versions only grow, and the Lease is never read from a cache.
    fn look(&mut self, answer: &Answer) -> Result<(), Restored> {
        let Answer::Lease(lease) = answer else { return Ok(()) };
        let Some(now) = lease.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()) else {
            return Ok(());
        };
        match std::mem::replace(&mut self.newest, now) {
            before if before > now => Err(Restored { lease: self.candidacy.lease.clone(), before, now }),
            _ => Ok(()),
        }
    }

    async fn ask(&mut self, call: Call) -> Answer {
        let answer = match tokio::time::timeout(CALL_LIMIT, self.call(call)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("the API server did not answer within {CALL_LIMIT:?}")),
        };
        match answer {
            Ok(answer) => {
                self.trouble = None;
                answer
            }
            Err(trouble) => {
                if self.trouble.as_ref() != Some(&trouble) {
                    let Candidacy { namespace, lease, .. } = &self.candidacy;
                    tracing::warn!(%namespace, %lease, error = trouble, "the leader's Lease could not be used");
                }
                self.trouble = Some(trouble);
                Answer::Failed
            }
        }
    }

    async fn call(&self, call: Call) -> Result<Answer, String> {
        let words = |error: kube::Error| chain(&Cause::from(error));
        match call {
            Call::Observe => {
                let lease = self.leases.get_opt(&self.candidacy.lease).await.map_err(words)?;
                Ok(lease.map_or(Answer::Absent, |lease| Answer::Lease(Box::new(lease))))
            }
            Call::Claim(lease) => {
                let mut ours = claimed(*lease, &self.candidacy.holder, TIMING.lease, self.clock.wall());
                let annotations = ours.metadata.annotations.get_or_insert_default();
                annotations.insert(WATCHED_NAMESPACES.to_owned(), in_words(&self.candidacy.watches));
                match self.leases.replace(&self.candidacy.lease, &PostParams::default(), &ours).await {
                    Ok(lease) => Ok(Answer::Lease(Box::new(lease))),
                    // Another candidate was faster: that is what elections are for.
                    Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Answer::Failed),
                    Err(error) => Err(words(error)),
                }
            }
            Call::Renew(mut lease) => {
                let name = &self.candidacy.lease;
                loop {
                    let ours = renewed(*lease.clone(), self.clock.wall());
                    match self.leases.replace(name, &PostParams::default(), &ours).await {
                        Ok(lease) => return Ok(Answer::Lease(Box::new(lease))),
                        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(Answer::Absent),
                        Err(kube::Error::Api(status)) if status.is_conflict() => {}
                        Err(error) => return Err(words(error)),
                    }
                    // An annotation was written, or the answer to the last renewal was lost, or another took it over.
                    let Some(newest) = self.leases.get_opt(name).await.map_err(words)? else {
                        return Ok(Answer::Absent);
                    };
                    if !is_same_term(&newest, &lease) {
                        return Ok(Answer::Lease(Box::new(newest)));
                    }
                    *lease = newest;
                }
            }
            Call::Create => match self.lock.try_acquire_or_renew().await {
                Ok(LeaseLockResult::Acquired(lease) | LeaseLockResult::NotAcquired(lease)) => {
                    Ok(Answer::Lease(Box::new(lease)))
                }
                Err(error) => Err(lock_words(error)),
            },
        }
    }

    /// The answer is judged and published in one step: nobody finds leadership over and then goes on in the same epoch.
    /// Returns how long to wait.
    fn take_in(&mut self, started: Now, answer: Answer) -> Duration {
        let epoch = |state: &LeaderState| match state {
            LeaderState::Leading(leadership) => Some(leadership.epoch.clone()),
            LeaderState::Standby { .. } => None,
        };
        let mut wait = Duration::ZERO;
        self.state.send_if_modified(|state| {
            wait = self.election.on_answer(started, Now::of(&*self.clock), answer);
            let new = self.election.state();
            match (epoch(state), epoch(&new)) {
                (old, Some(new)) if old.as_ref() != Some(&new) => {
                    tracing::info!(holder = new.holder, transitions = new.transitions, "this agent leads its cluster");
                }
                (Some(_), None) => tracing::warn!(?new, "this agent no longer leads its cluster"),
                _ => {}
            }
            std::mem::replace(state, new.clone()) != new
        });
        wait
    }

    async fn step_down(self) {
        self.state.send_replace(LeaderState::default());
        if !self.election.may_hold() {
            return;
        }
        if tokio::time::timeout(WRITE_LIMIT, self.fence.drained()).await.is_err() {
            tracing::warn!("a write is still in flight; the Lease is left to expire");
            return;
        }
        match tokio::time::timeout(CALL_LIMIT, self.give_up()).await {
            Ok(Ok(())) => tracing::info!("the leader's Lease was given up"),
            Ok(Err(error)) => tracing::warn!(%error, "the Lease was not given up; it expires"),
            Err(_) => tracing::warn!("giving up the Lease took too long; it expires"),
        }
    }

    /// Gives the Lease up, if it is ours as it was read: a request that is late must not take it from who holds it by then.
    async fn give_up(&self) -> Result<(), Cause> {
        let name = &self.candidacy.lease;
        let Some(lease) = self.leases.get_opt(name).await? else { return Ok(()) };
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
        if holder == Some(&self.candidacy.holder) {
            self.leases.replace(name, &PostParams::default(), &given_up(lease, self.clock.wall())).await?;
        }
        Ok(())
    }
}

fn lock_words(error: kube_leader_election::Error) -> String {
    use kube_leader_election::Error;
    match error {
        Error::GetLease(error)
        | Error::CreateLease(error)
        | Error::AcquireLease(error)
        | Error::RenewLease(error)
        | Error::ReleaseLease(error)
        | Error::Kube(error) => chain(&Cause::from(error)),
        Error::ApiError { response } => chain(&Cause::from(*response)),
        other => other.to_string(),
    }
}

/// What a term takes over from the one before: losses of contact that nobody has dated yet.
#[derive(Clone)]
pub struct Handover {
    before: Option<Timestamp>,
    leases: Api<Lease>,
    lease: String,
}

impl Handover {
    /// The handover to a term that began with `before` ([`Term::before`](super::scope::Term::before)).
    pub fn new(clients: &Clients, namespace: &str, lease: &str, before: Option<Timestamp>) -> Self {
        Self { before, leases: Api::namespaced(clients.writer.clone(), namespace), lease: lease.to_owned() }
    }

    /// When the leader before renewed the Lease for the last time, by its own clock. Nothing that is not dated was
    /// heard of after that.
    pub fn before(&self) -> Option<Timestamp> {
        self.before
    }

    /// Every loss of contact is dated where it belongs: the next term counts from the renewals of this one.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn settle(&self) -> Result<(), RequestError> {
        let note = json!({"metadata": {"annotations": {(TERM_BEFORE): null}}});
        let settled = self.leases.patch_metadata(&self.lease, &PatchParams::default(), &Patch::Merge(&note)).await;
        let failed = |error| RequestError::new("settle", format!("Lease {}", self.lease), error);
        settled.map(drop).map_err(failed)
    }
}

/// Who holds a Lease that is not ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignHolder {
    /// Namespace of the Lease.
    pub namespace: String,
    /// `spec.holderIdentity`.
    pub holder: String,
    /// The namespaces whose objects it works on, if it is an agent that says so; none: those of the whole cluster.
    pub watches: Option<Vec<String>>,
}

/// Namespaces, as the annotation has them.
fn in_words(watches: &[String]) -> String {
    if watches.is_empty() { "*".to_owned() } else { watches.join(",") }
}

/// Who holds a Lease `name` of others: renewed, and expired by no more than `clocks` may differ, by the wall clock `now`. We
/// never write it.
///
/// # Errors
/// What the API server says.
pub async fn lease_holders(
    reader: &Client,
    name: &str,
    now: Timestamp,
    clocks: Duration,
) -> Result<Vec<ForeignHolder>, RequestError> {
    let leases: Api<Lease> = Api::all(reader.clone());
    let found = leases
        .list(&ListParams::default().fields(&format!("metadata.name={name}")))
        .await
        .map_err(|error| RequestError::new("look for", format!("Lease {name}"), error))?;
    Ok(found.items.iter().filter_map(|lease| holder_at(lease, now, clocks)).collect())
}

fn holder_at(lease: &Lease, now: Timestamp, clocks: Duration) -> Option<ForeignHolder> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
    let lasts = jiff::SignedDuration::from_secs(spec.lease_duration_seconds?.into());
    let ends = spec.renew_time.as_ref()?.0.checked_add(lasts).ok()?.checked_add(clocks).ok()?;
    let watches =
        lease.metadata.annotations.as_ref().and_then(|all| all.get(WATCHED_NAMESPACES)).map(|all| match &**all {
            "*" => Vec::new(),
            some => some.split(',').map(str::to_owned).collect(),
        });
    let namespace = lease.metadata.namespace.clone().unwrap_or_default();
    (now < ends).then_some(ForeignHolder { namespace, holder, watches })
}

#[cfg(test)]
mod tests;
