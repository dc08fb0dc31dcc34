//! What people can do about reasons that agents give: one table for all commands. Commands are written as [`crate::paste`]
//! wants them.

use tributary::api::labels::condition;
use tributary::api::names;

/// How definitions are brought up to date. Their fields belong to whoever wrote them last, upstream's manifest or an older
/// helm: hence `--force-conflicts`.
pub(crate) const DEFINITIONS: &str = "upgrade the helm release that has the definitions with this version's chart; without helm: \
                               `agentctl crds | kubectl apply --server-side --force-conflicts -f -`";

/// How clusters become peers.
pub(crate) const NO_PEERS: &str = "`agentctl link --help` makes two clusters peers by their contexts, `agentctl token --help` and \
                            `agentctl join --help` without rights in both";

/// A namespaced object that a hint is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Object<'_> {
    fn fill(&self, text: &str) -> String {
        text.replace("{namespace}", self.namespace).replace("{name}", self.name)
    }
}

/// Two clusters that a hint is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// The peer. Its context is taken to be called so.
    pub peer: &'a str,
    /// The cluster that was asked, if it is known what it is called.
    pub us: Option<&'a str>,
}

impl Pair<'_> {
    /// A command of agentctl in the peer's cluster, which ends with our name, and what comes after it.
    fn there(&self, command: &str, options: &str) -> Option<String> {
        let us = self.us.filter(|us| !us.is_empty())?;
        Some(format!("in {peer}: `agentctl --context {peer} {command} {us}{options}`", peer = self.peer))
    }
}

/// Who resumes a connection that the peer suspended.
pub(crate) fn suspended_there(pair: Pair<'_>) -> String {
    pair.there("peer resume", "").unwrap_or_else(|| {
        let peer = pair.peer;
        format!("the owner of {peer} resumes this cluster there: `agentctl --context {peer} peers` shows its name")
    })
}

/// Why a peer is not connected: by the reason of its ClusterPeer's condition `Connected`.
pub(crate) fn connection(reason: &str, pair: Pair<'_>) -> String {
    let text = match reason {
        "Unreachable" | "Disconnected" => {
            "is the UDP port of one of both agents open for the other one (Service, NodePort, firewall)? \
             federation.advertise must name where it is reached"
        }
        "HeartbeatsMissing" => {
            "the peer was reached and has fallen silent: is its agent running, and its cluster reachable from here?"
        }
        "Flapping" => "the connection keeps breaking: look for loss on the path, and at the logs of both agents",
        "WaitingForPeer" => {
            "neither side may know where the other is: set federation.advertise in one of the agents, and join again"
        }
        "CertificateExpired" => {
            "if the message says that it expired, its renewal has failed: `agentctl --context {peer} check` and `agentctl check` say \
             more; else compare the clocks of both clusters' nodes"
        }
        "UntrustedCertificate" => {
            "{peer} has no ClusterPeer of this cluster (was it removed?), or an authority was replaced, or somebody else uses its \
             name: ask the owner of {peer}. In the first two cases, link the clusters again (`agentctl link --help`). Do not remove \
             the peer here before that: its bursts would end"
        }
        "WrongTrustDomain" => {
            "the two are in different federations, or somebody else uses the name of {peer}: ask its owner, and compare \
             federation.trust_domain of both agents"
        }
        "WrongIdentity" => {
            "the message says which it is. An endpoint that leads to another cluster: correct federation.advertise there, and \
             write the right endpoints into the ClusterPeer here, by --peer-endpoint (`agentctl peer add --help`); joining again \
             keeps the wrong one. Two clusters with one cluster.name: give one of them another. An agent whose cluster.name is not \
             that of its certificate: make them agree"
        }
        "WrongClusterUID" => {
            "another cluster has the name now: {peer} was made anew, or two are called so. If the message says that one is a copy of \
             the other, build one of them anew. If it is the right one, link the two \
             again, which says what it costs, and asks (`agentctl link --help`); if that is refused, since its authority is another \
             one, too, first `agentctl peer remove {peer} --force`"
        }
        "OwnName" => {
            "{peer} is this cluster itself: delete its ClusterPeer here (`agentctl peer remove {peer}`), and leave it out of what is \
             applied here"
        }
        "UnknownPeer" => {
            "the other side has no ClusterPeer of this cluster (any more): link the two again (`agentctl link --help`), or join with \
             a new token (`agentctl join --help`)"
        }
        "IncompatibleVersion" => {
            "bring both agents to versions that speak one protocol; they are shown by `agentctl version`"
        }
        "Suspended" => return suspended_there(pair),
        _ => "the logs of both agents say more, and so does `agentctl peers`",
    };
    text.replace("{peer}", pair.peer)
}

