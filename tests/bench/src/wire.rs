//! What peers cost each other when there is nothing to say: two agents' federations over QUIC on loopback.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tributary::clock::SystemClock;
use tributary::contract::PeerState;
use tributary::contract::ports::PeerRequests as _;
use tributary::federation::identity::Authority;
use tributary::federation::tunnel::TunnelPorts;
use tributary_tests::mesh::{MeshAgent, peer};

use crate::figures::figure;

const WATCHED: Duration = Duration::from_secs(60);

/// Bursts each of both has on the other.
const BURSTS: usize = 100;

/// Bytes a second on the wire, as an agent counts them.
pub(crate) async fn idle() -> anyhow::Result<()> {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall())?;
    let agent = |name| MeshAgent::new(name, Ipv4Addr::LOCALHOST, &river, &clock, TunnelPorts::none(), BURSTS);
    let (east, west) = (agent("east")?, agent("west")?);
    east.peers.send_replace(peer("west", west.address));
    west.peers.send_replace(peer("east", east.address));
    // The connection is made, one of both is closed, and all states are exchanged.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let up = east.handle.reports().values().all(|report| report.state == PeerState::Connected);
    anyhow::ensure!(up, "the agents are not connected: {:?}", east.handle.reports());
    let (before, started) = (wire_bytes(&east)?, now());
    tokio::time::sleep(WATCHED).await;
    let rate = (wire_bytes(&east)? - before) / started.elapsed().as_secs_f64();
    let name = format!("idle bytes/s per peer, both ways, {BURSTS} bursts each");
    figure(&name, &format!("{rate:.0}"), "-", "1000");
    east.end().await;
    west.end().await;
    Ok(())
}

fn wire_bytes(agent: &MeshAgent) -> anyhow::Result<f64> {
    agent.counted("tributary_federation_wire_bytes_total").context("the wire is not counted")
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
