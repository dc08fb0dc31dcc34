//! MiniCluster → rank map: which slots its instance has, in which order, with which resources.
//!
//! A pure function of the spec (DESIGN section 3): root and provider, and every restart of the agent, come to the same
//! text and the same digest.

use tributary_api::minicluster::{
    BurstCluster, Container, LeadBroker, MiniCluster, MiniClusterSpec, ResourceRequirements,
};
use tributary_flux::{RankMap, RankMapError, Slot, Topology};

use super::problem::{Problem, Problems, reason};
use super::quantity;

/// Extended resources that are GPUs to Flux.
const GPUS: [&str; 4] = ["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"];

const NAME: &str = "metadata.name";
const CLUSTERS: &str = "spec.flux.bursting.clusters";

/// The rank map that the spec declares.
///
/// A root: its own slot, then one per `flux.bursting.clusters`. A burst written by hand: the root's slot as
/// `leadBroker` describes it, then `clusters` as the root declares them; its own slot follows the root's if `clusters` does
/// not list it. A hosted MiniCluster gets the root's map instead, from [`super::HostedSide`].
///
/// With a `bursting.hostlist` of the user's own the map has the slots the spec names, and the hosts are the user's.
///
/// # Errors
/// What is wrong with names, sizes or resources, each with the path of its field.
pub fn rank_map_of(mini_cluster: &MiniCluster) -> Result<RankMap, Problems> {
    let name = mini_cluster.metadata.name.as_deref().unwrap_or_default();
    let spec = &mini_cluster.spec;
    let declared = match spec.flux.lead_broker() {
        None => root_slots(name, spec)?,
        Some(lead) => burst_slots(name, spec, lead)?,
    };
    let (slots, fields): (Vec<_>, Vec<_>) = declared.into_iter().unzip();
    let names: Vec<String> = slots.iter().map(|slot: &Slot| slot.name.clone()).collect();
    RankMap::new(slots).map_err(|error| problem(&error, &names, &fields, spec).into())
}

/// Slots in rank order, each with the path of the field that declares it.
type Declared = Vec<(Slot, String)>;

fn root_slots(name: &str, spec: &MiniClusterSpec) -> Result<Declared, Problems> {
    let own = Resources::of(spec);
    let root = root_slot(name, spec.max_size(), own, spec, !spec.flux.bursting.clusters.is_empty());
    let mut slots = vec![(root, NAME.to_owned())];
    slots.extend(cluster_slots(name, spec.size(), own, spec)?);
    Ok(slots)
}

fn burst_slots(name: &str, spec: &MiniClusterSpec, lead: &LeadBroker) -> Result<Declared, Problems> {
    let own = Resources::of(spec);
    let root = lead.name.as_deref().unwrap_or_default();
    let size = lead.size.unwrap_or(0);
    let lead_slot = root_slot(root, size, own, spec, true);
    let mut slots = vec![(lead_slot, "spec.flux.bursting.leadBroker".to_owned())];
    let clusters = cluster_slots(root, size, own, spec)?;
    if !clusters.iter().any(|(slot, _)| slot.name == name) {
        let parent = topology(spec)?.parent_of_bursts(root);
        let slot = Slot::burst(name, count(spec.max_size()), parent).with_resources(own.cores, own.gpus);
        slots.push((slot, NAME.to_owned()));
    }
    slots.extend(clusters);
    Ok(slots)
}

/// The slot of the root's own brokers. A job that shall stay with them asks for a property; an instance in one cluster
/// needs none.
fn root_slot(name: &str, size: i32, own: Resources, spec: &MiniClusterSpec, bursts: bool) -> Slot {
    let mut slot = Slot::root(name, count(size)).with_resources(own.cores, own.gpus);
    slot.properties.clone_from(&spec.flux.bursting.properties);
    if bursts {
        slot.properties.push(format!("root-{name}"));
    }
    slot
}

