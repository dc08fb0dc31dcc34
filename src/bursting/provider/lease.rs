//! How long a burst outlives the contact with its root, on this cluster's own clocks. Pure.
//!
//! The loss is dated once and stored; the lease counts from it, also across restarts of the agent. Heartbeats renew in
//! memory only. Of two clocks the impatient one decides: a wall clock that is set back must not prolong a lease, since the
//! root counts on it.
//!
//! A loss that began while no agent ran is nowhere stored. It counts from the last renewal of the Lease by the leader
//! before: nobody heard of a root after that. A lease that was over before this leader's term began stays over, also if
//! the root is heard of again: the root may have given the ranks to others. The nodes' clocks are compared here, so a
//! clock that is wrong by minutes ends leases early, or late by as much.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::peer::ClusterPeer;
use tributary_clock::Now;
use tributary_contract::PeerName;

use crate::contact::Contacts;
use crate::peers;
use crate::timing::elapsed;

/// How long a root may be silent before its bursts say so. Short, so that the lease begins when the contact ended; long
/// enough that a restart of this agent is no loss.
pub(crate) const SUSPECT_AFTER: Duration = Duration::from_secs(5);

/// What is on record of the time before a leader's term.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// The last renewal of the Lease by the leader before.
    renewed: Option<Timestamp>,
    /// How long that was ago when the term began.
    gap: Duration,
    /// How long peers were lost by then, by the status of their ClusterPeers.
    lost: BTreeMap<PeerName, Duration>,
    /// HostedBursts whose lease was over by then, by UID.
    lapsed: BTreeSet<String>,
}

impl Before {
    /// What a term that begins at `now` finds. `renewed` is the last renewal of the Lease by the leader before.
    pub(crate) fn of<'a>(
        renewed: Option<Timestamp>,
        peers: impl IntoIterator<Item = &'a ClusterPeer>,
        hosted: impl IntoIterator<Item = &'a HostedBurst>,
        now: Timestamp,
    ) -> Self {
        let since = |dated: Option<Time>| dated.map(|Time(dated)| elapsed(dated, now)).unwrap_or_default();
        let gap = since(renewed.map(Time));
        let lost = peers.into_iter().map(|peer| {
            let suspect_since = peer.status.as_ref().and_then(|status| status.suspect_since.clone());
            (peers::name_of(peer), since(suspect_since))
        });
        let lapsed = hosted.into_iter().filter(|hosted| {
            let suspect_since = hosted.status.as_ref().and_then(|status| status.suspect_since.clone());
            since(suspect_since).max(gap) >= hosted.spec.lease.duration()
        });
        let lapsed = lapsed.filter_map(|hosted| hosted.metadata.uid.clone()).collect();
        Self { renewed, gap, lost: lost.collect(), lapsed }
    }

    /// The same when dates have moved. What lasted longer than `longest` lasted as long as that.
    #[cfg(test)]
    pub(crate) fn move_dates(&mut self, moved: impl Fn(Timestamp) -> Timestamp, longest: Duration) {
        self.renewed = self.renewed.map(moved);
        self.gap = self.gap.min(longest);
        self.lost.values_mut().for_each(|lost| *lost = (*lost).min(longest));
    }

    /// How long a peer was lost when the term began.
    pub(super) fn lost(&self, peer: &PeerName) -> Duration {
        self.lost.get(peer).copied().unwrap_or_default().max(self.gap)
    }

    /// Whether the lease of a burst was over when the term began.
    pub(super) fn has_lapsed(&self, hosted: &HostedBurst) -> bool {
        hosted.metadata.uid.as_ref().is_some_and(|uid| self.lapsed.contains(uid))
    }

    /// When a peer was last heard of that may have been heard of in the term before.
    pub(super) fn last_heard(&self, peer: &PeerName, contacts: &Contacts) -> Option<Timestamp> {
        self.renewed.filter(|_| !contacts.has_heard(peer))
    }
}

