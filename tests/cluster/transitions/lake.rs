//! MiniClusters with a burst: one is changed from spec to spec, and what comes of it is held against one that is made anew.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tributary::api::labels::{RESTART, condition, reason};

use tributary::clock::{Rng as _, SeededRng};
use tributary_tests::fields::{Case, merge, write};

use super::World;
use super::changes::{Change, changes, names};
use super::eyes::Key;
use super::normal::{self, Picture, picture, told};

/// What is changed.
pub(super) const LAKE: &str = "lake";
/// Another MiniCluster beside it.
pub(super) const STILL: &str = "still";

/// Nothing changes for so long: it has settled.
pub(super) const QUIET: Duration = Duration::from_millis(900);
/// It has to settle within this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(45);

/// A namespace in which one MiniCluster is changed again and again.
pub(super) struct Lane<'a> {
    world: &'a World,
    namespace: String,
    restarts: u32,
    /// The spec that it has, as it was written.
    spec: Value,
    /// What has been done to it since it was as a new one.
    story: Vec<String>,
    /// What its instance has been told of ranks.
    ranks: Vec<[Value; 3]>,
}

/// Fields that a running instance follows as far as it has ranks.
const WITHIN_RANKS: [&str; 3] = ["/size", "/maxSize", "/flux/bursting/clusters"];

/// How a spec was taken.
enum Taken {
    /// The API server refuses it.
    Refused(String),
    /// The agent refuses it: what it says.
    Invalid(String),
    /// It is carried out.
    Done,
}

impl<'a> Lane<'a> {
    pub(super) async fn begin(world: &'a World, namespace: String) -> Self {
        world.federation.namespace(&namespace).await.unwrap();
        let still = json!({ "size": 1, "interactive": true, "containers": [{ "image": "rockylinux:9" }],
            "network": { "headlessName": "still-calm" } });
        put(world, &namespace, STILL, &still).await.unwrap();
        world.eyes.settled(&namespace, QUIET, PATIENCE, |objects| waits(objects, None)).await.unwrap();
        Self { world, namespace, restarts: 0, spec: Value::Null, story: Vec::new(), ranks: Vec::new() }
    }

    /// All changes of one field, in an order by chance, and back.
    pub(super) async fn field(&mut self, case: &Case, rng: &mut SeededRng, most: usize) {
        let case = &Case { at: concrete(case), ..case.clone() };
        let still = self.still();
        let before = with_burst(&case.before);
        if !self.reach(case, "before", &before).await {
            // What never settles must not be in the way of the next field.
            self.world.removed(&self.namespace, &[LAKE]).await;
            (self.story, self.ranks) = Default::default();
            return;
        }
        let origin = self.picture();
        let value = at(&case.after, &case.at);
        let mut all = changes(&case.at, &self.world.leaves[&case.field], &value);
        // What means something is always tried; the rest by chance.
        let mut chosen = vec![all.remove(0)];
        while chosen.len() < most && !all.is_empty() {
            chosen.push(all.remove(rng.next_u64() as usize % all.len()));
        }
        for index in (1..chosen.len()).rev() {
            chosen.swap(index, rng.next_u64() as usize % (index + 1));
        }
        for (change, path, value) in chosen {
            // What Kubernetes' own types require beside it stays there.
            let mut spec = if case.generated.is_some() { with_burst(&case.after) } else { before.clone() };
            match change {
                Change::Add => spec = with_burst(&case.after),
                Change::Remove => spec = before.clone(),
                _ => write(&mut spec, &path, value.clone()),
            }
            self.step(case, change, &format!("{change:?} {path}={value}"), spec, &origin).await;
        }
        if self.reach(case, "back", &before).await {
            let differences = differences(&origin, &self.picture());
            if !differences.is_empty() {
                self.find("it does not return", case, told(&differences));
            }
        }
        if still != self.still() {
            self.find("another MiniCluster was touched", case, format!("{still:?} -> {:?}", self.still()));
        }
    }

    async fn step(&mut self, case: &Case, change: Change, what: &str, spec: Value, origin: &Picture) {
        let old = self.picture();
        self.world.report.lock().unwrap().transition(&case.field, change);
        match self.change(what, &spec).await {
            Err(why) => self.find("it does not settle", case, why),
            Ok(Taken::Refused(words)) => {
                self.world.report.lock().unwrap().refusals += 1;
                if !names(&words, &case.at) {
                    self.find("a refusal of the API server does not name the field", case, words);
                }
                let differences = differences(&old, &self.picture());
                if !differences.is_empty() {
                    self.find("a refused change has an effect", case, told(&differences));
                }
            }
            Ok(Taken::Invalid(words)) => {
                self.world.report.lock().unwrap().refusals += 1;
                if !names(&words, &case.at) {
                    self.find("a refusal of the agent does not name the field", case, words);
                }
                self.unmoved(case, &old);
            }
            Ok(Taken::Done) => {
                let now = self.picture();
                self.as_a_new_one(case, &spec, &now).await;
                if change == Change::Add
                    && !is_silent(case)
                    && differences(origin, &now).iter().all(|(path, ..)| of_the_spec(path))
                {
                    self.find("the field leaves no trace", case, String::new());
                }
            }
        }
    }

