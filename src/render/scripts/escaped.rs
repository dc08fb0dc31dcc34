//! Scripts that were written for upstream's way of storing them.

/// The text of `commands.script` as it shall run.
///
/// Upstream pastes it into a here-document, where the shell expands `$` before the script runs; its documentation
/// therefore shows scripts with every `$` escaped (`\${FLUX_TASK_RANK}`). In such a script, where no `$` stands without
/// its backslash, the backslash before a name, `{` or `(` is upstream's and goes. Any other script is its author's own,
/// and stays as it is.
pub(super) fn unescaped(script: &str) -> String {
    let dollars = script.matches('$').count();
    if dollars == 0 || dollars != script.matches("\\$").count() {
        return script.to_owned();
    }
    let mut text = String::with_capacity(script.len());
    let mut rest = script;
    while let Some(at) = rest.find("\\$") {
        text.push_str(&rest[..at]);
        let after = &rest[at + 2..];
        if !after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '{' || c == '(') {
            text.push('\\');
        }
        text.push('$');
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_that_escape_every_dollar_lose_backslashes() {
        for (script, expected) in [
            ("echo \"rank \\${FLUX_TASK_RANK}\"", "echo \"rank ${FLUX_TASK_RANK}\""),
            ("for i in \\$(seq 3); do echo \\$i; done", "for i in $(seq 3); do echo $i; done"),
            ("echo hello", "echo hello"),
            ("echo $HOME", "echo $HOME"),
            // Written for a shell: mixed, positional parameters of awk, prices, patterns.
            ("x=1; echo $x \\$x", "x=1; echo $x \\$x"),
            ("awk \"{print \\$1}\"", "awk \"{print \\$1}\""),
            ("echo \"costs \\$5\"; sed 's/a\\$/b/'", "echo \"costs \\$5\"; sed 's/a\\$/b/'"),
        ] {
            assert_eq!(unescaped(script), expected, "{script}");
        }
    }
}
