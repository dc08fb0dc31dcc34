//! What a version has no field for, kept beside the object that lacks it.
//!
//! An entry says where a field stood, what it was, and what the conversion alone makes of it: nothing, for a field
//! without counterpart. On the way back an entry counts only while the conversion still makes the same of that field.
//! Otherwise somebody has edited its counterpart since, and the edit wins, for that field alone. A field that became one
//! of another name also says what became of it, which must be the same still.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Most steps to a field. No spec is that deep; an annotation, which anybody may write, can be.
const DEEPEST: usize = 32;

/// Most bytes that are converted to find what became of the fields, once for each of them where that suffices: a spec can
/// have thousands of fields, and whoever writes one must not keep the processor from everybody else's.
const WORK: usize = 32 << 20;

/// Fields that the other version cannot say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Kept(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    at: Vec<Step>,
    /// Absent: the field was not written.
    #[serde(default, deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    /// What conversion alone gives; absent: no field.
    #[serde(default, deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    unless: Option<Value>,
    /// What became of it in the other version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    counterparts: Vec<Counterpart>,
    /// All of these come back, or none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    together: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Counterpart {
    at: Vec<Step>,
    #[serde(default, deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// `null` is a value that somebody wrote.
fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Step {
    Field(String),
    /// An element of a list. It is the same one as long as it bears the same name.
    Item {
        index: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

impl Kept {
    /// What of `original` is another in `back`, which is what comes back of it by conversion alone.
    pub(super) fn of(original: &Value, back: &Value) -> Self {
        let mut kept = Self::default();
        kept.collect(Some(original), Some(back), &mut Vec::new());
        kept
    }

    /// As an annotation holds them. `None`: it was not written here.
    pub(super) fn read(text: &str) -> Option<Self> {
        let kept = serde_json::from_str::<Self>(text).ok()?;
        let shallow = |at: &Vec<Step>| at.len() <= DEEPEST;
        let entry =
            |entry: &Entry| shallow(&entry.at) && entry.counterparts.iter().all(|counterpart| shallow(&counterpart.at));
        kept.0.iter().all(entry).then_some(kept)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds out what became of each field: what is another in the other version without it. `converted` is what
    /// `original` became there, and `convert` how.
    pub(super) fn find_counterparts(&mut self, original: &Value, converted: &Value, convert: fn(&Value) -> Value) {
        let plain = convert(original);
        let without = |entries: &[Entry]| {
            let mut without = original.clone();
            for entry in entries.iter().filter(|entry| entry.value.is_some()) {
                set(&mut without, &entry.at, None);
            }
            convert(&without)
        };
        // Most fields that are kept have none.
        if without(&self.0) == plain {
            return;
        }
        let counterparts = |entries: &[Entry]| -> Vec<Counterpart> {
            let differences = Self::of(&plain, &without(entries)).0.into_iter();
            let counterpart = |one: Entry| match find(converted, &one.at) {
                Found::There(value) => Some(Counterpart { at: one.at, value: Some(value.clone()) }),
                Found::Absent => Some(Counterpart { at: one.at, value: None }),
                Found::Gone => None,
            };
            differences.filter_map(counterpart).collect()
        };
        if self.0.len().saturating_mul(original.to_string().len()) <= WORK {
            for entry in &mut self.0 {
                entry.counterparts = counterparts(std::slice::from_ref(entry));
            }
            return;
        }
        // By sections of the spec. What only conversion made goes with what it was made of.
        let mut sections: Vec<Vec<Entry>> = Vec::new();
        for entry in &self.0 {
            match sections.last_mut().filter(|section| section[0].at.first() == entry.at.first()) {
                Some(section) => section.push(entry.clone()),
                None => sections.push(vec![entry.clone()]),
            }
        }
        sections.retain(|section| !counterparts(section).is_empty());
        let shared = |entry: &Entry| {
            entry.value.is_none() || sections.iter().any(|section| section[0].at.first() == entry.at.first())
        };
        let all = counterparts(&self.0);
        let mut together = self.0.iter_mut().filter(|entry| shared(entry));
        if let Some(first) = together.next() {
            (first.counterparts, first.together) = (all, true);
        }
        together.for_each(|entry| entry.together = true);
    }

    /// Puts back what was kept, except where the counterpart in `from` was edited since.
    pub(super) fn restore(self, into: &mut Value, from: &Value) {
        // In this order: a section that only fields without counterpart had made is empty after them.
        let is_untouched =
            |entry: &Entry| entry.counterparts.iter().all(|one| find(from, &one.at) == Found::from(one.value.as_ref()));
        let all_are = self.0.iter().filter(|entry| entry.together).all(is_untouched);
        for entry in self.0 {
            let untouched = if entry.together { all_are } else { is_untouched(&entry) };
            if untouched && find(into, &entry.at) == Found::from(entry.unless.as_ref()) {
                set(into, &entry.at, entry.value);
            }
        }
    }

    fn collect(&mut self, original: Option<&Value>, back: Option<&Value>, at: &mut Vec<Step>) {
        match (original, back) {
            (original, back) if original == back => {}
            (Some(Value::Object(original)), Some(Value::Object(back))) => {
                let mut keys: Vec<&String> = original.keys().chain(back.keys()).collect();
                keys.sort();
                keys.dedup();
                for key in keys {
                    self.below(Step::Field(key.clone()), original.get(key), back.get(key), at);
                }
            }
            (Some(Value::Object(original)), None) if !original.is_empty() => {
                for (key, value) in original {
                    self.below(Step::Field(key.clone()), Some(value), None, at);
                }
            }
            (None, Some(Value::Object(back))) if !back.is_empty() => {
                for (key, value) in back {
                    self.below(Step::Field(key.clone()), None, Some(value), at);
                }
                self.collect(None, Some(&Value::Object(Map::new())), at);
            }
            (Some(Value::Array(original)), Some(Value::Array(back))) if alike(original, back) => {
                for (index, (original, back)) in original.iter().zip(back).enumerate() {
                    let name = name(original).map(str::to_owned);
                    self.below(Step::Item { index, name }, Some(original), Some(back), at);
                }
            }
            (original, back) => {
                let (value, unless) = (original.cloned(), back.cloned());
                self.0.push(Entry { at: at.clone(), value, unless, counterparts: Vec::new(), together: false });
            }
        }
    }

    fn below(&mut self, step: Step, original: Option<&Value>, back: Option<&Value>, at: &mut Vec<Step>) {
        at.push(step);
        self.collect(original, back, at);
        at.pop();
    }
}

/// Lists of the same things, which differ in their parts.
fn alike(one: &[Value], other: &[Value]) -> bool {
    let same = |(one, other): (&Value, &Value)| one.is_object() && other.is_object() && name(one) == name(other);
    one.len() == other.len() && one.iter().zip(other).all(same)
}

fn name(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str).filter(|name| !name.is_empty())
}

#[derive(PartialEq)]
enum Found<'a> {
    /// There is no such element any more.
    Gone,
    Absent,
    There(&'a Value),
}

impl<'a> From<Option<&'a Value>> for Found<'a> {
    fn from(value: Option<&'a Value>) -> Self {
        value.map_or(Self::Absent, Self::There)
    }
}

fn find<'a>(value: &'a Value, at: &[Step]) -> Found<'a> {
    let Some((step, rest)) = at.split_first() else { return Found::There(value) };
    match step {
        Step::Field(key) => match value {
            Value::Object(map) => map.get(key).map_or_else(|| nowhere(rest), |below| find(below, rest)),
            // Something else stands where the section was.
            _ => Found::Gone,
        },
        Step::Item { index, name } => match position(value, *index, name.as_deref()) {
            Some(position) => find(&value[position], rest),
            None => Found::Gone,
        },
    }
}

