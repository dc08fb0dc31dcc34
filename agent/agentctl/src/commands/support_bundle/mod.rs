//! `agentctl support-bundle`: what somebody who helps has to see, in one file, without secrets.
//!
//! Secrets are never asked for; everything else goes through [`redact`]. Events and quotas of applications that have nothing
//! to do with Tributary stay out.

mod redact;

use std::collections::BTreeSet;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, LogParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::cluster::error::chain;

use crate::cli::{SupportBundle, Target};
use crate::commands::check;
use crate::connect::{self, Agent, POD_SELECTOR};
use crate::error::{Failure, Result, failed};
use crate::{document, kubernetes, output};

/// Most bytes of one agent's log.
const LOG_BYTES: i64 = 8 * 1024 * 1024;

/// Group, version, kind, plural, labels.
type Kind = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// What is asked for in all namespaces, or in the one that was named.
const KINDS: [Kind; 10] = [
    ("flux-framework.org", "v1alpha2", "MiniCluster", "miniclusters", ""),
    ("tributary.dev", "v1alpha1", "Burst", "bursts", ""),
    ("tributary.dev", "v1alpha1", "HostedBurst", "hostedbursts", ""),
    ("tributary.dev", "v1alpha1", "FluxSetup", "fluxsetups", ""),
    ("tributary.dev", "v1alpha1", "FluxJob", "fluxjobs", ""),
    ("batch", "v1", "Job", "jobs", "app.kubernetes.io/managed-by=tributary"),
    ("", "v1", "Pod", "pods", "app.kubernetes.io/managed-by=tributary"),
    ("", "v1", "Service", "services", "app.kubernetes.io/managed-by=tributary"),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "endpointslice.kubernetes.io/managed-by=tributary"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "app.kubernetes.io/managed-by=tributary"),
];

/// The same of the agent's own namespace.
const OF_AGENT: [Kind; 6] = [
    ("tributary.dev", "v1alpha1", "ClusterPeer", "clusterpeers", ""),
    ("apps", "v1", "Deployment", "deployments", POD_SELECTOR),
    ("", "v1", "Pod", "pods", POD_SELECTOR),
    ("", "v1", "Service", "services", ""),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", ""),
    ("coordination.k8s.io", "v1", "Lease", "leases", ""),
];

const NODES: [Kind; 1] = [("", "v1", "Node", "nodes", "")];

/// What bears on all these, and is asked for after them.
const AROUND: [Kind; 2] = [("", "v1", "ResourceQuota", "resourcequotas", ""), ("", "v1", "Event", "events", "")];

/// Kind, namespace and name of the objects that a bundle has.
#[derive(Debug, Default)]
struct Packed(BTreeSet<[String; 3]>);

impl Packed {
    fn add(&mut self, kind: &str, object: &Value) {
        self.0.insert(key(kind, &object["metadata"]));
    }

    /// Whether an object is packed: an event about one that is, or about what is made of it and may be gone by now; a quota beside
    /// one, or anything else that is asked for.
    fn takes(&self, kind: &str, object: &Value) -> bool {
        match kind {
            "Event" => {
                let of = &object["involvedObject"];
                let [kind, namespace, name] = key(of["kind"].as_str().unwrap_or_default(), of);
                let made_of = |other: &String| name.strip_prefix(&**other).is_some_and(|rest| rest.starts_with('-'));
                let is_ours = |[_, of, other]: &[String; 3]| *of == namespace && made_of(other);
                self.0.contains(&[kind, namespace.clone(), name.clone()]) || self.0.iter().any(is_ours)
            }
            "ResourceQuota" => {
                let [_, namespace, _] = key(kind, &object["metadata"]);
                self.0.iter().any(|[_, other, _]| *other == namespace)
            }
            _ => true,
        }
    }
}

/// `of`: where namespace and name are.
fn key(kind: &str, of: &Value) -> [String; 3] {
    [kind, of["namespace"].as_str().unwrap_or_default(), of["name"].as_str().unwrap_or_default()].map(str::to_owned)
}

/// The files of a bundle.
#[derive(Debug, Default)]
struct Files(Vec<(String, String)>);

impl Files {
    fn add(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.0.push((name.into(), text.into()));
    }

