//! What scenarios say: MiniClusters, and what is seen of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels;
use tributary::api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary::api::names;
use tributary::contract::LeadAddress;

use crate::eventually::{eventually, gone};

/// Group, version and kind.
pub type Kind = (&'static str, &'static str, &'static str);

/// What agents read, make or change in the namespaces of users; kinds of the agents first.
pub const KINDS: [Kind; 14] = [
    ("flux-framework.org", "v1alpha2", "MiniCluster"),
    ("tributary.dev", "v1alpha1", "Burst"),
    ("tributary.dev", "v1alpha1", "HostedBurst"),
    ("tributary.dev", "v1alpha1", "FluxJob"),
    ("tributary.dev", "v1alpha1", "FluxSetup"),
    ("tributary.dev", "v1alpha1", "ClusterPeer"),
    ("batch", "v1", "Job"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "Pod"),
    ("", "v1", "PersistentVolumeClaim"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
];

/// One namespace of one cluster.
#[derive(Clone)]
pub struct Place {
    /// A client with all rights.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
}

impl Place {
    /// MiniClusters here.
    pub fn mini_clusters(&self) -> Api<MiniCluster> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Bursts here.
    pub fn bursts(&self) -> Api<Burst> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// HostedBursts here.
    pub fn hosted(&self) -> Api<HostedBurst> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Jobs here.
    pub fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Pods here.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Secrets here.
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// ConfigMaps here.
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Services here.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a MiniCluster of a spec in JSON.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub async fn create(&self, name: &str, spec: Value) -> MiniCluster {
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2",
            "kind": "MiniCluster",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        });
        let params = PatchParams::apply("tests").force().validation_strict();
        self.mini_clusters().patch(name, &params, &Patch::Apply(&object)).await.expect("the spec is accepted")
    }

    /// Changes a MiniCluster's spec by a merge patch.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub async fn change(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.mini_clusters().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted");
    }

    /// Deletes a MiniCluster and waits until it is gone.
    ///
    /// # Panics
    /// If it does not go.
    pub async fn delete(&self, name: &str) {
        self.mini_clusters().delete(name, &DeleteParams::default()).await.expect("the MiniCluster is there");
        gone(&self.mini_clusters(), name).await;
    }

    /// The status of a MiniCluster.
    pub async fn status(&self, name: &str) -> Result<MiniClusterStatus, String> {
        let object = self.mini_clusters().get(name).await.map_err(|error| error.to_string())?;
        object.status.ok_or_else(|| "it has no status".to_owned())
    }

    /// Waits until a MiniCluster's condition has this status and reason.
    pub async fn condition(&self, name: &str, type_: &str, status: &str, reason: &str) -> String {
        eventually(format!("{name}: {type_}={status} ({reason})"), async || {
            let seen = self.status(name).await?;
            let found = seen.conditions.iter().find(|one| one.type_ == type_).cloned();
            match found {
                Some(one) if one.status == status && one.reason == reason => Ok(one.message),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until all brokers of this cluster have joined.
    pub async fn running(&self, name: &str) {
        self.condition(name, labels::condition::READY, "True", "Running").await;
    }

    /// Waits until the Burst of a slot is in a phase, and returns it.
    pub async fn burst(&self, root: &str, slot: &str, phase: BurstPhase) -> Burst {
        eventually(format!("Burst {slot} is {phase:?}"), async || {
            let burst = self.burst_now(root, slot).await?;
            let status = burst.status.clone().unwrap_or_default();
            if status.phase == phase {
                return Ok(burst);
            }
            Err(format!("{status:?}"))
        })
        .await
    }

    /// The Burst of a slot.
    pub async fn burst_now(&self, root: &str, slot: &str) -> Result<Burst, String> {
        self.bursts().get(&names::burst_object(root, slot)).await.map_err(|error| error.to_string())
    }

    /// Waits until nothing of a hosted burst is left here.
    pub async fn empty(&self, slot: &str) {
        eventually(format!("nothing of {slot} is left in {}", self.namespace), async || {
            let left = self.left(slot).await.map_err(|error| error.to_string())?;
            if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
        })
        .await;
    }

    /// What there is of a hosted burst.
    pub async fn left(&self, slot: &str) -> kube::Result<Vec<String>> {
        let mut left = Vec::new();
        let mut note = |kind: &str, there: bool| {
            if there {
                left.push(format!("{kind} {slot}"));
            }
        };
        note("HostedBurst", self.hosted().get_opt(slot).await?.is_some());
        note("MiniCluster", self.mini_clusters().get_opt(slot).await?.is_some());
        note("Job", self.jobs().get_opt(slot).await?.is_some());
        note("Secret", self.secrets().get_opt(&names::curve(slot)).await?.is_some());
        note("ConfigMap", self.config_maps().get_opt(&names::entrypoint(slot)).await?.is_some());
        note("Service", self.services().get_opt(&names::lead(slot)).await?.is_some());
        let pods = self.pods().list(&ListParams::default().labels(&format!("job-name={slot}"))).await?;
        note("Pods of", !pods.items.is_empty());
        Ok(left)
    }

    /// The endpoint of a lead Service on a provider.
    pub async fn lead_endpoint(&self, slot: &str) -> Result<LeadAddress, String> {
        let selector = format!("{}={}", labels::kubernetes::SERVICE_NAME, names::lead(slot));
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = slices.list(&ListParams::default().labels(&selector)).await.map_err(|error| error.to_string())?;
        let found = list.items.iter().find_map(|slice| {
            let address = slice.endpoints.first()?.addresses.first()?.clone();
            let port = u16::try_from(slice.ports.as_ref()?.first()?.port?).ok()?;
            Some(LeadAddress { address, port })
        });
        found.ok_or_else(|| format!("no endpoint in {} slices", list.items.len()))
    }

    /// Annotates the pods of a Job, for what the simulated nodes obey.
    ///
    /// # Panics
    /// If the pods cannot be changed.
    pub async fn annotate_pod(&self, job: &str, index: u32, annotation: &str, value: &str) {
        let selector = format!("job-name={job},{}={index}", labels::kubernetes::COMPLETION_INDEX);
        let pods = eventually(format!("{job} has its pod {index}"), async || {
            let list = self.pods().list(&ListParams::default().labels(&selector)).await;
            let pods = list.map_err(|error| error.to_string())?.items;
            if pods.is_empty() { Err("it has none".to_owned()) } else { Ok(pods) }
        })
        .await;
        for pod in pods {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
            self.pods().patch(&pod.name_any(), &PatchParams::default(), &patch).await.expect("the pod is there");
        }
    }
}

/// A spec of this size with one container, that runs until it is told otherwise.
pub fn interactive(size: i32) -> Value {
    json!({"size": size, "interactive": true, "containers": [{"image": "rockylinux:9"}]})
}

/// The same with bursts: `[{"size": 3, "peer": "west"}, …]`.
pub fn bursting(size: i32, clusters: Value) -> Value {
    let mut spec = interactive(size);
    spec["flux"] = json!({"bursting": {"clusters": clusters}});
    spec
}

/// Gives the only pod of a Job an address.
pub async fn address_pod(place: &Place, job: &str, address: Ipv4Addr) {
    let pods = place.pods().list(&ListParams::default().labels(&format!("job-name={job}"))).await.unwrap();
    let name = pods.items[0].name_any();
    let status = Patch::Merge(json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}));
    place.pods().patch_status(&name, &PatchParams::default(), &status).await.unwrap();
}

/// Stands for a lead broker: says back what it is told.
pub async fn says_back(lead: Ipv4Addr) -> std::io::Result<()> {
    let listener = TcpListener::bind((lead, 8_050)).await?;
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tcp.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    Ok(())
}

/// Says something to whoever is behind the tunnel, from an address.
pub async fn said_back(from: Ipv4Addr, port: u16, word: &[u8]) -> std::io::Result<Vec<u8>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0))?;
    let mut tcp = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
    tcp.write_all(word).await?;
    let mut heard = vec![0; word.len()];
    tcp.read_exact(&mut heard).await?;
    Ok(heard)
}
