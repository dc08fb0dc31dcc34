//! The tasks of one connection: a reader and a writer of its control stream, and one that takes the streams the peer
//! opens. They carry bytes; what the bytes mean is the owner's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tributary_clock::{Mono, Now, SharedClock};

use super::ConnId;
use super::rate_limit::Allowances;
use super::serve::Server;
use crate::session::Misbehaviour;
use crate::transport::{CloseReason, Link, RecvHalf, SendHalf, Traffic};
use crate::wire::registry::{CloseCode, StreamKind};
use crate::wire::{frame, limits};

/// Room for the reader per read.
const READ: usize = 16 << 10;

/// How long the end of a control stream waits for the end of its link, which says why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the tasks tell the owner.
pub(super) enum Happened {
    /// A whole frame arrived.
    Frame(Bytes),
    /// Some bytes of a frame arrived.
    Heard,
    /// The peer did something it should not.
    Misbehaved(Misbehaviour, String),
    /// What the owner gave to the writer is written; the buffer comes back.
    Written(BytesMut),
    /// The link ended.
    Closed(CloseReason),
}

/// The owner's side of a connection. Dropping it stops the tasks.
pub(super) struct Connection {
    pub(super) link: Arc<dyn Link>,
    pub(super) dialled: bool,
    /// Where the peer was when it was heard last.
    pub(super) remote: String,
    /// What was counted of its traffic, and when.
    counted: (Mono, Traffic),
    /// The writer's buffer; `None` while it writes.
    pub(super) buffer: Option<BytesMut>,
    writer: mpsc::Sender<BytesMut>,
    established: watch::Sender<bool>,
    heard: Heard,
    _tasks: AbortOnDropHandle<()>,
}

/// When something was heard last, for readers outside of the owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard(Arc<AtomicU64>);

