//! The election's decisions, without its requests.
//!
//! `kube-leader-election` creates the Lease and gives it up. What it does not do safely is decided here:
//!
//! - *Taking over and renewing.* Its patch carries no resource version, so that two candidates can both believe they won,
//!   and it reads the Lease before each renewal. We replace the Lease that we know, with its resource version: one wins, and
//!   a renewal is one request. That also repairs a Lease that is empty.
//! - *Expiry.* It compares clocks of different machines. We take a Lease for abandoned when it was not renewed for its
//!   duration on *our* monotonic clock since we first saw it so. One that was deleted or emptied counts as held for as long:
//!   its holder learns of that with its next renewal.
//! - *What was before.* Whoever takes a Lease over overwrites its last renewal, which others date losses from. It is
//!   kept in an annotation, until the leader says that it is needed no more: a leader that ends before that changes
//!   nothing.
//! - *Acting.* Leadership begins after two renewals that returned our own holder and transitions in the Lease that we
//!   claimed, and lasts until the start of the last such call + duration − margin. An answer with anything else ends it at
//!   once. A renewal that is answered after its end is not used: the Lease is claimed again, as a new epoch.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tributary_api::labels::TERM_BEFORE;
use tributary_clock::{Mono, Now};

use super::fence::{Epoch, LeaderState, Leadership};

/// The times of the election.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timing {
    /// Duration of the Lease, whole seconds.
    pub lease: Duration,
    /// What is taken off it for clocks that run at different rates, and for a request that is under way.
    pub margin: Duration,
    /// Between the starts of two renewals.
    pub renew_every: Duration,
    /// Between two looks of a standby: so much later than the last renewal it may begin to count.
    pub look_every: Duration,
    /// Between attempts that fail.
    pub retry_after: Duration,
}

/// Renewals that must return our own name before we act.
const CONFIRMATIONS: u8 = 2;

/// The duration, in seconds, of a Lease that was given up: no agent holds one for so short a time.
const GIVEN_UP: i32 = 1;

/// What to ask the API server next.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Call {
    /// Read the Lease.
    Observe,
    /// Create it: `try_acquire_or_renew` of the lock.
    Create,
    /// Replace this one, as it was read, by [`claimed`].
    Claim(Box<Lease>),
    /// Replace ours, as it was read, by [`renewed`].
    Renew(Box<Lease>),
}

/// What the API server said.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Answer {
    /// The Lease as it is now.
    Lease(Box<Lease>),
    /// There is none.
    Absent,
    /// Somebody else was faster, or no answer came; whether the call had an effect is not known.
    Failed,
}

/// One candidate.
#[derive(Debug)]
pub(super) struct Election {
    me: String,
    timing: Timing,
    phase: Phase,
    /// The Lease as we first saw it without a change since.
    seen: Option<(Held, Mono)>,
}

#[derive(Clone, PartialEq, Debug)]
enum Phase {
    Standby,
    Creating,
    Claiming(Box<Lease>),
    Confirming { lease: Box<Lease>, epoch: Epoch, before: Option<Timestamp>, left: u8 },
    Leading(Box<Lease>, Leadership),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    by: String,
    renewed: Option<MicroTime>,
    lasts: Duration,
}

impl Election {
    pub(super) fn new(me: String, timing: Timing) -> Self {
        Self { me, timing, phase: Phase::Standby, seen: None }
    }

    pub(super) fn next(&self) -> Call {
        match &self.phase {
            Phase::Standby => Call::Observe,
            Phase::Creating => Call::Create,
            Phase::Claiming(lease) => Call::Claim(lease.clone()),
            Phase::Confirming { lease, .. } | Phase::Leading(lease, _) => Call::Renew(lease.clone()),
        }
    }

