use proptest::prelude::*;
use serde_json::{Value, json};
use tributary_api::flux_job::{FluxJobStatus, JobPhase};
use tributary_api::minicluster::Phase;
use tributary_api::{labels, names};
use tributary_render::nodes::Gang;

use super::*;
use crate::hosted_usage::{self, HostedUsage};
use crate::nodes::{NodeRules, Nodes};
use crate::overflow::{self, Part};
use crate::priorities::tests::classes;
use crate::testing::{at, object};

mod elsewhere;
mod limits;
mod split;
mod turns;

/// A count that closures share.
#[derive(Clone, Default)]
struct Asked(Arc<std::sync::atomic::AtomicU32>);

impl Asked {
    fn get(&self) -> u32 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn set(&self, count: u32) {
        self.0.store(count, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A namespace, and what is around it.
#[derive(Default)]
struct World {
    seen: Namespace,
    second: i64,
    /// When this leader's term began.
    began: i64,
    /// Brokers of other namespaces.
    elsewhere: Vec<Gang>,
    reserved: BTreeMap<String, Reserved>,
    /// By how many pods the nodes could hold fewer than four, if they were empty.
    fewer: u32,
    /// How often the nodes were asked, about now or ever.
    nodes_asked: Asked,
    /// Brokers that a peer has room for.
    peer: u32,
    /// How often a peer was asked for room.
    peers_asked: Asked,
    /// What the last round left for bursts of peers.
    standing: Option<Standing>,
    claims: Claims,
    /// FluxJobs whose MiniCluster the last round made.
    made: Vec<String>,
    /// The brokers that run after it.
    gangs: Vec<Gang>,
    /// What the last round told who waits, by UID.
    told: BTreeMap<String, String>,
}

fn pods(gang: &Gang) -> u32 {
    gang.brokers + u32::from(gang.services.is_some())
}

impl World {
    fn setup(&mut self, name: &str, since: i64, spec: Value) -> &mut Self {
        self.seen.setup = Some(Arc::new(object(name, since, json!({"spec": spec}))));
        self
    }

    fn job(&mut self, name: &str, since: i64, spec: Value) -> &mut Self {
        let mut whole = json!({"image": "a", "command": "true"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.seen.jobs.push(Arc::new(object(name, since, json!({"spec": whole}))));
        self
    }

    /// A MiniCluster that asks for its Job.
    fn asks(&mut self, name: &str, since: i64, size: i64) -> &mut Self {
        self.cluster(name, since, json!({"spec": {"size": size, "containers": [{}]}}));
        self.seen.look.asked.insert(format!("{name}-uid"));
        self
    }

    fn cluster(&mut self, name: &str, since: i64, rest: Value) -> &mut Self {
        self.seen.look.mini_clusters.push(Arc::new(object(name, since, rest)));
        self
    }

    /// Takes a round and stores what comes of it: what started, FluxJobs included.
    fn round(&mut self) -> Vec<String> {
        self.second += 1;
        self.made.clear();
        let most = 4 - self.fewer;
        let (now, ever) = (self.nodes_asked.clone(), self.nodes_asked.clone());
        let nodes = Nodes {
            lacking: Arc::new(move |_: &NodeRules, gang: &Gang, coming: &[Gang]| {
                now.set(now.get() + 1);
                let taken: u32 = coming.iter().map(pods).sum();
                (pods(gang) + taken).saturating_sub(4)
            }),
            short: Arc::new(move |_, gang, groups| {
                ever.set(ever.get() + 1);
                (pods(gang) > most && groups.is_empty()).then(|| format!("they can hold {most} of {}", pods(gang)))
            }),
        };
        let peers = elsewhere::peers(self.peer, self.peers_asked.clone());
        let ports = Ports { nodes, peers, sender: overflow::sender(), guests: HostedUsage::default() };
        self.seen.now = at(100 + self.second);
        self.seen.priorities = classes(&[("high", 5), ("low", -5)]);
        self.seen.cluster_peers = vec![Arc::new(object("west", 0, json!({"spec": {}})))];
        let (seen, reserved, elsewhere) = (&self.seen, &self.reserved, &self.elsewhere);
        let view = View { seen, reserved, elsewhere, ports: &ports, began: at(100 + self.began) };
        let round = round(&view, &mut self.claims);
        for uid in &round.back {
            self.seen.look.granted.remove(uid);
            self.seen.look.starts.remove(uid);
        }
        self.seen.look.growing.retain(|uid, _| !round.grow.contains_key(uid));
        self.standing = round.standing.clone();
        self.told.clone_from(&round.told);
        self.gangs.clone_from(&round.gangs);
        let mut started: Vec<String> = round.start.iter().map(|(uid, _)| uid.clone()).collect();
        if let Some((_, status)) = round.setup {
            self.seen.setup.as_mut().map(Arc::make_mut).unwrap().status = Some(status);
        }
        for (job, step) in round.jobs {
            let uid = job.uid().unwrap();
            match &step.then {
                Then::Create(made) => {
                    self.made.push(made.name_any());
                    started.push(uid.clone());
                }
                Then::Send(burst) => {
                    let mut burst = (**burst).clone();
                    burst.metadata.uid = Some(format!("{uid}-burst"));
                    self.seen.bursts.retain(|one| one.name_any() != burst.name_any());
                    self.seen.bursts.push(Arc::new(burst));
                    started.push(uid.clone());
                }
                Then::ReleaseBurst(uid) => {
                    let burst = self.seen.bursts.iter_mut().find(|one| one.metadata.uid.as_ref() == Some(uid)).unwrap();
                    Arc::make_mut(burst).spec.release = true;
                }
                Then::DeleteBurst(uid) => self.seen.bursts.retain(|one| one.metadata.uid.as_ref() != Some(uid)),
                Then::DeleteMiniCluster(uid) => {
                    self.seen.look.mini_clusters.retain(|one| one.metadata.uid.as_ref() != Some(uid))
                }
                Then::Nothing | Then::DeleteJob => {}
            }
            if matches!(step.then, Then::Create(_) | Then::Send(_)) {
                self.seen.look.starts.extend(Start::recorded(&step.status).map(|start| (uid, start)));
            }
            let stored = self.seen.jobs.iter_mut().find(|one| one.name_any() == job.name_any()).unwrap();
            Arc::make_mut(stored).status = Some(step.status);
        }
        for (uid, _) in &round.start {
            self.seen.look.asked.remove(uid);
        }
        self.seen.look.granted.extend(started.iter().map(|uid| (uid.clone(), at(100 + self.second))));
        let wait: BTreeSet<&String> = self.seen.look.asked.iter().chain(self.seen.look.growing.keys()).collect();
        assert!(round.told.keys().eq(wait) || self.seen.setup.is_none(), "everybody who waits is told why");
        started
    }

    fn message(&self, job: &str) -> String {
        let job = self.seen.jobs.iter().find(|one| one.name_any() == job).unwrap();
        job.status.clone().unwrap_or_default().message
    }

    fn status(&self) -> FluxSetupStatus {
        self.seen.setup.as_ref().unwrap().status.clone().unwrap()
    }

    /// What its FluxSetup says.
    fn rules(&mut self) -> &mut FluxSetupSpec {
        &mut self.seen.setup.as_mut().map(Arc::make_mut).unwrap().spec
    }
}

#[test]
fn jobs_without_a_setup_wait_and_start_once_there_is_one() {
    let mut world = World::default();
    world.job("early", 1, json!({"size": 2}));
    assert!(world.round().is_empty());
    assert_eq!(world.message("early"), NO_SETUP);
    world.setup("default", 5, json!({"quota": {"brokers": 4}}));
    assert_eq!(world.round(), ["early-uid"]);
    assert_eq!((world.status().running, world.status().used.brokers), (1, 2));
}

#[test]
fn jobs_and_mini_clusters_stand_in_one_line() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 4}}));
    world.asks("first", 1, 3).job("second", 2, json!({"size": 2})).asks("third", 3, 1);
    assert_eq!(world.round(), ["first-uid"], "third would delay second for a time nobody knows");
    assert_eq!(world.message("second"), "it is next in line: 2 brokers are needed, 1 are free");
    let status = world.status();
    assert_eq!((status.running, status.waiting), (1, 2));
    assert_eq!(status.next, "FluxJob second: 2 brokers are needed, 1 are free");
    // Whatever the caches show of it: it was let through.
    assert!(world.round().is_empty());
    world.seen.look.mini_clusters.remove(0);
    world.seen.look.granted.remove("first-uid");
    assert_eq!(world.round(), ["third-uid", "second-uid"]);
    assert_eq!((world.status().running, world.status().waiting), (2, 0));
}

