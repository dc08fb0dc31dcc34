//! Provider side: what peers may place here, and how it is made, kept and ended.
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | [`admission`] | an offer and what is known → taken, or why not | no |
//! | [`policy`], [`pod_security`] | the import policy, held against the template and the rendered pod | no |
//! | [`ledger`] | what is promised to whom | no |
//! | [`rate`] | how many offers of a peer are looked at within a minute | no |
//! | [`slots`] | which claims are about which name, and what is known of each | no |
//! | [`slot`], `sync`, `teardown` | claims on a name and what is there → what to do and what to say | no |
//! | `gateway` | how a burst gets the pod back that its others are connected through | no |
//! | [`results`] | how many results of whole instances are kept for a peer | no |
//! | `whole` | keeping a burst that is all of an instance, until it ends by itself | no |
//! | [`lease`] | how long a burst outlives the contact with its root | no |
//! | [`materialize`] | the objects of a hosted burst | no |
//! | [`memory`] | what is remembered between steps | no |
//! | [`warm`] | images that are pulled ahead | no |
//! | `lead` | where the lead broker of a burst is, if it may be there | no |
//! | `scale_up`, `provisioning` | bursts that bring their nodes, and how these are asked for | no |
//! | `kueue` | bursts whose Job waits in a queue of Kueue | no |
//! | `not_started` | bursts of which no pod starts | no |
//! | [`capacity`] | what peers are told of free room | no |
//! | [`grants`] | the port to the queues of namespaces: what FluxSetups leave | no |
//! | [`quota`], [`egress`] | what quotas leave, and where hosted pods may connect to | no |
//! | `foreign` | whether somebody else has a name that a burst needs | yes |
//! | `left` | what is left of a burst, and whose it is | yes |
//! | `marks` | which slots a change is looked at in, and whose turn that takes | no |
//! | `provision` | ProvisioningRequests: made, looked at, taken away | yes |
//! | `controller`, `carry_out`, `create` | the driver of all this | yes |
pub mod admission;
pub(crate) mod capacity;
mod carry_out;
#[cfg(test)]
pub(crate) mod claims;
pub(crate) mod controller;
mod create;
pub(crate) mod egress;
mod foreign;
mod gateway;
pub mod grants;
mod kueue;
mod lead;
pub(crate) mod lease;
pub mod ledger;
mod left;
mod marks;
pub mod materialize;
pub(crate) mod memory;
mod not_started;
pub mod pod_security;
pub mod policy;
mod provision;
mod provisioning;
pub mod quota;
pub(crate) mod rate;
pub(crate) mod results;
pub(crate) mod scale_up;
pub(crate) mod slot;
pub(crate) mod slots;
mod sync;
mod teardown;
pub(crate) mod warm;
mod whole;

pub use teardown::Reason;
