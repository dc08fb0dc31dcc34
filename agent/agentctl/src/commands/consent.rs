//! Whoever loses something by a command is asked first.

use crate::cli::Target;
use crate::error::{Failure, Result};
use crate::{output, paste};

/// Says what a command costs, and asks unless `--yes` was written; `None`: it costs nothing.
pub(super) fn agreed(cost: Option<String>, yes: bool, target: &Target) -> Result<()> {
    let Some(cost) = cost else { return Ok(()) };
    output::remark(&paste::whole(&cost, target));
    if yes || output::agreed()? {
        return Ok(());
    }
    Err(Failure::new("nothing was changed").hint("answer yes, or write --yes"))
}
