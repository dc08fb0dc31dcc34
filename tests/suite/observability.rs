//! Metrics, and what is made of them: the reference, the alerts and the dashboard hold to what the agent counts.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use serde_json::Value;
use tributary::metrics::Kind;
use tributary_tests::chart::{self, charts};
use tributary_tests::metrics::{described, series};

use crate::generated::current;

/// What Prometheus adds to every series: where it was scraped, and which cluster that was, as the page of metrics says.
const OF_THE_TARGET: [&str; 6] = ["cluster", "namespace", "pod", "job", "instance", "le"];

#[test]
fn the_reference_of_metrics_is_current() {
    let mut page = include_str!("metrics_head.md").to_owned();
    for (heading, metrics) in described() {
        write!(page, "\n## {heading}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n").unwrap();
        for metric in metrics {
            let (name, kind) = match metric.kind {
                Kind::Counter => (format!("tributary_{}_total", metric.name), "counter"),
                Kind::Gauge => (format!("tributary_{}", metric.name), "gauge"),
                Kind::Histogram => (format!("tributary_{}", metric.name), "histogram"),
            };
            let label = |(name, words): &(&str, &[&str])| match words {
                [] => format!("`{name}`"),
                words => format!("`{name}`: {}", words.join(", ")),
            };
            let labels = metric.labels.iter().map(label).collect::<Vec<_>>().join("<br>");
            writeln!(page, "| `{name}` | {kind} | {labels} | {} |", metric.help).unwrap();
        }
    }
    current("src/guide/metrics.md", &page);
}

