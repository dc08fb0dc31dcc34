//! What people can do about reasons that agents give: one table for all commands.

/// How definitions are brought up to date. Their fields belong to whoever wrote them last, upstream's manifest or an older
/// helm: hence `--force-conflicts`.
pub const DEFINITIONS: &str = "helm upgrade of the release that has the definitions, with this version's chart; without helm: \
                               agentctl crds | kubectl apply --server-side --force-conflicts -f -";

/// Why a peer is not connected: by the reason of its ClusterPeer's condition `Connected`.
pub fn connection(reason: &str) -> &'static str {
    match reason {
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
        "CertificateExpired" => "compare the clocks of both clusters' nodes",
        "UntrustedCertificate" | "WrongTrustDomain" => {
            "an authority was replaced meanwhile: remove the peer on both sides and join again"
        }
        "WrongIdentity" => "the endpoint leads to another cluster: correct federation.advertise there, and join again",
        "WrongClusterUID" => "that cluster was made anew: remove the peer on both sides and join again",
        "UnknownPeer" => "the other side has no ClusterPeer of this cluster (any more): join again",
        "IncompatibleVersion" => "bring both agents to versions that speak one protocol: agentctl version shows them",
        "Suspended" => "resume it: agentctl peer resume NAME",
        _ => "agentctl peers and the logs of both agents say more",
    }
}

/// Why a peer refused a burst: by the reason of the refusal.
pub fn refusal(reason: &str, peer: &str) -> String {
    let text = match reason {
        "ImportNotAllowed" => {
            "on {peer}, this cluster's ClusterPeer needs an import: agentctl peer add CLUSTER --import NAMESPACE writes one"
        }
        "NamespaceNotAllowed" => {
            "add the namespace to import.namespaces of this cluster's ClusterPeer on {peer}, or use another one"
        }
        "NamespaceNotFound" => "create the namespace on {peer}: kubectl create namespace",
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
        "QuotaExceeded" => "make the burst smaller, or raise the ResourceQuota of the namespace on {peer}",
        "Draining" => {
            "the owner of {peer} takes nothing new: name another peer, or wait for agentctl peer resume there"
        }
        "NotEnoughCores" => {
            "ask for fewer brokers or cores per broker (clusters[].size, clusters[].cores), or add nodes to {peer}"
        }
        "RankMapMismatch" | "InvalidTemplate" => "bring both agents to one version: agentctl version shows them",
        "FluxVersionMismatch" => "use the same Flux major.minor on both sides: flux.container.image",
        "PolicyForbids" => "leave the field out, or have the import policy on {peer} name it",
        "PodSecurity" => "leave the setting out, or have import.podSecurity on {peer} set to a level that admits it",
        "NotRenderable" => "the API server of {peer} says what is wrong: correct the spec",
        "NameTaken" => "give the burst a name of its own: clusters[].name",
        "EvictedByProvider" => "the owner of {peer} does not want it; agentctl burst retry NAME offers it again",
        "Undeliverable" => "make the spec smaller: scripts belong into the image or into ConfigMaps",
        _ => "the log of the agent on {peer} says more",
    };
    text.replace("{peer}", peer)
}

/// Why the lead broker's address is not known: by the reason of a Burst's condition `LeadAddress`.
pub fn lead_address(reason: &str) -> &'static str {
    match reason {
        "WaitingForNodePort" => {
            "the API server assigns the port of Service NAME-lead: is its range of node ports exhausted?"
        }
        "WaitingForPod" => "the lead broker's pod has to be scheduled first: agentctl why names what keeps it",
        "WaitingForLoadBalancer" => {
            "install something that provides load balancers, or use flux.bursting.network.type: NodePort or Tunnel"
        }
        "NoUsableAddress" => {
            "write an address (flux.bursting.network.address), choose among the node's kinds (preferredAddressTypes), or use \
             flux.bursting.network.type: Tunnel, which needs none"
        }
        _ => "the log of the agent says more",
    }
}

/// Why a MiniCluster waits: by the reason of its condition `Ready`.
pub fn waiting(reason: &str) -> &'static str {
    match reason {
        "NameTaken" => "rename or delete one of the two",
        // The sentence itself says what to do.
        "CannotCreate" | "CannotMaintain" => "kubectl describe minicluster shows since when",
        "BurstUndecided" => "the agent looks at the burst within seconds; if not, see agentctl check",
        "LeftOver" => "Kubernetes deletes what is left of the earlier one: it takes a moment",
        "CertificateMissing" => {
            "restore the Secret, or start a new instance with a certificate of its own: agentctl rekey"
        }
        "Queued" => {
            "kubectl get fluxsetups shows what is taken, and status.next who is next; a smaller size, a priority (annotation \
             tributary.dev/priority) or deadlineSeconds lets it start sooner"
        }
        "VolumeNotAllowed" => {
            "use a volume that volumes of the agent's configuration allows, or ask who administers it"
        }
        "VolumeIsDeleted" => "kubectl describe pvc names the pods that still use it: it goes when they have ended",
        "RankMapUnreadable" => "delete the Job: a new instance is made",
        "DefinitionOutdated" => DEFINITIONS,
        _ => "kubectl describe minicluster, and the log of the agent, say more",
    }
}

/// Why a FluxJob does not start: by the reason of its condition `Valid` or `Admitted`.
pub fn queue(reason: &str) -> &'static str {
    match reason {
        "Waiting" | "Queued" => {
            "kubectl get fluxsetups shows what is taken, and status.next who is next; a smaller size, spec.priority or \
             spec.timeLimitSeconds lets it start sooner"
        }
        "NeverFits" => "ask for less, write spec.timeLimitSeconds, or have the FluxSetup allow more",
        "NodesTooSmall" => {
            "ask for less, correct the pod's nodeSelector, nodeAffinity or tolerations in spec.miniCluster, or add nodes"
        }
        "Invalid" => "correct the field; kubectl explain fluxjob.spec describes it",
        "NameTaken" => "delete the object of its name, or give the FluxJob another name",
        "CameBack" => "no peer took it: it stands in line again, and is offered again after a while",
        _ => "kubectl describe fluxjob, and the log of the agent, say more",
    }
}

/// Why pods cannot be made: by the words of the API server.
pub fn pod_creation(message: &str) -> &'static str {
    let said = |words: &str| message.contains(words);
    if said("exceeded quota") {
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
        "kubectl describe job says more"
    }
}

/// Why a pod is on no node: by the words of the scheduler.
pub fn scheduling(message: &str) -> &'static str {
    let said = |words: &str| message.contains(words);
    if said("Insufficient") {
        "free or add nodes, ask for less (size, cores, resources), or let part of it burst: flux.bursting.clusters"
    } else if said("untolerated taint") {
        "tolerate the taint (pod.tolerations), or use other nodes"
    } else if said("node affinity") || said("node selector") || said("nodeSelector") {
        "no node has the labels that pod.nodeSelector or pod.nodeAffinity ask for: kubectl get nodes --show-labels"
    } else if said("persistentvolumeclaim") || said("PersistentVolumeClaim") || said("volume") {
        "make the claim, or see why it is not bound: kubectl get pvc"
    } else if said("Too many pods") {
        "the nodes run as many pods as they may: add nodes"
    } else if said("no nodes available") {
        "the cluster has no nodes yet"
    } else {
        "kubectl describe pod says more"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without it the API server answers 409 where anybody else has applied them: `tests/cluster/migration.rs`.
    #[test]
    fn definitions_are_taken_over_from_whoever_applied_them() {
        assert!(waiting("DefinitionOutdated").contains("kubectl apply --server-side --force-conflicts"));
    }
}
