//! How a script starts a broker again that has fallen out of the instance, and which brokers it leaves alone.

use std::io::Write as _;
use std::net::TcpListener;

use super::pod::Pod;

/// A broker that hears its parent while there is a file `answers`, and heartbeats while there is a file `beat`.
const BROKER: &str = r#"
case "$*" in
"getattr tbon.parent-endpoint") cat $ROOT/parent ;;
"module stats --parse=count heartbeat") cat $ROOT/beat && echo x >>$ROOT/beat ;;
"ping --count=1 upstream") [[ -e $ROOT/answers ]] ;;
uptime) echo " 05:12:30 run 3.5m,  owner root,  depth 0,  size 2" ;;
python*) touch $ROOT/over ;;
start*) trap "$(cat $ROOT/trap)" TERM; while [[ ! -e $ROOT/over ]]; do sleep 0.1; done; rm $ROOT/over; exit 1 ;;
*) exit 1 ;;
esac
"#;

/// A parent that greets everybody who connects, as ZMTP begins, or accepts and says nothing. Its endpoint.
fn parent(greets: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    greet(listener, greets);
    endpoint
}

fn greet(listener: TcpListener, greets: bool) {
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut connection in listener.incoming().flatten() {
            if greets {
                let _ = connection.write_all(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f]);
            }
            open.push(connection);
        }
    });
}

/// A follower that listens for 2 s only.
fn follower(parent: &str) -> Pod {
    let pod = Pod::new("  size: 2\n  containers: [{cores: 1}]\n", 1);
    pod.init();
    pod.behave(BROKER);
    pod.write("parent", parent);
    pod.write("trap", "");
    let script = pod.read("flux_operator/wait-0.sh");
    assert!(script.contains("_silence=15\n"));
    assert!(script.contains("_joining=60\n"));
    assert!(script.contains("_grace=5\n"));
    let script = script.replace("_silence=15\n", "_silence=2\n").replace("_joining=60\n", "_joining=2\n");
    let script = script.replace("_grace=5\n", "_grace=1\n");
    pod.write("flux_operator/wait-0.sh", &script);
    pod
}

/// After it has heard it for some time.
fn hears_its_parent_no_more(pod: &Pod) {
    for _look in 0..3 {
        pod.write("calls", "");
        pod.until("calls", "flux ping");
    }
    std::fs::remove_file(pod.path("answers")).unwrap();
}

fn starts(pod: &Pod) -> usize {
    pod.calls().iter().filter(|call| call.starts_with("flux start")).count()
}

#[test]
fn a_broker_that_hears_nothing_is_started_again_while_its_parent_greets_others() {
    let pod = follower(&parent(true));
    let _running = pod.start("wait-0.sh");
    let _socket = pod.socket();
    pod.until("output", "The broker ended with 1 and is started again in 1 s.");
    let calls = pod.calls();
    let told = calls.iter().find(|call| call.starts_with("flux python")).unwrap();
    assert!(told.contains("overlay.disconnect-parent"), "{told}");
    assert_eq!(starts(&pod), 1);
    // And the next one is listened for as well.
    pod.write("output", "");
    pod.until("output", "is started again in 2 s");
    assert_eq!(starts(&pod), 2);
    // One that had its place gets it back at once.
    pod.write("output", "");
    pod.write("answers", "");
    hears_its_parent_no_more(&pod);
    pod.until("output", "is started again in 1 s");
}

#[test]
fn a_broker_is_left_alone_while_anything_says_that_it_has_its_place_or_that_its_parent_is_cut_off() {
    let closed = "tcp://127.0.0.1:1".to_owned();
    for (what, parent, file) in [
        ("the parent answers", parent(true), Some("answers")),
        ("heartbeats come", parent(true), Some("beat")),
        ("connections are accepted for a parent that says nothing", parent(false), None),
        ("connections are refused", closed, None),
        ("the parent is nobody one can connect to", "ipc:///tmp/x".to_owned(), None),
    ] {
        let pod = follower(&parent);
        if let Some(file) = file {
            pod.write(file, "x\n");
        }
        let _running = pod.start("wait-0.sh");
        let _socket = pod.socket();
        // Far longer than it listens.
        for look in 0..6 {
            pod.write(
                "calls",
                &pod.calls().into_iter().filter(|call| call.starts_with("flux start")).collect::<String>(),
            );
            pod.until("calls", "flux module stats");
            assert!(!pod.read("output").contains("is started again"), "{what}, look {look}");
        }
    }
}

/// A name that nobody can look up any more: the address is known from before.
#[test]
fn a_broker_finds_out_that_its_parent_greets_others_without_the_dns() {
    let endpoint = parent(true);
    let (_, port) = endpoint.rsplit_once(':').unwrap();
    let pod = follower(&format!("tcp://parent.invalid:{port}"));
    pod.program("bin/getent", "#!/bin/bash\necho 127.0.0.1 STREAM parent.invalid\n");
    pod.write("answers", "");
    let _running = pod.start("wait-0.sh");
    let _socket = pod.socket();
    hears_its_parent_no_more(&pod);
    pod.until("output", "is started again in 1 s");
}

/// Its connection may come back as long after the cut as the cut lasted.
#[test]
fn a_broker_whose_parent_was_cut_off_waits_as_long_again_as_it_was() {
    // An address of its own: nobody else takes the port meanwhile.
    let listener = TcpListener::bind("127.53.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    drop(listener);
    let pod = follower(&endpoint);
    let script = pod.read("flux_operator/wait-0.sh").replace("_silence=2\n", "_silence=3\n_retry=120\n");
    pod.write("flux_operator/wait-0.sh", &script);
    pod.write("answers", "");
    let _running = pod.start("wait-0.sh");
    let _socket = pod.socket();
    hears_its_parent_no_more(&pod);
    std::thread::sleep(std::time::Duration::from_secs(6));
    greet(TcpListener::bind(endpoint.strip_prefix("tcp://").unwrap()).unwrap(), true);
    pod.until("output", "is started again in 1 s");
    let output = pod.read("output");
    let heard = output.split("has heard nothing for ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(heard.parse::<u64>().unwrap() >= 11, "{output}");
}

#[test]
fn a_broker_that_does_not_end_in_order_is_killed() {
    let pod = follower(&parent(true));
    pod.behave(&BROKER.replace("python*) touch $ROOT/over ;;", "python*) ;;"));
    pod.write("trap", "echo told >>$ROOT/told");
    let _running = pod.start("wait-0.sh");
    let _socket = pod.socket();
    pod.until("output", "The broker ended with 137 and is started again");
    assert_eq!(pod.read("told"), "told\n");
}