#[test]
fn an_admitted_job_counts_before_any_cache_shows_that() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"miniClusters": 1}})).job("a", 1, json!({}));
    assert_eq!(world.round(), ["a-uid"]);
    Arc::make_mut(&mut world.seen.jobs[0]).status = None;
    world.job("urgent", 2, json!({"priority": 9}));
    assert_eq!(world.round(), ["a-uid"], "it is made again, and nobody else");
    assert_eq!(world.status().used.mini_clusters, 1);
}

#[test]
fn a_new_leader_counts_what_waited_until_it_asks_again() {
    let queued = json!({"spec": {"size": 4, "containers": [{}]}, "status": {"phase": "Pending", "size": 0, "selector": "",
        "conditions": [{"type": "Ready", "status": "False", "reason": "Queued", "message": "",
            "lastTransitionTime": at(2).to_string()}]}});
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 4}})).cluster("unknown", 1, queued).asks("later", 2, 2);
    assert!(world.round().is_empty(), "the leader before may have let it through");
    world.seen.look.asked.insert("unknown-uid".into());
    assert_eq!(world.round(), ["unknown-uid"]);
}

#[test]
fn what_ended_or_cannot_run_takes_nothing_and_what_is_hosted_takes_its_part() {
    let phase =
        |phase: &str| json!({"spec": {"size": 2, "containers": [{}]}, "status": {"phase": phase, "incarnation": "j"}});
    let mut hosted = json!({"spec": {"size": 2, "containers": [{}]}});
    hosted["ownerReferences"] = json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst", "name": "h",
        "uid": "h", "controller": true}]);
    let mut world = World::default();
    world.setup("default", 0, json!({})).cluster("ran", 1, phase("Succeeded")).cluster("runs", 1, phase("Running"));
    let refused = json!({"spec": {"size": 9, "containers": []}, "status": {"phase": "Refused"}});
    world.cluster("guest", 1, hosted).cluster("wrong", 1, refused);
    world.round();
    assert_eq!((world.status().running, world.status().used.brokers), (2, 4));
}

