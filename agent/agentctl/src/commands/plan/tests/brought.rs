//! Namespaces, queues and quotas that a manifest brings along.

use super::*;

/// The danger: `helm template . | agentctl plan -f -` refuses what the same manifest brings.
#[test]
fn what_a_manifest_brings_is_there() {
    let setups = [("flux".to_owned(), None)].into();
    let bare = Known { setups, no_namespaces: vec!["flux".into()], quotas: Default::default(), ..known() };
    let reasons = |text: &str| -> Vec<String> {
        let plan = plan(&read(text), &bare).mini_clusters.remove(0);
        plan.problems.iter().map(|problem| problem.reason.clone()).collect()
    };
    assert_eq!(reasons(SOLVE), ["NamespaceNotFound", "NoFluxSetup"]);
    let namespace = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: flux}}\n";
    let setup = |name: &str, brokers: u32| {
        format!(
            "---\n{{apiVersion: tributary.dev/v1alpha1, kind: FluxSetup, metadata: {{name: {name}, namespace: flux}}, \
             spec: {{quota: {{brokers: {brokers}}}}}}}\n"
        )
    };
    assert_eq!(reasons(&format!("{SOLVE}{namespace}{}", setup("default", 3))), Vec::<String>::new());
    assert_eq!(reasons(&format!("{SOLVE}{namespace}{}", setup("default", 2))), ["NeverFits"]);
    // The danger: "starts at once", and its user holds it back.
    let held = SOLVE.replace("spec: {", "spec: {suspend: true, ");
    let held = plan(&read(&format!("{held}{namespace}{}", setup("default", 3))), &bare).mini_clusters.remove(0);
    assert_eq!((held.change.as_str(), held.queue), ("is made, and held back (suspend)", None));
    assert_eq!(reasons(&format!("{SOLVE}{namespace}{}", setup("other", 3))), ["NoFluxSetup"]);
    let pods = |pods: u32| {
        let quota = format!(
            "---\n{{apiVersion: v1, kind: ResourceQuota, metadata: {{name: team, namespace: flux}}, spec: {{hard: {{pods: \
             {pods}}}}}}}\n"
        );
        // One of this name leaves room for six cores of eight, and one pod is counted there.
        let report = plan(&read(&format!("{LAKE}{quota}")), &known());
        let charges = &report.mini_clusters[0].clusters[0].charges;
        charges.iter().map(|charge| (charge.resource.clone(), charge.fits)).collect::<Vec<_>>()
    };
    assert_eq!([pods(5), pods(4)], [true, false].map(|fits| vec![("pods".to_owned(), fits)]));
}
