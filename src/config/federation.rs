//! `[federation]`: how to peer with other clusters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected, text};

/// `[federation]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FederationConfig {
    /// UDP address the agent listens on for peers. `[::]`, the default, is IPv4 and IPv6, or IPv4 alone on a machine
    /// without IPv6.
    pub listen: SocketAddr,
    /// Addresses peers reach it at, `host:port`: what joining clusters and `agentctl` write into the ClusterPeers of
    /// others. Default: what `federation.service` and the nodes show.
    #[serde(deserialize_with = "text::list")]
    pub advertise: Vec<String>,
    /// Name of the Service in the agent's namespace that leads peers to the agent that leads: it has no selector, and its
    /// ports are called `federation` and `join`. The leading agent writes its EndpointSlice, and advertises its load
    /// balancer or its node ports. Default: none.
    #[serde(deserialize_with = "text::text", skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Addresses of this agent's pod, at most one of each family; in a pod `status.podIPs` of the downward API.
    #[serde(deserialize_with = "text::addresses", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<IpAddr>,
    /// The node of this agent's pod: `externalTrafficPolicy: Local` needs it.
    #[serde(deserialize_with = "text::text", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Where `tls.crt`, `tls.key` and `ca.crt` come from. Default: the Secret `tributary-identity`, which the agent
    /// makes if it is not there.
    pub identity: IdentityConfig,
    /// Name of the federation: the trust domain of an identity that the agent makes itself. A cluster that names another
    /// one cannot join. Default: the cluster's own name, and clusters of any federation may join.
    #[serde(deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub trust_domain: Option<String>,
    /// How long a certificate that the agent makes itself is valid, e.g. `24h` or `30d`; it is renewed at two thirds of that.
    #[serde(with = "text::duration")]
    pub validity: Duration,
    /// How clusters join with a token of `agentctl token create`.
    pub join: JoinConfig,
    /// Broker traffic of bursts that runs through the agents.
    pub tunnel: TunnelConfig,
}

/// `identity = { secret = "…" }`, `{ dir = "…" }` or `"off"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum IdentityConfig {
    /// A Secret of the shape of type `kubernetes.io/tls` with `ca.crt` besides, in the agent's namespace. If it is not
    /// there, the agent makes it, with an authority of its own in the Secret of that name and `-ca`. One that somebody
    /// else made, such as cert-manager, is only read.
    Secret(#[serde(deserialize_with = "text::text")] String),
    /// A directory. It is only read.
    Dir(PathBuf),
    /// No federation: the agent reconciles MiniClusters and peers with nobody.
    Off,
}

/// `[federation.join]`: the listener that is open only while there are join tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JoinConfig {
    /// UDP address of the listener. `[::]`, the default, is as with `federation.listen`.
    pub listen: SocketAddr,
    /// Addresses it is reached at, `host:port`: what tokens hold. Default: the hosts of `federation.advertise` with the
    /// port of `federation.join.listen`.
    #[serde(deserialize_with = "text::list")]
    pub advertise: Vec<String>,
}

/// `[federation.tunnel]`: where this agent takes the connections of brokers that it hosts for peers, if their roots ask for
/// a tunnel (`flux.bursting.network.type: Tunnel`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelConfig {
    /// Address the agent listens on, at a TCP port per burst. Default: every address of the family at which pods reach the
    /// agent, `::` (both families) where that is IPv6, and else `0.0.0.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<IpAddr>,
    /// Address at which pods reach this agent: the lead Services of bursts point to it. Default: the first of
    /// `federation.pod_ips`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Ports it may take, as `first-last`, for a NetworkPolicy: one per burst. Default: any free port.
    #[serde(deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub ports: Option<String>,
    /// MiB of memory that all tunnels of the agent may take together, whatever peers and brokers do: at least 32. Default, and
    /// most: half of the container's memory limit; without a limit, the default is an eighth of the machine's memory, at most
    /// 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// File with the program that holds the connections of brokers in their own pods (`tributary-ends`). Where it cannot be
    /// read, they end in the agents.
    pub ends: PathBuf,
}

/// Where the image has it.
const ENDS: &str = "/tributary-ends";

impl Default for TunnelConfig {
    fn default() -> Self {
        Self { listen: None, address: None, ports: None, memory_mib: None, ends: PathBuf::from(ENDS) }
    }
}

impl TunnelConfig {
    /// The ports; `0..=0`: any. A text that is no range counts as none; a configuration with one is refused.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.ports.as_deref().and_then(range).unwrap_or(0..=0)
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some(first..=last)
}

/// Name of the identity Secret unless another one is configured.
pub const IDENTITY_SECRET: &str = "tributary-identity";

/// MiB for tunnels: 256 connections with room to move.
const LEAST_MEMORY: u32 = 32;

/// Port of the listener for joining.
const JOIN_PORT: u16 = 7956;

