//! What a namespace's ResourceQuotas leave for a burst. Pure.
//!
//! The API server counts pods one by one, when it is too late to say no to the burst as a whole: its brokers would come up
//! one short. Quotas with scopes are left to it, since what they count depends on what it adds to a pod.
//!
//! Source: <https://kubernetes.io/docs/concepts/policy/resource-quotas/>.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tributary_render::quantity::milli;

/// What is asked for: thousandths by the words of quotas.
type Amounts = BTreeMap<String, i128>;

/// What else takes from the same quotas and is not counted there yet: brokers that were admitted before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead(Amounts);

impl Ahead {
    /// So many pods like this one come as well.
    pub(super) fn pods(&mut self, pod: &PodSpec, count: u32) {
        self.add(of_pod(pod), count);
    }

    /// So many of which only the cores are known.
    pub(super) fn unseen_pods(&mut self, cores: u32, count: u32) {
        let cores = ["cpu", "requests.cpu"].map(|word| (word.to_owned(), 1000 * i128::from(cores)));
        self.add(of_pod(&PodSpec::default()).into_iter().chain(cores), count);
    }

    fn add(&mut self, one: impl IntoIterator<Item = (String, i128)>, count: u32) {
        for (word, amount) in one {
            *self.0.entry(word).or_default() += amount * i128::from(count);
        }
    }
}

/// What one word of a quota is charged with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Name of the quota.
    pub quota: String,
    /// Its word: `pods`, `requests.cpu` …
    pub resource: String,
    /// What is left of it.
    pub left: String,
    /// What is needed.
    pub needed: String,
    /// Whether that is there.
    pub fits: bool,
}

/// What `brokers` pods like `pod`, and the objects beside them, are charged by each quota that counts them. `services`: how many
/// are surely new; the headless one may be there already.
pub fn charges(quotas: &[ResourceQuota], pod: &PodSpec, brokers: u32, services: u32, ahead: &Ahead) -> Vec<Charge> {
    let mut wanted = of_pod(pod);
    wanted.values_mut().for_each(|amount| *amount *= i128::from(brokers));
    let one = |word: &str| (word.to_owned(), 1000);
    wanted.extend([
        one("count/jobs.batch"),
        one("count/secrets"),
        one("secrets"),
        one("configmaps"),
        one("count/configmaps"),
    ]);
    if services > 0 {
        wanted.extend(["services", "count/services"].map(|word| (word.to_owned(), 1000 * i128::from(services))));
    }
    let mut charges = Vec::new();
    for quota in quotas.iter().filter(|quota| !is_scoped(quota)) {
        let status = quota.status.clone().unwrap_or_default();
        let (hard, used) = (status.hard.unwrap_or_default(), status.used.unwrap_or_default());
        for (word, limit) in &hard {
            let (Some(wanted), Some(limit)) = (wanted.get(word), milli(&limit.0)) else { continue };
            let used = used.get(word).and_then(|used| milli(&used.0)).unwrap_or(0);
            let ahead = ahead.0.get(word).copied().unwrap_or(0);
            charges.push(Charge {
                quota: quota.metadata.name.clone().unwrap_or_default(),
                resource: word.clone(),
                left: text((limit - used - ahead).max(0)),
                needed: text(*wanted),
                fits: used + ahead + wanted <= limit,
            });
        }
    }
    charges
}

/// The first quota that these would exceed, with what is missing.
pub fn exceeded(quotas: &[ResourceQuota], pod: &PodSpec, brokers: u32, services: u32, ahead: &Ahead) -> Option<String> {
    let Charge { quota, resource, left, needed, .. } =
        charges(quotas, pod, brokers, services, ahead).into_iter().find(|charge| !charge.fits)?;
    Some(format!("ResourceQuota {quota} leaves {left} of {resource}, and the burst needs {needed}"))
}

fn is_scoped(quota: &ResourceQuota) -> bool {
    let spec = quota.spec.as_ref();
    spec.is_some_and(|spec| spec.scope_selector.is_some() || spec.scopes.as_ref().is_some_and(|all| !all.is_empty()))
}

/// One pod: all containers together, or an init container that asks for more, with those before it that run on.
fn of_pod(pod: &PodSpec) -> Amounts {
    let (mut sum, mut most) = (Amounts::new(), Amounts::new());
    let add = |sum: &mut Amounts, one: &Container| {
        of_container(one).into_iter().for_each(|(word, amount)| *sum.entry(word).or_default() += amount);
    };
    let raise = |most: &mut Amounts, all: Amounts| {
        for (word, amount) in all {
            let known = most.entry(word).or_default();
            *known = amount.max(*known);
        }
    };
    for container in pod.init_containers.iter().flatten() {
        let mut at_once = sum.clone();
        add(&mut at_once, container);
        if container.restart_policy.as_deref() == Some("Always") {
            sum = at_once.clone();
        }
        raise(&mut most, at_once);
    }
    pod.containers.iter().for_each(|container| add(&mut sum, container));
    raise(&mut sum, most);
    sum.extend(["pods", "count/pods"].map(|word| (word.to_owned(), 1000)));
    sum
}

