use k8s_openapi::api::core::v1::Toleration;
use serde_json::json;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::peer::PodSecurityLevel;
use tributary_contract::RootIdentity;
use tributary_flux::{Slot, Topology};
use tributary_render::nodes::Amounts;

use super::*;
use crate::nodes::{PodView, Taint, tolerates};

const EAST: &str = "east";

fn map(cores: u32) -> RankMap {
    let parent = Topology::Gateway.parent_of_bursts("lake");
    let burst = Slot::burst("lake-burst-0", 3, parent).with_resources(cores, 0);
    RankMap::new(vec![Slot::root("lake", 4), burst]).unwrap()
}

pub(crate) fn offer() -> DesiredBurst {
    offer_of_cores(2)
}

fn offer_of_cores(cores: u32) -> DesiredBurst {
    let map = map(cores);
    DesiredBurst {
        uid: "burst-uid".into(),
        generation: 1,
        root: RootIdentity {
            namespace: "flux".into(),
            name: "lake".into(),
            uid: "root-uid".into(),
            incarnation: "job-1".into(),
        },
        slot: "lake-burst-0".into(),
        size: 3,
        max_size: 3,
        cores,
        gpus: 0,
        rank_map: map.to_canonical(),
        rank_map_digest: map.digest().to_string(),
        credential_digest: "sha256:00".into(),
        lead: None,
        whole: false,
        tunnel: false,
        flux_version: None,
        arch: None,
        template: json!({"containers": [{"image": "app"}]}),
        lease_seconds: 300,
        drain_seconds: 60,
        warm: false,
        hosted_uid: None,
        offer: String::new(),
        trace: None,
        user: None,
    }
}

struct World {
    import: Option<ImportPolicy>,
    draining: bool,
    namespace_exists: bool,
    own_namespace: &'static str,
    ledger: Ledger,
    nodes: BTreeMap<String, NodeView>,
    pods: Vec<PodView>,
}

fn world() -> World {
    let node = |cores: i64| NodeView {
        schedulable: true,
        allocatable: Amounts { milli_cores: cores * 1000, memory: 1 << 34, gpus: 0 },
        ..NodeView::default()
    };
    World {
        import: Some(ImportPolicy { namespaces: vec!["flux".into()], ..ImportPolicy::default() }),
        draining: false,
        namespace_exists: true,
        own_namespace: "tributary-system",
        ledger: Ledger::default(),
        nodes: [("a".to_owned(), node(4)), ("b".to_owned(), node(4))].into(),
        pods: Vec::new(),
    }
}

impl World {
    fn admit(&self, desired: &DesiredBurst) -> Result<Admitted, Rejection> {
        let facts = Facts {
            import: self.import.as_ref(),
            draining: self.draining,
            slot: &slot_key(&EAST.into(), desired, self.import.as_ref()),
            namespace_exists: self.namespace_exists,
            own_namespace: self.own_namespace,
            ledger: &self.ledger,
            nodes: &self.nodes,
            pods: &self.pods,
        };
        admit(&EAST.into(), desired, &facts)
    }
}

#[test]
fn a_good_offer_is_taken_and_gets_the_service_account_of_the_policy() {
    let mut world = world();
    assert_eq!(world.admit(&offer()).unwrap().template.pod.service_account_name.as_deref(), Some("default"));
    world.import.as_mut().unwrap().service_account = Some("guests".into());
    let admitted = world.admit(&offer()).unwrap();
    assert_eq!(admitted.template.pod.service_account_name.as_deref(), Some("guests"));
    assert_eq!(admitted.rank_map, map(2));
    world.import.as_mut().unwrap().namespaces = vec!["*".into()];
    assert!(world.admit(&offer()).is_ok());
}

#[test]
fn no_policy_opens_the_namespace_of_the_agents_own_keys() {
    let mut world = world();
    let taken = |world: &World| {
        let mut offer = offer();
        offer.root.namespace = "tributary-system".into();
        world.admit(&offer)
    };
    for namespaces in
        [vec!["*".to_owned()], vec!["tributary-system".into()], vec!["*".into(), "tributary-system".into()]]
    {
        world.import = Some(ImportPolicy { namespaces, allow_secrets: vec!["*".into()], ..ImportPolicy::default() });
        let rejection = taken(&world).unwrap_err();
        assert_eq!(rejection.reason, RejectionReason::NamespaceNotAllowed, "{rejection}");
        assert!(rejection.message.contains("the agent's own"), "{rejection}");
    }
    // Nor does a template for names that leads there.
    let import = world.import.as_mut().unwrap();
    (import.namespaces, import.target_namespace) = (vec!["flux".into()], Some("tributary-system".into()));
    assert!(world.admit(&offer()).unwrap_err().message.contains("the agent's own"));
    world.import.as_mut().unwrap().target_namespace = None;
    assert!(world.admit(&offer()).is_ok());
}

