#![doc = include_str!("protocol.md")]

#[cfg(test)]
mod tests {
    use crate::enrol::Refusal;
    use crate::session::Misbehaviour;
    use crate::timers::Timers;
    use crate::wire::limits;
    use crate::wire::registry::{CloseCode, StreamKind};
    use crate::wire::version::WireVersions;

    const PAGE: &str = include_str!("protocol.md");

    /// The first two cells of all rows of the table under `title`.
    fn table(title: &str) -> Vec<(String, String)> {
        let section = PAGE.split("\n# ").find(|section| section.starts_with(title)).expect("the section is there");
        let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells = |row: &str| {
            let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
            (cells.next().unwrap(), cells.next().unwrap())
        };
        rows.map(cells).collect()
    }

    fn rows<A: ToString, B: ToString>(rows: impl IntoIterator<Item = (A, B)>) -> Vec<(String, String)> {
        rows.into_iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn the_page_says_what_the_code_does() {
        let kinds = StreamKind::ALL.iter().map(|kind| (kind.id(), format!("{kind:?}")));
        assert_eq!(table("Streams"), rows(kinds));
        assert_eq!(table("Close codes"), rows(CloseCode::ALL.iter().map(|code| (code.number(), code.name()))));
        // No field is left out: a new one does not compile here.
        let Timers {
            heartbeat,
            suspect,
            silent,
            grace,
            quic_idle,
            lease,
            leader_lease,
            summary,
            handshake,
            dial_min,
            dial_max,
            request,
            renew_before_expiry,
            overlap,
            flap_window,
        } = Timers::DEFAULT;
        let timers = [
            ("heartbeat", heartbeat),
            ("suspect", suspect),
            ("silent", silent),
            ("grace", grace),
            ("quic_idle", quic_idle),
            ("lease", lease),
            ("leader_lease", leader_lease),
            ("summary", summary),
            ("handshake", handshake),
            ("dial_min", dial_min),
            ("dial_max", dial_max),
            ("request", request),
            ("renew_before_expiry", renew_before_expiry),
            ("overlap", overlap),
            ("flap_window", flap_window),
        ];
        assert_eq!(table("Timers"), rows(timers.map(|(name, value)| (name, format!("{value:?}")))));
        let limits = [
            ("CONTROL_FRAME", limits::CONTROL_FRAME),
            ("HELLO_FRAME", limits::HELLO_FRAME),
            ("TEMPLATE", limits::TEMPLATE),
            ("STREAMS_PER_PEER", limits::STREAMS_PER_PEER as usize),
            ("CONNECTIONS_PER_PEER", limits::CONNECTIONS_PER_PEER),
            ("KEYS_PER_PEER", limits::KEYS_PER_PEER),
            ("STATES_OF_A_PEER", limits::STATES_OF_A_PEER),
            ("UID", limits::UID),
            ("MESSAGE", limits::MESSAGE),
            ("WORD", limits::WORD),
            ("CREDENTIAL_FRAME", limits::CREDENTIAL_FRAME),
            ("QUERY_FRAME", limits::QUERY_FRAME),
            ("QUERIES_AT_A_TIME", limits::QUERIES_AT_A_TIME),
            ("ANSWER_FRAME", limits::ANSWER_FRAME),
            ("ENROL_FRAME", limits::ENROL_FRAME),
            ("TRUST_BUNDLE", limits::TRUST_BUNDLE),
            ("ENDPOINTS", limits::ENDPOINTS),
            ("REASON", limits::REASON),
            ("WRITE_BATCH", limits::WRITE_BATCH),
            ("LABELS", limits::LABELS),
            ("ROOMS", limits::ROOMS),
            ("TUNNEL_FRAME", limits::TUNNEL_FRAME),
            ("TUNNEL_PIECE", limits::TUNNEL_PIECE),
            ("TUNNEL_WINDOW", limits::TUNNEL_WINDOW),
            ("TUNNEL_FLOOR", limits::TUNNEL_FLOOR),
            ("TUNNEL_CONNECTION", limits::TUNNEL_CONNECTION),
            ("TUNNEL_LINK", limits::TUNNEL_LINK),
            ("TUNNEL_CONNECTIONS_PER_PEER", limits::TUNNEL_CONNECTIONS_PER_PEER),
        ];
        assert_eq!(table("Limits"), rows(limits));
        let all = [include_str!("wire/limits.rs"), include_str!("../tunnel/limits.rs")];
        let all = all.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("pub"));
        let all = all.filter_map(|line| line.split_once(" const ").map(|(_, rest)| rest));
        let mut all: Vec<&str> = all.filter_map(|rest| rest.split(':').next()).collect();
        let mut named = limits.map(|(name, _)| name);
        all.sort();
        named.sort();
        assert_eq!(all, named, "every limit is on the page");
        let refusals = Refusal::ALL.iter().map(|refusal| (refusal.number(), refusal.to_string()));
        assert_eq!(table("Joining"), rows(refusals));
        assert_eq!(table("Control frames"), bodies());
        let versions = (WireVersions::OURS.min.0..=WireVersions::OURS.max.0).map(|version| version.to_string());
        let shown: Vec<String> = table("Connections").into_iter().map(|(version, _)| version).collect();
        assert_eq!(shown, versions.collect::<Vec<_>>());
    }

    /// Numbers and names of the messages of a control stream, as `wire/proto.rs` has them.
    fn bodies() -> Vec<(String, String)> {
        let source = include_str!("wire/proto.rs");
        let body = source.split("pub enum Body {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
        let numbers = body.lines().filter_map(|line| line.split("tag = \"").nth(1)?.split('"').next());
        let names = body.lines().filter_map(|line| line.trim().split_once('(')).map(|(name, _)| name);
        rows(numbers.zip(names.filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase()))))
    }

    #[test]
    fn every_misbehaviour_is_named() {
        for what in Misbehaviour::ALL {
            assert!(PAGE.contains(&format!("`{}`", what.as_str())), "{what:?}");
        }
    }
}
