//! Nodes and pods, as far as placing brokers needs them: what is free, and what fits.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{self as core, Toleration};
use tributary_api::names;
use tributary_api::node_group::NodeGroup;
use tributary_api::peer::ImportPolicy;
use tributary_render::nodes::{Amounts, Gang};
use tributary_render::quantity::milli;

use super::addresses::Range;

/// How long a node that is not ready may be expected back: so long Kubernetes lets its pods wait for it.
///
/// Source: <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions>.
const COMES_BACK: SignedDuration = SignedDuration::from_mins(5);

/// What Kubernetes taints a node with for as long as it is not ready.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeView {
    /// Ready, and not cordoned.
    pub schedulable: bool,
    /// Since when it is not ready, though nobody cordoned it.
    pub away_since: Option<Timestamp>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Taints that keep pods away (`NoSchedule`, `NoExecute`): key, value, effect.
    pub taints: Vec<Taint>,
    /// Kind (`ExternalIP`, `InternalIP`, …) and text.
    pub addresses: Vec<(String, String)>,
    /// `spec.podCIDRs`.
    pub pod_ranges: Vec<Range>,
    /// `status.allocatable`.
    pub allocatable: Amounts,
    /// `status.nodeInfo.architecture`, as the kubelet says it (`amd64`).
    pub architecture: Option<String>,
    /// Its kubelet is not heard of.
    pub lost: bool,
    /// There is no kubelet: kwok plays one, and what its pods say is made up.
    pub simulated: bool,
}

impl NodeView {
    /// A node that an autoscaler would add.
    pub(crate) fn of_group(group: &NodeGroup) -> Self {
        let thousandths = |text: String| i64::try_from(milli(&text).unwrap_or(0)).unwrap_or(i64::MAX);
        let taint = |taint: &core::Taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        };
        Self {
            schedulable: true,
            labels: group.labels.clone(),
            taints: group.taints.iter().filter(|taint| keeps_pods_away(&taint.effect)).map(taint).collect(),
            allocatable: Amounts {
                milli_cores: thousandths(group.cpu.to_string()),
                memory: thousandths(group.memory.to_string()) / 1000,
                gpus: group.gpus.into(),
            },
            ..Self::default()
        }
    }

    /// The node as it will be once it is ready again, if it may be expected back.
    fn expected(&self, now: Timestamp) -> Self {
        let mut node = self.clone();
        if self.away_since.is_some_and(|since| now.duration_since(since) < COMES_BACK) {
            node.schedulable = true;
            node.taints.retain(|taint| !NOT_READY.contains(&taint.key.as_str()));
        }
        node
    }
}

/// Whether a taint of this effect keeps pods away: `PreferNoSchedule` does not.
pub(super) fn keeps_pods_away(effect: &str) -> bool {
    effect == "NoSchedule" || effect == "NoExecute"
}

/// A taint that keeps pods away.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `NoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Job it is of.
    pub job: Option<String>,
    /// Its index in the Job.
    pub index: Option<u32>,
    /// UID of what controls it. Its labels are whatever its maker wrote.
    pub owner: Option<String>,
    /// The node it was bound to.
    pub node: Option<String>,
    /// Its addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// `status.phase` is `Running`.
    pub running: bool,
    /// The scheduler finds no node for it.
    pub unschedulable: bool,
    /// Why it does not start: the kubelet's reason, container and image, or which claim the scheduler misses.
    pub start_failure: Option<String>,
    /// The images of all its containers are on its node.
    pub pulled: bool,
    /// It ended; it takes nothing any more.
    pub finished: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// A DaemonSet's: it is there as long as its node.
    pub daemon: bool,
    /// It says that it consumes a ProvisioningRequest.
    pub consumes: bool,
    /// What it asks for, as the scheduler counts it.
    pub requests: Amounts,
}

/// All pods of a cluster. They are collected only when free room is counted.
pub trait Pods: fmt::Debug {
    /// The pods.
    fn views(&self) -> Vec<Arc<PodView>>;
}

