//! `agentctl demo` as a user runs it: the program, real control planes, agents as processes of their own.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stderr)]

mod walk;

use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tributary::api::burst::{Burst, BurstStatus};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::minicluster::{MiniCluster, MiniClusterStatus, Phase};
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::{ADMIN, Options, Sandbox};

use crate::walk::{Role, Walk, repository};

/// Two demos at a time: each has two or three clusters.
static STAGES: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

/// Tests take the stages in turn.
fn stage(number: usize) -> MutexGuard<'static, ()> {
    STAGES[number % STAGES.len()].lock().unwrap_or_else(PoisonError::into_inner)
}

fn demo<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentctl"));
    command.arg("demo").args(arguments).stdout(Stdio::piped()).env_remove("TRIBUTARY_SANDBOX_KEEP");
    command
}

/// Runs to the end; returns the one document of standard output.
fn run(mut command: Command) -> (ExitStatus, Value) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let document = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}\n{log}"));
    eprintln!("{log}");
    let schema = std::fs::read_to_string(repository().join("src/guide/schemas/Demo.json")).unwrap();
    jsonschema::validate(&serde_json::from_str(&schema).unwrap(), &document).unwrap();
    (output.status, document)
}

/// What follows `cargo run --locked -p tributary-agentctl -- demo` in a command of the README, counted from 0.
fn arguments_of_command(number: usize) -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let line = text.lines().filter_map(|line| line.strip_prefix("$ ")).nth(number).expect("the README has commands");
    let arguments = line.strip_prefix("cargo run --locked -p tributary-agentctl -- demo");
    let arguments = arguments.unwrap_or_else(|| panic!("the README begins with another command: {line}"));
    arguments.split_whitespace().chain(["--exit", "-o", "json"]).map(str::to_owned).collect()
}

/// The README's first command, ended when all is wired.
#[test]
fn the_readmes_first_command_wires_a_federation_and_leaves_nothing() {
    let _stage = stage(0);
    let (status, document) = run(demo(&arguments_of_command(0)));
    assert!(status.success(), "{document:#}");
    assert_eq!((&document["wired"], &document["problems"]), (&Value::Bool(true), &Value::Array(Vec::new())));
    assert_eq!(document["pods"], "simulated (kwok)");
    let names: Vec<_> =
        document["clusters"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["east", "west", "north"]);
    let bursts = document["bursts"].as_array().unwrap();
    let expected = [("river-burst-0", 3, "west"), ("river-burst-1", 2, "north")];
    assert_eq!(bursts.len(), expected.len());
    for (burst, (name, size, peer)) in bursts.iter().zip(expected) {
        assert_eq!((&burst["name"], &burst["peer"], &burst["phase"]), (&name.into(), &peer.into(), &"Ready".into()));
        assert_eq!((&burst["size"], &burst["readyBrokers"]), (&size.into(), &size.into()));
        assert!(burst["lead"]["port"].as_u64().is_some_and(|port| (30_000..32_768).contains(&port)), "{burst}");
        assert!(burst["rankMapDigest"].as_str().is_some_and(|digest| digest.len() >= 64), "{burst}");
        assert!(burst["timings"]["hostedBurst"].as_u64() <= burst["timings"]["ready"].as_u64(), "{burst}");
    }
    nothing_is_left(&document);
}

#[test]
fn what_is_not_wired_in_time_fails() {
    let _stage = stage(0);
    let (status, document) = run(demo(&["--clusters", "2", "--timeout", "0", "--exit", "-o", "json"]));
    assert_eq!((status.code(), &document["wired"]), (Some(1), &Value::Bool(false)));
    assert!(document["problems"].as_array().is_some_and(|problems| !problems.is_empty()), "{document:#}");
    nothing_is_left(&document);
}

/// Stays up after its document; ends without a trace when it is killed.
#[test]
fn no_secret_shows_and_a_killed_demo_takes_everything_with_it() {
    let _stage = stage(1);
    let mut child = demo(&["--clusters", "2", "-o", "json"]).spawn().unwrap();
    let document = first_document(&mut child);
    assert_eq!(document["wired"], true, "{document:#}");
    assert_eq!(child.try_wait().unwrap(), None, "it stays until it is interrupted");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(search_for_the_secret_key(&document));

    child.kill().unwrap();
    child.wait().unwrap();
    nothing_is_left(&document);
}

