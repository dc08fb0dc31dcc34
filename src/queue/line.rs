//! All objects of a namespace, sorted by what they take of its room, or wait for. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::FluxSetupSpec;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels::reason;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_cluster::caches::{controller_of, controller_uid};
use tributary_render::nodes::Gang;

use super::claims::Claim;
use super::hosted_usage::{self, Reserved};
use super::job::{self, Stage};
use super::limits;
use super::nodes::gang_of;
use super::overflow::{self, Start};
use super::priorities::Refused;
use super::requests::Requests;
use super::reservations::{self, Reservation};
use super::round::{Candidate, Namespace, View, Who};
use super::schedule::{Away, Running, Waiting};

/// The line, and what stands before it.
#[derive(Default)]
pub(super) struct Line<'a> {
    pub(super) running: Vec<Running>,
    /// The brokers of what runs.
    pub(super) gangs: Vec<Gang>,
    pub(super) waiting: Vec<Waiting<Who>>,
    /// What those that wait want.
    pub(super) wanted: BTreeMap<Who, (Wanted<'a>, Gang)>,
    /// Those that stand in no line, since their PriorityClass is refused, and why.
    pub(super) refused: Vec<(Who, String)>,
    /// UIDs of MiniClusters that asked, and stand in no line: their FluxJob did.
    pub(super) passes: Vec<(String, Reservation)>,
    /// What bursts of each peer take.
    pub(super) guests: BTreeMap<String, Requests>,
}

/// Whose spec the nodes are asked about.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    MiniCluster(&'a MiniCluster),
    Job(&'a FluxJob),
}

