//! `agentctl peers`: the peers of one cluster.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tributary::admin::{self, PeerRow};
use tributary::contract::{Capacity, NamespaceRoom, PeerState};

use crate::cli::{List, Target};
use crate::document::Document;
use crate::error::Result;
use crate::output::{self, age, or_dash};

/// The peers of a cluster.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PeerList {
    /// By name.
    items: Vec<PeerRow>,
}

impl Document for PeerList {
    const KIND: &'static str = "PeerList";

    fn nothing(&self) -> Option<&'static str> {
        self.items.is_empty().then_some("no peers; to add one: `agentctl peer add --help`")
    }
}

/// Runs `agentctl peers`.
pub(crate) async fn run(target: &Target, list: &List) -> Result<()> {
    let all = |items: Vec<PeerRow>| PeerList { items };
    super::watch::show(target, list, admin::PEERS, all, |peers, wide, now| table(&peers.items, wide, now)).await
}

/// The table of `agentctl peers`.
pub(crate) fn table(rows: &[PeerRow], wide: bool, now: Timestamp) -> String {
    let mut header =
        vec!["PEER", "STATE", "ENDPOINT", "VERSION", "RTT", "LAST SEEN", "IMPORTS", "FREE CORES", "AGE", "NOTE"];
    if wide {
        header.insert(8, "ROOM");
    }
    let row = |row: &PeerRow| {
        let mut cells = vec![
            row.name.clone(),
            state_of(row),
            or_dash(row.endpoint.clone()),
            or_dash(row.version.clone()),
            or_dash(row.rtt_micros.map(|micros| format!("{:.1}ms", micros as f64 / 1000.0))),
            age(row.last_seen, now),
            if row.imports { "yes" } else { "no" }.to_owned(),
            or_dash(row.capacity.as_ref().map(|capacity| capacity.free_cores)),
            age(row.created, now),
            row.message.clone().unwrap_or_default(),
        ];
        if wide {
            cells.insert(8, or_dash(row.capacity.as_ref().map(rooms).filter(|text| !text.is_empty())));
        }
        cells
    };
    output::table(header, rows.iter().map(row))
}

/// What FluxSetups of a peer leave for our bursts, namespace by namespace.
fn rooms(capacity: &Capacity) -> String {
    let rooms = capacity.rooms.iter().map(|room| {
        let NamespaceRoom { namespace, mini_clusters, brokers, milli_cores, memory_mib, gpus } = room;
        let amounts = [
            mini_clusters.map(|count| format!("{count} bursts")),
            brokers.map(|count| format!("{count} brokers")),
            milli_cores.map(|milli| format!("{} cores", milli / 1000)),
            memory_mib.map(|mib| format!("{mib} MiB")),
            gpus.map(|count| format!("{count} GPUs")),
        ];
        let limits: Vec<String> = amounts.into_iter().flatten().collect();
        format!("{namespace}: {}", if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") })
    });
    rooms.collect::<Vec<_>>().join("; ")
}

/// The word for a peer's state, and what keeps it from being used.
pub(super) fn state_of(row: &PeerRow) -> String {
    let held = [(row.drained, "DRAINED"), (row.flapping, "flapping")];
    let words = held.into_iter().filter(|(is, _)| *is).map(|(_, word)| word);
    std::iter::once(state(row.state)).chain(words).collect::<Vec<_>>().join(", ")
}

/// The word for a state.
pub(super) fn state(state: PeerState) -> &'static str {
    match state {
        PeerState::Disconnected => "disconnected",
        PeerState::Connected => "connected",
        PeerState::Suspect => "suspect",
        PeerState::Refused => "refused",
        PeerState::Suspended => "SUSPENDED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_a_row() {
        let now = Timestamp::from_second(1_000).unwrap();
        let row = |name: &str, state| PeerRow { name: name.into(), state, ..PeerRow::default() };
        let rows = [
            PeerRow {
                endpoint: Some("203.0.113.7:30946".into()),
                version: Some("0.1.0".into()),
                rtt_micros: Some(50_340),
                last_seen: Some(Timestamp::from_second(999).unwrap()),
                capacity: Some(Capacity {
                    free_cores: 128,
                    rooms: vec![
                        NamespaceRoom {
                            namespace: "hpc".into(),
                            brokers: Some(4),
                            gpus: Some(0),
                            ..NamespaceRoom::default()
                        },
                        NamespaceRoom { namespace: "ml".into(), ..NamespaceRoom::default() },
                    ],
                    ..Capacity::default()
                }),
                imports: true,
                created: Some(Timestamp::UNIX_EPOCH),
                ..row("west", PeerState::Connected)
            },
            PeerRow {
                message: Some("WrongIdentity: the certificate names spiffe://river/cluster/south, not north".into()),
                ..row("north", PeerState::Refused)
            },
            row("south", PeerState::Disconnected),
            row("far", PeerState::Suspect),
            row("old", PeerState::Suspended),
            PeerRow { flapping: true, ..row("shaky", PeerState::Connected) },
            PeerRow { drained: true, ..row("empty", PeerState::Connected) },
        ];
        insta::assert_snapshot!(table(&rows, false, now));
        let wide = table(&rows[..1], true, now);
        assert!(wide.contains("ROOM") && wide.contains("hpc: 4 brokers, 0 GPUs; ml: no limit"), "{wide}");
    }
}
