//! What clients asked the API server for: its audit log, read by tests that count requests.
//!
//! Format: <https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/>. The control plane's own users are not
//! in it (see `assets/audit-policy.yaml`); controllers are, as `system:serviceaccount:kube-system:…`.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

/// The audit log of one cluster.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
}

/// A place in an [`AuditLog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marker(u64);

/// One request, at one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The same for all stages of a request.
    pub audit_id: String,
    /// How far the request is.
    pub stage: Stage,
    /// Who asked: a certificate's CN, or `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// What the client calls itself.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for paths that are no
    /// resources the HTTP method in lower case.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// API group; empty for the core group and for paths that are no resources.
    pub group: String,
    /// Plural resource name, such as `pods`; empty for paths that are no resources.
    pub resource: String,
    /// Such as `status`; empty for the resource itself.
    pub subresource: String,
    /// Empty for resources without one, and for lists over all.
    pub namespace: String,
    /// Empty where the request names no object, as in lists and most creations.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// Stages of a request that are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Stage {
    /// The headers of a long answer are sent: the start of a watch.
    ResponseStarted,
    /// It is answered.
    ResponseComplete,
    /// The API server failed on it.
    Panic,
}

impl AuditLog {
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The end of the log as it is now.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn marker(&self) -> anyhow::Result<Marker> {
        let metadata = self.path.metadata().with_context(|| format!("failed to read {}", self.path.display()))?;
        Ok(Marker(metadata.len()))
    }

    /// All events after `marker`, in the order they were written in.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else than audit events.
    pub(crate) fn since(&self, marker: Marker) -> anyhow::Result<Vec<Event>> {
        let open = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(marker.0))?;
            Ok::<_, std::io::Error>(BufReader::new(file))
        };
        let file = open().with_context(|| format!("failed to read {}", self.path.display()))?;
        parse(file).with_context(|| format!("failed to read {}", self.path.display()))
    }

    /// All events since the start of the cluster.
    ///
    /// # Errors
    /// As [`AuditLog::since`].
    pub fn all(&self) -> anyhow::Result<Vec<Event>> {
        self.since(Marker(0))
    }

    /// The requests that `user` made after `marker`, each once: answered, or a watch that is open. A short answer is
    /// in the log before its client has it; one of more than some 4 KiB may be a moment late.
    ///
    /// # Errors
    /// As [`AuditLog::since`].
    pub fn requests(&self, user: &str, marker: Marker) -> anyhow::Result<Vec<Event>> {
        let mut requests = self.since(marker)?;
        requests.retain(|event| event.user == user && event.counts());
        Ok(requests)
    }
}

impl Event {
    fn read(line: &str) -> serde_json::Result<Self> {
        let line: Value = serde_json::from_str(line)?;
        let text = |at: &str| line.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self {
            audit_id: text("/auditID"),
            stage: Stage::deserialize(&line["stage"])?,
            user: text("/user/username"),
            user_agent: text("/userAgent"),
            verb: text("/verb"),
            uri: text("/requestURI"),
            group: text("/objectRef/apiGroup"),
            resource: text("/objectRef/resource"),
            subresource: text("/objectRef/subresource"),
            namespace: text("/objectRef/namespace"),
            name: text("/objectRef/name"),
            code: line.pointer("/responseStatus/code").map_or(Ok(0), u16::deserialize)?,
        })
    }

    /// Whether this is the one event of its request that a count should see: the start of a long answer, and the end
    /// of any other.
    pub fn counts(&self) -> bool {
        (self.stage == Stage::ResponseStarted) == self.is_long_running()
    }

    /// A watch, of a list or of one object.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// What the API server calls long-running: only these have a [`Stage::ResponseStarted`].
    pub fn is_long_running(&self) -> bool {
        let streams = ["attach", "exec", "log", "portforward", "proxy"];
        self.is_watch() || self.verb == "proxy" || streams.contains(&self.subresource.as_str())
    }

    /// A request for a `coordination.k8s.io` Lease.
    pub fn is_lease(&self) -> bool {
        self.group == "coordination.k8s.io" && self.resource == "leases"
    }

    /// A request that is meant to change something.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }
}

/// Reads whole lines only: the last one may be half written.
fn parse(mut lines: impl BufRead) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(events);
        }
        events.push(Event::read(&line).with_context(|| format!("not an audit event: {}", line.trim()))?);
    }
}

#[cfg(test)]
mod tests;
