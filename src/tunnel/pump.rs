//! Carries one TCP connection: between its two halves and whatever stream there is.

use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::io::poll_read_buf;
use tokio_util::sync::CancellationToken;

use super::flow_control::Share;
use super::resumable_stream::{Delivery, ResumableStream};
use super::segment::{self, Decoder, Segment};
use crate::limits::TUNNEL_PIECE;

/// How long a stream may take to carry our last word.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Pieces up to this size are copied together, so that a small message is one write and one packet.
const SMALL: usize = 4 << 10;

/// A connection that has so little under way is in a conversation: it does not wait for the bulk of others.
pub(crate) const CONVERSATION: usize = 64 << 10;

/// The sending half of a stream. `shutdown` sends what is buffered and the end of the stream; dropping it without
/// `shutdown` may do the same.
pub type SendHalf = Box<dyn Sending>;

/// What a [`SendHalf`] can do.
pub trait Sending: AsyncWrite + Send + Unpin {
    /// Whether what is written from now on goes before what waits in other streams of kind Tunnel. A link whose streams do not
    /// wait for each other takes no notice.
    fn set_urgent(&mut self, _urgent: bool) {}

    /// Writes all of this. A link that keeps it takes it as it is.
    fn send(&mut self, bytes: Vec<u8>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(async move { self.write_all(&bytes).await })
    }
}

impl Sending for DuplexStream {}

impl Sending for OwnedWriteHalf {}

/// The receiving half of a stream. Dropping it tells the peer to stop sending.
pub type RecvHalf = Box<dyn AsyncRead + Send + Unpin>;

/// Counts what is carried.
pub trait Counts: Send + Sync {
    /// The connection here has given us more.
    fn took(&self, bytes: usize);
    /// The connection here has taken more.
    fn gave(&self, bytes: usize);
}

/// Nobody asks.
impl Counts for () {
    fn took(&self, _bytes: usize) {}
    fn gave(&self, _bytes: usize) {}
}

/// The bytes that tell an opener where to go on, made of our position and how much may be under way to here.
pub type Answer = Box<dyn FnOnce(u64, u32) -> BytesMut + Send>;

/// A stream, after its opening.
pub struct Stream {
    /// To the other end.
    pub send: SendHalf,
    /// From the other end.
    pub recv: RecvHalf,
    /// Position up to which everything has arrived at the other end.
    pub position: u64,
    /// How much the other end lets us have under way; `None`: it knows no windows.
    pub window: Option<u32>,
    /// What is said first on a stream that the other end opened.
    pub answer: Option<Answer>,
}

/// A stream that is being opened; an error ends the connection.
pub type Opening = Pin<Box<dyn Future<Output = Result<Stream, String>> + Send>>;

/// Opens a stream from a position of ours, with so much that the other end may have under way.
pub type Open = Box<dyn FnMut(u64, u32) -> Opening + Send>;

/// Where streams come from.
pub enum Source {
    /// From here.
    Opener(Open),
    /// The other end opens them, and waits for our position.
    Answerer(mpsc::Receiver<Stream>),
}

/// How a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Both sides had said all.
    Well,
    /// One side broke, or could not be carried any longer; the TCP connection is to be reset.
    Broken(String),
}

/// What a connection is carried by and with.
pub struct Pump {
    /// Of its streams.
    pub source: Source,
    /// How long the connection outlives a stream.
    pub hold: Duration,
    /// Of the memory.
    pub share: Share,
    /// The burst is not carried any more.
    pub revoked: CancellationToken,
    /// What is carried.
    pub counts: Arc<dyn Counts>,
}

/// What the stream carries, in both directions.
struct Carrier {
    send: SendHalf,
    urgent: Option<bool>,
    recv: RecvHalf,
    decoder: Decoder,
    /// What goes next, and how much of the conduit's data after that.
    head: BytesMut,
    body: usize,
}

impl Carrier {
    fn new(Stream { send, recv, .. }: Stream) -> Self {
        Self { send, urgent: None, recv, decoder: Decoder::default(), head: BytesMut::new(), body: 0 }
    }

    fn is_idle(&self) -> bool {
        self.head.is_empty() && self.body == 0
    }

    /// Lets a conversation go before bulk.
    fn rank(&mut self, held: usize) {
        let urgent = held <= CONVERSATION;
        if self.urgent.replace(urgent) != Some(urgent) {
            self.send.set_urgent(urgent);
        }
    }

    /// Takes what the conduit has to say, so much that it fills packets.
    fn fill(&mut self, conduit: &mut ResumableStream) {
        // Most connections are idle most of the time.
        self.head = BytesMut::new();
        while self.body == 0 && self.head.len() < SMALL {
            let Some(piece) = conduit.transmit() else { return };
            segment::head(piece, &mut self.head);
            let Segment::Data(bytes) = piece else { continue };
            if bytes.len() > SMALL {
                self.body = bytes.len();
            } else {
                self.head.extend_from_slice(bytes);
                let length = bytes.len();
                conduit.carried(length);
            }
        }
    }