#[test]
fn each_reason_is_found_and_said() {
    use RejectionReason::*;
    type Change = fn(&mut World, &mut DesiredBurst);
    let table: Vec<(RejectionReason, &str, Change)> = vec![
        (ImportNotAllowed, "has no import here", |world, _| world.import = None),
        (NamespaceNotAllowed, "not in import.namespaces", |_, offer| offer.root.namespace = "kube-system".into()),
        (NamespaceNotFound, "does not exist here", |world, _| world.namespace_exists = false),
        (TooManyBursts, "import.maxBursts", |world, _| world.import.as_mut().unwrap().max_bursts = Some(0)),
        (TooManyBursts, "import.maxBursts", |world, _| world.import.as_mut().unwrap().max_bursts = Some(-1)),
        (NamespaceNotAllowed, "the cluster's own", |world, offer| {
            world.import.as_mut().unwrap().namespaces = vec!["*".into()];
            offer.root.namespace = "kube-system".into();
        }),
        (NamespaceNotAllowed, "the cluster's own", |world, _| {
            let import = world.import.as_mut().unwrap();
            (import.namespaces, import.target_namespace) = (vec!["*".into()], Some("kube-{namespace}".into()));
        }),
        (NamespaceNotAllowed, "makes \"Burst_flux\" of flux", |world, _| {
            world.import.as_mut().unwrap().target_namespace = Some("Burst_{namespace}".into());
        }),
        (NamespaceNotFound, "namespace burst-east-flux does not exist here", |world, _| {
            world.import.as_mut().unwrap().target_namespace = Some("burst-{peer}-{namespace}".into());
            world.namespace_exists = false;
        }),
        (TooManyCores, "0 cores here and wants 6 more, but import.maxCores is 5", |world, _| {
            world.import.as_mut().unwrap().max_cores = Some(5);
        }),
        (Draining, "spec.drain", |world, _| world.draining = true),
        (TooManyBrokers, "import.maxBrokers is 2", |world, _| world.import.as_mut().unwrap().max_brokers = Some(2)),
        (
            FluxVersionMismatch,
            "are of Flux 0.68, and here they would be of 0.75 (import.fluxVersion",
            |world, offer| {
                offer.flux_version = Some("0.68".into());
                world.import.as_mut().unwrap().flux_version = Some("0.75.0".into());
            },
        ),
        (
            FluxVersionMismatch,
            "0.68, and here they would be of 0.75 (the tag of image flux-view:0.75.0)",
            |_, offer| {
                offer.flux_version = Some("0.68".into());
                offer.template["flux"] = json!({"container": {"image": "flux-view:0.75.0"}});
            },
        ),
        (FluxVersionMismatch, "of Flux 0.75, and here they would be of 0.68 (import", |world, offer| {
            offer.template["flux"] = json!({"container": {"image": "flux-view:0.75.0"}});
            world.import.as_mut().unwrap().flux_version = Some("0.68".into());
        }),
        (RankMapMismatch, "digest is sha256:", |_, offer| offer.rank_map_digest = "sha256:00".into()),
        (RankMapMismatch, "failed to parse", |_, offer| offer.rank_map.push('x')),
        (RankMapMismatch, "3, 4 and 0 in the offer", |_, offer| offer.cores = 4),
        (RankMapMismatch, "4, 2 and 0 in the offer", |_, offer| offer.max_size = 4),
        (RankMapMismatch, "no slot other", |_, offer| offer.slot = "other".into()),
        (RankMapMismatch, "no slot lake", |_, offer| offer.slot = "lake".into()),
        (RankMapMismatch, "of lake, the burst of pond", |_, offer| offer.root.name = "pond".into()),
        (InvalidTemplate, "cannot be the name of a service", |_, offer| offer.slot = "../x".into()),
        (InvalidTemplate, "make no burst", |_, offer| offer.size = 4),
        (InvalidTemplate, "make no burst", |_, offer| offer.size = 0),
        (InvalidTemplate, "services", |_, offer| offer.template["services"] = json!([{"name": "db"}])),
        (
            PolicyForbids,
            "containers[0].volumes.s.secretName: \"db-password\" is not in import.allowSecrets",
            |_, offer| {
                offer.template["containers"][0]["volumes"] = json!({"s": {"path": "/s", "secretName": "db-password"}});
            },
        ),
        (PolicyForbids, "pod.serviceAccountName", |_, offer| {
            offer.template["pod"] = json!({"serviceAccountName": "admin"});
        }),
        (PolicyForbids, "hostPath", |_, offer| {
            offer.template["containers"][0]["volumes"] = json!({"s": {"path": "/s", "hostPath": "/"}});
        }),
        (NotEnoughCores, "3 brokers with 2 cores each are wanted and 2 fit on 1 nodes", |world, _| {
            world.nodes.remove("b");
        }),
    ];
    for (reason, text, change) in table {
        let (mut world, mut offer) = (world(), offer());
        change(&mut world, &mut offer);
        let rejection = world.admit(&offer).unwrap_err();
        assert_eq!(rejection.reason, reason, "{rejection}");
        assert!(rejection.message.contains(text), "{rejection}");
    }
}

