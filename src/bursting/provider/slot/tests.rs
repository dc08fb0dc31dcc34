use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::duration::Lasting;
use tributary_api::peer::ImportPolicy;
use tributary_clock::{Mono, Now};
use tributary_contract::{LeadAddress, PeerState};
use tributary_flux::{RankMap, Slot};
use tributary_render::nodes::Amounts;

use super::*;
use crate::nodes::NodeView;
use crate::preflight::lead::Seen;
use crate::provider::admission::tests::offer;
use crate::provider::grants::Few;
use crate::provider::ledger::Ledger;
use crate::provider::memory::SecretState;
use crate::template::BurstTemplate;
use crate::timing::Times;

mod gateway;
mod kueue;
mod lead;
mod left;
mod names;
mod not_started;
mod provisioning;
mod rate;
mod refused;
mod returned;
mod scale_up;
mod unwanted;
mod warm;
mod whole;

/// A provider's slot, as a step sees it.
struct World {
    claims: BTreeMap<ClaimKey, Wanted>,
    peers: BTreeMap<PeerName, PeerView>,
    hosted: Option<HostedBurst>,
    mini_cluster: Option<MiniCluster>,
    memory: Memory,
    ours: Ours,
    inlet: Result<SocketAddr, String>,
    listed: BTreeMap<PeerName, BTreeSet<BurstUid>>,
    before: Before,
    simulated: bool,
    /// No peer is heard.
    away: bool,
    /// For so many seconds.
    away_for: u64,
    pods: Vec<PodView>,
    warmers: Vec<PodView>,
    surplus: bool,
    secs: u64,
    /// What the wall clock shows beyond a moment that is long ago.
    wall: i64,
    grants: Few,
    rates: Rates,
}

impl World {
    fn new() -> Self {
        let import = ImportPolicy { namespaces: vec!["*".into()], ..ImportPolicy::default() };
        let peer = PeerView {
            state: PeerState::Connected,
            cluster_uid: Some("uid".into()),
            import: Some(import),
            ..PeerView::default()
        };
        Self {
            claims: BTreeMap::new(),
            peers: [("east".into(), peer.clone()), ("south".into(), peer)].into(),
            hosted: None,
            mini_cluster: None,
            memory: Memory::default(),
            ours: ours(),
            inlet: Err("there is none".into()),
            listed: BTreeMap::new(),
            before: Before::default(),
            simulated: false,
            away: false,
            away_for: 0,
            pods: Vec::new(),
            warmers: Vec::new(),
            surplus: false,
            grants: Few::default(),
            rates: Rates::default(),
            secs: 0,
            wall: 0,
        }
    }

    fn claim(&mut self, peer: &str, desired: DesiredBurst) -> ClaimKey {
        let key: ClaimKey = (peer.into(), desired.uid.clone());
        self.listed.entry(key.0.clone()).or_default().insert(key.1.clone());
        self.claims.insert(key.clone(), Wanted::Burst(Arc::new(desired)));
        key
    }

    fn host(&mut self, peer: &str, desired: &DesiredBurst) {
        let template = BurstTemplate::parse(&desired.template).unwrap();
        let mut hosted = materialize::hosted_burst("flux", &peer.into(), &"uid".into(), desired, &template);
        hosted.metadata.uid = Some("hosted-uid".into());
        self.hosted = Some(hosted);
    }

    /// A term begins so many seconds after the last renewal of the leader before.
    fn led_until(&mut self, secs_ago: u32) {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let renewed = now.checked_sub(Duration::from_secs(secs_ago.into())).unwrap();
        self.before = Before::of(Some(renewed), [], &self.hosted, now);
    }

    fn now(&self) -> Now {
        let mono = Mono::from_start(Duration::from_secs(self.secs));
        Now { mono, wall: Timestamp::from_second(1_000_000 + self.wall).unwrap() }
    }

