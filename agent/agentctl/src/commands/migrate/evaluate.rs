//! From what was found to the report: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;
use tributary::render::{Context, Rendered, render};

use super::cluster::{self, Needs};
use super::everywhere;
use super::fetch::{Found, Named};
use super::fields::differences;
use super::report::{After, Finding, MiniClusterRow, Report, Severity};
use super::steps::steps;
use crate::kubernetes;

/// Judges.
pub(super) fn evaluate(found: &Found) -> Report {
    let operators = cluster::operators(found);
    let definition = cluster::definition(found);
    let mut findings = cluster::findings(found, &operators, definition.as_ref());
    let (mut mini_clusters, mut of_upstream) = (Vec::new(), Vec::new());
    let mut needs: BTreeMap<String, Needs> = BTreeMap::new();
    for object in &found.mini_clusters {
        let judged = Judged::of(object, found);
        findings.extend(judged.findings);
        mini_clusters.push(judged.row);
        of_upstream.extend(judged.of_upstream);
        let namespace = needs.entry(object.namespace().unwrap_or_default()).or_default();
        namespace.secrets += judged.needs.secrets;
        namespace.services += judged.needs.services;
        namespace.node_ports += judged.needs.node_ports;
    }
    findings.extend(cluster::quotas(&found.quotas, &needs));
    findings.extend(autoscalers(found));
    findings.extend(everywhere::findings(&of_upstream));
    findings.sort();
    findings.dedup();
    mini_clusters.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Report {
        ready: findings.iter().all(|finding| finding.severity != Severity::Breaks),
        kubernetes: found.kubernetes.clone(),
        lease_holder: found.lease_holder.clone(),
        steps: steps(&operators, definition.as_ref()),
        operators,
        definition,
        mini_clusters,
        findings,
        unseen: found.unseen.clone(),
    }
}

/// One MiniCluster, judged.
struct Judged {
    row: MiniClusterRow,
    findings: Vec<Finding>,
    needs: Needs,
    /// The MiniCluster, if it is the Flux Operator's and goes on after the move.
    of_upstream: Option<MiniCluster>,
}

impl Judged {
    fn of(object: &DynamicObject, found: &Found) -> Self {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let uid = object.uid().unwrap_or_default();
        let (job, mut after) = job_of(found, &namespace, &name, &uid);
        let mut findings = Findings { object: format!("MiniCluster {namespace}/{name}"), all: Vec::new() };
        let row = |size, after| MiniClusterRow {
            namespace: namespace.clone(),
            name: name.clone(),
            size,
            job: job.to_owned(),
            after,
        };
        let value = serde_json::to_value(object).unwrap_or_default();
        let mini_cluster: MiniCluster = match serde_json::from_value(value.clone()) {
            Ok(mini_cluster) => mini_cluster,
            Err(error) => {
                let what = format!("it cannot be read: {error}");
                findings.breaks("Unreadable", "", what, "write it again in a form that both definitions take");
                return Self {
                    row: row(0, After::Refused),
                    findings: findings.all,
                    needs: Needs::default(),
                    of_upstream: None,
                };
            }
        };
        if after == After::Unchanged {
            return Self {
                row: row(mini_cluster.spec.size(), after),
                findings: Vec::new(),
                needs: Needs::default(),
                of_upstream: None,
            };
        }
        let mut needs = Needs::default();
        match render(&mini_cluster, &Context::default()) {
            Ok(rendered) => {
                findings.differences(&mini_cluster);
                findings.names(&mini_cluster, &rendered, &found.objects, &uid);
                if after != After::Kept {
                    needs = needs_of(&mini_cluster, &rendered, &found.objects, &namespace);
                }
            }
            Err(problems) => {
                for problem in problems.iter() {
                    findings.refused(after, &problem.field, problem.reason, &problem.message);
                }
                if after == After::Starts {
                    after = After::Refused;
                }
            }
        }
        if after == After::Starts {
            let what = "it has no Job: the Flux Operator refused it, could not make its objects, or has not come to it. \
                        An agent starts it at once";
            findings.changes("Starts", "", what.to_owned(), "delete it, if it should not run");
        }
        if job == "foreign" {
            let what = format!("a Job {name} exists that belongs to something else; no instance can be made");
            findings.changes("NameTaken", "metadata.name", what, "rename one of the two");
        }
        findings.munge_secret(&mini_cluster, found, &namespace);
        findings.dropped(&value, &mini_cluster);
        let row = row(mini_cluster.spec.size(), after);
        let of_upstream = matches!(after, After::Adopted | After::Starts).then_some(mini_cluster);
        Self { row, findings: findings.all, needs, of_upstream }
    }
}

