//! A FluxJob: the MiniCluster it asks for, and its life. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

use crate::api::flux_job::{Cleanup, FluxJob, FluxJobStatus, JobPhase, JobResult};
use crate::api::labels;
use crate::api::minicluster::{MiniCluster, MiniClusterSpec, Phase};
use crate::cluster::conditions::{self, Statement};

/// Condition: a MiniCluster can be made of it.
const VALID: &str = "Valid";
/// Condition: the queue let it start.
const ADMITTED: &str = "Admitted";

/// Name of a GPU's resource where the FluxJob names none.
const GPU: &str = "nvidia.com/gpu";

/// Seconds a FluxJob takes at most: its own limit, else the longest its namespace allows.
pub fn limit(job: &FluxJob, longest: Option<i64>) -> Option<i64> {
    job.spec.time_limit_seconds.or(longest)
}

/// The MiniCluster that a FluxJob asks for.
///
/// # Errors
/// The field that is wrong, and why.
pub fn mini_cluster(job: &FluxJob, longest: Option<i64>) -> Result<MiniCluster, String> {
    let wanted = &job.spec;
    for (field, text) in [("image", &wanted.image), ("command", &wanted.command)] {
        if text.trim().is_empty() {
            return Err(format!("spec.{field} is empty"));
        }
    }
    let mut spec = wanted.mini_cluster.clone();
    let mut containers = match spec.remove("containers") {
        None => Vec::new(),
        Some(Value::Array(containers)) => containers,
        Some(_) => return Err("spec.miniCluster.containers is no list".into()),
    };
    let runs_flux = |one: &Value| one.get("runFlux").and_then(Value::as_bool).unwrap_or(false);
    let at = containers.iter().position(runs_flux).unwrap_or(0);
    if containers.is_empty() {
        containers.push(json!({}));
    }
    let Some(container) = containers[at].as_object_mut() else {
        return Err(format!("spec.miniCluster.containers[{at}] is no object"));
    };
    fill(container, job);
    spec.insert("containers".into(), Value::Array(containers));
    spec.insert("size".into(), wanted.size.into());
    if let Some(tasks) = wanted.tasks {
        spec.insert("tasks".into(), tasks.into());
    }
    if let Some(limit) = limit(job, longest) {
        spec.insert("deadlineSeconds".into(), limit.into());
    }
    let spec: MiniClusterSpec =
        serde_json::from_value(Value::Object(spec)).map_err(|error| format!("spec.miniCluster: {error}"))?;
    let mut made = MiniCluster::new(&job.name_any(), spec);
    made.metadata.namespace = job.namespace();
    made.metadata.labels = Some([(labels::FLUX_JOB.to_owned(), job.name_any())].into());
    made.metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
    Ok(made)
}

/// Writes what the FluxJob says itself into the container that runs Flux.
fn fill(container: &mut Map<String, Value>, job: &FluxJob) {
    let wanted = &job.spec;
    container.insert("runFlux".into(), true.into());
    container.insert("image".into(), wanted.image.as_str().into());
    container.insert("command".into(), wanted.command.as_str().into());
    if let Some(directory) = &wanted.working_dir {
        container.insert("workingDir".into(), directory.as_str().into());
    }
    let mut below = |key: &str, entries: Vec<(String, Value)>| {
        if entries.is_empty() {
            return;
        }
        let map = container.entry(key).or_insert_with(|| json!({}));
        if !map.is_object() {
            *map = json!({});
        }
        if let Some(map) = map.as_object_mut() {
            map.extend(entries);
        }
    };
    below(
        "environment",
        wanted.environment.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect(),
    );
    let resources = &wanted.resources;
    let amount = |name: &str, amount: &Option<crate::api::minicluster::Amount>| {
        amount.as_ref().map(|amount| (name.to_owned(), Value::from(amount.to_string())))
    };
    let mut amounts: Vec<(String, Value)> =
        amount("cpu", &resources.cpu).into_iter().chain(amount("memory", &resources.memory)).collect();
    if resources.gpus > 0 {
        amounts.push((resources.gpu_resource.clone().unwrap_or_else(|| GPU.into()), resources.gpus.into()));
    }
    if !amounts.is_empty() {
        let amounts = Value::Object(amounts.into_iter().collect());
        below("resources", vec![("requests".into(), amounts.clone()), ("limits".into(), amounts)]);
    }
}

