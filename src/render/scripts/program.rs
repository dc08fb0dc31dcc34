//! What the lead runs inside of Flux: the user's command as Flux gets it.

use tributary_api::minicluster::{Container, MiniClusterSpec};

use super::words::{self, Word};
use crate::problem::{Problem, reason};

/// Script that shows what there is to know about the instance.
pub(super) const DIAGNOSE: &str = "/flux_operator/diagnose.sh";

/// Script that runs the RESTful server.
pub(super) const RESTFUL: &str = "/flux_operator/restful.sh";

/// Where `commands.script` is found in every pod, under upstream's name.
pub(super) const CUSTOM_SCRIPT: &str = "/tmp/custom-entrypoint.sh";

/// The initial program of the instance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Program {
    /// Words to start, submission included. Empty: no command, people connect to the instance.
    pub(super) words: Vec<Word>,
    /// What stands in front of the broker, if there is no command that the user's prefix could stand in front of.
    pub(super) broker_prefix: Vec<Word>,
    /// The batch script, with `batch`.
    pub(super) batch: Option<String>,
    /// Position of the word that says how many nodes are asked for, if any are.
    pub(super) nodes: Option<usize>,
}

impl Program {
    /// Whether it is the RESTful server.
    pub(crate) fn serves(&self) -> bool {
        self.words.last().is_some_and(|word| word.is(RESTFUL))
    }

    /// Of the container that runs Flux, at `path`.
    ///
    /// # Errors
    /// Command lines that cannot be split, each with its field.
    pub(crate) fn of(spec: &MiniClusterSpec, runner: &Container, path: &str) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader::default();
        let command = match &runner.commands.script {
            Some(_) => ["/bin/bash", CUSTOM_SCRIPT].map(Word::plain).to_vec(),
            None if runner.batch => Vec::new(),
            None => reader.words(format!("{path}.command"), runner.command.as_deref()),
        };
        let prefix = reader.words(format!("{path}.commands.prefix"), runner.commands.prefix.as_deref());
        let submit = reader.words("spec.flux.submitCommand".to_owned(), spec.flux.submit_command.as_deref());
        let options = reader.words("spec.flux.optionFlags".to_owned(), spec.flux.option_flags.as_deref());
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }

        let none = Self { broker_prefix: prefix.clone(), ..Self::default() };
        if runner.diagnostics {
            return Ok(Self { words: plain(&["/bin/bash", DIAGNOSE]), ..Self::default() });
        } else if spec.interactive {
            return Ok(none);
        }
        let flags = [node_flags(spec), options, plain(if spec.logging.debug { &["-vvv"] } else { &[] })].concat();
        let (words, batch) = if runner.batch && runner.commands.script.is_none() {
            let Some(lines) = &runner.command else { return Ok(none) };
            (batch_words(&flags), Some(batch_script(lines, runner.batch_raw)))
        } else if command.is_empty() && spec.flux_restful.is_some() {
            return Ok(Self { words: [prefix, plain(&["/bin/bash", RESTFUL])].concat(), ..Self::default() });
        } else if command.is_empty() {
            return Ok(none);
        } else if spec.is_launcher(runner) {
            (command, None)
        } else {
            let wrap: &[&str] = if runner.commands.script.is_some() { &["--wrap"] } else { &[] };
            (submission(submit, &flags, plain(wrap), command), None)
        };
        let timed: &[&str] = &["/usr/bin/time", "-f", "FLUXTIME fluxsubmit wall time %E"];
        let before = [plain(if spec.logging.timed { timed } else { &[] }), prefix].concat();
        let words = [before, words].concat();
        // The words of a launcher are all its own.
        let asks = nodes(spec).is_some() && (batch.is_some() || !spec.is_launcher(runner));
        let flags = asks.then(|| words.windows(flags.len()).position(|some| some == flags)).flatten();
        Ok(Self { words, batch, nodes: flags.map(|at| at + 1), broker_prefix: Vec::new() })
    }
}

