//! Agents of different versions.

use bytes::BytesMut;
use prost::Message as _;
use tributary_clock::SystemClock;

use super::quic::{agent_as, transport_as};
use super::raw::{Raw, counted, heartbeat, hello, spec};
use super::*;
use crate::identity::Authority;
use crate::transport::quic::Manner;
use crate::wire::proto;
use crate::wire::registry::CloseCode;
use crate::wire::version::{WireVersion, WireVersions};

const fn versions(min: u32, max: u32) -> WireVersions {
    WireVersions { min: WireVersion(min), max: WireVersion(max) }
}

/// An agent over QUIC that speaks these versions, and offers their protocols.
fn agent(versions: WireVersions, river: &Authority, name: &'static str, clock: &SharedClock) -> (Agent, SocketAddr) {
    agent_as(Fittings { versions, ..Fittings::default() }, river, name, clock)
}

fn free(free_cores: u32) -> Capacity {
    Capacity { nodes: 1, free_cores, ..Capacity::default() }
}

async fn until_free(at: &Agent, peer: &str, free_cores: u32) {
    let told =
        |cluster: &Cluster| cluster.reports(peer).pop().and_then(|report| report.capacity) == Some(free(free_cores));
    at.cluster.until(&format!("{} knows what {peer} could give", at.name), told).await;
}

/// The one before this one, and this one: over QUIC, whoever dials, everything that is said arrives. The older one knows
/// of capacity from heartbeats only, the newer one says it in a message of its own where it is understood.
#[tokio::test]
async fn the_version_before_and_this_one_say_all_there_is_to_each_other() {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall()).unwrap();
    for (east, west) in
        [(versions(1, 1), versions(1, 2)), (versions(1, 2), versions(1, 1)), (versions(1, 2), versions(1, 2))]
    {
        let (east, _) = agent(east, &river, "east", &clock);
        let (west, west_at) = agent(west, &river, "west", &clock);
        west.knows("east", &[]);
        east.knows("west", &[west_at]);
        east.cluster.set_capacity(free(7));
        west.cluster.set_capacity(free(9));
        east.cluster.say_desired("west", "burst", 1);
        west.until_generation("east", "burst", 1).await;
        west.cluster.say_observed("east", "burst", 1);
        east.cluster.until("the answer", |cluster| cluster.heard("west", &observed_key("burst")).is_some()).await;
        until_free(&west, "east", 7).await;
        until_free(&east, "west", 9).await;
        east.cluster.set_capacity(free(3));
        until_free(&west, "east", 3).await;
        assert!(west.handle.query(&"east".into(), "/v1/local").await.is_some());
        for agent in [&east, &west] {
            assert_eq!(counted(agent, "malformed") + counted(agent, "out_of_order"), 0);
            agent.shutdown.cancel();
        }
    }
}

/// What goes over the wire, in either version: nothing that the other cannot read, and nothing twice.
#[tokio::test]
async fn each_is_spoken_to_in_its_own_version() {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall()).unwrap();
    let (east, east_at) = agent(WireVersions::OURS, &river, "east", &clock);
    east.knows("ccc", &[]);
    east.cluster.set_capacity(free(7));
    for version in [1, 2] {
        let manner = Manner { versions: versions(1, version), ..Manner::DEFAULT };
        let transport = transport_as(manner, &Timers::DEFAULT, &river, "ccc", &clock);
        transport.set_peers(&BTreeMap::from([("east".into(), spec("east"))]));
        let link = transport.dial(&spec("east"), east_at).await.unwrap();
        assert_eq!(link.version(), Some(WireVersion(version)), "TLS has agreed on it");
        let mut raw = Raw::over(link).await;
        let proto::Body::Hello(greeting) = hello(1, version) else { unreachable!() };
        // Each is another process of `ccc`.
        let agreed = raw.greet(proto::Body::Hello(proto::Hello { instance: version.into(), ..greeting })).await;
        assert_eq!(agreed, version);
        let (mut beats, mut apart) = (Vec::new(), Vec::new());
        while beats.len() < 2 || version == 2 && apart.is_empty() {
            let heard = raw.hear(|body| match body {
                proto::Body::Heartbeat(beat) => Some((true, beat.capacity)),
                proto::Body::Capacity(told) => Some((false, told.capacity)),
                _ => None,
            });
            let (beat, capacity) = heard.await;
            if beat {
                beats.push(capacity)
            } else {
                apart.push(capacity)
            }
            raw.say(heartbeat()).await;
        }
        let told = Some(proto::Capacity::from(free(7)));
        let expected = if version == 1 { (vec![told.clone(), told], vec![]) } else { (vec![None, None], vec![told]) };
        assert_eq!((beats, apart), expected, "version {version}");
    }
}

