//! What is said when a cluster joins, and why one is refused.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use jiff::Timestamp;
use tokio::io::AsyncRead;
use tributary_contract::{ClusterUid, PeerName};

use super::proto;
use super::token;
use crate::identity::TrustBundle;
use crate::identity::spiffe::{SpiffeError, check_cluster, check_trust_domain};
use crate::wire::registry::numbered;
use crate::wire::{frame, limits};

/// Bytes that are shown of a word of a stranger.
const SHOWN: usize = 64;

/// A word of a stranger, fit for a line of a log and for an answer.
fn shown(text: &str) -> String {
    limits::plain(text, SHOWN)
}

/// Who a cluster is: what the other side writes into its ClusterPeer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Introduction {
    /// Its name.
    pub cluster: PeerName,
    /// UID of its `kube-system` namespace.
    pub cluster_uid: ClusterUid,
    /// Its federation, if it insists on one.
    pub trust_domain: Option<String>,
    /// The authorities that may sign its certificate, PEM.
    pub trust_bundle: String,
    /// Where its agent is reached, `host:port`. Empty: it dials.
    pub endpoints: Vec<String>,
}

/// A request to join, as the listener hands it to its [`Registrar`](super::Registrar).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which token.
    pub token: String,
    /// What is kept of the secret that was shown ([`super::TokenSecret::hash`]).
    pub secret_hash: String,
    /// Who asks.
    pub who: Introduction,
    /// What its clock says.
    pub clock: Timestamp,
}

numbered! {
    /// Why a cluster may not join.
    Refusal {
        /// There is no such token, or its secret is another.
        WrongToken = 1,
        /// The token has ended.
        Expired = 2,
        /// All its uses are used up.
        UsedUp = 3,
        /// The clocks of both sides differ by more than certificates allow.
        ClockSkew = 4,
        /// Both insist on a federation, and not on the same.
        OtherFederation = 5,
        /// A cluster of that name is known already, with other authorities.
        NameTaken = 6,
        /// What was said of the cluster cannot be used.
        Unacceptable = 7,
        /// The agent could not carry it out now; nothing was used up.
        Unavailable = 8,
    }
}

/// A refusal with its sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// What was expected, what was shown.
    pub message: String,
}

impl Refusal {
    /// With a sentence: what was expected, what was shown.
    pub fn because(self, message: impl Into<String>) -> Refused {
        Refused { refusal: self, message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(number) => write!(f, "reason {number}"),
            known => write!(f, "{known:?}"),
        }
    }
}

impl Introduction {
    /// Whether it can become a ClusterPeer; else what is wrong with it.
    pub fn check(&self) -> Result<TrustBundle, String> {
        let (cluster, domain) = (self.cluster.as_str(), self.trust_domain.as_deref().unwrap_or("unset"));
        check_cluster(cluster).map_err(|_| SpiffeError::Cluster(shown(cluster)).to_string())?;
        check_trust_domain(domain).map_err(|_| SpiffeError::TrustDomain(shown(domain)).to_string())?;
        let uid = self.cluster_uid.as_str();
        if uid.is_empty() || uid.len() > limits::UID || !uid.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it names no UID of its cluster".to_owned());
        }
        if self.trust_bundle.len() > limits::TRUST_BUNDLE {
            return Err(format!("its trust bundle is beyond {} bytes", limits::TRUST_BUNDLE));
        }
        if self.endpoints.len() > limits::ENDPOINTS {
            return Err(format!("it has more than {} endpoints", limits::ENDPOINTS));
        }
        let readable = |text: &String| text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(wrong) = self.endpoints.iter().find(|endpoint| !readable(endpoint)) {
            return Err(format!("{:?} is no endpoint", shown(wrong)));
        }
        TrustBundle::from_pem(self.trust_bundle.as_bytes())
            .map_err(|error| format!("its trust bundle cannot be used: {error}"))
    }
}

/// What a ClusterPeer holds of a cluster, for whoever is told of it again.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The UID that is pinned.
    pub cluster_uid: Option<&'a str>,
    /// Its authorities, PEM; unset or blank: ours.
    pub trust_bundle: Option<&'a str>,
    /// Ours.
    pub own_bundle: &'a str,
}