impl Pods for Vec<PodView> {
    fn views(&self) -> Vec<Arc<PodView>> {
        self.iter().cloned().map(Arc::new).collect()
    }
}

/// Whose brokers a Job's pods are: what each is counted for, though it may request less.
pub(crate) type Brokers<'a> = BTreeMap<(&'a str, &'a str), Amounts>;

/// Which nodes pods may run on.
#[derive(Clone, Copy, Debug)]
pub struct NodeChoice<'a> {
    /// Labels with their values.
    pub selector: &'a BTreeMap<String, String>,
    /// Labels with the values that are welcome.
    pub affinity: &'a BTreeMap<String, Vec<String>>,
    /// Taints that do not keep the pods away.
    pub tolerations: &'a [Toleration],
}

impl<'a> NodeChoice<'a> {
    /// What an import policy imposes on each pod; `None`: nothing.
    pub(crate) fn imposed(import: &'a ImportPolicy) -> Option<Self> {
        let (selector, tolerations) = (&import.node_selector, &import.tolerations);
        let affinity = const { &BTreeMap::new() };
        (!selector.is_empty() || !tolerations.is_empty()).then_some(Self { selector, affinity, tolerations })
    }

    /// Whether pods may run on a node.
    pub(crate) fn takes(&self, node: &NodeView) -> bool {
        let has = |key: &String, test: &dyn Fn(&String) -> bool| node.labels.get(key).is_some_and(test);
        node.taints.iter().all(|taint| self.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
            && self.selector.iter().all(|(key, value)| has(key, &|found| found == value))
            && self.affinity.iter().all(|(key, values)| has(key, &|found| values.contains(found)))
    }
}

/// Source: <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>.
pub(super) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || key.is_empty() && exists)
        && (exists || text(&toleration.value) == taint.value)
}

/// How many brokers of a gang the nodes have no room for, now, beside the pod of its services. Room is kept for the pods of
/// `coming` that are not bound yet, and for whatever else waits for a node.
pub(crate) fn lacking(
    nodes: &BTreeMap<String, NodeView>,
    pods: &[impl Borrow<PodView>],
    choice: NodeChoice<'_>,
    wanted: &Gang,
    coming: &[Gang],
) -> u32 {
    let pods: Vec<&PodView> = pods.iter().map(Borrow::borrow).collect();
    let mut free = Free::of(nodes, &pods, choice);
    let mut bound: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.node.is_some() && !pod.finished) {
        if let Some(job) = &pod.job {
            *bound.entry((&pod.namespace, job)).or_default() += 1;
        }
    }
    let gangs: BTreeSet<(&str, &str)> = coming.iter().map(|gang| (&*gang.namespace, &*gang.name)).collect();
    for gang in coming {
        let bound = bound.get(&(&*gang.namespace, &*gang.name)).copied().unwrap_or(0);
        free.take(gang.each, gang.brokers.saturating_sub(bound));
        let services = names::services(&gang.name);
        let is_there = || pods.iter().any(|pod| pod.namespace == gang.namespace && pod.name == services);
        if let Some(services) = gang.services.filter(|_| !is_there()) {
            free.take_services(services, gang.each);
        }
    }
    let of_gang = |pod: &PodView| pod.job.as_ref().is_some_and(|job| gangs.contains(&(&*pod.namespace, &**job)));
    let elsewhere = |pod: &&&PodView| pod.node.is_none() && !pod.finished && !of_gang(pod);
    for pod in pods.iter().filter(elsewhere) {
        match coming.iter().find(|gang| pod.namespace == gang.namespace && pod.name == names::services(&gang.name)) {
            Some(gang) => {
                free.take_services(pod.requests, gang.each);
            }
            None => free.take(pod.requests, 1),
        }
    }
    match wanted.services.is_none_or(|services| free.take_services(services, wanted.each)) {
        true => take(&mut free.brokers, wanted.each, wanted.brokers),
        false => wanted.brokers,
    }
}

