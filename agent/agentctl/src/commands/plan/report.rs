//! The document of `agentctl plan`, and its text for people.

use schemars::JsonSchema;
use serde::Serialize;

use super::candidates::{self, CandidateRow};
use crate::document::Document;
use crate::output::{Mark, table};

/// What applying a manifest would make.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Nothing that is known stands against it.
    pub possible: bool,
    /// The MiniClusters, in the order of the manifest.
    pub mini_clusters: Vec<MiniClusterPlan>,
    /// Objects of other kinds in the manifest; they are not planned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// What was not looked at, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

impl Document for Report {
    const KIND: &'static str = "Plan";
}

/// What one MiniCluster would come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MiniClusterPlan {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether a FluxJob of this name makes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flux_job: bool,
    /// What becomes of it: one sentence.
    pub change: String,
    /// Where it stands in the queue of its namespace; `null`: there is no FluxSetup, or it runs already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePlan>,
    /// What stands against it.
    pub problems: Vec<Problem>,
    /// Fields without effect, and what else its user should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Digest of its rank map, the same on every cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_map_digest: Option<String>,
    /// The cluster of its root first, then one entry for each burst.
    pub clusters: Vec<ClusterPlan>,
    /// Who gets its certificate.
    pub recipients: Vec<Recipient>,
}

/// What the queue of a namespace would say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueuePlan {
    /// The FluxSetup that counts there.
    pub setup: String,
    /// Whether it starts at once, as far as is known.
    pub starts: bool,
    /// MiniClusters and FluxJobs that wait there now.
    pub waiting: u32,
    /// What of the quota is left now, and what this takes.
    pub charges: Vec<ChargeRow>,
    /// One sentence.
    pub summary: String,
}

/// One cluster's part in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterPlan {
    /// Name of the cluster; `null`: no peer can take the burst, or none is known.
    pub cluster: Option<String>,
    /// Name of the slot: of the MiniCluster there.
    pub slot: String,
    /// Why this cluster: one sentence.
    pub placement: String,
    /// The peers, best first, if it is a burst and they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateRow>,
    /// The namespace there.
    pub namespace: String,
    /// Ranks of the instance, `4-6`.
    pub ranks: String,
    /// Brokers that are started.
    pub brokers: u32,
    /// Cores of each broker, for Flux; what is requested, where it counts those that it finds.
    pub cores: u32,
    /// Whether the lead broker counts the cores that it finds on its node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub counts_cores: bool,
    /// GPUs of each broker, for Flux.
    pub gpus: u32,
    /// Properties of these ranks, for `flux run --requires`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<String>,
    /// Objects that are made.
    pub objects: Vec<Object>,
    /// Ports that are opened.
    pub ports: Vec<Port>,
    /// What quotas are charged.
    pub charges: Vec<ChargeRow>,
    /// Why that cluster would refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// What was not looked at there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

/// An object that is made.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Object {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// What for.
    pub purpose: String,
}

/// A port that is opened.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Port {
    /// The Service.
    pub service: String,
    /// Its type.
    pub r#type: String,
    /// The port and its protocol, `8050/TCP`.
    pub port: String,
    /// The port on every node, or who chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<String>,
}

/// What a quota is charged.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChargeRow {
    /// Whose: a ResourceQuota, or the import policy.
    pub quota: String,
    /// Of what.
    pub resource: String,
    /// What is left now.
    pub left: String,
    /// What this takes.
    pub needed: String,
    /// Whether that is there.
    pub fits: bool,
}

impl ChargeRow {
    pub(super) fn new(
        quota: impl Into<String>,
        resource: impl Into<String>,
        left: impl ToString,
        needed: impl ToString,
        fits: bool,
    ) -> Self {
        let (left, needed) = (left.to_string(), needed.to_string());
        Self { quota: quota.into(), resource: resource.into(), left, needed, fits }
    }
}

/// Who gets the certificate of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recipient {
    /// Name of the cluster.
    pub cluster: String,
    /// The Secret there.
    pub secret: String,
    /// Why.
    pub reason: String,
}

/// Why a cluster would refuse a burst.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Refusal {
    /// One CamelCase word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// What can be done.
    pub hint: String,
}

/// Something that stands against it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Problem {
    /// The field.
    pub field: String,
    /// One CamelCase word.
    pub reason: String,
    /// One sentence: what is wrong and what to write instead.
    pub message: String,
}

