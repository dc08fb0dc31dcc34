//! One end of a carried connection, without input, output or clock.
//!
//! Both directions are numbered streams of bytes; the end of a direction counts as one byte. What was read from our side is
//! kept until the other end has given it to its side and said so, so that whatever a broken stream took with it is sent
//! again on the next one: from the position up to which the other end says it has everything.

use std::borrow::Cow;
use std::io::IoSlice;

use super::backlog::Backlog;
use super::segment::Segment;
use crate::limits::{TUNNEL_FLOOR, TUNNEL_PIECE, TUNNEL_WINDOW};

/// Delivered bytes are acknowledged at the latest when they are so many, or half of what every connection may have under way
/// if no more wait.
const ACK_AT: u64 = 32 << 10;

/// As long as more arrives, at the latest when they are so many, or an eighth of what the other end may have under way.
const BUSY_ACK_AT: usize = 512 << 10;

/// What the other end may have under way at first; more when it says that this is too little.
const FIRST_WINDOW: usize = 256 << 10;

/// The other end did what it must not: the connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// Bytes after the end.
    #[error("bytes after the end")]
    AfterEnd,
    /// More than it may have under way.
    #[error("more bytes under way than it may have")]
    BeyondWindow,
    /// A position that was never reached, or was left behind.
    #[error("a position that does not exist")]
    NoSuchPosition,
}

/// What our side is given next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// The end.
    End,
}

/// One end of a carried connection.
#[derive(Clone, Debug)]
pub struct ResumableStream {
    /// Read from our side and not acknowledged.
    replay: Backlog,
    ended: bool,
    acked: u64,
    /// Position before which the present stream has carried everything, and the furthest that any stream has.
    sent: u64,
    furthest: u64,
    /// How much the other end lets us have under way, up to which position it has ever let us send by that, and whether it was
    /// told that this is too little.
    theirs: usize,
    limit: u64,
    blocked: bool,
    /// Our side broke; whether the other end was told on the present stream.
    broken: Option<bool>,
    /// Arrived and not given to our side.
    queue: Backlog,
    arrived: u64,
    delivered: u64,
    busy: bool,
    /// Delivered, as it was acknowledged, and whether the stream with the last acknowledgement broke.
    told: u64,
    repeat: bool,
    ours: Window,
    other_ended: bool,
    other_broke: bool,
}

/// How much the other end may have under way to here.
#[derive(Clone, Debug)]
struct Window {
    /// As it should be, and as the other end was told.
    wanted: usize,
    told: usize,
    /// The position it never gets beyond by all it was told.
    edge: u64,
    /// It heeds what it is told.
    heeded: bool,
    /// It could use more.
    short: bool,
    /// How much was delivered when it grew the last time.
    grown_at: u64,
}

impl Default for ResumableStream {
    fn default() -> Self {
        let ours =
            Window { wanted: FIRST_WINDOW, told: FIRST_WINDOW, edge: 0, heeded: false, short: false, grown_at: 0 };
        Self {
            replay: Backlog::default(),
            ended: false,
            acked: 0,
            sent: 0,
            furthest: 0,
            theirs: FIRST_WINDOW,
            limit: 0,
            blocked: false,
            broken: None,
            queue: Backlog::default(),
            arrived: 0,
            delivered: 0,
            busy: false,
            told: 0,
            repeat: false,
            ours,
            other_ended: false,
            other_broke: false,
        }
    }
}

impl ResumableStream {
    /// Bytes that are kept until they are acknowledged.
    pub(crate) fn held(&self) -> usize {
        if self.broken.is_some() { 0 } else { self.replay.len() }
    }

    /// Bytes that wait for our side.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of memory: what is kept until it is acknowledged, and what waits for our side or may be sent to it.
    pub fn takes(&self) -> [usize; 2] {
        let open = if self.ours.heeded && self.broken.is_none() {
            self.ours.edge.saturating_sub(self.delivered) as usize
        } else {
            0
        };
        [self.replay.footprint(), open.max(self.queue.footprint())]
    }

    /// Whether the other end sends no more than it was told that it may.
    pub(crate) fn is_heeded(&self) -> bool {
        self.ours.heeded
    }

