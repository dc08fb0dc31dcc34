//! One end of a carried connection, without input, output or clock.
//!
//! Both directions are numbered streams of bytes; the end of a direction counts as one byte. What was read from our side is
//! kept until the other end has given it to its side and said so, so that whatever a broken stream took with it is sent
//! again on the next one: from the position up to which the other end says it has everything.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

use super::piece::Piece;
use crate::federation::wire::limits::{TUNNEL_FLOOR, TUNNEL_PIECE, TUNNEL_WINDOW};

/// Delivered bytes are acknowledged at the latest when they are so many: half of what every connection may have under way.
const ACK_AT: u64 = (TUNNEL_FLOOR / 2) as u64;

/// The other end did what it must not: the connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// Bytes after the end.
    #[error("bytes after the end")]
    AfterEnd,
    /// More than it may have under way.
    #[error("more than {TUNNEL_WINDOW} bytes under way")]
    BeyondWindow,
    /// A position that was never reached, or was left behind.
    #[error("a position that does not exist")]
    NoSuchPosition,
}

/// What our side is given next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// These bytes.
    Bytes(Bytes),
    /// The end.
    End,
}

/// One end of a carried connection.
#[derive(Clone, Debug, Default)]
pub struct Conduit {
    /// Read from our side and not acknowledged.
    replay: VecDeque<Bytes>,
    held: usize,
    /// Bytes read from our side.
    total: u64,
    ended: bool,
    acked: u64,
    /// Position before which the present stream has carried everything.
    sent: u64,
    /// Which of `replay` it carries next, and how much of that was carried already.
    next: usize,
    skip: usize,
    /// The furthest that any stream has carried.
    furthest: u64,
    /// Our side broke; whether the other end was told on the present stream.
    broken: Option<bool>,
    /// Arrived and not given to our side.
    queue: VecDeque<Bytes>,
    queued: usize,
    arrived: u64,
    delivered: u64,
    told: u64,
    other_ended: bool,
    other_broke: bool,
}

impl Conduit {
    /// Bytes that are kept until they are acknowledged.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Bytes that wait for our side.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// How many bytes may be read from our side, if `window` may be under way.
    pub fn room(&self, window: usize) -> usize {
        if self.ended || self.broken.is_some() { 0 } else { window.saturating_sub(self.held).min(TUNNEL_PIECE) }
    }

    /// These were read from our side: not more than there was room for.
    pub fn read(&mut self, bytes: Bytes) {
        debug_assert!(!self.ended && bytes.len() <= TUNNEL_PIECE, "as room() says");
        if !bytes.is_empty() {
            self.held += bytes.len();
            self.total += bytes.len() as u64;
            self.replay.push_back(bytes);
        }
    }

    /// Our side has sent all.
    pub fn read_end(&mut self) {
        self.ended = true;
    }

    /// Our side broke: nothing more is read or delivered, and the other end is told.
    pub fn break_off(&mut self) {
        self.broken.get_or_insert(false);
        self.replay.clear();
        self.queue.clear();
        (self.held, self.queued) = (0, 0);
    }

    /// The next piece for the stream; `None` if there is nothing to say.
    pub fn transmit(&mut self) -> Option<Piece> {
        if let Some(told) = &mut self.broken {
            return (!std::mem::replace(told, true)).then_some(Piece::Reset);
        }
        let data = self.next < self.replay.len();
        let unsaid = self.delivered - self.told;
        let last = self.other_ended && self.delivered == self.arrived;
        // A few bytes may stay unacknowledged; but the other end waits until its last one is not.
        if unsaid > 0 && (data || last || unsaid >= ACK_AT) {
            self.told = self.delivered;
            return Some(Piece::Ack(self.delivered));
        }
        let piece = if data {
            let bytes = self.replay[self.next].slice(self.skip..);
            (self.next, self.skip) = (self.next + 1, 0);
            self.sent += bytes.len() as u64;
            Piece::Data(bytes)
        } else if self.ended && self.sent == self.total {
            self.sent += 1;
            Piece::End
        } else {
            return None;
        };
        self.furthest = self.furthest.max(self.sent);
        Some(piece)
    }

    /// Takes a piece of the stream.
    ///
    /// # Errors
    /// The other end must not say this.
    pub fn receive(&mut self, piece: Piece) -> Result<(), Violation> {
        match piece {
            Piece::Data(_) | Piece::End if self.other_ended => return Err(Violation::AfterEnd),
            Piece::Data(bytes) => {
                if self.queued + bytes.len() > TUNNEL_WINDOW {
                    return Err(Violation::BeyondWindow);
                }
                self.arrived += bytes.len() as u64;
                if self.broken.is_none() && !bytes.is_empty() {
                    self.queued += bytes.len();
                    self.queue.push_back(bytes);
                }
            }
            Piece::Ack(position) => return self.acknowledged(position),
            Piece::End => {
                self.other_ended = true;
                self.arrived += 1;
            }
            Piece::Reset => self.other_broke = true,
        }
        Ok(())
    }

