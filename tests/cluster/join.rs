//! Two clusters that know nothing of each other: token, join, a burst, and new certificates and authorities under it.

use std::net::UdpSocket;
use std::path::PathBuf;

use jiff::SignedDuration;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary::api::cluster_card::ClusterCard;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::join_token::{self, JoinTokenRecord};
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::ClusterPeer;
use tributary::federation::identity::{Authority, TrustBundle};
use tributary_tests::agent::{AGENT_USER, Agent, Setup};
use tributary_tests::agentctl::agentctl;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::federation::{Federation, make_namespace, tail};
use tributary_tests::scenario::bursting;

use crate::chaos::eyes::everything;
use crate::chaos::oracle::{Keys, within_base64};
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
        Self::start_with(federation, index, name, "").await
    }

    /// With more in the section `federation` of its configuration.
    async fn start_with(federation: &Federation, index: usize, name: &str, more: &str) -> Self {
        let cluster = &federation.clusters()[index];
        let client = federation.client(index).await;
        make_namespace(&client, SYSTEM).await.unwrap();
        let kubeconfig = cluster.kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
        let join = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let extra = format!("validity = {VALIDITY:?}\n{more}[federation.join]\nlisten = \"{join}\"\n");
        let own = format!("namespace = {SYSTEM:?}");
        let setup = Setup { kubernetes: &own, extra: &extra, ..Setup::new(name, &kubeconfig) };
        let agent = Agent::new(&federation.directory().join(name), &setup).unwrap();
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

/// Finds the secret of a token, which has no text of its own, as hex and as both kinds of base64.
fn secret_of(token: &str) -> Keys {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Message {
        #[prost(bytes = "vec", tag = "2")]
        secret: Vec<u8>,
    }
    let coded = token.trim_start_matches("tributary-1.").replace('-', "+").replace('_', "/");
    let whole = format!("{coded:=<0$}", coded.len().next_multiple_of(4));
    let ByteString(bytes) = serde_json::from_value(whole.into()).unwrap();
    let (message, _checksum) = bytes.split_last_chunk::<4>().unwrap();
    let secret = <Message as prost::Message>::decode(message).unwrap().secret;
    assert_eq!(secret.len(), 32);
    let mut keys = Keys::default();
    keys.add(&secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), "hex");
    for offset in 0..3 {
        let base64 = within_base64(&secret, offset);
        keys.add(&base64.replace('+', "-").replace('/', "_"), "base64url");
        keys.add(&base64, "base64");
    }
    keys
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
    let joined = right.agentctl(&["join", &token, "--import", "joined", "-l", "name=left", "--wait", "60s"]).await;
    let joined = joined.unwrap_or_else(|error| panic!("{error}\n{}", tail(&left.agent.log_text())));
    assert!(joined.contains("right and left are peers") && joined.contains("connected ("), "{joined}");
    let (at_left, at_right) = (left.peer("right").await.unwrap(), right.peer("left").await.unwrap());
    assert_eq!(at_left.spec.import, None, "the token lets its cluster place nothing");
    assert_eq!(at_right.spec.import.unwrap().namespaces, ["joined"]);
    assert_eq!(at_right.spec.cluster_uid, Some(card.cluster_uid));
    assert_eq!(at_left.metadata.labels.unwrap()["name"], "right");

    // The secret of the token is nowhere in the clusters, and the token lets nobody else in.
    let keys = secret_of(&token);
    let kept = serde_json::to_value(ByteString(token.clone().into_bytes())).unwrap();
    assert!(keys.in_text(&token).is_some() && keys.in_object(&kept).is_some(), "it would be found");
    for side in [&left, &right] {
        for object in everything(&side.client).await.unwrap() {
            assert_eq!(keys.in_object(&object), None, "{object}");
        }
        assert_eq!(keys.in_text(&side.agent.log_text()), None);
    }
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
    let old = right.trusted("left").await.unwrap();
    left.agentctl(&["identity", "rotate", "--yes"]).await.unwrap();
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
    right.agentctl(&["peer", "suspend", "left", "--yes"]).await.unwrap();
    eventually("the connection has ended, and left is told why", async || {
        let status = left.peer("right").await?.status.unwrap_or_default();
        let reason = status.conditions.into_iter().find(|one| one.type_ == CONNECTED).map(|one| one.reason);
        if reason.as_deref() == Some("Suspended") { Ok(()) } else { Err(format!("{reason:?}")) }
    })
    .await;
    left.agentctl(&["peer", "remove", "right"]).await.unwrap();

    a_token_that_has_ended(&left, &third).await;
    linked_with_what_cert_manager_issues(&federation, &left).await;

    left.agent.stop(&federation.group).await.unwrap();
    right.agent.stop(&federation.group).await.unwrap();
    federation.agent(0).start(&federation.group).unwrap();
    federation.agent(1).start(&federation.group).unwrap();
    federation.connected().await;
}

