//! Room: what a quota has, what a MiniCluster takes of it. Pure.

use std::ops::{AddAssign, SubAssign};

use crate::api::flux_setup::{Quota, Usage};
use crate::api::minicluster::{Amount, MiniClusterSpec};
use crate::contract::NamespaceRoom;
use crate::render::quantity::milli;
use crate::render::rank_map::gpus;

/// An amount of everything that a quota counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
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
}

/// What a broker has in a rank map if its containers request no cores.
const CORE: i64 = 1000;

/// More than anybody has, and small enough to be added up.
const UNLIMITED: i64 = i64::MAX / 4;

impl Room {
    /// As much as anybody could want.
    pub const UNLIMITED: Self = Self {
        mini_clusters: UNLIMITED,
        brokers: UNLIMITED,
        milli_cores: UNLIMITED,
        memory: UNLIMITED,
        gpus: UNLIMITED,
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
        })
    }

    /// What a MiniCluster takes of a quota: all its brokers at the size it starts with, each with what its containers request,
    /// and at least the core that Flux gives away of it.
    pub fn of_mini_cluster(spec: &MiniClusterSpec) -> Self {
        let requested = Self::requested(spec);
        let cores =
            if requested.milli_cores == 0 { CORE.saturating_mul(requested.brokers) } else { requested.milli_cores };
        Self { milli_cores: cores.min(UNLIMITED), ..requested }
    }

    /// What a MiniCluster asks of nodes: as [`Self::of_mini_cluster`], but what requests no cores takes none.
    pub fn requested(spec: &MiniClusterSpec) -> Self {
        let brokers = i64::from(spec.size().max(0));
        let sum = |resource: &str| {
            let amounts = spec.containers.iter().filter_map(|one| one.resources.effective_request(resource));
            let all: i128 = amounts.filter_map(|amount| milli(&amount.to_string())).map(|milli| milli.max(0)).sum();
            i64::try_from(all).unwrap_or(UNLIMITED)
        };
        // The cores that Flux gives away are taken, though the pod may request less.
        let declared: i64 =
            spec.containers.iter().filter_map(|one| one.cores).map(|cores| i64::from(cores) * 1000).sum();
        let times = |one: i64| one.saturating_mul(brokers).min(UNLIMITED);
        Self {
            mini_clusters: 1,
            brokers,
            milli_cores: times(sum("cpu").max(declared)),
            memory: times(sum("memory") / 1000),
            gpus: times(spec.containers.iter().map(|one| i64::from(gpus(&one.resources))).sum()),
        }
    }

    /// What so many of its brokers take.
    pub fn of_brokers(&self, brokers: i64) -> Self {
        let all = self.brokers.max(1);
        let share = |amount: i64| (amount / all).saturating_mul(brokers).min(UNLIMITED);
        Self {
            mini_clusters: self.mini_clusters,
            brokers,
            milli_cores: share(self.milli_cores),
            memory: share(self.memory),
            gpus: share(self.gpus),
        }
    }

    /// How many brokers of `whole`, which has several, there is room for.
    pub fn brokers_of(&self, whole: &Self) -> i64 {
        if self.mini_clusters < whole.mini_clusters {
            return 0;
        }
        let each = whole.of_brokers(1);
        let of = |have: i64, each: i64| if each > 0 { have.max(0) / each } else { i64::MAX };
        [
            of(self.brokers, 1),
            of(self.milli_cores, each.milli_cores),
            of(self.memory, each.memory),
            of(self.gpus, each.gpus),
        ]
        .into_iter()
        .fold(whole.brokers, i64::min)
    }

    /// What there is of everything in both, and not less than nothing.
    pub fn least(&self, other: &Self) -> Self {
        let least = |a: i64, b: i64| a.min(b).max(0);
        Self {
            mini_clusters: least(self.mini_clusters, other.mini_clusters),
            brokers: least(self.brokers, other.brokers),
            milli_cores: least(self.milli_cores, other.milli_cores),
            memory: least(self.memory, other.memory),
            gpus: least(self.gpus, other.gpus),
        }
    }

    /// Whether all of `part` is there.
    pub fn holds(&self, part: &Self) -> bool {
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
    pub fn told(&self, namespace: &str) -> NamespaceRoom {
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
    pub fn of_usage(told: &Usage) -> Option<Self> {
        let amount = |text: &str, unit: i128| i64::try_from(milli(text)? / unit).ok();
        let room = Self {
            mini_clusters: told.mini_clusters,
            brokers: told.brokers,
            milli_cores: amount(&told.cpu, 1)?,
            memory: amount(&told.memory, 1000)?,
            gpus: told.gpus,
        };
        let amounts = [room.mini_clusters, room.brokers, room.milli_cores, room.memory, room.gpus];
        amounts.iter().all(|amount| (0..=UNLIMITED).contains(amount)).then_some(room)
    }

    /// As users read it.
    pub fn usage(&self) -> Usage {
        let cpu = match self.milli_cores % 1000 {
            0 => format!("{}", self.milli_cores / 1000),
            _ => format!("{}m", self.milli_cores),
        };
        let memory = match self.memory {
            0 => "0".to_owned(),
            bytes if bytes % (1 << 30) == 0 => format!("{}Gi", bytes >> 30),
            bytes if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
            bytes => bytes.to_string(),
        };
        Usage { mini_clusters: self.mini_clusters, brokers: self.brokers, cpu, memory, gpus: self.gpus }
    }
}

impl AddAssign for Room {
    fn add_assign(&mut self, other: Self) {
        let sum = |a: i64, b: i64| a.saturating_add(b).min(UNLIMITED);
        self.mini_clusters = sum(self.mini_clusters, other.mini_clusters);
        self.brokers = sum(self.brokers, other.brokers);
        self.milli_cores = sum(self.milli_cores, other.milli_cores);
        self.memory = sum(self.memory, other.memory);
        self.gpus = sum(self.gpus, other.gpus);
    }
}

impl SubAssign for Room {
    fn sub_assign(&mut self, other: Self) {
        self.mini_clusters -= other.mini_clusters;
        self.brokers -= other.brokers;
        self.milli_cores -= other.milli_cores;
        self.memory -= other.memory;
        self.gpus -= other.gpus;
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
            let cores = (Room::of_mini_cluster(&spec).milli_cores, Room::requested(&spec).milli_cores);
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
        let room = Room::of_mini_cluster(&spec);
        let expected = Room { mini_clusters: 1, brokers: 3, milli_cores: 7500, memory: 3 * (1536 << 20), gpus: 6 };
        assert_eq!(room, expected);
        let usage = room.usage();
        assert_eq!((usage.cpu.as_str(), usage.memory.as_str(), usage.gpus), ("7500m", "4608Mi", 6));
        assert_eq!(Room::of_usage(&usage), Some(room));
        for wrong in [Usage { cpu: "many".into(), ..usage.clone() }, Usage { gpus: -1, ..usage }, Usage::default()] {
            assert_eq!(Room::of_usage(&wrong), None, "{wrong:?}");
        }
        let declared: MiniClusterSpec = serde_json::from_value(json!({"containers": [{"cores": 4}]})).unwrap();
        assert_eq!(Room::of_mini_cluster(&declared).milli_cores, 4000, "Flux gives them away");
    }

    #[test]
    fn a_part_is_as_many_brokers_as_there_is_room_for() {
        let whole = Room { mini_clusters: 1, brokers: 4, milli_cores: 8000, memory: 4 << 30, gpus: 0 };
        let room = |brokers, milli_cores| Room { brokers, milli_cores, ..Room::UNLIMITED };
        assert_eq!(room(9, 5000).brokers_of(&whole), 2);
        assert_eq!(room(9, 1000).brokers_of(&whole), 0);
        assert_eq!(room(9, 90_000).brokers_of(&whole), 4);
        assert_eq!(Room { mini_clusters: 0, ..Room::UNLIMITED }.brokers_of(&whole), 0);
        assert_eq!(Room { gpus: -1, ..Room::UNLIMITED }.brokers_of(&whole), 4, "it wants none");
        let part = Room { mini_clusters: 1, brokers: 3, milli_cores: 6000, memory: 3 << 30, gpus: 0 };
        assert_eq!(whole.of_brokers(3), part);
    }

    #[test]
    fn what_is_not_written_is_not_limited_and_what_is_no_amount_is_said() {
        let quota: Quota = serde_json::from_value(json!({"brokers": 4, "cpu": "2500m", "memory": "2Gi"})).unwrap();
        let mut room = Room::of_quota("spec.quota", &quota).unwrap();
        room -= Room { mini_clusters: 1, brokers: 3, milli_cores: 2000, memory: 1 << 30, gpus: 7 };
        let lacks = |part: Room| room.first_lack(&part).unwrap_or_default();
        assert_eq!(lacks(Room { brokers: 2, ..Room::default() }), "2 brokers are needed, 1 are free");
        assert_eq!(lacks(Room { milli_cores: 1000, ..Room::default() }), "1 cores are needed, 0.5 are free");
        assert_eq!(lacks(Room { memory: 3 << 30, ..Room::default() }), "3.0 GiB of memory are needed, 1.0 are free");
        assert!(room.holds(&Room { mini_clusters: 9, gpus: 10_000, ..Room::default() }));
        let wrong: Quota = serde_json::from_value(json!({"memory": "much"})).unwrap();
        let told = "spec.quota.memory is much: write an amount such as 256Gi";
        assert_eq!(Room::of_quota("spec.quota", &wrong).unwrap_err(), told);
        room -= Room { brokers: 9, ..Room::default() };
        let told = room.told("hpc");
        assert_eq!((told.brokers, told.milli_cores, told.memory_mib), (Some(0), Some(500), Some(1024)));
        assert_eq!((told.mini_clusters, told.gpus), (None, None), "however much of it is taken");
    }
}
