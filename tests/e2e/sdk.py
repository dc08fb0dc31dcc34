"""Runs MiniClusters to their end with the Flux Operator's Python SDK, and prints what it says of each as a line of JSON.

Arguments: namespace, then a JSON object of names and specs. The cluster is the current context of $KUBECONFIG.
"""

import json
import sys

from fluxoperator.client import FluxMiniCluster
from kubernetes import client, config

namespace, specs = sys.argv[1], json.loads(sys.argv[2])
config.load_kube_config()

for name, spec in specs.items():
    made = client.CustomObjectsApi().create_namespaced_custom_object(
        group="flux-framework.org",
        version="v1alpha2",
        namespace=namespace,
        plural="miniclusters",
        body={
            "apiVersion": "flux-framework.org/v1alpha2",
            "kind": "MiniCluster",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        },
    )
    cluster = FluxMiniCluster()
    # Waits until as many pods as brokers ran or have completed.
    cluster.load(made)
    output = cluster.stream_output("/dev/null", stdout=False)
    print(json.dumps({"name": name, "pods": sorted(cluster.pods), "output": output}), flush=True)
