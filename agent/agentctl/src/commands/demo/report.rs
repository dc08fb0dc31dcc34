//! The demo's result: one document, or text for people.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::progress::seconds;
use crate::document::Document;

/// What `demo --exit -o json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Whether every check of every burst passed.
    pub(super) wired: bool,
    /// `simulated (kwok)` or `real`.
    pub(super) pods: String,
    /// The clusters; the first is the root's.
    pub(super) clusters: Vec<ClusterReport>,
    /// The bursts, in the order of their ranks.
    pub(super) bursts: Vec<BurstReport>,
    /// What is not wired, one sentence each.
    pub(super) problems: Vec<String>,
    /// Milliseconds of the demo's own steps; `wired`: from the root's creation until every check passed; `total`: from
    /// the command's start.
    pub(super) timings: BTreeMap<String, u64>,
}

impl Document for Report {
    const KIND: &'static str = "Demo";
}

/// A cluster of the demo.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterReport {
    /// Its name.
    pub(super) name: String,
    /// Its kubeconfig.
    pub(super) kubeconfig: String,
    /// Context in that kubeconfig.
    pub(super) context: String,
    /// Where its agent's admin API listens.
    pub(super) admin: String,
    /// The agent's log.
    pub(super) log: String,
}

/// A burst of the demo.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BurstReport {
    /// Name of the slot.
    pub(super) name: String,
    /// Brokers wanted.
    pub(super) size: u32,
    /// The peer it runs on.
    pub(super) peer: Option<String>,
    /// Where it stands.
    pub(super) phase: String,
    /// Brokers online.
    pub(super) ready_brokers: u32,
    /// The lead broker's address, as the provider's lead Service has it.
    pub(super) lead: Option<LeadReport>,
    /// Digest both sides computed.
    pub(super) rank_map_digest: String,
    /// Milliseconds from the root's creation until each phase was seen from here, and until the HostedBurst was.
    pub(super) timings: BTreeMap<String, u64>,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct LeadReport {
    /// IP address.
    pub(super) address: String,
    /// TCP port.
    pub(super) port: u16,
}

impl Report {
    /// The result for people.
    pub(super) fn text(&self) -> String {
        let verdict = if self.wired { "wired: yes" } else { "wired: NO" };
        let mut text = format!("{verdict}, pods: {}\n", self.pods);
        for burst in &self.bursts {
            let ready =
                burst.timings.get("ready").map(|at| format!(", ready after {}", seconds(*at))).unwrap_or_default();
            let lead = burst.lead.as_ref().map(|lead| format!(", lead {} port {}", lead.address, lead.port));
            text.push_str(&format!(
                "  {}: {} of {} brokers on {}{}{ready}\n",
                burst.name,
                burst.ready_brokers,
                burst.size,
                burst.peer.as_deref().unwrap_or("no peer"),
                lead.unwrap_or_default(),
            ));
        }
        for problem in &self.problems {
            text.push_str(&format!("  not wired: {problem}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            wired: true,
            pods: "simulated (kwok)".into(),
            clusters: vec![ClusterReport { name: "east".into(), context: "east".into(), ..ClusterReport::default() }],
            bursts: vec![BurstReport {
                name: "river-burst-0".into(),
                size: 3,
                peer: Some("west".into()),
                phase: "Ready".into(),
                ready_brokers: 3,
                lead: Some(LeadReport { address: "10.1.0.1".into(), port: 30_001 }),
                rank_map_digest: "sha256:1".into(),
                timings: BTreeMap::from([("offered".into(), 40), ("ready".into(), 1_834)]),
            }],
            timings: BTreeMap::from([("total".into(), 20_000)]),
            ..Report::default()
        }
    }

    #[test]
    fn the_front_page_shows_what_it_prints() {
        let burst = |name: &str, peer: &str, size, ready| BurstReport {
            name: name.into(),
            size,
            peer: Some(peer.into()),
            ready_brokers: size,
            lead: Some(LeadReport { address: "10.1.0.2".into(), port: 31_606 }),
            timings: BTreeMap::from([("ready".into(), ready)]),
            ..BurstReport::default()
        };
        let bursts = vec![burst("river-burst-0", "west", 3, 3_400), burst("river-burst-1", "north", 2, 3_700)];
        let report = Report { wired: true, pods: "simulated (kwok)".into(), bursts, ..Report::default() };
        let now = crate::pictures::now();
        let clusters = crate::pictures::federation(now).clusters;
        let text = format!(
            "{}\n{}",
            report.text(),
            crate::output::fitted(&crate::commands::status::table(&clusters, false, now), 144)
        );
        let readme = include_str!("../../../../../README.md");
        assert!(readme.contains(&format!("```text\n{text}```")), "README.md shows something else than:\n{text}");
    }

    #[test]
    fn the_document_has_the_promised_keys() {
        insta::assert_json_snapshot!(report());
    }

    #[test]
    fn people_read_what_is_not_wired() {
        let mut report = report();
        let wired = report.text();
        report.wired = false;
        report.problems = vec!["river-burst-0: the peer has no certificate".into()];
        report.bursts[0].timings.clear();
        insta::assert_snapshot!(format!("{wired}---\n{}", report.text()));
    }
}
