//! Whoever loses something by a command is asked first.

use std::io::{self, BufRead, IsTerminal};

use crate::cli::Target;
use crate::error::{Failure, Result};
use crate::{output, paste};

/// Says what a command costs, and asks unless `--yes` was written; `None`: it costs nothing.
pub(super) fn agreed(cost: Option<String>, yes: bool, target: &Target) -> Result<()> {
    let Some(cost) = cost else { return Ok(()) };
    output::remark(&paste::whole(&cost, target));
    if yes || answered_yes()? {
        return Ok(());
    }
    Err(Failure::new("nothing was changed").hint("answer yes, or write --yes"))
}

/// Asks whoever sits at the terminal.
fn answered_yes() -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    output::remark("go on? Write yes:");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim() == "yes")
}
