//! What the program beside a lead broker (`tell-queue.py` of `render`) says of the queue, and how it and the agent know each
//! other: by the certificate of the instance.
//!
//! | | bytes |
//! |---|---|
//! | agent | version, nonce |
//! | program | version, nonce |
//! | agent | a code (HMAC) |
//! | program | frames: kind, length and text, and a code over the number of the frame and all of these |
//! | agent | wishes: length and text (an idset), and a code over the number of the wish and both |
//!
//! A wish names the ranks on which no more jobs may start. Programs of earlier versions hear none, and say nothing of it: that
//! ranks are closed shows only in what is told of the queue.
//!
//! Whatever says this may be anybody's who can run something in that pod: it says at most so much, and takes so long.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tributary_tunnel::ends::handshake::{CODE, Codes, Key, Nonce, random};

/// What is made of the key of the certificate.
pub const PURPOSE: &str = "tributary: queue, version 1";

/// Version of all that is said.
pub const VERSION: u8 = 1;

/// The most of one frame: far more than the program says.
const MOST_BYTES: usize = 1 << 20;

/// How long each side may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(3);

/// How long the program may say nothing. It does so every two seconds, but for the time that it looks at a long queue.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);

/// The pod of a lead broker, and what its instance is known by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lead {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Where the program listens: the first one that takes a connection counts.
    pub ends: Vec<SocketAddr>,
    /// The Secret with the certificate.
    pub secret: String,
    /// Digest of the certificate.
    pub digest: String,
    /// Its node is simulated: no program runs there.
    pub simulated: bool,
}

/// Bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// How the program is reached.
pub trait Connect: Send + Sync {
    /// Connects to it.
    fn connect<'a>(&'a self, lead: &'a Lead) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// Over TCP.
pub struct Tcp;

impl Connect for Tcp {
    fn connect<'a>(&'a self, lead: &'a Lead) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        async move { Ok(Box::new(TcpStream::connect(&lead.ends[..]).await?) as Box<dyn Stream>) }.boxed()
    }
}

/// What the program says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Nothing is new.
    Alive,
    /// The queue: [`super::look`] reads it.
    Picture(String),
    /// Why the queue cannot be read.
    Trouble(String),
}

/// What a program says, once each side has shown who it is.
pub struct Frames<S> {
    stream: S,
    codes: Codes,
    number: u64,
}

/// What the agent wishes of a program, once each side has shown who it is.
pub struct Wishes<S> {
    stream: S,
    codes: Codes,
    number: u64,
}

impl<S: AsyncWrite + Unpin> Wishes<S> {
    /// No more jobs start on these ranks, and again on all others that were closed.
    ///
    /// # Errors
    /// The program hung up.
    pub async fn closes(&mut self, ranks: &str) -> io::Result<()> {
        let length = u32::try_from(ranks.len()).map_err(io::Error::other)?;
        let wish = [&self.number.to_be_bytes()[..], &length.to_be_bytes(), ranks.as_bytes()].concat();
        self.number += 1;
        self.stream.write_all(&[&wish[8..], self.codes.code(b"close", &wish).as_ref()].concat()).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Frames<ReadHalf<S>> {
    /// Says who we are, over a connection.
    ///
    /// # Errors
    /// Whoever is there does not say what the program says, or takes too long. That it does not know the certificate shows by its
    /// first frame.
    pub async fn begin(stream: S, key: &Key) -> io::Result<(Self, Wishes<WriteHalf<S>>)> {
        timeout(INTRODUCTION, Self::introduce(stream, key)).await?
    }

    async fn introduce(mut stream: S, key: &Key) -> io::Result<(Self, Wishes<WriteHalf<S>>)> {
        let ours: Nonce = random()?;
        stream.write_all(&[&[VERSION], &ours[..]].concat()).await?;
        let (version, mut theirs): (u8, Nonce) = (stream.read_u8().await?, [0; 32]);
        if version != VERSION {
            return Err(other(format!("it speaks version {version}, not {VERSION}")));
        }
        stream.read_exact(&mut theirs).await?;
        let codes = Codes::new(key, ours, theirs);
        stream.write_all(codes.code(b"agent", &[]).as_ref()).await?;
        let (reads, writes) = tokio::io::split(stream);
        let wishes = Wishes { stream: writes, codes: codes.clone(), number: 0 };
        Ok((Self { stream: reads, codes, number: 0 }, wishes))
    }
}

impl<S: AsyncRead + Unpin> Frames<S> {
    /// What it says next.
    ///
    /// # Errors
    /// It says nothing for long, or not what the program says, or does not know the certificate.
    pub async fn next(&mut self) -> io::Result<Frame> {
        let frame = timeout(SILENCE, self.frame()).await?;
        match frame {
            Err(error) if self.number == 0 && error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(other("it has another certificate".to_owned()))
            }
            frame => {
                self.number += 1;
                frame
            }
        }
    }

    async fn frame(&mut self) -> io::Result<Frame> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).await?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(other(format!("it says {length} bytes at once")));
        }
        let mut said = [&self.number.to_be_bytes()[..], &head].concat();
        let text = said.len();
        // Bit by bit: who only announces that much takes no memory.
        if (&mut self.stream).take(length as u64).read_to_end(&mut said).await? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut code = [0; CODE];
        self.stream.read_exact(&mut code).await?;
        self.codes.check(b"queue", &said, &code)?;
        let text = String::from_utf8_lossy(&said[text..]).into_owned();
        match kind {
            0 => Ok(Frame::Alive),
            1 => Ok(Frame::Picture(text)),
            2 => Ok(Frame::Trouble(text)),
            kind => Err(other(format!("it says something of kind {kind}"))),
        }
    }
}

