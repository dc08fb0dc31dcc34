//! Root side: which bursts a MiniCluster declares, where they go, and what became of them.
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | [`plan`] | a MiniCluster → the Bursts it should have | no |
//! | `frozen` | a Burst, whatever was patched of it → the Burst as it was made | no |
//! | [`whole`] | a FluxJob that is sent to a peer as a whole → its Burst | no |
//! | [`place`] | a burst and the peers → one peer, or why none | no |
//! | [`lead_address`] | where bursts reach the lead broker | no |
//! | [`offer`] | a stored Burst → what is sent to whom | no |
//! | [`burst_status`], `conditions`, `placement_backoff` | a Burst, the peers and their answers → its next status, with conditions and events | no |
//! | [`hold`] | a peer that is out of contact → how long the slot stays its own, and what frees it | no |
//! | [`budget`] | what was used, and how much of it may be → how a budget stands | no |
//! | `progress` | a peer's answer → whether it may wait a moment | no |
//! | `agreement` | what was used, by the count of both sides → whether they agree | no |
//! | [`demand`] | whether anything asks for a burst on demand | only its looker |
//! | [`credential`] | who may have the certificate | no |
mod agreement;
pub(crate) mod budget;
pub(crate) mod burst_status;
mod conditions;
pub(crate) mod controller;
pub(crate) mod credential;
pub mod demand;
mod frozen;
pub(crate) mod hold;
pub(crate) mod lead_address;
pub mod offer;
pub mod place;
mod placement_backoff;
pub mod plan;
mod progress;
pub mod whole;
