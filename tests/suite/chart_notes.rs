//! What helm prints when it has installed: the commands that come next, for what was set.

use std::fs;
use std::process::Command;

use clap::Parser;
use tributary_agentctl::cli::Cli;
use tributary_tests::chart::{self, charts};

/// The notes for these values. `helm template` leaves them out: in this copy of the chart they are a template like others.
fn notes(values: &str) -> String {
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-R").arg(charts().join("tributary")).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    let templates = copy.path().join("tributary/templates");
    let text = fs::read_to_string(templates.join("NOTES.txt")).unwrap();
    fs::write(templates.join("_notes.tpl"), format!("{{{{- define \"notes\" -}}}}\n{text}\n{{{{- end -}}}}\n"))
        .unwrap();
    fs::write(templates.join("notes.yaml"), "notes: |\n  {{- include \"notes\" . | nindent 2 }}\n").unwrap();
    fs::write(copy.path().join("values.yaml"), format!("{{cluster: {{name: east}}, {values}}}")).unwrap();
    let arguments = ["template", "river", "tributary", "--namespace", "agents", "--values", "values.yaml"];
    let only = ["--kube-version", chart::KUBERNETES, "--show-only", "templates/notes.yaml"];
    let output = chart::helm(copy.path(), None, &[&arguments[..], &only].concat()).unwrap();
    assert!(output.status.success(), "{values}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Addresses of peers are seen with the policy Local alone.
const FROM: &str = "networkPolicy: {enabled: true, federationFrom: [{ipBlock: {cidr: 192.0.2.0/24}}]}";
const FROM_LOCAL: &str = "networkPolicy: {enabled: true, federationFrom: [{ipBlock: {cidr: 192.0.2.0/24}}]}, \
                          federation: {service: {externalTrafficPolicy: Local}}";

#[test]
fn the_notes_say_what_comes_next() {
    for (values, said, unsaid) in [
        ("", &["deployment/river-tributary", " check --wait 60s", "--import default"][..], &["its ports"][..]),
        // Bursts of peers can only be where this agent works.
        ("watchNamespaces: [research, teaching]", &["--import research"], &["--import default"]),
        ("watchNamespaces: [research, default]", &["--import default"], &["--import research"]),
        ("federation: {enabled: false}", &["peers with nobody", " check "], &[" link ", " token "]),
        ("image: {repository: registry.example/agent}", &[], &["of no registry"]),
        ("hostNetwork: true", &["2 of them"], &["stands still"]),
        ("hostNetwork: true, strategy: {type: RollingUpdate}", &["stands still"], &[]),
        ("hostNetwork: true, strategy: {rollingUpdate: {maxSurge: 0}}", &["its ports"], &["stands still"]),
        ("hostNetwork: true, strategy: {type: Recreate}", &["its ports"], &["stands still"]),
        ("federation: {service: {nodePort: 7946}}", &["nodePort=7946 is not in 30000-32767"], &[]),
        ("federation: {service: {type: ClusterIP}}", &["has to dial its peers"], &[]),
        (FROM, &["externalTrafficPolicy is not Local"], &[]),
        (FROM_LOCAL, &[], &["externalTrafficPolicy is not Local"]),
        ("networkPolicy: {enabled: true}", &[], &["externalTrafficPolicy is not Local"]),
    ] {
        let notes = notes(values);
        for text in said {
            assert!(notes.contains(text), "{values}: {text} is missing\n{notes}");
        }
        for text in unsaid {
            assert!(!notes.contains(text), "{values}: {text}\n{notes}");
        }
        let commands = notes.lines().map(str::trim).filter(|line| line.starts_with("agentctl "));
        let mut found = 0;
        for line in commands {
            Cli::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{values}: {line}\n{error}"));
            assert!(line.contains("--agent-namespace agents"), "{line}");
            found += 1;
        }
        assert!(found > 0, "{values}: no command");
    }
}
