//! The authority of a cluster that is its own, and its replacement by the next one, pure.
//!
//! A replacement has three turns, each of which keeps every peer able to verify every certificate in use:
//!
//! 1. [`Turn::Announce`]: the next authority is made and trusted, and signs nothing yet. Peers are told.
//! 2. [`Turn::Switch`]: all peers know it, or had time enough. It signs from now on; the one before stays trusted.
//! 3. [`Turn::Forget`]: the last certificate of the one before has ended. It is trusted no more. Peers are told.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::authority::{Authority, IssueError};

/// The authorities of one cluster.
pub struct Authorities {
    /// The one that signs.
    pub active: Authority,
    /// The one that will sign, and when it was announced.
    pub next: Option<(Authority, Timestamp)>,
    /// The certificate (PEM) of the one that signed before, and when its last certificate ends.
    pub previous: Option<(String, Timestamp)>,
}

/// One step of a replacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Make the next authority.
    Announce,
    /// Sign with it.
    Switch,
    /// Trust the one before no more.
    Forget,
}

/// What is known when the next step is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The time.
    pub now: Timestamp,
    /// Somebody asked for another authority.
    pub asked: bool,
    /// Every peer has taken the bundle with the next authority.
    pub known_to_all: bool,
    /// How long certificates are valid.
    pub validity: Duration,
}

impl Authorities {
    /// The authorities of a cluster that has just made its first.
    pub fn new(active: Authority) -> Self {
        Self { active, next: None, previous: None }
    }

    /// All that are trusted, PEM: the content of `ca.crt`. The one that signs comes first.
    pub fn trust_bundle(&self) -> String {
        let next = self.next.as_ref().map_or("", |(next, _)| next.certificate());
        let previous = self.previous.as_ref().map_or("", |(previous, _)| previous.as_str());
        format!("{}{next}{previous}", self.active.certificate())
    }

    /// The step that is due. Without being asked, the authority is replaced once it could not sign for two
    /// certificates' lives any more.
    pub fn due(&self, at: Situation) -> Option<Turn> {
        let life = SignedDuration::try_from(at.validity).unwrap_or(SignedDuration::MAX);
        if let Some((_, ends)) = &self.previous
            && at.now >= *ends
        {
            return Some(Turn::Forget);
        }
        match &self.next {
            // A peer that is away for longer than a certificate's life has to be linked again.
            Some((_, since)) if at.known_to_all || at.now.duration_since(*since) >= life => Some(Turn::Switch),
            Some(_) => None,
            None => {
                let ending = self.active.not_after().duration_since(at.now) < life.saturating_mul(2);
                // One after the other: three authorities at a time would be one that nobody has agreed to.
                ((at.asked || ending) && self.previous.is_none()).then_some(Turn::Announce)
            }
        }
    }

    /// Takes a step; the leaf is to be issued anew afterwards.
    pub fn take(self, turn: Turn, now: Timestamp, validity: Duration) -> Result<Self, IssueError> {
        Ok(match turn {
            Turn::Announce => {
                let next = Authority::create(self.active.trust_domain(), now)?;
                Self { next: Some((next, now)), ..self }
            }
            Turn::Switch => match self.next {
                Some((next, _)) => {
                    let life = SignedDuration::try_from(validity).unwrap_or(SignedDuration::MAX);
                    let ends = now.checked_add(life).unwrap_or(Timestamp::MAX);
                    let previous = Some((self.active.certificate().to_owned(), ends));
                    Self { active: next, next: None, previous }
                }
                None => self,
            },
            Turn::Forget => Self { previous: None, ..self },
        })
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities")
            .field("active", &self.active)
            .field("next", &self.next)
            .field("previous", &self.previous.as_ref().map(|(_, ends)| ends))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::trust::Usage;
    use crate::identity::{Identity, Material, Origin, TrustBundle};

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(minutes: i64) -> Timestamp {
        "2025-06-01T12:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
    }

    fn situation(minutes: i64, asked: bool, known_to_all: bool) -> Situation {
        Situation { now: at(minutes), asked, known_to_all, validity: HOUR }
    }

    /// Issues a leaf and looks whether a peer with `bundle` takes it.
    fn taken(by: &Authorities, bundle: &str, minutes: i64) -> bool {
        let leaf = by.active.issue("east", at(minutes), HOUR).unwrap();
        let material = Material::gather(|part| {
            Some(match part {
                "tls.crt" => leaf.certificate().into(),
                "tls.key" => leaf.expose_key().into(),
                _ => by.trust_bundle().into_bytes(),
            })
        });
        let own = Identity::from_material(&material, &Origin::Secret("own".into()), "east", at(minutes)).unwrap();
        let bundle = TrustBundle::from_pem(bundle.as_bytes()).unwrap();
        bundle.verify(Usage::Server, &own.chain()[0], &[], at(minutes)).is_ok()
    }

    #[test]
    fn a_peer_that_follows_can_verify_at_every_turn() {
        let first = Authorities::new(Authority::create("east", at(0)).unwrap());
        let before = first.trust_bundle();
        assert_eq!(first.due(situation(1, false, true)), None);
        assert_eq!(first.due(situation(1, true, true)), Some(Turn::Announce));
        let announced = first.take(Turn::Announce, at(1), HOUR).unwrap();
        assert!(taken(&announced, &before, 1), "the next one signs nothing yet");

        assert_eq!(announced.due(situation(2, true, false)), None, "not everybody knows it");
        assert_eq!(announced.due(situation(61, true, false)), Some(Turn::Switch), "they had time enough");
        assert_eq!(announced.due(situation(2, true, true)), Some(Turn::Switch));
        let told = announced.trust_bundle();
        let switched = announced.take(Turn::Switch, at(2), HOUR).unwrap();
        assert!(taken(&switched, &told, 2));
        assert!(!taken(&switched, &before, 2), "who was not told does not follow");

        assert_eq!(switched.due(situation(61, true, true)), None, "certificates of the one before may still be in use");
        assert_eq!(switched.due(situation(62, false, true)), Some(Turn::Forget));
        let forgotten = switched.take(Turn::Forget, at(62), HOUR).unwrap();
        assert!(taken(&forgotten, &told, 62));
        assert_eq!(TrustBundle::from_pem(forgotten.trust_bundle().as_bytes()).unwrap().fingerprints().len(), 1);
    }

    #[test]
    fn an_authority_that_ends_is_replaced_unasked() {
        let authorities = Authorities::new(Authority::create("east", at(0)).unwrap());
        let end = authorities.active.not_after();
        let near = |hours| Situation { now: end - SignedDuration::from_hours(hours), ..situation(0, false, true) };
        assert_eq!(authorities.due(near(3)), None);
        assert_eq!(authorities.due(near(1)), Some(Turn::Announce));
    }

    #[test]
    fn debug_shows_no_key() {
        let authorities = Authorities::new(Authority::create("east", at(0)).unwrap());
        let shown = format!("{:?}", authorities.take(Turn::Announce, at(0), HOUR).unwrap());
        assert!(!shown.contains("PRIVATE"), "{shown}");
    }
}