/// Why a peer refused a burst: by the reason of the refusal and what it said.
pub(crate) fn refusal(reason: &str, message: &str, pair: Pair<'_>, burst: Object<'_>) -> String {
    let (peer, Object { namespace, name }) = (pair.peer, burst);
    let import = || {
        let options = format!(" --import {namespace}");
        pair.there("peer add", &options)
            .unwrap_or_else(|| format!("its owner adds {namespace} to import.namespaces there"))
    };
    let text = match reason {
        "ImportNotAllowed" => return format!("{peer} lets this cluster place nothing. {}", import()),
        "NamespaceNotAllowed" if message.contains("which is no name") => {
            "the owner of {peer} corrects import.targetNamespace of this cluster's ClusterPeer there"
        }
        // Nobody can allow the first, and should allow the second.
        "NamespaceNotAllowed"
            if ["is the agent's own", "is the cluster's own"].iter().any(|own| message.contains(own)) =>
        {
            "use another namespace"
        }
        "NamespaceNotAllowed" => {
            return format!("use another namespace, or have {peer} add this one to those that it names. {}", import());
        }
        // Where it would be put there is the peer's own choice.
        "NamespaceNotFound" => {
            let named = message.split_whitespace().skip_while(|word| *word != "namespace").nth(1);
            let namespace = named.unwrap_or(namespace);
            return format!(
                "in {peer}: `kubectl --context {peer} create namespace {namespace}`; if it exists, the owner of {peer} adds it to \
                 watchNamespaces of the agent's chart there"
            );
        }
        "TooManyBursts"
        | "TooManyBrokers"
        | "TooManyCores"
        | "TooManyGpus"
        | "TooMuchMemory"
        | "TooMuchEphemeralStorage" => {
            "end another burst on {peer}, make this one smaller, or raise the limit in import of this cluster's ClusterPeer on {peer}"
        }
        "TooManyOffers" => {
            "nothing: it is looked at in its turn. Or raise import.maxOffersPerMinute of this cluster's ClusterPeer on {peer}"
        }
        "NoRoomInQueue" => {
            "it is offered again when there is room: status.rooms of the ClusterPeer shows what {peer} leaves; else have the \
             FluxSetup there grant more (spec.peers, spec.quota)"
        }
        "QuotaExceeded" if message.contains("must specify") => {
            "the ResourceQuota there wants requests or limits of each container: write containers[].resources, or have a \
             LimitRange made in that namespace on {peer}"
        }
        "QuotaExceeded" => "make the burst smaller, or raise the ResourceQuota of the namespace on {peer}",
        "Draining" => {
            let resumed = pair.there("peer resume", "").map(|there| format!(" ({there})")).unwrap_or_default();
            return format!(
                "the owner of {peer} takes nothing new: name another peer, or wait until it is resumed{resumed}"
            );
        }
        "NotEnoughCores" => {
            "ask for fewer brokers or cores (clusters[].size, clusters[].cores; of a FluxJob: spec.size, spec.resources), or add \
             nodes to {peer}"
        }
        "TooManyNodes" => {
            "wait for other bursts on {peer} to end, make this one smaller, or raise scaleUp in import of this cluster's \
             ClusterPeer on {peer}"
        }
        "ScaleUpTimedOut" => {
            "the owner of {peer} sees why no nodes came in the events and the log of the autoscaler there; name another peer, or \
             wait: it is tried there again"
        }
        "ScaleUpFailed" => {
            "the message has the autoscaler's words: its owner mends that, or import.scaleUp.provisioningRequest of this cluster's \
             ClusterPeer on {peer}; name another peer, or wait: it is tried there again"
        }
        "QueueTimedOut" => {
            "the owner of {peer} sees in the ClusterQueue there what runs before it; name another peer, or wait: it is tried there \
             again"
        }
        "PodsNotScheduled" => {
            "the owner of {peer} sees in the events of that namespace why its pods were not made or found no node; name another \
             peer, or wait: it is tried there again"
        }
        "PodsNotStarted" => {
            "the message names the container and the kubelet's reason: the image, or what the pod names, must be there on {peer}, \
             too; name another peer, or wait: it is tried there again"
        }
        "RankMapMismatch" | "InvalidTemplate" => {
            "bring both agents to one version; versions are shown by `agentctl version`"
        }
        "FluxVersionMismatch" => "use the same Flux major.minor on both sides: flux.container.image",
        "PolicyForbids" => {
            "the message has each field, and what would allow it. Where it names import.…, the owner of {peer} can allow it, in this \
             cluster's ClusterPeer there; else leave the field out"
        }
        "PodSecurity" => "leave the setting out, or have import.podSecurity on {peer} set to a level that admits it",
        "NotRenderable" => {
            "the message says what is wrong on {peer}. If it names a field, correct it; if it names a policy, a webhook or an \
             object that is not there, ask the owner of {peer}"
        }
        "LeadAddressRefused" => {
            "have the lead broker reached at another address (flux.bursting.network.address), use flux.bursting.network.type: \
             Tunnel, which needs none, or have import.leadRanges of this cluster's ClusterPeer on {peer} name its range"
        }
        "NameTaken" if message.contains("does not go by itself") => {
            "give the burst (clusters[].name) or the FluxJob another name, or have the owner of {peer} delete what the message names"
        }
        "NameTaken"
            if ["is leaving", "is about to take", "are looked at first"].iter().any(|it| message.contains(it)) =>
        {
            "wait, or give the burst (clusters[].name) or the FluxJob another name"
        }
        "NameTaken" => "give the burst (clusters[].name) or the FluxJob another name",
        "EvictedByProvider" => {
            return format!(
                "the owner of {peer} does not want it there, or not for longer; to offer it again: \
                 `agentctl burst retry {name} --namespace {namespace}`"
            );
        }
        "Undeliverable" => "make the spec smaller: scripts belong into the image or into ConfigMaps",
        _ => "the log of the agent on {peer} says more",
    };
    text.replace("{peer}", peer)
}

