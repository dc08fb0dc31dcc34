//! What the scripts do: on the lead, on followers, beside them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::pod::{Pod, RUN_PROGRAM, mode};

/// Options of a broker of `lake` whose spec asks for nothing.
const OPTIONS: &str = "-Scron.directory=/mnt/flux/config/etc/flux/system/cron.d -Stbon.fanout=256 \
                       -Srundir=/mnt/flux/config/run/flux -Sstatedir=/mnt/flux/config/var/lib/flux \
                       -Slocal-uri=local:///mnt/flux/config/run/flux/local -Stbon.connect_timeout=5s \
                       -Slog-stderr-level=6 -Slog-stderr-mode=local";

/// What a lead of two pods has besides.

#[test]
fn init_brings_flux_and_its_files_and_can_be_repeated() {
    let pod = Pod::new("  size: 2\n  containers: [{cores: 1}]\n", 0);
    pod.init();
    let first = pod.read("mnt/flux/config/etc/flux/config/broker.toml");
    assert_eq!(first, pod.read("flux_operator/broker.toml"));
    assert_eq!(pod.read("mnt/flux/config/etc/flux/system/hostlist"), "lake-[0-1]\n");
    assert!(pod.read("mnt/flux/config/etc/flux/system/R").starts_with("{\"version\":1"));
    assert!(pod.path("mnt/flux/view/bin/python3.11").exists());
    assert!(pod.path("mnt/flux/view/lib/python3").exists(), "the view's python is linked below lib");
    assert_eq!(mode(&pod.path("mnt/flux/config/run")), 0o777, "any user may make its run directory there");

    // Interrupted before it was done, and run again.
    fs::remove_file(pod.path("mnt/flux/flux-operator-done.txt")).unwrap();
    pod.init();
    assert_eq!(pod.read("mnt/flux/config/etc/flux/config/broker.toml"), first);
    pod.init();
    assert!(pod.path("mnt/flux/flux-operator-done.txt").exists());
}

#[test]
fn an_image_without_a_view_fails_and_says_so() {
    let pod = Pod::new("  containers: [{}]\n", 0);
    fs::remove_dir_all(pod.path("opt/views")).unwrap();
    let (code, text) = pod.run("flux-init.sh");
    assert_eq!(code, Some(1));
    assert!(text.contains("this image has no Flux view"), "{text}");
    assert!(!pod.path("mnt/flux/flux-operator-done.txt").exists());
}

#[test]
fn the_lead_runs_the_command_and_its_exit_code_is_the_commands() {
    for (code, expected) in [(0, 0), (3, 3), (137, 1), (143, 1)] {
        let pod = Pod::new(&format!("  size: 2\n  containers: [{{cores: 1, command: sh -c 'exit {code}'}}]\n"), 0);
        let (found, text) = pod.lead();
        assert_eq!(found, Some(expected), "{text}");
        let submit = format!("flux submit -n1 --quiet --watch sh -c 'exit {code}'").replace('\'', "");
        let submit = submit.replace("exit ", "exit\\ ");
        assert_eq!(
            pod.calls()[0],
            format!(
                "flux start -o --config /mnt/flux/config/etc/flux/config {OPTIONS} /bin/bash /flux_operator/finish.sh \
                 {submit}"
            )
        );
        let tells = pod.calls().iter().any(|call| call == "flux exec -r 1 touch /mnt/flux/config/run/flux/ended");
        assert_eq!(tells, code == 0, "followers complete with a command that has ended well");
        assert!(pod.path("mnt/flux/flux-operator-complete.txt").exists());
        assert_eq!(pod.path("dev/termination-log").exists(), code != 0);
    }
}

