//! What helm refuses, since it would break what runs: tried on what `chart` has installed.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt as _};
use serde_json::json;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary_sandbox::Sandbox;
use tributary_tests::chart;

use crate::chart::repository;

/// The danger: the provider watches another namespace from now on, and tells the root that nothing is left of its burst.
pub(crate) fn no_burst_is_left_out_of_sight(sandbox: &Sandbox) {
    for (context, release, set, why) in [
        (
            "west",
            "tributary",
            "watchNamespaces={research}",
            "would leave out default, where burst first-burst-0 of peer east is",
        ),
        (
            "east",
            "tributary",
            "watchNamespaces={research} --set-json volumes.classes=[]",
            "would leave out default, where burst first-burst-0 of MiniCluster first is: peer west would end",
        ),
        ("east", "tributary", "cluster.name=aws-east", "peers know this cluster as \"east\""),
        (
            "west",
            "second --install",
            "cluster.name=second",
            "release tributary has agents in namespace tributary-system",
        ),
    ] {
        let (goes, told) = upgrade(sandbox, context, release, set);
        assert!(!goes && told.contains(why), "{context} {release} {set}: {told}");
    }
    let (goes, why) = upgrade(sandbox, "west", "tributary", "watchNamespaces={research,default}");
    assert!(goes, "{why}");
}

/// The danger: API servers go on asking agents for v1alpha1 that convert nothing any more. No agent runs.
pub(crate) async fn nobody_is_left_without_conversion(sandbox: &Sandbox, client: &Client) {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let by = json!({"metadata": {"annotations": {labels::CONVERTED_BY: "tributary-system/tributary-webhook"}}});
    let name = MiniCluster::crd_name();
    definitions.patch(name, &PatchParams::default(), &Patch::Merge(by)).await.unwrap();
    for (converts, told) in [("false", "convert v1alpha1 for the whole cluster"), ("true", "")] {
        let set = format!("watchNamespaces={{research,default}},webhook.clusterWide={converts}");
        let (goes, why) = upgrade(sandbox, "west", "tributary", &set);
        assert!(goes == told.is_empty() && why.contains(told), "{set}: {why}");
    }
}

/// The danger: helm deletes the kinds, and with them every MiniCluster.
pub(crate) async fn no_kind_leaves_its_release_unkept(sandbox: &Sandbox, client: &Client) {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for (policy, told) in [(None, "set tributary-crds.keep=true"), (Some("keep"), "")] {
        let kept = json!({"metadata": {"annotations": {"helm.sh/resource-policy": policy}}});
        definitions.patch(MiniCluster::crd_name(), &PatchParams::default(), &Patch::Merge(kept)).await.unwrap();
        let (goes, why) = upgrade(sandbox, "west", "tributary", "crds.enabled=false");
        assert!(goes == told.is_empty() && why.contains(told), "{policy:?}: {why}");
    }
}

/// The danger: the agents of each release end the bursts of the other one.
pub(crate) async fn two_releases_share_no_namespace(sandbox: &Sandbox, client: &Client) {
    let leases = Api::<Lease>::namespaced(client.clone(), "tributary-system");
    #[allow(clippy::disallowed_methods, reason = "helm asks this machine's clock")]
    let spec = LeaseSpec {
        holder_identity: Some("tributary-0".to_owned()),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    let annotations = Some([(labels::WATCHED_NAMESPACES.to_owned(), "*".to_owned())].into());
    let metadata = ObjectMeta { name: Some("tributary-agent".to_owned()), annotations, ..ObjectMeta::default() };
    leases.delete("tributary-agent", &DeleteParams::default()).await.ok();
    leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await.unwrap();
    let install = |set: &str| {
        let kinds = "crds.enabled=false,webhook.enabled=false";
        helm(
            sandbox,
            &format!(
                "install second charts/tributary --kube-context west --namespace second --create-namespace --dry-run=server \
                 --set cluster.name=second,{kinds}{set}"
            ),
        )
    };
    let (goes, told) = install("");
    assert!(!goes && told.contains("agents of a release in namespace tributary-system run already"), "{told}");
    let (goes, told) = install(",watchNamespaces={second}");
    assert!(goes, "agents refuse what helm cannot see: {told}");
    leases.delete("tributary-agent", &DeleteParams::default()).await.unwrap();
    let (goes, told) = install("");
    assert!(goes, "nobody is there any more: {told}");
}

/// Whether helm would upgrade a release so, and what it says.
fn upgrade(sandbox: &Sandbox, context: &str, release: &str, set: &str) -> (bool, String) {
    helm(
        sandbox,
        &format!(
            "upgrade {release} charts/tributary --kube-context {context} --namespace tributary-system --reuse-values \
             --dry-run=server --set {set}"
        ),
    )
}

fn helm(sandbox: &Sandbox, words: &str) -> (bool, String) {
    let arguments: Vec<&str> = words.split_whitespace().collect();
    let output = chart::helm(&repository(), Some(&sandbox.kubeconfig()), &arguments).unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}
