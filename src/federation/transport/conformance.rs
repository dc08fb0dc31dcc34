//! What every transport has to do, as one test: [`conforms`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tributary_contract::PeerSpec;

use super::{Accepted, CloseReason, Link, RecvHalf, SendHalf, Transport};
use crate::wire::limits;
use crate::wire::registry::{CloseCode, StreamKind};

/// Three clusters of one trust domain. `conforms` configures who knows whom.
pub(crate) struct Clusters {
    /// Cluster `east`.
    pub(crate) east: Arc<dyn Transport>,
    /// Cluster `west`.
    pub(crate) west: Arc<dyn Transport>,
    /// Cluster `north`, which `east` does not know.
    pub(crate) north: Arc<dyn Transport>,
}

/// Holds a transport to its trait's promises. At the end, `east` is shut down.
pub(crate) async fn conforms(clusters: Clusters) {
    // Real transports take real time if something is broken; virtual time is free.
    timeout(Duration::from_secs(60), all(clusters)).await.expect("a transport that does not hang");
}

async fn all(Clusters { east, west, north }: Clusters) {
    let know = |transport: &Arc<dyn Transport>, names: &[&str]| {
        let specs: BTreeMap<_, _> = names.iter().map(|name| ((*name).into(), spec(name))).collect();
        transport.set_peers(&specs);
    };
    know(&east, &["west"]);
    know(&west, &["east", "impostor"]);
    know(&north, &["east"]);

    let (near, far) = connect(&west, &east).await;
    identities(&*near, &*far);
    streams(&*near, &*far).await;
    streams(&*far, &*near).await;
    an_abandoned_accept_loses_nothing(&*near, &*far).await;
    closing(&*near, &*far).await;
    let (near, far) = connect(&west, &east).await;
    closing(&*far, &*near).await;

    wrong_name(&west, &east).await;
    unknown(&north, &east).await;
    shutdown(&west, &east).await;
}

fn spec(name: &str) -> PeerSpec {
    PeerSpec { name: name.into(), ..PeerSpec::default() }
}

async fn connect(dialler: &Arc<dyn Transport>, listener: &Arc<dyn Transport>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let peer = spec("east");
    let (dialled, accepted) = tokio::join!(dialler.dial(&peer, listener.local_addr()), listener.accept());
    match accepted {
        Some(Accepted::Link(link)) => (dialled.unwrap(), link),
        Some(Accepted::Refused(refused)) => panic!("{refused:?}"),
        Some(Accepted::Broken { detail, .. }) => panic!("{detail}"),
        None => panic!("the listener ended"),
    }
}

fn identities(near: &dyn Link, far: &dyn Link) {
    let (of_east, of_west) = (near.identity(), far.identity());
    assert_eq!((of_east.name.as_str(), of_west.name.as_str()), ("east", "west"));
    assert_eq!(of_east.trust_domain, of_west.trust_domain);
    assert_ne!(of_east.fingerprint, of_west.fingerprint);
    assert_eq!(near.expires(), of_east.not_after.min(of_west.not_after), "the first end of both");
    assert_eq!(near.expires(), far.expires());
    assert!(near.remote().parse::<std::net::SocketAddr>().is_ok());
}

/// Several streams at a time, in both directions, with their ends.
async fn streams(opener: &dyn Link, taker: &dyn Link) {
    let mut open: Vec<(SendHalf, RecvHalf)> = Vec::new();
    for (index, kind) in [StreamKind::Control, StreamKind::Query, StreamKind::Credential].into_iter().enumerate() {
        let (mut send, recv) = opener.open(kind).await.unwrap();
        send.write_all(format!("question {index}").as_bytes()).await.unwrap();
        send.shutdown().await.unwrap();
        open.push((send, recv));
    }
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let (kind, mut send, mut recv) = taker.accept().await.expect("a stream");
        let mut text = String::new();
        recv.read_to_string(&mut text).await.unwrap();
        send.write_all(format!("{kind:?} {text}").as_bytes()).await.unwrap();
        send.shutdown().await.unwrap();
        kinds.push(kind);
    }
    kinds.sort();
    assert_eq!(kinds, [StreamKind::Control, StreamKind::Query, StreamKind::Credential]);
    for ((_, mut recv), answer) in
        open.into_iter().zip(["Control question 0", "Query question 1", "Credential question 2"])
    {
        let mut text = String::new();
        recv.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, answer);
    }
    assert!(opener.rtt().is_some());
}

