//! Broker traffic between two agents over QUIC on loopback: a server stands for the lead broker.

use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;
use tributary_clock::{SharedClock, SystemClock, SystemRng};
use tributary_contract::tunnel::{Inlet, Inlets, Listening, Outlet, Outlets, TunnelKey};

use super::quic::transport;
use super::*;
use crate::identity::Authority;
use crate::mesh::resolve::Resolver;
use crate::tunnel::TunnelMetrics;

pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Patience with a slow machine; nothing is concluded from it.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// `east` is the root, `west` the provider.
pub(super) struct Pair {
    east: Agent,
    west: Agent,
    river: Authority,
    clock: SharedClock,
    pub(super) outlets: watch::Sender<Outlets>,
    pub(super) inlets: watch::Sender<Inlets>,
    unused: Unused,
    listening: watch::Receiver<Listening>,
    pub(super) metrics: [TunnelMetrics; 2],
    /// Where the burst's end finds the agent of `west` that leads.
    pub(super) leads: watch::Sender<SocketAddr>,
    relay: Relay,
}

/// What is not looked at: the tables of the other side.
type Unused = (watch::Sender<Outlets>, watch::Sender<Inlets>);

/// An agent of that epoch, and where it listens.
fn agent(
    (name, epoch): (&'static str, u64),
    river: &Authority,
    clock: &SharedClock,
    tunnels: TunnelPorts,
) -> (Agent, SocketAddr) {
    let timers = Timers::liveness(Duration::from_millis(200), Duration::from_millis(900), Duration::from_secs(30));
    let transport = transport(river, name, clock);
    let address = transport.local_addr();
    let resolve = Arc::new(Resolver::system(Box::new(SystemRng)));
    let fittings = Fittings { timers: timers.unwrap(), tunnels, ..Fittings::default() };
    (Agent::fitted(name, epoch, clock.clone(), (transport, resolve), fittings), address)
}

impl Pair {
    pub(super) async fn new() -> Self {
        let clock = SystemClock::shared();
        let river = Authority::create("river", clock.wall()).unwrap();
        let (outlets, inlets, unused) = (watch::Sender::default(), watch::Sender::default(), Unused::default());
        let metrics = [TunnelMetrics::default(), TunnelMetrics::default()];
        let root = TunnelPorts {
            outlets: outlets.subscribe(),
            inlets: unused.1.subscribe(),
            metrics: metrics[0].clone(),
            ..TunnelPorts::none()
        };
        let (east, east_at) = agent(("east", 1), &river, &clock, root);
        east.knows("west", &[]);
        let relay = Relay::to(east_at).await;
        let listening = watch::Sender::default();
        let provider = TunnelPorts {
            outlets: unused.0.subscribe(),
            inlets: inlets.subscribe(),
            listening: listening.clone(),
            metrics: metrics[1].clone(),
            ..TunnelPorts::none()
        };
        let (west, _) = agent(("west", 1), &river, &clock, provider);
        west.knows("east", &[relay.address]);
        let listening = listening.subscribe();
        let leads = watch::Sender::new((HERE, 1).into());
        Self { east, west, river, clock, outlets, inlets, unused, listening, metrics, leads, relay }
    }

    /// Another agent leads in `west`; the one before is returned.
    fn another_west(&mut self) -> Agent {
        let listening = watch::Sender::default();
        let provider = TunnelPorts {
            outlets: self.unused.0.subscribe(),
            inlets: self.inlets.subscribe(),
            listening: listening.clone(),
            metrics: self.metrics[1].clone(),
            ..TunnelPorts::none()
        };
        let (west, _) = agent(("west", 2), &self.river, &self.clock, provider);
        west.knows("east", &[self.relay.address]);
        self.listening = listening.subscribe();
        std::mem::replace(&mut self.west, west)
    }

    /// Another agent leads in `east`; the one before is returned.
    fn another_east(&mut self) -> Agent {
        let root = TunnelPorts {
            outlets: self.outlets.subscribe(),
            inlets: self.unused.1.subscribe(),
            metrics: self.metrics[0].clone(),
            ..TunnelPorts::none()
        };
        let (east, at) = agent(("east", 2), &self.river, &self.clock, root);
        east.knows("west", &[]);
        self.relay.target.send_replace(at);
        std::mem::replace(&mut self.east, east)
    }

    /// Kills these agents, so that nobody is told, and lets others lead after them.
    pub(super) async fn kill(&mut self, names: &[&str], uid: &str) {
        self.relay.open.send_replace(false);
        for name in names {
            let killed = if *name == "east" { self.another_east() } else { self.another_west() };
            killed.shutdown.cancel();
            killed.handle.ended().await;
        }
        self.relay.open.send_replace(true);
        let at = self.port(uid).await;
        self.leads.send_replace(at);
    }

    /// A burst of `east` on `west`, whose lead listens there; returns where its brokers connect.
    async fn burst(&mut self, uid: &str, lead: SocketAddr, hold: Duration) -> SocketAddr {
        self.burst_to(uid, lead, None, hold).await
    }

    /// The same, with an end of the tunnel in the lead's pod.
    pub(super) async fn burst_to(
        &mut self,
        uid: &str,
        lead: SocketAddr,
        end: Option<SocketAddr>,
        hold: Duration,
    ) -> SocketAddr {
        let incarnation = "job-1".to_owned();
        let outlet = Outlet { incarnation: incarnation.clone(), lead, end, hold };
        self.outlets.send_modify(|all| drop(all.insert(("west".into(), uid.into()), outlet)));
        let inlet = Inlet { incarnation, sources: [HERE].into(), hold };
        self.inlets.send_modify(|all| drop(all.insert(at_west(uid), inlet)));
        let at = self.port(uid).await;
        self.leads.send_replace(at);
        at
    }

    async fn port(&mut self, uid: &str) -> SocketAddr {
        let told = timeout(LONG, self.listening.wait_for(|all| all.contains_key(&at_west(uid)))).await;
        let port = *told.unwrap().unwrap()[&at_west(uid)].as_ref().unwrap();
        (HERE, port).into()
    }

    async fn resumed(&self, more_than: u64) {
        let metrics = &self.metrics[1];
        until("it goes on over another stream", || metrics.resumptions() > more_than).await;
    }
}

pub(super) fn at_west(uid: &str) -> TunnelKey {
    ("east".into(), uid.into())
}

pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// A way for datagrams that can be cut, and takes the one client there is.
struct Relay {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    open: watch::Sender<bool>,
}

impl Relay {
    async fn to(target: SocketAddr) -> Self {
        let (front, back) = (UdpSocket::bind((HERE, 0)).await.unwrap(), UdpSocket::bind((HERE, 0)).await.unwrap());
        back.connect(target).await.unwrap();
        let (address, open) = (front.local_addr().unwrap(), watch::Sender::new(true));
        let target = watch::Sender::new(target);
        let mut other = target.subscribe();
        let is_open = open.subscribe();
        tokio::spawn(async move {
            let (mut there, mut here, mut client) = (vec![0; 65_536], vec![0; 65_536], None);
            loop {
                let dropped = |_| *is_open.borrow();
                tokio::select! {
                    Ok((length, from)) = front.recv_from(&mut there) => {
                        client = Some(from);
                        if dropped(()) {
                            let _ = back.send(&there[..length]).await;
                        }
                    }
                    Ok(()) = other.changed() => {
                        let target = *other.borrow_and_update();
                        back.connect(target).await.unwrap();
                    }
                    Ok(length) = back.recv(&mut here) => {
                        if let (true, Some(client)) = (dropped(()), client) {
                            let _ = front.send_to(&here[..length], client).await;
                        }
                    }
                }
            }
        });
        Self { address, target, open }
    }
}

/// Sends back what it gets.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tcp.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    address
}

