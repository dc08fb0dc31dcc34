//! `Burst`: one declared burst slot of a root MiniCluster (root side).

use data_encoding::HEXLOWER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::budget::{BurstBudget, Spent};
use super::duration::Lasting;
use super::hosted_burst::{BurstPhase, BurstRun, PhaseTimestamps, PreflightFinding};
use super::labels;
use super::minicluster::{BurstCluster, MiniCluster};
use super::schema::is_default;
use super::selector::{PeerPreference, PeerSelector};
use tributary_contract::word::Word;
use tributary_contract::{LeadAddress, Price};

/// One burst slot of a root MiniCluster, or a FluxJob that was sent to a peer as a whole, and the peer it is placed on. Made
/// and owned by the agent: change the MiniCluster, or delete the FluxJob, instead. Its `metadata.generation` orders everything
/// the peer is told.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tributary.dev",
    version = "v1alpha1",
    kind = "Burst",
    plural = "bursts",
    shortname = "bu",
    category = "tributary",
    namespaced,
    status = "BurstStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Root","type":"string","jsonPath":".spec.root"}"#,
    printcolumn = r#"{"name":"Peer","type":"string","jsonPath":".status.peer"}"#,
    printcolumn = r#"{"name":"Size","type":"integer","jsonPath":".spec.size"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyBrokers"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Whole","type":"boolean","priority":1,"jsonPath":".spec.whole"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstSpec {
    /// Name of the root MiniCluster, or of the FluxJob that was sent, in the same namespace.
    pub root: String,
    /// Name of the slot: the hosted MiniCluster and its Job bear it, and the brokers' hosts are `SLOT-0`, `SLOT-1` …
    pub slot: String,
    /// Position among the root's slots, from 0.
    pub index: u32,
    /// Brokers wanted now.
    pub size: u32,
    /// Brokers declared; `size` may grow up to it.
    pub max_size: u32,
    /// Cores per broker.
    pub cores: u32,
    /// GPUs per broker.
    pub gpus: u32,
    /// Peers the user named, in order of preference. Empty: `selector`, else any.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub peers: Vec<String>,
    /// Which peers come into question, when none is named.
    #[serde(skip_serializing_if = "is_default")]
    pub selector: PeerSelector,
    /// Which of them are better.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub prefer: Vec<PeerPreference>,
    /// UID of the root's Job: boot files are frozen for it.
    pub incarnation: String,
    /// Canonical text of the rank map (`rank-map/1`), frozen for the incarnation.
    pub rank_map: String,
    /// SHA-256 of it.
    pub rank_map_digest: String,
    /// SHA-256 of the curve certificate.
    pub credential_digest: String,
    /// Secret of this namespace that holds the certificate (key `curve.cert`). Its name only.
    pub credential_secret: String,
    /// The lead broker's address; unset until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<LeadAddress>,
    /// The lead broker is reached through the agents' own connection; `lead` is stale then.
    #[serde(skip_serializing_if = "is_default")]
    pub tunnel: bool,
    /// It is all of an instance, its lead broker included: a FluxJob that was sent to a peer, which owns it. There is no
    /// lead to connect to, and the certificate is made by the peer.
    #[serde(skip_serializing_if = "is_default")]
    pub whole: bool,
    /// Flux `major.minor`, when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flux_version: Option<String>,
    /// Architecture of the lead broker's node (`amd64`, `arm64`), once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// BurstTemplate: what the provider makes a MiniCluster of. Preserved as it is; the provider judges it.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true), with = "serde_json::Map<String, serde_json::Value>")]
    pub template: serde_json::Value,
    /// How long the provider keeps the burst after it lost us.
    #[serde(default = "default_lease")]
    pub lease: Lasting,
    /// How long leaving brokers may take to drain.
    #[serde(default = "default_drain")]
    pub drain: Lasting,
    /// How much it may be used.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: BurstBudget,
    /// When its brokers run; unset: all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<OnDemandSpec>,
    /// Let the peer pull the images as soon as it accepts the burst.
    #[serde(skip_serializing_if = "is_default")]
    pub warm: bool,
    /// Peers whose owners threw the same FluxJob out before, when it was another Burst. It is not offered to them until the
    /// FluxJob, their ClusterPeer or an explicit retry changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub evictions: Vec<BurstRefusal>,
    /// Who holds the slot since it was another Burst of the same instance, which was deleted. It is offered to nobody else
    /// before it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<CredentialRecipient>,
    /// Release the burst and place it nowhere: the root finished, failed, was suspended, or dropped the slot.
    pub release: bool,
}

/// What an object without `lease` means: the same as an agent without configuration.
pub(super) const fn default_lease() -> Lasting {
    Lasting::of_seconds(300)
}

