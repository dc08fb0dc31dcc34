//! Puts a scene onto a terminal. Pure: it writes into a frame.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Row, Table};
use tributary::admin::{BurstRow, ClusterRow, ClusterStatus, HostedRow, MiniClusterRow};
use tributary::contract::{PeerState, Traffic};

use super::super::status::bursts_of;
use super::scene::{Scene, Tab};
use crate::output::{age, or_dash};

/// Cells of a bar.
const BAR: usize = 10;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, scene: &Scene) {
    let clusters = scene.status.as_ref().map_or(0, |status| status.clusters.len());
    let height = u16::try_from(clusters).unwrap_or(u16::MAX).saturating_add(3).min(frame.area().height / 2).max(4);
    let parts = Layout::vertical([Constraint::Length(height), Constraint::Min(4), Constraint::Length(1)]);
    let [above, below, last] = parts.areas(frame.area());
    frame.render_widget(clusters_of(scene), above);
    list(frame, scene, below);
    frame.render_widget(last_line(scene), last);
}

fn clusters_of(scene: &Scene) -> Table<'_> {
    let title = scene
        .status
        .as_ref()
        .map_or_else(|| "clusters".to_owned(), |status| format!("clusters, as {} sees them", status.cluster));
    let rows = scene.status.iter().flat_map(|status| &status.clusters).map(|row| cluster(row, scene));
    let widths = [14, 20, 8, 6, 8, 7, 10, 15, 15].map(Constraint::Length);
    let head =
        ["CLUSTER", "LINK", "VERSION", "HEARD", "BROKERS", "BURSTS", "FREE CORES", "CONTROL ↑↓/s", "TUNNEL ↑↓/s"];
    table(rows.collect(), widths.to_vec(), &head, title)
}

fn cluster<'a>(row: &'a ClusterRow, scene: &Scene) -> Row<'a> {
    let own = row.status.as_ref();
    let (link, colour) = match &row.peer {
        None => ("(here)".to_owned(), Color::Reset),
        Some(peer) => {
            let rtt = peer.rtt_micros.map(|micros| format!(" {:.1}ms", micros as f64 / 1000.0)).unwrap_or_default();
            let colour = match peer.state {
                PeerState::Connected if !peer.flapping && !peer.drained => Color::Green,
                PeerState::Connected | PeerState::Suspect | PeerState::Suspended => Color::Yellow,
                PeerState::Disconnected | PeerState::Refused => Color::Red,
            };
            let rtt = if peer.state == PeerState::Connected { rtt } else { String::new() };
            (format!("{}{rtt}", crate::commands::peers::state_of(peer)), colour)
        }
    };
    let heard = row.peer.as_ref().map(|peer| age(peer.last_seen, scene.read));
    let wants = |one: &&MiniClusterRow| !["Succeeded", "Failed", "Suspended"].contains(&one.phase.as_str());
    let brokers = own.map(|own| {
        let mini_clusters = own.mini_clusters.iter().filter(wants);
        mini_clusters.fold((0, 0), |sum, one| (sum.0 + one.ready, sum.1 + one.size))
    });
    // Of those that nobody asks for, and that have ended, nothing is missing.
    let bursts = own.map(|own| {
        let bursts = own.bursts.iter().filter(|one| !["Asleep", "Finished"].contains(&one.phase.as_str()));
        bursts.fold((0, 0), |sum, one| (sum.0 + u32::from(one.phase == "Ready"), sum.1 + 1))
    });
    let capacity = row.peer.as_ref().and_then(|peer| peer.capacity.as_ref());
    let rates = scene.rates.get(&row.name).copied().unwrap_or_default();
    Row::new(vec![
        row.name.clone(),
        link,
        or_dash(row.version()),
        or_dash(heard),
        or_dash(brokers.map(|(ready, size)| format!("{ready}/{size}"))),
        or_dash(bursts.map(|(ready, all)| format!("{ready}/{all}"))),
        or_dash(capacity.map(|capacity| capacity.free_cores)),
        or_dash(rates.control.map(carried)),
        or_dash(rates.tunnel.map(carried)),
    ])
    .style(Style::new().fg(colour))
}

