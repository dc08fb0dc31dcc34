use jiff::Timestamp;
use tributary_api::budget::BurstBudget;
use tributary_api::burst::{BurstSpec, CredentialRecipient, OnDemandSpec};
use tributary_clock::{Mono, Now};
use tributary_contract::PeerState;
use tributary_contract::tunnel::Ends;

use super::*;
use crate::root::demand::ask::Asked;
use crate::timing::{Times, reserved_for, unhurried};

mod budget;
mod demand;
mod lost;
mod tunnel_ends;
mod whole;

/// A root's world of two peers, as a step sees it.
struct World {
    burst: Burst,
    peers: BTreeMap<PeerName, PeerView>,
    contacts: Contacts,
    answers: BTreeMap<PeerName, Answer>,
    published: BTreeSet<PeerName>,
    withdrawing: BTreeSet<PeerName>,
    undeliverable: BTreeMap<PeerName, String>,
    no_lead: Option<NoLead>,
    ends: Ends,
    root: Option<MiniCluster>,
    seen: Option<Seen>,
    secs: u64,
    /// By how much the wall clock was set ahead.
    ahead: i64,
    notes: Vec<String>,
}

impl World {
    fn new() -> Self {
        let spec = BurstSpec {
            root: "lake".into(),
            slot: "lake-burst-0".into(),
            credential_digest: "sha256:cert".into(),
            size: 3,
            max_size: 3,
            cores: 1,
            incarnation: "job-1".into(),
            lease: 300.into(),
            drain: 60.into(),
            ..BurstSpec::default()
        };
        let mut burst = offer::tests::owned(Burst::new("lake-burst-0", spec));
        burst.metadata.generation = Some(1);
        burst.metadata.namespace = Some("flux".into());
        burst.metadata.uid = Some("burst-uid".into());
        let mut world = Self {
            burst,
            peers: BTreeMap::new(),
            contacts: Contacts::begin(Mono::ZERO),
            answers: BTreeMap::new(),
            published: BTreeSet::new(),
            withdrawing: BTreeSet::new(),
            undeliverable: BTreeMap::new(),
            no_lead: None,
            ends: Ends::default(),
            root: None,
            seen: None,
            secs: 0,
            ahead: 0,
            notes: Vec::new(),
        };
        world.connect("west").connect("north");
        world
    }

    fn connect(&mut self, peer: &str) -> &mut Self {
        let view = self.peers.entry(peer.into()).or_default();
        view.state = PeerState::Connected;
        view.cluster_uid.get_or_insert_with(|| format!("cluster-{peer}").into());
        self
    }

    fn cut(&mut self, peer: &str) -> &mut Self {
        self.peers.entry(peer.into()).or_default().state = PeerState::Disconnected;
        self
    }

