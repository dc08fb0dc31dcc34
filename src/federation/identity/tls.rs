//! The verdict as rustls verifiers, and the TLS settings: TLS 1.3 only, both sides show a certificate, no tickets, no
//! resumption, no 0-RTT. With tickets, a client that was struck off would be let in again without being looked at.
//!
//! Each handshake gets verifiers of its own, which leave their verdict in a [`Slot`]: rustls' errors and TLS alerts
//! cannot carry a claimed name or a sentence, and the log of the side that refuses must have both.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, PeerIncompatible, SignatureScheme,
};
use tokio::sync::watch;
use tributary_clock::SharedClock;

use super::certificate::unix_time;
use super::own::Identity;
use super::trust::{Peer, Peers, provider};
use super::verify::{self, Denied, Known, Shown};
use crate::wire::registry::RefusalReason;

/// The verdict of one handshake; empty until a certificate was shown.
pub(crate) type Slot = Arc<OnceLock<Result<Known, Denied>>>;

/// The name a client has to give to rustls. It is not sent, and certificates are not asked for it.
pub(crate) const SERVER_NAME: &str = "agent.invalid";

/// TLS settings for dialling `peer`. `alpns`: application protocols to offer, in the order of preference.
pub(crate) fn client(
    own: Arc<Identity>,
    peer: Peer,
    alpns: Vec<Vec<u8>>,
    clock: SharedClock,
    slot: Slot,
) -> rustls::ClientConfig {
    let certified = own.certified();
    let (judging, time) = (own, clock.clone());
    let verifier = ServerVerifier(move |leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]| {
        conclude(&slot, verify::server(&judging, &peer, Shown { leaf, intermediates }, time.wall()))
    });
    let mut config = dialling(verifier, alpns, clock);
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
    config
}

/// TLS settings for one incoming connection. The peers are looked up when the certificate is shown.
pub(crate) fn server(
    own: Arc<Identity>,
    peers: watch::Receiver<Arc<Peers>>,
    alpns: Vec<Vec<u8>>,
    clock: SharedClock,
    slot: Slot,
) -> rustls::ServerConfig {
    let certified = (*own.certified()).clone();
    let verifier = ClientVerifier { own, peers, clock: clock.clone(), slot };
    listening(Arc::new(verifier), certified, alpns, clock)
}

/// What holds for everybody who dials. Shows no certificate.
pub(crate) fn dialling(
    verifier: impl ServerCertVerifier + 'static,
    alpns: Vec<Vec<u8>>,
    clock: SharedClock,
) -> rustls::ClientConfig {
    let mut config = rustls::ClientConfig::builder_with_details(provider(), Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has cipher suites of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = alpns;
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config
}

/// What holds for every listener.
pub(crate) fn listening(
    verifier: Arc<dyn ClientCertVerifier>,
    shown: CertifiedKey,
    alpns: Vec<Vec<u8>>,
    clock: SharedClock,
) -> rustls::ServerConfig {
    let mut config = rustls::ServerConfig::builder_with_details(provider(), Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has cipher suites of TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    config.alpn_protocols = alpns;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config
}

/// The reason behind a TLS alert (RFC 8446, 6.2) with which an agent refused us; `None` for alerts that are not about
/// certificates or protocols. Our verifiers raise 42, 45, 48 and 49; see [`error`].
pub(crate) fn reason_of_alert(alert: u8) -> Option<RefusalReason> {
    Some(match AlertDescription::from(alert) {
        AlertDescription::BadCertificate => RefusalReason::WrongIdentity,
        AlertDescription::AccessDenied => RefusalReason::WrongTrustDomain,
        AlertDescription::CertificateExpired => RefusalReason::CertificateExpired,
        AlertDescription::UnknownCA
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateRequired
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::DecryptError => RefusalReason::UntrustedCertificate,
        AlertDescription::NoApplicationProtocol
        | AlertDescription::ProtocolVersion
        | AlertDescription::HandshakeFailure => RefusalReason::IncompatibleVersion,
        _ => return None,
    })
}

/// The error that makes rustls send the alert of a reason.
fn error(reason: RefusalReason) -> rustls::Error {
    rustls::Error::InvalidCertificate(match reason {
        RefusalReason::WrongIdentity => CertificateError::NotValidForName,
        RefusalReason::WrongTrustDomain => CertificateError::ApplicationVerificationFailure,
        RefusalReason::CertificateExpired => CertificateError::Expired,
        _ => CertificateError::UnknownIssuer,
    })
}

struct ClientVerifier {
    own: Arc<Identity>,
    peers: watch::Receiver<Arc<Peers>>,
    clock: SharedClock,
    slot: Slot,
}

fn conclude(slot: &Slot, verdict: Result<Known, Denied>) -> Result<(), rustls::Error> {
    let outcome = verdict.as_ref().map(drop).map_err(|denied| error(denied.reason));
    // Set once: TLS 1.3 shows one certificate per handshake, and a slot belongs to one handshake.
    let _ = slot.set(verdict);
    outcome
}

/// The methods that both verifiers have: signatures of TLS 1.3 are verified, and there are no others.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = provider().signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Verifies what a listener shows, its certificate and the rest of the chain, by a function.
pub(crate) struct ServerVerifier<F>(pub(crate) F);

impl<F> ServerCertVerifier for ServerVerifier<F>
where
    F: Fn(&CertificateDer<'_>, &[CertificateDer<'_>]) -> Result<(), rustls::Error> + Send + Sync,
{
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        (self.0)(leaf, intermediates).map(|()| ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: which bundle counts depends on the name that will be shown.
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let peers = self.peers.borrow().clone();
        let verdict = verify::client(&self.own, &peers, Shown { leaf, intermediates }, self.clock.wall());
        conclude(&self.slot, verdict).map(|()| ClientCertVerified::assertion())
    }

    verify_signatures!();
}

impl<F> fmt::Debug for ServerVerifier<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerVerifier")
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientVerifier")
    }
}

/// rustls' time is our clock's.
struct ClockTime(SharedClock);

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.wall()))
    }
}

impl fmt::Debug for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockTime")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_learns_the_reason_from_the_alert() {
        use RefusalReason as R;
        for reason in [R::WrongIdentity, R::WrongTrustDomain, R::CertificateExpired, R::UntrustedCertificate] {
            let rustls::Error::InvalidCertificate(error) = error(reason) else { panic!("not about a certificate") };
            assert_eq!(reason_of_alert(AlertDescription::from(error).into()), Some(reason));
        }
        assert_eq!(reason_of_alert(120), Some(R::IncompatibleVersion));
        assert_eq!(reason_of_alert(80), None);
    }
}
