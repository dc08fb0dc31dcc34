//! Two clusters that know nothing of each other: token, join, a burst, and new certificates and authorities under it.

use std::net::UdpSocket;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary::api::cluster_card::ClusterCard;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::ClusterPeer;
use tributary::federation::identity::{Authority, TrustBundle};
use tributary_tests::agent::{AGENT_USER, Agent, Setup};
use tributary_tests::agentctl::agentctl;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{Federation, make_namespace, tail};
use tributary_tests::scenario::bursting;

use crate::shared::{alone, places};

/// Namespace of these agents: beside those of the other tests, which rest meanwhile.
const SYSTEM: &str = "join-system";

/// Certificates live for so long here: a test can see them end.
const VALIDITY: &str = "20s";

/// An agent that makes its own identity.
struct Side {
    agent: Agent,
    client: Client,
    kubeconfig: PathBuf,
}

impl Side {
    async fn start(federation: &Federation, index: usize, name: &str) -> Self {
        let cluster = &federation.clusters()[index];
        let client = federation.client(index).await;
        make_namespace(&client, SYSTEM).await.unwrap();
        let kubeconfig = cluster.kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
        let join = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let extra = format!("validity = {VALIDITY:?}\n[federation.join]\nlisten = \"{join}\"\n");
        let directory = federation.directory().join(name);
        let setup = Setup { cluster: name, kubeconfig: &kubeconfig, identity: None, extra: &extra };
        let agent = Agent::new(&directory, &setup).unwrap();
        let config = directory.join("agent.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let text = text.replace("[kubernetes]\n", &format!("[kubernetes]\nnamespace = {SYSTEM:?}\n"));
        std::fs::write(&config, text).unwrap();
        agent.start(&federation.group).unwrap();
        Self { agent, client, kubeconfig }
    }

    async fn agentctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--agent-namespace", SYSTEM]).collect();
        agentctl(&self.kubeconfig, &arguments).await
    }

