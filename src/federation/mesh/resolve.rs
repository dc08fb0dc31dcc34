//! Endpoints of a ClusterPeer to addresses: `host:port`, `[v6]:port`, `srv:NAME`.
//!
//! SRV records are ordered by priority and weight (RFC 2782), addresses of one name alternate between IPv6 and IPv4
//! (RFC 8305, section 4), literal addresses need no DNS at all.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, join_all};
use parking_lot::Mutex;
use tokio::time::timeout;
use tributary_clock::Rng;

use crate::transport::{DialError, Resolve};
use crate::wire::registry::RefusalReason;

mod dns;

pub(crate) use dns::SystemDns;

/// What `srv:NAME` asks for, unless NAME begins with an underscore and is the whole name already.
pub(crate) const SERVICE_PREFIX: &str = "_tributary._udp.";

/// One endpoint, with all its queries.
const ENDPOINT: Duration = Duration::from_secs(6);

/// Addresses of one endpoint that are tried.
const ADDRESSES: usize = 16;

/// An endpoint as it is written in a ClusterPeer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    /// A literal address.
    Address(SocketAddr),
    /// A name with A or AAAA records.
    Host {
        name: String,
        /// UDP port.
        port: u16,
    },
    /// The whole name of SRV records.
    Service(String),
}

/// Why a text is no endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{text}` is no endpoint: {problem}; write host:port, [IPv6 address]:port or srv:NAME")]
pub(crate) struct EndpointError {
    text: String,
    problem: &'static str,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = |problem| EndpointError { text: text.to_owned(), problem };
        if let Some(name) = text.strip_prefix("srv:") {
            if !is_name(name) {
                return Err(wrong("srv: is followed by a DNS name"));
            }
            let whole = if name.starts_with('_') { name.to_owned() } else { format!("{SERVICE_PREFIX}{name}") };
            return Ok(Self::Service(whole));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 { Err(wrong("port 0 is no port")) } else { Ok(Self::Address(address)) };
        }
        let (name, port) = text.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        if text.parse::<IpAddr>().is_ok() || name.contains(':') {
            return Err(wrong("an IPv6 address needs brackets and a port"));
        }
        let port =
            port.parse().ok().filter(|port| *port != 0).ok_or_else(|| wrong("the port is no number of 1 to 65535"))?;
        if !is_name(name) {
            return Err(wrong("the host is neither an address nor a DNS name"));
        }
        Ok(Self::Host { name: name.to_owned(), port })
    }
}

/// One SRV record (RFC 2782).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// The lowest is tried first.
    pub priority: u16,
    /// Share among those of the same priority.
    pub weight: u16,
    /// UDP port.
    pub port: u16,
    /// Name with A or AAAA records.
    pub target: String,
}

/// Where records come from. Errors are sentences for messages.
pub trait Lookup: Send + Sync {
    /// A and AAAA records of a name. `fresh`: not from a cache.
    fn addresses<'a>(&'a self, name: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<IpAddr>, String>>;
    /// SRV records of a name. `fresh`: not from a cache.
    fn services<'a>(&'a self, name: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<Service>, String>>;
}

/// Resolves endpoints with a [`Lookup`].
pub struct Resolver<L> {
    lookup: L,
    rng: Mutex<Box<dyn Rng>>,
}

impl Resolver<SystemDns> {
    /// Resolves as the system is configured (`/etc/resolv.conf`, `/etc/hosts`).
    pub fn system(rng: Box<dyn Rng>) -> Self {
        Self::new(SystemDns::new(), rng)
    }
}

impl<L: Lookup> Resolver<L> {
    /// Resolves with `lookup`; `rng` draws among SRV records of one priority.
    pub(crate) fn new(lookup: L, rng: Box<dyn Rng>) -> Self {
        Self { lookup, rng: Mutex::new(rng) }
    }