/// Below a section that is not there: its fields are absent, and elements of its lists are gone.
fn nowhere<'a>(rest: &[Step]) -> Found<'a> {
    if rest.iter().any(|step| matches!(step, Step::Item { .. })) { Found::Gone } else { Found::Absent }
}

/// Where the element is now: by its name, or where it was if it has none.
fn position(list: &Value, index: usize, wanted: Option<&str>) -> Option<usize> {
    let items = list.as_array()?;
    if items.get(index).is_some_and(|item| name(item) == wanted) {
        return Some(index);
    }
    let mut named = items.iter().enumerate().filter(|(_, item)| name(item) == wanted).map(|(position, _)| position);
    named.next().filter(|_| named.next().is_none())
}

fn set(value: &mut Value, at: &[Step], new: Option<Value>) {
    let Some((step, rest)) = at.split_first() else {
        *value = new.unwrap_or_else(|| Value::Object(Map::new()));
        return;
    };
    match (step, value) {
        (Step::Field(key), Value::Object(map)) => match (rest.is_empty(), new) {
            (true, Some(new)) => drop(map.insert(key.clone(), new)),
            (true, None) => drop(map.remove(key)),
            (false, new) => set(map.entry(key.clone()).or_insert_with(|| Value::Object(Map::new())), rest, new),
        },
        (Step::Item { index, name }, list) => {
            if let Some(position) = position(list, *index, name.as_deref()) {
                set(&mut list[position], rest, new);
            }
        }
        (Step::Field(_), _) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_conversion_loses_is_kept_and_comes_back() {
        let original = json!({"size": 2, "users": [{"name": "ann"}], "logging": {}, "flux": {"installRoot": "/opt"},
            "containers": [{"cores": 2}, {"name": "side", "exports": {"A": "1"}}], "nothing": null});
        let back = json!({"size": 2, "containers": [{"cores": 2, "fluxUser": {"name": "flux"}}, {"name": "side"}]});
        let text = serde_json::to_string(&Kept::of(&original, &back)).unwrap();
        let kept: Kept = serde_json::from_str(&text).unwrap();
        let mut restored = back.clone();
        kept.clone().restore(&mut restored, &json!({}));
        assert_eq!(restored, original);

        // One container was added in front, another one was edited, and a section was begun.
        let mut edited = json!({"size": 3, "logging": {"quiet": true},
            "containers": [{"name": "new"}, {"cores": 2, "fluxUser": {"name": "ann"}}, {"name": "side"}]});
        kept.restore(&mut edited, &json!({}));
        assert_eq!(
            edited,
            json!({"size": 3, "logging": {"quiet": true}, "users": [{"name": "ann"}], "flux": {"installRoot": "/opt"},
                "containers": [{"name": "new"}, {"cores": 2, "fluxUser": {"name": "ann"}},
                    {"name": "side", "exports": {"A": "1"}}], "nothing": null})
        );
    }

    #[test]
    fn fields_of_a_section_that_conversion_begins_are_kept_one_by_one() {
        let kept = Kept::of(&json!({}), &json!({"flux": {"logLevel": 6, "container": {"disable": true}}}));
        let mut same = json!({"flux": {"logLevel": 6, "container": {"disable": true}}});
        kept.clone().restore(&mut same, &json!({}));
        assert_eq!(same, json!({}));
        let mut edited = json!({"flux": {"logLevel": 7, "container": {"disable": true}}});
        kept.restore(&mut edited, &json!({}));
        assert_eq!(edited, json!({"flux": {"logLevel": 7}}));
    }

    #[test]
    fn what_belonged_to_a_container_goes_with_it() {
        let original = json!({"containers": [{"name": "a", "x": 1}, {"name": "b", "x": 2}]});
        let kept = Kept::of(&original, &json!({"containers": [{"name": "a"}, {"name": "b"}]}));
        let mut edited = json!({"containers": [{"name": "b"}]});
        kept.restore(&mut edited, &json!({}));
        assert_eq!(edited, json!({"containers": [{"name": "b", "x": 2}]}));
    }
}
