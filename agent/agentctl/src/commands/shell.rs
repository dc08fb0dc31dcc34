//! `agentctl shell`: a shell, or a command, beside the broker of a MiniCluster's pod, with the user's own rights.

use std::future::pending;
use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use futures::future::{try_join, try_join3};
use futures::{FutureExt, SinkExt};
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
use crate::error::{Failure, Result, failed};
use crate::kubernetes;

/// Runs `agentctl shell`; the exit code is the command's.
pub(crate) async fn run(target: &Target, shell: &Shell) -> Result<ExitCode> {
    let client = kubernetes::exec_client(target).await?;
    let namespace = kubernetes::namespace(target, &client);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let (object, pod) = kubernetes::in_time(async {
        let object = kubernetes::mini_cluster(&client, &namespace, &shell.name).await?;
        Ok((object, pod(&pods, &namespace, &shell.name, shell.index).await?))
    })
    .await?;
    let tty = io::stdin().is_terminal() && io::stdout().is_terminal();
    let term = std::env::var("TERM").ok().filter(|_| tty);
    let environment: Vec<_> = term.iter().map(|term| ("TERM", term.as_str())).collect();
    let words = render::shell(&object, &environment, &shell.command).map_err(failed(
        format!("failed to find the container that runs Flux in MiniCluster {namespace}/{}", shell.name),
        format!("what its spec lacks is said by `agentctl why {} --namespace {namespace}`", shell.name),
    ))?;
    let how = parameters(&shell.name, tty, !io::stdin().is_terminal());
    let process = pods.exec(&pod, words, &how).await.map_err(failed(
        format!("failed to run a command in pod {namespace}/{pod}"),
        format!("may you create pods/exec there? `kubectl auth can-i create pods/exec --namespace {namespace}`"),
    ))?;
    let status = if tty { with_terminal(process).await } else { with_pipes(process).await };
    ending(status?)
}

/// The pod of an index of the Job, as long as it lives.
async fn pod(pods: &Api<Pod>, namespace: &str, name: &str, index: u32) -> Result<String> {
    let selector = format!("{JOB_NAME}={name},{COMPLETION_INDEX}={index}");
    let found = pods
        .list(&ListParams::default().labels(&selector))
        .await
        .map_err(failed(format!("failed to list the pods of MiniCluster {name}"), "may you list pods there?"))?;
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

async fn with_pipes(mut process: AttachedProcess) -> io::Result<Option<Status>> {
    let status = process.take_status();
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    // Errors that nobody reads keep nobody from the output.
    let errors = show(stderr, |bytes| io::stderr().write_all(bytes).or(Ok(())));
    let ended = try_join3(show(stdout, to_stdout), errors, answer(status).map(Ok));
    tokio::select! {
        ended = ended => ended.map(|(.., status)| status),
        // The end of the input is not the end of the command.
        status = async { pass_on(stdin).await; pending().await } => status,
    }
}

async fn with_terminal(mut process: AttachedProcess) -> io::Result<Option<Status>> {
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
    let ended = try_join(show(stdout, to_stdout), answer(status).map(Ok));
    tokio::select! {
        ended = ended => ended.map(|(_, status)| status),
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

/// Copies an output of the command as it comes. Ends with the first error of writing here: the command itself may never end.
async fn show(from: Option<impl AsyncRead + Unpin>, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        write(&buffer[..length])?;
    }
    Ok(())
}

fn to_stdout(bytes: &[u8]) -> io::Result<()> {
    io::stdout().write_all(bytes).and_then(|()| io::stdout().flush())
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
    use clap::Parser;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::endpoint::tests::target;

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

    /// The danger: `shell lake -- tail -f LOG | head` never ends; or it does, and says that its pod may be gone.
    #[tokio::test]
    async fn an_output_that_nobody_reads_here_ends_us_quietly() {
        let (mut command, output) = tokio::io::duplex(16);
        command.write_all(b"a line\n").await.unwrap();
        let closed = |_: &[u8]| Err(io::ErrorKind::BrokenPipe.into());
        let ended = show(Some(output), closed).await.unwrap_err();
        assert!(Failure::from(ended).is_broken_pipe());
    }

    /// The danger: the client that waits for a command waits for ever for an API server that is silent.
    #[tokio::test(start_paused = true)]
    async fn what_is_asked_before_the_command_has_a_limit() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("west", &silent.local_addr().unwrap().to_string())]);
        let cli = Cli::try_parse_from(["agentctl", "shell", "lake"]).unwrap();
        let Command::Shell(shell) = cli.command else { panic!("it is a shell") };
        let told = timeout(2 * kubernetes::SILENCE_LIMIT, run(&target, &shell)).await.unwrap().unwrap_err().line();
        assert!(told.starts_with("the API server does not answer"), "{told}");
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
