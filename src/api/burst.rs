//! `Burst`: one declared burst slot of a root MiniCluster (root side).
