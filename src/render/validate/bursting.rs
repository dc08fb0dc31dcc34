//! Rules of `flux.bursting`, on the root and on the side of a burst.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tributary_api::budget::BurstBudget;
use tributary_api::duration;
use tributary_api::minicluster::{
    BurstCluster, BurstMode, BurstNetwork, BurstNetworkType, LeadBroker, MiniCluster, MiniClusterSpec, OnDemand,
    ResourceRequirements, WaitFor,
};
use tributary_api::names;
use tributary_api::selector::{PeerPreference, PeerSelector};
use tributary_flux::{Hostlist, RankMap, Topology};

use super::{Problem, Problems, reason, resources};
use crate::context::{Context, HostedSide};
use crate::model::{Role, Wait};
use crate::quantity::milli;
use crate::rank_map::{rank_map_of, topology};

/// Kinds of addresses a node may show (`core/v1` NodeAddressType).
const ADDRESS_TYPES: [&str; 5] = ["ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS", "Hostname"];

const CLUSTERS: &str = "spec.flux.bursting.clusters";

/// The instance that the MiniCluster is part of.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) role: Role,
    pub(super) rank_map: RankMap,
}

pub(super) fn problems(name: &str, spec: &MiniClusterSpec) -> Vec<Problem> {
    let bursting = &spec.flux.bursting;
    let mut problems = Vec::new();
    if spec.flux.hostlist().is_some() && !bursting.clusters.is_empty() {
        let message = "hostlist and clusters exclude each other: the host list of clusters is made from their names";
        problems.push(Problem::new("spec.flux.bursting.hostlist", reason::CONFLICTING_FIELDS, message));
    }
    if bursting.lead_broker.address.is_some() && spec.flux.lead_broker.address.is_some() {
        let message = "leadBroker is written twice, under flux and under flux.bursting: keep the latter";
        problems.push(Problem::new("spec.flux.leadBroker", reason::CONFLICTING_FIELDS, message));
    }
    let lead = spec.flux.lead_broker();
    let root = lead.map_or(Some(name), |lead| lead.name.as_deref()).unwrap_or_default();
    let root_size = lead.map_or(Some(spec.size()), |lead| lead.size).unwrap_or_default();
    let claims = resources::Claims::of(&spec.pod);
    for (index, (slot, cluster)) in spec.bursts(root).enumerate() {
        let path = format!("{CLUSTERS}[{index}]");
        problems.extend(cluster_problems(&path, &slot, cluster, root_size));
        // What is named has nothing of the root's, so that it is right or wrong by itself.
        let own = cluster.resources.over(&ResourceRequirements::default());
        problems.extend(resources::problems(&path, &own, &claims));
    }
    problems.extend(budget_problems("spec.flux.bursting.budget", &bursting.budget));
    problems.extend(lead.into_iter().flat_map(lead_problems));
    problems.extend(network_problems(&bursting.network));
    if lead.is_some_and(|lead| lead.name.as_deref() == Some(name)) {
        let message = "the root named by leadBroker has this name: a burst needs another one, for its hosts have the names \
                       of other ranks";
        problems.push(Problem::new("metadata.name", reason::INVALID_BURSTING, message));
    }
    let bursts = lead.is_some() || !bursting.clusters.is_empty();
    if let (true, Ok(Topology::Custom(uri))) = (bursts, topology(spec)) {
        let message = format!(
            "topology {} would connect brokers across clusters that cannot reach each other: with bursting, leave it out \
             for one link per burst, or write kary:0 for one per broker",
            uri.as_str()
        );
        problems.push(Problem::new("spec.flux.topology", reason::CONFLICTING_FIELDS, message));
    }
    problems
}

