//! The MiniCluster controller: a pipeline, one file per step.
//!
//! ```text
//! observe ─▶ step (pure) ─▶ carry_out ─▶ status (pure) ─▶ apply status
//! caches, and the rendering   writes                      writes
//! ```
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | [`view`] | the slim kinds that are watched | – |
//! | [`watches`] | the caches that other parts of an agent share with this one | – |
//! | [`definition`] | whether the installed definition knows our fields | no |
//! | [`dereference`] | everything known about one MiniCluster, from the caches | no |
//! | [`observe`] | that, the rendering, and what else the decision looks at | reads |
//! | [`step`] | the decision, whole | no |
//! | [`decide`], [`in_place`] | its first part: what spec and Job ask for; what of a running Job follows the spec | no |
//! | `carry_out` | does it, and tells what is so then | yes |
//! | [`apply`], `beside` | the requests of that; Services and the service pod | yes |
//! | [`lead`], [`ending`] | the lead broker's pod; how it ended, in words | no |
//! | [`certificate`], `restful` | the secrets of a new incarnation | reads |
//! | `summary` | what the bursts' budgets and queues mean for the root | no |
//! | [`status`], [`notices`] | the new status, and which events it is worth | no |
//! | [`quota_gate`] | the port to the queue, which counts what MiniClusters take, and to bursting | no |
//! | [`allowance`] | how long a Job may run of the time that its instance was let in for | no |
//! | `memory` | what the controller remembers while caches are behind its writes | no |
//! | `renderings` | what MiniClusters render to, of those that were looked at last | no |
//! | `volumes` | PersistentVolumes and claims: made, removed, and swept when their MiniCluster is gone | yes |
//! | `workloads` | the Workloads of MiniClusters that MultiKueue runs in another cluster, beside the pipeline | yes |
//! | `pod_index` | the label `job-index` on pods, beside the pipeline | yes |
//! | [`refusal`] | what keeps a pass from being finished, in words | no |
//! | [`controller`] | caches and queue | – |
//!
//! An **incarnation** is the life of one Job. Boot files, rank map and certificate are frozen when the Job is created
//! and stored with it (annotation [`tributary_api::labels::BOOT`]); while it lives nothing of them changes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod allowance;
pub(crate) mod apply;
mod beside;
mod bursts;
mod carry_out;
pub(crate) mod certificate;
pub(crate) mod controller;
pub(crate) mod decide;
pub(crate) mod definition;
pub(crate) mod dereference;
pub(crate) mod ending;
pub(crate) mod exposure;
pub(crate) mod in_place;
pub(crate) mod lead;
mod memory;
pub(crate) mod notices;
pub(crate) mod observe;
mod pod_index;
pub mod quota_gate;
pub(crate) mod refusal;
mod renderings;
mod restful;
mod spans;
pub(crate) mod status;
pub(crate) mod step;
mod summary;
pub(crate) mod view;
mod volumes;
pub mod watches;
mod workloads;

use std::time::Duration;

pub use controller::MiniClusterController;

/// How long caches get to show what was just written, before something missing counts as taken away.
const SETTLING: Duration = Duration::from_secs(2);
