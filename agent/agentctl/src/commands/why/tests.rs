//! Situations that users meet, and what they read then.

use k8s_openapi::api::core::v1::{Event, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary::admin::{ClusterRow, ClusterStatus, FederationStatus, HostedRow};
use tributary::api::burst::Burst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use super::{Found, burst, mini_cluster, text};
use crate::explain::Explanation;

mod parts;
mod provisioning;

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn said(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// A MiniCluster of two, whose status is as far as `ready` says.
fn root(conditions: Value, spec: Value) -> MiniCluster {
    let mut whole = json!({"size": 2, "containers": [{"image": "app"}]});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    of(json!({
        "metadata": {"name": "lake", "namespace": "flux", "uid": "u", "generation": 3},
        "spec": whole,
        "status": {"observedGeneration": 3, "phase": "Starting", "incarnation": "j", "conditions": conditions},
    }))
}

fn starting() -> MiniCluster {
    root(json!([said("Ready", "False", "Starting", "0 of 2 brokers of this cluster have joined")]), json!({}))
}

/// A pod of index `index`; `status` is its status.
fn pod(index: u32, status: Value) -> Pod {
    of(json!({
        "metadata": {"name": format!("lake-{index}-x"), "namespace": "flux", "labels": {"batch.kubernetes.io/job-completion-index": index.to_string()}},
        "spec": {"nodeName": "node-1", "containers": []},
        "status": status,
    }))
}

fn running(index: u32, ready: &str) -> Pod {
    let container = json!({"name": "lake", "image": "app", "imageID": "", "ready": ready == "True", "restartCount": 0,
        "state": {"running": {}}});
    pod(
        index,
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [container]}),
    )
}

fn waits(index: u32, reason: &str, message: &str) -> Pod {
    let container = json!({"name": "lake", "image": "registry.example/app:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}}});
    pod(index, json!({"phase": "Pending", "containerStatuses": [container]}))
}

fn unscheduled(reason: &str, message: &str) -> Pod {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message});
    let mut pod = pod(1, json!({"phase": "Pending", "conditions": [condition]}));
    pod.spec.as_mut().unwrap().node_name = None;
    pod
}

fn event(kind: &str, name: &str, reason: &str, message: &str) -> Event {
    of(json!({"metadata": {}, "involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message,
        "lastTimestamp": "2026-01-01T00:00:01Z"}))
}

fn job() -> Value {
    json!({"metadata": {"name": "lake"}, "spec": {"parallelism": 2, "template": {}}})
}

/// A MiniCluster with a Job and these pods.
fn with_pods(pods: Vec<Pod>) -> Found {
    Found { mini_cluster: Some(starting()), job: Some(of(job())), pods, ..Found::default() }
}

fn at(object: MiniCluster) -> Found {
    Found { mini_cluster: Some(object), ..Found::default() }
}

fn with_events(found: Found, events: Vec<Event>) -> Found {
    Found { events, ..found }
}

