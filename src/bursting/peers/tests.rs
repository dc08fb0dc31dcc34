use tributary_api::peer::ClusterPeerSpec;
use tributary_clock::{Mono, Now};
use tributary_contract::PossibleCapacity;

use super::*;

const NONE: Option<Duration> = None;

fn peer(status: Option<ClusterPeerStatus>) -> ClusterPeer {
    let spec = ClusterPeerSpec { endpoints: vec!["west:7946".into()], ..ClusterPeerSpec::default() };
    let mut peer = ClusterPeer::new("west", spec);
    peer.metadata.generation = Some(3);
    peer.status = status;
    peer
}

fn status(
    peer: &ClusterPeer,
    report: Option<&PeerReport>,
    away: Option<Duration>,
    brokers: u32,
    now: Now,
) -> Option<ClusterPeerStatus> {
    let hourly = peer.spec.price.unwrap_or_default().hourly(brokers, 1000, 0);
    super::status(peer, report, away, (Usage { brokers, hourly, ..Usage::default() }, now.wall, false), now)
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
    status(&peer(None), Some(&up("u1", 100)), NONE, 0, now()).unwrap()
}

#[test]
fn the_cluster_uid_is_pinned_once_and_the_users_word_wins() {
    let first = connected_status();
    assert_eq!(first.cluster_uid.as_deref(), Some("u1"));
    let mut known = peer(Some(first));
    assert_eq!(status(&known, Some(&up("u2", 100)), NONE, 0, now()), None, "another UID is not taken over");
    assert_eq!(known.pinned_uid(), Some("u1"));
    known.spec.cluster_uid = Some("u9".into());
    assert_eq!(known.pinned_uid(), Some("u9"));
    let specs = specs([&known, &ClusterPeer::new("east", ClusterPeerSpec::default())], &"east".into());
    assert_eq!(specs.len(), 1, "our own name is no peer");
    assert_eq!(specs["west"].cluster_uid, Some("u9".into()));
}

/// The danger: one set of ClusterPeers is applied to all clusters, and the cluster's own looks like a fault of the network.
#[test]
fn our_own_name_is_no_fault_of_the_network() {
    let (own, other) = ("west".into(), "east".into());
    let report = reported(&own, &own, None).unwrap();
    let said = status(&peer(None), Some(&report), Some(Duration::ZERO), 0, now()).unwrap();
    let condition = conditions::find(&said.conditions, CONNECTED).unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "OwnName"));
    assert_eq!(status(&peer(Some(said)), Some(&report), Some(LOST_AFTER), 0, now()), None, "written once");
    assert_eq!(reported(&other, &own, Some(up("u1", 100))), Some(up("u1", 100)));
}

#[test]
fn only_transitions_are_written() {
    let known = peer(Some(connected_status()));
    let quiet = [("nothing new", up("u1", 100), NONE), ("a little less room", up("u1", 91), NONE)];
    for (case, report, away) in quiet {
        assert_eq!(status(&known, Some(&report), away, 0, now()), None, "{case}");
    }
    let restarted = Some(LOST_AFTER - Duration::from_secs(1));
    assert_eq!(status(&known, None, restarted, 0, now()), None, "a restarted agent writes nothing");
    let less = status(&known, Some(&up("u1", 80)), NONE, 0, now()).unwrap();
    assert_eq!(less.capacity.unwrap().free_cores, 80);
}

#[test]
fn a_loss_is_dated_once_and_its_return_clears_it() {
    let away = |secs| Some(Duration::from_secs(secs));
    let gone = PeerReport { state: PeerState::Disconnected, ..up("u1", 100) };
    let lost = status(&peer(Some(connected_status())), Some(&gone), away(20), 0, now()).unwrap();
    assert!(!lost.connected);
    let since = lost.suspect_since.clone().unwrap();
    assert_eq!(since.0, Timestamp::from_second(980).unwrap());
    let known = peer(Some(lost));
    assert_eq!(status(&known, Some(&gone), away(90), 0, now()), None, "written once");
    assert_eq!(status(&known, None, away(LOST_AFTER.as_secs()), 0, now()), None, "a restart keeps the date");
    let back = status(&known, Some(&up("u1", 100)), NONE, 0, now()).unwrap();
    assert_eq!((back.connected, back.suspect_since), (true, None));
}

#[test]
fn silence_is_marked_at_once_and_its_end_too() {
    let silent = PeerReport { state: PeerState::Suspect, ..up("u1", 100) };
    let marked = status(&peer(Some(connected_status())), Some(&silent), NONE, 0, now()).unwrap();
    let condition = conditions::find(&marked.conditions, CONNECTED).unwrap();
    assert_eq!((marked.connected, condition.reason.as_str()), (false, "HeartbeatsMissing"));
    assert_eq!(marked.suspect_since, Some(Time(silent.last_seen.unwrap())), "since it was heard last");
    let known = peer(Some(marked));
    assert_eq!(status(&known, Some(&silent), NONE, 0, now()), None, "written once");
    let back = status(&known, Some(&up("u1", 100)), NONE, 0, now()).unwrap();
    assert_eq!((back.connected, back.suspect_since), (true, None));
}

