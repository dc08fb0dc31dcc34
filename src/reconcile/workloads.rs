//! The Workloads of MiniClusters that MultiKueue runs in another cluster (`managedBy: kueue.x-k8s.io/multikueue`).
//!
//! Kueue makes Workloads of the kinds that it knows, and expects a controller to do it for each other kind: this one. A
//! Workload has the pods of the Job that an agent makes of the MiniCluster. MultiKueue copies it to another cluster, and,
//! where it is admitted, the MiniCluster as well; the agent there makes the Job. Nothing else is made of such a MiniCluster
//! here, and its status is what MultiKueue copies back.
//!
//! Nobody watches Workloads: a cluster need not serve that kind. One is looked at by its name when its MiniCluster changes, and
//! from time to time, since a Workload that Kueue evicts keeps its room until this controller gives that back.
//!
//! The MiniCluster in the other cluster goes once MultiKueue has seen how it ended. `cleanup` and `ttlSecondsAfterFinished` are
//! for the one here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tributary_api::labels::{self, KUEUE_MIN_PARALLELISM, KUEUE_QUEUE, kubernetes};
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_api::names;
use tributary_api::workload::{
    LONGEST, MULTIKUEUE, OF_JOB, PRIORITY_CLASS, PodSet, PriorityClassRef, TopologyRequest, Workload, WorkloadSpec,
    condition, topology,
};
use tributary_clock::SharedClock;
use tributary_cluster::apply::Applier;
use tributary_cluster::caches::{Cache, Subscription, controller_of, controller_uid};
use tributary_cluster::client::Clients;
use tributary_cluster::conditions::{self, Statement, find};
use tributary_cluster::engine::{self, Controller, Observed, nothing};
use tributary_cluster::error::{absence, chain};
use tributary_cluster::events::{Events, Notice};
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_render::{Context, render};

use super::step::expiry;

/// Between two looks at a Workload: at first, and at most. It takes so long until the room of an evicted one is given back.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// See [`LOOK_AGAIN`].
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// Until a Workload that is being deleted is gone.
const GONE_SOON: Duration = Duration::from_secs(1);

/// Between two tries after a refusal that only a person can mend.
const REFUSED: Duration = Duration::from_secs(60);

/// Makes them.
pub(super) struct Workloads {
    mini_clusters: Cache<MiniCluster>,
    clients: Clients,
    applier: Applier,
    events: Events,
    settings: Context,
    clock: SharedClock,
    queue: Queue<ObjectKey>,
    /// What was said of each last.
    told: Mutex<BTreeMap<ObjectKey, String>>,
}

/// A MiniCluster, and its Workload.
pub(super) struct View {
    object: Arc<MiniCluster>,
    wanted: Result<Option<Wanted>, String>,
    found: Option<Workload>,
    /// It has ended, and goes in this time.
    due: Option<Duration>,
}

/// What its Workload is to be: the Job as it is rendered, its queue, and which spec of its user that is of.
#[derive(Clone, PartialEq, Debug)]
struct Wanted {
    job: Job,
    queue: String,
    revision: String,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Decision {
    /// Make one.
    Make,
    /// Delete it: it is of another spec.
    Delete(Doomed),
    /// Give its room back: it is evicted, and nothing of it is here that would have to end.
    GiveBack,
    /// It is as it should be.
    Nothing,
    /// There is nothing to do until the MiniCluster changes.
    Done,
    /// An earlier MiniCluster's is about to be deleted by Kubernetes.
    LeftOver,
    /// Say this.
    Say(String),
    /// Look again then: it has ended, and is kept for so long.
    Keep(Duration),
    /// Delete the MiniCluster.
    CleanUp,
}

impl Workloads {
    /// With what feeds its queue.
    pub(super) fn new(
        clients: &Clients,
        mini_clusters: Cache<MiniCluster>,
        events: Events,
        settings: Context,
        clock: SharedClock,
    ) -> (Self, Subscription) {
        let queue = Queue::by_namespace(clock.clone());
        let subscription = mini_clusters.feed_left_alone(&queue, |key| Some(key.clone()));
        let applier = Applier::new(clients.writer.clone(), labels::manager::MINICLUSTER);
        let (clients, told) = (clients.clone(), Mutex::default());
        (Self { mini_clusters, clients, applier, events, settings, clock, queue, told }, subscription)
    }

