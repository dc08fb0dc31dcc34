//! Logging of a process: one line an event on standard error, as text or JSON.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};
use tributary_config::{LogConfig, LogFormat};

/// Changes what is logged.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Installs the process-wide subscriber. Calling it again does nothing (the demo runs several agents in one family).
///
/// # Errors
/// The filter cannot be read.
pub fn install(config: &LogConfig) -> Result<(), ParseError> {
    let (filter, handle) = reload::Layer::new(filter(&config.filter)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // A second subscriber is refused by tracing; the first one keeps working, and keeps the handle.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
    Ok(())
}

/// Logs by another filter from now on.
///
/// # Errors
/// The filter cannot be read: nothing changes.
pub fn change_filter(directives: &str) -> Result<(), ParseError> {
    let filter = filter(directives)?;
    if let Some(handle) = FILTER.get() {
        // The subscriber lives as long as the process.
        let _ = handle.reload(filter);
    }
    Ok(())
}

/// What is logged. Whatever is asked for, kube's client stays silent: it logs the whole answer that it cannot read, and
/// that may be a Secret. What fails is logged by who asked.
fn filter(directives: &str) -> Result<EnvFilter, ParseError> {
    let silent = "kube_client::client=off".parse().expect("a literal directive");
    Ok(EnvFilter::builder().parse(directives)?.add_directive(silent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn answers_of_the_api_server_are_never_logged() {
        for directives in ["trace", "kube_client=trace", "info,kube_client::client=warn"] {
            let subscriber = tracing_subscriber::registry().with(filter(directives).unwrap());
            tracing::subscriber::with_default(subscriber, || {
                assert!(!tracing::enabled!(target: "kube_client::client", Level::WARN), "{directives}");
                assert!(!tracing::enabled!(target: "kube_client::client::builder", Level::ERROR), "{directives}");
            });
        }
        let subscriber = tracing_subscriber::registry().with(filter("info").unwrap());
        tracing::subscriber::with_default(subscriber, || {
            assert!(tracing::enabled!(target: "tributary_cluster", Level::INFO));
        });
    }
}
