//! Dials a lead broker, and lets it prove that it holds the certificate of the instance.

use std::io;
use std::net::SocketAddr;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tributary_clock::{Rng, SystemRng};
use tributary_contract::{Check, Finding};
use tributary_flux::curve::{self, Handshake, HandshakeError};
use tributary_render::ENDS_PORT;
use tributary_tunnel::sockets::LEAD_DIAL;

use super::TIME_LIMIT;
use super::attempt::Target;
use crate::provider::materialize::LEAD_PORT;

// The root's agent gives up sooner, so that it is heard that it did not reach the lead.
const _: () = assert!(LEAD_DIAL.as_millis() < TIME_LIMIT.as_millis(), "with time for the way between the agents");

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The lead broker, with the right certificate.
    Welcomed,
    /// A broker with another certificate, or no broker: a sentence.
    OtherCertificate(String),
    /// It takes connections and did not say what a broker says in time.
    Silent,
    /// It ended the connection before it said what a broker says first.
    Ended,
    /// Nobody listens there.
    Refused,
    /// No answer in time.
    NoAnswer,
    /// The network says that there is no way: a sentence.
    NoWay(String),
}

impl Seen {
    /// As findings about `target`. `late`: a lead that was about to start would have started.
    pub fn findings(&self, target: &Target, late: bool) -> Vec<Finding> {
        let end = match (&target.ends[..], target.tunnel) {
            (_, true) => "the lead broker, through the tunnel,".to_owned(),
            ([], _) => "the lead broker".to_owned(),
            (ends, _) => ends.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        };
        let starting = "the lead broker may still be starting; if it runs, its Service or its pod is not what the address leads to";
        let blocked = "let the nodes of this cluster open TCP connections to it, or choose flux.bursting.network.type \
                       Tunnel, which needs no such way";
        let by_tunnel = format!(
            "the lead broker may still be starting; if it runs, the root's agent must reach the ports {LEAD_PORT} and \
             {ENDS_PORT} of the lead's pod: look at the NetworkPolicies in the root's cluster"
        );
        let [starting, blocked] = if target.tunnel { [&*by_tunnel; 2] } else { [starting, blocked] };
        let reached = || Finding::pass(Check::LeadAddress, format!("{end} takes TCP connections"));
        let not_reached = |message: String, hint: &str, fails: bool| {
            let make = if fails { Finding::fail } else { Finding::unknown };
            [make(Check::LeadAddress, message, hint), not_tried()].into()
        };
        match self {
            Self::Welcomed => {
                let message = "the lead broker holds the certificate of the instance";
                [reached(), Finding::pass(Check::Certificate, message)].into()
            }
            Self::OtherCertificate(message) => {
                let hint = "something else has the lead's address, or the root runs with another certificate than this \
                            burst was given: see the root's lead Service, or start the instance anew, in the root's cluster";
                [reached(), Finding::fail(Check::Certificate, message.clone(), hint)].into()
            }
            Self::Silent => {
                let message = format!("{end} took the connection and began no handshake");
                [reached(), Finding::unknown(Check::Certificate, message, starting)].into()
            }
            // Through a tunnel our own agent takes every connection, and ends it if the root's agent does not reach the lead.
            Self::Ended if target.tunnel => {
                let message = "the connection through the tunnel ended before the lead broker's greeting was whole";
                not_reached(message.to_owned(), starting, late)
            }
            Self::Ended => {
                not_reached(format!("{end} ended the connection before its greeting was whole"), starting, late)
            }
            Self::Refused => not_reached(format!("{end} refuses TCP connections"), starting, late),
            Self::NoAnswer => not_reached(format!("{end} did not answer within {TIME_LIMIT:?}"), blocked, true),
            Self::NoWay(why) => not_reached(format!("{end} cannot be reached: {why}"), blocked, true),
        }
    }
}

impl Seen {
    /// As far as a peer is told: its lead broker was reached, with the certificate of its instance, or not.
    pub(crate) fn told(&self, target: &Target, late: bool) -> Vec<Finding> {
        // Through the tunnel, nothing but that lead is reached.
        if target.tunnel {
            return self.findings(target, late);
        }
        if *self == Self::Welcomed {
            let holds = Finding::pass(Check::Certificate, "the lead broker holds the certificate of the instance");
            return [Finding::pass(Check::LeadAddress, "the lead broker is reached"), holds].into();
        }
        let message = "no lead broker with the certificate of the instance is reached at the lead's address";
        let hint = "it may still be starting; let the nodes of the provider open TCP connections to it, or choose \
                    flux.bursting.network.type Tunnel, which needs no such way; the provider's HostedBurst says more";
        let make = if late { Finding::fail } else { Finding::unknown };
        [make(Check::LeadAddress, message.to_owned(), hint), not_tried()].into()
    }
}

