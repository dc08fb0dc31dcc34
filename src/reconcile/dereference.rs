//! Everything known about one MiniCluster, from the caches; no request.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt};
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary_api::peer::ClusterPeer;
use tributary_api::{labels, names, workload};
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::{Cache, Indexed, controller_of};
use tributary_flux::RankMap;
use tributary_render::{Context, HostedSide};

use super::definition::DefinitionView;
use super::ending::JobOutcome;
use super::exposure::PeerUids;
use super::in_place::JobSettings;
use super::lead::{self, LeadFacts};
use super::status::JobFacts;
use super::view::{ConfigMapView, FilesView, JobStatusView, JobView, LeadPodView, PodView};

/// The caches of the MiniCluster controller.
#[derive(Clone)]
pub(crate) struct Caches {
    /// MiniClusters.
    pub mini_clusters: Cache<MiniCluster>,
    /// Jobs of the whole cluster: upstream's carry no label of ours.
    pub jobs: Cache<JobView>,
    /// ConfigMaps that are managed by us.
    pub config_maps: Cache<ConfigMapView>,
    /// Services that are managed by us.
    pub services: Cache<Service>,
    /// Pods of `spec.services`.
    pub service_pods: Cache<PodView>,
    /// Pods of index 0, of all Jobs: upstream's, ours and hosted ones have no other label in common.
    pub lead_pods: Cache<LeadPodView>,
    /// The same by their Job, whichever of that name it was.
    pub lead_pods_by_job: Indexed<LeadPodView>,
    /// The definition of MiniClusters.
    pub definitions: Cache<DefinitionView>,
    pub bursts: Cache<Burst>,
    /// HostedBursts.
    pub hosted: Cache<HostedBurst>,
    /// ClusterPeers.
    pub peers: Cache<ClusterPeer>,
}

/// One MiniCluster and what was made for it.
#[derive(Clone, Debug)]
pub struct Known {
    /// The object.
    pub mini_cluster: Arc<MiniCluster>,
    /// The HostedBurst that controls it.
    pub hosted: Option<Arc<HostedBurst>>,
    /// Its Job.
    pub job: JobState,
    /// The pods of index 0 of that Job.
    pub lead: LeadFacts,
    /// What its ConfigMap says; `None` if it has none.
    pub config_map: Option<FilesView>,
    /// Services it controls.
    pub services: Vec<Arc<Service>>,
    /// The pod of `spec.services`.
    pub service_pod: Option<Arc<PodView>>,
    /// Its Bursts, in the order of their ranks.
    pub bursts: Vec<Arc<Burst>>,
}

/// The Job of a MiniCluster.
#[derive(Clone, Debug, PartialEq)]
pub enum JobState {
    /// There is none in the cache. Only the API server can tell that there is none at all.
    Absent,
    /// It is being deleted: the next one can be made when it is gone.
    Terminating(JobFacts),
    /// It belongs to somebody else.
    Foreign {
        /// Kind and name of its controller.
        owner: String,
    },
    /// The upstream operator made it.
    Adopted {
        /// What it says.
        facts: JobFacts,
        /// What may follow the spec while it runs.
        settings: Box<JobSettings>,
    },
    /// We made it.
    Ours {
        /// What it says.
        facts: JobFacts,
        /// Digest of its frozen boot files.
        boot_digest: String,
        /// Digest of the ConfigMap's data among them.
        files_digest: String,
        /// What may follow the spec while it runs.
        settings: Box<JobSettings>,
    },
}

impl JobState {
    /// What the Job says, whoever made it.
    pub fn facts(&self) -> Option<&JobFacts> {
        match self {
            Self::Terminating(facts) | Self::Adopted { facts, .. } | Self::Ours { facts, .. } => Some(facts),
            Self::Absent | Self::Foreign { .. } => None,
        }
    }

    /// The deadline of a Job that runs; `Some(None)`: it has none.
    pub(crate) fn deadline(&self) -> Option<Option<i64>> {
        match self {
            Self::Adopted { settings, .. } | Self::Ours { settings, .. } => Some(settings.deadline),
            Self::Terminating(_) | Self::Absent | Self::Foreign { .. } => None,
        }
    }
}

