//! Whole lines from beginning to end, and what holds of each.

use proptest::prelude::*;

use super::*;

/// Runs a line to its end: `jobs` are size, seconds, and the limit that is said; returns when each started.
fn simulate(rules: &Rules, jobs: &[(i64, i64, Option<i64>)], apart: i64) -> Vec<i64> {
    let mut started = vec![None; jobs.len()];
    let mut running: Vec<(i64, Running)> = Vec::new();
    let mut now = 0;
    while started.iter().any(Option::is_none) {
        running.retain(|(end, _)| *end > now);
        let come = |index: usize| i64::try_from(index).unwrap() * apart;
        let line: Vec<_> = (0..jobs.len())
            .filter(|index| started[*index].is_none() && come(*index) <= now)
            .map(|index| {
                let (size, _, limit) = jobs[index];
                waits(u32::try_from(index).unwrap(), size, come(index), limit)
            })
            .collect();
        let seen: Vec<Running> = running.iter().map(|(_, one)| one.clone()).collect();
        let decided = schedule(rules, &seen, &line, at(now));
        assert!(rules.quota.holds(&decided.used), "over quota at {now}: {decided:?}");
        assert_eq!(decided, schedule(rules, &seen, &line, at(now)), "the same again");
        for key in decided.start {
            let (size, lasts, limit) = jobs[key as usize];
            started[key as usize] = Some(now);
            running.push((now + lasts, runs(size, now, foreseen(limit).map(|limit| now + limit))));
        }
        now += 1;
        assert!(now < 100_000, "somebody starves: {started:?}");
    }
    started.into_iter().flatten().collect()
}

#[test]
fn an_endless_stream_of_small_ones_does_not_starve_a_large_one() {
    for limit in [None, Some(40), Some(DEFAULT_DEADLINE_SECONDS)] {
        let mut jobs = vec![(2, 40, limit); 400];
        jobs[3] = (8, 10, limit);
        let started = simulate(&rules(8), &jobs, 5);
        assert!(started[3] <= 15 + 80, "limit {limit:?}: the large one came at 15 and started at {}", started[3]);
    }
    // The large one waits for one that has no limit; those behind it run for long, and say so.
    for limit in [Some(5_000), Some(DEFAULT_DEADLINE_SECONDS)] {
        let mut jobs = vec![(2, 5_000, limit); 9];
        (jobs[0], jobs[1]) = ((2, 40, None), (8, 10, None));
        assert_eq!(simulate(&rules(8), &jobs, 5)[1], 40, "limit {limit:?}");
    }
}

/// Who comes behind a head: size, when, seconds, limit.
type Comer = (i64, i64, i64, Option<i64>);

/// When the head of `size` starts, which came when `running` ran already: size, seconds, limit. Behind it others come.
fn head_among(running: &[(i64, i64, Option<i64>)], size: i64, others: &[Comer]) -> i64 {
    const HEAD: u32 = 0;
    let until = |since: i64, limit| foreseen(limit).map(|limit| since + limit);
    let mut all: Vec<(i64, Running)> =
        running.iter().map(|(size, lasts, limit)| (*lasts, runs(*size, 0, until(0, *limit)))).collect();
    let mut waiting: Vec<(u32, &Comer)> = (1..).zip(others).collect();
    for now in 1.. {
        all.retain(|(end, _)| *end > now);
        let mut line = vec![waits(HEAD, size, 1, None)];
        let come = waiting.iter().filter(|(_, (_, since, ..))| *since <= now);
        line.extend(come.map(|(key, (size, since, _, limit))| waits(*key, *size, *since, *limit)));
        let seen: Vec<Running> = all.iter().map(|(_, one)| one.clone()).collect();
        let decided = schedule(&rules(8), &seen, &line, at(now));
        if decided.start.contains(&HEAD) {
            return now;
        }
        for (_, (size, _, lasts, limit)) in waiting.iter().filter(|(key, _)| decided.start.contains(key)) {
            all.push((now + lasts, runs(*size, now, until(now, *limit))));
        }
        waiting.retain(|(key, _)| !decided.start.contains(key));
        assert!(now < 10_000, "the head starves");
    }
    unreachable!("everything ends")
}

/// Seconds, and a limit: none, the true one, or the one that nobody wrote.
fn lengths(longest: i64) -> impl Strategy<Value = (i64, Option<i64>)> {
    (1..longest, 0..3).prop_map(|(lasts, said)| match said {
        0 => (lasts, None),
        1 => (lasts, Some(lasts)),
        _ => (lasts, Some(DEFAULT_DEADLINE_SECONDS)),
    })
}