fn other(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The other side, for tests.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the program says first, and the codes of all that follows; `None` if the agent has another key.
    pub(crate) async fn answer(mut stream: &mut (impl AsyncRead + AsyncWrite + Unpin), key: &Key) -> Option<Codes> {
        let (mut hello, mut code) = ([0; 33], [0; CODE]);
        stream.read_exact(&mut hello).await.ok()?;
        stream.write_all(&[&[VERSION], &[7; 32][..]].concat()).await.ok()?;
        (&mut stream).read_exact(&mut code).await.ok()?;
        let codes = Codes::new(key, hello[1..].try_into().ok()?, [7; 32]);
        codes.check(b"agent", &[], &code).ok().map(|()| codes)
    }

    /// A frame, as the program makes it.
    pub(crate) fn frame(codes: &Codes, number: u64, kind: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap();
        let said = [&number.to_be_bytes()[..], &[kind], &length.to_be_bytes(), text].concat();
        [&said[8..], codes.code(b"queue", &said).as_ref()].concat()
    }

    fn key(letter: char) -> Key {
        Key::of_certificate(&format!("secret-key = \"{}\"", letter.to_string().repeat(40)), PURPOSE).unwrap()
    }

    /// All that is heard of somebody who says these bytes, and then nothing.
    async fn heard(says: impl FnOnce(&Codes) -> Vec<u8>) -> Vec<Result<Frame, String>> {
        let (near, mut far) = tokio::io::duplex(4 << 20);
        let program = async {
            let codes = answer(&mut far, &key('a')).await.unwrap();
            far.write_all(&says(&codes)).await.unwrap();
            drop(far);
        };
        let agent = async {
            let (mut frames, _wishes) = Frames::begin(near, &key('a')).await.unwrap();
            let mut heard = Vec::new();
            loop {
                let next = frames.next().await.map_err(|error| error.to_string());
                let ended = next.is_err();
                heard.push(next);
                if ended {
                    return heard;
                }
            }
        };
        tokio::join!(agent, program).0
    }

    #[tokio::test]
    async fn what_the_program_says_is_heard_in_its_order() {
        let found = heard(|codes| {
            [(1, &b"{}"[..]), (0, b""), (2, b"gone"), (1, b"\xff")]
                .into_iter()
                .zip(0..)
                .flat_map(|((kind, text), number)| frame(codes, number, kind, text))
                .collect()
        });
        let [first, alive, trouble, odd, end] = &found.await[..] else { panic!("five") };
        assert_eq!(first, &Ok(Frame::Picture("{}".into())));
        assert_eq!((alive, trouble), (&Ok(Frame::Alive), &Ok(Frame::Trouble("gone".into()))));
        assert_eq!(odd, &Ok(Frame::Picture("\u{fffd}".into())));
        assert!(end.as_ref().unwrap_err().contains("eof"), "{end:?}");
    }

    /// The dangers: somebody between the two says something of its own, or again; memory that is taken by a word.
    #[tokio::test]
    async fn nothing_else_is_heard() {
        let strange = Codes::new(&key('a'), [1; 32], [2; 32]);
        let other = Codes::new(&key('b'), [1; 32], [2; 32]);
        type Says = Box<dyn FnOnce(&Codes) -> Vec<u8>>;
        let table: Vec<(&str, Says)> = vec![
            ("another certificate", Box::new(|_| Vec::new())),
            ("certificate", Box::new(move |_| frame(&other, 0, 1, b"{}"))),
            ("certificate", Box::new(move |_| frame(&strange, 0, 1, b"{}"))),
            ("certificate", Box::new(|codes| frame(codes, 1, 1, b"{}"))),
            (
                "certificate",
                Box::new(|codes| {
                    let mut changed = frame(codes, 0, 1, b"{}");
                    changed[5] = b'[';
                    changed
                }),
            ),
            ("4294967295 bytes at once", Box::new(|_| vec![1, 255, 255, 255, 255])),
            ("kind 3", Box::new(|codes| frame(codes, 0, 3, b""))),
        ];
        for (expected, says) in table {
            let found = heard(says).await;
            assert!(found[0].as_ref().unwrap_err().contains(expected), "{expected}: {found:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_takes_no_more_than_the_limit() {
        let (near, _far) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        assert!(Frames::begin(near, &key('a')).await.is_err());
        assert_eq!(began.elapsed(), INTRODUCTION);
        let ((near, mut far), key) = (tokio::io::duplex(4 << 10), key('a'));
        let (frames, _) = tokio::join!(Frames::begin(near, &key), answer(&mut far, &key));
        let ((mut frames, _wishes), began) = (frames.unwrap(), tokio::time::Instant::now());
        assert!(frames.next().await.is_err());
        assert_eq!(began.elapsed(), SILENCE);
    }
}
