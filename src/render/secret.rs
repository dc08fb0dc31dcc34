//! Secrets of a MiniCluster; above all that with the curve certificate, the only object that holds it.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tributary_api::minicluster::{MiniCluster, MiniClusterSpec};
use tributary_api::{labels, names};
use tributary_flux::Certificate;

use super::metadata;

/// The key of the Secret that holds the certificate.
pub(crate) const CURVE_CERT: &str = "curve.cert";

/// The Secret `NAME-curve`. Not rendered where `flux.curveCertSecret` names a Secret of the user's own.
pub fn secret(mini_cluster: &MiniCluster, certificate: &Certificate) -> Secret {
    let mut secret = owned(mini_cluster, names::curve, labels::role::CURVE, [(CURVE_CERT, certificate.expose())]);
    let digest = certificate.digest().to_string();
    secret.metadata.annotations = Some(BTreeMap::from([(labels::CREDENTIAL_DIGEST.to_owned(), digest)]));
    secret
}

/// A Secret that belongs to a MiniCluster and is named after it.
pub(super) fn owned<'a>(
    mini_cluster: &MiniCluster,
    named: fn(&str) -> String,
    role: &str,
    texts: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Secret {
    let ObjectMeta { name, namespace, uid, .. } = mini_cluster.metadata.clone();
    let (name, namespace, uid) = (name.unwrap_or_default(), namespace.unwrap_or_default(), uid.unwrap_or_default());
    let mut labels = metadata::labels_for(mini_cluster);
    labels.insert(labels::ROLE.to_owned(), role.to_owned());
    let bytes = |(key, text): (&str, &str)| (key.to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: ObjectMeta {
            name: Some(named(&name)),
            labels: Some(labels),
            owner_references: Some(vec![metadata::owner(&name, &uid)]),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        data: Some(texts.into_iter().map(bytes).collect()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// Name of the Secret that pods of the MiniCluster `name` mount: the user's own, or `NAME-curve`.
pub fn secret_name(name: &str, spec: &MiniClusterSpec) -> String {
    spec.flux.curve_cert_secret.clone().unwrap_or_else(|| names::curve(name))
}

#[cfg(test)]
mod tests {
    use tributary_clock::SeededRng;
    use tributary_flux::CertificateMetadata;

    use super::*;

    #[test]
    fn the_certificate_is_in_the_data_and_nowhere_else() {
        let mini_cluster: MiniCluster =
            serde_saphyr::from_str("{metadata: {name: lake, namespace: default, uid: u-1}, spec: {containers: [{}]}}")
                .unwrap();
        let metadata = CertificateMetadata {
            name: "flux-cert-generator".into(),
            hostname: "lake-0".into(),
            created: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let certificate = Certificate::generate(&mut SeededRng::new(1), &metadata).unwrap();
        let mut secret = secret(&mini_cluster, &certificate);
        let data = secret.data.take().unwrap();
        assert_eq!(data[CURVE_CERT].0, certificate.expose().as_bytes());
        insta::assert_json_snapshot!(secret);
    }

    #[test]
    fn a_secret_of_the_users_own_is_used() {
        let spec = |text| serde_saphyr::from_str::<MiniClusterSpec>(text).unwrap();
        assert_eq!(secret_name("lake", &spec("containers: [{}]")), "lake-curve");
        assert_eq!(secret_name("lake", &spec("{containers: [{}], flux: {curveCertSecret: mine}}")), "mine");
    }
}