/// What the Job does, and what becomes of the MiniCluster.
fn job_of(found: &Found, namespace: &str, name: &str, uid: &str) -> (&'static str, After) {
    let named = |job: &&Job| job.namespace().as_deref() == Some(namespace) && job.name_any() == name;
    let Some(job) = found.jobs.iter().find(named) else { return ("none", After::Starts) };
    let owners = job.owner_references();
    if !owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        return ("foreign", After::Refused);
    }
    let holds = |type_: &str| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|one| one.type_ == type_ && one.status == "True")
    };
    let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    let (state, after) = match (holds("Complete"), holds("Failed"), suspended) {
        (true, ..) => ("succeeded", After::Kept),
        (_, true, _) => ("failed", After::Kept),
        (.., true) => ("suspended", After::Adopted),
        _ => ("running", After::Adopted),
    };
    let ours = job.annotations().contains_key(labels::BOOT_DIGEST);
    (state, if ours { After::Unchanged } else { after })
}

/// Objects that the next instance adds to those that exist.
fn needs_of(mini_cluster: &MiniCluster, rendered: &Rendered, objects: &[Named], namespace: &str) -> Needs {
    let exists = |kind: &str, name: &str| {
        objects.iter().any(|one| one.kind == kind && one.namespace == namespace && one.name == name)
    };
    let secret = mini_cluster.spec.flux.curve_cert_secret.is_none()
        && !exists("Secret", &names::curve(&mini_cluster.name_any()));
    let missing = |service: &&k8s_openapi::api::core::v1::Service| !exists("Service", &service.name_any());
    let node_port = |service: &&k8s_openapi::api::core::v1::Service| {
        service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("NodePort")
    };
    let count = |number: usize| i128::try_from(number).unwrap_or(i128::MAX);
    Needs {
        secrets: i128::from(secret),
        services: count(rendered.services.iter().filter(missing).count()),
        node_ports: count(rendered.services.iter().filter(missing).filter(node_port).count()),
    }
}

/// Collects what is said of one object.
struct Findings {
    object: String,
    all: Vec<Finding>,
}

impl Findings {
    fn say(&mut self, severity: Severity, rule: &str, field: &str, what: String, hint: &str) {
        let (object, field) = (self.object.clone(), field.to_owned());
        self.all.push(Finding { object, field, ..Finding::of(severity, rule, what, hint) });
    }

    fn breaks(&mut self, rule: &str, field: &str, what: String, hint: &str) {
        self.say(Severity::Breaks, rule, field, what, hint);
    }

    fn changes(&mut self, rule: &str, field: &str, what: String, hint: &str) {
        self.say(Severity::Changes, rule, field, what, hint);
    }

    fn differences(&mut self, mini_cluster: &MiniCluster) {
        let found = differences(&mini_cluster.spec).into_iter();
        self.all.extend(found.map(|one| Finding { object: self.object.clone(), ..one }));
    }

    /// What never ran does not break; what runs, would not run again.
    fn refused(&mut self, after: After, field: &str, reason: &str, message: &str) {
        match after {
            After::Adopted => {
                let what = format!("the next instance would be refused: {message}");
                self.breaks(reason, field, what, "mend the field; what runs now runs on");
            }
            _ => self.changes(
                reason,
                field,
                format!("it was refused silently or failed; now a condition says why: {message}"),
                "mend the field, or delete it",
            ),
        }
    }

