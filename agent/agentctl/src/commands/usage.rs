//! `agentctl usage`: who used how much of which cluster, by the records of agents.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use jiff::Timestamp;
use jiff::civil::Date;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use schemars::JsonSchema;
use serde::Serialize;
use tributary::api::budget::Spent;
use tributary::api::usage::{Consumer, DayOfUse, MOST_ROWS, OTHERS, Side, day_of, start_of};
use tributary::clock::{Clock, SystemClock};
use tributary::contract::Money;

use crate::cli::{Format, Part, PeerContext, Target, Usage, UsageFormat};
use crate::document::{self, Document};
use crate::error::{Failure, Result, failed};
use crate::kubernetes;
use crate::output::{self, or_dash};

/// Who used how much of which cluster.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Uses count from here on: the beginning of a day (UTC).
    from: Timestamp,
    /// Uses count until here.
    until: Timestamp,
    /// What has rows of its own, besides cluster and side.
    by: Vec<Part>,
    /// By cluster, side, and the words of `by` in their order.
    items: Vec<Row>,
    /// What is missing, and why: records that could not be read, and uses whose namespace is not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// What was used.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// The cluster whose records say so.
    cluster: String,
    /// `root`: MiniClusters and FluxJobs of `cluster` used this of `peer`. `provider`: those of `peer` used it of `cluster`.
    side: Side,
    /// The other cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// Namespace of the MiniCluster or FluxJob; `(others)`, as user and job, for those without a row of their own: a day has
    /// 500 for each cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Its label `tributary.dev/user`; empty if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// The day (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    day: Option<Date>,
    /// Brokers times hours, to a ten-thousandth.
    broker_hours: f64,
    /// Their cores, as they are requested, times hours.
    core_hours: f64,
    /// Their GPUs times hours.
    gpu_hours: f64,
    /// What they cost, by the prices of ClusterPeers; absent where no price is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Money>,
    /// Brokers that are in use now.
    brokers: u32,
}

impl Document for Report {
    const KIND: &'static str = "Usage";

    fn nothing(&self) -> Option<&'static str> {
        self.items.is_empty().then_some("no burst used anything in this time")
    }
}

/// The records of one cluster, and what could not be read of them.
struct Records {
    cluster: String,
    days: Vec<DayOfUse>,
    unreadable: Vec<String>,
}

/// Runs `agentctl usage`.
pub(crate) async fn run(target: &Target, usage: &Usage) -> Result<()> {
    let (all, missing) = read_all(target, &usage.peer_contexts).await?;
    let now = SystemClock::start().wall();
    let mut report = tally(&all, usage.since, &usage.by, target.namespace.as_deref(), now);
    report.unreadable.extend(missing.iter().map(|(peer, failure)| format!("{peer}: {}", failure.line())));
    let text = match usage.output {
        UsageFormat::Csv => csv(&report),
        UsageFormat::Table => document::list(target, Format::Table, &report, |report, _| table(report))?,
        UsageFormat::Json => document::list(target, Format::Json, &report, |_, _| String::new())?,
        UsageFormat::Yaml => document::list(target, Format::Yaml, &report, |_, _| String::new())?,
    };
    output::print(&text)?;
    report.unreadable.iter().for_each(|why| output::remark(why));
    incomplete(missing)
}

/// Peers whose records could not be read, and why.
type Missing<'a> = Vec<(&'a str, Failure)>;

fn incomplete(missing: Missing) -> Result<()> {
    let peers: Vec<_> = missing.iter().map(|(peer, _)| *peer).collect();
    let failure = Failure::new(format!("the records of {} are missing", peers.join(", ")));
    missing.into_iter().next().map_or(Ok(()), |(_, first)| Err(failure.hint_of(first)))
}

/// The records of the cluster that is asked, and of each peer.
async fn read_all<'a>(target: &Target, peers: &'a [PeerContext]) -> Result<(Vec<Records>, Missing<'a>)> {
    let (mut all, mut missing) = (vec![read(target, None).await?], Vec::new());
    for peer in peers {
        let there = Target { context: Some(peer.context.clone()), endpoint: None, ..target.clone() };
        match read(&there, Some(&peer.peer)).await {
            Ok(records) => {
                check(&records.cluster, peer, &all)?;
                all.push(records);
            }
            Err(failure) => missing.push((peer.peer.as_str(), failure)),
        }
    }
    Ok((all, missing))
}

