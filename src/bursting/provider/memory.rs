//! What is remembered of a slot between steps, in one leader's scope. Losing it is safe: it is looked up or concluded
//! anew. Who ended a burst before an agent restarted is concluded from the root's absence: see `slot::past`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tributary_api::hosted_burst::HostedBurst;
use tributary_clock::{Mono, Now};
use tributary_cluster::RequestError;
use tributary_cluster::error::{Cause, Taken, chain};
use tributary_contract::{Rejection, RejectionReason, UseReport};

use super::gateway::Stuck;
use super::not_started::NotStarted;
use super::provisioning::{self, Request};
use super::rate::Turn;
use super::scale_up::Returned;
use super::slot::{Change, ClaimKey, SlotView, Wanted, holder};
use super::sync;
use super::teardown::{self, Reason};
use super::warm::Made;
use crate::preflight::attempt::Attempt;
use crate::timing::RESOLVE_AGAIN;

/// How long the API server's refusal of an offer stands if nothing changes: at first, and at most. In between it doubles, so
/// that whoever mends the reason waits no longer than it lasted.
pub(crate) const VERDICT_STANDS: Duration = Duration::from_secs(5);
/// See [`VERDICT_STANDS`].
pub(crate) const VERDICT_STANDS_AT_MOST: Duration = Duration::from_secs(300);

/// Between two requests for a certificate that could not be had. If its Secret is refused, it doubles up to
/// [`SECRET_AGAIN_AT_MOST`].
pub(crate) const CREDENTIAL_AGAIN: Duration = Duration::from_secs(2);
const SECRET_AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// Until the lead's host name is asked for again that got no address. It doubles up to [`RESOLVE_AGAIN`].
const RESOLVE_SOON: Duration = Duration::from_secs(5);

/// How long a look at the Secret is not doubted.
const LOOK_IS_FRESH: Duration = Duration::from_secs(2);
/// How long a look at the Secret is enough to make brokers that mount it, and how often it is looked at while some are
/// missing.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What became of a burst that was hosted here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is here.
    Hosted {
        /// UID of its HostedBurst.
        uid: String,
        incarnation: String,
    },
    /// We ended it.
    Released {
        /// UID of its HostedBurst.
        uid: String,
        incarnation: String,
        /// Why.
        reason: Reason,
        /// How much it was used, if that is known.
        used: Option<UseReport>,
        /// What else there is to say of that.
        why: Option<String>,
    },
    /// Somebody else deleted its HostedBurst.
    Evicted { incarnation: String },
    /// A term found something of it, and no HostedBurst.
    Recalled,
}

impl Fate {
    /// Whether it must not come back by itself: only another offer, or an explicit retry, is looked at anew.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Evicted { .. } | Self::Released { reason: Reason::TimeLimit, .. })
    }

    pub(crate) fn incarnation(&self) -> &str {
        match self {
            Self::Hosted { incarnation, .. } | Self::Released { incarnation, .. } | Self::Evicted { incarnation } => {
                incarnation
            }
            Self::Recalled => "",
        }
    }
}

/// Why an admitted offer could not be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    /// What it is about.
    pub fingerprint: String,
    /// Why not.
    pub rejection: Rejection,
    /// Until when it stands.
    pub until: Mono,
    /// How often this offer was refused.
    tries: u32,
}

/// Whether the certificate is here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum SecretState {
    /// Not looked at yet.
    #[default]
    Unknown,
    /// Not here, or not the one that was announced; asked for at this time and not had.
    Missing {
        /// When it may be asked for again.
        again: Mono,
        /// What went wrong last.
        message: String,
    },
    /// It is being asked for.
    Asked,
    /// Here, with this digest.
    Held {
        /// Of the text.
        digest: String,
        /// Its public key, in Z85.
        public_key: String,
        /// When it was last looked at; `None`: something happened since that makes looking again worth a request.
        looked: Option<Mono>,
    },
}

impl SecretState {
    /// Brokers start anew: somebody may have taken the certificate away since it was looked at. Until that is known, what is
    /// said of it stays.
    pub(super) fn doubt(&mut self, now: Mono) {
        if let Self::Held { looked, .. } = self
            && looked.is_some_and(|at| now.saturating_since(at) >= LOOK_IS_FRESH)
        {
            *looked = None;
        }
    }
}

