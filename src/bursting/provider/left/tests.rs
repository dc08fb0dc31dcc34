use serde_json::{Value, json};

use super::*;

fn mini_cluster(metadata: Value) -> MiniCluster {
    serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap()
}

fn marks() -> Value {
    json!({labels::SLOT: "lake", labels::MINICLUSTER: "lake", labels::BURST_UID: "b", labels::ROOT_CLUSTER: "east"})
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    let api = match kind {
        "HostedBurst" => "tributary.dev/v1alpha1",
        "MiniCluster" => "flux-framework.org/v1alpha2",
        _ => "batch/v1",
    };
    json!({"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": true})
}

fn pod(namespace: &str, job: &str, labels: Value, owners: Value) -> Arc<WatchedPod> {
    let mut metadata =
        json!({"namespace": namespace, "name": format!("{job}-0-x"), "labels": labels, "ownerReferences": owners});
    metadata["labels"][JOB_NAME] = job.into();
    Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
}

/// The dangers: a user's copy of a hosted MiniCluster is deleted, or what is ours is not.
#[test]
fn a_copy_is_nobodys_burst() {
    let of = |name: &str, labels: Value, owners: Value| {
        is_of_slot(&mini_cluster(json!({"name": name, "labels": labels, "ownerReferences": owners})))
    };
    let burst = || json!([owner("HostedBurst", "lake", "h")]);
    assert!(of("lake", marks(), burst()) && of("lake", json!({}), burst()), "its owner counts");
    assert!(of("lake", marks(), json!([])), "it was orphaned");
    assert!(!of("mine", marks(), json!([])) && !of("mine", marks(), burst()), "copies");
    assert!(
        !of("lake", json!({labels::SLOT: "lake"}), json!([]))
            && !of("lake", marks(), json!([owner("Job", "lake", "j")]))
    );
}

/// The dangers: a user's copy, or what another agent works on, holds up what a peer is told.
#[test]
fn a_term_recalls_what_it_finds_where_it_works() {
    let made = |namespace: &str, name: &str| {
        Arc::new(mini_cluster(json!({"namespace": namespace, "name": name, "labels": marks()})))
    };
    let ran = |namespace: &str, job: &str, mut labels: Value| {
        labels[labels::MINICLUSTER] = job.into();
        pod(namespace, job, labels, json!([owner("Job", job, "j")]))
    };
    let is_free = |(namespace, name): &SlotKey| namespace != "theirs" && name != "hosted";
    let of = |made: &[Arc<MiniCluster>], pods: &[Arc<WatchedPod>]| -> Vec<String> {
        let claim: ClaimKey = ("east".into(), "b".into());
        let found = recalled(made, pods, is_free).into_iter();
        found
            .inspect(|(_, of)| assert_eq!(*of, claim))
            .map(|((namespace, name), _)| format!("{namespace}/{name}"))
            .collect()
    };
    let all = [made("flux", "lake"), made("flux", "mine"), made("theirs", "lake")];
    assert_eq!(of(&all, &[]), ["flux/lake"]);
    let pods = [ran("flux", "lake", marks()), ran("flux", "mine", marks()), ran("theirs", "lake", marks())];
    assert_eq!(of(&all[1..], &pods), ["flux/lake"], "pods of a copy are the user's");
    let stranger = Arc::new(mini_cluster(json!({"namespace": "flux", "name": "lake"})));
    assert_eq!(of(&[stranger], &pods[..1]), ["flux/lake"], "who took the name has not ended them");
    assert!(of(&[], &[ran("flux", "hosted", marks()), ran("flux", "lake", json!({}))]).is_empty());
}

/// The danger: what a term finds is a user's copy in another namespace, and a tombstone deletes it.
#[test]
fn what_was_only_recalled_is_not_deleted() {
    let key: SlotKey = ("flux".into(), "lake-burst-0".into());
    let claim: ClaimKey = ("east".into(), "burst-uid".into());
    let offer = crate::provider::admission::tests::offer();
    let peers = |target: Option<&str>| -> BTreeMap<PeerName, PeerView> {
        let import =
            tributary_api::peer::ImportPolicy { target_namespace: target.map(Into::into), ..Default::default() };
        [("east".into(), PeerView { import: Some(import), ..PeerView::default() })].into()
    };
    let (here, elsewhere) = (peers(None), peers(Some("guests")));
    let mut memory = Memory::default();
    memory.recall(claim.clone());
    let tombstone = [(claim.clone(), Wanted::Tombstone)].into();
    let burst = [(claim.clone(), Wanted::Burst(offer.into()))].into();
    assert!(only_recalled(&key, false, &BTreeMap::new(), &here, &memory));
    assert!(only_recalled(&key, false, &tombstone, &here, &memory));
    assert!(only_recalled(&key, false, &burst, &elsewhere, &memory), "it is here for its answer alone");
    assert!(!only_recalled(&key, false, &burst, &here, &memory), "its peer wants that very name");
    assert!(!only_recalled(&key, true, &tombstone, &here, &memory));
    memory.fates.insert(claim, Fate::Evicted { incarnation: String::new() });
    assert!(!only_recalled(&key, false, &tombstone, &here, &memory), "it was hosted in this term");
}

