//! The programs of a control plane and their command lines.
//!
//! Flags: <https://kubernetes.io/docs/reference/command-line-tools-reference/>. What deviates from a production cluster:
//! etcd does not sync to disk, nobody elects leaders, clients of the controllers are not throttled (a test would wait
//! for the throttle, not for what it tests), node addresses come from us, and everything listens on 127.0.0.1.

use std::path::Path;

use crate::{networks::Networks, ports::Held};

/// A program of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// etcd, one member.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kwok, in the place of the kubelets.
    Kwok,
}

impl Component {
    /// All, in the order they are started in.
    pub(crate) const ALL: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// The name of its program and, with `.log`, of its log file.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    /// The user that its requests are made as. etcd and the API server make none with a kubeconfig.
    pub(crate) fn user(self) -> Option<(&'static str, Option<&'static str>)> {
        match self {
            Self::Etcd | Self::ApiServer => None,
            Self::ControllerManager => Some(("system:kube-controller-manager", None)),
            Self::Scheduler => Some(("system:kube-scheduler", None)),
            Self::Kwok => Some(("kwok", Some("system:masters"))),
        }
    }
}

/// The ports of one control plane, on 127.0.0.1.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) api_server: u16,
    pub(crate) controller_manager: u16,
    pub(crate) scheduler: u16,
    pub(crate) kwok: u16,
}

impl Ports {
    /// Free ones, and what holds them until the component is started.
    pub(crate) fn find() -> std::io::Result<(Self, Vec<(Component, Held)>)> {
        let mut held = Vec::new();
        let mut find = |component| {
            let port = Held::find()?;
            let number = port.number();
            held.push((component, port));
            Ok::<_, std::io::Error>(number)
        };
        let ports = Self {
            etcd: find(Component::Etcd)?,
            etcd_peer: find(Component::Etcd)?,
            api_server: find(Component::ApiServer)?,
            controller_manager: find(Component::ControllerManager)?,
            scheduler: find(Component::Scheduler)?,
            kwok: find(Component::Kwok)?,
        };
        Ok((ports, held))
    }
}

/// The arguments of `component` in a cluster whose files are in `directory`.
pub(crate) fn arguments(component: Component, directory: &Path, ports: &Ports, networks: Networks) -> Vec<String> {
    let path = |name: &str| directory.join(name).display().to_string();
    let flag = |name: &str, value: &str| format!("--{name}={value}");
    let local = |port: u16| format!("http://127.0.0.1:{port}");
    let kubeconfig = path(&kubeconfig_name(component));
    match component {
        Component::Etcd => vec![
            flag("data-dir", &path("etcd")),
            flag("listen-client-urls", &local(ports.etcd)),
            flag("advertise-client-urls", &local(ports.etcd)),
            flag("listen-peer-urls", &local(ports.etcd_peer)),
            flag("initial-advertise-peer-urls", &local(ports.etcd_peer)),
            flag("initial-cluster", &format!("default={}", local(ports.etcd_peer))),
            flag("log-level", "warn"),
            // A member that is alone need not wait a second for other candidates.
            flag("heartbeat-interval", "50"),
            flag("election-timeout", "500"),
            "--unsafe-no-fsync".to_owned(),
        ],
        Component::ApiServer => vec![
            flag("etcd-servers", &local(ports.etcd)),
            flag("bind-address", "127.0.0.1"),
            // Else it looks for an address of this machine, and does not start where there is no network.
            flag("advertise-address", "127.0.0.1"),
            flag("secure-port", &ports.api_server.to_string()),
            // Nothing here could route to the `kubernetes` Service.
            flag("endpoint-reconciler-type", "none"),
            flag("cert-dir", &path("pki")),
            flag("tls-cert-file", &path("pki/apiserver.crt")),
            flag("tls-private-key-file", &path("pki/apiserver.key")),
            flag("client-ca-file", &path("pki/ca.crt")),
            flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            flag("service-account-key-file", &path("pki/sa.pub")),
            flag("service-account-signing-key-file", &path("pki/sa.key")),
            flag("service-cluster-ip-range", &networks.services()),
            flag("authorization-mode", "RBAC"),
            flag("allow-privileged", "true"),
            // To kwok, in the place of the kubelets: see the nodes.
            flag("kubelet-preferred-address-types", "InternalDNS"),
            flag("audit-policy-file", &path("audit-policy.yaml")),
            flag("audit-log-path", &path(AUDIT_LOG)),
            // Not rotated: a reader's place in the file stays valid. Blocking: what was answered is in the file.
            flag("audit-log-maxsize", "0"),
            flag("audit-log-mode", "blocking"),
            flag("profiling", "false"),
        ],
        Component::ControllerManager => vec![
            flag("kubeconfig", &kubeconfig),
            flag("bind-address", "127.0.0.1"),
            flag("secure-port", &ports.controller_manager.to_string()),
            flag("leader-elect", "false"),
            flag("use-service-account-credentials", "true"),
            flag("service-account-private-key-file", &path("pki/sa.key")),
            flag("root-ca-file", &path("pki/ca.crt")),
            flag("cluster-signing-cert-file", &path("pki/ca.crt")),
            flag("cluster-signing-key-file", &path("pki/ca.key")),
            flag("allocate-node-cidrs", "false"),
            // A machine that compiles beside this keeps kwok from its Leases for longer than a kubelet may be silent: without
            // this, all nodes of a cluster would be lost now and then.
            flag("node-monitor-grace-period", "150s"),
            flag("kube-api-qps", "1000"),
            flag("kube-api-burst", "2000"),
            flag("profiling", "false"),
        ],
        Component::Scheduler => vec![
            flag("kubeconfig", &kubeconfig),
            flag("bind-address", "127.0.0.1"),
            flag("secure-port", &ports.scheduler.to_string()),
            flag("leader-elect", "false"),
            flag("kube-api-qps", "1000"),
            flag("kube-api-burst", "2000"),
            flag("profiling", "false"),
        ],
        Component::Kwok => vec![
            flag("kubeconfig", &kubeconfig),
            flag("config", &path("kwok-stages.yaml")),
            flag("manage-all-nodes", "true"),
            flag("node-lease-duration-seconds", "40"),
            flag("cidr", &networks.pods()),
            flag("server-address", &format!("127.0.0.1:{}", ports.kwok)),
            flag("tls-cert-file", &path("pki/apiserver.crt")),
            flag("tls-private-key-file", &path("pki/apiserver.key")),
        ],
    }
}

/// The file, inside a cluster's directory, that the API server's audit events are in.
pub(crate) const AUDIT_LOG: &str = "audit.log";

/// The kubeconfig that a component uses, inside the cluster's directory.
pub(crate) fn kubeconfig_name(component: Component) -> String {
    format!("kubeconfig-{}", component.program())
}
