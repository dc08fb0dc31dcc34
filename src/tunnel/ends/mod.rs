//! Both ends of the tunnel in the pods of brokers, so that agents only relay bytes: they can be killed and replaced while a
//! connection lives.
//!
//! ```text
//! broker ─TCP─▶ burst's end ─TCP─▶ agent ══ stream of kind Tunnel ══ agent ─TCP─▶ lead's end ─TCP─▶ lead broker
//!               (opens)            (relays)                          (relays)     (answers)
//! ```
//!
//! A broker of a burst connects to the end in its own pod. That one dials the lead Service of the burst, as the broker would,
//! and says [`MAGIC`], which no broker says. The agent there answers with one byte ([`RELAYED`], [`NO_ENDS`]), and from then on
//! the two ends speak with each other: first each shows that it knows the instance's certificate ([`handshake`]), then a
//! [`crate::pump`] on each side carries the connection. When any hop breaks, or nothing comes for a while, the burst's end
//! dials again, whichever agent is there then.
//!
//! Where the other side has no end (an older agent, an older pod, another way than the tunnel), the burst's end passes the
//! connection on as it is: it then ends in the agents, as without it.
pub mod burst;
pub mod handshake;
pub mod lead;
#[cfg(test)]
mod tests;

/// What the burst's end says to the agent first. A broker begins with 0xff (ZMTP).
pub const MAGIC: [u8; 8] = *b"\0tribut1";

/// The agent's answer: what follows is the lead's end.
pub const RELAYED: u8 = 1;

/// The agent's answer: there is no end at the lead, or not for agents of its version.
pub const NO_ENDS: u8 = 2;

/// What a broker says first, if it is one that answers.
pub(crate) const BROKER: u8 = 0xff;
