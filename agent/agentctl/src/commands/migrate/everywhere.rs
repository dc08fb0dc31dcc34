//! What differs for MiniClusters whatever their fields say: each is said once, of all that it concerns. Pure.

use tributary::api::minicluster::{MiniCluster, MiniClusterSpec, Runner};

use super::report::{Finding, Severity};

/// One difference: its rule, whom it concerns, what happens, and what to do.
struct Everywhere {
    rule: &'static str,
    concerns: fn(&MiniClusterSpec) -> bool,
    what: &'static str,
    hint: &'static str,
}

const ALL: [Everywhere; 6] = [
    Everywhere {
        rule: "CurveCert",
        concerns: |spec| spec.flux.curve_cert_secret.is_none(),
        what: "curve.cert was in the ConfigMap NAME-entrypoint; now it is in the Secret NAME-curve, and nowhere else",
        hint: "where something of yours reads it, mount the Secret",
    },
    Everywhere {
        rule: "DeletedJob",
        concerns: has_command,
        what: "the command ran once more when somebody deleted a Job that had ended; now the MiniCluster stays as it ended",
        hint: "`agentctl restart NAME` runs it once more",
    },
    Everywhere {
        rule: "FollowerPods",
        concerns: |spec| spec.max_size() > 1,
        what: "after a command that fails, and after an interactive instance, pods of followers stayed; now they are \
               deleted with the Job's other pods",
        hint: "read their logs before the Job ends, or have them collected",
    },
    Everywhere {
        rule: "ReadyPods",
        concerns: has_command,
        what: "a pod was Ready when its container ran; now it is when its broker has joined, so a short command may end before \
               its pods are",
        hint: "do not wait for Ready pods of such a command, but for status.phase of the MiniCluster: Succeeded or Failed",
    },
    Everywhere {
        rule: "SidecarEnd",
        concerns: |spec| spec.containers.len() > 1,
        what: "the Job did not complete while a sidecar ran; now a sidecar never decides how the run ends. One that fails \
               starts again in its pod. If commands.post is its only shell, that is its command. When Flux has ended, its command gets 5 s to end, and its commands.post 60 s, which \
               does not run in a pod that is stopped or whose container of Flux was killed",
        hint: "what has to happen before the end belongs into the command of the container that runs Flux",
    },
    Everywhere {
        rule: "SizeKept",
        concerns: |spec| spec.max_size.is_none(),
        what: "a size above the first one was reset; now it stays in the spec, and the condition RestartRequired says that \
               the instance has no such ranks",
        hint: "write maxSize for instances that are to grow",
    },
];

fn has_command(spec: &MiniClusterSpec) -> bool {
    let has = |runner: Runner<'_>| runner.container.command.is_some() || runner.container.commands.script.is_some();
    spec.runner().is_ok_and(has)
}

/// What is to be said of all these together.
pub(super) fn findings(mini_clusters: &[MiniCluster]) -> Vec<Finding> {
    let of = |one: &Everywhere| {
        let concerned = mini_clusters.iter().filter(|mini_cluster| (one.concerns)(&mini_cluster.spec)).count();
        (concerned > 0).then(|| Finding {
            object: if concerned == 1 { "1 MiniCluster".into() } else { format!("{concerned} MiniClusters") },
            ..Finding::of(Severity::Changes, one.rule, one.what, one.hint)
        })
    };
    ALL.iter().filter_map(of).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use tributary::render::{Context, render};

    use super::*;

    /// The names of all rules.
    pub(crate) fn rules() -> impl Iterator<Item = String> {
        ALL.iter().map(|one| one.rule.to_owned())
    }

    fn mini_cluster(spec: &str) -> MiniCluster {
        let yaml = format!("{{metadata: {{name: lake, namespace: waters, uid: u}}, spec: {{{spec}}}}}");
        serde_saphyr::from_str(&yaml).unwrap()
    }

    fn said(specs: &[&str]) -> Vec<String> {
        let all: Vec<MiniCluster> = specs.iter().map(|spec| mini_cluster(spec)).collect();
        findings(&all).iter().map(|finding| format!("{} {}", finding.rule, finding.object)).collect()
    }

    #[test]
    fn each_is_said_once_of_those_that_it_concerns() {
        assert_eq!(said(&[]), [""; 0]);
        let own = "flux: {curveCertSecret: own}, maxSize: 1, containers: [{}]";
        assert_eq!(said(&[own]), [""; 0]);
        assert_eq!(said(&[own, "containers: [{}]"]), ["CurveCert 1 MiniCluster", "SizeKept 1 MiniCluster"]);
        let two = "size: 2, containers: [{}, {command: sleep 1}]";
        let expected = ["CurveCert 2 MiniClusters", "FollowerPods 2 MiniClusters", "SidecarEnd 2 MiniClusters"];
        assert_eq!(said(&[two, two])[..3], expected);
    }

    #[test]
    fn ours_does_what_is_said_of_it() {
        let of = |spec: &str| render(&mini_cluster(spec), &Context::default()).unwrap();
        let sidecars = of("size: 2, containers: [{runFlux: true, command: hostname}, {name: log, command: sleep 1}]");
        assert!(!sidecars.boot.files.keys().any(|name| name.contains("curve")), "{:?}", sidecars.boot.files.keys());
        let job = serde_json::to_value(&sidecars.job).unwrap();
        assert!(job.to_string().contains(r#""secretName":"lake-curve""#), "{job}");
        // The lead alone decides: the Job has a success policy of its index.
        assert_eq!(job["spec"]["successPolicy"]["rules"][0]["succeededIndexes"], "0", "{job}");
        assert_eq!(job["spec"]["completions"], 2);
    }
}
