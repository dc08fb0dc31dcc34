//! How the ends of the tunnel are started, and what the broker is told of them.

use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, Ends, HostedSide, rank_map_of, render};

use super::pod::Pod;

/// Stands for the program.
const PROGRAM: &str = r#"#!/bin/bash
if [[ $1 == check ]]; then exit "$(cat "$ROOT/check")"; fi
echo "ends $*" >>"$ROOT/calls"
while [[ $1 != --ready ]]; do shift; done
echo $$ >"$2"
while [[ ! -e $ROOT/killed ]]; do sleep 0.1; done
rm "$ROOT/killed"
exit 137
"#;

/// A broker that goes on, and keeps what it reads at its start.
const BROKER: &str = r#"
case "$*" in
start*) cat "$4/broker.toml" >>$ROOT/read; touch $ROOT/up; while [[ ! -e $ROOT/over ]]; do sleep 0.1; done; rm $ROOT/over ;;
esac
exit 0
"#;

const ROOT: &str = "  size: 2\n  containers: [{cores: 1, command: hostname}]\n  flux: {bursting: {network: {type: Tunnel}, \
                    clusters: [{name: lake, size: 2, cores: 1}]}}\n";

fn root() -> MiniCluster {
    let mut root = super::pod::lake(ROOT);
    root.metadata.name = Some("river".to_owned());
    root
}

fn with_program(mini_cluster: &MiniCluster, hosted: Option<HostedSide>, index: u32) -> Pod {
    let context = Context { hosted, ends: Ends::new(b"program".to_vec()), ..Context::default() };
    let pod = Pod::of(mini_cluster, &render(mini_cluster, &context).unwrap(), index);
    pod.program("flux_operator_ends/tributary-ends", PROGRAM);
    pod.write("check", "0");
    pod.behave(BROKER);
    pod.init();
    pod
}

fn burst(index: u32) -> Pod {
    let (slot, lead_service, lead_port) = ("lake".to_owned(), "lake-lead".to_owned(), 8050);
    let hosted = HostedSide { rank_map: rank_map_of(&root()).unwrap(), slot, lead_service, lead_port };
    let burst = super::pod::lake("  size: 2\n  containers: [{cores: 1}]\n  flux: {drainSeconds: 0}\n");
    with_program(&burst, Some(hosted), index)
}

/// Runs a follower until its broker is up: what the broker read, and how the program was called.
fn read(pod: &Pod) -> (String, Vec<String>) {
    let mut running = pod.start("wait-0.sh");
    pod.until("up", "");
    let found = (pod.read("read"), pod.calls().into_iter().filter(|call| call.starts_with("ends")).collect());
    pod.write("over", "");
    running.terminate();
    found
}

const LEAD: &str = "tcp://lake-lead.waters.svc.cluster.local:8050";
const HERE: &str = "tcp://127.0.0.1:8051";

#[test]
fn the_gateway_finds_its_parent_at_the_end_in_its_pod_and_others_find_theirs_as_ever() {
    let pod = burst(0);
    let (toml, calls) = read(&pod);
    assert!(toml.contains(HERE) && !toml.contains(LEAD), "{toml}");
    let config = "/mnt/flux/config";
    assert_eq!(
        calls,
        [format!(
            "ends burst --listen 127.0.0.1:8051 --lead lake-lead.waters.svc.cluster.local:8050 --host lake-0 \
             --certificate {config}/curve/curve.cert --hold 300 --ready {config}/run/flux/ends"
        )]
    );
    let (toml, calls) = read(&burst(1));
    assert!(toml.contains(LEAD) && !toml.contains(HERE), "{toml}");
    assert!(calls.is_empty(), "{calls:?}");
}

#[test]
fn where_the_program_does_not_run_the_broker_connects_as_ever() {
    let pod = burst(0);
    pod.write("check", "126");
    let (toml, calls) = read(&pod);
    assert!(toml.contains(LEAD) && !toml.contains(HERE) && calls.is_empty(), "{calls:?} {toml}");
    assert!(pod.read("output").contains("do not run here"));
    // Its ConfigMap was not there.
    let pod = burst(0);
    std::fs::remove_file(pod.path("flux_operator_ends/tributary-ends")).unwrap();
    assert!(read(&pod).0.contains(LEAD));
}

#[test]
fn an_image_without_getent_starts_no_end_and_says_so() {
    let pod = burst(0);
    for tool in
        ["bash", "cat", "chmod", "cp", "env", "grep", "id", "ln", "mkdir", "mv", "rm", "sed", "sleep", "touch", "true"]
    {
        let found = ["/usr/bin", "/bin"].map(|folder| std::path::Path::new(folder).join(tool));
        let found = found.into_iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(found, pod.path("bin").join(tool)).unwrap();
    }
    let pod = pod.without_the_machine();
    let (toml, calls) = read(&pod);
    assert!(toml.contains(LEAD) && !toml.contains(HERE) && calls.is_empty(), "{calls:?} {toml}");
    assert!(pod.read("output").contains("has no getent"), "{}", pod.read("output"));
}

#[test]
fn a_program_that_ends_is_started_again_and_the_next_broker_finds_it() {
    let pod = burst(0);
    let mut running = pod.start("wait-0.sh");
    pod.until("up", "");
    pod.write("calls", "");
    pod.write("killed", "");
    pod.until("calls", "ends burst");
    pod.write("read", "");
    pod.write("over", "");
    pod.until("read", HERE);
    running.terminate();
}

#[test]
fn the_lead_has_its_end_at_the_address_of_its_pod() {
    let root = root();
    // Of two families, the broker listens at IPv4; getent begins with the other one.
    let both = "if [[ $1 == ahosts ]]; then echo 'fd00::7 STREAM river-0'; fi; echo '10.1.0.7 STREAM river-0'";
    let one = "if [[ $1 == ahostsv4 ]]; then exit 2; fi; echo 'fd00::7 STREAM river-0'";
    for (says, at) in [(both, "10.1.0.7"), (one, "[fd00::7]")] {
        let pod = with_program(&root, None, 0);
        pod.program("bin/getent", &format!("#!/bin/bash\n{says}\n"));
        let (_, calls) = read(&pod);
        assert!(calls[0].starts_with(&format!("ends lead --listen {at}:8051 --broker {at}:8050 ")), "{calls:?}");
    }
    assert!(read(&with_program(&root, None, 1)).1.is_empty(), "a follower of the root needs none");
}
