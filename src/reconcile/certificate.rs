//! The certificate of a new incarnation.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use tributary_api::names;
use tributary_clock::{Clock, Rng};
use tributary_cluster::error::Cause;
use tributary_cluster::{ObjectKey, RequestError};
use tributary_flux::{Certificate, CertificateError, CertificateMetadata};

use super::dereference::Known;

/// Key of the certificate in its Secret.
pub(crate) const KEY: &str = "curve.cert";

/// Where the certificate of a new incarnation comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Generated, or written into the spec: the caller applies a Secret with it.
    New(Certificate),
    /// From a Secret that somebody else looks after.
    Existing(Certificate),
    /// Not there yet: reason and sentence.
    Missing(&'static str, String),
}

/// Why no certificate could be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not answer with it.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// None could be made.
    #[error("failed to make a certificate for {object}")]
    Certificate {
        /// The MiniCluster.
        object: ObjectKey,
        /// Why.
        source: CertificateError,
    },
}

/// Name of the Secret that the pods mount.
pub(crate) fn secret_name(known: &Known) -> String {
    match &known.mini_cluster.spec.flux.curve_cert_secret {
        Some(name) => name.clone(),
        None => names::curve(&known.mini_cluster.name_any()),
    }
}

/// The certificate of the next incarnation.
///
/// # Errors
/// See [`Error`]. A certificate that is not there, or is none, is no error but [`Source::Missing`].
pub(crate) async fn obtain(
    reader: &Client,
    known: &Known,
    clock: &dyn Clock,
    rng: &mut dyn Rng,
) -> Result<Source, Error> {
    let object = ObjectKey::of(&*known.mini_cluster);
    let failed = |source| Error::Certificate { object: object.clone(), source };
    if let Some(name) = &known.mini_cluster.spec.flux.curve_cert_secret {
        return existing(reader, known, name).await;
    }
    if let Some(text) = &known.mini_cluster.spec.flux.curve_cert {
        return Certificate::parse(text.expose()).map(Source::New).map_err(failed);
    }
    let metadata = CertificateMetadata {
        name: known.mini_cluster.name_any(),
        hostname: names::host(&known.mini_cluster.name_any(), 0),
        created: clock.wall(),
    };
    Certificate::generate(rng, &metadata).map(Source::New).map_err(failed)
}

async fn existing(reader: &Client, known: &Known, name: &str) -> Result<Source, Error> {
    let namespace = known.mini_cluster.namespace().unwrap_or_default();
    let secret = Api::<Secret>::namespaced(reader.clone(), &namespace)
        .get_opt(name)
        .await
        .map_err(|error| RequestError::new("read", format!("Secret {namespace}/{name}"), Cause::from(error)))?;
    let missing = |sentence: String| Ok(Source::Missing("CertificateMissing", sentence));
    let Some(secret) = secret else {
        return missing(format!(
            "Secret {name} does not exist in this namespace; the brokers' certificate is read from it"
        ));
    };
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(KEY)) else {
        return missing(format!("Secret {name} has no key {KEY}; put the text of the certificate there"));
    };
    let Some(certificate) = std::str::from_utf8(&bytes.0).ok().and_then(|text| Certificate::parse(text).ok()) else {
        return missing(format!("{KEY} of Secret {name} is no curve certificate (flux keygen writes one)"));
    };
    let wanted = known.hosted.as_ref().map(|hosted| hosted.spec.credential_digest.as_str());
    match wanted {
        Some(wanted) if wanted != certificate.digest().to_string() => {
            missing(format!("Secret {name} holds another certificate than the root's; it is asked for again"))
        }
        _ => Ok(Source::Existing(certificate)),
    }
}
