//! Jobs of real Flux over two clusters, through node ports and through the tunnel, while agents, pods and nodes of the burst, and
//! the way between the clusters come and go by a seed. A job may only be lost for a reason that Flux has, too: one of its own
//! brokers was taken away.
//!
//! | variable | what it says |
//! |---|---|
//! | `CHAOS_SEED=n` | what happens, and when |
//! | `CHAOS_MINUTES=n` | for how long |

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tributary::api::hosted_burst::BurstPhase;
use tributary::clock::{Rng as _, SeededRng};
use tributary::flux::Idset;
use tributary_tests::chart;
use tributary_tests::federation::SYSTEM;

use crate::clusters::{Cut, Network};
use crate::ground::{clusters, in_lead, in_pod, pod, real, skip, until_all_answer, until_up};
use crate::release::{FREEZE, KILL, RELEASE, Releases, to_leader, with_releases};

/// Roots of two brokers, each with a burst of two, and how these reach the lead.
const ROOTS: [(&str, &str); 2] = [("delta", "NodePort"), ("canal", "Tunnel")];

/// Brokers of each root and of its burst, one after the other in the order of their ranks.
const BROKERS: u32 = 4;

/// Jobs of one root that wait or run at the same time.
const JOBS: usize = 5;

/// The longest cut: far less than the lease.
const LONGEST_CUT: u64 = 90;

/// How long after a broker went its jobs may still end of it.
const ECHO: f64 = 60.0;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour, and clusters with real pods"]
async fn jobs_are_lost_only_with_their_own_brokers() {
    with_releases("e2e-chaos", the_scenario).await;
}

async fn the_scenario(releases: &Releases<'_>) {
    if !real("jobs under chaos") {
        return;
    }
    let [root, provider] = &releases.places;
    let network = clusters().and_then(|(clusters, _)| clusters.network(Cut::All).unwrap());
    if network.is_none() {
        skip("cuts between the clusters: nobody says how the network fails");
    }
    for (name, network) in ROOTS {
        let mut spec = releases.ground.bursting(2, json!([{"size": 2, "peer": releases.both[1].access.name}]));
        spec["flux"]["bursting"]["network"] = json!({"type": network});
        root.create(name, spec).await;
    }
    for (name, _) in ROOTS {
        root.burst(name, &format!("{name}-burst-0"), BurstPhase::Ready).await;
        until_up(root, name, "0-3").await;
    }

    let (seed, minutes) = (number("CHAOS_SEED").unwrap_or(1), number("CHAOS_MINUTES").unwrap_or(30));
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let chaos = Chaos { releases, network, events: Mutex::default() };
    let mut rng = SeededRng::new(seed);
    let mut of_jobs = SeededRng::new(rng.next_u64());
    tokio::join!(
        async {
            while Instant::now() < end {
                for (name, _) in ROOTS {
                    chaos.submit(name, &mut of_jobs).await;
                }
                sleep(Duration::from_secs(2)).await;
            }
        },
        async {
            while Instant::now() < end {
                sleep(Duration::from_secs(5 + below(&mut rng, 20))).await;
                chaos.happens(&mut rng).await;
            }
        },
    );

    for one in &releases.both {
        one.connected(&releases.kubeconfig).await;
    }
    let mut unexplained = Vec::new();
    // After some pods, Kubernetes waits up to ten minutes before it makes the next one.
    let patience = Instant::now() + Duration::from_secs(660);
    for (name, network) in ROOTS {
        while Instant::now() < patience && !chaos.is_whole(name).await {
            sleep(Duration::from_secs(2)).await;
        }
        root.burst(name, &format!("{name}-burst-0"), BurstPhase::Ready).await;
        until_up(root, name, "0-3").await;
        until_all_answer(root, name, "all that").await;
        in_lead(root, name, "flux queue drain --timeout=180s").await.expect("no job hangs");
        unexplained.extend(chaos.account(name, network).await);
        in_lead(root, name, "flux run -N4 hostname").await.unwrap();
    }
    assert!(unexplained.is_empty(), "jobs were lost, and all their brokers were there:\n{}", unexplained.join("\n"));
    for (name, _) in ROOTS {
        root.delete(name).await;
        provider.empty(&format!("{name}-burst-0")).await;
    }
}

