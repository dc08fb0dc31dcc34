//! Jobs that are elsewhere, all of them or in part.

use super::*;

#[test]
fn a_job_that_may_burst_is_split_and_takes_only_its_part_from_then_on() {
    let mut world = World { peer: 3, ..World::default() };
    let overflow = json!({"quota": {"brokers": 4}, "overflow": {"policy": "Split"}});
    world.setup("default", 0, overflow);
    world.job("fits", 1, json!({"size": 3, "allowBurst": true})).job(
        "large",
        2,
        json!({"size": 3, "allowBurst": true}),
    );
    world.job("later", 3, json!({"size": 3, "allowBurst": true}));
    assert_eq!(world.round(), ["fits-uid", "large-uid"]);
    let split = |world: &World, job: &str| {
        let job = world.seen.jobs.iter().find(|one| one.name_any() == job).unwrap();
        job.status.clone().unwrap().split.map(|split| (split.local, split.away, split.peer))
    };
    assert_eq!((split(&world, "fits"), split(&world, "large")), (None, Some((1, 2, Some("west".into())))));
    assert_eq!(world.status().used.brokers, 4);
    // The caches show nothing of it yet: it is remembered.
    Arc::make_mut(&mut world.seen.jobs[1]).status = None;
    world.round();
    assert_eq!((world.status().used.brokers, split(&world, "large").map(|split| split.0)), (4, Some(1)));
    // Nor does a leader who comes later decide anew.
    (world.seen.look.starts, world.seen.look.granted) = Default::default();
    world.peer = 99;
    world.round();
    assert_eq!(split(&world, "large").map(|split| split.0), Some(1));
    assert_eq!((split(&world, "later"), world.status().used.brokers), (None, 4), "its lead has no room");
    world.rules().quota.brokers = Some(5);
    world.peer = 3;
    assert!(world.round().iter().all(|uid| uid != "later-uid"), "two of three are promised to the other");
    world.peer = 4;
    assert!(world.round().contains(&"later-uid".to_owned()));
}

/// One peer, west, that has room for so many brokers.
pub(super) fn peers(room: u32, asked: Asked) -> overflow::Peers {
    Arc::new(move || {
        let asked = asked.clone();
        Box::new(move |part: &Part, coming: &[(String, Part)]| {
            asked.set(asked.get() + 1);
            let taken: u32 = coming.iter().map(|(_, part)| part.brokers).sum();
            if let Some(one) = part.evictions.iter().find(|one| one.peer == "west") {
                return Err(format!("west: refused ({}): {}", one.reason, one.message));
            }
            let fits = part.brokers + taken <= room;
            fits.then(|| "west".to_owned()).ok_or_else(|| format!("west: it has no room for {}", part.brokers))
        })
    })
}

impl World {
    /// What the peers make of the Burst of a FluxJob.
    fn burst(&mut self, job: &str, status: Value) {
        let name = names::sent_burst(job);
        let burst = self.seen.bursts.iter_mut().find(|one| one.name_any() == name).unwrap();
        let mut whole = json!({"observedGeneration": 1});
        whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        Arc::make_mut(burst).status = Some(serde_json::from_value(whole).unwrap());
    }

    pub(super) fn of(&self, job: &str) -> FluxJobStatus {
        self.seen.jobs.iter().find(|one| one.name_any() == job).unwrap().status.clone().unwrap()
    }
}

pub(super) fn overflowing(policy: &str, brokers: u32, peer: u32) -> World {
    let mut world = World { peer, ..World::default() };
    world.setup("default", 0, json!({"quota": {"brokers": brokers}, "overflow": {"policy": policy}}));
    world
}

