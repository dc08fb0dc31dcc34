//! Whole MiniClusters from what `tributary::render` makes: real Flux under the real scripts, one pod per process tree.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Result;
use tributary::api::minicluster::MiniCluster;
use tributary::clock::SystemRng;
use tributary::flux::{Certificate, CertificateMetadata};
use tributary::render::{Context, HostedSide, Rendered, rank_map_of, render};

use super::install::Install;
use super::pod::{Pod, PodSpec};
use super::world::{PORT, World};

pub(super) const NAMESPACE: &str = "rivers";

pub(super) fn world(clusters: &[&str]) -> Option<World> {
    let install = Install::find().unwrap()?;
    Some(World::start(install, clusters).unwrap())
}

/// A MiniCluster whose image has Flux itself.
pub(super) fn mini_cluster(name: &str, spec: &str) -> MiniCluster {
    let yaml = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}, namespace: {NAMESPACE}, \
         uid: uid}}\nspec:\n{spec}"
    );
    let mut mini_cluster: MiniCluster = serde_saphyr::from_str(&yaml).unwrap();
    mini_cluster.spec.flux.container.disable = true;
    mini_cluster
}

pub(super) fn certificate() -> Certificate {
    let metadata = CertificateMetadata {
        name: "flux-cert-generator".to_owned(),
        hostname: "lake-0".to_owned(),
        created: "2026-01-02T03:04:05Z".parse().unwrap(),
    };
    Certificate::generate(&mut SystemRng, &metadata).unwrap()
}

/// One MiniCluster in one cluster of the world, which has its name.
pub(super) struct Side<'w> {
    world: &'w World,
    name: String,
    folder: PathBuf,
    /// More folders for its pods, and where they see them.
    pub(super) mounts: Vec<(PathBuf, String)>,
    /// More variables for its pods.
    pub(super) environment: BTreeMap<String, String>,
}

impl<'w> Side<'w> {
    pub(super) fn new(
        world: &'w World,
        mini_cluster: &MiniCluster,
        context: &Context,
        certificate: &Certificate,
    ) -> Self {
        let name = mini_cluster.metadata.name.clone().unwrap();
        let rendered = render(mini_cluster, context).unwrap_or_else(|problems| panic!("{problems}"));
        let folder = world.folder(&format!("{name}.files")).unwrap();
        let side = Self { world, name, folder, mounts: Vec::new(), environment: BTreeMap::new() };
        side.write(&rendered, certificate).unwrap();
        side
    }

    /// The ConfigMap and the Secret as the kubelet lays them out.
    fn write(&self, rendered: &Rendered, certificate: &Certificate) -> Result<()> {
        let template = rendered.job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        let volumes = template.volumes.as_ref().unwrap();
        let items = volumes.iter().find_map(|volume| volume.config_map.as_ref()?.items.clone()).unwrap();
        for folder in ["operator", "curve", "state"] {
            std::fs::create_dir_all(self.folder.join(folder))?;
        }
        for item in items {
            let file = self.folder.join("operator").join(&item.path);
            std::fs::write(&file, &rendered.boot.files[&item.key])?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(item.mode.unwrap().cast_unsigned()))?;
        }
        let curve = self.folder.join("curve/curve.cert");
        std::fs::write(&curve, certificate.expose())?;
        Ok(std::fs::set_permissions(curve, std::fs::Permissions::from_mode(0o440))?)
    }

    /// Another content of a file of the ConfigMap, which the kubelet brings to its pods.
    fn change(&self, file: &str, text: &str) {
        let file = self.folder.join("operator").join(file);
        std::fs::remove_file(&file).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// The pod of this index: its init container, then the container that runs Flux.
    pub(super) fn start(&self, index: u32) -> Pod<'w> {
        let host = format!("{}-{index}", self.name);
        let mount = |folder: &str, target: &str| (self.folder.join(folder), target.to_owned());
        let ours = [("operator", "/flux_operator"), ("curve", "/flux_operator_curve"), ("state", "/state")];
        let mounts = ours.map(|(folder, target)| mount(folder, target)).into_iter().chain(self.mounts.clone());
        let mut environment = BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]);
        environment.extend(self.environment.clone());
        let script = "bash /flux_operator/flux-init.sh >/dev/null && exec bash /flux_operator/wait-0.sh";
        let spec = PodSpec {
            cluster: self.name.clone(),
            // As a kubelet writes it.
            fqdn: format!("{host}.{}.{NAMESPACE}.svc.cluster.local {host}", self.name),
            mounts: mounts.collect(),
            environment,
            command: ["bash", "-c", script].map(str::to_owned).to_vec(),
            host,
        };
        self.world.start_pod(&spec).unwrap()
    }

    pub(super) fn start_all(&self, size: u32) -> Vec<Pod<'w>> {
        (0..size).map(|index| self.start(index)).collect()
    }
}

