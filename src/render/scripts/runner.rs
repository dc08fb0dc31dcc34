//! `wait-i.sh`: the script of the container that runs Flux.

use super::hooks::{Hook, Hooks};
use super::template::{Parts, settings};
use super::user::{self, User};
use super::words::{self, Word};
use super::{AS_IT_IS, Access, ENVIRONMENT, File, JOINED, OPERATOR_DIR, SIGNALS, STRICT, environment};
use super::{ends, options, queue};
use crate::model::{Model, Role};
use crate::pod::restart_policy;

const RUNNER: &str = include_str!("runner.sh");
const LEAD: &str = include_str!("lead.sh");
const FOLLOWER: &str = include_str!("follower.sh");
const RESOURCES: &str = include_str!("resources.sh");
const WAIT_BURSTS: &str = include_str!("wait_bursts.sh");
const START: &str = include_str!("start.sh");
const FINISH: &str = include_str!("finish.sh");
const SHUT_DOWN: &str = include_str!("shut_down.sh");
const ARCHIVE: &str = include_str!("archive.sh");
const ARCHIVED: &str = include_str!("archived.sh");
const LISTEN: &str = include_str!("listen.sh");
const DRAIN: &str = include_str!("drain.sh");
const VERIFY: &str = include_str!("verify.sh");
const QUORUM: &str = include_str!("quorum.sh");
const MUNGE: &str = include_str!("munge.sh");

/// The script and the files it reads.
pub(super) fn files(model: &Model<'_>) -> Vec<File> {
    let index = model.runner.index;
    let hooks = Hooks { prefix: "", index, container: model.runner.container, quiet: model.spec.logging.quiet };
    let mut files = vec![File::upstream(format!("wait-{index}"), script(model, &hooks), Access::Execute)];
    files.extend(hooks.files(&[Hook::Init, Hook::Pre, Hook::BrokerPre, Hook::WorkerPre, Hook::Post]));
    if let (Role::Root, Some(batch)) = (&model.role, &model.program.batch) {
        files.push(File::new(batch_name(index), batch.clone(), Access::Execute));
    }
    files.extend(wait_bursts(model));
    files.extend(finish(model));
    files
}

fn script(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    let spec = model.spec;
    let main_host = model.rank_map.root().host(0);
    let index = hooks.index.to_string();
    let restarts = restart_policy(model) != "Never";
    let values = [
        ("viewbase", spec.flux.mount_path()),
        ("mainHost", main_host.as_str()),
        ("_container", index.as_str()),
        ("_quiet", if spec.logging.quiet { "1" } else { "" }),
        ("_restarts", if restarts { "1" } else { "" }),
    ];
    let role = match model.role {
        Role::Root => format!(
            "if [[ $HOSTNAME == \"$mainHost\" ]]; then\n{}else\n{}fi\n",
            lead(model, hooks),
            follower(model, hooks)
        ),
        Role::Burst { .. } => follower(model, hooks),
    };
    let user = User::of(hooks.container);
    Parts::default()
        .with("settings", settings(values))
        .when(spec.logging.strict, "strict", STRICT)
        .with("signals", SIGNALS)
        .with("hostname", host_name(model))
        .with("init", here(hooks, Hook::Init))
        .with("user", user.map(User::make).unwrap_or_default())
        .with("environment", environment(model).fill(ENVIRONMENT))
        .with("output", output(hooks.container.logs()))
        .when(user.is_some(), "output", user::NEW_OUTPUT)
        .with("script", hooks.script_line())
        .with("options", options::broker_options(model))
        .when(spec.flux.munge_secret.is_some(), "munge", MUNGE)
        .with("pre", here(hooks, Hook::Pre))
        .when(user.is_some(), "owner", user::OWNS)
        .with("following", following(model, user.is_some()))
        .with("ends", ends::start(model))
        .with("queue", queue::start(model))
        .with("role", role)
        .fill(RUNNER)
}

/// The line that runs the user's shell in this one, so that what it sets stays; or nothing.
fn here(hooks: &Hooks<'_>, hook: Hook) -> String {
    let line = hooks.line(hook);
    if line.is_empty() { line } else { format!("{line}; _restore") }
}

/// The line that runs `commands.post`.
fn aside(hooks: &Hooks<'_>) -> String {
    format!("_run_aside {}", hooks.line(Hook::Post))
}

/// The same on the lead, where it may fail a command that has ended well, if the spec is strict.
fn post(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    let strict = if model.spec.logging.strict { "; if ((_result == 0)); then _result=$_aside; fi" } else { "" };
    if hooks.line(Hook::Post).is_empty() { String::new() } else { aside(hooks) + strict }
}

