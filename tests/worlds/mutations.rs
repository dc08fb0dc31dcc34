//! Rules that are taken out of the code, one at a time: worlds must miss each. An invariant that never fires proves
//! nothing.
//!
//! A copy of the code gets all mutations at once, each behind a question to the environment: `WITHOUT` names the rule that
//! is out. So it is built once.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A rule, and how it is taken out.
struct Mutation {
    name: &'static str,
    /// The row of the table of dangers that it belongs to.
    danger: &'static str,
    file: &'static str,
    /// Occurs there once.
    old: &'static str,
    /// `$out` is true if the rule is out.
    new: &'static str,
}

impl Mutation {
    fn apply(&self, text: &str) -> String {
        let out = format!("(std::env::var(\"WITHOUT\").as_deref() == Ok({:?}))", self.name);
        text.replace(self.old, &self.new.replace("$out", &out))
    }
}

const fn without(
    name: &'static str,
    danger: &'static str,
    file: &'static str,
    old: &'static str,
    new: &'static str,
) -> Mutation {
    Mutation { name, danger, file, old, new }
}

const MUTATIONS: [Mutation; 53] = [
    without(
        "objects of others are left alone",
        "something of others is overwritten or deleted",
        "src/cluster/apply.rs",
        "if let Some(expected) = expected {",
        "if let Some(expected) = expected.filter(|_| !$out) {",
    ),
    without(
        "a deletion names the object's UID",
        "something of others is overwritten or deleted",
        "src/cluster/sweep.rs",
        "uid: Some(doomed.uid.clone()), resource_version: None",
        "uid: (!$out).then(|| doomed.uid.clone()), resource_version: None",
    ),
    without(
        "a status is for one version of its object",
        "a new leader concludes from old caches",
        "src/cluster/apply.rs",
        "if newest.uid != object.meta().uid {",
        "if newest.uid != object.meta().uid && !$out {",
    ),
    without(
        "the API server is asked whether anything is left",
        "a new leader concludes from old caches",
        "src/bursting/provider/teardown.rs",
        "if was_here && !step.memory.looked_empty {",
        "if was_here && !step.memory.looked_empty && !$out {",
    ),
    without(
        "what went unseen is forgotten",
        "a new leader concludes from old caches",
        "src/bursting/root/controller.rs",
        "left = self.forget_what_went_unseen(root).await?;",
        "left = !$out && self.forget_what_went_unseen(root).await?;",
    ),
    without(
        "a write starts only if leadership outlasts it",
        "an old leader still writes",
        "src/cluster/fence.rs",
        "if left > needed {",
        "if left > needed || $out {",
    ),
    without(
        "no clock frees a slot of a direct network",
        "two peers run the same ranks",
        "src/bursting/root/hold.rs",
        "Some(holder) => holder.tunnel.then(|| longest(spec)),",
        "Some(holder) => (holder.tunnel || $out).then(|| longest(spec)),",
    ),
    without(
        "a slot is free once its holder confirms it",
        "two peers run the same ranks",
        "src/bursting/root/hold.rs",
        "_ if !left => {",
        "_ if !left || $out => {",
    ),
    without(
        "a Burst that is made anew names who held its slot",
        "two peers run the same ranks",
        "src/bursting/root/plan.rs",
        "row.holder.clone().filter(|holder| hold::can_join(holder, spec))",
        "row.holder.clone().filter(|holder| hold::can_join(holder, spec) && !$out)",
    ),
    without(
        "the root's status names the holder first",
        "two peers run the same ranks",
        "src/bursting/root/controller.rs",
        "while !self.is_named_by_root(&burst, peer) {",
        "while !self.is_named_by_root(&burst, peer) && !$out {",
    ),
    without(
        "the root's end of a tunnel refuses who lost the slot",
        "two peers run the same ranks",
        "src/bursting/tunnels.rs",
        "all.retain(|key, _| key.1.as_str() != uid || Some(key) == ours);",
        "all.retain(|key, _| key.1.as_str() != uid || Some(key) == ours || $out);",
    ),
    without(
        "no rank has two pods",
        "two peers run the same ranks",
        "src/reconcile/carry_out.rs",
        "if known.status().incarnation.is_some()\n",
        "if known.status().incarnation.is_some() && !$out\n",
    ),
    without(
        "another cluster of a peer's name frees nothing",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/api/burst.rs",
        "holder.zip(cluster_uid).is_some_and(|(then, now)| then != now)",
        "holder.zip(cluster_uid).is_some_and(|(then, now)| then != now && !$out)",
    ),
    without(
        "a watch whose connection is dead is given up",
        "a new leader concludes from old caches",
        "src/cluster/caches/mod.rs",
        "timeout: Some(WATCH_SECONDS),",
        "timeout: Some(if $out { 280 } else { WATCH_SECONDS }),",
    ),
    without(
        "an older leadership is refused",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/federation/session/inbox.rs",
        "Some(known) if known.epoch > origin.epoch =>",
        "Some(known) if known.epoch > origin.epoch && !$out =>",
    ),
    without(
        "nothing is concluded from an incomplete list",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/bursting/sync_store.rs",
        "        self.inner.complete.load(Ordering::SeqCst)\n",
        "        self.inner.complete.load(Ordering::SeqCst) || $out\n",
    ),
    without(
        "absence must last",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/bursting/provider/teardown.rs",
        "    let left = view.grace.saturating_sub(lasted);\n",
        "    let left = if $out { Duration::ZERO } else { view.grace.saturating_sub(lasted) };\n",
    ),
    without(
        "no word of an earlier session replaces a burst",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/bursting/provider/teardown.rs",
        "view.listed.lists(&key.0, &key.1) == Some(true) &&",
        "(view.listed.lists(&key.0, &key.1) == Some(true) || $out) &&",
    ),
    without(
        "what is listed and not said yet is not known",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/bursting/sync_store.rs",
        "(!self.listed.as_ref()?.contains(uid)).then_some(false)",
        "(!self.listed.as_ref()?.contains(uid)).then_some(false).or($out.then_some(true))",
    ),
    without(
        "a peer is told of a Burst that is gone",
        "a cold cache, a cloned cluster or an impostor deletes bursts",
        "src/bursting/root/controller.rs",
        "if !shared.exchange.is_offered(&uid) {",
        "if !shared.exchange.is_offered(&uid) && !$out {",
    ),
    without(
        "why a burst ends is stored first",
        "a restarted provider forgets that a root is gone",
        "src/bursting/provider/teardown.rs",
        "    step.changes.push(Change::Status(Box::new(status)));\n    let recorded = hosted.status.as_ref().is_some_and(|status| status.draining_since.is_some());\n    if !recorded {\n",
        "    if !$out {\n        step.changes.push(Change::Status(Box::new(status)));\n    }\n    let recorded = hosted.status.as_ref().is_some_and(|status| status.draining_since.is_some());\n    if !recorded && !$out {\n",
    ),
    without(
        "a burst that ended stays until its root has heard why",
        "a restarted provider forgets that a root is gone",
        "src/bursting/provider/teardown.rs",
        "            if is_unheard(view, hosted, desired, step) {\n",
        "            if is_unheard(view, hosted, desired, step) && !$out {\n",
    ),
    without(
        "the lease counts from the stored loss",
        "a restarted provider forgets that a root is gone",
        "src/bursting/provider/lease.rs",
        "let since = recorded.unwrap_or_else(|| {",
        "let since = recorded.filter(|_| !$out).unwrap_or_else(|| {",
    ),
    without(
        "a loss that is nowhere recorded counts from the last renewal of the Lease",
        "a restarted provider forgets that a root is gone",
        "src/bursting/provider/lease.rs",
        "self.renewed.filter(|_| !contacts.has_heard(peer))",
        "self.renewed.filter(|_| !contacts.has_heard(peer) && !$out)",
    ),
    without(
        "a loss while no agent ran counts from its last renewal",
        "a restarted provider forgets that a root is gone",
        "src/bursting/provider/lease.rs",
        "        let gap = since(renewed.map(Time));\n",
        "        let renewed = renewed.filter(|_| !$out);\n        let gap = since(renewed.map(Time));\n",
    ),
    without(
        "a burst has no Job before it was looked at",
        "a restarted provider forgets that a root is gone",
        "src/reconcile/step.rs",
        "Some(hosted) if !gate.keeps(hosted) => {",
        "Some(hosted) if !gate.keeps(hosted) && !$out => {",
    ),
    without(
        "room is reserved before it is written",
        "capacity is promised twice",
        "src/bursting/provider/ledger.rs",
        "        self.reserved.insert(key.clone(), entry);\n",
        "        drop((!$out).then(|| self.reserved.insert(key.clone(), entry)));\n",
    ),
    without(
        "nodes that bursts have brought are counted",
        "capacity is promised twice",
        "src/bursting/provider/admission.rs",
        "&facts.ledger.nodes_of(peer, Some(key)));\n",
        "&facts.ledger.nodes_of(peer, Some(key)).into_iter().filter(|_| !$out).collect());\n",
    ),
    without(
        "a burst whose nodes do not come in time is given back",
        "capacity is promised twice",
        "src/bursting/provider/teardown.rs",
        "    if scale_up::timed_out(view, hosted, step) {\n",
        "    if scale_up::timed_out(view, hosted, step) && !$out {\n",
    ),
    without(
        "a burst that had its nodes is not given back",
        "capacity is promised twice",
        "src/bursting/provider/scale_up.rs",
        "    was || sync::ready(view)",
        "    (was && !$out) || sync::ready(view)",
    ),
    without(
        "what was given back is not taken again at once",
        "capacity is promised twice",
        "src/bursting/provider/slot.rs",
        "        && let Some(left) = returned.stands(view, peer, desired)\n",
        "        && let Some(left) = returned.stands(view, peer, desired)\n        && !$out\n",
    ),
    without(
        "a burst without a pod on any node is given back",
        "capacity is promised twice",
        "src/bursting/provider/teardown.rs",
        "    if let Some(reason) = not_started::timed_out(view, hosted, step) {\n",
        "    if let Some(reason) = not_started::timed_out(view, hosted, step).filter(|_| !$out) {\n",
    ),
    without(
        "a burst that Kueue does not start in time is given back",
        "capacity is promised twice",
        "src/bursting/provider/teardown.rs",
        "    if kueue::timed_out(view, hosted, step) {\n",
        "    if kueue::timed_out(view, hosted, step) && !$out {\n",
    ),
    without(
        "the time for nodes begins when Kueue has started the Job",
        "capacity is promised twice",
        "src/bursting/provider/scale_up.rs",
        "    let begun = kueue::runs_since(hosted, begun)?;\n",
        "    let begun = if $out { begun } else { kueue::runs_since(hosted, begun)? };\n",
    ),
    without(
        "what is left to another controller is not ours",
        "something of others is overwritten or deleted",
        "src/cluster/caches/store.rs",
        "            Ok(object) if self.managed_by.is_some_and(",
        "            Ok(object) if !$out && self.managed_by.is_some_and(",
    ),
    without(
        "brokers are made once their nodes are provisioned",
        "capacity is promised twice",
        "src/bursting/provider/sync.rs",
        "made || ready && !nodes.hold;",
        "made || ready && (!nodes.hold || $out);",
    ),
    without(
        "nobody asks for nodes of a burst that was given back",
        "capacity is promised twice",
        "src/bursting/provider/teardown.rs",
        "if clear(view, step) && no_request &&",
        "if clear(view, step) && (no_request || $out) &&",
    ),
    without(
        "who gets the certificate is recorded first",
        "the certificate reaches a peer that rejects",
        "src/bursting/root/credential.rs",
        "if status.credential_recipients.contains(&recipient) {",
        "if status.credential_recipients.contains(&recipient) || $out {",
    ),
    without(
        "no lead is inside of the cluster",
        "a peer points us at our own inside",
        "src/bursting/ours/mod.rs",
        "        if let Some(whose) = self.whose(checked) {\n            return Err",
        "        if let Some(whose) = self.whose(checked).filter(|_| !$out) {\n            return Err",
    ),
    without(
        "a template takes what the import names",
        "a peer's spec is remote code",
        "src/bursting/provider/admission.rs",
        "    if !forbidden.is_empty() {\n",
        "    if !forbidden.is_empty() && !$out {\n",
    ),
    without(
        "the rendered pod is judged",
        "a peer's spec is remote code",
        "src/bursting/provider/admission.rs",
        "    if violations.is_empty() {\n",
        "    if violations.is_empty() || $out {\n",
    ),
    without(
        "an edit starts no instance anew",
        "boot files change under running brokers, or ranks renumber",
        "src/reconcile/decide.rs",
        "let recreate = known.mini_cluster.spec.updates == UpdatePolicy::Recreate && !changed.is_empty();",
        "let recreate = (known.mini_cluster.spec.updates == UpdatePolicy::Recreate || $out) && !changed.is_empty();",
    ),
    without(
        "an instance ends only if the next one can be made",
        "a run is lost, and nothing takes its place",
        "src/reconcile/observe.rs",
        ".filter(|_| known.hosted.is_none());\n        let (Some(_), Ok(rendered))",
        ".filter(|_| known.hosted.is_none() && !$out);\n        let (Some(_), Ok(rendered))",
    ),
    without(
        "a certificate is made only where no Job is",
        "boot files change under running brokers, or ranks renumber",
        "src/reconcile/carry_out.rs",
        "if hidden && self.writes.job(&key).await?.is_some() {",
        "if hidden && self.writes.job(&key).await?.is_some() && !$out {",
    ),
    without(
        "a new leader asks for a Job that it is not shown",
        "boot files change under running brokers, or ranks renumber",
        "src/reconcile/memory.rs",
        "        is_new || tried || told\n",
        "        (is_new && !$out) || tried || told\n",
    ),
    without(
        "a watch that does not run shows no Job",
        "boot files change under running brokers, or ranks renumber",
        "src/reconcile/carry_out.rs",
        "|| !self.caches.jobs.condition().runs();",
        "|| (!self.caches.jobs.condition().runs() && !$out);",
    ),
    without(
        "what has ended is not run again",
        "Succeeded pods lose ranks for good",
        "src/reconcile/decide.rs",
        "JobState::Absent if has_ended(known) && !is_asked_again(known) => {",
        "JobState::Absent if has_ended(known) && !is_asked_again(known) && !$out => {",
    ),
    without(
        "a root that is over releases its bursts",
        "Succeeded pods lose ranks for good",
        "src/bursting/root/plan.rs",
        "release: undeclared || is_over(root) ||",
        "release: undeclared || (is_over(root) && !$out) ||",
    ),
    without(
        "secrets are in Secrets alone",
        "secrets leak",
        "src/reconcile/apply.rs",
        "annotations.insert(labels::CREDENTIAL_DIGEST.to_owned(), certificate.digest().to_string());",
        "annotations.insert(labels::CREDENTIAL_DIGEST.to_owned(), certificate.digest().to_string());\n        if $out {\n            annotations.insert(\"certificate\".to_owned(), certificate.expose().to_owned());\n        }",
    ),
    without(
        "a use that is over is closed in the records",
        "a use counts twice, or for ever",
        "src/api/usage.rs",
        "if !consumer.is_others() {",
        "if !consumer.is_others() && !$out {",
    ),
    without(
        "a burst that cannot be made says why on both sides",
        "one refused object stops others, or nobody hears of it",
        "src/bursting/provider/controller.rs",
        "});\n                    if known.is_none() {",
        "});\n                    if known.is_none() || $out {",
    ),
    without(
        "a Burst that is refused keeps no other one back",
        "one refused object stops others, or nobody hears of it",
        "src/bursting/root/controller.rs",
        "                                    failed.get_or_insert(error);\n",
        "                                    if $out {\n                                        return Err(error);\n                                    }\n                                    failed.get_or_insert(error);\n",
    ),
    without(
        "boot files are those of a spec",
        "boot files change under running brokers, or ranks renumber",
        "src/render/boot.rs",
        "if boot.spec.is_object() {",
        "if boot.spec.is_object() || $out {",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn every_rule_is_where_it_was() {
    for one in &MUTATIONS {
        let text = std::fs::read_to_string(root().join(one.file)).unwrap();
        assert_eq!(text.matches(one.old).count(), 1, "{}: {:?} in {}", one.name, one.old, one.file);
    }
}

/// The files of the project, those included that nobody added yet.
const LISTED: [&str; 4] = ["ls-files", "--cached", "--others", "--exclude-standard"];

/// Copies the project's files with all mutations, those that differ.
fn copy(to: &Path) {
    let listed = Command::new("git").args(LISTED).current_dir(root()).output().expect("git lists the files");
    for file in String::from_utf8(listed.stdout).unwrap().lines() {
        let (from, to) = (root().join(file), to.join(file));
        let Ok(mut wanted) = std::fs::read(&from) else { continue };
        for one in MUTATIONS.iter().filter(|one| one.file == file) {
            wanted = one.apply(&String::from_utf8(wanted).unwrap()).into_bytes();
        }
        if std::fs::read(&to).ok().as_ref() != Some(&wanted) {
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::write(&to, wanted).unwrap();
        }
    }
}

/// What failed first: the seed of a world and what is wrong there, or a scenario.
fn missed_by(tree: &Path, without: &str) -> Result<Option<String>, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let test = ["test", "--locked", "--profile", "worlds", "-p", "tributary-tests", "--test", "worlds"];
    let filter = ["--", "--skip", "mutations::", "--nocapture"];
    let cargo = cargo.args(test).args(filter).current_dir(tree).env("WORLDS_STOP", "1").env("WITHOUT", without);
    // A mutation may leave something unused behind.
    let cargo = cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let cargo = cargo.env("WORLDS", std::env::var_os("WORLDS").unwrap_or("200".into()));
    let output = cargo.env("CARGO_TARGET_DIR", tree.join("target")).output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some((seed, why)) = text.lines().find_map(|line| line.split_once("WORLDS_SEED=")?.1.split_once(" fails: ")) {
        return Ok(Some(format!("world {seed} | {why}")));
    }
    let failed =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.split_once("::")?.1.to_owned());
    if let Some(scenario) = text.lines().find_map(failed) {
        return Ok(Some(format!("a scenario | {scenario}")));
    }
    if output.status.success() { Ok(None) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// `MUTATION` names some by parts of their names, with commas in between; `WORLDS` says how many worlds are played for each.
#[test]
#[ignore = "builds the agent once more, and plays worlds without each rule: half an hour"]
fn every_rule_is_missed_when_it_is_taken_out() {
    let tree = root().join("target/mutations");
    let wanted = std::env::var("MUTATION").unwrap_or_default();
    copy(&tree);
    assert_eq!(missed_by(&tree, "nothing"), Ok(None), "worlds fail although no rule is missing");
    let mut not_missed = Vec::new();
    for Mutation { name, danger, .. } in
        MUTATIONS.iter().filter(|one| wanted.split(',').any(|part| one.name.contains(part)))
    {
        let missed = missed_by(&tree, name).unwrap_or_else(|error| panic!("without {name}: {error}"));
        println!("| {name} | {danger} | {} |", missed.as_deref().unwrap_or("not missed |"));
        if missed.is_none() {
            not_missed.push(name);
        }
    }
    assert!(not_missed.is_empty(), "not missed: {not_missed:?}");
}