/// What the queue says of a FluxJob.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// It waits, for this.
    Waits(String),
    /// It cannot be run as it is: reason and sentence.
    Refused(&'static str, String),
    /// It may start.
    Starts,
}

/// What has to be done about a FluxJob.
#[derive(Clone, Debug, PartialEq)]
pub struct JobStep {
    /// Its next status.
    pub status: FluxJobStatus,
    /// What follows once that is stored.
    pub then: Then,
    /// When to look again though nothing changes.
    pub wake: Option<Duration>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Its MiniCluster is made.
    Create(Box<MiniCluster>),
    /// Its MiniCluster with this UID is deleted.
    DeleteMiniCluster(String),
    /// It is deleted itself.
    DeleteJob,
}

/// Whether a MiniCluster is that of a FluxJob.
pub fn is_of(mini_cluster: &MiniCluster, job: &FluxJob) -> bool {
    let owners = mini_cluster.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
}

/// The next step of a FluxJob. `found` is the MiniCluster of its name, `word` what the queue says if it was not admitted
/// before.
pub fn step(job: &FluxJob, found: Option<&MiniCluster>, word: Word, longest: Option<i64>, now: Timestamp) -> JobStep {
    let mut draft = Draft { job, status: job.status.clone().unwrap_or_default(), then: Then::Nothing, wake: None, now };
    draft.status.observed_generation = job.metadata.generation;
    let mut statements = Vec::new();
    if draft.status.phase == JobPhase::Finished {
        draft.tidy(found);
    } else if let Some(mini_cluster) = found.filter(|found| is_of(found, job)) {
        draft.follow(mini_cluster);
    } else if draft.status.mini_cluster.is_some() {
        draft.finish(JobResult::Failed, "its MiniCluster was deleted".into());
    } else {
        let word = match word {
            _ if draft.status.admitted.is_some() => Word::Starts,
            word => word,
        };
        statements = draft.line_up(found, word, longest);
    }
    let conditions = &draft.status.conditions;
    draft.status.conditions = conditions::merged(conditions, statements, job.metadata.generation, now);
    JobStep { status: draft.status, then: draft.then, wake: draft.wake }
}

struct Draft<'a> {
    job: &'a FluxJob,
    status: FluxJobStatus,
    then: Then,
    wake: Option<Duration>,
    now: Timestamp,
}