/// Runs `flux batch` and ends with the exit code of its job: `flux job wait` would tell of every failure with 1.
const BATCH: [&str; 4] = ["sh", "-c", r#"id=$("$@") && echo "$id" && flux job status "$id""#, "sh"];

/// The command behind the one that submits it, which ends with the command's exit code. `wrap` is what `flux batch` needs
/// for a command that is no script by itself (`flux-batch(1)`).
fn submission(submit: Vec<Word>, flags: &[Word], wrap: Vec<Word>, command: Vec<Word>) -> Vec<Word> {
    let flags = flags.to_vec();
    let submit = if submit.is_empty() { plain(&["flux", "submit"]) } else { submit };
    let is = |name: &str| submit.last().is_some_and(|word| word.is(name));
    if is("run") || is("alloc") {
        // These watch their job by themselves, and know no such option.
        return [submit, flags, plain(&["--quiet"]), command].concat();
    }
    if is("batch") {
        return [plain(&BATCH), submit, flags, wrap, command].concat();
    }
    [submit, flags, plain(&["--quiet", "--watch"]), command].concat()
}

/// Whether the command starts an instance of its own over several clusters. Its brokers find each other by addresses of pods,
/// which lead no further than their cluster, so they wait for each other for ever.
pub fn nests(spec: &MiniClusterSpec) -> bool {
    let flux = &spec.flux;
    let spans = flux.bursting.span && !flux.bursting.clusters.is_empty() && nodes(spec).is_some();
    let submit: Vec<&str> = flux.submit_command.as_deref().unwrap_or_default().split_whitespace().collect();
    let starts = |runner: &Container| {
        let lines = runner.batch && runner.commands.script.is_none();
        !spec.interactive
            && (lines || !spec.is_launcher(runner) && matches!(submit[..], ["flux", "batch" | "alloc", ..]))
    };
    // Somebody says where it stays.
    let stays =
        [&flux.option_flags, &flux.submit_command].into_iter().flatten().any(|text| text.contains("--requires"));
    spans && !stays && spec.runner().is_ok_and(|runner| starts(runner.container))
}

/// How many nodes the command that is submitted asks for: the root's own and those of bursts; `None`: it asks for tasks only, as
/// upstream chooses.
pub(super) fn nodes(spec: &MiniClusterSpec) -> Option<[i64; 2]> {
    let bursts = spec.flux.bursting.clusters.iter().filter(|_| spec.flux.bursting.span);
    // Sizes are checked beside this: any may come here.
    let nodes = [i64::from(spec.size()), bursts.map(|cluster| i64::from(cluster.size(spec.size()))).sum()];
    let tasks = i64::from(spec.tasks());
    (tasks == 0 || tasks >= nodes.iter().sum()).then_some(nodes)
}

/// `-N` for nodes and `-n` for tasks.
fn node_flags(spec: &MiniClusterSpec) -> Vec<Word> {
    let tasks = spec.tasks();
    let mut flags = Vec::new();
    if let Some(nodes) = nodes(spec) {
        flags.extend(["-N".to_owned(), nodes.iter().sum::<i64>().to_string()]);
    }
    if tasks != 0 {
        flags.push(format!("-n{tasks}"));
    }
    flags.into_iter().map(Word::plain).collect()
}

fn batch_words(flags: &[Word]) -> Vec<Word> {
    let batch = plain(&["--flags", "waitable", "./flux-job.batch"]);
    [plain(&BATCH), plain(&["flux", "batch"]), flags.to_vec(), batch].concat()
}

/// The result of a batch: the highest exit code of its jobs. Those that never ran have a negative one.
const BATCH_END: &str = r#"flux queue idle
flux jobs -a
result=0
for code in $(flux jobs -a -c 0 -n -o '{returncode}'); do
    if ((code < 0)); then code=1; fi
    if ((code > result)); then result=$code; fi
done
exit "$result"
"#;

/// Every line is one job, unless it is a script of the user's own. The lines are the user's shell, unchanged.
fn batch_script(lines: &str, raw: bool) -> String {
    if raw {
        return format!("#!/bin/bash\n{lines}\n");
    }
    let mut script = "#!/bin/bash\n".to_owned();
    for (index, line) in lines.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let output = format!("\"$FLUX_OUTPUT_DIR\"/job-{index}");
        script += &format!("flux submit --flags waitable --error={output}.err --output={output}.out {line}\n");
    }
    script + BATCH_END
}

pub(super) fn plain(words: &[&str]) -> Vec<Word> {
    words.iter().copied().map(Word::plain).collect()
}