    fn acknowledged(&mut self, position: u64) -> Result<(), Violation> {
        if position > self.sent || position < self.acked {
            return Err(Violation::NoSuchPosition);
        }
        let mut freed = position.min(self.total) - self.acked.min(self.total);
        self.acked = position;
        if self.broken.is_some() {
            return Ok(());
        }
        while freed > 0 {
            let first = self.replay.front_mut().expect("what is sent and not acknowledged is kept");
            let length = first.len().min(usize::try_from(freed).unwrap_or(usize::MAX));
            freed -= length as u64;
            self.held -= length;
            if length == first.len() {
                self.replay.pop_front();
                // A stream that was cut amid a piece carries the rest of it first.
                (self.next, self.skip) = if self.next > 0 { (self.next - 1, self.skip) } else { (0, 0) };
            } else {
                first.advance(length);
                if self.next == 0 {
                    self.skip -= length;
                }
            }
        }
        Ok(())
    }

    /// What our side is given next.
    pub fn delivery(&self) -> Option<Delivery> {
        match self.queue.front() {
            _ if self.broken.is_some() => None,
            Some(bytes) => Some(Delivery::Bytes(bytes.clone())),
            None if self.other_ended && self.delivered < self.arrived => Some(Delivery::End),
            None => None,
        }
    }

    /// Our side has taken so many bytes of the delivery; of an end, one.
    pub fn delivered(&mut self, length: usize) {
        self.delivered += length as u64;
        if let Some(first) = self.queue.front_mut() {
            debug_assert!(length <= first.len(), "not more than was offered");
            first.advance(length);
            self.queued -= length;
            if first.is_empty() {
                self.queue.pop_front();
            }
        }
    }

    /// Position up to which everything is here: where the other end goes on.
    pub fn position(&self) -> u64 {
        self.arrived
    }

    /// Another stream carries the connection; the other end has everything before `position`.
    ///
    /// # Errors
    /// It cannot have: this is another connection.
    pub fn resume(&mut self, position: u64) -> Result<(), Violation> {
        if let Some(told) = &mut self.broken {
            *told = false;
            return Ok(());
        }
        if position < self.acked || position > self.furthest {
            return Err(Violation::NoSuchPosition);
        }
        self.sent = position;
        // The old stream may have lost an acknowledgement, too.
        self.told = 0;
        let mut behind = usize::try_from(position.min(self.total) - self.acked.min(self.total)).unwrap_or(usize::MAX);
        self.next = 0;
        while let Some(piece) = self.replay.get(self.next).filter(|piece| piece.len() <= behind) {
            behind -= piece.len();
            self.next += 1;
        }
        self.skip = behind;
        Ok(())
    }

    /// Both directions have ended, and both ends know.
    pub fn is_finished(&self) -> bool {
        let ours = self.ended && self.acked == self.total + 1;
        let theirs = self.other_ended && self.delivered == self.arrived && self.told == self.delivered;
        ours && theirs
    }

    /// The other end's side broke.
    pub fn other_broke(&self) -> bool {
        self.other_broke
    }

    /// Our side broke, and the stream carries the word.
    pub fn is_broken_off(&self) -> bool {
        self.broken == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Rng, SeededRng};

    /// Both ends, and what is on the stream each way.
    #[derive(Default)]
    struct Pair {
        ends: [Conduit; 2],
        stream: [VecDeque<Piece>; 2],
        taken: [Vec<u8>; 2],
        took_end: [bool; 2],
        /// What each side has still to say.
        says: [VecDeque<u8>; 2],
    }

    impl Pair {
        fn saying(lengths: [usize; 2]) -> Self {
            let words = |seed: u64, length| {
                let mut rng = SeededRng::new(seed);
                (0..length).map(|_| rng.next_u64() as u8).collect()
            };
            Self { says: [words(1, lengths[0]), words(2, lengths[1])], ..Self::default() }
        }

