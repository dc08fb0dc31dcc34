//! Bursts that are all of an instance.

use serde_json::json;
use tributary_api::duration::Lasting;
use tributary_api::hosted_burst::{BurstPhase, BurstRun};
use tributary_api::minicluster::{MiniClusterStatus, Phase as Life};
use tributary_contract::Leave;

use super::*;

/// A whole instance of three brokers.
fn whole() -> DesiredBurst {
    let slot = offer().slot;
    let map = RankMap::new(vec![Slot::root(&slot, 3).with_resources(2, 0)]).unwrap();
    DesiredBurst {
        whole: true,
        rank_map: map.to_canonical(),
        rank_map_digest: map.digest().to_string(),
        credential_digest: Leave::of("job-1").digest(),
        template: json!({"containers": [{"image": "app", "command": "lmp"}], "lead": {"tasks": 6, "deadlineSeconds": 600}}),
        ..offer()
    }
}

fn leave() -> SecretState {
    SecretState::Held { digest: whole().credential_digest, public_key: String::new(), looked: Some(Mono::ZERO) }
}

/// Its MiniCluster, as its own controller shows it.
fn made(phase: Life, exit_code: Option<i32>) -> MiniCluster {
    let mut made: MiniCluster = serde_json::from_value(json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": {"name": offer().slot, "namespace": "flux", "uid": "made", "ownerReferences": [{
            "apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst", "name": offer().slot, "uid": "hosted-uid",
            "controller": true}]},
        "spec": {"containers": []},
    }))
    .unwrap();
    let ready = Some(if phase == Life::Running { 3 } else { 0 });
    made.status = Some(MiniClusterStatus { phase: Some(phase), ready, exit_code, ..MiniClusterStatus::default() });
    made
}

fn stored(step: &SlotStep) -> HostedBurstStatus {
    status(step).expect("a status")
}

fn makes(step: &SlotStep) -> Option<MiniCluster> {
    let materials = |change: &Change| match change {
        Change::Materialize(materials) => materials.mini_cluster.clone(),
        _ => None,
    };
    step.changes.iter().find_map(materials)
}

#[test]
fn an_offer_of_a_whole_instance_is_asked_of_policy_and_quota_like_any_other() {
    let mut world = World::new();
    let key = world.claim("east", whole());
    let step = world.step();
    let [Change::Admit { hosted, admitted, .. }] = step.changes.as_slice() else { panic!("{:?}", step.changes) };
    assert!(hosted.spec.whole && admitted.template.lead.is_some());
    world.grants = Few { limit: Some(2), taken: 0 };
    assert_eq!(reason(&world.step(), &key), Some(RejectionReason::NoRoomInQueue));
    world.grants = Few::default();
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_brokers = Some(2);
    assert_eq!(reason(&world.step(), &key), Some(RejectionReason::TooManyBrokers));
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_brokers = None;
    // Neither half is taken for the other.
    for (lie, expected) in [
        (DesiredBurst { whole: false, ..whole() }, RejectionReason::RankMapMismatch),
        (DesiredBurst { whole: true, ..offer() }, RejectionReason::RankMapMismatch),
        (DesiredBurst { template: offer().template, ..whole() }, RejectionReason::InvalidTemplate),
        (DesiredBurst { template: whole().template, ..offer() }, RejectionReason::InvalidTemplate),
    ] {
        let key = world.claim("east", lie);
        assert_eq!(reason(&world.step(), &key), Some(expected));
    }
}

#[test]
fn nothing_runs_before_the_root_gave_leave_and_then_a_root_of_its_own_does() {
    let mut world = World::new();
    let key = world.claim("east", whole());
    world.host("east", &whole());
    world.memory.secret = SecretState::Missing { again: Mono::ZERO, message: String::new() };
    let step = world.step();
    let asks = |change: &Change| matches!(change, Change::RequestCredential { peer, .. } if peer.as_str() == "east");
    assert!(step.changes.iter().any(asks) && makes(&step).is_none(), "{:?}", step.changes);
    let answer = said(&step, &key);
    assert_eq!((answer.phase, answer.message.as_str()), (BurstPhase::Accepted, "the leave to start is asked for"));
    world.memory.secret = leave();
    let step = world.step();
    let made = makes(&step).expect("it may start");
    assert!(!step.changes.iter().any(|change| matches!(change, Change::Dial(_) | Change::Resolve(_))));
    insta::assert_json_snapshot!(made.spec);
    assert!(tributary_render::render(&made, &tributary_render::Context::default()).is_ok());
    assert!(stored(&step).credential_ready);
}

/// A whole instance that its root let start.
fn started() -> (World, ClaimKey) {
    let mut world = World::new();
    let key = world.claim("east", whole());
    world.host("east", &whole());
    world.memory.secret = leave();
    (world, key)
}

