//! What a Burst's status means for people: conditions, and events on what changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tributary_api::burst::{BurstHold, BurstStatus};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::condition::{
    ADMITTED, BROKERS_ONLINE, BUDGET, DELIVERED, DEMAND, LEAD_ADDRESS, PLACED, PREFLIGHT, READY, RESTART_REQUIRED,
    TUNNEL_ENDS,
};
use tributary_cluster::conditions::{self, Statement};
use tributary_contract::PhaseTimes;
use tributary_contract::observed::Step;
use tributary_contract::tunnel::Ends;

use super::budget::{NO_PRICE, Standing};
use super::burst_status::{BurstView, accounts};
use super::demand::decide::{self, Seen};
use crate::note::Note;
use crate::statements::{NOT_CHECKABLE, online_statement, preflight_statement};

/// Reason for what does not reach the peer.
pub(super) const UNDELIVERABLE: &str = "Undeliverable";

/// Which connections end in the agents, and why.
const IN_AGENTS: &str = "connections of brokers break when another agent leads, on either side, and brokers connect again: \
    the lead's pod or the burst's runs no end of the tunnel (an older agent started it, its nodes have another architecture, \
    its image has no `getent`, `flux.brokerConfig` is the user's own, or `pod.hostNetwork` is set)";

/// Sets the conditions of `status`, and adds an event for each milestone that `old` had not reached.
pub(super) fn conclude(
    status: &mut BurstStatus,
    old: &BurstStatus,
    view: &BurstView,
    agreement: Option<Statement>,
    notes: &mut Vec<Note>,
) {
    let root = view.root.as_ref();
    let missing = root.filter(|_| status.phase == BurstPhase::Ready).and_then(|root| view.burst.shortfall(root));
    if let Some(missing) = &missing {
        status.message.clone_from(missing);
    }
    let peer = status.peer.as_deref();
    let message = status.message.as_str();
    let placed = match peer {
        Some(peer) => Statement::holds(PLACED, "Placed", format!("on {peer}")),
        None if status.phase == BurstPhase::Released => Statement::fails(PLACED, "Released", message),
        None if status.held == Some(BurstHold::NoDemand) => Statement::fails(PLACED, "Asleep", message),
        None if status.held == Some(BurstHold::BudgetSpent) => Statement::fails(PLACED, "BudgetSpent", message),
        None => Statement::fails(PLACED, "NoCandidate", message),
    };
    let admitted = match (peer, status.refusals.last()) {
        (Some(_), _) if is_admitted(status) => Statement::holds(ADMITTED, "Accepted", "the peer accepted it"),
        (Some(_), _) => Statement::unknown(ADMITTED, "Unanswered", message),
        (None, Some(refusal)) => {
            Statement::fails(ADMITTED, refusal.reason.clone(), format!("{}: {}", refusal.peer, refusal.message))
        }
        (None, None) => Statement::unknown(ADMITTED, "NotOffered", message),
    };
    let ready = match status.phase {
        BurstPhase::Ready if missing.is_some() => Statement::fails(READY, RESTART_REQUIRED, message),
        BurstPhase::Ready if status.simulated => Statement::holds(READY, "Simulated", NOT_CHECKABLE),
        BurstPhase::Ready => Statement::holds(READY, "Joined", "every wanted broker is online"),
        // It has done what it was there for.
        BurstPhase::Finished => Statement::fails(READY, "Finished", message),
        phase => Statement::fails(READY, phase.to_string(), message),
    };
    let delivered = delivered(status, old, view, notes);
    let (phase, ready_brokers, size) = (status.phase, status.ready_brokers, view.burst.spec.size);
    let wanted = root.map_or(size, |root| view.burst.wanted(root));
    let online = match missing.is_some() && wanted > size && !status.simulated {
        true => {
            let message = format!("{ready_brokers} of {wanted} brokers are online");
            Statement::fails(BROKERS_ONLINE, RESTART_REQUIRED, message)
        }
        false => online_statement(status.simulated, phase, ready_brokers, size),
    };
    let preflight = preflight_statement(&status.preflight);
    let budget = budget(status, old, view, notes);
    let demand = demand(status, old, view, notes);
    let by_tunnel = view.burst.spec.tunnel && status.peer.is_some();
    let gone = [
        (PREFLIGHT, preflight.is_none()),
        (BUDGET, budget.is_none()),
        (DEMAND, status.demand.is_none()),
        // Nobody is connected, and nobody should be.
        (TUNNEL_ENDS, !by_tunnel || view.ends.in_pods == 0 && status.ready_brokers == 0),
    ];
    let gone: Vec<&str> = gone.into_iter().filter(|(_, gone)| *gone).map(|(type_, _)| type_).collect();
    let said = [placed, admitted, ready, online].into_iter().chain(preflight).chain(budget).chain(demand);
    let more = lead_address(old, view).into_iter().chain(tunnel_ends(status, view)).chain(delivered).chain(agreement);
    let statements = said.chain(more);
    let merged = conditions::merged(&old.conditions, statements, view.burst.metadata.generation, view.now.wall);
    status.conditions = conditions::without(merged, &gone);

    let name = status.peer.as_deref().or(old.peer.as_deref()).unwrap_or("the peer");
    if is_admitted(status) && !is_admitted(old) {
        notes.push(Note::normal("Accepted", format!("{name} accepted it")));
    }
    // A burst begins as `Pending`: that it found no peer is news after each change of what is asked.
    let asked_anew = status.phase == BurstPhase::Pending && status.observed_generation != old.observed_generation;
    if status.phase == old.phase && !asked_anew {
        return;
    }
    match status.phase {
        BurstPhase::Ready => {
            let joined = if status.simulated { "pods are ready on" } else { "brokers joined from" };
            let text = format!("{} {joined} {name}{}", status.ready_brokers, took(status));
            notes.push(Note::normal("Ready", text));
        }
        BurstPhase::Finished => notes.push(Note::normal("Finished", message.to_owned())),
        BurstPhase::Released => notes.push(Note::normal("Released", format!("nothing is left on {name}"))),
        BurstPhase::Lost => notes.push(Note::warning("PeerUnreachable", message.to_owned())),
        BurstPhase::Pending => notes.push(Note::warning("NoCandidate", message.to_owned())),
        _ => {}
    }
}

