//! Logging of a process: one line an event on standard error, as text or JSON.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};
use tributary_config::{LogConfig, LogFormat};

/// Changes what is logged.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Why a filter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// A directive that is no level. tracing would take it for a target, log all of that, and nothing else.
    #[error(
        "{0:?} is no level (off, error, warn, info, debug, trace); a target is written with its level, as {0}=debug"
    )]
    NoLevel(String),
    /// tracing cannot read it.
    #[error("{0}; it is a list of levels and TARGET=LEVEL, such as \"info,tributary=debug\"")]
    Unreadable(ParseError),
}

/// Installs the process-wide subscriber. Calling it again does nothing (the demo runs several agents in one family).
///
/// # Errors
/// The filter cannot be used: the default one is.
pub fn install(config: &LogConfig) -> Result<(), FilterError> {
    let (usable, error) = match filter(&config.filter) {
        Ok(filter) => (filter, None),
        Err(error) => (filter(&LogConfig::default().filter)?, Some(error)),
    };
    let (filter, handle) = reload::Layer::new(usable);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // A second subscriber is refused by tracing; the first one keeps working, and keeps the handle.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
    error.map_or(Ok(()), Err)
}

/// Logs by another filter from now on.
///
/// # Errors
/// The filter cannot be used: nothing changes.
pub fn change_filter(directives: &str) -> Result<(), FilterError> {
    let filter = filter(directives)?;
    if let Some(handle) = FILTER.get() {
        // The subscriber lives as long as the process.
        let _ = handle.reload(filter);
    }
    Ok(())
}

/// What is logged. Whatever is asked for, kube's client stays silent: it logs the whole answer that it cannot read, and
/// that may be a Secret. What fails is logged by who asked.
fn filter(directives: &str) -> Result<EnvFilter, FilterError> {
    let silent = "kube_client::client=off".parse().expect("a literal directive");
    // tracing takes the space after a comma as part of a target.
    let directives: Vec<_> = directives.split(',').map(str::trim).collect();
    let names_no_level = |one: &&&str| !one.contains(['=', '[']) && one.parse::<LevelFilter>().is_err();
    if let Some(word) = directives.iter().find(names_no_level) {
        return Err(FilterError::NoLevel((*word).to_owned()));
    }
    let filter = EnvFilter::builder().parse(directives.join(",")).map_err(FilterError::Unreadable)?;
    Ok(filter.add_directive(silent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn what_would_silence_everything_else_is_refused() {
        for directives in ["warning", "verbose", "info,tributary", "tributary=verbose", "info,[", "6"] {
            let error = filter(directives).unwrap_err().to_string();
            assert!(error.contains("=debug"), "{directives}: {error}");
        }
        for directives in ["", "WARN", "3", "info, tributary=debug", "tributary[tick]=trace,off", "info,"] {
            assert!(filter(directives).is_ok(), "{directives}");
        }
        let subscriber = tracing_subscriber::registry().with(filter("tributary=debug, warn").unwrap());
        tracing::subscriber::with_default(subscriber, || {
            assert!(
                tracing::enabled!(target: "hyper", Level::WARN) && !tracing::enabled!(target: "hyper", Level::INFO)
            );
        });
    }

    /// The next pod would not start for it, long after somebody wrote it.
    #[test]
    fn with_a_filter_that_cannot_be_used_the_default_one_is() {
        let config = LogConfig { filter: "verbose".to_owned(), ..LogConfig::default() };
        assert!(install(&config).is_err());
        assert!(tracing::enabled!(Level::INFO) && !tracing::enabled!(Level::DEBUG));
    }

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
