use k8s_openapi::api::core::v1::Toleration;
use serde_json::json;

use super::*;

const EAST: &str = "east";

/// Groups of small and of large nodes, and of tainted ones with GPUs.
fn policy(max_nodes: u32) -> ScaleUpPolicy {
    serde_json::from_value(json!({"maxNodes": max_nodes, "wait": "10m", "nodeGroups": [
        {"name": "small", "cpu": 4, "memory": "16Gi", "max": 3},
        {"name": "large", "cpu": "16", "memory": "64Gi", "labels": {"pool": "hpc"}},
        {"name": "gpu", "cpu": 8, "memory": "32Gi", "gpus": 4, "max": 1, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    ]}))
    .unwrap()
}

fn broker(cores: u32, gpus: u32, gib: i64) -> Amounts {
    Amounts { memory: gib << 30, ..Amounts::broker(cores, gpus) }
}

/// The nodes of a plan (`small 2, large 1`), or why there is none.
fn planned(
    policy: &ScaleUpPolicy,
    (broker, count): (Amounts, u32),
    selector: &[(&str, &str)],
    tolerations: &[Toleration],
    held: &[(&str, u32)],
) -> Result<String, Rejection> {
    let selector = selector.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let choice = NodeChoice { selector: &selector, affinity: &BTreeMap::new(), tolerations };
    let held = held.iter().copied().collect();
    let planned = plan(&EAST.into(), policy, &Homeless { broker, count, choice }, &held)?;
    assert_eq!(planned.wait, Lasting::of_seconds(600));
    let nodes = planned.nodes.iter().map(|nodes| format!("{} {}", nodes.group, nodes.count));
    Ok(nodes.collect::<Vec<_>>().join(", "))
}

#[test]
fn brokers_bring_as_many_nodes_as_they_need_in_the_order_of_the_groups() {
    let hpc = [("pool", "hpc")];
    // Most nodes, what each broker takes, and how many there are.
    let table = [
        ("one each", 9, broker(4, 0, 1), 2, "small 2"),
        ("two on one", 9, broker(2, 0, 1), 3, "small 2"),
        ("memory counts", 9, broker(1, 0, 12), 2, "small 2"),
        ("no more than the max of a group, then the next", 9, broker(4, 0, 1), 5, "small 3, large 1"),
        ("too large for the first", 9, broker(5, 0, 1), 3, "large 1"),
        ("fewer of the largest, where there may be few", 2, broker(4, 0, 1), 8, "large 2"),
        ("nothing is left over", 9, broker(4, 0, 1), 0, ""),
        ("those that request nothing", 9, broker(0, 0, 0), 1, "small 1"),
    ];
    for (case, max, broker, count, expected) in table {
        let planned = planned(&policy(max), (broker, count), &[], &[], &[]);
        assert_eq!(planned.as_deref(), Ok(expected), "{case}");
    }
    let any = [Toleration { operator: Some("Exists".into()), ..Toleration::default() }];
    assert_eq!(planned(&policy(9), (broker(1, 0, 1), 1), &hpc, &[], &[]).as_deref(), Ok("large 1"), "by label");
    assert_eq!(planned(&policy(9), (broker(2, 2, 1), 2), &[], &any, &[]).as_deref(), Ok("gpu 1"), "what it tolerates");
}

#[test]
fn what_fits_on_no_node_of_the_policy_is_refused_by_the_names_of_its_groups() {
    let refused = |broker, selector: &[(&str, &str)]| planned(&policy(9), (broker, 1), selector, &[], &[]).unwrap_err();
    for (broker, selector) in [
        (broker(17, 0, 1), &[][..]),
        (broker(1, 0, 65), &[]),
        // Its node is tainted.
        (broker(1, 1, 1), &[]),
        (broker(1, 0, 1), &[("pool", "other")]),
    ] {
        let rejection = refused(broker, selector);
        assert_eq!(rejection.reason, RejectionReason::NotEnoughCores);
        assert!(rejection.message.contains("small, large, gpu (import.scaleUp of ClusterPeer east)"), "{rejection}");
    }
    // What cannot be read, or is nothing, holds nothing.
    let odd = serde_json::from_value(json!({"maxNodes": 1, "wait": "10m", "nodeGroups": [
        {"name": "odd", "cpu": "0", "memory": "1e9999Gi"}]}));
    assert_eq!(
        planned(&odd.unwrap(), (broker(1, 0, 0), 1), &[], &[], &[]).unwrap_err().reason,
        RejectionReason::NotEnoughCores
    );
}

#[test]
fn bursts_of_a_peer_bring_no_more_nodes_than_it_may_have_at_a_time() {
    let refused = |max, count, held: &[(&str, u32)]| planned(&policy(max), (broker(16, 0, 1), count), &[], &[], held);
    assert_eq!(refused(3, 3, &[]).as_deref(), Ok("large 3"));
    assert_eq!(refused(3, 2, &[("large", 1)]).as_deref(), Ok("large 2"));
    let rejection = refused(3, 3, &[("large", 1)]).unwrap_err();
    assert_eq!(rejection.reason, RejectionReason::TooManyNodes);
    assert_eq!(
        rejection.message,
        "import.scaleUp of ClusterPeer east leaves 2 of its 3 nodes: with nodes of large, there is room for 2 of the 3 brokers \
         that lack it"
    );
    // Of all groups together, also of one that the policy does not know any more.
    assert_eq!(refused(3, 1, &[("gone", 3)]).unwrap_err().reason, RejectionReason::TooManyNodes);
    assert_eq!(refused(3, 1, &[("gone", u32::MAX), ("small", 1)]).unwrap_err().reason, RejectionReason::TooManyNodes);
    // And of a group.
    let small = |held| planned(&policy(9), (broker(4, 0, 17), 1), &[], &[], held);
    assert_eq!(small(&[]).as_deref(), Ok("large 1"), "17 GiB are too many for a small one");
    let gpus = [Toleration { key: Some("gpu".into()), operator: Some("Exists".into()), ..Toleration::default() }];
    let gpu = |held| planned(&policy(9), (broker(1, 4, 1), 1), &[], &gpus, held).map_err(|rejection| rejection.reason);
    assert_eq!(gpu(&[]), Ok("gpu 1".into()));
    assert_eq!(gpu(&[("gpu", 1)]), Err(RejectionReason::TooManyNodes));
}

#[test]
fn what_could_come_is_told_as_the_most_of_each() {
    let import = |max| ImportPolicy { scale_up: Some(policy(max)), ..ImportPolicy::default() };
    let told = |import: &ImportPolicy, held: &[(&str, u32)]| {
        possible(import, &held.iter().copied().collect()).map(|told| {
            let PossibleCapacity { nodes, cores, memory_mib, gpus, largest_node_cores, .. } = told;
            (nodes, cores, memory_mib >> 10, gpus, largest_node_cores)
        })
    };
    assert_eq!(told(&import(2), &[]), Some((2, 32, 128, 0, 16)), "the largest two, and none that is tainted");
    assert_eq!(told(&import(2), &[("large", 1)]), Some((1, 16, 64, 0, 16)));
    assert_eq!(told(&import(2), &[("large", 1), ("gone", 1)]), None);
    let any = ImportPolicy { allow_scheduling: true, ..import(2) };
    assert_eq!(told(&any, &[]), Some((2, 32, 128, 4, 16)), "a template may tolerate the taint");
    assert_eq!(told(&any, &[("gpu", 1)]), Some((1, 16, 64, 0, 16)));
    let tolerations = vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }];
    assert_eq!(told(&ImportPolicy { tolerations, ..import(1) }, &[]), Some((1, 16, 64, 4, 16)));
    let node_selector = [("pool".to_owned(), "hpc".to_owned())].into();
    assert_eq!(told(&ImportPolicy { node_selector, ..import(9) }, &[]), Some((9, 144, 576, 0, 16)));
    assert_eq!(told(&ImportPolicy::default(), &[]), None);
}

