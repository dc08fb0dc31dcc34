//! Settings of Flux itself, shared by all brokers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bursting::{Bursting, LeadBroker};
use super::certificate::CertificateText;
use super::container::pull_policy;
use super::quantity::ResourceRequirements;
use super::security::ContainerSecurity;
use crate::schema::{absent_if_zero, is_default};

/// Image with a Flux to copy into the application container.
pub const DEFAULT_VIEW_IMAGE: &str = "ghcr.io/converged-computing/flux-view-ubuntu:tag-noble";
/// Name of the container, and of the volume, that brings Flux.
pub(crate) const DEFAULT_VIEW_NAME: &str = "flux-view";
/// Where that volume is mounted.
pub(crate) const DEFAULT_MOUNT_PATH: &str = "/mnt/flux";
/// How long a broker waits for one connection attempt to its parent.
pub const DEFAULT_CONNECT_TIMEOUT: &str = "5s";
/// Level of messages on the broker's standard error (syslog(3): 6 is informational).
pub const DEFAULT_LOG_LEVEL: i32 = 6;
/// How long a broker that leaves may take to finish its jobs, in seconds.
pub(crate) const DEFAULT_DRAIN_SECONDS: i32 = 60;
/// Order in which the scheduler looks at jobs.
pub(crate) const DEFAULT_QUEUE_POLICY: &str = "fcfs";

/// The queue policy that is none of Fluxion's, but another scheduler.
const SIMPLE: &str = "simple";

/// Options of the Flux brokers and of the container that brings Flux along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxSpec {
    /// The container that brings Flux to the application container.
    #[serde(skip_serializing_if = "is_default")]
    pub container: FluxContainer,

    /// Architecture of the helper programs, for example `arm`. Unneeded: scripts and probes use what the image has.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub arch: Option<String>,

    /// Flux `major.minor` in the images, for example `0.68`: brokers of another one cannot join, so a provider refuses a
    /// burst whose images say otherwise. Read from the tag of the image that brings Flux, if not written and the tag says it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub version: Option<String>,

    /// Command used in place of `flux submit`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub submit_command: Option<String>,

    /// Comma-separated words for `flux start --wrap`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub wrap: Option<String>,

    /// How long a broker waits for one attempt to connect to its parent (`tbon.connect_timeout`), as a Flux duration.
    /// 5s if not written; an empty text leaves the choice to Flux.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = DEFAULT_CONNECT_TIMEOUT))]
    pub connect_timeout: Option<String>,

    /// The same as `connectTimeout`, as upstream's documentation spells it where it switches the option off; wins over it.
    #[serde(skip_serializing_if = "is_default")]
    pub connext_timeout: Option<String>,

    /// Options of the submission of the command, for example `-ompi=openmpi@5`. An interactive instance submits nothing.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub option_flags: Option<String>,

    /// Make a Service for the lead broker only, instead of a headless one for all pods.
    #[serde(skip_serializing_if = "is_default")]
    pub minimal_service: bool,

    /// Do not tell the brokers where to put their local socket.
    #[serde(skip_serializing_if = "is_default")]
    pub disable_socket: bool,

    /// Topology of the brokers, for example `kary:2` (`tbon.topo`).
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub topology: Option<String>,

    /// Containers beside Flux start without waiting for the broker's local socket. Otherwise those wait for it whose
    /// command or script names Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub no_wait_socket: bool,

    /// A follower whose broker ends is done, and is not started again.
    #[serde(skip_serializing_if = "is_default")]
    pub complete_workers: bool,

    /// How many seconds a broker that leaves has for the jobs that run on it: when the MiniCluster is scaled down, or one
    /// of its pods is deleted, no more jobs start there (`flux resource drain`), and the pod ends once none is left. 60 if
    /// not written; with 0 it ends at once. When the whole instance ends, nothing is waited for. Brokers of bursts have as
    /// long, but at most an hour; with 60, as long as the agent of their root says (`bursting.drainSeconds`).
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0), extend("default" = DEFAULT_DRAIN_SECONDS))]
    pub drain_seconds: Option<i32>,

    /// Level of the broker's log messages, 0 to 7.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_LOG_LEVEL))]
    pub log_level: Option<i32>,

    /// A curve certificate as text. Prefer `curveCertSecret`: whoever may read the MiniCluster can read this.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub curve_cert: Option<CertificateText>,

    /// Name of a Secret in the namespace whose key `curve.cert` holds the certificate that all brokers share.
    /// One is made if neither this nor `curveCert` is written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub curve_cert_secret: Option<String>,

    /// Options of the scheduler.
    #[serde(skip_serializing_if = "is_default")]
    pub scheduler: FluxScheduler,

    /// Name of a Secret in the namespace with a munge key (`munge.key`), mounted under /etc/munge.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub munge_secret: Option<String>,

    /// Room for brokers in other clusters.
    #[serde(skip_serializing_if = "is_default")]
    pub bursting: Bursting,

    /// The same as `bursting.leadBroker`, in the place where upstream's documentation shows it.
    #[serde(skip_serializing_if = "is_default")]
    pub lead_broker: LeadBroker,

    /// A whole broker.toml in place of the generated one.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub broker_config: Option<String>,

    /// Environment set by the script that connects a shell to Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub environment: BTreeMap<String, String>,
}

