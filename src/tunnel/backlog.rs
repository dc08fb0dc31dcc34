//! Bytes in the order in which they came, in memory that is little more than they are.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Small arrivals are joined up to so many bytes; larger ones stay as they came. Of two neighbours one is at least half of
/// that, so what a segment takes besides its bytes does not count.
const SEGMENT: usize = 16 << 10;

/// The bytes of one direction between two positions.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    segments: VecDeque<Segment>,
    start: u64,
    end: u64,
    footprint: usize,
}

#[derive(Clone, Debug)]
struct Segment {
    /// Position of its first byte.
    at: u64,
    bytes: Vec<u8>,
}

impl Segment {
    fn footprint(&self) -> usize {
        self.bytes.capacity() + size_of::<Self>()
    }
}

impl Backlog {
    /// Bytes that are kept.
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Position behind the last one.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of memory that they take.
    pub(super) fn footprint(&self) -> usize {
        self.footprint
    }

    /// Appends these; owned ones are copied only to be joined.
    pub(super) fn push<'a>(&mut self, bytes: impl Into<Cow<'a, [u8]>>) {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return;
        }
        let at = self.end;
        self.end += bytes.len() as u64;
        if let Some(last) = self.segments.back_mut()
            && last.bytes.len() + bytes.len() <= SEGMENT
        {
            self.footprint -= last.footprint();
            let (length, capacity) = (last.bytes.len(), last.bytes.capacity());
            if length + bytes.len() > capacity {
                let enough = (2 * capacity).clamp(length + bytes.len(), SEGMENT);
                last.bytes.reserve_exact(enough - length);
            }
            last.bytes.extend_from_slice(&bytes);
            self.footprint += last.footprint();
            return;
        }
        let segment = Segment { at, bytes: bytes.into_owned() };
        self.footprint += segment.footprint();
        self.segments.push_back(segment);
    }

    /// Those from a position on that lie together; none behind the end.
    pub(super) fn at(&self, position: u64) -> &[u8] {
        let behind = self.segments.partition_point(|segment| segment.at <= position);
        let Some(segment) = behind.checked_sub(1).and_then(|index| self.segments.get(index)) else { return &[] };
        segment.bytes.get((position - segment.at) as usize..).unwrap_or_default()
    }

    /// The first ones that lie together.
    pub(super) fn first(&self) -> &[u8] {
        self.at(self.start)
    }

    /// As many of the first ones as lie in so many places.
    pub(super) fn slices<const PLACES: usize>(&self) -> [IoSlice<'_>; PLACES] {
        let mut segments = self.segments.iter();
        std::array::from_fn(|_| {
            let bytes = segments.next().map_or(&[][..], |segment| {
                let before = self.start.saturating_sub(segment.at) as usize;
                segment.bytes.get(before..).unwrap_or_default()
            });
            IoSlice::new(bytes)
        })
    }

    /// Forgets all before a position.
    pub(super) fn release(&mut self, position: u64) {
        self.start = position.clamp(self.start, self.end);
        while let Some(first) = self.segments.front().filter(|first| first.at + first.bytes.len() as u64 <= self.start)
        {
            self.footprint -= first.footprint();
            self.segments.pop_front();
        }
        if self.segments.is_empty() {
            // Most connections are idle most of the time.
            self.segments = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_bytes_take_no_more_memory_than_they_are() {
        let mut backlog = Backlog::default();
        for _ in 0..1 << 20 {
            backlog.push(b"x");
        }
        assert_eq!(backlog.len(), 1 << 20);
        assert!(backlog.footprint() < (1 << 20) + (16 << 10), "{}", backlog.footprint());
        backlog.release(1 << 20);
        assert_eq!((backlog.len(), backlog.footprint()), (0, 0));
    }

    proptest! {
        #[test]
        fn bytes_are_where_they_were_put(
            lengths in proptest::collection::vec(prop_oneof![0_usize..9, 0_usize..40_000], 0..40),
            released in 0.0..1.0_f64,
        ) {
            let (mut backlog, mut all) = (Backlog::default(), Vec::new());
            for (number, length) in lengths.into_iter().enumerate() {
                let bytes = vec![number as u8; length];
                backlog.push(&bytes);
                all.extend(bytes);
            }
            let start = (all.len() as f64 * released) as u64;
            backlog.release(start);
            prop_assert_eq!(backlog.len() as u64, all.len() as u64 - start);
            let (mut found, mut position) = (Vec::new(), start);
            while position < backlog.end() {
                found.extend_from_slice(backlog.at(position));
                position = start + found.len() as u64;
            }
            prop_assert_eq!(&found[..], &all[start as usize..]);
            prop_assert_eq!(backlog.first().first(), all.get(start as usize));
            let first: Vec<u8> = backlog.slices::<3>().iter().flat_map(|slice| slice.iter().copied()).collect();
            prop_assert!(all[start as usize..].starts_with(&first));
            prop_assert_eq!(first.is_empty(), backlog.len() == 0);
            prop_assert!(backlog.at(backlog.end()).is_empty());
            // At most a segment before the first and one behind the last byte, and little for each.
            prop_assert!(backlog.footprint() <= backlog.len() + backlog.len() / 100 + (64 << 10) + (16 << 10));
        }
    }
}
