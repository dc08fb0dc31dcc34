//! What a provider finds out before it makes the pods of a burst: whether their brokers will be able to join.
//!
//! It informs, and prevents nothing: a burst whose preflight failed is made all the same, and joins as soon as what was
//! found is put right.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most findings that are taken from a peer.
pub const MOST_FINDINGS: usize = 16;

/// What is looked at. Values are part of the wire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
pub enum Check {
    /// A TCP connection to the lead broker's address, from the provider's agent.
    LeadAddress,
    /// The broker there holds the secret key of the instance's certificate (ZMTP greeting, CURVE HELLO and WELCOME).
    Certificate,
    /// Flux `major.minor` is the same on both sides.
    FluxVersion,
    /// Both sides copy Flux from the same image.
    ViewImage,
    /// The provider's nodes have the architecture of the lead broker's.
    Architecture,
    /// The brokers of both sides run as the same user.
    User,
    /// A check of a newer version.
    #[serde(untagged)]
    Other(String),
}

impl Check {
    /// The word users see.
    pub fn as_str(&self) -> &str {
        match self {
            Self::LeadAddress => "LeadAddress",
            Self::Certificate => "Certificate",
            Self::FluxVersion => "FluxVersion",
            Self::ViewImage => "ViewImage",
            Self::Architecture => "Architecture",
            Self::User => "User",
            Self::Other(other) => other,
        }
    }

    /// Whether brokers cannot join unless it passes.
    fn decides(&self) -> bool {
        matches!(self, Self::LeadAddress | Self::Certificate)
    }
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is as it should be.
    Pass,
    /// It is not: brokers will not join.
    Fail,
    /// It could not be found out, or not yet; also what a newer version says.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// The word users see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// One check and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// What came of it.
    pub outcome: Outcome,
    /// What was found, in a sentence.
    pub message: String,
    /// What can be done about it; empty if nothing has to be.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Finding {
    /// All is well.
    pub fn pass(check: Check, message: impl Into<String>) -> Self {
        Self { check, outcome: Outcome::Pass, message: message.into(), hint: String::new() }
    }

    /// Brokers will not join.
    pub fn fail(check: Check, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { outcome: Outcome::Fail, hint: hint.into(), ..Self::pass(check, message) }
    }

    /// Not known.
    pub fn unknown(check: Check, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::fail(check, message, hint) }
    }
}

/// All findings in one word, as a condition says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// `Fail` if one check failed; `Pass` if none did and the lead was reached with the right certificate.
    pub outcome: Outcome,
    /// CamelCase: `Passed`, or the check that decided.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What all findings together say; `None` if there are none.
pub fn verdict(findings: &[Finding]) -> Option<Verdict> {
    let first = |outcome| findings.iter().find(move |one| one.outcome == outcome);
    let undecided = findings.iter().find(|one| one.check.decides() && one.outcome == Outcome::Unknown);
    let said = |finding: &Finding| match finding.hint.as_str() {
        "" => finding.message.clone(),
        hint => format!("{}: {hint}", finding.message),
    };
    if let Some(decisive) = first(Outcome::Fail).or(undecided) {
        let reason = decisive.check.as_str().to_owned();
        return Some(Verdict { outcome: decisive.outcome, reason, message: said(decisive) });
    }
    let open: Vec<&str> =
        findings.iter().filter(|one| one.outcome == Outcome::Unknown).map(|one| one.check.as_str()).collect();
    findings.first()?;
    let mut message = "the lead broker is reached, and holds the certificate of the instance".to_owned();
    if !open.is_empty() {
        message += &format!("; not known: {}", open.join(", "));
    }
    Some(Verdict { outcome: Outcome::Pass, reason: "Passed".into(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_on_the_wire_and_what_a_newer_version_says() {
        let finding = Finding::fail(Check::LeadAddress, "no answer", "open the port");
        let text = serde_json::to_string(&finding).unwrap();
        assert_eq!(text, r#"{"check":"LeadAddress","outcome":"fail","message":"no answer","hint":"open the port"}"#);
        let newer: Finding =
            serde_json::from_str(r#"{"check":"Moon","outcome":"waxing","message":"it is bright"}"#).unwrap();
        assert_eq!((newer.check.as_str(), newer.outcome), ("Moon", Outcome::Unknown));
    }

    #[test]
    fn one_failure_decides_and_what_joining_does_not_need_may_stay_unknown() {
        let pass = |check| Finding::pass(check, "fine");
        let unknown = |check| Finding::unknown(check, "who knows", "look");
        let told = |findings: &[Finding]| {
            let Verdict { outcome, reason, message } = verdict(findings).unwrap();
            (outcome, reason, message)
        };
        let (lead, certificate, version) = (Check::LeadAddress, Check::Certificate, Check::FluxVersion);
        let (outcome, reason, message) =
            told(&[pass(lead.clone()), pass(certificate.clone()), unknown(version.clone())]);
        assert_eq!((outcome, reason.as_str()), (Outcome::Pass, "Passed"));
        assert!(message.ends_with("not known: FluxVersion"), "{message}");
        let (outcome, reason, message) = told(&[pass(lead.clone()), unknown(certificate.clone())]);
        assert_eq!((outcome, reason.as_str()), (Outcome::Unknown, "Certificate"));
        assert_eq!(message, "who knows: look");
        let failed = Finding::fail(version, "another one", "");
        let (outcome, reason, _) = told(&[pass(lead), unknown(certificate), failed]);
        assert_eq!((outcome, reason.as_str()), (Outcome::Fail, "FluxVersion"));
        assert_eq!(verdict(&[]), None);
    }
}
