//! What is counted of nodes: the amounts that pods take, and the brokers that take them. Pure.

use std::fmt;
use std::ops::AddAssign;

/// Cores, memory and GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amounts {
    /// Thousandths of a core.
    pub milli_cores: i64,
    /// Bytes.
    pub memory: i64,
    /// Whole GPUs.
    pub gpus: i64,
}

impl Amounts {
    /// What one broker takes.
    pub fn broker(cores: u32, gpus: u32) -> Self {
        Self::part(cores.saturating_mul(1000), gpus)
    }

    /// What one broker takes, in thousandths of a core.
    pub fn part(milli_cores: u32, gpus: u32) -> Self {
        Self { milli_cores: milli_cores.into(), memory: 0, gpus: gpus.into() }
    }

    /// Each amount as `of` makes it of both.
    pub fn zip(self, other: Self, of: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            milli_cores: of(self.milli_cores, other.milli_cores),
            memory: of(self.memory, other.memory),
            gpus: of(self.gpus, other.gpus),
        }
    }

    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        self.zip(other, i64::max)
    }

    /// What is left of it without the other.
    pub fn minus(self, other: Self) -> Self {
        self.zip(other, |all, part| all - part)
    }

    /// How often `part` fits.
    pub fn holds(self, part: Self) -> u32 {
        let times = |whole: i64, part: i64| if part <= 0 { i64::MAX } else { whole.max(0) / part };
        let by_cores = times(self.milli_cores, part.milli_cores);
        let by_memory = times(self.memory, part.memory);
        u32::try_from(by_cores.min(by_memory).min(times(self.gpus, part.gpus))).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores", self.milli_cores as f64 / 1000.0)?;
        if self.memory > 0 {
            write!(f, ", {:.1} GiB of memory", self.memory as f64 / (1_i64 << 30) as f64)?;
        }
        if self.gpus > 0 {
            write!(f, ", {} GPUs", self.gpus)?;
        }
        Ok(())
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, |sum, more| sum + more);
    }
}

/// Brokers that run or are about to: the nodes keep room for those whose pods are not bound yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Gang {
    /// Namespace of their MiniCluster.
    pub namespace: String,
    /// Its name, and its Job's.
    pub name: String,
    /// How many.
    pub brokers: u32,
    /// What each takes.
    pub each: Amounts,
    /// What the pod of their services takes, if there is one.
    pub services: Option<Amounts>,
}