#[test]
fn a_job_that_is_sent_takes_nothing_here_and_tells_how_it_fares_there() {
    let mut world = overflowing("Whole", 4, 3);
    let may = |size: u32| json!({"size": size, "allowBurst": true});
    world.job("here", 1, may(3)).job("there", 2, may(3)).job("later", 3, may(2));
    assert_eq!(world.round(), ["here-uid", "there-uid"]);
    assert_eq!((world.status().used.brokers, world.status().running, world.status().waiting), (3, 1, 1));
    let sent = world.of("there");
    assert_eq!((sent.peer.as_deref(), sent.phase, sent.split), (Some("west"), JobPhase::Ready, None));
    assert_eq!(sent.sent.unwrap().burst, "there.sent.fluxjob");
    let told =
        "it is next in line: 2 brokers are needed, 1 are free; it is not sent to a peer: west: it has no room for 2";
    assert_eq!(world.message("later"), told);
    // Neither a cache that is behind nor another leader makes anything of it here.
    Arc::make_mut(&mut world.seen.jobs[1]).status = None;
    world.round();
    assert_eq!((world.status().used.brokers, world.of("there").peer.as_deref()), (3, Some("west")));
    (world.seen.look.starts, world.seen.look.granted) = Default::default();
    world.round();
    assert!(world.seen.look.mini_clusters.is_empty() && world.seen.bursts.len() == 1);

    let run = |more: Value| {
        let mut run = json!({"namespace": "guests", "miniCluster": "there-1f", "started": true});
        run.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"phase": "Ready", "peer": "north", "message": "up", "run": run})
    };
    world.peer = 0;
    world.burst(
        "there",
        json!({"phase": "Provisioning", "peer": "north", "message": "north: 1 of 3 brokers are online"}),
    );
    world.round();
    assert_eq!(
        (world.of("there").phase, world.message("there")),
        (JobPhase::Ready, "north: 1 of 3 brokers are online".into())
    );
    world.burst("there", run(json!({})));
    world.round();
    let up = world.of("there");
    assert_eq!(
        (up.phase, up.message.as_str(), up.peer.as_deref()),
        (JobPhase::Running, "its instance is up on north", Some("north"))
    );
    let lead = "job-name=there-1f,batch.kubernetes.io/job-completion-index=0";
    let command = "kubectl logs --namespace guests --selector";
    assert_eq!(up.logs, format!("{command} {lead} --container there-1f --tail=-1 # in cluster north"));
    world.burst("there", run(json!({"succeeded": false, "exitCode": 7, "message": "exit code 7"})));
    world.round();
    let over = world.of("there");
    assert_eq!(
        (over.phase, over.exit_code, over.message.as_str()),
        (JobPhase::Finished, Some(7), "north: exit code 7")
    );
    world.round();
    assert_eq!((world.seen.bursts.len(), &world.of("there").logs), (1, &up.logs), "its pods are kept for their logs");
    let mut dropped = world.seen.bursts[0].status.clone().unwrap();
    dropped.run.as_mut().unwrap().logs_gone = true;
    let kept = Arc::make_mut(&mut world.seen.bursts[0]).status.replace(dropped);
    world.round();
    assert_eq!(world.of("there").logs, "# gone: nothing of it is kept in cluster north any more");
    Arc::make_mut(&mut world.seen.bursts[0]).status = kept;
    Arc::make_mut(&mut world.seen.jobs[1]).spec.cleanup = tributary_api::flux_job::Cleanup::MiniCluster;
    world.round();
    assert!(world.seen.bursts.is_empty());
}

#[test]
fn what_a_job_left_elsewhere_is_kept_for_a_day_or_as_long_as_the_job_says() {
    for (ttl, kept) in [(None, 0), (Some("1000h"), 1)] {
        let mut world = overflowing("Whole", 2, 9);
        world.job("sent", 1, json!({"size": 3, "allowBurst": true, "ttlAfterFinished": ttl}));
        world.round();
        let run = json!({"namespace": "guests", "miniCluster": "sent-1f", "started": true, "succeeded": true});
        world.burst("sent", json!({"phase": "Finished", "peer": "west", "run": run}));
        world.round();
        world.second += 24 * 3600 - 2;
        world.round();
        assert_eq!((world.of("sent").phase, world.seen.bursts.len()), (JobPhase::Finished, 1));
        world.second += 2;
        world.round();
        assert_eq!(world.seen.bursts.len(), kept);
        world.round();
        assert_eq!(world.of("sent").logs.starts_with("# gone"), kept == 0);
    }
}

