//! What others hold of the mesh: requests to peers, and what is known of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tributary_clock::{Now, SharedClock};
use tributary_contract::ports::{PeerRequests, TrustAnswer, TrustOffer};
use tributary_contract::{Credential, CredentialRefusal, CredentialRequest, PeerName, PeerReport};

use super::ConnId;
use super::connection::Heard;
use super::serve::{MANUAL, NOT_FOR_YOU, REFUSED, TAKEN};
use super::spawn::MeshConfig;
use crate::timers::Timers;
use crate::transport::Link;
use crate::tunnel::TunnelLinks;
use crate::wire::registry::StreamKind;
use crate::wire::{frame, limits, proto};

/// The links to use, one per connected peer.
pub(super) type Links = BTreeMap<PeerName, Live>;

/// A link with an accepted hello.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: ConnId,
    pub(super) link: Arc<dyn Link>,
    pub(super) heard: Heard,
}

/// A running mesh. Cloning shares it; dropping it does not end the mesh.
#[derive(Clone)]
pub struct MeshHandle {
    links: watch::Receiver<Links>,
    carrying: watch::Receiver<TunnelLinks>,
    reports: watch::Receiver<BTreeMap<PeerName, PeerReport>>,
    ended: CancellationToken,
    clock: SharedClock,
    timers: Timers,
}

impl MeshHandle {
    pub(super) fn new(
        config: &MeshConfig,
        links: watch::Receiver<Links>,
        carrying: watch::Receiver<TunnelLinks>,
        reports: watch::Receiver<BTreeMap<PeerName, PeerReport>>,
        ended: CancellationToken,
    ) -> Self {
        Self { links, carrying, reports, ended, clock: config.clock.clone(), timers: config.timers }
    }

    /// Waits until the mesh is over: every peer was told, as far as it can be reached, and the transport is shut down.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// What is known of every configured peer, as it changes.
    pub fn watch_reports(&self) -> watch::Receiver<BTreeMap<PeerName, PeerReport>> {
        self.reports.clone()
    }

    /// Offers a connected peer a new trust bundle of ours.
    ///
    /// # Errors
    /// There is no connection, no answer in time, or the peer's version does not know of such offers.
    pub async fn offer_trust(&self, peer: &PeerName, offer: &TrustOffer) -> io::Result<TrustAnswer> {
        let TrustOffer { bundle, signatures } = offer.clone();
        let limits = (limits::ENROL_FRAME, limits::ENROL_FRAME);
        let offer = proto::TrustOffer { bundle, signatures };
        let answer: proto::TrustAnswer = self.ask(peer, StreamKind::Trust, &offer, limits).await?;
        Ok(match answer.outcome {
            TAKEN => TrustAnswer::Taken,
            MANUAL => TrustAnswer::Manual,
            REFUSED => TrustAnswer::Refused,
            _ => TrustAnswer::Unavailable,
        })
    }

    async fn ask<Q: Message, A: Message + Default>(
        &self,
        peer: &PeerName,
        kind: StreamKind,
        question: &Q,
        (limit, answer_limit): (usize, usize),
    ) -> io::Result<A> {
        let link = self.links.borrow().get(peer).map(|live| live.link.clone());
        let link = link.ok_or(io::ErrorKind::NotConnected)?;
        let exchange = async {
            let (mut send, mut recv) = link.open(kind).await?;
            frame::send_only(&mut send, question, limit).await?;
            frame::receive_only(&mut recv, answer_limit).await
        };
        timeout(self.timers.request, exchange).await?
    }
}

impl PeerRequests for MeshHandle {
    fn request_credential<'a>(
        &'a self,
        peer: &'a PeerName,
        request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>> {
        async move {
            let CredentialRequest { burst, incarnation, digest } = request;
            let question = proto::CredentialRequest { burst: burst.into(), incarnation, digest };
            let limits = (limits::CREDENTIAL_FRAME, limits::CREDENTIAL_FRAME);
            let answer = self.ask(peer, StreamKind::Credential, &question, limits).await;
            let mut answer: proto::CredentialAnswer = answer.map_err(|error| {
                tracing::debug!(%peer, %error, "failed to ask for a certificate");
                CredentialRefusal::Unreachable
            })?;
            match answer.certificate.take() {
                Some(certificate) => Ok(Credential::new(certificate)),
                None if answer.refusal == NOT_FOR_YOU => Err(CredentialRefusal::NotForYou),
                // Also a reason of a newer version: asking again is safe.
                None => Err(CredentialRefusal::NotReady),
            }
        }
        .boxed()
    }

    fn query<'a>(&'a self, peer: &'a PeerName, query: &'a str) -> BoxFuture<'a, Option<Bytes>> {
        async move {
            let question = proto::QueryRequest { query: query.to_owned() };
            let limits = (limits::QUERY_FRAME, limits::ANSWER_FRAME);
            let answer = self.ask(peer, StreamKind::Query, &question, limits).await;
            let answer: proto::QueryAnswer =
                answer.inspect_err(|error| tracing::debug!(%peer, query, %error, "failed to query a peer")).ok()?;
            answer.document
        }
        .boxed()
    }

    fn reports(&self) -> BTreeMap<PeerName, PeerReport> {
        let mut reports = self.reports.borrow().clone();
        let now = Now::of(&*self.clock);
        for (name, live) in self.links.borrow().iter() {
            if let Some(report) = reports.get_mut(name) {
                report.rtt_micros = live.link.rtt().and_then(|rtt| u64::try_from(rtt.as_micros()).ok());
                report.last_seen = Some(live.heard.wall(now));
                report.endpoint = Some(live.link.remote());
                report.control = live.link.traffic();
                report.tunnel = self.carrying.borrow().get(name).and_then(|(_, link)| link.traffic());
            }
        }
        reports
    }
}
