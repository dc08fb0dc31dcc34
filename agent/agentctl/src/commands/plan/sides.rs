//! The objects that one cluster's agent would make, by the agent's own functions. Pure.

use k8s_openapi::api::core::v1::{PodSpec, Service};
use kube::ResourceExt;
use tributary::api::burst::Burst;
use tributary::api::minicluster::{BurstNetworkType, MiniCluster, MiniClusterStatus};
use tributary::api::names;
use tributary::api::peer::ImportPolicy;
use tributary::bursting::provider::admission::Admitted;
use tributary::bursting::provider::materialize::{self, LEAD_PORT};
use tributary::bursting::root::plan::{Given, PlanChange, plan};
use tributary::bursting::template::BurstTemplate;
use tributary::bursting::timing::Times;
use tributary::contract::{DesiredBurst, PeerName};
use tributary::flux::RankMap;
use tributary::render::{Context, Ends, HostedSide, Problems, Rendered, render, secret};

use super::report::{Object, Port};

/// Stands for what only the API server can say: UIDs, the certificate's digest.
const PLANNED: &str = "planned";

/// Objects, ports and pods of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Side {
    pub(super) objects: Vec<Object>,
    pub(super) ports: Vec<Port>,
    /// The pods of its Job.
    pub(super) pod: PodSpec,
}

/// The side of the root: everything but its Bursts.
pub(super) fn root(object: &MiniCluster, rendered: &Rendered) -> Side {
    let mut side = Side::default();
    if object.spec.flux.curve_cert_secret.is_none() {
        side.object(
            "Secret",
            secret::secret_name(&object.name_any(), &object.spec),
            "the certificate of the instance, made anew for it",
        );
    }
    side.instance(rendered);
    if object.spec.flux.bursting.network.kind == BurstNetworkType::Tunnel && !rendered.rank_map.bursts().is_empty() {
        let port = Port {
            service: "(the agent)".to_owned(),
            r#type: "tunnel".to_owned(),
            port: "UDP of the federation".to_owned(),
            node_port: None,
        };
        side.ports.push(port);
    }
    side
}

/// The Bursts that the root's agent would make, as they would be stored.
pub(super) fn bursts(object: &MiniCluster, rank_map: &RankMap) -> Vec<Burst> {
    let mut root = object.clone();
    root.metadata.uid.get_or_insert_with(|| PLANNED.to_owned());
    root.status = Some(MiniClusterStatus {
        incarnation: Some(PLANNED.to_owned()),
        rank_map: Some(rank_map.to_canonical()),
        rank_map_digest: Some(rank_map.digest().to_string()),
        credential_digest: Some(PLANNED.to_owned()),
        credential_secret: Some(secret::secret_name(&object.name_any(), &object.spec)),
        ..MiniClusterStatus::default()
    });
    let times = Times::default();
    let changes = plan(
        &root,
        &[],
        Given { lead: None, times: &times, arch: None, trace: None, refused: false, namespace_goes: false },
    );
    let burst = |change| match change {
        PlanChange::Apply(burst) => Some(*burst),
        PlanChange::Delete { .. } => None,
    };
    changes.into_iter().filter_map(burst).collect()
}

/// The side of a provider that took an offer.
///
/// # Errors
/// What cannot be rendered, or made of it.
pub(super) fn hosted(
    namespace: &str,
    root_cluster: &PeerName,
    desired: &DesiredBurst,
    admitted: &Admitted,
    import: Option<&ImportPolicy>,
) -> Result<(Side, Rendered), String> {
    let mut hosted = materialize::hosted_burst(namespace, root_cluster, &PLANNED.into(), desired, &admitted.template);
    hosted.spec.scale_up.clone_from(&admitted.scale_up);
    let materials = materialize::materials(&hosted, &[], true, import)?;
    let object = materialize::mini_cluster(&hosted, &admitted.template, &admitted.rank_map);
    let slot = &desired.slot;
    let context = Context {
        lease: hosted.spec.lease.duration(),
        ends: ends().filter(|_| desired.tunnel),
        hosted: Some(HostedSide {
            rank_map: admitted.rank_map.clone(),
            slot: slot.clone(),
            lead_service: names::lead(slot),
            lead_port: LEAD_PORT,
        }),
        ..Context::default()
    };
    let rendered = render(&object, &context).map_err(|problems: Problems| problems.to_string())?;
    let mut side = Side::default();
    side.object("HostedBurst", slot.clone(), "stands for the burst: deleting it evicts the burst");
    side.object("Secret", names::curve(slot), "the certificate of the instance, sent once the burst is accepted");
    if let Some(service) = &materials.service {
        side.service(service, "stands for the root's lead broker");
    }
    let via = if desired.tunnel {
        "to this cluster's agent: through the tunnel"
    } else {
        "to the root's lead broker, as its address is told"
    };
    side.object("EndpointSlice", materialize::slice_names(slot)[0].clone(), via);
    if import.is_some_and(|import| import.egress.is_some()) {
        side.object("NetworkPolicy", materialize::egress_name(slot), "where the pods may connect to");
    }
    if admitted.scale_up.as_ref().is_some_and(|scale_up| scale_up.provisioning_request.is_some()) {
        side.object(
            "ProvisioningRequest",
            names::scale_up(slot),
            "asks for nodes; the brokers follow once it is provisioned",
        );
        side.object("PodTemplate", names::scale_up(slot), "what their pods look like");
    }
    side.object("MiniCluster", slot.clone(), "the brokers; its objects follow");
    side.instance(&rendered);
    Ok((side, rendered))
}