/// How the tightest of its budgets stands. That it ends soon, has ended, or never ends, is an event as well.
fn budget(status: &BurstStatus, old: &BurstStatus, view: &BurstView, notes: &mut Vec<Note>) -> Option<Statement> {
    let statement = Standing::tightest(accounts(status, view), view.counted)?.statement();
    let before = conditions::find(&old.conditions, BUDGET).map(|condition| condition.reason.as_str());
    let reason = statement.reason.as_str();
    if ["Ending", "Spent", NO_PRICE].contains(&reason) && before != Some(reason) {
        notes.push(Note::warning(format!("Budget{reason}"), statement.message.clone()));
    }
    Some(statement)
}

/// Whether jobs ask for it, as far as that can be told. That it wakes or sleeps, or that nobody knows, is an event as well.
fn demand(status: &BurstStatus, old: &BurstStatus, view: &BurstView, notes: &mut Vec<Note>) -> Option<Statement> {
    let (demand, policy) = (status.demand.as_ref()?, view.burst.spec.on_demand.as_ref()?);
    let before = conditions::find(&old.conditions, DEMAND);
    let (wanted, reason, sentence) = decide::sentence(demand, policy);
    if let Some(Seen { found: Err((reason, text)), .. }) = &view.seen {
        if before.is_none_or(|before| before.reason != *reason) {
            notes.push(Note::warning(format!("Queue{reason}"), text.clone()));
        }
        return Some(Statement::unknown(DEMAND, *reason, text.clone()));
    }
    if view.seen.is_none() && before.is_some() {
        // An agent that has just started has not looked yet.
        return None;
    }
    if demand.awake != old.demand.as_ref().is_some_and(|old| old.awake) {
        notes.push(Note::normal(if demand.awake { "Woken" } else { "FellAsleep" }, sentence.clone()));
    }
    Some(Statement { status: Some(wanted), ..Statement::holds(DEMAND, reason, sentence) })
}