    /// Waits until the agent says who its cluster is.
    async fn introduced(&self) -> ClusterCard {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), SYSTEM);
        eventually("the agent says who its cluster is", async || {
            let map = maps.get_opt("tributary-cluster").await.map_err(|error| error.to_string())?;
            let map = map.ok_or_else(|| tail(&self.agent.log_text()))?;
            ClusterCard::read(&map).map_err(|error| error.to_string())
        })
        .await
    }

    async fn peer(&self, name: &str) -> Result<ClusterPeer, String> {
        let peers: Api<ClusterPeer> = Api::namespaced(self.client.clone(), SYSTEM);
        peers.get(name).await.map_err(|error| error.to_string())
    }

    /// SHA-256 of the authorities that this side trusts for `name`.
    async fn trusted(&self, name: &str) -> Result<Vec<String>, String> {
        let pem = self.peer(name).await?.spec.trust_bundle.unwrap_or_default();
        let bundle = TrustBundle::from_pem(pem.as_bytes()).map_err(|error| error.to_string())?;
        Ok(bundle.fingerprints().iter().cloned().collect())
    }

    async fn certificate(&self) -> Result<Vec<u8>, String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), SYSTEM);
        let secret = secrets.get("tributary-identity").await.map_err(|error| error.to_string())?;
        Ok(secret.data.unwrap_or_default()["tls.crt"].0.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_makes_peers_and_their_bursts_outlive_certificates_and_authorities() {
    let federation = alone().await;
    federation.agent(0).stop(&federation.group).await.unwrap();
    federation.agent(1).stop(&federation.group).await.unwrap();
    let (left, right) = tokio::join!(Side::start(&federation, 0, "left"), Side::start(&federation, 1, "right"));
    let (card, _) = tokio::join!(left.introduced(), right.introduced());

    let printed = left.agentctl(&["token", "create", "-l", "name=right"]).await.unwrap();
    let token = printed.lines().find(|line| line.starts_with("tributary-1.")).unwrap().to_owned();
    let joined = right.agentctl(&["join", &token, "--import", "joined", "-l", "name=left"]).await;
    let joined = joined.unwrap_or_else(|error| panic!("{error}\n{}", tail(&left.agent.log_text())));
    assert!(joined.contains("right and left are peers") && joined.contains("connected ("), "{joined}");
    let (at_left, at_right) = (left.peer("right").await.unwrap(), right.peer("left").await.unwrap());
    assert_eq!(at_left.spec.import, None, "the token lets its cluster place nothing");
    assert_eq!(at_right.spec.import.unwrap().namespaces, ["joined"]);
    assert_eq!(at_right.spec.cluster_uid, Some(card.cluster_uid));
    assert_eq!(at_left.metadata.labels.unwrap()["name"], "right");

    // The secret of the token is nowhere in the cluster, and the token lets nobody else in.
    let secrets: Api<Secret> = Api::namespaced(left.client.clone(), SYSTEM);
    let all = serde_json::to_string(&secrets.list(&Default::default()).await.unwrap().items).unwrap();
    assert!(!all.contains(token.trim_start_matches("tributary-1.")));
    third_cluster_says_who_it_is(&federation).await;
    let third = federation.clusters()[2].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    let again = agentctl(&third, &["join", &token, "--wait", "0s", "--agent-namespace", SYSTEM]).await.unwrap_err();
    let again = again.to_string();
    assert!(again.contains("was used by right already") && again.contains("hint: "), "{again}");
    assert!(left.peer("third").await.is_err(), "nobody joins with a token that is used up");

    let [root, provider, _] = places(&federation, "joined").await;
    root.create("lake", bursting(1, json!([{"size": 1, "peer": "right"}]))).await;
    root.burst("lake", "lake-burst-0", BurstPhase::Ready).await;
    let hosted = provider.hosted().get("lake-burst-0").await.unwrap().uid();

    let before = left.certificate().await.unwrap();
    eventually("the certificate is renewed", async || {
        if left.certificate().await? == before { Err("not yet".to_owned()) } else { Ok(()) }
    })
    .await;
    left.agentctl(&["identity", "rotate"]).await.unwrap();
    let old = right.trusted("left").await.unwrap();
    eventually("the peer knows the new authority, and then only that", async || {
        let now = right.trusted("left").await?;
        let logs = || format!("{}\n{}", tail(&left.agent.log_text()), tail(&right.agent.log_text()));
        if now.len() == 1 && now != old { Ok(()) } else { Err(format!("{now:?}\n{}", logs())) }
    })
    .await;
    eventually("both are connected", async || {
        let status = left.peer("right").await?.status.unwrap_or_default();
        if status.connected { Ok(()) } else { Err(format!("{:?}", status.conditions)) }
    })
    .await;
    root.burst("lake", "lake-burst-0", BurstPhase::Ready).await;
    assert_eq!(provider.hosted().get("lake-burst-0").await.unwrap().uid(), hosted, "the burst was made anew");

    let busy = left.agentctl(&["peer", "remove", "right"]).await.unwrap_err().to_string();
    assert!(busy.contains("burst joined/lake-burst-0") && busy.contains("hint: "), "{busy}");
    root.delete("lake").await;
    provider.empty("lake-burst-0").await;
    right.agentctl(&["peer", "suspend", "left"]).await.unwrap();
    eventually("the connection has ended, and left is told why", async || {
        let status = left.peer("right").await?.status.unwrap_or_default();
        let reason = status.conditions.into_iter().find(|one| one.type_ == CONNECTED).map(|one| one.reason);
        if reason.as_deref() == Some("Suspended") { Ok(()) } else { Err(format!("{reason:?}")) }
    })
    .await;
    left.agentctl(&["peer", "remove", "right"]).await.unwrap();

    left.agent.stop(&federation.group).await.unwrap();
    right.agent.stop(&federation.group).await.unwrap();
    federation.agent(0).start(&federation.group).unwrap();
    federation.agent(1).start(&federation.group).unwrap();
    federation.connected().await;
}

/// What an agent in the third cluster would write: none runs there.
async fn third_cluster_says_who_it_is(federation: &Federation) {
    #[allow(clippy::disallowed_methods, reason = "certificates of a real run are valid now")]
    let now = jiff::Timestamp::now();
    let client = federation.client(2).await;
    make_namespace(&client, SYSTEM).await.unwrap();
    let card = ClusterCard {
        cluster: "third".into(),
        cluster_uid: "third-uid".into(),
        trust_domain: None,
        endpoints: vec!["127.0.0.1:1".into()],
        join_endpoints: Vec::new(),
        trust_bundle: Authority::create("third", now).unwrap().certificate().to_owned(),
        authority: None,
    };
    let map = card.config_map(SYSTEM);
    let maps: Api<ConfigMap> = Api::namespaced(client, SYSTEM);
    maps.patch(&map.name_any(), &PatchParams::apply("tests").force(), &Patch::Apply(&map)).await.unwrap();
}