async fn read(target: &Target, name: Option<&str>) -> Result<Records> {
    let namespace = &target.agent_namespace;
    let api: Api<ConfigMap> = Api::namespaced(kubernetes::client(target).await?, namespace);
    let stored = api.list(&ListParams::default().labels(&DayOfUse::selector())).await.map_err(failed(
        format!("failed to read the records of usage in namespace {namespace}"),
        "they are ConfigMaps there: may you list those? The agents' namespace is named with --agent-namespace NAME",
    ))?;
    Ok(of_stored(&stored.items, name.or(target.context.as_deref())))
}

/// Whether a context leads to the peer, and to a cluster that was not read before: its hours would count twice.
fn check(found: &str, wanted: &PeerContext, read: &[Records]) -> Result<()> {
    let PeerContext { peer, context } = wanted;
    let problem = if found != peer {
        format!("that is cluster {found}, not {peer}")
    } else if read.iter().any(|records| records.cluster == found) {
        format!("those of cluster {found} were read already, and would count twice")
    } else {
        return Ok(());
    };
    let failure = Failure::new(format!("failed to read the records of {peer} by context {context}")).because(problem);
    Err(failure.hint("--peer-context PEER=CONTEXT names another cluster each time, by its name and a context of it"))
}

fn of_stored(stored: &[ConfigMap], name: Option<&str>) -> Records {
    let cluster = stored.iter().rev().find_map(DayOfUse::cluster).or(name).unwrap_or("here").to_owned();
    let (mut days, mut unreadable) = (Vec::new(), Vec::new());
    for map in stored {
        match DayOfUse::of_config_map(map) {
            Ok(day) => days.push(day),
            Err(why) => {
                let name = map.metadata.name.as_deref().unwrap_or_default();
                unreadable.push(format!("{cluster}: the record {name} cannot be read: {why}"));
            }
        }
    }
    Records { cluster, days, unreadable }
}

/// Adds up what the records say.
fn tally(all: &[Records], since: Duration, by: &[Part], namespace: Option<&str>, now: Timestamp) -> Report {
    let first = day_of(now.checked_sub(since).unwrap_or(Timestamp::UNIX_EPOCH));
    let mut sums: BTreeMap<(&str, Side, Vec<String>), Spent> = BTreeMap::new();
    let mut left_out: Vec<String> = all.iter().flat_map(|records| records.unreadable.clone()).collect();
    for records in all {
        let mut of_nobody = 0;
        for day in records.days.iter().filter(|day| day.day >= first) {
            for (consumer, spent) in day.until(now) {
                if namespace.is_some_and(|wanted| wanted != consumer.namespace) {
                    if consumer.namespace == OTHERS {
                        of_nobody += spent.broker_seconds;
                    }
                    continue;
                }
                let parts = by.iter().map(|part| word(*part, &consumer, day.day)).collect();
                let sum = sums.entry((&records.cluster, consumer.side, parts)).or_default();
                sum.add(&spent);
                if day.day == day_of(now) {
                    sum.brokers = sum.brokers.saturating_add(spent.brokers);
                }
            }
        }
        if of_nobody > 0 {
            left_out.push(format!(
                "{}: {} more broker-hours are {OTHERS}, of no namespace: a day has rows for {MOST_ROWS} jobs of a cluster",
                records.cluster,
                hours(of_nobody, 1.0)
            ));
        }
    }
    let items = sums.into_iter().map(|((cluster, side, parts), sum)| {
        let of = |part: Part| by.iter().position(|one| *one == part).map(|at| parts[at].clone());
        Row {
            cluster: cluster.to_owned(),
            side,
            peer: of(Part::Peer),
            namespace: of(Part::Namespace),
            user: of(Part::User),
            job: of(Part::Job),
            day: of(Part::Day).and_then(|day| day.parse().ok()),
            broker_hours: hours(sum.broker_seconds, 1.0),
            core_hours: hours(sum.milli_core_seconds, 1000.0),
            gpu_hours: hours(sum.gpu_seconds, 1.0),
            cost: (!sum.cost.is_zero()).then_some(sum.cost),
            brokers: sum.brokers,
        }
    });
    Report { from: start_of(first), until: now, by: by.to_vec(), items: items.collect(), unreadable: left_out }
}