    fn step(&mut self) -> SlotStep {
        let node = NodeView {
            schedulable: true,
            simulated: self.simulated,
            allocatable: Amounts { milli_cores: 32_000, ..Amounts::default() },
            ..NodeView::default()
        };
        // One that takes nothing.
        let other = NodeView { allocatable: Amounts::default(), ..node.clone() };
        let (nodes, ledger) = ([("n".to_owned(), node), ("other".to_owned(), other)].into(), Ledger::default());
        let key = ("flux".to_owned(), "lake-burst-0".to_owned());
        let facts = Facts {
            import: None,
            draining: false,
            slot: &key,
            namespace_exists: true,
            own_namespace: "tributary-system",
            ledger: &ledger,
            nodes: &nodes,
            pods: &Vec::new(),
        };
        let now = self.now();
        let mut contacts = Contacts::begin(Mono::from_start(Duration::from_secs(self.secs - self.away_for)));
        contacts.observe(self.peers.keys().filter(|_| !self.away), now.mono);
        let step = step(&SlotView {
            now,
            grace: Times::default().grace,
            key: &key,
            claims: &self.claims,
            listed: &self.listed,
            peers: &self.peers,
            contacts: &contacts,
            before: &self.before,
            hosted: self.hosted.as_ref(),
            mini_cluster: self.mini_cluster.as_ref(),
            pods: &self.pods,
            warmers: &self.warmers,
            facts: &facts,
            grants: &self.grants,
            ours: &self.ours,
            inlet: &self.inlet,
            surplus: self.surplus,
            memory: &self.memory,
            rates: &self.rates,
        });
        (self.memory, self.rates) = (step.memory.clone(), step.rates.clone());
        step
    }
}

/// A cluster with a range of pods.
fn ours() -> Ours {
    let mut ours = Ours::default();
    let node = tributary_cluster::ObjectKey::cluster_scoped("n");
    ours.pod_ranges.change(&node, Vec::new(), vec!["10.244.0.0/16".parse().unwrap()]);
    ours
}

fn held() -> SecretState {
    SecretState::Held { digest: offer().credential_digest, public_key: "key".into(), looked: Some(Mono::ZERO) }
}

fn said(step: &SlotStep, key: &ClaimKey) -> ObservedBurst {
    match &step.answers[key] {
        Answer::Observed(said) => (**said).clone(),
        Answer::Nothing => panic!("nothing was said of {key:?}"),
    }
}

fn status(step: &SlotStep) -> Option<HostedBurstStatus> {
    let status = |change: &Change| match change {
        Change::Status(status) => Some((**status).clone()),
        _ => None,
    };
    step.changes.iter().rev().find_map(status)
}

fn draining(world: &World) -> Option<String> {
    world.hosted.as_ref().unwrap().status.as_ref().unwrap().draining_reason.clone()
}

fn reason(step: &SlotStep, key: &ClaimKey) -> Option<RejectionReason> {
    said(step, key).rejection.map(|rejection| rejection.reason)
}

fn of_another_root() -> DesiredBurst {
    let mut other = offer();
    other.uid = "other-uid".into();
    other.root.uid = "other-root".into();
    other
}

#[test]
fn a_name_belongs_to_one_root_at_a_time() {
    let mut world = World::new();
    let (first, second) = (world.claim("east", offer()), world.claim("south", of_another_root()));
    let step = world.step();
    let admitted = step.changes.iter().filter(|change| matches!(change, Change::Admit { .. })).count();
    assert_eq!(admitted, 1, "both at once: one of them");
    assert_eq!(reason(&step, &second), Some(RejectionReason::NameTaken));

    world.host("east", &offer());
    let step = world.step();
    assert_eq!(reason(&step, &second), Some(RejectionReason::NameTaken));
    assert_eq!(reason(&step, &first), None);
    let not_draining =
        |change: &Change| !matches!(change, Change::DeleteHosted { .. } | Change::DeleteMiniCluster { .. });
    assert!(step.changes.iter().all(not_draining));
}