#[test]
fn names_and_labels_are_those_of_prometheus() {
    let mut seen = BTreeSet::new();
    for (_, metrics) in described() {
        for metric in metrics {
            assert!(seen.insert(metric.name), "{} is there twice", metric.name);
            assert!(metric.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{}", metric.name);
            assert!(!metric.name.ends_with("_total") && !metric.help.ends_with('.'), "{metric:?}");
            assert!(metric.help.starts_with(|first: char| first.is_uppercase() || first == '1'), "{metric:?}");
        }
    }
}

/// What is wrong with a query: a metric, a label or a word that the agent does not have.
fn complaints(query: &str) -> Vec<String> {
    // What Grafana puts in.
    let query = query.replace("$cluster", ".*").replace("$namespace", ".*").replace("$__rate_interval", "5m");
    match parser::parse(&query) {
        Ok(expression) => {
            let mut found = Vec::new();
            let mut grouped = BTreeSet::new();
            let mut labels = BTreeSet::new();
            look(&expression, &mut grouped, &mut labels, &mut found);
            found.extend(grouped.difference(&labels).map(|label| format!("no series has the label {label}")));
            found
        }
        Err(error) => vec![error],
    }
}

fn look(expression: &Expr, grouped: &mut BTreeSet<String>, labels: &mut BTreeSet<String>, found: &mut Vec<String>) {
    match expression {
        Expr::Aggregate(aggregate) => {
            if let Some(LabelModifier::Include(by) | LabelModifier::Exclude(by)) = &aggregate.modifier {
                grouped.extend(by.labels.iter().filter(|label| !OF_THE_TARGET.contains(&label.as_str())).cloned());
            }
            look(&aggregate.expr, grouped, labels, found);
        }
        Expr::Unary(unary) => look(&unary.expr, grouped, labels, found),
        Expr::Binary(binary) => [&binary.lhs, &binary.rhs].iter().for_each(|side| look(side, grouped, labels, found)),
        Expr::Paren(paren) => look(&paren.expr, grouped, labels, found),
        Expr::Subquery(subquery) => look(&subquery.expr, grouped, labels, found),
        Expr::Call(call) => call.args.args.iter().for_each(|argument| look(argument, grouped, labels, found)),
        Expr::VectorSelector(selector) => look_at_series(selector, labels, found),
        Expr::MatrixSelector(matrix) => look_at_series(&matrix.vs, labels, found),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        Expr::Extension(_) => found.push("an extension of PromQL".to_owned()),
    }
}

fn look_at_series(selector: &VectorSelector, labels: &mut BTreeSet<String>, found: &mut Vec<String>) {
    let name = selector.name.as_deref().unwrap_or_default();
    let Some(metric) = series().get(name).copied() else { return found.push(format!("there is no series {name}")) };
    labels.extend(metric.labels.iter().map(|(label, _)| (*label).to_owned()));
    for Matcher { op, name: label, value } in &selector.matchers.matchers {
        if OF_THE_TARGET.contains(&label.as_str()) {
            continue;
        }
        let Some((_, words)) = metric.labels.iter().find(|(known, _)| known == label) else {
            found.push(format!("{name} has no label {label}"));
            continue;
        };
        let alternatives: Vec<&str> = match op {
            MatchOp::Equal | MatchOp::NotEqual => vec![value.as_str()],
            MatchOp::Re(_) | MatchOp::NotRe(_) => value.split('|').collect(),
        };
        let unknown = alternatives.iter().filter(|word| !words.is_empty() && !words.contains(word));
        found.extend(unknown.map(|word| format!("{label} of {name} is never {word}")));
    }
}

#[test]
fn a_wrong_query_is_found() {
    for (query, wrong) in [
        ("sum(tributary_leadr)", "there is no series tributary_leadr"),
        ("tributary_tunnel_resumed", "there is no series tributary_tunnel_resumed"),
        ("tributary_bursts{phase=~\"Ready|Redy\"}", "phase of tributary_bursts is never Redy"),
        ("tributary_bursts{peer=\"a\"}", "tributary_bursts has no label peer"),
        ("sum by (verb) (tributary_bursts)", "no series has the label verb"),
    ] {
        assert_eq!(complaints(query), [wrong]);
    }
    assert_eq!(complaints("rate(tributary_tunnel_resumed_total[5m]) > 0").len(), 0);
    assert_ne!(complaints("sum(").len(), 0);
}

/// Series that a query compares from below, and those whose absence it looks for. What is gone is not below anything: such
/// a comparison is silent when the last agent is.
fn below_and_absent(query: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    fn names(expression: &Expr, into: &mut BTreeSet<String>) {
        match expression {
            Expr::Aggregate(aggregate) => names(&aggregate.expr, into),
            Expr::Unary(unary) => names(&unary.expr, into),
            Expr::Binary(binary) => [&binary.lhs, &binary.rhs].iter().for_each(|side| names(side, into)),
            Expr::Paren(paren) => names(&paren.expr, into),
            Expr::Subquery(subquery) => names(&subquery.expr, into),
            Expr::Call(call) => call.args.args.iter().for_each(|argument| names(argument, into)),
            Expr::VectorSelector(selector) => into.extend(selector.name.clone()),
            Expr::MatrixSelector(matrix) => into.extend(matrix.vs.name.clone()),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
        }
    }
    fn walk(expression: &Expr, below: &mut BTreeSet<String>, absent: &mut BTreeSet<String>) {
        match expression {
            Expr::Binary(binary) => {
                match binary.op.to_string().as_str() {
                    "<" | "<=" | "==" => names(&binary.lhs, below),
                    ">" | ">=" => names(&binary.rhs, below),
                    _ => {}
                }
                walk(&binary.lhs, below, absent);
                walk(&binary.rhs, below, absent);
            }
            Expr::Call(call) if call.func.name.starts_with("absent") => {
                call.args.args.iter().for_each(|argument| names(argument, absent));
            }
            Expr::Call(call) => call.args.args.iter().for_each(|argument| walk(argument, below, absent)),
            Expr::Paren(paren) => walk(&paren.expr, below, absent),
            Expr::Unary(unary) => walk(&unary.expr, below, absent),
            Expr::Aggregate(aggregate) => walk(&aggregate.expr, below, absent),
            _ => {}
        }
    }
    let (mut below, mut absent) = (BTreeSet::new(), BTreeSet::new());
    walk(&parser::parse(query).unwrap(), &mut below, &mut absent);
    (below, absent)
}

#[test]
fn an_alert_on_too_little_fires_where_there_is_nothing() {
    let (below, absent) = below_and_absent("sum by (cluster) (tributary_leader) < 1");
    assert!(below.contains("tributary_leader") && absent.is_empty());
    let (_, absent) = below_and_absent("sum(tributary_leader) < 1 or absent(tributary_leader)");
    assert!(absent.contains("tributary_leader"));
    let (below, _) = below_and_absent("sum(tributary_bursts) > 0");
    assert!(below.is_empty());
    let text = std::fs::read_to_string(charts().join("tributary/files/alerts.yaml")).unwrap();
    let mut found = 0;
    for alert in serde_saphyr::from_str::<Vec<Value>>(&text).unwrap() {
        let (below, absent) = below_and_absent(alert["expr"].as_str().unwrap());
        assert!(below.is_subset(&absent), "{}: silent when {below:?} is gone", alert["alert"]);
        found += below.len();
    }
    assert!(found > 0, "no alert is of that kind any more");
}

#[test]
fn the_page_of_symptoms_names_every_alert() {
    let root = charts().parent().unwrap().to_owned();
    let text = std::fs::read_to_string(charts().join("tributary/files/alerts.yaml")).unwrap();
    let alerts: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    let page = std::fs::read_to_string(root.join("src/guide/troubleshooting.md")).unwrap();
    let (_, section) = page.split_once("## An alert fires\n").expect("the section that the alerts point to");
    let rows = section.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `Tributary"));
    let named: BTreeSet<_> = rows.map(|row| format!("Tributary{}", row.split('`').next().unwrap())).collect();
    let shipped: BTreeSet<_> = alerts.iter().map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect();
    assert_eq!(named, shipped);
    for alert in &alerts {
        let guide = &alert["annotations"]["guide"];
        assert_eq!(guide, "src/guide/troubleshooting.md#an-alert-fires", "{}", alert["alert"]);
    }
}

#[test]
fn alerts_ask_for_what_there_is_and_say_what_to_do() {
    let text = std::fs::read_to_string(charts().join("tributary/files/alerts.yaml")).unwrap();
    let alerts: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    let mut names = BTreeSet::new();
    for alert in &alerts {
        let name = alert["alert"].as_str().unwrap();
        assert!(name.starts_with("Tributary") && names.insert(name), "{name}");
        assert_eq!(complaints(alert["expr"].as_str().unwrap()), [""; 0], "{name}");
        assert!(["critical", "warning", "info"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        for text in ["summary", "description", "runbook"] {
            assert!(alert["annotations"][text].as_str().is_some_and(|text| text.len() > 20), "{name} has no {text}");
        }
        assert!(alert["for"].is_string(), "{name} would fire for a blip");
    }
}

/// Where bursts come and go, one is incomplete all the time; and a certificate that lives for an hour ends before it is due for
/// one.
#[test]
fn alerts_on_time_ask_how_long_something_lasts() {
    let text = std::fs::read_to_string(charts().join("tributary/files/alerts.yaml")).unwrap();
    let alerts: Vec<Value> = serde_saphyr::from_str(&text).unwrap();
    let asked = |name: &str| {
        let alert = alerts.iter().find(|alert| alert["alert"] == name).unwrap_or_else(|| panic!("no alert {name}"));
        alert["expr"].as_str().unwrap().to_owned()
    };
    for (name, state) in [("TributaryBurstWaits", "nowhere"), ("TributaryBurstDoesNotJoin", "joining")] {
        let expected =
            format!("max by (cluster, namespace) (tributary_bursts_longest_seconds{{state=\"{state}\"}}) > 1800");
        assert_eq!(asked(name), expected, "{name}");
    }
    assert!(asked("TributaryFederationIsClosed").contains("(tributary_federation_open) > 0"));
    let renewed = asked("TributaryIdentityIsNotRenewed");
    let clauses: Vec<&str> = renewed.split(" or ").collect();
    let [late, half, ended] = clauses[..] else { panic!("three clauses: {renewed}") };
    assert!(late.contains("_renews_seconds") && late.contains("> 3600") && !late.contains("_expires_"), "{late}");
    assert!(half.contains("_renews_seconds") && half.contains("_expires_seconds") && half.ends_with("> 0"), "{half}");
    // One that has ended when an agent starts has nothing else.
    assert!(!ended.contains("_renews_") && ended.contains("_expires_seconds") && ended.ends_with("> 0"), "{ended}");
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let text = std::fs::read_to_string(charts().join("tributary/files/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut shown = String::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            assert_eq!(complaints(query), [""; 0], "{}", panel["title"]);
            // Installations of one cluster are as different as those of two: a sum over both hides either.
            let of_clusters = query.matches("by (cluster").count();
            assert_eq!(of_clusters, query.matches("by (cluster, namespace").count(), "{}", panel["title"]);
            let legend = target["legendFormat"].as_str().unwrap();
            assert_eq!(legend.contains("{{cluster}}"), legend.contains("{{namespace}}"), "{}", panel["title"]);
            // Of two ends the nearer one counts.
            assert!(!query.contains("max by (cluster, namespace) (tributary_identity_"), "{}", panel["title"]);
            shown.push_str(query);
        }
    }
    // A metric that nobody looks at is one that nobody needs.
    let unseen: Vec<_> = described()
        .into_iter()
        .flat_map(|(_, metrics)| metrics)
        .filter(|metric| !metric.series().iter().any(|name| shown.contains(&format!("{name}{{"))))
        .map(|metric| metric.name)
        .collect();
    assert_eq!(unseen, [""; 0]);
}

/// The panels of the dashboard by their titles, without rows.
fn panels() -> Vec<(String, Value)> {
    let text = std::fs::read_to_string(charts().join("tributary/files/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    panels.map(|panel| (panel["title"].as_str().unwrap().to_owned(), panel.clone())).collect()
}

/// Thresholds of a stat: from which value on it has which colour.
fn colours(panel: &Value) -> Vec<(f64, &str)> {
    let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array();
    let steps = steps.unwrap_or_else(|| panic!("{} has no thresholds", panel["title"]));
    steps
        .iter()
        .map(|step| (step["value"].as_f64().unwrap_or(f64::NEG_INFINITY), step["color"].as_str().unwrap()))
        .collect()
}

#[test]
fn every_panel_says_what_it_shows_and_every_number_when_it_is_well() {
    let mut area: BTreeSet<(u64, u64)> = BTreeSet::new();
    for (title, panel) in panels() {
        let defaults = &panel["fieldConfig"]["defaults"];
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 3 && text.ends_with('.')), "{title}");
        assert!(defaults["unit"].is_string(), "{title} has no unit");
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["legendFormat"].as_str().is_some_and(|legend| !legend.is_empty()), "{title} has no legend");
        }
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for cell in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(cell.0 < 24 && area.insert(cell), "{title} covers another one");
        }
        if panel["type"] != "stat" {
            assert!(defaults["custom"]["axisLabel"].is_string(), "{title} has no label");
            continue;
        }
        let colours = colours(&panel);
        assert!(colours.is_sorted_by(|one, next| one.0 < next.0) && colours[0].0.is_infinite(), "{title}: {colours:?}");
        let has = |wanted: &[&str]| colours.iter().any(|(_, colour)| wanted.contains(colour));
        // Of a blue one nobody says which number is right.
        let judges = has(&["green"]) && has(&["red", "orange", "yellow"]);
        assert!(judges || colours.len() == 1 && has(&["blue"]), "{title}: {colours:?}");
        assert_eq!(defaults["color"]["mode"], "thresholds", "{title}");
        assert_ne!(panel["options"]["colorMode"], "none", "{title}");
        assert!(defaults["noValue"].is_string(), "{title} says nothing where there is nothing");
    }
}

