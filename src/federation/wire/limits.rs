//! Every limit of the wire, with its reason. Both sides hold them: the sender with an error about the one thing that is
//! too large, the receiver by closing the connection.

pub use tributary_tunnel::limits::{TUNNEL_CONNECTION, TUNNEL_FLOOR, TUNNEL_PIECE, TUNNEL_WINDOW};
pub(crate) use tributary_tunnel::limits::{TUNNEL_CONNECTIONS_PER_PEER, TUNNEL_LINK};

/// Bytes of one control frame. A summary of [`KEYS_PER_PEER`] keys takes 320 KiB; a state with the largest template and a
/// rank map of the same size takes 512 KiB.
pub const CONTROL_FRAME: usize = 1 << 20;

/// Bytes of a frame before the hello is accepted: name, UID, version and labels, nothing that grows.
pub const HELLO_FRAME: usize = 32 << 10;

/// Bytes of the template of a burst, as JSON. An object of the Kubernetes API holds 1.5 MiB at most (etcd's request
/// limit), and the rendered Job repeats most of the template once in its frozen boot files.
pub const TEMPLATE: usize = 256 << 10;

/// Bidirectional streams a peer may have open at a time: one control stream, the rest for requests. A hundred bursts
/// accepted at once wait for a stream, they do not fail.
pub(crate) const STREAMS_PER_PEER: u32 = 64;

/// Connections one peer may have at a time. Two overlap when both sides dial or a certificate is renewed; more than
/// that is a peer that forgets its connections, and the oldest one goes.
pub(crate) const CONNECTIONS_PER_PEER: usize = 4;

/// States a peer may keep here, and we at a peer. A root with 2,000 bursts on one peer has 4,000. What it names no more
/// counts as long as it is kept.
pub const KEYS_PER_PEER: usize = 4_096;

/// What the states of one peer may weigh together, in bytes of memory ([`weight`]): a lie of any shape costs that much, and
/// two thousand bursts with templates of 8 KiB fit into it.
pub(crate) const STATES_OF_A_PEER: usize = 64 << 20;

/// Bytes of the UID of a Burst, and of other UIDs in a state. Those of Kubernetes have 36.
pub const UID: usize = 64;

/// Bytes of a sentence inside a state: all that a pod violates has to fit.
pub(crate) const MESSAGE: usize = 4 << 10;

/// Bytes of a word inside a state or a hello: a digest, a version, a reason, a host name.
pub const WORD: usize = 256;

/// Bytes of a request or an answer about a credential. A certificate takes about 300 bytes.
pub(crate) const CREDENTIAL_FRAME: usize = 16 << 10;

/// Bytes of a query: a path with parameters.
pub(crate) const QUERY_FRAME: usize = 4 << 10;

/// Queries of one connection that are answered at a time: with the largest answers, 16 MiB for a peer that does not read.
/// The others wait for their turn.
pub(crate) const QUERIES_AT_A_TIME: usize = 4;

/// Bytes of the answer to a query: 10,000 bursts at 400 bytes each.
pub(crate) const ANSWER_FRAME: usize = 4 << 20;

/// Bytes of the sentence that goes with a close code or a rejected state. QUIC sends it in one packet.
pub const REASON: usize = 256;

/// Bytes of a request to join or its answer: a trust bundle, names and addresses.
pub(crate) const ENROL_FRAME: usize = 64 << 10;

/// Bytes of a trust bundle that travels: 16 authorities with RSA keys of 4096 bits.
pub(crate) const TRUST_BUNDLE: usize = 32 << 10;

/// Endpoints of a cluster that joins.
pub(crate) const ENDPOINTS: usize = 16;

/// Bytes handed to a link at a time: enough to fill packets, little enough that a heartbeat that becomes due does not
/// wait long behind it.
pub(crate) const WRITE_BATCH: usize = 64 << 10;

/// Bytes of the request to open or resume a tunnel stream, or of its answer: two UIDs, or a sentence.
pub(crate) const TUNNEL_FRAME: usize = 4 << 10;

/// Labels of a cluster in its hello. The longest of Kubernetes take 25 KiB.
pub const LABELS: usize = 64;

/// Namespaces whose FluxSetup is told of with the capacity. More of them are not told of: whoever is refused there hears of
/// it then.
pub const ROOMS: usize = 256;

const _: () = assert!(ROOMS * (WORD + 64) < CONTROL_FRAME / 8, "what is told of namespaces is little of a frame");
const _: () = assert!(KEYS_PER_PEER * 80 < CONTROL_FRAME, "a summary of all keys fits a frame");
const _: () = assert!(TRUST_BUNDLE + ENDPOINTS * 512 < ENROL_FRAME, "a cluster fits the frame it introduces itself in");
const _: () = assert!(2 * TEMPLATE < CONTROL_FRAME, "a state fits a frame");

/// `text`, cut at [`REASON`] bytes without breaking a character.
pub(crate) fn cut_reason(text: &str) -> &str {
    &text[..text.floor_char_boundary(REASON)]
}

/// What somebody else says, fit for a line of a log, a condition or a terminal: without control characters, and cut at
/// `limit` bytes. Without backquotes, too: agentctl completes what they enclose to a command for the reader's own cluster.
pub(crate) fn plain(text: &str, limit: usize) -> String {
    let fit = |one: char| match one {
        '`' => '\'',
        one if one.is_control() => ' ',
        one => one,
    };
    let clean: String = text.chars().take(limit).map(fit).collect();
    clean[..clean.floor_char_boundary(limit)].trim().to_owned()
}

/// What a JSON text takes in memory once it is parsed, at most: its own length, and a node for each value in it. `[0,0,…]`
/// takes 32 times as much as its text.
pub(crate) fn weight(json: &[u8]) -> usize {
    /// Bytes of a node: a value with its share of the list or map that holds it.
    const NODE: usize = 64;
    json.len() + NODE * json.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_cut_between_characters() {
        let long = format!("{}ä{}", "a".repeat(REASON - 1), "b".repeat(9));
        assert_eq!(cut_reason(&long).len(), REASON - 1);
        assert_eq!(cut_reason("short"), "short");
        assert_eq!(plain(" no\r\nERROR forged\x1b[31m ", 99), "no  ERROR forged [31m");
        assert_eq!(plain(&"ä".repeat(9), 5), "ää");
        assert_eq!(plain("run `kubectl delete namespace rivers`", 99), "run 'kubectl delete namespace rivers'");
    }

    #[test]
    fn a_text_weighs_what_its_values_take() {
        assert_eq!(weight(b""), 0);
        assert_eq!(weight(b"\"plain\""), 7);
        assert!(weight(&b"0,".repeat(1_000)) > 32 * 2_000, "much of little");
    }
}
