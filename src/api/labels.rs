//! Labels, annotations, field managers and condition types, in one place.

/// Upstream's labels: users, autoscalers and scripts select by them.
pub mod upstream {
    /// On every pod, with the value [`APP_VALUE`].
    pub const APP: &str = "app";
    /// The value of [`APP`].
    pub const APP_VALUE: &str = "flux-operator";
    /// The MiniCluster's name, on every pod.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// The namespace, on every pod.
    pub const NAMESPACE: &str = "namespace";
    /// The MiniCluster's name, on the Job's pods: what the scale subresource selects by.
    pub const HPA_SELECTOR: &str = "hpa-selector";
    /// The pod's index in the Job.
    pub const JOB_INDEX: &str = "job-index";
    /// The Job's name, on its pods (Kubernetes) and on the service pod (upstream).
    pub const JOB_NAME: &str = "job-name";
    /// The Lease that upstream's operator holds while it runs.
    pub const LEASE: &str = "14dde902.flux-framework.org";
}

/// Kubernetes' own labels that are read or written.
/// <https://kubernetes.io/docs/reference/labels-annotations-taints/>
pub mod kubernetes {
    /// The pod's index in an indexed Job, set by Kubernetes.
    pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
    /// The Job's name on its pods, set by Kubernetes.
    pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
    /// Who manages the object; ours have [`super::TRIBUTARY`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// The Service an EndpointSlice belongs to.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// Who manages an EndpointSlice; ours have [`super::TRIBUTARY`].
    pub const ENDPOINT_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
    /// The name of a namespace, on itself.
    pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
    /// Host name of a node.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// `spec.managedBy` of a Job that no other controller runs.
    pub const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";
    /// Zone of a node.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
}

/// Prefix of the labels by which Kueue finds the queue and the priority of a Job:
/// <https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations/>.
pub const KUEUE: &str = "kueue.x-k8s.io/";
/// Label of a Job: the LocalQueue that it waits in.
pub const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Annotation with the fewest pods of a Job that Kueue may admit.
pub const KUEUE_MIN_PARALLELISM: &str = "kueue.x-k8s.io/job-min-parallelism";

/// Annotation of a Job that may have another size while Kueue has admitted it, if it says `true`.
pub const KUEUE_ELASTIC: &str = "kueue.x-k8s.io/elastic-job";

/// The value of [`kubernetes::MANAGED_BY`].
pub const TRIBUTARY: &str = "tributary";

