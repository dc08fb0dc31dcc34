//! Bursts that would not be let in now.

use super::*;

/// The danger: the import was taken away, the burst runs on, and its HostedBurst says that the import policy allows it.
#[test]
fn a_burst_that_runs_without_import_says_so_and_how_to_end_it() {
    use tributary_api::labels::condition::ADMITTED;
    let mut world = World::new();
    world.claim("east", offer());
    world.host("east", &offer());
    let mut told = |change: fn(&mut World)| {
        change(&mut world);
        let step = world.step();
        let status = status(&step);
        world.hosted.as_mut().unwrap().status = status.clone();
        let conditions = status.unwrap().conditions;
        let admitted = tributary_cluster::conditions::find(&conditions, ADMITTED).unwrap();
        let notes = step.notes.iter().filter(|note| note.reason == "RunsWithoutImport").count();
        (admitted.status.clone(), admitted.message.clone(), notes)
    };
    assert_eq!(told(|_| ()).0, "True");
    let without = |lacks: &str| {
        let end = "to end it: `kubectl delete hostedburst lake-burst-0 --namespace flux`";
        format!("it runs without import: {lacks}; {end}")
    };
    let (status, message, notes) = told(|world| world.peers.get_mut("east").unwrap().import = None);
    assert_eq!((status.as_str(), notes), ("False", 1));
    assert_eq!(message, without("ClusterPeer east has no import any more"));
    assert_eq!(told(|_| ()).2, 0, "said once");
    let other = |world: &mut World| {
        let import = ImportPolicy { namespaces: vec!["lab".into()], ..ImportPolicy::default() };
        world.peers.get_mut("east").unwrap().import = Some(import);
    };
    let root = offer().root.namespace;
    let message = without(&format!("import.namespaces of ClusterPeer east does not name {root} any more"));
    assert_eq!(told(other), ("False".to_owned(), message, 0));
}

/// The danger: the owner takes the import away, and what runs is freer than before.
#[test]
fn an_import_that_is_taken_away_lifts_no_limit() {
    let at =
        |address: &str| DesiredBurst { lead: Some(LeadAddress { address: address.into(), port: 30_050 }), ..offer() };
    let mut world = World::new();
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    import.lead_ranges = vec!["192.0.2.0/24".into()];
    world.claim("east", at("192.0.2.1"));
    let admitted = world.step().changes.into_iter().find_map(|change| match change {
        Change::Admit { hosted, .. } => Some(*hosted),
        _ => None,
    });
    let mut hosted = admitted.unwrap();
    hosted.metadata.uid = Some("hosted-uid".into());
    world.mini_cluster = Some(made(&hosted));
    world.hosted = Some(hosted);
    world.memory.secret = held();
    // A limit of later counts, too.
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    import.max_duration = Some(Lasting::of_seconds(600));
    let updated = world.step().changes.into_iter().find_map(|change| match change {
        Change::Update(updated) => Some(updated.spec),
        _ => None,
    });
    world.hosted.as_mut().unwrap().spec = updated.unwrap();
    world.peers.get_mut("east").unwrap().import = None;

    // Its lead moves out of the ranges, or to another name.
    for address in ["203.0.113.9", "lead.example.org"] {
        world.claim("east", at(address));
        let step = world.step();
        assert!(!step.changes.iter().any(|change| matches!(change, Change::Dial(_) | Change::Resolve(_))), "{address}");
        let materials = step.changes.into_iter().find_map(|change| match change {
            Change::Materialize(materials) => Some(materials),
            _ => None,
        });
        assert_eq!(materials.unwrap().slices, None, "{address}");
    }

    // Of one without brokers, none are made.
    let made = world.mini_cluster.take();
    let Some(Change::Status(status)) = world.step().changes.into_iter().next() else { panic!("it drains") };
    assert_eq!(status.draining_reason.as_deref(), Some("ImportWithdrawn"));
    world.mini_cluster = made;

    let created = Timestamp::from_second(1_000_000 - 600).unwrap();
    world.hosted.as_mut().unwrap().metadata.creation_timestamp = Some(Time(created));
    let Some(Change::Status(status)) = world.step().changes.into_iter().next() else { panic!("it drains") };
    assert_eq!(status.draining_reason.as_deref(), Some("TimeLimit"));
}
