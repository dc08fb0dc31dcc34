//! Requests: what a quota has, what a MiniCluster takes of it. Pure.

use std::ops::{AddAssign, SubAssign};

use tributary_api::flux_setup::{PodUsage, Quota, Usage};
use tributary_api::minicluster::{Amount, Container, MiniClusterSpec, ResourceRequirements};
use tributary_contract::NamespaceRoom;
use tributary_render::nodes::Amounts;
use tributary_render::quantity::milli;
use tributary_render::rank_map;

use super::gpus;

/// An amount of everything that a quota counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requests {
    /// MiniClusters.
    pub mini_clusters: i64,
    /// Brokers.
    pub brokers: i64,
    /// Thousandths of a core.
    pub milli_cores: i64,
    /// Bytes.
    pub memory: i64,
    /// GPUs.
    pub gpus: i64,
    /// What of a MiniCluster's cores, memory and GPUs is there once, however many brokers there are.
    pub once: Amounts,
}

/// What a broker counts with if its containers request no cores.
const CORE: i64 = 1000;

/// More than anybody has, and small enough to be added up.
const UNLIMITED: i64 = i64::MAX / 4;

/// More than any MiniCluster takes (64 PiB of memory), and so small that more of them than there are can be taken off a quota.
const LARGEST: i64 = 1 << 56;

impl Requests {
    /// As much as anybody could want.
    pub(crate) const UNLIMITED: Self = Self {
        mini_clusters: UNLIMITED,
        brokers: UNLIMITED,
        milli_cores: UNLIMITED,
        memory: UNLIMITED,
        gpus: UNLIMITED,
        once: Amounts { milli_cores: 0, memory: 0, gpus: 0 },
    };

    /// What the quota at `path` has.
    ///
    /// # Errors
    /// The field that is no amount.
    pub fn of_quota(path: &str, quota: &Quota) -> Result<Self, String> {
        let count = |limit: Option<u32>| limit.map_or(UNLIMITED, i64::from);
        let amount = |field: &str, amount: &Option<Amount>, thousandths: bool| match amount {
            None => Ok(UNLIMITED),
            Some(amount) => {
                let value = milli(&amount.to_string()).map(|milli| if thousandths { milli } else { milli / 1000 });
                let value = value.and_then(|value| i64::try_from(value).ok()).filter(|value| *value >= 0);
                value.map(|value| value.min(UNLIMITED)).ok_or_else(|| {
                    format!(
                        "{path}.{field} is {amount}: write an amount such as {}",
                        if thousandths { "64 or 500m" } else { "256Gi" }
                    )
                })
            }
        };
        Ok(Self {
            mini_clusters: count(quota.mini_clusters),
            brokers: count(quota.brokers),
            milli_cores: amount("cpu", &quota.cpu, true)?,
            memory: amount("memory", &quota.memory, false)?,
            gpus: count(quota.gpus),
            ..Self::default()
        })
    }

    /// What a MiniCluster takes of a quota: all its brokers at the size it starts with, each with what its pod requests, or
    /// with one core if its containers request none; and the pod of its services.
    pub fn of_mini_cluster(spec: &MiniClusterSpec) -> Self {
        let named = gpus::named(spec);
        Self::of_spec(spec, CORE, &|resources| gpus::requested(resources, named))
    }

    /// What a MiniCluster asks of nodes: as [`Self::of_mini_cluster`], but what requests no cores takes none, and GPUs are
    /// those that Flux gives away, since these are what is counted of nodes.
    pub(crate) fn requested(spec: &MiniClusterSpec) -> Self {
        Self::of_spec(spec, 0, &|resources| i64::from(rank_map::gpus(resources)))
    }

    fn of_spec(spec: &MiniClusterSpec, least: i64, gpus: &Gpus<'_>) -> Self {
        let brokers = i64::from(spec.size().max(0));
        Self {
            mini_clusters: 1,
            ..Self::of_pods(of_broker(spec, least, gpus), brokers, of_containers(&spec.services, gpus))
        }
    }

    fn of_pods(each: Amounts, brokers: i64, once: Amounts) -> Self {
        let sum = |each: i64, once: i64| each.saturating_mul(brokers).saturating_add(once).min(LARGEST);
        let Amounts { milli_cores, memory, gpus } = each.zip(once, sum);
        Self { mini_clusters: 0, brokers, milli_cores, memory, gpus, once }
    }

