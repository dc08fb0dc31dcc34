//! The threat model names tests that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../src/guide/security.md");

fn sources(dir: &Path, into: &mut String) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Names of all tests.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    ["src", "agent", "tests"].iter().for_each(|room| sources(&root.join(room), &mut text));
    let mut found = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if let Some((name, _)) = line.split_once("fn ").filter(|_| is_test).and_then(|(_, rest)| rest.split_once('(')) {
            found.insert(name.to_owned());
        }
        is_test = line.contains("test]") || line.starts_with("#[tokio::test") || is_test && line.starts_with("#[");
    }
    found
}

/// Rows of the tables below "Threat model", without their heads.
fn rows() -> Vec<Vec<String>> {
    let (_, section) = PAGE.split_once("## Threat model").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (line, next) in section.lines().zip(section.lines().skip(1).chain([""])) {
        if line.starts_with("| ") && !next.starts_with("|---") {
            rows.push(cells(line));
        }
    }
    rows
}

#[test]
fn every_row_of_the_threat_model_names_a_test_that_there_is() {
    let (tests, rows) = (tests(), rows());
    assert!(rows.len() > 15 && tests.len() > 500, "{} rows, {} tests", rows.len(), tests.len());
    let mut wrong = Vec::new();
    for row in rows {
        let shown = row.get(2).cloned().unwrap_or_default();
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        // What nothing stops has no test, and says so.
        if named.is_empty() && !row[1].starts_with("nothing stops") {
            wrong.push(format!("{}: no test", row[0]));
        }
        wrong.extend(named.iter().filter(|name| !tests.contains(**name)).map(|name| format!("{}: {name}?", row[0])));
    }
    assert!(wrong.is_empty(), "src/guide/security.md names in its third column who shows a row:\n{}", wrong.join("\n"));
}
