//! SPIFFE ids of clusters: `spiffe://<trust domain>/cluster/<name>`.
//!
//! Source: the SPIFFE-ID specification, sections 2.1 (trust domain) and 2.2 (path).

use std::fmt;
use std::str::FromStr;

use tributary_contract::PeerName;

const SCHEME: &str = "spiffe://";
const PATH: &str = "/cluster/";

/// The id of a cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SpiffeId {
    trust_domain: String,
    cluster: PeerName,
}

/// Why a text is no id, trust domain or cluster name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpiffeError {
    /// Not of the form of a cluster's id.
    #[error("`{0}` is not of the form spiffe://<trust domain>/cluster/<name>")]
    Form(String),
    /// Not a trust domain.
    #[error("`{0}` is no trust domain: lower-case letters, digits, `.`, `-` and `_`, at most 255 of them")]
    TrustDomain(String),
    /// Not a cluster name.
    #[error(
        "`{0}` is no cluster name: at most 63 lower-case letters, digits and inner dashes (it names a ClusterPeer, and is \
         the value of labels)"
    )]
    Cluster(String),
}

impl SpiffeId {
    /// The id of `cluster` in `trust_domain`.
    pub(crate) fn new(trust_domain: &str, cluster: &str) -> Result<Self, SpiffeError> {
        check_trust_domain(trust_domain)?;
        check_cluster(cluster)?;
        Ok(Self { trust_domain: trust_domain.to_owned(), cluster: cluster.into() })
    }

    /// The trust domain: the name of the federation that issued it.
    pub(crate) fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    pub(crate) fn cluster(&self) -> &PeerName {
        &self.cluster
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, SpiffeError> {
        let (trust_domain, cluster) = text
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.split_once(PATH))
            .ok_or_else(|| SpiffeError::Form(text.to_owned()))?;
        Self::new(trust_domain, cluster)
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{PATH}{}", self.trust_domain, self.cluster)
    }
}

/// The id of a trust domain itself, `spiffe://<trust domain>`: what an authority carries as its URI SAN.
pub(crate) fn authority_id(trust_domain: &str) -> String {
    format!("{SCHEME}{trust_domain}")
}

/// The trust domain an authority's URI SAN names; `None` if it is no such id.
pub(crate) fn trust_domain_of_authority(uri: &str) -> Option<&str> {
    let domain = uri.strip_prefix(SCHEME)?;
    let domain = domain.strip_suffix('/').unwrap_or(domain);
    check_trust_domain(domain).is_ok().then_some(domain)
}

/// Whether `text` is a trust domain.
pub(crate) fn check_trust_domain(text: &str) -> Result<(), SpiffeError> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b".-_".contains(&c);
    if text.is_empty() || text.len() > 255 || !text.bytes().all(allowed) {
        return Err(SpiffeError::TrustDomain(text.to_owned()));
    }
    Ok(())
}

/// Whether `text` is a cluster's name: a DNS label (RFC 1123), as the configuration of its agent takes it.
pub fn check_cluster(text: &str) -> Result<(), SpiffeError> {
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.len() <= 63 && edge(text.bytes().next()) && edge(text.bytes().last()) && text.bytes().all(inner) {
        return Ok(());
    }
    Err(SpiffeError::Cluster(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let id = SpiffeId::new("river.example", "east-1").unwrap();
        assert_eq!(id.to_string(), "spiffe://river.example/cluster/east-1");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn what_is_no_cluster_id_is_refused() {
        for text in [
            "",
            "east",
            "https://river/cluster/east",
            "spiffe://river/ns/default/sa/agent",
            "spiffe://river/cluster/",
            "spiffe://river/cluster/East",
            "spiffe://river/cluster/a/b",
            "spiffe://river/cluster/-a",
            "spiffe://river/cluster/a.b",
            "spiffe:///cluster/east",
            "spiffe://River/cluster/east",
            "spiffe://river:8080/cluster/east",
            "spiffe://river/cluster/east?x",
        ] {
            assert!(text.parse::<SpiffeId>().is_err(), "{text} was taken");
        }
        assert!(check_cluster(&"a".repeat(63)).is_ok());
        assert!(check_cluster(&"a".repeat(64)).is_err());
    }

    #[test]
    fn an_authority_names_its_trust_domain() {
        assert_eq!(trust_domain_of_authority(&authority_id("river")), Some("river"));
        assert_eq!(trust_domain_of_authority("spiffe://river/cluster/east"), None);
        assert_eq!(trust_domain_of_authority("https://river"), None);
    }
}
