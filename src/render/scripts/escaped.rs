//! Scripts that were written for upstream's way of storing them.

/// The text of `commands.script` as it shall run.
///
/// Upstream pastes it into a here-document, where the shell expands `$` before the script runs; its documentation
/// therefore shows scripts with every `$` escaped (`\${FLUX_TASK_RANK}`). In such a script no `$` stands without its
/// backslash, and one of them is before a name, `{`, `(` or `@`. It loses what a here-document takes away: the backslash
/// before `$`, a backtick and another backslash, and a line feed that is escaped. Any other script is its author's own, and
/// stays as it is.
pub(super) fn unescaped(script: &str) -> String {
    let dollars = script.matches('$').count();
    let begins_a_name = |c: char| c.is_ascii_alphabetic() || "_{(@".contains(c);
    let is_of_upstream = dollars == script.matches("\\$").count()
        && script.split("\\$").skip(1).any(|after| after.starts_with(begins_a_name));
    if !is_of_upstream {
        return script.to_owned();
    }
    let mut text = String::with_capacity(script.len());
    let mut characters = script.chars().peekable();
    while let Some(character) = characters.next() {
        match characters.next_if(|next| character == '\\' && "$`\\\n".contains(*next)) {
            Some('\n') => {}
            Some(escaped) => text.push(escaped),
            None => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_that_escape_every_dollar_lose_backslashes() {
        for (script, expected) in [
            ("echo \"rank \\${FLUX_TASK_RANK}\"", "echo \"rank ${FLUX_TASK_RANK}\""),
            ("for i in \\$(seq 3); do echo \\$i; done", "for i in $(seq 3); do echo $i; done"),
            (
                "a \\$X\nif [[ \\$? -ne 0 || \\$# -eq 1 ]]; then kill \\$!; fi",
                "a $X\nif [[ $? -ne 0 || $# -eq 1 ]]; then kill $!; fi",
            ),
            ("for one in \"\\$@\"; do h=\\`date\\`; done", "for one in \"$@\"; do h=`date`; done"),
            ("echo \\$X \\\\n 'a\\.b' \\\n  on", "echo $X \\n 'a\\.b'   on"),
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