/// How long it took, in whole and by its steps.
fn took(status: &BurstStatus) -> String {
    let steps = status.times.clone().map(|times| PhaseTimes::from(times).steps()).unwrap_or_default();
    let seconds = |step: &Step| step.took.as_secs_f64();
    let each: Vec<String> = steps.iter().skip(1).map(|step| format!("{} {:.1} s", step.name, seconds(step))).collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(" after {:.1} s ({})", steps.iter().map(seconds).sum::<f64>(), each.join(", ")),
    }
}

/// Whether the peer can be told where the lead broker is. Said of bursts that had to wait for it.
fn lead_address(old: &BurstStatus, view: &BurstView) -> Option<Statement> {
    let spec = &view.burst.spec;
    let unknown = view.no_lead.as_ref().filter(|_| spec.lead.is_none() && !spec.tunnel && !spec.release);
    match unknown {
        Some(why) => Some(Statement::fails(LEAD_ADDRESS, why.reason(), why.to_string())),
        None => {
            let known = old.conditions.iter().any(|condition| condition.type_ == LEAD_ADDRESS);
            let address = spec.lead.as_ref().filter(|_| !spec.tunnel).map(|lead| lead.address.clone());
            let text = address.unwrap_or_else(|| "through the agents".to_owned());
            known.then(|| Statement::holds(LEAD_ADDRESS, "Known", text))
        }
    }
}

/// Where its connections through the tunnel end. An agent that leads anew has none for a moment, and says nothing else then;
/// before there are brokers, the provider looks whether the lead answers, which ends in the agents.
fn tunnel_ends(status: &BurstStatus, view: &BurstView) -> Option<Statement> {
    let Ends { in_pods, in_agents } = view.ends;
    match (in_pods, in_agents) {
        _ if !view.burst.spec.tunnel => None,
        (_, 1..) if status.ready_brokers > 0 => {
            let message = format!("{in_agents} of {} {IN_AGENTS}", in_pods + in_agents);
            Some(Statement::fails(TUNNEL_ENDS, "InAgents", message))
        }
        (1.., _) => Some(Statement::holds(TUNNEL_ENDS, "InPods", "connections of brokers outlast the agents")),
        _ => None,
    }
}

/// Whether what is said of a burst reaches the peer it is placed on. Said only of bursts that once had a problem.
fn delivered(status: &BurstStatus, old: &BurstStatus, view: &BurstView, notes: &mut Vec<Note>) -> Option<Statement> {
    let problem = status.peer.as_ref().and_then(|peer| Some((peer, view.undeliverable.get(peer.as_str())?)));
    let Some((peer, problem)) = problem else {
        let known = old.conditions.iter().any(|condition| condition.type_ == DELIVERED);
        return known.then(|| Statement::holds(DELIVERED, "Deliverable", "nothing keeps changes from the peer"));
    };
    let message = format!("changes do not reach {peer}: {problem}");
    let said = |condition: &Condition| condition.type_ == DELIVERED && condition.message == message;
    if !old.conditions.iter().any(said) {
        notes.push(Note::warning(UNDELIVERABLE, message.clone()));
    }
    Some(Statement::fails(DELIVERED, UNDELIVERABLE, message))
}

fn is_admitted(status: &BurstStatus) -> bool {
    let taken = BurstPhase::Accepted..=BurstPhase::Ready;
    taken.contains(&status.phase) || status.hosted_uid.is_some()
}
