//! Bursts on demand: whether anything asks for the brokers of a slot.
//!
//! | file | what it does | talks to |
//! |---|---|---|
//! | `look.py` | what the queue asks for, as JSON | the lead broker, from inside of its pod |
//! | [`look`] | that JSON → ranks in use, and jobs that wait | nobody |
//! | [`ask`] | jobs that wait and the rank map → who asks for which slot | nobody |
//! | [`decide`] | that and time → whether a burst is awake, without flapping | nobody |
//! | [`looker`] | runs the script in the lead's pod, not too often | the API server |
pub mod ask;
pub(crate) mod decide;
pub mod look;
pub(crate) mod looker;

#[cfg(test)]
mod traces;
