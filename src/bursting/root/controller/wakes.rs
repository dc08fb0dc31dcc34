//! Which changes make an agent look at a root again ([`Key::Root`]). Most changes are our own status writes that come back, and
//! nothing would follow from them.
//!
//! Structs are taken apart field by field, so that a new field does not compile before somebody has looked who reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tributary_api::burst::{Burst, BurstStatus};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::condition::VALID;
use tributary_api::minicluster::{BurstStatus as RowStatus, LeadStatus, MiniCluster, MiniClusterStatus};
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::{Cache, Subscription, Watched};
use tributary_cluster::conditions;
use tributary_cluster::worker::Queue;

use super::{Key, says_short};
use crate::nodes::PodView;
use crate::root::plan;
use crate::turns::Line;
use crate::watch::WatchedPod;

/// Queues the root of an object that is created, deleted, or changed as `is_same` judges: the root it had, and the one it has.
pub(super) fn feed<K: Watched>(
    cache: &Cache<K>,
    queue: &Queue<Key, Line>,
    is_same: fn(&K, &K) -> bool,
    root: impl Fn(&K) -> Option<ObjectKey> + Send + Sync + 'static,
) -> Subscription {
    let queue = queue.clone();
    cache.subscribe(move |change| {
        if !change.old.as_deref().zip(change.new.as_deref()).is_some_and(|(old, new)| is_same(old, new)) {
            let versions = change.old.iter().chain(&change.new);
            versions.filter_map(|object| root(object)).for_each(|root| queue.mark(Key::Root(root)));
        }
    })
}

/// Whether a MiniCluster is the same to a look at its Bursts.
pub(super) fn is_same_root(old: &MiniCluster, new: &MiniCluster) -> bool {
    of_root(old) == of_root(new)
}

/// Whether a Burst is the same to a look at its root.
pub(super) fn is_same_burst(old: &Burst, new: &Burst) -> bool {
    of_burst(old) == of_burst(new)
}

/// Whether a pod is the same to a look at the root whose lead broker it may be.
pub(super) fn is_same_pod(old: &WatchedPod, new: &WatchedPod) -> bool {
    of_pod(old) == of_pod(new)
}

/// What is wanted beside a spec, and whose it is.
fn of_metadata(metadata: &ObjectMeta) -> impl PartialEq {
    let ObjectMeta { uid, generation, labels, annotations, owner_references, finalizers, deletion_timestamp, .. } =
        metadata;
    (uid, generation, labels, annotations, owner_references, finalizers, deletion_timestamp)
}

fn of_root(root: &MiniCluster) -> impl PartialEq {
    let status = root.status.as_ref().map(|status| {
        let MiniClusterStatus {
            size: _,
            selector: _,
            jobid: _,
            maximum_size: _,
            // See `plan::is_over`.
            phase: _,
            conditions,
            observed_generation: _,
            ready: _,
            incarnation,
            holds: _,
            began: _,
            admitted_seconds: _,
            exit_code: _,
            rank_map_digest,
            rank_map,
            credential_digest,
            credential_secret,
            credential_recipients: _,
            lead: LeadStatus { node_port, address, pod: _, restarts: _ },
            instance_restarts: _,
            restart_handled: _,
            bursts,
            bursts_ready: _,
            bursts_spent,
        } = status;
        let holders: Vec<_> = bursts.iter().map(of_row).collect();
        // See `Burst::shortfall`.
        let refused = conditions::find(conditions, VALID).is_some_and(|valid| valid.status == "False");
        let instance = (incarnation, rank_map, rank_map_digest, credential_digest, credential_secret);
        (instance, node_port, address, holders, refused, bursts_spent)
    });
    // A spec can differ at the same generation: by what its definition shows.
    (of_metadata(&root.metadata), &root.spec, plan::is_over(root), status)
}

fn of_row(row: &RowStatus) -> impl PartialEq {
    let RowStatus { name, phase: _, peer: _, size: _, ready: _, ranks: _, reason: _, message: _, holder } = row;
    (name, holder)
}

