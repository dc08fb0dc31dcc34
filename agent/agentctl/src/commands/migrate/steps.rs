//! The commands of the move.

use super::look::DEFINITION;
use super::report::{DefinitionRow, OperatorRow, Step};

/// The commands, in order, for what was found.
pub(super) fn steps(operators: &[OperatorRow], definition: Option<&DefinitionRow>) -> Vec<Step> {
    let step = |why: &str, command: String| Step { why: why.to_owned(), command };
    let mut steps = Vec::new();
    for OperatorRow { namespace, name, .. } in operators.iter().filter(|operator| operator.replicas > 0) {
        let why = "stop the Flux Operator; running Jobs go on without it";
        steps.push(step(why, format!("kubectl --namespace {namespace} scale deployment {name} --replicas=0")));
    }
    if definition.is_none_or(|definition| !definition.tributarys) {
        let why = "put Tributary's definitions in the place of the old one; MiniClusters stay";
        steps.push(step(why, "kubectl apply --server-side --force-conflicts -f config/crd".to_owned()));
    }
    if !steps.is_empty() {
        steps.push(step("start an agent", "tributary-agent --config agent.toml".to_owned()));
        let why = "every MiniCluster has a phase and conditions now; those with an old Job say Adopted";
        steps.push(step(why, "kubectl get miniclusters --all-namespaces -o wide".to_owned()));
    }
    for OperatorRow { namespace, name, helm_release, .. } in operators {
        let why = format!(
            "remove it, when you are content. Its manifest{} would delete the definition {DEFINITION} as well, and every \
             MiniCluster with it: delete the Deployment alone",
            if helm_release.is_some() { " (helm uninstall)" } else { "" }
        );
        steps.push(step(&why, format!("kubectl --namespace {namespace} delete deployment {name}")));
        if let Some(release) = helm_release {
            let why = "make Helm forget the release without deleting what it holds";
            let selector = format!("owner=helm,name={release}");
            steps.push(step(why, format!("kubectl --namespace {namespace} delete secrets --selector {selector}")));
        }
    }
    steps
}
