//! `agentctl plan`: what applying a manifest would make on which cluster, before anything is applied.
//!
//! | file | what it does | talks to an API server |
//! |---|---|---|
//! | `manifest` | documents → MiniClusters, those of FluxJobs among them, and what is wrong with them | no |
//! | `fetch` | reads what is there already, and who could take bursts | yes, it only reads |
//! | [`evaluate`] | a MiniCluster and what is known → its plan | no |
//! | `candidates` | which peers come into question for a burst | no |
//! | `queue` | what the queue of the namespace would say | no |
//! | `sides` | the objects of one cluster, by the agent's own functions | no |
//! | [`report`] | the document, and its text for people | no |

mod candidates;
mod change;
pub(crate) mod evaluate;
mod fetch;
mod manifest;
mod queue;
pub(crate) mod report;
mod sides;
#[cfg(test)]
mod tests;

use crate::cli::{self, Target};
use crate::document;
use crate::error::{Failure, Result};
use crate::{output, paste};

/// Runs `agentctl plan`.
pub(crate) async fn run(target: &Target, plan: &cli::Plan) -> Result<()> {
    let manifest = manifest::read(&plan.files, target.namespace.as_deref())?;
    let looked = fetch::fetch(target, plan, &manifest).await;
    let report = evaluate::plan(&manifest, &looked);
    let text = document::text(plan.output, &report, |report, _| report::text(report))?;
    output::print_marked(&paste::whole(&text, target))?;
    if report.possible {
        return Ok(());
    }
    Err(Failure::new("applying this would not come to what it says").hint("the lines with ✗ above say what to correct"))
}