#[test]
fn a_job_that_no_peer_takes_comes_back_into_the_line_once_nothing_of_it_is_elsewhere() {
    let mut world = overflowing("Whole", 4, 9);
    world.asks("runs", 1, 4).job("sent", 2, json!({"size": 3, "allowBurst": true}));
    assert_eq!(world.round(), ["runs-uid", "sent-uid"]);
    world.burst("sent", json!({"phase": "Rejected", "message": "west: refused (PolicyForbids)"}));
    world.round();
    assert_eq!(world.message("sent"), "it is taken back: no peer takes it: west: refused (PolicyForbids)");
    assert_eq!(world.of("sent").returned, None, "it has not come back yet");
    world.seen.look.mini_clusters.clear();
    world.seen.look.granted.remove("runs-uid");
    world.round();
    assert!(world.seen.bursts[0].spec.release, "first it is said to be over everywhere");
    assert_eq!(world.round(), [""; 0], "there is room here, but peers have yet to confirm");
    world.burst("sent", json!({"phase": "Released", "message": "released"}));
    world.round();
    assert!(world.seen.bursts.is_empty());
    world.round();
    let back = world.of("sent");
    assert_eq!((back.phase, back.admitted, back.sent, back.peer), (JobPhase::Waiting, None, None, None));
    assert_eq!(back.returned.unwrap().times, 1);
    assert_eq!(world.round(), ["sent-uid"], "it starts here");
    assert_eq!((world.status().used.brokers, world.seen.bursts.len()), (3, 0));
}

#[test]
fn a_job_that_came_back_is_offered_again_after_a_while_and_one_that_cannot_travel_never() {
    let mut world = overflowing("Whole", 2, 9);
    world.job("sent", 1, json!({"size": 3, "allowBurst": true}));
    let services = json!({"services": [{"name": "db", "image": "postgres"}]});
    world.job("bound", 2, json!({"size": 3, "allowBurst": true, "miniCluster": services}));
    assert_eq!(world.round(), ["sent-uid"]);
    let told = "3 brokers are needed, 2 is the whole quota; it is not sent to a peer: spec.miniCluster.services does not travel to a peer";
    assert!(world.message("bound").ends_with(told), "{}", world.message("bound"));
    world.burst("sent", json!({"phase": "Pending", "message": "west: not connected"}));
    world.round();
    world.round();
    world.burst("sent", json!({"phase": "Released"}));
    (0..3).for_each(|_| drop(world.round()));
    assert!(world.seen.bursts.is_empty() && world.of("sent").returned.is_some());
    world.second += 70;
    assert_eq!(world.round(), ["sent-uid"]);
    assert_eq!(world.seen.bursts.len(), 1);
}

#[test]
fn the_first_that_waits_for_peers_says_why_and_nothing_is_made_of_those_that_ask_for_as_much() {
    let mut world = overflowing("Whole", 2, 2);
    let services = json!({"services": [{"name": "db", "image": "postgres"}]});
    world.job("first", 1, json!({"size": 4, "allowBurst": true})).job(
        "less",
        2,
        json!({"size": 3, "allowBurst": true}),
    );
    world.job("bound", 3, json!({"size": 4, "allowBurst": true, "miniCluster": services}));
    world.job("small", 4, json!({"size": 3, "allowBurst": true, "miniCluster": services}));
    assert_eq!(world.round(), [""; 0]);
    let told = |world: &World, job: &str| world.message(job).rsplit("; ").next().unwrap().to_owned();
    assert_eq!(told(&world, "first"), "it is not sent to a peer: west: it has no room for 4");
    for job in ["less", "bound", "small"] {
        assert_eq!(told(&world, job), "and no peer has room for all of it now", "{job}");
    }
}

