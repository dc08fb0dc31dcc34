//! The rooms of `src/` and the edges between them, held by parsing the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

/// Who may use whom. Rooms that are missing here may use nothing but the foundations.
const EDGES: [(&str, &[&str]); 9] = [
    ("render", &["api", "config", "flux"]),
    ("cluster", &["api"]),
    ("reconcile", &["api", "flux", "render", "cluster"]),
    ("bursting", &["api", "config", "flux", "contract", "render", "cluster"]),
    ("queue", &["api", "contract", "render", "cluster"]),
    ("federation", &["contract", "flux"]),
    ("webhook", &["api"]),
    ("admin", &["contract"]),
    ("telemetry", &["config"]),
];

/// Rooms everybody may use.
const FOUNDATIONS: [&str; 3] = ["clock", "metrics", "telemetry"];

/// Crates that must not appear in a room: federation and the leaves stand without Kubernetes.
const NO_KUBE: [&str; 5] = ["flux", "contract", "federation", "admin", "config"];

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

/// `src/flux/hostlist.rs` and `src/clock.rs` → `flux`, `clock`; `src/lib.rs` → none.
fn room_of(file: &Path, src: &Path) -> Option<String> {
    let inside = file.strip_prefix(src).ok()?;
    let first = inside.components().next()?.as_os_str().to_str()?;
    let room = first.strip_suffix(".rs").unwrap_or(first);
    (room != "lib").then(|| room.to_owned())
}

/// Rooms (`crate::ROOM`, also through `super::super::ROOM`) and foreign crates a file names.
#[derive(Default)]
struct Uses {
    /// Modules between the file's items and the crate root.
    depth: usize,
    rooms: BTreeSet<String>,
    crates: BTreeSet<String>,
}

impl Uses {
    fn path(&mut self, segments: &[String]) {
        let supers = segments.iter().take_while(|segment| *segment == "super").count();
        match segments.first().map(String::as_str) {
            Some("crate") => self.rooms.extend(segments.get(1).cloned()),
            Some("super") if supers >= self.depth => self.rooms.extend(segments.get(supers).cloned()),
            Some("super" | "self") | None => {}
            Some(first) => {
                self.crates.insert(first.to_owned());
            }
        }
    }

    fn tree(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| prefix.iter().cloned().chain([ident.to_string()]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.path(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.path(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.path(prefix),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(prefix, item)),
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.path(&segments);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let test = module.attrs.iter().any(|attribute| attribute.path().is_ident("cfg"));
        // Test modules may look across rooms; inline modules do not exist otherwise.
        if !test {
            syn::visit::visit_item_mod(self, module);
        }
    }
}

/// Modules above a file's items: `src/flux/mod.rs` 1, `src/flux/hostlist.rs` 2, `src/clock.rs` 1.
fn depth_of(file: &Path, src: &Path) -> usize {
    let inside = file.strip_prefix(src).expect("a file of src");
    let depth = inside.components().count();
    if file.file_name().is_some_and(|name| name == "mod.rs") { depth - 1 } else { depth }
}

fn is_test_file(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

fn uses_of(file: &Path, src: &Path) -> Uses {
    let text = fs::read_to_string(file).expect("sources are readable");
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut uses = Uses { depth: depth_of(file, src), ..Uses::default() };
    uses.visit_file(&parsed);
    uses
}

fn rooms(src: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    rust_files(src, &mut files);
    files.iter().filter_map(|file| room_of(file, src)).collect()
}

#[test]
fn rooms_use_only_the_rooms_they_may() {
    let src = workspace().join("src");
    let rooms = rooms(&src);
    let edges: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !is_test_file(file)) {
        let Some(room) = room_of(file, &src) else { continue };
        let uses = uses_of(file, &src);
        let may = edges.get(room.as_str()).copied().unwrap_or_default();
        for used in uses.rooms.iter().filter(|used| rooms.contains(*used)) {
            if *used != room && !FOUNDATIONS.contains(&used.as_str()) && !may.contains(&used.as_str()) {
                wrong.push(format!("{}: {room} must not use {used}", file.display()));
            }
        }
        if NO_KUBE.contains(&room.as_str()) {
            for kube in uses
                .crates
                .iter()
                .filter(|name| matches!(name.as_str(), "kube" | "k8s_openapi" | "kube_leader_election"))
            {
                wrong.push(format!("{}: {room} must stand without {kube}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files besides `src/cluster` that write objects whole, or delete them, by requests of their own, and why what is another's is
/// safe from them. All other writes pass the gate (`src/cluster/apply`), and `src/cluster/sweep.rs` deletes by UID.
const OWN_REQUESTS: [(&str, &str); 6] = [
    ("agent/daemon/src/enrolment/desk.rs", "ClusterPeers and join tokens: judged, and with the version that was read"),
    (
        "agent/daemon/src/enrolment/mod.rs",
        "join tokens that have ended, found by their label in the agent's own namespace",
    ),
    ("agent/daemon/src/identity/secret.rs", "the identity: created, or replaced as it was read if it is ours"),
    ("agent/daemon/src/webhook/keeper.rs", "its Secret likewise; one field of the definition of MiniClusters"),
    ("src/bursting/provider/taking.rs", "a dry run"),
    ("src/reconcile/apply.rs", "the MiniCluster itself, by its UID, as its spec says"),
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
    for room in rooms(&workspace().join("src")) {
        assert!(page.contains(&format!("[`{room}`](../{room}")), "architecture.md does not name the room {room}");
    }
    for (room, may_use) in EDGES {
        let row = page.lines().find(|line| line.starts_with(&format!("| [`{room}`]")));
        let told = row.and_then(|row| row.strip_suffix(" |")?.rsplit("| ").next());
        assert_eq!(told, Some(may_use.join(", ").as_str()), "architecture.md, row {room}");
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

#[test]
fn a_forbidden_edge_is_seen() {
    let parsed =
        syn::parse_file("use super::super::render::Boot; fn f() { crate::cluster::apply(); kube::x(); }").unwrap();
    let mut uses = Uses { depth: 2, ..Uses::default() };
    uses.visit_file(&parsed);
    assert!(uses.rooms.contains("render") && uses.rooms.contains("cluster") && uses.crates.contains("kube"));
}
