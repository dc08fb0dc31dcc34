//! PriorityClasses: administrators make them, and a FluxSetup says which of them count in its namespace. Pure.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;

use crate::api::flux_setup::FluxSetupSpec;

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

    /// The priority of who names this class in `field`.
    ///
    /// # Errors
    /// There is no such class, or the FluxSetup does not allow it.
    pub fn value(&self, field: &str, class: Option<&str>, setup: &FluxSetupSpec) -> Result<i32, String> {
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
            return Err(format!(
                "{field}: the FluxSetup of this namespace does not allow PriorityClass {class}: it allows {which}"
            ));
        }
        self.values.get(class).copied().ok_or_else(|| {
            let there: Vec<&str> =
                self.values.keys().map(String::as_str).filter(|name| !name.starts_with(OF_KUBERNETES)).collect();
            let there = if there.is_empty() { "no other either".to_owned() } else { there.join(", ") };
            format!("{field}: there is no PriorityClass {class} in this cluster; there is {there}")
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::queue) fn classes(values: &[(&str, i32)]) -> Priorities {
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
        let of = |class: Option<&str>, setup| cluster.value("spec.priorityClassName", class, setup);
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
        let own = FluxSetupSpec { priority_classes: vec!["system-node-critical".into()], ..any.clone() };
        assert_eq!(of(Some("system-node-critical"), &own), Ok(2_000_001_000));
    }
}
