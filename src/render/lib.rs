//! MiniCluster to Kubernetes objects, without a client.
//!
//! [`render`] is the whole of it: check the spec (`validate`), derive the instance's ranks ([`rank_map_of`]) and files
//! (`scripts`, `flux_files`), and put them into objects. The files are frozen with the Job ([`Boot`]); while that Job exists,
//! [`config_map`] restores them, and [`differences`] names what a newer spec would change.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod affinity;
pub(crate) mod boot;
mod config_maps;
mod containers;
pub(crate) mod context;
mod flux_files;
pub mod gpus;
mod job;
mod metadata;
mod model;
pub mod nodes;
mod persistent_volumes;
mod pod;
pub mod problem;
pub mod quantity;
pub mod rank_map;
pub mod restful;
mod revision;
mod scripts;
pub mod secret;
mod service_pod;
mod services;
mod supported;
mod validate;
mod volumes;

#[cfg(test)]
mod tests;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_flux::RankMap;

pub use boot::{Boot, BootError, RENDER_REVISION, files_digest};
pub use config_maps::{HOSTLIST_KEY, config_map, ends};
pub use context::{Context, Ends, HostedSide};
pub use pod::longest_end;
pub use problem::{Problem, Problems};
pub use rank_map::rank_map_of;
pub use revision::{differences, flux_version, running};
pub use scripts::{ENDS_PORT, NOTHING_TO_DO, QUEUE_PORT, QUORUM_KEY, nests, shell};
pub use supported::SUSPEND_IN_QUEUE;

/// Every object a MiniCluster needs, but for the Secret ([`secret::secret`]). All bear the controller owner reference, but
/// for the PersistentVolumes, which are of no namespace.
///
/// Applied in the order of the fields: what pods refer to is there before them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// `NAME-entrypoint`: the boot files.
    pub config_map: ConfigMap,
    /// The ends of the tunnel, if they live in its pods: for ConfigMap `NAME-ends` ([`ends`]). Without it, pods start as well.
    pub ends: Option<Ends>,
    /// `NAME.VOLUME`, for each volume with a capacity.
    pub claims: Vec<PersistentVolumeClaim>,
    /// `NAMESPACE.NAME.VOLUME`, for these claims.
    pub persistent_volumes: Vec<PersistentVolume>,
    /// The headless (or minimal) Service, Services of sidecars with ports, and the lead's NodePort Service.
    pub services: Vec<Service>,
    /// `NAME-services`, if the spec has `services`.
    pub service_pod: Option<Pod>,
    /// `NAME`. Its annotations hold the digests; [`Self::frozen_job`] has the boot files, too.
    pub job: Job,
    /// The boot files, as the annotation of the frozen Job holds them.
    pub boot: Boot,
    /// [`Boot::digest`] of these.
    pub boot_digest: String,
    /// Name of the Secret ([`restful::secret`]) that the RESTful server needs; `None` if none runs, or the user has made one.
    pub restful_secret: Option<String>,
    /// The ranks of the instance.
    pub rank_map: RankMap,
    /// Fields that are written and have no effect there, each with the reason: for the condition `SpecSupported`.
    pub unsupported: Vec<String>,
}

impl Rendered {
    /// The Job as it is created, with its boot files. Packing these takes longer than all other rendering, and a Job that
    /// exists is never compared with them.
    pub fn frozen_job(&self) -> Job {
        let mut job = self.job.clone();
        job.metadata.annotations.get_or_insert_default().insert(labels::BOOT.to_owned(), self.boot.encode());
        job
    }
}

/// Whether a MiniCluster can be rendered, but for the size of its files.
pub fn is_valid(mini_cluster: &MiniCluster, context: &Context) -> bool {
    validate::check(mini_cluster, context).is_ok()
}

/// Renders a MiniCluster. The same spec and context always give the same objects.
///
/// # Errors
/// Everything about the spec that cannot be carried out. Nothing may be made of it then.
pub fn render(mini_cluster: &MiniCluster, context: &Context) -> Result<Rendered, Problems> {
    let model = validate::check(mini_cluster, context)?;
    let files = scripts::files(&model);
    let mut job = job::spec(&model, &files);
    let boot = Boot {
        revision: RENDER_REVISION,
        files: files.iter().map(|file| (file.key.clone(), file.text.clone())).collect(),
        rank_map: model.rank_map.to_canonical(),
        template: job::fixed_digest(&mut job),
        spec: revision::recorded_spec(model.spec),
    };
    let canonical = boot.canonical();
    validate::check_files(&files, &boot, canonical.len())?;
    let boot_digest = boot::digest_of(canonical.as_bytes());
    Ok(Rendered {
        config_map: config_map(mini_cluster, &boot),
        ends: model.context.ends.clone().filter(|_| model.has_ends()),
        claims: persistent_volumes::claims(&model),
        persistent_volumes: persistent_volumes::volumes(&model),
        services: services::services(&model),
        service_pod: service_pod::service_pod(&model, &files),
        job: job::job(&model, job, &boot_digest),
        restful_secret: restful::made_secret(&model),
        unsupported: supported::unsupported(&model),
        rank_map: model.rank_map,
        boot,
        boot_digest,
    })
}
