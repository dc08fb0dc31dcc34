//! `agentctl restart`, `rekey`, `suspend` and `resume`: the instance of a MiniCluster, or of the one that a FluxJob became.

mod answer;

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::flux_job::{FluxJob, JobPhase};
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels::{self, KUEUE_QUEUE, condition};
use tributary::api::minicluster::{MiniCluster, Phase};
use tributary::clock::{Clock, SystemClock};
use tributary::cluster::caches::{controller_of, controller_uid};
use tributary::cluster::conditions::{find, is_true};
use tributary::queue::job::is_of;

use self::answer::answered;
use super::consent::agreed;
use super::rekey;
use crate::cli::Target;
use crate::error::{Failure, Result};
use crate::{kubernetes, output, paste};

/// What is done to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Restart,
    /// With a new certificate, which every instance gets unless its user has one.
    Rekey,
    Suspend,
    Resume,
}

impl Verb {
    /// The instance that runs is followed by another one.
    const fn is_anew(self) -> bool {
        matches!(self, Self::Restart | Self::Rekey)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Rekey => "rekey",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
        }
    }
}

/// Runs `agentctl restart`, `rekey`, `suspend` or `resume`.
pub(crate) async fn run(target: &Target, verb: Verb, text: &str, yes: bool) -> Result<()> {
    let asked = Asked::of(verb, text)?;
    let client = kubernetes::client(target).await?;
    let namespace = kubernetes::namespace(target, &client);
    let subject = find_subject(&client, &namespace, verb, &asked).await?;
    if let (Some(job), Verb::Suspend | Verb::Resume) = (&subject.job, verb) {
        switchable(verb, job)?;
        agreed(ends_with(verb, job), yes, target)?;
        let jobs: Api<FluxJob> = Api::namespaced(client, &namespace);
        kubernetes::merge(&jobs, verb.word(), &job.name_any(), switch(verb)).await?;
        return done(&subject, &namespace, verb, target);
    }
    let object = subject.instance(verb)?;
    let hosted: Option<HostedBurst> = match controller_of::<HostedBurst>(object) {
        Some(_) => Api::namespaced(client.clone(), &namespace).get_opt(&object.name_any()).await.ok().flatten(),
        None => None,
    };
    let name = object.name_any();
    let job: Option<Job> = match verb {
        Verb::Suspend => Api::namespaced(client.clone(), &namespace).get_opt(&name).await.ok().flatten(),
        Verb::Restart | Verb::Rekey | Verb::Resume => None,
    };
    possible(verb, object, hosted.as_ref(), job.as_ref())?;
    agreed(cost(verb, object), yes, target)?;
    let now = SystemClock::start().wall().to_string();
    let patch = match verb {
        Verb::Restart | Verb::Rekey => json!({"metadata": {"annotations": {labels::RESTART: now}}}),
        Verb::Suspend | Verb::Resume => switch(verb),
    };
    let objects: Api<MiniCluster> = Api::namespaced(client, &namespace);
    kubernetes::merge(&objects, verb.word(), &name, patch).await?;
    if verb.is_anew() {
        answered(&objects, object, verb, &now).await?;
    }
    done(&subject, &namespace, verb, target)
}

fn switch(verb: Verb) -> Value {
    json!({"spec": {"suspend": verb == Verb::Suspend}})
}

fn done(subject: &Subject, namespace: &str, verb: Verb, target: &Target) -> Result<()> {
    let (what, done, path) = (subject.kind(), outcome(verb), subject.path());
    let name = path.rsplit('/').next().unwrap_or_default();
    let told =
        format!("{what} {namespace}/{name} {done}; what it waits for: `agentctl why {path} --namespace {namespace}`\n");
    output::print(&paste::whole(&told, target))
}

const fn outcome(verb: Verb) -> &'static str {
    match verb {
        Verb::Restart => "is started anew",
        Verb::Rekey => "is started anew with a new certificate",
        Verb::Suspend => "is suspended",
        Verb::Resume => "is resumed",
    }
}

/// What was asked for: a kind, if one was written, and a name.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    mini_clusters: bool,
    jobs: bool,
    name: &'a str,
}