    /// Gives it a spec that has to be taken.
    async fn reach(&mut self, case: &Case, what: &str, spec: &Value) -> bool {
        match self.change(what, spec).await {
            Err(why) => self.find("it does not settle", case, why),
            Ok(Taken::Refused(words) | Taken::Invalid(words)) if case.refused.is_none() => {
                self.find("a good spec is refused", case, words);
            }
            Ok(_) => {
                let now = self.picture();
                self.as_a_new_one(case, spec, &now).await;
                return true;
            }
        }
        false
    }

    /// It is the same as one that is made anew with this spec.
    async fn as_a_new_one(&mut self, case: &Case, spec: &Value, now: &Picture) {
        let fresh = match self.world.fresh(spec).await {
            Err(why) => return self.find("a new one does not settle", case, why),
            Ok(fresh) => fresh,
        };
        let mut differences = differences(&fresh, now);
        // Ranks that were declared stay declared: only a new instance has fewer.
        if !differences.is_empty() && self.ranks.len() > 1 {
            match self.restart().await {
                Err(why) => return self.find("it does not settle", case, why),
                Ok(Some(words)) => return self.find("a good spec is refused", case, words),
                Ok(None) => {}
            }
            differences = self::differences(&fresh, &self.picture());
        }
        if differences.is_empty() {
            self.story.clear();
        } else {
            self.find("it is not as a new one", case, told(&differences));
        }
    }

    /// What runs is as it was while the spec is refused.
    fn unmoved(&self, case: &Case, old: &Picture) {
        let now = self.picture();
        let own = format!("0 MiniCluster {LAKE}");
        let moved: Vec<_> = differences(old, &now).into_iter().filter(|(path, ..)| !path.starts_with(&own)).collect();
        if !moved.is_empty() {
            self.find("what runs is changed by a spec that is refused", case, told(&moved));
        }
    }

    async fn change(&mut self, what: &str, spec: &Value) -> Result<Taken, String> {
        self.story.push(what.to_owned());
        if let Err(words) = put(self.world, &self.namespace, LAKE, spec).await {
            return Ok(Taken::Refused(words));
        }
        self.spec = spec.clone();
        let ranks = WITHIN_RANKS.map(|at| spec.pointer(at).cloned().unwrap_or_default());
        if self.ranks.last() != Some(&ranks) {
            self.ranks.push(ranks);
        }
        let objects = self.world.settled(&self.namespace).await?;
        let status = status(&objects, LAKE);
        let words = said(&status, condition::VALID, "False");
        if let Some(words) = words.or_else(|| unreadable(&status).map(|(words, _)| words)) {
            return Ok(Taken::Invalid(words));
        }
        if let Some(words) = cannot(&status) {
            return Ok(Taken::Invalid(words));
        }
        if let Some(words) = said(&status, condition::RESTART_REQUIRED, "True") {
            // What cannot be changed is named; a new instance has it.
            let changed = words.split(" differ").next().unwrap_or_default().to_owned();
            let at = what.split([' ', '=']).nth(1).unwrap_or_default();
            if at.starts_with("spec.") && !names(&changed, at) {
                let line = format!("RestartRequired does not name the field: {words}");
                self.world.report.lock().unwrap().find(&line, at, self.story.join(" / "), String::new());
            }
            if let Some(words) = self.restart().await? {
                return Ok(Taken::Invalid(words));
            }
        }
        Ok(Taken::Done)
    }

