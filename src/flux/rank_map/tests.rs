use proptest::prelude::*;

use super::*;

/// Two bursts of different hardware on a root of 2.
fn river() -> RankMap {
    RankMap::new(vec![
        Slot::root("lake", 2).with_resources(4, 0),
        Slot::burst("lake-burst-0", 3, Some("lake".into())).with_resources(8, 1).with_property("cluster-west"),
        Slot::burst("brook", 1, None).with_resources(2, 0),
    ])
    .unwrap()
}

const RIVER: &str = "\
rank-map/1
slot lake max-size=2 cores=4 gpus=0
slot lake-burst-0 max-size=3 cores=8 gpus=1 parent=lake properties=burst-lake-burst-0,cluster-west
slot brook max-size=1 cores=2 gpus=0 properties=burst-brook
";

/// These digests are compared between agents of different versions: they never change. Computed with sha256sum.
#[test]
fn golden_vectors() {
    assert_eq!(river().to_canonical(), RIVER);
    assert_eq!(river().digest().to_string(), "sha256:1e2d002b5e0781efb21ae031daf60c8bce7ec3ea9fcfeb9101014815bef177ae");
    let single = RankMap::new(vec![Slot::root("a", 1)]).unwrap();
    assert_eq!(single.to_canonical(), "rank-map/1\nslot a max-size=1 cores=1 gpus=0\n");
    assert_eq!(single.digest().to_string(), "sha256:47a979f772f3b52930c2ec711722a5205f5b01a22f5ace77da2bb4d2770c2fb6");
}

#[test]
fn ranks_follow_slots_and_hosts() {
    let map = river();
    assert_eq!(map.size(), 6);
    assert_eq!(map.hostlist().to_string(), "lake-[0-1],lake-burst-0-[0-2],brook-0");
    assert_eq!(map.ranks("lake"), Some(0..2));
    assert_eq!(map.ranks("lake-burst-0"), Some(2..5));
    assert_eq!(map.ranks("brook"), Some(5..6));
    assert_eq!(map.ranks("lak"), None);
    assert_eq!(map.slot("brook"), Some(&map.bursts()[1]));
    assert_eq!(map.root().name, "lake");
}

#[test]
fn order_of_properties_means_nothing() {
    let with = |properties: [&str; 3]| {
        let mut slot = Slot::root("a", 1);
        slot.properties = properties.map(str::to_owned).to_vec();
        RankMap::new(vec![slot]).unwrap()
    };
    assert_eq!(with(["x", "y", "x"]), with(["y", "x", "y"]));
}

#[test]
fn what_cannot_run_is_refused() {
    use RankMapError as E;
    let slot = || "s".to_owned();
    let one = |change: fn(&mut Slot)| {
        let mut s = Slot::root("s", 1);
        change(&mut s);
        RankMap::new(vec![s]).unwrap_err()
    };
    assert_eq!(RankMap::new(vec![]), Err(E::Empty));
    for name in ["", "A", "0a", "-a", "a-", "a.b", "a_b", "a b", "a\n", "é", &"a".repeat(64)] {
        assert_eq!(RankMap::new(vec![Slot::root(name, 1)]), Err(E::Name { slot: name.to_owned() }));
    }
    let long = "a".repeat(61);
    assert!(RankMap::new(vec![Slot::root(&long, 10)]).is_ok());
    assert_eq!(RankMap::new(vec![Slot::root(&long, 11)]), Err(E::HostTooLong { host: format!("{long}-10") }));
    assert_eq!(one(|s| s.max_size = 0), E::NoBroker { slot: slot() });
    assert_eq!(one(|s| s.max_size = u32::MAX), E::TooManyBrokers { slot: slot() });
    assert_eq!(one(|s| s.cores = 0), E::Resources { slot: slot(), cores: 0, gpus: 0 });
    assert_eq!(one(|s| s.gpus = u32::MAX), E::Resources { slot: slot(), cores: 1, gpus: u32::MAX });
    assert_eq!(one(|s| s.parent = Some("s".into())), E::Parent { slot: slot(), parent: slot() });
    assert_eq!(one(|s| s.properties = (0..17).map(|i| i.to_string()).collect()), E::TooManyProperties { slot: slot() });
    for property in
        ["", "a b", "a,b", "a!", "a&b", "a'", "\"", "^", "`", "a|b", "(", ")", "é", "a\nb", &"p".repeat(262)]
    {
        let map = RankMap::new(vec![Slot::root("s", 1).with_property(property)]);
        assert_eq!(map, Err(E::Property { slot: slot(), property: property.to_owned() }));
    }
    let twice = vec![Slot::root("s", 1), Slot::burst("s", 1, None)];
    assert_eq!(RankMap::new(twice), Err(E::Duplicate { slot: slot() }));
    let later = vec![Slot::root("a", 1), Slot::burst("s", 1, Some("b".into())), Slot::burst("b", 1, None)];
    assert_eq!(RankMap::new(later), Err(E::Parent { slot: slot(), parent: "b".into() }));
    let full = |last| RankMap::new(vec![Slot::root("a", 10_000), Slot::burst("s", last, None)]);
    assert_eq!(full(6_384).unwrap().size() as usize, MAX_HOSTS);
    assert_eq!(full(6_385), Err(E::TooManyBrokers { slot: slot() }));
    let many = (0..=MAX_SLOTS).map(|i| Slot::root(format!("s{i}"), 1)).collect();
    assert_eq!(RankMap::new(many), Err(E::TooManySlots { count: MAX_SLOTS + 1 }));
}

