//! What was found → findings. Pure. Here: the API server, the definitions, the agent and its rights.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use kube::ResourceExt;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::Condition;
use tributary::api::{crds, lacking, named};

use super::report::{Report, Section};
use super::rights::Right;
use super::{Found, federation, webhook};
use crate::hints;

/// The oldest Kubernetes that everything works with (DESIGN section 7).
const OLDEST: (u32, u32) = (1, 33);
/// How far two clocks may be apart: certificates and leases are dated.
pub(super) const SKEW: SignedDuration = SignedDuration::from_secs(10);

/// All sections, in the order in which one rests on the other.
pub(crate) fn report(found: &Found) -> Report {
    let mut sections =
        vec![kubernetes(found), definitions(found), agent(found), rights(found), webhook::section(found)];
    sections.extend(federation::sections(found));
    Report::of(sections)
}

/// Of an API server that does not answer.
pub(super) fn unreachable(why: &str) -> Report {
    let mut section = Section::new("kubernetes");
    section.fails(
        "API server",
        why,
        "--kubeconfig and --context name another cluster; kubectl asks the same one with `kubectl get namespaces`",
    );
    Report::of(vec![section])
}

fn kubernetes(found: &Found) -> Section {
    let mut section = Section::new("kubernetes");
    let (major, minor, version) = &found.kubernetes;
    section.passed("API server", "it answers");
    let what = format!("version of Kubernetes ({}.{} or newer)", OLDEST.0, OLDEST.1);
    if (*major, *minor) >= OLDEST {
        section.passed(what, version);
    } else {
        section.fails(what, version, "upgrade the cluster: Jobs of MiniClusters need what older ones do not have");
    }
    if let Some(server) = found.server_time {
        let apart = found.now.duration_since(server).abs();
        let what = "clock of this machine";
        if apart <= SKEW {
            section.passed(what, "it agrees with the API server's");
        } else {
            section.warns(
                what,
                format!("{apart:#} apart from the API server's"),
                "set this machine's clock: ages shown here are wrong",
            );
        }
    }
    section
}

fn definitions(found: &Found) -> Section {
    let mut section = Section::new("definitions");
    let Some(there) = section.seen("definitions", &found.definitions) else { return section };
    for ours in crds() {
        let name = ours.name_any();
        let Some(theirs) = there.iter().find(|one| one.name_any() == name) else {
            section.fails(format!("definition {name}"), "it is missing", hints::DEFINITIONS);
            continue;
        };
        if !is_crd_established().matches_object(Some(theirs)) {
            section.fails(
                format!("definition {name}"),
                "it is not established",
                format!("why, is said by `kubectl describe crd {name}`"),
            );
            continue;
        }
        let mut missing = BTreeSet::new();
        for version in &ours.spec.versions {
            match theirs.spec.versions.iter().find(|one| one.name == version.name && one.served) {
                None => drop(missing.insert(format!("version {}", version.name))),
                Some(served) => {
                    let theirs = serde_json::to_value(&served.schema).unwrap_or_default();
                    missing.extend(lacking(&ours.spec.names.kind, &version.name, &theirs["openAPIV3Schema"]));
                }
            }
        }
        let what = format!("definition {name}");
        match named(&Vec::from_iter(missing)) {
            None => section.passed(what, "it has every field of this version"),
            Some(named) => {
                section.fails(what, format!("it lacks {named}: the API server drops them"), hints::DEFINITIONS);
            }
        }
    }
    section
}

fn agent(found: &Found) -> Section {
    let mut section = Section::new("agent");
    let namespace = &found.namespace;
    let what = "Flux Operator";
    match &found.operator {
        Err(why) => section.unknown(what, why),
        Ok(None) => section.passed(what, "it does not run: nobody else makes Jobs of MiniClusters"),
        Ok(Some(holder)) => section.fails(
            what,
            format!("it runs ({holder}), and no agent starts beside it"),
            "scale its Deployment to 0, by the command that `agentctl migrate check` has; do not uninstall it, every MiniCluster would go with it",
        ),
    }
    match &found.agents {
        Err(why) => section.unknown(format!("agents in namespace {namespace}"), why),
        Ok(pods) => {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            let what = format!("agents in namespace {namespace}");
            match (ready, pods.len()) {
                (0, 0) if found.federation.is_ok() => {
                    section.warns(
                        what,
                        "no pod is there, but one answers elsewhere",
                        "an agent outside of the cluster has no replica to take over",
                    );
                }
                (0, 0) => section.fails(
                    what,
                    "there is none",
                    "install them by the chart, or name their namespace with --agent-namespace",
                ),
                (0, all) => section.fails(
                    what,
                    format!("none of {all} is ready"),
                    format!("their logs say more, and so does `kubectl describe pods --namespace {namespace}`"),
                ),
                (1, 1) => section.warns(what, "one is ready", "replicas: 2 lets another one take over within seconds"),
                (ready, all) if ready < all => section.warns(
                    what,
                    format!("{ready} of {all} are ready"),
                    format!("more is said by `kubectl describe pods --namespace {namespace}`"),
                ),
                (ready, _) => section.passed(what, format!("{ready} are ready")),
            }
        }
    }
    image(&mut section, found);
    match &found.leader {
        Err(why) => section.unknown("leader of the agents", why),
        Ok(Ok(holder)) => section.passed("leader of the agents", holder),
        Ok(Err(why)) => {
            section.fails("leader of the agents", why, "the log of an agent says what keeps it from leading")
        }
    }
    match &found.federation {
        // Not every user may forward ports, and that says nothing of the agent.
        Err(why) if forbidden(why) => section.unknown(
            "admin API of the agent",
            format!("{why} (it takes the right to create pods/portforward in {namespace}, or --endpoint)"),
        ),
        Err(why) => section.fails(
            "admin API of the agent",
            why,
            "is the agent ready, and may you forward ports to its pod (pods/portforward)?",
        ),
        Ok(all) => {
            let own = all.clusters.first().and_then(|row| row.status.as_ref());
            let (version, leads) = own.map_or(("", false), |own| (own.version.as_str(), own.leader));
            section.passed("admin API of the agent", format!("cluster {}", all.cluster));
            if !leads {
                section.warns(
                    "agent that answers",
                    "it does not lead",
                    "only the leader knows its peers: --endpoint may name another agent",
                );
            }
            skew(&mut section, "version of the agent", version, "bring both to one version");
        }
    }
    section
}

