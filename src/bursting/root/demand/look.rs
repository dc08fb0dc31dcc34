//! What `tell-queue.py` tells: a jobspec's request and constraints, as far as they are needed to tell whether ranks satisfy it.
//! Pure.
//!
//! Sources: RFC 25 (jobspec version 1), RFC 31 (job constraints), RFC 22 (idsets).

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use tributary_flux::{Hostlist, Idset, IdsetError};

/// Most jobs that are looked at. The program says no more; but it runs where a user may have put something in its place.
const MOST_JOBS: u32 = 2_000;

/// Most names of hosts and properties in all constraints of an answer; what goes beyond that is not judged.
const MOST_NAMES: usize = 65_536;

/// Most lists, maps and entries of maps of an answer: a map of a few bytes takes a hundred times as much once it is read. The
/// program says some fifty of each of 500 kinds of jobs, and one of each rank.
const MOST_VALUES: usize = 100_000;

/// What a look at the queue found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Ranks that the scheduler may use: online and not drained.
    pub up: Idset,
    /// Ranks on which jobs run, or ran a moment ago.
    pub busy: Idset,
    /// Cores that jobs have on each of these ranks.
    pub used: Vec<(Idset, u64)>,
    /// Jobs that wait for resources, the most urgent first.
    pub pending: Vec<Job>,
}

/// Jobs that wait for resources, and ask for the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// How many.
    pub count: u32,
    /// They have the attribute `burstable`: they may run on brokers that are not there yet though those there would do.
    pub burstable: bool,
    /// What each needs; `None` if that cannot be told.
    pub request: Option<Request>,
    /// Where they may run.
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
    Hosts(BTreeSet<String>),
    /// On these ranks.
    Ranks(Idset),
    /// Where all of these hold.
    And(Vec<Self>),
    /// Where one of these holds.
    Or(Vec<Self>),
    /// Where not all of these hold.
    Not(Vec<Self>),
    /// An operator that is not known here: nowhere, as far as can be told.
    Unknown,
}

/// An answer that is none. Its words are nowhere told: they may be anything that is in the pod, a secret too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// Nothing.
    #[error("the lead broker says nothing of its queue")]
    Nothing,
    /// No JSON.
    #[error("what the lead broker says of its queue ({0} bytes) is no JSON")]
    NoJson(usize),
    /// A part of JSON.
    #[error("what the lead broker says of its queue ends within its JSON, after {0} bytes")]
    CutOff(usize),
    /// Other JSON: of another version, or of another program.
    #[error("what the lead broker says of its queue is not what this version asks for: {0}")]
    Other(String),
    /// More than the program says.
    #[error("what the lead broker says of its queue has more than {MOST_VALUES} values")]
    TooMany,
    /// Not an idset.
    #[error("what the lead broker says of its queue names ranks that are none")]
    Ranks(#[from] IdsetError),
}

impl LookError {
    fn of(error: &serde_json::Error, line: &str) -> Self {
        let words = error.to_string();
        match error.classify() {
            Category::Eof => Self::CutOff(line.len()),
            Category::Syntax | Category::Io => Self::NoJson(line.len()),
            Category::Data => Self::Other(match words.rsplit_once(", expected ") {
                Some((_, expected)) => format!("expected {expected}"),
                None => words,
            }),
        }
    }
}

impl Look {
    /// Reads what the program says.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn parse(said: &str) -> Result<Self, LookError> {
        #[derive(Deserialize)]
        struct Answer {
            up: String,
            busy: String,
            #[serde(default)]
            used: Vec<(String, u64)>,
            pending: Vec<Pending>,
        }
        #[derive(Deserialize)]
        struct Pending {
            #[serde(default = "one")]
            count: u32,
            burstable: bool,
            resources: Value,
            constraints: Value,
        }
        fn one() -> u32 {
            1
        }
        let line = said.trim();
        if line.bytes().filter(|byte| matches!(byte, b':' | b'[' | b'{')).count() > MOST_VALUES {
            return Err(LookError::TooMany);
        }
        if line.is_empty() {
            return Err(LookError::Nothing);
        }
        let answer: Answer = serde_json::from_str(line).map_err(|error| LookError::of(&error, line))?;
        let (mut left, mut names) = (MOST_JOBS, Names(MOST_NAMES));
        let mut pending = Vec::new();
        for Pending { count, burstable, resources, constraints } in answer.pending {
            let count = count.min(left);
            if count == 0 {
                continue;
            }
            left -= count;
            let (request, constraint) = (request(&resources), names.constraint(&constraints));
            pending.push(Job { count, burstable, request, constraint });
        }
        let used = answer.used.into_iter().map(|(ranks, cores)| ranks.parse().map(|ranks| (ranks, cores)));
        let used = used.collect::<Result<_, IdsetError>>()?;
        Ok(Self { up: answer.up.parse()?, busy: answer.busy.parse()?, used, pending })
    }
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
        of_type.map(count).try_fold(0_u64, |sum, count| sum.checked_add(count?))
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

/// How many more names may be read.
struct Names(usize);

impl Names {
    fn constraint(&mut self, value: &Value) -> Constraint {
        let Value::Object(operators) = value else {
            return if value.is_null() { Constraint::And(Vec::new()) } else { Constraint::Unknown };
        };
        let one =
            |(operator, values): (&String, &Value)| self.operator(operator, values).unwrap_or(Constraint::Unknown);
        Constraint::And(operators.iter().map(one).collect())
    }

