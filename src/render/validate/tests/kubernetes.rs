//! Rules of Kubernetes' and of Flux's own: what would only fail once the objects are there.

use super::{check, check_with};
use crate::tests::lake;
use crate::{Context, render};

#[test]
fn pods() {
    let overhead = "spec.pod.resources: an overhead of pods needs a runtime class that declares the same: write \
                    pod.runtimeClassName, or put what a container needs into its own resources";
    check_with(&[
        ("pod: {resources: {cpu: 1}}", overhead),
        (
            "pod: {dnsPolicy: Cluster}",
            "spec.pod.dnsPolicy: \"Cluster\" is no DNS policy: write ClusterFirst, ClusterFirstWithHostNet, Default, None",
        ),
        (
            "pod: {dnsPolicy: None}",
            "spec.pod.dnsConfig: with the DNS policy None the pods know no name server: write pod.dnsConfig.nameservers",
        ),
        (
            "shareProcessNamespace: true, pod: {hostPID: true}",
            "spec.shareProcessNamespace: hostPID and shareProcessNamespace exclude each other: with hostPID all processes of \
             the node are seen",
        ),
        (
            "pod: {nodeAffinity: {type: []}}",
            "spec.pod.nodeAffinity.type: no value is written: list the values of the label that nodes may have",
        ),
        (
            "pod: {resourceClaims: [{name: a}]}",
            "spec.pod.resourceClaims[0]: write either resourceClaimName or resourceClaimTemplateName",
        ),
        ("size: 100001", "spec.size: 100001 pods are more than the 100000 that an indexed Job can have"),
        ("maxSize: 100001", "spec.maxSize: 100001 pods are more than the 100000 that an indexed Job can have"),
    ]);
}

#[test]
fn tolerations() {
    let one = |toleration: &str| format!("pod: {{tolerations: [{toleration}]}}");
    check_with(&[
        (
            &one("{key: a, operator: Exists, value: b}"),
            "spec.pod.tolerations[0].value: a value is compared with the operator Equal only: remove it, or write Equal",
        ),
        (
            &one("{effect: NoSchedule}"),
            "spec.pod.tolerations[0].key: key is missing: write it, or the operator Exists to tolerate every taint",
        ),
        (
            &one("{key: a, operator: Is}"),
            "spec.pod.tolerations[0].operator: \"Is\" is no operator: write Equal or Exists",
        ),
        (
            &one("{key: a, effect: Never}"),
            "spec.pod.tolerations[0].effect: \"Never\" is no effect of a taint: write NoSchedule, PreferNoSchedule, \
             NoExecute, or nothing for all",
        ),
        (
            &one("{key: a, tolerationSeconds: 3}"),
            "spec.pod.tolerations[0].tolerationSeconds: tolerationSeconds counts from the eviction by a taint: write the \
             effect NoExecute",
        ),
    ]);
}

