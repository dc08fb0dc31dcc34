//! What an offer, its template and the nodes say about each other. Pure.
//!
//! Images, architectures and users that differ between the clusters of an instance are found out here, where no broker has
//! to fail first. What the two sides cannot know of each other is said to be unknown, with what would make it known.

use std::collections::BTreeMap;

use tributary_api::hosted_burst::HostedBurstSpec;
use tributary_api::minicluster::{FluxSpec, MiniClusterSpec, Runner};
use tributary_contract::{Check, Finding};
use tributary_flux::version::{FluxVersion, is_pinned};

use crate::nodes::{NodeChoice, NodeView};
use crate::template::BurstTemplate;

/// The image that Flux comes from: of the view, or the application's own.
pub(crate) fn flux_image(template: &BurstTemplate) -> String {
    let container = template.flux.container.clone();
    if container.disable {
        runner(template).1
    } else {
        FluxSpec { container, ..FluxSpec::default() }.view_image().into()
    }
}

/// Findings that take no connection.
pub(crate) fn findings(spec: &HostedBurstSpec, nodes: &BTreeMap<String, NodeView>) -> Vec<Finding> {
    let Ok(template) = BurstTemplate::parse(&spec.template) else { return Vec::new() };
    vec![version(spec, &template), image(&template), architecture(spec, &template, nodes), user(&template)]
}

fn version(spec: &HostedBurstSpec, template: &BurstTemplate) -> Finding {
    let check = Check::FluxVersion;
    let image = flux_image(template);
    let declared = spec.flux_version.as_deref().and_then(|text| text.parse::<FluxVersion>().ok());
    match (declared, FluxVersion::of_image(&image)) {
        (Some(root), Some(here)) if root != here => Finding::fail(
            check,
            format!("the root's brokers are of Flux {root}, and image {image} brings {here}"),
            "use images of the same major.minor in all clusters of an instance",
        ),
        (Some(version), _) => Finding::pass(check, format!("Flux {version} on both sides")),
        (None, _) => Finding::unknown(
            check,
            format!("the tag of image {image} names no version of Flux"),
            "declare flux.version, or use an image whose tag names the version",
        ),
    }
}

fn image(template: &BurstTemplate) -> Finding {
    let image = flux_image(template);
    let message = format!("both sides take Flux from {image}");
    if is_pinned(&image) {
        return Finding::pass(Check::ViewImage, message);
    }
    // A tag that names the version is not moved by those who publish it so; whether one did cannot be seen from here.
    if FluxVersion::of_image(&image).is_some() {
        return Finding::pass(Check::ViewImage, format!("{message}, as its tag says"));
    }
    let hint = "its tag may be moved, and each cluster has what it pulled: name the image by its digest (@sha256:…)";
    Finding::unknown(Check::ViewImage, message, hint)
}

/// Of the nodes that the pods may run on, as the template and what this cluster's policy adds to it say.
fn architecture(spec: &HostedBurstSpec, template: &BurstTemplate, nodes: &BTreeMap<String, NodeView>) -> Finding {
    let check = Check::Architecture;
    let pod = &template.pod;
    let choice =
        NodeChoice { selector: &pod.node_selector, affinity: &pod.node_affinity, tolerations: &pod.tolerations };
    let open = nodes.values().filter(|node| node.schedulable && choice.takes(node));
    let mut here: Vec<&str> = open.filter_map(|node| node.architecture.as_deref()).collect();
    here.sort_unstable();
    here.dedup();
    let hint = "use images for all of these architectures, or keep the pods to nodes of one by pod.nodeSelector";
    match (spec.arch.as_deref(), &here[..]) {
        (None, _) => Finding::unknown(check, "the node of the lead broker is not known yet", ""),
        (Some(_), []) => Finding::unknown(check, "no node that is ready and open to these pods says what it is", ""),
        (Some(root), [same]) if *same == root => Finding::pass(check, format!("{root} on both sides")),
        (Some(root), all) if all.contains(&root) => {
            let message = format!("the lead broker runs on {root}, and the nodes here are {}", all.join(" and "));
            Finding::unknown(check, message, hint)
        }
        (Some(root), all) => {
            let message = format!("the lead broker runs on {root}, and the nodes here are {}", all.join(" and "));
            Finding::fail(check, message, hint)
        }
    }
}

/// One template says as whom brokers run on both sides. What it leaves to the image is the same if the image is.
fn user(template: &BurstTemplate) -> Finding {
    let (user, image) = runner(template);
    if let Some(uid) = user {
        return Finding::pass(Check::User, format!("brokers run as user {uid} on both sides"));
    }
    let message = format!("brokers of both sides run as the user that image {image} and fluxUser make");
    if is_pinned(&image) {
        return Finding::pass(Check::User, message);
    }
    let hint =
        "brokers of another user are turned away: write fluxUser.uid, or name the image by its digest (@sha256:…)";
    Finding::unknown(Check::User, message, hint)
}

