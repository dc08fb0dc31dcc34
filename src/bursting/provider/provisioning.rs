//! The ProvisioningRequest of a burst that brings nodes: they are asked for, all or none, before there are pods. Pure.
//!
//! Pods bear the name of the request, and cluster-autoscaler adds no nodes for such pods: so they are made only once it is
//! provisioned, and the request stays as long as they do. It is the last thing before the brokers, since nodes cost.
//!
//! Nobody watches ProvisioningRequests: a cluster need not serve that kind. One is looked at by its name, more seldom the
//! longer it takes. All that counts is in the request itself, and in `status.provisioning` since when it was wanted.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use tributary_api::hosted_burst::{HostedBurst, HostedBurstSpec, Provisioning};
use tributary_api::names;
use tributary_api::node_group::ProvisioningClass;
use tributary_api::provisioning_request::{
    CLASS, CONSUME, PodSet, PodTemplateReference, ProvisioningRequest, ProvisioningRequestSpec, condition,
};
use tributary_clock::Mono;
use tributary_cluster::conditions;

use super::materialize;
use super::scale_up;
use super::slot::{Change, SlotStep, SlotView};
use super::teardown::wake;
use crate::nodes::PodView;
use crate::timing::elapsed;

/// Between two looks at a request: at first, and at most.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// See [`LOOK_AGAIN`].
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_secs(15);

/// What is remembered of the request in one leader's scope.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Request {
    /// It was not looked at yet.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// Neither is there a PodTemplate.
    Gone,
    /// It is there.
    Found(Seen),
    /// The API server takes none.
    Refused(String),
}

/// A request, as it was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// For how many pods.
    pub(super) count: u32,
    /// What it says.
    pub(super) answer: Answer,
    /// When.
    pub(super) looked: Mono,
}

/// What a request says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Nothing final.
    Waits(String),
    /// The nodes are there, or ordered, and kept for it.
    Provisioned(String),
    /// They were, and are kept for nobody any more.
    Expired(String),
    /// There are none for it.
    Ended { word: &'static str, message: String },
}

impl Answer {
    /// What its conditions say.
    pub(super) fn of(conditions: &[Condition]) -> Self {
        let said = |type_| conditions::find(conditions, type_);
        let holds = |type_| said(type_).filter(|one| one.status == "True");
        let ended =
            [condition::FAILED, condition::CAPACITY_REVOKED].into_iter().find_map(|word| Some((word, holds(word)?)));
        if let Some((word, one)) = ended {
            return Self::Ended { word, message: words(one) };
        }
        if let Some(one) = holds(condition::BOOKING_EXPIRED) {
            return Self::Expired(words(one));
        }
        match said(condition::PROVISIONED) {
            Some(one) if one.status == "True" => Self::Provisioned(words(one)),
            Some(one) => Self::Waits(words(one)),
            None if holds(condition::ACCEPTED).is_some() => Self::Waits("an autoscaler has accepted it".to_owned()),
            None => Self::Waits("no autoscaler has answered yet".to_owned()),
        }
    }

    /// The word in `status.provisioning.outcome`, and what is said.
    fn outcome(&self) -> (&'static str, &str) {
        match self {
            Self::Waits(message) => ("Requested", message),
            Self::Provisioned(message) => (condition::PROVISIONED, message),
            Self::Expired(message) => (condition::BOOKING_EXPIRED, message),
            Self::Ended { word, message } => (word, message),
        }
    }
}

/// Reason and message of a condition.
fn words(said: &Condition) -> String {
    match said.message.as_str() {
        "" => said.reason.clone(),
        message => format!("{message} ({})", said.reason),
    }
}

/// By which class nodes of a burst are asked for.
pub(super) fn class(hosted: &HostedBurst) -> Option<&ProvisioningClass> {
    hosted.spec.scale_up.as_ref()?.provisioning_request.as_ref()
}

/// How the nodes of a burst are.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Nodes {
    /// Brokers have to wait for them.
    pub(super) hold: bool,
    /// How they were asked for.
    pub(super) provisioning: Option<Provisioning>,
}

/// How the nodes of a burst are, as far as they were asked for. They are once all else is `ready`.
pub(super) fn attend(view: &SlotView<'_>, hosted: &HostedBurst, ready: bool, step: &mut SlotStep) -> Nodes {
    let known = hosted.status.as_ref().and_then(|status| status.provisioning.clone());
    if class(hosted).is_none() || !scale_up::waits(view, hosted) {
        unbook(view, hosted, step);
        return Nodes { hold: false, provisioning: known };
    }
    let made = view.mini_cluster.is_some();
    if known.is_none() && !made && !ready {
        return Nodes { hold: true, provisioning: None };
    }
    let since = known.as_ref().and_then(|known| known.since.clone()).unwrap_or(MicroTime(view.now.wall));
    let request = step.memory.request.clone();
    let granted = match &request {
        Request::Unknown => {
            step.changes.push(Change::LookRequest);
            false
        }
        Request::Absent | Request::Gone => {
            step.changes.push(Change::MakeRequest);
            false
        }
        // What it asks for cannot be changed.
        Request::Found(seen) if seen.count != hosted.spec.size && !made => {
            step.changes.push(Change::EndRequest);
            false
        }
        Request::Found(seen) => {
            let age = view.now.mono.saturating_since(seen.looked);
            let pause = (elapsed(since.0, view.now.wall) / 8).clamp(LOOK_AGAIN, LOOK_AGAIN_AT_MOST);
            if age >= pause {
                step.changes.push(Change::LookRequest);
            } else {
                wake(step, pause - age);
            }
            matches!(seen.answer, Answer::Provisioned(_))
        }
        Request::Refused(_) => false,
    };
    let provisioning = said(&request, known.unwrap_or_default(), since);
    Nodes { hold: !granted, provisioning: Some(provisioning) }
}

