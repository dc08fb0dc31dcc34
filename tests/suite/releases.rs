//! What a release needs before there is a tag: notes, one version everywhere, tools that are pinned.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tributary_tests::chart;

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

/// The text of a release stands on the forge, where a path of the guide leads nowhere.
#[test]
fn the_notes_of_a_release_lead_to_its_pages() {
    let version = env!("CARGO_PKG_VERSION");
    let forge = [("GITHUB_SERVER_URL", "https://git.example.org"), ("GITHUB_REPOSITORY", "SomeBody/tributary")];
    let output = Command::new(repository().join(".ci/release-notes")).arg(version).envs(forge).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let pages = format!("https://git.example.org/SomeBody/tributary/blob/v{version}/src/guide/");
    let links: Vec<&str> = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(!links.is_empty() && links.iter().all(|link| link.starts_with(&pages)), "{links:?}");
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
    assert!(image.contains(&format!("\nARG RUST=rust:{channel}-slim-")), "the image is built by {channel}");
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
    let release = workflow("release");
    let jobs = &release["jobs"];
    assert_eq!(jobs["ci"]["uses"], "./.github/workflows/ci.yaml");
    assert!(file(".github/workflows/ci.yaml").contains("\n  workflow_call:\n"));
    let needs = |job: &str, what: &str| jobs[job]["needs"].as_array().unwrap().contains(&what.into());
    assert!(needs("build", "ci") && needs("publish", "build"), "{jobs}");
    let steps = jobs["publish"]["steps"].to_string();
    assert!(steps.contains("SHA256SUMS") && steps.contains(".ci/release-notes"), "{steps}");
}

fn workflow(name: &str) -> Value {
    serde_saphyr::from_str(&file(&format!(".github/workflows/{name}.yaml"))).unwrap()
}

fn steps<'a>(workflow: &'a Value, job: &str) -> &'a [Value] {
    workflow["jobs"][job]["steps"].as_array().unwrap()
}

/// The script of the only step of a job that has these words.
fn script<'a>(workflow: &'a Value, job: &str, words: &str) -> &'a str {
    let mut scripts = steps(workflow, job).iter().filter_map(|step| step["run"].as_str());
    scripts.find(|run| run.contains(words)).unwrap_or_else(|| panic!("no step of {job} has {words}"))
}

