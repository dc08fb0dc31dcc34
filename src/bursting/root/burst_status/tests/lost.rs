//! Peers that are away while they hold a slot.

use super::*;

#[test]
fn a_lost_peer_behind_a_tunnel_keeps_its_ranks_until_lease_drain_and_margin_are_over() {
    let mut world = World::new();
    world.burst.spec.tunnel = true;
    world.step().say("north", BurstPhase::Ready).step().is(BurstPhase::Ready, Some("north"));
    world.give_certificate("north").cut("north").step().is(BurstPhase::Ready, Some("north"));
    world.after(11).is(BurstPhase::Lost, Some("north"));
    world.after(300).is(BurstPhase::Lost, Some("north"));
    world.after(98).is(BurstPhase::Lost, Some("north"));
    world.after(1).is(BurstPhase::Offered, Some("west"));
    assert!(world.notes.contains(&"PeerLost".to_owned()));
}

#[test]
fn a_removed_peer_and_a_restarted_agent_wait_as_long() {
    let mut world = World::new();
    world.burst.spec.tunnel = true;
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    world.peers.remove("north");
    world.step().after(409).is(BurstPhase::Lost, Some("north"));
    let reserved = world.burst.status.as_ref().unwrap().reserved_until.clone();
    assert!(reserved.is_some());
    // Another agent takes over and knows nothing of the time that has passed.
    world.contacts = Contacts::begin(Mono::from_start(Duration::from_secs(world.secs)));
    world.after(200).is(BurstPhase::Lost, Some("north"));
    assert_ne!(world.burst.status.as_ref().unwrap().reserved_until, reserved);
    world.after(209).is(BurstPhase::Lost, Some("north"));
    world.after(1).is(BurstPhase::Offered, Some("west"));
}

/// The danger: a slot that no time frees stays away for ever, or is freed by anything but the three.
#[test]
fn a_confirmation_a_new_certificate_or_a_persons_word_frees_a_slot() {
    let lost = || {
        let mut world = World::new();
        world.step().say("north", BurstPhase::Ready).step().give_certificate("north").cut("north").step().after(999);
        world.is(BurstPhase::Lost, Some("north"));
        world
    };
    let status = lost().burst.status.unwrap();
    assert_eq!(
        status.message,
        "north is out of contact, and brokers of north may still reach the lead broker: the ranks stay its own until it confirms \
         that nothing is left, the instance has a new certificate (`agentctl rekey lake --namespace flux`), or a person lets them go \
         (`agentctl burst release lake-burst-0 --namespace flux`)"
    );
    // `rekey` refuses where its user has the certificate.
    let mut world = lost();
    let spec = serde_saphyr::from_str("{containers: [], flux: {curveCertSecret: mine}}").unwrap();
    world.root = Some(MiniCluster::new("lake", spec));
    let told = world.step().burst.status.clone().unwrap().message;
    assert!(
        told.contains("(put one into Secret mine, then: `agentctl restart minicluster/lake --namespace flux`)"),
        "{told}"
    );
    let told = lost().re_pin("north", "cluster-new").step().burst.status.clone().unwrap().message;
    let stranger = "ClusterPeer north stands for another cluster now, and brokers of the earlier one may still reach";
    assert!(told.starts_with(stranger), "{told}");
    let mut world = lost();
    world.connect("north").say("north", BurstPhase::Evicted).step().is(BurstPhase::Offered, Some("west"));
    let mut world = lost();
    world.edit(|spec| (spec.incarnation, spec.credential_digest) = ("job-2".into(), "sha256:new".into()));
    world.step().after(31).is(BurstPhase::Offered, Some("west"));
    let mut world = lost();
    world.edit(|spec| spec.incarnation = "job-2".into()).step().after(9_999).is(BurstPhase::Lost, Some("north"));

    let mut world = lost();
    world.let_go(|_| ()).step().is(BurstPhase::Offered, Some("west"));
    assert!(world.withdrawing.contains("north") && world.notes.contains(&"SlotReleased".to_owned()));
    let told = world.burst.status.clone().unwrap().releases;
    let [word] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((word.peer.as_str(), word.by.as_str(), word.at.0.as_second()), ("north", "alice", 1_767_323_045));
    world.edit(|spec| spec.incarnation = "job-2".into()).step();
    assert_eq!(world.burst.status.as_ref().unwrap().releases, told, "that outlives the instance");
    let mut world = lost();
    world.edit(|spec| spec.release = true).step().is(BurstPhase::Lost, Some("north"));
    world.let_go(|_| ()).step().is(BurstPhase::Released, None);
}

