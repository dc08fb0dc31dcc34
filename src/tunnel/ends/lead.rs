//! The lead's end: streams that agents relay become connections to the lead broker, if who opened them knows the instance's
//! certificate.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::handshake::{Asked, Codes, Key, Nonce, Outcome, VERSION, random};
use crate::flow_control::Budget;
use crate::pump::{Pump, Source, Stream};
use crate::sockets;

/// What the lead's end takes of its pod's memory at most: 1,400 connections, with room for some to move.
pub const MEMORY: usize = 160 << 20;

/// How long somebody may take to show that it knows the certificate: some round trips between sites.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Most who may be about to.
const STRANGERS: usize = 256;

/// How long the lead broker may take to take a connection.
const DIAL: Duration = Duration::from_secs(5);

/// How long after a failure a connection is accepted again.
const AGAIN: Duration = Duration::from_millis(200);

/// The lead's end.
#[derive(Clone)]
pub struct Lead {
    /// Where the lead broker listens.
    pub broker: SocketAddr,
    /// Of the instance.
    pub key: Key,
    /// How long a connection outlives the stream that carried it.
    pub hold: Duration,
    /// What all connections may take.
    pub budget: Budget,
}

/// The connections that are carried.
type Carried = Arc<Mutex<BTreeMap<[u8; 16], Held>>>;

/// One of them, or one that is about to be.
struct Held {
    host: String,
    process: u64,
    attempt: u64,
    /// Where another stream for it goes.
    streams: mpsc::Sender<Stream>,
    /// Ends it.
    revoked: CancellationToken,
}

/// What an attempt gets to.
enum Found {
    Known(mpsc::Sender<Stream>),
    New(mpsc::Sender<Stream>, mpsc::Receiver<Stream>, CancellationToken),
    Refused(Outcome),
}

impl Lead {
    /// Serves all who come to `listener`, as long as it is polled.
    pub async fn serve(self, listener: TcpListener) {
        let (carried, strangers) = (Carried::default(), Arc::new(Semaphore::new(STRANGERS)));
        loop {
            // All brokers of a large burst come at once. Who is turned away takes this end to be none, so they wait here.
            let Ok(stranger) = strangers.clone().acquire_owned().await else { return };
            let Ok((tcp, _)) = listener.accept().await else {
                sleep(AGAIN).await;
                continue;
            };
            let (lead, carried) = (self.clone(), carried.clone());
            tokio::spawn(async move {
                sockets::hop(&tcp);
                if let Ok(Ok((tcp, codes, asked))) = timeout(INTRODUCTION, introduced(tcp, &lead.key)).await {
                    drop(stranger);
                    lead.take(tcp, codes, asked, &carried).await;
                }
            });
        }
    }

    async fn take(&self, mut tcp: TcpStream, codes: Codes, asked: Asked, carried: &Carried) {
        let refuse = |outcome| codes.answer(outcome, 0, 0);
        let (sender, new) = match find(carried, &asked) {
            Found::Known(sender) => (sender, None),
            Found::New(sender, streams, revoked) => (sender, Some((streams, revoked))),
            Found::Refused(outcome) => return drop(tcp.write_all(&refuse(outcome)).await),
        };
        let Some((streams, revoked)) = new else {
            // One that ends at this moment does not take it, which ends the stream.
            let _ = sender.send(stream(tcp, codes, &asked)).await;
            return;
        };
        match self.connect(&asked).await {
            Ok((broker, share)) => {
                // If there is another attempt meanwhile, that is the one which lives.
                let _ = sender.try_send(stream(tcp, codes, &asked));
                drop(sender);
                let (source, hold) = (Source::Answerer(streams), self.hold);
                let pump = Pump { source, hold, share, revoked, counts: Arc::new(()) };
                sockets::carry(pump, broker, watch::Sender::default().subscribe()).await;
                carried.lock().remove(&asked.connection);
            }
            Err(outcome) => {
                carried.lock().remove(&asked.connection);
                let _ = tcp.write_all(&refuse(outcome)).await;
            }
        }
    }

    async fn connect(&self, asked: &Asked) -> Result<(TcpStream, crate::flow_control::Share), Outcome> {
        let share = self.budget.join(&asked.host).ok_or(Outcome::TooMany)?;
        match timeout(DIAL, TcpStream::connect(self.broker)).await {
            Ok(Ok(broker)) => Ok((broker, share)),
            _ => Err(Outcome::Unreachable),
        }
    }
}

/// Who comes, once it has shown that it knows the key.
async fn introduced(mut tcp: TcpStream, key: &Key) -> io::Result<(TcpStream, Codes, Asked)> {
    let (version, mut theirs): (u8, Nonce) = (tcp.read_u8().await?, [0; 32]);
    tcp.read_exact(&mut theirs).await?;
    let ours: Nonce = random()?;
    tcp.write_all(&[&[VERSION], &ours[..]].concat()).await?;
    if version != VERSION {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let codes = Codes::new(key, theirs, ours);
    let asked = codes.asked(&mut tcp).await?;
    Ok((tcp, codes, asked))
}

fn stream(tcp: TcpStream, codes: Codes, asked: &Asked) -> Stream {
    let (recv, send) = tcp.into_split();
    let answer = move |position, window| codes.answer(Outcome::Open, position, window);
    Stream {
        send: Box::new(send),
        recv: Box::new(recv),
        position: asked.position,
        window: Some(asked.window),
        answer: Some(Box::new(answer)),
    }
}

/// What there is for an attempt.
///
/// Connections that another process of the same host opened are ended: nobody can go on with them, and the lead broker does
/// not listen to a broker that comes back as long as it is connected already.
fn find(carried: &Carried, asked: &Asked) -> Found {
    let mut carried = carried.lock();
    if let Some(known) = carried.get_mut(&asked.connection) {
        if asked.attempt <= known.attempt || asked.process != known.process {
            return Found::Refused(Outcome::Stale);
        }
        known.attempt = asked.attempt;
        return Found::Known(known.streams.clone());
    }
    if asked.resumes {
        return Found::Refused(Outcome::Gone);
    }
    let before = carried.values().filter(|held| held.host == asked.host && held.process != asked.process);
    before.for_each(|held| held.revoked.cancel());
    let ((sender, streams), revoked) = (mpsc::channel(1), CancellationToken::new());
    let held = Held {
        host: asked.host.clone(),
        process: asked.process,
        attempt: asked.attempt,
        streams: sender.clone(),
        revoked: revoked.clone(),
    };
    carried.insert(asked.connection, held);
    Found::New(sender, streams, revoked)
}
