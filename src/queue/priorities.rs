//! PriorityClasses: administrators make them, and a FluxSetup says which of them count in its namespace. Pure.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use serde_json::Value;
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::FluxSetupSpec;
use tributary_api::minicluster::MiniClusterSpec;

/// What the names of Kubernetes' own PriorityClasses begin with.
const OF_KUBERNETES: &str = "system-";

/// The PriorityClasses of a cluster, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    values: BTreeMap<String, i32>,
    /// What those have that name none.
    unnamed: i32,
}

impl Priorities {
    /// These. Of several that are the default, Kubernetes takes the lowest.
    pub fn of<C: Borrow<PriorityClass>>(classes: &[C]) -> Self {
        let classes = || classes.iter().map(Borrow::borrow);
        let defaults = classes().filter(|class| class.global_default == Some(true)).map(|class| class.value);
        Self {
            unnamed: defaults.min().unwrap_or(0),
            values: classes().map(|class| (class.name_any(), class.value)).collect(),
        }
    }

    /// The priority of a FluxJob: by the class that it names, else by that of the pods which its `miniCluster` brings.
    ///
    /// # Errors
    /// There is no such class, or the FluxSetup does not allow it.
    pub fn of_job(&self, job: &FluxJob, setup: &FluxSetupSpec) -> Result<i32, Refused> {
        let pod = job.spec.mini_cluster.get("pod");
        match job.spec.priority_class_name.as_deref() {
            None => {
                let brought = pod.and_then(|pod| pod.get("priorityClassName")).and_then(Value::as_str);
                self.value("spec.miniCluster.pod.priorityClassName", brought, setup)
            }
            named => self.value("spec.priorityClassName", named, setup),
        }
    }

    /// The priority of a MiniCluster: by the class of its pods.
    ///
    /// # Errors
    /// There is no such class, or the FluxSetup does not allow it.
    pub fn of_mini_cluster(&self, spec: &MiniClusterSpec, setup: &FluxSetupSpec) -> Result<i32, Refused> {
        self.value("spec.pod.priorityClassName", spec.pod.priority_class_name.as_deref(), setup)
    }

    fn value(&self, field: &'static str, class: Option<&str>, setup: &FluxSetupSpec) -> Result<i32, Refused> {
        let Some(class) = class.filter(|class| !class.is_empty()) else { return Ok(self.unnamed) };
        let allowed = &setup.priority_classes;
        let is_allowed = match allowed.as_slice() {
            [] => !class.starts_with(OF_KUBERNETES),
            named => named.iter().any(|named| named == class),
        };
        if !is_allowed {
            let which = match allowed.as_slice() {
                [] => format!("none of Kubernetes' own ({OF_KUBERNETES}…) unless spec.priorityClasses names it"),
                named => named.join(", "),
            };
            let why =
                format!("the FluxSetup of this namespace does not allow PriorityClass {class}: it allows {which}");
            return Err(Refused { field, why });
        }
        self.values.get(class).copied().ok_or_else(|| {
            let there: Vec<&str> =
                self.values.keys().map(String::as_str).filter(|name| !name.starts_with(OF_KUBERNETES)).collect();
            let there = if there.is_empty() { "no other either".to_owned() } else { there.join(", ") };
            Refused { field, why: format!("there is no PriorityClass {class} in this cluster; there is {there}") }
        })
    }
}

/// A PriorityClass that counts for nobody here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Refused {
    /// Where it is named.
    pub field: &'static str,
    /// What is wrong, and what there is instead.
    pub why: String,
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn classes(values: &[(&str, i32)]) -> Priorities {
        let class = |(name, value): &(&str, i32)| {
            let class = json!({"metadata": {"name": name}, "value": value, "globalDefault": *name == "usual"});
            serde_json::from_value(class).unwrap()
        };
        Priorities::of::<PriorityClass>(&values.iter().map(class).collect::<Vec<_>>())
    }

    #[test]
    fn only_what_administrators_made_and_allow_raises_anybody() {
        let cluster = classes(&[("high", 1000), ("usual", 10), ("system-node-critical", 2_000_001_000)]);
        let any = FluxSetupSpec::default();
        let some = FluxSetupSpec { priority_classes: vec!["usual".into(), "gone".into()], ..any.clone() };
        let of = |class: Option<&str>, setup| {
            cluster.value("spec.priorityClassName", class, setup).map_err(|refused| refused.to_string())
        };
        assert_eq!((of(None, &any), of(Some(""), &some), of(Some("high"), &any)), (Ok(10), Ok(10), Ok(1000)));
        assert_eq!(Priorities::default().value("f", None, &any), Ok(0));
        for (class, setup, told) in [
            ("high", &some, "does not allow PriorityClass high: it allows usual, gone"),
            ("gone", &some, "there is no PriorityClass gone in this cluster; there is high, usual"),
            ("system-node-critical", &any, "does not allow PriorityClass system-node-critical: it allows none of"),
        ] {
            let why = of(Some(class), setup).unwrap_err();
            assert!(why.starts_with("spec.priorityClassName: ") && why.contains(told), "{why}");
        }
        // What a FluxJob brings is no way around that.
        let job = |spec: Value| FluxJob::new("a", serde_json::from_value(spec).unwrap());
        let brings = json!({"pod": {"priorityClassName": "system-node-critical"}});
        let refused = cluster.of_job(&job(json!({"miniCluster": brings})), &any).unwrap_err();
        assert_eq!(refused.field, "spec.miniCluster.pod.priorityClassName");
        let over = job(json!({"priorityClassName": "high", "miniCluster": brings}));
        assert_eq!(cluster.of_job(&over, &any), Ok(1000), "its own is written over it");
        let own = FluxSetupSpec { priority_classes: vec!["system-node-critical".into()], ..any.clone() };
        assert_eq!(of(Some("system-node-critical"), &own), Ok(2_000_001_000));
    }
}
