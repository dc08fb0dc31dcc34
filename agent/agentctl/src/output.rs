//! Printing: tables and marks, for people.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::{Padding, Style};

use crate::error::Result;

/// What stands in front of a line that says whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Outcome", description = "What came of a look.")]
pub(crate) enum Mark {
    /// As it should be.
    #[serde(rename = "passed")]
    Good,
    /// It works, and somebody should look.
    Warning,
    /// It does not work.
    #[serde(rename = "failed")]
    Bad,
    /// It could not be looked at.
    Unknown,
}

impl Mark {
    const ALL: [Self; 4] = [Self::Good, Self::Bad, Self::Warning, Self::Unknown];

    /// One character, understandable without colour.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Bad => "✗",
            Self::Warning => "‼",
            Self::Unknown => "?",
        }
    }

    /// Its colour: SGR parameter of ECMA-48.
    const fn colour(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Bad => 31,
            Self::Warning | Self::Unknown => 33,
        }
    }
}

/// The text with the marks that begin its lines in colour.
pub(crate) fn painted(text: &str) -> String {
    let paint = |line: &str| {
        let mark = Mark::ALL
            .into_iter()
            .find(|mark| line.starts_with(mark.text()) && line[mark.text().len()..].starts_with(' '));
        match mark {
            Some(mark) => format!("\x1b[{}m{}\x1b[0m{}", mark.colour(), mark.text(), &line[mark.text().len()..]),
            None => line.to_owned(),
        }
    };
    text.split_inclusive('\n').map(paint).collect()
}

/// What decides whether there is colour.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// Standard output is a terminal.
    terminal: bool,
    /// `NO_COLOR`, of whatever value unless that is empty: <https://no-color.org>.
    no_color: Option<OsString>,
    /// `CLICOLOR`: 0 is no; <https://bixense.com/clicolors/>.
    clicolor: Option<OsString>,
    /// `TERM`: a terminal called `dumb` knows no colours.
    term: Option<OsString>,
}

impl Surroundings {
    fn look() -> Self {
        let said = |name: &str| std::env::var_os(name);
        let terminal = io::stdout().is_terminal();
        Self { terminal, no_color: said("NO_COLOR"), clicolor: said("CLICOLOR"), term: said("TERM") }
    }

    fn take_colour(&self) -> bool {
        let said_no = self.no_color.as_ref().is_some_and(|value| !value.is_empty())
            || self.clicolor.as_ref().is_some_and(|value| value == "0");
        self.terminal && !said_no && self.term.as_ref().is_none_or(|term| term != "dumb")
    }
}

/// Whether standard output takes colour.
pub(crate) fn colours() -> bool {
    Surroundings::look().take_colour()
}

/// Writes data with marks to standard output, in colour where that is wanted.
pub(crate) fn print_marked(text: &str) -> Result<()> {
    let text = harmless(text);
    if colours() { write(&painted(&text)) } else { write(&text) }
}

/// A table: column heads, then rows of as many cells. Its lines have no trailing blanks, and each is ended.
pub(crate) fn table(
    heads: impl IntoIterator<Item = impl Into<String>>,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = impl Into<String>>>,
) -> String {
    let mut builder = Builder::default();
    builder.push_record(heads);
    rows.into_iter().for_each(|row| builder.push_record(row));
    let mut table = builder.build();
    table.with(Style::empty()).with(Padding::new(0, 3, 0, 0));
    table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The words of somebody else, within a text of ours: one line, and no command in it can be pasted.
pub(crate) fn foreign(text: &str) -> String {
    let words = |c: char| match c {
        '`' => '\'',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(words).collect()
}

/// The text without what a terminal would obey: words of others are in it.
fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return text.into();
    }
    // Two of them end a line of CSV.
    text.split("\r\n").map(|line| line.replace(obeyed, "\u{fffd}")).collect::<Vec<_>>().join("\r\n").into()
}

/// Writes data to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    write(&harmless(text))
}

