//! The read-only admin API: the documents of `tributary::admin` over HTTP on loopback.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use futures::future::join_all;
use tributary::admin::{
    self, API_VERSION, BurstRow, ClusterRow, ClusterStatus, FederationStatus, PEER_TIME_LIMIT, PeerRow,
};
use tributary::contract::PeerName;
use tributary::contract::ports::PeerRequests;

/// This cluster, as it is now. Implemented over the caches; reads nothing from the API server.
pub(crate) trait LocalStatus: Send + Sync {
    /// The document of this cluster.
    fn status(&self) -> ClusterStatus;
}

/// What the admin API answers from.
#[derive(Clone)]
pub(crate) struct Admin {
    local: Arc<dyn LocalStatus>,
    peers: tokio::sync::watch::Receiver<Option<Arc<dyn PeerRequests>>>,
}

impl Admin {
    /// `peers` carries the mesh while the federation is open.
    pub(crate) fn new(
        local: Arc<dyn LocalStatus>,
        peers: tokio::sync::watch::Receiver<Option<Arc<dyn PeerRequests>>>,
    ) -> Self {
        Self { local, peers }
    }

    /// The endpoints.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route(admin::STATUS, get(|State(admin): State<Self>| async move { Json(admin.federation().await) }))
            .route(admin::LOCAL, get(|State(admin): State<Self>| async move { Json(admin.local.status()) }))
            .route(
                admin::PEERS,
                get(|State(admin): State<Self>| async move { Json::<Vec<PeerRow>>(admin.local.status().peers) }),
            )
            .route(
                admin::BURSTS,
                get(|State(admin): State<Self>| async move { Json::<Vec<BurstRow>>(admin.local.status().bursts) }),
            )
            .with_state(self)
    }

    /// This cluster, then every peer's own answer, asked for at the same time with a limit each.
    async fn federation(&self) -> FederationStatus {
        let own = self.local.status();
        let rows: BTreeMap<String, PeerRow> = own.peers.iter().map(|peer| (peer.name.clone(), peer.clone())).collect();
        let mesh = self.peers.borrow().clone();
        let closed = match own.leader {
            true => "the federation is not open: see the agent's log",
            false => "this agent does not lead, and has no sessions",
        };
        let asked = rows.into_values().map(|peer| ask(mesh.as_ref().ok_or(closed), peer));
        let mut clusters =
            vec![ClusterRow { name: own.cluster.clone(), peer: None, status: Some(own.clone()), error: None }];
        clusters.extend(join_all(asked).await);
        FederationStatus { api_version: API_VERSION.to_owned(), cluster: own.cluster, clusters }
    }
}

/// Without a mesh, `mesh` says why there is none.
async fn ask(mesh: Result<&Arc<dyn PeerRequests>, &str>, peer: PeerRow) -> ClusterRow {
    let name = PeerName::from(peer.name.as_str());
    let answer = match mesh {
        Err(closed) => Err(closed.to_owned()),
        Ok(mesh) => match tokio::time::timeout(PEER_TIME_LIMIT, mesh.query(&name, admin::LOCAL)).await {
            Err(_) => Err(format!("no answer within {} s", PEER_TIME_LIMIT.as_secs())),
            Ok(None) => Err("no answer".to_owned()),
            Ok(Some(body)) => serde_json::from_slice::<ClusterStatus>(&body)
                .map_err(|error| format!("an answer this version cannot read: {error}")),
        },
    };
    let (status, error) = match answer {
        Ok(status) => (Some(status), None),
        Err(error) => (None, Some(error)),
    };
    ClusterRow { name: peer.name.clone(), peer: Some(peer), status, error }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use futures::future::{BoxFuture, pending};
    use tributary::contract::{Credential, CredentialRefusal, CredentialRequest, PeerReport};

    use super::*;

    struct Local {
        leader: bool,
    }
    impl LocalStatus for Local {
        fn status(&self) -> ClusterStatus {
            let peer = |name: &str| PeerRow { name: name.into(), ..PeerRow::default() };
            ClusterStatus {
                cluster: "east".into(),
                leader: self.leader,
                peers: vec![peer("dead"), peer("west")],
                ..ClusterStatus::default()
            }
        }
    }

    struct Mesh;
    impl PeerRequests for Mesh {
        fn request_credential<'a>(
            &'a self,
            _: &'a PeerName,
            _: CredentialRequest,
        ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>> {
            async { Err(CredentialRefusal::Unreachable) }.boxed()
        }
        fn query<'a>(&'a self, peer: &'a PeerName, _: &'a str) -> BoxFuture<'a, Option<Bytes>> {
            if peer.as_str() == "dead" {
                return pending().boxed();
            }
            let status = ClusterStatus { cluster: "west".into(), ..ClusterStatus::default() };
            async move { Some(Bytes::from(serde_json::to_vec(&status).unwrap())) }.boxed()
        }
        fn reports(&self) -> BTreeMap<PeerName, PeerReport> {
            BTreeMap::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_answers_is_a_row_and_not_a_hang() {
        let (_tx, peers) = tokio::sync::watch::channel(Some(Arc::new(Mesh) as Arc<dyn PeerRequests>));
        let status = Admin::new(Arc::new(Local { leader: true }), peers).federation().await;
        let rows: Vec<_> = status.clusters.iter().map(|row| (row.name.as_str(), row.status.is_some())).collect();
        assert_eq!(rows, [("east", true), ("dead", false), ("west", true)]);
        assert_eq!(status.clusters[1].error.as_deref(), Some("no answer within 2 s"));
    }

    /// The danger: an agent that leads and has no identity says that it does not lead, and people look for another one.
    #[tokio::test]
    async fn who_leads_without_a_federation_does_not_say_that_it_stands_by() {
        let said = async |leader| {
            let (_tx, peers) = tokio::sync::watch::channel(None);
            let mut status = Admin::new(Arc::new(Local { leader }), peers).federation().await;
            status.clusters.swap_remove(1).error.unwrap()
        };
        assert_eq!(said(true).await, "the federation is not open: see the agent's log");
        assert_eq!(said(false).await, "this agent does not lead, and has no sessions");
    }
}