impl Caches {
    /// All that is known of a MiniCluster; `None` if it is gone.
    pub(crate) fn dereference(&self, key: &ObjectKey) -> Option<Known> {
        let mini_cluster = self.mini_clusters.of(key)?;
        let uid = mini_cluster.uid().unwrap_or_default();
        let named = |name: String| ObjectKey { namespace: key.namespace.clone(), name };
        let job = match self.jobs.of(key) {
            None => JobState::Absent,
            Some(job) => job_state(&job, &uid),
        };
        let ours = |meta: &ObjectMeta| controller_uid(meta) == Some(uid.as_str());
        let config_map = self.config_maps.of(&named(names::entrypoint(&key.name))).filter(|map| ours(map.meta()));
        let pod = self.service_pods.of(&named(names::services(&key.name))).filter(|pod| ours(pod.meta()));
        let mut bursts = self.bursts.controlled_by(&uid);
        bursts.sort_by_key(|burst| burst.spec.index);
        let hosted = controller_of::<HostedBurst>(&*mini_cluster).and_then(|owner| self.hosted.of(&owner));
        // Anybody may write an owner: only what is made for the burst is its MiniCluster, and passes the queue.
        let hosted = hosted.filter(|hosted| {
            hosted.metadata.uid.is_some()
                && controller_uid(mini_cluster.meta()) == hosted.metadata.uid.as_deref()
                && mini_cluster.metadata.name.as_ref() == Some(&hosted.spec.slot)
        });
        let lead = match job.facts() {
            Some(facts) => {
                let pods = self.lead_pods.controlled_by(&facts.uid);
                LeadFacts::of(pods.iter().map(|pod| &**pod), &key.name)
            }
            None => LeadFacts::default(),
        };
        Some(Known {
            hosted,
            job,
            lead,
            config_map: config_map.map(|map| map.files.clone()),
            services: self.services.controlled_by(&uid),
            service_pod: pod,
            bursts,
            mini_cluster,
        })
    }

    /// The pod of an earlier lead that has not ended yet, as of `now`. It has the host name of the next one, and answers
    /// to the same selectors. A pod that is overdue is on a node that is lost: it is not waited for.
    pub(crate) fn lingering(&self, key: &ObjectKey, now: Timestamp) -> Option<String> {
        let pods = self.lead_pods_by_job.of(&key.to_string());
        pods.iter().find(|pod| lingers(pod, now)).map(|pod| pod.name_any())
    }

    /// The ClusterPeers by name, with their UIDs.
    pub(crate) fn peer_uids(&self) -> PeerUids {
        let objects = self.peers.objects();
        objects.iter().map(|peer| (peer.name_any(), peer.uid().unwrap_or_default())).collect()
    }

    /// Why no MiniCluster may be trusted or written to now; see [`super::definition`].
    pub(crate) fn outdated(&self) -> Option<String> {
        self.definitions.objects().iter().find_map(|definition| definition.outdated())
    }

    /// Waits until every first list is complete.
    pub(crate) async fn listed(&self) {
        // Taken apart, so that a cache that nobody waits for does not compile.
        let Self {
            mini_clusters,
            jobs,
            config_maps,
            services,
            service_pods,
            lead_pods,
            lead_pods_by_job: _,
            definitions,
            bursts,
            hosted,
            peers,
        } = self;
        mini_clusters.listed().await;
        jobs.listed().await;
        config_maps.listed().await;
        services.listed().await;
        service_pods.listed().await;
        lead_pods.listed().await;
        // An account that may not look at definitions goes without: it is told in the log.
        let _ = tokio::time::timeout(DEFINITIONS_LIMIT, definitions.listed()).await;
        bursts.listed().await;
        hosted.listed().await;
        peers.listed().await;
    }
}

#[cfg(test)]
impl Known {
    /// Nothing else is there.
    pub(crate) fn alone(mini_cluster: MiniCluster, job: JobState) -> Self {
        Self {
            mini_cluster: Arc::new(mini_cluster),
            hosted: None,
            job,
            lead: LeadFacts::default(),
            config_map: None,
            services: Vec::new(),
            service_pod: None,
            bursts: Vec::new(),
        }
    }
}

