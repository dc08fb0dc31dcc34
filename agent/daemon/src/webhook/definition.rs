//! Who converts MiniClusters, in their definition.

use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, ServiceReference, WebhookClientConfig, WebhookConversion,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResourceExt, Resource, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tributary::api::labels::CONVERTED_BY;
use tributary::api::minicluster::MiniCluster;
use tributary::cluster::caches::Selection;
use tributary::config::Config;
use tributary::webhook::{PATH, REVIEW_VERSION};

/// Strategy of a definition that names a webhook.
const WEBHOOK: &str = "Webhook";
/// Port of the Service.
const PORT: i32 = 443;

/// The installed definition, as far as conversion goes.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = CustomResourceDefinition)]
pub(super) struct Definition {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    conversion: Option<CustomResourceConversion>,
}

impl Definition {
    /// The definition of MiniClusters alone.
    pub(super) fn selection() -> Selection {
        Selection::named(MiniCluster::crd_name())
    }

    /// Whether the API server asks agents of this configuration.
    pub(super) fn leads_to(&self, config: &Config) -> bool {
        let converts = self.spec.conversion.as_ref().is_some_and(|found| found.strategy == WEBHOOK);
        converts && self.annotations().get(CONVERTED_BY) == Some(&converted_by(config))
    }

    /// What an agent has to apply, so that the API server asks agents of this configuration, or nobody if they have no
    /// webhook; `None` if nothing. `trust` is what the API server shall believe, PEM; empty: what its machine believes. There
    /// can be several agents of some namespaces each: among these, the one that said it first converts for all.
    pub(super) fn change(&self, config: &Config, trust: &str) -> Option<Value> {
        let said_by = self.annotations().get(CONVERTED_BY);
        let of_some = !config.kubernetes.watch_namespaces.is_empty();
        if config.webhook.listen.is_none() {
            // Somebody else's conversion is theirs.
            let ours = said_by.is_some() && !of_some;
            return ours.then(|| applied(&json!({}), &json!({"strategy": "None"})));
        }
        let wanted = conversion(config, trust);
        let by = converted_by(config);
        let converts = self.spec.conversion.as_ref().is_some_and(|found| found.strategy == WEBHOOK);
        if of_some && converts && said_by != Some(&by) {
            return None;
        }
        let same = self.spec.conversion.as_ref() == Some(&wanted) && self.annotations().get(CONVERTED_BY) == Some(&by);
        (!same).then(|| applied(&json!({ CONVERTED_BY: by }), &json!(wanted)))
    }
}

fn applied(annotations: &Value, conversion: &Value) -> Value {
    json!({
        "apiVersion": CustomResourceDefinition::api_version(&()), "kind": CustomResourceDefinition::kind(&()),
        "metadata": {"name": MiniCluster::crd_name(), "annotations": annotations},
        "spec": {"conversion": conversion},
    })
}

fn converted_by(config: &Config) -> String {
    let webhook = &config.webhook;
    if webhook.url.is_empty() {
        format!("{}/{}", config.kubernetes.namespace, webhook.service)
    } else {
        webhook.url.clone()
    }
}

fn conversion(config: &Config, trust: &str) -> CustomResourceConversion {
    let webhook = &config.webhook;
    let by_url = !webhook.url.is_empty();
    let service = || ServiceReference {
        name: webhook.service.clone(),
        namespace: config.kubernetes.namespace.clone(),
        path: Some(PATH.to_owned()),
        port: Some(PORT),
    };
    CustomResourceConversion {
        strategy: WEBHOOK.to_owned(),
        webhook: Some(WebhookConversion {
            client_config: Some(WebhookClientConfig {
                ca_bundle: (!trust.is_empty()).then(|| ByteString(trust.as_bytes().to_vec())),
                service: (!by_url).then(service),
                url: by_url.then(|| format!("{}{PATH}", webhook.url)),
            }),
            conversion_review_versions: vec![REVIEW_VERSION.to_owned()],
        }),
    }
}

/// The names that the certificate has to be for: those by which the API server calls the webhook.
pub(super) fn names(config: &Config) -> Vec<String> {
    let webhook = &config.webhook;
    if webhook.url.is_empty() {
        let (service, namespace) = (&webhook.service, &config.kubernetes.namespace);
        let domain = config.cluster.dns_domain();
        return vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.{domain}")];
    }
    let authority = webhook.url.trim_start_matches("https://");
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    vec![host.trim_start_matches('[').trim_end_matches(']').to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::from_toml(&format!("[cluster]\nname = \"east\"\n{text}")).unwrap()
    }

    const SERVICE: &str = "[webhook]\nlisten = \"[::]:9443\"\nservice = \"hook\"";

    fn definition(conversion: Value, annotations: Value) -> Definition {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {"conversion": conversion}}))
            .unwrap()
    }

    #[test]
    fn the_definition_is_changed_until_it_says_what_is_wanted() {
        let config = config(SERVICE);
        let change = definition(json!({"strategy": "None"}), json!({})).change(&config, "PEM").unwrap();
        assert_eq!(
            change["spec"]["conversion"],
            json!({"strategy": "Webhook", "webhook": {
                "clientConfig": {"caBundle": "UEVN", "service":
                    {"name": "hook", "namespace": "tributary-system", "path": "/convert", "port": 443}},
                "conversionReviewVersions": ["v1"]}})
        );
        let applied = definition(change["spec"]["conversion"].clone(), change["metadata"]["annotations"].clone());
        assert_eq!(applied.change(&config, "PEM"), None);
        assert!(applied.change(&config, "other").is_some());
    }

    #[test]
    fn without_a_webhook_only_what_an_agent_said_is_taken_back() {
        let off = config("");
        let theirs = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}});
        assert_eq!(definition(theirs.clone(), json!({})).change(&off, ""), None);
        let change = definition(theirs, json!({CONVERTED_BY: "tributary-system/hook"})).change(&off, "").unwrap();
        assert_eq!(change["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(change["metadata"]["annotations"], json!({}));
    }

    #[test]
    fn agents_of_some_namespaces_leave_it_to_the_first_of_them() {
        let some = |namespace: &str, webhook: &str| {
            config(&format!("[kubernetes]\nnamespace = \"{namespace}\"\nwatch_namespaces = [\"a\"]\n{webhook}"))
        };
        let (first, second) = (some("one", SERVICE), some("two", SERVICE));
        let change = definition(json!({"strategy": "None"}), json!({})).change(&first, "PEM").unwrap();
        let said = definition(change["spec"]["conversion"].clone(), change["metadata"]["annotations"].clone());
        assert_eq!(said.change(&second, "OTHER"), None);
        assert!(said.change(&first, "OTHER").is_some(), "its own certificate changes");
        let theirs = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}});
        assert_eq!(definition(theirs, json!({})).change(&first, "PEM"), None);
        // Those without a webhook have no right to say anything, and nothing to take back.
        assert_eq!(said.change(&some("two", ""), ""), None);
        // The agent of a whole cluster is the only one.
        assert!(said.change(&config(SERVICE), "PEM").is_some());
    }

    #[test]
    fn certificates_are_for_what_the_api_server_calls() {
        let names_of = |url: &str| names(&config(&format!("[webhook]\nlisten = \"[::]:9443\"\nurl = \"{url}\"")));
        assert_eq!(names(&config(SERVICE))[0], "hook.tributary-system.svc");
        assert_eq!(names_of("https://127.0.0.1:9443"), ["127.0.0.1"]);
        assert_eq!(names_of("https://[::1]:9443"), ["::1"]);
        assert_eq!(names_of("https://hook.example.org"), ["hook.example.org"]);
    }
}