#[test]
fn a_job_that_a_peer_threw_out_is_not_sent_there_again() {
    let mut world = overflowing("Whole", 2, 9);
    world.job("sent", 1, json!({"size": 3, "allowBurst": true}));
    assert_eq!(world.round(), ["sent-uid"]);
    let refusal = |peer: &str, reason: &str| {
        json!({"peer": peer, "reason": reason, "message": "its HostedBurst was deleted", "generation": 1, "offer": "a",
            "peerGeneration": 4})
    };
    let refusals = [refusal("north", "TooManyBursts"), refusal("west", "EvictedByProvider")];
    world.burst("sent", json!({"phase": "Evicted", "message": "west: refused", "refusals": refusals}));
    world.round();
    world.round();
    world.burst("sent", json!({"phase": "Released"}));
    (0..3).for_each(|_| drop(world.round()));
    let returned = world.of("sent").returned.unwrap();
    let evictions: Vec<_> = returned.evictions.iter().map(|one| (one.peer.as_str(), one.peer_generation)).collect();
    assert_eq!((returned.times, evictions), (1, vec![("west", Some(4))]), "who had no room is asked again");
    world.second += 7200;
    assert_eq!(world.round(), [""; 0], "however long ago that was");
    let told = "it is not sent to a peer: west: refused (EvictedByProvider): its HostedBurst was deleted";
    assert!(world.message("sent").ends_with(told), "{}", world.message("sent"));
    world.job("before", 0, json!({"size": 12, "allowBurst": true}));
    world.round();
    assert!(world.message("sent").ends_with(told), "also behind one that waits for room: {}", world.message("sent"));
    world.seen.jobs.pop();
    // What another did is no reason why this one does not take it.
    let status = Arc::make_mut(&mut world.seen.jobs[0]).status.as_mut().unwrap();
    status.returned.as_mut().unwrap().evictions[0].peer = "south".into();
    world.peer = 1;
    assert_eq!(world.round(), [""; 0]);
    let told = "it is not sent to a peer: west: it has no room for 3";
    assert!(world.message("sent").ends_with(told), "{}", world.message("sent"));
    world.peer = 9;
    assert_eq!(world.round(), ["sent-uid"]);
    assert_eq!(world.of("sent").returned.unwrap().times, 1, "that it came back once is still known");
}

#[test]
fn a_run_that_had_ended_when_it_was_taken_back_is_not_run_again() {
    let mut world = overflowing("Whole", 2, 9);
    world.job("sent", 1, json!({"size": 3, "allowBurst": true}));
    assert_eq!(world.round(), ["sent-uid"]);
    let run = |more: Value| {
        let mut run = json!({"namespace": "guests", "miniCluster": "sent-1f", "started": true});
        run.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        run
    };
    world.burst("sent", json!({"phase": "Lost", "peer": "west", "run": run(json!({}))}));
    Arc::make_mut(&mut world.seen.bursts[0]).metadata.annotations =
        Some([(labels::CANCEL.to_owned(), "1".to_owned())].into());
    world.round();
    assert!(world.of("sent").recalled.is_some());
    world.round();
    assert!(world.seen.bursts[0].spec.release);
    // The peer is heard of again: it had ended by then.
    let over = run(json!({"succeeded": true, "exitCode": 0}));
    world.burst("sent", json!({"phase": "Released", "peer": "west", "run": over}));
    world.round();
    let ended = world.of("sent");
    assert_eq!((ended.phase, ended.exit_code, ended.recalled), (JobPhase::Finished, Some(0), None));
    assert_eq!(ended.result, Some(tributary_api::flux_job::JobResult::Succeeded));
}

