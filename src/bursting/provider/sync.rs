//! Keeping a hosted burst as its root wants it. Pure.

use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tributary_api::budget::{Spent, Usage};
use tributary_api::hosted_burst::{
    BurstPhase, BurstRun, HostedBurst, HostedBurstSpec, HostedBurstStatus, PhaseTimestamps, PreflightFinding,
};
use tributary_api::labels::condition::{ADMITTED, LEASED, READY};
use tributary_cluster::conditions::{self, Statement};
use tributary_contract::{Check, CredentialRequest, DesiredBurst, Finding, ObservedBurst, Price, UseReport};

use super::gateway;
use super::kueue;
use super::lead::{self, Lead};
use super::lease::{self, Lease};
use super::materialize;
use super::memory::{LOOK_AGAIN, Memory, SecretState};
use super::not_started;
use super::provisioning::{self, Nodes};
use super::scale_up;
use super::slot::{Change, ClaimKey, SlotStep, SlotView, Wanted};
use super::teardown::{wake, wake_for};
use super::warm;
use super::whole;
use crate::note::Note;
use crate::peers;
use crate::preflight::attempt::{Circumstance, Course, Target, Trouble};
use crate::preflight::facts;
use crate::statements::{NOT_CHECKABLE, online_statement, preflight_statement};
use crate::template::Charge;

/// Condition of a HostedBurst: the certificate is here.
const CREDENTIAL: &str = "Credential";

/// Within so many seconds after its admission a burst is counted.
const COUNT_BEGINS: i64 = 30;

/// Reason for one that runs on though its peer may place nothing here any more.
const NO_IMPORT: &str = "RunsWithoutImport";

pub(super) fn lease(view: &SlotView<'_>, hosted: &HostedBurst, holder: &ClaimKey) -> Lease {
    lease_of(hosted.spec.lease.duration(), view, hosted, holder)
}

/// A lease of another length.
pub(super) fn lease_of(length: Duration, view: &SlotView<'_>, hosted: &HostedBurst, (peer, _): &ClaimKey) -> Lease {
    let recorded = hosted.status.as_ref().and_then(|status| status.suspect_since.clone()).map(|Time(since)| since);
    let seen = view.peers.get(peer).and_then(|peer| peer.last_seen);
    let heard = seen.or_else(|| view.before.last_heard(peer, view.contacts));
    lease::lease(length, view.contacts.away(peer, view.now.mono), recorded, heard, view.now)
}

/// Brokers online.
pub(super) fn ready(view: &SlotView<'_>) -> u32 {
    let status = view.mini_cluster.and_then(|mini_cluster| mini_cluster.status.as_ref());
    status.and_then(|status| status.ready).and_then(|ready| u32::try_from(ready).ok()).unwrap_or(0)
}

