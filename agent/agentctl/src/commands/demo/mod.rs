//! `agentctl demo`: a whole federation on this machine, or on clusters you have, with a MiniCluster that bursts.
//!
//! | step | file |
//! |---|---|
//! | clusters: local control planes, or contexts | [`clusters`] |
//! | definitions and namespaces in each | [`ground`] |
//! | identities, configuration files, ClusterPeers | [`federation`] |
//! | an agent process for each cluster | [`agent`] |
//! | the root MiniCluster | [`root`] |
//! | its bursts, phase by phase | [`follow`] |
//! | whether they are wired, from both sides' objects | [`check`] |
//! | the result | [`report`], [`look_around`] |
//! | out of clusters that stay | [`clean_up`] |

mod agent;
mod check;
mod clean_up;
mod clusters;
mod federation;
mod follow;
mod ground;
mod look_around;
mod progress;
mod report;
mod root;

use std::path::PathBuf;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Api, PostParams};
use tokio::signal::unix::{SignalKind, signal};
use tributary::admin::{self, FederationStatus};
use tributary::api::minicluster::MiniCluster;
use tributary::clock::SystemClock;
use tributary_sandbox::Group;

pub(crate) use self::agent::run_if_asked;
use self::clusters::Clusters;
use self::follow::Timeline;
use self::progress::{Progress, millis};
use self::report::ClusterReport;
pub(crate) use self::report::Report;
use crate::cli::{Demo, DemoFormat, Target};
use crate::connect::Agent as Admin;
use crate::error::{Failure, Result, failed};
use crate::{document, output};

/// Runs `agentctl demo`.
pub(crate) async fn run(target: &Target, demo: Demo) -> Result<()> {
    let progress = Progress::new(SystemClock::shared());
    let mut show =
        Show { target, demo: &demo, progress, clusters: None, is_ours: false, agents: None, report: Report::default() };
    let performed = tokio::select! {
        performed = show.perform() => performed,
        () = interrupted() => Err(Failure::new("interrupted")),
    };
    if demo.output == DemoFormat::Json && performed.is_err() {
        show.print_failure(performed.as_ref().err())?;
    }
    if performed.is_ok() && !demo.exit {
        interrupted().await;
    }
    let cleaned = show.end().await;
    let performed = performed.map_err(|failure| match &cleaned {
        Ok(()) => failure,
        Err(left) => failure.because(format!("{}; {}", left.line(), clean_up::HINT)),
    });
    performed.and(cleaned)
}

/// A demo, as far as it got.
struct Show<'a> {
    target: &'a Target,
    demo: &'a Demo,
    progress: Progress,
    // Dropped in this order: agents before the clusters they work on.
    agents: Option<Running>,
    clusters: Option<Clusters>,
    /// No other agent works on the clusters: what the demo may have made there goes at the end.
    is_ours: bool,
    report: Report,
}

/// The agents, and the group of processes that ends them.
struct Running {
    group: Group,
    agents: Vec<agent::Agent>,
}

