use std::collections::BTreeMap;

use tributary_clock::SeededRng;

use super::*;

/// DNS that knows what it was told, and remembers whether it was asked to look past its cache.
#[derive(Default)]
struct Zone {
    hosts: BTreeMap<&'static str, Vec<&'static str>>,
    services: BTreeMap<&'static str, Vec<Service>>,
    fresh: Mutex<Vec<bool>>,
}

impl Lookup for Zone {
    fn addresses<'a>(&'a self, name: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        self.fresh.lock().push(fresh);
        let found = self.hosts.get(name).map(|found| found.iter().map(|ip| ip.parse().unwrap()).collect());
        async move { found.ok_or_else(|| format!("{name} does not exist in DNS")) }.boxed()
    }

    fn services<'a>(&'a self, name: &'a str, _fresh: bool) -> BoxFuture<'a, Result<Vec<Service>, String>> {
        let found = self.services.get(name).cloned();
        async move { found.ok_or_else(|| format!("{name} does not exist in DNS")) }.boxed()
    }
}

fn service(priority: u16, weight: u16, target: &str) -> Service {
    Service { priority, weight, port: 7946, target: target.to_owned() }
}

fn resolver(zone: Zone) -> Resolver<Zone> {
    Resolver::new(zone, Box::new(SeededRng::new(1)))
}

async fn resolved(resolver: &Resolver<Zone>, endpoint: &str) -> Result<Vec<String>, String> {
    let addresses = resolver.resolve(endpoint, false).await.map_err(|error| error.refusal.message)?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

#[test]
fn endpoints_are_what_they_look_like() {
    let host = |name: &str, port| Endpoint::Host { name: name.into(), port };
    let cases = [
        ("203.0.113.7:7946", Endpoint::Address("203.0.113.7:7946".parse().unwrap())),
        ("[2001:db8::7]:7946", Endpoint::Address("[2001:db8::7]:7946".parse().unwrap())),
        ("west.example:7946", host("west.example", 7946)),
        ("west:1", host("west", 1)),
        ("srv:river.example", Endpoint::Service("_tributary._udp.river.example".into())),
        ("srv:_agents._udp.river.example.", Endpoint::Service("_agents._udp.river.example.".into())),
    ];
    for (text, endpoint) in cases {
        assert_eq!(text.parse(), Ok(endpoint), "{text}");
    }
}

#[test]
fn what_is_no_endpoint_says_what_is_wrong() {
    let cases = [
        ("", "it has no port"),
        ("west.example", "it has no port"),
        ("west.example:", "the port is no number"),
        ("west.example:0", "the port is no number"),
        ("west.example:70000", "the port is no number"),
        ("203.0.113.7:0", "port 0 is no port"),
        ("2001:db8::7", "an IPv6 address needs brackets"),
        ("2001:db8::7:7946", "an IPv6 address needs brackets"),
        ("we st:7946", "neither an address nor a DNS name"),
        (":7946", "neither an address nor a DNS name"),
        ("a..b:7946", "neither an address nor a DNS name"),
        ("https://west:7946", "an IPv6 address needs brackets"),
        ("srv:", "followed by a DNS name"),
        ("srv:river:7946", "followed by a DNS name"),
    ];
    for (text, problem) in cases {
        let message = text.parse::<Endpoint>().unwrap_err().to_string();
        assert!(message.contains(problem) && message.contains(&format!("`{text}`")), "{message}");
    }
}

#[test]
fn families_alternate_and_keep_their_order() {
    let ips = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
    let mixed = alternate(ips(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"]));
    assert_eq!(mixed, ips(&["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "10.0.0.3"]));
    assert_eq!(alternate(ips(&["10.0.0.1"])), ips(&["10.0.0.1"]));
}

#[test]
fn priorities_are_strict_and_weights_are_shares() {
    let mut rng = SeededRng::new(7);
    let mut first = BTreeMap::new();
    for _ in 0..1_000 {
        let records =
            vec![service(20, 100, "last."), service(10, 0, "rare."), service(10, 30, "a."), service(10, 70, "b.")];
        let ordered = order(records, &mut rng);
        assert_eq!(ordered.len(), 4);
        assert_eq!(ordered[3].target, "last.");
        *first.entry(ordered[0].target.clone()).or_insert(0) += 1;
    }
    assert!((230..370).contains(&first["a."]) && (600..760).contains(&first["b."]), "{first:?}");
    assert!((1..40).contains(&first["rare."]), "a small chance, not none: {first:?}");
}

#[tokio::test]
async fn a_service_leads_to_the_addresses_of_its_targets() {
    let resolver = resolver(Zone {
        hosts: BTreeMap::from([("b.example.", vec!["10.0.0.2"]), ("a.example.", vec!["10.0.0.1", "fd00::1"])]),
        services: BTreeMap::from([
            (
                "_tributary._udp.river.example",
                vec![service(20, 0, "b.example."), service(10, 0, "gone.example."), service(15, 0, "a.example.")],
            ),
            ("_tributary._udp.none.example", vec![service(0, 0, ".")]),
            ("_tributary._udp.lost.example", vec![service(0, 0, "gone.example.")]),
        ]),
        ..Zone::default()
    });
    let addresses = resolved(&resolver, "srv:river.example").await.unwrap();
    assert_eq!(addresses, ["[fd00::1]:7946", "10.0.0.1:7946", "10.0.0.2:7946"]);
    for (endpoint, problem) in [
        ("srv:none.example", "_tributary._udp.none.example has no SRV records"),
        ("srv:lost.example", "gone.example. does not exist in DNS"),
        ("srv:absent.example", "_tributary._udp.absent.example does not exist in DNS"),
    ] {
        let message = resolved(&resolver, endpoint).await.unwrap_err();
        assert_eq!(message, format!("failed to resolve endpoint `{endpoint}`: {problem}"));
    }
}

#[tokio::test]
async fn names_are_looked_up_afresh_when_asked_and_literals_never() {
    let resolver = resolver(Zone { hosts: BTreeMap::from([("west", vec!["10.0.0.1"])]), ..Zone::default() });
    assert_eq!(resolved(&resolver, "[fd00::1]:7946").await.unwrap(), ["[fd00::1]:7946"]);
    assert_eq!(resolved(&resolver, "west:7946").await.unwrap(), ["10.0.0.1:7946"]);
    resolver.resolve("west:7946", true).await.unwrap();
    assert_eq!(*resolver.lookup.fresh.lock(), [false, true]);
    assert!(resolved(&resolver, "west").await.unwrap_err().contains("it has no port"));
}

struct Deaf;

impl Lookup for Deaf {
    fn addresses<'a>(&'a self, _name: &'a str, _fresh: bool) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        futures::future::pending().boxed()
    }
    fn services<'a>(&'a self, _name: &'a str, _fresh: bool) -> BoxFuture<'a, Result<Vec<Service>, String>> {
        futures::future::pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn dns_that_does_not_answer_is_given_up() {
    let resolver = Resolver::new(Deaf, Box::new(SeededRng::new(1)));
    let error = resolver.resolve("west.example:7946", false).await.unwrap_err();
    assert_eq!(error.refusal.message, "failed to resolve endpoint `west.example:7946`: DNS does not answer");
}
