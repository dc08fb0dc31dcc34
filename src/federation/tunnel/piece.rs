//! What travels on a tunnel stream after its opening: pieces of the byte stream, acknowledgements, ends.
//!
//! One byte says which: 0 data (`u32` length, then the bytes), 1 acknowledgement (`u64` position), 2 end, 3 reset; numbers
//! are big-endian. A stream is reliable and in order, so data carries no position: both sides know it from the opening.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::federation::wire::limits::TUNNEL_PIECE;

const DATA: u8 = 0;
const ACK: u8 = 1;
const END: u8 = 2;
const RESET: u8 = 3;

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of the connection, at most [`TUNNEL_PIECE`].
    Data(Bytes),
    /// All before this position was given to the connection on the other side; the end counts as one byte.
    Ack(u64),
    /// No more bytes in this direction.
    End,
    /// The connection on this side broke.
    Reset,
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

/// Appends all of a piece to `head` but the bytes of its data, which are returned: they follow.
pub fn head(piece: Piece, head: &mut BytesMut) -> Bytes {
    match piece {
        Piece::Data(bytes) => {
            head.put_u8(DATA);
            // Pieces are far below 4 GiB.
            head.put_u32(bytes.len() as u32);
            return bytes;
        }
        Piece::Ack(position) => {
            head.put_u8(ACK);
            head.put_u64(position);
        }
        Piece::End => head.put_u8(END),
        Piece::Reset => head.put_u8(RESET),
    }
    Bytes::new()
}

/// Takes pieces off what arrived. Data is handed on as it comes, without waiting for the rest of its piece.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// Bytes of the present piece's data that are still to come.
    left: usize,
}

impl Decoder {
    /// The next piece in `buf`; `None` until more arrives.
    ///
    /// # Errors
    /// It is none; nothing after it can be read.
    pub fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        loop {
            if self.left > 0 {
                if buf.is_empty() {
                    return Ok(None);
                }
                let bytes = buf.split_to(self.left.min(buf.len())).freeze();
                self.left -= bytes.len();
                return Ok(Some(Piece::Data(bytes)));
            }
            let Some(kind) = buf.first().copied() else { return Ok(None) };
            let needed = match kind {
                DATA => 5,
                ACK => 9,
                END | RESET => 1,
                other => return Err(Malformed::Kind(other)),
            };
            if buf.len() < needed {
                return Ok(None);
            }
            buf.advance(1);
            match kind {
                DATA => {
                    let length = buf.get_u32() as usize;
                    if length > TUNNEL_PIECE {
                        return Err(Malformed::TooLarge(length));
                    }
                    self.left = length;
                }
                ACK => return Ok(Some(Piece::Ack(buf.get_u64()))),
                END => return Ok(Some(Piece::End)),
                _ => return Ok(Some(Piece::Reset)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(pieces: &[Piece]) -> BytesMut {
        let mut bytes = BytesMut::new();
        for piece in pieces {
            let data = head(piece.clone(), &mut bytes);
            bytes.extend_from_slice(&data);
        }
        bytes
    }

    #[test]
    fn the_bytes_of_every_piece() {
        let all = [Piece::Data(Bytes::from_static(b"ab")), Piece::Ack(258), Piece::End, Piece::Reset];
        assert_eq!(&encoded(&all)[..], b"\x00\x00\x00\x00\x02ab\x01\x00\x00\x00\x00\x00\x00\x01\x02\x02\x03");
        let mut decoder = Decoder::default();
        assert_eq!(decoder.take(&mut BytesMut::from(&b"\x07"[..])), Err(Malformed::Kind(7)));
        let huge = decoder.take(&mut BytesMut::from(&b"\x00\xff\xff\xff\xff"[..]));
        assert_eq!(huge, Err(Malformed::TooLarge(0xffff_ffff)));
    }

    proptest! {
        #[test]
        fn pieces_come_out_whatever_the_packets(
            lengths in proptest::collection::vec(0_usize..300, 0..20),
            cuts in proptest::collection::vec(1_usize..40, 1..50),
        ) {
            let mut pieces = Vec::new();
            for (number, length) in lengths.into_iter().enumerate() {
                pieces.push(Piece::Data(vec![number as u8; length].into()));
                pieces.push(Piece::Ack(length as u64));
            }
            pieces.push(Piece::End);
            let mut wire = encoded(&pieces);
            let (mut decoder, mut buf) = (Decoder::default(), BytesMut::new());
            let (mut data, mut others, mut cuts) = (Vec::new(), Vec::new(), cuts.into_iter().cycle());
            while !wire.is_empty() {
                let next = cuts.next().unwrap().min(wire.len());
                buf.extend_from_slice(&wire.split_to(next));
                while let Some(piece) = decoder.take(&mut buf).unwrap() {
                    match piece {
                        Piece::Data(bytes) => data.extend_from_slice(&bytes),
                        other => others.push(other),
                    }
                }
            }
            let (mut sent, mut sent_others) = (Vec::new(), Vec::new());
            for piece in pieces {
                match piece {
                    Piece::Data(bytes) => sent.extend_from_slice(&bytes),
                    other => sent_others.push(other),
                }
            }
            prop_assert_eq!(data, sent);
            prop_assert_eq!(others, sent_others);
        }
    }
}
