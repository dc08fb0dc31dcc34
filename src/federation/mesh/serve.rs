//! Answers the requests of peers: a stream each, one frame in and one frame out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tributary_contract::ports::{CredentialSource, QuerySource, TrustAnswer, TrustOffer, TrustSink};
use tributary_contract::{CredentialRefusal, CredentialRequest, PeerName};

use crate::transport::{RecvHalf, SendHalf};
use crate::wire::registry::StreamKind;
use crate::wire::{frame, limits, proto};

/// Numbers of [`CredentialRefusal`] on the wire.
pub(super) const NOT_FOR_YOU: u32 = 1;
/// See [`NOT_FOR_YOU`].
pub(super) const NOT_READY: u32 = 2;

/// Numbers of [`TrustAnswer`] on the wire.
pub(super) const TAKEN: u32 = 1;
/// See [`TAKEN`].
pub(super) const MANUAL: u32 = 2;
/// See [`TAKEN`].
pub(super) const REFUSED: u32 = 3;

/// Where answers come from.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) credentials: Arc<dyn CredentialSource>,
    pub(super) queries: Arc<dyn QuerySource>,
    pub(super) trust: Arc<dyn TrustSink>,
    pub(super) limit: Duration,
}

impl Server {
    /// Serves one stream of a peer whose hello is accepted. A stream that takes too long is dropped, which resets it.
    pub(super) async fn serve(&self, peer: &PeerName, kind: StreamKind, send: SendHalf, recv: RecvHalf) {
        let answered = timeout(self.limit, async {
            match kind {
                StreamKind::Credential => self.credential(peer, send, recv).await,
                StreamKind::Query => self.query(peer, send, recv).await,
                StreamKind::Trust => self.trust(peer, send, recv).await,
                // The control stream is not a request; the others have listeners of their own.
                StreamKind::Control | StreamKind::Enrol | StreamKind::Tunnel => Ok(()),
            }
        });
        match answered.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%peer, ?kind, %error, "failed to answer a request"),
            Err(_) => tracing::debug!(%peer, ?kind, "a request was not answered in time"),
        }
    }

    async fn credential(&self, peer: &PeerName, mut send: SendHalf, mut recv: RecvHalf) -> io::Result<()> {
        let asked: proto::CredentialRequest = frame::receive_only(&mut recv, limits::CREDENTIAL_FRAME).await?;
        let burst = limits::plain(&asked.burst, limits::WORD);
        let request =
            CredentialRequest { burst: asked.burst.into(), incarnation: asked.incarnation, digest: asked.digest };
        let answer = match self.credentials.credential(peer, request).await {
            // Who hands it out says so, with the name of the burst.
            Ok(credential) => proto::CredentialAnswer { certificate: Some(credential.expose().to_owned()), refusal: 0 },
            Err(refusal) => {
                tracing::debug!(%peer, %burst, %refusal, "certificate refused");
                let number = match refusal {
                    CredentialRefusal::NotForYou => NOT_FOR_YOU,
                    CredentialRefusal::NotReady | CredentialRefusal::Unreachable => NOT_READY,
                };
                proto::CredentialAnswer { certificate: None, refusal: number }
            }
        };
        frame::send_only(&mut send, &answer, limits::CREDENTIAL_FRAME).await
    }

    async fn query(&self, peer: &PeerName, mut send: SendHalf, mut recv: RecvHalf) -> io::Result<()> {
        let asked: proto::QueryRequest = frame::receive_only(&mut recv, limits::QUERY_FRAME).await?;
        let document = self.queries.answer(peer, &asked.query).await;
        frame::send_only(&mut send, &proto::QueryAnswer { document }, limits::ANSWER_FRAME).await
    }

    async fn trust(&self, peer: &PeerName, mut send: SendHalf, mut recv: RecvHalf) -> io::Result<()> {
        let offered: proto::TrustOffer = frame::receive_only(&mut recv, limits::ENROL_FRAME).await?;
        let offer = TrustOffer { bundle: offered.bundle, signatures: offered.signatures };
        let outcome = match self.trust.offered(peer, offer).await {
            TrustAnswer::Taken => TAKEN,
            TrustAnswer::Manual => MANUAL,
            TrustAnswer::Refused => REFUSED,
            TrustAnswer::Unavailable => 0,
        };
        frame::send_only(&mut send, &proto::TrustAnswer { outcome }, limits::ENROL_FRAME).await
    }
}