fn of_container(container: &Container) -> Amounts {
    let resources = container.resources.clone().unwrap_or_default();
    let limits = resources.limits.unwrap_or_default();
    // What is limited and not asked for is asked for as far as it is limited.
    let requests: BTreeMap<String, Quantity> =
        limits.clone().into_iter().chain(resources.requests.unwrap_or_default()).collect();
    let mut amounts = Amounts::new();
    for (prefix, list) in [("requests.", &requests), ("limits.", &limits)] {
        for (resource, quantity) in list {
            let Some(amount) = milli(&quantity.0) else { continue };
            amounts.insert(format!("{prefix}{resource}"), amount);
            if prefix == "requests." && matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                amounts.insert(resource.clone(), amount);
            }
        }
    }
    amounts
}

fn text(thousandths: i128) -> String {
    if thousandths % 1000 == 0 { (thousandths / 1000).to_string() } else { format!("{thousandths}m") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(hard: serde_json::Value, used: serde_json::Value) -> ResourceQuota {
        serde_json::from_value(json!({"metadata": {"name": "team"}, "status": {"hard": hard, "used": used}})).unwrap()
    }

    fn pod() -> PodSpec {
        serde_json::from_value(json!({
            "containers": [{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}}},
                {"name": "b", "resources": {"requests": {"cpu": "500m"}}}],
            "initContainers": [{"name": "view", "resources": {"requests": {"cpu": "3"}}}],
        }))
        .unwrap()
    }

    #[test]
    fn every_word_of_a_quota_is_held_against_all_brokers() {
        // Three pods of 3 cores (the init container's), 1 GiB and one GPU.
        let table = [
            (json!({"pods": "3"}), json!({}), None),
            (json!({"pods": "3"}), json!({"pods": "1"}), Some("leaves 2 of pods, and the burst needs 3")),
            (json!({"requests.cpu": "9"}), json!({}), None),
            (json!({"cpu": "8500m"}), json!({}), Some("leaves 8500m of cpu, and the burst needs 9")),
            (json!({"limits.cpu": "6"}), json!({}), None),
            (json!({"limits.cpu": "5"}), json!({}), Some("of limits.cpu")),
            (json!({"requests.memory": "2Gi"}), json!({}), Some("of requests.memory")),
            (json!({"requests.nvidia.com/gpu": "2"}), json!({}), Some("of requests.nvidia.com/gpu")),
            (json!({"count/jobs.batch": "1"}), json!({"count/jobs.batch": "1"}), Some("leaves 0 of count/jobs.batch")),
            (json!({"services": "2"}), json!({"services": "1"}), None),
            (json!({"services": "2"}), json!({"services": "2"}), Some("leaves 0 of services, and the burst needs 1")),
            (json!({"count/services": "0"}), json!({}), Some("of count/services")),
            (json!({"persistentvolumeclaims": "0"}), json!({}), None),
        ];
        for (hard, used, expected) in table {
            let found = exceeded(&[quota(hard.clone(), used)], &pod(), 3, 1, &Ahead::default());
            match expected {
                None => assert_eq!(found, None, "{hard}"),
                Some(part) => assert!(found.clone().unwrap_or_default().contains(part), "{hard}: {found:?}"),
            }
        }
    }

    #[test]
    fn who_makes_no_service_needs_no_room_for_one() {
        let none = quota(json!({"services": "0", "count/services": "0"}), json!({}));
        assert_eq!(exceeded(&[none], &pod(), 3, 0, &Ahead::default()), None);
    }

    #[test]
    fn what_was_promised_before_counts_and_scoped_quotas_are_left_alone() {
        let tight = quota(json!({"pods": "5", "requests.cpu": "12"}), json!({}));
        let beside = |pods, cores| {
            let mut ahead = Ahead::default();
            ahead.unseen_pods(cores, pods);
            exceeded(std::slice::from_ref(&tight), &pod(), 3, 1, &ahead)
        };
        assert_eq!(beside(1, 3), None);
        assert!(beside(3, 0).is_some() && beside(1, 4).is_some());
        let mut ahead = Ahead::default();
        ahead.pods(&pod(), 2);
        for (word, hard, fits) in
            [("requests.nvidia.com/gpu", "5", true), ("requests.nvidia.com/gpu", "4", false), ("memory", "4Gi", false)]
        {
            let found = exceeded(&[quota(json!({word: hard}), json!({}))], &pod(), 3, 1, &ahead);
            assert_eq!(found.is_none(), fits, "{word} {hard}: {found:?}");
        }
        let mut scoped = quota(json!({"pods": "0"}), json!({}));
        scoped.spec = serde_json::from_value(json!({"scopes": ["BestEffort"]})).unwrap();
        assert_eq!(exceeded(&[scoped], &pod(), 3, 1, &Ahead::default()), None);
    }
}