/// What an object without `drain` means.
pub(super) const fn default_drain() -> Lasting {
    Lasting::of_seconds(60)
}

/// Where a burst stands, as far as this cluster knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstStatus {
    /// The incarnation this status speaks of: UID of the root's Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The part of `spec` that does not change while this incarnation runs, as the agent made it. This part is what counts:
    /// people who may retry a burst may patch its `spec` too, but only agents write its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true), with = "serde_json::Map<String, serde_json::Value>")]
    pub frozen: Option<Box<BurstSpec>>,
    /// The peer it is placed on. Sticky once that peer accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Where it stands.
    #[schemars(with = "String")]
    pub phase: BurstPhase,
    /// One sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Brokers online.
    pub ready_brokers: u32,
    /// UID of the HostedBurst on the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosted_uid: Option<String>,
    /// Generation the peer has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged_generation: Option<i64>,
    /// How it fares there, if it is a whole instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<BurstRun>,
    /// Digest of the rank map as the peer computed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_map_digest: Option<String>,
    /// Digest of the certificate the peer holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_digest: Option<String>,
    /// Endpoint of the peer's lead Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<LeadAddress>,
    /// Peers that were given the certificate. Recorded before it was sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub credential_recipients: Vec<CredentialRecipient>,
    /// Peers that refused it. Not offered to them again until the spec, their policy or an explicit retry changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub refusals: Vec<BurstRefusal>,
    /// Peers that let go of it of their own accord, lately. One that does so again and again is asked at growing intervals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub returns: Vec<BurstReturn>,
    /// Why it is placed nowhere for now, though its root wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub held: Option<BurstHold>,
    /// Who asks for it, if it runs on demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand: Option<BurstDemand>,
    /// What it costs there: the price of the peer when the burst was placed, or when it was found to bring nodes. Unset: the
    /// peer has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// How much it was used, in all instances of its root.
    #[serde(skip_serializing_if = "is_default")]
    pub spent: Spent,
    /// How much it was used where it is, or where it was last: since that peer accepted it.
    #[serde(skip_serializing_if = "is_default")]
    pub used: Spent,
    /// The same as that peer counted it, until the burst began to leave. Unset: it did not, or the peer does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_count: Option<Spent>,
    /// Until when, at the earliest, the ranks stay reserved for a peer that was lost. Absent where no time frees them: on a
    /// direct network, they are the peer's own until it confirms that nothing is left, the instance has a new certificate, or
    /// a person lets them go (`agentctl burst release`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_until: Option<Time>,
    /// Since when the peer counts as lost. A person's word that lets its slot go names this loss by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Time>,
    /// Slots that a person let go though their peer had not confirmed that nothing is left there: the last word for each peer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub releases: Vec<SlotRelease>,
    /// When each step was reached, on this cluster's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<PhaseTimestamps>,
    /// What the peer found out about the way to the lead broker, its certificate and the images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["check"]))]
    pub preflight: Vec<PreflightFinding>,
    /// Its pods are on simulated nodes (kwok): that they are ready says nothing of brokers.
    #[serde(skip_serializing_if = "is_default")]
    pub simulated: bool,
    /// `metadata.generation` this status answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Placed`, `Admitted`, `Ready`; `Preflight`: whether brokers will be able to join, as far as the peer found out;
    /// `BrokersOnline`: whether they did, `Unknown` with reason `NotCheckable` on simulated nodes, and with `Lost` while the peer is out of contact; `LeadAddress`, if it had to be waited for; `Delivered`, if what was to be told to
    /// the peer could not be sent; and `Budget`, if it has one: `Within`, `Ending` with the time of its end, `False` with
    /// reason `Spent`, or `Unknown` with reason `NoPrice`; `UsageAgrees`, once its use at a peer ended: whether that peer counted as much (`Agrees`), or not
    /// (`Differs`, with both figures), or could not say so (`NotTold`); `Demand`, if it runs on demand: `Asked`, `InUse`, `Idle`,
    /// `False` with reason `Asleep`, or `Unknown` while nothing is heard of the queue (`NotReached`, `Unreadable`,
    /// `NotCheckable`); and `TunnelEnds`, by a tunnel: `InPods`, or `False` with reason `InAgents` if connections of brokers break
    /// when another agent leads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Why a burst is placed nowhere for now. What is left of it on a peer is drained and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BurstHold {
    /// Its budget is spent, or its root's.
    BudgetSpent,
    /// It runs on demand, and nothing asks for it.
    NoDemand,
    /// It is wanted again, and its peer has yet to let go of it.
    Leaving,
    /// A word of a newer version.
    #[serde(untagged)]
    Unknown(Word),
}

/// When brokers on demand run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OnDemandSpec {
    /// How long nothing may use them before they are drained.
    pub max_idle: Lasting,
    /// Pending jobs that start them.
    pub min_pending: u32,
}

