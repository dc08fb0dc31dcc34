//! What pages tell their reader to do on clusters one has, carried out as it is written: `agentctl` and the agents are the
//! programs themselves, and so is `kubectl`. Which pages: `tests/walks.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tributary_sandbox::{Binaries, Options};

/// How often is looked, and how many times: whatever the README says takes no longer.
const POLL: Duration = Duration::from_millis(200);
const LOOKS: u32 = 300;
/// Ports of the examples; other ones are taken, for they may be in use.
const PORTS: [u16; 8] = [7946, 7947, 7956, 7957, 8080, 8081, 8090, 8091];
/// Files that pages name.
const FOLDERS: [&str; 6] = [
    "config/crd",
    "examples/by-hand",
    "examples/queue",
    "examples/quickstart",
    "examples/two-clusters",
    "examples/without-helm",
];

/// Walks through all commands of pages, in a directory of its own.
pub(crate) struct Walk {
    directory: tempfile::TempDir,
    kubeconfig: PathBuf,
    ports: BTreeMap<u16, u16>,
    agents: Vec<Child>,
    /// What `token create` printed, for the step that says TOKEN.
    token: String,
    /// Agents that run: two pages start the same.
    started: BTreeSet<PathBuf>,
}

impl Drop for Walk {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill().and_then(|()| agent.wait().map(drop));
        }
    }
}

impl Walk {
    /// Contexts come from `kubeconfig`.
    pub(crate) fn new(kubeconfig: PathBuf) -> Self {
        let free = |port: u16| (port, TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
        let walk = Self {
            directory: tempfile::tempdir().unwrap(),
            kubeconfig,
            ports: PORTS.into_iter().map(free).collect(),
            agents: Vec::new(),
            token: String::new(),
            started: BTreeSet::new(),
        };
        for folder in FOLDERS {
            let (from, to) = (repository().join(folder), walk.directory.path().join(folder));
            fs::create_dir_all(&to).unwrap();
            for file in fs::read_dir(from).unwrap() {
                let file = file.unwrap();
                let text = fs::read_to_string(file.path()).unwrap();
                fs::write(to.join(file.file_name()), walk.with_free_ports(&text)).unwrap();
            }
        }
        walk
    }

    /// Carries out one line; what a command prints is returned.
    pub(crate) async fn step(&mut self, line: &str) -> String {
        let line = self.with_free_ports(line).replace("TOKEN", &self.token);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            // Both programs are here already.
            "cargo" => String::new(),
            "kubectl" => self.kubectl(&line, &words).await,
            "tributary-agent" => {
                self.agent(&words);
                String::new()
            }
            "agentctl" => {
                // Watching has no end.
                let arguments = words[1..].iter().filter(|word| **word != "--watch");
                let mut command = self.program();
                command.args(arguments).stdin(Stdio::null());
                if !words.contains(&"--endpoint") {
                    // These agents are no pods: nothing can be forwarded to them.
                    command.env("TRIBUTARY_ENDPOINT", format!("http://{}", self.admin(context(&words))));
                }
                if !words.contains(&"--context") {
                    command.args(["--context", context(&words)]);
                }
                if words.contains(&"rekey") {
                    command.arg("--yes");
                }
                let output = command.output().unwrap();
                let (said, text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8(output.stdout).unwrap());
                // A check is there to say no.
                let answered = words.contains(&"check") && output.status.code() == Some(1) && !text.is_empty();
                assert!(output.status.success() || answered, "{line}\n{said}{text}");
                if words.windows(2).any(|pair| pair == ["token", "create"]) {
                    text.trim().clone_into(&mut self.token);
                }
                text
            }
            _ => panic!("nobody knows how to do this: {line}"),
        }
    }

    fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentctl"));
        command.current_dir(self.directory.path()).env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Starts an agent, and waits until its admin API listens.
    fn agent(&mut self, words: &[&str]) {
        let file = self.directory.path().join(after(words, "--config"));
        if !self.started.insert(file.clone()) {
            return;
        }
        let mut command = self.program();
        command.arg("__tributary-agent").args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        self.agents.push(command.spawn().unwrap());
        let config = tributary::config::Config::load(Some(&file)).unwrap();
        for _ in 0..LOOKS {
            if TcpStream::connect(config.admin.listen).is_ok() {
                return;
            }
            std::thread::sleep(POLL);
        }
        panic!("the agent of {} does not start", file.display());
    }

    /// Where the agent of a context serves its admin API.
    fn admin(&self, context: &str) -> SocketAddr {
        let file = self.directory.path().join(format!("examples/without-helm/{context}.toml"));
        tributary::config::Config::load(Some(&file)).unwrap().admin.listen
    }

    /// As it is written, by the kubectl that is built with the control planes. Again for a while, as somebody would who sees
    /// that a kind is not served yet, or that there is nothing to get yet.
    async fn kubectl(&self, line: &str, words: &[&str]) -> String {
        let binaries = Binaries::ensure(&Options::default().report).await.unwrap();
        let program = binaries.program("kubectl");
        // Assets of somebody else may come without it.
        let program = if program.is_file() { program } else { PathBuf::from("kubectl") };
        // Watching has no end.
        let mut line = line.replacen("kubectl", &program.display().to_string(), 1).replace(" --watch", "");
        if !words.contains(&"--context") {
            line.push_str(&format!(" --context {}", context(words)));
        }
        let mut output = None;
        for _ in 0..LOOKS {
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]).current_dir(self.directory.path()).env("KUBECONFIG", &self.kubeconfig);
            let last = shell.stdin(Stdio::null()).output().unwrap();
            // Of several kinds, kubectl says nothing of those that are empty: the wait is for any.
            let something = !words.contains(&"get") || !last.stdout.is_empty();
            if last.status.success() && something {
                return String::from_utf8(last.stdout).unwrap();
            }
            output = Some(last);
            tokio::time::sleep(POLL).await;
        }
        let said = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        panic!("{line}\n{}", said.unwrap_or_default());
    }

    /// A client of a context.
    pub(crate) async fn client(&self, context: &str) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
    }

    fn with_free_ports(&self, text: &str) -> String {
        self.ports
            .iter()
            .fold(text.to_owned(), |text, (written, free)| text.replace(&format!(":{written}"), &format!(":{free}")))
    }
}

/// The context that a command names, else the root's.
fn context<'a>(words: &[&'a str]) -> &'a str {
    if words.contains(&"--context") { after(words, "--context") } else { "east" }
}

fn after<'a>(words: &[&'a str], option: &str) -> &'a str {
    let at = words.iter().position(|word| *word == option).unwrap_or_else(|| panic!("no {option} in {words:?}"));
    words[at + 1]
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The command lines that this walk is to carry out, by the list of walks, with their pages.
pub(crate) fn commands_of(walk: &str) -> Vec<(String, String)> {
    let list = fs::read_to_string(repository().join("tests/walks.txt")).unwrap();
    let mut commands = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let [page, heading, of] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        if of == walk {
            let text = fs::read_to_string(repository().join(page)).unwrap();
            let section = match heading {
                "-" => text.as_str(),
                heading => {
                    let below = text.split(&format!("\n{heading}\n")).nth(1);
                    below.unwrap_or_else(|| panic!("{page} has no {heading:?}")).split("\n## ").next().unwrap()
                }
            };
            let fences = section.split("```console\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
            let lines = fences.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ "));
            // What stands behind a command is for the reader.
            let lines = lines.map(|line| line.split(" # ").next().unwrap().trim_end().to_owned());
            commands.extend(lines.map(|line| (page.to_owned(), line)));
        }
    }
    commands
}