/// Far apart: both say so, with what each of them speaks and what to do.
#[tokio::test]
async fn who_has_no_version_in_common_is_told_which_is_too_old() {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall()).unwrap();
    let (east, _) = agent(versions(1, 2), &river, "east", &clock);
    let (west, west_at) = agent(versions(4, 5), &river, "west", &clock);
    west.knows("east", &[]);
    east.knows("west", &[west_at]);
    for (at, of, says) in
        [(&east, "west", "west (agent 0.1.0) speaks 4 to 5"), (&west, "east", "east (agent 0.1.0) speaks 1 to 2")]
    {
        let told = |cluster: &Cluster| {
            let refusal = cluster.reports(of).pop().and_then(|report| report.refusal);
            refusal.is_some_and(|refusal| refusal.reason == "IncompatibleVersion" && refusal.message.contains(says))
        };
        at.cluster.until(&format!("{} knows that {of} is of another age", at.name), told).await;
        let message = at.cluster.reports(of).pop().unwrap().refusal.unwrap().message;
        assert!(message.contains("no common version") && message.ends_with("upgrade the older one"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_may_have_fields_and_messages_that_nobody_here_knows() {
    let bed = Bed::new();
    let (a, _bb, mut raw) = Raw::dial(&bed).await;
    let proto::Body::Hello(newer) = hello(1, 7) else { unreachable!() };
    let newer = proto::Hello { capabilities: vec!["teleport".into(), "tunnel".into()], ..newer };
    // A field of a later version, number 99, in the hello, and a message of a later version after it.
    let mut unknown = proto::Envelope { body: Some(proto::Body::Hello(newer)) }.encode_to_vec();
    let inner = unknown.len() as u8 - 2;
    assert_eq!(unknown[1], inner, "one byte of length");
    unknown.extend_from_slice(&[0x9a, 0x06, 0x01, b'x']);
    unknown[1] += 4;
    let mut bytes = BytesMut::from(&(unknown.len() as u32).to_be_bytes()[..]);
    bytes.extend_from_slice(&unknown);
    raw.write(&bytes).await;
    let version = raw.hear(|body| if let proto::Body::HelloAck(ack) = body { Some(ack.version) } else { None }).await;
    assert_eq!(version, WireVersions::OURS.max.0, "the highest both speak");
    raw.say(proto::Body::HelloAck(proto::HelloAck { version })).await;
    a.cluster.until_state("ccc", PeerState::Connected).await;
    raw.write(&[0, 0, 0, 4, 0x9a, 0x06, 0x01, b'x']).await;
    for _ in 0..5 {
        sleep(Duration::from_secs(2)).await;
        raw.say(heartbeat()).await;
    }
    assert_eq!(a.state_of("ccc"), PeerState::Connected);
}

#[tokio::test(start_paused = true)]
async fn who_acknowledges_a_version_that_was_not_agreed_on_is_closed() {
    let bed = Bed::new();
    let (a, _bb, mut raw) = Raw::dial(&bed).await;
    raw.say(hello(1, 1)).await;
    raw.say(proto::Body::HelloAck(proto::HelloAck { version: 4 })).await;
    let (code, reason) = raw.closed().await;
    assert_eq!(
        (code, reason.as_str()),
        (CloseCode::Protocol, "version 4 is acknowledged, 1 is the highest common one")
    );
    assert_eq!(counted(&a, "out_of_order"), 1);
}
