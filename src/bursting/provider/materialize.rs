//! The objects of a hosted burst. Pure: what is wanted, not what is done.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use tributary_api::duration::Lasting;
use tributary_api::hosted_burst::{HostedBurst, HostedBurstSpec, RootReference};
use tributary_api::labels::{self, role};
use tributary_api::minicluster::{
    Bursting, DEFAULT_BROKER_PORT, DEFAULT_DEADLINE_SECONDS, FluxSpec, LeadBroker, MiniCluster, MiniClusterSpec,
    Network, PodSpec,
};
use tributary_api::names;
use tributary_api::peer::ImportPolicy;
use tributary_cluster::apply::controller_reference;
use tributary_config::BurstingConfig;
use tributary_contract::{ClusterUid, Credential, DesiredBurst, PeerName};
use tributary_flux::RankMap;
use tributary_render::{Context, HostedSide, Rendered};
use tributary_telemetry::TraceContext;

use super::egress::{self, Egress};
use super::provisioning;
use crate::spans;
use crate::template::{BurstTemplate, FluxTemplate, LeadTemplate, PodTemplate};

/// Key of the certificate in its Secret.
const CURVE_CERT: &str = "curve.cert";
/// Name of the port of the lead Service.
const PORT_NAME: &str = "flux";
/// The port that brokers of a burst connect to.
pub const LEAD_PORT: u16 = DEFAULT_BROKER_PORT as u16;

/// The HostedBurst of an admitted offer, in `namespace`.
pub fn hosted_burst(
    namespace: &str,
    peer: &PeerName,
    root_cluster: &ClusterUid,
    desired: &DesiredBurst,
    template: &BurstTemplate,
) -> HostedBurst {
    let spec = HostedBurstSpec {
        peer: peer.to_string(),
        root_cluster_uid: root_cluster.to_string(),
        root: RootReference {
            namespace: desired.root.namespace.clone(),
            name: desired.root.name.clone(),
            uid: desired.root.uid.clone(),
            incarnation: desired.root.incarnation.clone(),
        },
        burst_uid: desired.uid.to_string(),
        slot: desired.slot.clone(),
        max_size: desired.max_size,
        cores: desired.cores,
        gpus: desired.gpus,
        rank_map: desired.rank_map.clone(),
        rank_map_digest: desired.rank_map_digest.clone(),
        credential_digest: desired.credential_digest.clone(),
        whole: desired.whole,
        flux_version: desired.flux_version.clone(),
        user: desired.user.clone().filter(|user| is_label_value(user)),
        pod_labels: true,
        template: template.to_json(),
        ..HostedBurstSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(desired.slot.clone()),
        namespace: Some(namespace.to_owned()),
        labels: Some(identity(&spec)),
        ..ObjectMeta::default()
    };
    updated(&HostedBurst { metadata, spec, status: None }, desired)
}

/// The same HostedBurst with what may change while it runs: size (within what was declared), lead address, times.
/// Everything else was admitted and stays as it is until another incarnation.
pub(crate) fn updated(hosted: &HostedBurst, desired: &DesiredBurst) -> HostedBurst {
    let frozen = &hosted.spec;
    let spec = HostedBurstSpec {
        generation: i64::try_from(desired.generation).unwrap_or(i64::MAX),
        size: desired.size.clamp(1, frozen.max_size.max(1)),
        // A tunnel makes no use of it; and once it was applied, the API server does not let go of it (it becomes null).
        lead: desired.lead.clone().or_else(|| frozen.lead.clone().filter(|_| desired.tunnel)),
        tunnel: desired.tunnel,
        lease: desired.lease_seconds.min(BurstingConfig::LONGEST).into(),
        drain: desired.drain_seconds.min(BurstingConfig::LONGEST).into(),
        warm: desired.warm,
        ..frozen.clone()
    };
    let metadata = ObjectMeta {
        name: hosted.metadata.name.clone(),
        namespace: hosted.metadata.namespace.clone(),
        labels: Some(identity(&spec)),
        annotations: traceparent(desired.trace.as_deref().and_then(TraceContext::parse)),
        ..ObjectMeta::default()
    };
    HostedBurst { metadata, spec, status: None }
}

