//! `agentctl link`: makes the clusters of two contexts peers of each other, for whoever may write in both.

use kube::api::Api;
use kube::{Client, ResourceExt};
use tributary::api::cluster_card::ClusterCard;
use tributary::api::peer::{ClusterPeer, ImportPolicy};
use tributary::federation::enrol::client::other_federation;

use super::peer;
use super::peering::{self, KnownBy};
use crate::cli::{ImportFlags, Link, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output};

/// One of the two clusters.
struct Side {
    client: Client,
    card: ClusterCard,
    context: String,
}

/// Runs `agentctl link`.
pub(crate) async fn run(target: &Target, link: &Link) -> Result<()> {
    let namespace = &target.agent_namespace;
    // One after the other: either may ask who it is for.
    let clients = [client(target, &link.a).await?, client(target, &link.b).await?];
    let card = |client, context| peering::reachable_card(client, context, namespace, link.wait);
    let cards = futures::try_join!(card(&clients[0], &link.a), card(&clients[1], &link.b))?;
    let [a, b] = clients;
    let a = Side { client: a, card: cards.0, context: link.a.clone() };
    let b = Side { client: b, card: cards.1, context: link.b.clone() };
    check(&a.card, &b.card, [&link.a, &link.b], namespace)?;
    for side in [&a, &b] {
        if let Some(wait) = awaited(&side.card, namespace) {
            output::remark(&format!("{}: {wait}; the other cluster is dialled meanwhile", side.context));
        }
    }
    let import = link.import.clone();
    let back = if link.one_way { ImportFlags::default() } else { import.clone() };
    // Of the first in the second, then the other way round.
    let peers = [
        (&b, &a, peer_for(&a, namespace, import.policy(), link.hide_status), &import),
        (&a, &b, peer_for(&b, namespace, back.policy(), link.hide_status), &back),
    ];
    if link.dry_run {
        for (side, _, peer, import) in &peers {
            peer::check_limits(None, import, &peer::not_written(namespace, &peer.name_any()))?;
            let text = serde_saphyr::to_string(peer)
                .map_err(|error| Failure::new("failed to write the ClusterPeer as YAML").because(error))?;
            output::print(&format!("---\n# kubectl --context {} apply -f -\n{text}", side.context))?;
        }
        return Ok(());
    }
    // Both could be written, before one is.
    for (side, other, peer, import) in &peers {
        let name = peer.metadata.name.as_deref().unwrap_or_default();
        let api: Api<ClusterPeer> = Api::namespaced(side.client.clone(), namespace);
        let existing = api.get_opt(name).await.map_err(|error| {
            Failure::new(format!("failed to look for ClusterPeer {namespace}/{name} in context {}", side.context))
                .because(error)
                .hint("are the CRDs installed there, and may you read ClusterPeers?")
        })?;
        peer::check_limits(existing.as_ref(), import, &peer::not_written(namespace, name))?;
        let bundle = peering::introduction(&other.card).check().map_err(|problem| {
            Failure::new(format!("failed to use what cluster {} says of itself", other.card.cluster)).because(problem)
        })?;
        let known_by = KnownBy::ItsOwner { uid: &other.card.cluster_uid, context: &side.context };
        peering::check_existing(existing.as_ref(), &bundle, known_by, &side.card)?;
        peer::try_write(&side.client, namespace, peer).await?;
    }
    let mut told = format!("{} and {} are peers\n", a.card.cluster, b.card.cluster);
    for (side, _, peer, import) in &peers {
        let written = peer::write(&side.client, namespace, peer, import).await?;
        told += &format!("{} imports {}\n", side.card.cluster, peer::imports(&written));
    }
    output::print(&told)?;
    if !link.wait.is_zero() {
        let endpoint = peering::connected(&a.client, namespace, &b.card.cluster, link.wait).await?;
        output::print(&format!("connected ({endpoint})\n"))?;
    }
    Ok(())
}

async fn client(target: &Target, context: &str) -> Result<Client> {
    kubernetes::client(&Target { context: Some(context.to_owned()), ..target.clone() }).await
}

/// What a cluster waits for that nobody reaches yet.
fn awaited(card: &ClusterCard, namespace: &str) -> Option<String> {
    let service = card.awaited_service.as_ref().filter(|_| card.endpoints.is_empty())?;
    Some(format!("the load balancer of Service {namespace}/{service} has no address yet"))
}

fn peer_for(side: &Side, namespace: &str, import: Option<ImportPolicy>, hide_status: bool) -> ClusterPeer {
    peering::cluster_peer(&peering::introduction(&side.card), namespace, import, hide_status, [].into())
}

/// Whether the two can be peers.
fn check(a: &ClusterCard, b: &ClusterCard, contexts: [&str; 2], namespace: &str) -> Result<()> {
    let failure = Failure::new(format!("failed to link cluster {} and cluster {}", a.cluster, b.cluster));
    if a.cluster_uid == b.cluster_uid {
        return Err(failure
            .because("both contexts lead to the same cluster")
            .hint("name two contexts of different clusters"));
    }
    if a.cluster == b.cluster {
        let failure = failure.because("both are called the same (cluster.name)");
        return Err(failure.hint("give one of the agents another cluster.name"));
    }
    if let (Some(ours), Some(theirs)) = (&a.trust_domain, &b.trust_domain)
        && ours != theirs
    {
        let failure = failure.because(other_federation(theirs, ours));
        return Err(failure.hint("set the same federation.trust_domain in both agents, or none"));
    }
    if a.endpoints.is_empty() && b.endpoints.is_empty() {
        for (card, context) in [a, b].into_iter().zip(contexts) {
            let (Some(wait), Some(service)) = (awaited(card, namespace), &card.awaited_service) else { continue };
            let failure = failure.because(format!("neither says where it is reached: {wait} in {}", card.cluster));
            return Err(failure.hint(format!(
                "look at it: `kubectl --context {context} --namespace {namespace} get service {service}`; wait longer with --wait 5m, or \
                 set federation.advertise in one of the agents: HOST:PORT of its UDP port"
            )));
        }
        let failure = failure.because("neither says where it is reached");
        return Err(failure.hint("set federation.advertise in one of the agents: HOST:PORT of its UDP port"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(cluster: &str, uid: &str, federation: Option<&str>) -> ClusterCard {
        ClusterCard {
            cluster: cluster.into(),
            cluster_uid: uid.into(),
            trust_domain: federation.map(str::to_owned),
            endpoints: vec!["203.0.113.7:30946".into()],
            ..ClusterCard::default()
        }
    }

    #[test]
    fn what_cannot_be_linked_is_refused_with_a_hint() {
        let east = || card("east", "1", Some("river"));
        let silent = |card: ClusterCard| ClusterCard { endpoints: Vec::new(), ..card };
        let awaiting =
            || ClusterCard { awaited_service: Some("river-federation".into()), ..silent(card("west", "2", None)) };
        let check = |a: &ClusterCard, b: &ClusterCard| check(a, b, ["at-east", "at-west"], "agents");
        let pairs = [
            (east(), card("west", "1", None)),
            (east(), card("east", "2", None)),
            (east(), card("west", "2", Some("lake"))),
            (silent(east()), silent(card("west", "2", None))),
            (silent(east()), awaiting()),
        ];
        let texts: Vec<String> = pairs.iter().map(|(a, b)| check(a, b).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
        assert!(check(&east(), &card("west", "2", None)).is_ok(), "one that does not insist may join");
        assert!(check(&east(), &silent(card("west", "2", None))).is_ok(), "one open port is enough");
        assert!(check(&awaiting(), &east()).is_ok(), "the other way round as well");
    }
}
