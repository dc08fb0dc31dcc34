//! What a MiniCluster says of its bursts: a row for each, and the condition `BurstsReady` with what keeps them. Pure.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use tributary_api::burst::{Burst, BurstStatus as Status};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::condition::{
    ADMITTED, BUDGET, BURSTS_READY, DELIVERED, LEAD_ADDRESS, PREFLIGHT, RESTART_REQUIRED,
};
use tributary_api::labels::reason;
use tributary_api::minicluster::{BurstStatus, MiniCluster};
use tributary_cluster::conditions::{Statement, find};
use tributary_flux::RankMap;

use super::exposure::PeerUids;

/// Why there is no lead address that does not come by itself. Others are steps on the way.
const NO_ADDRESS: [&str; 2] = ["NoUsableAddress", "WrongAddress"];

/// Why a burst is placed nowhere.
const NO_CANDIDATE: &str = "NoCandidate";

/// The Bursts that there are; and of those that somebody deleted (`before` knows them), who holds their slots: with the Burst
/// alone, that would be forgotten. `digest` is that of the certificate that the instance runs with.
pub(super) fn rows(
    root: &MiniCluster,
    bursts: &[Arc<Burst>],
    map: Option<&RankMap>,
    before: &[BurstStatus],
    digest: Option<&String>,
) -> Vec<BurstStatus> {
    let declared = |slot: &str| map.is_none_or(|map| map.ranks(slot).is_some());
    let deleted = before.iter().filter(|known| {
        let holder = known.holder.as_ref().filter(|one| digest.is_none_or(|digest| one.credential_digest == *digest));
        holder.is_some() && declared(&known.name) && bursts.iter().all(|burst| burst.spec.slot != known.name)
    });
    let deleted = deleted.map(|known| BurstStatus { ready: 0, ..known.clone() });
    bursts.iter().map(|burst| row(root, burst, map)).chain(deleted).collect()
}

fn row(root: &MiniCluster, burst: &Burst, map: Option<&RankMap>) -> BurstStatus {
    let none = Status::default();
    let status = burst.status.as_ref().unwrap_or(&none);
    let ranks = map.and_then(|map| map.ranks(&burst.spec.slot)).map(|ranks| match ranks.len() {
        1 => ranks.start.to_string(),
        _ => format!("{}-{}", ranks.start, ranks.end.saturating_sub(1)),
    });
    let trouble = trouble(root, burst, status);
    let (reason, message) =
        trouble.map_or_else(|| (None, on_its_way(status)), |(reason, message)| (Some(reason), message));
    BurstStatus {
        name: burst.spec.slot.clone(),
        phase: status.phase.to_string(),
        holder: burst.holder().cloned(),
        size: i32::try_from(burst.wanted(root)).unwrap_or(i32::MAX),
        ready: i32::try_from(status.ready_brokers).unwrap_or(i32::MAX),
        ranks: ranks.unwrap_or_default(),
        reason,
        message,
        peer: status.peer.clone(),
    }
}

/// What keeps a burst from being what its root asks for, and does not go by itself within the next steps: reason and sentence.
fn trouble(root: &MiniCluster, burst: &Burst, status: &Status) -> Option<(String, String)> {
    let failed = |type_: &str| find(&status.conditions, type_).filter(|one| one.status == "False");
    let said = |one: &Condition| (one.reason.clone(), one.message.clone());
    // An older agent, or none yet, has said nothing of it.
    let found = match status.phase {
        _ if burst.status.is_none() || burst.spec.release => None,
        BurstPhase::Ready => burst.shortfall(root).map(|sentence| (RESTART_REQUIRED.to_owned(), sentence)),
        BurstPhase::Pending => Some((NO_CANDIDATE.to_owned(), status.message.clone())),
        BurstPhase::Rejected | BurstPhase::Evicted => {
            let reason = failed(ADMITTED).map(|one| one.reason.clone());
            Some((reason.unwrap_or_else(|| status.phase.to_string()), status.message.clone()))
        }
        BurstPhase::Lost => Some(("PeerUnreachable".to_owned(), status.message.clone())),
        BurstPhase::Spent => Some(failed(BUDGET).map_or_else(|| ("Spent".to_owned(), status.message.clone()), said)),
        BurstPhase::Offered
        | BurstPhase::Accepted
        | BurstPhase::Provisioning
        | BurstPhase::Queued
        | BurstPhase::ScalingUp
        | BurstPhase::Joining => failed(DELIVERED)
            .or_else(|| failed(PREFLIGHT))
            .or_else(|| failed(LEAD_ADDRESS).filter(|one| NO_ADDRESS.contains(&one.reason.as_str())))
            .map(said),
        BurstPhase::Draining
        | BurstPhase::Released
        | BurstPhase::Asleep
        | BurstPhase::Finished
        | BurstPhase::Unknown(_) => None,
    };
    found.filter(|(_, sentence)| !sentence.is_empty())
}

