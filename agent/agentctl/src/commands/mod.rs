//! One file per command.

mod acquaintance;
pub mod burst;
pub mod bursts;
#[cfg(feature = "demo")]
pub mod demo;
pub mod federation;
pub mod identity;
pub mod join;
pub mod link;
pub mod migrate;
pub mod peer;
pub mod peers;
pub mod status;
pub mod token;
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
        #[cfg(feature = "demo")]
        Command::Demo(demo) => demo::run(&cli.target, demo).await,
    }
}