/// Brings everything of a hosted burst to where its root wants it.
pub(super) fn keep(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    holder: &ClaimKey,
    claim: Option<&Wanted>,
    step: &mut SlotStep,
) {
    if hosted.metadata.deletion_timestamp.is_some() {
        // Its owner deletes it; the rest follows when it is gone.
        return;
    }
    step.memory.keeps(hosted);
    if hosted.spec.whole {
        return whole::keep(view, hosted, holder, claim, step);
    }
    let hosted = match claim {
        Some(Wanted::Burst(desired)) => follow(view, hosted, desired, step),
        _ => Cow::Borrowed(hosted),
    };
    let hosted = &*hosted;
    let certificate = certify(view, hosted, holder, step);
    let certified = certificate != Certified::No;
    let lead = lead::find(view, hosted, step);
    step.memory.led |= !lead.ends.is_empty();
    let made = view.mini_cluster.is_some();
    let import = peers::import(view.peers, &holder.0);
    let course = preflight(view, hosted, &lead, step);
    let ready = certificate == Certified::Sure && !course.holds && !lead.refused;
    let nodes = provisioning::attend(view, hosted, ready, step);
    let with_brokers = made || ready && !nodes.hold;
    let (trouble, told, provisions) = match materialize::materials(hosted, &lead.ends, with_brokers, import) {
        Ok(mut materials) => {
            if let (true, Some(inlet)) = (hosted.spec.tunnel, lead.ends.first()) {
                materials.egress.open_to_agents(view.facts.own_namespace, inlet.port());
            }
            if lead.stays && made {
                materials.leave_the_way();
            }
            step.changes.push(Change::Materialize(Box::new(materials)));
            match refused(step) {
                Some(trouble) => (trouble.clone(), trouble, with_brokers && step.memory.unmade.is_none()),
                None => (lead.trouble, lead.told, with_brokers),
            }
        }
        Err(message) => {
            let trouble = format!("it cannot be made: {message}");
            (trouble.clone(), trouble, false)
        }
    };
    gateway::attend(view, hosted, step);
    let warm = warm::attend(view, hosted, import, step);
    let lease = lease(view, hosted, holder);
    wake_for(lease, step);
    let findings = course.findings.into_iter().chain(facts::findings(&hosted.spec, view.facts.nodes));
    let preflight = findings.map(PreflightFinding::from).collect();
    let mut status =
        HostedBurstStatus { preflight, warm, ..status(view, hosted, certified, (nodes, lease), &trouble, step) };
    let warmed = warm::warmed(&status);
    if let Some(times) = &mut status.times {
        times.warmed = warmed;
        if provisions {
            // Brokers are made before this is written.
            times.provisioned.get_or_insert(MicroTime(view.now.wall));
        }
    }
    let status = with_conditions(status, view, hosted, step);
    let phase = status.phase;
    let told = Told { message: (status.message == trouble).then_some(told), lead: course.told };
    let said = Saying { hosted, status: &status, phase, told };
    step.answers.insert(holder.clone(), said.answer(view).into());
    step.changes.push(Change::Status(Box::new(status)));
}

/// What is said of a burst that the API server refuses a part of, or a change.
pub(super) fn refused(step: &SlotStep) -> Option<String> {
    let Memory { unmade, unchanged, .. } = &step.memory;
    let unmade = unmade.as_ref().map(|refused| format!("it cannot be made: {}", refused.why));
    unmade.or_else(|| Some(format!("it cannot be changed: {}", unchanged.as_ref()?.why)))
}

/// Looks at the lead broker before there are pods, and while they have not all joined.
fn preflight(view: &SlotView<'_>, hosted: &HostedBurst, lead: &Lead, step: &mut SlotStep) -> Course {
    let target = match &step.memory.secret {
        SecretState::Held { digest, public_key, .. } if *digest == hosted.spec.credential_digest => {
            Ok(Target { ends: lead.ends.clone(), tunnel: hosted.spec.tunnel, public_key: public_key.clone() })
        }
        _ => Err(Trouble::open("the certificate is not here yet")),
    };
    let trouble = Trouble { here: &lead.trouble, told: &lead.told };
    let circumstance = match &target {
        _ if lead.refused => Circumstance::Refused(trouble),
        _ if is_simulated(view) => Circumstance::Simulated,
        _ if view.mini_cluster.is_some() && all_ready(view, hosted) => Circumstance::Joined,
        Err(why) => Circumstance::Nobody(*why),
        Ok(target) if target.ends.is_empty() => Circumstance::Nobody(trouble),
        Ok(target) => Circumstance::Lead(target),
    };
    let course = step.memory.attempt.proceed(circumstance, view.now.mono);
    if let Some(delay) = course.wake {
        wake(step, delay);
    }
    if let (true, Ok(target)) = (course.dials, target) {
        step.changes.push(Change::Dial(Box::new(target)));
    }
    course
}

