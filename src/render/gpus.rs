//! Which resources of a container are GPUs to a quota: that of a queue, and that of a peer. Pure.
//!
//! Flux gives away those of a few names ([`rank_map`]). A quota is there for what is dear, by whatever name it is requested:
//! slices of a GPU, shared ones, and other accelerators count as well, one each.

use tributary_api::minicluster::ResourceRequirements;

use super::quantity::milli;
use super::rank_map;

/// Accelerators that are called otherwise, by their vendors' device plugins.
const OTHERS: [&str; 5] = [
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "aws.amazon.com/neurondevice",
    "google.com/tpu",
    "habana.ai/gaudi",
];

/// Whether a resource of this name is a GPU: of those that Flux gives away, any vendor's `gpu` (`gpu.shared` included) or
/// `mig-…`, and some accelerators that have other names. Not what counts memory or shares of one (`gpu-mem`, `gpucores`).
pub fn is_gpu(resource: &str) -> bool {
    let device = resource.split_once('/').map_or("", |(_, device)| device);
    rank_map::is_gpu(resource)
        || device == "gpu"
        || device.starts_with("gpu.")
        || device.starts_with("mig-")
        || OTHERS.contains(&resource)
}

/// GPUs that a container requests; those of the resource `named` are some as well, whatever its name is.
pub fn requested(resources: &ResourceRequirements, named: Option<&str>) -> i64 {
    let mut names: Vec<&String> = resources.requests.keys().chain(resources.limits.keys()).collect();
    names.sort();
    names.dedup();
    let counted = names.into_iter().filter(|name| is_gpu(name) || named == Some(name.as_str()));
    let amounts = counted.filter_map(|name| milli(&resources.effective_request(name)?.to_string()));
    amounts.map(|milli| i64::try_from(milli.max(0) / 1000).unwrap_or(i64::MAX)).fold(0, i64::saturating_add)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_is_dear_is_a_gpu_and_parts_of_one_are_not_counted_as_many() {
        for name in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-3g.40gb",
            "nvidia.com/mig-1g.5gb.shared",
            "amd.com/gpu",
            "gpu.intel.com/i915",
            "gpu.intel.com/xe",
            "example.com/gpu",
            "habana.ai/gaudi",
            "google.com/tpu",
        ] {
            assert!(is_gpu(name), "{name}");
        }
        for name in [
            "cpu",
            "memory",
            "gpu",
            "mig-1g",
            "nvidia.com/gpumem",
            "aliyun.com/gpu-mem",
            "vpc.amazonaws.com/efa",
            "gpu.intel.com/millicores",
            "gpu.intel.com/memory.max",
            "gpu.intel.com/tiles",
            "gpu.intel.com/i915_monitoring",
        ] {
            assert!(!is_gpu(name), "{name}");
        }
    }

    #[test]
    fn a_container_has_what_it_requests_or_may_use_at_most() {
        let resources: ResourceRequirements = serde_json::from_value(json!({
            "requests": {"nvidia.com/mig-3g.40gb": 2, "cpu": 4},
            "limits": {"nvidia.com/mig-3g.40gb": 2, "amd.com/gpu": "3", "example.com/wafer": 5},
        }))
        .unwrap();
        assert_eq!(requested(&resources, None), 5);
        assert_eq!(requested(&resources, Some("example.com/wafer")), 10);
        assert_eq!(requested(&resources, Some("amd.com/gpu")), 5, "it is one already");
    }
}
