//! Both ends on loopback, and between them a relay that is cut, or replaced by another one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tributary_clock::{Rng as _, SeededRng};

use super::burst::{Impatient, SILENCE};
use super::handshake::{Asked, Codes, Key, Outcome, PURPOSE, VERSION};
use super::*;
use crate::flow_control::Budget;
use crate::limits::{TUNNEL_CONNECTION, TUNNEL_WINDOW};
use crate::pump::{Opening, Pump, Source, Stream};
use crate::segment::{self, Segment};

/// Patience with a slow machine; nothing is concluded from it.
const LONG: Duration = Duration::from_secs(60);

const HOLD: Duration = Duration::from_secs(600);

fn key(secret: char) -> Key {
    let secret: String = std::iter::repeat_n(secret, 40).collect();
    Key::of_certificate(&format!("metadata\ncurve\n    public-key = \"x\"\n    secret-key = \"{secret}\"\n"), PURPOSE)
        .unwrap()
}

async fn listener() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// What an agent does for an end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Relays,
    /// There is no end at the lead, for the first connections.
    Refuses(u64),
    /// It knows no ends, and carries everything to the lead broker.
    Carries,
    /// It relays to what is no end.
    Misleads,
    /// It takes connections, and nothing comes of them.
    Hangs,
}

struct World {
    /// The lead broker.
    broker: TcpListener,
    /// Where brokers of the burst connect.
    at: SocketAddr,
    end: SocketAddr,
    /// Where the agent is, what it does, and how often it was cut.
    agent: watch::Sender<SocketAddr>,
    does: watch::Sender<Does>,
    cuts: watch::Sender<u64>,
    dialled: Arc<AtomicU64>,
    budgets: [Budget; 2],
    broker_at: SocketAddr,
    lead: JoinHandle<()>,
}

impl World {
    async fn new(keys: [Key; 2], hold: Duration) -> Self {
        let (broker_at, broker) = listener().await;
        let (end, of_lead) = listener().await;
        let budgets = [Budget::new(burst::MEMORY), Budget::new(lead::MEMORY)];
        let [ours, theirs] = keys;
        let lead = lead::Lead { broker: broker_at, key: theirs, hold, budget: budgets[1].clone() };
        let lead = tokio::spawn(lead.serve(of_lead));
        let (agent, does, cuts) = (watch::Sender::new(end), watch::Sender::new(Does::Relays), watch::Sender::new(0));
        let (at, _) = Self::burst(&agent, ours, hold, &budgets[0]).await;
        let world = Self { broker, at, end, agent, does, cuts, dialled: Arc::default(), budgets, broker_at, lead };
        world.another_agent().await;
        world
    }

    /// A burst's end in pod `lake-0`, and where it listens.
    async fn burst(
        agent: &watch::Sender<SocketAddr>,
        key: Key,
        hold: Duration,
        budget: &Budget,
    ) -> (SocketAddr, JoinHandle<()>) {
        let (at, listener) = listener().await;
        let agent = agent.subscribe();
        let resolve: burst::Resolve = Box::new(move || {
            let agent = *agent.borrow();
            // As a Service of two families, behind one of which nobody is.
            Box::pin(async move { Ok(vec![([127, 0, 0, 1], 1).into(), agent]) })
        });
        let burst = burst::Burst::new((resolve, Box::new(|_| {})), key, hold, "lake-0".into(), budget.clone()).unwrap();
        (at, tokio::spawn(burst.serve(listener)))
    }