#[test]
fn room_is_promised_once() {
    let mut world = world();
    let mut second = offer();
    second.root.namespace = "other".into();
    world.import.as_mut().unwrap().namespaces = vec!["*".into()];
    world.ledger.reserve(&slot_key(&EAST.into(), &second, None), &"south".into(), &second, None);
    let rejection = world.admit(&offer()).unwrap_err();
    assert_eq!(rejection.reason, RejectionReason::NotEnoughCores, "8 cores, of which 6 are promised");
    assert!(world.admit(&second).is_ok(), "its own reservation does not stand in its way");
    world.ledger.cancel(&slot_key(&EAST.into(), &second, None));
    assert!(world.admit(&offer()).is_ok());
}

#[test]
fn a_broker_that_asks_for_a_part_of_a_core_takes_that_part_of_a_node() {
    let mut world = world();
    world.nodes.remove("b");
    let mut offer = offer_of_cores(1);
    offer.size = 3;
    let with_cpu = |cpu: &str| json!({"containers": [{"image": "app", "resources": {"requests": {"cpu": cpu}}}]});
    let mut second = offer.clone();
    second.root.namespace = "other".into();
    world.import.as_mut().unwrap().namespaces = vec!["*".into()];
    world.ledger.reserve(&slot_key(&EAST.into(), &second, None), &"south".into(), &second, None);
    assert_eq!(world.admit(&offer).unwrap_err().reason, RejectionReason::NotEnoughCores, "3 of 4 cores are promised");
    offer.template = with_cpu("300m");
    assert!(world.admit(&offer).is_ok(), "and 900 thousandths fit on the last");
    offer.template = with_cpu("600m");
    assert_eq!(world.admit(&offer).unwrap_err().reason, RejectionReason::NotEnoughCores);
}

#[test]
fn quotas_count_each_peers_own_bursts() {
    let mut world = world();
    let import = world.import.as_mut().unwrap();
    (import.max_bursts, import.max_brokers) = (Some(1), Some(5));
    let mut other = offer();
    other.slot = "other".into();
    other.cores = 0;
    let key = slot_key(&EAST.into(), &other, None);
    world.ledger.reserve(&key, &"south".into(), &other, None);
    assert!(world.admit(&offer()).is_ok(), "that was another peer's");
    world.ledger.reserve(&key, &EAST.into(), &other, None);
    assert_eq!(world.admit(&offer()).unwrap_err().reason, RejectionReason::TooManyBursts);
    world.import.as_mut().unwrap().max_bursts = Some(2);
    assert_eq!(world.admit(&offer()).unwrap_err().reason, RejectionReason::TooManyBrokers);
    world.import.as_mut().unwrap().max_brokers = Some(6);
    assert!(world.admit(&offer()).is_ok());

    let mut other = offer();
    (other.slot, other.cores, other.gpus) = ("other".into(), 0, 2);
    world.ledger.reserve(&key, &EAST.into(), &other, None);
    world.import.as_mut().unwrap().max_gpus = Some(6);
    assert!(world.admit(&offer()).is_ok(), "it wants no GPUs");
    world.import.as_mut().unwrap().max_gpus = Some(5);
    assert_eq!(world.admit(&offer()).unwrap_err().reason, RejectionReason::TooManyGpus, "what is there counts");
}