    fn operator(&mut self, operator: &str, values: &Value) -> Option<Constraint> {
        let values = values.as_array()?;
        self.take(values.len())?;
        let texts = || values.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
        match operator {
            "properties" => Some(Constraint::Properties(texts()?.into_iter().map(str::to_owned).collect())),
            "hostlist" => {
                let mut hosts = BTreeSet::new();
                for text in texts()? {
                    let list: Hostlist = text.parse().ok()?;
                    self.take(list.len())?;
                    hosts.extend(list.hosts().iter().cloned());
                }
                Some(Constraint::Hosts(hosts))
            }
            // One set of several texts: they are joined as their pieces are.
            "ranks" => texts()?.join(",").parse().ok().map(Constraint::Ranks),
            "and" => Some(Constraint::And(values.iter().map(|value| self.constraint(value)).collect())),
            "or" => Some(Constraint::Or(values.iter().map(|value| self.constraint(value)).collect())),
            "not" => Some(Constraint::Not(values.iter().map(|value| self.constraint(value)).collect())),
            _ => None,
        }
    }

    fn take(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.checked_sub(count)?;
        Some(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What Flux 0.88 said of fourteen jobs on one broker of two cores, with the three declared brokers of `pond` away. The
    /// program then told each job by itself, and did not say which cores are used.
    pub(crate) const RECORDED: &str = include_str!("recorded.json");

    #[test]
    fn what_a_real_lead_broker_said_is_read() {
        let look = Look::parse(RECORDED).unwrap();
        assert_eq!((look.up.to_string().as_str(), look.busy.to_string().as_str(), look.pending.len()), ("0", "0", 12));
        assert_eq!(look.pending.iter().filter(|job| job.burstable).count(), 2);
        insta::assert_debug_snapshot!(look.pending);
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_and_a_request_that_cannot_be_told_is_none() {
        let none = [
            ("", "says nothing of its queue"),
            (" \n\r\n", "says nothing of its queue"),
            ("flux: command not found", "(23 bytes) is no JSON"),
            ("\u{1b}[0m\0\u{fffd}\u{fffd}", "(11 bytes) is no JSON"),
            (r#"{"up":"0","busy":"0","pen"#, "ends within its JSON, after 25 bytes"),
            (r#"{"up":"0","pending":[]}"#, "not what this version asks for: missing field `busy`"),
            (r#"["0","0"]"#, "not what this version asks for: expected struct Answer"),
            (r#""secret-key""#, "not what this version asks for: expected struct Answer"),
            (r#"{"up":"secret-key","busy":"0","pending":[]}"#, "names ranks that are none"),
            (r#"{"up":"","busy":"","pending":"secret-key"}"#, "not what this version asks for: expected a sequence"),
        ];
        for (text, expected) in none {
            let told = Look::parse(text).unwrap_err().to_string();
            assert!(told.contains(expected) && !told.contains("secret-key"), "{text}: {told}");
        }
        let next = r#"{"version":2,"up":"","busy":"","used":[],"pending":[],"more":{"deep":[]}}"#;
        assert_eq!(Look::parse(next), Ok(Look::default()), "what a later version says besides is not read");
        let deep = format!(r#"{{"up":"","busy":"","pending":{}}}"#, "[".repeat(50_000));
        assert!(Look::parse(&deep).is_err());
        let odd = r#"{"up":"0-2,5","busy":"","used":[["0-1",4]],"pending":[{"count":7,"burstable":true,
            "resources":[{"type":"rack","count":1}],"constraints":{"switch":["a"]}},{"burstable":false,"constraints":null,
            "resources":[{"type":"slot","count":{"min":2},"with":[{"type":"core","count":"3-4"}]}]}]}"#;
        let look = Look::parse(&odd.replace('\n', " ")).unwrap();
        assert_eq!(look.up.iter().collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(look.used, [("0-1".parse().unwrap(), 4)]);
        assert_eq!((look.pending[0].count, look.pending[0].request), (7, None));
        assert_eq!(look.pending[0].constraint, Constraint::And(vec![Constraint::Unknown]));
        assert_eq!(look.pending[1].request, Some(Request { nodes: None, slots: 2, cores: 3, gpus: 0 }));
    }

    /// The program runs in a pod of a user, who may have put anything in its place.
    #[test]
    fn an_answer_that_is_made_to_take_all_memory_takes_little() {
        let everyone = r#"{"hostlist":["a-[0-16383]"],"ranks":["0-4000000000"]}"#;
        let many = r#"[{"type":"slot","count":1,"with":[{"type":"core","count":18446744073709551615},
            {"type":"core","count":18446744073709551615}]}]"#;
        let job = format!(r#"{{"count":4000000000,"burstable":true,"resources":{many},"constraints":{everyone}}}"#);
        let text = format!(r#"{{"up":"0-4000000000,0-4000000000","busy":"","pending":[{job},{job}]}}"#);
        let look = Look::parse(&text.replace('\n', " ")).unwrap();
        assert!(look.up.contains(3_999_999_999) && look.pending.len() == 1, "{:?}", look.pending);
        assert_eq!((look.pending[0].count, look.pending[0].request), (MOST_JOBS, None), "two numbers that have no sum");
        let jobs = vec![job.replace("4000000000", "1"); 40].join(",");
        let text = format!(r#"{{"up":"","busy":"","pending":[{jobs}]}}"#);
        let look = Look::parse(&text.replace('\n', " ")).unwrap();
        let judged = |job: &&Job| !format!("{:?}", job.constraint).contains("Unknown");
        assert_eq!((look.pending.len(), look.pending.iter().filter(judged).count()), (40, 3), "of 65,536 names");
        let maps = vec![r#"{"":0}"#; 90_000].join(",");
        let text = format!(
            r#"{{"up":"","busy":"","pending":[{{"burstable":true,"resources":[{maps}],"constraints":null}}]}}"#
        );
        assert!(matches!(Look::parse(&text), Err(LookError::TooMany)));
    }
}
