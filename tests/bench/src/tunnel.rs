//! Broker traffic through two agents, beside plain TCP and a pair of stunnel, in turns on the same machine in the same run.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tributary::clock::SystemClock;
use tributary::federation::identity::Authority;
use tributary_tests::mesh::{self, Carriage, Carried, Path};

use crate::figures::{figure, line};
use crate::wire::now;

/// How often every way has its turn. What is shown is the median: others may use the machine, too.
const ROUNDS: usize = 5;
/// How long bytes are counted.
const COUNTED: Duration = Duration::from_secs(2);
/// Round trips of a turn.
const ROUND_TRIPS: usize = 1_000;
/// Connections at once.
const MANY: usize = 32;
/// The long way: one way, and how many of 1,000 datagrams are lost.
const LONG_WAY: Path = Path::Relayed { one_way: Duration::from_millis(25), lost: 10 };
const PATIENCE: Duration = Duration::from_secs(30);

/// All figures. `long_way`: two addresses of this machine that packets take a long, lossy way between.
pub(crate) async fn tunnel(long_way: Option<[Ipv4Addr; 2]>) -> anyhow::Result<()> {
    let leads = [sink().await?, echo().await?];
    let (_agents, through_agents) = agents(leads, Path::Direct).await?;
    let mut ways = vec![Way::new("plain TCP", leads), Way::new("tunnel", through_agents)];
    let pair = stunnel(leads, [Ipv4Addr::LOCALHOST; 2]).await?;
    ways.extend(pair.as_ref().map(|(_, ends)| Way::new("stunnel pair", *ends)));
    in_turns(&mut ways, ROUND_TRIPS).await?;
    if let [_, tunnel, stunnel] = ways.as_slice() {
        tunnel.compare(stunnel, [">= 60%", ">= 60%", "<= 150%"]);
    }
    drop(pair);

    let path = long_way.map_or(LONG_WAY, Path::Between);
    let (_agents, through_agents) = agents(leads, path).await?;
    let Some(ends) = long_way else {
        line("SKIPPED: stunnel over the long way: --long-way names addresses between which packets of TCP take one");
        return in_turns(&mut [Way::new("tunnel, 50 ms, 1% loss", through_agents)], ROUND_TRIPS / 20).await;
    };
    let mut ways = vec![Way::new("tunnel, long way", through_agents)];
    let pair = stunnel(leads, ends).await?;
    ways.extend(pair.as_ref().map(|(_, ends)| Way::new("stunnel pair, long way", *ends)));
    in_turns(&mut ways, ROUND_TRIPS / 20).await?;
    if let [tunnel, stunnel] = ways.as_slice() {
        tunnel.compare(stunnel, ["> 100%", "> 100%", "-"]);
    }
    Ok(())
}

/// Measures all ways, in turns.
async fn in_turns(ways: &mut [Way], round_trips: usize) -> anyhow::Result<()> {
    for _ in 0..ROUNDS {
        for way in ways.iter_mut() {
            way.turn(round_trips).await?;
        }
    }
    ways.iter().for_each(Way::show);
    Ok(())
}

/// A way to the leads, and what was measured on it, a value per turn.
struct Way {
    name: &'static str,
    sink: SocketAddr,
    echo: SocketAddr,
    one: Vec<f64>,
    many: Vec<f64>,
    /// P50 and P99 in milliseconds.
    alone: [Vec<f64>; 2],
    /// The same beside other connections that are all busy.
    beside: [Vec<f64>; 2],
}

impl Way {
    fn new(name: &'static str, [sink, echo]: [SocketAddr; 2]) -> Self {
        let (alone, beside) = <([Vec<f64>; 2], [Vec<f64>; 2])>::default();
        Self { name, sink, echo, one: Vec::new(), many: Vec::new(), alone, beside }
    }

    async fn turn(&mut self, round_trips: usize) -> anyhow::Result<()> {
        let alone = self::round_trips(self.echo, round_trips).await?;
        self.one.push(throughput(self.sink, 1).await?);
        let (many, beside) = tokio::join!(throughput(self.sink, MANY), self::round_trips(self.echo, 20));
        self.many.push(many?);
        for (kept, measured) in [(&mut self.alone, alone), (&mut self.beside, beside?)] {
            kept.iter_mut().zip(measured).for_each(|(kept, measured)| kept.push(measured));
        }
        Ok(())
    }

    fn show(&self) {
        let figure = |what: &str, measured: &str| figure(&format!("{}: {what}", self.name), measured, "-", "-");
        let times = |[middle, tail]: &[Vec<f64>; 2]| format!("{:.3}/{:.3} ms", median(middle), median(tail));
        figure("1 connection", &format!("{:.0} MB/s", median(&self.one)));
        figure(&format!("{MANY} connections"), &format!("{:.0} MB/s", median(&self.many)));
        figure("round trip P50/P99", &times(&self.alone));
        figure(&format!("round trip P50 beside {MANY} busy ones"), &format!("{:.3} ms", median(&self.beside[0])));
    }