    /// Sends some of that.
    async fn write(&mut self, conduit: &ResumableStream) -> io::Result<usize> {
        write(&mut self.send, &self.head, self.body, conduit).await
    }

    /// Takes note of so many bytes that were sent.
    fn written(&mut self, length: usize, conduit: &mut ResumableStream) {
        let head = length.min(self.head.len());
        self.head.advance(head);
        self.body -= length - head;
        conduit.carried(length - head);
    }

    /// Takes in what has arrived.
    fn receive(&mut self, mut arrived: &[u8], conduit: &mut ResumableStream) -> Result<(), String> {
        while let Some(piece) = self.decoder.take(&mut arrived).map_err(|error| error.to_string())? {
            conduit.receive(piece).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// What the other end is still to be told over the stream of a connection that is over.
#[must_use]
pub struct LastWords(Option<(Carrier, ResumableStream)>);

impl LastWords {
    /// Sends them, and waits a moment until the other end has ended the stream as well.
    pub async fn say(self) {
        let Some((mut carrier, mut conduit)) = self.0 else { return };
        let last_words = async {
            loop {
                if carrier.is_idle() {
                    carrier.fill(&mut conduit);
                }
                if carrier.is_idle() {
                    break;
                }
                let Ok(written) = carrier.write(&conduit).await else { return };
                carrier.written(written, &mut conduit);
            }
            let ended = carrier.send.shutdown().await;
            while ended.is_ok() && read(&mut carrier.recv, TUNNEL_PIECE).await.is_ok_and(|more| !more.is_empty()) {}
        };
        // Beyond that, the other end finds out by asking.
        let _ = timeout(LAST_WORDS, last_words).await;
    }
}

/// One thing that happened.
enum Happened {
    Read(io::Result<Vec<u8>>),
    Delivered(io::Result<usize>),
    Arrived(io::Result<Vec<u8>>),
    Written(io::Result<usize>),
    /// Nothing more for now.
    Quiet,
    Stream(Stream),
    Gone(String),
    Expired,
    Revoked,
}

impl Pump {
    /// Carries until both sides have said all, or it cannot go on. The connection here is to be ended before the last words
    /// are said.
    pub async fn run(
        self,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> (Ended, LastWords) {
        let Self { mut source, hold, mut share, revoked, counts } = self;
        let (mut conduit, mut carrier) = (ResumableStream::default(), None::<Carrier>);
        conduit.grant(share.grant());
        let (mut opening, mut carried) = (source.open(&mut conduit), false);
        let (mut expiry, mut busy) = (Box::pin(sleep(hold)), false);
        loop {
            conduit.grant(share.grant());
            conduit.set_busy(busy);
            if let Some(carrier) = carrier.as_mut().filter(|carrier| carrier.is_idle()) {
                carrier.rank(conduit.held());
                carrier.fill(&mut conduit);
            }
            let said = carrier.as_ref().is_some_and(Carrier::is_idle);
            if conduit.is_finished() || said && conduit.is_broken_off() {
                let ended = if conduit.is_finished() { Ended::Well } else { broken("the connection here broke").0 };
                return (ended, LastWords(carrier.map(|carrier| (carrier, conduit))));
            }
            share.set(conduit.takes());
            let room = conduit.room(share.window());
            let (delivery, attached) = (conduit.delivery(), carrier.is_some());
            let is_end = delivery == Some(Delivery::End);
            let something = async {
                tokio::select! {
                    () = revoked.cancelled() => Happened::Revoked,
                    read = read(&mut reader, room), if room > 0 => Happened::Read(read),
                    taken = deliver(&mut writer, delivery, &conduit), if delivery.is_some() => Happened::Delivered(taken),
                    moved = exchange(carrier.as_mut(), &conduit), if attached => moved,
                    stream = source.next(&mut opening) => stream.map_or_else(Happened::Gone, Happened::Stream),
                    () = &mut expiry, if !attached => Happened::Expired,
                }
            };
            let happened = tokio::select! {
                biased;
                happened = something => happened,
                () = ready(()), if busy => Happened::Quiet,
            };
            match happened {
                // Whatever else happens then follows from it. But what was written is not said twice.
                last if revoked.is_cancelled() => {
                    match (last, &mut carrier) {
                        (Happened::Written(Ok(written)), Some(carrier)) => carrier.written(written, &mut conduit),
                        (Happened::Written(Err(_)), _) => carrier = None,
                        _ => {}
                    }
                    conduit.break_off();
                    let last_words = LastWords(carrier.map(|carrier| (carrier, conduit)));
                    return (broken("the burst is not carried any more, or not by this agent").0, last_words);
                }
                Happened::Read(Ok(bytes)) if !bytes.is_empty() => {
                    counts.took(bytes.len());
                    conduit.read(bytes);
                }
                Happened::Delivered(Ok(taken)) => {
                    // An end counts as a byte to the other side, and is none.
                    counts.gave(if is_end { 0 } else { taken });
                    conduit.delivered(taken);
                }
                // Nobody on the other side knows of it yet.
                Happened::Read(Err(_)) | Happened::Delivered(Err(_)) if !carried => return broken("it was given up"),
                Happened::Read(Ok(_)) => conduit.read_end(),
                Happened::Read(Err(_)) | Happened::Delivered(Err(_)) => conduit.break_off(),
                Happened::Written(Ok(written)) => {
                    if let Some(carrier) = &mut carrier {
                        carrier.written(written, &mut conduit);
                    }
                }
                Happened::Quiet => busy = false,
                Happened::Arrived(Ok(bytes)) if !bytes.is_empty() => {
                    busy = true;
                    let received = carrier.as_mut().map_or(Ok(()), |carrier| carrier.receive(&bytes, &mut conduit));
                    drop(bytes);
                    share.set(conduit.takes());
                    match received {
                        Err(problem) => return broken(&problem),
                        Ok(()) if !conduit.is_heeded() && share.is_overrun() => {
                            return broken("the peer sends more than there is room for, and knows no windows");
                        }
                        Ok(()) if conduit.other_broke() => return broken("the connection on the other side broke"),
                        Ok(()) => {}
                    }
                }
                // The stream broke: both connections are held.
                Happened::Arrived(_) | Happened::Written(_) => {
                    carrier = None;
                    expiry = Box::pin(sleep(hold));
                    opening = source.open(&mut conduit);
                }
                Happened::Stream(mut stream) => {
                    (opening, carried) = (None, true);
                    if let Err(problem) = conduit.resume(stream.position, stream.window) {
                        return broken(&format!("the other end is of another connection: {problem}"));
                    }
                    let answer = stream.answer.take();
                    let mut fresh = Carrier::new(stream);
                    if let Some(answer) = answer {
                        fresh.head = answer(conduit.position(), conduit.opening());
                    }
                    carrier = Some(fresh);
                }
                Happened::Gone(why) => return broken(&why),
                Happened::Expired => return broken(&format!("the peer could not be reached for {hold:?}")),
                Happened::Revoked => {}
            }
        }
    }
}

fn broken(why: &str) -> (Ended, LastWords) {
    (Ended::Broken(why.to_owned()), LastWords(None))
}

impl Source {
    fn open(&mut self, conduit: &mut ResumableStream) -> Option<Opening> {
        match self {
            Self::Opener(open) => Some(open(conduit.position(), conduit.opening())),
            Self::Answerer(_) => None,
        }
    }

    /// The next stream: the one that is being opened, or one that the other end opened.
    async fn next(&mut self, opening: &mut Option<Opening>) -> Result<Stream, String> {
        match (self, opening) {
            (Self::Answerer(streams), _) => streams.recv().await.ok_or_else(|| "the tunnel ends".to_owned()),
            (Self::Opener(_), Some(opening)) => opening.await,
            (Self::Opener(_), None) => pending().await,
        }
    }
}

thread_local! {
    /// Where bytes arrive: most connections are idle most of the time, and need no such room of their own.
    static ARRIVAL: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What there is to be read, at most `room` and [`TUNNEL_PIECE`]; empty at the end. It takes memory only once it is there.
///
/// # Errors
/// Of the reader.
pub async fn read(reader: &mut (impl AsyncRead + Unpin), room: usize) -> io::Result<Vec<u8>> {
    poll_fn(|cx| {
        let mut bytes = ARRIVAL.take();
        bytes.reserve_exact(TUNNEL_PIECE);
        let read = poll_read_buf(Pin::new(&mut *reader), cx, &mut (&mut bytes).limit(room.min(TUNNEL_PIECE)));
        // Much is handed on as it is, little is copied: nobody keeps memory that is not filled.
        if bytes.len() >= TUNNEL_PIECE / 8 * 7 {
            return read.map_ok(|_| bytes);
        }
        let few = bytes.to_vec();
        bytes.clear();
        ARRIVAL.set(bytes);
        read.map_ok(|_| few)
    })
    .await
}

async fn deliver(
    writer: &mut (impl AsyncWrite + Unpin),
    delivery: Option<Delivery<'_>>,
    conduit: &ResumableStream,
) -> io::Result<usize> {
    match delivery {
        // What was sent as one piece arrives in two or three.
        Some(Delivery::Bytes(_)) => writer.write_vectored(&conduit.bytes_to_deliver::<4>()).await,
        Some(Delivery::End) => writer.shutdown().await.map(|()| 1),
        None => pending().await,
    }
}

async fn exchange(carrier: Option<&mut Carrier>, conduit: &ResumableStream) -> Happened {
    let Some(carrier) = carrier else { return pending().await };
    let idle = carrier.is_idle();
    let Carrier { send, recv, head, body, .. } = carrier;
    tokio::select! {
        arrived = read(recv, TUNNEL_PIECE) => Happened::Arrived(arrived),
        written = write(send, head, *body, conduit), if !idle => Happened::Written(written),
    }
}

async fn write(send: &mut SendHalf, head: &[u8], body: usize, conduit: &ResumableStream) -> io::Result<usize> {
    let bytes = conduit.outgoing();
    let body = &bytes[..body.min(bytes.len())];
    // In one packet, where the stream is a connection itself.
    let written = if head.is_empty() {
        send.write(body).await?
    } else {
        send.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).await?
    };
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}
