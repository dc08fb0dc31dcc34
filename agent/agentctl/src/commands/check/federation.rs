//! What was found → findings. Pure. Here: identity, entrance, peers, policy, bursts and hosted bursts.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::ResourceExt;
use tributary::admin::{ClusterRow, IdentityRow, PeerRow};
use tributary::api::hosted_burst::{BurstPhase, PreflightFinding};
use tributary::api::labels::kubernetes::SERVICE_NAME;
use tributary::api::labels::{TRIBUTARY, condition, upstream};
use tributary::api::peer::{ClusterPeer, ImportPolicy, PodSecurityLevel};
use tributary::cluster::conditions;
use tributary::contract::PeerState;

use super::Found;
use super::evaluate::{SKEW, skew};
use super::report::Section;
use crate::commands::why;
use crate::hints::{self, Pair};

/// A certificate that ends sooner is worth a warning: who renews it by hand needs a working day.
const SOON: SignedDuration = SignedDuration::from_hours(24);
/// A certificate that ends sooner than that was not renewed in time by whoever renews it.
const NOW: SignedDuration = SignedDuration::from_mins(10);

/// Label of the chart's objects: the helm release.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// The sections of the federation.
pub(super) fn sections(found: &Found) -> Vec<Section> {
    if found.scope.as_ref().is_ok_and(|scope| scope.alone) {
        let mut section = Section::new("identity");
        section.passed("federation", "federation.identity is off: this cluster peers with nobody");
        return vec![section, bursts(found), hosted(found)];
    }
    vec![identity(found), entrance(found), peers(found), policy(found), bursts(found), hosted(found)]
}

/// Ends of a Service that do not say that they are not ready.
pub(super) fn ready<'a>(slices: &'a [EndpointSlice], service: &'a str) -> impl Iterator<Item = &'a Endpoint> {
    let of_it = slices.iter().filter(move |slice| slice.labels().get(SERVICE_NAME).is_some_and(|name| name == service));
    let ends = of_it.flat_map(|slice| &slice.endpoints);
    ends.filter(|end| end.conditions.as_ref().is_none_or(|one| one.ready != Some(false)))
}

fn identity(found: &Found) -> Section {
    let mut section = Section::new("identity");
    match &found.card {
        Err(why) => section.unknown("name of this cluster", why),
        Ok(None) => section.fails(
            "name of this cluster",
            "no agent has written ConfigMap tributary-cluster",
            "the leading agent writes it: with federation.identity = \"off\" it peers with nobody; its log says more",
        ),
        Ok(Some(card)) => section.passed("name of this cluster", format!("{} ({})", card.cluster, card.cluster_uid)),
    }
    let Some(own) = own(found) else { return section };
    match &own.identity {
        None => section.fails(
            "certificate of the agent",
            "none is in use, and it peers with nobody",
            "the agent's log says why the federation is not open: federation.identity names where the certificate comes from, and \
             federation.listen a UDP port that somebody else may have",
        ),
        Some(identity) => expiry(&mut section, found, identity),
    }
    if let (Some(theirs), Some(server)) = (own.now, found.server_time) {
        clocks(&mut section, "clock of the agent", "the API server's", theirs.duration_since(server));
    }
    section
}

fn expiry(section: &mut Section, found: &Found, identity: &IdentityRow) {
    let IdentityRow { id, not_before, not_after } = identity;
    let now = found.server_time.unwrap_or(found.now);
    let left = not_after.duration_since(now);
    let what = format!("certificate of {id}");
    let detail = format!("valid until {not_after:.0}");
    let renew = "whoever issues it renews it: cert-manager, the agent's own authority (its log says more), or whoever has the federation's CA, by `agentctl federation issue --help`";
    if now < *not_before {
        section.fails(
            what,
            format!("valid only from {not_before:.0}"),
            "compare the clocks of the issuer and of the nodes",
        );
    } else if left <= SignedDuration::ZERO {
        section.fails(what, format!("it ended at {not_after:.0}"), renew);
    } else if left < NOW || (left < SOON && not_after.duration_since(*not_before) > SOON * 7) {
        // Certificates of a few hours are renewed by machines, and are always about to end.
        section.warns(what, detail, renew);
    } else {
        section.passed(what, detail);
    }
}

/// `others`: whose clock it is compared with.
fn clocks(section: &mut Section, what: impl Into<String>, others: &str, apart: SignedDuration) {
    let seconds = apart.abs().as_secs();
    if apart.abs() <= SKEW {
        section.passed(what, format!("it agrees with {others}"));
    } else {
        section.fails(
            what,
            format!("{seconds} s apart from {others}"),
            "set the clocks of the nodes (NTP): certificates and leases are dated",
        );
    }
}

