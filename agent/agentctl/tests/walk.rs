//! What pages tell their reader to do on clusters one has, carried out as it is written: `agentctl` and the agents are the
//! programs themselves, `kubectl` is what it would send to the API servers. Which pages: `tests/walks.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, ValidationDirective};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Client, Config, discovery};
use serde::Deserialize;
use serde_json::{Value, json};
use tributary::api::minicluster::MiniCluster;

/// How often is looked, and how many times: whatever the README says takes no longer.
const POLL: Duration = Duration::from_millis(200);
const LOOKS: u32 = 300;
/// Ports of the examples; other ones are taken, for they may be in use.
const PORTS: [u16; 8] = [7946, 7947, 7956, 7957, 8080, 8081, 8090, 8091];
/// What is done by kubectl.
const VERBS: [&str; 6] = ["apply", "create", "get", "describe", "patch", "delete"];
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
            "kubectl" => self.kubectl(&words).await,
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

    async fn kubectl(&self, words: &[&str]) -> String {
        let client = self.client(context(words)).await;
        let verb = words.iter().position(|word| VERBS.contains(word)).unwrap();
        match words[verb] {
            "apply" => {
                for object in self.objects(after(words, "-f")) {
                    apply(&client, &object).await;
                }
            }
            "create" => {
                let [_, "namespace", name] = words[verb..] else { panic!("{words:?}") };
                let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                apply(&client, &object).await;
            }
            "patch" | "delete" => {
                let [_, "minicluster", name, ..] = words[verb..] else { panic!("{words:?}") };
                let objects = Api::<MiniCluster>::namespaced(client, "default");
                if words[verb] == "delete" {
                    objects.delete(name, &DeleteParams::default()).await.unwrap();
                } else {
                    assert!(words.contains(&"--type=merge"), "{words:?}");
                    let patch: Value = serde_json::from_str(after(words, "-p").trim_matches('\'')).unwrap();
                    let strict =
                        PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::default() };
                    objects.patch(name, &strict, &Patch::Merge(patch)).await.unwrap();
                }
            }
            "describe" => {
                let [_, "minicluster", name] = words[verb..] else { panic!("{words:?}") };
                Api::<MiniCluster>::namespaced(client, "default").get(name).await.unwrap();
            }
            _ => {
                for kind in words[verb + 1].split(',') {
                    let group = if kind == "miniclusters" { "flux-framework.org" } else { "tributary.dev" };
                    let found = discovery::group(&client, group).await.unwrap();
                    let (resource, _) =
                        found.recommended_resources().into_iter().find(|(it, _)| it.plural == kind).unwrap();
                    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
                    some(kind, &objects).await;
                }
            }
        }
        String::new()
    }

    /// The objects of a file, or of the files of a folder.
    fn objects(&self, path: &str) -> Vec<Value> {
        let path = self.directory.path().join(path);
        let files = match path.is_dir() {
            true => fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => vec![path],
        };
        let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
        let documents = texts.flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap());
        documents.filter(|document| !document.is_null()).collect()
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

/// Waits until there is something to get.
async fn some(kind: &str, objects: &Api<DynamicObject>) {
    for _ in 0..LOOKS {
        if !objects.list(&ListParams::default()).await.unwrap().items.is_empty() {
            return;
        }
        tokio::time::sleep(POLL).await;
    }
    panic!("there are no {kind}");
}

/// Server-side apply; again, as long as the API server does not know the kind yet.
async fn apply(client: &Client, object: &Value) {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Type {
        api_version: String,
        kind: String,
    }
    let Type { api_version, kind } = serde_json::from_value(object.clone()).unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = GroupVersionKind::gvk(group, version, &kind);
    let mut refused = None;
    for _ in 0..LOOKS {
        let error = match discovery::pinned_kind(client, &kind).await {
            Ok((resource, capabilities)) => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
                let api: Api<DynamicObject> = match capabilities.scope {
                    discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
                    discovery::Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
                };
                let name = object["metadata"]["name"].as_str().unwrap();
                let params = PatchParams::apply("kubectl").validation_strict();
                match api.patch(name, &params, &Patch::Apply(object)).await {
                    Ok(_) => return,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        refused = Some(error);
        tokio::time::sleep(POLL).await;
    }
    panic!("{kind:?}: {refused:?}");
}
