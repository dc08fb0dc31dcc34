//! What a peer's word about its lead's address can do here, and what it is told of it.

use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::json;
use tributary_api::peer::EgressPolicy;
use tributary_cluster::ObjectKey;
use tributary_contract::{Check, Finding};

use super::*;
use crate::addresses::meant;
use crate::ours::Whose;
use crate::preflight::attempt::Attempt;
use crate::provider::egress::Egress;

fn at(address: &str) -> DesiredBurst {
    DesiredBurst { lead: Some(LeadAddress { address: address.into(), port: 6443 }), ..offer() }
}

/// A burst that has its certificate, whose lead is there.
fn hosting(address: &str) -> (World, ClaimKey) {
    let mut world = World::new();
    world.host("east", &at(address));
    let key = world.claim("east", at(address));
    world.memory.secret = held();
    (world, key)
}

fn resolved(world: &mut World, host: &str, found: Result<Vec<IpAddr>, String>) {
    world.memory.resolved_now(host.into(), found, Mono::ZERO);
}

fn refusal(world: &mut World, address: &str) -> (RejectionReason, String) {
    let key = world.claim("east", at(address));
    let step = world.step();
    assert_eq!(step.changes, [], "{address}");
    let rejection = said(&step, &key).rejection.unwrap();
    (rejection.reason, rejection.message)
}

#[test]
fn a_lead_address_is_checked_and_a_host_name_resolved() {
    let lead =
        |address: &str| DesiredBurst { lead: Some(LeadAddress { address: address.into(), port: 30050 }), ..offer() };
    let slices = |step: &SlotStep| {
        step.changes
            .iter()
            .find_map(|change| match change {
                Change::Materialize(materials) => Some(materials.slices.as_ref().map_or(0, Vec::len)),
                _ => None,
            })
            .unwrap()
    };
    let table =
        [("192.0.2.1", 1, ""), ("169.254.169.254", 0, "link-local"), ("10.244.0.9", 0, "own: of a node, a pod")];
    for (address, expected, trouble) in table {
        let mut world = World::new();
        world.host("east", &lead(address));
        let key = world.claim("east", lead(address));
        world.memory.secret = held();
        let step = world.step();
        assert_eq!(slices(&step), expected, "{address}");
        assert!(said(&step, &key).message.contains(trouble), "{address}: {}", said(&step, &key).message);
    }

    // Our own agent, whatever its address is, and no other.
    let carried = DesiredBurst { tunnel: true, ..lead("192.0.2.1") };
    let mut world = World::new();
    world.host("east", &carried);
    let key = world.claim("east", carried);
    world.memory.secret = held();
    let step = world.step();
    assert!(slices(&step) == 0 && said(&step, &key).message.contains("there is none"));
    world.inlet = Ok("10.244.0.9:7000".parse().unwrap());
    let step = world.step();
    let made = step.changes.iter().find_map(|change| match change {
        Change::Materialize(materials) => materials.slices.as_ref()?.first(),
        _ => None,
    });
    let made = made.unwrap();
    assert_eq!(made.endpoints[0].addresses, ["10.244.0.9"]);
    assert_eq!(made.ports.as_ref().unwrap()[0].port, Some(7_000));

    let mut world = World::new();
    world.host("east", &lead("lead.example.org"));
    world.claim("east", lead("lead.example.org"));
    let step = world.step();
    assert!(step.changes.contains(&Change::Resolve("lead.example.org".into())) && slices(&step) == 0);
    let found = Ok(vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap(), "127.0.0.1".parse().unwrap()]);
    resolved(&mut world, "lead.example.org", found);
    let step = world.step();
    assert_eq!((slices(&step), step.wake), (2, Some(Duration::from_secs(60))));
    world.secs = 60;
    let step = world.step();
    assert!(step.changes.contains(&Change::Resolve("lead.example.org".into())));
    assert_eq!(slices(&step), 2, "until the answer is there, the old one holds");
}

#[test]
fn an_offer_whose_lead_is_our_own_is_refused_with_the_address_and_the_rule() {
    let mut world = World::new();
    world.ours.nodes.change(&ObjectKey::cluster_scoped("n"), Vec::new(), vec!["192.0.2.5".parse().unwrap()]);
    let table = [
        ("169.254.169.254", "the lead's address is refused: 169.254.169.254 is a link-local address"),
        (
            "192.0.2.5",
            "the lead's address is refused: 192.0.2.5 is this cluster's own: of a node, a pod, a Service or an API server",
        ),
    ];
    for (address, message) in table {
        assert_eq!(refusal(&mut world, address), (RejectionReason::LeadAddressRefused, message.to_owned()));
    }
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    import.lead_ranges = vec!["198.51.100.0/24".into()];
    let message = "the lead's address is refused: 203.0.113.9 is in none of import.leadRanges";
    assert_eq!(refusal(&mut world, "203.0.113.9"), (RejectionReason::LeadAddressRefused, message.to_owned()));
    // One that is right, and one that a tunnel makes no use of.
    for desired in [at("198.51.100.9"), DesiredBurst { tunnel: true, ..at("203.0.113.9") }] {
        world.claim("east", desired);
        assert!(matches!(world.step().changes.as_slice(), [Change::Admit { .. }]));
    }
}

