//! Looks at the queues of roots that have bursts on demand: a script in the lead's pod, not too often.
//!
//! To run something in a pod is a right of its own, which the chart grants per namespace. Without it, and whatever else goes
//! wrong, the bursts of that root stay as they are and say why; nothing else waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams};
use kube::client::UpgradeConnectionError;
use kube::{Error, ResourceExt};
use tokio::io::{AsyncRead, AsyncReadExt};
use tributary_api::burst::{Burst, BurstHold};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::kubernetes::COMPLETION_INDEX;
use tributary_api::labels::kubernetes::JOB_NAME;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_clock::Mono;
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::Subscription;
use tributary_cluster::engine::{Controller, Observed, nothing};
use tributary_cluster::error::chain;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_flux::RankMap;

use super::ask::{self, Asked, Slot};
use super::decide::{self, AFTER_TROUBLE, EVERY, LIMIT, SETTLES, Seen};
use super::look::{Look, SCRIPT};
use crate::root::controller::Key;
use crate::root::lead_address::{is_of_lead, lead_pod};
use crate::root::{offer, plan};
use crate::shared::{Shared, lock};
use crate::turns::Line;

/// When it is looked at again where that is not allowed.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// The most that is read of an answer: far more than the script says.
const MOST_BYTES: u64 = 1 << 20;

/// The most that people are told of what a lead broker said.
const MOST_CHARACTERS: usize = 300;

type Trouble = (&'static str, String);

/// What was seen of each slot of a root, and when it may be looked at again.
#[derive(Debug)]
struct Looked {
    seen: BTreeMap<String, Seen>,
    again: Mono,
}

/// Who looks.
pub(crate) struct Looker {
    shared: Arc<Shared>,
    queue: Queue<ObjectKey>,
    /// Where the bursts are marked that something was seen of.
    bursts: Queue<Key, Line>,
    looked: Mutex<BTreeMap<ObjectKey, Looked>>,
}

impl Looker {
    pub(crate) fn new(shared: Arc<Shared>, bursts: Queue<Key, Line>) -> Self {
        let queue = Queue::new(shared.clock.clone());
        Self { shared, queue, bursts, looked: Mutex::default() }
    }

    /// Roots that change, and Bursts of them.
    pub(crate) fn feed(&self) -> Vec<Subscription> {
        let caches = &self.shared.caches;
        let roots = caches.mini_clusters.feed(&self.queue, |root| match has_on_demand(root) {
            true => vec![ObjectKey::of(root)],
            false => Vec::new(),
        });
        let bursts = caches.bursts.feed(&self.queue, |burst| match burst.spec.on_demand {
            Some(_) => tributary_cluster::caches::controller_of::<MiniCluster>(burst).into_iter().collect(),
            None => Vec::new(),
        });
        vec![roots, bursts]
    }

    /// Everything there is, for the first round of a term; what was seen in another one is forgotten.
    pub(crate) fn begin(&self) {
        lock(&self.looked).clear();
        for root in self.shared.caches.mini_clusters.objects().iter().filter(|root| has_on_demand(root)) {
            self.queue.mark(ObjectKey::of(&**root));
        }
    }

    /// What was seen of a burst last.
    pub(crate) fn seen(&self, root: &ObjectKey, slot: &str) -> Option<Seen> {
        lock(&self.looked).get(root).and_then(|looked| looked.seen.get(slot).cloned())
    }

    /// A root that runs and has bursts on demand, with all its Bursts.
    fn on_demand(&self, key: &ObjectKey) -> Option<(Arc<MiniCluster>, Vec<Arc<Burst>>)> {
        let root = self.shared.caches.mini_clusters.of(key)?;
        let phase = root.status.as_ref().and_then(|status| status.phase);
        if phase != Some(Phase::Running) || plan::is_over(&root) {
            return None;
        }
        let uid = root.uid()?;
        let all = self.shared.caches.bursts.objects();
        let bursts: Vec<_> = all.into_iter().filter(|burst| offer::root_uid(burst) == Some(&uid)).collect();
        bursts.iter().any(|burst| burst.spec.on_demand.is_some() && !burst.spec.release).then_some((root, bursts))
    }

    async fn asked(&self, root: &MiniCluster, bursts: &[Arc<Burst>]) -> Result<BTreeMap<String, Asked>, Trouble> {
        let text = self.ask_lead(root).await?;
        let map = bursts.first().map(|burst| RankMap::parse_canonical(&burst.spec.rank_map));
        let map = map.and_then(Result::ok).ok_or_else(|| unreadable("its rank map cannot be read"))?;
        let (slots, coming) = slots(bursts);
        // A long queue of a large instance takes a while.
        let judged = tokio::task::spawn_blocking(move || {
            let look = Look::parse(&text).map_err(|error| unreadable(&chain(&error)))?;
            Ok(ask::ask(&map, &look, &slots, &coming))
        });
        judged.await.unwrap_or_else(|error| Err(unreadable(&chain(&error))))
    }

    /// Runs the script beside the lead broker, as the user that Flux runs as.
    async fn ask_lead(&self, root: &MiniCluster) -> Result<String, Trouble> {
        let (namespace, name) = (root.namespace().unwrap_or_default(), root.name_any());
        let pods = self.shared.caches.pods.objects();
        let of_lead = pods.iter().map(|pod| &pod.view).filter(|pod| pod.running && is_of_lead(root, pod));
        let index_zero: Vec<_> = of_lead.cloned().collect();
        let pod = lead_pod(&index_zero)
            .ok_or_else(|| unreadable(&format!("no pod with {JOB_NAME}={name} and {COMPLETION_INDEX}=0 runs")))?;
        let command = ["timeout", "15", "flux", "python", "-c", SCRIPT].map(str::to_owned);
        let words = tributary_render::shell(root, &[], &command).map_err(|error| unreadable(&chain(&error)))?;
        let how = AttachParams::default().container(&name).stdin(false).stdout(true).stderr(true);
        let api: Api<Pod> = Api::namespaced(self.shared.clients.reader.clone(), &namespace);
        let mut process = api.exec(&pod.name, words, &how).await.map_err(|error| match error {
            Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(StatusCode::FORBIDDEN)) => {
                let text = format!(
                    "the agent may not run commands in pods of namespace {namespace}: add it to bursting.onDemandNamespaces \
                     of the chart"
                );
                ("Forbidden", text)
            }
            error => unreadable(&format!("failed to run a command in pod {namespace}/{}: {}", pod.name, chain(&error))),
        })?;
        let status = process.take_status();
        heard(process.stdout(), process.stderr(), async { status?.await }).await
    }
}