    /// Takes in the answer to [`Election::next`], which was asked at `started` and answered at `now`. Returns how long to
    /// wait before the next call.
    pub(super) fn on_answer(&mut self, started: Now, now: Now, answer: Answer) -> Duration {
        let failed = answer == Answer::Failed;
        let lasts = |held: &Leadership| !held.valid_until.left_at(now).is_zero();
        self.phase = match (std::mem::replace(&mut self.phase, Phase::Standby), answer) {
            (Phase::Standby, Answer::Lease(lease)) => self.observed(lease, now.mono),
            (Phase::Standby, Answer::Absent) if self.may_have_leader(now.mono) => Phase::Standby,
            (Phase::Standby, Answer::Absent) => Phase::Creating,
            (Phase::Creating, Answer::Lease(lease)) if self.is_mine(&lease) => Phase::Claiming(lease),
            (Phase::Claiming(_), Answer::Lease(lease)) if self.is_mine(&lease) => {
                self.seen = None;
                let (epoch, before) = (self.epoch(&lease), term_before(&lease));
                Phase::Confirming { lease, epoch, before, left: CONFIRMATIONS }
            }
            (Phase::Confirming { lease: known, epoch, before, left }, Answer::Lease(lease))
                if is_same_term(&lease, &known) =>
            {
                match left.saturating_sub(1) {
                    0 => Phase::Leading(lease, self.leadership(epoch, before, started)),
                    left => Phase::Confirming { lease, epoch, before, left },
                }
            }
            (Phase::Confirming { lease, epoch, before, .. }, Answer::Failed) => {
                Phase::Confirming { lease, epoch, before, left: CONFIRMATIONS }
            }
            (Phase::Leading(known, held), Answer::Lease(lease)) if is_same_term(&lease, &known) => match lasts(&held) {
                true => Phase::Leading(lease, self.leadership(held.epoch, held.before, started)),
                // It was over, and all that came with it has ended.
                false => Phase::Claiming(Box::new(renewed_late(*lease, &held, now))),
            },
            (Phase::Leading(lease, held), Answer::Failed) if lasts(&held) => Phase::Leading(lease, held),
            _ => Phase::Standby,
        };
        match (&self.phase, failed) {
            (_, true) => self.timing.retry_after,
            (Phase::Standby, _) => self.until_abandoned(now.mono).min(self.timing.look_every),
            (Phase::Leading(..), _) => self.timing.renew_every.saturating_sub(now.mono.saturating_since(started.mono)),
            _ => Duration::ZERO,
        }
    }

    /// What to publish.
    pub(super) fn state(&self) -> LeaderState {
        match &self.phase {
            Phase::Leading(_, leadership) => LeaderState::Leading(leadership.clone()),
            _ => LeaderState::Standby { holder: self.seen.as_ref().map(|(held, _)| held.by.clone()) },
        }
    }

    /// Whether the Lease may bear our name, so that it must be given up at the end.
    pub(super) fn may_hold(&self) -> bool {
        !matches!(self.phase, Phase::Standby | Phase::Creating)
    }

    fn observed(&mut self, lease: Box<Lease>, now: Mono) -> Phase {
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty());
        let written = spec.and_then(|spec| spec.lease_duration_seconds);
        if holder.is_none() && written != Some(GIVEN_UP) && self.may_have_leader(now) {
            return Phase::Standby;
        }
        // Our own name without leadership: a claim whose answer was lost, or a lock that was overrun. Claiming it again
        // gives it an epoch that nobody else had.
        let Some(by) = holder.filter(|holder| *holder != self.me) else {
            self.seen = None;
            return Phase::Claiming(lease);
        };
        let written = written.and_then(|secs| u64::try_from(secs).ok());
        let lasts = Duration::from_secs(written.unwrap_or_default()).max(self.timing.lease);
        let held = Held { by, renewed: spec.and_then(|spec| spec.renew_time.clone()), lasts };
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != held) {
            self.seen = Some((held, now));
        }
        if self.until_abandoned(now).is_zero() { Phase::Claiming(lease) } else { Phase::Standby }
    }

    /// Whether the holder that we saw last may lead on, although the Lease was deleted or emptied. It may have renewed since we
    /// looked, so its time counts from when we first see that.
    fn may_have_leader(&mut self, now: Mono) -> bool {
        if let Some((held, since)) = &mut self.seen
            && held.renewed.take().is_some()
        {
            *since = now;
        }
        self.seen.is_some() && !self.until_abandoned(now).is_zero()
    }

    fn until_abandoned(&self, now: Mono) -> Duration {
        match &self.seen {
            Some((held, since)) => held.lasts.saturating_sub(now.saturating_since(*since)),
            None => Duration::MAX,
        }
    }

    fn leadership(&self, epoch: Epoch, before: Option<Timestamp>, started: Now) -> Leadership {
        let valid_until = started.plus(self.timing.lease.saturating_sub(self.timing.margin));
        Leadership { epoch, before, valid_until }
    }

    fn is_mine(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(self.me.as_str())
    }

    fn epoch(&self, lease: &Lease) -> Epoch {
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        Epoch { transitions: u64::try_from(transitions).unwrap_or_default(), holder: self.me.clone() }
    }
}

