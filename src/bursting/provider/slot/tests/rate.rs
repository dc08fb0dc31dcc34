//! Peers that offer more than they are let.

use super::*;

#[test]
fn a_peer_that_offers_too_much_is_served_in_its_turn() {
    let mut world = World::new();
    for peer in ["east", "south"] {
        world.peers.get_mut(peer).unwrap().import.as_mut().unwrap().max_offers_per_minute = Some(1);
    }
    let admits = |step: &SlotStep| matches!(step.changes.as_slice(), [Change::Admit { .. }]);
    world.claim("east", offer());
    assert!((0..3).all(|_| admits(&world.step())), "looked at again and again, it is one offer");
    // It takes that back and offers another.
    world.claims.clear();
    let key = world.claim("east", DesiredBurst { uid: "second".into(), ..offer() });
    let step = world.step();
    assert_eq!((reason(&step, &key), step.wake), (Some(RejectionReason::TooManyOffers), Some(Duration::from_secs(60))));
    assert!(said(&step, &key).message.contains("import.maxOffersPerMinute"), "{}", said(&step, &key).message);
    assert!(!world.memory.is_empty(), "its turn is remembered");
    world.secs = 45;
    let step = world.step();
    assert_eq!((reason(&step, &key), step.wake), (Some(RejectionReason::TooManyOffers), Some(Duration::from_secs(15))));
    // It takes that back as well, and offers a third in its place.
    world.claims.insert(key, Wanted::Tombstone);
    world.step();
    world.claims.clear();
    let key = world.claim("east", DesiredBurst { uid: "third".into(), ..offer() });
    let step = world.step();
    assert_eq!((reason(&step, &key), step.wake), (Some(RejectionReason::TooManyOffers), Some(Duration::from_secs(15))));
    world.secs = 60;
    assert!(admits(&world.step()), "nobody has offered it again");
    // The same burst, taken back and offered again.
    world.claims.insert(key.clone(), Wanted::Tombstone);
    world.step();
    world.claim("east", DesiredBurst { uid: "third".into(), ..offer() });
    assert_eq!(reason(&world.step(), &key), Some(RejectionReason::TooManyOffers));
    world.claims.clear();
    world.claim("south", offer());
    assert!(admits(&world.step()), "whoever else offers does not wait for that");
}
