//! One pod of a [`World`]: a host name, files, and a process 1.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::world::{World, run, tail};

/// How long process 1 may take to end.
const LONGEST_END: Duration = Duration::from_secs(120);

/// Between two looks at whether it has ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What a pod is made of.
#[derive(Clone, Debug)]
pub(super) struct PodSpec {
    /// The cluster it runs in.
    pub(super) cluster: String,
    /// Host name.
    pub(super) host: String,
    /// The name its headless Service publishes.
    pub(super) fqdn: String,
    /// Files and folders of the test, and where the pod sees them; not under `/usr`.
    pub(super) mounts: Vec<(PathBuf, String)>,
    /// Environment of process 1.
    pub(super) environment: BTreeMap<String, String>,
    /// Process 1.
    pub(super) command: Vec<String>,
}

/// A running pod; ends when dropped.
pub(super) struct Pod<'w> {
    world: &'w World,
    host: String,
    /// Its address; another pod of the same name has another.
    pub(super) address: IpAddr,
    number: u8,
    process: u32,
    child: Child,
    log: PathBuf,
    environment: BTreeMap<String, String>,
}

impl<'w> Pod<'w> {
    pub(super) fn new(
        world: &'w World,
        spec: &PodSpec,
        (address, number): (IpAddr, u8),
        process: u32,
        child: Child,
        log: PathBuf,
    ) -> Self {
        Self {
            world,
            host: spec.host.clone(),
            address,
            number,
            process,
            child,
            log,
            environment: spec.environment.clone(),
        }
    }

    /// Runs a command in the pod with the environment of its process 1, as `kubectl exec` does: what it printed.
    pub(super) fn exec(&self, command: &[&str]) -> Result<String> {
        run(self.world.command_in(self.process, &self.environment).args(command))
            .with_context(|| format!("in pod {}, whose log ends with\n{}", self.host, tail(&self.log)))
    }

    /// Waits until a line of the log contains `text`: that line.
    pub(super) fn wait_for_log(&self, text: &str) -> Result<String> {
        let log = self.log.to_str().expect("a path of ours");
        // grep ends at the first match; tail then notices that nobody reads on.
        let script = r#"grep -m1 -F -- "$2" < <(exec tail -n +1 -s 0.1 -F "$1" 2>/dev/null)"#;
        run(self.world.command().args(["timeout", "--kill-after=5", "120", "bash", "-c", script, "bash", log, text]))
            .with_context(|| format!("waiting for {text:?} in the log of pod {}", self.host))
    }

    /// SIGTERM to process 1, as when a pod is deleted; then waits until the pod has ended.
    pub(super) fn terminate(&mut self) -> Result<ExitStatus> {
        // The kernel kills the one who asks, too, if process 1 ends at once.
        let asked = self.exec(&["kill", "-TERM", "1"]);
        self.wait().with_context(|| format!("SIGTERM: {asked:?}"))
    }

    /// Ends everything in it at once, as when its node is lost.
    pub(super) fn kill(&mut self) -> Result<ExitStatus> {
        let process = self.process.to_string();
        // It has ended by itself already if this fails.
        let _ = run(self.world.command().args(["kill", "-KILL", &process]));
        Ok(self.child.wait()?)
    }

    /// Stops everything in it and takes it off the network, as when its node is lost: nobody says goodbye, and nobody answers.
    pub(super) fn lose(&self) -> Result<()> {
        self.signal_all("STOP")?;
        self.link("down")
    }

    /// Ends [`Self::lose`].
    pub(super) fn find_again(&self) -> Result<()> {
        self.link("up")?;
        self.signal_all("CONT")
    }

    fn link(&self, state: &str) -> Result<()> {
        // As the pod was attached.
        let port = format!("vpod{}", self.number);
        run(self.world.command().args(["ip", "link", "set", &port, state])).map(drop)
    }

    /// Every process of the pod, process 1 included, which takes these two signals from outside of its namespace only.
    fn signal_all(&self, signal: &str) -> Result<()> {
        // Some end meanwhile, and others begin: those that the first round missed are found by the second one.
        let inside = r#"pod=$(readlink "/proc/$1/ns/pid_for_children") || exit
        for round in 1 2; do
            for p in /proc/[0-9]*; do
                if [ "$(readlink "$p/ns/pid")" = "$pod" ]; then kill "-$2" "${p#/proc/}" || true; fi
            done
        done"#;
        let process = self.process.to_string();
        run(self.world.command().args(["bash", "-c", inside, "bash", &process, signal])).map(drop)
    }

    /// Whether process 1 has not ended.
    pub(super) fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until process 1 has ended by itself.
    ///
    /// # Errors
    /// It takes longer than [`LONGEST_END`].
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        let looks = LONGEST_END.as_millis() / BETWEEN_LOOKS.as_millis();
        for _ in 0..looks {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        bail!("pod {} has not ended after {LONGEST_END:?}", self.host)
    }
}

#[allow(clippy::print_stderr, reason = "the test harness shows it with a test that failed")]
impl Drop for Pod<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- end of the log of pod {}\n{}", self.host, tail(&self.log));
        }
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.kill();
        }
    }
}
