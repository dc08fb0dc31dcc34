//! What pages tell their reader to do on clusters one has, carried out as it is written: `agentctl` and the agents are the
//! programs themselves, and so is `kubectl`. Which pages: `tests/walks.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tributary::api::cluster_card;
use tributary_sandbox::{Binaries, Options};

/// How often is looked, and how many times: whatever a page says takes no longer.
const POLL: Duration = Duration::from_millis(200);
const LOOKS: u32 = 300;
/// Ports of the examples; other ones are taken, for they may be in use.
const PORTS: [u16; 8] = [7946, 7947, 7956, 7957, 8080, 8081, 8090, 8091];
/// MiniCluster that is meant where a page says `NAME`.
pub(crate) const NAME: &str = "rest";

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
    /// The context of commands that name none.
    first: String,
}

/// A cluster as pages call it, which is also its context.
pub(crate) struct Role<'a> {
    pub(crate) name: &'a str,
    /// The kubeconfig that has its control plane, and the context's name there.
    pub(crate) at: (&'a Path, &'a str),
    /// Whether others reach its agent.
    pub(crate) reached: bool,
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Walk {
    /// Contexts come from `kubeconfig`.
    pub(crate) fn new(kubeconfig: PathBuf) -> Self {
        let walk = Self {
            directory: tempfile::tempdir().unwrap(),
            kubeconfig,
            ports: PORTS.into_iter().map(|port| (port, free())).collect(),
            agents: Vec::new(),
            token: String::new(),
            started: BTreeSet::new(),
            first: "east".to_owned(),
        };
        let examples = fs::read_dir(repository().join("examples")).unwrap().map(|folder| folder.unwrap());
        let examples = examples.filter(|folder| folder.path().is_dir());
        let examples = examples.map(|folder| Path::new("examples").join(folder.file_name()));
        for folder in examples.chain([PathBuf::from("config/crd")]) {
            let (from, to) = (repository().join(&folder), walk.directory.path().join(&folder));
            fs::create_dir_all(&to).unwrap();
            for file in fs::read_dir(from).unwrap().map(|file| file.unwrap()).filter(|file| file.path().is_file()) {
                let text = fs::read_to_string(file.path()).unwrap();
                fs::write(to.join(file.file_name()), walk.with_free_ports(&text)).unwrap();
            }
        }
        walk
    }

    /// Carries out one line; what a command prints is returned.
    pub(crate) async fn step(&mut self, line: &str) -> String {
        let line = self.with_free_ports(line).replace(" TOKEN", &format!(" {}", self.token));
        let line = line.replace(" NAME-", &format!(" {NAME}-"));
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "kubectl" => self.kubectl(&line, &words).await,
            // It would be lost with the shell: what counts is that there is something.
            "export" => {
                let name = words[1].split('=').next().unwrap();
                self.shell(&format!("{line} && test -n \"${name}\""), false).await
            }
            "tributary-agent" => {
                self.agent(&words).await;
                String::new()
            }
            "agentctl" => {
                // Watching has no end.
                let arguments = words[1..].iter().filter(|word| **word != "--watch");
                let mut command = self.program();
                command.args(arguments).stdin(Stdio::null());
                if !words.contains(&"--endpoint") {
                    // These agents are no pods: nothing can be forwarded to them.
                    command.env("TRIBUTARY_ENDPOINT", format!("http://{}", self.admin(self.context(&words))));
                }
                if !words.contains(&"--context") {
                    command.args(["--context", self.context(&words)]);
                }
                // Nobody is there to be asked.
                if words.contains(&"rekey") || words.contains(&"drain") {
                    command.arg("--yes");
                }
                let mut output = command.output().unwrap();
                // As it is told: an API server may take its time for what is made of a kind that is new.
                if String::from_utf8_lossy(&output.stderr).contains("try again: the token was not used up") {
                    output = command.output().unwrap();
                }
                let (said, text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8(output.stdout).unwrap());
                // A check is there to say no.
                let answered = words.contains(&"check") && output.status.code() == Some(1) && !text.is_empty();
                assert!(output.status.success() || answered, "{line}\n{said}{text}\n{}", self.logs());
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

    /// Starts an agent, and waits until its admin API listens, and it leads: then it says who its cluster is.
    async fn agent(&mut self, words: &[&str]) {
        let file = self.directory.path().join(after(words, "--config"));
        if !self.started.insert(file.clone()) {
            return;
        }
        let mut command = self.program();
        command.arg("__tributary-agent").args(&words[1..]).stdout(Stdio::null());
        command.stderr(fs::File::create(file.with_extension("log")).unwrap());
        // Nobody runs jobs here that would need a minute to end.
        command.env("TRIBUTARY__BURSTING__DRAIN_SECONDS", "1");
        self.agents.push(command.spawn().unwrap());
        let config = tributary::config::Config::load(Some(&file)).unwrap();
        let client = self.client(config.kubernetes.context.as_deref().unwrap_or(&self.first)).await;
        let maps: Api<ConfigMap> = Api::namespaced(client, &config.kubernetes.namespace);
        for _ in 0..LOOKS {
            let listens = TcpStream::connect(config.admin.listen).is_ok();
            if listens && maps.get_opt(cluster_card::NAME).await.is_ok_and(|card| card.is_some()) {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("the agent of {} does not start", file.display());
    }

    /// What its agents have said.
    fn logs(&self) -> String {
        let logs =
            self.started.iter().map(|config| fs::read_to_string(config.with_extension("log")).unwrap_or_default());
        logs.collect::<Vec<_>>().join("\n")
    }

    /// Where the agent of a context serves its admin API.
    fn admin(&self, context: &str) -> SocketAddr {
        let file = self.directory.path().join(format!("examples/without-helm/{context}.toml"));
        tributary::config::Config::load(Some(&file)).unwrap().admin.listen
    }

    async fn kubectl(&self, line: &str, words: &[&str]) -> String {
        // Watching has no end.
        let mut line = line.replace(" --watch", "");
        if !words.contains(&"--context") {
            line.push_str(&format!(" --context {}", self.first));
        }
        // Of several kinds, kubectl says nothing of those that are empty: the wait is for any.
        self.shell(&line, words.contains(&"get")).await
    }

    /// As it is written, with the kubectl that is built with the control planes. Again for a while, as somebody would who sees
    /// that a kind is not served yet, or that there is nothing to get yet.
    async fn shell(&self, line: &str, says_something: bool) -> String {
        let binaries = Binaries::ensure(&Options::default().report).await.unwrap();
        // Assets of somebody else may come without it.
        let built = binaries.program("kubectl");
        let built = built.parent().filter(|_| built.is_file()).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(built.into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut output = None;
        for _ in 0..LOOKS {
            let mut shell = Command::new("sh");
            shell.args(["-c", line]).current_dir(self.directory.path()).env("KUBECONFIG", &self.kubeconfig);
            let last = shell.env("PATH", &path).stdin(Stdio::null()).output().unwrap();
            if last.status.success() && !(says_something && last.stdout.is_empty()) {
                return String::from_utf8(last.stdout).unwrap();
            }
            output = Some(last);
            tokio::time::sleep(POLL).await;
        }
        let said = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        panic!("{line}\n{}", said.unwrap_or_default());
    }

    /// The next pages are about other clusters: control planes get other names, what was in them goes, and each has an agent that
    /// was just installed.
    pub(crate) async fn play(&mut self, roles: &[Role<'_>]) {
        self.stop();
        self.kubeconfig = self.directory.path().join("kubeconfig");
        fs::write(&self.kubeconfig, kubeconfig(roles).to_string()).unwrap();
        roles[0].name.clone_into(&mut self.first);
        for Role { name, reached, .. } in roles {
            let kubectl = format!("kubectl --context {name}");
            self.shell(&format!("{kubectl} apply --server-side --force-conflicts -f config/crd"), true).await;
            let make =
                format!("{kubectl} create namespace tributary-system --dry-run=client -o yaml | {kubectl} apply -f -");
            self.shell(&make, true).await;
            let of_users = "miniclusters,bursts,hostedbursts,fluxjobs,fluxsetups";
            self.shell(&format!("{kubectl} --namespace default delete {of_users} --all --wait=false"), false).await;
            let of_agents = "clusterpeers,secrets,configmaps,leases";
            let delete = format!("{kubectl} --namespace tributary-system delete {of_agents} --all --wait=false");
            self.shell(&delete, false).await;
            let file = format!("examples/without-helm/{name}.toml");
            fs::write(self.directory.path().join(&file), configuration(name, *reached)).unwrap();
            self.agent(&["tributary-agent", "--config", &file]).await;
        }
    }

    fn stop(&mut self) {
        for mut agent in self.agents.drain(..) {
            let _ = agent.kill().and_then(|()| agent.wait().map(drop));
        }
        self.started.clear();
    }

    /// A client of a context.
    pub(crate) async fn client(&self, context: &str) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
    }

    /// The context that a command names, else the root's.
    fn context<'a>(&'a self, words: &[&'a str]) -> &'a str {
        if words.contains(&"--context") { after(words, "--context") } else { &self.first }
    }

    fn with_free_ports(&self, text: &str) -> String {
        self.ports
            .iter()
            .fold(text.to_owned(), |text, (written, free)| text.replace(&format!(":{written}"), &format!(":{free}")))
    }
}

fn free() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Of an agent beside others on this machine.
fn configuration(name: &str, reached: bool) -> String {
    let [federation, join, admin, health] =
        [free(), free(), free(), free()].map(|port| format!("\"127.0.0.1:{port}\""));
    let advertise = if reached { federation.as_str() } else { "" };
    format!(
        "[cluster]\nname = {name:?}\n[kubernetes]\ncontext = {name:?}\nnamespace = \"tributary-system\"\n\
         [federation]\nlisten = {federation}\nadvertise = [{advertise}]\njoin = {{ listen = {join} }}\n\
         [admin]\nlisten = {admin}\n[health]\nlisten = {health}\n"
    )
}

/// With a context for each role; the first is the current one.
fn kubeconfig(roles: &[Role<'_>]) -> Value {
    let [mut clusters, mut users, mut contexts] = [Vec::new(), Vec::new(), Vec::new()];
    for Role { name, at: (file, context), .. } in roles {
        let document: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let entry = |list: &str, name: &Value| {
            let entries = document[list].as_array().unwrap();
            entries.iter().find(|entry| entry["name"] == *name).unwrap_or_else(|| panic!("no {name} in {list}")).clone()
        };
        let context = entry("contexts", &json!(context));
        let mut cluster = entry("clusters", &context["context"]["cluster"]);
        let mut user = entry("users", &context["context"]["user"]);
        (cluster["name"], user["name"]) = (json!(name), json!(name));
        clusters.push(cluster);
        users.push(user);
        contexts.push(json!({"name": name, "context": {"cluster": name, "user": name}}));
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": roles[0].name,
        "clusters": clusters, "users": users, "contexts": contexts,
    })
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
