//! An upgrade is nothing: jobs run on, over brokers that connect directly and by the tunnel, while all that is between the
//! clusters is replaced, killed, moved and cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;

use crate::clusters::Cut;
use crate::ground::{clusters, in_lead, real, skip, until_all_answer, until_up};
use crate::release::{FREEZE, Installed, KILL, RELEASE, Releases, to_leader, with_releases};

/// Roots of two brokers, each with a burst of two, and how these reach the lead.
const ROOTS: [(&str, &str); 2] = [("river", "NodePort"), ("canal", "Tunnel")];

/// A minute less than the lease.
const CUT: Duration = Duration::from_secs(240);

/// Each task says every second that it is there, and ends well when it is told to.
const COMMAND: &str = "trap 'echo $FLUX_TASK_RANK ends; exit 0' USR1; \
     for ((n = 0; ; n++)); do echo $FLUX_TASK_RANK at $n; sleep 1; done";

/// Takes the API server away, as its static pod, and gives it back half a minute after it has ended.
const API_SERVER: &str = "cd /etc/kubernetes; mv manifests/kube-apiserver.yaml . || exit; \
     for _ in {1..90}; do pgrep -x kube-apiserver > /dev/null || break; sleep 1; done; sleep 30; \
     mv kube-apiserver.yaml manifests/";

/// Freezes the API server for so long that leadership of the agent is over, or just not, again and again.
const HANGS: &str = "pgrep -x kube-apiserver > /dev/null || { echo no API server runs here; exit; }; \
     for seconds in 4 5 6 7; do pkill -STOP -x kube-apiserver; sleep $seconds; pkill -CONT -x kube-apiserver; sleep 15; done";

/// Asks the brokers of the burst again and again, and notes how long each answer took, in microseconds.
const LISTENER: &str = "while sleep 0.5; do begun=${EPOCHREALTIME/./}; flux exec -r 2-3 true && \
     echo $((${EPOCHREALTIME/./} - begun)); done > /tmp/answers";

#[tokio::test(flavor = "multi_thread")]
async fn jobs_outlast_all_that_happens_to_agents() {
    with_releases("e2e-unbroken", the_scenario).await;
}