fn cluster_problems(path: &str, slot: &str, cluster: &BurstCluster, root_size: i32) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |field: &str, reason, message: String| {
        problems.push(Problem::new(format!("{path}.{field}"), reason, message));
    };
    if let Err(error) = names::validate("burst", slot) {
        refuse("name", reason::INVALID_NAME, error.to_string());
    }
    let (size, max_size) = (cluster.size(root_size), cluster.max_size(root_size));
    if size < 1 {
        refuse("size", reason::INVALID_SIZE, format!("size is {size}: a burst has at least one broker"));
    } else if max_size < size {
        let message = format!("maxSize {max_size} is less than size {size}: raise maxSize, or lower size");
        refuse("maxSize", reason::INVALID_SIZE, message);
    }
    if cluster.selector.is_some() && !cluster.peers().is_empty() {
        let message = "peers are named and selected by labels: write one or the other".to_owned();
        refuse("selector", reason::CONFLICTING_FIELDS, message);
    }
    if let Some(problem) = cluster.selector.as_ref().and_then(PeerSelector::problem) {
        refuse("selector", reason::INVALID_VALUE, problem);
    }
    if !cluster.prefer.is_empty() && !cluster.peers().is_empty() {
        let message = "peers are named, in the order in which they are preferred: leave prefer out, or name none";
        refuse("prefer", reason::CONFLICTING_FIELDS, message.to_owned());
    }
    for (position, PeerPreference { weight, peers }) in cluster.prefer.iter().enumerate() {
        if !(1..=100).contains(weight) {
            let message = format!("weight is {weight}: write 1 to 100");
            refuse(&format!("prefer[{position}].weight"), reason::INVALID_VALUE, message);
        }
        if let Some(problem) = peers.problem() {
            refuse(&format!("prefer[{position}]"), reason::INVALID_VALUE, problem);
        }
    }
    for (field, value, least) in [("cores", cluster.cores, 1), ("gpus", cluster.gpus, 0)] {
        if let Some(value) = value.filter(|value| *value < least) {
            refuse(field, reason::INVALID_VALUE, format!("{field} is {value}: write {least} or more, or leave it out"));
        }
    }
    problems.extend(budget_problems(&format!("{path}.budget"), &cluster.budget));
    problems.extend(demand_problem(path, cluster));
    problems
}

fn demand_problem(path: &str, cluster: &BurstCluster) -> Option<Problem> {
    if let BurstMode::Unknown(word) = cluster.mode {
        return Some(Problem::unknown_word(format!("{path}.mode"), word, &["Always", "OnDemand"]));
    }
    let path = format!("{path}.onDemand");
    if cluster.on_demand().is_none() {
        let message =
            "onDemand says nothing about a burst that runs always: write mode: OnDemand besides, or leave it out";
        let written = cluster.on_demand != OnDemand::default();
        return written.then(|| Problem::new(path, reason::CONFLICTING_FIELDS, message.to_owned()));
    }
    let error = duration::parse(cluster.on_demand.max_idle.as_ref()?).err()?;
    Some(Problem::new(format!("{path}.maxIdle"), reason::INVALID_VALUE, error.to_string()))
}

fn budget_problems(path: &str, budget: &BurstBudget) -> Vec<Problem> {
    // What costs cannot say is refused where it is read.
    let BurstBudget { max_duration, broker_hours, cost: _, warn_before, renewal: _ } = budget;
    let durations = [("maxDuration", max_duration), ("warnBefore", warn_before)];
    let durations = durations.into_iter().filter_map(|(field, text)| {
        let error = duration::parse(text.as_ref()?).err()?;
        Some((field, error.to_string()))
    });
    let hours = broker_hours.as_ref().filter(|hours| milli(&hours.to_string()).is_none_or(|hours| hours < 0));
    let hours = hours.map(|hours| ("brokerHours", format!("{hours} is no number of hours: write 0 or more")));
    let problem = |(field, message)| Problem::new(format!("{path}.{field}"), reason::INVALID_VALUE, message);
    durations.chain(hours).map(problem).collect()
}

