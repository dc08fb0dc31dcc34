//! What is seen while everything goes wrong: watches of all kinds that matter, and lists of the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, verbs};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tributary::api::labels;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{KINDS, Kind};

use super::oracle::{Brokers, Keys, Lives, Seen, is_made, written_by_others};
use super::{CLUSTERS, is_by_tunnel};

/// What is watched besides.
const MORE_KINDS: [Kind; 2] = [("", "v1", "Event"), ("coordination.k8s.io", "v1", "Lease")];

/// Between two lists of the pods, and how long one may take.
const LOOK_AGAIN: Duration = Duration::from_millis(400);
const NO_ANSWER: Duration = Duration::from_secs(2);

/// What was done and seen, with its times; and the first rule that was broken.
pub(super) struct Story {
    began: Instant,
    lines: Mutex<Vec<String>>,
    broken: Mutex<Option<String>>,
}

impl Story {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), lines: Mutex::default(), broken: Mutex::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn say(&self, what: impl AsRef<str>) {
        let line = format!("{:7.2} {}", self.now().as_secs_f64(), what.as_ref());
        self.lines.lock().unwrap().push(line);
    }

    /// A rule was broken.
    pub(super) fn breaks(&self, what: String) {
        self.say(format!("BROKEN: {what}"));
        self.broken.lock().unwrap().get_or_insert(what);
    }

    pub(super) fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap().clone()
    }

    pub(super) fn told(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

/// Where an object is: cluster, kind, namespace, name.
type Key = (usize, &'static str, String, String);

#[derive(Default)]
struct State {
    keys: Keys,
    lives: Lives,
    objects: BTreeMap<Key, Value>,
    /// UIDs of objects that their users have given up.
    given_up: BTreeSet<String>,
    looks: u64,
    /// What there was of each kind, by UID or another word for it.
    there_was: BTreeMap<&'static str, BTreeSet<String>>,
}

/// HostedBursts whose brokers were all ready at a time.
const READY: &str = "ready";

impl State {
    fn count(&mut self, cluster: usize, kind: &'static str, object: &Value) {
        self.looks += 1;
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let (kind, word) = match kind {
            // Each leader has a number of its own.
            "Lease" if object["metadata"]["namespace"] != SYSTEM => return,
            "Lease" => (kind, format!("{cluster} {}", object["spec"]["leaseTransitions"])),
            "HostedBurst" if object["status"]["phase"] == "Ready" => (READY, uid.to_owned()),
            _ => (kind, uid.to_owned()),
        };
        self.there_was.entry(kind).or_default().insert(word.clone());
        if kind == READY {
            self.there_was.entry("HostedBurst").or_default().insert(word);
        }
    }
}

/// What looks at all clusters all the time.
pub(super) struct Eyes {
    story: Arc<Story>,
    state: Mutex<State>,
}

/// What was seen, as figures.
#[derive(Debug)]
#[allow(dead_code, reason = "they are printed as they are")]
pub(super) struct Figures {
    events_seen: u64,
    mini_clusters: usize,
    jobs: usize,
    pods: usize,
    hosted_bursts: usize,
    of_them_ready: usize,
    leaders: usize,
    secret_keys: usize,
}

impl Eyes {
    /// The watches end with the set.
    pub(super) fn open(story: &Arc<Story>, clients: &[Client]) -> (Arc<Self>, JoinSet<()>) {
        let eyes = Arc::new(Self { story: story.clone(), state: Mutex::default() });
        let mut tasks = JoinSet::new();
        for (cluster, client) in clients.iter().enumerate() {
            for kind in KINDS.into_iter().chain(MORE_KINDS) {
                tasks.spawn(eyes.clone().watch(client.clone(), cluster, kind));
            }
            tasks.spawn(eyes.clone().list_pods(client.clone(), cluster));
        }
        (eyes, tasks)
    }

    /// The user of an object is about to delete it.
    pub(super) fn given_up(&self, uid: &str) {
        self.state.lock().unwrap().given_up.insert(uid.to_owned());
    }

    pub(super) fn figures(&self) -> Figures {
        let state = self.state.lock().unwrap();
        let count = |what: &str| state.there_was.get(what).map_or(0, BTreeSet::len);
        Figures {
            events_seen: state.looks,
            mini_clusters: count("MiniCluster"),
            jobs: count("Job"),
            pods: count("Pod"),
            hosted_bursts: count("HostedBurst"),
            of_them_ready: count(READY),
            leaders: count("Lease"),
            secret_keys: state.keys.count(),
        }
    }

    /// Whose secret key is in a text.
    pub(super) fn key_in(&self, text: &str) -> Option<String> {
        self.state.lock().unwrap().keys.in_text(text).map(str::to_owned)
    }

    /// Looks at an object once more, at the end.
    pub(super) fn look_again(&self, object: &Value) -> Option<String> {
        let state = self.state.lock().unwrap();
        state.keys.in_object(object).filter(|_| object["kind"] != "Secret").map(str::to_owned)
    }

    async fn watch(self: Arc<Self>, client: Client, cluster: usize, (group, version, kind): Kind) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        let mut stream = watcher(api, watcher::Config::default()).boxed();
        let mut listed: BTreeSet<Key> = BTreeSet::new();
        while let Some(event) = stream.next().await {
            match event {
                // The API server is away.
                Err(_) => sleep(Duration::from_millis(500)).await,
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    listed.insert(key(cluster, kind, &object));
                    self.look(cluster, kind, object);
                }
                Ok(watcher::Event::Apply(object)) => self.look(cluster, kind, object),
                Ok(watcher::Event::Delete(object)) => self.gone(&key(cluster, kind, &object)),
                Ok(watcher::Event::InitDone) => {
                    let known: Vec<Key> = {
                        let state = self.state.lock().unwrap();
                        let known = state.objects.keys().filter(|key| key.0 == cluster && key.1 == kind);
                        known.filter(|key| !listed.contains(*key)).cloned().collect()
                    };
                    known.iter().for_each(|key| self.gone(key));
                }
            }
        }
    }

    fn look(&self, cluster: usize, kind: &'static str, object: DynamicObject) {
        let key = key(cluster, kind, &object);
        let value = serde_json::to_value(&object).expect("an object has a JSON form");
        let at = format!("{}: {kind} {}/{}", CLUSTERS[cluster], key.2, key.3);
        let mut state = self.state.lock().unwrap();
        state.count(cluster, kind, &value);
        if kind == "Secret" {
            if state.keys.learn(&at, &value) {
                // It may have been written elsewhere before.
                let found = state.objects.iter().find_map(|(key, object)| {
                    let whose = state.keys.in_object(object)?;
                    Some(format!("{whose} is in {} {key:?}: {object}", CLUSTERS[key.0]))
                });
                found.into_iter().for_each(|found| self.story.breaks(found));
            }
            return;
        }
        if let Some(whose) = state.keys.in_object(&value) {
            self.story.breaks(format!("{whose} is in {at}: {value}"));
        }
        let of_a_user = is_of_a_user(kind, &value) || kind == "ClusterPeer";
        if let Some(who) = of_a_user.then(|| written_by_others(kind, &value)).flatten() {
            self.story.breaks(format!("{at}: {who}: {value}"));
        }
        // Another one of its name has come.
        let before = state.objects.insert(key, value);
        if let Some(before) = before
            && before["metadata"]["uid"].as_str() != object.metadata.uid.as_deref()
        {
            self.lost(&state, &at, kind, &before);
        }
    }

    fn gone(&self, key: &Key) {
        let mut state = self.state.lock().unwrap();
        let Some(object) = state.objects.remove(key) else { return };
        let at = format!("{}: {} {}/{}", CLUSTERS[key.0], key.1, key.2, key.3);
        self.lost(&state, &at, key.1, &object);
    }

    /// What is a user's is gone: the user said so.
    fn lost(&self, state: &State, at: &str, kind: &str, object: &Value) {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if is_of_a_user(kind, object) && !state.given_up.contains(uid) {
            self.story.breaks(format!("{at} is gone, and its user has not deleted it: {object}"));
        }
    }

    async fn list_pods(self: Arc<Self>, client: Client, cluster: usize) {
        let (jobs, pods): (Api<Job>, Api<Pod>) = (Api::all(client.clone()), Api::all(client));
        loop {
            sleep(LOOK_AGAIN).await;
            let (everything, asked) = (ListParams::default(), self.story.now());
            let both = async { (pods.list(&everything).await, jobs.list(&everything).await) };
            // Of an API server that does not answer, nothing is known; its pods live on.
            let Ok((Ok(pods), Ok(jobs))) = timeout(NO_ANSWER, both).await else { continue };
            let answered = self.story.now();
            let mut state = self.state.lock().unwrap();
            for job in jobs {
                let Some(digest) = job.annotations().get(labels::CREDENTIAL_DIGEST).cloned() else { continue };
                let (name, uid) = (job.name_any(), job.uid().unwrap_or_default());
                let tunnel = is_by_tunnel(&name);
                state.lives.job(&uid, Brokers { digest, name, tunnel });
            }
            state.lives.seen(cluster, asked, answered, pods.iter().filter_map(seen));
            if let Some(twice) = state.lives.twice() {
                self.story.breaks(twice);
            }
        }
    }
}