#[test]
fn what_is_red_is_what_somebody_has_to_look_at() {
    let panels = panels();
    let (hour, day) = (3600.0, 86400.0);
    for (title, value, colour) in [
        ("Leaders", 0.0, "red"),
        ("Leaders", 1.0, "green"),
        ("Leaders", 2.0, "red"),
        ("Federation open", 0.0, "red"),
        ("Federation open", 1.0, "green"),
        ("Connected peers", 0.0, "red"),
        ("Connected peers", 1.0, "green"),
        ("Peers away", 0.0, "green"),
        ("Peers away", 1.0, "orange"),
        ("Brokers missing", 0.0, "green"),
        ("Bursts that run nowhere", 1.0, "yellow"),
        ("Identity renewed in", 8.0 * hour, "green"),
        ("Identity renewed in", -1.0, "orange"),
        // As the alert TributaryIdentityIsNotRenewed.
        ("Identity renewed in", -hour - 1.0, "red"),
        // What is left of a day when it is renewed in time.
        ("Identity ends in", 8.0 * hour, "green"),
        ("Identity ends in", 60.0, "red"),
        ("Webhook certificate ends in", 30.0 * day, "green"),
        // As the alert TributaryWebhookCertificateEnds.
        ("Webhook certificate ends in", 7.0 * day - 1.0, "red"),
    ] {
        let (_, panel) = panels.iter().find(|(known, _)| known == title).unwrap_or_else(|| panic!("no panel {title}"));
        let (_, shown) = colours(panel).into_iter().rfind(|(from, _)| *from <= value).unwrap();
        assert_eq!(shown, colour, "{title} at {value}");
    }
}