fn guest(name: &str, peer: &str, brokers: u32) -> Arc<HostedBurst> {
    Arc::new(object(name, 2, json!({"spec": {"peer": peer, "slot": name, "size": 1, "maxSize": brokers}})))
}

#[test]
fn a_burst_of_a_peer_counts_from_its_hosted_burst_on_and_whoever_waits_goes_before_others() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 8}, "peers": [{"name": "east", "quota": {"brokers": 5}}]}));
    world.seen.hosted = vec![guest("there", "east", 2)];
    let mut made = json!({"spec": {"size": 2, "containers": [{}]}, "status": {"incarnation": "j"}});
    made["ownerReferences"] = json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst", "name": "there",
        "uid": "there-uid", "controller": true}]);
    world.cluster("there", 3, made.clone());
    // One that only says so counts for itself.
    world.cluster("forged", 3, made);
    let wanted = hosted_usage::wanted(&guest("coming", "west", 1).spec);
    let room = hosted_usage::room_of(&guest("coming", "west", 1).spec);
    world.reserved = [("coming".to_owned(), Reserved { peer: "west".into(), wanted, room })].into();
    world.round();
    assert_eq!((world.status().running, world.status().used.brokers), (3, 5));
    let peers: Vec<_> = world.status().peers.iter().map(|one| (one.name.clone(), one.used.brokers)).collect();
    assert_eq!(peers, [("east".to_owned(), 2), ("west".to_owned(), 1)]);
    let standing = world.standing.clone().unwrap();
    assert_eq!((standing.open.brokers, standing.taken["east"].brokers), (3, 2));
    world.asks("head", 4, 6);
    world.round();
    assert_eq!(world.standing.clone().unwrap().open.brokers, 1, "more would be in the way of the head");
    world.seen.setup = None;
    world.seen.look.asked.clear();
    world.round();
    assert_eq!(world.standing, None);
}

#[test]
fn a_wrong_quota_lets_nobody_in_and_a_word_of_a_newer_version_is_told() {
    let mut world = World::default();
    world.setup("default", 1, json!({"quota": {"memory": "lots"}})).asks("a", 6, 1);
    let told = |world: &mut World| {
        let started = world.round();
        let said = world.status().conditions.remove(0);
        (started, said.status, said.reason, said.message)
    };
    let (started, status, reason, _) = told(&mut world);
    assert_eq!((started.len(), status.as_str(), reason.as_str()), (0, "False", "InvalidQuota"));
    *world.rules() = serde_json::from_value(json!({"checkNodes": "Soon"})).unwrap();
    let (started, status, reason, message) = told(&mut world);
    assert_eq!((started, status.as_str(), reason.as_str()), (vec!["a-uid".to_owned()], "False", "Unsupported"));
    assert!(
        message.starts_with("spec.checkNodes: this version does not know Soon, and takes it as Now: "),
        "{message}"
    );
}

