//! The MiniCluster the demo runs: a root of 4 with bursts of 3 and 2.

use kube::api::ObjectMeta;
use tributary::api::minicluster::{
    Amount, BurstCluster, Bursting, Container, FluxContainer, FluxSpec, MiniCluster, MiniClusterSpec,
    ResourceRequirements,
};

use super::ground;

/// Namespace of the demo's MiniCluster, made in every cluster.
pub(super) const NAMESPACE: &str = "tributary-demo";
pub(super) const NAME: &str = "river";
/// Brokers of its own.
pub(super) const SIZE: i32 = 4;
/// Brokers of its bursts.
pub(super) const BURSTS: [i32; 2] = [3, 2];

/// The root MiniCluster, its bursts spread over `peers` in turn. It is interactive: it runs until it is deleted.
pub(super) fn mini_cluster(peers: &[String], image: &str, view_image: Option<&str>) -> MiniCluster {
    let burst = |(position, size): (usize, &i32)| BurstCluster {
        size: Some(*size),
        peer: peers.get(position % peers.len().max(1)).cloned(),
        ..BurstCluster::default()
    };
    let mut root = MiniCluster::new(
        NAME,
        MiniClusterSpec {
            size: Some(SIZE),
            interactive: true,
            // All of it has room on a laptop's cluster.
            containers: vec![Container {
                image: Some(image.to_owned()),
                resources: ResourceRequirements {
                    requests: [("cpu".to_owned(), Amount::Text("50m".into()))].into(),
                    ..ResourceRequirements::default()
                },
                ..Container::default()
            }],
            flux: FluxSpec {
                container: FluxContainer { image: view_image.map(str::to_owned), ..FluxContainer::default() },
                bursting: Bursting { clusters: BURSTS.iter().enumerate().map(burst).collect(), ..Bursting::default() },
                ..FluxSpec::default()
            },
            ..MiniClusterSpec::default()
        },
    );
    root.metadata =
        ObjectMeta { name: Some(NAME.to_owned()), namespace: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
    ground::mark(&mut root.metadata);
    root
}
