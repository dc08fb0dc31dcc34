//! `agentctl bursts`: the bursts of one cluster's MiniClusters.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tributary::admin::{self, BurstRow};

use crate::cli::{List, Target};
use crate::document::Document;
use crate::error::Result;
use crate::output::{self, age, or_dash};

/// The bursts of a cluster's MiniClusters.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BurstList {
    /// By namespace and name.
    items: Vec<BurstRow>,
}

impl Document for BurstList {
    const KIND: &'static str = "BurstList";

    fn nothing(&self) -> Option<&'static str> {
        self.items.is_empty().then_some("no bursts")
    }
}

/// Runs `agentctl bursts`.
pub(crate) async fn run(target: &Target, list: &List) -> Result<()> {
    let asked = |mut items: Vec<BurstRow>| {
        items.retain(|row| target.namespace.as_ref().is_none_or(|namespace| row.namespace == *namespace));
        BurstList { items }
    };
    super::watch::show(target, list, admin::BURSTS, asked, |bursts, _, now| table(&bursts.items, now)).await
}

/// The table of `agentctl bursts`.
pub(crate) fn table(rows: &[BurstRow], now: Timestamp) -> String {
    let row = |row: &BurstRow| {
        let lead = row.lead.as_ref().map(|lead| match lead.address.contains(':') {
            true => format!("[{}]:{}", lead.address, lead.port),
            false => format!("{}:{}", lead.address, lead.port),
        });
        [
            row.namespace.clone(),
            row.name.clone(),
            row.root.clone(),
            or_dash(row.peer.clone()),
            row.phase.clone(),
            format!("{}/{}", row.ready_brokers, row.size),
            if row.whole { "with it".to_owned() } else { or_dash(lead) },
            age(row.created, now),
            row.message.clone().unwrap_or_default(),
        ]
    };
    let heads = ["NAMESPACE", "BURST", "ROOT", "PEER", "PHASE", "BROKERS", "LEAD", "AGE", "NOTE"];
    output::table(heads, rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use tributary::contract::LeadAddress;

    use super::*;

    #[test]
    fn a_burst_without_a_peer_says_why() {
        let row = BurstRow { namespace: "default".into(), root: "river".into(), size: 3, ..BurstRow::default() };
        let rows = [
            BurstRow {
                name: "river-burst-0".into(),
                peer: Some("west".into()),
                phase: "Ready".into(),
                ready_brokers: 3,
                lead: Some(LeadAddress { address: "2001:db8::1".into(), port: 30_001 }),
                created: Some(Timestamp::UNIX_EPOCH),
                ..row.clone()
            },
            BurstRow {
                name: "river-burst-1".into(),
                phase: "Pending".into(),
                message: Some(
                    "no connected peer has the labels region=mars; west has region=us, north has region=eu".into(),
                ),
                ..row
            },
        ];
        let now = Timestamp::from_second(300).unwrap();
        insta::assert_snapshot!(table(&rows, now));
    }
}