#[test]
fn a_setup_whose_quota_is_wrong_says_what_runs_and_waits_all_the_same() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 5}})).asks("a", 1, 2).asks("b", 2, 2).job(
        "c",
        3,
        json!({"size": 2}),
    );
    assert_eq!(world.round(), ["a-uid", "b-uid"]);
    world.seen.hosted = vec![guest("there", "east", 1)];
    assert_eq!(world.status().next, "FluxJob c: 2 brokers are needed, 1 are free");
    // It was edited, one has ended since, and one has come.
    *world.rules() = serde_json::from_value(json!({"quota": {"memory": "lots"}})).unwrap();
    world.seen.look.mini_clusters.retain(|one| one.name_any() != "a");
    world.asks("d", 4, 1);
    assert!(world.round().is_empty());
    let status = world.status();
    assert_eq!((status.running, status.waiting, status.used.brokers, status.used.mini_clusters), (2, 2, 3, 2));
    assert_eq!((status.next.as_str(), status.peers.len()), ("", 1));
    assert_eq!(status.conditions[0].reason, "InvalidQuota");
    assert!(world.message("c").starts_with("nothing starts: FluxSetup default: spec.quota.memory is lots"));
}

#[test]
fn a_mini_cluster_that_grows_asks_for_the_difference() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 6}}));
    let runs = |size: i64| json!({"spec": {"size": size, "containers": [{}]}, "status": {"phase": "Running", "incarnation": "j"}});
    world.cluster("grows", 1, runs(8)).cluster("other", 1, runs(2));
    world.seen.look.growing.insert("grows-uid".into(), Growing { has: 3, since: at(50) });
    world.round();
    assert_eq!(
        (world.status().used.brokers, world.status().running, world.status().waiting),
        (5, 2, 1),
        "8 of 6 are never possible"
    );
    world.seen.look.mini_clusters[0] = Arc::new(object("grows", 1, runs(5)));
    world.round();
    assert_eq!((world.status().used.brokers, world.status().waiting), (5, 1));
    assert_eq!(world.status().next, "MiniCluster grows, which grows: 2 brokers are needed, 1 are free");
    world.asks("early", 40, 1).asks("late", 60, 1);
    assert_eq!(world.round(), ["early-uid"], "who came before it wanted to grow goes first");
    world.seen.look.mini_clusters.retain(|one| one.name_any() != "other");
    assert_eq!(world.round(), [""; 0]);
    assert!(world.seen.look.growing.is_empty());
    assert_eq!((world.status().used.brokers, world.status().running, world.status().waiting), (6, 2, 1));
    // Shrinking frees at once.
    world.seen.look.mini_clusters[0] = Arc::new(object("grows", 1, runs(4)));
    assert_eq!(world.round(), ["late-uid"]);
}

#[test]
fn nodes_are_looked_at_where_that_is_asked() {
    let mut world = World::default();
    world.setup("default", 0, json!({"checkNodes": "Now"})).asks("a", 1, 3).job("b", 2, json!({"size": 2}));
    assert_eq!(world.round(), ["a-uid"]);
    assert_eq!(world.message("b"), "it is next in line: the nodes have no room for 1 of its 2 brokers");
    assert_eq!(world.status().next, "FluxJob b: the nodes have no room for 1 of its 2 brokers");
    world.setup("default", 0, json!({}));
    assert_eq!(world.round(), ["b-uid"]);
}

/// The danger: two namespaces let in what each finds room for, before any pod of it is there; half of each is placed, and both
/// wait for ever.
#[test]
fn nodes_that_another_namespace_was_promised_are_taken() {
    let mut first = World::default();
    first.setup("default", 0, json!({})).job("a", 1, json!({"size": 3}));
    first.round();
    assert_eq!(first.made, ["a"]);
    let mut second = World { elsewhere: first.gangs.clone(), ..World::default() };
    second.setup("default", 0, json!({"checkNodes": "Now"})).job("b", 1, json!({"size": 2}));
    second.round();
    assert_eq!(second.message("b"), "it is next in line: the nodes have no room for 1 of its 2 brokers");
    assert_eq!(second.gangs, [], "each namespace speaks for its own");
    second.elsewhere.clear();
    second.round();
    assert_eq!((second.made.as_slice(), second.gangs.len()), (["b".to_owned()].as_slice(), 1));
}

