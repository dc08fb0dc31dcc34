//! A stand-in for one pod: real bash, a `flux` that records what it is asked, and a directory in place of the file system.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use k8s_openapi::api::core::v1::{KeyToPath, PodSpec};
use tempfile::TempDir;
use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, Rendered, render};

/// Records its arguments, one line per call; what it does then is in the file `behaviour`, as shell.
const FLUX: &str = r#"#!/bin/bash
echo "${AS-}flux$(printf ' %q' "$@")" >>"$ROOT/calls"
. "$ROOT/behaviour"
"#;

/// What brokers and submissions do: run the words after the options.
pub(super) const RUN_PROGRAM: &str = r#"
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

/// Paths of a container that scripts touch, and that lie below our root instead.
const INSIDE: [&str; 11] = [
    "/code/.",
    "/flux_operator",
    "/opt/",
    "/tmp/",
    "/home/",
    "/dev/termination-log",
    "/etc/passwd",
    "/etc/group",
    "/etc/munge/",
    "/run/munge",
    "/usr/bin/time",
];

/// The MiniCluster `lake`, with this spec in YAML.
pub(super) fn lake(spec: &str) -> MiniCluster {
    let yaml = format!("metadata:\n  name: lake\n  namespace: waters\n  uid: lake-uid\nspec:\n{spec}");
    serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

/// The permissions of a file.
pub(super) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The pod's file system: every absolute path of the scripts lies below `root`.
pub(super) struct Pod {
    root: TempDir,
    host: String,
    mount_path: String,
    inside: Vec<String>,
    has_machine: bool,
    variables: Vec<(String, String)>,
}

impl Pod {
    /// A pod of the MiniCluster `lake` with this spec.
    pub(super) fn new(spec: &str, index: u32) -> Self {
        let lake = lake(spec);
        let rendered = render(&lake, &Context::default()).unwrap_or_else(|problems| panic!("{problems}"));
        Self::of(&lake, &rendered, index)
    }

    /// A pod of the Job.
    pub(super) fn of(mini_cluster: &MiniCluster, rendered: &Rendered, index: u32) -> Self {
        let name = mini_cluster.metadata.name.as_deref().unwrap();
        let mut inside: Vec<String> = INSIDE.iter().map(|&path| path.to_owned()).collect();
        let mount_path = mini_cluster.spec.flux.mount_path().to_owned();
        inside.push(mount_path.clone());
        inside.extend(mini_cluster.spec.archive.path.clone().filter(|path| path.starts_with('/')));
        let logs = mini_cluster.spec.containers.iter().filter_map(|container| container.logs.clone());
        inside.extend(logs.filter(|path| path.starts_with('/')));
        let (root, host) = (tempfile::tempdir().unwrap(), format!("{name}-{index}"));
        let pod = Self { root, host, mount_path, inside, has_machine: true, variables: Vec::new() };
        for directory in ["flux_operator_curve", "etc/munge", "bin", "work", "tmp", "dev"] {
            fs::create_dir_all(pod.path(directory)).unwrap();
        }
        pod.make_view();
        pod.write("flux_operator_curve/curve.cert", "certificate\n");
        pod.write("etc/munge/munge.key", "munge key\n");
        for file in ["calls", "etc/passwd", "etc/group"] {
            pod.write(file, "");
        }
        pod.program("bin/flux", FLUX);
        pod.program("usr/bin/time", "#!/bin/bash\nshift 2\n\"$@\"\n");
        pod.behave(RUN_PROGRAM);
        let template = rendered.job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        let service = rendered.service_pod.as_ref().and_then(|pod| pod.spec.as_ref());
        for item in [Some(template), service].into_iter().flatten().flat_map(entrypoint) {
            let path = format!("flux_operator/{}", item.path);
            pod.write(&path, &pod.moved(&rendered.boot.files[&item.key]));
        }
        pod
    }

    fn make_view(&self) {
        let view = |path: &str| self.path(&format!("opt/views/._view/abc/{path}"));
        for directory in ["bin", "etc", "lib/python3.11/site-packages"] {
            fs::create_dir_all(view(directory)).unwrap();
        }
        std::os::unix::fs::symlink("/nowhere", view("etc/link")).unwrap();
        fs::write(view("bin/python3.11"), "").unwrap();
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A program of the image.
    pub(super) fn program(&self, path: &str, text: &str) {
        self.write(path, text);
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// What `flux` does after it has recorded a call.
    pub(super) fn behave(&self, shell: &str) {
        self.write("behaviour", shell);
    }

    /// A local socket, as a broker makes it.
    pub(super) fn socket(&self) -> std::os::unix::net::UnixListener {
        let folder = self.path(&format!("{}/config/run/flux", &self.mount_path[1..]));
        fs::create_dir_all(&folder).unwrap();
        std::os::unix::net::UnixListener::bind(folder.join("local")).unwrap()
    }

    /// The same pod in an image that has the programs in its `bin` only.
    pub(super) fn without_the_machine(self) -> Self {
        Self { has_machine: false, ..self }
    }

    /// A variable of the container.
    pub(super) fn variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// The text with the container's paths below our root.
    pub(super) fn moved(&self, text: &str) -> String {
        let mut moved = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let path = self.inside.iter().filter(|path| rest.starts_with(path.as_str())).max_by_key(|path| path.len());
            let length = path.map_or(c.len_utf8(), String::len);
            if path.is_some() {
                moved += self.root.path().to_str().unwrap();
            }
            moved += &rest[..length];
            rest = &rest[length..];
        }
        moved
    }

    fn command(&self, script: &str) -> Command {
        let mut words = script.split(' ');
        let script = words.next().unwrap();
        let is_sh = self.read(&format!("flux_operator/{script}")).starts_with("#!/bin/sh\n");
        // A shell that starts tests in the background has them ignored; in a container nothing is.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT").arg(if is_sh { "sh" } else { "bash" });
        let mut path = self.path("bin").display().to_string();
        if self.has_machine {
            path = format!("{path}:{}", std::env::var("PATH").unwrap());
        }
        command.arg(self.path("flux_operator").join(script)).args(words).current_dir(self.path("work")).env_clear();
        command.env("PATH", path).env("ROOT", self.root.path()).env("HOSTNAME", &self.host).env("HOME", "/root");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a script, and its arguments, to its end: its exit code and what it printed.
    pub(super) fn run(&self, script: &str) -> (Option<i32>, String) {
        let mut child = self.command(script).spawn().unwrap();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (mut printed, mut errors) = (Vec::new(), Vec::new());
        // Unlike `output`, which waits for the script only when nothing holds its pipes any more: what the script left in
        // the background holds them until it sees that the script is gone.
        let status = thread::scope(|scope| {
            scope.spawn(|| stdout.read_to_end(&mut printed).unwrap());
            scope.spawn(|| stderr.read_to_end(&mut errors).unwrap());
            child.wait().unwrap()
        });
        printed.extend(errors);
        (status.code(), String::from_utf8_lossy(&printed).into_owned())
    }

    pub(super) fn init(&self) {
        let (code, text) = self.run("flux-init.sh");
        assert_eq!(code, Some(0), "{text}");
    }

    /// Runs the lead's script after the init script.
    pub(super) fn lead(&self) -> (Option<i32>, String) {
        self.init();
        self.run("wait-0.sh")
    }

    /// Starts a script that goes on.
    pub(super) fn start(&self, script: &str) -> Running {
        let output = fs::File::create(self.path("output")).unwrap();
        let mut command = self.command(script);
        let child = command.stdout(output.try_clone().unwrap()).stderr(output).process_group(0).spawn().unwrap();
        Running(child)
    }

    /// Waits until a file has this text, and fails with what was printed if that never comes.
    pub(super) fn until(&self, path: &str, text: &str) {
        for _ in 0..3000 {
            if fs::read_to_string(self.path(path)).is_ok_and(|found| found.contains(text)) {
                return;
            }
            thread::park_timeout(std::time::Duration::from_millis(10));
        }
        panic!("{path} never has {text:?}:\n{}", fs::read_to_string(self.path("output")).unwrap_or_default());
    }

    /// What was recorded, with the paths that a container sees.
    pub(super) fn calls(&self) -> Vec<String> {
        let calls = self.read("calls");
        calls.lines().map(|line| self.seen(line.trim())).filter(|call| !is_of_queue(call)).collect()
    }

    /// Calls of the program that tells of the queue, which come beside all others.
    pub(super) fn calls_of_queue(&self) -> Vec<String> {
        let calls = self.read("calls");
        calls.lines().map(|line| self.seen(line.trim())).filter(|call| is_of_queue(call)).collect()
    }

    /// The text with the paths that a container sees.
    pub(super) fn seen(&self, text: &str) -> String {
        text.replace(self.root.path().to_str().unwrap(), "")
    }
}

fn is_of_queue(call: &str) -> bool {
    ["flux python -c import\\ flux.job", "flux python /flux_operator/tell-queue.py"]
        .iter()
        .any(|own| call.starts_with(own))
}

/// The files of the ConfigMap that a pod mounts.
fn entrypoint(pod: &PodSpec) -> Vec<KeyToPath> {
    let volumes = pod.volumes.iter().flatten();
    let ours = volumes.filter(|volume| volume.name.ends_with("-entrypoint"));
    ours.filter_map(|volume| volume.config_map.clone()?.items).flatten().collect()
}

/// A script that was started; it is killed with the test, and as in a container what it leaves behind is killed with it.
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub(super) fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}