fn entrance(found: &Found) -> Section {
    let mut section = Section::new("entrance");
    let Some(services) = section.seen("way to the agent", &found.services) else { return section };
    let udp = |service: &&Service| {
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        ports.into_iter().flatten().any(|port| port.protocol.as_deref() == Some("UDP"))
    };
    // MiniClusters of that namespace have Services as well, and so may others.
    let releases: Vec<_> = found.agents.iter().flatten().filter_map(|pod| pod.labels().get(INSTANCE)).collect();
    let ours = |service: &&Service| {
        let release = service.labels().get(INSTANCE);
        service.labels().get(upstream::NAME).is_some_and(|name| name == TRIBUTARY)
            && (releases.is_empty() || release.is_some_and(|release| releases.contains(&release)))
    };
    let service = services.iter().filter(ours).find(udp);
    if let Some(service) = service {
        led(&mut section, found, service);
    }
    let advertised = found.card.as_ref().ok().and_then(|card| card.as_ref()).map(|card| card.endpoints.clone());
    match advertised {
        Some(endpoints) if !endpoints.is_empty() => {
            section.passed("advertised addresses", endpoints.join(", "));
        }
        Some(_) => section.warns(
            "advertised addresses",
            "there are none: peers cannot dial this cluster, it dials them",
            "one of two peers has to be reachable: set federation.advertise, or give the UDP Service a node port or a load balancer",
        ),
        None => {}
    }
    section
}

/// Whether the UDP Service leads to the leader, from outside of the cluster.
fn led(section: &mut Section, found: &Found, service: &Service) {
    let name = service.name_any();
    let spec = service.spec.clone().unwrap_or_default();
    let balancer =
        service.status.as_ref().and_then(|status| status.load_balancer.as_ref()).and_then(|one| one.ingress.as_ref());
    let what = format!("Service {name}");
    match spec.type_.as_deref() {
        Some("LoadBalancer") if balancer.is_none_or(Vec::is_empty) => section.fails(
            what,
            "its load balancer has no address yet",
            "something in this cluster must provide load balancers for UDP; federation.service.type=NodePort needs none",
        ),
        Some("LoadBalancer") => section.passed(what, "open to other clusters by its load balancer"),
        Some("NodePort") => {
            let ports: Vec<_> = spec.ports.iter().flatten().filter_map(|port| port.node_port).map(|port| port.to_string()).collect();
            section.passed(what, format!("open to other clusters by node ports {}", ports.join(", ")));
        }
        _ => section.warns(what, "reached from inside only", "fine if this cluster dials all its peers"),
    }
    let Ok(slices) = &found.slices else { return };
    let addresses: Vec<String> = ready(slices, &name).flat_map(|end| end.addresses.clone()).collect();
    let what = format!("leading agent behind Service {name}");
    match addresses.is_empty() {
        false => section.passed(what, addresses.join(", ")),
        true => section.fails(
            what,
            "there is none: its EndpointSlices are empty",
            "the leader writes them: its log says what keeps it from doing so",
        ),
    }
}

fn own(found: &Found) -> Option<&tributary::admin::ClusterStatus> {
    found.federation.as_ref().ok()?.clusters.first()?.status.as_ref()
}

fn peers(found: &Found) -> Section {
    let mut section = Section::new("peers");
    let Some(objects) = section.seen("peers", &found.peers) else { return section };
    if objects.is_empty() {
        section.warns("peers", "there are none: nothing bursts", hints::NO_PEERS);
    }
    for peer in objects {
        let rows = found.federation.as_ref().map(|all| all.clusters.as_slice()).unwrap_or_default();
        let row = rows.iter().find(|row| row.name == peer.name_any() && row.peer.is_some());
        of_peer(&mut section, found, peer, row);
    }
    for (namespace, name) in &found.unread_peers {
        let hint = format!(
            "make it in namespace {}, where the agent reads it; then `kubectl delete clusterpeer {name} --namespace {namespace}`",
            found.namespace
        );
        section.warns(
            format!("ClusterPeer {namespace}/{name}"),
            "no agent works in this namespace: nothing reads it",
            hint,
        );
    }
    section
}

