//! Host lists in RFC 29 form: `a-[0-3,7],b-0`.
//!
//! Order and duplicates are kept, because a broker's rank is its position in the list. flux-core reads the numbers in
//! brackets in a way of its own where padding is mixed (`[005,4]` is `005,4` to it, `005,004` by the RFC). Parsing follows
//! the RFC; what [`Hostlist`] writes never mixes padding, so both read it alike.
//!
//! Source: RFC 29 and flux-core `src/common/libhostlist/hostlist.c`.

use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Most hosts a list may expand to. Lists come from users and from peers, and `a-[0-999999999]` is 17 bytes; no instance
/// comes near this, and a list of so many full host names still fits into a few MiB.
pub const MAX_HOSTS: usize = 16_384;

/// Longest host name: the limit of a domain name (RFC 1035, flux-core `conf_bootstrap.c`).
pub const MAX_HOST_LEN: usize = 253;

/// Most ranges written into one pair of brackets; flux-core reads up to 10,240.
const MAX_RANGES: usize = 1_024;

/// Most digits of a number that is compressed: what surely fits into 64 bits. Longer ones are written as they are.
const MAX_DIGITS: usize = 18;

/// An ordered list of host names; duplicates are allowed.
///
/// ```
/// use tributary_flux::Hostlist;
///
/// let list: Hostlist = "a-[0-2,7],b-0".parse()?;
/// assert_eq!(list.hosts(), ["a-0", "a-1", "a-2", "a-7", "b-0"]);
/// assert_eq!(list.to_string(), "a-[0-2,7],b-0");
/// # Ok::<(), tributary_flux::HostlistError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hostlist {
    hosts: Vec<String>,
}

/// Why a text is no host list. Positions are byte offsets into the text, or into the host name of [`Self::Host`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostlistError {
    /// A bracket without its partner, or a second pair in one host expression.
    #[error("failed to parse the host list: unbalanced or repeated bracket at byte {at}")]
    Bracket {
        /// Where the bracket is.
        at: usize,
    },
    /// Something else than a number or an ascending range between the brackets.
    #[error("failed to parse the host list: expected a number or a range like 0-3 at byte {at}")]
    Id {
        /// Where the number should be.
        at: usize,
    },
    /// A range that runs downwards.
    #[error("failed to parse the host list: the range at byte {at} ends before it begins")]
    Reversed {
        /// Where the range begins.
        at: usize,
    },
    /// A character that no host name may have.
    #[error("failed to parse the host list: character {found:?} at byte {at} is not allowed in a host name")]
    Character {
        /// Where it is.
        at: usize,
        /// What it is.
        found: char,
    },
    /// A host name longer than [`MAX_HOST_LEN`].
    #[error("failed to parse the host list: the host name at byte {at} is longer than {MAX_HOST_LEN} characters")]
    TooLong {
        /// Where the host expression begins.
        at: usize,
    },
    /// More hosts than [`MAX_HOSTS`].
    #[error("failed to expand the host list: more than {MAX_HOSTS} hosts at byte {at}")]
    TooMany {
        /// Where the host expression begins that has too many.
        at: usize,
    },
    /// A name given to [`Hostlist::from_hosts`] that cannot stand in a list.
    #[error("host name {host:?} cannot stand in a host list: it is empty, too long or has a bracket, comma or blank")]
    Host {
        /// The name.
        host: String,
    },
}

impl Hostlist {
    /// A list of exactly these hosts, in this order.
    ///
    /// # Errors
    /// [`HostlistError::Host`] for a name that RFC 29 cannot express, [`HostlistError::TooMany`] beyond [`MAX_HOSTS`]
    /// (its position is the count of hosts).
    pub fn from_hosts<I>(hosts: I) -> Result<Self, HostlistError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let mut list = Vec::new();
        for host in hosts {
            let host = host.into();
            if host.is_empty() || host.len() > MAX_HOST_LEN || !host.bytes().all(is_host_byte) {
                return Err(HostlistError::Host { host });
            }
            if list.len() == MAX_HOSTS {
                return Err(HostlistError::TooMany { at: list.len() });
            }
            list.push(host);
        }
        Ok(Self { hosts: list })
    }

    /// The hosts in rank order.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The hosts in rank order.
    pub fn iter(&self) -> std::slice::Iter<'_, String> {
        self.hosts.iter()
    }

    /// Number of hosts, duplicates counted.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there is no host.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Expands one expression `prefix[idlist]suffix` that begins at byte `at` of the text.
    fn push_expression(&mut self, expression: &str, at: usize) -> Result<(), HostlistError> {
        let Some(open) = expression.find(['[', ']']) else {
            check_characters(expression, at)?;
            return self.push_hosts("", std::iter::once(expression.to_owned()), "", at);
        };
        if expression.as_bytes()[open] == b']' {
            return Err(HostlistError::Bracket { at: at + open });
        }
        let close = match expression[open + 1..].find(['[', ']']) {
            Some(offset) if expression.as_bytes()[open + 1 + offset] == b']' => open + 1 + offset,
            Some(offset) => return Err(HostlistError::Bracket { at: at + open + 1 + offset }),
            None => return Err(HostlistError::Bracket { at: at + open }),
        };
        let (prefix, suffix) = (&expression[..open], &expression[close + 1..]);
        if let Some(second) = suffix.find(['[', ']']) {
            return Err(HostlistError::Bracket { at: at + close + 1 + second });
        }
        check_characters(prefix, at)?;
        check_characters(suffix, at + close + 1)?;

        let mut width = None;
        let mut begin = open + 1;
        for item in expression[open + 1..close].split(',') {
            let (ids, written) = parse_range(item, at + begin)?;
            // RFC 29: the zeros of the first number count for the whole list.
            let width = *width.get_or_insert(if written > 1 && item.starts_with('0') { written } else { 0 });
            self.push_hosts(prefix, ids.map(|id| format!("{id:0width$}")), suffix, at)?;
            begin += item.len() + 1;
        }
        Ok(())
    }

    fn push_hosts(
        &mut self,
        prefix: &str,
        ids: impl Iterator<Item = String>,
        suffix: &str,
        at: usize,
    ) -> Result<(), HostlistError> {
        for id in ids {
            if self.hosts.len() == MAX_HOSTS {
                return Err(HostlistError::TooMany { at });
            }
            if prefix.len() + id.len() + suffix.len() > MAX_HOST_LEN {
                return Err(HostlistError::TooLong { at });
            }
            self.hosts.push(format!("{prefix}{id}{suffix}"));
        }
        Ok(())
    }
}