/// The burst of three brokers that `root` declares, as the provider makes it: the same rank map and certificate, and a Service
/// for the lead, behind which the test puts what leads there.
pub(super) fn burst_of<'w>(world: &'w World, root: &MiniCluster, certificate: &Certificate) -> Side<'w> {
    burst_in(world, root, &Context::default(), certificate)
}

/// The same, by an agent with these settings.
pub(super) fn burst_in<'w>(
    world: &'w World,
    root: &MiniCluster,
    settings: &Context,
    certificate: &Certificate,
) -> Side<'w> {
    let service = format!("lake-burst-0-lead.{NAMESPACE}.svc.cluster.local");
    world.publish("lake-burst-0", &service, world.router("lake-burst-0")).unwrap();
    let hosted = HostedSide {
        rank_map: rank_map_of(root).unwrap(),
        slot: "lake-burst-0".to_owned(),
        lead_service: "lake-burst-0-lead".to_owned(),
        lead_port: PORT,
    };
    let burst = mini_cluster("lake-burst-0", "  size: 3\n  containers: [{cores: 2}]\n");
    let context = Context { hosted: Some(hosted), ..settings.clone() };
    Side::new(world, &burst, &context, certificate)
}

fn alone<'w>(world: &'w World, spec: &str) -> Side<'w> {
    Side::new(world, &mini_cluster("lake", spec), &Context::default(), &certificate())
}

/// Waits until the readiness probe says yes.
pub(super) fn wait_until_ready(pod: &Pod<'_>) {
    pod.exec(&["bash", "-c", "until bash /flux_operator/ready.sh; do sleep 0.1; done"]).unwrap();
}

pub(super) fn flux(pod: &Pod<'_>, command: &str) -> String {
    let script = format!("export FLUX_URI=local:///mnt/flux/config/run/flux/local; {command}");
    pod.exec(&["bash", "-c", &script]).unwrap()
}

#[test]
fn the_exit_code_of_the_command_is_the_leads_and_followers_complete_if_it_ends_well() {
    let Some(world) = world(&["lake"]) else { return };
    for (code, size) in [(0, 2), (0, 3), (3, 3)] {
        let spec = format!(
            "  size: {size}\n  tasks: {size}\n  containers: [{{cores: 1, command: 'sh -c \"echo on $HOME $(hostname); exit {code}\"'}}]\n"
        );
        let mut pods = alone(&world, &spec).start_all(size);
        assert_eq!(pods[0].wait().unwrap().code(), Some(code));
        // Only $HOME is expanded: by the script, before Flux has the command. The rest is for the user's own sh.
        for index in 0..size {
            pods[0].wait_for_log(&format!("on /root lake-{index}")).unwrap();
        }
        for follower in &mut pods[1..] {
            if code == 0 {
                assert_eq!(follower.wait().unwrap().code(), Some(0));
                continue;
            }
            follower.wait_for_log("and is started again").unwrap();
            assert_eq!(follower.terminate().unwrap().code(), Some(143));
        }
    }
}

#[test]
fn pods_complete_when_their_instance_is_shut_down_and_not_when_its_lead_is_stopped() {
    let Some(world) = world(&["lake"]) else { return };
    let start = || {
        let pods = alone(&world, "  size: 3\n  interactive: true\n  containers: [{cores: 1}]\n").start_all(3);
        pods[0].wait_for_log("runs until `flux shutdown`").unwrap();
        pods.iter().for_each(wait_until_ready);
        pods
    };
    let mut shut_down = start();
    // The brokers end while it answers.
    flux(&shut_down[0], "flux shutdown --quiet || true");
    for pod in &mut shut_down {
        assert_eq!(pod.wait().unwrap().code(), Some(0));
    }
    let mut stopped = start();
    assert_eq!(stopped[0].terminate().unwrap().code(), Some(143));
    for follower in &mut stopped[1..] {
        follower.wait_for_log("and is started again").unwrap();
        assert_eq!(follower.terminate().unwrap().code(), Some(143));
    }
}