/// Why a burst leaves the cluster that hosts it, as is said there: by the reason in its HostedBurst. `root`: the command that
/// says more of its root.
pub(crate) fn leaving(reason: &str, peer: &str, root: &str) -> String {
    let text = match reason {
        "Released" => return format!("its root gave it up; why, is said there: {root}"),
        "Replaced" => return format!("its root was made anew, and decides whether it comes back: {root}"),
        "LeaseExpired" => "contact with {peer} was lost for too long; why, is said by `agentctl peers`",
        "TimeLimit" => "import.maxDuration of ClusterPeer {peer} says how long bursts may stay",
        "PeerDrained" => {
            "it is this cluster that drains {peer}; to take its bursts again: `agentctl peer resume {peer}`"
        }
        "ImportWithdrawn" => "ClusterPeer {peer} has no import any more: who may place bursts here has one",
        "TooManyResults" => "nothing is to be done: it has ended, and newer results of {peer} are kept",
        "NameTaken" => {
            "delete or rename the object that has the name, or have its root give the burst (clusters[].name) or the FluxJob \
             another one"
        }
        "ScaleUpTimedOut" => {
            "why no nodes came is said by the autoscaler: its events and its log. scaleUp.wait in import of the ClusterPeer says \
             how long they may take"
        }
        "ScaleUpFailed" => {
            "why there are no nodes is said by the autoscaler: its events and its log. scaleUp.provisioningRequest in import of \
             the ClusterPeer says how it is asked"
        }
        "QueueTimedOut" => {
            "why Kueue did not start it is said by its ClusterQueue and its events; queueWait in import of the ClusterPeer says \
             how long it may wait"
        }
        "PodsNotScheduled" => "why its pods were not made, or found no node, is said by the events of this namespace",
        "PodsNotStarted" => "why its pods did not start is said by the events of this namespace",
        _ => "the root decides whether it comes back",
    };
    text.replace("{peer}", peer)
}

