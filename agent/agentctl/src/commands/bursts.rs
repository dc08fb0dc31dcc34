//! `agentctl bursts`: the bursts of one cluster's MiniClusters.

use jiff::Timestamp;
use tributary::admin::{self, BurstRow};

use crate::cli::{List, Target};
use crate::error::Result;
use crate::output::{Table, age, or_dash};

/// Runs `agentctl bursts`.
pub async fn run(target: &Target, list: &List) -> Result<()> {
    let select = |rows: &mut Vec<BurstRow>| {
        if let Some(namespace) = &target.namespace {
            rows.retain(|row| row.namespace == *namespace);
        }
    };
    super::watch::show(target, list, admin::BURSTS, select, |rows, wide, now| {
        if rows.is_empty() { "no bursts\n".to_owned() } else { table(rows, wide, now) }
    })
    .await
}

/// The table of `agentctl bursts`.
pub fn table(rows: &[BurstRow], wide: bool, now: Timestamp) -> String {
    let mut table = Table::new(["NAMESPACE", "BURST", "ROOT", "PEER", "PHASE", "BROKERS", "LEAD", "AGE", "NOTE"]);
    for row in rows {
        let lead = row.lead.as_ref().map(|lead| match lead.address.contains(':') {
            true => format!("[{}]:{}", lead.address, lead.port),
            false => format!("{}:{}", lead.address, lead.port),
        });
        table.row(vec![
            row.namespace.clone(),
            row.name.clone(),
            row.root.clone(),
            or_dash(row.peer.clone()),
            row.phase.clone(),
            format!("{}/{}", row.ready_brokers, row.size),
            or_dash(lead),
            age(row.created, now),
            row.message.clone().map(|message| super::status::shorten(&message, wide)).unwrap_or_default(),
        ]);
    }
    table.text()
}
