//! The part of a provider's preflight that dials, from wherever it is run: `lead_dial PUBLIC-KEY ADDRESS...`. Prints one
//! finding a line: check, outcome, message.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use anyhow::bail;
use tributary::bursting::preflight::attempt::Target;
use tributary::bursting::preflight::lead;
use tributary::clock::SystemRng;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(public_key) = arguments.next() else { bail!("usage: lead_dial PUBLIC-KEY ADDRESS...") };
    let ends: Vec<SocketAddr> = arguments.map(|text| text.parse()).collect::<Result<_, _>>()?;
    let target = Target { ends, tunnel: false, public_key };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seen = runtime.block_on(lead::dial(&target, &mut SystemRng));
    for finding in seen.findings(&target, true) {
        writeln!(io::stdout(), "{} {} {}", finding.check.as_str(), finding.outcome.as_str(), finding.message)?;
    }
    Ok(())
}
