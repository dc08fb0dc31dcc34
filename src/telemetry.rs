//! Logging of a process: one line an event on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// Installs the process-wide subscriber. Calling it again does nothing (the demo runs several agents in one family).
pub fn install(config: &LogConfig) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(&config.filter)?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber is refused by tracing; the first one keeps working.
    let _ = match config.format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
