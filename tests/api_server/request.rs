//! What a request asks for, and the answers that refuse it.

use std::collections::BTreeMap;

use http::request::Parts;
use http::{Method, header};
use kube::Resource;
use kube::core::Status;
use kube::core::response::{StatusDetails, StatusSummary};

/// An answer that is not the object: boxed, since it is large and rare.
pub(super) type Outcome<T> = Result<T, Box<Status>>;

/// What a request asks for, in Kubernetes' own words. Empty text means none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`, as in RBAC.
    pub verb: &'static str,
    /// The path of the URL.
    pub path: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The version in the group.
    pub version: String,
    /// The kind's name in URLs, such as `pods`; empty for discovery.
    pub resource: String,
    /// Such as `status`.
    pub subresource: String,
    /// The namespace; empty for all, and for kinds without namespaces.
    pub namespace: String,
    /// The name of one object.
    pub name: String,
    /// The field manager, or else the program that the user agent names.
    pub manager: String,
    /// The whole user agent.
    pub user_agent: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) patch_type: String,
    pub(super) metadata_only: bool,
}

/// Which object, in the order of lists.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl RequestInfo {
    pub(super) fn of(head: &Parts) -> Self {
        let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let user_agent = text(header::USER_AGENT).to_owned();
        let agent = user_agent.split('/').next().unwrap_or_default();
        let mut info = Self {
            path: head.uri.path().to_owned(),
            manager: query.get("fieldManager").map_or(agent, String::as_str).to_owned(),
            user_agent: user_agent.clone(),
            patch_type: text(header::CONTENT_TYPE).to_owned(),
            metadata_only: text(header::ACCEPT).contains("as=PartialObjectMetadata"),
            query,
            ..Self::default()
        };
        let path = info.path.clone();
        info.locate(&path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>());
        let one = !info.name.is_empty();
        info.verb = match head.method {
            Method::GET if info.is("watch", "true") => "watch",
            Method::GET if one => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if one => "delete",
            Method::DELETE => "deletecollection",
            _ => "other",
        };
        info
    }

    fn locate(&mut self, path: &[&str]) {
        let rest = match path {
            ["api", version, rest @ ..] => {
                self.version = (*version).to_owned();
                rest
            }
            ["apis", group, version, rest @ ..] => {
                (self.group, self.version) = ((*group).to_owned(), (*version).to_owned());
                rest
            }
            _ => return,
        };
        let rest = match rest {
            // A namespace is an object, too.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => rest,
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
                self.namespace = (*namespace).to_owned();
                rest
            }
            _ => rest,
        };
        let mut rest = rest.iter().map(|part| (*part).to_owned());
        self.resource = rest.next().unwrap_or_default();
        self.name = rest.next().unwrap_or_default();
        self.subresource = rest.next().unwrap_or_default();
    }

    /// A request of the simulation itself.
    pub(super) fn own<K: Resource<DynamicType = ()>>(verb: &'static str, namespace: &str, name: &str) -> Self {
        Self {
            verb,
            group: K::group(&()).into_owned(),
            version: K::version(&()).into_owned(),
            resource: K::plural(&()).into_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            manager: "simulation".to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn to(verb: &'static str, key: &Key, manager: &str) -> Self {
        let Key { group, resource, namespace, name } = key.clone();
        Self { verb, group, resource, namespace, name, manager: manager.to_owned(), ..Self::default() }
    }

    pub(super) fn key(&self) -> Key {
        let Self { group, resource, namespace, name, .. } = self.clone();
        Key { group, resource, namespace, name }
    }

    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a parameter of the query has this value: `dryRun`, `All`.
    pub fn is(&self, name: &str, value: &str) -> bool {
        self.parameter(name) == Some(value)
    }

    /// "jobs.batch".
    fn qualified(&self) -> String {
        if self.group.is_empty() { self.resource.clone() } else { format!("{}.{}", self.resource, self.group) }
    }

    pub(super) fn refused(&self, code: u16, reason: &str, message: impl AsRef<str>) -> Box<Status> {
        let details = StatusDetails { name: self.name.clone(), group: self.group.clone(), ..details(&self.resource) };
        Box::new(Status::failure(message.as_ref(), reason).with_code(code).with_details(details))
    }

    pub(super) fn not_found(&self) -> Box<Status> {
        self.refused(404, "NotFound", format!("{} {:?} not found", self.qualified(), self.name))
    }

    pub(super) fn already_exists(&self) -> Box<Status> {
        self.refused(409, "AlreadyExists", format!("{} {:?} already exists", self.qualified(), self.name))
    }

    pub(super) fn conflict(&self, why: &str) -> Box<Status> {
        let message = format!("Operation cannot be fulfilled on {} {:?}: {why}", self.qualified(), self.name);
        self.refused(409, "Conflict", message)
    }

    pub(super) fn invalid(&self, why: &str) -> Box<Status> {
        self.refused(422, "Invalid", format!("{} {:?} is invalid: {why}", self.qualified(), self.name))
    }
}

/// Details of an error about a kind.
pub(super) fn details(kind: &str) -> StatusDetails {
    let (name, group, uid) = (String::new(), String::new(), String::new());
    StatusDetails { name, group, kind: kind.to_owned(), uid, causes: Vec::new(), retry_after_seconds: 0 }
}

pub(super) fn bad_request(message: impl AsRef<str>) -> Box<Status> {
    Box::new(Status::failure(message.as_ref(), "BadRequest").with_code(400))
}

pub(super) fn expired(from: u64, oldest: u64) -> Box<Status> {
    let message = format!("too old resource version: {from} ({oldest})");
    Box::new(Status::failure(&message, "Expired").with_code(410))
}

/// The status as it is sent.
pub(super) fn body(status: &Status) -> serde_json::Value {
    let mut value = serde_json::to_value(status).expect("a status is JSON");
    (value["kind"], value["apiVersion"]) = ("Status".into(), "v1".into());
    let success = status.status == Some(StatusSummary::Success);
    value["status"] = if success { "Success" } else { "Failure" }.into();
    value
}
