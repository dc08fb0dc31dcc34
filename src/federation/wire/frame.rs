//! Frames: a big-endian `u32` length, then that many bytes.

use std::io;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

/// Bytes of the length before a frame.
const PREFIX: usize = size_of::<u32>();

/// Why a frame was not taken or not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of {size} bytes is beyond the limit of {limit}")]
pub struct TooLarge {
    /// Bytes of the frame.
    pub size: usize,
    /// The limit of this kind of frame.
    pub limit: usize,
}

/// Appends one frame to `buf`; nothing is appended on error.
pub(crate) fn put(message: &impl Message, limit: usize, buf: &mut BytesMut) -> Result<(), TooLarge> {
    let size = message.encoded_len();
    if size > limit {
        return Err(TooLarge { size, limit });
    }
    buf.reserve(PREFIX + size);
    // Limits are far below 4 GiB.
    buf.put_u32(size as u32);
    message.encode(buf).expect("a BytesMut grows");
    Ok(())
}

/// Takes the first frame off `buf`; `None` while it is not whole. A length beyond the limit is an error before the frame
/// has arrived, so that nothing is allocated for it.
pub fn take(buf: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, TooLarge> {
    let Some(prefix) = buf.first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let size = u32::from_be_bytes(*prefix) as usize;
    if size > limit {
        return Err(TooLarge { size, limit });
    }
    if buf.len() < PREFIX + size {
        return Ok(None);
    }
    buf.advance(PREFIX);
    Ok(Some(buf.split_to(size).freeze()))
}

/// Sends one message as the only frame of its direction of a stream, and ends the direction. The buffer is wiped.
pub(crate) async fn send_only<W: AsyncWrite + Unpin>(
    stream: &mut W,
    message: &impl Message,
    limit: usize,
) -> io::Result<()> {
    send_first(stream, message, limit).await?;
    stream.shutdown().await
}

/// Sends one message as the first frame of its direction of a stream, which goes on. The buffer is wiped.
pub(crate) async fn send_first<W: AsyncWrite + Unpin>(
    stream: &mut W,
    message: &impl Message,
    limit: usize,
) -> io::Result<()> {
    let size = message.encoded_len();
    if size > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, TooLarge { size, limit }));
    }
    // Made as large as needed at once: growing would leave copies behind.
    let mut buf = Zeroizing::new(Vec::with_capacity(PREFIX + size));
    buf.put_u32(size as u32);
    message.encode(&mut *buf).expect("a Vec grows");
    stream.write_all(&buf).await?;
    stream.flush().await
}

/// Reads the only, or the first, frame of a direction of a stream and decodes it; nothing beyond it is taken. The buffer is
/// wiped.
///
/// # Errors
/// `UnexpectedEof` if the stream ends early, `InvalidData` if the frame is beyond the limit or cannot be decoded.
pub async fn receive_only<R: AsyncRead + Unpin, M: Message + Default>(stream: &mut R, limit: usize) -> io::Result<M> {
    let size = stream.read_u32().await? as usize;
    if size > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, TooLarge { size, limit }));
    }
    let mut buf = Zeroizing::new(vec![0; size]);
    stream.read_exact(&mut buf).await?;
    M::decode(buf.as_slice()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::proto;

    fn query(text: &str) -> proto::QueryRequest {
        proto::QueryRequest { query: text.to_owned() }
    }

    #[test]
    fn frames_come_out_whole_and_in_order() {
        let mut sent = BytesMut::new();
        put(&query("one"), 64, &mut sent).unwrap();
        put(&query("two"), 64, &mut sent).unwrap();
        let mut received = BytesMut::new();
        let mut frames = Vec::new();
        for byte in sent {
            received.put_u8(byte);
            while let Some(frame) = take(&mut received, 64).unwrap() {
                frames.push(proto::QueryRequest::decode(frame).unwrap().query);
            }
        }
        assert_eq!(frames, ["one", "two"]);
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_by_both_ends() {
        let mut buf = BytesMut::new();
        assert_eq!(put(&query("12345"), 6, &mut buf), Err(TooLarge { size: 7, limit: 6 }));
        assert!(buf.is_empty());
        let mut huge = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        assert_eq!(take(&mut huge, 6), Err(TooLarge { size: 0xffff_ffff, limit: 6 }), "before a byte of it arrived");
    }

    #[tokio::test]
    async fn a_request_stream_carries_one_frame_each_way() {
        let (mut ours, mut theirs) = tokio::io::duplex(3);
        let message = query("bursts");
        let (sent, received) =
            tokio::join!(send_only(&mut ours, &message, 64), receive_only::<_, proto::QueryRequest>(&mut theirs, 64));
        sent.unwrap();
        assert_eq!(received.unwrap(), query("bursts"));
        let ended = receive_only::<_, proto::QueryRequest>(&mut theirs, 64).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buf = BytesMut::from(&bytes[..]);
            let mut taken = 0;
            while let Ok(Some(frame)) = take(&mut buf, 64) {
                prop_assert!(frame.len() <= 64);
                taken += PREFIX + frame.len();
            }
            prop_assert_eq!(taken + buf.len(), bytes.len());
        }
    }
}
