//! What the two Secrets of an identity hold, and how they are written.
//!
//! The identity has the shape that cert-manager writes: type `kubernetes.io/tls` with `tls.crt`, `tls.key` and `ca.crt`.
//! The authority is in a Secret apart, of the shape that cert-manager's CA issuer reads (`tls.crt`, `tls.key`); while it
//! is replaced it also holds `next.crt`, `next.key` and `next-since`, then `previous.crt` and `previous-until`.

use std::collections::BTreeMap;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, PostParams};
use tributary::api::labels::{self, kubernetes::MANAGED_BY};
use tributary::federation::identity::{
    Authorities, Authority, CERTIFICATE, IssuedIdentity, Material, PRIVATE_KEY, TRUST_BUNDLE,
};

const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const NEXT_SINCE: &str = "next-since";
const PREVIOUS_CERTIFICATE: &str = "previous.crt";
const PREVIOUS_UNTIL: &str = "previous-until";

/// Prefix of the annotations that cert-manager puts on what it issues:
/// <https://cert-manager.io/docs/reference/annotations/>.
const CERT_MANAGER: &str = "cert-manager.io/";

/// Whether this Secret is the agent's: only then it may be written. One that an agent made, and cert-manager took over
/// afterwards, is cert-manager's: both would take turns.
pub(crate) fn is_ours(secret: &Secret) -> bool {
    let made = secret.labels().get(MANAGED_BY).is_some_and(|by| by == labels::TRIBUTARY);
    made && !secret.annotations().keys().any(|key| key.starts_with(CERT_MANAGER))
}

/// A new Secret of ours, still empty.
pub(crate) fn new(namespace: &str, name: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([(MANAGED_BY.to_owned(), labels::TRIBUTARY.to_owned())].into()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    }
}

/// Creates a new Secret, or replaces one as it was read: what somebody changed meanwhile is a conflict, and looked at again.
pub(crate) async fn write(api: &Api<Secret>, secret: &Secret) -> anyhow::Result<Secret> {
    let (name, params) = (secret.name_any(), PostParams::default());
    let written = match secret.metadata.resource_version {
        Some(_) => api.replace(&name, &params, secret).await,
        None => api.create(&params, secret).await,
    };
    written.with_context(|| format!("failed to write Secret {}/{name}", secret.namespace().unwrap_or_default()))
}

/// The parts of an identity.
pub(crate) fn material(secret: &Secret) -> Material {
    Material::gather(|key| secret.data.as_ref()?.get(key).map(|bytes| bytes.0.clone()))
}

/// A value that is text.
pub(crate) fn text<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    std::str::from_utf8(&secret.data.as_ref()?.get(key)?.0).ok()
}

/// Puts an issued identity and the authorities that are trusted into `secret`.
pub(crate) fn put_identity(secret: &mut Secret, issued: &IssuedIdentity, trust_bundle: &str) {
    secret.data = Some(data([
        (CERTIFICATE, issued.certificate()),
        (PRIVATE_KEY, issued.expose_key()),
        (TRUST_BUNDLE, trust_bundle),
    ]));
}

pub(crate) fn authorities(secret: &Secret) -> anyhow::Result<Authorities> {
    let name = secret.name_any();
    let text = |key: &str| text(secret, key);
    let place = |key: &str| format!("{key} of Secret {name}");
    let authority = |certificate: &str, key: &str| {
        let missing = |key: &str| format!("failed to find {}", place(key));
        let certificate_text = text(certificate).with_context(|| missing(certificate))?;
        let key_text = text(key).with_context(|| missing(key))?;
        Authority::from_pem((&place(certificate), certificate_text), (&place(key), key_text))
            .map_err(anyhow::Error::from)
    };
    let time = |key: &str| -> anyhow::Result<Timestamp> {
        text(key).and_then(|text| text.parse().ok()).with_context(|| format!("failed to read a time in {}", place(key)))
    };
    let next = match text(NEXT_CERTIFICATE) {
        Some(_) => Some((authority(NEXT_CERTIFICATE, NEXT_KEY)?, time(NEXT_SINCE)?)),
        None => None,
    };
    let previous = match text(PREVIOUS_CERTIFICATE) {
        Some(certificate) => Some((certificate.to_owned(), time(PREVIOUS_UNTIL)?)),
        None => None,
    };
    Ok(Authorities { active: authority(CERTIFICATE, PRIVATE_KEY)?, next, previous })
}