struct Chaos<'a> {
    releases: &'a Releases<'a>,
    network: Option<Network>,
    events: Mutex<Vec<Event>>,
}

/// Something that happened.
struct Event {
    /// Seconds since 1970.
    began: f64,
    ended: f64,
    what: String,
    /// Brokers that it took, or their way to the lead: root and rank.
    took: BTreeSet<(&'static str, u32)>,
}

impl Chaos<'_> {
    /// Another job, unless there are enough.
    async fn submit(&self, root: &str, rng: &mut SeededRng) {
        let (nodes, seconds) = (1 + below(rng, BROKERS.into()), 1 + below(rng, 40));
        let line = format!(
            "if [ $(flux jobs -no '{{id}}' | wc -l) -lt {JOBS} ]; then \
             flux submit -N{nodes} -n{nodes} -o exit-timeout=none --job-name=of-{seconds}-s sleep {seconds}; fi"
        );
        if let Err(error) = in_lead(&self.releases.places[0], root, &line).await {
            tell(&format!("no job was submitted to {root}: {error}"));
        }
    }

    async fn happens(&self, rng: &mut SeededRng) {
        let [_, provider] = &self.releases.places;
        let site = below(rng, 2) as usize;
        let (one, name) = (&self.releases.both[site], &self.releases.both[site].access.name);
        let (root, index) = (ROOTS[below(rng, 2) as usize].0, below(rng, 2));
        let rank = 2 + u32::try_from(index).unwrap();
        let (began, mut took) = (now(), BTreeSet::new());
        let what = match below(rng, 8) {
            0 => {
                let (line, what) = [(KILL, "was killed"), (FREEZE, "froze for 20 s")][below(rng, 2) as usize];
                if to_leader(one, site, line).await != Ok(true) {
                    return;
                }
                format!("the leader on {name} {what}")
            }
            1 => {
                let Ok(leader) = one.leader().await else { return };
                let pods: Api<Pod> = Api::namespaced(one.client.clone(), SYSTEM);
                let _ = pods.delete(&leader.name_any(), &DeleteParams::default()).await;
                format!("the leader's pod on {name} was deleted")
            }
            2 => {
                let line = format!(
                    "kubectl --context {} -n {SYSTEM} rollout restart deployment {RELEASE}",
                    one.access.context
                );
                self.kubectl(&line).await;
                format!("the agents on {name} were restarted")
            }
            3 | 4 => {
                let Some(network) = &self.network else { return };
                let seconds = 3 + below(rng, LONGEST_CUT - 2);
                network.cut();
                sleep(Duration::from_secs(seconds)).await;
                network.heal();
                format!("the clusters were cut from each other for {seconds} s")
            }
            5 => {
                let slot = format!("{root}-burst-0");
                if !self.is_whole(root).await {
                    return;
                }
                let Ok(pod) = pod(provider, &slot, u32::try_from(index).unwrap()).await else { return };
                let now = DeleteParams::default().grace_period(0);
                let parameters = if below(rng, 2) == 0 { now } else { DeleteParams::default() };
                let _ = provider.pods().delete(&pod.name_any(), &parameters).await;
                took.insert((root, rank));
                // Of a gateway, others lose their way.
                if index == 0 {
                    took.insert((root, rank + 1));
                }
                format!("pod {index} of {slot} was deleted")
            }
            6 => {
                if !self.is_whole(ROOTS[0].0).await || !self.is_whole(ROOTS[1].0).await {
                    return;
                }
                let Some(node) = self.node_of(&format!("{root}-burst-0"), index).await else { return };
                for (root, _) in ROOTS {
                    for index in 0..2 {
                        if self.node_of(&format!("{root}-burst-0"), index.into()).await.as_deref() == Some(&*node) {
                            took.extend([(root, 2 + index), (root, if index == 0 { 3 } else { 2 })]);
                        }
                    }
                }
                let context = &self.releases.both[1].access.context;
                let options = "--ignore-daemonsets --delete-emptydir-data --timeout=60s";
                self.kubectl(&format!("kubectl --context {context} drain {node} {options}")).await;
                sleep(Duration::from_secs(10)).await;
                self.kubectl(&format!("kubectl --context {context} uncordon {node}")).await;
                format!("node {node} was drained")
            }
            _ => {
                // The one root whose brokers come by the tunnel.
                let (root, _) = ROOTS[1];
                let (place, of) = match site {
                    0 => (&self.releases.places[0], root.to_owned()),
                    _ => (provider, format!("{root}-burst-0")),
                };
                let line = "for one in /proc/[0-9]*; do if grep -qs tributary-ends $one/cmdline; then \
                            kill -9 ${one#/proc/}; fi; done; true";
                let Ok(pod) = pod(place, &of, 0).await else { return };
                let _ = in_pod(place, &pod.name_any(), &of, line).await;
                took.extend([(root, 2), (root, 3)]);
                format!("the ends of the tunnel in {of} were killed")
            }
        };
        tell(&what);
        self.events.lock().unwrap().push(Event { began, ended: now(), what, took });
    }

