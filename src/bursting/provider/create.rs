//! Taking an offer that was admitted: it is rendered, judged, shown to the API server, and only then written.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::Resource as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, ResourceQuota};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use tributary_api::hosted_burst::{HostedBurst, HostedBurstSpec};
use tributary_api::labels::reason;
use tributary_cluster::apply::Applied;
use tributary_cluster::error::{Cause, chain};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_contract::{PeerName, Rejection, RejectionReason};
use tributary_flux::RankMap;
use tributary_render::Rendered;

use super::admission::{self, Admitted};
use super::controller::Provider;
use super::ledger::SlotKey;
use super::materialize;
use super::quota::{self, Ahead};
use crate::peers::{self, PeerView};
use crate::template::BurstTemplate;

impl Provider {
    /// Renders and judges what an admitted offer would make, shows it to the API server, and creates its HostedBurst.
    pub(super) async fn admit(
        &self,
        key: &SlotKey,
        peer: &PeerName,
        peers: &BTreeMap<PeerName, PeerView>,
        wanted: HostedBurst,
        admitted: &Admitted,
    ) -> Result<Result<Arc<HostedBurst>, Rejection>, RequestError> {
        if let Some(message) = self.unknown_promise() {
            return Ok(Err(Rejection::new(RejectionReason::Other(reason::UNREADABLE.into()), message)));
        }
        let not_renderable = |message: String| Ok(Err(Rejection::new(RejectionReason::NotRenderable, message)));
        let mut rendered = match self.render(&wanted, &admitted.template, &admitted.rank_map) {
            Ok(rendered) => rendered,
            Err(message) => return not_renderable(message),
        };
        let template = rendered.job.spec.clone().unwrap_or_default().template;
        let Some(import) = peers::import(peers, peer) else {
            let message = format!("ClusterPeer {peer} has no import here any more");
            return Ok(Err(Rejection::new(RejectionReason::ImportNotAllowed, message)));
        };
        if let Err(rejection) = admission::judge_pod(peer, import, &template) {
            return Ok(Err(rejection));
        }
        if let Some(rejection) = self.refused_request(key, peer, &wanted).await? {
            return Ok(Err(rejection));
        }
        // Its owner does not exist yet; what is judged here is everything else.
        rendered.job.metadata.owner_references = None;
        let (of_job, of_pod, over_quota) = futures::join!(
            self.applier.dry_run(&rendered.job),
            self.refused_pod(key, &template),
            self.over_quota(key, &template, &wanted.spec),
        );
        let job = match judge_job(of_job)? {
            Ok(job) => job,
            Err(rejection) => return Ok(Err(rejection)),
        };
        if let Some(rejection) = of_pod? {
            return Ok(Err(rejection));
        }
        if let Some(message) = over_quota? {
            return Ok(Err(Rejection::new(RejectionReason::QuotaExceeded, message)));
        }
        if let Some(object) = self.foreign(key, &wanted, &rendered, job, import.egress.is_some()).await? {
            let message = format!(
                "{object} exists here and is another's; nothing of it is changed: give the burst (clusters[].name) or the FluxJob \
                 another name"
            );
            return Ok(Err(Rejection::new(RejectionReason::NameTaken, message)));
        }
        let pen = self.fresh.pen(ObjectKey::of(&wanted));
        match self.applier.own_once(&wanted).await {
            Ok(Applied::Created(stored)) => Ok(Ok(pen.wrote(stored))),
            Ok(_) => self.taken(key, &wanted).await,
            Err(error) if error.cause().is_transient() => Err(error),
            Err(error) => Ok(Err(refusal(&error))),
        }
    }

    /// Why nobody knows what is promised: a HostedBurst is there that was never read.
    fn unknown_promise(&self) -> Option<String> {
        let hosted = &self.shared.caches.hosted;
        let unknown = hosted.unreadable().into_iter().find(|one| hosted.of(&one.key).is_none())?;
        let key = &unknown.key;
        Some(format!("what HostedBurst {key} takes here is not known, so nothing is promised: {}", unknown.sentence()))
    }

    /// What the reconciler will make of a hosted burst.
    pub(super) fn rendered(&self, hosted: &HostedBurst) -> Result<Rendered, String> {
        let template = BurstTemplate::parse(&hosted.spec.template).map_err(|error| error.to_string())?;
        let rank_map = RankMap::parse_canonical(&hosted.spec.rank_map).map_err(|error| error.to_string())?;
        self.render(hosted, &template, &rank_map)
    }

    fn render(&self, hosted: &HostedBurst, template: &BurstTemplate, rank_map: &RankMap) -> Result<Rendered, String> {
        materialize::rendered(hosted, template, rank_map, &self.shared.settings)
    }