#[test]
fn the_command_arrives_word_by_word() {
    let spec = r#"
  size: 1
  containers:
  - cores: 1
    command: printf '<%s>' "it's" $HOME '$HOME' "a  b" $(id) `id` ; x && y * "\"" ${UNSET} ""
"#;
    let pod = Pod::new(spec, 0);
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    let expected = "<it's></root><$HOME><a  b><$(id)><`id`><;><x><&&><y><*><\"><>";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_brokers_files_are_in_place_before_it_starts() {
    let pod = Pod::new("  containers: [{cores: 1, command: 'true'}]\n", 0);
    pod.behave("ls -l $ROOT/mnt/flux/config/curve/ >$ROOT/seen; ls -d $ROOT/mnt/flux/config/run/flux >>$ROOT/seen");
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(pod.read("mnt/flux/config/curve/curve.cert"), "certificate\n");
    assert_eq!(mode(&pod.path("mnt/flux/config/curve/curve.cert")), 0o600);
    assert!(pod.read("seen").contains("curve.cert") && pod.read("seen").contains("run/flux"));
    assert!(!text.contains("certificate\n"), "the certificate is not printed: {text}");
    // A restarted container finds its own files again.
    let (code, text) = pod.run("wait-0.sh");
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn the_users_shell_runs_in_its_places_and_what_it_exports_stays() {
    let spec = r#"
  size: 2
  containers:
  - cores: 1
    command: sh -c 'echo command $FROM_INIT $FROM_PRE'
    preCommand: echo pre-command "it's"
    commands:
      init: export FROM_INIT="a 'b' $HOME"
      pre: |
        _result=7; status=8; child=1
        function run { echo not ours; }
        export FROM_PRE="$(echo c; echo d)"
      brokerPre: echo broker-pre
      workerPre: echo worker-pre
      post: echo post $FROM_PRE; result=9
"#;
    let pod = Pod::new(spec, 0);
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    let places =
        ["pre-command it's", "broker-pre", "command a 'b' /root c d", "post c d"].map(|piece| text.find(piece));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{text}");
    assert!(!text.contains("worker-pre"));
}

#[test]
fn quiet_prints_the_output_of_the_job_alone() {
    let spec = "
  logging: {quiet: true}
  containers: [{cores: 1, command: echo the job, commands: {init: echo a, pre: \"echo b\\necho b\", brokerPre: echo c}}]
";
    let pod = Pod::new(spec, 0);
    assert_eq!(pod.lead(), (Some(0), "the job\n".to_owned()));
}

#[test]
fn strict_ends_with_the_first_error_and_lenient_goes_on() {
    let spec = |strict| {
        format!(
            "  logging: {{strict: {strict}}}\n  containers: [{{cores: 1, command: echo ran, commands: {{pre: 'false'}}}}]\n"
        )
    };
    let (code, text) = Pod::new(&spec(true), 0).lead();
    assert!(code == Some(1) && !text.contains("\nran\n"), "{code:?} {text}");
    let (code, text) = Pod::new(&spec(false), 0).lead();
    assert!(code == Some(0) && text.contains("\nran\n"), "{code:?} {text}");
}

#[test]
fn strict_is_no_obstacle_to_a_failing_command() {
    let spec =
        "  logging: {strict: true}\n  containers: [{cores: 1, command: sh -c 'exit 3', commands: {post: echo post}}]\n";
    let (code, text) = Pod::new(spec, 0).lead();
    assert!(code == Some(3) && text.contains("post"), "{code:?} {text}");
}

#[test]
fn a_script_is_run_as_it_was_written() {
    let spec = "
  containers:
  - cores: 1
    commands:
      script: |
        #!/bin/bash
        x=\"it's $HOME\"
        printf '%s;%s\\n' \"$x\" \\$HOME
        cat <<EOF
        EOF
";
    let (code, text) = Pod::new(spec, 0).lead();
    assert!(code == Some(0) && text.contains("it's /root;$HOME\n"), "{code:?} {text}");
}

#[test]
fn batch_lines_are_run_as_they_were_written() {
    let spec = r#"
  containers:
  - cores: 1
    batch: true
    logs: /tmp/out
    command: |
      printf '%s\n' "a $HOME" `echo b`; echo "it's"

      sh -c 'exit 4'
"#;
    let pod = Pod::new(spec, 0);
    pod.write("codes", "0\n");
    pod.behave(&format!("{RUN_PROGRAM}\nif [[ $* == *returncode* ]]; then cat $ROOT/codes; fi\n"));
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("a /root\nb\nit's\n"), "{text}");
    let out = pod.path("tmp/out").display().to_string();
    let calls = fs::read_to_string(pod.path("calls")).unwrap();
    assert!(
        calls.contains(&format!("submit --flags waitable --error={out}/job-0.err --output={out}/job-0.out ")),
        "{calls}"
    );
    assert!(calls.contains(&format!("--output={out}/job-2.out sh -c exit\\ 4")), "{calls}");
    assert!(pod.path("tmp/out").is_dir());

    for (codes, expected) in [("0\n4\n5\n0\n", 5), ("-128\n0\n", 1), ("\n0\n", 0)] {
        pod.write("codes", codes);
        assert_eq!(pod.run("wait-0.sh").0, Some(expected), "jobs ended with {codes:?}");
    }
}

#[test]
fn without_a_command_the_broker_stays_up_until_it_is_told_to_end() {
    let pod = Pod::new("  interactive: true\n  containers: [{cores: 1}]\n", 0);
    pod.init();
    pod.behave("trap 'echo told >>$ROOT/told; exit 0' TERM; echo up >>$ROOT/up; while :; do sleep 0.1; done");
    let mut running = pod.start("wait-0.sh");
    pod.until("up", "up");
    assert_eq!(running.terminate().code(), Some(143), "a pod that is stopped has not completed");
    assert_eq!(pod.read("told"), "told\n");
    let options = OPTIONS.replace(" -Sstatedir", " -Sbroker.rc2_none -Sstatedir");
    assert_eq!(pod.calls(), [format!("flux broker --config-path /mnt/flux/config/etc/flux/config {options}")]);
}

#[test]
fn sigterm_reaches_the_broker_behind_time() {
    let pod = Pod::new("  logging: {timed: true}\n  containers: [{cores: 1, command: hostname}]\n", 0);
    pod.init();
    // The stand-in has the name of the real one, and like it passes nothing on.
    pod.program("usr/bin/time", "#!/bin/bash\ntrap : TERM\necho time >/proc/$$/comm\nshift 2\n\"$@\"\n");
    pod.behave("trap 'echo told >>$ROOT/told; exit 0' TERM; echo up >>$ROOT/up; while :; do sleep 0.1; done");
    let mut running = pod.start("wait-0.sh");
    pod.until("up", "up");
    running.terminate();
    pod.until("told", "told");
}

#[test]
fn a_worker_starts_its_broker_again_and_again_and_never_completes() {
    let pod =
        Pod::new("  size: 2\n  containers: [{cores: 1, commands: {post: echo post, workerPre: echo worker-pre}}]\n", 1);
    pod.init();
    pod.behave("echo start >>$ROOT/starts; if (($(wc -l <$ROOT/starts) < 3)); then exit 0; fi; exec sleep 1000");
    let mut running = pod.start("wait-0.sh");
    pod.until("starts", "start\nstart\nstart\n");
    assert_eq!(running.terminate().code(), Some(143));
    let output = pod.read("output");
    assert!(output.contains("worker-pre") && output.matches("\npost\n").count() == 1, "{output}");
    assert_eq!(pod.calls()[0], format!("flux start -o --config /mnt/flux/config/etc/flux/config {OPTIONS}"));
}

#[test]
fn a_worker_completes_once_the_command_has_ended_well() {
    let pod = Pod::new("  size: 2\n  containers: [{cores: 1, command: 'true', commands: {post: echo post}}]\n", 1);
    pod.init();
    let ended = "mkdir -p $ROOT/mnt/flux/config/run/flux; touch $ROOT/mnt/flux/config/run/flux/ended";
    // What an earlier instance left says nothing; nor does a broker that failed.
    pod.behave(&format!(
        "echo start >>$ROOT/starts; n=$(wc -l <$ROOT/starts); if ((n == 1)); then exit 0; fi; {ended}; exit $((3 - n))"
    ));
    pod.write("mnt/flux/config/run/flux/ended", "");
    let (code, text) = pod.run("wait-0.sh");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(pod.read("starts").lines().count(), 3);
    assert_eq!(text.matches("\npost\n").count(), 1, "{text}");
}

#[test]
fn a_worker_that_shall_complete_does() {
    let pod = Pod::new("  size: 2\n  flux: {completeWorkers: true}\n  containers: [{cores: 1}]\n", 1);
    pod.init();
    pod.behave("exit 1");
    let (code, text) = pod.run("wait-0.sh");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(pod.calls().len(), 1);
}

#[test]
fn a_hand_written_burst_follows_with_its_first_pod_too() {
    let spec = "  size: 2\n  containers: [{}]\n  flux: {leadBroker: {address: 192.0.2.1, name: river, size: 1}}\n";
    let pod = Pod::new(spec, 0);
    pod.init();
    pod.behave("echo start >>$ROOT/starts; if (($(wc -l <$ROOT/starts) < 2)); then exit 0; fi; exec sleep 1000");
    let mut running = pod.start("wait-0.sh");
    pod.until("starts", "start\nstart\n");
    assert_eq!(running.terminate().code(), Some(143));
}

#[test]
fn pods_of_a_hand_written_burst_complete_if_they_shall() {
    let spec = "  size: 2\n  containers: [{}]\n  flux: {completeWorkers: true, leadBroker: {address: 192.0.2.1, name: river, size: 1}}\n";
    let pod = Pod::new(spec, 0);
    pod.init();
    pod.behave("if [[ -e $ROOT/again ]]; then kill -TERM $PPID; fi; touch $ROOT/again");
    let (code, text) = pod.run("wait-0.sh");
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn the_lead_counts_its_cores_if_nobody_says_how_many() {
    let pod = Pod::new("  size: 2\n  containers: [{command: 'true'}]\n", 0);
    pod.behave("if [[ \"$1 $2\" == 'R encode' ]]; then echo '{\"counted\":1}'; fi");
    assert_eq!(pod.lead().0, Some(0));
    assert_eq!(pod.calls()[0], "flux R encode --hosts=lake-\\[0-1\\] --local");
    assert_eq!(pod.read("mnt/flux/config/etc/flux/system/R"), "{\"counted\":1}\n");
    // What a container requests is not what it can use; GPUs are counted by the spec.
    let pod =
        Pod::new("  size: 2\n  containers: [{command: 'true', resources: {limits: {cpu: 1, nvidia.com/gpu: 2}}}]\n", 0);
    pod.behave("if [[ \"$1 $2\" == 'R decode' ]]; then echo 64; fi");
    assert_eq!(pod.lead().0, Some(0));
    let last = pod.calls().into_iter().rfind(|call| call.starts_with("flux R encode")).unwrap();
    assert_eq!(last, "flux R encode --hosts=lake-\\[0-1\\] --cores=0-63 --gpus=0-1");
    // A Flux that cannot leaves the file as it was.
    let pod = Pod::new("  size: 2\n  containers: [{command: 'true'}]\n", 0);
    pod.behave("if [[ $1 == R ]]; then exit 1; fi");
    assert_eq!(pod.lead().0, Some(0));
    assert!(pod.read("mnt/flux/config/etc/flux/system/R").starts_with("{\"version\":1"));
}

const BURSTS: &str = "
  size: 2
  containers: [{command: echo the job}]
  flux: {bursting: {wait: {for: 3, timeout: TIMEOUT}, clusters: [{size: 4}]}}
";

#[test]
fn the_command_waits_for_brokers_of_bursts() {
    let pod = Pod::new(&BURSTS.replace("TIMEOUT", "5m"), 0);
    // Ranks 0 and 1 are the root's own. One more joins with every question.
    let ranks = "if [[ $1 == resource ]]; then echo >>$ROOT/asked; echo 0-$(($(wc -l <$ROOT/asked) + 1)); exit; fi";
    pod.behave(&format!("{ranks}\n{RUN_PROGRAM}"));
    let (code, text) = pod.lead();
    assert!(code == Some(0) && text.contains("\nthe job\n"), "{code:?} {text}");
    assert_eq!(pod.read("asked").lines().count(), 3);
    let submitted = pod.calls().iter().position(|call| call.starts_with("flux submit")).unwrap();
    assert_eq!(submitted, 4, "after the start and three questions: {:?}", pod.calls());
}

#[test]
fn the_command_goes_on_without_bursts_when_the_time_is_up() {
    let pod = Pod::new(&BURSTS.replace("TIMEOUT", "1s"), 0);
    pod.behave(&format!("if [[ $1 == resource ]]; then echo '0-1,5'; exit; fi\n{RUN_PROGRAM}"));
    let (code, text) = pod.lead();
    assert!(code == Some(0) && text.contains("1 of 3 brokers of bursts have joined within 1 s"), "{code:?} {text}");
    assert!(text.contains("the job\n"), "{text}");
}

#[test]
fn ready_is_a_broker_that_runs() {
    let pod = Pod::new("  containers: [{}]\n", 0);
    let ready = |pod: &Pod| pod.run("ready.sh").0;
    assert_eq!(ready(&pod), Some(1), "there is no socket");
    let _socket = pod.socket();
    let run = pod.path("mnt/flux/config/run/flux");
    for (state, expected) in [("join", 1), ("quorum", 1), ("run", 0)] {
        pod.behave(&format!("echo ' 05:12:30 {state} 3.5m,  owner run,  depth 0,  size 4'; echo $FLUX_URI >$ROOT/uri"));
        assert_eq!(ready(&pod), Some(expected), "{state}");
    }
    assert_eq!(pod.read("uri"), format!("local://{}/local\n", run.display()));
    pod.behave("exit 1");
    assert_eq!(ready(&pod), Some(1));
}

#[test]
fn a_broker_that_has_joined_once_is_asked_alone_whether_it_has_its_place_still() {
    let pod = Pod::new("  containers: [{}]\n", 0);
    assert_eq!(pod.run("ready.sh still").0, Some(1), "there is no socket");
    let _socket = pod.socket();
    pod.behave("exit 1");
    assert_eq!(pod.run("ready.sh still").0, Some(1), "its modules are not there");
    pod.behave("if [[ $1 != module ]]; then exit 1; fi");
    assert_eq!(pod.run("ready.sh still").0, Some(0));
    assert_eq!(pod.calls().last().unwrap(), "flux module stats heartbeat");
}

/// A broker that waits for all four, as it does if nothing else is said, and says so.
const FOUR_ARE_WANTED: &str = r#"
case $1 in
uptime) echo ' 05:12:30 quorum 3.5m,  owner run,  depth 0,  size 4' ;;
start) if [[ $* != *broker.quorum=* ]]; then touch $ROOT/waits; exec sleep 1000; fi ;;
esac
"#;

#[test]
fn a_lead_that_waits_for_more_brokers_than_are_wanted_by_now_starts_again_and_waits_for_those() {
    let pod = Pod::new("  size: 4\n  containers: [{cores: 1, command: 'true'}]\n", 0);
    pod.init();
    let _socket = pod.socket();
    pod.behave(FOUR_ARE_WANTED);
    let mut running = pod.start("wait-0.sh");
    pod.until("waits", "");
    pod.write("flux_operator/quorum", "2\n");
    assert_eq!(running.0.wait().unwrap().code(), Some(0), "{}", pod.read("output"));
    let starts: Vec<_> = pod.calls().into_iter().filter(|call| call.starts_with("flux start")).collect();
    let waits = |index: usize| starts[index].contains(" -Sbroker.quorum=2 ");
    assert!(starts.len() == 2 && !waits(0) && waits(1), "{starts:?}");
    assert!(pod.read("output").contains("Fewer brokers are wanted by now"), "{}", pod.read("output"));
}

#[test]
fn a_lead_that_comes_when_the_command_has_ended_well_does_not_run_it_again() {
    let pod = Pod::new("  size: 2\n  containers: [{cores: 1, command: 'true', commands: {post: echo posted}}]\n", 0);
    pod.write("flux_operator/quorum", "0\n");
    let (code, text) = pod.lead();
    assert!(code == Some(0) && text.contains("posted"), "{text}");
    assert_eq!(pod.calls(), [""; 0]);
}

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
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
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
    assert_eq!(running.0.wait().unwrap().code(), Some(0), "the container that runs Flux has ended");
}

#[test]
fn what_prepares_a_sidecar_may_fail_too() {
    let pod = Pod::new(&SIDECAR.replace("name: side,", "name: side, commands: {pre: exit 7},"), 0);
    pod.init();
    let mut running = pod.start("start-1.sh");
    pod.until("output", "Container side ended with 7 and is started again in 1 s.");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

/// The container that runs Flux may be killed without a word: for want of memory, all of it is.
#[test]
fn a_sidecar_ends_when_the_sign_of_life_of_flux_stays_away() {
    let pod = sidecar("exec sleep 1000");
    let script = pod.read("flux_operator/start-1.sh");
    assert!(script.contains("_missed++ >= 90"));
    pod.write("flux_operator/start-1.sh", &script.replace("_missed++ >= 90", "_missed++ >= 3"));
    let _socket = pod.socket();
    let mut running = pod.start("start-1.sh");
    pod.until("side", "local://");
    for beat in 0..6 {
        pod.write("mnt/flux/.alive", &format!("{beat}\n"));
        std::thread::sleep(Duration::from_secs(1));
        assert!(running.0.try_wait().unwrap().is_none(), "it lives");
    }
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let flux = Pod::new(SIDECAR, 0);
    flux.init();
    flux.behave("sleep 1000");
    let _running = flux.start("wait-0.sh");
    flux.until("mnt/flux/.alive", "0\n");
    flux.until("mnt/flux/.alive", "1\n");
}

/// A server has time to write what it holds, and goes after Flux, whose jobs may need it.
#[test]
fn a_sidecar_is_told_to_end_after_flux_and_has_its_time() {
    for name in ["start-1.sh", "services-0.sh"] {
        let serve = r#"sleep 0 flux; bash -c 'trap \"echo told >>$ROOT/told; sleep 1; echo kept >>$ROOT/told; exit 0\" TERM; touch $ROOT/up; while :; do sleep 0.1; done'"#;
        let spec = format!(
            "  containers: [{{runFlux: true, cores: 1}}, {{name: side, command: \"{serve}\"}}]\n  services: [{{name: db, command: \
             \"{serve}\"}}]\n"
        );
        let pod = Pod::new(&spec, 0);
        pod.init();
        pod.write("mnt/flux/.alive", "0\n");
        let _socket = pod.socket();
        let mut running = pod.start(name);
        pod.until("up", "");
        running.signal();
        if name == "start-1.sh" {
            std::thread::sleep(Duration::from_secs(1));
            assert!(!pod.path("told").exists(), "Flux has not ended yet");
            pod.write("mnt/flux/flux-operator-complete.txt", "");
        }
        assert_eq!(running.0.wait().unwrap().code(), Some(143), "{}", pod.read("output"));
        assert_eq!(pod.read("told"), "told\nkept\n", "{name}");
    }
}

#[test]
fn what_a_sidecar_has_set_is_there_when_it_has_ended() {
    let side = "name: side, commands: {servicePre: 'export OUT=\"a $HOME\"; cd /', post: 'echo \"$OUT $PWD $viewroot\" >$ROOT/after'},";
    let pod = Pod::new(
        &SIDECAR.replace("name: side,", side).replace("sleep 0 && . VIEW && ", ": ").replace("COMMAND", ":"),
        0,
    );
    pod.init();
    let _socket = pod.socket();
    let _running = pod.start("start-1.sh");
    pod.until("after", "\n");
    assert_eq!(pod.seen(&pod.read("after")), "a /root / /mnt/flux/view\n");
}

#[test]
fn a_sidecar_that_does_not_speak_with_flux_starts_before_it() {
    let pod = Pod::new("  containers: [{runFlux: true, cores: 1}, {name: side, command: touch $ROOT/serves}]\n", 0);
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
    assert!(pod.path("mnt/flux/flux-operator-complete.txt").exists(), "the other container never ended");
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
fn probes_find_flux_where_the_users_shell_has_found_it() {
    let pod =
        Pod::new("  containers: [{cores: 1, command: hostname, commands: {pre: 'export PATH=/opt/own:$PATH'}}]\n", 0);
    pod.lead();
    let _socket = pod.socket();
    pod.program("opt/own/flux", "#!/bin/bash\necho ' 05:12:30 run 3.5m,  owner run,  depth 0,  size 1'\n");
    pod.behave("exit 1");
    assert_eq!(pod.run("ready.sh").0, Some(0));
}

#[test]
fn what_comes_after_a_sidecar_has_its_time() {
    let side = "name: side, commands: {post: sleep 7; echo after >$ROOT/after},";
    let pod = Pod::new(&SIDECAR.replace("name: side,", side).replace("COMMAND", "sleep 1000"), 0);
    pod.init();
    let mut running = pod.start("start-1.sh");
    pod.write("mnt/flux/flux-operator-complete.txt", "");
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
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
            assert_eq!(running.0.wait().unwrap().code(), Some(0), "the container that runs Flux has ended");
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
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn an_interactive_broker_takes_the_prefix_and_leaves_the_command() {
    let spec =
        "  interactive: true\n  containers: [{cores: 1, command: hostname, commands: {prefix: env -u NOTHING}}]\n";
    let (code, text) = Pod::new(spec, 0).lead();
    assert_eq!(code, Some(0), "flux shutdown completes it: {text}");
    let pod = Pod::new(spec, 0);
    pod.behave("env >$ROOT/env");
    pod.lead();
    assert!(pod.calls().iter().all(|call| call.starts_with("flux broker ") && !call.contains("hostname")));
}

#[test]
fn diagnostics_are_shown_and_the_instance_stays_up() {
    let pod = Pod::new("  size: 2\n  containers: [{cores: 1, diagnostics: true, command: hostname}]\n", 0);
    pod.init();
    pod.behave(&format!("if [[ $1 == dmesg ]]; then echo the log; exit 3; fi\n{RUN_PROGRAM}"));
    let mut running = pod.start("wait-0.sh");
    pod.until("output", "this instance stays up");
    let output = pod.read("output");
    for shown in ["== id\n", "lake-[0-1]\n", "== flux overlay status", "the log\n(ended with 3)\n"] {
        assert!(output.contains(shown), "{shown:?} is not in\n{output}");
    }
    assert!(pod.calls()[0].contains("-Sbroker.quorum=1"), "who is missing is not waited for");
    assert_eq!(running.terminate().code(), Some(143));
}

#[test]
fn munge_gets_a_key_of_its_own() {
    let spec = "  flux: {mungeSecret: keys}\n  containers: [{cores: 1, command: 'true'}]\n";
    let pod = Pod::new(spec, 0);
    // This machine may have one, too.
    let is_here = Command::new("bash").args(["-c", "command -v munged"]).output().unwrap().status.success();
    if !is_here {
        assert_eq!(pod.lead().0, Some(0));
        assert!(!pod.path("run/munge").exists(), "an image without munged needs no key");
    }
    pod.program("bin/munged", "#!/bin/bash\necho \"munged $*\" >>$ROOT/calls\n");
    assert_eq!(pod.lead().0, Some(0));
    assert!(pod.calls().contains(&"munged --force --key-file=/run/munge/munge.key".to_owned()));
    assert_eq!(mode(&pod.path("run/munge/munge.key")), 0o600);
}

const ARCHIVE: &str = "  archive: {path: /state/deep/archive.tgz}\n  containers: [{cores: 1, command: COMMAND}]\n";

/// A broker that writes its dump as Flux does, whatever the command has returned.
const DUMP: &str = r#"
if [[ $1 == start ]]; then
    for word; do
        case $word in
        -Scontent.restore=*) cp "${word#*=}" $ROOT/restored ;;
        -Scontent.dump=*) (cd $ROOT && if [[ -e broken ]]; then echo part; else tar -cz calls; fi) >"${word#*=}" ;;
        esac
    done
    exit $(cat $ROOT/code)
fi
"#;

#[test]
fn an_archive_is_replaced_by_a_whole_one_only() {
    let pod = Pod::new(&ARCHIVE.replace("COMMAND", "'true'"), 0);
    let archive = "state/deep/archive.tgz";
    pod.behave(DUMP);
    for (code, broken, saved) in [("0", false, true), ("3", false, true), ("1", true, false)] {
        pod.write("code", code);
        pod.write(archive, "the one before");
        if broken {
            pod.write("broken", "");
        }
        let (found, text) = pod.lead();
        assert_eq!(found.map(|code| code.to_string()).as_deref(), Some(code), "{text}");
        assert_eq!(pod.read("restored"), "the one before");
        assert_eq!(fs::read(pod.path(archive)).unwrap() != b"the one before", saved, "{code} {text}");
        assert_eq!(text.contains("stays as it was"), !saved);
    }
}