/// The slot says what Flux counts on, the template what Kubernetes has to give: who says less than it takes evades nothing.
#[test]
fn quotas_count_what_pods_ask_for_where_the_slot_says_less() {
    let mut world = world();
    for node in world.nodes.values_mut() {
        node.allocatable.milli_cores = 64_000;
    }
    let asking = |resources: serde_json::Value| DesiredBurst {
        template: json!({"containers": [{"image": "app", "resources": resources}, {"image": "beside", "resources": {"requests": {"cpu": 1}}}]}),
        ..offer()
    };
    let (brokers, cores) = (offer().max_size, offer().cores);
    let of = |each: u32| i32::try_from(brokers * each).unwrap();
    world.import.as_mut().unwrap().max_cores = Some(of(cores));
    assert!(world.admit(&offer()).is_ok());
    let greedy = asking(json!({"requests": {"cpu": format!("{cores}")}}));
    assert_eq!(world.admit(&greedy).unwrap_err().reason, RejectionReason::TooManyCores, "the other container counts");
    world.import.as_mut().unwrap().max_cores = Some(of(cores + 1));
    assert!(world.admit(&greedy).is_ok());
    world.ledger.reserve(&("flux".into(), "other".into()), &EAST.into(), &greedy, None);
    world.import.as_mut().unwrap().max_cores = Some(of(2 * cores + 1));
    let refused = world.admit(&greedy).unwrap_err();
    assert_eq!(refused.reason, RejectionReason::TooManyCores, "what is there counts by what it asks for, too");

    let devices = asking(json!({"limits": {"nvidia.com/gpu": 2}}));
    let import = world.import.as_mut().unwrap();
    (import.max_cores, import.max_gpus) = (None, Some(of(2) - 1));
    assert_eq!(world.admit(&devices).unwrap_err().reason, RejectionReason::TooManyGpus);
}

#[test]
fn what_is_dear_counts_as_a_gpu_by_whatever_name_it_is_requested() {
    let mut world = world();
    for resource in ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared", "google.com/tpu", "habana.ai/gaudi"] {
        let template = json!({"containers": [{"image": "app", "resources": {"limits": {resource: 2}}}]});
        let offer = DesiredBurst { template, ..offer() };
        let all = i32::try_from(offer.max_size * 2).unwrap();
        world.import.as_mut().unwrap().max_gpus = Some(all - 1);
        assert_eq!(world.admit(&offer).unwrap_err().reason, RejectionReason::TooManyGpus, "{resource}");
        world.import.as_mut().unwrap().max_gpus = Some(all);
        assert!(world.admit(&offer).is_ok(), "{resource}: nodes count none of these, and refuse nothing for them");
    }
}

#[test]
fn memory_and_ephemeral_storage_count_by_what_containers_request() {
    let asking = |slot: &str, resource: &str, each: &str| {
        let resources = json!({"requests": {resource: each}});
        let containers = json!([{"image": "app", "resources": resources}, {"image": "beside", "resources": resources}]);
        DesiredBurst { slot: slot.into(), template: json!({"containers": containers}), ..offer() }
    };
    type Write = fn(&mut ImportPolicy, &str);
    let table: [(&str, &str, RejectionReason, Write); 2] = [
        ("memory", "maxMemory", RejectionReason::TooMuchMemory, |import, limit| {
            import.max_memory = Some(Amount::Text(limit.into()));
        }),
        ("ephemeral-storage", "maxEphemeralStorage", RejectionReason::TooMuchEphemeralStorage, |import, limit| {
            import.max_ephemeral_storage = Some(Amount::Text(limit.into()))
        }),
    ];
    for (resource, field, reason, write) in table {
        let mut world = world();
        for node in world.nodes.values_mut() {
            node.allocatable.milli_cores = 64_000;
        }
        let limited = |limit: &str, world: &mut World| write(world.import.as_mut().unwrap(), limit);
        let burst = || asking("lake-burst-0", resource, "1Gi");
        let refused = |world: &World, offer: &DesiredBurst| {
            let rejection = world.admit(offer).unwrap_err();
            assert_eq!(rejection.reason, reason);
            rejection.message
        };
        // Three brokers of two containers.
        limited("6Gi", &mut world);
        assert!(world.admit(&burst()).is_ok());
        limited("6143Mi", &mut world);
        let told = format!("east has 0 of {resource} here and wants 6Gi more, but import.{field} is 6143Mi");
        assert_eq!(refused(&world, &burst()), told);
        // What is there counts, of this peer alone.
        limited("9Gi", &mut world);
        let other = ("flux".to_owned(), "other".to_owned());
        world.ledger.reserve(&other, &"south".into(), &asking("other", resource, "1Gi"), None);
        assert!(world.admit(&burst()).is_ok());
        world.ledger.reserve(&other, &EAST.into(), &asking("other", resource, "1Gi"), None);
        let told = format!("east has 6Gi of {resource} here and wants 6Gi more, but import.{field} is 9Gi");
        assert_eq!(refused(&world, &burst()), told);
        // Who says nothing might take anything.
        limited("999Ti", &mut world);
        assert!(refused(&world, &offer()).starts_with(&format!("a container of it requests no {resource}")));
        // What is no amount allows nothing.
        limited("much", &mut world);
        refused(&world, &burst());
    }
    assert!(world().admit(&offer()).is_ok(), "nothing is limited that is not written");
}