#[test]
fn a_mini_cluster_without_bursts() {
    let unseen = |mut object: MiniCluster| {
        object.status.as_mut().unwrap().observed_generation = Some(2);
        object
    };
    let suspended_job = {
        let mut job = job();
        job["spec"]["suspend"] = true.into();
        Found {
            job: Some(of(job)),
            ..at(root(json!([said("Ready", "False", "JobSuspended", "Job flux/lake is suspended")]), json!({})))
        }
    };
    let joined = |conditions| Found {
        mini_cluster: Some(root(conditions, json!({}))),
        ..with_pods(vec![running(0, "True"), running(1, "True")])
    };
    let all_well = json!([said("Ready", "True", "Running", "2 of 2 brokers of this cluster have joined")]);
    let crash = {
        let mut pod = waits(0, "CrashLoopBackOff", "back-off 40s restarting failed container=lake");
        let status = pod.status.as_mut().unwrap();
        status.container_statuses.as_mut().unwrap()[0].last_state =
            of(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
        pod
    };
    let cases: Vec<(&str, Found)> = vec![
        ("all is well", joined(all_well.clone())),
        ("simulated pods prove nothing", Found { simulated: true, ..joined(all_well) }),
        (
            "no agent",
            Found {
                agent: Some(Err("no agent has ever led in namespace tributary-system".into())),
                ..at(unseen(starting()))
            },
        ),
        (
            "an agent that does not look here",
            Found { agent: Some(Ok("tributary-7d4f".into())), ..at(unseen(starting())) },
        ),
        (
            "a spec that cannot be carried out",
            at(root(
                json!([said(
                    "Valid",
                    "False",
                    "InvalidSize",
                    "spec.size: size is 0: a MiniCluster has at least one pod; use suspend to run none"
                )]),
                json!({}),
            )),
        ),
        ("suspended by its user", at(root(json!([]), json!({"suspend": true})))),
        ("suspended by a queue", suspended_job),
        (
            "a name that somebody has",
            at(root(
                json!([said(
                    "Ready",
                    "False",
                    "NameTaken",
                    "Job lake belongs to Deployment lake; delete or rename it, or give the MiniCluster another name"
                )]),
                json!({}),
            )),
        ),
        (
            "a certificate that is gone",
            at(root(
                json!([said(
                    "Ready",
                    "False",
                    "CertificateMissing",
                    "Secret own does not exist in this namespace; the brokers' certificate is read from it"
                )]),
                json!({}),
            )),
        ),
        (
            "a quota",
            with_events(
                with_pods(vec![running(0, "True")]),
                vec![event(
                    "Job",
                    "lake",
                    "FailedCreate",
                    "Error creating: pods \"lake-1-x\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1",
                )],
            ),
        ),
        (
            "a pod-security level",
            with_events(
                with_pods(vec![]),
                vec![event(
                    "Job",
                    "lake",
                    "FailedCreate",
                    "Error creating: pods \"lake-0-x\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true",
                )],
            ),
        ),
        (
            "no service account",
            with_events(
                with_pods(vec![]),
                vec![event(
                    "Job",
                    "lake",
                    "FailedCreate",
                    "Error creating: pods \"lake-0-x\" is forbidden: error looking up service account flux/lab: serviceaccount \"lab\" not found",
                )],
            ),
        ),
        (
            "no room",
            with_pods(vec![
                running(0, "False"),
                unscheduled("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."),
            ]),
        ),
        (
            "tainted nodes",
            with_pods(vec![
                running(0, "False"),
                unscheduled("Unschedulable", "0/3 nodes are available: 3 node(s) had untolerated taint {gpu: }."),
            ]),
        ),
        (
            "held by a queue's gate",
            with_pods(vec![
                running(0, "False"),
                unscheduled("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"),
            ]),
        ),
        (
            "no such image",
            with_events(
                with_pods(vec![waits(0, "ImagePullBackOff", "Back-off pulling image"), running(1, "False")]),
                vec![event(
                    "Pod",
                    "lake-0-x",
                    "Failed",
                    "Failed to pull image \"registry.example/app:1\": manifest unknown",
                )],
            ),
        ),
        (
            "no login",
            with_pods(vec![
                waits(
                    0,
                    "ErrImagePull",
                    "failed to pull and unpack image \"registry.example/app:1\": authorization failed: 401 Unauthorized",
                ),
                running(1, "False"),
            ]),
        ),
        (
            "a registry out of reach",
            with_pods(vec![
                waits(
                    0,
                    "ErrImagePull",
                    "failed to pull and unpack image \"registry.example/app:1\": dial tcp: i/o timeout",
                ),
                running(1, "False"),
            ]),
        ),
        (
            "a Secret that is not there",
            with_events(
                with_pods(vec![running(0, "False"), waits(1, "ContainerCreating", "")]),
                vec![event(
                    "Pod",
                    "lake-1-x",
                    "FailedMount",
                    "MountVolume.SetUp failed for volume \"munge\" : secret \"munge\" not found",
                )],
            ),
        ),
        (
            "a key that is not there",
            with_pods(vec![
                waits(0, "CreateContainerConfigError", "couldn't find key token in Secret flux/login"),
                running(1, "False"),
            ]),
        ),
        ("memory", with_pods(vec![crash, running(1, "False")])),
        ("a lead that waits", with_pods(vec![running(0, "False"), running(1, "True")])),
        ("a follower that does not find its lead", with_pods(vec![running(0, "True"), running(1, "False")])),
        (
            "a command that failed",
            at(root(
                json!([said("Finished", "True", "CommandFailed", "the command ended with exit code 3")]),
                json!({}),
            )),
        ),
        (
            "no rights to see it all",
            Found {
                unseen: vec!["the events could not be read: events is forbidden".into()],
                ..with_pods(vec![running(0, "True"), running(1, "False")])
            },
        ),
    ];
    let texts: Vec<_> = cases.iter().map(|(case, found)| shown(case, &mini_cluster::explain(found))).collect();
    insta::assert_snapshot!(texts.join("\n\n"));
}

fn shown(case: &str, explanation: &Explanation) -> String {
    assert!(explanation.ready != explanation.unmet.is_some(), "{case}");
    crate::paste::check::pastes(&text(explanation));
    format!("# {case}\n{}", text(explanation))
}

/// A root that runs, with one burst in this state.
fn bursting(spec: Value, status: Value) -> Found {
    let clusters = json!({"flux": {"bursting": {"clusters": [{"size": 3, "peer": "west"}]}}});
    let mut whole = json!({"root": "lake", "slot": "lake-burst-0", "size": 3, "maxSize": 3, "peers": ["west"]});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut observed = json!({"observedGeneration": 2, "phase": "Pending"});
    observed.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    let object: Burst = of(json!({
        "metadata": {"name": "lake-burst-0", "namespace": "flux", "generation": 2, "ownerReferences": [{"apiVersion": "v",
            "kind": "MiniCluster", "name": "lake", "uid": "u", "controller": true}]},
        "spec": whole, "status": observed,
    }));
    Found {
        mini_cluster: Some(root(
            json!([said("Ready", "True", "Running", "2 of 2 brokers of this cluster have joined")]),
            clusters,
        )),
        bursts: vec![object],
        peers: vec![peer("west", json!({"connected": true}))],
        ..with_pods(vec![running(0, "True"), running(1, "True")])
    }
}

fn peer(name: &str, status: Value) -> ClusterPeer {
    of(json!({"metadata": {"name": name}, "spec": {}, "status": status}))
}

fn away(found: Found, reason: &str, message: &str) -> Found {
    let peers = vec![peer("west", json!({"conditions": [said("Connected", "False", reason, message)]}))];
    Found { peers, ..found }
}

#[test]
fn a_burst() {
    let mut alone = bursting(json!({}), json!({"phase": "Released"}));
    alone.bursts[0].metadata.owner_references = None;
    let refused = |reason: &str, message: &str| {
        let refusals = json!([{"peer": "west", "reason": reason, "message": message, "generation": 2}]);
        bursting(json!({}), json!({"refusals": refusals, "phase": "Rejected", "message": "no peer takes it"}))
    };
    let on_west = |status: Value| {
        let mut whole = json!({"peer": "west"});
        whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        bursting(json!({}), whole)
    };
    let admitted = said("Admitted", "True", "Accepted", "the peer accepted it");
    let provisioning = || {
        on_west(
            json!({"phase": "Provisioning", "message": "west: 1 of 3 brokers are online", "conditions": [admitted.clone()]}),
        )
    };
    let told = |hosted: Option<HostedRow>, error: Option<&str>| FederationStatus {
        api_version: String::new(),
        cluster: "east".into(),
        clusters: vec![ClusterRow {
            name: "west".into(),
            peer: None,
            status: hosted.map(|row| ClusterStatus { hosted: vec![row], ..ClusterStatus::default() }),
            error: error.map(str::to_owned),
        }],
    };
    let theirs = HostedRow {
        namespace: "burst-east".into(),
        name: "lake-burst-0".into(),
        message: Some("the lead's host name cannot be resolved: no such name".into()),
        ..HostedRow::default()
    };
    let no_root = Found { mini_cluster: None, ..bursting(json!({}), json!({})) };
    let root_refused = {
        let mut found = bursting(json!({}), json!({}));
        let root = found.mini_cluster.as_mut().unwrap();
        let status = root.status.as_mut().unwrap();
        status.incarnation = None;
        status.conditions = vec![of(said("Valid", "False", "InvalidName", "metadata.name: too long"))];
        Found { bursts: Vec::new(), job: None, ..found }
    };
    let over = {
        let mut found = bursting(json!({"release": true}), json!({}));
        found.mini_cluster.as_mut().unwrap().spec.suspend = true;
        found
    };
    let cancelled = {
        let mut found = bursting(json!({"release": true}), json!({}));
        found.bursts[0].metadata.annotations = Some([("tributary.dev/cancel".to_owned(), "now".to_owned())].into());
        found
    };
    let lost =
        on_west(json!({"phase": "Lost", "reservedUntil": "2026-01-01T00:05:00Z", "conditions": [admitted.clone()],
        "message": "west is out of contact; the ranks of west stay reserved until 2026-01-01T00:05:00Z"}));
    let reached =
        on_west(json!({"phase": "Lost", "lostSince": "2026-01-01T00:00:00Z", "conditions": [admitted.clone()],
        "message": "west is out of contact, and brokers of west may still reach the lead broker"}));
    let removed = Found { peers: vec![peer("north", json!({}))], ..reached.clone() };
    let cases: Vec<(&str, Found)> = vec![
        ("ready", on_west(json!({"phase": "Ready", "readyBrokers": 3, "conditions": [admitted.clone()]}))),
        ("its root is gone", no_root),
        ("its root is refused", root_refused),
        ("its root is suspended", over),
        ("cancelled", cancelled),
        (
            "no agent",
            Found {
                agent: Some(Err("no agent leads in namespace tributary-system: the last one has resigned".into())),
                ..bursting(json!({}), json!({"observedGeneration": 1}))
            },
        ),
        ("no peers", Found { peers: Vec::new(), ..bursting(json!({"peers": []}), json!({})) }),
        (
            "a peer that does not exist",
            Found {
                peers: vec![peer("vest", json!({}))],
                ..bursting(json!({}), json!({"message": "west: there is no ClusterPeer of this name; there are vest"}))
            },
        ),
        (
            "a peer that is not reached",
            away(
                bursting(json!({}), json!({"message": "west: not connected (why: `agentctl peers`)"})),
                "Unreachable",
                "203.0.113.7:30946 does not answer",
            ),
        ),
        (
            "a certificate that ran out",
            away(
                bursting(json!({}), json!({"message": "west: not connected (why: `agentctl peers`)"})),
                "CertificateExpired",
                "the certificate of west ended at 2026-01-01T00:00:00Z",
            ),
        ),
        (
            "no labels match",
            bursting(
                json!({"peers": [], "selector": {"matchLabels": {"region": "mars"}}}),
                json!({"message": "no ClusterPeer has the labels that the selector asks for (flux.bursting.clusters[].selector; of a FluxJob: overflow.selector of the FluxSetup); there are: west"}),
            ),
        ),
        ("no room anywhere", bursting(json!({"peers": []}), json!({"message": "west: 96 cores wanted, 12 free"}))),
        (
            "refused by policy",
            refused(
                "PolicyForbids",
                "the import policy of ClusterPeer east does not allow: containers[0].volumes.data.claimName: \"data\" is not in import.allowClaims",
            ),
        ),
        ("refused by quota", refused("QuotaExceeded", "ResourceQuota team leaves 2 of pods, and the burst needs 3")),
        (
            "more nodes than it may bring",
            refused(
                "TooManyNodes",
                "2 brokers with 40 cores each are wanted and 0 fit on 2 nodes, of which the largest has 16 free cores; import.scaleUp of ClusterPeer east leaves 1 of its 3 nodes: with nodes of large, there is room for 1 of the 2 brokers that lack it",
            ),
        ),
        (
            "nodes that did not come",
            refused(
                "ScaleUpTimedOut",
                "not all of its pods got nodes in time (import.scaleUp.wait of ClusterPeer east is 15m): it was given back",
            ),
        ),
        (
            "nodes that come",
            on_west(json!({"phase": "ScalingUp", "conditions": [admitted.clone()],
                "message": "west: 1 of 3 pods are on nodes; those of index 1-2 wait for an autoscaler, which may add up to 2 nodes; if not all have one by 2026-01-01T00:15:00Z, it is given back"})),
        ),
        ("alone", alone),
        ("evicted", refused("EvictedByProvider", "the HostedBurst was deleted there")),
        (
            "not answered",
            on_west(json!({"phase": "Offered", "message": "offered to west, which has not answered yet"})),
        ),
        (
            "too large to send",
            on_west(
                json!({"phase": "Offered", "conditions": [said("Delivered", "False", "Undeliverable", "changes do not reach west: the template has 300000 bytes")]}),
            ),
        ),
        ("lost", away(lost, "HeartbeatsMissing", "silent for 9 s")),
        ("lost, on a direct network", away(reached, "HeartbeatsMissing", "silent for 9 s")),
        ("lost for good, on a direct network", removed),
        (
            "no load balancer",
            on_west(
                json!({"phase": "Provisioning", "conditions": [admitted.clone(), said("LeadAddress", "False", "WaitingForLoadBalancer", "the lead Service has no address of a load balancer yet: something in this cluster must provide load balancers; if there is no such Service, condition ServicesReady of the MiniCluster says why")]}),
            ),
        ),
        (
            "a preflight finding",
            on_west(
                json!({"phase": "Provisioning", "conditions": [admitted.clone(), said("Preflight", "False", "LeadUnreachable", "192.0.2.1:30050 does not answer from west")]}),
            ),
        ),
        ("something there", Found { federation: Some(told(Some(theirs), None)), ..provisioning() }),
        ("a peer that tells nothing", Found { federation: Some(told(None, Some("no answer"))), ..provisioning() }),
    ];
    let texts: Vec<_> = cases.iter().map(|(case, found)| shown(case, &burst::explain(found, "lake-burst-0"))).collect();
    insta::assert_snapshot!(texts.join("\n\n"));
    // What keeps a burst keeps its MiniCluster.
    for (case, found) in &cases {
        let Some(unmet) = burst::explain(found, "lake-burst-0").unmet else { continue };
        if found.mini_cluster.as_ref().is_some_and(|root| !root.spec.suspend) && case != &"its root is refused" {
            let whole = mini_cluster::explain(found).unmet.unwrap();
            assert_eq!((whole.reason, whole.hint), (unmet.reason, unmet.hint), "{case}");
            assert_eq!(whole.condition, "BurstsReady", "{case}");
        }
    }
}

#[test]
fn what_is_hosted_here() {
    let hosted = |status: Value| {
        of(json!({
            "metadata": {"name": "lake-burst-0", "namespace": "flux", "uid": "h"},
            "spec": {"peer": "east", "root": {"name": "lake", "namespace": "flux"}, "slot": "lake-burst-0", "lease": "300s"},
            "status": status,
        }))
    };
    let brokers = |status: Value| Found {
        hosted: Some(hosted(status)),
        ..with_pods(vec![running(0, "False"), running(1, "False")])
    };
    let cases: Vec<(&str, Found)> = vec![
        (
            "its certificate is awaited",
            Found {
                hosted: Some(hosted(json!({"phase": "Accepted", "message": "the certificate is asked for"}))),
                ..Found::default()
            },
        ),
        (
            "it leaves",
            brokers(
                json!({"credentialReady": true, "drainingReason": "LeaseExpired", "message": "east is out of contact"}),
            ),
        ),
        (
            "its root is out of contact",
            brokers(json!({"credentialReady": true, "suspectSince": "2026-01-01T00:00:00Z"})),
        ),
        ("its pods wait for nodes", {
            let waits = json!({"phase": "ScalingUp", "credentialReady": true, "message": "1 of 3 pods are on nodes; those of index 1-2 \
                wait for an autoscaler, which may add up to 2 nodes; if not all have one by 2026-01-01T00:15:00Z, it is given back"});
            let brings = json!({"nodes": [{"group": "large", "count": 2}], "wait": "15m"});
            let mut hosted = hosted(waits);
            hosted.spec.scale_up = of(brings);
            let pending = |index: u32, message: &str| {
                let mut pod = running(index, "False");
                let spec = json!({"containers": []});
                pod.spec = of(spec);
                pod.status = of(
                    json!({"phase": "Pending", "conditions": [said("PodScheduled", "False", "Unschedulable", message)]}),
                );
                pod
            };
            let short = "0/2 nodes are available: 2 Insufficient cpu.";
            Found { hosted: Some(hosted), ..with_pods(vec![running(0, "False"), pending(1, short), pending(2, short)]) }
        }),
        (
            "no nodes came",
            brokers(json!({"credentialReady": true, "drainingReason": "ScaleUpTimedOut",
                "message": "leaving: not all of its pods got nodes in time (import.scaleUp.wait): it is given back"})),
        ),
        ("where the lead is was not told", brokers(json!({"credentialReady": true}))),
        (
            "its peer may place nothing here any more",
            brokers(json!({"credentialReady": true, "conditions": [{
                "type": "Admitted", "status": "False", "reason": "RunsWithoutImport",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "message": "it runs without import: ClusterPeer east has no import any more; to end it: `kubectl delete \
                            hostedburst lake-burst-0 --namespace flux`",
            }]})),
        ),
        ("the gateway is on a dead connection", {
            let mut found = brokers(json!({"credentialReady": true}));
            found.hosted.as_mut().unwrap().spec.tunnel = true;
            let status = found.pods[0].status.as_mut().unwrap();
            status.conditions.as_mut().unwrap()[0].last_transition_time = Some(of(json!("2026-01-01T00:00:00Z")));
            found
        }),
    ];
    let texts: Vec<_> = cases.iter().map(|(case, found)| shown(case, &mini_cluster::explain(found))).collect();
    insta::assert_snapshot!(texts.join("\n\n"));
}