impl<'a> Asked<'a> {
    fn of(verb: Verb, text: &'a str) -> Result<Self> {
        let (kind, name) = text.split_once('/').unwrap_or(("", text));
        let (mini_clusters, jobs) = match kind.to_lowercase().split('.').next().unwrap_or_default() {
            "" => (true, true),
            "mc" | "minicluster" | "miniclusters" => (true, false),
            "fj" | "fluxjob" | "fluxjobs" => (false, true),
            _ => {
                return Err(Failure::new(format!("failed to {} {text}", verb.word()))
                    .hint("name a MiniCluster or a FluxJob: NAME, minicluster/NAME or fluxjob/NAME"));
            }
        };
        Ok(Self { mini_clusters, jobs, name })
    }
}

/// What is meant.
#[derive(Debug)]
struct Subject {
    job: Option<FluxJob>,
    mini_cluster: Option<MiniCluster>,
}

impl Subject {
    fn kind(&self) -> &'static str {
        if self.job.is_some() { "FluxJob" } else { "MiniCluster" }
    }

    /// As a command line names it.
    fn path(&self) -> String {
        let name = self.job.as_ref().map(ResourceExt::name_any);
        let name = name.or_else(|| self.mini_cluster.as_ref().map(ResourceExt::name_any)).unwrap_or_default();
        format!("{}/{name}", self.kind().to_lowercase())
    }

    /// The MiniCluster whose instance it is. A FluxJob has one from when the queue let it start until it has ended.
    fn instance(&self, verb: Verb) -> Result<&MiniCluster> {
        let Some(job) = &self.job else {
            return self.mini_cluster.as_ref().ok_or_else(|| Failure::new("there is no MiniCluster"));
        };
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        goes_on(verb, job)?;
        let failure = Failure::new(format!("failed to {} FluxJob {namespace}/{name}", verb.word()));
        let status = job.status.clone().unwrap_or_default();
        if let Some(sent) = status.sent {
            let peer = sent.peer.as_deref().unwrap_or("a peer");
            let hint = format!(
                "take it back, and it stands in line again: `agentctl burst cancel {} --namespace {namespace}`",
                sent.burst
            );
            return Err(failure.because(format!("all of it runs on {peer}, or is sent there")).hint(hint));
        }
        self.mini_cluster.as_ref().filter(|found| is_of(found, job)).ok_or_else(|| {
            let hint = format!(
                "it loses its place only if it is deleted: `kubectl delete fluxjob {name} --namespace {namespace}`; what it waits \
                 for: `agentctl why fluxjob/{name} --namespace {namespace}`"
            );
            failure.because("it stands in line, and nothing of it runs").hint(hint)
        })
    }
}

/// Whether it has not ended.
fn goes_on(verb: Verb, job: &FluxJob) -> Result<()> {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    if job.status.as_ref().is_none_or(|status| status.phase != JobPhase::Finished) {
        return Ok(());
    }
    let again = format!(
        "to run it once more, make it anew: `kubectl get fluxjob {name} --namespace {namespace} -o json | kubectl replace \
         --force -f -`"
    );
    let failure = Failure::new(format!("failed to {} FluxJob {namespace}/{name}", verb.word()));
    Err(failure.because("it has finished").hint(again))
}

/// Whether a FluxJob can be suspended, or resumed: wherever it is, in line, here or on a peer.
fn switchable(verb: Verb, job: &FluxJob) -> Result<()> {
    goes_on(verb, job)?;
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    let why = match (verb, job.spec.suspend) {
        (Verb::Suspend, true) => "it is suspended already",
        (Verb::Resume, false) => "it is not suspended",
        _ => return Ok(()),
    };
    let failure = Failure::new(format!("failed to {} FluxJob {namespace}/{name}", verb.word())).because(why);
    Err(failure.hint(format!("more is said by `agentctl why fluxjob/{name} --namespace {namespace}`")))
}

/// What a FluxJob loses that is suspended; `None`: nothing of it runs.
fn ends_with(verb: Verb, job: &FluxJob) -> Option<String> {
    let started = job.status.as_ref().is_some_and(|status| {
        let placed = status.mini_cluster.is_some() || status.sent.is_some();
        status.started.is_some() || placed && status.phase != JobPhase::Finished
    });
    (verb == Verb::Suspend && started).then(|| {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        format!(
            "suspending FluxJob {namespace}/{name} deletes its MiniCluster and ends its command, and gives its room to others\n  \
             when it is resumed, it stands in line with its old place, and the command begins anew"
        )
    })
}

