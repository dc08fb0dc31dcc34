//! Answers peers' queries: what `agentctl status` on their side shows of this cluster.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::ResourceExt;
use tributary::admin;
use tributary::api::peer::ClusterPeer;
use tributary::cluster::caches::Cache;
use tributary::contract::PeerName;
use tributary::contract::ports::QuerySource;

use crate::admin_http::LocalStatus;
use crate::local_status::Local;

/// This cluster, as far as a peer may see it.
pub(crate) struct Queries {
    local: Arc<Local>,
    peers: Cache<ClusterPeer>,
}

impl Queries {
    /// Answers from the caches.
    pub(crate) fn new(local: Arc<Local>, peers: Cache<ClusterPeer>) -> Self {
        Self { local, peers }
    }

    fn exported(&self, peer: &PeerName) -> bool {
        let found = self.peers.objects().into_iter().find(|object| object.name_any() == peer.as_str());
        found.is_some_and(|object| !object.spec.suspend && object.spec.export.clone().unwrap_or_default().status)
    }
}

impl QuerySource for Queries {
    fn answer<'a>(&'a self, peer: &'a PeerName, query: &'a str) -> BoxFuture<'a, Option<Bytes>> {
        let answer = || {
            if query != admin::LOCAL || !self.exported(peer) {
                return None;
            }
            let status = self.local.status().for_peer(peer.as_str());
            serde_json::to_vec(&status).ok().map(Bytes::from)
        };
        std::future::ready(answer()).boxed()
    }
}