#[test]
fn a_connection_that_keeps_breaking_is_written_once() {
    let flapping = |state| PeerReport { state, flapping: true, ..up("u1", 100) };
    let first = status(&peer(Some(connected_status())), Some(&flapping(PeerState::Suspect)), NONE, 0, now()).unwrap();
    assert_eq!(conditions::find(&first.conditions, CONNECTED).unwrap().reason, "Flapping");
    let known = peer(Some(first));
    for (state, away) in [
        (PeerState::Connected, NONE),
        (PeerState::Suspect, NONE),
        (PeerState::Disconnected, Some(Duration::from_secs(60))),
        (PeerState::Connected, NONE),
    ] {
        assert_eq!(status(&known, Some(&flapping(state)), away, 0, now()), None, "{state:?}");
    }
    let settled = status(&known, Some(&up("u1", 100)), NONE, 0, now()).unwrap();
    assert_eq!((settled.connected, settled.suspect_since), (true, None));
}

#[test]
fn a_refusal_says_why_at_once() {
    let refusal = Refusal { reason: "WrongClusterUID".into(), message: "expected u1, got u2".into() };
    let report = PeerReport { state: PeerState::Refused, refusal: Some(refusal), ..PeerReport::default() };
    let refused = status(&peer(None), Some(&report), Some(Duration::ZERO), 0, now()).unwrap();
    let condition = conditions::find(&refused.conditions, CONNECTED).unwrap();
    assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("WrongClusterUID", "expected u1, got u2"));
    assert_eq!(refused.suspect_since, None, "it never was connected");
    let mut suspended = peer(Some(connected_status()));
    suspended.spec.suspend = true;
    let status = status(&suspended, None, Some(Duration::ZERO), 0, now()).unwrap();
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
        let told = status(&peer(None), Some(&refused), Some(Duration::ZERO), 0, now()).unwrap();
        let condition = conditions::find(&told.conditions, CONNECTED).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", reason));
        assert_eq!(condition.message, message);
        assert_eq!(
            status(&peer(Some(told)), Some(&refused), Some(Duration::from_secs(9)), 0, now()),
            None,
            "said once"
        );
    }
}

#[test]
fn what_our_bursts_use_of_a_peer_is_counted_through_every_blip_and_ends_with_its_budget() {
    let mut known = peer(Some(connected_status()));
    known.spec.budget = serde_saphyr::from_str("{brokerHours: 1}").unwrap();
    let at = |second: i64| Now { wall: Timestamp::from_second(1_000 + second).unwrap(), ..now() };
    let blip = Some(Duration::from_secs(1));
    let said = |status: &ClusterPeerStatus| {
        let condition = conditions::find(&status.conditions, BUDGET).unwrap();
        (condition.status.clone(), condition.reason.clone())
    };
    let used = status(&known, Some(&up("u1", 100)), NONE, 4, at(0)).unwrap();
    assert_eq!((used.spent.brokers, said(&used)), (4, ("True".into(), "Within".into())));
    known.status = Some(used);
    assert_eq!(status(&known, None, blip, 4, at(60)), None, "a blip writes nothing");
    assert_eq!(budget_wake(&known, &known.status.as_ref().unwrap().spent, at(0).wall).unwrap().as_secs(), 810);
    known.status = status(&known, Some(&up("u1", 100)), NONE, 4, at(810));
    assert_eq!(said(known.status.as_ref().unwrap()), ("True".into(), "Ending".into()));
    assert!(!PeerView::of(&known, None, at(899).wall).is_leaving());
    assert!(PeerView::of(&known, None, at(900).wall).is_leaving(), "without anybody having written it");
    known.status = status(&known, None, blip, 0, at(930));
    assert_eq!(known.status.as_ref().unwrap().spent.broker_seconds, 3_720, "what drained has counted");
    assert_eq!(said(known.status.as_ref().unwrap()), ("False".into(), "Spent".into()));
    assert!(conditions::is_true(&known.status.as_ref().unwrap().conditions, CONNECTED), "a blip says nothing else");
    known.spec.price = serde_saphyr::from_str("{coreHour: \"0.5\"}").unwrap();
    known.spec.budget = serde_saphyr::from_str("{cost: 1, renewal: money}").unwrap();
    known.status = status(&known, Some(&up("u1", 100)), NONE, 4, at(1_000));
    assert_eq!(budget_wake(&known, &known.status.as_ref().unwrap().spent, at(1_000).wall).unwrap().as_secs(), 1_620);
    assert!(!PeerView::of(&known, None, at(2_799).wall).is_leaving());
    let gone = PeerView::of(&known, None, at(2_800).wall);
    assert_eq!(gone.exhausted.as_deref(), Some("cost 1 of the peer is spent"), "four cores at half of one an hour");
    known.spec.budget.renewal = Some("2027".into());
    known.status = status(&known, Some(&up("u1", 100)), NONE, 0, at(2_000));
    assert_eq!(PeerView::of(&known, None, at(2_000).wall).exhausted, None);
    known.spec.budget = BurstBudget::default();
    let free = status(&known, Some(&up("u1", 100)), NONE, 0, at(2_001)).unwrap();
    assert_eq!(conditions::find(&free.conditions, BUDGET), None);
}