#[test]
fn the_pod_of_services_takes_its_part_of_quota_and_nodes_once() {
    let serves = |size: u32| {
        let services = json!([{"name": "db", "resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}]);
        json!({"size": size, "resources": {"cpu": 1}, "miniCluster": {"services": services}})
    };
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"cpu": 4}})).job("large", 1, serves(4)).job("fits", 2, serves(3));
    assert_eq!(world.round(), ["fits-uid"]);
    assert_eq!(world.message("large"), "it can never start here: 5 cores are needed, 4 is the whole quota");
    assert_eq!((world.status().used.brokers, world.status().used.cpu.as_str()), (3, "4"));
    assert_eq!(world.status().used.memory, "1Gi");
    let mut world = World::default();
    world.setup("default", 0, json!({"checkNodes": "Now"})).job("large", 1, serves(4)).job("fits", 2, serves(3));
    assert_eq!(world.round(), ["fits-uid"]);
    assert!(world.message("large").contains("they can hold 4 of 5"), "{}", world.message("large"));
    // Who grows has them already, and asks the quota for brokers alone.
    let runs = json!({"spec": {"size": 4, "containers": [{"cores": 1}], "services": [{"name": "db", "resources": {"requests": {"cpu": 1}}}]},
        "status": {"phase": "Running", "incarnation": "j"}});
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"cpu": 5}})).cluster("grows", 1, runs);
    world.seen.look.growing.insert("grows-uid".into(), Growing { has: 3, since: at(50) });
    world.round();
    assert_eq!((world.seen.look.growing.len(), world.status().used.cpu.as_str()), (0, "5"));
}

#[test]
fn gpus_of_any_name_are_gpus_to_a_quota() {
    let wants = |resource: &str| json!({"resources": {"gpus": 2, "gpuResource": resource}});
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"gpus": 3}}));
    world.job("slices", 1, wants("nvidia.com/mig-3g.40gb")).job("others", 2, wants("example.com/wafer"));
    assert_eq!(world.round(), ["slices-uid"]);
    assert_eq!(world.message("others"), "it is next in line: 2 GPUs are needed, 1 are free");
    assert_eq!(world.status().used.gpus, 2);
    // So they do once there is a MiniCluster, whatever its FluxJob says by then.
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"gpus": 3}})).job("others", 2, wants("example.com/wafer"));
    assert_eq!(world.round(), ["others-uid"]);
    let made = job::mini_cluster(&world.seen.jobs[0], None).unwrap();
    let made = json!({"spec": made.spec, "status": {"phase": "Running", "incarnation": "j"}, "ownerReferences": owned_by("others")});
    world.cluster("others", 3, made);
    Arc::make_mut(&mut world.seen.jobs[0]).spec.resources.gpus = 0;
    world.round();
    assert_eq!((world.status().running, world.status().used.gpus), (1, 2));
}

#[test]
fn peers_are_asked_once_for_what_they_have_no_room_for() {
    let mut world = World { peer: 2, ..World::default() };
    world.setup("default", 0, json!({"quota": {"brokers": 1}, "overflow": {"policy": "Whole"}}));
    for (index, size) in [3, 3, 4, 9, 2, 3].into_iter().enumerate() {
        world.job(&format!("job-{index}"), index as i64, json!({"size": size, "allowBurst": true}));
    }
    assert_eq!(world.round(), ["job-4-uid"]);
    assert_eq!(world.peers_asked.get(), 2, "for three brokers, and for two");
}

/// An owner as a FluxJob's MiniCluster has it.
fn owned_by(job: &str) -> Value {
    json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob", "name": job, "uid": format!("{job}-uid"),
        "controller": true}])
}

#[test]
fn who_names_a_job_as_owner_stands_in_line_like_everybody() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 4}})).asks("runs", 1, 3);
    assert_eq!(world.round(), ["runs-uid"]);
    // Of a job that waits; of one that was never made; of another name than the job's.
    world.job("waits", 2, json!({"size": 3}));
    let sized = |size: i64, owner: &str| json!({"spec": {"size": size, "containers": [{}]}, "ownerReferences": owned_by(owner)});
    for (name, owner) in [("waits", "waits"), ("forged", "none"), ("second", "waits")] {
        world.cluster(name, 3, sized(3, owner));
        world.seen.look.asked.insert(format!("{name}-uid"));
    }
    assert!(world.round().is_empty());
    let status = world.status();
    assert_eq!((status.used.brokers, status.waiting), (3, 3), "the job stands in line as its MiniCluster");
}