    /// What one of its brokers takes.
    pub(crate) fn broker(&self) -> Amounts {
        let Self { milli_cores, memory, gpus, .. } = *self;
        Amounts { milli_cores, memory, gpus }.zip(self.once, |all, once| (all - once) / self.brokers.max(1))
    }

    /// What it takes with so many brokers.
    pub(crate) fn of_brokers(&self, brokers: i64) -> Self {
        Self { mini_clusters: self.mini_clusters, ..Self::of_pods(self.broker(), brokers, self.once) }
    }

    /// What so many brokers take that come to those it has.
    pub(crate) fn of_more(&self, brokers: i64) -> Self {
        Self::of_pods(self.broker(), brokers, Amounts::default())
    }

    /// How many brokers of `whole`, which has several, there is room for.
    pub(crate) fn brokers_of(&self, whole: &Self) -> i64 {
        if self.mini_clusters < whole.mini_clusters {
            return 0;
        }
        let (each, once) = (whole.broker(), whole.once);
        let of = |have: i64, each: i64, once: i64| match (have - once).max(0) {
            left if each > 0 => left / each,
            _ if once > have.max(0) => 0,
            _ => i64::MAX,
        };
        [
            of(self.brokers, 1, 0),
            of(self.milli_cores, each.milli_cores, once.milli_cores),
            of(self.memory, each.memory, once.memory),
            of(self.gpus, each.gpus, once.gpus),
        ]
        .into_iter()
        .fold(whole.brokers, i64::min)
    }

    /// What there is of everything in both, and not less than nothing.
    pub(crate) fn least(&self, other: &Self) -> Self {
        Self { once: Amounts::default(), ..self.zip(*other, |one, other| one.min(other).max(0)) }
    }

    /// Each amount as `of` makes it of both; what is there once stays.
    fn zip(self, other: Self, of: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            mini_clusters: of(self.mini_clusters, other.mini_clusters),
            brokers: of(self.brokers, other.brokers),
            milli_cores: of(self.milli_cores, other.milli_cores),
            memory: of(self.memory, other.memory),
            gpus: of(self.gpus, other.gpus),
            once: self.once,
        }
    }

    /// Whether all of `part` is there.
    pub(crate) fn holds(&self, part: &Self) -> bool {
        self.first_lack(part).is_none()
    }

    /// What there is too little of: its name, how much is needed, how much is there.
    pub fn first_lack(&self, part: &Self) -> Option<String> {
        let counted = |name: &str, have: i64, need: i64| {
            (need > have && need > 0).then(|| format!("{need} {name} are needed, {} are free", have.max(0)))
        };
        let cores = |milli: i64| milli as f64 / 1000.0;
        let measured = |name: &str, unit: f64, have: i64, need: i64| {
            (need > have && need > 0).then(|| {
                format!("{:.1} {name} are needed, {:.1} are free", need as f64 / unit, have.max(0) as f64 / unit)
            })
        };
        counted("MiniCluster", self.mini_clusters, part.mini_clusters)
            .or_else(|| counted("brokers", self.brokers, part.brokers))
            .or_else(|| {
                (part.milli_cores > self.milli_cores && part.milli_cores > 0).then(|| {
                    format!("{} cores are needed, {} are free", cores(part.milli_cores), cores(self.milli_cores.max(0)))
                })
            })
            .or_else(|| measured("GiB of memory", (1_i64 << 30) as f64, self.memory, part.memory))
            .or_else(|| counted("GPUs", self.gpus, part.gpus))
    }

    /// As peers are told that so much is left in a namespace.
    pub(crate) fn told(&self, namespace: &str) -> NamespaceRoom {
        let left = |amount: i64| (amount < UNLIMITED / 2).then_some(amount.max(0));
        let count = |amount: i64| left(amount).map(|amount| u32::try_from(amount).unwrap_or(u32::MAX));
        let amount = |amount: i64| left(amount).and_then(|amount| u64::try_from(amount).ok());
        NamespaceRoom {
            namespace: namespace.to_owned(),
            mini_clusters: count(self.mini_clusters),
            brokers: count(self.brokers),
            milli_cores: amount(self.milli_cores),
            memory_mib: amount(self.memory).map(|bytes| bytes / (1 << 20)),
            gpus: count(self.gpus),
        }
    }

    /// What [`Self::usage`] told; `None` if that is no amount.
    pub(crate) fn of_usage(told: &Usage) -> Option<Self> {
        let amount = |text: &str, unit: i128| i64::try_from(milli(text)? / unit).ok();
        let (milli_cores, memory) = (amount(&told.cpu, 1)?, amount(&told.memory, 1000)?);
        let once = match &told.services {
            None => Amounts::default(),
            Some(pod) => {
                Amounts { milli_cores: amount(&pod.cpu, 1)?, memory: amount(&pod.memory, 1000)?, gpus: pod.gpus }
            }
        };
        let counts = [told.mini_clusters, told.brokers].iter().all(|count| (0..=UNLIMITED).contains(count));
        let parts = [(once.milli_cores, milli_cores), (once.memory, memory), (once.gpus, told.gpus)];
        if !counts || !parts.iter().all(|(part, all)| (0..=*all).contains(part) && *all <= UNLIMITED) {
            return None;
        }
        let (mini_clusters, brokers, gpus) = (told.mini_clusters, told.brokers, told.gpus);
        Some(Self { mini_clusters, brokers, milli_cores, memory, gpus, once })
    }

    /// As users read it.
    pub fn usage(&self) -> Usage {
        let cpu = |milli: i64| match milli % 1000 {
            0 => format!("{}", milli / 1000),
            _ => format!("{milli}m"),
        };
        let memory = |bytes: i64| match bytes {
            0 => "0".to_owned(),
            bytes if bytes % (1 << 30) == 0 => format!("{}Gi", bytes >> 30),
            bytes if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
            bytes => bytes.to_string(),
        };
        let pod = |pod: Amounts| PodUsage { cpu: cpu(pod.milli_cores), memory: memory(pod.memory), gpus: pod.gpus };
        Usage {
            mini_clusters: self.mini_clusters,
            brokers: self.brokers,
            cpu: cpu(self.milli_cores),
            memory: memory(self.memory),
            gpus: self.gpus,
            services: (self.once != Amounts::default()).then(|| pod(self.once)),
        }
    }
}