/// Why the nodes, and one more of each of `groups`, could not hold a gang even if nothing ran on them but what belongs to each
/// node; `None`: they could. Nodes that take no pods count for nothing: once they do, they are looked at again. But one that
/// just stopped being ready counts as if it were: a kubelet that is late for once must not cost the first in line its place.
pub(crate) fn short(
    nodes: &BTreeMap<String, NodeView>,
    pods: &[impl Borrow<PodView>],
    choice: NodeChoice<'_>,
    wanted: &Gang,
    groups: &[NodeGroup],
    now: Timestamp,
) -> Option<String> {
    let there = nodes.iter().map(|(name, node)| (name.clone(), node.expected(now)));
    // No node has a name like these.
    let to_come = groups.iter().map(|group| (format!("nodeGroups/{}", group.name), NodeView::of_group(group)));
    let nodes = &there.chain(to_come).collect::<BTreeMap<_, _>>();
    let kinds = if groups.is_empty() { "nodes" } else { "nodes and node groups" };
    let daemons: Vec<&PodView> = pods.iter().map(Borrow::borrow).filter(|pod: &&PodView| pod.daemon).collect();
    let mut empty = Free::of(nodes, &daemons, choice);
    let (open, all) = (empty.brokers.len(), fits(&empty.brokers, wanted.each));
    let (broker, count) = (wanted.each, wanted.brokers);
    let services = wanted.services.is_none_or(|services| empty.take_services(services, broker));
    match fits(&empty.brokers, broker) {
        fit if fit >= count && services => None,
        _ if open == 0 => {
            let all = nodes.len();
            Some(format!("pod.nodeSelector, pod.nodeAffinity and pod.tolerations allow none of the {all} {kinds}"))
        }
        _ if !services => {
            let takes = wanted.services.unwrap_or_default();
            Some(format!("no node that it may run on can hold the pod of its services, which takes {takes}"))
        }
        _ if all == 0 => {
            Some(format!("none of the {open} {kinds} that it may run on can hold a broker, which takes {broker}"))
        }
        fit => {
            let beside = wanted.services.map_or("", |_| " beside the pod of its services");
            Some(format!(
                "the {open} {kinds} that it may run on can hold {fit} of {count} brokers, each of which takes {broker}{beside}"
            ))
        }
    }
}

/// What is free on all nodes that selector and tolerations allow.
struct Free {
    /// Where brokers may run.
    brokers: BTreeMap<String, Amounts>,
    /// Where `pod.nodeAffinity` keeps them away: it is for brokers only, and the pod of their services may run here too.
    others: BTreeMap<String, Amounts>,
}

impl Free {
    fn of(nodes: &BTreeMap<String, NodeView>, pods: &[&PodView], choice: NodeChoice<'_>) -> Self {
        let anywhere = NodeChoice { affinity: &BTreeMap::new(), ..choice };
        let (brokers, others) = free(nodes, pods, &Brokers::new(), &|node| anywhere.takes(node))
            .into_iter()
            .partition(|(name, _)| nodes.get(name).is_some_and(|node| choice.takes(node)));
        Self { brokers, others }
    }

    /// Takes pods off that may go anywhere, for all that is known: what they can take of the brokers' nodes does not count as
    /// free.
    fn take(&mut self, each: Amounts, count: u32) {
        let rest = take(&mut self.brokers, each, count);
        take(&mut self.others, each, rest);
    }

    /// Takes the pod of services off: from a node where brokers of their gang may not run, else where it takes the place of the
    /// fewest of them. `false`: there is no room for it.
    fn take_services(&mut self, services: Amounts, broker: Amounts) -> bool {
        if take(&mut self.others, services, 1) == 0 {
            return true;
        }
        let costs = |node: &Amounts| node.holds(broker) - node.minus(services).holds(broker);
        match self.brokers.values_mut().filter(|node| node.holds(services) > 0).min_by_key(|node| costs(node)) {
            Some(node) => {
                *node = node.minus(services);
                true
            }
            None => false,
        }
    }
}

