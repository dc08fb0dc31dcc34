//! Names of Kubernetes' own grammar: labels, keys, and objects that are referred to.
//!
//! Source: <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/>, apimachinery `pkg/util/validation`.

use std::collections::BTreeMap;

use super::{Problem, reason};

/// Keys and values of labels.
pub(crate) fn labels(path: &str, labels: &BTreeMap<String, String>) -> Vec<Problem> {
    let value = |(key, value): (&String, &String)| {
        let message = format!(
            "{value:?} is no value of a label: use at most 63 letters, digits, '-', '_' and '.', the first and the last a \
             letter or a digit"
        );
        (!value.is_empty() && !is_word(value))
            .then(|| Problem::new(format!("{path}.{key}"), reason::INVALID_VALUE, message))
    };
    labels.keys().filter_map(|name| key(path, name)).chain(labels.iter().filter_map(value)).collect()
}

/// The key of a label or an annotation.
pub(crate) fn key(path: &str, key: &str) -> Option<Problem> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let good = is_word(name) && prefix.is_none_or(is_subdomain);
    let message = format!(
        "{key:?} is no key of a label or an annotation: use at most 63 letters, digits, '-', '_' and '.', with a DNS name \
         and '/' in front if it is not your own"
    );
    (!good).then(|| Problem::new(path, reason::INVALID_NAME, message))
}

/// The name of an object that must be there.
pub(crate) fn object(path: &str, name: Option<&str>) -> Option<Problem> {
    let name = name.filter(|name| !is_subdomain(name))?;
    let message = format!(
        "{name:?} is no name of an object: use at most 253 lower case letters, digits, '-' and '.', the first and the last a \
         letter or a digit"
    );
    Some(Problem::new(path, reason::INVALID_NAME, message))
}

/// The name of a variable as Kubernetes (1.32 and later) takes it.
pub(super) fn variable(path: &str, name: &str) -> Option<Problem> {
    let good = !name.is_empty() && name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=');
    let message = format!("{name:?} is no name of a variable: use printable ASCII characters without '='");
    (!good).then(|| Problem::new(path, reason::INVALID_NAME, message))
}

/// The key of a Secret or a ConfigMap.
pub(crate) fn data_key(path: &str, key: &str) -> Option<Problem> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let good = (1..=253).contains(&key.len()) && key.bytes().all(inner) && key != "." && !key.starts_with("..");
    let message = format!("{key:?} is no key of a Secret or a ConfigMap: use letters, digits, '-', '_' and '.'");
    (!good).then(|| Problem::new(path, reason::INVALID_NAME, message))
}

/// A qualified name without its prefix, which values of labels are as well.
pub(super) fn is_word(text: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= 63 && text.bytes().all(inner) && ends(text.bytes().next()) && ends(text.bytes().next_back())
}

/// RFC 1123: labels of lower case letters, digits and '-', with dots between them.
pub(super) fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        label.bytes().all(inner) && ends(label.bytes().next()) && ends(label.bytes().next_back())
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_domains_are_kubernetes_own() {
        for (text, word, subdomain) in [
            ("a", true, true),
            ("A_b.c-1", true, false),
            ("a.b-c.1", true, true),
            ("", false, false),
            ("-a", false, false),
            ("a.", false, false),
            ("a..b", true, false),
            ("a b", false, false),
            ("ä", false, false),
        ] {
            assert_eq!((is_word(text), is_subdomain(text)), (word, subdomain), "{text}");
        }
        assert!(is_word(&"a".repeat(63)) && !is_word(&"a".repeat(64)));
        assert!(is_subdomain(&"a".repeat(253)) && !is_subdomain(&"a".repeat(254)));
    }
}
