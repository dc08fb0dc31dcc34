//! Options of the broker, as users see them in the log and in `flux getattr`.
//!
//! Source: flux-core `doc/man7/flux-broker-attributes.rst`.

use tributary_flux::Topology;

use super::program::{nodes, plain};
use super::words::{self, Word};
use crate::model::{Model, RETRY_WITHIN, Role};

/// The options, in upstream's order, as a bash array.
pub(super) fn broker_options(model: &Model<'_>) -> String {
    let lines: String = options(model).iter().map(|option| format!("    {option}\n")).collect();
    // On the node's network the host name is the node's, and in no host list.
    let host = if model.spec.pod.host_network { "brokerOptions+=(\"-Shostname=$HOSTNAME\")\n" } else { "" };
    format!("brokerOptions=(\n{lines})\n{host}{}", far_timeout(model))
}

/// A broker whose connection leads to another cluster keeps it over a cut that is shorter than the lease: the peer keeps its
/// brokers for as long. All other brokers find out within Flux's own 20 s that a node is gone.
fn far_timeout(model: &Model<'_>) -> String {
    let is_burst = matches!(model.role, Role::Burst { .. });
    if !model.spans_clusters() || model.spec.flux.broker_config.is_some() {
        return String::new();
    }
    let seconds = model.longest_silence().as_secs();
    let mut lines = format!("brokerOptions+=(-Stbon.tcp_user_timeout={seconds}s)\n");
    if is_burst {
        lines.push_str(&format!("_retry={}\n", RETRY_WITHIN.as_secs()));
    }
    if is_burst && model.topology != Topology::Gateway {
        return lines;
    }
    format!("if [[ $HOSTNAME == {} ]]; then\n{}fi\n", words::quote(&format!("{}-0", model.name)), indented(&lines))
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("    {line}\n")).collect()
}

fn options(model: &Model<'_>) -> Vec<String> {
    let (spec, config) = (model.spec, model.config_root());
    let mut options = vec![format!("-Scron.directory={config}/etc/flux/system/cron.d")];
    let topology = spec.flux.topology.as_deref().filter(|topology| *topology != "custom");
    if model.tree_is_free() {
        // One level of followers. Passed, it would override the parents that a hosts table names. With a minimal service no
        // follower finds another one.
        let fanout = if spec.flux.minimal_service { spec.max_size().max(256) } else { 256 };
        options.extend(topology.is_none().then(|| format!("-Stbon.fanout={fanout}")));
    }
    options.push(format!("-Srundir={config}/run/flux"));
    options.extend(spec.interactive.then(|| "-Sbroker.rc2_none".to_owned()));
    options.push(format!("-Sstatedir={config}/var/lib/flux"));
    options.extend((!spec.flux.disable_socket).then(|| format!("-Slocal-uri=local://{config}/run/flux/local")));
    options.extend(spec.flux.connect_timeout().map(|timeout| format!("-Stbon.connect_timeout={timeout}")));
    options.extend(topology.filter(|_| model.tree_is_free()).map(|topology| format!("-Stbon.topo={topology}")));
    options.extend(quorum(model).filter(|_| !follows_size(model)).map(|quorum| format!("-Sbroker.quorum={quorum}")));
    options.extend(spec.logging.zeromq.then(|| "-Stbon.zmqdebug=1".to_owned()));
    let level = if spec.logging.quiet { 0 } else { spec.flux.log_level() };
    options.push(format!("-Slog-stderr-level={level}"));
    options.push("-Slog-stderr-mode=local".to_owned());
    options.iter().map(|option| words::quote(option)).collect()
}

/// How many brokers must be there before the instance starts; `None` leaves it to the root.
///
/// Brokers of bursts count as well once they are there, but none is waited for: they may come late or never.
pub(super) fn quorum(model: &Model<'_>) -> Option<i32> {
    match &model.role {
        Role::Burst { .. } => None,
        // Who is missing shall not keep it from being shown.
        Role::Root if model.runner.container.diagnostics => Some(1),
        Role::Root if model.rank_map.size() == 1 && model.hostlist.is_none() => None,
        Role::Root => Some(model.spec.min_size.unwrap_or(model.spec.size())),
    }
}

/// Whether the lead waits for as many as are wanted when it starts, which may be others by then.
pub(super) fn follows_size(model: &Model<'_>) -> bool {
    model.role == Role::Root && model.spec.max_size() > 1 && !model.runner.container.diagnostics
}

/// The file under [`super::QUORUM_KEY`]. A line that nobody reads is empty, or left out at the end.
pub(super) fn quorum_file(model: &Model<'_>) -> Option<String> {
    let wait = model.wait.filter(|_| model.role == Role::Root);
    // One of a single broker is followed for its bursts, also once it has none any more.
    let quorum = quorum(model).filter(|_| follows_size(model)).or(wait.map(|_| quorum(model).unwrap_or(1)))?;
    let bursts = model.wait.filter(|wait| wait.all).map(|wait| wait.brokers.to_string()).unwrap_or_default();
    // Flux refuses a command whose tasks do not fit, and one that waits for more nodes may yet get them.
    let cores = model.rank_map.slots().iter().map(|slot| i64::from(slot.cores)).min().unwrap_or(0);
    let fits = |nodes: &[i64; 2]| i64::from(model.spec.tasks()) <= nodes.iter().sum::<i64>() * cores;
    let nodes = nodes(model.spec).filter(|nodes| model.program.nodes.is_some() && fits(nodes));
    let nodes = nodes.map(|[own, bursts]| format!("{own} {bursts}")).unwrap_or_default();
    Some(format!("{quorum}\n{bursts}\n{nodes}").trim_end().to_owned() + "\n")
}

/// `--wrap` for `flux start`.
pub(super) fn wrap(model: &Model<'_>) -> Vec<Word> {
    model.spec.flux.wrap.iter().map(|wrap| Word::with_variables(&format!("--wrap={wrap}"))).collect()
}

/// `/usr/bin/time` in front of `flux start`.
pub(super) fn timed(model: &Model<'_>) -> Vec<Word> {
    let timed: &[&str] = &["/usr/bin/time", "-f", "FLUXTIME fluxstart wall time %E"];
    if model.spec.logging.timed { plain(timed) } else { Vec::new() }
}
