//! What the API server refuses, and what never answers: in the status within the pass, with its words; and it holds no room.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tributary::api::flux_job::{FluxJobStatus, JobPhase, JobResult};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition;
use tributary::api::minicluster::Phase;
use tributary_sandbox::annotations;
use tributary_tests::eventually::{eventually, gone, never};
use tributary_tests::scenario::{Place, bursting, interactive};

use crate::queue::{apply, jobs, setups, submit, taken, told, until};
use crate::shared::{places, together};

async fn made<K>(api: &Api<K>, object: Value)
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn quota(place: &Place, hard: Value) {
    let api: Api<ResourceQuota> = Api::namespaced(place.client.clone(), &place.namespace);
    made(&api, json!({"metadata": {"name": "none"}, "spec": {"hard": hard}})).await;
    eventually("the quota counts", async || {
        let status = api.get("none").await.map_err(|error| error.to_string())?.status.and_then(|status| status.used);
        status.ok_or_else(|| "it does not".to_owned())
    })
    .await;
}

async fn no_quota(place: &Place) {
    let api: Api<ResourceQuota> = Api::namespaced(place.client.clone(), &place.namespace);
    api.delete("none", &DeleteParams::default()).await.unwrap();
}

/// A policy of the cluster about one namespace.
struct Policy {
    client: Client,
    name: String,
}

impl Policy {
    /// Jobs that are `CREATE`d or `UPDATE`d there are refused with this reason; what is created is, once it is returned.
    async fn made(place: &Place, operation: &str, reason: &str) -> Self {
        let policy = Self::about(place, ("batch", "jobs"), operation, reason).await;
        if operation == "CREATE" {
            counts(&place.jobs(), job(), NIGHT).await;
        }
        policy
    }

    async fn about(place: &Place, about: (&str, &str), operation: &str, reason: &str) -> Self {
        Self::that(place, about, operation, reason, "false").await
    }

    /// `allows`: what it asks of an object, in CEL.
    async fn that(place: &Place, (group, kind): (&str, &str), operation: &str, reason: &str, allows: &str) -> Self {
        let name = format!("{}-{kind}-{}", place.namespace, operation.to_lowercase());
        let of = |place: &Place| place.client.clone();
        let spec = json!({
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [kind],
            }]},
            "validations": [{"expression": allows, "message": NIGHT, "reason": reason}],
        });
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(of(place));
        made(&policies, json!({"metadata": {"name": name}, "spec": spec})).await;
        let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": place.namespace}});
        let spec = json!({
            "policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selector},
        });
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(of(place));
        made(&bindings, json!({"metadata": {"name": name}, "spec": spec})).await;
        Self { client: of(place), name }
    }

    async fn removed(self) {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        bindings.delete(&self.name, &DeleteParams::default()).await.unwrap();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client);
        policies.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}

fn job() -> Value {
    json!({"metadata": {"name": "tried"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
    }}}})
}

/// What policies here say.
const NIGHT: &str = "the night shift makes nothing";

