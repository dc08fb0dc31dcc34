//! Agents as processes of their own: they can be killed, and their requests told apart in the audit log.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tributary_sandbox::{Group, Process, Signal};

/// Set in a process that shall be an agent; its value is the configuration file.
const AGENT: &str = "TRIBUTARY_TEST_AGENT";

/// User in the kubeconfigs of agents, and in the audit log: the account that the chart makes for them.
pub const AGENT_USER: &str = "system:serviceaccount:tributary-system:tributary";

/// If this process was started by [`Agent::start`], it is an agent, until it ends. The test of this name in each test
/// binary calls it: a test binary has no main of its own.
pub fn become_agent_if_asked() -> Option<ExitCode> {
    let config = std::env::var_os(AGENT)?;
    let arguments = ["tributary-agent".into(), "--config".into(), config];
    Some(tributary_agent::main_with(arguments))
}

/// Name of the test that calls [`become_agent_if_asked`].
const ENTRY: &str = "agent_process";

/// What agents take for their pod's address where the machine has none that is of use.
pub const NOWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 250);

/// What agents take for their pod's address: this machine's, so that they can dial themselves; else [`NOWHERE`], since no
/// Service may lead to loopback.
pub fn agent_pod() -> Ipv4Addr {
    static ADDRESS: OnceLock<Ipv4Addr> = OnceLock::new();
    // A way is looked up, and nothing is sent.
    let own = |to: &str| -> Option<Ipv4Addr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect((to, 9)).ok()?;
        match socket.local_addr().ok()?.ip() {
            IpAddr::V4(own) if !own.is_loopback() && !own.is_link_local() && !own.is_unspecified() => Some(own),
            _ => None,
        }
    };
    *ADDRESS.get_or_init(|| own("192.0.2.1").or_else(|| own("198.51.100.1")).unwrap_or(NOWHERE))
}

/// What agents take for the program of the ends of the tunnel: no pod runs it here.
pub const ENDS: &str = "the ends of the tunnel";

/// Names the program of an agent of another version: `tributary-agent`, as another commit builds it.
pub const OTHER: &str = "TRIBUTARY_OTHER_AGENT";

/// That program, if there is one.
///
/// # Panics
/// The variable names no file: a lane that was asked for must not be skipped.
pub fn other_version() -> Option<PathBuf> {
    let program = std::env::var_os(OTHER).filter(|program| !program.is_empty()).map(PathBuf::from)?;
    assert!(program.is_file(), "{OTHER}={}: there is no such file", program.display());
    Some(program)
}

/// A process of this binary that is an agent with this configuration file.
pub(crate) fn command(config: &Path) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ENTRY, "--exact", "--nocapture"]).env(AGENT, config);
    Ok(command)
}

/// One agent of a cluster.
pub struct Agent {
    /// Name of its cluster.
    pub name: String,
    directory: PathBuf,
    /// Where it listens for peers.
    pub listen: SocketAddr,
    /// Its admin API.
    pub admin: SocketAddr,
    /// Its probes and metrics.
    pub health: SocketAddr,
    /// Its conversion webhook.
    pub webhook: SocketAddr,
    process: Mutex<Option<Arc<Process>>>,
    /// Another version of the agent.
    program: Mutex<Option<PathBuf>>,
}

/// What an agent's configuration needs besides addresses of its own.
pub struct Setup<'a> {
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Kubeconfig of the agent.
    pub kubeconfig: &'a Path,
    /// Directory with its identity; none: the agent makes one.
    pub identity: Option<&'a Path>,
    /// More TOML in the section `kubernetes`.
    pub kubernetes: &'a str,
    /// Where it listens for peers; none: at an address of its own.
    pub listen: Option<SocketAddr>,
    /// More TOML, after everything else.
    pub extra: &'a str,
}

impl<'a> Setup<'a> {
    /// An agent with an identity of its own making, and nothing besides.
    pub fn new(cluster: &'a str, kubeconfig: &'a Path) -> Self {
        Self { cluster, kubeconfig, identity: None, kubernetes: "", listen: None, extra: "" }
    }
}