/// Nobody must be dialled.
pub(crate) fn refused(why: &str) -> Vec<Finding> {
    let hint = "write an address of a node or a load balancer of the root's cluster (flux.bursting.network.address), or \
                choose flux.bursting.network.type Tunnel";
    [Finding::fail(Check::LeadAddress, why, hint), not_tried()].into()
}

fn not_tried() -> Finding {
    Finding::unknown(Check::Certificate, "not tried, since the lead broker was not reached", "")
}

/// How lead brokers are dialled.
pub trait Dial: Send + Sync {
    /// Looks at a lead broker. Takes at most [`TIME_LIMIT`].
    fn dial<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Seen>;
}

/// Over TCP.
pub struct Tcp;

impl Dial for Tcp {
    fn dial<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Seen> {
        async move { dial(target, &mut SystemRng).await }.boxed()
    }
}

/// Dials all ends one after the other, until one takes the connection. Takes at most [`TIME_LIMIT`].
pub async fn dial(target: &Target, rng: &mut dyn Rng) -> Seen {
    let Some(handshake) = Handshake::with(&target.public_key, rng) else {
        return Seen::OtherCertificate("the certificate here has no usable key".into());
    };
    let mut seen = Seen::NoAnswer;
    let all = async {
        for end in &target.ends {
            seen = match TcpStream::connect(end).await {
                Ok(tcp) => {
                    // What comes now takes the rest of the time.
                    seen = if target.tunnel { Seen::NoAnswer } else { Seen::Silent };
                    shake_hands(&handshake, tcp, *end).await
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Seen::Refused,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Seen::NoAnswer,
                Err(error) => Seen::NoWay(error.to_string()),
            };
            if matches!(seen, Seen::Welcomed | Seen::OtherCertificate(_)) {
                return;
            }
        }
    };
    let _ = timeout(TIME_LIMIT, all).await;
    seen
}

async fn shake_hands(handshake: &Handshake, mut tcp: TcpStream, end: SocketAddr) -> Seen {
    let other = |error: HandshakeError| Seen::OtherCertificate(format!("{end}: {error}"));
    let mut greeting = [0; curve::GREETING];
    if tcp.write_all(&curve::greeting()).await.is_err() || tcp.read_exact(&mut greeting).await.is_err() {
        return Seen::Ended;
    }
    if let Err(error) = curve::check_greeting(&greeting) {
        return other(error);
    }
    let mut head = [0; 2];
    let asked = tcp.write_all(handshake.hello()).await;
    // A broker that cannot open the HELLO ends the connection.
    if asked.is_err() || tcp.read_exact(&mut head).await.is_err() {
        return other(HandshakeError::OtherCertificate);
    }
    let length = match curve::command_length(head) {
        Ok(length) => length,
        Err(error) => return other(error),
    };
    let mut body = vec![0; length];
    match tcp.read_exact(&mut body).await {
        Ok(_) => handshake.welcomed(&body).map_or_else(other, |()| Seen::Welcomed),
        Err(_) => other(HandshakeError::OtherCertificate),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tributary_clock::SeededRng;
    use tributary_contract::Outcome;
    use tributary_flux::curve::testing::Server;

    use super::*;

    /// Somebody who takes one connection, says `greeting`, and answers a HELLO if it can.
    async fn listener(greeting: Option<Vec<u8>>, server: Option<Server>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let Some(greeting) = greeting else { return };
            tcp.write_all(&greeting).await.unwrap();
            let mut heard = [0; curve::GREETING + 202];
            if tcp.read_exact(&mut heard).await.is_ok()
                && let Some(welcome) = server.and_then(|server| server.answer(&heard[curve::GREETING..]))
            {
                tcp.write_all(&welcome).await.unwrap();
            }
        });
        address
    }

    fn target(ends: Vec<SocketAddr>) -> Target {
        Target { ends, tunnel: false, public_key: Server::new(1).public_key() }
    }

    async fn outcomes(target: &Target) -> [Outcome; 2] {
        let findings = dial(target, &mut SeededRng::new(7)).await.findings(target, true);
        [findings[0].outcome, findings[1].outcome]
    }

    #[tokio::test]
    async fn each_way_to_go_wrong_is_told_from_the_others() {
        use Outcome::{Fail, Pass, Unknown};
        let curve = || Some(Server::greeting(b"CURVE").to_vec());
        let right = listener(curve(), Some(Server::new(1))).await;
        assert_eq!(outcomes(&target(vec![right])).await, [Pass, Pass]);
        let other = listener(curve(), Some(Server::new(2))).await;
        assert_eq!(outcomes(&target(vec![other])).await, [Pass, Fail]);
        let web = listener(Some(vec![b'H'; curve::GREETING]), None).await;
        assert_eq!(outcomes(&target(vec![web])).await, [Pass, Fail]);
        let mute = listener(None, None).await;
        assert_eq!(outcomes(&target(vec![mute])).await, [Fail, Unknown]);
        let nobody = {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            free.local_addr().unwrap()
        };
        assert_eq!(outcomes(&target(vec![nobody])).await, [Fail, Unknown]);
        // The next address is tried.
        let second = listener(curve(), Some(Server::new(1))).await;
        assert_eq!(outcomes(&target(vec![nobody, second])).await, [Pass, Pass]);
    }

    /// Says `words` to whoever connects, a byte after each pause, and then nothing more; it ends the connection if `ends`.
    async fn says(words: Vec<u8>, pause: Duration, ends: bool) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let (mut heard, mut tcp) = tcp.into_split();
            // What is heard is taken, so that the end is not a reset.
            let takes = tokio::spawn(async move { tokio::io::copy(&mut heard, &mut tokio::io::sink()).await });
            for word in words.chunks(if pause.is_zero() { 1 << 16 } else { 1 }) {
                tokio::time::sleep(pause).await;
                if tcp.write_all(word).await.is_err() {
                    return;
                }
            }
            if ends {
                drop(tcp);
            } else {
                std::future::pending::<()>().await;
            }
            drop(takes);
        });
        address
    }

    /// The danger: what listens at the lead's address holds the look, fills memory, or is taken for what it is not.
    #[tokio::test]
    async fn each_answer_that_is_none_has_its_sentence() {
        let greeting = || Server::greeting(b"CURVE").to_vec();
        let after = |more: &[u8]| [&greeting()[..], more].concat();
        let other = "the broker there holds another certificate";
        let table = [
            (greeting()[..40].to_vec(), "ended the connection before its greeting was whole"),
            (Vec::new(), "ended the connection before its greeting was whole"),
            (b"SSH-2.0-OpenSSH\r\n".repeat(4), "what answers there is no broker of Flux"),
            (vec![0; 1 << 20], "what answers there is no broker of Flux"),
            (Server::greeting(b"NULL").to_vec(), "asks for mechanism NULL, not CURVE"),
            (Server::greeting(b"GSSAPI\x1b[2J\n").to_vec(), "asks for mechanism GSSAPI?[2J?, not CURVE"),
            (after(b"\x04\x08\x05ERROR\x01\n"), "refused the handshake: ?"),
            (after(b"\x04\xff\x07WELCOME"), other),
            // A command whose length takes eight bytes, and a message.
            (after(b"\x06\xff\xff\xff\xff\xff\xff\xff\xff"), other),
            (after(b"\x00\x05\x07WELC"), other),
            (after(&vec![0xff; 1 << 20]), other),
        ];
        for (words, expected) in table {
            let (head, target) =
                (words.get(64..80).map(<[u8]>::to_vec), target(vec![says(words, Duration::ZERO, true).await]));
            let findings = dial(&target, &mut SeededRng::new(7)).await.findings(&target, true);
            let told: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
            assert!(told.iter().any(|told| told.contains(expected)), "{head:?}: {told:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_who_speaks_slowly_takes_no_more_than_the_limit() {
        let slow = says(Server::greeting(b"CURVE").to_vec(), Duration::from_millis(100), false).await;
        let began = tokio::time::Instant::now();
        assert_eq!(dial(&target(vec![slow]), &mut SeededRng::new(7)).await, Seen::Silent);
        assert_eq!(began.elapsed(), TIME_LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_who_says_nothing_takes_no_more_than_the_limit() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let silent = target(vec![listener.local_addr().unwrap()]);
        assert_eq!(dial(&silent, &mut SeededRng::new(7)).await, Seen::Silent);
        let carried = Target { tunnel: true, ..silent.clone() };
        let seen = dial(&carried, &mut SeededRng::new(7)).await;
        assert_eq!(seen, Seen::NoAnswer, "our own agent took it: that says nothing");
        assert_eq!(seen.findings(&carried, false)[0].outcome, Outcome::Fail);
        // Who has a tunnel is not told to choose one.
        for seen in [Seen::NoAnswer, Seen::Ended, Seen::Refused, Seen::NoWay("no route to host".into())] {
            let hints = [&carried, &silent].map(|target| seen.findings(target, true)[0].hint.clone());
            assert!(hints[0].contains("8050 and 8051 of the lead's pod") && !hints[1].contains("8051"), "{hints:?}");
        }
    }
}