impl Known<'_> {
    /// SHA-256 (hex) of its authorities; none, if they cannot be read.
    pub fn authorities(&self) -> BTreeSet<String> {
        let bundle = self.trust_bundle.filter(|pem| !pem.trim().is_empty()).unwrap_or(self.own_bundle);
        TrustBundle::from_pem(bundle.as_bytes()).map(|bundle| bundle.fingerprints().clone()).unwrap_or_default()
    }

    /// Whether a cluster with these authorities, and this UID if it is known, is this one. Whoever says so has shown no key of
    /// it: with one authority more, it would be somebody else as well. With one less, as after a rotation of which its owner
    /// here had written both, it may be another cluster that one of them signs as well: then the pinned UID decides. None is
    /// taken away for it: what is known stays.
    ///
    /// # Errors
    /// What tells the two apart.
    pub fn is(&self, cluster_uid: Option<&str>, authorities: &BTreeSet<String>) -> Result<(), &'static str> {
        if let (Some(pinned), Some(shown)) = (self.cluster_uid, cluster_uid)
            && pinned != shown
        {
            return Err("of a cluster with another UID");
        }
        let known = self.authorities();
        let same = known == *authorities || self.cluster_uid.is_some() && authorities.is_subset(&known);
        if same { Ok(()) } else { Err("with other authorities") }
    }
}

/// Endpoints of a ClusterPeer after its cluster has `said` where it is reached. It has shown no key: where it was reached
/// stays a way to it. Names stay for good, since people wrote them; of addresses, each move leaves one that leads nowhere.
pub fn endpoints(said: &[String], known: &[String]) -> Vec<String> {
    let kept = known.iter().filter(|endpoint| !said.contains(endpoint));
    let (addresses, names): (Vec<_>, Vec<_>) = kept.partition(|endpoint| endpoint.parse::<SocketAddr>().is_ok());
    said.iter().chain(names).chain(addresses.into_iter().take(limits::ENDPOINTS)).cloned().collect()
}

impl From<&Introduction> for proto::Introduction {
    fn from(who: &Introduction) -> Self {
        Self {
            cluster: who.cluster.to_string(),
            cluster_uid: who.cluster_uid.to_string(),
            trust_domain: who.trust_domain.clone(),
            trust_bundle: who.trust_bundle.clone(),
            endpoints: who.endpoints.clone(),
        }
    }
}

impl From<proto::Introduction> for Introduction {
    fn from(who: proto::Introduction) -> Self {
        Self {
            cluster: who.cluster.into(),
            cluster_uid: who.cluster_uid.into(),
            trust_domain: who.trust_domain,
            trust_bundle: who.trust_bundle,
            endpoints: who.endpoints,
        }
    }
}

impl Request {
    /// Reads the only frame of a stream.
    ///
    /// # Errors
    /// It is none. The inner one: what it says is no request.
    pub async fn receive<R: AsyncRead + Unpin>(stream: &mut R) -> io::Result<Result<Self, Refused>> {
        let request: proto::Request = frame::receive_only(stream, limits::ENROL_FRAME).await?;
        Ok(request.try_into())
    }

    /// The names of token and cluster for a line of a log: nobody knows yet who says them.
    pub fn names(&self) -> [String; 2] {
        [shown(&self.token), shown(self.who.cluster.as_str())]
    }
}

impl TryFrom<proto::Request> for Request {
    type Error = Refused;

