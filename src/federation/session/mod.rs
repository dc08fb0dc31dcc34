//! One session: everything said over one connection, as a state machine without input, output or clock.
//!
//! A driver feeds it ([`Session::handle`]) and asks it what to send ([`Session::poll_transmit`]), what happened
//! ([`Session::poll_event`]), and when to come back ([`Session::poll_timeout`]).
//!
//! ```text
//! each side:  Hello ─▶ (judge theirs) HelloAck ─▶ (theirs arrived) established
//!             Summary of all keys ─▶          ◀─ Want of what differs
//!             Put, newest state ─▶            then a Put per change, a Summary every minute
//!             Heartbeat every 1.5 s           nothing for 5 s: suspect; for 10 s: closed
//! ```
//!
//! States are *pulled*: a change marks a key, and when the link has room the newest state of that key is encoded. So a
//! slow link delays, and skips, but never queues. What is delivered, in the order of arrival:
//! - a put only if it is newer than what was delivered for that key, by (epoch, process, sequence); see [`inbox`];
//! - a snapshot as complete only if its sender marked it so, which it does when its caches are listed and its leadership
//!   is confirmed. A key whose state cannot travel is listed all the same, so that nobody concludes its absence.
mod established;
pub(crate) mod event;
pub(crate) mod hello;
pub(crate) mod inbox;
pub mod outbox;
pub(crate) mod validate;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use self::established::{Established, Speaker};
pub use self::event::{Event, Input, Lane, Misbehaviour, Sequences};
pub use self::hello::{Ending, Expected};
pub use self::inbox::{Inbox, Origin};
use tributary_clock::Mono;
use tributary_contract::ports::Outgoing;

use super::timers::Timers;
use super::wire::limits;
use super::wire::messages::{Decoded, Hello, Message};
use super::wire::registry::CloseCode;
use super::wire::version::WireVersion;

/// One session. See the module.
#[derive(Debug)]
pub struct Session {
    ours: Hello,
    expected: Expected,
    timers: Timers,
    speaker: Speaker,
    stage: Stage,
    hello_sent: bool,
    ack_due: Option<WireVersion>,
    last_heard: Mono,
    events: VecDeque<Event>,
}

#[derive(Debug)]
enum Stage {
    /// `theirs`: their hello and the version both speak.
    Greeting {
        deadline: Mono,
        theirs: Option<(Hello, WireVersion)>,
        acknowledged: bool,
    },
    Established(Box<Established>),
    Over,
}

impl Session {
    /// A session over a connection that was just made. `ours` is our hello.
    pub fn new(now: Mono, timers: Timers, ours: Hello, sequences: Sequences, expected: Expected) -> Self {
        let speaker = Speaker { peer: expected.name.clone(), epoch: ours.epoch, sequences };
        Self {
            ours,
            expected,
            timers,
            speaker,
            stage: Stage::Greeting { deadline: now + timers.handshake, theirs: None, acknowledged: false },
            hello_sent: false,
            ack_due: None,
            last_heard: now,
            events: VecDeque::new(),
        }
    }

    /// Takes an input. `inbox` is the one of this session's peer.
    pub fn handle(&mut self, now: Mono, inbox: &mut Inbox, input: Input) {
        if matches!(self.stage, Stage::Over) {
            return;
        }
        match input {
            Input::Frame(frame) => {
                self.heard(now);
                if let Err(ending) = self.frame(now, inbox, frame) {
                    self.end(ending);
                }
            }
            Input::Heard => self.heard(now),
            Input::Changed(key) => {
                // Before, the first summary says it.
                if let Stage::Established(on) = &mut self.stage {
                    on.changed(key);
                }
            }
            Input::Timeout => self.timeout(now),
        }
    }

    /// Appends the next frame to `buf`, if there is one. Call it again until it returns `None` or the link is full.
    pub fn poll_transmit(&mut self, outgoing: &dyn Outgoing, buf: &mut BytesMut) -> Option<Lane> {
        if matches!(self.stage, Stage::Over) {
            return None;
        }
        if !self.hello_sent {
            self.hello_sent = true;
            return self.send(Message::Hello(self.ours.clone()), Lane::Control, buf);
        }
        if let Some(version) = self.ack_due.take() {
            return self.send(Message::HelloAck(version), Lane::Control, buf);
        }
        let Stage::Established(on) = &mut self.stage else {
            return None;
        };
        let (message, lane) = on.transmit(&self.speaker, outgoing, &mut self.events)?;
        self.send(message, lane, buf)
    }

    /// What happened, in order; `None`: nothing more.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Session::handle`] with [`Input::Timeout`]; `None`: never again.
    pub fn poll_timeout(&self) -> Option<Mono> {
        match &self.stage {
            Stage::Greeting { deadline, .. } => Some(*deadline),
            Stage::Established(on) => {
                let limit = if on.suspect { self.timers.silent } else { self.timers.suspect };
                Some((self.last_heard + limit).min(on.next_timeout()))
            }
            Stage::Over => None,
        }
    }