    /// The name is taken: perhaps by this very burst, whose creation was never answered.
    async fn taken(
        &self,
        key: &SlotKey,
        wanted: &HostedBurst,
    ) -> Result<Result<Arc<HostedBurst>, Rejection>, RequestError> {
        let hosted: Api<HostedBurst> = Api::namespaced(self.shared.clients.reader.clone(), &key.0);
        let object = format!("HostedBurst {}/{}", key.0, key.1);
        let pen = self.fresh.pen(ObjectKey::of(wanted));
        let found = hosted.get_opt(&key.1).await.map_err(|error| RequestError::new("read", object.clone(), error))?;
        let same = |found: &HostedBurst| {
            found.spec.peer == wanted.spec.peer && materialize::key(&found.spec) == materialize::key(&wanted.spec)
        };
        Ok(match found.filter(|found| found.metadata.deletion_timestamp.is_none() && same(found)) {
            Some(found) => Ok(pen.wrote(found)),
            None => Err(Rejection::new(RejectionReason::NameTaken, format!("{object} exists here"))),
        })
    }

    /// What the API server says to one such pod: Pod Security of the namespace, its LimitRanges and quotas, the service
    /// account, the runtime class, the priority class. A Job is not judged by those, and would stand there without pods.
    async fn refused_pod(&self, key: &SlotKey, template: &PodTemplateSpec) -> Result<Option<Rejection>, RequestError> {
        let metadata = template.metadata.clone().unwrap_or_default();
        let name = Some(format!("{}-0", key.1));
        let mut pod = Pod { metadata: ObjectMeta { name, ..metadata }, spec: template.spec.clone(), status: None };
        let pods: Api<Pod> = Api::namespaced(self.shared.clients.writer.clone(), &key.0);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let Err(error) = pods.create(&params, &pod).await else { return Ok(None) };
        let error = RequestError::new("check", format!("a pod of {}/{}", key.0, key.1), error);
        if error.cause().is_of_policy() {
            // It may be about pods that nobody controls.
            pod.metadata.owner_references = Some(vec![OwnerReference {
                api_version: Job::API_VERSION.to_owned(),
                kind: Job::KIND.to_owned(),
                name: key.1.clone(),
                uid: "00000000-0000-0000-0000-000000000000".to_owned(),
                controller: Some(true),
                block_owner_deletion: None,
            }]);
            if pods.create(&params, &pod).await.is_ok() {
                return Ok(None);
            }
        }
        match judge_refusal(error.cause()) {
            Judged::Fine => Ok(None),
            Judged::Later => Err(error),
            Judged::Refused(reason) => Ok(Some(Rejection::new(reason, chain(&error)))),
        }
    }