/// Whether no kubelet runs the pods: of those that are bound, else of all that could be.
pub(super) fn is_simulated(view: &SlotView<'_>) -> bool {
    let bound = view.pods.iter().filter(|pod| !pod.finished).filter_map(|pod| pod.node.as_ref());
    let mut bound = bound.filter_map(|name| view.facts.nodes.get(name)).peekable();
    if bound.peek().is_some() {
        return bound.any(|node| node.simulated);
    }
    let mut nodes = view.facts.nodes.values().filter(|node| node.schedulable).peekable();
    nodes.peek().is_some() && nodes.all(|node| node.simulated)
}

/// The HostedBurst as the root wants it now, or as it is if the API server refuses that; what differs is applied.
pub(super) fn follow<'a>(
    view: &SlotView<'_>,
    hosted: &'a HostedBurst,
    desired: &DesiredBurst,
    step: &mut SlotStep,
) -> Cow<'a, HostedBurst> {
    let mut wanted = materialize::updated(hosted, desired);
    // An import that is taken away later leaves its limit.
    if let Some(import) = view.peers.get(hosted.spec.peer.as_str()).and_then(|peer| peer.import.as_ref()) {
        wanted.spec.max_duration = import.max_duration;
    }
    let followed = match wanted.spec == hosted.spec || step.memory.unchanged.is_some() {
        true => Cow::Borrowed(hosted),
        false => Cow::Owned(HostedBurst {
            metadata: hosted.metadata.clone(),
            spec: wanted.spec.clone(),
            status: hosted.status.clone(),
        }),
    };
    // Applied always: the applier knows whether anything differs, or was edited by somebody else.
    step.changes.push(Change::Update(Box::new(wanted)));
    followed
}

/// Whether the certificate is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Certified {
    /// It was looked at.
    Sure,
    /// It was here when it was last looked at, and nothing says otherwise.
    Believed,
    /// It is not here.
    No,
}

/// Whether the certificate is here; looks, or asks for it, where that is not known or not so. A Secret is never watched:
/// that the MiniCluster or ready brokers are missing is the reason to look again.
pub(super) fn certify(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    (peer, uid): &ClaimKey,
    step: &mut SlotStep,
) -> Certified {
    let now = view.now.mono;
    let believed = match hosted.status.as_ref().is_some_and(|status| status.credential_ready) {
        true => Certified::Believed,
        false => Certified::No,
    };
    match &step.memory.secret.clone() {
        SecretState::Held { digest, looked, .. } if *digest == hosted.spec.credential_digest => {
            let age = looked.map_or(Duration::MAX, |looked| now.saturating_since(looked));
            let missing = view.mini_cluster.is_none();
            if missing && age < LOOK_AGAIN {
                return Certified::Sure;
            }
            // What waits in a queue has no pods that lack it.
            let short = !all_ready(view, hosted) && !kueue::waits(view, hosted);
            let just_lost = short && hosted.status.as_ref().is_some_and(|status| status.phase == BurstPhase::Ready);
            if missing || just_lost || short && age >= LOOK_AGAIN {
                step.changes.push(Change::LookSecret);
            } else if short {
                wake(step, LOOK_AGAIN - age);
            }
            if missing { believed } else { Certified::Sure }
        }
        // Without a status there is no Secret to find, or one that may be asked for again. The next step asks: this one finds
        // whether names are another's.
        SecretState::Unknown if hosted.status.is_none() => {
            step.memory.secret = SecretState::Missing { again: now, message: String::new() };
            wake(step, Duration::ZERO);
            Certified::No
        }
        SecretState::Unknown => {
            step.changes.push(Change::LookSecret);
            believed
        }
        SecretState::Missing { again, .. } if now < *again => {
            let delay = again.saturating_since(now);
            wake(step, delay);
            Certified::No
        }
        SecretState::Asked => Certified::No,
        SecretState::Missing { .. } | SecretState::Held { .. } => {
            if view.contacts.away(peer, now).is_none() {
                let request = CredentialRequest {
                    burst: uid.clone(),
                    incarnation: hosted.spec.root.incarnation.clone(),
                    digest: hosted.spec.credential_digest.clone(),
                };
                step.memory.secret = SecretState::Asked;
                step.changes.push(Change::RequestCredential { peer: peer.clone(), request });
            }
            Certified::No
        }
    }
}

