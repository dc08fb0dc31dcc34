//! What is built: modules pinned with their checksums, and the commands that build them.

use std::env::consts::{ARCH, OS};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

const GO_MOD: &str = include_str!("../../pins/go.mod");
const GO_SUM: &str = include_str!("../../pins/go.sum");
// A program with a module graph of its own, pinned by the checksum database instead of go.sum.
const KWOK: &str = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0";

/// A set of programs and how they are built.
#[derive(Debug)]
pub(super) struct Recipe {
    /// The directory's name in the cache; it changes with anything that changes the programs.
    pub(super) name: String,
    /// What a person reads while it is built.
    pub(super) title: String,
    /// Files to be in the working directory.
    pub(super) files: Vec<(&'static str, &'static str)>,
    /// Go commands, each with the packages whose dependencies it compiles, if these can be listed.
    pub(super) steps: Vec<Step>,
    /// Names that `go build` gives and that should be others.
    pub(super) renames: Vec<(&'static str, &'static str)>,
}

/// One call of `go`; its programs end up in `GOBIN` or `-o` [`OUTPUT`].
#[derive(Debug)]
pub(super) struct Step {
    pub(super) title: &'static str,
    pub(super) arguments: Vec<String>,
    /// Packages of the module in the working directory, for `go list`; empty if it has none.
    pub(super) packages: Vec<&'static str>,
}

/// In the arguments of a step: the directory that programs go to.
pub(super) const OUTPUT: &str = "{output}";

/// etcd, Kubernetes with kubectl, and kwok.
pub(super) fn control_plane() -> Recipe {
    let version = version_of("k8s.io/kubernetes");
    let (major, minor) = version.trim_start_matches('v').split_once('.').unwrap_or((version, ""));
    let minor = minor.split('.').next().unwrap_or(minor);
    // Without these the API server calls itself v0.0.0, and clients take it for too old.
    let base = "k8s.io/component-base/version";
    let linker = format!("-s -w -X {base}.gitVersion={version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}");
    let packages = vec![
        "go.etcd.io/etcd/server/v3",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubectl",
    ];
    let mut build: Vec<_> = ["build", "-v", "-ldflags", &linker, "-o", OUTPUT].into_iter().map(str::to_owned).collect();
    build.extend(packages.iter().map(|package| (*package).to_owned()));
    let steps = vec![
        Step { title: "etcd and Kubernetes", arguments: build, packages },
        Step { title: "kwok", arguments: install(KWOK), packages: Vec::new() },
    ];
    Recipe {
        title: format!("Kubernetes {version}, etcd {} and kwok", version_of("go.etcd.io/etcd/server/v3")),
        ..recipe("", vec![("go.mod", GO_MOD), ("go.sum", GO_SUM)], steps, vec![("server", "etcd")])
    }
}

pub(super) fn install(package: &str) -> Vec<String> {
    ["install", "-v", "-ldflags", "-s -w", package].into_iter().map(str::to_owned).collect()
}

pub(super) fn recipe(
    prefix: &str,
    files: Vec<(&'static str, &'static str)>,
    steps: Vec<Step>,
    renames: Vec<(&'static str, &'static str)>,
) -> Recipe {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(text);
    };
    [OS, ARCH].into_iter().for_each(&mut add);
    files.iter().for_each(|(_, text)| add(text));
    steps.iter().flat_map(|step| &step.arguments).for_each(|argument| add(argument));
    let digest = HEXLOWER.encode(&hash.finalize()[..8]);
    Recipe { name: format!("{prefix}{digest}"), title: String::new(), files, steps, renames }
}

/// The version that go.mod requires.
fn version_of(module: &str) -> &'static str {
    GO_MOD
        .lines()
        .filter_map(|line| line.trim().strip_prefix(module)?.trim().split(' ').next())
        .find(|version| version.starts_with('v'))
        .unwrap_or("v0.0.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_pins() {
        let recipe = control_plane();
        assert_eq!(recipe.title, "Kubernetes v1.35.4, etcd v3.6.5 and kwok");
        let linker = &recipe.steps[0].arguments[3];
        assert!(linker.ends_with("gitVersion=v1.35.4 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35"), "{linker}");
    }

    #[test]
    fn the_cache_key_changes_with_pins_and_commands() {
        let name = |files, arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            recipe("", files, vec![Step { title: "", arguments, packages: Vec::new() }], Vec::new()).name
        };
        let first = name(vec![("go.mod", "a")], &["build"]);
        assert_eq!(first, name(vec![("go.mod", "a")], &["build"]));
        assert_ne!(first, name(vec![("go.mod", "b")], &["build"]));
        assert_ne!(first, name(vec![("go.mod", "a")], &["bui", "ld"]));
        assert_eq!(control_plane().name.len(), 16);
    }
}
