//! The agents of a demo: this program again, one process for each cluster. They end with the demo, however it ends.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tributary::admin::{self, PeerRow};
use tributary::contract::PeerState;
use tributary_sandbox::{Group, Process};

use super::KEEP_HINT;
use super::federation::Member;
use super::progress::{Progress, Step};
use crate::connect;
use crate::error::{Failure, Result, failed};

/// First argument of this program when it shall be an agent; no command of users has such a name.
const ARGUMENT: &str = "__tributary-agent";
/// How long agents get to hand back their Leases.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How long agents may take to be ready, and then to be connected.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// Lines of a log that are shown when its agent fails.
const SHOWN_LINES: usize = 8;

/// Runs as an agent if the command line asks for it. Never returns to the command line's own meaning then.
pub(crate) fn run_if_asked(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.get(1)? != ARGUMENT {
        return None;
    }
    let own = [OsString::from("tributary-agent")].into_iter().chain(arguments[2..].iter().cloned());
    Some(tributary_agent::main_with(own))
}

/// A running agent.
pub(super) struct Agent {
    /// Name of its cluster.
    pub(super) cluster: String,
    /// Its admin API.
    pub(super) admin: SocketAddr,
    pub(super) log: PathBuf,
    health: SocketAddr,
    process: Arc<Process>,
}

pub(super) fn start(group: &Group, members: Vec<Member>) -> Result<Vec<Agent>> {
    members.into_iter().map(|member| spawn(group, member)).collect()
}

/// Waits until each agent is ready and connected to all others.
pub(super) async fn until_connected(agents: &[Agent], progress: &Progress) -> Result<()> {
    let step = progress.step("agents", &format!("starting {}", agents.len()));
    let ready = try_join_all(agents.iter().map(|agent| agent.ready(&step)));
    within(ready, "ready", agents).await?;
    step.say("connecting to each other");
    let connected = try_join_all(agents.iter().map(|agent| agent.connected(agents.len() - 1)));
    within(connected, "connected to all others", agents).await?;
    step.done(&format!("{} connected to each other by QUIC", agents.len()));
    Ok(())
}

impl Agent {
    /// Fails if the process has ended.
    pub(super) fn check(&self) -> Result<()> {
        match self.process.exited() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::new(format!("the agent of {} ended ({status})", self.cluster))
                .because(self.last_words())
                .hint(KEEP_HINT)),
            Err(error) => Err(Failure::new(format!("failed to watch the agent of {}", self.cluster)).because(error)),
        }
    }

    /// The last warnings and errors of its log; its last lines, if there are none.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        last_words(&log)
    }

    /// Its peers, as it sees them; none while it does not answer.
    async fn peers(&self) -> Vec<PeerRow> {
        let answer = connect::get(&self.admin.to_string(), admin::PEERS).await;
        answer.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default()
    }

    /// What keeps it from its peers, a sentence each.
    async fn complaints(&self) -> Vec<String> {
        let peers = self.peers().await.into_iter().filter(|peer| peer.state != PeerState::Connected);
        let sentence = |peer: PeerRow| {
            let why = peer.message.map(|message| format!(", {message}")).unwrap_or_default();
            format!("{} sees {}: {:?}{why}", self.cluster, peer.name, peer.state)
        };
        peers.map(sentence).collect()
    }

    async fn ready(&self, step: &Step) -> Result<()> {
        loop {
            self.check()?;
            match connect::get(&self.health.to_string(), "/readyz").await {
                Ok(_) => return Ok(()),
                Err(error) => step.say(&waiting(&self.cluster, &error.to_string())),
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn connected(&self, others: usize) -> Result<()> {
        loop {
            self.check()?;
            if self.peers().await.iter().filter(|peer| peer.state == PeerState::Connected).count() >= others {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn spawn(group: &Group, member: Member) -> Result<Agent> {
    let failed = failed(
        format!("failed to start the agent of {}", member.cluster),
        "this program starts itself as the agent: is it still where it was, and is $TMPDIR writable?",
    );
    let program = std::env::current_exe().map_err(&failed)?;
    let mut command = Command::new(program);
    command.arg(ARGUMENT).arg("--config").arg(&member.config);
    // What is set for other agents of this machine is not meant for these.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(tributary::config::ENV_PREFIX) {
            command.env_remove(name);
        }
    }
    let (cluster, log) = (member.cluster.clone(), member.directory.join("agent.log"));
    let (admin, health) = member.release_ports();
    let process = group.spawn_logged(&mut command, Path::new(&log)).map_err(failed)?;
    Ok(Agent { cluster, admin, health, log, process })
}

async fn within<T>(work: impl Future<Output = Result<T>>, what: &str, agents: &[Agent]) -> Result<T> {
    match tokio::time::timeout(START_LIMIT, work).await {
        Ok(result) => result,
        Err(_) => {
            let mut words = join_all(agents.iter().map(Agent::complaints)).await.concat();
            words.extend(agents.iter().map(|agent| format!("log of {}: {}", agent.cluster, agent.last_words())));
            Err(Failure::new(format!("the agents are not {what} within {} s", START_LIMIT.as_secs()))
                .because(words.join("\n"))
                .hint(KEEP_HINT))
        }
    }
}

/// `/readyz` names who waits for what; a refused connection means that the process is still starting.
fn waiting(cluster: &str, error: &str) -> String {
    match error.split_once("503 Service Unavailable: ") {
        Some((_, reason)) => format!("{cluster} waits for {}", reason.trim().replace('\n', "; ")),
        None => "starting".to_owned(),
    }
}

fn last_words(log: &str) -> String {
    let serious: Vec<&str> = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    let lines = if serious.is_empty() { log.lines().collect() } else { serious };
    let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    if shown.is_empty() { "its log is empty".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hidden_argument_makes_an_agent() {
        for line in [&["agentctl"][..], &["agentctl", "status"], &["agentctl", "demo", ARGUMENT]] {
            let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
            assert!(run_if_asked(&arguments).is_none(), "{line:?}");
        }
    }

    #[test]
    fn warnings_are_shown_rather_than_the_end() {
        assert_eq!(last_words("INFO a\n WARN b\nINFO c\nERROR d\nINFO e"), " WARN b\nERROR d");
        assert_eq!(last_words("INFO a\nINFO b"), "INFO a\nINFO b");
        assert_eq!(last_words(""), "its log is empty");
    }

    #[test]
    fn readiness_is_told_by_its_reasons() {
        let answer = "the agent answered 503 Service Unavailable: crds: Burst is missing\ncaches: Jobs\n";
        assert_eq!(waiting("east", answer), "east waits for crds: Burst is missing; caches: Jobs");
        assert_eq!(waiting("east", "Connection refused"), "starting");
    }
}
