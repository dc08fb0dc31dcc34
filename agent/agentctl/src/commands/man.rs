//! `agentctl man`: manual pages, one for each command.

use std::path::Path;

use clap::CommandFactory;

use crate::cli::{Cli, Man};
use crate::error::{Result, failed};
use crate::output;

/// Runs `agentctl man`.
pub(crate) fn run(man: &Man) -> Result<()> {
    match &man.out {
        Some(directory) => write(directory),
        None => output::print(&page()),
    }
}

/// The page of `agentctl` itself.
fn page() -> String {
    let mut page = Vec::new();
    // As in the directory of all pages, which has none for `help`.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::Man::new(command).render(&mut page).expect("memory takes whatever is written");
    String::from_utf8_lossy(&page).into_owned()
}

fn write(out: &Path) -> Result<()> {
    let directory = out.display();
    let failed = failed(
        format!("failed to write the manual pages to {directory}"),
        "name a directory that you may write to with --out DIR",
    );
    std::fs::create_dir_all(out).map_err(&failed)?;
    clap_mangen::generate_to(Cli::command(), out).map_err(&failed)?;
    output::remark(&format!("the manual pages are in {directory}; read one with: man {directory}/agentctl.1"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("new/man1");
        run(&Man { out: Some(out.clone()) }).unwrap();
        for page in ["agentctl.1", "agentctl-status.1", "agentctl-peer-add.1", "agentctl-federation-issue.1"] {
            let text = std::fs::read_to_string(out.join(page)).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
        }
        // What is printed without a directory is the first of them.
        assert_eq!(page(), std::fs::read_to_string(out.join("agentctl.1")).unwrap());
        let nowhere = directory.path().join("file");
        std::fs::write(&nowhere, "").unwrap();
        let failure = run(&Man { out: Some(nowhere.join("man1")) }).unwrap_err().to_string();
        assert!(failure.contains("hint: name a directory"), "{failure}");
    }
}