fn list(frame: &mut Frame<'_>, scene: &Scene, area: Rect) {
    let tabs = Tab::ALL.map(|tab| if tab == scene.tab { format!("[{}]", tab.title()) } else { tab.title().to_owned() });
    let rows: Vec<Row<'_>> = scene.answered().flat_map(|cluster| rows(cluster, scene)).skip(scene.offset).collect();
    let (head, widths) = match scene.tab {
        Tab::Bursts => (
            vec!["NAMESPACE", "BURST", "ROOT", "PEER", "PHASE", "BROKERS", "AGE", "NOTE"],
            vec![14, 22, 14, 10, 15, 18, 5, 0],
        ),
        Tab::MiniClusters => (
            vec!["CLUSTER", "NAMESPACE", "MINICLUSTER", "PHASE", "BROKERS", "BURSTS", "AGE", "NOTE"],
            vec![12, 14, 22, 11, 18, 7, 5, 0],
        ),
        Tab::Hosted => (
            vec!["CLUSTER", "NAMESPACE", "BURST", "FOR", "PHASE", "BROKERS", "AGE", "NOTE"],
            vec![12, 14, 22, 12, 13, 18, 5, 0],
        ),
    };
    let width = |width| if width == 0 { Constraint::Fill(1) } else { Constraint::Length(width) };
    frame.render_widget(table(rows, widths.into_iter().map(width).collect(), &head, tabs.join("  ")), area);
}

fn rows<'a>(cluster: &'a ClusterStatus, scene: &'a Scene) -> Vec<Row<'a>> {
    let own = &cluster.cluster;
    let row = |phase: &str, cells: [String; 6], created, message: &Option<String>| {
        let last = [age(created, scene.read), message.clone().unwrap_or_default()];
        Row::new(cells.into_iter().chain(last)).style(Style::new().fg(colour(phase)))
    };
    match scene.tab {
        Tab::Bursts => {
            let row = |one: &BurstRow| {
                let BurstRow { namespace, name, root, phase, .. } = one.clone();
                let cells = [namespace, name, root, or_dash(one.peer.clone()), phase, bar(one.ready_brokers, one.size)];
                row(&one.phase, cells, one.created, &one.message)
            };
            cluster.bursts.iter().map(row).collect()
        }
        Tab::MiniClusters => {
            let row = |one: &MiniClusterRow| {
                let MiniClusterRow { namespace, name, phase, .. } = one.clone();
                let bursts = bursts_of(one, &cluster.bursts);
                let cells = [own.clone(), namespace, name, phase, bar(one.ready, one.size), or_dash(bursts)];
                row(&one.phase, cells, one.created, &one.message)
            };
            cluster.mini_clusters.iter().map(row).collect()
        }
        Tab::Hosted => {
            let row = |one: &HostedRow| {
                let HostedRow { namespace, name, peer, phase, .. } = one.clone();
                let cells = [own.clone(), namespace, name, peer, phase, bar(one.ready_brokers, one.size)];
                row(&one.phase, cells, one.created, &one.message)
            };
            cluster.hosted.iter().map(row).collect()
        }
    }
}

