//! Does what was decided: the only step that writes, besides the status.

use jiff::Timestamp;
use k8s_openapi::Resource as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tributary_api::labels;
use tributary_api::labels::kubernetes::JOB_NAME;
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::apply::{Applied, Applier, Once};
use tributary_cluster::caches::controller_of;
use tributary_cluster::error::{Cause, Taken, chain};
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_flux::Certificate;
use tributary_render::{self, Boot, BootError, QUORUM_KEY, Rendered, files_digest};

use super::beside::Without;
use super::decide::{Maintenance, Upkeep};
use super::dereference::{Known, left_to, lingers};
use super::in_place::keys_text;
use super::status::JobFacts;
use super::view::LeadPodView;

/// Writes the objects of MiniClusters.
#[derive(Clone)]
pub(crate) struct Writes {
    pub(super) reader: Client,
    pub(super) writer: Client,
    pub(super) applier: Applier,
}

/// What a new incarnation is made with, besides its objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incarnation<'a> {
    /// What its brokers know each other by.
    pub certificate: &'a Certificate,
    /// The Secret with it is ours to write.
    pub ours: bool,
    /// Who may use the RESTful server; `None`: there is none.
    pub restful: Option<&'a Secret>,
    /// Seconds that its Job may run.
    pub deadline: Option<i64>,
}

/// What became of a creation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Creation {
    /// A new incarnation.
    Created(Box<JobFacts>),
    /// There is a Job already, which the cache does not know yet, or an object of an earlier incarnation still goes:
    /// nothing was written over.
    Exists,
    /// This claim or volume of an earlier incarnation still goes, for as long as something uses it.
    Goes(String),
}

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The frozen boot files cannot be read back.
    #[error("failed to read the boot files frozen with Job {job}; delete the Job to start anew")]
    Boot {
        /// The Job.
        job: ObjectKey,
        /// Why.
        source: BootError,
    },
}

impl Writes {
    /// Writes through the fenced writer; reads what no cache may answer through the reader.
    pub(crate) fn new(reader: Client, writer: Client) -> Self {
        let applier = Applier::new(writer.clone(), labels::manager::MINICLUSTER);
        Self { reader, writer, applier }
    }

    /// Makes a new incarnation.
    ///
    /// The caller knows that there is no Job: a certificate must never change under running brokers. What the pods need comes
    /// first, the Job last, and the Job is created, never applied.
    pub(crate) async fn create(
        &self,
        known: &Known,
        rendered: &Rendered,
        incarnation: Incarnation<'_>,
    ) -> Result<(Creation, Vec<Without>), Error> {
        let Incarnation { certificate, ours, restful, deadline } = incarnation;
        let secret = ours.then(|| tributary_render::secret::secret(&known.mini_cluster, certificate));
        let secret = async {
            match &secret {
                Some(secret) => Ok(self.applier.own(secret, None).await? == Applied::Terminating),
                None => Ok(false),
            }
        };
        let restful = async {
            match restful {
                Some(secret) => Ok(self.applier.own(secret, None).await? == Applied::Terminating),
                None => Ok(false),
            }
        };
        let config_map = async { Ok(self.applier.own(&rendered.config_map, None).await? == Applied::Terminating) };
        let ends = self.ends(known, rendered);
        let services = self.services(known, rendered, Upkeep::All);
        let volumes = self.make_volumes(known, rendered);
        // Last: its boot files are packed while the requests of the others are on their way.
        let job = async { Ok(rendered.frozen_job()) };
        let (secret_goes, restful_goes, config_map_goes, (), without, volume_that_goes, mut job) =
            futures::try_join!(secret, restful, config_map, ends, services, volumes, job)?;
        if secret_goes || restful_goes || config_map_goes {
            return Ok((Creation::Exists, without));
        }
        if let Some(object) = volume_that_goes {
            return Ok((Creation::Goes(object), without));
        }
        job.spec.get_or_insert_default().active_deadline_seconds = deadline;
        let annotations = job.annotations_mut();
        annotations.insert(labels::CREDENTIAL_DIGEST.to_owned(), certificate.digest().to_string());
        annotations.insert(labels::FILES_DIGEST.to_owned(), files_digest(&rendered.boot.files));
        let mini_cluster = &*known.mini_cluster;
        annotations.insert(labels::APPLIED_SUSPEND.to_owned(), mini_cluster.spec.suspend.to_string());
        if !mini_cluster.spec.job_labels.is_empty() {
            let keys = keys_text(mini_cluster.spec.job_labels.keys());
            annotations.insert(labels::APPLIED_JOB_LABELS.to_owned(), keys);
        }
        let restart = mini_cluster.annotations().get(labels::RESTART);
        annotations.extend(restart.map(|value| (labels::RESTART.to_owned(), value.clone())));
        match self.applier.create_once(&job).await? {
            Once::Exists => Ok((Creation::Exists, without)),
            Once::Created(job) => Ok((Creation::Created(Box::new(facts(&job))), without)),
        }
    }