/// Where a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lease {
    /// In contact.
    Renewed,
    /// Out of contact for a moment: nothing is written yet. Look again after this time.
    Wavering(Duration),
    /// Lost at `since`; it ends after `left`.
    Running {
        /// What `status.suspectSince` must be.
        since: Timestamp,
        /// Time until it ends.
        left: Duration,
    },
    /// Over.
    Expired {
        /// What `status.suspectSince` must be.
        since: Timestamp,
    },
}

/// The state of a lease.
///
/// `away` is how long the root is out of contact, as far as this process knows; `None`: in contact. `recorded` is the
/// stored `status.suspectSince`, and `last_heard` when the root was last heard of, if that is known.
pub(crate) fn lease(
    length: Duration,
    away: Option<Duration>,
    recorded: Option<Timestamp>,
    last_heard: Option<Timestamp>,
    now: Now,
) -> Lease {
    let Some(away) = away else { return Lease::Renewed };
    let since = recorded.unwrap_or_else(|| {
        let seen_by_us = now.wall.checked_sub(away).unwrap_or(now.wall);
        last_heard.map_or(seen_by_us, |heard| heard.min(seen_by_us))
    });
    let spent = elapsed(since, now.wall).max(away);
    match length.checked_sub(spent) {
        Some(left) if !left.is_zero() && recorded.is_none() && away < SUSPECT_AFTER => {
            Lease::Wavering(left.min(SUSPECT_AFTER - away))
        }
        Some(left) if !left.is_zero() => Lease::Running { since, left },
        _ => Lease::Expired { since },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use proptest::prelude::*;
    use tributary_api::hosted_burst::{HostedBurstSpec, HostedBurstStatus};
    use tributary_api::labels::TERM_BEFORE;
    use tributary_clock::Mono;
    use tributary_cluster::election::{claimed, term_before};

    use super::*;
    use crate::provider::sync;

    const LENGTH: Duration = Duration::from_secs(300);

    /// A provider with one burst: what outlives its agents, and when its root was heard of in truth.
    struct Provider {
        wall: i64,
        lease: k8s_openapi::api::coordination::v1::Lease,
        hosted: HostedBurst,
        heard: i64,
        ended: bool,
    }

    impl Provider {
        fn new() -> Self {
            let spec = HostedBurstSpec { lease: 300.into(), ..HostedBurstSpec::default() };
            let mut hosted = HostedBurst::new("lake-burst-0", spec);
            hosted.metadata.uid = Some("hosted-uid".into());
            hosted.status = Some(HostedBurstStatus::default());
            Self { wall: 0, lease: Default::default(), hosted, heard: 0, ended: false }
        }

        /// An agent takes over.
        fn claim(&mut self) {
            self.lease = claimed(std::mem::take(&mut self.lease), "agent", Duration::from_secs(6), at(self.wall));
        }

        /// It leads for so many seconds, in contact or not.
        fn lead(&mut self, secs: i64, contact: bool) -> Result<(), TestCaseError> {
            self.claim();
            let east = PeerName::from("east");
            let mono = |wall: i64| Mono::from_start(Duration::from_secs(wall.unsigned_abs()));
            let mut contacts = Contacts::begin(mono(self.wall));
            let before = Before::of(term_before(&self.lease), [], [&self.hosted], at(self.wall));
            for _ in 0..=secs {
                contacts.observe(Some(&east).filter(|_| contact), mono(self.wall));
                let now = Now { mono: mono(self.wall), wall: at(self.wall) };
                let old = self.hosted.status.clone().unwrap();
                let recorded = old.suspect_since.clone().map(|Time(since)| since);
                let stands =
                    lease(LENGTH, contacts.away(&east, now.mono), recorded, before.last_heard(&east, &contacts), now);
                self.ended |= matches!(stands, Lease::Expired { .. }) || before.has_lapsed(&self.hosted);
                let silent = self.wall - self.heard;
                if self.ended {
                    prop_assert!(silent >= 299, "it ended {silent} s after the root was heard of");
                    return Ok(());
                }
                prop_assert!(silent <= 305, "it goes on {silent} s after the root was heard of");
                let suspect_since = sync::suspect_since(stands, &old);
                if contact || suspect_since.is_some() {
                    self.lease.metadata.annotations.get_or_insert_default().remove(TERM_BEFORE);
                }
                self.hosted.status = Some(HostedBurstStatus { suspect_since, ..old });
                self.lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at(self.wall)));
                if contact {
                    self.heard = self.wall;
                }
                self.wall += 1;
            }
            Ok(())
        }
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + secs).unwrap()
    }

    fn now(secs: i64) -> Now {
        Now { mono: Mono::ZERO, wall: at(secs) }
    }

    fn away(secs: u64) -> Option<Duration> {
        Some(Duration::from_secs(secs))
    }

    #[test]
    fn the_loss_is_dated_once_and_counts_across_restarts() {
        let left = |secs| Duration::from_secs(secs);
        let table = [
            ("in contact", lease(LENGTH, None, Some(at(0)), None, now(900)), Lease::Renewed),
            ("a restart", lease(LENGTH, away(2), None, None, now(100)), Lease::Wavering(left(3))),
            ("dated", lease(LENGTH, away(10), None, None, now(100)), Lease::Running { since: at(90), left: left(290) }),
            (
                "dated by the last word",
                lease(LENGTH, away(10), None, Some(at(85)), now(100)),
                Lease::Running { since: at(85), left: left(285) },
            ),
            (
                "an agent that restarted goes on counting",
                lease(LENGTH, away(1), Some(at(0)), None, now(200)),
                Lease::Running { since: at(0), left: left(100) },
            ),
            ("over", lease(LENGTH, away(1), Some(at(0)), None, now(300)), Lease::Expired { since: at(0) }),
            (
                "a wall clock that was set back does not prolong",
                lease(LENGTH, away(300), Some(at(0)), None, now(10)),
                Lease::Expired { since: at(0) },
            ),
        ];
        for (case, got, expected) in table {
            assert_eq!(got, expected, "{case}");
        }
    }

    proptest! {
        /// Whatever agents do: a root that stays away is waited for as long as the lease, and no longer.
        #[test]
        fn a_lease_counts_from_the_last_contact_however_agents_stop_and_return(
            events in proptest::collection::vec((0..4_u8, 0..150_i64, any::<bool>()), 1..20),
        ) {
            let mut provider = Provider::new();
            provider.lead(10, true)?;
            for (event, secs, contact) in events {
                match event {
                    // Nobody leads.
                    0 => provider.wall += secs,
                    // One that ends before its first step.
                    1 => provider.claim(),
                    // One that ends soon.
                    2 => provider.lead(secs % 4, contact)?,
                    _ => provider.lead(secs, contact)?,
                }
                if provider.ended {
                    break;
                }
            }
        }

        /// However often the agent restarts, a lease ends no later than its length after the recorded loss.
        #[test]
        fn no_restart_prolongs_a_lease(steps in proptest::collection::vec((0..120_i64, any::<bool>()), 1..20)) {
            let (mut wall, mut start, mut recorded) = (0, 0, None);
            for (secs, restart) in steps {
                wall += secs;
                if restart { start = wall; }
                match lease(LENGTH, away((wall - start).unsigned_abs()), recorded, None, now(wall)) {
                    Lease::Running { since, .. } => {
                        prop_assert!(recorded.is_none() || recorded == Some(since));
                        recorded = Some(since);
                        prop_assert!(now(wall).wall.duration_since(since).as_secs() < 300);
                    }
                    Lease::Expired { since } => prop_assert!(now(wall).wall.duration_since(since).as_secs() >= 300),
                    Lease::Wavering(_) => prop_assert!(recorded.is_none() && wall - start < 5),
                    Lease::Renewed => prop_assert!(false, "never in contact"),
                }
            }
        }
    }
}
