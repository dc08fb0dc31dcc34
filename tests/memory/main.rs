//! What takes memory, counted by the allocator. It counts a whole process, so nothing else is tested in this one.
#![allow(missing_docs, clippy::unwrap_used)]

mod tunnel;

use std::sync::Mutex;

use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use tributary::webhook;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Whoever counts is alone meanwhile.
static ALONE: Mutex<()> = Mutex::new(());

const VERSIONS: [&str; 2] = ["flux-framework.org/v1alpha1", "flux-framework.org/v1alpha2"];

/// The largest review: see the server.
const LARGEST: usize = 16 << 20;

fn list(one: Value, count: usize) -> Value {
    vec![one; count].into()
}

fn named(one: Value, count: usize) -> Value {
    (0..count).map(|name| (format!("{name:x}"), one.clone())).collect()
}

/// With what it keeps of the other version.
fn kept(kept: &Value) -> Value {
    let text = kept.to_string();
    let annotations = ["v1alpha1", "v1alpha2"].map(|version| (format!("tributary.dev/kept-{version}"), text.clone()));
    json!({"metadata": {"annotations": Value::from_iter(annotations)}, "spec": {"containers": [{"image": "x"}]}})
}

/// An object of so many parts, each of which takes much more than its text.
type Shape = (&'static str, fn(usize) -> Value);

const SHAPES: [Shape; 21] = [
    ("empty containers", |count| json!({"spec": {"containers": list(json!({}), count)}})),
    ("containers", |count| {
        let full = json!({"image": "x", "cores": 1, "diagnostics": true, "runFlux": true, "environment": {"A": "1"},
            "commands": {"pre": "a"}, "volumes": {"a": {"path": "/a"}}, "ports": [1]});
        json!({"spec": {"containers": list(full, count)}})
    }),
    ("unknown fields", |count| json!({"spec": {"containers": list(json!({"a": 0}), count)}})),
    ("sections", |count| {
        let sections = json!({"commands": {}, "lifeCycle": {}, "securityContext": {}});
        json!({"spec": {"containers": list(sections, count)}})
    }),
    ("volumes", |count| json!({"spec": {"volumes": named(json!({}), count)}})),
    ("volumes of a container", |count| json!({"spec": {"containers": [{"volumes": named(json!({}), count)}]}})),
    ("environment", |count| json!({"spec": {"containers": [{"environment": named(json!(""), count)}]}})),
    ("users", |count| json!({"spec": {"users": list(json!({}), count)}})),
    ("ports", |count| json!({"spec": {"containers": [{"ports": list(json!(1), count)}]}})),
    ("lists", |count| json!({"spec": {"unknown": list(json!([0]), count)}})),
    ("maps", |count| json!({"spec": {"unknown": list(json!({"a": 0}), count)}})),
    ("resources", |count| json!({"spec": {"pod": {"resources": named(json!({"a": 1}), count)}}})),
    ("a command", |count| json!({"spec": {"containers": [{"image": "x", "command": "x".repeat(count)}]}})),
    ("managed fields", |count| json!({"metadata": {"managedFields": [{"fieldsV1": named(json!({}), count)}]}})),
    ("maps of the status", |count| json!({"status": {"a": list(json!({"a": 0}), count)}})),
    ("numbers of the status", |count| json!({"status": {"a": list(json!(0), count)}})),
    ("a text", |count| json!({"status": "x".repeat(count)})),
    ("a text with a quote", |count| json!({"status": format!("\"{}", "x".repeat(count))})),
    ("a key", |count| json!({"status": {"x".repeat(count): 0}})),
    ("kept containers", |count| kept(&json!([{"at": ["containers"], "value": list(json!({}), count)}]))),
    ("kept entries", |count| kept(&list(json!({"at": ["a"], "value": {}}), count))),
];

fn review(object: &Value, desired: &str) -> String {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request":
        {"uid": "7", "desiredAPIVersion": desired, "objects": [object]}})
    .to_string()
}

/// What a review takes besides itself and its answer, and whether it is too much to be looked at.
fn converted(review: &str) -> (usize, bool) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let answer = webhook::review(review.as_bytes()).unwrap();
    let too_many = answer.failure.is_some_and(|failure| failure.contains("is too large, or has too many fields"));
    // Some are shown all the same.
    let refused = too_many || String::from_utf8_lossy(&answer.json).contains(r#""spec":{}"#);
    (MEMORY.peak_usage() - before - answer.json.capacity(), refused)
}

/// Shapes with ever more parts, until they are refused or as large as a review can be: those just before that take most.
#[test]
fn whatever_is_to_be_converted_takes_no_more_than_is_said() {
    let _alone = ALONE.lock();
    // Schemas are read once.
    let [older, newer] = VERSIONS;
    let lake =
        json!({"apiVersion": older, "kind": "MiniCluster", "metadata": {"name": "lake"}, "spec": {"containers": []}});
    converted(&review(&lake, newer));
    let mut shares = Vec::new();
    for (name, shape) in SHAPES {
        for (version, desired) in [(older, newer), (newer, older)] {
            let (mut share, mut took_most) = (0.0, 0);
            let (mut count, mut enough, mut too_many) = (200, 0, usize::MAX);
            // Large ones take a while, and grow evenly.
            while too_many - enough > enough / if enough > 20_000 { 4 } else { 32 } {
                let mut object = shape(count);
                object["apiVersion"] = version.into();
                object["kind"] = "MiniCluster".into();
                let review = review(&object, desired);
                drop(object);
                let (took, refused) = if review.len() > LARGEST { (0, true) } else { converted(&review) };
                let of_most = took as f64 / webhook::most_of_object(review.len()) as f64;
                if of_most > share {
                    (share, took_most) = (of_most, took);
                }
                match refused {
                    true => too_many = count,
                    false => enough = count,
                }
                // Four times as many until they are too many; then closer.
                count = if too_many == usize::MAX { enough * 4 } else { enough.midpoint(too_many) };
            }
            shares.push((share, format!("{name} of {version}, {enough}: {took_most} bytes")));
        }
    }
    let over: Vec<_> = shares.iter().filter(|(share, _)| *share > 1.0).collect();
    assert!(over.is_empty(), "{over:#?}");
    // What is said is not far from the truth either: refused is only what could do harm.
    let (most, what) = shares.iter().max_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
    assert!(*most > 0.7, "{most} {what}");
}