/// Why the lead broker's address is not known: by the reason of a Burst's condition `LeadAddress`.
pub(crate) fn lead_address(reason: &str, root: Object<'_>) -> String {
    let Object { namespace, name } = root;
    let text = match reason {
        "WaitingForNodePort" => {
            return format!(
                "condition ServicesReady says why Service {} has none: `kubectl describe minicluster {name} --namespace {namespace}`; \
                 without such a condition, wait a little",
                names::lead(name)
            );
        }
        "WaitingForPod" => {
            return format!(
                "the lead broker's pod has to be scheduled first; what keeps it is named by \
                 `agentctl why {name} --namespace {namespace}`"
            );
        }
        "WaitingForLoadBalancer" => {
            return format!(
                "what its provider says: `kubectl describe service {} --namespace {namespace}`; if there is none, install one, or \
                 use flux.bursting.network.type: NodePort or Tunnel",
                names::lead(name)
            );
        }
        "NodeUnknown" => "is the node there (`kubectl get nodes`)? If it is, the log of the agent says more",
        "WrongAddress" => "correct flux.bursting.network.address: the message says what is wrong with it",
        "NoUsableAddress" => {
            "write an address (flux.bursting.network.address), choose among the node's kinds (preferredAddressTypes), or use \
             flux.bursting.network.type: Tunnel, which needs none"
        }
        _ => "the log of the agent says more",
    };
    text.to_owned()
}

/// What a queue leaves its users to do.
const LINE: &str = "what is taken, and who is next, is in `kubectl get fluxsetups --namespace {namespace} -o yaml`";

/// Why a MiniCluster waits: by the reason of its condition `Ready`.
pub(crate) fn waiting(reason: &str, object: Object<'_>) -> String {
    let text = match reason {
        "NameTaken" => "rename or delete one of the two",
        // The sentence itself says what to do.
        "CannotCreate" | "CannotMaintain" | "JobHandedOn" => {
            "since when is shown by `kubectl describe minicluster {name} --namespace {namespace}`"
        }
        "BurstUndecided" => "the agent looks at the burst within seconds; if not, see `agentctl check`",
        "LeftOver" => {
            "Kubernetes deletes what is left of the earlier one: it takes a moment. If the object stays, delete it, or \
             restart kube-controller-manager: it has missed that the earlier MiniCluster was deleted"
        }
        "CertificateMissing" => {
            "make the Secret that the message names right (key curve.cert, as `flux keygen` writes it), or leave \
             flux.curveCertSecret out: then the agent makes a certificate"
        }
        "JobSuspended" => {
            "a person or another controller suspended the Job. The managed fields say who: \
             `kubectl get job {name} --namespace {namespace} -o yaml --show-managed-fields`"
        }
        "Queued" => {
            return object.fill(&format!(
                "{LINE}; a smaller size, pod.priorityClassName or deadlineSeconds lets it start sooner"
            ));
        }
        "VolumeNotAllowed" => {
            "use a volume that volumes of the agent's configuration allows, or ask who administers it"
        }
        "VolumeIsDeleted" => {
            "it goes when the pods that still use it have ended: `kubectl describe pvc --namespace {namespace}` names them"
        }
        "RankMapUnreadable" => {
            "delete the Job, and a new instance is made: `kubectl delete job {name} --namespace {namespace}`"
        }
        _ => {
            "the log of the agent says more, and so does `kubectl describe minicluster {name} --namespace {namespace}`"
        }
    };
    object.fill(text)
}