fn network_problems(network: &BurstNetwork) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let BurstNetworkType::Unknown(word) = network.kind {
        let known = ["NodePort", "LoadBalancer", "Tunnel"];
        problems.push(Problem::unknown_word("spec.flux.bursting.network.type", word, &known));
    }
    let mut refuse = |field: &str, message: String| {
        problems.push(Problem::new(format!("spec.flux.bursting.network.{field}"), reason::INVALID_VALUE, message));
    };
    let mut words = |field: &str, written: &[String], known: &[&str]| {
        for (position, word) in written.iter().enumerate() {
            if !known.contains(&word.as_str()) {
                refuse(&format!("{field}[{position}]"), format!("{word:?} is none of {}", known.join(", ")));
            }
        }
    };
    words("preferredAddressTypes", &network.preferred_address_types, &ADDRESS_TYPES);
    words("ipFamilies", &network.ip_families, &["IPv4", "IPv6"]);
    if let Some(port) = network.port.filter(|port| !(1..=65535).contains(port)) {
        refuse("port", format!("{port} is no port: 1 to 65535 are"));
    }
    let address = network.address.as_deref().unwrap_or_default();
    if !address.is_empty() && address.parse::<IpAddr>().is_err() && !is_host_name(address) {
        let message = format!("{address:?} is no host name or IP address: write it without scheme, port and brackets");
        refuse("address", message);
    }
    problems
}

/// RFC 1123, in either case, perhaps with a dot at the end.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        label.len() <= 63
            && edge(label.chars().next())
            && edge(label.chars().next_back())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    // What has digits and dots only is meant to be an IP address.
    text.len() <= 253
        && text.contains(|c: char| c.is_ascii_alphabetic())
        && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

fn lead_problems(lead: &LeadBroker) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |field: &str, reason, message: String| {
        problems.push(Problem::new(format!("spec.flux.bursting.leadBroker.{field}"), reason, message));
    };
    match lead.name.as_deref() {
        None => {
            let message = "name is missing: write the name of the root MiniCluster".to_owned();
            refuse("name", reason::MISSING_FIELD, message);
        }
        Some(name) => {
            if let Err(error) = names::validate("root MiniCluster", name) {
                refuse("name", reason::INVALID_NAME, error.to_string());
            }
        }
    }
    match lead.size {
        None => {
            let message = "size is missing: write the number of the root's own brokers, its maxSize".to_owned();
            refuse("size", reason::MISSING_FIELD, message);
        }
        Some(size) if size < 1 => {
            refuse("size", reason::INVALID_SIZE, format!("size is {size}: the root has at least one broker"));
        }
        Some(_) => {}
    }
    if !(1..=65535).contains(&lead.port()) {
        refuse("port", reason::INVALID_VALUE, format!("{} is no port: 1 to 65535 are", lead.port()));
    }
    let address = lead.address.as_deref().unwrap_or_default();
    if address.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '[' | ']')) {
        let message = format!("{address:?} is no host name or IP address: write it without scheme, port and brackets");
        refuse("address", reason::INVALID_VALUE, message);
    }
    problems
}

/// The user's own host list.
pub(super) fn hostlist(name: &str, spec: &MiniClusterSpec) -> Result<Option<Hostlist>, Problem> {
    let Some(text) = spec.flux.hostlist() else { return Ok(None) };
    let refuse = |reason, message| Problem::new("spec.flux.bursting.hostlist", reason, message);
    let hosts: Hostlist = text
        .parse()
        .map_err(|error: tributary_flux::HostlistError| refuse(reason::INVALID_VALUE, error.to_string()))?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = hosts.iter().find(|host| !seen.insert(*host)) {
        let message = format!("{twice} is listed twice: a host has one rank");
        return Err(refuse(reason::INVALID_BURSTING, message));
    }
    match own_hosts(name, spec, &hosts) {
        Some(problem) => Err(problem),
        None => Ok(Some(hosts)),
    }
}

/// Whether the brokers of this MiniCluster are in the user's host list: Flux refuses any other.
fn own_hosts(name: &str, spec: &MiniClusterSpec, hosts: &Hostlist) -> Option<Problem> {
    let refuse = |message| Some(Problem::new("spec.flux.bursting.hostlist", reason::INVALID_BURSTING, message));
    let lead = names::host(name, 0);
    if spec.flux.lead_broker().is_none() && hosts.iter().next() != Some(&lead) {
        return refuse(format!("the first host must be {lead}: it is rank 0, the lead broker"));
    }
    let listed: BTreeSet<&str> = hosts.iter().map(String::as_str).collect();
    let size = usize::try_from(spec.size()).unwrap_or(0);
    let missing = (0..size).map(|index| names::host(name, index)).find(|host| !listed.contains(host.as_str()))?;
    refuse(format!("{missing} is missing: a broker whose host is not listed has no rank"))
}

