//! A group of processes that ends when this process ends, however it ends.
//!
//! `PR_SET_PDEATHSIG` needs `unsafe` and fires when the *thread* that spawned ends, which test threads do. Instead a
//! guard, a shell in a process group of its own, reads a pipe whose other end only this process holds: after SIGKILL,
//! too, the kernel closes it, and the guard ends the group. Everything else joins that group, which an idle member (the
//! anchor, `cat` on a second pipe) keeps in existence while it is empty.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;

const GUARD: &str = include_str!("../assets/guard.sh");
const POLL: Duration = Duration::from_millis(20);

/// Processes that end together: with [`Group::stop`], when this is dropped, or when this process is gone.
#[derive(Debug)]
pub struct Group {
    id: u32,
    guard: Mutex<Child>,
    anchor: Mutex<Child>,
    // Both pipes end the group when they close; the guard's also carries orders, which it answers.
    orders: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    anchor_pipe: Mutex<Option<ChildStdin>>,
    members: Mutex<Vec<Arc<Process>>>,
}

/// One member of a [`Group`].
#[derive(Debug)]
pub struct Process {
    id: u32,
    child: Mutex<Child>,
}

/// What [`Group::signal`] can send. SIGKILL is [`Process::kill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGSTOP: the process keeps its sockets and answers nobody.
    Stop,
    /// SIGCONT, after [`Signal::Stop`].
    Continue,
}

impl Group {
    /// An empty group. At its end members get SIGTERM, after `grace` (whole tenths of a second; zero: at once) SIGKILL,
    /// and then `directory` is removed with all it holds.
    pub fn start(grace: Duration, directory: Option<&Path>) -> io::Result<Self> {
        let mut anchor = Command::new("cat")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let id = anchor.id();
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(id.to_string())
            .arg((grace.as_millis() / 100).to_string())
            .arg(directory.unwrap_or(Path::new("")))
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut guard = match guard {
            Ok(guard) => guard,
            Err(error) => {
                drop(anchor.stdin.take());
                anchor.wait()?;
                return Err(error);
            }
        };
        Ok(Self {
            id,
            orders: Mutex::new(guard.stdin.take().zip(guard.stdout.take().map(BufReader::new))),
            anchor_pipe: Mutex::new(anchor.stdin.take()),
            guard: Mutex::new(guard),
            anchor: Mutex::new(anchor),
            members: Mutex::default(),
        })
    }

    /// Starts `command` as a member. Standard input is empty; outputs go where `command` says.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Arc<Process>> {
        let pgid = i32::try_from(self.id).map_err(io::Error::other)?;
        let child = command.process_group(pgid).stdin(Stdio::null()).spawn()?;
        let process = Arc::new(Process { id: child.id(), child: Mutex::new(child) });
        let mut members = self.members.lock();
        members.retain(|member| !matches!(member.exited(), Ok(Some(_))));
        members.push(process.clone());
        Ok(process)
    }

    /// As [`Group::spawn`], with both outputs appended to `log`.
    pub fn spawn_logged(&self, command: &mut Command, log: &Path) -> io::Result<Arc<Process>> {
        let log = File::options().create(true).append(true).open(log)?;
        self.spawn(command.stdout(log.try_clone()?).stderr(log))
    }

    /// Sends a signal to a member, which has it when this returns; nothing happens if it has ended.
    pub fn signal(&self, process: &Process, signal: Signal) -> io::Result<()> {
        // While the child is locked and not waited for, its id is not another process's.
        let mut child = process.child.lock();
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        let name = match signal {
            Signal::Terminate => "TERM",
            Signal::Interrupt => "INT",
            Signal::Stop => "STOP",
            Signal::Continue => "CONT",
        };
        match self.orders.lock().as_mut() {
            Some((orders, answers)) => {
                writeln!(orders, "{name} {}", process.id)?;
                answers.read_line(&mut String::new()).map(drop)
            }
            None => Ok(()),
        }
    }

    /// Ends the group and waits until nothing of it is left. Called again, it does nothing.
    pub(crate) fn stop(&self) {
        drop(self.orders.lock().take());
        drop(self.anchor_pipe.lock().take());
        // The guard sees a member that nobody has waited for as alive.
        loop {
            for member in self.members.lock().iter() {
                let _ = member.exited();
            }
            let _ = self.anchor.lock().try_wait();
            match self.guard.lock().try_wait() {
                Ok(None) => thread::sleep(POLL),
                Ok(Some(_)) | Err(_) => break,
            }
        }
        // Had someone killed the guard, the members would still be there.
        for member in self.members.lock().drain(..) {
            let _ = member.kill();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Process {
    /// Process id; another process may bear it once this one has ended.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How it ended, or `None` while it runs.
    pub fn exited(&self) -> io::Result<Option<ExitStatus>> {
        self.child.lock().try_wait()
    }

    /// Waits until it ends by itself.
    pub async fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends it with SIGKILL, and waits for that.
    pub fn kill(&self) -> io::Result<ExitStatus> {
        let mut child = self.child.lock();
        child.kill()?;
        child.wait()
    }
}

#[cfg(test)]
mod tests;
