//! One connection per pair.
//!
//! Both sides may dial at the same time, and a new connection is made before the certificate of the old one ends. While
//! two completed hellos coexist, the side with the smaller name closes the older connection, and the other side never
//! does: so they cannot close one each. It waits for [`Timers::overlap`](crate::timers::Timers::overlap)
//! after the newer one was completed here, because there it may take a round trip longer.

use std::time::Duration;

use tributary_clock::Mono;
use tributary_contract::PeerName;

/// When [`surplus`] will name something; `None`: never, as things are. `completed`: the healthy connections of the pair
/// and when their hellos were completed.
pub(crate) fn due<C>(ours: &PeerName, theirs: &PeerName, completed: &[(C, Mono)], overlap: Duration) -> Option<Mono> {
    if ours >= theirs || completed.len() < 2 {
        return None;
    }
    completed.iter().map(|(_, at)| *at + overlap).max()
}

/// The connections for us to close at `now`: all but the newest (of equals, the last).
pub(crate) fn surplus<C: Copy>(
    ours: &PeerName,
    theirs: &PeerName,
    completed: &[(C, Mono)],
    overlap: Duration,
    now: Mono,
) -> Vec<C> {
    if due(ours, theirs, completed, overlap).is_none_or(|due| now < due) {
        return Vec::new();
    }
    let newest = completed.iter().enumerate().max_by_key(|(_, (_, at))| *at).map(|(index, _)| index);
    let others = completed.iter().enumerate().filter(|(index, _)| Some(*index) != newest);
    others.map(|(_, (connection, _))| *connection).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLAP: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Mono {
        Mono::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn the_smaller_name_keeps_the_newest_after_the_overlap() {
        let (east, west) = (PeerName::from("east"), PeerName::from("west"));
        let both = [(1, at(10)), (2, at(11))];
        assert_eq!(due(&east, &west, &both, OVERLAP), Some(at(13)));
        assert_eq!(surplus(&east, &west, &both, OVERLAP, at(12)), [] as [i32; 0]);
        assert_eq!(surplus(&east, &west, &both, OVERLAP, at(13)), [1]);
        assert_eq!(surplus(&west, &east, &both, OVERLAP, at(99)), [] as [i32; 0], "the larger name never decides");
        assert_eq!(due(&west, &east, &both, OVERLAP), None);
        let equal = [(1, at(10)), (2, at(10)), (3, at(10))];
        assert_eq!(surplus(&east, &west, &equal, OVERLAP, at(13)), [1, 2], "of equals, the last stays");
        assert_eq!(surplus(&east, &west, &both[..1], OVERLAP, at(99)), [] as [i32; 0]);
    }
}
