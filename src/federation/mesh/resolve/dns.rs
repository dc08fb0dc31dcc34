//! [`Lookup`] over DNS, by hickory.

use std::net::IpAddr;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::{ResolverBuilder, TokioResolver};
use parking_lot::Mutex;

use super::{Lookup, Service};

/// One query to one name server; each is tried twice.
const QUERY: Duration = Duration::from_secs(2);

/// Reads a configuration.
type Build = dyn Fn() -> Result<ResolverBuilder<TokioRuntimeProvider>, NetError> + Send + Sync;

/// DNS as the system is configured. Where it is not configured at all, literal addresses still work.
pub struct SystemDns {
    build: Box<Build>,
    resolver: Mutex<Result<TokioResolver, String>>,
}

impl SystemDns {
    /// Reads the system's configuration.
    pub(crate) fn new() -> Self {
        Self::with(TokioResolver::builder_tokio)
    }

    fn with(
        build: impl Fn() -> Result<ResolverBuilder<TokioRuntimeProvider>, NetError> + Send + Sync + 'static,
    ) -> Self {
        let resolver = Mutex::new(Self::resolver_of(build()));
        Self { build: Box::new(build), resolver }
    }

    fn resolver_of(builder: Result<ResolverBuilder<TokioRuntimeProvider>, NetError>) -> Result<TokioResolver, String> {
        let resolver = builder.and_then(|mut builder| {
            let options = builder.options_mut();
            options.timeout = QUERY;
            options.attempts = 2;
            options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
            builder.build()
        });
        resolver.map_err(|error| format!("the system's DNS configuration cannot be used: {error}"))
    }

    /// `fresh`: without what was cached, and as the system is configured now (`/etc/resolv.conf`, `/etc/hosts`).
    fn resolver(&self, fresh: bool) -> Result<TokioResolver, String> {
        // A resolver is replaced as a whole.
        let mut resolver = self.resolver.lock();
        if fresh {
            *resolver = Self::resolver_of((self.build)());
        }
        resolver.clone()
    }
}

impl Default for SystemDns {
    fn default() -> Self {
        Self::new()
    }
}

impl Lookup for SystemDns {
    fn addresses<'a>(&'a self, name: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        async move {
            let found = self.resolver(fresh)?.lookup_ip(name).await.map_err(|error| explain(name, &error))?;
            Ok(found.iter().collect())
        }
        .boxed()
    }

    fn services<'a>(&'a self, name: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<Service>, String>> {
        async move {
            let found = self.resolver(fresh)?.srv_lookup(name).await.map_err(|error| explain(name, &error))?;
            let services = found.answers().iter().filter_map(|record| match &record.data {
                RData::SRV(srv) => Some(Service {
                    priority: srv.priority,
                    weight: srv.weight,
                    port: srv.port,
                    target: srv.target.to_string(),
                }),
                _ => None,
            });
            Ok(services.collect())
        }
        .boxed()
    }
}

fn explain(name: &str, error: &NetError) -> String {
    if error.is_nx_domain() {
        format!("{name} does not exist in DNS")
    } else if error.is_no_records_found() {
        format!("{name} has no records of the wanted kind")
    } else {
        format!("DNS failed for {name}: {error}")
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
    use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
    use hickory_resolver::proto::rr::rdata::SRV;
    use hickory_resolver::proto::rr::{Name, Record, RecordType};
    use tokio::net::UdpSocket;

    use super::*;

    const SERVICE: &str = "_tributary._udp.river.example.";
    const HOST: &str = "west.river.example.";

    /// A name server with one service and one host; counts what it is asked.
    async fn name_server() -> (SocketAddr, Arc<AtomicUsize>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let queries = Arc::new(AtomicUsize::new(0));
        let counted = queries.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                let question = Message::from_vec(&buffer[..length]).unwrap();
                socket.send_to(&answer(&question).to_vec().unwrap(), from).await.unwrap();
            }
        });
        (address, queries)
    }

    fn answer(question: &Message) -> Message {
        let query = &question.queries[0];
        let name = query.name().clone();
        let data = match (name.to_string().to_lowercase().as_str(), query.query_type()) {
            (SERVICE, RecordType::SRV) => Some(RData::SRV(SRV::new(1, 2, 7946, Name::from_ascii(HOST).unwrap()))),
            (HOST, RecordType::A) => Some(RData::from(IpAddr::from([10, 0, 0, 7]))),
            (HOST, RecordType::AAAA) => Some(RData::from("fd00::7".parse::<IpAddr>().unwrap())),
            _ => None,
        };
        let mut answer = match data {
            None => Message::error_msg(question.metadata.id, OpCode::Query, ResponseCode::NXDomain),
            Some(data) => {
                let mut answer = Message::response(question.metadata.id, OpCode::Query);
                answer.add_answer(Record::from_rdata(name, 300, data));
                answer
            }
        };
        answer.add_query(query.clone());
        answer
    }

    fn dns(server: SocketAddr) -> SystemDns {
        let mut connection = ConnectionConfig::udp();
        connection.port = server.port();
        let server = NameServerConfig::new(server.ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        SystemDns::with(move || Ok(TokioResolver::builder_with_config(config.clone(), TokioRuntimeProvider::default())))
    }

    #[tokio::test]
    async fn records_are_read_and_a_cache_is_passed_by_when_asked() {
        let (server, queries) = name_server().await;
        let dns = dns(server);
        let services = dns.services(SERVICE, false).await.unwrap();
        assert_eq!(services, [Service { priority: 1, weight: 2, port: 7946, target: HOST.into() }]);
        let mut addresses = dns.addresses(HOST, false).await.unwrap();
        addresses.sort();
        assert_eq!(addresses, ["10.0.0.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]);

        let asked = queries.load(Ordering::Relaxed);
        dns.addresses(HOST, false).await.unwrap();
        assert_eq!(queries.load(Ordering::Relaxed), asked, "from the cache");
        dns.addresses(HOST, true).await.unwrap();
        assert!(queries.load(Ordering::Relaxed) > asked, "past the cache");
    }

    #[tokio::test]
    async fn an_absent_name_is_named() {
        let (server, _) = name_server().await;
        let problem = dns(server).addresses("gone.example.", false).await.unwrap_err();
        assert_eq!(problem, "gone.example. does not exist in DNS");
    }

    #[tokio::test]
    async fn without_configuration_the_problem_is_said() {
        let dns = SystemDns::with(|| Err(NetError::from("no such file")));
        let problem = dns.services(SERVICE, false).await.unwrap_err();
        assert!(problem.contains("DNS configuration cannot be used: no such file"), "{problem}");
    }
}
