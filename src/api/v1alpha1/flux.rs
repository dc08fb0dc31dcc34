//! Options of Flux in v1alpha1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::minicluster::{CertificateText, DEFAULT_BROKER_PORT, DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOG_LEVEL};
use crate::schema::is_default;

/// Options of the brokers, for all pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxSpec {
    /// Where Flux is installed in the image. Not needed: the command `flux` of the image is used.
    #[serde(skip_serializing_if = "is_default")]
    pub install_root: Option<String>,

    /// Command used in place of `flux submit`.
    #[serde(skip_serializing_if = "is_default")]
    pub submit_command: Option<String>,

    /// Comma-separated words for `flux start --wrap`.
    #[serde(skip_serializing_if = "is_default")]
    pub wrap: Option<String>,

    /// How long a broker waits for one attempt to connect to its parent.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = DEFAULT_CONNECT_TIMEOUT))]
    pub connect_timeout: Option<String>,

    /// Options added to the submission of the command.
    #[serde(skip_serializing_if = "is_default")]
    pub option_flags: Option<String>,

    /// Make a Service for the lead broker only.
    #[serde(skip_serializing_if = "is_default")]
    pub minimal_service: bool,

    /// Level of the broker's log messages, 0 to 7.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = DEFAULT_LOG_LEVEL))]
    pub log_level: Option<i32>,

    /// A curve certificate as text.
    #[serde(skip_serializing_if = "is_default")]
    pub curve_cert: Option<CertificateText>,

    /// Name of a Secret with the certificate.
    #[serde(skip_serializing_if = "is_default")]
    pub curve_cert_secret: Option<String>,

    /// Options of the scheduler.
    #[serde(skip_serializing_if = "is_default")]
    pub scheduler: FluxScheduler,

    /// Name of a Secret with a munge key.
    #[serde(skip_serializing_if = "is_default")]
    pub munge_secret: Option<String>,

    /// Brokers in other clusters.
    #[serde(skip_serializing_if = "is_default")]
    pub bursting: Bursting,

    /// A whole broker.toml in place of the generated one.
    #[serde(skip_serializing_if = "is_default")]
    pub broker_config: Option<String>,
}

/// Options of Flux's scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxScheduler {
    /// Fluxion's queue policy.
    #[serde(skip_serializing_if = "is_default")]
    pub queue_policy: Option<String>,
}

/// Brokers in other clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Bursting {
    /// The lead broker to join, on a burst.
    #[serde(skip_serializing_if = "is_default")]
    pub lead_broker: FluxBroker,

    /// A host list of your own.
    #[serde(skip_serializing_if = "is_default")]
    pub hostlist: Option<String>,

    /// The bursts, in the order of their ranks.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub clusters: Vec<BurstedCluster>,
}

/// One burst.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BurstedCluster {
    /// Name of the burst.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,

    /// Its number of brokers.
    #[serde(skip_serializing_if = "is_default")]
    pub size: Option<i32>,
}

/// The lead broker of another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxBroker {
    /// Its address or host name.
    #[serde(skip_serializing_if = "is_default")]
    pub address: Option<String>,

    /// Name of its MiniCluster.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,

    /// Number of brokers there.
    #[serde(skip_serializing_if = "is_default")]
    pub size: Option<i32>,

    /// Its port.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = DEFAULT_BROKER_PORT))]
    pub port: Option<i32>,
}
