//! What MiniClusters hold of a quota: what they were let in with, whatever their specs say since. Pure.
//!
//! A spec changes at any time; what runs stays as it was started until it is started anew. So whoever was let in with four
//! brokers holds room for four: neither a larger spec nor a smaller one changes that before the instance does. What has ended
//! holds nothing, and asks like everybody if it is to run once more.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize as _;
use serde_json::Value;
use tributary_api::labels::condition;
use tributary_api::minicluster::{MiniCluster, MiniClusterSpec, MiniClusterStatus, Phase};
use tributary_cluster::{ObjectKey, conditions};

use super::limits;
use super::requests::Requests;

/// Whether a MiniCluster has run to its end.
pub(super) fn has_ended(found: &MiniCluster) -> bool {
    found.status.as_ref().is_some_and(|status| {
        matches!(status.phase, Some(Phase::Succeeded | Phase::Failed))
            || conditions::is_true(&status.conditions, condition::FINISHED)
    })
}

/// What a MiniCluster was let in with.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// What it may take.
    pub room: Requests,
    /// For how many seconds, if others may plan on that.
    pub limit: Option<i64>,
    /// When that time began: at the start of its first Job.
    pub since: Option<Timestamp>,
    /// The incarnation that had ended before: until there is another one, its status speaks of that end.
    after: Option<String>,
    /// It is started anew with less: with this, and the incarnation before that.
    next: Option<(Requests, Option<String>)>,
}

impl Reservation {
    /// That of one that is let in as its spec is.
    pub(crate) fn of(found: &MiniCluster) -> Self {
        let after = incarnation(found).filter(|_| has_ended(found)).cloned();
        Self { after, limit: limit_of(found), ..Self::with(Requests::of_mini_cluster(&found.spec)) }
    }

    /// The same, for no more than so many seconds.
    pub(super) fn within(self, limit: Option<i64>) -> Self {
        Self { limit: limits::shorter(self.limit, limits::foreseen(limit)), ..self }
    }

    pub(super) fn with(room: Requests) -> Self {
        Self { room, limit: None, since: None, after: None, next: None }
    }

    /// Its time is over: that which it was let in for, or what its spec says now.
    fn is_spent(&self, found: &MiniCluster, now: Timestamp) -> bool {
        let limit = limits::shorter(self.limit, limit_of(found));
        limit.zip(self.since).is_some_and(|(limit, since)| now.duration_since(since).as_secs() >= limit)
    }

    /// What was let in has ended.
    fn is_over(&self, found: &MiniCluster) -> bool {
        has_ended(found) && self.after.as_ref() != incarnation(found)
    }

    /// What it may be started anew with.
    fn most(&self) -> &Requests {
        self.next.as_ref().map_or(&self.room, |(next, _)| next)
    }
}

/// The holds of one leader's scope, by UID. `None`: it holds nothing, or runs since before, and nobody knows with what.
///
/// What one holds is in its status, so that whoever leads next knows it; and what one gives up is given to others only when its
/// status, as the caches show it, says so. So what all statuses claim together is never more than there is, whenever an agent
/// ends.
#[derive(Debug, Default)]
pub(super) struct Reservations(BTreeMap<String, Option<Reservation>>);

impl Reservations {
    /// It was let in.
    pub(super) fn give(&mut self, uid: &str, hold: Reservation) {
        self.0.insert(uid.to_owned(), Some(hold));
    }

    /// It may have as many brokers as this.
    pub(super) fn grow(&mut self, uid: &str, brokers: i64) {
        if let Some(Some(hold)) = self.0.get_mut(uid) {
            hold.room = hold.room.of_brokers(brokers);
            if let Some((next, _)) = &mut hold.next {
                *next = next.of_brokers(brokers);
            }
        }
    }

    /// It holds nothing, whatever is shown of it.
    pub(super) fn lose(&mut self, uid: &str) {
        self.0.insert(uid.to_owned(), None);
    }

    /// Nobody counts what it takes.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether nobody has looked at one yet.
    fn is_new(&self, uid: &str) -> bool {
        !self.0.contains_key(uid)
    }