/// The danger: who was let go has the certificate still, and no time counts for it any more.
#[test]
fn who_was_let_go_and_comes_back_with_its_brokers_holds_the_slot_again() {
    let mut world = World::new();
    world.named(&["north"]).step().say("north", BurstPhase::Ready).step().give_certificate("north").cut("north").step();
    world.after(999).let_go(|_| ()).step().is(BurstPhase::Pending, None);
    world.withdrawing.clear();
    world.connect("north").step().step().is(BurstPhase::Ready, Some("north"));
    world.named(&["north", "west"]).cut("north").step().after(9_999).is(BurstPhase::Lost, Some("north"));
}

/// The danger: a word about one loss frees the slot in the next one, of which nobody has spoken.
#[test]
fn a_persons_word_counts_for_the_loss_that_it_names_alone() {
    type Change = fn(&mut serde_json::Value);
    let table: [(&str, Change); 6] = [
        ("another Burst", |word| word["burstUID"] = "other".into()),
        ("another instance", |word| word["incarnation"] = "job-0".into()),
        ("another peer", |word| word["peer"] = "west".into()),
        ("another loss", |word| word["lostSince"] = "2001-01-01T00:00:00Z".into()),
        ("no person", |word| drop(word.as_object_mut().unwrap().remove("by"))),
        ("no word", |word| *word = "yes".into()),
    ];
    let mut world = World::new();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north").cut("north").step().after(999);
    for (case, change) in table {
        world.let_go(change).step();
        assert_eq!(world.burst.status.as_ref().unwrap().peer.as_deref(), Some("north"), "{case}");
    }
    // It comes back before the word is read, and is lost again.
    world.let_go(|_| ()).connect("north").step().is(BurstPhase::Ready, Some("north"));
    world.cut("north").step().after(999).is(BurstPhase::Lost, Some("north"));
    world.let_go(|_| ()).step().is(BurstPhase::Offered, Some("west"));
}

/// The danger: a cluster that was made anew says truly that it has nothing, and the one before still runs it.
#[test]
fn another_cluster_under_the_same_name_can_neither_confirm_nor_evict_nor_release() {
    for tunnel in [false, true] {
        let lost = |release: bool| {
            let mut world = World::new();
            world.burst.spec.tunnel = tunnel;
            world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
            world.edit(|spec| spec.release = release).re_pin("north", "cluster-new");
            world
        };
        for (phase, release) in [
            (BurstPhase::Evicted, false),
            (BurstPhase::Released, false),
            (BurstPhase::Rejected, false),
            (BurstPhase::Evicted, true),
        ] {
            let mut world = lost(release);
            world.say("north", phase).step();
            assert_eq!(
                world.burst.status.as_ref().unwrap().peer.as_deref(),
                Some("north"),
                "{phase}, tunnel: {tunnel}"
            );
            assert!(offer::recipients(&world.burst, &world.peers).is_empty(), "nor is it asked for anything");
        }
        let mut world = lost(true);
        world.confirm("north").step();
        assert_eq!(world.burst.status.as_ref().unwrap().peer.as_deref(), Some("north"), "tunnel: {tunnel}");
        // Behind a tunnel it is refused, whoever has its name.
        let after = if tunnel { None } else { Some("north") };
        assert_eq!(world.after(411).burst.status.as_ref().unwrap().peer.as_deref(), after);
        world.answers.clear();
        let mut world = lost(true);
        world
            .step()
            .re_pin("north", "cluster-north")
            .say("north", BurstPhase::Evicted)
            .step()
            .is(BurstPhase::Released, None);
    }
}

/// The danger: who was thrown out by a cluster is never offered to the one that has its name now.
#[test]
fn what_one_cluster_threw_out_another_under_the_same_name_is_asked_for() {
    let mut world = World::new();
    let known_as = |world: &mut World, uid: &str| world.peers.get_mut("west").unwrap().uid = Some(uid.into());
    known_as(&mut world, "first");
    world.named(&["west"]).step().say("west", BurstPhase::Evicted).step();
    world.confirm("west").step().is(BurstPhase::Evicted, None);
    known_as(&mut world, "second");
    world.step().is(BurstPhase::Offered, Some("west"));
}

/// The danger: who deletes the Burst makes its slot look free.
#[test]
fn a_burst_that_is_made_anew_goes_to_who_held_its_slot() {
    let mut first = World::new();
    first.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    let holder = first.burst.status.as_ref().unwrap().holder().cloned();
    let anew = |incarnation: &str, digest: &str| {
        let mut world = World::new();
        world.edit(|spec| {
            (spec.incarnation, spec.credential_digest) = (incarnation.into(), digest.into());
            spec.holder.clone_from(&holder);
        });
        world.burst.metadata.uid = Some("second-uid".into());
        world.cut("north");
        world
    };
    anew("job-1", "sha256:cert").step().after(9_999).is(BurstPhase::Lost, Some("north"));
    anew("job-2", "sha256:new").step().is(BurstPhase::Offered, Some("west"));
    let mut world = anew("job-1", "sha256:cert");
    world.connect("north").step().is(BurstPhase::Offered, Some("north"));
    world.say("north", BurstPhase::Evicted).step().is(BurstPhase::Offered, Some("west"));
    world.cut("west").step().after(31).step();
    assert_ne!(world.burst.status.as_ref().unwrap().peer.as_deref(), Some("north"), "it does not become so again");
}