/// Whether an API server refused to be asked (HTTP 403): what it says of a request, and of one that was to be upgraded.
fn forbidden(why: &str) -> bool {
    why.contains("is forbidden: ") || why.contains("403 Forbidden")
}

/// The pull of the image, if it fails: nothing else can be right then.
fn image(section: &mut Section, found: &Found) {
    let pods = found.agents.iter().flatten();
    let containers =
        pods.flat_map(|pod| pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()));
    let mut failing = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let pull = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"].contains(&reason);
        pull.then(|| format!("{reason} for {}: {}", container.image, waiting.message.as_deref().unwrap_or_default()))
    });
    if let Some(why) = failing.next() {
        section.fails(
            "image of the agents",
            why.trim_end_matches([' ', ':']),
            "upgrade the helm release with image.repository, where the image was pushed to; a private registry wants \
             image.pullSecrets",
        );
    }
}

/// Versions that differ, as `MAJOR.MINOR.PATCH`: agents and agentctl of neighbouring minor versions work together.
pub(super) fn skew(section: &mut Section, what: &str, theirs: &str, hint: &str) {
    let ours = env!("CARGO_PKG_VERSION");
    let parts = |version: &str| -> Option<(u32, u32)> {
        let mut parts = version.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    match (parts(ours), parts(theirs)) {
        _ if ours == theirs => section.passed(what, theirs),
        (Some((major, minor)), Some((their_major, their_minor)))
            if major == their_major && minor.abs_diff(their_minor) <= 1 =>
        {
            section.warns(what, format!("{theirs}, and this is {ours}"), hint);
        }
        _ => section.fails(what, format!("{theirs}, and this is {ours}"), hint),
    }
}

pub(crate) fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

fn rights(found: &Found) -> Section {
    let mut section = Section::new("rights");
    let what = "rights of the agent's service account";
    if !found.agents.as_ref().is_ok_and(|pods| !pods.is_empty()) {
        return section;
    }
    if let Err(why) = &found.scope {
        section.unknown(what, format!("it is not known where the agent works: {why}"));
        return section;
    }
    let mut places: BTreeMap<&str, Vec<&(Right, bool)>> = BTreeMap::new();
    match &found.rights {
        Ok(answers) => answers.iter().for_each(|one| places.entry(&one.0.namespace).or_default().push(one)),
        Err(why) => section.unknown(what, why),
    }
    for (place, answers) in places {
        let what =
            format!("{what} {}", if place.is_empty() { "in the whole cluster".into() } else { format!("in {place}") });
        let missing: Vec<String> = answers.iter().filter(|(_, may)| !may).map(|(right, _)| right.to_string()).collect();
        let (kind, suffix) = if place.is_empty() { ("ClusterRoleBinding", "") } else { ("RoleBinding", " there") };
        match missing.len() {
            0 => section.passed(what, format!("all {} of the chart's roles", answers.len())),
            all if all == answers.len() => section.fails(
                what,
                format!("none of the {all} of the chart's roles"),
                format!("is the agent's {kind}{suffix}? An upgrade by helm makes it anew, unless rbac.create is false"),
            ),
            some => {
                let more = if some > 5 { format!(" and {} more", some - 5) } else { String::new() };
                section.fails(
                    what,
                    format!("these of the chart's roles are missing: {}{more}", missing[..some.min(5)].join(", ")),
                    "upgrade the helm release, or bring the roles up to date with charts/tributary/files",
                );
            }
        }
    }
    section
}
