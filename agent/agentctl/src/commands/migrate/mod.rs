//! `agentctl migrate check`: what the move from the Flux Operator to Tributary would change in a cluster.
//!
//! ```text
//! look (reads the API server) ─▶ judge (pure) ─▶ report
//!                                 ├─ fields, shell: what a spec means to each of the two
//!                                 └─ cluster: operator, definition, quotas, names
//! ```

mod cluster;
mod evaluate;
mod everywhere;
mod fetch;
mod fields;
mod report;
mod shell;
mod steps;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use kube::Client;
use tributary::clock::{Clock, SystemClock};

use crate::cli::{Migrate, Output, Target};
use crate::error::{Failure, Result};
use crate::{document, kubernetes, output, paste};

pub use report::Report;
pub(crate) use report::Severity;

/// Runs `agentctl migrate …`.
pub(crate) async fn run(target: &Target, command: Migrate) -> Result<()> {
    match command {
        Migrate::Check(check) => run_check(target, &check).await,
    }
}

/// What the move would change in a cluster, or in one namespace of it, as of `now`.
///
/// # Errors
/// The API server cannot be reached, or does not show MiniClusters.
pub async fn check(client: &Client, namespace: Option<&str>, now: Timestamp) -> Result<Report> {
    Ok(evaluate::evaluate(&fetch::fetch(client, namespace, now).await?))
}

async fn run_check(target: &Target, options: &Output) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let report = check(&client, target.namespace.as_deref(), SystemClock::start().wall()).await?;
    output::print(&paste::whole(&document::text(options.output, &report, report::text)?, target))?;
    let breaks = report.findings.iter().filter(|finding| finding.severity == Severity::Breaks).count();
    if report.ready {
        return Ok(());
    }
    let things = if breaks == 1 { "1 thing" } else { &format!("{breaks} things") };
    Err(Failure::new(format!("the move would break {things}"))
        .hint("each says above where it is and what to do about it; nothing was changed"))
}