fn is_of_a_user(kind: &str, object: &Value) -> bool {
    kind == "FluxJob" || kind == "MiniCluster" && !is_made(object)
}

/// A pod of a Job that has not ended.
fn seen(pod: &Pod) -> Option<Seen<'_>> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let job = pod.owner_references().iter().find(|owner| owner.kind == "Job")?;
    let lives = !matches!(phase, Some("Succeeded" | "Failed"));
    lives.then_some(Seen {
        uid: pod.metadata.uid.as_deref()?,
        name: pod.metadata.name.as_deref()?,
        job: &job.uid,
        index: pod.labels().get(labels::kubernetes::COMPLETION_INDEX)?,
    })
}

fn key(cluster: usize, kind: &'static str, object: &DynamicObject) -> Key {
    (cluster, kind, object.namespace().unwrap_or_default(), object.name_any())
}

/// All objects of a cluster, of every kind that can be listed.
///
/// # Errors
/// What the API server says.
pub(crate) async fn everything(client: &Client) -> kube::Result<Vec<Value>> {
    let mut all = Vec::new();
    let found = Discovery::new(client.clone()).run().await?;
    for (resource, capabilities) in found.groups().flat_map(kube::discovery::ApiGroup::recommended_resources) {
        if !capabilities.supports_operation(verbs::LIST) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list,
            // Some are no longer served in fact, such as ComponentStatus.
            Err(kube::Error::Api(status)) if [404, 405].contains(&status.code) => continue,
            Err(error) => return Err(error),
        };
        for object in list {
            let mut value = serde_json::to_value(object).expect("an object has a JSON form");
            value["kind"] = resource.kind.clone().into();
            all.push(value);
        }
    }
    Ok(all)
}
