//! Bursts on demand over a day of a queue, with both clusters' agents and real drains: no flapping, nothing left on the peer
//! while they sleep, ranks never twice (checked each second), whatever restarts in between.

use super::world::World;
use crate::api::hosted_burst::BurstPhase;
use crate::api::minicluster::BurstMode;
use crate::bursting::root::demand::ask::Asked;
use crate::bursting::root::demand::decide::Seen;

/// (From second, pending, busy) of a queue: a morning of single jobs, a flood, a nervous hour, a long run, silence.
const TRACE: [(u64, u32, bool); 16] = [
    (0, 0, false),
    (60, 1, false),
    (70, 0, false),
    (100, 3, false),
    (160, 0, true),
    (400, 0, false),
    (460, 1, true),
    (520, 0, false),
    (900, 0, false),
    (1_000, 2, false),
    (1_004, 0, false),
    (1_010, 2, false),
    (1_030, 1, true),
    (1_900, 0, true),
    (2_000, 0, false),
    (3_600, 0, false),
];

fn asleep(world: &World) -> bool {
    world.phase().is_some_and(|(phase, _)| phase == BurstPhase::Asleep)
}

/// Plays the trace, looked at every five seconds; the number of starts, and seconds with pods on the peer.
fn play(restarts: u64) -> (u32, u32, World) {
    let mut world = World::with_root(&["west"]);
    let cluster = &mut world.root().spec.flux.bursting.clusters[0];
    (cluster.mode, cluster.on_demand.max_idle) = (BurstMode::OnDemand, Some("2m".into()));
    let mut with_pods = 0;
    for second in 0..3_600_u64 {
        if second % restarts == restarts - 1 {
            world.restart(["east", "west"][usize::try_from(second / restarts % 2).unwrap()]);
            world.cluster("east").seen = None;
        } else if second % 5 == 0 {
            let (_, pending, busy) = *TRACE.iter().rev().find(|(from, _, _)| *from <= second).unwrap();
            let at = jiff::Timestamp::from_second(1_700_000_000 + i64::try_from(second).unwrap()).unwrap();
            world.cluster("east").seen = Some(Seen { at, found: Ok(Asked { pending, busy }) });
        }
        world.run(1);
        with_pods += u32::from(world.clusters["west"].jobs.values().any(|job| job.pods > 0));
        if asleep(&world) {
            let held = world.clusters["west"].hosted.len();
            assert_eq!(held, 0, "asleep, it holds nothing there, at {second} s: {}", world.summary());
        }
    }
    let demand = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap().demand.unwrap();
    (demand.starts, with_pods, world)
}

#[test]
fn a_day_of_a_queue_starts_brokers_twice_and_stops_them_when_they_idle() {
    for restarts in [u64::MAX, 41] {
        let (starts, with_pods, world) = play(restarts);
        assert_eq!(starts, 2, "the flood and the long run");
        assert!((1_400..2_000).contains(&with_pods), "of 1,530 s in which they are wanted: {with_pods}");
        assert!(asleep(&world) && world.is_empty("west"), "{}", world.summary());
    }
}