fn of_peer(section: &mut Section, found: &Found, peer: &ClusterPeer, row: Option<&ClusterRow>) {
    let name = peer.name_any();
    let us = found.card.as_ref().ok().and_then(|card| card.as_ref()).map(|card| card.cluster.as_str());
    let pair = Pair { peer: &name, us };
    let what = format!("connection to {name}");
    if us == Some(name.as_str()) {
        let detail = "this is the name of this cluster itself: nothing is dialled";
        return section.warns(what, detail, hints::connection("OwnName", pair));
    }
    let Some((row, state)) = row.and_then(|row| Some((row, row.peer.as_ref()?))) else {
        let said = peer.status.as_ref().is_some_and(|status| status.connected);
        return if said {
            section.passed(what, "connected, as its ClusterPeer says")
        } else {
            section.unknown(what, "no agent says")
        };
    };
    match state.state {
        PeerState::Connected if state.flapping => {
            section.warns(what, "it keeps breaking", hints::connection("Flapping", pair))
        }
        PeerState::Connected => section.passed(what, connection(state)),
        PeerState::Suspended => {
            let by = us.unwrap_or("this cluster");
            section.warns(what, format!("suspended by {by}"), format!("`agentctl peer resume {name}`"));
        }
        PeerState::Suspect => {
            section.fails(what, format!("{name} has fallen silent"), hints::connection("HeartbeatsMissing", pair))
        }
        PeerState::Disconnected | PeerState::Refused => {
            let message = state.message.clone().unwrap_or_else(|| "no agent has said why".to_owned());
            let reason = message.split(':').next().unwrap_or_default().to_owned();
            match reason.as_str() {
                "Suspended" => section.warns(what, format!("suspended by {name}"), hints::suspended_there(pair)),
                _ => section.fails(what, message, hints::connection(&reason, pair)),
            }
        }
    }
    if peer.spec.drain {
        section.warns(
            format!("use of {name}"),
            "drained: nothing is placed there, or taken from it",
            format!("`agentctl peer resume {name}`"),
        );
    }
    if state.state != PeerState::Connected {
        return;
    }
    if let Some(version) = &state.version {
        skew(
            section,
            &format!("version of the agent of {name}"),
            version,
            "upgrade one cluster after the other: neighbouring minor versions work together",
        );
    }
    match &row.status {
        Some(theirs) => {
            if let (Some(now), Some(server)) = (theirs.now, found.server_time) {
                clocks(section, format!("clock of {name}"), "this cluster's", now.duration_since(server));
            }
        }
        None => section.unknown(format!("status of {name}"), row.error.clone().unwrap_or_default()),
    }
}

