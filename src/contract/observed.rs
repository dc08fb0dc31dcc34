//! What a provider says of a burst it was offered.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::word::{Word, shown_by_its_words};
use super::{BurstUid, Finding, Rejection};

/// Where a burst stands, in the order a good one passes through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum BurstPhase {
    /// No peer chosen yet, or the peer has not answered.
    #[default]
    Pending,
    /// Sent to a peer, no answer yet (root side only).
    Offered,
    /// Admitted: room is reserved, the certificate is asked for.
    Accepted,
    /// MiniCluster, Secret and lead Service are being made; pods start.
    Provisioning,
    /// Its Job waits in a queue of the provider's owner (Kueue): there are no pods.
    Queued,
    /// Its pods wait for nodes that an autoscaler adds; the others start.
    ScalingUp,
    /// All pods run; brokers join the instance.
    Joining,
    /// Every wanted broker is online.
    Ready,
    /// Leaving: brokers drain, then everything is deleted.
    Draining,
    /// Nothing is left on the provider.
    Released,
    /// The provider said no; the rejection says why.
    Rejected,
    /// The provider's owner deleted the HostedBurst.
    Evicted,
    /// The peer is gone and its lease may still run (root side only).
    Lost,
    /// Its budget is spent (root side only).
    Spent,
    /// It runs on demand, and nothing asks for it (root side only).
    Asleep,
    /// A whole instance has ended; what is left of it are its result and its pods' logs.
    Finished,
    /// A word of a newer version.
    #[serde(untagged)]
    Unknown(Word),
}

impl BurstPhase {
    /// The provider holds, or may hold, something for this burst: its ranks must not be placed elsewhere.
    pub const fn occupies(self) -> bool {
        !matches!(self, Self::Pending | Self::Released | Self::Rejected | Self::Evicted | Self::Spent | Self::Asleep)
    }
}

shown_by_its_words!(BurstPhase);

/// When each step was reached. A provider says when its own were, on its clock; a root keeps all of them on one clock, its
/// own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseTimes {
    /// Since when it is wanted: it was made, woken, resumed or given a budget, or was complete until then (root).
    pub planned: Option<Timestamp>,
    /// A peer was chosen, and is told (root).
    pub offered: Option<Timestamp>,
    /// Admitted.
    pub accepted: Option<Timestamp>,
    /// MiniCluster, Secret and Service exist.
    pub provisioned: Option<Timestamp>,
    /// The images were pulled ahead, beside the other steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmed: Option<Timestamp>,
    /// Every wanted pod is on a node for the first time, of a burst that brings nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Timestamp>,
    /// Every wanted pod runs for the first time.
    pub started: Option<Timestamp>,
    /// Every wanted broker online for the first time, as its readiness probe says. Never on simulated nodes.
    pub ready: Option<Timestamp>,
    /// Nothing left.
    pub released: Option<Timestamp>,
}

/// One step of a burst.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// `planned`, `offered`, `admitted`, `created`, `scheduled`, `started` or `online`, and between these `warmed`.
    pub name: &'static str,
    /// When it was reached.
    pub at: Timestamp,
    /// How long it took since the step before.
    pub took: Duration,
}

impl PhaseTimes {
    /// The steps that were reached, in their order.
    pub fn steps(&self) -> Vec<Step> {
        let Self { planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released: _ } = self;
        let mut all = vec![
            ("planned", planned),
            ("offered", offered),
            ("admitted", accepted),
            ("created", provisioned),
            ("scheduled", scheduled),
            ("started", started),
            ("online", ready),
        ];
        all.retain(|(_, at)| at.is_some());
        if warmed.is_some() {
            let later = all.iter().position(|(_, at)| *at > warmed);
            all.insert(later.unwrap_or(all.len()), ("warmed", warmed));
        }
        let mut steps: Vec<Step> = Vec::new();
        for (name, at) in all.into_iter().filter_map(|(name, at)| Some((name, (*at)?))) {
            // A clock may have been set back in between.
            let since = |before: &Step| Duration::try_from(at.duration_since(before.at)).unwrap_or_default();
            let took = steps.last().map(since).unwrap_or_default();
            steps.push(Step { name, at, took });
        }
        steps
    }
}

/// A phase of a newer version leaves the slot with its peer: it is there, for all that is known.
fn known_or_provisioning<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BurstPhase, D::Error> {
    Ok(match BurstPhase::deserialize(deserializer)? {
        BurstPhase::Unknown(_) => BurstPhase::Provisioning,
        known => known,
    })
}

