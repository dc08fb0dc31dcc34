//! `ClusterPeer`: another cluster of the federation.