/// The shortest life there is.
async fn a_token_that_has_ended(left: &Side, third: &std::path::Path) {
    let printed = left.agentctl(&["token", "create", "--expires", "1s"]).await.unwrap();
    let token = printed.lines().find(|line| line.starts_with("tributary-1.")).unwrap().to_owned();
    eventually("the token has ended", async || {
        let listed = left.agentctl(&["token", "list"]).await.map_err(|error| error.to_string())?;
        if listed.contains("expired") { Ok(()) } else { Err(listed) }
    })
    .await;
    let late = agentctl(third, &["join", &token, "--wait", "0s", "--agent-namespace", SYSTEM]).await.unwrap_err();
    let late = late.to_string();
    assert!(late.contains("expired") && late.contains("hint: "), "{late}");

    // The danger: the listener closes on those who join with another token.
    left.agentctl(&["token", "create"]).await.unwrap();
    let closed = || left.agent.log_text().matches("the listener for clusters that join is closed").count();
    let (before, secrets) = (closed(), Api::<Secret>::namespaced(left.client.clone(), SYSTEM));
    let tokens = secrets.list(&ListParams::default().fields(&format!("type={}", join_token::TYPE))).await.unwrap();
    let mut secret = tokens.items.into_iter().min_by_key(|one| JoinTokenRecord::read(one).expires).unwrap();
    let (name, record) = (secret.name_any(), JoinTokenRecord::read(&secret));
    JoinTokenRecord { expires: record.expires - SignedDuration::from_secs(120), ..record }.put(&mut secret);
    secrets.replace(&name, &PostParams::default(), &secret).await.unwrap();
    gone(&secrets, &name).await;
    assert_eq!(closed(), before);
}

/// A third cluster whose identity somebody else issues and renews, in a Secret as cert-manager writes it; whoever holds both
/// kubeconfigs links it.
async fn linked_with_what_cert_manager_issues(federation: &Federation, left: &Side) {
    #[allow(clippy::disallowed_methods, reason = "certificates of a real run are valid now")]
    let now = jiff::Timestamp::now();
    let issuer = Authority::create("research", now).unwrap();
    let secrets: Api<Secret> = Api::namespaced(federation.client(2).await, SYSTEM);
    let issue = async || {
        let issued = issuer.issue("third", now, std::time::Duration::from_secs(3600)).unwrap();
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "issued", "annotations": {
                "cert-manager.io/certificate-name": "issued", "cert-manager.io/issuer-kind": "Issuer"}},
            "type": "kubernetes.io/tls",
        }))
        .unwrap();
        let parts =
            [("tls.crt", issued.certificate()), ("tls.key", issued.expose_key()), ("ca.crt", issuer.certificate())];
        let data = parts.map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())));
        let secret = Secret { data: Some(data.into()), ..secret };
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret.metadata, "type": secret.type_,
            "data": secret.data});
        secrets.patch("issued", &PatchParams::apply("cert-manager").force(), &Patch::Apply(&secret)).await.unwrap();
    };
    issue().await;
    federation.agent(2).stop(&federation.group).await.unwrap();
    let third = Side::start_with(federation, 2, "third", "identity = { secret = \"issued\" }\n").await;
    eventually("the third agent says who it is", async || {
        let card = third.introduced().await;
        if card.trust_bundle == issuer.certificate() { Ok(()) } else { Err(tail(&third.agent.log_text())) }
    })
    .await;
    // One kubeconfig with both contexts, as its owner has it.
    let [ours, theirs] = [&left.kubeconfig, &third.kubeconfig].map(|path| Kubeconfig::read_from(path).unwrap());
    let [a, b] = [&ours, &theirs].map(|config| config.contexts[0].name.clone());
    let both = federation.directory().join("both.kubeconfig");
    std::fs::write(&both, serde_json::to_string(&ours.merge(theirs).unwrap()).unwrap()).unwrap();
    let link = ["link", a.as_str(), b.as_str(), "--import", "linked", "--one-way", "--wait", "60s"];
    let linked = agentctl(&both, &[&link[..], &["--agent-namespace", SYSTEM]].concat()).await;
    let linked = linked.unwrap_or_else(|error| panic!("{error}\n{}", tail(&third.agent.log_text())));
    assert!(linked.contains("left and third are peers") && linked.contains("connected ("), "{linked}");
    assert_eq!(left.peer("third").await.unwrap().spec.import, None);
    assert_eq!(third.peer("left").await.unwrap().spec.import.unwrap().namespaces, ["linked"]);
    // A word about something else takes nothing back.
    left.agentctl(&["peer", "add", "third", "-l", "tier=gpu"]).await.unwrap();
    assert_eq!(left.peer("third").await.unwrap().spec.trust_bundle.as_deref(), Some(issuer.certificate()));

    issue().await;
    eventually("what was renewed is in use", async || {
        let log = third.agent.log_text();
        if log.contains("identity renewed") { Ok(()) } else { Err(tail(&log)) }
    })
    .await;
    eventually("both are connected", async || {
        let status = left.peer("third").await?.status.unwrap_or_default();
        if status.connected { Ok(()) } else { Err(format!("{:?}", status.conditions)) }
    })
    .await;
    let rotate = third.agentctl(&["identity", "rotate"]).await.unwrap_err().to_string();
    assert!(rotate.contains("cert-manager") && rotate.contains("hint: "), "{rotate}");
    left.agentctl(&["peer", "remove", "third"]).await.unwrap();
    third.agent.stop(&federation.group).await.unwrap();
    federation.agent(2).start(&federation.group).unwrap();
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
        awaited_service: None,
        trust_bundle: Authority::create("third", now).unwrap().certificate().to_owned(),
        authority: None,
    };
    let map = card.config_map(SYSTEM);
    let maps: Api<ConfigMap> = Api::namespaced(client, SYSTEM);
    maps.patch(&map.name_any(), &PatchParams::apply("tests").force(), &Patch::Apply(&map)).await.unwrap();
}
