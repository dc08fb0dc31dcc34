//! Documents that are nearly right: bytes choose which fields of a good one are set, and to what.

use serde_json::Value;

/// Fields as JSON pointers, and what they may be set to, as JSON.
pub(crate) type Fields = &'static [(&'static str, &'static [&'static str])];

/// Values that any field may be set to, whatever it is.
const ANYTHING: [&str; 14] = [
    "null",
    "true",
    "0",
    "-1",
    "9223372036854775807",
    "1e300",
    "\"\"",
    "\"a\"",
    "\"../..\"",
    "\"$(id)\\n\\u0000\"",
    "[]",
    "{}",
    "[{}]",
    "{\"a\":{}}",
];

/// Takes bytes one after the other; zero when there are none.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(crate) fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[usize::from(self.byte()) % all.len()]
    }

    /// As many bytes as the next two say.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = usize::from(u16::from_be_bytes([self.byte(), self.byte()]));
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        piece
    }

    /// A text of a few bytes, as JSON.
    fn text(&mut self) -> Value {
        let length = usize::from(self.byte() % 32).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(piece).into_owned().into()
    }
}

/// `document` with the fields that the bytes choose.
pub(crate) fn grow(document: &mut Value, fields: Fields, bytes: &mut Bytes<'_>, most: usize) {
    for _ in 0..most {
        if bytes.0.is_empty() {
            return;
        }
        let (pointer, values) = bytes.of(fields);
        let choice = usize::from(bytes.byte());
        let value = match choice {
            240.. => bytes.text(),
            224.. => read(ANYTHING[choice % ANYTHING.len()]),
            _ => read(values[choice % values.len()]),
        };
        set(document, pointer, value);
    }
}

fn read(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("a value of a table is no JSON: {json}: {error}"))
}

/// Makes what is missing on the way.
fn set(document: &mut Value, pointer: &str, value: Value) {
    let mut place = document;
    for key in pointer.split('/').skip(1) {
        let key = key.replace("~1", "/");
        place = match (key.parse::<usize>(), place) {
            (Ok(index), Value::Array(list)) => {
                while list.len() <= index {
                    list.push(Value::Object(serde_json::Map::new()));
                }
                &mut list[index]
            }
            (Ok(_), other) => {
                *other = Value::Array(vec![Value::Object(serde_json::Map::new())]);
                &mut other[0]
            }
            (Err(_), other) => {
                if !other.is_object() {
                    *other = Value::Object(serde_json::Map::new());
                }
                &mut other[key.as_str()]
            }
        };
    }
    *place = value;
}
