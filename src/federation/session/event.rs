//! What goes into a session and what comes out of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tributary_contract::ports::{State, StateKey};
use tributary_contract::{Capacity, Epoch};

use super::hello::Ending;
use crate::wire::messages::Hello;

/// Positions in what this process says, counted over all its sessions.
#[derive(Clone, Debug, Default)]
pub struct Sequences(Arc<AtomicU64>);

impl Sequences {
    /// The next position; the first is 1.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// What a session is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A whole frame arrived.
    Frame(Bytes),
    /// Some bytes arrived: a sign of life while a large frame is on its way.
    Heard,
    /// The state of this key changed.
    Changed(StateKey),
    /// The time [`super::Session::poll_timeout`] asked for has come.
    Timeout,
}

/// What a frame to be sent is part of; the order is the order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Hello and heartbeat: small, and late ones make a peer suspect.
    Control,
    /// Summaries, wants and states.
    State,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Both hellos are accepted.
    Established(Box<Hello>),
    /// A heartbeat brought another capacity than the one before.
    Capacity(Option<Capacity>),
    /// Nothing was heard for [`crate::timers::Timers::suspect`].
    Suspect,
    /// Something was heard again.
    Recovered,
    /// A newer state of the peer.
    Put {
        /// Leadership of the peer.
        epoch: Epoch,
        /// The key.
        key: StateKey,
        /// The state.
        state: State,
    },
    /// Keys of the peer whose newest state is the one that was delivered last.
    Unchanged {
        /// Leadership of the peer.
        epoch: Epoch,
        /// The keys.
        keys: Vec<StateKey>,
    },
    /// All keys of the peer.
    CompleteSnapshot {
        /// Leadership of the peer.
        epoch: Epoch,
        /// The keys.
        keys: Vec<StateKey>,
    },
    /// A state of ours that cannot be sent, or that the peer cannot use.
    Undeliverable {
        /// The key.
        key: StateKey,
        /// One sentence.
        problem: String,
    },
    /// The peer did something it should not, with a sentence. The session lives on unless [`Event::Close`] follows.
    Misbehaved(Misbehaviour, String),
    /// The session is over: close the connection. The last event.
    Close(Ending),
}

/// What peers do that they should not. Each is counted, and logged once in a while per peer; none of it costs more than
/// a bounded amount of memory, and others do not notice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Misbehaviour {
    /// A frame that is no message, or beyond a limit. Ends the connection.
    Malformed,
    /// A message that has no place at this point. Ends the connection.
    OutOfOrder,
    /// A connection without an accepted hello in time. Ends it.
    HalfOpen,
    /// A state that cannot be used. Its sender is told, and the other states live on.
    Unusable,
    /// More states than [`crate::wire::limits::KEYS_PER_PEER`]. The sender is told of those beyond.
    TooManyKeys,
    /// States that weigh more than [`crate::wire::limits::STATES_OF_A_PEER`] together. The sender is told.
    TooMuchState,
    /// More frames, or more streams, than a peer has reason to send. They are read more slowly.
    Flood,
    /// What we send is not read. Ends the connection.
    NotReading,
    /// A handshake that is not completed in time, or that is none: nobody knows whose. Packets of a peer that are lost on their
    /// way look like that, too.
    Stranger,
}

impl Misbehaviour {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: &'static [Self] = &[
        Self::Malformed,
        Self::OutOfOrder,
        Self::HalfOpen,
        Self::Unusable,
        Self::TooManyKeys,
        Self::TooMuchState,
        Self::Flood,
        Self::NotReading,
        Self::Stranger,
    ];

    /// The word in metrics and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OutOfOrder => "out_of_order",
            Self::HalfOpen => "half_open",
            Self::Unusable => "unusable",
            Self::TooManyKeys => "too_many_keys",
            Self::TooMuchState => "too_much_state",
            Self::Flood => "flood",
            Self::NotReading => "not_reading",
            Self::Stranger => "stranger",
        }
    }
}
