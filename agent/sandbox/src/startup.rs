//! Waiting until a control plane is usable, and telling why it is not.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::anyhow;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::{Api, Client, api::ListParams};
use tokio::time::{Instant, sleep, timeout};

use crate::{component::Component, group::Process, nodes};

const POLL: Duration = Duration::from_millis(50);
/// How many lines of a component's log are quoted when it ends.
const QUOTED_LINES: usize = 12;

/// A component could not listen because somebody else had taken its port: to be tried again on others.
#[derive(Debug, thiserror::Error)]
#[error("another program took a port of {}", .0.program())]
pub(crate) struct PortTaken(pub(crate) Component);

/// What to wait for, and whose end makes waiting pointless.
pub(crate) struct Startup<'a> {
    pub(crate) client: &'a Client,
    pub(crate) logs: PathBuf,
    pub(crate) processes: Vec<(Component, Arc<Process>)>,
    pub(crate) deadline: Instant,
}

impl Startup<'_> {
    /// Until `/readyz` says so.
    pub(crate) async fn api_server(&self) -> anyhow::Result<()> {
        self.until("the API server to be ready", || async {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(self.client.request_text(request).await.is_ok())
        })
        .await
    }

    /// Until pods can be created in `default`: the controller manager has made its service account.
    pub(crate) async fn service_account(&self) -> anyhow::Result<()> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        self.until("the service account default/default", || async { Ok(api.get_opt("default").await?.is_some()) })
            .await
    }

    /// Until `count` nodes are ready and without the taint of new ones.
    pub(crate) async fn nodes(&self, count: usize) -> anyhow::Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        self.until("the nodes to be ready", || async {
            let nodes = api.list(&ListParams::default()).await?;
            Ok(nodes.iter().filter(|node| nodes::is_ready(node)).count() >= count)
        })
        .await
    }

    async fn until<F: Future<Output = anyhow::Result<bool>>>(
        &self,
        what: &str,
        met: impl Fn() -> F,
    ) -> anyhow::Result<()> {
        let mut last = None;
        while Instant::now() < self.deadline {
            for (component, process) in &self.processes {
                if let Some(status) = process.exited()? {
                    return Err(self.ended(*component, &status.to_string()));
                }
            }
            // A component that hangs must not outlast the deadline.
            match timeout(Duration::from_secs(5), met()).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(error)) => last = Some(error),
            }
            sleep(POLL).await;
        }
        let error = anyhow!("timed out waiting for {what}; the logs are in {}", self.logs.display());
        Err(match last {
            Some(last) => last.context(error),
            None => error,
        })
    }

    fn ended(&self, component: Component, status: &str) -> anyhow::Error {
        let path = self.logs.join(component.program()).with_extension("log");
        let log = fs::read_to_string(&path).unwrap_or_default();
        if log.contains("address already in use") {
            return PortTaken(component).into();
        }
        let lines: Vec<_> = log.lines().collect();
        let quoted = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
        anyhow!("{} ended ({status}), its log ends with:\n{quoted}", component.program())
    }
}
