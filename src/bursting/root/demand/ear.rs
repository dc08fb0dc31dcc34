//! Who hears of the queue of one root: keeps the connection to the program beside its lead broker, and what it said last.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tributary_clock::{Mono, SharedClock};
use tributary_cluster::error::chain;
use tributary_tunnel::ends::handshake::Key;

use super::hear::{Connect, Frame, Frames, Lead, PURPOSE, Stream};
use crate::provider::materialize;

/// How long a connection may take.
const DIAL: Duration = Duration::from_secs(3);

/// Waits between attempts: at first, and at most.
pub(crate) const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];

/// How long nothing is heard before people are told why: a program is started again, and one that starts takes a while.
const PATIENCE: Duration = Duration::from_secs(10);

/// How soon what is new may follow: who says something new all the time is not listened to all the time.
const PACE: Duration = Duration::from_millis(200);

/// How often it is said on which ranks no more jobs may start. The program forgets what it was not told for three times as long.
const WISHES: Duration = Duration::from_secs(15);

/// The most that people are told of what somebody in the pod said.
const MOST_CHARACTERS: usize = 300;

/// A reason and a sentence.
pub(crate) type Trouble = (&'static str, String);

/// What was heard, and when; and why nothing is heard any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// The queue as it was told last, and when the program was heard last.
    pub(crate) picture: Option<(Arc<str>, Timestamp)>,
    /// Set when that has lasted for a while.
    pub(crate) trouble: Option<(Trouble, Timestamp)>,
}

/// Hears of the queue of one root, as long as it is polled.
pub(crate) struct Ear<N> {
    pub(crate) lead: Lead,
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) client: Client,
    pub(crate) clock: SharedClock,
    pub(crate) heard: Arc<Mutex<Heard>>,
    /// The ranks on which no more jobs may start, once that is known.
    pub(crate) closed: watch::Receiver<Option<String>>,
    /// Called when something is new.
    pub(crate) news: N,
}

impl<N: Fn() + Send + Sync> Ear<N> {
    pub(crate) async fn listen(self) {
        let (mut key, mut wait, mut well) = (None, AGAIN[0], self.clock.mono());
        loop {
            let before = well;
            let Err(trouble) = self.follow(&mut key, &mut well).await;
            self.fails(trouble, well);
            let is_soon = well > before || self.clock.mono().saturating_since(well) < PATIENCE;
            wait = pause(wait, is_soon);
            sleep(wait).await;
        }
    }

