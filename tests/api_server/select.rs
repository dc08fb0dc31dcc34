//! Label selectors and field selectors.

use serde_json::Value;

use super::request::{Outcome, RequestInfo, bad_request};

/// Which objects a list or a watch shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(String, Test)>,
}

#[derive(Clone, Debug)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    pub(super) fn of(info: &RequestInfo) -> Outcome<Self> {
        let parsed = |name, parse: fn(&str) -> Option<(String, Test)>| {
            let text = info.parameter(name).unwrap_or_default();
            let tests = split(text).map(|part| parse(part).ok_or_else(|| part.to_owned())).collect::<Result<_, _>>();
            tests.map_err(|part| bad_request(format!("unable to parse requirement: {part:?}")))
        };
        Ok(Self { labels: parsed("labelSelector", label)?, fields: parsed("fieldSelector", compared)? })
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|(key, test)| test.holds(labels[key].as_str()))
            && self.fields.iter().all(|(path, test)| {
                let value = path.split('.').fold(object, |value, name| &value[name]);
                let text = match value {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                test.holds(Some(&text))
            })
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| values.iter().any(|one| Some(one.as_str()) == value);
        match self {
            Self::In(values) => among(values),
            Self::NotIn(values) => !among(values),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
        }
    }
}

/// The requirements of a selector: commas in brackets are not between them.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = text.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

fn label(text: &str) -> Option<(String, Test)> {
    if let Some((head, values)) = text.split_once('(') {
        let values = values.strip_suffix(')')?.split(',').map(|value| value.trim().to_owned()).collect();
        return match head.trim().rsplit_once(' ')? {
            (key, "in") => Some((key.trim().to_owned(), Test::In(values))),
            (key, "notin") => Some((key.trim().to_owned(), Test::NotIn(values))),
            _ => None,
        };
    }
    if text.contains('=') {
        return compared(text);
    }
    let (key, test) = text.strip_prefix('!').map_or((text, Test::Exists), |key| (key, Test::Missing));
    (!key.contains(' ')).then(|| (key.to_owned(), test))
}

fn compared(text: &str) -> Option<(String, Test)> {
    let (key, value) = text.split_once('=')?;
    let value = vec![value.strip_prefix('=').unwrap_or(value).trim().to_owned()];
    Some(match key.strip_suffix('!') {
        Some(key) => (key.trim().to_owned(), Test::NotIn(value)),
        None => (key.trim().to_owned(), Test::In(value)),
    })
}
