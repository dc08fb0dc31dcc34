//! Two clusters of kind, which go with this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, ensure};
use tributary_sandbox::Access;

use super::{Clusters, Cut, Network, variable};

/// The programs that make clusters: kind, and the container engine that it is to use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tools {
    kind: &'static str,
    engine: &'static str,
}

impl Tools {
    /// Those of this machine, or what it lacks, as a sentence.
    pub(super) fn find() -> Result<Self, String> {
        let says = |program: &str, argument: &str| said(Command::new(program).arg(argument));
        // podman goes by the name of docker on some machines, and kind has to know which one it is.
        let is = |engine: &&str| says(engine, "--version").is_ok_and(|said| said.to_lowercase().starts_with(*engine));
        // The one that kind is told to use, where it is told so.
        let told = variable(PROVIDER);
        let mut engines = ENGINES.into_iter().filter(|engine| told.as_deref().is_none_or(|told| told == *engine));
        let engine = engines.find(|engine| is(engine) && says(engine, "info").is_ok());
        let engine = engine.ok_or("neither docker nor podman answers: kind needs one of them")?;
        if says("kind", "version").is_err() {
            return Err("kind is not installed: https://kind.sigs.k8s.io".to_owned());
        }
        Ok(Self { kind: "kind", engine })
    }

    /// Programs that always fail.
    pub(super) fn broken() -> Self {
        Self { kind: "false", engine: "false" }
    }

    /// kind by itself takes the first engine that is installed, whether it answers or not.
    fn kind(self) -> Command {
        let mut command = Command::new(self.kind);
        command.env(PROVIDER, self.engine);
        command
    }
}

/// What kind calls its engine.
const PROVIDER: &str = "KIND_EXPERIMENTAL_PROVIDER";

/// The engines, the more common one first.
const ENGINES: [&str; 2] = ["docker", "podman"];

/// The clusters, and what removes them again.
pub(super) struct Kind {
    tools: Tools,
    names: [String; 2],
    access: Vec<Access>,
    directory: tempfile::TempDir,
    /// Waits for the end of its standard input, which is ours, and removes the clusters: also when this process is killed.
    _remover: Child,
}

impl Kind {
    /// Makes the clusters, and the agent's image unless it is named; returns its name, too.
    pub(super) fn start(tools: Tools, agent: Option<&str>) -> anyhow::Result<(Self, String)> {
        let directory = tempfile::tempdir()?;
        // Nobody else's, another run's of this minute included: they are deleted at the end.
        let run = std::process::id();
        let names = ["east", "west"].map(|side| format!("tributary-e2e-{run}-{side}"));
        let image = format!("localhost/tributary-agent:e2e-{run}");
        let remover = remover(tools, &names, agent.is_none().then_some(image.as_str()))?;
        // The image is built while the nodes start: both wait a good deal.
        let archive = thread::scope(|scope| {
            let folder = directory.path();
            let starting =
                names.iter().enumerate().map(|(index, name)| scope.spawn(move || create(tools, folder, name, index)));
            let starting: Vec<_> = starting.collect();
            let archive = agent.is_none().then(|| build(tools.engine, directory.path(), &image)).transpose();
            for cluster in starting {
                cluster.join().expect("it does not panic")?;
            }
            archive
        })?;
        let access = names.iter().map(|name| Access {
            name: name.clone(),
            kubeconfig: kubeconfig(directory.path()),
            context: format!("kind-{name}"),
            simulated: false,
        });
        let access = access.collect();
        let kind = Self { tools, names, access, directory, _remover: remover };
        if let Some(archive) = archive {
            kind.load(&archive)?;
        }
        Ok((kind, agent.map_or(image, str::to_owned)))
    }
}

impl Clusters for Kind {
    fn access(&self) -> &[Access] {
        &self.access
    }

    fn load(&self, archive: &Path) -> anyhow::Result<()> {
        for name in &self.names {
            let mut command = self.tools.kind();
            command.args(["load", "image-archive", "--name", name]).arg(archive);
            quietly(command.env("TMPDIR", self.directory.path()), "the image does not go into the cluster")?;
        }
        Ok(())
    }

    fn network(&self, cut: Cut) -> anyhow::Result<Option<Network>> {
        let (ours, theirs) = (nodes(self.tools, &self.names[1])?, nodes(self.tools, &self.names[0])?);
        // Nodes of one cluster drop what comes from the other's before anything else sees it: neither TCP nor QUIC is told.
        let only = if cut == Cut::Agents { "-p udp " } else { "" };
        let rules = |action: &str| {
            let each = ours.iter().flat_map(|node| theirs.iter().map(move |other| (&node.0, &other.1)));
            let rule = |(node, from): (&String, &String)| {
                format!("{} exec {node} iptables -t raw {action} PREROUTING {only}-s {from} -j DROP", self.tools.engine)
            };
            each.map(rule).collect::<Vec<_>>().join(" && ")
        };
        Ok(Some(Network::new(rules("-I"), rules("-D"))))
    }

