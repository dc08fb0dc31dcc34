//! `agentctl minicluster …`: the MiniClusters of one cluster, read with the user's own rights.

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use schemars::JsonSchema;
use serde::Serialize;
use tributary::api::labels::condition::{
    BUDGET, BURSTS_READY, CERTIFICATE_EXPOSED, FINISHED, GROWN, READY, RESTART_REQUIRED, SERVICES_READY,
    SPEC_SUPPORTED, VALID,
};
use tributary::api::minicluster::{MiniCluster, Phase};
use tributary::clock::{Clock, SystemClock};
use tributary::flux::{Idset, RankMap};

use crate::cli::{self, Target};
use crate::document::{self, Document};
use crate::error::Result;
use crate::output::{Mark, age, or_dash};
use crate::{kubernetes, output, paste};

/// What `agentctl minicluster list` prints.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MiniClusterList {
    /// By namespace and name.
    pub items: Vec<Row>,
}

impl Document for MiniClusterList {
    const KIND: &'static str = "MiniClusterList";

    fn nothing(&self) -> Option<&'static str> {
        self.items.is_empty().then_some("no MiniClusters")
    }
}

impl Document for Row {
    const KIND: &'static str = "MiniCluster";
}

/// A MiniCluster.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
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
pub(crate) struct BurstRow {
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
    /// What keeps it from being as the spec asks, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it is in this phase, or what keeps it.
    pub message: String,
}

/// A slot of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlotRow {
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
pub(crate) struct ConditionRow {
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
pub(crate) async fn run(target: &Target, command: cli::MiniCluster) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let now = SystemClock::start().wall();
    match command {
        cli::MiniCluster::List(list) => {
            let found = kubernetes::list(&client, target.namespace.as_deref(), &ListParams::default()).await;
            let found = found.map_err(|failure| {
                failure.hint("are the CRDs installed (`agentctl check`), and may you list them? -n names one namespace")
            })?;
            let document = MiniClusterList { items: found.iter().map(row).collect() };
            output::print(&document::list(target, list.output, &document, |document, _| table(&document.items, now))?)
        }
        cli::MiniCluster::Describe(describe) => {
            let namespace = kubernetes::namespace(target, &client);
            let object = kubernetes::mini_cluster(&client, &namespace, &describe.name).await?;
            let text = |row: &Row, _| paste::whole(&description(row, now), target);
            output::print_marked(&document::text(describe.output, &row(&object), text)?)
        }
    }
}