/// What a burst waits for. While there is no lead address, a peer says only that it does not know it.
fn on_its_way(status: &Status) -> String {
    let waits = (BurstPhase::Offered..=BurstPhase::Joining).contains(&status.phase);
    let lead = find(&status.conditions, LEAD_ADDRESS).filter(|said| waits && said.status == "False");
    lead.map_or_else(|| status.message.clone(), |said| said.message.clone())
}

/// Slots that `root` declares, that its instance has ranks for, and of which there is no Burst.
pub(super) fn unmade(root: &MiniCluster, map: &RankMap, rows: &[BurstStatus]) -> Vec<String> {
    let (name, is_root) = (root.name_any(), root.spec.flux.lead_broker().is_none());
    let slots = root.spec.bursts(&name).filter(|_| is_root).map(|(slot, _)| slot);
    slots.filter(|slot| map.ranks(slot).is_some() && rows.iter().all(|row| row.name != *slot)).collect()
}

/// How many of those that are wanted are ready, `unmade` ones included, and why the first that fails is not.
pub(super) fn summary(rows: &[BurstStatus], unmade: usize) -> Option<String> {
    if rows.is_empty() && unmade == 0 {
        return None;
    }
    let awake: Vec<_> = rows.iter().filter(|row| !is_asleep(row)).collect();
    let count = format!("{}/{}", awake.iter().filter(|row| is_ready(row)).count(), awake.len() + unmade);
    Some(match awake.iter().find_map(|row| row.reason.as_ref()) {
        Some(reason) => format!("{count} {reason}"),
        None => count,
    })
}

/// `BurstsReady`: with the reason of the first that fails, and for each that is not ready what keeps it, failures first.
pub(super) fn statement(rows: &[BurstStatus], unmade: &[String]) -> Option<Statement> {
    let (failing, coming): (Vec<_>, Vec<_>) =
        rows.iter().filter(|row| is_missed(row)).partition(|row| row.reason.is_some());
    let missing: Vec<&BurstStatus> = failing.into_iter().chain(coming).collect();
    if missing.is_empty() && unmade.is_empty() {
        let all = Statement::holds(BURSTS_READY, "AllReady", "every pod of every burst is ready");
        return (!rows.is_empty()).then_some(all);
    }
    let sentence = |row: &&BurstStatus| match row.message.as_str() {
        "" => format!("{} is {}", row.name, row.phase),
        message => format!("{}: {message}", row.name),
    };
    let unmade = unmade.iter().map(|slot| format!("{slot}: its Burst is not made (see the events)"));
    let sentences: Vec<String> = missing.iter().map(sentence).chain(unmade).collect();
    let reason = missing.first().and_then(|first| first.reason.clone());
    let reason = reason.unwrap_or_else(|| reason::NOT_ALL_READY.to_owned());
    Some(Statement::fails(BURSTS_READY, reason, sentences.join("; ")))
}

/// `BurstsReady` of a root with slots that name only peers that there are not, and whose Bursts do not say so themselves: they are
/// not made yet, or asleep.
pub(super) fn unplaceable(root: &MiniCluster, peers: &PeerUids, rows: &[BurstStatus]) -> Option<Statement> {
    let name = root.name_any();
    let sentences: Vec<String> = root
        .spec
        .bursts(&name)
        .filter(|(slot, cluster)| {
            let named = cluster.peers();
            let silent = rows.iter().find(|row| row.name == *slot).is_none_or(is_asleep);
            silent && !named.is_empty() && named.iter().all(|peer| !peers.contains_key(*peer))
        })
        .map(|(slot, cluster)| format!("{slot}: there is no ClusterPeer {}", cluster.peers().join(" nor ")))
        .collect();
    (!sentences.is_empty()).then(|| Statement::fails(BURSTS_READY, NO_CANDIDATE, sentences.join("; ")))
}

/// It is wanted, and not ready.
pub(super) fn is_missed(row: &BurstStatus) -> bool {
    !is_ready(row) && !is_asleep(row)
}

fn is_ready(row: &BurstStatus) -> bool {
    row.phase == BurstPhase::Ready.to_string() && row.ready >= row.size && row.reason.is_none()
}

