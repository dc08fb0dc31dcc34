//! The MiniCluster controller.
