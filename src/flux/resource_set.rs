//! R: which cores and GPUs each rank has.
//!
//! flux-core reads R from `resource.path` on rank 0. A static R lets ranks be declared before they exist, and gives every
//! slot its own cores and GPUs; encoding R on a node would give all ranks that node's.
//!
//! Source: RFC 20 (R version 1) and flux-core `src/common/librlist/rlist.c`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Hostlist, Idset, RankMap};

/// R version 1, ready to be written as JSON.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ResourceSet {
    version: u32,
    execution: Execution,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct Execution {
    #[serde(rename = "R_lite")]
    r_lite: Vec<RankGroup>,
    /// Hosts in rank order: flux-core maps them to the ranks one to one.
    nodelist: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    properties: BTreeMap<String, String>,
    /// 0 means unset, here and in `expiration`.
    starttime: f64,
    expiration: f64,
}

/// The ranks that have equal resources.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct RankGroup {
    rank: String,
    children: Children,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct Children {
    core: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
}

impl ResourceSet {
    /// R of all declared brokers: cores and GPUs of their slots, and the slots' properties.
    pub fn new(map: &RankMap) -> Self {
        let mut groups: Vec<((u32, u32), Idset)> = Vec::new();
        for (slot, ranks) in map.slots_with_ranks() {
            let resources = (slot.cores, slot.gpus);
            match groups.iter_mut().find(|(known, _)| *known == resources) {
                Some((_, group)) => group.insert(ranks),
                None => groups.push((resources, Idset::from(ranks))),
            }
        }
        let r_lite = groups
            .into_iter()
            .map(|((cores, gpus), ranks)| RankGroup {
                rank: ranks.to_string(),
                children: Children {
                    core: Idset::from(0..cores).to_string(),
                    gpu: (gpus > 0).then(|| Idset::from(0..gpus).to_string()),
                },
            })
            .collect();
        let properties =
            map.properties().into_iter().map(|(name, ranks)| (name.to_owned(), ranks.to_string())).collect();
        let nodelist = vec![map.hostlist().to_string()];
        Self { version: 1, execution: Execution { r_lite, nodelist, properties, starttime: 0.0, expiration: 0.0 } }
    }

    /// R of a host list of the user's own, where all brokers are equal.
    pub fn of_hosts(hosts: &Hostlist, cores: u32, gpus: u32) -> Self {
        let count = u32::try_from(hosts.len()).expect("a host list has at most MAX_HOSTS hosts");
        let children = Children {
            core: Idset::from(0..cores).to_string(),
            gpu: (gpus > 0).then(|| Idset::from(0..gpus).to_string()),
        };
        let r_lite = vec![RankGroup { rank: Idset::from(0..count).to_string(), children }];
        let nodelist = vec![hosts.to_string()];
        Self {
            version: 1,
            execution: Execution { r_lite, nodelist, properties: BTreeMap::new(), starttime: 0.0, expiration: 0.0 },
        }
    }

    /// The JSON text of the file that `resource.path` names; one line, without a line feed at its end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and string keys have a JSON form")
    }
}

#[cfg(test)]
mod tests;