fn traceparent(trace: Option<TraceContext>) -> Option<BTreeMap<String, String>> {
    trace.map(|trace| [(labels::TRACEPARENT.to_owned(), trace.to_string())].into())
}

/// Identity of a hosted burst. Another key under the same name is a replacement: drained, deleted, then made anew.
pub(crate) fn key(spec: &HostedBurstSpec) -> [&str; 4] {
    [&spec.root_cluster_uid, &spec.root.uid, &spec.burst_uid, &spec.root.incarnation]
}

/// Everything made for a hosted burst besides its Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Materials {
    /// Stands for the lead broker, if that is elsewhere.
    pub service: Option<Service>,
    /// Where it leads to, by address family; empty while that is unknown. `None`: they stay as they are.
    pub slices: Option<Vec<EndpointSlice>>,
    /// Where the brokers may connect to.
    pub egress: Egress,
    /// The brokers. Not made before the certificate is there.
    pub mini_cluster: Option<MiniCluster>,
}

impl Materials {
    /// Leaves the way to the lead as it is.
    pub(super) fn leave_the_way(&mut self) {
        (self.slices, self.egress) = (None, Egress::Leave);
    }
}

/// The objects of `hosted`, which must be one that the API server has answered with.
///
/// # Errors
/// `hosted` is not what admission lets through: somebody edited it.
pub fn materials(
    hosted: &HostedBurst,
    lead: &[SocketAddr],
    with_brokers: bool,
    import: Option<&ImportPolicy>,
) -> Result<Materials, String> {
    let template = BurstTemplate::parse(&hosted.spec.template).map_err(|error| error.to_string())?;
    let rank_map = RankMap::parse_canonical(&hosted.spec.rank_map).map_err(|error| error.to_string())?;
    let family = |v6: bool| lead.iter().copied().filter(|end| end.is_ipv6() == v6).collect::<Vec<_>>();
    let slices = [(false, family(false)), (true, family(true))];
    Ok(Materials {
        service: (!hosted.spec.whole).then(|| service(hosted)),
        slices: Some(
            slices
                .into_iter()
                .filter_map(|(v6, ends)| Some(endpoint_slice(hosted, v6, &ends, ends.first()?.port())))
                .collect(),
        ),
        egress: match import.map(|import| import.egress.as_ref()) {
            // The peer was removed: its bursts end as they are.
            None => Egress::Leave,
            Some(None) => Egress::Open,
            Some(Some(policy)) => {
                let slot = &hosted.spec.slot;
                let metadata = metadata(hosted, egress_name(slot), Some(role::EGRESS));
                let port = lead.first().map_or(LEAD_PORT, SocketAddr::port);
                let lead: Vec<IpAddr> = lead.iter().map(SocketAddr::ip).collect();
                Egress::Only(Box::new(egress::network_policy(metadata, slot, (&lead, port), policy)))
            }
        },
        mini_cluster: with_brokers.then(|| mini_cluster(hosted, &template, &rank_map)),
    })
}