async fn the_scenario(releases: &Releases<'_>) {
    if !real("jobs that outlast what happens to agents") {
        return;
    }
    let clusters = clusters().expect("agents were installed").0.as_ref();
    let mut spare = Vec::new();
    for one in &releases.both {
        spare.push(Spare::of(one).await);
    }
    // Brokers keep off the nodes that are drained later: theirs are another case.
    for one in spare.iter().flatten() {
        one.cordon(true).await;
    }
    let begun = Begun::start(releases).await;
    for one in spare.iter().flatten() {
        one.cordon(false).await;
    }

    for one in &releases.both {
        let before: BTreeSet<_> = uids(&one.replicas().await.unwrap());
        one.upgrade("bursting.drainSeconds=3");
        assert!(before.is_disjoint(&uids(&one.replicas().await.unwrap())), "an upgrade replaces every pod");
    }
    begun.goes_on("both releases were upgraded").await;

    for one in &releases.both {
        begun.kubectl(one, &format!("-n {SYSTEM} rollout restart deployment {RELEASE}")).await;
        begun.kubectl(one, &format!("-n {SYSTEM} rollout status deployment {RELEASE} --timeout=180s")).await;
    }
    begun.goes_on("the agents were restarted").await;

    for (line, happened) in [(KILL, "were killed with -9"), (FREEZE, "froze for 20 s")] {
        let mut led = Vec::new();
        for one in &releases.both {
            begun.kubectl(one, &format!("-n {SYSTEM} rollout status deployment {RELEASE} --timeout=180s")).await;
            led.push(one.holder().await.unwrap());
        }
        let both = releases.both.iter().enumerate().map(|(index, one)| to_leader(one, index, line));
        if futures::future::try_join_all(both).await.unwrap() != [true, true] {
            skip(&format!("leaders that {happened}: nobody says how to run something on a node"));
            continue;
        }
        for (one, led) in releases.both.iter().zip(&led) {
            eventually(format!("another process leads on {}", one.access.name), async || {
                let now = one.holder().await?;
                if now == *led { Err(format!("{now} still leads")) } else { one.leader().await.map(drop) }
            })
            .await;
        }
        begun.goes_on(&format!("both leaders {happened}")).await;
    }

    for (one, spare) in releases.both.iter().zip(&spare) {
        let Some(spare) = spare else { continue };
        begun.kubectl(one, &format!("-n {SYSTEM} rollout status deployment {RELEASE} --timeout=180s")).await;
        lead_from(one, &spare.name).await;
        let options = "--ignore-daemonsets --delete-emptydir-data --timeout=180s";
        begun.kubectl(one, &format!("drain {} {options}", spare.name)).await;
    }
    begun.goes_on("the nodes of both leaders were drained").await;
    for one in spare.iter().flatten() {
        one.cordon(false).await;
    }

    let restarts = releases.both.iter().enumerate().map(async |(index, one)| {
        let node = control_plane(one).await?;
        let restart = tokio::task::spawn_blocking(move || clusters.on_node(index, &node, API_SERVER).unwrap());
        Some(restart.await.unwrap())
    });
    if futures::future::join_all(restarts).await.contains(&Some(true)) {
        begun.goes_on("both API servers were away for half a minute").await;
    } else {
        skip("API servers that restart: nobody says how to run something on a node, or they are none of kubeadm's");
    }

    let mut hung = true;
    for (index, one) in releases.both.iter().enumerate() {
        // Where no node is a control plane, it may run beside them.
        let node = match control_plane(one).await {
            Some(node) => node,
            None => {
                Api::<Node>::all(one.client.clone()).list(&ListParams::default()).await.unwrap().items[0].name_any()
            }
        };
        let hangs = tokio::task::spawn_blocking(move || clusters.on_node(index, &node, HANGS).unwrap());
        hung &= hangs.await.unwrap();
    }
    match hung {
        true => drop(begun.goes_on("API servers hung for 4 to 7 s, again and again").await),
        false => skip("API servers that hang: nobody says how to run something on their node"),
    }

    match clusters.network(Cut::Agents).unwrap() {
        Some(network) => {
            network.cut();
            tokio::time::sleep(CUT).await;
            network.heal();
            let slowest = begun.goes_on("the agents were cut from each other for 240 s").await;
            assert!(slowest[1] + Duration::from_secs(20) > CUT, "something passed the cut: {slowest:?}");
        }
        None => skip("agents that are cut from each other: nobody says how the network fails"),
    }

    // One after the other: who has moved still knows where the other one is, so nobody has to tell them.
    for (one, other) in releases.both.iter().zip(releases.both.iter().rev()) {
        let address = another_address(one).await;
        eventually(format!("the agent of {} says that it is at {address}", one.access.name), async || {
            let card = card_of(one).await?;
            if card.endpoints == [&*address] { Ok(()) } else { Err(format!("{:?}", card.endpoints)) }
        })
        .await;
        begun.goes_on(&format!("{} was at another address", one.access.name)).await;
        releases.link().await;
        let peers: Api<ClusterPeer> = Api::namespaced(other.client.clone(), SYSTEM);
        eventually(format!("{} knows the new address of {}", other.access.name, one.access.name), async || {
            let peers = peers.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            // The others stay, since somebody may have written them; this one is tried first.
            let known: Vec<_> = peers.into_iter().map(|peer| peer.spec.endpoints).collect();
            let first: Vec<_> = known.iter().map(|endpoints| endpoints.first()).collect();
            if first == [Some(&address)] { Ok(()) } else { Err(format!("{known:?}")) }
        })
        .await;
    }

    begun.complete().await;
}

/// What runs over both clusters, and what must be the same at the end.
struct Begun<'a> {
    releases: &'a Releases<'a>,
    jobs: Vec<String>,
    brokers: BTreeMap<String, String>,
    since: Instant,
}

impl<'a> Begun<'a> {
    async fn start(releases: &'a Releases<'a>) -> Self {
        let [root, _] = &releases.places;
        for (name, network) in ROOTS {
            let mut spec = releases.ground.bursting(2, json!([{"size": 2, "peer": releases.both[1].access.name}]));
            spec["flux"]["bursting"]["network"] = json!({"type": network});
            root.create(name, spec).await;
        }
        let mut jobs = Vec::new();
        for (name, _) in ROOTS {
            root.burst(name, &format!("{name}-burst-0"), BurstPhase::Ready).await;
            until_up(root, name, "0-3").await;
            let command = COMMAND.replace('\'', "'\\''");
            let job = in_lead(root, name, &format!("flux submit -N4 -n4 bash -c '{command}'")).await.unwrap();
            in_lead(root, name, &format!("flux job wait-event --timeout=60s {} start", job.trim())).await.unwrap();
            jobs.push(job.trim().to_owned());
            in_lead(root, name, &format!("(nohup bash -c '{LISTENER}' > /dev/null 2>&1 &)")).await.unwrap();
        }
        let mut begun = Self { releases, jobs, brokers: BTreeMap::new(), since: Instant::now() };
        begun.brokers = begun.look().await.unwrap();
        for one in &releases.both {
            let ends_in_pods = eventually("the leader says what it relays", async || relayed(one).await).await;
            assert_eq!(ends_in_pods, (1, 0), "on {}: the connection of the tunnel's gateway", one.access.name);
        }
        assert_eq!(begun.brokers.len(), 12, "{:?}", begun.brokers);
        begun
    }

