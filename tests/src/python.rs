//! Packages of PyPI that users run beside a cluster.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The newest release of the Flux Operator's Python SDK, with the Kubernetes client of its time: later ones (32 and on) send
/// the fields of its models under their Python names, which no definition knows.
pub const SDK: [&str; 2] = ["fluxoperator==0.2.0", "kubernetes==31.0.0"];

/// Where these packages are installed (`NAME==VERSION` each), outside of the sources, once for this machine. `None`, with
/// a word on standard error, where there is no Python, or nothing to install from.
#[allow(clippy::print_stderr, reason = "whoever runs the tests must see what was not tested")]
pub fn packages(names: &[&str]) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let directory = cache.join("tributary").join(names.join("-").replace("==", "-"));
    if directory.is_dir() {
        return Some(directory);
    }
    std::fs::create_dir_all(directory.parent()?).ok()?;
    let fresh = tempfile::tempdir_in(directory.parent()?).ok()?;
    let installed = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target"])
        .arg(fresh.path())
        .args(names)
        .output();
    let why = match installed {
        Ok(Output { status, .. }) if status.success() => {
            // Another test process may have been faster: then its directory is as good.
            let _ = std::fs::rename(fresh.keep(), &directory);
            return Some(directory);
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("SKIPPED: {} cannot be installed with python3 -m pip: {why}", names.join(" "));
    None
}
