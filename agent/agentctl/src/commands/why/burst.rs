//! The way of a burst from its declaration to `Ready`, condition by condition, as its root's cluster sees it. Pure.

use kube::ResourceExt;
use tributary::api::burst::{Burst, BurstHold, BurstStatus};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition::RESTART_REQUIRED;
use tributary::api::labels::{CANCEL, condition};
use tributary::api::peer::ClusterPeer;
use tributary::bursting::root::plan;
use tributary::cluster::caches::controller_uid;
use tributary::cluster::conditions::find;

use super::{Found, mini_cluster};
use crate::explain::{Condition, Explanation, Verdict, walk};
use crate::hints::{self, Object, Pair};
use crate::output::{counted, foreign};

/// What it takes until a burst is ready, in the order in which it comes about.
fn conditions<'a>() -> [Condition<View<'a>>; 11] {
    [
        ("Declared", declared),
        ("RootRuns", root_runs),
        ("Wanted", wanted),
        ("Observed", observed),
        ("Placed", placed),
        ("PeerConnected", connected),
        ("Delivered", delivered),
        ("Admitted", admitted),
        ("LeadAddress", lead_address),
        ("Preflight", preflight),
        ("Ready", ready),
    ]
}

/// One burst among what was found.
struct View<'a> {
    found: &'a Found,
    slot: &'a str,
    burst: Option<&'a Burst>,
    status: BurstStatus,
}

impl<'a> View<'a> {
    fn namespace(&self) -> String {
        let root = self.found.mini_cluster.as_ref().and_then(ResourceExt::namespace);
        self.burst.and_then(ResourceExt::namespace).or(root).unwrap_or_default()
    }

    /// What can be done about a refusal of `peer`.
    fn refusal(&self, reason: &str, message: &str, peer: &str) -> String {
        let burst = Object { namespace: &self.namespace(), name: self.slot };
        hints::refusal(reason, message, self.found.pair(peer), burst)
    }

    /// Where it is placed.
    fn peer(&self) -> &str {
        self.status.peer.as_deref().unwrap_or("the peer")
    }

    /// The burst, if it is all of an instance.
    fn whole(&self) -> Option<&'a Burst> {
        self.burst.filter(|burst| burst.spec.whole)
    }
}

/// The first of [`conditions`] that the burst of slot (or object) `name` does not meet.
pub(crate) fn explain(found: &Found, name: &str) -> Explanation {
    let burst = found.bursts.iter().find(|burst| burst.spec.slot == name || burst.name_any() == name);
    let status = burst.and_then(|burst| burst.status.clone()).unwrap_or_default();
    let slot = burst.map_or(name, |burst| &burst.spec.slot);
    let root = found.mini_cluster.as_ref().and_then(ResourceExt::namespace);
    let namespace = burst.and_then(ResourceExt::namespace).or(root).unwrap_or_default();
    let object = format!("Burst {namespace}/{slot}");
    Explanation { unseen: found.unseen.clone(), ..walk(object, &View { found, slot, burst, status }, &conditions()) }
}

fn declared(view: &View<'_>) -> Verdict {
    if let Some(burst) = view.burst.filter(|burst| controller_uid(*burst).is_none()) {
        let hint = format!("`kubectl delete burst {} -n {}`", burst.name_any(), burst.namespace().unwrap_or_default());
        return Verdict::unmet(
            "NoOwner",
            "nothing owns this Burst: it was restored from a backup, or its root was deleted alone",
            &hint,
        );
    }
    if let Some(burst) = view.whole() {
        return Verdict::Met(format!("it is FluxJob {}, sent as a whole", burst.spec.root));
    }
    let Some(root) = &view.found.mini_cluster else {
        return Verdict::unmet(
            "NoRoot",
            "its root MiniCluster is gone",
            "the burst leaves with it: nothing is to be done",
        );
    };
    let name = root.name_any();
    if root.spec.bursts(&name).any(|(slot, _)| slot == view.slot) {
        return Verdict::Met(format!("MiniCluster {name} declares it"));
    }
    let cause = format!("MiniCluster {name} does not declare it (any more): it leaves");
    Verdict::unmet("NotDeclared", cause, "declare it again in flux.bursting.clusters")
}