/// The danger: a slot that was placed behind an address counts as fenced because its root has a tunnel by now.
#[test]
fn a_tunnel_that_comes_later_fences_nobody() {
    let mut world = World::new();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north").cut("north");
    world.edit(|spec| spec.tunnel = true).step().after(9_999).is(BurstPhase::Lost, Some("north"));
    let mut world = World::new();
    world.burst.spec.tunnel = true;
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    world.edit(|spec| spec.tunnel = false).step().cut("north").edit(|spec| spec.tunnel = true);
    world.step().after(9_999).is(BurstPhase::Lost, Some("north"));
}

/// The danger: a peer that confirmed, and is asked again, keeps a slot that it does not have.
#[test]
fn who_has_confirmed_and_is_asked_again_holds_nothing_before_it_is_given_the_certificate() {
    let mut world = World::new();
    world.named(&["north", "west"]).step().say("north", BurstPhase::Ready).step().give_certificate("north");
    world.edit(|spec| spec.release = true).step().confirm("north").step().is(BurstPhase::Released, None);
    world.edit(|spec| spec.release = false).step().is(BurstPhase::Offered, Some("north"));
    world.cut("north").step().after(31).is(BurstPhase::Offered, Some("west"));
}

/// The danger: a site that is lost for ever uses up what its root may use elsewhere.
#[test]
fn a_lost_peer_is_counted_no_longer_than_it_may_last() {
    let mut world = World::new();
    world.burst.spec.budget = serde_saphyr::from_str("{maxDuration: 10h}").unwrap();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north").step();
    world.cut("north").step().after(411).after(99_999).is(BurstPhase::Lost, Some("north"));
    assert!(world.burst.status.as_ref().unwrap().spent.seconds <= 414, "{:?}", world.burst.status);
}

/// The danger: the pods of an agent that is down still reach the lead, and another peer runs their ranks.
#[test]
fn a_slot_on_a_direct_network_is_never_given_away_by_time() {
    type Loss = fn(&mut World);
    let losses: [(&str, Loss); 6] = [
        ("cut off", |world| {
            world.cut("north");
        }),
        ("its ClusterPeer is removed", |world| drop(world.peers.remove("north"))),
        ("its slot is dropped and declared again", |world| {
            world.cut("north").step().edit(|spec| spec.release = true).after(9_999).edit(|spec| spec.release = false);
        }),
        ("its budget is spent and raised", |world| {
            let budget = serde_saphyr::from_str("{maxDuration: 1s}").unwrap();
            world
                .cut("north")
                .edit(|spec| spec.budget = budget)
                .after(9_999)
                .edit(|spec| spec.budget = BurstBudget::default());
        }),
        ("it is drained", |world| {
            world.cut("north").peers.get_mut("north").unwrap().draining = true;
        }),
        ("it shall be elsewhere", |world| {
            world.cut("north").edit(|spec| spec.peers = vec!["west".into()]);
        }),
    ];
    for (case, lose) in losses {
        let mut world = World::new();
        world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
        lose(&mut world);
        world.step().after(99_999);
        let status = world.burst.status.clone().unwrap();
        let found = (status.phase, status.peer.as_deref(), status.reserved_until);
        assert_eq!(found, (BurstPhase::Lost, Some("north"), None), "{case}: {}", status.message);
    }
}

#[test]
fn a_peer_without_the_certificate_is_given_up_after_the_grace_period_and_a_blip_is_nothing() {
    let mut world = World::new();
    world.step().is(BurstPhase::Offered, Some("north"));
    world.cut("north").after(9).is(BurstPhase::Offered, Some("north"));
    world.connect("north").step().is(BurstPhase::Offered, Some("north"));
    world.cut("north").step().after(29).is(BurstPhase::Lost, Some("north"));
    world.after(1).is(BurstPhase::Offered, Some("west"));
}

#[test]
fn a_lost_peer_that_returns_goes_on() {
    let online = |world: &World| {
        let status = world.burst.status.as_ref().unwrap();
        let said = tributary_cluster::conditions::find(&status.conditions, "BrokersOnline").unwrap();
        (status.ready_brokers, said.status.clone(), said.message.clone())
    };
    let mut world = World::new();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    world.cut("north").step().after(60).is(BurstPhase::Lost, Some("north"));
    let before = "not known: the peer is out of contact; 3 of 3 were online before";
    assert_eq!(online(&world), (3, "Unknown".to_owned(), before.to_owned()));
    world.connect("north").step().is(BurstPhase::Ready, Some("north"));
    assert_eq!(online(&world).0, 3);
    assert_eq!(world.burst.status.as_ref().unwrap().reserved_until, None);
}