/// The dangers: brokers run on under a name that somebody else has taken, or while a finalizer keeps their MiniCluster;
/// or what is another's is deleted, or waited for.
#[test]
fn only_a_job_of_our_rendering_goes() {
    let ours =
        mini_cluster(json!({"name": "lake", "uid": "m", "ownerReferences": [owner("HostedBurst", "lake", "h")]}));
    let named = |uid: &str| mini_cluster(json!({"name": "lake", "uid": uid}));
    let (stripped, other) = (named("m"), named("other"));
    let job = |owners: Value, labels: Value| -> Job {
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": []}});
        let metadata = json!({"name": "lake", "uid": "j", "labels": {labels::SLOT: "lake"}, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"template": template}})).unwrap()
    };
    let by = |uid: &str| json!([owner("MiniCluster", "lake", uid)]);
    let mut written = marks();
    written[upstream::NAME] = "lake".into();
    let mut elsewhere = marks();
    elsewhere[labels::SLOT] = "sea".into();
    let table = [
        ("its MiniCluster is gone", None, job(by("m"), marks()), Whose::LeftBehind),
        ("a finalizer keeps its MiniCluster", Some(&ours), job(by("m"), marks()), Whose::LeftBehind),
        ("another made a MiniCluster of the name", Some(&other), job(by("m"), marks()), Whose::LeftBehind),
        ("it was orphaned", None, job(json!([]), marks()), Whose::LeftBehind),
        ("it was orphaned, and the name taken", Some(&other), job(json!([]), marks()), Whose::LeftBehind),
        ("its MiniCluster lost its marks, or is a copy", Some(&stripped), job(by("m"), marks()), Whose::Unknown),
        ("something has adopted it", None, job(json!([owner("CronJob", "lake", "c")]), marks()), Whose::Unknown),
        ("the other's MiniCluster runs", Some(&other), job(by("other"), json!({})), Whose::Theirs),
        ("the other wrote our label", Some(&other), job(by("other"), written), Whose::Theirs),
        ("the other wrote another slot", Some(&other), job(by("other"), elsewhere), Whose::Theirs),
        ("a user's, alone", None, job(json!([]), json!({})), Whose::Theirs),
        ("a user's, beside a MiniCluster", Some(&other), job(json!([]), json!({})), Whose::Theirs),
    ];
    for (case, found, job, expected) in table {
        assert_eq!(whose(&job, found, "lake"), expected, "{case}");
    }
}

/// The dangers: pods whose Job was deleted without them run on for ever; or those of a user's Job of the name are waited for, or
/// deleted.
#[test]
fn pods_of_ours_are_counted_and_orphans_among_them_go() {
    let theirs: Job = serde_json::from_value(json!({"metadata": {"name": "lake", "uid": "u"}})).unwrap();
    let of = |labels: &Value, owners: Value| -> Pod {
        let mut labels = labels.clone();
        labels[JOB_NAME] = "lake".into();
        serde_json::from_value(json!({"metadata": {"name": "x", "labels": labels, "ownerReferences": owners}})).unwrap()
    };
    let by = |uid: &str| json!([owner("Job", "lake", uid)]);
    let (none, ours, mut users) = (json!({}), marks(), marks());
    users[upstream::NAME] = "lake".into();
    let table = [
        ("its Job is gone, and it ends", of(&ours, by("j")), None, true, false),
        ("its Job was deleted without it", of(&ours, json!([])), None, true, true),
        ("and a ReplicaSet adopted it", of(&ours, json!([owner("ReplicaSet", "r", "r")])), None, true, false),
        ("and a user made another Job", of(&ours, json!([])), Some(&theirs), true, true),
        ("the user's Job runs", of(&none, by("u")), Some(&theirs), false, false),
        ("a user's pod alone", of(&none, json!([])), None, false, false),
        ("a user's MiniCluster's, orphaned", of(&users, json!([])), None, true, false),
    ];
    for (case, pod, job, counts, goes) in table {
        assert_eq!((is_left(&pod, "lake", job), is_orphan(&pod, "lake")), (counts, goes), "{case}");
    }
}
