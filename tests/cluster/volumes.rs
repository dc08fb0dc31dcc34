//! Volumes that are made for MiniClusters: bound, removed after a good end, kept where that is said, and gone with their
//! MiniCluster; and what is never touched.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tributary::api::labels::{RESTART, condition};
use tributary_sandbox::annotations;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::scenario::Place;

/// What the agents of this place are allowed to make.
pub(crate) const ALLOWED: [&str; 2] = ["volumes.classes={hostpath}", "volumes.pathPrefixes={/srv}"];

fn spec(path: &str) -> Value {
    json!({"volumes": {"data": {"path": path, "capacity": "1Gi"}},
        "containers": [{"image": "x", "command": "ls", "volumes": {"data": {"path": "/mine"}}}]})
}

struct Volumes<'a> {
    place: &'a Place,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

pub(crate) async fn volumes_are_made_bound_and_removed(place: &Place) {
    let client = || place.client.clone();
    let this = Volumes { place, claims: Api::namespaced(client(), &place.namespace), volumes: Api::all(client()) };
    let stranger = this.stranger().await;
    let copy = this.copy().await;
    place.create("stranger", spec("/srv/data")).await;
    let mut tidy = spec("/srv/data");
    tidy["volumes"]["more"] = json!({"path": "/srv/more", "capacity": "1Gi", "delete": false});
    place.create("tidy", tidy).await;
    let mut keeps = spec("/srv/data");
    keeps["cleanupVolumes"] = json!(false);
    // Its pod outlives an instance, and would hold the claim of that.
    keeps["services"] = json!([{"name": "db", "image": "x", "volumes": {"data": {"path": "/db"}}}]);
    place.create("keeps", keeps).await;
    place.create("greedy", spec("/srv/../etc")).await;

    // One that is refused says so, and keeps nobody else from having theirs.
    let told = place.condition("greedy", condition::VALID, "False", "InvalidValue").await;
    assert!(told.contains("spec.volumes.data.path"), "{told}");
    let told = place.condition("stranger", condition::READY, "False", "NameTaken").await;
    assert!(told.contains("PersistentVolume default.stranger.data"), "{told}");
    for name in ["tidy", "keeps"] {
        place.running(name).await;
        this.is_bound(name, "/srv/data").await;
    }

    // Another directory is another volume, and with it another claim.
    place.change("keeps", json!({"volumes": {"data": {"path": "/srv/other"}}})).await;
    place.condition("keeps", condition::RESTART_REQUIRED, "True", "FrozenPerIncarnation").await;
    let again = Patch::Merge(json!({"metadata": {"annotations": {RESTART: "again"}}}));
    place.mini_clusters().patch("keeps", &PatchParams::default(), &again).await.unwrap();
    this.is_bound("keeps", "/srv/other").await;
    place.running("keeps").await;

    for name in ["tidy", "keeps"] {
        place.annotate_pod(name, 0, annotations::EXIT, "0").await;
        place.condition(name, condition::FINISHED, "True", "Succeeded").await;
    }
    this.is_gone("tidy").await;
    eventually("the pods are gone", async || {
        let pods = place.pods().list(&ListParams::default().labels("job-name=tidy")).await;
        let left = pods.map_err(|error| error.to_string())?.items.len();
        let job = place.jobs().get_opt("tidy").await.map_err(|error| error.to_string())?;
        if left == 0 && job.is_none() { Ok(()) } else { Err(format!("{left} pods, {:?}", job.map(|job| job.status))) }
    })
    .await;
    place.condition("tidy", condition::FINISHED, "True", "Succeeded").await;
    let more = this.volumes.get("default.tidy.more").await.unwrap();
    assert_eq!(more.metadata.deletion_timestamp, None, "delete: false");
    this.is_bound("keeps", "/srv/other").await;
    assert!(place.jobs().get_opt("keeps").await.unwrap().is_some(), "its pods stay");

    // Without its MiniCluster no volume is left.
    place.delete("keeps").await;
    this.is_gone("keeps").await;
    for name in ["tidy", "stranger", "greedy"] {
        place.delete(name).await;
    }
    // The volume that was to stay goes with its MiniCluster.
    gone(&this.volumes, "default.tidy.more").await;
    let now = this.volumes.get("default.stranger.data").await.unwrap();
    assert_eq!(
        (now.meta().uid.clone(), now.spec),
        (stranger.meta().uid.clone(), stranger.spec),
        "nobody was bound to it"
    );
    let now = this.volumes.get("copy").await.unwrap();
    assert_eq!((now.meta().uid.clone(), now.meta().deletion_timestamp.clone()), (copy.meta().uid.clone(), None));
    for name in ["default.stranger.data", "copy"] {
        this.volumes.delete(name, &Default::default()).await.unwrap();
    }
}

impl Volumes<'_> {
    /// Somebody else's volume, of a name that we would choose; a claim that names it would get it.
    async fn stranger(&self) -> PersistentVolume {
        self.theirs("default.stranger.data", json!({"app.kubernetes.io/managed-by": "tributary"})).await
    }

    /// Somebody else's volume, with the labels of one that was made for a MiniCluster that is gone.
    async fn copy(&self) -> PersistentVolume {
        let labels = json!({"app.kubernetes.io/managed-by": "tributary", "tributary.dev/role": "volume",
            "namespace": "default", "tributary.dev/minicluster": "gone", "tributary.dev/minicluster-uid": "gone"});
        self.theirs("copy", labels).await
    }

    async fn theirs(&self, name: &str, labels: Value) -> PersistentVolume {
        let volume = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": "/theirs"},
                "storageClassName": "hostpath", "persistentVolumeReclaimPolicy": "Retain"}});
        self.volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap()
    }

    /// The claim has the volume that was made for it, of this directory, and the pods have the claim.
    async fn is_bound(&self, name: &str, path: &str) {
        let (claim, volume) = eventually(format!("the claim of {name} is bound"), async || {
            let claim = self.claims.get(&format!("{name}.data")).await.map_err(|error| error.to_string())?;
            let volume = self.volumes.get(&format!("default.{name}.data")).await.map_err(|error| error.to_string())?;
            let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            let seen = volume.spec.as_ref().and_then(|spec| Some(spec.host_path.as_ref()?.path.as_str()));
            if bound && seen == Some(path) {
                Ok((claim, volume))
            } else {
                Err(format!("{:?} {:?}", claim.status, volume.status))
            }
        })
        .await;
        let bound_to = volume.spec.unwrap().claim_ref.unwrap();
        assert_eq!((bound_to.uid, bound_to.name), (claim.uid(), Some(claim.name_any())));
        assert_eq!(claim.spec.unwrap().volume_name, volume.metadata.name);
        let pods = eventually(format!("{name} has a pod"), async || {
            let pods = self.place.pods().list(&ListParams::default().labels(&format!("job-name={name}"))).await;
            let pods = pods.map_err(|error| error.to_string())?.items;
            if pods.is_empty() { Err("it has none".to_owned()) } else { Ok(pods) }
        })
        .await;
        let volumes = pods[0].spec.clone().unwrap().volumes.unwrap();
        let mounted = volumes.iter().find(|volume| volume.name == "data").unwrap();
        assert_eq!(mounted.persistent_volume_claim.as_ref().unwrap().claim_name, format!("{name}.data"));
    }

    async fn is_gone(&self, name: &str) {
        gone(&self.claims, &format!("{name}.data")).await;
        gone(&self.volumes, &format!("default.{name}.data")).await;
    }
}
