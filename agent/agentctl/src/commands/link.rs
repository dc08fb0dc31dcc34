//! `agentctl link`: makes the clusters of two contexts peers of each other, for whoever may write in both.

use std::collections::BTreeMap;

use kube::api::Api;
use kube::{Client, ResourceExt};
use tributary::api::burst::Burst;
use tributary::api::cluster_card::ClusterCard;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::peer::{ClusterPeer, ImportPolicy};
use tributary::federation::enrol::client::other_federation;

use super::peer::{self, Wanted, Word};
use super::peering::{self, KnownBy};
use crate::cli::{ImportFlags, Link, Target};
use crate::error::{Failure, Result, failed};
use crate::{kubernetes, output};

/// One of the two clusters.
struct Side {
    client: Client,
    card: ClusterCard,
    context: String,
}

/// One of the two ClusterPeers.
struct Half<'a> {
    /// Where it is.
    side: &'a Side,
    /// Of whom it is.
    other: &'a Side,
    peer: ClusterPeer,
    import: &'a ImportFlags,
    /// What is there in its place.
    existing: Option<ClusterPeer>,
}

impl<'a> Half<'a> {
    async fn read(side: &'a Side, other: &'a Side, peer: ClusterPeer, import: &'a ImportFlags) -> Result<Self> {
        let half = Self { side, other, peer, import, existing: None };
        Ok(Self { existing: half.look().await?, ..half })
    }

    /// What is there in its place now.
    async fn look(&self) -> Result<Option<ClusterPeer>> {
        let (Side { client, context, .. }, name) = (self.side, self.peer.name_any());
        let namespace = self.peer.namespace().unwrap_or_default();
        Api::<ClusterPeer>::namespaced(client.clone(), &namespace).get_opt(&name).await.map_err(failed(
            format!("failed to look for ClusterPeer {namespace}/{name} in context {context}"),
            "are the CRDs installed there, and may you read ClusterPeers?",
        ))
    }

    /// The UID that is pinned and becomes another one.
    fn pinned(&self) -> Option<&str> {
        another(self.existing.as_ref(), &self.other.card.cluster_uid)
    }

    fn becomes(&self) -> Option<String> {
        self.pinned().map(|pinned| becomes(&self.peer.name_any(), [pinned, &self.other.card.cluster_uid]))
    }

    /// Whether it may be written over what exists by now.
    fn check(&self, existing: Option<&ClusterPeer>) -> Result<()> {
        let card = &self.other.card;
        let bundle = peering::introduction(card).check().map_err(failed(
            format!("failed to use what cluster {} says of itself", card.cluster),
            "are both agents of the same version? Compare: `agentctl version`",
        ))?;
        let known_by = KnownBy::ItsOwner { uid: &card.cluster_uid, context: &self.side.context };
        peering::check_existing(existing, bundle.fingerprints(), known_by, &self.side.card)?;
        match another(existing, &card.cluster_uid).filter(|pinned| self.pinned() != Some(*pinned)) {
            Some(pinned) => Err(unasked(&self.peer.name_any(), [pinned, &card.cluster_uid])),
            None => Ok(()),
        }
    }

    fn wanted<'b>(&'b self, check: &'b dyn Fn(Option<&ClusterPeer>) -> Result<()>) -> Wanted<'b> {
        Wanted { peer: &self.peer, word: Word::ApiServer, import: self.import, check }
    }

    /// What is there once it is written over `existing`.
    fn over(&self, existing: Option<&ClusterPeer>) -> Result<ClusterPeer> {
        self.wanted(&|existing| self.check(existing)).over(existing)
    }

    /// What is printed instead of written.
    fn printed(&self) -> Result<String> {
        let whole = self.over(self.existing.as_ref())?;
        Ok(document(&self.side.context, self.becomes().as_deref(), &crate::document::yaml(&whole)?))
    }

