use clap::Parser;
use tributary::api::peer::ImportPolicy;

use super::*;
use crate::cli::{Cli, Command};
use crate::endpoint::tests::{server, target};

fn peer(line: &str) -> Result<ClusterPeer> {
    let cli = Cli::try_parse_from(line.split(' ')).unwrap();
    let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
    cluster_peer(&cli.target, &add)
}

#[test]
fn every_option_becomes_a_field() {
    let peer = peer(
        "agentctl peer add west --peer-endpoint 203.0.113.7:30946 --peer-endpoint srv:west.example.org \
         --cluster-uid 1-2 -l region=us -l tier=gpu --import default --import hpc --max-bursts 4 --max-brokers 64 \
         --pod-security restricted --agent-namespace agents",
    );
    insta::assert_snapshot!(serde_saphyr::to_string(&peer.unwrap()).unwrap());
}

#[test]
fn a_peer_that_exists_keeps_what_is_not_stated() {
    let stated = |line: &str| changed(line, &["hpc"])["spec"].clone();
    assert_eq!(changed("agentctl peer add west", &[])["metadata"], json!({"labels": {}, "resourceVersion": "7"}));
    assert_eq!(stated("agentctl peer add west"), json!({}));
    assert_eq!(
        stated(
            "agentctl peer add west -l tier=gpu --max-gpus 8 --max-memory 1Ti --max-offers-per-minute 10 --max-duration 8h \
             --pod-security baseline"
        ),
        json!({"import": {"maxGpus": 8, "maxMemory": "1Ti", "maxOffersPerMinute": 10, "maxDuration": "8h",
            "podSecurity": "baseline"}})
    );
    assert_eq!(changed("agentctl peer add west -l tier=gpu", &[])["metadata"]["labels"], json!({"tier": "gpu"}));
    assert_eq!(stated("agentctl peer add west --peer-endpoint a:1"), json!({"endpoints": ["a:1"]}));
}

/// The danger: clusters are linked again, and a peer is reached no more, or changes what its owner here holds by himself.
#[test]
fn what_a_cluster_says_of_itself_takes_nothing_from_its_peer() {
    let of = |endpoints: &[&str], trust_updates| {
        let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
        ClusterPeer::new("west", ClusterPeerSpec { endpoints, trust_updates, ..ClusterPeerSpec::default() })
    };
    let known = of(&["srv:west.example.org", "a:1"], TrustUpdates::Manual);
    let said = of(&["a:1", "b:2"], TrustUpdates::FromPeer);
    for word in [Word::Cluster, Word::ApiServer] {
        let changed = stated(&known, (&said, word), &ImportFlags::default());
        assert_eq!(changed["spec"], json!({"endpoints": ["a:1", "b:2", "srv:west.example.org"]}));
    }
}

/// The danger: of a cluster that has replaced its authority twice, the owner here knows the next one already, and loses it.
#[test]
fn who_has_shown_no_key_changes_no_authority() {
    let spec = ClusterPeerSpec { trust_bundle: Some("one".into()), ..ClusterPeerSpec::default() };
    let (said, known) = (ClusterPeer::new("west", spec), ClusterPeer::new("west", ClusterPeerSpec::default()));
    for (word, bundle) in [(Word::Cluster, Value::Null), (Word::ApiServer, json!("one")), (Word::Owner, json!("one"))] {
        assert_eq!(stated(&known, (&said, word), &ImportFlags::default())["spec"]["trustBundle"], bundle, "{word:?}");
    }
    let wanted = Wanted { peer: &said, word: Word::Cluster, import: &ImportFlags::default(), check: &|_| Ok(()) };
    assert_eq!(wanted.over(None).unwrap().spec.trust_bundle.as_deref(), Some("one"), "there was none");
}

