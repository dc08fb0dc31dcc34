//! What a release needs before there is a tag: notes, one version everywhere, tools that are pinned.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::generated::repository;

fn file(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// As the workflow calls it.
fn notes(version: &str) -> Output {
    Command::new(repository().join(".ci/release-notes")).arg(version).output().unwrap()
}

#[test]
fn this_version_has_notes() {
    let version = env!("CARGO_PKG_VERSION");
    let found = notes(version);
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(
        found.status.success() && text.lines().count() > 3,
        "src/guide/releases.md has no notes of {version}: {text}"
    );
    assert!(!text.contains("## "), "one version only: {text}");
    assert!(!notes("999.0.0").status.success(), "a version without notes is no release");
    assert!(file("src/guide/releases.md").contains("\n## "), "one section a version");
}

#[test]
fn one_version_is_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    for chart in ["charts/tributary", "charts/tributary/charts/tributary-crds"] {
        let manifest: Value = serde_saphyr::from_str(&file(&format!("{chart}/Chart.yaml"))).unwrap();
        assert_eq!(manifest["version"], version, "{chart}");
        assert!(manifest["appVersion"].is_null() || manifest["appVersion"] == version, "{chart}");
    }
    let toolchain = file("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"')).unwrap();
    let image = file("agent/Dockerfile");
    assert!(image.contains(&format!("\nARG RUST=rust:{channel}-alpine")), "the image is built by {channel}");
    assert!(image.contains(&format!("\nENV RUSTUP_TOOLCHAIN={channel}\n")));
    // Of a static program in an empty image no scanner can tell what it is made of.
    assert!(image.contains("\nARG BUILDKIT_SBOM_SCAN_CONTEXT=true\n"));
    // An empty file system has no authorities to know a receiver of traces by.
    let authorities = "/etc/ssl/certs/ca-certificates.crt";
    assert!(image.contains(&format!("\nCOPY --from=build {authorities} {authorities}\n")), "{authorities} is missing");
}

#[test]
fn workflows_use_versions_and_a_release_waits_for_the_checks() {
    for name in ["ci", "release"] {
        let text = file(&format!(".github/workflows/{name}.yaml"));
        for used in text.lines().filter_map(|line| line.split_once("uses: ").map(|(_, used)| used.trim())) {
            let Some((action, version)) = used.split_once('@') else {
                assert!(used.starts_with("./"), "{name}: {used} has no version");
                continue;
            };
            let parts: Vec<_> = version.trim_start_matches('v').split('.').collect();
            let whole = parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok());
            assert!(whole, "{name}: {action}@{version} is whatever that is tomorrow");
        }
    }
    let release: Value = serde_saphyr::from_str(&file(".github/workflows/release.yaml")).unwrap();
    let jobs = &release["jobs"];
    assert_eq!(jobs["ci"]["uses"], "./.github/workflows/ci.yaml");
    assert!(file(".github/workflows/ci.yaml").contains("\n  workflow_call:\n"));
    assert!(jobs["build"]["needs"].as_array().unwrap().contains(&"ci".into()), "{}", jobs["build"]["needs"]);
    assert_eq!(jobs["publish"]["needs"], "build");
    // The chart of a release pulls the image of that release; the one of the sources names no registry at all.
    let default = "  repository: tributary-agent";
    assert!(file("charts/tributary/values.yaml").lines().any(|line| line == default));
    let charts = jobs["publish"]["steps"].as_array().unwrap().iter().filter_map(|step| step["run"].as_str());
    let charts = charts.into_iter().find(|run| run.contains("helm package")).unwrap();
    assert!(
        charts.starts_with(&format!("sed -i \"s|^{default}$|  repository: $IMAGE|\" charts/tributary/values.yaml\n"))
    );
    assert!(charts.contains("'home: %s\\nsources: [%s]\\n'"), "{charts}");
    let steps = jobs["publish"]["steps"].to_string();
    assert!(steps.contains("SHA256SUMS") && steps.contains(".ci/release-notes"), "{steps}");
}

/// The page says it of versions that are released: what the workflow makes, under the names that it gives.
#[test]
fn a_release_has_what_the_page_says() {
    let page = file("src/guide/installing.md");
    let section = page.split("\n## From a release\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let text = file(".github/workflows/release.yaml");
    let release: Value = serde_saphyr::from_str(&text).unwrap();
    let matrix = release["jobs"]["build"]["strategy"]["matrix"]["include"].as_array().unwrap();
    for target in matrix.iter().map(|one| one["target"].as_str().unwrap()) {
        assert!(section.contains(&format!("`agentctl-{target}.tar.gz`")), "{target}");
    }
    for made in ["agentctl-${{ matrix.target }}.tar.gz", "agentctl-${{ matrix.target }}.cdx", "> SHA256SUMS"] {
        assert!(text.contains(made), "{made}");
    }
    assert!(release["env"]["IMAGE"].as_str().unwrap().ends_with("/tributary-agent"));
    assert!(text.contains("oci://ghcr.io/${GITHUB_REPOSITORY_OWNER}/charts\"") && section.contains("`ghcr.io/OWNER`"));
    let image =
        release["jobs"]["build"]["steps"].as_array().unwrap().iter().find(|step| step["id"] == "image").unwrap();
    assert_eq!((&image["with"]["provenance"], &image["with"]["sbom"]), (&"mode=max".into(), &true.into()));
    let version = env!("CARGO_PKG_VERSION");
    for said in ["REGISTRY/tributary-agent:", "REGISTRY/charts/tributary --version "] {
        assert!(
            section.matches(said).count() == section.matches(&format!("{said}{version}")).count(),
            "{said}{version}"
        );
    }
}