/// What the script says, once it has ended.
async fn heard(
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
    ended: impl Future<Output = Option<Status>>,
) -> Result<String, Trouble> {
    let (output, errors, status) = tokio::try_join!(read_text(stdout), read_text(stderr), ended.map(Ok))?;
    let status = status.ok_or_else(|| unreadable("the connection to the lead broker's pod broke off"))?;
    if status.status.as_deref() == Some("Success") {
        return Ok(output);
    }
    let why = status.message.unwrap_or_default();
    let said = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or(&why);
    Err(unreadable(&format!("the queue of the lead broker cannot be read: {said}")))
}

/// The queue of a root, as its lead broker told it.
pub(crate) struct Told {
    bursts: Vec<Arc<Burst>>,
    answer: Result<BTreeMap<String, Asked>, Trouble>,
    at: Timestamp,
}

/// What is seen of each slot, and how soon it is looked at again.
pub(crate) struct NextLook {
    seen: BTreeMap<String, Seen>,
    wait: Duration,
}

impl Controller for Looker {
    type Key = ObjectKey;
    type Line = ();
    type View = Told;
    type Step = NextLook;
    type Error = Infallible;

    const NAME: &'static str = "demand";
    // A lead broker that does not answer keeps few others waiting, and nobody else.
    const CONCURRENCY: usize = 4;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<Told>, Infallible> {
        let Some((root, bursts)) = self.on_demand(key) else {
            lock(&self.looked).remove(key);
            return Ok(nothing());
        };
        let now = self.shared.clock.mono();
        if let Some(again) = lock(&self.looked).get(key).map(|looked| looked.again).filter(|again| *again > now) {
            return Ok(Observed::Break(Outcome::After(again.saturating_since(now))));
        }
        let answer = match tokio::time::timeout(LIMIT, self.asked(&root, &bursts)).await {
            Ok(answer) => answer,
            Err(_) => Err(unreadable(&format!("the lead broker did not answer within {LIMIT:?}"))),
        };
        Ok(Observed::Continue(Told { bursts, answer, at: self.shared.clock.wall() }))
    }

