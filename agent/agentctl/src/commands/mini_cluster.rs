//! `agentctl minicluster …`: the MiniClusters of one cluster, read with the user's own rights.

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use schemars::JsonSchema;
use serde::Serialize;
use tributary::api::minicluster::{MiniCluster, Phase};
use tributary::clock::{Clock, SystemClock};
use tributary::flux::RankMap;

use crate::cli::{self, Target};
use crate::document::{self, Document};
use crate::error::{Failure, Result};
use crate::output::{Mark, Table, age, or_dash};
use crate::{kubernetes, output};

/// What `agentctl minicluster list` prints.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusterList {
    /// By namespace and name.
    pub items: Vec<Row>,
}

impl Document for MiniClusterList {
    const KIND: &'static str = "MiniClusterList";
}

impl Document for Row {
    const KIND: &'static str = "MiniCluster";
}

/// A MiniCluster.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub phase: String,
    /// Brokers wanted in this cluster.
    pub size: i32,
    /// Brokers of this cluster that have joined.
    pub ready: i32,
    /// Its bursts.
    pub bursts: Vec<BurstRow>,
    /// How its command ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// The slots of its instance, in the order of their ranks; empty while there is none.
    pub slots: Vec<SlotRow>,
    /// What is said of it.
    pub conditions: Vec<ConditionRow>,
    /// Digest of its rank map: the same on every cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_map_digest: Option<String>,
    /// How often it was started anew.
    pub restarts: i32,
}

/// A burst of a MiniCluster.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BurstRow {
    /// Name of its slot.
    pub name: String,
    /// The peer that it is placed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Where it stands.
    pub phase: String,
    /// Brokers wanted.
    pub size: i32,
    /// Brokers that have joined.
    pub ready: i32,
    /// Its ranks.
    pub ranks: String,
    /// Why it is in this phase.
    pub message: String,
}

/// A slot of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotRow {
    /// Its name.
    pub name: String,
    /// Its ranks.
    pub ranks: String,
    /// Cores of each broker.
    pub cores: u32,
    /// GPUs of each broker.
    pub gpus: u32,
    /// Properties, for `flux run --requires`.
    pub properties: Vec<String>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionRow {
    /// Its type.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One CamelCase word.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

/// Runs `agentctl minicluster …`.
pub async fn run(target: &Target, command: cli::MiniCluster) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let now = SystemClock::start().wall();
    match command {
        cli::MiniCluster::List(list) => {
            let objects: Api<MiniCluster> = match &target.namespace {
                Some(namespace) => Api::namespaced(client, namespace),
                None => Api::all(client),
            };
            let found = objects.list(&ListParams::default()).await.map_err(|error| {
                Failure::new("failed to list MiniClusters").because(error).hint(
                    "are the definitions installed (`agentctl check`), and may you list them? -n names one namespace",
                )
            })?;
            let document = MiniClusterList { items: found.items.iter().map(row).collect() };
            output::print(&document::text(list.output, &document, |document, wide| table(&document.items, wide, now))?)
        }
        cli::MiniCluster::Describe(describe) => {
            let namespace = target.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
            let objects: Api<MiniCluster> = Api::namespaced(client, &namespace);
            let object = objects.get(&describe.name).await.map_err(|error| {
                Failure::new(format!("failed to read MiniCluster {namespace}/{}", describe.name))
                    .because(error)
                    .hint("-n names another namespace; what there is: `agentctl minicluster list`")
            })?;
            output::print_marked(&document::text(describe.output, &row(&object), |row, _| description(row, now))?)
        }
    }
}

fn row(object: &MiniCluster) -> Row {
    let status = object.status.clone().unwrap_or_default();
    let map = status.rank_map.as_deref().and_then(|text| RankMap::parse_canonical(text).ok());
    let slot = |(slot, ranks): (&tributary::flux::Slot, std::ops::Range<u32>)| SlotRow {
        name: slot.name.clone(),
        ranks: if ranks.len() > 1 { format!("{}-{}", ranks.start, ranks.end - 1) } else { ranks.start.to_string() },
        cores: slot.cores,
        gpus: slot.gpus,
        properties: slot.properties.clone(),
    };
    let burst = |burst: &tributary::api::minicluster::BurstStatus| BurstRow {
        name: burst.name.clone(),
        peer: burst.peer.clone(),
        phase: burst.phase.clone(),
        size: burst.size,
        ready: burst.ready,
        ranks: burst.ranks.clone(),
        message: burst.message.clone(),
    };
    Row {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        phase: format!("{:?}", status.phase.unwrap_or(Phase::Pending)),
        size: object.spec.size(),
        ready: status.ready.unwrap_or(0),
        bursts: status.bursts.iter().map(burst).collect(),
        exit_code: status.exit_code,
        created: object.creation_timestamp().map(|at| at.0),
        slots: map.iter().flat_map(|map| map.slots_with_ranks().map(slot).collect::<Vec<_>>()).collect(),
        conditions: status
            .conditions
            .iter()
            .map(|one| ConditionRow {
                r#type: one.type_.clone(),
                status: one.status.clone(),
                reason: one.reason.clone(),
                message: one.message.clone(),
            })
            .collect(),
        rank_map_digest: status.rank_map_digest,
        restarts: status.instance_restarts,
    }
}