    /// Writes the ends of the tunnel. Where that name is taken, or they are refused, pods start without them.
    async fn ends(&self, known: &Known, rendered: &Rendered) -> Result<(), RequestError> {
        let Some(program) = &rendered.ends else { return Ok(()) };
        let ends = tributary_render::ends(&known.mini_cluster, program);
        match self.applier.own(&ends, None).await {
            Err(error) if !error.cause().is_transient() => {
                tracing::warn!(error = chain(&error), "connections through the tunnel end in the agents");
                Ok(())
            }
            applied => applied.map(drop),
        }
    }

    /// Restores and follows what may change while an incarnation lives: each part of it, also if others fail.
    /// Returns what it runs without, if that is known, and the first failure.
    pub(crate) async fn maintain(
        &self,
        known: &Known,
        running: Option<&Rendered>,
        maintenance: &Maintenance,
    ) -> (Option<Vec<Without>>, Result<(), Error>) {
        // Taken apart, so that a change that nobody makes does not compile.
        let Maintenance { restore_config_map, quorum, job, services } = maintenance;
        let restored = match restore_config_map {
            true => self.restore_config_map(known, quorum.as_ref()).await,
            false => Ok(()),
        };
        // A policy may refuse a deadline, and a webhook (Kueue's) labels of a Job that runs: not what would go along.
        let limited = self.change_job(known, |uid| job.limits_patch(uid)).await;
        let changed = self.change_job(known, |uid| job.patch(uid)).await;
        let labelled = self.change_job(known, |uid| job.labels_patch(uid)).await;
        let (without, served) = match running {
            Some(running) if *services != Upkeep::None => match self.services(known, running, *services).await {
                Ok(without) => (Some(without), Ok(())),
                Err(error) => (None, Err(error.into())),
            },
            _ => (Some(Vec::new()), Ok(())),
        };
        (without, restored.and(limited).and(changed).and(served).and(labelled))
    }

    /// Whether the API server would take the Job of the next incarnation, and its pods: it takes a Job whatever those name, such
    /// as a PriorityClass.
    pub(crate) async fn try_job(&self, known: &Known, rendered: &Rendered) -> Result<(), super::controller::Error> {
        let job = rendered.frozen_job();
        self.applier.try_replacement(&job).await.map_err(Error::from)?;
        let pod = pod_of(&job, known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default());
        match self.applier.try_replacement(&pod).await {
            // Webhooks and policies may have another mind of pods that the Job's controller makes.
            Err(error) if error.cause().is_of_policy() => Ok(()),
            tried => Ok(tried.map_err(Error::from)?),
        }
    }

    /// Deletes the Job of this incarnation. It stays until its pods are gone, so that the next one finds their names free.
    pub(crate) async fn delete_job(&self, known: &Known) -> Result<(), Error> {
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        let doomed = Doomed { key: ObjectKey::of(&*known.mini_cluster), uid };
        sweep::delete_foreground::<Job>(&self.writer, &doomed).await?;
        Ok(())
    }

    /// Whether the API server knows our fields, and so shows MiniClusters whole: a dry run, strict about what it does not
    /// know. A definition is there before the API server goes by it. The status is the only part of a user's MiniCluster
    /// that the agent has the right to patch; the rest of the body is read all the same.
    pub(crate) async fn knows_our_fields(&self, mini_cluster: &MiniCluster) -> Result<bool, Error> {
        let key = ObjectKey::of(mini_cluster);
        let body = json!({"metadata": {"uid": mini_cluster.uid()}, "spec": {"suspend": false, "updates": "OnDelete"}});
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<MiniCluster>::namespaced(self.writer.clone(), &namespace);
        let params = PatchParams {
            dry_run: true,
            field_manager: Some(labels::manager::MINICLUSTER.into()),
            ..PatchParams::default().validation_strict()
        };
        match api.patch_status(&key.name, &params, &Patch::Merge(&body)).await.map_err(Cause::from) {
            Ok(_) => Ok(true),
            // What else is wrong with the object is found out by what knows its fields.
            Err(cause) if cause.is_invalid() => Ok(!chain(&cause).contains("unknown field")),
            Err(cause) => {
                Err(RequestError::new("try out the definition with", format!("MiniCluster {key}"), cause).into())
            }
        }
    }

    /// Deletes the MiniCluster itself, if it is still the same object.
    pub(crate) async fn clean_up(&self, mini_cluster: &MiniCluster) -> Result<(), Error> {
        let Some(doomed) = Doomed::of(mini_cluster) else { return Ok(()) };
        sweep::delete::<MiniCluster>(&self.writer, &doomed).await?;
        Ok(())
    }