#[test]
fn an_offer_waits_at_the_door_until_the_namespace_has_room() {
    let mut world = World::new();
    let key = world.claim("east", offer());
    world.grants = Few { limit: Some(4), taken: 4 };
    let step = world.step();
    assert_eq!((reason(&step, &key), step.changes.len()), (Some(RejectionReason::NoRoomInQueue), 0));
    // Whatever the API server said of it before: nothing remembered stands in the way.
    world.grants.taken = 0;
    assert!(matches!(world.step().changes.as_slice(), [Change::Admit { .. }]));
    // Once it is here, it stays, however little is granted from then on.
    world.host("east", &offer());
    world.grants.limit = Some(0);
    assert_eq!(reason(&world.step(), &key), None);
}

#[test]
fn another_root_of_the_same_peer_is_no_successor() {
    let mut world = World::new();
    world.host("east", &offer());
    let mut other = of_another_root();
    other.root.name = "pond".into();
    let key = world.claim("east", other);
    world.claim("east", offer());
    assert_eq!(reason(&world.step(), &key), Some(RejectionReason::NameTaken));
}

#[test]
fn what_was_wanted_in_an_earlier_session_replaces_nothing() {
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    let mut other = of_another_root();
    other.root.name = offer().root.name;
    let (peer, uid) = world.claim("east", other);
    world.listed.clear();
    let drains = |world: &mut World| status(&world.step()).and_then(|status| status.draining_reason);
    assert_eq!(drains(&mut world), None);
    world.listed.insert(peer, [uid].into());
    assert_eq!(drains(&mut world).as_deref(), Some("Replaced"));
}

#[test]
fn a_mini_cluster_of_a_local_user_is_left_alone() {
    let mut world = World::new();
    let key = world.claim("east", offer());
    world.mini_cluster = Some(MiniCluster::default());
    let step = world.step();
    assert_eq!(reason(&step, &key), Some(RejectionReason::NameTaken));
    assert_eq!(step.changes, []);
}

#[test]
fn what_the_api_server_refused_is_not_tried_again_until_something_changes() {
    let mut world = World::new();
    let key = world.claim("east", offer());
    let step = world.step();
    let [Change::Admit { fingerprint, .. }] = step.changes.as_slice() else { panic!("{:?}", step.changes) };
    let (fingerprint, rejection) = (fingerprint.clone(), Rejection::new(RejectionReason::NotRenderable, "no"));
    // The next try comes later each time, and is told.
    for (secs, next) in [(0, 5), (5, 15), (15, 35), (35, 75), (75, 155), (155, 315), (315, 615), (615, 915)] {
        world.secs = secs;
        assert_eq!(world.step().changes.len(), 1, "after {secs} s");
        world.memory.refused(key.clone(), fingerprint.clone(), rejection.clone(), world.now());
        let step = world.step();
        let (now, left) = (world.now(), Duration::from_secs(next - secs));
        let at = (now.wall + left).strftime("%H:%M:%S UTC");
        assert_eq!(said(&step, &key).message, format!("no; the next try is at {at}"));
        assert_eq!((step.changes.len(), step.wake), (0, Some(left)));
        assert_eq!(reason(&step, &key), Some(RejectionReason::NotRenderable));
    }

    world.peers.get_mut("east").unwrap().generation = Some(9);
    assert_eq!(world.step().changes.len(), 1, "the policy changed");
    world.peers.get_mut("east").unwrap().generation = None;
    world.claim("east", DesiredBurst { offer: "asked-again".into(), ..offer() });
    assert_eq!(world.step().changes.len(), 1, "somebody asked again");
    world.claim("east", offer());
    assert_eq!(world.step().changes.len(), 0, "it is the same offer");
}

