//! Who we are, whom we trust, and what a certificate has to show.
//!
//! A cluster's identity is an X.509 certificate whose one URI SAN is its SPIFFE id,
//! `spiffe://<trust domain>/cluster/<name>`. The chain is verified by webpki; the URI SAN, which webpki cannot match, is
//! read by x509-parser *after* the chain was found good. A peer is let in if all of these hold:
//!
//! 1. chain and validity, against the trust bundle of the ClusterPeer of that name, else our own `ca.crt` ([`trust`]);
//! 2. the trust domain belongs to that bundle, and the name is the one we dialled ([`verify`]);
//! 3. a ClusterPeer of that name exists and is not suspended ([`verify`]; its cluster UID is the hello's matter).
//!
//! What fails 1 or 2 is not authenticated and fails the TLS handshake. What fails 3 *is* authenticated: it is let through
//! the handshake only to be told the reason by a close code, and never becomes a link.
//!
//! | part | what it does |
//! |---|---|
//! | [`spiffe`] | the ids |
//! | [`certificate`] | what we read from a certificate besides its chain |
//! | [`own`] | our identity, loaded and validated |
//! | [`store`] | the identity in use, replaced when it is renewed |
//! | [`trust`] | trust bundles, and the configured peers with theirs |
//! | [`verify`] | the verdict on a shown certificate, pure |
//! | [`tls`] | the verdict as rustls verifiers, and the TLS settings |
//! | [`authority`] | makes authorities and identities |
//! | [`rotation`] | the authority of a cluster that is its own, and its replacement by the next |
//! | [`succession`] | how peers learn of that: a new trust bundle, signed by an authority of the one before |
//! | [`files`] | writes them to a directory |
pub mod authority;
pub(crate) mod certificate;
pub mod files;
pub(crate) mod own;
pub mod rotation;
pub mod spiffe;
pub(crate) mod store;
pub mod succession;
pub(crate) mod tls;
pub mod trust;
pub(crate) mod verify;

pub use authority::{Authority, IssueError, IssuedIdentity};
pub use own::{Identity, IdentityError, Material, Origin};
pub use rotation::Authorities;
pub use spiffe::SpiffeId;
pub use store::{IdentityDirectory, IdentityStore};
pub(crate) use trust::Peers;
pub use trust::TrustBundle;

/// File, and key of a Secret, with our certificate chain (PEM): ours first, then intermediates.
pub const CERTIFICATE: &str = "tls.crt";
/// File, and key of a Secret, with our private key (PEM).
pub const PRIVATE_KEY: &str = "tls.key";
/// File, and key of a Secret, with the certificates we trust (PEM).
pub const TRUST_BUNDLE: &str = "ca.crt";
/// File with an authority's private key (PEM): stays with whoever issues. An agent that is
/// its own authority has it in a Secret apart.
pub const AUTHORITY_KEY: &str = "ca.key";
