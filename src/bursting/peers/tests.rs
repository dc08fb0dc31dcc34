use super::*;
use crate::api::peer::ClusterPeerSpec;
use crate::clock::Mono;

const NONE: Option<Duration> = None;

fn peer(status: Option<ClusterPeerStatus>) -> ClusterPeer {
    let spec = ClusterPeerSpec { endpoints: vec!["west:7946".into()], ..ClusterPeerSpec::default() };
    let mut peer = ClusterPeer::new("west", spec);
    peer.metadata.generation = Some(3);
    peer.status = status;
    peer
}

fn now() -> Now {
    Now { mono: Mono::from_start(Duration::from_secs(500)), wall: Timestamp::from_second(1000).unwrap() }
}

fn up(uid: &str, free_cores: u32) -> PeerReport {
    PeerReport {
        state: PeerState::Connected,
        endpoint: Some("192.0.2.7:7946".into()),
        cluster_uid: Some(uid.into()),
        capacity: Some(Capacity { nodes: 2, free_cores, ..Capacity::default() }),
        last_seen: Some(Timestamp::from_second(998).unwrap()),
        ..PeerReport::default()
    }
}

fn connected_status() -> ClusterPeerStatus {
    status(&peer(None), Some(&up("u1", 100)), NONE, now()).unwrap()
}

#[test]
fn the_cluster_uid_is_pinned_once_and_the_users_word_wins() {
    let first = connected_status();
    assert_eq!(first.cluster_uid.as_deref(), Some("u1"));
    let mut known = peer(Some(first));
    assert_eq!(status(&known, Some(&up("u2", 100)), NONE, now()), None, "another UID is not taken over");
    assert_eq!(pinned_uid(&known), Some("u1".into()));
    known.spec.cluster_uid = Some("u9".into());
    assert_eq!(pinned_uid(&known), Some("u9".into()));
    let specs = specs([&known, &ClusterPeer::new("east", ClusterPeerSpec::default())], &"east".into());
    assert_eq!(specs.len(), 1, "our own name is no peer");
    assert_eq!(specs["west"].cluster_uid, Some("u9".into()));
}

#[test]
fn only_transitions_are_written() {
    let known = peer(Some(connected_status()));
    let quiet = [("nothing new", up("u1", 100), NONE), ("a little less room", up("u1", 91), NONE)];
    for (case, report, away) in quiet {
        assert_eq!(status(&known, Some(&report), away, now()), None, "{case}");
    }
    let restarted = Some(LOST_AFTER - Duration::from_secs(1));
    assert_eq!(status(&known, None, restarted, now()), None, "a restarted agent writes nothing");
    let less = status(&known, Some(&up("u1", 80)), NONE, now()).unwrap();
    assert_eq!(less.capacity.unwrap().free_cores, 80);
}

#[test]
fn a_loss_is_dated_once_and_its_return_clears_it() {
    let away = |secs| Some(Duration::from_secs(secs));
    let gone = PeerReport { state: PeerState::Disconnected, ..up("u1", 100) };
    let lost = status(&peer(Some(connected_status())), Some(&gone), away(20), now()).unwrap();
    assert!(!lost.connected);
    let since = lost.suspect_since.clone().unwrap();
    assert_eq!(since.0, Timestamp::from_second(980).unwrap());
    let known = peer(Some(lost));
    assert_eq!(status(&known, Some(&gone), away(90), now()), None, "written once");
    assert_eq!(status(&known, None, away(LOST_AFTER.as_secs()), now()), None, "a restart keeps the date");
    let back = status(&known, Some(&up("u1", 100)), NONE, now()).unwrap();
    assert_eq!((back.connected, back.suspect_since), (true, None));
}

#[test]
fn silence_is_marked_at_once_and_its_end_too() {
    let silent = PeerReport { state: PeerState::Suspect, ..up("u1", 100) };
    let marked = status(&peer(Some(connected_status())), Some(&silent), NONE, now()).unwrap();
    let condition = conditions::find(&marked.conditions, CONNECTED).unwrap();
    assert_eq!((marked.connected, condition.reason.as_str()), (false, "HeartbeatsMissing"));
    assert_eq!(marked.suspect_since, Some(Time(silent.last_seen.unwrap())), "since it was heard last");
    let known = peer(Some(marked));
    assert_eq!(status(&known, Some(&silent), NONE, now()), None, "written once");
    let back = status(&known, Some(&up("u1", 100)), NONE, now()).unwrap();
    assert_eq!((back.connected, back.suspect_since), (true, None));
}

#[test]
fn a_connection_that_keeps_breaking_is_written_once() {
    let flapping = |state| PeerReport { state, flapping: true, ..up("u1", 100) };
    let first = status(&peer(Some(connected_status())), Some(&flapping(PeerState::Suspect)), NONE, now()).unwrap();
    assert_eq!(conditions::find(&first.conditions, CONNECTED).unwrap().reason, "Flapping");
    let known = peer(Some(first));
    for (state, away) in [
        (PeerState::Connected, NONE),
        (PeerState::Suspect, NONE),
        (PeerState::Disconnected, Some(Duration::from_secs(60))),
        (PeerState::Connected, NONE),
    ] {
        assert_eq!(status(&known, Some(&flapping(state)), away, now()), None, "{state:?}");
    }
    let settled = status(&known, Some(&up("u1", 100)), NONE, now()).unwrap();
    assert_eq!((settled.connected, settled.suspect_since), (true, None));
}

#[test]
fn a_refusal_says_why_at_once() {
    let refusal = Refusal { reason: "WrongClusterUID".into(), message: "expected u1, got u2".into() };
    let report = PeerReport { state: PeerState::Refused, refusal: Some(refusal), ..PeerReport::default() };
    let refused = status(&peer(None), Some(&report), Some(Duration::ZERO), now()).unwrap();
    let condition = conditions::find(&refused.conditions, CONNECTED).unwrap();
    assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("WrongClusterUID", "expected u1, got u2"));
    assert_eq!(refused.suspect_since, None, "it never was connected");
    let mut suspended = peer(Some(connected_status()));
    suspended.spec.suspend = true;
    let status = status(&suspended, None, Some(Duration::ZERO), now()).unwrap();
    assert_eq!(conditions::find(&status.conditions, CONNECTED).unwrap().reason, "Suspended");
}

#[test]
fn what_a_peer_refuses_is_its_condition_at_once_whichever_of_both_is_too_old() {
    for (reason, message) in [
        (
            "IncompatibleVersion",
            "no common version: west (agent 0.9.0) speaks 4 to 5, this agent (0.1.0) 1 to 2; upgrade the older one",
        ),
        ("ClockSkew", "the clocks differ by 95 s"),
    ] {
        let refusal = Some(Refusal { reason: reason.into(), message: message.into() });
        let refused = PeerReport { state: PeerState::Refused, refusal, ..PeerReport::default() };
        let told = status(&peer(None), Some(&refused), Some(Duration::ZERO), now()).unwrap();
        let condition = conditions::find(&told.conditions, CONNECTED).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", reason));
        assert_eq!(condition.message, message);
        assert_eq!(status(&peer(Some(told)), Some(&refused), Some(Duration::from_secs(9)), now()), None, "said once");
    }
}