    /// Looks at one that nobody has looked at yet.
    pub(super) fn see_first(&mut self, uid: &str, found: &MiniCluster) {
        if self.is_new(uid) {
            self.see(uid, found);
        }
    }

    /// Whether one may be started with what it holds: it has not ended, has time left, and wants no more. What it wants less is
    /// free once its status says that it has been started.
    pub(super) fn admit(&mut self, uid: &str, found: &MiniCluster, now: Timestamp) -> bool {
        let wanted = Requests::of_mini_cluster(&found.spec);
        match self.0.get_mut(uid) {
            Some(Some(hold)) if !hold.is_over(found) && !hold.is_spent(found, now) && hold.most().holds(&wanted) => {
                if *hold.most() != wanted {
                    hold.next = Some((wanted, incarnation(found).cloned()));
                }
                true
            }
            _ => false,
        }
    }

    /// A Job of one has started at this moment. Since when its time counts, where that is known.
    pub(super) fn starts(&mut self, uid: &str, start: Timestamp) -> Option<Timestamp> {
        let hold = self.0.get_mut(uid)?.as_mut()?;
        Some(*hold.since.get_or_insert(start))
    }

    /// Follows what a cache shows of one. Whether what it was let in with has ended: then it holds nothing.
    pub(super) fn see(&mut self, uid: &str, found: &MiniCluster) -> bool {
        let Some(status) = &found.status else { return false };
        if has_ended(found) {
            let over = self.0.get(uid).is_none_or(|known| known.as_ref().is_none_or(|hold| hold.is_over(found)));
            if over {
                self.lose(uid);
            }
            return over;
        }
        if self.is_new(uid) && status.incarnation.is_some() {
            self.0.insert(uid.to_owned(), recorded(found).or_else(|| as_shown(found)));
        }
        if let Some(Some(hold)) = self.0.get_mut(uid) {
            if let Some((next, before)) = &hold.next
                && status.incarnation != *before
            {
                (hold.room, hold.next) = (*next, None);
            }
            // Shrinking frees once the status speaks of that spec and the Job has shrunk, which it does not where the spec is not
            // valid; and where nobody had to ask for a while, it may have grown.
            let brokers = hold.room.brokers.min(found.spec.size().into()).max(status.size.into());
            if brokers != hold.room.brokers && brokers > 0 && is_up_to_date(found) {
                hold.room = hold.room.of_brokers(brokers);
            }
        }
        false
    }

    /// What the status of one has to say that it holds, given UID and parallelism of its Job: no more than its spec asks for, and
    /// no less than its Job has.
    pub(super) fn told(&self, found: &MiniCluster, job: Option<(&str, i32)>) -> Option<Requests> {
        let hold = self.0.get(found.metadata.uid.as_deref()?)?.as_ref()?;
        let room = match &hold.next {
            Some((next, before)) if job.is_some_and(|(uid, _)| Some(uid) != before.as_deref()) => next,
            _ => &hold.room,
        };
        let has = job.map_or(0, |(_, parallelism)| parallelism.into());
        Some(room.of_brokers(room.brokers.min(found.spec.size().into()).max(has)))
    }

    /// What one holds, where that is known.
    pub(super) fn of(&self, uid: &str) -> Option<&Reservation> {
        self.0.get(uid)?.as_ref()
    }

    /// What each holds, where that is known.
    pub(super) fn all(&self) -> BTreeMap<String, Reservation> {
        self.0.iter().filter_map(|(uid, hold)| Some((uid.clone(), hold.clone()?))).collect()
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, alive: &BTreeSet<String>) {
        self.0.retain(|uid, _| alive.contains(uid));
    }
}

/// What one holds by its status, unless it has ended.
pub(super) fn on_record(found: &MiniCluster) -> Option<Requests> {
    let told = found.status.as_ref()?.holds.as_ref()?;
    Requests::of_usage(told).filter(|room| room.brokers > 0 && !has_ended(found))
}