    /// Takes what is said until that ends. `well`: when there was no trouble for the last time.
    async fn follow(&self, key: &mut Option<Key>, well: &mut Mono) -> Result<std::convert::Infallible, Trouble> {
        let key = match key {
            Some(key) => key,
            None => key.insert(self.key().await?),
        };
        let not_said = |error: io::Error| unreadable(&format!("the program at {} is not heard: {error}", self.place()));
        let stream = timeout(DIAL, self.connect.connect(&self.lead)).await.map_err(io::Error::from).flatten();
        let stream: Box<dyn Stream> = stream.map_err(|error| self.not_reached(&error))?;
        let (mut frames, mut wishes) = Frames::begin(stream, key).await.map_err(not_said)?;
        let hears = async {
            loop {
                let frame = frames.next().await.map_err(not_said)?;
                if let Frame::Trouble(why) = frame {
                    self.fails(unreadable(&format!("the queue of the lead broker cannot be read: {why}")), *well);
                    continue;
                }
                *well = self.clock.mono();
                if self.hears(frame) {
                    (self.news)();
                    sleep(PACE).await;
                }
            }
        };
        let mut closed = self.closed.clone();
        let wishes = async {
            loop {
                let ranks = closed.borrow_and_update().clone();
                if let Some(ranks) = ranks {
                    wishes.closes(&ranks).await.map_err(not_said)?;
                }
                if let Ok(Err(_)) = timeout(WISHES, closed.changed()).await {
                    // Nobody says any more what is wished.
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! { ended = hears => ended, ended = wishes => ended }
    }

    /// Whether something is new.
    fn hears(&self, frame: Frame) -> bool {
        let (at, mut heard) = (self.clock.wall(), self.heard.lock());
        let is_new = frame != Frame::Alive || heard.trouble.is_some();
        let picture = match frame {
            Frame::Picture(text) => Some(text.into()),
            _ => heard.picture.take().map(|(picture, _)| picture),
        };
        *heard = Heard { picture: picture.map(|picture| (picture, at)), trouble: None };
        is_new
    }

    fn fails(&self, trouble: Trouble, well: Mono) {
        if self.clock.mono().saturating_since(well) < PATIENCE {
            return;
        }
        let trouble = match self.lead.simulated {
            // Its address leads nowhere, or to somebody else.
            true => {
                let pod = &self.lead.pod;
                ("NotCheckable", format!("the node of pod {pod} is simulated (kwok): nobody tells of a queue there"))
            }
            false => trouble,
        };
        let before = self.heard.lock().trouble.replace((trouble.clone(), self.clock.wall()));
        if before.is_none_or(|(before, _)| before != trouble) {
            (self.news)();
        }
    }

    /// The key of the instance's certificate.
    async fn key(&self) -> Result<Key, Trouble> {
        let Lead { namespace, secret: name, digest, .. } = &self.lead;
        let unknown = |why: &str| {
            unreadable(&format!(
                "the certificate in Secret {namespace}/{name} is needed to hear of the queue, and {why}"
            ))
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = secrets.get_opt(name).await.map_err(|error| unknown(&chain(&error)))?;
        let text = secret.and_then(materialize::certificate).ok_or_else(|| unknown("it is not there"))?;
        let certificate = tributary_flux::Certificate::parse(&text).map_err(|error| unknown(&error.to_string()))?;
        if certificate.digest().to_string() != *digest {
            return Err(unknown("it is another one than the instance was started with"));
        }
        Key::of_certificate(&text, PURPOSE).map_err(|error| unknown(&error.to_string()))
    }

    fn not_reached(&self, error: &io::Error) -> Trouble {
        let place = self.place();
        let text = match error.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "nobody at {place} tells of the queue: an instance that an older version has started does so from its next \
                 start on (agentctl restart, which ends its jobs); else its image has no Python that knows Flux (import \
                 flux), as the log of the pod says"
            ),
            _ => format!("{place}, where a program tells of the queue, is not reached: {error}"),
        };
        ("NotReached", plain(&text))
    }

    fn place(&self) -> String {
        let ends: Vec<_> = self.lead.ends.iter().map(ToString::to_string).collect();
        format!("{} (pod {})", ends.join(" and "), self.lead.pod)
    }
}

/// How long to wait after a failed attempt, and after one that waited so long. A program that starts is heard at once when it
/// is there, or the first jobs of an instance would wait for the next attempt.
fn pause(last: Duration, is_soon: bool) -> Duration {
    if is_soon { AGAIN[0] } else { AGAIN[1].min(last * 2) }
}

/// Trouble in words for people. Some of them are a user's: they stay one short line, without control characters.
pub(crate) fn unreadable(text: &str) -> Trouble {
    ("Unreadable", plain(text))
}

fn plain(text: &str) -> String {
    text.chars().take(MOST_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The danger: the first job of an instance waits for the next attempt.
    #[test]
    fn who_may_be_starting_is_asked_often_and_others_less_and_less() {
        assert_eq!(AGAIN.map(|last| pause(last, true)), [AGAIN[0]; 2]);
        let waits = (0..7).scan(AGAIN[0], |last, _| {
            *last = pause(*last, false);
            Some(last.as_secs())
        });
        assert_eq!(waits.collect::<Vec<_>>(), [1, 2, 4, 8, 15, 15, 15]);
    }

    #[test]
    fn what_a_user_says_stays_one_short_line() {
        let (reason, text) = unreadable(&format!("\u{1b}[2Jgone\n{}", "x".repeat(9_999)));
        assert_eq!((reason, text.chars().count()), ("Unreadable", MOST_CHARACTERS));
        assert!(text.starts_with(" [2Jgone x"), "{text}");
    }
}
