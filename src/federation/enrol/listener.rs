//! The side that made the token: one small request per connection, few connections at a time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, Incoming, ServerConfig, TransportConfig, VarInt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tributary_clock::{Mono, SharedClock};

use super::message::{Introduction, Refusal, Refused, Request};
use super::{proto, tls};
use crate::identity::IdentityStore;
use crate::mesh::rejected_peers::RejectedPeers;
use crate::transport::quic::{Neighbours, network_of, socket};
use crate::wire::registry::StreamKind;
use crate::wire::{frame, limits};

/// Time for everything: handshake, request, answer. The answer waits for two writes to the API server.
const LIMIT: Duration = Duration::from_secs(15);

/// Connections at a time. People join clusters, and not many at once.
const CROWD: usize = 16;

/// Those of one address, behind which there may be many clusters: who says nothing on them must not keep out others.
const OF_ONE: usize = 8;

/// How long whoever asked has to acknowledge the answer.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Who decides on requests, and carries them out.
pub trait Registrar: Send + Sync {
    /// Checks the token, uses it and takes the cluster in; who we are is the answer.
    fn enrol(&self, request: Request) -> BoxFuture<'_, Result<Introduction, Refused>>;
}

/// The listener. It is closed when it is dropped.
pub struct EnrolListener {
    endpoint: Endpoint,
    identities: IdentityStore,
    registrar: Arc<dyn Registrar>,
    clock: SharedClock,
    transport: Arc<TransportConfig>,
}

impl EnrolListener {
    /// Listens on `listen` (UDP; port 0: any). Runs tasks on the current tokio runtime.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(
        listen: SocketAddr,
        identities: IdentityStore,
        registrar: Arc<dyn Registrar>,
        clock: SharedClock,
    ) -> io::Result<Self> {
        let mut transport = TransportConfig::default();
        transport
            .max_idle_timeout(Some(LIMIT.try_into().map_err(io::Error::other)?))
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(limits::ENROL_FRAME as u32))
            .datagram_receive_buffer_size(None);
        let transport = Arc::new(transport);
        let config = config(&identities, &clock, &transport);
        let endpoint = socket::endpoint(listen, Some(config)).map_err(|error| error.source)?;
        Ok(Self { endpoint, identities, registrar, clock, transport })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The socket is gone.
    #[cfg(test)]
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Serves until dropped. What has begun then is broken off.
    pub async fn serve(self) {
        let (free, neighbours) = (Arc::new(Semaphore::new(CROWD)), Neighbours::default());
        let refused = Arc::new(Mutex::new(RejectedPeers::default()));
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { return };
                    let Ok(permit) = free.clone().try_acquire_owned() else {
                        incoming.refuse();
                        continue;
                    };
                    if !incoming.remote_address_validated() && incoming.may_retry() {
                        // A forged address gets no certificates sent to it: they are larger than what asked for them.
                        let _ = incoming.retry();
                        continue;
                    }
                    let Some(place) = neighbours.admit(incoming.remote_address().ip(), OF_ONE) else {
                        incoming.refuse();
                        continue;
                    };
                    // Each handshake with the newest identity.
                    let config = config(&self.identities, &self.clock, &self.transport);
                    let (registrar, clock, refused) = (self.registrar.clone(), self.clock.clone(), refused.clone());
                    requests.spawn(async move {
                        let remote = incoming.remote_address();
                        let should_log = |refusal| should_log(&mut refused.lock(), clock.mono(), remote.ip(), refusal);
                        match timeout(LIMIT, attend(incoming, config, &*registrar, should_log)).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => tracing::debug!(%remote, %error, "a request to join broke off"),
                            Err(_) => tracing::debug!(%remote, "a request to join was not completed in time"),
                        }
                        drop((permit, place));
                    });
                }
                Some(_) = requests.join_next() => {}
            }
        }
    }
}

impl Drop for EnrolListener {
    fn drop(&mut self) {
        self.endpoint.close(0_u32.into(), b"");
    }
}

fn config(identities: &IdentityStore, clock: &SharedClock, transport: &Arc<TransportConfig>) -> ServerConfig {
    let tls = tls::server(&identities.current(), clock.clone());
    let crypto = QuicServerConfig::try_from(tls).expect("ring has QUIC's initial cipher suite");
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport.clone()).max_incoming(CROWD);
    config
}

async fn attend(
    incoming: Incoming,
    config: ServerConfig,
    registrar: &dyn Registrar,
    should_log: impl Fn(Refusal) -> bool,
) -> io::Result<()> {
    let connection = incoming.accept_with(Arc::new(config))?.await?;
    let remote = connection.remote_address();
    let (mut send, mut recv) = connection.accept_bi().await?;
    let mut kind = [0; 2];
    recv.read_exact(&mut kind).await.map_err(io::Error::other)?;
    if StreamKind::from_id(u16::from_be_bytes(kind)) != Some(StreamKind::Enrol) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a stream of another kind"));
    }
    let outcome = match Request::receive(&mut recv).await? {
        Ok(request) => {
            let [token, cluster] = request.names();
            let outcome = registrar.enrol(request).await;
            match &outcome {
                Ok(_) => tracing::info!(%remote, token, %cluster, "a cluster has joined"),
                Err(Refused { refusal, message }) if should_log(*refusal) => {
                    tracing::warn!(%remote, token, %cluster, %refusal, message, "a cluster may not join");
                }
                Err(_) => {}
            }
            outcome
        }
        Err(refused) => Err(refused),
    };
    let answer = match outcome {
        Ok(who) => proto::Answer { who: Some((&who).into()), refusal: 0, message: String::new() },
        Err(Refused { refusal, message }) => proto::Answer { who: None, refusal: refusal.number(), message },
    };
    frame::send_only(&mut send, &answer, limits::ENROL_FRAME).await?;
    // Whoever asked closes the connection once it has the answer.
    let _ = timeout(LAST_WORDS, connection.closed()).await;
    Ok(())
}

/// Whether to log a refusal: with a wrong token once a minute for each address, with a known token always.
fn should_log(strangers: &mut RejectedPeers, now: Mono, from: IpAddr, refusal: Refusal) -> bool {
    refusal != Refusal::WrongToken || strangers.is_news(now, &network_of(from).to_string(), &refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The danger: who may not join finds no word of it in the log, because somebody tries secrets from the same address.
    #[test]
    fn strangers_are_logged_once_a_minute_and_who_has_a_token_always() {
        let mut strangers = RejectedPeers::default();
        let mut logged = |from: &str, refusal| should_log(&mut strangers, Mono::ZERO, from.parse().unwrap(), refusal);
        let host = |number: usize| format!("2001:db8::{number:x}");
        assert_eq!((0..1_000).filter(|number| logged(&host(*number), Refusal::WrongToken)).count(), 1, "one network");
        assert!(logged("192.0.2.1", Refusal::WrongToken), "it has not filled the memory");
        assert!(!logged("::ffff:192.0.2.1", Refusal::WrongToken), "the same, as a dual-stack socket has it");
        assert_eq!((0..9).filter(|_| logged("192.0.2.1", Refusal::Expired)).count(), 9);
    }
}
