//! JSON of strangers, read no further than a bound. What a few bytes say can take a hundred times as many in memory.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// What a value takes in memory besides its text, in a list or in a map: half of a vector or of a node of a map may be empty.
const EACH: usize = 100;

/// A value that takes no more memory than is left.
struct Bounded<'a> {
    left: &'a Cell<usize>,
}

impl Bounded<'_> {
    /// For a value with a text so long.
    fn spend<E: Error>(&self, text: usize) -> Result<(), E> {
        self.spend_bytes(EACH + text)
    }

    fn spend_bytes<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or_else(|| E::custom("an object is too large, or has too many fields"))?);
        Ok(())
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
        while let Some(item) = items.next_element_seed(Bounded { left: self.left })? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.spend_bytes(key.len())?;
            map.insert(key, entries.next_value_seed(Bounded { left: self.left })?);
        }
        Ok(Value::Object(map))
    }
}

/// Gives the items of the list at `path` to `each`, one after the other: no two are in memory at one time, and none that would
/// take more than `most` bytes. What stands beside is skipped.
pub(super) struct Items<'a, F> {
    pub(super) path: &'a [&'static str],
    pub(super) most: usize,
    pub(super) each: F,
}

impl<'de, F: FnMut(Value) -> Result<(), String>> DeserializeSeed<'de> for Items<'_, &mut F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.path.is_empty() {
            // A list that is left out is written as null by some.
            true => deserializer.deserialize_any(self),
            false => deserializer.deserialize_map(self),
        }
    }
}

impl<'de, F: FnMut(Value) -> Result<(), String>> Visitor<'de> for Items<'_, &mut F> {
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
        let left = Cell::new(self.most);
        while let Some(item) = items.next_element_seed(Bounded { left: &left })? {
            (self.each)(item).map_err(A::Error::custom)?;
            left.set(self.most);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((key, rest)) = self.path.split_first() else { return Err(A::Error::custom("a list is expected")) };
        while let Some(found) = entries.next_key::<String>()? {
            match found == *key {
                true => entries.next_value_seed(Items { path: rest, most: self.most, each: &mut *self.each })?,
                false => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}