#[test]
fn it_is_up_it_ends_and_its_result_is_kept() {
    let (mut world, key) = started();
    world.mini_cluster = Some(made(Life::Running, None));
    let up = said(&world.step(), &key);
    assert_eq!((up.phase, up.ready_brokers), (BurstPhase::Ready, 3));
    let run = up.run.unwrap();
    assert_eq!(
        (run.namespace.as_str(), run.mini_cluster.as_str(), run.started, run.succeeded),
        ("flux", "lake-burst-0", true, None)
    );

    world.mini_cluster = Some(made(Life::Failed, Some(3)));
    let step = world.step();
    let over = said(&step, &key);
    assert_eq!((over.phase, over.message.as_str()), (BurstPhase::Finished, "it failed with exit code 3"));
    let run = over.run.unwrap();
    assert_eq!((run.succeeded, run.exit_code), (Some(false), Some(3)));
    world.hosted.as_mut().unwrap().status = Some(stored(&step));
    // Whoever takes its MiniCluster away does not make it run again, nor does it end with the lease or the policy.
    world.mini_cluster = None;
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_duration = Some(Lasting::of_seconds(1));
    let step = world.step();
    let kept = said(&step, &key).run.unwrap();
    assert_eq!((makes(&step), kept.exit_code, kept.logs_gone), (None, Some(3), true));
    assert!(
        step.changes.iter().all(|change| matches!(change, Change::Update(_) | Change::Status(_))),
        "{:?}",
        step.changes
    );
    let mut ledger = Ledger::default();
    ledger.rebuild(world.hosted.as_ref());
    assert_eq!(ledger.entries().count(), 0, "it takes no room");
    // Its root wants it gone.
    world.claims.insert(key, Wanted::Tombstone);
    assert_eq!(stored(&world.step()).phase, BurstPhase::Draining);
}

#[test]
fn a_result_goes_when_newer_ones_take_its_place_or_its_peer_is_drained() {
    let mut world = World::new();
    world.host("east", &whole());
    let run = BurstRun { started: true, succeeded: Some(true), ..BurstRun::default() };
    let status = HostedBurstStatus { run: Some(run), ..HostedBurstStatus::default() };
    world.hosted.as_mut().unwrap().status = Some(status);
    world.mini_cluster = Some(made(Life::Succeeded, Some(0)));
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..whole() });
    let step = world.step();
    assert_eq!((stored(&step).phase, stored(&step).run.unwrap().logs_gone), (BurstPhase::Finished, false));
    world.surplus = true;
    assert_eq!(stored(&world.step()).draining_reason.as_deref(), Some("TooManyResults"));
    world.surplus = false;
    world.peers.get_mut("east").unwrap().draining = true;
    let step = world.step();
    assert_eq!(stored(&step).draining_reason.as_deref(), Some("PeerDrained"));
    assert_eq!(said(&step, &key).run.unwrap().succeeded, Some(true), "whoever has not heard of it does so now");
    world.hosted.as_mut().unwrap().status = Some(stored(&step));
    world.step();
    (world.mini_cluster, world.memory.looked_empty) = (None, true);
    assert!(world.step().changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() }));
    world.hosted = None;
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Released, "it is not taken for a new offer");
}

#[test]
fn a_run_that_takes_longer_than_the_policy_allows_has_failed_and_is_not_evicted() {
    let (mut world, key) = started();
    let limit = |world: &mut World, seconds: i64| {
        world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_duration = Some(Lasting::of_seconds(seconds));
    };
    let began = Time(Timestamp::from_second(1_000_000 - 600).unwrap());
    world.hosted.as_mut().unwrap().metadata.creation_timestamp = Some(began);
    world.mini_cluster = Some(made(Life::Running, None));
    limit(&mut world, 700);
    let step = world.step();
    assert_eq!((said(&step, &key).phase, step.wake), (BurstPhase::Ready, Some(Duration::from_secs(100))));
    world.hosted.as_mut().unwrap().status = Some(stored(&step));

    // What it waited for before it was up is not of its time.
    limit(&mut world, 600);
    world.wall = 599;
    let step = world.step();
    assert_eq!((said(&step, &key).phase, step.wake), (BurstPhase::Ready, Some(Duration::from_secs(1))));
    world.wall = 600;
    let step = world.step();
    let over = said(&step, &key);
    let run = over.run.unwrap();
    assert_eq!((over.phase, over.rejection, run.succeeded), (BurstPhase::Finished, None, Some(false)));
    assert_eq!(run.reason, "TimeLimit");
    assert_eq!(run.message, "it was here for as long as import.maxDuration allows");
    let stops = |step: &SlotStep| step.changes.contains(&Change::DeleteMiniCluster { uid: "made".into() });
    assert!(!stops(&step), "that it has ended is on record before anything of it goes");
    world.hosted.as_mut().unwrap().status = Some(stored(&step));
    assert!(stops(&world.step()));
    world.mini_cluster = None;
    assert_eq!(said(&world.step(), &key).run.unwrap().succeeded, Some(false), "its root hears of it until it lets go");

    // One that was never up has not run: that is an eviction.
    world.hosted.as_mut().unwrap().status = None;
    let step = world.step();
    assert_eq!(stored(&step).draining_reason.as_deref(), Some("TimeLimit"));
}

