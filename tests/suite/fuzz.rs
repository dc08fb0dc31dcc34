//! What is fuzzed by coverage (`tests/fuzz/run`), on input that is known: seeds, words, and whatever broke a rule once.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tributary::clock::{Clock as _, SystemClock};
use tributary_fuzz::{TARGETS, Target};

use crate::generated::repository;

/// For one input, on a machine that does other things.
const LONGEST: Duration = Duration::from_secs(10);

fn replay(target: &Target, data: &[u8], what: &str) {
    let clock = SystemClock::start();
    let begin = clock.mono();
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    let taken = clock.mono().saturating_since(begin);
    assert!(ended.is_ok(), "{}: {what} breaks a rule, see above", target.name);
    assert!(taken < LONGEST, "{}: {what} took {taken:?}", target.name);
}

#[test]
fn seeds_and_what_is_nearly_one_break_no_rule() {
    for target in &TARGETS {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            replay(target, seed, &format!("seed {number}"));
            replay(target, &seed[..seed.len() / 2], &format!("half of seed {number}"));
            for at in (0..seed.len()).step_by(seed.len() / 4 + 1) {
                let mut other = seed.clone();
                other[at] ^= 0x55;
                replay(target, &other, &format!("seed {number} with another byte {at}"));
            }
        }
    }
}

#[test]
fn what_broke_a_rule_once_breaks_none() {
    let mut names: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len());
    let (mut files, mut bytes) = (0, 0);
    for target in &TARGETS {
        let folder = repository().join("tests/fuzz/regressions").join(target.name);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let data = fs::read(entry.path()).unwrap();
            (files, bytes) = (files + 1, bytes + data.len());
            replay(target, &data, &entry.path().display().to_string());
        }
    }
    assert!(
        files <= 40 && bytes <= 100 << 10,
        "{files} regressions of {bytes} bytes: keep one of each fault, and small"
    );
    for entry in fs::read_dir(repository().join("tests/fuzz/regressions")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!names.insert(name.clone()), "{name} is no target");
    }
}
