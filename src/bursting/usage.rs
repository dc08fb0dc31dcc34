//! The records of what brokers of bursts used, on both sides: what the statuses of Bursts and HostedBursts say of the moment,
//! added up in [`DayOfUse`]. They are counted in memory with each change, and written seldom.
//!
//! There is one writer, the leader, and each write is of the version that it read: one that finds another version reads all
//! anew, and counts on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::Date;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, PostParams};
use parking_lot::Mutex;
use tributary_api::budget::Usage;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels;
use tributary_api::usage::{Consumer, DayOfUse, Side, Use, after, day_of, start_of};
use tributary_clock::{Mono, Now};
use tributary_cluster::caches::Subscription;
use tributary_cluster::engine::{Controller, Observed};
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_contract::{BurstUid, PeerName};

use super::root::controller::Root;
use super::root::{hold, offer};
use super::shared::Shared;

/// Between two writes. What an agent that dies had not written is counted from the dates of the objects that are left.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Between two records that are removed: a clock that is wrong for an hour costs one of them, and not all.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// How often it is looked whether a peer has let go of a Burst that is gone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How long nothing may be said of a Burst that is gone: it is about to be withdrawn.
const SILENCE: Duration = Duration::from_secs(5);

/// Keeps them.
pub(super) struct Records {
    shared: Arc<Shared>,
    root: Arc<Root>,
    queue: Queue<()>,
    namespace: String,
    days_kept: u32,
    book: Mutex<Option<Book>>,
}

/// What is known of the records.
#[derive(Clone)]
pub(super) struct Book {
    /// The newest day.
    today: Arc<DayOfUse>,
    /// What is to be written.
    unwritten: BTreeMap<Date, Arc<DayOfUse>>,
    /// The version of the newest day; none: it was never written.
    version: Option<String>,
    /// The days of which there is a record, and its UID.
    days: BTreeMap<Date, String>,
    written: Option<Mono>,
    /// When the last record was removed.
    pruned: Option<Mono>,
    /// Root side: Bursts that use something of a peer.
    there: Arc<BTreeMap<BurstUid, There>>,
}

/// What a Burst uses.
#[derive(Clone)]
struct There {
    what: Use,
    /// How long brokers may be there without its root.
    longest: Duration,
    /// Since when the Burst is gone.
    gone: Option<Mono>,
}

impl Records {
    pub(super) fn new(shared: Arc<Shared>, root: Arc<Root>, namespace: String, days_kept: u32) -> Self {
        Self { queue: Queue::new(shared.clock.clone()), shared, root, namespace, days_kept, book: Mutex::default() }
    }

    /// What a change of which object means.
    pub(super) fn feed(&self) -> [Subscription; 2] {
        let caches = &self.shared.caches;
        let (root, provider) = (self.queue.clone(), self.queue.clone());
        [
            caches.bursts.subscribe(move |change| {
                let of = |burst: &Option<Arc<Burst>>| burst.as_deref().and_then(of_burst);
                if of(&change.old) != of(&change.new) {
                    root.mark(());
                }
            }),
            caches.hosted.subscribe(move |change| {
                let of = |hosted: &Option<Arc<HostedBurst>>| hosted.as_deref().and_then(of_hosted);
                if of(&change.old) != of(&change.new) {
                    provider.mark(());
                }
            }),
        ]
    }

    /// In a new term another agent may have written.
    pub(super) fn begin(&self) {
        *self.book.lock() = None;
        self.queue.mark(());
    }

