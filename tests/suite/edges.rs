//! The rooms of `src/`: Cargo holds the edges between them; what it cannot hold is held here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that everybody may use.
const FOUNDATIONS: [&str; 3] = ["clock", "metrics", "telemetry"];

/// Rooms that stand without Kubernetes, and without what they use.
const NO_KUBE: [&str; 6] = ["admin", "config", "contract", "federation", "flux", "tunnel"];

/// Non-test lines a file may have.
const MAX_LINES: usize = 600;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                rust_files(&path, into);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn is_test_file(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// The crates of `src/` by their rooms, with the names of what they depend on, tests aside.
fn rooms() -> BTreeMap<String, BTreeSet<String>> {
    let mut rooms = BTreeMap::new();
    for entry in fs::read_dir(workspace().join("src")).expect("src is there").flatten() {
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        let manifest: toml::Table = toml::from_str(&manifest).expect("Cargo has read it");
        let uses = manifest["dependencies"].as_table().expect("a table").keys().cloned().collect();
        rooms.insert(entry.file_name().to_string_lossy().into_owned(), uses);
    }
    rooms
}

/// The rooms among the dependencies of a room.
fn rooms_of(uses: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    uses.iter().filter_map(|name| name.strip_prefix("tributary-"))
}

#[test]
fn federation_and_the_leaves_stand_without_kubernetes() {
    let rooms = rooms();
    for room in NO_KUBE {
        let kube = rooms[room].iter().find(|name| name.starts_with("kube") || *name == "k8s-openapi");
        assert_eq!(kube, None, "{room}");
        let other = rooms_of(&rooms[room]).find(|used| !NO_KUBE.contains(used) && !FOUNDATIONS.contains(used));
        assert_eq!(other, None, "{room}");
    }
}

/// Files besides `src/cluster` that write objects whole, or delete them, by requests of their own, and why what is another's is
/// safe from them. All other writes pass the gate (`src/cluster/apply`), and `src/cluster/sweep.rs` deletes by UID.
const OWN_REQUESTS: [(&str, &str); 8] = [
    (
        "agent/daemon/src/enrolment/handler.rs",
        "ClusterPeers and join tokens: judged, and with the version that was read",
    ),
    (
        "agent/daemon/src/enrolment/mod.rs",
        "join tokens that have ended, found by their label in the agent's own namespace",
    ),
    ("agent/daemon/src/identity/shape.rs", "the identity: created, or replaced as it was read if it is ours"),
    ("agent/daemon/src/webhook/crd_sync.rs", "its Secret likewise; one field of the definition of MiniClusters"),
    ("src/bursting/provider/create.rs", "a dry run"),
    ("src/bursting/provider/provision.rs", "a dry run"),
    (
        "src/bursting/usage.rs",
        "records of usage: created, or replaced in the version that was found by our label in the agent's own namespace",
    ),
    ("src/reconcile/workloads.rs", "a dry run"),
];

#[test]
fn no_object_is_written_but_through_the_gate_that_looks_whose_it_is() {
    let root = workspace();
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    rust_files(&root.join("agent/daemon/src"), &mut files);
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| !is_test_file(file)) {
        let inside = file.strip_prefix(&root).expect("below the workspace").to_string_lossy().into_owned();
        let text = fs::read_to_string(file).expect("sources are readable");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let writes = ["Patch::Apply", "PostParams", "DeleteParams"];
        if writes.iter().any(|word| code.contains(word)) && !inside.starts_with("src/cluster/") {
            found.insert(inside);
        }
    }
    let known = OWN_REQUESTS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, known, "send it through Applier::own or sweep::delete, or say here why it is safe");
}

fn architecture() -> String {
    fs::read_to_string(workspace().join("src/guide/architecture.md")).expect("the page is there")
}

#[test]
fn every_room_is_on_the_page_with_its_edges() {
    let page = architecture();
    for (room, uses) in rooms().iter().filter(|(room, _)| !["clock", "metrics"].contains(&room.as_str())) {
        let row = page.lines().find(|line| line.starts_with(&format!("| [`{room}`](../{room}/lib.rs)")));
        let told = row.and_then(|row| row.strip_suffix('|')?.rsplit('|').next()).map(str::trim);
        let uses: Vec<&str> = rooms_of(uses).filter(|used| !FOUNDATIONS.contains(used)).collect();
        assert_eq!(told, Some(uses.join(", ").as_str()), "architecture.md, row {room}");
    }
}

/// In its tables, the names after a link to a file are functions of that file.
#[test]
fn every_function_on_the_page_exists() {
    let mut named = 0;
    for cell in architecture().lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|')) {
        for link in cell.split("](").skip(1) {
            let (file, after) = link.split_once(')').expect("a link ends");
            let text = fs::read_to_string(workspace().join("src/guide").join(file));
            let text = text.unwrap_or_else(|error| panic!("architecture.md names {file}: {error}"));
            let names = after.split('[').next().unwrap_or_default().split('`').skip(1).step_by(2);
            for name in names {
                let exists = ["(", "<"].iter().any(|open| text.contains(&format!("fn {name}{open}")));
                assert!(exists, "architecture.md names {name} of {file}, which has no such function");
                named += 1;
            }
        }
    }
    assert!(named > 30, "only {named} functions were found");
}

#[test]
fn files_stay_readable() {
    let root = workspace();
    let mut files = Vec::new();
    for room in ["src", "agent", "tests"] {
        rust_files(&root.join(room), &mut files);
    }
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("sources are readable");
        let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines, at most {MAX_LINES}: it is two files", file.display()));
        }
        let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if ["utils", "util", "helpers", "common", "manager", "misc"].contains(&name) {
            wrong.push(format!("{}: name it after what it does", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_daemon_joins_everything_in_one_short_file() {
    let app = workspace().join("agent/daemon/src/app.rs");
    let lines = fs::read_to_string(&app).expect("agent/daemon/src/app.rs is there").lines().count();
    assert!(lines <= 150, "{}: {lines} lines, at most 150", app.display());
}
