//! The burst's end: connections of the brokers in its pod become connections to the lead's end, over whichever agents relay.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::handshake::{Asked, Codes, Key, Nonce, Outcome, VERSION, random};
use super::{BROKER, MAGIC, NO_ENDS, RELAYED};
use crate::flow_control::{Budget, Share};
use crate::pump::{Opening, Pump, Source, Stream};
use crate::sockets;
use crate::unanswered::{self, Unanswered};

/// What the burst's end takes of its pod's memory at most: 300 connections, with room for some to move.
pub const MEMORY: usize = 64 << 20;

/// How long an agent may take to accept a connection.
const DIAL: Duration = Duration::from_secs(3);

/// How long the agents may take to relay: they wait a while for a way to each other.
const ANSWER: Duration = Duration::from_secs(20);

/// How long the lead's end may take to say that it is one.
const GREETING: Duration = Duration::from_secs(5);

/// Times that an end is missed before it is taken to be none, and the time between them: a connection that the agents carry
/// ends with them, so one short failure on the way to the end must not decide.
const MISSED: u32 = 3;
const MISSED_PAUSE: Duration = Duration::from_secs(1);

/// How long nothing may come over a stream before another one is opened: an agent that hangs keeps its connections, and its
/// kernel answers for it. Brokers of Flux say something every two seconds, and the scripts end one that hears nothing for 15
/// seconds. Each time that nothing came at all, the next stream has twice as long: the lead broker may be silent, or the way
/// slow.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// Times that it doubles.
const DOUBLINGS: u32 = 4;

/// How long a broker waits for the first answer. ZeroMQ gives up after the same time.
const FIRST: Duration = Duration::from_secs(30);

/// Waits between attempts: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Finds the address of the lead Service, and does so anew each time.
pub type Resolve = Box<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> + Send + Sync>;

/// Says why the lead's end was not found: each kind of error once.
pub type Tell = Box<dyn Fn(&io::Error) + Send + Sync>;

/// The burst's end. Cloning shares it.
#[derive(Clone)]
pub struct Burst(Arc<Shared>);

struct Shared {
    resolve: Resolve,
    tell: Tell,
    told: Mutex<BTreeSet<io::ErrorKind>>,
    known: Mutex<Option<SocketAddr>>,
    key: Key,
    hold: Duration,
    host: String,
    budget: Budget,
    process: u64,
    /// Connections that are passed on as they are.
    passed: TaskTracker,
}

/// A way to the lead's end, before this one has shown who it is.
struct Ready {
    tcp: TcpStream,
    codes: Codes,
}

/// Who is at the other side.
enum Found {
    End(Box<Ready>),
    /// A broker, or an end of another version.
    NoEnd,
    /// Agents that say that there is none, or something to which they relay and which says nothing: perhaps only now.
    Missed,
}

impl Burst {
    /// An end in the pod of that host name.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new(
        (resolve, tell): (Resolve, Tell),
        key: Key,
        hold: Duration,
        host: String,
        budget: Budget,
    ) -> io::Result<Self> {
        let process = u64::from_be_bytes(random()?);
        let (told, known, passed) = (Mutex::default(), Mutex::default(), TaskTracker::new());
        Ok(Self(Arc::new(Shared { resolve, tell, told, known, key, hold, host, budget, process, passed })))
    }

    /// Serves the brokers that come to `listener`, as long as it is polled.
    pub async fn serve(self, listener: TcpListener) {
        let (found, unanswered) = watch::channel(Unanswered::new());
        let _looks = AbortOnDropHandle::new(tokio::spawn(unanswered::look(found, self.0.passed.clone())));
        loop {
            let Ok((tcp, _)) = listener.accept().await else {
                sleep(AGAIN[0]).await;
                continue;
            };
            let Some(share) = self.0.budget.join("brokers") else {
                sockets::reset(tcp);
                continue;
            };
            let (burst, unanswered) = (self.clone(), unanswered.clone());
            tokio::spawn(async move { burst.carry(tcp, share, unanswered).await });
        }
    }

    async fn carry(self, tcp: TcpStream, share: Share, unanswered: watch::Receiver<Unanswered>) {
        let first = async {
            let (mut waits, mut missed) = (Waits::default(), 0);
            loop {
                match self.find().await {
                    Ok(Found::End(ready)) => return Some(ready),
                    Ok(Found::NoEnd) => return None,
                    Ok(Found::Missed) => {
                        missed += 1;
                        if missed == MISSED {
                            return None;
                        }
                        sleep(MISSED_PAUSE).await;
                    }
                    Err(_) => waits.wait().await,
                }
            }
        };
        let first = tokio::select! {
            first = timeout(FIRST, first) => first,
            () = gone(&tcp) => return,
        };
        match first {
            Ok(Some(ready)) => {
                let Ok(connection) = random() else { return };
                let (attempt, silent) = (Arc::default(), Arc::default());
                let opener = Opener { burst: self.clone(), connection, attempt, silent };
                let mut first = Some(ready);
                let mut resumes = false;
                let open = move |position, window| -> Opening {
                    let resumes = std::mem::replace(&mut resumes, true);
                    Box::pin(opener.clone().open(first.take(), resumes, position, window))
                };
                let (source, hold, revoked) = (Source::Opener(Box::new(open)), self.0.hold, CancellationToken::new());
                let pump = Pump { source, hold, share, revoked, counts: Arc::new(()) };
                sockets::carry(pump, tcp, watch::Sender::default().subscribe()).await;
            }
            Ok(None) => match self.dial().await {
                Ok(plain) => self.0.passed.track_future(sockets::pass(tcp, plain, unanswered)).await,
                Err(_) => sockets::reset(tcp),
            },
            Err(_) => sockets::reset(tcp),
        }
    }

    /// Who is at the other side of the lead Service now.
    async fn find(&self) -> io::Result<Found> {
        self.look().await.inspect_err(|error| {
            if self.0.told.lock().insert(error.kind()) {
                (self.0.tell)(error);
            }
        })
    }

    async fn look(&self) -> io::Result<Found> {
        let mut tcp = self.dial().await?;
        sockets::hop(&tcp);
        let ours: Nonce = random()?;
        tcp.write_all(&[&MAGIC[..], &[VERSION], &ours].concat()).await?;
        match timeout(ANSWER, tcp.read_u8()).await?? {
            RELAYED => {}
            NO_ENDS => return Ok(Found::Missed),
            BROKER => return Ok(Found::NoEnd),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        let mut greeting = [0; 33];
        if !matches!(timeout(GREETING, tcp.read_exact(&mut greeting)).await, Ok(Ok(_))) {
            return Ok(Found::Missed);
        }
        let [version, theirs @ ..] = greeting;
        let codes = Codes::new(&self.0.key, ours, theirs);
        Ok(if version == VERSION { Found::End(Box::new(Ready { tcp, codes })) } else { Found::NoEnd })
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let known = *self.0.known.lock();
        let addresses = match known {
            Some(address) => vec![address],
            None => (self.0.resolve)().await?,
        };
        let mut last = io::ErrorKind::NotFound.into();
        // A Service of two families may lead somewhere by one of them alone.
        for address in addresses {
            match timeout(DIAL, TcpStream::connect(address)).await.map_err(io::Error::from).and_then(|tcp| tcp) {
                Ok(tcp) => {
                    *self.0.known.lock() = Some(address);
                    return Ok(tcp);
                }
                Err(error) => last = error,
            }
        }
        // A name that leads nowhere may lead elsewhere by now.
        *self.0.known.lock() = None;
        Err(last)
    }
}