#[test]
fn a_lead_that_moves_to_our_own_inside_gets_no_pods_and_no_call() {
    let (mut world, key) = hosting("10.244.0.9");
    let step = world.step();
    assert_eq!(brokers_and_dials(&step), (false, false));
    let conditions = status(&step).unwrap().conditions;
    let condition = tributary_cluster::conditions::find(&conditions, "Preflight").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "LeadAddress"));
    assert!(condition.message.contains("10.244.0.9 is in this cluster's own pod range"), "{}", condition.message);
    assert!(!said(&step, &key).message.contains("10.244.0.0/16"), "{}", said(&step, &key).message);
}

/// The danger: a name that cannot be resolved for once, or was not asked yet by a new leader, takes the way to the lead from
/// brokers that run.
#[test]
fn the_way_to_a_lead_with_a_name_stays_while_nobody_knows_where_the_name_leads() {
    let (mut world, _) = hosting("lead.example.org");
    world.mini_cluster = Some(made(world.hosted.as_ref().unwrap()));
    let slices = |world: &mut World| {
        let changes = world.step().changes;
        let made = changes.into_iter().find_map(|change| match change {
            Change::Materialize(made) => Some(made),
            _ => None,
        });
        let made = made.expect("it is materialized");
        (made.slices.map(|slices| slices.len()), made.egress == Egress::Leave)
    };
    assert_eq!(slices(&mut world), (None, true), "a new leader has not asked");
    let away = || Err("the server of names is away".into());
    resolved(&mut world, "lead.example.org", away());
    assert_eq!(slices(&mut world), (None, true), "a new leader gets no answer");
    // It does not go by what another leader found for ever, nor by another name.
    world.secs = 300;
    assert_eq!(slices(&mut world), (Some(0), false));
    world.secs = 1;
    world.claim("east", at("vault.internal"));
    resolved(&mut world, "vault.internal", away());
    assert_eq!(slices(&mut world), (Some(0), false));
    world.claim("east", at("lead.example.org"));
    let addresses = ["198.51.100.7", "2001:db8::7"].map(|text| text.parse().unwrap());
    resolved(&mut world, "lead.example.org", Ok(addresses.into()));
    assert_eq!(slices(&mut world), (Some(2), false));
    resolved(&mut world, "lead.example.org", away());
    assert_eq!(slices(&mut world), (Some(2), false));
    // Whether there is another name is not told by the way that stays or goes.
    world.claim("east", at("vault.internal"));
    assert_eq!(slices(&mut world), (None, true));
    for found in [away(), Ok(vec!["10.244.0.9".parse().unwrap()])] {
        resolved(&mut world, "vault.internal", found);
        assert_eq!(slices(&mut world), (Some(0), false));
    }
    world.mini_cluster = None;
    world.memory.resolution = None;
    assert_eq!(slices(&mut world).0, Some(0), "before there are brokers, a policy comes first");
}

/// The danger: the servers of names hang, and each step asks them once more.
#[test]
fn a_name_is_asked_again_once_its_answer_is_there_or_the_question_was_left_undone() {
    let (mut world, _) = hosting("lead.example.org");
    let change = Change::Resolve("lead.example.org".into());
    let asks = |world: &mut World| world.step().changes.contains(&change);
    assert_eq!([(); 2].map(|()| asks(&mut world)), [true, false]);
    world.memory.left_undone(std::slice::from_ref(&change));
    assert_eq!([(); 2].map(|()| asks(&mut world)), [true, false]);
    resolved(&mut world, "lead.example.org", Ok(vec!["192.0.2.1".parse().unwrap()]));
    assert!(!asks(&mut world));
    world.secs = 60;
    assert_eq!([(); 2].map(|()| asks(&mut world)), [true, false]);
}