/// What the queue of the root asks of a burst, as of the last look that found something new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstDemand {
    /// Whether its brokers shall run.
    pub awake: bool,
    /// Pending jobs that ask for it.
    pub pending: u32,
    /// Whether jobs run on it.
    pub busy: bool,
    /// While it is asleep: since when enough jobs ask for it. While it is awake: since when nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Until when it was looked at often enough for that to count, roughly: after a longer time without a look, `since` begins
    /// anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked: Option<Time>,
    /// How often it was woken in this instance of its root.
    pub starts: u32,
}

/// Who was given the certificate of an incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialRecipient {
    /// Name of the peer.
    pub peer: String,
    /// Incarnation whose certificate it was.
    pub incarnation: String,
    /// SHA-256 of the certificate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub credential_digest: String,
    /// UID of its ClusterPeer at that time: another one of the same name is another decision to trust.
    #[serde(rename = "peerUID", default, skip_serializing_if = "Option::is_none")]
    pub peer_uid: Option<String>,
    /// UID of its cluster. Another cluster of the same name has nothing of the burst, so its words about it do not count.
    #[serde(rename = "clusterUID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// Its brokers were never told another way to the lead broker than the tunnel, whose end here refuses them once the slot
    /// is taken away. Else nothing of this cluster stands between them and the lead broker.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tunnel: bool,
    /// Since when the slot is not its own any more: it confirmed that nothing is left, the tunnel refuses it, or a person let
    /// the slot go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_since: Option<Time>,
}

/// A person's word that a slot is free though the peer that holds it has not confirmed that nothing is left there. What the
/// annotation `tributary.dev/release` of a Burst says, in JSON. It counts for the very loss that it names, and for no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotRelease {
    /// UID of the Burst.
    #[serde(rename = "burstUID")]
    pub burst_uid: String,
    /// Incarnation of its root: UID of the root's Job.
    pub incarnation: String,
    /// The peer that is let go.
    pub peer: String,
    /// `status.lostSince` of the Burst when that was said.
    pub lost_since: Time,
    /// Who said it, as far as the API server told; its audit log knows.
    pub by: String,
    /// When it was said, on that person's clock.
    pub at: Time,
}

/// A burst came back from a peer that had taken it: its lease ended there, or it was drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BurstReturn {
    /// Name of the peer.
    pub peer: String,
    /// How often in a row, each within a quarter of an hour of the one before.
    pub times: u32,
    /// When it last did.
    pub at: Time,
    /// What had been offered: after an edit or an explicit retry nobody waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub offer: String,
}

/// A peer's refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BurstRefusal {
    /// Name of the peer.
    pub peer: String,
    /// CamelCase reason.
    pub reason: String,
    /// Its sentence.
    pub message: String,
    /// Generation of the Burst that was refused.
    pub generation: i64,
    /// Digest of what was offered: the spec without the lead's address, and the annotation `tributary.dev/retry`.
    /// Anything else is offered again.
    #[serde(default)]
    pub offer: String,
    /// Generation of the ClusterPeer at that time; unset if it was unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_generation: Option<i64>,
    /// UID of the ClusterPeer at that time; unset if it was unknown. Generations of another one of the same name count anew.
    #[serde(rename = "peerUID", default, skip_serializing_if = "Option::is_none")]
    pub peer_uid: Option<String>,
}

impl BurstStatus {
    /// Who may run brokers of the slot: the peer that it is placed on, once that was given the certificate and until the slot
    /// is free again.
    pub fn holder(&self) -> Option<&CredentialRecipient> {
        let peer = self.peer.as_deref()?;
        self.credential_recipients.iter().find(|known| known.peer == peer && known.free_since.is_none())
    }

    /// Whether the holder of the slot is known to be another cluster than the one of this UID, which has its name now.
    pub fn is_of_another(&self, cluster_uid: Option<&str>) -> bool {
        let holder = self.holder().and_then(|holder| holder.cluster_uid.as_deref());
        holder.zip(cluster_uid).is_some_and(|(then, now)| then != now)
    }
}

impl Burst {
    /// Who may run brokers of the slot. One that is made anew says so itself only in its first status, and may be deleted
    /// before.
    pub fn holder(&self) -> Option<&CredentialRecipient> {
        self.status.as_ref().map_or(self.spec.holder.as_ref(), BurstStatus::holder)
    }

