//! Kubeconfig files: <https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/>. JSON is YAML, too.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::pki::Identity;

/// One context: its name, its cluster's and its user's are derived from `cluster` and `user`.
pub(crate) struct Context<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) server: String,
    pub(crate) authority: String,
    pub(crate) user: &'a str,
    pub(crate) identity: &'a Identity,
}

/// A kubeconfig with certificates and keys in it, so that it can be moved. The first context is the current one.
pub(crate) fn document(contexts: &[Context<'_>]) -> Value {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    let each = |entry: &dyn Fn(&Context<'_>) -> Value| contexts.iter().map(entry).collect::<Vec<_>>();
    let user_name = |context: &Context<'_>| format!("{}-{}", context.cluster, context.user);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": each(&|context| json!({
            "name": context.cluster,
            "cluster": { "server": context.server, "certificate-authority-data": encode(&context.authority) },
        })),
        "users": each(&|context| json!({
            "name": user_name(context),
            "user": {
                "client-certificate-data": encode(&context.identity.certificate),
                "client-key-data": encode(&context.identity.key),
            },
        })),
        "contexts": each(&|context| json!({
            "name": context.cluster,
            "context": { "cluster": context.cluster, "user": user_name(context) },
        })),
        "current-context": contexts.first().map_or("", |context| context.cluster),
    })
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn kube_reads_every_context() {
        let identity = Identity { certificate: "certificate".to_owned(), key: "key".to_owned() };
        let context = |cluster, port: u16| Context {
            cluster,
            server: format!("https://127.0.0.1:{port}"),
            authority: "authority".to_owned(),
            user: "admin",
            identity: &identity,
        };
        let document = document(&[context("east", 6443), context("west", 6444)]);
        let read = Kubeconfig::from_yaml(&document.to_string()).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("east"));
        let west = read.contexts.iter().find(|context| context.name == "west").unwrap().context.as_ref().unwrap();
        assert_eq!((west.cluster.as_str(), west.user.as_deref()), ("west", Some("west-admin")));
        let cluster = read.clusters.iter().find(|cluster| cluster.name == "west").unwrap().cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6444"));
        assert!(read.auth_infos.iter().any(|user| user.name == "west-admin"));
    }
}