fn cluster_slots(root: &str, root_size: i32, own: Resources, spec: &MiniClusterSpec) -> Result<Declared, Problems> {
    let parent = topology(spec)?.parent_of_bursts(root);
    let slot = |(position, (name, cluster)): (usize, (String, &BurstCluster))| {
        let theirs = own.of_slot(spec, cluster);
        let cores = cluster.cores.map_or(theirs.cores, count);
        let gpus = cluster.gpus.map_or(theirs.gpus, count);
        let mut slot =
            Slot::burst(name, count(cluster.max_size(root_size)), parent.clone()).with_resources(cores, gpus);
        slot.properties.extend(cluster.properties.iter().cloned());
        let slot = match (&cluster.peer, cluster.peers.is_empty()) {
            (Some(peer), true) => slot.with_property(format!("cluster-{peer}")),
            _ => slot,
        };
        (slot, format!("{CLUSTERS}[{position}]"))
    };
    Ok(spec.bursts(root).enumerate().map(slot).collect())
}

/// How the brokers form a tree.
pub(super) fn topology(spec: &MiniClusterSpec) -> Result<Topology, Problem> {
    let text = spec.flux.topology.as_deref().unwrap_or_default();
    text.parse().map_err(|error: tributary_flux::TopologyError| {
        Problem::new("spec.flux.topology", reason::INVALID_VALUE, error.to_string())
    })
}

/// What Flux may count on, per broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Resources {
    pub(super) cores: u32,
    pub(super) gpus: u32,
}

impl Resources {
    /// Of the container that runs Flux: its `cores`, else its cpu request or limit in whole cores, else 1; GPUs likewise. Without
    /// `cores` and without bursts, the lead counts the cores that it finds instead: see [`super::model::Model::counts_cores`].
    pub(super) fn of(spec: &MiniClusterSpec) -> Self {
        let runner = spec.runner().ok().map(|runner| runner.container);
        Self { cores: runner.map_or(1, cores), gpus: runner.map_or(0, |runner| gpus(&runner.resources)) }
    }

    /// The same for brokers of a slot, as far as its resources are its own.
    fn of_slot(self, spec: &MiniClusterSpec, cluster: &BurstCluster) -> Self {
        let Ok(runner) = spec.runner() else { return self };
        let resources = cluster.resources.over(&runner.container.resources);
        // Cores that are written for the container are the root's own, where a slot has another number of them.
        let cores = cluster.resources.names("cpu").then(|| requested_cores(&resources).unwrap_or(1).max(1));
        Self { cores: cores.unwrap_or(self.cores), gpus: gpus(&resources) }
    }
}

fn cores(runner: &Container) -> u32 {
    runner.cores.map(count).or_else(|| requested_cores(&runner.resources)).unwrap_or(1).max(1)
}

fn requested_cores(resources: &ResourceRequirements) -> Option<u32> {
    resources.effective_request("cpu").and_then(|cpu| quantity::whole(&cpu.to_string()))
}

/// Whether a resource of this name is a GPU to Flux.
pub fn is_gpu(resource: &str) -> bool {
    GPUS.contains(&resource)
}

/// GPUs of any kind that a container asks for.
pub fn gpus(resources: &ResourceRequirements) -> u32 {
    let names = resources.requests.keys().chain(resources.limits.keys());
    let names: std::collections::BTreeSet<_> = names.filter(|name| is_gpu(name)).collect();
    let amount = |name: &String| resources.effective_request(name).and_then(|gpu| quantity::whole(&gpu.to_string()));
    names.into_iter().filter_map(amount).fold(0, u32::saturating_add)
}