/// What is free on every node that is `open` to a pod.
///
/// A broker in `brokers` counts for what its slot declares, since Flux will give its cores away whatever its pod requests.
pub(crate) fn free(
    nodes: &BTreeMap<String, NodeView>,
    pods: &[impl Borrow<PodView>],
    brokers: &Brokers<'_>,
    open: &dyn Fn(&NodeView) -> bool,
) -> BTreeMap<String, Amounts> {
    let open = nodes.iter().filter(|(_, node)| node.schedulable && open(node));
    let mut free: BTreeMap<String, Amounts> = open.map(|(name, node)| (name.clone(), node.allocatable)).collect();
    for pod in pods.iter().map(Borrow::borrow).filter(|pod: &&PodView| !pod.finished) {
        let Some(node) = pod.node.as_ref().and_then(|node| free.get_mut(node)) else { continue };
        let job = pod.job.as_ref().map(|job| (pod.namespace.as_str(), job.as_str()));
        let declared = job.and_then(|job| brokers.get(&job)).copied().unwrap_or_default();
        *node = node.minus(pod.requests.max(declared));
    }
    free
}

/// Takes `count` brokers off, each from the node with the most room; returns how many did not fit.
pub(crate) fn take(free: &mut BTreeMap<String, Amounts>, broker: Amounts, count: u32) -> u32 {
    let mut nodes: Vec<&mut Amounts> = free.values_mut().filter(|node| node.holds(broker) > 0).collect();
    let mut roomiest: BinaryHeap<_> = nodes.iter().enumerate().map(|(at, node)| (node.milli_cores, at)).collect();
    for taken in 0..count {
        let Some((_, at)) = roomiest.pop() else { return count - taken };
        *nodes[at] = nodes[at].minus(broker);
        if nodes[at].holds(broker) > 0 {
            roomiest.push((nodes[at].milli_cores, at));
        }
    }
    0
}