    fn compare(&self, other: &Self, [one, many, tail]: [&str; 3]) {
        let figure = |what: &str, ours: &[f64], theirs: &[f64], goal: &str| {
            let share = 100.0 * median(ours) / median(theirs);
            figure(&format!("{} beside {}: {what}", self.name, other.name), &format!("{share:.0}%"), "-", goal);
        };
        figure("1 connection", &self.one, &other.one, one);
        figure(&format!("{MANY} connections"), &self.many, &other.many, many);
        figure("round trip P99", &self.alone[1], &other.alone[1], tail);
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Megabytes a second that reach the sink, which says how many it has got.
async fn throughput(sink: SocketAddr, connections: usize) -> anyhow::Result<f64> {
    let mut tasks = JoinSet::new();
    let started = now();
    for _ in 0..connections {
        tasks.spawn(async move {
            let (mut reader, mut writer) = TcpStream::connect(sink).await?.into_split();
            let block = vec![7; 256 << 10];
            let write = async {
                while started.elapsed() < COUNTED {
                    writer.write_all(&block).await?;
                }
                writer.shutdown().await
            };
            let (written, got) = tokio::join!(write, reader.read_u64());
            written?;
            got
        });
    }
    let mut total = 0;
    while let Some(got) = tasks.join_next().await {
        total += got?.context("a connection broke")?;
    }
    Ok(total as f64 / started.elapsed().as_secs_f64() / 1e6)
}

/// P50 and P99 in milliseconds.
async fn round_trips(echo: SocketAddr, count: usize) -> anyhow::Result<[f64; 2]> {
    let mut tcp = TcpStream::connect(echo).await?;
    tcp.set_nodelay(true)?;
    let (word, mut heard, mut all) = ([7; 64], [0; 64], Vec::new());
    for _ in 0..count.max(1) {
        let started = now();
        tcp.write_all(&word).await?;
        tcp.read_exact(&mut heard).await?;
        all.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    all.sort_by(f64::total_cmp);
    Ok([50, 99].map(|percent| all[(all.len() * percent / 100).min(all.len() - 1)]))
}

/// Counts what it gets, and says at the end how much that was.
async fn sink() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut buf, mut total) = (vec![0; 256 << 10], 0);
                while let Ok(read @ 1..) = tcp.read(&mut buf).await {
                    total += read as u64;
                }
                let _ = tcp.write_u64(total).await;
            });
        }
    });
    Ok(address)
}

/// Sends back what it gets.
async fn echo() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            tokio::spawn(async move {
                let (mut reader, mut writer) = tcp.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    Ok(address)
}

/// Two agents, and the ports that lead to each of `leads`.
async fn agents(leads: [SocketAddr; 2], path: Path) -> anyhow::Result<(Carried, [SocketAddr; 2])> {
    let carried = mesh::carried(Carriage {
        leads: leads.to_vec(),
        listen: Ipv4Addr::LOCALHOST,
        ports: 0..=0,
        sources: vec![Ipv4Addr::LOCALHOST],
        hold: PATIENCE,
        path,
    })
    .await?;
    let ends = [carried.ends[0], carried.ends[1]];
    Ok((carried, ends))
}

/// Processes that end with us.
struct Pair(Vec<std::process::Child>, #[allow(dead_code, reason = "files of the processes")] tempfile::TempDir);

impl Drop for Pair {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A pair of stunnel at these addresses, the server's first, and where it takes connections; `None`, after a line that says
/// so, where there is no stunnel.
async fn stunnel(leads: [SocketAddr; 2], at: [Ipv4Addr; 2]) -> anyhow::Result<Option<(Pair, [SocketAddr; 2])>> {
    let answers =
        |name: &&str| Command::new(name).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let Some(name) = ["stunnel4", "stunnel"].into_iter().find(answers) else {
        line("SKIPPED: NOTHING IS COMPARED: stunnel4 is not on PATH (Debian: apt-get install stunnel4)");
        return Ok(None);
    };
    let pair = stunnel_pair(name, leads, at).await.with_context(|| format!("the pair of {name} did not start"))?;
    Ok(Some(pair))
}

/// stunnel before and behind a TLS connection, with certificates of our own kind.
async fn stunnel_pair(
    name: &str,
    leads: [SocketAddr; 2],
    [server_at, client_at]: [Ipv4Addr; 2],
) -> anyhow::Result<(Pair, [SocketAddr; 2])> {
    let directory = tempfile::tempdir()?;
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall())?;
    let issued = river.issue("east", clock.wall(), Duration::from_secs(3_600))?;
    issued.write(directory.path(), tributary::federation::identity::files::Existing::Replace)?;
    let free = |at: Ipv4Addr| -> anyhow::Result<SocketAddr> { Ok(std::net::TcpListener::bind((at, 0))?.local_addr()?) };
    let at = |file: &str| directory.path().join(file).display().to_string();
    let (mut server, mut client) = (String::new(), String::new());
    let common = "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n";
    let mut ends = Vec::new();
    for (number, lead) in leads.into_iter().enumerate() {
        let (middle, end) = (free(server_at)?, free(Ipv4Addr::LOCALHOST)?);
        let (certificate, key) = (at("tls.crt"), at("tls.key"));
        server += &format!("[{number}]\naccept = {middle}\nconnect = {lead}\ncert = {certificate}\nkey = {key}\n");
        client += &format!("[{number}]\nclient = yes\naccept = {end}\nlocal = {client_at}\nconnect = {middle}\n");
        ends.push(end);
    }
    let mut pair = Pair(Vec::new(), directory);
    for (role, text) in [("server", server), ("client", client)] {
        let file = pair.1.path().join(role);
        std::fs::write(&file, format!("{common}{text}"))?;
        let mut command = Command::new(name);
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        pair.0.push(command.spawn()?);
    }
    for end in &ends {
        let up = async {
            while TcpStream::connect(end).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, up).await.context("it does not listen")?;
    }
    Ok((pair, [ends[0], ends[1]]))
}