#[test]
fn the_mini_cluster_of_an_admitted_job_passes_unless_it_is_larger() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 4}})).job("a", 1, json!({"size": 2}));
    assert_eq!(world.round(), ["a-uid"]);
    let made = |size: i64| json!({"spec": {"size": size, "containers": [{}]}, "ownerReferences": owned_by("a")});
    world.cluster("a", 2, made(2));
    // The caches of its reconciler did not show that the job was admitted.
    Arc::make_mut(&mut world.seen.look.mini_clusters[0]).metadata.uid = Some("made-uid".into());
    world.seen.look.asked.insert("made-uid".into());
    assert_eq!(world.round(), ["made-uid"]);
    assert_eq!((world.status().running, world.status().used.brokers), (1, 2));
    // What runs counts as large as it is.
    world.seen.look.mini_clusters.clear();
    world.cluster("a", 2, made(3));
    world.round();
    assert_eq!((world.status().running, world.status().used.brokers), (1, 3));
    // One that was made larger in the job's name, and has no Job yet, has to ask.
    world.seen.look.mini_clusters.clear();
    world.seen.look.granted.clear();
    world.cluster("a", 2, made(9));
    Arc::make_mut(&mut world.seen.look.mini_clusters[0]).metadata.uid = Some("large-uid".into());
    world.seen.look.asked.insert("large-uid".into());
    assert!(world.round().is_empty());
    assert_eq!((world.status().running, world.status().waiting), (0, 1));
}

#[test]
fn a_job_in_trouble_holds_no_room_and_no_place_in_line() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 2}})).job("taken", 1, json!({"size": 2}));
    assert_eq!(world.round(), ["taken-uid"]);
    world.cluster("taken", 2, json!({"spec": {"size": 0, "containers": [{}]}})).job("next", 3, json!({"size": 2}));
    world.job("wrong", 2, json!({"size": 2, "miniCluster": {"no": "such field"}}));
    world.round();
    assert_eq!(world.round(), ["next-uid"]);
    assert!(world.message("taken").contains("is another's"), "{}", world.message("taken"));
    assert_eq!(world.message("wrong"), "spec.miniCluster.no: a MiniCluster has no such field");
    assert_eq!((world.status().running, world.status().waiting), (1, 0));
    // Once the name is free, it stands in line again.
    world.seen.look.mini_clusters.clear();
    assert_eq!(world.round(), ["next-uid"], "no cache shows its MiniCluster yet");
    assert_eq!(world.message("taken"), "it is next in line: 2 brokers are needed, 0 are free");
}

#[test]
fn what_has_ended_and_is_asked_for_again_stands_in_line() {
    let ended = json!({"spec": {"size": 3, "containers": [{}]}, "status": {"phase": "Succeeded", "incarnation": "j"}});
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 4}})).cluster("ended", 1, ended).asks("runs", 2, 3);
    assert_eq!(world.round(), ["runs-uid"]);
    world.seen.look.asked.insert("ended-uid".into());
    assert!(world.round().is_empty(), "others have its room");
    assert_eq!(world.status().next, "MiniCluster ended: 3 brokers are needed, 1 are free");
    world.seen.look.mini_clusters.retain(|one| one.name_any() == "ended");
    world.seen.look.granted.remove("runs-uid");
    assert_eq!(world.round(), ["ended-uid"]);
    world.asks("later", 3, 2);
    assert!(world.round().is_empty(), "it counts though its status speaks of its last end");
    assert_eq!(world.status().used.brokers, 3);
}

#[test]
fn what_runs_counts_as_it_was_started() {
    let spec = |size: i64, cores: i64| json!({"spec": {"size": size, "containers": [{"cores": cores}]}, "status": {"phase": "Running", "incarnation": "j"}});
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 8, "cpu": 64}}));
    let held = Requests { mini_clusters: 1, brokers: 4, milli_cores: 16_000, ..Requests::default() };
    world.seen.look.held.insert("a-uid".into(), Reservation::with(held));
    for (size, cores, brokers, cpu) in [(4, 4, 4, "16"), (64, 1, 4, "16"), (2, 9, 4, "16")] {
        world.seen.look.mini_clusters = vec![Arc::new(object("a", 1, spec(size, cores)))];
        world.round();
        assert_eq!(
            (world.status().used.brokers, world.status().used.cpu.as_str()),
            (brokers, cpu),
            "{size} of {cores}"
        );
    }
}