#[test]
fn labels_and_references() {
    let object = |field: &str, name: &str| {
        format!(
            "{field}: {name:?} is no name of an object: use at most 253 lower case letters, digits, '-' and '.', the first \
             and the last a letter or a digit"
        )
    };
    let key = "\"a b\" is no key of a label or an annotation: use at most 63 letters, digits, '-', '_' and '.', with a DNS \
               name and '/' in front if it is not your own";
    let value = "\"a b\" is no value of a label: use at most 63 letters, digits, '-', '_' and '.', the first and the last a \
                 letter or a digit";
    check_with(&[
        ("jobLabels: {a b: c}", &format!("spec.jobLabels: {key}")),
        ("pod: {labels: {a: a b}}", &format!("spec.pod.labels.a: {value}")),
        ("pod: {nodeSelector: {a: a b}}", &format!("spec.pod.nodeSelector.a: {value}")),
        ("pod: {annotations: {a b: c}}", &format!("spec.pod.annotations: {key}")),
        ("pod: {nodeAffinity: {a b: [c]}}", &format!("spec.pod.nodeAffinity: {key}")),
        ("pod: {serviceAccountName: A}", &object("spec.pod.serviceAccountName", "A")),
        ("pod: {runtimeClassName: A}", &object("spec.pod.runtimeClassName", "A")),
        ("pod: {priorityClassName: A}", &object("spec.pod.priorityClassName", "A")),
        ("pod: {schedulerName: A}", &object("spec.pod.schedulerName", "A")),
        ("flux: {mungeSecret: A}", &object("spec.flux.mungeSecret", "A")),
        ("flux: {curveCertSecret: A}", &object("spec.flux.curveCertSecret", "A")),
        ("flux: {container: {imagePullSecret: A}}", &object("spec.flux.container.imagePullSecret", "A")),
    ]);
    let one = |container: &str| format!("containers: [{{{container}}}]");
    check(&[
        (&one("imagePullSecret: A"), &object("spec.containers[0].imagePullSecret", "A")),
        (&one("secrets: {T: {name: A, key: k}}"), &object("spec.containers[0].secrets.T.name", "A")),
        (
            &one("secrets: {T: {name: a, key: 'a b'}}"),
            "spec.containers[0].secrets.T.key: \"a b\" is no key of a Secret or a ConfigMap: use letters, digits, '-', '_' \
             and '.'",
        ),
        (
            &one("environment: {'A=B': c}"),
            "spec.containers[0].environment: \"A=B\" is no name of a variable: use printable ASCII characters without '='",
        ),
        (
            &one("image: 'ubuntu: noble'"),
            "spec.containers[0].image: \"ubuntu: noble\" has white space, which no name of an image has: remove it",
        ),
        (&one("volumes: {d: {path: /d, secretName: A}}"), &object("spec.containers[0].volumes.d.secretName", "A")),
        (
            &one("volumes: {d: {path: /d, configMapName: A}}"),
            &object("spec.containers[0].volumes.d.configMapName", "A"),
        ),
        (&one("volumes: {d: {path: /d, claimName: A}}"), &object("spec.containers[0].volumes.d.claimName", "A")),
    ]);
}

#[test]
fn resources() {
    let one = |resources: &str| format!("containers: [{{resources: {{{resources}}}}}]");
    let path = "spec.containers[0].resources";
    check(&[
        (
            &one("limits: {gpu: 1}"),
            &format!(
                "{path}.limits.gpu: gpu is no resource of a container: write cpu, memory, ephemeral-storage, \
                 hugepages-<size>, or a device with its domain, like nvidia.com/gpu"
            ),
        ),
        (
            &one("limits: {cpu: a few}"),
            &format!("{path}.limits.cpu: \"a few\" is no amount: write it like 2, 500m or 8Gi"),
        ),
        (&one("limits: {cpu: -1}"), &format!("{path}.limits.cpu: -1 is less than nothing")),
        (
            &one("limits: {nvidia.com/gpu: 500m}"),
            &format!("{path}.limits.nvidia.com/gpu: 500m is no whole number, and a device cannot be divided"),
        ),
        (
            &one("limits: {cpu: 1}, requests: {cpu: 1500m}"),
            &format!("{path}.requests.cpu: the request 1500m is more than the limit 1: lower it, or raise the limit"),
        ),
        (
            &one("requests: {nvidia.com/gpu: 1}"),
            &format!(
                "{path}.requests.nvidia.com/gpu: a request for nvidia.com/gpu needs a limit that is the same: write \
                 limits.nvidia.com/gpu: 1"
            ),
        ),
        (
            &one("limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}"),
            &format!(
                "{path}.requests.nvidia.com/gpu: the request 1 and the limit 2 of nvidia.com/gpu must be the same"
            ),
        ),
        (
            &one("claims: [{name: gpu}]"),
            &format!("{path}.claims[0].name: pod.resourceClaims has no claim gpu: declare it there"),
        ),
    ]);
    // What Kubernetes takes is not in the way.
    let fine = "  containers: [{resources: {limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 1, hugepages-2Mi: 4Mi}, requests: \
                {cpu: 500m, nvidia.com/gpu: '1'}}}]\n";
    render(&lake(fine), &Context::default()).unwrap();
}