    fn api(&self, client: &kube::Client) -> Api<ConfigMap> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// What Bursts of ours that are gone may still use of a peer: they count until it confirms that nothing is left.
    pub(super) fn gone(&self, peer: &PeerName) -> Usage {
        let book = self.book.lock();
        let there = book.iter().flat_map(|book| &*book.there);
        let there: Vec<_> = there.filter(|(_, one)| one.what.consumer.peer == peer.as_str()).collect();
        if there.is_empty() {
            return Usage::default();
        }
        let known = &self.shared.caches.bursts_by_uid;
        let unknown: Vec<_> = there.iter().filter(|(uid, _)| !known.has(uid.as_str())).collect();
        if unknown.is_empty() {
            return Usage::default();
        }
        let exist: BTreeSet<BurstUid> = self.root.bursts().iter().map(|burst| offer::uid(burst).into()).collect();
        unknown.iter().filter(|(uid, _)| !exist.contains(*uid)).map(|(_, one)| one.what.usage).sum()
    }

    /// All that is stored.
    async fn read(&self, today: Date) -> Result<Book, RequestError> {
        let api = self.api(&self.shared.clients.reader);
        let stored = api.list(&ListParams::default().labels(&DayOfUse::selector())).await;
        let stored = stored.map_err(|error| RequestError::new("list", "ConfigMaps of usage", error))?;
        let name = |map: &ConfigMap| DayOfUse::of_name(map.metadata.name.as_deref()?);
        let until_now = stored.items.iter().filter(|map| name(map).is_some_and(|day| day <= today));
        let newest = until_now.max_by_key(|map| name(map));
        let day = newest.map(|map| {
            DayOfUse::of_config_map(map).unwrap_or_else(|why| {
                // It stays as it is until something is used, and then begins anew: nobody can tell what it said.
                tracing::error!(name = map.metadata.name, why, "a record of usage cannot be read");
                DayOfUse::empty(name(map).unwrap_or(today))
            })
        });
        Ok(Book {
            version: newest.and_then(|map| map.metadata.resource_version.clone()),
            days: stored.items.iter().filter_map(|map| Some((name(map)?, map.metadata.uid.clone()?))).collect(),
            today: Arc::new(day.unwrap_or_else(|| DayOfUse::empty(today))),
            unwritten: BTreeMap::new(),
            written: None,
            pruned: None,
            there: Arc::default(),
        })
    }

    /// Root side: what our bursts use of peers, those included that are gone, until their peer confirms that nothing is left.
    fn used(&self, there: &mut BTreeMap<BurstUid, There>, now: Mono) -> Vec<Use> {
        let mut known = std::mem::take(there);
        for burst in self.root.bursts() {
            let uid = BurstUid::from(offer::uid(&burst));
            known.remove(&uid);
            if let Some(what) = of_burst(&burst) {
                there.insert(uid, There { what, longest: hold::longest(&burst.spec), gone: None });
            }
        }
        for (uid, mut left) in known {
            let lasts = now.saturating_since(*left.gone.get_or_insert(now));
            let peer = PeerName::from(left.what.consumer.peer.as_str());
            let leaving = self.shared.exchange.withdrawing(&uid).contains(&peer);
            if lasts < left.longest && (leaving || lasts < SILENCE && self.shared.exchange.is_offered(&uid)) {
                there.insert(uid, left);
            }
        }
        there
            .values()
            .map(|one| Use { since: one.what.since.filter(|_| one.gone.is_none()), ..one.what.clone() })
            .collect()
    }

    async fn write(&self, book: &mut Book, day: Date) -> Result<(), RequestError> {
        let Some(record) = book.unwritten.get(&day) else { return Ok(()) };
        let api = self.api(&self.shared.clients.writer);
        let mut map = record.to_config_map(&self.namespace, self.shared.own.as_str());
        let params = PostParams { field_manager: Some(labels::manager::USAGE.to_owned()), ..PostParams::default() };
        let name = DayOfUse::name(day);
        let stored = match book.version.take().filter(|_| book.days.contains_key(&day)) {
            Some(version) => {
                map.metadata.resource_version = Some(version.clone());
                let answer = api.replace(&name, &params, &map).await;
                match &answer {
                    Ok(_) => {}
                    // Somebody has deleted it: the next try makes it again, of what is known here.
                    Err(kube::Error::Api(status)) if status.code == 404 => drop(book.days.remove(&day)),
                    Err(_) => book.version = Some(version),
                }
                answer
            }
            None => api.create(&params, &map).await,
        };
        let stored = stored.map_err(|error| RequestError::new("write", format!("ConfigMap {name}"), error))?;
        book.version = stored.metadata.resource_version;
        book.days.insert(day, stored.metadata.uid.unwrap_or_default());
        book.unwritten.remove(&day);
        Ok(())
    }