/// Why a FluxJob does not start: by the reason of its condition `Valid` or `Admitted`.
pub(crate) fn queue(reason: &str, job: Object<'_>) -> String {
    let text = match reason {
        "Waiting" | "Queued" => {
            return job.fill(&format!(
                "{LINE}; a smaller size, spec.priorityClassName or spec.timeLimit lets it start sooner"
            ));
        }
        "NeverFits" => "ask for less, write spec.timeLimit, or have the FluxSetup allow more",
        "NodesTooSmall" => {
            "ask for less, correct the pod's nodeSelector, nodeAffinity or tolerations in spec.miniCluster, or add nodes"
        }
        "Invalid" => "correct the field; what it may be: `kubectl explain fluxjob.spec`",
        "PriorityRefused" => {
            "name a PriorityClass that the FluxSetup allows: `kubectl get priorityclasses`, `kubectl describe fluxsetup default \
             --namespace {namespace}`"
        }
        "Suspended" => "start it again: `agentctl resume fluxjob/{name} --namespace {namespace}`",
        "NameTaken" => "delete the object of its name, or give the FluxJob another name",
        "CameBack" => "it stands in line again, and is offered again after a while; the message says why it came back",
        "QuotaExceeded" => {
            "raise the ResourceQuota, ask for less, or wait until something else ends: it is tried again"
        }
        "CannotCreate" => "mend what the message names: the agent tries again by itself, and its log says more",
        "NotMade" => {
            "wait a little; if it stays so, the agent's log says more, and so does \
             `kubectl describe fluxjob {name} --namespace {namespace}`"
        }
        _ => "the log of the agent says more, and so does `kubectl describe fluxjob {name} --namespace {namespace}`",
    };
    job.fill(text)
}

/// A namespace without a queue starts no FluxJob.
pub(crate) fn no_queue(namespace: &str) -> String {
    format!(
        "whoever administers the namespace makes its queue, here one without limits: `echo \
         '{{\"apiVersion\":\"tributary.dev/v1alpha1\",\"kind\":\"FluxSetup\",\"metadata\":{{\"name\":\"default\"}},\"spec\":{{}}}}' | \
         kubectl apply --namespace {namespace} -f -`"
    )
}

/// What only a new instance brings.
pub(crate) fn restart(root: Object<'_>) -> String {
    root.fill(
        "to start the instance anew, which loses its jobs: `agentctl restart minicluster/{name} --namespace {namespace}`; or \
         write back what it was started with",
    )
}

/// The instance that is wanted cannot be made, and the one that runs stays.
pub(crate) const CANNOT_RESTART: &str =
    "mend what the message names: the agent tries again by itself, and starts the instance anew then";

/// What a MiniCluster runs with or without, against its spec: by the type and the reason of a condition.
pub(crate) fn standing(type_: &str, reason: &str, root: Object<'_>) -> String {
    let text = match type_ {
        condition::GROWN if reason == condition::RESTART_REQUIRED => {
            "the message names the command; or write back the size that it has"
        }
        condition::GROWN => return root.fill(&format!("{LINE}; or write back the size that it has")),
        condition::SPEC_SUPPORTED => "leave these fields out: they have no effect, or none where the message says so",
        condition::SERVICES_READY if reason == "CannotCreate" => {
            "mend what the message names: it is tried again all the time"
        }
        condition::SERVICES_READY => "delete or rename the object of that name, or give the MiniCluster another name",
        _ => "more is said by `kubectl describe minicluster {name} --namespace {namespace}`",
    };
    root.fill(text)
}

/// Why a peer's bursts cannot bring nodes: by the reason of its ClusterPeer's condition `ScaleUp`.
pub(crate) fn scale_up(reason: &str) -> &'static str {
    match reason {
        "Invalid" => "correct these amounts in the ClusterPeer, and its bursts can bring nodes",
        "NotServed" => {
            "install the definition of ProvisioningRequests with the autoscaler, or leave import.scaleUp.provisioningRequest out"
        }
        _ => "the log of the agent says more",
    }
}

