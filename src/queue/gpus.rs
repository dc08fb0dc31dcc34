//! Which resources of a container are GPUs to a quota: those that are to every quota, and what a FluxJob calls its GPUs,
//! whatever its name is. The pods of its MiniCluster bear that in an annotation. Pure.

use tributary_api::labels::GPU_RESOURCE;
use tributary_api::minicluster::MiniClusterSpec;
pub(crate) use tributary_render::gpus::is_gpu;
pub(super) use tributary_render::gpus::requested;

/// The resource that a FluxJob calls GPUs, where its name does not say so.
pub(super) fn named(spec: &MiniClusterSpec) -> Option<&str> {
    spec.pod.annotations.get(GPU_RESOURCE).map(String::as_str)
}