/// Annotation: digest of what only a new Job can change.
pub const REVISION: &str = "tributary.dev/revision";
/// Annotation of the Job: its frozen boot files, packed (see `render::Boot`).
pub const BOOT: &str = "tributary.dev/boot";
/// Annotation of the Job: digest of its boot files.
pub const BOOT_DIGEST: &str = "tributary.dev/boot-digest";
/// Annotation of the Job: digest of the ConfigMap's data among them.
pub const FILES_DIGEST: &str = "tributary.dev/files-digest";
/// Annotation of the Job and of the Secret: digest of the certificate.
pub const CREDENTIAL_DIGEST: &str = "tributary.dev/credential-digest";
/// Annotation: digest of the rank map.
pub const RANK_MAP_DIGEST: &str = "tributary.dev/rank-map-digest";
/// Annotation: the value of `suspend` that was last applied to the Job by us.
pub const APPLIED_SUSPEND: &str = "tributary.dev/applied-suspend";
/// Annotation of the Job: the labels of `spec.jobLabels` that we put on it last, by their keys.
pub const APPLIED_JOB_LABELS: &str = "tributary.dev/applied-job-labels";
/// Annotation that a person sets on a MiniCluster, to any new value: start the instance anew. The Job bears the value it
/// was made with.
pub const RESTART: &str = "tributary.dev/restart";
/// Annotation: the trace that a change belongs to, in the form of the header `traceparent` of W3C Trace Context. A person, or
/// a pipeline, may set it on a MiniCluster; on Bursts and hosted objects it is ours.
pub const TRACEPARENT: &str = "tributary.dev/traceparent";
/// Annotation of the leader's Lease: the last renewal of the leader before, until this one has dated every loss of
/// contact since then (RFC 3339).
pub const TERM_BEFORE: &str = "tributary.dev/term-before";
/// Annotation of the leader's Lease: the namespaces whose objects it works on, separated by commas, or `*`.
pub const WATCHED_NAMESPACES: &str = "tributary.dev/watched-namespaces";
/// Label: the MiniCluster an object was made for.
pub const MINICLUSTER: &str = "tributary.dev/minicluster";
/// Label: the UID of that MiniCluster, on what no MiniCluster can own.
pub const MINICLUSTER_UID: &str = "tributary.dev/minicluster-uid";
/// Label: the slot a Burst or a hosted object stands for.
pub const SLOT: &str = "tributary.dev/slot";
/// Label: the role of an object that shares its kind with others (see [`role`]).
pub const ROLE: &str = "tributary.dev/role";
/// Label: name of the cluster a hosted object's root lives in.
pub const ROOT_CLUSTER: &str = "tributary.dev/root-cluster";
/// Label: UID of the cluster a hosted object's root lives in.
pub const ROOT_CLUSTER_UID: &str = "tributary.dev/root-cluster-uid";
/// Label: name of the root MiniCluster.
pub const ROOT_NAME: &str = "tributary.dev/root-name";
/// Label: namespace of the root MiniCluster.
pub const ROOT_NAMESPACE: &str = "tributary.dev/root-namespace";
/// Label: UID of the root MiniCluster.
pub const ROOT_UID: &str = "tributary.dev/root-uid";
/// Label: UID of the Burst.
pub const BURST_UID: &str = "tributary.dev/burst-uid";
/// Annotation that a person sets on a Burst: release it and place it nowhere, until the annotation is gone.
pub const CANCEL: &str = "tributary.dev/cancel";
/// Annotation that a person sets on a Burst, to any new value: offer it again to peers that have evicted it.
pub const RETRY: &str = "tributary.dev/retry";
/// Annotation that a person sets on a Burst whose peer is lost: its slot is free, though the peer has not confirmed that
/// nothing is left there. A [`SlotRelease`](crate::burst::SlotRelease) in JSON; `agentctl burst release` writes it.
pub const RELEASE: &str = "tributary.dev/release";
/// Annotation of the pods of a FluxJob's MiniCluster: the resource that the FluxJob calls GPUs, where its name does not say so.
pub const GPU_RESOURCE: &str = "tributary.dev/gpu-resource";
/// Annotation of a MiniCluster that was made for a split FluxJob: who threw the other part of it out before, as a list of what
/// `refusals` of a Burst's status are, in JSON. Its bursts are not offered to them.
pub const EVICTIONS: &str = "tributary.dev/evictions";
/// Label of a MiniCluster: name of the FluxJob it was made for.
pub const FLUX_JOB: &str = "tributary.dev/fluxjob";
/// Label that a person, or an admission policy, sets on a MiniCluster or a FluxJob: who uses it, for the records of what was
/// used. Its Bursts and hosted objects have it as well. Nothing is decided by it.
pub const USER: &str = "tributary.dev/user";

/// Annotation that a person sets on the Secret of a cluster's own authority, to any new value: replace the authority.
pub const ROTATE: &str = "tributary.dev/rotate";
/// Annotation of that Secret: the value of [`ROTATE`] that was carried out last.
pub const ROTATED: &str = "tributary.dev/rotated";

/// Annotation of the definition of MiniClusters: the agents that convert them, as `namespace/service`, or their address.
pub const CONVERTED_BY: &str = "tributary.dev/converted-by";

/// Values of [`ROLE`].
pub mod role {
    /// The Service that bursts reach the lead broker by, on the root.
    pub const LEAD: &str = "lead";
    /// The Service that stands for the lead broker, on a provider.
    pub const LEAD_PROXY: &str = "lead-proxy";
    /// The NetworkPolicy of a hosted burst.
    pub const EGRESS: &str = "egress";
    /// The headless Service.
    pub const HEADLESS: &str = "headless";
    /// Scripts and configuration.
    pub const ENTRYPOINT: &str = "entrypoint";
    /// The program of the ends of the tunnel.
    pub const ENDS: &str = "ends";
    /// PersistentVolumes and their claims.
    pub const VOLUME: &str = "volume";
    /// The RESTful server.
    pub const RESTFUL: &str = "restful";
    /// The certificate.
    pub const CURVE: &str = "curve";
    /// Containers of `spec.services`.
    pub const SERVICES: &str = "services";
    /// A Service in front of a container's ports.
    pub const PORTS: &str = "ports";
    /// A record of what was used.
    pub const USAGE: &str = "usage";
}

