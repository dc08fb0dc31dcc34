//! What happens to bursts while clusters do not hear each other, on short leases.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tokio::time::Instant;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary_tests::agent::AGENT_USER;
use tributary_tests::eventually::{eventually, never};
use tributary_tests::federation::{DRAIN, Federation, GRACE, LEASE, SYSTEM};
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{places, quiet};

/// What a root waits beyond lease and drain, and what a provider may take to remove everything.
const MARGIN: u64 = 10;

/// A last word that was on its way when its agent ended is heard so much later.
const LATE: u64 = 2;

/// When west fell silent: its last words lie between these two moments, on the clock that agents date losses by.
struct Silence {
    /// Before its agent was started for the last time.
    from: Timestamp,
    /// After that one had ended.
    until: Timestamp,
}

impl Silence {
    /// What agents count from is within it, and not when they came to see it as a loss. Dates are whole seconds.
    fn dated(&self, Time(since): &Time) {
        let heard = self.from.as_second()..=(self.until + seconds(LATE)).as_second();
        assert!(
            heard.contains(&since.as_second()),
            "dated {since}: west fell silent from {} to {}",
            self.from,
            self.until
        );
    }
}

#[allow(clippy::disallowed_methods, reason = "agents of a real run date what happens now")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// What is left until `time` has passed since a date.
fn left_of(time: Duration, Time(since): &Time) -> Duration {
    Duration::try_from((*since + time).duration_since(now())).unwrap_or_default()
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Each cluster has a root with a burst on another: east on west, west on north, north on east. Then west falls silent.
#[tokio::test(flavor = "multi_thread")]
async fn leases_are_kept_to_the_second_on_both_sides() {
    let federation = quiet().await;
    let [east, west, north] = places(&federation, "leases").await;
    // Whom a burst prefers does not get it while it cannot be heard.
    federation.connected().await;
    let onto = |peers: &[&str]| bursting(1, json!([{"size": 1, "peers": peers}]));
    let mut near = onto(&["west", "north"]);
    near["flux"]["bursting"]["network"] = json!({"type": "Tunnel"});
    east.create("near", near).await;
    // What brokers reach without us, no time takes from a peer.
    east.create("held", onto(&["west", "north"])).await;
    west.create("far", onto(&["north"])).await;
    north.create("gone", onto(&["east"])).await;
    for (place, root) in [(&east, "near"), (&east, "held"), (&west, "far"), (&north, "gone")] {
        let burst = place.burst(root, &format!("{root}-burst-0"), BurstPhase::Ready).await;
        assert_eq!((burst.spec.lease, burst.spec.drain), (15.into(), 2.into()), "the configuration arrives");
    }
    let near = hosted(&west, "near-burst-0").await.uid();
    let far = hosted(&north, "far-burst-0").await.uid();

    // A restart is a blip: nobody is evicted.
    let from = now();
    restart(&federation, 1).await;
    federation.connected().await;
    east.burst("near", "near-burst-0", BurstPhase::Ready).await;
    west.burst("far", "far-burst-0", BurstPhase::Ready).await;
    assert_eq!((hosted(&west, "near-burst-0").await.uid(), hosted(&north, "far-burst-0").await.uid()), (near, far));

    federation.agent(1).stop(&federation.group).await.unwrap();
    let silent = Silence { from, until: now() };
    tokio::join!(reserved(&east, &north, &silent), dated_and_drained(&federation, &north, &east, &silent));

    let held = east.burst("held", "held-burst-0", BurstPhase::Lost).await.status.unwrap();
    assert_eq!((held.peer.as_deref(), held.reserved_until), (Some("west"), None), "{}", held.message);
    // A Job that goes meanwhile is not made anew: its ranks are not west's any more.
    west.jobs().delete("held-burst-0", &DeleteParams::background()).await.unwrap();
    eventually("the pods of the burst are gone", async || {
        let pods = west.pods().list(&ListParams::default().labels("job-name=held-burst-0")).await;
        let left = pods.map_err(|error| error.to_string())?.items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} pods")) }
    })
    .await;
    let audit = federation.clusters()[1].audit();
    let marker = audit.marker().unwrap();
    // West returns: what was placed elsewhere goes there, and its own root gets its burst back.
    federation.agent(1).start(&federation.group).unwrap();
    west.empty("near-burst-0").await;
    west.burst("far", "far-burst-0", BurstPhase::Ready).await;
    east.burst("near", "near-burst-0", BurstPhase::Ready).await;
    // What outlived its lease west ends, and confirms: then its slot is free.
    west.empty("held-burst-0").await;
    let asked = audit.requests(AGENT_USER, marker).unwrap();
    let made: Vec<_> = asked.iter().filter(|one| one.verb == "create" && one.resource == "jobs").collect();
    assert!(made.is_empty(), "{made:?}");
    let held = east.burst("held", "held-burst-0", BurstPhase::Ready).await.status.unwrap();
    assert_eq!(held.peer.as_deref(), Some("north"), "west has just given it back");
    for (place, root) in [(&east, "near"), (&east, "held"), (&west, "far")] {
        place.mini_clusters().delete(root, &DeleteParams::default()).await.unwrap();
    }
    north.empty("near-burst-0").await;
    north.empty("far-burst-0").await;
    north.empty("held-burst-0").await;
}

