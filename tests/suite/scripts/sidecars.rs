//! Containers beside Flux, and what ends them.

use std::fs;
use std::time::Duration;

use super::pod::{Pod, RUN_PROGRAM};

const SIDECAR: &str = "
  size: 2
  flux: {environment: {GREETING: it's \"a\" $(b) $fluxsocket}}
  containers:
  - {runFlux: true, cores: 1}
  - {name: side, command: \"sleep 0 && . VIEW && echo \\\"$fluxsocket;$GREETING\\\" >$ROOT/side; COMMAND\"}
";

fn sidecar(command: &str) -> Pod {
    let pod = Pod::new(&SIDECAR.replace("COMMAND", command), 0);
    pod.init();
    let view = pod.path("mnt/flux/flux-view.sh").display().to_string();
    let file = "flux_operator/command-1.sh";
    pod.write(file, &pod.read(file).replace("VIEW", &view));
    fs::create_dir_all(pod.path("mnt/flux/config/run/flux")).unwrap();
    pod
}

#[test]
fn a_sidecar_waits_for_the_socket_and_ends_no_sooner_than_flux() {
    let pod = sidecar("exit 0");
    let mut running = pod.start("start-1.sh");
    pod.until("mnt/flux/flux-connect.sh", "flux proxy");
    assert!(!pod.path("side").exists(), "the broker is not there yet");
    let _socket = pod.socket();
    let run = pod.path("mnt/flux/config/run/flux");
    pod.until("side", "local://");
    std::thread::sleep(Duration::from_secs(1));
    assert!(running.0.try_wait().unwrap().is_none(), "its pod would not be ready any more");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.terminate().code(), Some(0));
    assert_eq!(pod.read("side"), format!("{0};it's \"a\" $(b) {0}\n", format!("local://{}/local", run.display())));
}

#[test]
fn a_sidecar_that_fails_is_started_again_and_never_decides_the_run() {
    let pod = sidecar("echo once >>$ROOT/times; exit 6");
    let _socket = pod.socket();
    let mut running = pod.start("start-1.sh");
    pod.until("times", "once\nonce\n");
    pod.until("output", "Container side ended with 6 and is started again in 2 s.");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.terminate().code(), Some(0), "the container that runs Flux has ended");
}

#[test]
fn what_prepares_a_sidecar_may_fail_too() {
    let pod = Pod::new(&SIDECAR.replace("name: side,", "name: side, commands: {pre: exit 7},"), 0);
    pod.init();
    let mut running = pod.start("start-1.sh");
    pod.until("output", "Container side ended with 7 and is started again in 1 s.");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.terminate().code(), Some(0));
}

/// Examples of the Flux Operator start their servers there.
#[test]
fn commands_post_of_a_sidecar_without_a_command_is_its_command() {
    let post = "echo once >>$ROOT/times; if [[ -e $ROOT/serves ]]; then exec sleep 1000; fi; exit 6";
    let spec = format!("  containers: [{{runFlux: true, cores: 1}}, {{name: side, commands: {{post: '{post}'}}}}]\n");
    let pod = Pod::new(&spec, 0);
    pod.init();
    let mut running = pod.start("start-1.sh");
    pod.until("output", "Container side ended with 6 and is started again in 1 s.");
    pod.write("serves", "");
    pod.until("times", "once\nonce\n");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.terminate().code(), Some(0));
}