/// Pods that start let the agent look at the certificate once more.
#[test]
fn what_was_seen_of_a_lead_stays_while_the_certificate_is_looked_at_again() {
    let (mut world, key) = hosting("192.0.2.1");
    let Some(Change::Dial(target)) = world.step().changes.into_iter().find(|one| matches!(one, Change::Dial(_))) else {
        panic!("it is dialled")
    };
    let (at, seen) = (Mono::ZERO, Seen::Welcomed);
    world.memory.attempt = Attempt::Done { target: *target, at, first: at, seen };
    world.mini_cluster = Some(MiniCluster { status: None, ..made(world.hosted.as_ref().unwrap()) });
    for (secs, looks) in [(1, false), (2, true)] {
        world.secs = secs;
        world.memory.secret.doubt(Mono::ZERO + Duration::from_secs(secs));
        let step = world.step();
        assert_eq!(step.changes.contains(&Change::LookSecret), looks, "after {secs} s");
        let about_lead = |one: &Finding| matches!(one.check, Check::LeadAddress | Check::Certificate);
        let told: Vec<_> = said(&step, &key).preflight.into_iter().filter(about_lead).collect();
        assert!(told.iter().all(|one| one.outcome == tributary_contract::Outcome::Pass), "{told:?}");
    }
}

#[test]
fn a_peer_is_told_that_its_lead_was_reached_or_not_and_nothing_else() {
    let (mut world, key) = hosting("192.0.2.1");
    let Some(Change::Dial(target)) = world.step().changes.into_iter().find(|one| matches!(one, Change::Dial(_))) else {
        panic!("it is dialled")
    };
    let mut told = |seen: Seen| -> (Vec<Finding>, String) {
        world.memory.attempt = Attempt::Done { target: (*target).clone(), at: Mono::ZERO, first: Mono::ZERO, seen };
        world.secs = 10;
        let said = said(&world.step(), &key);
        let about_lead = |one: &Finding| matches!(one.check, Check::LeadAddress | Check::Certificate);
        (said.preflight.into_iter().filter(about_lead).collect(), said.message)
    };
    let expected = told(Seen::NoAnswer);
    let others = [
        Seen::OtherCertificate("192.0.2.1:6443: HTTP".into()),
        Seen::Silent,
        Seen::Ended,
        Seen::Refused,
        Seen::NoWay("no route to host".into()),
    ];
    for seen in others {
        assert_eq!(told(seen), expected);
    }
    assert_eq!(
        expected.0[0].message,
        "no lead broker with the certificate of the instance is reached at the lead's address"
    );
    assert!(told(Seen::Welcomed).0.iter().all(|one| one.outcome == tributary_contract::Outcome::Pass));
}

#[test]
fn a_peer_learns_nothing_of_names_here() {
    let told = |found: Result<Vec<IpAddr>, String>| {
        let (mut world, key) = hosting("vault.internal");
        resolved(&mut world, "vault.internal", found);
        let said = said(&world.step(), &key);
        (said.message, said.preflight.into_iter().map(|one| one.message).collect::<Vec<_>>())
    };
    let unknown = told(Err("no such name".into()));
    assert_eq!(told(Ok(vec!["10.244.0.9".parse().unwrap()])), unknown);
    assert!(unknown.0.contains("vault.internal leads to no address"), "{}", unknown.0);
}

#[test]
fn a_name_of_another_peers_burst_is_not_told_to_who_wants_the_same_slot() {
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    let other = world.claim("south", of_another_root());
    let message = said(&world.step(), &other).message;
    let root = offer().root;
    assert!(!message.contains("east") && !message.contains(&root.name), "{message}");
}

fn any_ours() -> impl Strategy<Value = Ours> {
    let v4 = any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([10, 7, a, b]));
    let v6 = any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([0x2001, 0xdb8, 7, 0, 0, 0, a.into(), b.into()]));
    let some = || prop::collection::vec(prop_oneof![v4.clone(), v6.clone()], 0..4);
    (some(), some(), some(), some(), 0u8..=255).prop_map(|(nodes, pods, services, api_servers, third)| {
        let (mut ours, key) = (Ours::default(), ObjectKey::cluster_scoped("one"));
        ours.nodes.change(&key, Vec::new(), nodes);
        ours.pods.change(&key, Vec::new(), pods);
        ours.services.change(&key, Vec::new(), services);
        ours.api_servers.change(&key, Vec::new(), api_servers);
        ours.pod_ranges.change(&key, Vec::new(), vec![format!("10.244.{third}.0/24").parse().unwrap()]);
        ours.service_ranges.change(&key, Vec::new(), vec!["10.96.0.0/16".parse().unwrap()]);
        ours
    })
}