#[test]
fn a_job_whose_burst_would_have_the_name_of_anothers_says_so_and_holds_no_room() {
    let mut world = overflowing("Whole", 2, 9);
    world.job("sent", 1, json!({"size": 3, "allowBurst": true}));
    let mut foreign = Burst::new(&names::sent_burst("sent"), Default::default());
    foreign.metadata.uid = Some("foreign".into());
    world.seen.bursts.push(Arc::new(foreign));
    assert!(world.round().is_empty());
    assert!(world.message("sent").starts_with("Burst sent.sent.fluxjob exists and is another's"));
    world.seen.bursts.clear();
    assert_eq!(world.round(), ["sent-uid"]);
    // It is there, and nobody has seen it yet: it comes back into the line.
    world.seen.bursts.clear();
    let mut foreign = Burst::new(&names::sent_burst("sent"), Default::default());
    foreign.metadata.uid = Some("foreign".into());
    world.seen.bursts.push(Arc::new(foreign));
    world.round();
    assert_eq!((world.of("sent").phase, world.of("sent").sent), (JobPhase::Waiting, None));
}

#[test]
fn nothing_is_made_here_in_the_name_of_a_job_that_is_elsewhere() {
    let mut world = overflowing("Whole", 2, 9);
    world.job("sent", 1, json!({"size": 3, "allowBurst": true}));
    assert_eq!(world.round(), ["sent-uid"]);
    let made = json!({"spec": {"size": 2, "containers": [{}]}, "ownerReferences": owned_by("sent")});
    world.cluster("sent", 2, made);
    Arc::make_mut(&mut world.seen.look.mini_clusters[0]).metadata.uid = Some("forged-uid".into());
    world.seen.look.asked.insert("forged-uid".into());
    // It stands in line for itself: who makes it may do so in any name.
    assert_eq!(world.round(), ["forged-uid"]);
    assert_eq!((world.status().used.brokers, world.of("sent").mini_cluster), (2, None));
}

#[test]
fn a_split_job_whose_other_part_nobody_takes_comes_back_whole() {
    let mut world = overflowing("Split", 4, 9);
    world.job("wide", 1, json!({"size": 6, "allowBurst": true}));
    assert_eq!(world.round(), ["wide-uid"]);
    let made = |phase: &str, burst: Value| {
        let burst = [json!({"name": "wide-burst-0", "size": 2, "ready": 0}), burst];
        let burst: serde_json::Map<_, _> = burst.iter().flat_map(|one| one.as_object().unwrap().clone()).collect();
        json!({"spec": {"size": 4, "containers": [{}]}, "ownerReferences": owned_by("wide"),
            "status": {"phase": phase, "incarnation": "j", "bursts": [burst]}})
    };
    world.cluster("wide", 2, made("Starting", json!({"phase": "Rejected"})));
    Arc::make_mut(&mut world.seen.look.mini_clusters[0]).metadata.uid = Some("made-uid".into());
    world.round();
    assert_eq!((world.status().used.brokers, world.of("wide").recalled), (4, None));
    world.second += 61;
    world.round();
    assert_eq!(world.message("wide"), "it is taken back: no peer takes its other part");
    world.round();
    assert!(world.seen.look.mini_clusters.is_empty());
    world.round();
    let back = world.of("wide");
    assert_eq!((back.phase, back.split, back.mini_cluster), (JobPhase::Waiting, None, None));
    world.round();
    assert_eq!(world.status().used.brokers, 0, "it gave its brokers back");
    assert!(world.message("wide").starts_with("it can never start here"), "{}", world.message("wide"));
    world.rules().quota.brokers = Some(6);
    assert_eq!(world.round(), ["wide-uid"]);
    assert_eq!((world.of("wide").split, world.status().used.brokers), (None, 6), "all of it is here now");
}