impl Known {
    /// What rendering needs to know besides the object. A HostedBurst whose rank map cannot be read is an error of the
    /// root's or of a newer version, in a sentence.
    pub(crate) fn context(&self, settings: &Context) -> Result<Context, String> {
        let mut context = settings.clone();
        let Some(hosted) = self.hosted.as_ref().filter(|_| self.is_part()) else { return Ok(context) };
        let rank_map = RankMap::parse_canonical(&hosted.spec.rank_map)
            .map_err(|error| format!("the rank map of HostedBurst {} cannot be read: {error}", hosted.name_any()))?;
        context.lease = hosted.spec.lease.duration();
        context.ends = context.ends.filter(|_| hosted.spec.tunnel);
        context.hosted = Some(HostedSide {
            rank_map,
            slot: hosted.spec.slot.clone(),
            lead_service: names::lead(&hosted.spec.slot),
            lead_port: LEAD_SERVICE_PORT,
        });
        Ok(context)
    }

    /// Whether MultiKueue has made it, of one in another cluster. MultiKueue looks how it ended, and deletes it then. If it, or
    /// its Job, were gone before, it would be made anew, and run once more.
    pub(crate) fn is_dispatched(&self) -> bool {
        self.mini_cluster.labels().contains_key(workload::ORIGIN)
    }

    /// Whether the MiniCluster itself is to go when it has ended.
    pub(crate) fn cleans_up(&self) -> bool {
        self.mini_cluster.spec.cleanup && !self.is_dispatched()
    }

    /// Whether it is a part of an instance whose lead broker is elsewhere: it has no end of its own.
    pub(crate) fn is_part(&self) -> bool {
        self.hosted.as_ref().is_some_and(|hosted| !hosted.spec.whole)
    }

    /// The last status.
    pub(crate) fn status(&self) -> &MiniClusterStatus {
        static NONE: LazyLock<MiniClusterStatus> = LazyLock::new(MiniClusterStatus::default);
        self.mini_cluster.status.as_ref().unwrap_or(&NONE)
    }

    /// Port of the lead Service on the nodes.
    pub(crate) fn node_port(&self) -> Option<i32> {
        self.lead_service()?.spec.as_ref()?.ports.as_ref()?.first()?.node_port
    }

    /// Address of the load balancer of the lead Service.
    pub(crate) fn load_balancer(&self) -> Option<String> {
        let service = self.lead_service()?;
        let balanced = service.spec.as_ref()?.type_.as_deref() == Some("LoadBalancer");
        let status = service.status.as_ref().filter(|_| balanced)?.load_balancer.as_ref()?;
        let texts = status.ingress.iter().flatten().flat_map(|ingress| [&ingress.ip, &ingress.hostname]);
        texts.flatten().find(|text| !text.is_empty()).cloned()
    }

    pub(super) fn lead_service(&self) -> Option<&Service> {
        let name = names::lead(&self.mini_cluster.name_any());
        self.services.iter().map(|service| &**service).find(|service| service.name_any() == name)
    }
}

/// Whether a pod has not ended yet, nor should have long ago.
pub(crate) fn lingers(pod: &LeadPodView, now: Timestamp) -> bool {
    let due = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0 + OVERDUE);
    !lead::has_ended(pod) && due.is_none_or(|due| now < due)
}

/// How long after its grace period a pod that was deleted may still be there.
const OVERDUE: SignedDuration = SignedDuration::from_secs(20);

/// How long the definition is waited for.
const DEFINITIONS_LIMIT: Duration = Duration::from_secs(5);

/// Port of the provider's lead Service: Flux' default.
const LEAD_SERVICE_PORT: u16 = 8050;