impl FluxSpec {
    /// `tbon.connect_timeout`; `None` if the user asked for Flux's own choice. The default holds also where nobody
    /// wrote a `flux` section.
    pub fn connect_timeout(&self) -> Option<&str> {
        let written = self.connext_timeout.as_deref().or(self.connect_timeout.as_deref());
        Some(written.unwrap_or(DEFAULT_CONNECT_TIMEOUT)).filter(|timeout| !timeout.is_empty())
    }

    /// Where the user's own certificate is; `None`: each instance gets a new one.
    pub fn own_certificate(&self) -> Option<String> {
        match &self.curve_cert_secret {
            Some(name) => Some(format!("Secret {name}")),
            None => self.curve_cert.as_ref().map(|_| "flux.curveCert".to_owned()),
        }
    }

    /// Seconds for the jobs on a broker that leaves; 0 for none.
    pub fn drain_seconds(&self) -> i32 {
        self.drain_seconds.unwrap_or(DEFAULT_DRAIN_SECONDS).max(0)
    }

    /// The same for brokers of bursts, if it is not the default: API servers write that out, so nobody may have asked for it.
    pub fn drain_seconds_of_bursts(&self) -> Option<i32> {
        self.drain_seconds.filter(|seconds| *seconds != DEFAULT_DRAIN_SECONDS)
    }

    /// Log level of the brokers.
    pub fn log_level(&self) -> i32 {
        self.log_level.unwrap_or(DEFAULT_LOG_LEVEL)
    }

    /// Name of the container and the volume that bring Flux.
    pub fn view_name(&self) -> &str {
        self.container.name.as_deref().unwrap_or(DEFAULT_VIEW_NAME)
    }

    /// Image of the container that brings Flux.
    pub fn view_image(&self) -> &str {
        self.container.image.as_deref().unwrap_or(DEFAULT_VIEW_IMAGE)
    }

    /// Where Flux is mounted in all containers.
    pub fn mount_path(&self) -> &str {
        self.container.mount_path.as_deref().unwrap_or(DEFAULT_MOUNT_PATH)
    }

    /// The lead broker of another cluster that this MiniCluster joins, under `flux.bursting` or under `flux`
    /// (the former wins); `None` for a root. An address is what makes it one.
    pub fn lead_broker(&self) -> Option<&LeadBroker> {
        [&self.bursting.lead_broker, &self.lead_broker].into_iter().find(|lead| lead.address.is_some())
    }

    /// The user's own host list, under `bursting` or, as upstream's documentation shows it, under the lead broker.
    pub fn hostlist(&self) -> Option<&str> {
        [&self.bursting.hostlist, &self.bursting.lead_broker.hostlist, &self.lead_broker.hostlist]
            .into_iter()
            .find_map(Option::as_deref)
    }
}

/// Options of Flux's scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxScheduler {
    /// Use Flux's simple scheduler, which knows no GPUs, instead of Fluxion.
    #[serde(skip_serializing_if = "is_default")]
    pub simple: bool,

    /// Fluxion's queue policy: `fcfs`, `easy`, `hybrid` or `conservative`. `simple` is the same as `simple: true`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub queue_policy: Option<String>,
}

impl FluxScheduler {
    /// Whether Flux's simple scheduler is asked for, in either place.
    pub fn is_simple(&self) -> bool {
        self.simple || self.queue_policy.as_deref() == Some(SIMPLE)
    }

    /// Fluxion's queue policy; first come, first served if none is written.
    pub fn queue_policy(&self) -> &str {
        self.queue_policy.as_deref().filter(|policy| *policy != SIMPLE).unwrap_or(DEFAULT_QUEUE_POLICY)
    }
}

/// The container that brings Flux: it copies its installation to a volume that the application mounts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxContainer {
    /// The application's image has Flux itself; only configuration is brought.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub disable: bool,

    /// Name of the container and of its volume.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_VIEW_NAME))]
    pub name: Option<String>,

    /// Directory the container starts in.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub working_dir: Option<String>,

    /// Python path for Flux's own Python modules, if it cannot be found in the view.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub python_path: Option<String>,

    /// Requests and limits of the container. A pod of the Guaranteed class needs them here too.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: ResourceRequirements,

    /// Name of an existing Secret with the credentials to pull the image.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub image_pull_secret: Option<String>,

    /// Image that holds a Flux view. The C library of the container that runs Flux must be at least as new as that of the
    /// view: the default view is of Ubuntu 24.04 (glibc 2.39).
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_VIEW_IMAGE))]
    pub image: Option<String>,

    /// Pull the image at every start, even if the node has it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub pull_always: bool,

    /// Security context of the container.
    #[serde(skip_serializing_if = "is_default")]
    pub security_context: ContainerSecurity,

    /// Where Flux appears in all containers; it is added to PATH there.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_MOUNT_PATH))]
    pub mount_path: Option<String>,
}

impl FluxContainer {
    /// `imagePullPolicy` of the rendered container.
    pub fn pull_policy(&self) -> &str {
        pull_policy(self.pull_always, None)
    }
}
