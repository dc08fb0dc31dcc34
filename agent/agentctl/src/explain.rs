//! What stands between an object and what its user wants of it: the document of `agentctl why`, and the walk that fills it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::document::Document;

/// Why an object is not ready, or that it is.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// What is explained: kind, namespace and name, as in `Burst default/river-burst-0`.
    pub object: String,
    /// Nothing is left to wait for: it is ready, or it has ended well.
    pub ready: bool,
    /// What it takes, in this order, up to the first condition that is not met.
    pub steps: Vec<Step>,
    /// The first condition that is not met; of parts that do not wait for each other, the worst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmet: Option<Unmet>,
    /// What else is not met, of parts that do not wait for each other: worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Unmet>,
    /// What works, and somebody should look at: it does not count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Unmet>,
    /// What could not be read, and why: the answer is found without it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
}

impl Document for Explanation {
    const KIND: &'static str = "Explanation";
}

/// A condition that is met, or of which nothing can be told.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    /// Its name, one CamelCase word.
    pub condition: String,
    /// Whether it is met; `null`: that cannot be told.
    pub met: Option<bool>,
    /// One sentence.
    pub detail: String,
}

/// A condition that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Unmet {
    /// Its name, one CamelCase word.
    pub condition: String,
    /// What kind of cause it is, one CamelCase word.
    pub reason: String,
    /// Why it is not met, in the words of whoever said so first.
    pub cause: String,
    /// What can be done.
    pub hint: String,
}

/// What is found of one condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It does not apply here.
    Skip,
    /// It is met: a sentence.
    Met(String),
    /// It cannot be told: a sentence.
    Unknown(String),
    /// It is met, and nothing comes after it: a sentence.
    Done(String),
    /// It is not met.
    Unmet {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        cause: String,
        /// What can be done.
        hint: String,
    },
}

impl Verdict {
    /// Not met.
    pub(crate) fn unmet(reason: impl Into<String>, cause: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unmet { reason: reason.into(), cause: cause.into(), hint: hint.into() }
    }
}

/// A condition's name, and how it is judged by what was found.
pub(crate) type Condition<F> = (&'static str, fn(&F) -> Verdict);

/// Walks through `conditions` up to the first that is not met.
pub(crate) fn walk<F>(object: String, found: &F, conditions: &[Condition<F>]) -> Explanation {
    let mut explanation = Explanation {
        object,
        ready: true,
        steps: Vec::new(),
        unmet: None,
        more: Vec::new(),
        warnings: Vec::new(),
        unseen: Vec::new(),
    };
    for (condition, judge) in conditions {
        let condition = (*condition).to_owned();
        let (met, detail, done) = match judge(found) {
            Verdict::Skip => continue,
            Verdict::Met(detail) => (Some(true), detail, false),
            Verdict::Unknown(detail) => (None, detail, false),
            Verdict::Done(detail) => (Some(true), detail, true),
            Verdict::Unmet { reason, cause, hint } => {
                explanation.ready = false;
                explanation.unmet = Some(Unmet { condition, reason, cause, hint });
                break;
            }
        };
        explanation.steps.push(Step { condition, met, detail });
        if done {
            break;
        }
    }
    explanation
}