impl Heard {
    pub(super) fn set(&self, at: Mono) {
        self.0.store(u64::try_from(at.since_start().as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn wall(&self, now: Now) -> jiff::Timestamp {
        now.wall_of(Mono::from_start(Duration::from_micros(self.0.load(Ordering::Relaxed))))
    }
}

/// What the tasks of all connections share.
#[derive(Clone)]
pub(super) struct Shared {
    /// Where the owner listens.
    pub(super) happened: mpsc::Sender<(ConnId, Happened)>,
    /// Answers requests.
    pub(super) server: Server,
    /// How much peers may say.
    pub(super) allowances: Allowances,
    /// Time.
    pub(super) clock: SharedClock,
    /// How long the peer may leave what we write unread.
    pub(super) patience: Duration,
}

impl Connection {
    /// Starts the tasks. The side that dialled opens the control stream.
    pub(super) fn start(id: ConnId, link: Arc<dyn Link>, dialled: bool, shared: Shared) -> Self {
        let (writer, frames) = mpsc::channel(1);
        let established = watch::Sender::new(false);
        let heard = Heard::default();
        let shared_now = shared.clock.mono();
        heard.set(shared_now);
        let tasks = run(id, link.clone(), dialled, frames, shared, established.subscribe());
        let tasks = AbortOnDropHandle::new(tokio::spawn(tasks));
        let (remote, counted) = (link.remote(), (shared_now, Traffic::default()));
        Self {
            link,
            dialled,
            remote,
            counted,
            buffer: Some(BytesMut::new()),
            writer,
            established,
            heard,
            _tasks: tasks,
        }
    }

    /// Gives the writer something to write; only while [`Connection::buffer`] was taken.
    pub(super) fn write(&mut self, buffer: BytesMut) {
        // A writer that is gone belongs to a link whose end is on its way to the owner.
        let _ = self.writer.try_send(buffer);
    }

    /// What went over the wire since the last time; looks once a second at most.
    pub(super) fn traffic(&mut self, now: Mono) -> Option<Traffic> {
        let (at, before) = self.counted;
        if now.saturating_since(at) < Duration::from_secs(1) {
            return None;
        }
        let total = self.link.traffic()?;
        self.counted = (now, total);
        let more = |now: u64, before: u64| now.saturating_sub(before);
        Some(Traffic { sent: more(total.sent, before.sent), received: more(total.received, before.received) })
    }

    /// Requests may be served from now on.
    pub(super) fn establish(&self) {
        self.established.send_replace(true);
    }

    pub(super) fn heard(&self) -> &Heard {
        &self.heard
    }
}

async fn run(
    id: ConnId,
    link: Arc<dyn Link>,
    dialled: bool,
    frames: mpsc::Receiver<BytesMut>,
    shared: Shared,
    established: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    let (found, control) = oneshot::channel();
    tasks.spawn(take_streams(id, link.clone(), shared.clone(), established, (!dialled).then_some(found)));
    tasks.spawn(converse(id, link.clone(), (dialled, control), frames, shared.clone()));
    let reason = link.closed().await;
    // The owner may be gone already.
    let _ = shared.happened.send((id, Happened::Closed(reason))).await;
}

/// Finds the control stream, then reads and writes it.
async fn converse(
    id: ConnId,
    link: Arc<dyn Link>,
    (dialled, control): (bool, oneshot::Receiver<(SendHalf, RecvHalf)>),
    frames: mpsc::Receiver<BytesMut>,
    shared: Shared,
) {
    let halves = if dialled { link.open(StreamKind::Control).await.ok() } else { control.await.ok() };
    if let Some((send, recv)) = halves {
        let mut tasks = JoinSet::new();
        tasks.spawn(write(id, link.clone(), send, frames, shared.clone()));
        tasks.spawn(read(id, link.clone(), recv, shared));
        // Whichever ends first ends the conversation.
        tasks.join_next().await;
    }
    if timeout(LAST_WORDS, link.closed()).await.is_err() {
        link.close(CloseCode::Protocol, "the control stream ended");
    }
}

async fn read(id: ConnId, link: Arc<dyn Link>, mut recv: RecvHalf, shared: Shared) {
    let Shared { happened, allowances, clock, .. } = shared;
    let mut buf = BytesMut::new();
    let allowance = allowances.of(&link.identity().name, clock.mono()).frames;
    let mut mentioned = false;
    loop {
        buf.reserve(READ);
        if !matches!(recv.read_buf(&mut buf).await, Ok(1..)) {
            return;
        }
        let mut partial = true;
        loop {
            match frame::take(&mut buf, limits::CONTROL_FRAME) {
                Ok(Some(frame)) => {
                    partial = false;
                    let wait = allowance.lock().take(clock.mono(), frame.len());
                    if happened.send((id, Happened::Frame(frame))).await.is_err() {
                        return;
                    }
                    if !wait.is_zero() {
                        if !std::mem::replace(&mut mentioned, true) {
                            let text = "it sends more than a peer has reason to: it is read more slowly".to_owned();
                            let _ = happened.send((id, Happened::Misbehaved(Misbehaviour::Flood, text))).await;
                        }
                        sleep(wait).await;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let text = error.to_string();
                    let _ = happened.send((id, Happened::Misbehaved(Misbehaviour::Malformed, text.clone()))).await;
                    return link.close(CloseCode::Protocol, &text);
                }
            }
        }
        if partial {
            if happened.send((id, Happened::Heard)).await.is_err() {
                return;
            }
            let wait = allowance.lock().take(clock.mono(), 0);
            sleep(wait).await;
        }
    }
}

async fn write(
    id: ConnId,
    link: Arc<dyn Link>,
    mut send: SendHalf,
    mut frames: mpsc::Receiver<BytesMut>,
    Shared { happened, patience, .. }: Shared,
) {
    while let Some(mut buf) = frames.recv().await {
        while !buf.is_empty() {
            match timeout(patience, send.write_buf(&mut buf)).await {
                Ok(Ok(1..)) => {}
                Ok(_) => return,
                Err(_) => {
                    let text = format!("nothing of what was written was read for {} s", patience.as_secs_f32());
                    let _ = happened.send((id, Happened::Misbehaved(Misbehaviour::NotReading, text.clone()))).await;
                    return link.close(CloseCode::Silent, &text);
                }
            }
        }
        if send.flush().await.is_err() {
            return;
        }
        if happened.send((id, Happened::Written(buf))).await.is_err() {
            return;
        }
    }
}

/// Takes the streams the peer opens. `control`: where the control stream goes, if the peer is the one to open it.
async fn take_streams(
    id: ConnId,
    link: Arc<dyn Link>,
    Shared { happened, server, allowances, clock, .. }: Shared,
    established: watch::Receiver<bool>,
    mut control: Option<oneshot::Sender<(SendHalf, RecvHalf)>>,
) {
    let mut requests = JoinSet::new();
    let queries = Arc::new(Semaphore::new(limits::QUERIES_AT_A_TIME));
    let allowance = allowances.of(&link.identity().name, clock.mono()).streams;
    let mut mentioned = false;
    loop {
        tokio::select! {
            stream = link.accept() => match stream {
                None => return,
                Some((StreamKind::Control, send, recv)) => match control.take() {
                    Some(control) => drop(control.send((send, recv))),
                    None => return link.close(CloseCode::Protocol, "a second control stream"),
                },
                Some((kind, send, recv)) => {
                    let (server, mut established) = (server.clone(), established.clone());
                    let (peer, queries) = (link.identity().name.clone(), queries.clone());
                    requests.spawn(async move {
                        // The peer may be a moment ahead of us; before our hello is accepted nothing is answered.
                        let _permit = if kind == StreamKind::Query { queries.acquire_owned().await.ok() } else { None };
                        if established.wait_for(|established| *established).await.is_ok() {
                            server.serve(&peer, kind, send, recv).await;
                        }
                    });
                    let wait = allowance.lock().take_stream(clock.mono());
                    if !wait.is_zero() {
                        // Those that are open already wait for nobody; those that come count against the peer's limit.
                        if !std::mem::replace(&mut mentioned, true) {
                            let text = "it opens more streams than a peer has reason to: they are taken more slowly";
                            let _ = happened.send((id, Happened::Misbehaved(Misbehaviour::Flood, text.into()))).await;
                        }
                        sleep(wait).await;
                    }
                }
            },
            Some(_) = requests.join_next() => {}
        }
    }
}
