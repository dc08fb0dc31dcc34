//! Stands for the program beside a lead broker that tells the agent what the queue asks for.

use std::convert::Infallible;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;
use tributary::bursting::root::demand::hear::{PURPOSE, VERSION};
use tributary::tunnel::ends::handshake::{CODE, Codes, Key, random};

/// How often the program says that nothing is new.
const SIGN: std::time::Duration = std::time::Duration::from_secs(2);

/// Tells whoever has the certificate what there is to tell, whenever that changes; until the sender is gone. `closes` hears on
/// which ranks no more jobs may start.
///
/// # Errors
/// The listener hung up, or does not know the certificate.
pub async fn tell(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: &str,
    mut pictures: watch::Receiver<String>,
    closes: impl Fn(&str),
) -> io::Result<()> {
    let key = Key::of_certificate(certificate, PURPOSE).map_err(io::Error::other)?;
    let (mut hello, ours, mut code) = ([0; 33], random()?, [0; CODE]);
    stream.read_exact(&mut hello).await?;
    stream.write_all(&[&[VERSION], &ours[..]].concat()).await?;
    stream.read_exact(&mut code).await?;
    let codes = Codes::new(&key, hello[1..].try_into().expect("32 bytes"), ours);
    codes.check(b"agent", &[], &code)?;
    pictures.mark_changed();
    let (mut reads, mut writes) = tokio::io::split(stream);
    let tells = async {
        for number in 0_u64.. {
            let text = match timeout(SIGN, pictures.changed()).await {
                Ok(Ok(())) => Some(pictures.borrow_and_update().clone()),
                Ok(Err(_)) => return Ok(()),
                Err(_) => None,
            };
            let (kind, text) = text.map_or((0, String::new()), |text| (1, text));
            let length = u32::try_from(text.len()).expect("a test says little");
            let said = [&number.to_be_bytes()[..], &[kind], &length.to_be_bytes(), text.as_bytes()].concat();
            writes.write_all(&[&said[8..], codes.code(b"queue", &said).as_ref()].concat()).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = tells => ended,
        Err(error) = hear(&mut reads, &codes, closes) => Err(error),
    }
}

async fn hear(stream: &mut (impl AsyncRead + Unpin), codes: &Codes, closes: impl Fn(&str)) -> io::Result<Infallible> {
    let mut number = 0_u64;
    loop {
        let length = stream.read_u32().await?;
        let mut wish = [&number.to_be_bytes()[..], &length.to_be_bytes()].concat();
        stream.take(length.into()).read_to_end(&mut wish).await?;
        let mut code = [0; CODE];
        stream.read_exact(&mut code).await?;
        codes.check(b"close", &wish, &code)?;
        closes(&String::from_utf8_lossy(&wish[12..]));
        number += 1;
    }
}