        /// One thing that can happen, of side `end`.
        fn step(&mut self, end: usize, what: u64, amount: usize, window: usize) {
            let conduit = &mut self.ends[end];
            match what {
                0 => {
                    let count = conduit.room(window).min(amount).min(self.says[end].len());
                    let bytes: Vec<u8> = self.says[end].drain(..count).collect();
                    if count > 0 {
                        conduit.read(bytes.into());
                    } else if self.says[end].is_empty() {
                        conduit.read_end();
                    }
                    assert!(conduit.held() <= window);
                }
                1 => self.stream[end].extend(conduit.transmit()),
                2 => {
                    if let Some(piece) = self.stream[1 - end].pop_front() {
                        conduit.receive(piece).unwrap();
                        assert!(conduit.queued() <= window, "never more than the other end may have under way");
                    }
                }
                _ => match conduit.delivery() {
                    Some(Delivery::Bytes(bytes)) => {
                        let count = amount.min(bytes.len());
                        self.taken[end].extend_from_slice(&bytes[..count]);
                        conduit.delivered(count);
                    }
                    Some(Delivery::End) => {
                        assert!(!std::mem::replace(&mut self.took_end[end], true), "one end");
                        conduit.delivered(1);
                    }
                    None => {}
                },
            }
        }

        fn cut(&mut self) {
            self.stream.iter_mut().for_each(VecDeque::clear);
            let positions = [self.ends[0].position(), self.ends[1].position()];
            self.ends[0].resume(positions[1]).unwrap();
            self.ends[1].resume(positions[0]).unwrap();
        }

        fn finished(&self) -> bool {
            self.ends.iter().all(Conduit::is_finished)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn not_one_byte_is_lost_or_repeated_whatever_is_cut(
            seed: u64,
            lengths in [0_usize..300_000, 0_usize..300_000],
            window in 1_usize..700,
            cuts in 0_u64..40,
        ) {
            let mut rng = SeededRng::new(seed);
            let mut pair = Pair::saying(lengths);
            let said = [Vec::from(pair.says[0].clone()), Vec::from(pair.says[1].clone())];
            let mut steps = 0_u64;
            while !pair.finished() {
                steps += 1;
                prop_assert!(steps < 2_000_000, "it goes on: {:?}", pair.ends);
                let (end, what) = ((rng.next_u64() % 2) as usize, rng.next_u64() % 4);
                pair.step(end, what, 1 + (rng.next_u64() % 8_000) as usize, window + TUNNEL_FLOOR);
                if rng.next_u64() % 1_000 < cuts {
                    pair.cut();
                }
            }
            prop_assert_eq!(&pair.taken[0], &said[1]);
            prop_assert_eq!(&pair.taken[1], &said[0]);
            prop_assert_eq!(pair.took_end, [true, true]);
        }
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_its_direction_alone() {
        let mut pair = Pair::saying([400_000, 400_000]);
        let window = TUNNEL_FLOOR;
        for _ in 0..100_000 {
            for end in [0, 1] {
                pair.step(end, 0, 400, window);
                pair.step(end, 1, 0, window);
                pair.step(end, 2, 0, window);
            }
            pair.step(0, 3, 400, window);
        }
        assert_eq!(pair.taken[0].len(), 400_000, "what comes the other way arrives");
        assert_eq!((pair.ends[0].held(), pair.ends[1].queued()), (window, window));
    }

    #[test]
    fn the_other_end_cannot_claim_what_never_was() {
        let mut end = Conduit::default();
        end.read(Bytes::from_static(b"abc"));
        assert_eq!(end.receive(Piece::Ack(1)), Err(Violation::NoSuchPosition), "nothing was sent");
        end.transmit();
        assert_eq!(end.clone().resume(4), Err(Violation::NoSuchPosition));
        end.receive(Piece::Ack(2)).unwrap();
        assert_eq!(end.clone().resume(1), Err(Violation::NoSuchPosition), "it was acknowledged");
        assert_eq!(end.receive(Piece::Ack(1)), Err(Violation::NoSuchPosition));
        end.resume(2).unwrap();
        assert_eq!(end.transmit(), Some(Piece::Data(Bytes::from_static(b"c"))));
        end.receive(Piece::End).unwrap();
        assert_eq!(end.receive(Piece::Data(Bytes::from_static(b"x"))), Err(Violation::AfterEnd));
        assert_eq!(end.receive(Piece::End), Err(Violation::AfterEnd));
        let mut full = Conduit::default();
        full.receive(Piece::Data(vec![0; TUNNEL_WINDOW].into())).unwrap();
        assert_eq!(full.receive(Piece::Data(Bytes::from_static(b"x"))), Err(Violation::BeyondWindow));
    }

    #[test]
    fn a_side_that_breaks_is_said_once_per_stream() {
        let mut end = Conduit::default();
        end.read(Bytes::from_static(b"abc"));
        end.break_off();
        assert_eq!((end.held(), end.room(TUNNEL_WINDOW)), (0, 0));
        assert_eq!(end.transmit(), Some(Piece::Reset));
        assert!(end.is_broken_off() && end.transmit().is_none());
        end.resume(0).unwrap();
        assert_eq!(end.transmit(), Some(Piece::Reset));
        end.receive(Piece::Data(Bytes::from_static(b"late"))).unwrap();
        assert_eq!((end.queued(), end.delivery()), (0, None));
    }
}
