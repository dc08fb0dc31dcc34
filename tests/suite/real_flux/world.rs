//! A world of its own for one test: clusters that cannot reach each other, pods without a kubelet, a relay between.
//!
//! User, network, mount, host name and pid namespaces do what containers would, without an engine, an image or rights: a
//! broker sees its own host name, `eth0`, `/etc/hosts` and port 8050, so it boots with exactly the files that pods get. The
//! first process of the world's pid namespace reads a pipe that only this process holds: when the test ends, by SIGKILL
//! too, the kernel ends everything in it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use super::install::{Install, SYSTEM_PATH};
use super::pod::{Pod, PodSpec};

const WORLD: &str = include_str!("world.sh");
const POD: &str = include_str!("pod.sh");

/// TCP port of every broker, and of the Service that leads to the lead.
pub(super) const PORT: u16 = 8050;

/// Most seconds one command in a pod may take: far more than any needs, so that a hang is a failure.
const COMMAND_LIMIT: &str = "120";

/// Which addresses a world has, and no others: of cluster `n`, `10.n.0.0/24` or `fd00:n::/64`.
#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn address(self, cluster: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, cluster, 0, host).into(),
            Self::V6 => Ipv6Addr::new(0xfd00, cluster.into(), 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    /// With the length of its cluster's prefix.
    fn with_prefix(self, address: IpAddr) -> String {
        let length = match self {
            Self::V4 => 24,
            Self::V6 => 64,
        };
        format!("{address}/{length}")
    }
}

/// The namespaces, and what is known about them.
pub(super) struct World {
    guard: Child,
    directory: TempDir,
    pub(super) install: Install,
    clusters: Vec<String>,
    /// By cluster, in the order in which they were published.
    names: RefCell<BTreeMap<String, Vec<(String, IpAddr)>>>,
    pods: Cell<u8>,
    family: Family,
    /// It has no users of its own but those of the machine.
    shares_users: bool,
}

impl World {
    /// A world with these clusters and nothing in them.
    pub(super) fn start(install: Install, clusters: &[&str]) -> Result<Self> {
        Self::new(install, clusters, Family::V4, false)
    }

    /// The same where nothing has an IPv4 address.
    pub(super) fn of_ipv6(install: Install, clusters: &[&str]) -> Result<Self> {
        Self::new(install, clusters, Family::V6, false)
    }

    /// One in which other users than root exist; `None`, with a line that says so, if we are not root.
    pub(super) fn with_users(install: Install, clusters: &[&str]) -> Result<Option<Self>> {
        if std::fs::metadata("/proc/self")?.uid() == 0 {
            return Self::new(install, clusters, Family::V4, true).map(Some);
        }
        writeln!(std::io::stderr(), "SKIPPED: real_flux: only root can try what Flux does as another user")?;
        Ok(None)
    }

