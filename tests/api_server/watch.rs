//! Watches.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Sleep;
use tower::BoxError;

use super::faults::Away;
use super::read::shown;
use super::request::{Key, Outcome, RequestInfo, body, expired};
use super::select::Selector;
use super::store::shows;
use super::{ApiServer, broken};

/// How long a watch lasts that does not say.
const DEFAULT_SECONDS: u64 = 1800;

pub(super) struct Watch {
    server: ApiServer,
    id: u64,
    info: RequestInfo,
    selector: Selector,
    /// Up to where it has shown what happened.
    shown: u64,
    first: VecDeque<Arc<Value>>,
    /// Objects whose last event comes yet, and whether they were shown before.
    skipped: BTreeMap<Key, bool>,
    restarts: u64,
    end: Pin<Box<Sleep>>,
    news: watch::Receiver<()>,
    over: bool,
}

enum Next {
    Line(String),
    Nothing,
    End,
    Break,
}

impl Watch {
    /// A watch from the version that is asked for, or from `version` with all that is there.
    pub(super) fn begin(server: &ApiServer, info: RequestInfo, version: u64) -> Outcome<Self> {
        let selector = Selector::of(&info)?;
        let from = info.parameter("resourceVersion").and_then(|from| from.parse().ok()).filter(|from| *from > 0);
        let first = match from {
            Some(_) => VecDeque::new(),
            None => {
                let found = server.shared.store.lock().at(&info, version)?;
                found.into_values().filter(|object| selector.selects(object)).collect()
            }
        };
        let news = server.news_of(&info.resource);
        let mut faults = server.shared.faults.lock();
        faults.begun += 1;
        let (id, restarts) = (faults.begun, faults.restarts);
        faults.watches.insert(id, info.resource.clone());
        let seconds = info.parameter("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_SECONDS);
        Ok(Self {
            server: server.clone(),
            id,
            info,
            selector,
            shown: from.unwrap_or(version),
            first,
            skipped: BTreeMap::new(),
            restarts,
            end: Box::pin(tokio::time::sleep(Duration::from_secs(seconds))),
            news,
            over: false,
        })
    }

    /// The lines of the answer.
    pub(super) fn lines(self) -> BoxStream<'static, Result<Frame<Bytes>, BoxError>> {
        futures::stream::unfold(self, Self::line).boxed()
    }

    async fn line(mut self) -> Option<(Result<Frame<Bytes>, BoxError>, Self)> {
        while !self.over {
            self.news.borrow_and_update();
            let line = match self.next() {
                Next::Line(line) => line,
                Next::End => return None,
                Next::Break => {
                    self.over = true;
                    return Some((Err(broken()), self));
                }
                Next::Nothing => {
                    tokio::select! {
                        biased;
                        // The sender lives in the server.
                        _ = self.news.changed() => continue,
                        () = &mut self.end => {}
                    }
                    if self.server.shared.faults.lock().silences(self.id) {
                        // Nobody hears that it ends.
                        let _ = self.news.changed().await;
                        continue;
                    }
                    self.over = true;
                    if !self.info.is("allowWatchBookmarks", "true") {
                        return None;
                    }
                    let (api_version, kind) = self.server.shared.store.lock().kind(&self.info);
                    let metadata = json!({"resourceVersion": self.shown.to_string()});
                    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
                    event("BOOKMARK", &object)
                }
            };
            return Some((Ok(Frame::data(format!("{line}\n").into())), self));
        }
        None
    }

    fn next(&mut self) -> Next {
        let mut faults = self.server.shared.faults.lock();
        match faults.away {
            _ if self.id <= faults.mute => return Next::Nothing,
            Some(Away::Silent) => return Next::Nothing,
            Some(Away::Refuses) => return Next::Break,
            None if faults.restarts != self.restarts => return Next::Break,
            None if !faults.watches.contains_key(&self.id) => return Next::End,
            None => {}
        }
        if let Some(object) = self.first.pop_front() {
            return Next::Line(event("ADDED", &shown(&self.info, &object)));
        }
        let store = self.server.shared.store.lock();
        if self.shown < store.compacted {
            self.over = true;
            return Next::Line(event("ERROR", &body(&expired(self.shown, store.compacted))));
        }
        let newest = faults.lag.get(&self.info.resource).copied().unwrap_or(u64::MAX);
        let skips = faults.skips.get(&self.info.resource).copied().unwrap_or_default();
        let from = store.history.partition_point(|event| event.version <= self.shown);
        let all = &store.history[from..];
        for (at, news) in all.iter().enumerate().take_while(|(_, news)| news.version <= newest) {
            self.shown = news.version;
            if !shows(&self.info, &news.key) {
                continue;
            }
            let was = news.old.as_ref().is_some_and(|old| self.selector.selects(old));
            let was = self.skipped.remove(&news.key).unwrap_or(was);
            if all[at + 1..].iter().take_while(|other| other.version <= skips).any(|other| other.key == news.key) {
                self.skipped.insert(news.key.clone(), was);
                continue;
            }
            let what = match (was, !news.gone && self.selector.selects(&news.object)) {
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
                (false, false) => continue,
            };
            match faults.drops.get_mut(&self.info.resource) {
                Some(drops) if *drops > 0 => *drops -= 1,
                _ => return Next::Line(event(what, &shown(&self.info, &news.object))),
            }
        }
        Next::Nothing
    }
}

/// A line of a watch. The type comes first, as API servers send it: an object is read while it comes only then.
fn event(what: &str, object: &Value) -> String {
    format!("{{\"type\":\"{what}\",\"object\":{object}}}")
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.server.shared.faults.lock().watches.remove(&self.id);
    }
}