    /// Digest of what is on offer. Where the lead is, how it is reached, when and how long the burst may run, whether images
    /// are pulled ahead, and who threw it out before is no part of it: that a pod moved is no reason to ask again.
    pub fn offered(&self) -> String {
        let spec = BurstSpec {
            lead: None,
            tunnel: false,
            arch: None,
            budget: BurstBudget::default(),
            on_demand: None,
            warm: false,
            evictions: Vec::new(),
            holder: None,
            ..self.spec.clone()
        };
        let retry = self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(labels::RETRY));
        let text = serde_json::to_vec(&(&spec, retry)).expect("a spec is plain data with text keys");
        HEXLOWER.encode(&Sha256::digest(&text)[..8])
    }

    /// Brokers that `root` asks of its slot now, which may be more than the running instance has ranks for.
    pub fn wanted(&self, root: &MiniCluster) -> u32 {
        // What is not written stays as the instance was started.
        let written = self.declaration(root).and_then(|cluster| cluster.size);
        written.and_then(|size| u32::try_from(size).ok()).unwrap_or(self.spec.size)
    }

    /// What `root` asks of its slot and only a new instance can bring, as a sentence; `None` if nothing is missing.
    pub fn shortfall(&self, root: &MiniCluster) -> Option<String> {
        let cluster = self.declaration(root).filter(|_| !self.spec.release)?;
        let wanted = self.wanted(root);
        let mut missing = Vec::new();
        if wanted > self.spec.max_size {
            let ranks = self.spec.max_size;
            missing.push(format!(
                "{wanted} brokers are wanted, and the instance has ranks for {ranks}: a restart is needed"
            ));
        }
        let (peers, placed) = (cluster.peers(), self.status.as_ref().and_then(|status| status.peer.as_deref()));
        if let Some(placed) = placed.filter(|placed| !peers.is_empty() && !peers.contains(placed)) {
            // The ranks of a burst of one peer have a property that names it.
            let how = match cluster.peer {
                Some(_) => "a restart is needed".to_owned(),
                None => {
                    let name = self.metadata.name.as_deref().unwrap_or_default();
                    format!("`agentctl burst cancel {name}` and then `agentctl burst retry {name}` move it")
                }
            };
            missing.push(format!("it is wanted on {}, and it is on {placed}: {how}", peers.join(" or ")));
        }
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// What `root` declares of its slot now; nothing while its spec is refused.
    fn declaration<'a>(&self, root: &'a MiniCluster) -> Option<&'a BurstCluster> {
        let conditions = root.status.iter().flat_map(|status| &status.conditions);
        if conditions.into_iter().any(|one| one.type_ == labels::condition::VALID && one.status == "False") {
            return None;
        }
        let name = root.metadata.name.as_deref().unwrap_or_default();
        root.spec.bursts(name).find(|(slot, _)| *slot == self.spec.slot).map(|(_, cluster)| cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The danger: 3 brokers of 5 that are wanted are called ready.
    #[test]
    fn what_only_a_restart_brings_is_missing() {
        let root = |cluster: &str| -> MiniCluster {
            let yaml = format!(
                "metadata: {{name: lake}}\nspec: {{size: 2, containers: [], flux: {{bursting: {{clusters: [{cluster}]}}}}}}"
            );
            serde_saphyr::from_str(&yaml).unwrap()
        };
        let spec = BurstSpec { slot: "lake-burst-0".into(), size: 3, max_size: 3, ..BurstSpec::default() };
        let mut burst = Burst::new("lake-burst-0", spec);
        burst.status = Some(BurstStatus { peer: Some("west".into()), ..BurstStatus::default() });
        for (cluster, wanted, missing) in [
            ("{size: 3, peer: west}", 3, None),
            ("{size: 2}", 2, None),
            ("{}", 3, None),
            ("{maxSize: 5}", 3, None),
            ("{size: 5}", 5, Some("5 brokers are wanted, and the instance has ranks for 3: a restart is needed")),
            ("{size: 3, peers: [north, west]}", 3, None),
            ("{size: 3, peer: north}", 3, Some("it is wanted on north, and it is on west: a restart is needed")),
            (
                "{size: 4, peers: [north, south]}",
                4,
                Some(
                    "4 brokers are wanted, and the instance has ranks for 3: a restart is needed; it is wanted on north or \
                     south, and it is on west: `agentctl burst cancel lake-burst-0` and then `agentctl burst retry \
                     lake-burst-0` move it",
                ),
            ),
        ] {
            let root = root(cluster);
            assert_eq!((burst.wanted(&root), burst.shortfall(&root).as_deref()), (wanted, missing), "{cluster}");
        }
        let mut refused = root("{size: 5, peer: north}");
        let condition = serde_json::json!({"type": "Valid", "status": "False", "reason": "InvalidValue", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        refused.status.get_or_insert_default().conditions = vec![serde_json::from_value(condition).unwrap()];
        assert_eq!((burst.wanted(&refused), burst.shortfall(&refused)), (3, None), "no restart brings it");
        burst.spec.release = true;
        assert_eq!(burst.shortfall(&root("{size: 5}")), None, "it leaves");
    }
}