    /// The last day that is not kept any more.
    fn before_the_first(&self, today: Date) -> Date {
        today.checked_sub(i64::from(self.days_kept).days()).unwrap_or(Date::MIN)
    }

    /// Removes the oldest record, if it is too old. Says when the next one may go, if that is too old as well.
    async fn prune(&self, book: &mut Book, Now { mono, wall }: Now) -> Result<Option<Duration>, RequestError> {
        let last = self.before_the_first(day_of(wall));
        let (day, uid) = match book.due(last, mono) {
            Some((day, uid, Duration::ZERO)) => (day, uid.to_owned()),
            due => return Ok(due.map(|(.., rests)| rests)),
        };
        let doomed = Doomed { key: ObjectKey::namespaced(&self.namespace, DayOfUse::name(day)), uid };
        sweep::delete::<ConfigMap>(&self.shared.clients.writer, &doomed).await?;
        book.days.remove(&day);
        book.pruned = Some(mono);
        Ok(book.due(last, mono).map(|(.., rests)| rests))
    }
}

impl Book {
    /// The oldest record, if it is of `last` or of a day before, its UID, and how long it stays.
    fn due(&self, last: Date, now: Mono) -> Option<(Date, &str, Duration)> {
        let (day, uid) = self.days.range(..=last).next()?;
        let rests = |pruned| PRUNE_EVERY.saturating_sub(now.saturating_since(pruned));
        Some((*day, uid, self.pruned.map_or(Duration::ZERO, rests)))
    }
}

/// What a Burst uses of its peer.
fn of_burst(burst: &Burst) -> Option<Use> {
    let status = burst.status.as_ref().filter(|status| status.spent.brokers > 0)?;
    Some(Use {
        consumer: Consumer {
            side: Side::Root,
            peer: status.peer.clone()?,
            namespace: burst.metadata.namespace.clone().unwrap_or_default(),
            user: user_of(burst),
            job: burst.spec.root.clone(),
        },
        usage: status.spent.usage(),
        // As records count, not as budgets do.
        since: status.used.since.as_ref().or(status.spent.since.as_ref()).map(|since| since.0),
    })
}

/// What a HostedBurst uses of this cluster.
fn of_hosted(hosted: &HostedBurst) -> Option<Use> {
    let status = hosted.status.as_ref().filter(|status| status.spent.brokers > 0)?;
    Some(Use {
        consumer: Consumer {
            side: Side::Provider,
            peer: hosted.spec.peer.clone(),
            namespace: hosted.spec.root.namespace.clone(),
            user: user_of(hosted),
            job: hosted.spec.root.name.clone(),
        },
        usage: status.spent.usage(),
        since: status.spent.since.as_ref().map(|since| since.0),
    })
}

fn user_of(object: &impl kube::Resource) -> String {
    object.meta().labels.as_ref().and_then(|labels| labels.get(labels::USER)).cloned().unwrap_or_default()
}

/// The records, and what is in use now.
pub(super) struct View {
    book: Book,
    uses: Vec<Use>,
    now: Now,
}

impl Controller for Records {
    type Key = ();
    type Line = ();
    type View = View;
    /// The records by then.
    type Step = Book;
    type Error = RequestError;

    const NAME: &'static str = "usage";
    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &Queue<()> {
        &self.queue
    }