/// A host name, resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Resolution {
    /// The name.
    pub host: String,
    /// Its addresses, or why there are none.
    pub found: Result<Vec<IpAddr>, String>,
    /// How often in a row there were none.
    failures: u32,
    /// When it is asked again.
    again: Mono,
}

/// What the API server said to what every step tries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// What failed, with its words.
    pub why: String,
    /// It says no, and is not only slow or away.
    pub lasts: bool,
}

impl Refused {
    pub(super) fn of(error: &RequestError) -> Self {
        let cause = error.cause();
        // What is not found is on its way out, or its definition on its way in; a name comes free; a right is given back.
        let passes = cause.is_transient() || cause.is_not_found() || cause.is_of_rights() || error.taken().is_some();
        let lasts = !passes && !matches!(cause, Cause::Answer(_));
        Self { why: chain(error), lasts }
    }
}

/// What every step tries, and goes on without once it is known to be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    /// The spec of the HostedBurst.
    Spec,
    /// What is made for it.
    Objects,
}

impl Tried {
    pub(super) fn of(change: &Change) -> Option<Self> {
        match change {
            Change::Update(_) => Some(Self::Spec),
            Change::Materialize(_) => Some(Self::Objects),
            _ => None,
        }
    }
}

/// Our own API server refuses the Secret of the certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unkept {
    /// Its words.
    pub why: String,
    /// How often in a row.
    times: u32,
}

/// Why a certificate that was asked for is not here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoCertificate {
    /// The root does not hand it out, or it cannot be stored now.
    NotHad(String),
    /// Our own API server refuses its Secret.
    Refused(String),
}

impl From<String> for NoCertificate {
    fn from(message: String) -> Self {
        Self::NotHad(message)
    }
}

/// What is remembered of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Memory {
    /// What became of bursts that peers still speak of.
    pub fates: BTreeMap<ClaimKey, Fate>,
    /// Offers that could not be carried out.
    pub verdicts: BTreeMap<ClaimKey, Verdict>,
    /// Bursts that were given back since their nodes did not come, lately.
    pub returned: BTreeMap<ClaimKey, Returned>,
    /// When offers are looked at, or were.
    pub turns: BTreeMap<ClaimKey, Turn>,
    /// The certificate.
    pub secret: SecretState,
    /// The lead's host name.
    pub resolution: Option<Resolution>,
    /// A host name is being asked. Another one waits for that: a resolver that hangs gets one question of a slot at a time.
    pub resolving: bool,
    /// The first host name that this leader asked for, and when.
    pub asked_first: Option<(String, Mono)>,
    /// This leader led its brokers somewhere.
    pub led: bool,
    /// The gateway's pod that does not go.
    pub gateway: Option<Stuck>,
    /// What was seen of the lead.
    pub attempt: Attempt,
    /// The Job that pulls images ahead.
    pub warm_up: Made,
    /// The ProvisioningRequest.
    pub request: Request,
    /// Neither a MiniCluster of ours nor a Job has this name: looked at, uncached, since the last one was wanted.
    pub looked_empty: bool,
    /// What was seen then that neither we nor Kubernetes take away.
    pub stuck: Option<String>,
    /// When that was looked at last.
    pub looked: Option<Mono>,
    /// Why not all that is made for it is there: the API server refuses a part of that, or does not answer.
    pub unmade: Option<Refused>,
    /// Why its HostedBurst is not as its root wants it: the API server refuses the change.
    pub unchanged: Option<Refused>,
    /// Why the certificate is not in its Secret, if the last try ended there.
    pub unkept: Option<Unkept>,
    /// What of its names is another's.
    pub taken: Option<Taken>,
    /// Since when the burst is missing from complete snapshots.
    pub absent_since: Option<Mono>,
    /// No pod of it is on a node.
    pub not_started: Option<NotStarted>,
    /// UID of the HostedBurst whose brokers the last step wanted.
    pub kept: Option<String>,
}

impl Memory {
    /// A HostedBurst exists.
    pub(super) fn saw(&mut self, hosted: &HostedBurst) {
        let uid = hosted.metadata.uid.clone().unwrap_or_default();
        let fate = Fate::Hosted { uid: uid.clone(), incarnation: hosted.spec.root.incarnation.clone() };
        let known = self.fates.get(&holder(hosted));
        let ended = matches!(known, Some(Fate::Released { uid: ended, .. }) if *ended == uid);
        if !ended {
            if known != Some(&fate) {
                self.request = Request::Unknown;
            }
            self.fates.insert(holder(hosted), fate);
        }
        self.verdicts.clear();
    }