/// How many such brokers fit.
pub(crate) fn fits(free: &BTreeMap<String, Amounts>, broker: Amounts) -> u32 {
    free.values().fold(0, |sum: u32, node| sum.saturating_add(node.holds(broker)))
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    const NOBODY: [PodView; 0] = [];

    fn node(cores: i64, gpus: i64) -> NodeView {
        let allocatable = Amounts { milli_cores: cores * 1000, memory: 1 << 30, gpus };
        NodeView { schedulable: true, allocatable, ..NodeView::default() }
    }

    fn pod(node: &str, job: &str, milli_cores: i64) -> PodView {
        PodView {
            namespace: "n".into(),
            job: Some(job.into()),
            node: Some(node.into()),
            requests: Amounts { milli_cores, ..Amounts::default() },
            ..PodView::default()
        }
    }

    fn gang(name: &str, brokers: u32, each: Amounts) -> Gang {
        Gang { namespace: "n".into(), name: name.into(), brokers, each, services: None }
    }

    fn ever(
        nodes: &BTreeMap<String, NodeView>,
        pods: &[PodView],
        choice: NodeChoice<'_>,
        wanted: &Gang,
    ) -> Option<String> {
        short(nodes, pods, choice, wanted, &[], Timestamp::UNIX_EPOCH)
    }

    fn world() -> BTreeMap<String, NodeView> {
        let taint = Taint { key: "dedicated".into(), value: "db".into(), effect: "NoSchedule".into() };
        let tainted = NodeView { taints: vec![taint], ..node(64, 0) };
        let cordoned = NodeView { schedulable: false, ..node(64, 0) };
        [("a", node(8, 2)), ("b", node(4, 0)), ("tainted", tainted), ("cordoned", cordoned)]
            .map(|(name, node)| (name.to_owned(), node))
            .into()
    }

    #[test]
    fn only_nodes_that_take_pods_count() {
        let nobody = free(&world(), &NOBODY, &Brokers::new(), &|node| node.taints.is_empty());
        assert_eq!(nobody.keys().collect::<Vec<_>>(), ["a", "b"]);
        let some =
            free(&world(), &NOBODY, &Brokers::new(), &|node| node.taints.iter().all(|taint| taint.key == "dedicated"));
        assert_eq!(some.len(), 3);
    }

    #[test]
    fn brokers_count_for_what_flux_may_give_away() {
        let pods = [pod("a", "west", 0), pod("a", "other", 500), PodView { finished: true, ..pod("b", "other", 4000) }];
        let brokers: Brokers<'_> = [(("n", "west"), Amounts::broker(3, 1))].into();
        let free = free(&world(), &pods, &brokers, &|node| node.taints.is_empty());
        assert_eq!((free["a"].milli_cores, free["a"].gpus), (4500, 1));
        assert_eq!(free["b"].milli_cores, 4000);
        assert_eq!(fits(&free, Amounts::broker(2, 0)), 4);
        assert_eq!(fits(&free, Amounts::broker(2, 1)), 1);
        assert_eq!(fits(&free, Amounts::broker(5, 0)), 0, "a broker needs its cores in one place");
    }

    #[test]
    fn gangs_that_are_coming_keep_their_room() {
        let anywhere = NodeChoice { selector: &BTreeMap::new(), affinity: &BTreeMap::new(), tolerations: &[] };
        let lacks = |pods: &[PodView], count: u32, coming: &[Gang]| {
            lacking(&world(), pods, anywhere, &gang("", count, Amounts::broker(2, 0)), coming)
        };
        assert_eq!((lacks(&[], 6, &[]), lacks(&[], 7, &[])), (0, 1), "8 and 4 cores");
        let coming = gang("west", 2, Amounts::broker(4, 0));
        assert_eq!(lacks(&[], 3, slice::from_ref(&coming)), 1);
        let one = pod("a", "west", 4000);
        assert_eq!(
            lacks(slice::from_ref(&one), 3, slice::from_ref(&coming)),
            1,
            "one of them is bound, the other is not yet"
        );
        let pending = PodView { node: None, ..pod("a", "other", 4000) };
        assert_eq!(lacks(&[pending], 5, &[]), 1, "whoever else waits for a node gets it");
        let label = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
        let picky = NodeChoice { selector: &label, ..anywhere };
        assert_eq!(lacking(&world(), &NOBODY, picky, &gang("", 1, Amounts::broker(1, 0)), &[]), 1);
    }

    #[test]
    fn what_no_empty_node_could_hold_is_said_whatever_runs_now() {
        let label = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
        let anywhere = NodeChoice { selector: &BTreeMap::new(), affinity: &BTreeMap::new(), tolerations: &[] };
        let picky = NodeChoice { selector: &label, ..anywhere };
        let busy = [pod("a", "other", 8000), pod("b", "other", 4000)];
        let short = |choice, cores, count| ever(&world(), &busy, choice, &gang("", count, Amounts::broker(cores, 0)));
        assert_eq!(short(anywhere, 4, 3), None, "8 and 4 cores, once what runs has ended");
        let told = |cores, count| short(anywhere, cores, count).unwrap();
        assert_eq!(told(4, 4), "the 2 nodes that it may run on can hold 3 of 4 brokers, each of which takes 4 cores");
        let none = "none of the 2 nodes that it may run on can hold a broker, which takes 1000 cores";
        assert_eq!(told(1000, 1), none);
        let picked = "pod.nodeSelector, pod.nodeAffinity and pod.tolerations allow none of the 4 nodes";
        assert_eq!(short(picky, 1, 1).unwrap(), picked);
        let daemon = [PodView { daemon: true, ..pod("a", "", 500) }];
        let beside = ever(&world(), &daemon, anywhere, &gang("", 1, Amounts::broker(8, 0)));
        assert_eq!(
            beside,
            Some("none of the 2 nodes that it may run on can hold a broker, which takes 8 cores".into())
        );
    }

    #[test]
    fn a_node_group_counts_as_one_more_node_with_its_labels_and_taints() {
        let (labels, none) = (BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]), BTreeMap::new());
        let tolerated = [Toleration { operator: Some("Exists".into()), ..Toleration::default() }];
        let choice = NodeChoice { selector: &labels, affinity: &none, tolerations: &tolerated };
        let group: NodeGroup = serde_json::from_value(serde_json::json!({
            "name": "a100", "labels": {"pool": "gpu"}, "cpu": "31850m", "memory": "120Gi", "gpus": 4,
            "taints": [{"key": "gpu", "effect": "NoSchedule"}, {"key": "spot", "effect": "PreferNoSchedule"}],
        }))
        .unwrap();
        let broker = |cores, gpus| Amounts { memory: 100 << 30, ..Amounts::broker(cores, gpus) };
        let short = |choice, each, groups: &[NodeGroup]| {
            short(&world(), &NOBODY, choice, &gang("", 1, each), groups, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(short(choice, broker(31, 4), std::slice::from_ref(&group)), None);
        let picked = "pod.nodeSelector, pod.nodeAffinity and pod.tolerations allow none of the 4 nodes";
        assert_eq!(short(choice, broker(31, 4), &[]).unwrap(), picked);
        let told = |choice, each| short(choice, each, std::slice::from_ref(&group)).unwrap();
        let large = "none of the 1 nodes and node groups that it may run on can hold a broker, which takes 32 cores, 100.0 GiB of memory";
        assert_eq!(told(choice, broker(32, 0)), large);
        assert!(told(choice, broker(1, 5)).ends_with("100.0 GiB of memory, 5 GPUs"));
        let picked = "pod.nodeSelector, pod.nodeAffinity and pod.tolerations allow none of the 5 nodes and node groups";
        assert_eq!(told(NodeChoice { tolerations: &[], ..choice }, broker(1, 0)), picked);
    }

    #[test]
    fn a_node_that_just_went_away_is_expected_back() {
        let anywhere = NodeChoice { selector: &BTreeMap::new(), affinity: &BTreeMap::new(), tolerations: &[] };
        let taint = |key: &str| Taint { key: key.into(), value: String::new(), effect: "NoSchedule".into() };
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let mut nodes: BTreeMap<_, _> = [("a".to_owned(), node(8, 0)), ("b".to_owned(), node(8, 0))].into();
        let wanted = gang("", 2, Amounts::broker(8, 0));
        let silent = NodeView {
            schedulable: false,
            away_since: Some(at(1000)),
            taints: vec![taint("node.kubernetes.io/unreachable")],
            ..node(8, 0)
        };
        nodes.insert("b".into(), silent.clone());
        let short = |nodes: &_, now| short(nodes, &NOBODY, anywhere, &wanted, &[], at(now));
        assert_eq!((short(&nodes, 1000), short(&nodes, 1299)), (None, None));
        let told = "the 1 nodes that it may run on can hold 1 of 2 brokers, each of which takes 8 cores";
        assert_eq!(short(&nodes, 1300).unwrap(), told);
        assert_eq!(lacking(&nodes, &NOBODY, anywhere, &wanted, &[]), 1, "nothing starts on it meanwhile");
        // Whoever keeps pods away on purpose does so for longer.
        nodes.insert("b".into(), NodeView { taints: vec![taint("mine")], ..silent.clone() });
        assert_eq!(short(&nodes, 1000).unwrap(), told);
        nodes.insert("b".into(), NodeView { away_since: None, ..silent });
        assert_eq!(short(&nodes, 1000).unwrap(), told);
    }

    #[test]
    fn one_more_pod_needs_room_for_the_services() {
        let anywhere = NodeChoice { selector: &BTreeMap::new(), affinity: &BTreeMap::new(), tolerations: &[] };
        // Nodes of 8 and of 4 cores.
        let served = |brokers: u32, cores: u32, services: u32| Gang {
            services: Some(Amounts::broker(services, 0)),
            ..gang("lake", brokers, Amounts::broker(cores, 0))
        };
        let lacks = |choice, pods: &[PodView], wanted: Gang, coming: &[Gang]| {
            (lacking(&world(), pods, choice, &wanted, coming), ever(&world(), pods, choice, &wanted))
        };
        assert_eq!(lacks(anywhere, &[], gang("lake", 3, Amounts::broker(4, 0)), &[]), (0, None));
        let told = "the 2 nodes that it may run on can hold 2 of 3 brokers, each of which takes 4 cores beside the pod of its services";
        assert_eq!(lacks(anywhere, &[], served(3, 4, 1), &[]), (1, Some(told.to_owned())));
        assert_eq!(lacks(anywhere, &[], served(1, 8, 4), &[]), (0, None), "it goes where no broker fits");
        let told = "no node that it may run on can hold the pod of its services, which takes 9 cores";
        assert_eq!(lacks(anywhere, &[], served(1, 1, 9), &[]), (1, Some(told.to_owned())));
        // Of one that is coming: until there is such a pod, which counts by itself.
        assert_eq!(lacks(anywhere, &[], gang("", 2, Amounts::broker(4, 0)), &[served(1, 4, 1)]).0, 1);
        let there = PodView { name: "lake-services".into(), job: None, ..pod("b", "", 1000) };
        assert_eq!(lacks(anywhere, &[there], gang("", 1, Amounts::broker(4, 0)), &[served(1, 4, 1)]).0, 0);
        // It does not go by the affinity of the brokers.
        let pool = BTreeMap::from([("pool".to_owned(), vec!["hpc".to_owned()])]);
        let picky = NodeChoice { affinity: &pool, ..anywhere };
        let mut nodes = world();
        nodes.get_mut("a").unwrap().labels.insert("pool".into(), "hpc".into());
        let wanted = |services| {
            (
                lacking(&nodes, &NOBODY, picky, &served(2, 4, services), &[]),
                ever(&nodes, &[], picky, &served(2, 4, services)),
            )
        };
        assert_eq!(wanted(4), (0, None));
        assert_eq!(wanted(5).0, 2, "only in their place it has room");
    }

    #[test]
    fn two_gangs_do_not_get_one_place_for_their_services() {
        let pool = BTreeMap::from([("pool".to_owned(), vec!["hpc".to_owned()])]);
        let picky = NodeChoice { selector: &BTreeMap::new(), affinity: &pool, tolerations: &[] };
        // Brokers may run on a node of 8 cores, their services on one of 4 as well.
        let mut nodes = world();
        nodes.get_mut("a").unwrap().labels.insert("pool".into(), "hpc".into());
        let served = |name, brokers| Gang {
            services: Some(Amounts::broker(4, 0)),
            ..gang(name, brokers, Amounts::broker(4, 0))
        };
        let lacks =
            |pods: &[PodView], brokers, coming: &[Gang]| lacking(&nodes, pods, picky, &served("pond", brokers), coming);
        assert_eq!(lacks(&[], 2, &[]), 0);
        let lake = served("lake", 1);
        assert_eq!(
            lacks(&[], 1, slice::from_ref(&lake)),
            1,
            "its services have that place, and ours take that of our broker"
        );
        let unbound = PodView { name: "lake-services".into(), node: None, job: None, ..pod("", "", 4000) };
        assert_eq!(lacks(&[unbound], 1, slice::from_ref(&lake)), 1, "until they are bound");
        let bound = PodView { name: "lake-services".into(), job: None, ..pod("b", "", 4000) };
        assert_eq!(lacks(&[bound], 1, &[lake]), 1, "and then");
        let requests = Amounts { memory: 1 << 30, ..Amounts::broker(1, 0) };
        let other = PodView { node: None, job: None, requests, ..pod("", "", 0) };
        assert_eq!(lacks(std::slice::from_ref(&other), 1, &[]), 0);
        assert_eq!(lacks(&[other.clone(), other], 1, &[]), 1, "each takes the memory of a whole node");
    }

    #[test]
    fn taking_spreads_and_says_what_did_not_fit() {
        let mut free = free(&world(), &NOBODY, &Brokers::new(), &|node| node.taints.is_empty());
        assert_eq!(take(&mut free, Amounts::broker(2, 0), 4), 0);
        assert_eq!((free["a"].milli_cores, free["b"].milli_cores), (2000, 2000));
        assert_eq!(take(&mut free, Amounts::broker(2, 0), 3), 1);
    }
}
