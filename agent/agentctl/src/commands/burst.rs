//! `agentctl burst …`: takes a burst back, offers it again, or frees its slot, by annotations of its Burst.

use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary::clock::{Clock, SystemClock};

use super::consent::agreed;
use crate::cli::{self, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output, paste};

/// Runs `agentctl burst …`.
pub(crate) async fn run(target: &Target, command: cli::Burst) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let namespace = kubernetes::namespace(target, &client);
    let now = SystemClock::start().wall().to_string();
    let (name, cancel, yes) = match &command {
        cli::Burst::Cancel(burst) => (&burst.name, true, burst.yes),
        cli::Burst::Retry(burst) => (&burst.name, false, true),
        cli::Burst::Release(burst) => return super::release::run(target, &client, &namespace, burst).await,
    };
    let burst = match find(&client, &namespace, name).await {
        Err(_) if !cancel && retry_job(&client, &namespace, name, &now).await? => {
            let told = format!("FluxJob {namespace}/{name} may be sent again, also to peers that threw it out\n");
            return output::print(&told);
        }
        found => found?,
    };
    let (object, bursts): (_, Api<Burst>) = (burst.name_any(), Api::namespaced(client.clone(), &namespace));
    if cancel {
        agreed(cost(&burst), yes, target)?;
        annotate(&bursts, &object, json!({labels::CANCEL: now})).await?;
        let told = format!(
            "burst {namespace}/{name} is released; to place it again: `agentctl burst retry {name} --namespace {namespace}`\n"
        );
        return output::print(&paste::whole(&told, target));
    }
    if let Some(peer) = placed(&burst) {
        return output::print(&format!("burst {namespace}/{name} is on {peer} already, and nothing is changed\n"));
    }
    annotate(&bursts, &object, json!({labels::CANCEL: null, labels::RETRY: now})).await?;
    // A root that says so itself would say what it said before.
    let roots: Api<MiniCluster> = Api::namespaced(client.clone(), &namespace);
    let root = roots.get_opt(&burst.spec.root).await.ok().flatten();
    if root.is_some_and(|root| root.annotations().contains_key(labels::RETRY)) {
        annotate(&roots, &burst.spec.root, json!({labels::RETRY: now})).await?;
    }
    let jobs: Api<FluxJob> = Api::namespaced(client, &namespace);
    let job = if burst.spec.whole { jobs.get_opt(&burst.spec.root).await.ok().flatten() } else { None };
    if job.is_some_and(|job| job.annotations().contains_key(labels::RETRY)) {
        annotate(&jobs, &burst.spec.root, json!({labels::RETRY: now})).await?;
    }
    output::print(&format!("burst {namespace}/{name} is offered again\n"))
}

/// What it costs to take a burst back; `None`: nothing of it runs, as far as is known.
fn cost(burst: &Burst) -> Option<String> {
    let status = burst.status.as_ref().filter(|_| !burst.annotations().contains_key(labels::CANCEL))?;
    let (peer, phase) = (status.peer.as_deref()?, status.phase);
    let (namespace, name, root) = (burst.namespace().unwrap_or_default(), burst.name_any(), &burst.spec.root);
    if burst.spec.whole {
        let ended = status.run.as_ref().is_some_and(|run| run.succeeded.is_some());
        let started = (BurstPhase::Provisioning..=BurstPhase::Ready).contains(&phase) && phase != BurstPhase::Queued;
        return (!ended && (started || phase == BurstPhase::Lost)).then(|| {
            format!(
                "taking burst {namespace}/{name} back ends FluxJob {namespace}/{root}, all of which is on {peer}\n  it stands in \
                 line again, and its command begins anew"
            )
        });
    }
    let when = match phase {
        BurstPhase::Ready => "",
        BurstPhase::Lost => ", once that is in contact again",
        // Later ones leave, or have left.
        phase if phase < BurstPhase::Ready && status.ready_brokers > 0 => "",
        _ => return None,
    };
    Some(format!(
        "taking burst {namespace}/{name} back ends its brokers on {peer}{when}\n  jobs on them get the drain time, and no more; \
         MiniCluster {root} runs on without them"
    ))
}

/// The peer that has taken a burst, which need not be offered again.
fn placed(burst: &Burst) -> Option<&str> {
    let status = burst.status.as_ref().filter(|_| !burst.annotations().contains_key(labels::CANCEL))?;
    let taken = BurstPhase::Accepted..=BurstPhase::Ready;
    status.peer.as_deref().filter(|_| taken.contains(&status.phase))
}

/// A FluxJob that stands in line has no Burst; whether there is one of this name.
async fn retry_job(client: &Client, namespace: &str, name: &str, now: &str) -> Result<bool> {
    let jobs: Api<FluxJob> = Api::namespaced(client.clone(), namespace);
    if jobs.get_opt(name).await.ok().flatten().is_none() {
        return Ok(false);
    }
    annotate(&jobs, name, json!({labels::RETRY: now})).await?;
    Ok(true)
}