/// The danger: what `link --dry-run` prints is committed, and takes away what the owner here has written.
#[test]
fn what_is_shown_is_what_is_written_over_a_peer() {
    let existing: ClusterPeer = serde_json::from_value(json!({
        "metadata": {"name": "west", "namespace": "tributary-system", "uid": "4-5", "resourceVersion": "7",
            "labels": {"tier": "gpu"}, "annotations": {kubernetes::LAST_APPLIED: "{}", "team": "hpc"}},
        "spec": {"endpoints": ["srv:west.example.org"], "trustBundle": "one", "trustUpdates": "Manual", "clusterUID": "1-2",
            "import": {"namespaces": ["hpc"], "maxBrokers": 4}, "drain": true},
        "status": {"connected": true},
    }))
    .unwrap();
    let spec = ClusterPeerSpec {
        endpoints: vec!["203.0.113.7:30946".into()],
        trust_bundle: Some("two".into()),
        trust_updates: TrustUpdates::FromPeer,
        cluster_uid: Some("1-2".into()),
        ..ClusterPeerSpec::default()
    };
    let (said, import) =
        (ClusterPeer::new("west", spec), ImportFlags { import: vec!["lab".into()], ..ImportFlags::default() });
    let wanted = Wanted { peer: &said, word: Word::ApiServer, import: &import, check: &|_| Ok(()) };
    let whole = json!(wanted.over(Some(&existing)).unwrap());
    assert_eq!(
        whole["metadata"],
        json!({"name": "west", "namespace": "tributary-system", "labels": {"tier": "gpu"}, "annotations": {"team": "hpc"}})
    );
    assert_eq!(whole["status"], Value::Null);
    let spec = &whole["spec"];
    assert_eq!(spec["endpoints"], json!(["203.0.113.7:30946", "srv:west.example.org"]));
    assert_eq!([&spec["trustBundle"], &spec["trustUpdates"], &spec["clusterUID"]], ["two", "Manual", "1-2"]);
    assert_eq!((&spec["import"]["namespaces"], &spec["import"]["maxBrokers"]), (&json!(["hpc", "lab"]), &json!(4)));
    assert_eq!(spec["drain"], json!(true));
    let bare = ClusterPeer::new("west", ClusterPeerSpec::default());
    assert_eq!(json!(wanted.over(Some(&bare)).unwrap())["metadata"], json!({"name": "west"}));
}

/// The danger: what `peer add --dry-run` prints is applied, and takes away what it did not name.
#[tokio::test]
async fn what_peer_add_would_write_is_printed() {
    let existing = r#"{"apiVersion":"tributary.dev/v1alpha1","kind":"ClusterPeer","metadata":{"name":"west"},
        "spec":{"endpoints":["a:1"],"trustUpdates":"FromPeer","import":{"namespaces":["hpc"]}}}"#;
    let directory = tempfile::tempdir().unwrap();
    let east = target(directory.path(), &[("east", &server([("/west", "200 OK", existing.to_owned())]).await)]);
    let client = kubernetes::client(&east).await.unwrap();
    let printed = async |line: &str| {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
        let peer = cluster_peer(&cli.target, &add).unwrap();
        let wanted = Wanted { peer: &peer, word: Word::Owner, import: &add.import, check: &|_| Ok(()) };
        to_print(&client, wanted).await.map(|peer| json!(peer.spec))
    };
    let spec = printed("agentctl peer add west --max-brokers 4").await.unwrap();
    assert_eq!((&spec["endpoints"], &spec["trustUpdates"]), (&json!(["a:1"]), &json!("FromPeer")));
    assert_eq!((&spec["import"]["namespaces"], &spec["import"]["maxBrokers"]), (&json!(["hpc"]), &json!(4)));
    assert!(printed("agentctl peer add north --max-brokers 4").await.is_err(), "limits without a namespace");
}