/// How GPUs of a container are counted.
type Gpus<'a> = dyn Fn(&ResourceRequirements) -> i64 + 'a;

/// What one of a MiniCluster's brokers takes; `least` thousandths of a core, if its containers request none. Kubernetes sets
/// aside what they request together, or what the container before them does that brings Flux (or only its
/// configuration), if that is more.
///
/// Source: <https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers>
fn of_broker(spec: &MiniClusterSpec, least: i64, gpus: &Gpus<'_>) -> Amounts {
    let (together, first) = (of_containers(&spec.containers, gpus), &spec.flux.container.resources);
    // The cores that Flux gives away are taken, though the pod may request less.
    let declared = spec.containers.iter().filter_map(|one| one.cores);
    let declared = declared.map(|cores| i64::from(cores) * 1000).fold(0, i64::saturating_add);
    let cores = match together.milli_cores.max(declared) {
        none if none <= 0 => least,
        some => some,
    };
    let beyond =
        |resource: &str, unit: i128| spec.pod.resources.get(resource).map_or(0, |amount| in_units(amount, unit));
    let sum = |pod: i64, beyond: i64| pod.saturating_add(beyond).min(UNLIMITED);
    Amounts {
        milli_cores: sum(cores.max(amount(first, "cpu", 1)), beyond("cpu", 1)),
        memory: sum(together.memory.max(amount(first, "memory", 1000)), beyond("memory", 1000)),
        gpus: together.gpus.max(gpus(first)).min(UNLIMITED),
    }
}

/// What a pod of these containers takes.
fn of_containers(containers: &[Container], gpus: &Gpus<'_>) -> Amounts {
    let sum =
        |of: &Gpus<'_>| containers.iter().map(|one| of(&one.resources)).fold(0, i64::saturating_add).min(UNLIMITED);
    Amounts {
        milli_cores: sum(&|resources| amount(resources, "cpu", 1)),
        memory: sum(&|resources| amount(resources, "memory", 1000)),
        gpus: sum(gpus),
    }
}

/// What a container requests, in units of so many thousandths.
fn amount(resources: &ResourceRequirements, resource: &str, unit: i128) -> i64 {
    resources.effective_request(resource).map_or(0, |amount| in_units(amount, unit))
}

/// Nothing, if it is less than nothing, or no amount.
fn in_units(amount: &Amount, unit: i128) -> i64 {
    milli(&amount.to_string()).map_or(0, |milli| i64::try_from(milli.max(0) / unit).unwrap_or(i64::MAX))
}

/// A sum is of many, so nothing in it is there once.
impl AddAssign for Requests {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, |sum, more| sum.saturating_add(more).min(UNLIMITED));
    }
}