    /// Whether it could be written; asks where its name becomes that of another cluster.
    async fn try_write(&self, target: &Target, yes: bool) -> Result<()> {
        let (Side { client, context, .. }, whole) = (self.side, self.over(self.existing.as_ref())?);
        if let Some((becomes, existing)) = self.becomes().zip(self.existing.as_ref()) {
            let cost = |peer: &ClusterPeer, bursts: &[Burst], hosted: &[HostedBurst]| {
                Some(cost_of_another(&becomes, &peer::in_use(peer, bursts, hosted)))
            };
            peer::ask(&at(target, context), client, existing, yes, cost).await?;
        }
        peer::try_write(client, &target.agent_namespace, &whole).await
    }

    async fn write(&self) -> Result<ClusterPeer> {
        let namespace = self.peer.namespace().unwrap_or_default();
        peer::write(&self.side.client, &namespace, self.wanted(&|existing| self.check(existing))).await
    }
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
    let labels = peer::labels(&link.labels)?;
    let peer_for = |side: &Side, import: Option<ImportPolicy>, labels| {
        peering::cluster_peer(&peering::introduction(&side.card), namespace, import, link.hide_status, labels)
    };
    // Of the first in the second, then the other way round.
    let halves = [
        Half::read(&b, &a, peer_for(&a, import.policy(), BTreeMap::new()), &import).await?,
        Half::read(&a, &b, peer_for(&b, back.policy(), labels), &back).await?,
    ];
    if link.dry_run {
        let texts = halves.iter().map(Half::printed).collect::<Result<Vec<_>>>()?;
        return output::print(&texts.concat());
    }
    // Both could be written, before one is.
    for half in &halves {
        half.try_write(target, link.yes).await?;
    }
    let mut told = format!("{} and {} are peers\n", a.card.cluster, b.card.cluster);
    for (half, written) in halves.iter().zip(write(&halves).await?) {
        told += &format!("{} imports {}\n", half.side.card.cluster, peer::imports(&written));
    }
    output::print(&told)?;
    if !link.wait.is_zero() {
        let endpoint = peering::connected(&a.client, namespace, &b.card.cluster, link.wait).await?;
        output::print(&format!("connected ({endpoint})\n"))?;
    }
    Ok(())
}

/// Writes both; neither, if one may not be written any more: there was a question since it was read.
async fn write(halves: &[Half<'_>]) -> Result<Vec<ClusterPeer>> {
    for half in halves {
        half.over(half.look().await?.as_ref())?;
    }
    let mut written = Vec::new();
    for half in halves {
        written.push(half.write().await?);
    }
    Ok(written)
}

async fn client(target: &Target, context: &str) -> Result<Client> {
    kubernetes::client(&at(target, context)).await
}

fn at(target: &Target, context: &str) -> Target {
    Target { context: Some(context.to_owned()), ..target.clone() }
}

/// The UID that a ClusterPeer pins, if it is another one: one authority may be of several clusters.
fn another<'a>(existing: Option<&'a ClusterPeer>, uid: &str) -> Option<&'a str> {
    existing?.pinned_uid().filter(|pinned| *pinned != uid)
}

/// What becomes of the name of a peer.
fn becomes(name: &str, [pinned, uid]: [&str; 2]) -> String {
    format!(
        "ClusterPeer {name} is of the cluster with the UID {pinned}, and becomes that of another one, with the UID {uid}"
    )
}

/// What people are told before the name of a peer becomes another cluster's.
fn cost_of_another(becomes: &str, in_use: &[String]) -> String {
    let in_use = match in_use {
        [] => "nothing of it is in use".to_owned(),
        some => format!(
            "in use: {}\n  what the cluster of before has here ends; our slots there stay reserved, and `agentctl bursts` says for how \
             long",
            some.join(", ")
        ),
    };
    format!("{becomes}\n  {in_use}")
}

/// Somebody has written another ClusterPeer since people were told.
fn unasked(name: &str, uids: [&str; 2]) -> Failure {
    let failure = Failure::new(format!("ClusterPeer {name} was changed at the same time")).because(becomes(name, uids));
    failure.hint("do it again: you are asked whether that is meant")
}

/// A ClusterPeer as it is printed instead of written. Nobody is asked then, and who commits it has to know.
fn document(context: &str, becomes: Option<&str>, text: &str) -> String {
    // A UID may be a stranger's word: the comment does not end within it.
    let remark =
        becomes.map(|becomes| format!("# {}\n", becomes.replace(char::is_whitespace, " "))).unwrap_or_default();
    format!("---\n# kubectl --context {context} apply -f -\n{remark}{text}")
}

