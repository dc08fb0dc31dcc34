//! What happens to bursts while clusters do not hear each other, on short leases.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::Instant;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary_tests::eventually::{eventually, never};
use tributary_tests::federation::Federation;
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{DRAIN, GRACE, LEASE, places, quiet};

/// What a root waits beyond lease and drain, and what a provider may take to remove everything.
const MARGIN: u64 = 10;

/// Between two heartbeats: a loss is dated by the last word.
const HEARTBEAT: u64 = 2;

/// When west fell silent: between these two moments.
struct Silence {
    before: Instant,
    after: Instant,
}

impl Silence {
    /// What is left of `time` if it began as early as it can have begun.
    fn left_of(&self, time: Duration) -> Duration {
        time.saturating_sub(self.before.elapsed()).saturating_sub(seconds(HEARTBEAT))
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Each cluster has a root with a burst on another: east on west, west on north, north on east. Then west falls silent.
#[tokio::test(flavor = "multi_thread")]
async fn leases_are_kept_to_the_second_on_both_sides() {
    let federation = quiet().await;
    let [east, west, north] = places(&federation, "leases").await;
    let onto = |peers: &[&str]| bursting(1, json!([{"size": 1, "peers": peers}]));
    east.create("near", onto(&["west", "north"])).await;
    west.create("far", onto(&["north"])).await;
    north.create("gone", onto(&["east"])).await;
    for (place, root) in [(&east, "near"), (&west, "far"), (&north, "gone")] {
        let burst = place.burst(root, &format!("{root}-burst-0"), BurstPhase::Ready).await;
        assert_eq!((burst.spec.lease_seconds, burst.spec.drain_seconds), (15, 2), "the configuration arrives");
    }
    let near = hosted(&west, "near-burst-0").await.uid();
    let far = hosted(&north, "far-burst-0").await.uid();

    // A restart is a blip: nobody is evicted.
    restart(&federation, 1).await;
    federation.connected().await;
    east.burst("near", "near-burst-0", BurstPhase::Ready).await;
    west.burst("far", "far-burst-0", BurstPhase::Ready).await;
    assert_eq!((hosted(&west, "near-burst-0").await.uid(), hosted(&north, "far-burst-0").await.uid()), (near, far));

    let before = Instant::now();
    federation.agent(1).stop(&federation.group).await.unwrap();
    let silent = Silence { before, after: Instant::now() };
    tokio::join!(reserved(&east, &north, &silent), dated_and_drained(&federation, &north, &east, &silent));

    // West returns: what was placed elsewhere goes there, and its own root gets its burst back.
    federation.agent(1).start(&federation.group).unwrap();
    west.empty("near-burst-0").await;
    west.burst("far", "far-burst-0", BurstPhase::Ready).await;
    east.burst("near", "near-burst-0", BurstPhase::Ready).await;
    for (place, root) in [(&east, "near"), (&west, "far")] {
        place.mini_clusters().delete(root, &DeleteParams::default()).await.unwrap();
    }
    north.empty("near-burst-0").await;
    north.empty("far-burst-0").await;
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
    never("the slot is placed on north before west's lease is over", silent.left_of(hold), async || {
        let elsewhere = north.hosted().get_opt("near-burst-0").await.unwrap();
        elsewhere.map(|hosted| format!("{:?} after {:?}", hosted.status, silent.before.elapsed()))
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

    federation.agent(2).stop(&federation.group).await.unwrap();
    north.mini_clusters().delete("gone", &DeleteParams::default()).await.unwrap();
    // An agent that still saw the Burst would say that it ended.
    eventually("the Burst is collected", async || match north.burst_now("gone", "gone-burst-0").await {
        Ok(_) => Err("it is there"),
        Err(_) => Ok(()),
    })
    .await;
    let back = Instant::now();
    federation.agent(2).start(&federation.group).unwrap();
    let ends = async {
        never("the burst of west's root ends before its lease", silent.left_of(seconds(LEASE)), async || {
            match north.hosted().get_opt("far-burst-0").await.unwrap() {
                Some(hosted) => {
                    let status = hosted.status.unwrap_or_default();
                    let dated_anew = status.suspect_since.as_ref() != Some(&since);
                    (dated_anew || status.draining_since.is_some()).then(|| format!("{status:?}"))
                }
                None => Some("it is gone".to_owned()),
            }
        })
        .await;
        north.empty("far-burst-0").await;
        let took = silent.after.elapsed();
        assert!(took <= seconds(LEASE + MARGIN), "it was gone after {took:?}");
    };
    let absent = async {
        let grace_left = seconds(GRACE).saturating_sub(back.elapsed());
        never("an absence counts before the grace period", grace_left, async || {
            let there = east.hosted().get_opt("gone-burst-0").await.unwrap();
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