impl SubAssign for Requests {
    fn sub_assign(&mut self, other: Self) {
        *self = self.zip(other, i64::saturating_sub);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_requests_no_cores_takes_one_of_the_quota_for_each_broker_and_none_of_the_nodes() {
        for (containers, quota, nodes) in [
            (json!([{}]), 3000, 0),
            (json!([{"resources": {"requests": {"cpu": "250m"}}}]), 750, 750),
            (json!([{"cores": 2}, {}]), 6000, 6000),
            (json!([]), 3000, 0),
        ] {
            let spec: MiniClusterSpec = serde_json::from_value(json!({"size": 3, "containers": containers})).unwrap();
            let cores = (Requests::of_mini_cluster(&spec).milli_cores, Requests::requested(&spec).milli_cores);
            assert_eq!(cores, (quota, nodes), "{containers}");
        }
    }

    #[test]
    fn a_mini_cluster_takes_what_its_containers_request_once_per_broker() {
        let spec: MiniClusterSpec = serde_json::from_value(json!({"size": 3, "containers": [
            {"runFlux": true, "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 2}}},
            {"name": "beside", "resources": {"limits": {"cpu": 1, "memory": "512Mi"}}},
        ]}))
        .unwrap();
        let room = Requests::of_mini_cluster(&spec);
        let expected = Requests {
            mini_clusters: 1,
            brokers: 3,
            milli_cores: 7500,
            memory: 3 * (1536 << 20),
            gpus: 6,
            ..Requests::default()
        };
        assert_eq!(room, expected);
        let usage = room.usage();
        assert_eq!((usage.cpu.as_str(), usage.memory.as_str(), usage.gpus), ("7500m", "4608Mi", 6));
        assert_eq!(Requests::of_usage(&usage), Some(room));
        for wrong in [Usage { cpu: "many".into(), ..usage.clone() }, Usage { gpus: -1, ..usage }, Usage::default()] {
            assert_eq!(Requests::of_usage(&wrong), None, "{wrong:?}");
        }
        let declared: MiniClusterSpec = serde_json::from_value(json!({"containers": [{"cores": 4}]})).unwrap();
        assert_eq!(Requests::of_mini_cluster(&declared).milli_cores, 4000, "Flux gives them away");
    }

    #[test]
    fn the_pod_of_the_services_counts_once_whatever_the_size() {
        let spec = |size: i32, services: serde_json::Value| -> MiniClusterSpec {
            let containers = json!([{"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}]);
            serde_json::from_value(json!({"size": size, "containers": containers, "services": services})).unwrap()
        };
        let services = json!([
            {"name": "db", "cores": 9, "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"amd.com/gpu": 1}}},
            {"name": "cache", "resources": {"limits": {"cpu": 1}}},
        ]);
        let once = Amounts { milli_cores: 1500, memory: 2 << 30, gpus: 1 };
        let of = |size: i32| Requests::of_mini_cluster(&spec(size, services.clone()));
        let four = Requests { mini_clusters: 1, brokers: 4, milli_cores: 9500, memory: 6 << 30, gpus: 1, once };
        assert_eq!((of(4), Requests::requested(&spec(4, services.clone()))), (four, four));
        assert_eq!((four.of_brokers(1), four.of_brokers(6)), (of(1), of(6)));
        let more = Requests { brokers: 2, milli_cores: 4000, memory: 2 << 30, ..Requests::default() };
        assert_eq!(four.of_more(2), more, "there is no second one");
        let room = |milli_cores, gpus| Requests { milli_cores, gpus, ..Requests::UNLIMITED };
        assert_eq!(
            [room(9500, 1), room(9499, 1), room(1499, 1), room(9500, 0)].map(|room| room.brokers_of(&four)),
            [4, 3, 0, 0]
        );
        let idle = Requests::of_mini_cluster(&spec(4, json!([{"name": "db"}])));
        assert_eq!((idle.milli_cores, idle.once), (8000, Amounts::default()), "Flux gives nothing of it away");
    }

    #[test]
    fn a_broker_takes_what_its_first_container_requests_if_that_is_more() {
        let broker = |containers: serde_json::Value, first: serde_json::Value, pod: serde_json::Value| {
            let flux = json!({"container": {"disable": true, "resources": first}});
            let spec = json!({"size": 2, "containers": containers, "flux": flux, "pod": pod});
            Requests::of_mini_cluster(&serde_json::from_value(spec).unwrap()).broker()
        };
        let plain =
            json!([{"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}, {"resources": {"requests": {"cpu": 1}}}]);
        let first = json!({"requests": {"cpu": 8, "memory": "512Mi"}, "limits": {"nvidia.com/gpu": 4}});
        assert_eq!(
            broker(plain.clone(), first.clone(), json!({})),
            Amounts { milli_cores: 8000, memory: 1 << 30, gpus: 4 }
        );
        assert_eq!(broker(plain.clone(), json!({"limits": {"cpu": 1}}), json!({})).milli_cores, 3000);
        assert_eq!(broker(json!([{"cores": 9}]), first, json!({})).milli_cores, 9000);
        assert_eq!(
            broker(json!([{}]), json!({"requests": {"cpu": "10m"}}), json!({})).milli_cores,
            1000,
            "Flux has one"
        );
        // A runtime class costs something besides (Kubernetes' overhead).
        let pod = json!({"resources": {"cpu": "250m", "memory": "128Mi"}});
        assert_eq!(broker(plain, json!({}), pod), Amounts { milli_cores: 3250, memory: 1152 << 20, gpus: 0 });
    }

    #[test]
    fn gpus_count_by_whatever_name_and_to_nodes_those_that_flux_knows() {
        let spec: MiniClusterSpec = serde_json::from_value(json!({"size": 2,
            "containers": [{"resources": {"limits": {"nvidia.com/mig-3g.40gb": 3, "nvidia.com/gpu": 1, "example.com/wafer": 5}}}]}))
        .unwrap();
        assert_eq!((Requests::of_mini_cluster(&spec).gpus, Requests::requested(&spec).gpus), (8, 2));
        let mut named = spec;
        named.pod.annotations.insert(tributary_api::labels::GPU_RESOURCE.into(), "example.com/wafer".into());
        assert_eq!((Requests::of_mini_cluster(&named).gpus, Requests::requested(&named).gpus), (18, 2));
    }

    #[test]
    fn a_part_is_as_many_brokers_as_there_is_room_for() {
        let whole =
            Requests { mini_clusters: 1, brokers: 4, milli_cores: 8000, memory: 4 << 30, ..Requests::default() };
        let room = |brokers, milli_cores| Requests { brokers, milli_cores, ..Requests::UNLIMITED };
        assert_eq!(room(9, 5000).brokers_of(&whole), 2);
        assert_eq!(room(9, 1000).brokers_of(&whole), 0);
        assert_eq!(room(9, 90_000).brokers_of(&whole), 4);
        assert_eq!(Requests { mini_clusters: 0, ..Requests::UNLIMITED }.brokers_of(&whole), 0);
        assert_eq!(Requests { gpus: -1, ..Requests::UNLIMITED }.brokers_of(&whole), 4, "it wants none");
        let part = Requests { brokers: 3, milli_cores: 6000, memory: 3 << 30, ..whole };
        assert_eq!(whole.of_brokers(3), part);
    }

    #[test]
    fn what_is_not_written_is_not_limited_and_what_is_no_amount_is_said() {
        let quota: Quota = serde_json::from_value(json!({"brokers": 4, "cpu": "2500m", "memory": "2Gi"})).unwrap();
        let mut room = Requests::of_quota("spec.quota", &quota).unwrap();
        room -= Requests {
            mini_clusters: 1,
            brokers: 3,
            milli_cores: 2000,
            memory: 1 << 30,
            gpus: 7,
            ..Requests::default()
        };
        let lacks = |part: Requests| room.first_lack(&part).unwrap_or_default();
        assert_eq!(lacks(Requests { brokers: 2, ..Requests::default() }), "2 brokers are needed, 1 are free");
        assert_eq!(lacks(Requests { milli_cores: 1000, ..Requests::default() }), "1 cores are needed, 0.5 are free");
        assert_eq!(
            lacks(Requests { memory: 3 << 30, ..Requests::default() }),
            "3.0 GiB of memory are needed, 1.0 are free"
        );
        assert!(room.holds(&Requests { mini_clusters: 9, gpus: 10_000, ..Requests::default() }));
        let wrong: Quota = serde_json::from_value(json!({"memory": "much"})).unwrap();
        let told = "spec.quota.memory is much: write an amount such as 256Gi";
        assert_eq!(Requests::of_quota("spec.quota", &wrong).unwrap_err(), told);
        room -= Requests { brokers: 9, ..Requests::default() };
        let told = room.told("hpc");
        assert_eq!((told.brokers, told.milli_cores, told.memory_mib), (Some(0), Some(500), Some(1024)));
        assert_eq!((told.mini_clusters, told.gpus), (None, None), "however much of it is taken");
    }
}
