//! One file per command.

pub(crate) mod burst;
pub(crate) mod bursts;
pub(crate) mod check;
pub(crate) mod completion;
mod configuration;
mod consent;
pub(crate) mod crds;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod federation;
pub(crate) mod identity;
pub(crate) mod instance;
pub(crate) mod join;
pub(crate) mod link;
pub(crate) mod man;
pub mod migrate;
pub(crate) mod mini_cluster;
pub(crate) mod peer;
mod peering;
pub(crate) mod peers;
pub(crate) mod plan;
mod rekey;
mod release;
pub(crate) mod shell;
pub(crate) mod status;
pub(crate) mod support_bundle;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod usage;
pub(crate) mod version;
mod watch;
mod watched;
pub(crate) mod why;

use std::process::ExitCode;

use self::instance::Verb;
use crate::cli::{Cli, Command};
use crate::error::Result;

/// Runs the command of a parsed command line. Only a command run elsewhere has an exit code of its own.
pub(crate) async fn dispatch(cli: Cli) -> Result<ExitCode> {
    let done: Result<()> = match cli.command {
        Command::Shell(shell) => return shell::run(&cli.target, &shell).await,
        Command::MiniCluster(command) => mini_cluster::run(&cli.target, command).await,
        Command::Top(top) => top::run(&cli.target, &top).await,
        Command::Restart(i) => instance::run(&cli.target, Verb::Restart, &i.name, i.yes).await,
        Command::Suspend(i) => instance::run(&cli.target, Verb::Suspend, &i.name, i.yes).await,
        Command::Resume(i) => instance::run(&cli.target, Verb::Resume, &i.name, true).await,
        Command::Rekey(i) => instance::run(&cli.target, Verb::Rekey, &i.name, i.yes).await,
        Command::SupportBundle(bundle) => support_bundle::run(&cli.target, &bundle).await,
        Command::Status(list) => status::run(&cli.target, &list).await,
        Command::Peers(list) => peers::run(&cli.target, &list).await,
        Command::Bursts(list) => bursts::run(&cli.target, &list).await,
        Command::Usage(usage) => usage::run(&cli.target, &usage).await,
        Command::Why(why) => why::run(&cli.target, &why).await,
        Command::Plan(plan) => plan::run(&cli.target, &plan).await,
        Command::Check(check) => check::run(&cli.target, &check).await,
        Command::Burst(command) => burst::run(&cli.target, command).await,
        Command::Peer(command) => peer::run(&cli.target, command).await,
        Command::Token(command) => token::run(&cli.target, command).await,
        Command::Join(join) => join::run(&cli.target, &join).await,
        Command::Link(link) => link::run(&cli.target, &link).await,
        Command::Identity(command) => identity::run(&cli.target, command).await,
        Command::Migrate(command) => migrate::run(&cli.target, command).await,
        Command::Federation(command) => federation::run(command),
        Command::Crds(crds) => crds::run(&crds),
        Command::Version(version) => version::run(&cli.target, &version).await,
        Command::Completion(completion) => completion::run(&completion),
        Command::Man(man) => man::run(&man),
        #[cfg(feature = "demo")]
        Command::Demo(demo) => demo::run(&cli.target, demo).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}
