//! The certificates of one cluster, as <https://kubernetes.io/docs/setup/best-practices/certificates/> lists them: one
//! authority, a serving certificate, client certificates whose CN is the user and whose O is the group, and the key
//! pair that signs service account tokens. All keys are ECDSA P-256.

use std::{
    fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// One cluster's certificate authority and the files made from it.
pub(crate) struct Pki {
    directory: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its private key, PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pki {
    /// Makes the authority and writes into `directory`: `ca.crt`, `ca.key`, `apiserver.crt`, `apiserver.key`, `sa.key`
    /// and `sa.pub`. The serving certificate is for localhost, for `kubernetes.default.svc` and for `addresses`.
    pub(crate) fn create(directory: &Path, cluster: &str, addresses: &[IpAddr]) -> anyhow::Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("{cluster}-ca"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let pki = Self { directory: directory.to_owned(), authority };

        let serving = pki.issue("kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth, &sans(addresses)?)?;
        let service_accounts = KeyPair::generate()?;
        pki.write("ca.crt", &pki.authority_certificate())?;
        pki.write("ca.key", &pki.authority.key().serialize_pem())?;
        pki.write("apiserver.crt", &serving.certificate)?;
        pki.write("apiserver.key", &serving.key)?;
        pki.write("sa.key", &service_accounts.serialize_pem())?;
        pki.write("sa.pub", &service_accounts.public_key_pem())?;
        Ok(pki)
    }

    pub(crate) fn authority_certificate(&self) -> String {
        self.authority.pem()
    }

    /// A certificate that the API server takes for `user` in `group`.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> anyhow::Result<Identity> {
        self.issue(user, group, ExtendedKeyUsagePurpose::ClientAuth, &[])
    }

    fn issue(
        &self,
        name: &str,
        organization: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
        sans: &[SanType],
    ) -> anyhow::Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(organization) = organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = sans.to_vec();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.authority)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        write_private(&self.directory.join(name), text)
    }
}

/// Writes a file that nobody else may read.
pub(crate) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    write().with_context(|| format!("failed to write {}", path.display()))
}

fn sans(addresses: &[IpAddr]) -> anyhow::Result<Vec<SanType>> {
    let mut sans = Vec::new();
    for name in ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
        sans.push(SanType::DnsName(name.try_into()?));
    }
    sans.extend(addresses.iter().copied().map(SanType::IpAddress));
    Ok(sans)
}
