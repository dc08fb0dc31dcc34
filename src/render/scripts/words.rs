//! Command lines of users as words for bash.
//!
//! A command is split once, by the quoting rules of POSIX (XCU 2.2). Of all expansions only `$NAME` and `${NAME}` remain, and
//! they are not split again: nothing in a command line is evaluated.

/// One word of a command line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Word {
    parts: Vec<Part>,
    /// Quotes appeared somewhere, so that the word is there even if it is empty.
    quoted: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(String),
    Variable(String),
}

/// Why a text is no command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum WordsError {
    /// A quote that nothing closes.
    #[error("the quote {0} is not closed: close it, or write \\{0} for the character itself")]
    Unclosed(char),
    /// Nothing follows the last backslash.
    #[error("a backslash at the end escapes nothing: remove it, or write \\\\ for the character itself")]
    Backslash,
    /// A character that no program can be given.
    #[error("the character NUL cannot be part of a command")]
    Nul,
}

/// Splits a command line.
///
/// # Errors
/// See [`WordsError`].
pub(crate) fn split(text: &str) -> Result<Vec<Word>, WordsError> {
    if text.contains('\0') {
        return Err(WordsError::Nul);
    }
    let mut words = Vec::new();
    let mut word = Word::default();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            ' ' | '\t' | '\n' | '\r' => {
                words.extend(word.take());
                after
            }
            '\'' => {
                let end = after.find('\'').ok_or(WordsError::Unclosed('\''))?;
                word.quoted = true;
                word.literal(&after[..end]);
                &after[end + 1..]
            }
            '"' => word.double_quoted(after)?,
            '\\' => word.escaped(after)?,
            '$' => word.variable(after),
            _ => {
                word.literal(&rest[..c.len_utf8()]);
                after
            }
        };
    }
    words.extend(word.take());
    Ok(words)
}

impl Word {
    /// A word that is exactly `text`.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { parts: vec![Part::Literal(text.into())], quoted: true }
    }

    /// All of `text` as one word, in which only variables expand.
    pub(crate) fn with_variables(text: &str) -> Self {
        let (mut word, mut rest) = (Self { quoted: true, ..Self::default() }, text);
        while let Some((before, after)) = rest.split_once('$') {
            word.literal(before);
            rest = word.variable(after);
        }
        word.literal(rest);
        word
    }

    /// Whether it is exactly `text`, however it was quoted.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.parts.as_slice(), [Part::Literal(literal)] if literal == text)
    }

    fn take(&mut self) -> Option<Self> {
        let word = std::mem::take(self);
        (word.quoted || !word.parts.is_empty()).then_some(word)
    }

    fn literal(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(Part::Literal(literal)) => literal.push_str(text),
            _ if text.is_empty() => {}
            _ => self.parts.push(Part::Literal(text.to_owned())),
        }
    }

    /// After an opening double quote; returns what follows the closing one.
    fn double_quoted<'a>(&mut self, mut rest: &'a str) -> Result<&'a str, WordsError> {
        self.quoted = true;
        while let Some(c) = rest.chars().next() {
            let after = &rest[c.len_utf8()..];
            rest = match c {
                '"' => return Ok(after),
                '$' => self.variable(after),
                '\\' if after.starts_with(['$', '`', '"', '\\', '\n']) => self.escaped(after)?,
                _ => {
                    self.literal(&rest[..c.len_utf8()]);
                    after
                }
            };
        }
        Err(WordsError::Unclosed('"'))
    }

    /// After a backslash: the next character as it is; a line that is continued is joined.
    fn escaped<'a>(&mut self, rest: &'a str) -> Result<&'a str, WordsError> {
        let c = rest.chars().next().ok_or(WordsError::Backslash)?;
        let (character, after) = rest.split_at(c.len_utf8());
        if c != '\n' {
            self.literal(character);
        }
        Ok(after)
    }

    /// After a dollar sign: `NAME` or `{NAME}`, or the sign itself if nothing of that kind follows.
    fn variable<'a>(&mut self, rest: &'a str) -> &'a str {
        let braced = rest.strip_prefix('{');
        let inner = braced.unwrap_or(rest);
        let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(inner.len());
        let (name, after) = inner.split_at(end);
        let after = if braced.is_some() { after.strip_prefix('}') } else { Some(after) };
        match after {
            Some(after) if is_identifier(name) => {
                self.parts.push(Part::Variable(name.to_owned()));
                after
            }
            _ => {
                self.literal("$");
                rest
            }
        }
    }

    /// The word as bash reads it.
    fn to_bash(&self) -> String {
        match self.parts.as_slice() {
            [] => "''".to_owned(),
            // As in a shell, a variable that is empty leaves no word behind, unless it is quoted.
            [Part::Variable(name)] if !self.quoted => format!("${{{name}:+\"${name}\"}}"),
            parts => parts.iter().map(Part::to_bash).collect(),
        }
    }
}