fn connection(state: &PeerRow) -> String {
    let rtt = state.rtt_micros.map(|micros| format!("{:.1} ms", micros as f64 / 1000.0));
    [state.endpoint.clone(), rtt].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn policy(found: &Found) -> Section {
    let mut section = Section::new("policy");
    for peer in found.peers.iter().flatten() {
        let name = peer.name_any();
        if let (Some(cost), None) = (peer.spec.budget.cost, peer.spec.price) {
            let detail = format!("cost {cost} never ends: the ClusterPeer has no price");
            let hint = "write spec.price of the ClusterPeer, or limit brokerHours instead";
            section.warns(format!("budget of {name}"), detail, hint);
        }
        let Some(import) = &peer.spec.import else { continue };
        of_policy(&mut section, found, &name, import);
        let conditions = peer.status.iter().flat_map(|status| &status.conditions);
        let said = conditions.filter(|said| said.type_ == condition::SCALE_UP && said.status == "False");
        for said in said {
            section.warns(format!("nodes for bursts of {name}"), said.message.clone(), hints::scale_up(&said.reason));
        }
    }
    section
}

/// What a peer may place here: whether it can, and whether that is meant.
fn of_policy(section: &mut Section, found: &Found, peer: &str, import: &ImportPolicy) {
    let what = format!("bursts of {peer} here");
    if import.namespaces.is_empty() {
        let hint = format!("name one, as in `agentctl peer add {peer} --import default`, or remove the import");
        return section.warns(what, "none: its import names no namespace", hint);
    }
    let any = import.namespaces.iter().any(|one| one == "*");
    let here = |namespace: &String| match import.target_namespace.as_deref().filter(|text| !text.is_empty()) {
        Some(template) => template.replace("{peer}", peer).replace("{namespace}", namespace),
        None => namespace.clone(),
    };
    if let Ok(existing) = &found.namespaces {
        let wanted = import.namespaces.iter().filter(|one| *one != "*").map(here);
        let missing: Vec<String> = wanted.filter(|namespace| !existing.contains(namespace)).collect();
        match missing.as_slice() {
            [] => section.passed(what, format!("allowed from {}", import.namespaces.join(", "))),
            some => section.fails(
                what,
                format!("namespace {} does not exist here", some.join(", ")),
                format!("`kubectl create namespace {}`", some[0]),
            ),
        }
    } else {
        section.unknown(what, "the namespaces could not be listed");
    }
    let unlimited = import.max_bursts.is_none() && import.max_brokers.is_none() && import.max_cores.is_none();
    if any && unlimited {
        let hint = format!("limit it, as in `agentctl peer add {peer} --max-brokers 64`; ResourceQuotas do as well");
        section.warns(format!("limits of {peer}"), "there are none: any number of brokers, in any namespace", hint);
    }
    if import.pod_security == PodSecurityLevel::Privileged {
        let hint = "podSecurity: baseline, unless its users are trusted with the nodes";
        section.warns(format!("pod security of {peer}"), "its import admits privileged pods", hint);
    }
}

/// What was found out about the brokers of other clusters' bursts here, before they were made. Who hosts them sees no
/// MiniCluster that would say it.
fn hosted(found: &Found) -> Section {
    let mut section = Section::new("hosted bursts");
    let Some(hosted) = section.seen("hosted bursts", &found.hosted) else { return section };
    for burst in hosted {
        let status = burst.status.clone().unwrap_or_default();
        let name = format!("{}/{}", burst.namespace().unwrap_or_default(), burst.name_any());
        let admitted = conditions::find(&status.conditions, condition::ADMITTED);
        if let Some(said) = admitted.filter(|said| said.status == "False" && status.draining_since.is_none()) {
            let hint = format!(
                "to end it: `kubectl delete hostedburst {} --namespace {}`; to allow it again: `agentctl peer add {} --import {}`, \
                 which adds the namespace",
                burst.name_any(),
                burst.namespace().unwrap_or_default(),
                burst.spec.peer,
                burst.spec.root.namespace
            );
            section.warns(format!("import of {name}"), said.message.clone(), hint);
        }
        if status.draining_since.is_some() || status.preflight.is_empty() {
            continue;
        }
        let what = format!("preflight of {name}, for {} of {}", burst.spec.root.name, burst.spec.peer);
        if status.phase == BurstPhase::Ready {
            section.passed(what, format!("{} brokers are ready", status.ready_brokers));
        } else if !preflight(&mut section, &what, &status.preflight) {
            let passed = status.preflight.iter().filter(|one| one.outcome == PASSED).count();
            section.passed(what, format!("{passed} of {} checks passed, none failed", status.preflight.len()));
        }
    }
    section
}

/// Outcome of a preflight finding that is as it should be.
const PASSED: &str = "pass";

/// Says what keeps brokers that are missing from joining; whether there is anything. Once all have joined, it is nothing.
fn preflight(section: &mut Section, what: &str, findings: &[PreflightFinding]) -> bool {
    let failed: Vec<_> = findings.iter().filter(|finding| finding.outcome == why::burst::FAILED).collect();
    for finding in &failed {
        section.fails(format!("{what}: {}", finding.check), finding.message.clone(), finding.hint.clone());
    }
    !failed.is_empty()
}

/// What bursts want for, by the first condition of each that is not met.
fn bursts(found: &Found) -> Section {
    let mut section = Section::new("bursts");
    let Some(bursts) = section.seen("bursts", &found.bursts) else { return section };
    let Some(roots) = section.seen("bursts", &found.roots) else { return section };
    for burst in bursts {
        let what = format!("burst {}/{}", burst.namespace().unwrap_or_default(), burst.name_any());
        let status = burst.status.clone().unwrap_or_default();
        if burst.spec.release {
            continue;
        }
        let root = |root: &&tributary::api::minicluster::MiniCluster| {
            root.namespace() == burst.namespace() && root.name_any() == burst.spec.root
        };
        let root = roots.iter().find(root);
        if status.phase == BurstPhase::Ready && root.is_none_or(|root| burst.shortfall(root).is_none()) {
            let peer = status.peer.unwrap_or_default();
            section.passed(what, format!("ready: {} brokers on {peer}", status.ready_brokers));
            continue;
        }
        preflight(&mut section, &format!("preflight of burst {}", burst.name_any()), &status.preflight);
        // Nobody wants it at the moment; that nobody can tell is looked into below.
        let told = conditions::find(&status.conditions, condition::DEMAND).is_none_or(|said| said.status != "Unknown");
        if status.phase == BurstPhase::Asleep && told {
            section.passed(what, status.message);
            continue;
        }
        let view = why::Found {
            mini_cluster: root.cloned(),
            bursts: vec![burst.clone()],
            peers: found.peers.clone().unwrap_or_default(),
            federation: found.federation.clone().ok(),
            agent: found.leader.clone().ok(),
            ..why::Found::default()
        };
        if let Some(unmet) = why::burst::explain(&view, &burst.name_any()).unmet {
            section.warns(what, format!("{} ({}): {}", unmet.condition, unmet.reason, unmet.cause), unmet.hint);
        }
    }
    section
}
