//! Carries one TCP connection: between its two halves and whatever stream there is.

use std::future::pending;
use std::io;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::conduit::{Conduit, Delivery};
use super::metrics::TunnelMetrics;
use super::piece::{self, Decoder};
use super::share::Share;
use super::words::OPEN;
use crate::federation::transport::{RecvHalf, SendHalf};
use crate::federation::wire::limits::{TUNNEL_FLOOR, TUNNEL_FRAME, TUNNEL_PIECE};
use crate::federation::wire::{frame, proto};

/// How long a stream may take to carry our last word.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Pieces up to this size are copied together, so that a small message is one write and one packet.
const SMALL: usize = 4 << 10;

/// A connection that has so little under way is in a conversation: it does not wait for the bulk of others.
const CONVERSATION: usize = TUNNEL_FLOOR;

/// A stream of kind Tunnel, after its opening.
pub(super) struct Stream {
    pub(super) send: SendHalf,
    pub(super) recv: RecvHalf,
    /// Position up to which everything has arrived at the other end.
    pub(super) position: u64,
}

/// A stream that is being opened; an error ends the connection.
pub(super) type Opening = BoxFuture<'static, Result<Stream, String>>;

/// Opens a stream from a position of ours.
pub(super) type Open = Box<dyn FnMut(u64) -> Opening + Send>;

/// Where streams come from.
pub(super) enum Source {
    /// We open them.
    Opener(Open),
    /// The other end opens them, and waits for our position.
    Answerer(mpsc::Receiver<Stream>),
}

/// How a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// Both sides had said all.
    Well,
    /// One side broke, or could not be carried any longer; the TCP connection is to be reset.
    Broken(String),
}

/// What a connection is carried by and with.
pub(super) struct Pump {
    pub(super) source: Source,
    /// How long the connection outlives a stream.
    pub(super) hold: Duration,
    pub(super) share: Share,
    /// The burst is not carried any more.
    pub(super) revoked: CancellationToken,
    pub(super) metrics: TunnelMetrics,
}

/// What the stream carries, in both directions.
struct Carrier {
    send: SendHalf,
    urgent: Option<bool>,
    recv: RecvHalf,
    arriving: BytesMut,
    decoder: Decoder,
    head: BytesMut,
    body: Bytes,
}

impl Carrier {
    fn new(Stream { send, recv, position: _ }: Stream) -> Self {
        let (arriving, head) = (BytesMut::new(), BytesMut::new());
        Self { send, urgent: None, recv, arriving, decoder: Decoder::default(), head, body: Bytes::new() }
    }

    fn is_idle(&self) -> bool {
        self.head.is_empty() && self.body.is_empty()
    }

    /// Lets a conversation go before bulk.
    fn rank(&mut self, held: usize) {
        let urgent = held <= CONVERSATION;
        if self.urgent.replace(urgent) != Some(urgent) {
            self.send.set_urgent(urgent);
        }
    }

    /// Takes what the conduit has to say, so much that it fills packets.
    fn fill(&mut self, conduit: &mut Conduit) {
        while self.body.is_empty() && self.head.len() < SMALL {
            let Some(piece) = conduit.transmit() else { return };
            let body = piece::head(piece, &mut self.head);
            if body.len() <= SMALL {
                self.head.extend_from_slice(&body);
            } else {
                self.body = body;
            }
        }
    }

