//! Carried connections on paused time: both pumps, over streams that break after some bytes.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tributary_clock::{Clock as _, Rng as _, SeededRng, SystemClock};

use super::flow_control::{Budget, Share};
use super::pump::{Answer, CONVERSATION, Counts, Ended, Opening, Pump, Sending, Source, Stream};
use super::segment;
use super::segment::Segment;
use crate::limits::TUNNEL_CONNECTION;

const HOLD: Duration = Duration::from_secs(300);

/// Bytes under way outside of what is tested: the applications' buffers and the streams'.
const BUFFERS: usize = 4 * (16 << 10);

/// Bytes that were taken and given.
#[derive(Clone, Default)]
struct Counted(Arc<[AtomicU64; 2]>);

impl Counts for Counted {
    fn took(&self, bytes: usize) {
        self.0[0].fetch_add(bytes as u64, Ordering::Relaxed);
    }
    fn gave(&self, bytes: usize) {
        self.0[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Counted {
    fn bytes(&self) -> [u64; 2] {
        self.0.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

/// Two applications, each at its end of one carried connection.
struct World {
    near: DuplexStream,
    far: DuplexStream,
    ended: [JoinHandle<Ended>; 2],
    /// Whether streams can be opened.
    way: watch::Sender<bool>,
    /// Breaks the present stream.
    cut: watch::Sender<u64>,
    budgets: [Budget; 2],
    metrics: [Counted; 2],
    revoked: CancellationToken,
    /// As the agent keeps it.
    _streams: mpsc::Sender<Stream>,
}

/// Carries bytes one way, `left` of them; then, or at a cut, both ends of the stream are gone.
async fn lane(mut from: DuplexStream, mut to: DuplexStream, mut left: usize) {
    let mut buf = vec![0; 16 << 10];
    while left > 0 {
        let Ok(read @ 1..) = from.read(&mut buf).await else { break };
        let carried = read.min(left);
        left -= carried;
        if to.write_all(&buf[..carried]).await.is_err() || carried < read {
            return;
        }
    }
    if left > 0 {
        let _ = to.shutdown().await;
        std::future::pending().await
    }
}

impl World {
    /// `lasts`: how many bytes each stream carries one way before it breaks.
    fn new(lasts: impl FnMut() -> usize + Send + 'static) -> Self {
        let ((near, near_pump), (far, far_pump)) = (duplex(16 << 10), duplex(16 << 10));
        let (way, cut, revoked) = (watch::Sender::new(true), watch::Sender::new(0), CancellationToken::new());
        let budgets = [256 << 20, 256 << 20].map(Budget::new);
        let metrics = [Counted::default(), Counted::default()];
        let (sender, streams) = mpsc::channel(1);
        let (ways, cuts) = (way.subscribe(), cut.subscribe());
        let lasts = Arc::new(Mutex::new(lasts));
        let _streams = sender.clone();
        let open = move |position, window| -> Opening {
            let (mut ways, mut cuts, sender, lasts) = (ways.clone(), cuts.clone(), sender.clone(), lasts.clone());
            Box::pin(async move {
                loop {
                    ways.wait_for(|open| *open).await.unwrap();
                    cuts.mark_unchanged();
                    let ((ours, a), (b, theirs)) = (duplex(16 << 10), duplex(16 << 10));
                    let ((theirs_back, c), (d, ours_back)) = (duplex(16 << 10), duplex(16 << 10));
                    let lasts = { (lasts.lock().unwrap())() };
                    let mut cut = cuts.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = lane(a, b, lasts) => {}
                            () = lane(c, d, lasts) => {}
                            _ = cut.changed() => {}
                        }
                    });
                    let answer: Option<Answer> = Some(Box::new(|position, window| {
                        let mut bytes = BytesMut::new();
                        bytes.put_u64(position);
                        bytes.put_u32(window);
                        bytes
                    }));
                    let (send, recv, window) = (Box::new(theirs_back), Box::new(theirs), Some(window));
                    let far = Stream { send, recv, position, window, answer };
                    if sender.send(far).await.is_err() {
                        return Err("gone".to_owned());
                    }
                    let mut recv = ours_back;
                    // The answer may be lost as well.
                    let answer = async { io::Result::Ok((recv.read_u64().await?, recv.read_u32().await?)) }.await;
                    if let Ok((position, window)) = answer {
                        let (send, recv, window) = (Box::new(ours), Box::new(recv), Some(window));
                        return Ok(Stream { send, recv, position, window, answer: None });
                    }
                }
            })
        };
        let pump = |source, side: usize| Pump {
            source,
            hold: HOLD,
            share: budgets[side].join("peer").unwrap(),
            revoked: revoked.clone(),
            counts: Arc::new(metrics[side].clone()),
        };
        let opener = pump(Source::Opener(Box::new(open)), 0);
        let answerer = pump(Source::Answerer(streams), 1);
        let run = |pump: Pump, end: DuplexStream| {
            let (reader, writer) = tokio::io::split(end);
            tokio::spawn(async {
                let (ended, last_words) = pump.run(reader, writer).await;
                last_words.say().await;
                ended
            })
        };
        let ended = [run(opener, near_pump), run(answerer, far_pump)];
        Self { near, far, ended, way, cut, budgets, metrics, revoked, _streams }
    }
}

fn words(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = SeededRng::new(seed);
    (0..length).map(|_| rng.next_u64() as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn bytes_arrive_exactly_whatever_breaks() {
    for seed in 0..24 {
        let mut rng = SeededRng::new(seed);
        let lengths = [rng.next_u64() % 2_000_000, rng.next_u64() % 2_000_000].map(|length| length as usize);
        let lasts = move || if rng.next_u64().is_multiple_of(8) { 12 } else { (rng.next_u64() % 300_000) as usize };
        let World { near, far, ended, way: _way, cut: _cut, metrics, _streams: _kept, .. } = World::new(lasts);
        let said = [words(seed, lengths[0]), words(!seed, lengths[1])];
        let talk = |end: DuplexStream, say: Vec<u8>| async move {
            let (mut reader, mut writer) = tokio::io::split(end);
            let mut heard = Vec::new();
            let say = async {
                writer.write_all(&say).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let (_, heard_all) = tokio::join!(say, reader.read_to_end(&mut heard));
            heard_all.unwrap();
            heard
        };
        let (near_heard, far_heard) = tokio::join!(talk(near, said[0].clone()), talk(far, said[1].clone()));
        assert!(near_heard == said[1] && far_heard == said[0], "seed {seed}");
        for ended in ended {
            // The very last acknowledgement may be lost, and nobody is left to repeat it: all bytes were delivered by then.
            let ended = ended.await.unwrap();
            let alone = |why: &str| why == "gone" || why.starts_with("the peer could not be reached");
            assert!(ended == Ended::Well || matches!(&ended, Ended::Broken(why) if alone(why)), "{seed}: {ended:?}");
        }
        // Once each, however often they had to be sent.
        let [near, far] = lengths.map(|length| length as u64);
        assert_eq!(metrics.map(|metrics| metrics.bytes()), [[near, far], [far, near]], "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn both_sides_are_held_for_the_hold_time_and_not_longer() {
    let clock = SystemClock::start();
    let mut world = World::new(|| usize::MAX);
    world.near.write_all(b"before").await.unwrap();
    let mut heard = [0; 6];
    world.far.read_exact(&mut heard).await.unwrap();
    world.way.send_replace(false);
    world.cut.send_modify(|cut| *cut += 1);
    world.near.write_all(b"during").await.unwrap();
    sleep(HOLD - Duration::from_secs(1)).await;
    assert!(world.ended.iter().all(|ended| !ended.is_finished()));
    world.way.send_replace(true);
    world.far.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"during");

    world.way.send_replace(false);
    world.cut.send_modify(|cut| *cut += 1);
    let cut_at = clock.mono();
    for ended in world.ended {
        assert!(matches!(ended.await.unwrap(), Ended::Broken(_)));
        assert_eq!(clock.mono().saturating_since(cut_at), HOLD);
    }
    assert_eq!(world.near.read(&mut heard).await.unwrap(), 0, "the applications hear of it");
    assert!(world.budgets.iter().all(|budget| (budget.connections(), budget.given()) == (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_holds_up_the_writer_in_bounded_memory() {
    let mut world = World::new(|| usize::MAX);
    let word = words(1, 8 << 20);
    let mut written = 0;
    // As long as anything is taken within a minute of virtual time.
    while let Ok(more) = tokio::time::timeout(Duration::from_secs(60), world.near.write(&word[written..])).await {
        written += more.unwrap();
    }
    assert!(written <= (256 << 10) + 2 * BUFFERS, "it is granted more when the other side takes it: {written}");
    let given: Vec<usize> = world.budgets.iter().map(|budget| budget.given()).collect();
    let most = TUNNEL_CONNECTION + 2 * (256 << 10) + BUFFERS;
    assert!(given.iter().all(|given| (256 << 10..most).contains(given)), "what it takes is counted: {given:?}");
    world.far.write_all(b"the other way").await.unwrap();
    let mut heard = [0; 13];
    world.near.read_exact(&mut heard).await.unwrap();
    let mut all = vec![0; written];
    world.far.read_exact(&mut all).await.unwrap();
    assert!(all == word[..written], "nothing is missing once it reads");
}

#[tokio::test(start_paused = true)]
async fn who_comes_when_all_memory_is_taken_still_goes_on() {
    let mut world = World::new(|| usize::MAX);
    // Others have taken all of it, on both sides.
    let mut others: Vec<Share> = Vec::new();
    for budget in &world.budgets {
        for peer in 0..40 {
            let mut share = budget.join(&format!("peer {peer}")).unwrap();
            share.set([4 << 20, 4 << 20]);
            others.push(share);
        }
    }
    let word = words(1, 1 << 20);
    let (near, far) = (&mut world.near, &mut world.far);
    let mut heard = vec![0; 1 << 20];
    let (said, read) = tokio::join!(near.write_all(&word), far.read_exact(&mut heard));
    said.unwrap();
    read.unwrap();
    assert!(heard == word);
}

#[tokio::test(start_paused = true)]
async fn a_side_that_breaks_or_is_revoked_ends_the_other() {
    let World { near, mut far, ended, way: _way, cut: _cut, .. } = World::new(|| usize::MAX);
    far.write_all(b"x").await.unwrap();
    drop(near);
    let mut rest = Vec::new();
    let _ = far.read_to_end(&mut rest).await;
    drop(far);
    for ended in ended {
        ended.await.unwrap();
    }
    let World { revoked, ended, way: _way, cut: _cut, .. } = World::new(|| usize::MAX);
    revoked.cancel();
    for ended in ended {
        assert_eq!(
            ended.await.unwrap(),
            Ended::Broken("the burst is not carried any more, or not by this agent".into())
        );
    }
}

/// Keeps in mind how urgent what it is given was.
struct Ranked(DuplexStream, Arc<Mutex<Vec<bool>>>);

impl Sending for Ranked {
    fn set_urgent(&mut self, urgent: bool) {
        self.1.lock().unwrap().push(urgent);
    }
}

impl AsyncWrite for Ranked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_before_bulk() {
    let ((mut near, pump_end), (send, mut other_end)) = (duplex(16 << 10), duplex(16 << 10));
    let ranks = Arc::new(Mutex::new(Vec::new()));
    let (sender, streams) = mpsc::channel(1);
    // What the other end acknowledges arrives here.
    let (mut acks, recv) = duplex(64);
    let stream = Stream {
        send: Box::new(Ranked(send, ranks.clone())),
        recv: Box::new(recv),
        position: 0,
        window: None,
        answer: None,
    };
    sender.send(stream).await.unwrap_or_else(|_| panic!("it was dropped"));
    let share = Budget::new(256 << 20).join("peer").unwrap();
    let (source, revoked) = (Source::Answerer(streams), CancellationToken::new());
    let pump = Pump { source, hold: HOLD, share, revoked, counts: Arc::new(()) };
    let (reader, writer) = tokio::io::split(pump_end);
    tokio::spawn(pump.run(reader, writer));

    let bulk = CONVERSATION + (32 << 10);
    let write = async {
        near.write_all(b"a word").await.unwrap();
        near.write_all(&vec![0; bulk]).await.unwrap();
    };
    let arrive = async {
        let (mut arrived, mut buf) = (0, vec![0; 16 << 10]);
        while arrived < bulk {
            arrived += other_end.read(&mut buf).await.unwrap();
        }
    };
    tokio::join!(write, arrive);
    let told = |count: usize| {
        let ranks = ranks.clone();
        async move {
            while ranks.lock().unwrap().len() < count {
                sleep(Duration::from_millis(1)).await;
            }
            ranks.lock().unwrap().clone()
        }
    };
    assert_eq!(told(2).await, [true, false]);
    let mut ack = BytesMut::new();
    segment::head(Segment::Ack(CONVERSATION as u64), &mut ack);
    acks.write_all(&ack).await.unwrap();
    assert_eq!(told(3).await, [true, false, true], "what is left under way is little");
}
