//! Who has the certificate of an instance, and who of them is no peer any more. Pure.
//!
//! Whoever holds the certificate can join the instance. A cluster that was given it and is trusted no more keeps the key, so
//! what is said of it stays until the instance runs with another certificate: no ClusterPeer of the same name that is made
//! later takes it back.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::labels::condition::CERTIFICATE_EXPOSED;
use tributary_api::minicluster::{MiniCluster, RecipientStatus};
use tributary_cluster::conditions::{self, Statement};

/// Names of the ClusterPeers, with the UIDs of the objects.
pub(crate) type PeerUids = BTreeMap<String, String>;

/// Who has the certificate with `digest`: who had it before, and whom the Bursts name. Between two Jobs there is no
/// certificate (`digest` is `None`), and nothing is forgotten.
pub(crate) fn recipients(
    before: &[RecipientStatus],
    bursts: &[Arc<Burst>],
    digest: Option<&str>,
    peers: &PeerUids,
    now: Timestamp,
) -> Vec<RecipientStatus> {
    let of_now = |recipient: &RecipientStatus| digest.is_none_or(|digest| recipient.credential_digest == digest);
    let mut all: Vec<RecipientStatus> = before.iter().filter(|recipient| of_now(recipient)).cloned().collect();
    for burst in bursts {
        let spec = &burst.spec;
        let told = burst.status.iter().flat_map(|status| &status.credential_recipients);
        for told in told.filter(|told| told.incarnation == spec.incarnation) {
            let recipient = RecipientStatus {
                peer: told.peer.clone(),
                peer_uid: told.peer_uid.clone(),
                credential_digest: spec.credential_digest.clone(),
                removed: None,
            };
            if of_now(&recipient) && !all.iter().any(|known| known.peer == recipient.peer) {
                all.push(recipient);
            }
        }
    }
    for recipient in all.iter_mut().filter(|recipient| recipient.removed.is_none()) {
        let uid = peers.get(&recipient.peer);
        let same = uid.is_some_and(|uid| recipient.peer_uid.as_ref().is_none_or(|then| then == uid));
        recipient.removed = (!same).then_some(Time(now));
    }
    all.sort_by(|a, b| a.peer.cmp(&b.peer));
    all
}

/// What is said of those of `object`: nothing, if there never was anything to say.
pub(crate) fn statement(object: &MiniCluster, recipients: &[RecipientStatus], old: &[Condition]) -> Option<Statement> {
    let removed: Vec<&str> =
        recipients.iter().filter(|one| one.removed.is_some()).map(|one| one.peer.as_str()).collect();
    if removed.is_empty() {
        let said = conditions::find(old, CERTIFICATE_EXPOSED).is_some();
        let message = "only peers have the certificate of this instance";
        return said.then(|| Statement::fails(CERTIFICATE_EXPOSED, "NewCertificate", message));
    }
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    let anew = match object.spec.flux.own_certificate() {
        Some(place) => format!(
            "put another certificate into {place}, then start the instance anew: \
             `agentctl restart minicluster/{name} --namespace {namespace}`"
        ),
        None => format!(
            "start the instance anew, with another certificate: `agentctl rekey {name} --namespace {namespace}`"
        ),
    };
    let message = format!(
        "clusters that are no peers any more still have the certificate of this instance, so their brokers can join: {}; \
         {anew}; its jobs end",
        removed.join(", ")
    );
    Some(Statement::holds(CERTIFICATE_EXPOSED, "PeerRemoved", message))
}

#[cfg(test)]
mod tests {
    use tributary_api::burst::{BurstSpec, BurstStatus, CredentialRecipient};

    use super::*;

    fn burst(digest: &str, peers: &[(&str, &str)]) -> Arc<Burst> {
        let spec = BurstSpec { incarnation: "job-1".into(), credential_digest: digest.into(), ..BurstSpec::default() };
        let told = |(peer, uid): &(&str, &str)| CredentialRecipient {
            peer: (*peer).into(),
            incarnation: "job-1".into(),
            peer_uid: Some((*uid).into()),
            ..CredentialRecipient::default()
        };
        let credential_recipients = peers.iter().map(told).collect();
        let mut burst = Burst::new("b", spec);
        burst.status = Some(BurstStatus { credential_recipients, ..BurstStatus::default() });
        Arc::new(burst)
    }

    fn peers(all: &[(&str, &str)]) -> PeerUids {
        all.iter().map(|(name, uid)| ((*name).to_owned(), (*uid).to_owned())).collect()
    }

    fn removed(all: &[RecipientStatus]) -> Vec<(&str, bool)> {
        all.iter().map(|one| (one.peer.as_str(), one.removed.is_some())).collect()
    }

    #[test]
    fn a_removed_recipient_counts_until_the_certificate_is_another() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lake = MiniCluster::new("lake", Default::default());
        let both = peers(&[("north", "n1"), ("west", "w1")]);
        let bursts = [burst("a", &[("west", "w1")]), burst("a", &[("north", "n1"), ("west", "w1")])];
        let first = recipients(&[], &bursts, Some("a"), &both, at(1));
        assert_eq!(removed(&first), [("north", false), ("west", false)]);
        assert_eq!(statement(&lake, &first, &[]), None, "nothing was ever wrong");

        // Its slot was dropped before: no Burst names it any more.
        let second = recipients(&first, &[], Some("a"), &peers(&[("north", "n1")]), at(2));
        assert_eq!(removed(&second), [("north", false), ("west", true)]);
        let said = statement(&lake, &second, &[]).unwrap();
        assert!(said.status == Some(true) && said.message.contains("west") && !said.message.contains("north"));

        // A ClusterPeer of the same name does not take it back, and is another decision where the first was not seen to go.
        let third = recipients(&second, &bursts, Some("a"), &both, at(3));
        assert_eq!(third, second);
        let anew = recipients(&first, &[], Some("a"), &peers(&[("north", "n2"), ("west", "w1")]), at(3));
        assert_eq!(removed(&anew), [("north", true), ("west", false)]);

        let between = recipients(&second, &bursts, None, &both, at(4));
        assert_eq!(between, second);
        let old = conditions::merged(&[], statement(&lake, &between, &[]), None, at(4));
        let fresh = recipients(&between, &bursts, Some("b"), &both, at(5));
        assert_eq!(fresh, []);
        assert_eq!(statement(&lake, &fresh, &old).unwrap().status, Some(false));
        // A new Job with the same certificate changes nothing.
        assert_eq!(recipients(&between, &bursts, Some("a"), &both, at(5)), second);
        // `rekey` refuses where its user has the certificate.
        let mut own = lake.clone();
        for (spec, place) in [("curveCertSecret", "Secret mine"), ("curveCert", "flux.curveCert")] {
            own.spec.flux = serde_json::from_value(serde_json::json!({(spec): "mine"})).unwrap();
            let told = statement(&own, &second, &[]).unwrap().message;
            assert!(told.contains(&format!("into {place}, ")) && !told.contains("rekey"), "{told}");
        }
        assert!(said.message.contains("agentctl rekey lake"), "{}", said.message);
    }
}
