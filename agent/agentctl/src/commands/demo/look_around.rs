//! What to try while a demo stays up.

use super::agent::Agent;
use super::clusters::DemoCluster;
use super::root::{NAME, NAMESPACE};

/// Commands that work as they are printed. `program` is how this program was called.
pub(super) fn text(program: &str, clusters: &[DemoCluster], agents: &[Agent], simulated: bool) -> String {
    let mut text = String::from("Look around, in another terminal:\n");
    let mut line = |line: String| {
        text.push_str("  ");
        text.push_str(&line);
        text.push('\n');
    };
    if let Some(root) = clusters.first() {
        let kubectl = kubectl(root);
        line(format!("{kubectl} get miniclusters,bursts,pods,services"));
        line(format!("{kubectl} get minicluster {NAME} -o yaml"));
    }
    for peer in clusters.iter().skip(1) {
        line(format!("{} get hostedbursts,miniclusters,pods,endpointslices", kubectl(peer)));
    }
    if let Some(agent) = agents.first() {
        line(format!("{program} status --watch --endpoint http://{}", agent.admin));
    }
    if let Some(root) = clusters.first() {
        line(format!("{} delete minicluster {NAME}    # the peers are empty a moment later", kubectl(root)));
    }
    for agent in agents {
        line(format!("less {}", agent.log.display()));
    }
    text.push_str(if simulated {
        "Ctrl-C ends the clusters and removes everything.\n"
    } else {
        "Ctrl-C removes what the demo made in your clusters.\n"
    });
    text
}

fn kubectl(cluster: &DemoCluster) -> String {
    let (file, context) = (cluster.access.kubeconfig.display(), &cluster.access.context);
    format!("kubectl --kubeconfig {file} --context {context} -n {NAMESPACE}")
}
