//! Values for a field, by its schema: what people write, and what they write by mistake.

use serde_json::{Value, json};

/// What is done to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// It gets a value that means something.
    Add,
    /// It is taken away.
    Remove,
    /// Nothing is in it.
    Empty,
    /// It is zero, or false.
    Zero,
    /// It is as small or large as may be, or by one more.
    Boundary,
    /// It is of the right type, and makes no sense.
    Wrong,
    /// It is of another type.
    OtherType,
    /// Its name has a letter too many.
    Misspelt,
}

/// The changes of a field: what is done, where, and the value.
pub(super) fn changes(at: &str, schema: &Value, value: &Value) -> Vec<(Change, String, Value)> {
    let here = |change, value| (change, at.to_owned(), value);
    let mut all = vec![here(Change::Add, value.clone()), here(Change::Remove, Value::Null)];
    all.push((Change::Misspelt, format!("{at}x"), value.clone()));
    let parent = at.rfind(['.', '[']).map_or("", |end| &at[..end]);
    if parent != "spec" {
        let empty = if at.ends_with(']') { json!([]) } else { json!({}) };
        all.push((Change::Empty, parent.to_owned(), empty));
    }
    let (integers, texts): (Vec<i64>, Vec<String>) = match schema["type"].as_str() {
        _ if schema["x-kubernetes-int-or-string"] == true => {
            all.push(here(Change::Zero, json!("0")));
            all.push(here(Change::OtherType, json!(true)));
            (vec![1, -1], ["1n", "9E", "-1", "1e3", "0.0000001", "5 cores"].map(str::to_owned).to_vec())
        }
        Some("boolean") => {
            all.push(here(Change::Zero, json!(false)));
            all.push(here(Change::OtherType, json!("yes")));
            all.push(here(Change::Boundary, json!(value != &json!(true))));
            (vec![], vec![])
        }
        Some("integer") => {
            all.push(here(Change::Zero, json!(0)));
            all.push(here(Change::OtherType, json!("seven")));
            let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
            let mut bounds: Vec<i64> = bound("minimum").into_iter().flat_map(|least| [least - 1, least]).collect();
            bounds.extend(bound("maximum").into_iter().flat_map(|most| [most, most + 1]));
            bounds.extend([-1, 1, i64::from(i32::MAX), i64::from(i32::MAX) + 1]);
            (bounds, vec![])
        }
        Some("string") => {
            all.push(here(Change::Empty, json!("")));
            all.push(here(Change::OtherType, json!(7)));
            let is_duration = schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("ms|s|m|h"));
            let wrong = if is_duration {
                ["0s", "1ms", "87600h", "87601h", "99999999999999999999h", "5 minutes"].map(str::to_owned).to_vec()
            } else {
                let mut texts =
                    ["Not A Name", "ü", "a\nb: c", "-x", "../..", "$(reboot)", "'\""].map(str::to_owned).to_vec();
                texts.extend([63, 64, 253, 254].map(|length| "a".repeat(length)));
                texts
            };
            (vec![], wrong)
        }
        _ => (vec![], vec![]),
    };
    all.extend(integers.into_iter().map(|number| here(Change::Boundary, json!(number))));
    let makes_sense = |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '.');
    all.extend(
        texts
            .into_iter()
            .map(|text| here(if makes_sense(&text) { Change::Boundary } else { Change::Wrong }, json!(text))),
    );
    all
}

/// Whether words name a field, or what it lies in. Where an API server refuses the Job, they name the Job's field: what
/// Kubernetes has too has the same name there.
pub(super) fn names(words: &str, at: &str) -> bool {
    let is_of_the_job = words.contains("spec.template.");
    let in_the_job = |segment: &str| match segment.split(['[', '{']).next().unwrap_or_default() {
        "spec" | "containers" | "services" | "pod" | "flux" => false,
        "environment" => words.contains(".env["),
        name => words.contains(&format!(".{name}")),
    };
    if is_of_the_job && at.split('.').any(in_the_job) {
        return true;
    }
    let bare = |path: &str| -> String {
        let mut inside = false;
        path.chars()
            .filter(|letter| {
                inside = (inside || *letter == '[') && *letter != ']';
                !inside && *letter != ']'
            })
            .collect()
    };
    let words_bare = bare(words);
    let mut path = at;
    while path != "spec" {
        if words.contains(path) || words_bare.contains(&bare(path)) {
            return true;
        }
        path = path.rfind(['.', '[']).map_or("spec", |end| &path[..end]);
    }
    false
}
