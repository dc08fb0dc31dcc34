//! The side that joins.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, TransportErrorCode};
use tokio::time::{sleep, timeout};
use tributary_clock::SharedClock;
use tributary_contract::PeerName;

use super::message::{Introduction, Refusal};
use super::proto;
use super::tls::{self, NotTheOne, Verdict};
use super::token::JoinToken;
use crate::identity::tls::SERVER_NAME;
use crate::transport::Resolve;
use crate::wire::registry::StreamKind;
use crate::wire::{frame, limits};

/// How long an address has to complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long the answer may take after it.
const ANSWER: Duration = Duration::from_secs(20);

/// How much earlier than the next address each one is tried (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// How soon one is tried again that takes nobody at the moment.
const CROWDED: Duration = Duration::from_millis(250);

/// Why a cluster could not join. [`JoinError::hint`] says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    /// By our own clock.
    #[error("the token expired at {expired}, and it is {now}")]
    Expired {
        /// The end of the token.
        expired: Timestamp,
        /// Our clock.
        now: Timestamp,
    },
    /// The token was made by the cluster that shall join.
    #[error("cluster `{0}` made this token itself")]
    OwnToken(PeerName),
    /// The token names no endpoint.
    #[error("the token of cluster `{0}` names no address to join at")]
    NoEndpoint(PeerName),
    /// Nobody answers.
    #[error("no answer from cluster `{cluster}`: {}", Tried(tried))]
    Unreachable {
        /// Whose token it is.
        cluster: PeerName,
        /// Each endpoint, and what became of it.
        tried: Vec<(String, String)>,
    },
    /// Somebody else answers.
    #[error(
        "the agent at {endpoint} shows a certificate of another authority than the token of cluster `{cluster}` names"
    )]
    OtherAuthority {
        /// Where.
        endpoint: String,
        /// Whose token it is.
        cluster: PeerName,
    },
    /// Another cluster of the same authority answers.
    #[error("cluster `{}` answers at {endpoint}; the token is of cluster `{expected}`", Named(shown))]
    OtherCluster {
        /// Where.
        endpoint: String,
        /// Whose token it is.
        expected: PeerName,
        /// Who answers.
        shown: Option<PeerName>,
    },
    /// By our clock their certificate is not valid.
    #[error(
        "the certificate of cluster `{cluster}` is valid from {not_before} to {not_after}, and this machine's clock says \
         {now}"
    )]
    Clock {
        /// Whose.
        cluster: PeerName,
        /// Start of validity.
        not_before: Timestamp,
        /// End of validity.
        not_after: Timestamp,
        /// Our clock.
        now: Timestamp,
    },
    /// The other side says no.
    #[error("cluster `{cluster}` refuses: {message}")]
    Refused {
        /// Who.
        cluster: PeerName,
        /// Why.
        refusal: Refusal,
        /// Its sentence. Untrusted text.
        message: String,
    },
    /// What was said is not what this version expects.
    #[error("failed to talk to cluster `{cluster}` at {endpoint}: {problem}")]
    Protocol {
        /// Who.
        cluster: PeerName,
        /// Where.
        endpoint: String,
        /// What is wrong.
        problem: String,
    },
}