async fn an_abandoned_accept_loses_nothing(opener: &dyn Link, taker: &dyn Link) {
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(1), taker.accept()).await.is_err(), "nothing was opened");
    }
    let (mut send, _recv) = opener.open(StreamKind::Query).await.unwrap();
    send.write_all(b"?").await.unwrap();
    send.flush().await.unwrap();
    let (kind, mut reply, mut recv) = taker.accept().await.unwrap();
    assert_eq!((kind, recv.read_u8().await.unwrap()), (StreamKind::Query, b'?'));
    // A reader that goes away ends the writer, sooner or later.
    drop(recv);
    // Little at a time: a flood would drop the packets that come after it.
    let mut pieces = 0;
    while send.write_all(&[0; 512]).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        pieces += 1;
        assert!(pieces < 4_096, "a writer without a reader");
    }
    reply.shutdown().await.unwrap();
}

async fn closing(closer: &dyn Link, other: &dyn Link) {
    let (mut send, mut recv) = other.open(StreamKind::Query).await.unwrap();
    send.write_all(b"?").await.unwrap();
    let long = "x".repeat(limits::REASON + 50);
    closer.close(CloseCode::Suspended, &long);
    closer.close(CloseCode::Done, "once more");
    assert_eq!(closer.closed().await, CloseReason::Local(CloseCode::Suspended), "the first one counts");
    for _ in 0..2 {
        let told = CloseReason::Peer { code: CloseCode::Suspended, reason: long[..limits::REASON].to_owned() };
        assert_eq!(other.closed().await, told);
    }
    assert!(recv.read_u8().await.is_err(), "its streams end");
    assert!(closer.accept().await.is_none() && other.accept().await.is_none());
    assert!(closer.open(StreamKind::Query).await.is_err());
}

async fn wrong_name(dialler: &Arc<dyn Transport>, listener: &Arc<dyn Transport>) {
    let error = dialler.dial(&spec("impostor"), listener.local_addr()).await.err().expect("another cluster listens");
    assert_eq!(error.refusal.reason, "WrongIdentity");
}

/// Who is not known is told so, and so are we.
async fn unknown(dialler: &Arc<dyn Transport>, listener: &Arc<dyn Transport>) {
    let peer = spec("east");
    let (dialled, refused) = tokio::join!(dialler.dial(&peer, listener.local_addr()), refused(listener));
    assert_eq!(refused.refusal.reason, "UnknownPeer");
    assert_eq!(refused.claimed, Some("north".into()));
    match dialled {
        Err(error) => assert_eq!(error.refusal.reason, "UnknownPeer"),
        Ok(link) => {
            let reason = match link.closed().await {
                CloseReason::Peer { code, .. } => code.refusal().map(|reason| reason.as_str().to_owned()),
                CloseReason::Refused(refusal) => Some(refusal.reason),
                reason => panic!("{reason:?}"),
            };
            assert_eq!(reason.as_deref(), Some("UnknownPeer"));
        }
    }
}

/// The next one turned away for being unknown; a dialler that did not like us may come before.
async fn refused(listener: &Arc<dyn Transport>) -> super::RefusedLink {
    loop {
        match listener.accept().await {
            Some(Accepted::Refused(refused)) if refused.refusal.reason == "UnknownPeer" => return refused,
            Some(_) => {}
            None => panic!("the listener ended"),
        }
    }
}

async fn shutdown(dialler: &Arc<dyn Transport>, listener: &Arc<dyn Transport>) {
    let (near, _far) = connect(dialler, listener).await;
    listener.shutdown().await;
    assert!(matches!(near.closed().await, CloseReason::Peer { code: CloseCode::Done, .. }));
    assert!(listener.accept().await.is_none());
}
