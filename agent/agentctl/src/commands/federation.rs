//! `agentctl federation init|issue`.

use crate::cli::Federation;
use crate::error::Result;

/// Runs `agentctl federation …`.
pub fn run(_command: Federation) -> Result<()> {
    Ok(())
}