    fn new(install: Install, clusters: &[&str], family: Family, shares_users: bool) -> Result<Self> {
        let directory = TempDir::new()?;
        for (name, script) in [("world.sh", WORLD), ("pod.sh", POD)] {
            std::fs::write(directory.path().join(name), script)?;
        }
        let bridges = (1..).take(clusters.len()).map(|number| family.with_prefix(family.address(number, 1)));
        let users: &[&str] = if shares_users { &[] } else { &["--user", "--map-root-user"] };
        let mut guard = Command::new("unshare")
            .args(users)
            .args(["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "bash"])
            .arg(directory.path().join("world.sh"))
            .arg(directory.path())
            .args(bridges)
            .env_clear()
            .env("PATH", SYSTEM_PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to run unshare (util-linux)")?;
        let mut line = String::new();
        BufReader::new(guard.stdout.take().expect("it is piped")).read_line(&mut line)?;
        ensure!(
            line == "ready\n",
            "failed to make namespaces: unprivileged user namespaces or root, and ip, are needed"
        );
        let clusters: Vec<String> = clusters.iter().map(|&name| name.to_owned()).collect();
        let (names, pods) = (RefCell::default(), Cell::new(0));
        let world = Self { guard, directory, install, clusters, names, pods, family, shares_users };
        for cluster in &world.clusters {
            world.write_names(cluster)?;
        }
        Ok(world)
    }

    /// A folder that goes with the world.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.directory.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Address of a cluster's router: where its pods reach what is outside.
    pub(super) fn router(&self, cluster: &str) -> IpAddr {
        self.family.address(self.number(cluster), 1)
    }

    /// What the cluster's DNS says for a name from now on.
    pub(super) fn publish(&self, cluster: &str, name: &str, address: IpAddr) -> Result<()> {
        {
            let mut names = self.names.borrow_mut();
            let names = names.entry(cluster.to_owned()).or_default();
            match names.iter_mut().find(|(known, _)| known == name) {
                Some(known) => known.1 = address,
                None => names.push((name.to_owned(), address)),
            }
        }
        self.write_names(cluster)
    }

    /// Starts a pod, whose `fqdn` its cluster's DNS then knows. Every pod has an address of its own, as in Kubernetes.
    pub(super) fn start_pod(&self, spec: &PodSpec) -> Result<Pod<'_>> {
        let number = self.pods.get() + 1;
        self.pods.set(number);
        let address = self.family.address(self.number(&spec.cluster), number + 1);
        let netns = format!("pod{number}");
        let bridge = format!("br{}", self.number(&spec.cluster));
        let pod_sh = self.directory.path().join("pod.sh");
        let log = self.directory.path().join(format!("{}.{number}.log", spec.host));
        let root = self.folder(&format!("{netns}.root"))?;

        let mut attach = self.command();
        attach.arg("bash").arg(&pod_sh).args(["attach", &netns, &bridge]);
        attach.args([self.family.with_prefix(address), self.router(&spec.cluster).to_string()]);
        run(&mut attach).context("failed to attach a pod to its network")?;
        self.publish(&spec.cluster, &spec.fqdn, address)?;

        let mut start = self.command();
        start.env("PATH", self.install.path()).envs(&spec.environment);
        start.arg("bash").arg(&pod_sh).arg("start").arg(&pod_sh).arg(&netns).arg(&log);
        start.arg(&root).arg(self.install.root.join("opt")).arg(&spec.host);
        start.arg(self.hosts_file(&spec.cluster)).arg("/etc/hosts");
        for (source, target) in &spec.mounts {
            start.arg(source).arg(target);
        }
        start.arg("--").args(&spec.command);
        let mut child = start.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "pod {} did not start: {}", spec.host, tail(&log));
        let process = line.trim_end().parse()?;
        Ok(Pod::new(self, spec, (address, number), process, child, log))
    }

    /// Whether packets pass between clusters, which they do not at first: those that do not are dropped, and nobody is told.
    pub(super) fn forward(&self, packets: bool) -> Result<()> {
        let mut command = self.command();
        let order = format!("echo {} > /proc/sys/net/ipv4/ip_forward", i32::from(packets));
        run(command.args(["bash", "-c", &order])).map(drop)
    }

    /// A relay that listens on the router of `cluster` and leads to `target`, port [`PORT`] both.
    pub(super) fn relay(&self, cluster: &str, target: IpAddr) -> Result<Relay> {
        self.relay_by(env!("CARGO_BIN_EXE_nodeport_relay"), cluster, target)
    }

    /// The same by two agents and the tunnel between them; a cut is one of the way between the agents.
    pub(super) fn tunnel(&self, cluster: &str, target: IpAddr) -> Result<Relay> {
        self.relay_by(env!("CARGO_BIN_EXE_tunnel_relay"), cluster, target)
    }

    fn relay_by(&self, program: &str, cluster: &str, target: IpAddr) -> Result<Relay> {
        let mut command = self.command();
        command.arg(program);
        command.args([self.router(cluster), target].map(|address| SocketAddr::new(address, PORT).to_string()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let orders = child.stdin.take();
        let mut relay = Relay { child, orders, answers };
        ensure!(relay.answer()? == "ready", "the relay did not start");
        Ok(relay)
    }

    /// `nsenter` into the world, with an empty environment: the command is to be added.
    pub(super) fn command(&self) -> Command {
        let namespaces = format!("/proc/{}/ns", self.guard.id());
        let mut command = Command::new("nsenter");
        for name in ["user", "net", "mount", "uts"].into_iter().skip(usize::from(self.shares_users)) {
            let file = if name == "mount" { "mnt" } else { name };
            command.arg(format!("--{name}={namespaces}/{file}"));
        }
        command.arg(format!("--pid={namespaces}/pid_for_children"));
        if !self.shares_users {
            command.arg("--preserve-credentials");
        }
        command.arg("--").env_clear().env("PATH", SYSTEM_PATH);
        command
    }

    /// The same into a pod, bounded in time.
    pub(super) fn command_in(&self, process: u32, environment: &BTreeMap<String, String>) -> Command {
        let namespaces = format!("/proc/{process}/ns");
        let mut command = self.command();
        command.arg("nsenter").arg(format!("--net={namespaces}/net")).arg(format!("--uts={namespaces}/uts"));
        command.arg(format!("--mount={namespaces}/mnt")).arg(format!("--pid={namespaces}/pid_for_children"));
        command.args(["--", "timeout", "--kill-after=5", COMMAND_LIMIT]);
        command.env("PATH", self.install.path()).envs(environment);
        command
    }

    fn number(&self, cluster: &str) -> u8 {
        let position = self.clusters.iter().position(|known| known == cluster).expect("a cluster of this world");
        u8::try_from(position + 1).expect("few clusters")
    }

    fn hosts_file(&self, cluster: &str) -> PathBuf {
        self.directory.path().join(format!("{cluster}.hosts"))
    }

    /// In place: pods see the file through a mount. Those that read it meanwhile miss no name that was there before.
    fn write_names(&self, cluster: &str) -> Result<()> {
        let mut text = String::from("127.0.0.1 localhost\n");
        for (name, address) in self.names.borrow().get(cluster).into_iter().flatten() {
            writeln!(text, "{address} {name}")?;
        }
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(self.hosts_file(cluster))?;
        file.write_all(text.as_bytes())?;
        Ok(file.set_len(u64::try_from(text.len())?)?)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// The NodePort of a lead, or the tunnel to it, as a cluster sees it.
pub(super) struct Relay {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Relay {
    /// Connections that are open now.
    pub(super) fn links(&mut self) -> Result<u32> {
        Ok(self.ask("links")?.parse()?)
    }

    /// Connections that agents only relay, because they end in pods.
    pub(super) fn relayed(&mut self) -> Result<u32> {
        Ok(self.ask("relayed")?.parse()?)
    }

    /// Kills the agents, on both sides.
    pub(super) fn kill(mut self) -> Result<()> {
        let orders = self.orders.as_mut().expect("it is there until the relay is dropped");
        writeln!(orders, "die")?;
        self.child.wait()?;
        Ok(())
    }

    /// Closes all connections, and accepts none until [`Self::heal`]; of a tunnel, nothing gets through until then.
    pub(super) fn cut(&mut self) -> Result<()> {
        self.ask("cut").map(drop)
    }

    /// Leaves the open connections of a NodePort without another end, and tells nobody; new ones lead to the lead.
    pub(super) fn strand(&mut self) -> Result<()> {
        self.ask("strand").map(drop)
    }

    /// Ends [`Self::cut`].
    pub(super) fn heal(&mut self) -> Result<()> {
        self.ask("heal").map(drop)
    }

    fn ask(&mut self, order: &str) -> Result<String> {
        let orders = self.orders.as_mut().expect("it is there until the relay is dropped");
        writeln!(orders, "{order}")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the relay ended");
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// What a command printed on standard output, without the blanks around it.
///
/// # Errors
/// It could not be run or failed: with what it printed.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        let shown: Vec<_> = command.get_args().skip_while(|argument| *argument != "timeout").skip(3).collect();
        bail!("{shown:?} ended with {}: {}\n{}", output.status, text(&output.stderr), text(&output.stdout));
    }
    Ok(text(&output.stdout))
}

/// The last part of a log, for a test that fails.
pub(super) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
