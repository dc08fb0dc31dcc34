//! ProvisioningRequests, as requests to the API server: made, looked at, taken away.

use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::names;
use tributary_api::node_group::ProvisioningClass;
use tributary_api::provisioning_request::{CLASS, CONSUME, ProvisioningRequest};
use tributary_cluster::apply::Applied;
use tributary_cluster::caches::controller_uid;
use tributary_cluster::error::{absence, chain};
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::{Cause, RequestError};
use tributary_contract::{PeerName, Rejection, RejectionReason};

use super::controller::Provider;
use super::ledger::SlotKey;
use super::provisioning::{self, Answer, Request, Seen};
use crate::watch::WatchedPod;

impl Provider {
    /// Why a burst that asks for its nodes is not taken: nobody would take its request.
    pub(super) async fn refused_request(
        &self,
        key: &SlotKey,
        peer: &PeerName,
        wanted: &HostedBurst,
    ) -> Result<Option<Rejection>, RequestError> {
        let Some(class) = provisioning::class(wanted) else { return Ok(None) };
        let requests: Api<ProvisioningRequest> = Api::namespaced(self.shared.clients.writer.clone(), &key.0);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let request = provisioning::request(wanted, class);
        let Err(error) = requests.create(&params, &request).await else { return Ok(None) };
        let error = RequestError::new("check", format!("ProvisioningRequest {}/{}", key.0, request.name_any()), error);
        match error.cause() {
            // Whose it is, is looked at when it is made.
            cause if cause.is_already_exists() => Ok(None),
            cause if cause.is_transient() => Err(error),
            cause => Ok(Some(Rejection::new(RejectionReason::ScaleUpFailed, unasked(peer, class, cause, &error)))),
        }
    }

