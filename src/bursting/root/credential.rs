//! Who may have the certificate, decided on the Burst as it is stored at this moment.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use tributary_api::burst::{Burst, BurstSpec, BurstStatus, CredentialRecipient};
use tributary_clock::Mono;
use tributary_contract::{CredentialRefusal, CredentialRequest, PeerName};
use tributary_flux::Certificate;

use super::{hold, offer};
use crate::peers::PeerView;
use crate::provider::materialize;
use crate::provider::slot::ClaimKey;
use crate::turns::Pace;

/// What must happen before the certificate goes out.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Grant {
    /// The peer is on record.
    Recorded,
    /// This status must be stored first, on exactly the version of the Burst that was looked at.
    Record(Box<BurstStatus>),
}

/// Whether `peer`, as `view` has it, gets the certificate of `burst`.
///
/// # Errors
/// [`CredentialRefusal::NotForYou`] unless the Burst is placed on that peer, in that incarnation, with that digest, and is
/// neither being released nor held back; or if another cluster of the peer's name holds the slot.
pub(crate) fn grant(
    burst: &Burst,
    peer: &PeerName,
    view: Option<&PeerView>,
    request: &CredentialRequest,
) -> Result<Grant, CredentialRefusal> {
    let spec = &burst.spec;
    let status = burst.status.clone().unwrap_or_default();
    let same_burst = burst.metadata.uid.as_deref() == Some(request.burst.as_str());
    let placed_there =
        status.peer.as_deref() == Some(peer.as_str()) && offer::is_wanted(burst) && status.held.is_none();
    let same_instance =
        spec.incarnation == request.incarnation && status.incarnation.as_ref() == Some(&spec.incarnation);
    let same_certificate = spec.credential_digest == request.digest && !request.digest.is_empty();
    let stays = burst.metadata.deletion_timestamp.is_none();
    let same_cluster = !hold::is_stranger(&status, view);
    if !(same_burst && placed_there && same_instance && same_certificate && same_cluster && stays) {
        return Err(CredentialRefusal::NotForYou);
    }
    let cluster_uid = view.and_then(|view| view.cluster_uid.as_ref()).map(|uid| uid.as_str().to_owned());
    let recipient = CredentialRecipient {
        peer: peer.to_string(),
        incarnation: spec.incarnation.clone(),
        credential_digest: spec.credential_digest.clone(),
        peer_uid: view.and_then(|view| view.uid.clone()),
        cluster_uid: cluster_uid.or(status.holder().and_then(|holder| holder.cluster_uid.clone())),
        // Brokers that were told another way before may keep to that.
        tunnel: spec.tunnel && status.holder().is_none_or(|holder| holder.tunnel),
        free_since: None,
    };
    if status.credential_recipients.contains(&recipient) {
        return Ok(Grant::Recorded);
    }
    let mut status = status;
    status.credential_recipients.retain(|known| known.peer != recipient.peer);
    status.credential_recipients.push(recipient);
    status.credential_recipients.sort_by(|a, b| a.peer.cmp(&b.peer));
    Ok(Grant::Record(Box::new(status)))
}

/// Puts off a peer that asks for the same certificate faster than agents do: each answer reads a Secret, and is logged.
///
/// # Errors
/// [`CredentialRefusal::NotReady`]
pub(crate) fn take_turn(
    asked: &mut Pace<ClaimKey>,
    peer: &PeerName,
    request: &CredentialRequest,
    now: Mono,
) -> Result<(), CredentialRefusal> {
    if asked.try_turn(&(peer.clone(), request.burst.clone()), now) {
        return Ok(());
    }
    tracing::debug!(%peer, burst = %request.burst, "a peer that asks for a certificate more than once a second is put off");
    Err(CredentialRefusal::NotReady)
}

