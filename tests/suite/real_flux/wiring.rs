//! One instance of three slots, each in a cluster of its own, from the files that `tributary::flux` makes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use tributary::clock::SystemRng;
use tributary::flux::{
    BrokerConfig, BrokerNetwork, BrokerPaths, Certificate, CertificateMetadata, RankMap, ResourceSet, Side, Slot,
    Topology,
};

use super::install::Install;
use super::pod::{Pod, PodSpec};
use super::world::{PORT, Relay, World};

const NAMESPACE: &str = "rivers";
const HEADLESS: &str = "flux-service";
const DOMAIN: &str = "cluster.local";
pub(super) const LOCAL_URI: &str = "local:///mnt/flux/run/local";
const ROOT: &str = "lake";

fn rank_map(topology: &Topology) -> RankMap {
    let parent = || topology.parent_of_bursts(ROOT);
    RankMap::new(vec![
        Slot::root(ROOT, 2).with_resources(2, 0),
        Slot::burst("lake-burst-0", 3, parent()).with_resources(8, 1).with_property("cluster-west"),
        Slot::burst("delta", 2, parent()).with_resources(1, 4),
    ])
    .unwrap()
}

pub(super) fn certificate() -> Certificate {
    let metadata = CertificateMetadata {
        name: ROOT.to_owned(),
        hostname: format!("{ROOT}-0"),
        created: "2026-01-02T03:04:05Z".parse().unwrap(),
    };
    Certificate::generate(&mut SystemRng, &metadata).unwrap()
}

/// The world with one cluster per slot; `None` where there is no Flux.
pub(super) fn world() -> Option<World> {
    let install = Install::find().unwrap()?;
    Some(World::start(install, &[ROOT, "lake-burst-0", "delta"]).unwrap())
}

/// What all sides share.
pub(super) struct Instance<'w> {
    world: &'w World,
    pub(super) map: RankMap,
    topology: Topology,
    pub(super) certificate: Certificate,
}

impl<'w> Instance<'w> {
    pub(super) fn new(world: &'w World, topology: Topology) -> Self {
        Self { world, map: rank_map(&topology), topology, certificate: certificate() }
    }

    /// The same instance as one of its brokers sees it that believes in another topology.
    pub(super) fn like(other: &Self, topology: Topology) -> Self {
        Self { certificate: other.certificate.clone(), ..Self::new(other.world, topology) }
    }

    /// Starts the broker of a slot's host with the files of its side.
    pub(super) fn start(&self, slot: &str, index: u32) -> Result<Pod<'w>> {
        let host = self.map.slot(slot).unwrap().host(index);
        let headless = format!("{HEADLESS}.{NAMESPACE}.svc.{DOMAIN}");
        let attributes = [
            "rundir=/mnt/flux/run",
            &format!("local-uri={LOCAL_URI}"),
            "broker.rc2_none",
            &format!("broker.quorum={}", self.map.root().max_size),
            "tbon.zmqdebug=1",
            "log-stderr-level=7",
            "log-stderr-mode=local",
        ]
        .map(|attribute| format!("-S{attribute}"));
        let mut command = ["flux", "broker", "--config-path=/etc/flux/broker.toml"].map(str::to_owned).to_vec();
        command.extend(attributes);
        self.world.start_pod(&PodSpec {
            cluster: slot.to_owned(),
            fqdn: format!("{host}.{headless}"),
            mounts: self.files(slot, &host)?,
            environment: BTreeMap::new(),
            command,
            host,
        })
    }

    fn files(&self, slot: &str, host: &str) -> Result<Vec<(PathBuf, String)>> {
        // A successor has nothing of the pod before, which may still be there.
        static PODS: AtomicU32 = AtomicU32::new(0);
        let folder = self.world.folder(&format!("{host}.{}.files", PODS.fetch_add(1, Ordering::Relaxed)))?;
        let files = [
            ("broker.toml", self.broker_toml(slot), "/etc/flux/broker.toml"),
            ("R", ResourceSet::new(&self.map).to_json(), "/mnt/flux/R"),
            ("curve.cert", self.certificate.expose().to_owned(), "/mnt/flux/curve.cert"),
        ];
        std::fs::create_dir_all(folder.join("run"))?;
        let mut mounts = vec![(folder.join("run"), "/mnt/flux/run".to_owned())];
        for (name, text, target) in files {
            let file = folder.join(name);
            std::fs::write(&file, text)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
            mounts.push((file, target.to_owned()));
        }
        Ok(mounts)
    }

    fn broker_toml(&self, slot: &str) -> String {
        let config = BrokerConfig {
            side: if slot == ROOT { Side::Root } else { Side::burst(&lead_service(slot), PORT) },
            paths: BrokerPaths { resource: "/mnt/flux/R".to_owned(), curve_cert: "/mnt/flux/curve.cert".to_owned() },
            network: BrokerNetwork {
                interface: "eth0".to_owned(),
                port: PORT,
                headless: HEADLESS.to_owned(),
                namespace: NAMESPACE.to_owned(),
                cluster_domain: DOMAIN.to_owned(),
            },
            topology: self.topology.clone(),
            queue_policy: "fcfs".to_owned(),
            silence: None,
        };
        config.to_toml(&self.map)
    }

    /// The root's brokers; returns when rank 0 runs.
    pub(super) fn start_root(&self) -> Result<(Pod<'w>, Pod<'w>)> {
        let lead = self.start(ROOT, 0)?;
        let follower = self.start(ROOT, 1)?;
        wait_for_run(&lead)?;
        Ok((lead, follower))
    }

    /// A slot's brokers and the way to the lead: the Service without a selector, and the NodePort behind it.
    pub(super) fn start_burst(&self, slot: &str, lead: &Pod<'_>) -> Result<(Relay, Vec<Pod<'w>>)> {
        self.start_burst_by(slot, lead, World::relay)
    }

    /// The same, with another way behind the Service.
    pub(super) fn start_burst_by(
        &self,
        slot: &str,
        lead: &Pod<'_>,
        way: impl FnOnce(&World, &str, IpAddr) -> Result<Relay>,
    ) -> Result<(Relay, Vec<Pod<'w>>)> {
        let relay = way(self.world, slot, lead.address)?;
        self.world.publish(slot, &lead_service(slot), self.world.router(slot))?;
        let size = self.map.slot(slot).unwrap().max_size;
        Ok((relay, (0..size).map(|index| self.start(slot, index)).collect::<Result<_>>()?))
    }
}

