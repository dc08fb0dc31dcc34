//! A TCP relay that stands in for a NodePort and the network between two clusters: `nodeport_relay LISTEN TARGET`.
//!
//! It says `ready` once it listens. For each line on standard input it says one line: `links` → how many connections are
//! open; `cut` → closes all and accepts none until `heal`; `strand` → those that are open carry nothing any more, and neither
//! end hears of it: bytes are taken and lost. New ones are carried. It ends with its standard input.

use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Whatever is behind it is gone, and nobody said so.
    stranded: AtomicBool,
}

impl Link {
    /// Carries bytes one way until an end closes. Of a link that is stranded no end hears that the other closed.
    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = [0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if !self.is_stranded() && to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        if !self.is_stranded() {
            self.close();
        }
    }

    fn is_stranded(&self) -> bool {
        self.stranded.load(Ordering::Relaxed)
    }

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
            "strand" => {
                for link in state.links.drain(..) {
                    link.stranded.store(true, Ordering::Relaxed);
                }
                say("stranded")?;
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
    let link = Arc::new(Link { near, far, stranded: AtomicBool::new(false) });
    {
        let mut state = lock(state);
        if state.cut {
            return;
        }
        state.links.push(link.clone());
    }
    let there = link.clone();
    let one_way = thread::spawn(move || there.carry(&there.near, &there.far));
    link.carry(&link.far, &link.near);
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