#[test]
fn the_highest_price_and_the_longest_wait_are_told_with_what_could_come() {
    let told = |prices: [Option<&str>; 3]| {
        let mut policy = policy(2);
        for (group, price) in policy.node_groups.iter_mut().zip(prices) {
            group.price = price.map(|text| serde_saphyr::from_str(text).unwrap());
        }
        let told =
            possible(&ImportPolicy { scale_up: Some(policy), ..ImportPolicy::default() }, &BTreeMap::new()).unwrap();
        (told.price.map(|price| serde_json::to_value(price).unwrap()), told.wait_seconds)
    };
    assert_eq!(told([None; 3]).0, None);
    let prices = [Some("{coreHour: \"0.04\"}"), Some("{coreHour: \"0.03\", gpuHour: 2}"), None];
    assert_eq!(told(prices), (Some(json!({"coreHour": "0.04", "gpuHour": "2"})), 600));
    let mut policy = policy(2);
    policy.node_groups[0].price = Some(serde_saphyr::from_str("{coreHour: 1}").unwrap());
    let import = ImportPolicy { scale_up: Some(policy), ..ImportPolicy::default() };
    let all = possible(&import, &[("small", 2)].into()).unwrap();
    assert!(all.nodes == 0 && all.price.is_some(), "whose bursts have brought them all has to know: {all:?}");
}