/// The danger: while somebody is asked, another one writes a ClusterPeer of another cluster, and this becomes that.
#[test]
fn what_is_changed_is_what_was_judged() {
    let [said, meanwhile] = ["1-2", "3-4"].map(|uid| {
        let spec = ClusterPeerSpec { cluster_uid: Some(uid.into()), ..ClusterPeerSpec::default() };
        ClusterPeer::new("west", spec)
    });
    let import = ImportFlags::default();
    let check = |existing: Option<&ClusterPeer>| match existing.and_then(ClusterPeer::pinned_uid) {
        None | Some("1-2") => Ok(()),
        Some(_) => Err(Failure::new("it is another one")),
    };
    let wanted = Wanted { peer: &said, word: Word::Cluster, import: &import, check: &check };
    assert_eq!(wanted.change(None).unwrap(), None);
    assert!(wanted.change(Some(&said)).unwrap().is_some());
    assert!(wanted.change(Some(&meanwhile)).is_err() && wanted.over(Some(&meanwhile)).is_err());
}

/// What is merged into a ClusterPeer whose import names these namespaces.
fn changed(line: &str, known: &[&str]) -> Value {
    let cli = Cli::try_parse_from(line.split(' ')).unwrap();
    let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{line}") };
    let mut existing = importing(known);
    existing.metadata.resource_version = Some("7".into());
    stated(&existing, (&cluster_peer(&cli.target, &add).unwrap(), Word::Owner), &add.import)
}

fn importing(namespaces: &[&str]) -> ClusterPeer {
    let namespaces = namespaces.iter().map(|one| (*one).to_owned()).collect();
    let import = ImportPolicy { namespaces, ..ImportPolicy::default() };
    ClusterPeer::new("west", ClusterPeerSpec { import: Some(import), ..ClusterPeerSpec::default() })
}

/// The danger: a namespace is taken away by a limit, or by another namespace, and its bursts run without an import.
#[test]
fn a_namespace_is_taken_away_by_nothing_but_import_only() {
    for (options, known, namespaces) in [
        ("--import lab", &["hpc"][..], json!(["hpc", "lab"])),
        ("--import lab,hpc --import bio --max-brokers 4", &["hpc", "lab"], json!(["hpc", "lab", "bio"])),
        ("--import kube-guests", &["*"], json!(["*", "kube-guests"])),
        ("--import lab", &[], json!(["lab"])),
        ("--max-brokers 4", &["hpc"], Value::Null),
        ("--import-only lab", &["hpc", "*"], json!(["lab"])),
        ("--import-only=", &["hpc"], json!([])),
    ] {
        let changed = changed(&format!("agentctl peer add west {options}"), known);
        assert_eq!(changed["spec"]["import"]["namespaces"], namespaces, "{options}");
    }
}

#[test]
fn limits_alone_are_for_a_peer_that_has_an_import() {
    let check = |options: &str, existing: Option<&ClusterPeer>| {
        let cli = Cli::try_parse_from(format!("agentctl peer add west {options}").split(' ')).unwrap();
        let Command::Peer(Peer::Add(add)) = cli.command else { panic!("{options}") };
        check_limits(existing, &add.import, "failed").map_err(|failure| failure.to_string())
    };
    let (without, with) = (ClusterPeer::new("west", ClusterPeerSpec::default()), importing(&["hpc"]));
    for existing in [None, Some(&without)] {
        let refused = check("--max-brokers 4", existing).unwrap_err();
        assert!(refused.contains("no namespace") && refused.contains("--import default"), "{refused}");
        assert_eq!(check("--max-brokers 4 --import lab", existing), Ok(()));
        assert_eq!(check("-l a=b", existing), Ok(()));
    }
    assert_eq!(check("--max-brokers 4", Some(&with)), Ok(()));
}

#[test]
fn what_a_peer_may_is_told() {
    let told = [&[][..], &["hpc"], &["default", "hpc"], &["hpc", "*"]].map(|names| imports(&importing(names)));
    let wanted = ["nothing", "from namespace hpc", "from namespaces default, hpc", "from any namespace"];
    assert_eq!(told, wanted.map(|from| format!("{from} of west")));
    assert_eq!(imports(&ClusterPeer::new("west", ClusterPeerSpec::default())), "nothing of west");
}

