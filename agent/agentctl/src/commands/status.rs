//! `agentctl status`: all federated clusters with their MiniClusters and bursts.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tributary::admin::{self, BurstRow, ClusterRow, ClusterStatus, FederationStatus, MiniClusterRow};
use tributary::contract::PeerState;

use crate::cli::{List, Target};
use crate::document::Document;
use crate::error::Result;
use crate::output::{self, age, or_dash};

/// All federated clusters, as the agent of one sees them.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Status {
    /// Name of the cluster that was asked.
    cluster: String,
    /// That cluster first, then its peers by name.
    clusters: Vec<ClusterRow>,
}

impl Document for Status {
    const KIND: &'static str = "Status";
}

/// Runs `agentctl status`.
pub(crate) async fn run(target: &Target, list: &List) -> Result<()> {
    let asked = |FederationStatus { cluster, mut clusters, .. }| {
        for status in clusters.iter_mut().filter_map(|cluster| cluster.status.as_mut()) {
            // Time passes without anything having changed.
            status.now = None;
            target.namespace.iter().for_each(|namespace| status.retain_namespace(namespace));
        }
        Status { cluster, clusters }
    };
    super::watch::show(target, list, admin::STATUS, asked, |status, wide, now| table(&status.clusters, wide, now)).await
}

/// The tables of `agentctl status`.
pub(crate) fn table(rows: &[ClusterRow], wide: bool, now: Timestamp) -> String {
    let mut rows = rows.to_vec();
    for theirs in rows.iter_mut().filter(|row| row.peer.is_some()).filter_map(|row| row.status.as_mut()) {
        let mini_clusters = theirs.mini_clusters.iter_mut().filter_map(|row| row.message.as_mut());
        let bursts = theirs.bursts.iter_mut().filter_map(|row| row.message.as_mut());
        // Its commands are for its own cluster.
        mini_clusters.chain(bursts).for_each(|message| *message = output::foreign(message));
    }
    let mut text = clusters(&rows, wide);
    text.push('\n');
    text.push_str(&mini_clusters(&rows, now));
    let bursts: Vec<_> =
        rows.iter().filter_map(|row| row.status.as_ref()).flat_map(|status| status.bursts.clone()).collect();
    if !bursts.is_empty() {
        text.push('\n');
        text.push_str(&super::bursts::table(&bursts, now));
    }
    text
}

fn clusters(rows: &[ClusterRow], wide: bool) -> String {
    let here = rows.iter().find(|row| row.peer.is_none()).map(|row| row.name.as_str()).unwrap_or_default();
    let row = |row: &ClusterRow| {
        let own = row.status.as_ref();
        let capacity = row.peer.as_ref().and_then(|peer| peer.capacity.as_ref());
        [
            row.name.clone(),
            link(row, wide),
            or_dash(row.version()),
            or_dash(own.map(|own| own.mini_clusters.len())),
            or_dash(own.map(|own| own.bursts.len())),
            or_dash(own.map(|own| own.hosted.len())),
            or_dash(row.peer.as_ref().map(|peer| if peer.imports { "yes" } else { "no" })),
            or_dash(capacity.map(|capacity| capacity.free_cores)),
            note(row, here),
        ]
    };
    let heads = ["CLUSTER", "LINK", "VERSION", "MINICLUSTERS", "BURSTS", "HOSTED", "IMPORTS", "FREE CORES", "NOTE"];
    output::table(heads, rows.iter().map(row))
}

/// `-` for the asked cluster itself, else the state of the connection, with the round-trip time where it is known.
fn link(row: &ClusterRow, wide: bool) -> String {
    let Some(peer) = &row.peer else { return "(here)".to_owned() };
    let rtt = peer.rtt_micros.filter(|_| peer.state == PeerState::Connected);
    let mut text = super::peers::state_of(peer);
    if let Some(micros) = rtt {
        text = format!("{text} {:.1}ms", micros as f64 / 1000.0);
    }
    match (&peer.endpoint, wide) {
        (Some(endpoint), true) => format!("{text} {endpoint}"),
        _ => text,
    }
}

/// Why there is no connection or no answer; else how the other cluster holds the one that was asked off.
fn note(row: &ClusterRow, here: &str) -> String {
    let theirs = row.status.as_ref().filter(|_| row.peer.is_some());
    let of_us = theirs.and_then(|theirs| theirs.peers.iter().find(|peer| peer.name == here));
    let held = of_us.and_then(|peer| match peer {
        _ if peer.state == PeerState::Suspended => Some(format!("{} SUSPENDED {here}", row.name)),
        _ if peer.drained => Some(format!("{} DRAINED {here}", row.name)),
        _ if !peer.imports => Some(format!("{} imports nothing of {here}", row.name)),
        _ => None,
    });
    row.error.clone().or_else(|| row.peer.as_ref()?.message.clone()).or(held).unwrap_or_default()
}

