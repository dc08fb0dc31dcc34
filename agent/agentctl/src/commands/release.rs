//! A person's word that the slot of a lost peer is free: `agentctl burst release`, and `agentctl peer remove --force
//! --release-slots` for all slots of a peer.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary::api::burst::{Burst, BurstStatus, SlotRelease};
use tributary::api::labels;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Clock, SystemClock};

use super::burst::{annotate, find};
use super::consent::agreed;
use super::watched::Watched;
use crate::cli::{BurstRelease, Target};
use crate::error::{Failure, Result, failed};
use crate::{output, paste};

/// How often is looked whether the agent has seen a loss, and for how long.
const POLL: Duration = Duration::from_secs(1);
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// Runs `agentctl burst release`.
pub(super) async fn run(target: &Target, client: &Client, namespace: &str, release: &BurstRelease) -> Result<()> {
    let name = &release.name;
    let burst = find(client, namespace, name).await?;
    let by = who(client, release.by.as_deref()).await?;
    let word = word(&burst, by).map_err(failed(
        format!("failed to release the slot of burst {namespace}/{name}"),
        format!(
            "a peer that is in contact gives it back by itself: `agentctl burst cancel {name} --namespace {namespace}`"
        ),
    ))?;
    agreed(Some(risk(&burst, &word)), release.yes, target)?;
    say(client, &burst, &word).await?;
    let told = format!(
        "the slot of burst {namespace}/{name} is free: {} lets {} go; what becomes of it: \
         `agentctl why {name} --namespace {namespace}`\n",
        word.by, word.peer
    );
    output::print(&paste::whole(&told, target))
}

