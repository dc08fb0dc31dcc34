//! `agentctl peer …`: writes, changes and removes ClusterPeers.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels::manager;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, TrustUpdates};

use super::watched::Watched;
use crate::cli::{ImportFlags, Peer, PeerAdd, PeerDrain, PeerRemove, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output, paste};

/// How often is looked whether a drained peer is empty.
const POLL: Duration = Duration::from_secs(1);

/// Runs `agentctl peer …`.
pub(crate) async fn run(target: &Target, command: Peer) -> Result<()> {
    match command {
        Peer::Add(add) => run_add(target, &add).await,
        Peer::List(list) => super::peers::run(target, &list).await,
        Peer::Remove(remove) => run_remove(target, &remove).await,
        Peer::Drain(drain) => run_drain(target, &drain).await,
        Peer::Suspend(peer) => {
            let client = kubernetes::client(target).await?;
            change(target, &client, &peer.name, "suspend", json!({"suspend": true})).await?;
            output::print(&format!("clusterpeer.tributary.dev/{} suspended\n", peer.name))
        }
        Peer::Resume(peer) => {
            let client = kubernetes::client(target).await?;
            change(target, &client, &peer.name, "resume", json!({"suspend": false, "drain": false})).await?;
            output::print(&format!("clusterpeer.tributary.dev/{} resumed\n", peer.name))
        }
    }
}

async fn run_add(target: &Target, add: &PeerAdd) -> Result<()> {
    let peer = cluster_peer(target, add)?;
    if add.dry_run {
        let text = serde_saphyr::to_string(&peer)
            .map_err(|error| Failure::new("failed to write the ClusterPeer as YAML").because(error))?;
        return output::print(&text);
    }
    write(&kubernetes::client(target).await?, &target.agent_namespace, &peer, &add.import).await?;
    output::print(&format!("clusterpeer.tributary.dev/{} written\n", add.name))
}

/// Writes a ClusterPeer. One that exists keeps every field that is not stated: who joins again, or changes a quota, does
/// not mean to take back trust or permissions.
pub(super) async fn write(client: &Client, namespace: &str, peer: &ClusterPeer, import: &ImportFlags) -> Result<()> {
    let (peers, name): (Api<ClusterPeer>, _) = (Api::namespaced(client.clone(), namespace), peer.name_any());
    let failed = |error: kube::Error| {
        Failure::new(format!("failed to write ClusterPeer {namespace}/{name}"))
            .because(error)
            .hint("are the CRDs installed, and may you write ClusterPeers in that namespace?")
    };
    if peers.get_opt(&name).await.map_err(failed)?.is_none() {
        return apply(client, namespace, peer, &PatchParams::apply(manager::AGENTCTL).force()).await;
    }
    let parameters = PatchParams { field_manager: Some(manager::AGENTCTL.to_owned()), ..PatchParams::default() };
    peers.patch(&name, &parameters, &Patch::Merge(stated(peer, import))).await.map(drop).map_err(failed)
}

/// What is stated of a ClusterPeer, field by field.
fn stated(peer: &ClusterPeer, import: &ImportFlags) -> Value {
    let ClusterPeerSpec {
        endpoints,
        trust_bundle,
        trust_updates,
        cluster_uid,
        import: _,
        export: _,
        suspend: _,
        drain: _,
        budget: _,
        price: _,
    } = &peer.spec;
    let mut spec = json!({
        "endpoints": (!endpoints.is_empty()).then_some(endpoints),
        "trustBundle": trust_bundle,
        "trustUpdates": (*trust_updates != TrustUpdates::default()).then_some(trust_updates),
        "clusterUID": cluster_uid,
        "import": import.fields(),
    });
    if let Value::Object(fields) = &mut spec {
        fields.retain(|_, value| !value.is_null());
    }
    json!({"metadata": {"labels": peer.metadata.labels.clone().unwrap_or_default()}, "spec": spec})
}

/// Whether a ClusterPeer could be written: nothing is.
pub(super) async fn try_write(client: &Client, namespace: &str, peer: &ClusterPeer) -> Result<()> {
    apply(client, namespace, peer, &PatchParams::apply(manager::AGENTCTL).force().dry_run()).await
}

async fn apply(client: &Client, namespace: &str, peer: &ClusterPeer, parameters: &PatchParams) -> Result<()> {
    let (peers, name): (Api<ClusterPeer>, _) = (Api::namespaced(client.clone(), namespace), peer.name_any());
    peers.patch(&name, parameters, &Patch::Apply(peer)).await.map(drop).map_err(|error| {
        Failure::new(format!("failed to write ClusterPeer {namespace}/{name}"))
            .because(error)
            .hint("are the CRDs installed, and may you write ClusterPeers in that namespace?")
    })
}

/// The ClusterPeer `name`.
async fn existing(peers: &Api<ClusterPeer>, target: &Target, name: &str) -> Result<ClusterPeer> {
    let namespace = &target.agent_namespace;
    let found = peers.get_opt(name).await.map_err(|error| {
        Failure::new(format!("failed to read ClusterPeer {namespace}/{name}"))
            .because(error)
            .hint("are the CRDs installed, and may you read ClusterPeers in that namespace?")
    })?;
    found.ok_or_else(|| {
        Failure::new(format!("there is no ClusterPeer {namespace}/{name}"))
            .hint("`agentctl peers` shows those there are; --agent-namespace names another namespace")
    })
}