/// The Lease `lease` as `me` takes it over. Its resource version stays: the replace fails if anything changed since.
///
/// The transitions grow by one, but are never less than the minutes since 1970: a Lease that was deleted and created
/// again must not give us an epoch that others have seen and would ignore. For the same reason the epoch says nothing of a
/// Lease from a backup: whoever takes it over a minute later outranks all that others have heard.
pub fn claimed(mut lease: Lease, me: &str, duration: Duration, now: Timestamp) -> Lease {
    if let Some(before) = term_before(&lease) {
        lease.metadata.annotations.get_or_insert_default().insert(TERM_BEFORE.to_owned(), before.to_string());
    }
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    let minutes = i32::try_from(now.as_second() / 60).unwrap_or(i32::MAX);
    spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default().saturating_add(1).max(minutes));
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
    spec.acquire_time = Some(MicroTime(now));
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// Our Lease as it is renewed. The replace fails if anything changed since it was read.
pub(super) fn renewed(mut lease: Lease, now: Timestamp) -> Lease {
    lease.spec.get_or_insert_default().renew_time = Some(MicroTime(now));
    lease
}

/// Our Lease, renewed after leadership had ended: losses of contact count from that end. How long ago it was comes from the
/// monotonic clock, so that a wall clock that is set ahead ends nothing.
fn renewed_late(mut lease: Lease, held: &Leadership, now: Now) -> Lease {
    let end = now.wall_of(held.valid_until.mono);
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.entry(TERM_BEFORE.to_owned()).or_insert_with(|| end.to_string());
    lease
}

/// Our Lease as it is given up: anybody may claim it at once.
pub(super) fn given_up(mut lease: Lease, now: Timestamp) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    (spec.holder_identity, spec.lease_duration_seconds) = (Some(String::new()), Some(GIVEN_UP));
    (spec.acquire_time, spec.renew_time) = (Some(MicroTime(now)), Some(MicroTime(now)));
    lease
}

/// Whether two Leases are of the same term of the same holder. One that was made anew is not: others may have led before
/// somebody put it there.
pub(super) fn is_same_term(one: &Lease, other: &Lease) -> bool {
    let term = |lease: &Lease| lease.spec.clone().map(|spec| (spec.holder_identity, spec.lease_transitions));
    one.metadata.uid == other.metadata.uid && term(one) == term(other)
}