/// Waits until such objects are refused, and this is said.
async fn counts<K>(api: &Api<K>, object: Value, said: &str)
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually(format!("{said} counts"), async || match api.create(&dry, &object).await {
        Err(kube::Error::Api(status)) if status.message.contains(said) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// Creates a MiniCluster, and waits until its status says why it does not start: with these words, and one event.
async fn refused(place: &Place, name: &str, phase: Phase, words: &[&str]) {
    place.create(name, interactive(1)).await;
    let message = place.condition(name, condition::READY, "False", "CannotCreate").await;
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    assert_eq!(place.status(name).await.unwrap().phase, Some(phase), "{message}");
    let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
    eventually("an event says so", async || {
        let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let ours = all.iter().filter(|event| {
            event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name)
                && event.reason.as_deref() == Some("CannotCreate")
        });
        match ours.count() {
            1 => Ok(()),
            other => Err(format!("{other} events")),
        }
    })
    .await;
}

/// The danger: node ports are not allowed, a burst is declared, and not even the root's own brokers start.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_starts_without_the_service_of_its_lead_and_gets_it_once_that_is_allowed() {
    let federation = together().await;
    let [east, ..] = places(&federation, "no-node-ports").await;
    quota(&east, json!({"services.nodeports": "0"})).await;
    east.create("lake", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    east.running("lake").await;
    let message = east.condition("lake", condition::SERVICES_READY, "False", "CannotCreate").await;
    assert!(message.contains("exceeded quota: none") && message.ends_with("or use network.type: Tunnel"), "{message}");
    no_quota(&east).await;
    east.burst("lake", "lake-burst-0", BurstPhase::Ready).await;
    eventually("it has all Services", async || {
        let found =
            east.status("lake").await?.conditions.into_iter().find(|one| one.type_ == condition::SERVICES_READY);
        found.map_or(Ok(()), |found| Err(found.message))
    })
    .await;
    east.delete("lake").await;
}

/// The dangers: a policy about pods that nobody controls keeps all bursts away; and of one that runs, nobody hears any more,
/// since a change of it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn bursts_run_beside_policies_of_the_provider_and_say_what_those_refuse() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "policy-bursts").await;
    let allows = "has(object.metadata.ownerReferences)";
    let bare = Policy::that(&west, ("", "pods"), "CREATE", "Forbidden", allows).await;
    let pod = json!({"metadata": {"name": "tried"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    counts(&west.pods(), pod, NIGHT).await;
    let sized = |size: u32| json!([{"size": size, "maxSize": 2, "peer": "west"}]);
    east.create("lake", bursting(1, sized(1))).await;
    east.burst("lake", "lake-burst-0", BurstPhase::Ready).await;
    bare.removed().await;

    let policy = Policy::about(&west, ("tributary.dev", "hostedbursts"), "UPDATE", "Forbidden").await;
    // The policy is seen to count by what it does.
    eventually("both sides say why it does not grow", async || {
        let size = if west.hosted().get("lake-burst-0").await.unwrap().spec.size == 1 { 2 } else { 1 };
        east.change("lake", json!({"flux": {"bursting": {"clusters": sized(size)}}})).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let there = west.hosted().get("lake-burst-0").await.unwrap().status.unwrap_or_default().message;
        let here = east.burst_now("lake", "lake-burst-0").await?.status.unwrap_or_default().message;
        let told = |message: &str| message.contains("it cannot be changed: ") && message.contains("the night shift");
        if told(&there) && told(&here) { Ok(()) } else { Err(format!("{there:?} and {here:?}")) }
    })
    .await;
    assert!(
        east.burst_now("lake", "lake-burst-0").await.unwrap().status.unwrap().ready_brokers > 0,
        "what runs goes on"
    );
    policy.removed().await;
    east.delete("lake").await;
    west.empty("lake-burst-0").await;
}

/// The Job is taken; its pods are not, since none of their containers requests anything.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_a_quota_refuses_are_told() {
    let federation = together().await;
    let [east, ..] = places(&federation, "unmade").await;
    quota(&east, json!({"requests.cpu": "64"})).await;
    east.create("bare", interactive(2)).await;
    let message = east.condition("bare", condition::READY, "False", "PodsNotMade").await;
    assert!(message.contains("2 of the 2 pods") && message.contains("kubectl describe job bare"), "{message}");
    no_quota(&east).await;
    east.running("bare").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_server_refuses_is_told_and_runs_once_it_does_not() {
    let federation = together().await;
    let [east, ..] = places(&federation, "refusals").await;

    quota(&east, json!({"secrets": "0"})).await;
    let words = ["failed to ", "Secret refusals/quota-curve", "exceeded quota: none", "have the ResourceQuota raised"];
    refused(&east, "quota", Phase::Refused, &words).await;
    no_quota(&east).await;
    east.running("quota").await;

    for (name, reason) in [("forbidden", "Forbidden"), ("invalid", "Invalid")] {
        let policy = Policy::made(&east, "CREATE", reason).await;
        let words = ["create Job", "the night shift makes nothing", "looks after the policy"];
        refused(&east, name, Phase::Refused, &words).await;
        // Another spec is another chance, and the other parts of the status go on.
        east.change(name, json!({"size": 2})).await;
        eventually("the status is about the new spec", async || {
            let object = east.mini_clusters().get(name).await.map_err(|error| error.to_string())?;
            let generation = object.metadata.generation;
            let observed = object.status.and_then(|status| status.observed_generation);
            if observed == generation { Ok(()) } else { Err(format!("{observed:?} of {generation:?}")) }
        })
        .await;
        policy.removed().await;
        east.running(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_never_answers_is_named() {
    let federation = together().await;
    let [east, ..] = places(&federation, "silence").await;
    // It takes connections, and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(east.client.clone());
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": east.namespace}});
    let hook = json!({"metadata": {"name": "silence"}, "webhooks": [{
        "name": "silence.example.org", "clientConfig": {"url": url}, "sideEffects": "None", "timeoutSeconds": 1,
        "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "namespaceSelector": selector,
        "rules": [{"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}],
    }]});
    made(&webhooks, hook).await;
    counts(&east.jobs(), job(), "silence.example.org").await;
    refused(&east, "waits", Phase::Pending, &["create Job", "silence.example.org", "mended or removed"]).await;
    webhooks.delete("silence", &DeleteParams::default()).await.unwrap();
    east.running("waits").await;
}

/// A running instance cannot follow its spec: that is told, and everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_running_instance_cannot_follow_is_told_and_the_rest_goes_on() {
    let federation = together().await;
    let [east, ..] = places(&federation, "maintained").await;
    let mut spec = interactive(2);
    spec["maxSize"] = json!(4);
    spec["minSize"] = json!(1);
    east.create("lake", spec).await;
    east.running("lake").await;
    let policy = Policy::made(&east, "UPDATE", "Forbidden").await;
    // The policy is seen to count by what it does.
    let message = eventually("it cannot grow", async || {
        // It may have grown before the policy counted, and then it cannot shrink either.
        let size = if east.status("lake").await?.size == 3 { 4 } else { 3 };
        east.change("lake", json!({"size": size})).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ready = east.status("lake").await?.conditions.into_iter().find(|one| one.type_ == condition::READY);
        match ready {
            Some(ready) if ready.reason == "CannotMaintain" => Ok(ready.message),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(message.contains("change Job maintained/lake") && message.contains("night shift"), "{message}");
    assert_eq!(east.status("lake").await.unwrap().phase, Some(Phase::Running), "it runs on as it is");
    // The lead's pod is replaced: what is ready and who leads is told all the same.
    let status = east.status("lake").await.unwrap();
    let (brokers, before) = (status.size, status.lead.pod.unwrap());
    east.pods().delete(&before, &DeleteParams::default()).await.unwrap();
    eventually("another pod leads", async || {
        let status = east.status("lake").await?;
        let replaced = status.lead.pod.as_ref().is_some_and(|pod| *pod != before);
        if replaced && status.instance_restarts == 1 && status.ready == Some(brokers) {
            Ok(())
        } else {
            Err(format!("{:?} {:?}", status.lead, status.ready))
        }
    })
    .await;
    policy.removed().await;
    // It is tried again by itself, after a while that doubles up to five minutes; a change of the spec is tried at once.
    eventually("it follows its spec", async || {
        let status = east.status("lake").await?;
        let ready = status.conditions.iter().find(|one| one.type_ == condition::READY);
        if ready.is_some_and(|ready| ready.status == "True") {
            return Ok(());
        }
        // A size that the spec does not have: writing the same again changes nothing, and nothing is tried.
        let size = east.mini_clusters().get("lake").await.unwrap().spec.size;
        east.change("lake", json!({"size": if size == Some(3) { 4 } else { 3 }})).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Err(format!("{ready:?}"))
    })
    .await;
    east.running("lake").await;
}

async fn ended(place: &Place, name: &str) -> FluxJobStatus {
    let status = until(place, name, JobPhase::Finished).await;
    let finished = status.conditions.iter().find(|one| one.type_ == "Finished").unwrap();
    assert_eq!(finished.status, "True");
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_flux_job_has_ended_with_the_reason_and_holds_nothing() {
    let federation = together().await;
    let [east, ..] = places(&federation, "refused-jobs").await;
    apply(setups(&east), "FluxSetup", "default", json!({"quota": {"brokers": 2}})).await;
    let reason =
        |status: &FluxJobStatus| status.conditions.iter().find(|one| one.type_ == "Finished").unwrap().reason.clone();

    // The agent refuses its MiniCluster.
    submit(&east, "quotes", json!({"size": 2, "command": "echo 'x"})).await;
    let status = ended(&east, "quotes").await;
    assert_eq!((status.result, reason(&status).as_str()), (Some(JobResult::Failed), "Refused"));
    assert!(status.message.starts_with("its MiniCluster is refused: spec."), "{}", status.message);
    taken(&east, 0, 0).await;
    // Nothing is left that could run later.
    gone(&east.mini_clusters(), "quotes").await;

    // It waits in line, and turns invalid there: who waits behind it has its turn.
    east.create("first", interactive(2)).await;
    east.running("first").await;
    east.create("second", interactive(2)).await;
    east.condition("second", condition::READY, "False", "Queued").await;
    east.change("second", json!({"minSize": 3})).await;
    eventually("it is refused", async || match east.status("second").await?.phase {
        Some(Phase::Refused) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    taken(&east, 1, 0).await;
    east.delete("first").await;
    submit(&east, "third", json!({"size": 2})).await;
    until(&east, "third", JobPhase::Running).await;
    jobs(&east).delete("third", &DeleteParams::default()).await.unwrap();
}

/// The danger: a policy is wrong for a moment, and each FluxJob that is let in meanwhile ends for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_flux_job_that_a_policy_refuses_keeps_its_place_and_runs_once_that_is_mended() {
    let federation = together().await;
    let [east, ..] = places(&federation, "policy-jobs").await;
    apply(setups(&east), "FluxSetup", "default", json!({"quota": {"brokers": 2}})).await;
    let waits = async |name: &str, what: &str, behind: u32| {
        let status = told(&east, name, JobPhase::Ready, what).await;
        let finished = status.conditions.iter().find(|one| one.type_ == "Finished").unwrap();
        assert_eq!((finished.status.as_str(), finished.reason.as_str()), ("Unknown", "RefusedByPolicy"));
        assert!(status.message.contains("the night shift makes nothing"), "{}", status.message);
        taken(&east, 1, behind).await;
    };

    // Of the Job of its MiniCluster. One that was made directly asks again when it is tried again, and holds nothing meanwhile.
    let policy = Policy::made(&east, "CREATE", "Forbidden").await;
    east.create("direct", interactive(2)).await;
    east.condition("direct", condition::READY, "False", "CannotCreate").await;
    taken(&east, 0, 0).await;
    submit(&east, "night", json!({"size": 2})).await;
    waits("night", "its instance cannot be made now: ", 1).await;
    policy.removed().await;
    until(&east, "night", JobPhase::Running).await;
    jobs(&east).delete("night", &DeleteParams::default()).await.unwrap();
    east.running("direct").await;
    east.delete("direct").await;
    taken(&east, 0, 0).await;

    // Of the MiniCluster itself.
    let policy = Policy::about(&east, ("flux-framework.org", "miniclusters"), "CREATE", "Forbidden").await;
    let tried = json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": {"name": "tried"}, "spec": interactive(1)});
    counts(&east.mini_clusters(), tried, NIGHT).await;
    submit(&east, "many", json!({"size": 1})).await;
    waits("many", "its MiniCluster cannot be made now: ", 0).await;
    policy.removed().await;
    until(&east, "many", JobPhase::Running).await;
    jobs(&east).delete("many", &DeleteParams::default()).await.unwrap();
}

/// The danger: FluxJobs that were let in end for good because others hold a quota of the namespace just then.
#[tokio::test(flavor = "multi_thread")]
async fn a_flux_job_waits_for_room_in_a_resource_quota_and_runs_once_there_is_some() {
    let federation = together().await;
    let [east, ..] = places(&federation, "quota-jobs").await;
    apply(setups(&east), "FluxSetup", "default", json!({"quota": {"brokers": 2}})).await;
    // Of a part of its MiniCluster, and of that itself.
    for (name, hard) in [("part", "services"), ("whole", "count/miniclusters.flux-framework.org")] {
        quota(&east, json!({hard: "0"})).await;
        submit(&east, name, json!({"size": 2})).await;
        let status = told(&east, name, JobPhase::Ready, "its MiniCluster waits for room in a ResourceQuota: ").await;
        assert!(status.message.contains("exceeded quota: none"), "{}", status.message);
        taken(&east, 1, 0).await;
        never("it loses its place", Duration::from_secs(3), async || {
            let now = match jobs(&east).get(name).await {
                Ok(job) => job.status.unwrap_or_default(),
                Err(error) => return Some(error.to_string()),
            };
            let kept = (now.phase, &now.admitted, now.result) == (JobPhase::Ready, &status.admitted, None);
            (!kept).then(|| format!("{now:?}"))
        })
        .await;
        no_quota(&east).await;
        until(&east, name, JobPhase::Running).await;
        jobs(&east).delete(name, &DeleteParams::default()).await.unwrap();
        taken(&east, 0, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_flux_job_is_told_before_anything_of_it_goes() {
    let federation = together().await;
    let [east, ..] = places(&federation, "told-first").await;
    apply(setups(&east), "FluxSetup", "default", json!({})).await;
    for (name, own) in [("cleans", json!({"cleanup": true})), ("expires", json!({"ttlSecondsAfterFinished": 0}))] {
        for (exit, result) in [("0", JobResult::Succeeded), ("3", JobResult::Failed)] {
            let name = format!("{name}-{exit}");
            submit(&east, &name, json!({"miniCluster": own})).await;
            until(&east, &name, JobPhase::Running).await;
            east.annotate_pod(&name, 0, annotations::EXIT, exit).await;
            let status = ended(&east, &name).await;
            assert_eq!((status.result, status.exit_code), (Some(result), exit.parse().ok()), "{}", status.message);
            gone(&east.mini_clusters(), &name).await;
        }
    }
}