    /// Another instance; or why that cannot be made, and the one of before stays.
    async fn restart(&mut self) -> Result<Option<String>, String> {
        self.restarts += 1;
        self.ranks.drain(..self.ranks.len().saturating_sub(1));
        self.story.push("restart".to_owned());
        let api = self.world.mini_clusters(&self.namespace);
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { RESTART: self.restarts.to_string() } } }));
        api.patch(LAKE, &PatchParams::default(), &patch).await.map_err(|error| error.to_string())?;
        // The annotation is no new generation, and the agent looks twice before it ends anything.
        tokio::time::sleep(2 * QUIET).await;
        let objects = self.world.settled(&self.namespace).await?;
        let status = status(&objects, LAKE);
        match (cannot(&status), said(&status, condition::RESTART_REQUIRED, "True")) {
            (Some(words), _) => Ok(Some(words)),
            (None, Some(words)) => Err(format!("a restart is required after a restart: {words}")),
            (None, None) => Ok(None),
        }
    }

    fn picture(&self) -> Picture {
        picture(&self.world.eyes.of(&self.namespace), &self.namespace, STILL)
    }

    /// Resource versions of what the other MiniCluster has.
    fn still(&self) -> BTreeMap<String, Value> {
        let objects = self.world.eyes.of(&self.namespace);
        let own = objects.into_iter().filter(|((_, _, kind, name), _)| {
            (name == STILL || name.starts_with("still-")) && !["Pod", "EndpointSlice"].contains(kind)
        });
        own.map(|((_, _, kind, name), object)| {
            (format!("{kind} {name}"), object["metadata"]["resourceVersion"].clone())
        })
        .collect()
    }

    fn find(&self, what: &str, case: &Case, details: String) {
        self.world.report.lock().unwrap().find(what, &case.at, self.story.join(" / "), details);
    }

    /// Its end leaves nothing behind.
    pub(super) async fn end(self) {
        self.world.removed(&self.namespace, &[LAKE, STILL]).await;
    }
}

impl World {
    fn mini_clusters(&self, namespace: &str) -> Api<DynamicObject> {
        self.api(0, "MiniCluster", namespace)
    }

    /// What there is once nothing changes any more.
    async fn settled(&self, namespace: &str) -> Result<BTreeMap<Key, Value>, String> {
        let api = self.mini_clusters(namespace);
        let written = api.get(LAKE).await.map_err(|error| error.to_string())?.metadata.generation;
        self.eyes.settled(namespace, QUIET, PATIENCE, |objects| waits(objects, written)).await
    }

    /// What comes of a spec that is new.
    async fn fresh(&self, spec: &Value) -> Result<Picture, String> {
        let key = spec.to_string();
        if let Some(picture) = self.known.lock().unwrap().get(&key) {
            return Ok(picture.clone());
        }
        let namespace = self.free.1.lock().await.recv().await.ok_or("there is no namespace left")?;
        let made = self.make(&namespace, spec).await;
        self.removed(&namespace, &[LAKE]).await;
        self.free.0.send(namespace).map_err(|error| error.to_string())?;
        let picture = made?;
        self.known.lock().unwrap().insert(key, picture.clone());
        Ok(picture)
    }

    async fn make(&self, namespace: &str, spec: &Value) -> Result<Picture, String> {
        put(self, namespace, LAKE, spec).await?;
        let objects = self.settled(namespace).await?;
        Ok(picture(&objects, namespace, STILL))
    }

    /// Deletes MiniClusters, and waits until nothing of them is left.
    async fn removed(&self, namespace: &str, names: &[&str]) {
        let api = self.mini_clusters(namespace);
        for name in names {
            let _ = api.delete(name, &DeleteParams::default()).await;
        }
        let left = self.eyes.settled(namespace, Duration::from_millis(200), PATIENCE, |objects| {
            let goes = |name: &str| names.contains(&STILL) || !(name == STILL || name.starts_with("still-"));
            let left = objects.keys().filter(|(.., name)| goes(name));
            let left: Vec<String> = left.map(|(cluster, _, kind, name)| format!("{cluster} {kind} {name}")).collect();
            (!left.is_empty()).then(|| left.join(", "))
        });
        if let Err(left) = left.await {
            self.report.lock().unwrap().find("something is left over", namespace, String::new(), left);
        }
    }
}

/// A root with a burst, unless it is one of another kind.
pub(super) fn with_burst(spec: &Value) -> Value {
    let mut whole = spec.clone();
    if whole["flux"]["leadBroker"].is_null() && whole["flux"]["bursting"]["leadBroker"].is_null() {
        let mut burst = json!({ "flux": { "bursting": { "clusters": [{ "size": 1 }] } } });
        merge(&mut burst, &whole);
        whole = burst;
    }
    whole
}

/// Whether nothing is seen of a field before its time: its row says why.
fn is_silent(case: &Case) -> bool {
    case.needless.is_some()
        || case.elsewhere.as_ref().is_some_and(|elsewhere| elsewhere.room == "reconcile")
        || case.refused.is_some()
}

/// Where two pictures differ. The token of a RESTful server is kept for the next one, as long as there is its MiniCluster.
fn differences(old: &Picture, new: &Picture) -> Vec<(String, Value, Value)> {
    let restful = format!("0 Secret {LAKE}-restful");
    let all = normal::differences(old, new).into_iter();
    all.filter(|(path, old, _)| !(*path == restful && old.is_null())).collect()
}