    fn step(&self, _: &ObjectKey, Told { bursts, answer, at }: &Told) -> NextLook {
        let on_demand = bursts.iter().filter(|burst| burst.spec.on_demand.is_some());
        let seen: BTreeMap<String, Seen> = on_demand
            .map(|burst| {
                let slot = &burst.spec.slot;
                let found = answer.as_ref().map(|asked| asked.get(slot).copied().unwrap_or_default());
                (slot.clone(), Seen { at: *at, found: found.map_err(Clone::clone) })
            })
            .collect();
        let wakes = bursts.iter().any(|burst| {
            let (found, policy) = (seen.get(&burst.spec.slot), burst.spec.on_demand.as_ref());
            let demand = burst.status.as_ref().and_then(|status| status.demand.clone()).unwrap_or_default();
            policy.is_some_and(|policy| !demand.awake && decide::decide(&demand, policy, found).since.is_some())
        });
        let wait = match answer {
            Err(("Forbidden", _)) => AFTER_REFUSAL,
            Err(_) => AFTER_TROUBLE,
            Ok(_) if wakes => SETTLES,
            Ok(_) => EVERY,
        };
        NextLook { seen, wait }
    }

    async fn apply(&self, key: &ObjectKey, told: Told, next: NextLook) -> Result<Outcome, Infallible> {
        let NextLook { seen, wait } = next;
        let again = self.shared.clock.mono() + wait;
        lock(&self.looked).insert(key.clone(), Looked { seen, again });
        told.bursts.iter().for_each(|burst| self.bursts.mark(Key::Burst(ObjectKey::of(&**burst))));
        Ok(Outcome::After(wait))
    }
}

/// The bursts on demand in the order of their ranks, and the others whose brokers are there or come.
fn slots(bursts: &[Arc<Burst>]) -> (Vec<Slot>, BTreeSet<String>) {
    let mut slots: Vec<(u32, Slot)> = Vec::new();
    let mut coming = BTreeSet::new();
    for burst in bursts.iter().filter(|burst| !burst.spec.release) {
        let status = burst.status.clone().unwrap_or_default();
        let name = burst.spec.slot.clone();
        if burst.spec.on_demand.is_some() {
            let awake = status.demand.is_some_and(|demand| demand.awake);
            let nowhere = matches!(status.phase, BurstPhase::Lost) || status.peer.is_none();
            let stuck = status.held == Some(BurstHold::BudgetSpent) || awake && nowhere;
            slots.push((burst.spec.index, Slot { name, size: burst.spec.size, awake, stuck }));
        } else if status.peer.is_some() && (BurstPhase::Offered..=BurstPhase::Ready).contains(&status.phase) {
            coming.insert(name);
        }
    }
    slots.sort_by_key(|(index, _)| *index);
    (slots.into_iter().map(|(_, slot)| slot).collect(), coming)
}

