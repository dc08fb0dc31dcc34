//! What the API server does not take now, and may take later: which FluxJobs wait for that, and when they are tried again.
//!
//! It is in memory only: a new leader tries at once.

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_clock::{Backoff, Mono};
use tributary_cluster::error::chain;
use tributary_cluster::{ObjectKey, RequestError};

/// What is told of one whose `kind` is refused, and that keeps its place: others hold what it needs, and do not for ever; or
/// the agent lacks a right, or a policy is wrong, and the next one in line would fail as well. `None`: it has to end. `patience`:
/// how long it waits for another policy.
pub(super) fn sentence(kind: &str, error: &RequestError, patience: Duration) -> Option<String> {
    let (cause, words) = (error.cause(), chain(error));
    if cause.is_quota() {
        return Some(format!("its {kind} waits for room in a ResourceQuota: {words}"));
    }
    let how = match cause.is_of_rights() {
        true => "have the ClusterRoles of the agent's chart put back as they are",
        false if cause.is_of_policy() && !patience.is_zero() => "have that policy mended, or change the FluxJob",
        false => return None,
    };
    Some(format!("its {kind} cannot be made now: {words}: {how}; it is tried again"))
}

/// The last tries, by FluxJob.
#[derive(Debug, Default)]
pub(super) struct QuotaWaits(BTreeMap<ObjectKey, Tried>);

#[derive(Debug)]
struct Tried {
    /// UID of the FluxJob: another one of its name is tried at once.
    uid: Option<String>,
    /// What to tell.
    sentence: String,
    /// How often in a row, and when last. None: there may be room now.
    times: u32,
    last: Mono,
}

impl QuotaWaits {
    /// There was no room. Returns in how long it is tried again, and whether this is news.
    pub(super) fn refused(
        &mut self,
        key: &ObjectKey,
        uid: Option<String>,
        sentence: String,
        now: Mono,
    ) -> (Duration, bool) {
        let before = self.0.remove(key).filter(|before| before.uid == uid);
        let times = before.as_ref().map_or(0, |before| before.times).saturating_add(1);
        let tried = Tried { uid, sentence, times, last: now };
        let left = tried.left(now);
        self.0.insert(key.clone(), tried);
        (left, before.is_none())
    }

    /// What is told of one that waits, and how long it is not tried yet.
    pub(super) fn stands(&self, key: &ObjectKey, uid: Option<&str>, now: Mono) -> Option<(String, Duration)> {
        let tried = self.0.get(key).filter(|tried| tried.uid.as_deref() == uid)?;
        Some((tried.sentence.clone(), tried.left(now)))
    }

    /// There may be room now.
    pub(super) fn try_again(&mut self, key: &ObjectKey) {
        if let Some(tried) = self.0.get_mut(key) {
            tried.times = 0;
        }
    }

    /// It was made.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }

    /// Of these alone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ObjectKey) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }
}

impl Tried {
    fn left(&self, now: Mono) -> Duration {
        let delay = if self.times > 0 { Backoff::default().delay(self.times, 0.0) } else { Duration::ZERO };
        delay.saturating_sub(now.saturating_since(self.last))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    /// The danger: one wrong policy, for two minutes, ends every FluxJob that it reaches.
    #[test]
    fn what_has_nothing_to_do_with_a_job_is_waited_for_and_a_policy_for_a_while() {
        let told = |code, message: &str, left| {
            let cause = Status { code, message: message.into(), ..Status::default() };
            sentence("MiniCluster", &RequestError::new("make", "MiniCluster hpc/a", cause), Duration::from_secs(left))
        };
        let policy = "admission webhook \"w\" denied the request: no";
        for (code, message, how) in [
            (403, "forbidden: exceeded quota: team", "waits for room"),
            (403, "x is forbidden: User \"u\" cannot create resource \"x\"", "ClusterRoles"),
            (400, policy, "policy mended"),
            (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "policy mended"),
        ] {
            let told = told(code, message, 1).unwrap();
            assert!(told.contains(message) && told.contains(how), "{told}");
        }
        assert_eq!(told(400, policy, 0), None, "it holds room that others could have");
        assert_eq!(told(422, "spec.size: Invalid value", 1), None);
        assert!(told(403, "exceeded quota", 0).is_some());
    }

    #[test]
    fn one_without_room_is_tried_less_and_less_often_and_at_once_when_there_may_be_some() {
        let key = ObjectKey::namespaced("hpc", "lammps");
        let at = |millis| Mono::from_start(Duration::from_millis(millis));
        let uid = || Some("1".to_owned());
        let mut waits = QuotaWaits::default();
        assert_eq!(waits.stands(&key, Some("1"), at(0)), None);
        let mut tried = |now| {
            let (left, first) = waits.refused(&key, uid(), format!("at {now}"), at(now));
            (left.as_millis(), first)
        };
        assert_eq!([tried(0), tried(1), tried(2)], [(100, true), (200, false), (400, false)]);
        let stands = |waits: &QuotaWaits, uid, now| {
            waits.stands(&key, Some(uid), at(now)).map(|(told, left)| (told, left.as_millis()))
        };
        assert_eq!(stands(&waits, "1", 102), Some(("at 2".to_owned(), 300)));
        assert_eq!(stands(&waits, "2", 102), None, "another of its name");
        waits.try_again(&key);
        assert_eq!(stands(&waits, "1", 102), Some(("at 2".to_owned(), 0)), "it tells so until it is made");
        waits.forget(&key);
        assert_eq!(stands(&waits, "1", 103), None);
        waits.refused(&key, uid(), "no".to_owned(), at(104));
        waits.retain(|_| false);
        assert_eq!(stands(&waits, "1", 105), None);
    }
}