/// Nobody wants its brokers at the moment: nothing is missing.
fn is_asleep(row: &BurstStatus) -> bool {
    row.phase == BurstPhase::Asleep.to_string()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tributary_api::burst::BurstSpec;
    use tributary_api::labels::condition::PLACED;
    use tributary_cluster::conditions::merged;

    use super::*;

    fn root() -> MiniCluster {
        let yaml = "
metadata: {name: lake}
spec: {size: 2, containers: [], flux: {bursting: {clusters: [{size: 3}, {name: pond, size: 2, peer: west}]}}}
";
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn burst(slot: &str, size: u32, phase: BurstPhase, message: &str, statements: Vec<Statement>) -> Arc<Burst> {
        let spec = BurstSpec { slot: slot.into(), size, max_size: size, ..BurstSpec::default() };
        let ready_brokers = if phase == BurstPhase::Ready { size } else { 0 };
        let conditions = merged(&[], statements, Some(1), Timestamp::UNIX_EPOCH);
        let message = message.to_owned();
        let status = Status { phase, ready_brokers, message, conditions, ..Status::default() };
        Arc::new(Burst { status: Some(status), ..Burst::new(slot, spec) })
    }

    fn told(bursts: &[Arc<Burst>]) -> (String, String, String) {
        let rows = rows(&root(), bursts, None, &[], None);
        let statement = statement(&rows, &[]).unwrap();
        (summary(&rows, 0).unwrap(), statement.reason, statement.message)
    }

    fn owned((count, reason, message): (&str, &str, &str)) -> (String, String, String) {
        (count.to_owned(), reason.to_owned(), message.to_owned())
    }

    /// The danger: `not ready: x`, and nobody knows why.
    #[test]
    fn whatever_keeps_a_burst_is_the_cause_failures_first() {
        let refused = burst(
            "pond",
            2,
            BurstPhase::Rejected,
            "west: refused (NamespaceNotFound): there is no namespace hpc",
            vec![Statement::fails(ADMITTED, "NamespaceNotFound", "west: there is no namespace hpc")],
        );
        let coming = burst("lake-burst-0", 3, BurstPhase::Joining, "west: 1 of 3 brokers are online", Vec::new());
        let ready = burst("lake-burst-0", 3, BurstPhase::Ready, "", Vec::new());
        let why = "pond: west: refused (NamespaceNotFound): there is no namespace hpc";
        assert_eq!(told(&[ready.clone(), refused.clone()]), owned(("1/2 NamespaceNotFound", "NamespaceNotFound", why)));
        let both = format!("{why}; lake-burst-0: west: 1 of 3 brokers are online");
        assert_eq!(told(&[coming.clone(), refused]), owned(("0/2 NamespaceNotFound", "NamespaceNotFound", &both)));
        let way = "lake-burst-0: west: 1 of 3 brokers are online";
        assert_eq!(told(&[coming]), owned(("0/1", "NotAllReady", way)));
        assert_eq!(told(&[ready]), owned(("1/1", "AllReady", "every pod of every burst is ready")));
        let unseen = Burst { status: None, ..(*burst("pond", 2, BurstPhase::Pending, "", Vec::new())).clone() };
        assert_eq!(told(&[unseen.into()]), owned(("0/1", "NotAllReady", "pond is Pending")));
        let asleep = burst("pond", 2, BurstPhase::Asleep, "nothing asks for it", Vec::new());
        assert_eq!(told(&[asleep]), owned(("0/0", "AllReady", "every pod of every burst is ready")));
    }

    /// The danger: a policy refuses the second Burst, and `BurstsReady` is true.
    #[test]
    fn a_burst_that_is_not_made_is_not_ready() {
        use tributary_flux::Slot;
        let slots = vec![Slot::root("lake", 2), Slot::burst("lake-burst-0", 3, None), Slot::burst("pond", 2, None)];
        let map = RankMap::new(slots).unwrap();
        let told = |map: &RankMap, bursts: &[Arc<Burst>]| {
            let rows = rows(&root(), bursts, None, &[], None);
            let unmade = unmade(&root(), map, &rows);
            let said = statement(&rows, &unmade).unwrap();
            (summary(&rows, unmade.len()).unwrap(), said.reason, said.message)
        };
        let ready = burst("lake-burst-0", 3, BurstPhase::Ready, "", Vec::new());
        let why = "pond: its Burst is not made (see the events)";
        assert_eq!(told(&map, std::slice::from_ref(&ready)), owned(("1/2", "NotAllReady", why)));
        let both = format!("lake-burst-0: its Burst is not made (see the events); {why}");
        assert_eq!(told(&map, &[]), owned(("0/2", "NotAllReady", &both)));
        let asleep = burst("pond", 2, BurstPhase::Asleep, "nothing asks for it", Vec::new());
        let all = owned(("1/1", "AllReady", "every pod of every burst is ready"));
        assert_eq!(told(&map, &[ready.clone(), asleep]), all);
        let smaller = RankMap::new(vec![Slot::root("lake", 2), Slot::burst("lake-burst-0", 3, None)]).unwrap();
        assert_eq!(told(&smaller, &[ready]), all, "it has no ranks before a restart, which RestartRequired says");
        let mut half = root();
        half.spec.flux.bursting.lead_broker.address = Some("a".to_owned());
        assert!(unmade(&half, &map, &[]).is_empty(), "it repeats what its root declares");
    }

    /// The danger: `peer: wset` of a burst on demand, which nobody sees until a job waits for it.
    #[test]
    fn a_burst_that_is_asleep_says_that_its_peers_do_not_exist() {
        let of = |phase| rows(&root(), &[burst("pond", 2, phase, "", Vec::new())], None, &[], None);
        let known = |peer: &str| PeerUids::from([(peer.to_owned(), "uid".to_owned())]);
        let said = unplaceable(&root(), &known("wset"), &of(BurstPhase::Asleep)).unwrap();
        assert_eq!((said.reason.as_str(), said.message.as_str()), (NO_CANDIDATE, "pond: there is no ClusterPeer west"));
        assert_eq!(unplaceable(&root(), &known("west"), &of(BurstPhase::Asleep)), None);
        assert_eq!(unplaceable(&root(), &known("wset"), &of(BurstPhase::Pending)), None, "its Burst says so");
    }

    /// The danger: 3 of 5 brokers, and the burst counts as ready.
    #[test]
    fn a_burst_that_only_a_restart_completes_is_not_ready() {
        let small = burst("lake-burst-0", 2, BurstPhase::Ready, "west: every wanted broker is online", Vec::new());
        let why = "lake-burst-0: 3 brokers are wanted, and the instance has ranks for 2: a restart is needed";
        assert_eq!(told(std::slice::from_ref(&small)), owned(("0/1 RestartRequired", "RestartRequired", why)));
        let row = &rows(&root(), &[small], None, &[], None)[0];
        assert_eq!((row.phase.as_str(), row.ready, row.size), ("Ready", 2, 3), "the phase stays the Burst's own");
    }

    /// The danger: "west: the lead broker's address is not known yet", for ever, and nobody hears of the load balancer.
    #[test]
    fn what_its_lead_address_waits_for_is_said() {
        let waits = vec![Statement::fails(LEAD_ADDRESS, "WaitingForLoadBalancer", "no load balancer")];
        let coming = |phase| told(&[burst("pond", 2, phase, "west: the address is not known yet", waits.clone())]);
        assert_eq!(coming(BurstPhase::Accepted), owned(("0/1", "NotAllReady", "pond: no load balancer")));
        let leaves = "pond: west: the address is not known yet";
        assert_eq!(coming(BurstPhase::Draining), owned(("0/1", "NotAllReady", leaves)));
    }

    #[test]
    fn each_failure_has_its_word_and_steps_on_the_way_have_none() {
        let fails =
            |type_: &'static str, reason: &str| vec![Statement::fails(type_, reason, format!("{reason} it is"))];
        for (phase, statements, word) in [
            (BurstPhase::Pending, fails(PLACED, "NoCandidate"), Some("NoCandidate")),
            (BurstPhase::Evicted, fails(ADMITTED, "EvictedByProvider"), Some("EvictedByProvider")),
            (BurstPhase::Evicted, Vec::new(), Some("Evicted")),
            (BurstPhase::Lost, Vec::new(), Some("PeerUnreachable")),
            (BurstPhase::Spent, fails(BUDGET, "Spent"), Some("Spent")),
            (BurstPhase::Joining, fails(PREFLIGHT, "LeadUnreachable"), Some("LeadUnreachable")),
            (BurstPhase::Accepted, fails(LEAD_ADDRESS, "NoUsableAddress"), Some("NoUsableAddress")),
            (BurstPhase::Accepted, fails(LEAD_ADDRESS, "WaitingForPod"), None),
            (BurstPhase::Offered, fails(DELIVERED, "Undeliverable"), Some("Undeliverable")),
            (BurstPhase::Provisioning, Vec::new(), None),
            (BurstPhase::Draining, fails(PLACED, "NoCandidate"), None),
        ] {
            let burst = burst("pond", 2, phase, "what it says", statements);
            let row = &rows(&root(), &[burst], None, &[], None)[0];
            assert_eq!(row.reason.as_deref(), word, "{phase:?}");
        }
    }
}
