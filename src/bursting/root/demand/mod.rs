//! Bursts on demand: whether anything asks for the brokers of a slot.
//!
//! | file | what it does | talks to |
//! |---|---|---|
//! | [`hear`] | what the queue asks for, as JSON, as soon as that changes | the program beside the lead broker |
//! | [`ear`] | keeps that connection, and what was heard last | the same, through [`hear`] |
//! | [`look`] | that JSON → ranks in use, and jobs that wait | nobody |
//! | [`ask`] | jobs that wait and the rank map → who asks for which slot | nobody |
//! | [`decide`] | that and time → whether a burst is awake, without flapping | nobody |
//! | [`looker`] | who is listened to, and what is seen of each slot | nobody |
pub mod ask;
pub(crate) mod decide;
pub(crate) mod ear;
pub mod hear;
pub mod look;
pub(crate) mod looker;

#[cfg(test)]
mod traces;