    async fn over_quota(
        &self,
        key: &SlotKey,
        template: &PodTemplateSpec,
        wanted: &HostedBurstSpec,
    ) -> Result<Option<String>, RequestError> {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.shared.clients.reader.clone(), &key.0);
        let listed = quotas.list(&ListParams::default()).await;
        let listed = listed.map_err(|error| RequestError::new("list", format!("ResourceQuotas of {}", key.0), error));
        let quotas = match listed {
            Ok(listed) => listed.items,
            Err(error) if error.cause().is_denied() => {
                tracing::debug!(error = chain(&error), "quotas are left to the API server");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if quotas.is_empty() {
            return Ok(None);
        }
        let ahead = self.ahead(key);
        let (pod, lead_service) = (template.spec.clone().unwrap_or_default(), u32::from(!wanted.whole));
        Ok(quota::exceeded(&quotas, &pod, wanted.size, lead_service, &ahead))
    }

    /// What other bursts in the namespace of a slot were promised, and have not made yet.
    fn ahead(&self, key: &SlotKey) -> Ahead {
        let mut promised = Vec::new();
        for ((_, slot), entry) in self.state.lock().ledger.in_namespace(&key.0).filter(|(other, _)| *other != key) {
            let made = self.shared.caches.pods_of(&key.0, slot).len();
            let pending = entry.size.saturating_sub(u32::try_from(made).unwrap_or(u32::MAX));
            if pending > 0 {
                promised.push((slot.clone(), pending, entry.charge.cores));
            }
        }
        let mut ahead = Ahead::default();
        for (slot, pending, cores) in promised {
            let hosted = self.shared.caches.hosted.of(&ObjectKey::namespaced(&key.0, &slot));
            let job = hosted.and_then(|hosted| self.rendered(&hosted).ok()?.job.spec);
            match job.and_then(|job| job.template.spec) {
                Some(pod) => ahead.pods(&pod, pending),
                None => ahead.unseen_pods(cores, pending),
            }
        }
        ahead
    }
}

/// What a lasting refusal of an object means for the offer.
fn refusal(error: &RequestError) -> Rejection {
    let reason = match error.cause().is_quota() {
        true => RejectionReason::QuotaExceeded,
        false => RejectionReason::NotRenderable,
    };
    Rejection::new(reason, chain(error))
}

/// Whether a Job of that name may exist, by the answer to its dry run.
fn judge_job(answer: Result<(), RequestError>) -> Result<Result<bool, Rejection>, RequestError> {
    match answer {
        Ok(()) => Ok(Ok(false)),
        Err(error) if error.cause().is_already_exists() || error.cause().is_of_dry_run() => Ok(Ok(true)),
        Err(error) if error.cause().is_transient() => Err(error),
        Err(error) => Ok(Err(refusal(&error))),
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Judged {
    Fine,
    Later,
    Refused(RejectionReason),
}

/// What an API server's refusal of a pod means. That we may not ask, or that the name is taken, says nothing of the pod.
fn judge_refusal(cause: &Cause) -> Judged {
    match cause {
        Cause::Refused { code: 403, message, .. } if message.contains("violates PodSecurity") => {
            Judged::Refused(RejectionReason::PodSecurity)
        }
        Cause::Refused { code: 403, message, .. } if cause.is_quota() || message.contains("failed quota") => {
            Judged::Refused(RejectionReason::QuotaExceeded)
        }
        // The namespace was made a moment ago, and its controllers are on their way.
        Cause::Refused { code: 403, message, .. }
            if message.contains("serviceaccount \"default\" not found") || message.contains("no API token found") =>
        {
            Judged::Later
        }
        Cause::Refused { code: 403, message, .. } if message.contains("cannot create resource") => Judged::Fine,
        cause if cause.is_of_dry_run() => Judged::Fine,
        cause if cause.is_already_exists() => Judged::Fine,
        cause if cause.is_transient() => Judged::Later,
        _ => Judged::Refused(RejectionReason::NotRenderable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_servers_no_is_told_from_our_own_lack_of_rights() {
        let refused =
            |code, message: &str| Cause::Refused { code, reason: "Forbidden".into(), message: message.into() };
        let table = [
            (
                refused(403, "pods \"a-0\" is forbidden: violates PodSecurity \"restricted:latest\": allow…"),
                Judged::Refused(RejectionReason::PodSecurity),
            ),
            (
                refused(403, "pods \"a-0\" is forbidden: exceeded quota: team, requested: pods=1"),
                Judged::Refused(RejectionReason::QuotaExceeded),
            ),
            (
                refused(403, "pods \"a-0\" is forbidden: failed quota: team: must specify limits.cpu"),
                Judged::Refused(RejectionReason::QuotaExceeded),
            ),
            (
                refused(
                    403,
                    "pods \"a-0\" is forbidden: error looking up service account flux/default: serviceaccount \"default\" not found",
                ),
                Judged::Later,
            ),
            (
                refused(
                    403,
                    "pods \"a-0\" is forbidden: error looking up service account flux/guests: serviceaccount \"guests\" not found",
                ),
                Judged::Refused(RejectionReason::NotRenderable),
            ),
            (
                refused(403, "pods is forbidden: User \"agent\" cannot create resource \"pods\" in API group"),
                Judged::Fine,
            ),
            (
                refused(403, "pods \"a-0\" is forbidden: status unknown for quota: team, resources: pods"),
                Judged::Refused(RejectionReason::QuotaExceeded),
            ),
            (
                refused(403, "admission webhook \"owners.example\" denied the request: no bare pods"),
                Judged::Refused(RejectionReason::NotRenderable),
            ),
            (
                refused(
                    422,
                    "pods \"a-0\" is forbidden: ValidatingAdmissionPolicy 'bare' with binding 'b' denied request: no bare pods",
                ),
                Judged::Refused(RejectionReason::NotRenderable),
            ),
            (refused(400, "admission webhook \"owners.example\" does not support dry run"), Judged::Fine),
            (
                refused(
                    403,
                    "admission webhook \"pod-security\" denied the request: violates PodSecurity \"baseline\"",
                ),
                Judged::Refused(RejectionReason::PodSecurity),
            ),
            (refused(500, "etcd is away"), Judged::Later),
            (refused(422, "spec.containers[0].image: Required value"), Judged::Refused(RejectionReason::NotRenderable)),
        ];
        for (cause, expected) in table {
            assert_eq!(judge_refusal(&cause), expected, "{cause:?}");
        }
        let taken = Cause::Refused { code: 409, reason: "AlreadyExists".into(), message: String::new() };
        assert_eq!(judge_refusal(&taken), Judged::Fine);
    }

    /// The danger: a quota that is full for a moment is told as an object that nobody can make; or a webhook that cannot be asked
    /// keeps all bursts away.
    #[test]
    fn a_quota_is_told_as_one_and_a_webhook_that_cannot_be_asked_is_no_refusal() {
        let judged = |code, reason: &str, message: &str| {
            let cause = Cause::Refused { code, reason: reason.into(), message: message.into() };
            judge_job(Err(RequestError::new("check", "Job flux/a", cause)))
        };
        let refused = |message: &str| judged(403, "Forbidden", message).unwrap().unwrap_err().reason;
        for quota in ["exceeded quota: team, requested: count/jobs.batch=1", "status unknown for quota: team"] {
            assert_eq!(refused(&format!("jobs.batch \"a\" is forbidden: {quota}")), RejectionReason::QuotaExceeded);
        }
        assert_eq!(refused("ValidatingAdmissionPolicy 'jobs' denied request: no"), RejectionReason::NotRenderable);
        let asked = judged(400, "BadRequest", "admission webhook \"owners.example\" does not support dry run");
        assert_eq!(asked.unwrap(), Ok(true), "who has its name is looked for");
        assert_eq!(judged(409, "AlreadyExists", "").unwrap(), Ok(true));
        assert!(judged(503, "", "").is_err());
        assert_eq!(judge_job(Ok(())).unwrap(), Ok(false));
    }
}
