//! Situations of a cluster and of its federation, and what is said of them.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary::admin::{ClusterRow, ClusterStatus, FederationStatus, IdentityRow, PeerRow};
use tributary::api::cluster_card::ClusterCard;
use tributary::api::crds;
use tributary::api::hosted_burst::HostedBurst;
use tributary::contract::PeerState;

use super::evaluate::{report, unreachable};
use super::report::{Report, text};
use super::rights::Scope;
use super::{Found, rights};
use crate::output::Mark;

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn at(text: &str) -> jiff::Timestamp {
    text.parse().unwrap()
}

/// Of a Service.
fn slice(service: &str, ready: Value) -> EndpointSlice {
    of(json!({"metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.1.7"], "conditions": {"ready": ready}}]}))
}

const NOW: &str = "2026-01-01T12:00:00Z";

/// Labels of the chart's objects.
fn release() -> Value {
    json!({"app.kubernetes.io/name": "tributary", "app.kubernetes.io/instance": "federation"})
}

/// A cluster where all is well, with one connected peer that may place bursts.
fn well() -> Found {
    let version = env!("CARGO_PKG_VERSION");
    let definitions = crds().into_iter().map(|crd| {
        let mut value = serde_json::to_value(crd).unwrap();
        value["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        if value["metadata"]["name"] == "miniclusters.flux-framework.org" {
            value["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"caBundle": "UEVN", "service": {"namespace": "tributary-system", "name": "tributary-webhook"}},
            }});
        }
        of(value)
    });
    let scope = Scope { converts: true, ..Scope::default() };
    let pod = |name: &str| {
        of(json!({"metadata": {"name": name, "labels": release()},
            "spec": {"containers": [], "serviceAccountName": "tributary"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
    };
    let peer = PeerRow {
        name: "west".into(),
        state: PeerState::Connected,
        endpoint: Some("203.0.113.7:30946".into()),
        version: Some(version.into()),
        rtt_micros: Some(50_340),
        ..PeerRow::default()
    };
    let identity = IdentityRow {
        id: "spiffe://river/cluster/east".into(),
        not_before: at("2025-11-01T00:00:00Z"),
        not_after: at("2026-03-01T00:00:00Z"),
    };
    let cluster = |name: &str| ClusterStatus {
        cluster: name.into(),
        version: version.into(),
        leader: true,
        now: Some(at(NOW)),
        identity: Some(identity.clone()),
        ..ClusterStatus::default()
    };
    let card = ClusterCard {
        cluster: "east".into(),
        cluster_uid: "1f0e".into(),
        endpoints: vec!["198.51.100.4:30946".into()],
        ..ClusterCard::default()
    };
    Found {
        now: at(NOW),
        namespace: "tributary-system".into(),
        kubernetes: (1, 35, "v1.35.4".into()),
        server_time: Some(at(NOW)),
        definitions: Ok(definitions.collect()),
        operator: Ok(None),
        agents: Ok(vec![pod("tributary-a"), pod("tributary-b")]),
        leader: Ok(Ok("tributary-a_1".into())),
        federation: Ok(FederationStatus {
            api_version: String::new(),
            cluster: "east".into(),
            clusters: vec![
                ClusterRow { name: "east".into(), peer: None, status: Some(cluster("east")), error: None },
                ClusterRow { name: "west".into(), peer: Some(peer), status: Some(cluster("west")), error: None },
            ],
        }),
        rights: Ok(rights::needed(&scope, "tributary-system").into_iter().map(|right| (right, true)).collect()),
        scope: Ok(scope),
        card: Ok(Some(card)),
        services: Ok(vec![
            of(json!({"metadata": {"name": "tributary-federation", "labels": release()}, "spec": {"type": "NodePort",
                "ports": [{"name": "federation", "port": 7946, "protocol": "UDP", "nodePort": 30946}]}})),
            of(json!({"metadata": {"name": "tributary-webhook"}, "spec": {"ports": [{"port": 443}]}})),
        ]),
        slices: Ok(vec![slice("tributary-federation", json!(true)), slice("tributary-webhook", json!(true))]),
        unread_peers: Vec::new(),
        peers: Ok(vec![of(
            json!({"metadata": {"name": "west"}, "spec": {"import": {"namespaces": ["flux"], "maxBrokers": 64}},
            "status": {"connected": true}}),
        )]),
        namespaces: Ok(["flux".to_owned(), "default".to_owned()].into()),
        roots: Ok(Vec::new()),
        bursts: Ok(Vec::new()),
        hosted: Ok(vec![hosting("pass", "Flux 0.68 on both sides", "")]),
    }
}

/// The danger: what agents of other namespaces work on is held against the peers of these, or another UDP Service is taken for
/// the agents'.
#[test]
fn what_other_agents_and_others_have_is_not_looked_at() {
    let other = |namespace: &str| {
        let mut hosted = hosting("fail", "Flux 0.68 and 0.75", "use images of one version");
        hosted.metadata.namespace = Some(namespace.to_owned());
        hosted
    };
    let failing = |namespace: &str, watched: &[&str]| {
        let namespaces = watched.iter().map(|&one| one.to_owned()).collect();
        let found = Found { scope: Ok(Scope { namespaces, converts: true, ..Scope::default() }), ..well() };
        let found = Found { hosted: Ok(vec![other(namespace)]), ..found }.of_these_agents();
        !report(&found).ok
    };
    assert_eq!([failing("flux", &["flux"]), failing("shop", &["flux"]), failing("shop", &[])], [true, false, true]);
    let mut found = well();
    let udp = |labels: Value| {
        of(
            json!({"metadata": {"name": "a-lead", "labels": labels}, "spec": {"ports": [{"port": 53, "protocol": "UDP"}]}}),
        )
    };
    let services = found.services.as_mut().unwrap();
    services.insert(0, udp(json!({})));
    services.insert(0, udp(json!({"app.kubernetes.io/name": "tributary", "app.kubernetes.io/instance": "another"})));
    let text = text(&report(&found));
    assert!(text.contains("✓ Service tributary-federation: ") && !text.contains("a-lead"), "{text}");
}

/// A burst of the peer, of which one thing was found out.
fn hosting(outcome: &str, message: &str, hint: &str) -> HostedBurst {
    let labels = json!({"tributary.dev/root-cluster": "west"});
    of(json!({"metadata": {"name": "weir-burst-0", "namespace": "flux", "labels": labels},
        "spec": {"slot": "weir-burst-0", "peer": "west", "root": {"name": "weir", "namespace": "flux"}},
        "status": {"preflight": [{"check": "FluxVersion", "outcome": outcome, "message": message, "hint": hint}]}}))
}

/// A node of another architecture is no matter once brokers with images for both have joined.
#[test]
fn what_was_found_before_brokers_joined_is_no_complaint_afterwards() {
    let mut found = well();
    let mut joined =
        hosting("fail", "the lead broker runs on amd64, and the nodes here are arm64", "use images for both");
    joined.status.as_mut().unwrap().phase = tributary::api::hosted_burst::BurstPhase::Ready;
    found.hosted = Ok(vec![joined.clone()]);
    found.roots = Ok(Vec::new());
    found.bursts = Ok(vec![of(json!({"metadata": {"name": "lake-burst-0", "namespace": "flux",
            "ownerReferences": [{"apiVersion": "v", "kind": "MiniCluster", "name": "lake", "uid": "u", "controller": true}]},
        "spec": {"root": "lake", "slot": "lake-burst-0"},
        "status": {"phase": "Ready", "peer": "west", "preflight": joined.status.unwrap().preflight}}))]);
    let report = report(&found);
    assert!(report.ok && complaints(&report).is_empty(), "{}", text(&report));
}

/// What is not as it should be, without the rest.
fn complaints(report: &Report) -> String {
    let mut lines = Vec::new();
    for section in &report.sections {
        for finding in section.findings.iter().filter(|finding| finding.outcome != Mark::Good) {
            crate::paste::check::pastes(&finding.hint);
            assert!(!finding.hint.is_empty() || finding.outcome == Mark::Unknown, "{finding:?} says not what to do");
            let (what, detail, hint) = (&finding.what, &finding.detail, &finding.hint);
            lines.push(format!("{} {:?}: {what}: {detail}\n    {hint}", section.name, finding.outcome));
        }
    }
    lines.join("\n")
}

/// Of a cluster in which a right and a namespace are missing.
#[test]
fn its_picture_is_current() {
    let mut found = well();
    found.rights.as_mut().unwrap()[3].1 = false;
    found.namespaces = Ok(["default".to_owned()].into());
    crate::pictures::current("check", "agentctl check", &crate::output::painted(&text(&report(&found))));
}

#[test]
fn all_is_well() {
    let report = report(&well());
    assert!(report.ok);
    insta::assert_snapshot!(text(&report));
}

/// Of a certificate that cert-manager renews every 16 hours.
#[test]
fn the_page_on_cert_manager_says_what_is_said() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cert-manager/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut found = well();
    let own = &mut found.federation.as_mut().unwrap().clusters[0].status.as_mut().unwrap().identity;
    *own = Some(IdentityRow {
        id: "spiffe://research/cluster/east".into(),
        not_before: at("2026-01-01T04:00:00Z"),
        not_after: at("2026-01-02T04:00:00Z"),
    });
    let with = text(&report(&found));
    found.federation.as_mut().unwrap().clusters[0].status.as_mut().unwrap().identity = None;
    let without = text(&report(&found));
    for (said, mark, what) in [(with, "✓", "certificate of spiffe"), (without, "✗", "certificate of the agent")] {
        let line = said.lines().find(|line| line.starts_with(&format!("{mark} {what}"))).unwrap();
        assert!(page.contains(line), "the page does not say {line:?}");
    }
}

/// The danger: a cluster that is to peer with nobody, and what it lacks for that is held against it.
#[test]
fn a_federation_that_is_off_lacks_nothing() {
    let mut found = well();
    found.scope.as_mut().unwrap().alone = true;
    found.federation.as_mut().unwrap().clusters[0].status.as_mut().unwrap().identity = None;
    (found.card, found.peers, found.slices) =
        (Ok(None), Ok(Vec::new()), Ok(vec![slice("tributary-webhook", json!(true))]));
    let report = report(&found);
    assert!(report.ok && complaints(&report).is_empty(), "{}", text(&report));
}

/// A line such as `‼ west is connected: it is suspended` says two things.
#[test]
fn no_line_says_that_all_is_well_before_it_says_what_is_wrong() {
    let report = report(&well());
    for finding in report.sections.iter().flat_map(|section| &section.findings) {
        let claims =
            [" is ", " are ", " can ", " may ", " has ", " agrees "].iter().any(|verb| finding.what.contains(verb));
        assert!(!claims, "{} is a sentence, and no name of a test", finding.what);
        assert!(!finding.detail.is_empty(), "{}: and what came of it?", finding.what);
    }
}

#[test]
fn every_trouble_has_a_line_and_a_hint() {
    type Change = fn(&mut Found);
    fn own(found: &mut Found) -> &mut ClusterStatus {
        found.federation.as_mut().unwrap().clusters[0].status.as_mut().unwrap()
    }
    fn peer(found: &mut Found) -> &mut PeerRow {
        found.federation.as_mut().unwrap().clusters[1].peer.as_mut().unwrap()
    }
    fn mini_clusters(found: &mut Found) -> &mut CustomResourceDefinition {
        let mut all = found.definitions.as_mut().unwrap().iter_mut();
        all.find(|crd| crd.spec.names.plural == "miniclusters").unwrap()
    }
    let cases: Vec<(&str, bool, Change)> = vec![
        ("an old API server", false, |found| found.kubernetes = (1, 31, "v1.31.2".into())),
        ("a ClusterPeer where no agent is", true, |found| {
            found.unread_peers = vec![("default".into(), "north".into())]
        }),
        ("this machine's clock is off", true, |found| found.now = at("2026-01-01T12:03:00Z")),
        ("a definition is missing", false, |found| drop(found.definitions.as_mut().unwrap().remove(1))),
        ("upstream's definition", false, |found| {
            let crd = &mut found
                .definitions
                .as_mut()
                .unwrap()
                .iter_mut()
                .find(|crd| crd.spec.names.plural == "miniclusters")
                .unwrap();
            let schema = crd.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
            let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
            spec.properties
                .as_mut()
                .unwrap()
                .retain(|name, _| !["suspend", "updates", "maxSize"].contains(&name.as_str()));
        }),
        ("the Flux Operator runs", false, |found| found.operator = Ok(Some("operator-system/manager-0".into()))),
        ("no agent", false, |found| {
            found.agents = Ok(Vec::new());
            found.leader = Ok(Err("no agent has ever led in namespace tributary-system".into()));
            found.federation = Err("no agent runs in namespace tributary-system".into());
            found.card = Ok(None);
        }),
        ("ports may not be forwarded", true, |found| {
            let why =
                "failed to read /v1/federation from the agent at tributary-a: failed to switch protocol: 403 Forbidden";
            found.federation = Err(why.into());
        }),
        ("the image cannot be pulled", false, |found| {
            let waiting =
                json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image \"tributary-agent:0.1.0\""});
            let container = json!({"name": "agent", "image": "tributary-agent:0.1.0", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": waiting}});
            let pod = json!({"metadata": {"name": "tributary-a"}, "status": {"containerStatuses": [container]}});
            found.agents = Ok(vec![of(pod)]);
            found.rights = Ok(Vec::new());
            found.leader = Ok(Err("no agent has ever led in namespace tributary-system".into()));
        }),
        ("nobody leads", false, |found| {
            found.leader = Ok(Err("no agent leads in namespace tributary-system: the last one has resigned".into()))
        }),
        ("one replica", true, |found| drop(found.agents.as_mut().unwrap().pop())),
        ("another version", false, |found| own(found).version = "7.0.1".into()),
        ("a right is missing", false, |found| found.rights.as_mut().unwrap()[3].1 = false),
        ("the ClusterRoleBinding is gone", false, |found| {
            let everywhere = found.rights.as_mut().unwrap().iter_mut().filter(|(right, _)| right.namespace.is_empty());
            everywhere.for_each(|(_, allowed)| *allowed = false);
        }),
        ("a Role of some namespaces is gone", false, |found| {
            let namespaces = vec!["research".to_owned(), "teaching".to_owned()];
            let scope = Scope { namespaces, ..Scope::default() };
            let needed = rights::needed(&scope, &found.namespace).into_iter();
            found.rights = Ok(needed.map(|right| (right.clone(), right.namespace != "teaching")).collect());
            found.scope = Ok(scope);
        }),
        ("the configuration cannot be read", true, |found| found.scope = Err("configmaps is forbidden".into())),
        ("nobody converts", false, |found| mini_clusters(found).spec.conversion = None),
        ("a webhook that cannot be believed", false, |found| {
            let webhook = mini_clusters(found).spec.conversion.as_mut().unwrap().webhook.as_mut().unwrap();
            webhook.client_config.as_mut().unwrap().ca_bundle = None;
        }),
        ("a webhook without a Service", false, |found| drop(found.services.as_mut().unwrap().pop())),
        ("a webhook with nobody behind it", false, |found| {
            found.slices.as_mut().unwrap()[1] = slice("tributary-webhook", json!(false));
        }),
        ("rights cannot be asked for", true, |found| found.rights = Err("subjectaccessreviews is forbidden".into())),
        ("no certificate", false, |found| own(found).identity = None),
        ("a certificate that ends", true, |found| {
            own(found).identity.as_mut().unwrap().not_after = at("2026-01-01T20:00:00Z")
        }),
        ("a certificate that has ended", false, |found| {
            own(found).identity.as_mut().unwrap().not_after = at("2026-01-01T11:00:00Z")
        }),
        ("the agent's clock is off", false, |found| own(found).now = Some(at("2026-01-01T11:58:00Z"))),
        ("no load balancer", false, |found| {
            found.services.as_mut().unwrap()[0].spec.as_mut().unwrap().type_ = Some("LoadBalancer".into())
        }),
        ("nobody behind the Service", false, |found| found.slices = Ok(Vec::new())),
        ("nobody says where", true, |found| found.card.as_mut().unwrap().as_mut().unwrap().endpoints.clear()),
        ("no peers", true, |found| found.peers = Ok(Vec::new())),
        ("a peer of this cluster's own name", true, |found| {
            found.peers.as_mut().unwrap().push(of(json!({"metadata": {"name": "east"}, "spec": {}})));
        }),
        ("a peer out of reach", false, |found| {
            *peer(found) = PeerRow {
                state: PeerState::Disconnected,
                message: Some("Unreachable: 203.0.113.7:30946 does not answer".into()),
                ..peer(found).clone()
            };
        }),
        ("a peer that refuses", false, |found| {
            *peer(found) = PeerRow {
                state: PeerState::Refused,
                message: Some("UnknownPeer: west has no ClusterPeer east".into()),
                ..peer(found).clone()
            };
        }),
        ("a peer that is suspended here", true, |found| peer(found).state = PeerState::Suspended),
        ("a peer that suspended this cluster", true, |found| {
            *peer(found) = PeerRow {
                state: PeerState::Refused,
                message: Some("Suspended: cluster `west` suspended its ClusterPeer `east`".into()),
                ..peer(found).clone()
            };
        }),
        ("a peer whose connection breaks", true, |found| peer(found).flapping = true),
        ("a peer of another version", true, |found| peer(found).version = Some("0.2.0".into())),
        ("a peer whose clock is off", false, |found| {
            found.federation.as_mut().unwrap().clusters[1].status.as_mut().unwrap().now =
                Some(at("2026-01-01T12:01:00Z"))
        }),
        ("a peer that shows nothing", true, |found| {
            let row = &mut found.federation.as_mut().unwrap().clusters[1];
            (row.status, row.error) = (None, Some("no answer".into()));
        }),
        ("a namespace that is not there", false, |found| found.namespaces = Ok(["default".to_owned()].into())),
        ("anybody may do anything", true, |found| {
            found.peers = Ok(vec![of(
                json!({"metadata": {"name": "west"}, "spec": {"import": {"namespaces": ["*"], "podSecurity": "privileged"}}}),
            )]);
        }),
        ("bursts that bring nodes which nobody can be asked for", true, |found| {
            let said = json!({"type": "ScaleUp", "status": "False", "reason": "NotServed",
                "message": "import.scaleUp.provisioningRequest: this cluster does not serve ProvisioningRequests",
                "lastTransitionTime": NOW});
            let status = json!({"connected": true, "conditions": [said]});
            found.peers.as_mut().unwrap()[0].status = of(status);
        }),
        ("a budget of money where nothing has a price", true, |found| {
            found.peers.as_mut().unwrap()[0].spec.budget.cost = Some("500".parse().unwrap());
        }),
        ("brokers of a peer that cannot join", false, |found| {
            let (message, hint) =
                ("the root's brokers are of Flux 0.68, and image view:0.75.0 brings 0.75", "use images of one version");
            found.hosted = Ok(vec![hosting("fail", message, hint)]);
        }),
        ("a burst that was refused", true, |found| {
            found.roots = Ok(vec![of(
                json!({"metadata": {"name": "lake", "namespace": "flux"}, "status": {"incarnation": "j"},
                "spec": {"size": 1, "containers": [{"image": "app"}], "flux": {"bursting": {"clusters": [{"peer": "west"}]}}}}),
            )]);
            found.bursts = Ok(vec![of(json!({"metadata": {"name": "lake-burst-0", "namespace": "flux",
            "ownerReferences": [{"apiVersion": "v", "kind": "MiniCluster", "name": "lake", "uid": "u", "controller": true}]},
                "spec": {"root": "lake", "slot": "lake-burst-0", "peers": ["west"]},
                "status": {"phase": "Rejected", "refusals": [{"peer": "west", "reason": "QuotaExceeded", "message": "ResourceQuota team leaves 0 of pods", "generation": 1}]}}))]);
        }),
    ];
    let silent = unreachable("connection refused");
    assert!(!silent.ok);
    let mut all = vec![format!("# no API server\n{}", complaints(&silent))];
    for (case, ok, change) in cases {
        let mut found = well();
        change(&mut found);
        let report = report(&found);
        assert_eq!(report.ok, ok, "{case}: {}", text(&report));
        let complaints = complaints(&report);
        assert!(!complaints.is_empty(), "{case}");
        all.push(format!("# {case}\n{complaints}"));
    }
    insta::assert_snapshot!(all.join("\n\n"));
}
