//! What upstream's scripts made of the user's texts: it pasted them into double quotes and unquoted here-documents, so
//! that the shell evaluated them once before they ran. Ours splits a command once and evaluates nothing.

use std::collections::BTreeMap;

use super::report::{Finding, Severity};

const INTO_A_SCRIPT: &str = "move the line into commands.script, which a shell reads";

/// Of `command`, outside of batch: pasted into double quotes, then split without quotes.
pub(super) fn in_command(text: &str, environment: &BTreeMap<String, String>) -> Vec<Finding> {
    let seen = scan(text);
    let mut found = Vec::new();
    let mut breaks = |rule, what: String, hint| found.push(Finding::of(Severity::Breaks, rule, what, hint));
    if seen.substitution {
        let what = "`$(…)` and backticks were evaluated by the script; now they reach the program as they are written";
        breaks("CommandSubstitution", what.to_owned(), INTO_A_SCRIPT);
    }
    if let Some(expansion) = &seen.expansion {
        let what = format!("{expansion} was expanded by the script; now only $NAME and ${{NAME}} are");
        breaks("ShellExpansion", what, INTO_A_SCRIPT);
    }
    if seen.star {
        let what = "`*` became the names of files; now it reaches the program as it is written";
        breaks("FileNamePattern", what.to_owned(), INTO_A_SCRIPT);
    }
    let split =
        seen.variables.iter().find(|name| environment.get(*name).is_some_and(|value| value.trim().contains(' ')));
    if let Some(name) = split {
        let what = format!("the value of ${name} was split into words at its blanks; now it is one word");
        breaks("SplitVariable", what, "write the words into the command, or move the line into commands.script");
    }
    if seen.quotes {
        let what = "quotes and backslashes broke the script or reached the program as characters; now they quote";
        found.push(Finding::of(Severity::Changes, "Quotes", what, ""));
    }
    found
}

/// Of a text that was pasted as it is, and whose words have `$NAME` expanded now.
pub(super) fn in_words(text: &str) -> impl Iterator<Item = Finding> {
    let found = in_command(text, &BTreeMap::new()).into_iter();
    found.filter(|construct| ["CommandSubstitution", "ShellExpansion"].contains(&construct.rule.as_str()))
}

/// Of `commands.script`: a here-document without quotes. Where every dollar is escaped, as upstream's documentation
/// shows it, and one of them begins a name, the backslashes are understood as upstream's.
pub(super) fn in_script(text: &str) -> Vec<Finding> {
    let seen = scan(text);
    let begins_a_name = |after: &str| after.starts_with(|c: char| c.is_ascii_alphabetic() || "_{(@".contains(c));
    let own = seen.substitution || seen.expansion.is_some() || !seen.variables.is_empty();
    pasted(text, own || !text.split("\\$").skip(1).any(begins_a_name))
}

/// Of batch lines: `echo "…"`.
pub(super) fn in_batch(text: &str) -> Vec<Finding> {
    pasted(text, true)
}

fn pasted(text: &str, keeps_backslashes: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    let seen = scan(text);
    let expands = seen.substitution || seen.expansion.is_some() || !seen.variables.is_empty();
    if escapes(text) > 0 && keeps_backslashes {
        let what = "`\\$` and `` \\` `` lost their backslash before the script ran; now they keep it";
        let hint = "write `$` and `` ` `` without the backslash";
        found.push(Finding::of(Severity::Breaks, "EscapedDollar", what, hint));
    }
    if expands {
        let what = "`$` was expanded when the script was written, on the lead and before its own lines ran; now it is \
                    expanded when the script runs";
        found.push(Finding::of(Severity::Changes, "EarlyExpansion", what, ""));
    }
    found
}

/// Of `flux.brokerConfig`: a here-document without quotes.
pub(super) fn in_broker_config(text: &str) -> Option<Finding> {
    let what = "`$` and backticks were evaluated by the init container; now the text arrives as it is written";
    let hint = "write what they stood for";
    text.contains(['$', '`']).then(|| Finding::of(Severity::Breaks, "EarlyExpansion", what, hint))
}

/// Escaped dollars and backticks.
fn escapes(text: &str) -> usize {
    text.matches("\\$").count() + text.matches("\\`").count()
}

#[derive(Debug, Default)]
struct Seen {
    substitution: bool,
    /// The first expansion that is more than a variable.
    expansion: Option<String>,
    variables: Vec<String>,
    star: bool,
    quotes: bool,
}