fn write(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a remark to standard error.
pub(crate) fn remark(text: &str) {
    // Remarks are for whoever watches: a closed standard error means nobody does.
    let _ = writeln!(io::stderr(), "{}", harmless(text));
}

/// Clears a terminal before the next picture of a watch; a file gets the pictures one after the other.
pub(crate) fn next_picture() -> Result<()> {
    if io::stdout().is_terminal() {
        write("\x1b[H\x1b[2J")?;
    }
    Ok(())
}

/// An age as kubectl shows it: `45s`, `12m`, `3h`, `5d`; `-` if unknown.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return "-".to_owned() };
    let seconds = now.as_second().saturating_sub(since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A number of things: `1 pod`, `3 pods`.
pub(crate) fn counted<N: Into<u64>>(number: N, thing: &str) -> String {
    match number.into() {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

/// The text with each line cut to so many columns.
pub(crate) fn fitted(text: &str, columns: usize) -> String {
    let fit = |line: &str| {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if line.chars().count() <= columns {
            return format!("{line}{end}");
        }
        line.chars().take(columns.saturating_sub(1)).chain(['…']).collect::<String>() + end
    };
    text.split_inclusive('\n').map(fit).collect()
}

/// Columns of the terminal that standard output is; `None` where it is none: programs get all of it.
pub(crate) fn columns() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}

pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_like_kubectls() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let shown = |seconds: i64| age(Some(Timestamp::from_second(1_000_000 - seconds).unwrap()), now);
        assert_eq!(
            [shown(5), shown(119), shown(600), shown(9_000), shown(200_000), shown(-5)],
            ["5s", "119s", "10m", "2h", "2d", "0s"]
        );
        assert_eq!(age(None, now), "-");
    }

    /// The danger: who may write an event, or a status, moves the cursor of an administrator, or has a command pasted.
    #[test]
    fn words_of_others_are_words() {
        assert_eq!(harmless("a\tb\u{1b}[2J\u{9b}c\rd\r\n"), "a\tb\u{fffd}[2J\u{fffd}c\u{fffd}d\r\n");
        assert_eq!(
            foreign("no\n✓ all is well\nhint: `kubectl delete ns x`"),
            "no ✓ all is well hint: 'kubectl delete ns x'"
        );
    }

    #[test]
    fn a_line_is_cut_to_the_terminal_and_to_nothing_else() {
        assert_eq!(fitted("NAME  NOTE\na     no peer has the labels\nb\n", 12), "NAME  NOTE\na     no pe…\nb\n");
        assert_eq!([counted(1u32, "pod"), counted(0u32, "pod"), counted(2u32, "pod")], ["1 pod", "0 pods", "2 pods"]);
    }

    #[test]
    fn colour_is_for_terminals_whose_users_do_not_mind() {
        let table = [
            // terminal, NO_COLOR, CLICOLOR, TERM: colour
            (true, None, None, Some("xterm"), true),
            (true, None, None, None, true),
            (true, Some(""), None, Some("xterm"), true),
            (true, None, Some("1"), Some("xterm"), true),
            (true, Some("1"), None, Some("xterm"), false),
            (true, Some("0"), Some("1"), Some("xterm"), false),
            (true, None, Some("0"), Some("xterm"), false),
            (true, None, None, Some("dumb"), false),
            (false, None, None, Some("xterm"), false),
            (false, None, Some("1"), Some("xterm"), false),
        ];
        for (terminal, no_color, clicolor, term, wanted) in table {
            let [no_color, clicolor, term] = [no_color, clicolor, term].map(|value| value.map(OsString::from));
            let surroundings = Surroundings { terminal, no_color, clicolor, term };
            assert_eq!(surroundings.take_colour(), wanted, "{surroundings:?}");
        }
    }

    #[test]
    fn only_marks_at_the_beginning_of_a_line_are_painted() {
        assert_eq!(painted("✓ a ✗ b\n? c\n?d\n"), "\x1b[32m✓\x1b[0m a ✗ b\n\x1b[33m?\x1b[0m c\n?d\n");
    }

    #[test]
    fn tables_have_no_borders_and_no_trailing_blanks() {
        assert_eq!(table(["NAME", "READY"], [["flux-sample", "4/4"]]), "NAME          READY\nflux-sample   4/4\n");
    }
}