    /// Another process relays from now on; the one before is still there, until it is cut.
    async fn another_agent(&self) {
        let (at, listener) = listener().await;
        let (does, cuts, end, broker) = (self.does.subscribe(), self.cuts.clone(), self.end, self.broker_at);
        let dialled = self.dialled.clone();
        tokio::spawn(async move {
            let mut over = cuts.subscribe();
            loop {
                let mut tcp = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    _ = over.changed() => return,
                };
                let number = 1 + dialled.fetch_add(1, Ordering::Relaxed);
                let (does, mut cut) = (*does.borrow(), cuts.subscribe());
                tokio::spawn(async move {
                    let relay = async {
                        let mut first = [0];
                        tcp.peek(&mut first).await?;
                        let is_end = first[0] == MAGIC[0] && does != Does::Carries;
                        if is_end {
                            tcp.read_exact(&mut [0; MAGIC.len()]).await?;
                        }
                        match does {
                            Does::Hangs => std::future::pending().await,
                            Does::Refuses(times) if is_end && number <= times => {
                                tcp.write_all(&[NO_ENDS]).await?;
                                tcp.read_exact(&mut [0; 33]).await?;
                                return Ok(());
                            }
                            _ if is_end => {
                                tcp.write_all(&[RELAYED]).await?;
                                if does == Does::Misleads {
                                    return Ok(());
                                }
                            }
                            _ => {}
                        }
                        let mut to = TcpStream::connect(if is_end { end } else { broker }).await?;
                        copy_bidirectional(&mut tcp, &mut to).await?;
                        io::Result::Ok(())
                    };
                    tokio::select! {
                        _ = relay => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        self.agent.send_replace(at);
    }

    /// The agent is killed, and another one comes.
    async fn agent_dies(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
        self.another_agent().await;
    }

    /// A connection of a broker, as both brokers see it.
    async fn connection(&self) -> (TcpStream, TcpStream) {
        let (near, far) = tokio::join!(TcpStream::connect(self.at), timeout(LONG, self.broker.accept()));
        let (mut near, mut far) = (near.unwrap(), far.expect("it is connected to").unwrap().0);
        say(&mut near, &mut far, b"hello").await;
        (near, far)
    }
}

async fn say(from: &mut TcpStream, to: &mut TcpStream, words: &[u8]) {
    from.write_all(words).await.unwrap();
    let mut heard = vec![0; words.len()];
    timeout(LONG, to.read_exact(&mut heard)).await.expect("it arrives").unwrap();
    assert_eq!(heard, words);
}

async fn is_ended(tcp: &mut TcpStream) -> bool {
    matches!(timeout(LONG, tcp.read(&mut [0; 1])).await.expect("it does not hang"), Ok(0) | Err(_))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_one_byte_is_lost_or_repeated_while_agents_come_and_go() {
    const LENGTH: usize = 6 << 20;
    let world = World::new([key('a'), key('a')], HOLD).await;
    let (near, far) = world.connection().await;
    let talk = |tcp: TcpStream, seeds: [u64; 2], progress: watch::Sender<usize>| {
        let (mut reader, mut writer) = tcp.into_split();
        let say = tokio::spawn(async move {
            let (mut rng, mut left) = (SeededRng::new(seeds[0]), LENGTH);
            while left > 0 {
                let bytes: Vec<u8> = (0..left.min(16 << 10)).map(|_| rng.next_u64() as u8).collect();
                writer.write_all(&bytes).await.unwrap();
                left -= bytes.len();
            }
            writer.shutdown().await.unwrap();
        });
        let hear = tokio::spawn(async move {
            let (mut rng, mut buf, mut heard) = (SeededRng::new(seeds[1]), vec![0; 16 << 10], 0);
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
        (say, hear)
    };
    let (progress, mut seen) = watch::channel(0);
    let (near_says, near_hears) = talk(near, [1, 2], watch::Sender::default());
    let (far_says, far_hears) = talk(far, [2, 1], progress);
    for part in 1..=6 {
        timeout(LONG, seen.wait_for(|heard| *heard >= part * LENGTH / 10)).await.unwrap().unwrap();
        let before = world.dialled.load(Ordering::Relaxed);
        world.agent_dies().await;
        // It may have been the end of it already.
        let resumed = async {
            while world.dialled.load(Ordering::Relaxed) == before && *seen.borrow() < LENGTH {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, resumed).await.unwrap();
    }
    assert!(world.dialled.load(Ordering::Relaxed) > 3, "it went on over others");
    for says in [near_says, far_says] {
        timeout(LONG, says).await.unwrap().unwrap();
    }
    for hears in [near_hears, far_hears] {
        assert_eq!(timeout(LONG, hears).await.unwrap().unwrap(), LENGTH);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_stay_connected_for_the_hold_time_and_not_longer() {
    let world = World::new([key('a'), key('a')], Duration::from_secs(2)).await;
    let (mut near, mut far) = world.connection().await;
    world.does.send_replace(Does::Hangs);
    world.agent_dies().await;
    near.write_all(b"during").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    world.does.send_replace(Does::Relays);
    world.agent_dies().await;
    let mut heard = [0; 6];
    timeout(LONG, far.read_exact(&mut heard)).await.unwrap().unwrap();
    assert_eq!(&heard, b"during");
    world.does.send_replace(Does::Hangs);
    world.agent_dies().await;
    assert!(is_ended(&mut near).await && is_ended(&mut far).await);
    let all_given_back = async {
        while world.budgets.iter().any(|budget| (budget.connections(), budget.given()) != (0, 0)) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, all_given_back).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_no_end_at_the_lead_a_connection_ends_in_the_agents() {
    for does in [Does::Refuses(u64::MAX), Does::Carries, Does::Misleads] {
        let world = World::new([key('a'), key('a')], HOLD).await;
        world.does.send_replace(does);
        let mut near = TcpStream::connect(world.at).await.unwrap();
        near.write_all(b"hello").await.unwrap();
        let accepted = || async { timeout(LONG, world.broker.accept()).await.expect("it is connected to").unwrap().0 };
        let mut far = accepted().await;
        if does == Does::Carries {
            // The broker greets, by which the end knows it, and comes as the broker that it is.
            far.write_all(&[BROKER, 0, 0]).await.unwrap();
            far = accepted().await;
        }
        let mut heard = [0; 5];
        timeout(LONG, far.read_exact(&mut heard)).await.unwrap().unwrap();
        assert_eq!(&heard, b"hello");
        say(&mut far, &mut near, b"hello").await;
        drop(far);
        assert!(is_ended(&mut near).await);
    }
}

/// The danger: a connection that the agents carry ends with them, perhaps days after one short failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_is_missed_twice_is_looked_for_again() {
    let world = World::new([key('a'), key('a')], HOLD).await;
    world.does.send_replace(Does::Refuses(2));
    let (mut near, mut far) = world.connection().await;
    world.agent_dies().await;
    say(&mut near, &mut far, b"still").await;
}

/// An agent that hangs keeps its connections, and its kernel answers for it.
#[tokio::test(start_paused = true)]
async fn a_stream_over_which_nothing_comes_is_left_for_another_one() {
    let (mut broker, carried) = duplex(1 << 10);
    let (opened, mut streams) = mpsc::unbounded_channel();
    let silent = Arc::<AtomicU32>::default();
    let open = move |_, _| -> Opening {
        let ((send, there), (back, recv)) = (duplex(1 << 10), duplex(1 << 10));
        let (send, recv) = (Box::new(send), Box::new(Impatient::new(recv, silent.clone())));
        let _ = opened.send((there, back));
        Box::pin(async move { Ok(Stream { send, recv, position: 0, window: Some(64 << 10), answer: None }) })
    };
    let share = Budget::new(burst::MEMORY).join("brokers").unwrap();
    let (source, revoked) = (Source::Opener(Box::new(open)), CancellationToken::new());
    let pump = Pump { source, hold: HOLD, share, revoked, counts: Arc::new(()) };
    let (reader, writer) = tokio::io::split(carried);
    tokio::spawn(pump.run(reader, writer));

    let start = Instant::now();
    broker.write_all(b"hello").await.unwrap();
    let mut last = None;
    // Nothing comes over any of them: the lead broker may be what hangs.
    for after in [0, 1, 3] {
        let (mut there, back) = streams.recv().await.unwrap();
        assert_eq!(start.elapsed().as_secs(), after * SILENCE.as_secs());
        let mut said = [0; 10];
        there.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"\0\0\0\0\x05hello", "nobody has acknowledged it");
        if let Some((mut before, _)) = last.replace((there, back)) {
            assert_eq!(before.read(&mut [0]).await.unwrap(), 0, "it is let go");
        }
    }
    // Who only acknowledges is there.
    let (_there, mut back) = last.unwrap();
    let mut ack = BytesMut::new();
    segment::head(Segment::Ack(5), &mut ack);
    for _ in 0..8 {
        sleep(SILENCE * 3 / 4).await;
        back.write_all(&ack).await.unwrap();
    }
    assert!(streams.try_recv().is_err());
    streams.recv().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), (3 + 6 + 1) * SILENCE.as_secs());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_the_certificate_reaches_no_broker() {
    let world = World::new([key('b'), key('a')], Duration::from_secs(1)).await;
    let mut near = TcpStream::connect(world.at).await.unwrap();
    assert!(is_ended(&mut near).await);
    assert!(timeout(Duration::from_millis(100), world.broker.accept()).await.is_err(), "nobody came to the broker");
    assert_eq!(world.budgets[1].connections(), 0);
    assert!(!world.lead.is_finished());
}

/// Asks as an end would.
async fn ask(world: &World, key: &Key, asked: &Asked) -> (Outcome, u64, TcpStream) {
    let (mut tcp, ours, mut theirs) = (TcpStream::connect(world.end).await.unwrap(), [7; 32], [0; 32]);
    tcp.write_all(&[&[VERSION], &ours[..]].concat()).await.unwrap();
    assert_eq!(tcp.read_u8().await.unwrap(), VERSION);
    tcp.read_exact(&mut theirs).await.unwrap();
    let codes = Codes::new(key, ours, theirs);
    tcp.write_all(&codes.ask(asked)).await.unwrap();
    let (outcome, position, _) = timeout(LONG, codes.answered(&mut tcp)).await.unwrap().unwrap();
    (outcome, position, tcp)
}

fn asked(connection: u8, process: u64, attempt: u64) -> Asked {
    let (position, window, host) = (0, 64 << 10, "lake-0".to_owned());
    Asked { connection: [connection; 16], process, attempt, resumes: false, position, window, host }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_attempt_or_another_process_gets_no_connection() {
    let (world, key) = (World::new([key('a'), key('a')], HOLD).await, key('a'));
    let [fifth, another] = [asked(1, 1, 5), asked(3, 2, 1)];
    let (first, mut broker) = tokio::join!(ask(&world, &key, &fifth), async {
        timeout(LONG, world.broker.accept()).await.unwrap().unwrap().0
    });
    assert_eq!(first.0, Outcome::Open);
    for stale in [asked(1, 1, 5), asked(1, 1, 4), asked(1, 2, 9)] {
        assert_eq!(ask(&world, &key, &stale).await.0, Outcome::Stale, "{stale:?}");
    }
    // The broker's connection lives, and a later attempt goes on with it.
    assert_eq!(ask(&world, &key, &Asked { resumes: true, ..asked(1, 1, 6) }).await.0, Outcome::Open);
    assert_eq!(ask(&world, &key, &Asked { resumes: true, ..asked(2, 1, 1) }).await.0, Outcome::Gone);
    assert!(timeout(Duration::from_millis(100), broker.read(&mut [0])).await.is_err());
    // The pod's end is another process: what the one before held is in its way.
    let (new, _) = tokio::join!(ask(&world, &key, &another), world.broker.accept());
    assert_eq!(new.0, Outcome::Open);
    assert!(is_ended(&mut broker).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_heard_cannot_be_said_again() {
    let (world, key) = (World::new([key('a'), key('a')], HOLD).await, key('a'));
    let old = Codes::new(&key, [7; 32], [8; 32]).ask(&asked(1, 1, 1));
    let mut tcp = TcpStream::connect(world.end).await.unwrap();
    tcp.write_all(&[&[VERSION], &[7; 32][..], &old].concat()).await.unwrap();
    let mut answer = Vec::new();
    timeout(LONG, tcp.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer.len(), 33, "a nonce of its own, and no more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_disturb_who_is_connected() {
    let world = World::new([key('a'), key('a')], HOLD).await;
    let (mut near, mut far) = world.connection().await;
    let mut strangers = Vec::new();
    for _ in 0..600 {
        strangers.push(TcpStream::connect(world.end).await);
    }
    say(&mut near, &mut far, b"still").await;
    assert_eq!(world.budgets[1].connections(), 1);
    drop(strangers);
}

/// The danger: brokers that are not served at once are carried by the agents, and do not outlive them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_while_many_are_about_to_be_known_waits_and_is_carried_by_the_ends() {
    let world = World::new([key('a'), key('a')], HOLD).await;
    let mut strangers = Vec::new();
    for _ in 0..600 {
        strangers.push(TcpStream::connect(world.end).await);
    }
    let goes = async {
        while world.dialled.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_secs(1)).await;
        drop(strangers);
    };
    let ((mut near, mut far), ()) = tokio::join!(world.connection(), goes);
    say(&mut near, &mut far, b"late").await;
    assert_eq!(world.budgets[1].connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_does_not_read_holds_up_the_other_in_bounded_memory() {
    let world = World::new([key('a'), key('a')], HOLD).await;
    let (mut near, _far) = world.connection().await;
    let mut written = 0;
    while let Ok(more) = timeout(Duration::from_secs(1), near.write(&[0; 64 << 10])).await {
        written += more.unwrap();
        assert!(written < 64 << 20, "it ends");
    }
    let most = TUNNEL_CONNECTION + TUNNEL_WINDOW + (1 << 20);
    let given: Vec<usize> = world.budgets.iter().map(Budget::given).collect();
    assert!(given.iter().all(|given| *given <= most), "{given:?} after {written}");
}

#[test]
fn only_a_certificate_has_a_key_and_it_is_not_shown() {
    for text in ["", "secret-key = \"short\"", "curve\n  public-key = \"x\"\n"] {
        assert!(Key::of_certificate(text, PURPOSE).is_err(), "{text}");
    }
    assert_eq!(format!("{:?}", key('s')), "Key");
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_error_of_finding_the_lead_is_told_once() {
    let (at, listener) = listener().await;
    let (tries, told) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, heard) = (tries.clone(), told.clone());
    let resolve: burst::Resolve = Box::new(move || {
        let try_ = counted.fetch_add(1, Ordering::Relaxed);
        let kind = if try_ < 3 { io::ErrorKind::NotFound } else { io::ErrorKind::PermissionDenied };
        Box::pin(async move { Err(kind.into()) })
    });
    let tell: burst::Tell = Box::new(move |error| heard.lock().push(error.kind()));
    let budget = Budget::new(burst::MEMORY);
    let burst = burst::Burst::new((resolve, tell), key('k'), HOLD, "lake-0".into(), budget).unwrap();
    tokio::spawn(burst.serve(listener));
    let _broker = TcpStream::connect(at).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert!(tries.load(Ordering::Relaxed) > 5);
    assert_eq!(*told.lock(), [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied]);
}