/// Role and rank map: of the HostedBurst that owns the MiniCluster, else what the spec says.
pub(super) fn instance(mini_cluster: &MiniCluster, context: &Context) -> Result<Instance, Problems> {
    if let Some(hosted) = &context.hosted {
        return hosted_instance(mini_cluster, hosted, &context.cluster_domain).map_err(Problems::from);
    }
    let name = mini_cluster.metadata.name.as_deref().unwrap_or_default();
    let spec = &mini_cluster.spec;
    let rank_map = rank_map_of(mini_cluster)?;
    let Some(lead) = spec.flux.lead_broker() else { return Ok(Instance { role: Role::Root, rank_map }) };
    // With a host list of the user's own, the hosts are the user's to count.
    if spec.flux.hostlist().is_none() {
        enough_ranks(name, spec.size(), &rank_map)?;
    }
    let role = Role::Burst {
        host: lead.address.clone().unwrap_or_default(),
        port: u16::try_from(lead.port()).unwrap_or_default(),
    };
    Ok(Instance { role, rank_map })
}

fn hosted_instance(mini_cluster: &MiniCluster, hosted: &HostedSide, domain: &str) -> Result<Instance, Problem> {
    let name = mini_cluster.metadata.name.as_deref().unwrap_or_default();
    if name != hosted.slot {
        let message = format!("this MiniCluster is hosted for the burst {}, and must have its name", hosted.slot);
        return Err(Problem::new("metadata.name", reason::INVALID_BURSTING, message));
    }
    enough_ranks(name, mini_cluster.spec.size(), &hosted.rank_map)?;
    // In full: the search domains of a pod depend on the user's dnsPolicy.
    let namespace = mini_cluster.metadata.namespace.as_deref().unwrap_or_default();
    let host = format!("{}.{namespace}.svc.{domain}", hosted.lead_service);
    let role = Role::Burst { host, port: hosted.lead_port };
    Ok(Instance { role, rank_map: hosted.rank_map.clone() })
}

fn enough_ranks(slot: &str, size: i32, rank_map: &RankMap) -> Result<(), Problem> {
    let Some(declared) = rank_map.bursts().iter().find(|burst| burst.name == slot) else {
        let message = format!("the root declares no burst {slot}: its brokers have no ranks");
        return Err(Problem::new("metadata.name", reason::INVALID_BURSTING, message));
    };
    if i64::from(size) > i64::from(declared.max_size) {
        let message = format!("size {size} is more than the {} brokers that the root declares", declared.max_size);
        return Err(Problem::new("spec.size", reason::INVALID_SIZE, message));
    }
    Ok(())
}

/// What the command waits for.
pub(super) fn wait(spec: &MiniClusterSpec) -> Result<Option<Wait>, Problem> {
    let wait = &spec.flux.bursting.wait;
    let field = |name: &str| format!("spec.flux.bursting.wait.{name}");
    let timeout =
        wait.timeout().map_err(|error| Problem::new(field("timeout"), reason::INVALID_VALUE, error.to_string()))?;
    // Brokers on demand come for jobs, not for a command that has not started.
    let always = spec.bursts("").filter(|(_, cluster)| cluster.on_demand().is_none());
    let declared: u64 = always.map(|(_, cluster)| u64::try_from(cluster.size(spec.size())).unwrap_or(0)).sum();
    let brokers = match wait.target {
        WaitFor::None => return Ok(None),
        WaitFor::All => u32::try_from(declared).unwrap_or(u32::MAX),
        WaitFor::Brokers(brokers) => brokers,
        WaitFor::Unknown(word) => {
            return Err(Problem::unknown_word(field("for"), word, &["None", "All", "a number of brokers"]));
        }
    };
    if u64::from(brokers) > declared && spec.flux.lead_broker().is_none() && timeout.is_none() {
        let message = format!(
            "the command would wait for ever: the bursts have {declared} of the {brokers} brokers that it waits for; lower the number, \
             or write a timeout"
        );
        return Err(Problem::new(field("for"), reason::INVALID_BURSTING, message));
    }
    Ok(Some(Wait { brokers, all: wait.target == WaitFor::All, timeout }))
}