/// Changes fields of a ClusterPeer that exists.
async fn change(target: &Target, client: &Client, name: &str, word: &str, spec: Value) -> Result<()> {
    let peers: Api<ClusterPeer> = Api::namespaced(client.clone(), &target.agent_namespace);
    existing(&peers, target, name).await?;
    let patch = Patch::Merge(json!({"spec": spec}));
    let parameters = PatchParams { field_manager: Some(manager::AGENTCTL.to_owned()), ..PatchParams::default() };
    peers.patch(name, &parameters, &patch).await.map(drop).map_err(|error| {
        Failure::new(format!("failed to {word} ClusterPeer {}/{name}", target.agent_namespace))
            .because(error)
            .hint("may you write ClusterPeers in that namespace?")
    })
}

async fn run_drain(target: &Target, drain: &PeerDrain) -> Result<()> {
    let (client, name) = (kubernetes::client(target).await?, &drain.name);
    change(target, &client, name, "drain", json!({"drain": true})).await?;
    output::print(&format!(
        "clusterpeer.tributary.dev/{name} is drained: nothing more is placed there or taken from it\n"
    ))?;
    if drain.wait.is_zero() {
        return Ok(());
    }
    let (watched, mut left) = (Watched::of(&client, &target.agent_namespace).await?, Vec::new());
    let emptied = async {
        loop {
            left = busy(&client, &watched, name).await?;
            if left.is_empty() {
                return Ok::<_, Failure>(());
            }
            tokio::time::sleep(POLL).await;
        }
    };
    match tokio::time::timeout(drain.wait, emptied).await {
        Ok(emptied) => {
            emptied?;
            output::print(&format!("nothing is left on {name}, and nothing of it is left here\n"))
        }
        Err(_) => {
            let failure = Failure::new(format!("after {:?} peer {name} still has {}", drain.wait, left.join(", ")));
            Err(failure.hint(format!(
                "it goes on draining; what each waits for is said by `agentctl bursts`. The ranks of a peer that is out of contact \
                 are free after its lease if it is reached by a tunnel, else by `agentctl burst release --help`; to take the \
                 drain back: `agentctl peer resume {name}`"
            )))
        }
    }
}

/// What holds a peer, as the API server has it.
async fn busy(client: &Client, watched: &Watched, name: &str) -> Result<Vec<String>> {
    let failed = |error: kube::Error| {
        Failure::new(format!("failed to find out what is placed on {name}, and what of it is here"))
            .because(error)
            .hint("may you list Bursts and HostedBursts?")
    };
    let bursts = watched.all::<Burst>(client).await.map_err(failed)?;
    let hosted = watched.all::<HostedBurst>(client).await.map_err(failed)?;
    Ok(in_use(name, &bursts, &hosted))
}

async fn run_remove(target: &Target, remove: &PeerRemove) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let (name, namespace) = (&remove.name, &target.agent_namespace);
    let peers: Api<ClusterPeer> = Api::namespaced(client.clone(), namespace);
    let by = match remove.release_slots {
        true => Some(super::release::who(&client, remove.by.as_deref()).await?),
        false => None,
    };
    // Whoever removed it before, and frees its slots now, finds none.
    let gone = by.is_some() && peers.get_opt(name).await.is_ok_and(|found| found.is_none());
    if !gone {
        existing(&peers, target, name).await?;
    }
    let watched = Watched::of(&client, namespace).await?;
    if !remove.force {
        let busy = busy(&client, &watched, name).await?;
        if !busy.is_empty() {
            return Err(Failure::new(format!("peer {name} is in use: {}", busy.join(", "))).hint(format!(
                "empty it first: `agentctl peer drain {name}`. One that is gone for good is removed by \
                 `agentctl peer remove {name} --force`: bursts of it here are evicted at once, and ranks of ours there stay \
                 reserved (`agentctl bursts` says for how long; --release-slots frees them as well)"
            )));
        }
    }
    if !gone {
        peers.delete(name, &DeleteParams::default()).await.map_err(|error| {
            Failure::new(format!("failed to delete ClusterPeer {namespace}/{name}"))
                .because(error)
                .hint("may you delete ClusterPeers in that namespace?")
        })?;
    }
    // Only now: until its ClusterPeer was gone, another one could have been taken.
    let evicted = evict(&client, &watched, name).await?;
    for burst in &evicted {
        output::print(&format!("hostedburst.tributary.dev/{burst} evicted\n"))?;
    }
    if let Some(by) = by {
        for burst in super::release::all_of(&client, &watched, name, &by).await? {
            output::print(&format!("burst.tributary.dev/{burst}: {by} lets {name} go, its slot is free\n"))?;
        }
    }
    output::print(&paste::whole(&removed(&client, namespace, name).await, target))
}

