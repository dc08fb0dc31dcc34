//! When the lead broker is dialled, and what waits for that. Pure.

use std::net::SocketAddr;
use std::time::Duration;

use tributary_clock::Mono;
use tributary_contract::{Check, Finding};

use super::lead::{self, Seen};
use super::{AGAIN, LONGEST_WAIT, STARTING, TOLD_AFTER};

/// Whom to dial, and who must answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Where the lead broker is reached; the first one that takes a connection counts.
    pub ends: Vec<SocketAddr>,
    /// Through the agents' own connection: then our own agent takes the connection, and only an answer tells anything.
    pub tunnel: bool,
    /// Public key of the instance's certificate, in Z85.
    pub public_key: String,
}

/// What is remembered of dialling a lead.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Attempt {
    /// Nobody was dialled.
    #[default]
    None,
    /// It is being dialled.
    Going {
        target: Target,
        /// Since when.
        since: Mono,
        /// When it was dialled for the first time.
        first: Mono,
        before: Option<Seen>,
    },
    /// It was dialled.
    Done {
        target: Target,
        /// When it was over.
        at: Mono,
        /// When it was dialled for the first time.
        first: Mono,
        seen: Seen,
    },
}

/// What is so at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Circumstance<'a> {
    /// Brokers of the burst have all joined, as their probes say: nothing has to be dialled to know that they can.
    Joined,
    /// The nodes are simulated.
    Simulated,
    /// There is nobody to dial yet, because of this.
    Nobody(Trouble<'a>),
    /// Nobody must be dialled, because of this.
    Refused(Trouble<'a>),
    /// The lead can be dialled.
    Lead(&'a Target),
}

/// Why nobody is dialled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trouble<'a> {
    /// As it is said here.
    pub here: &'a str,
    /// As far as the peer is told.
    pub told: &'a str,
}

impl Trouble<'_> {
    /// There is nothing in it that the peer must not know.
    pub(crate) const fn open(text: &str) -> Trouble<'_> {
        Trouble { here: text, told: text }
    }
}

/// What follows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Course {
    /// Dial the target now.
    pub dials: bool,
    /// Pods wait.
    pub holds: bool,
    /// When to look again.
    pub wake: Option<Duration>,
    /// What is known of the lead.
    pub findings: Vec<Finding>,
    /// What the peer is told of it.
    pub told: Vec<Finding>,
}

impl Attempt {
    /// Takes in the moment, and says what follows.
    pub(crate) fn proceed(&mut self, circumstance: Circumstance<'_>, now: Mono) -> Course {
        let rests = |findings, told| Course { dials: false, holds: false, wake: None, findings, told };
        let target = match circumstance {
            Circumstance::Joined => return rests(joined(), joined()),
            Circumstance::Simulated => {
                let message = "the nodes of this cluster are simulated (kwok): no broker runs, and nothing is dialled";
                return rests(neither(message), neither(message));
            }
            Circumstance::Nobody(why) => return rests(neither(why.here), neither(why.told)),
            Circumstance::Refused(why) => return rests(lead::refused(why.here), lead::refused(why.told)),
            Circumstance::Lead(target) => target,
        };
        let (again, first, before) = match self {
            Self::Going { target: of, since, first, before } if of == target => {
                let waits = now.saturating_since(*since);
                (waits >= TOLD_AFTER + AGAIN, *first, before.clone())
            }
            Self::Done { target: of, at, first, seen } if of == target => {
                (*seen != Seen::Welcomed && now.saturating_since(*at) >= AGAIN, *first, Some(seen.clone()))
            }
            _ => (true, now, None),
        };
        if again {
            *self = Self::Going { target: target.clone(), since: now, first, before };
        }
        let (first, seen, next) = match self {
            Self::Going { since, first, before, .. } => (*first, before.as_ref(), *since + TOLD_AFTER + AGAIN),
            Self::Done { at, first, seen, .. } => (*first, Some(&*seen), *at + AGAIN),
            Self::None => unreachable!("it was begun above"),
        };
        let (passed, since) = (seen == Some(&Seen::Welcomed), now.saturating_since(first));
        let dialled = || neither("the lead broker is being dialled");
        let late = since >= STARTING;
        let findings = seen.map_or_else(dialled, |seen| seen.findings(target, late));
        let told = match seen {
            Some(seen) if passed || since >= TOLD_AFTER => seen.told(target, late),
            // Nobody learns from how soon an answer comes what it was.
            _ if since >= TOLD_AFTER => Seen::NoAnswer.told(target, late),
            _ => dialled(),
        };
        let steps = [first + LONGEST_WAIT, first + TOLD_AFTER, first + STARTING, next];
        let wake = steps.into_iter().map(|at| at.saturating_since(now)).filter(|left| !left.is_zero()).min();
        Course { dials: again, holds: !passed && since < LONGEST_WAIT, wake: wake.filter(|_| !passed), findings, told }
    }

    /// Takes in what was seen, if it is still about the one that is dialled.
    pub(crate) fn saw(&mut self, of: &Target, seen: Seen, at: Mono) {
        if let Self::Going { target, first, .. } = self
            && target == of
        {
            *self = Self::Done { target: target.clone(), at, first: *first, seen };
        }
    }
}

fn neither(why: &str) -> Vec<Finding> {
    [Check::LeadAddress, Check::Certificate].map(|check| Finding::unknown(check, why, "")).into()
}

fn joined() -> Vec<Finding> {
    let sentences = [
        (Check::LeadAddress, "the brokers have reached the lead broker"),
        (Check::Certificate, "the brokers have joined with the certificate of the instance"),
    ];
    sentences.map(|(check, sentence)| Finding::pass(check, sentence)).into()
}