impl JoinError {
    /// What to do about it, for the user to read.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Expired { .. } => {
                "ask the owner of the other cluster for a new one; if it was made just now, the clock of this machine is wrong"
            }
            Self::OwnToken(_) => "--context has to name the cluster that shall join, not the one that made the token",
            Self::NoEndpoint(_) => {
                "its owner sets federation.join.advertise in that cluster's agent, or makes the token with --join-endpoint"
            }
            Self::Unreachable { .. } => {
                "its agent listens there only while it leads and a token is valid: is the UDP port open \
                 (Service, NodePort, firewall) for this machine, which dials it, and the token not expired or deleted?"
            }
            Self::OtherAuthority { .. } => {
                "the address leads to another cluster or federation, or that cluster's authority was replaced since: \
                 check the endpoint, and ask for a new token"
            }
            Self::OtherCluster { .. } => "who makes the token names the address of its own cluster, by --join-endpoint",
            Self::Clock { .. } => "correct the clock of this machine, or of that cluster's nodes",
            Self::Refused { refusal, .. } => match refusal {
                Refusal::WrongToken => {
                    "the token was deleted, or is of an earlier life of that cluster: ask for a new one"
                }
                Refusal::Expired => {
                    "ask the owner of the other cluster for a new one, made with --expires 1h for more time"
                }
                Refusal::UsedUp => {
                    "a token admits one cluster unless it was made with --uses N: ask for a new one. If you did not use \
                     it, somebody else did: the list of tokens in the other cluster says who"
                }
                Refusal::ClockSkew => "correct the clock of this machine, or of that cluster's nodes (NTP)",
                Refusal::OtherFederation => {
                    "both agents insist on a federation (federation.trust_domain): set the same name on both, or none"
                }
                Refusal::NameTaken => {
                    "if it is the same cluster, whoever may write in both links them, and bursts go on (`agentctl link --help`). If \
                     it was made anew, the other cluster's owner removes the old peer there first, which ends its bursts; else give \
                     this cluster another cluster.name"
                }
                Refusal::Unacceptable => {
                    "correct what the message names: an endpoint is HOST:PORT; a cluster cannot join itself (--context names the \
                     one that shall join). Else compare the versions: `agentctl version`"
                }
                Refusal::Unavailable => {
                    "try again: the token was not used up. The log of that cluster's agent says more"
                }
                Refusal::Unknown(_) => "that cluster's agent is newer than this agentctl: update it",
            },
            Self::Protocol { .. } => "are both sides of the same version? Compare: `agentctl version`",
        }
    }
}

/// Joins the cluster that made `token`: verifies that it answers, introduces us as `own`, and returns who it is.
///
/// # Errors
/// [`JoinError`]. Unless it is `Protocol`, the token is not used up by the attempt.
pub async fn join(
    token: &JoinToken,
    own: &Introduction,
    resolve: &dyn Resolve,
    clock: &SharedClock,
) -> Result<Introduction, JoinError> {
    let (now, cluster) = (clock.wall(), token.cluster.clone());
    if own.cluster == cluster {
        return Err(JoinError::OwnToken(cluster));
    }
    if now >= token.expires {
        return Err(JoinError::Expired { expired: token.expires, now });
    }
    if token.endpoints.is_empty() {
        return Err(JoinError::NoEndpoint(cluster));
    }
    if let (Some(theirs), Some(ours)) = (&token.trust_domain, &own.trust_domain)
        && theirs != ours
    {
        let message = other_federation(theirs, ours);
        return Err(JoinError::Refused { cluster, refusal: Refusal::OtherFederation, message });
    }
    let (endpoint, connection) = connect(token, resolve, clock).await?;
    let protocol =
        |problem: String| JoinError::Protocol { cluster: cluster.clone(), endpoint: endpoint.clone(), problem };
    let exchanged = timeout(ANSWER, exchange(&connection, token, own, clock.wall())).await;
    connection.close(0_u32.into(), b"");
    let answer = exchanged.map_err(|_| protocol(format!("no answer within {ANSWER:?}")))?;
    let answer = answer.map_err(|error| protocol(error.to_string()))?;
    let Some(who) = answer.who else {
        let (refusal, message) = (Refusal::from_number(answer.refusal), limits::plain(&answer.message, limits::REASON));
        return Err(JoinError::Refused { cluster, refusal, message });
    };
    let who = Introduction::from(who);
    let bundle = who.check().map_err(protocol)?;
    if who.cluster != cluster || bundle.fingerprints().is_disjoint(&token.authorities) {
        return Err(protocol("it introduces itself as somebody else than its token says".to_owned()));
    }
    Ok(who)
}

/// The sentence about two federations.
pub fn other_federation(theirs: &str, ours: &str) -> String {
    format!("it is of the federation `{theirs}`, and this cluster of the federation `{ours}`")
}

async fn exchange(
    connection: &Connection,
    token: &JoinToken,
    own: &Introduction,
    now: Timestamp,
) -> std::io::Result<proto::Answer> {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&StreamKind::Enrol.id().to_be_bytes()).await?;
    let request = proto::Request {
        token: token.id.clone(),
        secret: token.secret.expose().to_vec(),
        who: Some(own.into()),
        clock: now.as_millisecond(),
    };
    frame::send_only(&mut send, &request, limits::ENROL_FRAME).await?;
    frame::receive_only(&mut recv, limits::ENROL_FRAME).await
}