    /// Takes in what has arrived.
    fn receive(&mut self, conduit: &mut Conduit) -> Result<(), String> {
        while let Some(piece) = self.decoder.take(&mut self.arriving).map_err(|error| error.to_string())? {
            conduit.receive(piece).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// What the other end is still to be told over the stream of a connection that is over.
#[must_use]
pub(super) struct LastWords(Option<(Carrier, Conduit)>);

impl LastWords {
    /// Sends them, and waits a moment until the other end has ended the stream as well.
    pub(super) async fn say(self) {
        let Some((mut carrier, mut conduit)) = self.0 else { return };
        let last_words = async {
            loop {
                if carrier.is_idle() {
                    carrier.fill(&mut conduit);
                }
                if carrier.is_idle() {
                    break;
                }
                let Carrier { send, head, body, .. } = &mut carrier;
                if !matches!(write(send, head, body).await, Ok(1..)) {
                    return;
                }
            }
            let ended = carrier.send.shutdown().await;
            while ended.is_ok() && matches!(carrier.recv.read_buf(&mut carrier.arriving).await, Ok(1..)) {
                carrier.arriving.clear();
            }
        };
        // Beyond that, the other end finds out by asking.
        let _ = timeout(LAST_WORDS, last_words).await;
    }
}

/// One thing that happened.
enum Happened {
    Read(io::Result<usize>),
    Delivered(io::Result<usize>),
    Arrived(io::Result<usize>),
    Written(io::Result<usize>),
    Stream(Stream),
    Gone(String),
    Expired,
    Revoked,
}

impl Pump {
    /// Carries until both sides have said all, or it cannot go on. The connection here is to be ended before the last words
    /// are said.
    pub(super) async fn run(
        self,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> (Ended, LastWords) {
        let Self { mut source, hold, mut share, revoked, metrics } = self;
        let (mut conduit, mut carrier, mut buf) = (Conduit::default(), None::<Carrier>, BytesMut::new());
        let (mut opening, mut carried) = (source.open(0), false);
        let mut expiry = Box::pin(sleep(hold));
        loop {
            if let Some(carrier) = carrier.as_mut().filter(|carrier| carrier.is_idle()) {
                carrier.rank(conduit.held());
                carrier.fill(&mut conduit);
            }
            let said = carrier.as_ref().is_some_and(Carrier::is_idle);
            if conduit.is_finished() || said && conduit.is_broken_off() {
                let ended = if conduit.is_finished() { Ended::Well } else { broken("the connection here broke").0 };
                return (ended, LastWords(carrier.map(|carrier| (carrier, conduit))));
            }
            share.set(conduit.held(), conduit.queued());
            let room = conduit.room(share.window());
            let (delivery, attached) = (conduit.delivery(), carrier.is_some());
            let happened = tokio::select! {
                () = revoked.cancelled() => Happened::Revoked,
                read = read(&mut reader, &mut buf, room), if room > 0 => Happened::Read(read),
                taken = deliver(&mut writer, delivery.as_ref()), if delivery.is_some() => Happened::Delivered(taken),
                moved = exchange(carrier.as_mut()), if attached => moved,
                stream = source.next(&mut opening) => stream.map_or_else(Happened::Gone, Happened::Stream),
                () = &mut expiry, if !attached => Happened::Expired,
            };
            match happened {
                // Whatever else happens then follows from it.
                _ if revoked.is_cancelled() => {
                    conduit.break_off();
                    let last_words = LastWords(carrier.map(|carrier| (carrier, conduit)));
                    return (broken("the burst is not carried any more, or not by this agent").0, last_words);
                }
                Happened::Read(Ok(1..)) => {
                    metrics.took(buf.len());
                    conduit.read(buf.split().freeze());
                }
                Happened::Delivered(Ok(taken)) => {
                    // An end counts as a byte to the other side, and is none.
                    metrics.gave(if matches!(delivery, Some(Delivery::Bytes(_))) { taken } else { 0 });
                    conduit.delivered(taken);
                }
                // Nobody on the other side knows of it yet.
                Happened::Read(Err(_)) | Happened::Delivered(Err(_)) if !carried => return broken("it was given up"),
                Happened::Read(Ok(0)) => conduit.read_end(),
                Happened::Read(_) | Happened::Delivered(_) => conduit.break_off(),
                Happened::Written(Ok(1..)) => {}
                Happened::Arrived(Ok(1..)) => {
                    let received = carrier.as_mut().map_or(Ok(()), |carrier| carrier.receive(&mut conduit));
                    share.set(conduit.held(), conduit.queued());
                    match received {
                        Err(problem) => return broken(&problem),
                        Ok(()) if share.is_overrun() => return broken("the peer sends more than its share"),
                        Ok(()) if conduit.other_broke() => return broken("the connection on the other side broke"),
                        Ok(()) => {}
                    }
                }
                // The stream broke: both connections are held.
                Happened::Arrived(_) | Happened::Written(_) => {
                    carrier = None;
                    expiry = Box::pin(sleep(hold));
                    opening = source.open(conduit.position());
                }
                Happened::Stream(stream) => {
                    (opening, carried) = (None, true);
                    if let Err(problem) = conduit.resume(stream.position) {
                        return broken(&format!("the other end is of another connection: {problem}"));
                    }
                    let mut fresh = Carrier::new(stream);
                    if let Source::Answerer(_) = source {
                        fresh.head = answer(conduit.position());
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
    fn open(&mut self, position: u64) -> Option<Opening> {
        match self {
            Self::Opener(open) => Some(open(position)),
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

/// The bytes that tell the opener where to go on.
fn answer(position: u64) -> BytesMut {
    let mut bytes = BytesMut::new();
    let answer = proto::TunnelAnswer { outcome: OPEN, position, message: String::new() };
    frame::put(&answer, TUNNEL_FRAME, &mut bytes).expect("an answer without words is short");
    bytes
}

async fn read(reader: &mut (impl AsyncRead + Unpin), buf: &mut BytesMut, room: usize) -> io::Result<usize> {
    make_room(buf);
    reader.read_buf(&mut buf.limit(room)).await
}

async fn deliver(writer: &mut (impl AsyncWrite + Unpin), delivery: Option<&Delivery>) -> io::Result<usize> {
    match delivery {
        Some(Delivery::Bytes(bytes)) => writer.write(bytes).await,
        Some(Delivery::End) => writer.shutdown().await.map(|()| 1),
        None => pending().await,
    }
}

async fn exchange(carrier: Option<&mut Carrier>) -> Happened {
    let Some(carrier) = carrier else { return pending().await };
    make_room(&mut carrier.arriving);
    let idle = carrier.is_idle();
    let Carrier { send, recv, arriving, head, body, .. } = carrier;
    tokio::select! {
        arrived = recv.read_buf(arriving) => Happened::Arrived(arrived),
        written = write(send, head, body), if !idle => Happened::Written(written),
    }
}

async fn write(send: &mut SendHalf, head: &mut BytesMut, body: &mut Bytes) -> io::Result<usize> {
    if head.is_empty() { send.write_buf(body).await } else { send.write_buf(head).await }
}

/// Pieces of a buffer keep the whole of it: a new one is made only when the old one is used up, so that many small pieces
/// do not keep a large buffer each.
fn make_room(buf: &mut BytesMut) {
    if buf.capacity() - buf.len() < SMALL {
        buf.reserve(TUNNEL_PIECE);
    }
}