    /// What the request says.
    pub(super) async fn look_request(&self, key: &SlotKey, hosted: &HostedBurst) -> Result<Request, RequestError> {
        let name = names::scale_up(&key.1);
        let requests: Api<ProvisioningRequest> = Api::namespaced(self.shared.clients.reader.clone(), &key.0);
        let found = absence(requests.get(&name).await, &name);
        let found =
            found.map_err(|error| RequestError::new("read", format!("ProvisioningRequest {}/{name}", key.0), error));
        let found = match found {
            Ok(found) => found,
            Err(error) if error.cause().is_not_found() => return Ok(Request::Refused(chain(&error))),
            Err(error) => return Err(error),
        };
        // One that another HostedBurst left behind goes with that.
        let ours = found.filter(|found| controller_uid(found) == hosted.uid().as_deref());
        let Some(ours) = ours.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
            return Ok(Request::Absent);
        };
        let conditions = ours.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let count = ours.spec.pod_sets.iter().map(|pods| pods.count).sum();
        Ok(Request::Found(Seen { count, answer: Answer::of(conditions), looked: self.shared.clock.mono() }))
    }

    /// Asks for nodes.
    pub(super) async fn make_request(&self, key: &SlotKey, hosted: &HostedBurst) -> Result<Request, RequestError> {
        let Some(class) = provisioning::class(hosted) else { return Ok(Request::Gone) };
        let rendered = match self.rendered(hosted) {
            Ok(rendered) => rendered,
            Err(message) => return Ok(Request::Refused(message)),
        };
        let template = provisioning::pod_template(hosted, rendered.job.spec.unwrap_or_default().template);
        if let Err(error) = self.applier.own_once(&template).await {
            return self.unmade(key, error);
        }
        let made = match self.applier.own_once(&provisioning::request(hosted, class)).await {
            Ok(made) => made,
            Err(error) => return self.unmade(key, error),
        };
        Ok(match made {
            Applied::Created(_) => {
                let (answer, looked) = (Answer::of(&[]), self.shared.clock.mono());
                Request::Found(Seen { count: hosted.spec.size, answer, looked })
            }
            _ => Request::Unknown,
        })
    }

    fn unmade(&self, key: &SlotKey, error: RequestError) -> Result<Request, RequestError> {
        if self.is_taken(key, &error) {
            // The next step gives the burst back.
            return Ok(Request::Unknown);
        }
        // What an earlier burst of this name left behind goes by itself.
        match error.cause() {
            cause if cause.is_transient() || error.taken().is_some() => Err(error),
            _ => Ok(Request::Refused(chain(&error))),
        }
    }

    /// Deletes the request and its PodTemplate; those of the same name that are not ours stay.
    pub(super) async fn end_request(&self, key: &SlotKey, hosted: &HostedBurst) -> Result<Request, RequestError> {
        let name = names::scale_up(&key.1);
        let request = self.end_one::<ProvisioningRequest>(key, &name, Some(hosted)).await?;
        let template = self.end_one::<PodTemplate>(key, &name, Some(hosted)).await?;
        Ok(if request || template { Request::Unknown } else { Request::Gone })
    }

    /// Takes what names the request off a pod that waits.
    pub(super) async fn unbook(&self, key: &SlotKey, pod: &WatchedPod) -> Result<(), RequestError> {
        let name = pod.name_any();
        let pods: Api<Pod> = Api::namespaced(self.shared.clients.writer.clone(), &key.0);
        // Of this very pod, not of the next one of its name.
        let patch = json!({"metadata": {"uid": pod.metadata.uid, "annotations": {CONSUME: null, CLASS: null}}});
        match pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(error) => stays_booked(RequestError::new("change", format!("Pod {}/{name}", key.0), error)),
        }
    }

    /// Deletes what was made for a hosted burst under this name; what is not ours stays. Whether there was one.
    pub(super) async fn end_one<K>(
        &self,
        key: &SlotKey,
        name: &str,
        hosted: Option<&HostedBurst>,
    ) -> Result<bool, RequestError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned,
        K: std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.shared.clients.reader.clone(), &key.0);
        let found = absence(api.get_metadata(name).await, name);
        let found =
            found.map_err(|error| RequestError::new("look for", format!("{} {}/{name}", K::kind(&()), key.0), error));
        let found = match found {
            Ok(found) => found,
            // With its definition went all of its kind.
            Err(error) if error.cause().is_not_found() => None,
            Err(error) => return Err(error),
        };
        let owner = hosted.and_then(ResourceExt::uid);
        let Some(doomed) = found.and_then(|found| Doomed::of_owner(&found, owner.as_deref())) else {
            return Ok(false);
        };
        let writer = &self.shared.clients.writer;
        sweep::delete::<K>(writer, &doomed).await?;
        Ok(true)
    }
}

/// A pod could not be taken from its request. If the API server refuses that, all else goes on, and the pod waits.
fn stays_booked(error: RequestError) -> Result<(), RequestError> {
    match error.cause() {
        cause if cause.is_not_found() || cause.is_conflict() => Ok(()),
        cause if cause.is_transient() => Err(error),
        _ => {
            tracing::warn!(
                error = chain(&error),
                "a pod goes on waiting for the nodes of its request, which have come"
            );
            Ok(())
        }
    }
}

/// Why no nodes can be asked for.
fn unasked(peer: &PeerName, class: &ProvisioningClass, cause: &Cause, error: &RequestError) -> String {
    let asks = format!(
        "import.scaleUp.provisioningRequest of ClusterPeer {peer} asks for nodes by ProvisioningRequests of class {}",
        class.provisioning_class_name
    );
    match cause.is_not_found() {
        true => format!("{asks}, and this cluster does not serve them (autoscaling.x-k8s.io/v1)"),
        false => format!("{asks}: {}", chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The danger: a policy about pods keeps all that follows in a step from being done, and from being said.
    #[test]
    fn a_pod_that_may_not_be_changed_holds_nothing_up() {
        let goes_on = |code| {
            let cause = Cause::Refused { code, reason: String::new(), message: "no".into() };
            stays_booked(RequestError::new("change", "Pod flux/lake-burst-0-0-x", cause)).is_ok()
        };
        assert_eq!([403, 404, 409, 422, 429, 500].map(goes_on), [true, true, true, true, false, false]);
    }
}