/// A connection to whichever address answers first, and its name. One that answers as somebody else ends the search: to
/// try on would hide it.
async fn connect(
    token: &JoinToken,
    resolve: &dyn Resolve,
    clock: &SharedClock,
) -> Result<(String, Connection), JoinError> {
    let mut tried = Vec::new();
    let mut addresses: Vec<(String, SocketAddr)> = Vec::new();
    for endpoint in &token.endpoints {
        match resolve.resolve(endpoint, true).await {
            Ok(found) => addresses.extend(found.into_iter().map(|address| (endpoint.clone(), address))),
            Err(error) => tried.push((endpoint.clone(), error.refusal.message)),
        }
    }
    let attempts = addresses.into_iter().enumerate().map(|(index, (endpoint, address))| async move {
        sleep(HEAD_START * u32::try_from(index).unwrap_or(u32::MAX)).await;
        (endpoint, address, dial(token, address, clock).await)
    });
    let mut attempts: FuturesUnordered<_> = attempts.collect();
    while let Some((endpoint, address, outcome)) = attempts.next().await {
        let cluster = token.cluster.clone();
        match outcome {
            Ok(connection) => return Ok((endpoint, connection)),
            Err(Failed::NotTheOne(NotTheOne::Authority)) => {
                return Err(JoinError::OtherAuthority { endpoint, cluster });
            }
            Err(Failed::NotTheOne(NotTheOne::Cluster(shown))) => {
                return Err(JoinError::OtherCluster { endpoint, expected: cluster, shown });
            }
            Err(Failed::NotTheOne(NotTheOne::Time { not_before, not_after })) => {
                return Err(JoinError::Clock { cluster, not_before, not_after, now: clock.wall() });
            }
            Err(Failed::Silent(problem)) => {
                let shown = if endpoint == address.to_string() { endpoint } else { format!("{endpoint} ({address})") };
                tried.push((shown, problem));
            }
        }
    }
    Err(JoinError::Unreachable { cluster: token.cluster.clone(), tried })
}

enum Failed {
    NotTheOne(NotTheOne),
    Silent(String),
}

async fn dial(token: &JoinToken, address: SocketAddr, clock: &SharedClock) -> Result<Connection, Failed> {
    let silent = |problem: String| Failed::Silent(problem);
    let any: SocketAddr =
        if address.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let endpoint = Endpoint::client(any).map_err(|error| silent(error.to_string()))?;
    let verdict = Verdict::default();
    let crypto = QuicClientConfig::try_from(tls::client(token, clock.clone(), verdict.clone()))
        .expect("ring has QUIC's initial cipher suite");
    let config = ClientConfig::new(Arc::new(crypto));
    let mut crowded = false;
    let outcome = async {
        loop {
            let connecting =
                endpoint.connect_with(config.clone(), address, SERVER_NAME).map_err(|error| error.to_string())?;
            match connecting.await {
                Err(ConnectionError::ConnectionClosed(close))
                    if close.error_code == TransportErrorCode::CONNECTION_REFUSED && verdict.get().is_none() =>
                {
                    crowded = true;
                    sleep(CROWDED).await;
                }
                outcome => return outcome.map_err(|error| error.to_string()),
            }
        }
    };
    let outcome = timeout(HANDSHAKE, outcome).await;
    match (outcome, verdict.get()) {
        (_, Some(Err(wrong))) => Err(Failed::NotTheOne(wrong.clone())),
        (Err(_), _) if crowded => Err(silent("others hold all places for joining: try again in a minute".to_owned())),
        (Err(_), _) => Err(silent(format!("no answer within {HANDSHAKE:?}"))),
        (Ok(Err(problem)), _) => Err(silent(problem)),
        (Ok(Ok(connection)), Some(Ok(()))) => Ok(connection),
        // TLS cannot complete without the verifier; if it ever did, nobody would have been verified.
        (Ok(Ok(_)), None) => Err(Failed::NotTheOne(NotTheOne::Authority)),
    }
}

struct Tried<'a>(&'a [(String, String)]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.0.iter().map(|(endpoint, problem)| format!("{endpoint}: {problem}")).collect();
        f.write_str(&each.join("; "))
    }
}

struct Named<'a>(&'a Option<PeerName>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("(without a name)", |name| name.as_str()))
    }
}
