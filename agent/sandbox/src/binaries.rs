//! The programs of a control plane: those of `KUBEBUILDER_ASSETS`, else those in the cache, else built into the cache
//! from pinned Go modules.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};

mod build;
mod pins;
#[cfg(any(test, feature = "testing"))]
mod programs;
mod progress;

#[cfg(any(test, feature = "testing"))]
pub use self::programs::{Kueue, helm, kueue};
use crate::{component::Component, options::Report};

const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// A directory with the programs of a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Finds the programs, or builds them: about six minutes on two cores, once. Processes that want them at the same
    /// time wait for one of them to build.
    ///
    /// # Errors
    /// They are not there and cannot be built; the text says what to install or set.
    pub async fn ensure(report: &Report) -> anyhow::Result<Self> {
        let assets = env::var_os(ASSETS).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(assets) = assets {
            let missing = missing(&assets);
            if missing.is_empty() {
                return Ok(Self { directory: assets });
            }
            let missing = missing.join(", ");
            report.line(&format!("{ASSETS}={} is not used, it lacks {missing}", assets.display()));
        }
        let recipe = pins::control_plane();
        let directory = cache(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::home_dir())?.join(&recipe.name);
        if !missing(&directory).is_empty() {
            let complete = || missing(&directory).is_empty();
            let built = build::build(complete, &recipe, &directory, report).await;
            built.with_context(|| no_programs(&missing(&directory)))?;
        }
        Ok(Self { directory })
    }

    /// The path of one, such as `kube-apiserver`. `kubectl` is there if we built them, and may be missing in
    /// `KUBEBUILDER_ASSETS`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// What a directory lacks for a sandbox. A file that is empty was being written when the machine stopped.
fn missing(directory: &Path) -> Vec<&'static str> {
    let programs = Component::ALL.map(Component::program);
    programs.into_iter().filter(|program| !is_program(&directory.join(program))).collect()
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// Relative values of `XDG_CACHE_HOME` are to be ignored: <https://specifications.freedesktop.org/basedir-spec/>.
fn cache(xdg: Option<PathBuf>, home: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let base = xdg.filter(|path| path.is_absolute()).or_else(|| home.map(|home| home.join(".cache")));
    let base = base.ok_or_else(|| anyhow!("no home directory to cache control planes in: set XDG_CACHE_HOME"))?;
    Ok(base.join("tributary/controlplane"))
}

fn no_programs(missing: &[&str]) -> String {
    format!(
        "no programs for local control planes (missing: {}); {ASSETS} can name a directory that has them",
        missing.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_without_one_program_is_not_enough() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(missing(directory.path()).len(), Component::ALL.len());
        for component in Component::ALL {
            fs::write(directory.path().join(component.program()), "x").unwrap();
        }
        assert!(missing(directory.path()).is_empty());
        fs::remove_file(directory.path().join("kwok")).unwrap();
        assert_eq!(missing(directory.path()), ["kwok"]);
        fs::write(directory.path().join("kwok"), "").unwrap();
        assert_eq!(missing(directory.path()), ["kwok"]);
    }

    #[test]
    fn the_cache_is_where_the_base_directory_specification_says() {
        let cache = |xdg: Option<&str>, home: Option<&str>| cache(xdg.map(PathBuf::from), home.map(PathBuf::from));
        assert_eq!(cache(Some("/x"), Some("/h")).unwrap(), Path::new("/x/tributary/controlplane"));
        assert_eq!(cache(Some("x"), Some("/h")).unwrap(), Path::new("/h/.cache/tributary/controlplane"));
        assert_eq!(cache(None, Some("/h")).unwrap(), Path::new("/h/.cache/tributary/controlplane"));
        assert!(cache(None, None).is_err());
    }
}