#[test]
fn what_the_policy_imposes_is_in_the_pods_and_decides_where_there_is_room() {
    let mut world = world();
    let reserved = Taint { key: "bursts".into(), value: "yes".into(), effect: "NoSchedule".into() };
    for node in world.nodes.values_mut() {
        node.taints.push(reserved.clone());
    }
    assert_eq!(world.admit(&offer()).unwrap_err().reason, RejectionReason::NotEnoughCores);
    let import = world.import.as_mut().unwrap();
    import.tolerations = vec![serde_json::from_value(json!({"key": "bursts", "operator": "Exists"})).unwrap()];
    import.node_selector = [("pool".to_owned(), "guests".to_owned())].into();
    (import.priority_class, import.runtime_class) = (Some("low".into()), Some("gvisor".into()));
    assert_eq!(world.admit(&offer()).unwrap_err().reason, RejectionReason::NotEnoughCores, "no node has that label");
    for node in world.nodes.values_mut() {
        node.labels.insert("pool".into(), "guests".into());
    }
    let pod = world.admit(&offer()).unwrap().template.pod;
    assert_eq!((pod.tolerations.len(), pod.node_selector["pool"].as_str()), (1, "guests"));
    assert_eq!((pod.priority_class_name.as_deref(), pod.runtime_class_name.as_deref()), (Some("low"), Some("gvisor")));

    let import = world.import.as_mut().unwrap();
    (import.allow_scheduling, import.allow_runtime_classes) = (true, vec!["kata".into()]);
    let mut asks = offer();
    asks.template["pod"] = json!({"runtimeClassName": "kata", "nodeSelector": {"pool": "best", "zone": "a"}});
    for node in world.nodes.values_mut() {
        node.labels.insert("zone".into(), "a".into());
    }
    let pod = world.admit(&asks).unwrap().template.pod;
    assert_eq!(pod.runtime_class_name.as_deref(), Some("kata"), "it was allowed to choose");
    assert_eq!((pod.node_selector["pool"].as_str(), pod.node_selector["zone"].as_str()), ("guests", "a"));
}

#[test]
fn tainted_nodes_count_for_who_tolerates_them() {
    let toleration = |json| serde_json::from_value::<Toleration>(json).unwrap();
    let taint = Taint { key: "gpu".into(), value: "a".into(), effect: "NoSchedule".into() };
    let table = [
        (json!({"key": "gpu", "value": "a"}), true),
        (json!({"key": "gpu", "operator": "Equal", "value": "b"}), false),
        (json!({"key": "gpu", "operator": "Exists"}), true),
        (json!({"operator": "Exists"}), true),
        (json!({"operator": "Exists", "effect": "NoExecute"}), false),
        (json!({"key": "other", "operator": "Exists"}), false),
        (json!({}), false),
    ];
    for (json, expected) in table {
        assert_eq!(tolerates(&toleration(json.clone()), &taint), expected, "{json}");
    }
}