/// The provider's answer to one [`super::DesiredBurst`]. Replaced as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedBurst {
    /// UID of the Burst object this is about.
    pub uid: BurstUid,
    /// Generation of the Burst this answers.
    pub observed_generation: u64,
    /// Incarnation this answers (UID of the root's Job).
    pub incarnation: String,
    /// Where it stands.
    #[serde(deserialize_with = "known_or_provisioning")]
    pub phase: BurstPhase,
    /// Why not, when `phase` is `Rejected` or `Evicted`.
    pub rejection: Option<Rejection>,
    /// UID of the HostedBurst, once made.
    pub hosted_uid: Option<String>,
    /// Brokers online (ready pods).
    pub ready_brokers: u32,
    /// Its pods are on simulated nodes (kwok): that they are ready says nothing of brokers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// What was found out before its pods were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preflight: Vec<Finding>,
    /// Digest the provider computed from the rank map.
    pub rank_map_digest: Option<String>,
    /// Digest of the certificate the provider holds; `None` until it has it.
    pub credential_digest: Option<String>,
    /// Endpoint its lead Service has now.
    pub lead: Option<super::LeadAddress>,
    /// One sentence for people.
    pub message: String,
    /// When each step was reached.
    pub times: PhaseTimes,
    /// How a whole instance fares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunReport>,
    /// How much it was used, once it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<UseReport>,
}

/// How much a burst was used, from its admission until it began to leave: what the provider counted, on its clock. Lengths of
/// time need no common clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UseReport {
    /// Seconds in which there were brokers.
    pub seconds: u32,
    /// Brokers times seconds.
    pub broker_seconds: u64,
    /// Thousandths of their cores times seconds.
    pub milli_core_seconds: u64,
    /// Their GPUs times seconds.
    pub gpu_seconds: u64,
}

/// How a whole instance fares on a provider.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunReport {
    /// Namespace of its MiniCluster there.
    pub namespace: String,
    /// Name of its MiniCluster, of the Job, and of the container with the logs.
    pub mini_cluster: String,
    /// Whether it was up once.
    pub started: bool,
    /// Whether it ended well; `None`: it has not ended.
    pub succeeded: Option<bool>,
    /// Exit code of its command.
    pub exit_code: Option<i32>,
    /// How it ended, in a word; empty from an older agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How it ended, in a sentence.
    pub message: String,
    /// It has ended, and its pods are gone, and with them its logs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logs_gone: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_takes_the_time_since_the_one_before_it() {
        let at = |millis| Timestamp::from_millisecond(millis).ok();
        let times = PhaseTimes {
            planned: at(1_000),
            offered: at(1_100),
            accepted: at(1_400),
            provisioned: at(1_300),
            ready: at(5_300),
            ..PhaseTimes::default()
        };
        let steps: Vec<_> = times.steps().into_iter().map(|step| (step.name, step.took.as_millis())).collect();
        let expected = [("planned", 0), ("offered", 100), ("admitted", 300), ("created", 0), ("online", 4_000)];
        assert_eq!(steps, expected, "a step that was not seen is left out; a clock that went back gives no time");
        let warm = |millis| {
            let times = PhaseTimes { warmed: at(millis), started: at(3_000), ..times.clone() };
            let names = times.steps().into_iter().map(|step| (step.name, step.took.as_millis()));
            names.skip(3).collect::<Vec<_>>()
        };
        assert_eq!(warm(2_000), [("created", 0), ("warmed", 700), ("started", 1_000), ("online", 2_300)]);
        assert_eq!(warm(4_000), [("created", 0), ("started", 1_700), ("warmed", 1_000), ("online", 1_300)]);
    }

    #[test]
    fn an_answer_of_an_older_version_is_read() {
        let old = r#"{"uid":"u","observedGeneration":1,"incarnation":"i","phase":"Ready","rejection":null,
            "hostedUid":null,"readyBrokers":3,"rankMapDigest":null,"credentialDigest":null,"lead":null,"message":"",
            "times":{"accepted":"2026-01-01T00:00:00Z"}}"#;
        let read: ObservedBurst = serde_json::from_str(old).unwrap();
        assert_eq!(
            (read.phase, read.ready_brokers, read.simulated, read.preflight.len()),
            (BurstPhase::Ready, 3, false, 0)
        );
        let newer: ObservedBurst = serde_json::from_str(&old.replace("Ready", "Hibernating")).unwrap();
        assert_eq!(
            (newer.phase, newer.uid),
            (BurstPhase::Provisioning, read.uid),
            "a newer version's phase frees no slot"
        );
    }
}
