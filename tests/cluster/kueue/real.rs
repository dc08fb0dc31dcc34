//! The real Kueue on a control plane: built from its Go module, with its own definitions, as a process of this machine.
//!
//! Its webhooks answer at loopback, where the API server is as well. Of them, those are registered that change what Kueue is
//! for: Jobs are made suspended, and its own objects get their defaults.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Once};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary_sandbox::{ADMIN, Cluster, Group, Options, Process};
use tributary_tests::eventually::eventually;

/// Switches the lane on: Kueue takes minutes to build.
const VARIABLE: &str = "TRIBUTARY_KUEUE";

/// Namespace of Kueue.
pub(super) const SYSTEM: &str = "kueue-system";

/// Kueue of one cluster.
pub(super) struct Kueue {
    _process: Arc<Process>,
    client: Client,
    log: PathBuf,
}

/// Kueue, if the lane is on; else one line on standard error says what is not shown without it.
///
/// # Errors
/// It cannot be built: a lane that was asked for must not be skipped.
pub(super) async fn find() -> Result<Option<tributary_sandbox::Kueue>> {
    if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
        static SAY: Once = Once::new();
        // Not eprintln!, which the test harness hides when a test passes.
        SAY.call_once(|| {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: kueue: {VARIABLE} is not set, so no real Kueue has admitted anything (any value builds it once)"
            );
        });
        return Ok(None);
    }
    tributary_sandbox::kueue(&Options::default().report).await.map(Some)
}

/// A kind of Kueue.
fn kind(kind: &str) -> ApiResource {
    let plural = match kind {
        "ClusterQueue" | "LocalQueue" | "Workload" | "ResourceFlavor" | "AdmissionCheck" | "MultiKueueCluster"
        | "MultiKueueConfig" => format!("{}s", kind.to_lowercase()),
        other => panic!("{other} is no kind of Kueue that is used here"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind), &plural)
}

/// Workloads of a namespace.
pub(super) fn workloads(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &kind("Workload"))
}

impl Kueue {
    /// Installs Kueue into a cluster and starts it. `more` is added to its configuration.
    pub(super) async fn start(
        built: &tributary_sandbox::Kueue,
        cluster: &Cluster,
        group: &Group,
        directory: &Path,
        more: Value,
    ) -> Result<Self> {
        let client = cluster.client(ADMIN).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}});
        namespaces.patch(SYSTEM, &PatchParams::apply("tests"), &Patch::Apply(&namespace)).await?;

        // It writes certificates into it that nobody uses here.
        let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kueue-webhook-server-cert"}});
        secrets.patch("kueue-webhook-server-cert", &PatchParams::apply("tests"), &Patch::Apply(&secret)).await?;

        let directory = directory.join(format!("kueue-{}", cluster.name()));
        let certificates = directory.join("certificates");
        fs::create_dir_all(&certificates)?;
        let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        fs::write(certificates.join("tls.crt"), cert.pem())?;
        fs::write(certificates.join("tls.key"), signing_key.serialize_pem())?;
        let [webhook, health] = [free_port()?, free_port()?];
        define(&client, &built.definitions, webhook, &cert.pem()).await?;
        let mut config = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": SYSTEM,
            "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": certificates},
            "leaderElection": {"leaderElect": false},
            "integrations": {"frameworks": ["batch/job"]},
        });
        let fields = config.as_object_mut().context("a configuration is an object")?;
        fields.extend(more.as_object().cloned().unwrap_or_default());
        let file = directory.join("config.yaml");
        fs::write(&file, config.to_string())?;
        let log = directory.join("kueue.log");
        let mut command = Command::new(&built.program);
        command.arg("--config").arg(&file).arg("--feature-gates=VisibilityOnDemand=false");
        command.env("KUBECONFIG", cluster.kubeconfig(ADMIN)?);
        let process = group.spawn_logged(&mut command, &log)?;
        register(&client, webhook, &cert.pem()).await?;
        let kueue = Self { _process: process, client, log };
        kueue.apply("ResourceFlavor", None, "default", json!({})).await;
        Ok(kueue)
    }

    /// Applies an object of Kueue, as soon as its webhook answers.
    pub(super) async fn apply(&self, of: &str, namespace: Option<&str>, name: &str, spec: Value) -> DynamicObject {
        let resource = kind(of);
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let object = json!({"apiVersion": resource.api_version, "kind": of, "metadata": {"name": name}, "spec": spec});
        eventually(format!("{of} {name} is applied"), async || {
            let params = PatchParams::apply("tests").force();
            api.patch(name, &params, &Patch::Apply(&object)).await.map_err(|error| format!("{error}\n{}", self.tail()))
        })
        .await
    }

    /// Changes an object of the whole cluster.
    pub(super) async fn change(&self, of: &str, name: &str, spec: Value) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind(of));
        let patch = Patch::Merge(json!({"spec": spec}));
        api.patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted");
    }

    /// A queue for a namespace with so many cores.
    pub(super) async fn queue(&self, namespace: &str, name: &str, cores: u32) {
        let resources = json!([
            {"name": "cpu", "nominalQuota": cores}, {"name": "memory", "nominalQuota": "64Gi"}]);
        let groups = json!([{"coveredResources": ["cpu", "memory"],
            "flavors": [{"name": "default", "resources": resources}]}]);
        let all = json!({"namespaceSelector": {}, "resourceGroups": groups});
        self.apply("ClusterQueue", None, name, all).await;
        self.apply("LocalQueue", Some(namespace), name, json!({"clusterQueue": name})).await;
    }

    /// The end of its log.
    pub(super) fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// Kinds that Kueue converts. Only one version is used here, but it starts only where it may say so.