#[test]
fn who_suspended_a_drained_peer_does_not_use_it_again_by_one_resume() {
    let of = |suspend, drain| resumed("west", &ClusterPeerSpec { suspend, drain, ..ClusterPeerSpec::default() });
    let (patch, told) = of(true, true);
    assert_eq!(patch, json!({"suspend": false}));
    assert!(told.contains("still drained") && told.contains("`agentctl peer resume west`"), "{told}");
    crate::paste::check::pastes(&told);
    for (suspend, drain) in [(true, false), (false, true), (false, false)] {
        assert_eq!(of(suspend, drain).0, json!({"suspend": false, "drain": false}));
    }
}

#[test]
fn what_is_lost_with_a_peer_is_named() {
    let burst = |phase: &str, run: Value| -> Burst {
        let spec = json!({"root": "lake", "slot": "lake-burst-0", "incarnation": "job-1"});
        let status = json!({"phase": phase, "peer": "west", "run": run});
        let metadata = json!({"name": "lake-burst-0", "namespace": "flux"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    };
    type Cost = fn(&ClusterPeer, &[Burst], &[HostedBurst]) -> Option<String>;
    let mut west = importing(&[]);
    west.spec.cluster_uid = Some("second".into());
    let of = |cost: Cost, bursts: &[Burst]| cost(&west, bursts, &[]);
    for cost in [cost_of_drain as Cost, cost_of_suspend] {
        let told = of(cost, &[burst("Ready", Value::Null), burst("Released", Value::Null)]).unwrap();
        assert_eq!(told.matches("burst flux/lake-burst-0").count(), 1, "{told}");
        assert_eq!(of(cost, &[burst("Released", Value::Null)]), None);
    }
    let ended = [burst("Finished", json!({"namespace": "guests", "succeeded": true}))];
    assert!(of(cost_of_drain, &ended).unwrap().contains("Logs"));
    assert_eq!(of(cost_of_suspend, &ended), None, "its result outlasts that");
    // Its slot is held by the cluster that had the name before, or by this one.
    let held = |uid: &str| {
        let mut burst = burst("Lost", Value::Null);
        let recipient = json!({"peer": "west", "incarnation": "job-1", "clusterUID": uid});
        burst.status.as_mut().unwrap().credential_recipients = vec![serde_json::from_value(recipient).unwrap()];
        [burst]
    };
    assert_eq!((of(cost_of_drain, &held("first")), of_another(&west, &held("second"))), (None, None));
    assert!(of(cost_of_drain, &held("second")).is_some());
    let told = of_another(&west, &held("first")).unwrap();
    assert!(told.contains("`agentctl burst release lake-burst-0 --namespace flux`"), "{told}");
    crate::paste::check::pastes(&told);
}

#[test]
fn a_peer_may_place_nothing_unless_asked() {
    let peer = peer("agentctl peer add west").unwrap();
    assert_eq!((peer.spec.import, peer.metadata.labels), (None, None));
    assert_eq!(peer.metadata.namespace.as_deref(), Some("tributary-system"));
}

#[test]
fn what_cannot_be_meant_is_refused_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("tls.key");
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n").unwrap();
    let lines = [
        "agentctl peer add west -l region".to_owned(),
        format!("agentctl peer add west --trust-bundle {}", key.display()),
        format!("agentctl peer add west --trust-bundle {}/missing", directory.path().display()),
    ];
    let shown = |line: &String| peer(line).unwrap_err().to_string();
    let texts: Vec<_> = lines.iter().map(shown).collect();
    let text = texts.join("\n\n---\n\n").replace(&directory.path().display().to_string(), "TMP");
    assert!(!text.contains("PRIVATE"), "{text}");
    insta::assert_snapshot!(text);
}