    /// The boot files frozen with the Job, from the API server: caches do not keep them. `None` if there is no Job.
    pub(crate) async fn frozen(&self, key: &ObjectKey) -> Result<Option<Boot>, Error> {
        let Some(job) = self.job(key).await? else { return Ok(None) };
        Boot::frozen(job.annotations()).map_err(|source| Error::Boot { job: key.clone(), source })
    }

    /// Makes `status` the MiniCluster's, if it says something else than the last one.
    /// The answer is the resource version it has got then.
    pub(crate) async fn status(
        &self,
        mini_cluster: &MiniCluster,
        status: &tributary_api::minicluster::MiniClusterStatus,
    ) -> Result<Option<String>, Error> {
        let applied = self.applier.apply_status(mini_cluster, status).await?;
        Ok(applied.object().and_then(|object| object.resource_version()))
    }

    /// The Job, from the API server: an empty cache proves nothing.
    pub(super) async fn job(&self, key: &ObjectKey) -> Result<Option<Job>, Error> {
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<Job>::namespaced(self.reader.clone(), &namespace);
        let job = api.get_opt(&key.name).await;
        Ok(job.map_err(|error| RequestError::new("read", format!("Job {key}"), error))?)
    }

    /// A pod of an earlier instance that has not ended yet, of whatever index: caches know those of leads alone. Its rank must not
    /// have two.
    pub(super) async fn lingering(&self, key: &ObjectKey, now: Timestamp) -> Result<Option<String>, Error> {
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<LeadPodView>::namespaced(self.reader.clone(), &namespace);
        let of_job = ListParams::default().labels(&format!("{JOB_NAME}={}", key.name));
        let pods = api.list(&of_job).await;
        let pods = pods.map_err(|error| RequestError::new("list", format!("the pods of Job {key}"), error))?;
        let made = |pod: &&LeadPodView| controller_of::<Job>(*pod).is_some_and(|job| job == *key) && lingers(pod, now);
        Ok(pods.items.iter().find(made).map(ResourceExt::name_any))
    }

    async fn restore_config_map(&self, known: &Known, quorum: Option<&String>) -> Result<(), Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let Some(mut boot) = self.frozen(&key).await? else { return Ok(()) };
        if let (Some(frozen), Some(wanted)) = (boot.files.get_mut(QUORUM_KEY), quorum) {
            frozen.clone_from(wanted);
        }
        let config_map: ConfigMap = tributary_render::config_map(&known.mini_cluster, &boot);
        let applied = self.applier.own(&config_map, None).await?;
        if !matches!(applied, Applied::Unchanged) {
            tracing::info!(mini_cluster = %key, "the boot files were restored from the Job's frozen copy");
        }
        Ok(())
    }

    async fn change_job(&self, known: &Known, patch: impl Fn(&str) -> Option<Value>) -> Result<(), Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        let Some(body) = patch(&uid) else { return Ok(()) };
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<Job>::namespaced(self.writer.clone(), &namespace);
        let params = PatchParams { field_manager: Some(labels::manager::MINICLUSTER.into()), ..PatchParams::default() };
        api.patch(&key.name, &params, &Patch::Merge(&body))
            .await
            .map_err(|error| RequestError::new("change", format!("Job {key}"), error))?;
        Ok(())
    }
}

impl Error {
    /// Whether a name is taken by somebody else's object: what to tell the user.
    pub(crate) fn taken(&self) -> Option<Taken> {
        match self {
            Self::Request(error) => error.taken(),
            Self::Boot { .. } => None,
        }
    }
}

fn facts(job: &Job) -> JobFacts {
    let annotation = |name: &str| job.annotations().get(name).cloned();
    let spec = job.spec.as_ref();
    JobFacts {
        uid: job.uid().unwrap_or_default(),
        adopted: false,
        parallelism: spec.and_then(|spec| spec.parallelism).unwrap_or(1),
        suspended: spec.and_then(|spec| spec.suspend).unwrap_or(false),
        rank_map_digest: annotation(labels::RANK_MAP_DIGEST),
        credential_digest: annotation(labels::CREDENTIAL_DIGEST),
        restart: annotation(labels::RESTART),
        queue: job.labels().get(labels::KUEUE_QUEUE).cloned(),
        left_to: left_to(spec.and_then(|spec| spec.managed_by.as_ref())),
        ..JobFacts::default()
    }
}

/// A pod of a Job, as its controller makes it.
fn pod_of(job: &Job, uid: String) -> Pod {
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let owner = OwnerReference {
        api_version: Job::API_VERSION.to_owned(),
        kind: Job::KIND.to_owned(),
        name: job.name_any(),
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        name: Some(format!("{}-0", job.name_any())),
        namespace: job.namespace(),
        owner_references: Some(vec![owner]),
        ..template.metadata.unwrap_or_default()
    };
    Pod { metadata, spec: template.spec, status: None }
}

#[cfg(test)]
mod tests;
