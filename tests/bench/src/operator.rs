//! The operator under test: any command line, or this program as a Tributary agent.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tributary_sandbox::Options;
use tributary_sandbox::{ADMIN, Cluster, Group, Process, Sandbox, Signal};
use tributary_tests::agent::AGENT_USER;
use tributary_tests::federation::{SYSTEM, apply_crds, make_namespace};

use crate::ways;

/// Set in a process that shall be an agent; its value is the configuration file.
const AGENT: &str = "TRIBUTARY_BENCH_AGENT";

/// If this process was started as the operator, it is one until it ends.
pub(crate) fn become_agent_if_asked() -> Option<ExitCode> {
    if let Some(code) = tributary_tests::agent::become_agent_if_asked() {
        return Some(code);
    }
    if let Some(code) = ways::become_part_if_asked() {
        return Some(code);
    }
    let config = std::env::var_os(AGENT)?;
    Some(tributary_agent::main_with(["tributary-agent".into(), "--config".into(), config]))
}

/// How the operator is started.
pub(crate) struct Operator {
    command: Option<String>,
    agent: Option<PathBuf>,
}

/// A fresh control plane with the operator running.
pub(crate) struct Bed {
    /// The control plane.
    pub(crate) sandbox: Sandbox,
    /// The operator's process.
    pub(crate) process: Arc<Process>,
    group: Group,
    directory: tempfile::TempDir,
}

impl Bed {
    /// The cluster.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.sandbox.clusters()[0]
    }

    /// Ends the operator as Kubernetes ends a pod.
    pub(crate) async fn end(&self) -> anyhow::Result<()> {
        self.group.signal(&self.process, Signal::Terminate)?;
        while self.process.exited()?.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Starts the operator again after it has ended, without more configuration.
    pub(crate) fn start(&mut self, operator: &Operator) -> anyhow::Result<()> {
        self.process = operator.spawn(self.cluster(), &self.group, self.directory.path(), "")?;
        Ok(())
    }

    /// The time that the operator has computed, in its own code and in the kernel.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        cpu(self.process.id())
    }

    /// Resident memory of the operator, in MiB.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        resident(self.process.id())
    }
}

/// The time that a process has computed, in its own code and in the kernel.
pub(crate) fn cpu(process: u32) -> anyhow::Result<Duration> {
    /// What the kernel counts in (`USER_HZ`), on every architecture that Linux still has.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in brackets, may have blanks. Two fields of those after it are utime and stime.
    let (_, fields) = stat.rsplit_once(')').context("no process name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>).sum::<Result<u32, _>>()?;
    Ok(TICK * ticks)
}

/// Resident memory of a process, in MiB.
pub(crate) fn resident(process: u32) -> anyhow::Result<f64> {
    mebibytes(process, "VmRSS:")
}

/// The most resident memory that the operator ever had, in MiB.
pub(crate) fn most_resident(bed: &Bed) -> anyhow::Result<f64> {
    mebibytes(bed.process.id(), "VmHWM:")
}

fn mebibytes(process: u32, field: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).context("the operator has ended")?;
    let line = status.lines().find(|line| line.starts_with(field)).with_context(|| format!("no {field}"))?;
    let kib: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kib / 1024.0)
}

impl Operator {
    /// An operator by its command line; `None`: Tributary, by its program if one is named.
    pub(crate) fn new(command: Option<String>, agent: Option<PathBuf>) -> Self {
        Self { command, agent }
    }

    /// Whether it is Tributary.
    pub(crate) fn is_tributary(&self) -> bool {
        self.command.is_none()
    }

    /// For the first line of the result.
    pub(crate) fn describe(&self) -> String {
        let agent = self.agent.as_ref().map(|program| program.display().to_string());
        let this = || format!("tributary-agent {} (this build)", tributary_agent::VERSION);
        self.command.clone().or(agent).unwrap_or_else(this)
    }

    /// A fresh control plane with the operator running on it, CRDs applied.
    pub(crate) async fn bed(&self) -> anyhow::Result<Bed> {
        self.bed_with("").await
    }

    /// The same with more TOML in its configuration, if it is Tributary.
    pub(crate) async fn bed_with(&self, extra: &str) -> anyhow::Result<Bed> {
        let sandbox = Sandbox::start(Options::named(["bench"])).await?;
        let cluster = &sandbox.clusters()[0];
        let client = cluster.client(ADMIN).await?;
        apply_crds(&client).await?;
        make_namespace(&client, SYSTEM).await?;
        let directory = tempfile::tempdir()?;
        let group = Group::start(Duration::from_secs(1), None)?;
        let process = self.spawn(cluster, &group, directory.path(), extra)?;
        // Until it has its caches and, where it elects one, its leadership.
        tokio::time::sleep(Duration::from_secs(8)).await;
        if let Some(status) = process.exited()? {
            let log = std::fs::read_to_string(directory.path().join("operator.log")).unwrap_or_default();
            anyhow::bail!("the operator ended ({status}):\n{log}");
        }
        Ok(Bed { sandbox, process, group, directory })
    }

    fn spawn(&self, cluster: &Cluster, group: &Group, directory: &Path, extra: &str) -> anyhow::Result<Arc<Process>> {
        let kubeconfig = cluster.kubeconfig_in(AGENT_USER, Some("system:masters"))?;
        let mut command = self.command(&kubeconfig, directory, extra)?;
        Ok(group.spawn_logged(&mut command, &directory.join("operator.log"))?)
    }

    fn command(&self, kubeconfig: &Path, directory: &Path, extra: &str) -> anyhow::Result<Command> {
        if let Some(line) = &self.command {
            let line = line.replace("{kubeconfig}", &kubeconfig.display().to_string());
            let mut command = Command::new("sh");
            command.args(["-c", &format!("exec {line}")]).env("KUBECONFIG", kubeconfig);
            return Ok(command);
        }
        let config = directory.join("agent.toml");
        let text = format!(
            "[cluster]\nname = \"bench\"\n[kubernetes]\nkubeconfig = {kubeconfig:?}\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[health]\nlisten = \"127.0.0.1:0\"\n[log]\nfilter = \"warn\"\n{extra}"
        );
        std::fs::write(&config, text)?;
        if let Some(program) = &self.agent {
            let mut command = Command::new(program);
            command.arg("--config").arg(config);
            return Ok(command);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.env(AGENT, config);
        Ok(command)
    }
}