/// What a cluster waits for that nobody reaches yet.
fn awaited(card: &ClusterCard, namespace: &str) -> Option<String> {
    let service = card.awaited_service.as_ref().filter(|_| card.endpoints.is_empty())?;
    Some(format!("the load balancer of Service {namespace}/{service} has no address yet"))
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

    /// The danger: clusters have one authority, and a slip of the pen gives one the name of another.
    #[test]
    fn who_gives_a_name_to_another_cluster_is_asked() {
        use tributary::api::peer::ClusterPeerSpec;
        let pinned = |uid: Option<&str>| {
            let spec = ClusterPeerSpec { cluster_uid: uid.map(str::to_owned), ..ClusterPeerSpec::default() };
            ClusterPeer::new("west", spec)
        };
        for (existing, other) in [
            (None, None),
            (Some(pinned(None)), None),
            (Some(pinned(Some("2"))), None),
            (Some(pinned(Some("1"))), Some("1")),
        ] {
            assert_eq!(another(existing.as_ref(), "2"), other);
        }
        let becomes = becomes("west", ["1", "2"]);
        let told = cost_of_another(&becomes, &["burst flux/lake-burst-0".to_owned()]);
        assert!(
            ["UID 1,", "UID 2\n", "in use: burst flux/lake-burst-0"].iter().all(|part| told.contains(part)),
            "{told}"
        );
        crate::paste::check::pastes(&told);
        let refused = unasked("west", ["1", "2"]).to_string();
        assert!(
            refused.contains("was changed") && refused.contains(&becomes) && refused.contains("hint: "),
            "{refused}"
        );
    }

    /// The danger: while a question is open, one becomes another cluster's, and the link is one-sided.
    #[tokio::test]
    async fn link_writes_neither_peer_if_one_was_changed_meanwhile() {
        use crate::endpoint::tests::{server, target};
        use tributary::federation::identity::Authority;
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let bundle = Authority::create("river", now).unwrap().certificate().to_owned();
        let pinned = |uid: &str| {
            let card = ClusterCard { trust_bundle: bundle.clone(), ..card("east", uid, None) };
            peering::cluster_peer(&peering::introduction(&card), "agents", None, false, BTreeMap::new())
        };
        // Answers for east's ClusterPeer, and lets nothing be written.
        let changed = serde_json::to_string(&pinned("3")).unwrap();
        let address = server([("/clusterpeers/east", "200 OK", changed)]).await;
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("at-east", &address), ("at-west", &address)]);
        let side = async |context: &str, name: &str, uid: &str| Side {
            client: client(&target, context).await.unwrap(),
            card: ClusterCard { trust_bundle: bundle.clone(), ..card(name, uid, None) },
            context: context.to_owned(),
        };
        let (east, west) = (side("at-east", "east", "1").await, side("at-west", "west", "2").await);
        let import = ImportFlags::default();
        let of_west = peering::cluster_peer(&peering::introduction(&west.card), "agents", None, false, BTreeMap::new());
        let halves = [
            Half { side: &east, other: &west, peer: of_west, import: &import, existing: None },
            Half { side: &west, other: &east, peer: pinned("1"), import: &import, existing: Some(pinned("1")) },
        ];
        let refused = write(&halves).await.unwrap_err().to_string();
        assert!(refused.contains("ClusterPeer east was changed at the same time"), "{refused}");
    }

    /// The danger: what is printed is committed, and gives a name to another cluster, of which nobody was told.
    #[test]
    fn what_is_printed_says_that_a_name_becomes_another_clusters() {
        let text = document("at-east", Some(&becomes("west", ["1", "2"])), "kind: ClusterPeer\n");
        insta::assert_snapshot!(text, @r"
        ---
        # kubectl --context at-east apply -f -
        # ClusterPeer west is of the cluster with the UID 1, and becomes that of another one, with the UID 2
        kind: ClusterPeer
        ");
        assert_eq!(document("at-east", None, "x\n").lines().count(), 3);
        assert_eq!(document("at-east", Some("1\nspec:\u{2028}2"), "x\n").lines().nth(2), Some("# 1 spec: 2"));
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