/// The last renewal of a leader that has dated every loss of contact before it; `None` if the Lease shows none.
pub fn term_before(lease: &Lease) -> Option<Timestamp> {
    let noted = lease.metadata.annotations.as_ref().and_then(|all| all.get(TERM_BEFORE)?.parse().ok());
    let before = noted.or_else(|| Some(lease.spec.as_ref()?.renew_time.as_ref()?.0))?;
    // A Lease that is put back from an old copy has an old renewTime: nobody renewed this object before it was created.
    Some(lease.metadata.creation_timestamp.as_ref().map_or(before, |made| before.max(made.0)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::leadership::TIMING;

    fn at(millis: u64) -> Now {
        Now { mono: Mono::ZERO, wall: Timestamp::UNIX_EPOCH }.plus(Duration::from_millis(millis))
    }

    fn lease(holder: &str, transitions: i32, renewed: i64) -> Box<Lease> {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_transitions: Some(transitions),
            lease_duration_seconds: Some(6),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        };
        Box::new(Lease { spec: Some(spec), ..Lease::default() })
    }

    fn says(lease: &Lease) -> Answer {
        Answer::Lease(Box::new(lease.clone()))
    }

    /// A candidate that leads with transitions 7, confirmed by a call that started at 3 s.
    fn leader() -> Election {
        let mut election = Election::new("me".into(), TIMING);
        election.on_answer(at(0), at(10), says(&Lease::default()));
        election.on_answer(at(1000), at(1010), says(&lease("me", 7, 1)));
        election.on_answer(at(2000), at(2010), says(&lease("me", 7, 2)));
        assert!(matches!(election.state(), LeaderState::Standby { .. }), "one confirmation is not enough");
        election.on_answer(at(3000), at(3010), says(&lease("me", 7, 3)));
        election
    }

    fn valid_until(election: &Election) -> Option<Now> {
        match election.state() {
            LeaderState::Leading(leadership) => Some(leadership.valid_until),
            LeaderState::Standby { .. } => None,
        }
    }

    #[test]
    fn the_first_candidate_creates_claims_confirms_and_leads() {
        let mut election = Election::new("me".into(), TIMING);
        assert_eq!(election.next(), Call::Observe);
        assert_eq!(election.on_answer(at(0), at(0), Answer::Absent), Duration::ZERO);
        assert_eq!(election.next(), Call::Create);
        election.on_answer(at(0), at(0), says(&lease("me", 0, 0)));
        assert_eq!(election.next(), Call::Claim(lease("me", 0, 0)));
        election.on_answer(at(0), at(0), says(&lease("me", 1, 0)));
        assert_eq!(election.next(), Call::Renew(lease("me", 1, 0)));
        election.on_answer(at(0), at(0), says(&lease("me", 1, 0)));
        assert_eq!(election.on_answer(at(100), at(200), says(&lease("me", 1, 0))), Duration::from_millis(3900));
        let epoch = Epoch { transitions: 1, holder: "me".into() };
        assert_eq!(
            election.state(),
            LeaderState::Leading(Leadership { epoch, before: Some(at(0).wall), valid_until: at(7100) })
        );
    }

    /// Whenever the standby looks: from the last renewal of a leader that is killed to the one that leads after it. Peers
    /// count on that (15 s until all are connected again).
    #[test]
    fn a_standby_leads_ten_seconds_after_the_last_renewal() {
        let latest = u64::try_from(TIMING.look_every.as_millis()).unwrap();
        for offset in (0..latest).step_by(50) {
            let mut standby = Election::new("me".into(), TIMING);
            let (mut held, mut now) = (lease("other", 3, 1), offset);
            loop {
                if let Call::Claim(seen) = standby.next() {
                    *held = claimed(*seen, "me", TIMING.lease, at(now).wall);
                }
                // Each call takes a while.
                let wait = standby.on_answer(at(now), at(now + 50), says(&held));
                now += 50;
                assert!(now <= 10_000, "looking first at {offset} ms");
                if valid_until(&standby).is_some() {
                    break;
                }
                now += u64::try_from(wait.as_millis()).unwrap();
            }
        }
    }

    #[test]
    fn an_empty_or_vacated_lease_is_claimed_at_once() {
        for found in [Lease::default(), *lease("", 3, 0), *lease("me", 3, 0)] {
            let mut election = Election::new("me".into(), TIMING);
            assert_eq!(election.on_answer(at(0), at(0), says(&found)), Duration::ZERO);
            assert_eq!(election.next(), Call::Claim(Box::new(found)));
        }
    }

    #[test]
    fn a_held_lease_is_claimed_after_it_did_not_change_for_its_duration_on_our_clock() {
        let mut election = Election::new("me".into(), TIMING);
        let look = |election: &mut Election, millis, renewed| {
            let wait = election.on_answer(at(millis), at(millis), says(&lease("other", 3, renewed)));
            (wait.as_millis(), matches!(election.next(), Call::Claim(_)))
        };
        assert_eq!(look(&mut election, 0, 1), (1500, false));
        assert_eq!(election.state(), LeaderState::Standby { holder: Some("other".into()) });
        assert_eq!(look(&mut election, 7999, 1), (1, false));
        assert_eq!(look(&mut election, 8000, 2), (1500, false), "renewed, whatever its clock says");
        assert_eq!(look(&mut election, 15_000, 2), (1000, false));
        assert_eq!(look(&mut election, 16_000, 2), (0, true));
    }

    /// The danger: the leader learns of it with its next renewal, and two write until then.
    #[test]
    fn a_lease_that_is_deleted_or_emptied_counts_as_held_for_its_duration() {
        let emptied = lease("", 3, 1);
        let table = [
            ("deleted", Answer::Absent, Call::Create),
            ("without a spec", says(&Lease::default()), Call::Claim(Box::default())),
            ("without a holder", says(&emptied), Call::Claim(emptied.clone())),
        ];
        for (case, answer, then) in table {
            let mut election = Election::new("me".into(), TIMING);
            election.on_answer(at(0), at(0), says(&lease("other", 3, 1)));
            let mut look = |millis| {
                let wait = election.on_answer(at(millis), at(millis), answer.clone());
                (wait.as_millis(), election.next())
            };
            assert_eq!(look(1500), (1500, Call::Observe), "{case}: it may have been renewed a moment ago");
            assert_eq!(look(9000), (500, Call::Observe), "{case}");
            assert_eq!(look(9500), (0, then), "{case}");
        }
        let vacated = Box::new(given_up(*lease("other", 3, 1), at(0).wall));
        let mut election = Election::new("me".into(), TIMING);
        election.on_answer(at(0), at(0), says(&lease("other", 3, 1)));
        assert_eq!(election.on_answer(at(1500), at(1500), says(&vacated)), Duration::ZERO);
        assert_eq!(election.next(), Call::Claim(vacated), "its holder gave it up");
    }

    #[test]
    fn a_lease_that_its_holder_makes_anew_is_held_from_then_on() {
        let mut election = Election::new("me".into(), TIMING);
        election.on_answer(at(0), at(0), says(&lease("other", 3, 1)));
        election.on_answer(at(1500), at(1500), Answer::Absent);
        election.on_answer(at(3000), at(3000), says(&lease("other", 3, 1)));
        assert_eq!(election.on_answer(at(9500), at(9500), Answer::Absent), TIMING.look_every);
        assert_eq!(election.next(), Call::Observe);
    }

    #[test]
    fn a_longer_duration_in_the_lease_is_respected() {
        let mut long = lease("other", 3, 1);
        long.spec.as_mut().unwrap().lease_duration_seconds = Some(60);
        let mut election = Election::new("me".into(), TIMING);
        election.on_answer(at(0), at(0), says(&long));
        election.on_answer(at(59_000), at(59_000), says(&long));
        assert_eq!(election.next(), Call::Observe);
        election.on_answer(at(60_000), at(60_000), says(&long));
        assert_eq!(election.next(), Call::Claim(long));
    }

    #[test]
    fn a_lost_claim_is_a_standby_again() {
        let mut election = Election::new("me".into(), TIMING);
        election.on_answer(at(0), at(0), says(&Lease::default()));
        assert_eq!(election.on_answer(at(0), at(0), Answer::Failed), TIMING.retry_after);
        assert_eq!(election.next(), Call::Observe);
    }

    #[test]
    fn validity_counts_from_the_start_of_the_call() {
        let mut election = leader();
        assert_eq!(valid_until(&election), Some(at(10_000)));
        election.on_answer(at(5000), at(6900), says(&lease("me", 7, 4)));
        assert_eq!(valid_until(&election), Some(at(12_000)));
    }

    #[test]
    fn a_failing_renewal_leads_on_until_validity_ends() {
        let mut election = leader();
        assert_eq!(election.on_answer(at(5000), at(7000), Answer::Failed), TIMING.retry_after);
        assert_eq!(valid_until(&election), Some(at(10_000)));
        election.on_answer(at(9500), at(10_000), Answer::Failed);
        assert_eq!(valid_until(&election), None);
    }

    #[test]
    fn a_renewal_knows_the_lease_as_it_was_answered_last() {
        let mut election = leader();
        assert_eq!(election.next(), Call::Renew(lease("me", 7, 3)));
        election.on_answer(at(5000), at(5010), says(&lease("me", 7, 5)));
        election.on_answer(at(9000), at(9500), Answer::Failed);
        assert_eq!(election.next(), Call::Renew(lease("me", 7, 5)));
    }

    #[test]
    fn another_holder_or_another_epoch_ends_leadership_at_once() {
        for taken in [lease("other", 8, 4), lease("me", 8, 4), lease("", 7, 4)] {
            let mut election = leader();
            election.on_answer(at(5000), at(5010), says(&taken));
            assert_eq!(valid_until(&election), None, "{taken:?}");
            assert_eq!(election.next(), Call::Observe);
        }
        let mut election = leader();
        election.on_answer(at(5000), at(5010), Answer::Absent);
        assert_eq!(valid_until(&election), None);
    }

    /// The danger: somebody puts a copy of our Lease in the place of it. It is read, was not renewed, and others may have
    /// led in between.
    #[test]
    fn a_lease_that_was_made_anew_with_our_name_ends_leadership() {
        let mut election = leader();
        let mut anew = lease("me", 7, 3);
        anew.metadata.uid = Some("anew".into());
        election.on_answer(at(5000), at(5010), says(&anew));
        assert_eq!(valid_until(&election), None);
        assert_eq!(election.next(), Call::Observe);
    }

    /// A leader that dies before it has dated anything must not make its own renewals look like contact.
    #[test]
    fn a_short_term_does_not_hide_when_the_term_before_it_ended() {
        let noted = |lease: &Lease| term_before(lease).map(Timestamp::as_second);
        let first = claimed(*lease("old", 7, 100), "a", TIMING.lease, at(400_000).wall);
        assert_eq!(noted(&first), Some(100));
        let second = claimed(first, "b", TIMING.lease, at(500_000).wall);
        assert_eq!(noted(&second), Some(100));
        let mut settled = second;
        settled.metadata.annotations.as_mut().unwrap().remove(TERM_BEFORE);
        assert_eq!(noted(&claimed(settled, "c", TIMING.lease, at(600_000).wall)), Some(500));
        assert_eq!(noted(&claimed(Lease::default(), "a", TIMING.lease, at(0).wall)), Some(0), "nobody led before");
    }

    #[test]
    fn a_claim_whose_answer_was_lost_knows_when_the_term_before_it_ended() {
        let mut election = Election::new("me".into(), TIMING);
        let vacated = lease("", 3, 100);
        election.on_answer(at(0), at(0), says(&vacated));
        election.on_answer(at(1000), at(1000), Answer::Failed);
        let ours = claimed(*vacated, "me", TIMING.lease, at(1000).wall);
        election.on_answer(at(2000), at(2000), says(&ours));
        let Call::Claim(seen) = election.next() else { panic!("{:?}", election.next()) };
        let ours = claimed(*seen, "me", TIMING.lease, at(2000).wall);
        for second in 2..5 {
            election.on_answer(at(second * 1000), at(second * 1000), says(&ours));
        }
        let LeaderState::Leading(leadership) = election.state() else { panic!("{:?}", election.state()) };
        assert_eq!(leadership.before.map(Timestamp::as_second), Some(100));
    }

    /// The danger: bursts whose leases were over while a leader was frozen run on, since its own late renewal hides that; or a
    /// clock that is set ahead ends them all.
    #[test]
    fn losses_of_contact_count_from_the_end_of_a_leadership_that_was_renewed_too_late() {
        let before = |election: &mut Election, woke: Now| {
            election.on_answer(woke, woke, says(&lease("me", 7, woke.wall.as_second())));
            let Call::Claim(seen) = election.next() else { panic!("{:?}", election.next()) };
            term_before(&claimed(*seen, "me", TIMING.lease, woke.wall)).unwrap()
        };
        // Its last renewal was at 3 s.
        assert_eq!(before(&mut leader(), at(3_600_000)), at(10_000).wall);
        let ahead = Now { wall: at(3_600_000).wall, ..at(9_000) };
        assert_eq!(before(&mut leader(), ahead), ahead.wall);
    }

    /// The danger: a Lease from an old backup is taken for a cluster without a leader since then.
    #[test]
    fn a_lease_that_was_put_back_counts_from_when_it_was_made() {
        let mut old = *lease("other", 7, 100);
        old.metadata.creation_timestamp = Some(Time(at(5_000_000).wall));
        assert_eq!(term_before(&old), Some(at(5_000_000).wall));
    }

    #[test]
    fn epochs_grow_even_if_the_lease_was_deleted() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let fresh = claimed(Lease::default(), "me", TIMING.lease, now).spec.unwrap();
        assert_eq!(fresh.lease_transitions, Some(30_000_000));
        assert_eq!((fresh.holder_identity.as_deref(), fresh.lease_duration_seconds), (Some("me"), Some(8)));
        let again = claimed(*lease("a", 30_000_000, 0), "me", TIMING.lease, now).spec.unwrap();
        assert_eq!(again.lease_transitions, Some(30_000_001));
        assert!(again.renew_time.is_some() && again.acquire_time.is_some());
    }
}