    /// How many bytes may be read from our side, if `window` may be under way.
    pub fn room(&self, window: usize) -> usize {
        if self.ended || self.broken.is_some() {
            return 0;
        }
        window.min(self.theirs).saturating_sub(self.held()).min(TUNNEL_PIECE)
    }

    /// These were read from our side: not more than there was room for.
    pub fn read<'a>(&mut self, bytes: impl Into<Cow<'a, [u8]>>) {
        let bytes = bytes.into();
        debug_assert!(!self.ended && bytes.len() <= TUNNEL_PIECE, "as room() says");
        self.replay.push(bytes);
    }

    /// Our side has sent all.
    pub(crate) fn read_end(&mut self) {
        self.ended = true;
    }

    /// Our side broke: nothing more is read or delivered, and the other end is told.
    pub(crate) fn break_off(&mut self) {
        self.broken.get_or_insert(false);
        self.queue = Backlog::default();
    }

    /// The other end may have `most` under way to here: as much as there is room for. It gets that when it has use for it.
    pub fn grant(&mut self, most: usize) {
        let Window { wanted, short, grown_at, .. } = &mut self.ours;
        // Whoever does not take what arrives needs no more of it.
        if *short && self.delivered - *grown_at >= (*wanted / 2) as u64 {
            (*short, *grown_at, *wanted) = (false, self.delivered, *wanted * 2);
        }
        *wanted = (*wanted).min(most).max(TUNNEL_FLOOR);
    }

    /// What the other end is told at the opening of a stream: how much it may have under way.
    pub fn opening(&mut self) -> u32 {
        self.tell_window();
        self.ours.told as u32
    }

    fn tell_window(&mut self) {
        self.ours.told = self.ours.wanted;
        self.ours.edge = self.ours.edge.max(self.told + self.ours.told as u64);
    }

    /// The next piece for the stream; `None` if there is nothing to say. Of data, [`Self::carried`] says how much went.
    pub fn transmit(&mut self) -> Option<Segment<'_>> {
        if let Some(told) = &mut self.broken {
            return (!std::mem::replace(told, true)).then_some(Segment::Reset);
        }
        // More may have been read before there was a stream than the other end turned out to let us send.
        let data = self.sent < self.replay.end().min(self.limit);
        let unsaid = self.delivered - if self.repeat { 0 } else { self.told };
        let last = self.other_ended && self.delivered == self.arrived;
        let enough = if self.busy {
            (self.ours.told / 8).clamp(TUNNEL_FLOOR / 2, BUSY_ACK_AT) as u64
        } else if self.queue.len() == 0 {
            (TUNNEL_FLOOR / 2) as u64
        } else {
            ACK_AT
        };
        // A few bytes may stay unacknowledged; but the other end waits until its last one is not.
        if unsaid > 0 && (data || last || unsaid >= enough) {
            (self.told, self.repeat) = (self.delivered, false);
            self.ours.edge = self.ours.edge.max(self.told + self.ours.told as u64);
            return Some(Segment::Ack(self.delivered));
        }
        if self.ours.heeded && self.ours.wanted != self.ours.told {
            self.tell_window();
            return Some(Segment::Window(self.ours.told as u32));
        }
        if self.ours.heeded && !self.blocked && self.theirs < TUNNEL_WINDOW && self.held() >= self.theirs {
            self.blocked = true;
            return Some(Segment::Blocked);
        }
        if data {
            let bytes = self.replay.at(self.sent);
            let most = TUNNEL_PIECE.min((self.limit - self.sent) as usize);
            return Some(Segment::Data(&bytes[..bytes.len().min(most)]));
        }
        if self.ended && self.sent == self.replay.end() {
            self.carried(1);
            return Some(Segment::End);
        }
        None
    }

    /// What the stream carries next of the data that was transmitted last.
    pub(crate) fn outgoing(&self) -> &[u8] {
        self.replay.at(self.sent)
    }

    /// The stream has carried so many bytes more.
    pub fn carried(&mut self, length: usize) {
        self.sent += length as u64;
        self.furthest = self.furthest.max(self.sent);
    }

    /// Takes a piece of the stream.
    ///
    /// # Errors
    /// The other end must not say this.
    pub fn receive(&mut self, piece: Segment<'_>) -> Result<(), Violation> {
        match piece {
            Segment::Data(_) | Segment::End if self.other_ended => return Err(Violation::AfterEnd),
            Segment::Data(bytes) => {
                self.arrived += bytes.len() as u64;
                let edge = if self.ours.heeded { self.ours.edge } else { self.delivered + TUNNEL_WINDOW as u64 };
                if self.arrived > edge {
                    return Err(Violation::BeyondWindow);
                }
                if self.broken.is_none() {
                    self.queue.push(bytes);
                }
            }
            Segment::Ack(position) => return self.acknowledged(position),
            Segment::End => {
                self.other_ended = true;
                self.arrived += 1;
            }
            Segment::Reset => self.other_broke = true,
            Segment::Window(bytes) => {
                self.may_send(bytes as usize);
            }
            Segment::Blocked => self.ours.short = true,
        }
        Ok(())
    }

    fn acknowledged(&mut self, position: u64) -> Result<(), Violation> {
        if position > self.sent || position < self.acked {
            return Err(Violation::NoSuchPosition);
        }
        self.acked = position;
        self.replay.release(position);
        self.limit = self.limit.max(position + self.theirs as u64);
        Ok(())
    }

    /// The other end lets us have so much under way.
    fn may_send(&mut self, window: usize) {
        (self.theirs, self.blocked) = (window, false);
        self.limit = self.limit.max(self.acked + window as u64);
    }

    /// What our side is given next.
    pub fn delivery(&self) -> Option<Delivery<'_>> {
        match self.queue.first() {
            _ if self.broken.is_some() => None,
            [] if self.other_ended && self.delivered < self.arrived => Some(Delivery::End),
            [] => None,
            bytes => Some(Delivery::Bytes(bytes)),
        }
    }

    /// Bytes of the delivery, and those that follow them, in the places where they lie.
    pub(crate) fn bytes_to_deliver<const PLACES: usize>(&self) -> [IoSlice<'_>; PLACES] {
        self.queue.slices()
    }

    /// Whether more may have arrived already: then acknowledgements wait for each other.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Our side has taken so many bytes of the delivery; of an end, one.
    pub fn delivered(&mut self, length: usize) {
        debug_assert!(length <= self.queue.len().max(1), "not more than was offered");
        self.delivered += length as u64;
        self.queue.release(self.delivered);
    }

    /// Position up to which everything is here: where the other end goes on.
    pub fn position(&self) -> u64 {
        self.arrived
    }

    /// Another stream carries the connection; the other end has everything before `position`, and lets us have `window`
    /// under way: `None` if it knows no windows.
    ///
    /// # Errors
    /// It cannot have: this is another connection.
    pub fn resume(&mut self, position: u64, window: Option<u32>) -> Result<(), Violation> {
        self.ours.heeded = window.is_some();
        self.may_send(window.map_or(TUNNEL_WINDOW, |window| window as usize));
        if let Some(told) = &mut self.broken {
            *told = false;
            return Ok(());
        }
        if position < self.acked || position > self.furthest {
            return Err(Violation::NoSuchPosition);
        }
        self.sent = position;
        // The old stream may have lost an acknowledgement, too.
        self.repeat = true;
        Ok(())
    }

    /// Both directions have ended, and both ends know.
    pub fn is_finished(&self) -> bool {
        let ours = self.ended && self.acked == self.replay.end() + 1;
        let theirs = self.other_ended && self.delivered == self.arrived && self.told == self.delivered && !self.repeat;
        ours && theirs
    }

    /// The other end's side broke.
    pub(crate) fn other_broke(&self) -> bool {
        self.other_broke
    }

    /// Our side broke, and the stream carries the word.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.broken == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use tributary_clock::{Rng, SeededRng};

    use super::*;

    /// Both ends, and what is on the stream each way.
    #[derive(Default)]
    struct Pair {
        ends: [ResumableStream; 2],
        /// The pieces, and the data of each.
        stream: [VecDeque<(Option<Segment<'static>>, Vec<u8>)>; 2],
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
            let mut pair = Self { says: [words(1, lengths[0]), words(2, lengths[1])], ..Self::default() };
            pair.cut();
            pair
        }

        /// One thing that can happen, of side `end`.
        fn step(&mut self, end: usize, what: u64, amount: usize, window: usize) {
            let conduit = &mut self.ends[end];
            match what {
                0 => {
                    let count = conduit.room(window).min(amount).min(self.says[end].len());
                    let bytes: Vec<u8> = self.says[end].drain(..count).collect();
                    if count > 0 {
                        conduit.read(&bytes);
                    } else if self.says[end].is_empty() {
                        conduit.read_end();
                    }
                    assert!(conduit.held() <= window);
                }
                1 => {
                    // What there is room for changes all the time.
                    conduit.grant(window / (1 + amount % 3));
                    let piece = match conduit.transmit() {
                        Some(Segment::Data(bytes)) => (None, bytes.to_vec()),
                        Some(Segment::Ack(position)) => (Some(Segment::Ack(position)), Vec::new()),
                        Some(Segment::Window(bytes)) => (Some(Segment::Window(bytes)), Vec::new()),
                        Some(Segment::Blocked) => (Some(Segment::Blocked), Vec::new()),
                        Some(Segment::End) => (Some(Segment::End), Vec::new()),
                        Some(Segment::Reset) => (Some(Segment::Reset), Vec::new()),
                        None => return,
                    };
                    conduit.carried(piece.1.len());
                    self.stream[end].push_back(piece);
                }
                2 => {
                    if let Some((piece, data)) = self.stream[1 - end].pop_front() {
                        conduit.receive(piece.unwrap_or(Segment::Data(&data))).unwrap();
                        assert!(conduit.queued() <= window.max(TUNNEL_FLOOR), "never more than may be under way");
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
            let windows = self.ends.each_mut().map(|end| end.opening());
            self.ends[0].resume(positions[1], Some(windows[1])).unwrap();
            self.ends[1].resume(positions[0], Some(windows[0])).unwrap();
        }

        fn finished(&self) -> bool {
            self.ends.iter().all(ResumableStream::is_finished)
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
            pair.step(0, 3, 400, window);
        }
        assert_eq!(pair.taken[0].len(), 400_000, "what comes the other way arrives");
        assert_eq!((pair.ends[0].held(), pair.ends[1].queued()), (window, window));
    }

    #[test]
    fn the_other_end_cannot_claim_what_never_was() {
        let mut end = ResumableStream::default();
        end.resume(0, None).unwrap();
        end.read(b"abc");
        assert_eq!(end.receive(Segment::Ack(1)), Err(Violation::NoSuchPosition), "nothing was sent");
        assert_eq!(end.transmit(), Some(Segment::Data(b"abc")));
        assert_eq!(end.receive(Segment::Ack(1)), Err(Violation::NoSuchPosition), "nothing was carried");
        end.carried(3);
        assert_eq!(end.clone().resume(4, None), Err(Violation::NoSuchPosition));
        end.receive(Segment::Ack(2)).unwrap();
        assert_eq!(end.clone().resume(1, None), Err(Violation::NoSuchPosition), "it was acknowledged");
        assert_eq!(end.receive(Segment::Ack(1)), Err(Violation::NoSuchPosition));
        end.resume(2, None).unwrap();
        assert_eq!(end.transmit(), Some(Segment::Data(b"c")));
        end.receive(Segment::End).unwrap();
        assert_eq!(end.receive(Segment::Data(b"x")), Err(Violation::AfterEnd));
        assert_eq!(end.receive(Segment::End), Err(Violation::AfterEnd));
        let mut full = ResumableStream::default();
        full.receive(Segment::Data(&vec![0; TUNNEL_WINDOW])).unwrap();
        assert_eq!(full.receive(Segment::Data(b"x")), Err(Violation::BeyondWindow));
    }

    #[test]
    fn more_than_was_granted_is_refused_and_only_who_takes_it_is_granted_more() {
        let mut end = ResumableStream::default();
        end.grant(64 << 10);
        let told = end.opening();
        assert_eq!(told, 64 << 10);
        end.resume(0, Some(told)).unwrap();
        end.receive(Segment::Data(&vec![0; 64 << 10])).unwrap();
        assert_eq!(end.clone().receive(Segment::Data(b"x")), Err(Violation::BeyondWindow));
        end.receive(Segment::Blocked).unwrap();
        end.grant(TUNNEL_WINDOW);
        assert_eq!(end.transmit(), None, "nothing was taken");
        assert!((64 << 10..65 << 10).contains(&end.takes()[1]), "what is there counts");
        while let Some(Delivery::Bytes(bytes)) = end.delivery() {
            let length = bytes.len();
            end.delivered(length);
        }
        end.grant(TUNNEL_WINDOW);
        assert_eq!(end.transmit(), Some(Segment::Ack(64 << 10)));
        assert_eq!(end.transmit(), Some(Segment::Window(128 << 10)));
        // Others came: it gets less, and is held to that once it had to know.
        end.grant(TUNNEL_FLOOR);
        assert_eq!(end.transmit(), Some(Segment::Window(TUNNEL_FLOOR as u32)));
        end.receive(Segment::Data(&vec![0; 64 << 10])).unwrap();
        assert_eq!(end.takes()[1], 128 << 10, "it may have been under way");
    }

    /// The danger: a side that never takes a breath never hears that it may go on.
    #[test]
    fn who_is_busy_acknowledges_less_often_but_before_the_other_end_has_to_wait() {
        for window in [TUNNEL_FLOOR, FIRST_WINDOW, TUNNEL_WINDOW] {
            let unacknowledged = |busy| {
                let mut end = ResumableStream::default();
                end.ours.wanted = window;
                let told = end.opening();
                end.resume(0, Some(told)).unwrap();
                end.set_busy(busy);
                let mut taken = 0;
                loop {
                    end.receive(Segment::Data(&[0; 1 << 10])).unwrap();
                    end.delivered(1 << 10);
                    taken += 1 << 10;
                    match end.transmit() {
                        Some(Segment::Ack(position)) => return position as usize,
                        other => assert!(other.is_none() && taken < window, "{window}: it waits for {taken}"),
                    }
                }
            };
            assert_eq!(unacknowledged(false), TUNNEL_FLOOR / 2);
            assert_eq!(unacknowledged(true), (window / 8).max(TUNNEL_FLOOR / 2));
        }
    }

    #[test]
    fn what_was_read_before_there_was_a_stream_waits_until_it_may_be_sent() {
        let (mut ours, mut other) = (ResumableStream::default(), ResumableStream::default());
        while ours.room(TUNNEL_WINDOW) > 0 {
            let bytes = vec![7; ours.room(TUNNEL_WINDOW)];
            ours.read(&bytes);
        }
        let said = ours.held();
        other.grant(TUNNEL_FLOOR);
        let window = other.opening();
        assert!(window as usize == TUNNEL_FLOOR && said > TUNNEL_FLOOR);
        ours.resume(0, Some(window)).unwrap();
        other.resume(0, Some(FIRST_WINDOW as u32)).unwrap();
        let mut taken = 0;
        while taken < said {
            while let Some(piece) = ours.transmit() {
                let length = if let Segment::Data(bytes) = piece { bytes.len() } else { 0 };
                other.receive(piece).unwrap();
                ours.carried(length);
            }
            let Some(Delivery::Bytes(bytes)) = other.delivery() else { panic!("{taken} of {said}: nothing comes") };
            taken += bytes.len();
            other.delivered(bytes.len());
            while let Some(piece) = other.transmit() {
                ours.receive(piece).unwrap();
            }
        }
    }

    #[test]
    fn a_side_that_breaks_is_said_once_per_stream() {
        let mut end = ResumableStream::default();
        end.read(b"abc");
        end.break_off();
        assert_eq!((end.held(), end.room(TUNNEL_WINDOW)), (0, 0));
        assert_eq!(end.transmit(), Some(Segment::Reset));
        assert!(end.is_broken_off() && end.transmit().is_none());
        end.resume(0, None).unwrap();
        assert_eq!(end.transmit(), Some(Segment::Reset));
        end.receive(Segment::Data(b"late")).unwrap();
        assert_eq!((end.queued(), end.delivery()), (0, None));
    }
}
