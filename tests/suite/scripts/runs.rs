//! What the scripts do: on the lead, on followers, beside them.

use std::fs;
use std::process::Command;

use super::pod::{Pod, RUN_PROGRAM, mode};

/// Options of a broker of `lake` whose spec asks for nothing.
const OPTIONS: &str = "-Scron.directory=/mnt/flux/config/etc/flux/system/cron.d -Stbon.fanout=256 \
                       -Srundir=/mnt/flux/config/run/flux -Sstatedir=/mnt/flux/config/var/lib/flux \
                       -Slocal-uri=local:///mnt/flux/config/run/flux/local -Stbon.connect_timeout=5s \
                       -Slog-stderr-level=6 -Slog-stderr-mode=local";

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
    for (code, expected) in [(0, 0), (3, 3), (128, 1), (137, 1), (143, 1)] {
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

/// The danger: a mirror that does not answer one pod ends a run on all of them.
#[test]
fn a_pod_that_does_not_lead_fails_no_run_and_the_name_of_a_pod_is_its_own() {
    let spec = "
  size: 2
  containers: [{cores: 1, command: hostname, environment: {HOSTNAME: mine}, commands: {pre: '[[ ! -e $ROOT/down ]] || exit CODE'}}]
";
    for (index, code, expected) in [(0, 100, 100), (0, 128, 1), (1, 100, 143)] {
        let mut pod = Pod::new(&spec.replace("CODE", &code.to_string()), index);
        pod.variable("HOSTNAME", "mine");
        pod.variable("JOB_COMPLETION_INDEX", &index.to_string());
        pod.init();
        pod.write("down", "");
        assert_eq!(pod.start("wait-0.sh").0.wait().unwrap().code(), Some(expected), "{}", pod.read("output"));
        assert!(pod.read("output").contains(&format!("I am lake-{index},")), "{}", pod.read("output"));
        assert_eq!(pod.path("dev/termination-log").exists(), index == 1);
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

/// What hooks for the Flux Operator go by.
#[test]
fn upstreams_variables_are_there_and_options_are_added_to_its_text() {
    let spec = r#"
  size: 2
  logging: {strict: true}
  containers:
  - cores: 1
    command: 'true'
    commands:
      pre: |
        echo "$viewbin $fluxpath $foundroot $pythonversion $workdir $hosts $software" >$ROOT/known
        brokerOptions="${brokerOptions} \
           -Sfirst=1 -Ssecond=*"
      brokerPre: brokerOptions+=" -Sthird=3"
"#;
    let mut pod = Pod::new(spec, 0);
    pod.variable("software", "the user's");
    assert_eq!(pod.lead().0, Some(0));
    assert_eq!(
        pod.seen(&pod.read("known")),
        "/mnt/flux/view/bin /mnt/flux/view/bin/flux /mnt/flux/view/lib/python3.11 /mnt/flux/view/bin/python3.11 /work \
         lake-[0-1] the user's\n"
    );
    let options = format!("{OPTIONS} -Sfirst=1 -Ssecond=\\* -Sthird=3 /bin/bash");
    assert!(pod.calls()[0].contains(&options), "{:?}", pod.calls());
}

#[test]
fn quiet_prints_the_output_of_the_job_alone() {
    let spec = "
  logging: {quiet: true}
  containers: [{cores: 1, command: echo the job, commands: {init: echo a, pre: \"echo b\\necho b\", brokerPre: echo c}}]
";
    let pod = Pod::new(spec, 0);
    assert_eq!(pod.lead(), (Some(0), "the job\n".to_owned()));
    let fails = "
  logging: {quiet: true, strict: true}
  containers: [{cores: 1, command: echo the job, commands: {pre: \"echo before; echo why >&2; false\"}}]
";
    assert_eq!(Pod::new(fails, 0).lead(), (Some(1), "why\n".to_owned()));
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
    let pod = Pod::new("  size: 4\n  tasks: 0\n  containers: [{cores: 1, command: 'true'}]\n", 0);
    pod.init();
    let _socket = pod.socket();
    pod.behave(FOUR_ARE_WANTED);
    assert_eq!(pod.read("flux_operator/quorum"), "4\n\n4 0\n");
    let mut running = pod.start("wait-0.sh");
    pod.until("waits", "");
    pod.write("flux_operator/quorum", "2\n\n2 0\n");
    assert_eq!(running.0.wait().unwrap().code(), Some(0), "{}", pod.read("output"));
    let starts: Vec<_> = pod.calls().into_iter().filter(|call| call.starts_with("flux start")).collect();
    let waits = |index: usize| starts[index].contains(" -Sbroker.quorum=2 ");
    assert!(starts.len() == 2 && !waits(0) && waits(1), "{starts:?}");
    let asks = |index: usize, nodes| starts[index].contains(&format!("flux submit -N {nodes} --quiet"));
    assert!(asks(0, 4) && asks(1, 2), "its command would never start: {starts:?}");
    assert!(pod.read("output").contains("Fewer brokers are wanted by now"), "{}", pod.read("output"));
}

/// The danger: brokers that wait for room in a queue hold up a command that has enough without them.
#[test]
fn a_lead_that_starts_while_its_root_grows_asks_for_the_nodes_that_it_was_made_with() {
    let batch = "  size: 2\n  maxSize: 4\n  tasks: 0\n  containers: [{cores: 1, batch: true, command: 'true'}]\n";
    for (wanted, nodes) in [("2\n\n4 0\n", 2), ("2\n", 2), ("1\n\n1 0\n", 1)] {
        let pod = Pod::new(batch, 0);
        pod.write("flux_operator/quorum", wanted);
        let (code, text) = pod.lead();
        assert_eq!(code, Some(0), "{text}");
        assert!(
            pod.calls()[0].ends_with(&format!(" flux batch -N {nodes} --flags waitable ./flux-job.batch")),
            "{text}"
        );
    }
}

/// The danger: a burst that is smaller by now, or gone, holds the command up for ever.
#[test]
fn a_command_waits_for_as_many_brokers_of_bursts_as_are_wanted_by_now() {
    let spec = "
  tasks: 0
  containers: [{cores: 1, command: 'true'}]
  flux: {bursting: {clusters: [{size: 4}], wait: {for: All}, span: true}}
";
    for (wanted, up, nodes) in [("1\n2\n1 2\n", "0-2", 3), ("1\n0\n1 0\n", "0", 1)] {
        let pod = Pod::new(spec, 0);
        pod.init();
        pod.behave(&format!("if [[ $1 == resource ]]; then touch $ROOT/asked; echo {up}; fi\n{RUN_PROGRAM}"));
        let mut running = pod.start("wait-0.sh");
        pod.until("asked", "");
        pod.write("flux_operator/quorum", wanted);
        assert_eq!(running.0.wait().unwrap().code(), Some(0), "{}", pod.read("output"));
        let submitted = format!("flux submit -N {nodes} --quiet --watch true");
        assert!(pod.calls().contains(&submitted), "{:?}", pod.calls());
    }
}

#[test]
fn a_lead_that_comes_when_the_command_has_ended_well_does_not_run_it_again() {
    let pod = Pod::new("  size: 2\n  containers: [{cores: 1, command: 'true', commands: {post: echo posted}}]\n", 0);
    pod.write("flux_operator/quorum", "0\n");
    let (code, text) = pod.lead();
    assert!(code == Some(0) && text.contains("posted"), "{text}");
    assert_eq!(pod.calls(), [""; 0]);
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