#[test]
fn every_other_spelling_is_refused() {
    for (from, to) in [
        ("rank-map/1", "rank-map/2"),
        ("rank-map/1\n", "rank-map/1\r\n"),
        ("rank-map/1\n", "\nrank-map/1\n"),
        ("gpus=0\n", "gpus=0\n\n"),
        ("gpus=0\n", "gpus=0 \n"),
        ("gpus=0\n", "gpus=00\n"),
        ("max-size=2", "max-size=+2"),
        ("max-size=2", "max-size=02"),
        ("max-size=2 cores=4", "cores=4 max-size=2"),
        ("cores=4", "cores=-4"),
        ("cores=4", "cores=4294967300"),
        ("slot lake ", "slot  lake "),
        ("slot lake ", "burst lake "),
        ("burst-lake-burst-0,cluster-west", "cluster-west,burst-lake-burst-0"),
        ("burst-lake-burst-0,cluster-west", "burst-lake-burst-0,cluster-west,cluster-west"),
        (" properties=burst-brook", " properties="),
        (" properties=burst-brook", " properties=burst-brook peer=west"),
        ("properties=burst-brook\n", "properties=burst-brook"),
        ("parent=lake ", "parent=brook "),
        ("parent=lake ", "parent= "),
    ] {
        assert!(RIVER.contains(from));
        let text = RIVER.replacen(from, to, 1);
        assert!(RankMap::parse_canonical(&text).is_err(), "{text}");
    }
    assert_eq!(
        RankMap::parse_canonical(""),
        Err(RankMapError::Syntax { line: 1, expected: "\"rank-map/1\", the one form this version reads" })
    );
    let error = RankMap::parse_canonical(&RIVER.replace("brook max", "brook min")).unwrap_err();
    assert!(error.to_string().starts_with("failed to parse the rank map: line 4 is not \"slot NAME"), "{error}");
    let endless = format!("rank-map/1\n{}", "slot a max-size=1 cores=1 gpus=0\n".repeat(MAX_SLOTS + 1));
    assert_eq!(RankMap::parse_canonical(&endless), Err(RankMapError::TooManySlots { count: MAX_SLOTS + 1 }));
}

/// Valid rank maps, names and sizes chosen so that host names come close to each other.
pub(crate) fn any_rank_map() -> impl Strategy<Value = RankMap> {
    let name = "(a|b)(-[01]){0,2}";
    let properties = prop::collection::vec("[a-z@+./:#-]{1,6}", 0..3);
    let slot = (name, 1_u32..13, 1_u32..4, 0_u32..3, any::<prop::sample::Index>(), any::<bool>(), properties);
    prop::collection::vec(slot, 1..7).prop_map(|parts| {
        let mut slots: Vec<Slot> = Vec::new();
        for (name, max_size, cores, gpus, parent, has_parent, properties) in parts {
            if slots.iter().any(|slot| slot.name == name) {
                continue;
            }
            let parent = (has_parent && !slots.is_empty()).then(|| parent.get(&slots).name.clone());
            slots.push(Slot { name, max_size, cores, gpus, parent, properties });
        }
        RankMap::new(slots).unwrap()
    })
}

proptest! {
    #[test]
    fn canonical_text_is_the_map(map in any_rank_map(), other in any_rank_map()) {
        let text = map.to_canonical();
        prop_assert_eq!(&RankMap::parse_canonical(&text).unwrap(), &map);
        prop_assert_eq!(map == other, text == other.to_canonical());
        prop_assert_eq!(map == other, map.digest() == other.digest());
    }

    #[test]
    fn hosts_are_unique_and_ranks_are_their_positions(map in any_rank_map()) {
        let hosts: Vec<String> = map.hosts().collect();
        prop_assert_eq!(hosts.iter().collect::<BTreeSet<_>>().len(), hosts.len());
        prop_assert_eq!(hosts.len(), map.size() as usize);
        for slot in map.slots() {
            for (rank, host) in map.ranks(&slot.name).unwrap().zip(slot.hosts()) {
                prop_assert_eq!(&hosts[rank as usize], &host);
            }
        }
    }

    /// Whoever adds a burst at the end, or lets the last one grow, moves nobody: ranks, hosts and the addresses made of
    /// them stay what they are for all slots before it.
    #[test]
    fn ranks_are_stable_under_adding_a_burst_at_the_end(
        map in any_rank_map(), size in 1..9_u32, cores in 1..5_u32, parented in any::<bool>(),
    ) {
        let parent = parented.then(|| map.root().name.clone());
        let added = Slot::burst("added-at-the-end", size, parent).with_resources(cores, 0);
        let grown = RankMap::new(map.slots().iter().cloned().chain([added]).collect());
        prop_assume!(grown.is_ok());
        let grown = grown.unwrap();
        for (slot, ranks) in map.slots_with_ranks() {
            prop_assert_eq!(grown.ranks(&slot.name), Some(ranks), "{}", slot.name);
        }
        let before: Vec<_> = map.hosts().collect();
        let after: Vec<_> = grown.hosts().collect();
        prop_assert_eq!(&after[..before.len()], &before[..]);
        prop_assert_eq!(grown.ranks("added-at-the-end"), Some(map.size()..map.size() + size));
        prop_assert_ne!(grown.digest(), map.digest());
    }

    #[test]
    fn no_text_panics(cut in 0..RIVER.len(), at in 0..RIVER.len(), insert in "[a-z0-9=, \n-]{0,3}") {
        let mut text = RIVER[..cut.max(at)].to_owned();
        text.insert_str(at, &insert);
        if let Ok(map) = RankMap::parse_canonical(&text) {
            prop_assert_eq!(map.to_canonical(), text);
        }
    }
}