fn root_runs(view: &View<'_>) -> Verdict {
    if view.whole().is_some() {
        return Verdict::Skip;
    }
    let Some(root) = &view.found.mini_cluster else { return Verdict::Skip };
    if plan::is_over(root) {
        let phase = root.status.as_ref().and_then(|status| status.phase);
        let phase = match phase.filter(|_| !root.spec.suspend && root.metadata.deletion_timestamp.is_none()) {
            Some(phase) => phase.to_string(),
            None if root.spec.suspend => "suspended".to_owned(),
            None => "being deleted".to_owned(),
        };
        let cause = format!("MiniCluster {} is {phase}: its bursts are released", root.name_any());
        return Verdict::unmet(
            "RootOver",
            cause,
            format!("more is said by `agentctl why minicluster/{} --namespace {}`", root.name_any(), view.namespace()),
        );
    }
    if root.status.as_ref().is_some_and(|status| status.incarnation.is_some()) {
        return Verdict::Met("its root has an instance that it can join".to_owned());
    }
    // Without an instance there are no ranks and no certificate: the root's own trouble is the cause.
    match mini_cluster::up_to_job(view.found).unmet {
        Some(unmet) => Verdict::unmet(unmet.reason, format!("its root does not start: {}", unmet.cause), unmet.hint),
        None => Verdict::unmet("RootStarting", "its root starts", "wait a little"),
    }
}

fn wanted(view: &View<'_>) -> Verdict {
    let Some(burst) = view.burst else {
        return Verdict::unmet(
            "NoBurst",
            "its Burst object is not made yet",
            "wait a little; else the agent's log says more",
        );
    };
    if burst.annotations().contains_key(CANCEL) {
        let hint = format!("to place it again: `agentctl burst retry {} --namespace {}`", view.slot, view.namespace());
        return Verdict::unmet("Cancelled", "somebody took it back", hint);
    }
    if view.status.held == Some(BurstHold::BudgetSpent) {
        let hint = format!(
            "raise its budget in the spec, or give budget.renewal another value; what was used is in \
             `agentctl bursts --namespace {} -o json`",
            view.namespace()
        );
        return Verdict::unmet("BudgetSpent", view.status.message.clone(), hint);
    }
    if view.status.held == Some(BurstHold::Leaving) {
        let hint = "brokers get the drain time to end; if it takes longer, see what is left in the cluster of the peer: `agentctl status`";
        return Verdict::unmet("Leaving", view.status.message.clone(), hint);
    }
    if let Some(said) = find(&view.status.conditions, condition::DEMAND).filter(|said| said.status == "Unknown") {
        let hint = format!(
            "a program beside the lead broker tells the agent of the queue, at port 8052 of the lead's pod: it starts with the \
             instance (`agentctl restart minicluster/{} --namespace {}`), needs a Python that knows Flux, and the agent must \
             reach it; until the queue is heard of, the burst stays as it is",
            burst.spec.root,
            view.namespace()
        );
        return Verdict::unmet(said.reason.clone(), said.message.clone(), hint);
    }
    // Who asks for it finds that there is nobody to take it: that is said at once.
    let is_known = |name: &String| view.found.peers.iter().any(|peer| peer.name_any() == *name);
    let named = &burst.spec.peers;
    let nowhere = view.found.unseen.is_empty() && !named.is_empty() && !named.iter().any(is_known);
    if view.status.held == Some(BurstHold::NoDemand) && !nowhere {
        let hint = format!(
            "that is all right; flux submit --setattr=burstable, or --requires=burst-{}, asks for it",
            view.slot
        );
        return Verdict::unmet(ASLEEP, view.status.message.clone(), hint);
    }
    match burst.spec.release {
        true => Verdict::unmet("Released", "it is being released", "the agent offers it again when its root wants it"),
        false => Verdict::Skip,
    }
}

/// Reason of a burst that nobody asks for.
pub(super) const ASLEEP: &str = "Asleep";