/// Puts authorities into `secret`.
pub(crate) fn put_authorities(secret: &mut Secret, authorities: &Authorities) {
    let Authorities { active, next, previous } = authorities;
    let mut parts = data([(CERTIFICATE, active.certificate()), (PRIVATE_KEY, &active.expose_key())]);
    if let Some((next, since)) = next {
        parts.append(&mut data([
            (NEXT_CERTIFICATE, next.certificate()),
            (NEXT_KEY, &next.expose_key()),
            (NEXT_SINCE, &since.to_string()),
        ]));
    }
    if let Some((certificate, until)) = previous {
        parts.append(&mut data([(PREVIOUS_CERTIFICATE, certificate.as_str()), (PREVIOUS_UNTIL, &until.to_string())]));
    }
    secret.data = Some(parts);
}

/// The order for another authority that is not carried out yet.
pub(crate) fn order(secret: &Secret) -> Option<&String> {
    let asked = secret.annotations().get(labels::ROTATE).filter(|asked| !asked.is_empty())?;
    (secret.annotations().get(labels::ROTATED) != Some(asked)).then_some(asked)
}

/// What a Secret holds, of these texts.
pub(crate) fn data<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, ByteString> {
    parts.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec()))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tributary::federation::identity::rotation::Turn;

    use super::*;

    #[test]
    fn authorities_survive_their_secret_at_every_turn() {
        let (now, hour) = (Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24), Duration::from_secs(3600));
        let mut authorities = Authorities::new(Authority::create("east", now).unwrap());
        for turn in [None, Some(Turn::Announce), Some(Turn::Switch), Some(Turn::Forget)] {
            if let Some(turn) = turn {
                authorities = authorities.take(turn, now, hour).unwrap();
            }
            let mut secret = new("agents", "identity-ca");
            put_authorities(&mut secret, &authorities);
            let read = self::authorities(&secret).unwrap();
            assert_eq!(read.trust_bundle(), authorities.trust_bundle(), "{turn:?}");
            assert_eq!(format!("{read:?}"), format!("{authorities:?}"), "{turn:?}");
        }
    }

    #[test]
    fn what_cert_manager_took_over_is_not_ours_any_more() {
        let mut secret = new("agents", "identity");
        assert!(is_ours(&secret));
        secret.annotations_mut().insert("cert-manager.io/certificate-name".into(), "identity".into());
        assert!(!is_ours(&secret));
        assert!(!is_ours(&Secret::default()));
    }

    #[test]
    fn an_order_is_carried_out_once() {
        let mut secret = new("agents", "identity-ca");
        assert_eq!(order(&secret), None);
        secret.annotations_mut().insert(labels::ROTATE.into(), "1".into());
        assert_eq!(order(&secret), Some(&"1".to_owned()));
        secret.annotations_mut().insert(labels::ROTATED.into(), "1".into());
        assert_eq!(order(&secret), None);
    }

    #[test]
    fn a_damaged_authority_says_where() {
        let mut secret = new("agents", "identity-ca");
        let error = authorities(&secret).unwrap_err().to_string();
        assert_eq!(error, "failed to find tls.crt of Secret identity-ca");
        secret.data = Some(data([("tls.crt", "no"), ("tls.key", "no")]));
        let error = authorities(&secret).unwrap_err().to_string();
        assert!(error.contains("tls.crt of Secret identity-ca"), "{error}");
    }
}