/// One that cannot be read: what it holds, as its status says it.
pub(super) fn unread(key: &ObjectKey, uid: Option<String>, status: &Value) -> Option<MiniCluster> {
    let status = MiniClusterStatus::deserialize(status).ok()?;
    let brokers = i32::try_from(status.holds.as_ref()?.brokers).ok();
    let mut found = MiniCluster::new(&key.name, MiniClusterSpec { size: brokers, ..MiniClusterSpec::default() });
    (found.metadata.namespace, found.metadata.uid, found.status) = (key.namespace.clone(), uid, Some(status));
    Some(found)
}

/// The same, with its time.
fn recorded(found: &MiniCluster) -> Option<Reservation> {
    let status = found.status.as_ref()?;
    let (limit, since) = (status.admitted_seconds, status.began.as_ref().map(|Time(began)| *began));
    Some(Reservation { limit, since, ..Reservation::with(on_record(found)?) })
}

/// Whether its status speaks of its spec.
fn is_up_to_date(found: &MiniCluster) -> bool {
    found.status.as_ref().is_some_and(|status| status.observed_generation == found.metadata.generation)
}

/// What one takes that runs since before anybody counted, and whose status does not say it: known only if it runs as its spec
/// is. Otherwise it stands in line before it is started anew.
fn as_shown(found: &MiniCluster) -> Option<Reservation> {
    let status = found.status.as_ref()?;
    let is =
        |type_: &str, word: &str| conditions::find(&status.conditions, type_).is_some_and(|one| one.status == word);
    let runs = matches!(status.phase, Some(Phase::Starting | Phase::Running | Phase::Suspended)) && status.size > 0;
    let up_to_date = is_up_to_date(found) && is(condition::VALID, "True") && is(condition::RESTART_REQUIRED, "False");
    let brokers = i64::from(status.size);
    (runs && up_to_date).then(|| Reservation::with(Requests::of_mini_cluster(&found.spec).of_brokers(brokers)))
}

/// Seconds that its spec says, if others may plan on them.
fn limit_of(found: &MiniCluster) -> Option<i64> {
    limits::foreseen(limits::of_mini_cluster(&found.spec))
}

