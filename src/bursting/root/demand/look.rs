//! The answer of `look.py`: a jobspec's request and constraints, as far as they are needed to tell whether ranks satisfy it.
//! Pure.
//!
//! Sources: RFC 25 (jobspec version 1), RFC 31 (job constraints), RFC 22 (idsets).

use serde::Deserialize;
use serde_json::Value;

use crate::flux::Hostlist;

/// The script that asks the lead broker.
pub const SCRIPT: &str = include_str!("look.py");

/// What a look at the queue found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Ranks that the scheduler may use: online and not drained.
    pub up: Vec<u32>,
    /// Ranks on which jobs run.
    pub busy: Vec<u32>,
    /// Jobs that wait for resources, the most urgent first.
    pub pending: Vec<Job>,
}

/// A job that waits for resources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// It has the attribute `burstable`: it may run on brokers that are not there yet though those there would do.
    pub burstable: bool,
    /// What it needs; `None` if that cannot be told.
    pub request: Option<Request>,
    /// Where it may run.
    pub constraint: Constraint,
}

/// What a job needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// On that many ranks; `None`: on any number of them.
    pub nodes: Option<u64>,
    /// Slots on each of them; in all, if their number does not matter.
    pub slots: u64,
    /// Cores of a slot.
    pub cores: u64,
    /// GPUs of a slot.
    pub gpus: u64,
}

/// Where a job may run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Constraint {
    /// On ranks with (or, with `^`, without) all these properties.
    Properties(Vec<String>),
    /// On these hosts.
    Hosts(Vec<String>),
    /// On these ranks.
    Ranks(Vec<u32>),
    /// Where all of these hold.
    And(Vec<Self>),
    /// Where one of these holds.
    Or(Vec<Self>),
    /// Where not all of these hold.
    Not(Vec<Self>),
    /// An operator that is not known here: nowhere, as far as can be told.
    Unknown,
}

/// An answer that is none.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// No JSON, or other JSON.
    #[error("failed to read the answer of the lead broker")]
    Json(#[from] serde_json::Error),
    /// Not an idset.
    #[error("failed to read the answer of the lead broker: {0:?} is no set of ranks")]
    Ranks(String),
}

impl Look {
    /// Reads the answer of the script: the last line of its output.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn parse(output: &str) -> Result<Self, LookError> {
        #[derive(Deserialize)]
        struct Answer {
            up: String,
            busy: String,
            pending: Vec<Pending>,
        }
        #[derive(Deserialize)]
        struct Pending {
            burstable: bool,
            resources: Value,
            constraints: Value,
        }
        let line = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let Answer { up, busy, pending } = serde_json::from_str(line)?;
        let ranks = |text: String| idset(&text).ok_or(LookError::Ranks(text));
        let job = |job: Pending| Job {
            burstable: job.burstable,
            request: request(&job.resources),
            constraint: constraint(&job.constraints),
        };
        Ok(Self { up: ranks(up)?, busy: ranks(busy)?, pending: pending.into_iter().map(job).collect() })
    }
}

/// An RFC 22 idset: `0-3,7`.
fn idset(text: &str) -> Option<Vec<u32>> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let mut ids = Vec::new();
    for piece in text.split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // No instance has more ranks.
        ids.extend((first..=last).take(1 << 20));
    }
    Some(ids)
}

/// The only vertex of a jobspec's `resources`: `node` over `slot`, or `slot` alone.
fn request(resources: &Value) -> Option<Request> {
    let [vertex] = resources.as_array()?.as_slice() else { return None };
    let inside = |vertex: &Value| vertex.get("with").and_then(Value::as_array).cloned();
    let is = |vertex: &Value, type_: &str| vertex.get("type").and_then(Value::as_str) == Some(type_);
    if is(vertex, "node") {
        let slot = inside(vertex)?.into_iter().find(|below| is(below, "slot"))?;
        return Some(Request { nodes: Some(count(vertex)?), slots: count(&slot)?, ..cores(&inside(&slot)?)? });
    }
    if !is(vertex, "slot") {
        return None;
    }
    let below = inside(vertex)?;
    match below.iter().find(|below| is(below, "node")) {
        Some(node) => {
            let nodes = count(vertex)?.checked_mul(count(node)?)?;
            Some(Request { nodes: Some(nodes), slots: 1, ..cores(&inside(node)?)? })
        }
        None => Some(Request { nodes: None, slots: count(vertex)?, ..cores(&below)? }),
    }
}

