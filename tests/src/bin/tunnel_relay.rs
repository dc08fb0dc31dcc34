//! Two agents that stand in for the tunnel between two clusters, as `nodeport_relay` does for a NodePort:
//! `tunnel_relay LISTEN TARGET`. Everybody in LISTEN's /24 may connect.
//!
//! It says `ready` once it listens. For each line on standard input it says one line: `links` → how many connections are
//! carried; `relayed` → how many of them end in pods; `die` → nothing, it ends as if it was killed; `cut` → no datagram gets through between the agents until `heal`. It ends with its standard input.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tributary_tests::mesh::{self, Carriage, Carried, Path};

/// How long connections are held: the lease that agents have unless configured.
const HOLD: Duration = Duration::from_secs(300);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(target)) = (arguments.next(), arguments.next()) else {
        bail!("usage: tunnel_relay LISTEN TARGET");
    };
    let (listen, target): (SocketAddrV4, SocketAddr) = (listen.parse()?, target.parse()?);
    // Only fails if one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new()?;
    let [a, b, c, _] = listen.ip().octets();
    let carried = runtime.block_on(mesh::carried(Carriage {
        leads: vec![target],
        listen: *listen.ip(),
        ports: listen.port()..=listen.port(),
        sources: (1..255).map(|d| Ipv4Addr::new(a, b, c, d)).collect(),
        hold: HOLD,
        path: Path::Relayed { one_way: Duration::ZERO, lost: 0 },
    }))?;
    say("ready")?;
    for order in io::stdin().lock().lines() {
        obey(&order?, &carried)?;
    }
    Ok(())
}

fn obey(order: &str, carried: &Carried) -> anyhow::Result<()> {
    match order {
        "links" => {
            let links = carried.provider.counted("tributary_tunnel_connections").context("nothing is counted")?;
            say(&links.to_string())?;
        }
        "relayed" => {
            let relayed = carried.provider.counted("tributary_tunnel_relayed").context("nothing is counted")?;
            say(&relayed.to_string())?;
        }
        "die" => std::process::abort(),
        "cut" => {
            carried.way.cut.send_replace(true);
            say("cut")?;
        }
        "heal" => {
            carried.way.cut.send_replace(false);
            say("healed")?;
        }
        other => bail!("unknown order {other:?}"),
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
