//! What is frozen of a Burst while an instance runs. Pure.
//!
//! Tenants may patch a Burst to take it back or to try it again, and the right to do so covers its spec. Only agents write
//! its status. So the first status of an instance records what the Burst was made with, and from then on the record is
//! planned, offered and charged.

use tributary_api::burst::{Burst, BurstSpec};
use tributary_api::minicluster::MiniCluster;

/// What of `spec` is frozen, and the size that it began with. The rest is as if nothing was said.
pub(super) fn of(spec: &BurstSpec) -> BurstSpec {
    joined(spec.clone(), BurstSpec { size: spec.size, ..BurstSpec::default() })
}

/// `burst` as its record has it; `None` if nothing else is there, or there is no record yet. The spec of a new instance of
/// `root`, which the status does not speak of yet, stands.
pub(super) fn restored(burst: &Burst, root: Option<&MiniCluster>) -> Option<Burst> {
    let (spec, made) = (&burst.spec, burst.status.as_ref()?.frozen.as_deref()?);
    let incarnation = root.and_then(|root| root.status.as_ref()?.incarnation.as_ref());
    let is_new = spec.incarnation != made.incarnation && incarnation == Some(&spec.incarnation);
    // A peer runs one broker at least, and no more than were declared: no other size is charged.
    let size = spec.size.clamp(1, made.max_size.max(1));
    if is_new || size == spec.size && fixed(spec) == fixed(made) {
        return None;
    }
    Some(Burst { spec: joined(made.clone(), BurstSpec { size, ..spec.clone() }), ..burst.clone() })
}

/// What is frozen of `spec`, to be compared. Each field is named, so that a new one is not forgotten here.
fn fixed(spec: &BurstSpec) -> impl PartialEq {
    let BurstSpec {
        root,
        slot,
        index,
        size: _,
        max_size,
        cores,
        gpus,
        peers: _,
        selector: _,
        prefer: _,
        incarnation,
        rank_map,
        rank_map_digest,
        credential_digest,
        credential_secret,
        lead: _,
        tunnel: _,
        whole,
        flux_version,
        arch: _,
        template,
        lease,
        drain,
        budget: _,
        on_demand: _,
        warm: _,
        evictions,
        holder,
        release: _,
    } = spec;
    (
        (root, slot, index, max_size, cores, gpus, incarnation, rank_map, rank_map_digest),
        (credential_digest, credential_secret, whole, flux_version, template, lease, drain, evictions, holder),
    )
}

