//! A FluxJob that was sent to a peer: how it fares there, how it ends, and how it comes back.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::flux_job::{FluxJobStatus, JobPhase, JobReturn, JobSent};
use tributary_api::hosted_burst::{BurstPhase, BurstRun};
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::conditions::Statement;

use super::end::{first_refused, refused_by_policy};
use super::{ADMITTED, Draft, End, Missing, SUSPENDED, Terms, Then, logs};
use crate::overflow::{self, Start};

impl Draft<'_> {
    /// It was sent: its Burst says how it fares.
    pub(super) fn sent(&mut self, burst: Option<&Burst>, terms: Terms<'_>) -> Vec<Statement> {
        let known = self.status.sent.clone().unwrap_or_default();
        let Some(burst) = burst else {
            if !known.phase.is_empty() {
                self.bereft(Missing::Burst, "its Burst was deleted");
                return Vec::new();
            }
            return match self.start(Start::Sent(known), terms) {
                Ok(_) => first_refused(&self.status).map(|_| refused_by_policy()).into_iter().collect(),
                Err(sentence) => self.step_aside("Invalid", &sentence).into(),
            };
        };
        let said = burst.status.clone().unwrap_or_default();
        let run = said.run.clone().unwrap_or_default();
        // Until its Burst was looked at, it is meant for whom it was.
        let meant = known.peer.filter(|_| said.observed_generation.is_none());
        self.status.peer = said.peer.clone().or(meant);
        self.status.sent = Some(JobSent {
            peer: self.status.peer.clone(),
            burst: burst.name_any(),
            phase: said.phase.to_string(),
            namespace: run.namespace.clone(),
            mini_cluster: run.mini_cluster.clone(),
        });
        let peer = said.peer.as_deref().unwrap_or("no peer yet");
        if !run.namespace.is_empty() && !run.mini_cluster.is_empty() {
            let BurstRun { namespace, mini_cluster: name, .. } = &run;
            self.status.logs = format!("{} # in cluster {peer}", logs(namespace, name));
        }
        if run.started {
            self.status.started.get_or_insert(Time(self.now));
        }
        if self.has_ended_elsewhere(burst) {
            return Vec::new();
        }
        let cancelled = burst.annotations().contains_key(labels::CANCEL);
        let cancelled = cancelled.then(|| "somebody took it back with agentctl burst cancel".to_owned());
        let suspended = self.job.spec.suspend.then(|| SUSPENDED.to_owned());
        if let Some(why) = cancelled.or(suspended).or_else(|| overflow::unplaced(burst)) {
            self.status.returned = overflow::thrown_out(self.status.returned.as_ref(), burst);
            self.recall(why);
            return Vec::new();
        }
        let up = run.started && said.peer.is_some();
        if !up {
            // A peer that let go of it may have run it for a while; it begins anew elsewhere.
            self.status.started = None;
        }
        self.status.phase = if up { JobPhase::Running } else { JobPhase::Ready };
        self.status.message = match said.phase {
            BurstPhase::Ready if up => format!("its instance is up on {peer}"),
            _ if said.message.is_empty() => format!("it is sent to {peer}"),
            _ => said.message,
        };
        Vec::new()
    }

    /// Whether its run on a peer came to an end: then it has ended, whatever becomes of its Burst.
    pub(super) fn has_ended_elsewhere(&mut self, burst: &Burst) -> bool {
        let said = burst.status.clone().unwrap_or_default();
        let run = said.run.unwrap_or_default();
        let Some(succeeded) = run.succeeded else { return false };
        self.status.exit_code = run.exit_code;
        let end = if succeeded { End::Succeeded } else { End::Failed };
        let peer = said.peer.as_deref().or(self.status.peer.as_deref()).unwrap_or("no peer");
        let message = if run.message.is_empty() { said.message } else { format!("{peer}: {}", run.message) };
        self.finish(end, message);
        self.tidy(None, Some(burst));
        true
    }

    /// It is being taken back: once nothing of it is left, here or elsewhere, it stands in line again.
    pub(super) fn recalled(&mut self, ours: Option<&MiniCluster>, burst: Option<&Burst>) -> Vec<Statement> {
        let uid_of = |metadata: &ObjectMeta| metadata.uid.clone().filter(|_| metadata.deletion_timestamp.is_none());
        if let Some(burst) = burst {
            // Its peer was cut off, and tells only now that it had run to its end by then: it is not run again.
            if self.has_ended_elsewhere(burst) {
                return Vec::new();
            }
            let said = burst.status.as_ref();
            let phase = said.map(|status| status.phase);
            if let (Some(sent), Some(phase)) = (&mut self.status.sent, phase) {
                sent.phase = phase.to_string();
            }
            // As long as a peer has it, and may be away.
            let there = said.filter(|said| said.peer.is_some() && !said.message.is_empty());
            if let (Some(said), Some(why)) = (there, &self.status.recalled) {
                self.status.message = format!("it is taken back: {why}; {}", said.message);
            }
            let released = burst.spec.release && phase == Some(BurstPhase::Released);
            self.then = match uid_of(&burst.metadata) {
                Some(uid) if released => Then::DeleteBurst(uid),
                Some(uid) if !burst.spec.release => Then::ReleaseBurst(uid),
                _ => Then::Nothing,
            };
            return Vec::new();
        }
        if let Some(ours) = ours {
            if self.finish_if_ended(ours) {
                return Vec::new();
            }
            self.then = uid_of(&ours.metadata).map_or(Then::Nothing, Then::DeleteMiniCluster);
            return Vec::new();
        }
        self.without = if self.status.sent.is_some() { vec![Missing::Burst] } else { vec![Missing::MiniCluster] };
        // Who deletes its Burst before that was released leaves nobody to say that it runs no more.
        if self.status.sent.as_ref().is_some_and(|sent| sent.phase != "Released") {
            self.finish(End::Cancelled, "its Burst was deleted".into());
            return Vec::new();
        }
        let why = self.status.recalled.take().unwrap_or_default();
        // That its user suspended it is nobody's refusal.
        let suspended = why == SUSPENDED;
        let returned = match (suspended, self.status.returned.take()) {
            (true, before) => before,
            (false, before) => {
                let uid = self.job.metadata.uid.as_deref().unwrap_or_default();
                Some(overflow::returned(before.as_ref(), uid, &why, self.now))
            }
        };
        // Whoever asked for it by now has been heard.
        let retry = self.job.annotations().get(labels::RETRY).cloned();
        let returned = returned.map(|returned| JobReturn { retry: retry.or(returned.retry), ..returned });
        self.status = FluxJobStatus {
            phase: JobPhase::Waiting,
            message: format!("it stands in line again: {why}"),
            returned,
            conditions: std::mem::take(&mut self.status.conditions),
            observed_generation: self.status.observed_generation,
            ..FluxJobStatus::default()
        };
        vec![Statement::fails(ADMITTED, if suspended { "Suspended" } else { "CameBack" }, why)]
    }

    /// It has ended elsewhere: its logs are kept there for a while, and nothing is told of where they are no more.
    pub(super) fn tidy_sent(&mut self, burst: Option<&Burst>, since: Timestamp) {
        if overflow::logs_are_gone(burst) && !self.status.logs.is_empty() {
            let peer = self.status.peer.as_deref().unwrap_or("its peer");
            self.status.logs = format!("# gone: nothing of it is kept in cluster {peer} any more");
        }
        let there = burst.filter(|burst| burst.metadata.deletion_timestamp.is_none());
        let left = overflow::logs_are_kept(self.job, since, self.now);
        match (there.and_then(ResourceExt::uid), left) {
            (Some(uid), Some(Duration::ZERO)) => self.then = Then::DeleteBurst(uid),
            (Some(_), Some(left)) => self.wake = Some(left),
            _ => {}
        }
    }
}