/// Sorts everything of a namespace by what it takes, or waits for.
pub(super) fn classify<'a>(view: &View<'a>, candidates: &[Candidate<'a>], setup: &FluxSetupSpec) -> Line<'a> {
    let (mut line, seen) = (Line::default(), view.seen);
    // A whole instance of a peer that has ended takes nothing.
    for hosted in seen.hosted.iter().filter(|hosted| !hosted.has_ended()) {
        let (spec, since) = (&hosted.spec, created(&hosted.metadata.creation_timestamp));
        let wanted = hosted_usage::wanted(spec);
        let gang = gang_of(&hosted.namespace().unwrap_or_default(), &spec.slot, &wanted);
        line.guest(&spec.peer, hosted_usage::room_for(spec, &wanted), since, gang);
    }
    for (name, Reserved { peer, wanted, room }) in view.reserved {
        let namespace = seen.setup.as_ref().and_then(|setup| setup.namespace()).unwrap_or_default();
        line.guest(peer, *room, seen.now, gang_of(&namespace, name, wanted));
    }
    let of_jobs: BTreeMap<&str, &Candidate<'a>> = candidates
        .iter()
        .filter_map(|candidate| match candidate.stage {
            Stage::Follows(found, _) => Some((found.metadata.uid.as_deref()?, candidate)),
            _ => None,
        })
        .collect();
    // What a HostedBurst makes counts with that.
    let guests: BTreeSet<(Option<&str>, Option<&str>)> = (seen.hosted.iter())
        .filter_map(|hosted| Some((Some(hosted.spec.slot.as_str()), Some(hosted.metadata.uid.as_deref()?))))
        .collect();
    for found in &seen.look.mini_clusters {
        if !guests.contains(&(found.metadata.name.as_deref(), controller_uid(&**found))) {
            let of = of_jobs.get(found.metadata.uid.as_deref().unwrap_or_default());
            line.mini_cluster(seen, setup, found, of.copied());
        }
    }
    for candidate in candidates {
        line.job(seen, setup, candidate);
    }
    line
}

impl<'a> Line<'a> {
    /// A burst of a peer: it was let in, and nobody knows when it ends.
    fn guest(&mut self, peer: &str, room: Requests, since: Timestamp, gang: Gang) {
        *self.guests.entry(peer.to_owned()).or_default() += room;
        self.gangs.push(gang);
        self.running.push(Running { room, since, until: None });
    }

    /// A MiniCluster, with the FluxJob that made it.
    fn mini_cluster(
        &mut self,
        seen: &Namespace,
        setup: &FluxSetupSpec,
        found: &'a MiniCluster,
        of: Option<&Candidate<'_>>,
    ) {
        let (look, uid) = (&seen.look, found.uid().unwrap_or_default());
        let let_in = look.granted.contains_key(&uid);
        let asks = look.asked.contains(&uid) && !let_in;
        // What has ended takes nothing, unless it is to run once more.
        if reservations::has_ended(found) && !asks && !let_in {
            return;
        }
        let (room, came) = (Requests::of_mini_cluster(&found.spec), created(&found.metadata.creation_timestamp));
        let limit = limits::of_mini_cluster(&found.spec);
        let by_job = of.and_then(|of| {
            let since = admitted(seen, of)?;
            (!asks || job::lets_in(of.job, &of.start, found)).then_some(since)
        });
        if asks && by_job.is_none() {
            // It gives up what it held, and has not said so yet: nobody else gets that meanwhile.
            if let Some(room) = reservations::on_record(found) {
                self.running.push(Running { room, since: came, until: None });
            }
            let key = Who::MiniCluster(uid);
            if found.metadata.deletion_timestamp.is_none()
                && let Some(priority) = self.priority(&key, seen.priorities.of_mini_cluster(&found.spec, setup))
            {
                let (turn, away) = (turn(&found.name_any()), Away::Nowhere);
                let one = Waiting { key, room, priority, since: came, turn, limit, away, grows: None };
                self.waits(one, Wanted::MiniCluster(found), gang(found));
            }
        } else if by_job.is_some() || let_in || has_job(found) || is_on_its_way(found) {
            let hold = look.held.get(&uid);
            let (held, began) = hold.map_or((room, None), |hold| (hold.room, hold.since));
            let since = began.or(by_job).or(look.granted.get(&uid).copied()).unwrap_or(came);
            let limit = limits::shorter(limit, hold.and_then(|hold| hold.limit));
            // While it may not grow, it is as large as it was.
            let growing = look.growing.get(&uid).filter(|growing| i64::from(growing.has) < room.brokers);
            // It runs as it was started, and may grow only if it asks.
            let has = growing.map_or(held.brokers, |growing| i64::from(growing.has));
            self.gangs.push(Gang { brokers: u32::try_from(has).unwrap_or(0), ..gang(found) });
            self.running.push(Running { room: held.of_brokers(has), since, until: until(since, limit) });
            if let Some(growing) = growing.filter(|_| found.metadata.deletion_timestamp.is_none()) {
                let room = held.of_more(room.brokers - has);
                let more = Gang { brokers: u32::try_from(room.brokers).unwrap_or(0), ..gang(found) };
                let one = Waiting {
                    key: Who::Growth(uid.clone()),
                    room,
                    priority: seen.priorities.of_mini_cluster(&found.spec, setup).unwrap_or(0),
                    since: growing.since,
                    turn: turn(&found.name_any()),
                    limit: None,
                    away: Away::Nowhere,
                    grows: Some(self.running.len() - 1),
                };
                self.waits(one, Wanted::MiniCluster(found), more);
            }
            if asks {
                let limit = of.and_then(|of| limits::of_job(of.job, limits::longest(setup)));
                self.passes.push((uid, Reservation::of(found).within(limit)));
            }
        }
    }

    /// A FluxJob. Once there is a MiniCluster, that is what takes room, or waits for it.
    fn job(&mut self, seen: &Namespace, setup: &FluxSetupSpec, candidate: &Candidate<'a>) {
        let Candidate { job, uid, stage: Stage::LinesUp(Ok(claim)), start } = candidate else { return };
        let (room, limit) = (claim.room, limits::of_job(job, limits::longest(setup)));
        if let Some(since) = admitted(seen, candidate) {
            let Claim { room, gang, .. } = match start {
                Start::Here => (**claim).clone(),
                Start::Split(split) => claim.local(split),
                // Nothing of it is here.
                Start::Sent(_) => return,
            };
            self.gangs.push(gang);
            self.running.push(Running { room, since, until: until(since, limit) });
        } else if job.metadata.deletion_timestamp.is_none() && !job.spec.suspend {
            let key = Who::Job(uid.clone());
            let Some(priority) = self.priority(&key, seen.priorities.of_job(job, setup)) else { return };
            let (since, turn) = (created(&job.metadata.creation_timestamp), turn(&job.name_any()));
            let away = overflow::away(setup, job, seen.now);
            let one = Waiting { key, room, priority, since, turn, limit, away, grows: None };
            self.waits(one, Wanted::Job(job), claim.gang.clone());
        }
    }

    fn waits(&mut self, one: Waiting<Who>, wanted: Wanted<'a>, gang: Gang) {
        self.wanted.insert(one.key.clone(), (wanted, gang));
        self.waiting.push(one);
    }

    /// The priority of one; `None`: it stands in no line, since that is refused.
    fn priority(&mut self, key: &Who, priority: Result<i32, Refused>) -> Option<i32> {
        priority.map_err(|refused| self.refused.push((key.clone(), refused.to_string()))).ok()
    }
}

/// Since when a FluxJob is let in.
fn admitted(seen: &Namespace, Candidate { job, uid, .. }: &Candidate<'_>) -> Option<Timestamp> {
    let granted = seen.look.granted.get(uid).copied();
    let on_record = job.status.as_ref().and_then(|status| status.admitted.as_ref()).map(|Time(since)| *since);
    on_record.or(granted).filter(|_| job::is_admitted(job, granted.is_some()))
}

/// When something ends at the latest, if others may plan on that.
fn until(since: Timestamp, limit: Option<i64>) -> Option<Timestamp> {
    let ends = |limit| since.checked_add(jiff::SignedDuration::from_secs(limit)).unwrap_or(Timestamp::MAX);
    limits::foreseen(limit).map(ends)
}

/// The order of those that came in the same second: by name, and by the numbers in it as numbers. Whoever makes many at once
/// counts them that way.
fn turn(name: &str) -> String {
    let mut turn = String::with_capacity(name.len() + 2);
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let digits = first.is_ascii_digit();
        let (run, more) = rest.split_at(rest.find(|next: char| next.is_ascii_digit() != digits).unwrap_or(rest.len()));
        let run = if digits { run.trim_start_matches('0') } else { run };
        if digits {
            // The longer number is the larger one. Names have no such characters.
            turn.extend(u32::try_from(run.len()).ok().and_then(char::from_u32));
        }
        turn.push_str(run);
        rest = more;
    }
    turn
}

