//! Peers that take a burst and let go of it again. Once is nothing; again and again would have root and peer write their
//! objects for ever, so such a peer is asked at growing intervals. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::burst::BurstReturn;
use tributary_contract::PeerName;

use crate::timing::{elapsed, later};

/// Before a peer is asked that let go of a burst twice in a row; twice as long each time after.
const FIRST_WAIT: Duration = Duration::from_secs(5);

const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// What happened longer ago is history.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);

/// A peer has let go of the burst.
pub(super) fn record(returns: &mut Vec<BurstReturn>, peer: &PeerName, offer: &str, now: Timestamp) {
    let known = returns.iter().position(|one| one.peer == peer.as_str()).map(|found| returns.remove(found));
    let lately = known.filter(|one| elapsed(one.at.0, now) < REMEMBERED && one.offer == offer);
    let times = lately.map_or(1, |one| one.times.saturating_add(1));
    returns.push(BurstReturn { peer: peer.to_string(), times, at: Time(now), offer: offer.to_owned() });
    returns.sort_by(|a, b| a.peer.cmp(&b.peer));
}

/// Peers that are not asked yet, why, and for how long. What is history, or about another offer, is forgotten.
pub(super) fn waiting(
    returns: &mut Vec<BurstReturn>,
    offer: &str,
    now: Timestamp,
) -> BTreeMap<PeerName, (String, Duration)> {
    returns.retain(|one| elapsed(one.at.0, now) < REMEMBERED && one.offer == offer);
    let waits = returns.iter().filter_map(|one| {
        let left = wait(one.times).checked_sub(elapsed(one.at.0, now)).filter(|left| !left.is_zero())?;
        let until = later(now, left);
        let text = format!(
            "let go of it {} times in a row (why: the events of this Burst); it is asked again at {until:.0}",
            one.times
        );
        Some((one.peer.as_str().into(), (text, left)))
    });
    waits.collect()
}

fn wait(times: u32) -> Duration {
    match times.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_WAIT.saturating_mul(1 << doublings.min(16)).min(LONGEST_WAIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn who_lets_go_again_and_again_is_asked_less_and_less_often() {
        let (west, mut returns, mut now, mut waits) = (PeerName::from("west"), Vec::new(), 0, Vec::new());
        for _ in 0..9 {
            record(&mut returns, &west, "1", at(now));
            let left = waiting(&mut returns, "1", at(now)).get(&west).map_or(0, |(_, left)| left.as_secs());
            waits.push(left);
            now += i64::try_from(left).unwrap() + 1;
            assert!(waiting(&mut returns, "1", at(now)).is_empty(), "then it is asked");
        }
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 300, 300]);
        record(&mut returns, &west, "1", at(now + 900));
        assert_eq!(returns[0].times, 1, "what was long ago does not count");
        assert!(waiting(&mut returns, "1", at(now + 1800)).is_empty() && returns.is_empty(), "nor is it kept");
    }

    #[test]
    fn it_is_said_until_when() {
        let mut returns = vec![BurstReturn { peer: "west".into(), times: 3, at: Time(at(0)), offer: "1".into() }];
        let said = waiting(&mut returns, "1", at(4)).remove(&PeerName::from("west")).unwrap();
        assert_eq!(
            said.0,
            "let go of it 3 times in a row (why: the events of this Burst); it is asked again at 1970-01-12T13:46:50Z"
        );
        assert_eq!(said.1, Duration::from_secs(6));
        assert!(waiting(&mut returns, "2", at(4)).is_empty(), "a retry is a new chance");
    }
}