    /// All that is another one when something is started again: pods with their containers, processes of brokers, and
    /// what the bursts are called.
    async fn look(&self) -> Result<BTreeMap<String, String>, String> {
        let mut seen = BTreeMap::new();
        for (name, _) in ROOTS {
            for (place, job) in self.releases.places.iter().zip([name.to_owned(), format!("{name}-burst-0")]) {
                let selector = ListParams::default().labels(&format!("job-name={job}"));
                for pod in place.pods().list(&selector).await.map_err(|error| error.to_string())?.items {
                    let status = pod.status.clone().unwrap_or_default().container_statuses.unwrap_or_default();
                    let restarts: i32 = status.iter().map(|container| container.restart_count).sum();
                    seen.insert(pod.name_any(), format!("{restarts} restarts"));
                }
            }
            let hosted = self.releases.places[1].hosted().get(&format!("{name}-burst-0")).await;
            seen.insert(
                format!("{name}-burst-0"),
                hosted.map_err(|error| error.to_string())?.uid().unwrap_or_default(),
            );
            let started = "timeout -k 1 20 flux exec -r all flux getattr broker.starttime | sort";
            let started = in_lead(&self.releases.places[0], name, started).await?;
            let lost = in_lead(&self.releases.places[0], name, "flux dmesg | grep -c 'transitioning to LOST' || true");
            let started = started.split_whitespace().collect::<Vec<_>>().join(" ");
            seen.insert(name.to_owned(), format!("started at {started}, {} lost", lost.await?.trim()));
        }
        Ok(seen)
    }

    /// Agents work again, every broker answers, and nothing was started again. The slowest answer of each burst meanwhile.
    async fn goes_on(&self, after: &str) -> Vec<Duration> {
        for one in &self.releases.both {
            one.connected(&self.releases.kubeconfig).await;
        }
        let root = &self.releases.places[0];
        let mut slowest = Vec::new();
        for ((name, network), job) in ROOTS.iter().zip(&self.jobs) {
            until_all_answer(root, name, &format!("{after} ({network})")).await;
            // What was asked last may have been answered to nobody yet.
            let line = "sleep 1; sort -n /tmp/answers | tail -n 1; wc -l < /tmp/answers; : > /tmp/answers";
            let answers = in_lead(root, name, line).await.unwrap();
            let answers: Vec<u64> = answers.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let [longest, all] = answers[..] else { panic!("nobody answered {name} while {after}: {answers:?}") };
            let longest = Duration::from_micros(longest);
            slowest.push(longest);
            let told = format!("e2e: {network}: {all} answers of the burst, the slowest took {longest:.1?}: {after}");
            let _ = writeln!(std::io::stderr(), "{told}");
            let state = in_lead(root, name, &format!("flux jobs -no '{{state}}' {job}")).await;
            assert_eq!(state.unwrap().trim(), "RUN", "the job by {network} has ended after {after}");
        }
        let now = eventually("brokers say since when they run", async || self.look().await).await;
        assert_eq!(now, self.brokers, "something was started again after {after}");
        slowest
    }

    /// Both jobs end when they are told to, have run without a gap, and Flux calls them completed.
    async fn complete(self) {
        let [root, provider] = &self.releases.places;
        let ran = self.since.elapsed();
        for ((name, network), job) in ROOTS.iter().zip(&self.jobs) {
            let ask = async |line: String| in_lead(root, name, &line).await.unwrap();
            ask(format!("flux job kill --signal=USR1 {job}")).await;
            let said = ask(format!("timeout 60 flux job attach {job} 2>&1")).await;
            let result = ask(format!("flux jobs -no '{{result}} {{returncode}}' {job}")).await;
            assert_eq!(result.trim(), "COMPLETED 0", "{name} by {network}");
            let mut counts = Vec::new();
            for rank in 0..4 {
                let (at, ends) = (format!("{rank} at "), format!("{rank} ends"));
                let seconds = said.lines().filter_map(|line| line.strip_prefix(&at)?.parse::<usize>().ok());
                let seconds: Vec<_> = seconds.collect();
                assert!(said.lines().any(|line| line == ends), "rank {rank} did not end by itself: {said}");
                assert!(seconds.iter().copied().eq(0..seconds.len()), "rank {rank} has gaps: {seconds:?}");
                // One sleeps a second, and says so between two of them.
                assert!(
                    seconds.len() as u64 > ran.as_secs() / 2,
                    "rank {rank} stood still: {} in {ran:?}",
                    seconds.len()
                );
                counts.push(seconds.len());
            }
            let told =
                format!("e2e: the job by {network} is COMPLETED after {ran:.0?}; its tasks wrote {counts:?} lines");
            let _ = writeln!(std::io::stderr(), "{told}");
        }
        for (name, _) in ROOTS {
            root.delete(name).await;
            provider.empty(&format!("{name}-burst-0")).await;
        }
    }