/// The Job of the MiniCluster with this UID.
pub(crate) fn job_state(job: &JobView, mini_cluster: &str) -> JobState {
    let owner = job.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    match owner {
        Some(owner) if owner.uid == mini_cluster => {}
        Some(owner) => return JobState::Foreign { owner: format!("{} {}", owner.kind, owner.name) },
        None => return JobState::Foreign { owner: "nobody".to_owned() },
    }
    let annotation = |name: &str| job.metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned();
    let boot_digest = annotation(labels::BOOT_DIGEST);
    let applied_suspend = annotation(labels::APPLIED_SUSPEND).as_deref() == Some("true");
    let facts = JobFacts {
        uid: job.uid().unwrap_or_default(),
        adopted: boot_digest.is_none(),
        parallelism: job.spec.parallelism.unwrap_or(1),
        suspended: job.spec.suspend.unwrap_or(false),
        started: job.status.start_time.as_ref().map(|Time(started)| *started),
        ready: job.status.ready.unwrap_or(0),
        succeeded: job.status.succeeded.unwrap_or(0),
        unmade: unmade(job),
        has_lost: job.status.failed.unwrap_or(0) > 0,
        outcome: outcome(job),
        rank_map_digest: annotation(labels::RANK_MAP_DIGEST),
        credential_digest: annotation(labels::CREDENTIAL_DIGEST),
        restart: annotation(labels::RESTART),
        queue: job.labels().get(labels::KUEUE_QUEUE).cloned(),
        elastic: annotation(labels::KUEUE_ELASTIC).as_deref() == Some("true"),
        applied_suspend,
        left_to: left_to(job.spec.managed_by.as_ref()),
    };
    if job.metadata.deletion_timestamp.is_some() {
        return JobState::Terminating(facts);
    }
    let keys = annotation(labels::APPLIED_JOB_LABELS).unwrap_or_default();
    let settings = Box::new(JobSettings {
        applied_suspend,
        deadline: job.spec.active_deadline_seconds,
        backoff_limit: job.spec.backoff_limit,
        labels: job.labels().clone(),
        applied_labels: keys.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect(),
        restart: annotation(labels::RESTART),
        may_be_fewer: annotation(labels::KUEUE_MIN_PARALLELISM).is_some(),
    });
    match boot_digest {
        None => JobState::Adopted { facts, settings },
        Some(boot_digest) => {
            let files_digest = annotation(labels::FILES_DIGEST).unwrap_or_default();
            JobState::Ours { facts, boot_digest, files_digest, settings }
        }
    }
}

/// Another controller than Kubernetes' own, by a Job's `managedBy`.
pub(crate) fn left_to(managed_by: Option<&String>) -> Option<String> {
    managed_by.filter(|manager| *manager != labels::kubernetes::JOB_CONTROLLER).cloned()
}

/// How many pods nobody has made.
fn unmade(job: &JobView) -> i32 {
    let JobStatusView { active, succeeded, terminating, .. } = &job.status;
    let made: i32 = [active, succeeded, terminating].into_iter().flatten().sum();
    (job.spec.parallelism.unwrap_or(1) - made).max(0)
}

/// `SuccessCriteriaMet` and `FailureTarget` come before the last pod has ended: the outcome is certain then.
fn outcome(job: &JobView) -> Option<JobOutcome> {
    let holds = |type_: &str| job.status.conditions.iter().find(|one| one.type_ == type_ && one.status == "True");
    if let Some(failed) = holds("Failed").or_else(|| holds("FailureTarget")) {
        return Some(JobOutcome::Failed {
            reason: failed.reason.clone().unwrap_or_else(|| "Failed".to_owned()),
            message: failed.message.clone().unwrap_or_default(),
        });
    }
    holds("Complete").or_else(|| holds("SuccessCriteriaMet")).map(|_| JobOutcome::Succeeded)
}

fn controller_uid(meta: &ObjectMeta) -> Option<&str> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(owner.uid.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tributary_api::workload::MULTIKUEUE;

    use super::*;

    #[test]
    fn what_kueue_wrote_on_a_job_is_read() {
        let read = |managed_by: Option<&str>, elastic: &str| {
            let owner = json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "lake", "uid": "u",
                "controller": true});
            let job = json!({
                "metadata": {
                    "name": "lake",
                    "labels": {labels::KUEUE_QUEUE: "default"},
                    "annotations": {labels::KUEUE_MIN_PARALLELISM: "1", labels::KUEUE_ELASTIC: elastic},
                    "ownerReferences": [owner],
                },
                "spec": {"managedBy": managed_by},
            });
            match job_state(&serde_json::from_value(job).unwrap(), "u") {
                JobState::Adopted { facts, settings } => {
                    (facts.queue, facts.left_to, settings.may_be_fewer, facts.elastic)
                }
                other => panic!("{other:?}"),
            }
        };
        let queue = Some("default".to_owned());
        assert_eq!(read(None, "true"), (queue.clone(), None, true, true));
        assert_eq!(read(Some("kubernetes.io/job-controller"), ""), (queue.clone(), None, true, false));
        assert_eq!(read(Some(MULTIKUEUE), "false"), (queue, Some(MULTIKUEUE.to_owned()), true, false));
    }
}