impl Draft<'_> {
    fn line_up(&mut self, found: Option<&MiniCluster>, word: Word, longest: Option<i64>) -> Vec<Statement> {
        let refused = |reason: &'static str, sentence: String| {
            let statement = Statement::fails(VALID, reason, sentence.clone());
            (sentence, statement)
        };
        let made = mini_cluster(self.job, longest);
        let trouble = match (&made, found, &word) {
            (Err(sentence), ..) => Some(refused("Invalid", sentence.clone())),
            (_, Some(_), _) => {
                let name = self.job.name_any();
                let sentence = format!("MiniCluster {name} exists and is another's: give the FluxJob another name");
                Some(refused("NameTaken", sentence))
            }
            (_, _, Word::Refused(reason, sentence)) => Some(refused(reason, sentence.clone())),
            _ => None,
        };
        if let Some((sentence, statement)) = trouble {
            self.status.phase = JobPhase::Waiting;
            self.status.message = sentence;
            return vec![statement];
        }
        let valid = Statement::holds(VALID, "Valid", "a MiniCluster can be made of it");
        match word {
            Word::Starts => {
                self.status.phase = JobPhase::Ready;
                self.status.message = "its MiniCluster is being made".into();
                self.status.admitted.get_or_insert(Time(self.now));
                if let Ok(made) = made {
                    self.then = Then::Create(Box::new(made));
                }
                vec![valid, Statement::holds(ADMITTED, "RoomFound", "there is room for the whole of it")]
            }
            Word::Waits(sentence) | Word::Refused(_, sentence) => {
                self.status.phase = JobPhase::Waiting;
                self.status.message = sentence.clone();
                vec![valid, Statement::fails(ADMITTED, "Waiting", sentence)]
            }
        }
    }

    fn follow(&mut self, mini_cluster: &MiniCluster) {
        let name = mini_cluster.name_any();
        self.status.logs = format!(
            "kubectl logs --namespace {} job/{name} --container {name}",
            mini_cluster.namespace().unwrap_or_default()
        );
        self.status.admitted.get_or_insert(Time(self.now));
        self.status.mini_cluster = Some(name);
        let said = mini_cluster.status.as_ref();
        let started = self.status.phase >= JobPhase::Running;
        match said.and_then(|said| said.phase) {
            Some(Phase::Succeeded | Phase::Failed) => {
                let said = said.cloned().unwrap_or_default();
                self.status.exit_code = said.exit_code;
                let result =
                    if said.phase == Some(Phase::Succeeded) { JobResult::Succeeded } else { JobResult::Failed };
                let finished = conditions::find(&said.conditions, labels::condition::FINISHED);
                let message = finished.map(|condition| condition.message.clone()).unwrap_or_default();
                self.finish(result, message);
                self.tidy(Some(mini_cluster));
            }
            Some(Phase::Running) => {
                self.status.phase = JobPhase::Running;
                self.status.started.get_or_insert(Time(self.now));
                self.status.message = "its instance is up".into();
            }
            // What ran once does not become ready again, whatever happens to its pods.
            _ if started => {}
            other => {
                self.status.phase = JobPhase::Ready;
                self.status.message = match other {
                    Some(Phase::Refused) => {
                        let conditions = said.map(|said| said.conditions.as_slice()).unwrap_or_default();
                        let wrong = conditions.iter().find(|condition| condition.status == "False");
                        format!("its MiniCluster is refused: {}", wrong.map_or("", |condition| &condition.message))
                    }
                    _ => "its brokers start".into(),
                };
            }
        }
    }

    fn finish(&mut self, result: JobResult, message: String) {
        self.status.phase = JobPhase::Finished;
        self.status.result = Some(result);
        self.status.message = message;
        self.status.finished.get_or_insert(Time(self.now));
    }

    /// It has ended: what is asked to go, goes.
    fn tidy(&mut self, found: Option<&MiniCluster>) {
        let since = self.status.finished.get_or_insert(Time(self.now)).0;
        if let Some(ttl) = self.job.spec.ttl_seconds_after_finished {
            let due = since + jiff::SignedDuration::from_secs(ttl.into());
            match Duration::try_from(due.duration_since(self.now)) {
                Ok(left) if !left.is_zero() => self.wake = Some(left),
                _ => return self.then = Then::DeleteJob,
            }
        }
        let ours = found.filter(|found| is_of(found, self.job) && found.metadata.deletion_timestamp.is_none());
        if let (Cleanup::MiniCluster, Some(uid)) = (self.job.spec.cleanup, ours.and_then(ResourceExt::uid)) {
            self.then = Then::DeleteMiniCluster(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::minicluster::MiniClusterStatus;

    fn job(spec: Value) -> FluxJob {
        let mut job: FluxJob = serde_json::from_value(json!({
            "apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob",
            "metadata": {"name": "lammps", "namespace": "hpc", "uid": "job-uid", "generation": 1},
            "spec": {"image": "lammps:1", "command": "lmp -in in.reaxff"},
        }))
        .unwrap();
        let mut merged = serde_json::to_value(&job.spec).unwrap();
        merged.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        job.spec = serde_json::from_value(merged).unwrap();
        job
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn in_phase(job: &FluxJob, phase: Phase) -> MiniCluster {
        let mut found = mini_cluster(job, None).unwrap();
        let exit_code = (phase == Phase::Failed).then_some(3);
        found.metadata.uid = Some("mc-uid".into());
        found.status = Some(MiniClusterStatus { phase: Some(phase), exit_code, ..MiniClusterStatus::default() });
        found
    }

    #[test]
    fn the_mini_cluster_is_what_the_job_says_over_what_it_brings() {
        let job = job(json!({
            "size": 4, "tasks": 8, "workingDir": "/data", "environment": {"A": "1"}, "timeLimitSeconds": 600,
            "resources": {"cpu": 2, "memory": "1Gi", "gpus": 1},
            "miniCluster": {"size": 99, "flux": {"optionFlags": "-v"}, "containers": [
                {"name": "beside", "image": "b", "command": "sleep 1"},
                {"runFlux": true, "image": "other", "environment": {"B": "2"}}]},
        }));
        let made = serde_json::to_string_pretty(&mini_cluster(&job, Some(3600)).unwrap()).unwrap();
        insta::assert_snapshot!(made);
        let plain = super::tests::job(json!({}));
        assert_eq!(mini_cluster(&plain, Some(3600)).unwrap().spec.deadline_seconds, Some(3600), "the longest");
    }

    #[test]
    fn what_is_wrong_is_said_by_its_field() {
        for (spec, told) in [
            (json!({"command": " "}), "spec.command is empty"),
            (json!({"miniCluster": {"containers": 1}}), "spec.miniCluster.containers is no list"),
            (json!({"miniCluster": {"flux": 7}}), "spec.miniCluster: invalid type"),
        ] {
            let job = job(spec);
            let step = step(&job, None, Word::Starts, None, at(0));
            assert!(step.status.message.starts_with(told), "{}", step.status.message);
            assert_eq!((step.status.phase, step.then), (JobPhase::Waiting, Then::Nothing));
        }
        let step =
            step(&job(json!({})), Some(&MiniCluster::new("lammps", Default::default())), Word::Starts, None, at(0));
        assert!(step.status.message.contains("exists and is another's"));
    }

    #[test]
    fn a_life() {
        let mut job = job(json!({"cleanup": "MiniCluster", "ttlSecondsAfterFinished": 60}));
        let mut go = |found: Option<MiniCluster>, word: Word, second: i64| {
            let step = step(&job, found.as_ref(), word, None, at(second));
            job.status = Some(step.status.clone());
            (step.status.phase, step.then, step.wake)
        };
        let template = super::tests::job(json!({"cleanup": "MiniCluster", "ttlSecondsAfterFinished": 60}));
        let wait = || Word::Waits("in line".into());
        assert_eq!(go(None, wait(), 0).0, JobPhase::Waiting);
        let (phase, then, _) = go(None, Word::Starts, 5);
        assert!(phase == JobPhase::Ready && matches!(then, Then::Create(_)));
        // The creation was not answered, or another agent leads now: it was admitted, and stays so.
        assert!(matches!(go(None, wait(), 6).1, Then::Create(_)));
        assert_eq!(go(Some(in_phase(&template, Phase::Starting)), wait(), 7).0, JobPhase::Ready);
        assert_eq!(go(Some(in_phase(&template, Phase::Running)), wait(), 8).0, JobPhase::Running);
        assert_eq!(go(Some(in_phase(&template, Phase::Restarting)), wait(), 9).0, JobPhase::Running);
        let (phase, then, wake) = go(Some(in_phase(&template, Phase::Failed)), wait(), 10);
        assert_eq!((phase, then), (JobPhase::Finished, Then::DeleteMiniCluster("mc-uid".into())));
        assert_eq!(wake, Some(Duration::from_secs(60)));
        assert_eq!(go(None, wait(), 70).1, Then::DeleteJob);
        let status = job.status.unwrap();
        assert_eq!((status.result, status.exit_code), (Some(JobResult::Failed), Some(3)));
        assert_eq!(status.logs, "kubectl logs --namespace hpc job/lammps --container lammps");
    }

    #[test]
    fn a_job_whose_mini_cluster_was_taken_away_has_failed() {
        let mut job = job(json!({}));
        let found = in_phase(&job, Phase::Running);
        job.status = Some(step(&job, Some(&found), Word::Starts, None, at(0)).status);
        let step = step(&job, None, Word::Starts, None, at(1));
        assert_eq!((step.status.phase, step.then), (JobPhase::Finished, Then::Nothing), "it is not run twice");
        assert_eq!(step.status.message, "its MiniCluster was deleted");
    }
}
