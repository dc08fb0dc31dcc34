//! Peers that are let in and then behave badly. Others must not notice. What only real packets can do is in
//! [`super::rejected_peers`].

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use tributary_contract::DesiredBurst;
use tributary_contract::ports::State;

use super::raw::{Raw, counted, framed, heartbeat, hello};
use super::*;
use crate::testing::desired;
use crate::transport::CloseReason;
use crate::wire::digest::Digest;
use crate::wire::registry::CloseCode;
use crate::wire::{limits, proto};

/// The two good ones still talk, at once.
async fn others_are_fine(bed: &Bed, a: &Agent, bb: &Agent, generation: u64) {
    let start = bed.clock.mono();
    a.cluster.say_desired("bb", "fine", generation);
    bb.until_generation("a", "fine", generation).await;
    let took = bed.clock.mono().saturating_since(start);
    assert!(took <= Duration::from_millis(50), "{took:?}");
    assert!(a.cluster.reports("bb").iter().all(|report| report.state != PeerState::Suspect));
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_read_slowly_and_others_do_not_notice() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    let start = bed.clock.mono();
    let batch: Vec<u8> = std::iter::repeat_n(framed(heartbeat()), 1_000).flatten().collect();
    let flood = async {
        for _ in 0..40 {
            raw.write(&batch).await;
        }
        raw.say(proto::Body::Want(proto::Want { keys: vec![] })).await;
    };
    let meanwhile = async {
        for generation in 1..=20 {
            others_are_fine(&bed, &a, &bb, generation).await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::join!(flood, meanwhile);
    assert!(bed.clock.mono().saturating_since(start) >= Duration::from_secs(2), "it was slowed down");
    assert_eq!(counted(&a, "flood"), 1, "counted once per connection");
    assert_eq!(a.state_of("ccc"), PeerState::Connected, "it is not cut off for it");
}

/// The danger: who is read slowly connects anew, and is read at full speed again.
#[tokio::test(start_paused = true)]
async fn a_flood_goes_on_where_it_was_whatever_connection_it_comes_by() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    let (start, batch) = (bed.clock.mono(), framed(heartbeat()).repeat(15_000));
    for round in 1..=3 {
        let uid = format!("burst-{round}");
        raw.write(&batch).await;
        raw.say(put(round, &uid, &desired(&uid, 1))).await;
        a.cluster.until("what follows the flood", |cluster| cluster.heard_generation("ccc", &uid) == Some(1)).await;
        raw = Raw::again(&bed).await;
        raw.greet(hello(1, 1)).await;
    }
    let took = bed.clock.mono().saturating_since(start);
    assert!(took >= Duration::from_secs(6), "45,000 frames, of which 16,384 are read at once: {took:?}");
    others_are_fine(&bed, &a, &bb, 1).await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_cut_off_and_holds_little() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    for index in 0..200 {
        let uid = format!("burst-{index}");
        let mut burst = desired(&uid, 1);
        burst.template = serde_json::Value::String("x".repeat(100 << 10));
        a.cluster.say("ccc", desired_key(&uid), State::Desired(Box::new(burst)));
    }
    // It shows signs of life, and reads nothing.
    let (_, (code, reason)) = tokio::join!(
        async {
            for _ in 0..20 {
                raw.send.write_all(&framed(heartbeat())).await.ok();
                sleep(Duration::from_secs(1)).await;
            }
        },
        async {
            match raw.link.closed().await {
                CloseReason::Peer { code, reason } => (code, reason),
                other => panic!("{other:?}"),
            }
        },
    );
    assert_eq!((code, reason.as_str()), (CloseCode::Silent, "nothing of what was written was read for 9.4 s"));
    assert_eq!(counted(&a, "not_reading"), 1);
    assert!(bed.network.traffic("a", "ccc") < 1 << 20, "what it did not read was not even encoded");
    others_are_fine(&bed, &a, &bb, 1).await;
}

#[tokio::test(start_paused = true)]
async fn who_is_connected_and_says_nothing_is_closed() {
    let bed = Bed::new();
    let (a, bb, raw) = Raw::dial(&bed).await;
    let (code, reason) = raw.closed().await;
    assert_eq!((code, reason.as_str()), (CloseCode::Silent, "no accepted hello within 5 s"));
    assert_eq!(counted(&a, "half_open"), 1);
    others_are_fine(&bed, &a, &bb, 1).await;
}

#[tokio::test(start_paused = true)]
async fn garbage_and_frames_beyond_the_limit_end_the_connection_they_came_by() {
    for (bytes, kind) in [
        (vec![0, 0, 0, 3, 0xff, 0xff, 0xff], "malformed"),
        (vec![0x7f, 0xff, 0xff, 0xff], "malformed"),
        (framed(hello(1, 1)).to_vec(), "out_of_order"),
    ] {
        let bed = Bed::new();
        let (a, bb, mut raw) = Raw::established(&bed).await;
        raw.write(&bytes).await;
        assert_eq!(raw.closed().await.0, CloseCode::Protocol);
        assert_eq!(counted(&a, kind), 1, "{bytes:?}");
        others_are_fine(&bed, &a, &bb, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn states_that_lie_are_told_and_never_delivered() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    let put = |sequence, key: &str, about: &str| put(sequence, key, &desired(about, 1));
    raw.say(put(1, "mine", "yours")).await;
    assert_eq!(refused(&mut raw).await, "the state is about burst yours, its key about mine");
    assert_eq!(counted(&a, "unusable"), 1);
    // Replayed, and of an older and a newer leadership than its hello said.
    raw.say(put(5, "good", "good")).await;
    raw.say(put(4, "good", "good")).await;
    for epoch in [0, 9] {
        let proto::Body::Put(state) = put(6 + epoch, "other", "other") else { unreachable!() };
        raw.say(proto::Body::Put(proto::Put { epoch, ..state })).await;
    }
    a.cluster.until("the good one", |cluster| cluster.heard_generation("ccc", "good") == Some(1)).await;
    others_are_fine(&bed, &a, &bb, 1).await;
    assert_eq!(a.cluster.puts(), 1);
}

/// A state of `ccc`.
fn put(sequence: u64, key: &str, burst: &DesiredBurst) -> proto::Body {
    let state = serde_json::to_vec(burst).unwrap();
    proto::Body::Put(proto::Put {
        epoch: 1,
        sequence,
        key: Some(proto::Key { kind: 1, burst: key.into() }),
        digest: Bytes::copy_from_slice(Digest::of(&state).as_bytes()),
        state: Some(state.into()),
    })
}

/// Why the next of its states that is refused was refused.
async fn refused(raw: &mut Raw) -> String {
    raw.hear(|body| if let proto::Body::Reject(reject) = body { Some(reject.problem) } else { None }).await
}

fn summary(sequence: u64, keys: &[&str]) -> proto::Body {
    let entry = |key: &&str| proto::Entry {
        key: Some(proto::Key { kind: 1, burst: (*key).to_owned() }),
        digest: Bytes::copy_from_slice(&[1; 16]),
    };
    let entries = keys.iter().map(entry).collect();
    proto::Body::Summary(proto::Summary { epoch: 1, sequence, complete: true, entries })
}

/// Said again later, or on another connection, or by a leadership that is over: nothing of it counts.
#[tokio::test(start_paused = true)]
async fn what_was_said_before_counts_no_more_however_it_is_said_again() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    let keys = |agent: &Agent| agent.cluster.snapshots("ccc").pop();
    raw.say(put(5, "burst", &desired("burst", 1))).await;
    raw.say(summary(6, &["burst"])).await;
    a.cluster.until("the list", |_| keys(&a) == Some(vec![desired_key("burst")])).await;
    let lists = a.cluster.snapshots("ccc").len();

    // An old empty list would end the burst, an old state would bring another one back.
    raw.say(summary(4, &[])).await;
    raw.say(put(3, "gone", &desired("gone", 1))).await;
    // The same by another connection of the same process.
    let mut again = Raw::again(&bed).await;
    again.greet(hello(1, 1)).await;
    again.say(summary(6, &[])).await;
    again.say(put(5, "burst", &desired("burst", 9))).await;
    // And of a leadership before.
    for epoch in [0, 7] {
        let proto::Body::Summary(list) = summary(100, &[]) else { unreachable!() };
        again.say(proto::Body::Summary(proto::Summary { epoch, ..list })).await;
    }
    again.say(put(8, "last", &desired("last", 1))).await;
    a.cluster.until("what is new", |cluster| cluster.heard_generation("ccc", "last") == Some(1)).await;
    assert_eq!(a.cluster.heard_generation("ccc", "burst"), Some(1));
    assert_eq!((a.cluster.puts(), a.cluster.snapshots("ccc").len()), (2, lists));
    others_are_fine(&bed, &a, &bb, 1).await;
}

/// It weighs much, by many little values.
fn heavy(uid: &str) -> DesiredBurst {
    DesiredBurst { template: serde_json::Value::Array(vec![0.into(); 100 << 10]), ..desired(uid, 1) }
}

/// How many of them one peer may have here.
fn fit() -> usize {
    let fit = limits::STATES_OF_A_PEER / limits::weight(&serde_json::to_vec(&heavy("burst-10")).unwrap());
    assert!((5..15).contains(&fit), "{fit}");
    fit
}

const TOO_HEAVY: &str = "a peer takes 64 MiB of states at most: shorten templates, or burst less there";

/// However little a text is, what it takes in memory is bounded; and who says too much is told, state by state.
#[tokio::test(start_paused = true)]
async fn states_that_are_heavy_together_are_refused_from_a_point_on() {
    let (bed, fit) = (Bed::new(), fit());
    let (a, bb, mut raw) = Raw::established(&bed).await;
    for index in 10..20 + fit {
        let uid = format!("burst-{index}");
        raw.say(put(index as u64, &uid, &heavy(&uid))).await;
    }
    assert_eq!(refused(&mut raw).await, TOO_HEAVY);
    a.cluster.until("those that fit", |cluster| cluster.puts() == fit).await;
    for _ in 0..3 {
        raw.say(heartbeat()).await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!((a.cluster.puts(), counted(&a, "too_much_state")), (fit, 10));
    // What it wants no more makes room.
    raw.say(summary(1_000, &[])).await;
    raw.say(put(1_001, "later", &heavy("later"))).await;
    a.cluster.until("there is room", |cluster| cluster.heard_generation("ccc", "later") == Some(1)).await;
    others_are_fine(&bed, &a, &bb, 1).await;
}

/// The danger: who takes everything back, and says that another of its agents leads, begins from nothing, while all that it
/// said is still kept.
#[tokio::test(start_paused = true)]
async fn who_takes_all_back_as_leader_after_leader_fills_no_memory() {
    let (bed, fit) = (Bed::new(), fit());
    let (a, bb, mut raw) = Raw::established(&bed).await;
    a.cluster.set_keeps(true);
    for index in 10..10 + fit {
        let uid = format!("burst-{index}");
        raw.say(put(index as u64, &uid, &heavy(&uid))).await;
    }
    raw.say(summary(1_000, &[])).await;
    a.cluster.until("the first list", |cluster| cluster.snapshots("ccc").len() == 1).await;
    for leader in 2..5_u8 {
        raw = Raw::again(&bed).await;
        raw.greet(led(leader, hello(1, 1))).await;
        let uid = format!("other-{leader}0");
        raw.say(led(leader, put(1, &uid, &heavy(&uid)))).await;
        assert_eq!(refused(&mut raw).await, TOO_HEAVY);
        raw.say(led(leader, summary(2, &[]))).await;
        a.cluster.until("a list", |cluster| cluster.snapshots("ccc").len() == usize::from(leader)).await;
    }
    assert_eq!((a.cluster.puts(), counted(&a, "too_much_state")), (fit, 3));
    a.cluster.set_keeps(false);
    raw.say(led(4, summary(3, &[]))).await;
    raw.say(led(4, put(4, "later", &heavy("later")))).await;
    a.cluster.until("there is room", |cluster| cluster.heard_generation("ccc", "later") == Some(1)).await;
    others_are_fine(&bed, &a, &bb, 1).await;
}

/// The same, said by another leader: another process of `ccc`.
fn led(leader: u8, body: proto::Body) -> proto::Body {
    let epoch = u64::from(leader);
    match body {
        proto::Body::Hello(hello) => proto::Body::Hello(proto::Hello { epoch, instance: epoch, ..hello }),
        proto::Body::Put(put) => proto::Body::Put(proto::Put { epoch, ..put }),
        proto::Body::Summary(list) => proto::Body::Summary(proto::Summary { epoch, ..list }),
        other => other,
    }
}

#[tokio::test(start_paused = true)]
async fn names_without_end_end_the_connection() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    raw.say(put(1, &"u".repeat(limits::UID + 1), &desired("a", 1))).await;
    let (code, reason) = raw.closed().await;
    assert_eq!((code, reason.as_str()), (CloseCode::Protocol, "the message has no valid key"));
    assert_eq!((counted(&a, "malformed"), a.cluster.puts()), (1, 0));
    others_are_fine(&bed, &a, &bb, 1).await;
}
