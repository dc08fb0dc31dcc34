//! A MiniCluster that can be carried out: the spec, and what was found out while it was checked.

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_api::minicluster::{BurstNetworkType, Container, FluxRestful, MiniClusterSpec, Runner};
use tributary_flux::{Hostlist, RankMap, Topology};

use super::context::Context;
use super::scripts::Program;
use super::volumes::UserVolumes;

/// After a cut, TCP tries a connection again within the time that the cut lasted, and within this: its intervals double.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(120);

/// What every step of rendering reads. Only [`super::validate`] makes one.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) uid: &'a str,
    /// It was made for a HostedBurst: its name is a word of a peer.
    pub(super) is_hosted: bool,
    /// The MiniCluster's own labels.
    pub(super) labels: &'a BTreeMap<String, String>,
    /// And annotations.
    pub(super) annotations: &'a BTreeMap<String, String>,
    pub(super) spec: &'a MiniClusterSpec,
    pub(super) context: &'a Context,
    /// The container that runs Flux.
    pub(super) runner: Runner<'a>,
    pub(super) role: Role,
    pub(super) rank_map: RankMap,
    pub(super) topology: Topology,
    /// The user's own host list, which takes the place of the rank map's.
    pub(super) hostlist: Option<Hostlist>,
    pub(super) program: Program,
    /// Volumes of `containers`.
    pub(super) volumes: UserVolumes,
    pub(super) service_volumes: UserVolumes,
    /// What the command waits for, on a root with bursts.
    pub(super) wait: Option<Wait>,
}

/// Which part of an instance this MiniCluster is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It has rank 0.
    Root,
    /// Its brokers join an instance whose rank 0 they reach at this host and port.
    Burst { host: String, port: u16 },
}

/// How long the command waits for brokers of bursts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    pub(super) brokers: u32,
    /// Those are all that the bursts have.
    pub(super) all: bool,
    /// `None`: as long as it takes.
    pub(super) timeout: Option<Duration>,
}

impl<'a> Model<'a> {
    /// Directory of what is generated for Flux, in every container.
    pub(super) fn config_root(&self) -> String {
        format!("{}/config", self.spec.flux.mount_path())
    }

    /// Whether the shape of the tree is left to `tbon.topo`: no bursts, whose hosts name their parents.
    pub(super) fn tree_is_free(&self) -> bool {
        self.role == Role::Root && self.rank_map.bursts().is_empty()
    }

    /// Whether the lead counts the cores of its pod before Flux starts, as upstream does: `cores` does not say how many there
    /// are, and no other cluster has to know. What a container requests is not what it can use.
    pub(super) fn counts_cores(&self) -> bool {
        self.tree_is_free() && self.runner.container.cores.is_none()
    }

    /// Whether there are brokers besides a lead.
    pub(super) fn has_followers(&self) -> bool {
        self.spec.max_size() > 1 || matches!(self.role, Role::Burst { .. })
    }

    /// Whether there are brokers that can leave while the instance goes on: they finish their jobs before.
    pub(super) fn drains(&self) -> bool {
        self.has_followers() && self.spec.flux.drain_seconds() > 0
    }

    /// How many CPUs R says that a node has which another cluster's instance got of this one. A node with fewer takes no jobs.
    /// Elsewhere people may say what they like of their own nodes.
    pub(super) fn promised_cores(&self) -> Option<u32> {
        let hosted = self.context.hosted.as_ref().filter(|_| self.drains())?;
        self.rank_map.slot(&hosted.slot).map(|slot| slot.cores)
    }

    /// Whether bursts reach this MiniCluster's lead.
    pub(super) fn has_bursts(&self) -> bool {
        self.role == Role::Root && !self.rank_map.bursts().is_empty()
    }

    /// Whether the instance has brokers in other clusters.
    pub(super) fn spans_clusters(&self) -> bool {
        self.has_bursts() || matches!(self.role, Role::Burst { .. })
    }

    /// Whether the ends of the tunnel live in pods of this MiniCluster. A broker.toml of the user's own is not changed, and on
    /// the node's network pods would take each other's port.
    pub(super) fn has_ends(&self) -> bool {
        let by_tunnel = match self.role {
            Role::Root => self.has_bursts() && self.spec.flux.bursting.network.kind == BurstNetworkType::Tunnel,
            Role::Burst { .. } => self.context.hosted.is_some(),
        };
        by_tunnel
            && self.context.ends.is_some()
            && self.spec.flux.broker_config.is_none()
            && !self.spec.pod.host_network
    }

    /// How long brokers hear nothing from another cluster while the way there is cut for less than the lease: TCP may try again
    /// as late as [`RETRY_WITHIN`] after the cut.
    pub(super) fn longest_silence(&self) -> Duration {
        self.context.lease + RETRY_WITHIN
    }

    /// Containers beside the one that runs Flux, with their positions.
    pub(super) fn sidecars(&self) -> impl Iterator<Item = (usize, &'a Container)> + use<'a> {
        let runner = self.runner.index;
        self.spec.containers.iter().enumerate().filter(move |(index, _)| *index != runner)
    }

    /// The RESTful server that the lead runs, if there is nothing else to run.
    pub(super) fn restful(&self) -> Option<&'a FluxRestful> {
        self.spec.flux_restful.as_ref().filter(|_| self.role == Role::Root && self.program.serves())
    }

    /// Name of the Secret with the certificate.
    pub(super) fn certificate_secret(&self) -> String {
        super::secret::secret_name(self.name, self.spec)
    }
}