/// An instance whose brokers have all joined, with a job that runs on the second burst.
pub(super) struct Whole<'i, 'w> {
    instance: &'i Instance<'w>,
    pub(super) lead: Pod<'w>,
    /// The way of the first burst to the lead.
    pub(super) relay: Relay,
    /// The first burst.
    pub(super) burst: Vec<Pod<'w>>,
    job: String,
    _others: (Pod<'w>, Relay, Vec<Pod<'w>>),
}

impl<'w> Instance<'w> {
    pub(super) fn start_whole(&self) -> Result<Whole<'_, 'w>> {
        let (lead, follower) = self.start_root()?;
        let (relay, burst) = self.start_burst("lake-burst-0", &lead)?;
        let (relay_of_delta, delta) = self.start_burst("delta", &lead)?;
        wait_for_all(&lead)?;
        let job = flux(&lead, ["submit", "-N2", "--requires=burst-delta", "sleep", "inf"])?;
        Ok(Whole { instance: self, lead, relay, burst, job, _others: (follower, relay_of_delta, delta) })
    }
}

impl<'w> Whole<'_, 'w> {
    /// Starts a broker of the first burst again, as its Job does: the pod before, which may still be there.
    pub(super) fn start_again(&mut self, index: usize) -> Result<Pod<'w>> {
        let next = self.instance.start("lake-burst-0", u32::try_from(index)?)?;
        Ok(std::mem::replace(&mut self.burst[index], next))
    }

    /// Waits until these brokers have lost their gateway, which is not the kind of end that completes an index; each is
    /// started again, as its script does.
    pub(super) fn outlive_gateway(&mut self, indices: impl IntoIterator<Item = usize>) -> Result<()> {
        for index in indices {
            let code = self.burst[index].wait()?.code();
            ensure!(code == Some(1), "broker {index} ended with {code:?}");
            self.start_again(index)?;
        }
        Ok(())
    }

    /// Fails unless the first burst runs jobs on this many brokers, and nothing happened to the job elsewhere.
    pub(super) fn runs_on(&self, brokers: u32) -> Result<()> {
        let hosts = hosts_of_job(&self.lead, brokers, "burst-lake-burst-0")?;
        ensure!(hosts.len() == brokers as usize, "{hosts:?}");
        let state = flux(&self.lead, ["jobs", "-no", "{state}", &self.job])?;
        ensure!(state == "RUN", "the job elsewhere: {state}");
        Ok(())
    }
}

fn lead_service(slot: &str) -> String {
    format!("{slot}-lead.{NAMESPACE}.svc.{DOMAIN}")
}

pub(super) fn flux<const N: usize>(pod: &Pod<'_>, arguments: [&str; N]) -> Result<String> {
    let script = r#"export FLUX_URI="$1"; shift; exec flux "$@""#;
    let mut command = vec!["bash", "-c", script, "flux", LOCAL_URI];
    command.extend(arguments);
    pod.exec(&command)
}