/// East, a root: the ranks on west are nobody else's until nothing can run there any more.
async fn reserved(east: &Place, north: &Place, silent: &Silence) {
    let hold = seconds(LEASE + DRAIN + MARGIN);
    eventually("the burst on west is lost", async || {
        let status = east.burst_now("near", "near-burst-0").await?.status.unwrap_or_default();
        let said = status.phase == BurstPhase::Lost && status.reserved_until.is_some();
        if said { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    let peers: Api<ClusterPeer> = Api::namespaced(east.client.clone(), SYSTEM);
    let since = eventually("east dates the loss of west", async || {
        let west = peers.get("west").await.map_err(|error| error.to_string())?;
        west.status.unwrap_or_default().suspect_since.ok_or_else(|| "no date".to_owned())
    })
    .await;
    silent.dated(&since);
    never("the slot is placed on north before west's lease is over", left_of(hold, &since), async || {
        let elsewhere = north.hosted().get_opt("near-burst-0").await.ok()??;
        Some(format!("{:?} at {}, {since:?}", elsewhere.status, now()))
    })
    .await;
    let burst = east.burst("near", "near-burst-0", BurstPhase::Ready).await;
    assert_eq!(burst.status.unwrap().peer.as_deref(), Some("north"));
}

/// North, a provider: the burst of west's root outlives the contact by the lease, also if north's agent is restarted; and
/// north, a root: what was deleted while its agent was away ends on east by its absence, after the grace period.
async fn dated_and_drained(federation: &Federation, north: &Place, east: &Place, silent: &Silence) {
    let since = eventually("north dates the loss of west", async || {
        let hosted = north.hosted().get("far-burst-0").await.map_err(|error| error.to_string())?;
        hosted.status.unwrap_or_default().suspect_since.ok_or_else(|| "no date".to_owned())
    })
    .await;
    silent.dated(&since);

    federation.agent(2).stop(&federation.group).await.unwrap();
    north.mini_clusters().delete("gone", &DeleteParams::default()).await.unwrap();
    // An agent that still saw the Burst would say that it ended. Garbage collection may take longer than the lease.
    let burst = names::burst_object("gone", "gone-burst-0");
    let _ = north.bursts().delete(&burst, &DeleteParams::default()).await;
    eventually("the Burst is gone", async || match north.bursts().get_opt(&burst).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let back = Instant::now();
    federation.agent(2).start(&federation.group).unwrap();
    let ends = async {
        let far = async || north.hosted().get_opt("far-burst-0").await;
        never("the burst of west's root ends before its lease", left_of(seconds(LEASE), &since), async || {
            match far().await.ok()? {
                Some(hosted) => {
                    let status = hosted.status.unwrap_or_default();
                    let dated_anew = status.suspect_since.as_ref() != Some(&since);
                    (dated_anew || status.draining_since.is_some()).then(|| format!("{status:?}"))
                }
                None => Some("it is gone".to_owned()),
            }
        })
        .await;
        let mut draining_since = None;
        eventually("the burst of west's root is gone", async || {
            match far().await.map_err(|error| error.to_string())? {
                Some(hosted) => {
                    let status = hosted.status.unwrap_or_default();
                    draining_since = status.draining_since.clone().or(draining_since.take());
                    Err(format!("{status:?}"))
                }
                None => Ok(()),
            }
        })
        .await;
        // It may drain faster than one looks.
        let Time(ended) = draining_since.unwrap_or(Time(now()));
        let took = Duration::try_from(ended.duration_since(since.0)).unwrap();
        assert!((seconds(LEASE)..=seconds(LEASE + MARGIN)).contains(&took), "it ended after {took:?}");
        north.empty("far-burst-0").await;
    };
    let absent = async {
        let grace_left = seconds(GRACE).saturating_sub(back.elapsed());
        never("an absence counts before the grace period", grace_left, async || {
            let there = east.hosted().get_opt("gone-burst-0").await.ok()?;
            let kept = there.is_some_and(|hosted| hosted.metadata.deletion_timestamp.is_none());
            (!kept).then(|| format!("it is gone after {:?}", back.elapsed()))
        })
        .await;
        east.empty("gone-burst-0").await;
    };
    tokio::join!(ends, absent);
}

async fn restart(federation: &Federation, index: usize) {
    federation.agent(index).stop(&federation.group).await.unwrap();
    federation.agent(index).start(&federation.group).unwrap();
}

async fn hosted(place: &Place, slot: &str) -> HostedBurst {
    place.hosted().get(slot).await.unwrap()
}
