//! Addresses of both families, and ones that are taken.

use super::*;

#[tokio::test]
async fn ipv6_and_dual_stack() {
    let river = authority("river");
    let v4 = Node::new(&river, "west");
    let error = v4.transport.dial(&spec("east"), (Ipv6Addr::LOCALHOST, 7946).into()).await.err().unwrap();
    assert!(error.refusal.message.contains("has no IPv6; set federation.listen to"), "{}", error.refusal.message);

    let both = match Node::at(&river, "east", (Ipv6Addr::UNSPECIFIED, 0).into()) {
        Ok(node) => node,
        Err(error) => return eprintln!("SKIPPED, this machine has no IPv6: {error}: {}", error.source),
    };
    both.knows(&[spec("west"), spec("north")]);
    let port = both.transport.local_addr().port();
    let v6 = Node::at(&river, "north", (Ipv6Addr::LOCALHOST, 0).into()).unwrap();
    let to_both = both.spec();
    for (node, ip) in [(&v4, IpAddr::from(Ipv4Addr::LOCALHOST)), (&v6, Ipv6Addr::LOCALHOST.into())] {
        let (dialled, accepted) = tokio::join!(node.transport.dial(&to_both, (ip, port).into()), both.accept_link());
        let dialled = dialled.unwrap();
        assert_eq!(dialled.remote(), SocketAddr::from((ip, port)).to_string());
        assert_eq!(accepted.remote(), node.transport.local_addr().to_string(), "no mapped prefix");
        // And back, from the dual-stack socket.
        node.knows(&[both.spec()]);
        let to_node = node.spec();
        let back = both.transport.dial(&to_node, node.transport.local_addr());
        assert!(tokio::join!(back, node.accept_link()).0.is_ok());
    }
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let river = authority("river");
    let first = Node::new(&river, "east");
    let error = Node::at(&river, "west", first.transport.local_addr()).err().unwrap();
    assert!(error.to_string().contains(&first.transport.local_addr().to_string()), "{error}");
}

/// A NAT between one client and a server, which can forget what it translates to what, and leads one address nowhere.
struct Nat {
    inside: Arc<tokio::net::UdpSocket>,
    outside: watch::Sender<Arc<tokio::net::UdpSocket>>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Nat {
    async fn before(server: SocketAddr, nowhere: Option<SocketAddr>) -> Self {
        let inside = Arc::new(tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let outside = watch::Sender::new(Self::outside(server).await);
        let client = watch::Sender::<Option<SocketAddr>>::default();
        let (from_client, to_server, seen) = (inside.clone(), outside.subscribe(), client.clone());
        let there = async move {
            let mut buffer = [0; 2_000];
            loop {
                let (length, from) = from_client.recv_from(&mut buffer).await.unwrap();
                if Some(from) == nowhere {
                    continue;
                }
                seen.send_replace(Some(from));
                let outside = to_server.borrow().clone();
                outside.send(&buffer[..length]).await.unwrap();
            }
        };
        let (to_client, mut from_server, client) = (inside.clone(), outside.subscribe(), client.subscribe());
        let back = async move {
            let mut buffer = [0; 2_000];
            loop {
                let outside = from_server.borrow_and_update().clone();
                tokio::select! {
                    received = outside.recv(&mut buffer) => {
                        let to = client.borrow().unwrap();
                        to_client.send_to(&buffer[..received.unwrap()], to).await.unwrap();
                    }
                    // What comes to the old address is lost.
                    _ = from_server.changed() => {}
                }
            }
        };
        let tasks = [AbortOnDropHandle::new(tokio::spawn(there)), AbortOnDropHandle::new(tokio::spawn(back))];
        Self { inside, outside, _tasks: tasks }
    }

    async fn outside(server: SocketAddr) -> Arc<tokio::net::UdpSocket> {
        let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        socket.connect(server).await.unwrap();
        Arc::new(socket)
    }

    async fn rebind(&self, server: SocketAddr) {
        self.outside.send_replace(Self::outside(server).await);
    }

    fn outside_address(&self) -> String {
        self.outside.borrow().local_addr().unwrap().to_string()
    }
}

#[tokio::test]
async fn a_connection_survives_a_nat_that_rebinds() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    let server = east.transport.local_addr();
    let nat = Nat::before(server, None).await;
    let to_east = east.spec();
    let (dialled, accepted) =
        tokio::join!(west.transport.dial(&to_east, nat.inside.local_addr().unwrap()), east.accept_link());
    let dialled = dialled.unwrap();
    for _ in 0..2 {
        // Both directions, from the new address on.
        let (mut send, mut recv) = dialled.open(StreamKind::Query).await.unwrap();
        send.write_all(b"where am I").await.unwrap();
        send.shutdown().await.unwrap();
        let (_, mut answer, mut question) = accepted.accept().await.unwrap();
        question.read_to_string(&mut String::new()).await.unwrap();
        answer.write_all(&vec![b'x'; 300_000]).await.unwrap();
        answer.shutdown().await.unwrap();
        let mut text = String::new();
        recv.read_to_string(&mut text).await.unwrap();
        assert_eq!(text.len(), 300_000);
        assert_eq!(accepted.remote(), nat.outside_address());
        nat.rebind(server).await;
    }
    assert_eq!(dialled.remote(), nat.inside.local_addr().unwrap().to_string());
}

/// The danger: a load balancer leads what comes from our port to where nobody is any more, for as long as it comes from there.
#[tokio::test(start_paused = true)]
async fn who_dials_into_silence_tries_another_port() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    let nat = Nat::before(east.transport.local_addr(), Some(west.transport.local_addr())).await;
    let (to_east, at) = (east.spec(), nat.inside.local_addr().unwrap());
    for _ in 0..SILENT_DIALS {
        let error = west.transport.dial(&to_east, at).await.err().unwrap();
        assert_eq!(error.refusal.reason, "Unreachable");
    }
    tokio::time::resume();
    let dialled = west.transport.dial(&to_east, at).await.unwrap();
    let accepted = east.accept_link().await;
    // What is dialled beside it goes the same way.
    let beside = west.transport.dial_tunnel(&to_east, at).await.unwrap();
    let elsewhere = west.transport.elsewhere(&to_east.name).unwrap();
    assert_ne!(elsewhere.local_addr().unwrap(), west.transport.local_addr());
    // One that fails there takes that port from nobody.
    west.transport.dialled(&to_east.name, Some((elsewhere.clone(), &Arc::default())), false);
    assert!(west.transport.elsewhere(&to_east.name).is_some());
    drop((dialled, accepted, beside));
    assert!(west.transport.elsewhere(&to_east.name).is_none(), "our own port is what most networks let through");
}
