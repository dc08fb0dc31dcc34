//! Names that a burst needs, and whether somebody else has them: looked at before anything is made.
//!
//! Most caches select by label and do not show what others have made, so the API server is asked. Whoever takes a name later
//! is found by the write itself (see [`tributary_cluster::apply`]).

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::MiniCluster;
use tributary_api::names;
use tributary_api::provisioning_request::ProvisioningRequest;
use tributary_cluster::RequestError;
use tributary_cluster::caches::controller_of;
use tributary_cluster::error::absence;
use tributary_render::Rendered;

use super::controller::Provider;
use super::ledger::SlotKey;
use super::materialize;
use super::provisioning;

impl Provider {
    /// The first object, as kind and name, that has a name which this burst needs and is another's. `job`: a Job has its name.
    /// `egress`: there will be a NetworkPolicy.
    pub(super) async fn foreign(
        &self,
        key: &SlotKey,
        hosted: &HostedBurst,
        rendered: &Rendered,
        job: bool,
        egress: bool,
    ) -> Result<Option<String>, RequestError> {
        let look = Look { reader: &self.shared.clients.reader, key };
        let (part, asks) = (!hosted.spec.whole, provisioning::class(hosted).is_some());
        let slot = &key.1;
        let [ipv4, ipv6] = materialize::slice_names(slot);
        let lead = names::lead(slot);
        let services = rendered.services.iter().map(ResourceExt::name_any).chain(part.then_some(lead));
        let services = async {
            let found = futures::future::try_join_all(services.map(|name| look.taken::<Service>(name, true))).await;
            found.map(|found| found.into_iter().flatten().next())
        };
        let found = futures::try_join!(
            look.taken::<MiniCluster>(slot.clone(), true),
            look.taken::<Job>(slot.clone(), job),
            look.taken::<Secret>(names::curve(slot), true),
            services,
            look.taken::<EndpointSlice>(ipv4, part),
            look.taken::<EndpointSlice>(ipv6, part),
            look.taken::<NetworkPolicy>(materialize::egress_name(slot), egress),
            look.taken::<ConfigMap>(names::entrypoint(slot), true),
            look.taken::<ProvisioningRequest>(names::scale_up(slot), asks),
            look.taken::<PodTemplate>(names::scale_up(slot), asks),
        )?;
        let (mini_cluster, job, secret, service, ipv4, ipv6, policy, config_map, request, template) = found;
        let all = [mini_cluster, job, secret, service, ipv4, ipv6, policy, config_map, request, template];
        Ok(all.into_iter().flatten().next())
    }
}

struct Look<'a> {
    reader: &'a Client,
    key: &'a SlotKey,
}

impl Look<'_> {
    async fn taken<K>(&self, name: String, needed: bool) -> Result<Option<String>, RequestError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned,
        K: std::fmt::Debug,
    {
        if !needed {
            return Ok(None);
        }
        let (namespace, slot) = self.key;
        let object = format!("{} {namespace}/{name}", K::kind(&()));
        let api: Api<K> = Api::namespaced(self.reader.clone(), namespace);
        let found = absence(api.get_metadata(&name).await, &name);
        let found = found.map_err(|error| RequestError::new("look for", object.clone(), error))?;
        Ok(found.filter(|found| !is_of_burst(&found.metadata, slot)).map(|_| object))
    }
}

/// Whether an object was made for a burst of this name: it goes with that one, if it is not this very burst's.
fn is_of_burst(metadata: &ObjectMeta, slot: &str) -> bool {
    let object = ConfigMap { metadata: metadata.clone(), ..ConfigMap::default() };
    let owner = controller_of::<HostedBurst>(&object).or_else(|| controller_of::<MiniCluster>(&object));
    owner.is_some_and(|owner| owner.name == slot)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_a_burst_of_this_name_has_left_behind_is_no_strangers() {
        let owned = |api: &str, kind: &str, name: &str, controller: bool| -> ObjectMeta {
            let owner = json!({"apiVersion": api, "kind": kind, "name": name, "uid": "u", "controller": controller});
            serde_json::from_value(json!({"name": "db-lead", "ownerReferences": [owner]})).unwrap()
        };
        let table = [
            (ObjectMeta::default(), false),
            (owned("tributary.dev/v1alpha1", "HostedBurst", "db", true), true),
            (owned("flux-framework.org/v1alpha2", "MiniCluster", "db", true), true),
            (owned("tributary.dev/v1alpha1", "HostedBurst", "db", false), false),
            (owned("tributary.dev/v1alpha1", "HostedBurst", "web", true), false),
            (owned("example.org/v1", "HostedBurst", "db", true), false),
            (owned("apps/v1", "Deployment", "db", true), false),
        ];
        for (metadata, expected) in table {
            assert_eq!(is_of_burst(&metadata, "db"), expected, "{metadata:?}");
        }
    }
}
