//! `agentctl shell`: a shell, or a command, beside the broker of a MiniCluster's pod, with the user's own rights.

use std::future::pending;
use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use futures::SinkExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::ResourceExt;
use kube::api::{Api, AttachParams, AttachedProcess, ListParams, TerminalSize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tributary::api::labels::kubernetes::{COMPLETION_INDEX, JOB_NAME};
use tributary::render;

use crate::cli::{Shell, Target};
use crate::error::{Failure, Result};
use crate::kubernetes;

/// Runs `agentctl shell`; the exit code is the command's.
pub(crate) async fn run(target: &Target, shell: &Shell) -> Result<ExitCode> {
    let client = kubernetes::client(target).await?;
    let namespace = kubernetes::namespace(target, &client);
    let object = kubernetes::mini_cluster(&client, &namespace, &shell.name).await?;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let pod = pod(&pods, &namespace, &shell.name, shell.index).await?;
    let tty = io::stdin().is_terminal() && io::stdout().is_terminal();
    let term = std::env::var("TERM").ok().filter(|_| tty);
    let environment: Vec<_> = term.iter().map(|term| ("TERM", term.as_str())).collect();
    let words = render::shell(&object, &environment, &shell.command).map_err(|error| {
        Failure::new(format!("failed to find the container that runs Flux in MiniCluster {namespace}/{}", shell.name))
            .because(error)
    })?;
    let how = parameters(&shell.name, tty, !io::stdin().is_terminal());
    let process = pods.exec(&pod, words, &how).await.map_err(|error| {
        Failure::new(format!("failed to run a command in pod {namespace}/{pod}")).because(error).hint(format!(
            "may you create pods/exec there? `kubectl auth can-i create pods/exec --namespace {namespace}`"
        ))
    })?;
    let status = if tty { with_terminal(process).await } else { with_pipes(process).await };
    ending(status)
}

/// The pod of an index of the Job, as long as it lives.
async fn pod(pods: &Api<Pod>, namespace: &str, name: &str, index: u32) -> Result<String> {
    let selector = format!("{JOB_NAME}={name},{COMPLETION_INDEX}={index}");
    let found = pods.list(&ListParams::default().labels(&selector)).await.map_err(|error| {
        Failure::new(format!("failed to list the pods of MiniCluster {name}"))
            .because(error)
            .hint("may you list pods there?")
    })?;
    let running = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    found.items.iter().find(running).map(ResourceExt::name_any).ok_or_else(|| {
        Failure::new(format!("no pod of MiniCluster {name} with index {index} runs"))
            .hint(format!("what keeps it is said by `agentctl why {name} --namespace {namespace}`"))
    })
}

/// What of this process is connected to the command: with a terminal both outputs are one.
fn parameters(container: &str, tty: bool, piped: bool) -> AttachParams {
    // A terminal that nothing is read from must not be read: it belongs to whoever runs us.
    AttachParams::default().container(container).stdin(tty || piped).stdout(true).stderr(!tty).tty(tty)
}

async fn with_pipes(mut process: AttachedProcess) -> Option<Status> {
    let status = process.take_status();
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    let ended = async { tokio::join!(show(stdout, io::stdout()), show(stderr, io::stderr()), answer(status)).2 };
    tokio::select! {
        status = ended => status,
        // The end of the input is not the end of the command.
        status = async { pass_on(stdin).await; pending().await } => status,
    }
}

async fn with_terminal(mut process: AttachedProcess) -> Option<Status> {
    let _raw = Raw::enter();
    let status = process.take_status();
    let (stdin, stdout, size) = (process.stdin(), process.stdout(), process.terminal_size());
    let resizing = async {
        let (Some(mut size), Ok(mut changed)) = (size, signal(SignalKind::window_change())) else {
            return pending().await;
        };
        loop {
            if let Ok((width, height)) = crossterm::terminal::size() {
                let _ = size.send(TerminalSize { width, height }).await;
            }
            changed.recv().await;
        }
    };
    let ended = async { tokio::join!(show(stdout, io::stdout()), answer(status)).1 };
    tokio::select! {
        status = ended => status,
        status = async { pass_on(stdin).await; pending().await } => status,
        status = resizing => status,
    }
}

/// Our input, to its end. It is read by a thread of its own, which ends with this process.
async fn pass_on(stdin: Option<impl AsyncWrite + Unpin>) {
    let Some(mut stdin) = stdin else { return };
    let (sender, mut pieces) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = io::stdin().read(&mut buffer) {
            if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    while let Some(piece) = pieces.recv().await {
        if stdin.write_all(&piece).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
    let _ = stdin.shutdown().await;
}

/// An output of the command, as it comes.
async fn show(from: Option<impl AsyncRead + Unpin>, mut to: impl Write) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..length]).and_then(|()| to.flush()).is_err() {
            // Whoever read us went away; the command may go on to its end.
            return;
        }
    }
}

async fn answer(status: Option<impl Future<Output = Option<Status>>>) -> Option<Status> {
    match status {
        Some(status) => status.await,
        None => None,
    }
}

/// The terminal passes every key on, until this is dropped.
struct Raw;

impl Raw {
    fn enter() -> Self {
        // Without it keys arrive line by line: worse, but no reason to give up.
        let _ = crossterm::terminal::enable_raw_mode();
        Self
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = crossterm::terminal::disable_raw_mode();
    }
}

/// The exit code that a kubelet reports (kubernetes `pkg/kubelet/cri/streaming/remotecommand`).
fn ending(status: Option<Status>) -> Result<ExitCode> {
    let Some(status) = status else {
        return Err(Failure::new("the connection ended before the command").hint("does its pod still run?"));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.clone()).unwrap_or_default();
    let code = causes
        .iter()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message.as_ref());
    match code.and_then(|code| code.parse::<u8>().ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => {
            let message = status.message.unwrap_or_else(|| "the kubelet does not say why".to_owned());
            Err(Failure::new("the command could not be run")
                .because(message)
                .hint("the container needs /bin/bash, as Flux does there"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_exit_code_is_the_commands() {
        let of = |value| ending(Some(serde_json::from_value(value).unwrap()));
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(format!("{:?}", of(json!({"status": "Success"})).unwrap()), code(0));
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with exit code 42",
            "details": {"causes": [{"reason": "ExitCode", "message": "42"}]}});
        assert_eq!(format!("{:?}", of(failed).unwrap()), code(42));
        let other = of(json!({"status": "Failure", "message": "exec: \"/bin/bash\": no such file"})).unwrap_err();
        let gone = ending(None).unwrap_err();
        insta::assert_snapshot!([other.to_string(), gone.to_string()].join("\n\n---\n\n"));
    }

    #[test]
    fn only_what_is_there_is_connected() {
        let of = |tty, piped| {
            let AttachParams { stdin, stdout, stderr, tty, .. } = parameters("lake", tty, piped);
            (stdin, stdout, stderr, tty)
        };
        assert_eq!(of(true, false), (true, true, false, true));
        assert_eq!(of(false, true), (true, true, true, false));
        assert_eq!(of(false, false), (false, true, true, false));
    }
}