/// The certificate in the Secret of a root, if it is the one that the instance was started with; else what is wrong.
pub(crate) fn of_instance(secret: Option<Secret>, digest: &str) -> Result<String, &'static str> {
    let secret = secret.ok_or("is gone")?;
    let text = materialize::certificate(secret).ok_or("has none")?;
    match Certificate::parse(&text) {
        Ok(certificate) if certificate.digest().to_string() == digest => Ok(text),
        _ => Err("holds another one than the instance was started with"),
    }
}

/// What people are told where the Secret has not the certificate of the instance.
pub(crate) fn missing(burst: &Burst, why: &str) -> String {
    let BurstSpec { credential_secret, root, .. } = &burst.spec;
    let namespace = burst.namespace().unwrap_or_default();
    format!(
        "Secret {namespace}/{credential_secret} with the certificate of MiniCluster {root} {why}: no more brokers can join. Put \
         the certificate of this instance back, or start the instance anew, which ends its jobs: \
         `agentctl restart minicluster/{root} --namespace {namespace}`"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use k8s_openapi::ByteString;
    use tributary_clock::SeededRng;
    use tributary_flux::CertificateMetadata;

    use super::*;
    use crate::provider::memory::CREDENTIAL_AGAIN;

    fn burst() -> Burst {
        let spec =
            BurstSpec { incarnation: "job-1".into(), credential_digest: "sha256:aa".into(), ..BurstSpec::default() };
        let mut burst = offer::tests::owned(Burst::new("b", spec));
        burst.metadata.uid = Some("uid-1".into());
        let status =
            BurstStatus { peer: Some("west".into()), incarnation: Some("job-1".into()), ..BurstStatus::default() };
        burst.status = Some(status);
        burst
    }

    fn view(cluster: &str) -> PeerView {
        PeerView { uid: Some("uid".into()), cluster_uid: Some(cluster.into()), ..PeerView::default() }
    }

    fn request() -> CredentialRequest {
        CredentialRequest { burst: "uid-1".into(), incarnation: "job-1".into(), digest: "sha256:aa".into() }
    }

    #[test]
    fn the_recipient_is_recorded_before_anything_goes_out() {
        let mut burst = burst();
        let Grant::Record(status) = grant(&burst, &"west".into(), Some(&view("a")), &request()).unwrap() else {
            panic!("nothing was recorded yet");
        };
        assert_eq!(status.credential_recipients.len(), 1);
        burst.status = Some(*status);
        assert_eq!(grant(&burst, &"west".into(), Some(&view("a")), &request()), Ok(Grant::Recorded));
    }

    /// The danger: brokers wait for ever, and no cluster says for what.
    #[test]
    fn only_the_certificate_of_the_instance_goes_out_and_another_is_told() {
        let made = |seed| {
            let metadata =
                CertificateMetadata { name: "lake".into(), hostname: "lake".into(), created: Timestamp::UNIX_EPOCH };
            Certificate::generate(&mut SeededRng::new(seed), &metadata).unwrap()
        };
        let secret = |text: &str| {
            let data = [("curve.cert".to_owned(), ByteString(text.as_bytes().to_vec()))].into();
            Some(Secret { data: Some(data), ..Secret::default() })
        };
        let (own, other) = (made(1), made(2));
        let read = |secret| of_instance(secret, &own.digest().to_string());
        assert_eq!(read(secret(own.expose())), Ok(own.expose().to_owned()));
        for (stored, why) in [
            (None, "is gone"),
            (Some(Secret::default()), "has none"),
            (secret("curve"), "holds another one than the instance was started with"),
            (secret(other.expose()), "holds another one than the instance was started with"),
        ] {
            assert_eq!(read(stored), Err(why));
        }
        let mut burst = burst();
        burst.metadata.namespace = Some("flux".into());
        (burst.spec.root, burst.spec.credential_secret) = ("lake".into(), "lake-curve".into());
        let text = missing(&burst, "is gone");
        assert!(
            text.starts_with("Secret flux/lake-curve with the certificate of MiniCluster lake is gone: no more"),
            "{text}"
        );
    }

    #[test]
    fn a_flood_of_requests_is_put_off_and_the_pace_of_agents_never_is() {
        let at = |millis| Mono::from_start(Duration::from_millis(millis));
        let mut asked = Pace::default();
        let mut answered = |peer: &str, now| take_turn(&mut asked, &peer.into(), &request(), now).is_ok();
        // It is started anew once and again, and asks at once each time.
        assert!((0..8).all(|start| answered("west", at(start * 300))));
        let (mut honest, mut flood) = (at(2_400), 0);
        for millis in 2_400..120_000 {
            flood += usize::from(millis % 8 == 0 && answered("north", at(millis)));
            if at(millis) >= honest {
                assert!(answered("west", honest), "{millis}");
                honest = honest + CREDENTIAL_AGAIN;
            }
        }
        assert!((100..130).contains(&flood), "it costs once a second, and is answered as often: {flood}");
    }

    /// The danger: the cluster that holds the slot is forgotten, and two run its ranks.
    #[test]
    fn another_cluster_of_the_same_name_is_given_nothing_while_the_first_holds_the_slot() {
        let mut burst = burst();
        let ask = |burst: &Burst, cluster| match grant(burst, &"west".into(), Some(&view(cluster)), &request()) {
            Ok(Grant::Record(status)) => Ok(Some(*status)),
            Ok(Grant::Recorded) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        burst.status = ask(&burst, "a").unwrap();
        let of = |burst: &Burst| burst.status.as_ref().unwrap().credential_recipients[0].cluster_uid.clone();
        assert_eq!(of(&burst).as_deref(), Some("a"));
        assert_eq!(ask(&burst, "b"), Err(CredentialRefusal::NotForYou));
        let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        burst.status.as_mut().unwrap().credential_recipients[0].free_since = Some(at);
        burst.status = ask(&burst, "b").unwrap();
        assert_eq!(of(&burst).as_deref(), Some("b"), "the slot was free");
    }

    #[test]
    fn who_was_told_an_address_before_counts_as_told_an_address() {
        let mut burst = burst();
        let grant = |burst: &Burst| match grant(burst, &"west".into(), Some(&view("a")), &request()) {
            Ok(Grant::Record(status)) => *status,
            _ => burst.status.clone().unwrap(),
        };
        burst.spec.tunnel = true;
        let fenced = |status: &BurstStatus| status.credential_recipients[0].tunnel;
        assert!(fenced(&grant(&burst)), "never told anything but the tunnel");
        burst.spec.tunnel = false;
        burst.status = Some(grant(&burst));
        burst.spec.tunnel = true;
        assert!(!fenced(&grant(&burst)));
    }

    #[test]
    fn nobody_else_gets_it() {
        type Change = fn(&mut Burst, &mut CredentialRequest);
        let table: [(&str, Change); 9] = [
            ("another peer", |burst, _| burst.status.as_mut().unwrap().peer = Some("north".into())),
            ("placed nowhere", |burst, _| burst.status.as_mut().unwrap().peer = None),
            ("another burst", |_, request| request.burst = "uid-2".into()),
            ("an old instance", |_, request| request.incarnation = "job-0".into()),
            ("placed for an old instance", |burst, _| burst.spec.incarnation = "job-2".into()),
            ("another certificate", |_, request| request.digest = "sha256:bb".into()),
            ("being released", |burst, _| burst.spec.release = true),
            ("without a root", |burst, _| burst.metadata.owner_references = None),
            ("being deleted", |burst, _| {
                let Some(at) = jiff::Timestamp::from_second(1).ok() else { return };
                burst.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
            }),
        ];
        for (case, change) in table {
            let (mut burst, mut request) = (burst(), request());
            change(&mut burst, &mut request);
            assert_eq!(
                grant(&burst, &"west".into(), Some(&view("a")), &request),
                Err(CredentialRefusal::NotForYou),
                "{case}"
            );
        }
    }
}