#[test]
fn a_pod_is_ready_when_its_broker_has_joined_and_a_lost_one_comes_back() {
    let Some(world) = world(&["lake"]) else { return };
    let side = alone(
        &world,
        "  size: 3\n  interactive: true\n  containers: [{cores: 2, resources: {limits: {nvidia.com/gpu: 1}}}]\n",
    );
    let mut lead = side.start(0);
    lead.exec(&["bash", "-c", "until [ -S /mnt/flux/config/run/flux/local ]; do sleep 0.1; done"]).unwrap();
    assert_eq!(flux(&lead, "bash /flux_operator/ready.sh || echo not ready"), "not ready", "two of three are missing");

    let mut followers = [side.start(1), side.start(2)];
    for pod in [&lead].into_iter().chain(&followers) {
        wait_until_ready(pod);
    }
    assert_eq!(flux(&lead, "flux resource list -s up -no '{nnodes} {ncores} {ngpus}'"), "3 6 3");
    followers[1].kill().unwrap();
    flux(&lead, "flux overlay status --wait=degraded --timeout=60s --summary");
    followers[1] = side.start(2);
    wait_until_ready(&followers[1]);
    assert_eq!(flux(&lead, "flux run -N3 hostname | sort | tr '\\n' ' '"), "lake-0 lake-1 lake-2");
    assert_eq!(lead.terminate().unwrap().code(), Some(143), "a lead that is stopped has not completed its Job");
}

#[test]
fn the_readiness_probe_of_a_broker_that_has_joined_asks_nobody_else() {
    let Some(world) = world(&["lake"]) else { return };
    // A broker that may be drained asks for that once.
    let spec = "  size: 2\n  interactive: true\n  containers: [{cores: 1}]\n  flux: {drainSeconds: 0}\n";
    let pods = alone(&world, spec).start_all(2);
    wait_until_ready(&pods[1]);
    let asked_by = |arguments: &str| {
        let probes = format!("for _ in 1 2 3; do bash /flux_operator/ready.sh {arguments} || exit; done");
        let trace = "flux overlay trace --rank=0 >/tmp/trace & until grep -q heartbeat /tmp/trace; do sleep 0.1; done";
        let end = "flux ping --count=1 0 >/dev/null; until grep -q broker.ping /tmp/trace; do sleep 0.1; done; kill $!";
        flux(&pods[1], &format!("{trace}; {probes}; {end}; grep -c ' tx 0 > [^b]' /tmp/trace || true"))
    };
    assert_eq!(asked_by("still"), "0");
    assert_ne!(asked_by(""), "0", "the lead is asked whether the broker has joined");
}

#[test]
fn a_lead_comes_up_with_the_brokers_that_are_wanted_by_now() {
    let Some(world) = world(&["lake"]) else { return };
    let spec = "  size: 4\n  tasks: 2\n  containers: [{cores: 1, command: 'sh -c \"echo on $(hostname)\"'}]\n";
    let side = alone(&world, spec);
    // Two find no node.
    let mut pods = side.start_all(2);
    pods[0].wait_for_log("flux start").unwrap();
    flux(&pods[0], "until flux uptime 2>/dev/null | grep -q ' quorum '; do sleep 0.1; done");
    side.change("quorum", "2\n");
    pods[0].wait_for_log("Fewer brokers are wanted by now").unwrap();
    for pod in &mut pods {
        assert_eq!(pod.wait().unwrap().code(), Some(0));
    }
    // The command has ended well, and the next lead finds nobody.
    side.change("quorum", "0\n");
    assert_eq!(side.start(0).wait().unwrap().code(), Some(0));
}

