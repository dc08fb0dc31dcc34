//! One control plane: its start, its kubeconfigs and its nodes.

use std::{
    collections::BTreeMap,
    env, fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    access::Access,
    binaries::Binaries,
    component::{self, AUDIT_LOG, Component, Ports},
    group::{Group, Process},
    kubeconfig,
    networks::Networks,
    nodes,
    options::{ClusterOptions, NodeGroup, Report},
    pki::{Identity, Pki, write_private},
    startup::{PortTaken, Startup},
};

#[cfg(any(test, feature = "testing"))]
mod faults;

const AUDIT_POLICY: &str = include_str!("../assets/audit-policy.yaml");
const KWOK_STAGES: &str = include_str!("../assets/kwok-stages.yaml");
/// Programs of a control plane take more than half of their time for Go's collector, unless it may wait for more garbage.
const COLLECTS_LESS: [(&str, &str); 2] = [("GOGC", "300"), ("GOMEMLIMIT", "640MiB")];
/// How often a cluster is started again because a port of it was taken.
const ATTEMPTS: u32 = 5;

/// The user of [`Cluster::kubeconfig`] that people and tests are.
pub const ADMIN: &str = "admin";

/// What all clusters of a sandbox have in common.
pub(crate) struct Shared {
    pub(crate) group: Group,
    pub(crate) binaries: Binaries,
    pub(crate) directory: PathBuf,
    pub(crate) ready_timeout: Duration,
    pub(crate) report: Report,
}

/// A running control plane with simulated nodes. It ends with its [`Sandbox`](crate::Sandbox).
pub struct Cluster {
    shared: Arc<Shared>,
    options: ClusterOptions,
    directory: PathBuf,
    networks: Networks,
    ports: Ports,
    pki: Pki,
    processes: Mutex<BTreeMap<Component, Arc<Process>>>,
    node_count: tokio::sync::Mutex<u32>,
    started_in: Duration,
}

