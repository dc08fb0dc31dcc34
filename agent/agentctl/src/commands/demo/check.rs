//! Judges every burst by both sides' objects.

use std::time::Duration;

use tributary::api::burst::Burst;
use tributary::api::hosted_burst::BurstPhase;

use super::KEEP_HINT;
use super::clusters::{Clusters, DemoCluster};
use super::report::{BurstReport, LeadReport};
use super::root::{BURSTS, NAME, NAMESPACE, SIZE};
use super::verify;
use crate::error::{Failure, Result};

const POLL: Duration = Duration::from_millis(250);

/// What both sides' objects say.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    /// In the order of their ranks.
    pub(super) bursts: Vec<BurstReport>,
    /// What is not wired, one sentence each.
    pub(super) problems: Vec<String>,
}

/// Waits until nothing is wrong any more. It has no time limit of its own.
pub(super) async fn until_wired(clusters: &Clusters, root_uid: &str) -> Result<()> {
    while !wiring(clusters, root_uid).await.map_err(failed)?.problems.is_empty() {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Reads both sides of every burst of the root with this UID.
pub(super) async fn wiring(clusters: &Clusters, root_uid: &str) -> kube::Result<Wiring> {
    let root = clusters.root();
    let mut wiring = Wiring::default();
    let pods = verify::ready_pods(&root.client, NAMESPACE, NAME).await?;
    expect(&mut wiring.problems, i64::from(pods) == i64::from(SIZE), || {
        format!("{NAME}: {pods} of {SIZE} pods are ready in {}", root.name)
    });
    let bursts = verify::bursts(&root.client, NAMESPACE, root_uid).await?;
    expect(&mut wiring.problems, bursts.len() == BURSTS.len(), || {
        format!("{NAME}: {} of {} bursts exist", bursts.len(), BURSTS.len())
    });
    for burst in &bursts {
        let report = judge(clusters, root, burst, &mut wiring.problems).await?;
        wiring.bursts.push(report);
    }
    Ok(wiring)
}

/// A wiring that cannot be read.
pub(super) fn failed(error: kube::Error) -> Failure {
    Failure::new("failed to read the objects of the bursts").because(error).hint(KEEP_HINT)
}

async fn judge(
    clusters: &Clusters,
    root: &DemoCluster,
    burst: &Burst,
    problems: &mut Vec<String>,
) -> kube::Result<BurstReport> {
    let (slot, status) = (&burst.spec.slot, burst.status.clone().unwrap_or_default());
    let mut report = BurstReport {
        name: slot.clone(),
        size: burst.spec.size,
        peer: status.peer.clone(),
        phase: status.phase.to_string(),
        ready_brokers: status.ready_brokers,
        rank_map_digest: burst.spec.rank_map_digest.clone(),
        ..BurstReport::default()
    };
    expect(problems, status.phase == BurstPhase::Ready, || {
        format!("{slot}: it is {}. {}", status.phase, status.message).trim_end().to_owned()
    });
    let Some(peer) = status.peer.as_deref().and_then(|peer| clusters.named(peer)) else {
        problems.push(format!("{slot}: it is on no peer of the demo"));
        return Ok(report);
    };
    let hosted = verify::hosted(&peer.client, NAMESPACE, burst).await?;
    expect(problems, hosted.is_some(), || format!("{slot}: {} has no HostedBurst for it", peer.name));

    let here = verify::side(&root.client, NAMESPACE, NAME).await?;
    let there = verify::side(&peer.client, NAMESPACE, slot).await?;
    problems.extend(verify::differences(slot, &here, &there));

    let (wanted, found) = (
        verify::lead_of_root(&root.client, NAMESPACE, NAME).await?,
        verify::lead_of_burst(&peer.client, NAMESPACE, slot).await?,
    );
    expect(problems, wanted.is_some() && wanted == found, || {
        let text = |lead: &Option<LeadReport>| match lead {
            Some(lead) => format!("{} port {}", lead.address, lead.port),
            None => "nothing".to_owned(),
        };
        format!("{slot}: its lead Service points to {}, the lead broker is at {}", text(&found), text(&wanted))
    });
    report.lead = found;

    let pods = verify::ready_pods(&peer.client, NAMESPACE, slot).await?;
    expect(problems, pods == burst.spec.size, || {
        format!("{slot}: {pods} of {} pods are ready in {}", burst.spec.size, peer.name)
    });
    Ok(report)
}

fn expect(problems: &mut Vec<String>, holds: bool, problem: impl FnOnce() -> String) {
    if !holds {
        problems.push(problem());
    }
}