#[test]
fn what_was_admitted_cannot_be_changed_by_a_later_word() {
    let mut world = World::new();
    world.host("east", &offer());
    let evil = DesiredBurst {
        size: 99,
        template: serde_json::json!({"pod": {"hostPID": true}}),
        credential_digest: "other".into(),
        ..offer()
    };
    world.claim("east", evil);
    let step = world.step();
    let update = step.changes.iter().find_map(|change| match change {
        Change::Update(hosted) => Some(hosted),
        _ => None,
    });
    let spec = &update.unwrap().spec;
    assert_eq!((spec.size, &spec.template), (3, &offer().template));
    assert_eq!(spec.credential_digest, offer().credential_digest);
}

/// Whether brokers are made in a step, and whether the lead is dialled.
fn brokers_and_dials(step: &SlotStep) -> (bool, bool) {
    let brokers = |change: &Change| matches!(change, Change::Materialize(made) if made.mini_cluster.is_some());
    let dials = |change: &Change| matches!(change, Change::Dial(_));
    (step.changes.iter().any(brokers), step.changes.iter().any(dials))
}

#[test]
fn pods_wait_for_a_look_at_the_lead_and_are_made_whatever_it_was() {
    let lead = DesiredBurst {
        lead: Some(LeadAddress { address: "192.0.2.1".into(), port: 30050 }),
        arch: Some("arm64".into()),
        ..offer()
    };
    let mut world = World::new();
    world.host("east", &lead);
    let key = world.claim("east", lead);
    world.memory.secret = held();
    let step = world.step();
    assert_eq!(brokers_and_dials(&step), (false, true));
    let Some(Change::Dial(target)) = step.changes.into_iter().find(|change| matches!(change, Change::Dial(_))) else {
        panic!("it is dialled")
    };
    assert_eq!(target.ends, ["192.0.2.1:30050".parse().unwrap()]);
    world.memory.attempt.saw(&target, Seen::NoAnswer, Mono::ZERO);
    assert_eq!(brokers_and_dials(&world.step()), (false, false), "the time that every look gets");
    world.secs = 1;
    let step = world.step();
    assert_eq!(brokers_and_dials(&step), (true, false), "it informs, and prevents nothing");
    let told: Vec<_> = said(&step, &key).preflight.into_iter().map(|one| (one.check, one.outcome)).collect();
    use tributary_contract::Check;
    use tributary_contract::Outcome::Unknown;
    assert_eq!(
        told,
        [
            (Check::LeadAddress, Unknown),
            (Check::Certificate, Unknown),
            (Check::FluxVersion, Unknown),
            (Check::ViewImage, Unknown),
            (Check::Architecture, Unknown),
            (Check::User, Unknown)
        ]
    );
    let conditions = status(&step).unwrap().conditions;
    let preflight = tributary_cluster::conditions::find(&conditions, "Preflight").unwrap();
    assert_eq!((preflight.status.as_str(), preflight.reason.as_str()), ("False", "LeadAddress"));
    assert!(preflight.message.contains("192.0.2.1:30050 did not answer"), "{}", preflight.message);
}

#[test]
fn brokers_are_online_where_a_probe_says_so_and_never_on_simulated_nodes() {
    let lead = Some(LeadAddress { address: "192.0.2.1".into(), port: 30050 });
    let mut world = World::new();
    world.host("east", &DesiredBurst { lead: lead.clone(), ..offer() });
    let key = world.claim("east", DesiredBurst { lead, ..offer() });
    world.memory.secret = held();
    world.mini_cluster = Some(made(world.hosted.as_ref().unwrap()));
    let online = |step: &SlotStep| {
        tributary_cluster::conditions::find(&status(step).unwrap().conditions, "BrokersOnline").unwrap().status.clone()
    };
    let step = world.step();
    assert_eq!((said(&step, &key).phase, online(&step).as_str()), (BurstPhase::Ready, "True"));
    assert!(said(&step, &key).times.ready.is_some());
    assert!(said(&step, &key).preflight.iter().all(|one| one.outcome != tributary_contract::Outcome::Fail));
    world.simulated = true;
    let step = world.step();
    let said = said(&step, &key);
    assert_eq!((said.phase, online(&step).as_str(), said.times.ready), (BurstPhase::Ready, "Unknown", None));
    assert!(said.simulated && said.message.contains("not checkable"), "{}", said.message);
    assert_eq!(brokers_and_dials(&step), (true, false), "nobody is dialled, and nothing waits");
}