    /// Whether both hellos are accepted and the session is not over.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established(_))
    }

    /// Whose words these are; `None` until established.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        match &self.stage {
            Stage::Established(on) => Some(&on.origin),
            _ => None,
        }
    }

    /// Whether nothing was heard for [`Timers::suspect`].
    pub(crate) fn is_suspect(&self) -> bool {
        matches!(&self.stage, Stage::Established(on) if on.suspect)
    }

    fn heard(&mut self, now: Mono) {
        self.last_heard = now;
        if let Stage::Established(on) = &mut self.stage
            && std::mem::take(&mut on.suspect)
        {
            self.events.push_back(Event::Recovered);
        }
    }

    fn end(&mut self, ending: Ending) {
        self.stage = Stage::Over;
        self.events.push_back(Event::Close(ending));
    }

    fn violation(&mut self, what: Misbehaviour, text: &str) -> Ending {
        self.events.push_back(Event::Misbehaved(what, text.to_owned()));
        Ending::new(CloseCode::Protocol, text)
    }

    fn frame(&mut self, now: Mono, inbox: &mut Inbox, frame: Bytes) -> Result<(), Ending> {
        use Misbehaviour::{Malformed, OutOfOrder};
        if matches!(self.stage, Stage::Greeting { .. }) && frame.len() > limits::HELLO_FRAME {
            return Err(self.violation(Malformed, "a frame before the hello is beyond the limit"));
        }
        let message = match Message::decode(frame) {
            Ok(Decoded::Known(message)) => message,
            Ok(Decoded::Unknown) => return Ok(()),
            Err(error) => return Err(self.violation(Malformed, &error.to_string())),
        };
        match (&mut self.stage, message) {
            (Stage::Over, _) => {}
            (Stage::Greeting { theirs: theirs @ None, .. }, Message::Hello(hello)) => {
                let version = hello::judge(&self.ours, &self.expected, &hello)?;
                self.ack_due = Some(version);
                *theirs = Some((hello, version));
                self.establish(now, inbox)?;
            }
            (Stage::Greeting { theirs: None, .. }, Message::HelloAck(_)) => {
                return Err(self.violation(OutOfOrder, "an acknowledgement before the hello"));
            }
            (Stage::Greeting { theirs: Some((_, ours)), acknowledged, .. }, Message::HelloAck(theirs)) => {
                let ours = *ours;
                if ours != theirs {
                    let text = format!("version {} is acknowledged, {} is the highest common one", theirs.0, ours.0);
                    return Err(self.violation(OutOfOrder, &text));
                }
                *acknowledged = true;
                self.establish(now, inbox)?;
            }
            (Stage::Established(_), Message::HelloAck(_)) => {}
            (Stage::Greeting { .. } | Stage::Established(_), Message::Hello(_)) => {
                return Err(self.violation(OutOfOrder, "a second hello"));
            }
            (Stage::Greeting { .. }, _) => {
                return Err(self.violation(OutOfOrder, "a state before the hello is acknowledged"));
            }
            (Stage::Established(on), message) => on.receive(inbox, message, &mut self.events),
        }
        Ok(())
    }

    fn establish(&mut self, now: Mono, inbox: &mut Inbox) -> Result<(), Ending> {
        let Stage::Greeting { theirs, acknowledged: true, .. } = &mut self.stage else {
            return Ok(());
        };
        let Some((theirs, version)) = theirs.take() else {
            return Ok(());
        };
        let origin = Origin { cluster_uid: theirs.cluster_uid.clone(), epoch: theirs.epoch, instance: theirs.instance };
        inbox.admit(&origin).map_err(|strange| hello::not_admitted(&theirs, &strange))?;
        self.stage =
            Stage::Established(Box::new(Established::new(now, &self.timers, origin, version, theirs.patience)));
        self.events.push_back(Event::Established(Box::new(theirs)));
        Ok(())
    }

    fn timeout(&mut self, now: Mono) {
        let silence = now.saturating_since(self.last_heard);
        match &mut self.stage {
            Stage::Greeting { deadline, .. } if now >= *deadline => {
                let seconds = self.timers.handshake.as_secs_f32();
                let text = format!("no accepted hello within {seconds} s");
                self.events.push_back(Event::Misbehaved(Misbehaviour::HalfOpen, text.clone()));
                self.end(Ending::new(CloseCode::Silent, text));
            }
            Stage::Established(_) if silence >= self.timers.silent => {
                let seconds = self.timers.silent.as_secs_f32();
                self.end(Ending::new(CloseCode::Silent, format!("nothing heard for {seconds} s")));
            }
            Stage::Established(on) => {
                if silence >= self.timers.suspect && !on.suspect {
                    on.suspect = true;
                    self.events.push_back(Event::Suspect);
                }
                on.timeout(now, &self.timers);
            }
            Stage::Greeting { .. } | Stage::Over => {}
        }
    }

    fn send(&mut self, message: Message, lane: Lane, buf: &mut BytesMut) -> Option<Lane> {
        match message.encode(buf) {
            Ok(()) => Some(lane),
            // Cannot be, by the limits; if it were, saying nothing would look like an absence.
            Err(error) => {
                self.end(Ending::new(CloseCode::Protocol, error.to_string()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
