use super::claims::keep;
use super::*;

#[test]
fn nothing_is_kept_of_a_namespace_without_jobs() {
    let job: FluxJob = serde_json::from_value(json!({
        "apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob", "metadata": {"name": "lammps", "namespace": "hpc"},
        "spec": {"image": "lammps:1", "command": "lmp"},
    }))
    .unwrap();
    let mut all = BTreeMap::new();
    keep(&mut all, "hpc", Claims::default(), &[Arc::new(job)]);
    keep(&mut all, "gone", Claims::default(), &[]);
    assert_eq!(all.into_keys().collect::<Vec<_>>(), ["hpc"]);
}