/// Stands for the program of the tunnel's ends, which the agents of the image have: what is in it is not planned.
pub(super) fn ends() -> Option<Ends> {
    Ends::new(Vec::new())
}

/// What is sent to a peer whose policy is not known: as if it allowed everything.
///
/// # Errors
/// The template or the rank map cannot be read: a mistake of ours.
pub(super) fn unjudged(desired: &DesiredBurst) -> Result<Admitted, String> {
    Ok(Admitted {
        template: BurstTemplate::parse(&desired.template).map_err(|error| error.to_string())?,
        rank_map: RankMap::parse_canonical(&desired.rank_map).map_err(|error| error.to_string())?,
        scale_up: None,
    })
}

impl Side {
    pub(super) fn object(&mut self, kind: &str, name: String, purpose: impl Into<String>) {
        self.objects.push(Object { kind: kind.to_owned(), name, purpose: purpose.into() });
    }

    /// What a MiniCluster comes to.
    fn instance(&mut self, rendered: &Rendered) {
        // Taken apart, so that a new kind of object does not compile until it is planned.
        let Rendered {
            claims,
            persistent_volumes,
            config_map,
            ends,
            services,
            service_pod,
            job,
            restful_secret,
            boot: _,
            boot_digest: _,
            rank_map: _,
            unsupported: _,
        } = rendered;
        let files = config_map.data.as_ref().map_or(0, std::collections::BTreeMap::len);
        self.object(
            "ConfigMap",
            config_map.name_any(),
            format!("{files} files: scripts, hosts, resources, configuration"),
        );
        if ends.is_some() {
            self.object(
                "ConfigMap",
                names::ends(&job.name_any()),
                "the program that holds the brokers' connections of the tunnel, if the agent has it",
            );
        }
        for claim in claims {
            self.object("PersistentVolumeClaim", claim.name_any(), "a volume of spec.volumes");
        }
        for volume in persistent_volumes {
            self.object("PersistentVolume", volume.name_any(), "what is bound to that claim");
        }
        if let Some(secret) = restful_secret {
            self.object("Secret", secret.clone(), "user and token of the RESTful server");
        }
        for service in services {
            let purpose = match service.labels().get(tributary::api::labels::ROLE).map(String::as_str) {
                Some(tributary::api::labels::role::LEAD) => "bursts reach the lead broker by it",
                Some(tributary::api::labels::role::HEADLESS) => "names of the pods",
                Some(tributary::api::labels::role::RESTFUL) => "the RESTful server on the lead",
                _ => "ports of a container beside Flux",
            };
            self.service(service, purpose);
        }
        if let Some(pod) = service_pod {
            self.object("Pod", pod.name_any(), "containers of spec.services");
        }
        let spec = job.spec.clone().unwrap_or_default();
        let brokers = spec.parallelism.unwrap_or(1);
        let name = job.name_any();
        self.object("Job", name.clone(), "runs the brokers");
        let pods = if brokers > 1 { format!("{name}-[0-{}]", brokers - 1) } else { format!("{name}-0") };
        self.object("Pods", pods, "one broker each");
        self.pod = spec.template.spec.unwrap_or_default();
    }

    fn service(&mut self, service: &Service, purpose: &str) {
        let spec = service.spec.clone().unwrap_or_default();
        let name = service.name_any();
        let kind = match spec.type_.as_deref() {
            Some(kind) => kind,
            None if spec.cluster_ip.as_deref() == Some("None") => "headless",
            None => "ClusterIP",
        };
        self.object("Service", name.clone(), purpose);
        for port in spec.ports.unwrap_or_default() {
            let opened = matches!(kind, "NodePort" | "LoadBalancer");
            self.ports.push(Port {
                service: name.clone(),
                r#type: kind.to_owned(),
                port: format!("{}/{}", port.port, port.protocol.as_deref().unwrap_or("TCP")),
                node_port: opened.then(|| {
                    port.node_port.map_or_else(|| "chosen by the API server".to_owned(), |port| port.to_string())
                }),
            });
        }
    }
}