/// On the node's network a pod has the node's name, also for programs that ask the system: Flux must be told its own. What the
/// user calls so is no name of a pod.
fn host_name(model: &Model<'_>) -> String {
    let own = format!("export HOSTNAME={}-$JOB_COMPLETION_INDEX", model.name);
    let container = model.runner.container;
    match model.spec.pod.host_network {
        // For a Flux that has no attribute `hostname` yet.
        true => own + "\nexport FLUX_FAKE_HOSTNAME=$HOSTNAME",
        false if container.environment.contains_key("HOSTNAME") || container.secrets.contains_key("HOSTNAME") => own,
        false => String::new(),
    }
}

/// Words in front of what runs as the user that the spec names.
fn as_user(model: &Model<'_>) -> &'static str {
    if User::of(model.runner.container).is_some() { "\"${_as_flux[@]}\" " } else { "" }
}

/// How a follower notices that it is out of the instance, how it leaves, and how it comes back.
fn following(model: &Model<'_>, has_user: bool) -> String {
    if !model.has_followers() {
        return String::new();
    }
    let user = if has_user { String::new() } else { format!("{AS_IT_IS}\n") };
    let seconds = model.spec.flux.drain_seconds().to_string();
    let listen = if completes(model) { "" } else { LISTEN };
    let drain = if model.drains() {
        format!("{}{DRAIN}", settings([("_drain_seconds", seconds.as_str())]))
    } else {
        String::new()
    };
    let verify = model
        .promised_cores()
        .map(|cores| format!("{}{VERIFY}", settings([("_cores", cores.to_string().as_str())])))
        .unwrap_or_default();
    let quorum = options::quorum(model).filter(|_| options::follows_size(model));
    let quorum = quorum.map(|quorum| format!("_quorum={quorum}\n{QUORUM}")).unwrap_or_default();
    [&user, JOINED, listen, &drain, &verify, &quorum].concat()
}

/// The lead completes the Job: pods that are about to complete too are deleted by that.
const FINISHED: &str = "if ((_status == 0)); then _pause 2; fi";

/// Whether followers complete their index with their broker. What a peer hosts never does: its ranks are the root's to give up.
fn completes(model: &Model<'_>) -> bool {
    model.spec.flux.complete_workers && model.context.hosted.is_none()
}

/// Whether the other pods of this cluster complete when the instance has ended well.
fn finishes(model: &Model<'_>) -> bool {
    model.role == Role::Root && model.spec.max_size() > 1 && !completes(model)
}

/// The file that tells a follower that the instance has ended well.
fn ended(model: &Model<'_>) -> String {
    format!("{}/config/run/flux/ended", model.spec.flux.mount_path())
}

/// The file that tells a lead without a command that its pod is stopped, not its instance.
fn stopped(model: &Model<'_>) -> String {
    format!("{}/config/run/flux/stopped", model.spec.flux.mount_path())
}

/// Directory of batch output. It may name variables of the container.
fn output(logs: &str) -> String {
    let word = match words::split(logs).as_deref() {
        Ok([word]) => words::to_bash(std::slice::from_ref(word)),
        _ => words::quote(logs),
    };
    format!("export FLUX_OUTPUT_DIR={word}")
}

fn lead(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    let batch = match model.program.batch {
        Some(_) => {
            let source = format!("{OPERATOR_DIR}/{}", batch_name(hooks.index));
            format!("cp -f {source} flux-job.batch && chmod 0755 flux-job.batch")
        }
        None => String::new(),
    };
    let user = as_user(model);
    let archive = model.spec.archive.path.as_deref().map(|path| archive(path, user));
    let diagnose = format!("/bin/bash {} before", super::program::DIAGNOSE);
    Parts::default()
        .with("batch", batch)
        .with("archive", archive.unwrap_or_default())
        .when(model.counts_cores(), "resources", format!("    _gpus={}\n{RESOURCES}", model.rank_map.root().gpus))
        .with("brokerPre", here(hooks, Hook::BrokerPre))
        .when(hooks.container.diagnostics, "diagnose", diagnose)
        .when(finishes(model) && model.program.words.is_empty(), "shutdown", shut_down(model))
        .with("start", start(model))
        .when(finishes(model), "finished", FINISHED)
        .when(model.spec.archive.path.is_some(), "archived", ARCHIVED.replace("mv -f", &format!("{user}mv -f")))
        .with("post", post(model, hooks))
        .fill(LEAD)
}

fn shut_down(model: &Model<'_>) -> String {
    let stopped = settings([("_stopped", stopped(model).as_str())]);
    format!("    {}\n{SHUT_DOWN}", stopped.trim_end())
}

/// Where the instance begins, and where its state goes when it ends. The new file keeps the suffix: it tells the format.
fn archive(path: &str, user: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or((".", path));
    let folder = if folder.is_empty() { "/" } else { folder };
    let dump = format!("{}/.new.{file}", folder.trim_end_matches('/'));
    let [path, dump, folder] = [path, &dump, folder].map(words::with_variables);
    let lines = format!("    _archive={path}\n    _dump={dump}\n");
    lines + &Parts::default().with("mkdir", format!("{user}mkdir -p {folder} || true")).fill(ARCHIVE)
}

/// Starts the instance, again while it waits for more brokers than are wanted, and waits for its end.
fn start(model: &Model<'_>) -> String {
    if !options::follows_size(model) {
        return once(model);
    }
    // With a host list of the user's, nobody here knows how many they are.
    let all = if model.hostlist.is_none() { model.rank_map.size() } else { 0 };
    let nodes = model.program.nodes.map(|at| &model.program.words[at..=at]);
    let nodes = nodes.map(|nodes| format!("_nodes={}", words::to_bash(nodes))).unwrap_or_default();
    format!("    _all={all}\n{}", Parts::default().with("nodes", nodes).with("start", once(model)).fill(START))
}

fn once(model: &Model<'_>) -> String {
    let user = as_user(model);
    if model.program.words.is_empty() {
        let broker = [model.program.broker_prefix.clone(), super::program::plain(&["flux", "broker"])].concat();
        let broker = words::to_bash(&broker);
        return format!(
            "    _say \"flux broker --config-path $cfg ${{brokerOptions[*]}}\"\n    \
             _run {user}{broker} --config-path \"$cfg\" \"${{brokerOptions[@]}}\"\n"
        );
    }
    let mut words = model.program.words.clone();
    if let Some(at) = model.program.nodes.filter(|_| options::follows_size(model)) {
        words[at] = Word::with_variables("$_nodes");
    }
    let wait = if waits(model).is_some() {
        let nodes = model.program.nodes.map_or_else(|| Word::plain(""), |at| words[at].clone());
        [["/bin/bash".to_owned(), format!("{OPERATOR_DIR}/wait-bursts.sh")].map(Word::plain).to_vec(), vec![nodes]]
            .concat()
    } else {
        Vec::new()
    };
    let finish = if finishes(model) {
        ["/bin/bash".to_owned(), format!("{OPERATOR_DIR}/finish.sh")].map(Word::plain).to_vec()
    } else {
        Vec::new()
    };
    let program = words::to_bash(&[wait, finish, words].concat());
    let timed = options::timed(model);
    let check = if timed.is_empty() {
        ""
    } else {
        "    if [[ ! -x /usr/bin/time ]]; then\n        echo \"logging.timed needs /usr/bin/time in the image\" >&2\n        \
         exit 1\n    fi\n"
    };
    let flux = words::to_bash(&[super::program::plain(&["flux", "start"]), options::wrap(model)].concat());
    let timed = if timed.is_empty() { String::new() } else { words::to_bash(&timed) + " " };
    let silence = if model.spec.logging.quiet && model.program.batch.is_some() { " >/dev/null 2>&1" } else { "" };
    format!(
        "{check}    _program=({program})\n    \
         _say \"flux start -o --config $cfg ${{brokerOptions[*]}} ${{_program[*]}}\"\n    \
         _run {timed}{user}{flux} -o --config \"$cfg\" \"${{brokerOptions[@]}}\" \"${{_program[@]}}\"{silence}\n"
    )
}

fn follower(model: &Model<'_>, hooks: &Hooks<'_>) -> String {
    let words = [super::program::plain(&["flux", "start"]), options::wrap(model)].concat();
    let flux = words::to_bash(&words);
    let complete = completes(model);
    let end = if complete {
        "_end 0"
    } else {
        "    # Never 0: an index that completes is never started again, and its rank would be lost.\n    _end 143\n"
    };
    let user = as_user(model);
    // One that still waits for its broker to join serves the next one as well.
    let fits = if model.promised_cores().is_some() { "[[ -z $_few ]] && " } else { "" };
    let watch = format!(
        "        if {fits}! kill -0 \"$_returning\" 2>/dev/null; then\n            _return >/dev/null 2>&1 &\n            \
         _returning=$!\n        fi\n        _before_end=_leave\n"
    );
    let again = "        # One that had its place gets it back at once.\n        if [[ -e $viewbase/.heard ]] && \
                 ((SECONDS - _begun > _silence)); then _delay=1; fi\n";
    Parts::default()
        .with("workerPre", here(hooks, Hook::WorkerPre))
        .when(!complete && model.has_followers(), "begin", "_begun=$SECONDS")
        .when(!complete && model.has_followers(), "again", again)
        .when(!complete && model.has_followers(), "listen", "_beside=_listen")
        .when(model.drains(), "watch", "_returning=none")
        .when(model.drains(), "return", watch)
        .with("start", format!("{}_run {user}{flux} -o --config \"$cfg\" \"${{brokerOptions[@]}}\"", ends::find(model)))
        .when(model.drains(), "returned", "_before_end=:")
        .with("post", if hooks.line(Hook::Post).is_empty() { ":".to_owned() } else { aside(hooks) })
        .when(complete, "complete", "break")
        .when(finishes(model), "unfinished", format!("rm -f {}", words::quote(&ended(model))))
        .when(
            finishes(model),
            "finished",
            format!("if [[ $_status == 0 && -e {} ]]; then _end 0; fi", words::quote(&ended(model))),
        )
        .with("end", end)
        .fill(FOLLOWER)
}

fn batch_name(index: usize) -> String {
    format!("flux-job-{index}.batch")
}

/// How many burst brokers the command waits for.
fn waits(model: &Model<'_>) -> Option<u32> {
    model.wait.map(|wait| wait.brokers).filter(|brokers| *brokers > 0)
}

fn finish(model: &Model<'_>) -> Option<File> {
    let last = model.rank_map.root().max_size.checked_sub(1).filter(|_| finishes(model))?;
    // Flux takes no range of one.
    let ranks = if last == 1 { "1".to_owned() } else { format!("1-{last}") };
    let values = settings([("_ranks", ranks.as_str()), ("_ended", &ended(model)), ("_stopped", &stopped(model))]);
    Some(File::new("finish.sh", Parts::default().with("settings", values).fill(FINISH), Access::Execute))
}

fn wait_bursts(model: &Model<'_>) -> Option<File> {
    let wanted = waits(model)?.to_string();
    let first = model.rank_map.root().max_size.to_string();
    let timeout = model.wait.and_then(|wait| wait.timeout).map_or(0, |timeout| timeout.as_secs().max(1));
    let [own, bursts] = super::program::nodes(model.spec).unwrap_or_default().map(|nodes| nodes.to_string());
    let values = settings([
        ("wanted", wanted.as_str()),
        ("first_rank", &first),
        ("timeout", &timeout.to_string()),
        ("own", &own),
        ("bursts", &bursts),
        // Other tasks may not fit on fewer nodes.
        ("fewer", if model.spec.tasks() == 0 { "1" } else { "" }),
    ]);
    let script = Parts::default().with("settings", values).fill(WAIT_BURSTS);
    Some(File::new("wait-bursts.sh", script, Access::Execute))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::tests::lake;
    use crate::{Context, render};

    /// The danger: the command asks for brokers that nobody waits for any more, and never starts.
    #[test]
    fn who_goes_on_without_the_others_takes_the_nodes_that_are_there() {
        let nodes = |spec: &str, joined: &str| {
            let spec = format!(
                "{{{spec}, size: 2, maxSize: 4, containers: [{{command: a}}], flux: {{bursting: {{clusters: [{{size: 5}}], \
                 wait: {{for: All, timeout: 1s}}, span: true}}}}}}"
            );
            let rendered = render(&lake(&format!("  {spec}")), &Context::default()).unwrap();
            let script = &rendered.boot.files["wait-bursts.sh"];
            let asks = if spec.contains("tasks: 6") || spec.contains("launcher") { "" } else { "7" };
            let command = ["bash", asks, "echo", "flux", "submit", "-N", "7", "a b", "-N", "7"];
            let mut bash = Command::new("bash");
            bash.args(["-c", script]).args(command).env("BASH_FUNC_flux%%", format!("() {{ echo '{joined}'; }}"));
            String::from_utf8(bash.output().unwrap().stdout).unwrap()
        };
        assert_eq!(nodes("tasks: 0", "[0-1,4-6]"), "flux submit -N 5 a b -N 7\n");
        assert_eq!(nodes("tasks: 0", "0-1,4-8"), "flux submit -N 7 a b -N 7\n", "all are there");
        for own in ["tasks: 6", "tasks: 9", "tasks: 0, launcher: true"] {
            assert_eq!(
                nodes(own, "0-1"),
                "flux submit -N 7 a b -N 7\n",
                "{own}: these tasks may not fit there, or are words of the user's"
            );
        }
    }
}
