//! What goes wrong, when the simulation says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::ApiServer;
use super::apply::Owners;
use super::request::{Key, RequestInfo};
use super::store::Stored;

/// What goes wrong with one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is answered with this HTTP status, and not done. 404: the kind is not served.
    Answer(u16),
    /// The connection breaks before it is done.
    Break,
    /// It is not done, and never answered.
    Silence,
    /// It is done, and the connection breaks before the answer.
    LoseAnswer,
    /// It is done, and answered only after this time.
    DelayAnswer(Duration),
    /// It is done only after this time, even if nobody waits for the answer any more.
    Late(Duration),
    /// A read shows the state of this resource version.
    Stale(u64),
}

/// How an API server is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Away {
    /// Connections are refused, and those of watches break.
    Refuses,
    /// Nothing is answered, and watches are silent until it is back.
    Silent,
}

/// What an API server had stored at a moment.
#[derive(Clone, Debug)]
pub struct Backup {
    objects: BTreeMap<Key, Stored>,
    version: u64,
}

impl Backup {
    /// As a document: each object with the name of its kind in URLs. Who owns which field is left out.
    pub fn document(&self) -> Value {
        let object = |(key, stored): (&Key, &Stored)| json!({"resource": key.resource, "object": *stored.object});
        json!({"version": self.version, "objects": self.objects.iter().map(object).collect::<Vec<_>>()})
    }

    /// What a document holds.
    ///
    /// # Panics
    /// It is none of [`Self::document`].
    pub fn of(document: &Value) -> Self {
        let read = |entry: &Value| {
            let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let group =
                text("/object/apiVersion").rsplit_once('/').map_or_else(String::new, |(group, _)| group.to_owned());
            let key = Key {
                group,
                resource: text("/resource"),
                namespace: text("/object/metadata/namespace"),
                name: text("/object/metadata/name"),
            };
            (key, Stored { object: Arc::new(entry["object"].clone()), owners: Owners::default() })
        };
        let objects = document["objects"].as_array().expect("it has objects").iter().map(read).collect();
        Self { objects, version: document["version"].as_u64().expect("it has a version") }
    }
}

type Hook = Arc<dyn Fn(&RequestInfo) -> Option<Fault> + Send + Sync>;

#[derive(Default)]
pub(super) struct Faults {
    hook: Option<Hook>,
    script: Vec<(&'static str, String, Fault)>,
    pub(super) away: Option<Away>,
    /// By resource: the newest version that its watches show, and lists at any version.
    pub(super) lag: BTreeMap<String, u64>,
    /// By resource: events that no watch will show.
    pub(super) drops: BTreeMap<String, u64>,
    /// By resource: of what happened up to this version, its watches show the last event of each object alone.
    pub(super) skips: BTreeMap<String, u64>,
    /// The watches that go on, by their number: which resource.
    pub(super) watches: BTreeMap<u64, String>,
    pub(super) begun: u64,
    /// Those up to this number show nothing any more, and do not end.
    pub(super) mute: u64,
    /// How often the API server was started again.
    pub(super) restarts: u64,
}

impl Faults {
    /// Whether nobody hears what becomes of a watch.
    pub(super) fn silences(&self, watch: u64) -> bool {
        self.away.is_some() || watch <= self.mute
    }
}

impl ApiServer {
    /// Asks `hook` about every request before it is done. It may change objects: somebody else was faster then.
    pub fn on_request(&self, hook: impl Fn(&RequestInfo) -> Option<Fault> + Send + Sync + 'static) {
        self.shared.faults.lock().hook = Some(Arc::new(hook));
    }

    /// Lets the next request with this verb to this resource (such as `pods`) fail.
    pub fn fail_next(&self, verb: &'static str, resource: &str, fault: Fault) {
        self.shared.faults.lock().script.push((verb, resource.to_owned(), fault));
    }

    /// Takes the API server away, or brings it back.
    pub fn set_away(&self, away: Option<Away>) {
        let mut faults = self.shared.faults.lock();
        faults.away = away;
        if away == Some(Away::Refuses) {
            faults.watches.clear();
        }
        drop(faults);
        self.tell();
    }

    /// Lets the watches of a resource show nothing that happens from now on, and lists at any version (`0`) neither.
    pub fn lag(&self, resource: &str) {
        let version = self.version();
        self.shared.faults.lock().lag.insert(resource.to_owned(), version);
    }

    /// Ends the lag of a resource: its watches show all that happened.
    pub fn catch_up(&self, resource: &str) {
        self.shared.faults.lock().lag.remove(resource);
        self.tell();
    }

    /// Ends the lag of a resource: its watches skip to the last event of each object, as they may.
    pub fn skip(&self, resource: &str) {
        let version = self.version();
        self.shared.faults.lock().skips.insert(resource.to_owned(), version);
        self.catch_up(resource);
    }

    /// Drops so many of the next events that watches of this resource would show. None: no more are dropped.
    pub fn drop_next_events(&self, resource: &str, count: u64) {
        self.shared.faults.lock().drops.insert(resource.to_owned(), count);
    }

    /// Starts the API server again: connections break, those of watches too, and what is asked just now gets no answer. It
    /// remembers nothing of what happened, so that watches begin with a list.
    pub fn restart(&self) {
        let mut faults = self.shared.faults.lock();
        faults.restarts += 1;
        faults.watches.clear();
        faults.away = None;
        drop(faults);
        self.compact();
    }

    /// Lets the connections of all watches die in silence: they show nothing any more, and do not end.
    pub fn mute_watches(&self) {
        let mut faults = self.shared.faults.lock();
        faults.mute = faults.begun;
    }

    /// What an API server has stored by now.
    pub fn backup(&self) -> Backup {
        let store = self.shared.store.lock();
        Backup { objects: store.objects.clone(), version: store.version }
    }

    /// Restores a backup, and starts the API server again: it knows nothing of what came later, and counts versions from
    /// there once more.
    pub fn restore(&self, backup: Backup) {
        let mut store = self.shared.store.lock();
        (store.objects, store.version) = (backup.objects, backup.version);
        // Objects of another server may be among them: no UID is given twice.
        store.born = store.born.max(backup.version);
        drop(store);
        self.restart();
    }

    /// How often it was started again.
    pub fn restarts(&self) -> u64 {
        self.shared.faults.lock().restarts
    }

    /// Ends all watches, and says so to those who watch.
    pub fn end_watches(&self) {
        self.shared.faults.lock().watches.clear();
        self.tell();
    }

    pub(super) fn fault(&self, info: &RequestInfo) -> Option<Fault> {
        let hook = {
            let mut faults = self.shared.faults.lock();
            match faults.away {
                Some(Away::Refuses) => return Some(Fault::Break),
                Some(Away::Silent) => return Some(Fault::Silence),
                None => {}
            }
            let meant = |(verb, resource, _): &(&str, String, Fault)| *verb == info.verb && *resource == info.resource;
            if let Some(at) = faults.script.iter().position(meant) {
                return Some(faults.script.remove(at).2);
            }
            faults.hook.clone()
        };
        hook.and_then(|hook| hook(info))
    }
}
