//! FluxSetups, ClusterPeers and FluxJobs: what is changed in them while bursts run and FluxJobs wait.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tributary::clock::{Rng as _, SeededRng};
use tributary_tests::federation::SYSTEM;
use tributary_tests::fields::{leaves_of, schema_of, write};

use super::World;
use super::changes::{Change, changes, names};
use super::lake::{LAKE, PATIENCE, QUIET, waits};
use super::normal::{Picture, differences, picture, told};

/// An object that says what others may do.
pub(super) struct Room {
    kind: &'static str,
    cluster: usize,
    namespace: String,
    name: &'static str,
    /// Where bursts run that it is about.
    around: String,
    base: Value,
    /// Values that mean something; others come from the schema.
    values: Value,
}

impl Room {
    /// How much a namespace has room for, on the root or on the provider.
    pub(super) fn setup(cluster: usize, namespace: &str) -> Self {
        let values = json!({
            "spec.quota.miniClusters": 1, "spec.quota.brokers": 2, "spec.quota.cpu": "2", "spec.quota.memory": "1Gi",
            "spec.quota.gpus": 1, "spec.order": "Fifo", "spec.backfill": false, "spec.checkNodes": "Now",
            "spec.nodeGroups[].name": "big", "spec.maxDuration": "1h", "spec.priorityClasses[]": "high",
            "spec.overflow.policy": "Split", "spec.overflow.peers[]": "west",
            "spec.overflow.selector.matchExpressions[].operator": "Exists",
            "spec.peers[].name": "east", "spec.nodeGroups[].taints[].timeAdded": "2026-01-01T00:00:00Z",
        });
        let around = namespace.to_owned();
        Self { kind: "FluxSetup", cluster, namespace: around.clone(), name: "default", around, base: json!({}), values }
    }

    /// What a peer may do, as seen from the root or from the provider.
    pub(super) fn peer(world: &World, cluster: usize, namespace: &str) -> Self {
        let name = ["west", "east"][cluster];
        let base = world.eyes.one(cluster, SYSTEM, "ClusterPeer", name).unwrap()["spec"].clone();
        let values = json!({
            "spec.endpoints[]": base["endpoints"][0], "spec.trustUpdates": "FromPeer", "spec.budget.maxDuration": "5h",
            "spec.budget.warnBefore": "1h", "spec.budget.brokerHours": "7", "spec.import.maxDuration": "5h",
            "spec.import.namespaces[]": "*", "spec.import.podSecurity": "restricted", "spec.import.egress.allow[]": "10.0.0.0/8",
            "spec.import.leadRanges[]": "0.0.0.0/0", "spec.import.tolerations[].operator": "Exists",
            "spec.import.maxBrokers": 0, "spec.import.maxBursts": 0, "spec.import.maxCores": 0,
        });
        Self {
            kind: "ClusterPeer",
            cluster,
            namespace: SYSTEM.to_owned(),
            name,
            around: namespace.to_owned(),
            base,
            values,
        }
    }

    /// All its fields, one after the other.
    pub(super) async fn run(&self, world: &World, rng: &mut SeededRng, fields: usize, most: usize) {
        let mut leaves: Vec<_> = leaves_of(&schema_of(self.kind)).into_iter().collect();
        for index in (1..leaves.len()).rev() {
            leaves.swap(index, rng.next_u64() as usize % (index + 1));
        }
        if self.kind == "FluxSetup" {
            world.put(self.cluster, self.kind, &self.namespace, self.name, &self.base).await.unwrap();
        }
        // What ran before there was one is counted by it from the next change on.
        let _ = self.settled(world).await;
        for (field, schema) in leaves.into_iter().take(fields) {
            self.field(world, &field, &schema, rng, most).await;
        }
    }

