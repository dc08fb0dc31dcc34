#![allow(clippy::result_large_err, reason = "figment's Jail asks for its own error type")]

use std::net::IpAddr;
use std::path::Path;

use figment::Jail;
use figment::value::Value;

use super::*;

fn load(jail: &Jail) -> Result<Config, Box<ConfigError>> {
    Config::load(Some(&jail.directory().join("agent.toml")))
}

#[test]
fn the_documented_file_is_read() {
    let config = Config::from_toml(
        r#"
        [cluster]
        name = "east"
        labels = { region = "eu" }
        [kubernetes]
        kubeconfig = "east.yaml"
        context = "east"
        namespace = "tributary-system"
        [federation]
        listen = "0.0.0.0:7946"
        advertise = ["203.0.113.7:30946"]
        identity = { secret = "tributary-identity" }
        [admin]
        listen = "127.0.0.1:8080"
        [health]
        listen = "0.0.0.0:8081"
        "#,
    )
    .unwrap();
    assert_eq!(config.cluster.labels["region"], "eu");
    assert_eq!(config.federation.identity, IdentityConfig::Secret("tributary-identity".into()));
    assert_eq!(config.federation.join_endpoints(), ["203.0.113.7:7956"]);
    assert_eq!(config.kubernetes.kubeconfig.as_deref(), Some(Path::new("east.yaml")));
}

#[test]
fn the_environment_wins_over_the_file_and_may_look_like_numbers() {
    Jail::expect_with(|jail| {
        jail.create_file("agent.toml", "[cluster]\nname = \"east\"\n")?;
        jail.set_env("TRIBUTARY__CLUSTER__NAME", "42");
        jail.set_env("TRIBUTARY__CLUSTER__LABELS", "example.org/region=eu, tier=gpu");
        jail.set_env("TRIBUTARY__FEDERATION__IDENTITY__DIR", "/etc/identity");
        jail.set_env("TRIBUTARY__FEDERATION__ADVERTISE", "a:1,[2001:db8::1]:2");
        jail.set_env("TRIBUTARY__FEDERATION__POD_IPS", "10.0.0.7,fd00::7");
        let config = load(jail).unwrap();
        assert_eq!(config.cluster.name, "42");
        assert_eq!(config.cluster.labels["example.org/region"], "eu");
        assert_eq!(config.federation.identity, IdentityConfig::Dir("/etc/identity".into()));
        assert_eq!(config.federation.advertise, ["a:1", "[2001:db8::1]:2"]);
        assert_eq!(config.federation.pod_ips, ["10.0.0.7", "fd00::7"].map(|text| text.parse::<IpAddr>().unwrap()));
        Ok(())
    });
}

#[test]
fn a_variable_is_the_text_that_it_is() {
    let cases = [
        ("CLUSTER__NAME", "007"),
        ("CLUSTER__NAME", "1e3"),
        ("CLUSTER__DOMAIN", "1.10"),
        ("KUBERNETES__NAMESPACE", "+7"),
        ("KUBERNETES__CONTEXT", "2026"),
        ("FEDERATION__TRUST_DOMAIN", "1.10"),
        ("FEDERATION__IDENTITY__SECRET", "2026"),
        ("LOG__FILTER", "3"),
        ("TRACES__ENDPOINT", "http://collector:4318"),
    ];
    for (name, value) in cases {
        Jail::expect_with(|jail| {
            jail.create_file("agent.toml", "[cluster]\nname = \"east\"\n")?;
            jail.set_env(format!("TRIBUTARY__{name}"), value);
            let config = Value::serialize(load(jail).unwrap_or_else(|error| panic!("{name}: {error}")))?;
            let found = config.find(&name.to_lowercase().replace("__", ".")).unwrap();
            assert_eq!(found.as_str(), Some(value), "{name}");
            Ok(())
        });
    }
    Jail::expect_with(|jail| {
        jail.create_file("agent.toml", "[cluster]\nname = \"east\"\n")?;
        jail.set_env("TRIBUTARY__VOLUMES__CLASSES", "hostpath, csi-gcs");
        jail.set_env("TRIBUTARY__VOLUMES__PATH_PREFIXES", "/data,/srv");
        jail.set_env("TRIBUTARY__VOLUMES__DRIVERS", "2026");
        jail.set_env("TRIBUTARY__BURSTING__LEASE_SECONDS", "0600");
        jail.set_env("TRIBUTARY__BURSTING__GRACE_SECONDS", "+60");
        jail.set_env("TRIBUTARY__FEDERATION__TUNNEL__MEMORY_MIB", "64");
        jail.set_env("TRIBUTARY__WEBHOOK__ISSUE", "false");
        let config = load(jail).unwrap();
        assert_eq!(config.volumes.classes, ["hostpath", "csi-gcs"]);
        assert_eq!(config.volumes.path_prefixes, ["/data", "/srv"]);
        assert_eq!(config.volumes.drivers, ["2026"]);
        assert_eq!((config.bursting.lease_seconds, config.bursting.grace_seconds), (600, 60));
        assert_eq!(config.federation.tunnel.memory_mib, Some(64));
        assert!(!config.webhook.issue);
        Ok(())
    });
}