fn cores(vertices: &[Value]) -> Option<Request> {
    let sum = |type_: &str| {
        let of_type = vertices.iter().filter(|vertex| vertex.get("type").and_then(Value::as_str) == Some(type_));
        of_type.map(count).sum::<Option<u64>>()
    };
    Some(Request { nodes: None, slots: 1, cores: sum("core")?, gpus: sum("gpu")? })
}

/// A number, or the least of a range: `{min: 2}`, `"2-4"`, `"2+"` (RFC 14, RFC 45).
fn count(vertex: &Value) -> Option<u64> {
    match vertex.get("count")? {
        Value::Object(range) => range.get("min")?.as_u64(),
        Value::String(text) => {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..digits].parse().ok()
        }
        number => number.as_u64(),
    }
}

fn constraint(value: &Value) -> Constraint {
    let Value::Object(operators) = value else {
        return if value.is_null() { Constraint::And(Vec::new()) } else { Constraint::Unknown };
    };
    let texts = |values: &Value| -> Option<Vec<String>> {
        values.as_array()?.iter().map(|value| value.as_str().map(str::to_owned)).collect()
    };
    let inner = |values: &Value| values.as_array().map(|values| values.iter().map(constraint).collect());
    let one = |(operator, values): (&String, &Value)| match operator.as_str() {
        "properties" => texts(values).map(Constraint::Properties),
        "hostlist" => {
            let lists = texts(values)?.into_iter().map(|text| text.parse::<Hostlist>().ok());
            let hosts = lists.map(|list| list.map(|list| list.hosts().to_vec())).collect::<Option<Vec<_>>>()?;
            Some(Constraint::Hosts(hosts.concat()))
        }
        "ranks" => {
            let sets = texts(values)?.iter().map(|text| idset(text)).collect::<Option<Vec<_>>>()?;
            Some(Constraint::Ranks(sets.concat()))
        }
        "and" => inner(values).map(Constraint::And),
        "or" => inner(values).map(Constraint::Or),
        "not" => inner(values).map(Constraint::Not),
        _ => None,
    };
    Constraint::And(operators.iter().map(|operator| one(operator).unwrap_or(Constraint::Unknown)).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What Flux 0.88 said of fourteen jobs on one broker of two cores, with the three declared brokers of `pond` away.
    pub(crate) const RECORDED: &str = include_str!("recorded.json");

    #[test]
    fn what_a_real_lead_broker_said_is_read() {
        let look = Look::parse(RECORDED).unwrap();
        assert_eq!((look.up.as_slice(), look.busy.as_slice(), look.pending.len()), (&[0][..], &[0][..], 12));
        assert_eq!(look.pending.iter().filter(|job| job.burstable).count(), 2);
        insta::assert_debug_snapshot!(look.pending);
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_and_a_request_that_cannot_be_told_is_none() {
        for text in ["", "flux: command not found", r#"{"up": "x", "busy": "", "pending": []}"#] {
            assert!(Look::parse(text).is_err(), "{text}");
        }
        let odd = r#"{"up":"0-2,5","busy":"","pending":[{"burstable":true,"resources":[{"type":"rack","count":1}],
            "constraints":{"switch":["a"]}},{"burstable":false,"constraints":null,
            "resources":[{"type":"slot","count":{"min":2},"with":[{"type":"core","count":"3-4"}]}]}]}"#;
        let look = Look::parse(&odd.replace('\n', " ")).unwrap();
        assert_eq!(look.up, [0, 1, 2, 5]);
        assert_eq!(look.pending[0].request, None);
        assert_eq!(look.pending[0].constraint, Constraint::And(vec![Constraint::Unknown]));
        assert_eq!(look.pending[1].request, Some(Request { nodes: None, slots: 2, cores: 3, gpus: 0 }));
    }
}