fn observed(view: &View<'_>) -> Verdict {
    let Some(burst) = view.burst else { return Verdict::Skip };
    if view.status.observed_generation >= burst.metadata.generation {
        return Verdict::Skip;
    }
    match &view.found.agent {
        Some(Err(why)) => {
            Verdict::unmet("NoAgent", why.clone(), "install or mend it; what is missing is said by `agentctl check`")
        }
        _ => {
            Verdict::unmet("NotObserved", "the agent has not seen it as it is", "wait a little; else its log says more")
        }
    }
}

fn placed(view: &View<'_>) -> Verdict {
    if let Some(peer) = &view.status.peer {
        return Verdict::Met(format!("on {peer}"));
    }
    // Of several peers, the one that its user named first.
    let named = view.burst.map(|burst| burst.spec.peers.clone()).unwrap_or_default();
    let refusals = &view.status.refusals;
    let first =
        named.iter().find_map(|peer| refusals.iter().find(|one| one.peer == *peer)).or_else(|| refusals.first());
    let away = || named.iter().find_map(|peer| unusable(view.found, peer));
    if let (None, Some(unusable)) = (first, away()) {
        return unusable;
    }
    if let Some(refusal) = first {
        let others: Vec<_> = refusals
            .iter()
            .filter(|one| one.peer != refusal.peer)
            .map(|one| format!("; {} refused too ({})", one.peer, one.reason))
            .collect();
        let cause = format!("{} refused it: {}{}", refusal.peer, refusal.message, others.concat());
        return Verdict::unmet(
            refusal.reason.clone(),
            cause,
            view.refusal(&refusal.reason, &refusal.message, &refusal.peer),
        );
    }
    if view.found.peers.is_empty() && view.found.unseen.is_empty() {
        return Verdict::unmet("NoPeers", "this cluster has no peers", hints::NO_PEERS);
    }
    let message = if view.status.message.is_empty() { "no peer was chosen yet" } else { &view.status.message };
    let hint = match view.burst.map(|burst| &burst.spec.selector) {
        Some(selector) if named.is_empty() && *selector != Default::default() => {
            "which peers match? `kubectl get clusterpeers --all-namespaces --show-labels`; which of them are connected, and \
             what they have free: `agentctl peers`"
        }
        _ => "which peers are connected, and what they have free: `agentctl peers`",
    };
    Verdict::unmet("NoCandidate", message, hint)
}

/// Why a peer cannot be used, if its ClusterPeer says so.
fn unusable(found: &Found, name: &str) -> Option<Verdict> {
    if !found.unseen.is_empty() && found.peers.is_empty() {
        return None;
    }
    if found.federation.as_ref().is_some_and(|all| all.cluster == name) {
        let hint = "name another cluster: bursts leave this one, and brokers here are counted by spec.size";
        return Some(Verdict::unmet("OwnCluster", format!("{name} is this cluster itself"), hint));
    }
    let Some(peer) = found.peers.iter().find(|peer| peer.name_any() == name) else {
        let known: Vec<_> = found.peers.iter().map(ResourceExt::name_any).collect();
        let known =
            if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) };
        let hint = format!("correct the name ({known}), or make it a peer: {}", hints::NO_PEERS);
        return Some(Verdict::unmet("UnknownPeer", format!("there is no ClusterPeer {name}"), hint));
    };
    disconnected(peer, found.pair(name))
}

/// Why there is no connection to a peer, or it is not to be used.
pub(super) fn disconnected(peer: &ClusterPeer, pair: Pair<'_>) -> Option<Verdict> {
    let name = peer.name_any();
    if peer.spec.suspend {
        return Some(Verdict::unmet(
            "Suspended",
            format!("peer {name} is suspended"),
            format!("`agentctl peer resume {name}`"),
        ));
    }
    if peer.spec.drain {
        return Some(Verdict::unmet(
            "Draining",
            format!("peer {name} is drained"),
            format!("`agentctl peer resume {name}`"),
        ));
    }
    let status = peer.status.clone().unwrap_or_default();
    if status.connected {
        return None;
    }
    let said = find(&status.conditions, condition::CONNECTED);
    let (reason, message) = said
        .map_or(("NotObserved", "no agent has looked at its ClusterPeer yet"), |said| (&said.reason, &said.message));
    let cause = format!("peer {name} is not connected ({reason}): {message}");
    Some(Verdict::unmet(reason, cause, hints::connection(reason, pair)))
}