#[test]
fn the_rendered_pod_is_judged_at_the_level_of_the_policy() {
    let pod: PodTemplateSpec =
        serde_json::from_value(json!({"spec": {"hostPID": true, "containers": [{"name": "a"}]}})).unwrap();
    let mut policy = ImportPolicy::default();
    let rejection = judge_pod(&EAST.into(), &policy, &pod).unwrap_err();
    assert_eq!(rejection.reason, RejectionReason::PodSecurity);
    assert!(rejection.message.contains("level baseline") && rejection.message.contains("hostPID"), "{rejection}");
    policy.pod_security = PodSecurityLevel::Privileged;
    assert_eq!(judge_pod(&EAST.into(), &policy, &pod), Ok(()));
}

#[test]
fn a_burst_that_lacks_room_may_bring_nodes_and_each_is_promised_once() {
    let mut world = world();
    let groups = json!([{"name": "large", "cpu": 8, "memory": "8Gi"}]);
    let policy =
        |max: u32| serde_json::from_value(json!({"maxNodes": max, "wait": "5m", "nodeGroups": groups})).unwrap();
    let brings = |world: &World, offer: &DesiredBurst| -> Result<u32, Rejection> {
        let admitted = world.admit(offer)?;
        Ok(admitted.scale_up.map_or(0, |scale_up| scale_up.nodes.iter().map(|nodes| nodes.count).sum()))
    };
    let large = || DesiredBurst { size: 2, ..offer_of_cores(4) };
    world.import.as_mut().unwrap().scale_up = policy(4);
    assert_eq!(brings(&world, &offer()), Ok(0), "6 of 8 cores: there is room");
    assert_eq!(brings(&world, &large()), Ok(0), "for two of three there is room, and more are not wanted now");
    assert_eq!(brings(&world, &offer_of_cores(4)), Ok(1), "two on the nodes that are there, one on a new one");
    world.nodes.clear();
    assert_eq!(brings(&world, &large()), Ok(2), "three it may grow to, two on each");
    // Others of the same peer, by their promise or by their HostedBurst.
    let other: SlotKey = ("flux".into(), "other".into());
    let admitted = world.admit(&large()).unwrap();
    world.ledger.reserve(&other, &EAST.into(), &large(), admitted.scale_up.as_ref());
    assert_eq!(brings(&world, &large()), Ok(2));
    world.import.as_mut().unwrap().scale_up = policy(3);
    let rejection = brings(&world, &large()).unwrap_err();
    assert_eq!(rejection.reason, RejectionReason::TooManyNodes);
    assert!(
        rejection.message.starts_with("2 brokers with 4 cores each are wanted and 0 fit on 0 nodes"),
        "{rejection}"
    );
    assert!(rejection.message.ends_with("there is room for 2 of the 3 brokers that lack it"), "{rejection}");
    let mut hosted = HostedBurst::default();
    (hosted.metadata.namespace, hosted.metadata.name) = (Some("flux".into()), Some("other".into()));
    (hosted.spec.peer, hosted.spec.max_size, hosted.spec.scale_up) = (EAST.into(), 3, admitted.scale_up);
    world.ledger.host(&other, Some(&hosted));
    assert_eq!(brings(&world, &large()).unwrap_err().reason, RejectionReason::TooManyNodes);
    // Others of another peer, and one that was here before under the same name.
    hosted.spec.peer = "south".into();
    world.ledger.host(&other, Some(&hosted));
    assert_eq!(brings(&world, &large()), Ok(2));
    hosted.spec.peer = EAST.into();
    (hosted.metadata.name, world.ledger) = (Some(large().slot), Ledger::default());
    world.ledger.host(&slot_key(&EAST.into(), &large(), None), Some(&hosted));
    assert_eq!(brings(&world, &large()), Ok(2));
}

/// The danger: pods that no node has the memory for are taken, and wait for ever.
#[test]
fn memory_that_containers_request_counts_on_nodes() {
    let world = world();
    let asking = |memory: &str| DesiredBurst {
        template: json!({"containers": [{"image": "app", "resources": {"requests": {"memory": memory}}}]}),
        ..offer()
    };
    assert!(world.admit(&asking("8Gi")).is_ok(), "two on each node of 16 GiB");
    let rejection = world.admit(&asking("9Gi")).unwrap_err();
    assert_eq!(rejection.reason, RejectionReason::NotEnoughCores);
    assert!(
        rejection.message.starts_with("3 brokers with 2 cores, 9Gi of memory each are wanted and 2 fit"),
        "{rejection}"
    );
}