    async fn field(&self, world: &World, field: &str, schema: &Value, rng: &mut SeededRng, most: usize) {
        let at = field.replace("[]", "[0]").replace("{}", ".key");
        let mut story = Vec::new();
        let find = |what: &str, story: &[String], details: String| {
            world.report.lock().unwrap().find(what, &format!("{} {at}", self.kind), story.join(" / "), details);
        };
        let origin = match self.settled(world).await {
            Ok(picture) => picture,
            Err(why) => return find("it does not settle before", &story, why),
        };
        let value = self.values.get(field).cloned().unwrap_or_else(|| match schema["type"].as_str() {
            Some("boolean") => json!(schema["default"] != true),
            Some("integer") => json!(3),
            _ if schema["x-kubernetes-int-or-string"] == true => json!("3Gi"),
            _ => schema["enum"][0].as_str().map_or(json!("other"), |word| json!(word)),
        });
        let mut all = changes(&at, schema, &value);
        let mut chosen = vec![all.remove(0)];
        while chosen.len() < most && !all.is_empty() {
            chosen.push(all.remove(rng.next_u64() as usize % all.len()));
        }
        for (change, path, value) in chosen {
            let mut spec = self.base.clone();
            if change != Change::Remove {
                write(&mut spec, &path, value.clone());
                if path.starts_with("spec.nodeGroups[0].") && !path.ends_with(".name") {
                    write(&mut spec, "spec.nodeGroups[0].name", json!("big"));
                }
                if path.starts_with("spec.peers[0].") && !path.ends_with(".name") {
                    write(&mut spec, "spec.peers[0].name", json!("east"));
                }
            }
            story.push(format!("{change:?} {path}={value}"));
            let field = format!("{} {field}", self.kind);
            world.report.lock().unwrap().transition(&field, change);
            if let Err(words) = world.put(self.cluster, self.kind, &self.namespace, self.name, &spec).await {
                world.report.lock().unwrap().refusals += 1;
                if !names(&words, &at) {
                    find("a refusal of the API server does not name the field", &story, words);
                }
                continue;
            }
            match self.settled(world).await {
                Err(why) => find("it does not settle", &story, why),
                Ok(now) => {
                    // What a limit does is seen only by whoever comes to it.
                    let seen = differences(&origin, &now);
                    for (path, _, words) in &seen {
                        let is_verdict = path.contains(&format!(" {} ", self.kind)) && path.ends_with(".message");
                        if is_verdict && change == Change::Wrong && !names(&words.to_string(), &at) {
                            find("a condition does not name the field", &story, words.to_string());
                        }
                    }
                }
            }
        }
        if let Err(words) = world.put(self.cluster, self.kind, &self.namespace, self.name, &self.base).await {
            return find("a good spec is refused", &story, words);
        }
        match self.settled(world).await {
            Err(why) => find("it does not settle", &story, why),
            Ok(now) => {
                let differences = differences(&origin, &now);
                if !differences.is_empty() {
                    find("it does not return", &story, told(&differences));
                }
            }
        }
    }

    /// The object, and what is around it.
    async fn settled(&self, world: &World) -> Result<Picture, String> {
        let written = world.api(self.cluster, self.kind, &self.namespace).get(self.name).await;
        let written = written.map_err(|error| error.to_string())?.metadata.generation;
        let own = || world.eyes.one(self.cluster, &self.namespace, self.kind, self.name).unwrap_or_default();
        let objects = world.eyes.settled(&self.around, QUIET, PATIENCE, |objects| {
            let own = own();
            let (is, observed) = (own["metadata"]["generation"].as_i64(), own["status"]["observedGeneration"].as_i64());
            if is != written || observed != is {
                return Some(format!(
                    "{} {} is of generation {written:?}, seen {is:?}, observed {observed:?}",
                    self.kind, self.name
                ));
            }
            waits(objects, None)
        });
        let mut objects = objects.await?;
        // A peer is told in time how much there is.
        let key = (self.cluster, self.namespace.clone(), self.kind, self.name.to_owned());
        objects.insert(key, own());
        Ok(picture(&objects, &self.around, "nobody"))
    }
}

