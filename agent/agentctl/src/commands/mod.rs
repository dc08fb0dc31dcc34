//! One file per command.

mod acquaintance;
pub mod burst;
pub mod bursts;
pub mod completion;
pub mod crds;
#[cfg(feature = "demo")]
pub mod demo;
pub mod federation;
pub mod identity;
pub mod join;
pub mod link;
pub mod man;
pub mod migrate;
pub mod peer;
pub mod peers;
pub mod status;
pub mod token;
pub mod version;
mod watch;

use crate::cli::{Cli, Command};
use crate::error::Result;

/// Runs the command of a parsed command line.
pub async fn dispatch(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Status(list) => status::run(&cli.target, &list).await,
        Command::Peers(list) => peers::run(&cli.target, &list).await,
        Command::Bursts(list) => bursts::run(&cli.target, &list).await,
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
    }
}
