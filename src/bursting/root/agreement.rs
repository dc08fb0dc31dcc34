//! Whether root and provider counted the same use of a burst. Pure.
//!
//! A provider says how much it counted when a burst begins to leave. That is compared with what was counted here until this was
//! heard: both are lengths of time, so that no clock has to agree with another.

use std::time::Duration;

use tributary_api::budget::Spent;
use tributary_api::burst::Burst;
use tributary_api::labels::condition::USAGE_AGREES;
use tributary_cluster::conditions::Statement;
use tributary_contract::PeerName;

use super::burst_status::Draft;
use crate::note::Note;
use crate::sync_store::Answer;

/// How much longer than the other one side may count: the way of what is said, a connection that is made anew, an agent that
/// restarts. And the drain: what says that it began may be lost.
const APART: Duration = Duration::from_secs(60);

/// Parts of a thousand of the larger figure that are no difference either: clocks run unevenly.
const UNEVEN: i64 = 10;

impl Draft<'_> {
    /// Takes in what the peer counted, once.
    pub(super) fn compare(&mut self) {
        let Some(peer) = self.status.peer.clone().map(PeerName::from) else { return };
        if self.status.peer_count.is_some() {
            return;
        }
        let Some(Answer::Observed(said)) = self.answer(&peer) else { return };
        let Some(used) = said.used.filter(|_| self.is_current(said)) else { return };
        let (theirs, ours) = (Spent::from(used), self.status.used.until(self.view.now.wall));
        let agreement = agreement(&self.view.burst, &peer, &ours, &theirs);
        if agreement.status == Some(false) {
            self.notes.push(Note::warning("UsageDiffers", agreement.message.clone()));
        }
        self.status.peer_count = Some(theirs);
        self.agreement = Some(agreement);
    }

    /// Its use is over, and a peer that was out of contact never said how much it was. One that says so of no burst is an older
    /// agent: nothing is missing.
    pub(super) fn miss_the_count(&mut self) {
        let ours = self.status.used.until(self.view.now.wall);
        let (Some(peer), None) = (&self.status.peer, &self.status.peer_count) else { return };
        if self.status.lost_since.is_none() || ours.broker_seconds == 0 || self.agreement.is_some() {
            return;
        }
        let text = format!(
            "{} broker-hours count here for {peer}, which was out of contact: that is how long brokers may have been there, \
             and not what it counted",
            hours(&ours)
        );
        self.agreement = Some(Statement::unknown(USAGE_AGREES, "NotTold", text));
    }
}

fn agreement(burst: &Burst, peer: &PeerName, ours: &Spent, theirs: &Spent) -> Statement {
    let seconds = (APART + burst.spec.drain.duration()).as_secs();
    let apart = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(burst.spec.max_size.max(1).into());
    let uneven = ours.broker_seconds.max(theirs.broker_seconds) / 1000 * UNEVEN;
    let difference = ours.broker_seconds.saturating_sub(theirs.broker_seconds).saturating_abs();
    let (here, there) = (hours(ours), hours(theirs));
    if difference <= apart.max(uneven) {
        return Statement::holds(
            USAGE_AGREES,
            "Agrees",
            format!("{here} broker-hours by this cluster's count, {there} by that of {peer}"),
        );
    }
    Statement::fails(
        USAGE_AGREES,
        "Differs",
        format!(
            "{here} broker-hours by this cluster's count, {there} by that of {peer}: the two were out of contact, an agent was \
             away, or a clock was set; `agentctl usage --by job,day --peer-context {peer}=CONTEXT` shows the records of both"
        ),
    )
}

/// Broker-hours, to a hundredth.
fn hours(spent: &Spent) -> String {
    format!("{:.2}", spent.broker_seconds as f64 / 3600.0)
}

#[cfg(test)]
mod tests {
    use tributary_api::burst::BurstSpec;

    use super::*;

    #[test]
    fn a_difference_of_more_than_what_is_on_the_way_is_told_with_both_figures() {
        let burst = Burst::new("a", BurstSpec { max_size: 4, drain: 60_u32.into(), ..BurstSpec::default() });
        let of = |broker_seconds: i64| Spent { broker_seconds, ..Spent::default() };
        let said = |ours, theirs| agreement(&burst, &"west".into(), &of(ours), &of(theirs));
        assert_eq!(said(7_200, 7_200 + 480).reason, "Agrees", "two minutes of four brokers");
        assert_eq!(said(7_200 + 481, 7_200).reason, "Differs");
        assert_eq!(said(3_600_000, 3_565_000).reason, "Agrees", "a hundredth of a thousand hours");
        let text = said(36_000, 18_000).message;
        assert!(text.starts_with("10.00 broker-hours by this cluster's count, 5.00 by that of west: "), "{text}");
    }
}
