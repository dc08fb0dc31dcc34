//! What users write reaches their programs as it was written.

use proptest::prelude::*;
use tributary::render::{Context, render};

use super::pod::{Pod, lake};

/// Writes down its arguments, each ended by NUL.
const PROGRAM: &str = "#!/bin/bash\nprintf '%s\\0' \"$@\" >\"$ROOT/arguments\"\n";

/// One argument in a spelling of POSIX: how it is quoted is chosen for every character.
fn spelled(argument: &str, styles: &[u8]) -> String {
    let mut text = String::new();
    for (index, c) in argument.chars().enumerate() {
        match styles[index % styles.len()] {
            0 if c.is_ascii_alphanumeric() => text.push(c),
            1 if c != '\'' => text.extend(['\'', c, '\'']),
            2 if !"$`\"\\".contains(c) => text.extend(['"', c, '"']),
            // A backslash and a line feed join two lines.
            _ if c == '\n' => text.push_str("'\n'"),
            _ => text.extend(['\\', c]),
        }
    }
    if text.is_empty() { "''".to_owned() } else { text }
}

fn spec(field: &str, text: &str, more: &str) -> String {
    let text = serde_json::to_string(text).unwrap();
    format!("  launcher: true\n  containers: [{{cores: 1, {field}: {text}{more}}}]\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_argument_of_a_command_arrives(
        arguments in prop::collection::vec("[ -~\n\té☃]{0,12}", 1..6),
        styles in prop::collection::vec(0_u8..4, 1..8),
        strict: bool,
    ) {
        let words: Vec<String> = arguments.iter().map(|argument| spelled(argument, &styles)).collect();
        let logging = format!("  logging: {{strict: {strict}}}\n");
        let pod = Pod::new(&(logging + &spec("command", &format!("program {}", words.join(" ")), "")), 0);
        pod.program("bin/program", PROGRAM);
        let (code, text) = pod.lead();
        prop_assert_eq!(code, Some(0), "{}", text);
        let found = pod.read("arguments");
        let found: Vec<&str> = found.split_terminator('\0').collect();
        prop_assert_eq!(found, arguments);
    }

    #[test]
    fn a_value_of_the_environment_is_left_to_the_kubelet(value in "[$()A-Z{}'\"; \n]{0,16}") {
        let more = format!(", environment: {{VALUE: {}}}", serde_json::json!(value));
        let rendered = render(&lake(&spec("command", "true", &more)), &Context::default()).unwrap();
        let container = &rendered.job.spec.unwrap().template.spec.unwrap().containers[0];
        let variable = container.env.iter().flatten().find(|variable| variable.name == "VALUE").unwrap();
        prop_assert_eq!(variable.value.as_deref().unwrap_or_default(), value);
    }

    #[test]
    fn a_script_and_a_batch_arrive_byte_by_byte(lines in "([ -~\té☃]{0,30}\n){0,4}") {
        // A text of nothing is one that was not written, and one that escapes all its dollar signs is in upstream's spelling.
        let lines = format!("x $y{lines}");
        let script = serde_json::json!({ "script": lines });
        let pod = Pod::new(&format!("  containers: [{{cores: 1, commands: {script}}}]\n"), 0);
        pod.behave("");
        pod.lead();
        // The stand-in for the file system changes paths, in what it expects as well.
        prop_assert_eq!(pod.read("tmp/custom-entrypoint.sh"), pod.moved(&lines));

        let command = serde_json::json!(lines);
        let pod = Pod::new(&format!("  containers: [{{cores: 1, batch: true, batchRaw: true, command: {command}}}]\n"), 0);
        pod.behave("");
        pod.lead();
        prop_assert_eq!(pod.read("work/flux-job.batch"), pod.moved(&format!("#!/bin/bash\n{lines}\n")));
    }
}
