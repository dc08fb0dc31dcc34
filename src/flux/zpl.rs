//! The part of ZPL (ZeroMQ RFC 4) that flux-core's certificates use.
//!
//! Two sections, `metadata` and `curve`, at the line's start; entries `key = "value"`, indented. Comments begin with `#`.
//! Source: flux-core `src/common/libzmqutil/cert.c`, which refuses whatever is refused here.

/// Longest line, line feed not counted: flux-core reads into 256 bytes and takes the rest for another line.
const MAX_LINE_LEN: usize = 254;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Metadata,
    Curve,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// Line, from 1.
    pub(super) line: usize,
    pub(super) section: Section,
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

/// The entries of a text in order, or the first line (from 1) that is wrong.
pub(super) fn entries(text: &str) -> impl Iterator<Item = Result<Entry<'_>, usize>> {
    let mut section = None;
    text.split('\n').zip(1..).filter_map(move |(content, line)| {
        let indented = content.starts_with([' ', '\t']);
        let stripped = content.trim_matches(|c: char| c.is_ascii_whitespace());
        if content.len() > MAX_LINE_LEN {
            return Some(Err(line));
        }
        if stripped.is_empty() || stripped.starts_with('#') {
            return None;
        }
        match (indented, stripped, section) {
            (false, "metadata", _) => section = Some(Section::Metadata),
            (false, "curve", _) => section = Some(Section::Curve),
            (true, entry, Some(section)) => {
                return Some(match key_and_value(entry) {
                    Some((key, value)) => Ok(Entry { line, section, key, value }),
                    None => Err(line),
                });
            }
            _ => return Some(Err(line)),
        }
        None
    })
}

fn key_and_value(entry: &str) -> Option<(&str, &str)> {
    let (key, value) = entry.split_once('=')?;
    let blank = |c: char| c.is_ascii_whitespace();
    let key = key.trim_end_matches(blank);
    let value = value.trim_start_matches(blank).strip_prefix('"')?.strip_suffix('"')?;
    (is_key(key) && is_value(value)).then_some((key, value))
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
}

/// Letters, digits, what Z85 uses besides, and blanks; no underscore and no comma.
pub(super) fn is_value(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:+=^!/*?&<>()[]{}@%$# \t".contains(&b))
}
