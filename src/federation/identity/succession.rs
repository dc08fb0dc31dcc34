//! How peers learn of a new authority: a new trust bundle counts if an authority of the one before has signed it.
//!
//! A live session alone proves only the certificate of a day. If that were enough, whoever steals it could install an
//! authority of his own for good; so the new bundle must come from whoever holds the authority's key.

use jiff::Timestamp;
use rustls::SignatureScheme;
use tributary_contract::PeerName;
use tributary_contract::ports::TrustOffer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::{Authority, IssueError};
use super::trust::{TrustBundle, TrustBundleError, provider};
use crate::wire::limits;

/// Separates these signatures from others of the same key, such as those under certificates.
const DOMAIN: &[u8] = b"tributary trust bundle/1\0";

/// Authorities a cluster may have at a time: while one is replaced there are two.
const AUTHORITIES: usize = 4;

/// Why an offer does not count.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OfferError {
    /// Not a bundle, or too large.
    #[error("failed to use the trust bundle that is offered")]
    Bundle(#[from] TrustBundleError),
    /// More than a replacement needs.
    #[error("the trust bundle that is offered has too many authorities or bytes")]
    TooLarge,
    /// Nobody who is trusted says so.
    #[error("no authority that is trusted so far has signed the trust bundle that is offered")]
    NotSigned,
    /// It would stand for other ids.
    #[error("the trust bundle that is offered stands for another trust domain than the one before")]
    OtherTrustDomain,
    /// It is from before: an authority comes back that was retired, or the newest one is missing.
    #[error(
        "the trust bundle that is offered is older than the one before: it lacks the newest authority that is trusted, or \
         adds one that was made earlier"
    )]
    Retired,
    /// It would end at once.
    #[error("the trust bundle that is offered has no authority that is valid now")]
    NotValid,
}

/// The offer of `bundle` (PEM) by cluster `own`, signed by `signer`.
pub fn offer(own: &PeerName, bundle: &str, signer: &Authority) -> Result<TrustOffer, IssueError> {
    let signature = signer.sign(&message(own, bundle))?;
    Ok(TrustOffer { bundle: bundle.to_owned(), signatures: vec![signature] })
}

/// The bundle of `peer` from now on, if its offer counts for whoever trusts `current`.
pub fn accept(
    current: &TrustBundle,
    peer: &PeerName,
    offer: &TrustOffer,
    now: Timestamp,
) -> Result<TrustBundle, OfferError> {
    if offer.bundle.len() > limits::TRUST_BUNDLE || offer.signatures.len() > AUTHORITIES {
        return Err(OfferError::TooLarge);
    }
    let message = message(peer, &offer.bundle);
    let signed =
        |signature: &Vec<u8>| current.valid_at(now).any(|authority| has_signed(authority, &message, signature));
    if !offer.signatures.iter().any(signed) {
        return Err(OfferError::NotSigned);
    }
    let new = TrustBundle::from_pem(offer.bundle.as_bytes())?;
    if new.certificates().count() > AUTHORITIES {
        return Err(OfferError::TooLarge);
    }
    if new.trust_domains() != current.trust_domains() {
        return Err(OfferError::OtherTrustDomain);
    }
    if !new.follows(current) {
        return Err(OfferError::Retired);
    }
    if new.valid_at(now).next().is_none() {
        return Err(OfferError::NotValid);
    }
    Ok(new)
}

fn message(cluster: &PeerName, bundle: &str) -> Vec<u8> {
    [DOMAIN, cluster.as_str().as_bytes(), b"\0", bundle.as_bytes()].concat()
}