fn table(rows: &[Row], wide: bool, now: Timestamp) -> String {
    if rows.is_empty() {
        return "no MiniClusters\n".to_owned();
    }
    let mut table = Table::new(["NAMESPACE", "NAME", "PHASE", "BROKERS", "BURSTS", "EXIT", "AGE", "NOTE"]);
    for row in rows {
        let ready = row.bursts.iter().filter(|burst| burst.phase == "Ready").count();
        let bursts = if row.bursts.is_empty() { "-".to_owned() } else { format!("{ready}/{}", row.bursts.len()) };
        let note = row.conditions.iter().find(|one| one.r#type == "Ready" && one.status != "True");
        table.row(vec![
            row.namespace.clone(),
            row.name.clone(),
            row.phase.clone(),
            format!("{}/{}", row.ready, row.size),
            bursts,
            or_dash(row.exit_code),
            age(row.created, now),
            note.map(|one| super::status::shorten(&one.message, wide)).unwrap_or_default(),
        ]);
    }
    table.text()
}

fn description(row: &Row, now: Timestamp) -> String {
    let mut text = format!("MiniCluster {}/{}\n", row.namespace, row.name);
    let mut line = |what: &str, value: String| text += &format!("  {what:<12}{value}\n");
    line("phase", row.phase.clone());
    line("brokers", format!("{} of {} have joined here", row.ready, row.size));
    line("age", age(row.created, now));
    if let Some(code) = row.exit_code {
        line("exit code", code.to_string());
    }
    if row.restarts > 0 {
        line("restarts", row.restarts.to_string());
    }
    if let Some(digest) = &row.rank_map_digest {
        line("rank map", digest.clone());
    }
    if !row.slots.is_empty() {
        let mut table = Table::new(["SLOT", "RANKS", "CORES", "GPUS", "PROPERTIES"]);
        for slot in &row.slots {
            let properties = if slot.properties.is_empty() { "-".to_owned() } else { slot.properties.join(",") };
            table.row(vec![
                slot.name.clone(),
                slot.ranks.clone(),
                slot.cores.to_string(),
                slot.gpus.to_string(),
                properties,
            ]);
        }
        text += &format!("\n{}", table.text());
    }
    if !row.bursts.is_empty() {
        let mut table = Table::new(["BURST", "PEER", "PHASE", "BROKERS", "NOTE"]);
        for burst in &row.bursts {
            table.row(vec![
                burst.name.clone(),
                or_dash(burst.peer.clone()),
                burst.phase.clone(),
                format!("{}/{}", burst.ready, burst.size),
                burst.message.clone(),
            ]);
        }
        text += &format!("\n{}", table.text());
    }
    if !row.conditions.is_empty() {
        text.push('\n');
    }
    for one in &row.conditions {
        let mark = match one.status.as_str() {
            "True" => Mark::Good,
            "False" => Mark::Bad,
            _ => Mark::Unknown,
        };
        let message = if one.message.is_empty() { String::new() } else { format!(": {}", one.message) };
        text += &format!("{} {} ({}){message}\n", mark.text(), one.r#type, one.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tributary::flux::{Slot, Topology};

    use super::*;

    #[test]
    fn a_root_with_a_burst_is_listed_and_described() {
        let parent = Topology::Gateway.parent_of_bursts("lake");
        let map = RankMap::new(vec![
            Slot::root("lake", 4).with_resources(2, 0),
            Slot::burst("lake-burst-0", 3, parent).with_resources(8, 1).with_property("cluster-west"),
        ])
        .unwrap();
        let object: MiniCluster = serde_json::from_value(json!({
            "metadata": {"name": "lake", "namespace": "flux", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"size": 4, "containers": [{"image": "app"}]},
            "status": {"phase": "Running", "ready": 4, "rankMap": map.to_canonical(), "instanceRestarts": 1,
                "rankMapDigest": "sha256:0", "bursts": [{"name": "lake-burst-0", "peer": "west", "phase": "Joining",
                "size": 3, "ready": 1, "ranks": "4-6", "message": "west: 1 of 3 brokers are online"}],
                "conditions": [
                    {"type": "BurstsReady", "status": "False", "reason": "NotAllReady", "message": "not ready: lake-burst-0",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    {"type": "Ready", "status": "True", "reason": "Running", "message": "4 of 4 brokers have joined",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let row = row(&object);
        insta::assert_snapshot!(format!(
            "{}\n{}",
            table(std::slice::from_ref(&row), false, now),
            description(&row, now)
        ));
    }
}
