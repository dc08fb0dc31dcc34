//! Broker traffic through two agents, beside plain TCP and a pair of stunnel, in turns on the same machine in the same run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::figures::{figure, line};
use crate::ways::{self, Between, Way};
use crate::wire::now;

/// How often every way has its turn. What is shown is the median: others may use the machine, too.
const ROUNDS: usize = 5;
/// How long bytes are counted.
const COUNTED: Duration = Duration::from_secs(2);
/// Round trips of a turn.
const ROUND_TRIPS: usize = 1_000;
/// Connections at once.
const MANY: usize = 32;
/// Brokers of one burst that all connect to the lead themselves.
const BROKERS: usize = 1_100;
/// Pods that they are in here. Each broker would have its own, with an end of its own.
const PODS: usize = 10;

/// All figures. `long_way`: two addresses of this machine that packets take a long, lossy way between. `ends`: the program of
/// the tunnel's ends, as it comes to pods; without it, this program is them.
pub(crate) async fn tunnel(long_way: Option<[Ipv4Addr; 2]>, ends: Option<&Path>) -> anyhow::Result<()> {
    let leads = [served(Ipv4Addr::new(127, 0, 0, 2), sink).await?, served(Ipv4Addr::new(127, 0, 0, 3), echo).await?];
    let mut all = vec![Measured::of(Way::plain(leads))];
    let between = Between::Loopback;
    all.push(Measured::of(ways::agents("tunnel", leads, between).await?));
    all.push(Measured::of(ways::ends("tunnel, ends in pods", leads, between, ends, 1).await?));
    all.extend(ways::stunnel("stunnel pair", leads, [Ipv4Addr::LOCALHOST; 2]).await?.map(Measured::of));
    in_turns(&mut all, ROUND_TRIPS).await?;
    if let [_, tunnel, relayed, stunnel] = all.as_slice() {
        tunnel.compare(stunnel, [">= 60%", ">= 60%", "<= 150%"]);
        relayed.compare(stunnel, [">= 90%", ">= 90%", "<= 150%"]);
    }
    drop(all);
    crowd(leads, ends).await?;

    let between = long_way.map_or(Between::Relay, Between::Addresses);
    let mut all = vec![Measured::of(ways::agents("tunnel, long way", leads, between).await?)];
    all.push(Measured::of(ways::ends("ends in pods, long way", leads, between, ends, 1).await?));
    let Some(at) = long_way else {
        line("SKIPPED: stunnel over the long way: --long-way names addresses between which packets of TCP take one");
        return in_turns(&mut all, ROUND_TRIPS / 20).await;
    };
    all.extend(ways::stunnel("stunnel pair, long way", leads, at).await?.map(Measured::of));
    in_turns(&mut all, ROUND_TRIPS / 20).await?;
    if let [tunnel, relayed, stunnel] = all.as_slice() {
        tunnel.compare(stunnel, ["> 100%", "> 100%", "-"]);
        relayed.compare(stunnel, ["> 100%", "> 100%", "-"]);
    }
    Ok(())
}

/// As many connections as a large burst without a gateway makes: how long until all have an answer, and what they take.
async fn crowd(leads: [SocketAddr; 2], ends: Option<&Path>) -> anyhow::Result<()> {
    let way = ways::ends("crowd", leads, Between::Loopback, ends, PODS).await?;
    let (before, started) = (way.resident()?, now());
    let mut all = JoinSet::new();
    for echo in way.pods[1..].iter().copied().cycle().take(BROKERS) {
        all.spawn(async move {
            let mut tcp = TcpStream::connect(echo).await?;
            tcp.write_all(&[7; 64]).await?;
            tcp.read_exact(&mut [0; 64]).await?;
            anyhow::Ok(tcp)
        });
    }
    let open = all.join_all().await.into_iter().filter_map(Result::ok).collect::<Vec<_>>();
    let figure = |what: &str, measured: String| figure(&format!("{BROKERS} connections: {what}"), &measured, "-", "-");
    figure("answered", format!("{} in {:.1} s", open.len(), started.elapsed().as_secs_f64()));
    figure(
        "memory of agents and ends, each connection",
        format!("{:.0} KiB", (way.resident()? - before) * 1024.0 / BROKERS as f64),
    );
    Ok(())
}