/// Frees all slots that a peer holds which was removed, once the agent has seen it go; returns their names, and all Bursts.
pub(super) async fn all_of(
    client: &Client,
    watched: &Watched,
    peer: &ClusterPeer,
    by: &str,
) -> Result<(Vec<String>, Vec<Burst>)> {
    let name = peer.name_any();
    let failed = failed(format!("failed to find out which slots {name} holds"), "may you list Bursts?");
    let deadline = tokio::time::Instant::now() + SEEN_WITHIN;
    let mut freed = Vec::new();
    loop {
        let all = watched.all::<Burst>(client).await.map_err(&failed)?;
        one_cluster(&all, peer)?;
        let mut waiting = Vec::new();
        for burst in all.iter().filter(|burst| holds(burst, peer)) {
            let slot = format!("{}/{}", burst.namespace().unwrap_or_default(), burst.name_any());
            match word(burst, by.to_owned()) {
                _ if freed.contains(&slot) => {}
                Ok(word) => {
                    say(client, burst, &word).await?;
                    freed.push(slot);
                }
                Err(_) => waiting.push(slot),
            }
        }
        if waiting.is_empty() {
            return Ok((freed, all));
        }
        if tokio::time::Instant::now() >= deadline {
            let failure = Failure::new(format!("no agent has seen yet that {name} is gone: {}", waiting.join(", ")));
            return Err(failure.hint(format!("their slots stay reserved; to free them later: {}", commands(&waiting))));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn commands(slots: &[String]) -> String {
    let command = |one: &String| {
        let (namespace, name) = one.split_once('/').unwrap_or(("", one));
        format!("`agentctl burst release {name} --namespace {namespace}`")
    };
    slots.iter().map(command).collect::<Vec<_>>().join(", ")
}

/// Whether those that hold slots under a name are one cluster. Once the ClusterPeer is gone, nothing else tells them apart.
fn one_cluster(bursts: &[Burst], peer: &ClusterPeer) -> Result<()> {
    let held: Vec<&Burst> = bursts.iter().filter(|burst| holds(burst, peer)).collect();
    let uid = |burst: &&Burst| burst.status.as_ref()?.holder()?.cluster_uid.clone();
    if held.iter().filter_map(uid).collect::<BTreeSet<_>>().len() < 2 {
        return Ok(());
    }
    let slot = |burst: &&Burst| format!("{}/{}", burst.namespace().unwrap_or_default(), burst.name_any());
    let slots: Vec<String> = held.iter().map(slot).collect();
    let failure = Failure::new(format!("several clusters were called {}, and hold slots of ours", peer.name_any()));
    Err(failure.hint(format!("free those of which nothing runs any more, one by one: {}", commands(&slots))))
}

/// The name of whoever writes, as the API server knows it.
pub(super) async fn who(client: &Client, told: Option<&str>) -> Result<String> {
    if let Some(name) = told {
        return Ok(name.to_owned());
    }
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let name = review
        .map(|review| review.status.and_then(|status| status.user_info?.username))
        .map_err(failed("failed to ask the API server who you are", "say it yourself: --by NAME"))?;
    name.ok_or_else(|| Failure::new("the API server does not say who you are").hint("say it yourself: --by NAME"))
}

/// Whether it is the peer that holds the slot, and not another cluster that had its name before.
fn holds(burst: &Burst, peer: &ClusterPeer) -> bool {
    let is_peer = |status: &BurstStatus| {
        let named = status.holder().is_some_and(|holder| holder.peer == peer.name_any());
        named && !status.is_of_another(peer.pinned_uid())
    };
    burst.status.as_ref().is_some_and(is_peer)
}

/// What is said of the loss that the Burst shows now.
fn word(burst: &Burst, by: String) -> std::result::Result<SlotRelease, String> {
    let status = burst.status.clone().unwrap_or_default();
    let peer = status.peer.ok_or("it is placed nowhere")?;
    let lost_since = status.lost_since.ok_or_else(|| format!("{peer}, which holds it, is not lost"))?;
    Ok(SlotRelease {
        burst_uid: burst.uid().unwrap_or_default(),
        incarnation: burst.spec.incarnation.clone(),
        peer,
        lost_since,
        by,
        at: Time(SystemClock::start().wall()),
    })
}

/// What it risks, and what would be safe.
fn risk(burst: &Burst, word: &SlotRelease) -> String {
    let (name, namespace, peer) = (&burst.spec.slot, burst.namespace().unwrap_or_default(), &word.peer);
    let lost = format!(
        "burst {namespace}/{name} is placed on {peer}, which is lost since {:.0} and has not confirmed that nothing is left",
        word.lost_since.0
    );
    let tunnel = burst.status.as_ref().and_then(BurstStatus::holder).is_some_and(|holder| holder.tunnel);
    let root = &burst.spec.root;
    let risk = if burst.spec.whole {
        format!("if it still runs there, FluxJob {root} runs twice")
    } else if tunnel {
        "its brokers reach the lead broker by the tunnel alone, which refuses them from now on: no ranks run twice, and what \
         they run is lost"
            .to_owned()
    } else {
        format!(
            "if brokers of it still run there and reach the lead broker, two clusters run the same ranks: jobs of {root} end, \
             or run twice\n  safe without a look: `agentctl rekey {root} --namespace {namespace}`, a new certificate, which ends its jobs"
        )
    };
    format!("{lost}\n  {risk}\n  make sure on {peer} that no pods of {name} are left, or that it is switched off")
}

async fn say(client: &Client, burst: &Burst, word: &SlotRelease) -> Result<()> {
    let text = serde_json::to_string(word).expect("a word is plain data with text keys");
    let bursts: Api<Burst> = Api::namespaced(client.clone(), &burst.namespace().unwrap_or_default());
    annotate(&bursts, &burst.name_any(), json!({labels::RELEASE: text})).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(spec: serde_json::Value, status: serde_json::Value) -> Burst {
        let mut whole = json!({"root": "lake", "slot": "lake-burst-0", "incarnation": "job-1"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let metadata = json!({"name": "lake-burst-0", "namespace": "flux", "uid": "burst-uid"});
        serde_json::from_value(json!({"metadata": metadata, "spec": whole, "status": status})).unwrap()
    }

    fn lost(spec: serde_json::Value, tunnel: bool) -> Burst {
        let recipient = json!({"peer": "west", "incarnation": "job-1", "tunnel": tunnel});
        let since = "2026-01-01T00:00:00Z";
        burst(spec, json!({"phase": "Lost", "peer": "west", "lostSince": since, "credentialRecipients": [recipient]}))
    }

    #[test]
    fn what_it_risks_is_told_before_it_is_done() {
        let told = |burst: &Burst| risk(burst, &word(burst, "alice".into()).unwrap());
        let all = [lost(json!({}), false), lost(json!({}), true), lost(json!({"whole": true}), false)];
        insta::assert_snapshot!(all.iter().map(told).collect::<Vec<_>>().join("\n\n"));
    }

    #[test]
    fn only_the_slot_of_a_lost_peer_is_released() {
        let word = |status| word(&burst(json!({}), status), "alice".into()).unwrap_err();
        assert_eq!(word(json!({"phase": "Pending"})), "it is placed nowhere");
        assert_eq!(word(json!({"phase": "Ready", "peer": "west"})), "west, which holds it, is not lost");
        let [mut west, north] = ["west", "north"].map(|name| ClusterPeer::new(name, Default::default()));
        assert!(holds(&lost(json!({}), false), &west) && !holds(&lost(json!({}), false), &north));
        // Another cluster had the name before.
        let mut first = lost(json!({}), false);
        first.status.as_mut().unwrap().credential_recipients[0].cluster_uid = Some("first".into());
        for (pinned, held) in [(None, true), (Some("first"), true), (Some("second"), false)] {
            west.spec.cluster_uid = pinned.map(str::to_owned);
            assert_eq!(holds(&first, &west), held, "{pinned:?}");
        }
        // Once the ClusterPeer is gone, nobody knows which of the two is meant.
        let gone = ClusterPeer::new("west", Default::default());
        let mut second = first.clone();
        assert!(one_cluster(&[first.clone(), second.clone()], &gone).is_ok());
        second.status.as_mut().unwrap().credential_recipients[0].cluster_uid = Some("second".into());
        assert!(one_cluster(&[first.clone(), second.clone()], &gone).is_err());
        assert!(one_cluster(&[first, second], &west).is_ok(), "it says which one");
    }
}