    /// Objects of the next instance whose names others have.
    fn names(&mut self, mini_cluster: &MiniCluster, rendered: &Rendered, objects: &[Named], uid: &str) {
        let name = mini_cluster.name_any();
        let mut wanted = vec![("ConfigMap", names::entrypoint(&name), "metadata.name")];
        if mini_cluster.spec.flux.curve_cert_secret.is_none() {
            wanted.push(("Secret", names::curve(&name), "metadata.name"));
        }
        let headless = mini_cluster.spec.headless_name(&name);
        wanted.extend(rendered.services.iter().map(|service| {
            let service = service.name_any();
            let field = if service == headless { "spec.network.headlessName" } else { "spec.containers" };
            ("Service", service, field)
        }));
        wanted.extend(rendered.service_pod.iter().map(|pod| ("Pod", pod.name_any(), "spec.services")));
        for (kind, wanted, field) in wanted {
            let named = |one: &&Named| {
                one.kind == kind
                    && Some(&one.namespace) == mini_cluster.metadata.namespace.as_ref()
                    && one.name == wanted
            };
            let Some(other) = objects.iter().find(named) else { continue };
            let owner = match &other.controller {
                Some((_, _, owner)) if owner == uid => continue,
                Some((kind, name, _)) => format!("{kind} {name}"),
                None => "nobody".to_owned(),
            };
            let what = format!("{kind} {wanted} belongs to {owner}, and the next instance needs one of that name");
            let hint = match field {
                "spec.network.headlessName" => "give this MiniCluster a network.headlessName of its own",
                "spec.containers" => "give the container another name",
                _ => "rename or delete it, or rename the MiniCluster",
            };
            // Without its Service a container still serves; upstream had the other's stand in for it.
            let severity = if field == "spec.containers" { Severity::Changes } else { Severity::Breaks };
            self.say(severity, "NameTaken", field, what, hint);
        }
    }

    /// A reference that had no effect, and has one now.
    fn munge_secret(&mut self, mini_cluster: &MiniCluster, found: &Found, namespace: &str) {
        let Some(secret) = &mini_cluster.spec.flux.munge_secret else { return };
        let seen = !found.unseen.iter().any(|what| what.starts_with("Secrets "));
        let there = |one: &Named| one.kind == "Secret" && one.namespace == namespace && one.name == *secret;
        if seen && !found.objects.iter().any(there) {
            let what = format!("Secret {secret} does not exist: nothing read it before, and pods wait for it now");
            self.breaks(
                "MissingSecret",
                "spec.flux.mungeSecret",
                what,
                "make the Secret with a key munge.key, or remove the field",
            );
        }
    }

    /// What the manifest says and the old definition dropped: kubectl keeps the manifest it applied.
    fn dropped(&mut self, object: &Value, mini_cluster: &MiniCluster) {
        let Some(manifest) = mini_cluster.annotations().get(kubernetes::LAST_APPLIED) else { return };
        let Ok(manifest) = serde_json::from_str::<Value>(manifest) else { return };
        // Through our type: what comes out again is what we keep.
        let kept =
            serde_json::from_value::<MiniCluster>(manifest).ok().and_then(|kept| serde_json::to_value(&kept.spec).ok());
        let Some(kept) = kept else { return };
        let mut paths = Vec::new();
        missing(&kept, &object["spec"], "spec", &mut paths);
        for path in paths {
            let what = "the manifest has it, and the old definition dropped it; now it takes effect with the next kubectl apply";
            self.changes("Dropped", &path, what.to_owned(), "");
        }
    }
}

/// Paths that `kept` has and `stored` has not.
fn missing(kept: &Value, stored: &Value, path: &str, paths: &mut Vec<String>) {
    match (kept, stored) {
        (Value::Object(kept), Value::Object(stored)) => {
            for (key, value) in kept {
                let path = format!("{path}.{key}");
                match stored.get(key) {
                    Some(stored) => missing(value, stored, &path, paths),
                    None => paths.push(path),
                }
            }
        }
        (Value::Array(kept), Value::Array(stored)) => {
            for (index, (kept, stored)) in kept.iter().zip(stored).enumerate() {
                missing(kept, stored, &format!("{path}[{index}]"), paths);
            }
        }
        _ => {}
    }
}

/// Autoscalers that saw no replicas until now.
fn autoscalers(found: &Found) -> Vec<Finding> {
    let of_ours = found
        .autoscalers
        .iter()
        .filter(|one| one.spec.as_ref().is_some_and(|spec| spec.scale_target_ref.kind == "MiniCluster"));
    let what = "it saw a size of 0 until the first resize, and did nothing; now it sees the real size, and acts";
    let hint = "see that minReplicas and maxReplicas lie between minSize and maxSize";
    of_ours
        .map(|one| Finding {
            object: format!("HorizontalPodAutoscaler {}/{}", one.namespace().unwrap_or_default(), one.name_any()),
            field: "spec.scaleTargetRef".into(),
            ..Finding::of(Severity::Changes, "Autoscaler", what, hint)
        })
        .collect()
}