    /// Makes them until `stop`: in the leader's scope.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        for object in self.mini_clusters.left_alone() {
            self.queue.mark(ObjectKey::of(&*object));
        }
        engine::run(self, stop).await;
    }

    fn api(&self, client: &kube::Client, key: &ObjectKey) -> Api<Workload> {
        Api::namespaced(client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    /// Makes the Workload, unless somebody else has made one of this MiniCluster.
    async fn make(&self, key: &ObjectKey, object: &MiniCluster, wanted: Wanted) -> Result<(), RequestError> {
        let uid = object.uid().unwrap_or_default();
        let all = self.api(&self.clients.reader, key).list_metadata(&ListParams::default()).await;
        let all = all.map_err(|error| RequestError::new("list", "Workloads", error))?;
        if all.items.iter().any(|workload| controller_uid(workload) == Some(uid.as_str())) {
            return Ok(());
        }
        let template = self.defaulted(key, &wanted.job).await?;
        let class = wanted.job.labels().get(PRIORITY_CLASS).map(String::as_str);
        let (priority, priority_class_ref) = self.priority(class, &template).await?;
        let spec =
            WorkloadSpec { priority: Some(priority), priority_class_ref, ..spec(wanted.queue, &wanted.job, template) };
        let mut workload = Workload::new(&names::workload(&key.name), spec);
        workload.metadata.namespace.clone_from(&key.namespace);
        workload.metadata.owner_references = object.controller_owner_ref(&()).map(|owner| vec![owner]);
        workload.labels_mut().insert(OF_JOB.to_owned(), uid);
        workload.annotations_mut().insert(labels::REVISION.to_owned(), wanted.revision);
        self.applier.own_once(&workload).await?;
        Ok(())
    }

    /// The pods of a Job with all that the API server fills in: Kueue compares them with those of the Job that runs.
    async fn defaulted(&self, key: &ObjectKey, job: &Job) -> Result<PodTemplateSpec, RequestError> {
        let template = job.spec.clone().unwrap_or_default().template;
        let mut tried = job.clone();
        // The name may be taken, and the queue is not asked.
        (tried.metadata.name, tried.metadata.generate_name) = (None, Some(format!("{}-", key.name)));
        tried.metadata.labels = None;
        let jobs: Api<Job> = Api::namespaced(self.clients.writer.clone(), key.namespace.as_deref().unwrap_or_default());
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let answer = jobs.create(&params, &tried).await;
        let answer = answer.map_err(|error| RequestError::new("check", format!("Job {key}"), error))?;
        // But for the labels by which that Job would find its pods.
        let spec = answer.spec.and_then(|spec| spec.template.spec);
        Ok(PodTemplateSpec { spec, ..template })
    }

    /// As Kueue finds the priority of a Job.
    async fn priority(
        &self,
        class: Option<&str>,
        template: &PodTemplateSpec,
    ) -> Result<(i32, Option<PriorityClassRef>), RequestError> {
        let named = |group: &str, kind: &str, name: &str| {
            Some(PriorityClassRef { group: group.to_owned(), kind: kind.to_owned(), name: name.to_owned() })
        };
        if let Some(class) = class {
            const KIND: &str = "WorkloadPriorityClass";
            let kind = GroupVersionKind::gvk(&Workload::group(&()), &Workload::version(&()), KIND);
            let kind = ApiResource::from_gvk_with_plural(&kind, "workloadpriorityclasses");
            let classes: Api<DynamicObject> = Api::all_with(self.clients.reader.clone(), &kind);
            let found = classes.get(class).await;
            let found = found.map_err(|error| RequestError::new("read", format!("{KIND} {class}"), error))?;
            let value = found.data["value"].as_i64().and_then(|value| i32::try_from(value).ok());
            return Ok((value.unwrap_or(0), named(&Workload::group(&()), KIND, class)));
        }
        let class = template.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
        let classes = Api::<PriorityClass>::all(self.clients.reader.clone());
        let found = match class.filter(|class| !class.is_empty()) {
            Some(class) => {
                let found = classes.get(class).await;
                Some(found.map_err(|error| RequestError::new("read", format!("PriorityClass {class}"), error))?)
            }
            None => {
                let all = classes.list(&ListParams::default()).await;
                usual(all.map_err(|error| RequestError::new("list", "PriorityClasses", error))?.items)
            }
        };
        let Some(found) = found else { return Ok((0, None)) };
        Ok((found.value, named("scheduling.k8s.io", "PriorityClass", &found.name_any())))
    }

    /// Takes the reservation back, as Kueue's own integrations do once nothing of a Job runs any more.
    async fn give_back(&self, key: &ObjectKey, found: &Workload) -> Result<(), RequestError> {
        let conditions = waiting_again(found, self.clock.wall());
        // Of this very version: Kueue writes to it as well.
        let patch = json!({
            "metadata": {"resourceVersion": found.resource_version(), "uid": found.uid()},
            "status": {"admission": null, "conditions": conditions},
        });
        let name = found.name_any();
        let answer = self
            .api(&self.clients.writer, key)
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match answer.map_err(|error| RequestError::new("change", format!("Workload {}", ObjectKey::of(found)), error)) {
            Err(error) if !error.cause().is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// Says it as an event, unless it was said before.
    async fn say(&self, key: &ObjectKey, object: &MiniCluster, sentence: String) {
        {
            let mut told = self.told.lock();
            if told.insert(key.clone(), sentence.clone()).as_ref() == Some(&sentence) {
                return;
            }
        }
        self.events.publish(object, Notice::warning("Dispatch", "NoWorkload", sentence)).await;
    }

    fn said_nothing(&self, key: &ObjectKey) {
        self.told.lock().remove(key);
    }
}

impl Controller for Workloads {
    type Key = ObjectKey;
    type Line = ();
    type View = View;
    type Step = Decision;
    type Error = RequestError;

    const NAME: &'static str = "workload";
    const CONCURRENCY: usize = 4;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<View>, RequestError> {
        let object = self.mini_clusters.left_alone_of(key).filter(|object| is_for_multikueue(object));
        let due = object.as_ref().and_then(|object| due(object, self.clock.wall()));
        let Some(object) = object.filter(|object| !is_over(object) || due.is_some()) else {
            self.said_nothing(key);
            return Ok(nothing());
        };
        let wanted = wanted(&object, &self.settings);
        if let (Ok(None), false, None) = (&wanted, object.spec.suspend, due) {
            return Ok(nothing());
        }
        let name = names::workload(&key.name);
        let found = absence(self.api(&self.clients.reader, key).get(&name).await, &name);
        let found = found.map_err(|error| RequestError::new("read", format!("Workload {name}"), error));
        let found = match found {
            Ok(found) => found,
            Err(error) if error.cause().is_transient() => return Err(error),
            Err(error) => {
                self.say(key, &object, unserved(&error)).await;
                return Ok(Observed::Break(Outcome::After(REFUSED)));
            }
        };
        Ok(Observed::Continue(View { object, wanted, found, due }))
    }

    fn step(&self, _: &ObjectKey, view: &View) -> Decision {
        decide(view)
    }

    async fn apply(&self, key: &ObjectKey, view: View, decision: Decision) -> Result<Outcome, RequestError> {
        let View { object, wanted, found, due: _ } = view;
        let outcome = match (decision, wanted, found) {
            (Decision::Make, Ok(Some(wanted)), _) => self.make(key, &object, wanted).await,
            (Decision::Delete(doomed), ..) => {
                let writer = &self.clients.writer;
                sweep::delete::<Workload>(writer, &doomed).await?;
                // Another one is made once it is gone.
                return Ok(Outcome::After(GONE_SOON));
            }
            (Decision::GiveBack, _, Some(found)) => self.give_back(key, &found).await,
            (Decision::Say(sentence), ..) => {
                self.say(key, &object, sentence).await;
                return Ok(Outcome::After(REFUSED));
            }
            (Decision::LeftOver, ..) => {
                self.said_nothing(key);
                return Ok(Outcome::After(GONE_SOON));
            }
            (Decision::Done, ..) => return Ok(Outcome::Done),
            (Decision::Keep(left), ..) => return Ok(Outcome::After(left)),
            (Decision::CleanUp, ..) => match Doomed::of(&*object) {
                Some(doomed) => {
                    let writer = &self.clients.writer;
                    sweep::delete::<MiniCluster>(writer, &doomed).await.map(drop)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        };
        match outcome {
            Ok(()) => {
                self.said_nothing(key);
                Ok(Outcome::After(pause(&object, self.clock.wall())))
            }
            Err(error) if error.cause().is_transient() => Err(error),
            Err(error) => {
                self.say(key, &object, chain(&error)).await;
                Ok(Outcome::After(REFUSED))
            }
        }
    }
}

/// How long until the next look: longer, the longer it is there.
fn pause(object: &MiniCluster, now: Timestamp) -> Duration {
    let since = object.metadata.creation_timestamp.as_ref().map_or(now, |Time(since)| *since);
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    (age / 8).clamp(LOOK_AGAIN, LOOK_AGAIN_AT_MOST)
}

/// Whether it is for MultiKueue.
fn is_for_multikueue(object: &MiniCluster) -> bool {
    object.spec.managed_by.as_deref() == Some(MULTIKUEUE) && object.metadata.deletion_timestamp.is_none()
}

/// Whether it has ended: MultiKueue says so.
fn is_over(object: &MiniCluster) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|status| matches!(status.phase, Some(Phase::Succeeded | Phase::Failed)))
}

/// In which time one that has ended goes; `None`: it stays.
fn due(object: &MiniCluster, now: Timestamp) -> Option<Duration> {
    let cleanup = object.spec.cleanup.then_some(Duration::ZERO);
    cleanup.or_else(|| expiry(object, now)).filter(|_| is_over(object))
}

/// What the Workload of a MiniCluster is to be; nothing, if it names no queue, or is held back.
fn wanted(object: &MiniCluster, settings: &Context) -> Result<Option<Wanted>, String> {
    if object.spec.suspend {
        return Ok(None);
    }
    let rendered = render(object, settings).map_err(|problems| problems.to_string())?;
    let job = rendered.job;
    let labels = job.metadata.labels.clone().unwrap_or_default();
    let Some(queue) = labels.get(KUEUE_QUEUE).filter(|queue| !queue.is_empty()).cloned() else { return Ok(None) };
    // Not what it renders to: another version of the agent may render something else, and ends nothing that runs.
    let revision = json!([object.metadata.generation, queue, labels.get(PRIORITY_CLASS)]).to_string();
    Ok(Some(Wanted { job, queue, revision }))
}

/// The Workload of a Job with these pods, as Kueue makes it of such a Job: it compares the two. But for its priority.
fn spec(queue_name: String, job: &Job, template: PodTemplateSpec) -> WorkloadSpec {
    let number = |text: Option<&String>| text.and_then(|text| text.parse().ok());
    WorkloadSpec {
        queue_name,
        maximum_execution_time_seconds: number(job.labels().get(LONGEST)),
        pod_sets: vec![PodSet {
            name: "main".to_owned(),
            count: job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1),
            min_count: number(job.annotations().get(KUEUE_MIN_PARALLELISM)),
            topology_request: Some(topology_request(&template)),
            template,
        }],
        ..WorkloadSpec::default()
    }
}

fn topology_request(template: &PodTemplateSpec) -> TopologyRequest {
    let annotations = template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    let said = |key: &str| annotations.and_then(|all| all.get(key)).cloned();
    let rest = TopologyRequest {
        pod_index_label: Some(kubernetes::COMPLETION_INDEX.to_owned()),
        ..TopologyRequest::default()
    };
    match (said(topology::REQUIRED), said(topology::PREFERRED), said(topology::UNCONSTRAINED)) {
        (required @ Some(_), ..) => TopologyRequest { required, ..rest },
        (None, preferred @ Some(_), _) => TopologyRequest { preferred, ..rest },
        (None, None, text) => {
            let unconstrained = text.map(|text| ["1", "t", "true"].contains(&text.to_lowercase().as_str()));
            TopologyRequest { unconstrained, ..rest }
        }
    }
}

/// The class of pods that name none: of several that are the default, Kubernetes takes the lowest.
fn usual(classes: Vec<PriorityClass>) -> Option<PriorityClass> {
    classes.into_iter().filter(|class| class.global_default == Some(true)).min_by_key(|class| class.value)
}

/// Whether two revisions differ in nothing but the class of priority.
fn are_alike(one: &str, other: &str) -> bool {
    let spec = |text: &str| {
        let [generation, queue, _class] = serde_json::from_str::<[Value; 3]>(text).ok()?;
        Some((generation, queue))
    };
    spec(one).is_some() && spec(one) == spec(other)
}

fn decide(View { object, wanted, found, due }: &View) -> Decision {
    if let Some(left) = due {
        return ends(object, found.as_ref(), *left);
    }
    let wanted = match wanted {
        Ok(wanted) => wanted.as_ref(),
        Err(problems) => return Decision::Say(format!("no Workload is made of it: {problems}")),
    };
    let Some(found) = found else {
        return if wanted.is_some() { Decision::Make } else { Decision::Done };
    };
    if controller_uid(found) != object.uid().as_deref() {
        if wanted.is_none() {
            return Decision::Done;
        }
        if controller_of::<MiniCluster>(found) == Some(ObjectKey::of(&**object)) {
            return Decision::LeftOver;
        }
        return Decision::Say(format!(
            "Workload {} is there already and is not of this MiniCluster; delete it, or choose another name",
            ObjectKey::of(found)
        ));
    }
    if holds(found, condition::FINISHED) {
        return Decision::Done;
    }
    let revisions = (found.annotations().get(labels::REVISION), wanted.map(|wanted| &wanted.revision));
    let stays = match revisions {
        // What has room goes on: another class counts once it waits again.
        (Some(one), Some(other)) if holds(found, condition::QUOTA_RESERVED) => are_alike(one, other),
        (one, other) => one == other,
    };
    if !stays {
        let there = found.metadata.deletion_timestamp.is_none();
        return Doomed::of(found).filter(|_| there).map_or(Decision::Nothing, Decision::Delete);
    }
    match holds(found, condition::EVICTED) && holds(found, condition::QUOTA_RESERVED) {
        true => Decision::GiveBack,
        false => Decision::Nothing,
    }
}

/// What becomes of a MiniCluster that has ended and is not kept: it goes in this time, but not before Kueue has finished with
/// it, which looks at it until then.
fn ends(object: &MiniCluster, found: Option<&Workload>, left: Duration) -> Decision {
    let is_its = |found: &&Workload| controller_uid(*found) == object.uid().as_deref();
    if found.filter(is_its).is_some_and(|found| !holds(found, condition::FINISHED)) {
        return Decision::Nothing;
    }
    if left.is_zero() { Decision::CleanUp } else { Decision::Keep(left) }
}

fn holds(found: &Workload, type_: &str) -> bool {
    found.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, type_))
}

/// The conditions of an evicted Workload that has no room any more.
fn waiting_again(found: &Workload, now: Timestamp) -> Vec<Condition> {
    let before = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let (reason, message) = find(before, condition::EVICTED)
        .map(|evicted| (evicted.reason.clone(), evicted.message.clone()))
        .unwrap_or_default();
    // Who was evicted for another reason is put back into the line by what evicted it.
    let again = ["Preempted", "NodeFailures"].contains(&reason.as_str());
    let requeued = Statement { status: Some(again), ..Statement::holds(condition::REQUEUED, reason, message.clone()) };
    let statements = [
        Statement::fails(condition::QUOTA_RESERVED, "Pending", message),
        Statement::fails(condition::ADMITTED, "NoReservation", "The workload has no reservation"),
        requeued,
    ];
    conditions::merged(before, statements, found.metadata.generation, now)
}

fn unserved(error: &RequestError) -> String {
    match error.cause() {
        cause if cause.is_not_found() => format!(
            "no Workload is made of it: this cluster does not serve Workloads ({}); install Kueue, 0.15 or newer",
            Workload::api_version(&())
        ),
        _ => format!("no Workload is made of it: {}", chain(error)),
    }
}

#[cfg(test)]
mod tests;