#[test]
fn clusters_that_stay_are_left_as_they_were_and_serve_the_pages_steps() {
    let _stage = stage(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sandbox = runtime.block_on(Sandbox::start(Options::named(["east", "west"]))).unwrap();
    let client = |name: &str| runtime.block_on(sandbox.cluster(name).unwrap().client(ADMIN)).unwrap();
    let (here, there) = (client("east"), client("west"));
    runtime.block_on(agents_that_run_are_left_alone(&here, &sandbox));
    // Somebody uses the demo's namespace already.
    let own = Namespace {
        metadata: ObjectMeta { name: Some("tributary-demo".into()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    runtime.block_on(Api::all(there.clone()).create(&PostParams::default(), &own)).unwrap();

    let mut command = demo(&arguments_of_command(1));
    command.env("KUBECONFIG", sandbox.kubeconfig());
    let (status, document) = run(command);
    assert!(status.success(), "{document:#}");
    assert_eq!((&document["wired"], &document["pods"]), (&Value::Bool(true), &"real".into()));

    for (client, kept) in [(here, &[][..]), (there, &["tributary-demo"])] {
        let names = runtime.block_on(async {
            let definitions = Api::<CustomResourceDefinition>::all(client.clone());
            let names = async || {
                let namespaces = Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await.unwrap();
                let names = namespaces.items.iter().map(ResourceExt::name_any);
                names.filter(|name| name.starts_with("tributary-")).collect::<Vec<_>>()
            };
            // Namespaces and definitions are gone some time after their deletion.
            let gone = async {
                while names().await != kept || !definitions.list(&ListParams::default()).await.unwrap().items.is_empty()
                {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(60), gone).await;
            assert_eq!(definitions.list(&ListParams::default()).await.unwrap().items.len(), 0);
            names().await
        });
        assert_eq!(names, kept);
    }
    runtime.block_on(the_pages_steps(sandbox.kubeconfig()));
}

/// The danger: a demo that may not begin takes out of the cluster what others have there, and two agents lead.
async fn agents_that_run_are_left_alone(client: &Client, sandbox: &Sandbox) {
    let (namespaces, name) = (Api::<Namespace>::all(client.clone()), "tributary-system");
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
    let leases = Api::<Lease>::namespaced(client.clone(), name);
    let lease = json!({"metadata": {"name": "tributary-agent"}, "spec": {"holderIdentity": "somebody"}});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    let before = leases.create(&PostParams::default(), &lease).await.unwrap().uid();
    let renews = async {
        for time in 0.. {
            let renewed = Patch::Merge(json!({"metadata": {"annotations": {"renewed": time.to_string()}}}));
            leases.patch("tributary-agent", &PatchParams::default(), &renewed).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut command = demo(&arguments_of_command(1));
    command.env("KUBECONFIG", sandbox.kubeconfig());
    let refused = tokio::task::spawn_blocking(move || run(command));
    let (status, document) = tokio::select! {
        refused = refused => refused.unwrap(),
        () = renews => unreachable!("it renews without end"),
    };
    let problems = document["problems"].to_string();
    assert!(!status.success() && problems.contains("an agent runs in the cluster east already"), "{document:#}");
    assert_eq!(leases.get("tributary-agent").await.unwrap().uid(), before);
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    while namespaces.get_opt(name).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Two agents by hand, the example of a root whose bursts all run, and what other pages do with them.
async fn the_pages_steps(kubeconfig: PathBuf) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut walk = Walk::new(kubeconfig.clone());
    let steps = walk::commands_of("clusters");
    assert!(steps.len() > 25, "{steps:?}");
    let mut first = true;
    let mut names = true;
    for (page, step) in steps {
        if first && page != "examples/without-helm/README.md" {
            first = false;
            all_ready(&walk.client("east").await).await;
        }
        if names && step.contains("NAME-restful") {
            names = false;
            restful(&walk.client("east").await).await;
        }
        let east = walk.client("east").await;
        let before = if step.contains(" rekey ") { Some(river(&east).await.unwrap().expect("it runs")) } else { None };
        eprintln!("{page} $ {step}\n{}", walk.step(&step).await);
        if let Some(before) = before {
            rekeyed(&east, before).await;
        }
    }
    let [here, there] = [walk.client("east").await, walk.client("west").await];
    the_certificate_was_copied(&here, &there).await;
    other_worlds(&mut walk, &kubeconfig).await;
}

/// What [`walk::NAME`] stands for on the page of v1alpha1.
async fn restful(client: &Client) {
    let object = json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {"name": walk::NAME},
        "spec": {"size": 1, "fluxRestful": {}, "containers": [{"image": "ubuntu:24.04"}]}});
    let mini_clusters: Api<MiniCluster> = Api::namespaced(client.clone(), "default");
    mini_clusters.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// The root, as far as it says with which certificate it runs.
async fn river(client: &Client) -> kube::Result<Option<MiniClusterStatus>> {
    let mini_clusters: Api<MiniCluster> = Api::namespaced(client.clone(), "default");
    let status = mini_clusters.get("river").await?.status;
    Ok(status.filter(|status| status.credential_digest.is_some()))
}

/// The step asks for that and goes on; what is done next is done with the new certificate.
async fn rekeyed(client: &Client, before: MiniClusterStatus) {
    eventually("it runs with another certificate", async || {
        let now = river(client).await.ok().flatten();
        let another = |status: &&MiniClusterStatus| status.credential_digest != before.credential_digest;
        let runs = now.as_ref().filter(another).is_some_and(|status| status.phase == Some(Phase::Running));
        runs.then_some(()).ok_or_else(|| format!("{now:#?}"))
    })
    .await;
}

/// A pipe whose first half fails would make an empty Secret.
async fn the_certificate_was_copied(from: &Client, to: &Client) {
    let secret = async |client: &Client| {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
        secrets.get("brook-curve").await.unwrap().data.unwrap().remove("curve.cert").unwrap()
    };
    let copied = secret(to).await;
    assert!(!copied.0.is_empty() && copied == secret(from).await, "it is another certificate");
}

/// Pages about clusters of other names, on the same control planes.
async fn other_worlds(walk: &mut Walk, kubeconfig: &Path) {
    let role = |name, context| Role { name, at: (kubeconfig, context), reached: true };
    let campus = Role { reached: false, ..role("campus", "west") };
    walk.play(&[role("cloud", "east"), campus]).await;
    steps_of(walk, "tunnel").await;
    let campus = peer(walk, "cloud", "campus").await;
    assert!(campus.spec.endpoints.is_empty(), "it is behind NAT: {:?}", campus.spec);

    walk.play(&[role("office", "east"), role("gpus", "west")]).await;
    steps_of(walk, "gpus").await;
    // What the file says is added to what link wrote.
    let office = peer(walk, "gpus", "office").await.spec;
    assert_eq!(office.import.unwrap().max_gpus, Some(16));
    assert!(office.endpoints.len() == 1 && office.trust_bundle.is_some() && office.cluster_uid.is_some());

    let more = Sandbox::start(Options::named(["north", "south"])).await.unwrap();
    let file = more.kubeconfig();
    let another = |name| Role { name, at: (&file, name), reached: true };
    walk.play(&[role("home", "east"), another("north"), another("south"), role("west", "west")]).await;
    steps_of(walk, "providers").await;
    both_are_placed(&walk.client("home").await).await;
}

async fn steps_of(walk: &mut Walk, name: &str) {
    let steps = walk::commands_of(name);
    assert!(!steps.is_empty(), "{name}");
    for (page, step) in steps {
        eprintln!("{page} $ {step}\n{}", walk.step(&step).await);
    }
}

async fn peer(walk: &Walk, context: &str, name: &str) -> ClusterPeer {
    Api::namespaced(walk.client(context).await, "tributary-system").get(name).await.unwrap()
}

/// Each whole, on one of the peers with the label.
async fn both_are_placed(client: &Client) {
    let bursts: Api<Burst> = Api::namespaced(client.clone(), "default");
    eventually("somebody takes them", async || {
        let found = bursts.list(&ListParams::default()).await.unwrap().items;
        let peers: Vec<_> = found.into_iter().map(|burst| burst.status.unwrap_or_default().peer).collect();
        let placed = peers.len() == 2 && peers.iter().all(Option::is_some);
        placed.then_some(()).ok_or_else(|| format!("{peers:?}"))
    })
    .await;
}

/// The three bursts of `examples/two-clusters/root.yaml` are.
async fn all_ready(client: &Client) {
    let bursts: Api<Burst> = Api::namespaced(client.clone(), "default");
    eventually("all are ready", async || {
        let found = bursts.list(&ListParams::default()).await.unwrap().items;
        let seen: Vec<_> = found.iter().map(|burst| (&burst.spec.slot, &burst.status)).collect();
        let ready =
            |status: &Option<BurstStatus>| status.as_ref().is_some_and(|status| status.phase == BurstPhase::Ready);
        let ready = seen.len() == 3 && seen.iter().all(|(_, status)| ready(status));
        ready.then_some(()).ok_or_else(|| format!("{seen:#?}"))
    })
    .await;
}

/// Looks for a minute whether it holds; what does not is what was seen instead.
async fn eventually(what: &str, holds: impl AsyncFn() -> Result<(), String>) {
    let mut seen = String::new();
    for _ in 0..300 {
        match holds().await {
            Ok(()) => return,
            Err(instead) => seen = instead,
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("not within a minute: {what}: {seen}");
}

/// Reads standard output until a whole document was seen.
fn first_document(child: &mut Child) -> Value {
    let out: BufReader<&mut ChildStdout> = BufReader::new(child.stdout.as_mut().unwrap());
    let mut text = Vec::new();
    for byte in out.bytes() {
        text.push(byte.unwrap());
        if text.ends_with(b"\n}\n") {
            return serde_json::from_slice(&text).unwrap();
        }
    }
    panic!("it ended without a document: {}", String::from_utf8_lossy(&text));
}

/// The guards remove the directories when no process is left.
fn nothing_is_left(document: &Value) {
    for cluster in document["clusters"].as_array().unwrap() {
        for file in ["kubeconfig", "log"] {
            let file = Path::new(cluster[file].as_str().unwrap());
            let directory = file.ancestors().find(|path| path.parent() == Some(&std::env::temp_dir())).unwrap();
            for _ in 0..300 {
                if !directory.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            assert!(!directory.exists(), "{}", directory.display());
        }
        let admin = cluster["admin"].as_str().unwrap().trim_start_matches("http://");
        assert!(std::net::TcpStream::connect(admin).is_err(), "the agent of {} runs on", cluster["name"]);
    }
}

async fn search_for_the_secret_key(document: &Value) {
    // The provider of rustls is a choice of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let clusters = document["clusters"].as_array().unwrap();
    let mut keys = Vec::new();
    let mut places = Vec::new();
    for cluster in clusters {
        let client = client(cluster).await;
        let secrets = Api::<Secret>::namespaced(client.clone(), "tributary-demo");
        for secret in secrets.list(&ListParams::default()).await.unwrap() {
            let certificate = secret.data.and_then(|mut data| data.remove("curve.cert"));
            keys.extend(certificate.as_ref().and_then(secret_key));
        }
        places.extend(everything(&client, cluster["name"].as_str().unwrap()).await);
        let log = std::fs::read_to_string(cluster["log"].as_str().unwrap()).unwrap();
        places.push((format!("log of {}", cluster["name"]), log));
    }
    keys.sort();
    keys.dedup();
    let [key] = keys.as_slice() else { panic!("one certificate for one instance, not {}", keys.len()) };
    assert!(places.len() > 20, "{}", places.len());
    let found: Vec<_> = places.iter().filter(|(_, text)| text.contains(key.as_str())).map(|(place, _)| place).collect();
    assert!(found.is_empty(), "the secret key is in {found:?}");
}

fn secret_key(certificate: &ByteString) -> Option<String> {
    let text = String::from_utf8(certificate.0.clone()).unwrap();
    let line = text.lines().find(|line| line.trim().starts_with("secret-key"))?.to_owned();
    Some(line.split('"').nth(1)?.to_owned())
}

/// All objects but Secrets that could show it, as text.
async fn everything(client: &Client, cluster: &str) -> Vec<(String, String)> {
    let mut places = Vec::new();
    let core = [
        ("", "v1", "ConfigMap", "configmaps"),
        ("", "v1", "Pod", "pods"),
        ("", "v1", "Service", "services"),
        ("", "v1", "Event", "events"),
        ("batch", "v1", "Job", "jobs"),
        ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
        ("flux-framework.org", "v1alpha2", "MiniCluster", "miniclusters"),
        ("tributary.dev", "v1alpha1", "Burst", "bursts"),
        ("tributary.dev", "v1alpha1", "HostedBurst", "hostedbursts"),
        ("tributary.dev", "v1alpha1", "ClusterPeer", "clusterpeers"),
    ];
    for (group, version, kind, plural) in core {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let objects = Api::<DynamicObject>::all_with(client.clone(), &resource);
        for object in objects.list(&ListParams::default()).await.unwrap() {
            places
                .push((format!("{kind} {} in {cluster}", object.name_any()), serde_json::to_string(&object).unwrap()));
        }
    }
    places
}

async fn client(cluster: &Value) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster["kubeconfig"].as_str().unwrap()).unwrap();
    let options =
        KubeConfigOptions { context: cluster["context"].as_str().map(str::to_owned), ..KubeConfigOptions::default() };
    Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
}
