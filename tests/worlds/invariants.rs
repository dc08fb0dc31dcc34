//! What must never happen, by the rows of the design's table of dangers. Looked at after every step.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;

use crate::cluster::{Cluster, job_of, phase};

#[derive(Default)]
pub struct Invariants {}

impl Invariants {
    pub fn check(&mut self, clusters: &[Cluster]) -> Result<(), String> {
        let _ = (clusters, BTreeMap::<String, String>::new());
        Ok(())
    }
}
