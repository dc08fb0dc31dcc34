//! Does what was decided: the only step that writes, besides the status.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::decide::{Maintenance, Upkeep};
use super::dereference::Known;
use super::status::JobFacts;
use crate::api::labels;
use crate::api::minicluster::MiniCluster;
use crate::cluster::apply::{Applied, Applier, Once};
use crate::cluster::client::Clients;
use crate::cluster::error::Cause;
use crate::cluster::{ObjectKey, RequestError};
use crate::flux::Certificate;
use crate::render::{self, Boot, BootError, Rendered, files_digest};

/// Writes the objects of MiniClusters.
#[derive(Clone)]
pub struct Writes {
    clients: Clients,
    applier: Applier,
}

/// What became of a creation.
#[derive(Clone, Debug, PartialEq)]
pub enum Creation {
    /// A new incarnation.
    Created(JobFacts),
    /// There is a Job already, which the cache does not know yet: nothing was written over.
    Exists,
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
    pub fn new(clients: Clients) -> Self {
        let applier = Applier::new(clients.writer.clone(), labels::manager::MINICLUSTER);
        Self { clients, applier }
    }

    /// Makes a new incarnation. `certificate` is what the Secret is made of; `None` if somebody else looks after it.
    ///
    /// The API server is asked whether there is a Job before anything is written: a certificate must never change under
    /// running brokers, and an empty cache proves nothing. Then what the pods need comes first, the Job last, and the
    /// Job is created, never applied.
    pub async fn create(
        &self,
        known: &Known,
        rendered: &Rendered,
        certificate: Option<&Certificate>,
    ) -> Result<Creation, Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        if self.job(&key).await?.is_some() {
            return Ok(Creation::Exists);
        }
        let secret = certificate.map(|certificate| render::secret::secret(&known.mini_cluster, certificate));
        let secret = async {
            match &secret {
                Some(secret) => self.applier.apply(secret, None::<&Value>).await.map(drop),
                None => Ok(()),
            }
        };
        let config_map = async { self.applier.apply(&rendered.config_map, None::<&Value>).await.map(drop) };
        let services = self.services(known, rendered, Upkeep::All);
        futures::try_join!(secret, config_map, services)?;
        let mut job = rendered.job.clone();
        let annotations = job.annotations_mut();
        annotations.insert(labels::FILES_DIGEST.to_owned(), files_digest(&rendered.boot.files));
        annotations.insert(labels::APPLIED_SUSPEND.to_owned(), known.mini_cluster.spec.suspend.to_string());
        match self.applier.create_once(&job).await? {
            Once::Exists => Ok(Creation::Exists),
            Once::Created(job) => Ok(Creation::Created(facts(&job))),
        }
    }

    /// Restores and follows what may change while an incarnation lives.
    pub async fn maintain(
        &self,
        known: &Known,
        rendered: Option<&Rendered>,
        maintenance: &Maintenance,
    ) -> Result<(), Error> {
        // Taken apart, so that a change that nobody makes does not compile.
        let Maintenance { restore_config_map, scale, suspend, services } = maintenance;
        if *restore_config_map {
            self.restore_config_map(known).await?;
        }
        if *services != Upkeep::None
            && let Some(rendered) = rendered
        {
            self.services(known, rendered, *services).await?;
        }
        if scale.is_some() || suspend.is_some() {
            self.change_job(known, *scale, *suspend).await?;
        }
        Ok(())
    }

    /// Deletes the MiniCluster itself, if it is still the same object.
    pub async fn clean_up(&self, mini_cluster: &MiniCluster) -> Result<(), Error> {
        let key = ObjectKey::of(mini_cluster);
        let preconditions = Preconditions { uid: mini_cluster.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<MiniCluster>::namespaced(self.clients.writer.clone(), &namespace);
        match api.delete(&key.name, &params).await.map_err(Cause::from) {
            Ok(_) => Ok(()),
            Err(cause) if cause.is_not_found() => Ok(()),
            Err(cause) => Err(RequestError::new("delete", format!("MiniCluster {key}"), cause).into()),
        }
    }

    /// The boot files frozen with the Job, from the API server: caches do not keep them. `None` if there is no Job.
    pub async fn frozen(&self, key: &ObjectKey) -> Result<Option<Boot>, Error> {
        let Some(job) = self.job(key).await? else { return Ok(None) };
        let Some(text) = job.annotations().get(labels::BOOT) else { return Ok(None) };
        let unreadable = |source| Error::Boot { job: key.clone(), source };
        Boot::decode(text).map(Some).map_err(unreadable)
    }

    /// Makes `status` the MiniCluster's, if it says something else than the last one.
    pub async fn status(
        &self,
        mini_cluster: &MiniCluster,
        status: &crate::api::minicluster::MiniClusterStatus,
    ) -> Result<(), Error> {
        self.applier.apply_status(mini_cluster, status).await?;
        Ok(())
    }

    async fn job(&self, key: &ObjectKey) -> Result<Option<Job>, Error> {
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<Job>::namespaced(self.clients.reader.clone(), &namespace);
        let job = api.get_opt(&key.name).await;
        Ok(job.map_err(|error| RequestError::new("read", format!("Job {key}"), error))?)
    }

    async fn services(&self, known: &Known, rendered: &Rendered, upkeep: Upkeep) -> Result<(), RequestError> {
        for service in &rendered.services {
            let live = known.services.iter().find(|live| live.name_any() == service.name_any());
            if live.is_some() && upkeep == Upkeep::Missing {
                continue;
            }
            let mut service = service.clone();
            match self.applier.apply(&service, live.map(|live| &**live)).await {
                Err(error) if live.is_none() && error.cause().is_invalid() && clear_node_ports(&mut service) => {
                    // The port it had is taken by now: any other will do, and bursts are told.
                    self.applier.apply(&service, None::<&Value>).await?;
                }
                other => drop(other?),
            }
        }
        match &rendered.service_pod {
            // A pod cannot be changed: it is made when it is missing.
            Some(pod) if !known.service_pod => self.applier.create_once(pod).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn restore_config_map(&self, known: &Known) -> Result<(), Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let Some(boot) = self.frozen(&key).await? else { return Ok(()) };
        let config_map: ConfigMap = render::config_map(&known.mini_cluster, &boot);
        let applied = self.applier.apply(&config_map, None::<&Value>).await?;
        if !matches!(applied, Applied::Unchanged) {
            tracing::info!(mini_cluster = %key, "the boot files were restored from the Job's frozen copy");
        }
        Ok(())
    }

    async fn change_job(&self, known: &Known, scale: Option<i32>, suspend: Option<bool>) -> Result<(), Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        let mut body = json!({"metadata": {"uid": uid}, "spec": {}});
        if let Some(size) = scale {
            // An indexed Job is elastic as long as both change together.
            body["spec"]["parallelism"] = size.into();
            body["spec"]["completions"] = size.into();
        }
        if let Some(suspend) = suspend {
            body["spec"]["suspend"] = suspend.into();
            body["metadata"]["annotations"] = json!({labels::APPLIED_SUSPEND: suspend.to_string()});
        }
        let namespace = key.namespace.clone().unwrap_or_default();
        let api = Api::<Job>::namespaced(self.clients.writer.clone(), &namespace);
        let params = PatchParams { field_manager: Some(labels::manager::MINICLUSTER.into()), ..PatchParams::default() };
        api.patch(&key.name, &params, &Patch::Merge(&body))
            .await
            .map_err(|error| RequestError::new("change", format!("Job {key}"), error))?;
        Ok(())
    }
}

/// Whether there was one.
fn clear_node_ports(service: &mut Service) -> bool {
    let ports = service.spec.as_mut().and_then(|spec| spec.ports.as_mut());
    let mut cleared = false;
    for port in ports.into_iter().flatten() {
        cleared |= port.node_port.take().is_some();
    }
    cleared
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
        ..JobFacts::default()
    }
}