/// The dangers: nodes that are added cost no GPU hours, since their group names none; or a budget counts less than they cost.
#[test]
fn nodes_that_are_added_cost_the_higher_of_what_both_sides_wrote() {
    let price = |text: &str| -> Option<Price> { serde_saphyr::from_str(text).unwrap() };
    let of = |own: &str, of_nodes: &str| {
        let possible = Some(PossibleCapacity { price: price(of_nodes), ..PossibleCapacity::default() });
        let capacity = Some(Capacity { possible, ..Capacity::default() });
        PeerView { price: price(own), capacity, ..PeerView::default() }
    };
    let own = "{coreHour: \"0.04\", gpuHour: \"2.10\"}";
    for (case, own, of_nodes, expected) in [
        ("a group that names one", own, "{coreHour: \"0.05\"}", "{coreHour: \"0.05\", gpuHour: \"2.10\"}"),
        ("a cheaper group beside one without a price", own, "{coreHour: \"0.01\", gpuHour: 1}", own),
        ("a group without a price", own, "null", own),
        ("none written here", "null", "{gpuHour: 3}", "{gpuHour: 3}"),
        ("nor there", "null", "null", "null"),
    ] {
        let view = of(own, of_nodes);
        assert_eq!((view.price(true), view.price(false)), (price(expected), price(own)), "{case}");
    }
}

#[test]
fn amounts_that_no_node_has_are_named_until_they_are_corrected() {
    let scaling = |status: Option<ClusterPeerStatus>, cpu: &str, memory: &str| {
        let mut peer = peer(status);
        let policy =
            serde_json::json!({"maxNodes": 1, "nodeGroups": [{"name": "large", "cpu": cpu, "memory": memory}]});
        let import = ImportPolicy { scale_up: serde_json::from_value(policy).unwrap(), ..ImportPolicy::default() };
        peer.spec.import = Some(import);
        peer
    };
    let said = |peer: &ClusterPeer| {
        let status = status(peer, Some(&up("u1", 100)), NONE, 0, now()).unwrap();
        let said = conditions::find(&status.conditions, SCALE_UP);
        (said.map(|said| (said.status.clone(), said.message.clone())), status)
    };
    assert_eq!(said(&scaling(None, "64", "256Gi")).0, None);
    let (told, status) = said(&scaling(None, "0", "0Gi"));
    let (holds, message) = told.unwrap();
    assert_eq!(holds, "False");
    let both =
        "import.scaleUp.nodeGroups[large].cpu: 0 is nothing that a node has; import.scaleUp.nodeGroups[large].memory: ";
    assert!(message.starts_with(both), "{message}");
    assert_eq!(said(&scaling(Some(status), "64", "256Gi")).0, None);
}

#[test]
fn who_is_to_be_asked_for_nodes_and_is_not_there_is_named_until_it_is() {
    let mut peer = peer(None);
    let policy = |class: Option<&str>| {
        let mut policy =
            serde_json::json!({"maxNodes": 1, "nodeGroups": [{"name": "large", "cpu": 64, "memory": "256Gi"}]});
        if let Some(class) = class {
            policy["provisioningRequest"] = serde_json::json!({"provisioningClassName": class});
        }
        Some(ImportPolicy { scale_up: serde_json::from_value(policy).unwrap(), ..ImportPolicy::default() })
    };
    let mut said = |import: Option<ImportPolicy>, unserved: bool| {
        peer.spec.import = import;
        let usage = (Usage::default(), now().wall, unserved);
        if let Some(status) = super::status(&peer, Some(&up("u1", 100)), NONE, usage, now()) {
            peer.status = Some(status);
        }
        let conditions = &peer.status.as_ref().unwrap().conditions;
        conditions::find(conditions, SCALE_UP).map(|said| (said.reason.clone(), said.message.clone()))
    };
    assert_eq!(said(policy(None), true), None, "nobody is asked");
    assert_eq!(said(policy(Some("a.b")), false), None);
    let (reason, message) = said(policy(Some("a.b")), true).unwrap();
    assert_eq!(reason, "NotServed");
    assert!(
        message.starts_with("import.scaleUp.provisioningRequest: ") && message.contains("of class a.b"),
        "{message}"
    );
    assert_eq!(said(policy(Some("a.b")), false), None);
}