/// Why pods cannot be made: by the words of the API server.
pub(crate) fn pod_creation(message: &str, job: Object<'_>) -> String {
    let said = |words: &str| message.contains(words);
    let text = if said("exceeded quota") {
        "raise the ResourceQuota, ask for less (size, resources), or wait until something else ends"
    } else if said("must specify") && said("quota") {
        "the ResourceQuota wants requests and limits: write containers[].resources, or add a LimitRange"
    } else if said("violates PodSecurity") {
        "the namespace enforces a pod-security level: write what it wants into containers[].securityContext and \
         pod.securityContext, or relabel the namespace"
    } else if said("serviceaccount") || said("service account") {
        "create the service account, or correct pod.serviceAccountName"
    } else if said("PriorityClass") {
        "create the PriorityClass, or name another one"
    } else if said("admission webhook") || said("denied the request") {
        "an admission webhook refuses the pods: its owner knows why"
    } else {
        "more is said by `kubectl describe job {name} --namespace {namespace}`"
    };
    job.fill(text)
}

/// Taints of nodes that are not meant for pods, or cannot take any now: with other nodes there, they are not the cause. Nor
/// are nodes that somebody has cordoned.
const NOT_FOR_PODS: [&str; 5] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node(s) were unschedulable",
    NOT_READY,
    UNREACHABLE,
];
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What keeps a pod from the nodes that come closest, as in `3 node(s) didn't match Pod's node affinity/selector`: one of the
/// clauses of the scheduler's sentence, which counts nodes by the first thing that they lack. It looks at taints, then at labels,
/// then at what is free: a node that lacks CPUs is right in all else.
fn what_the_best_nodes_lack(message: &str) -> &str {
    let now = message.split(" preemption: ").next().unwrap_or(message);
    let clauses = now.split_once("nodes are available: ").map_or(now, |(_, clauses)| clauses);
    let count = |clause: &str| clause.split(' ').next().and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
    let for_pods = |clause: &&str| !NOT_FOR_PODS.iter().any(|taint| clause.contains(taint));
    let far = |clause: &str| match clause {
        _ if clause.contains("untolerated taint") => 0,
        _ if clause.contains("volume") => 2,
        _ if clause.contains("affinity") || clause.contains("selector") => 1,
        _ => 2,
    };
    // Of as many nodes, the first.
    let best = clauses.rsplit(", ").filter(for_pods).max_by_key(|clause| (far(clause), count(clause)));
    best.unwrap_or(clauses)
}

/// Why a pod is on no node: by the words of the scheduler.
pub(crate) fn scheduling(message: &str, pod: Object<'_>) -> String {
    let clause = what_the_best_nodes_lack(message);
    let said = |words: &str| clause.contains(words);
    let text = if said("Insufficient") {
        "free or add nodes, ask for less (size, cores, resources), or let part of it burst: flux.bursting.clusters"
    } else if said(NOT_READY) || said(UNREACHABLE) {
        "the nodes are not ready, or not heard of: `kubectl get nodes`"
    } else if said("untolerated taint") {
        "tolerate the taint (pod.tolerations), or use other nodes"
    } else if said("volume node affinity conflict") {
        "its volume is on other nodes, or in another zone, as `kubectl describe persistentvolumes` says: have the pods run there, or use a \
         volume that every node reaches"
    } else if said("node affinity") || said("node selector") || said("nodeSelector") {
        "no node has the labels that pod.nodeSelector or pod.nodeAffinity ask for: `kubectl get nodes --show-labels`"
    } else if said("persistentvolumeclaim") || said("PersistentVolumeClaim") || said("volume") {
        "make the claim, or see why it is not bound: `kubectl get pvc --namespace {namespace}`"
    } else if said("Too many pods") {
        "the nodes run as many pods as they may: add nodes"
    } else if said("no nodes available") {
        "the cluster has no nodes yet"
    } else {
        "more is said by `kubectl describe pod {name} --namespace {namespace}`"
    };
    pod.fill(text)
}

#[cfg(test)]
mod tests;