const CONVERTED: [&str; 5] = ["ClusterQueue", "Cohort", "LocalQueue", "MultiKueueCluster", "Workload"];

/// Applies the definitions of Kueue.
async fn define(client: &Client, directory: &Path, port: u16, authority: &str) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("no definitions in {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    ensure!(files.len() > 5, "{} has only {} definitions", directory.display(), files.len());
    for file in files {
        let mut definition: CustomResourceDefinition = serde_saphyr::from_str(&fs::read_to_string(&file)?)?;
        let name = definition.name_any();
        if CONVERTED.contains(&definition.spec.names.kind.as_str()) {
            let webhook =
                json!({"conversionReviewVersions": ["v1"], "clientConfig": client_config(port, "convert", authority)});
            definition.spec.conversion = serde_json::from_value(json!({"strategy": "Webhook", "webhook": webhook}))?;
        }
        let params = PatchParams::apply("tests").force();
        definitions.patch(&name, &params, &Patch::Apply(&definition)).await?;
    }
    Ok(())
}

/// Registers the webhooks that give objects their defaults.
async fn register(client: &Client, port: u16, authority: &str) -> Result<()> {
    let webhook = |name: &str, path: &str, group: &str, version: &str, resources: &str, operations: Value| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": client_config(port, path, authority),
            "rules": [{"apiGroups": [group], "apiVersions": [version], "resources": [resources], "operations": operations}],
        })
    };
    let own = |kind: &str| {
        let (name, path) = (format!("{kind}s.kueue.test"), format!("mutate-kueue-x-k8s-io-v1beta2-{kind}"));
        webhook(&name, &path, "kueue.x-k8s.io", "v1beta2", &format!("{kind}s"), json!(["CREATE"]))
    };
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "kueue"},
        "webhooks": [
            webhook("jobs.kueue.test", "mutate-batch-v1-job", "batch", "v1", "jobs", json!(["CREATE"])),
            own("clusterqueue"),
            own("resourceflavor"),
            own("workload"),
        ],
    });
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.patch("kueue", &PatchParams::apply("tests").force(), &Patch::Apply(&configuration)).await?;
    Ok(())
}

/// How the API server reaches a webhook of Kueue.
fn client_config(port: u16, path: &str, authority: &str) -> Value {
    let authority = k8s_openapi::ByteString(authority.as_bytes().to_vec());
    json!({"url": format!("https://127.0.0.1:{port}/{path}"), "caBundle": authority})
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