#[test]
fn a_split_job_whose_other_part_a_peer_threw_out_is_not_split_onto_it_again() {
    let mut world = overflowing("Split", 4, 9);
    world.job("wide", 1, json!({"size": 6, "allowBurst": true}));
    assert_eq!(world.round(), ["wide-uid"]);
    let spec = json!({"size": 4, "containers": [{}], "flux": {"bursting": {"clusters": [{"size": 2}]}}});
    let burst = json!({"name": "wide-burst-0", "size": 2, "ready": 0, "phase": "Evicted"});
    let made = json!({"spec": spec, "ownerReferences": owned_by("wide"),
        "status": {"phase": "Starting", "incarnation": "j", "bursts": [burst]}});
    world.cluster("wide", 2, made);
    Arc::make_mut(&mut world.seen.look.mini_clusters[0]).metadata.uid = Some("made-uid".into());
    // Its owner threw it out while its brokers were on their way.
    let owned = json!([{"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "wide",
        "uid": "made-uid", "controller": true}]);
    let mut part: Arc<Burst> =
        Arc::new(object("wide-burst-0", 3, json!({"spec": {"size": 2}, "ownerReferences": owned})));
    let refusal = json!({"peer": "west", "reason": "EvictedByProvider", "message": "its HostedBurst was deleted",
        "generation": 1, "offer": part.offered(), "peerGeneration": 4});
    Arc::make_mut(&mut part).status = serde_json::from_value(json!({"refusals": [refusal]})).unwrap();
    world.seen.bursts.push(part);
    world.round();
    world.second += 61;
    world.round();
    assert_eq!(world.message("wide"), "it is taken back: no peer takes its other part");
    world.seen.bursts.clear();
    (0..3).for_each(|_| drop(world.round()));
    let returned = world.of("wide").returned.unwrap();
    let evictions: Vec<_> = returned.evictions.iter().map(|one| (one.peer.as_str(), one.peer_generation)).collect();
    assert_eq!((returned.times, evictions, world.seen.look.mini_clusters.len()), (1, vec![("west", Some(4))], 0));
    world.second += 7200;
    assert_eq!(world.round(), [""; 0], "however long ago that was");
    let told = "it is not sent to a peer: west: refused (EvictedByProvider): its HostedBurst was deleted";
    assert!(world.message("wide").ends_with(told), "{}", world.message("wide"));
    // Somebody asks for it again.
    let retry = [(labels::RETRY.to_owned(), "now".to_owned())].into();
    Arc::make_mut(&mut world.seen.jobs[0]).metadata.annotations = Some(retry);
    assert_eq!(world.round(), ["wide-uid"]);
    assert_eq!(world.of("wide").split.unwrap().peer.as_deref(), Some("west"));
}

#[test]
fn a_job_that_is_taken_back_from_a_peer_that_is_away_says_so() {
    let mut world = overflowing("Whole", 2, 9);
    world.job("sent", 1, json!({"size": 3, "allowBurst": true}));
    world.round();
    world.burst("sent", json!({"phase": "Lost", "peer": "west", "message": "west is out of contact"}));
    Arc::make_mut(&mut world.seen.jobs[0]).spec.suspend = true;
    (0..2).for_each(|_| drop(world.round()));
    assert_eq!(world.message("sent"), "it is taken back: it is suspended; west is out of contact");
}

/// What may happen between two rounds.
#[derive(Clone, Debug)]
enum Happens {
    TimePasses(i64),
    PeersHave(u32),
    QuotaIs(u32),
    AnotherLeads,
    /// The peers say this of one burst.
    Said(usize, usize),
    /// Those that were told to let go have done so.
    AllIsReleased,
    /// The Job of one MiniCluster ends.
    Ends(usize),
    /// The user of one suspends it, or resumes it.
    Suspends(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0_i64..200).prop_map(Happens::TimePasses),
        (0_u32..9).prop_map(Happens::PeersHave),
        (1_u32..9).prop_map(Happens::QuotaIs),
        Just(Happens::AnotherLeads),
        (0_usize..4, 0_usize..6).prop_map(|(which, what)| Happens::Said(which, what)),
        Just(Happens::AllIsReleased),
        (0_usize..4).prop_map(Happens::Ends),
        (0_usize..4).prop_map(Happens::Suspends),
    ]
}