/// The numeric user of the container that runs Flux, if it is written, and its image.
fn runner(template: &BurstTemplate) -> (Option<i64>, String) {
    let spec = MiniClusterSpec { containers: template.containers.clone(), ..MiniClusterSpec::default() };
    let of_pod = template.pod.security_context.run_as_user;
    let Ok(Runner { container, .. }) = spec.runner() else { return (of_pod, String::new()) };
    let (own, flux) = (container.security_context.kubernetes.run_as_user, &container.flux_user);
    let user = match own.or(of_pod) {
        _ if container.commands.run_flux_as_root => own.or(Some(0)),
        // Root alone becomes another user. What the id of a name is, the image says.
        None | Some(0) if flux.name.is_some() || flux.uid.is_some() => flux.uid,
        started => started,
    };
    (user, container.image().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tributary_contract::Outcome;

    use super::*;
    use crate::nodes::Taint;

    fn spec(version: Option<&str>, arch: Option<&str>, image: &str) -> HostedBurstSpec {
        HostedBurstSpec {
            flux_version: version.map(str::to_owned),
            arch: arch.map(str::to_owned),
            template: json!({"containers": [{"image": "app"}], "flux": {"container": {"image": image}}}),
            ..HostedBurstSpec::default()
        }
    }

    fn nodes(architectures: &[&str]) -> BTreeMap<String, NodeView> {
        let node = |(number, name): (usize, &&str)| {
            let view = NodeView { schedulable: true, architecture: Some((*name).into()), ..NodeView::default() };
            (format!("node-{number}"), view)
        };
        architectures.iter().enumerate().map(node).collect()
    }

    fn outcome(spec: &HostedBurstSpec, nodes: &BTreeMap<String, NodeView>, check: &Check) -> Outcome {
        findings(spec, nodes).into_iter().find(|finding| finding.check == *check).unwrap().outcome
    }

    #[test]
    fn versions_are_compared_where_both_are_known() {
        use Outcome::{Fail, Pass, Unknown};
        for (root, image, expected) in [
            (Some("0.68"), "flux-view:0.68.0-noble", Pass),
            (Some("0.68"), "flux-view:0.75.0-noble", Fail),
            (Some("0.68"), "flux-view:tag-noble", Pass),
            (None, "flux-view:tag-noble", Unknown),
        ] {
            let found = outcome(&spec(root, None, image), &nodes(&["amd64"]), &Check::FluxVersion);
            assert_eq!(found, expected, "{root:?} {image}");
        }
        for (image, expected) in [("flux-view:tag-noble", Unknown), ("flux-view@sha256:00", Pass)] {
            assert_eq!(outcome(&spec(None, None, image), &nodes(&[]), &Check::ViewImage), expected, "{image}");
        }
    }

    #[test]
    fn architectures_of_nodes_are_compared_with_the_leads() {
        use Outcome::{Fail, Pass, Unknown};
        for (root, here, expected) in [
            (Some("amd64"), &["amd64", "amd64"][..], Pass),
            (Some("amd64"), &["arm64"], Fail),
            (Some("amd64"), &["arm64", "amd64"], Unknown),
            (Some("amd64"), &[], Unknown),
            (None, &["amd64"], Unknown),
        ] {
            let found = outcome(&spec(None, root, "view"), &nodes(here), &Check::Architecture);
            assert_eq!(found, expected, "{root:?} {here:?}");
        }
    }

    #[test]
    fn only_nodes_that_the_pods_may_run_on_have_a_say() {
        let mut all = nodes(&["amd64", "arm64", "arm64"]);
        let [one, two, three] = ["node-0", "node-1", "node-2"].map(|name| all.remove(name).unwrap());
        let labels = BTreeMap::from([("pool".to_owned(), "hpc".to_owned())]);
        let taint = Taint { key: "arm".into(), value: String::new(), effect: "NoSchedule".into() };
        let all = BTreeMap::from([
            ("ours".to_owned(), NodeView { labels: labels.clone(), ..one }),
            ("theirs".to_owned(), two),
            ("tainted".to_owned(), NodeView { labels, taints: vec![taint], ..three }),
        ]);
        let mut spec = spec(None, Some("amd64"), "view");
        assert_eq!(outcome(&spec, &all, &Check::Architecture), Outcome::Unknown, "any node will do");
        spec.template["pod"] = json!({"nodeSelector": {"pool": "hpc"}});
        assert_eq!(outcome(&spec, &all, &Check::Architecture), Outcome::Pass);
        spec.arch = Some("arm64".into());
        assert_eq!(outcome(&spec, &all, &Check::Architecture), Outcome::Fail);
    }

    #[test]
    fn the_user_is_the_same_if_it_is_written_or_the_image_is() {
        let mut spec = spec(None, None, "view");
        let user = |spec: &HostedBurstSpec| {
            findings(spec, &nodes(&[])).into_iter().find(|finding| finding.check == Check::User).unwrap()
        };
        let found = user(&spec);
        assert_eq!((found.outcome, found.hint.is_empty()), (Outcome::Unknown, false), "{found:?}");
        spec.template["containers"] = json!([{"image": "app@sha256:00"}]);
        assert_eq!(user(&spec).outcome, Outcome::Pass);
        spec.template["pod"] = json!({"securityContext": {"runAsUser": 4711}});
        assert!(user(&spec).message.contains("4711"));
        // As rendering decides.
        for (container, expected) in [
            (json!({"securityContext": {"runAsUser": 1001}}), "as user 1001 "),
            (json!({"fluxUser": {"uid": 1002}, "securityContext": {"runAsUser": 0}}), "as user 1002 "),
            (json!({"fluxUser": {"name": "ann"}, "securityContext": {"runAsUser": 0}}), "as the user that image"),
            (json!({"fluxUser": {"uid": 1002}}), "as user 4711 "),
            (json!({"fluxUser": {"uid": 1002}, "commands": {"runFluxAsRoot": true}}), "as user 0 "),
            (json!({"securityContext": {"runAsUser": 5}, "commands": {"runFluxAsRoot": true}}), "as user 5 "),
        ] {
            spec.template["containers"] = json!([container]);
            let found = user(&spec).message;
            assert!(found.contains(expected), "{container}: {found}");
        }
    }
}