fn all_ready(view: &SlotView<'_>, hosted: &HostedBurst) -> bool {
    ready(view) >= hosted.spec.size
}

pub(super) fn status(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    certified: bool,
    (nodes, lease): (Nodes, Lease),
    trouble: &str,
    step: &mut SlotStep,
) -> HostedBurstStatus {
    let old = hosted.status.clone().unwrap_or_default();
    let ready = ready(view);
    let running = view.pods.iter().filter(|pod| pod.running && !pod.terminating).count();
    let phase = match view.mini_cluster {
        None if !certified => BurstPhase::Accepted,
        None if nodes.hold && nodes.provisioning.is_some() => BurstPhase::ScalingUp,
        None => BurstPhase::Provisioning,
        Some(_) if ready >= hosted.spec.size => BurstPhase::Ready,
        Some(_) if running >= hosted.spec.size as usize => BurstPhase::Joining,
        Some(_) if kueue::waits(view, hosted) => BurstPhase::Queued,
        Some(_) if scale_up::waits(view, hosted) => BurstPhase::ScalingUp,
        Some(_) => BurstPhase::Provisioning,
    };
    let simulated = is_simulated(view);
    let what = if hosted.spec.whole { "leave to start" } else { "certificate" };
    let message = match (phase, &step.memory.secret) {
        (BurstPhase::Accepted, SecretState::Missing { message, .. }) if !message.is_empty() => {
            format!("the {what} is not here yet: {message}")
        }
        (BurstPhase::Accepted, _) => format!("the {what} is asked for"),
        (BurstPhase::Queued, _) => kueue::message(view, hosted),
        (BurstPhase::ScalingUp, _) => scale_up::message(view, hosted, nodes.provisioning.as_ref()),
        (BurstPhase::Provisioning, _) if kueue::is_suspended(view) => kueue::HELD_BACK.into(),
        (BurstPhase::Ready, _) if trouble.is_empty() && simulated => NOT_CHECKABLE.into(),
        (BurstPhase::Ready, _) if trouble.is_empty() => "every wanted broker is online".into(),
        _ if !trouble.is_empty() => trouble.to_owned(),
        _ => not_started::message(view, hosted, step)
            .unwrap_or_else(|| format!("{ready} of {} brokers are online", hosted.spec.size)),
    };
    let at = Some(MicroTime(view.now.wall));
    let times = old.times.clone().unwrap_or_default();
    let times = PhaseTimestamps {
        accepted: times.accepted.or_else(|| at.clone()),
        provisioned: times.provisioned.or_else(|| at.clone().filter(|_| view.mini_cluster.is_some())),
        scheduled: times.scheduled.or_else(|| scale_up::scheduled(view, hosted)),
        started: times.started.or_else(|| at.clone().filter(|_| phase >= BurstPhase::Joining)),
        ready: times.ready.or_else(|| at.clone().filter(|_| phase == BurstPhase::Ready && !simulated)),
        ..PhaseTimestamps::default()
    };
    if old.phase != phase {
        match phase {
            BurstPhase::Accepted if old.times.is_none() => {
                let HostedBurstSpec { peer, root, .. } = &hosted.spec;
                step.notes.push(Note::normal(
                    "Accepted",
                    format!("a burst of {peer}'s MiniCluster {} is admitted", root.name),
                ));
            }
            BurstPhase::Queued => step.notes.push(Note::normal("Queued", message.clone())),
            BurstPhase::Ready if simulated => step.notes.push(Note::normal("Ready", NOT_CHECKABLE)),
            BurstPhase::Ready => step.notes.push(Note::normal("Ready", format!("{ready} brokers are online"))),
            _ => {}
        }
    }
    let suspect_since = suspect_since(lease, &old);
    if suspect_since.is_some() && old.suspect_since.is_none() {
        let message = format!("{} is out of contact; the lease is {}", hosted.spec.peer, hosted.spec.lease);
        step.notes.push(Note::warning("RootUnreachable", message));
    }
    HostedBurstStatus {
        phase,
        message,
        ready_brokers: ready,
        credential_ready: certified,
        suspect_since,
        draining_since: None,
        draining_reason: None,
        times: Some(times),
        observed_generation: hosted.metadata.generation,
        preflight: old.preflight,
        run: old.run,
        simulated,
        queue: kueue::standing(view, hosted),
        warm: old.warm,
        provisioning: nodes.provisioning,
        spent: old.spent,
        conditions: old.conditions,
    }
}

