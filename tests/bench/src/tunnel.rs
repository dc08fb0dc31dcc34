//! Broker traffic through two agents, beside plain TCP on the same machine in the same run.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tributary::clock::SystemClock;
use tributary::federation::identity::Authority;
use tributary_tests::mesh::{self, Carriage, Carried};

use crate::figures::{figure, line};
use crate::wire::now;

/// How long bytes are counted.
const COUNTED: Duration = Duration::from_secs(5);
/// The long way: one way, and how many of 1,000 datagrams are lost.
const LONG_WAY: (Duration, u64) = (Duration::from_millis(25), 10);
const PATIENCE: Duration = Duration::from_secs(30);

/// All figures.
pub(crate) async fn tunnel() -> anyhow::Result<()> {
    let (sink, echo) = (sink().await?, echo().await?);
    Figures::of(sink, echo, 2_000).await?.show("plain TCP, loopback");
    let (_agents, [to_sink, to_echo]) = agents([sink, echo], None).await?;
    Figures::of(to_sink, to_echo, 2_000).await?.show("tunnel, loopback");
    let (_agents, [to_sink, to_echo]) = agents([sink, echo], Some(LONG_WAY)).await?;
    Figures::of(to_sink, to_echo, 100).await?.show("tunnel, 50 ms, 1% loss");
    line("(plain TCP over 50 ms with 1% loss is not measured: that takes a network device with netem)");
    let there = ["stunnel4", "stunnel"]
        .into_iter()
        .find(|name| Command::new(name).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok());
    match there {
        None => line("SKIPPED: a pair of stunnel4, which is not installed here (Debian: apt-get install stunnel4)"),
        Some(name) => match stunnel_pair(name, [sink, echo]).await {
            Ok((_pair, [to_sink, to_echo])) => {
                Figures::of(to_sink, to_echo, 2_000).await?.show("stunnel pair, loopback");
            }
            Err(error) => line(&format!("SKIPPED: the pair of {name} did not start: {error:#}")),
        },
    }
    Ok(())
}

struct Figures {
    one: f64,
    many: f64,
    round_trips: Vec<Duration>,
}

impl Figures {
    async fn of(sink: SocketAddr, echo: SocketAddr, round_trips: usize) -> anyhow::Result<Self> {
        let round_trips = self::round_trips(echo, round_trips).await?;
        Ok(Self { one: throughput(sink, 1).await?, many: throughput(sink, 32).await?, round_trips })
    }

    fn show(mut self, way: &str) {
        figure(&format!("{way}: 1 connection"), &format!("{:.0} MB/s", self.one), "-", "-");
        figure(&format!("{way}: 32 connections"), &format!("{:.0} MB/s", self.many), "-", "-");
        self.round_trips.sort();
        let at =
            |percent: usize| self.round_trips[(self.round_trips.len() * percent / 100).min(self.round_trips.len() - 1)];
        let [middle, tail] = [at(50), at(99)].map(|time| time.as_secs_f64() * 1_000.0);
        figure(&format!("{way}: round trip P50/P99"), &format!("{middle:.3}/{tail:.3} ms"), "-", "-");
    }
}

/// Megabytes a second that reach the sink, which says how many it has got.
async fn throughput(sink: SocketAddr, connections: usize) -> anyhow::Result<f64> {
    let mut tasks = tokio::task::JoinSet::new();
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

async fn round_trips(echo: SocketAddr, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut tcp = TcpStream::connect(echo).await?;
    tcp.set_nodelay(true)?;
    let (word, mut heard, mut all) = ([7; 64], [0; 64], Vec::new());
    for _ in 0..count {
        let started = now();
        tcp.write_all(&word).await?;
        tcp.read_exact(&mut heard).await?;
        all.push(started.elapsed());
    }
    Ok(all)
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
async fn agents(leads: [SocketAddr; 2], way: Option<(Duration, u64)>) -> anyhow::Result<(Carried, [SocketAddr; 2])> {
    let carried = mesh::carried(Carriage {
        leads: leads.to_vec(),
        listen: Ipv4Addr::LOCALHOST,
        ports: 0..=0,
        sources: vec![Ipv4Addr::LOCALHOST],
        hold: PATIENCE,
        way,
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

/// stunnel before and behind a TLS connection, with certificates of our own kind.
async fn stunnel_pair(name: &str, leads: [SocketAddr; 2]) -> anyhow::Result<(Pair, [SocketAddr; 2])> {
    let directory = tempfile::tempdir()?;
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall())?;
    let issued = river.issue("east", clock.wall(), Duration::from_secs(3_600))?;
    issued.write(directory.path(), tributary::federation::identity::files::Existing::Replace)?;
    let free =
        || -> anyhow::Result<SocketAddr> { Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?) };
    let at = |file: &str| directory.path().join(file).display().to_string();
    let (mut server, mut client) = (String::new(), String::new());
    let common = "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n";
    let mut ends = Vec::new();
    for (number, lead) in leads.into_iter().enumerate() {
        let (middle, end) = (free()?, free()?);
        let (certificate, key) = (at("tls.crt"), at("tls.key"));
        server += &format!("[{number}]\naccept = {middle}\nconnect = {lead}\ncert = {certificate}\nkey = {key}\n");
        client += &format!("[{number}]\nclient = yes\naccept = {end}\nconnect = {middle}\n");
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
