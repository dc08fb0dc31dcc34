//! Which container runs Flux.

use super::MiniClusterSpec;
use super::container::Container;

/// The container that runs Flux, and its place in `spec.containers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Runner<'a> {
    /// Position in `spec.containers`; script names carry it (`wait-<index>.sh`).
    pub index: usize,
    /// The container.
    pub container: &'a Container,
}

/// Not exactly one container runs Flux.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunnerError {
    /// `spec.containers` is empty.
    #[error("spec.containers is empty: at least one container must run flux")]
    NoContainers,
    /// Several containers, none with `runFlux`.
    #[error("none of the {containers} containers has runFlux: set it on the one that runs flux")]
    NoRunner {
        /// Number of containers.
        containers: usize,
    },
    /// Several containers with `runFlux`.
    #[error("containers {indices:?} all have runFlux: exactly one container runs flux")]
    SeveralRunners {
        /// Their positions in `spec.containers`.
        indices: Vec<usize>,
    },
}

impl MiniClusterSpec {
    /// The container that runs Flux: a sole container whatever it says, else the one with `runFlux`.
    ///
    /// # Errors
    /// There is no container, or not exactly one of several has `runFlux`.
    pub fn runner(&self) -> Result<Runner<'_>, RunnerError> {
        if let [container] = self.containers.as_slice() {
            return Ok(Runner { index: 0, container });
        }
        let mut runners = self.containers.iter().enumerate().filter(|(_, container)| container.run_flux);
        match (runners.next(), runners.next()) {
            (Some((index, container)), None) => Ok(Runner { index, container }),
            (Some((first, _)), Some((second, _))) => Err(RunnerError::SeveralRunners {
                indices: [first, second].into_iter().chain(runners.map(|(index, _)| index)).collect(),
            }),
            (None, _) if self.containers.is_empty() => Err(RunnerError::NoContainers),
            (None, _) => Err(RunnerError::NoRunner { containers: self.containers.len() }),
        }
    }
}