    async fn kubectl(&self, of: &Installed<'_>, line: &str) {
        let line = format!("kubectl --context {} {line}", of.access.context);
        chart::kubectl(self.releases.directory.path(), &self.releases.kubeconfig, &line).await.unwrap();
    }
}

/// How many connections of brokers the leader relays, and how many end in it.
async fn relayed(one: &Installed<'_>) -> Result<(u32, u32), String> {
    let leader = one.leader().await?.name_any();
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{leader}:8081/proxy/metrics");
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    let text = one.client.request_text(request).await.map_err(|error| error.to_string())?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let both = value("tributary_tunnel_relayed ").zip(value("tributary_tunnel_connections "));
    both.ok_or_else(|| format!("{leader} does not say it: {text}"))
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}

/// A node that pods may be placed on, beside another one.
struct Spare {
    nodes: Api<Node>,
    name: String,
}

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

impl Spare {
    async fn of(one: &Installed<'_>) -> Option<Self> {
        let nodes = Api::<Node>::all(one.client.clone());
        let mut open = nodes.list(&ListParams::default()).await.unwrap().items;
        open.retain(|node| {
            let spec = node.spec.clone().unwrap_or_default();
            let taints = spec.taints.unwrap_or_default();
            spec.unschedulable != Some(true) && taints.iter().all(|taint| taint.effect == "PreferNoSchedule")
        });
        // Brokers on a worker, as usual.
        open.sort_by_key(|node| !node.labels().contains_key(CONTROL_PLANE));
        if open.len() < 2 {
            skip(&format!("a node of {} that is drained: it has no two that take pods", one.access.name));
            return None;
        }
        Some(Self { nodes, name: open[0].name_any() })
    }

    async fn cordon(&self, cordoned: bool) {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
        self.nodes.patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Ends leaders until the one of this node leads.
async fn lead_from(one: &Installed<'_>, node: &str) {
    let pods: Api<Pod> = Api::namespaced(one.client.clone(), SYSTEM);
    eventually(format!("an agent on {node} leads"), async || {
        let leader = one.leader().await?;
        if leader.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) {
            return Ok(());
        }
        let ready = one.replicas().await?.iter().filter(|pod| is_ready(pod)).count();
        if ready >= 2 {
            pods.delete(&leader.name_any(), &Default::default()).await.map_err(|error| error.to_string())?;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        Err(format!("{} leads", leader.name_any()))
    })
    .await;
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// The node with the API server.
async fn control_plane(one: &Installed<'_>) -> Option<String> {
    let nodes = Api::<Node>::all(one.client.clone());
    let nodes = nodes.list(&ListParams::default().labels(CONTROL_PLANE)).await.unwrap().items;
    Some(nodes.first()?.name_any())
}

async fn card_of(one: &Installed<'_>) -> Result<ClusterCard, String> {
    let maps = Api::namespaced(one.client.clone(), SYSTEM);
    let card = maps.get(cluster_card::NAME).await.map_err(|error| error.to_string())?;
    ClusterCard::read(&card).map_err(|error| error.to_string())
}

/// Gives the agents' Service another node port, lets them be reached at the last node alone, and says where that is.
async fn another_address(one: &Installed<'_>) -> String {
    let services: Api<Service> = Api::namespaced(one.client.clone(), SYSTEM);
    let service = services.get(&format!("{RELEASE}-federation")).await.unwrap();
    let ports = service.spec.unwrap_or_default().ports.unwrap_or_default();
    let before = ports.iter().find(|port| port.name.as_deref() == Some("federation")).unwrap().node_port.unwrap();
    let port = if before == 30_946 { 30_947 } else { 30_946 };
    let nodes = Api::<Node>::all(one.client.clone()).list(&ListParams::default()).await.unwrap().items;
    let status = nodes.last().and_then(|node| node.status.clone()).unwrap();
    let host = status.addresses.unwrap().into_iter().find(|address| address.type_ == "InternalIP").unwrap().address;
    let address = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    one.upgrade(&format!("federation.service.nodePort={port},federation.advertise={{{address}}}"));
    address
}
