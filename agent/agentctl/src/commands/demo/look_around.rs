//! What to try while a demo stays up.

use std::path::Path;

use super::agent::Agent;
use super::clusters::DemoCluster;
use super::root::{NAME, NAMESPACE};
use crate::paste::quoted;

/// Commands that work as they are printed, from any directory. `program` is where this program is.
pub(super) fn text(program: &Path, clusters: &[DemoCluster], agents: &[Agent], simulated: bool) -> String {
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
    if let (Some(root), Some(agent)) = (clusters.first(), agents.first()) {
        let program = quoted(&program.to_string_lossy());
        line(format!("{program} status --watch --endpoint http://{} {}", agent.admin, of(root)));
    }
    if let Some(root) = clusters.first() {
        line(format!("{} delete minicluster {NAME}    # the peers are empty a moment later", kubectl(root)));
    }
    for agent in agents {
        line(format!("less {}", quoted(&agent.log.to_string_lossy())));
    }
    text.push_str(if simulated {
        "Ctrl-C ends the clusters and removes everything.\n"
    } else {
        "Ctrl-C removes what the demo made in your clusters.\n"
    });
    text
}

fn kubectl(cluster: &DemoCluster) -> String {
    format!("kubectl {} -n {NAMESPACE}", of(cluster))
}

/// The options of a cluster.
fn of(cluster: &DemoCluster) -> String {
    let (file, context) = (cluster.access.kubeconfig.to_string_lossy(), &cluster.access.context);
    format!("--kubeconfig {} --context {}", quoted(&file), quoted(context))
}
