//! What keeps a pass from being finished, in words for the user: pure.

use std::time::Duration;

use tributary_clock::{Backoff, Mono};
use tributary_cluster::error::{Cause, chain};

use super::controller::Error;
use super::dereference::Known;

/// Why a MiniCluster without a Job gets none: the API server refuses a part of it, or does not answer.
pub(crate) const CANNOT_CREATE: &str = "CannotCreate";

/// Why a running instance does not follow its spec, or what was taken from it is not restored.
pub(crate) const CANNOT_MAINTAIN: &str = "CannotMaintain";

/// How long the words of one refusal stay: servers write times and numbers into theirs, and each status is a request.
const SAME_WORDS: Duration = Duration::from_secs(10);

/// What keeps a pass from being finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// [`CANNOT_CREATE`] or [`CANNOT_MAINTAIN`].
    pub reason: &'static str,
    /// What failed, on which object, the server's own words, and what to do.
    pub sentence: String,
    /// Somebody has to do something: that it is tried again helps only then.
    pub lasts: bool,
    /// That is room in a ResourceQuota.
    pub quota: bool,
}

/// The last refusal of one MiniCluster.
#[derive(Debug)]
pub(super) struct Refused {
    generation: Option<i64>,
    /// When its words were told.
    told: Mono,
    refusal: Refusal,
    /// How often it was refused, and when last.
    times: u32,
    last: Mono,
}

impl Refusal {
    /// What this error means for this MiniCluster.
    pub(crate) fn of(error: &Error, known: &Known) -> Self {
        let cause = Cause::of(error);
        let lasts = cause.is_none_or(|cause| !cause.is_transient());
        let reason = if known.job.facts().is_some() { CANNOT_MAINTAIN } else { CANNOT_CREATE };
        let sentence = match cause.map(what_to_do) {
            Some(advice) => format!("{}; {advice}", chain(error)),
            None => chain(error),
        };
        let quota = cause.is_some_and(Cause::is_quota);
        Self { reason, sentence, lasts, quota }
    }
}

impl Refused {
    /// Remembers a refusal. Returns what to tell: the words of before, if those are young.
    pub(super) fn again(last: &mut Option<Self>, refusal: Refusal, generation: Option<i64>, now: Mono) -> Refusal {
        let before = last.take().filter(|last| last.generation == generation);
        let times = before.as_ref().map_or(0, |before| before.times).saturating_add(1);
        let young = |before: &Self| {
            (before.refusal.reason, before.refusal.lasts) == (refusal.reason, refusal.lasts)
                && now.saturating_since(before.told) < SAME_WORDS
        };
        let now_told = match before {
            Some(before) if young(&before) => Self { times, last: now, ..before },
            _ => Self { generation, told: now, refusal, times, last: now },
        };
        last.insert(now_told).refusal.clone()
    }

    /// What was missing may be there now: it is tried again at once.
    pub(super) fn try_again(&mut self) {
        self.times = 0;
    }

    /// The refusal, as long as it is about this generation; and how long it is not tried again, because somebody has to do
    /// something first. Who stands in line for room would be tried whenever it is let in.
    pub(super) fn stands(&self, generation: Option<i64>, now: Mono) -> Option<(&Refusal, Duration)> {
        let waits = self.refusal.lasts && self.times > 0;
        let delay = if waits { Backoff::default().delay(self.times, 0.0) } else { Duration::ZERO };
        let left = delay.saturating_sub(now.saturating_since(self.last));
        (self.generation == generation).then_some((&self.refusal, left))
    }
}

