//! The ends of the tunnel: `tributary-ends burst …` in pods of a burst, `tributary-ends lead …` in the pod of the lead broker.
//!
//! The start script of the broker runs it ([`tributary_tunnel::ends`] says what it does, the scripts of the room `render` how
//! it is started). It is static and small, because it travels in a ConfigMap, and uses nothing of the image but `getent`.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tributary_tunnel::ends::handshake::{Key, PURPOSE};
use tributary_tunnel::ends::{burst, lead};
use tributary_tunnel::flow_control::Budget;
use tributary_tunnel::sockets;

/// Runs it with a command line, without the program's name.
///
/// # Errors
/// What it could not do at its start.
pub fn run(mut words: impl Iterator<Item = String>) -> Result<(), String> {
    let what = words.next().unwrap_or_default();
    // Whether it runs on this machine at all.
    if what == "check" {
        return Ok(());
    }
    let mut options = BTreeMap::new();
    while let Some(name) = words.next() {
        let value = words.next().ok_or_else(|| format!("{name} has no value"))?;
        options.insert(name, value);
    }
    let options = Options(options);
    // Fewer connections are better than none.
    let _ = sockets::raise_limit();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let path = options.get("--certificate")?;
        let text = std::fs::read_to_string(path).map_err(|error| format!("failed to read {path}: {error}"))?;
        let key = Key::of_certificate(&text, PURPOSE).map_err(|error| format!("{path}: {error}"))?;
        let seconds: u64 = options.parse("--hold")?;
        let (hold, listen): (_, SocketAddr) = (Duration::from_secs(seconds), options.parse("--listen")?);
        let listener = TcpListener::bind(listen).await;
        let listener = listener.map_err(|error| format!("failed to listen on {listen}: {error}"))?;
        if let Ok(path) = options.get("--ready") {
            let written = std::fs::write(path, format!("{}\n", std::process::id()));
            written.map_err(|error| format!("failed to write {path}: {error}"))?;
        }
        match what.as_str() {
            "burst" => {
                let (to, host) = (options.get("--lead")?.to_owned(), options.get("--host")?.to_owned());
                let resolve: burst::Resolve = Box::new(move || {
                    let to = to.clone();
                    Box::pin(async { spawn_blocking(move || resolve(&to)).await.map_err(io::Error::other)? })
                });
                let lead = options.get("--lead")?.to_owned();
                let tell: burst::Tell = Box::new(move |error| {
                    // It is the log of the pod.
                    let _ = writeln!(
                        io::stderr(),
                        "The end of the tunnel finds no other end at {lead}: {error}. It tries again."
                    );
                });
                let burst = burst::Burst::new((resolve, tell), key, hold, host, Budget::new(burst::MEMORY));
                burst.map_err(|error| error.to_string())?.serve(listener).await;
            }
            "lead" => {
                let (broker, budget) = (options.parse("--broker")?, Budget::new(lead::MEMORY));
                lead::Lead { broker, key, hold, budget }.serve(listener).await;
            }
            _ => return Err("the first word is burst, lead or check".to_owned()),
        }
        Ok(())
    })
}

/// Words of the form `--name value`.
struct Options(BTreeMap<String, String>);

impl Options {
    fn get(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).map(String::as_str).ok_or_else(|| format!("{name} is missing"))
    }

    fn parse<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.get(name)?;
        text.parse().map_err(|_| format!("{name}: {text:?} is none"))
    }
}

/// The address of `HOST:PORT`, as the image's own C library finds it: a static program cannot load what that needs.
fn resolve(to: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = to.parse() {
        return Ok(vec![address]);
    }
    let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{to} has no address"));
    let (host, port) = to.rsplit_once(':').ok_or_else(not_found)?;
    let asked = Command::new("getent").args(["ahosts", host]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let asked = asked.map_err(|error| io::Error::new(error.kind(), format!("failed to run getent: {error}")))?;
    let text = String::from_utf8_lossy(&asked.stdout);
    let port = port.parse().map_err(|_| not_found())?;
    // A line for each kind of socket.
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()) {
        let address = SocketAddr::new(address, port);
        if !all.contains(&address) {
            all.push(address);
        }
    }
    if all.is_empty() { Err(not_found()) } else { Ok(all) }
}