#[test]
fn paths_and_sources_of_volumes() {
    let one = |volume: &str| format!("containers: [{{volumes: {{d: {{{volume}}}}}}}]");
    let path = "spec.containers[0].volumes.d";
    check(&[
        (
            &one("path: /, claimName: c"),
            &format!("{path}: path is the root of the container's file system: choose a directory in it"),
        ),
        (
            &one("path: /opt/software/, claimName: c"),
            &format!("{path}: something else is mounted at /opt/software/ already: choose another path"),
        ),
        (
            &one("path: /d, hostPath: data"),
            &format!("{path}.hostPath: \"data\" is no absolute path of a directory of the node, without '..'"),
        ),
        (
            &one("path: /d, configMapName: m, items: {a: /b}"),
            &format!(
                "{path}.items.a: \"/b\" is no path within the volume: write it without '/' in front and without '..'"
            ),
        ),
        (
            &one("path: /d, configMapName: m, items: {'a b': b}"),
            &format!(
                "{path}.items: \"a b\" is no key of a Secret or a ConfigMap: use letters, digits, '-', '_' and '.'"
            ),
        ),
        (
            &one("emptyDir: true, emptyDirMedium: ram"),
            &format!("{path}: emptyDirMedium \"ram\" is unknown: write Memory, or leave it out for the node's disk"),
        ),
        (
            "{containers: [{volumes: {d: {path: /etc/munge, claimName: c}}}], flux: {mungeSecret: m}}",
            &format!("{path}: something else is mounted at /etc/munge already: choose another path"),
        ),
        (
            "{containers: [{volumes: {d: {path: /d}}}], volumes: {d: {path: /srv, storageClass: nfs}}}",
            "spec.volumes.d.storageClass: the storage class \"nfs\" needs a capacity: write it, or make a claim, and name it in claimName",
        ),
    ]);
}

#[test]
fn services_of_containers_do_not_hide_the_mini_clusters_own() {
    let beside =
        |name: &str, rest: &str| format!("{{containers: [{{runFlux: true}}, {{name: {name}, ports: [80]}}], {rest}}}");
    let taken = |name: &str| {
        format!(
            "spec.containers[1].name: a service {name} is made for the MiniCluster already: choose another name for the \
             container"
        )
    };
    check(&[
        (&beside("springs", "network: {headlessName: springs}"), &taken("springs")),
        (&beside("lake-lead", "flux: {bursting: {clusters: [{}]}}"), &taken("lake-lead")),
    ]);
    render(&lake(&format!("  {}\n", beside("lake-lead", "size: 1"))), &Context::default()).unwrap();
}

#[test]
fn groups_of_one_pod() {
    let elsewhere = "a pod has one group for its volumes, and 7 is written elsewhere: write one of them";
    check(&[
        (
            "{containers: [{securityContext: {fsGroup: 8}}], pod: {securityContext: {fsGroup: 7}}}",
            &format!("spec.containers[0].securityContext.fsGroup: {elsewhere}"),
        ),
        (
            "{containers: [{}], services: [{name: a, securityContext: {fsGroup: 7}}, {name: b, securityContext: {fsGroup: 8}}]}",
            &format!("spec.services[1].securityContext.fsGroup: {elsewhere}"),
        ),
    ]);
}

#[test]
fn settings_that_flux_would_end_on() {
    check_with(&[
        (
            "flux: {scheduler: {queuePolicy: fair}}",
            "spec.flux.scheduler.queuePolicy: \"fair\" is no queue policy: write fcfs, easy, hybrid, conservative or simple",
        ),
        (
            "flux: {connectTimeout: 5 sec}",
            "spec.flux.connectTimeout: \"5 sec\" is no duration of Flux: write it like 500ms, 5s or 1m, or an empty text for \
             none",
        ),
        (
            "flux: {brokerConfig: \"[exec]\\n...\\n\"}",
            "spec.flux.brokerConfig: line 2 is no TOML (invalid key): no broker would start with it",
        ),
        (
            "flux: {bursting: {hostlist: 'cloud-0,lake-0'}}",
            "spec.flux.bursting.hostlist: the first host must be lake-0: it is rank 0, the lead broker",
        ),
        (
            "size: 3, flux: {bursting: {hostlist: 'lake-[0-1],cloud-0'}}",
            "spec.flux.bursting.hostlist: lake-2 is missing: a broker whose host is not listed has no rank",
        ),
        (
            "size: 2, flux: {leadBroker: {address: a, name: river, size: 1}, bursting: {hostlist: 'river-0,lake-0'}}",
            "spec.flux.bursting.hostlist: lake-1 is missing: a broker whose host is not listed has no rank",
        ),
    ]);
    for timeout in ["5s", "500ms", "0.5", "1.5m", "2h", "1d", "inf", "0s"] {
        render(&lake(&format!("  containers: [{{}}]\n  flux: {{connectTimeout: '{timeout}'}}\n")), &Context::default())
            .unwrap_or_else(|problems| panic!("{problems}"));
    }
}
