//! Who is let in, and who is told why not.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::ClusterPeer;
use tributary::federation::identity::Authority;
use tributary::federation::identity::files::Existing;
use tributary_tests::agent::{AGENT_USER, Agent, Setup};
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{Federation, SYSTEM, cluster_peer, tail};

use crate::shared::quiet;

const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// Restarts west's agent as `cluster` with an identity of `authority` that is valid from `from`.
async fn restart_as(federation: &Federation, authority: &Authority, cluster: &str, from: Timestamp) {
    let identity = federation.directory().join(format!("identity-{cluster}-{}", from.as_second()));
    authority.issue(cluster, from, A_DAY).unwrap().write(&identity, Existing::Replace).unwrap();
    let file = federation.directory().join("west/agent.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed: String = text
        .lines()
        .map(|line| match line.split(" = ").next() {
            Some("identity") => format!("identity = {{ dir = {identity:?} }}\n"),
            Some("name") => format!("name = {cluster:?}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let starts = || federation.agent(1).log_text().matches("the agent runs").count();
    let before = starts();
    federation.agent(1).stop(&federation.group).await.unwrap();
    std::fs::write(&file, changed).unwrap();
    federation.agent(1).start(&federation.group).unwrap();
    // The next start is as before again, also if this test fails.
    eventually("the agent has read its configuration", async || {
        if starts() > before { Ok(()) } else { Err(tail(&federation.agent(1).log_text())) }
    })
    .await;
    std::fs::write(&file, text).unwrap();
}

/// Waits until a ClusterPeer of an agent says why there is no connection.
async fn refusal(agent: &Agent, peers: &Api<ClusterPeer>, peer: &str, expected: &str) -> String {
    eventually(format!("{} is not connected with {peer} ({expected})", agent.name), async || {
        let peer = peers.get(peer).await.map_err(|error| error.to_string())?;
        let condition = peer.status.unwrap_or_default().conditions.into_iter().find(|one| one.type_ == CONNECTED);
        match condition {
            Some(one) if one.reason == expected => Ok(one.message),
            other => Err(format!("{other:?}; {}", tail(&agent.log_text()))),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_expired_and_misnamed_certificates_are_refused_with_a_condition_and_a_log_line() {
    let federation = quiet().await;
    #[allow(clippy::disallowed_methods, reason = "certificates of a real run are valid now")]
    let now = Timestamp::now();
    let foreign = Authority::create("tests.example", now).unwrap();
    let own = Authority::load(&saved(&federation)).unwrap();
    let (east, peers) = (federation.agent(0), Api::namespaced(federation.client(0).await, SYSTEM));
    restart_as(&federation, &foreign, "west", now).await;
    refusal(east, &peers, "west", "UntrustedCertificate").await;
    restart_as(&federation, &own, "north", now).await;
    let refused = refusal(east, &peers, "west", "WrongIdentity").await;
    assert!(refused.contains("north"), "{refused}");
    let log = east.log_text();
    for reason in ["UntrustedCertificate", "WrongIdentity"] {
        assert!(log.contains(reason), "{reason} is not in the log:\n{}", tail(&log));
    }
    // An agent does not show an expired certificate to anybody: it says so itself.
    restart_as(&federation, &own, "west", now - jiff::SignedDuration::from_hours(7 * 24)).await;
    eventually("west says that its certificate has expired", async || {
        let log = federation.agent(1).log_text();
        if log.contains("expired") { Ok(()) } else { Err(tail(&log)) }
    })
    .await;
    federation.agent(1).stop(&federation.group).await.unwrap();
    federation.agent(1).start(&federation.group).unwrap();
    federation.connected().await;
}

fn saved(federation: &Federation) -> std::path::PathBuf {
    let directory = federation.directory().join("authority");
    federation.authority.write(&directory, Existing::Replace).unwrap();
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_another_uid_is_refused() {
    let federation = quiet().await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(0).await, SYSTEM);
    let pin = async |uid: serde_json::Value| {
        let patch = Patch::Merge(json!({"spec": {"clusterUID": uid}}));
        peers.patch("west", &PatchParams::default(), &patch).await.unwrap();
    };
    pin(json!("00000000-0000-0000-0000-000000000000")).await;
    refusal(federation.agent(0), &peers, "west", "WrongClusterUID").await;
    assert!(federation.agent(0).log_text().contains("WrongClusterUID"));
    pin(serde_json::Value::Null).await;
    federation.connected().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_cluster_is_refused_and_told_so() {
    let federation = quiet().await;
    #[allow(clippy::disallowed_methods, reason = "certificates of a real run are valid now")]
    let now = Timestamp::now();
    // A fourth agent, of a cluster nobody holds a ClusterPeer for; it runs on north's API server in another namespace, while
    // north's rests: no agent starts beside another one.
    federation.agent(2).stop(&federation.group).await.unwrap();
    let directory = federation.directory().join("stranger");
    let identity = directory.join("identity");
    federation.authority.issue("stranger", now, A_DAY).unwrap().write(&identity, Existing::Replace).unwrap();
    let kubeconfig = federation.clusters()[2].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    let client = federation.client(2).await;
    tributary_tests::federation::make_namespace(&client, "stranger-system").await.unwrap();
    let (named, own) = (Setup::new("stranger", &kubeconfig), "namespace = \"stranger-system\"");
    let setup = Setup { identity: Some(&identity), kubernetes: own, ..named };
    let stranger = Agent::new(&directory, &setup).unwrap();
    let peers: Api<ClusterPeer> = Api::namespaced(client, "stranger-system");
    let east = cluster_peer("east", &federation.agent(0).listen.to_string());
    peers.patch(&east.name_any(), &PatchParams::apply("tests").force(), &Patch::Apply(&east)).await.unwrap();
    stranger.start(&federation.group).unwrap();
    refusal(&stranger, &peers, "east", "UnknownPeer").await;
    assert!(federation.agent(0).log_text().contains("stranger"), "east does not log who knocked");
    stranger.stop(&federation.group).await.unwrap();
    federation.agent(2).start(&federation.group).unwrap();
    federation.connected().await;
}