/// Trouble in words for people. Some of them are a user's: they stay one short line, without control characters.
fn unreadable(text: &str) -> Trouble {
    let plain = text.chars().take(MOST_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    ("Unreadable", plain)
}

async fn read_text(stream: Option<impl AsyncRead + Unpin>) -> Result<String, Trouble> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was said until it broke off is worth more than how it broke off.
        let _ = stream.take(MOST_BYTES + 1).read_to_end(&mut bytes).await;
    }
    if bytes.len() as u64 > MOST_BYTES {
        return Err(unreadable(&format!("what the lead broker says of its queue is longer than {MOST_BYTES} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_on_demand(root: &MiniCluster) -> bool {
    root.spec.flux.bursting.clusters.iter().any(|cluster| cluster.on_demand().is_some())
}

#[cfg(test)]
mod tests {
    use tributary_api::burst::{BurstDemand, BurstSpec, BurstStatus, OnDemandSpec};

    use super::*;

    fn burst(slot: &str, index: u32, on_demand: bool, status: BurstStatus) -> Arc<Burst> {
        let on_demand = on_demand.then(OnDemandSpec::default);
        let spec = BurstSpec { slot: slot.into(), index, size: 2, on_demand, ..BurstSpec::default() };
        Arc::new(Burst { status: Some(status), ..Burst::new(slot, spec) })
    }

    #[test]
    fn what_would_not_come_is_stuck_and_what_does_not_come_is_not_there() {
        let status = |peer: &str, phase, awake| BurstStatus {
            peer: Some(peer.to_owned()).filter(|peer| !peer.is_empty()),
            demand: Some(BurstDemand { awake, ..BurstDemand::default() }),
            phase,
            ..BurstStatus::default()
        };
        let spent = BurstStatus { held: Some(BurstHold::BudgetSpent), ..status("", BurstPhase::Spent, true) };
        let table = [
            (status("", BurstPhase::Asleep, false), [false, false]),
            (status("west", BurstPhase::Offered, true), [true, false]),
            // It may still leave from the last time.
            (status("west", BurstPhase::Draining, true), [true, false]),
            (status("", BurstPhase::Rejected, true), [true, true]),
            (status("west", BurstPhase::Lost, true), [true, true]),
            (spent, [true, true]),
        ];
        for (status, expected) in table {
            let (slots, coming) = slots(&[burst("a", 0, true, status.clone())]);
            assert_eq!([slots[0].awake, slots[0].stuck], expected, "{status:?}");
            assert!(coming.is_empty());
        }
        let always = [("a", BurstPhase::Joining), ("b", BurstPhase::Lost), ("c", BurstPhase::Draining)];
        let always = always.map(|(slot, phase)| burst(slot, 0, false, status("west", phase, false)));
        assert_eq!(slots(&always).1, BTreeSet::from(["a".to_owned()]));
    }

    fn ended(status: Option<Status>) -> impl Future<Output = Option<Status>> {
        std::future::ready(status)
    }

    /// The danger: a `flux` that is not Flux takes all memory, holds a look, or goes without a word for people.
    #[tokio::test(start_paused = true)]
    async fn each_answer_that_is_none_has_its_sentence() {
        let failed = |message: &str| Some(Status { message: Some(message.into()), ..Status::default() });
        let done = || Some(Status { status: Some("Success".into()), ..Status::default() });
        let long = "x".repeat(usize::try_from(MOST_BYTES).unwrap());
        let longer = format!("{long}x");
        // Output, errors, how it ended; what people are told.
        let table = [
            ("0", "", done(), Ok("0".to_owned())),
            ("a\n{}", "warning", done(), Ok("a\n{}".to_owned())),
            (
                "",
                "no\nflux-python: ECONNREFUSED\n \n",
                failed("exit code 1"),
                Err("cannot be read: flux-python: ECONNREFUSED"),
            ),
            (
                "0",
                "",
                failed("command terminated with exit code 124"),
                Err("cannot be read: command terminated with exit code 124"),
            ),
            ("", "\u{1b}[2J\0\u{7f}", failed("exit code 1"), Err("cannot be read:  [2J  ")),
            ("0", "", None, Err("the connection to the lead broker's pod broke off")),
            (&*long, "", done(), Ok(long.clone())),
            (&*longer, "", done(), Err("longer than 1048576 bytes")),
            ("0", &*longer, done(), Err("longer than 1048576 bytes")),
        ];
        for (output, errors, status, expected) in table {
            let (head, found) =
                (output.get(..20), heard(Some(output.as_bytes()), Some(errors.as_bytes()), ended(status)).await);
            match expected {
                Ok(expected) => assert!(found == Ok(expected), "{head:?}"),
                Err(expected) => {
                    let (reason, told) = found.unwrap_err();
                    assert!(reason == "Unreadable" && told.contains(expected), "{head:?}: {told}");
                    assert!(told.chars().count() <= MOST_CHARACTERS && !told.contains(char::is_control), "{told:?}");
                }
            }
        }
        // Who says too much is not waited for.
        let for_ever = tokio::io::repeat(b'x');
        let found = heard(Some(for_ever), None::<&[u8]>, std::future::pending()).await;
        assert!(found.unwrap_err().1.contains("longer than"));
    }

    #[test]
    fn what_a_user_says_stays_one_short_line() {
        let (reason, text) = unreadable(&format!("\u{1b}[2Jgone\n{}", "x".repeat(9_999)));
        assert_eq!((reason, text.chars().count()), ("Unreadable", MOST_CHARACTERS));
        assert!(text.starts_with(" [2Jgone x"), "{text}");
    }
}