fn connected(view: &View<'_>) -> Verdict {
    let Some(name) = &view.status.peer else { return Verdict::Skip };
    let peer = view.found.peers.iter().find(|peer| peer.name_any() == *name);
    let Some(peer) = peer else {
        if view.found.peers.is_empty() && !view.found.unseen.is_empty() {
            return Verdict::Unknown("the ClusterPeers could not be read".to_owned());
        }
        let cause = format!("its ClusterPeer {name} was removed: {}", view.status.message);
        let hint = release(view).unwrap_or_else(|| "the burst is placed again when that time is over".to_owned());
        return Verdict::unmet("PeerRemoved", cause, hint);
    };
    match disconnected(peer, view.found.pair(name)) {
        Some(Verdict::Unmet { reason, cause, hint }) => {
            let until = view.status.reserved_until.as_ref();
            let until = until.map(|until| format!("; its ranks stay reserved until {:.0}", until.0));
            let kept = until.or_else(|| {
                release(view)
                    .map(|_| "; its ranks are its own until it is back: no time frees them without a tunnel".into())
            });
            let hint = [Some(hint), release(view)].into_iter().flatten().collect::<Vec<_>>().join("; ");
            Verdict::unmet(reason, cause + &kept.unwrap_or_default(), hint)
        }
        _ => Verdict::Met(format!("{name} is connected")),
    }
}

/// How to free a slot that no time frees.
fn release(view: &View<'_>) -> Option<String> {
    let (burst, status) = (view.burst?, &view.status);
    let kept = status.phase == BurstPhase::Lost && status.lost_since.is_some() && status.reserved_until.is_none();
    kept.then(|| {
        format!(
            "if it is gone for good: make sure that nothing of the burst runs there, then \
             `agentctl burst release {} --namespace {}`",
            burst.name_any(),
            burst.namespace().unwrap_or_default()
        )
    })
}

fn delivered(view: &View<'_>) -> Verdict {
    match find(&view.status.conditions, condition::DELIVERED).filter(|said| said.status == "False") {
        Some(said) => {
            let hint = view.refusal(&said.reason, &said.message, view.peer());
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint)
        }
        None => Verdict::Skip,
    }
}

fn admitted(view: &View<'_>) -> Verdict {
    let peer = view.peer();
    match find(&view.status.conditions, condition::ADMITTED) {
        Some(said) if said.status == "True" => Verdict::Met(format!("{peer} accepted it")),
        Some(said) if said.status == "False" => {
            Verdict::unmet(said.reason.clone(), said.message.clone(), view.refusal(&said.reason, &said.message, peer))
        }
        _ => {
            let hint = format!("wait a little; else the log of the agent on {peer} says more");
            Verdict::unmet("Unanswered", format!("{peer} has not answered the offer yet"), hint)
        }
    }
}

fn lead_address(view: &View<'_>) -> Verdict {
    match find(&view.status.conditions, condition::LEAD_ADDRESS).filter(|said| said.status == "False") {
        Some(said) => {
            let cause = format!("where bursts reach the lead broker is not known: {}", said.message);
            let name = view.burst.map(|burst| burst.spec.root.clone()).unwrap_or_default();
            let root = Object { namespace: &view.namespace(), name: &name };
            Verdict::unmet(said.reason.clone(), cause, hints::lead_address(&said.reason, root))
        }
        None => Verdict::Skip,
    }
}

/// What the provider found out before it made pods.
fn preflight(view: &View<'_>) -> Verdict {
    match find(&view.status.conditions, condition::PREFLIGHT) {
        Some(said) if said.status == "False" => {
            let failed = view.status.preflight.iter().find(|finding| finding.outcome == FAILED);
            let hint = failed.map(|finding| finding.hint.clone()).filter(|hint| !hint.is_empty());
            let hint = hint.unwrap_or_else(|| "every finding is in `agentctl check`".to_owned());
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint)
        }
        Some(said) if said.status == "True" => Verdict::Met(said.message.clone()),
        Some(said) => Verdict::Unknown(said.message.clone()),
        None => Verdict::Skip,
    }
}