#[test]
fn the_chart_brings_them_when_asked() {
    let render = |set: &[&str]| {
        let arguments = [
            "template",
            "tributary",
            "tributary",
            "--set",
            "cluster.name=east",
            "--set",
            "crds.enabled=false",
            "--kube-version",
            chart::KUBERNETES,
        ];
        let output = chart::helm(&charts(), None, &[&arguments[..], set].concat()).unwrap();
        chart::objects(&String::from_utf8(output.stdout).unwrap())
    };
    let of_kind = |objects: &[Value], kind: &str, name: &str| {
        objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).cloned()
    };
    let without = render(&[]);
    assert!(of_kind(&without, "PrometheusRule", "tributary").is_none());
    assert!(of_kind(&without, "ConfigMap", "tributary-dashboard").is_none());
    let with = render(&["--set", "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true"]);
    let rules = of_kind(&with, "PrometheusRule", "tributary").unwrap();
    let file = |name: &str| std::fs::read_to_string(charts().join("tributary/files").join(name)).unwrap();
    let alerts: Value = serde_saphyr::from_str(&file("alerts.yaml")).unwrap();
    assert_eq!(rules["spec"]["groups"][0]["rules"], alerts);
    let dashboard = of_kind(&with, "ConfigMap", "tributary-dashboard").unwrap();
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(dashboard["data"]["tributary.json"].as_str().unwrap().trim(), file("dashboard.json").trim());
}