/// What may stand in a host name by RFC 29: printable ASCII, no blank, no bracket, no comma.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'[' | b']' | b',')
}

fn check_characters(part: &str, at: usize) -> Result<(), HostlistError> {
    match part.char_indices().find(|(_, c)| !u8::try_from(*c).is_ok_and(is_host_byte)) {
        Some((offset, found)) => Err(HostlistError::Character { at: at + offset, found }),
        None => Ok(()),
    }
}

/// `7` or `0-3`, and how many characters the first number is written with.
fn parse_range(item: &str, at: usize) -> Result<(RangeInclusive<u64>, usize), HostlistError> {
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let low = parse_id(first, at)?;
    let high = parse_id(last, at + item.len() - last.len())?;
    if low > high {
        return Err(HostlistError::Reversed { at });
    }
    Ok((low..=high, first.len()))
}

fn parse_id(text: &str, at: usize) -> Result<u64, HostlistError> {
    let digits = !text.is_empty() && text.len() <= MAX_DIGITS && text.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(HostlistError::Id { at });
    }
    text.parse().map_err(|_| HostlistError::Id { at })
}

impl FromStr for Hostlist {
    type Err = HostlistError;

    /// Expands a text. Commas, blanks and tabs separate hosts outside of brackets and may repeat, as in flux-core.
    fn from_str(text: &str) -> Result<Self, HostlistError> {
        let mut list = Self::default();
        let mut inside = false;
        let mut begin = 0;
        let is_separator = |c: char| matches!(c, ',' | ' ' | '\t');
        for (at, c) in text.char_indices() {
            match c {
                '[' => inside = true,
                ']' => inside = false,
                c if is_separator(c) && !inside => {
                    if begin < at {
                        list.push_expression(&text[begin..at], begin)?;
                    }
                    begin = at + 1;
                }
                _ => {}
            }
        }
        if begin < text.len() {
            list.push_expression(&text[begin..], begin)?;
        }
        Ok(list)
    }
}

/// The trailing number of a host name, and how it is written.
struct Numbered<'a> {
    prefix: &'a str,
    id: u64,
    /// Width to which the number is padded with zeros; 0 without padding.
    width: usize,
}

impl<'a> Numbered<'a> {
    fn split(host: &'a str) -> Option<Self> {
        let prefix = host.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &host[prefix.len()..];
        if digits.len() > MAX_DIGITS {
            return None;
        }
        let id = digits.parse().ok()?;
        let width = if digits.len() > 1 && digits.starts_with('0') { digits.len() } else { 0 };
        Some(Self { prefix, id, width })
    }

    /// Whether this host's number reads the same in the brackets of a group that is padded to `width`.
    fn fits(&self, prefix: &str, width: usize) -> bool {
        self.prefix == prefix && (self.width == width || (self.width == 0 && self.id.to_string().len() >= width))
    }
}

impl fmt::Display for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut at = 0;
        while at < self.hosts.len() {
            if at > 0 {
                f.write_char(',')?;
            }
            let Some(first) = Numbered::split(&self.hosts[at]) else {
                f.write_str(&self.hosts[at])?;
                at += 1;
                continue;
            };
            let mut ranges: Vec<(u64, u64)> = vec![(first.id, first.id)];
            let mut end = at + 1;
            while let Some(next) = self.hosts.get(end).and_then(|host| Numbered::split(host)) {
                if !next.fits(first.prefix, first.width) {
                    break;
                }
                let full = ranges.len() == MAX_RANGES;
                match ranges.last_mut() {
                    Some((_, high)) if next.id == *high + 1 => *high = next.id,
                    _ if full => break,
                    _ => ranges.push((next.id, next.id)),
                }
                end += 1;
            }
            if end == at + 1 {
                f.write_str(&self.hosts[at])?;
            } else {
                write_group(f, &first, &ranges)?;
            }
            at = end;
        }
        Ok(())
    }
}

fn write_group(f: &mut fmt::Formatter<'_>, first: &Numbered<'_>, ranges: &[(u64, u64)]) -> fmt::Result {
    let width = first.width;
    write!(f, "{}[", first.prefix)?;
    for (index, (low, high)) in ranges.iter().enumerate() {
        if index > 0 {
            f.write_char(',')?;
        }
        write!(f, "{low:0width$}")?;
        if high > low {
            write!(f, "-{high:0width$}")?;
        }
    }
    f.write_char(']')
}

#[cfg(test)]
mod tests;
