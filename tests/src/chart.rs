//! The charts, as helm installs them, and the pods of their Deployment as processes: no kubelet runs containers here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, ServiceAccount};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt, discovery};
use serde_json::{Value, json};
use tributary_sandbox::{Binaries, Cluster, Group, Options, Process};

use crate::agent;
use crate::federation::SYSTEM;

/// The version that templates are rendered for: a helm that is built from its module knows of none.
pub const KUBERNETES: &str = "1.35.0";

/// The folder of the charts.
pub fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts")
}

/// helm; it is built into the cache when it is first asked for.
pub fn helm_program() -> &'static Path {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let find = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(tributary_sandbox::helm(&Options::default().report)).unwrap()
        };
        // Whoever calls may be in a runtime, which cannot hold another one.
        std::thread::spawn(find).join().expect("helm is there, or says why not")
    };
    HELM.get_or_init(find)
}

/// Runs helm in `directory`.
pub fn helm(directory: &Path, kubeconfig: Option<&Path>, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(helm_program());
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command.args(arguments).current_dir(directory).output().context("failed to run helm")
}

/// Carries out a line of a page, by the kubectl that is built with the control planes. What it prints.
///
/// # Errors
/// What it says against it.
pub async fn kubectl(directory: &Path, kubeconfig: &Path, line: &str) -> anyhow::Result<String> {
    let built = Binaries::ensure(&Options::default().report).await?.program("kubectl");
    // Assets of somebody else may come without it.
    let program = if built.is_file() { built } else { PathBuf::from("kubectl") };
    let line = line.replacen("kubectl", &program.display().to_string(), 1);
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(directory).env("KUBECONFIG", kubeconfig);
    let output = shell.output().context("failed to run kubectl")?;
    ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The objects among rendered templates.
pub fn objects(rendered: &str) -> Vec<Value> {
    let documents = rendered.split("\n---\n").map(|document| document.trim_start_matches("---\n"));
    let values = documents.map(|document| serde_saphyr::from_str::<Value>(document).expect("helm writes YAML"));
    values.filter(Value::is_object).collect()
}

/// Gives the account of the chart the rights of the chart, and no others.
///
/// # Errors
/// What helm or the API server says.
pub async fn install_rules(client: &Client) -> anyhow::Result<()> {
    static RULES: OnceLock<Vec<Value>> = OnceLock::new();
    let rules = RULES.get_or_init(|| rules().expect("helm renders the rules"));
    for object in rules {
        apply(client, object).await?;
    }
    Ok(())
}

/// The rights of the chart.
fn rules() -> anyhow::Result<Vec<Value>> {
    let arguments = ["template", "tributary", "tributary", "--namespace", SYSTEM, "--set", "cluster.name=any"];
    let only = ["--kube-version", KUBERNETES, "--show-only", "templates/rbac.yaml"];
    let output = helm(&charts(), None, &[&arguments[..], &only].concat())?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(objects(&String::from_utf8(output.stdout)?))
}

/// Applies an object of any kind.
///
/// # Errors
/// What the API server says.
pub async fn apply(client: &Client, object: &Value) -> anyhow::Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&object["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = GroupVersionKind::gvk(group, version, &text(&object["kind"]));
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
        discovery::Scope::Namespaced => {
            Api::namespaced_with(client.clone(), &text(&object["metadata"]["namespace"]), &resource)
        }
    };
    let params = PatchParams::apply("tests").force();
    api.patch(&text(&object["metadata"]["name"]), &params, &Patch::Apply(object)).await?;
    Ok(())
}

/// An agent in the place of a pod's container: with its configuration, its environment and a token of its account.
pub struct PodProcess {
    /// Name of the pod.
    pub name: String,
    /// Its address.
    pub address: String,
    process: Arc<Process>,
    log: PathBuf,
}

