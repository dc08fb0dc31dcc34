//! What a process tells of itself while it runs: [`log`] lines, and [`trace`]s of what it did for which change. Metrics are
//! defined beside their owners ([`tributary_metrics`]).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub(crate) mod log;
pub(crate) mod trace;

pub use log::{FilterError, change_filter, install};
pub use trace::{Span, SpanSink, TraceContext, Traces};
