//! What is found out before the pods of a burst are made: whether their brokers will be able to join the instance.
//!
//! | file | what it does | talks to the network |
//! |---|---|---|
//! | [`attempt`] | when the lead is dialled, what waits for that, and how it stands | no |
//! | [`facts`] | what offer, template and nodes say about each other | no |
//! | [`lead`] | dials the lead broker, and lets it prove its certificate | yes |
//!
//! Pods of a burst wait [`LONGEST_WAIT`] for the lead to answer as it should, and then are made whatever was found: the
//! preflight says why brokers will not join, it does not keep them from trying. While they have not joined, the lead is
//! looked at again, so that what was put right shows. Where nodes are simulated no broker runs, and nothing is dialled.
//!
//! The lead's address is the word of a user of the peer. The peer is told whether its lead broker was reached, with the
//! certificate of its instance, or not; what else was seen, and when, would tell that user who listens where in this
//! cluster's networks, so it stays here, in the HostedBurst. All that does not pass takes equally long.
pub mod attempt;
pub(crate) mod facts;
pub mod lead;

use std::time::Duration;

/// How long the lead may take to take a connection and to prove its certificate, all its addresses together.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(3);
/// How long pods wait for that, unless it passes before: several round trips around the world.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// When a peer is told that its lead was not reached, counted from the first look: a look is over by then, whatever it saw.
/// The rest is for the task to be run at all.
pub(crate) const TOLD_AFTER: Duration = Duration::from_millis(3_500);
/// How often the lead is looked at again while brokers are missing and the last look did not find all well.
pub(crate) const AGAIN: Duration = Duration::from_secs(15);
/// A lead that refuses connections for longer than this is not just about to start.
pub(crate) const STARTING: Duration = Duration::from_secs(60);