/// Runs the script of a step as a runner does.
fn bash(script: &str, directory: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new("bash");
    command.args(["-e", "-c", script]).current_dir(directory).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A right that no step uses is one that a step which is taken over has.
#[test]
fn what_is_released_is_attested_and_nobody_else_may_sign() {
    let release = workflow("release");
    for (job, described) in release["jobs"].as_object().unwrap() {
        let rights = |name: &str| described["permissions"][name] == "write";
        let attests = described["steps"].to_string().contains("actions/attest-build-provenance@");
        assert_eq!((rights("id-token"), rights("attestations")), (attests, attests), "{job}");
    }
    let attested = steps(&release, "publish")
        .iter()
        .filter(|step| step["uses"].as_str().is_some_and(|used| used.starts_with("actions/attest-build-provenance@")));
    let subjects: String = attested.map(|step| step["with"].to_string()).collect();
    for subject in ["agentctl-*", "packages/*.tgz", "tributary.yaml", "steps.image.outputs.digest"] {
        assert!(subjects.contains(subject), "{subject} is not attested: {subjects}");
    }
    // Before anybody can see it.
    let all = serde_json::to_string(steps(&release, "publish")).unwrap();
    assert!(all.find("packages/*.tgz\\n").unwrap() < all.find("gh release create").unwrap());
}

/// Owners of repositories may have capital letters, registries take none.
#[test]
fn the_registry_of_a_release_is_in_small_letters() {
    let release = workflow("release");
    let text = file(".github/workflows/release.yaml");
    assert!(!text.contains("github.repository_owner"), "the owner as it is written is no part of a registry's name");
    assert_eq!(text.matches("GITHUB_REPOSITORY_OWNER").count(), 1);
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let variables = [("GITHUB_REPOSITORY_OWNER", "SomeBody"), ("GITHUB_OUTPUT", output.to_str().unwrap())];
    bash(script(&release, "prepare", "GITHUB_REPOSITORY_OWNER"), directory.path(), &variables);
    assert_eq!(fs::read_to_string(output).unwrap(), "name=ghcr.io/somebody\n");
    let registry = "${{ needs.prepare.outputs.registry }}";
    for job in ["build", "publish"] {
        assert_eq!(release["jobs"][job]["env"]["IMAGE"], format!("{registry}/tributary-agent"), "{job}");
    }
    assert_eq!(release["jobs"]["publish"]["env"]["REGISTRY"], registry);
}

/// krew unpacks files and directories, and refuses an archive that has a link.
#[test]
fn the_archive_of_agentctl_has_the_program_and_its_licence_and_no_link() {
    let release = workflow("release");
    let directory = tempfile::tempdir().unwrap();
    let built = directory.path().join("target/here/release");
    fs::create_dir_all(&built).unwrap();
    fs::write(built.join("agentctl"), "").unwrap();
    fs::copy(repository().join("LICENSE"), directory.path().join("LICENSE")).unwrap();
    let pack = script(&release, "build", "tar -C").replace("${{ matrix.target }}", "here");
    bash(&pack, directory.path(), &[]);
    let found = bash(
        "mkdir there; tar -C there -xzf agentctl-here.tar.gz; find there -type f | sort; find there -type l",
        directory.path(),
        &[],
    );
    assert_eq!(found, "there/LICENSE\nthere/agentctl\n");
}

/// krew installs what the release has, under the names that the workflow gives.
#[test]
fn krew_is_told_of_the_archives_of_the_release() {
    let (directory, version) = (tempfile::tempdir().unwrap(), env!("CARGO_PKG_VERSION"));
    let release = workflow("release");
    let matrix = release["jobs"]["build"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let archive = |build: &Value| format!("agentctl-{}.tar.gz", build["target"].as_str().unwrap());
    for build in matrix {
        fs::write(directory.path().join(archive(build)), archive(build)).unwrap();
    }
    let (repository_url, tag) = ("https://git.example.org/SomeBody/tributary", format!("v{version}"));
    let step = script(&release, "publish", ".ci/krew-manifest");
    let step = step.replace(".ci/", &format!("{}/.ci/", repository().display()));
    bash(&step, directory.path(), &[("REPOSITORY", repository_url), ("GITHUB_REF_NAME", &tag)]);
    let text = fs::read_to_string(directory.path().join("tributary.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!((&manifest["metadata"]["name"], &manifest["spec"]["version"]), (&"tributary".into(), &tag.into()));
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), matrix.len());
    for (platform, build) in platforms.iter().zip(matrix) {
        let labels = &platform["selector"]["matchLabels"];
        let built_for = format!("{}/{}", labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        assert_eq!(build["platform"], built_for);
        assert_eq!(platform["uri"], format!("{repository_url}/releases/download/v{version}/{}", archive(build)));
        let checksum = bash(&format!("sha256sum < {}", archive(build)), directory.path(), &[]);
        assert_eq!(Some(platform["sha256"].as_str().unwrap()), checksum.split_whitespace().next());
        assert_eq!(platform["bin"], "agentctl");
    }
    let made = script(&release, "publish", "gh release create");
    assert!(made.contains(" ./*.tgz tributary.yaml SHA256SUMS"), "{made}");
    let page = file("src/guide/installing.md");
    assert!(page.contains(&format!("/releases/download/v{version}/tributary.yaml`")));
}

/// Platforms that are built side by side must not find each other's programs; and what is released is built before.
#[test]
fn the_image_is_built_by_the_checks_and_each_platform_for_itself() {
    let ci = workflow("ci");
    let build = script(&ci, "image", "docker build");
    assert!(build.contains("--file agent/Dockerfile") && !build.contains("--target"), "{build}");
    let image = file("agent/Dockerfile");
    let caches: Vec<&str> = image.split("--mount=type=cache,").skip(1).collect();
    assert_eq!(caches.len(), 2, "{caches:?}");
    for cache in caches {
        let id = cache.split(',').find_map(|option| option.trim().strip_prefix("id="));
        assert!(id.is_some_and(|id| id.ends_with("-$TARGETARCH")), "all platforms have one cache: {cache}");
    }
    let stage = image.split("\nFROM ").find(|stage| stage.contains("--mount=type=cache,")).unwrap();
    let declared = stage.find("\nARG TARGETARCH\n").expect("without ARG the variable is empty");
    assert!(declared < stage.find("--mount").unwrap());
}

/// The chart of a release pulls the image of that release, and leads to what stands beside it; the one of the sources
/// names no registry at all.
#[test]
fn charts_of_a_release_lead_to_that_release() {
    let release = workflow("release");
    let publish = script(&release, "publish", "helm push");
    assert!(
        publish.starts_with(".ci/package-charts \"$REGISTRY\" \"$REPOSITORY\" \"$GITHUB_REF_NAME\" packages\n"),
        "{publish}"
    );
    let sources = file("charts/tributary/values.yaml");
    let (directory, version) = (tempfile::tempdir().unwrap(), env!("CARGO_PKG_VERSION"));
    let (registry, repository_url) = ("ghcr.io/somebody", "https://git.example.org/SomeBody/tributary");
    let mut command = Command::new(repository().join(".ci/package-charts"));
    command.args([registry, repository_url, "v9.8.7"]).arg(directory.path());
    let output = command.env("HELM", chart::helm_program()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(file("charts/tributary/values.yaml"), sources);
    assert!(sources.lines().any(|line| line == "  repository: tributary-agent"));

    let mut links = 0;
    for name in ["tributary", "tributary-crds"] {
        bash(&format!("tar -xzf {name}-{version}.tgz"), directory.path(), &[]);
        let folder = directory.path().join(name);
        for page in ["README.md", "values.yaml"] {
            let text = fs::read_to_string(folder.join(page)).unwrap();
            for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
                let path = link.split('#').next().unwrap();
                let shown = path.strip_prefix(&format!("{repository_url}/blob/v9.8.7/"));
                let there = shown.map_or(folder.join(path), |path| repository().join(path));
                assert!(there.is_file(), "{name}/{page} leads nowhere: {link}");
                links += usize::from(shown.is_some());
            }
            assert!(!text.contains("docker build") && !text.contains("agent/Dockerfile"), "{name}/{page}: of what?");
            for line in text.lines().filter(|line| line.starts_with("$ helm ") && !line.contains(" uninstall ")) {
                assert!(line.contains(&format!(" oci://{registry}/charts/{name} --version 9.8.7 ")), "{line}");
                assert!(!line.contains("REGISTRY"), "{line}");
            }
        }
        let manifest: Value = serde_saphyr::from_str(&fs::read_to_string(folder.join("Chart.yaml")).unwrap()).unwrap();
        assert_eq!(manifest["home"], repository_url, "{name}");
        assert_eq!(manifest["sources"][0], format!("{repository_url}/tree/v9.8.7"), "{name}");
        annotated(name, &manifest, &format!("{repository_url}/blob/v9.8.7/"));
    }
    assert!(links > 3, "{links} links were rewritten");

    let set = "cluster.name=east,crds.enabled=false,metrics.prometheusRule.enabled=true";
    let package = format!("tributary-{version}.tgz");
    let arguments = ["template", "tributary", &package, "--set", set, "--kube-version", chart::KUBERNETES];
    let output = chart::helm(directory.path(), None, &arguments).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let objects = chart::objects(&String::from_utf8(output.stdout).unwrap());
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    let container = &of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], format!("{registry}/tributary-agent:{version}"));
    let manifest = bash("cat tributary/Chart.yaml", directory.path(), &[]);
    let images = annotation(&serde_saphyr::from_str(&manifest).unwrap(), "images");
    assert_eq!(images[0]["image"], format!("{registry}/tributary-agent:9.8.7"));
    let built = release["jobs"]["build"]["strategy"]["matrix"]["include"].as_array().unwrap().iter();
    let built: Vec<&Value> = built.map(|build| &build["platform"]).collect();
    assert_eq!(images[0]["platforms"].as_array().unwrap().iter().collect::<Vec<_>>(), built);
    for alert in of_kind("PrometheusRule")["spec"]["groups"][0]["rules"].as_array().unwrap() {
        let guide = alert["annotations"]["guide"].as_str().unwrap();
        assert_eq!(alert["annotations"]["runbook_url"], format!("{repository_url}/blob/v9.8.7/{guide}"));
    }
}

fn annotation(manifest: &Value, name: &str) -> Value {
    serde_saphyr::from_str(manifest["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap()).unwrap()
}

/// What Artifact Hub shows of a chart: files that there are, and each item of the notes.
fn annotated(name: &str, manifest: &Value, shown: &str) {
    assert!(file("Cargo.toml").contains("\nlicense = \"Apache-2.0\"\n"));
    assert_eq!(manifest["annotations"]["artifacthub.io/license"], "Apache-2.0", "{name}");
    for link in annotation(manifest, "links").as_array().unwrap() {
        let path = link["url"].as_str().unwrap().strip_prefix(shown);
        assert!(path.is_some_and(|path| repository().join(path).is_file()), "{name}: {link}");
    }
    let changes = annotation(manifest, "changes");
    let notes = String::from_utf8(notes(env!("CARGO_PKG_VERSION")).stdout).unwrap();
    let items = notes.lines().filter(|line| line.starts_with("- ")).count();
    assert_eq!(changes.as_array().unwrap().len(), items, "{name}: {changes}");
    for change in changes.as_array().unwrap() {
        assert!(change.as_str().is_some_and(|text| text.len() > 20 && !text.contains("](")), "{name}: {change}");
    }
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
    assert!(release["jobs"]["publish"]["env"]["IMAGE"].as_str().unwrap().ends_with("/tributary-agent"));
    assert!(text.contains("oci://$REGISTRY/charts\"") && section.contains("`ghcr.io/OWNER`"));
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
