//! Pictures of what commands print, for the guide: SVG made from the commands' own text, and held against what is checked
//! in. `UPDATE_GENERATED=1` writes them.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use tributary::admin::{BurstRow, ClusterRow, ClusterStatus, FederationStatus, MiniClusterRow, PeerRow};
use tributary::contract::{Capacity, LeadAddress, PeerState};

/// Width of a character, and height of a line, in pixels, for a font of 13.
const CELL: f64 = 7.8;
/// See [`CELL`].
const LINE: usize = 18;
/// Around the text.
const MARGIN: usize = 12;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Holds the picture `name` against what a terminal shows of this text: `command` was typed, colours are SGR sequences.
pub(crate) fn current(name: &str, command: &str, text: &str) {
    let path = repository().join(format!("src/guide/pictures/{name}.svg"));
    let wanted = svg(&format!("\x1b[1m$ {command}\x1b[0m\n{text}"));
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{name}.svg is not what {command} prints; run: UPDATE_GENERATED=1 cargo test -p tributary-agentctl --lib picture"
    );
}

/// A terminal with this text, dark on every page.
fn svg(text: &str) -> String {
    let lines: Vec<Vec<(String, String)>> = text.trim_end().lines().map(pieces).collect();
    let columns = lines.iter().map(|line| line.iter().map(|(_, text)| text.chars().count()).sum::<usize>()).max();
    let width = (columns.unwrap_or(0) as f64 * CELL).ceil() as usize + 2 * MARGIN;
    let height = lines.len() * LINE + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1c2128\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#d0d7de\" xml:space=\"preserve\">\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let mut column = 0;
        for (style, text) in line {
            let (x, y) = (MARGIN as f64 + column as f64 * CELL, MARGIN + index * LINE + LINE * 3 / 4);
            column += text.chars().count();
            if !text.trim().is_empty() {
                let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                // Widths of fonts differ: what stands in columns stays there.
                let length = text.chars().count() as f64 * CELL;
                writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" textLength=\"{length:.1}\"{style}>{escaped}</text>")
                    .unwrap();
            }
        }
    }
    svg + "</g>\n</svg>\n"
}

/// Parts of one style: its attributes, and the text.
fn pieces(line: &str) -> Vec<(String, String)> {
    let mut parts = line.split("\x1b[");
    let mut pieces = vec![(String::new(), parts.next().unwrap_or_default().to_owned())];
    for part in parts {
        let (codes, text) = part.split_once('m').unwrap_or(("0", part));
        let style = match codes {
            "1" => " font-weight=\"bold\"",
            "31" => " fill=\"#ff7b72\"",
            "32" => " fill=\"#56d364\"",
            "33" => " fill=\"#e3b341\"",
            _ => "",
        };
        pieces.push((style.to_owned(), text.to_owned()));
    }
    pieces
}

/// What the demo has made, as its first cluster sees it.
pub(crate) fn federation(now: Timestamp) -> FederationStatus {
    let ago = |seconds| Some(now - jiff::SignedDuration::from_secs(seconds));
    let mini_cluster = |name: &str, size, ready, hosted_for: Option<&str>, age| MiniClusterRow {
        namespace: "tributary-demo".into(),
        name: name.into(),
        size,
        ready,
        phase: "Running".into(),
        hosted_for: hosted_for.map(str::to_owned),
        created: ago(age),
        ..MiniClusterRow::default()
    };
    let burst = |name: &str, peer: &str, size| BurstRow {
        namespace: "tributary-demo".into(),
        name: name.into(),
        root: "river".into(),
        peer: Some(peer.into()),
        phase: "Ready".into(),
        size,
        ready_brokers: size,
        lead: Some(LeadAddress { address: "10.1.0.2".into(), port: 31_606 }),
        message: Some(format!("{peer}: every wanted pod is ready; brokers are not checkable (kwok)")),
        created: ago(3),
        simulated: true,
        ..BurstRow::default()
    };
    let cluster = |name: &str, mini_cluster| ClusterStatus {
        cluster: name.into(),
        version: "0.1.0".into(),
        mini_clusters: vec![mini_cluster],
        ..ClusterStatus::default()
    };
    let provider = |name: &str, rtt, free_cores, mini_cluster| ClusterRow {
        name: name.into(),
        peer: Some(PeerRow {
            name: name.into(),
            state: PeerState::Connected,
            version: Some("0.1.0".into()),
            rtt_micros: Some(rtt),
            capacity: Some(Capacity { free_cores, ..Capacity::default() }),
            last_seen: Some(now),
            ..PeerRow::default()
        }),
        status: Some(ClusterStatus { hosted: vec![Default::default()], ..cluster(name, mini_cluster) }),
        error: None,
    };
    let root = MiniClusterRow { bursts: 2, bursts_ready: 2, ..mini_cluster("river", 4, 4, None, 4) };
    let bursts = vec![burst("river-burst-0", "west", 3), burst("river-burst-1", "north", 2)];
    let east = ClusterStatus { bursts, ..cluster("east", root) };
    FederationStatus {
        api_version: String::new(),
        cluster: "east".into(),
        clusters: vec![
            ClusterRow { name: "east".into(), peer: None, status: Some(east), error: None },
            provider("north", 20_100, 254, mini_cluster("river-burst-1", 2, 2, Some("east"), 2)),
            provider("west", 6_200, 253, mini_cluster("river-burst-0", 3, 3, Some("east"), 2)),
        ],
    }
}

/// A moment.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_767_268_800).unwrap()
}

#[test]
fn pieces_keep_their_places() {
    let drawn = svg("a \x1b[32m✓\x1b[0m <b>\n");
    assert!(drawn.contains("<text x=\"27.6\" y=\"25\" textLength=\"7.8\" fill=\"#56d364\">✓</text>"), "{drawn}");
    assert!(drawn.contains("&lt;b&gt;"), "{drawn}");
}

/// What is on a terminal's screen, with its colours as SGR sequences.
pub(crate) fn screen(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content().chunks(buffer.area.width.into()) {
        let (mut line, mut last) = (String::new(), "");
        for cell in row {
            let code = match (cell.fg, cell.modifier.contains(Modifier::BOLD)) {
                (Color::Red, _) => "31",
                (Color::Green, _) => "32",
                (Color::Yellow, _) => "33",
                (_, true) => "1",
                _ => "0",
            };
            if code != last {
                write!(line, "\x1b[{code}m").unwrap();
                last = code;
            }
            line += cell.symbol();
        }
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    text
}
