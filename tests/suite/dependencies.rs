//! Dependencies keep the rules of `.cargo/deny.toml`, also where cargo-deny is not installed.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::process::Command;

use serde_json::Value;

use crate::generated::repository;

fn table(path: &str) -> toml::Table {
    toml::from_str(&std::fs::read_to_string(repository().join(path)).unwrap()).unwrap()
}

fn texts(values: &toml::Value) -> BTreeSet<&str> {
    values.as_array().unwrap().iter().filter_map(toml::Value::as_str).collect()
}

#[test]
fn nothing_that_is_banned_is_in_the_lock_file() {
    let (rules, lock) = (table(".cargo/deny.toml"), table("Cargo.lock"));
    let packages = lock["package"].as_array().unwrap();
    for ban in rules["bans"]["deny"].as_array().unwrap() {
        let found = packages.iter().filter(|package| package["name"] == ban["crate"]).count();
        let allowed = usize::from(ban.get("deny-multiple-versions").is_some());
        assert!(found <= allowed, "Cargo.lock has {found} of {}: cargo tree -i says who brings it in", ban["crate"]);
    }
    let registries = texts(&rules["sources"]["allow-registry"]);
    for source in packages.iter().filter_map(|package| package.get("source")?.as_str()) {
        assert!(source.strip_prefix("registry+").is_some_and(|one| registries.contains(one)), "{source}");
    }
}

#[test]
fn every_licence_is_allowed_and_every_allowed_licence_is_needed() {
    let rules = table(".cargo/deny.toml");
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--locked", "--all-features", "--format-version", "1", "--filter-platform", &platform]);
    let output = command.current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let used: BTreeSet<&str> =
        metadata["resolve"]["nodes"].as_array().unwrap().iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().unwrap();
    let packages: Vec<&Value> =
        packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id))).collect();
    assert!(packages.len() > 100, "{}", packages.len());
    let refused = |allowed: &BTreeSet<&str>| -> Vec<String> {
        let refused = packages.iter().filter(|package| !satisfies(package["license"].as_str().unwrap_or(""), allowed));
        refused.map(|package| format!("{}: {}", package["name"], package["license"])).collect()
    };
    let allowed = texts(&rules["licenses"]["allow"]);
    assert_eq!(refused(&allowed), [""; 0]);
    for licence in &allowed {
        let others = allowed.iter().filter(|one| *one != licence).copied().collect();
        assert_ne!(refused(&others), [""; 0], "no crate needs {licence}");
    }
}

/// Whether these licences suffice for an SPDX expression; older manifests write `/` for `OR`.
fn satisfies(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "+");
    let allowed = allowed.iter().map(|licence| licence.replace(" WITH ", "+")).collect();
    let mut words = spaced.split_whitespace().peekable();
    let satisfied = any(&mut words, &allowed);
    assert_eq!(words.next(), None, "{expression}");
    satisfied
}

fn any<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, allowed: &BTreeSet<String>) -> bool {
    let mut satisfied = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        satisfied |= all(words, allowed);
    }
    satisfied
}

fn all<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, allowed: &BTreeSet<String>) -> bool {
    let mut satisfied = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        satisfied &= one(words, allowed);
    }
    satisfied
}

fn one<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, allowed: &BTreeSet<String>) -> bool {
    match words.next() {
        Some("(") => {
            let satisfied = any(words, allowed);
            assert_eq!(words.next(), Some(")"));
            satisfied
        }
        word => word.is_some_and(|licence| allowed.contains(licence)),
    }
}

#[test]
fn expressions_of_licences_are_read_as_they_are_meant() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
    for expression in ["MIT", "GPL-3.0-only OR MIT", "GPL-3.0-only/MIT", "MIT AND (ISC OR Zlib)"] {
        assert!(satisfies(expression, &allowed), "{expression}");
    }
    for expression in ["", "Zlib", "Apache-2.0", "MIT AND Zlib", "(MIT OR ISC) AND Zlib", "Zlib OR ISC AND Zlib"] {
        assert!(!satisfies(expression, &allowed), "{expression}");
    }
    assert!(satisfies("Apache-2.0 WITH LLVM-exception", &allowed));
}
