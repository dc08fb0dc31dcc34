//! Every example and probe is rendered, or refused with sentences; none is dropped silently, none panics.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::json;
use tributary::api::minicluster::MiniCluster;
use tributary::render::{Boot, Context, Rendered, render};
use tributary_tests::corpus::documents;

/// The corpus files that cannot run as they are written, and what their user is told.
const REFUSED: [(&str, &str); 15] = [
    ("probes/bursting-lead-no-port.yaml", SAME_NAME),
    ("probes/bursting-lead-size2.yaml", SAME_NAME),
    (
        "probes/flux-curvecert-brokerconfig.yaml",
        "spec.flux.curveCert: failed to parse the curve certificate: line 1 is not what Flux reads; make one with flux \
         keygen, or leave it out and one is made",
    ),
    (
        "probes/name-60-chars.yaml",
        "metadata.name: the MiniCluster \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\" has 60 characters, \
         at most 52 are possible: names of other objects and host names are made from it; choose a shorter one",
    ),
    (
        "probes/name-digit.yaml",
        "metadata.name: the MiniCluster \"1cluster\" cannot be the name of a service: use lower case letters, digits and \
         '-', begin with a letter and end with a letter or a digit",
    ),
    (
        "probes/name-dots.yaml",
        "metadata.name: the MiniCluster \"my.cluster\" cannot be the name of a service: use lower case letters, digits and \
         '-', begin with a letter and end with a letter or a digit",
    ),
    (
        "probes/pod-resources-overhead.yaml",
        "spec.pod.resources: an overhead of pods needs a runtime class that declares the same: write pod.runtimeClassName, or \
         put what a container needs into its own resources",
    ),
    ("probes/refuse-claim-no-path.yaml", NO_PATH),
    ("probes/refuse-hostpath-no-path.yaml", NO_PATH),
    ("probes/refuse-min-gt-max.yaml", "spec.minSize: minSize 4 is more than maxSize 3: Flux would never start"),
    ("probes/refuse-min-gt-size.yaml", "spec.minSize: minSize 4 is more than size 2: Flux would never start"),
    ("probes/refuse-no-containers.yaml", "spec.containers: there is no container: at least one is needed, to run Flux"),
    (
        "probes/refuse-script-and-command.yaml",
        "spec.containers[0].commands.script: command and commands.script are both written: a container that runs Flux runs \
         one of them",
    ),
    (
        "probes/refuse-service-no-name.yaml",
        "spec.services[0].name: name is missing: every container that does not run Flux needs one",
    ),
    (
        "probes/refuse-sidecar-no-name.yaml",
        "spec.containers[1].name: name is missing: every container that does not run Flux needs one",
    ),
];

const SAME_NAME: &str = "metadata.name: the root named by leadBroker has this name: a burst needs another one, for its \
                         hosts have the names of other ranks";
const NO_PATH: &str = "spec.containers[0].volumes.d: path is missing: say where the container sees the volume";

fn corpus() -> BTreeMap<String, MiniCluster> {
    let parse = |file: &str, value| serde_json::from_value(value).unwrap_or_else(|error| panic!("{file}: {error}"));
    let documents = documents().unwrap().into_iter();
    let mut corpus: BTreeMap<String, MiniCluster> =
        documents.map(|document| (document.file.clone(), parse(&document.file, document.value))).collect();
    for mini_cluster in corpus.values_mut() {
        mini_cluster.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        mini_cluster.metadata.uid = Some("uid".to_owned());
    }
    corpus
}

fn rendered() -> BTreeMap<String, Rendered> {
    let context = Context::default();
    corpus().into_iter().filter_map(|(file, cluster)| Some((file, render(&cluster, &context).ok()?))).collect()
}

#[test]
fn every_file_is_rendered_or_refused_with_a_sentence() {
    let refused: Vec<(String, String)> = corpus()
        .into_iter()
        .filter_map(|(file, cluster)| Some((file, render(&cluster, &Context::default()).err()?.to_string())))
        .collect();
    let refused: Vec<(&str, &str)> = refused.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
    assert_eq!(refused, REFUSED);
}

/// The objects of every example, one snapshot each. What is in the files is for the tests of the scripts.
#[test]
fn every_file_is_rendered_to_these_objects() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots/corpus");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let _bound = settings.bind_to_scope();
    for (file, rendered) in rendered() {
        let name = file.trim_end_matches(".yaml").replace('/', "-");
        insta::assert_snapshot!(name, objects(rendered));
    }
}

fn objects(mut rendered: Rendered) -> String {
    let annotations = rendered.job.metadata.annotations.get_or_insert_default();
    annotations.retain(|name, _| !name.starts_with("tributary.dev/boot"));
    let files: Vec<_> = rendered.config_map.data.take().unwrap_or_default().into_keys().collect();
    let mut text = format!("files: {}\n", files.join(" "));
    let services = rendered.services.into_iter().map(|service| json!(service));
    let pod = rendered.service_pod.into_iter().map(|pod| json!(pod));
    for object in std::iter::once(json!(rendered.config_map)).chain(services).chain(pod).chain([json!(rendered.job)]) {
        text += &format!("---\n{}", serde_saphyr::to_string(&object).unwrap());
    }
    text
}

#[test]
fn rendering_the_corpus_is_deterministic_and_its_boot_files_survive_the_annotation() {
    let again = rendered();
    for (file, rendered) in rendered() {
        assert_eq!(rendered, again[&file], "{file}");
        let annotations = rendered.frozen_job().metadata.annotations.unwrap();
        assert_eq!(Boot::decode(&annotations["tributary.dev/boot"]).unwrap(), rendered.boot, "{file}");
    }
}

#[test]
fn every_script_of_the_corpus_is_shell() {
    for (file, rendered) in rendered() {
        for (key, text) in rendered.boot.files.iter().filter(|(_, text)| text.starts_with("#!/bin/")) {
            let shell = if text.starts_with("#!/bin/sh\n") { "sh" } else { "bash" };
            let mut check = Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            std::io::Write::write_all(check.stdin.as_mut().unwrap(), text.as_bytes()).unwrap();
            let output = check.wait_with_output().unwrap();
            assert!(output.status.success(), "{file} {key}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn every_mount_of_the_corpus_has_its_volume_and_every_file_its_key() {
    for (file, rendered) in rendered() {
        let job = rendered.job.spec.unwrap().template.spec.unwrap();
        let pods = std::iter::once(job).chain(rendered.service_pod.and_then(|pod| pod.spec));
        for pod in pods {
            let volumes = pod.volumes.unwrap_or_default();
            let names: Vec<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
            let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
            for mount in containers.flat_map(|container| container.volume_mounts.iter().flatten()) {
                assert!(names.contains(&mount.name.as_str()), "{file}: {} of {names:?}", mount.name);
            }
            let ours = volumes.iter().filter(|volume| volume.name.ends_with("-entrypoint"));
            for item in
                ours.flat_map(|volume| volume.config_map.iter()).flat_map(|source| source.items.iter().flatten())
            {
                assert!(rendered.boot.files.contains_key(&item.key), "{file}: {}", item.key);
            }
        }
    }
}