async fn find_subject(client: &Client, namespace: &str, verb: Verb, asked: &Asked<'_>) -> Result<Subject> {
    let mini_cluster = kubernetes::get(client, namespace, asked.name).await?;
    let job = if asked.jobs { kubernetes::get(client, namespace, asked.name).await? } else { None };
    match chosen(namespace, verb, asked, job, mini_cluster)? {
        Some(subject) => Ok(subject),
        None => Err(missing(namespace, verb, asked, &elsewhere(client, asked).await)),
    }
}

/// What a name means where these bear it.
fn chosen(
    namespace: &str,
    verb: Verb,
    asked: &Asked<'_>,
    job: Option<FluxJob>,
    mini_cluster: Option<MiniCluster>,
) -> Result<Option<Subject>> {
    Ok(match (job, mini_cluster) {
        (Some(job), Some(other)) if asked.mini_clusters && !is_of(&other, &job) => {
            let (word, name) = (verb.word(), asked.name);
            let hint = format!(
                "name one: `agentctl {word} minicluster/{name} --namespace {namespace}` or \
                 `agentctl {word} fluxjob/{name} --namespace {namespace}`"
            );
            return Err(Failure::new(format!("a MiniCluster and a FluxJob are called {namespace}/{name}")).hint(hint));
        }
        (Some(job), found) => Some(Subject { job: Some(job), mini_cluster: found }),
        (None, Some(found)) if asked.mini_clusters => Some(Subject { job: None, mini_cluster: Some(found) }),
        _ => None,
    })
}

/// Namespaces in which something bears the name, as far as the user may look: kind and namespace.
async fn elsewhere(client: &Client, asked: &Asked<'_>) -> Vec<(&'static str, String)> {
    let named = ListParams::default().fields(&format!("metadata.name={}", asked.name));
    let mut found = Vec::new();
    if asked.mini_clusters {
        let all = Api::<MiniCluster>::all(client.clone()).list_metadata(&named).await;
        let all = all.map(|list| list.items).unwrap_or_default();
        found.extend(all.iter().filter_map(|one| Some(("minicluster", one.namespace()?))));
    }
    if asked.jobs {
        let all = Api::<FluxJob>::all(client.clone()).list_metadata(&named).await;
        let all = all.map(|list| list.items).unwrap_or_default();
        found.extend(all.iter().filter_map(|one| Some(("fluxjob", one.namespace()?))));
    }
    found
}

fn missing(namespace: &str, verb: Verb, asked: &Asked<'_>, elsewhere: &[(&str, String)]) -> Failure {
    let (word, name) = (verb.word(), asked.name);
    let what = match (asked.mini_clusters, asked.jobs) {
        (true, true) => "MiniCluster or FluxJob",
        (true, false) => "MiniCluster",
        _ => "FluxJob",
    };
    let failure = Failure::new(format!("there is no {what} {namespace}/{name}"));
    let commands: Vec<String> =
        elsewhere.iter().map(|(kind, there)| format!("`agentctl {word} {kind}/{name} --namespace {there}`")).collect();
    match commands.as_slice() {
        [] => failure.hint("what there is: `kubectl get miniclusters,fluxjobs --all-namespaces`"),
        some => failure.hint(format!("it is in another namespace: {}", some.join(" or "))),
    }
}