/// FluxJobs are changed while they wait in line: what starts then is what a new one would start.
pub(super) async fn jobs(world: &World, namespace: &str, rng: &mut SeededRng, fields: usize, most: usize) {
    let base = json!({ "image": "rockylinux:9", "command": "hostname" });
    let values = json!({
        "spec.image": "other:1", "spec.command": "date", "spec.size": 2, "spec.tasks": 3, "spec.resources.cpu": "2",
        "spec.resources.memory": "1Gi", "spec.resources.gpus": 1, "spec.timeLimit": "1h", "spec.ttlAfterFinished": "1h",
        "spec.cleanup": "MiniCluster", "spec.miniCluster": { "interactive": true }, "spec.workingDir": "/tmp",
        "spec.environment{}": "b", "spec.priorityClassName": "system-cluster-critical",
    });
    let mut leaves: Vec<_> = leaves_of(&schema_of("FluxJob")).into_iter().collect();
    for index in (1..leaves.len()).rev() {
        leaves.swap(index, rng.next_u64() as usize % (index + 1));
    }
    let open = json!({ "quota": { "miniClusters": 9 } });
    let closed = json!({ "quota": { "miniClusters": 0 } });
    let run = async |spec: &Value, before: Option<&[Value]>| -> Result<Picture, String> {
        let name = "job";
        let setup = if before.is_some() { &closed } else { &open };
        world.put(0, "FluxSetup", namespace, "default", setup).await?;
        let mut refused = None;
        for one in before.unwrap_or_default().iter().chain([spec]) {
            refused = world.put(0, "FluxJob", namespace, name, one).await.err();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        world.put(0, "FluxSetup", namespace, "default", &open).await?;
        let settled = world.eyes.settled(namespace, QUIET, PATIENCE, |objects| waits(objects, None)).await;
        let seen = settled.map(|objects| picture(&objects, namespace, "nobody"));
        let _ = world.api(0, "FluxJob", namespace).delete(name, &DeleteParams::default()).await;
        let gone = world.eyes.settled(namespace, Duration::from_millis(200), PATIENCE, |objects| {
            let left: Vec<_> = objects.keys().filter(|(_, _, kind, _)| *kind != "FluxSetup").collect();
            (!left.is_empty()).then(|| format!("{left:?}"))
        });
        if let Err(left) = gone.await {
            world.report.lock().unwrap().find("something is left over", "FluxJob", spec.to_string(), left);
        }
        match refused {
            Some(words) => Err(format!("refused: {words}")),
            None => seen,
        }
    };
    let find = |what: &str, at: &str, story: &[String], details: String| {
        world.report.lock().unwrap().find(what, &format!("FluxJob {at}"), story.join(" / "), details);
    };
    let plain = match run(&base, None).await {
        Ok(plain) => plain,
        Err(why) => return find("it does not settle", "spec", &[], why),
    };
    for (field, schema) in leaves.into_iter().take(fields) {
        let at = field.replace("{}", ".key");
        let value = values.get(&field).cloned().unwrap_or_else(|| match schema["type"].as_str() {
            Some("boolean") => json!(true),
            _ => json!("other"),
        });
        let mut all = changes(&at, &schema, &value);
        let mut chosen = vec![all.remove(0)];
        while chosen.len() < most && !all.is_empty() {
            chosen.push(all.remove(rng.next_u64() as usize % all.len()));
        }
        let (mut story, mut specs) = (vec!["base".to_owned()], vec![base.clone()]);
        for (change, path, value) in chosen {
            let mut spec = base.clone();
            if change != Change::Remove {
                write(&mut spec, &path, value.clone());
                if at.ends_with("gpuResource") {
                    write(&mut spec, "spec.resources.gpus", json!(1));
                }
            }
            story.push(format!("{change:?} {path}={value}"));
            world.report.lock().unwrap().transition(&format!("FluxJob {field}"), change);
            let fresh = run(&spec, None).await;
            let changed = run(&spec, Some(&specs)).await;
            match (fresh, changed) {
                (Ok(fresh), Ok(changed)) => {
                    let between = differences(&fresh, &changed);
                    if !between.is_empty() {
                        find("it is not as a new one", &at, &story, told(&between));
                    }
                    let seen = differences(&plain, &changed);
                    if change == Change::Add && seen.iter().all(|(path, ..)| path.starts_with("0 FluxJob job.spec")) {
                        find("the field leaves no trace", &at, &story, told(&seen));
                    }
                    specs.push(spec);
                }
                (Err(one), Err(other)) if one.starts_with("refused") && other.starts_with("refused") => {
                    world.report.lock().unwrap().refusals += 1;
                    if !names(&one, &at) {
                        find("a refusal of the API server does not name the field", &at, &story, one);
                    }
                }
                (one, other) => {
                    let word = |one: Result<Picture, String>| one.map(|_| "taken".to_owned()).unwrap_or_else(|why| why);
                    let (one, other) = (word(one), word(other));
                    find("new and changed differ", &at, &story, format!("new: {one}; changed: {other}"));
                }
            }
        }
        // A bad value blocks no good one.
        match run(&base, Some(&specs)).await {
            Ok(back) => {
                let differences = differences(&plain, &back);
                if !differences.is_empty() {
                    find("it does not return", &at, &story, told(&differences));
                }
            }
            Err(why) => find("it does not settle", &at, &story, why),
        }
    }
}

/// A root with a burst, whose world is changed.
pub(super) async fn root(world: &World, namespace: &str) {
    world.federation.namespace(namespace).await.unwrap();
    let spec = json!({ "size": 1, "interactive": true, "containers": [{ "image": "rockylinux:9" }],
        "flux": { "bursting": { "clusters": [{ "size": 1 }] } } });
    world.put(0, "MiniCluster", namespace, LAKE, &spec).await.unwrap();
    let settled = world.eyes.settled(namespace, QUIET, PATIENCE, |objects| waits(objects, None)).await;
    settled.unwrap();
}