/// Measures all ways, in turns.
async fn in_turns(ways: &mut [Measured], round_trips: usize) -> anyhow::Result<()> {
    for _ in 0..ROUNDS {
        for way in ways.iter_mut() {
            way.turn(round_trips).await.with_context(|| format!("{} failed", way.way.name))?;
        }
    }
    ways.iter().for_each(Measured::show);
    Ok(())
}

/// A way to the leads, and what was measured on it, a value per turn.
struct Measured {
    way: Way,
    one: Vec<f64>,
    many: Vec<f64>,
    /// P50 and P99 in milliseconds.
    alone: [Vec<f64>; 2],
    /// The same beside other connections that are all busy.
    beside: [Vec<f64>; 2],
    /// What the processes of the way computed for a gigabyte over many connections, in seconds.
    computed: Vec<f64>,
}

impl Measured {
    fn of(way: Way) -> Self {
        let (alone, beside) = <([Vec<f64>; 2], [Vec<f64>; 2])>::default();
        Self { way, one: Vec::new(), many: Vec::new(), alone, beside, computed: Vec::new() }
    }

    async fn turn(&mut self, round_trips: usize) -> anyhow::Result<()> {
        let Way { sink, echo, .. } = self.way;
        let alone = self::round_trips(echo, round_trips).await?;
        self.one.push(throughput(sink, 1).await?.0);
        let before = self.way.computed()?;
        let (many, beside) = tokio::join!(throughput(sink, MANY), self::round_trips(echo, 20));
        let (many, bytes) = many?;
        self.many.push(many);
        self.computed.push((self.way.computed()? - before).as_secs_f64() / (bytes as f64 / 1e9));
        for (kept, measured) in [(&mut self.alone, alone), (&mut self.beside, beside?)] {
            kept.iter_mut().zip(measured).for_each(|(kept, measured)| kept.push(measured));
        }
        Ok(())
    }

    fn show(&self) {
        let figure = |what: &str, measured: &str| figure(&format!("{}: {what}", self.way.name), measured, "-", "-");
        let times = |[middle, tail]: &[Vec<f64>; 2]| format!("{:.3}/{:.3} ms", median(middle), median(tail));
        figure("1 connection", &format!("{:.0} MB/s", median(&self.one)));
        figure(&format!("{MANY} connections"), &format!("{:.0} MB/s", median(&self.many)));
        figure("CPU for a GB over these", &format!("{:.1} s", median(&self.computed)));
        figure("round trip P50/P99", &times(&self.alone));
        figure(&format!("round trip P50 beside {MANY} busy ones"), &format!("{:.3} ms", median(&self.beside[0])));
    }

    fn compare(&self, other: &Self, [one, many, tail]: [&str; 3]) {
        let figure = |what: &str, ours: &[f64], theirs: &[f64], goal: &str| {
            let share = 100.0 * median(ours) / median(theirs);
            figure(&format!("{} beside {}: {what}", self.way.name, other.way.name), &format!("{share:.0}%"), "-", goal);
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

/// Megabytes a second that reach the sink, and all its bytes: it says how many it has got.
async fn throughput(sink: SocketAddr, connections: usize) -> anyhow::Result<(f64, u64)> {
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
    Ok((total as f64 / started.elapsed().as_secs_f64() / 1e6, total))
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

/// Serves every connection to a port of this address.
async fn served<F: Future<Output = ()> + Send + 'static>(
    at: Ipv4Addr,
    serve: fn(TcpStream) -> F,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((at, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            tokio::spawn(serve(tcp));
        }
    });
    Ok(address)
}

/// Counts what it gets, and says at the end how much that was.
async fn sink(mut tcp: TcpStream) {
    let (mut buf, mut total) = (vec![0; 256 << 10], 0);
    while let Ok(read @ 1..) = tcp.read(&mut buf).await {
        total += read as u64;
    }
    let _ = tcp.write_u64(total).await;
}

/// Sends back what it gets.
async fn echo(mut tcp: TcpStream) {
    let (mut reader, mut writer) = tcp.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}