/// Runs a line on nodes that hold so many brokers; returns when each started, and that who could never run was never the head.
fn simulate_on_nodes(nodes: i64, jobs: &[(i64, i64)], apart: i64) -> Vec<Option<i64>> {
    let mut started: Vec<Option<i64>> = vec![None; jobs.len()];
    let ever = |index: &usize| jobs[*index].0 <= nodes;
    let mut now = 0;
    while (0..jobs.len()).filter(ever).any(|index| started[index].is_none()) {
        let come = |index: usize| i64::try_from(index).unwrap() * apart;
        let running: Vec<_> = (0..jobs.len())
            .filter_map(|index| Some((jobs[index], started[index]?)))
            .filter(|((_, lasts), since)| since + lasts > now)
            .map(|((size, _), since)| runs(size, since, None))
            .collect();
        let line: Vec<_> = (0..jobs.len())
            .filter(|index| started[*index].is_none() && come(*index) <= now)
            .map(|index| waits(u32::try_from(index).unwrap(), jobs[index].0, come(index), None))
            .collect();
        let taken: i64 = running.iter().map(|one| one.room.brokers).sum();
        let sizes = line.iter().map(|one| (one.key, one.room.brokers)).collect();
        let mut outside = Nodes { all: nodes, free: nodes - taken, sizes };
        let decided = super::super::schedule(&rules(12), &running, &line, &mut outside, at(now));
        assert!(outside.free >= 0, "more than the nodes hold at {now}: {decided:?}");
        assert!(decided.head.is_none_or(|(head, _)| ever(&(head as usize))), "it holds up everybody");
        for key in decided.start {
            started[key as usize] = Some(now);
        }
        now += 1;
        assert!(now < 10_000, "somebody starves: {started:?}");
    }
    started
}

/// When a head of `size` starts beside what runs until known times. `hosted_usage`: others take whatever is open, for ever.
fn head_starts(running: &[(i64, i64)], size: i64, guests: bool) -> i64 {
    let mut others: Vec<Running> = Vec::new();
    for now in 0.. {
        let mut seen: Vec<Running> = running
            .iter()
            .filter(|(_, until)| *until > now)
            .map(|(size, until)| runs(*size, 0, Some(*until)))
            .collect();
        seen.extend(others.clone());
        let decided = schedule(&rules(8), &seen, &[waits(1, size, 0, None)], at(now));
        if !decided.start.is_empty() {
            return now;
        }
        if guests && decided.open.brokers > 0 {
            others.push(Running { room: decided.open, since: at(now), until: None });
        }
    }
    unreachable!("everything ends")
}

