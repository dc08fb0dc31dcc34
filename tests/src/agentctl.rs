//! `agentctl` as a process of its own, by the test binary itself.

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use anyhow::Context;
use serde_json::Value;

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
    let output = output(kubeconfig, arguments).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `agentctl` with a kubeconfig; returns the one document that it printed, also if it failed after that.
///
/// # Errors
/// It printed none: its message.
pub async fn document(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<Value> {
    let output = output(kubeconfig, &[arguments, &["-o", "json"]].concat()).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Around it are the words of the test binary that became agentctl.
    let document = text.find('{').zip(text.rfind('}')).map(|(first, last)| &text[first..=last]);
    let said = || format!("{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(document.unwrap_or_default()).with_context(said)
}

async fn output(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut all = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ENTRY, "--exact", "--nocapture", "--quiet"]).env(AGENTCTL, serde_json::to_string(&all)?);
    tokio::task::spawn_blocking(move || command.output()).await?.context("failed to run agentctl")
}