    pub(super) fn recall(&mut self, claim: ClaimKey) {
        self.fates.entry(claim).or_insert(Fate::Recalled);
    }

    /// Brokers are wanted: what was seen of an earlier end says nothing of theirs.
    pub(super) fn keeps(&mut self, hosted: &HostedBurst) {
        self.looked_empty = false;
        (self.stuck, self.looked) = (None, None);
        self.kept = hosted.metadata.uid.clone();
    }

    /// A step failed before these changes were carried out. Nobody answers what was never asked: the next step asks again.
    pub(crate) fn left_undone(&mut self, changes: &[Change]) {
        if changes.iter().any(|change| matches!(change, Change::RequestCredential { .. })) {
            self.secret = SecretState::Unknown;
        }
        if changes.iter().any(|change| matches!(change, Change::Dial(_))) {
            self.attempt = Attempt::None;
        }
        if changes.iter().any(|change| matches!(change, Change::Resolve(_))) {
            self.resolving = false;
        }
    }

    pub(super) fn ended(&mut self, hosted: &HostedBurst, reason: Reason) {
        let fate = Fate::Released {
            uid: hosted.metadata.uid.clone().unwrap_or_default(),
            incarnation: hosted.spec.root.incarnation.clone(),
            reason,
            used: hosted.status.as_ref().and_then(sync::used),
            why: teardown::last_word(hosted, reason).or_else(|| provisioning::last_word(hosted)),
        };
        self.fates.insert(holder(hosted), fate);
    }

    /// The API server refused an offer, again or for the first time. The rejection says when the next try is at
    /// the latest: nobody is told when a policy or a limit of the namespace goes.
    pub(super) fn refused(&mut self, key: ClaimKey, fingerprint: String, rejection: Rejection, now: Now) {
        let before = self.verdicts.get(&key).filter(|verdict| verdict.fingerprint == fingerprint);
        let tries = before.map_or(0, |verdict| verdict.tries);
        let doubled = 1_u32.checked_shl(tries).unwrap_or(u32::MAX);
        let stands = VERDICT_STANDS.saturating_mul(doubled).min(VERDICT_STANDS_AT_MOST);
        let next = now.wall.saturating_add(stands).unwrap_or(now.wall).strftime("%H:%M:%S UTC");
        let message = format!("{}; the next try is at {next}", rejection.message);
        let rejection = Rejection { message, ..rejection };
        let verdict = Verdict { fingerprint, rejection, until: now.mono + stands, tries: tries.saturating_add(1) };
        self.verdicts.insert(key, verdict);
    }

    /// What is remembered of a refusal.
    pub(super) fn refusal(&mut self, tried: Tried) -> &mut Option<Refused> {
        match tried {
            Tried::Spec => &mut self.unchanged,
            Tried::Objects => &mut self.unmade,
        }
    }

    /// A change has failed. A spec follows its root until a change of it is refused: the API server may only be away.
    pub(super) fn failed(&mut self, tried: Option<Tried>, error: &RequestError) {
        if error.cause().is_transient() && !error.cause().is_conflict() {
            // Whether it still refuses anything is not known.
            self.unkept = None;
            [&mut self.unmade, &mut self.unchanged].into_iter().flatten().for_each(|known| known.lasts = false);
        }
        let Some(tried) = tried else { return };
        let (refused, known) = (Refused::of(error), self.refusal(tried));
        if tried == Tried::Objects || refused.lasts || known.is_some() {
            *known = Some(refused);
        }
    }

    /// The certificate was asked for. A Secret that is refused is tried later each time: each try takes the certificate out
    /// of its cluster once more.
    pub(super) fn fetched(&mut self, answer: Result<SecretState, NoCertificate>, now: Mono) {
        let before = self.unkept.take().map_or(0, |unkept| unkept.times);
        self.secret = match answer {
            Ok(state) => state,
            Err(NoCertificate::NotHad(message)) => SecretState::Missing { again: now + CREDENTIAL_AGAIN, message },
            Err(NoCertificate::Refused(message)) => {
                let doubled = 1_u32.checked_shl(before).unwrap_or(u32::MAX);
                let pause = CREDENTIAL_AGAIN.saturating_mul(doubled).min(SECRET_AGAIN_AT_MOST);
                self.unkept = Some(Unkept { why: message.clone(), times: before.saturating_add(1) });
                SecretState::Missing { again: now + pause, message }
            }
        };
    }