#[test]
fn cores_that_nobody_states_are_those_of_the_lead() {
    let Some(world) = world(&["lake"]) else { return };
    let command = "flux resource list -no 'cores {ncores} gpus {ngpus}'";
    let cores = 2 * std::thread::available_parallelism().unwrap().get();
    for (resources, gpus) in [("{}", 0), ("{limits: {cpu: 1, nvidia.com/gpu: 3}}", 6)] {
        let spec =
            format!("  size: 2\n  launcher: true\n  containers:\n  - command: {command}\n    resources: {resources}\n");
        let mut pods = alone(&world, &spec).start_all(2);
        pods[0].wait_for_log(&format!("cores {cores} gpus {gpus}")).unwrap();
        assert_eq!(pods[0].wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_batch_fails_if_one_of_its_jobs_does() {
    let Some(world) = world(&["lake"]) else { return };
    let spec = |last: &str| {
        format!(
            "  size: 1\n  containers:\n  - cores: 1\n    batch: true\n    logs: /state/out\n    command: |\n      echo \"it's $HOME\"\n\n      \
             {last}\n    commands: {{post: cat /state/out/job-0.out}}\n"
        )
    };
    for (last, code) in [("true", 0), ("sh -c 'exit 4'", 4)] {
        let mut pods = alone(&world, &spec(last)).start_all(1);
        assert_eq!(pods[0].wait().unwrap().code(), Some(code), "{last}");
        pods[0].wait_for_log("it's /root").unwrap();
    }
}

#[test]
fn an_archive_passes_from_one_instance_to_the_next_however_it_ends() {
    let Some(world) = world(&["lake"]) else { return };
    let archive = "  size: 1\n  archive: {path: /state/deep/archive.tgz}\n";
    let script = |script: &str| {
        format!("{archive}  launcher: true\n  containers:\n  - cores: 1\n    commands: {{script: '{script}'}}\n")
    };
    let mut first = alone(&world, &script("flux kvs put \"greeting=it is $HOME\"; exit 3")).start_all(1);
    assert_eq!(first[0].wait().unwrap().code(), Some(3));
    let mut second =
        alone(&world, &format!("{archive}  interactive: true\n  containers: [{{cores: 1}}]\n")).start_all(1);
    wait_until_ready(&second[0]);
    flux(&second[0], "flux kvs put \"greeting=$(flux kvs get greeting), still\"");
    assert_eq!(second[0].terminate().unwrap().code(), Some(143));
    let mut third = alone(&world, &script("echo got $(flux kvs get greeting)")).start_all(1);
    assert_eq!(third[0].wait().unwrap().code(), Some(0));
    third[0].wait_for_log("got it is /root, still").unwrap();
}

#[test]
fn every_way_to_submit_returns_the_commands_exit_code() {
    let Some(world) = world(&["lake"]) else { return };
    for (submit, code) in [("flux run", 5), ("flux submit", 7), ("flux batch", 9)] {
        let spec = format!(
            "  size: 1\n  flux: {{submitCommand: {submit}}}\n  containers: [{{cores: 1, commands: {{script: \"#!/bin/bash\\nexit {code}\"}}}}]\n"
        );
        assert_eq!(alone(&world, &spec).start(0).wait().unwrap().code(), Some(code), "{submit}");
    }
}

#[test]
fn pods_that_leave_finish_their_jobs_and_come_back_to_work() {
    let Some(world) = world(&["lake"]) else { return };
    let spec = "  size: 4\n  maxSize: 6\n  interactive: true\n  containers: [{cores: 1}]\n";
    let side = alone(&world, spec);
    let mut pods = side.start_all(4);
    wait_until_ready(&pods[3]);
    let up = "flux resource list -s up -no '{nnodes}'";
    assert_eq!(flux(&pods[0], up), "4");

    pods.extend([side.start(4), side.start(5)]);
    pods[4..].iter().for_each(wait_until_ready);
    assert_eq!(flux(&pods[0], "flux run -N6 hostname | wc -l"), "6");

    // To 3: a job runs on a rank that goes, and is done before its pod is.
    let job = flux(&pods[0], "flux submit --requires=rank:5 sleep 4");
    flux(&pods[0], &format!("flux job wait-event --timeout=60s {job} start"));
    for pod in &pods[3..] {
        pod.exec(&["kill", "-TERM", "1"]).unwrap();
    }
    for pod in &mut pods[3..] {
        assert_eq!(pod.wait().unwrap().code(), Some(143));
    }
    flux(&pods[0], &format!("flux job status {job}"));
    flux(&pods[0], &format!("until [ \"$({up})\" = 3 ]; do sleep 0.1; done"));
    assert_eq!(flux(&pods[0], "flux run -N3 hostname | wc -l"), "3");

    // One comes back, and another is out of service because somebody says so.
    flux(&pods[0], "flux resource drain --force 4 bad memory");
    let back = [side.start(3), side.start(4)];
    back.iter().for_each(wait_until_ready);
    flux(&pods[0], "while [ -n \"$(flux resource drain -no '{ranks}' -i 3)\" ]; do sleep 0.1; done");
    assert_eq!(flux(&pods[0], "flux resource drain -no '{reason}' -i 4"), "bad memory");
    assert_eq!(flux(&pods[0], "flux run -N4 hostname | wc -l"), "4");

    // The end that a person asks for from within completes the Job.
    flux(&pods[0], "flux shutdown --background; true");
    assert_eq!(pods[0].wait().unwrap().code(), Some(0));
}

#[test]
fn nobody_waits_for_jobs_when_the_whole_instance_ends() {
    let Some(world) = world(&["lake"]) else { return };
    // Longer than any test: to wait would be to hang.
    let spec = "  size: 3\n  flux: {drainSeconds: 3600}\n  containers: [{cores: 1, command: sleep inf}]\n  tasks: 3\n";
    let mut pods = alone(&world, spec).start_all(3);
    flux(&pods[0], "until [ \"$(flux jobs -f running -no '{nnodes}' 2>/dev/null)\" = 3 ]; do sleep 0.1; done");
    for pod in pods.iter().rev() {
        pod.exec(&["kill", "-TERM", "1"]).unwrap();
    }
    for pod in &mut pods {
        assert_eq!(pod.wait().unwrap().code(), Some(143));
    }
}

#[test]
fn diagnostics_show_what_is_missing_and_stay() {
    let Some(world) = world(&["lake"]) else { return };
    let mut lead = alone(&world, "  size: 2\n  containers: [{cores: 1, diagnostics: true}]\n").start(0);
    for shown in ["1 lake-1: offline", "== flux dmesg", "this instance stays up"] {
        lead.wait_for_log(shown).unwrap();
    }
    assert_eq!(lead.terminate().unwrap().code(), Some(143));
}

#[test]
fn flux_and_its_jobs_run_as_the_flux_user() {
    let Some(install) = Install::find().unwrap() else { return };
    let Some(world) = World::with_users(install, &["lake"]).unwrap() else { return };
    let spec = "
  size: 2
  tasks: 2
  flux: {drainSeconds: 5}
  containers: [{cores: 1, fluxUser: {name: river, uid: 1002}, command: 'sh -c \"echo $(id -un) $(id -u) in $HOME; exit 3\"'}]
";
    let mut pods = alone(&world, spec).start_all(2);
    wait_until_ready(&pods[1]);
    assert_eq!(pods[0].wait().unwrap().code(), Some(3));
    pods[0].wait_for_log("river 1002 in /home/river").unwrap();
    assert_eq!(pods[1].terminate().unwrap().code(), Some(143));
}

#[test]
fn the_lead_waits_for_a_burst_and_runs_on_it() {
    let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
    let root = mini_cluster(
        "lake",
        "
  size: 2
  launcher: true
  containers: [{cores: 1, command: 'flux run -N5 sh -c \"echo ran on $(hostname)\"'}]
  flux: {bursting: {wait: {for: All, timeout: 2m}, clusters: [{size: 3, maxSize: 4, cores: 2}]}}
",
    );
    let certificate = certificate();
    let mut pods = Side::new(&world, &root, &Context::default(), &certificate).start_all(2);
    wait_until_ready(&pods[0]);

    let _relay = world.relay("lake-burst-0", pods[0].address).unwrap();
    let mut hosted = burst_of(&world, &root, &certificate).start_all(3);

    for host in ["lake-0", "lake-1", "lake-burst-0-0", "lake-burst-0-1", "lake-burst-0-2"] {
        pods[0].wait_for_log(&format!("ran on {host}")).unwrap();
    }
    assert_eq!(pods[0].wait().unwrap().code(), Some(0));
    for pod in &mut hosted {
        pod.wait_for_log("and is started again").unwrap();
        assert_eq!(pod.terminate().unwrap().code(), Some(143), "every pod of a burst follows, the first one too");
    }
}

/// Its readiness says that it has joined: a job could have started then.
#[test]
fn brokers_on_nodes_with_fewer_cpus_than_r_says_never_get_a_job() {
    let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
    let spec = "
  size: 1
  interactive: true
  containers: [{cores: 1}]
  flux: {bursting: {clusters: [{size: 3, cores: 4096}]}}
";
    let (lake, certificate) = (mini_cluster("lake", spec), certificate());
    let root = Side::new(&world, &lake, &Context::default(), &certificate).start(0);
    wait_until_ready(&root);
    // The pod before left, and a person has a reason of her own.
    flux(&root, "flux resource drain 1 tributary: lake-burst-0-0 is leaving; flux resource drain 2 bad memory");
    let job = flux(&root, "flux submit -N1 --requires=rank:3 hostname");

    let _relay = world.relay("lake-burst-0", root.address).unwrap();
    let burst = burst_of(&world, &lake, &certificate).start_all(3);
    burst[2].wait_for_log("No jobs start on this broker: the node of lake-burst-0-2 has ").unwrap();
    burst.iter().for_each(wait_until_ready);
    let reason = |rank| flux(&root, &format!("flux resource drain -no '{{reason}}' -i {rank}"));
    assert_eq!(reason(2), "bad memory");
    for (rank, host) in [(1, "lake-burst-0-0"), (3, "lake-burst-0-2")] {
        let reason = reason(rank);
        assert!(reason.starts_with(&format!("tributary: the node of {host} has ")), "{reason}");
        assert!(reason.ends_with(" CPUs, and R says 4096 cores"), "{reason}");
    }
    assert_eq!(flux(&root, &format!("flux jobs -no '{{state}}' {job}")), "SCHED");
}
