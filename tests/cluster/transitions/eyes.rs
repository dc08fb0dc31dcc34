//! What there is in both clusters, by watches: nothing is asked for while a change settles.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tributary_tests::scenario::{KINDS, Kind};

/// What is watched besides.
const MORE_KINDS: [Kind; 1] = [("", "v1", "PersistentVolume")];

/// Where an object is: cluster, namespace, kind, name.
pub(super) type Key = (usize, String, &'static str, String);

#[derive(Default)]
struct Seen {
    objects: BTreeMap<Key, Value>,
    /// When something of a namespace changed last, in any cluster.
    changed: BTreeMap<String, Instant>,
}

/// The objects of all clusters.
#[derive(Clone)]
pub(super) struct Eyes {
    seen: Arc<Mutex<Seen>>,
    /// The watches end with it.
    _watches: Arc<JoinSet<()>>,
}

impl Eyes {
    pub(super) fn open(clients: &[Client]) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut watches = JoinSet::new();
        for (cluster, client) in clients.iter().enumerate() {
            for (group, version, kind) in KINDS.into_iter().chain(MORE_KINDS) {
                watches.spawn(watch(seen.clone(), client.clone(), cluster, (group, version, kind)));
            }
        }
        Self { seen, _watches: Arc::new(watches) }
    }

    /// What there is of a namespace, in all clusters.
    pub(super) fn of(&self, namespace: &str) -> BTreeMap<Key, Value> {
        let seen = self.seen.lock().unwrap();
        let clusters = seen.objects.keys().next_back().map_or(0, |(last, ..)| last + 1);
        let own = (0..clusters).flat_map(|cluster| {
            let from = seen.objects.range((cluster, namespace.to_owned(), "", String::new())..);
            from.take_while(move |((at, of, ..), _)| *at == cluster && of == namespace)
        });
        own.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// One object.
    pub(super) fn one(&self, cluster: usize, namespace: &str, kind: &'static str, name: &str) -> Option<Value> {
        let key = (cluster, namespace.to_owned(), kind, name.to_owned());
        self.seen.lock().unwrap().objects.get(&key).cloned()
    }

    /// Waits until nothing of the namespace has changed for `quiet`, and `waits` has nothing to say against what is there;
    /// after `patience`, it is what that said last.
    pub(super) async fn settled(
        &self,
        namespace: &str,
        quiet: Duration,
        patience: Duration,
        waits: impl Fn(&BTreeMap<Key, Value>) -> Option<String>,
    ) -> Result<BTreeMap<Key, Value>, String> {
        let begun = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let changed = self.seen.lock().unwrap().changed.get(namespace).copied().unwrap_or(begun).max(begun);
            if changed.elapsed() < quiet && begun.elapsed() < patience {
                continue;
            }
            let objects = self.of(namespace);
            // What is on its way may take its time on a busy machine, or stay so for good.
            let quiet = if is_on_its_way(&objects) { quiet * 6 } else { quiet };
            let still = changed.elapsed() >= quiet;
            match waits(&objects) {
                None if still => return Ok(objects),
                None if begun.elapsed() >= patience => return Err("objects change without end".to_owned()),
                Some(why) if begun.elapsed() >= patience => return Err(why),
                // To look at everything takes the time of those who are to settle.
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }
}

/// Whether something starts, is tried again, or has still to be made.
fn is_on_its_way(objects: &BTreeMap<Key, Value>) -> bool {
    let has_bursts = objects.keys().any(|(_, _, kind, _)| *kind == "Burst");
    objects.iter().any(|((_, _, kind, _), object)| {
        let (phase, conditions) = (object["status"]["phase"].as_str(), object["status"]["conditions"].as_array());
        let again = |one: &Value| one["message"].as_str().is_some_and(|message| message.contains("tried again"));
        let declared = object["spec"]["flux"]["bursting"]["clusters"].as_array().is_some_and(|all| !all.is_empty());
        match *kind {
            "MiniCluster" if declared && !has_bursts => true,
            "MiniCluster" => {
                matches!(phase, None | Some("Pending" | "Starting")) || conditions.into_iter().flatten().any(again)
            }
            "Burst" | "HostedBurst" => matches!(phase, None | Some("Pending" | "Provisioning" | "Joining")),
            "FluxJob" => phase != Some("Finished") && phase != Some("Running"),
            _ => false,
        }
    })
}

async fn watch(
    seen: Arc<Mutex<Seen>>,
    client: Client,
    cluster: usize,
    (group, version, kind): (&str, &str, &'static str),
) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut stream = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut listed: Vec<Key> = Vec::new();
    while let Some(event) = stream.next().await {
        let Ok(event) = event else { continue };
        let mut seen = seen.lock().unwrap();
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(object) => {
                listed.push(key(cluster, kind, &object));
                seen.apply(cluster, kind, object);
            }
            watcher::Event::Apply(object) => seen.apply(cluster, kind, object),
            watcher::Event::Delete(object) => {
                let key = key(cluster, kind, &object);
                seen.changed.insert(key.1.clone(), Instant::now());
                seen.objects.remove(&key);
            }
            watcher::Event::InitDone => {
                seen.objects.retain(|key, _| key.0 != cluster || key.2 != kind || listed.contains(key));
            }
        }
    }
}

fn key(cluster: usize, kind: &'static str, object: &DynamicObject) -> Key {
    let metadata = &object.metadata;
    let namespace = metadata.namespace.clone().or_else(|| claimed(object));
    (cluster, namespace.unwrap_or_default(), kind, metadata.name.clone().unwrap_or_default())
}

/// The namespace of the claim that a volume is for.
fn claimed(volume: &DynamicObject) -> Option<String> {
    volume.data.pointer("/spec/claimRef/namespace")?.as_str().map(str::to_owned)
}

impl Seen {
    fn apply(&mut self, cluster: usize, kind: &'static str, object: DynamicObject) {
        let key = key(cluster, kind, &object);
        if key.3 == "kube-root-ca.crt" {
            return;
        }
        let mut value = serde_json::to_value(&object).unwrap();
        value["kind"] = kind.into();
        let version = |value: &Value| value["metadata"]["resourceVersion"].clone();
        if self.objects.get(&key).is_none_or(|before| version(before) != version(&value)) {
            self.changed.insert(key.1.clone(), Instant::now());
        }
        self.objects.insert(key, value);
    }
}
