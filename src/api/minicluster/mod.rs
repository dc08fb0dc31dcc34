//! `MiniCluster`: `flux-framework.org/v1alpha2`.