impl Cluster {
    pub(crate) async fn start(shared: Arc<Shared>, options: ClusterOptions, index: usize) -> anyhow::Result<Self> {
        let began = Instant::now();
        for attempt in 1.. {
            let mut cluster = Self::prepare(shared.clone(), options.clone(), index)?;
            match cluster.bring_up().await {
                Ok(()) => {
                    cluster.started_in = began.elapsed();
                    return Ok(cluster);
                }
                Err(error) if attempt < ATTEMPTS && error.is::<PortTaken>() => {
                    shared.report.line(&format!("cluster {}: {error}, starting it again", options.name));
                    cluster.kill();
                }
                Err(error) => {
                    cluster.kill();
                    return Err(error.context(format!("failed to start cluster {}", options.name)));
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Name, and context in every kubeconfig.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// URL of the API server.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// Where each component's log is, as `<program>.log`.
    pub fn logs(&self) -> PathBuf {
        self.directory.join("logs")
    }

    /// How long it took from its start until pods could be created and would run.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// A kubeconfig of `user`, who may do everything. Different users can be told apart in [`Cluster::audit`]. The file
    /// is made when it is first asked for.
    ///
    /// # Errors
    /// The file cannot be written, or `user` cannot be a file's name.
    pub fn kubeconfig(&self, user: &str) -> anyhow::Result<PathBuf> {
        self.kubeconfig_in(user, Some("system:masters"))
    }

    /// As [`Cluster::kubeconfig`], for a user in `group`, or in none, who may do what RBAC grants.
    ///
    /// # Errors
    /// As [`Cluster::kubeconfig`].
    pub fn kubeconfig_in(&self, user: &str, group: Option<&str>) -> anyhow::Result<PathBuf> {
        anyhow::ensure!(!user.is_empty() && !user.contains('/'), "user {user:?} cannot be part of a file's name");
        let suffix = match group {
            Some("system:masters") => String::new(),
            Some(group) => format!("@{}", group.replace('/', "_")),
            None => "@".to_owned(),
        };
        let path = self.directory.join(format!("kubeconfig-{user}{suffix}"));
        if !path.exists() {
            self.write_kubeconfig(&path, user, group)?;
        }
        Ok(path)
    }

    /// All that a process of its own needs to know, as `user`.
    ///
    /// # Errors
    /// As [`Cluster::kubeconfig`].
    pub fn access(&self, user: &str) -> anyhow::Result<Access> {
        let kubeconfig = self.kubeconfig(user)?;
        Ok(Access { name: self.name().to_owned(), kubeconfig, context: self.name().to_owned(), simulated: true })
    }

    /// What a client of `user` needs. It is not bound to a runtime.
    ///
    /// # Errors
    /// As [`Cluster::kubeconfig`].
    pub(crate) async fn config(&self, user: &str) -> anyhow::Result<Config> {
        crate::access::config(&self.kubeconfig(user)?, None).await
    }

    /// A client of `user` for the runtime that calls this: a client dies with its runtime.
    ///
    /// # Errors
    /// As [`Cluster::kubeconfig`].
    pub async fn client(&self, user: &str) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config(user).await?)?)
    }

    pub(crate) fn kubeconfig_context<'a>(&'a self, user: &'a str, identity: &'a Identity) -> kubeconfig::Context<'a> {
        kubeconfig::Context {
            cluster: self.name(),
            server: self.server(),
            authority: self.pki.authority_certificate(),
            user,
            identity,
        }
    }

    pub(crate) fn admin(&self) -> anyhow::Result<Identity> {
        self.pki.client(ADMIN, Some("system:masters"))
    }

    /// Everything that is on disk before the first program runs.
    fn prepare(shared: Arc<Shared>, options: ClusterOptions, index: usize) -> anyhow::Result<Self> {
        let directory = shared.directory.join(&options.name);
        if directory.exists() {
            fs::remove_dir_all(&directory).with_context(|| format!("failed to remove {}", directory.display()))?;
        }
        let logs = directory.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("failed to create {}", logs.display()))?;
        let networks = Networks::of(index)?;
        let addresses = [Ipv4Addr::LOCALHOST, networks.api_service()].map(IpAddr::from);
        let pki = Pki::create(&directory.join("pki"), &options.name, &addresses)?;
        write_private(&directory.join("audit-policy.yaml"), AUDIT_POLICY)?;
        write_private(&directory.join("kwok-stages.yaml"), KWOK_STAGES)?;
        write_private(&directory.join(AUDIT_LOG), "")?;
        Ok(Self {
            shared,
            options,
            directory,
            networks,
            ports: Ports::default(),
            pki,
            processes: Mutex::default(),
            node_count: tokio::sync::Mutex::default(),
            started_in: Duration::ZERO,
        })
    }

    async fn bring_up(&mut self) -> anyhow::Result<()> {
        let (ports, mut held) = Ports::find().context("failed to find free ports")?;
        self.ports = ports;
        for component in Component::ALL {
            if let Some((user, group)) = component.user() {
                self.write_kubeconfig(&self.directory.join(component::kubeconfig_name(component)), user, group)?;
            }
        }
        let mut start = |component: Component| {
            for (_, port) in held.extract_if(.., |(owner, _)| *owner == component) {
                port.release();
            }
            self.spawn(component)
        };
        start(Component::Etcd)?;
        start(Component::ApiServer)?;
        let client = self.client(ADMIN).await?;
        self.startup(&client).api_server().await?;
        for component in [Component::ControllerManager, Component::Kwok, Component::Scheduler] {
            start(component)?;
        }
        self.create_nodes(&client, &self.options.nodes).await?;
        let startup = self.startup(&client);
        let count = *self.node_count.lock().await;
        startup.nodes(count as usize).await?;
        startup.service_account().await
    }

    async fn create_nodes(&self, client: &Client, groups: &[NodeGroup]) -> anyhow::Result<()> {
        let mut count = self.node_count.lock().await;
        for group in groups {
            nodes::create(client, nodes::nodes(self.name(), (self.networks, self.ports.kwok), *count, group)?).await?;
            *count += group.count;
        }
        Ok(())
    }

    fn spawn(&self, component: Component) -> anyhow::Result<()> {
        let program = component.program();
        let mut command = Command::new(self.shared.binaries.program(program));
        command
            .args(component::arguments(component, &self.directory, &self.ports, self.networks))
            .current_dir(&self.directory)
            .env_clear()
            .envs(env::var_os("PATH").map(|path| ("PATH", path)))
            // kwok and others read configuration from a person's home.
            .env("HOME", &self.directory)
            .envs(COLLECTS_LESS);
        if component == Component::ApiServer {
            command.args(&self.options.api_server_arguments);
        }
        let log = self.logs().join(program).with_extension("log");
        let process =
            self.shared.group.spawn_logged(&mut command, &log).with_context(|| format!("failed to start {program}"))?;
        self.processes.lock().insert(component, process);
        Ok(())
    }

    fn startup<'a>(&self, client: &'a Client) -> Startup<'a> {
        Startup {
            client,
            logs: self.logs(),
            processes: self.processes.lock().iter().map(|(component, process)| (*component, process.clone())).collect(),
            deadline: Instant::now() + self.shared.ready_timeout,
        }
    }

    fn write_kubeconfig(&self, path: &Path, user: &str, group: Option<&str>) -> anyhow::Result<()> {
        let identity = self.pki.client(user, group)?;
        write_private(path, &kubeconfig::document(&[self.kubeconfig_context(user, &identity)]).to_string())
    }

    fn kill(&self) {
        let processes = std::mem::take(&mut *self.processes.lock());
        for (component, process) in processes {
            if let Err(error) = process.kill() {
                tracing::warn!(cluster = self.name(), component = component.program(), %error, "failed to kill");
            }
        }
    }
}