    /// What was read, or why it was not.
    fn read(&mut self, name: &str, text: Result<String>) {
        match text {
            Ok(text) => self.add(name, text),
            Err(failure) => self.add(format!("{name}.error"), failure.line() + "\n"),
        }
    }
}

/// Runs `agentctl support-bundle`.
pub(crate) async fn run(target: &Target, bundle: &SupportBundle) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let mut files = Files::default();
    files.add("agentctl-version.txt", concat!(env!("CARGO_PKG_VERSION"), "\n"));
    // An API server that is silent is waited for once.
    let (answers, report, status) = tokio::join!(kubernetes::answers(&client), check::look(target), status(target));
    files.add("check.txt", check::report::text(&report?));
    files.read("status.json", status);
    match answers {
        Ok(()) => cluster(&client, target, bundle, &mut files).await,
        Err(failure) => files.read("cluster", Err(failure)),
    }
    write(&bundle.out, &files)?;
    let missing: Vec<_> = files.0.iter().filter_map(|(name, _)| name.strip_suffix(".error")).collect();
    if !missing.is_empty() {
        output::remark(&format!("not read: {} (the bundle says why)", missing.join(", ")));
    }
    output::print(&format!("{}\n", bundle.out.display()))
}

/// What the API server has, and what the agents' pods say.
async fn cluster(client: &Client, target: &Target, bundle: &SupportBundle, files: &mut Files) {
    let (all, own) = (target.namespace.as_deref(), Some(target.agent_namespace.as_str()));
    let asked = [
        ("objects", all, &KINDS[..]),
        ("agent", own, &OF_AGENT[..]),
        ("objects", None, &NODES[..]),
        ("objects", all, &AROUND[..]),
    ];
    let mut packed = Packed::default();
    for (folder, namespace, kinds) in asked {
        for kind in kinds {
            let name = format!("{folder}/{}.json", kind.3);
            files.read(&name, objects(client, namespace, kind, &mut packed).await);
        }
    }
    agents(client, target, bundle, files).await;
}

/// What the agents say of all clusters.
async fn status(target: &Target) -> Result<String> {
    let document: Value = Agent::find(target).await?.read(tributary::admin::STATUS).await?;
    document::json(&document)
}

/// All objects of a kind that are packed, without what their users have written into them.
async fn objects(
    client: &Client,
    namespace: Option<&str>,
    &(group, version, kind, plural, labels): &Kind,
    packed: &mut Packed,
) -> Result<String> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let found = api.list(&ListParams::default().labels(labels)).await;
    let found = found.map_err(failed(format!("failed to list {plural}"), format!("may you list {plural}?")))?;
    let mut shown = Vec::new();
    for object in &found.items {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        value["kind"] = kind.into();
        if packed.takes(kind, &value) {
            packed.add(kind, &value);
            shown.push(redact::object(&value));
        }
    }
    document::json(&json!({"kind": format!("{kind}List"), "items": shown}))
}

/// Logs and metrics of the agents' pods. Agents write no secrets there.
async fn agents(client: &Client, target: &Target, bundle: &SupportBundle, files: &mut Files) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &target.agent_namespace);
    let found = match pods.list(&ListParams::default().labels(POD_SELECTOR)).await {
        Ok(found) => found.items,
        Err(error) => return files.add("agent/logs.error", chain(&error) + "\n"),
    };
    for pod in found {
        let name = pod.name_any();
        for previous in [false, true] {
            let file = format!("agent/{name}{}.log", if previous { "-before" } else { "" });
            match log(&pods, &name, i64::from(bundle.lines), previous).await {
                // There is a log of before only where a container was started again.
                Err(_) if previous => {}
                text => files.read(&file, text),
            }
        }
        let metrics = connect::pod_text(&pods, &pod, "/metrics").await;
        files.read(&format!("agent/{name}.metrics"), metrics);
    }
}