    /// Kubernetes takes its time to make pods anew: nothing more is taken meanwhile.
    async fn is_whole(&self, root: &str) -> bool {
        let burst = self.releases.places[0].burst_now(root, &format!("{root}-burst-0")).await;
        burst.is_ok_and(|burst| burst.status.is_some_and(|status| status.phase == BurstPhase::Ready))
    }

    async fn node_of(&self, slot: &str, index: u64) -> Option<String> {
        pod(&self.releases.places[1], slot, u32::try_from(index).ok()?).await.ok()?.spec?.node_name
    }

    /// What fails is told, and goes on: a node may have nothing that can be moved in time.
    async fn kubectl(&self, line: &str) {
        if let Err(error) = chart::kubectl(self.releases.directory.path(), &self.releases.kubeconfig, line).await {
            tell(&format!("{line}: {error:#}"));
        }
    }

    /// Tells what became of all jobs of a root, and returns those that were lost for no reason.
    async fn account(&self, root: &'static str, network: &str) -> Vec<String> {
        let format = "{id.f58}|{result}|{ranks}|{t_run}|{t_inactive}|{name}|{exception.note}";
        let all =
            in_lead(&self.releases.places[0], root, &format!("flux jobs -a --count=0 -no '{format}'")).await.unwrap();
        let events = self.events.lock().unwrap();
        let (mut ends, mut unexplained) = (BTreeMap::<String, usize>::new(), Vec::new());
        for line in all.lines() {
            let [id, result, ranks, began, ended, name, note] = line.splitn(7, '|').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            if result == "COMPLETED" {
                *ends.entry(result.to_owned()).or_default() += 1;
                continue;
            }
            let ranks = ranks.parse::<Idset>().unwrap_or_default();
            let seconds = |text: &str| text.parse::<f64>().unwrap_or_default();
            let why = events.iter().find(|event| {
                let meanwhile = seconds(began) < event.ended + ECHO && seconds(ended) > event.began;
                meanwhile && event.took.iter().any(|(of, rank)| *of == root && ranks.contains(*rank))
            });
            let why = match why {
                Some(event) => {
                    event.what.split(' ').filter(|word| word.parse::<u32>().is_err()).collect::<Vec<_>>().join(" ")
                }
                None => {
                    unexplained.push(format!("{root} {id} {name} on {ranks}, {began} to {ended}: {result} {note}"));
                    "nobody knows why".to_owned()
                }
            };
            *ends.entry(format!("{result}: {why}")).or_default() += 1;
        }
        let counts = ends.iter().map(|(end, count)| format!("{count} {end}")).collect::<Vec<_>>().join("; ");
        tell(&format!("{} jobs by {network} ({} events for both roots): {counts}", all.lines().count(), events.len()));
        unexplained
    }
}

fn below(rng: &mut SeededRng, bound: u64) -> u64 {
    rng.next_u64() % bound
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

#[allow(clippy::disallowed_methods, reason = "Flux tells the time of this machine, too")]
fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}

fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "e2e: {what}");
}
