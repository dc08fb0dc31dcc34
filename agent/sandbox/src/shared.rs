//! One sandbox for a whole test binary.

use std::{sync::OnceLock, thread};

use anyhow::{Context, anyhow};

use crate::{options::Options, sandbox::Sandbox};

static SANDBOX: OnceLock<Result<Sandbox, String>> = OnceLock::new();

/// The sandbox of this process: started by the first call, with its options; others wait for it. It ends with the
/// process.
///
/// The start has a thread and a runtime of its own, so that it can be called with or without a runtime around it. No
/// client outlives that start: take your own from [`Cluster::client`](crate::Cluster::client).
///
/// # Errors
/// As [`Sandbox::start`], the same for every caller.
pub fn shared(options: impl FnOnce() -> Options) -> anyhow::Result<&'static Sandbox> {
    let sandbox = SANDBOX.get_or_init(|| {
        let options = options();
        let start = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .context("failed to start a runtime for the sandbox")?;
            runtime.block_on(Sandbox::start(options))
        };
        let joined = thread::Builder::new().name("sandbox".to_owned()).spawn(start).map(thread::JoinHandle::join);
        match joined {
            Ok(Ok(started)) => started.map_err(|error| format!("{error:#}")),
            Ok(Err(_)) => Err("the start of the sandbox panicked".to_owned()),
            Err(error) => Err(format!("failed to start a thread for the sandbox: {error}")),
        }
    });
    sandbox.as_ref().map_err(|error| anyhow!("{error}"))
}
