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
use jiff::Timestamp;
use serde::Deserialize;

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
    /// When the API server received it, to the microsecond.
    pub received: Timestamp,
    /// When this stage was reached, to the microsecond.
    pub reached: Timestamp,
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
        let event: Line =
            serde_json::from_str(&line).with_context(|| format!("not an audit event: {}", line.trim()))?;
        events.push(event.into());
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: Stage,
    #[serde(rename = "requestURI")]
    uri: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl From<Line> for Event {
    fn from(line: Line) -> Self {
        Self {
            audit_id: line.audit_id,
            stage: line.stage,
            user: line.user.username,
            user_agent: line.user_agent,
            verb: line.verb,
            uri: line.uri,
            group: line.object_ref.api_group,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            code: line.response_status.code,
            received: line.request_received_timestamp,
            reached: line.stage_timestamp,
        }
    }
}

#[cfg(test)]
mod tests;
