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