    async fn addresses(&self, endpoint: &Endpoint, fresh: bool) -> Result<Vec<SocketAddr>, String> {
        match endpoint {
            Endpoint::Address(address) => Ok(vec![*address]),
            Endpoint::Host { name, port } => self.host(name, *port, fresh).await,
            Endpoint::Service(name) => {
                let services = self.lookup.services(name, fresh).await?;
                // A lone target "." says that the service does not exist here (RFC 2782).
                if services.iter().all(|service| service.target == ".") {
                    return Err(format!("{name} has no SRV records"));
                }
                let ordered = self.order(services);
                let hosts =
                    join_all(ordered.iter().map(|service| self.host(&service.target, service.port, fresh))).await;
                let mut problems = Vec::new();
                let mut addresses = Vec::new();
                for host in hosts {
                    match host {
                        Ok(found) => addresses.extend(found),
                        Err(problem) => problems.push(problem),
                    }
                }
                if addresses.is_empty() { Err(problems.join("; ")) } else { Ok(addresses) }
            }
        }
    }

    async fn host(&self, name: &str, port: u16, fresh: bool) -> Result<Vec<SocketAddr>, String> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let addresses = self.lookup.addresses(name, fresh).await?;
        if addresses.is_empty() {
            return Err(format!("{name} has no address"));
        }
        Ok(alternate(addresses).into_iter().map(|address| (address, port).into()).collect())
    }

    fn order(&self, services: Vec<Service>) -> Vec<Service> {
        // The generator has no state that a panic could leave half-changed.
        order(services, self.rng.lock().as_mut())
    }
}

impl<L: Lookup> Resolve for Resolver<L> {
    fn resolve<'a>(&'a self, endpoint: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<SocketAddr>, DialError>> {
        async move {
            let failed = |problem: String| DialError::new(RefusalReason::Unreachable, problem);
            let parsed: Endpoint = endpoint.parse().map_err(|error: EndpointError| failed(error.to_string()))?;
            let mut addresses = match timeout(ENDPOINT, self.addresses(&parsed, fresh)).await {
                Ok(Ok(addresses)) => addresses,
                Ok(Err(problem)) => return Err(failed(format!("failed to resolve endpoint `{endpoint}`: {problem}"))),
                Err(_) => return Err(failed(format!("failed to resolve endpoint `{endpoint}`: DNS does not answer"))),
            };
            addresses.truncate(ADDRESSES);
            Ok(addresses)
        }
        .boxed()
    }
}

/// SRV records in the order to try them (RFC 2782): by priority, and by weighted chance within one.
pub(crate) fn order(mut services: Vec<Service>, rng: &mut dyn Rng) -> Vec<Service> {
    services.retain(|service| service.target != ".");
    // Those without weight come first, so that the draw gives them a chance at its lowest value only.
    services.sort_by_key(|service| (service.priority, service.weight != 0));
    let mut ordered = Vec::with_capacity(services.len());
    while let Some(first) = services.first() {
        let group = services.iter().take_while(|service| service.priority == first.priority).count();
        let total: u64 = services[..group].iter().map(|service| u64::from(service.weight)).sum();
        let mut draw = rng.next_u64() % (total + 1);
        let chosen = services[..group].iter().position(|service| {
            let chosen = draw <= u64::from(service.weight);
            draw = draw.saturating_sub(service.weight.into());
            chosen
        });
        ordered.push(services.remove(chosen.unwrap_or(0)));
    }
    ordered
}

/// IPv6 and IPv4 in turns, beginning with IPv6, each family in its own order: a broken family costs one head start.
pub(crate) fn alternate(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut mixed = Vec::new();
    loop {
        match (v6.next(), v4.next()) {
            (None, None) => return mixed,
            (first, second) => mixed.extend(first.into_iter().chain(second)),
        }
    }
}

/// Letters, digits, hyphens and underscores in labels of at most 63 (RFC 1035, 2.3.4; underscores as in RFC 2782).
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
    };
    text.len() <= 254 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

#[cfg(test)]
mod tests;