/// A count as users write it; what is negative becomes 0, which the rank map refuses.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Finds the field behind an error of the rank map.
fn problem(error: &RankMapError, names: &[String], fields: &[String], spec: &MiniClusterSpec) -> Problem {
    let (slot, kind) = match error {
        RankMapError::Name { slot } => (slot.as_str(), reason::INVALID_NAME),
        RankMapError::HostTooLong { host } => {
            (host.rsplit_once('-').map_or(host.as_str(), |(slot, _)| slot), reason::INVALID_NAME)
        }
        RankMapError::NoBroker { slot } | RankMapError::TooManyBrokers { slot } => {
            (slot.as_str(), reason::INVALID_SIZE)
        }
        RankMapError::Duplicate { slot }
        | RankMapError::Resources { slot, .. }
        | RankMapError::Parent { slot, .. }
        | RankMapError::TooManyProperties { slot }
        | RankMapError::Property { slot, .. } => (slot.as_str(), reason::INVALID_BURSTING),
        RankMapError::Empty
        | RankMapError::TooManySlots { .. }
        | RankMapError::Syntax { .. }
        | RankMapError::NotCanonical => ("", reason::INVALID_BURSTING),
    };
    // The last of that name: of two alike, the second is the one to change.
    let field = names.iter().rposition(|name| name == slot).map_or(CLUSTERS, |position| fields[position].as_str());
    let field = match error {
        RankMapError::NoBroker { .. } | RankMapError::TooManyBrokers { .. } if field == NAME => {
            if spec.max_size.is_some() { "spec.maxSize" } else { "spec.size" }.to_owned()
        }
        RankMapError::Resources { cores, gpus, .. } if !field.starts_with(CLUSTERS) => {
            let runner = spec.runner().ok();
            // The larger number is too large.
            let written = runner.is_some_and(|runner| runner.container.cores.is_some()) && cores > gpus;
            let index = runner.map_or(0, |runner| runner.index);
            format!("spec.containers[{index}].{}", if written { "cores" } else { "resources" })
        }
        _ => field.to_owned(),
    };
    Problem::new(field, kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mini_cluster(spec: &str) -> MiniCluster {
        let yaml = format!("metadata: {{name: lake, namespace: default}}\nspec:\n{spec}");
        serde_saphyr::from_str(&yaml).unwrap()
    }

    fn text(spec: &str) -> String {
        rank_map_of(&mini_cluster(spec)).unwrap().to_canonical()
    }

    #[test]
    fn a_root_without_bursts_has_its_own_slot() {
        assert_eq!(text("  size: 2\n  containers: [{}]"), "rank-map/1\nslot lake max-size=2 cores=1 gpus=0\n");
        assert_eq!(
            text("  size: 2\n  maxSize: 5\n  containers: [{resources: {limits: {cpu: 3500m, nvidia.com/gpu: 2}}}]"),
            "rank-map/1\nslot lake max-size=5 cores=3 gpus=2\n"
        );
        assert_eq!(
            text("  containers: [{cores: 7, resources: {requests: {cpu: 3, gpu.intel.com/i915: 1, amd.com/gpu: 1}}}]"),
            "rank-map/1\nslot lake max-size=1 cores=7 gpus=2\n"
        );
    }

    #[test]
    fn bursts_follow_in_order_with_defaults_of_the_root() {
        let spec = "
  size: 4
  containers: [{resources: {requests: {cpu: 4}}}]
  flux:
    bursting:
      clusters:
      - {}
      - {name: gpus, size: 2, maxSize: 3, cores: 8, gpus: 1, peer: west}
      - {size: 1, peers: [west, north]}
";
        assert_eq!(
            text(spec),
            "rank-map/1\n\
             slot lake max-size=4 cores=4 gpus=0 properties=root-lake\n\
             slot lake-burst-0 max-size=4 cores=4 gpus=0 parent=lake properties=burst-lake-burst-0\n\
             slot gpus max-size=3 cores=8 gpus=1 parent=lake properties=burst-gpus,cluster-west\n\
             slot lake-burst-2 max-size=1 cores=4 gpus=0 parent=lake properties=burst-lake-burst-2\n"
        );
    }

    #[test]
    fn resources_of_a_slot_take_the_place_of_the_roots() {
        let spec = "
  containers: [{cores: 2, resources: {requests: {cpu: 4, amd.com/gpu: 1}, limits: {cpu: 4, memory: 8Gi, amd.com/gpu: 1}}}]
  flux:
    bursting:
      clusters:
      - {name: a, resources: {limits: {nvidia.com/gpu: 4}}}
      - {name: b, resources: {requests: {cpu: 16, amd.com/gpu: 0}}}
      - {name: c, cores: 3, gpus: 0, resources: {limits: {cpu: 8, memory: 1Gi}}}
";
        assert_eq!(
            text(spec),
            "rank-map/1\n\
             slot lake max-size=1 cores=2 gpus=1 properties=root-lake\n\
             slot a max-size=1 cores=2 gpus=5 parent=lake properties=burst-a\n\
             slot b max-size=1 cores=16 gpus=0 parent=lake properties=burst-b\n\
             slot c max-size=1 cores=3 gpus=0 parent=lake properties=burst-c\n"
        );
    }

    #[test]
    fn properties_of_the_users_own_stand_beside_those_of_the_slots() {
        let bursting = "{properties: [login, fast], clusters: [{name: gpus, size: 1, properties: [a100]}]}";
        let spec = format!("  containers: [{{}}]\n  flux: {{bursting: {bursting}}}");
        assert_eq!(
            text(&spec),
            "rank-map/1\n\
             slot lake max-size=1 cores=1 gpus=0 properties=fast,login,root-lake\n\
             slot gpus max-size=1 cores=1 gpus=0 parent=lake properties=a100,burst-gpus\n"
        );
    }

    #[test]
    fn a_burst_written_by_hand_sees_the_same_slots_as_its_root() {
        let lead = "leadBroker: {address: 192.0.2.1, name: flux-sample, size: 2}";
        let own = format!("  size: 3\n  containers: [{{}}]\n  flux: {{bursting: {{{lead}}}}}");
        let expected = "rank-map/1\n\
             slot flux-sample max-size=2 cores=1 gpus=0 properties=root-flux-sample\n\
             slot lake max-size=3 cores=1 gpus=0 parent=flux-sample properties=burst-lake\n";
        assert_eq!(text(&own), expected);
        let listed =
            format!("  containers: [{{}}]\n  flux: {{{lead}, bursting: {{clusters: [{{name: lake, size: 3}}]}}}}");
        assert_eq!(text(&listed), expected);
    }

    #[test]
    fn problems_name_the_field_that_is_wrong() {
        let field = |spec: &str| {
            let problems = rank_map_of(&mini_cluster(spec)).unwrap_err();
            let problem = problems.into_iter().next().unwrap();
            (problem.field, problem.reason)
        };
        let bursts = |clusters: &str| format!("  containers: [{{}}]\n  flux: {{bursting: {{clusters: {clusters}}}}}");
        let at = |field: &str, reason| (field.to_owned(), reason);
        assert_eq!(
            field(&bursts("[{name: a}, {name: a}]")),
            at("spec.flux.bursting.clusters[1]", reason::INVALID_BURSTING)
        );
        assert_eq!(field(&bursts("[{name: lake}]")), at("spec.flux.bursting.clusters[0]", reason::INVALID_BURSTING));
        assert_eq!(field(&bursts("[{}, {name: A_b}]")), at("spec.flux.bursting.clusters[1]", reason::INVALID_NAME));
        assert_eq!(field(&bursts("[{size: -1}]")), at("spec.flux.bursting.clusters[0]", reason::INVALID_SIZE));
        assert_eq!(field(&bursts("[{cores: -1}]")), at("spec.flux.bursting.clusters[0]", reason::INVALID_BURSTING));
        assert_eq!(
            field(&bursts("[{properties: [a b]}]")),
            at("spec.flux.bursting.clusters[0]", reason::INVALID_BURSTING)
        );
        assert_eq!(field("  size: -1\n  containers: [{}]"), at("spec.size", reason::INVALID_SIZE));
        assert_eq!(field("  maxSize: 20000\n  containers: [{}]"), at("spec.maxSize", reason::INVALID_SIZE));
        let gpus = "  containers: [{name: a}, {runFlux: true, cores: 4, resources: {limits: {nvidia.com/gpu: 70000}}}]";
        assert_eq!(field(gpus), at("spec.containers[1].resources", reason::INVALID_BURSTING));
        assert_eq!(field("  containers: [{cores: 70000}]"), at("spec.containers[0].cores", reason::INVALID_BURSTING));
        let lead = "leadBroker: {address: 192.0.2.1, name: river, size: 2}";
        assert_eq!(
            field(&format!("  containers: [{{resources: {{limits: {{cpu: 70000}}}}}}]\n  flux: {{{lead}}}")),
            at("spec.containers[0].resources", reason::INVALID_BURSTING)
        );
        assert_eq!(
            field("  containers: [{}]\n  flux: {topology: star}"),
            at("spec.flux.topology", reason::INVALID_VALUE)
        );
    }
}