proptest! {
    #[test]
    fn whoever_takes_what_is_open_does_not_delay_the_head(
        running in proptest::collection::vec((1..4_i64, 1..20_i64), 2..4), size in 1..9_i64,
    ) {
        let mut taken = 0;
        let running: Vec<_> = running.into_iter().filter(|(size, _)| { taken += size; taken <= 8 }).collect();
        prop_assert_eq!(head_starts(&running, size, true), head_starts(&running, size, false));
    }

    #[test]
    fn whoever_the_empty_nodes_could_hold_starts_and_nobody_else_is_waited_for(
        jobs in proptest::collection::vec((1_i64..12, 1_i64..20), 1..30),
        apart in 0_i64..4,
    ) {
        let started = simulate_on_nodes(6, &jobs, apart);
        for (start, (size, _)) in started.iter().zip(&jobs) {
            prop_assert_eq!(start.is_some(), *size <= 6);
        }
        // As if those that no node could hold were not there.
        let fitting: Vec<_> = jobs.iter().copied().filter(|(size, _)| *size <= 6).collect();
        if apart == 0 {
            let alone = simulate_on_nodes(6, &fitting, 0);
            prop_assert_eq!(started.into_iter().flatten().collect::<Vec<_>>(), alone.into_iter().flatten().collect::<Vec<_>>());
        }
    }

    #[test]
    fn never_over_quota_and_everybody_starts(
        jobs in proptest::collection::vec((1_i64..9, lengths(30)), 1..40),
        apart in 0_i64..4,
        backfill in any::<bool>(),
    ) {
        let jobs: Vec<_> = jobs.into_iter().map(|(size, (lasts, limit))| (size, lasts, limit)).collect();
        simulate(&Rules { backfill, ..rules(8) }, &jobs, apart);
    }

    #[test]
    fn the_head_starts_when_all_that_ran_before_it_has_ended_whoever_comes_after(
        running in proptest::collection::vec((1..5_i64, lengths(30)), 1..5),
        size in 1..9_i64,
        others in proptest::collection::vec((1..4_i64, 2..30_i64, lengths(400)), 0..12),
    ) {
        let mut taken = 0;
        let running: Vec<_> = (running.into_iter())
            .filter(|(size, _)| { taken += size; taken <= 8 })
            .map(|(size, (lasts, limit))| (size, lasts, limit))
            .collect();
        let others: Vec<_> =
            others.into_iter().map(|(size, since, (lasts, limit))| (size, since, lasts, limit)).collect();
        let last = running.iter().map(|(_, lasts, _)| *lasts).max().unwrap_or(1);
        let start = head_among(&running, size, &others);
        prop_assert!(start <= last, "it started at {start}, and the last before it ended at {last}");
        let known = running.iter().all(|(_, _, limit)| foreseen(*limit).is_some());
        prop_assert!(!known || start == head_among(&running, size, &[]), "it was delayed to {start}");
    }

    #[test]
    fn parts_are_never_over_quota_never_empty_and_only_of_who_is_not_behind_a_head(
        sizes in proptest::collection::vec((1_i64..14, any::<bool>()), 1..12),
        taken in 0_i64..9,
        peer in 0_i64..20,
    ) {
        let line: Vec<_> = (1_u32..).zip(&sizes).map(|(key, (size, parts))| {
            Waiting { away: if *parts { Away::Parts } else { Away::Nowhere }, ..waits(key, *size, i64::from(key), None) }
        }).collect();
        let running = [runs(taken, 0, None)];
        let seen = beside(&rules(8), &running, &line, World { full_for: 0, peer });
        prop_assert_eq!(&seen, &beside(&rules(8), &running, &line, World { full_for: 0, peer }), "the same again");
        let size = |key: &u32| line[*key as usize - 1].room.brokers;
        let here: i64 = seen.start.iter().map(|key| seen.parts.get(key).copied().unwrap_or_else(|| size(key))).sum();
        prop_assert!(here + taken == seen.used.brokers && here + taken <= 8);
        let away: i64 = seen.parts.iter().map(|(key, here)| size(key) - here).sum();
        prop_assert!(away <= peer);
        for (key, here) in &seen.parts {
            prop_assert!(*here > 0 && *here < size(key) && line[*key as usize - 1].away == Away::Parts);
            prop_assert!(seen.head.as_ref().is_none_or(|(head, _)| key < head), "nobody is parted past the head");
        }
    }

    #[test]
    fn whoever_is_sent_takes_nothing_here_and_delays_nobody_here(
        sizes in proptest::collection::vec((1_i64..14, any::<bool>(), proptest::option::of(1_i64..50)), 1..12),
        taken in 0_i64..9,
        until in proptest::option::of(10_i64..60),
        peer in 0_i64..30,
    ) {
        let line = |may: bool| -> Vec<_> {
            (1_u32..).zip(&sizes).map(|(key, (size, sendable, limit))| {
                let away = if may && *sendable { Away::Whole } else { Away::Nowhere };
                Waiting { away, ..waits(key, *size, i64::from(key), *limit) }
            }).collect()
        };
        let running = [runs(taken, 0, until)];
        let world = |peer| World { full_for: 0, peer };
        let seen = beside(&rules(8), &running, &line(true), world(peer));
        prop_assert_eq!(&seen, &beside(&rules(8), &running, &line(true), world(peer)), "the same again");
        let size = |key: &u32| sizes[*key as usize - 1].0;
        let once: std::collections::BTreeSet<_> = seen.start.iter().collect();
        prop_assert_eq!(once.len(), seen.start.len(), "nobody starts twice");
        let here: i64 = seen.start.iter().filter(|key| !seen.sent.contains(*key)).map(size).sum();
        prop_assert!(here + taken == seen.used.brokers && here + taken <= 8);
        prop_assert!(seen.sent.iter().map(size).sum::<i64>() <= peer);
        prop_assert!(seen.sent.iter().all(|key| sizes[*key as usize - 1].1 && seen.start.contains(key)));
        prop_assert!(seen.parts.is_empty() && seen.never.iter().all(|(key, _)| !seen.start.contains(key)));
        // Up to the first that would have to wait without peers, everybody starts here all the same.
        let alone = beside(&rules(8), &running, &line(false), world(0));
        let before = |key: &&u32| alone.head.as_ref().is_none_or(|(head, _)| *key < head);
        let stay = alone.start.iter().filter(before).all(|key| seen.start.contains(key) && !seen.sent.contains(key));
        prop_assert!(stay, "{seen:?} {alone:?}");
    }

    #[test]
    fn no_order_of_the_input_matters(
        sizes in proptest::collection::vec((1_i64..9, 0_i64..5, -2_i32..3), 1..30),
        seed in any::<u64>(),
    ) {
        let line: Vec<_> = (0_u32..).zip(&sizes).map(|(key, (size, since, priority))| Waiting {
            priority: *priority,
            ..waits(key, *size, *since, None)
        }).collect();
        let mut shuffled = line.clone();
        let len = shuffled.len();
        for index in 0..len {
            shuffled.swap(index, usize::try_from(seed.rotate_left(u32::try_from(index).unwrap()) % len as u64).unwrap());
        }
        let (a, b) = (schedule(&rules(8), &[], &line, at(9)), schedule(&rules(8), &[], &shuffled, at(9)));
        prop_assert_eq!((a.start, a.head, a.used), (b.start, b.head, b.used));
    }
}