/// Lets pods that were made later wait like any others: because the burst grew, or a node was lost. The nodes of its request
/// have come already, and cluster-autoscaler adds none for a pod that consumes one.
fn unbook(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) {
    let times = hosted.status.as_ref().and_then(|status| status.times.as_ref());
    if times.is_none_or(|times| times.scheduled.is_none()) {
        return;
    }
    let waits = |pod: &&PodView| pod.unschedulable && pod.node.is_none() && !pod.terminating && !pod.finished;
    let pods: Vec<_> = view.pods.iter().filter(waits).filter(|pod| pod.consumes).map(|pod| pod.name.clone()).collect();
    if !pods.is_empty() {
        step.changes.push(Change::Unbook { pods });
    }
}

/// What is recorded of a request; `known`: what was.
fn said(request: &Request, known: Provisioning, since: MicroTime) -> Provisioning {
    let (outcome, message) = match request {
        Request::Found(seen) => seen.answer.outcome(),
        Request::Refused(message) => ("Refused", message.as_str()),
        // What it said before a restart, or before it went, is the last word.
        _ if !known.outcome.is_empty() => return Provisioning { since: Some(since), ..known },
        _ => ("Requested", ""),
    };
    Provisioning { since: Some(since), outcome: outcome.to_owned(), message: message.to_owned() }
}

/// What ended a burst whose nodes do not come, if that is so: the record of it.
pub(super) fn failure(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<Provisioning> {
    class(hosted).filter(|_| scale_up::waits(view, hosted))?;
    let fails = match &view.memory.request {
        Request::Refused(_) => true,
        Request::Found(Seen { answer: Answer::Ended { .. }, .. }) => true,
        // Pods that are there may still get the nodes, though nobody keeps them: those that were ordered come late at times.
        Request::Found(Seen { answer: Answer::Expired(_), .. }) => view.mini_cluster.is_none(),
        _ => false,
    };
    let known = hosted.status.as_ref().and_then(|status| status.provisioning.clone()).unwrap_or_default();
    let since = known.since.clone().unwrap_or(MicroTime(view.now.wall));
    fails.then(|| said(&view.memory.request, known, since))
}

/// Why a burst was given back, in the words of its request.
pub(super) fn sentence(hosted: &HostedBurst, said: &Provisioning) -> String {
    let Provisioning { outcome, message, .. } = said;
    let name = names::scale_up(&hosted.spec.slot);
    let namespace = hosted.metadata.namespace.as_deref().unwrap_or_default();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("ProvisioningRequest {namespace}/{name} is {outcome}{message}")
}

/// What the request of a burst said last.
pub(super) fn last_word(hosted: &HostedBurst) -> Option<String> {
    let said = hosted.status.as_ref()?.provisioning.as_ref()?;
    Some(sentence(hosted, said))
}

/// Takes the request and its PodTemplate away; whether nothing is left of them.
pub(super) fn clear(hosted: &HostedBurst, step: &mut SlotStep) -> bool {
    if class(hosted).is_none() || step.memory.request == Request::Gone {
        return true;
    }
    step.changes.push(Change::EndRequest);
    wake(step, LOOK_AGAIN);
    false
}

/// The request for nodes of a burst.
pub(super) fn request(hosted: &HostedBurst, class: &ProvisioningClass) -> ProvisioningRequest {
    let name = names::scale_up(&hosted.spec.slot);
    let ProvisioningClass { provisioning_class_name, parameters } = class.clone();
    let pods = PodSet { pod_template_ref: PodTemplateReference { name: name.clone() }, count: hosted.spec.size };
    let spec = ProvisioningRequestSpec { provisioning_class_name, parameters, pod_sets: vec![pods] };
    ProvisioningRequest { metadata: materialize::metadata(hosted, name, None), spec, status: None }
}

/// What its pods look like: as they are rendered.
pub(super) fn pod_template(hosted: &HostedBurst, pod: PodTemplateSpec) -> PodTemplate {
    let metadata = materialize::metadata(hosted, names::scale_up(&hosted.spec.slot), None);
    PodTemplate { metadata, template: Some(pod) }
}

/// Annotations of pods by which they use the nodes of their request.
pub(super) fn annotations(spec: &HostedBurstSpec) -> BTreeMap<String, String> {
    let class = spec.scale_up.as_ref().and_then(|scale_up| scale_up.provisioning_request.as_ref());
    let both = |class: &ProvisioningClass| {
        [(CONSUME, names::scale_up(&spec.slot)), (CLASS, class.provisioning_class_name.clone())]
    };
    class.into_iter().flat_map(both).map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests;
