//! What tests do to a cluster and ask it: its audit log, more nodes, components that stop.

use std::time::Duration;

use anyhow::Context;

use super::{ADMIN, ATTEMPTS, Cluster};
use crate::{
    audit::AuditLog,
    component::{AUDIT_LOG, Component},
    group::Signal,
    options::NodeGroup,
    startup::PortTaken,
};

impl Cluster {
    /// The requests that the API server was sent.
    pub fn audit(&self) -> AuditLog {
        AuditLog::at(&self.directory.join(AUDIT_LOG))
    }

    /// Adds nodes, named on from those there are, and waits until they are ready.
    ///
    /// # Errors
    /// The API server refuses them, they do not become ready in time, or the cluster's addresses are used up.
    pub async fn add_nodes(&self, group: &NodeGroup) -> anyhow::Result<()> {
        let client = self.client(ADMIN).await?;
        self.create_nodes(&client, std::slice::from_ref(group)).await?;
        let count = *self.node_count.lock().await;
        self.startup(&client).nodes(count as usize).await
    }

    /// Ends a component with SIGKILL. What it kept (etcd's data, its port, its certificates) stays for
    /// [`Cluster::start_component`]. Nothing happens if it is not running.
    ///
    /// # Errors
    /// The process cannot be killed.
    pub fn stop_component(&self, component: Component) -> anyhow::Result<()> {
        let process = self.processes.lock().remove(&component);
        match process {
            Some(process) => {
                process.kill().map(drop).with_context(|| format!("failed to stop {}", component.program()))
            }
            None => Ok(()),
        }
    }

    /// Starts a component that was stopped, on its old port, and waits until the API server is ready. Nothing happens
    /// if it is running.
    ///
    /// # Errors
    /// It does not start, or ends at once.
    pub async fn start_component(&self, component: Component) -> anyhow::Result<()> {
        if self.processes.lock().contains_key(&component) {
            return Ok(());
        }
        let client = self.client(ADMIN).await?;
        for attempt in 1.. {
            self.spawn(component)?;
            match self.startup(&client).api_server().await {
                // Connections of the killed one can hold the port for a moment.
                Err(error) if attempt < ATTEMPTS && error.is::<PortTaken>() => {
                    self.processes.lock().remove(&component);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                result => return result.with_context(|| format!("failed to start {}", component.program())),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Stops a component in its tracks: it keeps its connections and answers none.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn pause_component(&self, component: Component) -> anyhow::Result<()> {
        self.signal(component, Signal::Stop)
    }

    /// Lets a paused component run on.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn resume_component(&self, component: Component) -> anyhow::Result<()> {
        self.signal(component, Signal::Continue)
    }

    fn signal(&self, component: Component, signal: Signal) -> anyhow::Result<()> {
        match self.processes.lock().get(&component) {
            Some(process) => self
                .shared
                .group
                .signal(process, signal)
                .with_context(|| format!("failed to signal {}", component.program())),
            None => Ok(()),
        }
    }
}
