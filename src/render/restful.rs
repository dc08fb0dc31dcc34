//! The RESTful server on the lead: who may use it, and where it is found.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, Secret, SecretKeySelector, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tributary_api::minicluster::{FluxRestful, MiniCluster};
use tributary_api::{labels, names};

use super::containers::tcp;
use super::metadata;
use super::model::Model;

/// Key of the Secret: name of the user.
pub const USERNAME: &str = "username";
/// Key of the Secret: the user's token.
pub const TOKEN: &str = "token";
/// Key of the Secret: what server and client share.
pub const SECRET_KEY: &str = "secret-key";
/// Key of the Secret: more users, a name and a password on each line.
pub const USERS: &str = "users";

/// Variables that the server reads them from, and whether it can do without. The names are the server's own, but for the
/// last, which our script reads.
const VARIABLES: [(&str, &str, bool); 4] = [
    ("FLUX_USER", USERNAME, false),
    ("FLUX_TOKEN", TOKEN, false),
    ("FLUX_SECRET_KEY", SECRET_KEY, false),
    ("FLUX_RESTFUL_USERS", USERS, true),
];

/// Who may use a server. For the Secret only.
pub struct Credentials {
    /// Name of the first user.
    pub username: String,
    /// Its token.
    pub token: String,
    /// What server and client share.
    pub secret_key: String,
    /// The other users: a name and a password on each line.
    pub users: String,
}

/// The Secret `NAME-restful`.
pub fn secret(mini_cluster: &MiniCluster, credentials: &Credentials) -> Secret {
    let Credentials { username, token, secret_key, users } = credentials;
    let texts = [(USERNAME, username), (TOKEN, token), (SECRET_KEY, secret_key), (USERS, users)];
    let texts = texts.map(|(key, text)| (key, text.as_str()));
    super::secret::owned(mini_cluster, names::restful, labels::role::RESTFUL, texts)
}

/// Name of the Secret that the server reads: the user's own, or `NAME-restful`.
pub(super) fn secret_name(name: &str, restful: &FluxRestful) -> String {
    restful.secret_name.clone().unwrap_or_else(|| names::restful(name))
}

/// The Secret, if it is ours to make.
pub(super) fn made_secret(model: &Model<'_>) -> Option<String> {
    model.restful().filter(|restful| restful.secret_name.is_none()).map(|_| names::restful(model.name))
}

/// What the server reads from its environment.
pub(super) fn environment(model: &Model<'_>) -> Vec<EnvVar> {
    let Some(restful) = model.restful() else { return Vec::new() };
    let variable = |(variable, key, optional): (&str, &str, bool)| {
        let name = secret_name(model.name, restful);
        let key = SecretKeySelector { name, key: key.to_owned(), optional: optional.then_some(true) };
        let source = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
        EnvVar { name: variable.to_owned(), value: None, value_from: Some(source) }
    };
    VARIABLES.into_iter().map(variable).collect()
}

/// The Service `NAME-restful` in front of the lead.
pub(super) fn service(model: &Model<'_>, lead: BTreeMap<String, String>) -> Option<Service> {
    let restful = model.restful()?;
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: restful.port(),
        target_port: Some(IntOrString::Int(restful.port())),
        protocol: tcp(),
        ..ServicePort::default()
    };
    let metadata = metadata::child(model, names::restful(model.name), Some(labels::role::RESTFUL));
    let spec = ServiceSpec { ports: Some(vec![port]), selector: Some(lead), ..ServiceSpec::default() };
    Some(Service { metadata, spec: Some(spec), status: None })
}