/// When the root was lost, if it is: dated once.
pub(super) fn suspect_since(lease: Lease, old: &HostedBurstStatus) -> Option<Time> {
    match lease {
        Lease::Renewed => None,
        Lease::Wavering(_) => old.suspect_since.clone(),
        Lease::Running { since, .. } | Lease::Expired { since } => Some(Time(since)),
    }
}

/// Why it would not be admitted now: what let it in was taken away. It runs on all the same.
fn unwanted(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<String> {
    let HostedBurstSpec { peer, root, slot, .. } = &hosted.spec;
    let import = match view.peers.get(peer.as_str()) {
        None => Err(format!("there is no ClusterPeer {peer} any more")),
        Some(view) => view.import.as_ref().ok_or_else(|| format!("ClusterPeer {peer} has no import any more")),
    };
    let lacks = match import {
        Err(lacks) => lacks,
        Ok(import) if import.namespaces.iter().any(|one| *one == root.namespace || one == "*") => return None,
        Ok(_) => format!("import.namespaces of ClusterPeer {peer} does not name {} any more", root.namespace),
    };
    let namespace = &view.key.0;
    Some(format!(
        "it runs without import: {lacks}; to end it: `kubectl delete hostedburst {slot} --namespace {namespace}`"
    ))
}

/// Sets the conditions that follow from the rest of a status.
pub(super) fn with_conditions(
    status: HostedBurstStatus,
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    step: &mut SlotStep,
) -> HostedBurstStatus {
    let credential = if status.credential_ready && hosted.spec.whole {
        Statement::holds(CREDENTIAL, "MayStart", "the root gave leave to start; the certificate is made here")
    } else if status.credential_ready {
        Statement::holds(CREDENTIAL, "Stored", "the certificate is in the burst's Secret")
    } else {
        Statement::fails(CREDENTIAL, "Asked", status.message.clone())
    };
    let leased = match &status.suspect_since {
        None => Statement::holds(LEASED, "InContact", "the root is heard of"),
        Some(Time(since)) => Statement::fails(LEASED, "RootUnreachable", format!("not heard of since {since:.0}")),
    };
    let ready = match status.phase {
        BurstPhase::Ready if status.simulated => Statement::holds(READY, "Simulated", NOT_CHECKABLE),
        BurstPhase::Ready => Statement::holds(READY, "Joined", status.message.clone()),
        phase => Statement::fails(READY, phase.to_string(), status.message.clone()),
    };
    let admitted = match unwanted(view, hosted) {
        None => Statement::holds(ADMITTED, "Admitted", "the import policy allows it"),
        Some(why) => {
            if conditions::find(&status.conditions, ADMITTED).is_none_or(|said| said.status != "False") {
                step.notes.push(Note::warning(NO_IMPORT, why.clone()));
            }
            Statement::fails(ADMITTED, NO_IMPORT, why)
        }
    };
    let preflight = preflight_statement(&status.preflight);
    let online = online_statement(status.simulated, status.phase, status.ready_brokers, hosted.spec.size);
    let statements = [admitted, credential, leased, ready, online].into_iter().chain(preflight);
    let statements = statements.chain(warm::statement(&status));
    let conditions = conditions::merged(&status.conditions, statements, hosted.metadata.generation, view.now.wall);
    HostedBurstStatus { conditions, spent: counted(view, hosted, &status), ..status }
}

/// What it used, and what it uses from now on: all its brokers, from its admission until nothing of it is left.
fn counted(view: &SlotView<'_>, hosted: &HostedBurst, status: &HostedBurstStatus) -> Spent {
    let HostedBurstSpec { cores, gpus, size, template, .. } = &hosted.spec;
    let over = status.run.as_ref().is_some_and(BurstRun::has_ended);
    let cleared = status.draining_since.is_some() && status.spent.since.is_some() && status.spent.brokers == 0;
    let usage = match over || cleared {
        true => Usage::default(),
        false => Charge::of(*cores, *gpus, template).usage(*size, Price::default()),
    };
    // An agent before this one may not have counted.
    let accepted = status.times.as_ref().and_then(|times| times.accepted.as_ref());
    let begins = accepted.filter(|_| status.spent == Spent::default()).map_or(view.now.wall, |MicroTime(at)| *at);
    status.spent.on(usage, None, begins.min(view.now.wall))
}

/// How much it was used until it began to leave; nothing, if that was not counted from the beginning: by an older agent.
pub(super) fn used(status: &HostedBurstStatus) -> Option<UseReport> {
    let Time(leaving) = status.draining_since.as_ref()?;
    let MicroTime(accepted) = status.times.as_ref()?.accepted.as_ref()?;
    let spent = status.spent.until(*leaving);
    let lasted = leaving.as_second().saturating_sub(accepted.as_second());
    (spent.since.is_some() && spent.seconds.saturating_add(COUNT_BEGINS) >= lasted || status.run.is_some())
        .then(|| UseReport::from(&spent))
}

/// What is said of a hosted burst.
pub(super) struct Saying<'a> {
    pub(super) hosted: &'a HostedBurst,
    pub(super) status: &'a HostedBurstStatus,
    pub(super) phase: BurstPhase,
    pub(super) told: Told,
}