impl Part {
    fn to_bash(&self) -> String {
        match self {
            Self::Literal(text) => quote(text),
            Self::Variable(name) => format!("\"${{{name}-}}\""),
        }
    }
}

/// Words for a bash array or command, each quoted.
pub(crate) fn to_bash(words: &[Word]) -> String {
    words.iter().map(Word::to_bash).collect::<Vec<_>>().join(" ")
}

/// `text` as one word of bash that means exactly this text.
pub(crate) fn quote(text: &str) -> String {
    // shlex would quote these too, and options were hard to read.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    // Nothing is lost without NUL: Kubernetes lets none into what ends up here, and `split` refuses it.
    shlex::try_quote(&text.replace('\0', "")).map_or_else(|_| "''".to_owned(), std::borrow::Cow::into_owned)
}

/// `text` as one word of bash, in which `$NAME` and `${NAME}` stand for their values.
pub(crate) fn with_variables(text: &str) -> String {
    Word::with_variables(text).to_bash()
}

/// What bash takes as the name of a variable.
pub(crate) fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn bash(text: &str) -> String {
        to_bash(&split(text).unwrap())
    }

    /// What a program gets as arguments, each ended by a line of its own.
    fn arguments(text: &str) -> Vec<String> {
        let script = format!("for word in {}; do printf '%s\\0' \"$word\"; done", bash(text));
        let output = Command::new("bash").args(["-uc", &script]).env("GREETING", "a  b*").output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn words_are_split_once_and_only_variables_expand() {
        for (command, expected) in [
            ("hostname", &["hostname"][..]),
            ("  a\tb\n c ", &["a", "b", "c"]),
            (r#"python3 -c "print(1)" $GREETING 'a b'"#, &["python3", "-c", "print(1)", "a  b*", "a b"]),
            ("x$GREETING.${GREETING}y", &["xa  b*.a  b*y"]),
            (r#"'$GREETING' "\$GREETING" \$GREETING"#, &["$GREETING", "$GREETING", "$GREETING"]),
            (
                "echo $(id) `id` ; ls && x | y > z & *",
                &["echo", "$(id)", "`id`", ";", "ls", "&&", "x", "|", "y", ">", "z", "&", "*"],
            ),
            ("# no comment", &["#", "no", "comment"]),
            ("a '' \"\" b", &["a", "", "", "b"]),
            ("a $UNSET \"$UNSET\" b$UNSET", &["a", "", "b"]),
            ("${UNSET:-x} $1 $ ${} ${a", &["${UNSET:-x}", "$1", "$", "${}", "${a"]),
            ("a\\\nb \"c\\\nd\"", &["ab", "cd"]),
            (r#""\n" \n"#, &["\\n", "n"]),
            (r#"it's' "it's""#, &["its", "it's"]),
        ] {
            assert_eq!(arguments(command), expected, "{command}");
        }
        assert_eq!(split(" \n "), Ok(vec![]));
    }

    #[test]
    fn in_one_word_only_variables_expand() {
        for (text, expected) in [
            ("", ""),
            ("/opt/a b:$GREETING:${GREETING}", "/opt/a b:a  b*:a  b*"),
            ("$(id) `id` \\ ' \" * ${X:-y} $UNSET$", "$(id) `id` \\ ' \" * ${X:-y} $"),
        ] {
            let script = format!("x={}; printf %s \"$x\"", with_variables(text));
            let output = Command::new("bash").args(["-uc", &script]).env("GREETING", "a  b*").output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{script}");
        }
    }

    #[test]
    fn what_cannot_be_split_says_why() {
        for (command, expected) in [
            ("echo 'a", "the quote ' is not closed: close it, or write \\' for the character itself"),
            ("echo \"a", "the quote \" is not closed: close it, or write \\\" for the character itself"),
            ("a\\", "a backslash at the end escapes nothing: remove it, or write \\\\ for the character itself"),
            ("a\0b", "the character NUL cannot be part of a command"),
        ] {
            assert_eq!(split(command).unwrap_err().to_string(), expected, "{command:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_text_that_is_quoted_arrives_as_it_is(text in "[^\0]*") {
            prop_assert_eq!(arguments(&quote(&text)), std::slice::from_ref(&text));
            let output = Command::new("bash").args(["-c", &format!("printf %s {}", quote(&text))]).output().unwrap();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }

        #[test]
        fn splitting_never_panics(text in r#"[a-z$ {}'"\\\n]*"#) {
            let _ = split(&text);
        }
    }
}
