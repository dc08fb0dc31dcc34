//! The registry of metrics; a metric is defined beside its owner.