/// Field managers of server-side apply: one per controller, so that their fields never mix.
pub mod manager {
    /// Applies what is made for a MiniCluster, and its status.
    pub const MINICLUSTER: &str = "tributary-minicluster";
    /// Applies Bursts, their status, and the Services they need on the root.
    pub const BURST: &str = "tributary-burst";
    /// Applies hosted objects and HostedBurst's status.
    pub const HOSTED_BURST: &str = "tributary-hosted-burst";
    /// Writes ClusterPeer's status.
    pub const PEER: &str = "tributary-peer";
    /// Writes the ClusterPeers of clusters that join, and what this cluster says of itself.
    pub const ENROLMENT: &str = "tributary-enrolment";
    /// Applies the EndpointSlices of the federation's Service.
    pub const ENTRANCE: &str = "tributary-entrance";
    /// Replaces the trust bundle of a peer that replaces its authority.
    pub const TRUST: &str = "tributary-trust";
    /// Writes the status of FluxSetups and FluxJobs, and makes the MiniClusters of FluxJobs.
    pub const QUEUE: &str = "tributary-queue";
    /// Writes the records of what was used.
    pub const USAGE: &str = "tributary-usage";
    /// Says in the status of objects that cannot be read why.
    pub const UNREADABLE: &str = "tributary-unreadable";
    /// Says in the definition of MiniClusters who converts them.
    pub const CONVERSION: &str = "tributary-conversion";
    /// What people write through `agentctl`.
    pub const AGENTCTL: &str = "agentctl";
}

/// Reasons in conditions that more than one room knows.
pub mod reason {
    /// A field of the object does not fit what this version knows, so the agent cannot read it.
    pub const UNREADABLE: &str = "Unreadable";
    /// Some of the pods that are wanted are not ready, and the others run.
    pub const NOT_ALL_READY: &str = "NotAllReady";
    /// Kubernetes does not make all pods of the Job: a ResourceQuota, a LimitRange or a policy refuses them.
    pub const PODS_NOT_MADE: &str = "PodsNotMade";
    /// A running instance is not started anew, though that is asked for: the next one could not be made.
    pub const CANNOT_RESTART: &str = "CannotRestart";

    /// A peer accepted a part of a FluxJob and never had all its brokers there.
    pub const NEVER_JOINED: &str = "NeverJoined";

    /// It waits for room in the FluxSetup of its namespace.
    pub const QUEUED: &str = "Queued";
    /// The FluxSetup of its namespace could not let it start, whatever else ends.
    pub const NEVER_FITS: &str = "NeverFits";
    /// Its user holds it back.
    pub const SUSPENDED: &str = "Suspended";
    /// Its Job is suspended, and its user did not ask for that.
    pub const JOB_SUSPENDED: &str = "JobSuspended";
    /// The nodes could not hold it, whatever else ends.
    pub const NODES_TOO_SMALL: &str = "NodesTooSmall";

    /// There is no PriorityClass of the name that it says, or the FluxSetup of its namespace does not allow it.
    pub const PRIORITY_REFUSED: &str = "PriorityRefused";

    /// Those of queues.
    pub const ALL: [&str; 4] = [QUEUED, NEVER_FITS, NODES_TOO_SMALL, PRIORITY_REFUSED];
}

