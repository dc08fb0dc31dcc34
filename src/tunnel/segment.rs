//! What travels on a tunnel stream after its opening: pieces of the byte stream, acknowledgements, ends.
//!
//! One byte says which: 0 data (`u32` length, then the bytes), 1 acknowledgement (`u64` position), 2 end, 3 reset, 4 window
//! (`u32` bytes), 5 blocked; numbers are big-endian. A stream is reliable and in order, so data carries no position: both
//! sides know it from the opening.

use bytes::{Buf as _, BufMut as _, BytesMut};

use crate::limits::TUNNEL_PIECE;

const DATA: u8 = 0;
const ACK: u8 = 1;
const END: u8 = 2;
const RESET: u8 = 3;
const WINDOW: u8 = 4;
const BLOCKED: u8 = 5;

/// Bytes before the data of the longest piece, or of the longest one without.
const HEAD: usize = 9;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment<'a> {
    /// Bytes of the connection, at most [`TUNNEL_PIECE`].
    Data(&'a [u8]),
    /// All before this position was given to the connection on the other side; the end counts as one byte.
    Ack(u64),
    /// No more bytes in this direction.
    End,
    /// The connection on this side broke.
    Reset,
    /// So many bytes may be under way to here from now on. Only for those who told theirs at the opening.
    Window(u32),
    /// More would be under way if that window were larger.
    Blocked,
}

/// Bytes that are no piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// A piece of a kind that does not exist.
    #[error("a piece of kind {0}")]
    Kind(u8),
    /// More data than a piece may hold.
    #[error("a piece of {0} bytes is beyond the limit of {TUNNEL_PIECE}")]
    TooLarge(usize),
}

/// Appends all of a piece to `head` but the bytes of its data: they follow.
pub fn head(piece: Segment<'_>, head: &mut BytesMut) {
    match piece {
        Segment::Data(bytes) => {
            head.put_u8(DATA);
            // Pieces are far below 4 GiB.
            head.put_u32(bytes.len() as u32);
        }
        Segment::Ack(position) => {
            head.put_u8(ACK);
            head.put_u64(position);
        }
        Segment::End => head.put_u8(END),
        Segment::Reset => head.put_u8(RESET),
        Segment::Window(bytes) => {
            head.put_u8(WINDOW);
            head.put_u32(bytes);
        }
        Segment::Blocked => head.put_u8(BLOCKED),
    }
}

/// Takes pieces off what arrived. Data is handed on as it comes, without waiting for the rest of its piece.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// Bytes of the present piece's data that are still to come.
    left: usize,
    /// What there is of the next piece before its data.
    head: [u8; HEAD],
    filled: usize,
}

impl Decoder {
    /// The next piece in `input`; `None`: all of it was taken.
    ///
    /// # Errors
    /// It is none; nothing after it can be read.
    pub fn take<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Segment<'a>>, Malformed> {
        loop {
            if self.left > 0 {
                let (bytes, rest) = input.split_at(self.left.min(input.len()));
                *input = rest;
                self.left -= bytes.len();
                return Ok((!bytes.is_empty()).then_some(Segment::Data(bytes)));
            }
            let Some(kind) = self.head[..self.filled].first().or(input.first()) else { return Ok(None) };
            let needed = match *kind {
                DATA | WINDOW => 5,
                ACK => 9,
                END | RESET | BLOCKED => 1,
                other => return Err(Malformed::Kind(other)),
            };
            let (more, rest) = input.split_at((needed - self.filled).min(input.len()));
            self.head[self.filled..][..more.len()].copy_from_slice(more);
            self.filled += more.len();
            *input = rest;
            if self.filled < needed {
                return Ok(None);
            }
            self.filled = 0;
            let mut number = &self.head[1..needed];
            match self.head[0] {
                DATA => {
                    let length = number.get_u32() as usize;
                    if length > TUNNEL_PIECE {
                        return Err(Malformed::TooLarge(length));
                    }
                    self.left = length;
                }
                ACK => return Ok(Some(Segment::Ack(number.get_u64()))),
                WINDOW => return Ok(Some(Segment::Window(number.get_u32()))),
                END => return Ok(Some(Segment::End)),
                RESET => return Ok(Some(Segment::Reset)),
                _ => return Ok(Some(Segment::Blocked)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(pieces: &[Segment<'_>]) -> BytesMut {
        let mut bytes = BytesMut::new();
        for piece in pieces {
            head(*piece, &mut bytes);
            if let Segment::Data(data) = piece {
                bytes.extend_from_slice(data);
            }
        }
        bytes
    }

    #[test]
    fn the_bytes_of_every_piece() {
        let all = [
            Segment::Data(b"ab"),
            Segment::Ack(258),
            Segment::End,
            Segment::Reset,
            Segment::Window(0x0102_0304),
            Segment::Blocked,
        ];
        let bytes = b"\x00\x00\x00\x00\x02ab\x01\x00\x00\x00\x00\x00\x00\x01\x02\x02\x03\x04\x01\x02\x03\x04\x05";
        assert_eq!(&encoded(&all)[..], bytes);
        let mut decoder = Decoder::default();
        assert_eq!(decoder.take(&mut &b"\x07"[..]), Err(Malformed::Kind(7)));
        let huge = decoder.take(&mut &b"\x00\xff\xff\xff\xff"[..]);
        assert_eq!(huge, Err(Malformed::TooLarge(0xffff_ffff)));
    }

    proptest! {
        #[test]
        fn pieces_come_out_whatever_the_packets(
            lengths in proptest::collection::vec(0_usize..300, 0..20),
            cuts in proptest::collection::vec(1_usize..40, 1..50),
        ) {
            let data: Vec<Vec<u8>> =
                lengths.into_iter().enumerate().map(|(number, length)| vec![number as u8; length]).collect();
            let pieces: Vec<Segment<'_>> = data
                .iter()
                .flat_map(|bytes| [Segment::Data(bytes), Segment::Ack(bytes.len() as u64), Segment::Window(7), Segment::Blocked])
                .chain([Segment::End])
                .collect();
            let wire = encoded(&pieces);
            let (mut decoder, mut wire) = (Decoder::default(), &wire[..]);
            let (mut taken, mut others, mut cuts) = (Vec::new(), Vec::new(), cuts.into_iter().cycle());
            while !wire.is_empty() {
                let (mut packet, rest) = wire.split_at(cuts.next().unwrap().min(wire.len()));
                while let Some(piece) = decoder.take(&mut packet).unwrap() {
                    match piece {
                        Segment::Data(bytes) => taken.extend_from_slice(bytes),
                        other => others.push(other),
                    }
                }
                wire = rest;
            }
            prop_assert_eq!(taken, data.concat());
            let sent: Vec<Segment<'_>> = pieces.into_iter().filter(|piece| !matches!(piece, Segment::Data(_))).collect();
            prop_assert_eq!(others, sent);
        }
    }
}