/// Whether the other side ended a connection, by an end or a reset, without another byte.
pub(super) async fn is_ended(tcp: &mut TcpStream) -> bool {
    matches!(timeout(LONG, tcp.read(&mut [0; 1])).await.expect("it does not hang"), Ok(0) | Err(_))
}

/// Whether a new connection comes to nothing; it may be reset before we look.
async fn is_refused(at: SocketAddr) -> bool {
    match TcpStream::connect(at).await {
        Ok(mut tcp) => is_ended(&mut tcp).await,
        Err(_) => true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_exact_through_cuts_of_the_way_and_ends_of_the_sessions() {
    let mut pair = Pair::new().await;
    let at = pair.burst("lake", echo().await, Duration::from_secs(120)).await;
    let (mut reader, mut writer) = TcpStream::connect(at).await.unwrap().into_split();
    const LENGTH: usize = 8 << 20;
    let say = tokio::spawn(async move {
        let mut rng = SeededRng::new(7);
        let mut left = LENGTH;
        while left > 0 {
            let bytes: Vec<u8> = (0..left.min(32 << 10)).map(|_| rng.next_u64() as u8).collect();
            writer.write_all(&bytes).await.unwrap();
            left -= bytes.len();
        }
        writer.shutdown().await.unwrap();
    });
    let (progress, seen) = watch::channel(0);
    let hear = tokio::spawn(async move {
        let (mut rng, mut buf, mut heard) = (SeededRng::new(7), vec![0; 32 << 10], 0);
        loop {
            let read = reader.read(&mut buf).await.unwrap();
            if read == 0 {
                return heard;
            }
            assert!(buf[..read].iter().all(|byte| *byte == rng.next_u64() as u8), "after {heard}");
            heard += read;
            progress.send_replace(heard);
        }
    });
    // Amid the traffic, whenever another part of it has come back.
    let mut rng = SeededRng::new(1);
    for part in 1..=3 {
        let mut seen = seen.clone();
        let enough = part * LENGTH / 4 + (rng.next_u64() % 500_000) as usize;
        timeout(LONG, seen.wait_for(|heard| *heard >= enough)).await.unwrap().unwrap();
        let before = pair.metrics[1].resumptions();
        if part % 2 == 0 {
            pair.relay.open.send_replace(false);
            pair.west.cluster.until_state("east", PeerState::Disconnected).await;
            pair.relay.open.send_replace(true);
        } else {
            pair.east.configure("west", |spec| spec.suspend = true);
            pair.west
                .cluster
                .until("it is told", |cluster| {
                    cluster.reports("east").last().is_some_and(|report| report.state != PeerState::Connected)
                })
                .await;
            pair.east.configure("west", |spec| spec.suspend = false);
        }
        pair.resumed(before).await;
    }
    say.await.unwrap();
    assert_eq!(timeout(LONG, hear).await.unwrap().unwrap(), LENGTH);
    until("all is given back", || pair.metrics.iter().all(|metrics| metrics.connections() == 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_bursts_that_are_carried_reach_their_own_lead() {
    let mut pair = Pair::new().await;
    let (lake, pond) = (echo().await, echo().await);
    let at = pair.burst("lake", lake, LONG).await;
    let mut tcp = TcpStream::connect(at).await.unwrap();
    tcp.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    tcp.read_exact(&mut heard).await.unwrap();

    // West thinks it hosts it; east did not place it there, or in another life.
    for incarnation in ["job-0", "job-2"] {
        let inlet = Inlet { incarnation: incarnation.into(), sources: [HERE].into(), hold: LONG };
        let key = at_west(incarnation);
        pair.inlets.send_modify(|all| drop(all.insert(key, inlet)));
        if incarnation == "job-0" {
            let outlet = Outlet { incarnation: "job-1".into(), lead: pond, end: None, hold: LONG };
            pair.outlets.send_modify(|all| drop(all.insert(("west".into(), incarnation.into()), outlet)));
        }
        let at = pair.port(incarnation).await;
        assert!(is_refused(at).await, "{incarnation}");
    }
    // An address that is none of the burst's pods: of no pod at all, then.
    let stranger = Inlet { incarnation: "job-1".into(), sources: ["192.0.2.1".parse().unwrap()].into(), hold: LONG };
    let outlet = Outlet { incarnation: "job-1".into(), lead: pond, end: None, hold: LONG };
    pair.outlets.send_modify(|all| drop(all.insert(("west".into(), "pond".into()), outlet)));
    pair.inlets.send_modify(|all| drop(all.insert(at_west("pond"), stranger)));
    let at_pond = pair.port("pond").await;
    assert!(is_refused(at_pond).await);
    // Who looks into the tunnel ports of the provider is told of, and the root's ordinary answer is not taken for that.
    let refused = |side: usize| ["stranger", "too many", "no way"].map(|cause| pair.metrics[side].refusals(cause) > 0);
    assert_eq!([refused(0), refused(1)], [[false, false, true], [true, false, false]]);

    // Another pod leads: those connected to the one before are told, and connect to the new one at once.
    let outlet = Outlet { incarnation: "job-1".into(), lead: pond, end: None, hold: LONG };
    pair.outlets.send_modify(|all| drop(all.insert(("west".into(), "lake".into()), outlet)));
    assert!(is_ended(&mut tcp).await);
    let mut tcp = TcpStream::connect(at).await.unwrap();
    tcp.write_all(b"again").await.unwrap();
    tcp.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"again");
    // Not carried any more.
    pair.inlets.send_modify(|all| drop(all.remove(&at_west("lake"))));
    assert!(is_ended(&mut tcp).await);
    until("its port is closed", || !pair.listening.borrow().contains_key(&at_west("lake"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_take_nothing_of_what_brokers_need() {
    let mut pair = Pair::new().await;
    let at = pair.burst("lake", echo().await, LONG).await;
    let nobody = Inlet { incarnation: "job-1".into(), sources: [].into(), hold: LONG };
    pair.inlets.send_modify(|all| drop(all.insert(at_west("pond"), nobody)));
    let at_pond = pair.port("pond").await;
    // More than a peer may have; those who may wait do not go away by themselves, others are refused at once.
    let mut strangers = Vec::new();
    for _ in 0..crate::wire::limits::TUNNEL_CONNECTIONS_PER_PEER + 20 {
        strangers.push(TcpStream::connect(at_pond).await);
    }
    let (mut tcp, mut heard) = (TcpStream::connect(at).await.unwrap(), [0; 5]);
    tcp.write_all(b"hello").await.unwrap();
    tcp.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    drop(strangers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_at_once_each_with_its_own_words() {
    let mut pair = Pair::new().await;
    let at = pair.burst("lake", echo().await, Duration::from_secs(120)).await;
    let all: Vec<_> = (0..1_000_u64)
        .map(|number| {
            tokio::spawn(async move {
                let mut tcp = TcpStream::connect(at).await.unwrap();
                let (word, mut heard) = (number.to_be_bytes(), [0; 8]);
                tcp.write_all(&word).await.unwrap();
                tcp.read_exact(&mut heard).await.unwrap();
                assert_eq!(heard, word);
                tcp
            })
        })
        .collect();
    let mut open = Vec::new();
    for one in all {
        open.push(timeout(LONG, one).await.unwrap().unwrap());
    }
    // All of them go on.
    pair.east.configure("west", |spec| spec.suspend = true);
    pair.west.cluster.until_state("east", PeerState::Refused).await;
    pair.east.configure("west", |spec| spec.suspend = false);
    for (number, tcp) in open.iter_mut().enumerate() {
        let (word, mut heard) = ((!number).to_be_bytes(), [0; 8]);
        tcp.write_all(&word).await.unwrap();
        timeout(LONG, tcp.read_exact(&mut heard)).await.unwrap().unwrap();
        assert_eq!(heard, word);
    }
    assert!(pair.metrics[1].resumptions() >= 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_longer_than_the_hold_time_ends_both_sides() {
    let mut pair = Pair::new().await;
    let at = pair.burst("lake", echo().await, Duration::from_secs(2)).await;
    let mut tcp = TcpStream::connect(at).await.unwrap();
    tcp.write_all(b"x").await.unwrap();
    tcp.read_exact(&mut [0; 1]).await.unwrap();
    pair.relay.open.send_replace(false);
    assert!(is_ended(&mut tcp).await);
    until("both sides", || pair.metrics.iter().all(|metrics| metrics.connections() == 0)).await;
}

/// A broker's connection through the tunnel that was heard at the other side.
pub(super) async fn talking(at: SocketAddr) -> TcpStream {
    let mut tcp = TcpStream::connect(at).await.unwrap();
    tcp.write_all(b"hello").await.unwrap();
    timeout(LONG, tcp.read_exact(&mut [0; 5])).await.expect("it is carried").unwrap();
    tcp
}

/// Lets a test stand for the lead broker: what connects there.
pub(super) async fn lead() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    (listener.local_addr().unwrap(), listener)
}

pub(super) async fn accepted(lead: &TcpListener) -> TcpStream {
    let (mut tcp, _) = timeout(LONG, lead.accept()).await.expect("it is connected to").unwrap();
    timeout(LONG, tcp.read_exact(&mut [0; 5])).await.unwrap().unwrap();
    tcp.write_all(b"hello").await.unwrap();
    tcp
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_stops_leaves_no_broker_on_a_dead_connection_on_either_side() {
    for stops in ["east", "west"] {
        let mut pair = Pair::new().await;
        let (lead_at, lead) = lead().await;
        // Whoever is not told waits for an hour.
        let at = pair.burst("lake", lead_at, Duration::from_secs(3_600)).await;
        let (mut broker, mut of_lead) = tokio::join!(talking(at), accepted(&lead));
        let agent = if stops == "east" { &pair.east } else { &pair.west };
        agent.shutdown.cancel();
        timeout(LONG, agent.handle.ended()).await.expect("it stops");
        let side = usize::from(stops == "west");
        until("nothing is carried any more where it stops", || pair.metrics[side].connections() == 0).await;
        assert!(is_ended(&mut broker).await, "the broker, as {stops} stops");
        assert!(is_ended(&mut of_lead).await, "the lead broker, as {stops} stops");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_that_is_gone_left_at_the_lead_ends_when_its_brokers_come_back() {
    let mut pair = Pair::new().await;
    let (lead_at, lead) = lead().await;
    let at = pair.burst("lake", lead_at, Duration::from_secs(3_600)).await;
    let (_broker, mut of_lead) = tokio::join!(talking(at), accepted(&lead));
    // It is killed: nobody is told. The relay takes the next one, which is what its peer hears from then on.
    pair.relay.open.send_replace(false);
    let killed = pair.another_west();
    killed.shutdown.cancel();
    killed.handle.ended().await;
    pair.relay.open.send_replace(true);
    let at = pair.port("lake").await;
    let (mut broker, mut again) = tokio::join!(talking(at), accepted(&lead));
    assert!(is_ended(&mut of_lead).await, "a lead broker does not listen to a broker that is connected already");
    // And that is not the end of the new one.
    broker.write_all(b"still").await.unwrap();
    timeout(LONG, again.read_exact(&mut [0; 5])).await.unwrap().unwrap();
}
