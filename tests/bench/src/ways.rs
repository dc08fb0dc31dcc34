//! Ways to the leads: processes of their own, as they are beside real brokers, so that neither their time nor their memory is
//! the measuring program's.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tributary::clock::SystemClock;
use tributary::federation::identity::Authority;
use tributary::federation::identity::files::Existing;
use tributary::render::ENDS_PORT;
use tributary_tests::mesh::{self, Carriage, Path as Crossed};

use crate::figures::line;
use crate::operator::{cpu, resident};

/// Set in a process that shall be two agents: the leads, and where the agents are.
const AGENTS: &str = "TRIBUTARY_BENCH_TUNNEL";
/// Set in a process that shall be an end of the tunnel: its words.
const END: &str = "TRIBUTARY_BENCH_END";
/// How long a process may take to start, and how long connections are held.
const PATIENCE: Duration = Duration::from_secs(30);
/// The long way: one way, and how many of 1,000 datagrams are lost.
const LONG_WAY: Crossed = Crossed::Relayed { one_way: Duration::from_millis(25), lost: 10 };

/// What lies between the agents.
#[derive(Clone, Copy)]
pub(crate) enum Between {
    /// Nothing.
    Loopback,
    /// A relay of datagrams that takes its time and loses some.
    Relay,
    /// What there is between two addresses of this machine, the root's first.
    Addresses([Ipv4Addr; 2]),
}

/// A way to two leads. Its processes end when it is dropped.
pub(crate) struct Way {
    /// How figures call it.
    pub(crate) name: &'static str,
    /// Leads to the one that counts bytes.
    pub(crate) sink: SocketAddr,
    /// Leads to the one that answers.
    pub(crate) echo: SocketAddr,
    /// Where each pod takes connections, if there are pods: the first leads to the one that counts bytes.
    pub(crate) pods: Vec<SocketAddr>,
    processes: Vec<Child>,
    _files: Option<TempDir>,
}

impl Way {
    fn new(name: &'static str, [sink, echo]: [SocketAddr; 2]) -> Self {
        Self { name, sink, echo, pods: Vec::new(), processes: Vec::new(), _files: None }
    }

    /// Without anything between.
    pub(crate) fn plain(leads: [SocketAddr; 2]) -> Self {
        Self::new("plain TCP", leads)
    }

    /// What its processes have computed so far.
    pub(crate) fn computed(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| cpu(process.id())).sum()
    }

    /// Resident memory of its processes, in MiB.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        self.processes.iter().map(|process| resident(process.id())).sum()
    }

    /// Waits until it takes connections.
    async fn up(self) -> anyhow::Result<Self> {
        let up = async {
            for end in [self.sink, self.echo].iter().chain(&self.pods) {
                while TcpStream::connect(end).await.is_err() {
                    sleep(Duration::from_millis(50)).await;
                }
            }
        };
        timeout(PATIENCE, up).await.with_context(|| format!("{} does not listen", self.name))?;
        Ok(self)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// If this process was started as a part of a way, it is one until it ends.
pub(crate) fn become_part_if_asked() -> Option<ExitCode> {
    let ended = if let Ok(words) = std::env::var(AGENTS) {
        two_agents(&words)
    } else {
        let words = std::env::var(END).ok()?;
        tributary_ends::run(words.split(' ').map(str::to_owned)).map_err(anyhow::Error::msg)
    };
    Some(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    })
}

/// Two agents by which the ends of the tunnel, or brokers, reach their leads. They say where.
fn two_agents(words: &str) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = words.split(' ');
    let mut lead = || -> anyhow::Result<SocketAddr> { Ok(words.next().context("a lead is missing")?.parse()?) };
    let leads = vec![lead()?, lead()?];
    let path = match words.next() {
        None => Crossed::Direct,
        Some("relay") => LONG_WAY,
        Some(root) => Crossed::Between([root.parse()?, words.next().context("the other address is missing")?.parse()?]),
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        let carriage = Carriage {
            leads,
            listen: Ipv4Addr::LOCALHOST,
            ports: 0..=0,
            sources: vec![Ipv4Addr::LOCALHOST],
            hold: PATIENCE,
            path,
        };
        let carried = mesh::carried(carriage).await?;
        line(&format!("{} {}", carried.ends[0], carried.ends[1]));
        // Until who started us ends.
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        Ok(())
    })
}

fn itself() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