    /// Its nodes are containers of their names.
    fn on_node(&self, _: usize, node: &str, line: &str) -> anyhow::Result<bool> {
        let hint = format!("node {node} does not do it");
        quietly(Command::new(self.tools.engine).args(["exec", node, "bash", "-c", line]), &hint)?;
        Ok(true)
    }
}

/// Names of a cluster's nodes, and their addresses on the engine's network.
fn nodes(tools: Tools, cluster: &str) -> anyhow::Result<Vec<(String, String)>> {
    let names = said(tools.kind().args(["get", "nodes", "--name", cluster]))?;
    let address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    let find = |node: &str| {
        let address = said(Command::new(tools.engine).args(["inspect", "--format", address, node]))?;
        ensure!(!address.is_empty(), "node {node} has no IPv4 address");
        Ok((node.to_owned(), address))
    };
    names.split_whitespace().map(find).collect()
}

fn kubeconfig(directory: &Path) -> PathBuf {
    directory.join("kubeconfig")
}

fn create(tools: Tools, directory: &Path, name: &str, index: usize) -> anyhow::Result<()> {
    let config = directory.join(format!("{name}.yaml"));
    // Addresses of pods and Services that no other cluster has, as clusters of one organisation have them; a worker, so
    // that replicas have two nodes: beside workers, kind would keep pods from the other one.
    let text = format!(
        "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n\
         networking: {{podSubnet: 10.{}.0.0/16, serviceSubnet: 10.{}.0.0/16}}\n\
         kubeadmConfigPatches: [\"{{kind: InitConfiguration, nodeRegistration: {{taints: []}}}}\"]\n\
         nodes: [{{role: control-plane}}, {{role: worker}}]\n",
        180 + index,
        190 + index
    );
    fs::write(&config, text)?;
    let mut command = tools.kind();
    command.args(["create", "cluster", "--name", name, "--wait", "180s", "--config"]).arg(&config);
    command.arg("--kubeconfig").arg(kubeconfig(directory));
    if let Some(image) = variable("TRIBUTARY_E2E_NODE_IMAGE") {
        command.args(["--image", &image]);
    }
    quietly(&mut command, "kind does not make a cluster")
}

/// The image of the agent as it is here, in an archive: its programs are built as in `agent/Dockerfile`.
fn build(engine: &str, directory: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let [glibc, musl] = ["gnu", "musl"].map(|library| format!("{}-unknown-linux-{library}", std::env::consts::ARCH));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = repository.join("target/e2e");
    let folder = directory.join("image");
    fs::create_dir_all(&folder)?;
    let cargo = |profile: &str, program: &str, platform: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--profile", profile, "--package", program, "--target", platform]);
        cargo.current_dir(&repository).env("CARGO_TARGET_DIR", &target);
        cargo
    };
    let built = |profile: &str, program: &str, platform: &str| {
        fs::copy(target.join(platform).join(profile).join(program), folder.join(program))
    };
    // What release differs in, whole-program optimisation, costs minutes and shows nothing here.
    let mut agent = cargo("measure", "tributary-agent", &glibc);
    quietly(agent.env("RUSTFLAGS", "-C target-feature=+crt-static"), "no static agent could be built")?;
    built("measure", "tributary-agent", &glibc)?;
    let hint = format!("no ends could be built (rustup target add {musl}; a C compiler for musl: musl-tools)");
    quietly(&mut cargo("ends", "tributary-ends", &musl), &hint)?;
    built("ends", "tributary-ends", &musl)?;
    let mut image = Command::new(engine);
    image.args(["build", "--quiet", "--target", "prebuilt", "--tag", name, "--file"]);
    quietly(image.arg(repository.join("agent/Dockerfile")).arg(&folder), "the image could not be built")?;
    let archive = directory.join("agent.tar");
    quietly(Command::new(engine).args(["save", "--output"]).arg(&archive).arg(name), "the image could not be saved")?;
    Ok(archive)
}

/// A process that outlives this one by the removal of the clusters, and of the image that was made for them.
fn remover(tools: Tools, names: &[String], image: Option<&str>) -> anyhow::Result<Child> {
    let Tools { kind, engine } = tools;
    let mut last: Vec<String> =
        names.iter().map(|name| format!("{kind} delete cluster --quiet --name {name}")).collect();
    last.extend(image.map(|image| format!("{engine} rmi --force {image}")));
    let keep = variable("TRIBUTARY_SANDBOX_KEEP").is_some();
    let script =
        format!("trap '' INT TERM; cat > /dev/null; {}", if keep { "true".to_owned() } else { last.join("; ") });
    let mut command = Command::new("bash");
    command
        .env(PROVIDER, engine)
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().context("failed to run bash")
}

/// What a command prints.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command whose output only matters when it fails.
fn quietly(command: &mut Command, hint: &str) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}: {hint}"))?;
    ensure!(output.status.success(), "{hint}: {command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