/// Waits until this broker is in state `run`: quorum was reached, and it has joined.
fn wait_for_run(pod: &Pod<'_>) -> Result<()> {
    let script = r#"until [ -S "${FLUX_URI#local://}" ]; do sleep 0.05; done
        exec flux python -c 'import flux; flux.Flux().rpc("state-machine.wait").get()'"#;
    pod.exec(&["env", &format!("FLUX_URI={LOCAL_URI}"), "bash", "-c", script])?;
    let uptime = flux(pod, ["uptime"])?;
    ensure!(uptime.contains(" run "), "flux uptime says {uptime:?}");
    Ok(())
}

pub(super) fn wait_for_all(lead: &Pod<'_>) -> Result<()> {
    wait_for_overlay(lead, "--wait=full")
}

pub(super) fn wait_for_overlay(lead: &Pod<'_>, state: &str) -> Result<()> {
    flux(lead, ["overlay", "status", state, "--timeout=60s", "--summary"]).map(drop)
}

/// Hosts that a job got, in the order of ranks.
pub(super) fn hosts_of_job(lead: &Pod<'_>, nodes: u32, requires: &str) -> Result<Vec<String>> {
    let nodes = format!("-N{nodes}");
    let requires = format!("--requires={requires}");
    let mut hosts: Vec<_> = flux(lead, ["run", &nodes, &requires, "hostname"])?.lines().map(str::to_owned).collect();
    hosts.sort();
    Ok(hosts)
}

/// `flux overlay status` without the drawing: rank, host and state of every broker.
pub(super) fn brokers(lead: &Pod<'_>) -> Result<Vec<String>> {
    Ok(flux(lead, ["overlay", "status", "--no-pretty"])?.lines().map(str::to_owned).collect())
}

/// What rank 0 counts as resources in this state: nodes, cores, GPUs, hosts and properties.
fn resources(lead: &Pod<'_>, state: &str) -> Result<Vec<String>> {
    let format = "{nnodes} {ncores} {ngpus} {nodelist} {properties}";
    let state = format!("--states={state}");
    Ok(flux(lead, ["resource", "list", "--no-header", &state, "-o", format])?.lines().map(str::to_owned).collect())
}

#[test]
fn bursts_that_start_later_join_the_running_instance() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    // Quorum is the root's own size: it runs although five of the seven brokers do not exist.
    let (lead, _follower) = instance.start_root().unwrap();
    assert_eq!(
        brokers(&lead).unwrap(),
        [
            "0 lake-0: partial",
            "1 lake-1: full",
            "2 lake-burst-0-0: offline",
            "3 lake-burst-0-1: offline",
            "4 lake-burst-0-2: offline",
            "5 delta-0: offline",
            "6 delta-1: offline"
        ]
    );
    assert_eq!(hosts_of_job(&lead, 2, "rank:0-1").unwrap(), ["lake-0", "lake-1"]);

    let (mut relay_0, _burst_0) = instance.start_burst("lake-burst-0", &lead).unwrap();
    let (mut relay_1, _burst_1) = instance.start_burst("delta", &lead).unwrap();
    wait_for_all(&lead).unwrap();
    for host in brokers(&lead).unwrap() {
        assert!(host.ends_with(": full"), "{host}");
    }
    // Nothing else leads to the root, and each burst goes through its gateway.
    assert_eq!((relay_0.links().unwrap(), relay_1.links().unwrap()), (1, 1));
    for (rank, parent) in [("1", "0"), ("2", "0"), ("3", "2"), ("4", "2"), ("5", "0"), ("6", "5")] {
        assert_eq!(flux(&lead, ["overlay", "parentof", rank]).unwrap(), parent, "parent of rank {rank}");
    }

    let burst_0 = ["lake-burst-0-0", "lake-burst-0-1", "lake-burst-0-2"];
    for property in ["burst-lake-burst-0", "cluster-west"] {
        assert_eq!(hosts_of_job(&lead, 3, property).unwrap(), burst_0);
    }
    assert_eq!(hosts_of_job(&lead, 2, "burst-delta").unwrap(), ["delta-0", "delta-1"]);
    assert_eq!(
        resources(&lead, "up").unwrap(),
        [
            "2 4 0 lake-[0-1] ",
            "3 24 3 lake-burst-0-[0-2] cluster-west,burst-lake-burst-0",
            "2 2 8 delta-[0-1] burst-delta"
        ]
    );
    assert_eq!(flux(&lead, ["run", "-N7", "hostname"]).unwrap().lines().count(), 7);

    // Eight cores are a task's in one burst, and never in the other.
    let big = |requires| flux(&lead, ["run", "-n1", "-c8", "-g1", requires, "hostname"]);
    assert!(burst_0.contains(&big("--requires=burst-lake-burst-0").unwrap().as_str()));
    let refused = format!("{:#}", big("--requires=burst-delta").unwrap_err());
    assert!(refused.contains("unsatisfiable"), "{refused}");
}

