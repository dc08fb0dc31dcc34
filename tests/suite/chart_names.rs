//! Names and labels that the charts make of what others choose: the version of a package, the name of a release.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tributary_tests::chart::{self, charts};

/// The charts in `directory`, as packages of this version.
fn copied(directory: &Path, version: &str) {
    let copied = Command::new("cp").arg("-R").arg(charts().join("tributary")).arg(directory).status().unwrap();
    assert!(copied.success());
    for chart in ["tributary", "tributary/charts/tributary-crds"] {
        let manifest = directory.join(chart).join("Chart.yaml");
        let text = fs::read_to_string(&manifest).unwrap();
        let own = format!("\nversion: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&own), "{chart}");
        fs::write(&manifest, text.replace(&own, &format!("\nversion: {version}\n"))).unwrap();
    }
}

fn rendered(directory: &Path, release: &str, more: &[&str]) -> Output {
    let arguments = ["template", release, "tributary", "--namespace", "agents", "--set", "cluster.name=east"];
    chart::helm(directory, None, &[&arguments[..], &["--kube-version", chart::KUBERNETES], more].concat()).unwrap()
}

/// As the API server has it: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>.
fn is_label_value(value: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = [value.chars().next(), value.chars().last()];
    value.len() <= 63 && value.chars().all(allowed) && ends.iter().flatten().all(char::is_ascii_alphanumeric)
}

/// Every label in an object, also those of pods and selectors, with where it is.
fn labels<'a>(value: &'a Value, path: &str, into: &mut Vec<(String, &'a Value)>) {
    let Value::Object(fields) = value else {
        return value.as_array().into_iter().flatten().for_each(|one| labels(one, path, into));
    };
    for (key, value) in fields {
        let path = format!("{path}.{key}");
        match (key.as_str(), value) {
            ("labels" | "matchLabels", Value::Object(found)) => {
                into.extend(found.iter().map(|(key, value)| (format!("{path}.{key}"), value)));
            }
            _ => labels(value, &path, into),
        }
    }
}

/// Flux CD adds `+` and the digest to the version, and others a whole commit.
#[test]
fn labels_are_valid_whatever_the_version_of_the_package_is() {
    let long = format!("0.1.0-{}.x", "a".repeat(39));
    for (version, expected) in [
        ("0.1.0", "-0.1.0"),
        ("0.1.0+2b3c4d5e6f70", "-0.1.0_2b3c4d5e6f70"),
        // The 63rd character of the agent's is the dot.
        (&long, long.strip_suffix(".x").unwrap()),
    ] {
        let directory = tempfile::tempdir().unwrap();
        copied(directory.path(), version);
        let more = "metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true,networkPolicy.enabled=true";
        let output = rendered(directory.path(), "tributary", &["--set", more]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let objects = chart::objects(&String::from_utf8(output.stdout).unwrap());
        let mut charts = Vec::new();
        for object in &objects {
            let name = format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
            let mut found = Vec::new();
            // What is in a definition is a schema.
            labels(&object["metadata"], "", &mut found);
            if object["kind"] != "CustomResourceDefinition" {
                labels(&object["spec"], "", &mut found);
            }
            for (key, value) in found {
                let value = value.as_str().unwrap_or_else(|| panic!("{name}{key} is no text: {value}"));
                assert!(is_label_value(value), "{version}: {name}{key} is {value:?}");
            }
            charts.push(object["metadata"]["labels"]["helm.sh/chart"].as_str().unwrap().to_owned());
        }
        assert!(charts.iter().any(|chart| chart.starts_with("tributary-crds-")), "{charts:?}");
        assert!(charts.iter().all(|chart| chart.contains(expected)), "{version}: {charts:?}");
    }
}

/// Of the release's name, unless `fullnameOverride` is set; that of a Service is narrower than that of a release.
#[test]
fn a_release_whose_name_no_service_can_have_is_refused() {
    for (release, set, valid) in [
        ("river", "nameOverride=", true),
        ("river-2", "nameOverride=", true),
        ("2nd", "nameOverride=", false),
        ("river.east", "nameOverride=", false),
        ("2nd", "fullnameOverride=second", true),
    ] {
        let output = rendered(&charts(), release, &["--set", set]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), valid, "{release}, {set}: {said}");
        assert!(valid || said.contains("choose another release name, or set fullnameOverride"), "{release}: {said}");
    }
}