/// What is left to do, over there.
async fn removed(client: &Client, namespace: &str, name: &str) -> String {
    let us = super::peering::look_at_card(client, namespace).await.ok().flatten().map(|card| card.cluster);
    let there = match us {
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

/// What holds a peer: bursts of ours there, bursts of it here.
fn in_use(name: &str, bursts: &[Burst], hosted: &[HostedBurst]) -> Vec<String> {
    let placed =
        bursts.iter().filter(|burst| {
            burst.status.as_ref().is_some_and(|status| {
                status.peer.as_deref() == Some(name) && !matches!(status.phase, BurstPhase::Released)
            }) && !burst.status.as_ref().and_then(|status| status.run.as_ref()).is_some_and(|run| run.logs_gone)
        });
    let ours = placed.map(|burst| format!("burst {}/{}", burst.namespace().unwrap_or_default(), burst.spec.slot));
    let theirs = hosted.iter().filter(|burst| burst.spec.peer == name);
    let theirs = theirs.map(|burst| format!("hosted {}/{}", burst.namespace().unwrap_or_default(), burst.spec.slot));
    ours.chain(theirs).collect()
}

/// The ClusterPeer that `agentctl peer add` writes.
pub(crate) fn cluster_peer(target: &Target, add: &PeerAdd) -> Result<ClusterPeer> {
    let trust_bundle = match &add.trust_bundle {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("failed to read the trust bundle {}", path.display()))
                .because(error)
                .hint("--trust-bundle names the ca.crt of the peer's federation")
        })?),
        None => None,
    };
    if let Some(bundle) = &trust_bundle
        && !bundle.contains("-----BEGIN CERTIFICATE-----")
    {
        return Err(Failure::new("the trust bundle holds no PEM certificate")
            .hint("it is the ca.crt that signed the peer's identity"));
    }
    let mut peer = ClusterPeer::new(
        &add.name,
        ClusterPeerSpec {
            endpoints: add.endpoints.clone(),
            trust_bundle,
            cluster_uid: add.cluster_uid.clone(),
            import: add.import.policy(),
            trust_updates: if add.trust_updates { TrustUpdates::FromPeer } else { TrustUpdates::Manual },
            ..ClusterPeerSpec::default()
        },
    );
    peer.metadata.namespace = Some(target.agent_namespace.clone());
    peer.metadata.labels = Some(labels(&add.labels)?).filter(|labels| !labels.is_empty());
    Ok(peer)
}

pub(super) fn labels(pairs: &[String]) -> Result<BTreeMap<String, String>> {
    let label = |pair: &String| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Failure::new(format!("{pair:?} is not a label")).hint("write key=value")),
    };
    pairs.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn peer(line: &str) -> Result<ClusterPeer> {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
        cluster_peer(&cli.target, &add)
    }

    #[test]
    fn every_option_becomes_a_field() {
        let peer = peer(
            "agentctl peer add west --peer-endpoint 203.0.113.7:30946 --peer-endpoint srv:west.example.org \
             --cluster-uid 1-2 -l region=us -l tier=gpu --import default --import hpc --max-bursts 4 --max-brokers 64 \
             --pod-security restricted --agent-namespace agents",
        );
        insta::assert_snapshot!(serde_saphyr::to_string(&peer.unwrap()).unwrap());
    }

    #[test]
    fn a_peer_that_exists_keeps_what_is_not_stated() {
        let stated = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
            super::stated(&cluster_peer(&cli.target, &add).unwrap(), &add.import)
        };
        assert_eq!(stated("agentctl peer add west"), json!({"metadata": {"labels": {}}, "spec": {}}));
        assert_eq!(
            stated(
                "agentctl peer add west -l tier=gpu --import hpc --max-gpus 8 --max-memory 1Ti --max-offers-per-minute 10 \
                    --max-duration 8h --pod-security baseline"
            ),
            json!({"metadata": {"labels": {"tier": "gpu"}}, "spec": {"import": {
                "namespaces": ["hpc"], "maxGpus": 8, "maxMemory": "1Ti", "maxOffersPerMinute": 10,
                "maxDuration": "8h", "podSecurity": "baseline"}}})
        );
        assert_eq!(stated("agentctl peer add west --peer-endpoint a:1")["spec"], json!({"endpoints": ["a:1"]}));
    }

    #[test]
    fn a_peer_may_place_nothing_unless_asked() {
        let peer = peer("agentctl peer add west").unwrap();
        assert_eq!((peer.spec.import, peer.metadata.labels), (None, None));
        assert_eq!(peer.metadata.namespace.as_deref(), Some("tributary-system"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("tls.key");
        std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n").unwrap();
        let lines = [
            "agentctl peer add west -l region".to_owned(),
            format!("agentctl peer add west --trust-bundle {}", key.display()),
            format!("agentctl peer add west --trust-bundle {}/missing", directory.path().display()),
        ];
        let shown = |line: &String| peer(line).unwrap_err().to_string();
        let texts: Vec<_> = lines.iter().map(shown).collect();
        let text = texts.join("\n\n---\n\n").replace(&directory.path().display().to_string(), "TMP");
        assert!(!text.contains("PRIVATE"), "{text}");
        insta::assert_snapshot!(text);
    }
}
