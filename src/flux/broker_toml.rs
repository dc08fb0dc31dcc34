//! `broker.toml`: the configuration every broker of one side of an instance boots with.
//!
//! Source: flux-core `doc/man5/flux-config*.rst`. A user's own `flux.brokerConfig` replaces the whole file and is not made
//! here. Since 0.82, followers are meant to go on with the lead's file once they have joined: modules of theirs that are loaded
//! then still read their own (seen with 0.88), but nothing may depend on that.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::{Hostlist, HostsEntry, RankMap, Topology, hosts_table};

/// Which side of the instance the file is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Side {
    /// The cluster of the root MiniCluster: rank 0 is reached like any other broker.
    Root,
    /// A cluster that hosts a burst.
    Burst {
        /// ZeroMQ endpoint at which this cluster reaches rank 0: see [`Side::burst`].
        lead_connect: String,
    },
}

impl Side {
    /// The burst side, whose brokers reach rank 0 at `host` (a Service, a host name, or an IP address; IPv6 without
    /// brackets) and TCP `port`.
    pub fn burst(host: &str, port: u16) -> Self {
        let lead_connect =
            if host.contains(':') { format!("tcp://[{host}]:{port}") } else { format!("tcp://{host}:{port}") };
        Self::Burst { lead_connect }
    }

    fn lead_connect(&self) -> Option<&str> {
        match self {
            Self::Root => None,
            Self::Burst { lead_connect } => Some(lead_connect),
        }
    }
}

/// Absolute paths inside of the broker's container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerPaths {
    /// R, see [`super::ResourceSet`].
    pub resource: String,
    /// The curve certificate: mode 0600, owned by the broker's user.
    pub curve_cert: String,
}

/// How the brokers of this cluster reach each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerNetwork {
    /// Interface a broker listens on: `eth0` on most pod networks; `*` for all.
    pub interface: String,
    /// TCP port of every broker.
    pub port: u16,
    /// Name of the headless Service that publishes the pods.
    pub headless: String,
    /// Namespace of the pods.
    pub namespace: String,
    /// DNS domain of the cluster, `cluster.local` on most.
    pub cluster_domain: String,
}

/// Everything that `broker.toml` depends on besides the rank map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerConfig {
    /// Root or burst.
    pub side: Side,
    /// Paths of the files it names.
    pub paths: BrokerPaths,
    /// Addresses within this cluster.
    pub network: BrokerNetwork,
    /// The shape of the overlay. Must be the one the rank map's parents were chosen for, and the same on all sides.
    pub topology: Topology,
    /// `queue-policy` of the Fluxion queue manager, such as `fcfs` or `easy`.
    pub queue_policy: String,
    /// How long a follower may hear nothing of the instance (`heartbeat.timeout`); `None` keeps flux-core's 5 minutes.
    pub silence: Option<Duration>,
}

impl BrokerConfig {
    /// The file. Every value is quoted, so that none can add keys or tables.
    pub fn to_toml(&self, map: &RankMap) -> String {
        self.to_toml_with_hosts(&hosts_table(map, self.side.lead_connect()))
    }

    /// The file for a host list of the user's own, which follows no slots. On a burst the first host, the lead, gets the
    /// endpoint in an entry of its own: flux-core merges the keys of a host that is repeated and keeps its first rank.
    pub fn to_toml_of_hostlist(&self, hosts: &Hostlist) -> String {
        let plain = HostsEntry { hosts: hosts.clone(), parent: None, connect: None };
        let lead = self.side.lead_connect().zip(hosts.iter().next()).map(|(connect, lead)| HostsEntry {
            hosts: Hostlist::from_hosts([lead.clone()]).expect("one host of a list is a list"),
            parent: None,
            connect: Some(connect.to_owned()),
        });
        self.to_toml_with_hosts(&std::iter::once(plain).chain(lead).collect::<Vec<_>>())
    }

    fn to_toml_with_hosts(&self, hosts: &[HostsEntry]) -> String {
        let Self { paths, network, topology, queue_policy, .. } = self;
        let BrokerNetwork { interface, port, headless, namespace, cluster_domain } = network;
        let bind = format!("tcp://{interface}:%p");
        let connect = format!("tcp://%h.{headless}.{namespace}.svc.{cluster_domain}:%p");

        let mut toml = TomlWriter::default();
        toml.table("access");
        toml.key("allow-guest-user", true);
        toml.key("allow-root-owner", true);
        toml.table("resource");
        toml.key("path", Quoted(&paths.resource));
        // Flux compares R with the cores of a node; what Kubernetes counts are their threads, of which there may be twice as
        // many. Scripts of bursts compare these.
        toml.key("noverify", true);
        toml.table("bootstrap");
        toml.key("curve_cert", Quoted(&paths.curve_cert));
        toml.key("default_port", port);
        toml.key("default_bind", Quoted(&bind));
        toml.key("default_connect", Quoted(&connect));
        toml.key("hosts", HostsArray(hosts));
        if let Some(topo) = topology.tbon_topo() {
            toml.table("tbon");
            toml.key("topo", Quoted(topo));
        }
        if let Some(silence) = self.silence {
            toml.table("heartbeat");
            toml.key("timeout", Quoted(&format!("{}s", silence.as_secs())));
        }
        // The scheduler runs beside rank 0.
        if self.side == Side::Root {
            toml.table("sched-fluxion-qmanager");
            toml.key("queue-policy", Quoted(queue_policy));
        }
        toml.text
    }
}

#[derive(Default)]
struct TomlWriter {
    text: String,
}

impl TomlWriter {
    fn table(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        writeln!(self.text, "{gap}[{name}]").expect("a String takes any text");
    }

    fn key(&mut self, name: &str, value: impl fmt::Display) {
        writeln!(self.text, "{name} = {value}").expect("a String takes any text");
    }
}

/// The hosts, one inline table a line.
struct HostsArray<'a>(&'a [HostsEntry]);

impl fmt::Display for HostsArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[\n")?;
        for HostsEntry { hosts, parent, connect } in self.0 {
            write!(f, "  {{ host = {}", Quoted(&hosts.to_string()))?;
            for (name, value) in [("parent", parent), ("connect", connect)] {
                if let Some(value) = value {
                    write!(f, ", {name} = {}", Quoted(value))?;
                }
            }
            f.write_str(" },\n")?;
        }
        f.write_char(']')
    }
}

/// A TOML basic string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04X}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests;