fn of_burst(burst: &Burst) -> impl PartialEq {
    let status = burst.status.as_ref().map(|status| {
        let BurstStatus {
            incarnation: _,
            frozen,
            // By peer, recipients and phase, connections are let in: the look at the Burst ([`Key::Burst`]) does that.
            peer: _,
            phase,
            message: _,
            ready_brokers: _,
            hosted_uid: _,
            acknowledged_generation: _,
            run: _,
            rank_map_digest: _,
            credential_digest: _,
            lead: _,
            credential_recipients: _,
            refusals: _,
            returns: _,
            held,
            demand: _,
            price: _,
            spent: _,
            used: _,
            peer_count: _,
            reserved_until: _,
            lost_since: _,
            releases: _,
            times: _,
            preflight: _,
            simulated: _,
            observed_generation: _,
            // See `says_short`.
            conditions: _,
        } = status;
        (frozen, *phase == BurstPhase::Released, held.is_some(), says_short(status))
    });
    (of_metadata(&burst.metadata), &burst.spec, status)
}

fn of_pod(pod: &WatchedPod) -> impl PartialEq {
    let PodView {
        namespace,
        name,
        job,
        index,
        owner,
        node,
        addresses,
        running: _,
        unschedulable: _,
        start_failure: _,
        pulled: _,
        finished,
        terminating,
        daemon: _,
        consumes: _,
        requests: _,
    } = &*pod.view;
    let lead = (namespace, name, job, index, owner, node, addresses, finished, terminating);
    (of_metadata(&pod.metadata), lead)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Debug;
    use std::sync::Arc;

    use kube::runtime::watcher::Event;
    use parking_lot::Mutex;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tributary_api::burst::BurstHold;
    use tributary_clock::SystemClock;

    use super::*;
    use crate::nodes::NodeView;
    use crate::ours::Ours;
    use crate::root::lead_address::{LeadView, is_of_lead, lead_address, lead_pod};
    use crate::root::plan::{Given, PlanChange};
    use crate::timing::Times;
    use crate::watch::is_of_job;

    fn condition(type_: &str, status: &str) -> Value {
        let at = "2026-01-01T00:00:00Z";
        json!({"type": type_, "status": status, "reason": "RestartRequired", "message": "m", "lastTransitionTime": at})
    }

    /// A root that runs, reached by a NodePort; `lake-burst-0` is held by a peer, `pond` is declared no more.
    fn root() -> Value {
        let root = plan::tests::root();
        let map = root.status.as_ref().unwrap().rank_map.clone();
        let digest = root.status.as_ref().unwrap().rank_map_digest.clone();
        let holder = json!({"peer": "west", "incarnation": "job-1", "credentialDigest": "sha256:cert"});
        let eviction =
            json!([{"peer": "north", "reason": "EvictedByProvider", "message": "", "generation": 1, "offer": ""}]);
        json!({
            "metadata": {"name": "lake", "namespace": "flux", "uid": "root-uid", "generation": 1, "resourceVersion": "7",
                "labels": {"tributary.dev/user": "jan"},
                "annotations": {"tributary.dev/retry": "1", "tributary.dev/evictions": eviction.to_string()}},
            "spec": {"size": 4, "containers": [{"image": "app", "cores": 2}],
                "flux": {"bursting": {"clusters": [{"size": 5, "peer": "west"}], "budget": {"cost": "5"}}}},
            "status": {
                "phase": "Running", "incarnation": "job-1", "rankMap": map, "rankMapDigest": digest,
                "credentialDigest": "sha256:cert", "credentialSecret": "lake-curve", "size": 4, "ready": 4,
                "selector": "s", "maximumSize": 4, "observedGeneration": 1, "burstsReady": "0/1", "instanceRestarts": 0,
                "lead": {"nodePort": 30_000, "pod": "lake-0", "restarts": 0},
                "conditions": [condition("Valid", "True"), condition("Finished", "False"), condition("BurstsReady", "False")],
                "bursts": [{"name": "lake-burst-0", "phase": "Joining", "peer": "west", "size": 3, "ready": 1, "ranks": "4-6",
                    "message": "west: 1 of 3", "holder": holder}],
                "burstsSpent": {"seconds": 5, "brokerSeconds": 15, "brokers": 3},
            },
        })
    }

    fn lead() -> Value {
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "lake", "uid": "job-1", "controller": true});
        json!({
            "metadata": {"name": "lake-0-x", "namespace": "flux", "uid": "pod", "resourceVersion": "7", "ownerReferences": [owner],
                "labels": {"batch.kubernetes.io/job-name": "lake", "batch.kubernetes.io/job-completion-index": "0"}},
            "spec": {"nodeName": "n", "containers": [{"name": "lake", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}],
                "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [{"name": "lake", "image": "app"}]},
        })
    }

    fn read<K: DeserializeOwned>(value: &Value) -> K {
        serde_json::from_value(value.clone()).unwrap()
    }

    /// Which Bursts a look makes and deletes, given these.
    fn planned(root: &MiniCluster, bursts: &[Burst], lead: &WatchedPod) -> Vec<PlanChange> {
        let pods: Vec<PodView> = Some(&*lead.view).filter(|pod| is_of_lead(root, pod)).cloned().into_iter().collect();
        let status = root.status.as_ref().map(|status| status.lead.clone()).unwrap_or_default();
        let network = &root.spec.flux.bursting.network;
        let view = LeadView { network, status: &status, index_zero: &pods, ours: &Ours::default() };
        let addresses = ["203.0.113.7", "2001:db8::7"].map(|text| ("ExternalIP".to_owned(), text.to_owned()));
        let node = NodeView { addresses: addresses.into(), ..NodeView::default() };
        let lead = lead_address(&view, |name| (name == "n").then(|| node.clone())).ok();
        let given = Given {
            lead: lead.as_ref(),
            arch: None,
            times: &Times::default(),
            trace: None,
            refused: false,
            namespace_goes: false,
        };
        plan::plan(root, &bursts.iter().collect::<Vec<_>>(), given)
    }

    /// The Bursts of the root, as they are stored: the one that is declared, and one that has yet to go.
    fn bursts() -> Vec<Value> {
        let (root, lead) = (plan::tests::root(), read(&lead()));
        let made = planned(&root, &[], &lead).into_iter().filter_map(|change| match change {
            PlanChange::Apply(burst) => Some(*burst),
            PlanChange::Delete { .. } => None,
        });
        let stored = made.map(|mut burst| {
            let metadata = &mut burst.metadata;
            (metadata.uid, metadata.generation) = (Some(format!("uid of {}", burst.spec.slot)), Some(1));
            burst.spec.release = burst.spec.slot == "pond";
            burst.status = Some(BurstStatus {
                incarnation: Some("job-1".into()),
                frozen: Some(Box::new(burst.spec.clone())),
                phase: BurstPhase::Draining,
                peer: Some("west".into()),
                held: Some(BurstHold::BudgetSpent),
                conditions: read(&json!([condition("Ready", "False")])),
                ..BurstStatus::default()
            });
            serde_json::to_value(burst).unwrap()
        });
        stored.collect()
    }

    /// The object with each of its parts changed or taken away, and where that is.
    fn changes(object: &Value) -> Vec<(String, Value)> {
        let mut changes = Vec::new();
        let mut at = vec![String::new()];
        while let Some(path) = at.pop() {
            let others = match object.pointer(&path).unwrap() {
                Value::Object(fields) => {
                    at.extend(fields.keys().map(|key| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))));
                    for key in fields.keys() {
                        let mut changed = object.clone();
                        changed.pointer_mut(&path).unwrap().as_object_mut().unwrap().remove(key);
                        changes.push((format!("{path}/{key}"), changed));
                    }
                    Vec::new()
                }
                Value::Array(items) => {
                    at.extend((0..items.len()).map(|index| format!("{path}/{index}")));
                    vec![json!([])]
                }
                Value::String(text) => {
                    let words = ["True", "False", "Suspended", "Succeeded", "Released", "job-2", "1", "10.244.0.8"];
                    words.iter().map(|word| json!(word)).chain([json!(format!("{text}-x"))]).collect()
                }
                Value::Number(number) => vec![json!(number.as_i64().unwrap() + 1)],
                Value::Bool(is) => vec![json!(!is)],
                Value::Null => Vec::new(),
            };
            for other in others {
                let mut changed = object.clone();
                *changed.pointer_mut(&path).unwrap() = other;
                changes.push((path.clone(), changed));
            }
        }
        changes
    }

    /// Where a change makes a look find something else. The danger: one of them is taken for none, and nobody looks.
    fn read_at<K: DeserializeOwned, F: PartialEq + Debug>(
        object: &Value,
        is_same: fn(&K, &K) -> bool,
        found: impl Fn(&K) -> F,
    ) -> BTreeSet<String> {
        let (old, before) = (read::<K>(object), found(&read(object)));
        assert!(is_same(&old, &read(object)), "nothing changed");
        let mut read_at = BTreeSet::new();
        // Of another name it is another object.
        let is_name = |path: &str| ["/metadata/name", "/metadata/namespace"].contains(&path);
        for (path, changed) in changes(object).into_iter().filter(|(path, _)| !is_name(path)) {
            let Ok(new) = serde_json::from_value::<K>(changed) else { continue };
            let after = found(&new);
            if after != before {
                assert!(!is_same(&old, &new), "{path}: {before:?} became {after:?}, and nobody looks");
                read_at.insert(path);
            }
        }
        read_at
    }

    fn assert_reads(read: &BTreeSet<String>, paths: &[&str]) {
        for path in paths {
            assert!(read.contains(*path), "{path} is read: {read:?}");
        }
    }

    #[test]
    fn a_root_is_looked_at_after_each_change_that_a_look_reads() {
        let (lead, stored): (WatchedPod, Vec<Burst>) = (read(&lead()), bursts().iter().map(read).collect());
        let found = |root: &MiniCluster| {
            let status = root.status.clone().unwrap_or_default();
            let short: Vec<_> = stored.iter().map(|burst| burst.shortfall(root)).collect();
            let valid = tributary_render::is_valid(root, &tributary_render::Context::default());
            let budget = (root.spec.flux.bursting.budget.clone(), status.bursts_spent);
            let known = (root.metadata.generation, valid, is_of_lead(root, &lead.view), budget);
            (planned(root, &[], &lead), planned(root, &stored, &lead), short, known)
        };
        let by_port = read_at(&root(), is_same_root, found);
        for field in ["phase", "incarnation", "rankMap", "rankMapDigest", "credentialDigest", "credentialSecret"] {
            assert_reads(&by_port, &[&format!("/status/{field}")]);
        }
        let others = [
            "/status/lead/nodePort",
            "/status/conditions/0/status",
            "/status/conditions/1/status",
            "/status/burstsSpent/seconds",
            "/status/bursts/0/holder/peer",
            "/spec/flux/bursting/clusters/0/size",
            "/metadata/uid",
            "/metadata/labels/tributary.dev~1user",
            "/metadata/annotations/tributary.dev~1retry",
        ];
        assert_reads(&by_port, &others);
        let mut balanced = root();
        balanced["spec"]["flux"]["bursting"]["network"] = json!({"type": "LoadBalancer"});
        balanced["status"]["lead"]["address"] = json!("203.0.113.9");
        assert_reads(&read_at(&balanced, is_same_root, found), &["/status/lead/address"]);
    }

    #[test]
    fn a_root_is_looked_at_after_each_change_of_a_burst_that_a_look_reads() {
        let (root, lead): (MiniCluster, WatchedPod) = (read(&root()), read(&lead()));
        let read: Vec<_> = bursts()
            .iter()
            .map(|burst| {
                read_at(burst, is_same_burst, |burst: &Burst| {
                    let marked = burst.status.as_ref().map(|status| (status.held.is_some(), says_short(status)));
                    let live =
                        (burst.spec.clone(), burst.metadata.uid.clone(), burst.metadata.owner_references.clone());
                    (planned(&root, std::slice::from_ref(burst), &lead), live, marked)
                })
            })
            .collect();
        assert_reads(&read[0], &["/spec/slot", "/status/frozen/cores", "/status/held", "/status/conditions/0/reason"]);
        assert_reads(&read[1], &["/status/phase", "/spec/release", "/metadata/uid"]);
    }

    #[test]
    fn a_root_is_looked_at_after_each_change_of_a_pod_that_a_look_reads() {
        let root: MiniCluster = read(&root());
        let read = read_at(&lead(), is_same_pod, |pod: &WatchedPod| {
            let of_lead = is_of_job(pod, "lake") && is_of_lead(&root, &pod.view);
            let pods = [PodView::clone(&pod.view)];
            let end = lead_pod(&pods).filter(|_| of_lead).map(|pod| (pod.name.clone(), pod.addresses.clone()));
            (planned(&root, &[], pod), of_lead, end)
        });
        assert_reads(&read, &["/spec/nodeName", "/status/podIP", "/status/phase", "/metadata/ownerReferences/0/uid"]);
        let mut leaves = lead();
        leaves["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_same_pod(&self::read(&lead()), &self::read(&leaves)), "another one counts then");
    }

    #[test]
    fn the_echo_of_our_own_statuses_is_no_reason_to_look() {
        let same = |change: fn(&mut Value), object: Value| {
            let mut new = object.clone();
            new["metadata"]["resourceVersion"] = json!("8");
            change(&mut new["status"]);
            (object, new)
        };
        let is_same = |change| {
            let (old, new) = same(change, root());
            is_same_root(&read(&old), &read(&new))
        };
        assert!(is_same(|status| status["bursts"][0]["phase"] = json!("Ready")));
        assert!(is_same(|status| status["bursts"][0]["peer"] = json!("north")));
        assert!(is_same(|status| (status["phase"], status["ready"]) = (json!("Starting"), json!(3))));
        assert!(is_same(|status| status["burstsReady"] = json!("1/1")));
        assert!(is_same(|status| status["conditions"][2]["status"] = json!("True")));
        let is_same = |change| {
            let (old, new) = same(change, bursts().remove(0));
            is_same_burst(&read(&old), &read(&new))
        };
        assert!(is_same(|status| (status["phase"], status["message"]) = (json!("Joining"), json!("west: 0 of 3"))));
        assert!(
            is_same(|status| (status["hostedUid"], status["acknowledgedGeneration"]) = (json!("hosted"), json!(2)))
        );
        assert!(is_same(|status| (status["readyBrokers"], status["phase"]) = (json!(3), json!("Ready"))));
        let (old, new) = same(|status| status["conditions"][0]["status"] = json!("True"), lead());
        assert!(is_same_pod(&read(&old), &read(&new)));
    }

    #[test]
    fn what_is_new_goes_or_has_another_uid_is_looked_at_at_the_roots_of_both_versions() {
        let (cache, asked) = (Cache::<Burst>::empty(), Arc::new(Mutex::new(Vec::new())));
        let queue = Queue::in_lines(SystemClock::shared(), |_| Line::Here("east".into()));
        let of = asked.clone();
        let _fed = feed(&cache, &queue, is_same_burst, move |burst| {
            let root = burst.metadata.labels.as_ref().and_then(|all| all.get("root")).cloned()?;
            of.lock().push(root.clone());
            Some(ObjectKey::namespaced("flux", root))
        });
        let mut version = 0;
        let mut looked_at = |uid: &str, root: &str, gone: bool| {
            version += 1;
            let mut burst = bursts().remove(0);
            let (version, labels) = (version.to_string(), json!({"root": root}));
            burst["metadata"] = json!({"name": "b", "namespace": "flux", "uid": uid, "labels": labels,
                "resourceVersion": version});
            let burst = serde_json::from_str(&burst.to_string()).unwrap();
            cache.take(if gone { Event::Delete(burst) } else { Event::Apply(burst) });
            std::mem::take(&mut *asked.lock())
        };
        assert_eq!(looked_at("1", "lake", false), ["lake"], "it is new");
        assert!(looked_at("1", "lake", false).is_empty(), "an echo");
        assert_eq!(looked_at("2", "lake", false), ["lake", "lake"], "another of its name");
        assert_eq!(looked_at("2", "pond", false), ["lake", "pond"], "another root has it");
        assert_eq!(looked_at("2", "pond", true), ["pond"], "it is gone");
        assert_eq!(queue.depth(), 2);
    }
}