#[test]
fn a_run_whose_time_was_up_is_told_by_its_reason_or_by_the_words_of_an_agent_that_gave_none() {
    let (mut world, _) = started();
    let old_words = "it was here for as long as import.maxDuration allows";
    let mut stops = |reason: &str, message: &str, phase: Life| {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        let run = BurstRun { started: true, succeeded: Some(false), reason, message, ..BurstRun::default() };
        let status = HostedBurstStatus { run: Some(run), ..HostedBurstStatus::default() };
        world.hosted.as_mut().unwrap().status = Some(status);
        world.mini_cluster = Some(made(phase, None));
        world.step().changes.contains(&Change::DeleteMiniCluster { uid: "made".into() })
    };
    assert!(stops("TimeLimit", "whatever is said of it", Life::Running));
    assert!(stops("", old_words, Life::Running), "it was written by an older agent");
    assert!(!stops("CommandFailed", old_words, Life::Running), "the words are the command's own");
    assert!(!stops("", "it failed", Life::Running));
    assert!(!stops("TimeLimit", old_words, Life::Failed), "its logs stay");
}

#[test]
fn how_a_run_ended_is_told_in_the_word_of_its_mini_cluster() {
    let (mut world, key) = started();
    let mut reason = |phase: Life, finished: Option<&str>| {
        let mut over = made(phase, None);
        if let Some(reason) = finished {
            let finished = json!([{"type": "Finished", "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            over.status.as_mut().unwrap().conditions = serde_json::from_value(finished).unwrap();
        }
        world.mini_cluster = Some(over);
        said(&world.step(), &key).run.unwrap().reason
    };
    assert_eq!(reason(Life::Running, None), "");
    assert_eq!(reason(Life::Failed, Some("DeadlineExceeded")), "DeadlineExceeded");
    assert_eq!(reason(Life::Failed, None), "Failed", "nobody takes it for one of an older agent");
    assert_eq!(reason(Life::Succeeded, Some("Succeeded")), "Succeeded");
}

#[test]
fn a_result_waits_a_day_for_a_root_that_is_away_from_when_it_was_lost() {
    let (mut world, day) = (World::new(), 24 * 3600);
    world.host("east", &whole());
    let at = |ago: i64| Time(Timestamp::from_second(1_000_000 - ago).unwrap());
    // It ended nine days ago.
    let run = BurstRun { started: true, succeeded: Some(true), ended: Some(at(9 * day)), ..BurstRun::default() };
    let mut after = |lost: Option<i64>, away: Option<u64>| {
        world.hosted.as_mut().unwrap().status = Some(HostedBurstStatus {
            phase: BurstPhase::Finished,
            run: Some(run.clone()),
            suspect_since: lost.map(at),
            ..HostedBurstStatus::default()
        });
        (world.away, world.secs, world.away_for) = (away.is_some(), 999_999, away.unwrap_or(0));
        let step = world.step();
        let status = stored(&step);
        (status.phase, status.suspect_since, step.wake.map_or(0, |wake| wake.as_secs()))
    };
    let (finished, left) = (BurstPhase::Finished, |spent: u64| 24 * 3600 - spent);
    assert_eq!(after(None, None), (finished, None, 0), "its logs stay while its root wants them");
    assert_eq!(after(None, Some(0)), (finished, None, 5), "an agent that has just started has heard of nobody");
    assert_eq!(after(None, Some(4)), (finished, None, 1), "nor is a blip a loss");
    assert_eq!(after(None, Some(10)), (finished, Some(at(10)), left(10)), "the loss is dated");
    assert_eq!(
        after(Some(day - 1), Some(0)),
        (finished, Some(at(day - 1)), 1),
        "across restarts, and no lease ends it"
    );
    assert_eq!(after(Some(day), Some(0)).0, BurstPhase::Draining);
    assert_eq!(after(Some(9 * day), None), (finished, None, 0), "it is back");
}

#[test]
fn a_mini_cluster_of_somebody_else_says_nothing_of_it() {
    let (mut world, key) = started();
    let mut foreign = made(Life::Succeeded, Some(0));
    foreign.metadata.owner_references = None;
    world.mini_cluster = Some(foreign);
    let answer = said(&world.step(), &key);
    assert_eq!((answer.run, answer.phase == BurstPhase::Finished), (None, false));
}
