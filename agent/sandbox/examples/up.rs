//! Starts clusters and keeps them until Ctrl-C: `cargo run --package tributary-sandbox --example up -- east west`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command")]

use std::env;

use tributary_sandbox::{Options, Report, Sandbox};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut names: Vec<_> = env::args().skip(1).collect();
    if names.is_empty() {
        names.push("east".to_owned());
    }
    let mut options = Options::named(names.iter().map(String::as_str));
    options.report = Report::new(|line| eprintln!("{line}"));
    let sandbox = Sandbox::start(options).await?;
    for cluster in sandbox.clusters() {
        println!(
            "{}\t{}\tready after {:.1?}\tlogs in {}",
            cluster.name(),
            cluster.server(),
            cluster.started_in(),
            cluster.logs().display()
        );
    }
    println!("export KUBECONFIG={}", sandbox.kubeconfig().display());
    println!("{} get nodes --context {}", sandbox.binaries().program("kubectl").display(), names[0]);
    tokio::signal::ctrl_c().await?;
    sandbox.stop();
    Ok(())
}
