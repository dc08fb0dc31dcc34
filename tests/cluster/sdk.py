"""Makes and deletes a MiniCluster with the Flux Operator's Python SDK, as its users do.

Arguments: namespace, name. The cluster is the current context of $KUBECONFIG. Prints the pods it waited for.
"""

import json
import sys

from fluxoperator.client import FluxMiniCluster
from fluxoperator.models import (
    Bursting,
    Commands,
    ContainerResources,
    ContainerVolume,
    FluxContainer,
    FluxScheduler,
    FluxSpec,
    LifeCycle,
    LoggingSpec,
    MiniCluster,
    MiniClusterContainer,
    MiniClusterSpec,
    Network,
    PodSpec,
    Secret,
    SecurityContext,
)
from kubernetes import client, config
from kubernetes.client import V1ObjectMeta

namespace, name = sys.argv[1:]
config.load_kube_config()

container = MiniClusterContainer(
    image="rockylinux:9",
    name="app",
    run_flux=True,
    command="sleep infinity",
    working_dir="/tmp",
    environment={"OMP_NUM_THREADS": "2"},
    secrets={"TOKEN": Secret(name="token", key="value")},
    commands=Commands(pre="echo pre", broker_pre="echo broker", worker_pre="echo worker", post="echo post"),
    resources=ContainerResources(requests={"cpu": 1}, limits={"cpu": 1, "memory": "1Gi"}),
    volumes={"data": ContainerVolume(path="/data", config_map_name="data", items={"a": "a.txt"})},
    life_cycle=LifeCycle(post_start_exec="echo hello"),
    security_context=SecurityContext(privileged=False),
)
sidecar = MiniClusterContainer(image="nginx:1", name="web", command="nginx", ports=[8080])
spec = MiniClusterSpec(
    size=3,
    max_size=4,
    min_size=2,
    tasks=4,
    deadline_seconds=9000,
    job_labels={"team": "hpc"},
    containers=[container, sidecar],
    flux=FluxSpec(
        option_flags="-ompi=openmpi@5",
        connect_timeout="10s",
        log_level=7,
        scheduler=FluxScheduler(queue_policy="easy"),
        container=FluxContainer(image="ghcr.io/converged-computing/flux-view-rocky:tag-9"),
        bursting=Bursting(),
    ),
    logging=LoggingSpec(quiet=True, strict=True),
    network=Network(headless_name="waters"),
    pod=PodSpec(labels={"tier": "batch"}, annotations={"note": "from Python"}, node_selector={"kubernetes.io/os": "linux"}),
)
mini_cluster = MiniCluster(
    kind="MiniCluster",
    api_version="flux-framework.org/v1alpha2",
    metadata=V1ObjectMeta(name=name, namespace=namespace),
    spec=spec,
)

made = client.CustomObjectsApi().create_namespaced_custom_object(
    group="flux-framework.org",
    version="v1alpha2",
    namespace=namespace,
    plural="miniclusters",
    body=mini_cluster,
    # What the definition does not know is an error, not dropped.
    field_validation="Strict",
)

cluster = FluxMiniCluster()
cluster.load(made)
print(json.dumps({"pods": sorted(cluster.pods), "broker": cluster.broker_pod, "spec": made["spec"]}))
cluster.delete()
