//! `agentctl migrate check`: what the move from the Flux Operator to Tributary would change in a cluster.
//!
//! ```text
//! look (reads the API server) ─▶ judge (pure) ─▶ report
//!                                 ├─ fields, shell: what a spec means to each of the two
//!                                 └─ cluster: operator, definition, quotas, names
//! ```

mod cluster;
mod fields;
mod judge;
mod look;
mod report;
mod shell;
mod steps;
#[cfg(test)]
mod tests;

use tributary::clock::{Clock, SystemClock};

use crate::cli::{Migrate, MigrateCheck, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output};

pub use report::{Finding, Report, Severity};

/// Runs `agentctl migrate …`.
pub async fn run(target: &Target, command: Migrate) -> Result<()> {
    match command {
        Migrate::Check(check) => run_check(target, &check).await,
    }
}

async fn run_check(target: &Target, check: &MigrateCheck) -> Result<()> {
    let client = kubernetes::client(target).await?;
    let clock = SystemClock::start();
    let found = look::look(&client, target.namespace.as_deref(), clock.wall()).await?;
    let report = judge::judge(&found);
    output::print(&output::document(check.output, &report, report::text)?)?;
    let breaks = report.findings.iter().filter(|finding| finding.severity == Severity::Breaks).count();
    if report.ready {
        return Ok(());
    }
    let things = if breaks == 1 { "1 thing" } else { &format!("{breaks} things") };
    Err(Failure::new(format!("the move would break {things}"))
        .hint("each says above where it is and what to do about it; nothing was changed"))
}
