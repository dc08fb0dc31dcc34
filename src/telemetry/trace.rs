//! Traces: what belongs to one change, across clusters and restarts.
//!
//! Controllers are level-triggered: a change is carried out in many short passes, by several processes. So no span is held
//! open. A [`Span`] is recorded once it is over, at the transition that ends it, with the times that the objects have; ids
//! are digests of what a span is about. A restart continues a trace, and a pass that is repeated records the same span.
//!
//! ```text
//! MiniCluster (its UID and generation, or the annotation `tributary.dev/traceparent`)
//!   └▶ Burst (annotation) ══ QUIC: DesiredBurst.trace ══▶ HostedBurst (annotation) └▶ hosted MiniCluster (annotation)
//! ```
//!
//! A context that a peer or a user wrote is data: 55 characters, or it is not there; nothing is decided by it.

use std::fmt;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// Length of a context as text.
const LENGTH: usize = 55;
/// Version of the format.
const VERSION: &str = "00";

/// A span of a trace, in the form of the header `traceparent` (W3C Trace Context, section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    sampled: bool,
}

impl TraceContext {
    /// Reads `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`, in lower case and neither of them zero; `None`: it is
    /// none.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let [VERSION, trace, span, flags] = parts[..] else { return None };
        let (trace, span, [flags]) = (bytes::<16>(trace)?, bytes::<8>(span)?, bytes::<1>(flags)?);
        let named = text.len() == LENGTH && trace != [0; 16] && span != [0; 8];
        named.then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// The first span of a trace of its own, about what these words name.
    pub fn about(words: &[&str]) -> Self {
        Self { trace: digest("trace", words), span: digest("span", words), sampled: true }
    }

    /// The span of this trace that is about what these words name.
    #[must_use]
    pub fn child(&self, words: &[&str]) -> Self {
        let own = HEXLOWER.encode(&self.span);
        let words: Vec<&str> = [own.as_str()].into_iter().chain(words.iter().copied()).collect();
        Self { span: digest("span", &words), ..*self }
    }

    /// Id of the trace.
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace
    }

    /// Id of the span.
    pub const fn span_id(&self) -> [u8; 8] {
        self.span
    }

    /// Whether spans of this trace are wanted by whoever began it.
    pub const fn is_sampled(&self) -> bool {
        self.sampled
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{VERSION}-{}-{}-{:02x}",
            HEXLOWER.encode(&self.trace),
            HEXLOWER.encode(&self.span),
            u8::from(self.sampled)
        )
    }
}

/// The first bytes of a digest; no digest is zero in practice, and one that were would be no id.
fn digest<const N: usize>(what: &str, words: &[&str]) -> [u8; N] {
    let mut hash = Sha256::new();
    for word in [what].iter().chain(words) {
        // Separated, so that no two lists are one text.
        hash.update(u64::try_from(word.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(word.as_bytes());
    }
    let all = hash.finalize();
    std::array::from_fn(|at| all[at])
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// Something that took from `start` to `end`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// What it is.
    pub name: &'static str,
    /// Its ids.
    pub context: TraceContext,
    /// What it is a part of; `None`: of nothing, it is the first of its trace.
    pub parent: Option<TraceContext>,
    /// When it began, by the clock of this machine or of the API server.
    pub start: Timestamp,
    /// When it was over.
    pub end: Timestamp,
    /// More about it, by names of OpenTelemetry's semantic conventions, or of ours (`tributary.…`).
    pub attributes: Vec<(&'static str, String)>,
}

impl Span {
    /// The part `name` of `parent`. A clock that was set back makes it short, never negative.
    pub fn part(parent: &TraceContext, name: &'static str, start: Timestamp, end: Timestamp) -> Self {
        let context = parent.child(&[name, &start.to_string()]);
        Self { name, context, parent: Some(*parent), start, end: end.max(start), attributes: Vec::new() }
    }

    /// The same with something more about it.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }
}

/// Takes spans. It must not wait: what does not fit is dropped.
pub trait SpanSink: Send + Sync {
    /// Takes a span.
    fn record(&self, span: Span);
}

/// Where spans go; nowhere by default.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<dyn SpanSink>>);

impl Traces {
    /// To this sink.
    pub fn to(sink: Arc<dyn SpanSink>) -> Self {
        Self(Some(sink))
    }

    /// Whether spans go anywhere.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records spans of traces that are wanted.
    pub fn record(&self, spans: impl IntoIterator<Item = Span>) {
        let Some(sink) = &self.0 else { return };
        spans.into_iter().filter(|span| span.context.sampled).for_each(|span| sink.record(span));
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.are_on() { "Traces(on)" } else { "Traces(off)" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_specification_is_read_and_written_again() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse(text).unwrap();
        assert_eq!((context.to_string(), context.is_sampled()), (text.to_owned(), true));
        assert!(!TraceContext::parse(&text.replace("-01", "-00")).unwrap().is_sampled());
        assert_eq!(text.len(), LENGTH);
    }

    #[test]
    fn anything_else_is_no_context() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_span = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16));
        let long = format!("{good}-{}", "f".repeat(10_000));
        let bad = ["", "-", "01", &good.to_uppercase(), &good[1..], &zero_trace, &zero_span, &long, "00-é-é-01"];
        for text in bad {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
        assert_eq!(TraceContext::parse(&good.replacen("00", "ff", 1)), None, "a version that is not ours");
    }

    #[test]
    fn the_same_words_are_the_same_span() {
        let change = TraceContext::about(&["uid", "3"]);
        assert_eq!(change, TraceContext::about(&["uid", "3"]));
        assert_ne!(change.trace_id(), TraceContext::about(&["uid3"]).trace_id());
        let (a, b) = (change.child(&["a"]), change.child(&["b"]));
        assert_eq!((a.trace_id(), a), (change.trace_id(), change.child(&["a"])));
        assert!(a.span_id() != b.span_id() && a.child(&["b"]).span_id() != b.span_id());
    }

    #[test]
    fn what_is_not_wanted_is_not_recorded() {
        #[derive(Default)]
        struct Kept(std::sync::Mutex<Vec<Span>>);
        impl SpanSink for Kept {
            fn record(&self, span: Span) {
                self.0.lock().unwrap().push(span);
            }
        }
        let kept = Arc::<Kept>::default();
        let traces = Traces::to(kept.clone());
        let (wanted, other) =
            (TraceContext::about(&["a"]), TraceContext { sampled: false, ..TraceContext::about(&["b"]) });
        let (later, earlier) = (Timestamp::from_second(2).unwrap(), Timestamp::UNIX_EPOCH);
        traces.record([wanted, other].map(|context| Span::part(&context, "step", later, earlier)));
        let kept = kept.0.lock().unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!((kept[0].parent, kept[0].start, kept[0].end), (Some(wanted), later, later));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_again(text in "\\PC{0,60}", flags in 0_u8..4) {
            let _ = TraceContext::parse(&text);
            let context = TraceContext::about(&[&text]);
            prop_assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
            let flagged = format!("{}{flags:02x}", &context.to_string()[..53]);
            prop_assert_eq!(TraceContext::parse(&flagged).unwrap().is_sampled(), flags & 1 == 1);
        }
    }
}
