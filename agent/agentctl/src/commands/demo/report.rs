//! The demo's result: one document, or text for people.

use std::collections::BTreeMap;

use serde::Serialize;

/// What `demo --exit -o json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether every check of every burst passed.
    pub wired: bool,
    /// `simulated (kwok)` or `real`.
    pub pods: String,
    /// The clusters; the first is the root's.
    pub clusters: Vec<ClusterReport>,
    /// The bursts, in the order of their ranks.
    pub bursts: Vec<BurstReport>,
    /// What is not wired, one sentence each.
    pub problems: Vec<String>,
    /// Milliseconds of the demo's own steps.
    pub timings: BTreeMap<&'static str, u64>,
}

/// A cluster of the demo.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    /// Its name.
    pub name: String,
    /// Its kubeconfig.
    pub kubeconfig: String,
    /// Context in that kubeconfig.
    pub context: String,
    /// Where its agent's admin API listens.
    pub admin: String,
    /// The agent's log.
    pub log: String,
}

/// A burst of the demo.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BurstReport {
    /// Name of the slot.
    pub name: String,
    /// Brokers wanted.
    pub size: u32,
    /// The peer it runs on.
    pub peer: Option<String>,
    /// Where it stands.
    pub phase: String,
    /// Brokers online.
    pub ready_brokers: u32,
    /// The lead broker's address, as the provider's lead Service has it.
    pub lead: Option<LeadReport>,
    /// Digest both sides computed.
    pub rank_map_digest: String,
    /// Milliseconds from the root's creation to each phase.
    pub timings: BTreeMap<&'static str, u64>,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeadReport {
    /// IP address.
    pub address: String,
    /// TCP port.
    pub port: u16,
}