impl PodProcess {
    /// Starts what the only container of `pod` would run. `instead` replaces variables: all pods have one network here.
    ///
    /// # Errors
    /// The pod names something that is not there.
    pub async fn start(
        cluster: &Cluster,
        client: &Client,
        pod: &Pod,
        instead: &[(&str, String)],
        (group, directory): (&Group, &Path),
    ) -> anyhow::Result<Self> {
        let directory = directory.join(cluster.name()).join(pod.name_any());
        fs::create_dir_all(&directory)?;
        let spec = pod.spec.as_ref().context("the pod has no spec")?;
        let [container] = &spec.containers[..] else { anyhow::bail!("the pod has other containers, too") };
        let config = mounted(client, pod, container, &directory).await?;
        let account = spec.service_account_name.as_deref().context("the pod has no account")?;
        let kubeconfig = directory.join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(cluster, client, &pod.namespace().unwrap_or_default(), account).await?)?;

        let mut variables = environment(pod, container)?;
        variables.insert("TRIBUTARY__KUBERNETES__KUBECONFIG".to_owned(), kubeconfig.display().to_string());
        variables.extend(instead.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let mut command = agent::command(&config)?;
        command.envs(variables);
        let log = directory.join("log");
        let process = group.spawn_logged(&mut command, &log)?;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default();
        Ok(Self { name: pod.name_any(), address, process, log })
    }

    /// Ends it with SIGKILL: nothing is given up, nobody is told.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.process.kill()?;
        Ok(())
    }

    /// Asks it to end, and waits for it.
    ///
    /// # Errors
    /// It does not end, or not well.
    pub async fn stop(&self, group: &Group) -> anyhow::Result<()> {
        group.signal(&self.process, tributary_sandbox::Signal::Terminate)?;
        let limit = std::time::Duration::from_secs(30);
        let status = tokio::time::timeout(limit, self.process.wait()).await.context("the agent does not stop")??;
        ensure!(status.success(), "{status}\n{}", self.log_text());
        Ok(())
    }

    /// Its log so far.
    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Writes the files of the container's ConfigMap; returns the one that its `--config` names.
async fn mounted(client: &Client, pod: &Pod, container: &Container, directory: &Path) -> anyhow::Result<PathBuf> {
    let [option, config] = &container.args.clone().unwrap_or_default()[..] else { anyhow::bail!("other arguments") };
    ensure!(option == "--config", "{option}");
    let config = Path::new(config);
    let folder = config.parent().context("--config names a file in a folder")?;
    let mounts = container.volume_mounts.iter().flatten();
    let mount =
        mounts.into_iter().find(|mount| Path::new(&mount.mount_path) == folder).context("nothing is mounted")?;
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.find(|volume| volume.name == mount.name).context("the mount has no volume")?;
    let map = volume.config_map.as_ref().context("the volume is no ConfigMap")?.name.clone();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    for (name, text) in maps.get(&map).await?.data.unwrap_or_default() {
        fs::write(directory.join(name), text)?;
    }
    Ok(directory.join(config.file_name().context("--config names a file")?))
}

/// The environment of a container, as a kubelet resolves it.
fn environment(pod: &Pod, container: &Container) -> anyhow::Result<BTreeMap<String, String>> {
    let field = |path: &str| {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
        match path {
            "metadata.name" => pod.metadata.name.clone(),
            "metadata.namespace" => pod.metadata.namespace.clone(),
            "spec.nodeName" => spec.node_name.clone(),
            "status.podIPs" => {
                let addresses = status.pod_ips.iter().flatten().map(|one| one.ip.clone());
                Some(addresses.collect::<Vec<_>>().join(","))
            }
            _ => None,
        }
    };
    let resolve = |variable: &k8s_openapi::api::core::v1::EnvVar| {
        let from = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
        let value = match from {
            Some(from) => field(&from.field_path),
            None => variable.value.clone(),
        };
        Ok((variable.name.clone(), value.with_context(|| format!("{variable:?} has no value"))?))
    };
    container.env.iter().flatten().map(resolve).collect()
}

/// A kubeconfig with a token of a service account, as pods get one.
async fn kubeconfig_of(cluster: &Cluster, client: &Client, namespace: &str, account: &str) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    let token = answer.status.context("there is no token")?.token;
    let admin = fs::read_to_string(cluster.kubeconfig(tributary_sandbox::ADMIN)?)?;
    let mut kubeconfig: Value = serde_json::from_str(&admin)?;
    for user in kubeconfig["users"].as_array_mut().context("a kubeconfig has users")? {
        user["user"] = json!({ "token": token });
    }
    Ok(kubeconfig.to_string())
}
