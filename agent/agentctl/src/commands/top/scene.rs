//! What a live view shows. Pure.

use jiff::Timestamp;
use tributary::admin::{ClusterStatus, FederationStatus};

/// Which list fills the lower half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    /// Bursts, root side.
    #[default]
    Bursts,
    /// MiniClusters.
    MiniClusters,
    /// Bursts that clusters host for others.
    Hosted,
}

impl Tab {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 3] = [Self::Bursts, Self::MiniClusters, Self::Hosted];

    /// The next one, round and round.
    pub fn next(self) -> Self {
        match self {
            Self::Bursts => Self::MiniClusters,
            Self::MiniClusters => Self::Hosted,
            Self::Hosted => Self::Bursts,
        }
    }

    /// Its title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Bursts => "1 bursts",
            Self::MiniClusters => "2 miniclusters",
            Self::Hosted => "3 hosted",
        }
    }
}

/// Everything that is on the screen.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// Only what is in this namespace.
    namespace: Option<String>,
    /// The last reading.
    pub status: Option<FederationStatus>,
    /// When it was taken.
    pub read: Timestamp,
    /// Why there is no newer one.
    pub trouble: Option<String>,
    /// What fills the lower half.
    pub tab: Tab,
    /// The first row that is shown of it.
    pub offset: usize,
}

impl Scene {
    /// Nothing is known yet.
    pub fn new(namespace: Option<String>) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// Takes in a reading.
    pub fn read(&mut self, mut status: FederationStatus, now: Timestamp) {
        if let Some(namespace) = &self.namespace {
            let answered = status.clusters.iter_mut().filter_map(|row| row.status.as_mut());
            answered.for_each(|cluster| cluster.retain_namespace(namespace));
        }
        (self.status, self.read, self.trouble) = (Some(status), now, None);
        self.offset = self.offset.min(self.last_row());
    }

    /// The clusters that answered.
    pub fn answered(&self) -> impl Iterator<Item = &ClusterStatus> {
        self.status.iter().flat_map(|status| &status.clusters).filter_map(|row| row.status.as_ref())
    }

    /// How far the list can be moved.
    pub fn last_row(&self) -> usize {
        let rows = |cluster: &ClusterStatus| match self.tab {
            Tab::Bursts => cluster.bursts.len(),
            Tab::MiniClusters => cluster.mini_clusters.len(),
            Tab::Hosted => cluster.hosted.len(),
        };
        self.answered().map(rows).sum::<usize>().saturating_sub(1)
    }
}
