use tributary_api::labels::condition::TUNNEL_ENDS;
use tributary_cluster::conditions::find;

use super::*;

#[test]
fn a_burst_by_the_tunnel_says_where_its_connections_end() {
    let mut world = World::new();
    world.edit(|spec| spec.tunnel = true).named(&["west"]).step().say("west", BurstPhase::Accepted).step();
    let said = |world: &World| {
        let status = world.burst.status.as_ref().unwrap();
        find(&status.conditions, TUNNEL_ENDS).map(|said| said.reason.clone())
    };
    let with = |world: &mut World, in_pods, in_agents| {
        world.ends = Ends { in_pods, in_agents };
        world.step();
        said(world)
    };
    assert_eq!(with(&mut world, 0, 1), None, "the provider looks whether the lead answers");
    world.say("west", BurstPhase::Ready);
    assert_eq!(with(&mut world, 0, 3).as_deref(), Some("InAgents"));
    assert_eq!(with(&mut world, 2, 0).as_deref(), Some("InPods"));
    assert_eq!(with(&mut world, 37, 3).as_deref(), Some("InAgents"), "some break");
    let status = world.burst.status.as_ref().unwrap();
    let message = &find(&status.conditions, TUNNEL_ENDS).unwrap().message;
    assert!(message.starts_with("3 of 40 connections of brokers break"), "{message}");
    assert_eq!(with(&mut world, 0, 0).as_deref(), Some("InAgents"), "another agent leads, and has none yet");
    world.say("west", BurstPhase::Provisioning);
    assert_eq!(with(&mut world, 0, 1), None, "no broker is left");
    world.say("west", BurstPhase::Ready);
    assert_eq!(with(&mut world, 2, 0).as_deref(), Some("InPods"));
    world.edit(|spec| spec.tunnel = false);
    assert_eq!(with(&mut world, 0, 0), None, "the lead has an address now");
}
