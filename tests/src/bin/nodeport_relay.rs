//! A TCP relay that stands in for a NodePort and the network between two clusters: `nodeport_relay LISTEN TARGET`.
//!
//! It says `ready` once it listens. For each line on standard input it says one line: `links` → how many connections are
//! open; `cut` → closes all and accepts none until `heal`. It ends with its standard input.

use std::io::{self, BufRead, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, bail};

#[derive(Default)]
struct State {
    cut: bool,
    links: Vec<Arc<Link>>,
}

struct Link {
    near: TcpStream,
    far: TcpStream,
}

impl Link {
    fn close(&self) {
        // One that the other side has closed already needs no closing.
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<SocketAddr>());
    let (Some(listen), Some(target)) = (arguments.next().transpose()?, arguments.next().transpose()?) else {
        bail!("usage: nodeport_relay LISTEN TARGET");
    };
    let listener = TcpListener::bind(listen).with_context(|| format!("failed to listen on {listen}"))?;
    let state = Arc::new(Mutex::new(State::default()));
    let accepting = state.clone();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let state = accepting.clone();
            thread::spawn(move || serve(near, target, &state));
        }
    });
    say("ready")?;
    for order in io::stdin().lock().lines() {
        let mut state = lock(&state);
        match order?.as_str() {
            "links" => say(&state.links.len().to_string())?,
            "cut" => {
                state.cut = true;
                state.links.iter().for_each(|link| link.close());
                say("cut")?;
            }
            "heal" => {
                state.cut = false;
                say("healed")?;
            }
            other => bail!("unknown order {other:?}"),
        }
    }
    Ok(())
}

/// Carries bytes both ways until either side closes.
fn serve(near: TcpStream, target: SocketAddr, state: &Mutex<State>) {
    let Ok(far) = TcpStream::connect(target) else { return };
    let link = Arc::new(Link { near, far });
    {
        let mut state = lock(state);
        if state.cut {
            return;
        }
        state.links.push(link.clone());
    }
    let there = link.clone();
    let one_way = thread::spawn(move || {
        let _ = io::copy(&mut &there.near, &mut &there.far);
        there.close();
    });
    let _ = io::copy(&mut &link.far, &mut &link.near);
    link.close();
    let _ = one_way.join();
    lock(state).links.retain(|open| !Arc::ptr_eq(open, &link));
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