/// An address, as a peer may write it: IPv4 in each of its disguises.
fn disguised(address: IpAddr, how: u8) -> String {
    match (address, how % 5) {
        (IpAddr::V4(v4), 1) => format!("::ffff:{v4}"),
        (IpAddr::V4(v4), 2) => format!("64:ff9b::{v4}"),
        (IpAddr::V4(v4), 3) => format!("::{v4}"),
        (IpAddr::V4(v4), 4) => v4.to_ipv6_mapped().to_string(),
        (address, _) => address.to_string(),
    }
}

fn any_lead() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([10, 7, a, b])),
        any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([10, 96, a, b])),
        any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([10, 244, a, b])),
        any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([0x2001, 0xdb8, 7, 0, 0, 0, a.into(), b.into()])),
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        Just(IpAddr::from([169, 254, 169, 254])),
        Just(IpAddr::from([127, 0, 0, 1])),
    ]
}

/// The danger: the policy shuts the brokers off from the tunnel where the network plugin takes no block of addresses for pods.
#[test]
fn by_a_tunnel_a_burst_may_connect_to_the_agents_as_pods() {
    for tunnel in [true, false] {
        let desired = DesiredBurst { tunnel, ..at("192.0.2.1") };
        let mut world = World::new();
        world.host("east", &desired);
        world.claim("east", desired);
        world.memory.secret = held();
        world.inlet = Ok("10.244.0.9:7000".parse().unwrap());
        world.peers.get_mut("east").unwrap().import.as_mut().unwrap().egress = Some(EgressPolicy::default());
        let step = world.step();
        let policy = step.changes.iter().find_map(|change| match change {
            Change::Materialize(materials) => match &materials.egress {
                Egress::Only(policy) => policy.spec.clone(),
                _ => None,
            },
            _ => None,
        });
        let rules = serde_json::to_value(policy.unwrap().egress).unwrap();
        let own = json!([{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["tributary-system"]}]);
        let agents = json!({
            "ports": [{"port": 7_000, "protocol": "TCP"}],
            "to": [{
                "namespaceSelector": {"matchExpressions": own},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "tributary"}},
            }],
        });
        assert_eq!(rules.as_array().unwrap().contains(&agents), tunnel, "{rules}");
    }
}

/// Every address that a step sends anybody to: in EndpointSlices, in the NetworkPolicy, or by dialling it.
fn reached(step: &SlotStep) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for change in &step.changes {
        match change {
            Change::Dial(target) => all.extend(target.ends.iter().map(SocketAddr::ip)),
            Change::Materialize(materials) => {
                let ends = materials.slices.iter().flatten().flat_map(|slice| &slice.endpoints);
                all.extend(ends.flat_map(|end| &end.addresses).map(|text| text.parse::<IpAddr>().unwrap()));
                let Egress::Only(policy) = &materials.egress else { continue };
                let rules = policy.spec.iter().flat_map(|spec| spec.egress.iter().flatten());
                let blocks = rules.flat_map(|rule| rule.to.iter().flatten()).filter_map(|to| to.ip_block.as_ref());
                let lead = blocks.filter(|block| !block.cidr.starts_with("169.254.20.10/"));
                all.extend(lead.map(|block| block.cidr.split('/').next().unwrap().parse::<IpAddr>().unwrap()));
            }
            _ => {}
        }
    }
    all
}

proptest! {
    /// Whatever a peer names, and whatever its names resolve to: nothing of ours is dialled, opened or led to.
    #[test]
    fn nothing_of_our_own_is_dialled_opened_or_led_to(
        ours in any_ours(),
        mut leads in prop::collection::vec((any_lead(), any::<u8>()), 1..4),
        own in any::<prop::sample::Index>(),
        by_name: bool,
    ) {
        // Often one of those that are ours.
        let pods: Vec<IpAddr> = (0..=255).map(|last| IpAddr::from([10, 7, 0, last])).collect();
        let known: Vec<_> = pods.into_iter().filter(|ip| ours.whose(*ip).is_some()).collect();
        if let Some(address) = known.get(own.index(known.len().max(1))) {
            leads[0].0 = *address;
        }
        let texts: Vec<_> = leads.into_iter().map(|(address, how)| disguised(address, how)).collect();
        let (mut world, _) = hosting(if by_name { "lead.example.org" } else { &texts[0] });
        world.ours = ours;
        resolved(&mut world, "lead.example.org", Ok(texts.iter().map(|text| text.parse().unwrap()).collect()));
        let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
        import.egress = Some(EgressPolicy::default());
        let step = world.step();
        for address in reached(&step) {
            let whose: Option<Whose> = world.ours.whose(address);
            prop_assert!(whose.is_none() && !meant(address).is_loopback(), "{address}: {whose:?}");
        }
    }
}
