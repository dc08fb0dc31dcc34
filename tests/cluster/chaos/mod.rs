//! Chaos on real control planes: three clusters with two agents each. Users and owners change everything by a seed,
//! while agents are killed and frozen, leaders moved, API servers stopped, ways between agents cut, certificates and
//! authorities replaced, and ClusterPeers removed and made again.
//!
//! All the time, no broker runs twice, no secret key is anywhere but in Secrets, and nobody but users and owners changes
//! or removes what is theirs. In the end faults are over: everything becomes what its user asked for, and once all is
//! deleted, nothing of it is left.
//!
//! | file | what it does |
//! |---|---|
//! | [`driver`] | users, owners and faults |
//! | [`eyes`] | watches of all kinds, and lists of the pods |
//! | [`ground`] | the clusters, their agents, and the ways between them |
//! | [`oracle`] | the rules, as functions of what is seen; `oracle_tests` breaks each |
//! | [`rest`] | what is not as it should be once faults are over |
//!
//! | variable | what it says |
//! |---|---|
//! | `CHAOS_SEED=n` | what happens, and when |
//! | `CHAOS_SECONDS=n` | for how long |

mod driver;
pub(crate) mod eyes;
mod ground;
pub(crate) mod oracle;
mod oracle_tests;
mod rest;

use std::env;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use driver::Driver;
use eyes::{Eyes, Story};
use ground::Ground;

use crate::shared::turn;

const CLUSTERS: [&str; 3] = ["east", "west", "north"];
const NAMESPACE: &str = "chaos";

/// MiniClusters that each cluster may have; the last one's bursts reach their lead by the tunnel.
const ROOTS: [&str; 3] = ["lake", "pond", "moss"];

/// FluxJobs that each cluster may have, in a namespace with a quota.
const JOBS: [&str; 2] = ["net", "weir"];
const QUEUE: &str = "chaos-queue";

/// How long anything may take once faults are over: peers that were lost often get nothing new for minutes.
const PATIENCE: Duration = Duration::from_secs(6 * 60);

/// Seed and seconds, if nothing else is said.
const SEED: u64 = 1;
const SECONDS: u64 = 100;

/// Whether the brokers of a root, or of a slot, reach their lead by the tunnel.
fn is_by_tunnel(name: &str) -> bool {
    name.starts_with(ROOTS[2])
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn three_clusters_come_through_everything_at_once() {
    let seed = number("CHAOS_SEED").unwrap_or(SEED);
    let time = Duration::from_secs(number("CHAOS_SECONDS").unwrap_or(SECONDS));
    let _turn = turn().await;
    let ground = Arc::new(Ground::lay().await);
    let story = Arc::new(Story::begin());
    let clients: Vec<_> = ground.sites.iter().map(|site| site.client().clone()).collect();
    let (eyes, _watches) = Eyes::open(&story, &clients);
    let mut driver = Driver::new(&ground, &eyes, &story, seed);
    let mut result = live(&ground, &eyes, &story, &mut driver, time).await;
    if let Some(broken) = story.broken() {
        result = Err(broken);
    }
    if let Err(why) = result {
        let logs: Vec<_> =
            ground.sites.iter().flat_map(|site| site.agents.each_ref().map(|agent| agent.log_path())).collect();
        panic!("CHAOS_SEED={seed} CHAOS_SECONDS={}: {why}\n{}\nlogs: {logs:?}", time.as_secs(), story.told());
    }
    // Past the capture of the tests' output.
    let _ = writeln!(
        std::io::stderr(),
        "chaos, seed {seed}: {} events in {} s: {:?}; {:?}; linked again: {}; all over after {:.0?}",
        driver.counts.values().sum::<usize>(),
        time.as_secs(),
        driver.counts,
        eyes.figures(),
        story.told().matches("is linked again").count(),
        story.now(),
    );
}

async fn live(
    ground: &Arc<Ground>,
    eyes: &Arc<Eyes>,
    story: &Arc<Story>,
    driver: &mut Driver,
    time: Duration,
) -> Result<(), String> {
    until(story, "all are connected", async || ground.apart().await).await?;
    driver.run(time).await?;
    driver.end_all().await?;
    let mut tries = 0_u64;
    until(story, "all is as its users want it", async || {
        tries += 1;
        if tries.is_multiple_of(5) {
            rest::retry(ground, tries).await;
            rest::link_again(ground, story).await;
        }
        rest::end_jobs(ground).await;
        rest::troubles(ground, &driver.wanted).await
    })
    .await?;
    driver.delete_all().await;
    until(story, "nothing is left", async || rest::left(ground).await).await?;
    rest::nothing_leaked(ground, eyes).await
}

/// Looks again and again until nothing is told.
async fn until(story: &Story, what: &str, mut look: impl AsyncFnMut() -> Vec<String>) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let told = look().await;
        if let Some(broken) = story.broken() {
            return Err(broken);
        }
        if told.is_empty() {
            story.say(what);
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("waited {PATIENCE:?} until {what}: {}", told.join("\n")));
        }
        sleep(Duration::from_secs(1)).await;
    }
}
