//! One MiniCluster in one cluster.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tributary::api::minicluster::Phase;
use tributary::api::{labels, names};
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::scenario::interactive;

use crate::shared::{places, together};

#[tokio::test(flavor = "multi_thread")]
async fn a_mini_cluster_runs_and_has_what_users_and_tools_see() {
    let federation = together().await;
    let [east, ..] = places(&federation, "mini-cluster").await;
    east.create("lake", interactive(3)).await;
    east.running("lake").await;
    let status = east.status("lake").await.unwrap();
    assert_eq!((status.size, status.ready, status.phase), (3, Some(3), Some(Phase::Running)));
    assert_eq!(status.selector, "hpa-selector=lake");
    let job = east.jobs().get("lake").await.unwrap();
    assert_eq!(status.incarnation, job.uid());
    let spec = job.spec.unwrap();
    assert_eq!(
        (spec.completion_mode.as_deref(), spec.completions, spec.parallelism),
        (Some("Indexed"), Some(3), Some(3))
    );
    assert_eq!(spec.template.metadata.unwrap().labels.unwrap()[labels::upstream::HPA_SELECTOR], "lake");
    let config: ConfigMap = east.config_maps().get(&names::entrypoint("lake")).await.unwrap();
    let secret: Secret = east.secrets().get(&names::curve("lake")).await.unwrap();
    let certificate = String::from_utf8(secret.data.unwrap()["curve.cert"].0.clone()).unwrap();
    let key = secret_key(&certificate);
    assert!(!serde_json::to_string(&config).unwrap().contains(&key), "the secret key is in the ConfigMap");
    assert!(east.services().get("lake").await.unwrap().spec.unwrap().cluster_ip.as_deref() == Some("None"));
    east.delete("lake").await;
    gone(&east.jobs(), "lake").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boot_files_that_are_deleted_or_changed_come_back_byte_for_byte() {
    let federation = together().await;
    let [east, ..] = places(&federation, "boot-files").await;
    east.create("pond", interactive(2)).await;
    east.running("pond").await;
    let name = names::entrypoint("pond");
    let before = east.config_maps().get(&name).await.unwrap();
    let restored = async |what: &str| {
        eventually(what, async || match east.config_maps().get_opt(&name).await {
            Ok(Some(now)) if now.data == before.data => Ok(()),
            Ok(Some(_)) => Err("it differs".to_owned()),
            Ok(None) => Err("it is gone".to_owned()),
            Err(error) => Err(error.to_string()),
        })
        .await;
    };
    east.config_maps().delete(&name, &DeleteParams::default()).await.unwrap();
    restored("the deleted ConfigMap is back").await;
    let key = before.data.as_ref().unwrap().keys().next().unwrap().clone();
    let patch = Patch::Merge(json!({"data": {key: "echo hijacked"}}));
    east.config_maps().patch(&name, &PatchParams::default(), &patch).await.unwrap();
    restored("the changed ConfigMap is back").await;
    east.delete("pond").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_never_changes_under_running_brokers() {
    let federation = together().await;
    let [east, ..] = places(&federation, "certificate").await;
    east.create("reef", interactive(2)).await;
    east.running("reef").await;
    let digest = east.status("reef").await.unwrap().credential_digest;
    assert!(digest.is_some());
    east.secrets().delete(&names::curve("reef"), &DeleteParams::default()).await.unwrap();
    // Something changes, so that a pass is made; the Secret must not come back with another key.
    east.change("reef", json!({"containers": [{"image": "rockylinux:8"}]})).await;
    east.condition("reef", labels::condition::RESTART_REQUIRED, "True", "FrozenPerIncarnation").await;
    assert!(east.secrets().get_opt(&names::curve("reef")).await.unwrap().is_none());
    // A new Job is a new instance, with a new certificate.
    let before = east.status("reef").await.unwrap();
    east.jobs().delete("reef", &DeleteParams::background()).await.unwrap();
    eventually("a new incarnation", async || {
        let now = east.status("reef").await?;
        let restarted = now.instance_restarts == before.instance_restarts + 1 && now.incarnation != before.incarnation;
        if restarted && now.credential_digest != digest { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    east.delete("reef").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_follow_within_the_ranks_there_are() {
    let federation = together().await;
    let [east, ..] = places(&federation, "sizes").await;
    let mut spec = interactive(2);
    spec["maxSize"] = json!(4);
    east.create("delta", spec).await;
    east.running("delta").await;
    for size in [4, 1] {
        east.change("delta", json!({"size": size})).await;
        eventually(format!("{size} brokers"), async || {
            let status = east.status("delta").await?;
            let there = status.size == size && status.ready == Some(size);
            if there { Ok(()) } else { Err(format!("size {} ready {:?}", status.size, status.ready)) }
        })
        .await;
        eventually(format!("a lead that comes now waits for {size}"), async || {
            let files = east.config_maps().get("delta-entrypoint").await.map_err(|error| error.to_string())?;
            let quorum = files.data.unwrap_or_default().remove("quorum");
            if quorum == Some(format!("{size}\n")) { Ok(()) } else { Err(format!("{quorum:?}")) }
        })
        .await;
    }
    assert_eq!(east.status("delta").await.unwrap().instance_restarts, 0);
    east.delete("delta").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_cannot_run_says_why_and_runs_once_it_is_mended() {
    let federation = together().await;
    let [east, ..] = places(&federation, "refused").await;
    let mut spec = interactive(5);
    spec["maxSize"] = json!(3);
    east.create("bog", spec).await;
    let message = east.condition("bog", labels::condition::READY, "False", "InvalidSize").await;
    assert!(message.contains("maxSize"), "{message}");
    assert!(east.jobs().get_opt("bog").await.unwrap().is_none());
    east.change("bog", json!({"maxSize": 5})).await;
    east.running("bog").await;
    east.delete("bog").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspend_holds_back_and_lets_go() {
    let federation = together().await;
    let [east, ..] = places(&federation, "suspend").await;
    let mut spec = interactive(2);
    spec["suspend"] = json!(true);
    east.create("lock", spec).await;
    east.condition("lock", labels::condition::READY, "False", "Suspended").await;
    east.change("lock", json!({"suspend": false})).await;
    east.running("lock").await;
    east.change("lock", json!({"suspend": true})).await;
    east.condition("lock", labels::condition::READY, "False", "Suspended").await;
    east.delete("lock").await;
}

/// The value of `secret-key` in a certificate.
fn secret_key(certificate: &str) -> String {
    let line = certificate.lines().find(|line| line.contains("secret-key")).expect("a certificate has a secret key");
    line.split('"').nth(1).expect("its value is quoted").to_owned()
}
