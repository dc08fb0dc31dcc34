//! Logging of a process: one line an event on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// Installs the process-wide subscriber. Calling it again does nothing (the demo runs several agents in one family).
pub fn install(config: &LogConfig) -> Result<(), ParseError> {
    let filter = filter(&config.filter)?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber is refused by tracing; the first one keeps working.
    let _ = match config.format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
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
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

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
            assert!(tracing::enabled!(target: "tributary::cluster", Level::INFO));
        });
    }
}