/// Types of conditions.
pub mod condition {
    /// The local brokers have joined and the command may run.
    pub const READY: &str = "Ready";
    /// Every burst's brokers have joined.
    pub const BURSTS_READY: &str = "BurstsReady";
    /// The spec can be carried out.
    pub const VALID: &str = "Valid";
    /// Every field that is written has an effect.
    pub const SPEC_SUPPORTED: &str = "SpecSupported";
    /// The spec asks for something that only a new Job can bring.
    pub const RESTART_REQUIRED: &str = "RestartRequired";
    /// Objects of the upstream operator run on unchanged until they end.
    pub const ADOPTED: &str = "Adopted";
    /// The instance was started anew.
    pub const INSTANCE_RESTARTED: &str = "InstanceRestarted";
    /// The command has ended.
    pub const FINISHED: &str = "Finished";
    /// The Services of the spec are there. Said only where one is not.
    pub const SERVICES_READY: &str = "ServicesReady";
    /// False while a MiniCluster that runs has another size than its spec says, since its namespace's queue has no room for more,
    /// or Kueue would end it.
    pub const GROWN: &str = "Grown";
    /// A command that fails is run again, because the user asked for retries.
    pub const COMMAND_RETRIES: &str = "CommandRetries";

    /// Upstream: the Job was asked for.
    pub const JOB_REQUESTED: &str = "JobRequested";
    /// Upstream: the Job waits for room.
    pub const JOB_WAITING_FOR_RESOURCES: &str = "JobWaitingForResources";
    /// Upstream: the pods run.
    pub(crate) const JOB_RUNNING: &str = "JobRunning";
    /// Upstream: the MiniCluster is there.
    pub const JOB_MINI_CLUSTER_READY: &str = "JobMiniClusterReady";
    /// Upstream: the Job has ended.
    pub const JOB_FINISHED: &str = "JobFinished";

    /// Upstream's five, of which it keeps exactly one true.
    pub const UPSTREAM: [&str; 5] =
        [JOB_REQUESTED, JOB_WAITING_FOR_RESOURCES, JOB_RUNNING, JOB_MINI_CLUSTER_READY, JOB_FINISHED];

    /// FluxSetup: the queue goes by it.
    pub const ACTIVE: &str = "Active";
    /// FluxJob: its instance is up.
    pub const RUNNING: &str = "Running";
    /// ClusterPeer: a session with the peer is up.
    pub const CONNECTED: &str = "Connected";
    /// Burst: what its peer shall know of it can be sent. Set once it could not.
    pub const DELIVERED: &str = "Delivered";
    /// Burst: the peer can be told where the lead broker is. Set once it could not.
    pub const LEAD_ADDRESS: &str = "LeadAddress";
    /// Burst: connections of its brokers through the tunnel end in pods, so that agents may come and go. Set once it had some.
    pub const TUNNEL_ENDS: &str = "TunnelEnds";
    /// Burst: a peer was chosen.
    pub const PLACED: &str = "Placed";
    /// Burst, HostedBurst: the provider takes it.
    pub const ADMITTED: &str = "Admitted";
    /// Burst, HostedBurst: brokers will be able to join, as far as was found out before there were any.
    pub const PREFLIGHT: &str = "Preflight";
    /// Burst, HostedBurst: every wanted broker has joined, as its readiness probe says.
    pub const BROKERS_ONLINE: &str = "BrokersOnline";
    /// MiniCluster: a cluster that is no peer any more has the certificate of the running instance. Set once it was so.
    pub const CERTIFICATE_EXPOSED: &str = "CertificateExposed";
    /// Burst, ClusterPeer, MiniCluster: what brokers may use of it is not spent. Set where there is a budget.
    pub const BUDGET: &str = "Budget";
    /// Burst: its peer counted as much use of it as this cluster did. Set when a use ends.
    pub const USAGE_AGREES: &str = "UsageAgrees";
    /// ClusterPeer: the node groups of `import.scaleUp` are what nodes can be, and these can be asked for. Set where that is not
    /// so.
    pub const SCALE_UP: &str = "ScaleUp";
    /// Burst, MiniCluster: jobs ask for it, or for any of its bursts. Set where they run on demand.
    pub const DEMAND: &str = "Demand";
    /// HostedBurst: the images were pulled ahead. Set where the root asked for that.
    pub const WARM: &str = "Warm";
    /// HostedBurst: the root is heard of.
    pub const LEASED: &str = "Leased";
}
