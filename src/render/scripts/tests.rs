//! The scripts, executed: real bash, a stand-in for `flux` that records what it is asked, and a directory in place of the
//! container's file system.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::render::tests::lake;
use crate::render::{Context, render};

/// Records its arguments, one line per call; what it does then is in the file `behaviour`, as shell.
const FLUX: &str = r#"#!/bin/bash
printf '%q ' "$@" >>"$ROOT/calls"; echo >>"$ROOT/calls"
. "$ROOT/behaviour"
"#;

/// What brokers and submissions do: run the words after the options.
const RUN_PROGRAM: &str = r#"
if [[ $1 == start ]]; then
    shift
    while [[ $1 == -* || $1 == */etc/flux/config ]]; do
        if [[ $1 == -o ]]; then shift; fi
        shift
    done
    if (($# > 0)); then "$@"; exit $?; fi
elif [[ $1 == submit ]]; then
    shift
    while [[ $1 == -* ]]; do
        if [[ $1 == --flags || $1 == -N ]]; then shift; fi
        shift
    done
    "$@"
    exit $?
elif [[ $1 == batch ]]; then
    exec "${@: -1}"
fi
"#;

/// The pod's file system: every absolute path of the scripts lies below `root`.
struct Pod {
    root: TempDir,
    host: String,
}

impl Pod {
    /// A pod of the MiniCluster `lake` with this spec.
    fn new(spec: &str, index: u32) -> Self {
        let root = tempfile::tempdir().unwrap();
        let pod = Self { root, host: format!("lake-{index}") };
        for directory in
            ["flux_operator", "flux_operator_curve", "bin", "work", "tmp", "dev", "opt/views/._view/abc/bin"]
        {
            fs::create_dir_all(pod.path(directory)).unwrap();
        }
        fs::create_dir_all(pod.path("opt/views/._view/abc/lib/python3.11/site-packages")).unwrap();
        fs::create_dir_all(pod.path("opt/views/._view/abc/etc")).unwrap();
        std::os::unix::fs::symlink("/nowhere", pod.path("opt/views/._view/abc/etc/link")).unwrap();
        fs::write(pod.path("opt/views/._view/abc/bin/python3.11"), "").unwrap();
        pod.write("flux_operator_curve/curve.cert", "certificate\n");
        let (flux, time) = (pod.path("bin/flux"), pod.path("bin/time"));
        fs::write(&flux, FLUX).unwrap();
        fs::write(&time, "#!/bin/bash\nshift 2\n\"$@\"\n").unwrap();
        for file in [&flux, &time] {
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        pod.behave(RUN_PROGRAM);
        let rendered = render(&lake(spec), &Context::default()).unwrap_or_else(|problems| panic!("{problems}"));
        let template = rendered.job.spec.unwrap().template.spec.unwrap();
        let volumes = template.volumes.unwrap();
        let source =
            volumes.iter().find(|volume| volume.name == "lake-entrypoint").unwrap().config_map.clone().unwrap();
        for item in source.items.unwrap() {
            let text = &rendered.boot.files[&item.key];
            pod.write(&format!("flux_operator/{}", item.path), &pod.inside(text));
        }
        pod
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn behave(&self, shell: &str) {
        self.write("behaviour", shell);
    }

    /// The text with the container's paths below our root.
    fn inside(&self, text: &str) -> String {
        let root = self.root.path().display().to_string();
        let mut text = text.to_owned();
        for path in ["/flux_operator", "/mnt/flux", "/opt/", "/tmp/", "/home/flux-operator", "/dev/termination-log"] {
            text = text.replace(path, &format!("{root}{path}"));
        }
        text.replace("/usr/bin/time", &format!("{root}/bin/time")).replace(&format!("{root}{root}"), &root)
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.arg(self.path("flux_operator").join(script)).current_dir(self.path("work")).env_clear();
        command.env("PATH", path).env("ROOT", self.root.path()).env("HOSTNAME", &self.host).env("HOME", "/root");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a script to its end: its exit code and what it printed.
    fn run(&self, script: &str) -> (Option<i32>, String) {
        let output = self.command(script).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    }

    fn init(&self) {
        let (code, text) = self.run("flux-init.sh");
        assert_eq!(code, Some(0), "{text}");
    }

    /// Runs the lead's script after the init script.
    fn lead(&self) -> (Option<i32>, String) {
        self.init();
        self.run("wait-0.sh")
    }

    /// Starts a script that goes on.
    fn start(&self, script: &str) -> Running {
        let output = fs::File::create(self.path("output")).unwrap();
        let mut command = self.command(script);
        let child = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
        Running(child)
    }

    /// Waits until a file has this text, and fails with what was printed if that never comes.
    fn until(&self, path: &str, text: &str) {
        for _ in 0..3000 {
            if fs::read_to_string(self.path(path)).is_ok_and(|found| found.contains(text)) {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        panic!("{path} never has {text:?}:\n{}", fs::read_to_string(self.path("output")).unwrap_or_default());
    }

    fn calls(&self) -> Vec<String> {
        let root = self.root.path().display().to_string();
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        calls.lines().map(|line| line.trim().replace(&root, "")).collect()
    }
}

/// A script that was started; it is killed with the test.
struct Running(Child);

impl Running {
    fn terminate(&mut self) -> ExitStatus {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

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
    for (code, expected) in [(0, 0), (3, 3), (137, 1), (143, 1)] {
        let pod = Pod::new(&format!("  size: 2\n  containers: [{{cores: 1, command: sh -c 'exit {code}'}}]\n"), 0);
        let (found, text) = pod.lead();
        assert_eq!(found, Some(expected), "{text}");
        let submit = format!("flux submit -n1 --quiet --watch sh -c 'exit {code}'").replace('\'', "");
        let submit = submit.replace("exit ", "exit\\ ");
        assert_eq!(pod.calls()[0], format!("start -o --config /mnt/flux/config/etc/flux/config {OPTIONS} {submit}"));
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
    pod.behave(&format!(
        "{RUN_PROGRAM}\nif [[ \"$1 $2\" == 'job wait' ]]; then exit $(cat $ROOT/result 2>/dev/null || echo 0); fi\n"
    ));
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

    pod.write("result", "5");
    assert_eq!(pod.run("wait-0.sh").0, Some(5), "a job that fails fails the batch");
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
    assert_eq!(pod.calls(), [format!("broker --config-path /mnt/flux/config/etc/flux/config {options}")]);
}

#[test]
fn sigterm_reaches_the_broker_behind_time() {
    let pod = Pod::new("  logging: {timed: true}\n  containers: [{cores: 1, command: hostname}]\n", 0);
    pod.init();
    fs::remove_file(pod.path("bin/time")).unwrap();
    // The stand-in has the name of the real one, and like it passes nothing on.
    pod.write("bin/time", "#!/bin/bash\ntrap : TERM\necho time >/proc/$$/comm\nshift 2\n\"$@\"\n");
    fs::set_permissions(pod.path("bin/time"), fs::Permissions::from_mode(0o755)).unwrap();
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
    assert_eq!(pod.calls()[0], format!("start -o --config /mnt/flux/config/etc/flux/config {OPTIONS}"));
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
    let spec = "  size: 2\n  containers: [{}]\n  flux: {completeWorkers: true, leadBroker: {address: 192.0.2.1, name: river, size: 1}}\n";
    let pod = Pod::new(spec, 0);
    pod.init();
    pod.behave("echo start >>$ROOT/starts; if (($(wc -l <$ROOT/starts) < 2)); then exit 0; fi; exec sleep 1000");
    let mut running = pod.start("wait-0.sh");
    pod.until("starts", "start\nstart\n");
    assert_eq!(running.terminate().code(), Some(143));
}

#[test]
fn the_lead_counts_its_cores_if_nobody_says_how_many() {
    let pod = Pod::new("  size: 2\n  containers: [{command: 'true'}]\n", 0);
    pod.behave("if [[ \"$1 $2\" == 'R encode' ]]; then echo '{\"counted\":1}'; fi");
    assert_eq!(pod.lead().0, Some(0));
    assert_eq!(pod.calls()[0], "R encode --hosts=lake-\\[0-1\\] --local");
    assert_eq!(pod.read("mnt/flux/config/etc/flux/system/R"), "{\"counted\":1}\n");
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
    let submitted = pod.calls().iter().position(|call| call.starts_with("submit")).unwrap();
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
    let run = pod.path("mnt/flux/config/run/flux");
    fs::create_dir_all(&run).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(run.join("local")).unwrap();
    for (state, expected) in [("join", 1), ("quorum", 1), ("run", 0)] {
        pod.behave(&format!("echo ' 05:12:30 {state} 3.5m,  owner run,  depth 0,  size 4'; echo $FLUX_URI >$ROOT/uri"));
        assert_eq!(ready(&pod), Some(expected), "{state}");
    }
    assert_eq!(pod.read("uri"), format!("local://{}/local\n", run.display()));
    pod.behave("exit 1");
    assert_eq!(ready(&pod), Some(1));
}

const SIDECAR: &str = "
  size: 2
  flux: {environment: {GREETING: it's \"a\" $b}}
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
fn a_sidecar_waits_for_the_socket_and_ends_as_its_command_does() {
    let pod = sidecar("exit 6");
    let mut running = pod.start("start-1.sh");
    pod.until("mnt/flux/flux-connect.sh", "flux proxy");
    assert!(!pod.path("side").exists(), "the broker is not there yet");
    let run = pod.path("mnt/flux/config/run/flux");
    let _socket = std::os::unix::net::UnixListener::bind(run.join("local")).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(6));
    assert_eq!(pod.read("side"), format!("local://{}/local;it's \"a\" $b\n", run.display()));
}

#[test]
fn a_sidecar_that_serves_for_ever_ends_with_the_pod() {
    for over in [true, false] {
        let pod = sidecar("exec sleep 1000");
        let _socket = std::os::unix::net::UnixListener::bind(pod.path("mnt/flux/config/run/flux/local")).unwrap();
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
