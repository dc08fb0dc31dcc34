//! The commands of the move.

use super::report::{DefinitionRow, OperatorRow, Step};
use crate::kubernetes::DEFINITION;

/// See the README's section Install, and `crds` in the chart's values.
const INSTALL: &str = "helm install tributary charts/tributary --namespace tributary-system --create-namespace \
                       --set cluster.name=east --set image.repository=REGISTRY/tributary-agent --set crds.enabled=false";

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
        let why = "start an agent, and name this cluster and where the agent's image is. The definitions above are no release's, and \
                   helm would stop at them; with --take-ownership (helm 3.17) in the place of crds.enabled=false the release has \
                   them from now on. Without helm: tributary-agent --config agent.toml";
        steps.push(step(why, INSTALL.to_owned()));
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
