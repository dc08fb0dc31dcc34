//! Every example and probe: which of the user's shell runs, in which order, and what Flux is asked, by role.

use std::fmt::Write as _;

use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, Rendered, render};
use tributary_tests::corpus::{Document, documents};

use super::pod::Pod;

/// The lead's broker ends at once; a follower's tells its script to end, which would start it for ever.
const BROKER: &str = r#"if [[ $1 == start && $HOSTNAME != *-0 ]]; then kill -TERM "$PPID"; fi"#;

/// Files that hold the user's own shell, which is not for this machine to run.
const USERS: [&str; 7] = ["init", "pre", "broker-pre", "worker-pre", "service-pre", "command", "post"];

#[test]
fn the_corpus_asks_flux_for_what_it_says() {
    let documents = documents().unwrap();
    let parts: Vec<&[Document]> = documents.chunks(documents.len().div_ceil(4)).collect();
    let shown: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .into_iter()
            .map(|part| scope.spawn(move || part.iter().filter_map(show).collect::<String>()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    insta::assert_snapshot!(shown.concat());
}

fn show(document: &Document) -> Option<String> {
    let mut mini_cluster: MiniCluster = serde_json::from_value(document.value.clone()).unwrap();
    mini_cluster.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    mini_cluster.metadata.uid = Some("uid".to_owned());
    let rendered = render(&mini_cluster, &Context::default()).ok()?;
    let mut text = format!("=== {}\n", document.file);
    let mut scripts: Vec<&String> = rendered.boot.files.keys().collect();
    scripts.sort();
    for (index, role) in [(0, "first pod"), (1, "other pods")] {
        for key in &scripts {
            let runs = index == 0 && (key.starts_with("start-") || key.starts_with("services-"));
            if key.starts_with("wait-") && !key.contains('.') || runs && is_entry(key) {
                show_run(&mut text, role, key, &pod(&mini_cluster, &rendered, index));
            }
        }
        if mini_cluster.spec.max_size() == 1 {
            break;
        }
    }
    Some(text)
}

/// Whether it is a script that a container starts with.
fn is_entry(key: &str) -> bool {
    key.rsplit_once('-').is_some_and(|(name, index)| {
        ["start", "services"].contains(&name) && index.trim_end_matches(".sh").chars().all(|c| c.is_ascii_digit())
    })
}

fn pod(mini_cluster: &MiniCluster, rendered: &Rendered, index: u32) -> Pod {
    let pod = Pod::of(mini_cluster, rendered, index);
    pod.behave(BROKER);
    // The lead waits for its followers at the end, and here are none.
    pod.program("bin/sleep", "#!/bin/bash\n");
    // What the init script would leave behind, without a copy of the view for each.
    for folder in ["curve", "run", "var/lib", "etc/flux/system"] {
        std::fs::create_dir_all(pod.path(&format!("{}/config/{folder}", &mini_cluster.spec.flux.mount_path()[1..])))
            .unwrap();
    }
    for (key, script) in &rendered.boot.files {
        if key.starts_with("start-") {
            // The container that runs Flux, with which it ends, is not here.
            let waits = "while [[ -z $_terminating ]]; do _pause 60; done\n";
            pod.write(
                &format!("flux_operator/{key}.sh"),
                &pod.read(&format!("flux_operator/{key}.sh")).replace(waits, ""),
            );
            assert_eq!(script.matches(waits).count(), 1, "{key}");
        }
        let name = key.strip_prefix("services-").unwrap_or(key);
        let users = name.strip_suffix(".sh").and_then(|name| name.rsplit_once('-'));
        if users.is_some_and(|(hook, _)| USERS.contains(&hook)) {
            pod.write(&format!("flux_operator/{key}"), &format!("echo '. {key}' >>$ROOT/calls\n"));
        }
    }
    pod
}

fn show_run(text: &mut String, role: &str, key: &str, pod: &Pod) {
    let _socket = key.starts_with("start-").then(|| pod.socket());
    let script = if key.contains('.') { key.to_owned() } else { format!("{key}.sh") };
    let (code, printed) = pod.run(&script);
    writeln!(text, "{role}: {key} ends with {}", code.unwrap()).unwrap();
    for call in pod.calls() {
        writeln!(text, "  {call}").unwrap();
    }
    for complaint in printed.lines().filter(|line| line.contains(".sh: line ")) {
        writeln!(text, "  ! {}", pod.seen(complaint)).unwrap();
    }
}