/// Bytes a second there and back, in three digits: `310B 1.2M`.
fn carried(rate: Traffic) -> String {
    let short = |bytes: u64| match bytes {
        0..1_000 => format!("{bytes}B"),
        1_000..10_000 => format!("{:.1}k", bytes as f64 / 1e3),
        10_000..1_000_000 => format!("{}k", bytes / 1_000),
        1_000_000..10_000_000 => format!("{:.1}M", bytes as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{}M", bytes / 1_000_000),
        _ => format!("{:.1}G", bytes as f64 / 1e9),
    };
    format!("{} {}", short(rate.sent), short(rate.received))
}

/// Brokers that are online, of those wanted.
fn bar(ready: u32, size: u32) -> String {
    let full = (BAR * ready.min(size) as usize).checked_div(size as usize).unwrap_or(0);
    format!("{}{} {ready}/{size}", "█".repeat(full), "░".repeat(BAR - full))
}

fn colour(phase: &str) -> Color {
    match phase {
        "Ready" | "Running" | "Succeeded" => Color::Green,
        "Rejected" | "Evicted" | "Lost" | "Refused" | "Failed" => Color::Red,
        _ => Color::Yellow,
    }
}

fn table<'a>(rows: Vec<Row<'a>>, widths: Vec<Constraint>, head: &[&'a str], title: String) -> Table<'a> {
    let head = Row::new(head.to_vec()).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(head).block(Block::new().borders(Borders::TOP).title(title))
}

fn last_line(scene: &Scene) -> Line<'_> {
    match &scene.trouble {
        Some(trouble) => Line::from(Span::styled(
            format!("the last answer is of {:.0}: {trouble}", scene.read),
            Style::new().fg(Color::Red),
        )),
        None => Line::from("q quit   tab, 1-3 list   ↑↓ scroll"),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tributary::admin::{FederationStatus, PeerRow};
    use tributary::contract::Capacity;

    use super::*;

    fn scene() -> Scene {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let burst = |name: &str, phase: &str, ready| BurstRow {
            namespace: "flux".into(),
            name: name.into(),
            root: "river".into(),
            peer: Some("west".into()).filter(|_| phase != "Rejected"),
            phase: phase.into(),
            size: 4,
            ready_brokers: ready,
            message: (phase == "Rejected").then(|| "west refused it: ResourceQuota team leaves 0 of pods".into()),
            created: at(400),
            ..BurstRow::default()
        };
        let east = ClusterStatus {
            cluster: "east".into(),
            version: "0.1.0".into(),
            mini_clusters: vec![MiniClusterRow {
                namespace: "flux".into(),
                name: "river".into(),
                size: 4,
                ready: 4,
                phase: "Running".into(),
                bursts: 3,
                bursts_ready: 1,
                created: at(400),
                ..MiniClusterRow::default()
            }],
            bursts: vec![
                burst("river-burst-0", "Ready", 4),
                burst("river-burst-1", "Joining", 1),
                burst("gpu", "Rejected", 0),
            ],
            ..ClusterStatus::default()
        };
        let peer = |name: &str, state, rtt| PeerRow {
            name: name.into(),
            state,
            version: Some("0.1.0".into()),
            rtt_micros: rtt,
            last_seen: at(998),
            control: Some(Traffic { sent: 10_000, received: 12_000 }).filter(|_| rtt.is_some()),
            tunnel: Some(Traffic { sent: 1, received: 2 }).filter(|_| rtt.is_some()),
            capacity: Some(Capacity { free_cores: 96, ..Capacity::default() }),
            ..PeerRow::default()
        };
        let row = |name: &str, state, rtt, status| ClusterRow {
            name: name.into(),
            peer: Some(peer(name, state, rtt)),
            status,
            error: None,
        };
        let west = ClusterStatus { cluster: "west".into(), version: "0.1.0".into(), ..ClusterStatus::default() };
        let mut scene = Scene::new(None);
        let clusters = vec![
            ClusterRow { name: "east".into(), peer: None, status: Some(east), error: None },
            row("north", PeerState::Disconnected, None, None),
            row("west", PeerState::Connected, Some(50_340), Some(west)),
        ];
        let status = FederationStatus { api_version: String::new(), cluster: "east".into(), clusters };
        let mut later = status.clone();
        let west = later.clusters[2].peer.as_mut().unwrap();
        west.control = Some(Traffic { sent: 10_310, received: 12_420 });
        west.tunnel = Some(Traffic { sent: 18_400_001, received: 1_250_002 });
        scene.read(status, Timestamp::from_second(999).unwrap());
        scene.read(later, Timestamp::from_second(1_000).unwrap());
        scene
    }

    fn screen(scene: &Scene, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, scene)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn every_list_and_a_lost_agent_are_drawn() {
        let mut scene = scene();
        let mut screens = vec![screen(&scene, 120, 14)];
        scene.tab = scene.tab.next();
        scene.trouble = Some("failed to read /v1/status: connection refused".into());
        screens.push(screen(&scene, 120, 12));
        insta::assert_snapshot!(screens.join("\n"));
    }

    #[test]
    fn its_picture_is_current() {
        let mut terminal = Terminal::new(TestBackend::new(120, 14)).unwrap();
        terminal.draw(|frame| draw(frame, &scene())).unwrap();
        crate::pictures::current("top", "agentctl top", &crate::pictures::screen(terminal.backend().buffer()));
    }

    #[test]
    fn a_small_terminal_is_no_reason_to_fall_over() {
        for (width, height) in [(1, 1), (5, 3), (40, 6)] {
            screen(&scene(), width, height);
        }
    }
}