/// What opens the streams of one connection.
#[derive(Clone)]
struct Opener {
    burst: Burst,
    connection: [u8; 16],
    attempt: Arc<AtomicU64>,
    /// Streams in a row over which nothing came.
    silent: Arc<AtomicU32>,
}

impl Opener {
    /// Tries until the lead's end has an answer: whoever holds the connection knows for how long.
    async fn open(
        self,
        mut ready: Option<Box<Ready>>,
        resumes: bool,
        position: u64,
        window: u32,
    ) -> Result<Stream, String> {
        let mut waits = Waits::default();
        loop {
            let found = match ready.take() {
                Some(ready) => Ok(Found::End(ready)),
                None => self.burst.find().await,
            };
            if let Ok(Found::End(ready)) = found {
                let asked = Asked {
                    connection: self.connection,
                    process: self.burst.0.process,
                    attempt: 1 + self.attempt.fetch_add(1, Ordering::Relaxed),
                    resumes,
                    position,
                    window,
                    host: self.burst.0.host.clone(),
                };
                match timeout(ANSWER, ask(ready, &asked, &self.silent)).await {
                    Ok(Ok((Outcome::Open, stream))) => return Ok(stream),
                    Ok(Ok((Outcome::Gone, _))) => return Err("the lead's end does not know it any more".to_owned()),
                    Ok(Ok((Outcome::Unreachable | Outcome::TooMany, _))) if !resumes => {
                        return Err("the lead broker does not take it".to_owned());
                    }
                    _ => {}
                }
            }
            waits.wait().await;
        }
    }
}

async fn ask(ready: Box<Ready>, asked: &Asked, silent: &Arc<AtomicU32>) -> io::Result<(Outcome, Stream)> {
    let Ready { mut tcp, codes } = *ready;
    tcp.write_all(&codes.ask(asked)).await?;
    let (outcome, position, window) = codes.answered(&mut tcp).await?;
    let (recv, send) = tcp.into_split();
    let (send, recv) = (Box::new(send), Box::new(Impatient::new(recv, silent.clone())));
    Ok((outcome, Stream { send, recv, position, window: Some(window), answer: None }))
}

/// Fails when nothing has come for [`SILENCE`].
pub(super) struct Impatient<R> {
    from: R,
    silent: Arc<AtomicU32>,
    until: Pin<Box<Sleep>>,
}

impl<R> Impatient<R> {
    pub(super) fn new(from: R, silent: Arc<AtomicU32>) -> Self {
        let doubled = silent.load(Ordering::Relaxed).min(DOUBLINGS);
        Self { from, silent, until: Box::pin(sleep(SILENCE * (1 << doubled))) }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Impatient<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.from).poll_read(cx, buf);
        if read.is_ready() {
            self.silent.store(0, Ordering::Relaxed);
            self.until.as_mut().reset(Instant::now() + SILENCE);
            return read;
        }
        ready!(self.until.as_mut().poll(cx));
        self.silent.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Waits until a broker hangs up that has said nothing; who has said something is heard of later.
async fn gone(tcp: &TcpStream) {
    if let Ok(1..) = tcp.peek(&mut [0]).await {
        pending().await
    }
}

/// Longer and longer ones; not all at the same time.
#[derive(Default)]
struct Waits(u32);

impl Waits {
    async fn wait(&mut self) {
        let longest = AGAIN[1].min(AGAIN[0] * (1 << self.0.min(8)));
        self.0 += 1;
        let part = random::<1>().map_or(255, |[byte]| u32::from(byte));
        sleep(longest / 2 + longest / 512 * part).await;
    }
}
