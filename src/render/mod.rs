//! MiniCluster to Kubernetes objects, without a client.
