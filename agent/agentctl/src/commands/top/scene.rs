//! What a live view shows. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tributary::admin::{ClusterRow, ClusterStatus, FederationStatus, PeerRow};
use tributary::contract::Traffic;

/// Which list fills the lower half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
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
    pub(crate) const ALL: [Self; 3] = [Self::Bursts, Self::MiniClusters, Self::Hosted];

    /// The next one, round and round.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Bursts => Self::MiniClusters,
            Self::MiniClusters => Self::Hosted,
            Self::Hosted => Self::Bursts,
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Bursts => "1 bursts",
            Self::MiniClusters => "2 miniclusters",
            Self::Hosted => "3 hosted",
        }
    }
}

/// Everything that is on the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scene {
    /// Only what is in this namespace.
    namespace: Option<String>,
    /// The last reading.
    pub status: Option<FederationStatus>,
    /// What the links to each peer carry, as the readings show it.
    pub rates: BTreeMap<String, Rates>,
    /// When it was taken.
    pub read: Timestamp,
    /// Why there is no newer one.
    pub trouble: Option<String>,
    /// What fills the lower half.
    pub tab: Tab,
    /// The first row that is shown of it.
    pub offset: usize,
}

/// Bytes a second to and from a peer; `None`: no such connection, or it is not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Of the control connection.
    pub control: Option<Traffic>,
    /// Of the connection for broker traffic.
    pub tunnel: Option<Traffic>,
}

/// What each link carried between two readings.
fn rates(old: Option<&FederationStatus>, new: &FederationStatus, between: SignedDuration) -> BTreeMap<String, Rates> {
    let before: BTreeMap<&str, &PeerRow> =
        old.into_iter().flat_map(|status| &status.clusters).filter_map(peer_of).collect();
    let rate = |old: Option<Traffic>, new: Option<Traffic>| {
        let seconds = Some(between.as_secs_f64()).filter(|seconds| *seconds > 0.0)?;
        let (old, new) = (old?, new?);
        // A connection that was made in between begins at nothing.
        let of = |old: u64, new: u64| (new.saturating_sub(old) as f64 / seconds) as u64;
        Some(Traffic { sent: of(old.sent, new.sent), received: of(old.received, new.received) })
    };
    let found = new.clusters.iter().filter_map(peer_of).filter_map(|(name, row)| {
        let old = before.get(name)?;
        Some((name.to_owned(), Rates { control: rate(old.control, row.control), tunnel: rate(old.tunnel, row.tunnel) }))
    });
    found.collect()
}

fn peer_of(row: &ClusterRow) -> Option<(&str, &PeerRow)> {
    Some((row.name.as_str(), row.peer.as_ref()?))
}

impl Scene {
    /// Nothing is known yet.
    pub(crate) fn new(namespace: Option<String>) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// Takes in a reading.
    pub(crate) fn read(&mut self, mut status: FederationStatus, now: Timestamp) {
        if let Some(namespace) = &self.namespace {
            let answered = status.clusters.iter_mut().filter_map(|row| row.status.as_mut());
            answered.for_each(|cluster| cluster.retain_namespace(namespace));
        }
        self.rates = rates(self.status.as_ref(), &status, now.duration_since(self.read));
        (self.status, self.read, self.trouble) = (Some(status), now, None);
        self.offset = self.offset.min(self.last_row());
    }

    /// Shows another list.
    pub(crate) fn turn_to(&mut self, tab: Tab) {
        self.tab = tab;
        self.offset = self.offset.min(self.last_row());
    }

    pub(crate) fn answered(&self) -> impl Iterator<Item = &ClusterStatus> {
        self.status.iter().flat_map(|status| &status.clusters).filter_map(|row| row.status.as_ref())
    }

    /// How far the list can be moved.
    pub(crate) fn last_row(&self) -> usize {
        let rows = |cluster: &ClusterStatus| match self.tab {
            Tab::Bursts => cluster.bursts.len(),
            Tab::MiniClusters => cluster.mini_clusters.len(),
            Tab::Hosted => cluster.hosted.len(),
        };
        self.answered().map(rows).sum::<usize>().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_was_carried_between_two_readings() {
        let status = |control: u64, tunnel: Option<u64>| {
            let traffic = |bytes| Traffic { sent: bytes, received: 2 * bytes };
            let peer = PeerRow {
                name: "west".into(),
                control: Some(traffic(control)),
                tunnel: tunnel.map(traffic),
                ..PeerRow::default()
            };
            let row = ClusterRow { name: "west".into(), peer: Some(peer), status: None, error: None };
            FederationStatus { api_version: String::new(), cluster: "east".into(), clusters: vec![row] }
        };
        let mut scene = Scene::new(None);
        scene.read(status(1_000, None), Timestamp::from_second(10).unwrap());
        assert_eq!(scene.rates, BTreeMap::new());
        scene.read(status(3_000, Some(7)), Timestamp::from_second(12).unwrap());
        let of = |sent| Some(Traffic { sent, received: 2 * sent });
        assert_eq!(scene.rates["west"], Rates { control: of(1_000), tunnel: None });
        // Another connection: it has carried less than the one before.
        scene.read(status(50, Some(2_007)), Timestamp::from_second(14).unwrap());
        assert_eq!(scene.rates["west"], Rates { control: of(0), tunnel: of(1_000) });
    }
}
