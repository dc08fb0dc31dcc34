//! The document of `agentctl migrate check`, and how people see it.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use crate::document::Document;
use crate::output::{or_dash, table};

/// What the move would change.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Nothing would break.
    pub ready: bool,
    /// Version of the API server.
    pub kubernetes: String,
    /// The Flux Operator's Deployments.
    pub operators: Vec<OperatorRow>,
    /// Who holds the Flux Operator's Lease now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_holder: Option<String>,
    /// The definition of MiniClusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<DefinitionRow>,
    /// Every MiniCluster.
    pub mini_clusters: Vec<MiniClusterRow>,
    /// What would break or change, worst first.
    pub findings: Vec<Finding>,
    /// What could not be read, and why: it was not judged.
    pub unseen: Vec<String>,
    /// The commands of the move, in order.
    pub steps: Vec<Step>,
}

impl Document for Report {
    const KIND: &'static str = "MigrationCheck";
}

/// A Deployment of the Flux Operator.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRow {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Replicas asked for.
    pub replicas: i32,
    /// It holds a Lease while it runs, by which an agent sees it.
    pub leader_election: bool,
    /// The Helm release it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helm_release: Option<String>,
}

/// The definition of MiniClusters.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionRow {
    /// Versions that are served.
    pub served: Vec<String>,
    /// Versions in which objects may be stored.
    pub stored: Vec<String>,
    /// It is Tributary's already.
    pub tributarys: bool,
}

/// A MiniCluster, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusterRow {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `spec.size`.
    pub size: i32,
    /// What its Job does: `running`, `suspended`, `succeeded`, `failed`, `none` or `foreign`.
    pub job: String,
    /// What becomes of it.
    pub after: After,
}

/// What becomes of a MiniCluster when an agent takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum After {
    /// Its Job runs on untouched; the next instance is Tributary's.
    Adopted,
    /// It has ended, and stays as it is.
    Kept,
    /// It has no Job, and gets one.
    Starts,
    /// It has no Job, and gets none: a condition says why.
    Refused,
    /// It is Tributary's already.
    Unchanged,
}

impl After {
    fn sentence(self) -> &'static str {
        match self {
            Self::Adopted => "adopted: its Job runs on untouched",
            Self::Kept => "kept as it is",
            Self::Starts => "starts: it has no Job yet",
            Self::Refused => "refused with a condition",
            Self::Unchanged => "unchanged: it is Tributary's",
        }
    }
}

/// One thing that breaks or changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The rule, for programs: `CommandSubstitution`.
    pub rule: String,
    /// What it is about: `MiniCluster default/lammps`.
    pub object: String,
    /// The field, as the user writes it; empty if it is about the whole object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What happens, in a sentence.
    pub what: String,
    /// What to do; empty if nothing needs to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Finding {
    /// About no object and no field yet.
    pub(super) fn of(severity: Severity, rule: &str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        let (object, field) = (String::new(), String::new());
        Self { severity, rule: rule.to_owned(), object, field, what: what.into(), hint: hint.into() }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Something that works would not work any more.
    Breaks,
    /// Something behaves differently.
    Changes,
}

/// A command of the move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What it is for.
    pub why: String,
    /// The command line.
    pub command: String,
}

/// The report for people.
pub(super) fn text(report: &Report, wide: bool) -> String {
    let mut text = head(report);
    text.push('\n');
    text.push_str(&mini_clusters(report));
    for (severity, title) in
        [(Severity::Breaks, "would break"), (Severity::Changes, "would change, in instances that Tributary starts")]
    {
        text.push_str(&findings(report, severity, title, wide));
    }
    if !report.unseen.is_empty() {
        text.push_str("\nnot judged, because it could not be read:\n");
        report.unseen.iter().for_each(|what| line(&mut text, format_args!("  {what}")));
    }
    if !report.steps.is_empty() {
        text.push_str("\nthe move:\n");
    }
    for step in &report.steps {
        line(&mut text, format_args!("  # {}", step.why));
        line(&mut text, format_args!("  $ {}", step.command));
    }
    text
}

fn head(report: &Report) -> String {
    let definition = report.definition.as_ref();
    let versions = definition.map(|row| {
        format!("{} ({})", row.served.join(","), if row.tributarys { "Tributary's" } else { "the Flux Operator's" })
    });
    let operator = |row: &OperatorRow| {
        let election = if row.leader_election { "" } else { ", no leader election" };
        let replicas = if row.replicas == 1 { "1 replica" } else { &format!("{} replicas", row.replicas) };
        format!("{}/{} ({}, {replicas}{election})", row.namespace, row.name, row.image)
    };
    let mut operators: Vec<String> = report.operators.iter().map(operator).collect();
    if operators.is_empty() {
        operators.push(match &report.lease_holder {
            Some(holder) => format!("its Lease is held by {holder}"),
            None => "none".to_owned(),
        });
    }
    let row = [
        report.kubernetes.clone(),
        versions.unwrap_or_else(|| "none".to_owned()),
        or_dash(definition.map(|row| row.stored.join(","))),
        operators.join("; "),
    ];
    table(["KUBERNETES", "DEFINITION", "STORED", "FLUX OPERATOR"], [row])
}

fn mini_clusters(report: &Report) -> String {
    if report.mini_clusters.is_empty() {
        return "no MiniClusters\n".to_owned();
    }
    let row = |MiniClusterRow { namespace, name, size, job, after }: &MiniClusterRow| {
        [namespace.clone(), name.clone(), size.to_string(), job.clone(), after.sentence().to_owned()]
    };
    table(["NAMESPACE", "MINICLUSTER", "SIZE", "JOB", "AFTER THE MOVE"], report.mini_clusters.iter().map(row))
}

/// Findings that say the same are one paragraph with all their places.
fn findings(report: &Report, severity: Severity, title: &str, wide: bool) -> String {
    const NARROW: usize = 4;
    let mut groups: Vec<(&Finding, Vec<String>)> = Vec::new();
    for finding in report.findings.iter().filter(|finding| finding.severity == severity) {
        let place = format!("{} {}", finding.object, finding.field).trim_end().to_owned();
        match groups.iter_mut().find(|(first, _)| first.what == finding.what && first.hint == finding.hint) {
            Some((_, places)) => places.push(place),
            None => groups.push((finding, vec![place])),
        }
    }
    let mut text = String::new();
    if !groups.is_empty() {
        line(&mut text, format_args!("\n{title}:"));
    }
    for (finding, places) in groups {
        let shown = if wide { places.len() } else { places.len().min(NARROW) };
        places[..shown].iter().for_each(|place| line(&mut text, format_args!("  {place}")));
        if shown < places.len() {
            line(&mut text, format_args!("  … and {} more (-o wide shows all)", places.len() - shown));
        }
        line(&mut text, format_args!("    {}", finding.what));
        if !finding.hint.is_empty() {
            line(&mut text, format_args!("    hint: {}", finding.hint));
        }
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}
