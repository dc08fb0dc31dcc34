//! `agentctl peer remove`: ends a connection, and throws out what the peer still has here if it is told to.

use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Client, ResourceExt};
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec};

use super::super::watched::Watched;
use super::super::{peering, release};
use super::{existing, in_use, placed, tell_of_another};
use crate::cli::{PeerRemove, Target};
use crate::error::{Failure, Result, failed};
use crate::{kubernetes, output, paste};

pub(super) async fn run(target: &Target, remove: &PeerRemove) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let (name, namespace) = (&remove.name, &target.agent_namespace);
    let peers: Api<ClusterPeer> = Api::namespaced(client.clone(), namespace);
    let by = match remove.release_slots {
        true => Some(release::who(&client, remove.by.as_deref()).await?),
        false => None,
    };
    // Whoever removed it before, and frees its slots now, finds none.
    let gone = by.is_some() && peers.get_opt(name).await.is_ok_and(|found| found.is_none());
    let peer = match gone {
        true => ClusterPeer::new(name, ClusterPeerSpec::default()),
        false => existing(&client, target, name).await?,
    };
    let watched = Watched::of(&client, namespace).await?;
    if !remove.force {
        let (bursts, hosted) = placed(&client, &watched, &peer).await?;
        tell_of_another(target, &peer, &bursts);
        let busy = in_use(&peer, &bursts, &hosted);
        if !busy.is_empty() {
            return Err(Failure::new(format!("peer {name} is in use: {}", busy.join(", "))).hint(format!(
                "empty it first: `agentctl peer drain {name}`. One that is gone for good is removed by \
                 `agentctl peer remove {name} --force`: bursts of it here are evicted at once, and ranks of ours there stay \
                 reserved (`agentctl bursts` says for how long; --release-slots frees them as well)"
            )));
        }
    }
    if !gone {
        peers.delete(name, &DeleteParams::default()).await.map_err(failed(
            format!("failed to delete ClusterPeer {namespace}/{name}"),
            "may you delete ClusterPeers in that namespace?",
        ))?;
    }
    // Only now: until its ClusterPeer was gone, another one could have been taken.
    let evicted = evict(&client, &watched, name).await?;
    for burst in &evicted {
        output::print(&format!("hostedburst.tributary.dev/{burst} evicted\n"))?;
    }
    if let Some(by) = by {
        let (freed, bursts) = release::all_of(&client, &watched, &peer, &by).await?;
        for burst in freed {
            output::print(&format!("burst.tributary.dev/{burst}: {by} lets {name} go, its slot is free\n"))?;
        }
        tell_of_another(target, &peer, &bursts);
    }
    output::print(&paste::whole(&removed(&client, namespace, name).await, target))
}

/// What is left to do, over there.
async fn removed(client: &Client, namespace: &str, name: &str) -> String {
    let us = peering::look_at_card(client, namespace).await.ok().flatten().map(|card| card.cluster);
    let there = match us {
        // Nothing dials.
        Some(us) if us == name => return format!("clusterpeer.tributary.dev/{name} removed\n"),
        Some(us) => format!("`agentctl --context {name} peer remove {us}`"),
        None => format!("what it calls this cluster is shown by `agentctl --context {name} peers`"),
    };
    format!("clusterpeer.tributary.dev/{name} removed\nremove ours there as well, or it goes on dialling: {there}\n")
}

/// Throws out what a peer that was removed still has here; returns what that was. Its brokers drain in the time their pods
/// get, and Kubernetes collects the rest, whether an agent runs or not.
async fn evict(client: &Client, watched: &Watched, name: &str) -> Result<Vec<String>> {
    let failed = |what: String, error: kube::Error| {
        Failure::new(format!("ClusterPeer {name} is removed, but failed to {what}")).because(error).hint(
            "may you list and delete HostedBursts? What is left of the peer here ends with its lease, or when its owner \
             deletes it: `kubectl get hostedbursts --all-namespaces`",
        )
    };
    let hosted = watched.all::<HostedBurst>(client).await;
    let hosted = hosted.map_err(|error| failed("find out what of it is here".to_owned(), error))?;
    let mut evicted = Vec::new();
    for burst in hosted.into_iter().filter(|burst| burst.spec.peer == name) {
        let (namespace, slot) = (burst.namespace().unwrap_or_default(), burst.name_any());
        let params =
            DeleteParams::background().preconditions(Preconditions { uid: burst.uid(), resource_version: None });
        match Api::<HostedBurst>::namespaced(client.clone(), &namespace).delete(&slot, &params).await {
            Ok(_) => evicted.push(format!("{namespace}/{slot}")),
            // It has gone by itself, or another one has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(failed(format!("delete HostedBurst {namespace}/{slot}"), error)),
        }
    }
    Ok(evicted)
}