fn word(part: Part, consumer: &Consumer, day: Date) -> String {
    match part {
        Part::Peer => consumer.peer.clone(),
        Part::Namespace => consumer.namespace.clone(),
        Part::User => consumer.user.clone(),
        Part::Job => consumer.job.clone(),
        Part::Day => day.to_string(),
    }
}

/// Hours, to a ten-thousandth.
fn hours(seconds: i64, per_hour: f64) -> f64 {
    (seconds as f64 / per_hour / 3600.0 * 10_000.0).round() / 10_000.0
}

/// Heads of the columns, and the cells of each row.
fn columns(report: &Report, name: fn(&str) -> String, none: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let parts: Vec<_> = report.by.iter().filter_map(ValueEnum::to_possible_value).collect();
    let amounts = ["broker-hours", "core-hours", "gpu-hours", "cost", "brokers now"];
    let heads = ["cluster", "side"].into_iter().chain(parts.iter().map(PossibleValue::get_name)).chain(amounts);
    let heads = heads.map(name).collect();
    let cells = report.items.iter().map(|row| {
        let text = |text: &Option<String>| match text.as_deref() {
            None | Some("") => none.to_owned(),
            Some(text) => text.to_owned(),
        };
        let of = |part: &Part| match part {
            Part::Peer => text(&row.peer),
            Part::Namespace => text(&row.namespace),
            Part::User => text(&row.user),
            Part::Job => text(&row.job),
            Part::Day => text(&row.day.map(|day| day.to_string())),
        };
        let mut cells = vec![row.cluster.clone(), row.side.to_string()];
        cells.extend(report.by.iter().map(of));
        cells.extend([row.broker_hours, row.core_hours, row.gpu_hours].map(|hours| hours.to_string()));
        cells.push(row.cost.map_or_else(|| none.to_owned(), |cost| cost.to_string()));
        cells.push(row.brokers.to_string());
        cells
    });
    (heads, cells.collect())
}

/// The table of `agentctl usage`.
fn table(report: &Report) -> String {
    let (heads, rows) = columns(report, |name| name.to_uppercase(), &or_dash(None::<String>));
    let mut text = output::table(heads, rows);
    text.push_str(&format!("since {:.0}, by days of UTC\n", report.from));
    if report.items.iter().any(|row| row.job.as_deref() == Some(OTHERS)) {
        text.push_str(&format!("(others): a day has rows for {MOST_ROWS} jobs of a cluster; this is the rest\n"));
    }
    text
}

/// The same for programs that read no JSON.
fn csv(report: &Report) -> String {
    let (heads, rows) = columns(report, |name| name.replace([' ', '-'], "_"), "");
    let line = |cells: &Vec<String>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\r\n";
    [heads].iter().chain(&rows).map(line).collect()
}

