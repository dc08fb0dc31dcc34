//! The metrics of an agent: what there is, and what one shows.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tributary::bursting::steps::StepTimes;
use tributary::cluster::requests::RequestMetrics;
use tributary::cluster::work::Workload;
use tributary::federation::mesh::MeshMetrics;
use tributary::federation::tunnel::TunnelMetrics;
use tributary::metrics::Described;
use tributary::queue::figures::QueueFigures;
use tributary_agent::figures::Figures;
use tributary_agent::traces::TraceMetrics;
use tributary_agent::webhook::WebhookMetrics;

/// Every metric, under the heading of the reference.
pub fn described() -> [(&'static str, Vec<Described>); 8] {
    [
        ("Objects and leadership", Figures::DESCRIBED.to_vec()),
        ("Times of bursts", StepTimes::DESCRIBED.to_vec()),
        ("Queues", QueueFigures::DESCRIBED.to_vec()),
        ("Federation", MeshMetrics::DESCRIBED.to_vec()),
        ("Tunnel", TunnelMetrics::DESCRIBED.to_vec()),
        ("Webhook", WebhookMetrics::DESCRIBED.to_vec()),
        ("Controllers and the API server", [&Workload::DESCRIBED[..], &RequestMetrics::DESCRIBED[..]].concat()),
        ("Traces", TraceMetrics::DESCRIBED.to_vec()),
    ]
}

/// Every metric by the names of its series.
pub fn series() -> BTreeMap<String, Described> {
    let all = described().into_iter().flat_map(|(_, metrics)| metrics);
    all.flat_map(|metric| metric.series().into_iter().map(move |name| (name, metric))).collect()
}

/// What an agent answers at `health`, with the head of the answer.
pub async fn asked(health: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(health).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// What an agent shows at `health`, by series with its labels.
pub async fn shown(health: SocketAddr) -> std::io::Result<BTreeMap<String, f64>> {
    let answer = asked(health, "/metrics").await?;
    let lines = answer.lines().filter(|line| line.starts_with("tributary_"));
    Ok(lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect())
}

/// What is shown and is not described: a series, a label or a word.
pub fn undescribed<'a>(shown: impl Iterator<Item = &'a String>) -> Vec<String> {
    let series = series();
    let mut found = Vec::new();
    for line in shown {
        let (name, labels) = line.split_once('{').unwrap_or((line, ""));
        let Some(metric) = series.get(name) else {
            found.push(line.clone());
            continue;
        };
        // No word has a comma or a quote.
        for pair in labels.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty()) {
            let (label, word) = pair.split_once('=').unwrap_or_default();
            let word = word.trim_matches('"');
            let known = metric.labels.iter().find(|(known, _)| *known == label);
            if label != "le" && !known.is_some_and(|(_, words)| words.is_empty() || words.contains(&word)) {
                found.push(line.clone());
            }
        }
    }
    found
}