/// Whether an agent would obey.
fn possible(verb: Verb, object: &MiniCluster, hosted: Option<&HostedBurst>, job: Option<&Job>) -> Result<()> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let refused =
        |why: &str| Failure::new(format!("failed to {} MiniCluster {namespace}/{name}", verb.word())).because(why);
    if controller_of::<HostedBurst>(object).is_some() {
        let failure = refused("it is a burst of another cluster's MiniCluster, which decides about it");
        return Err(failure.hint(where_it_is_decided(verb, object, hosted)));
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Err(refused("it is being deleted"));
    }
    if let Some(manager) = object.spec.left_to() {
        let failure = refused(&format!("it is left to {manager} (spec.managedBy): no agent here would obey"));
        return Err(failure.hint("do it in the cluster that runs it"));
    }
    if verb == Verb::Rekey {
        rekey::possible(object)?;
    }
    let status = object.status.clone().unwrap_or_default();
    let invalid = find(&status.conditions, condition::VALID).filter(|said| said.status == "False");
    let why = format!("more is said by `agentctl why minicluster/{name} --namespace {namespace}`");
    let ended = matches!(status.phase, Some(Phase::Succeeded | Phase::Failed));
    Err(match verb {
        Verb::Restart | Verb::Rekey if is_true(&status.conditions, condition::ADOPTED) && !ended => {
            refused("the Flux Operator made its Job, which is left as it is").hint(format!(
                "end that Job, and the next one is Tributary's: `kubectl delete job {name} --namespace {namespace}`"
            ))
        }
        Verb::Restart | Verb::Rekey if let Some(said) = invalid => {
            refused(&format!("its spec cannot be carried out: {}", said.message))
                .hint(format!("correct it first, or the instance that runs is all there is; {why}"))
        }
        Verb::Suspend | Verb::Resume if ended => refused("it has ended")
            .hint(format!("to run it once more: `agentctl restart minicluster/{name} --namespace {namespace}`")),
        Verb::Suspend if object.spec.suspend => refused("it is suspended already"),
        Verb::Suspend if is_queued(object, job) => refused(
            "Kueue starts and stops its Job, and would start it again at once",
        )
        .hint(format!(
            "to hold it back: `kubectl get workloads.kueue.x-k8s.io --namespace {namespace}` names its Workload, whose \
                 spec.active is to be false then"
        )),
        Verb::Resume if !object.spec.suspend && status.phase == Some(Phase::Suspended) => {
            refused("its Job is suspended, though it is not: a queue such as Kueue did that, or a person").hint(why)
        }
        Verb::Resume if !object.spec.suspend => refused("it is not suspended"),
        Verb::Restart | Verb::Rekey | Verb::Suspend | Verb::Resume => return Ok(()),
    })
}

/// What can be done about a burst of another cluster.
fn where_it_is_decided(verb: Verb, object: &MiniCluster, hosted: Option<&HostedBurst>) -> String {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let here = format!("to throw it out here: `kubectl delete hostedburst {name} --namespace {namespace}`");
    let Some(HostedBurst { spec, .. }) = hosted else { return here };
    let (peer, root) = (&spec.peer, &spec.root);
    let command = format!("{} minicluster/{} --namespace {}", verb.word(), root.name, root.namespace);
    format!("in {peer}: `agentctl --context {peer} {command}`; {here}")
}

/// Whether Kueue decides when it or its next instance runs. Kueue itself may have put the label on its Job (a LocalQueue
/// `default`); the next Job gets it from the MiniCluster, `jobLabels` or the pods.
fn is_queued(object: &MiniCluster, job: Option<&Job>) -> bool {
    let job = job.filter(|job| controller_uid(*job) == object.uid().as_deref()).map(ResourceExt::labels);
    let spec = &object.spec;
    let written = [object.labels(), &spec.job_labels, &spec.pod.labels];
    written.into_iter().chain(job).any(|labels| labels.contains_key(KUEUE_QUEUE))
}