#[cfg(test)]
mod tests {
    use tributary_contract::Outcome;

    use super::*;

    fn target(port: u16) -> Target {
        Target { ends: vec![([192, 0, 2, 7], port).into()], tunnel: false, public_key: "key".into() }
    }

    fn at(millis: u64) -> Mono {
        Mono::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn pods_wait_for_the_first_look_and_never_longer_than_its_limit() {
        let (mut attempt, lead) = (Attempt::default(), target(1));
        let course = attempt.proceed(Circumstance::Lead(&lead), at(0));
        assert!(course.dials && course.holds);
        assert_eq!(course.wake, Some(LONGEST_WAIT));
        let course = attempt.proceed(Circumstance::Lead(&lead), at(999));
        assert!(!course.dials && course.holds, "one dial at a time");
        let course = attempt.proceed(Circumstance::Lead(&lead), at(1_000));
        assert!(!course.dials && !course.holds, "whatever became of it");
        assert!(course.findings.iter().all(|finding| finding.outcome == Outcome::Unknown));
        // A task that never came back does not keep the next one away for ever.
        assert!(attempt.proceed(Circumstance::Lead(&lead), at(60_000)).dials);
    }

    #[test]
    fn what_failed_is_looked_at_again_without_holding_anything_and_keeps_its_word_meanwhile() {
        let (mut attempt, lead) = (Attempt::default(), target(1));
        attempt.proceed(Circumstance::Lead(&lead), at(0));
        attempt.saw(&lead, Seen::OtherCertificate("it holds another".into()), at(100));
        let course = attempt.proceed(Circumstance::Lead(&lead), at(100));
        assert_eq!((course.dials, course.holds), (false, true), "a wrong lead takes as long as one that is silent");
        let course = attempt.proceed(Circumstance::Lead(&lead), at(4_000));
        assert_eq!((course.dials, course.holds, course.wake), (false, false, Some(Duration::from_millis(11_100))));
        let failed = |course: &Course| course.findings.iter().any(|finding| finding.outcome == Outcome::Fail);
        assert!(failed(&course));
        let course = attempt.proceed(Circumstance::Lead(&lead), at(15_100));
        assert!(course.dials && !course.holds && failed(&course));
        attempt.saw(&lead, Seen::Welcomed, at(15_200));
        let course = attempt.proceed(Circumstance::Lead(&lead), at(15_200));
        assert_eq!((course.dials, course.wake), (false, None), "all is well: nobody asks again");
        assert!(course.findings.iter().all(|finding| finding.outcome == Outcome::Pass));
    }

    #[test]
    fn another_lead_is_dialled_at_once_and_an_answer_of_the_one_before_does_not_count() {
        let (mut attempt, before, now) = (Attempt::default(), target(1), target(2));
        attempt.proceed(Circumstance::Lead(&before), at(0));
        assert!(attempt.proceed(Circumstance::Lead(&now), at(50)).dials);
        attempt.saw(&before, Seen::Welcomed, at(60));
        assert!(attempt.proceed(Circumstance::Lead(&now), at(60)).findings[0].outcome == Outcome::Unknown);
    }

    #[test]
    fn a_lead_that_refuses_may_be_starting_until_it_should_have_started() {
        let (mut attempt, lead) = (Attempt::default(), target(1));
        attempt.proceed(Circumstance::Lead(&lead), at(0));
        attempt.saw(&lead, Seen::Refused, at(10));
        let outcome =
            |attempt: &mut Attempt, millis| attempt.proceed(Circumstance::Lead(&lead), at(millis)).findings[0].outcome;
        assert_eq!(outcome(&mut attempt, 20), Outcome::Unknown);
        assert_eq!(outcome(&mut attempt, 60_000), Outcome::Fail);
    }

    #[test]
    fn what_a_peer_is_told_and_when_depends_on_whether_its_lead_was_reached_and_on_nothing_else() {
        let lead = target(1);
        // When a look was over, and what it saw.
        let looks = [
            (None, 0),
            (Some(Seen::Refused), 5),
            (Some(Seen::Ended), 30),
            (Some(Seen::OtherCertificate("HTTP".into())), 400),
            (Some(Seen::NoWay("no route to host".into())), 1_200),
            (Some(Seen::Silent), 3_000),
            (Some(Seen::NoAnswer), 3_000),
        ];
        let told = |(seen, over): (Option<Seen>, u64)| -> Vec<_> {
            let mut attempt = Attempt::default();
            let moments = (0..700).map(|tenth| tenth * 100);
            let each = moments.map(|millis| {
                let course = attempt.proceed(Circumstance::Lead(&lead), at(millis));
                if let Some(seen) = seen.clone().filter(|_| millis >= over) {
                    attempt.saw(&lead, seen, at(millis));
                }
                (course.holds, course.told)
            });
            each.collect()
        };
        let [first, others @ ..] = looks;
        let expected = told(first);
        for look in others {
            assert!(told(look.clone()) == expected, "{look:?}");
        }
        let text = format!("{expected:?}");
        assert!(!text.contains("192.0.2.7"), "{text}");
    }

    #[test]
    fn nothing_is_dialled_where_it_would_say_nothing() {
        let nobody = Circumstance::Nobody(Trouble::open("no address yet"));
        let refused = Circumstance::Refused(Trouble::open("it is ours"));
        for circumstance in [Circumstance::Joined, Circumstance::Simulated, nobody, refused] {
            let course = Attempt::default().proceed(circumstance, at(0));
            assert!(!course.dials && !course.holds && course.wake.is_none(), "{circumstance:?}");
            let passed = course.findings.iter().all(|finding| finding.outcome == Outcome::Pass);
            assert_eq!(passed, circumstance == Circumstance::Joined);
        }
    }
}
