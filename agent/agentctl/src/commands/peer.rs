//! `agentctl peer add`: writes a ClusterPeer.

use std::collections::BTreeMap;

use kube::api::{Api, Patch, PatchParams};
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, ImportPolicy, PodSecurityLevel};

use crate::cli::{Peer, PeerAdd, PodSecurity, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output};

/// Field manager of what `agentctl` writes.
const FIELD_MANAGER: &str = "agentctl";

/// Runs `agentctl peer …`.
pub async fn run(target: &Target, command: Peer) -> Result<()> {
    match command {
        Peer::Add(add) => run_add(target, &add).await,
    }
}

async fn run_add(target: &Target, add: &PeerAdd) -> Result<()> {
    let peer = cluster_peer(target, add)?;
    if add.dry_run {
        let text = serde_saphyr::to_string(&peer)
            .map_err(|error| Failure::new("failed to write the ClusterPeer as YAML").because(error))?;
        return output::print(&text);
    }
    let peers: Api<ClusterPeer> = Api::namespaced(kubernetes::client(target).await?, &target.agent_namespace);
    peers.patch(&add.name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&peer)).await.map_err(
        |error| {
            Failure::new(format!("failed to write ClusterPeer {}/{}", target.agent_namespace, add.name))
                .because(error)
                .hint("are the CRDs installed, and may you write ClusterPeers in that namespace?")
        },
    )?;
    output::print(&format!("clusterpeer.tributary.dev/{} written\n", add.name))
}

/// The ClusterPeer that `agentctl peer add` writes.
pub fn cluster_peer(target: &Target, add: &PeerAdd) -> Result<ClusterPeer> {
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
    let import = (!add.import.is_empty()).then(|| ImportPolicy {
        namespaces: add.import.clone(),
        max_bursts: add.max_bursts,
        max_brokers: add.max_brokers,
        pod_security: match add.pod_security {
            PodSecurity::Privileged => PodSecurityLevel::Privileged,
            PodSecurity::Baseline => PodSecurityLevel::Baseline,
            PodSecurity::Restricted => PodSecurityLevel::Restricted,
        },
        ..ImportPolicy::default()
    });
    let mut peer = ClusterPeer::new(
        &add.name,
        ClusterPeerSpec {
            endpoints: add.endpoints.clone(),
            trust_bundle,
            cluster_uid: add.cluster_uid.clone(),
            import,
            ..ClusterPeerSpec::default()
        },
    );
    peer.metadata.namespace = Some(target.agent_namespace.clone());
    peer.metadata.labels = Some(labels(&add.labels)?).filter(|labels| !labels.is_empty());
    Ok(peer)
}

fn labels(pairs: &[String]) -> Result<BTreeMap<String, String>> {
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
