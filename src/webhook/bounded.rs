//! JSON of strangers, read no further than a bound. What a few bytes say can take a hundred times as many in memory.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// The key of the part that is converted.
const SPEC: &str = "spec";

/// What values take while an object is converted, in bytes, copies included. Measured: see the tests of memory.
struct Cost {
    /// One of any kind in a list or in a map, of whose nodes half may be empty.
    value: usize,
    /// A map. In a spec it may be what is filled with the defaults of a container, read as one, and kept for the other version.
    map: usize,
    /// The first entry of a map has a node for eleven.
    node: usize,
    /// A byte of text.
    text: usize,
}

impl Cost {
    const IN_SPEC: Self = Self { value: 700, map: 5 << 10, node: 0, text: 8 };
    const ELSEWHERE: Self = Self { value: 250, map: 0, node: 1_300, text: 4 };
}

/// A value for which no more is spent than is left.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    left: &'a Cell<usize>,
    cost: &'static Cost,
    /// The object itself, of whose parts one is [`SPEC`].
    whole: bool,
}

impl Bounded<'_> {
    /// For a value with a text so long.
    fn spend<E: Error>(&self, text: usize) -> Result<(), E> {
        self.spend_bytes(self.cost.value + text.saturating_mul(self.cost.text))
    }

    fn spend_bytes<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or_else(|| E::custom("an object is too large, or has too many fields"))?);
        Ok(())
    }

    fn below(self, key: &str) -> Self {
        let cost = if self.whole && key == SPEC { &Cost::IN_SPEC } else { self.cost };
        Self { cost, whole: false, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.spend(0).map(|()| Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.spend(0).map(|()| Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.spend(0).map(|()| value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.spend(0).map(|()| value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.spend(0).map(|()| Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.spend(text.len()).map(|()| text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.below(""))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        self.spend_bytes(self.cost.map)?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.spend_bytes(key.len() * self.cost.text + if map.is_empty() { self.cost.node } else { 0 })?;
            let value = entries.next_value_seed(self.below(&key))?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Whether JSON that becomes part of a spec takes no more than `left`. What is no JSON takes nothing.
pub(super) fn suffices(left: usize, json: &str) -> bool {
    let left = Cell::new(left);
    let bounded = Bounded { left: &left, cost: &Cost::IN_SPEC, whole: false };
    !bounded.deserialize(&mut serde_json::Deserializer::from_str(json)).is_err_and(|error| error.is_data())
}

/// An object, and what is left of `most` bytes beside it.
pub(super) fn read(text: &str, most: usize) -> serde_json::Result<(Value, usize)> {
    let left = Cell::new(most);
    let bounded = Bounded { left: &left, cost: &Cost::ELSEWHERE, whole: true };
    let object = bounded.deserialize(&mut serde_json::Deserializer::from_str(text))?;
    Ok((object, left.get()))
}

/// What an API server asks back of an object, but for its spec.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

/// The parts of the metadata of a MiniCluster of this version that a conversion may change, or that tell which one it is. All
/// others are put back by the API server. Labels and annotations are left out if they would take more than `most` bytes.
///
/// Source: apiextensions-apiserver `pkg/apiserver/conversion/webhook_converter.go`, `restoreObjectMeta`.
pub(super) fn metadata(text: &str, version: &str, most: usize) -> Option<Map<String, Value>> {
    let outline = serde_json::from_str::<Outline<'_>>(text).ok()?;
    let mut left = most;
    let mut part = |key: &str| {
        let (value, now) = read(outline.metadata.get(key)?.get(), left).ok()?;
        left = now;
        Some((key.to_owned(), value))
    };
    let parts = ["name", "namespace", "uid", "annotations", "labels"].into_iter().filter_map(&mut part).collect();
    (outline.api_version == version && outline.kind == "MiniCluster").then_some(parts)
}

/// Gives the items of the list at `path` to `each`, one after the other, as they are written. What stands beside is skipped.
pub(super) struct Items<'a, F> {
    pub(super) path: &'a [&'static str],
    pub(super) each: F,
}

impl<'de, F: FnMut(&str) -> Result<(), String>> DeserializeSeed<'de> for Items<'_, &mut F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.path.is_empty() {
            // A list that is left out is written as null by some.
            true => deserializer.deserialize_any(self),
            false => deserializer.deserialize_map(self),
        }
    }
}

impl<'de, F: FnMut(&str) -> Result<(), String>> Visitor<'de> for Items<'_, &mut F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.first() {
            Some(key) => write!(f, "an object with {key}"),
            None => f.write_str("a list"),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<&RawValue>()? {
            (self.each)(item.get()).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((key, rest)) = self.path.split_first() else { return Err(A::Error::custom("a list is expected")) };
        while let Some(found) = entries.next_key::<String>()? {
            match found == *key {
                true => entries.next_value_seed(Items { path: rest, each: &mut *self.each })?,
                false => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}