/// A field as RFC 4180 says.
fn quoted(field: &str) -> String {
    match field.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tributary::api::budget::Usage as Amount;
    use tributary::api::usage::Use;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::endpoint::tests::{server, target};

    fn now() -> Timestamp {
        "2026-11-25T10:00:00Z".parse().unwrap()
    }

    fn records() -> Vec<Records> {
        let who = |side, peer: &str, user: &str, job: &str| Consumer {
            side,
            peer: peer.into(),
            namespace: "flux".into(),
            user: user.into(),
            job: job.into(),
        };
        let amount = |brokers: u32, hourly: u64| Amount {
            brokers,
            milli_cores: u64::from(brokers) * 4_000,
            gpus: u64::from(brokers / 2),
            hourly: Money::of_millionths(hourly),
        };
        let uses = |brokers| {
            let of = |consumer, usage| Use { consumer, usage, since: None };
            [
                of(who(Side::Root, "west", "ada", "lake"), amount(brokers, 250_000)),
                of(who(Side::Root, "north", "", "pond"), amount(1, 0)),
                of(who(Side::Provider, "west", "", "sea"), amount(2, 0)),
            ]
        };
        let mut yesterday = DayOfUse::empty("2026-11-24".parse().unwrap());
        yesterday.count(uses(4), "2026-11-24T22:00:00Z".parse().unwrap());
        let mut today = yesterday.next();
        today.count(uses(2), "2026-11-25T01:00:00Z".parse().unwrap());
        today.count([], "2026-11-25T09:30:00Z".parse().unwrap());
        let stored = [yesterday, today].map(|day| day.to_config_map("tributary-system", "east"));
        vec![of_stored(&stored, None)]
    }

    fn report(line: &str) -> Report {
        let Command::Usage(usage) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!("{line}") };
        tally(&records(), usage.since, &usage.by, None, now())
    }

    #[test]
    fn each_word_of_by_has_rows_of_its_own() {
        insta::assert_snapshot!(table(&report("agentctl usage")));
        insta::assert_snapshot!(table(&report("agentctl usage --by peer")));
        insta::assert_snapshot!(csv(&report("agentctl usage --since 12h --by day,user")));
        let since = |since| report(&format!("agentctl usage --since {since} --by peer")).from.to_string();
        assert_eq!((since("30d"), since("9h")), ("2026-10-26T00:00:00Z".into(), "2026-11-25T00:00:00Z".into()));
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let refused = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
        let by = refused("agentctl usage --by peer,planet");
        assert!(by.contains("planet") && by.contains("--by") && by.contains("namespace, user, job, day"), "{by}");
        for since in ["soon", "d", "-3d", "3w"] {
            let text = refused(&format!("agentctl usage --since={since}"));
            assert!(text.contains("--since") && text.contains("write it like 30d or 12h"), "{text}");
        }
    }

    /// The danger: a context leads to another cluster than is written, and hours count twice.
    #[test]
    fn no_cluster_is_read_twice_and_none_under_another_name() {
        let context = |peer: &str| PeerContext { peer: peer.into(), context: "a-context".into() };
        let refused =
            |found: &str, peer: &str| check(found, &context(peer), &records()).map_err(|failure| failure.to_string());
        assert_eq!(refused("west", "west"), Ok(()));
        for (found, peer, why) in [
            ("east", "west", "that is cluster east, not west"),
            ("east", "east", "those of cluster east were read already"),
        ] {
            let told = refused(found, peer).unwrap_err();
            assert!(told.contains("by context a-context") && told.contains(why), "{told}");
        }
    }

    /// The danger: of several clusters one is down, and the uses of none are shown.
    #[tokio::test]
    async fn a_peer_that_cannot_be_read_is_named_in_the_end_and_the_others_count() {
        let maps = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}"#;
        let east = server([("", "200 OK", maps.to_owned())]).await;
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("east", &east), ("to-west", &server([]).await)]);
        let [west, north] = [("west", "to-west"), ("north", "mistyped")]
            .map(|(peer, context)| PeerContext { peer: peer.into(), context: context.into() });
        let both = [west, north];
        let (all, missing) = read_all(&target, &both).await.unwrap();
        assert_eq!(all.len(), 1);
        assert!(missing[0].1.line().starts_with("failed to read the records of usage"), "{missing:?}");
        let told = incomplete(missing).unwrap_err().to_string();
        assert!(
            told.contains("the records of west, north are missing") && told.contains("may you list those"),
            "{told}"
        );
        let (_, missing) = read_all(&target, &[]).await.unwrap();
        assert!(incomplete(missing).is_ok());
        let target = Target { context: Some("to-west".into()), ..target };
        assert!(read_all(&target, &[]).await.is_err(), "the cluster that is asked");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_named_and_the_others_count() {
        let mut stored = [DayOfUse::empty("2026-11-25".parse().unwrap()).to_config_map("tributary-system", "east")];
        stored[0].data.as_mut().unwrap().insert("rows".into(), "what?".into());
        let records = of_stored(&stored, None);
        assert!(
            records.unreadable[0].starts_with("east: the record tributary-usage-2026-11-25 cannot be read: line 1")
        );
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
