//! `agentctl` as a process of its own, by the test binary itself.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

/// Set in a process that shall be `agentctl`; its value is the arguments, as JSON.
const AGENTCTL: &str = "TRIBUTARY_TEST_AGENTCTL";

/// Name of the test that calls [`become_agentctl_if_asked`].
const ENTRY: &str = "agentctl_process";

/// If this process was started by [`agentctl`], it is `agentctl`. The test of this name in each test binary calls it.
pub fn become_agentctl_if_asked() -> Option<ExitCode> {
    let arguments = std::env::var(AGENTCTL).ok()?;
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("the arguments are a list of texts");
    Some(tributary_agentctl::run(std::iter::once("agentctl".into()).chain(arguments.into_iter().map(Into::into))))
}

/// Runs `agentctl` with a kubeconfig; returns what it printed to standard output, or what it said instead.
///
/// # Errors
/// It failed: its message.
pub async fn agentctl(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut all = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ENTRY, "--exact", "--nocapture", "--quiet"]).env(AGENTCTL, serde_json::to_string(&all)?);
    let output = tokio::task::spawn_blocking(move || command.output()).await?.context("failed to run agentctl")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
