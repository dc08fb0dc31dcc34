//! A MiniCluster from its creation to its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::{self, condition, upstream};
use tributary::api::minicluster::{MiniClusterStatus, Phase};
use tributary::api::names;
use tributary_sandbox::annotations;
use tributary_tests::eventually::{eventually, gone, never};
use tributary_tests::federation::apply_crds;
use tributary_tests::scenario::{Place, bursting, interactive};

use crate::shared::{alone, places, together};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_life_of_updates_sizes_restarts_and_an_end() {
    let federation = together().await;
    let [east, ..] = places(&federation, "long-life").await;
    let mut spec = interactive(4);
    spec["maxSize"] = json!(6);
    spec["minSize"] = json!(2);
    east.create("reed", spec).await;
    east.running("reed").await;
    let first = east.status("reed").await.unwrap();
    assert_eq!((first.size, first.selector.as_str(), first.maximum_size), (4, "hpa-selector=reed", 6));

    indices(&east, "reed", 4).await;
    scaled(&east, "reed", 4).await;
    for size in [6, 3] {
        let patch = Patch::Merge(json!({"spec": {"replicas": size}}));
        east.mini_clusters().patch_scale("reed", &PatchParams::default(), &patch).await.unwrap();
        scaled(&east, "reed", size).await;
    }
    indices(&east, "reed", 3).await;
    for (size, words) in [(7, "maxSize"), (1, "minSize")] {
        east.change("reed", json!({"size": size})).await;
        eventually(format!("the size {size} is refused because of {words}"), async || {
            let message = east.condition("reed", condition::VALID, "False", "InvalidSize").await;
            let told = message.contains(words) && message.contains(&format!("size {size}"));
            if told { Ok(()) } else { Err(message) }
        })
        .await;
        assert_eq!(east.jobs().get("reed").await.unwrap().spec.unwrap().parallelism, Some(3));
    }

    // In place, at once; and what only a new Job can bring.
    let in_place = json!({"size": 3, "deadlineSeconds": 7200, "jobLabels": {"team": "water"}});
    east.change("reed", in_place).await;
    eventually("deadline and label are on the same Job", async || {
        let job = east.jobs().get("reed").await.map_err(|error| error.to_string())?;
        assert_eq!(job.uid(), first.incarnation);
        let deadline = job.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let label = job.labels().get("team").cloned();
        if (deadline, label.as_deref()) == (Some(7200), Some("water")) {
            Ok(())
        } else {
            Err(format!("{deadline:?} {label:?}"))
        }
    })
    .await;
    east.condition("reed", condition::RESTART_REQUIRED, "False", "UpToDate").await;
    let image = json!([{"image": "rockylinux:8"}]);
    east.change("reed", json!({"containers": image, "jobLabels": {"team": null}, "tasks": 3})).await;
    let message = east.condition("reed", condition::RESTART_REQUIRED, "True", "FrozenPerIncarnation").await;
    assert!(message.contains(": spec.containers[0].image, spec.tasks;"), "{message}");
    event(&east, "reed", "FrozenPerIncarnation").await;

    // The lead is rescheduled: the same Job, another instance.
    let pod = east.status("reed").await.unwrap().lead.pod.expect("the lead is known");
    east.pods().delete(&pod, &DeleteParams::default()).await.unwrap();
    let status = restarts(&east, "reed", 1).await;
    assert_eq!(status.incarnation, first.incarnation);
    assert_ne!(status.lead.pod.as_deref(), Some(pod.as_str()));
    event(&east, "reed", "InstanceRestarted").await;

    // Asked for by the annotation: another Job, which follows the spec.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::RESTART: "1"}}}));
    east.mini_clusters().patch("reed", &PatchParams::default(), &patch).await.unwrap();
    let status = restarts(&east, "reed", 2).await;
    assert_ne!(status.incarnation, first.incarnation);
    east.running("reed").await;
    east.condition("reed", condition::RESTART_REQUIRED, "False", "UpToDate").await;
    let job = east.jobs().get("reed").await.unwrap();
    let pod = job.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers[0].image.as_deref(), Some("rockylinux:8"));

    // The command fails; its end stays, whatever becomes of the Job.
    east.annotate_pod("reed", 0, annotations::EXIT, "3").await;
    let message = east.condition("reed", condition::FINISHED, "True", "CommandFailed").await;
    assert!(message.contains("exit code 3"), "{message}");
    let status = east.status("reed").await.unwrap();
    assert_eq!((status.phase, status.exit_code), (Some(Phase::Failed), Some(3)));
    east.jobs().delete("reed", &DeleteParams::foreground()).await.unwrap();
    eventually("the status says that the Job is gone", async || {
        let status = east.status("reed").await?;
        let said = status.conditions.iter().any(|one| one.message.contains("its Job is gone"));
        if said && status.size == 0 { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    let status = east.status("reed").await.unwrap();
    assert_eq!((status.phase, status.exit_code), (Some(Phase::Failed), Some(3)));
    assert!(east.jobs().get_opt("reed").await.unwrap().is_none(), "a computation that ended does not run twice");
    east.change("reed", json!({"ttlSecondsAfterFinished": 0})).await;
    gone(&east.mini_clusters(), "reed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_recreates_the_instance_and_its_bursts() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "recreate").await;
    let mut spec = bursting(1, json!([{"size": 1, "peer": "west"}]));
    spec["updates"] = json!("Recreate");
    east.create("willow", spec).await;
    east.burst("willow", "willow-burst-0", BurstPhase::Ready).await;
    let first = east.status("willow").await.unwrap();
    let hosted = west.hosted().get("willow-burst-0").await.unwrap().uid();
    east.change("willow", json!({"containers": [{"image": "rockylinux:8"}]})).await;
    let second = restarts(&east, "willow", 1).await;
    assert_ne!(second.incarnation, first.incarnation);
    assert_ne!(second.credential_digest, first.credential_digest);
    eventually("the burst is there again, for the new instance", async || {
        let burst = east.burst_now("willow", "willow-burst-0").await?;
        let phase = burst.status.as_ref().map(|status| status.phase);
        let now = west.hosted().get_opt("willow-burst-0").await.map_err(|error| error.to_string())?;
        let replaced = now.is_some_and(|now| now.uid() != hosted);
        let current = Some(&burst.spec.incarnation) == second.incarnation.as_ref() && !burst.spec.release;
        if replaced && current && phase == Some(BurstPhase::Ready) { Ok(()) } else { Err(format!("{phase:?}")) }
    })
    .await;
    east.delete("willow").await;
    west.empty("willow-burst-0").await;
}

/// The danger: what runs is ended for another instance that can never be made.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_runs_on_whose_successor_cannot_be_made() {
    let federation = together().await;
    let [east, ..] = places(&federation, "successor").await;
    let mut spec = interactive(2);
    spec["updates"] = json!("Recreate");
    east.create("rush", spec).await;
    east.running("rush").await;
    let first = east.status("rush").await.unwrap().incarnation;
    let setups: Api<FluxSetup> = Api::namespaced(east.client.clone(), &east.namespace);
    let quota = FluxSetup::new("default", serde_json::from_value(json!({"quota": {"brokers": 3}})).unwrap());
    setups.create(&Default::default(), &quota).await.unwrap();
    let confined = json!({"appArmorProfile": {"type": "nonsense"}});
    let containers = |context: Value| json!([{"image": "rockylinux:9", "securityContext": context}]);
    for (change, told) in [
        (json!({"flux": {"curveCertSecret": "own"}}), "Secret own does not exist"),
        (json!({"flux": {"curveCertSecret": null}, "containers": containers(confined)}), "appArmorProfile"),
        (
            json!({"containers": containers(json!(null)), "pod": {"priorityClassName": "none"}}),
            "no PriorityClass with name none",
        ),
        (
            json!({"pod": {"priorityClassName": null, "serviceAccountName": "none"}}),
            "serviceaccount \"none\" not found",
        ),
        (json!({"pod": {"serviceAccountName": null}, "size": 4}), "it can never start here: 4 brokers are needed"),
        (json!({"flux": {"curveCertSecret": "own"}, "size": 2}), "Secret own does not exist"),
    ] {
        east.change("rush", change).await;
        eventually(format!("it is told: {told}"), async || {
            let message = east.condition("rush", condition::RESTART_REQUIRED, "True", "CannotRestart").await;
            if message.contains(told) { Ok(()) } else { Err(message) }
        })
        .await;
        let status = east.status("rush").await.unwrap();
        assert_eq!((status.phase, &status.incarnation), (Some(Phase::Running), &first), "{told}");
    }
    let certificate = east.secrets().get("rush-curve").await.unwrap().data;
    let own = Secret {
        metadata: ObjectMeta { name: Some("own".into()), ..ObjectMeta::default() },
        data: certificate,
        ..Secret::default()
    };
    east.secrets().create(&Default::default(), &own).await.unwrap();
    restarts(&east, "rush", 1).await;
    setups.delete("default", &DeleteParams::default()).await.unwrap();
    east.delete("rush").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_the_upstream_operator_are_taken_over_and_left_alone() {
    let federation = together().await;
    let [east, ..] = places(&federation, "adoption").await;
    // As upstream makes it, but for the owner: so far it is somebody else's.
    let job: Value = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "elder", "namespace": east.namespace},
        "spec": {
            "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 100,
            "template": {
                "metadata": {"labels": {"app": "flux-operator", upstream::HPA_SELECTOR: "elder"}},
                "spec": {"restartPolicy": "OnFailure", "containers": [{"name": "elder", "image": "old"}]},
            },
        },
    });
    let params = PatchParams::apply("upstream");
    east.jobs().patch("elder", &params, &Patch::Apply(&job)).await.unwrap();
    let mut spec = interactive(2);
    spec["maxSize"] = json!(4);
    let object = east.create("elder", spec).await;
    let message = east.condition("elder", condition::READY, "False", "NameTaken").await;
    assert!(message.contains("Job elder belongs to nobody"), "{message}");
    let owner = json!([{
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "elder", "uid": object.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": owner}}));
    let before = east.jobs().patch("elder", &PatchParams::default(), &patch).await.unwrap();
    east.condition("elder", condition::ADOPTED, "True", "UpstreamJob").await;
    east.running("elder").await;
    indices(&east, "elder", 2).await;
    east.change("elder", json!({"size": 3})).await;
    scaled(&east, "elder", 3).await;
    let after = east.jobs().get("elder").await.unwrap();
    assert_eq!(after.spec.unwrap().template, before.spec.unwrap().template);
    assert_eq!(after.metadata.annotations, before.metadata.annotations);
    // The next one is ours.
    east.jobs().delete("elder", &DeleteParams::background()).await.unwrap();
    let status = restarts(&east, "elder", 1).await;
    assert!(status.conditions.iter().all(|one| one.type_ != condition::ADOPTED));
    assert!(east.jobs().get("elder").await.unwrap().annotations().contains_key(labels::BOOT_DIGEST));
    east.running("elder").await;
    east.delete("elder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_others_is_touched_and_what_nobody_asks_for_goes() {
    let federation = together().await;
    let [east, ..] = places(&federation, "borders").await;
    // Names that are taken: by objects of nobody, and by another MiniCluster.
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "moss-curve"}, "stringData": {"mine": "x"}});
    let mine = PatchParams::apply("somebody");
    east.secrets().patch("moss-curve", &mine, &Patch::Apply(&secret)).await.unwrap();
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "other-0", "labels": {upstream::HPA_SELECTOR: "moss", labels::kubernetes::COMPLETION_INDEX: "0"},
    }, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    east.pods().patch("other-0", &mine, &Patch::Apply(&other)).await.unwrap();
    let with_sidecar = |headless: &str, port: i32| {
        let mut spec = interactive(1);
        spec["network"] = json!({"headlessName": headless});
        spec["containers"] = json!([
            {"image": "rockylinux:9", "runFlux": true},
            {"name": "nginx", "image": "nginx", "command": "nginx", "ports": [port]},
        ]);
        spec["services"] = json!([{"name": "db", "image": "db:1"}]);
        spec
    };
    east.create("moss", with_sidecar("bog", 80)).await;
    let message = east.condition("moss", condition::READY, "False", "NameTaken").await;
    assert!(message.starts_with(&format!("Secret {}/moss-curve is there already", east.namespace)), "{message}");
    assert!(east.jobs().get_opt("moss").await.unwrap().is_none());
    assert_eq!(east.secrets().get("moss-curve").await.unwrap().data.unwrap().len(), 1);
    east.secrets().delete("moss-curve", &DeleteParams::default()).await.unwrap();
    // Whatever changes makes a pass.
    east.change("moss", json!({"deadlineSeconds": 9000})).await;
    east.running("moss").await;

    east.create("fern", with_sidecar("bog", 80)).await;
    let message = east.condition("fern", condition::READY, "False", "NameTaken").await;
    assert!(message.contains("bog is there already and belongs to MiniCluster moss"), "{message}");
    east.change("fern", json!({"network": {"headlessName": "fen"}})).await;
    east.running("fern").await;
    let message = east.condition("fern", condition::SERVICES_READY, "False", "NameTaken").await;
    assert!(message.contains("nginx"), "{message}");
    east.delete("fern").await;

    // Ports follow at once; the name that brokers were started with stays until there are others.
    let mut spec = with_sidecar("mire", 81);
    spec["services"][0]["image"] = json!("db:2");
    east.change("moss", spec).await;
    let message = east.condition("moss", condition::RESTART_REQUIRED, "True", "FrozenPerIncarnation").await;
    assert!(message.contains(": spec.network.headlessName;"), "{message}");
    eventually("the port has changed, and the service pod", async || {
        let nginx = east.services().get("nginx").await.map_err(|error| error.to_string())?;
        let ports: Vec<i32> =
            nginx.spec.and_then(|spec| spec.ports).into_iter().flatten().map(|port| port.port).collect();
        let pod = east.pods().get_opt("moss-services").await.map_err(|error| error.to_string())?;
        let image = pod.and_then(|pod| pod.spec?.containers.into_iter().next()?.image);
        if ports == [81] && image.as_deref() == Some("db:2") { Ok(()) } else { Err(format!("{ports:?} {image:?}")) }
    })
    .await;
    assert!(east.services().get_opt("bog").await.unwrap().is_some(), "the brokers' names are needed");
    assert!(east.services().get_opt("mire").await.unwrap().is_none());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::RESTART: "1"}}}));
    east.mini_clusters().patch("moss", &PatchParams::default(), &patch).await.unwrap();
    restarts(&east, "moss", 1).await;
    east.running("moss").await;
    eventually("the old Service is swept", async || {
        let names = (east.services().get_opt("bog").await, east.services().get_opt("mire").await);
        match names {
            (Ok(None), Ok(Some(_))) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let other = east.pods().get("other-0").await.unwrap();
    assert!(!other.labels().contains_key(upstream::JOB_INDEX), "a pod of somebody else");
    // Its node needed the room: the pod is only on record.
    let pod = eventually("the pod of the services is there", async || {
        let pod = east.pods().get_opt("moss-services").await.map_err(|error| error.to_string())?;
        let here = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        here.map(|pod| pod.metadata.uid).ok_or("it is not".to_owned())
    })
    .await;
    let evicted = Patch::Merge(json!({"status": {"phase": "Failed", "reason": "Evicted"}}));
    east.pods().patch_status("moss-services", &PatchParams::default(), &evicted).await.unwrap();
    eventually("another pod of the services is there", async || {
        let next = east.pods().get_opt("moss-services").await.map_err(|error| error.to_string())?;
        match next.and_then(|next| next.metadata.uid).filter(|next| Some(next) != pod.as_ref()) {
            Some(_) => Ok(()),
            None => Err("it is not".to_owned()),
        }
    })
    .await;
    // What brokers are named by becomes a Service of the lead alone, and one of all pods again.
    for (minimal, count) in [(true, 2), (false, 3)] {
        east.change("moss", json!({"flux": {"minimalService": minimal}})).await;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::RESTART: count.to_string()}}}));
        east.mini_clusters().patch("moss", &PatchParams::default(), &patch).await.unwrap();
        restarts(&east, "moss", count).await;
        let spec = east.services().get("mire").await.unwrap().spec.unwrap();
        assert_eq!(spec.cluster_ip.as_deref() != Some("None"), minimal);
        assert_eq!(spec.ports.is_some(), minimal);
    }
    east.delete("moss").await;
}