/// Whether the key of `authority` (ECDSA P-256) made this signature.
fn has_signed(authority: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(authority) else { return false };
    let key = certificate.public_key().subject_public_key.data.as_ref();
    let algorithms = provider().signature_verification_algorithms;
    let ecdsa = algorithms.mapping.iter().find(|(scheme, _)| *scheme == SignatureScheme::ECDSA_NISTP256_SHA256);
    ecdsa.is_some_and(|(_, algorithms)| {
        algorithms.iter().any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::Authorities;
    use crate::identity::rotation::Turn;

    fn now() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    fn bundle(text: &str) -> TrustBundle {
        TrustBundle::from_pem(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_peer_follows_a_whole_replacement() {
        let (east, hour) = (PeerName::from("east"), Duration::from_secs(3600));
        let mut authorities = Authorities::new(Authority::create("east", now()).unwrap());
        let mut trusted = bundle(&authorities.trust_bundle());
        for turn in [Turn::Announce, Turn::Switch, Turn::Forget] {
            authorities = authorities.take(turn, now(), hour).unwrap();
            let offer = offer(&east, &authorities.trust_bundle(), &authorities.active).unwrap();
            trusted = accept(&trusted, &east, &offer, now()).unwrap();
            assert_eq!(trusted.fingerprints(), bundle(&authorities.trust_bundle()).fingerprints(), "{turn:?}");
        }
        assert_eq!(trusted.fingerprints().len(), 1);
    }

    #[test]
    fn what_the_authority_did_not_sign_counts_for_nothing() {
        let (east, west) = (PeerName::from("east"), PeerName::from("west"));
        let [own, thief] = ["east", "east"].map(|name| Authority::create(name, now()).unwrap());
        let trusted = bundle(own.certificate());
        let both = format!("{}{}", own.certificate(), thief.certificate());
        let by_thief = offer(&east, &both, &thief).unwrap();
        assert_eq!(accept(&trusted, &east, &by_thief, now()).unwrap_err(), OfferError::NotSigned);

        let genuine = offer(&east, &both, &own).unwrap();
        assert!(accept(&trusted, &east, &genuine, now()).is_ok());
        assert_eq!(accept(&trusted, &west, &genuine, now()).unwrap_err(), OfferError::NotSigned, "of another cluster");
        let changed = TrustOffer { bundle: thief.certificate().to_owned(), ..genuine.clone() };
        assert_eq!(accept(&trusted, &east, &changed, now()).unwrap_err(), OfferError::NotSigned);
        let unsigned = TrustOffer { signatures: Vec::new(), ..genuine.clone() };
        assert_eq!(accept(&trusted, &east, &unsigned, now()).unwrap_err(), OfferError::NotSigned);
        let many = TrustOffer { signatures: vec![Vec::new(); 5], ..genuine };
        assert_eq!(accept(&trusted, &east, &many, now()).unwrap_err(), OfferError::TooLarge);

        let foreign = Authority::create("lake", now()).unwrap();
        let other = offer(&east, foreign.certificate(), &own).unwrap();
        assert_eq!(accept(&trusted, &east, &other, now()).unwrap_err(), OfferError::OtherTrustDomain);
        let empty = offer(&east, "", &own).unwrap();
        assert!(matches!(accept(&trusted, &east, &empty, now()), Err(OfferError::Bundle(_))));
        let late = now() + jiff::SignedDuration::from_hours(24 * 366 * 11);
        assert_eq!(
            accept(&trusted, &east, &offer(&east, &both, &own).unwrap(), late).unwrap_err(),
            OfferError::NotSigned,
            "an authority that has ended has no successor"
        );
    }

    /// One whole replacement of `a` by `b`, and the announcement of `c`: what was offered, in its order.
    fn history(own: &PeerName) -> Vec<TrustOffer> {
        let hour = Duration::from_secs(3600);
        let mut authorities = Authorities::new(Authority::create("east", now()).unwrap());
        let mut offers = Vec::new();
        for (days, turn) in [(1, Turn::Announce), (2, Turn::Switch), (3, Turn::Forget), (4, Turn::Announce)] {
            authorities = authorities.take(turn, now() + jiff::SignedDuration::from_hours(24 * days), hour).unwrap();
            offers.push(offer(own, &authorities.trust_bundle(), &authorities.active).unwrap());
        }
        offers
    }

    #[test]
    fn an_offer_that_is_replayed_brings_no_retired_authority_back_and_takes_no_new_one_away() {
        let east = PeerName::from("east");
        let later = now() + jiff::SignedDuration::from_hours(24 * 5);
        let offers = history(&east);
        let [_announced, switched, forgotten, next] = &offers[..] else { panic!("{offers:?}") };
        let trusted = |offer: &TrustOffer| bundle(&offer.bundle);
        let replayed =
            |on: &TrustOffer, old: &TrustOffer| accept(&trusted(on), &east, old, later).map(|_| ()).unwrap_err();
        // Whoever holds the retired key would be this cluster again, for good.
        assert_eq!(replayed(forgotten, switched), OfferError::Retired);
        assert_eq!(replayed(next, switched), OfferError::Retired);
        // The cluster would not be known any more once it signs with the next one.
        assert_eq!(replayed(next, forgotten), OfferError::Retired);
        assert!(accept(&trusted(forgotten), &east, next, later).is_ok());
    }
}
