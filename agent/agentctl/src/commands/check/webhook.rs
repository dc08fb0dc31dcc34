//! What was found → findings. Pure. Here: who converts MiniClusters of v1alpha1.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{ServiceReference, WebhookClientConfig};
use kube::ResourceExt;

use super::Found;
use super::federation::ready;
use super::report::Section;
use crate::kubernetes::DEFINITION;

const RESET: &str = "if nobody shall convert any more: `kubectl patch crd miniclusters.flux-framework.org --type=merge -p \
                     '{\"spec\":{\"conversion\":{\"strategy\":\"None\",\"webhook\":null}}}'`";

/// Whether the API server finds the webhook that the definition of MiniClusters names, and believes it.
pub(super) fn section(found: &Found) -> Section {
    let mut section = Section::new("webhook");
    let Ok(definitions) = &found.definitions else { return section };
    let Some(definition) = definitions.iter().find(|one| one.name_any() == DEFINITION) else { return section };
    let conversion = definition.spec.conversion.as_ref().filter(|conversion| conversion.strategy == "Webhook");
    let converts = found.scope.as_ref().is_ok_and(|scope| scope.converts);
    let Some(conversion) = conversion else {
        if converts {
            section.fails(
                "conversion of MiniClusters",
                "the definition names no webhook: v1alpha1 is not converted",
                "the leading agent writes it within seconds, if it may patch the definition; its log says what it waits for",
            );
        }
        return section;
    };
    let client = conversion.webhook.as_ref().and_then(|webhook| webhook.client_config.as_ref());
    let Some(client) = client else { return section };
    let what = "authority of the webhook of MiniClusters";
    if client.ca_bundle.as_ref().is_none_or(|bundle| bundle.0.is_empty()) {
        section.fails(
            what,
            "caBundle is empty",
            "the leading agent writes it from ca.crt of webhook.secret: does that Secret have one? With cert-manager the \
             issuer has to give its authority",
        );
    } else {
        section.passed(what, "caBundle is there");
    }
    entrance(&mut section, found, client);
    section
}

fn entrance(section: &mut Section, found: &Found, client: &WebhookClientConfig) {
    let what = "way to the webhook of MiniClusters";
    let Some(ServiceReference { name, namespace, .. }) = &client.service else {
        return section.passed(what, client.url.clone().unwrap_or_default());
    };
    let whose = format!("Service {namespace}/{name}");
    if *namespace != found.namespace {
        return section.passed(what, format!("{whose}, of another installation"));
    }
    let (Ok(services), Ok(slices)) = (&found.services, &found.slices) else {
        return section.unknown(what, "Services and EndpointSlices cannot be read");
    };
    if !services.iter().any(|service| service.name_any() == *name) {
        let hint = format!("upgrade the helm release with webhook.enabled=true; {RESET}");
        return section.fails(what, format!("{whose} does not exist: no v1alpha1 can be read or written"), hint);
    }
    let ready = ready(slices, name).count();
    if ready == 0 {
        section.fails(
            what,
            format!("no agent is ready behind {whose}"),
            format!("the agents' logs say more, and so does `kubectl describe pods --namespace {namespace}`"),
        );
    } else {
        section.passed(what, format!("{whose}, {ready} are ready"));
    }
}
