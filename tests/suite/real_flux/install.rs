//! Where flux-core is installed: found through `FLUXROOT` and nothing else.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context as _, Result};

/// The folder that flux-core was staged under (`make install DESTDIR=…`), whatever its prefix is.
const VARIABLE: &str = "FLUXROOT";

/// How deep under `FLUXROOT` `bin/flux` may lie.
const MAX_DEPTH: usize = 8;

/// An install of flux-core.
#[derive(Clone, Debug)]
pub(super) struct Install {
    /// `FLUXROOT`.
    pub(super) root: PathBuf,
    /// The prefix it was configured with, such as `/opt/flux`: where a pod sees it.
    pub(super) prefix: PathBuf,
}

impl Install {
    /// The install, or `None` after one line on standard error that says what is not proven without it.
    ///
    /// # Errors
    /// `FLUXROOT` is set and holds no `bin/flux`: a lane that was asked for must not be skipped.
    pub(super) fn find() -> Result<Option<Self>> {
        let Some(root) = std::env::var_os(VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from) else {
            static SAY: Once = Once::new();
            // Not eprintln!, which the test harness hides when a test passes.
            SAY.call_once(|| {
                let _ = writeln!(
                    std::io::stderr(),
                    "SKIPPED: real_flux: {VARIABLE} is not set, so no real Flux has judged the wiring \
                     (set it to the DESTDIR of a flux-core install)"
                );
            });
            return Ok(None);
        };
        let bin = bin_of(&root, MAX_DEPTH).with_context(|| {
            format!("{VARIABLE}={}: no bin/flux in it: stage an install with make install DESTDIR=…", root.display())
        })?;
        let prefix = bin.strip_prefix(&root).expect("it was found inside of the root");
        Ok(Some(Self { prefix: Path::new("/").join(prefix), root }))
    }

    /// `PATH` inside of a pod.
    pub(super) fn path(&self) -> String {
        format!("{}/bin:{SYSTEM_PATH}", self.prefix.display())
    }
}

/// Where the programs of the machine lie.
pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder whose `bin` holds `flux`.
fn bin_of(folder: &Path, depth: usize) -> Option<PathBuf> {
    if folder.join("bin/flux").is_file() {
        return Some(folder.to_owned());
    }
    let mut inside: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    inside.sort();
    inside.iter().filter(|_| depth > 0).find_map(|folder| bin_of(folder, depth - 1))
}