/// Through two agents, in which the connections end.
pub(crate) async fn agents(name: &'static str, leads: [SocketAddr; 2], between: Between) -> anyhow::Result<Way> {
    let [sink, echo] = leads;
    let between = match between {
        Between::Loopback => String::new(),
        Between::Relay => " relay".to_owned(),
        Between::Addresses([root, provider]) => format!(" {root} {provider}"),
    };
    let mut process = itself()?.env(AGENTS, format!("{sink} {echo}{between}")).spawn()?;
    let mut told = String::new();
    BufReader::new(process.stdout.take().context("no output")?).read_line(&mut told)?;
    let mut way = Way::new(name, leads);
    way.processes.push(process);
    let (sink, echo) = told.trim().split_once(' ').with_context(|| format!("the agents said {told:?}"))?;
    (way.sink, way.echo) = (sink.parse()?, echo.parse()?);
    way.up().await
}

/// Through two agents that relay between ends beside each lead and in the pods of brokers: one that sends to the first lead, and
/// `pods` that speak with the other.
pub(crate) async fn ends(
    name: &'static str,
    leads: [SocketAddr; 2],
    between: Between,
    program: Option<&Path>,
    pods: usize,
) -> anyhow::Result<Way> {
    let files = tempfile::tempdir()?;
    let certificate = files.path().join("curve.cert");
    std::fs::write(&certificate, format!("curve\n    secret-key = \"{}\"\n", "a".repeat(40)))?;
    let common = format!("--certificate {} --hold {}", certificate.display(), PATIENCE.as_secs());
    let spawn = |words: String| -> anyhow::Result<Child> {
        let mut command = match program {
            Some(program) => Command::new(program),
            None => itself()?,
        };
        if program.is_some() {
            command.args(words.split(' '));
        }
        Ok(command.env(END, words).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
    };
    let mut way = agents(name, leads, between).await?;
    for lead in leads {
        let lead_end = spawn(format!("lead {common} --listen {}:{ENDS_PORT} --broker {lead}", lead.ip()))?;
        way.processes.push(lead_end);
    }
    for to in std::iter::once(way.sink).chain(std::iter::repeat_n(way.echo, pods)) {
        let listen = free(Ipv4Addr::LOCALHOST)?;
        way.processes.push(spawn(format!("burst {common} --listen {listen} --lead {to} --host {listen}"))?);
        way.pods.push(listen);
    }
    (way.sink, way.echo) = (way.pods[0], way.pods[1]);
    way._files = Some(files);
    way.up().await
}

/// A port of this address that was free a moment ago.
fn free(at: Ipv4Addr) -> anyhow::Result<SocketAddr> {
    Ok(std::net::TcpListener::bind((at, 0))?.local_addr()?)
}

/// A pair of stunnel at these addresses, the server's first; `None`, after a line that says so, where there is no stunnel.
pub(crate) async fn stunnel(
    name: &'static str,
    leads: [SocketAddr; 2],
    at: [Ipv4Addr; 2],
) -> anyhow::Result<Option<Way>> {
    let answers =
        |name: &&str| Command::new(name).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let Some(program) = ["stunnel4", "stunnel"].into_iter().find(answers) else {
        line("SKIPPED: NOTHING IS COMPARED: stunnel4 is not on PATH (Debian: apt-get install stunnel4)");
        return Ok(None);
    };
    Ok(Some(pair(name, program, leads, at).await?))
}

/// stunnel before and behind a TLS connection, with certificates of our own kind.
async fn pair(
    name: &'static str,
    program: &str,
    leads: [SocketAddr; 2],
    [server_at, client_at]: [Ipv4Addr; 2],
) -> anyhow::Result<Way> {
    let directory = tempfile::tempdir()?;
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall())?;
    let issued = river.issue("east", clock.wall(), Duration::from_secs(3_600))?;
    issued.write(directory.path(), Existing::Replace)?;
    let at = |file: &str| directory.path().join(file).display().to_string();
    let (mut server, mut client) = (String::new(), String::new());
    let common = "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n";
    let mut ends = leads;
    for (number, (lead, end)) in leads.into_iter().zip(&mut ends).enumerate() {
        let middle = free(server_at)?;
        *end = free(Ipv4Addr::LOCALHOST)?;
        let (certificate, key) = (at("tls.crt"), at("tls.key"));
        server += &format!("[{number}]\naccept = {middle}\nconnect = {lead}\ncert = {certificate}\nkey = {key}\n");
        client += &format!("[{number}]\nclient = yes\naccept = {end}\nlocal = {client_at}\nconnect = {middle}\n");
    }
    let mut way = Way::new(name, ends);
    for (role, text) in [("server", server), ("client", client)] {
        let file = directory.path().join(role);
        std::fs::write(&file, format!("{common}{text}"))?;
        let mut command = Command::new(program);
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        way.processes.push(command.spawn()?);
    }
    way._files = Some(directory);
    way.up().await
}