/// By the name of the object, or of its slot if only one has that.
pub(super) async fn find(client: &Client, namespace: &str, name: &str) -> Result<Burst> {
    let all = kubernetes::list(client, Some(namespace), &ListParams::default()).await?;
    choose(all, name).map_err(|problem| {
        Failure::new(format!("failed to find burst {namespace}/{name}")).because(problem).hint(format!(
            "`agentctl bursts` shows those of this cluster's MiniClusters, -n names another namespace. A burst of another \
             cluster that is hosted here is thrown out by its owner: `kubectl delete hostedburst {name} --namespace {namespace}`"
        ))
    })
}

fn choose(bursts: Vec<Burst>, name: &str) -> std::result::Result<Burst, String> {
    if let Some(found) = bursts.iter().find(|burst| burst.name_any() == name) {
        return Ok(found.clone());
    }
    let mut named: Vec<Burst> = bursts.into_iter().filter(|burst| burst.spec.slot == name).collect();
    match (named.pop(), named.as_slice()) {
        (Some(found), []) => Ok(found),
        (Some(found), others) => {
            let names: Vec<_> = others.iter().chain([&found]).map(ResourceExt::name_any).collect();
            Err(format!("several have it: {}", names.join(", ")))
        }
        (None, _) => Err("there is none".into()),
    }
}

pub(super) async fn annotate<K>(objects: &Api<K>, name: &str, annotations: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    kubernetes::merge(objects, "annotate", name, json!({"metadata": {"annotations": annotations}})).await
}

#[cfg(test)]
mod tests {
    use tributary::api::burst::{BurstSpec, BurstStatus};

    use super::*;

    #[test]
    fn a_burst_is_found_by_its_object_or_by_a_slot_that_only_one_has() {
        let burst = |name: &str, slot: &str| Burst::new(name, BurstSpec { slot: slot.into(), ..BurstSpec::default() });
        let all = || vec![burst("lake-burst-0", "lake-burst-0"), burst("lake.gpu", "gpu"), burst("pond.gpu", "gpu")];
        assert_eq!(choose(all(), "lake-burst-0").unwrap().name_any(), "lake-burst-0");
        assert_eq!(choose(all(), "pond.gpu").unwrap().name_any(), "pond.gpu");
        assert_eq!(choose(all(), "gpu").unwrap_err(), "several have it: lake.gpu, pond.gpu");
        assert_eq!(choose(all(), "sea").unwrap_err(), "there is none");
    }

    /// The danger: "is offered again", and it runs where it was.
    #[test]
    fn a_burst_that_a_peer_has_is_not_offered_again() {
        let burst = |phase, peer: Option<&str>| {
            let status = BurstStatus { phase, peer: peer.map(str::to_owned), ..BurstStatus::default() };
            Burst { status: Some(status), ..Burst::new("a", BurstSpec::default()) }
        };
        assert_eq!(placed(&burst(BurstPhase::Ready, Some("west"))), Some("west"));
        assert_eq!(placed(&burst(BurstPhase::Offered, Some("west"))), None, "it may be refused again");
        assert_eq!(placed(&burst(BurstPhase::Rejected, None)), None);
        let mut cancelled = burst(BurstPhase::Ready, Some("west"));
        cancelled.annotations_mut().insert(labels::CANCEL.to_owned(), "now".to_owned());
        assert_eq!(placed(&cancelled), None);
    }

    /// The danger: jobs end because of a word that was meant for another burst.
    #[test]
    fn who_ends_jobs_by_taking_a_burst_back_is_asked_and_nobody_else() {
        let burst = |spec: Value, status: Value| -> Burst {
            let mut whole = json!({"root": "lake", "slot": "a", "incarnation": "job-1"});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let metadata = json!({"name": "a", "namespace": "flux"});
            serde_json::from_value(json!({"metadata": metadata, "spec": whole, "status": status})).unwrap()
        };
        let (part, whole) = (json!({}), json!({"whole": true}));
        let run = |run: Value| json!({"phase": "Ready", "peer": "west", "run": run});
        for (spec, status, loses) in [
            (&part, json!({"phase": "Ready", "peer": "west", "readyBrokers": 3}), Some("ends its brokers on west\n")),
            (&part, json!({"phase": "Joining", "peer": "west", "readyBrokers": 1}), Some("ends its brokers on west\n")),
            (&part, json!({"phase": "Lost", "peer": "west"}), Some("on west, once that is in contact again")),
            (&part, json!({"phase": "Provisioning", "peer": "west"}), None),
            (&part, json!({"phase": "Draining", "peer": "west", "readyBrokers": 3}), None),
            (&part, json!({"phase": "Pending"}), None),
            (&whole, run(json!({"started": true})), Some("ends FluxJob flux/lake, all of which is on west")),
            (&whole, json!({"phase": "Provisioning", "peer": "west"}), Some("ends FluxJob flux/lake")),
            (&whole, json!({"phase": "Queued", "peer": "west"}), None),
            (&whole, run(json!({"started": true, "succeeded": true})), None),
        ] {
            let told = cost(&burst(spec.clone(), status.clone()));
            assert_eq!(told.is_some(), loses.is_some(), "{status}");
            assert!(told.is_none_or(|told| told.contains(loses.unwrap_or_default())), "{status}");
        }
        let mut cancelled = burst(part, json!({"phase": "Ready", "peer": "west", "readyBrokers": 3}));
        cancelled.annotations_mut().insert(labels::CANCEL.to_owned(), "now".to_owned());
        assert_eq!(cost(&cancelled), None);
    }
}