/// A certificate is renewed at two thirds of its life, and the rest must do for the API server to answer.
const SHORTEST: Duration = Duration::from_secs(15);

/// Whoever steals a key can use it for so long.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

impl Default for FederationConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 7946)),
            advertise: Vec::new(),
            service: String::new(),
            pod_ips: Vec::new(),
            node_name: String::new(),
            identity: IdentityConfig::Secret(IDENTITY_SECRET.to_owned()),
            trust_domain: None,
            validity: Duration::from_secs(24 * 3600),
            join: JoinConfig::default(),
            tunnel: TunnelConfig::default(),
        }
    }
}

impl Default for JoinConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, JOIN_PORT)), advertise: Vec::new() }
    }
}

/// Whether one socket cannot have one address while another has the other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && (everywhere || one.ip() == other.ip())
}

impl FederationConfig {
    /// Where the listener for joining is reached: as configured, else the hosts of [`FederationConfig::advertise`] with
    /// its port.
    pub fn join_endpoints(&self) -> Vec<String> {
        if !self.join.advertise.is_empty() {
            return self.join.advertise.clone();
        }
        let port = self.join.listen.port();
        let hosts = self.advertise.iter().filter_map(|address| address.rsplit_once(':'));
        hosts.map(|(host, _)| format!("{host}:{port}")).collect()
    }

    /// Where pods reach this agent, and lead Services of bursts point to: as configured, else its pod's first address,
    /// which is of the family that the cluster prefers.
    pub fn tunnel_address(&self) -> Option<IpAddr> {
        self.tunnel.address.or_else(|| self.pod_ips.first().copied())
    }

    /// Where this agent listens for the brokers that come there.
    pub fn tunnel_listen(&self) -> IpAddr {
        let everywhere = match self.tunnel_address() {
            Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        self.tunnel.listen.unwrap_or(everywhere)
    }

    pub(super) fn check(&self) -> Result<(), Box<ConfigError>> {
        check_addresses("federation.advertise", &self.advertise)?;
        check_addresses("federation.join.advertise", &self.join.advertise)?;
        if !self.service.is_empty() && self.pod_ips.is_empty() {
            let reason = format!(
                "is not set, and peers shall come through Service {}: in a pod it is status.podIPs of the downward API",
                self.service
            );
            return rejected("federation.pod_ips", reason);
        }
        if !(SHORTEST..=LONGEST).contains(&self.validity) {
            let reason = format!("{:?} is not between {SHORTEST:?} and 366 days", self.validity);
            return rejected("federation.validity", reason);
        }
        if let Some(text) = self.tunnel.ports.as_deref().filter(|text| range(text).is_none()) {
            return rejected("federation.tunnel.ports", format!("{text:?} is no range of ports, e.g. \"20000-20999\""));
        }
        if let Some(memory) = self.tunnel.memory_mib.filter(|memory| *memory < LEAST_MEMORY) {
            let reason =
                format!("{memory} is less than {LEAST_MEMORY}: there must be room for some hundred connections");
            return rejected("federation.tunnel.memory_mib", reason);
        }
        if let (Some(listen), Some(IpAddr::V6(address))) = (self.tunnel.listen, self.tunnel_address())
            && listen.is_ipv4()
        {
            let reason =
                format!("{listen} is IPv4, and pods come to {address}: nobody would listen there; leave it out");
            return rejected("federation.tunnel.listen", reason);
        }
        if overlap(self.join.listen, self.listen) {
            let reason =
                format!("{} is federation.listen already: the listener for joining is another one", self.join.listen);
            return rejected("federation.join.listen", reason);
        }
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b".-_".contains(&c);
        match &self.trust_domain {
            Some(name) if name.is_empty() || name.len() > 255 || !name.bytes().all(allowed) => rejected(
                "federation.trust_domain",
                format!("{name:?} is not at most 255 lower-case letters, digits, dots, dashes and underscores"),
            ),
            _ => Ok(()),
        }
    }
}

/// Whether a port can follow. In an IPv6 address without brackets nobody can tell the port from the address, and a URL is no
/// host: peers would be told either, and never reach it.
fn is_host(text: &str) -> bool {
    let (inner, separators) = match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => (inner, &['/', '[', ']', ' '][..]),
        None => (text, &['/', '[', ']', ' ', ':'][..]),
    };
    !inner.is_empty() && !inner.contains(separators)
}

fn check_addresses(key: &'static str, addresses: &[String]) -> Result<(), Box<ConfigError>> {
    for address in addresses {
        let valid = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0));
        if !valid {
            let example = "e.g. \"203.0.113.7:30946\" or \"[2001:db8::1]:30946\"";
            let reason = format!("{address:?} is not host:port, {example}");
            return rejected(key, reason);
        }
    }
    Ok(())
}