/// A burst that is provisioned, with these pods.
fn provisioned(offer: DesiredBurst, pods: Vec<PodView>) -> World {
    let mut world = World::new();
    world.host("east", &offer);
    world.claim("east", offer);
    world.memory.secret = held();
    world.mini_cluster = Some(made(world.hosted.as_ref().unwrap()));
    World { pods, ..world }
}

fn pod(index: u32, node: &str) -> PodView {
    let (name, node) = (format!("lake-burst-0-{index}-x"), Some(node.to_owned()).filter(|node| !node.is_empty()));
    PodView { name, index: Some(index), running: node.is_some(), node, ..PodView::default() }
}

#[test]
fn why_a_burst_ends_is_stored_before_anything_goes() {
    let mut world = World::new();
    world.host("east", &offer());
    world.claims.insert(("east".into(), "burst-uid".into()), Wanted::Tombstone);
    let step = world.step();
    let [Change::Status(status)] = step.changes.as_slice() else { panic!("{:?}", step.changes) };
    assert_eq!(status.draining_reason.as_deref(), Some("Released"));
    world.hosted.as_mut().unwrap().status = Some((**status).clone());
    assert!(world.step().changes.contains(&Change::LookLeft), "not before the Job is known to be gone");
    world.memory.looked_empty = true;
    assert!(world.step().changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() }));
}

/// A MiniCluster as it would be made for what is hosted.
fn made(hosted: &HostedBurst) -> MiniCluster {
    let mut made = materialize::materials(hosted, &[], true, None).unwrap().mini_cluster.unwrap();
    made.metadata.uid = Some("mc-uid".into());
    made.status = Some(tributary_api::minicluster::MiniClusterStatus { ready: Some(3), ..Default::default() });
    made
}

#[test]
fn brokers_drain_in_the_time_their_pods_get_and_nothing_waits_before() {
    let mut world = World::new();
    world.host("east", &offer());
    let hosted = world.hosted.as_mut().unwrap();
    hosted.status = Some(HostedBurstStatus {
        draining_since: Some(Time(Timestamp::from_second(1_000_000).unwrap())),
        draining_reason: Some("LeaseExpired".into()),
        ..HostedBurstStatus::default()
    });
    let mini_cluster = made(hosted);
    assert_eq!(mini_cluster.spec.flux.drain_seconds, Some(60));
    world.mini_cluster = Some(mini_cluster);
    assert!(world.step().changes.contains(&Change::DeleteMiniCluster { uid: "mc-uid".into() }));
}

fn asks(change: &Change) -> bool {
    matches!(change, Change::RequestCredential { .. })
}

/// The danger: the certificate reaches a provider that gives the burst back, since a name it needs is another's.
#[test]
fn a_new_burst_asks_for_its_certificate_once_its_first_names_are_taken_and_looks_at_no_secret() {
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    let step = world.step();
    let tries = |change: &Change| matches!(change, Change::Materialize(_));
    assert!(step.changes.iter().any(tries) && !step.changes.iter().any(asks), "{:?}", step.changes);
    assert_eq!(step.wake, Some(Duration::ZERO));
    world.hosted.as_mut().unwrap().status = status(&step);
    let next = world.step();
    assert!(next.changes.iter().any(asks), "{:?}", next.changes);
    assert!(![step, next].iter().any(|step| step.changes.contains(&Change::LookSecret)));
    // A new leader does not know what was stored since.
    world.memory = Memory::default();
    let step = world.step();
    assert!(step.changes.contains(&Change::LookSecret) && !step.changes.iter().any(asks), "{:?}", step.changes);
}

