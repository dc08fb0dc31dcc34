//! Hears of the queue as an agent does, from wherever it is run: `queue_listen CERTIFICATE ADDRESS`. Prints a line for what
//! comes: the moment in milliseconds, what it is, and its text. Connects again when the connection ends.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::bail;
use tokio::net::TcpStream;
use tributary::bursting::root::demand::hear::{Frame, Frames, PURPOSE};
use tributary::tunnel::ends::handshake::Key;

fn say(what: &str, text: &str) {
    let now = jiff::Timestamp::now().as_millisecond();
    // Whoever started it may be gone.
    let _ = writeln!(io::stdout(), "{now} {what} {text}");
}

async fn follow(key: &Key, address: &str) -> io::Result<()> {
    let (mut frames, _wishes) = Frames::begin(TcpStream::connect(address).await?, key).await?;
    loop {
        match frames.next().await? {
            Frame::Alive => say("alive", ""),
            Frame::Picture(text) => say("picture", &text),
            Frame::Trouble(text) => say("trouble", &text),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [certificate, address] = &words[..] else { bail!("usage: queue_listen CERTIFICATE ADDRESS") };
    let key = Key::of_certificate(&std::fs::read_to_string(certificate)?, PURPOSE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        loop {
            if let Err(error) = follow(&key, address).await {
                say("error", &error.to_string());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}
