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
        let status = step.changes.iter().find_map(|change| match change {
            Change::Status(status) => Some((**status).clone()),
            _ => None,
        });
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