/// Whether a path is of what the user wrote.
fn of_the_spec(path: &str) -> bool {
    path.starts_with(&format!("0 MiniCluster {LAKE}.spec"))
}

/// Where the value is: rows of Kubernetes' own types say where the type is.
fn concrete(case: &Case) -> String {
    if case.generated.is_none() {
        return case.at.clone();
    }
    let dots = case.at.matches('.').count();
    let rest = case.field.split('.').skip(1 + dots).map(|key| format!(".{key}"));
    let last = case.field.split('.').nth(dots).unwrap_or_default();
    let lists =
        if case.at.ends_with(']') { "" } else { last.trim_start_matches(|letter| letter != '[' && letter != '{') };
    let rest = [lists.to_owned()].into_iter().chain(rest).collect::<String>();
    format!("{}{}", case.at, rest.replace("[]", "[0]").replace("{}", ".key"))
}

fn at(spec: &Value, path: &str) -> Value {
    let pointer = path.trim_start_matches("spec").replace(['.', '['], "/").replace(']', "");
    spec.pointer(&pointer).cloned().unwrap_or_default()
}

/// Writes the whole spec; what the API server says against it.
async fn put(world: &World, namespace: &str, name: &str, spec: &Value) -> Result<(), String> {
    world.put(0, "MiniCluster", namespace, name, spec).await
}

fn status(objects: &BTreeMap<Key, Value>, name: &str) -> Value {
    let own =
        objects.iter().find(|((cluster, _, kind, own), _)| *cluster == 0 && *kind == "MiniCluster" && own == name);
    own.map(|(_, object)| object["status"].clone()).unwrap_or_default()
}

/// The message of a condition that has this status.
fn said(status: &Value, type_: &str, holds: &str) -> Option<String> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|one| one["type"] == type_ && one["status"] == holds)?;
    Some(found["message"].as_str().unwrap_or_default().to_owned())
}

/// Why what the spec asks for cannot be made.
fn cannot(status: &Value) -> Option<String> {
    let is_that =
        |one: &&Value| ["CannotCreate", "CannotMaintain", "CannotRestart"].iter().any(|why| one["reason"] == *why);
    let found = status["conditions"].as_array()?.iter().find(is_that)?;
    Some(found["message"].as_str().unwrap_or_default().to_owned())
}

/// What is said of one that cannot be read, and of which generation.
fn unreadable(status: &Value) -> Option<(String, Option<i64>)> {
    let found = status["conditions"].as_array()?.iter().find(|one| one["reason"] == reason::UNREADABLE)?;
    Some((found["message"].as_str().unwrap_or_default().to_owned(), found["observedGeneration"].as_i64()))
}

/// What has not come to its end yet.
pub(super) fn waits(objects: &BTreeMap<Key, Value>, written: Option<i64>) -> Option<String> {
    for ((cluster, _, kind, name), object) in objects {
        let told = |why: String| Some(format!("{cluster} {kind} {name} {why}"));
        let (metadata, status) = (&object["metadata"], &object["status"]);
        if metadata["deletionTimestamp"].is_string() {
            return told("is being deleted".to_owned());
        }
        let phase = status["phase"].as_str().unwrap_or_default();
        match *kind {
            "MiniCluster" => {
                let generation = metadata["generation"].as_i64();
                let newest = name != LAKE || *cluster != 0 || generation >= written;
                let told_of = unreadable(status).and_then(|(_, of)| of);
                let seen = told_of.or(status["observedGeneration"].as_i64());
                if !newest || seen != generation || phase == "Restarting" {
                    return told(format!("is {phase}, of generation {}", status["observedGeneration"]));
                }
            }
            "FluxJob" | "FluxSetup" if status["observedGeneration"] != metadata["generation"] => {
                return told(format!("was observed with generation {}", status["observedGeneration"]));
            }
            "FluxJob" if phase == "Ready" => return told("is about to run".to_owned()),
            "Burst" | "HostedBurst" if ["Offered", "Accepted", "Draining", "Lost"].contains(&phase) => {
                return told(format!("is {phase}"));
            }
            "Pod" if phase == "Pending" && !is_told(object) => return told("is pending".to_owned()),
            _ => {}
        }
    }
    let is_lake = |(cluster, _, kind, name): &Key| *cluster == 0 && *kind == "MiniCluster" && name == LAKE;
    (written.is_some() && !objects.keys().any(is_lake)).then(|| "there is no MiniCluster".to_owned())
}

/// Whether the scheduler says why a pod has no node.
fn is_told(pod: &Value) -> bool {
    pod["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|one| one["reason"] == "Unschedulable" || one["reason"] == "SchedulingGated")
        || pod["spec"]["schedulerName"].as_str().is_some_and(|name| name != "default-scheduler")
}