#[test]
fn a_certificate_that_a_failed_step_did_not_ask_for_is_asked_for_again() {
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    world.memory.secret = SecretState::Missing { again: Mono::ZERO, message: String::new() };
    let step = world.step();
    let at = step.changes.iter().position(asks).unwrap();
    // A change before it fails: what follows is not carried out.
    world.memory.left_undone(&step.changes[at..]);
    world.hosted.as_mut().unwrap().status = Some(HostedBurstStatus::default());
    let step = world.step();
    assert!(step.changes.contains(&Change::LookSecret), "{:?}", step.changes);
    world.memory.secret = SecretState::Missing { again: Mono::ZERO, message: String::new() };
    let step = world.step();
    assert!(step.changes.iter().any(asks));
    // One that failed after it was asked: the answer is on its way.
    world.memory.left_undone(&step.changes[at + 1..]);
    assert_eq!(world.memory.secret, SecretState::Asked);
}

#[test]
fn a_burst_that_was_here_for_long_enough_ends_as_an_eviction() {
    let mut world = World::new();
    world.host("east", &offer());
    let key = world.claim("east", offer());
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_duration = Some(Lasting::of_seconds(600));
    let created = |secs: i64| Some(Time(Timestamp::from_second(1_000_000 - secs).unwrap()));
    world.memory.secret = SecretState::Asked;
    world.hosted.as_mut().unwrap().metadata.creation_timestamp = created(599);
    let step = world.step();
    assert_eq!((said(&step, &key).phase == BurstPhase::Draining, step.wake), (false, Some(Duration::from_secs(1))));
    world.hosted.as_mut().unwrap().metadata.creation_timestamp = created(600);
    let Some(Change::Status(status)) = world.step().changes.into_iter().next() else { panic!("it drains") };
    assert_eq!(status.draining_reason.as_deref(), Some("TimeLimit"));
    world.hosted.as_mut().unwrap().status = Some(*status);
    world.memory.looked_empty = true;
    let step = world.step();
    assert!(step.changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() }));
    world.hosted = None;
    for hosted_uid in [Some("hosted-uid".to_owned()), None] {
        world.claim("east", DesiredBurst { hosted_uid, ..offer() });
        let step = world.step();
        assert_eq!(said(&step, &key).phase, BurstPhase::Evicted);
        assert!(said(&step, &key).message.contains("maxDuration"), "{}", said(&step, &key).message);
        assert_eq!(step.changes, []);
    }
    // The root let go of it, and somebody asks for it again.
    world.claims.insert(key.clone(), Wanted::Tombstone);
    world.step();
    world.claim("east", offer());
    assert!(matches!(world.step().changes.as_slice(), [Change::Admit { .. }]));
}

#[test]
fn a_peer_that_is_drained_gives_back_what_it_has_and_gets_nothing() {
    let mut world = World::new();
    world.host("east", &offer());
    let key = world.claim("east", offer());
    world.peers.get_mut("east").unwrap().draining = true;
    let Some(Change::Status(status)) = world.step().changes.into_iter().next() else { panic!("it drains") };
    assert_eq!(status.draining_reason.as_deref(), Some("PeerDrained"));
    world.hosted.as_mut().unwrap().status = Some(*status);
    world.memory.looked_empty = true;
    world.step();
    world.hosted = None;
    world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Released, "it may go elsewhere");
    world.claim("east", offer());
    world.listed.clear();
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Pending, "it may have said so before it was lost");
    world.listed.insert("east".into(), [key.1.clone()].into());
    assert_eq!(reason(&world.step(), &key), Some(RejectionReason::Draining));
    world.peers.get_mut("east").unwrap().draining = false;
    assert!(matches!(world.step().changes.as_slice(), [Change::Admit { .. }]));
}