fn incarnation(found: &MiniCluster) -> Option<&String> {
    found.status.as_ref()?.incarnation.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tributary_cluster::conditions::Statement;

    use super::*;
    use crate::testing::{at, object};

    /// A MiniCluster of so many brokers with so many cores each, and its status.
    fn shown(size: i32, cores: i32, status: Value) -> MiniCluster {
        let mut whole = json!({"size": 0, "selector": "", "jobid": "", "maximumSize": 0});
        whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        let spec = json!({"size": size, "containers": [{"cores": cores}]});
        object("lake", 0, json!({"uid": "u", "generation": 2, "spec": spec, "status": whole}))
    }

    fn runs(needs_restart: bool, observed: i64) -> Value {
        let restart =
            Statement { status: Some(needs_restart), ..Statement::holds(condition::RESTART_REQUIRED, "R", "") };
        let said = conditions::merged(&[], [Statement::holds(condition::VALID, "R", ""), restart], None, at(0));
        json!({"phase": "Running", "incarnation": "one", "size": 4, "observedGeneration": observed, "conditions": said})
    }

    fn given(size: i32, cores: i32) -> Reservations {
        let mut holds = Reservations::default();
        holds.give("u", Reservation::of(&shown(size, cores, json!({}))));
        holds
    }

    fn room(holds: &Reservations) -> Requests {
        holds.of("u").unwrap().room
    }

    #[test]
    fn whose_time_is_over_stands_in_line_before_it_is_started_anew() {
        let found = |deadline: i64, began: Option<i64>| {
            let told = json!({"miniClusters": 1, "brokers": 4, "cpu": "8", "memory": "0", "gpus": 0});
            let mut status = json!({"phase": "Restarting", "incarnation": "one", "holds": told});
            if let Some(began) = began {
                status["began"] = at(began).to_string().into();
                status["admittedSeconds"] = deadline.into();
            }
            let mut found = shown(4, 2, status);
            found.spec.deadline_seconds = Some(deadline);
            found
        };
        let mut holds = Reservations::default();
        holds.give("u", Reservation::of(&found(600, None)));
        assert!(holds.admit("u", &found(600, None), at(1 << 31)), "it has not begun");
        assert_eq!((holds.starts("u", at(1000)), holds.starts("u", at(1500))), (Some(at(1000)), Some(at(1000))));
        let mut admits = |deadline, now| holds.admit("u", &found(deadline, None), at(now));
        assert!(admits(600, 1599) && !admits(600, 1600), "it began at 1000 s");
        assert!(!admits(60, 1599), "it says less now");
        assert!(
            admits(6000, 1599) && !admits(6000, 1600) && !admits(0, 1600),
            "it was let in for 600 s, whatever it says now"
        );
        let mut endless = Reservations::default();
        endless.give("u", Reservation::of(&found(31_500_000, None)));
        endless.starts("u", at(1000));
        assert!(endless.admit("u", &found(0, None), at(1 << 31)), "there is no limit that counts");
        let job = Reservation::of(&found(0, None)).within(Some(60));
        assert_eq!(
            (job.limit, job.clone().within(None).limit, job.within(Some(5)).limit),
            (Some(60), Some(60), Some(5))
        );
        // Whoever leads next knows it as well.
        let mut next = Reservations::default();
        next.see_first("u", &found(600, Some(1000)));
        assert_eq!(next.of("u").unwrap().since, Some(at(1000)));
        assert_eq!(next.starts("u", at(1500)), Some(at(1000)));
        assert!(!next.admit("u", &found(600, None), at(1600)));
        assert_eq!(next.starts("unknown", at(1500)), None);
    }

    #[test]
    fn who_runs_is_started_anew_with_what_it_holds_and_no_more() {
        let between = json!({"phase": "Restarting", "incarnation": "one", "size": 4});
        for (size, cores, may) in
            [(4, 2, true), (3, 2, true), (4, 1, true), (5, 2, false), (4, 3, false), (1, 9, false)]
        {
            let mut holds = given(4, 2);
            assert_eq!(
                holds.admit("u", &shown(size, cores, between.clone()), at(0)),
                may,
                "{size} brokers of {cores} cores"
            );
        }
        let mut holds = given(4, 2);
        assert!(holds.admit("u", &shown(2, 2, between.clone()), at(0)));
        assert!(!holds.admit("u", &shown(4, 2, between), at(0)), "what it did not want is free soon");
        assert!(!Reservations::default().admit("u", &shown(1, 1, json!({})), at(0)), "nobody let it in");
    }

    #[test]
    fn what_has_ended_holds_nothing_until_it_is_let_in_again() {
        let ended = |incarnation: &str| json!({"phase": "Failed", "incarnation": incarnation});
        let mut holds = given(4, 2);
        assert!(!holds.admit("u", &shown(4, 2, ended("one")), at(0)), "nobody has looked yet");
        assert!(holds.see("u", &shown(4, 2, ended("one"))) && holds.all().is_empty());
        holds.give("u", Reservation::of(&shown(4, 2, ended("one"))));
        assert!(!holds.see("u", &shown(4, 2, ended("one"))), "that was the run before");
        assert!(holds.admit("u", &shown(4, 2, ended("one")), at(0)));
        assert!(!holds.see("u", &shown(4, 2, json!({"phase": "Starting", "incarnation": "two", "size": 4}))));
        assert!(holds.see("u", &shown(4, 2, ended("two"))));
        // Its Job is being deleted: that it ended is not said any more.
        assert!(!holds.see("u", &shown(4, 2, json!({"phase": "Restarting", "incarnation": "two", "size": 4}))));
        assert!(!holds.admit("u", &shown(4, 2, json!({"phase": "Restarting", "incarnation": "two"})), at(0)));
    }

    #[test]
    fn a_spec_changes_nothing_of_what_runs_but_its_size() {
        let brokers = |holds: &Reservations| room(holds).brokers;
        let mut holds = given(4, 2);
        let seen = |holds: &mut Reservations, size, cores| holds.see("u", &shown(size, cores, runs(true, 2)));
        seen(&mut holds, 64, 1);
        assert_eq!((brokers(&holds), room(&holds).milli_cores), (4, 8000));
        holds.grow("u", 6);
        assert_eq!((brokers(&holds), room(&holds).milli_cores), (6, 12_000));
        seen(&mut holds, 5, 2);
        assert_eq!(brokers(&holds), 5, "shrinking frees at once");
    }

    #[test]
    fn what_one_gives_up_is_free_once_its_status_says_so() {
        let brokers = |holds: &Reservations| room(holds).brokers;
        let status = |incarnation: &str, observed: i64| {
            let mut status = runs(false, observed);
            status["incarnation"] = incarnation.into();
            status
        };
        let mut holds = given(4, 2);
        holds.see("u", &shown(2, 2, status("one", 1)));
        assert_eq!(brokers(&holds), 4, "its status is of the spec before");
        let found = shown(2, 2, status("one", 2));
        holds.see("u", &found);
        assert_eq!(brokers(&holds), 4, "its Job has not shrunk");
        let told = |job| holds.told(&found, job).unwrap().brokers;
        assert_eq!((told(Some(("one", 4))), told(Some(("one", 2)))), (4, 2), "it is said before it is free");
        let mut shrunk = found.clone();
        shrunk.status.as_mut().unwrap().size = 2;
        holds.see("u", &shrunk);
        assert_eq!(brokers(&holds), 2);
        // Started anew with one core less for each broker.
        let cores = |room: Requests| room.milli_cores / 1000;
        let mut holds = given(4, 2);
        let found = shown(4, 1, status("one", 2));
        assert!(holds.admit("u", &found, at(0)));
        holds.see("u", &found);
        let told = |holds: &Reservations, job| cores(holds.told(&found, job).unwrap());
        assert_eq!((cores(room(&holds)), told(&holds, None), told(&holds, Some(("one", 4)))), (8, 8, 8));
        assert_eq!(told(&holds, Some(("two", 4))), 4, "it is said before it is free");
        holds.see("u", &shown(4, 1, status("two", 2)));
        assert_eq!(cores(room(&holds)), 4);
    }

    #[test]
    fn who_ran_before_is_known_by_its_status_however_old_that_is() {
        let held = |size: i32, cores: i32, status: Value, told: Value| {
            let mut status = status;
            status["holds"] = told;
            let (mut holds, found) = (Reservations::default(), shown(size, cores, status));
            holds.see("u", &found);
            let room = holds.of("u").map(|Reservation { room, .. }| (room.brokers, room.milli_cores));
            (room, holds.admit("u", &found, at(0)))
        };
        let eight = json!({"miniClusters": 1, "brokers": 4, "cpu": "8", "memory": "0", "gpus": 0});
        let restarts = json!({"phase": "Restarting", "incarnation": "one", "observedGeneration": 1});
        let all = Some((4, 8000));
        assert_eq!(held(4, 2, restarts.clone(), eight.clone()), (all, true), "it is between two Jobs");
        assert_eq!(held(4, 1, runs(true, 1), eight.clone()), (all, true), "its spec has changed since, and wants less");
        assert_eq!(held(6, 2, restarts.clone(), eight.clone()), (all, false), "more than that has to wait");
        assert_eq!(held(4, 3, runs(true, 2), eight.clone()), (all, false));
        let ended = json!({"phase": "Failed", "incarnation": "one"});
        assert_eq!(held(4, 2, ended, eight), (None, false));
        for nothing in [json!(null), json!({"brokers": 4, "cpu": "?", "memory": "0"})] {
            assert_eq!(held(4, 2, restarts.clone(), nothing), (None, false));
        }
    }

    #[test]
    fn without_that_who_ran_before_is_known_only_if_it_runs_as_its_spec_is() {
        let known = |size, status| {
            let mut holds = Reservations::default();
            holds.see("u", &shown(size, 2, status));
            holds.of("u").map(|Reservation { room, .. }| room.brokers)
        };
        assert_eq!(known(4, runs(false, 2)), Some(4));
        assert_eq!(known(6, runs(false, 2)), Some(4), "it waits for two more");
        assert_eq!(known(4, runs(true, 2)), None);
        assert_eq!(known(64, runs(false, 1)), None, "the status is of the spec before");
        let mut holds = Reservations::default();
        holds.see("u", &shown(64, 2, runs(true, 2)));
        holds.see("u", &shown(64, 2, runs(false, 2)));
        assert!(holds.all().is_empty(), "what was not known at first is not guessed later");
    }
}