/// The dangers: the pod of `spec.services` becomes what the instance began with, or goes and never comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_the_spec_takes_nothing_of_what_runs() {
    let federation = together().await;
    let [east, ..] = places(&federation, "mistaken").await;
    let with_service = |service: Value| {
        let mut spec = interactive(1);
        spec["services"] = json!([service]);
        spec
    };
    let image = async |wanted: &str| {
        eventually(format!("the service pod has {wanted}"), async || {
            let pod = east.pods().get_opt("heath-services").await.map_err(|error| error.to_string())?;
            let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()).ok_or("there is none")?;
            let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone());
            if image.as_deref() == Some(wanted) { Ok(pod.uid()) } else { Err(format!("{image:?}")) }
        })
        .await
    };
    east.create("heath", with_service(json!({"name": "db", "image": "db:1"}))).await;
    east.running("heath").await;
    image("db:1").await;
    east.change("heath", with_service(json!({"name": "db", "image": "db:2"}))).await;
    let runs = image("db:2").await;
    let nameless =
        json!({"name": "db", "image": "db:2", "secrets": {"TOKEN": {"key": "Not A Name", "name": "others"}}});
    east.change("heath", with_service(nameless)).await;
    eventually("the agent refuses it", async || {
        let status = east.status("heath").await?;
        let valid = status.conditions.into_iter().find(|one| one.type_ == condition::VALID);
        if valid.as_ref().is_some_and(|valid| valid.status == "False") { Ok(()) } else { Err(format!("{valid:?}")) }
    })
    .await;
    let confined = json!({"appArmorProfile": {"type": "nonsense"}});
    let refused = json!({"name": "db", "image": "db:3", "secrets": null, "securityContext": confined});
    east.change("heath", with_service(refused)).await;
    let message = east.condition("heath", condition::READY, "False", "CannotMaintain").await;
    assert!(message.contains("Pod mistaken/heath-services") && message.contains("appArmorProfile"), "{message}");
    assert_eq!(image("db:2").await, runs);
    east.change("heath", with_service(json!({"name": "db", "image": "db:3"}))).await;
    image("db:3").await;
    east.delete("heath").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_definition_that_is_put_back_hides_much_and_ends_nothing() {
    // Everything else on this cluster would see less as well.
    let federation = alone().await;
    let [east, west, _] = places(&federation, "outdated").await;
    let mut spec = bursting(2, json!([{"size": 1, "peer": "west"}]));
    spec["suspend"] = json!(false);
    east.create("heron", spec).await;
    east.burst("heron", "heron-burst-0", BurstPhase::Ready).await;
    east.condition("heron", condition::BURSTS_READY, "True", "AllReady").await;
    let before = east.status("heron").await.unwrap();
    let hosted = west.hosted().get("heron-burst-0").await.unwrap().uid();

    let definitions: Api<CustomResourceDefinition> = Api::all(east.client.clone());
    let mut older = definitions.get("miniclusters.flux-framework.org").await.unwrap();
    let upstream: CustomResourceDefinition =
        serde_json::from_value(tributary_tests::upstream::definition().unwrap()).unwrap();
    older.spec = upstream.spec;
    definitions.replace("miniclusters.flux-framework.org", &Default::default(), &older).await.unwrap();
    eventually("our fields are hidden", async || match east.status("heron").await {
        Ok(status) if status.incarnation.is_none() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // The Service is lost while the agent may not trust what it sees: a pass that must do nothing.
    east.services().delete("heron", &DeleteParams::default()).await.unwrap();
    event(&east, "heron", "CRDOutdated").await;
    never("a burst is released", Duration::from_secs(3), async || {
        let burst = east.bursts().get_opt(&names::burst_object("heron", "heron-burst-0")).await.ok()?.is_some();
        let there = west.hosted().get_opt("heron-burst-0").await.ok()?.is_some_and(|now| now.uid() == hosted);
        let job = east.jobs().get_opt("heron").await.ok()?.and_then(|job| job.uid());
        let same = burst && there && job == before.incarnation;
        (!same).then(|| format!("{burst} {there} {job:?}"))
    })
    .await;
    apply_crds(&east.client).await.unwrap();
    eventually("all is as it was", async || {
        let now = east.status("heron").await?;
        // Nothing followed from the object as it was shown in between.
        let trusted = |one: &&Condition| one.type_ == condition::RESTART_REQUIRED;
        assert_eq!(now.conditions.iter().find(trusted), before.conditions.iter().find(trusted));
        let same = (&now.incarnation, &now.rank_map_digest, &now.bursts_ready, now.instance_restarts)
            == (&before.incarnation, &before.rank_map_digest, &before.bursts_ready, before.instance_restarts);
        let service = east.services().get_opt("heron").await.map_err(|error| error.to_string())?.is_some();
        if same && service { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    assert_eq!(west.hosted().get("heron-burst-0").await.unwrap().uid(), hosted);
    east.delete("heron").await;
    west.empty("heron-burst-0").await;
}

/// Every pod that lives bears its index as upstream labels it; others are not touched.
async fn indices(place: &Place, name: &str, size: usize) {
    let expected: Vec<String> = (0..size).map(|index| index.to_string()).collect();
    eventually(format!("{name} has pods with the indices 0 to {}", size - 1), async || {
        let selector = format!("{}={name}", upstream::HPA_SELECTOR);
        let pods =
            place.pods().list(&ListParams::default().labels(&selector)).await.map_err(|error| error.to_string())?;
        let lives = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        let index = |pod: &Pod| pod.labels().get(upstream::JOB_INDEX).cloned().unwrap_or_default();
        let mut found: Vec<String> = pods.items.iter().filter(lives).map(index).collect();
        found.sort();
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// The scale subresource says that there are so many, and by which labels an autoscaler finds them.
async fn scaled(place: &Place, name: &str, size: i32) {
    eventually(format!("{name} has the scale {size}"), async || {
        let scale = place.mini_clusters().get_scale(name).await.map_err(|error| error.to_string())?;
        let status = scale.status.unwrap_or_default();
        let there = status.replicas == size && status.selector == Some(format!("hpa-selector={name}"));
        if there { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

async fn restarts(place: &Place, name: &str, count: i32) -> MiniClusterStatus {
    eventually(format!("{name} was started anew {count} times"), async || {
        let status = place.status(name).await?;
        if status.instance_restarts == count { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

pub(crate) async fn event(place: &Place, name: &str, reason: &str) {
    let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
    eventually(format!("an event {reason} about {name}"), async || {
        let list = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let about = |event: &&Event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name);
        let reasons: Vec<_> = list.items.iter().filter(about).filter_map(|event| event.reason.clone()).collect();
        if reasons.iter().any(|seen| seen == reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await;
}
