//! A provider of two replicas: its leader is killed, its API server does not answer for a while, its bursts are taken back and
//! asked for again, it is drained, and then it is gone for good.

use std::path::Path;

use kube::ResourceExt;
use kube::api::Api;
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::Component;
use tributary_tests::agent::{AGENT_USER, Agent, Setup};
use tributary_tests::agentctl::agentctl;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{Federation, SYSTEM, apply_peer, cluster_peer, make_namespace, tail};
use tributary_tests::scenario::{Place, bursting};

use crate::certificates;
use crate::shared::{alone, places, together};

const ROOT: &str = "steady";
const SLOT: &str = "steady-burst-0";

/// Another replica of west's agent, at the same address: only the one that leads listens.
pub(crate) fn second_replica(federation: &Federation, kubeconfig: &Path) -> Agent {
    let cluster = &federation.clusters()[1];
    let (first, directory) = (federation.agent(1), federation.directory().join("west-standby"));
    let identity = federation.directory().join("west/identity");
    let named = Setup::new(cluster.name(), kubeconfig);
    Agent::new(&directory, &Setup { identity: Some(&identity), listen: Some(first.listen), ..named }).unwrap()
}

/// The danger: agents of two releases end each other's bursts, of whose peers they have never heard.
#[tokio::test(flavor = "multi_thread")]
async fn agents_of_another_release_do_not_start_beside_these() {
    let federation = together().await;
    make_namespace(&federation.client(0).await, "rival").await.unwrap();
    let kubeconfig = federation.clusters()[0].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    for (watched, told) in
        [("", "work on all namespaces already"), ("watch_namespaces = [\"rival\"]", "work on rival already")]
    {
        let own = format!("namespace = \"rival\"\n{watched}");
        let setup = Setup { kubernetes: &own, ..Setup::new("rival", &kubeconfig) };
        let agent = Agent::new(&federation.directory().join("rival"), &setup).unwrap();
        agent.start(&federation.group).unwrap();
        let expected = format!("{told} (Lease {SYSTEM}/tributary-agent");
        eventually("it does not start", async || {
            let log = agent.log_text();
            if log.contains(&expected) { Ok(()) } else { Err(tail(&log)) }
        })
        .await;
        eventually("it ends", async || agent.ended().map(drop).ok_or("it runs")).await;
    }
}

/// Waits until an agent has come to lead so many times.
pub(crate) async fn leads(agent: &Agent, times: usize) {
    eventually(format!("it leads for time {times}"), async || {
        let log = agent.log_text();
        if log.matches("this agent leads its cluster").count() >= times { Ok(()) } else { Err(tail(&log)) }
    })
    .await;
}

async fn ready(root: &Place) {
    root.burst(ROOT, SLOT, BurstPhase::Ready).await;
}

async fn hosted(provider: &Place) -> Option<String> {
    provider.hosted().get(SLOT).await.unwrap().uid()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_outlives_its_providers_leader_and_api_server_and_leaves_when_asked() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "availability").await;
    let kubeconfig = federation.clusters()[0].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    let rights = federation.clusters()[1].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    let standby = second_replica(&federation, &rights);
    standby.start(&federation.group).unwrap();
    eventually("the second replica runs", async || {
        let log = standby.log_text();
        if log.contains("the agent runs") { Ok(()) } else { Err(tail(&log)) }
    })
    .await;
    east.create(ROOT, bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    // And the other way round.
    west.create("guest", bursting(1, json!([{"size": 1, "peer": "east"}]))).await;
    ready(&east).await;
    west.burst("guest", "guest-burst-0", BurstPhase::Ready).await;
    let before = hosted(&west).await;

    federation.agent(1).kill().unwrap();
    let killed = tokio::time::Instant::now();
    leads(&standby, 1).await;
    let led = killed.elapsed();
    federation.connected().await;
    // A figure for who reads it; that it is 15 s at most is shown on simulated time (`mesh::membership`).
    eprintln!(
        "the leader was killed: the standby led after {led:.1?}, all peers were back after {:.1?}",
        killed.elapsed()
    );
    ready(&east).await;

    federation.clusters()[1].pause_component(Component::ApiServer).unwrap();
    let given_up = eventually("nobody leads without an API server", async || {
        let log = standby.log_text();
        if log.contains("this agent no longer leads its cluster") { Ok(()) } else { Err(tail(&log)) }
    });
    given_up.await;
    federation.clusters()[1].resume_component(Component::ApiServer).unwrap();
    leads(&standby, 2).await;
    federation.connected().await;
    ready(&east).await;
    assert_eq!(hosted(&west).await, before, "the burst was made anew");
    let log = standby.log_text();
    assert!(!log.contains("could not be started"), "the port was not free: {}", tail(&log));

    taken_back_and_drained(&kubeconfig, &east, &west).await;

    // West is gone for good, as far as east knows.
    standby.kill().unwrap();
    removed(&federation, &kubeconfig, &east).await;
    federation.agent(1).start(&federation.group).unwrap();
    federation.connected().await;
    ready(&east).await;
    // It is a peer again, and that takes nothing back.
    certificates::exposed(&east, ROOT, "west").await;
    certificates::rekeyed(&east, ROOT, "west").await;
    ready(&east).await;
    // It is let go in one word with all of its slots.
    let removed = ["peer", "remove", "west", "--force", "--release-slots"];
    let freed = agentctl(&kubeconfig, &removed).await.unwrap();
    assert!(freed.contains(&format!("availability/steady-burst-0: {AGENT_USER} lets west go")), "{freed}");
    released_by(&east, AGENT_USER).await;
    apply_peer(&federation.client(0).await, &cluster_peer("west", &federation.agent(1).listen.to_string()))
        .await
        .unwrap();
    federation.connected().await;
    ready(&east).await;
    // West hears that its burst was thrown out, and does not ask again by itself.
    west.burst("guest", "guest-burst-0", BurstPhase::Evicted).await;
    assert!(east.left("guest-burst-0").await.unwrap().is_empty());
    east.delete(ROOT).await;
    west.delete("guest").await;
    west.empty(SLOT).await;
}

