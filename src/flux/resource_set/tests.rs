use proptest::prelude::*;
use serde_json::Value;

use super::super::Slot;
use super::*;

#[test]
fn two_slots_of_different_hardware() {
    let map = RankMap::new(vec![
        Slot::root("lake", 4).with_resources(4, 0),
        Slot::burst("lake-burst-0", 3, Some("lake".into())).with_resources(64, 2).with_property("cluster-west"),
        Slot::burst("lake-burst-1", 2, Some("lake".into())).with_resources(4, 0).with_property("cluster-west"),
    ])
    .unwrap();
    insta::assert_json_snapshot!(ResourceSet::new(&map));
}

#[test]
fn no_properties_no_key() {
    let map = RankMap::new(vec![Slot::root("a", 1)]).unwrap();
    assert_eq!(
        ResourceSet::new(&map).to_json(),
        r#"{"version":1,"execution":{"R_lite":[{"rank":"0","children":{"core":"0"}}],"nodelist":["a-0"],"starttime":0.0,"expiration":0.0}}"#
    );
}

/// Ids of an RFC 22 text.
fn ids(text: &Value) -> Vec<u32> {
    let text = text.as_str().unwrap();
    text.split(',')
        .flat_map(|range| {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            low.parse::<u32>().unwrap()..=high.parse().unwrap()
        })
        .collect()
}

proptest! {
    #[test]
    fn every_rank_has_the_resources_of_its_slot(map in super::super::rank_map::tests::any_rank_map()) {
        let json: Value = serde_json::from_str(&ResourceSet::new(&map).to_json()).unwrap();
        let execution = &json["execution"];
        let mut found = BTreeMap::new();
        for group in execution["R_lite"].as_array().unwrap() {
            let children = &group["children"];
            let units = (ids(&children["core"]).len() as u32, children.get("gpu").map_or(0, |gpu| ids(gpu).len() as u32));
            for rank in ids(&group["rank"]) {
                prop_assert!(found.insert(rank, units).is_none(), "rank {} twice", rank);
            }
        }
        prop_assert_eq!(found.len(), map.size() as usize);
        for (slot, ranks) in map.slots_with_ranks() {
            for rank in ranks {
                prop_assert_eq!(found[&rank], (slot.cores, slot.gpus));
                for (property, owners) in execution["properties"].as_object().into_iter().flatten() {
                    prop_assert_eq!(ids(owners).contains(&rank), slot.properties.contains(property));
                }
            }
        }
        let nodes: super::super::Hostlist = execution["nodelist"][0].as_str().unwrap().parse().unwrap();
        prop_assert!(nodes.iter().cloned().eq(map.hosts()));
    }
}

#[test]
fn a_host_list_of_the_users_own_has_equal_brokers() {
    let hosts: super::super::Hostlist = "lake-[0-1],gffw-a-[001-003]".parse().unwrap();
    assert_eq!(
        ResourceSet::of_hosts(&hosts, 4, 1).to_json(),
        r#"{"version":1,"execution":{"R_lite":[{"rank":"0-4","children":{"core":"0-3","gpu":"0"}}],"#.to_owned()
            + r#""nodelist":["lake-[0-1],gffw-a-[001-003]"],"starttime":0.0,"expiration":0.0}}"#
    );
}