impl Agent {
    /// Writes the configuration into `directory`; the agent is not started yet.
    pub fn new(directory: &Path, setup: &Setup<'_>) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let agent = Self {
            name: setup.cluster.to_owned(),
            directory: directory.to_owned(),
            listen: setup.listen.map_or_else(free_udp, Ok)?,
            admin: free_tcp()?,
            health: free_tcp()?,
            webhook: free_tcp()?,
            process: Mutex::new(None),
            program: Mutex::new(None),
        };
        let mut text = String::new();
        writeln!(text, "[cluster]\nname = {:?}", setup.cluster)?;
        writeln!(text, "[kubernetes]\nkubeconfig = {:?}\n{}", setup.kubeconfig, setup.kubernetes)?;
        writeln!(text, "[admin]\nlisten = \"{}\"\n[health]\nlisten = \"{}\"", agent.admin, agent.health)?;
        // The API server is on this machine too.
        writeln!(text, "[webhook]\nlisten = \"{0}\"\nurl = \"https://{0}\"", agent.webhook)?;
        writeln!(text, "[federation]\nlisten = \"{0}\"\nadvertise = [\"{0}\"]", agent.listen)?;
        let ends = directory.join("tributary-ends");
        std::fs::write(&ends, ENDS)?;
        writeln!(text, "tunnel = {{ listen = \"0.0.0.0\", address = \"{}\", ends = {ends:?} }}", agent_pod())?;
        if let Some(identity) = setup.identity {
            writeln!(text, "identity = {{ dir = {identity:?} }}")?;
        }
        writeln!(text, "{}", setup.extra)?;
        std::fs::write(agent.config(), text).context("failed to write the agent's configuration")?;
        Ok(agent)
    }

    /// From its next start on it is this program; none: the agent that is tested here.
    pub fn becomes(&self, program: Option<PathBuf>) {
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = program;
    }

    /// Starts the agent as a member of `group`.
    pub fn start(&self, group: &Group) -> anyhow::Result<()> {
        let mut command = match &*self.program.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(program) => {
                let mut command = Command::new(program);
                command.arg("--config").arg(self.config());
                command
            }
            None => command(&self.config())?,
        };
        let process = group.spawn_logged(&mut command, &self.log())?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    /// Ends the agent with SIGKILL: nothing is given up, nobody is told.
    pub fn kill(&self) -> anyhow::Result<()> {
        if let Some(process) = self.running() {
            process.kill()?;
        }
        Ok(())
    }

    /// Asks the agent to end, and waits for it.
    pub async fn stop(&self, group: &Group) -> anyhow::Result<()> {
        if let Some(process) = self.running() {
            group.signal(&process, Signal::Terminate)?;
            tokio::time::timeout(Duration::from_secs(30), process.wait())
                .await
                .context("the agent does not stop")??;
        }
        Ok(())
    }

    /// Stops or continues the agent's process without ending it: a partition, as its peers see it.
    pub fn freeze(&self, group: &Group, frozen: bool) -> anyhow::Result<()> {
        if let Some(process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            group.signal(process, if frozen { Signal::Stop } else { Signal::Continue })?;
        }
        Ok(())
    }

    /// Where its log is.
    pub fn log_path(&self) -> PathBuf {
        self.log()
    }

    /// Its log so far.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|process| process.id())
    }

    /// How it ended, if it did so by itself.
    pub fn ended(&self) -> Option<std::process::ExitStatus> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref().and_then(|process| process.exited().ok().flatten())
    }

    fn running(&self) -> Option<Arc<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn config(&self) -> PathBuf {
        self.directory.join("agent.toml")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("agent.log")
    }
}

/// What a failed test says besides: its directory goes with it.
#[allow(clippy::print_stderr, reason = "a test's output is shown if it fails")]
impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log_text();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            eprintln!("the last lines of the agent of {}:\n{}", self.name, last.join("\n"));
        }
    }
}

fn free_udp() -> std::io::Result<SocketAddr> {
    UdpSocket::bind("127.0.0.1:0")?.local_addr()
}

fn free_tcp() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