/// As the shell reads a text between double quotes: single quotes mean nothing there.
fn scan(text: &str) -> Seen {
    let mut seen = Seen::default();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                seen.quotes = true;
                rest = rest.get(rest.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
            }
            '\'' | '"' => seen.quotes = true,
            '*' => seen.star = true,
            '`' => seen.substitution = true,
            '$' if rest.starts_with('(') => seen.substitution = true,
            '$' => rest = dollar(rest, &mut seen),
            _ => {}
        }
    }
    seen
}

fn dollar<'a>(rest: &'a str, seen: &mut Seen) -> &'a str {
    let is_name = |text: &str| {
        !text.is_empty()
            && !text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let special = |c: char| c.is_ascii_digit() || "$?#@*!-".contains(c);
    if let Some(inner) = rest.strip_prefix('{') {
        let end = inner.find('}').unwrap_or(inner.len());
        match &inner[..end] {
            name if is_name(name) => seen.variables.push(name.to_owned()),
            other => {
                seen.expansion.get_or_insert_with(|| format!("${{{other}}}"));
            }
        }
        return &inner[end..];
    }
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match (&rest[..end], rest.chars().next()) {
        (name, _) if is_name(name) => {
            seen.variables.push(name.to_owned());
            &rest[end..]
        }
        (_, Some(c)) if special(c) => {
            seen.expansion.get_or_insert_with(|| format!("${c}"));
            &rest[c.len_utf8()..]
        }
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<String> {
        let environment =
            BTreeMap::from([("FLAGS".to_owned(), "-a -b".to_owned()), ("ONE".to_owned(), "1".to_owned())]);
        in_command(text, &environment).into_iter().map(|construct| construct.rule).collect()
    }

    #[test]
    fn each_construct_of_a_command_is_seen() {
        let none: [&str; 0] = [];
        for plain in ["lmp -v x 2 -in in.reaxc", "echo $ONE ${ONE} $UNKNOWN", "a; b && c | d", "cost 5$", "flux-[0-3]"]
        {
            assert_eq!(rules(plain), none, "{plain}");
        }
        for (text, expected) in [
            ("app $(nproc)", "CommandSubstitution"),
            ("app `nproc`", "CommandSubstitution"),
            ("app ${X:-1}", "ShellExpansion"),
            ("app $1", "ShellExpansion"),
            ("cat *.txt", "FileNamePattern"),
            ("app $FLAGS", "SplitVariable"),
            ("app ${FLAGS} x", "SplitVariable"),
            ("sh -c 'a b'", "Quotes"),
            ("echo \\$ONE", "Quotes"),
        ] {
            assert_eq!(rules(text), [expected], "{text}");
        }
        // Single quotes did not keep upstream's shell away.
        assert_eq!(rules("sh -c 'echo $(date)'"), ["CommandSubstitution", "Quotes"]);
    }

    #[test]
    fn what_was_pasted_into_a_script_is_no_shell_any_more() {
        let rules = |text: &str| in_words(text).map(|construct| construct.rule).collect::<Vec<_>>();
        assert_eq!(rules("numactl -C $(cat /cores)"), ["CommandSubstitution"]);
        assert_eq!(rules("/state/${JOB:-one}.tar.gz"), ["ShellExpansion"]);
        assert_eq!(rules("strace,-o,/tmp/$HOSTNAME.out '*'"), [""; 0]);
    }

    #[test]
    fn scripts_lose_no_backslashes_any_more() {
        let rules = |text: &str| in_script(text).into_iter().map(|construct| construct.rule).collect::<Vec<_>>();
        assert_eq!(rules("#!/bin/bash\necho hello\n"), [""; 0]);
        assert_eq!(rules("echo \\${FLUX_TASK_RANK}"), [""; 0]);
        assert_eq!(rules("for one in \"\\$@\"; do h=\\`date\\`; done"), [""; 0]);
        assert_eq!(rules("awk \"{print \\$1}\""), ["EscapedDollar"]);
        assert_eq!(rules("echo \\$(seq 3) $HOME"), ["EscapedDollar", "EarlyExpansion"]);
        assert_eq!(rules("x=1\necho $x"), ["EarlyExpansion"]);
        assert_eq!(in_batch("echo \\$HOME")[0].rule, "EscapedDollar");
        assert!(in_broker_config("[resource]\nnoverify = true\n").is_none());
        assert!(in_broker_config("[bootstrap]\nhosts = \"$H\"\n").is_some());
    }
}