    async fn observe(&self, (): &()) -> Result<Observed<View>, RequestError> {
        let now = self.shared.now();
        let known = self.book.lock().clone();
        let mut book = match known {
            Some(book) => book,
            None => self.read(day_of(now.wall)).await?,
        };
        let mut uses = self.used(Arc::make_mut(&mut book.there), now.mono);
        uses.extend(self.shared.caches.hosted.objects().iter().filter_map(|hosted| of_hosted(hosted)));
        Ok(Observed::Continue(View { book, uses, now }))
    }

    fn step(&self, (): &(), View { book, uses, now }: &View) -> Book {
        let mut book = book.clone();
        let today = day_of(now.wall);
        while book.today.day < today {
            // Days in which nobody looked have their share as well, as far as days are kept.
            let day = book.today.day.max(self.before_the_first(today));
            book.today = Arc::new(match (DayOfUse { day, ..DayOfUse::clone(&book.today) }).next() {
                next if next.rows.is_empty() => DayOfUse::empty(today),
                next => next,
            });
            if !book.today.rows.is_empty() {
                book.unwritten.insert(book.today.day, book.today.clone());
            }
        }
        let before = book.today.clone();
        Arc::make_mut(&mut book.today).count(uses.iter().cloned(), now.wall);
        if book.today != before {
            book.unwritten.insert(book.today.day, book.today.clone());
        }
        book
    }

    async fn apply(&self, (): &(), View { now, .. }: View, mut book: Book) -> Result<Outcome, RequestError> {
        // What was counted is not counted again, whatever becomes of the write.
        *self.book.lock() = Some(book.clone());
        let today = day_of(now.wall);
        let rests = book.written.map(|written| WRITE_EVERY.saturating_sub(now.mono.saturating_since(written)));
        let rests = rests.filter(|left| !left.is_zero() && !book.unwritten.is_empty());
        let mut outcome = Ok(None);
        if rests.is_none() && !book.unwritten.is_empty() {
            for day in book.unwritten.keys().copied().collect::<Vec<_>>() {
                if outcome.is_ok() {
                    outcome = self.write(&mut book, day).await.map(|()| None);
                }
            }
            book.written = Some(now.mono);
        }
        if outcome.is_ok() {
            outcome = self.prune(&mut book, now).await;
        }
        let conflict = outcome.as_ref().err().is_some_and(|error| {
            let cause = error.cause();
            cause.is_conflict() || cause.is_already_exists()
        });
        let leaving = book.there.values().any(|one| one.gone.is_some());
        // Somebody else wrote it: what they wrote is what is so.
        *self.book.lock() = (!conflict).then_some(book);
        let prunes = outcome?;
        let midnight = Duration::try_from(start_of(after(today)).duration_since(now.wall)).unwrap_or(WRITE_EVERY);
        let wakes = [Some(midnight), rests, prunes, leaving.then_some(LOOK_AGAIN)];
        Ok(Outcome::After(wakes.into_iter().flatten().min().unwrap_or(midnight)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The danger: a clock is ahead for a moment, by as many days as records are kept, and all of them are gone.
    #[test]
    fn records_that_are_too_old_go_one_by_one() {
        let day = |text: &str| -> Date { text.parse().unwrap() };
        let at = |seconds| Mono::from_start(Duration::from_secs(seconds));
        let all = ["2026-11-24", "2026-11-25", "2026-11-26"];
        let mut book = Book {
            today: Arc::new(DayOfUse::empty(day("2026-11-26"))),
            unwritten: BTreeMap::new(),
            version: None,
            days: all.map(|text| (day(text), format!("uid of {text}"))).into(),
            written: None,
            pruned: None,
            there: Arc::default(),
        };
        let (none, two) = (day("2026-11-23"), day("2026-11-25"));
        assert_eq!(book.due(none, at(9_999)), None);
        assert_eq!(book.due(two, at(100)), Some((day(all[0]), "uid of 2026-11-24", Duration::ZERO)));
        book.days.remove(&day(all[0]));
        book.pruned = Some(at(100));
        assert_eq!(book.due(two, at(700)), Some((day(all[1]), "uid of 2026-11-25", Duration::from_secs(3_000))));
    }
}
