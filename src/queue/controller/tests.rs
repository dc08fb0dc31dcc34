use super::claims::keep;
use super::*;
use crate::testing::flux_job;

#[test]
fn nothing_is_kept_of_a_namespace_without_jobs() {
    let mut all = BTreeMap::new();
    keep(&mut all, "hpc", Claims::default(), &[Arc::new(flux_job(json!({})))]);
    keep(&mut all, "gone", Claims::default(), &[]);
    assert_eq!(all.into_keys().collect::<Vec<_>>(), ["hpc"]);
}