/// Reason: a field has a value of another type.
pub(super) const WRONG_TYPE: &str = "WrongType";
/// Reason: the document is no object of its kind.
pub(super) const UNREADABLE: &str = "Unreadable";
/// Reason: a FluxJob of which no MiniCluster can be made.
pub(super) const INVALID_FLUX_JOB: &str = "InvalidFluxJob";

impl Problem {
    /// Whether nothing else can be said of its object.
    pub(super) fn is_unreadable(&self) -> bool {
        [WRONG_TYPE, UNREADABLE, INVALID_FLUX_JOB].contains(&self.reason.as_str())
    }

    /// A problem with the field at `path`.
    pub(crate) fn new(field: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.to_owned(), message: message.into() }
    }
}

/// The plan for people.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    for plan in &report.mini_clusters {
        text += &of_mini_cluster(plan);
        text.push('\n');
    }
    for other in &report.others {
        text += &format!("note: {other} is applied as it is, and not planned\n");
    }
    for what in &report.unchecked {
        text += &format!("{} not checked: {what}\n", Mark::Unknown.text());
    }
    text += "nothing was written\n";
    text
}

fn of_mini_cluster(plan: &MiniClusterPlan) -> String {
    let what = if plan.flux_job { "MiniCluster of FluxJob" } else { "MiniCluster" };
    let mut text = format!("{what} {}/{}: {}\n", plan.namespace, plan.name, plan.change);
    if let Some(queue) = &plan.queue {
        text += &format!("  queue of FluxSetup {}: {}\n", queue.setup, queue.summary);
        text += &indented(&charges(&queue.charges, "has to wait"));
    }
    for problem in &plan.problems {
        text += &format!("{} {}: {} ({})\n", Mark::Bad.text(), problem.field, problem.message, problem.reason);
    }
    for note in &plan.notes {
        text += &format!("{} {note}\n", Mark::Warning.text());
    }
    plan.clusters.iter().for_each(|cluster| text += &of_cluster(cluster));
    if !plan.recipients.is_empty() {
        text += "\n  the certificate of the instance goes to\n";
        let recipients = plan.recipients.iter().map(|one| [&one.cluster, &one.secret, &one.reason]);
        text += &indented(&table(["CLUSTER", "SECRET", "WHY"], recipients));
    }
    if let Some(digest) = &plan.rank_map_digest {
        text += &format!("  rank map {digest}\n");
    }
    text
}

fn of_cluster(plan: &ClusterPlan) -> String {
    let cluster = plan.cluster.as_deref().unwrap_or("(no cluster)");
    let gpus = if plan.gpus > 0 { format!(" and {} GPUs", plan.gpus) } else { String::new() };
    let cores = match plan.counts_cores {
        true => "the cores that its lead finds".to_owned(),
        false => format!("{} cores", plan.cores),
    };
    let mut text = format!(
        "\n  {} on {cluster}, namespace {}: {}\n  ranks {}, {} brokers with {cores}{gpus} each{}\n",
        plan.slot,
        plan.namespace,
        plan.placement,
        plan.ranks,
        plan.brokers,
        if plan.properties.is_empty() { String::new() } else { format!(", properties {}", plan.properties.join(", ")) },
    );
    text += &indented(&candidates::text(&plan.candidates));
    if let Some(Refusal { reason, message, hint }) = &plan.refusal {
        text += &format!("{} it is refused ({reason}): {message}\n  hint: {hint}\n", Mark::Bad.text());
    }
    let objects = plan.objects.iter().map(|object| [&object.kind, &object.name, &object.purpose]);
    text += &indented(&table(["KIND", "NAME", "WHAT FOR"], objects));
    if !plan.ports.is_empty() {
        let ports = plan
            .ports
            .iter()
            .map(|port| [port.service.as_str(), &port.r#type, &port.port, port.node_port.as_deref().unwrap_or("-")]);
        text += &indented(&table(["SERVICE", "TYPE", "PORT", "NODE PORT"], ports));
    }
    text += &indented(&charges(&plan.charges, "exceeded"));
    for what in &plan.unchecked {
        text += &format!("{} not checked: {what}\n", Mark::Unknown.text());
    }
    text
}

/// The table of charges, or nothing. `lacks`: what is said of those that do not fit.
fn charges(charges: &[ChargeRow], lacks: &str) -> String {
    if charges.is_empty() {
        return String::new();
    }
    let rows = charges
        .iter()
        .map(|one| [one.quota.as_str(), &one.resource, &one.left, &one.needed, if one.fits { "" } else { lacks }]);
    table(["QUOTA", "OF", "LEFT", "TAKES", ""], rows)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