/// The danger: an image names another signal to end it (nginx, postgres, haproxy, systemd), and its container is killed.
#[test]
fn each_signal_of_an_image_ends_its_container_but_not_the_one_of_a_terminal_that_is_attached() {
    const SERVE: &str = r#"trap "echo told >>$ROOT/told; exit 0" TERM; touch $ROOT/up; while :; do sleep 0.1; done"#;
    let serve = format!("bash -c '{}'", SERVE.replace('"', "\\\""));
    let spec = format!(
        "  containers: [{{runFlux: true, cores: 1}}, {{name: side, command: \"{serve}\"}}]\n  services: [{{name: db, command: \
         \"{serve}\"}}]\n"
    );
    for name in ["wait-0.sh", "start-1.sh", "services-0.sh"] {
        // Not every sh knows the last one; to end a run by a key of a terminal is to fail it.
        let signals = match name {
            "services-0.sh" => &["INT", "QUIT", "USR1"][..],
            "wait-0.sh" => &["USR1", "RTMIN+3"],
            _ => &["INT", "QUIT", "USR1", "RTMIN+3"],
        };
        for signal in signals {
            let pod = Pod::new(&spec, 0);
            pod.init();
            pod.behave(&format!("if [[ $1 == broker ]]; then {SERVE}; fi"));
            let mut running = pod.start(name);
            pod.until("up", "");
            running.signal("WINCH");
            std::thread::sleep(Duration::from_millis(300));
            assert!(running.0.try_wait().unwrap().is_none() && !pod.path("told").exists(), "{name}");
            running.signal(signal);
            pod.until("told", "told\n");
            assert_eq!(running.0.wait().unwrap().code(), Some(143), "{name} {signal}: {}", pod.read("output"));
        }
    }
}

/// The danger: a launcher in Python knows no KeyboardInterrupt, since a shell ignores two signals for what it starts aside.
#[test]
fn programs_of_users_ignore_no_signal() {
    let shows = |what: &str| format!("grep ^SigIgn: /proc/self/status >$ROOT/{what}");
    let spec = format!(
        "  size: 2\n  containers: [{{runFlux: true, cores: 1, launcher: true, command: \"sh -c '{}'\", commands: {{post: '{}'}}}}, \
         {{name: side, command: '{}'}}]\n",
        shows("launcher"),
        shows("post"),
        shows("side")
    );
    let pod = Pod::new(&spec, 0);
    pod.behave(&format!("if [[ $1 == start ]]; then {}; fi\n{RUN_PROGRAM}", shows("broker")));
    assert_eq!(pod.lead().0, Some(0));
    let _running = pod.start("start-1.sh");
    for program in ["broker", "launcher", "post", "side"] {
        pod.until(program, "\n");
        let ignored = u64::from_str_radix(pod.read(program).trim_start_matches("SigIgn:").trim(), 16).unwrap();
        assert_eq!(ignored & 0b110, 0, "{program} ignores SIGINT or SIGQUIT");
    }
}

/// A server has time to write what it holds.
#[test]
fn a_server_is_told_to_end_and_has_its_time() {
    for name in ["start-1.sh", "services-0.sh"] {
        let serve = r#"sleep 0 flux; bash -c 'trap \"echo told >>$ROOT/told; sleep 1; echo kept >>$ROOT/told; exit 0\" TERM; touch $ROOT/up; while :; do sleep 0.1; done'"#;
        let spec = format!(
            "  containers: [{{runFlux: true, cores: 1}}, {{name: side, command: \"{serve}\"}}]\n  services: [{{name: db, command: \
             \"{serve}\"}}]\n"
        );
        let pod = Pod::new(&spec, 0);
        pod.init();
        let _socket = pod.socket();
        let mut running = pod.start(name);
        pod.until("up", "");
        assert_eq!(running.terminate().code(), Some(143), "{}", pod.read("output"));
        assert_eq!(pod.read("told"), "told\nkept\n", "{name}");
    }
}

#[test]
fn what_a_sidecar_has_set_is_there_when_it_has_ended() {
    let side = "name: side, commands: {servicePre: 'export OUT=\"a $HOME\"; cd /', post: 'echo \"$OUT $PWD $viewroot $foundroot\" >$ROOT/after'},";
    let pod = Pod::new(
        &SIDECAR.replace("name: side,", side).replace("sleep 0 && . VIEW && ", ": ").replace("COMMAND", ":"),
        0,
    );
    pod.init();
    let _socket = pod.socket();
    let _running = pod.start("start-1.sh");
    pod.until("after", "\n");
    assert_eq!(pod.seen(&pod.read("after")), "a /root / /mnt/flux/view /mnt/flux/view/lib/python3.11\n");
}