impl World {
    fn let_happen(&mut self, what: &Happens) {
        match what {
            Happens::TimePasses(seconds) => self.second += seconds,
            Happens::PeersHave(brokers) => self.peer = *brokers,
            Happens::QuotaIs(brokers) => self.rules().quota.brokers = Some(*brokers),
            Happens::AnotherLeads => (self.seen.look.starts, self.seen.look.granted) = Default::default(),
            Happens::Said(which, what) => {
                let run = json!({"namespace": "hpc", "miniCluster": "m", "started": true});
                let mut over = run.clone();
                over["succeeded"] = true.into();
                let said = [
                    json!({"phase": "Offered", "peer": "west"}),
                    json!({"phase": "Ready", "peer": "west", "run": run}),
                    json!({"phase": "Rejected"}),
                    json!({"phase": "Pending"}),
                    json!({"phase": "Lost", "peer": "west"}),
                    json!({"phase": "Finished", "peer": "west", "run": over}),
                ];
                let burst = self.seen.bursts.get(*which).filter(|burst| !burst.spec.release);
                let job = burst.and_then(|burst| burst.name_any().split('.').next().map(str::to_owned));
                job.into_iter().for_each(|job| self.burst(&job, said[*what].clone()));
            }
            Happens::AllIsReleased => {
                let told = self.seen.bursts.iter().filter(|burst| burst.spec.release).map(|burst| burst.name_any());
                let told: Vec<String> = told.filter_map(|name| name.split('.').next().map(str::to_owned)).collect();
                told.iter().for_each(|job| self.burst(job, json!({"phase": "Released"})));
            }
            Happens::Ends(which) => {
                if let Some(found) = self.seen.look.mini_clusters.get_mut(*which) {
                    Arc::make_mut(found).status.get_or_insert_default().phase = Some(Phase::Succeeded);
                }
            }
            Happens::Suspends(which) => {
                if let Some(job) = self.seen.jobs.get_mut(*which) {
                    let job = Arc::make_mut(job);
                    job.spec.suspend = !job.spec.suspend;
                }
            }
        }
    }
}

proptest! {
    /// Whatever peers say and whoever leads: nothing of a FluxJob is in two places, and what has ended does not begin anew.
    #[test]
    fn no_job_is_ever_both_here_and_elsewhere(
        sizes in proptest::collection::vec(1_u32..7, 1..5),
        policy in proptest::sample::select(vec!["Whole", "Split", "Never"]),
        story in proptest::collection::vec(happens(), 0..60),
    ) {
        let mut world = overflowing(policy, 4, 6);
        for (index, size) in sizes.iter().enumerate() {
            world.job(&format!("job-{index}"), index as i64, json!({"size": size, "allowBurst": true}));
        }
        let mut finished: BTreeSet<String> = BTreeSet::new();
        for what in &story {
            world.let_happen(what);
            let ends = |one: &&Arc<MiniCluster>| one.status.as_ref().is_some_and(|status| status.phase.is_some());
            finished.extend(world.seen.look.mini_clusters.iter().filter(ends).map(|one| one.name_any()));
            world.round();
            for name in world.made.clone() {
                let elsewhere = world.seen.bursts.iter().any(|burst| burst.name_any() == names::sent_burst(&name));
                prop_assert!(!elsewhere && !finished.contains(&name), "{name} is made here: {:?}", world.of(&name));
                if world.seen.look.mini_clusters.iter().all(|one| one.name_any() != name) {
                    let size = world.of(&name).split.map_or(1, |split| split.local);
                    let spec = json!({"size": size, "containers": [{}]});
                    world.cluster(&name, 1, json!({"spec": spec, "ownerReferences": owned_by(&name)}));
                    let made = world.seen.look.mini_clusters.last_mut().unwrap();
                    Arc::make_mut(made).metadata.uid = Some(format!("{name}-made"));
                }
            }
            for burst in &world.seen.bursts {
                let name = burst.name_any().split('.').next().unwrap_or_default().to_owned();
                let here = world.seen.look.mini_clusters.iter().any(|one| one.name_any() == name);
                prop_assert!(!here, "{name} is here, and has {burst:?}");
            }
            let over = |job: &&Arc<FluxJob>| job.status.as_ref().is_some_and(|status| status.phase == JobPhase::Finished);
            let now: BTreeSet<String> = world.seen.jobs.iter().filter(over).map(|job| job.name_any()).collect();
            prop_assert!(finished.is_subset(&now), "what has ended has ended");
            finished = now;
        }
    }
}