/// By that a variable is known to be a number.
#[test]
fn keys_of_numbers_end_with_their_unit() {
    fn look(key: &str, value: &Value) {
        let is_number = matches!(value, Value::Num(..));
        assert_eq!(is_number, variables::UNITS.iter().any(|unit| key.ends_with(unit)), "{key}");
        for (key, value) in value.as_dict().into_iter().flatten() {
            look(key, value);
        }
    }
    let mut config = Config::default();
    config.federation.tunnel.memory_mib = Some(64);
    look("", &Value::serialize(config).unwrap());
}

#[test]
fn errors_name_the_key_and_where_it_stands() {
    let cases = [
        ("[cluster]\nname = \"East\"\n", &[][..], "cluster.name: \"East\" is not a DNS label"),
        ("", &[], "cluster.name: is not set"),
        ("[clutser]\n", &[], "clutser"),
        ("[cluster]\nname=\"a\"\n[admin]\nlisten = \"nowhere\"\n", &[], "agent.toml"),
        (
            "[cluster]\nname=\"a\"\n",
            &[("TRIBUTARY__HEALTH__LISTEN", "x")],
            "the environment variable TRIBUTARY__HEALTH__LISTEN",
        ),
        ("[cluster]\nname=\"a\"\n[federation]\nadvertise=[\"host\"]\n", &[], "\"host\" is not host:port"),
        ("[cluster]\nname=\"a\"\n[federation]\nadvertise=[\"::1:7946\"]\n", &[], "\"::1:7946\" is not host:port"),
        ("[cluster]\nname=\"a\"\n[federation]\nadvertise=[\"[]:7946\"]\n", &[], "\"[]:7946\" is not host:port"),
        (
            "[cluster]\nname=\"a\"\n[federation.join]\nadvertise=[\"http://host:30946\"]\n",
            &[],
            "federation.join.advertise: \"http://host:30946\" is not host:port",
        ),
        ("[cluster]\nname=\"a\"\n[bursting]\nlease_seconds=5\n", &[], "5 is not between 10 s and 3600 s"),
        ("[cluster]\nname=\"a\"\n[bursting]\nlease_seconds=20\n", &[], "30 is not between 1 s and the lease of 20 s"),
        ("[cluster]\nname=\"a\"\n[bursting]\ndrain_seconds=4000\n", &[], "4000 is more than 3600 s"),
        (
            "[cluster]\nname=\"a\"\n[bursting]\nusage_days=0\n",
            &[],
            "bursting.usage_days: 0 is not between 1 day and 400 days",
        ),
        (
            "[cluster]\nname=\"a\"\n[federation]\nvalidity=\"a day\"\n",
            &[],
            "federation.validity: \"a day\" is not a duration",
        ),
        ("[cluster]\nname=\"a\"\n[federation]\nvalidity=\"1s\"\n", &[], "1s is not between 15s and 366 days"),
        ("[cluster]\nname=\"a\"\n[federation]\ntrust_domain=\"A b\"\n", &[], "federation.trust_domain: \"A b\""),
        ("[cluster]\nname=\"a\"\n[federation.join]\nlisten=\"0.0.0.0:7946\"\n", &[], "is federation.listen already"),
        ("[cluster]\nname=\"a\"\n[federation]\nservice=\"b\"\n", &[], "federation.pod_ips: is not set"),
        (
            "[cluster]\nname=\"a\"\n",
            &[("TRIBUTARY__FEDERATION__POD_IPS", "10.0.0.7,here")],
            "federation.pod_ips: \"here\" is not an IP address",
        ),
        (
            "[cluster]\nname=\"a\"\n[federation]\npod_ips=\"fd00::7\"\ntunnel={listen=\"0.0.0.0\"}\n",
            &[],
            "federation.tunnel.listen: 0.0.0.0 is IPv4, and pods come to fd00::7",
        ),
        (
            "[cluster]\nname=\"a\"\n[webhook]\nlisten=\"[::]:9443\"\nservice=\"b\"\nsecret=\"tributary-identity\"\n",
            &[],
            "webhook.secret: \"tributary-identity\" is a Secret of federation.identity already",
        ),
        (
            "[cluster]\nname=\"a\"\n[webhook]\nlisten=\"[::]:9443\"\nservice=\"b\"\nsecret=\"tributary-identity-ca\"\n",
            &[],
            "webhook.secret: \"tributary-identity-ca\" is a Secret of federation.identity already",
        ),
        ("[cluster\n", &[], "agent.toml"),
        (
            "[cluster]\nname=\"a\"\n[traces]\nendpoint=\"collector:4317\"\n",
            &[],
            "traces.endpoint: is not http://HOST:PORT",
        ),
        (
            "[cluster]\nname=\"a\"\n[traces]\nendpoint=\"http://collector:4318/a?token=b\"\n",
            &[],
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
        ("[cluster]\nname=\"a\"\n[liveness]\nheartbeat_millis=50\n", &[], "50 is not between 100 and 10000"),
        ("[cluster]\nname=\"a\"\n[liveness]\nheartbeat_millis=1600\n", &[], "4700 is not more than three heartbeats"),
        (
            "[cluster]\nname=\"a\"\n[liveness]\nsuspect_millis=20000\n",
            &[],
            "not less than two thirds of the grace period of 30s",
        ),
    ];
    for (file, variables, expected) in cases {
        Jail::expect_with(|jail| {
            jail.create_file("agent.toml", file)?;
            for (name, value) in variables {
                jail.set_env(name, value);
            }
            let message = load(jail).unwrap_err().to_string();
            assert!(message.contains(expected), "{file:?}: {message}");
            Ok(())
        });
    }
}

#[test]
fn an_identity_is_made_unless_another_one_is_meant_or_none() {
    let read = |text: &str| Config::from_toml(&format!("[cluster]\nname = \"a\"\n[federation]\n{text}")).unwrap();
    assert_eq!(read("").federation.identity, IdentityConfig::Secret(IDENTITY_SECRET.into()));
    assert_eq!(read("identity = \"off\"").federation.identity, IdentityConfig::Off);
    assert_eq!(read("validity = \"90s\"").federation.validity, std::time::Duration::from_secs(90));
    assert_eq!(read("validity = \"30d\"").federation.validity, std::time::Duration::from_secs(30 * 24 * 3600));
    let join = read("advertise = [\"a:1\"]\njoin = { advertise = [\"b:2\"] }").federation.join_endpoints();
    assert_eq!(join, ["b:2"]);
}

#[test]
fn a_password_is_not_repeated() {
    let text = "[cluster]\nname = \"a\"\n[traces]\nendpoint = \"https://user:secret@collector:4318\"\n";
    let message = Config::from_toml(text).unwrap_err().to_string();
    assert!(message.contains("OTEL_EXPORTER_OTLP_HEADERS") && !message.contains("secret"), "{message}");
}

#[test]
fn a_file_that_cannot_be_looked_at_is_not_called_missing() {
    Jail::expect_with(|jail| {
        jail.create_file("agent.toml", "")?;
        let message = Config::load(Some(&jail.directory().join("agent.toml/below"))).unwrap_err().to_string();
        assert!(message.contains("agent.toml/below: Not a directory"), "{message}");
        Ok(())
    });
}

#[test]
fn a_missing_file_is_named() {
    let message = Config::load(Some(Path::new("no-such.toml"))).unwrap_err().to_string();
    assert!(message.contains("no-such.toml does not exist"), "{message}");
}

/// What the leader binds is what brokers of another pod reach at the address that lead Services point to: a connection is
/// made to it, as far as this machine has the family.
#[test]
fn brokers_are_listened_for_where_lead_services_send_them() {
    let cases = [
        ("", "0.0.0.0"),
        ("pod_ips = \"127.0.0.1\"", "0.0.0.0"),
        ("pod_ips = \"127.0.0.1,::1\"", "0.0.0.0"),
        ("pod_ips = \"::1\"", "::"),
        ("pod_ips = \"::1,127.0.0.1\"", "::"),
        ("pod_ips = \"127.0.0.1\"\ntunnel = { address = \"::1\" }", "::"),
        ("pod_ips = \"127.0.0.1\"\ntunnel = { listen = \"127.0.0.1\" }", "127.0.0.1"),
        ("pod_ips = \"127.0.0.1\"\ntunnel = { listen = \"::\" }", "::"),
    ];
    let has_six = std::net::TcpListener::bind("[::1]:0").is_ok();
    for (text, expected) in cases {
        let config = Config::from_toml(&format!("[cluster]\nname = \"a\"\n[federation]\n{text}\n")).unwrap();
        let listen = config.federation.tunnel_listen();
        assert_eq!(listen, expected.parse::<IpAddr>().unwrap(), "{text}");
        let Some(address) = config.federation.tunnel_address().filter(|_| has_six) else { continue };
        let listener = std::net::TcpListener::bind((listen, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::net::TcpStream::connect((address, port)).unwrap_or_else(|error| panic!("{text}: {address}: {error}"));
    }
}