/// What is frozen of `made`, and the rest of `live`: a field that is not named here is frozen.
fn joined(made: BurstSpec, live: BurstSpec) -> BurstSpec {
    let BurstSpec { size, peers, selector, prefer, lead, tunnel, arch, budget, on_demand, warm, release, .. } = live;
    BurstSpec { size, peers, selector, prefer, lead, tunnel, arch, budget, on_demand, warm, release, ..made }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use jiff::Timestamp;
    use serde_json::json;
    use tributary_api::budget::Usage;
    use tributary_api::burst::BurstStatus;
    use tributary_clock::{Mono, Now};
    use tributary_contract::tunnel::Ends;
    use tributary_contract::{PeerName, PeerState, Price};

    use super::*;
    use crate::contact::Contacts;
    use crate::peers::PeerView;
    use crate::root::burst_status::{BurstView, step};
    use crate::root::{offer, plan};
    use crate::template::BurstTemplate;
    use crate::timing::Times;

    /// The status after a step, in contact with a peer that costs 1 for a core in an hour.
    fn next(burst: &Burst) -> BurstStatus {
        let (now, west) = (Now { mono: Mono::ZERO, wall: Timestamp::UNIX_EPOCH }, PeerName::from("west"));
        let mut contacts = Contacts::begin(now.mono);
        contacts.observe([&west], now.mono);
        let price = Price { core_hour: "1".parse().unwrap(), ..Price::default() };
        let peer = PeerView { state: PeerState::Connected, price: Some(price), ..PeerView::default() };
        let view = BurstView {
            now,
            counted: now.wall,
            grace: Times::default().grace,
            burst: burst.clone().into(),
            own: "east".into(),
            peers: [(west, peer)].into(),
            contacts,
            answers: BTreeMap::new(),
            withdrawing: BTreeSet::new(),
            undeliverable: BTreeMap::new(),
            no_lead: None,
            ends: Ends::default(),
            root: None,
            seen: None,
        };
        step(&view, &BTreeMap::new()).status
    }

    fn used(burst: &Burst) -> Usage {
        next(burst).spent.usage()
    }

    /// A Burst whose brokers are at that peer.
    fn hosted(root: &MiniCluster) -> Burst {
        let spec = BurstSpec {
            slot: "lake-burst-0".into(),
            size: 3,
            max_size: 3,
            cores: 2,
            incarnation: "job-1".into(),
            template: BurstTemplate::of(&root.spec).to_json(),
            ..BurstSpec::default()
        };
        let mut burst = offer::tests::owned(Burst::new("lake-burst-0", spec));
        burst.status = Some(BurstStatus { hosted_uid: Some("hosted".into()), ..next(&burst) });
        burst
    }

    /// The danger: the peer keeps the large brokers that it admitted, and its owner's budget is charged for small ones.
    #[test]
    fn a_patched_burst_is_charged_and_offered_as_it_was_made() {
        let root = plan::tests::root();
        let burst = hosted(&root);
        let charged = Usage { brokers: 3, milli_cores: 6_000, gpus: 0, hourly: "6".parse().unwrap() };
        assert_eq!((used(&burst), restored(&burst, Some(&root))), (charged, None));
        let patches: [fn(&mut BurstSpec); 6] = [
            |spec| (spec.cores, spec.max_size) = (1, 1),
            |spec| (spec.incarnation, spec.cores) = ("job-0".into(), 1),
            |spec| spec.template = json!({}),
            |spec| spec.lease = 7.into(),
            |spec| spec.whole = true,
            |spec| spec.size = 99,
        ];
        for patch in patches {
            for root in [Some(&root), None] {
                let mut patched = burst.clone();
                patch(&mut patched.spec);
                let made = restored(&patched, root).unwrap();
                assert_eq!((&made, used(&made)), (&burst, charged));
                assert_eq!(offer::desired(&made), offer::desired(&burst));
            }
        }
        let mut none = burst.clone();
        none.spec.size = 0;
        assert_eq!(used(&restored(&none, Some(&root)).unwrap()).brokers, 1, "a peer runs one at least");
    }

    /// The danger: a field that is frozen is not compared, and what somebody wrote there is offered.
    #[test]
    fn each_frozen_field_is_compared() {
        let (root, burst) = (plan::tests::root(), hosted(&plan::tests::root()));
        let holder = json!({"peer": "west", "incarnation": "job-1"});
        let eviction = json!({"peer": "west", "reason": "r", "message": "m", "generation": 1});
        let others = json!({
            "root": "a", "slot": "a", "index": 7, "size": 2, "maxSize": 7, "cores": 7, "gpus": 7, "peers": ["a"],
            "selector": {"matchLabels": {"a": "b"}}, "prefer": [{"weight": 1}], "incarnation": "a", "rankMap": "a",
            "rankMapDigest": "a", "credentialDigest": "a", "credentialSecret": "a", "lead": {"address": "a", "port": 1},
            "tunnel": true, "whole": true, "fluxVersion": "a", "arch": "a", "template": {"a": 1}, "lease": "7s",
            "drain": "7s", "budget": {"maxDuration": "1h"}, "onDemand": {"minPending": 7}, "warm": true,
            "evictions": [eviction], "holder": holder, "release": true,
        });
        let mut frozen = 0;
        for (field, other) in others.as_object().unwrap() {
            let mut spec = serde_json::to_value(&burst.spec).unwrap();
            spec[field] = other.clone();
            let patched = Burst { spec: serde_json::from_value(spec).unwrap(), ..burst.clone() };
            assert_ne!(patched.spec, burst.spec, "{field}");
            let made = joined(burst.spec.clone(), patched.spec.clone());
            let expected = (made != patched.spec).then_some(made);
            frozen += usize::from(expected.is_some());
            assert_eq!(restored(&patched, Some(&root)).map(|made| made.spec), expected, "{field}");
        }
        assert_eq!(frozen, 18);
    }

    #[test]
    fn what_may_change_does_and_a_new_instance_has_a_new_record() {
        let mut root = plan::tests::root();
        let mut burst = hosted(&root);
        (burst.spec.size, burst.spec.release, burst.spec.peers) = (2, true, vec!["north".into()]);
        assert_eq!(restored(&burst, Some(&root)), None);
        (burst.spec.incarnation, burst.spec.cores) = ("job-2".into(), 4);
        assert_eq!(restored(&burst, Some(&root)).unwrap().spec.cores, 2, "the root has no such instance");
        root.status.as_mut().unwrap().incarnation = Some("job-2".into());
        assert_eq!(restored(&burst, Some(&root)), None);
        burst.status = Some(next(&burst));
        burst.spec.cores = 1;
        assert_eq!(restored(&burst, Some(&root)).unwrap().spec.cores, 4);
        // An older agent recorded nothing: what is there is recorded.
        burst.status.as_mut().unwrap().frozen = None;
        assert_eq!(restored(&burst, Some(&root)), None);
        assert_eq!(next(&burst).frozen.unwrap().cores, 1);
    }
}
