//! Plans of manifests, with and without clusters to look at.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};
use tributary::api::flux_setup::FluxSetup;
use tributary::api::minicluster::Phase;
use tributary::api::peer::ImportPolicy;
use tributary::bursting::nodes::NodeView;
use tributary::bursting::peers::PeerView;
use tributary::config::Config;
use tributary::contract::{Capacity, PeerState, PossibleCapacity};
use tributary::queue::priorities::Priorities;
use tributary::render::Context;
use tributary::render::nodes::Amounts;

use super::evaluate::{Existing, Inside, Known, plan};
use super::manifest::{self, Manifest};
use super::report::{ClusterPlan, MiniClusterPlan, Report, text};
use super::sides;

mod brought;

fn read(text: &str) -> Manifest {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("manifest.yaml");
    std::fs::write(&file, text).unwrap();
    manifest::read(&[file], None).unwrap()
}

const LAKE: &str = "
apiVersion: flux-framework.org/v1alpha2
kind: MiniCluster
metadata: {name: lake, namespace: flux}
spec:
  size: 4
  containers: [{image: ghcr.io/lab/app, command: sleep 60, resources: {requests: {cpu: \"2\"}}}]
  flux: {bursting: {clusters: [{size: 3, peer: west}, {name: gpu, size: 2, maxSize: 5, gpus: 1, selector: {matchLabels: {region: eu}}}]}}
";

fn peer(cores: u32, labels: serde_json::Value) -> PeerView {
    PeerView {
        state: PeerState::Connected,
        labels: serde_json::from_value(labels).unwrap(),
        capacity: Some(Capacity {
            nodes: 4,
            free_cores: cores,
            free_gpus: 8,
            largest_free_node_cores: 16,
            ..Capacity::default()
        }),
        ..PeerView::default()
    }
}

fn known() -> Known {
    let quota = json!({"metadata": {"name": "team"}, "status": {"hard": {"pods": "5", "requests.cpu": "6"}, "used": {"pods": "1"}}});
    Known {
        cluster: Some("east".into()),
        namespace: "default".into(),
        quotas: [("flux".into(), vec![serde_json::from_value(quota).unwrap()])].into(),
        peers: Some([("west".into(), peer(64, json!({}))), ("north".into(), peer(32, json!({"region": "eu"})))].into()),
        ..Known::default()
    }
}

/// West, looked at from inside.
fn west(import: serde_json::Value) -> Inside {
    let node = NodeView {
        schedulable: true,
        allocatable: Amounts { milli_cores: 8_000, memory: 1 << 34, gpus: 0 },
        ..NodeView::default()
    };
    let quota = json!({"metadata": {"name": "guests"}, "status": {"hard": {"pods": "10"}, "used": {"pods": "4"}}});
    Inside {
        import: Some(serde_json::from_value::<ImportPolicy>(import).unwrap()),
        namespaces: vec!["flux".into(), "burst-east".into()],
        nodes: [("node-1".to_owned(), node)].into(),
        quotas: [("burst-east".into(), vec![serde_json::from_value(quota).unwrap()])].into(),
        ..Inside::default()
    }
}

#[test]
fn two_bursts_on_what_is_known_of_the_peers() {
    let report = plan(&read(LAKE), &known());
    assert!(!report.possible, "the quota has no room for eight cores");
    insta::assert_snapshot!(text(&report));
}

#[test]
fn a_peer_that_can_be_looked_at_answers_as_its_agent_would() {
    let policy =
        json!({"namespaces": ["flux"], "targetNamespace": "burst-{peer}", "maxBrokers": 4, "egress": {"allow": []}});
    let inside =
        |import| Known { inside: [("west".into(), west(import))].into(), quotas: Default::default(), ..known() };
    let one = LAKE.replace(", {name: gpu, size: 2, maxSize: 5, gpus: 1, selector: {matchLabels: {region: eu}}}", "");
    let taken = plan(&read(&one), &inside(policy));
    assert!(taken.possible);
    let refused =
        |import| plan(&read(&one), &inside(import)).mini_clusters[0].clusters[1].refusal.clone().unwrap().reason;
    insta::assert_snapshot!(text(&taken));
    let table = [
        (json!({}), "NamespaceNotAllowed"),
        (json!({"namespaces": ["flux"], "targetNamespace": "nowhere"}), "NamespaceNotFound"),
        (json!({"namespaces": ["flux"], "maxBrokers": 2}), "TooManyBrokers"),
        (json!({"namespaces": ["flux"], "allowImages": ["ghcr.io/other/*"]}), "PolicyForbids"),
        (json!({"namespaces": ["flux"], "podSecurity": "restricted"}), "PodSecurity"),
    ];
    for (import, reason) in table {
        assert_eq!(refused(import.clone()), reason, "{import}");
    }
}

#[test]
fn a_peer_that_would_have_to_add_nodes_is_told_from_one_that_has_room() {
    let policy = json!({"namespaces": ["flux"], "scaleUp": {"maxNodes": 2, "wait": "10m", "nodeGroups": [
        {"name": "large", "cpu": 8, "memory": "32Gi"}]}});
    let one = LAKE.replace(", {name: gpu, size: 2, maxSize: 5, gpus: 1, selector: {matchLabels: {region: eu}}}", "");
    let planned_by = |policy: &Value, manifest: &str, nodes: i64| {
        let mut inside = west(policy.clone());
        inside.nodes.get_mut("node-1").unwrap().allocatable.milli_cores = nodes;
        let mut known = Known { inside: [("west".into(), inside)].into(), quotas: Default::default(), ..known() };
        let possible = Some(PossibleCapacity { nodes: 2, cores: 16, largest_node_cores: 8, ..Default::default() });
        let west = known.peers.as_mut().unwrap().get_mut("west").unwrap();
        let free_cores = u32::try_from(nodes / 1000).unwrap();
        west.capacity =
            Some(Capacity { free_cores, largest_free_node_cores: free_cores, possible, ..Capacity::default() });
        plan(&read(manifest), &known).mini_clusters.remove(0).clusters.remove(1)
    };
    let planned = |manifest: &str, nodes: i64| planned_by(&policy, manifest, nodes);
    assert_eq!(planned(&one, 8000).placement, "named");
    let scaled = planned(&one, 4000);
    assert_eq!(
        (scaled.placement.as_str(), scaled.refusal.clone()),
        ("named, and has room with nodes that it adds, and waits for nodes that west adds: 1 of large", None)
    );
    let class = "check-capacity.autoscaling.x-k8s.io";
    let mut asks = policy.clone();
    asks["scaleUp"]["provisioningRequest"] = json!({"provisioningClassName": class});
    let asked = planned_by(&asks, &one, 4000);
    let words = format!("1 of large (asked for by a ProvisioningRequest of class {class})");
    assert!(asked.placement.ends_with(&words), "{}", asked.placement);
    for kind in ["ProvisioningRequest", "PodTemplate"] {
        let made = |plan: &ClusterPlan| plan.objects.iter().any(|object| object.kind == kind);
        assert_eq!((made(&asked), made(&scaled)), (true, false), "{kind}");
    }
    let refused = planned(&one.replace("size: 3", "size: 12"), 0).refusal.unwrap();
    assert_eq!(refused.reason, "TooManyNodes");
    assert!(refused.hint.contains("raise scaleUp in import"), "{}", refused.hint);
    // Nobody has to add nodes who has room.
    let anywhere = planned(&one.replace(", peer: west", ""), 0);
    assert_eq!(
        (anywhere.cluster.as_deref(), anywhere.placement.as_str()),
        (Some("north"), "connected, and has the most room")
    );
}

#[test]
fn a_peer_whose_queue_decides_is_told() {
    let inside = west(json!({"namespaces": ["flux"], "queueName": "guests"}));
    let known = Known { inside: [("west".into(), inside)].into(), quotas: Default::default(), ..known() };
    let planned = plan(&read(LAKE), &known).mini_clusters.remove(0).clusters.remove(1);
    assert_eq!(planned.refusal, None);
    assert!(planned.unchecked[0].contains("it waits in LocalQueue guests of Kueue on west"), "{:?}", planned.unchecked);
}

/// Its user sees what each would cost, and why it goes to one of them.
#[test]
fn the_peers_are_compared_in_a_table() {
    let prefer = "prefer: [{weight: 10, matchLabels: {region: eu}}]";
    let manifest = format!(
        "{}{}",
        LAKE.split("clusters:").next().unwrap(),
        "clusters: [{size: 3}, {size: 3, PREFER}, {size: 40}, {size: 3, selector: {matchLabels: {region: eu}}}]}}\n"
            .replace("PREFER", prefer)
    );
    let mut peers = known().peers.unwrap();
    let possible = Some(PossibleCapacity {
        nodes: 9,
        cores: 900,
        largest_node_cores: 90,
        price: Some(serde_json::from_value(json!({"coreHour": "0.09"})).unwrap()),
        wait_seconds: 900,
        ..PossibleCapacity::default()
    });
    let cloud = Capacity { possible, ..peers["north"].capacity.clone().unwrap() };
    peers.insert("cloud".into(), PeerView { capacity: Some(cloud), ..peer(0, json!({})) });
    peers.insert("away".into(), PeerView { state: PeerState::Disconnected, ..peer(64, json!({})) });
    peers.get_mut("west").unwrap().price = serde_json::from_value(json!({"coreHour": "0.05", "gpuHour": 1})).unwrap();
    peers.get_mut("north").unwrap().price = serde_json::from_value(json!({"coreHour": "0.06"})).unwrap();
    peers.get_mut("cloud").unwrap().price = serde_json::from_value(json!({"coreHour": "0.07"})).unwrap();
    let report = plan(&read(&manifest), &Known { peers: Some(peers), quotas: Default::default(), ..known() });
    let tables = report.mini_clusters[0].clusters[1..]
        .iter()
        .map(|plan| format!("{}: {}\n{}", plan.slot, plan.placement, super::candidates::text(&plan.candidates)));
    insta::assert_snapshot!(tables.collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_budget_of_money_where_nothing_has_a_price_is_noted() {
    let notes = |peers| {
        let text = LAKE.replace("bursting: {", "bursting: {budget: {cost: 250}, ");
        plan(&read(&text), &Known { peers: Some(peers), ..known() }).mini_clusters[0].notes.join("\n")
    };
    let mut peers = known().peers.unwrap();
    let all = notes(peers.clone());
    let of_west = "burst lake-burst-0: its budget of money never ends on west: ClusterPeer west has no price";
    assert!(all.contains(of_west) && all.contains("never ends on north"), "{all}");
    peers.values_mut().for_each(|peer| peer.price = serde_json::from_value(json!({"coreHour": 0})).unwrap());
    assert!(!notes(peers.clone()).contains("never ends"), "a price of 0 is a price: {}", notes(peers));
}

#[test]
fn what_runs_already_is_held_against_it() {
    let manifest = read(LAKE);
    let before = {
        let mut object = manifest.mini_clusters[0].object.clone();
        super::evaluate::default(&mut object);
        object.metadata.uid = Some("u".into());
        object
    };
    let job = tributary::render::render(&before, &Default::default()).unwrap().frozen_job();
    let there = |taken: Vec<String>| Existing { mini_cluster: Some(before.clone()), job: Some(job.clone()), taken };
    let with = |text: &str, taken| {
        let existing = [(("flux".to_owned(), "lake".to_owned()), there(taken))].into();
        plan(&read(text), &Known { existing, ..known() }).mini_clusters.remove(0)
    };
    assert_eq!(with(LAKE, Vec::new()).change, "runs; nothing of its instance changes");
    assert!(with(LAKE, Vec::new()).clusters[0].charges.is_empty(), "its pods are counted already");
    let held = with(&LAKE.replace("size: 4\n", "size: 4\n  suspend: true\n"), Vec::new());
    assert_eq!(held.change, "is held back (suspend); nothing else of its instance changes");
    let image = with(&LAKE.replace("lab/app", "lab/app:2"), Vec::new()).change;
    assert!(image.contains("spec.containers[0].image take effect with the next instance"), "{image}");
    let ended = |change: fn(&mut Existing)| {
        let mut there = there(Vec::new());
        there.mini_cluster.as_mut().unwrap().status.get_or_insert_default().phase = Some(Phase::Succeeded);
        change(&mut there);
        let existing = [(("flux".to_owned(), "lake".to_owned()), there)].into();
        plan(&read(LAKE), &Known { existing, ..known() }).mini_clusters.remove(0).change
    };
    for change in [|_: &mut Existing| {}, |there: &mut Existing| there.job = None] {
        assert!(ended(change).starts_with("has ended, and runs again only with"), "{}", ended(change));
    }
    let taken = with(LAKE, vec!["ConfigMap lake-entrypoint".into()]);
    assert_eq!(taken.problems[0].reason, "NameTaken");
}

/// The agents of the image have the program, and what runs was made with it.
#[test]
fn the_ends_of_the_tunnel_are_planned_on_both_sides() {
    let text = LAKE.replace("bursting: {", "bursting: {network: {type: Tunnel}, ");
    let planned = plan(&read(&text), &known()).mini_clusters.remove(0);
    let ends = |cluster: &ClusterPlan| {
        let maps = cluster.objects.iter().filter(|object| object.name == format!("{}-ends", cluster.slot));
        maps.count()
    };
    assert_eq!(planned.clusters.iter().map(ends).collect::<Vec<_>>(), [1; 3]);
    let directly = plan(&read(LAKE), &known()).mini_clusters.remove(0);
    assert_eq!(directly.clusters.iter().map(ends).sum::<usize>(), 0);

    let mut before = read(&text).mini_clusters[0].object.clone();
    super::evaluate::default(&mut before);
    before.metadata.uid = Some("u".into());
    let context = Context { ends: sides::ends(), ..Context::default() };
    let job = tributary::render::render(&before, &context).unwrap().frozen_job();
    let there = Existing { mini_cluster: Some(before), job: Some(job), taken: Vec::new() };
    let existing = [(("flux".to_owned(), "lake".to_owned()), there)].into();
    let planned = plan(&read(&text), &Known { existing, ..known() }).mini_clusters.remove(0);
    assert_eq!(planned.change, "runs; nothing of its instance changes");
}

/// The danger: a plan of brokers, bursts and certificates that nobody here makes.
#[test]
fn what_is_left_to_another_controller_is_not_planned_and_stays_with_it() {
    let of = |manager: &str, known: &Known| {
        let text = LAKE.replace("size: 4\n", &format!("size: 4\n  managedBy: {manager}\n"));
        plan(&read(&text), known).mini_clusters.remove(0)
    };
    let left = of("kueue.x-k8s.io/multikueue", &known());
    assert_eq!(
        left.change,
        "is left to kueue.x-k8s.io/multikueue (spec.managedBy): the agent here makes no brokers of it"
    );
    assert!(left.clusters.is_empty() && left.recipients.is_empty() && left.problems.is_empty(), "{left:?}");
    let ours = of(tributary::api::minicluster::MANAGER, &known());
    assert_eq!((ours.change.as_str(), ours.clusters.len()), ("is made", 3));
    let wrong = of("multikueue", &known());
    assert_eq!(wrong.problems[0].field, "spec.managedBy");
    let there = Existing { mini_cluster: Some(read(LAKE).mini_clusters[0].object.clone()), ..Existing::default() };
    let existing = [(("flux".to_owned(), "lake".to_owned()), there)].into();
    let late = of("kueue.x-k8s.io/multikueue", &Known { existing, ..known() });
    assert_eq!((late.problems[0].field.as_str(), late.problems[0].reason.as_str()), ("spec.managedBy", "Immutable"));
}

fn setup(spec: serde_json::Value, status: serde_json::Value) -> Option<FluxSetup> {
    Some(serde_json::from_value(json!({"metadata": {"name": "team"}, "spec": spec, "status": status})).unwrap())
}

/// Otherwise every change seems to touch fields that the API server has filled in.
#[test]
fn what_the_api_server_writes_by_itself_is_no_change() {
    let text = LAKE.replace("flux: {", "logging: {}\n  flux: {container: {image: view}, ");
    let manifest = read(&text);
    let mut before = manifest.mini_clusters[0].object.clone();
    super::evaluate::default(&mut before);
    let spec = serde_json::to_value(&before.spec).unwrap();
    let written =
        ["/tasks", "/flux/connectTimeout", "/flux/drainSeconds", "/flux/logLevel", "/flux/container/mountPath"];
    assert!(written.iter().all(|field| spec.pointer(field).is_some()), "{spec}");
    before.metadata.uid = Some("u".into());
    let job = tributary::render::render(&before, &Default::default()).unwrap().frozen_job();
    let there = Existing { mini_cluster: Some(before), job: Some(job), taken: Vec::new() };
    let existing = [(("flux".to_owned(), "lake".to_owned()), there)].into();
    let known = Known { existing, quotas: Default::default(), ..known() };
    let change = |text: &str| plan(&read(text), &known).mini_clusters.remove(0).change;
    assert_eq!(change(&text), "runs; nothing of its instance changes");
    let changed = change(&text.replace("size: 4\n", "size: 4\n  tasks: 8\n"));
    assert!(changed.starts_with("runs on as it is: spec.tasks take effect"), "{changed}");
}

/// An edit that is refused ends nothing, and says so.
#[test]
fn what_is_refused_of_something_that_runs_leaves_it_running() {
    let before = {
        let mut object = read(LAKE).mini_clusters[0].object.clone();
        super::evaluate::default(&mut object);
        object.metadata.uid = Some("u".into());
        object
    };
    let job = tributary::render::render(&before, &Default::default()).unwrap().frozen_job();
    let there = Existing { mini_cluster: Some(before), job: Some(job), taken: Vec::new() };
    let existing = [(("flux".to_owned(), "lake".to_owned()), there)].into();
    let wrong = LAKE.replace("size: 4\n", "size: 4\n  maxSize: 3\n");
    let report = plan(&read(&wrong), &Known { existing, ..known() });
    assert!(!report.possible);
    assert_eq!(
        report.mini_clusters[0].change,
        "refused: its brokers here run on as they are; its bursts follow flux.bursting all the same"
    );
    assert_eq!(plan(&read(&wrong), &known()).mini_clusters[0].change, "refused: the agent makes nothing of it");
}

/// The agent would wait for ever, and nobody gets the certificate.
#[test]
fn a_peer_that_is_misspelt_is_refused_and_the_peers_are_named() {
    let free = || Known { quotas: Default::default(), ..known() };
    let with = |peers: &str| plan(&read(&LAKE.replace("peer: west", peers)), &free());
    let misspelt = with("peer: wset");
    assert!(!misspelt.possible);
    let of = |report: &Report| report.mini_clusters[0].clusters[1].refusal.clone();
    let refusal = of(&misspelt).unwrap();
    assert_eq!((refusal.reason.as_str(), refusal.message.as_str()), ("UnknownPeer", "there is no ClusterPeer wset"));
    assert!(refusal.hint.ends_with("north, west"), "{}", refusal.hint);
    assert!(misspelt.mini_clusters[0].recipients.iter().all(|one| one.cluster != "wset"));
    assert!(of(&with("peer: east")).unwrap().message.contains("is this cluster itself"));
    let some = with("peers: [wset, west]");
    assert!(some.possible && of(&some).is_none());
    let notes = some.mini_clusters[0].notes.join("\n");
    assert!(notes.contains("wset, which is no peer"), "{notes}");
    let none = plan(&read(&LAKE.replace("peer: west", "peer: wset")), &Known { peers: Some([].into()), ..free() });
    crate::paste::check::pastes(&of(&none).unwrap().hint);
    let unknown = plan(&read(&LAKE.replace("peer: west", "peer: wset")), &Known { peers: None, ..free() });
    assert!(of(&unknown).is_none(), "nobody said what peers there are");
}

/// One mistake, one line, at the field and in the namespace that are written.
#[test]
fn a_value_of_another_type_is_named_by_its_path() {
    let problems = |text: &str| -> (String, Vec<String>) {
        let plan = plan(&read(text), &known()).mini_clusters.remove(0);
        (plan.namespace, plan.problems.iter().map(|one| format!("{}: {}", one.field, one.reason)).collect())
    };
    let size = LAKE.replace("size: 4\n", "size: four\n");
    assert_eq!(problems(&size), ("flux".to_owned(), vec!["spec.size: WrongType".to_owned()]));
    let image = LAKE.replace("image: ghcr.io/lab/app", "image: [1]");
    assert_eq!(problems(&image).1, ["spec.containers[0].image: WrongType"]);
    let job = SOLVE.replace("size: 3", "size: three");
    assert_eq!(problems(&job), ("flux".to_owned(), vec!["spec.size: WrongType".to_owned()]));
    let brought = SOLVE.replace("size: 3", "size: 3, miniCluster: {containers: 5}");
    assert_eq!(problems(&brought).1, ["spec: InvalidFluxJob"]);
    let amount = LAKE.replace("cpu: \"2\"", "cpu: 2");
    assert!(problems(&amount).1.is_empty(), "quantities are numbers too");
}

/// Flux counts what is requested only where bursts have to know it before they are there.
#[test]
fn where_a_request_decides_how_many_cores_there_are_it_is_said() {
    let of = |text: &str| plan(&read(text), &known()).mini_clusters.remove(0);
    let says = |plan: &MiniClusterPlan| {
        plan.notes.iter().any(|note| note.starts_with("spec.containers[0].resources: with bursts, Flux counts"))
    };
    let bursts = of(LAKE);
    assert!(says(&bursts) && !bursts.clusters[0].counts_cores, "{:?}", bursts.notes);
    let written = of(&LAKE.replace("command: sleep 60", "command: sleep 60, cores: 2"));
    assert!(!says(&written) && !written.clusters[0].counts_cores);
    let alone = of(LAKE.split("  flux:").next().unwrap());
    assert!(alone.notes.is_empty() && alone.clusters[0].counts_cores);
}

/// Whoever waits, or can never start, leaves its room to the others.
#[test]
fn only_what_starts_takes_room_from_the_next() {
    let job = |name: &str, size: u32, more: &str| {
        SOLVE
            .replace("solve,", &format!("{name},"))
            .replace("size: 3, allowBurst: true", &format!("size: {size}{more}"))
    };
    let jobs = |all: &[(&str, u32, &str)]| -> String {
        all.iter().map(|(name, size, more)| format!("---{}", job(name, *size, more))).collect()
    };
    let known = |spec: serde_json::Value| {
        let used = json!({"used": {"miniClusters": 1, "brokers": 2}});
        let high = json!({"metadata": {"name": "high"}, "value": 5});
        let priorities = Priorities::of::<PriorityClass>(&[serde_json::from_value(high).unwrap()]);
        let setups = [("flux".to_owned(), setup(spec, used))].into();
        Known { setups, priorities: Some(priorities), quotas: Default::default(), ..known() }
    };
    let told = |all: &[(&str, u32, &str)], spec: serde_json::Value| -> Vec<String> {
        let report = plan(&read(&jobs(all)), &known(spec));
        report.mini_clusters.iter().map(|plan| plan.queue.as_ref().unwrap().summary.clone()).collect()
    };
    let quota = json!({"quota": {"brokers": 6}, "backfill": true});
    let summaries = told(&[("huge", 9, ""), ("large", 5, ""), ("a", 1, ""), ("b", 3, "")], quota.clone());
    insta::assert_snapshot!(summaries.join("\n"));
    let urgent = told(&[("a", 3, ""), ("b", 4, ", priorityClassName: high")], quota.clone());
    assert!(
        urgent[1].starts_with("starts at once") && urgent[0].contains("3 brokers are needed, 0 are free"),
        "{urgent:?}"
    );
    let class =
        plan(&read(&jobs(&[("a", 1, ", priorityClassName: mine")])), &known(quota.clone())).mini_clusters.remove(0);
    assert_eq!(class.queue.unwrap().summary, "never starts");
    assert!(class.problems[0].message.contains("there is no PriorityClass mine in this cluster; there is high"));
    let fits = told(&[("a", 2, ""), ("wrong", 2, ", sise: 1"), ("b", 2, "")], quota);
    assert!(fits[2].starts_with("starts at once"), "{fits:?}");
}

/// Of the root alone.
fn queued(text: &str, setup: Option<FluxSetup>) -> MiniClusterPlan {
    let known = Known { setups: [("flux".to_owned(), setup)].into(), quotas: Default::default(), ..known() };
    plan(&read(text), &known).mini_clusters.remove(0)
}

#[test]
fn a_root_stands_in_the_line_of_its_namespace() {
    let used = |brokers: u32, waiting: u32| json!({"waiting": waiting, "used": {"miniClusters": 1, "brokers": brokers, "cpu": "6", "memory": "0", "gpus": 0}});
    let quota = json!({"quota": {"brokers": 8, "cpu": "16"}});
    // The root has four brokers of two cores each; its bursts are their providers' business.
    for (used, starts, said) in [
        (used(4, 0), true, "starts at once"),
        (used(5, 0), false, "stands in line: 4 brokers are needed, 3 are free"),
        (used(5, 2), false, "stands in line, with 2 others"),
        (used(4, 2), false, "there is room, and it stands in line, with 2 others"),
    ] {
        let plan = queued(LAKE, setup(quota.clone(), used));
        let queue = plan.queue.unwrap();
        assert!(queue.starts == starts && queue.summary.contains(said), "{queue:?}");
        assert!(plan.problems.is_empty(), "to wait is no mistake: {:?}", plan.problems);
        assert_eq!(queue.charges.len(), 2, "what is not limited is not shown");
    }
    let reason = |spec| queued(LAKE, setup(spec, json!({}))).problems.first().map(|problem| problem.reason.clone());
    assert_eq!(reason(json!({"quota": {"brokers": 3}})).as_deref(), Some("NeverFits"));
    assert_eq!(reason(json!({"maxDuration": "1m"})).as_deref(), Some("TooLong"));
    let limited = |seconds: i64| LAKE.replace("size: 4\n", &format!("size: 4\n  deadlineSeconds: {seconds}\n"));
    for (seconds, told) in [(60, None), (61, Some("TooLong")), (0, Some("TooLong"))] {
        let plan = queued(&limited(seconds), setup(json!({"maxDuration": "1m"}), json!({})));
        assert_eq!(plan.problems.first().map(|one| one.reason.as_str()), told, "{seconds} s, and 0 is none");
    }
    assert_eq!(reason(json!({"quota": {"cpu": "many"}})).as_deref(), Some("InvalidFluxSetup"));
    assert!(queued(LAKE, None).queue.is_none());
    let two = format!("{LAKE}---{}", LAKE.replace("name: lake", "name: pond"));
    let known =
        Known { setups: [("flux".to_owned(), setup(quota, used(2, 0)))].into(), quotas: Default::default(), ..known() };
    let report = plan(&read(&two), &known);
    let starts: Vec<_> = report.mini_clusters.iter().map(|plan| plan.queue.as_ref().unwrap().starts).collect();
    assert_eq!(starts, [true, false], "what one takes is not there for the next");
}

const SOLVE: &str = "
apiVersion: tributary.dev/v1alpha1
kind: FluxJob
metadata: {name: solve, namespace: flux}
spec: {image: ghcr.io/lab/app, command: ./solve, size: 3, allowBurst: true, resources: {cpu: \"2\"}}
";

#[test]
fn a_flux_job_is_planned_as_the_mini_cluster_it_makes() {
    let limits = json!({"quota": {"brokers": 4}, "maxDuration": "1h"});
    let plan = queued(SOLVE, setup(limits, json!({"waiting": 1, "used": {"brokers": 2}})));
    let report = Report { possible: true, mini_clusters: vec![plan], others: Vec::new(), unchecked: Vec::new() };
    insta::assert_snapshot!(text(&report));
    let reason = |text: &str, setup| queued(text, setup).problems.first().map(|problem| problem.reason.clone());
    assert_eq!(reason(SOLVE, None).as_deref(), Some("NoFluxSetup"));
    let small = json!({"quota": {"brokers": 2}});
    assert_eq!(reason(SOLVE, setup(small.clone(), json!({}))).as_deref(), Some("NeverFits"));
    for (policy, what) in [("Split", "a peer takes a part of it"), ("Whole", "a peer takes all of it")] {
        let overflow = json!({"quota": {"brokers": 2}, "overflow": {"policy": policy}});
        let plan = queued(SOLVE, setup(overflow, json!({})));
        assert!(plan.problems.is_empty() && plan.queue.unwrap().summary.ends_with(what), "{policy}");
    }
    let long = SOLVE.replace("size: 3", "size: 3, miniCluster: {deadlineSeconds: 7200}");
    assert_eq!(reason(&long, setup(json!({"maxDuration": "1h"}), json!({}))).as_deref(), Some("TooLong"));
    let wrong = SOLVE.replace("size: 3", "sise: 3");
    assert_eq!(reason(&wrong, setup(small, json!({}))).as_deref(), Some("UnknownField"));
}

#[test]
fn what_cannot_be_carried_out_is_said_field_by_field() {
    let manifest = read(
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: data}
---
apiVersion: flux-framework.org/v1alpha2
kind: MiniCluster
metadata: {name: Lake}
spec: {size: 0, sise: 3, containers: [{image: app, runFlux: true, resources: {request: {}}}, {image: app, runFlux: true}]}
---
apiVersion: flux-framework.org/v1
kind: MiniCluster
metadata: {name: pond}
spec: {containers: [{image: app}]}
",
    );
    let offline = Known {
        namespace: "default".into(),
        unchecked: vec!["anything of any cluster (--offline)".into()],
        ..Known::default()
    };
    let report = plan(&manifest, &offline);
    crate::paste::check::pastes(&text(&report));
    assert!(!report.possible);
    insta::assert_snapshot!(text(&report));
}

#[test]
fn volumes_are_judged_as_the_agent_there_would() {
    let manifest = read(
        "
apiVersion: flux-framework.org/v1alpha2
kind: MiniCluster
metadata: {name: lake, namespace: flux}
spec: {volumes: {data: {path: /srv/flux/lake, capacity: 5Gi}}, containers: [{image: app, volumes: {data: {path: /data}}}]}
",
    );
    let of = |known: &Known| plan(&manifest, known).mini_clusters.remove(0);
    let kinds = |plan: &MiniClusterPlan| -> Vec<String> {
        plan.clusters[0]
            .objects
            .iter()
            .map(|object| object.kind.clone())
            .filter(|kind| kind.starts_with("Pers"))
            .collect()
    };
    let unknown = of(&known());
    assert!(unknown.problems.is_empty() && unknown.notes[0].contains("not known"), "{unknown:#?}");
    assert_eq!(kinds(&unknown), ["PersistentVolumeClaim", "PersistentVolume"]);

    let configured = |text: &str| Known { configuration: Some(Config::from_toml(text).unwrap()), ..known() };
    let cluster = "[cluster]\nname = \"east\"\n";
    let none = of(&configured(cluster));
    assert_eq!(none.problems[0].reason, "VolumeNotAllowed", "{none:#?}");
    let allowing = format!("{cluster}[volumes]\nclasses = [\"hostpath\"]\npath_prefixes = [\"/srv/flux\"]\n");
    let allowed = of(&configured(&allowing));
    assert!(allowed.problems.is_empty() && allowed.notes.is_empty(), "{allowed:#?}");
}

#[test]
fn the_other_half_of_a_burst_by_hand_is_planned_without_bursts() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/by-hand/burst.yaml");
    let manifest = manifest::read(&[path.into()], None).unwrap();
    let plan = plan(&manifest, &known()).mini_clusters.remove(0);
    assert_eq!(plan.clusters.len(), 1, "{plan:#?}");
    let own = &plan.clusters[0];
    assert_eq!((own.slot.as_str(), own.ranks.as_str(), own.brokers), ("burst-0", "4-6", 3), "{plan:#?}");
    assert!(plan.clusters[0].objects.iter().all(|object| object.kind != "Burst"), "{plan:#?}");
}

#[test]
fn without_a_mini_cluster_there_is_nothing_to_plan() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        let failure = manifest::read(&[file], None).unwrap_err().to_string();
        failure.replace(&directory.path().display().to_string(), "DIR")
    };
    let missing = manifest::read(&["/nowhere/lake.yaml".into()], None).unwrap_err().to_string();
    insta::assert_snapshot!(
        [missing, refusal("a.yaml", "{"), refusal("b.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: a}}")]
            .join("\n\n---\n\n")
    );
}