async fn log(pods: &Api<Pod>, name: &str, lines: i64, previous: bool) -> Result<String> {
    let failed = || Failure::new(format!("failed to read the log of pod {name}")).hint("may you read pods/log there?");
    let which = LogParams {
        tail_lines: Some(lines),
        limit_bytes: Some(LOG_BYTES),
        previous,
        timestamps: true,
        ..LogParams::default()
    };
    let mut stream = pods.log_stream(name, &which).await.map_err(|error| failed().because(error))?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.map_err(|error| failed().because(error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// One folder of files, as tar.gz. It is written beside its name first: half a bundle helps nobody.
fn write(out: &Path, files: &Files) -> Result<()> {
    let failed = failed(format!("failed to write {}", out.display()), "name another file with --out FILE");
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(directory).map_err(&failed)?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in &files.0 {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("tributary-support/{name}"), text.as_bytes()).map_err(&failed)?;
    }
    let file = archive.into_inner().and_then(GzEncoder::finish).map_err(&failed)?;
    file.persist(out).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;
    use crate::endpoint::tests::{server, target};

    /// The danger: who helps with one MiniCluster reads of every application of the cluster.
    #[test]
    fn events_and_quotas_of_others_are_not_packed() {
        let object = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let event = |kind: &str, namespace: &str, name: &str| {
            let of = json!({"kind": kind, "namespace": namespace, "name": name});
            json!({"metadata": {"namespace": namespace, "name": "an-event"}, "involvedObject": of})
        };
        let mut packed = Packed::default();
        packed.add("MiniCluster", &object("flux", "lake"));
        packed.add("Pod", &object("tributary-system", "tributary-7d4f"));
        packed.add("Node", &json!({"metadata": {"name": "node-1"}}));
        for (event, wanted) in [
            (event("MiniCluster", "flux", "lake"), true),
            (event("Pod", "tributary-system", "tributary-7d4f"), true),
            (json!({"metadata": {"namespace": "default"}, "involvedObject": {"kind": "Node", "name": "node-1"}}), true),
            (event("Pod", "flux", "lake-0-gone"), true),
            (event("PersistentVolumeClaim", "flux", "lakeside"), false),
            (event("Pod", "flux", "shop-0"), false),
            (event("MiniCluster", "shop", "lake"), false),
            (json!({"metadata": {"namespace": "flux"}}), false),
        ] {
            assert_eq!(packed.takes("Event", &event), wanted, "{event}");
        }
        let quotas = ["flux", "shop"].map(|namespace| packed.takes("ResourceQuota", &object(namespace, "team")));
        assert_eq!(quotas, [true, false]);
        assert!(packed.takes("Service", &object("shop", "web")));
    }

    /// Path, mode and text of each file.
    fn unpacked(bundle: &Path) -> Vec<(String, u32, String)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(bundle).unwrap()));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap(), text)
        });
        entries.collect()
    }

    /// The danger: the API server is down, and who asks for help has nothing to send.
    #[tokio::test(start_paused = true)]
    async fn what_is_said_without_the_api_server_is_packed() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("west", &silent.local_addr().unwrap().to_string())]);
        let agent = server([("/v1/status", "200 OK", "{}".to_owned())]).await;
        let target = Target { endpoint: Some(format!("http://{agent}")), ..target };
        let bundle = SupportBundle { out: directory.path().join("a.tar.gz"), lines: 1 };
        let began = Instant::now();
        run(&target, &bundle).await.unwrap();
        assert!(began.elapsed() < 2 * kubernetes::SILENCE_LIMIT);
        let files: Vec<_> = unpacked(&bundle.out).into_iter().map(|(path, ..)| path).collect();
        let names = ["agentctl-version.txt", "check.txt", "status.json", "cluster.error"];
        assert_eq!(files, names.map(|name| format!("tributary-support/{name}")));
    }

    #[test]
    fn a_bundle_is_one_folder_that_only_its_maker_reads() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("a.tar.gz");
        let mut files = Files::default();
        files.add("check.txt", "all is well\n");
        files.read("status.json", Err(Failure::new("no agent runs")));
        write(&out, &files).unwrap();
        assert_eq!(
            unpacked(&out),
            [
                ("tributary-support/check.txt".into(), 0o600, "all is well\n".to_owned()),
                ("tributary-support/status.json.error".into(), 0o600, "no agent runs\n".to_owned()),
            ]
        );
        let failure = write(Path::new("/nowhere/a.tar.gz"), &files).unwrap_err().to_string();
        assert!(failure.contains("hint: name another file"), "{failure}");
    }
}
