//! Sets of ids in RFC 22 form: `0-3,7`.

use std::fmt::{self, Write as _};
use std::ops::Range;
use std::str::FromStr;

/// A set of non-negative ids (ranks, cores, GPUs), kept as ascending ranges that neither overlap nor touch.
///
/// ```
/// use tributary_flux::Idset;
///
/// assert_eq!(Idset::from_iter([7, 0, 1, 2, 3]).to_string(), "0-3,7");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Idset {
    ranges: Vec<Range<u32>>,
}

impl Idset {
    /// Adds the ids of a range; an empty range adds nothing.
    pub(crate) fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let begin = self.ranges.partition_point(|r| r.end < range.start);
        let end = self.ranges.partition_point(|r| r.start <= range.end);
        let touched = &self.ranges[begin..end];
        let low = touched.first().map_or(range.start, |r| r.start.min(range.start));
        let high = touched.last().map_or(range.end, |r| r.end.max(range.end));
        self.ranges.splice(begin..end, std::iter::once(low..high));
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether an id is in the set.
    pub fn contains(&self, id: u32) -> bool {
        let at = self.ranges.partition_point(|range| range.end <= id);
        self.ranges.get(at).is_some_and(|range| range.contains(&id))
    }
}

/// A text that is no set of ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("failed to parse a set of ids: expected numbers and ranges like 0-3,7")]
pub struct IdsetError;

impl FromStr for Idset {
    type Err = IdsetError;

    /// With or without brackets, as flux-core's `idset_decode`. A text of any length takes no more memory than itself: ranges
    /// are not expanded.
    fn from_str(text: &str) -> Result<Self, IdsetError> {
        let text = text.trim();
        let text = text.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')).unwrap_or(text);
        let piece = |piece: &str| {
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            (first <= last).then_some(first..last.checked_add(1)?)
        };
        let pieces = text.split(',').filter(|_| !text.is_empty()).map(piece);
        let mut ranges = pieces.collect::<Option<Vec<_>>>().ok_or(IdsetError)?;
        // Each is then put behind those before it.
        ranges.sort_by_key(|range| range.start);
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        Ok(set)
    }
}

impl From<Range<u32>> for Idset {
    fn from(range: Range<u32>) -> Self {
        let mut set = Self::default();
        set.insert(range);
        set
    }
}

impl FromIterator<u32> for Idset {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let mut set = Self::default();
        for id in ids {
            set.insert(id..id.saturating_add(1));
        }
        set
    }
}

impl fmt::Display for Idset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            write!(f, "{}", range.start)?;
            if range.len() > 1 {
                write!(f, "-{}", range.end - 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_of_rfc_22() {
        for (ids, text) in [
            (vec![], ""),
            (vec![0], "0"),
            (vec![0, 1], "0-1"),
            (vec![1, 2, 3, 5, 6, 42], "1-3,5-6,42"),
            (vec![42, 6, 5, 3, 2, 1, 1], "1-3,5-6,42"),
        ] {
            assert_eq!(Idset::from_iter(ids).to_string(), text);
        }
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut set = Idset::from(0..4);
        set.insert(8..9);
        set.insert(5..5);
        assert_eq!(set.to_string(), "0-3,8");
        set.insert(4..8);
        assert_eq!(set.to_string(), "0-8");
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_its_ids(ranges in prop::collection::vec((0_u32..60, 0_u32..9), 0..12)) {
            let mut set = Idset::default();
            let mut model = BTreeSet::new();
            for (start, len) in ranges {
                set.insert(start..start + len);
                model.extend(start..start + len);
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert!(set.ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", set);
        }
    }
}