/// The Secret with the certificate.
pub(crate) fn secret(hosted: &HostedBurst, credential: &Credential) -> Secret {
    let data = [(CURVE_CERT.to_owned(), ByteString(credential.expose().as_bytes().to_vec()))];
    Secret {
        metadata: metadata(hosted, names::curve(&hosted.spec.slot), Some(role::CURVE)),
        data: Some(data.into()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

/// The certificate of such a Secret.
pub(crate) fn certificate(secret: Secret) -> Option<String> {
    let text = secret.data?.remove(CURVE_CERT)?;
    String::from_utf8(text.0).ok()
}

/// A Service without selector: broker.toml names it, and it goes wherever the EndpointSlices say.
fn service(hosted: &HostedBurst) -> Service {
    Service {
        metadata: metadata(hosted, names::lead(&hosted.spec.slot), Some(role::LEAD_PROXY)),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            // The lead's address may be of either family.
            ip_family_policy: Some("PreferDualStack".into()),
            ports: Some(vec![ServicePort {
                name: Some(PORT_NAME.into()),
                port: LEAD_PORT.into(),
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Name of the NetworkPolicy of a slot.
pub fn egress_name(slot: &str) -> String {
    format!("{slot}-egress")
}

/// Names of the EndpointSlices of a slot: IPv4, IPv6.
pub fn slice_names(slot: &str) -> [String; 2] {
    ["ipv4", "ipv6"].map(|family| format!("{}-{family}", names::lead(slot)))
}

fn endpoint_slice(hosted: &HostedBurst, v6: bool, ends: &[SocketAddr], port: u16) -> EndpointSlice {
    let service = names::lead(&hosted.spec.slot);
    let [ipv4, ipv6] = slice_names(&hosted.spec.slot);
    let mut metadata = metadata(hosted, if v6 { ipv6 } else { ipv4 }, Some(role::LEAD_PROXY));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(labels::kubernetes::SERVICE_NAME.into(), service);
    labels.insert(labels::kubernetes::ENDPOINT_SLICE_MANAGED_BY.into(), labels::TRIBUTARY.into());
    EndpointSlice {
        metadata,
        address_type: if v6 { "IPv6" } else { "IPv4" }.into(),
        // Of the addresses of one endpoint, Kubernetes uses the first alone.
        endpoints: ends
            .iter()
            .map(|end| Endpoint {
                addresses: vec![end.ip().to_string()],
                conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
                ..Endpoint::default()
            })
            .collect(),
        ports: Some(vec![EndpointPort {
            name: Some(PORT_NAME.into()),
            port: Some(port.into()),
            protocol: Some("TCP".into()),
            ..EndpointPort::default()
        }]),
    }
}

/// The hosted MiniCluster: brokers of one slot, and nothing of the root's that only its lead needs.
///
/// Defaults of the API are written out, so that what the API server stores is what was applied.
pub fn mini_cluster(hosted: &HostedBurst, template: &BurstTemplate, rank_map: &RankMap) -> MiniCluster {
    let BurstTemplate { containers, flux, logging, pod, disable_affinity, share_process_namespace, lead: _ } =
        template.clone();
    let HostedBurstSpec { slot, size, max_size, drain, whole, .. } = &hosted.spec;
    let annotations = traceparent(spans::of_hosted(hosted));
    let metadata = ObjectMeta { annotations, ..metadata(hosted, slot.clone(), None) };
    if *whole {
        let mut spec = whole_spec(template.clone(), *size, *drain);
        spec.pod.labels.extend(pod_labels(&hosted.spec));
        spec.pod.annotations.extend(provisioning::annotations(&hosted.spec));
        spec.job_labels = job_labels(&hosted.spec);
        return MiniCluster { metadata, spec, status: None };
    }
    let count = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let lead = LeadBroker {
        address: Some(names::lead(slot)),
        name: Some(rank_map.root().name.clone()),
        size: Some(count(rank_map.root().max_size)),
        port: Some(DEFAULT_BROKER_PORT),
        hostlist: None,
    };
    let mut spec = MiniClusterSpec {
        containers,
        network: Network { headless_name: None, disable_affinity },
        flux: flux_spec(flux, Some(names::curve(slot)), lead, count(drain.unsigned())),
        logging,
        share_process_namespace,
        size: Some(count(*size)),
        max_size: Some(count(*max_size)),
        tasks: Some(1),
        deadline_seconds: Some(DEFAULT_DEADLINE_SECONDS),
        pod: pod_spec(pod),
        ..MiniClusterSpec::default()
    };
    spec.pod.labels.extend(pod_labels(&hosted.spec));
    spec.pod.annotations.extend(provisioning::annotations(&hosted.spec));
    spec.job_labels = job_labels(&hosted.spec);
    MiniCluster { metadata, spec, status: None }
}

/// Labels of its Job: the queue that the import policy names, and nothing of the template.
fn job_labels(spec: &HostedBurstSpec) -> BTreeMap<String, String> {
    spec.queue.iter().map(|queue| (labels::KUEUE_QUEUE.to_owned(), queue.name.clone())).collect()
}

/// Labels of its pods that say whose they are: what costs of pods are added up by.
fn pod_labels(spec: &HostedBurstSpec) -> BTreeMap<String, String> {
    let whose = [labels::ROOT_CLUSTER, labels::ROOT_NAMESPACE, labels::ROOT_NAME, labels::USER];
    let all = identity(spec).into_iter().filter(|(key, _)| whose.contains(&key.as_str()));
    all.filter(|_| spec.pod_labels).collect()
}

/// What the reconciler makes of a hosted burst, with the `settings` of this agent.
///
/// # Errors
/// What of it cannot be carried out.
pub fn rendered(
    hosted: &HostedBurst,
    template: &BurstTemplate,
    rank_map: &RankMap,
    settings: &Context,
) -> Result<Rendered, String> {
    let slot = hosted.spec.slot.clone();
    let mini_cluster = mini_cluster(hosted, template, rank_map);
    let lead_service = names::lead(&slot);
    let side = HostedSide { rank_map: rank_map.clone(), slot, lead_service, lead_port: LEAD_PORT };
    let lease = hosted.spec.lease.duration();
    let ends = settings.ends.clone().filter(|_| hosted.spec.tunnel);
    let context = Context { hosted: (!hosted.spec.whole).then_some(side), lease, ends, ..settings.clone() };
    tributary_render::render(&mini_cluster, &context).map_err(|problems| problems.to_string())
}

/// The MiniCluster of a whole instance: a root like any other, with a lead broker and a certificate of its own.
pub(crate) fn whole_spec(template: BurstTemplate, size: u32, drain: Lasting) -> MiniClusterSpec {
    let BurstTemplate { containers, flux, logging, pod, disable_affinity, share_process_namespace, lead } = template;
    let LeadTemplate {
        tasks,
        launcher,
        deadline_seconds,
        backoff_limit,
        submit_command,
        option_flags,
        complete_workers,
    } = lead.unwrap_or_default();
    let count = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let flux = flux_spec(flux, None, LeadBroker::default(), count(drain.unsigned()));
    MiniClusterSpec {
        containers,
        network: Network { headless_name: None, disable_affinity },
        flux: FluxSpec { submit_command, option_flags, complete_workers, ..flux },
        logging,
        share_process_namespace,
        size: Some(count(size)),
        tasks: Some(tasks.unwrap_or(1)),
        launcher,
        backoff_limit,
        deadline_seconds: Some(deadline_seconds.unwrap_or(DEFAULT_DEADLINE_SECONDS)),
        pod: pod_spec(pod),
        ..MiniClusterSpec::default()
    }
}

fn flux_spec(
    flux: FluxTemplate,
    curve_cert_secret: Option<String>,
    lead_broker: LeadBroker,
    drain_seconds: i32,
) -> FluxSpec {
    let FluxTemplate {
        container,
        arch,
        wrap,
        connect_timeout,
        disable_socket,
        topology,
        no_wait_socket,
        log_level,
        scheduler,
        munge_secret,
        environment,
    } = flux;
    let default = FluxSpec::default();
    FluxSpec {
        connect_timeout: Some(
            connect_timeout.unwrap_or_else(|| tributary_api::minicluster::DEFAULT_CONNECT_TIMEOUT.into()),
        ),
        log_level: Some(log_level.unwrap_or(tributary_api::minicluster::DEFAULT_LOG_LEVEL)),
        container,
        arch,
        wrap,
        disable_socket,
        topology,
        no_wait_socket,
        scheduler,
        munge_secret,
        environment,
        curve_cert_secret,
        drain_seconds: Some(drain_seconds),
        bursting: Bursting { lead_broker, ..Bursting::default() },
        ..default
    }
}

/// The token is never mounted, whatever the template says.
fn pod_spec(pod: PodTemplate) -> PodSpec {
    let PodTemplate {
        service_account_name,
        runtime_class_name,
        priority_class_name,
        scheduler_name,
        node_selector,
        node_affinity,
        tolerations,
        dns_policy,
        host_ipc,
        host_pid,
        resources,
        security_context,
    } = pod;
    PodSpec {
        service_account_name,
        automount_service_account_token: false,
        runtime_class_name,
        priority_class_name,
        scheduler_name,
        node_selector,
        node_affinity,
        tolerations,
        dns_policy,
        host_ipc,
        host_pid,
        resources,
        security_context,
        ..PodSpec::default()
    }
}

pub(super) fn metadata(hosted: &HostedBurst, name: String, role: Option<&str>) -> ObjectMeta {
    let mut labels = identity(&hosted.spec);
    labels.extend(role.map(|role| (labels::ROLE.to_owned(), role.to_owned())));
    let owner: Option<OwnerReference> = controller_reference(hosted);
    ObjectMeta {
        name: Some(name),
        namespace: hosted.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Labels that say whose burst it is. What does not fit into a label (RFC 1123, 63 characters) is left out: labels are
/// for people and selectors, the spec of the HostedBurst is what counts.
fn identity(spec: &HostedBurstSpec) -> BTreeMap<String, String> {
    let all = [
        (labels::kubernetes::MANAGED_BY, labels::TRIBUTARY),
        (labels::SLOT, spec.slot.as_str()),
        (labels::ROOT_CLUSTER, spec.peer.as_str()),
        (labels::ROOT_CLUSTER_UID, spec.root_cluster_uid.as_str()),
        (labels::ROOT_NAMESPACE, spec.root.namespace.as_str()),
        (labels::ROOT_NAME, spec.root.name.as_str()),
        (labels::ROOT_UID, spec.root.uid.as_str()),
        (labels::BURST_UID, spec.burst_uid.as_str()),
        (labels::USER, spec.user.as_deref().unwrap_or_default()),
    ];
    all.into_iter().filter(|(_, value)| is_label_value(value)).map(|(key, value)| (key.into(), value.into())).collect()
}

fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tributary_api::hosted_burst::HostedQueue;
    use tributary_api::peer::EgressPolicy;

    use super::*;
    use crate::provider::admission::tests::offer;

    fn hosted() -> HostedBurst {
        let desired = DesiredBurst {
            lead: Some(tributary_contract::LeadAddress { address: "192.0.2.7".into(), port: 30050 }),
            template: json!({"containers": [{"image": "app"}], "pod": {"serviceAccountName": "guests"}}),
            lease_seconds: 999_999,
            ..offer()
        };
        let template = BurstTemplate::parse(&desired.template).unwrap();
        let mut hosted = hosted_burst("flux", &"east".into(), &"east-uid".into(), &desired, &template);
        hosted.metadata.uid = Some("hosted-uid".into());
        hosted
    }

    /// The danger: an upgraded agent changes the pods of what runs already.
    #[test]
    fn pods_say_whose_they_are_unless_an_older_agent_took_them() {
        let desired = DesiredBurst { user: Some("ada".into()), ..offer() };
        let template = BurstTemplate::parse(&desired.template).unwrap();
        let hosted = hosted_burst("hpc", &"east".into(), &"uid".into(), &desired, &template);
        let rank_map = RankMap::parse_canonical(&desired.rank_map).unwrap();
        let labels_of = |hosted: &HostedBurst| mini_cluster(hosted, &template, &rank_map).spec.pod.labels;
        let given = labels_of(&hosted);
        assert_eq!(given.keys().collect::<Vec<_>>().len(), 4, "{given:?}");
        assert_eq!((given[labels::ROOT_CLUSTER].as_str(), given[labels::USER].as_str()), ("east", "ada"));
        let mut older = hosted.clone();
        (older.spec.pod_labels, older.spec.user) = (false, None);
        let older = updated(&older, &desired);
        assert!(labels_of(&older).is_empty(), "{:?}", labels_of(&older));
        let strange = DesiredBurst { user: Some("a b".into()), ..desired };
        let strange = hosted_burst("hpc", &"east".into(), &"uid".into(), &strange, &template);
        assert_eq!(labels_of(&strange).get(labels::USER), None, "what is no value of a label is left out");
    }

    #[test]
    fn objects_of_a_hosted_burst() {
        let hosted = hosted();
        let lead = ["192.0.2.7:30050", "[2001:db8::7]:30050"].map(|end| end.parse().unwrap());
        let import = ImportPolicy {
            egress: Some(EgressPolicy { allow: vec!["198.51.100.0/24".into()] }),
            ..ImportPolicy::default()
        };
        let made = materials(&hosted, &lead, true, Some(&import)).unwrap();
        insta::assert_json_snapshot!("hosted_burst", hosted);
        insta::assert_json_snapshot!("service", made.service);
        insta::assert_json_snapshot!("endpoint_slices", made.slices);
        insta::assert_json_snapshot!("mini_cluster", made.mini_cluster);
        let Egress::Only(policy) = made.egress else { panic!("{:?}", made.egress) };
        insta::assert_json_snapshot!("network_policy", policy);
        let secret = secret(&hosted, &Credential::new("text".into()));
        assert_eq!(secret.metadata.name.as_deref(), Some("lake-burst-0-curve"));
        assert_eq!(secret.metadata.owner_references.unwrap()[0].uid, "hosted-uid");
    }

    /// The danger: a queue of the peer's choice, or none. Whatever comes with a root, the Job has the label of the policy.
    #[test]
    fn the_job_of_a_queued_burst_has_the_queue_of_the_policy() {
        let queued = |queue: Option<&str>, whole: bool| {
            let mut hosted = hosted();
            hosted.spec.whole = whole;
            hosted.spec.queue = queue.map(|name| HostedQueue { name: name.into(), wait: None });
            let template = BurstTemplate::parse(&hosted.spec.template).unwrap();
            let rank_map = RankMap::parse_canonical(&hosted.spec.rank_map).unwrap();
            rendered(&hosted, &template, &rank_map, &Context::default()).unwrap().job.metadata.labels.unwrap()
        };
        insta::assert_json_snapshot!("labels_of_a_queued_job", queued(Some("guests"), false));
        assert_eq!(queued(Some("guests"), true)[labels::KUEUE_QUEUE], "guests");
        assert!(!queued(None, false).keys().any(|key| key.starts_with(labels::KUEUE)));
    }

    #[test]
    fn without_certificate_and_address_there_are_no_brokers_and_no_endpoints() {
        let made = materials(&hosted(), &[], false, Some(&ImportPolicy::default())).unwrap();
        assert_eq!((made.slices, made.mini_cluster, made.egress), (Some(Vec::new()), None, Egress::Open));
        assert_eq!(materials(&hosted(), &[], false, None).unwrap().egress, Egress::Leave);
    }

    #[test]
    fn a_trace_is_handed_on_and_anything_else_is_dropped() {
        let parent = TraceContext::about(&["burst"]);
        let mut before = hosted();
        for (said, kept) in [(parent.to_string(), Some(parent)), ("x".repeat(100_000), None)] {
            let metadata = updated(&before, &DesiredBurst { trace: Some(said), ..offer() }).metadata;
            assert_eq!(metadata.annotations, traceparent(kept));
            before.metadata.annotations = metadata.annotations;
            let made = materials(&before, &[], true, None).unwrap().mini_cluster.unwrap();
            let part = kept.map(|parent| parent.child(&["hosted", "hosted-uid"]));
            assert_eq!(tributary_cluster::traced::annotated(&made), part);
        }
    }

    /// What differs would be written again right after it was created.
    #[test]
    fn what_was_just_admitted_is_as_its_root_wants_it() {
        let desired = DesiredBurst { trace: Some(TraceContext::about(&["burst"]).to_string()), ..offer() };
        let template = BurstTemplate::parse(&desired.template).unwrap();
        let made = hosted_burst("flux", &"east".into(), &"east-uid".into(), &desired, &template);
        let stored: HostedBurst = serde_json::from_value(json!(made)).unwrap();
        assert_eq!(json!(updated(&stored, &desired)), json!(made));
    }

    #[test]
    fn what_was_admitted_is_frozen_and_the_rest_follows_the_root() {
        let before = hosted();
        let desired = DesiredBurst {
            generation: 7,
            size: 99,
            max_size: 99,
            cores: 64,
            template: json!({"containers": [{"image": "evil"}]}),
            rank_map: "other".into(),
            credential_digest: "other".into(),
            lead: None,
            ..offer()
        };
        let after = updated(&before, &desired);
        assert_eq!((after.spec.size, after.spec.generation, after.spec.lead.clone()), (3, 7, None));
        let live = |spec: &HostedBurstSpec| HostedBurstSpec {
            generation: 0,
            size: 0,
            lead: None,
            lease: 0.into(),
            drain: 0.into(),
            ..spec.clone()
        };
        assert_eq!(live(&after.spec), live(&before.spec));
        assert_eq!(before.spec.lease, BurstingConfig::LONGEST.into());
    }
}
