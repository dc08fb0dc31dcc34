//! All peers of this cluster.
//!
//! | part | what it does |
//! |---|---|
//! | [`resolve`] | endpoints of a ClusterPeer to addresses |
//! | [`dial`] | whichever of them answers first |
pub mod dial;
pub mod resolve;