/// The danger: the kubelet takes a database that has crashed for one that has ended well.
#[test]
fn a_service_ends_with_the_code_of_its_command_after_the_shell_that_comes_last() {
    for (command, post, code) in [
        ("sh -c 'exit 7'", "true", 7),
        ("false", "echo again", 1),
        ("true", "true", 0),
        ("true", "false", 1),
        ("exit 5", "true", 5),
        ("set -e; false; true", "true", 1),
        ("sh -c 'exit 7'", "[ $? = 7 ] && exit 8", 8),
    ] {
        let db = format!("{{name: db, command: \"{command}\", commands: {{post: '{post}'}}}}");
        let pod = Pod::new(&format!("  containers: [{{runFlux: true, cores: 1}}]\n  services: [{db}]\n"), 0);
        pod.init();
        assert_eq!(pod.run("services-0.sh").0, Some(code), "{command}, {post}");
    }
}

#[test]
fn a_sidecar_that_does_not_speak_with_flux_starts_before_it() {
    let side = "{name: side, command: touch $ROOT/serves, environment: {INFLUXDB_DB: influxd}}";
    let pod = Pod::new(&format!("  containers: [{{runFlux: true, cores: 1}}, {side}]\n"), 0);
    pod.init();
    let _running = pod.start("start-1.sh");
    pod.until("serves", "");
}

#[test]
fn the_users_traps_exits_and_separators_are_its_own() {
    let spec = r#"
  size: 2
  containers:
  - {name: app, runFlux: true, cores: 1, command: sh -c 'exit 3', commands: {pre: "trap 'echo bye' EXIT; trap : TERM; IFS=x", post: "sleep 1 & wait; exit 0"}}
  - {name: side, command: flux proxy}
"#;
    let pod = Pod::new(spec, 0);
    let (code, text) = pod.lead();
    assert!(code == Some(3) && text.contains("bye"), "{code:?} {text}");
    assert!(pod.path("mnt/flux/flux-operator-complete.txt").exists(), "nothing of the other container came after it");
    // Nothing but the end of the instance completes an index.
    let follower = Pod::new(spec, 1);
    follower.init();
    follower.behave("if [[ $1 == start ]]; then echo >>$ROOT/starts; fi");
    let mut running = follower.start("wait-0.sh");
    follower.until("starts", "\n\n");
    assert_eq!(running.terminate().code(), Some(143));
}

#[test]
fn a_container_that_starts_again_in_its_pod_ends_no_other() {
    let spec = "  pod: {restartPolicy: OnFailure}\n  containers: [{cores: 1, command: sh -c 'exit CODE'}]\n";
    for (code, is_over) in [("3", false), ("0", true)] {
        let pod = Pod::new(&spec.replace("CODE", code), 0);
        pod.lead();
        assert_eq!(pod.path("mnt/flux/flux-operator-complete.txt").exists(), is_over, "{code}");
    }
}

#[test]
fn what_comes_after_a_sidecar_has_its_time() {
    let side = "name: side, commands: {post: sleep 7; echo after >$ROOT/after},";
    let pod = Pod::new(&SIDECAR.replace("name: side,", side).replace("COMMAND", "touch $ROOT/serves; sleep 1000"), 0);
    pod.init();
    let _socket = pod.socket();
    let mut running = pod.start("start-1.sh");
    pod.until("serves", "");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.terminate().code(), Some(0));
    assert_eq!(pod.read("after"), "after\n", "it was cut off");
}

#[test]
fn a_sidecar_that_serves_for_ever_ends_with_the_pod() {
    for over in [true, false] {
        let pod = sidecar("exec sleep 1000");
        let _socket = pod.socket();
        let mut running = pod.start("start-1.sh");
        pod.until("side", "local://");
        if over {
            pod.write("mnt/flux/flux-operator-complete.txt", "");
            assert_eq!(running.terminate().code(), Some(0), "the container that runs Flux has ended");
        } else {
            assert_eq!(running.terminate().code(), Some(143));
        }
    }
}

#[test]
fn a_sidecar_that_takes_no_signal_ends_with_the_pod_too() {
    let pod = sidecar("trap : TERM; while :; do command sleep 1000; done");
    let _socket = pod.socket();
    let mut running = pod.start("start-1.sh");
    pod.until("side", "local://");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.terminate().code(), Some(0));
}
