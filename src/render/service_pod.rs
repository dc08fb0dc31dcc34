//! The pod of `spec.services`: containers that serve the MiniCluster without being part of it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim, PodSecurityContext, PodSpec};
use tributary_api::labels::{role, upstream};
use tributary_api::minicluster::Container;
use tributary_api::names;

use super::model::Model;
use super::scripts::{self, File};
use super::{containers, metadata, pod};

/// `NAME-services`, found in DNS as `NAME-services.HEADLESS.NAMESPACE.svc`; `None` without services.
pub(super) fn service_pod(model: &Model<'_>, files: &[File]) -> Option<Pod> {
    let services = &model.spec.services;
    if services.is_empty() {
        return None;
    }
    let settings = &model.spec.pod;
    let name = names::services(model.name);
    let mut metadata = metadata::child(model, name.clone(), Some(role::SERVICES));
    let mut labels = settings.labels.clone();
    labels.append(metadata.labels.get_or_insert_default());
    // The headless Service selects by it.
    labels.insert(upstream::JOB_NAME.to_owned(), model.name.to_owned());
    metadata.labels = Some(labels);
    metadata.annotations = pod::map(&settings.annotations);

    let mut volumes = model.service_volumes.volumes.clone();
    if services.iter().any(scripts::is_wrapped_service) {
        volumes.insert(0, pod::entrypoint_volume(model, files.iter().filter(|file| file.is_of_services())));
    }
    let spec = PodSpec {
        containers: containers::services(model),
        volumes: (!volumes.is_empty()).then_some(volumes),
        hostname: Some(name),
        subdomain: Some(model.spec.headless_name(model.name).to_owned()),
        set_hostname_as_fqdn: Some(false),
        restart_policy: Some(settings.restart_policy.as_deref().unwrap_or("OnFailure").to_owned()),
        service_account_name: settings.service_account_name.clone(),
        automount_service_account_token: Some(settings.automount_service_account_token),
        // Those of the brokers' containers as well: the Flux Operator gave it no others.
        image_pull_secrets: pod::references(
            services.iter().chain(&model.spec.containers).filter_map(|container| container.image_pull_secret.as_ref()),
        ),
        node_selector: pod::map(&settings.node_selector),
        tolerations: (!settings.tolerations.is_empty()).then(|| settings.tolerations.clone()),
        priority_class_name: settings.priority_class_name.clone(),
        resource_claims: claims(model),
        security_context: security(services),
        dns_policy: settings.dns_policy.clone(),
        dns_config: pod::dns_config(model),
        runtime_class_name: settings.runtime_class_name.clone(),
        ..PodSpec::default()
    };
    Some(Pod { metadata, spec: Some(spec), status: None })
}

/// The groups its own containers name; `pod.securityContext` is for the brokers' pods.
fn security(services: &[Container]) -> Option<PodSecurityContext> {
    let containers = services.iter().map(|service| &service.security_context);
    let security = pod::with_groups(PodSecurityContext::default(), containers);
    (security != PodSecurityContext::default()).then_some(security)
}

/// The claims that its own containers use: others would hold a device for nothing.
fn claims(model: &Model<'_>) -> Option<Vec<PodResourceClaim>> {
    let claims = model.spec.services.iter().flat_map(|service| &service.resources.claims);
    let used: BTreeSet<&String> = claims.map(|claim| &claim.name).collect();
    let declared = model.spec.pod.resource_claims.iter();
    let claims: Vec<_> = declared.filter(|claim| used.contains(&claim.name)).cloned().collect();
    (!claims.is_empty()).then_some(claims)
}