/// What a peer is told of its lead broker, in place of what the status says.
#[derive(Default)]
pub(super) struct Told {
    /// The sentence, if that of the status is about the lead.
    pub(super) message: Option<String>,
    /// The findings about the lead.
    pub(super) lead: Vec<Finding>,
}

impl Saying<'_> {
    /// The answer to the claim that holds it.
    pub(super) fn answer(self, view: &SlotView<'_>) -> ObservedBurst {
        let Self { hosted, status, phase, told } = self;
        let findings = status.preflight.iter().cloned().map(Finding::from);
        let others = findings.filter(|one| !matches!(one.check, Check::LeadAddress | Check::Certificate));
        let spec = &hosted.spec;
        let known = |digest: &String| Some(digest.clone()).filter(|digest| !digest.is_empty());
        let key = (spec.peer.as_str().into(), spec.burst_uid.as_str().into());
        let generation = match view.claims.get(&key) {
            Some(Wanted::Burst(desired)) => desired.generation,
            _ => u64::try_from(spec.generation).unwrap_or(0),
        };
        ObservedBurst {
            uid: spec.burst_uid.as_str().into(),
            observed_generation: generation,
            incarnation: spec.root.incarnation.clone(),
            phase,
            rejection: None,
            hosted_uid: hosted.metadata.uid.clone(),
            ready_brokers: status.ready_brokers,
            simulated: status.simulated,
            preflight: told.lead.into_iter().chain(others).collect(),
            rank_map_digest: known(&spec.rank_map_digest),
            credential_digest: known(&spec.credential_digest).filter(|_| status.credential_ready),
            lead: spec.lead.clone(),
            message: told.message.unwrap_or_else(|| status.message.clone()),
            times: status.times.clone().unwrap_or_default().into(),
            run: status.run.clone().map(Into::into),
            used: used(status),
        }
    }
}
