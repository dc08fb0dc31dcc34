use tributary::bursting::provider::Reason;
use tributary::contract::RejectionReason;

use super::*;
use crate::paste::check::pastes;

/// Every reason that a match of this file names.
fn reasons() -> Vec<&'static str> {
    let source = include_str!("../hints.rs");
    let source = source.split("#[cfg(test)]").next().unwrap();
    let words = source.split('"').filter(|word| {
        word.starts_with(|one: char| one.is_ascii_uppercase()) && word.chars().all(|one| one.is_ascii_alphabetic())
    });
    words.chain(["OfANewerAgent"]).collect()
}

/// Without it the API server answers 409 where anybody else has applied them: `tests/cluster/migration.rs`.
#[test]
fn definitions_are_taken_over_from_whoever_applied_them() {
    assert!(DEFINITIONS.contains("kubectl apply --server-side --force-conflicts"));
}

/// The danger: a reason that agents give, of which people are told to read a log.
#[test]
fn every_reason_of_a_refusal_or_an_end_has_a_hint_of_its_own() {
    let (pair, lake) = (Pair { peer: "west", us: Some("east") }, Object { namespace: "flux", name: "lake" });
    let refused = |reason: &str| refusal(reason, "", pair, lake);
    for reason in RejectionReason::KNOWN {
        assert_ne!(refused(reason.as_str()), refused("OfANewerAgent"), "{reason:?}");
    }
    for reason in Reason::ALL.iter().map(|reason| reason.as_str()) {
        let hint = leaving(reason, "west", "`agentctl --context west why lake --namespace flux`");
        assert_ne!(hint, leaving("OfANewerAgent", "west", ""), "{reason}");
        pastes(&hint);
    }
}

#[test]
fn every_command_of_a_hint_can_be_pasted() {
    let lake = Object { namespace: "flux", name: "lake" };
    let pairs = [Some("east"), None].map(|us| Pair { peer: "west", us });
    let words = [
        "",
        "exceeded quota",
        "didn't match node selector",
        "persistentvolumeclaim",
        "volume node affinity conflict",
        NOT_READY,
        "violates PodSecurity",
    ];
    for pair in pairs {
        for reason in reasons() {
            pastes(&connection(reason, pair));
            pastes(&refusal(reason, "namespace hpc does not exist here", pair, lake));
        }
        pastes(&suspended_there(pair));
    }
    for reason in reasons() {
        pastes(&lead_address(reason, lake));
        pastes(&waiting(reason, lake));
        pastes(&queue(reason, lake));
    }
    for said in words {
        pastes(&pod_creation(said, lake));
        pastes(&scheduling(said, lake));
    }
}

/// The danger: "make the burst smaller", and the quota wants requests; or "peer add --import", and nobody may allow that namespace.
#[test]
fn where_one_reason_has_several_causes_the_message_decides() {
    let (pair, lake) = (Pair { peer: "west", us: Some("east") }, Object { namespace: "flux", name: "lake" });
    for (reason, message, hint) in [
        ("QuotaExceeded", "exceeded quota: team", "make the burst smaller"),
        ("QuotaExceeded", "failed quota: team: must specify limits.cpu", "the ResourceQuota there wants"),
        (
            "NamespaceNotAllowed",
            "namespace flux is not in import.namespaces of ClusterPeer east",
            "use another namespace, or have",
        ),
        (
            "NamespaceNotAllowed",
            "namespace kube-system is the cluster's own: ClusterPeer east would have to name it in import.namespaces",
            "use another namespace",
        ),
        (
            "NamespaceNotAllowed",
            "namespace agents is the agent's own here: it holds the keys of this cluster's identity, and no bursts",
            "use another namespace",
        ),
        (
            "NamespaceNotAllowed",
            "import.targetNamespace of ClusterPeer east makes \"a/b\" of flux, which is no name",
            "the owner of west corrects",
        ),
    ] {
        let told = refusal(reason, message, pair, lake);
        assert!(told.starts_with(hint), "{message}: {told}");
        assert_eq!(told.contains("peer add"), message.contains("is not in"), "{message}: {told}");
        pastes(&told);
    }
}

/// The danger: a live object of somebody else's is deleted, since a burst wanted its name.
#[test]
fn a_taken_name_is_freed_by_hand_only_where_nothing_else_frees_it() {
    let (pair, lake) = (Pair { peer: "west", us: Some("east") }, Object { namespace: "flux", name: "lake" });
    for (message, deletes, passes) in [
        (
            "a burst of another cluster has this name here: give the burst (clusters[].name) or the FluxJob another name",
            false,
            false,
        ),
        ("MiniCluster lake exists here and is no hosted burst", false, false),
        ("another burst is about to take this name here", false, true),
        ("other bursts of the same peer want this name here, and are looked at first", false, true),
        ("what is left of an earlier burst is leaving", false, true),
        ("what is left of an earlier burst does not go by itself: Job flux/lake", true, false),
    ] {
        let told = refusal("NameTaken", message, pair, lake);
        assert!(told.contains("another name"), "{message}: {told}");
        assert_eq!((told.contains("delete"), told.contains("wait")), (deletes, passes), "{message}: {told}");
    }
}

/// The danger: "tolerate the taint" of the control plane's node, and the other nodes lack a label.
#[test]
fn a_pod_that_finds_no_node_is_told_what_the_best_nodes_lack() {
    let lake = Object { namespace: "flux", name: "lake" };
    let control_plane = "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }";
    let others = " preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.";
    for (said, hint) in [
        ("3 node(s) didn't match Pod's node affinity/selector.".to_owned(), "no node has the labels"),
        (
            format!("{control_plane}, 3 node(s) didn't match Pod's node affinity/selector.{others}"),
            "no node has the labels",
        ),
        (format!("{control_plane}."), "tolerate the taint"),
        (format!("{control_plane}, 1 Insufficient cpu."), "free or add nodes"),
        ("1 Insufficient cpu, 3 node(s) had untolerated taint {gpu: }.".to_owned(), "free or add nodes"),
        ("1 Insufficient cpu, 3 node(s) were unschedulable.".to_owned(), "free or add nodes"),
        (
            "100 node(s) didn't match Pod's node affinity/selector, 4 Insufficient nvidia.com/gpu.".to_owned(),
            "free or add nodes",
        ),
        (
            "9 node(s) had untolerated taint {gpu: }, 3 node(s) didn't match Pod's node affinity/selector.".to_owned(),
            "no node has the labels",
        ),
        ("2 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.".to_owned(), "the nodes are not ready"),
        ("4 node(s) had volume node affinity conflict.".to_owned(), "its volume is on other nodes"),
        ("pod has unbound immediate PersistentVolumeClaims.".to_owned(), "make the claim"),
        ("4 Too many pods.".to_owned(), "the nodes run as many pods"),
    ] {
        let told = scheduling(&format!("0/4 nodes are available: {said}"), lake);
        assert!(told.starts_with(hint), "{said}: {told}");
    }
    assert_eq!(scheduling("no nodes available to schedule pods", lake), "the cluster has no nodes yet");
}

#[test]
fn what_has_to_be_done_elsewhere_is_a_command_for_there() {
    let (pair, lake) = (Pair { peer: "west", us: Some("east") }, Object { namespace: "flux", name: "lake" });
    assert_eq!(connection("Suspended", pair), "in west: `agentctl --context west peer resume east`");
    assert_eq!(
        refusal("NamespaceNotFound", "namespace guests-flux does not exist here, or", pair, lake),
        "in west: `kubectl --context west create namespace guests-flux`; if it exists, the owner of west adds it to \
         watchNamespaces of the agent's chart there"
    );
}