fn mini_clusters(rows: &[ClusterRow], now: Timestamp) -> String {
    let answered = rows.iter().filter_map(|row| row.status.as_ref());
    let all: Vec<_> = answered.flat_map(|own| own.mini_clusters.iter().map(move |row| (own, row))).collect();
    if all.is_empty() {
        return "no MiniClusters\n".to_owned();
    }
    let row = |(own, row): (&ClusterStatus, &MiniClusterRow)| {
        [
            own.cluster.clone(),
            row.namespace.clone(),
            row.name.clone(),
            format!("{}/{}", row.ready, row.size),
            or_dash(bursts_of(row, &own.bursts)),
            row.phase.clone(),
            or_dash(row.hosted_for.clone()),
            age(row.created, now),
            row.message.clone().unwrap_or_default(),
        ]
    };
    let heads = ["CLUSTER", "NAMESPACE", "MINICLUSTER", "BROKERS", "BURSTS", "PHASE", "HOSTED FOR", "AGE", "NOTE"];
    output::table(heads, all.into_iter().map(row))
}

/// Bursts of a MiniCluster: those that are ready, of those that are not asleep; none, if it declares none.
pub(super) fn bursts_of(row: &MiniClusterRow, all: &[BurstRow]) -> Option<String> {
    let declares = row.bursts > 0 || all.iter().any(|one| (&one.namespace, &one.root) == (&row.namespace, &row.name));
    declares.then(|| format!("{}/{}", row.bursts_ready, row.bursts))
}

#[cfg(test)]
mod tests {
    use tributary::admin::{BurstRow, ClusterStatus, PeerRow};

    use super::*;

    #[test]
    fn its_picture_is_current() {
        let now = crate::pictures::now();
        let clusters = crate::pictures::federation(now).clusters;
        crate::pictures::current(
            "status",
            "agentctl status",
            &crate::output::fitted(&table(&clusters, false, now), 144),
        );
    }

    #[test]
    fn a_dead_peer_is_a_row() {
        let east = ClusterStatus {
            cluster: "east".into(),
            version: "0.1.0".into(),
            mini_clusters: vec![MiniClusterRow {
                namespace: "default".into(),
                name: "demo".into(),
                size: 4,
                ready: 4,
                phase: "Running".into(),
                bursts: 2,
                bursts_ready: 1,
                ..MiniClusterRow::default()
            }],
            bursts: vec![BurstRow { name: "demo-burst-0".into(), peer: Some("west".into()), ..BurstRow::default() }],
            ..ClusterStatus::default()
        };
        let rows = [
            ClusterRow { name: "east".into(), peer: None, status: Some(east), error: None },
            ClusterRow {
                name: "west".into(),
                peer: Some(PeerRow { name: "west".into(), ..PeerRow::default() }),
                status: None,
                error: Some("no answer within 2 s".into()),
            },
        ];
        insta::assert_snapshot!(table(&rows, false, Timestamp::UNIX_EPOCH));
    }

    /// The danger: `status` of a peer's burst says `agentctl resume …`, which is pasted and acts on this cluster.
    #[test]
    fn only_commands_for_the_cluster_that_was_asked_can_be_pasted() {
        let row = |name: &str, peer| {
            let message = Some(format!("said by {name}: `agentctl bursts`"));
            let mini_clusters = vec![MiniClusterRow { message: message.clone(), ..MiniClusterRow::default() }];
            let bursts = vec![BurstRow { message, ..BurstRow::default() }];
            let status = ClusterStatus { mini_clusters, bursts, ..ClusterStatus::default() };
            ClusterRow { name: name.into(), peer, status: Some(status), error: None }
        };
        let rows = [row("east", None), row("west", Some(PeerRow::default()))];
        let text = table(&rows, false, Timestamp::UNIX_EPOCH);
        assert_eq!(text.matches("said by east: `agentctl bursts`").count(), 2, "{text}");
        assert_eq!(text.matches("said by west: 'agentctl bursts'").count(), 2, "{text}");
    }

    /// The danger: a peer is drained, here or there, and `status` says `connected`.
    #[test]
    fn who_is_held_off_is_not_just_connected() {
        let peer = |name: &str, drained, imports| PeerRow {
            name: name.into(),
            state: PeerState::Connected,
            drained,
            imports,
            ..PeerRow::default()
        };
        let row = |ours: PeerRow, of_us: PeerRow| ClusterRow {
            name: ours.name.clone(),
            status: Some(ClusterStatus { peers: vec![of_us], ..ClusterStatus::default() }),
            peer: Some(ours),
            error: None,
        };
        let east = ClusterRow { name: "east".into(), peer: None, status: None, error: None };
        let rows = [
            east,
            row(peer("west", true, true), peer("east", false, true)),
            row(peer("north", false, false), peer("east", true, true)),
            row(peer("south", false, true), peer("east", false, false)),
        ];
        let text = clusters(&rows, false);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].contains("connected, DRAINED"), "{text}");
        assert!(lines[1].contains(" no ") && lines[1].ends_with("north DRAINED east"), "{text}");
        assert!(lines[2].ends_with("south imports nothing of east"), "{text}");
    }
}