impl Show<'_> {
    async fn perform(&mut self) -> Result<()> {
        let clusters = Clusters::find(self.target, self.demo, &self.progress).await?;
        let clusters = &*self.clusters.insert(clusters);
        self.report.pods = if clusters.simulated() { "simulated (kwok)" } else { "real" }.to_owned();
        let namespace = &self.target.agent_namespace;
        ground::no_other_agents(&clusters.all).await?;
        self.is_ours = true;
        ground::prepare(&clusters.all, namespace, &self.progress).await?;
        clean_up::delete_leftover(&clusters.root().client).await?;

        let directory = directory()?;
        let keep = tributary_sandbox::Options::default().keep;
        let group = Group::start(agent::GRACE, (!keep).then_some(&directory))
            .map_err(|error| Failure::new("failed to start the guard of the agents").because(error))?;
        let running = self.agents.insert(Running { group, agents: Vec::new() });
        let members = federation::found(&directory, &clusters.all, namespace, &self.progress)?;
        federation::introduce(&clusters.all, &members, namespace).await?;
        running.agents = agent::start(&running.group, members)?;
        self.report.clusters = clusters.all.iter().zip(&running.agents).map(cluster_report).collect();
        agent::until_connected(&running.agents, &self.progress).await?;

        self.burst().await?;
        self.conclude().await
    }

    /// Creates the root and waits until its bursts are wired, or the time is up.
    async fn burst(&mut self) -> Result<()> {
        let (Some(clusters), Some(running)) = (&self.clusters, &self.agents) else { return Ok(()) };
        let peers: Vec<String> = clusters.peers().iter().map(|peer| peer.name.clone()).collect();
        let (name, size, home) = (root::NAME, root::SIZE, &clusters.root().name);
        let step = self.progress.step("root", &format!("creating the MiniCluster {name}"));
        let roots: Api<MiniCluster> = Api::namespaced(clusters.root().client.clone(), root::NAMESPACE);
        let wanted = root::mini_cluster(&peers, &self.demo.image, self.demo.view_image.as_deref());
        let created = roots.create(&PostParams::default(), &wanted).await;
        let began = self.progress.clock().mono();
        let root = created.map_err(failed(
            "failed to create the root MiniCluster",
            "may you create MiniClusters there, and are the definitions current? `agentctl crds` prints them",
        ))?;
        let uid = root.uid().unwrap_or_default();
        let [first, second] = root::BURSTS;
        step.done(&format!("{name}: {size} brokers in {home}, {first} and {second} in bursts"));

        let step = self.progress.step("wired", "following the bursts");
        let mut timeline = Timeline::default();
        let limit = Duration::from_secs(self.demo.timeout.into());
        let wired = async {
            follow::follow(clusters, &running.agents, &uid, began, &self.progress, &mut timeline).await?;
            check::until_wired(clusters, &uid).await
        };
        let ended = tokio::time::timeout(limit, wired).await;
        let wiring = check::wiring(clusters, &uid).await.map_err(check::failed)?;
        self.report.bursts = wiring.bursts;
        self.report.problems = wiring.problems;
        for burst in &mut self.report.bursts {
            burst.timings = timeline.of(&burst.name);
        }
        self.report.wired = self.report.problems.is_empty();
        if let Ok(Err(failure)) = ended {
            return Err(failure);
        }
        if self.report.wired {
            step.done("certificate, host list, rank map, lead address and ready pods agree on both sides");
        } else {
            step.end(&format!("not wired within {} s", limit.as_secs()));
        }
        self.report.timings = self.progress.timings();
        let total = self.progress.clock().mono().since_start();
        self.report.timings.insert("total".to_owned(), millis(total));
        Ok(())
    }

    /// Shows the result. A demo that shall exit fails if it is not wired.
    async fn conclude(&mut self) -> Result<()> {
        let (Some(clusters), Some(running)) = (&self.clusters, &self.agents) else { return Ok(()) };
        match self.demo.output {
            DemoFormat::Json => output::print(&printed(&self.report)?)?,
            DemoFormat::Table => {
                let status = status(&running.agents).await?;
                let table = super::status::table(&status.clusters, false, self.progress.clock().wall());
                let table = output::columns().map_or(table.clone(), |columns| output::fitted(&table, columns));
                output::print(&format!("\n{}\n{table}", self.report.text()))?;
                if !self.demo.exit {
                    let simulated = clusters.simulated();
                    let text = look_around::text(&program(), &clusters.all, &running.agents, simulated);
                    output::print(&format!("\n{text}"))?;
                }
            }
        }
        if self.demo.exit && !self.report.wired {
            let failure = Failure::new("the bursts are not wired").because(self.report.problems.join("\n"));
            let words = running.agents.iter().map(|agent| format!("{}: {}", agent.cluster, agent.last_words()));
            return Err(failure.because(words.collect::<Vec<_>>().join("\n")).hint(KEEP_HINT));
        }
        Ok(())
    }

    /// One document is promised, whatever happens.
    fn print_failure(&mut self, failure: Option<&Failure>) -> Result<()> {
        if self.report.timings.contains_key("total") {
            return Ok(()); // It was printed.
        }
        self.report.wired = false;
        self.report.problems.extend(failure.map(Failure::line));
        output::print(&printed(&self.report)?)
    }

    /// Ends the agents, and takes the demo out of clusters that stay.
    async fn end(self) -> Result<()> {
        let (agents, clusters) = (self.agents, self.clusters);
        let group = agents.map(|running| running.group);
        let cleaned = match &clusters {
            Some(clusters) if self.is_ours && !clusters.simulated() => tokio::select! {
                cleaned = clean_up::clean_up(clusters, group, &self.target.agent_namespace, &self.progress) => cleaned,
                () = interrupted() => Err(Failure::new("interrupted while cleaning up").hint(clean_up::HINT)),
            },
            _ => {
                tokio::task::block_in_place(|| drop(group));
                Ok(())
            }
        };
        self.progress.finish();
        tokio::task::block_in_place(|| drop(clusters));
        cleaned
    }
}

/// Where agents' files are; its end is the guard's business.
fn directory() -> Result<PathBuf> {
    let made = tempfile::Builder::new().prefix("tributary-demo-").tempdir();
    Ok(made.map_err(failed("failed to make a directory for the agents' files", "is $TMPDIR writable?"))?.keep())
}

const KEEP_HINT: &str = "set TRIBUTARY_SANDBOX_KEEP=1 to keep all logs";

/// Ctrl-C, what service managers and `timeout` send, or the end of the terminal.
async fn interrupted() {
    let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
    // nohup ignores it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    if ignored.is_some_and(|ignored| ignored & 1 == 0) {
        kinds.push(SignalKind::hangup());
    }
    let ended = kinds.into_iter().map(|kind| {
        Box::pin(async move {
            match signal(kind) {
                Ok(mut signal) => drop(signal.recv().await),
                Err(_) => std::future::pending().await,
            }
        })
    });
    futures::future::select_all(ended).await;
}

async fn status(agents: &[agent::Agent]) -> Result<FederationStatus> {
    let Some(root) = agents.first() else { return Err(Failure::new("no agent runs")) };
    Admin::Endpoint(root.admin.to_string()).read(admin::STATUS).await
}

fn cluster_report((cluster, agent): (&clusters::DemoCluster, &agent::Agent)) -> ClusterReport {
    ClusterReport {
        name: cluster.name.clone(),
        kubeconfig: cluster.access.kubeconfig.display().to_string(),
        context: cluster.access.context.clone(),
        admin: format!("http://{}", agent.admin),
        log: agent.log.display().to_string(),
    }
}

fn printed(report: &Report) -> Result<String> {
    document::text(crate::cli::Format::Json, report, |_, _| String::new())
}

/// Where this program is: what is printed can be pasted.
fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "agentctl".into())
}
