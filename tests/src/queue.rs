//! Stands for the program beside a lead broker that tells the agent what the queue asks for.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;
use tributary::bursting::root::demand::hear::{PURPOSE, VERSION};
use tributary::tunnel::ends::handshake::{CODE, Codes, Key, random};

/// How often the program says that nothing is new.
const SIGN: std::time::Duration = std::time::Duration::from_secs(2);

/// Tells whoever has the certificate what there is to tell, whenever that changes; until the sender is gone.
///
/// # Errors
/// The listener hung up, or does not know the certificate.
pub async fn tell(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: &str,
    mut pictures: watch::Receiver<String>,
) -> io::Result<()> {
    let key = Key::of_certificate(certificate, PURPOSE).map_err(io::Error::other)?;
    let (mut hello, ours, mut code) = ([0; 33], random()?, [0; CODE]);
    stream.read_exact(&mut hello).await?;
    stream.write_all(&[&[VERSION], &ours[..]].concat()).await?;
    stream.read_exact(&mut code).await?;
    let codes = Codes::new(&key, hello[1..].try_into().expect("32 bytes"), ours);
    codes.check(b"agent", &[], &code)?;
    pictures.mark_changed();
    for number in 0_u64.. {
        let text = match timeout(SIGN, pictures.changed()).await {
            Ok(Ok(())) => Some(pictures.borrow_and_update().clone()),
            Ok(Err(_)) => return Ok(()),
            Err(_) => None,
        };
        let (kind, text) = text.map_or((0, String::new()), |text| (1, text));
        let length = u32::try_from(text.len()).expect("a test says little");
        let said = [&number.to_be_bytes()[..], &[kind], &length.to_be_bytes(), text.as_bytes()].concat();
        stream.write_all(&[&said[8..], codes.code(b"queue", &said).as_ref()].concat()).await?;
    }
    Ok(())
}