/// The slot is free, and it is on record who said so.
async fn released_by(east: &Place, by: &str) {
    eventually(format!("{by} let west go"), async || {
        let status = east.burst_now(ROOT, SLOT).await?.status.unwrap_or_default();
        let named = status.releases.iter().any(|word| word.peer == "west" && word.by == by);
        let free = status.peer.is_none() && status.credential_recipients.iter().all(|one| one.free_since.is_some());
        if named && free { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

async fn taken_back_and_drained(kubeconfig: &Path, east: &Place, west: &Place) {
    let burst = async |words: &[&str]| {
        agentctl(kubeconfig, &[&["burst"][..], words, &[SLOT, "-n", "availability"]].concat()).await
    };
    // Its brokers would end.
    let asked = burst(&["cancel"]).await.unwrap_err().to_string();
    assert!(asked.contains("brokers on west") && asked.contains("nothing was changed"), "{asked}");
    burst(&["cancel", "--yes"]).await.unwrap();
    east.burst(ROOT, SLOT, BurstPhase::Released).await;
    west.empty(SLOT).await;
    east.running(ROOT).await;
    burst(&["retry"]).await.unwrap();
    ready(east).await;

    let asked = agentctl(kubeconfig, &["peer", "drain", "west"]).await.unwrap_err().to_string();
    assert!(asked.contains("hosted availability/guest-burst-0") && asked.contains("nothing was changed"), "{asked}");
    let drained = agentctl(kubeconfig, &["peer", "drain", "west", "--yes"]).await.unwrap();
    assert!(drained.contains("nothing is left on west"), "{drained}");
    west.empty(SLOT).await;
    // First it waits for west to say that nothing is left there.
    eventually("it waits for a peer that is not drained", async || {
        let status = east.burst_now(ROOT, SLOT).await?.status.unwrap_or_default();
        let said = status.phase == BurstPhase::Pending && status.message.contains("west: drained by this cluster");
        if said { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    agentctl(kubeconfig, &["peer", "resume", "west"]).await.unwrap();
    ready(east).await;
    // What was given back with the drain is taken again.
    west.burst("guest", "guest-burst-0", BurstPhase::Ready).await;
}

async fn removed(federation: &Federation, kubeconfig: &Path, east: &Place) {
    let busy = agentctl(kubeconfig, &["peer", "remove", "west"]).await.unwrap_err().to_string();
    assert!(busy.contains("burst availability/steady-burst-0") && busy.contains("drain"), "{busy}");
    assert!(busy.contains("hosted availability/guest-burst-0"), "{busy}");
    let removed = agentctl(kubeconfig, &["peer", "remove", "west", "--force"]).await.unwrap();
    assert!(removed.contains("availability/guest-burst-0 evicted"), "{removed}");
    assert!(
        east.hosted().get_opt("guest-burst-0").await.unwrap().is_none(),
        "something holds a burst that was evicted"
    );
    east.empty("guest-burst-0").await;
    let client = federation.client(0).await;
    let peers: Api<ClusterPeer> = Api::namespaced(client.clone(), SYSTEM);
    assert!(peers.get_opt("west").await.unwrap().is_none(), "something holds a peer that is gone");
    let release = "agentctl burst release steady-burst-0 --namespace availability";
    eventually("its ranks stay reserved, and it is said what frees them", async || {
        let status = east.burst_now(ROOT, SLOT).await?.status.unwrap_or_default();
        let said = status.phase == BurstPhase::Lost
            && status.reserved_until.is_none()
            && status.message.contains("west was removed")
            && status.message.contains(release);
        if said { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    certificates::exposed(east, ROOT, "west").await;

    // Whoever does not say yes has changed nothing.
    let words: Vec<&str> = release.split(' ').skip(1).collect();
    let asked = agentctl(kubeconfig, &words).await.unwrap_err().to_string();
    assert!(asked.contains("two clusters run the same ranks") && asked.contains("nothing was changed"), "{asked}");
    let told = agentctl(kubeconfig, &[words.as_slice(), &["--yes", "--by", "alice"]].concat()).await.unwrap();
    assert!(told.contains("alice lets west go"), "{told}");
    released_by(east, "alice").await;
    let again = agentctl(kubeconfig, &[words.as_slice(), &["--yes"]].concat()).await.unwrap_err().to_string();
    assert!(again.contains("it is placed nowhere"), "{again}");
    apply_peer(&client, &cluster_peer("west", &federation.agent(1).listen.to_string())).await.unwrap();
}
