//! The document of `agentctl check`, and its text for people.

use schemars::JsonSchema;
use serde::Serialize;

use super::Seen;
use crate::document::Document;
use crate::output::Mark;

/// Every prerequisite, and whether it is met.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Nothing fails. Warnings, and what could not be looked at, do not count.
    pub ok: bool,
    /// By subject.
    pub sections: Vec<Section>,
}

impl Document for Report {
    const KIND: &'static str = "Check";
}

/// The findings of one subject.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Section {
    /// Its name: a word for programs and people.
    pub name: String,
    /// In the order in which one rests on the other.
    pub findings: Vec<Finding>,
}

/// One prerequisite.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// What was looked at: its name, which says nothing of the outcome.
    pub what: String,
    /// What came of it.
    pub outcome: Mark,
    /// More about it, if there is more.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What can be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Report {
    /// Of these sections; those without findings are left out.
    pub(crate) fn of(mut sections: Vec<Section>) -> Self {
        sections.retain(|section| !section.findings.is_empty());
        let failed = |section: &Section| section.findings.iter().any(|finding| finding.outcome == Mark::Bad);
        let ok = !sections.iter().any(failed);
        Self { ok, sections }
    }
}

impl Section {
    /// Without findings yet.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), findings: Vec::new() }
    }

    /// Something is as it should be.
    pub(crate) fn passed(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        self.add(Mark::Good, what.into(), detail.into(), String::new());
    }

    /// Something works, and somebody should look.
    pub(crate) fn warns(&mut self, what: impl Into<String>, detail: impl Into<String>, hint: impl Into<String>) {
        self.add(Mark::Warning, what.into(), detail.into(), hint.into());
    }

    /// Something does not work.
    pub(crate) fn fails(&mut self, what: impl Into<String>, detail: impl Into<String>, hint: impl Into<String>) {
        self.add(Mark::Bad, what.into(), detail.into(), hint.into());
    }

    /// Something could not be looked at.
    pub(crate) fn unknown(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        self.add(Mark::Unknown, what.into(), detail.into(), String::new());
    }

    /// What was read; that it could not be is a finding.
    pub(crate) fn seen<'a, T>(&mut self, what: &str, read: &'a Seen<T>) -> Option<&'a T> {
        read.as_ref().map_err(|why| self.unknown(what, why)).ok()
    }

    fn add(&mut self, outcome: Mark, what: String, detail: String, hint: String) {
        self.findings.push(Finding { what, outcome, detail, hint });
    }
}

/// The findings for people.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    for Section { name, findings } in &report.sections {
        text += &format!("{name}\n{}\n", "-".repeat(name.chars().count()));
        for Finding { what, outcome, detail, hint } in findings {
            let colon = if detail.is_empty() { "" } else { ": " };
            text += &format!("{} {what}{colon}{detail}\n", outcome.text());
            if !hint.is_empty() {
                text += &format!("    hint: {hint}\n");
            }
        }
        text.push('\n');
    }
    let count = |outcome| {
        report.sections.iter().flat_map(|section| &section.findings).filter(|one| one.outcome == outcome).count()
    };
    let (failed, warnings, unknown) = (count(Mark::Bad), count(Mark::Warning), count(Mark::Unknown));
    let mark = if report.ok { Mark::Good } else { Mark::Bad };
    text += &format!("{} {failed} failed, {warnings} warnings, {unknown} not looked at\n", mark.text());
    text
}