/// What it costs; `None`: nothing runs that could be lost.
fn cost(verb: Verb, object: &MiniCluster) -> Option<String> {
    let status = object.status.as_ref()?;
    let here = matches!(status.phase, Some(Phase::Starting | Phase::Running)) && status.size > 0;
    let runs = here || status.ready.unwrap_or(0) > 0 || status.bursts.iter().any(|burst| burst.ready > 0);
    match verb {
        Verb::Resume => None,
        Verb::Restart | Verb::Rekey | Verb::Suspend if !runs => None,
        Verb::Restart | Verb::Rekey => Some(rekey::lost(object)),
        Verb::Suspend => Some(format!(
            "{}\n  it goes on when it is resumed, with a new instance",
            rekey::lost(object).replace("a new instance of", "suspending")
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::paste::check::pastes;

    fn of<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn lake(owner: Value, spec: Value, status: Value) -> MiniCluster {
        let mut whole = json!({"size": 2, "containers": [{"image": "app"}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        of(
            json!({"metadata": {"name": "lake", "namespace": "flux", "ownerReferences": owner}, "spec": whole, "status": status}),
        )
    }

    fn owned_by(kind: &str, uid: &str) -> Value {
        json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": kind, "name": "lake", "uid": uid, "controller": true}])
    }

    fn job(status: Value) -> FluxJob {
        of(json!({"metadata": {"name": "lake", "namespace": "flux", "uid": "j"}, "spec": {}, "status": status}))
    }

    fn said(type_: &str, status: &str) -> Value {
        json!({"type": type_, "status": status, "reason": "Because", "message": "spec.size is 0",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn asked(text: &str) -> Asked<'_> {
        Asked::of(Verb::Suspend, text).unwrap()
    }

    /// A FluxJob and its MiniCluster bear one name, and are one thing to their user.
    #[test]
    fn a_bare_name_is_never_taken_for_something_else() {
        let theirs = lake(owned_by("FluxJob", "j"), json!({}), json!({}));
        let strange = lake(json!([]), json!({}), json!({}));
        let choose = |text: &str, job: Option<FluxJob>, found: Option<MiniCluster>| {
            chosen("flux", Verb::Suspend, &asked(text), job, found).map(|subject| subject.map(|one| one.path()))
        };
        let running = || Some(job(json!({"phase": "Running"})));
        for (text, job, found, path) in [
            ("lake", running(), Some(theirs.clone()), Some("fluxjob/lake")),
            ("fluxjob/lake", running(), Some(theirs.clone()), Some("fluxjob/lake")),
            ("fluxjobs.tributary.dev/lake", running(), Some(strange.clone()), Some("fluxjob/lake")),
            ("MC/lake", None, Some(theirs), Some("minicluster/lake")),
            ("lake", None, Some(strange.clone()), Some("minicluster/lake")),
            ("fluxjob/lake", None, Some(strange.clone()), None),
            ("lake", None, None, None),
        ] {
            assert_eq!(choose(text, job, found).unwrap().as_deref(), path, "{text}");
        }
        let several = choose("lake", running(), Some(strange)).unwrap_err().to_string();
        let none = missing("flux", Verb::Restart, &asked("mc/lake"), &[]).to_string();
        let there = missing("flux", Verb::Restart, &asked("lake"), &[("fluxjob", "hpc".into())]).to_string();
        let kind = Asked::of(Verb::Restart, "pod/lake").unwrap_err().to_string();
        let texts = [several, none, there, kind];
        texts.iter().for_each(|text| pastes(text));
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }

    #[test]
    fn nothing_is_done_that_no_agent_would_obey() {
        use Verb::{Rekey, Restart, Resume, Suspend};
        let runs = json!({"phase": "Running", "ready": 2});
        let plain = |status: &Value| lake(json!([]), json!({}), status.clone());
        let hosted: HostedBurst = of(json!({"metadata": {"name": "lake", "namespace": "flux"},
            "spec": {"peer": "east", "root": {"name": "river", "namespace": "hpc"}, "slot": "lake"}}));
        let guest = || lake(owned_by("HostedBurst", "h"), json!({}), runs.clone());
        let ended = json!({"phase": "Failed"});
        let adopted = json!({"phase": "Running", "conditions": [said("Adopted", "True")]});
        let invalid = json!({"phase": "Running", "conditions": [said("Valid", "False")]});
        let kueue = json!({"phase": "Suspended"});
        let suspended = |status: Value| lake(json!([]), json!({"suspend": true}), status);
        let refused = [
            (Restart, guest(), Some(&hosted)),
            (Suspend, guest(), None),
            (Restart, plain(&adopted), None),
            (Restart, plain(&invalid), None),
            (Suspend, plain(&ended), None),
            (Suspend, suspended(kueue.clone()), None),
            (Resume, plain(&runs), None),
            (Resume, plain(&kueue), None),
            (Rekey, guest(), Some(&hosted)),
            (Rekey, plain(&adopted), None),
            (Rekey, plain(&invalid), None),
            (Rekey, lake(json!([]), json!({"flux": {"curveCert": "text"}}), runs.clone()), None),
            (Restart, lake(json!([]), json!({"managedBy": "kueue.x-k8s.io/multikueue"}), runs.clone()), None),
        ];
        let texts =
            refused.map(|(verb, object, hosted)| possible(verb, &object, hosted, None).unwrap_err().to_string());
        texts.iter().for_each(|text| pastes(text));
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
        for (verb, object) in [
            (Restart, plain(&runs)),
            (Restart, plain(&ended)),
            (Rekey, plain(&runs)),
            (Suspend, plain(&runs)),
            (Suspend, plain(&adopted)),
            (Resume, suspended(kueue)),
        ] {
            assert!(possible(verb, &object, None, None).is_ok(), "{verb:?}");
        }
    }

    #[test]
    fn a_flux_job_is_suspended_wherever_it_is_unless_it_has_ended() {
        let suspended = |status: Value| {
            let mut job = job(status);
            job.spec.suspend = true;
            job
        };
        let sent = json!({"phase": "Running", "started": "2026-01-01T00:00:00Z", "sent": {"peer": "west"}});
        for (verb, of, costs) in [
            (Verb::Suspend, job(json!({"phase": "Waiting"})), false),
            (Verb::Suspend, job(sent), true),
            (Verb::Resume, suspended(json!({"phase": "Waiting"})), false),
        ] {
            assert!(switchable(verb, &of).is_ok());
            assert_eq!(ends_with(verb, &of).is_some(), costs, "{verb:?}");
        }
        for (verb, of, why) in [
            (Verb::Suspend, job(json!({"phase": "Finished"})), "it has finished"),
            (Verb::Suspend, suspended(json!({"phase": "Waiting"})), "it is suspended already"),
            (Verb::Resume, job(json!({"phase": "Running"})), "it is not suspended"),
        ] {
            let told = switchable(verb, &of).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
            pastes(&told);
        }
    }

    #[test]
    fn only_a_flux_job_that_has_an_instance_has_it_changed() {
        let theirs = || Some(lake(owned_by("FluxJob", "j"), json!({}), json!({})));
        let subject = |status: Value, mini_cluster| Subject { job: Some(job(status)), mini_cluster };
        let running = subject(json!({"phase": "Running", "miniCluster": "lake"}), theirs());
        assert_eq!(running.instance(Verb::Restart).unwrap().name_any(), "lake");
        let sent = json!({"phase": "Running", "sent": {"peer": "west", "burst": "fluxjob-lake"}});
        let refused = [
            subject(json!({"phase": "Finished", "result": "Failed"}), theirs()),
            subject(json!({"phase": "Waiting"}), None),
            subject(json!({"phase": "Waiting"}), Some(lake(json!([]), json!({}), json!({})))),
            subject(sent, None),
        ];
        let texts = refused.map(|subject| subject.instance(Verb::Restart).unwrap_err().to_string());
        texts.iter().for_each(|text| pastes(text));
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }

    #[test]
    fn who_loses_something_is_asked_and_nobody_else() {
        let runs = lake(json!([]), json!({}), json!({"phase": "Running", "ready": 2}));
        let waits = lake(json!([]), json!({}), json!({"phase": "Pending", "ready": 0}));
        assert_eq!(
            [Verb::Restart, Verb::Suspend, Verb::Resume].map(|verb| cost(verb, &runs).is_some()),
            [true, true, false]
        );
        assert_eq!([Verb::Restart, Verb::Suspend].map(|verb| cost(verb, &waits)), [None, None]);
        insta::assert_snapshot!(cost(Verb::Suspend, &runs).unwrap());
        // A sidecar that fails, or a probe that is late, does not stop what computes.
        let unready = lake(json!([]), json!({}), json!({"phase": "Starting", "ready": 0, "size": 2}));
        assert!(cost(Verb::Suspend, &unready).is_some());
        assert!(ends_with(Verb::Suspend, &job(json!({"phase": "Starting", "miniCluster": "lake"}))).is_some());
    }

    #[test]
    fn kueue_alone_holds_back_what_it_queues() {
        let mut queued = lake(json!([]), json!({"jobLabels": {KUEUE_QUEUE: "fast"}}), json!({"phase": "Running"}));
        queued.metadata.uid = Some("u".to_owned());
        let refused = possible(Verb::Suspend, &queued, None, None).unwrap_err().to_string();
        assert!(refused.contains("would start it again at once"), "{refused}");
        pastes(&refused);
        // The danger: Kueue has put it into a queue, and agentctl says that it is suspended.
        let mut plain = lake(json!([]), json!({}), json!({"phase": "Running"}));
        plain.metadata.uid = Some("u".to_owned());
        for (uid, labels, is_refused) in [
            ("u", json!({KUEUE_QUEUE: "default"}), true),
            ("u", json!({}), false),
            ("another's", json!({KUEUE_QUEUE: "default"}), false),
        ] {
            let owner = json!([{"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "lake", "uid": uid,
                "controller": true}]);
            let job = of(json!({"metadata": {"name": "lake", "labels": labels, "ownerReferences": owner}}));
            assert_eq!(possible(Verb::Suspend, &plain, None, Some(&job)).is_err(), is_refused, "{uid}");
            // The danger: what is suspended now is started by its queue once it has its next Job.
            assert!(possible(Verb::Suspend, &queued, None, Some(&job)).is_err(), "{uid}");
        }
    }
}