/// What somebody has to do about it.
pub(super) fn what_to_do(cause: &Cause) -> &'static str {
    let has = |text: &str| matches!(cause, Cause::Refused { message, .. } if message.contains(text));
    let is_policy = cause.is_of_policy() || has("violates PodSecurity");
    match cause {
        _ if cause.is_quota() => {
            "free some of that quota, or have the ResourceQuota raised; it is tried again a few seconds after that"
        }
        _ if has("is being terminated") => "its namespace is being deleted: nothing new is made there",
        _ if has("failed calling webhook") => "have that webhook mended or removed; it is tried again",
        _ if is_policy => {
            "change the MiniCluster so that this policy takes it, or ask who looks after the policy; it is tried again"
        }
        // By an admission plugin of the API server; a right would be named as one that somebody lacks.
        _ if cause.is_denied() && has(" is forbidden: ") && !has(" cannot ") => {
            "make what is missing there, or change the field that names it; it is tried again"
        }
        _ if cause.is_denied() => {
            "the agent has not this right: have the ClusterRoles of its chart put back as they are; it is tried again"
        }
        _ if cause.is_conflict() => "somebody else changed it at the same moment; it is tried again",
        _ if cause.is_transient() => "the API server is slow or away; it is tried again",
        _ if cause.is_not_found() => "what it refers to is not there; it is tried again",
        _ => "the API server does not take this object: change the field that it names",
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use tributary_cluster::error::RequestError;
    use tributary_cluster::fence::FenceError;

    use super::*;

    fn advice(code: u16, message: &str) -> &'static str {
        what_to_do(&Status { code, message: message.into(), ..Status::default() }.into())
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        for (code, message, told) in [
            (
                403,
                "secrets \"lake-curve\" is forbidden: exceeded quota: none, requested: secrets=1",
                "ResourceQuota raised",
            ),
            (403, "pods \"lake-0\" is forbidden: violates PodSecurity \"restricted:latest\"", "looks after the policy"),
            (400, "admission webhook \"names.example\" denied the request: no", "looks after the policy"),
            (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "looks after the policy"),
            (403, "jobs.batch is forbidden: User \"tributary\" cannot create resource \"jobs\"", "ClusterRoles"),
            (403, "pods \"lake-services\" is forbidden: no PriorityClass with name high was found", "what is missing"),
            (403, "unable to create new content in namespace hpc because it is being terminated", "being deleted"),
            (409, "the object has been modified", "at the same moment"),
            (422, "Job.batch \"lake\" is invalid: spec.parallelism", "change the field"),
            (500, "Internal error occurred: failed calling webhook \"w\": context deadline exceeded", "webhook mended"),
            (500, "etcdserver: request timed out", "slow or away"),
            (404, "priorityclasses \"high\" not found", "refers to"),
        ] {
            assert!(advice(code, message).contains(told), "{code} {message}: {}", advice(code, message));
        }
        assert!(what_to_do(&Cause::Fenced(FenceError::NotLeading)).contains("slow or away"));
    }

    #[test]
    fn words_that_change_with_each_attempt_are_told_once_in_a_while() {
        let at = |secs| Mono::from_start(Duration::from_secs(secs));
        let refusal =
            |sentence: &str| Refusal { reason: CANNOT_CREATE, sentence: sentence.into(), lasts: true, quota: false };
        let mut last = None;
        let mut told = |sentence: &str, generation, now| {
            Refused::again(&mut last, refusal(sentence), Some(generation), at(now)).sentence
        };
        assert_eq!(told("at 1", 1, 0), "at 1");
        assert_eq!(told("at 2", 1, 1), "at 1");
        assert_eq!(told("of another spec", 2, 2), "of another spec");
        assert_eq!(told("at 30", 2, 30), "at 30");
        assert!(last.unwrap().stands(Some(1), at(30)).is_none());
    }

    #[test]
    fn what_is_refused_again_and_again_is_tried_less_often() {
        let at = |millis| Mono::from_start(Duration::from_millis(millis));
        let mut last = None;
        let mut waits = |lasts, now| {
            Refused::again(
                &mut last,
                Refusal { reason: CANNOT_CREATE, sentence: String::new(), lasts, quota: false },
                Some(1),
                at(now),
            );
            last.as_ref().unwrap().stands(Some(1), at(now)).unwrap().1.as_millis()
        };
        assert_eq!([waits(true, 0), waits(true, 1), waits(true, 2)], [100, 200, 400]);
        assert_eq!(waits(false, 3), 0, "the API server was slow");
        let mut refused = last.unwrap();
        assert_eq!(refused.stands(Some(1), at(9000)).unwrap().1, Duration::ZERO);
        refused.refusal.lasts = true;
        assert!(!refused.stands(Some(1), at(4)).unwrap().1.is_zero());
        refused.try_again();
        assert_eq!(refused.stands(Some(1), at(4)).unwrap().1, Duration::ZERO, "there may be room now");
    }

    #[test]
    fn the_servers_words_and_the_object_are_told() {
        let cause = Cause::from(Status { code: 422, message: "spec.x: no".into(), ..Status::default() });
        let error = Error::from(super::super::apply::Error::from(RequestError::new("create", "Job hpc/lake", cause)));
        assert!(chain(&error).starts_with("failed to create Job hpc/lake: spec.x: no"), "{}", chain(&error));
        assert!(Cause::of(&error).is_some_and(Cause::is_invalid));
    }
}