/// Splits command lines and keeps what is wrong with them.
#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn words(&mut self, field: String, text: Option<&str>) -> Vec<Word> {
        words::split(text.unwrap_or_default()).unwrap_or_else(|error| {
            self.problems.push(Problem::new(field, reason::INVALID_VALUE, error.to_string()));
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(spec: &str) -> Result<Program, Vec<Problem>> {
        let spec: MiniClusterSpec = serde_saphyr::from_str(spec).unwrap();
        Program::of(&spec, spec.runner().unwrap().container, "spec.containers[0]")
    }

    fn line(spec: &str) -> String {
        words::to_bash(&program(spec).unwrap().words)
    }

    #[test]
    fn a_command_is_submitted_with_its_nodes_and_tasks() {
        for (size, expected) in [
            ("size: 2", "flux submit -n1 --quiet --watch hostname"),
            ("size: 1", "flux submit -N 1 -n1 --quiet --watch hostname"),
            ("size: 2\ntasks: 2", "flux submit -N 2 -n2 --quiet --watch hostname"),
            (
                "size: 2\ntasks: 0\nflux: {bursting: {span: true, clusters: [{size: 3}, {}]}}",
                "flux submit -N 7 --quiet --watch hostname",
            ),
            (
                "size: 2\ntasks: 0\nflux: {bursting: {clusters: [{size: 3}]}}",
                "flux submit -N 2 --quiet --watch hostname",
            ),
            ("size: 2\ntasks: 0", "flux submit -N 2 --quiet --watch hostname"),
            ("size: 4\ntasks: 3", "flux submit -n3 --quiet --watch hostname"),
        ] {
            assert_eq!(line(&format!("{size}\ncontainers: [{{command: hostname}}]")), expected, "{size}");
        }
    }

    /// The danger: its brokers wait for each other for ever.
    #[test]
    fn an_instance_in_the_instance_over_several_clusters_is_told() {
        let bursting = |span: bool| format!("bursting: {{span: {span}, clusters: [{{size: 3}}]}}");
        let batch = |span| format!("flux: {{{}}}\ncontainers: [{{batch: true, command: hostname}}]", bursting(span));
        let by = |submit: &str, span| {
            format!("flux: {{submitCommand: {submit}, {}}}\ncontainers: [{{command: hostname}}]", bursting(span))
        };
        for (text, expected) in [
            (batch(true), true),
            (by("flux batch", true), true),
            (by("flux alloc", true), true),
            (by("flux run", true), false),
            (by("flux submit -q batch", true), false),
            (by("flux batch --requires=root-lake", true), false),
            (batch(false), false),
            (by("flux batch", false), false),
            // There is nothing to span, nothing that is submitted, and one node.
            ("flux: {bursting: {span: true}}\ncontainers: [{batch: true, command: hostname}]".to_owned(), false),
            (format!("interactive: true\n{}", by("flux batch", true)), false),
            (format!("tasks: 1\n{}", by("flux batch", true)), false),
        ] {
            let text = if text.starts_with("tasks") { text } else { format!("tasks: 0\n{text}") };
            assert_eq!(nests(&serde_saphyr::from_str(&text).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn options_stand_where_upstream_puts_them() {
        let spec = "
size: 2
logging: {timed: true, debug: true}
flux: {optionFlags: '-ompi=openmpi@5 -o cpu-affinity=per-task', submitCommand: flux mini submit}
containers: [{command: a 'b c' $HOME, commands: {prefix: strace -f}}]
";
        assert_eq!(
            line(spec),
            "/usr/bin/time -f 'FLUXTIME fluxsubmit wall time %E' strace -f flux mini submit -n1 -ompi=openmpi@5 -o \
             cpu-affinity=per-task -vvv --quiet --watch a 'b c' ${HOME:+\"$HOME\"}"
        );
    }

    #[test]
    fn a_launcher_submits_for_itself() {
        assert_eq!(line("containers: [{command: snakemake --flux, launcher: true}]"), "snakemake --flux");
        assert_eq!(line("launcher: true\ncontainers: [{command: snakemake}]"), "snakemake");
    }

    #[test]
    fn a_script_takes_the_place_of_the_command() {
        assert_eq!(
            line("containers: [{commands: {script: echo}}]"),
            "flux submit -N 1 -n1 --quiet --watch /bin/bash /tmp/custom-entrypoint.sh"
        );
    }

    #[test]
    fn batch_lines_reach_the_batch_script_unchanged() {
        let program =
            program("{size: 2, containers: [{batch: true, command: \"echo \\\"a $X\\\"; ls\\n\\n# no\\nb\\n\"}]}");
        let program = program.unwrap();
        assert_eq!(
            words::to_bash(&program.words),
            r#"sh -c 'id=$("$@") && echo "$id" && flux job status "$id"' sh flux batch -n1 --flags waitable ./flux-job.batch"#
        );
        assert_eq!(
            program.batch.unwrap().strip_suffix(BATCH_END).unwrap(),
            "#!/bin/bash\n\
             flux submit --flags waitable --error=\"$FLUX_OUTPUT_DIR\"/job-0.err --output=\"$FLUX_OUTPUT_DIR\"/job-0.out \
             echo \"a $X\"; ls\n\
             flux submit --flags waitable --error=\"$FLUX_OUTPUT_DIR\"/job-3.err --output=\"$FLUX_OUTPUT_DIR\"/job-3.out b\n"
        );
    }

    #[test]
    fn a_raw_batch_is_the_users_own_script() {
        let program = program("containers: [{batch: true, batchRaw: true, command: \"a\\n  b;\\n\"}]").unwrap();
        assert_eq!(program.batch.unwrap(), "#!/bin/bash\na\n  b;\n\n");
    }

    #[test]
    fn other_ways_to_submit_are_waited_for_too() {
        for (submit, expected) in [
            ("flux run", "flux run -N 1 -n1 --quiet hostname"),
            ("flux alloc", "flux alloc -N 1 -n1 --quiet hostname"),
            (
                "flux batch",
                r#"sh -c 'id=$("$@") && echo "$id" && flux job status "$id"' sh flux batch -N 1 -n1 hostname"#,
            ),
        ] {
            assert_eq!(
                line(&format!("flux: {{submitCommand: {submit}}}\ncontainers: [{{command: hostname}}]")),
                expected
            );
        }
        let script = "flux: {submitCommand: flux batch}\ncontainers: [{commands: {script: exit 3}}]";
        assert!(
            line(script).ends_with("flux batch -N 1 -n1 --wrap /bin/bash /tmp/custom-entrypoint.sh"),
            "{}",
            line(script)
        );
    }

    #[test]
    fn an_interactive_broker_runs_no_command_and_takes_the_prefix() {
        let spec = "interactive: true\ncontainers: [{command: hostname, commands: {prefix: fusion -x}}]";
        let program = program(spec).unwrap();
        assert!(program.words.is_empty());
        assert_eq!(words::to_bash(&program.broker_prefix), "fusion -x");
    }

    #[test]
    fn diagnostics_take_the_place_of_the_command() {
        assert_eq!(line("containers: [{diagnostics: true, command: hostname}]"), format!("/bin/bash {DIAGNOSE}"));
    }

    #[test]
    fn the_restful_server_runs_where_there_is_no_command() {
        let served = program("{fluxRestful: {}, containers: [{commands: {prefix: strace}}]}").unwrap();
        assert_eq!(words::to_bash(&served.words), format!("strace /bin/bash {RESTFUL}"));
        assert!(served.serves());
        for other in ["interactive: true", "containers: [{command: hostname}]", "containers: [{diagnostics: true}]"] {
            let spec = if other.starts_with('c') { other.to_owned() } else { format!("{other}\ncontainers: [{{}}]") };
            assert!(!program(&format!("fluxRestful: {{}}\n{spec}")).unwrap().serves(), "{other}");
        }
    }

    #[test]
    fn nothing_to_run_means_no_program() {
        for spec in ["containers: [{}]", "containers: [{command: '  '}]", "containers: [{batch: true}]"] {
            assert_eq!(program(spec).unwrap(), Program::default(), "{spec}");
        }
    }

    #[test]
    fn a_command_that_cannot_be_split_is_refused_with_its_field() {
        let problems = program("{containers: [{command: echo ', commands: {prefix: '\"'}}]}").unwrap_err();
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["spec.containers[0].command", "spec.containers[0].commands.prefix"]);
    }
}