#[test]
fn a_broker_that_restarts_gets_its_rank_back() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let mut whole = instance.start_whole().unwrap();
    // Killed: nobody says goodbye. Its successor has another address.
    whole.burst[2].kill().unwrap();
    wait_for_overlay(&whole.lead, "--wait=degraded").unwrap();
    whole.start_again(2).unwrap();
    wait_for_all(&whole.lead).unwrap();
    assert_eq!(hosts_of_job(&whole.lead, 1, "rank:4").unwrap(), ["lake-burst-0-2"]);
    whole.runs_on(3).unwrap();
}

#[test]
fn a_broker_with_another_certificate_never_joins() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let impostor = Instance { certificate: certificate(), ..Instance::new(&world, Topology::Gateway) };
    let (mut relay, brokers_of_delta) = impostor.start_burst("delta", &lead).unwrap();
    brokers_of_delta[0].wait_for_log("handshake failed").unwrap();
    let uptime = flux(&brokers_of_delta[0], ["uptime"]).unwrap();
    assert!(uptime.contains(" join "), "{uptime}");
    assert!(brokers(&lead).unwrap().contains(&"5 delta-0: offline".to_owned()));

    // The same brokers with the instance's own certificate.
    drop(brokers_of_delta);
    let _brokers = [0, 1].map(|index| instance.start("delta", index).unwrap());
    assert_eq!(hosts_of_job(&lead, 2, "burst-delta").unwrap(), ["delta-0", "delta-1"]);
    assert_eq!(relay.links().unwrap(), 1);
}

#[test]
fn without_gateways_every_broker_has_a_link_of_its_own() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Flat);
    let (lead, _follower) = instance.start_root().unwrap();
    let (mut relay_0, _burst_0) = instance.start_burst("lake-burst-0", &lead).unwrap();
    let (mut relay_1, _burst_1) = instance.start_burst("delta", &lead).unwrap();
    wait_for_all(&lead).unwrap();
    assert_eq!((relay_0.links().unwrap(), relay_1.links().unwrap()), (3, 2));
}

#[test]
fn a_burst_with_another_rank_map_is_refused() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let mut slots = instance.map.slots().to_vec();
    slots.swap(1, 2);
    let other = Instance { map: RankMap::new(slots).unwrap(), ..Instance::like(&instance, Topology::Gateway) };
    assert_ne!(other.map.digest(), instance.map.digest());
    let (_relay, mut burst) = other.start_burst("delta", &lead).unwrap();
    lead.wait_for_log("rejecting connection from delta-0 (rank 2): lake-burst-0-0 is configured as rank 2").unwrap();
    assert_eq!(burst[0].wait().unwrap().code(), Some(1));
    assert!(brokers(&lead).unwrap().contains(&"2 lake-burst-0-0: offline".to_owned()));
}

#[test]
fn a_broker_that_is_told_to_end_leaves_with_success() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let (_relay, mut burst) = instance.start_burst("delta", &lead).unwrap();
    assert_eq!(hosts_of_job(&lead, 2, "burst-delta").unwrap().len(), 2);
    // Success completes an index of a Job for good: why the pods' scripts end with 143 instead.
    assert_eq!(burst[1].terminate().unwrap().code(), Some(0));
    flux(&lead, ["overlay", "status", "--rank=5", "--wait=partial", "--timeout=60s"]).unwrap();
    assert_eq!(brokers(&lead).unwrap()[5..], ["5 delta-0: partial", "6 delta-1: offline administrative shutdown"]);
}

#[test]
fn a_cut_ends_the_brokers_of_a_burst_and_nothing_else() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let (mut relay, mut burst) = instance.start_burst("delta", &lead).unwrap();
    assert_eq!(hosts_of_job(&lead, 2, "burst-delta").unwrap().len(), 2);
    relay.cut().unwrap();
    wait_for_overlay(&lead, "--wait=degraded").unwrap();
    assert_eq!(hosts_of_job(&lead, 2, "rank:0-1").unwrap(), ["lake-0", "lake-1"]);
    relay.heal().unwrap();
    // Both end: the gateway because it failed, the other as it was told to, and then with success.
    assert_eq!(burst[0].wait().unwrap().code(), Some(1));
    burst[1].wait().unwrap();
    let _burst = [0, 1].map(|index| instance.start("delta", index).unwrap());
    assert_eq!(hosts_of_job(&lead, 2, "burst-delta").unwrap().len(), 2);
}