/// Outcome of a preflight finding that keeps brokers from joining.
pub(in crate::commands) const FAILED: &str = "fail";

fn ready(view: &View<'_>) -> Verdict {
    match view.status.phase {
        BurstPhase::Ready => joined(view),
        BurstPhase::Finished => Verdict::Met(format!("it has ended: {}", view.status.message)),
        _ => under_way(view),
    }
}

/// Whether those that are ready are all that its root wants, and brokers.
fn joined(view: &View<'_>) -> Verdict {
    let (status, peer) = (&view.status, view.peer());
    if let (Some(burst), Some(root)) = (view.burst, &view.found.mini_cluster)
        && let Some(missing) = burst.shortfall(root)
    {
        let cause = format!("{missing} ({} are there)", counted(status.ready_brokers, "broker"));
        let hint = hints::restart(Object { namespace: &root.namespace().unwrap_or_default(), name: &root.name_any() });
        return Verdict::unmet(RESTART_REQUIRED, cause, hint);
    }
    if status.simulated {
        return Verdict::Unknown(format!(
            "{} on {peer} are ready; its nodes are simulated (kwok), so whether brokers are online cannot be told",
            counted(status.ready_brokers, "pod")
        ));
    }
    let joined = format!("{} on {peer} joined", counted(status.ready_brokers, "broker"));
    let in_agents = find(&status.conditions, condition::TUNNEL_ENDS).filter(|said| said.status == "False");
    Verdict::Met(in_agents.map_or(joined.clone(), |said| format!("{joined}; {}", said.message)))
}

/// What is said of it here and by its peer.
fn under_way(view: &View<'_>) -> Verdict {
    let (status, peer, slot) = (&view.status, view.peer(), view.slot);
    let there = view.found.federation.as_ref().and_then(|all| all.clusters.iter().find(|row| row.name == peer));
    let theirs = there.and_then(|row| row.status.as_ref());
    let hosted = theirs.and_then(|theirs| theirs.hosted.iter().find(|row| row.name == slot));
    let made =
        theirs.and_then(|theirs| theirs.mini_clusters.iter().find(|row| row.name == slot && row.hosted_for.is_some()));
    let mut said = vec![status.message.clone()];
    let more = [hosted.and_then(|row| row.message.clone()), made.and_then(|row| row.message.clone())];
    // Its commands are for its own cluster.
    for text in more.into_iter().flatten().map(|text| foreign(&text)) {
        if !said.iter().any(|known| known.contains(&text)) {
            said.push(text);
        }
    }
    let silent = there.and_then(|row| row.error.as_ref()).map(|error| format!(" ({peer} tells nothing more: {error})"));
    let cause = format!("{}{}", said.join("; "), silent.unwrap_or_default());
    // Where it is put there is the peer's own choice.
    let own = view.burst.and_then(ResourceExt::namespace).unwrap_or_default();
    let namespace = hosted.map_or(&own, |row| &row.namespace);
    let there =
        format!("what keeps it is said in {peer}: `agentctl --context {peer} why {slot} --namespace {namespace}`");
    Verdict::unmet(status.phase.to_string(), cause, what_to_do(view, there))
}

/// `there`: how to ask its peer.
fn what_to_do(view: &View<'_>, there: String) -> String {
    match view.status.phase {
        BurstPhase::Accepted => format!("the certificate is on its way; {there}"),
        BurstPhase::Queued => format!("wait until the queue of its owner lets it start; {there}"),
        BurstPhase::ScalingUp => format!("wait until its nodes have come; {there}"),
        BurstPhase::Draining => "wait until it has left; then it is placed again if its root wants it".to_owned(),
        BurstPhase::Lost => {
            release(view).unwrap_or_else(|| "what became of the connection: `agentctl peers`".to_owned())
        }
        // The lead knows which brokers it had a connection to, and how that ended. Asking takes a right that reading does not.
        BurstPhase::Joining if view.whole().is_none() => match &view.found.mini_cluster {
            Some(root) => format!(
                "{there}; which brokers Flux has lost: `agentctl shell {} --namespace {} -- flux overlay errors`",
                root.name_any(),
                root.namespace().unwrap_or_default()
            ),
            None => there,
        },
        _ => there,
    }
}