    fn try_from(request: proto::Request) -> Result<Self, Refused> {
        let incomplete = || Refusal::Unacceptable.because("the request is incomplete");
        Ok(Self {
            secret_hash: token::hash(&request.secret),
            token: request.token,
            who: request.who.ok_or_else(incomplete)?.into(),
            clock: Timestamp::from_millisecond(request.clock).map_err(|_| incomplete())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_change() {
        let shown: Vec<String> = Refusal::ALL.iter().map(|one| format!("{} {one}", one.number())).collect();
        assert_eq!(
            shown.join(", "),
            "1 WrongToken, 2 Expired, 3 UsedUp, 4 ClockSkew, 5 OtherFederation, 6 NameTaken, 7 Unacceptable, \
             8 Unavailable"
        );
        for one in Refusal::ALL {
            assert_eq!(Refusal::from_number(one.number()), *one);
        }
        assert_eq!(Refusal::from_number(99).number(), 99);
    }

    #[test]
    fn what_cannot_become_a_cluster_peer_is_refused() {
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let authority = crate::identity::Authority::create("east", now).unwrap();
        let good = Introduction {
            cluster: "east".into(),
            cluster_uid: "1-2".into(),
            trust_domain: None,
            trust_bundle: authority.certificate().to_owned(),
            endpoints: vec!["203.0.113.7:30946".into()],
        };
        assert!(good.check().is_ok());
        let bad = [
            Introduction { cluster: "East!".into(), ..good.clone() },
            Introduction { cluster_uid: "".into(), ..good.clone() },
            Introduction { trust_bundle: String::new(), ..good.clone() },
            Introduction { trust_bundle: "x".repeat(limits::TRUST_BUNDLE + 1), ..good.clone() },
            Introduction { endpoints: vec!["a b:1".into()], ..good.clone() },
            Introduction { endpoints: vec!["a:1".into(); limits::ENDPOINTS + 1], ..good.clone() },
        ];
        for one in bad {
            assert!(one.check().is_err(), "{one:?}");
        }
    }

    /// The danger: who has a token takes away where a cluster that is known is reached, or who links it again after each move loses
    /// the name that he has written himself.
    #[test]
    fn names_stay_and_of_addresses_the_newest() {
        let address = |one: usize| format!("203.0.113.{one}:7946");
        let names = ["srv:west.example.org".to_owned(), "west.example.org:7946".to_owned()];
        let mut known = vec![address(0), names[0].clone(), names[1].clone()];
        for one in 1..40 {
            known = endpoints(&[address(one)], &known);
        }
        let newest = (0..limits::ENDPOINTS).map(|ago| address(38 - ago));
        let expected: Vec<String> = [address(39)].into_iter().chain(names).chain(newest).collect();
        assert_eq!(known, expected);
        assert_eq!(endpoints(&[address(39)], &known), known, "who says the same changes nothing");
        let lies: Vec<String> = (0..limits::ENDPOINTS).map(|one| format!("192.0.2.{one}:1")).collect();
        let after = endpoints(&lies, &[address(1), "[2001:db8::1]:7946".to_owned()]);
        assert_eq!(after[lies.len()..], [address(1), "[2001:db8::1]:7946".to_owned()]);
    }

    /// The danger: of a cluster that has replaced its authority, a peer's owner knows the old and the new one, and it cannot join
    /// again; or who is signed by one authority of several that are known takes the name.
    #[test]
    fn fewer_authorities_than_are_known_are_of_the_same_cluster_if_its_uid_is_known() {
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let pems = ["west", "west", "west"].map(|name| {
            let authority = crate::identity::Authority::create(name, now).unwrap();
            authority.certificate().to_owned()
        });
        let both = pems[..2].concat();
        let is = |pinned: Option<&str>, shown: Option<&str>, bundle: &str| {
            let known = Known { cluster_uid: pinned, trust_bundle: Some(&both), own_bundle: "" };
            known.is(shown, TrustBundle::from_pem(bundle.as_bytes()).unwrap().fingerprints())
        };
        let (uid, other, authorities) =
            (Some("1-2"), Err("of a cluster with another UID"), Err("with other authorities"));
        for one in [&pems[0], &pems[1], &both] {
            assert_eq!(is(uid, uid, one), Ok(()));
            assert_eq!(is(uid, None, one), Ok(()), "of the token alone");
            assert_eq!(is(uid, Some("3-4"), one), other);
            let unpinned = if *one == both { Ok(()) } else { authorities };
            assert_eq!(is(None, uid, one), unpinned);
        }
        for one in [&pems[2], &format!("{both}{}", pems[2]), &format!("{}{}", pems[1], pems[2])] {
            assert_eq!(is(uid, uid, one), authorities);
        }
    }

    /// Nobody knows who asks until the secret is found right, and the answer has to fit its frame even then.
    #[test]
    fn what_strangers_say_is_shown_as_one_short_line() {
        let long = "west\n\u{1b}[31mERROR all is lost ".repeat(2_000);
        let good = Introduction {
            cluster: "west".into(),
            cluster_uid: "uid-of-west".into(),
            endpoints: vec!["203.0.113.7:7946".to_owned()],
            ..Introduction::default()
        };
        let wrong = [
            Introduction { cluster: long.as_str().into(), ..good.clone() },
            Introduction { cluster_uid: "uid\n".into(), ..good.clone() },
            Introduction { trust_domain: Some(long.clone()), ..good.clone() },
            Introduction { endpoints: vec![long.clone()], ..good },
        ];
        for who in wrong {
            let problem = who.check().unwrap_err();
            assert!(problem.len() < 300 && !problem.contains(char::is_control), "{problem}");
            let clock = Timestamp::UNIX_EPOCH;
            let request = Request { token: long.clone(), secret_hash: String::new(), who, clock };
            for name in request.names() {
                assert!(name.len() <= SHOWN && !name.contains(char::is_control), "{name}");
            }
        }
    }
}