    fn named(&mut self, peers: &[&str]) -> &mut Self {
        self.burst.spec.peers = peers.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    fn edit(&mut self, change: impl FnOnce(&mut BurstSpec)) -> &mut Self {
        change(&mut self.burst.spec);
        self.burst.metadata.generation = self.burst.metadata.generation.map(|generation| generation + 1);
        self
    }

    fn say(&mut self, peer: &str, phase: BurstPhase) -> &mut Self {
        self.say_of(peer, phase, "job-1", self.burst.metadata.generation.unwrap())
    }

    fn say_of(&mut self, peer: &str, phase: BurstPhase, incarnation: &str, generation: i64) -> &mut Self {
        let rejection =
            (phase == BurstPhase::Rejected).then(|| Rejection::new(RejectionReason::PolicyForbids, "no secrets"));
        let said = ObservedBurst {
            phase,
            rejection,
            incarnation: incarnation.into(),
            observed_generation: generation.try_into().unwrap(),
            hosted_uid: phase.occupies().then(|| format!("hosted-on-{peer}")),
            ready_brokers: if phase == BurstPhase::Ready { 3 } else { 0 },
            ..ObservedBurst::default()
        };
        self.answers.insert(peer.into(), Answer::Observed(Box::new(said)));
        self
    }

    fn give_certificate(&mut self, peer: &str) -> &mut Self {
        let recipient = CredentialRecipient {
            peer: peer.into(),
            incarnation: self.burst.spec.incarnation.clone(),
            credential_digest: self.burst.spec.credential_digest.clone(),
            cluster_uid: Some(format!("cluster-{peer}")),
            tunnel: self.burst.spec.tunnel,
            ..CredentialRecipient::default()
        };
        let recipients = &mut self.burst.status.as_mut().unwrap().credential_recipients;
        recipients.retain(|known| known.peer != peer);
        recipients.push(recipient);
        self
    }

    /// Another cluster has the name of a peer.
    fn re_pin(&mut self, peer: &str, cluster: &str) -> &mut Self {
        self.peers.get_mut(peer).unwrap().cluster_uid = Some(cluster.into());
        self
    }

    /// A person lets the slot go as `agentctl burst release` does, with this done to the word before it is written.
    fn let_go(&mut self, change: impl FnOnce(&mut serde_json::Value)) -> &mut Self {
        let status = self.burst.status.clone().unwrap();
        let mut word = serde_json::json!({
            "burstUID": self.burst.metadata.uid, "incarnation": self.burst.spec.incarnation, "peer": status.peer,
            "lostSince": status.lost_since, "by": "alice", "at": "2026-01-02T03:04:05Z",
        });
        change(&mut word);
        let annotations = self.burst.metadata.annotations.get_or_insert_default();
        annotations.insert(tributary_api::labels::RELEASE.to_owned(), word.to_string());
        self
    }

    /// Time passes, then one step is taken and stored.
    fn after(&mut self, secs: u64) -> &mut Self {
        self.secs += secs;
        let mono = Mono::from_start(Duration::from_secs(self.secs));
        let now = Now { mono, wall: Timestamp::from_second(1_000_000 + self.secs as i64 + self.ahead).unwrap() };
        let present: Vec<_> = self.peers.iter().filter(|(_, peer)| peer.in_session()).map(|(name, _)| name).collect();
        self.contacts.observe(present, mono);
        let before = self.burst.status.clone();
        let view = BurstView {
            now,
            counted: unhurried(Now { mono: Mono::ZERO, wall: Timestamp::from_second(1_000_000).unwrap() }, now),
            grace: Times::default().grace,
            burst: self.burst.clone().into(),
            own: "east".into(),
            peers: self.peers.clone(),
            contacts: self.contacts.clone(),
            answers: self.answers.clone(),
            withdrawing: self.withdrawing.clone(),
            undeliverable: self.undeliverable.clone(),
            no_lead: self.no_lead.clone(),
            ends: self.ends,
            root: self.root.clone().map(Arc::new),
            seen: self.seen.clone(),
        };
        let step = step(&view, &BTreeMap::new());
        if before.as_ref() != Some(&step.status) {
            self.notes.extend(step.notes.iter().map(|note| note.reason.clone()));
        }
        self.burst.status = Some(step.status);
        let offered = offer::recipients(&self.burst, &self.peers);
        self.withdrawing.extend(self.published.difference(&offered).cloned());
        self.withdrawing.retain(|peer| !offered.contains(peer));
        self.published = offered;
        self
    }

    /// The queue was looked at.
    fn look(&mut self, pending: u32, busy: bool) -> &mut Self {
        self.look_at(Asked { pending, busy, lasting: 0, closed: true })
    }

    fn look_at(&mut self, found: Asked) -> &mut Self {
        let at = Timestamp::from_second(1_000_000 + self.secs as i64).unwrap();
        self.seen = Some(Seen { at, found: Ok(found) });
        self
    }

    fn step(&mut self) -> &mut Self {
        self.after(1)
    }

    fn confirm(&mut self, peer: &str) -> &mut Self {
        self.withdrawing.remove(peer);
        self.answers.insert(peer.into(), Answer::Nothing);
        self
    }

    #[track_caller]
    fn is(&mut self, phase: BurstPhase, peer: Option<&str>) -> &mut Self {
        let status = self.burst.status.as_ref().unwrap();
        assert_eq!((status.phase, status.peer.as_deref()), (phase, peer), "{}", status.message);
        self
    }
}

#[test]
fn a_good_burst_is_placed_offered_accepted_and_ready() {
    let mut world = World::new();
    world.named(&["west"]).step().is(BurstPhase::Offered, Some("west"));
    world.say("west", BurstPhase::Accepted).step().is(BurstPhase::Accepted, Some("west"));
    world.say("west", BurstPhase::Ready).step().is(BurstPhase::Ready, Some("west"));
    let status = world.burst.status.clone().unwrap();
    assert_eq!((status.ready_brokers, status.hosted_uid.as_deref()), (3, Some("hosted-on-west")));
    assert_eq!(world.notes, ["Placed", "Accepted", "Ready"]);
    world.step();
    assert_eq!(world.burst.status, Some(status), "a step without news changes nothing");
    assert_eq!(world.notes.len(), 3);
}

/// The danger: `peer: wset`, and no event says so.
#[test]
fn a_name_that_is_nobodys_or_our_own_is_said_at_once_and_after_each_edit() {
    let mut world = World::new();
    world.named(&["wset"]).step().step().is(BurstPhase::Pending, None);
    let message = |world: &World| world.burst.status.as_ref().unwrap().message.clone();
    assert_eq!(message(&world), "wset: there is no ClusterPeer of this name; there are north, west");
    assert_eq!(world.notes, ["NoCandidate"]);
    world.edit(|spec| spec.peers = vec!["east".into()]).step().step();
    assert_eq!(message(&world), "east: is this cluster itself");
    assert_eq!(world.notes, ["NoCandidate", "NoCandidate"]);
}

/// The danger: 3 of 5 brokers, or brokers on another peer than is wanted, and the burst says that it is ready.
#[test]
fn what_only_a_restart_brings_keeps_a_burst_from_being_as_it_is_wanted() {
    use tributary_api::labels::condition::{BROKERS_ONLINE, READY, RESTART_REQUIRED};
    let root = |cluster: &str| -> MiniCluster {
        let bursting = format!("{{bursting: {{clusters: [{cluster}]}}}}");
        let yaml = format!("metadata: {{name: lake}}\nspec: {{size: 2, containers: [], flux: {bursting}}}");
        serde_saphyr::from_str(&yaml).unwrap()
    };
    let mut world = World::new();
    world.root = Some(root("{size: 3, peer: west}"));
    world.named(&["west"]).step().say("west", BurstPhase::Ready).step().is(BurstPhase::Ready, Some("west"));
    let said = |world: &World, type_: &str| {
        let status = world.burst.status.as_ref().unwrap();
        let found = tributary_cluster::conditions::find(&status.conditions, type_).unwrap();
        (found.status.clone(), found.reason.clone(), found.message.clone())
    };
    assert_eq!(said(&world, READY).0, "True");
    let short = |message: &str| ("False".to_owned(), RESTART_REQUIRED.to_owned(), message.to_owned());
    for (cluster, message) in [
        ("{size: 5, peer: west}", "5 brokers are wanted, and the instance has ranks for 3: a restart is needed"),
        ("{size: 3, peer: north}", "it is wanted on north, and it is on west: a restart is needed"),
    ] {
        world.root = Some(root(cluster));
        world.step().is(BurstPhase::Ready, Some("west"));
        assert_eq!(said(&world, READY), short(message), "{cluster}");
        assert_eq!(world.burst.status.as_ref().unwrap().message, message);
    }
    world.root = Some(root("{size: 5, peer: west}"));
    assert_eq!(said(world.step(), BROKERS_ONLINE), short("3 of 5 brokers are online"));
    world.root = Some(root("{size: 3, peer: west}"));
    assert_eq!(said(world.step(), READY).0, "True");
}

#[test]
fn a_refusal_moves_on_and_is_not_offered_again_until_something_changes() {
    let mut world = World::new();
    world
        .named(&["west", "north"])
        .step()
        .say("west", BurstPhase::Rejected)
        .step()
        .is(BurstPhase::Offered, Some("north"));
    world.say("north", BurstPhase::Rejected).step().is(BurstPhase::Rejected, None);
    let message = &world.burst.status.as_ref().unwrap().message;
    assert_eq!(message, "north: refused (PolicyForbids): no secrets; west: refused (PolicyForbids): no secrets");
    world.step().step().is(BurstPhase::Rejected, None);

    world.edit(|spec| spec.lead = Some(Default::default())).step().is(BurstPhase::Rejected, None);
    world.edit(|spec| spec.size = 2).step().is(BurstPhase::Offered, Some("west"));
}

#[test]
fn who_still_refuses_may_say_something_else() {
    let mut world = World::new();
    world.named(&["west"]).step().say("west", BurstPhase::Rejected).step().is(BurstPhase::Rejected, None);
    let Some(Answer::Observed(said)) = world.answers.get_mut("west") else { unreachable!() };
    let next = "no room; the next try is at 10:00:00 UTC";
    said.rejection = Some(Rejection::new(RejectionReason::QuotaExceeded, next));
    world.notes.clear();
    world.step().is(BurstPhase::Rejected, None);
    let message = &world.burst.status.as_ref().unwrap().message;
    assert_eq!(*message, format!("west: refused (QuotaExceeded): {next}"));
    assert_eq!(world.notes, [""; 0], "it is the same refusal");
}

#[test]
fn a_changed_cluster_peer_or_a_retry_is_a_new_chance() {
    let mut world = World::new();
    world.named(&["west"]).step().say("west", BurstPhase::Evicted).step().is(BurstPhase::Evicted, None);
    assert!(world.withdrawing.contains("west") && world.notes.contains(&"EvictedByProvider".to_owned()));
    world.confirm("west").step().is(BurstPhase::Evicted, None);

    world.peers.get_mut("west").unwrap().generation = Some(2);
    world.step().is(BurstPhase::Offered, Some("west"));
    world.say("west", BurstPhase::Evicted).step().is(BurstPhase::Evicted, None);
    let retry = [(tributary_api::labels::RETRY.to_owned(), "1".to_owned())].into();
    world.burst.metadata.annotations = Some(retry);
    world.step().is(BurstPhase::Pending, None);
    world.confirm("west").step().is(BurstPhase::Offered, Some("west"));
}

#[test]
fn an_eviction_of_an_earlier_burst_of_the_same_job_stands_until_something_changes() {
    let mut first = World::new();
    first
        .named(&["west", "north"])
        .step()
        .say("west", BurstPhase::Evicted)
        .step()
        .is(BurstPhase::Offered, Some("north"));
    first.say("north", BurstPhase::Evicted).step().is(BurstPhase::Evicted, None);
    let evictions = first.burst.status.unwrap().refusals;
    let again = |evictions: &[BurstRefusal]| {
        let mut world = World::new();
        world.named(&["west", "north"]);
        world.burst.spec.evictions = evictions.to_vec();
        world
    };
    again(&evictions).step().is(BurstPhase::Evicted, None);
    let mut world = again(&evictions[1..]);
    world.step().is(BurstPhase::Offered, Some("north"));
    assert!(world.say("north", BurstPhase::Rejected).step().is(BurstPhase::Rejected, None).withdrawing.is_empty());
    let mut world = again(&evictions);
    world.peers.get_mut("west").unwrap().generation = Some(2);
    world.step().is(BurstPhase::Offered, Some("west"));
    world.say("west", BurstPhase::Ready).step().is(BurstPhase::Ready, Some("west"));
    again(&evictions).edit(|spec| spec.size = 2).step().is(BurstPhase::Offered, Some("west"));
}

#[test]
fn a_peer_that_changed_its_mind_gets_the_standing_offer_and_an_evicting_one_has_none() {
    let mut world = World::new();
    world.named(&["west"]).step().say("west", BurstPhase::Rejected).step().is(BurstPhase::Rejected, None);
    assert_eq!(offer::recipients(&world.burst, &world.peers), [PeerName::from("west")].into());
    assert!(world.withdrawing.is_empty(), "the offer stands");
    world.say("west", BurstPhase::Accepted).step().is(BurstPhase::Accepted, Some("west"));
    world.say("west", BurstPhase::Evicted).step().is(BurstPhase::Evicted, None);
    assert!(offer::recipients(&world.burst, &world.peers).is_empty());
}

#[test]
fn answers_of_another_life_are_ignored() {
    let mut world = World::new();
    let west_costs = || Price { core_hour: "2".parse().unwrap(), ..Price::default() };
    world.peers.get_mut("west").unwrap().price = Some(west_costs());
    world.named(&["west"]).step();
    world.say_of("west", BurstPhase::Ready, "job-0", 1).step().is(BurstPhase::Offered, Some("west"));
    world.say("west", BurstPhase::Ready).step().is(BurstPhase::Ready, Some("west"));
    world.edit(|spec| spec.incarnation = "job-2".into()).step().is(BurstPhase::Offered, Some("west"));
    let status = world.burst.status.clone().unwrap();
    assert_eq!((status.ready_brokers, status.hosted_uid), (0, None));
    assert_eq!(status.price, Some(west_costs()), "it costs what it did");
    world.edit(|spec| spec.size = 2);
    world.say_of("west", BurstPhase::Rejected, "job-2", 1).step().is(BurstPhase::Offered, Some("west"));
}

#[test]
fn a_release_waits_for_the_peers_word() {
    let mut world = World::new();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    world.edit(|spec| spec.release = true).step().is(BurstPhase::Draining, Some("north"));
    assert!(world.withdrawing.contains("north"), "the tombstone is on its way");
    world.say("north", BurstPhase::Draining).step().is(BurstPhase::Draining, Some("north"));
    world.confirm("north").step().is(BurstPhase::Released, None);
    world.step().is(BurstPhase::Released, None);
    assert_eq!(world.notes.last().map(String::as_str), Some("Released"));
    world.edit(|spec| spec.release = false).step().is(BurstPhase::Offered, Some("north"));
}

/// The danger: a Burst that was restored from a backup is placed, and runs once more; nobody ends it, or one whose root was deleted
/// alone.
#[test]
fn what_nothing_owns_is_released_and_placed_nowhere() {
    let mut world = World::new();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    world.burst.metadata.owner_references = None;
    world.burst.spec.on_demand = Some(OnDemandSpec::default());
    world.step().is(BurstPhase::Draining, Some("north"));
    world.say("north", BurstPhase::Draining).step().confirm("north").step().is(BurstPhase::Released, None);
    world.step().is(BurstPhase::Released, None);
    let status = world.burst.status.as_ref().unwrap();
    assert_eq!(status.message, "nothing owns this Burst, so nothing runs for it: delete it");
    assert!(status.demand.is_none());
}

#[test]
fn a_spent_budget_ends_a_burst_by_a_drain_and_keeps_it_away_until_it_is_raised() {
    let mut world = World::new();
    world.burst.spec.budget = serde_saphyr::from_str("{maxDuration: 10m}").unwrap();
    world.step().say("north", BurstPhase::Ready).step().give_certificate("north");
    assert_eq!(world.burst.status.as_ref().unwrap().spent.brokers, 3);
    world.after(539).is(BurstPhase::Ready, Some("north")).step();
    assert_eq!(world.notes.last().map(String::as_str), Some("BudgetEnding"));
    world.after(60).is(BurstPhase::Draining, Some("north"));
    assert_eq!(world.notes.last().map(String::as_str), Some("BudgetSpent"));
    let said = "maxDuration 10m of the burst is spent; north releases it";
    assert_eq!(world.burst.status.as_ref().unwrap().message, said);
    assert!(world.published.is_empty() && world.withdrawing.contains("north"));
    world.say("north", BurstPhase::Draining).after(30).is(BurstPhase::Draining, Some("north"));
    world.confirm("north").step().is(BurstPhase::Spent, None);
    let spent = world.burst.status.as_ref().unwrap().spent.clone();
    assert_eq!((spent.seconds, spent.broker_seconds, spent.brokers), (631, 1_893, 0), "it counted until it was gone");
    world.after(99_999).is(BurstPhase::Spent, None);
    world.edit(|spec| spec.incarnation = "job-2".into()).step().is(BurstPhase::Spent, None);
    world.edit(|spec| spec.budget.max_duration = Some("20m".into())).step().is(BurstPhase::Offered, Some("north"));
    assert_eq!(world.burst.status.as_ref().unwrap().spent, spent);
    world.edit(|spec| spec.budget = BurstBudget::default()).step();
    assert!(world.burst.status.as_ref().unwrap().conditions.iter().all(|condition| condition.type_ != "Budget"));
}

#[test]
fn a_peer_whose_budget_is_spent_is_left_and_a_root_without_any_has_no_bursts() {
    let mut world = World::new();
    world.named(&["west", "north"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    world.peers.get_mut("west").unwrap().exhausted = Some("brokerHours 9 of the peer is spent".into());
    world.step().is(BurstPhase::Draining, Some("west"));
    world.confirm("west").step().is(BurstPhase::Offered, Some("north"));
    let mut root = crate::root::plan::tests::root();
    root.spec.flux.bursting.budget = serde_saphyr::from_str("{brokerHours: 1}").unwrap();
    root.status.as_mut().unwrap().bursts_spent.broker_seconds = 3_600;
    world.root = Some(root);
    world.step().is(BurstPhase::Draining, Some("north"));
    world.confirm("north").step().is(BurstPhase::Spent, None);
    assert_eq!(world.burst.status.as_ref().unwrap().message, "brokerHours 1 of the root is spent");
}

#[test]
fn a_budget_that_cannot_be_read_ends_nothing_and_places_nothing() {
    let mut world = World::new();
    world.named(&["west", "north"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    let mut root = crate::root::plan::tests::root();
    root.spec.flux.bursting.budget.broker_hours = Some(serde_json::from_str("-1").unwrap());
    world.root = Some(root);
    world.step().is(BurstPhase::Ready, Some("west"));
    let reason = |world: &World| {
        let status = world.burst.status.as_ref().unwrap();
        tributary_cluster::conditions::find(&status.conditions, "Budget").unwrap().reason.clone()
    };
    assert_eq!(reason(&world), "Unreadable");
    world.say("west", BurstPhase::Evicted).step();
    world.confirm("west").step().is(BurstPhase::Spent, None);
    let said = "the budget of the root cannot be read: brokerHours -1 is no number from 0 up";
    assert_eq!(world.burst.status.as_ref().unwrap().message, said);
}

#[test]
fn the_peer_that_is_asked_first_has_a_moment_to_connect() {
    for connects in [true, false] {
        let mut world = World::new();
        world.named(&["west", "north"]).cut("west").step().is(BurstPhase::Pending, None);
        let message = world.burst.status.as_ref().unwrap().message.clone();
        assert_eq!(message, "west is asked first, and is not connected for the moment");
        world.after(8).is(BurstPhase::Pending, None);
        if connects {
            world.connect("west").step().is(BurstPhase::Offered, Some("west"));
        } else {
            world.after(1).step().is(BurstPhase::Offered, Some("north"));
        }
    }
}

#[test]
fn a_burst_that_a_peer_released_by_itself_is_offered_again_once_that_is_confirmed() {
    let mut world = World::new();
    world.named(&["west"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    world.say("west", BurstPhase::Released).step().is(BurstPhase::Pending, None);
    world.step().is(BurstPhase::Pending, None);
    world.confirm("west").step().is(BurstPhase::Offered, Some("west"));
    assert_eq!(offer::desired(&world.burst).hosted_uid, None);
    // A peer that does so again is not asked at once.
    world.say("west", BurstPhase::Ready).step().say("west", BurstPhase::Released).step().confirm("west").step();
    world.is(BurstPhase::Pending, None);
    let status = world.burst.status.clone().unwrap();
    assert!(status.message.starts_with("west: let go of it 2 times in a row"), "{}", status.message);
    world.after(5).step().is(BurstPhase::Offered, Some("west"));
}

#[test]
fn an_accepted_peer_is_sticky_and_an_untouched_one_follows_the_users_choice() {
    let mut world = World::new();
    world.named(&["west"]).step().edit(|spec| spec.peers = vec!["north".into()]);
    world.step().is(BurstPhase::Offered, Some("north"));
    world.say("north", BurstPhase::Provisioning).step().edit(|spec| spec.peers = vec!["west".into()]);
    world.step().is(BurstPhase::Provisioning, Some("north"));
}

#[test]
fn an_offer_that_cannot_be_sent_moves_on_and_a_change_that_cannot_is_a_condition() {
    let delivered = |world: &World| {
        let status = world.burst.status.clone().unwrap();
        status.conditions.into_iter().find(|one| one.type_ == "Delivered").map(|one| (one.status, one.message))
    };
    let mut world = World::new();
    world.named(&["west", "north"]).step();
    world.undeliverable.insert("west".into(), "it is too long".into());
    world.step().is(BurstPhase::Offered, Some("north"));
    assert_eq!(world.burst.status.as_ref().unwrap().refusals[0].reason, "Undeliverable");
    assert_eq!(delivered(&world), None, "the offer that counts can be sent");

    world.say("north", BurstPhase::Ready).step().give_certificate("north");
    world.undeliverable.insert("north".into(), "its version does not know it".into());
    world.step().is(BurstPhase::Ready, Some("north"));
    let message = "changes do not reach north: its version does not know it".to_owned();
    assert_eq!(delivered(&world), Some(("False".into(), message)));
    world.undeliverable.clear();
    world.step().step().is(BurstPhase::Ready, Some("north"));
    assert_eq!(delivered(&world).map(|(status, _)| status), Some("True".into()));
    assert_eq!(
        world.notes.iter().filter(|reason| *reason == "Undeliverable").count(),
        2,
        "one each: {:?}",
        world.notes
    );
}

proptest::proptest! {
    /// Whatever happens, a slot leaves a peer that has the certificate only by that peer's word, or behind a tunnel after its
    /// lease.
    #[test]
    fn ranks_never_run_twice(events in proptest::collection::vec(0..12_u8, 1..60), tunnel in proptest::bool::ANY) {
        let mut world = World::new();
        world.burst.spec.tunnel = tunnel;
        let (mut holder, mut contact) = (None::<String>, 0);
        let reserved = reserved_for(Duration::from_secs(300), Duration::from_secs(60));
        for event in events {
            match event {
                0 => { world.cut("north"); }
                1 => { world.connect("north"); }
                2 => { world.cut("west"); }
                3 => { world.connect("west"); }
                4 => { world.edit(|spec| spec.release = !spec.release); }
                5 => { world.secs += 100; }
                6..=8 => {
                    // The placed peer accepts, and gets the certificate.
                    let placed = world.burst.status.as_ref().and_then(|status| status.peer.clone());
                    let open = !world.burst.spec.release;
                    if let Some(peer) = placed.filter(|peer| open && world.peers[peer.as_str()].connected()) {
                        world.say(&peer, BurstPhase::Ready);
                        world.give_certificate(&peer);
                        holder = Some(peer);
                    }
                }
                9 => {
                    if let Some(peer) = holder.clone().filter(|peer| world.peers[peer.as_str()].connected()) {
                        world.say(&peer, BurstPhase::Evicted);
                        world.step();
                        holder = None;
                    }
                }
                10 => {
                    let draining: Vec<_> = world.withdrawing.iter().filter(|peer| world.peers[*peer].connected()).cloned().collect();
                    for peer in draining {
                        world.confirm(peer.as_str());
                        holder = holder.filter(|holder| holder != peer.as_str());
                    }
                }
                _ => {}
            }
            world.step();
            if let Some(peer) = &holder {
                if world.peers[peer.as_str()].in_session() { contact = world.secs; }
                let placed = world.burst.status.as_ref().unwrap().peer.clone();
                if placed.as_ref() != Some(peer) {
                    let since = world.secs - contact;
                    proptest::prop_assert!(tunnel && since >= reserved.as_secs(), "left {peer} for {placed:?} after {since}");
                    holder = None;
                }
            }
        }
    }
}