fn gang(of: &MiniCluster) -> Gang {
    gang_of(&of.namespace().unwrap_or_default(), &of.name_any(), &of.spec)
}

/// It has a Job, or had one and is between two; one that is refused has none, and remembers the last incarnation only. What is
/// left of a hosted burst counts until it is gone.
fn has_job(found: &MiniCluster) -> bool {
    let status = found.status.as_ref().filter(|status| status.phase != Some(Phase::Refused));
    status.is_some_and(|status| status.incarnation.is_some()) || controller_of::<HostedBurst>(found).is_some()
}

/// It waited under another leader, who may have let it through: it counts until it asks again.
fn is_on_its_way(found: &MiniCluster) -> bool {
    let conditions = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|condition| condition.status == "False" && condition.reason == reason::QUEUED)
}

/// When something was made; what says nothing comes last.
pub(super) fn created(at: &Option<Time>) -> Timestamp {
    at.as_ref().map_or(Timestamp::MAX, |Time(at)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["b", "run-10", "run-9", "run-2b", "run", "2-run", "run-2a", "10-run", "run-010x"];
        names.sort_by_key(|name| turn(name));
        assert_eq!(names, ["2-run", "10-run", "b", "run", "run-2a", "run-2b", "run-9", "run-10", "run-010x"]);
    }
}