fn row(object: &MiniCluster) -> Row {
    let status = object.status.clone().unwrap_or_default();
    let map = status.rank_map.as_deref().and_then(|text| RankMap::parse_canonical(text).ok());
    let slot = |(slot, ranks): (&tributary::flux::Slot, std::ops::Range<u32>)| SlotRow {
        name: slot.name.clone(),
        ranks: Idset::from(ranks).to_string(),
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
        reason: burst.reason.clone(),
        message: burst.message.clone(),
    };
    Row {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        phase: status.phase.unwrap_or(Phase::Pending).to_string(),
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

fn table(rows: &[Row], now: Timestamp) -> String {
    let row = |row: &Row| {
        let ready = row.bursts.iter().filter(|burst| stands(burst) == "Ready").count();
        let bursts = if row.bursts.is_empty() { "-".to_owned() } else { format!("{ready}/{}", row.bursts.len()) };
        // Of what keeps it, the most urgent.
        let said = |type_: &str| row.conditions.iter().find(|one| one.r#type == type_);
        let note = said(READY).filter(|one| one.status != "True" || one.reason == RESTART_REQUIRED);
        let note = note.or_else(|| said(BURSTS_READY).filter(|one| one.status != "True"));
        [
            row.namespace.clone(),
            row.name.clone(),
            row.phase.clone(),
            format!("{}/{}", row.ready, row.size),
            bursts,
            or_dash(row.exit_code),
            age(row.created, now),
            note.map(|one| one.message.clone()).unwrap_or_default(),
        ]
    };
    let heads = ["NAMESPACE", "NAME", "PHASE", "BROKERS", "BURSTS", "EXIT", "AGE", "NOTE"];
    output::table(heads, rows.iter().map(row))
}

fn description(row: &Row, now: Timestamp) -> String {
    let mut text = format!("MiniCluster {}/{}\n", row.namespace, row.name);
    let mut line = |what: &str, value: String| text += &format!("  {what:<12}{value}\n");
    line("phase", row.phase.clone());
    line("brokers", format!("{} of {} pods are ready here", row.ready, row.size));
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
        let slots = row.slots.iter().map(|slot| {
            let properties = if slot.properties.is_empty() { "-".to_owned() } else { slot.properties.join(",") };
            [slot.name.clone(), slot.ranks.clone(), slot.cores.to_string(), slot.gpus.to_string(), properties]
        });
        text += &format!("\n{}", output::table(["SLOT", "RANKS", "CORES", "GPUS", "PROPERTIES"], slots));
    }
    if !row.bursts.is_empty() {
        let bursts = row.bursts.iter().map(|burst| {
            let (peer, brokers) = (or_dash(burst.peer.as_ref()), format!("{}/{}", burst.ready, burst.size));
            [burst.name.clone(), peer, stands(burst).to_owned(), brokers, burst.message.clone()]
        });
        text += &format!("\n{}", output::table(["BURST", "PEER", "PHASE", "BROKERS", "NOTE"], bursts));
    }
    if !row.conditions.is_empty() {
        text.push('\n');
    }
    for one in &row.conditions {
        let mark = mark(one, &row.phase).map_or(" ", Mark::text);
        let message = if one.message.is_empty() { String::new() } else { format!(": {}", one.message) };
        text += &format!("{mark} {}={} ({}){message}\n", one.r#type, one.status, one.reason);
    }
    text
}

/// Where a burst stands; what keeps it comes before the phase that it is in.
fn stands(burst: &BurstRow) -> &str {
    burst.reason.as_deref().unwrap_or(&burst.phase)
}

/// Whether what a condition says is good or bad; `None`: it is neither.
fn mark(one: &ConditionRow, phase: &str) -> Option<Mark> {
    let (good, otherwise) = match one.r#type.as_str() {
        // Who has ended well is not ready any more, and nothing is wrong with that.
        READY | BURSTS_READY if ["Succeeded", "Suspended"].contains(&phase) => return None,
        READY | BURSTS_READY | VALID | SERVICES_READY => ("True", Mark::Bad),
        SPEC_SUPPORTED | GROWN | BUDGET => ("True", Mark::Warning),
        RESTART_REQUIRED | CERTIFICATE_EXPOSED => ("False", Mark::Warning),
        FINISHED if one.status == "True" => return Some(if phase == "Succeeded" { Mark::Good } else { Mark::Bad }),
        _ => return None,
    };
    Some(match one.status.as_str() {
        status if status == good => Mark::Good,
        "Unknown" => Mark::Unknown,
        _ => otherwise,
    })
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
        insta::assert_snapshot!(format!("{}\n{}", table(std::slice::from_ref(&row), now), description(&row, now)));
    }

    /// The danger: `✗ RestartRequired` where nothing is wrong, and `✓` where a restart is needed.
    #[test]
    fn a_mark_says_good_or_bad_and_never_true_or_false() {
        let of = |type_: &str, status: &str, phase: &str| {
            let row = ConditionRow {
                r#type: type_.into(),
                status: status.into(),
                reason: String::new(),
                message: String::new(),
            };
            mark(&row, phase)
        };
        for (type_, status, phase, wanted) in [
            (RESTART_REQUIRED, "False", "Running", Some(Mark::Good)),
            (RESTART_REQUIRED, "True", "Running", Some(Mark::Warning)),
            (CERTIFICATE_EXPOSED, "True", "Running", Some(Mark::Warning)),
            (READY, "True", "Running", Some(Mark::Good)),
            (READY, "False", "Starting", Some(Mark::Bad)),
            (READY, "False", "Succeeded", None),
            (BURSTS_READY, "False", "Running", Some(Mark::Bad)),
            (FINISHED, "False", "Running", None),
            (FINISHED, "True", "Succeeded", Some(Mark::Good)),
            (FINISHED, "True", "Failed", Some(Mark::Bad)),
            ("JobRequested", "False", "Running", None),
            ("JobRunning", "False", "Running", None),
            (SPEC_SUPPORTED, "False", "Running", Some(Mark::Warning)),
            (BUDGET, "Unknown", "Running", Some(Mark::Unknown)),
        ] {
            assert_eq!(of(type_, status, phase), wanted, "{type_}={status}, {phase}");
        }
    }

    #[test]
    fn a_burst_that_lacks_brokers_is_not_counted_as_ready() {
        let burst = json!({"name": "lake-burst-0", "peer": "west", "phase": "Ready", "size": 5, "ready": 3,
            "reason": "RestartRequired", "message": "5 brokers are wanted, and the instance has ranks for 3"});
        let object: MiniCluster = serde_json::from_value(json!({
            "metadata": {"name": "lake"}, "spec": {"size": 2, "containers": []},
            "status": {"phase": "Running", "ready": 2, "bursts": [burst]},
        }))
        .unwrap();
        let row = row(&object);
        let now = Timestamp::UNIX_EPOCH;
        let table = table(std::slice::from_ref(&row), now);
        assert!(table.contains(" 0/1 ") && !table.contains("1/1"), "{table}");
        let text = description(&row, now);
        assert!(text.contains("RestartRequired   3/5"), "{text}");
    }
}