    /// Quotas leave more room: what they refused is tried again.
    pub(super) fn forget_quotas(&mut self) {
        self.verdicts.retain(|_, verdict| verdict.rejection.reason != RejectionReason::QuotaExceeded);
    }

    /// The verdict about exactly this offer, while it stands.
    pub(super) fn verdict(&self, key: &ClaimKey, fingerprint: &str, now: Mono) -> Option<&Verdict> {
        self.verdicts.get(key).filter(|verdict| verdict.fingerprint == fingerprint && now < verdict.until)
    }

    /// Addresses of a host name, and when to ask again; `None` if it is time to ask.
    pub(super) fn resolved(&self, host: &str, now: Mono) -> Option<(Result<Vec<IpAddr>, String>, Duration)> {
        let known = self.resolution.as_ref().filter(|known| known.host == host)?;
        let left = known.again.saturating_since(now);
        (!left.is_zero()).then(|| (known.found.clone(), left))
    }

    /// A host name was asked. One that cannot be resolved now is where it was.
    pub(super) fn resolved_now(&mut self, host: String, mut found: Result<Vec<IpAddr>, String>, now: Mono) {
        self.resolving = false;
        let before = self.resolution.take().filter(|before| before.host == host);
        let (mut failures, mut pause) = (0, RESOLVE_AGAIN);
        if found.is_err() {
            failures = before.as_ref().map_or(0, |before| before.failures).saturating_add(1);
            pause = pause.min(RESOLVE_SOON * 2_u32.saturating_pow(failures - 1).min(60));
            found = before.and_then(|before| before.found.ok()).map_or(found, Ok);
        }
        self.resolution = Some(Resolution { host, found, failures, again: now + pause });
    }

    /// The last known addresses of a host name, however old.
    pub(super) fn last_resolved(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        match self.resolution.as_ref().filter(|known| known.host == host) {
            Some(known) => known.found.clone(),
            None => Err("it was not asked yet".into()),
        }
    }

    /// Drops what nobody speaks of any more, and nothing is left of. That we ended a burst is remembered until its root had its
    /// say: one that is away, since its lease ran out, must not take it for an eviction when it returns.
    pub(super) fn forget(&mut self, view: &SlotView<'_>) {
        let holder = view.hosted.map(holder);
        let unheard =
            |(peer, uid): &ClaimKey| view.peers.contains_key(peer) && view.listed.lists(peer, uid) != Some(false);
        self.fates.retain(|key, fate| {
            let kept = match fate {
                Fate::Released { .. } => !fate.is_final() && unheard(key),
                Fate::Hosted { .. } | Fate::Evicted { .. } | Fate::Recalled => holder.is_none() && !self.looked_empty,
            };
            kept || view.claims.contains_key(key) || holder.as_ref() == Some(key)
        });
        self.verdicts.retain(|key, _| view.claims.contains_key(key));
        self.returned.retain(|_, returned| !returned.left(view.now.mono).is_zero());
        // Who takes an offer back and makes it again has made another one.
        self.turns.retain(|key, _| matches!(view.claims.get(key), Some(Wanted::Burst(_))));
        if view.hosted.is_none() {
            self.looked_empty &= !self.fates.is_empty();
            self.secret = SecretState::Unknown;
            (self.resolution, self.resolving, self.led, self.asked_first) = (None, false, false, None);
            self.attempt = Attempt::None;
            self.warm_up = Made::No;
            self.request = Request::Unknown;
            self.gateway = None;
            (self.unmade, self.unchanged, self.unkept) = (None, None, None);
            self.taken = None;
            self.absent_since = None;
            self.not_started = None;
        }
    }

    /// Nothing is remembered: the entry can go.
    pub(crate) fn is_empty(&self) -> bool {
        let (fates, offers) = (self.fates.is_empty(), self.verdicts.is_empty() && self.turns.is_empty());
        let offers = offers && self.returned.is_empty();
        fates
            && self.stuck.is_none()
            && offers
            && self.secret == SecretState::Unknown
            && !self.looked_empty
            && self.taken.is_none()
    }
}
